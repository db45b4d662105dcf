use vyre::kernel;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, vyre::Record)]
#[repr(C)]
struct Point {
    x: f32,
    y: f32,
}

#[kernel(workgroup = 64)]
fn k(from: &[Point], to: &mut [Point]) {
    to[0] = Point { x: 1.0, ..from[0] };
    from[0].x = 1.0;
    from[0] = Point { x: 1.0, y: 1.0 };
    let Point { x, y } = Point { x: 1.0, y: 1.0 };
    let p = &from[0];
    to[0].x = p.x;
}

fn main() {}
