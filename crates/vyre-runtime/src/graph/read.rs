//! Graphs in files.
//!
//! | name ends in | is |
//! |---|---|
//! | `.mtx` | Matrix Market, `matrix coordinate` of `pattern`, `integer` or `real` values |
//! | `.sg`, `.wsg` | rows of a graph as the GAP benchmark suite writes them; `.wsg` has weights |
//! | anything else | an edge list as of SNAP: `SOURCE TARGET [WEIGHT]` on each line, `#` and `%` begin comments |
//!
//! Weights of a `real` matrix are real numbers. Those of a list are whole numbers if all of them are at most 2147483647, and else real ones.
//! Texts may also end in `.gz`, if the feature `gz` is on. Nothing is guessed: a line that does not fit is an error with its number.
//!
//! Files are not trusted. Their contents, also when unpacked, and what is made of them have to fit the [limit](super::limited) of memory.
//! Directories, devices and sockets are refused. Rows of a GAP file are checked: they are sorted, incoming edges are outgoing ones
//! reversed, and an undirected graph has every edge in both directions.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use vyre_driver::read_limited;

use super::memory::{self, collected, concat, reserve, with_capacity};
use super::progress::report;
use super::{BadRows, Edge, Edges, Graph, Rows, Weights, in_parts};
use crate::Error;

/// Reason why a file holds no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFile {
    /// Error of the operating system, or of the decompressor.
    #[error("{0}")]
    Io(String),
    /// A folder, a device or a socket.
    #[error("it is neither a file nor a pipe")]
    NotAFile,
    /// A compressed file, and the feature `gz` is off.
    #[error("it is compressed, and the feature `gz` of vyre-runtime is off")]
    Compressed,
    /// A line with one number.
    #[error("there is one number, but an edge has two nodes")]
    OneNumber,
    /// A line with more numbers than two nodes and a weight.
    #[error("there are more than three numbers")]
    ManyNumbers,
    /// A word that is not a node.
    #[error("`{word}` is not a node: they are {first} to {last}")]
    Node {
        /// The beginning of the word.
        word: String,
        /// The first node.
        first: u32,
        /// The last node.
        last: u64,
    },
    /// A word that is not a weight.
    #[error("`{word}` is not a weight: they are {}", if *real { "numbers from 0 on" } else { "whole numbers, 0 to 2147483647" })]
    Weight {
        /// The beginning of the word.
        word: String,
        /// Whether weights are real numbers.
        real: bool,
    },
    /// A line with a weight after one without.
    #[error("there is a weight, but not on other lines")]
    SurplusWeight,
    /// A line without a weight, where there have to be weights.
    #[error("the weight is missing")]
    MissingWeight,
    /// Parts of a list with weights and without.
    #[error("some lines before this one have weights, and others have not")]
    SomeWeights,
    /// A matrix without a header.
    #[error("it is empty")]
    Empty,
    /// A header of another format than Matrix Market.
    #[error("the header is not `%%MatrixMarket matrix coordinate FIELD SYMMETRY`")]
    Header,
    /// A dense matrix.
    #[error("the matrix is dense, not a list of coordinates")]
    Dense,
    /// A matrix of other values.
    #[error("the values are neither `pattern` nor `integer` nor `real`")]
    Values,
    /// A matrix of another symmetry.
    #[error("the matrix is neither `general` nor `symmetric`")]
    Symmetry,
    /// A matrix without a size.
    #[error("there is no line with the size")]
    NoSize,
    /// A size that is not three numbers.
    #[error("the size is not three numbers: rows, columns, entries")]
    Size,
    /// More rows or columns than a graph has nodes.
    #[error("there are more than 2147483647 nodes")]
    ManyNodes,
    /// An entry outside of the matrix.
    #[error("the entry ({row}, {column}) is outside of {height} rows and {width} columns")]
    Entry {
        /// Row of the entry, from 1.
        row: u32,
        /// Column of the entry, from 1.
        column: u32,
        /// Rows of the matrix.
        height: u64,
        /// Columns of the matrix.
        width: u64,
    },
    /// Another number of entries than announced.
    #[error("line {line} announces {announced} entries, but there are {found}")]
    EntryCount {
        /// Line with the size.
        line: u64,
        /// Number of entries in that line.
        announced: u64,
        /// Number of entries that follow it.
        found: usize,
    },
    /// A first byte of a GAP file that is neither 0 nor 1.
    #[error("the first byte says whether it is directed, but it is {0}")]
    Direction(u8),
    /// A GAP file of a graph that is too large.
    #[error("{nodes} nodes and {edges} edges are too many")]
    TooLarge {
        /// Number of nodes.
        nodes: u64,
        /// Number of edges.
        edges: u64,
    },
    /// A GAP file that is shorter than its header says, by this number of bytes.
    #[error("it ends {0} bytes early")]
    CutOff(u64),
    /// A GAP file that is longer than its header says, by this number of bytes.
    #[error("{0} bytes follow its end")]
    Trailing(usize),
    /// An edge of negative weight.
    #[error("an edge has the weight {0}")]
    NegativeWeight(i32),
    /// Rows that are not those of a graph.
    #[error(transparent)]
    Rows(#[from] BadRows),
    /// Rows of incoming edges that are not those of outgoing edges reversed.
    #[error("incoming and outgoing edges differ: {0}")]
    Directions(BadRows),
    /// A graph with an edge in one direction that says that it is undirected.
    #[error("it says that it is undirected, but {0}")]
    NotUndirected(BadRows),
}

impl Graph {
    /// Reads a graph from a file, whose name says what it holds.
    ///
    /// # Errors
    /// [`Error::GraphFile`]: it cannot be read, or a line of it makes no sense. [`Error::OverMemoryLimit`]: it takes more memory than the
    /// [limit](super::limited).
    pub fn read(path: &Path) -> Result<Graph, Error> {
        let _span = tracing::info_span!("read graph").entered();
        let at_fault = |fault| match fault {
            Fault::File(line, reason) => Error::GraphFile { file: path.into(), line, reason },
            Fault::Memory(Error::OverMemoryLimit { subject, required, limit }) => {
                Error::OverMemoryLimit { subject: format!("{}: {subject}", path.display()), required, limit }
            }
            Fault::Memory(error) => error,
        };
        let mut bytes = contents(path).map_err(at_fault)?;
        let mut name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if let Some(inner) = name.strip_suffix(".gz") {
            bytes = unpacked(&bytes).map_err(at_fault)?;
            name = inner.to_owned();
        }
        let is = |suffix| Path::new(&name).extension().is_some_and(|extension| extension == suffix);
        if is("sg") || is("wsg") {
            return serialized(&bytes, is("wsg")).map_err(at_fault);
        }
        let edges = if is("mtx") { matrix(&bytes) } else { list(&bytes) }.map_err(at_fault)?;
        drop(bytes);
        Graph::new(&edges).map_err(|error| at_fault(Fault::Memory(error)))
    }
}

/// Reason why a file gives no graph.
enum Fault {
    /// The line, counted from 1, and what is wrong with it; or with all of the file.
    File(Option<u64>, BadFile),
    /// It takes too much memory.
    Memory(Error),
}

impl From<BadFile> for Fault {
    fn from(reason: BadFile) -> Fault {
        Fault::File(None, reason)
    }
}

impl From<BadRows> for Fault {
    fn from(reason: BadRows) -> Fault {
        Fault::File(None, reason.into())
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::File(None, BadFile::Io(error.to_string()))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Memory(error)
    }
}

fn contents(path: &Path) -> Result<Vec<u8>, Fault> {
    // Before it is opened, which already means something to some devices.
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() && !is_pipe(kind) {
        return Err(BadFile::NotAFile.into());
    }
    let file = File::open(path)?;
    let all = file.metadata()?.len();
    memory::check(all, || format!("a file of {all} bytes"))?;
    drain(file, all as usize, |_, done| report("reading", done, all as usize))
}

#[cfg(unix)]
fn is_pipe(kind: fs::FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&kind)
}

#[cfg(not(unix))]
fn is_pipe(_: fs::FileType) -> bool {
    false
}

#[cfg(feature = "gz")]
fn unpacked(bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let decoder = flate2::bufread::MultiGzDecoder::new(bytes);
    let all = bytes.len();
    drain(decoder, all, |decoder, _| report("unpacking", all - decoder.get_ref().len(), all))
}

#[cfg(not(feature = "gz"))]
fn unpacked(_: &[u8]) -> Result<Vec<u8>, Fault> {
    Err(BadFile::Compressed.into())
}

/// Reads to the end, piece by piece, at most as much as the limit of memory; `then` is told the number of bytes so far.
fn drain<R: Read>(from: R, expected: usize, then: impl Fn(&R, usize)) -> Result<Vec<u8>, Fault> {
    let mut done = 0;
    // One byte more than the limit tells that there are more.
    let read = read_limited(from, memory::limit().saturating_add(1), expected, |from, bytes| {
        done = bytes;
        then(from, done);
    });
    let bytes = read.map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => Fault::Memory(memory::refused("bytes of a file", done.max(expected))),
        _ => error.into(),
    })?;
    memory::check(bytes.len() as u64, || "its contents".to_owned())?;
    Ok(bytes)
}

/// What a line of edges looks like.
#[derive(Clone, Copy)]
struct Style {
    /// The first node.
    first: u32,
    /// The numbers of a line: without a weight, or with one. `None` accepts both.
    weighted: Option<bool>,
    /// Weights are real numbers.
    real: bool,
}

/// An edge list of SNAP.
fn list(bytes: &[u8]) -> Result<Edges, Fault> {
    let read = |real| entries(bytes, 1, Style { first: 0, weighted: None, real });
    // The first weight that is not whole ends the first attempt, so that the second one costs little where it helps.
    let (list, weights) = read(false).or_else(|fault| match fault {
        Fault::File(..) => read(true),
        Fault::Memory(_) => Err(fault),
    })?;
    let nodes = list.iter().map(|edge| edge.source.max(edge.target) + 1).max().unwrap_or(0);
    Ok(Edges { nodes, list, weights, symmetric: false })
}

/// Matrix Market: a header, comments, the size, and an entry on each line.
fn matrix(bytes: &[u8]) -> Result<Edges, Fault> {
    let mut rest = bytes;
    let mut line = 0;
    let mut next = || {
        /// The format has no longer lines.
        const LONGEST: usize = 1024;
        let (text, after) = split_line(rest)?;
        let text = &text[..text.len().min(LONGEST)];
        rest = after;
        line += 1;
        Some((line, String::from_utf8_lossy(text).trim().to_lowercase(), after))
    };
    let (_, header, _) = next().ok_or(BadFile::Empty)?;
    let words: Vec<&str> = header.split_whitespace().collect();
    let fault = |line: u64, reason| Err(Fault::File(Some(line), reason));
    let &["%%matrixmarket", "matrix", layout, field, symmetry] = words.as_slice() else {
        return fault(1, BadFile::Header);
    };
    if layout != "coordinate" {
        return fault(1, BadFile::Dense);
    }
    let weights = match field {
        "pattern" => Weights::None,
        "integer" => Weights::Whole,
        "real" => Weights::Real,
        _ => return fault(1, BadFile::Values),
    };
    let symmetric = match symmetry {
        "general" => false,
        "symmetric" => true,
        _ => return fault(1, BadFile::Symmetry),
    };
    let (at, size, entry_text) = loop {
        match next() {
            None => return Err(BadFile::NoSize.into()),
            Some((_, text, _)) if text.is_empty() || text.starts_with('%') => {}
            Some(found) => break found,
        }
    };
    let sizes: Vec<Option<u64>> = size.split_whitespace().map(|word| word.parse().ok()).collect();
    let &[Some(height), Some(width), Some(count)] = sizes.as_slice() else {
        return fault(at, BadFile::Size);
    };
    let nodes = height.max(width);
    if nodes > i32::MAX as u64 {
        return fault(at, BadFile::ManyNodes);
    }
    let style = Style { first: 1, weighted: Some(weights != Weights::None), real: weights == Weights::Real };
    let (list, _) = entries(entry_text, at + 1, style)?;
    if let Some(outside) = list.iter().find(|edge| u64::from(edge.source.max(edge.target)) >= nodes) {
        let (row, column) = (outside.source + 1, outside.target + 1);
        return Err(BadFile::Entry { row, column, height, width }.into());
    }
    if list.len() as u64 != count {
        return Err(BadFile::EntryCount { line: at, announced: count, found: list.len() }.into());
    }
    Ok(Edges { nodes: nodes as u32, list, weights, symmetric })
}

/// The edges of all lines, read on all cores, and what their weights are.
fn entries(bytes: &[u8], first_line: u64, style: Style) -> Result<(Vec<Edge>, Weights), Fault> {
    let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count() + 1;
    let counted = in_parts("parsing", bytes.len(), |part| lines(&bytes[part]));
    let most: usize = counted.into_iter().sum();
    // Parts of the list, and the list that is made of them.
    let required = (bytes.len() + 2 * size_of::<Edge>() * most) as u64;
    memory::check(required, || format!("a text of {} bytes in {most} lines", bytes.len()))?;
    let parts = in_parts("parsing", bytes.len(), |part| {
        // A line belongs to the part in which it begins.
        let begin = |at: usize| match at.checked_sub(1) {
            None => 0,
            Some(before) => {
                bytes[before..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |n| before + n + 1)
            }
        };
        let (start, end) = (begin(part.start), begin(part.end));
        let mut rest = &bytes[start.min(end)..end];
        let mut edges = with_capacity("edges of the graph", lines(rest))?;
        let mut style = style;
        while let Some((line, after)) = split_line(rest) {
            match entry(line, &mut style) {
                Ok(edge) => edges.extend(edge),
                // The line is counted if this is the first fault.
                Err(reason) => return Ok(Err((end - rest.len(), reason))),
            }
            rest = after;
        }
        Ok(Ok((edges, style.weighted, start)))
    });
    let line_of = |at: usize| Some(first_line + lines(&bytes[..at]) as u64 - 1);
    let (mut lists, mut weighted) = (Vec::new(), style.weighted);
    for part in parts {
        let part: Result<_, (usize, BadFile)> = part.map_err(Fault::Memory)?;
        let (edges, found, start) = part.map_err(|(at, reason)| Fault::File(line_of(at), reason))?;
        if let (Some(before), Some(found)) = (weighted, found)
            && before != found
        {
            return Err(Fault::File(line_of(start), BadFile::SomeWeights));
        }
        weighted = weighted.or(found);
        lists.push(edges);
    }
    let all = concat("edges of the graph", lists)?;
    let weights = match weighted {
        None | Some(false) => Weights::None,
        Some(true) if style.real => Weights::Real,
        Some(true) => Weights::Whole,
    };
    Ok((all, weights))
}

fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    (!text.is_empty()).then(|| (&text[..end], text.get(end + 1..).unwrap_or_default()))
}

/// The edge of a line, if it is not a comment.
fn entry(line: &[u8], style: &mut Style) -> Result<Option<Edge>, BadFile> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let Some(source) = words.next().filter(|word| !matches!(word[0], b'#' | b'%')) else { return Ok(None) };
    let target = words.next().ok_or(BadFile::OneNumber)?;
    let (weight, more) = (words.next(), words.next());
    if more.is_some() {
        return Err(BadFile::ManyNumbers);
    }
    let node = |word| {
        // Graphs have at most 2³¹ − 1 nodes.
        let last = u64::from(style.first) + i32::MAX as u64 - 1;
        let number = number(word).filter(|number| *number <= last);
        let reason = || BadFile::Node { word: shown(word), first: style.first, last };
        number.and_then(|number| number.checked_sub(style.first.into())).map(|node| node as u32).ok_or_else(reason)
    };
    let (source, target) = (node(source)?, node(target)?);
    if *style.weighted.get_or_insert(weight.is_some()) != weight.is_some() {
        return Err(if weight.is_some() { BadFile::SurplusWeight } else { BadFile::MissingWeight });
    }
    let weight = match weight {
        None => 1,
        Some(word) => if style.real { real(word) } else { whole(word) }
            .ok_or_else(|| BadFile::Weight { word: shown(word), real: style.real })?,
    };
    Ok(Some(Edge { source, target, weight }))
}

/// The beginning of a word, for a message.
fn shown(word: &[u8]) -> String {
    const MOST: usize = 40;
    let text = String::from_utf8_lossy(&word[..word.len().min(MOST)]);
    if word.len() > MOST { format!("{text}…") } else { text.into_owned() }
}

fn number(word: &[u8]) -> Option<u64> {
    let digit = |value: u64, byte: &u8| value.checked_mul(10)?.checked_add(u64::from(byte.wrapping_sub(b'0')));
    word.iter().all(u8::is_ascii_digit).then_some(())?;
    word.iter().try_fold(0, digit)
}

fn whole(word: &[u8]) -> Option<u32> {
    number(word).filter(|number| *number <= i32::MAX as u64).map(|number| number as u32)
}

/// The bits of a real number. What devices may take for 0 is 0, and so is −0; then their sums are the same everywhere.
fn real(word: &[u8]) -> Option<u32> {
    let real: f32 = std::str::from_utf8(word).ok()?.parse().ok()?;
    let real = if real.is_subnormal() { 0.0 } else { real };
    (real >= 0.0 && real.is_finite()).then_some((real + 0.0).to_bits())
}

/// What GAP's `converter` writes: whether it is directed, the numbers of edges and nodes, where rows begin, neighbours; and the same for
/// the other direction.
fn serialized(bytes: &[u8], weighted: bool) -> Result<Graph, Fault> {
    let mut rest = bytes;
    let directed = match *take(&mut rest, 1)?.first().unwrap_or(&2) {
        0 => false,
        1 => true,
        other => return Err(BadFile::Direction(other).into()),
    };
    let (edges, nodes) = (long(&mut rest)?, long(&mut rest)?);
    if nodes > i32::MAX as u64 || edges >= u32::MAX.into() {
        return Err(BadFile::TooLarge { nodes, edges }.into());
    }
    // Rows are never larger than the part of the file that they are made of.
    memory::check(2 * bytes.len() as u64, || format!("{nodes} nodes and {edges} edges"))?;
    let outgoing = serialized_rows(&mut rest, nodes, edges, weighted)?;
    let incoming = if directed { Some(serialized_rows(&mut rest, nodes, edges, weighted)?) } else { None };
    if !rest.is_empty() {
        return Err(BadFile::Trailing(rest.len()).into());
    }
    match &incoming {
        Some(incoming) => outgoing.check_transpose(incoming).map_err(BadFile::Directions)?,
        None => outgoing.check_transpose(&outgoing).map_err(BadFile::NotUndirected)?,
    }
    Ok(Graph { outgoing, incoming, weights: if weighted { Weights::Whole } else { Weights::None } })
}

fn serialized_rows(rest: &mut &[u8], nodes: u64, edges: u64, weighted: bool) -> Result<Rows, Fault> {
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut starts = take(rest, (nodes + 1) * 8)?;
    let mut offsets = with_capacity("nodes of the graph", nodes as usize + 1)?;
    for node in 0..=nodes {
        let offset = long(&mut starts)?;
        let short = u32::try_from(offset).map_err(|_| BadRows::Offset { row: node, nodes, offset, edges });
        offsets.push(short?);
    }
    let size = if weighted { 8 } else { 4 };
    let entries = take(rest, edges * size)?.chunks_exact(size as usize);
    let targets = collected("edges of the graph", entries.clone().map(word))?;
    let mut weights = Vec::new();
    if weighted {
        reserve(&mut weights, "edges of the graph", entries.len())?;
        weights.extend(entries.map(|entry| word(&entry[4..])));
    }
    if let Some(weight) = weights.iter().find(|weight| **weight > i32::MAX as u32) {
        return Err(BadFile::NegativeWeight(*weight as i32).into());
    }
    let rows = Rows { offsets, targets, weights };
    rows.check()?;
    Ok(rows)
}

fn take<'b>(rest: &mut &'b [u8], count: u64) -> Result<&'b [u8], BadFile> {
    let part = usize::try_from(count).ok().and_then(|count| rest.split_at_checked(count));
    let (part, after) = part.ok_or_else(|| BadFile::CutOff(count - rest.len() as u64))?;
    *rest = after;
    Ok(part)
}

fn long(rest: &mut &[u8]) -> Result<u64, BadFile> {
    let bytes = take(rest, 8)?;
    Ok(u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]))
}
