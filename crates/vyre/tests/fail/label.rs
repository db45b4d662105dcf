use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [u32]) {
    'outer: loop {
        loop {
            y[0] += 1;
            break 'outer;
        }
    }
}

fn main() {}
