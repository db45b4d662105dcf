//! Host overhead benchmarks: typed kernels and buffers against the same calls of the driver.

use vyre::{Device, kernel};
use vyre_driver::{Error, Grid};
use vyre_foundation::ir::Element;
use vyre_foundation::validate;

use crate::line::{Line, Report};

#[kernel(workgroup = 256)]
fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        y[i] += a * x[i];
    }
}

/// Launches per measurement: a single one is shorter than the noise.
const LAUNCHES: usize = 100;

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    for name in ["cpu", "wgpu"] {
        let device = Device::named(name).map_err(driver_error)?;
        if name == "wgpu" {
            report.adapter(device.driver().capabilities());
        }
        for (size, n) in [("256", 256usize), ("65536", 1 << 16)] {
            launches(report, &device, name, &format!("saxpy_{size}_{name}"), n).map_err(driver_error)?;
        }
        copies(report, &device, name).map_err(driver_error)?;
    }
    Ok(())
}

pub(crate) fn driver_error(error: vyre::Error) -> Error {
    match error {
        vyre::Error::Driver(error) => error,
        other => Error::Backend { backend: "host", reason: other.to_string() },
    }
}

fn line<'a>(name: &'a str, device: &'a str, work: usize, unit: &'a str) -> Line<'a> {
    Line { suite: "host", name, device, threads: 1, baseline: "driver", work: work as u64, unit }
}

fn launches(report: &Report, device: &Device, device_name: &str, name: &str, n: usize) -> Result<(), vyre::Error> {
    let x = device.upload(&vec![1.0f32; n])?;
    let mut y = device.upload(&vec![2.0f32; n])?;
    let driver = device.driver();
    let kernel = driver.compile(&validate::program(saxpy::program()?)?)?;
    let ones = bytes(n);
    let (raw_x, raw_y) = (driver.upload(Element::F32, &ones)?, driver.upload(Element::F32, &ones)?);
    let mut ours = || {
        for _ in 0..LAUNCHES {
            saxpy(1e-6, &x, &mut y).run(device, n).expect("it ran before");
        }
    };
    let mut theirs = || {
        for _ in 0..LAUNCHES {
            let arguments = [("a", 1e-6f32.into()), ("x", (&raw_x).into()), ("y", (&raw_y).into())];
            let dispatch = kernel.dispatch(Grid::elements(n as u32), arguments).expect("it ran before");
            driver.run(&dispatch).expect("it ran before");
        }
    };
    report.compare(&mut ours, &mut [(line(name, device_name, LAUNCHES, "launches"), &mut theirs)]);
    Ok(())
}

/// Upload and download of 1 MiB.
fn copies(report: &Report, device: &Device, device_name: &str) -> Result<(), vyre::Error> {
    let n = 1 << 18;
    let typed = vec![1.0f32; n];
    let ones = bytes(n);
    let mut ours = || {
        let buffer = device.upload(&typed).expect("there is memory");
        assert_eq!(buffer.download().expect("the device is there").len(), n);
    };
    let mut theirs = || {
        let buffer = device.driver().upload(Element::F32, &ones).expect("there is memory");
        assert_eq!(buffer.read().expect("the device is there").len(), 4 * n);
    };
    let name = format!("copies_{device_name}");
    report.compare(&mut ours, &mut [(line(&name, device_name, n, "elements"), &mut theirs)]);
    Ok(())
}

fn bytes(floats: usize) -> Vec<u8> {
    1f32.to_le_bytes().repeat(floats)
}
