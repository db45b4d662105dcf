use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [u32]) {
    let x;
    if y[0] > 1 {
        x = 1;
    } else {
        x = 2;
    }
    y[0] = x;
}

fn main() {}
