//! Radix sorts.
//!
//! Keys are words whose order as unsigned numbers is the order that is wanted. A pass moves them by 8 of their bits, from the lowest
//! upwards, and keeps the order of those that are equal in these: blocks count their digits, a scan says where the keys with
//! each digit of each block go, and blocks move them there. Where the last block is not full, it has keys with the highest digit, which
//! end up beyond the end and are not stored.

use super::elementwise::{gathered, mapped};
use super::scan::Scan;
use super::{built, expect, limited};
use crate::build::{Kernel, Object, Read, Single, Val};
use crate::device::Batch;
use crate::ir::{self, Axis};
use crate::{Buffer, Device, Element, Error, Launch, Number, kernel};

/// Numbers that can be sorted. Floats are in their total order: −NaN, −∞, …, −0, +0, …, ∞, NaN.
pub trait Key: Number + 'static {
    #[doc(hidden)]
    const LEAST: Self;
    #[doc(hidden)]
    const GREATEST: Self;
    /// The bit of the highest word that is changed in all keys; in negative floats, all others are as well.
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
/// Keys of a lane that moves them.
const RUN: u32 = 1024;
const DIGITS: u32 = 256;

/// Sorts, from the least to the greatest. There are at most 2³¹ keys, and of those with 64 bits 2³⁰.
///
/// - Work: n for each byte of a key, in three launches where [scans](super::inclusive_scan) are one, and elsewhere in four for up to 2²⁴
///   keys; signed keys and floats take two launches more in all.
/// - Memory: n keys and n ÷ 32 words.
/// - Exactness: the same bits everywhere, also those of a NaN.
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

/// Sorts keys, and values along with them. Of equal keys, the value that came first stays first.
///
/// - Work: as [`sort`]; values that have not 32 bits are copied first and moved at the end, in three launches more.
/// - Memory: n keys and n values; for values that have not 32 bits, n words twice more; and n ÷ 32 words.
/// - Exactness: the same bits everywhere, also those of a NaN.
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

/// Which key is the first, the second, and so on, from the least to the greatest: `order[0]` is where the least is. Of equal keys, the
/// first comes first.
///
/// - Work: as [`sort`], in two launches more.
/// - Memory: n keys twice, n words and n ÷ 32 words.
/// - Exactness: the same everywhere.
///
/// # Errors
/// The lengths differ, or a launch fails.
pub fn argsort<K: Key>(device: &Device, keys: &Buffer<K>, order: &mut Buffer<u32>) -> Result<(), Error> {
    expect("order", order, keys.len())?;
    let mut batch = Batch::new(device);
    ordered(&mut batch, keys, order, 0)?;
    batch.run()
}

/// The greatest keys, as many as `values` has room for, from the greatest downwards, and where they are. Of equal keys, the first comes
/// first.
///
/// - Work: as [`argsort`] of all keys, in two launches more; unsigned keys are changed like others.
/// - Memory: n keys twice, n words twice and n ÷ 32 words.
/// - Exactness: the same bits everywhere, also those of a NaN.
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

/// The order of keys with these bits changed.
fn ordered<K: Key>(batch: &mut Batch<'_>, keys: &Buffer<K>, order: &mut Buffer<u32>, change: u32) -> Result<(), Error> {
    let n = count_of(keys)?;
    let copied = batch.device().zeros(n)?;
    // As words, so that it does not matter whether the device computes with such numbers.
    batch.push(mapped(&words(keys)?, &words::<K>(&copied)?, |word| word), n * (size_of::<K>() / 4))?;
    batch.push(number(order), n)?;
    sorted::<K>(batch, &copied, Some(order), change)
}

/// The number of keys, if indices of their words fit into 32 bits.
fn count_of<K: Key>(keys: &Buffer<K>) -> Result<usize, Error> {
    limited("keys", keys.len(), size_of::<K>() / 4)
}

/// A buffer as words, as many as [`count_of`] lets through.
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

/// Makes words of keys, whose order is that of the keys, or keys of them again (`back` is 1). Orders that go downwards change all bits.
#[kernel(workgroup = 256)]
fn flip<const WORDS: usize>(sign: u32, is_float: u32, change: u32, back: u32, keys: &mut [u32]) {
    let first = global_index() * WORDS;
    let last = first + WORDS - 1;
    if last < keys.len() {
        // Negative floats have the sign as keys, and do not have it as words.
        let highest = keys[last] ^ (change * back);
        let is_negative = is_float != 0 && highest >> 31 != back;
        keys[last] ^= change ^ if is_negative { ALL_BITS } else { sign };
        if WORDS > 1 {
            keys[first] ^= change ^ if is_negative { ALL_BITS } else { 0 };
        }
    }
}

/// Sorts keys, and words along with them, by the order of keys with these bits changed.
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

/// Sorts keys of so many words, and words along with them.
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
    // There is an even number of passes, so that everything ends where it began.
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

/// The keys of a program, and which of their bits are the digit.
struct Keys<'k, const WORDS: usize> {
    keys: Object<'k, u32, Read>,
    word: Val<'k, u32>,
    shift: Val<'k, u32>,
}

impl<'k, const WORDS: usize> Keys<'k, WORDS> {
    /// Keys of one access.
    const WIDE: u32 = 4 / WORDS as u32;

    fn new(k: &'k Kernel) -> Self {
        let (word, shift) = (k.uniform::<u32>("word"), k.uniform::<u32>("shift"));
        Keys { keys: k.read::<u32>("keys"), word: word.load(), shift: shift.load() }
    }

    /// The keys at the word `at`, each as its words and its digit.
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

/// Counts the digits of each block: those of all blocks with digit 0, then those with digit 1, and so on.
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

/// Moves the keys of each block to where those with their digits begin, in their order.
///
/// A lane takes a run of neighbours. It counts their digits; then each lane takes some digits, and finds out where the keys of all runs go; and
/// then it moves its own.
fn spread<const WORDS: usize, const PAIRS: bool>() -> Launch<'static> {
    const LANES: u32 = BLOCK / RUN;
    built("spread_digits", [LANES, 1, 1], |k| {
        let (keys, starts, sorted) = (Keys::<WORDS>::new(k), k.read::<u32>("starts"), k.write::<u32>("sorted"));
        let values = PAIRS.then(|| (k.read::<u32>("values"), k.write::<u32>("sorted_values")));
        // For each lane and digit, how many keys there are, and then where the next one goes.
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
