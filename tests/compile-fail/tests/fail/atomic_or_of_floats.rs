use vyre::{Atomic, kernel};

#[kernel(workgroup = 64)]
fn k(x: &[Atomic<f32>]) {
    x[0].fetch_add(1.0);
    x[1].fetch_or(1.0);
}

fn main() {}
