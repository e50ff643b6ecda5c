//! The child's stack, and the page that parent and child share.

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicI32;

use nix::errno::Errno;
use nix::libc::c_void;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};

/// Smallest page of any architecture that Linux runs on is 4 KiB, largest in use 64 KiB.
const GUARD_BYTES: usize = 64 * 1024;

/// Room for the steps between clone and exec, which need a few hundred bytes; debug builds need more.
const STACK_BYTES: usize = 64 * 1024;

/// A stack with a guard below it. Pages cost nothing until they are touched.
#[derive(Debug)]
pub(crate) struct ChildStack {
    base: NonNull<c_void>,
}

impl ChildStack {
    /// Maps one; it stays mapped until the process ends, which a worker does after its one job.
    pub(crate) fn new() -> Result<Self, Errno> {
        const SIZE: NonZeroUsize = NonZeroUsize::new(GUARD_BYTES + STACK_BYTES).unwrap();
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_STACK;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let base =
            unsafe { mmap_anonymous(None, SIZE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags)? };
        // SAFETY: the range is the start of the mapping made above, and nothing refers to it.
        unsafe { mprotect(base, GUARD_BYTES, ProtFlags::PROT_NONE)? };
        Ok(Self { base })
    }

    /// Lowest usable address and size, as clone3 wants them; the end is aligned to a page.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.base.as_ptr() as u64 + GUARD_BYTES as u64, STACK_BYTES as u64)
    }

    /// Touches the page that the child will use first.
    pub(crate) fn touch(&self) {
        // SAFETY: the address is the last word of the mapping, writable, and nobody else uses it now.
        unsafe {
            let end = self.base.as_ptr().cast::<u8>().add(GUARD_BYTES + STACK_BYTES);
            end.cast::<u64>().sub(1).write_volatile(0);
        }
    }
}

/// Words that stay shared with every process cloned afterwards.
#[derive(Debug)]
pub(crate) struct SharedWords {
    words: NonNull<[AtomicI32; 4]>,
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
    type Target = [AtomicI32; 4];

    fn deref(&self) -> &Self::Target {
        // SAFETY: the mapping is never removed, is large enough and aligned, and zero bytes are valid atomics;
        // other processes only ever use it through atomics too.
        unsafe { self.words.as_ref() }
    }
}
