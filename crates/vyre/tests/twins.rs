//! Kernels in Rust are the programs that their texts are, instruction by instruction, if they are written in the same order.

use vyre::ir::Program;
use vyre::kernel;
use vyre_foundation::text;

#[kernel(workgroup = 256)]
fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        let a = a;
        let x_i = x[i];
        let y_i = y[i];
        y[i] = a * x_i + y_i;
    }
}

#[kernel(workgroup = (16, 16))]
fn mandelbrot<const WIDTH: usize, const HEIGHT: usize, const MAX_TRIPS: u32>(
    center_x: f32,
    center_y: f32,
    span: f32,
    image: &mut [u8; 1_048_576],
) {
    let px = global_id().x;
    let py = global_id().y;
    if px < WIDTH && py < HEIGHT {
        let span = span;
        let center_x = center_x;
        let center_y = center_y;
        let fx = px as f32;
        let fy = py as f32;
        let width = WIDTH as f32;
        let height = HEIGHT as f32;
        let mx = fx + 0.5;
        let my = fy + 0.5;
        let rx = mx / width;
        let ry = my / height;
        let ox = rx - 0.5;
        let oy = ry - 0.5;
        let cx = ox.mul_add(span, center_x);
        let cy = oy.mul_add(span, center_y);
        let mut trips = 0;
        let mut x = 0.0f32;
        let mut y = 0.0f32;
        loop {
            let xx = x * x;
            let yy = y * y;
            if xx + yy > 4.0 || trips >= MAX_TRIPS {
                break;
            }
            let next_x = xx - yy + cx;
            y = (x * y).mul_add(2.0, cy);
            x = next_x;
            trips += 1;
        }
        let bounded = trips >= MAX_TRIPS;
        let light = (trips * 5).min(255);
        let shade = if bounded { 0 } else { light };
        image[py * WIDTH + px] = shade as u8;
    }
}

/// The program of a text, without what only texts can say: a grid, and defaults of uniforms.
fn twin(source: &str) -> Program {
    let mut program = text::parse(source).unwrap().programs.remove(0);
    program.launch = None;
    for id in program.memory.keys().collect::<Vec<_>>() {
        program.memory[id].default = None;
    }
    program
}

#[test]
fn kernels_are_the_programs_of_their_texts() {
    let text = twin(include_str!("../../../examples/kernels/saxpy.vyre"));
    assert_eq!(saxpy::program().unwrap(), text);
    let text = twin(include_str!("../../../examples/kernels/mandelbrot.vyre"));
    assert_eq!(mandelbrot::<1024, 1024, 256>::program().unwrap(), text);
}
