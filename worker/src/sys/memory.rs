//! Memory that a process goes on sharing with the copies that are made of it.

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicI32;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

/// Words that stay shared with every process cloned afterwards.
#[derive(Debug)]
pub(crate) struct SharedWords {
    words: NonNull<[AtomicI32; 3]>,
}

impl SharedWords {
    /// Maps one page of zeros; it stays mapped until the process ends.
    pub(crate) fn new() -> Result<Self, Errno> {
        const SIZE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap_anonymous(None, SIZE, protection, MapFlags::MAP_SHARED)? };
        Ok(Self { words: base.cast() })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicI32; 3];

    fn deref(&self) -> &Self::Target {
        // SAFETY: the mapping is never removed, is large enough and aligned, and zero bytes are valid atomics;
        // other processes only ever use it through atomics too.
        unsafe { self.words.as_ref() }
    }
}
