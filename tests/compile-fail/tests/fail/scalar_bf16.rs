use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(x: &mut [f32], scale: vyre::bf16) {
    x[0] = 1.0;
}

fn main() {}
