use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    let p = (1.0, 2.0);
    y[0] = p.0;
}

fn main() {}
