//! Errors with a place in the source: what the parser and the validator report.
//!
//! The mistakes themselves are rows of the [fault table](Fault): each has a stable code, typed data, a message, a help line
//! and, where a text can have it, an example. `P` codes come from reading text, `V` codes from validation, and `S` codes from the
//! sanitizers of the oracle.

mod faults;

use std::fmt;

use codespan_reporting::diagnostic::{Diagnostic as Report, Label as ReportLabel};
use codespan_reporting::files::SimpleFile;
use codespan_reporting::term;

pub use faults::{FAULTS, Fault, FaultInfo, Malformation};

use crate::ir::Span;

/// One mistake and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// What is wrong.
    pub fault: Fault,
    /// Where.
    pub span: Span,
    /// Other places that explain it.
    pub labels: Vec<Label>,
}

/// A place that explains a mistake, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// The place.
    pub span: Span,
    /// What to see there.
    pub text: String,
}

impl Diagnostic {
    /// A mistake at a place.
    pub fn new(fault: Fault, span: Span) -> Diagnostic {
        Diagnostic { fault, span, labels: Vec::new() }
    }

    /// Points at another place.
    #[must_use]
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Diagnostic {
        self.labels.push(Label { span, text: text.into() });
        self
    }
}

/// `error[V005]: message`, without an excerpt.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if self.fault.is_warning() { "warning" } else { "error" };
        write!(f, "{severity}[{}]: {}", self.fault.code(), self.fault)
    }
}

/// How many mistakes of one text or module are reported. Nobody reads more, and a file that consists of mistakes must not
/// take more memory than one that has none.
pub const LIMIT: usize = 100;

/// Mistakes while they are looked for: the first [`LIMIT`] of them.
#[derive(Default)]
pub(crate) struct Found(Vec<Diagnostic>);

impl Found {
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        if !self.is_full() {
            self.0.push(diagnostic);
        }
    }

    pub(crate) fn append(&mut self, others: Found) {
        self.0.extend(others.0);
        self.0.truncate(LIMIT);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether looking for more is in vain.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= LIMIT
    }

    /// The fault that was found first.
    pub(crate) fn first(self) -> Option<Fault> {
        self.0.into_iter().next().map(|diagnostic| diagnostic.fault)
    }

    pub(crate) fn into_diagnostics(self) -> Option<Diagnostics> {
        Diagnostics::from_list(self.0)
    }
}

/// The mistakes of one text or program, in the order of the source. There is at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// The list, if it has anything in it.
    pub fn from_list(mut list: Vec<Diagnostic>) -> Option<Diagnostics> {
        list.sort_by_key(|diagnostic| diagnostic.span.start);
        (!list.is_empty()).then_some(Diagnostics(list))
    }

    /// Each mistake.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// The code of the first mistake.
    pub fn first_code(&self) -> &'static str {
        self.0[0].fault.code()
    }

    /// Every mistake with an excerpt of the source, carets and a help line.
    pub fn render(&self, file_name: &str, source: &str) -> String {
        let file = SimpleFile::new(file_name, source);
        let config = term::Config { chars: term::Chars::ascii(), ..term::Config::default() };
        let mut text = String::new();
        for diagnostic in self.iter() {
            let report = diagnostic.report(source);
            // A span that does not fit the source is no reason to hide the message.
            if term::emit_to_string(&mut text, &config, &file, &report).is_err() {
                text += &format!("{diagnostic}\n  = {}\n", diagnostic.fault.help());
            }
        }
        text
    }
}

impl Diagnostic {
    fn report(&self, source: &str) -> Report<()> {
        let primary = (self.span != Span::NONE).then(|| ReportLabel::primary((), range(self.span, source)));
        let others = self.labels.iter().filter(|label| label.span != Span::NONE);
        let others =
            others.map(|label| ReportLabel::secondary((), range(label.span, source)).with_message(&label.text));
        let report = if self.fault.is_warning() { Report::warning() } else { Report::error() };
        report
            .with_code(self.fault.code())
            .with_message(self.fault.to_string())
            .with_labels(primary.into_iter().chain(others).collect())
            .with_notes(vec![format!("help: {}", self.fault.help())])
    }
}

fn range(span: Span, source: &str) -> std::ops::Range<usize> {
    let end = source.len();
    (span.start as usize).min(end)..(span.end as usize).min(end)
}

impl std::error::Error for Diagnostics {}

/// The messages, one a line, without excerpts.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, diagnostic) in self.0.iter().enumerate() {
            if position > 0 {
                writeln!(f)?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}
