//! Says where invocations are, and how large things are.

use iced_x86::Code;
use vyre_foundation::ir::ops::{Axis, Op};
use vyre_foundation::ir::{InstId, ValueId};

use super::emit::{self, Regs, at};
use super::lower::Lower;
use super::machine::{self, Base, Reg, Width};
use super::service;
use super::shape::Layout;

impl Lower<'_> {
    /// Says where the invocations are, or how large something is.
    pub(super) fn place(&mut self, id: InstId) {
        let program = self.program;
        let inst = &program.insts[id];
        let result = inst.results[0];
        let size = program.workgroup_size;
        let tile = self.shape.tile;
        let context = |this: &mut Self, offset| this.emit.load_scalar(at(Base::Context, offset), Width::Dword);
        let group = |axis: Axis| service::GROUP + 4 * axis as i32;
        // What is the same in the workgroup.
        let fixed = match &inst.op {
            Op::GroupCount(axis) => Some(context(self, service::COUNTS + 4 * *axis as i32)),
            Op::GroupSize(axis) => Some(self.emit.immediate(u64::from(size[*axis as usize]))),
            Op::SubgroupSize => Some(self.emit.immediate(u64::from(tile.lanes))),
            Op::Length(memory) => Some(match program.memory[*memory].length {
                Some(length) => self.emit.immediate(u64::from(length)),
                None => context(self, service::object(*memory) + 8),
            }),
            Op::LocalId(axis) if size[*axis as usize] == 1 => Some(self.emit.immediate(0)),
            Op::GroupId(axis) if tile.layout != Layout::Merged => Some(context(self, group(*axis))),
            Op::GlobalId(axis) if size[*axis as usize] == 1 && tile.layout != Layout::Merged => {
                Some(context(self, group(*axis)))
            }
            Op::GroupIndex if tile.layout != Layout::Merged => Some(context(self, service::FIRST)),
            _ => None,
        };
        if let Some(reg) = fixed {
            self.hold(result, &[reg]);
            return;
        }
        match tile.layout {
            Layout::Rows => self.place_in_rows(&inst.op, result),
            Layout::Linear | Layout::Merged => {
                let position = self.place.position.expect("runs have a position");
                let first = match inst.op {
                    ref op if tile.layout == Layout::Linear && *op != Op::GlobalIndex => position,
                    _ => self.sum(self.group_first, Some(position)).expect("two numbers"),
                };
                let lanes = self.run_of(first);
                self.place_by_index(&inst.op, result, first, &lanes, position);
            }
        }
    }

    /// A scalar, and one more for each following lane.
    pub(super) fn run_of(&mut self, first: Reg) -> Regs {
        let tile = self.shape.tile;
        let splat = self.emit.broadcast(first, false);
        let packs = (0..tile.columns).map(|column| {
            let iota = self.emit.iota(column * tile.lanes);
            self.emit.v2(emit::ADD_D, splat, iota)
        });
        packs.collect()
    }

    /// The index of each invocation in the grid, for all packs.
    pub(super) fn global_lanes(&mut self) -> Regs {
        let tile = self.shape.tile;
        let firsts: Regs = match self.place.position {
            Some(position) => Regs::from_slice(&[self.sum(self.group_first, Some(position)).expect("two numbers")]),
            None => {
                let local = self.local_index();
                let first = self.sum(self.group_first, local).expect("a workgroup has a place");
                let row = self.program.workgroup_size[0] as i32;
                (0..tile.rows as i32)
                    .map(|number| self.emit.lea(at(Base::Reg(first), number * row), Width::Dword))
                    .collect()
            }
        };
        firsts.into_iter().flat_map(|first| self.run_of(first)).collect()
    }

    /// The index in its workgroup of the first invocation of a rectangle, if it is not always 0.
    fn local_index(&mut self) -> Option<Reg> {
        let size = self.program.workgroup_size;
        let [x, y, z] = self.place.local;
        let plane = z.map(|z| self.scaled(z, size[1]));
        let row = self.sum(plane, y).map(|row| self.scaled(row, size[0]));
        self.sum(row, x)
    }

    fn place_in_rows(&mut self, op: &Op, result: ValueId) {
        let tile = self.shape.tile;
        let size = self.program.workgroup_size;
        let plus = |this: &mut Self, a: Reg, b: u32| {
            if b == 0 { a } else { this.emit.lea(at(Base::Reg(a), b as i32), Width::Dword) }
        };
        let or_zero = |this: &mut Self, reg: Option<Reg>| reg.unwrap_or_else(|| this.emit.immediate(0));
        match op {
            Op::LocalId(axis) | Op::GlobalId(axis) => {
                let local = self.place.local[*axis as usize];
                let first = match op {
                    Op::LocalId(_) => local,
                    _ => self.sum(self.group_origin[*axis as usize], local),
                };
                let first = or_zero(self, first);
                let regs: Regs = match axis {
                    Axis::X => {
                        let mut regs = self.run_of(first);
                        regs.push(first);
                        regs
                    }
                    Axis::Y => (0..tile.rows).map(|row| plus(self, first, row)).collect(),
                    Axis::Z => Regs::from_slice(&[first]),
                };
                self.hold(result, &regs);
            }
            _ => {
                // Linear indices, and what is made of them.
                let mut first = self.local_index();
                if *op == Op::GlobalIndex {
                    first = self.sum(self.group_first, first);
                }
                let first = or_zero(self, first);
                let lanes = tile.lanes;
                let bases: Regs = (0..tile.rows).map(|row| plus(self, first, row * size[0])).collect();
                let mut regs = Regs::new();
                match op {
                    Op::GlobalIndex | Op::LocalIndex => {
                        bases.iter().for_each(|&base| regs.extend(self.run_of(base)));
                        regs.extend(bases);
                    }
                    // Packs are subgroups.
                    Op::SubgroupLane => {
                        let iota = self.emit.iota(0);
                        regs.push(self.emit.load(iota));
                        if self.is_linear(result) {
                            regs.push(self.emit.immediate(0));
                        }
                    }
                    Op::SubgroupId => {
                        for base in bases {
                            let shift = machine::Operand::Byte(lanes.trailing_zeros() as i8);
                            let subgroup = self.emit.s1i(Code::Shr_rm32_imm8, Width::Dword, base, shift);
                            regs.extend((0..tile.columns).map(|column| plus(self, subgroup, column)));
                        }
                    }
                    op => unreachable!("`{}` does not ask for a place", op.row().name),
                }
                self.hold(result, &regs);
            }
        }
    }

    /// From an index in the workgroup.
    fn in_subgroup(&mut self, op: &Op, index: Reg) -> Reg {
        let lanes = self.shape.tile.lanes;
        if *op == Op::SubgroupId {
            self.emit.v1i(emit::SHR_D_BY, index, lanes.trailing_zeros() as u8)
        } else {
            let mask = self.emit.constant(u64::from(lanes - 1), false);
            self.emit.v2(emit::AND, index, mask)
        }
    }

    /// Positions by division of an index, which is that of the workgroup or, if workgroups are merged, of the grid.
    fn place_by_index(&mut self, op: &Op, result: ValueId, first: Reg, lanes: &[Reg], position: Reg) {
        let program = self.program;
        let size = program.workgroup_size;
        let total: u32 = size.iter().product();
        let merged = self.shape.tile.layout == Layout::Merged;
        let mut regs = Regs::new();
        match op {
            Op::GlobalIndex => {
                regs.extend_from_slice(lanes);
                regs.push(first);
            }
            Op::LocalIndex | Op::LocalId(Axis::X) if !merged && self.is_linear(result) => {
                regs.extend_from_slice(lanes);
                regs.push(position);
            }
            Op::GlobalId(Axis::X) if !merged && self.is_linear(result) => {
                let first = self.sum(self.group_origin[0], Some(position)).expect("two numbers");
                regs = self.run_of(first);
                regs.push(first);
            }
            _ => {
                for &index in lanes {
                    let (group, local) = if merged { self.divide_lanes(index, total) } else { (index, index) };
                    let local_id = |this: &mut Self, axis: Axis| match axis {
                        Axis::X => this.divide_lanes(local, size[0]).1,
                        Axis::Y => {
                            let rows = this.divide_lanes(local, size[0]).0;
                            this.divide_lanes(rows, size[1]).1
                        }
                        Axis::Z => this.divide_lanes(local, size[0] * size[1]).0,
                    };
                    let group_id = |this: &mut Self, axis: Axis| -> Reg {
                        if !merged {
                            let id = this
                                .emit
                                .load_scalar(at(Base::Context, service::GROUP + 4 * axis as i32), Width::Dword);
                            return this.emit.broadcast(id, false);
                        }
                        this.group_of_lanes(group, axis)
                    };
                    regs.push(match op {
                        Op::LocalIndex => local,
                        Op::LocalId(axis) => local_id(self, *axis),
                        Op::GroupIndex => group,
                        Op::GroupId(axis) => group_id(self, *axis),
                        Op::GlobalId(axis) => {
                            let id = group_id(self, *axis);
                            let size = self.emit.constant(u64::from(size[*axis as usize]), false);
                            let start = self.emit.v2(emit::MUL_D, id, size);
                            let local = local_id(self, *axis);
                            self.emit.v2(emit::ADD_D, start, local)
                        }
                        Op::SubgroupId | Op::SubgroupLane => self.in_subgroup(op, local),
                        op => unreachable!("`{}` does not ask for a place", op.row().name),
                    });
                }
            }
        }
        self.hold(result, &regs);
    }

    /// The position of workgroups along an axis.
    fn group_of_lanes(&mut self, index: Reg, axis: Axis) -> Reg {
        let count = |this: &mut Self, axis: i32| {
            let count = this.emit.load_scalar(at(Base::Context, service::COUNTS + 4 * axis), Width::Dword);
            this.emit.broadcast(count, false)
        };
        let x = count(self, 0);
        let rows = self.quotient_of_lanes(index, x);
        match axis {
            Axis::X => self.remainder_of_lanes(index, rows, x),
            Axis::Y => {
                let y = count(self, 1);
                let planes = self.quotient_of_lanes(rows, y);
                self.remainder_of_lanes(rows, planes, y)
            }
            Axis::Z => {
                let y = count(self, 1);
                self.quotient_of_lanes(rows, y)
            }
        }
    }

    fn remainder_of_lanes(&mut self, a: Reg, quotient: Reg, by: Reg) -> Reg {
        let whole = self.emit.v2(emit::MUL_D, quotient, by);
        self.emit.v2(emit::SUB_D, a, whole)
    }

    /// Quotient and remainder of lanes by a number that is not 0.
    fn divide_lanes(&mut self, a: Reg, by: u32) -> (Reg, Reg) {
        if by == 1 {
            return (a, self.emit.zero());
        }
        if by.is_power_of_two() {
            let mask = self.emit.constant(u64::from(by - 1), false);
            let quotient = self.emit.v1i(emit::SHR_D_BY, a, by.trailing_zeros() as u8);
            return (quotient, self.emit.v2(emit::AND, a, mask));
        }
        let by = self.emit.splat(u64::from(by), false);
        let quotient = self.quotient_of_lanes(a, by);
        (quotient, self.remainder_of_lanes(a, quotient, by))
    }
}
