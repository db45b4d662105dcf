use vyre::kernel;

#[kernel(workgroup = 64)]
struct K;

fn main() {}
