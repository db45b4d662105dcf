use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(x: &[f32]) -> f32 {
    x[0]
}

fn main() {}
