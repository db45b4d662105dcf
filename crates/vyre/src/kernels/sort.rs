//! LSD radix sorts.
//!
//! Keys are first mapped to unsigned words with the same order. Each pass is a stable counting sort by 8 bits, from the lowest up: blocks
//! count their digits (histogram), an exclusive scan of the counts gives the destination of each block's keys per digit, and blocks
//! scatter their keys. The last block is padded with keys of the highest digit, whose destinations are out of bounds, so their stores
//! are dropped.

use super::elementwise::{gathered, mapped};
use super::scan::Scan;
use super::{built, expect, limited};
use crate::build::{Kernel, Object, Read, Single, Val};
use crate::device::Batch;
use crate::ir::{self, Axis};
use crate::{Buffer, Device, Element, Error, Launch, Number, kernel};

/// Sortable numbers. Floats are sorted in their total order: −NaN, −∞, …, −0, +0, …, ∞, NaN.
pub trait Key: Number + 'static {
    #[doc(hidden)]
    const LEAST: Self;
    #[doc(hidden)]
    const GREATEST: Self;
    /// Sign bit of the highest word, which is flipped in all keys; in negative floats, all other bits are flipped too.
    #[doc(hidden)]
    const SIGN: u32;
    #[doc(hidden)]
    const IS_FLOAT: u32;
}

macro_rules! keys {
    ($($ty:ident $least:ident $greatest:ident $sign:literal $is_float:literal;)*) => { $(
        impl Key for $ty {
            const LEAST: Self = $ty::$least;
            const GREATEST: Self = $ty::$greatest;
            const SIGN: u32 = $sign << 31;
            const IS_FLOAT: u32 = $is_float;
        }
    )* };
}
keys! {
    u32 MIN MAX 0 0;
    u64 MIN MAX 0 0;
    i32 MIN MAX 1 0;
    i64 MIN MAX 1 0;
    f32 NEG_INFINITY INFINITY 1 1;
    f64 NEG_INFINITY INFINITY 1 1;
}

/// Keys of a block.
const BLOCK: u32 = 16384;
/// Consecutive keys that one invocation scatters.
const RUN: u32 = 1024;
const DIGITS: u32 = 256;

/// Sorts keys in ascending order. The maximum is 2³¹ keys, or 2³⁰ of 64 bits.
///
/// - Work: n for each byte of a key, in three launches where [scans](super::inclusive_scan) are one, and elsewhere in four for up to 2²⁴
///   keys; signed keys and floats take two more launches in total.
/// - Memory: n keys and n ÷ 32 words.
/// - Exactness: the same bits everywhere, including NaN payloads.
///
/// ```
/// # use vyre::{Device, kernels};
/// # fn main() -> Result<(), vyre::Error> {
/// # let device = Device::auto()?;
/// let mut keys = device.upload(&[3.0f32, -1.0, f32::INFINITY, -0.5])?;
/// kernels::sort(&device, &mut keys)?;
/// assert_eq!(keys.download()?, [-1.0, -0.5, 3.0, f32::INFINITY]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A launch fails.
pub fn sort<K: Key>(device: &Device, keys: &mut Buffer<K>) -> Result<(), Error> {
    let mut batch = Batch::new(device);
    sorted::<K>(&mut batch, keys, None, 0)?;
    batch.run()
}

/// Sorts key-value pairs by key. The sort is stable: values of equal keys keep their order.
///
/// - Work: as [`sort`]; values of a width other than 32 bits are copied first and permuted at the end, in three more launches.
/// - Memory: n keys and n values; for values of another width, 2 n words more; and n ÷ 32 words.
/// - Exactness: the same bits everywhere, including NaN payloads.
///
/// # Errors
/// The lengths differ, or a launch fails.
pub fn sort_by_key<K, V>(device: &Device, keys: &mut Buffer<K>, values: &mut Buffer<V>) -> Result<(), Error>
where
    K: Key,
    V: Element + Single + 'static,
{
    let n = count_of(keys)?;
    expect("values", values, n)?;
    let mut batch = Batch::new(device);
    if size_of::<V>() == 4 {
        sorted::<K>(&mut batch, keys, Some(&words(values)?), 0)?;
        return batch.run();
    }
    let (mut order, unsorted) = (device.zeros(n)?, device.zeros(n)?);
    batch.push(mapped(values, &unsorted, |value| value), n)?;
    batch.push(number(&mut order), n)?;
    sorted::<K>(&mut batch, keys, Some(&order), 0)?;
    batch.push(gathered(&unsorted, &order, values), n)?;
    batch.run()
}

/// Computes the permutation that sorts the keys in ascending order: `order[0]` is the index of the least key. The sort is stable.
///
/// - Work: as [`sort`], in two more launches.
/// - Memory: 2 n keys, n words and n ÷ 32 words.
/// - Exactness: the same permutation everywhere: a stable sort has only one.
///
/// # Errors
/// The lengths differ, or a launch fails.
pub fn argsort<K: Key>(device: &Device, keys: &Buffer<K>, order: &mut Buffer<u32>) -> Result<(), Error> {
    expect("order", order, keys.len())?;
    let mut batch = Batch::new(device);
    ordered(&mut batch, keys, order, 0)?;
    batch.run()
}

/// Finds the k greatest keys, where k is the length of `values`, in descending order, and their indices. Equal keys are in the order of
/// their indices.
///
/// - Work: as [`argsort`] of all keys, in two more launches; unsigned keys are mapped like signed ones.
/// - Memory: 2 n keys, 2 n words and n ÷ 32 words.
/// - Exactness: the same bits everywhere, including NaN payloads.
///
/// # Errors
/// `values` is longer than `keys`, `indices` has another length, or a launch fails.
pub fn top_k<K: Key>(
    device: &Device,
    keys: &Buffer<K>,
    values: &mut Buffer<K>,
    indices: &mut Buffer<u32>,
) -> Result<(), Error> {
    let k = values.len();
    expect("indices", indices, k)?;
    if k > keys.len() {
        return Err(Error::Length { name: "values", expected: keys.len(), found: k });
    }
    let mut order = device.zeros(count_of(keys)?)?;
    let mut batch = Batch::new(device);
    ordered(&mut batch, keys, &mut order, u32::MAX)?;
    batch.push(mapped(&*order.slice(0..k)?, indices, |at| at), k)?;
    batch.push(gathered(keys, indices, values), k)?;
    batch.run()
}

/// Adds launches that write the stable sort permutation of `keys` to `order`; the bits `change` of each key are flipped for comparison.
fn ordered<K: Key>(batch: &mut Batch<'_>, keys: &Buffer<K>, order: &mut Buffer<u32>, change: u32) -> Result<(), Error> {
    let n = count_of(keys)?;
    let copied = batch.device().zeros(n)?;
    // Copied as words, so that the device need not support the key type.
    batch.push(mapped(&words(keys)?, &words::<K>(&copied)?, |word| word), n * (size_of::<K>() / 4))?;
    batch.push(number(order), n)?;
    sorted::<K>(batch, &copied, Some(order), change)
}

/// Number of keys, if indices of their words fit into 32 bits.
fn count_of<K: Key>(keys: &Buffer<K>) -> Result<usize, Error> {
    limited("keys", keys.len(), size_of::<K>() / 4)
}

/// Views a buffer, whose length [`count_of`] has checked, as words.
fn words<T: Element>(buffer: &Buffer<T>) -> Result<Buffer<u32>, Error> {
    let count = buffer.len() * (size_of::<T>() / 4);
    Ok(Buffer::new(buffer.on_device()?.view(ir::Element::U32, count as u32)?))
}

#[kernel(workgroup = 256)]
fn number(order: &mut [u32]) {
    let i = global_index();
    if i < order.len() {
        order[i] = i as u32;
    }
}

const ALL_BITS: u32 = u32::MAX;

/// Maps keys to unsigned words of the same order, or back (`back` = 1). Descending orders flip all bits.
#[kernel(workgroup = 256)]
fn flip<const WORDS: usize>(sign: u32, is_float: u32, change: u32, back: u32, keys: &mut [u32]) {
    let first = global_index() * WORDS;
    let last = first + WORDS - 1;
    if last < keys.len() {
        // Negative floats have the sign bit set as keys and clear as words.
        let highest = keys[last] ^ (change * back);
        let is_negative = is_float != 0 && highest >> 31 != back;
        keys[last] ^= change ^ if is_negative { ALL_BITS } else { sign };
        if WORDS > 1 {
            keys[first] ^= change ^ if is_negative { ALL_BITS } else { 0 };
        }
    }
}

/// Records a sort of keys, with 32-bit values, by keys whose bits `change` are flipped.
fn sorted<K: Key>(
    batch: &mut Batch<'_>,
    keys: &Buffer<K>,
    values: Option<&Buffer<u32>>,
    change: u32,
) -> Result<(), Error> {
    count_of(keys)?;
    match size_of::<K>() {
        4 => in_words::<K, 1>(batch, words(keys)?, values, change),
        _ => in_words::<K, 2>(batch, words(keys)?, values, change),
    }
}

fn in_words<K: Key, const WORDS: usize>(
    batch: &mut Batch<'_>,
    mut keys: Buffer<u32>,
    values: Option<&Buffer<u32>>,
    change: u32,
) -> Result<(), Error> {
    let (n, changes) = (keys.len() / WORDS, K::SIGN | change != 0);
    if changes {
        batch.push(flip::<WORDS>(K::SIGN, K::IS_FLOAT, change, 0, &mut keys), n)?;
    }
    passes::<WORDS>(batch, &keys, values)?;
    if changes {
        batch.push(flip::<WORDS>(K::SIGN, K::IS_FLOAT, change, 1, &mut keys), n)?;
    }
    Ok(())
}

/// Records the passes over unsigned keys of `WORDS` words, with 32-bit values.
fn passes<const WORDS: usize>(
    batch: &mut Batch<'_>,
    keys: &Buffer<u32>,
    values: Option<&Buffer<u32>>,
) -> Result<(), Error> {
    let device = batch.device();
    let blocks = (keys.len() / WORDS).div_ceil(BLOCK as usize);
    let [counts, starts] = [device.zeros::<u32>(DIGITS as usize * blocks)?, device.zeros(DIGITS as usize * blocks)?];
    let other = (device.zeros(keys.len())?, values.map(|values| device.zeros(values.len())).transpose()?);
    let mut from = (keys, values);
    let mut to = (&other.0, other.1.as_ref());
    // The number of passes is even, so the result ends up in the original buffers.
    for pass in 0..4 * WORDS as u32 {
        let place = |launch: Launch<'static>| launch.__scalar("word", pass / 4).__scalar("shift", 8 * (pass % 4));
        let count = place(count::<WORDS>()).__buffer("keys", from.0).__buffer("counts", &counts);
        batch.push(count, blocks * DIGITS as usize)?;
        Scan::new(&counts, &starts, 0, |a, b| a + b).record::<false>(batch)?;
        let launch = match (from.1, to.1) {
            (Some(from), Some(to)) => {
                place(spread::<WORDS, true>()).__buffer("values", from).__buffer("sorted_values", to)
            }
            _ => place(spread::<WORDS, false>()),
        };
        let launch = launch.__buffer("keys", from.0).__buffer("starts", &starts).__buffer("sorted", to.0);
        batch.push(launch, blocks * (BLOCK / RUN) as usize)?;
        std::mem::swap(&mut from, &mut to);
    }
    Ok(())
}

/// The key buffer of a program, and the position of the digit.
struct Keys<'k, const WORDS: usize> {
    keys: Object<'k, u32, Read>,
    word: Val<'k, u32>,
    shift: Val<'k, u32>,
}

impl<'k, const WORDS: usize> Keys<'k, WORDS> {
    /// Keys per wide access.
    const WIDE: u32 = 4 / WORDS as u32;

    fn new(k: &'k Kernel) -> Self {
        let (word, shift) = (k.uniform::<u32>("word"), k.uniform::<u32>("shift"));
        Keys { keys: k.read::<u32>("keys"), word: word.load(), shift: shift.load() }
    }

    /// Loads the keys at word `at`, and returns the words and the digit of each.
    fn load(&self, at: Val<'k, u32>) -> impl Iterator<Item = (Vec<Val<'k, u32>>, Val<'k, u32>)> {
        let words: [Val<'k, u32>; 4] = self.keys.load_wide(at);
        let (word, shift, length) = (self.word, self.shift, self.keys.len());
        (0..4).step_by(WORDS).map(move |first| {
            let key = words[first..first + WORDS].to_vec();
            let digits = if WORDS == 1 { key[0] } else { word.eq(0).select(key[0], key[1]) };
            let is_inside = (at + first as u32).lt(length);
            (key, is_inside.select(digits >> shift & (DIGITS - 1), DIGITS - 1))
        })
    }
}

/// Digit histogram of each block, stored digit-major: the counts of digit 0 of all blocks, then those of digit 1, and so on.
fn count<const WORDS: usize>() -> Launch<'static> {
    built("count_digits", [DIGITS, 1, 1], |k| {
        let (keys, counts) = (Keys::<WORDS>::new(k), k.write::<u32>("counts"));
        let bins = k.workgroup_atomic::<u32>("bins", DIGITS);
        let (lane, block) = (k.local_index(), k.group_index());
        bins.store(lane, 0);
        k.workgroup_barrier();
        let length = BLOCK * WORDS as u32;
        let start = block * length;
        k.for_range_step(start, start + length, 4 * DIGITS, |step| {
            for (_, digit) in keys.load(lane * 4 + step) {
                bins.add(digit, 1);
            }
        });
        k.workgroup_barrier();
        counts.store(lane * k.group_count(Axis::X) + block, bins.load(lane));
    })
}

/// Stable scatter of the keys of each block to the destinations of their digits.
///
/// Each invocation has a run of consecutive keys and counts their digits. A scan over the runs, per digit, gives the destinations; then
/// each invocation scatters its run.
fn spread<const WORDS: usize, const PAIRS: bool>() -> Launch<'static> {
    const LANES: u32 = BLOCK / RUN;
    built("spread_digits", [LANES, 1, 1], |k| {
        let (keys, starts, sorted) = (Keys::<WORDS>::new(k), k.read::<u32>("starts"), k.write::<u32>("sorted"));
        let values = PAIRS.then(|| (k.read::<u32>("values"), k.write::<u32>("sorted_values")));
        // Per invocation and digit: first the number of keys, then the destination of the next one.
        let places = k.workgroup_atomic::<u32>("places", LANES * DIGITS);
        let (lane, block) = (k.local_index(), k.group_index());
        k.for_range_step(lane, LANES * DIGITS, LANES, |place| places.store(place, 0));
        k.workgroup_barrier();
        let (row, start) = (lane * DIGITS, block * BLOCK + lane * RUN);
        k.for_range_step(0, RUN, Keys::<WORDS>::WIDE, |step| {
            for (_, digit) in keys.load((start + step) * WORDS as u32) {
                places.add(row + digit, 1);
            }
        });
        k.workgroup_barrier();
        k.for_range_step(lane, DIGITS, LANES, |digit| {
            let next = k.var(starts.load(digit * k.group_count(Axis::X) + block));
            k.for_range_step(digit, LANES * DIGITS, DIGITS, |place| {
                let count = places.load(place);
                places.store(place, next.get());
                next.set(next.get() + count);
            });
        });
        k.workgroup_barrier();
        k.for_range_step(0, RUN, Keys::<WORDS>::WIDE, |step| {
            for (number, (key, digit)) in (0..).zip(keys.load((start + step) * WORDS as u32)) {
                let to = places.load(row + digit);
                for (word, part) in (0..).zip(key) {
                    sorted.store(to * WORDS as u32 + word, part);
                }
                if let Some((values, sorted)) = values {
                    sorted.store(to, values.load(start + step + number));
                }
                places.store(row + digit, to + 1);
            }
        });
    })
}
