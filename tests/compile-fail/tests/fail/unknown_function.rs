use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    y[0] = halve(y[1]);
}

fn main() {}
