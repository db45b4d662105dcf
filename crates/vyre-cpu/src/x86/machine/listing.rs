//! Assembly listing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use iced_x86::{
    Decoder, DecoderOptions, Formatter as _, Instruction, IntelFormatter, OpKind, SymbolResolver, SymbolResult,
};

use super::encode::{Encoded, NO_ORIGIN};

/// Disassembles code in Intel syntax. Where the origin changes, `annotate` supplies a comment line. Constants follow
/// the code.
pub(crate) fn listing(encoded: &Encoded, mut annotate: impl FnMut(u32) -> Option<String>) -> String {
    let code = &encoded.bytes[..encoded.code_size as usize];
    let mut labels = BTreeMap::new();
    for instruction in &mut Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        if let Some(target) = branch_target(&instruction) {
            labels.insert(target, 0);
        }
    }
    for (number, label) in (1..).zip(labels.values_mut()) {
        *label = number;
    }

    let names = Names { labels: labels.clone(), pool: u64::from(encoded.pool), end: encoded.bytes.len() as u64 };
    let mut formatter = IntelFormatter::with_options(Some(Box::new(names)), None);
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_space_after_operand_separator(true);
    options.set_small_hex_numbers_in_decimal(true);

    let mut text = String::new();
    let mut marks = encoded.marks.iter().peekable();
    for instruction in &mut Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        if let Some(label) = labels.get(&instruction.ip()) {
            let _ = writeln!(text, ".L{label}:");
        }
        let mut origin = None;
        while let Some((_, next)) = marks.next_if(|(offset, _)| u64::from(*offset) <= instruction.ip()) {
            origin = Some(*next);
        }
        if let Some(comment) = origin.filter(|&origin| origin != NO_ORIGIN).and_then(&mut annotate) {
            for line in comment.lines() {
                let _ = writeln!(text, "  ; {line}");
            }
        }
        text.push_str("    ");
        formatter.format(&instruction, &mut text);
        text.push('\n');
    }

    let pool = &encoded.bytes[encoded.pool as usize..];
    if !pool.is_empty() {
        text.push_str(".pool:\n");
    }
    for (row, bytes) in pool.chunks(32).enumerate() {
        let _ = write!(text, "    {:#06x}:", row * 32);
        for dword in bytes.chunks(4) {
            let mut padded = [0; 4];
            padded[..dword.len()].copy_from_slice(dword);
            let _ = write!(text, " {:08x}", u32::from_le_bytes(padded));
        }
        text.push('\n');
    }
    text
}

fn branch_target(instruction: &Instruction) -> Option<u64> {
    (instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch64())
}

/// Symbols of labels and constants.
struct Names {
    labels: BTreeMap<u64, u32>,
    pool: u64,
    end: u64,
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        if branch_target(instruction) == Some(address) {
            let label = self.labels.get(&address)?;
            Some(SymbolResult::with_string(address, format!(".L{label}")))
        } else if instruction.is_ip_rel_memory_operand() && (self.pool..self.end).contains(&address) {
            Some(SymbolResult::with_string(address, format!(".pool+{:#x}", address - self.pool)))
        } else {
            None
        }
    }
}
