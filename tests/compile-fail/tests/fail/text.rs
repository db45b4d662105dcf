use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [u32]) {
    let c = 'a';
    y[0] = c as u32;
}

fn main() {}
