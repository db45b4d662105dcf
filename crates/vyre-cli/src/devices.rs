//! The devices that kernels run on, and `vyre devices`.

use std::io::Write as _;

use serde_json::{Value, json};
use vyre_foundation::Validated;
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::launch::{Arguments, Limits, Report};
use vyre_reference::Options;

use crate::error::Error;
use crate::stdout::Stdout;

/// The device of a command that names none.
pub(crate) const DEFAULT: &str = "reference";

/// Something that runs kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The oracle.
    Reference,
}

impl Device {
    const ALL: [Device; 1] = [Device::Reference];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Device::Reference => "reference",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Device::Reference => "the oracle: a plain interpreter that defines what a program means",
        }
    }

    fn subgroup_sizes(self) -> &'static [u32] {
        match self {
            Device::Reference => &[1, 2, 4, 8, 16, 32, 64, 128],
        }
    }

    fn elements(self) -> &'static [Element] {
        match self {
            Device::Reference => &Element::ALL,
        }
    }
}

/// The device with this name.
pub(crate) fn find(name: &str) -> Result<Device, Error> {
    Device::ALL.into_iter().find(|device| device.name() == name).ok_or_else(|| Error::UnknownDevice {
        name: name.into(),
        known: Device::ALL.iter().map(|device| device.name().into()).collect(),
    })
}

/// Runs a program on a device. The buffers hold its results afterwards. The device chooses the size of its subgroups if the
/// caller does not.
pub(crate) fn execute(
    device: Device,
    program: &Validated<Program>,
    groups: [u32; 3],
    arguments: &Arguments,
    buffers: &mut [Vec<u8>],
    limits: Limits,
    subgroup_size: Option<u32>,
) -> Result<Report, Error> {
    match device {
        Device::Reference => {
            let subgroup_size = subgroup_size.unwrap_or(Options::default().subgroup_size);
            let options = Options { limits, subgroup_size };
            Ok(vyre_reference::run(program, groups, arguments, buffers, &options)?)
        }
    }
}

/// List the devices that kernels can run on
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    if args.json {
        let devices: Vec<Value> = Device::ALL.into_iter().map(object).collect();
        return writeln!(stdout, "{}", json!({ "default": DEFAULT, "devices": devices })).map_err(Error::Stdout);
    }
    for device in Device::ALL {
        let mark = if device.name() == DEFAULT { " (default)" } else { "" };
        let sizes: Vec<String> = device.subgroup_sizes().iter().map(u32::to_string).collect();
        let elements: Vec<&str> = device.elements().iter().map(|element| element.name()).collect();
        writeln!(
            stdout,
            "{}{mark}\n    {}\n    subgroup sizes: {}\n    element types: {}",
            device.name(),
            device.description(),
            sizes.join(", "),
            elements.join(", "),
        )
        .map_err(Error::Stdout)?;
    }
    Ok(())
}

fn object(device: Device) -> Value {
    json!({
        "name": device.name(),
        "description": device.description(),
        "default": device.name() == DEFAULT,
        "subgroup_sizes": device.subgroup_sizes(),
        "element_types": device.elements().iter().map(|element| element.name()).collect::<Vec<_>>(),
    })
}
