//! Every example kernel, written in Rust, equals its text, instruction by instruction, after the passes that establish canonical form.
//! Uniforms are declared in the order in which the texts load them.

use vyre::ir::{Module, Program};
use vyre::{Atomic, Record, kernel};
use vyre_foundation::optimizer::{Options, Pipeline, Registry, run};
use vyre_foundation::{text, validate};

#[kernel(workgroup = 256)]
fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        let (a, x, y_i) = (a, x[i], y[i]);
        y[i] = a * x + y_i;
    }
}

#[kernel(workgroup = (16, 16))]
fn mandelbrot<const WIDTH: usize, const HEIGHT: usize, const MAX_TRIPS: u32>(
    center_x: f32,
    center_y: f32,
    span: f32,
    image: &mut [u8; 1_048_576],
) {
    let px = global_id().x;
    let py = global_id().y;
    if px < WIDTH && py < HEIGHT {
        let (span, center_x, center_y) = (span, center_x, center_y);
        let (fx, fy) = (px as f32, py as f32);
        let (width, height) = (WIDTH as f32, HEIGHT as f32);
        let (mx, my) = (fx + 0.5, fy + 0.5);
        let (rx, ry) = (mx / width, my / height);
        let (ox, oy) = (rx - 0.5, ry - 0.5);
        let cx = ox.mul_add(span, center_x);
        let cy = oy.mul_add(span, center_y);
        let mut trips = 0;
        let mut x = 0.0f32;
        let mut y = 0.0f32;
        loop {
            let xx = x * x;
            let yy = y * y;
            if xx + yy > 4.0 || trips >= MAX_TRIPS {
                break;
            }
            let next_x = xx - yy + cx;
            y = (x * y).mul_add(2.0, cy);
            x = next_x;
            trips += 1;
        }
        let bounded = trips >= MAX_TRIPS;
        let light = (trips * 5).min(255);
        let shade = if bounded { 0 } else { light };
        image[py * WIDTH + px] = shade as u8;
    }
}

#[kernel(workgroup = 256)]
fn bitonic(k: usize, j: usize, keys: &mut [u32]) {
    let pair = global_index();
    let (k, j) = (k, j);
    let lower = pair + (pair & !(j - 1));
    let upper = lower + j;
    if upper < keys.len() {
        let (lower_key, upper_key) = (keys[lower], keys[upper]);
        let smaller = lower_key.min(upper_key);
        let larger = lower_key.max(upper_key);
        let ascending = lower & k == 0;
        let new_lower = if ascending { smaller } else { larger };
        let new_upper = if ascending { larger } else { smaller };
        keys[lower] = new_lower;
        keys[upper] = new_upper;
    }
}

#[kernel(workgroup = 256)]
fn blur(data: &[f32], result: &mut [f32]) {
    let i = global_index();
    let mut sum = 0.0;
    for k in 0..9 {
        sum += data[i + k];
    }
    result[i] = sum / 9.0;
}

#[kernel(workgroup = 256)]
fn count_if(threshold: f32, data: &[f32], count: &[Atomic<u32>; 1]) {
    let i = global_index();
    let n = data.len();
    let threshold = threshold;
    let element = if i < n { data[i] } else { threshold };
    count[0].fetch_add((element > threshold) as u32);
}

#[kernel(workgroup = 64)]
fn extremes(width: usize, data: &[f32], result: &mut [f32]) {
    let row = global_index();
    let start = row * width;
    if start >= data.len() {
        return;
    }
    let first = data[start];
    let mut range: [f32; 2] = [first, first];
    for column in 1..width {
        let element = data[start + column];
        range[0] = range[0].min(element);
        range[1] = range[1].max(element);
    }
    store_wide(result, row * 2, [range[0], range[1]]);
}

#[kernel(workgroup = 256)]
fn gather(table: &[f32], index: &[u32], out: &mut [f32]) {
    let i = global_index();
    if i < out.len() {
        out[i] = table[index[i] as usize];
    }
}

#[kernel(workgroup = 256)]
fn hash(keys: &[u32], hashes: &mut [u32]) {
    let i = global_index();
    if i < hashes.len() {
        let mut key = keys[i];
        key ^= key >> 16;
        key = key.wrapping_mul(0x85eb_ca6b);
        key ^= key >> 13;
        key = key.wrapping_mul(0xc2b2_ae35);
        hashes[i] = key ^ key >> 16;
    }
}

#[kernel(workgroup = 256)]
fn histogram(data: &[u8], bins: &[Atomic<u32>; 256]) {
    #[shared]
    let group_bins: [Atomic<u32>; 256];
    let local = local_index();
    group_bins[local].store(0);
    workgroup_barrier();

    let n = data.len();
    let groups = group_count().x;
    let per_group = (n + (groups - 1)) / groups;
    let start = group_index() * per_group;
    let end = (start + per_group).min(n);
    for i in (start + local..end).step_by(group_size().x) {
        group_bins[data[i] as usize].fetch_add(1);
    }
    workgroup_barrier();

    let count = group_bins[local].load();
    if count != 0 {
        bins[local].fetch_add(count);
    }
}

#[kernel(workgroup = 256)]
fn interleave(volume: f32, gain: f32, left: &[f32], right: &[f32], stream: &mut [f32]) {
    let i = global_index();
    if i >= stream.len() {
        return;
    }
    let (volume, gain) = (volume, gain);
    let sample = i >> 1;
    stream[i] = if i & 1 == 0 { left[sample] * (volume * gain) } else { right[sample] * (volume * gain) };
}

#[kernel(workgroup = (16, 16))]
fn life(width: usize, height: usize, cells: &[u8], next: &mut [u8]) {
    let (width, height) = (width, height);
    let (x, y) = (global_id().x, global_id().y);
    if x < width && y < height {
        let last_x = width - 1;
        let left = if x == 0 { last_x } else { x - 1 };
        let right = if x == last_x { 0 } else { x + 1 };
        let last_y = height - 1;
        let above = if y == 0 { last_y } else { y - 1 };
        let below = if y == last_y { 0 } else { y + 1 };

        let (row_above, row, row_below) = (above * width, y * width, below * width);
        let (above_left, above, above_right) = (row_above + left, row_above + x, row_above + right);
        let (before, at, after) = (row + left, row + x, row + right);
        let (below_left, below, below_right) = (row_below + left, row_below + x, row_below + right);
        let cell = cells[at] as u32;
        let (n1, n2, n3) = (cells[above_left] as u32, cells[above] as u32, cells[above_right] as u32);
        let (n4, n5) = (cells[before] as u32, cells[after] as u32);
        let (n6, n7, n8) = (cells[below_left] as u32, cells[below] as u32, cells[below_right] as u32);
        let neighbours = n1 + n2 + n3 + n4 + n5 + n6 + n7 + n8;
        let lives = neighbours == 3 || neighbours == 2 && cell != 0;
        next[at] = lives as u32 as u8;
    }
}

#[kernel(workgroup = (16, 16))]
fn matmul(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    let (m, n, k) = (m, n, k);
    let (column, row) = (global_id().x, global_id().y);
    if row < m && column < n {
        let a_row = row * k;
        let mut sum = 0.0;
        for p in 0..k {
            let (a_at, b_at) = (a_row + p, p * n + column);
            sum = a[a_at].mul_add(b[b_at], sum);
        }
        c[row * n + column] = sum;
    }
}

#[kernel(workgroup = (16, 16))]
fn matmul_tiled(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    #[shared]
    let a_tile: [f32; 256];
    #[shared]
    let b_tile: [f32; 256];
    let (m, n, k) = (m, n, k);
    let (column, row) = (global_id().x, global_id().y);
    let (row_inside, column_inside) = (row < m, column < n);
    let (tile_column, tile_row) = (local_id().x, local_id().y);
    let slot = local_index();
    let a_tile_row = tile_row * 16;
    let mut sum = 0.0;
    for start in (0..k).step_by(16) {
        let a_column = start + tile_column;
        a_tile[slot] = if row_inside && a_column < k { a[row * k + a_column] } else { 0.0 };
        let b_row = start + tile_row;
        b_tile[slot] = if b_row < k && column_inside { b[b_row * n + column] } else { -0.0 };
        workgroup_barrier();
        for p in 0..16 {
            let (a_at, b_at) = (a_tile_row + p, p * 16 + tile_column);
            sum = a_tile[a_at].mul_add(b_tile[b_at], sum);
        }
        workgroup_barrier();
    }
    if row_inside && column_inside {
        c[row * n + column] = sum;
    }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, Record)]
#[repr(C)]
struct Body {
    x: f32,
    y: f32,
    z: f32,
    mass: f32,
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, Record)]
#[repr(C)]
struct Velocity {
    x: f32,
    y: f32,
    z: f32,
}

#[kernel(workgroup = 256)]
fn nbody(dt: f32, softening: f32, bodies: &[Body], velocities: &mut [Velocity], moved: &mut [Body]) {
    let i = global_index();
    let n = bodies.len();
    if i < n {
        let (dt, softening) = (dt, softening);
        let softening_squared = softening * softening;
        let Body { x, y, z, mass } = bodies[i];
        let (mut ax, mut ay, mut az) = (0.0, 0.0, 0.0);
        for j in 0..n {
            let Body { x: other_x, y: other_y, z: other_z, mass: other_mass } = bodies[j];
            let (dx, dy, dz) = (other_x - x, other_y - y, other_z - z);
            let squared = dz.mul_add(dz, dy.mul_add(dy, dx.mul_add(dx, softening_squared)));
            let inverse = 1.0 / squared.sqrt();
            let pull = other_mass * (inverse * inverse * inverse);
            ax = pull.mul_add(dx, ax);
            ay = pull.mul_add(dy, ay);
            az = pull.mul_add(dz, az);
        }
        let Velocity { x: old_x, y: old_y, z: old_z } = velocities[i];
        let vx = ax.mul_add(dt, old_x);
        let vy = ay.mul_add(dt, old_y);
        let vz = az.mul_add(dt, old_z);
        velocities[i] = Velocity { x: vx, y: vy, z: vz };
        moved[i] = Body { x: vx.mul_add(dt, x), y: vy.mul_add(dt, y), z: vz.mul_add(dt, z), mass };
    }
}

#[kernel(workgroup = 256)]
fn count_digits(shift: u32, keys: &[u32], counts: &mut [u32]) {
    #[shared]
    let bins: [Atomic<u32>; 256];
    let local = local_index();
    bins[local].store(0);
    workgroup_barrier();

    let shift = shift;
    let n = keys.len();
    let block = group_index();
    let start = block * 4096;
    let end = (start + 4096).min(n);
    let own = local * 4;
    let mut step = start;
    loop {
        let i = own + step;
        if i >= end {
            break;
        }
        let [k0, k1, k2, k3] = load_wide(keys, i);
        bins[digit(k0, shift)].fetch_add(1);
        bins[digit(k1, shift)].fetch_add(1);
        bins[digit(k2, shift)].fetch_add(1);
        bins[digit(k3, shift)].fetch_add(1);
        step += 1024;
    }
    workgroup_barrier();

    let at = local * group_count().x + block;
    counts[at] = bins[local].load();
}

#[kernel(inline)]
fn digit(key: u32, shift: u32) -> usize {
    (key >> shift & 255) as usize
}

#[kernel(workgroup = 16)]
fn scatter_digits(shift: u32, keys: &[u32], ends: &[u32], sorted: &mut [u32]) {
    #[shared]
    let places: [Atomic<u32>; 4096];
    let local = local_index();
    for place in (local..4096).step_by(16) {
        places[place].store(0);
    }
    workgroup_barrier();

    let shift = shift;
    let n = keys.len();
    let row = local * 256;
    let block = group_index();
    let start = block * 4096 + row;
    let end = (start + 256).min(n);
    for i in (start..end).step_by(4) {
        let [k0, k1, k2, k3] = load_wide(keys, i);
        places[row + digit(k0, shift)].fetch_add(1);
        places[row + digit(k1, shift)].fetch_add(1);
        places[row + digit(k2, shift)].fetch_add(1);
        places[row + digit(k3, shift)].fetch_add(1);
    }
    workgroup_barrier();

    let blocks = group_count().x;
    for digit in (local..256).step_by(16) {
        let at = digit * blocks + block;
        let mut place = digit;
        let mut so_far = if at > 0 { ends[at - 1] } else { 0 };
        while place < 4096 {
            let count = places[place].load();
            places[place].store(so_far);
            place += 256;
            so_far += count;
        }
    }
    workgroup_barrier();

    for i in (start..end).step_by(4) {
        let [k0, k1, k2, k3] = load_wide(keys, i);
        move_key(&places, row + digit(k0, shift), k0, sorted);
        move_key(&places, row + digit(k1, shift), k1, sorted);
        move_key(&places, row + digit(k2, shift), k2, sorted);
        move_key(&places, row + digit(k3, shift), k3, sorted);
    }
}

#[kernel(inline)]
fn move_key(places: &[Atomic<u32>], place: usize, key: u32, sorted: &mut [u32]) {
    let to = places[place].load();
    sorted[to as usize] = key;
    places[place].store(to + 1);
}

#[kernel(workgroup = 256)]
fn reduce(data: &[f32], sums: &mut [f32]) {
    #[shared]
    let tree: [f32; 256];
    let n = data.len();
    let groups = group_count().x;
    let per_group = (n + (groups - 1)) / groups;
    let group = group_index();
    let start = group * per_group;
    let end = (start + per_group).min(n);

    let local = local_index();
    let mut sum = 0.0;
    for i in (start + local..end).step_by(group_size().x) {
        sum += data[i];
    }
    tree[local] = sum;
    workgroup_barrier();

    let mut half = group_size().x >> 1;
    while half != 0 {
        if local < half {
            let partner = local + half;
            tree[local] = tree[local] + tree[partner];
        }
        workgroup_barrier();
        half >>= 1;
    }
    if local == 0 {
        sums[group] = tree[0];
    }
}

#[kernel(workgroup = 256)]
fn scale_and_shift(factor: f32, offset: f32, data: &mut [f32]) {
    'scale: {
        let i = global_index();
        if i < data.len() {
            data[i] *= factor;
        }
    }
    'shift: {
        let i = global_index();
        if i < data.len() {
            data[i] += offset;
        }
    }
}

#[kernel(workgroup = 256)]
fn scan_blocks(data: &[u32], sums: &mut [u32], totals: &mut [u32]) {
    #[shared]
    let partial: [u32; 256];
    let i = global_index();
    let inside = i < data.len();
    let own = if inside { data[i] } else { 0 };
    let local = local_index();
    partial[local] = own;
    workgroup_barrier();

    let size = group_size().x;
    let mut distance = 1;
    let mut sum = own;
    while distance < size {
        let before = if local >= distance { partial[local - distance] } else { 0 };
        workgroup_barrier();
        sum += before;
        partial[local] = sum;
        workgroup_barrier();
        distance <<= 1;
    }
    if inside {
        sums[i] = sum;
    }
    if local == size - 1 {
        totals[group_index()] = sum;
    }
}

#[kernel(workgroup = 256)]
fn add_offsets(offsets: &[u32], sums: &mut [u32]) {
    let i = global_index();
    let inside = i < sums.len();
    let group = group_index();
    if inside && group > 0 {
        let offset = offsets[group - 1];
        sums[i] += offset;
    }
}

/// Number of lanes and subgroups, and start and size of this subgroup's chunk.
#[kernel(inline)]
fn chunk(n: usize) -> (usize, usize, usize) {
    let lanes = subgroup_size().min(64);
    let subgroups = 64 / lanes;
    let chunks = group_count().x * subgroups;
    let at_a_time = lanes * 4;
    let of_all = at_a_time * chunks;
    let steps = (n + (of_all - 1)) / of_all;
    let size = steps * at_a_time;
    let (group, subgroup) = (group_index(), subgroup_id());
    (lanes, group * subgroups + subgroup, size)
}

#[kernel(workgroup = 64)]
fn sum_chunks(data: &[u32], totals: &mut [u32]) {
    let n = data.len();
    let (lanes, chunk, size) = chunk(n);
    let start = chunk * size;
    let lane = subgroup_lane();
    let stop = (start + size).min(n);
    let mut sum = 0;
    for i in (start + lane..stop).step_by(lanes) {
        sum += data[i];
    }
    let all = subgroup_add(sum);
    if lane == 0 {
        totals[chunk] = all;
    }
}

#[kernel(workgroup = 64)]
fn scan_chunks(data: &[u32], totals: &[u32], sums: &mut [u32]) {
    let n = data.len();
    let (lanes, chunk, size) = chunk(n);
    let start = chunk * size;
    let lane = subgroup_lane();
    let mut before = 0;
    for other in (lane..chunk).step_by(lanes) {
        before += totals[other];
    }
    let mut before = subgroup_add(before);

    let quads = n >> 2;
    let first = start >> 2;
    for step in (0..size >> 2).step_by(lanes) {
        let quad = first + step + lane;
        let inside = quad < quads;
        let at = quad * 4;
        let [e0, e1, e2, e3] = if inside { load_wide(data, at) } else { [0, 0, 0, 0] };
        let s1 = e0 + e1;
        let s2 = s1 + e2;
        let own = s2 + e3;
        let up_to_own = subgroup_inclusive_add(own);
        if inside {
            let before = before + (up_to_own - own);
            store_wide(sums, at, [before + e0, before + s1, before + s2, before + own]);
        }
        before += subgroup_add(own);
    }
}

/// Start and end of this workgroup's chunk.
#[kernel(inline)]
fn tiles(n: usize) -> (usize, usize) {
    let groups = group_count().x;
    let tiles = n + 1023 >> 10;
    let size = (tiles + (groups - 1)) / groups << 10;
    let start = group_index() * size;
    (start, (start + size).min(n))
}

#[kernel(workgroup = 256)]
fn sum_tiles(data: &[u32], totals: &mut [u32]) {
    #[shared]
    let total: [Atomic<u32>; 1];
    let (start, end) = tiles(data.len());
    let local = local_index();
    let mut sum = 0;
    for i in (start + local..end).step_by(256) {
        sum += data[i];
    }
    total[0].fetch_add(sum);
    workgroup_barrier();
    if local == 0 {
        totals[group_index()] = total[0].load();
    }
}

#[kernel(workgroup = 256)]
fn scan_tiles(data: &[u32], offsets: &[u32], sums: &mut [u32]) {
    #[shared]
    let partial: [u32; 256];
    let n = data.len();
    let (start, end) = tiles(n);
    let group = group_index();
    let mut before_tile = if group > 0 { offsets[group - 1] } else { 0 };
    let local = local_index();
    let own_start = local * 4;
    for tile in (start..end).step_by(1024) {
        let at = tile + own_start;
        let inside = at < n;
        let [e0, e1, e2, e3] = if inside { load_wide(data, at) } else { [0, 0, 0, 0] };
        let s1 = e0 + e1;
        let s2 = s1 + e2;
        let own = s2 + e3;
        partial[local] = own;
        workgroup_barrier();

        let mut distance = 1;
        let mut up_to_own = own;
        while distance < 256 {
            let lower = if local >= distance { partial[local - distance] } else { 0 };
            workgroup_barrier();
            up_to_own += lower;
            partial[local] = up_to_own;
            workgroup_barrier();
            distance <<= 1;
        }
        let before = before_tile + (up_to_own - own);
        if inside {
            store_wide(sums, at, [before + e0, before + s1, before + s2, before + own]);
        }
        before_tile += partial[255];
        workgroup_barrier();
    }
}

#[kernel(workgroup = 256)]
fn smooth(data: &[f32], result: &mut [f32]) {
    let i = global_index();
    let n = data.len();
    if i >= n {
        return;
    }
    let last = n - 1;
    let mut window: [f32; 5] = [0.0; 5];
    for k in 0..5 {
        let at = ((i + k).max(2) - 2).min(last);
        window[k] = data[at];
    }
    let mut sum = window[2];
    for k in 0..5 {
        sum += window[k];
    }
    result[i] = sum / 6.0;
}

/// Passes applied to both programs.
const PIPELINE: &str = "fixpoint(canonicalize,simplify,value_numbering,eliminate_dead_code)";

/// A program in canonical form, without the features of texts only: grid and defaults of uniforms.
fn canonical(mut program: Program) -> Program {
    program.set_launch(None);
    for id in program.memories().keys().collect::<Vec<_>>() {
        program.memory_mut(id).default = None;
    }
    program.strip_value_names();
    let pipeline = Pipeline::parse(PIPELINE, Registry::standard()).unwrap();
    let checked = validate::program(program).unwrap();
    let (program, _) = run(checked, &pipeline, &Options::default(), &mut |_| {}).unwrap();
    program.into_inner()
}

fn both(kernel: Program, text: Program) -> String {
    text::print(&Module { programs: vec![kernel, text], ..Module::default() })
}

macro_rules! twins {
    ($($file:ident: $($kernel:ident $(<$($generic:literal),*>)?)*;)*) => { $(
        #[test]
        fn $file() {
            let mut texts = text::parse(include_str!(concat!("../../../examples/kernels/", stringify!($file), ".vyre"))).unwrap();
            $(
                let kernel = $crate::$kernel $(::<$($generic),*>)?::program().unwrap();
                let text = texts.programs.remove(0);
                assert_eq!(text.name(), kernel.name());
                let (kernel, text) = (canonical(kernel), canonical(text));
                assert!(kernel == text, "{}", both(kernel, text));
            )*
            assert!(texts.programs.is_empty(), "every program of the file has a twin");
        }
    )* };
}

mod twin {
    use super::*;

    twins! {
        bitonic: bitonic;
        blur: blur;
        count_if: count_if;
        extremes: extremes;
        gather: gather;
        hash: hash;
        histogram: histogram;
        interleave: interleave;
        life: life;
        mandelbrot: mandelbrot<1024, 1024, 256>;
        matmul: matmul;
        matmul_tiled: matmul_tiled;
        nbody: nbody;
        radix_sort: count_digits scatter_digits;
        reduce: reduce;
        saxpy: saxpy;
        scale_and_shift: scale_and_shift;
        scan: scan_blocks add_offsets sum_chunks scan_chunks;
        scan_tiles: sum_tiles scan_tiles;
        smooth: smooth;
    }
}
