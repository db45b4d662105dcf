//! Device loss: every submission has one outcome, the error lists unacknowledged submissions, existing objects are
//! unusable, and a new device can be opened.

use std::time::Duration;

use vyre_driver::{Buffer, Device, Error, Grid, Kernel, Submission, Work};
use vyre_foundation::ir::Element;
use vyre_wgpu::Wgpu;

use programs::program;
use shared::shared;

mod programs;
mod shared;

fn kernel(device: &Device) -> Kernel {
    device.compile(&program("count")).expect("compiles")
}

fn submit(device: &Device, kernel: &Kernel, cells: &Buffer) -> Result<Submission, Error> {
    device.submit(&[kernel.dispatch(Grid::Groups([1, 1, 1]), [("cells", cells.into())])?])
}

fn is_loss(error: &Error) -> bool {
    matches!(error, Error::DeviceLost { .. } | Error::Stale { .. })
}

/// Time of the loss: after `submitted` submissions, of which `waited` have been waited for.
#[derive(Clone, Copy, Debug)]
struct Stage {
    submitted: usize,
    waited: usize,
    /// A download is pending.
    downloading: bool,
}

fn lose_at(stage: Stage) {
    let shared = shared(|_| {});
    let device = Device::open(&shared).expect("opens");
    let kernel = kernel(&device);
    let cells = device.upload(Element::U32, &[0; 256]).expect("uploads");
    let submissions: Vec<Submission> =
        (0..stage.submitted).map(|_| submit(&device, &kernel, &cells).expect("is submitted")).collect();
    let numbers: Vec<u64> = submissions.iter().map(Submission::number).collect();
    let download = stage.downloading.then(|| cells.download().expect("begins"));
    let mut submissions = submissions.into_iter();
    for submission in submissions.by_ref().take(stage.waited) {
        assert_eq!(submission.wait().expect("is done").len(), 1, "{stage:?}");
    }

    shared.device.destroy();

    for (number, mut submission) in numbers[stage.waited..].iter().zip(submissions) {
        let outcome = loop {
            if let Some(outcome) = submission.wait_timeout(Duration::from_secs(1)) {
                break outcome;
            }
        };
        match outcome {
            // It was done before.
            Ok(reports) => assert_eq!(reports.len(), 1, "{stage:?}"),
            Err(Error::DeviceLost { unacknowledged, .. }) => {
                let listed = unacknowledged.iter().find(|lost| lost.submission == *number);
                let work = listed.map(|lost| lost.work.clone());
                assert_eq!(work, Some(Work::Launches(vec!["count".into()])), "{stage:?}: {unacknowledged:?}");
                assert!(unacknowledged.is_sorted_by_key(|lost| lost.submission), "{unacknowledged:?}");
                let acknowledged = numbers[..stage.waited].last().copied().unwrap_or(0);
                assert!(unacknowledged.iter().all(|lost| lost.submission > acknowledged), "{stage:?}");
            }
            Err(error) => panic!("{stage:?}: {error}"),
        }
        let again = submission.wait_timeout(Duration::ZERO).expect("it is over");
        assert_eq!(again.expect_err("outcomes are given once"), Error::AlreadyTaken, "{stage:?}");
    }
    match download.map(vyre_driver::Download::wait) {
        None => {}
        Some(Ok(bytes)) => assert_eq!(bytes[..4], (stage.submitted as u32).to_le_bytes(), "{stage:?}"),
        Some(Err(error)) => assert!(is_loss(&error), "{stage:?}: {error}"),
    }
    let refused = [
        submit(&device, &kernel, &cells).and_then(Submission::wait).map(|_| ()),
        device.upload(Element::U32, &[0; 4]).and_then(|buffer| buffer.read()).map(|_| ()),
        cells.read().map(|_| ()),
    ];
    for result in refused {
        let error = result.expect_err("the device is gone");
        assert!(is_loss(&error), "{stage:?}: {error}");
    }
}

#[test]
fn submissions_have_one_outcome_at_any_device_loss() {
    for (submitted, waited) in [(0, 0), (1, 0), (1, 1), (3, 0), (3, 1), (3, 3), (600, 0), (600, 20)] {
        for downloading in [false, true] {
            lose_at(Stage { submitted, waited, downloading });
        }
    }
}

#[test]
fn a_device_can_be_opened_after_one_was_lost() {
    lose_at(Stage { submitted: 3, waited: 1, downloading: true });
    let device = Device::open(&Wgpu).expect("opens");
    let (kernel, cells) = (kernel(&device), device.upload(Element::U32, &[0; 256]).expect("uploads"));
    for _ in 0..3 {
        submit(&device, &kernel, &cells).and_then(Submission::wait).expect("runs");
    }
    assert_eq!(cells.read().expect("reads"), 3u32.to_le_bytes().repeat(64));
}

#[test]
fn out_of_memory_leaves_the_device_usable() {
    let device = Device::open(&Wgpu).expect("opens");
    let most = device.capabilities().max_buffer_bytes;
    let error = device.allocate(Element::U8, most.min(u64::from(u32::MAX)).saturating_add(1)).expect_err("too much");
    assert!(matches!(error, Error::OutOfMemory { .. } | Error::Foundation(_)), "{error}");
    let cells = device.upload(Element::U32, &[0; 256]).expect("uploads");
    submit(&device, &kernel(&device), &cells).and_then(Submission::wait).expect("runs");
}
