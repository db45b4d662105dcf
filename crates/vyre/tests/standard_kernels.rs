//! Standard kernels on every device, compared with plain Rust, for empty, single, odd and multi-chunk sizes.

mod devices;

use std::cmp::Ordering;
use std::fmt::Debug;

use devices::on_devices;
use vyre::{Buffer, Device, Error, kernels};
use vyre_cpu::{Cpu, Execution};
use vyre_driver::DeviceKind;

/// Runs a check on every device with every size. Large sizes run on the CPU only, for speed.
fn on_sizes(check: impl Fn(&Device, usize)) {
    on_devices(|device| {
        let large = match kind(device) {
            DeviceKind::Cpu => (1 << 20) + 77,
            DeviceKind::Oracle => 1500,
            _ => 70_001,
        };
        for n in [0, 1, 1001, large] {
            check(device, n);
        }
    });
}

fn kind(device: &Device) -> DeviceKind {
    device.driver().capabilities().kind
}

/// Returns whether a device supports a type.
fn has<T: vyre::Number>(device: &Device) -> bool {
    device.driver().capabilities().types.contains(T::TYPE)
}

/// Pseudo-random numbers.
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

/// Small integers as floats, whose sums are exact.
fn floats(n: usize) -> Vec<f32> {
    words(n).into_iter().map(|word| (word % 17) as f32 - 8.0).collect()
}

#[track_caller]
fn same<T: vyre::Element + PartialEq + Debug>(found: &Buffer<T>, expected: &[T]) {
    let found = found.download().unwrap();
    assert_eq!(found.len(), expected.len());
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        panic!("element {at} of {} is {:?} instead of {:?}", found.len(), found[at], expected[at]);
    }
}

#[test]
fn elementwise_kernels() {
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

        // Bytes are extended to 32 bits, and truncated by stores.
        let bytes: Vec<u8> = b.iter().map(|word| *word as u8).collect();
        let mut more = device.zeros::<u8>(n).unwrap();
        kernels::map(device, &device.upload(&bytes).unwrap(), &mut more, |byte| byte * 3).unwrap();
        same(&more, &bytes.iter().map(|byte| byte.wrapping_mul(3)).collect::<Vec<_>>());
    });
}

#[test]
fn gathers_and_scatters() {
    on_sizes(|device, n| {
        let table = floats(n);
        // Some indices are out of bounds.
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

        if has::<i64>(device) {
            let wide: Vec<i64> = b.iter().map(|word| i64::from(*word as i32) << 20).collect();
            let mut y = device.zeros::<i64>(n).unwrap();
            kernels::inclusive_scan(device, &device.upload(&wide).unwrap(), &mut y, 0, |a, b| a + b).unwrap();
            same(&y, &scanned(&wide, |a, b| a + b));
        }
    });
}

/// More chunks than one pair of scan launches takes (or several, on slow devices), and several blocks of keys.
#[test]
fn inputs_of_several_chunks_and_blocks() {
    on_devices(|device| {
        let (n, count) = if kind(device) == DeviceKind::Oracle { (65_537, 16_385) } else { (300_001, 40_001) };
        let (a, mut keys) = (words(n), words(count));
        let mut y = device.zeros(n).unwrap();
        kernels::inclusive_scan(device, &device.upload(&a).unwrap(), &mut y, 0, |a, b| a + b).unwrap();
        same(&y, &scanned(&a, u32::wrapping_add));

        let mut sorted = device.upload(&keys).unwrap();
        kernels::sort(device, &mut sorted).unwrap();
        keys.sort_unstable();
        same(&sorted, &keys);
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
        // Elements beyond the end of `y` are counted.
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

        // Privatized bins, and bins in storage.
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

/// Bits, which distinguish zeros and NaNs.
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
        // Random bits include infinities and NaNs of both signs.
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

/// 64-bit keys, values of other widths, and many equal keys.
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

/// Compares sorts with `compare`, ascending and descending.
fn check_keys<K: kernels::Key>(device: &Device, mut keys: Vec<K>, compare: fn(&K, &K) -> Ordering) {
    let all = device.upload(&keys).unwrap();
    let (mut values, mut indices) = (device.zeros(9).unwrap(), device.zeros(9).unwrap());
    let mut sorted = device.upload(&keys).unwrap();
    kernels::sort(device, &mut sorted).unwrap();
    keys.sort_by(compare);
    let bytes = |keys: &[K]| bytemuck::cast_slice::<K, u8>(keys).to_vec();
    assert!(bytes(&sorted.download().unwrap()) == bytes(&keys), "{} are sorted otherwise", K::TYPE);
    if has::<K>(device) {
        kernels::top_k(device, &all, &mut values, &mut indices).unwrap();
        let greatest: Vec<K> = keys.into_iter().rev().take(9).collect();
        assert!(bytes(&values.download().unwrap()) == bytes(&greatest), "other {} are the greatest", K::TYPE);
    }
}

/// Products, sums and extremes of exact numbers, which are independent of the order.
fn check_numbers<T: kernels::Key + From<u32> + Debug>(device: &Device) {
    if !has::<T>(device) {
        return;
    }
    let numbers = |n| words(n).into_iter().map(|word| T::from(word >> 2)).collect::<Vec<T>>();
    let total = |terms: &mut dyn Iterator<Item = T>| terms.fold(T::from(0), |sum, term| sum + term);
    let upload = |elements: &[T]| device.upload(elements).unwrap();
    let [m, n, k] = [18, 5, 21];
    let (a, b) = (numbers(m * k), (0..k * n).map(|i| T::from(i as u32)).collect::<Vec<T>>());
    let (all, mut c) = (upload(&a), upload(&vec![T::from(7); m * n]));
    kernels::matmul(device, [m, n, k], &all, &upload(&b), &mut c).unwrap();
    let element = |at: usize| total(&mut (0..k).map(|p| a[at / n * k + p] * b[p * n + at % n]));
    same(&c, &(0..m * n).map(element).collect::<Vec<_>>());

    assert_eq!(kernels::sum(device, &all).unwrap(), total(&mut a.iter().copied()));
    let compare = |a: &T, b: &T| a.partial_cmp(b).unwrap();
    assert_eq!(kernels::min(device, &all).unwrap(), a.iter().copied().min_by(compare));
    assert_eq!(kernels::max(device, &all).unwrap(), a.iter().copied().max_by(compare));

    // Row r has r + 1 elements.
    let starts: Vec<u32> = (0..27).map(|row| row * (row + 1) / 2).collect();
    let columns: Vec<u32> = (0..starts[26]).map(|i| i * 7 % 105).collect();
    let mut y = device.zeros(26).unwrap();
    let [starts_buffer, columns_buffer] = [&starts, &columns].map(|words| device.upload(words).unwrap());
    let values = upload(&a[..columns.len()]);
    kernels::spmv(device, &starts_buffer, &columns_buffer, &values, &upload(&b), &mut y).unwrap();
    let products: Vec<T> = a.iter().zip(&columns).map(|(value, column)| *value * b[*column as usize]).collect();
    let element = |row: &[u32]| total(&mut products[row[0] as usize..row[1] as usize].iter().copied());
    same(&y, &starts.windows(2).map(element).collect::<Vec<_>>());
}

#[test]
fn numbers_of_64_bits() {
    on_devices(|device| {
        check_numbers::<f64>(device);
        check_numbers::<i64>(device);
        check_numbers::<u64>(device);

        // Keys that differ in both words, in one word, and in few bits.
        let all = words(3000);
        let parts = [u64::MAX, u64::MAX >> 32, u64::MAX << 32, 3 << 30].into_iter().cycle();
        let keys = all.iter().zip(&all[1..]).zip(parts);
        let keys = keys.map(|((low, high), part)| (u64::from(*high) << 32 | u64::from(*low)) & part);
        let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN].map(f64::to_bits);
        let keys: Vec<u64> = keys.chain(special).collect();
        check_keys(device, keys.iter().map(|key| f64::from_bits(*key)).collect(), f64::total_cmp);
        check_keys(device, keys.iter().map(|key| *key as i64).collect(), i64::cmp);
        check_keys(device, keys, u64::cmp);
    });
}

#[test]
fn nans_and_zeros() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let cases: [(&[f32], [f32; 2]); 6] = [
        (&[nan, 1.0, -2.0, -nan], [-2.0, 1.0]),
        (&[0.0, -0.0, 0.0], [-0.0, 0.0]),
        (&[-0.0, nan], [-0.0, -0.0]),
        (&[nan, inf], [inf, inf]),
        (&[-inf, 3.0, nan], [-inf, 3.0]),
        (&[nan, -nan, nan], [inf, -inf]),
    ];
    // Quiet and signalling NaNs of both signs, and the least floats.
    let patterns = [0x7fc0_0001, 0xffc1_2345, 0x7f80_0001, 0xffbf_ffff, 0x8000_0000, 1, 0x807f_ffff];
    on_devices(|device| {
        for (values, expected) in cases {
            let x = device.upload(values).unwrap();
            let found = [kernels::min(device, &x).unwrap(), kernels::max(device, &x).unwrap()].map(Option::unwrap);
            assert_eq!(bits(&found), bits(&expected), "of {values:?}");
            if has::<f64>(device) {
                let x = device.upload(&values.iter().copied().map(f64::from).collect::<Vec<_>>()).unwrap();
                let found = [kernels::min(device, &x).unwrap(), kernels::max(device, &x).unwrap()].map(Option::unwrap);
                assert_eq!(found.map(f64::to_bits), expected.map(|v| f64::from(v).to_bits()), "of {values:?}");
            }
        }

        let x = device.upload(&patterns.map(f32::from_bits)).unwrap();
        let mut y = device.zeros::<f32>(patterns.len()).unwrap();
        kernels::copy(device, &x, &mut y).unwrap();
        assert_eq!(bits(&y.download().unwrap()), patterns);
        kernels::transpose(device, [1, patterns.len()], &x, &mut y).unwrap();
        assert_eq!(bits(&y.download().unwrap()), patterns);
        let order = device.upload(&[6, 5, 4, 3, 2, 1, 0]).unwrap();
        let backwards: Vec<u32> = patterns.into_iter().rev().collect();
        kernels::gather(device, &x, &order, &mut y).unwrap();
        assert_eq!(bits(&y.download().unwrap()), backwards);
        kernels::scatter(device, &x, &order, &mut y).unwrap();
        assert_eq!(bits(&y.download().unwrap()), backwards);
        kernels::fill(device, &mut y, f32::from_bits(patterns[1])).unwrap();
        assert_eq!(bits(&y.download().unwrap()), [patterns[1]; 7]);
    });
}

#[test]
fn matrices() {
    on_devices(|device| {
        let large = if kind(device) == DeviceKind::Cpu { [130, 150, 190] } else { [5, 40, 9] };
        // Tall matrices, and matrices of one row or column.
        for [m, n, k] in [[0, 3, 2], [1, 1, 1], [2, 3, 0], [33, 17, 35], [1001, 1, 3], [77, 2, 1], [1, 5, 100], large] {
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

/// A matrix with malformed starts, and an out-of-bounds column.
fn check_wrong_starts<T: vyre::Number + From<u16> + Debug>(device: &Device) {
    let numbers = |numbers: &[u16]| device.upload(&numbers.iter().map(|v| T::from(*v)).collect::<Vec<T>>()).unwrap();
    let starts = [0, u32::MAX, 2, 1, u32::MAX - 1, u32::MAX, 4, 2, 3];
    let starts = device.upload(&starts).unwrap();
    let columns = device.upload(&[0, 1, 7]).unwrap();
    let mut y = numbers(&[9; 8]);
    kernels::spmv(device, &starts, &columns, &numbers(&[2, 3, 5]), &numbers(&[10, 100]), &mut y).unwrap();
    same(&y, &[320, 0, 0, 300, 0, 0, 0, 0].map(T::from));
}

#[test]
fn malformed_sparse_matrices() {
    on_devices(|device| {
        check_wrong_starts::<f32>(device);
        check_wrong_starts::<u32>(device);
        if has::<f64>(device) {
            check_wrong_starts::<f64>(device);
        }
        // Beyond its end, `x` is 0.
        let (starts, columns) = (device.upload(&[0, 1]).unwrap(), device.upload(&[5]).unwrap());
        let (infinity, x) = (device.upload(&[f32::INFINITY]).unwrap(), device.upload(&[1.0]).unwrap());
        let mut y = device.zeros(1).unwrap();
        kernels::spmv(device, &starts, &columns, &infinity, &x, &mut y).unwrap();
        assert!(y.download().unwrap()[0].is_nan());
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
    // Known answers of the paper.
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

/// The sum in the documented order of `reduce`.
fn sum_in_order(x: &[f32]) -> f32 {
    let total = |chunk: &[f32]| {
        let mut lanes = [0f32; 64];
        chunk.iter().enumerate().for_each(|(i, v)| lanes[i % 64] += v);
        for width in [32, 16, 8, 4, 2, 1] {
            (0..width).for_each(|lane| lanes[lane] += lanes[lane + width]);
        }
        lanes[0]
    };
    let totals: Vec<f32> = x.chunks(1 << 16).map(total).collect();
    if totals.len() > 1 { sum_in_order(&totals) } else { totals[0] }
}

/// Rounding depends on the length only: results are equal in all runs, for all thread counts and devices.
#[test]
fn results_have_the_same_bits_on_all_devices() {
    let all: Vec<f32> = words((1 << 20) + 77).into_iter().map(|word| word as f32 * 1e-7 - 200.0).collect();
    assert_ne!(sum_in_order(&all), all.iter().sum::<f32>(), "the order should make a difference");
    let run = |device: &Device, n: usize| {
        let x = device.upload(&all[..n]).unwrap();
        let mut sums = device.zeros(n).unwrap();
        kernels::exclusive_scan(device, &x, &mut sums, 0.0, |a, b| a + b).unwrap();
        let mut normal = device.zeros(n).unwrap();
        kernels::normal(device, 5, &mut normal).unwrap();
        let total = kernels::sum(device, &x).unwrap();
        assert_eq!(total.to_bits(), sum_in_order(&all[..n]).to_bits(), "{total} is not the sum in its order");
        (bits(&sums.download().unwrap()), bits(&normal.download().unwrap()))
    };
    let open = |cpu: Cpu| Device::from(vyre_driver::Device::open(&cpu).unwrap());
    let one_thread = open(Cpu { threads: Some(1), ..Cpu::default() });
    let expected = run(&one_thread, all.len());
    for threads in [1, 2, 3, 7] {
        let device = open(Cpu { threads: Some(threads), ..Cpu::default() });
        for turn in ["the first", "the second"] {
            assert!(run(&device, all.len()) == expected, "{threads} threads give other bits in {turn} run");
        }
    }
    // Two chunks on slow devices. The portable executor has another subgroup size.
    let n = 70_001;
    let expected = run(&one_thread, n);
    let portable = Cpu { execution: Some(Execution::Portable), ..Cpu::default() };
    assert!(run(&open(portable), n) == expected, "the portable executor gives other bits");
    on_devices(|device| {
        let capabilities = device.driver().capabilities();
        if capabilities.floats.exact_f32 {
            assert!(run(device, n) == expected, "{} gives other bits", capabilities.name);
        }
    });
}

#[test]
fn mismatched_lengths() {
    let device = &Device::named("cpu").unwrap();
    let upload = |n: usize| device.upload(&vec![1.0f32; n]).unwrap();
    let (x, one, mut three, mut four) = (upload(3), upload(1), upload(3), upload(4));
    let mut index = device.zeros::<u32>(4).unwrap();
    let failures = [
        ("y", 3, 4, kernels::copy(device, &x, &mut four)),
        ("b", 3, 4, kernels::zip(device, &x, &index, &mut three, |a, _| a)),
        ("y", 3, 4, kernels::zip(device, &x, &x, &mut four, |a, b| a + b)),
        ("y", 4, 3, kernels::gather(device, &x, &index, &mut three)),
        ("index", 3, 4, kernels::scatter(device, &x, &index, &mut four)),
        ("y", 3, 4, kernels::inclusive_scan(device, &x, &mut four, 0.0, |a, b| a + b)),
        ("y", 3, 4, kernels::exclusive_scan(device, &x, &mut four, 0.0, |a, b| a + b)),
        ("values", 3, 4, kernels::sort_by_key(device, &mut three, &mut index)),
        ("order", 3, 4, kernels::argsort(device, &x, &mut index)),
        ("values", 3, 4, kernels::top_k(device, &x, &mut four, &mut index)),
        ("indices", 3, 4, kernels::top_k(device, &x, &mut three, &mut index)),
        ("x", 4, 3, kernels::transpose(device, [2, 2], &x, &mut four)),
        ("y", 3, 4, kernels::transpose(device, [3, 1], &x, &mut four)),
        ("a", 4, 3, kernels::matmul(device, [2, 2, 2], &x, &x, &mut four)),
        ("b", 1, 3, kernels::matmul(device, [3, 1, 1], &x, &x, &mut three)),
        ("c", 3, 4, kernels::matmul(device, [3, 1, 1], &x, &one, &mut four)),
        ("starts", 5, 4, kernels::spmv(device, &index, &index, &x, &x, &mut four)),
        ("columns", 3, 4, kernels::spmv(device, &index, &index, &x, &x, &mut three)),
    ];
    for (name, expected, found, failure) in failures {
        assert_eq!(failure, Err(Error::Length { name, expected, found }));
    }
}

/// Products of empty buffers with impossible sizes.
#[test]
fn mismatched_matrix_sizes() {
    let device = &Device::named("cpu").unwrap();
    let (none, mut c) = (device.zeros::<f32>(0).unwrap(), device.zeros::<f32>(0).unwrap());
    let most = usize::MAX;
    for (name, sizes) in [("m", [most, 0, 0]), ("n", [0, most, 0]), ("k", [0, 0, most])] {
        let failure = kernels::matmul(device, sizes, &none, &none, &mut c);
        assert_eq!(failure, Err(Error::TooLarge { name, value: most as i128 }));
    }
    for (name, sizes) in [("rows", [most, 0]), ("columns", [0, most])] {
        let failure = kernels::transpose(device, sizes, &none, &mut c);
        assert_eq!(failure, Err(Error::TooLarge { name, value: most as i128 }));
    }
}
