//! Tests of launch fusion against the unfused stages.

use std::collections::BTreeMap;
use std::fmt::Write;

use proptest::prelude::*;
use vyre_foundation::diagnostics::Fault;
use vyre_foundation::ir::entity::Entity;
use vyre_foundation::ir::{BufferId, Element, MemId, Module, Program, SourceMap, Space};
use vyre_foundation::launch::{Argument, Outcome, Slice, bind};
use vyre_foundation::optimizer::{self, Options, Pipeline, Registry};
use vyre_foundation::transform::fuse::{Bound, Fused, Refusal, Stage, fuse, may_join};
use vyre_foundation::{Error, Validated, text, validate, wire};
use vyre_testkit::Random;

/// Stages of one pipeline. Objects with the same name are bound to the same buffer; the name of a uniform contains its
/// value (`n5` is 5). Buffers whose names begin with `t` are transient.
struct Chain {
    programs: Vec<Validated<Program>>,
    groups: [u32; 3],
    /// Buffers by number: name and number of elements.
    buffers: Vec<(String, u32)>,
}

impl Chain {
    fn new(source: &str, groups: [u32; 3], lengths: &[(&str, u32)]) -> Chain {
        let explain = |error: Error| match error {
            Error::Text(found) | Error::Invalid(found) => {
                panic!("{}", found.render(&SourceMap::of_text("stages", source)))
            }
            other => panic!("{other}"),
        };
        let module = text::parse(source).and_then(validate::module).unwrap_or_else(explain);
        Chain {
            programs: module.into_inner().programs,
            groups,
            buffers: lengths.iter().map(|(name, length)| ((*name).to_owned(), *length)).collect(),
        }
    }

    fn buffer(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|(known, _)| known == name)
    }

    fn stage(&self, at: usize) -> Stage<'_> {
        let program = &self.programs[at];
        let buffers = program.memories().iter().filter_map(|(memory, object)| {
            let buffer = self.buffer(&object.name).filter(|_| matches!(object.space, Space::Storage(_)))?;
            Some(Bound { memory, buffer: BufferId::from_index(buffer), elements: self.buffers[buffer].1 })
        });
        let uniforms = program.memories().iter().filter(|(_, object)| object.space == Space::Uniform);
        let uniforms = uniforms.map(|(memory, object)| (memory, value(&object.name).into()));
        Stage::new(program, self.groups, buffers.collect(), uniforms)
    }

    fn stages(&self) -> Vec<Stage<'_>> {
        (0..self.programs.len()).map(|at| self.stage(at)).collect()
    }

    fn is_transient(&self, buffer: BufferId) -> bool {
        self.buffers[buffer.index()].0.starts_with('t')
    }

    /// Fuses all stages, which must be able to join.
    fn fused(&self) -> Fused {
        let stages = self.stages();
        for next in 1..stages.len() {
            assert_eq!(may_join(&stages[..next], &stages[next]), Ok(()), "{next}");
        }
        fuse("all", &stages, &|buffer| self.is_transient(buffer))
    }

    /// Reason why the last stage cannot join the others.
    fn refusal(&self) -> Refusal {
        let stages = self.stages();
        let (next, before) = stages.split_last().unwrap();
        may_join(before, next).unwrap_err()
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        let size = |name: &str| {
            let declared = self
                .programs
                .iter()
                .find_map(|program| program.memory_named(name).map(|id| program.memory(id).element));
            declared.map_or(1, Element::size)
        };
        let mut random = Random(1);
        let fill = |(name, length): &(String, u32)| {
            let bytes = size(name) * *length as usize;
            if name.starts_with('t') { vec![0; bytes] } else { (0..bytes).map(|_| random.bits() as u8).collect() }
        };
        self.buffers.iter().map(fill).collect()
    }

    /// Runs a program whose named objects are those of stages.
    fn run<'o>(&self, program: &Validated<Program>, objects: &'o [(String, usize, MemId)], contents: &mut [Vec<u8>]) {
        let argument = |(name, stage, object): &'o (String, usize, MemId)| {
            let declared = self.programs[*stage].memory(*object);
            let argument = match self.buffer(&declared.name) {
                Some(buffer) => Argument::Buffer(Slice {
                    buffer: buffer as u64,
                    element: declared.element,
                    start: 0,
                    bytes: contents[buffer].len() as u64,
                }),
                None => value(&declared.name).into(),
            };
            (name.as_str(), argument)
        };
        let arguments = bind(program, objects.iter().map(argument), |_, slice| Ok::<_, Error>(*slice)).unwrap();
        let ran = vyre_reference::sanitize(program, self.groups, &arguments, contents, &Default::default());
        let (report, findings) = ran.unwrap();
        assert_eq!(report.outcome, Outcome::Completed);
        // The oracle executes a workgroup in lockstep, so only the race detector notices a missing barrier.
        let race =
            findings.iter().find(|found| matches!(found.fault, Fault::Race { .. } | Fault::SameValueRace { .. }));
        assert!(race.is_none(), "{}: {}", race.unwrap(), print(program));
    }

    fn run_stage(&self, at: usize, contents: &mut [Vec<u8>]) {
        let program = &self.programs[at];
        let bound =
            program.memories().iter().filter(|(_, memory)| matches!(memory.space, Space::Storage(_) | Space::Uniform));
        let objects: Vec<_> = bound.map(|(id, memory)| (memory.name.clone(), at, id)).collect();
        self.run(program, &objects, contents);
    }

    /// Fuses greedily, as a planner would, and compares the results with those of the separate stages. Returns the
    /// numbers of launches and buffers saved.
    fn check(&self) -> (usize, usize) {
        let stages = self.stages();
        let (mut expected, mut fused, mut optimized) = (self.contents(), self.contents(), self.contents());
        let mut start = 0;
        let (mut launches, mut dropped) = (0, Vec::new());
        while start < stages.len() {
            let joins = |&next: &usize| may_join(&stages[start..next], &stages[next]).is_ok();
            let end = (start + 1..stages.len()).take_while(joins).last().map_or(start + 1, |last| last + 1);
            let used_elsewhere = |buffer: BufferId| {
                let name = &self.buffers[buffer.index()].0;
                let others = self.programs.iter().enumerate().filter(|(at, _)| !(start..end).contains(at));
                others.into_iter().any(|(_, program)| program.memory_named(name).is_some())
            };
            let group =
                fuse("group", &stages[start..end], &|buffer| self.is_transient(buffer) && !used_elsewhere(buffer));
            // Passes may remove arrays, which renumbers objects, but names stay.
            let name = |object: MemId| group.program.memory(object).name.clone();
            let objects: Vec<_> =
                group.objects.iter().map(|&(new, stage, old)| (name(new), start + stage, old)).collect();
            (start..end).for_each(|at| self.run_stage(at, &mut expected));
            self.run(&group.program, &objects, &mut fused);
            self.run(&optimize(&group.program), &objects, &mut optimized);
            dropped.extend(group.dropped);
            for (buffer, (name, _)) in self.buffers.iter().enumerate() {
                if !dropped.contains(&BufferId::from_index(buffer)) {
                    let shown = || print(&group.program);
                    assert_eq!(expected[buffer], fused[buffer], "{name}, fused: {}", shown());
                    assert_eq!(expected[buffer], optimized[buffer], "{name}, optimized: {}", shown());
                }
            }
            launches += 1;
            start = end;
        }
        (stages.len() - launches, dropped.len())
    }
}

/// Source locations of several files survive fusion, optimization and the wire format.
#[test]
fn fused_programs_keep_source_locations() {
    let stage = |file: &str, source: &str| {
        let mut module = text::parse(source).unwrap();
        module.set_file(file);
        validate::module(module).unwrap().programs[0].clone()
    };
    let first = "program first workgroup(4) {
        read x: [u32]
        write t: [u32]
        %i = global_index
        %x = load x[%i]
        store t[%i], %x
    }";
    let second = "
    program second workgroup(4) {
        read t: [u32]
        write y: [u32]
        %i = global_index
        %x = load t[%i]
        %bad = eq %x, 77
        if %bad {
            trap 5
        }
        store y[%i], %x
    }";
    let buffers = ["x", "t", "y"].map(|name| (name.to_owned(), 8)).to_vec();
    let programs = vec![stage("first.vyre", first), stage("second.vyre", second)];
    let fused = Chain { programs, groups: [2, 1, 1], buffers }.fused().program;
    let decoded = wire::decode(&wire::encode(&Module::from(fused.clone()))).unwrap().programs.remove(0);
    for program in [&*fused, &*optimize(&fused), &decoded] {
        let mut found: Vec<String> = Vec::new();
        program.walk(|id, _| {
            let loc = program.locate(program.inst(id).span);
            found.extend(
                loc.map(|loc| format!("{}:{}: {}", loc.file(), loc.line(), loc.text().unwrap_or_default().trim())),
            );
        });
        let has = |loc: &str| found.iter().any(|found| found == loc);
        assert!(has("first.vyre:5: %x = load x[%i]") && has("second.vyre:9: trap 5"), "{found:#?}");
    }
}

/// Value of a uniform, from its name.
fn value(name: &str) -> u32 {
    name[1..].parse().unwrap()
}

fn print(program: &Program) -> String {
    text::print(&Module::from(program.clone()))
}

fn optimize(program: &Validated<Program>) -> Validated<Program> {
    let pipeline = Pipeline { passes: Registry::standard().schedule_all(), to_fixed_point: true };
    let options = Options { strict: true, ..Options::default() };
    optimizer::run(program.clone(), &pipeline, &options, &mut |_| {}).unwrap().0
}

const ELEMENTS: [&str; 5] = ["u32", "u8", "i16", "i32", "u16"];

/// Stages that read several buffers and write one or two, mostly at the invocation's own elements.
fn generated(seed: u64) -> Chain {
    let mut random = Random(seed);
    let size: u32 = *random.choose(&[4, 6, 8]);
    let groups = 1 + random.below(4);
    let total = groups * size;
    let names = ["a", "b", "t0", "t1", "t2", "t3", "y", "z"];
    let lengths: Vec<u32> =
        names.iter().map(|_| *random.choose(&[total, total, total, total - 1, total + 3, 2 * total, 1])).collect();
    let elements: Vec<&str> = names.iter().map(|_| *random.choose(&ELEMENTS)).collect();
    let mut source = String::new();
    for stage in 0..2 + random.below(5) {
        source += &generated_stage(&mut random, stage, size, total, &elements);
    }
    let lengths: Vec<_> = names.into_iter().zip(lengths).collect();
    Chain::new(&source, [groups, 1, 1], &lengths)
}

fn generated_stage(random: &mut Random, stage: u32, size: u32, total: u32, elements: &[&str]) -> String {
    let mut buffers: Vec<usize> = (0..elements.len()).collect();
    (1..buffers.len()).rev().for_each(|at| buffers.swap(at, random.index(at + 1)));
    let names = ["a", "b", "t0", "t1", "t2", "t3", "y", "z"];
    let writes = &buffers[..1 + random.index(2)];
    let reads = &buffers[2..3 + random.index(3)];
    let bound = format!("n{}", random.below(total + 3));
    let mut text = format!("program s{stage} workgroup({size}) {{\n    uniform {bound}: u32\n");
    // Index of the accesses to each buffer; loads with another index than the stores would race.
    let mut reach = BTreeMap::new();
    for &buffer in writes.iter().chain(reads) {
        let mode = if reads.contains(&buffer) { "read" } else { "read_write" };
        let _ = writeln!(text, "    {mode} {}: [{}]", names[buffer], elements[buffer]);
        reach.insert(buffer, *random.choose(&["own", "own", "own", "own", "own", "pair", "turned", "swapped", "next"]));
    }
    text += "    %i = global_index\n    %l = local_index\n    %g = group_index\n";
    let _ = writeln!(text, "    %first = mul %g, {size}\n    %twice = mul %i, 2\n    %n = load {bound}");
    let _ = writeln!(text, "    %l1 = add %l, 1\n    %lr = rem %l1, {size}\n    %turned = add %first, %lr");
    let _ = writeln!(text, "    %ls = sub {}, %l\n    %swapped = add %first, %ls\n    %next = add %i, 1", size - 1);
    let guard = *random.choose(&["none", "if", "if", "return", "nested return", "loop"]);
    text += match guard {
        "if" => "    %c = lt %i, %n\n    if %c {\n",
        "return" => "    %c = ge %i, %n\n    if %c {\n        return\n    }\n",
        "nested return" => {
            "    %c = ge %i, %n\n    %o = and %i, 1\n    %odd = eq %o, 1\n    if %odd {\n        if %c {\n            return\n        }\n    }\n"
        }
        "loop" => {
            "    %s = loop (%k = 0) -> u32 {\n        %e = gt %k, %n\n        if %e {\n            return\n        }\n        %d = ge %k, 2\n        \
             if %d {\n            break %i\n        }\n        %m = add %k, 1\n        continue %m\n    }\n    %n3 = add %s, 1\n"
        }
        _ => "",
    };
    let index = |way: &str| {
        if way == "own" {
            "%i".to_owned()
        } else if way == "pair" {
            "%twice".into()
        } else {
            format!("%{way}")
        }
    };
    let as_u32 = |text: &mut String, buffer: usize, value: &str| {
        let signed = elements[buffer].starts_with('i');
        let _ = writeln!(
            text,
            "    %{value} = {} %raw{value}{}",
            if signed { "bitcast" } else { "add" },
            if signed { " to u32" } else { ", 0" }
        );
    };
    text += "    %v0 = add %i, 7\n";
    let mut last = 0;
    for &buffer in reads.iter().chain(writes) {
        let way = reach[&buffer];
        // Loads of elements that other invocations store would race.
        if writes.contains(&buffer) && way != "own" && way != "pair" {
            continue;
        }
        let (name, index) = (names[buffer], index(way));
        if way == "pair" {
            let _ = writeln!(text, "    %rawp{buffer}, %rawq{buffer} = load {name}[{index}]");
            as_u32(&mut text, buffer, &format!("p{buffer}"));
            as_u32(&mut text, buffer, &format!("q{buffer}"));
            let _ = writeln!(text, "    %x{buffer} = xor %p{buffer}, %q{buffer}");
        } else {
            let _ = writeln!(text, "    %rawx{buffer} = load {name}[{index}]");
            as_u32(&mut text, buffer, &format!("x{buffer}"));
        }
        let _ = writeln!(text, "    %m{buffer} = mul %v{last}, 3\n    %v{} = add %m{buffer}, %x{buffer}", last + 1);
        last += 1;
    }
    for &buffer in writes {
        let (name, index) = (names[buffer], index(reach[&buffer]));
        let _ = writeln!(text, "    %len{buffer} = length {name}\n    %w{buffer} = add %v{last}, %len{buffer}");
        let value = if elements[buffer].starts_with('i') {
            let _ = writeln!(text, "    %s{buffer} = bitcast %w{buffer} to i32");
            format!("%s{buffer}")
        } else {
            format!("%w{buffer}")
        };
        let second = if reach[&buffer] == "pair" { format!(", {value}") } else { String::new() };
        let _ = writeln!(text, "    store {name}[{index}], {value}{second}");
    }
    text += if guard == "if" { "    }\n}\n" } else { "}\n" };
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fused_stages_equal_separate_stages(seed: u64) {
        generated(seed).check();
    }
}

/// Checks that generated stages are fused at all.
#[test]
fn generated_stages_are_fused_and_lose_buffers() {
    let (mut joined, mut dropped, mut stages) = (0, 0, 0);
    for seed in 0..200 {
        let chain = generated(seed << 32);
        let (fewer, without) = chain.check();
        (joined, dropped, stages) = (joined + fewer, dropped + without, stages + chain.programs.len());
    }
    println!("{joined} of {stages} joined, {dropped} buffers dropped");
    assert!(joined * 5 > stages && dropped > 50, "{joined} of {stages} joined, {dropped} buffers dropped");
}

/// A chain of element-wise stages with one form of bounds guard, and the optimized fused program.
fn chain(way: &str, stages: usize) -> (Chain, String) {
    let mut source = String::new();
    let mut lengths = vec!["x".to_owned()];
    for stage in 0..stages {
        let from = lengths[stage].clone();
        let to = if stage + 1 == stages { "y".into() } else { format!("t{stage}") };
        let before = match way {
            "uniform" => "%n = load n1000\n    %c = lt %i, %n\n    if %c {".to_owned(),
            "length of input" => format!("%n = length {from}\n    %c = lt %i, %n\n    if %c {{"),
            "length of output" => format!("%n = length {to}\n    %c = lt %i, %n\n    if %c {{"),
            "return" => "%n = load n1000\n    %c = ge %i, %n\n    if %c {\n        return\n    }".into(),
            "loaded before" => format!(
                "%v = load {from}[%i]\n    %n = load n1000\n    %w = mul %v, {stage}.5\n    %c = lt %i, %n\n    if %c {{"
            ),
            _ => String::new(),
        };
        let load = format!("%v = load {from}[%i]\n    %w = mul %v, {stage}.5\n");
        let load = if way == "loaded before" { "" } else { &load };
        let after = if before.ends_with("if %c {") { "}" } else { "" };
        source += &format!(
            "program s{stage} workgroup(64) {{\n    uniform n1000: u32\n    uniform k{stage}: u32\n    read {from}: [f32]\n    write {to}: [f32]\n    \
             %i = global_index\n    %k = load k{stage}\n    %f = cast %k to f32\n    {before}\n    {load}\n    %z = add %w, %f\n    store {to}[%i], %z\n    {after}\n}}\n"
        );
        lengths.push(to);
    }
    let lengths: Vec<(&str, u32)> = lengths.iter().map(|name| (name.as_str(), 1000)).collect();
    let chain = Chain::new(&source, [16, 1, 1], &lengths);
    let optimized = print(&optimize(&chain.fused().program));
    (chain, optimized)
}

#[test]
fn element_wise_chains_fuse_to_one_load_and_store() {
    for way in ["uniform", "length of input", "length of output", "return", "loaded before", "always"] {
        let (chain, optimized) = chain(way, 12);
        assert_eq!(chain.check(), (11, 11), "{way}");
        let count = |what: &str| optimized.matches(what).count();
        let found = (count("private "), count("if "), count("load x"), count("store "));
        assert_eq!(found, (0, 1, 1, 1), "{way}: {optimized}");
        assert_eq!((count("select "), count("uniform ")), (0, 0), "{way}: {optimized}");
    }
}

/// A stage that writes a buffer and one that reads it, at these indices; `%i` is the global index, `%l` the local one.
fn pair(writes: &str, reads: &str) -> Chain {
    pair_of("write t: [u32]", writes, "read t: [u32]", reads)
}

fn pair_of(first: &str, writes: &str, second: &str, reads: &str) -> Chain {
    let body = |objects: &str, index: &str, rest: &str| {
        format!(
            "{objects}\n    %i = global_index\n    %l = local_index\n    %first = sub %i, %l\n    %x = global_id.x\n    %y = global_id.y\n    \
             {index}\n    {rest}\n}}\n"
        )
    };
    let source = format!(
        "program first workgroup(8) {{\n    {}program second workgroup(8) {{\n    {}",
        body(first, writes, "store t[%at], %i"),
        body(&format!("{second}\n    read_write y: [u32]"), reads, "%v = load t[%at]\n    store y[%i], %v"),
    );
    Chain::new(&source, [4, 1, 1], &[("t", 32), ("y", 32)])
}

const OWN: &str = "%at = add %i, 0";

#[test]
fn buffers_of_one_invocation_or_workgroup_become_arrays() {
    let turned = "%n = add %l, 3\n    %r = rem %n, 8\n    %at = add %first, %r";
    let swapped = "%r = xor %l, 1\n    %at = add %first, %r";
    let strided = "%at = mul %i, 3";
    let by_axes = "%r = mul %y, 32\n    %at = add %r, %x";
    for (writes, reads, kept_in) in [
        (OWN, OWN, "private"),
        (OWN, by_axes, "private"),
        (strided, strided, "private"),
        (OWN, turned, "workgroup"),
        (swapped, OWN, "workgroup"),
        (swapped, turned, "workgroup"),
    ] {
        let chain = pair(writes, reads);
        let fused = print(&chain.fused().program);
        assert!(fused.contains(&format!("{kept_in} t: [u32;")), "{writes} {reads} {fused}");
        assert_eq!(fused.contains("workgroup_barrier"), kept_in == "workgroup", "{fused}");
        assert_eq!(chain.check(), (1, 1));
    }
}

/// A buffer that is read outside the group stays, with a barrier if its elements cross invocations.
#[test]
fn buffers_read_outside_the_group_stay() {
    let reversed = "%r = sub 7, %l\n    %at = add %first, %r";
    let chain = pair(OWN, reversed);
    let fused = fuse("both", &chain.stages(), &|_| false);
    assert!(fused.dropped.is_empty() && print(&fused.program).contains("storage_barrier"));
    assert_eq!(fused.objects.len(), 2);
}

#[test]
fn a_grid_of_one_workgroup_may_access_any_element() {
    let mut chain = pair(OWN, "%at = load y[%i]");
    assert!(matches!(chain.refusal(), Refusal::CrossesWorkgroups { .. }));
    chain.groups = [1, 1, 1];
    assert_eq!(chain.check(), (1, 1));
}

/// Storage barriers inside a stage become workgroup barriers if their buffer becomes a workgroup array.
#[test]
fn storage_barriers_follow_buffers_to_workgroup_memory() {
    let second = "read_write t: [u32]\n    write z: [u32]";
    let reads = "%o = load t[%i]\n    %o1 = mul %o, 5\n    store t[%i], %o1\n    storage_barrier\n    %r = sub 7, %l\n    %at = add %first, %r";
    let mut chain = pair_of("write t: [u32]", OWN, second, reads);
    chain.buffers.push(("z".into(), 32));
    assert_eq!(chain.check(), (1, 1));
    assert!(print(&chain.fused().program).contains("workgroup t:"));
}

#[test]
fn elements_that_cross_workgroups_are_refused() {
    let crosses_workgroups = Refusal::CrossesWorkgroups { object: "t".into() };
    for other in ["%at = add %i, 1", "%at = mul %i, 2", "%at = add %l, 0", "%at = sub 31, %i", "%at = and %i, 1"] {
        assert_eq!(pair(OWN, other).refusal(), crosses_workgroups, "{other}");
        assert_eq!(pair(other, OWN).refusal(), crosses_workgroups, "{other}");
    }
    // Equal indices are not exclusive if several invocations share them.
    for shared in ["%at = add %i, %l", "%at = div %i, 2", "%g = group_index\n    %at = add %g, %l"] {
        assert_eq!(pair(shared, shared).refusal(), crosses_workgroups, "{shared}");
    }
    // A write after a read (WAR) is a conflict too.
    let later = |stores: &str| {
        let first = "read t: [u32]\n    write z: [u32]\n    %i = global_index\n    %n = add %i, 1\n    %v = load t[%n]\n    store z[%i], %v";
        let second = format!("write {stores}: [u32]\n    %i = global_index\n    store {stores}[%i], 1");
        let source =
            format!("program first workgroup(8) {{\n{first}\n}}\nprogram second workgroup(8) {{\n{second}\n}}\n");
        Chain::new(&source, [4, 1, 1], &[("t", 32), ("y", 32), ("z", 32)])
    };
    assert_eq!(later("t").refusal(), crosses_workgroups);
    assert_eq!(later("y").check().0, 1, "no buffer is both written and read");
}

#[test]
fn refusals_name_the_reason() {
    let refused =
        |first: &str, writes: &str, second: &str, reads: &str| pair_of(first, writes, second, reads).refusal();
    let (write, read) = ("write t: [u32]", "read t: [u32]");
    let stage = || "first".to_owned();
    let printing = format!("print \"{{}}\", %i\n    {OWN}");
    assert_eq!(refused(write, &printing, read, OWN), Refusal::Prints { stage: stage() });
    assert_eq!(pair(OWN, &printing).check().0, 1, "the last stage may print");
    let trapping = format!("%c = gt %i, 99\n    if %c {{\n        trap 1\n    }}\n    {OWN}");
    assert_eq!(refused(write, &trapping, read, OWN), Refusal::Traps { stage: stage() });
    assert_eq!(pair(OWN, &trapping).check().0, 1, "the last stage may trap");
    let ending = format!("%c = gt %i, 9\n    if %c {{\n        return\n    }}\n    workgroup_barrier\n    {OWN}");
    assert_eq!(refused(write, &ending, read, OWN), Refusal::EndsEarly { stage: stage() });
    assert_eq!(pair(OWN, &ending).check().0, 1, "the last stage may end early");
    assert_eq!(refused(write, OWN, "read_write atomic t: [u32]", OWN), Refusal::Atomic { object: "t".into() });
    let array = |space: &str, bytes: u32| format!("{space} array: [u32; {}]\n    ", bytes / 4);
    for (name, space, limit) in [("workgroup", Space::Workgroup, 32 << 10), ("private", Space::Private, 16 << 10)] {
        let array = array(name, limit - 4);
        let refusal = refused(&(array.clone() + write), OWN, &(array + read), OWN);
        assert_eq!(refusal, Refusal::Memory { space, bytes: 2 * u64::from(limit - 4), limit: limit.into() });
    }
    let nested = (0..61).fold(OWN.to_owned(), |inner, level| format!("region \"r{level}\" {{\n{inner}\n}}\n"));
    let nested = format!("{}\n    {OWN}", nested.replace("%at", "%inner"));
    assert_eq!(refused(write, OWN, read, &nested), Refusal::Nesting { stage: "second".into() });
    assert_eq!(pair(OWN, &nested).check(), (0, 0), "a stage that is nested too deeply stays separate");
    // The barrier is in control flow that depends on `t`, which is uniform only if it is not written.
    let depending = "%g = group_index\n    %of = mul %g, 8\n    %v0 = load t[%of]\n    %c = gt %v0, 4\n    if %c {\n        workgroup_barrier\n    }\n    %at = add %i, 0";
    assert_eq!(refused(write, OWN, read, depending), Refusal::Divergent);

    let mut chain = pair(OWN, OWN);
    let wider = print(&chain.programs[1]).replace("workgroup(8)", "workgroup(16)");
    chain.programs[1] = Chain::new(&wider, [1, 1, 1], &[]).programs.remove(0);
    assert_eq!(chain.refusal(), Refusal::WorkgroupSize { before: [8, 1, 1], next: [16, 1, 1] });
    let chain = pair(OWN, OWN);
    let mut stages = chain.stages();
    stages[1] = Stage::new(&chain.programs[1], [5, 1, 1], vec![], []);
    let refusal = may_join(&stages[..1], &stages[1]).unwrap_err();
    assert_eq!(refusal, Refusal::Grid { before: [4, 1, 1], next: [5, 1, 1] });
    assert_eq!(refusal.to_string(), "[5, 1, 1] workgroups ≠ [4, 1, 1] of the stages before it");
    let memory = chain.programs[1].memory_named("t").unwrap();
    stages[1] = Stage::new(
        &chain.programs[1],
        [4, 1, 1],
        vec![Bound { memory, buffer: BufferId::from_index(0), elements: 31 }],
        [],
    );
    assert_eq!(may_join(&stages[..1], &stages[1]), Err(Refusal::View { object: "t".into() }));
}
