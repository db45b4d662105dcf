use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(x: u32) {
    print!("{x}");
}

fn main() {}
