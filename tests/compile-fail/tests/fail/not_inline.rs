use vyre::kernel;

fn halve(x: f32) -> f32 {
    x / 2.0
}

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    y[0] = halve(y[1]);
}

fn main() {}
