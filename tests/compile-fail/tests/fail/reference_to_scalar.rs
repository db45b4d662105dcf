use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(a: &f32, y: &mut [f32]) {
    y[0] = *a;
}

fn main() {}
