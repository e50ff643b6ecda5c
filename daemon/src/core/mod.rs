//! The pure heart of the daemon: it decides, and does nothing else.
//!
//! ```text
//! Core::handle(now, input)     what happened: a request, a worker's report, a deadline, a shutdown
//! Core::poll_effect()          what to do: reply, start an attempt, kill one, log, stop
//! Core::next_deadline()        when to call handle(now, Input::Deadline) at the latest
//! ```
//!
//! No I/O, no clock, no task, no randomness: time and fresh ids come in with each input. The two lints below
//! make the calls listed in `.clippy.toml` errors here, and a test checks the imports. Only `dispatcher.rs`
//! talks to this module.
//!
//! Reading order: [`event`] (the border), [`machine`] (`Core`), [`requests`] (what a client may ask),
//! [`admission`] (may this call run?), [`queue`] (when?), [`call`] (life of one call), [`outcome`] and
//! [`for_model`] (what it ended as), `sim` (tests under a simulated clock).
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod admission;
pub mod call;
pub mod event;
pub mod for_model;
pub mod loop_detection;
pub mod machine;
pub mod outcome;
pub mod queue;
pub mod requests;
pub mod session;
#[cfg(test)]
mod sim;
pub mod timer;

pub use machine::Core;
