//! Harness of the end-to-end tests and benchmarks.
//!
//! * [`binaries`]: finds (or builds, once) the real programs.
//! * [`daemon`]: a real `toolcelld` with everything of its own, and the check that nothing of it is left.
//! * [`peer`]: a client that speaks the protocol by hand, so that it can also speak it wrongly.
//! * [`setting`]: as whom and with which containment a test runs, and what this host cannot do.
//! * [`manifests`]: the tools that a test daemon offers.
//! * [`model`]: what each misbehaving tool must end as.
//! * [`pattern`]: the bytes of a flood.
//! * [`procfs`], [`cgroups`]: what the kernel says about processes and control groups.
//! * [`waiting`]: conditions with deadlines.
//!
//! The misbehaving tool itself is `src/bin/misbehave/`.
#![forbid(unsafe_code)]

pub mod binaries;
pub mod cgroups;
pub mod daemon;
pub mod manifests;
pub mod model;
pub mod pattern;
pub mod peer;
pub mod procfs;
pub mod setting;
pub mod waiting;

/// Idle workers of a daemon with the default configuration when its stock is full.
#[must_use]
pub fn full_stock() -> u32 {
    let cells = toolcell_daemon::config::CellsConfig::default();
    u32::try_from(cells.idle_workers + cells.idle_builtin_workers).unwrap_or(u32::MAX)
}
