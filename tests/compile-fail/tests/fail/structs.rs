use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    let p = Point { x: 1.0 };
    y[0] = p.x;
}

fn main() {}
