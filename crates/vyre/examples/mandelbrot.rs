//! Mandelbrot set: escape times of z = z² + c as shades of grey, in `mandelbrot.png`.

use std::fs::File;
use std::io::BufWriter;

use vyre::{Device, kernel};

const WIDTH: usize = 1024;
const HEIGHT: usize = 1024;

/// Renders the square of side `span` around a centre; points still bounded after `TRIPS` steps are black.
#[kernel(workgroup = (16, 16))]
fn mandelbrot<const TRIPS: u32>(center_x: f32, center_y: f32, span: f32, image: &mut [u8]) {
    let px = global_id().x;
    let py = global_id().y;
    if px < WIDTH && py < HEIGHT {
        let cx = ((px as f32 + 0.5) / WIDTH as f32 - 0.5).mul_add(span, center_x);
        let cy = ((py as f32 + 0.5) / HEIGHT as f32 - 0.5).mul_add(span, center_y);
        let mut trips = 0;
        let mut x = 0.0f32;
        let mut y = 0.0f32;
        loop {
            let xx = x * x;
            let yy = y * y;
            if xx + yy > 4.0 || trips >= TRIPS {
                break;
            }
            y = (x * y).mul_add(2.0, cy);
            x = xx - yy + cx;
            trips += 1;
        }
        let light = (trips * 5).min(255);
        let shade = if trips >= TRIPS { 0 } else { light };
        image[py * WIDTH + px] = shade as u8;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::auto()?;
    let mut image = device.zeros(WIDTH * HEIGHT)?;
    mandelbrot::<256>(-0.75, 0.0, 2.5, &mut image).run(&device, [WIDTH, HEIGHT])?;
    let image = image.download()?;
    // 0 is in the set, the corners escape in one step, and the lower half is the upper one mirrored.
    assert_eq!([image[HEIGHT / 2 * WIDTH + WIDTH * 4 / 5], image[0]], [0, 5]);
    assert!(image.chunks(WIDTH).eq(image.chunks(WIDTH).rev()), "the image is not symmetric");

    let mut encoder = png::Encoder::new(BufWriter::new(File::create("mandelbrot.png")?), WIDTH as u32, HEIGHT as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header()?.write_image_data(&image)?;
    println!("wrote mandelbrot.png");
    Ok(())
}
