//! `.vyre` and `.vyreb` files: reading them, and finding the place that a span means.

use std::io::Read as _;
use std::path::Path;

use vyre_foundation::ir::{Module, Program, Span};
use vyre_foundation::{Validated, text, validate, wire};

use crate::error::{Error, Faults};

/// Far more than anybody writes, and little enough to keep in memory several times over.
const MAX_BYTES: u64 = 64 << 20;

/// The text of a file.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The name, as it was given.
    pub(crate) file: String,
    pub(crate) text: String,
    /// Whether it is a .vyreb file, and the text what that says.
    pub(crate) wire: bool,
}

/// A place in a file, for people. Lines and columns count from 1.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    /// The line itself, without its indentation.
    pub(crate) excerpt: String,
}

impl Source {
    pub(crate) fn read(path: &Path) -> Result<Source, Error> {
        let file = path.display().to_string();
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|opened| opened.take(MAX_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|error| Error::Read { path: path.into(), error })?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Error::SourceTooLarge { path: path.into(), limit: MAX_BYTES });
        }
        if bytes.starts_with(&wire::MAGIC) {
            // Messages are about the text that the program would have.
            let module = wire::decode(&bytes).map_err(|error| Error::Wire { path: path.into(), error })?;
            return Ok(Source { file, text: text::print(&module), wire: true });
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Source { file, text, wire: false }),
            Err(error) => Err(Error::NotText { path: path.into(), offset: error.utf8_error().valid_up_to() }),
        }
    }

    /// The source as explanations show it.
    pub(crate) fn explained(&self) -> vyre::explain::Source {
        vyre::explain::Source { file: self.file.clone(), text: self.text.clone(), first_line: 1 }
    }

    pub(crate) fn parse(&self) -> Result<Module, Error> {
        text::parse(&self.text).map_err(|error| self.explain(error))
    }

    pub(crate) fn validate(&self, module: Module) -> Result<Vec<Validated<Program>>, Error> {
        validate::module(module).map_err(|error| self.explain(error))
    }

    /// The arguments of each `//@ run` line.
    pub(crate) fn directives(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter_map(|line| line.strip_prefix("//@ run "))
    }

    /// The place where a span starts. What was not read from text has none.
    pub(crate) fn place(&self, span: Span) -> Option<Place> {
        let before = self.text.get(..span.start as usize).filter(|_| span != Span::NONE)?;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[start..].lines().next().unwrap_or_default();
        Some(Place {
            file: self.file.clone(),
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            excerpt: line.trim().into(),
        })
    }

    /// Diagnostics are about this text, and can be shown only together with it.
    fn explain(&self, error: vyre_foundation::Error) -> Error {
        match error {
            vyre_foundation::Error::Text(diagnostics) | vyre_foundation::Error::Invalid(diagnostics) => {
                Error::Faults(Box::new(Faults { source: self.clone(), diagnostics }))
            }
            other => Error::Foundation(other),
        }
    }
}
