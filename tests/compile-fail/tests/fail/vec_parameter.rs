use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(x: Vec<f32>, y: &mut [f32]) {
    y[0] = x[0];
}

fn main() {}
