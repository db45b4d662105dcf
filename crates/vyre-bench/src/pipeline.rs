//! Pipeline benchmarks: planned pipelines against the same dispatches one by one with separate memory for every buffer,
//! and against a program fused by hand.

use std::fmt::Write as _;

use vyre_cpu::Cpu;
use vyre_driver::{Buffer, Device, Error as DriverError, Kernel};
use vyre_foundation::Validated;
use vyre_foundation::ir::entity::Entity;
use vyre_foundation::ir::pipeline::Role;
use vyre_foundation::ir::{Element, Program, Space};
use vyre_foundation::launch::Limits;
use vyre_runtime::Error;
use vyre_runtime::pipeline::{Argument, BufferRef, Compiled, Pipeline};
use vyre_wgpu::Wgpu;

use crate::job::{Job, elements, program, random};
use crate::line::{Line, Report};

const PROGRAMS: &str = include_str!("pipeline.vyre");

const STAGES: u32 = 12;
/// Factor and term of each stage, as uniforms.
const GIVEN: [[&str; 2]; STAGES as usize] = [
    ["a0", "b0"],
    ["a1", "b1"],
    ["a2", "b2"],
    ["a3", "b3"],
    ["a4", "b4"],
    ["a5", "b5"],
    ["a6", "b6"],
    ["a7", "b7"],
    ["a8", "b8"],
    ["a9", "b9"],
    ["a10", "b10"],
    ["a11", "b11"],
];
const LANES: u32 = 10;
const STEPS: u32 = 20;

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    let cpu = Device::open(&Cpu::default())?;
    chain(report, &cpu, "cpu")?;
    if report.is_selected("chain12_fused_vs_unfused_wgpu") {
        let device = Device::open(&Wgpu)?;
        report.adapter(device.capabilities());
        chain(report, &device, "wgpu")?;
    }
    mixed(report, &cpu)
}

fn line<'a>(name: &'a str, device: &'a str, baseline: &'a str, work: u64, unit: &'a str) -> Line<'a> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    Line { suite: "pipeline", name, device, threads, baseline, work, unit }
}

/// Dispatches in a pipeline, and separately.
struct Both {
    device: Device,
    pipeline: Pipeline,
    buffers: Vec<Buffer>,
    job: Job,
}

impl Both {
    fn new(device: &Device) -> Both {
        let (pipeline, job) = (Pipeline::new("bench"), Job::new(device));
        Both { device: device.clone(), pipeline, buffers: Vec::new(), job }
    }

    fn buffer(&mut self, name: String, role: Role, length: u32) -> Result<BufferRef, Error> {
        self.buffers.push(self.device.allocate(Element::F32, length.into())?);
        Ok(self.pipeline.buffer(name, role, Element::F32, length))
    }

    fn dispatch(
        mut self,
        program: &Validated<Program>,
        length: u32,
        arguments: &[(&'static str, Argument)],
    ) -> Result<Both, Error> {
        self.pipeline.dispatch(program.clone(), elements(length), arguments)?;
        let alone = arguments.iter().map(|(name, argument)| match argument {
            Argument::Buffer(id) => (*name, (&self.buffers[id.id().index()]).into()),
            Argument::Scalar(literal) => (*name, vyre_driver::Argument::Scalar(*literal)),
        });
        let alone = alone.collect();
        let kernel = compile_with_lengths(&self.device, program, length)?;
        self.job = self.job.launch_kernel(&kernel, elements(length), alone)?;
        Ok(self)
    }

    /// Checks that both give the same result.
    fn check(&self, compiled: &Compiled, input: &[u8], output: &str) -> Result<(), Error> {
        compiled.buffer("x")?.write(input)?;
        self.buffers[0].write(input)?;
        compiled.run(Limits::default())?;
        self.job.run();
        let of_job = self.pipeline.recorded().buffer_named(output).expect("it was declared");
        assert!(compiled.buffer(output)?.read()? == self.buffers[of_job.index()].read()?, "{output} differs");
        Ok(())
    }
}

/// Compiles a program of a baseline with the buffer lengths, like the pipeline.
fn compile_with_lengths(device: &Device, program: &Validated<Program>, length: u32) -> Result<Kernel, DriverError> {
    let storage = program.memories().iter().filter(|(_, memory)| matches!(memory.space, Space::Storage(_)));
    device.compile_for(program, &storage.map(|(object, _)| (object, length.into())).collect::<Vec<_>>())
}

fn run_once(compiled: &Compiled) {
    compiled.run(Limits::default()).expect("the device is there");
}

/// `y = a·x + b`, twelve times.
fn chain(report: &Report, device: &Device, name: &str) -> Result<(), Error> {
    let length = if report.quick { 1 << 20 } else { 1 << 24 };
    let affine = program(PROGRAMS, "affine")?;
    let factors = |stage: u32| (1.0 + stage as f32 / 64.0, 0.25 * stage as f32);
    let mut both = Both::new(device);
    let x = both.buffer("x".into(), Role::In, length)?;
    let mut last = x;
    for stage in 0..STAGES {
        let (a, b) = factors(stage);
        let role = if stage + 1 == STAGES { Role::Out } else { Role::Transient };
        let next = both.buffer(format!("t{stage}"), role, length)?;
        let arguments = [("a", a.into()), ("b", b.into()), ("x", last.into()), ("y", next.into())];
        both = both.dispatch(&affine, length, &arguments)?;
        last = next;
    }
    let plan = both.pipeline.plan(device.capabilities())?;
    assert_eq!(plan.launches.len(), 1, "a chain is fused");
    let compiled = plan.compile(device)?;
    both.check(&compiled, &random(Element::F32, length, 1)?, "t11")?;

    // On the same memory, so that only the programs differ: with constant factors, and with uniform factors, as in the
    // pipeline.
    let (x, y) = (compiled.buffer("x")?, compiled.buffer("t11")?);
    let fused = y.read()?;
    let by_hand = |given: bool| -> Result<Job, Error> {
        let (mut declared, mut body) = (String::new(), String::new());
        let mut arguments = vec![("x", x.into()), ("y", y.into())];
        for stage in 0..STAGES {
            let (a, b) = factors(stage);
            let [mut factor, mut term] = [format!("{a:?}"), format!("{b:?}")];
            if given {
                let names = GIVEN[stage as usize];
                arguments.extend([(names[0], a.into()), (names[1], b.into())]);
                for (name, operand) in names.into_iter().zip([&mut factor, &mut term]) {
                    let _ = writeln!(declared, "uniform {name}: f32");
                    let _ = writeln!(body, "%{name} = load {name}");
                    *operand = format!("%{name}");
                }
            }
            let _ = writeln!(body, "%p{stage} = mul %{stage}, {factor}\n%{} = add %p{stage}, {term}", stage + 1);
        }
        let source = format!(
            "program hand workgroup(256) {{\n{declared}read x: [f32]\nwrite y: [f32]\n%i = global_index\n%n = length y\n\
             %inside = lt %i, %n\nif %inside {{\n%0 = load x[%i]\n{body}store y[%i], %{STAGES}\n}}\n}}"
        );
        let kernel = compile_with_lengths(device, &program(&source, "hand")?, length)?;
        let hand = Job::new(device).launch_kernel(&kernel, elements(length), arguments)?;
        device.clear_and_submit(&[y], &[])?.wait()?;
        hand.run();
        assert!(y.read()? == fused, "the program by hand differs");
        Ok(hand)
    };
    let (literals, uniforms) = (by_hand(false)?, by_hand(true)?);

    let work = u64::from(length);
    let [unfused, hand, given] =
        ["unfused", "hand", "hand_uniforms"].map(|baseline| format!("chain12_fused_vs_{baseline}_{name}"));
    report.compare(
        &mut || run_once(&compiled),
        &mut [
            (line(&unfused, name, "unfused", work, "elements"), &mut || both.job.run()),
            (line(&hand, name, "hand", work, "elements"), &mut || literals.run()),
            (line(&given, name, "hand_uniforms", work, "elements"), &mut || uniforms.run()),
        ],
    );
    Ok(())
}

/// Ten lanes of twenty dispatches: chains, neighbour accesses, and occasional reads from another lane.
fn mixed(report: &Report, device: &Device) -> Result<(), Error> {
    let length = if report.quick { 1 << 14 } else { 1 << 18 };
    let programs = ["affine", "mean", "mix"].map(|name| program(PROGRAMS, name));
    let [affine, mean, mix] = programs;
    let (affine, mean, mix) = (affine?, mean?, mix?);
    let mut both = Both::new(device);
    let x = both.buffer("x".into(), Role::In, length)?;
    let mut lanes = [x; LANES as usize];
    for step in 0..STEPS {
        for lane in 0..LANES {
            let role = if step + 1 == STEPS { Role::Out } else { Role::Transient };
            let next = both.buffer(format!("t{step}_{lane}"), role, length)?;
            let (from, other) = (lanes[lane as usize], lanes[((lane + 1) % LANES) as usize]);
            both = match step % 7 {
                3 => both.dispatch(&mean, length, &[("x", from.into()), ("y", next.into())])?,
                6 => both.dispatch(&mix, length, &[("x", from.into()), ("z", other.into()), ("y", next.into())])?,
                _ => {
                    let (a, b) = (1.0 + lane as f32 / 64.0, step as f32);
                    let arguments = [("a", a.into()), ("b", b.into()), ("x", from.into()), ("y", next.into())];
                    both.dispatch(&affine, length, &arguments)?
                }
            };
            lanes[lane as usize] = next;
        }
    }
    let plan = both.pipeline.plan(device.capabilities())?;
    let compiled = plan.compile(device)?;
    both.check(&compiled, &random(Element::F32, length, 1)?, &format!("t{}_0", STEPS - 1))?;
    let dispatches = (LANES * STEPS) as usize;
    let time = line("mixed200", "cpu", "unplanned", dispatches as u64, "dispatches");
    report.compare(&mut || run_once(&compiled), &mut [(time, &mut || both.job.run())]);
    let counted = |name, unit| line(name, "cpu", "unplanned", 0, unit);
    report.counts(&counted("mixed200_launches", "launches"), plan.launches.len(), dispatches);
    let (peak, before) = (plan.memory.peak_bytes as usize, plan.memory.unshared_bytes as usize);
    report.counts(&counted("mixed200_peak", "bytes"), peak, before);

    // Lowers the budget to the minimum that planning reports.
    let mut least = plan;
    loop {
        both.pipeline.budget(least.memory.peak_bytes - 1);
        match both.pipeline.plan(device.capabilities()) {
            Ok(lower) => least = lower,
            Err(Error::Driver(DriverError::OverBudget { .. })) => break,
            Err(other) => return Err(other),
        }
        assert!(least.memory.peak_bytes <= least.memory.budget_bytes, "the budget is kept");
    }
    report.counts(&counted("mixed200_least_peak", "bytes"), least.memory.peak_bytes as usize, before);
    report.counts(&counted("mixed200_least_launches", "launches"), least.launches.len(), dispatches);
    Ok(())
}
