use vyre::kernel;

#[kernel(workgroup = 64)]
fn k(y: &mut [f32]) {
    for i in 0..3 {
        break y[i];
    }
    y[0] = while y[0] > 1.0 {};
    'part: {
        break 'part;
    }
}

fn main() {}
