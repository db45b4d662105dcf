use vyre::kernel;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, vyre::Record)]
#[repr(C)]
struct Point {
    x: f32,
    y: f32,
}

#[kernel(workgroup = 64)]
fn k(from: &[Point], to: &mut [Point]) {
    let _point = from[0];
    to[0].x = 1.0;
}

fn main() {}
