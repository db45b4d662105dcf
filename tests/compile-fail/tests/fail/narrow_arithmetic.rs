use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(x: &mut [u8]) {
    x[0] += 1;
}

fn main() {}
