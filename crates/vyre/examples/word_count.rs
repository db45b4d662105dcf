//! Which words a text has most often: that of a file, or else of a licence.

use std::collections::HashMap;

use vyre::{Atomic, Device, kernel};

/// More different words than this are too many; half of it is a good load.
const SLOTS: usize = 1 << 20;

/// The code of the trap when there are too many.
const FULL: u32 = 1;

/// A letter in lower case, or 0. What is not ASCII counts as letters.
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

/// Whether two words are the same. Neither ends at the end of the text.
#[kernel(inline)]
fn same(text: &[u8], a: usize, b: usize) -> bool {
    let mut i = 0;
    while letter(text, a + i) == letter(text, b + i) && letter(text, a + i) != 0 {
        i += 1;
    }
    letter(text, a + i) == letter(text, b + i)
}

/// Who is at the beginning of a word looks for its slot in a hash table: one where the word already is, or an empty one. A slot has the
/// place of a word in the text, so that words with the same hash are told apart; 0 is empty.
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
    // Every word stands between others of which it is none.
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
    println!("{} words, {} of them different", found.iter().map(|(count, _)| count).sum::<u32>(), found.len());
    for (count, word) in found.iter().take(10) {
        println!("{count:>8}  {}", String::from_utf8_lossy(word));
    }
    Ok(())
}
