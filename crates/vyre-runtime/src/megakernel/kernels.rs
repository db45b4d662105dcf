//! Kernel cache of a session, with background compilation: items are interpreted until their kernel is compiled.

use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustc_hash::FxHashMap;
use vyre_driver::{Device, Error as DriverError};
use vyre_foundation::Validated;
use vyre_foundation::ir::Program;
use vyre_foundation::optimizer::Profile;

use super::kernel::{Body, Column, Kernel, Worker};
use crate::Error;

/// Key of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) runs: Runs,
    pub(super) worker: Worker,
    /// Invocations of a workgroup.
    pub(super) width: u32,
}

/// Ops of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Runs {
    Op(u32),
    Window(u32),
    /// All ops: the interpreter.
    All,
}

impl Key {
    /// Returns the key for units of few or many elements. Collective bodies determine the workgroup size.
    pub(super) fn new(runs: Runs, body: &Body, many: bool, width: u32) -> Key {
        match (body.facts.collective, many) {
            (true, _) => Key { runs, worker: Worker::Workgroup, width: body.program.workgroup_size()[0] },
            (false, true) => Key { runs, worker: Worker::Workgroup, width },
            (false, false) => Key { runs, worker: Worker::Invocation, width },
        }
    }

    /// Returns true if an interpreter of this key can run a body.
    pub(super) fn takes(&self, body: &Body) -> bool {
        !body.facts.collective || (self.worker != Worker::Invocation && body.program.workgroup_size()[0] == self.width)
    }
}

pub(super) struct Compiled {
    /// Unoptimized program.
    pub(super) program: Box<Validated<Program>>,
    pub(super) kernel: vyre_driver::Kernel,
    pub(super) columns: Vec<Column>,
}

enum State {
    Compiling,
    Ready(Compiled),
    /// The device cannot run it.
    Unsupported(DriverError),
}

type Finished = (Key, Result<Compiled, DriverError>);

pub(super) struct Kernels {
    device: Device,
    is_watched: bool,
    known: FxHashMap<Key, State>,
    compiling: usize,
    /// Compilation jobs for the background thread, and their results.
    jobs: Sender<(Key, Vec<(u32, Body)>)>,
    finished: Receiver<Finished>,
    /// Liveness token: the compiler thread exits when it is dropped.
    _alive: Arc<()>,
}

impl Kernels {
    /// Starts the compiler thread. Kernels may be [watched](Kernel::new).
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn new(device: &Device, is_watched: bool) -> Result<Kernels, Error> {
        let device = device.with_profile(Profile::Megakernel);
        let (jobs, waiting) = channel::<(Key, Vec<(u32, Body)>)>();
        let (finish, finished) = channel();
        let compiler = device.clone();
        let alive = Arc::new(());
        let is_alive = Arc::downgrade(&alive);
        let work = move || {
            for (key, bodies) in waiting {
                // The session was dropped or moved to another device. Remaining jobs must not keep this device alive.
                if is_alive.strong_count() == 0 {
                    return;
                }
                let bodies: Vec<(u32, &Body)> = bodies.iter().map(|(number, body)| (*number, body)).collect();
                let compiled = || compile(&compiler, key, is_watched, &bodies);
                let result = catch_unwind(AssertUnwindSafe(compiled)).unwrap_or_else(|_| {
                    let reason = "a panic while compiling a kernel of a megakernel".into();
                    Err(DriverError::Backend { backend: "runtime", reason })
                });
                // Fails if the session was dropped meanwhile.
                let _ = finish.send((key, result));
            }
        };
        let thread = std::thread::Builder::new().name("vyre-megakernel-compiler".into()).spawn(work);
        thread.map_err(|error| Error::NoThread {
            purpose: "the compiler of a megakernel session",
            reason: error.to_string(),
        })?;
        Ok(Kernels { device, is_watched, known: FxHashMap::default(), compiling: 0, jobs, finished, _alive: alive })
    }

    /// Evicts the interpreters, after the set of ops has changed.
    pub(super) fn forget_interpreters(&mut self) {
        self.finish_all();
        self.known.retain(|key, _| key.runs != Runs::All);
    }

    /// Evicts the kernels of a window whose number is reused.
    pub(super) fn forget_window(&mut self, window: u32) {
        let is_compiling =
            |(key, state): (&Key, &State)| key.runs == Runs::Window(window) && matches!(state, State::Compiling);
        if self.known.iter().any(is_compiling) {
            self.finish_all();
        }
        self.known.retain(|key, _| key.runs != Runs::Window(window));
    }

    /// Returns a compiled kernel: [`request`](Kernels::request) returned true, or [`require`](Kernels::require) succeeded.
    pub(super) fn get(&self, key: Key) -> &Compiled {
        match self.known.get(&key) {
            Some(State::Ready(compiled)) => compiled,
            Some(State::Compiling | State::Unsupported(_)) | None => {
                unreachable!("only compiled kernels are launched")
            }
        }
    }

    /// Returns all compiled kernels.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Compiled> {
        self.known.values().filter_map(|state| match state {
            State::Ready(compiled) => Some(compiled),
            State::Compiling | State::Unsupported(_) => None,
        })
    }

    /// Returns true if a kernel is compiled; otherwise requests its compilation in the background.
    pub(super) fn request(&mut self, key: Key, bodies: impl FnOnce() -> Vec<(u32, Body)>) -> bool {
        self.take_finished();
        if let Entry::Vacant(unknown) = self.known.entry(key) {
            unknown.insert(State::Compiling);
            self.compiling += 1;
            // Without the compiler thread, the entry stays `Compiling`, and its items are interpreted.
            if self.jobs.send((key, bodies())).is_err() {
                self.compiling -= 1;
            }
        }
        matches!(self.known.get(&key), Some(State::Ready(_)))
    }

    /// Compiles a kernel synchronously, unless it is compiled.
    ///
    /// # Errors
    /// The device cannot run it.
    pub(super) fn require(&mut self, key: Key, bodies: &[(u32, &Body)]) -> Result<(), DriverError> {
        if matches!(self.known.get(&key), Some(State::Compiling)) {
            self.finish_all();
        }
        if !self.known.contains_key(&key) {
            let result = compile(&self.device, key, self.is_watched, bodies);
            let failed = result.as_ref().err().cloned();
            self.settle(key, result);
            if let Some(error) = failed {
                return Err(error);
            }
        }
        match self.known.get(&key) {
            Some(State::Unsupported(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Returns the reason why the device cannot run a kernel.
    pub(super) fn refusal(&self, key: Key) -> Option<DriverError> {
        match self.known.get(&key) {
            Some(State::Unsupported(error)) => Some(error.clone()),
            Some(State::Compiling | State::Ready(_)) | None => None,
        }
    }

    /// Waits for all background compilations.
    pub(super) fn finish_all(&mut self) {
        while self.compiling > 0 {
            let Ok(finished) = self.finished.recv() else { break };
            self.take(finished);
        }
    }

    fn take_finished(&mut self) {
        while let Ok(finished) = self.finished.try_recv() {
            self.take(finished);
        }
    }

    fn take(&mut self, (key, result): Finished) {
        self.compiling -= 1;
        self.settle(key, result);
    }

    fn settle(&mut self, key: Key, result: Result<Compiled, DriverError>) {
        match result {
            Ok(compiled) => _ = self.known.insert(key, State::Ready(compiled)),
            // Transient errors: the compilation may be requested again.
            Err(DriverError::OutOfMemory { .. } | DriverError::DeviceLost { .. }) => _ = self.known.remove(&key),
            Err(error) => _ = self.known.insert(key, State::Unsupported(error)),
        }
    }
}

fn compile(device: &Device, key: Key, is_watched: bool, bodies: &[(u32, &Body)]) -> Result<Compiled, DriverError> {
    let Kernel { program, columns } = Kernel::new(bodies, key.worker, key.width, is_watched)?;
    Ok(Compiled { kernel: device.compile(&program)?, program: Box::new(program), columns })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use vyre_cpu::Cpu;
    use vyre_foundation::ir::{Control, Op as Operation};
    use vyre_foundation::optimizer::Reason;
    use vyre_foundation::{text, validate};

    use super::super::op::Op;
    use super::*;

    /// Returns the number of cases of a kernel's switch.
    fn cases(kernel: &vyre_driver::Kernel) -> usize {
        let cases = |op: &Operation| if let Operation::Control(Control::Switch(cases)) = op { cases.len() } else { 0 };
        kernel.program().insts().values().map(|inst| cases(&inst.op)).sum()
    }

    #[test]
    fn ops_that_differ_in_constants_share_an_interpreter_arm() {
        let op = |number: u32| {
            let op = ["mul", "xor", "sub"][number as usize % 3];
            let body = format!("%i = global_index\n%x = load input[%i]\n%y = {op} %x, {number}\nstore output[%i], %y");
            let source = format!("program op workgroup(64) {{\nread input: [u32]\nwrite output: [u32]\n{body}\n}}");
            Op::new(validate::program(text::parse(&source).unwrap().programs.remove(0)).unwrap()).unwrap()
        };
        let ops: Vec<Op> = (100..124).map(op).collect();
        let bodies: Vec<(u32, &Body)> = (0..).zip(ops.iter().map(|op| &op.body)).collect();
        let device = Device::open(&Cpu::default()).unwrap();
        let key = Key { runs: Runs::All, worker: Worker::Workgroup, width: 64 };
        let general = compile(&device, key, false, &bodies).unwrap().kernel;
        assert_eq!(cases(&general), ops.len());
        let mut kernels = Kernels::new(&device, false).unwrap();
        kernels.require(key, &bodies).unwrap();
        let kernel = &kernels.get(key).kernel;
        assert_eq!(cases(kernel), 3);
        for pass in ["merge_arms", "hoist_prologues"] {
            let decisions = [&general, kernel].map(|kernel| {
                let decided = &kernel.compilation().decisions;
                decided.iter().find(|decision| decision.metadata.name == pass).unwrap().reason
            });
            assert_eq!(decisions, [Reason::ProfileRejected, Reason::ProgramShape]);
            let report = kernel.compilation().report.as_ref().unwrap();
            assert!(report.metrics.iter().any(|metric| metric.pass == pass && metric.changed()), "{pass}");
        }
    }
}
