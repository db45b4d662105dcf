//! Words of a graph: in memory, or in a file of the [cache](super::cache).

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::Mmap;

/// A list of words that does not change.
#[derive(Clone)]
pub struct Words(Held);

#[derive(Clone)]
enum Held {
    Own(Vec<u32>),
    Mapped(Map, Range<usize>),
}

impl Default for Words {
    fn default() -> Words {
        Vec::new().into()
    }
}

impl From<Vec<u32>> for Words {
    fn from(words: Vec<u32>) -> Words {
        Words(Held::Own(words))
    }
}

impl Deref for Words {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match &self.0 {
            Held::Own(words) => words,
            Held::Mapped(map, range) => &map.words()[range.clone()],
        }
    }
}

impl AsRef<[u32]> for Words {
    fn as_ref(&self) -> &[u32] {
        self
    }
}

impl<W: AsRef<[u32]>> PartialEq<W> for Words {
    fn eq(&self, other: &W) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Words {}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The words of a file, which stay as long as somebody uses them.
#[derive(Clone)]
pub(super) struct Map(Arc<Mmap>);

impl Map {
    /// Maps a file that is replaced by others, but never written to.
    pub(super) fn new(file: &File) -> io::Result<Map> {
        // SAFETY: files of the cache are complete before they get their name, and are only renamed and removed after, both of which
        // leave a mapping as it is. Somebody else who writes to the cache of a user can do anything that this user can.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(file) }?;
        Ok(Map(Arc::new(map)))
    }

    /// All of them; none if the file has no whole number of them.
    pub(super) fn words(&self) -> &[u32] {
        bytemuck::try_cast_slice(&self.0).unwrap_or_default()
    }

    /// A part, which is inside.
    pub(super) fn part(&self, range: Range<usize>) -> Words {
        Words(Held::Mapped(self.clone(), range))
    }
}
