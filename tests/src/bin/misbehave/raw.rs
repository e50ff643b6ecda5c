//! The three things that a misbehaving program needs and that have no safe form. Nothing here is part of
//! toolcell: the program exists to be contained.
#![allow(unsafe_code, reason = "a program that misbehaves must be able to fork and to crash")]

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, Pid, fork};

/// Forks: the child in the parent, nothing in the child.
pub fn split() -> nix::Result<Option<Pid>> {
    // SAFETY: this program has one thread, so the child may do whatever the parent may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// Ignores a signal, for itself and for what it forks.
pub fn ignore(which: Signal) -> nix::Result<()> {
    // SAFETY: ignoring runs no code of ours in a handler.
    unsafe { signal(which, SigHandler::SigIgn) }.map(drop)
}

/// Writes through a null pointer.
pub fn wild_write() {
    let nowhere = std::hint::black_box(std::ptr::null_mut::<u8>());
    // SAFETY: none is claimed; the kernel is meant to answer this with SIGSEGV.
    unsafe { nowhere.write_volatile(1) };
}
