use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [u32]) {
    let x = loop {
        break 5;
    };
    y[0] = x;
}

fn main() {}
