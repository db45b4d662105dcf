//! Conway's game of life on a torus, animated in a terminal. If the output is not a terminal, only the last generation is printed.

use std::io::{IsTerminal as _, Write as _, stdout};
use std::time::Duration;

use vyre::{Device, kernel};

const WIDTH: usize = 160;
const HEIGHT: usize = 88;
const GENERATIONS: usize = 400;

/// Counts the living cells of the 3 × 3 neighbourhood, including the cell itself: with three, the cell is alive in the next generation;
/// with four, it keeps its state; otherwise, it is dead.
#[kernel(workgroup = (16, 8))]
fn step(cells: &[u8], next: &mut [u8]) {
    let x = global_id().x;
    let y = global_id().y;
    if x < WIDTH && y < HEIGHT {
        let mut alive = 0;
        for dy in 0..3 {
            for dx in 0..3 {
                let (row, column) = ((y + dy + HEIGHT - 1) % HEIGHT, (x + dx + WIDTH - 1) % WIDTH);
                alive += cells[row * WIDTH + column] as u32;
            }
        }
        let cell = cells[y * WIDTH + x] as u32;
        let lives = match alive {
            3 => 1,
            4 => cell,
            _ => 0,
        };
        next[y * WIDTH + x] = lives as u8;
    }
}

/// Renders 2 × 4 cells per braille character.
fn picture(cells: &[u8]) -> String {
    const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    let mut picture = String::new();
    for top in (0..HEIGHT).step_by(4) {
        for left in (0..WIDTH).step_by(2) {
            let mut dots = 0;
            for (dy, row) in DOTS.iter().enumerate() {
                for (dx, dot) in row.iter().enumerate() {
                    dots |= dot * u32::from(cells[(top + dy) * WIDTH + left + dx]);
                }
            }
            picture.extend(char::from_u32(0x2800 + dots));
        }
        picture.push('\n');
    }
    picture
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Each cell is alive with probability 1/4.
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u8::from(state >> 30 == 0)
    };
    let soup: Vec<u8> = (0..WIDTH * HEIGHT).map(|_| random()).collect();

    let device = Device::auto()?;
    let (mut cells, mut next) = (device.upload(&soup)?, device.zeros(soup.len())?);
    let (mut out, animated) = (stdout(), stdout().is_terminal());
    if animated {
        write!(out, "\x1b[2J")?;
    }
    for generation in 1..=GENERATIONS {
        step(&cells, &mut next).run(&device, [WIDTH, HEIGHT])?;
        std::mem::swap(&mut cells, &mut next);
        if generation == 1 {
            let mut expected = vec![0; soup.len()];
            step::host([WIDTH, HEIGHT], &soup, &mut expected);
            assert_eq!(cells.download()?, expected);
        }
        if animated {
            // Moves the cursor home, so that the picture overwrites the previous one.
            write!(out, "\x1b[H{}generation {generation}", picture(&cells.download()?))?;
            out.flush()?;
            std::thread::sleep(Duration::from_millis(15));
        }
    }
    if !animated {
        write!(out, "{}generation {GENERATIONS}", picture(&cells.download()?))?;
    }
    writeln!(out)?;
    Ok(())
}
