//! Every construct of kernels, on every device, compared with `host`.

mod devices;

use devices::on_devices;
use vyre::{Atomic, Device, Error, Limits, Number, bf16, f16, kernel};

/// Runs a kernel with input and output of equal length on all devices, and compares with `host`.
macro_rules! same {
    ($kernel:ident, $x:expr, $zero:expr) => {{
        let x = $x;
        let mut expected = vec![$zero; x.len()];
        $kernel::host(x.len(), &x, &mut expected);
        assert!(expected.iter().any(|&value| value != $zero), "the kernel does something");
        on_devices(|device| {
            let given = device.upload(&x).unwrap();
            let mut y = device.zeros(x.len()).unwrap();
            $kernel(&given, &mut y).run(device, x.len()).unwrap();
            assert_eq!(y.download().unwrap(), expected);
        });
    }};
}

fn numbers() -> Vec<u32> {
    (0..200u32).map(|i| i.wrapping_mul(2_654_435_761) >> 22).collect()
}

const OFFSET: usize = 3;

#[kernel(workgroup = 64)]
fn flow(x: &[u32], y: &mut [u32]) {
    let i = global_index();
    if i >= y.len() {
        return;
    }
    let mut sum = 0;
    let mut steps: u32 = 0;
    for j in 0..i % 7 {
        if j == 5 {
            break;
        }
        if j == 2 {
            continue;
        }
        sum += x[j] * (j as u32 + 1);
    }
    for j in (OFFSET..i).step_by(17) {
        sum ^= x[j] << 2;
    }
    let mut n = x[i] + 1;
    while n != 1 && steps < 30 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    loop {
        steps += 1;
        if steps > 20 || !(steps < x[0] + 9) {
            break;
        }
    }
    let weight = match i {
        0 => 7,
        1 | 2 => {
            steps += 100;
            8
        }
        _ => 9,
    };
    match x[i] % 3 {
        0 => sum += 1,
        1 => {}
        _ => {
            y[i] = 1;
            return;
        }
    }
    let small = if steps < 25 { steps } else { 25 };
    let kind = if sum > 500 {
        1
    } else if sum > 100 {
        2
    } else {
        let low = sum & 1;
        low + 3
    };
    y[i] = sum.wrapping_add(steps * 1000).wrapping_add(weight * kind).wrapping_sub(small);
    y[i] |= 1 << 31;
}

#[test]
fn control_flow() {
    same!(flow, numbers(), 0);
}

#[kernel(workgroup = 64)]
fn exits(x: &[u32], y: &mut [u32]) {
    let i = global_index();
    if i < y.len() {
        let mut count = 0;
        'rows: for row in 0..6u32 {
            for column in 0..5u32 {
                if column > row + x[i] % 3 {
                    continue 'rows;
                }
                let mut k = 0;
                loop {
                    k += 1;
                    if k * row == 12 + x[i] % 7 {
                        break 'rows;
                    }
                    if k > 4 {
                        break;
                    }
                }
                count += k;
            }
            count += 100;
        }
        let found = loop {
            count += 7;
            if count % 5 == 0 {
                break count * 2;
            }
        };
        let kind;
        if found > 1000 {
            kind = 3;
        } else {
            kind = 4;
        }
        let (mut low, high) = if i % 2 == 0 { (found, kind) } else { (kind, x[i]) };
        low = if low > high { low - high } else { high - low };
        y[i] = low * 8 + kind;
    }
}

#[test]
fn labels_and_values_of_loops() {
    same!(exits, numbers(), 0);
}

#[kernel(workgroup = 64)]
fn float_math(x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        let mut v = x[i];
        v = v.abs().sqrt().mul_add(2.0, -1.5).max(0.25).min(20.0);
        v -= v.floor() * 0.5 + v.ceil() / 8.0;
        let whole = (v * 3.0).trunc() as i32 - 2;
        let negative = whole < 0;
        v = if negative && !(v > 1.0) { -v } else { v + whole as f32 };
        let bonus = match whole {
            -1 => 0.5,
            0 | 1 => return,
            _ => -0.5,
        };
        y[i] = v + (v * 2.0).round_ties_even() + bonus;
    }
}

#[test]
fn floats_and_casts() {
    same!(float_math, (0..300).map(|i| (i as f32 - 150.0) * 0.37).collect::<Vec<f32>>(), 0.0);
}

#[kernel(workgroup = 64)]
fn float_bits(x: &[f32], y: &mut [u32]) {
    let i = global_index();
    if i < y.len() {
        let v = x[i];
        let clamped = v.clamp(-2.0, 8.5);
        let parts = clamped.signum() + v.fract() * 4.0 + 3.0f32.copysign(v) + (v + 0.5).recip();
        let n = (clamped * 3.0) as i32;
        let classes = v.is_nan() as u32 + if v.is_finite() { 2 } else { 0 };
        let bits = f32::from_bits(parts.to_bits() ^ (1 << 31)).to_bits();
        let turned = bits.rotate_right(5) ^ (n.signum() + n.clamp(-1, 9)) as u32;
        y[i] = if v.is_nan() { 77 } else { turned.wrapping_add(classes) };
    }
}

#[test]
fn bits_of_floats() {
    let mut x: Vec<f32> = (0..100).map(|i| (i as f32 - 50.0) * 0.3).collect();
    x.extend([0.0, -0.0, f32::NAN, f32::MAX]);
    same!(float_bits, x, 0);
}

/// Methods of f64. The library of devices is exact to 1 ULP, and that of the host is another.
#[kernel(workgroup = 64)]
fn functions_of_f64(x: &[f64], y: &mut [f64]) {
    let i = global_index();
    if i < y.len() {
        let v = x[i];
        let waves = v.sin() + v.cos() + v.tan() + v.sinh() + v.cosh() + v.tanh();
        let inverse = v.asin() + v.acos() + v.atan() + v.atan2(2.0) + v.hypot(3.0) + v.cbrt();
        let areas = v.asinh() + (v + 2.0).acosh() + v.atanh();
        let powers = v.exp() + v.exp2() + (v + 2.0).ln() + (v + 2.0).log2() + (v + 2.0).powf(1.5);
        y[i] = waves + inverse + areas + powers;
    }
}

#[test]
fn math_of_f64() {
    let x: Vec<f64> = (0..128).map(|i| (i as f64 - 64.0) / 70.0).collect();
    let mut expected = vec![0.0; x.len()];
    functions_of_f64::host(x.len(), &x, &mut expected);
    on_devices(|device| {
        let mut y = device.zeros(x.len()).unwrap();
        match functions_of_f64(&device.upload(&x).unwrap(), &mut y).run(device, x.len()) {
            Ok(_) => {
                for (found, expected) in y.download().unwrap().into_iter().zip(&expected) {
                    assert!((found - expected).abs() <= expected.abs() * 1e-13, "{found} is not {expected}");
                }
            }
            Err(error) => assert!(error.to_string().contains("f64"), "{error}"),
        }
    });
}

/// Every method of f16, which the host evaluates as devices do.
#[kernel(workgroup = 64)]
fn functions_of_f16(x: &[f16], y: &mut [f16]) {
    let i = global_index();
    if i < y.len() {
        let v = x[i];
        let waves = v.sin() + v.cos() + v.tan() + v.sinh() + v.cosh() + v.tanh();
        let inverse = v.asin() + v.acos() + v.atan() + v.atan2(waves) + v.hypot(waves) + v.cbrt();
        let areas = v.asinh() + v.cosh().acosh() + v.atanh();
        let powers = v.exp() + v.exp2() + v.abs().ln() + v.abs().log2() + v.exp().powf(v);
        let rest = v.floor() + v.ceil() + v.trunc() + v.round_ties_even() + v.abs().sqrt().mul_add(v, waves);
        y[i] = waves + inverse + areas + powers + rest;
    }
}

#[test]
fn math_of_f16() {
    let x: Vec<f16> = (0..128).map(|i| f16::from_f32((i as f32 - 64.0) / 70.0)).collect();
    let mut expected = vec![f16::ZERO; x.len()];
    functions_of_f16::host(x.len(), &x, &mut expected);
    on_devices(|device| {
        let mut y = device.zeros(x.len()).unwrap();
        match functions_of_f16(&device.upload(&x).unwrap(), &mut y).run(device, x.len()) {
            Ok(_) => assert_eq!(y.download().unwrap(), expected),
            Err(error) => assert!(error.to_string().contains("f16"), "{error}"),
        }
    });
}

/// Weights of bf16: loads are exact, stores round to nearest.
#[kernel(workgroup = 64)]
fn scaled_bf16(factor: f32, x: &[bf16], y: &mut [bf16], copy: &mut [bf16]) {
    #[shared]
    let tile: [bf16; 64];
    let (i, l) = (global_index(), local_index());
    tile[l] = x[i];
    workgroup_barrier();
    let neighbour = tile[(l + 1) % 64].to_f32();
    if i < y.len() {
        y[i] = bf16::from_f32(x[i].to_f32() * factor + neighbour);
        copy[i] = x[i];
    }
}

#[test]
fn elements_of_bf16() {
    let x: Vec<bf16> = (0..100).map(|i| bf16::from_f32(i as f32 * 0.37 - 18.0)).collect();
    let at = |i: usize| x.get(i).map_or(0.0, |x| x.to_f32());
    let next = |i: usize| if i % 64 == 63 { at(i - 63) } else { at(i + 1) };
    let expected: Vec<bf16> = (0..100).map(|i| bf16::from_f32(at(i) * 1.7 + next(i))).collect();
    on_devices(|device| {
        let (mut y, mut copy) = (device.zeros(100).unwrap(), device.zeros(100).unwrap());
        scaled_bf16(1.7, &device.upload(&x).unwrap(), &mut y, &mut copy).run(device, 100).unwrap();
        assert_eq!(y.download().unwrap(), expected);
        assert_eq!(copy.download().unwrap(), x);
    });
}

/// Every numeric method. Devices are within 1 ULP; the host uses a different library.
#[kernel(workgroup = 64)]
fn library_functions(x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        let v = x[i];
        let waves = v.sin() + v.cos() + v.tan() + v.sinh() + v.cosh() + v.tanh();
        let inverse = v.asin() + v.acos() + v.atan() + v.atan2(2.0) + v.hypot(3.0) + v.cbrt();
        let areas = v.asinh() + (v + 2.0).acosh() + v.atanh();
        let powers = areas + v.exp() + v.exp2() + (v + 2.0).ln() + (v + 2.0).log2() + (v + 2.0).powf(1.5);
        let bits = (v * 1000.0) as i32 as u32;
        let counts = bits.count_ones() + bits.leading_zeros() + bits.trailing_zeros();
        let moved = bits.reverse_bits().rotate_left(3).wrapping_mul(7) >> 20;
        y[i] = waves + inverse + powers + (counts + moved) as f32;
    }
}

#[test]
fn math() {
    let x: Vec<f32> = (0..128).map(|i| (i as f32 - 64.0) / 70.0).collect();
    let mut expected = vec![0.0; x.len()];
    library_functions::host(x.len(), &x, &mut expected);
    on_devices(|device| {
        let mut y = device.zeros(x.len()).unwrap();
        library_functions(&device.upload(&x).unwrap(), &mut y).run(device, x.len()).unwrap();
        for (found, expected) in y.download().unwrap().into_iter().zip(&expected) {
            assert!((found - expected).abs() <= expected.abs() * 1e-5, "{found} is not {expected}");
        }
    });
}

/// Methods that `vyre::host` adds to numbers: dot products of packed bytes, bytewise operations, packing and unpacking.
#[kernel(workgroup = 64)]
fn packed_words(x: &[u32], y: &mut [u32]) {
    let i = global_index();
    if i < y.len() {
        let (a, b) = (x[i].wrapping_mul(0x9e37_79b9), x[i] ^ 0x80ff_7f01);
        let sums = a.dot4_u8(b, 7) ^ a.dot4_i8(b, -7) as u32 ^ a.dot4_i8u8(b, 1) as u32;
        let ordered = a.min_u8x4(b) ^ a.max_u8x4(b) ^ a.min_i8x4(b).rotate_left(3) ^ a.max_i8x4(b).rotate_left(5);
        let compared = a.eq_u8x4(b.add_u8x4(0x0102_0304)) ^ a.lt_u8x4(b);
        let entries = a.lookup_u8x4(0x0405_0607, 0x1415_1617, 0x2425_2627, b);
        let clamped = (a >> 20).pack_u8_clamp(b, 3, 999) ^ (a as i32 >> 20).pack_i8_clamp(b as i32, 3, -999);
        let v = (x[i] as f32 - 300.0) * 0.0041;
        let halves = v.pack_f16(1.0) ^ v.pack_snorm16(0.3) ^ v.pack_unorm16(0.7);
        let bytes = v.pack_snorm8(0.1, 0.2, -v) ^ v.pack_unorm8(0.1, 0.2, -v);
        let parts = v.frexp_fraction() + v.modf_fraction() + v.quantize_f16() + (v.frexp_exponent() as f32);
        let fields = a.unpack_snorm16(1) + a.unpack_unorm16(x[i]) + a.unpack_snorm8(2) + a.unpack_unorm8(x[i]);
        let low = halves.unpack_f16_low() * 0.0 + 0x3c00u32.unpack_f16_high() + fields;
        let low = if low.is_nan() { 1.0 } else { low };
        y[i] = sums ^ ordered ^ compared ^ entries ^ clamped ^ halves ^ bytes ^ parts.to_bits() ^ low.to_bits();
    }
}

#[test]
fn packed_operations() {
    same!(packed_words, numbers(), 0);
}

#[kernel(workgroup = 32)]
fn arrays(x: &[u32], y: &mut [u32]) {
    let i = global_index();
    if i < y.len() {
        let mut digits: [u32; 10] = [0; 10];
        let primes: [u32; 4] = [2, 3, 5, x[i] + 7];
        let mut n = x[i];
        while n > 0 {
            digits[(n % 10) as usize] += 1;
            n /= 10;
        }
        let mut code = 0;
        for d in 0..10 {
            let mut ones: [u32; 3] = [1; 3];
            ones[d % 3] += d as u32;
            code = code * 3 + digits[d] * ones[0] + primes[d % 4] * ones[2];
        }
        y[i] = code;
    }
}

#[test]
fn local_arrays() {
    same!(arrays, numbers(), 0);
}

#[kernel(workgroup = 32)]
fn bytes(x: &[u8], y: &mut [u8]) {
    let i = global_index();
    if i < x.len() {
        let sum = x[i] as u32 * 3 + 250;
        y[i] = sum as u8;
        if i == 1 {
            y[i] = x[0];
        }
    }
}

#[test]
fn eight_bit_elements() {
    same!(bytes, (0..=255).collect::<Vec<u8>>(), 0);
}

mod library {
    use vyre::kernel;

    /// An inline function in another module.
    #[kernel(inline)]
    pub fn smooth(x: &[f32], i: usize) -> f32 {
        let left = if i > 0 { x[i - 1] } else { x[i] };
        (left + x[i]) * HALF
    }
    const HALF: f32 = 0.5;
}

#[kernel(inline)]
fn put<T: Number>(y: &mut [T], i: usize, value: T) {
    y[i] = value + value;
}

/// Returns early from a loop, and has a local array.
#[kernel(inline)]
fn first_above(x: &[f32], limit: f32) -> (f32, usize) {
    let mut seen: [f32; 3] = [0.0; 3];
    let at = position(x, limit);
    for i in 0..3 {
        seen[i] += at as f32;
    }
    (seen[0] + seen[2], at)
}

#[kernel(inline)]
fn position(x: &[f32], limit: f32) -> usize {
    if limit < 0.0 {
        return 7;
    }
    for i in 0..x.len() {
        if x[i] > limit {
            return i;
        }
    }
    x.len()
}

#[kernel(workgroup = 16)]
fn calls(x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < x.len() {
        let (mut sum, at) = first_above(x, x[i] * 2.0 - 20.0);
        for j in 0..2 {
            let (more, _) = first_above(x, (i + j) as f32);
            sum += more;
        }
        put(y, i, library::smooth(x, i) + library::smooth(x, i / 2) + sum + at as f32);
    }
}

#[test]
fn functions() {
    same!(calls, (1..100).map(|i| i as f32).collect::<Vec<f32>>(), 0.0);
}

#[kernel(workgroup = 64)]
fn scale<T: Number, const SHIFT: usize>(factor: T, x: &[T], y: &mut [T]) {
    let i = global_index();
    if i < x.len() {
        y[i] = x[(i + SHIFT) % x.len()] * factor;
    }
}

#[test]
fn generics() {
    on_devices(|device| {
        let floats = device.upload(&[1.0f32, 2.0, 3.0]).unwrap();
        let mut y = device.zeros::<f32>(3).unwrap();
        scale::<f32, 1>(0.5, &floats, &mut y).run(device, 3).unwrap();
        assert_eq!(y.download().unwrap(), [1.0, 1.5, 0.5]);
        scale::<f32, 2>(0.5, &floats, &mut y).run(device, 3).unwrap();
        assert_eq!(y.download().unwrap(), [1.5, 0.5, 1.0]);
        let integers = device.upload(&[1i32, -2, 3]).unwrap();
        let mut y = device.zeros::<i32>(3).unwrap();
        scale::<i32, 0>(-3, &integers, &mut y).run(device, 3).unwrap();
        assert_eq!(y.download().unwrap(), [-3, 6, -9]);
        let halves = device.upload(&[1.0, 2.5].map(f16::from_f32)).unwrap();
        let mut y = device.zeros::<f16>(2).unwrap();
        match scale::<f16, 0>(f16::from_f32(2.0), &halves, &mut y).run(device, 2) {
            Ok(_) => assert_eq!(y.download().unwrap(), [2.0, 5.0].map(f16::from_f32)),
            // f64 and f16 are optional on GPUs.
            Err(error) => assert!(error.to_string().contains("f16"), "{error}"),
        }
    });
}

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable, vyre::Record)]
#[repr(C)]
struct Body {
    x: f32,
    y: f32,
    z: f32,
    mass: f32,
}

/// Fields of several types, more than fit one access, and an array.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable, vyre::Record)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    kind: u32,
    charge: i32,
    weight: f32,
}

#[kernel(inline)]
fn heavier(bodies: &[Body], i: usize, j: usize) -> bool {
    bodies[i].mass > bodies[j].mass
}

#[kernel(workgroup = 32)]
fn records(bodies: &[Body], particles: &mut [Particle], moved: &mut [Body]) {
    let i = global_index();
    if i < bodies.len() && bodies[i].mass > 0.5 {
        let Body { x, mut y, z: depth, mass } = bodies[i];
        y += 1.0;
        moved[i] = Body { mass: mass * 2.0, x: depth, y, z: x };
        let Body { mass: next, .. } = bodies[(i + 1) % bodies.len()];
        if heavier(bodies, i, 0) {
            moved[i].z += next;
        }
        let Particle { position: [a, _, c], kind, charge, weight } = particles[i];
        particles[i] = Particle { weight: weight + a, kind: kind + 1, charge: -charge, position: [c, a * 2.0, y] };
        for k in 0..3 {
            particles[i].position[k] *= (particles.len() - k) as f32;
        }
        particles[i].kind |= 64;
    }
}

#[test]
fn slices_of_records() {
    let bodies: Vec<Body> = (0..50u8).map(f32::from).map(|n| Body { x: n, y: -n, z: 0.5 * n, mass: n % 7.0 }).collect();
    let particle = |n: i32| Particle { position: [n as f32, 2.0, 0.25], kind: n as u32, charge: n - 9, weight: -1.5 };
    let particles: Vec<Particle> = (0..50).map(particle).collect();
    let (mut expected, mut expected_moved) = (particles.clone(), vec![bodies[3]; 50]);
    records::host(50, &bodies, &mut expected, &mut expected_moved);
    on_devices(|device| {
        let given = device.upload(&bodies).unwrap();
        let mut changed = device.upload(&particles).unwrap();
        let mut moved = device.upload(&[bodies[3]; 60]).unwrap();
        records(&given, &mut changed, &mut moved.slice_mut(5..55).unwrap()).run(device, 50).unwrap();
        assert_eq!((given.len(), moved.len()), (50, 60));
        assert_eq!(changed.download().unwrap(), expected);
        assert_eq!(moved.slice(5..55).unwrap().download().unwrap(), expected_moved);
        assert_eq!(device.zeros::<Particle>(2).unwrap().download().unwrap(), [bytemuck::Zeroable::zeroed(); 2]);
    });
}

#[kernel(workgroup = 32)]
fn tile_of_records(bodies: &[Body], y: &mut [f32]) {
    #[shared]
    let tile: [Body; 32];
    let local = local_index();
    let Body { x, y: height, z, mass } = bodies[global_index()];
    tile[local] = Body { x, y: height, z, mass };
    workgroup_barrier();
    let mut sum = 0.0;
    for i in 0..tile.len() {
        sum += tile[i].mass;
    }
    y[global_index()] = sum + tile[31 - local].x;
}

#[test]
fn shared_records() {
    let bodies: Vec<Body> = (0..64u8).map(f32::from).map(|n| Body { x: n, y: 1.0, z: 2.0, mass: n % 4.0 }).collect();
    let expected: Vec<f32> = (0..64).map(|i| 48.0 + (i / 32 * 32 + 31 - i % 32) as f32).collect();
    on_devices(|device| {
        let mut y = device.zeros(64).unwrap();
        tile_of_records(&device.upload(&bodies).unwrap(), &mut y).run(device, 64).unwrap();
        assert_eq!(y.download().unwrap(), expected);
    });
}

/// An out-of-bounds index of a field's array is out of bounds of the slice, not an access to the next field.
#[kernel(workgroup = 1)]
fn outside(at: usize, particles: &mut [Particle], y: &mut [f32]) {
    particles[0].position[at] = 5.0;
    y[0] = particles[0].position[at];
}

#[test]
fn out_of_bounds_indices_of_field_arrays() {
    let particle = Particle { position: [1.0; 3], kind: 7, charge: 8, weight: 9.0 };
    on_devices(|device| {
        let mut particles = device.upload(&[particle; 2]).unwrap();
        let mut y = device.upload(&[1.0]).unwrap();
        outside(3, &mut particles, &mut y).run(device, 1).unwrap();
        assert_eq!(particles.download().unwrap(), [particle; 2]);
        assert_eq!(y.download().unwrap(), [0.0]);
    });
}

#[kernel(workgroup = 64)]
fn histogram(x: &[u32], bins: &[Atomic<u32>]) {
    let i = global_index();
    if i < x.len() {
        let bin = (x[i] as usize) % (bins.len() - 2);
        bins[bin].fetch_add(1);
        bins[bins.len() - 2].fetch_max(x[i]);
        let (_, first) = bins[bins.len() - 1].compare_exchange(0, 5);
        if first {
            bins[bins.len() - 1].store(6);
        }
    }
}

#[test]
fn atomics() {
    let x = numbers();
    let bins: Vec<Atomic<u32>> = (0..10).map(|_| Atomic::default()).collect();
    histogram::host(x.len(), &x, &bins);
    let expected: Vec<u32> = bins.iter().map(Atomic::load).collect();
    on_devices(|device| {
        let mut bins = device.zeros(10).unwrap();
        histogram(&device.upload(&x).unwrap(), &mut bins).run(device, x.len()).unwrap();
        assert_eq!(bins.download().unwrap(), expected);
    });
}

#[kernel(workgroup = 64)]
fn float_totals(x: &[u32], totals: &[Atomic<f32>]) {
    #[shared]
    let group: [Atomic<f32>; 1];
    let i = global_index();
    if i < x.len() {
        let value = (x[i] % 100) as f32 - 50.0;
        totals[0].fetch_add(value);
        totals[1].fetch_sub(value);
        totals[2].fetch_min(value);
        totals[3].fetch_max(value);
        group[0].fetch_add(1.0);
    }
    workgroup_barrier();
    if local_index() == 0 {
        totals[4].fetch_add(group[0].load());
        totals[5].store(7.0);
        totals[6].swap(8.0);
    }
}

#[test]
fn atomics_on_floats() {
    let x = numbers();
    let values = || x.iter().map(|&x| (x % 100) as f32 - 50.0);
    // Sums of small integers are exact in any order.
    let sum: f32 = values().sum();
    let (least, most) = (values().fold(0.0, f32::min), values().fold(0.0, f32::max));
    on_devices(|device| {
        let mut totals = device.zeros(7).unwrap();
        float_totals(&device.upload(&x).unwrap(), &mut totals).run(device, x.len()).unwrap();
        assert_eq!(totals.download().unwrap(), [sum, -sum, least, most, x.len() as f32, 7.0, 8.0]);
    });
    let host = Atomic::new(1.5f64);
    assert_eq!((host.fetch_add(2.0), host.fetch_min(f64::NAN), host.swap(0.0), host.load()), (1.5, 3.5, 3.5, 0.0));
}

#[kernel(workgroup = 64)]
fn group_sums(x: &[u32], sums: &mut [u32], lanes: &mut [u32]) {
    #[shared]
    let tile: [u32; 64];
    let l = local_index();
    tile[l] = x[global_index()];
    workgroup_barrier();
    let mut width = 32;
    while width > 0 {
        if l < width {
            tile[l] += tile[l + width];
        }
        workgroup_barrier();
        width /= 2;
    }
    let all = subgroup_add(1u32);
    let [first, ..] = subgroup_ballot(true);
    if first % 2 == 0 {
        trap(1);
    }
    if l == 0 {
        sums[group_index()] = tile[0];
        lanes[group_id().x] = all - subgroup_size() as u32;
    }
}

#[test]
fn workgroups_and_subgroups() {
    let x: Vec<u32> = (0..256).collect();
    let expected: Vec<u32> = x.chunks(64).map(|group| group.iter().sum()).collect();
    on_devices(|device| {
        let mut sums = device.zeros(4).unwrap();
        let mut lanes = device.upload(&[9; 4]).unwrap();
        group_sums(&device.upload(&x).unwrap(), &mut sums, &mut lanes).run(device, x.len()).unwrap();
        assert_eq!(sums.download().unwrap(), expected);
        assert_eq!(lanes.download().unwrap(), [0; 4]);
    });
}

/// Subgroups with a large number sum exchanged values, the others count kept values.
#[kernel(workgroup = 64)]
fn subgroup_paths(x: &[u32], y: &mut [u32], kept: &mut [u32]) {
    let i = global_index();
    let lane = subgroup_lane() as u32;
    let v = x[i];
    if subgroup_any(v > 1000) {
        let before = subgroup_shuffle_up(v, 1);
        let after = subgroup_shuffle_down(v, 1);
        let across = subgroup_shuffle_xor(v, 1);
        y[i] = subgroup_add(before + after + across);
    } else {
        let mut trips = 0u32;
        let mut left = v;
        while !subgroup_all(left == 0) {
            left /= 2;
            trips += 1;
        }
        let (value, count) = subgroup_compact(v, v % 2 == 1);
        if lane < count {
            kept[i] = value;
        }
        y[i] = subgroup_broadcast_first(v) + count * 100 + trips * 10000;
    }
}

#[test]
fn subgroups_diverge_from_each_other() {
    let x: Vec<u32> = (0..256).map(|i| if i / 32 == 3 { 5000 + i } else { i * 7 % 50 }).collect();
    on_devices(|device| {
        let Some(size) = device.driver().capabilities().subgroup_size else { return };
        let (mut y, mut kept) = (device.zeros(x.len()).unwrap(), device.zeros(x.len()).unwrap());
        subgroup_paths(&device.upload(&x).unwrap(), &mut y, &mut kept).run(device, x.len()).unwrap();
        let (mut expected, mut expected_kept) = (vec![], vec![]);
        for lanes in x.chunks(64).flat_map(|group| group.chunks(size as usize)) {
            let odd: Vec<u32> = lanes.iter().copied().filter(|v| v % 2 == 1).collect();
            if lanes.iter().any(|&v| v > 1000) {
                let at = |lane: usize| lanes.get(lane).copied().unwrap_or(0);
                let exchanged = (0..lanes.len()).map(|k| at(k.wrapping_sub(1)) + at(k + 1) + at(k ^ 1));
                expected.extend(vec![exchanged.sum::<u32>(); lanes.len()]);
                expected_kept.extend(vec![0; lanes.len()]);
            } else {
                let trips = 32 - lanes.iter().max().unwrap().leading_zeros();
                expected.extend(vec![lanes[0] + 100 * odd.len() as u32 + 10000 * trips; lanes.len()]);
                expected_kept.extend((0..lanes.len()).map(|k| odd.get(k).copied().unwrap_or(0)));
            }
        }
        assert_eq!(y.download().unwrap(), expected);
        assert_eq!(kept.download().unwrap(), expected_kept);
    });
}

#[kernel(workgroup = 1)]
fn talk(n: u32) {
    if n > 1 {
        print!("{} and {}", n, global_index());
    }
}

#[test]
fn print() {
    on_devices(|device| {
        let report = talk(7).run(device, 2).unwrap();
        let lines: Vec<&str> = report.trace.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(lines, ["7 and 0", "7 and 1"]);
    });
}

#[kernel(workgroup = (4, 2))]
fn positions(width: usize, y: &mut [u32]) {
    let column = global_id().x;
    let row = global_id().y;
    if column < width {
        y[row * width + column] = (global_index() * 10 + local_id().y) as u32;
    }
}

#[test]
fn two_dimensions() {
    let mut expected = vec![0; 7 * 4];
    positions::host([7, 4], 7, &mut expected);
    on_devices(|device| {
        let mut y = device.zeros(7 * 4).unwrap();
        positions(7, &mut y).run(device, [7, 4]).unwrap();
        assert_eq!(y.download().unwrap(), expected);
    });
}

#[kernel(workgroup = 1)]
fn fails(how: u32, y: &mut [u32]) {
    if how == 1 {
        trap(42);
    }
    while how == 2 {
        y[0] += 1;
    }
}

#[test]
fn failures_name_the_line() {
    let (file, first) = (file!(), line!() - 9);
    on_devices(|device| {
        let mut y = device.zeros(1).unwrap();
        fails(0, &mut y).run(device, 1).unwrap();
        match fails(1, &mut y).run(device, 1) {
            Err(Error::Trapped { code: 42, location: Some(location), .. }) => {
                assert_eq!((location.file(), location.line()), (file, first));
            }
            other => panic!("{other:?}"),
        }
        let limits = Limits { fuel: 1000, ..Limits::default() };
        match fails(2, &mut y).limits(limits).run(device, 1) {
            Err(ref error @ Error::OutOfFuel { location: Some(ref location), .. }) => {
                assert_eq!((location.file(), location.line(), error.code()), (file, first + 2, "K003"));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[kernel(workgroup = 64)]
fn divergent(y: &mut [u32]) {
    if global_index() < 3 {
        workgroup_barrier();
    }
    y[0] = 1;
}

#[test]
fn validator_errors_name_the_line() {
    let device = Device::named("cpu").unwrap();
    let error = divergent(&mut device.zeros(1).unwrap()).run(&device, 1).unwrap_err();
    let Error::Invalid { mistakes, .. } = error else { panic!("{error:?}") };
    assert_eq!(mistakes[0].0.as_ref().unwrap().line(), line!() - 10);
}

#[test]
fn parts_of_buffers() {
    on_devices(|device| {
        let mut buffer = device.upload(&[1u32, 2, 3, 4, 5, 6]).unwrap();
        let (first, mut second) = buffer.split_at_mut(3).unwrap();
        scale::<u32, 0>(10, &first, &mut second).run(device, 3).unwrap();
        scale::<u32, 0>(2, &device.upload(&[1]).unwrap(), &mut buffer.slice_mut(1..2).unwrap()).run(device, 1).unwrap();
        assert_eq!(buffer.download().unwrap(), [1, 2, 3, 10, 20, 30]);
        assert_eq!(buffer.slice(3..5).unwrap().download().unwrap(), [10, 20]);
        assert_eq!(buffer.slice(5..7).unwrap_err().code(), "D007");
    });
}
