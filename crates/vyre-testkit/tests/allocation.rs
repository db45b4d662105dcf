//! Decoding and parsing allocate memory proportional to the input, whatever the input claims.
//!
//! # Bound
//!
//! The peak is at most [`PER_BYTE`] × the length of the input + [`FIXED`]. Lists grow by doubling, so that while one
//! grows, the old and the new list coexist: each item counts three times in the worst case.
//!
//! - In the wire format, the most expensive items are an empty program (9 bytes, about 300 in memory) and an empty
//!   block (2 bytes, 56 in memory): about 100 per byte.
//! - In text it is `if 0{};`: 7 bytes, which become six tokens of 32 bytes, two blocks of 48, their lists, and three
//!   instructions of about 100: about 210 per byte.
//!
//! The fixed part is for tables and for [`vyre_foundation::diagnostics::LIMIT`] errors.
//!
//! The allocator counts per thread, so that tests may run in parallel.

// A global allocator requires unsafe code.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use vyre_foundation::ir::{Element, Module};
use vyre_foundation::{text, validate, wire};
use vyre_testkit::{Features, Random, generate};

const PER_BYTE: usize = 256;
const FIXED: usize = 64 << 10;

struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // Fails while the thread is exiting.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: all calls are forwarded to the system allocator; counting does not allocate, because the counters are
// constant-initialized and have no destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks exist while the contents are copied.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak memory of `work`.
fn peak<T>(work: impl FnOnce() -> T) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    let peak = PEAK.get() - before;
    drop(result);
    peak as usize
}

#[track_caller]
fn check(what: &str, length: usize, peak: usize) {
    assert!(peak <= PER_BYTE * length + FIXED, "{what}: {length} bytes took {peak}");
}

#[track_caller]
fn check_wire(what: &str, contents: &[u8]) {
    let file = with_header(contents);
    check(what, file.len(), peak(|| wire::decode(&file)));
}

#[track_caller]
fn check_text(what: &str, source: &str) {
    check(what, source.len(), peak(|| text::parse(source)));
}

/// Prepends a valid header to contents.
fn with_header(contents: &[u8]) -> Vec<u8> {
    let mut file = wire::MAGIC.to_vec();
    file.extend([1, 0, 0, 0]);
    file.extend(blake3::hash(contents).as_bytes());
    file.extend(contents);
    file
}

fn module(seed: u64, size: u32) -> Module {
    Module::from(generate(seed, &Features { size, ..Features::default() }).program)
}

#[test]
fn the_allocator_counts() {
    assert!((1000..2000).contains(&peak(|| vec![0u8; 1000])));
    assert!((1000..2000).contains(&peak(|| (0..10).for_each(|_| drop(vec![0u8; 1000])))));
}

#[test]
fn truncated_and_mutated_bytes() {
    let mut random = Random(1);
    for seed in 0..60 {
        let mut module = module(seed, 10 + 20 * (seed as u32 % 10));
        if seed.is_multiple_of(3) {
            // With source locations.
            module = text::parse(&text::print(&module)).expect("it reads back");
        }
        let contents = wire::encode(&module)[40..].to_vec();
        check_wire("whole", &contents);
        for _ in 0..40 {
            check_wire("cut off", &contents[..random.index(contents.len())]);
            let mut changed = contents.clone();
            for _ in 0..1 + random.below(3) {
                // Inserts large numbers where a count may be.
                let at = random.index(changed.len());
                changed.splice(at..=at, [[0xff, 0x7f, 0xff, 0x3f][random.index(4)], random.below(256) as u8]);
            }
            check_wire("changed", &changed);
        }
    }
}

/// Encoding of a program up to its body: a name, sizes, no grid, no constants, no memory.
const PROGRAM: [u8; 8] = [1, b'p', 1, 1, 1, 0, 0, 0];

fn number(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[test]
fn encoded_counts_beyond_the_input_allocate_within_the_bound() {
    for size in [10, 1000, 100_000] {
        let filler = vec![0u8; size];
        let many = number(size);
        let cases: [(&str, Vec<u8>); 12] = [
            ("operations", [&many[..], &filler].concat()),
            ("programs", [&[0], &many[..], &filler].concat()),
            ("a name", [&[0, 1], &many[..], &filler].concat()),
            ("constants", [&[0, 1, 1, b'p', 1, 1, 1, 0], &many[..], &filler].concat()),
            ("memory", [&[0, 1, 1, b'p', 1, 1, 1, 0, 0], &many[..], &filler].concat()),
            ("parameters", [&[0, 1], &PROGRAM[..], &many, &filler].concat()),
            ("instructions", [&[1, 6], &b"return"[..], &[1], &PROGRAM, &[0], &many, &filler].concat()),
            ("operands", [&[1, 6], &b"return"[..], &[1], &PROGRAM, &[0, 1, 0], &many, &filler].concat()),
            ("results", [&[1, 6], &b"return"[..], &[1], &PROGRAM, &[0, 1, 0, 0], &many, &filler].concat()),
            ("blocks", [&[1, 6], &b"return"[..], &[1], &PROGRAM, &[0, 1, 0, 0, 0], &many, &filler].concat()),
            ("cases", [&[1, 6], &b"switch"[..], &[1], &PROGRAM, &[0, 1, 0], &many, &filler].concat()),
            ("a text", [&[1, 5], &b"print"[..], &[1], &PROGRAM, &[0, 1, 0], &many, &filler].concat()),
        ];
        for (what, contents) in cases {
            check_wire(what, &contents);
        }
        // Distinct literals.
        let literals: Vec<u8> = (0..size).flat_map(|bits| [vec![5], number(bits)].concat()).collect();
        let head = [&[1, 6], &b"return"[..], &[1], &PROGRAM, &[0, 1, 0], &many].concat();
        check_wire("literals", &[head, literals].concat());
        // Nested blocks, each of which claims as many instructions as the input has bytes.
        let head = [&[1, 6], &b"region"[..], &[1], &PROGRAM].concat();
        let level = [&[0], &many[..], &[0, 0, 0, 0, 1]].concat();
        check_wire("nesting", &[head, level.repeat(120), filler].concat());
    }
}

#[test]
fn truncated_and_mutated_text() {
    let mut random = Random(2);
    for seed in 0..40 {
        let source = text::print(&module(seed, 10 + 20 * (seed as u32 % 10)));
        check_text("whole", &source);
        for _ in 0..25 {
            check_text("cut off", &source[..random.index(source.len())]);
            let mut changed = source.clone();
            let at = random.index(changed.len());
            let pieces =
                ["{", "}", "loop (", "if true {", "%x", "\"", "18446744073709551615", "§", "\n", "[", "program"];
            changed.insert_str(at, pieces[random.index(pieces.len())]);
            check_text("changed", &changed);
        }
    }
}

#[test]
fn repeated_pieces_of_text_allocate_within_the_bound() {
    // In these, `\n` is a line break, and `\s` a trailing space.
    let pieces = include_str!("pieces.txt").lines().map(|piece| piece.replace("\\n", "\n").replace("\\s", " "));
    for piece in pieces {
        for size in [10, 1000, 100_000] {
            let many = piece.repeat(size / piece.len());
            check_text(&piece, &many);
            check_text(&piece, &format!("program p workgroup(1) {{\n{many}"));
            check_text(&piece, &format!("program p workgroup(1) {{\nread a: [u32]\n{many}\n}}"));
        }
    }
    // Distinct names.
    let names: String = (0..10_000).map(|number| format!("%a{number} = add %b{number}, {number}\n")).collect();
    check_text("names", &format!("program p workgroup(1) {{\n{names}}}"));
}

/// Errors contain names, and a file with a long name can have many errors.
#[test]
fn errors_with_long_names_allocate_within_the_bound() {
    let name = "a".repeat(10_000);
    let stores = format!("store {name}[0], 1\n").repeat(10);
    let source = format!("program p workgroup(1) {{\nread {name}: [u32]\n{stores}}}");
    check("the text", source.len(), peak(|| text::parse(&source)));

    // The wire format encodes the name once.
    let store = [0, 0, 2, 5, 0, 5, 1, 0, 0];
    for count in [1000, 20_000] {
        let head = [&[2, 5], &b"store"[..], &[6], b"return", &[1, 1, b'p', 1, 1, 1, 0, 0, 1]].concat();
        let object = [&number(name.len())[..], name.as_bytes(), &[0, Element::U32 as u8, 0, 0]].concat();
        let body = [&[0], &number(count + 1)[..], &store.repeat(count), &[1, 0, 0, 0]].concat();
        let file = with_header(&[head, object, body].concat());
        let module = wire::decode(&file).expect("it is well-formed");
        check("the mistakes", file.len(), peak(|| validate::module(module)));
    }
}
