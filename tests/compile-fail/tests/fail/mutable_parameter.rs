use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(mut a: f32, y: &mut [f32]) {
    a += 1.0;
    y[0] = a;
}

fn main() {}
