//! Tests of analyses against brute-force implementations, on generated programs.

use std::collections::{BTreeMap, BTreeSet};

use vyre_foundation::analysis::{Liveness, Scope, Storage, Uniformity};
use vyre_foundation::ir::{BlockId, Control, Cursor, InstId, Op, Program, Span, Terminator, ValueId};
use vyre_foundation::launch::{Grid, Limits};
use vyre_foundation::validate;
use vyre_testkit::{Features, generate, oracle, rotating_seeds, run};

/// Points of a program in text order: instructions, and the back edges of loops.
#[derive(Clone, Copy, PartialEq)]
enum Point {
    Inst(InstId),
    BackEdge(InstId),
}

fn points(program: &Program, block: BlockId, all: &mut Vec<Point>) {
    for &id in &program.block(block).insts {
        all.push(Point::Inst(id));
        program.inst(id).blocks.iter().for_each(|&nested| points(program, nested, all));
        if program.inst(id).op == Control::Loop {
            all.push(Point::BackEdge(id));
        }
    }
}

/// First and last point of each value, by an exhaustive search.
fn naive_ranges(program: &Program, storage: Storage) -> BTreeMap<ValueId, (usize, usize)> {
    let mut all = vec![];
    points(program, program.body(), &mut all);
    // Points are numbered from 1.
    let first = |id| all.iter().position(|point| *point == Point::Inst(id)).unwrap() + 1;
    let nested = |id: InstId| program.nested_in(&[id]);
    let last = |id: InstId| {
        let back_edge = all.iter().position(|point| *point == Point::BackEdge(id));
        back_edge.map_or_else(|| nested(id).into_iter().map(first).max().unwrap(), |at| at + 1)
    };
    let insts = || all.iter().filter_map(|point| if let Point::Inst(id) = point { Some(*id) } else { None });
    let mut ranges = BTreeMap::new();
    let mut extend = |value: ValueId, from: usize, to: usize| {
        let range = ranges.entry(value).or_insert((from, to));
        *range = (range.0.min(from), range.1.max(to));
    };
    for id in insts() {
        let inst = program.inst(id);
        for &result in &inst.results {
            let assigned = if storage == Storage::Slots { first(id) } else { last(id) };
            extend(result, assigned, last(id));
        }
        for &param in inst.blocks.iter().flat_map(|&block| &program.block(block).params) {
            let end = if storage == Storage::Values { first(id) } else { last(id) };
            extend(param, first(id), end);
        }
    }
    let defined = ranges.clone();
    for user in insts() {
        for &operand in &program.inst(user).operands {
            let Some(&(start, _)) = defined.get(&operand) else { continue };
            let carries = |&id: &InstId| {
                let is_outside = match storage {
                    Storage::Values => start < first(id),
                    Storage::Registers | Storage::Slots => start <= first(id),
                };
                program.inst(id).op == Control::Loop && id != user && nested(id).contains(&user) && is_outside
            };
            let end = insts().filter(carries).map(last).max().unwrap_or(0).max(first(user));
            let range = ranges.get_mut(&operand).unwrap();
            range.1 = range.1.max(end);
        }
    }
    ranges
}

#[test]
fn live_ranges_equal_those_of_a_search() {
    for seed in rotating_seeds(300) {
        let program = generate(seed, &Features { size: 40, ..Features::default() }).program;
        for storage in [Storage::Values, Storage::Registers, Storage::Slots] {
            let liveness = Liveness::of(&program, storage);
            let is_variable = |value| program.known(value).is_none();
            let found: BTreeMap<ValueId, (usize, usize)> = liveness
                .ranges()
                .iter()
                .filter(|range| is_variable(range.value))
                .map(|range| (range.value, (range.start as usize, range.end as usize)))
                .collect();
            let mut expected = naive_ranges(&program, storage);
            for (start, end) in expected.values_mut() {
                *end = if storage == Storage::Registers { (*end).max(*start + 1) } else { *end + 1 };
            }
            assert_eq!(found, expected, "seed {seed}, {storage:?}\n{program}");

            let ends = expected.values().map(|range| range.1).max().unwrap_or(0);
            let at = |point: usize| expected.values().filter(|range| (range.0..range.1).contains(&point)).count();
            let most = (0..ends).map(at).max().unwrap_or(0);
            assert_eq!(liveness.pressure(|value| usize::from(is_variable(value))), most, "seed {seed}, {storage:?}");
        }
    }
}

/// Backward data-flow liveness: the values that are live before each instruction.
struct DataFlow<'p> {
    program: &'p Program,
    before: BTreeMap<InstId, BTreeSet<ValueId>>,
    /// For each enclosing loop: the values live after the loop, and before an iteration.
    loops: Vec<(BTreeSet<ValueId>, BTreeSet<ValueId>)>,
}

impl DataFlow<'_> {
    fn block(&mut self, block: BlockId, after: &BTreeSet<ValueId>) -> BTreeSet<ValueId> {
        let program = self.program;
        let mut live = after.clone();
        for &id in program.block(block).insts.iter().rev() {
            let inst = program.inst(id);
            inst.results.iter().for_each(|result| {
                live.remove(result);
            });
            live = match &inst.op {
                Op::Terminator(Terminator::Break) => self.loops.last().unwrap().0.clone(),
                Op::Terminator(Terminator::Continue) => self.loops.last().unwrap().1.clone(),
                Op::Terminator(Terminator::Return | Terminator::Trap) => BTreeSet::new(),
                Op::Control(Control::Loop) => {
                    self.loops.push((live, BTreeSet::new()));
                    loop {
                        let mut trip = self.block(inst.blocks[0], &BTreeSet::new());
                        program.block(inst.blocks[0]).params.iter().for_each(|param| {
                            trip.remove(param);
                        });
                        if trip == self.loops.last().unwrap().1 {
                            break;
                        }
                        self.loops.last_mut().unwrap().1 = trip;
                    }
                    self.loops.pop().unwrap().1
                }
                _ if inst.blocks.is_empty() => live,
                _ => inst.blocks.iter().flat_map(|&arm| self.block(arm, &live)).collect(),
            };
            live.extend(inst.operands.iter().filter(|&&operand| program.known(operand).is_none()));
            self.before.insert(id, live.clone());
        }
        live
    }
}

#[test]
fn live_ranges_contain_data_flow_liveness() {
    for seed in rotating_seeds(300) {
        let program = generate(seed, &Features::default()).program;
        let mut flow = DataFlow { program: &program, before: BTreeMap::new(), loops: vec![] };
        flow.block(program.body(), &BTreeSet::new());
        let mut all = vec![];
        points(&program, program.body(), &mut all);
        for storage in [Storage::Values, Storage::Registers, Storage::Slots] {
            let liveness = Liveness::of(&program, storage);
            let ranges: BTreeMap<ValueId, (u32, u32)> =
                liveness.ranges().iter().map(|range| (range.value, (range.start, range.end))).collect();
            for (point, id) in (1..).zip(&all).filter_map(|(at, point)| match point {
                Point::Inst(id) => Some((at, id)),
                Point::BackEdge(_) => None,
            }) {
                for value in &flow.before[id] {
                    // A result may take the register of an operand that ends there.
                    let end = ranges[value].1 + u32::from(storage == Storage::Registers);
                    let is_live = (ranges[value].0..end).contains(&point);
                    assert!(is_live, "seed {seed}, {storage:?}: {value:?} before {id:?}\n{program}");
                }
            }
        }
    }
}

/// Prints the uniform results of each instruction that a workgroup or a subgroup executes together, and runs the program on the oracle.
#[test]
fn uniform_values_are_uniform() {
    const SUBGROUP: u32 = 16;
    let mut compared = 0;
    for seed in rotating_seeds(300) {
        let features = Features { size: 40, effects: seed % 2 == 0, ..Features::default() };
        let generated = generate(seed, &features);
        let (mut program, mut inputs) = (generated.program, generated.inputs);
        let uniformity = Uniformity::of(&program);
        let mut sites: Vec<(Scope, ValueId)> = vec![];
        for block in program.reachable_blocks() {
            let executed_by = [Scope::Workgroup, Scope::Subgroup];
            let Some(together) = executed_by.into_iter().find(|&scope| uniformity.is_converged(block, scope)) else {
                continue;
            };
            let mut cursor = Cursor::at_start(&mut program, block);
            while let Some(id) = cursor.next() {
                cursor.insert(id);
                for value in program.inst(id).results.clone() {
                    let scope = match uniformity.scope(value) {
                        Scope::Invocation => continue,
                        Scope::Dispatch if block == program.body() => Scope::Dispatch,
                        // In nested blocks, workgroups or subgroups may execute the block in different iterations.
                        scope => scope.max(together),
                    };
                    let text = format!("{} {{}}", sites.len());
                    cursor.insert(program.make(Op::Print(text.into()), [value], &[], [], Span::NONE));
                    sites.push((scope, value));
                }
            }
            cursor.finish(&mut program);
        }
        let printed = program.to_string();
        let program = validate::program(program).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        let limits = Limits { fuel: 1 << 24, trace_capacity: usize::MAX, ..Limits::default() };
        let report = run(&oracle(SUBGROUP), &program, Grid::Groups(generated.groups), &mut inputs, limits).unwrap();

        // Values of each invocation at each site.
        let mut values: BTreeMap<(usize, u32), Vec<&str>> = BTreeMap::new();
        for line in &report.trace {
            let Some((site, value)) = line.text.split_once(' ') else { continue };
            let Ok(site) = site.parse() else { continue };
            values.entry((site, line.invocation)).or_default().push(value);
        }
        let size: u32 = program.workgroup_size().iter().product();
        let mut longest: BTreeMap<(usize, u32, u32), &[&str]> = BTreeMap::new();
        for (&(site, invocation), values) in &values {
            let Some((scope, value)) = sites.get(site) else { continue };
            let (group, subgroup) = (invocation / size, invocation % size / SUBGROUP);
            let (group, subgroup) = match scope {
                Scope::Dispatch => (0, 0),
                Scope::Workgroup => (group, 0),
                Scope::Subgroup | Scope::Invocation => (group, subgroup),
            };
            let others = longest.entry((site, group, subgroup)).or_insert(values);
            // Without early exits, all invocations have the same trip counts.
            let common = if features.effects { others.len().min(values.len()) } else { usize::MAX };
            let [a, b] = [others, &values[..]].map(|values| &values[..common.min(values.len())]);
            assert_eq!(a, b, "seed {seed}: {value:?} is not uniform: {scope:?}\n{printed}");
            compared += common.min(values.len());
            if values.len() > others.len() {
                *others = values;
            }
        }
    }
    assert!(compared > 10_000, "{compared} values compared");
}
