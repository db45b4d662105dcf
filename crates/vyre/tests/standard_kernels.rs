//! The standard kernels on every device, against plain Rust, on sizes that are empty, single, odd, and of several chunks.

mod devices;

use devices::on_devices;
use vyre::{Buffer, Device, Error, kernels};
use vyre_cpu::{Cpu, Execution};

/// Runs a check on every device, with every size. Only the CPU device gets many elements: the others take too long for them.
fn on_sizes(check: impl Fn(&Device, usize)) {
    on_devices(|device| {
        let large = match device.driver().capabilities().kind {
            vyre_driver::DeviceKind::Cpu => (1 << 20) + 77,
            vyre_driver::DeviceKind::Oracle => 1500,
            _ => 70_001,
        };
        for n in [0, 1, 1001, large] {
            check(device, n);
        }
    });
}

/// Numbers that look random.
fn words(n: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9u32;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// Small integers as floats: their sums are exact.
fn floats(n: usize) -> Vec<f32> {
    words(n).into_iter().map(|word| (word % 17) as f32 - 8.0).collect()
}

#[track_caller]
fn same<T: vyre::Element + PartialEq + std::fmt::Debug>(found: &Buffer<T>, expected: &[T]) {
    let found = found.download().unwrap();
    assert_eq!(found.len(), expected.len());
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        panic!("element {at} of {} is {:?} instead of {:?}", found.len(), found[at], expected[at]);
    }
}

#[test]
fn element_by_element() {
    on_sizes(|device, n| {
        let (a, b) = (floats(n), words(n));
        let (x, index) = (device.upload(&a).unwrap(), device.upload(&b).unwrap());
        let mut y = device.zeros::<f32>(n).unwrap();
        kernels::map(device, &x, &mut y, |v| v.lt(0.0).select(v * v, v + 0.5)).unwrap();
        same(&y, &a.iter().map(|v| if *v < 0.0 { v * v } else { v + 0.5 }).collect::<Vec<_>>());
        kernels::zip(device, &x, &index, &mut y, |v, word| v * (word >> 24).cast::<f32>()).unwrap();
        same(&y, &a.iter().zip(&b).map(|(v, word)| v * (word >> 24) as f32).collect::<Vec<_>>());
        kernels::copy(device, &x, &mut y).unwrap();
        same(&y, &a);
        kernels::fill(device, &mut y, -2.5).unwrap();
        same(&y, &vec![-2.5; n]);

        // Bytes are values of 32 bits, and cut off where they are stored.
        let bytes: Vec<u8> = b.iter().map(|word| *word as u8).collect();
        let mut more = device.zeros::<u8>(n).unwrap();
        kernels::map(device, &device.upload(&bytes).unwrap(), &mut more, |byte| byte * 3).unwrap();
        same(&more, &bytes.iter().map(|byte| byte.wrapping_mul(3)).collect::<Vec<_>>());
    });
}

#[test]
fn indexed() {
    on_sizes(|device, n| {
        let table = floats(n);
        // Some are outside.
        let index: Vec<u32> = words(n).into_iter().map(|word| word % (n as u32 + n as u32 / 8 + 1)).collect();
        let (x, at) = (device.upload(&table).unwrap(), device.upload(&index).unwrap());
        let mut y = device.zeros::<f32>(n).unwrap();
        kernels::gather(device, &x, &at, &mut y).unwrap();
        same(&y, &index.iter().map(|at| table.get(*at as usize).copied().unwrap_or(0.0)).collect::<Vec<_>>());

        let backwards: Vec<u32> = (0..n as u32).map(|i| n as u32 - i).collect();
        kernels::fill(device, &mut y, 9.0).unwrap();
        kernels::scatter(device, &x, &device.upload(&backwards).unwrap(), &mut y).unwrap();
        let mut expected = vec![9.0; n];
        for (value, at) in table.iter().zip(&backwards) {
            if let Some(place) = expected.get_mut(*at as usize) {
                *place = *value;
            }
        }
        same(&y, &expected);
    });
}

#[test]
fn reductions() {
    on_sizes(|device, n| {
        let (a, b) = (floats(n), words(n));
        let (x, y) = (device.upload(&a).unwrap(), device.upload(&b).unwrap());
        assert_eq!(kernels::sum(device, &x).unwrap(), a.iter().sum::<f32>());
        assert_eq!(kernels::sum(device, &y).unwrap(), b.iter().fold(0, |sum: u32, word| sum.wrapping_add(*word)));
        assert_eq!(kernels::min(device, &x).unwrap(), a.iter().copied().reduce(f32::min));
        assert_eq!(kernels::max(device, &y).unwrap(), b.iter().copied().max());
        let bits = kernels::reduce(device, &y, 0, |a, b| a ^ b).unwrap();
        assert_eq!(bits, b.iter().fold(0, |bits, word| bits ^ word));
    });
}

fn scanned<T: Copy>(x: &[T], op: impl Fn(T, T) -> T) -> Vec<T> {
    let mut so_far = None;
    let next = |v: &T| {
        let next = so_far.map_or(*v, |so_far| op(so_far, *v));
        so_far = Some(next);
        next
    };
    x.iter().map(next).collect()
}

#[test]
fn scans() {
    on_sizes(|device, n| {
        let (a, b) = (floats(n), words(n));
        let mut y = device.zeros::<f32>(n).unwrap();
        kernels::inclusive_scan(device, &device.upload(&a).unwrap(), &mut y, 0.0, |a, b| a + b).unwrap();
        same(&y, &scanned(&a, |a, b| a + b));

        let mut y = device.zeros::<u32>(n).unwrap();
        kernels::exclusive_scan(device, &device.upload(&b).unwrap(), &mut y, 0, |a, b| a.max(b)).unwrap();
        let expected = [0].into_iter().chain(scanned(&b, u32::max)).take(n).collect::<Vec<_>>();
        same(&y, &expected);

        let wide: Vec<i64> = b.iter().map(|word| i64::from(*word as i32) << 20).collect();
        let mut y = device.zeros::<i64>(n).unwrap();
        match kernels::inclusive_scan(device, &device.upload(&wide).unwrap(), &mut y, 0, |a, b| a + b) {
            Err(Error::Driver(vyre_driver::Error::Unsupported { .. })) => return,
            result => result.unwrap(),
        }
        same(&y, &scanned(&wide, |a, b| a + b));
    });
}

#[test]
fn compactions() {
    on_sizes(|device, n| {
        let a = floats(n);
        let kept: Vec<f32> = a.iter().copied().filter(|v| *v > 2.0).collect();
        let x = device.upload(&a).unwrap();
        let mut y = device.zeros::<f32>(n).unwrap();
        assert_eq!(kernels::compact(device, &x, &mut y, |v| v.gt(2.0)).unwrap(), kept.len());
        same(&y.slice(0..kept.len()).unwrap(), &kept);
        assert!(y.download().unwrap()[kept.len()..].iter().all(|v| *v == 0.0));
        // What there is no room for is counted, too.
        let mut few = device.zeros::<f32>(kept.len() / 2).unwrap();
        assert_eq!(kernels::compact(device, &x, &mut few, |v| v.gt(2.0)).unwrap(), kept.len());
        same(&few, &kept[..kept.len() / 2]);
    });
}

#[test]
fn histograms() {
    on_sizes(|device, n| {
        let values = words(n);
        let bytes: Vec<u8> = values.iter().map(|word| (word >> 8) as u8 & 0x3f).collect();
        let mut bins = device.upload(&[7; 50]).unwrap();
        kernels::histogram(device, &device.upload(&bytes).unwrap(), &mut bins).unwrap();
        let count = |bin: usize| bytes.iter().filter(|byte| usize::from(**byte) == bin).count() as u32;
        same(&bins, &(0..50).map(count).collect::<Vec<_>>());

        // Some bins of each workgroup, and none.
        for most in [3000, 10_000] {
            let values: Vec<u32> = values.iter().map(|word| word % (most + 5)).collect();
            let mut bins = device.zeros(most as usize).unwrap();
            kernels::histogram(device, &device.upload(&values).unwrap(), &mut bins).unwrap();
            let mut expected = vec![0; most as usize];
            values.iter().filter(|value| **value < most).for_each(|value| expected[*value as usize] += 1);
            same(&bins, &expected);
        }
    });
}

/// All bits, so that zeros and NaNs differ.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sorts() {
    on_sizes(|device, n| {
        let mut keys = words(n);
        let mut sorted = device.upload(&keys).unwrap();
        kernels::sort(device, &mut sorted).unwrap();
        let signed: Vec<i32> = keys.iter().map(|word| *word as i32).collect();
        // Every pattern of bits is a float: infinities and NaNs of both signs are among them.
        let mut as_floats: Vec<f32> = keys.iter().map(|word| f32::from_bits(*word)).collect();
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
        as_floats.iter_mut().skip(3).zip(special).for_each(|(key, special)| *key = special);
        keys.sort_unstable();
        same(&sorted, &keys);

        let mut sorted = device.upload(&signed).unwrap();
        let mut values = device.upload(&floats(n)).unwrap();
        kernels::sort_by_key(device, &mut sorted, &mut values).unwrap();
        let mut pairs: Vec<(i32, f32)> = signed.into_iter().zip(floats(n)).collect();
        pairs.sort_by_key(|pair| pair.0);
        same(&sorted, &pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
        same(&values, &pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());

        let mut sorted = device.upload(&as_floats).unwrap();
        kernels::sort(device, &mut sorted).unwrap();
        as_floats.sort_by(f32::total_cmp);
        assert_eq!(bits(&sorted.download().unwrap()), bits(&as_floats));
    });
}

/// Of 64 bits, with values that are not words, and with many that are equal.
#[test]
fn wide_and_equal_keys() {
    on_sizes(|device, n| {
        let keys: Vec<f64> = words(n).into_iter().map(|word| f64::from(word as i32) * 1e-3).collect();
        let mut sorted = device.upload(&keys).unwrap();
        let mut values = device.upload(&words(n).iter().map(|word| *word as u8).collect::<Vec<_>>()).unwrap();
        kernels::sort_by_key(device, &mut sorted, &mut values).unwrap();
        let mut pairs: Vec<(f64, u8)> = keys.into_iter().zip(words(n).into_iter().map(|word| word as u8)).collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        same(&sorted, &pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
        same(&values, &pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());

        let keys = floats(n);
        let x = device.upload(&keys).unwrap();
        let mut order = device.zeros(n).unwrap();
        kernels::argsort(device, &x, &mut order).unwrap();
        let mut expected: Vec<u32> = (0..n as u32).collect();
        expected.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
        same(&order, &expected);

        let k = n.min(50);
        let (mut greatest, mut places) = (device.zeros(k).unwrap(), device.zeros(k).unwrap());
        kernels::top_k(device, &x, &mut greatest, &mut places).unwrap();
        expected.sort_by(|a, b| keys[*b as usize].total_cmp(&keys[*a as usize]).then(a.cmp(b)));
        same(&places, &expected[..k]);
        same(&greatest, &expected[..k].iter().map(|at| keys[*at as usize]).collect::<Vec<_>>());
    });
}

#[test]
fn matrices() {
    on_devices(|device| {
        let large = matches!(device.driver().capabilities().kind, vyre_driver::DeviceKind::Cpu);
        for [m, n, k] in
            [[0, 3, 2], [1, 1, 1], [2, 3, 0], [33, 17, 35], if large { [130, 150, 190] } else { [5, 40, 9] }]
        {
            let (a, b) = (floats(m * k), words(k * n).into_iter().map(|word| word as f32).collect::<Vec<_>>());
            let (a_buffer, b_buffer) = (device.upload(&a).unwrap(), device.upload(&b).unwrap());
            let mut c = device.upload(&vec![7.0f32; m * n]).unwrap();
            kernels::matmul(device, [m, n, k], &a_buffer, &b_buffer, &mut c).unwrap();
            let element = |at: usize| (0..k).fold(0f32, |sum, p| a[at / n * k + p].mul_add(b[p * n + at % n], sum));
            same(&c, &(0..m * n).map(element).collect::<Vec<_>>());

            let mut turned = device.zeros(m * k).unwrap();
            kernels::transpose(device, [m, k], &a_buffer, &mut turned).unwrap();
            same(&turned, &(0..m * k).map(|at| a[at % m * k + at / m]).collect::<Vec<_>>());
        }
        let integers = [1u32, 2, u32::MAX, 3];
        let x = device.upload(&integers).unwrap();
        let mut c = device.zeros(4).unwrap();
        kernels::matmul(device, [2, 2, 2], &x, &x, &mut c).unwrap();
        same(&c, &[u32::MAX, 8, u32::MAX - 3, 7]);
    });
}

#[test]
fn sparse_matrices() {
    on_sizes(|device, n| {
        let x = floats(n);
        let mut starts = vec![0u32];
        let (mut columns, mut values) = (Vec::new(), Vec::new());
        let mut expected = Vec::new();
        for (row, word) in words(n).into_iter().enumerate() {
            let mut sum = 0f32;
            for step in 0..word as usize % 7 {
                let (column, value) = ((row * 31 + step * 1009) % n, (word >> step) as u8 as f32);
                columns.push(column as u32);
                values.push(value);
                sum = value.mul_add(x[column], sum);
            }
            starts.push(columns.len() as u32);
            expected.push(sum);
        }
        let (starts, columns) = (device.upload(&starts).unwrap(), device.upload(&columns).unwrap());
        let mut y = device.zeros(n).unwrap();
        let (values, x) = (device.upload(&values).unwrap(), device.upload(&x).unwrap());
        kernels::spmv(device, &starts, &columns, &values, &x, &mut y).unwrap();
        same(&y, &expected);
    });
}

/// One block of Philox4x32-10.
fn philox(mut block: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [a, b] = [(block[0], 0xd251_1f53u64), (block[2], 0xcd9e_8d57)].map(|(word, by)| u64::from(word) * by);
        block = [(b >> 32) as u32 ^ block[1] ^ key[0], b as u32, (a >> 32) as u32 ^ block[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    block
}

#[test]
fn random_numbers() {
    // From the paper's own list.
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(
        philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
    on_sizes(|device, n| {
        let seed = 0x0123_4567_89ab_cdefu64;
        let blocks = (0..n.div_ceil(4) as u32).flat_map(|i| philox([i, 0, 0, 0], [seed as u32, (seed >> 32) as u32]));
        let expected: Vec<u32> = blocks.take(n).collect();
        let mut y = device.zeros(n).unwrap();
        kernels::random(device, seed, &mut y).unwrap();
        same(&y, &expected);
        let mut y = device.zeros(n).unwrap();
        kernels::uniform(device, seed, &mut y).unwrap();
        same(&y, &expected.iter().map(|word| (word >> 8) as f32 / (1 << 24) as f32).collect::<Vec<_>>());
        kernels::normal(device, seed, &mut y).unwrap();
        let numbers: Vec<f64> = y.download().unwrap().into_iter().map(f64::from).collect();
        assert!(numbers.iter().all(|number| number.abs() < 6.0));
        if n > 1000 {
            let mean = numbers.iter().sum::<f64>() / n as f64;
            let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / n as f64;
            assert!(mean.abs() < 0.1 && (variance - 1.0).abs() < 0.1, "mean {mean}, variance {variance}");
        }
    });
}

/// Roundings depend on the length alone: on all threads and devices they are the same.
#[test]
fn the_same_bits_everywhere() {
    let n = 70_001;
    let a: Vec<f32> = words(n).into_iter().map(|word| word as f32 * 1e-7 - 200.0).collect();
    let run = |device: &Device| {
        let x = device.upload(&a).unwrap();
        let mut sums = device.zeros(n).unwrap();
        kernels::exclusive_scan(device, &x, &mut sums, 0.0, |a, b| a + b).unwrap();
        let mut normal = device.zeros(n).unwrap();
        kernels::normal(device, 5, &mut normal).unwrap();
        let total = kernels::sum(device, &x).unwrap();
        (total.to_bits(), bits(&sums.download().unwrap()), bits(&normal.download().unwrap()))
    };
    let with = |cpu: Cpu| run(&Device::from(vyre_driver::Device::open(&cpu).unwrap()));
    let expected = with(Cpu { threads: Some(1), ..Cpu::default() });
    assert!(with(Cpu { threads: Some(2), ..Cpu::default() }) == expected, "two threads give other bits than one");
    // Its subgroups have other sizes.
    let portable = Cpu { execution: Some(Execution::Portable), ..Cpu::default() };
    assert!(with(portable) == expected, "the portable executor gives other bits");
    on_devices(|device| {
        let capabilities = device.driver().capabilities();
        if capabilities.kind != vyre_driver::DeviceKind::Oracle && capabilities.floats.exact_f32 {
            assert!(run(device) == expected, "{} gives other bits", capabilities.name);
        }
    });
}

#[test]
fn lengths_that_do_not_fit() {
    let device = Device::named("cpu").unwrap();
    let x = device.upload(&[1.0f32, 2.0, 3.0]).unwrap();
    let (mut four, mut index) = (device.zeros::<f32>(4).unwrap(), device.zeros::<u32>(4).unwrap());
    let failures = [
        kernels::copy(&device, &x, &mut four),
        kernels::inclusive_scan(&device, &x, &mut four, 0.0, |a, b| a + b),
        kernels::argsort(&device, &x, &mut index),
        kernels::matmul(&device, [2, 2, 2], &x, &x, &mut four),
        kernels::top_k(&device, &x, &mut four, &mut index),
    ];
    for failure in failures {
        let error = failure.unwrap_err();
        assert!(matches!(error, Error::Length { .. }), "{error}");
        assert_eq!(error.code(), "K007");
    }
}
