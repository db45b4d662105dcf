//! Ids of invocations: local, global, workgroup and subgroup ids of the lanes of a tile, and sizes.

use iced_x86::Code;
use vyre_foundation::ir::entity::Entity;
use vyre_foundation::ir::ops::{Axis, PerGroup, PerInvocation};
use vyre_foundation::ir::{InstId, ValueId};

use super::Lower;
use crate::x86::machine::emit::{self, Regs, at};
use crate::x86::machine::{self, Base, Reg, Width};
use crate::x86::plan::shape::Layout;
use crate::x86::service;

impl Lower<'_> {
    /// Ids that differ between the invocations of a workgroup.
    pub(super) fn per_invocation(&mut self, id: InstId, op: PerInvocation) {
        let result = self.plan.program.inst(id).results[0];
        let size = self.plan.program.workgroup_size();
        let layout = self.plan.shape.tile.layout;
        // Uniform in the workgroup.
        let fixed = match op {
            PerInvocation::LocalId(axis) if size[axis as usize] == 1 => Some(self.emit.immediate(0)),
            PerInvocation::GlobalId(axis) if size[axis as usize] == 1 && layout != Layout::Merged => {
                Some(self.context(service::GROUP + 4 * axis as i32))
            }
            _ => None,
        };
        if let Some(reg) = fixed {
            self.define(result, &[reg]);
            return;
        }
        match layout {
            Layout::Rows => self.ids_in_rows(op, result),
            Layout::Linear | Layout::Merged => {
                let position = self.tiles.position.index.expect("runs have a position");
                let in_group = layout == Layout::Linear && op != PerInvocation::GlobalIndex;
                let first = match in_group {
                    true => position,
                    false => self.emit.sum(self.tiles.group.first, Some(position)).expect("two numbers"),
                };
                let lanes = self.emit.run_of(self.plan.shape.tile, first);
                self.ids_by_index(op, result, first, &lanes, position);
            }
        }
    }

    /// Ids and sizes that are uniform in the workgroup: scalars, except for the ids of merged workgroups.
    pub(super) fn per_group(&mut self, id: InstId, op: PerGroup) {
        let program = self.plan.program;
        let merged = self.plan.shape.tile.layout == Layout::Merged;
        let reg = match op {
            PerGroup::GroupCount(axis) => self.context(service::COUNTS + 4 * axis as i32),
            PerGroup::GroupSize(axis) => self.emit.immediate(u64::from(program.workgroup_size()[axis as usize])),
            PerGroup::SubgroupSize => self.emit.immediate(u64::from(self.plan.shape.tile.lanes)),
            PerGroup::Length(memory) => match program.memory(memory).length {
                Some(length) => self.emit.immediate(u64::from(length)),
                None => self.context(service::entry(memory.index()) + 8),
            },
            PerGroup::GroupId(axis) if !merged => self.context(service::GROUP + 4 * axis as i32),
            PerGroup::GroupIndex if !merged => self.context(service::FIRST),
            PerGroup::GroupId(axis) => return self.merged_groups(id, Some(axis)),
            PerGroup::GroupIndex => return self.merged_groups(id, None),
        };
        self.define(program.inst(id).results[0], &[reg]);
    }

    /// Workgroup of each lane of merged workgroups: its id along an axis, or its linear index.
    fn merged_groups(&mut self, id: InstId, axis: Option<Axis>) {
        let program = self.plan.program;
        let position = self.tiles.position.index.expect("runs have a position");
        let first = self.emit.sum(self.tiles.group.first, Some(position)).expect("two numbers");
        let total: u32 = program.workgroup_size().iter().product();
        let mut regs = Regs::new();
        for index in self.emit.run_of(self.plan.shape.tile, first) {
            let (group, _) = self.emit.divide_lanes(index, total);
            regs.push(match axis {
                Some(axis) => self.emit.group_of_lanes(group, axis),
                None => group,
            });
        }
        self.define(program.inst(id).results[0], &regs);
    }

    /// Loads a word of the launch context.
    fn context(&mut self, offset: i32) -> Reg {
        self.emit.load_scalar(at(Base::Context, offset), Width::Dword)
    }

    /// Global linear index of each invocation, for all packs.
    pub(super) fn global_lanes(&mut self) -> Regs {
        let tile = self.plan.shape.tile;
        let firsts: Regs = match self.tiles.position.index {
            Some(position) => {
                Regs::from_slice(&[self.emit.sum(self.tiles.group.first, Some(position)).expect("two numbers")])
            }
            None => {
                let local = self.local_index();
                let first = self.emit.sum(self.tiles.group.first, local).expect("a workgroup has a position");
                let row = self.plan.program.workgroup_size()[0] as i32;
                (0..tile.rows as i32)
                    .map(|number| self.emit.lea(at(Base::Reg(first), number * row), Width::Dword))
                    .collect()
            }
        };
        firsts.into_iter().flat_map(|first| self.emit.run_of(self.plan.shape.tile, first)).collect()
    }

    /// Local linear index of the first invocation of a rectangular tile; `None` if it is always 0.
    fn local_index(&mut self) -> Option<Reg> {
        let size = self.plan.program.workgroup_size();
        let [x, y, z] = self.tiles.position.local;
        let plane = z.map(|z| self.emit.scaled(z, size[1]));
        let row = self.emit.sum(plane, y).map(|row| self.emit.scaled(row, size[0]));
        self.emit.sum(row, x)
    }

    fn ids_in_rows(&mut self, op: PerInvocation, result: ValueId) {
        let tile = self.plan.shape.tile;
        match op {
            PerInvocation::LocalId(axis) => {
                let first = self.tiles.position.local[axis as usize];
                self.ids_along(axis, first, result);
            }
            PerInvocation::GlobalId(axis) => {
                let local = self.tiles.position.local[axis as usize];
                let first = self.emit.sum(self.tiles.group.origin[axis as usize], local);
                self.ids_along(axis, first, result);
            }
            PerInvocation::GlobalIndex | PerInvocation::LocalIndex => {
                let bases = self.row_bases(op == PerInvocation::GlobalIndex);
                let mut regs: Regs =
                    bases.iter().flat_map(|&base| self.emit.run_of(self.plan.shape.tile, base)).collect();
                regs.extend(bases);
                self.define(result, &regs);
            }
            // A pack is a subgroup.
            PerInvocation::SubgroupLane => {
                let iota = self.emit.iota(0);
                let mut regs = Regs::from_slice(&[self.emit.load(iota)]);
                if self.plan.shape.is_linear(result) {
                    regs.push(self.emit.immediate(0));
                }
                self.define(result, &regs);
            }
            PerInvocation::SubgroupId => {
                let mut regs = Regs::new();
                for base in self.row_bases(false) {
                    let shift = machine::Operand::Byte(tile.lanes.trailing_zeros() as i8);
                    let subgroup = self.emit.s1i(Code::Shr_rm32_imm8, Width::Dword, base, shift);
                    regs.extend((0..tile.columns).map(|column| self.plus(subgroup, column)));
                }
                self.define(result, &regs);
            }
        }
    }

    /// Ids along an axis, from that of the tile's first invocation.
    fn ids_along(&mut self, axis: Axis, first: Option<Reg>, result: ValueId) {
        let tile = self.plan.shape.tile;
        let first = first.unwrap_or_else(|| self.emit.immediate(0));
        let regs: Regs = match axis {
            Axis::X => {
                let mut regs = self.emit.run_of(tile, first);
                regs.push(first);
                regs
            }
            Axis::Y => (0..tile.rows).map(|row| self.plus(first, row)).collect(),
            Axis::Z => Regs::from_slice(&[first]),
        };
        self.define(result, &regs);
    }

    /// Linear index of the first invocation of each row, in the grid or in the workgroup.
    fn row_bases(&mut self, in_grid: bool) -> Regs {
        let mut first = self.local_index();
        if in_grid {
            first = self.emit.sum(self.tiles.group.first, first);
        }
        let first = first.unwrap_or_else(|| self.emit.immediate(0));
        let row = self.plan.program.workgroup_size()[0];
        (0..self.plan.shape.tile.rows).map(|number| self.plus(first, number * row)).collect()
    }

    fn plus(&mut self, a: Reg, b: u32) -> Reg {
        if b == 0 { a } else { self.emit.lea(at(Base::Reg(a), b as i32), Width::Dword) }
    }

    /// Subgroup id or lane, from a local linear index.
    fn in_subgroup(&mut self, op: PerInvocation, index: Reg) -> Reg {
        let lanes = self.plan.shape.tile.lanes;
        if op == PerInvocation::SubgroupId {
            self.emit.v1i(emit::SHR_D_BY, index, lanes.trailing_zeros() as u8)
        } else {
            let mask = self.emit.constant(u64::from(lanes - 1), false);
            self.emit.v2(emit::AND, index, mask)
        }
    }

    /// Ids computed by division from an index: the local one, or for merged workgroups the global one.
    fn ids_by_index(&mut self, op: PerInvocation, result: ValueId, first: Reg, lanes: &[Reg], position: Reg) {
        let program = self.plan.program;
        let size = program.workgroup_size();
        let total: u32 = size.iter().product();
        let merged = self.plan.shape.tile.layout == Layout::Merged;
        let mut regs = Regs::new();
        match op {
            PerInvocation::GlobalIndex => {
                regs.extend_from_slice(lanes);
                regs.push(first);
            }
            PerInvocation::LocalIndex | PerInvocation::LocalId(Axis::X)
                if !merged && self.plan.shape.is_linear(result) =>
            {
                regs.extend_from_slice(lanes);
                regs.push(position);
            }
            PerInvocation::GlobalId(Axis::X) if !merged && self.plan.shape.is_linear(result) => {
                let first = self.emit.sum(self.tiles.group.origin[0], Some(position)).expect("two numbers");
                regs = self.emit.run_of(self.plan.shape.tile, first);
                regs.push(first);
            }
            _ => {
                for &index in lanes {
                    let (group, local) = if merged { self.emit.divide_lanes(index, total) } else { (index, index) };
                    let local_id = |this: &mut Self, axis: Axis| match axis {
                        Axis::X => this.emit.divide_lanes(local, size[0]).1,
                        Axis::Y => {
                            let rows = this.emit.divide_lanes(local, size[0]).0;
                            this.emit.divide_lanes(rows, size[1]).1
                        }
                        Axis::Z => this.emit.divide_lanes(local, size[0] * size[1]).0,
                    };
                    let group_id = |this: &mut Self, axis: Axis| -> Reg {
                        if !merged {
                            let id = this.context(service::GROUP + 4 * axis as i32);
                            return this.emit.broadcast(id, false);
                        }
                        this.emit.group_of_lanes(group, axis)
                    };
                    regs.push(match op {
                        PerInvocation::LocalIndex => local,
                        PerInvocation::LocalId(axis) => local_id(self, axis),
                        PerInvocation::GlobalId(axis) => {
                            let id = group_id(self, axis);
                            let size = self.emit.constant(u64::from(size[axis as usize]), false);
                            let start = self.emit.v2(emit::MUL_D, id, size);
                            let local = local_id(self, axis);
                            self.emit.v2(emit::ADD_D, start, local)
                        }
                        PerInvocation::GlobalIndex => index,
                        PerInvocation::SubgroupId | PerInvocation::SubgroupLane => self.in_subgroup(op, local),
                    });
                }
            }
        }
        self.define(result, &regs);
    }
}
