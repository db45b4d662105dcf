//! Megakernels: a queue of small work items that is drained by few launches.
//!
//! ```text
//! submit    items, each an operation on parts of the arena
//!   → take      a slice: items of the tenant that has had least of its share, the most urgent and the oldest first
//!   → resolve   handles become places in the arena; what cannot be executed fails alone
//!   → order     items that use the same memory depend on each other; groups of items that do not are between barriers, or
//!               each waits for a counter
//!   → sort      items of a group by kernel: one for each operation, or one for all of them
//!   → launch    all groups in one submission; workers take items until there are none
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
pub use report::{Failed, Failure, Figures, Hit, Report, Shutdown};
pub use session::{Canceller, Config, Order, Session};
pub use telemetry::{Latencies, Span, Telemetry};
pub use tenant::{Producer, Share, Tenant, Usage};
