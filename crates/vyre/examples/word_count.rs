//! Word frequencies of a text file (or of the Apache license), with a concurrent hash table.

use std::collections::HashMap;

use vyre::{Atomic, Device, kernel};

/// Slots of the hash table: the maximum number of distinct words.
const SLOTS: usize = 1 << 20;

/// Trap code of a full table.
const FULL: u32 = 1;

/// Returns a letter in lower case, or 0 for other characters. Non-ASCII bytes count as letters.
#[kernel(inline)]
fn letter(text: &[u8], i: usize) -> u32 {
    let byte = text[i] as u32;
    let lower = byte | 32;
    if byte >= 128 {
        byte
    } else if lower >= 97 && lower <= 122 {
        lower
    } else {
        0
    }
}

/// Compares two words. Both end before the end of the text.
#[kernel(inline)]
fn same(text: &[u8], a: usize, b: usize) -> bool {
    let mut i = 0;
    while letter(text, a + i) == letter(text, b + i) && letter(text, a + i) != 0 {
        i += 1;
    }
    letter(text, a + i) == letter(text, b + i)
}

/// Each invocation at the start of a word inserts it into a hash table with linear probing. A slot holds the position of a word in the
/// text, so that words with equal hashes are distinguished; 0 is empty.
#[kernel(workgroup = 256)]
fn count(text: &[u8], words: &[Atomic<u32>], counts: &[Atomic<u32>]) {
    let start = global_index() + 1;
    if start < text.len() && letter(text, start - 1) == 0 && letter(text, start) != 0 {
        let mut hash: u32 = 2_166_136_261;
        let mut end = start;
        while letter(text, end) != 0 {
            hash = (hash ^ letter(text, end)).wrapping_mul(16_777_619);
            end += 1;
        }
        let mut slot = hash as usize % words.len();
        let mut tries = 0;
        loop {
            let (found, was_empty) = words[slot].compare_exchange(0, start as u32);
            if was_empty || same(text, found as usize, start) {
                break;
            }
            tries += 1;
            if tries == words.len() {
                trap(FULL);
            }
            slot = (slot + 1) % words.len();
        }
        counts[slot].fetch_add(1);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = match std::env::args_os().nth(1) {
        Some(file) => std::fs::read(file)?,
        None => include_bytes!("../LICENSE-APACHE").to_vec(),
    };
    // Spaces at both ends delimit the first and the last word.
    let text = [b" ", &text[..], b" "].concat();

    let device = Device::auto()?;
    let (mut words, mut counts) = (device.zeros(SLOTS)?, device.zeros(SLOTS)?);
    count(&device.upload(&text)?, &mut words, &mut counts).run(&device, text.len())?;

    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || !byte.is_ascii();
    let word_at = |start: u32| text[start as usize..].iter().take_while(|byte| is_letter(byte));
    let found = words.download()?.into_iter().zip(counts.download()?).filter(|(start, _)| *start != 0);
    let mut found: Vec<(u32, Vec<u8>)> =
        found.map(|(start, count)| (count, word_at(start).map(u8::to_ascii_lowercase).collect())).collect();
    found.sort_by(|(a, word), (b, other)| b.cmp(a).then_with(|| word.cmp(other)));

    let mut expected: HashMap<Vec<u8>, u32> = HashMap::new();
    for word in text.split(|byte| !is_letter(byte)).filter(|word| !word.is_empty()) {
        *expected.entry(word.to_ascii_lowercase()).or_default() += 1;
    }
    assert_eq!(found.iter().map(|(count, word)| (word.clone(), *count)).collect::<HashMap<_, _>>(), expected);
    println!("{} words, {} distinct", found.iter().map(|(count, _)| count).sum::<u32>(), found.len());
    for (count, word) in found.iter().take(10) {
        println!("{count:>8}  {}", String::from_utf8_lossy(word));
    }
    Ok(())
}
