use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(x: &mut [u8]) {
    let v = x[0];
    x[1] = v;
}

fn main() {}
