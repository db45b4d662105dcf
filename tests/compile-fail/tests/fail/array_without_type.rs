use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    let mut a = [0.0; 4];
    a[1] = 1.0;
    y[0] = a[1];
}

fn main() {}
