//! `.vyre` and `.vyreb` files: reading, parsing, and source locations of spans.

use std::path::Path;

use vyre_driver::read_limited;
use vyre_foundation::ir::{Module, Program, SourceMap, Span};
use vyre_foundation::run_line::RunLine;
use vyre_foundation::{Validated, text, validate, wire};

use crate::error::{Error, Faults};

/// Maximum size of a file: several copies fit into memory.
const MAX_BYTES: u64 = 64 << 20;

/// Text of a file.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Path as given.
    pub(crate) file: String,
    pub(crate) text: String,
    /// Source map of the text, or of the .vyreb file.
    pub(crate) map: SourceMap,
    /// True for a .vyreb file, whose text is the printed module.
    pub(crate) wire: bool,
}

/// A file and its parsed module.
pub(crate) struct Parsed {
    pub(crate) source: Source,
    pub(crate) module: Module,
}

/// Source location of an error. Lines and columns count from 1.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    /// The line itself, without its indentation.
    pub(crate) excerpt: String,
}

impl Parsed {
    pub(crate) fn read(path: &Path) -> Result<Parsed, Error> {
        let file = path.display().to_string();
        let bytes = std::fs::File::open(path)
            .and_then(|opened| read_limited(opened, MAX_BYTES + 1, 0, |_, _| ()))
            .map_err(|error| Error::Read { path: path.into(), error })?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Error::SourceTooLarge { path: path.into(), limit: MAX_BYTES });
        }
        if bytes.starts_with(&wire::MAGIC) {
            let module = wire::decode(&bytes).map_err(|error| Error::Wire { path: path.into(), error })?;
            let text = text::print(&module);
            // Without a source map, spans refer to the printed text.
            let located = module.programs.iter().map(Program::sources).find(|map| !map.is_empty());
            return match located.cloned() {
                None => Source { wire: true, ..Source::of_text(file, text) }.parse(),
                Some(map) => Ok(Parsed { source: Source { file, text, map, wire: true }, module }),
            };
        }
        match String::from_utf8(bytes) {
            Ok(text) => Source::of_text(file, text).parse(),
            Err(error) => Err(Error::NotText { path: path.into(), offset: error.utf8_error().valid_up_to() }),
        }
    }

    /// Validates the module.
    pub(crate) fn validate(self) -> Result<(Source, Validated<Module>), Error> {
        match validate::module(self.module) {
            Ok(module) => Ok((self.source, module)),
            Err(error) => Err(self.source.explain(error)),
        }
    }
}

impl Source {
    /// Makes a source of text.
    pub(crate) fn of_text(file: String, text: String) -> Source {
        Source { map: SourceMap::of_text(&file, &text), file, text, wire: false }
    }

    /// The source for an explain page.
    pub(crate) fn explained(&self) -> vyre::explain::Source {
        vyre::explain::Source { file: self.file.clone(), text: self.text.clone(), first_line: 1 }
    }

    fn parse(self) -> Result<Parsed, Error> {
        match text::parse(&self.text) {
            Ok(mut module) => {
                module.programs.iter_mut().for_each(|program| program.set_sources(self.map.clone()));
                Ok(Parsed { source: self, module })
            }
            Err(error) => Err(self.explain(error)),
        }
    }

    /// The first `//@ run` line.
    pub(crate) fn run_line(&self) -> Result<RunLine, Error> {
        let file = || self.file.clone();
        let arguments = RunLine::of_file(&self.text).next().ok_or_else(|| Error::NoDirective { file: file() })?;
        RunLine::parse(arguments).map_err(|reason| Error::BadDirective { file: file(), reason })
    }

    /// Location of the start of a span; `None` for synthesized code.
    pub(crate) fn location(&self, span: Span) -> Option<Location> {
        let loc = self.map.locate(span)?;
        Some(Location {
            file: loc.file().to_owned(),
            line: loc.line() as usize,
            column: loc.column() as usize,
            excerpt: loc.text().unwrap_or_default().trim().to_owned(),
        })
    }

    /// Attaches the source to diagnostics.
    fn explain(self, error: vyre_foundation::Error) -> Error {
        match error {
            vyre_foundation::Error::Text(diagnostics) | vyre_foundation::Error::Invalid(diagnostics) => {
                Error::Faults { faults: Box::new(Faults { source: self, diagnostics }) }
            }
            other => Error::Foundation(other),
        }
    }
}
