//! The protocol seen from outside: golden bytes, round trips of whole messages, hostile bytes, JSON names.
//!
//! * [`samples`], [`worker_samples`]: one message of every variant, and the check that no variant lacks one.
//! * [`golden`]: their bytes, kept in `protocol/tests/golden/v1/`.
//! * [`strategies`], [`worker_strategies`]: any message, for proptest.
//! * [`round_trip`], [`hostile_bytes`], [`json_names`]: what must hold of them.
#![allow(missing_docs, reason = "a test binary has no users")]

mod golden;
mod hostile_bytes;
mod json_names;
mod round_trip;
mod samples;
mod strategies;
mod worker_samples;
mod worker_strategies;

/// The same bodies that the fuzz targets run.
#[path = "../../../fuzz/src/bodies.rs"]
mod fuzz_bodies;
