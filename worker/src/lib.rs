//! stub

pub mod tool;
