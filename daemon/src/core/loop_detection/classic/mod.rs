//! The `classic` strategy: rolling detectors over a window of recent calls, to the letter of the public documents.
//!
//! `calls` names tools and known poll calls, `result_hash` makes the hash of a result, `window` holds the records and
//! keeps every streak up to date, `rolling` asks the detectors in their fixed order.

pub(crate) mod calls;
pub(crate) mod result_hash;
pub(crate) mod rolling;
mod window;
