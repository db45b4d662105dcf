//! Validator of programs, modules and pipelines.
//!
//! [`program`] checks every rule of the [fault table](crate::diagnostics::Fault) and reports the violations. Only a [`Validated`] program
//! can be run, optimized or lowered, and *no later stage panics on a validated program*. In particular:
//!
//! * ids are in range, each block and instruction has one parent, and each value links to its definition;
//! * every block ends in exactly one terminator, whose operands match its target;
//! * definitions dominate uses;
//! * operands and results have the types of the op table;
//! * accesses respect the access mode and atomicity of their object, and constant indices its declared length;
//! * barriers and broadcasts are in control flow proved workgroup-uniform, subgroup operations in control flow proved subgroup-uniform;
//! * sizes and nesting are within the [`limits`].

mod structure;
mod typing;

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::Error;
use crate::analysis::{Scope, Uniformity};
use crate::diagnostics::{Diagnostic, DiagnosticSink, Diagnostics, Fault, Malformation};
use crate::ir::pipeline::{Argument, Buffer};
use crate::ir::{
    Access, Element, InstId, Module, Op, Pipeline, Program, SourceMap, Space, Span, TypeSet, ValueId, total_invocations,
};
use crate::text::is_name;

/// Limits of every program. A device with lower limits reports an error when it compiles.
pub mod limits {
    /// Invocations of a workgroup in each dimension, as on desktop GPUs.
    pub const WORKGROUP_SIZE: [u32; 3] = [1024, 1024, 64];
    /// Invocations of a workgroup, as on desktop GPUs.
    pub const WORKGROUP_INVOCATIONS: u32 = 1024;
    /// Bytes of workgroup arrays, as on desktop GPUs.
    pub const WORKGROUP_BYTES: u64 = 32 * 1024;
    /// Bytes of private arrays of an invocation: 16 MiB for 1024 invocations.
    pub const PRIVATE_BYTES: u64 = 16 * 1024;
    /// Nesting depth of blocks, low enough for recursion over blocks on any stack.
    pub const NESTING: usize = 64;
}

/// Input of the validator.
pub trait Validate {
    /// The validated form, with validated parts.
    type Form: Clone;
}

impl Validate for Program {
    type Form = Program;
}

impl Validate for Module {
    type Form = Module<Validated<Program>>;
}

/// A validated program or module: immutable and shared between clones.
#[derive(Debug)]
pub struct Validated<T: Validate>(Arc<T::Form>);

impl<T: Validate> Validated<T> {
    /// Returns the value, unvalidated. Copies it if there are other clones.
    pub fn into_inner(self) -> T::Form {
        Arc::unwrap_or_clone(self.0)
    }
}

impl Validated<Program> {
    /// Replaces the sources, which no rule depends on.
    pub fn with_sources(mut self, sources: &SourceMap) -> Validated<Program> {
        if self.sources() != sources {
            Arc::make_mut(&mut self.0).set_sources(sources.clone());
        }
        self
    }

    /// [Compacts](Program::compact) the program, which no rule depends on.
    pub(crate) fn compact(&mut self) {
        Arc::make_mut(&mut self.0).compact();
    }
}

impl<T: Validate> Clone for Validated<T> {
    fn clone(&self) -> Self {
        Validated(Arc::clone(&self.0))
    }
}

impl<T: Validate<Form: PartialEq>> PartialEq for Validated<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Validate> Deref for Validated<T> {
    type Target = T::Form;
    fn deref(&self) -> &T::Form {
        &self.0
    }
}

impl Borrow<Program> for Validated<Program> {
    fn borrow(&self) -> &Program {
        self
    }
}

/// Validates the programs and pipelines of a module, and that their names are distinct.
///
/// # Errors
/// [`Error::Invalid`] with the violations of all programs, at most [`LIMIT`](crate::diagnostics::LIMIT).
pub fn module(module: Module) -> Result<Validated<Module>, Error> {
    let _span = tracing::info_span!("validate", programs = module.programs.len()).entered();
    let mut found = DiagnosticSink::default();
    let mut names = FxHashSet::default();
    for program in &module.programs {
        if found.is_full() {
            break;
        }
        if !names.insert(program.name()) {
            found.push(Diagnostic::new(Fault::DuplicateProgram { name: program.name().to_owned() }, Span::NONE));
        }
        found.append(check(program));
    }
    for pipeline in &module.pipelines {
        if !names.insert(&pipeline.name) {
            found.push(Diagnostic::new(Fault::DuplicateProgram { name: pipeline.name.clone() }, pipeline.span));
        }
        buffers(pipeline, &mut found);
    }
    if let Some(diagnostics) = found.into_diagnostics() {
        return Err(Error::Invalid(diagnostics));
    }
    // Arguments are matched with valid programs only.
    let mut found = DiagnosticSink::default();
    let programs = module.programs.into_iter().map(|program| Validated(Arc::new(program))).collect();
    let module = Module { programs, pipelines: module.pipelines };
    for pipeline in &module.pipelines {
        dispatches(pipeline, &module.programs, &mut found);
    }
    match found.into_diagnostics() {
        None => Ok(Validated(Arc::new(module))),
        Some(diagnostics) => Err(Error::Invalid(diagnostics)),
    }
}

/// Validates a program.
///
/// # Errors
/// [`Error::Invalid`] with the violations, at most [`LIMIT`](crate::diagnostics::LIMIT).
pub fn program(program: Program) -> Result<Validated<Program>, Error> {
    let _span = tracing::info_span!("validate", program = program.name()).entered();
    match diagnose(&program) {
        None => Ok(Validated(Arc::new(program))),
        Some(diagnostics) => Err(Error::Invalid(diagnostics)),
    }
}

/// The violations of a program, if any.
pub fn diagnose(program: &Program) -> Option<Diagnostics> {
    check(program).into_diagnostics()
}

/// First violation of the rules about single instructions. The builder checks each instruction while the location of its call is known.
pub(crate) fn instruction(program: &Program, inst: InstId) -> Option<Fault> {
    typing::check_inst(program, inst).first()
}

/// Validates the names and buffers of a pipeline that is not part of a module.
///
/// # Errors
/// [`Error::Invalid`] with the violations, at most [`LIMIT`](crate::diagnostics::LIMIT).
pub fn pipeline(pipeline: &Pipeline) -> Result<(), Error> {
    let mut found = DiagnosticSink::default();
    buffers(pipeline, &mut found);
    found.into_diagnostics().map_or(Ok(()), |diagnostics| Err(Error::Invalid(diagnostics)))
}

fn buffers(pipeline: &Pipeline, found: &mut DiagnosticSink) {
    let mut report = |fault, span| found.push(Diagnostic::new(fault, span));
    let mut names = FxHashSet::default();
    if !is_name(&pipeline.name) {
        report(Fault::BadName { name: pipeline.name.clone() }, pipeline.span);
    }
    for Buffer { name, length, span, .. } in pipeline.buffers.values() {
        if !is_name(name) {
            report(Fault::BadName { name: name.clone() }, *span);
        }
        if !names.insert(name) {
            report(Fault::DuplicateName { name: name.clone() }, *span);
        }
        if *length == 0 {
            report(Fault::ZeroLength { memory: name.clone() }, *span);
        }
    }
    for dispatch in &pipeline.dispatches {
        for (_, argument) in &dispatch.arguments {
            if let Argument::Buffer(id) = argument
                && pipeline.buffers.get(*id).is_none()
            {
                let (what, entity) = (Malformation::DanglingId, format!("{id:?}"));
                report(Fault::Malformed { what, entity }, dispatch.span);
            }
        }
    }
}

fn dispatches(pipeline: &Pipeline, programs: &[Validated<Program>], found: &mut DiagnosticSink) {
    let named: FxHashMap<&str, _> = programs.iter().map(|program| (program.name(), program)).collect();
    for dispatch in &pipeline.dispatches {
        let fault = match named.get(dispatch.program.as_str()) {
            None => Fault::UnknownProgram { name: dispatch.program.clone() },
            Some(program) => {
                let bound = pipeline.bind(program, dispatch.named()).map(|_| ());
                match bound.and(dispatch.grid.groups(program.workgroup_size())) {
                    Ok(_) => continue,
                    Err(error) => Fault::Misfit { program: program.name().to_owned(), error: Box::new(error) },
                }
            }
        };
        found.push(Diagnostic::new(fault, dispatch.span));
    }
}

/// Runs the stages of validation. Each stage relies on the previous ones, so the first stage with violations is the last one.
fn check(program: &Program) -> DiagnosticSink {
    let mut found = structure::check(program);
    if found.is_empty() {
        declarations(program, &mut found);
        typing::check(program, &mut found);
    }
    if found.is_empty() {
        uniform_control_flow(program, &mut found);
    }
    found
}

/// Checks names, sizes and memory objects. The builder calls it after each declaration.
pub(crate) fn declarations(program: &Program, found: &mut DiagnosticSink) {
    let mut report = |fault, span| found.push(Diagnostic::new(fault, span));
    if !is_name(program.name()) {
        report(Fault::BadName { name: program.name().to_owned() }, Span::NONE);
    }
    workgroup_size(program, &mut report);

    let constants = program.constants().values().map(|constant| (&constant.name, constant.span));
    let objects = program.memories().values().map(|memory| (&memory.name, memory.span));
    let mut names = FxHashSet::default();
    for (name, span) in constants.chain(objects) {
        if !is_name(name) {
            report(Fault::BadName { name: name.clone() }, span);
        }
        if !names.insert(name) {
            report(Fault::DuplicateName { name: name.clone() }, span);
        }
    }

    for memory in program.memories().values() {
        let name = || memory.name.clone();
        if memory.length.is_none() && !matches!(memory.space, Space::Storage(_)) {
            report(Fault::NeedsLength { memory: name() }, memory.span);
        }
        if memory.length == Some(0) {
            report(Fault::ZeroLength { memory: name() }, memory.span);
        }
        if memory.atomic {
            if !matches!(memory.space, Space::Workgroup | Space::Storage(Access::ReadWrite)) {
                report(Fault::AtomicSpace { memory: name() }, memory.span);
            }
            if !is_atomic_element(memory.element) {
                report(Fault::AtomicElement { memory: name(), element: memory.element }, memory.span);
            }
        }
        if let Some(default) = memory.default
            && default.ty != memory.element.value_type()
        {
            let expected = memory.element.value_type();
            report(Fault::DefaultType { name: name(), expected, found: default.ty }, memory.span);
        } else if let Some(default) = memory.default.filter(|default| !memory.element.holds(*default)) {
            report(Fault::DefaultRange { name: name(), element: memory.element, value: default }, memory.span);
        }
    }

    let last_in = |space| program.memories().values().rfind(|memory| memory.space == space).map(|memory| memory.span);
    let bytes = program.static_bytes_in(Space::Workgroup);
    if bytes > limits::WORKGROUP_BYTES {
        let span = last_in(Space::Workgroup).unwrap_or_default();
        report(Fault::WorkgroupMemory { bytes, limit: limits::WORKGROUP_BYTES }, span);
    }
    let bytes = program.static_bytes_in(Space::Private);
    if bytes > limits::PRIVATE_BYTES {
        let span = last_in(Space::Private).unwrap_or_default();
        report(Fault::PrivateMemory { bytes, limit: limits::PRIVATE_BYTES }, span);
    }
}

/// Returns true for the element types that have atomic accesses.
pub(crate) fn is_atomic_element(element: Element) -> bool {
    element.size() >= 4 && TypeSet::ATOMIC.contains(element.value_type())
}

fn workgroup_size(program: &Program, report: &mut impl FnMut(Fault, Span)) {
    let size = program.workgroup_size();
    let limit = limits::WORKGROUP_SIZE;
    if size.iter().zip(limit).any(|(&size, limit)| !(1..=limit).contains(&size)) {
        report(Fault::WorkgroupSize { size, limit }, Span::NONE);
        return;
    }
    let count = size.iter().map(|&size| u64::from(size)).product();
    if count > u64::from(limits::WORKGROUP_INVOCATIONS) {
        report(Fault::WorkgroupInvocations { count, limit: limits::WORKGROUP_INVOCATIONS }, Span::NONE);
    }
    if let Some(elements) = program.launch() {
        let groups = std::array::from_fn(|axis| elements[axis].div_ceil(size[axis]));
        if elements.contains(&0) || total_invocations(groups, size).is_none() {
            report(Fault::LaunchSize { elements }, Span::NONE);
        }
    }
}

/// Rejects collective operations in divergent control flow, with labels for the def-use chain from the condition back to the source of
/// divergence.
fn uniform_control_flow(program: &Program, found: &mut DiagnosticSink) {
    /// Number of steps of the chain that are shown, from the condition; the source of divergence is always shown.
    const STEPS: usize = 7;
    let uniformity = Uniformity::of(program);
    for (block, contents) in program.blocks().iter() {
        if uniformity.is_converged(block, Scope::Workgroup) {
            continue;
        }
        for &id in &contents.insts {
            let inst = program.inst(id);
            let Some(scope) = Scope::required_by(&inst.op).filter(|_| !found.is_full()) else { continue };
            let Some(condition) = uniformity.divergence(block, scope) else { continue };
            let fault = Fault::Divergent { op: inst.op.info().name, scope };
            let mut diagnostic = Diagnostic::new(fault, inst.span);
            let trace = uniformity.trace(condition);
            for (position, &value) in trace.iter().enumerate() {
                if position >= STEPS && position + 1 < trace.len() {
                    continue;
                }
                let name = value_name(program, value);
                let text = match (position, position + 1 == trace.len()) {
                    (_, true) if is_load(program, value) => {
                        format!("{name} may differ between invocations: others may write in between")
                    }
                    (_, true) => format!("{name} differs between {}s", uniformity.scope(value)),
                    (0, false) => format!("control flow depends on {name}"),
                    (_, false) => format!("which depends on {name}"),
                };
                diagnostic = diagnostic.label(definition_span(program, value), text);
            }
            found.push(diagnostic);
        }
    }
}

fn is_load(program: &Program, value: ValueId) -> bool {
    match program.def(value) {
        crate::ir::Def::Result(inst, _) => matches!(program.inst(inst).op, Op::Load(_)),
        _ => false,
    }
}

fn definition_span(program: &Program, value: ValueId) -> Span {
    match program.def(value) {
        crate::ir::Def::Result(inst, _) => program.inst(inst).span,
        crate::ir::Def::Param(block, _) => {
            let owner = program.insts().values().find(|inst| inst.blocks.contains(&block));
            owner.map_or(Span::NONE, |inst| inst.span)
        }
        crate::ir::Def::Literal(_) | crate::ir::Def::Constant(_) => Span::NONE,
    }
}

/// The name of a value, for messages.
fn value_name(program: &Program, value: ValueId) -> String {
    match program.value_name(value) {
        Some(name) => format!("`%{name}`"),
        None => "this value".into(),
    }
}
