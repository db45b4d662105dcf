use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    if y[0] > 1.0 {
        #[shared]
        let tile: [f32; 64];
        y[0] = tile[0];
    }
}

fn main() {}
