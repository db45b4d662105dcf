//! The kernels that a session has, and those that are on their way: compiling takes longer than interpreting some items.

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

/// Which units a kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) runs: Runs,
    pub(super) worker: Worker,
    /// Invocations of a workgroup.
    pub(super) width: u32,
}

/// What a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Runs {
    Op(u32),
    Window(u32),
    /// Any operation: this is the interpreter.
    All,
}

impl Key {
    /// The kernel for units of few or many elements. Where invocations work together, the body decides how many there are.
    pub(super) fn new(runs: Runs, body: &Body, many: bool, width: u32) -> Key {
        match (body.facts.collective, many) {
            (true, _) => Key { runs, worker: Worker::Workgroup, width: body.program.workgroup_size()[0] },
            (false, true) => Key { runs, worker: Worker::Workgroup, width },
            (false, false) => Key { runs, worker: Worker::Invocation, width },
        }
    }

    /// Whether a body can be run by an interpreter like this.
    pub(super) fn takes(&self, body: &Body) -> bool {
        !body.facts.collective || (self.worker != Worker::Invocation && body.program.workgroup_size()[0] == self.width)
    }
}

pub(super) struct Compiled {
    /// As it was before it was optimized.
    pub(super) program: Box<Validated<Program>>,
    pub(super) kernel: vyre_driver::Kernel,
    pub(super) columns: Vec<Column>,
}

enum State {
    Coming,
    Ready(Compiled),
    /// The device cannot run it.
    Impossible(DriverError),
}

type Finished = (Key, Result<Compiled, DriverError>);

pub(super) struct Kernels {
    device: Device,
    is_watched: bool,
    known: FxHashMap<Key, State>,
    coming: usize,
    /// What is to be compiled in the background, and what has been.
    jobs: Sender<(Key, Vec<(u32, Body)>)>,
    finished: Receiver<Finished>,
    /// As long as this is there, somebody wants what is to be compiled.
    _wanted: Arc<()>,
}

impl Kernels {
    /// Starts the compiler thread. Kernels may be [watched](Kernel::new).
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn new(device: &Device, is_watched: bool) -> Result<Kernels, Error> {
        let device = device.with_profile(Profile::Megakernel);
        let (jobs, waiting) = channel::<(Key, Vec<(u32, Body)>)>();
        let (finish, finished) = channel();
        let compiler = device.clone();
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        let work = move || {
            for (key, bodies) in waiting {
                // The session is gone, or has another device. It must not keep this one for the sake of what has piled up.
                if is_wanted.strong_count() == 0 {
                    return;
                }
                let bodies: Vec<(u32, &Body)> = bodies.iter().map(|(number, body)| (*number, body)).collect();
                let compiled = || compile(&compiler, key, is_watched, &bodies);
                let result = catch_unwind(AssertUnwindSafe(compiled)).unwrap_or_else(|_| {
                    let reason = "a panic while compiling a kernel of a megakernel".into();
                    Err(DriverError::Backend { backend: "runtime", reason })
                });
                // Nobody waits for it any more if the session is gone.
                let _ = finish.send((key, result));
            }
        };
        let thread = std::thread::Builder::new().name("vyre-megakernel-compiler".into()).spawn(work);
        thread.map_err(|error| Error::NoThread {
            purpose: "the compiler of a megakernel session",
            reason: error.to_string(),
        })?;
        Ok(Kernels { device, is_watched, known: FxHashMap::default(), coming: 0, jobs, finished, _wanted: wanted })
    }

    /// Forgets kernels of all operations, because there is one more.
    pub(super) fn forget_interpreters(&mut self) {
        self.finish_all();
        self.known.retain(|key, _| key.runs != Runs::All);
    }

    /// Forgets the kernels of a window, whose number another one gets.
    pub(super) fn forget_window(&mut self, window: u32) {
        let is_coming =
            |(key, state): (&Key, &State)| key.runs == Runs::Window(window) && matches!(state, State::Coming);
        if self.known.iter().any(is_coming) {
            self.finish_all();
        }
        self.known.retain(|key, _| key.runs != Runs::Window(window));
    }

    /// A kernel that is there, because it was [requested](Kernels::request) and was there, or [required](Kernels::require).
    pub(super) fn get(&self, key: Key) -> &Compiled {
        match self.known.get(&key) {
            Some(State::Ready(compiled)) => compiled,
            Some(State::Coming | State::Impossible(_)) | None => {
                unreachable!("only kernels that are there are launched")
            }
        }
    }

    /// All that are there.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Compiled> {
        self.known.values().filter_map(|state| match state {
            State::Ready(compiled) => Some(compiled),
            State::Coming | State::Impossible(_) => None,
        })
    }

    /// Whether a kernel is there. If it is not, somebody compiles it.
    pub(super) fn request(&mut self, key: Key, bodies: impl FnOnce() -> Vec<(u32, Body)>) -> bool {
        self.take_finished();
        if let Entry::Vacant(unknown) = self.known.entry(key) {
            unknown.insert(State::Coming);
            self.coming += 1;
            // If it cannot be sent, it stays on its way, and what it is for is interpreted.
            if self.jobs.send((key, bodies())).is_err() {
                self.coming -= 1;
            }
        }
        matches!(self.known.get(&key), Some(State::Ready(_)))
    }

    /// Compiles a kernel, if it is not there, and waits for it.
    ///
    /// # Errors
    /// The device cannot run it.
    pub(super) fn require(&mut self, key: Key, bodies: &[(u32, &Body)]) -> Result<(), DriverError> {
        if matches!(self.known.get(&key), Some(State::Coming)) {
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
            Some(State::Impossible(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Reason why the device can never run a kernel.
    pub(super) fn refusal(&self, key: Key) -> Option<DriverError> {
        match self.known.get(&key) {
            Some(State::Impossible(error)) => Some(error.clone()),
            Some(State::Coming | State::Ready(_)) | None => None,
        }
    }

    /// Waits for what is being compiled.
    pub(super) fn finish_all(&mut self) {
        while self.coming > 0 {
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
        self.coming -= 1;
        self.settle(key, result);
    }

    fn settle(&mut self, key: Key, result: Result<Compiled, DriverError>) {
        match result {
            Ok(compiled) => _ = self.known.insert(key, State::Ready(compiled)),
            // What is lacking now may be there another time.
            Err(DriverError::OutOfMemory { .. } | DriverError::DeviceLost { .. }) => _ = self.known.remove(&key),
            Err(error) => _ = self.known.insert(key, State::Impossible(error)),
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

    /// How many cases the switch of a kernel has.
    fn cases(kernel: &vyre_driver::Kernel) -> usize {
        let cases = |op: &Operation| if let Operation::Control(Control::Switch(cases)) = op { cases.len() } else { 0 };
        kernel.program().insts().values().map(|inst| cases(&inst.op)).sum()
    }

    #[test]
    fn operations_that_are_alike_share_an_arm_of_the_interpreter() {
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
