use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    let id = global_id();
    y[id.x] = 1.0;
}

fn main() {}
