use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(n: u32, y: &mut [f32]) {
    y[n] = 1.0;
}

fn main() {}
