use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(x: &mut [vyre::bf16]) {
    let v = x[0];
    x[1] = v;
    x[2] += v;
}

fn main() {}
