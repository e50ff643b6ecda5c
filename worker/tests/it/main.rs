//! Real spawners and real workers, over their real sockets.
// A test that cannot run here says so where the person who runs it looks.
#![allow(clippy::print_stderr)]

mod confinement;
mod deaths;
mod driver;
mod ends;
mod output;
mod trees;
