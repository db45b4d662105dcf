use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    y[0] = y[1].round();
}

fn main() {}
