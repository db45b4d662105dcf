//! Megakernels: queues of small work items, drained by few launches of persistent workers.
//!
//! ```text
//! submit    items, each an op on allocations of the arena
//!   → take      a slice: items of the tenant with the least virtual time, by deadline
//!   → resolve   handles to words of the arena; invalid items fail individually
//!   → order     RAW/WAR/WAW hazards between items; barrier groups of independent items, or a ready queue with
//!               dependency counters
//!   → sort      items of a group by kernel: one kernel per op, or the interpreter for all
//!   → launch    all groups in one submission; workers loop over items
//! ```

mod arena;
mod clock;
mod hazards;
mod item;
mod journal;
mod kernel;
mod kernels;
mod launch;
mod op;
pub mod policy;
pub mod priority;
pub mod redundancy;
mod report;
pub mod ring;
mod session;
mod slice;
mod telemetry;
mod tenant;
pub mod tune;
mod watch;
mod window;

pub use arena::{Handle, Segment};
pub use clock::{Clock, Monotonic};
pub use item::{Access, Traits, WorkItem};
pub use op::{BadOp, Op};
pub use priority::Priority;
pub use report::{Failed, Failure, Hit, KernelStats, Report, Shutdown};
pub use session::{Canceller, Config, Order, Session};
pub use telemetry::{Latencies, Span, Telemetry};
pub use tenant::{Producer, Share, Tenant, Usage};
