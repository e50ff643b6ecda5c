//! The pure core: it decides, and never performs. No I/O, clock, task or randomness; time and facts come in as arguments.
//!
//! The two lints below make that a compile-time rule; what they forbid is listed in `.clippy.toml`.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod loop_detection;
