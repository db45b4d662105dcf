use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    let f = |x: f32| x + 1.0;
    y[0] = f(1.0);
}

fn main() {}
