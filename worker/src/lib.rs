//! Spawner and per-call worker of toolcell: small, synchronous, single-threaded, no tokio.
//!
//! ```text
//! daemon ── SEQPACKET ── spawner ──fork── worker (one an attempt) ──clone, exec── tool
//!                                            └── STREAM ── daemon
//! ```
//!
//! * [`run_if_spawner`], [`spawner_command`], [`spawner_socketpair`]: how the daemon gets a spawner.
//! * [`sys`]: the only `unsafe` of toolcell; the daemon takes the safe functions that it needs from here.
//! * [`cgroup`]: control groups, version 2.
//! * [`tool`]: the built-in tools, which a worker runs without exec.
//!
//! Inside: `spawner` (the process that forks, reaps and removes), `worker` (a fresh worker up to its job),
//! `sanitize` and `rehearse` (what it does before), `job` and `start` (from a job to a running tool), `confine`
//! and `exec` (between clone and exec), `supervise` (the loop around a running tool), `containment` (its tree),
//! `output` and `spool` (its output), `channel` (the worker's socket), `builtin` (a job without exec).
//! Messages are in `toolcell_protocol::worker_api`.
#![deny(unsafe_code)]

pub mod cgroup;
pub mod sys;
pub mod tool;

mod builtin;
mod channel;
mod clock;
mod confine;
mod containment;
mod exec;
mod job;
mod launch;
mod output;
mod rehearse;
mod sanitize;
mod spawner;
mod spool;
mod start;
mod supervise;
mod usage;
mod worker;

pub use containment::probe::probe_pid_namespace;
pub use launch::{
    BUILD_ID, BUILD_ID_ARGUMENT, SPAWNER_ARGV0, run_if_spawner, spawner_binary, spawner_command,
    spawner_command_of, spawner_socketpair,
};
