//! Source map: files, lines and columns of spans.
//!
//! A [`Span`] is a range of positions. As in the source managers of Clang and rustc, the sources of a program own consecutive ranges of
//! positions: a span needs no file id, and merging two programs only shifts the spans of one of them.
//!
//! ```text
//! text     one position for each byte: parsed programs
//! places   one position for each line, column and width: builder calls and decoded programs
//! ```

use std::fmt;
use std::sync::{Arc, OnceLock};

/// A range of positions of a [`SourceMap`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// First position.
    pub start: u32,
    /// One past the last position.
    pub end: u32,
}

impl Span {
    /// Span of synthesized code.
    pub const NONE: Span = Span { start: 0, end: 0 };

    /// The smallest span that covers both.
    pub fn to(self, end: Span) -> Span {
        Span { start: self.start, end: end.end.max(self.start) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Start of a span: file, line and column, with the text of the line. Lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLoc {
    file: Arc<str>,
    line: u32,
    column: u32,
    width: u32,
    text: Arc<str>,
}

impl SourceLoc {
    /// Name of the file, empty if the source has none.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Line, from 1.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Column, from 1.
    pub fn column(&self) -> u32 {
        self.column
    }

    /// Characters of the span on this line; 0 if that is unknown.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Order of the wire format: by line and part of the line.
    pub(crate) fn key(&self) -> ((&str, u32, &str), (u32, u32)) {
        ((&self.file, self.line, &self.text), (self.column, self.width))
    }

    /// The line, if its text is known.
    pub fn text(&self) -> Option<&str> {
        Some(&*self.text).filter(|text| !text.is_empty())
    }
}

/// `file:line:column`.
impl fmt::Display for SourceLoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
        }
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The sources of a program. Clones share them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceMap {
    sources: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// First position.
    start: u32,
    source: Arc<Source>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.start == other.start && (Arc::ptr_eq(&self.source, &other.source) || self.source == other.source)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Text(Text),
    Places(Places),
}

#[derive(Clone, Debug)]
struct Text {
    file: Arc<str>,
    text: Arc<str>,
    /// Byte offsets of the lines, computed on first use.
    lines: OnceLock<Vec<u32>>,
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        (&self.file, &self.text) == (&other.file, &other.text)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Places {
    pub(crate) places: Vec<Place>,
    pub(crate) lines: Vec<Line>,
}

/// Part of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// Position of the line in its list.
    pub(crate) line: u32,
    pub(crate) column: u32,
    pub(crate) width: u32,
}

/// A line of a file. The text is empty if it is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub(crate) file: Arc<str>,
    pub(crate) number: u32,
    pub(crate) text: Arc<str>,
}

impl SourceMap {
    /// The map of one text. A span is a range of bytes.
    pub fn of_text(file: &str, text: &str) -> SourceMap {
        let text = Text { file: file.into(), text: text.into(), lines: OnceLock::new() };
        SourceMap { sources: vec![Entry { start: 0, source: Arc::new(Source::Text(text)) }] }
    }

    /// The map of a list of places. A span is one position.
    pub(crate) fn of_places(places: Places) -> SourceMap {
        if places.places.is_empty() {
            return SourceMap::default();
        }
        SourceMap { sources: vec![Entry { start: 0, source: Arc::new(Source::Places(places)) }] }
    }

    /// The same sources, with a name for texts that have none.
    pub(crate) fn with_file(&self, file: &str) -> SourceMap {
        let mut named = self.clone();
        for entry in &mut named.sources {
            if let Source::Text(text) = &*entry.source
                && text.file.is_empty()
            {
                let text = Text { file: file.into(), text: Arc::clone(&text.text), lines: OnceLock::new() };
                entry.source = Arc::new(Source::Text(text));
            }
        }
        named
    }

    /// Returns true if there is no source.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Adds a place whose text is unknown.
    pub(crate) fn add_place(&mut self, file: &str, number: u32, column: u32) -> Span {
        if !matches!(self.sources.last().map(|entry| &*entry.source), Some(Source::Places(_))) {
            let start = self.end();
            self.sources.push(Entry { start, source: Arc::new(Source::Places(Places::default())) });
        }
        let entry = self.sources.last_mut().expect("just added");
        let Source::Places(places) = Arc::make_mut(&mut entry.source) else {
            unreachable!("the last source has places")
        };
        let known = places.lines.last().filter(|line| *line.file == *file);
        let file = known.map_or_else(|| file.into(), |line| Arc::clone(&line.file));
        let place = Place { line: places.lines.len() as u32, column, width: 0 };
        places.lines.push(Line { file, number, text: Arc::default() });
        places.places.push(place);
        let start = entry.start + places.places.len() as u32 - 1;
        Span { start, end: start + 1 }
    }

    /// One past the last position.
    fn end(&self) -> u32 {
        self.sources.last().map_or(0, |entry| entry.start.saturating_add(entry.source.positions()))
    }

    /// Adds the missing sources of another map. The relocation translates spans of the other map.
    pub(crate) fn append(&mut self, other: &SourceMap) -> Relocation {
        let mut starts = Vec::with_capacity(other.sources.len());
        for Entry { start, source } in &other.sources {
            let known = self.sources.iter().find(|entry| Arc::ptr_eq(&entry.source, source)).map(|entry| entry.start);
            let new = known.unwrap_or_else(|| {
                let start = self.end();
                self.sources.push(Entry { start, source: Arc::clone(source) });
                start
            });
            starts.push((*start, new));
        }
        Relocation { starts }
    }

    /// Start of a span. Synthesized code has none.
    pub fn locate(&self, span: Span) -> Option<SourceLoc> {
        let (source, start) = self.source(span)?;
        match source {
            Source::Text(text) => text.locate(start, span.end.saturating_sub(span.start)),
            Source::Places(places) => {
                let Place { line, column, width } = *places.places.get(start as usize)?;
                let Line { file, number, text } = &places.lines[line as usize];
                Some(SourceLoc { file: Arc::clone(file), line: *number, column, width, text: Arc::clone(text) })
            }
        }
    }

    /// The source of a span, and the position in that source.
    fn source(&self, span: Span) -> Option<(&Source, u32)> {
        if span == Span::NONE {
            return None;
        }
        let at = self.sources.partition_point(|entry| entry.start <= span.start).checked_sub(1)?;
        let Entry { start, source } = &self.sources[at];
        Some((source, span.start - start))
    }

    /// Name, text and byte range of a span in a parsed text.
    pub(crate) fn text(&self, span: Span) -> Option<(&str, &str, std::ops::Range<usize>)> {
        let (Source::Text(text), start) = self.source(span)? else { return None };
        let (start, length) = (start as usize, span.end.saturating_sub(span.start) as usize);
        let end = text.text.len();
        Some((&text.file, &text.text, start.min(end)..(start + length).min(end)))
    }
}

impl Source {
    fn positions(&self) -> u32 {
        match self {
            // An empty span may start after the last byte.
            Source::Text(text) => u32::try_from(text.text.len()).unwrap_or(u32::MAX).saturating_add(1),
            Source::Places(places) => places.places.len() as u32,
        }
    }
}

impl Text {
    fn locate(&self, start: u32, length: u32) -> Option<SourceLoc> {
        let lines = self.lines.get_or_init(|| {
            let ends = self.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
            std::iter::once(0).chain(ends.map(|(end, _)| end as u32 + 1)).collect()
        });
        let number = lines.partition_point(|line| *line <= start);
        let first = lines[number - 1] as usize;
        let line = self.text[first..].lines().next().unwrap_or_default();
        let column = self.text.get(first..start as usize)?.chars().count();
        let rest = &self.text[start as usize..];
        let part = rest.get(..length as usize).unwrap_or(rest);
        let width = part.lines().next().map_or(0, |part| part.chars().count());
        Some(SourceLoc {
            file: Arc::clone(&self.file),
            line: number as u32,
            column: column as u32 + 1,
            width: width as u32,
            text: line.into(),
        })
    }
}

/// Shift of the spans of a map that was [appended](SourceMap::append) to another.
#[derive(Clone, Debug)]
pub(crate) struct Relocation {
    /// Old and new start of each source.
    starts: Vec<(u32, u32)>,
}

impl Relocation {
    /// The span in the other map.
    pub(crate) fn apply(&self, span: Span) -> Span {
        let at = self.starts.partition_point(|(old, _)| *old <= span.start);
        match at.checked_sub(1).map(|at| self.starts[at]) {
            Some((old, new)) if span != Span::NONE => {
                let shift = |position: u32| (position - old).checked_add(new);
                match (shift(span.start), shift(span.end)) {
                    (Some(start), Some(end)) => Span { start, end },
                    // There are no more than 2³² positions.
                    _ => Span::NONE,
                }
            }
            _ => Span::NONE,
        }
    }
}
