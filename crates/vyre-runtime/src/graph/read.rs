//! Readers of graph files.
//!
//! | extension | format |
//! |---|---|
//! | `.mtx` | Matrix Market, `matrix coordinate` of `pattern`, `integer` or `real` values |
//! | `.sg`, `.wsg` | serialized CSR of the GAP benchmark suite; `.wsg` has weights |
//! | any other | SNAP edge list: `SOURCE TARGET [WEIGHT]` on each line, `#` and `%` begin comments |
//!
//! Weights of a `real` matrix are reals. Those of an edge list are integers if all of them are integers of at most 2147483647, else reals.
//! With the feature `gz`, text formats may be compressed (`.gz`). A malformed line is an error with its line number.
//!
//! Files are untrusted. Their contents, after decompression, and the graph have to fit the memory [limit](super::limited). Directories,
//! devices and sockets are refused. The rows of a GAP file are checked: they are sorted, the incoming edges are the transpose of the
//! outgoing ones, and an undirected graph is symmetric.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use vyre_driver::read_limited;

use super::memory::{self, collected, concat, reserve, with_capacity};
use super::progress::report;
use super::{BadRows, Edge, Edges, Graph, Rows, Weights, in_parts};
use crate::Error;

/// Fault of a graph file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFile {
    /// Error of the operating system or the decompressor.
    #[error("{0}")]
    Io(String),
    /// A directory, device or socket.
    #[error("it is neither a file nor a pipe")]
    NotAFile,
    /// A compressed file, but the feature `gz` is off.
    #[error("it is compressed, and the feature `gz` of vyre-runtime is off")]
    Compressed,
    /// A line with one number.
    #[error("one number, but an edge has two nodes")]
    OneNumber,
    /// A line with more than three numbers.
    #[error("more than three numbers: an edge has two nodes and at most one weight")]
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
    #[error("`{word}` is not a weight: they are {}", if *real { "numbers ≥ 0" } else { "integers from 0 to 2147483647" })]
    Weight {
        /// The beginning of the word.
        word: String,
        /// Weights are reals.
        real: bool,
    },
    /// A line with a weight in an unweighted list.
    #[error("this line has a weight, but earlier lines have none")]
    SurplusWeight,
    /// A line without a weight in a weighted list.
    #[error("the weight is missing")]
    MissingWeight,
    /// A list with both weighted and unweighted lines.
    #[error("some lines before this one have weights, and others have none")]
    SomeWeights,
    /// An empty Matrix Market file.
    #[error("it is empty")]
    Empty,
    /// A header of another format than Matrix Market.
    #[error("the header is not `%%MatrixMarket matrix coordinate FIELD SYMMETRY`")]
    Header,
    /// A dense matrix (`array`).
    #[error("the matrix is dense, but must be `coordinate`")]
    Dense,
    /// An unsupported field of the header, such as `complex`.
    #[error("the values are neither `pattern` nor `integer` nor `real`")]
    Values,
    /// An unsupported symmetry of the header, such as `hermitian`.
    #[error("the matrix is neither `general` nor `symmetric`")]
    Symmetry,
    /// A matrix without a size line.
    #[error("the size line `ROWS COLUMNS ENTRIES` is missing")]
    NoSize,
    /// A malformed size line.
    #[error("the size line is not `ROWS COLUMNS ENTRIES`")]
    Size,
    /// More rows or columns than the largest number of nodes.
    #[error("the matrix has more than 2147483647 rows or columns")]
    ManyNodes,
    /// An entry that is out of bounds of the matrix.
    #[error("the entry ({row}, {column}) is out of bounds of {height} rows and {width} columns")]
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
    /// Another number of entries than the size line announces.
    #[error("line {line} announces {announced} entries, but there are {found}")]
    EntryCount {
        /// Number of the size line.
        line: u64,
        /// Announced entries.
        announced: u64,
        /// Entries in the file.
        found: usize,
    },
    /// A direction byte of a GAP file that is neither 0 nor 1.
    #[error("the first byte is {0}, but must be 0 (undirected) or 1 (directed)")]
    Direction(u8),
    /// A GAP file of a graph that is too large.
    #[error("{nodes} nodes and {edges} edges are too many: at most 2147483647 nodes and 4294967294 edges are possible")]
    TooLarge {
        /// Number of nodes.
        nodes: u64,
        /// Number of edges.
        edges: u64,
    },
    /// A GAP file that is this number of bytes shorter than its header requires.
    #[error("it is truncated: {0} bytes are missing")]
    CutOff(u64),
    /// A GAP file that is this number of bytes longer than its header requires.
    #[error("{0} bytes follow the end of the graph")]
    Trailing(usize),
    /// An edge of negative weight.
    #[error("an edge has the negative weight {0}")]
    NegativeWeight(i32),
    /// Malformed rows.
    #[error(transparent)]
    Rows(#[from] BadRows),
    /// Incoming edges that are not the transpose of the outgoing ones.
    #[error("incoming and outgoing edges differ: {0}")]
    Directions(BadRows),
    /// A graph that is marked undirected, but has an edge without its reverse.
    #[error("it is marked undirected, but {0}")]
    NotUndirected(BadRows),
}

impl Graph {
    /// Reads a graph from a file, in the format of its extension.
    ///
    /// # Errors
    /// [`Error::GraphFile`]: the file cannot be read or is malformed. [`Error::OverMemoryLimit`]: the graph takes more memory than the
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

/// Reason why reading failed.
enum Fault {
    /// Fault of a line, counted from 1, or of the file.
    File(Option<u64>, BadFile),
    /// Memory limit exceeded, or a failed allocation.
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
    // Checked before opening, which has side effects on some devices.
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

/// Reads to the end in pieces, up to the memory limit, and calls `then` with the number of bytes so far.
fn drain<R: Read>(from: R, expected: usize, then: impl Fn(&R, usize)) -> Result<Vec<u8>, Fault> {
    let mut done = 0;
    // Reading one byte beyond the limit proves that it is exceeded.
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

/// Format of the lines of an edge list.
#[derive(Clone, Copy)]
struct LineFormat {
    /// Number of the first node: 0 or 1.
    first: u32,
    /// Lines have a weight. `None`: undetermined until the first line.
    weighted: Option<bool>,
    /// Weights are reals.
    real: bool,
}

/// Parses a SNAP edge list.
fn list(bytes: &[u8]) -> Result<Edges, Fault> {
    let read = |real| entries(bytes, 1, LineFormat { first: 0, weighted: None, real });
    // The first attempt ends at the first weight that is not an integer, so the second attempt seldom repeats much work.
    let (list, weights) = read(false).or_else(|fault| match fault {
        Fault::File(..) => read(true),
        Fault::Memory(_) => Err(fault),
    })?;
    let nodes = list.iter().map(|edge| edge.source.max(edge.target) + 1).max().unwrap_or(0);
    Ok(Edges { nodes, list, weights, symmetric: false })
}

/// Parses Matrix Market: a header, comments, the size line, and an entry on each line.
fn matrix(bytes: &[u8]) -> Result<Edges, Fault> {
    let mut rest = bytes;
    let mut line = 0;
    let mut next = || {
        /// Maximum line length of the format.
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
    let format = LineFormat { first: 1, weighted: Some(weights != Weights::None), real: weights == Weights::Real };
    let (list, _) = entries(entry_text, at + 1, format)?;
    if let Some(outside) = list.iter().find(|edge| u64::from(edge.source.max(edge.target)) >= nodes) {
        let (row, column) = (outside.source + 1, outside.target + 1);
        return Err(BadFile::Entry { row, column, height, width }.into());
    }
    if list.len() as u64 != count {
        return Err(BadFile::EntryCount { line: at, announced: count, found: list.len() }.into());
    }
    Ok(Edges { nodes: nodes as u32, list, weights, symmetric })
}

/// Parses the edges of all lines on all cores, and determines the type of their weights.
fn entries(bytes: &[u8], first_line: u64, format: LineFormat) -> Result<(Vec<Edge>, Weights), Fault> {
    let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count() + 1;
    let counted = in_parts("parsing", bytes.len(), |part| lines(&bytes[part]));
    let most: usize = counted.into_iter().sum();
    // The parts of the list, and their concatenation.
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
        let mut format = format;
        while let Some((line, after)) = split_line(rest) {
            match entry(line, &mut format) {
                Ok(edge) => edges.extend(edge),
                // Lines before the fault are counted only for the first fault of the file.
                Err(reason) => return Ok(Err((end - rest.len(), reason))),
            }
            rest = after;
        }
        Ok(Ok((edges, format.weighted, start)))
    });
    let line_of = |at: usize| Some(first_line + lines(&bytes[..at]) as u64 - 1);
    let (mut lists, mut weighted) = (Vec::new(), format.weighted);
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
        Some(true) if format.real => Weights::Real,
        Some(true) => Weights::Whole,
    };
    Ok((all, weights))
}

fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    (!text.is_empty()).then(|| (&text[..end], text.get(end + 1..).unwrap_or_default()))
}

/// Parses a line; `None` for comments and empty lines.
fn entry(line: &[u8], format: &mut LineFormat) -> Result<Option<Edge>, BadFile> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let Some(source) = words.next().filter(|word| !matches!(word[0], b'#' | b'%')) else { return Ok(None) };
    let target = words.next().ok_or(BadFile::OneNumber)?;
    let (weight, more) = (words.next(), words.next());
    if more.is_some() {
        return Err(BadFile::ManyNumbers);
    }
    let node = |word| {
        // Graphs have at most 2³¹ − 1 nodes.
        let last = u64::from(format.first) + i32::MAX as u64 - 1;
        let number = number(word).filter(|number| *number <= last);
        let reason = || BadFile::Node { word: excerpt(word), first: format.first, last };
        number.and_then(|number| number.checked_sub(format.first.into())).map(|node| node as u32).ok_or_else(reason)
    };
    let (source, target) = (node(source)?, node(target)?);
    if *format.weighted.get_or_insert(weight.is_some()) != weight.is_some() {
        return Err(if weight.is_some() { BadFile::SurplusWeight } else { BadFile::MissingWeight });
    }
    let weight = match weight {
        None => 1,
        Some(word) => if format.real { real(word) } else { whole(word) }
            .ok_or_else(|| BadFile::Weight { word: excerpt(word), real: format.real })?,
    };
    Ok(Some(Edge { source, target, weight }))
}

/// Returns the beginning of a word, for a message.
fn excerpt(word: &[u8]) -> String {
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

/// Parses the bits of a real. Subnormals, which devices may flush, and −0 become 0, so that sums are the same on every device.
fn real(word: &[u8]) -> Option<u32> {
    let real: f32 = std::str::from_utf8(word).ok()?.parse().ok()?;
    let real = if real.is_subnormal() { 0.0 } else { real };
    (real >= 0.0 && real.is_finite()).then_some((real + 0.0).to_bits())
}

/// Decodes the output of GAP's `converter`: a direction byte, the numbers of edges and nodes, offsets and neighbours; for a directed graph,
/// also offsets and neighbours of the incoming edges.
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
    // Rows take at most as much memory as their part of the file.
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
