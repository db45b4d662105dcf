//! Comparison of results with expected values and between devices.

use std::fmt;

use serde_json::{Value, json};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Element, Literal, Memory, Program, Pure, Type};
use vyre_foundation::run_line::count;

use crate::binding::bound;
use crate::error::Error;
use crate::outputs::{result, results};
use crate::stdout::counted;

/// Tolerances of comparisons. By default elements must have equal bits, except that all NaNs are equal.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Tolerance {
    /// Maximum absolute error
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = not_negative, help_heading = "Comparison")]
    atol: f64,
    /// Maximum error relative to the expected value; added to --atol
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = not_negative, help_heading = "Comparison")]
    rtol: f64,
    /// Maximum error in ULP; −0 and +0 are 1 ULP apart, and infinities are never within tolerance
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = count, help_heading = "Comparison")]
    ulp: u64,
}

pub(crate) fn not_negative(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(number) if number >= 0.0 => Ok(number),
        _ => Err("it is not a number ≥ 0"),
    }
}

impl Tolerance {
    /// Flags of this tolerance.
    pub(crate) fn flags(self) -> String {
        let flag = |name: &str, text: String| if text == "0" { String::new() } else { format!(" --{name} {text}") };
        flag("atol", self.atol.to_string()) + &flag("rtol", self.rtol.to_string()) + &flag("ulp", self.ulp.to_string())
    }

    fn equal(self, element: Element, found: u64, wanted: u64) -> bool {
        let ty = element.value_type();
        if found == wanted {
            return true;
        }
        let Some(as_f64) = Pure::Cast.info().evaluator(ty, Type::F64) else { return false };
        let number = |bits: u64| f64::from_bits(as_f64(&[bits]));
        let (x, y) = (number(found), number(wanted));
        let slack = self.atol + self.rtol * y.abs();
        if slack > 0.0 && x.is_finite() && y.is_finite() && (x - y).abs() <= slack {
            return true;
        }
        if !ty.is_float() || !x.is_finite() || !y.is_finite() {
            return x.is_nan() && y.is_nan();
        }
        // Floats of the same sign are ordered like their bits.
        let unused = if element == Element::BF16 { 16 } else { 0 };
        let (found, wanted) = (found >> unused, wanted >> unused);
        let sign = 1u64 << (ty.bits() - unused - 1);
        let steps = match found & sign == wanted & sign {
            true => found.abs_diff(wanted),
            false => (found & !sign).saturating_add(wanted & !sign).saturating_add(1),
        };
        steps <= self.ulp
    }

    /// Compares an object with its expected contents.
    fn of(self, memory: &Memory, found: &[u8], wanted: &[u8]) -> Option<Difference> {
        let size = memory.element.size();
        let elements = |bytes: &[u8]| (bytes.len() / size) as u64;
        let mut difference = Difference {
            name: memory.name.clone(),
            element: memory.element,
            length: elements(found),
            wanted_length: elements(wanted),
            count: 0,
            first: Vec::new(),
        };
        for (index, (found, wanted)) in found.chunks_exact(size).zip(wanted.chunks_exact(size)).enumerate() {
            let (found, wanted) = (memory.element.read(found), memory.element.read(wanted));
            if !self.equal(memory.element, found, wanted) {
                if difference.first.len() < SHOWN {
                    difference.first.push((index, found, wanted));
                }
                difference.count += 1;
            }
        }
        let differs = difference.count > 0 || difference.length != difference.wanted_length;
        differs.then_some(difference)
    }

    /// First difference between the results of two runs.
    pub(crate) fn between(self, program: &Program, found: &Inputs, wanted: &Inputs) -> Option<Difference> {
        results(program).find_map(|memory| {
            let (found, wanted) = (found.contents(&memory.name)?, wanted.contents(&memory.name)?);
            self.of(memory, found, wanted)
        })
    }
}

/// Expected results of `--expect`.
pub(crate) struct Expected(Vec<(Memory, Vec<u8>)>);

impl Expected {
    pub(crate) fn read(pairs: &[(String, String)], program: &Program) -> Result<Expected, Error> {
        let mut expected = Vec::new();
        for (at, pair) in pairs.iter().enumerate() {
            if pairs[..at].iter().any(|(name, _)| *name == pair.0) {
                return Err(vyre_foundation::Error::BoundTwice { name: pair.0.clone() }.into());
            }
            let memory = result(program, &pair.0)?;
            let given = bound(std::slice::from_ref(pair), program)?;
            expected.push((memory.clone(), given.contents(&pair.0).unwrap_or_default().to_vec()));
        }
        Ok(Expected(expected))
    }

    /// First difference from the expected results.
    pub(crate) fn first_difference(&self, results: &Inputs, tolerance: Tolerance) -> Option<Difference> {
        self.0.iter().find_map(|(memory, wanted)| {
            tolerance.of(memory, results.contents(&memory.name).unwrap_or_default(), wanted)
        })
    }
}

/// Maximum number of printed differences.
const SHOWN: usize = 8;

/// Difference between an object and its expected contents.
#[derive(Debug)]
pub(crate) struct Difference {
    name: String,
    element: Element,
    length: u64,
    wanted_length: u64,
    count: u64,
    /// Index, found bits and expected bits of the first differences.
    first: Vec<(usize, u64, u64)>,
}

impl Difference {
    /// Returns whether the lengths differ.
    pub(crate) fn is_of_length(&self) -> bool {
        self.length != self.wanted_length
    }

    fn plain(&self, bits: u64) -> String {
        Literal { ty: self.element.value_type(), bits }.plain()
    }

    /// Lines of the first differences.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let name = &self.name;
        let line = move |&(index, found, wanted): &(usize, u64, u64)| {
            format!("{name}[{index}] is {}, expected {}", self.plain(found), self.plain(wanted))
        };
        self.first.iter().map(line)
    }

    pub(crate) fn object(&self) -> Value {
        let one = |&(index, found, wanted): &(usize, u64, u64)| json!({ "index": index, "found": self.plain(found), "expected": self.plain(wanted) });
        let first: Vec<Value> = self.first.iter().map(one).collect();
        json!({ "name": self.name, "length": self.length, "count": self.count, "first": first })
    }
}

/// `3 of 8 elements of `y` differ`
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { name, length, wanted_length, count, .. } = self;
        if self.is_of_length() {
            return write!(f, "`{name}` has {} instead of {wanted_length}", counted(*length, "element"));
        }
        write!(f, "{count} of {length} elements of `{name}` differ")
    }
}
