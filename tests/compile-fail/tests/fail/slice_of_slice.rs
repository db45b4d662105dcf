use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(x: &[f32], y: &mut [f32]) {
    let part = &x[4..8];
    y[0] = 1.0;
}

fn main() {}
