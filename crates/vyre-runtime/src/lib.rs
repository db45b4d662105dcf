//! Execution of more than one dispatch: [pipelines](pipeline), [megakernels](megakernel) for queues of small work items, and
//! [graph] algorithms on a [frontier] engine.
//!
//! The runtime depends on no backend. It plans with the [planners](vyre_driver::plan) of the driver and runs on any device.
//!
//! Terms are defined in the book's [glossary](https://github.com/vyre-project/vyre/blob/main/docs/src/glossary.md).

mod error;
pub mod frontier;
pub mod graph;
pub mod megakernel;
mod owner;
pub mod pipeline;

pub use error::Error;
