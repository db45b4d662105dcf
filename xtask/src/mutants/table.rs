//! Parser of the mutants in `tests/mutants/*.mutants`. Each file is an area of vyre: the tests that must detect its mutants,
//! and the mutants as hunks of a diff.
//!
//! ```text
//! # Comment.
//!
//! requires gpu
//! test vyre-wgpu device
//! test vyre-wgpu conformance file_tests
//!
//! mutant GpuSelect
//! The operands of `select` are swapped.
//! in crates/vyre-wgpu/src/lower/arith.rs
//! +            Op::Pure(Pure::Select) if active("GpuSelect") => self.select(a, operands[2], b),
//!              Op::Pure(Pure::Select) => self.select(a, b, operands[2]),
//! ```
//!
//! `test` names a package, a test target and optionally one test of it; the tests are run in this order. `requires` is `gpu` or an
//! architecture of Rust's `target_arch`. A mutant has a name, one sentence, and a hunk for each place that it changes. Lines of a hunk
//! start with ` ` (kept), `-` (removed) or `+` (added); an empty line ends the hunk. The added lines ask `active("NAME")` whether the
//! mutant is selected.

use std::fmt;

/// Mutants of one part of vyre.
#[derive(Debug)]
pub(super) struct Area {
    /// Name of the file, without its extension.
    pub(super) name: String,
    /// Conditions without which no mutant of the area is run.
    pub(super) requirements: Vec<Requirement>,
    /// Tests that must detect the mutants, in the order in which they are run.
    pub(super) checks: Vec<Check>,
    pub(super) mutants: Vec<Mutant>,
}

/// Condition on the machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Requirement {
    Gpu,
    /// A value of `target_arch`.
    Architecture(String),
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requirement::Gpu => f.write_str("gpu"),
            Requirement::Architecture(name) => f.write_str(name),
        }
    }
}

/// Tests of a package: all of a test target, or one of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Check {
    pub(super) package: String,
    pub(super) target: String,
    pub(super) test: Option<String>,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.target)?;
        self.test.as_ref().map_or(Ok(()), |test| write!(f, "::{test}"))
    }
}

/// Bug that is inserted into a copy of the source.
#[derive(Debug)]
pub(super) struct Mutant {
    pub(super) name: String,
    /// One sentence: the wrong behaviour.
    pub(super) summary: String,
    pub(super) hunks: Vec<Hunk>,
}

/// Lines of a file, before and after.
#[derive(Debug)]
pub(super) struct Hunk {
    /// Path of the file, relative to the root.
    pub(super) file: String,
    pub(super) lines: Vec<(Mark, String)>,
}

/// First character of a line of a hunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Kept,
    Removed,
    Added,
}

/// Parses the file of an area. An error names the line.
pub(super) fn parse(name: &str, text: &str) -> Result<Area, String> {
    let mut area = Area { name: name.into(), requirements: Vec::new(), checks: Vec::new(), mutants: Vec::new() };
    let mut in_hunk = false;
    for (index, line) in text.lines().enumerate() {
        let hunk_line = in_hunk.then(|| marked(line)).flatten();
        in_hunk = match hunk_line {
            Some((mark, content)) => {
                let hunk = area.mutants.last_mut().and_then(|mutant| mutant.hunks.last_mut());
                hunk.expect("a hunk is open").lines.push((mark, content.into()));
                true
            }
            None => directive(&mut area, line).map_err(|error| format!("{name}.mutants:{}: {error}", index + 1))?,
        };
    }
    if area.checks.is_empty() {
        return Err(format!("{name}.mutants: there is no line `test PACKAGE TARGET`"));
    }
    area.mutants.iter().try_for_each(complete).map_err(|error| format!("{name}.mutants: {error}"))?;
    Ok(area)
}

fn marked(line: &str) -> Option<(Mark, &str)> {
    let (mark, content) = line.split_at_checked(1)?;
    let mark = match mark {
        " " => Mark::Kept,
        "-" => Mark::Removed,
        "+" => Mark::Added,
        _ => return None,
    };
    Some((mark, content))
}

/// Parses a line outside of hunks. Returns true if it opens one.
fn directive(area: &mut Area, line: &str) -> Result<bool, String> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(false);
    }
    let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
    match (keyword, area.mutants.last_mut()) {
        ("requires", None) => area.requirements.push(match rest {
            "gpu" => Requirement::Gpu,
            architecture => Requirement::Architecture(architecture.into()),
        }),
        ("test", None) => {
            let mut words = rest.split(' ').map(String::from);
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some(package), Some(target), test, None) => area.checks.push(Check { package, target, test }),
                _ => return Err("expected `test PACKAGE TARGET`, or `test PACKAGE TARGET TEST`".into()),
            }
        }
        ("mutant", _) => {
            if rest.is_empty() || !rest.chars().all(|c| c.is_ascii_alphanumeric()) {
                return Err(format!("`{rest}` is not a name of letters and digits"));
            }
            area.mutants.push(Mutant { name: rest.into(), summary: String::new(), hunks: Vec::new() });
        }
        ("in", Some(mutant)) if !mutant.summary.is_empty() => {
            mutant.hunks.push(Hunk { file: rest.into(), lines: Vec::new() });
            return Ok(true);
        }
        (_, Some(mutant)) if mutant.summary.is_empty() => mutant.summary = line.into(),
        _ => return Err(format!("`{line}` is not expected here")),
    }
    Ok(false)
}

/// Checks that a mutant changes something, and only while it is selected.
fn complete(mutant: &Mutant) -> Result<(), String> {
    let name = &mutant.name;
    if mutant.hunks.is_empty() {
        return Err(format!("mutant `{name}` has no line `in FILE`"));
    }
    let mut guarded = false;
    for hunk in &mutant.hunks {
        let unchanged = hunk.lines.iter().all(|(mark, _)| *mark == Mark::Kept);
        if unchanged {
            return Err(format!("mutant `{name}` has a hunk without `-` and `+` lines"));
        }
        let added = hunk.lines.iter().filter(|(mark, _)| *mark == Mark::Added);
        for asked in added.flat_map(|(_, content)| content.split("active(\"").skip(1)) {
            match asked.split_once("\")") {
                Some((asked, _)) if asked == name => guarded = true,
                _ => return Err(format!("mutant `{name}` asks for another one; its guard is `active(\"{name}\")`")),
            }
        }
    }
    if !guarded {
        return Err(format!("mutant `{name}` does not ask `active(\"{name}\")`: it would always be there"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: &str = "\
# Arithmetic.

requires gpu
requires x86_64
test vyre-cpu conformance portable::operations
test vyre-foundation op_vectors

mutant Sum
Sums are differences.
in crates/a/src/lib.rs
 fn sum(a: u32, b: u32) -> u32 {
-    a + b
+    if active(\"Sum\") { a - b } else { a + b }

in crates/b/src/lib.rs
+

mutant Product
Products are sums.
in crates/a/src/lib.rs
+    if active(\"Product\") { return a + b; }
     a * b
";

    #[test]
    fn areas_have_requirements_checks_and_mutants() {
        let area = parse("arithmetic", AREA).unwrap();
        assert_eq!(area.requirements, [Requirement::Gpu, Requirement::Architecture("x86_64".into())]);
        let checks: Vec<String> = area.checks.iter().map(Check::to_string).collect();
        assert_eq!(checks, ["vyre-cpu conformance::portable::operations", "vyre-foundation op_vectors"]);
        let [sum, product] = &area.mutants[..] else { panic!("{area:?}") };
        assert_eq!((sum.name.as_str(), sum.summary.as_str()), ("Sum", "Sums are differences."));
        assert_eq!(sum.hunks.len(), 2);
        assert_eq!(sum.hunks[0].lines[1], (Mark::Removed, "    a + b".into()));
        assert_eq!(sum.hunks[1].lines, [(Mark::Added, String::new())]);
        assert_eq!(product.hunks[0].lines[1], (Mark::Kept, "    a * b".into()));
    }

    #[track_caller]
    fn rejects(text: &str, expected: &str) {
        assert_eq!(parse("x", text).unwrap_err(), expected);
    }

    #[test]
    fn errors_are_located() {
        rejects("test vyre-cpu\n", "x.mutants:1: expected `test PACKAGE TARGET`, or `test PACKAGE TARGET TEST`");
        rejects("test a b\nhello\n", "x.mutants:2: `hello` is not expected here");
        rejects("test a b\nmutant A B\n", "x.mutants:2: `A B` is not a name of letters and digits");
        rejects("mutant A\nWrong.\nin a.rs\n+active(\"A\")\n", "x.mutants: there is no line `test PACKAGE TARGET`");
        rejects("test a b\nmutant A\nWrong.\n", "x.mutants: mutant `A` has no line `in FILE`");
        rejects(
            "test a b\nmutant A\nWrong.\nin a.rs\n kept\n",
            "x.mutants: mutant `A` has a hunk without `-` and `+` lines",
        );
    }

    #[test]
    fn mutants_check_only_their_own_name() {
        rejects(
            "test a b\nmutant A\nWrong.\nin a.rs\n-x\n+y\n",
            "x.mutants: mutant `A` does not ask `active(\"A\")`: it would always be there",
        );
        rejects(
            "test a b\nmutant A\nWrong.\nin a.rs\n+active(\"A\") active(\"B\")\n",
            "x.mutants: mutant `A` asks for another one; its guard is `active(\"A\")`",
        );
    }
}
