//! End-to-end tests: the real daemon, real tools that misbehave, hostile peers.
//!
//! One file for one family of promises. Each test starts daemons of its own (see `toolcell_tests::daemon`), and
//! each daemon checks at its end that no process, control group or file of it is left.

mod calls;
mod cli;
mod crashes;
mod death;
mod drain;
mod environment;
mod hostile;
mod identity;
mod limits;
mod model;
mod output;
mod sessions;
mod tidy;
mod trees;
