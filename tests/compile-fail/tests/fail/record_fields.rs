#[derive(Clone, Copy, vyre::Record)]
struct Flagged {
    x: f32,
    seen: bool,
}

#[derive(Clone, Copy, vyre::Record)]
struct Mixed {
    x: f32,
    exact: [f64; 2],
}

#[derive(Clone, Copy, vyre::Record)]
struct Generic<T> {
    x: T,
}

#[derive(Clone, Copy, vyre::Record)]
struct Empty {}

#[derive(Clone, Copy, vyre::Record)]
enum Choice {
    A,
}

fn main() {}
