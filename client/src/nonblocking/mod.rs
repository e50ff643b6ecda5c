//! The face for tokio.
//!
//! * [`client`]: requests and their answers.
//! * [`batch`]: sessions and running batches.
//! * `pump`: the socket; whoever waits drives it.

mod batch;
mod client;
mod pump;

pub use batch::{RunningBatch, Session};
pub use client::Client;
