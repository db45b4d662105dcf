//! Run lines: one dispatch of a program, with the arguments of `vyre run`.
//!
//! A line `//@ run --elements 4 a=2 x=1,2,3,4` of a `.vyre` file is a run line. File tests and `--replay` execute it, `vyre shrink` reduces
//! it, and generated programs and reproducers end with one.

use std::fmt;

use crate::launch::Grid;

/// A run line, or the equivalent arguments of `vyre run`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunLine {
    /// `--program`: name of the program.
    pub program: Option<String>,
    /// `--set`: constants and uniforms with their values.
    pub constants: Vec<(String, String)>,
    /// `--elements` or `--grid`.
    pub grid: Option<Grid>,
    /// `--fuel`.
    pub fuel: Option<u64>,
    /// `--subgroup-size`: lanes of a subgroup of the oracle.
    pub subgroup_size: Option<u32>,
    /// `--trace`: maximum number of printed lines.
    pub trace: Option<u32>,
    /// `NAME=VALUE`: objects with their contents.
    pub bindings: Vec<(String, String)>,
}

/// Error in a run line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadWord {
    /// A binding or constant without a name.
    #[error("the name or the `=` is missing")]
    Assignment,
    /// A grid of more than three dimensions.
    #[error("a grid has at most three dimensions")]
    Dimensions,
    /// A size that is not a number.
    #[error("`{0}` is not a size: sizes are integers below 2^32")]
    Size(String),
    /// A count that is not a number.
    #[error("it is not an integer from 0 to 2^64 - 1")]
    Count,
    /// A subgroup size that is not a number.
    #[error("it is not a number")]
    Number,
    /// A subgroup size that the oracle does not support.
    #[error("it is not a power of two from 1 to 128")]
    SubgroupSize,
    /// A flag without a value.
    #[error("the value is missing")]
    NoValue,
    /// An unknown flag.
    #[error("unknown flag")]
    NoFlag,
    /// `--elements` and `--grid`, or one of them twice.
    #[error("the grid is specified twice")]
    TwoGrids,
    /// A word of the line with its error.
    #[error("`{0}`: {1}")]
    Word(String, Box<BadWord>),
}

impl RunLine {
    /// The arguments of each run line of a file.
    pub fn of_file(text: &str) -> impl Iterator<Item = &str> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("//@ run"));
        lines.filter(|arguments| arguments.is_empty() || arguments.starts_with(' '))
    }

    /// Reads the arguments of a run line.
    ///
    /// # Errors
    /// [`BadWord::Word`]
    pub fn parse(arguments: &str) -> Result<RunLine, BadWord> {
        let mut line = RunLine::default();
        let mut words = arguments.split_whitespace();
        while let Some(word) = words.next() {
            line.add(word, &mut words).map_err(|fault| BadWord::Word(word.into(), Box::new(fault)))?;
        }
        Ok(line)
    }

    fn add<'w>(&mut self, word: &'w str, more: &mut impl Iterator<Item = &'w str>) -> Result<(), BadWord> {
        if !word.starts_with("--") {
            self.bindings.push(assignment(word)?);
            return Ok(());
        }
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, more.next()),
        };
        let value = value.ok_or(BadWord::NoValue)?;
        match flag {
            "--program" => self.program = Some(value.into()),
            "--set" => self.constants.push(assignment(value)?),
            "--elements" | "--grid" if self.grid.is_some() => return Err(BadWord::TwoGrids),
            "--elements" => self.grid = Some(Grid::Elements(sizes(value)?)),
            "--grid" => self.grid = Some(Grid::Groups(sizes(value)?)),
            "--fuel" => self.fuel = Some(count(value)?),
            "--subgroup-size" => self.subgroup_size = Some(subgroup_size(value)?),
            "--trace" => self.trace = Some(value.parse().map_err(|_| BadWord::Count)?),
            _ => return Err(BadWord::NoFlag),
        }
        Ok(())
    }
}

impl fmt::Display for RunLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("//@ run")?;
        if let Some(program) = &self.program {
            write!(f, " --program {program}")?;
        }
        self.constants.iter().try_for_each(|(name, value)| write!(f, " --set {name}={value}"))?;
        let grid = self.grid;
        let (flag, sizes) = match grid {
            None => ("", &[][..]),
            Some(Grid::Elements(ref sizes)) => (" --elements ", &sizes[..]),
            Some(Grid::Groups(ref sizes)) => (" --grid ", &sizes[..]),
        };
        f.write_str(flag)?;
        // Omitted sizes are 1.
        let last = sizes.iter().rposition(|size| *size != 1).unwrap_or(0);
        for (axis, size) in sizes.iter().enumerate().take(last + 1) {
            write!(f, "{}{size}", if axis > 0 { "," } else { "" })?;
        }
        if let Some(fuel) = self.fuel {
            write!(f, " --fuel {fuel}")?;
        }
        if let Some(lanes) = self.subgroup_size {
            write!(f, " --subgroup-size {lanes}")?;
        }
        if let Some(lines) = self.trace {
            write!(f, " --trace {lines}")?;
        }
        self.bindings.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// Reads `NAME=VALUE`.
///
/// # Errors
/// [`BadWord::Assignment`]
pub fn assignment(text: &str) -> Result<(String, String), BadWord> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err(BadWord::Assignment),
    }
}

/// Reads `X[,Y[,Z]]`.
///
/// # Errors
/// [`BadWord::Dimensions`], [`BadWord::Size`]
pub fn sizes(text: &str) -> Result<[u32; 3], BadWord> {
    let mut sizes = [1; 3];
    for (axis, part) in text.split(',').enumerate() {
        let size = sizes.get_mut(axis).ok_or(BadWord::Dimensions)?;
        *size = part.trim().parse().map_err(|_| BadWord::Size(part.into()))?;
    }
    Ok(sizes)
}

/// Reads a 64-bit count.
///
/// # Errors
/// [`BadWord::Count`]
pub fn count(text: &str) -> Result<u64, BadWord> {
    text.parse().map_err(|_| BadWord::Count)
}

/// Reads a subgroup size of the oracle.
///
/// # Errors
/// [`BadWord::Number`], [`BadWord::SubgroupSize`]
pub fn subgroup_size(text: &str) -> Result<u32, BadWord> {
    let size: u32 = text.parse().map_err(|_| BadWord::Number)?;
    if size.is_power_of_two() && size <= 128 { Ok(size) } else { Err(BadWord::SubgroupSize) }
}
