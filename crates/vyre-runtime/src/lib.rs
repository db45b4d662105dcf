//! What runs more than one dispatch: [pipelines](pipeline), [megakernels](megakernel) for work in small pieces, and algorithms on
//! [graphs](graph) that follow the edges of [frontiers](frontier).
//!
//! The runtime names no backend. It plans with the [planners](vyre_driver::plan) of the driver, and runs what they decide on
//! whichever device it is given.

mod error;
pub mod frontier;
pub mod graph;
pub mod megakernel;
mod owner;
pub mod pipeline;

pub use error::Error;
