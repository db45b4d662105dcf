//! Persistent cache of built graphs, in files that are read on all cores.
//!
//! ```text
//! file = magic version weights directed nodes edges key:[_; 8] rows… checksum:[_; 8]     words in the byte order of the machine
//! rows = offsets targets weights        of outgoing edges, and then of incoming ones if the graph is directed
//! ```
//!
//! A key covers everything that a graph depends on, so an entry is never stale. The length of the file is checked against the numbers of
//! nodes and edges before memory is allocated, and checksum and rows are verified before the graph is used; a damaged file is deleted, and
//! the graph is built again. Files are read, not mapped: truncating a mapped file would kill the process that accesses it. Files are
//! replaced atomically, as in the program cache, and the oldest are evicted.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vyre_driver::{Damage as FileDamage, PrivateFolder};

use super::memory::{self, zeroed};
use super::{BadRows, Graph, Rows, Weights, in_blocks, in_parts};
use crate::Error;

/// A cache folder of graphs, which processes may share.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PrivateFolder,
}

/// Result of a cache lookup.
#[derive(Debug, PartialEq)]
pub enum Lookup {
    /// The graph was read from the cache.
    Hit,
    /// There was no entry, so the graph was built.
    Miss,
    /// The entry was damaged, so the graph was built.
    Damaged(Error),
}

/// Damage of a cache file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// Damage of cache files in general.
    #[error(transparent)]
    File(#[from] vyre_driver::Damage),
    /// A directory, device or pipe.
    #[error("it is not a file")]
    NotAFile,
    /// A key of another graph.
    #[error("it belongs to another graph")]
    Key,
    /// An unknown type of weights.
    #[error("the type of weights is {0}, but must be 0, 1 or 2")]
    Weights(u32),
    /// Another length than that of the graph in the header.
    #[error("it has {found} bytes, but its header requires {expected}")]
    Length {
        /// Bytes of the file.
        found: u64,
        /// Bytes according to the header.
        expected: u64,
    },
    /// Malformed rows.
    #[error(transparent)]
    Rows(#[from] BadRows),
}

/// Maximum size of all files together.
const MOST_BYTES: u64 = 8 << 30;
const MOST_FILES: usize = 1024;
/// Smaller graphs are not cached: building them is faster than opening a file.
const LEAST_EDGES: u32 = 1 << 14;
const EXTENSION: &str = "graph";

impl Cache {
    /// Creates a cache in a folder. The folder need not exist; where it cannot be read or written, every lookup is a miss.
    pub fn kept_in(folder: PrivateFolder) -> Cache {
        Cache { folder }
    }

    /// Returns the cached graph, or builds and caches it. `origin` names everything that the graph depends on apart from the version of
    /// vyre.
    ///
    /// # Errors
    /// `build` fails, or the graph takes more memory than the [limit](super::limited).
    pub fn graph(&self, origin: &str, build: impl FnOnce() -> Result<Graph, Error>) -> Result<(Graph, Lookup), Error> {
        let _span = tracing::info_span!("cached graph").entered();
        let key = key(origin);
        let name = format!("{}.{EXTENSION}", key.to_hex());
        let lookup = match load(self.folder.file(&name), &key) {
            Ok(graph) => return Ok((graph, Lookup::Hit)),
            Err(Refusal::Damaged(reason)) => {
                let _ = self.folder.remove(&name);
                Lookup::Damaged(Error::CachedGraph { file: self.folder.path().join(&name), reason })
            }
            Err(Refusal::Unreadable(_)) => Lookup::Miss,
            Err(Refusal::Memory(error)) => return Err(error),
        };
        let graph = build()?;
        if graph.edges() >= LEAST_EDGES {
            store(&self.folder, &name, &key, &graph);
            self.folder.evict(EXTENSION, MOST_BYTES, MOST_FILES);
        }
        Ok((graph, lookup))
    }
}

/// Reads a cache file without deleting it if it is damaged.
///
/// # Errors
/// [`Error::CachedGraph`] with the damage.
pub fn inspect(file: &Path) -> Result<Graph, Error> {
    let key = file.file_stem().and_then(|name| blake3::Hash::from_hex(name.as_encoded_bytes()).ok());
    let graph = match key {
        Some(key) => load(File::open(file), &key),
        None => Err(Refusal::Damaged(FileDamage::Name("graph").into())),
    };
    graph.map_err(|refusal| match refusal {
        Refusal::Damaged(reason) => Error::CachedGraph { file: file.into(), reason },
        Refusal::Unreadable(error) => Error::CachedGraph { file: file.into(), reason: FileDamage::from(error).into() },
        Refusal::Memory(error) => error,
    })
}

/// Identity and version of a file, for [`Cache::graph`]: path, device, inode, size, and the times of the last change of its contents
/// (mtime) and of its inode (ctime). Programs such as `cp -p` can set the mtime, but not the ctime. A file that was changed within the last
/// two seconds has no origin, since another change in the same clock tick would not change its times; pipes and devices have none either.
pub fn origin(file: &Path) -> Option<String> {
    /// Coarsest timestamp resolution of common file systems.
    const TICK: Duration = Duration::from_secs(2);
    let (path, metadata) = (file.canonicalize().ok()?, fs::metadata(file).ok()?);
    let (changed, identity) = version(&metadata)?;
    changed.elapsed().ok().filter(|age| metadata.is_file() && *age > TICK)?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    let changed = changed.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    Some(format!("{} {modified} {changed} {identity} {path:?}", metadata.len()))
}

/// Returns the time of the last change and the identity of the file.
#[cfg(unix)]
fn version(metadata: &Metadata) -> Option<(SystemTime, String)> {
    use std::os::unix::fs::MetadataExt as _;
    let changed = Duration::new(u64::try_from(metadata.ctime()).ok()?, u32::try_from(metadata.ctime_nsec()).ok()?);
    Some((UNIX_EPOCH.checked_add(changed)?, format!("{}:{}", metadata.dev(), metadata.ino())))
}

#[cfg(not(unix))]
fn version(metadata: &Metadata) -> Option<(SystemTime, String)> {
    Some((metadata.modified().ok()?, String::new()))
}

fn key(origin: &str) -> blake3::Hash {
    blake3::hash(format!("{VERSION} {} {origin}", env!("CARGO_PKG_VERSION")).as_bytes())
}

// Files.

const MAGIC: u32 = u32::from_be_bytes(*b"vgph");
/// Version of the format and of graph construction; a change of either increments it.
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
    let mut all = blake3::Hasher::new();
    for part in &parts {
        let blocks: Vec<&[u32]> = part.chunks(BLOCK).collect();
        let hashes = in_parts("checking", blocks.len() * BLOCK, |range| {
            let blocks = &blocks[range.start.div_ceil(BLOCK)..range.end.div_ceil(BLOCK)];
            blocks.iter().map(|block| blake3::hash(bytemuck::cast_slice(block))).collect::<Vec<_>>()
        });
        hashes.iter().flatten().for_each(|hash| _ = all.update(hash.as_bytes()));
    }
    let checksum = words(&all.finalize());
    parts.push(&checksum);
    let parts: Vec<&[u8]> = parts.into_iter().map(bytemuck::cast_slice).collect();
    // A graph that cannot be written is a miss the next time.
    let _ = folder.replace(name, &parts);
}

/// Reason why a file was not loaded.
enum Refusal {
    /// The file does not exist or cannot be read.
    Unreadable(io::Error),
    Damaged(Damage),
    /// Memory limit exceeded, or a failed allocation.
    Memory(Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        match error.kind() {
            // The file was truncated while it was read.
            io::ErrorKind::UnexpectedEof => FileDamage::CutOff.into(),
            _ => Refusal::Unreadable(error),
        }
    }
}

impl From<FileDamage> for Refusal {
    fn from(damage: FileDamage) -> Refusal {
        Refusal::Damaged(damage.into())
    }
}

impl From<Damage> for Refusal {
    fn from(damage: Damage) -> Refusal {
        Refusal::Damaged(damage)
    }
}

impl From<BadRows> for Refusal {
    fn from(rows: BadRows) -> Refusal {
        Refusal::Damaged(rows.into())
    }
}

/// Words of a block, the unit of parallel reading and hashing.
const BLOCK: usize = 1 << 16;

/// Reads and checks the graph of a file.
fn load(file: io::Result<File>, key: &blake3::Hash) -> Result<Graph, Refusal> {
    let file = file?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Damage::NotAFile.into());
    }
    let mut header = [0; HEADER];
    read_words(&file, 0, &mut header)?;
    let (&[magic, version, weights, directed, nodes, edges], found) =
        header.split_first_chunk().ok_or(FileDamage::CutOff)?;
    if [magic, version] != [MAGIC, VERSION] {
        return Err(FileDamage::Version.into());
    }
    if *found != words(key) {
        return Err(Damage::Key.into());
    }
    let weights = match weights {
        0 => Weights::None,
        1 => Weights::Whole,
        2 => Weights::Real,
        _ => return Err(Damage::Weights(weights).into()),
    };
    let (nodes, edges) = (nodes as usize, edges as usize);
    let lengths = [nodes + 1, edges, if weights == Weights::None { 0 } else { edges }];
    let directions = if directed == 0 { 1 } else { 2 };
    let all = 4 * (HEADER as u64 + directions * lengths.iter().map(|length| *length as u64).sum::<u64>() + HASH as u64);
    if metadata.len() != all {
        return Err(Damage::Length { found: metadata.len(), expected: all }.into());
    }
    memory::check(all, || format!("a graph of {nodes} nodes and {edges} edges")).map_err(Refusal::Memory)?;

    let mut checksum = blake3::Hasher::new();
    checksum.update(blake3::hash(bytemuck::cast_slice(&header)).as_bytes());
    let mut end = HEADER;
    let mut part = |length: usize| {
        let start = end;
        end += length;
        let mut words: Vec<u32> = zeroed("words of a graph", length).map_err(Refusal::Memory)?;
        let hashes = in_blocks("reading", &mut words, BLOCK, |number, block| {
            read_words(&file, start + number * BLOCK, block).map(|()| blake3::hash(bytemuck::cast_slice(block)))
        });
        for hash in hashes {
            checksum.update(hash?.as_bytes());
        }
        Ok::<_, Refusal>(words)
    };
    let mut rows = || {
        Ok::<_, Refusal>(Rows { offsets: part(lengths[0])?, targets: part(lengths[1])?, weights: part(lengths[2])? })
    };
    let outgoing = rows()?;
    let incoming = if directed == 0 { None } else { Some(rows()?) };
    let mut expected = [0; HASH];
    read_words(&file, end, &mut expected)?;
    if words(&checksum.finalize()) != expected {
        return Err(FileDamage::Checksum.into());
    }
    // The checksum detects corruption, not a file that was written with wrong rows.
    outgoing.check()?;
    incoming.as_ref().map_or(Ok(()), Rows::check)?;
    Ok(Graph { outgoing, incoming, weights })
}

/// Positional read at an offset in words: threads share the file handle and do not use its cursor.
fn read_words(file: &File, start: usize, words: &mut [u32]) -> io::Result<()> {
    let (mut bytes, mut offset): (&mut [u8], u64) = (bytemuck::cast_slice_mut(words), 4 * start as u64);
    while !bytes.is_empty() {
        #[cfg(unix)]
        let count = std::os::unix::fs::FileExt::read_at(file, bytes, offset);
        #[cfg(windows)]
        let count = std::os::windows::fs::FileExt::seek_read(file, bytes, offset);
        match count {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => (bytes, offset) = (&mut bytes[count..], offset + count as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn parts<'g>(header: &'g [u32], graph: &'g Graph) -> Vec<&'g [u32]> {
    let mut parts = vec![header];
    for rows in std::iter::once(&graph.outgoing).chain(&graph.incoming) {
        parts.extend([&*rows.offsets, &*rows.targets, &*rows.weights]);
    }
    parts
}
