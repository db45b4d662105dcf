//! Graphs that were built before, in files that are mapped into memory.
//!
//! ```text
//! file = magic version weights directed nodes edges key:[_; 8] rows… checksum:[_; 8]     words, as the machine has them
//! rows = offsets targets weights        of outgoing edges, and then of incoming ones if the graph is directed
//! ```
//!
//! A key covers everything that a graph depends on, so what is found under a key is never out of date. A file is checked from beginning to end
//! before it is used; what is damaged is deleted, and the graph built again. Files are replaced in one step, as those of the programs that the
//! driver keeps. They are as large as the graph is, so the oldest make room for others.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use vyre_driver::PrivateFolder;

use super::words::Map;
use super::{Graph, Rows, Weights, in_parts};
use crate::Error;

/// A folder of graphs, which processes may share.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PrivateFolder,
}

/// Where a graph was found.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// In the cache.
    Kept,
    /// Nowhere, so it was built.
    Built,
    /// In a file that was damaged, as this says, so it was built again.
    Damaged(Error),
}

/// Bytes that all files together may take.
const MOST_BYTES: u64 = 8 << 30;
const MOST_FILES: usize = 1024;
/// Smaller graphs are built sooner than a file is found.
const LEAST_EDGES: u32 = 1 << 14;
/// How the names of files end.
const EXTENSION: &str = "graph";

impl Cache {
    /// Graphs in a folder. It need not exist, and where it cannot be read or written, nothing is kept.
    pub fn kept_in(folder: PrivateFolder) -> Cache {
        Cache { folder }
    }

    /// A graph that was built before, or what `build` makes. `origin` says everything that it depends on, besides how graphs are made.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn graph(&self, origin: &str, build: impl FnOnce() -> Result<Graph, Error>) -> Result<(Graph, Found), Error> {
        let _span = tracing::info_span!("cached graph").entered();
        let key = key(origin);
        let name = format!("{}.{EXTENSION}", key.to_hex());
        let mapped = self.folder.file(&name).and_then(|file| Map::new(&file)).ok();
        let found = match mapped.map(|map| decode(&map, &key)) {
            Some(Ok(graph)) => return Ok((graph, Found::Kept)),
            Some(Err(reason)) => {
                let _ = self.folder.remove(&name);
                Found::Damaged(Error::CachedGraph { file: self.folder.path().join(&name), reason })
            }
            None => Found::Built,
        };
        let graph = build()?;
        if graph.edges() >= LEAST_EDGES {
            store(&self.folder, &name, &key, &graph);
            self.folder.evict(EXTENSION, MOST_BYTES, MOST_FILES);
        }
        Ok((graph, found))
    }
}

/// The graph of a file of the cache, which stays as it is even if it is damaged.
///
/// # Errors
/// [`Error::CachedGraph`] with what is wrong with it.
pub fn inspect(file: &Path) -> Result<Graph, Error> {
    let key = file.file_stem().and_then(|name| blake3::Hash::from_hex(name.as_encoded_bytes()).ok());
    let graph = match key {
        Some(key) => File::open(file)
            .and_then(|file| Map::new(&file))
            .map_err(|error| error.to_string())
            .and_then(|map| decode(&map, &key)),
        None => Err("its name is not that of a graph".into()),
    };
    graph.map_err(|reason| Error::CachedGraph { file: file.into(), reason })
}

/// What the graph of a file depends on: which file it is, how long, and when it was changed. A file that has just been changed has no
/// origin: it could be changed again without a difference in any of these.
pub fn origin(file: &Path) -> Option<String> {
    /// The times of some file systems are that coarse.
    const TICK: Duration = Duration::from_secs(2);
    let (path, metadata) = (file.canonicalize().ok()?, fs::metadata(file).ok()?);
    let modified = metadata.modified().ok()?;
    modified.elapsed().ok().filter(|age| *age > TICK)?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} {} {path:?}", metadata.len(), since.as_nanos()))
}

fn key(origin: &str) -> blake3::Hash {
    blake3::hash(format!("{VERSION} {} {origin}", env!("CARGO_PKG_VERSION")).as_bytes())
}

// Files.

const MAGIC: u32 = u32::from_be_bytes(*b"vgph");
/// Of files, and of how graphs are made: who changes either counts it up.
const VERSION: u32 = 1;
const HEADER: usize = 14;
/// Words of a checksum, and of a key.
const HASH: usize = 8;

fn words(hash: &blake3::Hash) -> [u32; HASH] {
    bytemuck::cast(*hash.as_bytes())
}

fn store(folder: &PrivateFolder, name: &str, key: &blake3::Hash, graph: &Graph) {
    let weights = match graph.weights {
        Weights::None => 0,
        Weights::Whole => 1,
        Weights::Real => 2,
    };
    let directed = u32::from(!graph.is_symmetric());
    let mut header = vec![MAGIC, VERSION, weights, directed, graph.nodes(), graph.edges()];
    header.extend(words(key));
    let mut parts = parts(&header, graph);
    let bytes: u64 = parts.iter().map(|part| 4 * part.len() as u64).sum();
    if bytes > MOST_BYTES / 2 {
        return;
    }
    let checksum = words(&checksum(&parts));
    parts.push(&checksum);
    let parts: Vec<&[u8]> = parts.into_iter().map(bytemuck::cast_slice).collect();
    // A graph that cannot be written is built again the next time.
    let _ = folder.replace(name, &parts);
}

/// The graph of a file, or what is wrong with it.
fn decode(map: &Map, key: &blake3::Hash) -> Result<Graph, String> {
    let (contents, checked) = map.words().split_last_chunk::<HASH>().ok_or("it is cut off")?;
    let (header, _) = contents.split_first_chunk::<HEADER>().ok_or("it is cut off")?;
    let (&[magic, version, weights, directed, nodes, edges], found) =
        header.split_first_chunk().ok_or("it is cut off")?;
    if [magic, version] != [MAGIC, VERSION] {
        return Err("it is of another version".into());
    }
    if *found != words(key) {
        return Err("it belongs to another graph".into());
    }
    let weights = match weights {
        0 => Weights::None,
        1 => Weights::Whole,
        2 => Weights::Real,
        _ => return Err(format!("there are no weights of kind {weights}")),
    };
    let mut end = HEADER;
    let mut part = |length: usize| {
        let start = end;
        end = end.checked_add(length).filter(|end| *end <= contents.len()).ok_or("it is cut off")?;
        Ok::<_, String>(map.part(start..end))
    };
    let mut rows = || {
        let (offsets, targets) = (part((nodes as usize).saturating_add(1))?, part(edges as usize)?);
        Ok::<_, String>(Rows {
            offsets,
            targets,
            weights: part(if weights == Weights::None { 0 } else { edges as usize })?,
        })
    };
    let outgoing = rows()?;
    let incoming = if directed == 0 { None } else { Some(rows()?) };
    if end != contents.len() {
        return Err(format!("{} words follow its end", contents.len() - end));
    }
    let graph = Graph { outgoing, incoming, weights };
    if words(&checksum(&parts(header, &graph))) != *checked {
        return Err("it is damaged: its checksum is another".into());
    }
    // Nothing but the checksum vouches for what was written.
    graph.outgoing.check()?;
    graph.incoming.as_ref().map_or(Ok(()), Rows::check)?;
    Ok(graph)
}

fn parts<'g>(header: &'g [u32], graph: &'g Graph) -> Vec<&'g [u32]> {
    let mut parts = vec![header];
    for rows in std::iter::once(&graph.outgoing).chain(&graph.incoming) {
        parts.extend([&*rows.offsets, &*rows.targets, &*rows.weights]);
    }
    parts
}

/// Of blocks of each part, so that all cores can compute it.
fn checksum(parts: &[&[u32]]) -> blake3::Hash {
    const BLOCK: usize = 1 << 16;
    let mut all = blake3::Hasher::new();
    for part in parts {
        let blocks: Vec<&[u32]> = part.chunks(BLOCK).collect();
        let hashes = in_parts("checking", blocks.len() * BLOCK, |range| {
            let blocks = &blocks[range.start.div_ceil(BLOCK)..range.end.div_ceil(BLOCK)];
            blocks.iter().map(|block| blake3::hash(bytemuck::cast_slice(block))).collect::<Vec<_>>()
        });
        hashes.iter().flatten().for_each(|hash| _ = all.update(hash.as_bytes()));
    }
    all.finalize()
}
