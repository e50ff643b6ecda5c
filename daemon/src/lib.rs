//! toolcelld: runs each tool call of an LLM agent in a cell, a worker process of its own.
//!
//! Read downwards: [`start`] (what happens before the loop), [`dispatcher`] (the loop), [`core`] (what it
//! decides), [`server`] (towards clients), [`supervisor`] (towards workers), [`tools`] (what may be called).
//! `docs/ARCHITECTURE.md` has the picture.
#![forbid(unsafe_code)]

pub mod config;
pub mod core;
pub mod dispatcher;
pub mod embedded;
pub mod server;
pub mod signals;
pub mod start;
pub mod supervisor;
pub mod telemetry;
pub mod tools;
