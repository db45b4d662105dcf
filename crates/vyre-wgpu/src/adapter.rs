//! Adapter selection, with a reason for each adapter.
//!
//! Discrete GPUs rank before integrated ones, and software adapters last; among equals, the first that wgpu enumerates
//! is selected. `VYRE_ADAPTER` selects an adapter by a part of its name.

use vyre_driver::Error;

use crate::device::{NAME, ready};

/// Help for a machine without an adapter.
const INSTALL: &str = "no Vulkan, Metal or DirectX 12 adapter was found; a software one is in the package \
                       mesa-vulkan-drivers of Debian and Ubuntu";

/// Environment variable that selects an adapter by name.
const VARIABLE: &str = "VYRE_ADAPTER";

/// Enumerates the adapters of all supported interfaces, in wgpu's order.
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
    enumerate().into_iter().filter(|adapter| Candidate::new(adapter).computes).collect()
}

/// Selects an adapter; returns a reason for or against each.
pub(crate) fn choose(named: Option<&str>) -> Result<(wgpu::Adapter, Vec<String>), Error> {
    let mut adapters = enumerate();
    let variable = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let wanted = variable.as_deref().or(named);
    let found: Vec<Candidate> = adapters.iter().map(Candidate::new).collect();
    let (chosen, reasons) = decide(&found, wanted);
    match chosen {
        Some(chosen) => Ok((adapters.swap_remove(chosen), reasons)),
        None if found.is_empty() => Err(Error::NoAdapter { backend: NAME, reason: INSTALL.into() }),
        None => Err(Error::NoAdapter { backend: NAME, reason: reasons.join("; ") }),
    }
}

/// Properties of an adapter by which it is selected.
struct Candidate {
    name: String,
    interface: wgpu::Backend,
    kind: wgpu::DeviceType,
    computes: bool,
}

impl Candidate {
    fn new(adapter: &wgpu::Adapter) -> Candidate {
        let info = adapter.get_info();
        let computes = adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS);
        Candidate { name: info.name, interface: info.backend, kind: info.device_type, computes }
    }

    /// Selection rank: lower is better.
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
            wgpu::DeviceType::Other => "a device of unknown type",
            wgpu::DeviceType::Cpu => "software",
        }
    }
}

/// Returns the position of the selected adapter, if any, and a reason for each adapter.
fn decide(found: &[Candidate], wanted: Option<&str>) -> (Option<usize>, Vec<String>) {
    let is_wanted =
        |found: &Candidate| wanted.is_none_or(|wanted| found.name.to_lowercase().contains(&wanted.to_lowercase()));
    let usable = found.iter().enumerate().filter(|(_, found)| found.computes && is_wanted(found));
    let chosen = usable.min_by_key(|(_, found)| found.rank()).map(|(position, _)| position);
    let reason = |(position, adapter): (usize, &Candidate)| {
        let verdict = match chosen.map(|chosen| &found[chosen]) {
            _ if !adapter.computes => "not selected: no compute shaders".into(),
            _ if !is_wanted(adapter) => {
                format!("not selected: the name does not contain {:?}", wanted.unwrap_or_default())
            }
            Some(_) if chosen == Some(position) && wanted.is_some() => "selected by name".into(),
            Some(_) if chosen == Some(position) && found.len() == 1 => "selected: the only adapter".into(),
            Some(_) if chosen == Some(position) => "selected: the first adapter of the best type".into(),
            Some(better) if better.rank() < adapter.rank() => {
                format!("not selected: {} is {}", better.name, better.kind())
            }
            Some(first) => format!("not selected: {} is enumerated first", first.name),
            None => "not selected".into(),
        };
        format!("{} ({}, {}): {verdict}", adapter.name, adapter.kind(), adapter.interface)
    };
    (chosen, found.iter().enumerate().map(reason).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_adapter_is_selected_unless_another_is_named() {
        let adapter = |name: &str, kind, computes| Candidate {
            name: name.into(),
            interface: wgpu::Backend::Vulkan,
            kind,
            computes,
        };
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
                "Soft (software, vulkan): not selected: Big is a discrete GPU",
                "Small (an integrated GPU, vulkan): not selected: Big is a discrete GPU",
                "Old (a discrete GPU, vulkan): not selected: no compute shaders",
                "Big (a discrete GPU, vulkan): selected: the first adapter of the best type",
                "Twin (a discrete GPU, vulkan): not selected: Big is enumerated first",
            ]
        );
        let (chosen, reasons) = decide(&found, Some("small"));
        assert_eq!(chosen, Some(1));
        assert_eq!(reasons[1], "Small (an integrated GPU, vulkan): selected by name");
        assert_eq!(reasons[3], "Big (a discrete GPU, vulkan): not selected: the name does not contain \"small\"");
        let (chosen, reasons) = decide(&found[..1], None);
        assert_eq!((chosen, &*reasons[0]), (Some(0), "Soft (software, vulkan): selected: the only adapter"));
        assert_eq!(decide(&found, Some("none")).0, None);
    }
}
