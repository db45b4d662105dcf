use vyre::kernel;

#[derive(Clone, Copy)]
struct Point {
    x: f32,
}

#[kernel(workgroup = 64)]
fn k(points: &[Point], y: &mut [f32]) {
    y[0] = points[0].x;
}

fn main() {}
