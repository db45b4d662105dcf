//! Extreme arguments of buffers, pipelines and standard kernels: results, or typed errors with correct lengths.

use std::time::Duration;

use vyre::{Buffer, Device, Error, Limits, Pipeline, kernel, kernels};

#[kernel(workgroup = 64)]
fn add(x: &[u32], y: &mut [u32]) {
    let i = global_index();
    if i < y.len() {
        y[i] = x[i] + 1;
    }
}

#[kernel(workgroup = 1)]
fn alone(y: &mut [u32]) {
    y[0] = 1;
}

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable, vyre::Record)]
#[repr(C)]
struct Point {
    x: f32,
    y: f32,
    z: f32,
}

fn cpu() -> Device {
    Device::named("cpu").unwrap()
}

const LENGTHS: [usize; 6] = [0, 1, 7, 8, 64, 65];

/// Sizes and indices: small, and near the limits of 32 bits and `usize`.
const EXTREMES: [usize; 11] =
    [0, 1, 2, 8, 9, 1 << 16, 1 << 31, u32::MAX as usize, 1 << 32, isize::MAX as usize, usize::MAX];

/// Equal lengths give a result, others `Error::Length` with both lengths.
#[track_caller]
fn fits(result: Result<(), Error>, expected: usize, found: usize) {
    match result {
        Ok(()) => assert_eq!(expected, found),
        Err(Error::Length { expected: said, found: was, .. }) => {
            assert_eq!((said, was), (expected, found));
            assert_ne!(expected, found);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn length_errors_name_both_lengths() {
    let device = cpu();
    let mut buffer = device.zeros::<u32>(8).unwrap();
    let error = buffer.write(&[1]).unwrap_err();
    assert_eq!(error, Error::Length { name: "elements", expected: 8, found: 1 });
    assert_eq!(error.to_string(), "`elements` has 1 elements instead of 8");
    let mut points = device.zeros::<Point>(2).unwrap();
    let origin = Point { x: 0.0, y: 0.0, z: 0.0 };
    assert_eq!(points.write(&[origin; 3]), Err(Error::Length { name: "elements", expected: 2, found: 3 }));
    assert_eq!(points.write(&[origin; 2]), Ok(()));
    let refused = device.driver().allocate(vyre::ir::Element::U32, 8).unwrap().write(&[0; 5]).unwrap_err();
    assert_eq!(refused.to_string(), "5 bytes cannot replace the 32 bytes of [u32; 8]");
}

#[test]
fn slice_bounds_are_checked_in_elements() {
    fn check<T: vyre::Element>(mut buffer: Buffer<T>) {
        let length = buffer.len();
        for start in EXTREMES {
            for end in EXTREMES {
                let inside = start <= end && end <= length;
                let [from, to, of] = [start, end, length].map(|count| count as u64);
                let refused = vyre_driver::Error::OutOfRange { start: from, end: to, length: of };
                let expected = if inside { Ok(end - start) } else { Err(Error::from(refused)) };
                assert_eq!(buffer.slice(start..end).map(|part| part.len()), expected);
                assert_eq!(buffer.slice_mut(start..end).map(|part| part.len()), expected);
            }
            let halves = buffer.split_at_mut(start).map(|(first, second)| (first.len(), second.len()));
            assert_eq!(halves.ok(), (start <= length).then(|| (start, length - start)));
        }
    }
    let device = cpu();
    for length in LENGTHS {
        check(device.zeros::<u8>(length).unwrap());
        check(device.zeros::<f64>(length).unwrap());
        check(device.zeros::<Point>(length).unwrap());
    }
}

#[test]
fn buffers_of_any_length_are_allocated_or_refused() {
    let device = cpu();
    for length in EXTREMES.into_iter().filter(|&length| length <= 1 << 16 || length > u32::MAX as usize) {
        for result in [
            device.zeros::<u8>(length).map(|buffer| buffer.len()),
            device.zeros::<f64>(length).map(|buffer| buffer.len()),
            device.zeros::<Point>(length).map(|buffer| buffer.len()),
        ] {
            match result {
                Ok(allocated) => assert_eq!(allocated, length),
                Err(error) => assert!(length > 1 << 16 && ["F006", "D006"].contains(&error.code()), "{error}"),
            }
        }
    }
}

#[test]
fn standard_kernels_refuse_mismatched_lengths() {
    let device = &cpu();
    for n in LENGTHS {
        let (x, keys) = (device.zeros::<u32>(n).unwrap(), device.zeros::<f32>(n).unwrap());
        for m in LENGTHS {
            let (mut y, mut order) = (device.zeros::<u32>(m).unwrap(), device.zeros::<u32>(m).unwrap());
            fits(kernels::map(device, &x, &mut y, |v| v + 1), n, m);
            fits(kernels::copy(device, &x, &mut y), n, m);
            fits(kernels::zip(device, &x, &x, &mut y, |a, b| a + b), n, m);
            fits(kernels::gather(device, &x, &x, &mut y), n, m);
            fits(kernels::scatter(device, &x, &order, &mut y), n, m);
            fits(kernels::inclusive_scan(device, &x, &mut y, 0, |a, b| a + b), n, m);
            fits(kernels::exclusive_scan(device, &x, &mut y, 0, |a, b| a + b), n, m);
            fits(kernels::argsort(device, &keys, &mut order), n, m);
            let mut sorted = device.zeros::<f32>(n).unwrap();
            fits(kernels::sort_by_key(device, &mut sorted, &mut y), n, m);
            let mut bytes = device.zeros::<u8>(m).unwrap();
            fits(kernels::sort_by_key(device, &mut sorted, &mut bytes), n, m);
            let mut greatest = device.zeros::<f32>(n.min(m)).unwrap();
            fits(kernels::top_k(device, &keys, &mut greatest, &mut order), n.min(m), m);
            let starts = device.zeros::<u32>(n + 1).unwrap();
            let mut product = device.zeros::<f32>(m).unwrap();
            fits(kernels::spmv(device, &starts, &x, &keys, &keys, &mut product), m + 1, n + 1);
            // Functions without length constraints.
            kernels::histogram(device, &x, &mut y).unwrap();
            assert!(kernels::compact(device, &x, &mut y, |v| v.ge(0)).unwrap() == n);
        }
        let mut longer = device.zeros::<f32>(n + 1).unwrap();
        let mut indices = device.zeros::<u32>(n + 1).unwrap();
        let refused = kernels::top_k(device, &keys, &mut longer, &mut indices);
        assert_eq!(refused, Err(Error::Length { name: "values", expected: n, found: n + 1 }));
        for seed in [0, u64::MAX] {
            kernels::random(device, seed, &mut indices).unwrap();
            kernels::uniform(device, seed, &mut longer).unwrap();
            kernels::normal(device, seed, &mut longer).unwrap();
        }
        kernels::fill(device, &mut longer, f32::NAN).unwrap();
        kernels::sort(device, &mut longer).unwrap();
        assert_eq!(kernels::sum(device, &x).unwrap(), 0);
        assert_eq!(kernels::reduce(device, &x, 0, |a, b| a + b).unwrap(), 0);
        assert_eq!(kernels::min(device, &x).unwrap(), (n > 0).then_some(0));
        assert_eq!(kernels::max(device, &x).unwrap(), (n > 0).then_some(0));
    }
}

#[test]
fn matrices_of_any_size_are_computed_or_refused() {
    let device = &cpu();
    let typed = |result: Result<(), Error>, fits: bool| match result {
        Ok(()) => assert!(fits),
        Err(Error::Length { expected, found, .. }) => assert_ne!(expected, found),
        // An empty matrix may have a side that exceeds indices or grids.
        Err(Error::TooLarge { value, .. }) => assert!(value > i128::from(u32::MAX)),
        Err(error) => assert_eq!(error.code(), "L001", "{error}"),
    };
    for length in [0, 1, 8] {
        let (x, mut y) = (device.zeros::<f32>(length).unwrap(), device.zeros::<f32>(length).unwrap());
        for rows in EXTREMES {
            for columns in EXTREMES {
                let fits = rows.checked_mul(columns) == Some(length);
                typed(kernels::transpose(device, [rows, columns], &x, &mut y), fits);
                for depth in EXTREMES {
                    let fits = [(rows, depth), (depth, columns), (rows, columns)]
                        .iter()
                        .all(|(height, width)| height.checked_mul(*width) == Some(length));
                    typed(kernels::matmul(device, [rows, columns, depth], &x, &x, &mut y), fits);
                }
            }
        }
    }
}

#[test]
fn grids_beyond_32_bits_are_refused_for_every_workgroup_size() {
    let device = cpu();
    let mut y = device.zeros::<u32>(1).unwrap();
    for invocations in [1 << 32, usize::MAX] {
        let too_large = Error::TooLarge { name: "grid", value: invocations as i128 };
        assert_eq!(alone(&mut y).run(&device, invocations).unwrap_err(), too_large);
        assert_eq!(alone(&mut y).sanitize([1, invocations]).unwrap_err(), too_large);
        let mut pipeline = Pipeline::new(&device);
        assert_eq!(pipeline.record(|p| alone(&mut y).record(p, [1, 1, invocations])), Err(too_large));
    }
    assert_eq!(alone(&mut y).run(&device, [1 << 20, 1 << 20]).unwrap_err().code(), "L001");
    assert_eq!(y.download().unwrap(), [0]);
}

#[test]
fn transient_and_foreign_buffers_are_refused() {
    let (device, other) = (cpu(), Device::named("reference").unwrap());
    let x = device.upload(&[1u32, 2, 3]).unwrap();
    let mut foreign = other.zeros::<u32>(3).unwrap();
    assert_eq!(kernels::copy(&device, &x, &mut foreign).unwrap_err().code(), "D004");
    assert_eq!(kernels::sort(&device, &mut foreign).unwrap_err().code(), "D004");
    assert_eq!(kernels::histogram(&device, &x, &mut foreign).unwrap_err().code(), "D004");

    let (mut pipeline, mut elsewhere) = (Pipeline::new(&device), Pipeline::new(&device));
    let recorded = pipeline.record(|p| {
        let mut t = p.transient::<u32>(3)?;
        let results = [
            t.write(&[1, 2, 3]).err(),
            t.download().err(),
            t.slice(0..1).err(),
            t.split_at_mut(1).err(),
            kernels::sum(&device, &t).err(),
            kernels::min(&device, &t).err(),
            kernels::sort(&device, &mut t).err(),
            kernels::argsort(&device, &x, &mut t).err(),
            kernels::histogram(&device, &x, &mut t).err(),
            kernels::copy(&device, &x, &mut t).err(),
            kernels::random(&device, 1, &mut t).err(),
            add(&x, &mut t).run(&device, 3).err(),
            elsewhere.record(|q| add(&x, &mut t).record(q, 3)).err(),
        ];
        assert!(results.iter().all(|error| *error == Some(Error::Transient)), "{results:?}");
        add(&x, &mut t).record(p, 3)
    });
    assert_eq!(recorded, Ok(()));
    pipeline.run().unwrap();
    elsewhere.run().unwrap();
}

#[test]
fn pipelines_take_any_budget_length_and_limits() {
    let device = cpu();
    let x = device.upload(&[1u32; 64]).unwrap();
    let mut y = device.zeros::<u32>(64).unwrap();
    for length in [0, 1, 64, 1 << 20, 1 << 32, usize::MAX] {
        let mut pipeline = Pipeline::new(&device);
        let recorded = pipeline.record(|p| {
            let mut t = p.transient(length)?;
            add(&x, &mut t).record(p, 64)?;
            add(&t, &mut y).record(p, 64)
        });
        match recorded {
            Ok(()) if length == 0 => assert_eq!(pipeline.run().unwrap_err().code(), "V022"),
            Ok(()) => drop(pipeline.run().unwrap()),
            Err(error) => assert_eq!(error, Error::TooLarge { name: "transient", value: length as i128 }),
        }
    }
    let mut pipeline = Pipeline::new(&device);
    pipeline
        .record(|p| {
            let mut t = p.transient(64)?;
            add(&x, &mut t).record(p, 64)?;
            add(&t, &mut y).record(p, 64)
        })
        .unwrap();
    for fuel in [0, 1, u64::MAX] {
        for deadline in [None, Some(Duration::MAX), Some(Duration::from_secs(3600))] {
            pipeline.limits(Limits { fuel, deadline, ..Limits::default() });
            pipeline.run().unwrap();
        }
    }
    pipeline.limits(Limits { deadline: Some(Duration::ZERO), trace_capacity: usize::MAX, ..Limits::default() });
    if let Err(error) = pipeline.run() {
        assert_eq!(error.code(), "K004");
    }
    pipeline.limits(Limits::default());
    pipeline.budget(0);
    let Err(Error::Driver(vyre_driver::Error::OverBudget { required, .. })) = pipeline.run() else {
        panic!("nothing fits into 0 bytes");
    };
    pipeline.budget(required - 1);
    assert_eq!(pipeline.run().unwrap_err().code(), "D018");
    pipeline.budget(required);
    pipeline.run().unwrap();
    pipeline.budget(u64::MAX);
    pipeline.run().unwrap();
    assert_eq!(y.download().unwrap(), [3; 64]);
}

#[test]
fn limits_of_a_recorded_launch_do_not_stop_other_launches() {
    #[kernel(workgroup = 64)]
    fn collatz(x: &[u32], y: &mut [u32]) {
        let i = global_index();
        if i < y.len() {
            let mut n = x[i];
            let mut steps = 0;
            while n > 1 {
                n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
                steps += 1;
            }
            y[i] = steps;
        }
    }
    let device = cpu();
    let x = device.upload(&[27u32; 64]).unwrap();
    let [mut sum, mut first, mut second] = [0; 3].map(|_| device.zeros::<u32>(64).unwrap());
    let mut pipeline = Pipeline::new(&device);
    pipeline
        .record(|p| {
            add(&x, &mut sum).record(p, 64)?;
            collatz(&x, &mut first).record(p, 64)?;
            collatz(&x, &mut second).record(p, 64)
        })
        .unwrap();
    // The Collatz sequence of 27 has 111 steps.
    pipeline.limits(Limits { fuel: 64 * 112, ..Limits::default() });
    pipeline.run().unwrap();
    assert_eq!((first.download().unwrap(), second.download().unwrap()), (vec![111; 64], vec![111; 64]));
    sum.write(&[0; 64]).unwrap();
    pipeline.limits(Limits { fuel: 64 * 20, ..Limits::default() });
    assert_eq!(pipeline.run().unwrap_err().code(), "K003");
    assert_eq!(sum.download().unwrap(), [28; 64]);
}
