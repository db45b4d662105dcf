use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(bins: &[vyre::Atomic<u32>]) {
    bins[0].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

fn main() {}
