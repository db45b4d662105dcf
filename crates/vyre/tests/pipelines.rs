//! Pipelines of typed kernels, and sanitizer findings with lines of this file.

mod devices;
mod elsewhere;

use devices::on_devices;
use elsewhere::{CHECKED, checked};
use vyre::{Device, Error, Pipeline, kernel};

#[kernel(workgroup = 64)]
fn scale(a: u32, x: &[u32], y: &mut [u32]) {
    let i = global_index();
    if i < y.len() {
        y[i] = a * x[i];
    }
}

#[test]
fn launches_are_fused_and_run_again_on_new_contents() {
    on_devices(|device| {
        let mut x = device.upload(&[1, 2, 3]).unwrap();
        let mut y = device.zeros(3).unwrap();
        let mut pipeline = Pipeline::new(device);
        let record = pipeline.record(|p| {
            let mut doubled = p.transient(3)?;
            assert_eq!(doubled.len(), 3);
            scale(2, &x, &mut doubled).record(p, 3)?;
            scale(5, &doubled, &mut y).record(p, 3)
        });
        record.unwrap();
        let plan = pipeline.plan().unwrap();
        assert_eq!((plan.launches.len(), plan.avoided_launches()), (1, 1));
        pipeline.run().unwrap();
        assert_eq!(y.download().unwrap(), [10, 20, 30]);
        x.write(&[4, 5, 6]).unwrap();
        pipeline.run().unwrap();
        assert_eq!(y.download().unwrap(), [40, 50, 60]);

        // Launches recorded later read the earlier results.
        pipeline.record(|p| scale(3, &y, &mut x).record(p, 3)).unwrap();
        pipeline.run().unwrap();
        assert_eq!(x.download().unwrap(), [120, 150, 180]);
    });
}

#[test]
fn overlapping_slices_keep_their_order() {
    on_devices(|device| {
        let x = device.upload(&[1, 2, 3, 4]).unwrap();
        let mut y = device.zeros(4).unwrap();
        let mut z = device.zeros(4).unwrap();
        let mut pipeline = Pipeline::new(device);
        let record = pipeline.record(|p| {
            scale(2, &x, &mut y).record(p, 4)?;
            scale(10, &*x.slice(0..2)?, &mut *y.slice_mut(1..3)?).record(p, 2)?;
            scale(1, &y, &mut z).record(p, 4)?;
            scale(0, &x, &mut y).record(p, 4)
        });
        record.unwrap();
        pipeline.run().unwrap();
        assert_eq!(z.download().unwrap(), [2, 10, 20, 8]);
        assert_eq!(y.download().unwrap(), [0; 4]);
    });
}

#[test]
fn transients_are_refused_outside_of_their_pipeline() {
    let device = Device::named("cpu").unwrap();
    let mut y = device.zeros(3).unwrap();
    let mut outer = Pipeline::new(&device);
    let recorded = outer.record(|p| {
        let t = p.transient(3)?;
        assert_eq!(t.download(), Err(Error::Transient));
        assert_eq!(scale(1, &t, &mut y).run(&device, 3).err(), Some(Error::Transient));
        let mut inner = Pipeline::new(&device);
        assert_eq!(inner.record(|q| scale(1, &t, &mut y).record(q, 3)), Err(Error::Transient));
        scale(1, &t, &mut y).record(p, 3)?;
        Err(Error::Transient)
    });
    assert_eq!(recorded, Err(Error::Transient));
    // A failed recording adds no launch.
    assert_eq!(outer.plan().unwrap().launches.len(), 0);
    outer.run().unwrap();
}

#[test]
fn budgets_are_kept() {
    let device = Device::named("cpu").unwrap();
    let x = device.upload(&[1; 4096]).unwrap();
    let mut y = device.zeros(4096).unwrap();
    let mut pipeline = Pipeline::new(&device);
    pipeline.record(|p| scale(2, &x, &mut y).record(p, 4096)).unwrap();
    pipeline.budget(16_384);
    let Err(Error::Driver(vyre_driver::Error::OverBudget { required, budget, .. })) = pipeline.run() else {
        panic!("two buffers of 16 KiB do not fit")
    };
    assert_eq!((required, budget), (32_768, 16_384));
    pipeline.budget(required);
    pipeline.run().unwrap();
}

#[test]
fn a_trap_in_a_fused_launch_names_its_file_and_line() {
    on_devices(|device| {
        let x = device.upload(&[1, 77, 3]).unwrap();
        let mut y = device.zeros(3).unwrap();
        let mut pipeline = Pipeline::new(device);
        let record = pipeline.record(|p| {
            let (mut same, mut copied) = (p.transient(3)?, p.transient(3)?);
            scale(1, &x, &mut same).record(p, 3)?;
            checked(&same, &mut copied).record(p, 3)?;
            scale(3, &copied, &mut y).record(p, 3)
        });
        record.unwrap();
        let Err(Error::Trapped { code: 5, location: Some(location), .. }) = pipeline.run() else { panic!("it traps") };
        assert!(location.file().ends_with("elsewhere/mod.rs"), "{location}");
        assert_eq!(location.line(), CHECKED + 5);
    });
}

const ROTATE: u32 = line!();
#[kernel(workgroup = 64)]
fn rotate(x: &[u32], y: &mut [u32]) {
    let i = global_index();
    let last = x[i + 1];
    y[i / 2] = last;
}

#[test]
fn findings_name_their_lines() {
    let device = Device::named("cpu").unwrap();
    let x = device.upload(&(0..64).collect::<Vec<u32>>()).unwrap();
    let mut y = device.zeros(64).unwrap();
    let findings = rotate(&x, &mut y).sanitize(64).unwrap();
    let race = findings.iter().find(|finding| finding.code == "S001").unwrap();
    let other: Vec<u32> = race.related.iter().map(|(location, _)| location.line()).collect();
    assert_eq!(other, [ROTATE + 5], "the line of the other access");
    assert!(race.to_string().contains("help: "), "{race}");
    let mut found: Vec<_> =
        findings.iter().map(|finding| (finding.location.as_ref().unwrap().line(), finding.code)).collect();
    found.sort_unstable();
    assert_eq!(found, [(ROTATE + 4, "S003"), (ROTATE + 5, "S001")]);
    assert_eq!(y.download().unwrap(), [0; 64], "the buffers are as they were");
    assert_eq!(scale(2, &x, &mut y).sanitize(64).unwrap(), []);
}
