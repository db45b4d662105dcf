//! Deadlines of launches.
//!
//! The deadline of a launch counts from the start of its first flight; flights execute in order. A launch that has not
//! ended by its deadline gets [`GRACE`] to stop by itself, because only then its report names the loop it was in. After
//! that it is *overdue*: the host stops waiting for it, and the next flight counts as started, whether or not the
//! driver is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::stream::Flight;

/// Time for a launch to stop by itself after its deadline.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

/// Source of time.
pub(crate) trait Clock: Send + Sync {
    fn now(&self) -> Instant;
}

/// Clock of the operating system.
pub(crate) struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// State of an unfinished launch relative to its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Another flight is executing, or the deadline is not representable as an instant.
    Unlimited,
    /// Before the deadline, which is at this time.
    InTime(Instant),
    /// Past the deadline, and waited for until this time.
    Late(Instant),
    /// Past the deadline and [`GRACE`]: the host has stopped waiting.
    Overdue,
}

impl Verdict {
    pub(crate) fn of(start: Option<Instant>, deadline: Duration, now: Instant) -> Verdict {
        let Some(end) = start.and_then(|start| start.checked_add(deadline)) else { return Verdict::Unlimited };
        match end.checked_add(GRACE) {
            _ if now < end => Verdict::InTime(end),
            Some(last) if now >= last => Verdict::Overdue,
            last => Verdict::Late(last.unwrap_or(end)),
        }
    }

    /// Time at which the verdict changes.
    pub(crate) fn until(self) -> Option<Instant> {
        match self {
            Verdict::Unlimited | Verdict::Overdue => None,
            Verdict::InTime(until) | Verdict::Late(until) => Some(until),
        }
    }
}

/// A launch dispatched in ranges of workgroups, each in a separate flight, so that it can be stopped between ranges.
pub(crate) struct Ranges {
    deadline: Duration,
    first: OnceLock<Arc<Flight>>,
    stopped: AtomicBool,
}

impl Ranges {
    pub(crate) fn new(deadline: Duration) -> Ranges {
        Ranges { deadline, first: OnceLock::new(), stopped: AtomicBool::new(false) }
    }

    /// Adds the flight of a range. The deadline counts from the start of the first one.
    pub(crate) fn add(&self, flight: &Arc<Flight>) {
        let _ = self.first.set(flight.clone());
    }

    /// Skips the ranges that have not begun.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Returns whether ranges were or will be skipped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Returns whether another range may begin, and stops the launch after its deadline.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let start = self.first.get().and_then(|first| first.started());
        if matches!(Verdict::of(start, self.deadline, now), Verdict::Late(_) | Verdict::Overdue) {
            self.stop();
        }
        !self.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use vyre_driver::backend::{Command, Completion, Device, Groups, Launch, Range, Ticket};
    use vyre_foundation::launch::{Argument, Limits, Outcome};
    use vyre_foundation::{text, validate};

    use super::*;
    use crate::adapter::choose;
    use crate::device::{WgpuDevice, bind, request};

    /// A clock that advances by what a test adds, and by `step` at each reading.
    struct TestClock {
        now: Mutex<Instant>,
        step: Duration,
    }

    impl TestClock {
        fn new(step: Duration) -> Arc<TestClock> {
            Arc::new(TestClock { now: Mutex::new(Instant::now()), step })
        }

        fn add(&self, time: Duration) {
            *self.now.lock().expect("nothing panics with it") += time;
        }
    }

    impl Clock for TestClock {
        fn now(&self) -> Instant {
            let mut now = self.now.lock().expect("nothing panics with it");
            *now += self.step;
            *now
        }
    }

    /// Takes a software driver seconds to minutes, whatever the deadline.
    const SLOW: &str = "program slow workgroup(1024) {
        write y: [u32]
        workgroup t: [u32; 1024]
        %l = local_index
        loop (%k = 0) {
            workgroup_barrier
            %v = load t[%l]
            %w = add %v, 1
            store t[%l], %w
            %n = add %k, 1
            %c = eq %n, 0
            %u = broadcast %c
            if %u { break }
            continue %n
        }
        store y[%l], 1
    }";

    /// Counts its workgroups.
    const COUNT: &str = "program count workgroup(1) {
        read_write atomic y: [u32]
        atomic_add y[0], 1
    }";

    fn open(clock: &Arc<TestClock>) -> WgpuDevice {
        let (adapter, _) = choose(None).expect("an adapter");
        let (device, queue) = request(&adapter).expect("a device");
        WgpuDevice::new(device, queue, clock.clone()).expect("a device")
    }

    fn launch(device: &WgpuDevice, source: &str, groups: u32, limits: Limits, y: &Range) -> Command {
        let program = text::parse(source).expect("parses").programs.remove(0);
        let program = validate::program(program).expect("is valid");
        let kernel = device.compile(&program).expect("compiles");
        // Workgroup arrays, which follow, are not bound.
        let arguments = bind(&program, [Argument::Buffer(y.clone())]).expect("it fits");
        Command::Launch(Launch { kernel, groups: Groups::Fixed([groups, 1, 1]), arguments, limits })
    }

    fn buffer(device: &WgpuDevice) -> Range {
        Range { memory: device.allocate(4096).expect("there is memory"), start: 0, bytes: 4096 }
    }

    fn limits(deadline: Duration) -> Limits {
        Limits { deadline: Some(deadline), ..Limits::default() }
    }

    fn wait(mut ticket: Box<dyn Ticket>) -> Completion {
        loop {
            if let Some(completion) = ticket.wait(None) {
                return completion.expect("the device is there");
            }
        }
    }

    #[test]
    fn launches_are_late_at_the_deadline_and_overdue_after_the_grace() {
        let (start, deadline) = (Instant::now(), Duration::from_secs(2));
        let end = start + deadline;
        let of = |now| Verdict::of(Some(start), deadline, now);
        assert_eq!(of(start), Verdict::InTime(end));
        assert_eq!(of(end - Duration::from_nanos(1)), Verdict::InTime(end));
        assert_eq!(of(end), Verdict::Late(end + GRACE));
        assert_eq!(of(end + GRACE), Verdict::Overdue);
        assert_eq!(Verdict::of(None, deadline, end + GRACE), Verdict::Unlimited);
        assert_eq!(Verdict::of(Some(start), Duration::MAX, end), Verdict::Unlimited);
        assert!(GRACE < Duration::from_secs(1), "an overdue launch is reported within a second");
    }

    /// The driver is executing the first launch throughout.
    #[test]
    fn overdue_launches_are_abandoned_and_later_ones_queue() {
        let clock = TestClock::new(Duration::ZERO);
        let device = open(&clock);
        let y = buffer(&device);
        let second = Duration::from_secs(1);
        let mut ticket = device.submit(vec![launch(&device, SLOW, 64, limits(second), &y)]).expect("is submitted");
        assert!(ticket.wait(Some(Duration::ZERO)).is_none(), "the deadline is a second away");
        let mut next = device.submit(vec![launch(&device, SLOW, 64, limits(second), &y)]).expect("is submitted");
        clock.add(second);
        assert!(next.wait(Some(Duration::ZERO)).is_none(), "it has not started");
        clock.add(GRACE);
        let late = Outcome::DeadlinePassed { span: vyre_foundation::ir::Span::NONE };
        assert_eq!(wait(ticket).reports[0].outcome, late);
        let mut read = device.submit(vec![Command::Read(y, 4)]).expect("is submitted");
        assert!(read.wait(Some(Duration::ZERO)).is_none(), "it queues behind both");
        assert!(next.wait(Some(Duration::ZERO)).is_none(), "it counts as started now");
        clock.add(second + GRACE);
        assert_eq!(wait(next).reports[0].outcome, late);
        read.cancel();
        assert_eq!(read.wait(None).expect("it is over").expect_err("cancelled"), vyre_driver::Error::Cancelled);
    }

    #[test]
    fn too_many_held_flights_lose_the_device() {
        let clock = TestClock::new(Duration::ZERO);
        let device = open(&clock);
        let y = buffer(&device);
        let second = Duration::from_secs(1);
        let mut ticket = device.submit(vec![launch(&device, SLOW, 64, limits(second), &y)]).expect("is submitted");
        assert!(ticket.wait(Some(Duration::ZERO)).is_none(), "the deadline is a second away");
        clock.add(second + GRACE);
        wait(ticket);
        let mut results = (0..1000).map(|_| {
            let mut ticket = device.submit(vec![Command::Read(y.clone(), 4)])?;
            // Each read is a separate flight.
            ticket.wait(Some(Duration::ZERO)).map_or(Ok(()), |result| result.map(|_| ()))
        });
        let error = results.find_map(Result::err).expect("memory is not taken without end");
        assert!(matches!(error, vyre_driver::Error::DeviceLost { .. }), "{error}");
    }

    #[test]
    fn submitting_and_polling_many_flights_never_blocks() {
        let clock = TestClock::new(Duration::ZERO);
        let device = open(&clock);
        let y = buffer(&device);
        let mut commands = vec![launch(&device, SLOW, 64, Limits::default(), &y)];
        commands.extend((0..8000).map(|_| Command::Clear(y.clone())));
        let mut ticket = device.submit(commands).expect("is submitted");
        assert!(ticket.wait(Some(Duration::ZERO)).is_none(), "the first launch takes long");
        ticket.cancel();
    }

    fn counted(device: &WgpuDevice, groups: u32, limits: Limits) -> (Outcome, u32) {
        let y = buffer(device);
        let launched = device.submit(vec![launch(device, COUNT, groups, limits, &y)]).expect("is submitted");
        let outcome = wait(launched).reports[0].outcome.clone();
        let read = wait(device.submit(vec![Command::Read(y, 4)]).expect("is submitted"));
        let word = read.data[0].bytes()[..4].try_into().expect("four bytes");
        (outcome, u32::from_le_bytes(word))
    }

    #[test]
    fn ranges_after_the_deadline_are_skipped() {
        let hour = limits(Duration::from_secs(3600));
        assert_eq!(counted(&open(&TestClock::new(Duration::ZERO)), 4_000_000, hour), (Outcome::Completed, 4_000_000));
        // Each clock reading advances by a second, and a range takes at least one reading.
        let device = open(&TestClock::new(Duration::from_secs(1)));
        let (outcome, count) = counted(&device, 4_000_000, limits(Duration::from_secs(8)));
        assert!(matches!(outcome, Outcome::DeadlinePassed { .. }), "{outcome:?}");
        assert!(count < 4_000_000, "{count} workgroups");
    }
}
