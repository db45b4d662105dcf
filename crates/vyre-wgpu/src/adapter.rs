//! Which adapter is used, and why.
//!
//! A graphics card of its own goes before one that shares the processor's memory, both before software; among equals, the first
//! that wgpu finds. `VYRE_ADAPTER` names another one by a part of its name.

use vyre_driver::Error;

use crate::device::{NAME, ready};

/// What would help a machine without an adapter.
const INSTALL: &str = "no Vulkan, Metal or DirectX 12 adapter was found; a software one is in the package \
                       mesa-vulkan-drivers of Debian and Ubuntu";

/// The environment variable that names an adapter.
const VARIABLE: &str = "VYRE_ADAPTER";

/// Adapters of all interfaces that vyre supports, in the order in which wgpu finds them.
fn enumerate() -> Vec<wgpu::Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    ready(instance.enumerate_adapters(wgpu::Backends::all()))
}

/// Returns every adapter with compute shaders.
pub(crate) fn usable() -> Vec<wgpu::Adapter> {
    enumerate().into_iter().filter(|adapter| Found::new(adapter).computes).collect()
}

/// Finds the adapter to use, and says about each that there is why it is used or not.
pub(crate) fn choose(named: Option<&str>) -> Result<(wgpu::Adapter, Vec<String>), Error> {
    let mut adapters = enumerate();
    let variable = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let wanted = variable.as_deref().or(named);
    let found: Vec<Found> = adapters.iter().map(Found::new).collect();
    let (chosen, reasons) = decide(&found, wanted);
    match chosen {
        Some(chosen) => Ok((adapters.swap_remove(chosen), reasons)),
        None if found.is_empty() => Err(Error::NoAdapter { backend: NAME, reason: INSTALL.into() }),
        None => Err(Error::NoAdapter { backend: NAME, reason: reasons.join("; ") }),
    }
}

/// What decides about an adapter.
struct Found {
    name: String,
    interface: wgpu::Backend,
    kind: wgpu::DeviceType,
    computes: bool,
}

impl Found {
    fn new(adapter: &wgpu::Adapter) -> Found {
        let info = adapter.get_info();
        let computes = adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS);
        Found { name: info.name, interface: info.backend, kind: info.device_type, computes }
    }

    /// The lower, the better.
    fn rank(&self) -> u32 {
        match self.kind {
            wgpu::DeviceType::DiscreteGpu => 0,
            wgpu::DeviceType::IntegratedGpu => 1,
            wgpu::DeviceType::VirtualGpu => 2,
            wgpu::DeviceType::Other => 3,
            wgpu::DeviceType::Cpu => 4,
        }
    }

    fn kind(&self) -> &'static str {
        match self.kind {
            wgpu::DeviceType::DiscreteGpu => "a discrete GPU",
            wgpu::DeviceType::IntegratedGpu => "an integrated GPU",
            wgpu::DeviceType::VirtualGpu => "a virtual GPU",
            wgpu::DeviceType::Other => "an unknown sort of device",
            wgpu::DeviceType::Cpu => "software",
        }
    }
}

/// The position of the adapter to use, if one can be, and a reason for each.
fn decide(found: &[Found], wanted: Option<&str>) -> (Option<usize>, Vec<String>) {
    let is_wanted =
        |found: &Found| wanted.is_none_or(|wanted| found.name.to_lowercase().contains(&wanted.to_lowercase()));
    let usable = found.iter().enumerate().filter(|(_, found)| found.computes && is_wanted(found));
    let chosen = usable.min_by_key(|(_, found)| found.rank()).map(|(position, _)| position);
    let reason = |(position, adapter): (usize, &Found)| {
        let verdict = match chosen.map(|chosen| &found[chosen]) {
            _ if !adapter.computes => "not used: it has no compute shaders".into(),
            _ if !is_wanted(adapter) => format!("not used: {:?} is asked for", wanted.unwrap_or_default()),
            Some(_) if chosen == Some(position) && wanted.is_some() => "used: it is asked for by name".into(),
            Some(_) if chosen == Some(position) && found.len() == 1 => "used: there is no other".into(),
            Some(_) if chosen == Some(position) => "used: it is the best of its sort that comes first".into(),
            Some(better) if better.rank() < adapter.rank() => format!("not used: {} is {}", better.name, better.kind()),
            Some(first) => format!("not used: {} comes first", first.name),
            None => "not used".into(),
        };
        format!("{} ({}, {}): {verdict}", adapter.name, adapter.kind(), adapter.interface)
    };
    (chosen, found.iter().enumerate().map(reason).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_adapter_is_used_unless_another_is_named() {
        let adapter =
            |name: &str, kind, computes| Found { name: name.into(), interface: wgpu::Backend::Vulkan, kind, computes };
        let found = [
            adapter("Soft", wgpu::DeviceType::Cpu, true),
            adapter("Small", wgpu::DeviceType::IntegratedGpu, true),
            adapter("Old", wgpu::DeviceType::DiscreteGpu, false),
            adapter("Big", wgpu::DeviceType::DiscreteGpu, true),
            adapter("Twin", wgpu::DeviceType::DiscreteGpu, true),
        ];
        let (chosen, reasons) = decide(&found, None);
        assert_eq!(chosen, Some(3));
        assert_eq!(
            reasons,
            [
                "Soft (software, vulkan): not used: Big is a discrete GPU",
                "Small (an integrated GPU, vulkan): not used: Big is a discrete GPU",
                "Old (a discrete GPU, vulkan): not used: it has no compute shaders",
                "Big (a discrete GPU, vulkan): used: it is the best of its sort that comes first",
                "Twin (a discrete GPU, vulkan): not used: Big comes first",
            ]
        );
        let (chosen, reasons) = decide(&found, Some("small"));
        assert_eq!(chosen, Some(1));
        assert_eq!(reasons[1], "Small (an integrated GPU, vulkan): used: it is asked for by name");
        assert_eq!(reasons[3], "Big (a discrete GPU, vulkan): not used: \"small\" is asked for");
        let (chosen, reasons) = decide(&found[..1], None);
        assert_eq!((chosen, &*reasons[0]), (Some(0), "Soft (software, vulkan): used: there is no other"));
        assert_eq!(decide(&found, Some("none")).0, None);
    }
}
