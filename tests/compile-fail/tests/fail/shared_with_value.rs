use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    #[shared]
    let tile: [f32; 64] = [0.0; 64];
    y[0] = tile[0];
}

fn main() {}
