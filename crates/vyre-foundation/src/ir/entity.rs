//! Typed ids and the arenas they index.
//!
//! Entities of a [`Program`](super::Program) refer to each other by typed id, so that ids of different kinds cannot be confused.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A typed index into an [`Arena`].
pub trait Entity: Copy + Eq {
    /// The id of the `index`-th entity.
    fn from_index(index: usize) -> Self;
    /// The position of this entity in its arena.
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[doc = $doc:literal])+ $name:ident, $prefix:literal) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl Entity for $name {
            fn from_index(index: usize) -> Self {
                $name(u32::try_from(index).expect("an arena holds fewer than 2^32 entities"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

entity! {
    /// A value: the result of an instruction, a block parameter, a literal or a specialization constant.
    ValueId, "v"
}
entity! {
    /// A memory object of a program.
    MemId, "mem"
}
entity! {
    /// An instruction.
    InstId, "inst"
}
entity! {
    /// A block: a list of instructions that ends in a terminator.
    BlockId, "block"
}
entity! {
    /// A specialization constant.
    ConstantId, "const"
}
entity! {
    /// A buffer of a pipeline.
    BufferId, "buffer"
}

/// A list of `V`, indexed by `K`. Entities are never removed, so ids stay valid.
#[derive(Clone)]
pub struct Arena<K, V> {
    items: Vec<V>,
    key: PhantomData<fn(K) -> K>,
}

impl<K: Entity, V> Arena<K, V> {
    /// Reserves room for `additional` more entities.
    pub fn reserve(&mut self, additional: usize) {
        self.items.reserve(additional);
    }

    /// Adds an entity and returns its id.
    pub fn push(&mut self, value: V) -> K {
        self.items.push(value);
        K::from_index(self.items.len() - 1)
    }

    /// The entity with this id, if the arena has it.
    pub fn get(&self, key: K) -> Option<&V> {
        self.items.get(key.index())
    }

    /// Number of entities.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns true if there are no entities.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All ids, in insertion order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + use<K, V> {
        (0..self.items.len()).map(K::from_index)
    }

    /// All entities with their ids, in insertion order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(index, value)| (K::from_index(index), value))
    }

    /// All entities, in insertion order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.items.iter()
    }
}

impl<K, V> Default for Arena<K, V> {
    fn default() -> Self {
        Arena { items: Vec::new(), key: PhantomData }
    }
}

impl<K: Entity, V> Index<K> for Arena<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.items[key.index()]
    }
}

impl<K: Entity, V> IndexMut<K> for Arena<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.items[key.index()]
    }
}

impl<K: Entity + fmt::Debug, V: fmt::Debug> fmt::Debug for Arena<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A side table: a `V` for each `K`. Unwritten keys, also those of entities added later, have the default entry.
#[derive(Clone)]
pub struct SecondaryMap<K, V> {
    items: Vec<V>,
    default: V,
    key: PhantomData<fn(K) -> K>,
}

impl<K: Entity, V: Clone + Default> Default for SecondaryMap<K, V> {
    fn default() -> Self {
        SecondaryMap::new(V::default())
    }
}

impl<K: Entity, V: Clone> SecondaryMap<K, V> {
    /// A table whose every entry is `default`.
    pub fn new(default: V) -> Self {
        SecondaryMap { items: Vec::new(), default, key: PhantomData }
    }

    /// A table with room for `len` entries, each of which is `default`.
    pub fn with_capacity(len: usize, default: V) -> Self {
        SecondaryMap { items: vec![default.clone(); len], default, key: PhantomData }
    }

    /// Stored entries with their keys: written ones, and defaults between them.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(index, value)| (K::from_index(index), value))
    }

    /// The values of [`iter`](SecondaryMap::iter).
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.items.iter()
    }
}

impl<K: Entity, V: Default> FromIterator<V> for SecondaryMap<K, V> {
    /// Assigns the values to the first keys, in order.
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        SecondaryMap { items: values.into_iter().collect(), default: V::default(), key: PhantomData }
    }
}

impl<K: Entity, V> Index<K> for SecondaryMap<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        self.items.get(key.index()).unwrap_or(&self.default)
    }
}

impl<K: Entity, V: Clone> IndexMut<K> for SecondaryMap<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        let index = key.index();
        if index >= self.items.len() {
            self.items.resize(index + 1, self.default.clone());
        }
        &mut self.items[index]
    }
}

impl<K: Entity + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for SecondaryMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
