//! The `toolcell` command as a library.
#![forbid(unsafe_code)]

pub mod replay;
