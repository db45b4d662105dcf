use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    for i in 0..=7 {
        y[i] = 1.0;
    }
}

fn main() {}
