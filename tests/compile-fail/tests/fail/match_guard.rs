use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [u32]) {
    match y[0] {
        0 if y[1] > 3 => y[0] = 1,
        _ => y[0] = 2,
    }
}

fn main() {}
