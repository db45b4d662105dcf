//! Diagnostics: errors and warnings with source locations, of the parser, the validator and the sanitizers.
//!
//! A [`Fault`] is a row of the fault table with a stable code, typed data, a message, a help line and, unless text cannot express it, an
//! example. `P` codes are from the parser, `V` codes from the validator, `S` codes from the sanitizers of the oracle.

mod faults;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use codespan_reporting::diagnostic::{Diagnostic as Report, Label as ReportLabel};
use codespan_reporting::files::{self, Files, SimpleFile};
use codespan_reporting::term;

pub use faults::{FAULTS, Fault, FaultInfo, Malformation};

use crate::ir::{SourceMap, Span};

/// A fault with its location.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// The fault.
    pub fault: Fault,
    /// Location of the fault.
    pub span: Span,
    /// Related locations.
    pub labels: Vec<Label>,
}

/// A related location with its explanation.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// The location.
    pub span: Span,
    /// The explanation.
    pub text: String,
}

impl Diagnostic {
    /// Makes a diagnostic without labels.
    pub fn new(fault: Fault, span: Span) -> Diagnostic {
        Diagnostic { fault, span, labels: Vec::new() }
    }

    /// Adds a label.
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

/// Maximum number of diagnostics for one text or module. It bounds the memory that invalid input takes.
pub const LIMIT: usize = 100;

/// Collector of diagnostics, which keeps the first [`LIMIT`].
#[derive(Default)]
pub(crate) struct DiagnosticSink(Vec<Diagnostic>);

impl DiagnosticSink {
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        if !self.is_full() {
            self.0.push(diagnostic);
        }
    }

    pub(crate) fn append(&mut self, others: DiagnosticSink) {
        self.0.extend(others.0);
        self.0.truncate(LIMIT);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if further diagnostics would be dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= LIMIT
    }

    /// The first fault.
    pub(crate) fn first(self) -> Option<Fault> {
        self.0.into_iter().next().map(|diagnostic| diagnostic.fault)
    }

    pub(crate) fn into_diagnostics(self) -> Option<Diagnostics> {
        Diagnostics::from_list(self.0)
    }
}

/// The diagnostics of a text or program, in source order. There is at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// Sorts a list by location; `None` if it is empty.
    pub fn from_list(mut list: Vec<Diagnostic>) -> Option<Diagnostics> {
        list.sort_by_key(|diagnostic| diagnostic.span.start);
        (!list.is_empty()).then_some(Diagnostics(list))
    }

    /// The diagnostics.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// Code of the first diagnostic.
    pub fn first_code(&self) -> &'static str {
        self.0[0].fault.code()
    }

    /// Formats every diagnostic with a source excerpt, carets and a help line. `sources` are those of the program or the parsed text.
    pub fn render(&self, sources: &SourceMap) -> String {
        let config = term::Config { chars: term::Chars::ascii(), ..term::Config::default() };
        let (mut text, mut excerpts) = (String::new(), Excerpts(Vec::new()));
        for diagnostic in self.iter() {
            let report = diagnostic.report(sources, &mut excerpts);
            // Without an excerpt if the span is out of range of the source.
            if term::emit_to_string(&mut text, &config, &excerpts, &report).is_err() {
                text += &format!("{diagnostic}\n  = {}\n", diagnostic.fault.help());
            }
        }
        text
    }
}

impl Diagnostic {
    fn report<'s>(&self, sources: &'s SourceMap, excerpts: &mut Excerpts<'s>) -> Report<usize> {
        let (mut labels, mut notes) = (Vec::new(), Vec::new());
        if let Some((excerpt, range)) = excerpts.add(sources, self.span) {
            labels.push(ReportLabel::primary(excerpt, range));
        } else if let Some(loc) = sources.locate(self.span) {
            notes.push(format!("at {loc}"));
        }
        for label in &self.labels {
            if let Some((excerpt, range)) = excerpts.add(sources, label.span) {
                labels.push(ReportLabel::secondary(excerpt, range).with_message(&label.text));
            } else if let Some(loc) = sources.locate(label.span) {
                notes.push(format!("{}, at {loc}", label.text));
            }
        }
        notes.push(format!("help: {}", self.fault.help()));
        let report = if self.fault.is_warning() { Report::warning() } else { Report::error() };
        report.with_code(self.fault.code()).with_message(self.fault.to_string()).with_labels(labels).with_notes(notes)
    }
}

/// Texts that labels point into: whole files if known, otherwise single lines.
struct Excerpts<'s>(Vec<Excerpt<'s>>);

struct Excerpt<'s> {
    file: SimpleFile<Cow<'s, str>, Cow<'s, str>>,
    /// Number of the first line.
    first: usize,
}

impl<'s> Excerpts<'s> {
    /// Finds or adds the text of a span. Returns its position and the bytes of the span.
    fn add(&mut self, sources: &'s SourceMap, span: Span) -> Option<(usize, Range<usize>)> {
        let (name, text, first, range): (Cow<'s, str>, Cow<'s, str>, _, _) = match sources.text(span) {
            Some((name, text, range)) => (name.into(), text.into(), 1, range),
            None => {
                let loc = sources.locate(span)?;
                let text = loc.text()?;
                let byte = |column: u32| text.char_indices().nth(column as usize).map_or(text.len(), |(byte, _)| byte);
                let column = loc.column().saturating_sub(1);
                let range = byte(column)..byte(column.saturating_add(loc.width()));
                (Cow::Owned(loc.file().to_owned()), Cow::Owned(text.to_owned()), loc.line() as usize, range)
            }
        };
        let same = |known: &Excerpt<'_>| {
            let (file, source) = (known.file.name(), known.file.source());
            (known.first, file) == (first, &name) && (std::ptr::eq(&**source, &*text) || *source == text)
        };
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push(Excerpt { file: SimpleFile::new(name, text), first });
            self.0.len() - 1
        });
        Some((at, range))
    }

    fn get(&self, id: usize) -> Result<&Excerpt<'s>, files::Error> {
        self.0.get(id).ok_or(files::Error::FileMissing)
    }
}

impl<'f> Files<'f> for Excerpts<'_> {
    type FileId = usize;
    type Name = &'f str;
    type Source = &'f str;

    fn name(&'f self, id: usize) -> Result<&'f str, files::Error> {
        Ok(self.get(id)?.file.name())
    }

    fn source(&'f self, id: usize) -> Result<&'f str, files::Error> {
        Ok(self.get(id)?.file.source())
    }

    fn line_index(&'f self, id: usize, byte: usize) -> Result<usize, files::Error> {
        self.get(id)?.file.line_index((), byte)
    }

    fn line_number(&'f self, id: usize, line: usize) -> Result<usize, files::Error> {
        Ok(self.get(id)?.first + line)
    }

    fn line_range(&'f self, id: usize, line: usize) -> Result<Range<usize>, files::Error> {
        self.get(id)?.file.line_range((), line)
    }
}

impl std::error::Error for Diagnostics {}

/// Formats one message per line, without excerpts.
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
