use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    let a = 1.0;
    a = 2.0;
    y[0] = a;
}

fn main() {}
