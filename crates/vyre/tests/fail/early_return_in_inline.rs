use vyre::kernel;

#[kernel(inline)]
fn f(x: f32) -> f32 {
    if x > 1.0 {
        return 1.0;
    }
    x
}

fn main() {}
