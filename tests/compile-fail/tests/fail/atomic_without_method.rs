use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(bins: &[vyre::Atomic<u32>]) {
    bins[0] += 1;
}

fn main() {}
