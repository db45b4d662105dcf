use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    assert!(y[0] > 1.0);
    y[0] = 1.0;
}

fn main() {}
