use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(bins: &mut [vyre::Atomic<u32>]) {
    bins[0].fetch_add(1);
}

fn main() {}
