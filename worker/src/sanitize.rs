//! What a fresh worker sheds of the spawner it is a copy of.
//!
//! Signals need nothing: the spawner has all of them blocked and at their defaults, and that is what a worker
//! wants too.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::unistd::dup2_stdin;

use crate::sys::fds::{STDOUT, close_all_but};

/// Closes every inherited descriptor but `keep`; standard input and output are `/dev/null` then.
///
/// Descriptors 0, 1 and 2 stay taken, so that nothing made later lands there. The spawner has made its
/// standard output `/dev/null`, open for reading too, and its standard error is kept for a panic's message.
pub(crate) fn shed(keep: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    dup2_stdin(STDOUT)?;
    close_all_but(keep);
    // Orphans of the tool come to us, so that we can list, kill and reap them. Not inherited by fork.
    nix::sys::prctl::set_child_subreaper(true)?;
    nix::sys::prctl::set_name(c"toolcell-worker")
}
