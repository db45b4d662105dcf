use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [u32]) {
    if let 3 = y[0] {
        y[0] = 1;
    }
}

fn main() {}
