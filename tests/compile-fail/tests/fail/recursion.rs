use vyre::kernel;

#[kernel(inline)]
fn f(x: u32) -> u32 {
    if x > 1 { f(x - 1) } else { x + 1 }
}

fn main() {}
