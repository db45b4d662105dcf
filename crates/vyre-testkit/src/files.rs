//! File tests: `.vyre` files with expectations in comments.
//!
//! A line `//@ DIRECTIVE` is followed by its expected output in lines `//| …`:
//!
//! ```text
//! //@ run --elements 4 a=2 x=1,2,3,4 y=10,20,30,40
//! //| y = 12.0, 24.0, 36.0, 48.0
//! ```
//!
//! | directive | output |
//! |---|---|
//! | `diagnostics` | every error of the parser or the validator, with its excerpt |
//! | `print` | the module as `vyre print` shows it |
//! | `stats` | statistics of each program |
//! | `opt [--set NAME=VALUE] PIPELINE` | the module after the passes of a pipeline, after `all` passes, or after those selected by default |
//! | `bounds` | number of accesses to each object with and without bounds checks after all passes |
//! | `run ARGS` | prints, traps and the contents of every object the program may write |
//! | `sanitize ARGS` | findings of the sanitizers |
//!
//! The arguments of `run` and `sanitize` are those of `vyre run`: bindings `NAME=VALUE`, `--elements` or `--grid`,
//! `--set`, `--program`, and here also `--subgroup-size`, `--fuel` and `--trace`. A file without a `diagnostics`
//! directive must be valid. With `UPDATE=1` in the environment, the actual output is written into the file instead.

use std::borrow::Borrow;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use vyre_foundation::analysis::Ranges;
use vyre_foundation::diagnostics::{Diagnostic, Diagnostics, Fault};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Element, Literal, Module, Op, PerGroup, Program, SourceMap, Space};
use vyre_foundation::launch::{Grid, Limits, Outcome};
use vyre_foundation::run_line::{BadWord, RunLine};
use vyre_foundation::text::parse_literal;
use vyre_foundation::{Error, Validated, optimizer, text, validate};
use vyre_reference::Options;

use crate::{oracle, run};

/// Failure of a file test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file has unexpected errors; rendered with excerpts.
    #[error("{0}")]
    Invalid(String),
    /// The file is valid, but expects errors.
    #[error("the file is valid, but has a `diagnostics` directive")]
    Valid,
    /// Unknown directive.
    #[error("unknown directive `{0}`")]
    UnknownDirective(String),
    /// A directive failed.
    #[error("{directive}: {cause}")]
    Directive {
        /// The directive.
        directive: String,
        /// The cause.
        #[source]
        cause: Box<Failure>,
    },
    /// Invalid arguments of a directive.
    #[error(transparent)]
    Word(#[from] BadWord),
    /// The file has no program with this name.
    #[error("there is no such program")]
    NoProgram,
    /// The value of a constant is not a literal.
    #[error("{0}")]
    Literal(Fault),
    /// Invalid program, inputs or grid.
    #[error(transparent)]
    Foundation(#[from] Error),
    /// The device cannot run the dispatch.
    #[error(transparent)]
    Driver(#[from] vyre_driver::Error),
    /// The oracle cannot run the dispatch.
    #[error(transparent)]
    Oracle(#[from] vyre_reference::Error),
    /// The output differs from the expectation.
    #[error("the output differs at line {line} (UPDATE=1 accepts it):\n{lines}")]
    Differs {
        /// First line that differs.
        line: usize,
        /// Expected lines with `-` and actual ones with `+`.
        lines: String,
    },
}

/// Lists all `.vyre` files below a folder, sorted.
///
/// # Panics
/// The folder cannot be read.
pub fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a folder that can be listed").path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "vyre") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Tests one file, or updates it.
///
/// # Errors
/// [`Failure`]
pub fn check(path: &Path, update: bool) -> Result<(), Failure> {
    let source = std::fs::read_to_string(path)?;
    let actual = annotate(&source)?;
    if actual == source {
        return Ok(());
    }
    if update {
        return Ok(std::fs::write(path, actual)?);
    }
    Err(difference(&source, &actual))
}

/// Replaces the lines after each directive of a source by the actual output.
fn annotate(source: &str) -> Result<String, Failure> {
    let subject = Subject::new(source);
    let mut annotated = String::new();
    let mut expects_faults = false;
    for line in source.lines() {
        if line.trim_start().starts_with("//|") {
            continue;
        }
        let _ = writeln!(annotated, "{line}");
        let Some(directive) = line.strip_prefix("//@ ") else { continue };
        expects_faults |= directive == "diagnostics";
        for line in subject.answer(directive)?.lines() {
            let _ = writeln!(annotated, "{}", format!("//| {line}").trim_end());
        }
    }
    match &subject.read {
        Err(error) if !expects_faults => Err(Failure::Invalid(render(error, source))),
        Ok(_) if expects_faults => Err(Failure::Valid),
        _ => Ok(annotated),
    }
}

fn difference(expected: &str, actual: &str) -> Failure {
    let mut text = String::new();
    let (expected, actual): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    let same = expected.iter().zip(&actual).take_while(|(a, b)| a == b).count();
    let same_end = expected.iter().rev().zip(actual.iter().rev()).take_while(|(a, b)| a == b).count();
    let shown = |lines: &[&str], sign: char, text: &mut String| {
        let end = (lines.len() - same_end.min(lines.len() - same)).max(same);
        for line in lines[same..end].iter().take(40) {
            let _ = writeln!(text, "{sign} {line}");
        }
    };
    shown(&expected, '-', &mut text);
    shown(&actual, '+', &mut text);
    Failure::Differs { line: same + 1, lines: text }
}

fn render(error: &Error, source: &str) -> String {
    match error {
        Error::Text(diagnostics) | Error::Invalid(diagnostics) => {
            diagnostics.render(&SourceMap::of_text("test", source))
        }
        other => format!("error[{}]: {other}\n  = help: {}\n", other.code(), other.help()),
    }
}

/// A parsed and validated file.
struct Subject<'s> {
    source: &'s str,
    read: Result<Validated<Module>, Error>,
}

impl<'s> Subject<'s> {
    fn new(source: &'s str) -> Self {
        let read = text::parse(source).and_then(validate::module);
        Subject { source, read }
    }

    fn answer(&self, directive: &str) -> Result<String, Failure> {
        let failed = |cause| Failure::Directive { directive: directive.into(), cause: Box::new(cause) };
        let (verb, rest) = directive.split_once(' ').unwrap_or((directive, ""));
        match (verb, &self.read) {
            ("diagnostics", Err(error)) => Ok(render(error, self.source)),
            ("diagnostics", Ok(_)) => Ok(String::new()),
            (_, Err(error)) => Err(Failure::Invalid(render(error, self.source))),
            ("print", Ok(module)) => Ok(text::print(&**module)),
            ("stats", Ok(module)) => {
                let lines = module.programs.iter().map(|program| format!("{}: {:?}", program.name(), program.stats()));
                Ok(lines.collect::<Vec<_>>().join("\n"))
            }
            ("bounds", Ok(module)) => bounds(module).map_err(|error| failed(error.into())),
            ("opt", Ok(module)) => optimized(module, rest).map_err(|error| failed(error.into())),
            ("sanitize", Ok(module)) => {
                let found = Case::parse(&**module, rest).and_then(Case::sanitize).map_err(failed)?;
                Ok(Diagnostics::from_list(found)
                    .map(|found| found.render(&SourceMap::of_text("test", self.source)))
                    .unwrap_or_default())
            }
            ("run", Ok(module)) => Case::parse(&**module, rest).and_then(Case::describe).map_err(failed),
            _ => Err(Failure::UnknownDirective(directive.into())),
        }
    }
}

/// The module after the passes of a pipeline.
fn optimized(module: &Module<Validated<Program>>, pipeline: &str) -> Result<String, Error> {
    let mut programs = Vec::new();
    let (known, pipeline) = match pipeline.strip_prefix("--set ").and_then(|rest| rest.split_once(' ')) {
        Some((known, pipeline)) => (known.split_once('='), pipeline),
        None => (None, pipeline),
    };
    for program in &module.programs {
        let mut program = program.clone();
        if let Some((name, value)) = known {
            let text = Error::NotAValue { text: value.into(), element: Element::U32 };
            let mut specialized = program.into_inner();
            specialized.specialize(name, parse_literal(value).map_err(|_| text)?)?;
            program = validate::program(specialized)?;
        }
        let program = match pipeline {
            "" => optimizer::optimize(program, &optimizer::Request::default())?.program,
            text => {
                let pipeline = match text {
                    "all" => everything(),
                    text => optimizer::Pipeline::parse(text, optimizer::Registry::standard())?,
                };
                optimizer::run(program, &pipeline, &strict(), &mut |_| {})?.0
            }
        };
        programs.push(program);
    }
    Ok(text::print(&Module { programs, ..Module::default() }))
}

/// Fails if the passes do not reach a fixed point.
fn strict() -> optimizer::Options {
    optimizer::Options { strict: true, ..optimizer::Options::default() }
}

/// All passes, as for a hot program.
fn everything() -> optimizer::Pipeline {
    optimizer::Pipeline { passes: optimizer::Registry::standard().schedule_all(), to_fixed_point: true }
}

/// Number of accesses to each object proved in bounds after all passes.
fn bounds(module: &Module<Validated<Program>>) -> Result<String, Error> {
    let pipeline = everything();
    let mut text = String::new();
    for program in &module.programs {
        let (program, _) = optimizer::run(program.clone(), &pipeline, &strict(), &mut |_| {})?;
        let ranges = Ranges::of(&program);
        for (object, memory) in program.memories().iter().filter(|(_, memory)| memory.space != Space::Uniform) {
            let (mut inside, mut checked) = (0, 0);
            program.walk(|id, _| {
                let op = &program.inst(id).op;
                if op.memory() == Some(object) && !matches!(op, Op::PerGroup(PerGroup::Length(_))) {
                    *(if ranges.is_in_bounds(id) { &mut inside } else { &mut checked }) += 1;
                }
            });
            let _ = writeln!(text, "{}.{}: {inside} inside, {checked} checked", program.name(), memory.name);
        }
    }
    Ok(text)
}

/// A dispatch described by a `run` directive.
pub struct Case {
    /// The program, specialized and validated.
    pub program: Validated<Program>,
    /// The grid.
    pub grid: Grid,
    /// Bindings of its objects.
    pub inputs: Inputs,
    /// Fuel, deadline and trace capacity.
    pub limits: Limits,
    /// Subgroup size, if the expectation depends on it.
    pub subgroup_size: Option<u32>,
}

/// Cases of a file.
///
/// # Errors
/// The file cannot be read, or has unexpected errors.
pub fn cases(path: &Path) -> Result<Vec<Case>, Failure> {
    cases_in(&std::fs::read_to_string(path)?)
}

/// Cases in the text of a file.
pub(crate) fn cases_in(source: &str) -> Result<Vec<Case>, Failure> {
    let Ok(module) = text::parse(source) else { return Ok(Vec::new()) };
    RunLine::of_file(source).map(|arguments| Case::parse(&module, arguments)).collect()
}

impl Case {
    fn parse<P: Borrow<Program>>(module: &Module<P>, arguments: &str) -> Result<Case, Failure> {
        let line = RunLine::parse(arguments)?;
        let program = match &line.program {
            Some(name) => module.program(name),
            None => module.programs.first(),
        };
        let mut program: Program = program.ok_or(Failure::NoProgram)?.borrow().clone();
        for (name, value) in line.constants {
            let value = parse_literal(&value).map_err(Failure::Literal)?;
            program.specialize(&name, value)?;
        }
        let program = validate::program(program)?;
        let mut inputs = Inputs::default();
        for (name, value) in line.bindings {
            inputs.notation(&program, &name, &value)?;
        }
        inputs.complete(&program)?;
        let grid = line.grid.or(program.launch().map(Grid::Elements)).unwrap_or(Grid::Groups([1, 1, 1]));
        let usual = Limits::default();
        let trace_capacity = line.trace.map_or(usual.trace_capacity, |lines| lines as usize);
        let limits = Limits { fuel: line.fuel.unwrap_or(usual.fuel), trace_capacity, ..usual };
        Ok(Case { program, grid, inputs, limits, subgroup_size: line.subgroup_size })
    }

    /// Findings of the sanitizers.
    ///
    /// # Errors
    /// The inputs do not fit.
    pub fn sanitize(mut self) -> Result<Vec<Diagnostic>, Failure> {
        let groups = self.grid.groups(self.program.workgroup_size())?;
        let arguments = self.inputs.bind(&self.program)?;
        let options = Options { limits: self.limits, subgroup_size: self.subgroup_size.unwrap_or(16) };
        let (_, findings) =
            vyre_reference::sanitize(&self.program, groups, &arguments, &mut self.inputs.buffers, &options)?;
        Ok(findings)
    }

    /// Output of the oracle as text.
    fn describe(mut self) -> Result<String, Failure> {
        let oracle = oracle(self.subgroup_size.unwrap_or(16));
        let report = run(&oracle, &self.program, self.grid, &mut self.inputs, self.limits)?;
        let mut text = String::new();
        for line in &report.trace {
            let _ = writeln!(text, "{}: {}", line.invocation, line.text);
        }
        if report.dropped_lines > 0 {
            let _ = writeln!(text, "{} more lines", report.dropped_lines);
        }
        match report.outcome {
            Outcome::Completed => {}
            Outcome::Trapped { code, invocation, count, .. } => {
                let _ = writeln!(text, "trap {code} in invocation {invocation}, {count} in all");
            }
            Outcome::OutOfFuel { .. } => text += "out of fuel\n",
            Outcome::DeadlinePassed { .. } => text += "deadline passed\n",
        }
        text += &results(&self.program, &self.inputs);
        Ok(text)
    }
}

/// `y = 1.0, 2.0` for every storage object that the program may write.
fn results(program: &Validated<Program>, inputs: &Inputs) -> String {
    let mut text = String::new();
    for memory in program.memories().values() {
        if matches!(memory.space, Space::Storage(_)) && memory.writable() {
            let bytes = inputs.contents(&memory.name).unwrap_or_default();
            let _ = writeln!(text, "{} = {}", memory.name, elements(bytes, memory.element));
        }
    }
    text
}

/// The elements of a buffer as a list.
fn elements(bytes: &[u8], element: Element) -> String {
    let ty = element.value_type();
    let values = bytes.chunks_exact(element.size()).map(|bytes| Literal { ty, bits: element.read(bytes) }.plain());
    values.collect::<Vec<_>>().join(", ")
}
