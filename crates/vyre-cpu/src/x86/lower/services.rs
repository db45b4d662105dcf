//! Runtime calls: passing lanes through scratch memory, and the call [sites](Site).

use iced_x86::Register;
use smallvec::SmallVec;
use vyre_foundation::ir::Type;

use crate::x86::machine::emit::{Emit, at};
use crate::x86::machine::{Address, Base, BlockId, Reg};
use crate::x86::service::{self, Site};

#[derive(Default)]
pub(super) struct Services {
    pub(super) sites: Vec<Site>,
    /// Mask passed last, and the block in which it was.
    passed_mask: Option<(BlockId, Option<Reg>)>,
}

impl Services {
    /// Calls the runtime.
    pub(super) fn call(&mut self, emit: &mut Emit, site: Site) {
        self.sites.push(site);
        let number = emit.immediate(self.sites.len() as u64 - 1);
        emit.call(at(Base::Context, service::SERVICE), &[(number, Register::RSI)]);
        emit.function.scratch = emit.function.scratch.max(service::SCRATCH);
    }

    /// Passes a mask, or all lanes, unless the last call in this block passed the same: the runtime does not modify it.
    pub(super) fn pass_mask(&mut self, emit: &mut Emit, mask: Option<Reg>) {
        if self.passed_mask.replace((emit.at, mask)) == Some((emit.at, mask)) {
            return;
        }
        let mask = mask.unwrap_or_else(|| emit.mask_constant(true));
        let vector = emit.mask_to_vector(mask);
        let address = scratch(emit, service::MASK);
        emit.store(address, vector);
    }
}

/// Address in scratch memory, where a slot is reserved.
pub(super) fn scratch(emit: &mut Emit, offset: i32) -> Address {
    let end = offset as u32 + service::SLOT as u32;
    emit.function.scratch = emit.function.scratch.max(end);
    at(Base::Scratch, offset)
}

/// Passes the lanes of a value: one register, or two halves.
pub(super) fn pass_vectors(emit: &mut Emit, halves: &[Reg], number: usize) {
    for (half, &reg) in halves.iter().enumerate() {
        let offset = service::slot(number) + half as i32 * emit.bytes();
        let address = scratch(emit, offset);
        emit.store(address, reg);
    }
}

/// Receives the lanes of a result.
pub(super) fn receive(emit: &mut Emit, ty: Type, number: usize) -> SmallVec<[Reg; 2]> {
    let halves = if ty.bits() == 64 { 2 } else { 1 };
    let mut regs: SmallVec<[Reg; 2]> = SmallVec::new();
    for half in 0..halves {
        let address = scratch(emit, service::slot(number) + half * emit.bytes());
        regs.push(emit.load(address));
    }
    if ty == Type::Bool {
        regs[0] = emit.mask_from_vector(regs[0]);
    }
    regs
}
