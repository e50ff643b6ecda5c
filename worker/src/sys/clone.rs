//! New processes.
//!
//! ```text
//! fork           a copy of this process, with a pidfd                        spawner → worker, worker → init
//! spawn          vfork-like: in this process's memory until exec or exit        worker → tool, init → tool
//! ```
//!
//! Both take a [`Placement`]. `clone3` puts the child into its cgroup at birth; where `clone3` is missing or
//! filtered the older `clone` is used, and the child has to move itself.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::libc::{self, c_long};

use super::process::exit_now;

/// Needs 33 bits, which libc's constant of the same name does not have.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Remembers that clone3 is of no use here, so that it is tried once per process only.
static CLONE3_REFUSED: AtomicBool = AtomicBool::new(false);

/// Where a new process is born.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Placement<'a> {
    /// Directory of the cgroup to be born in.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// `CLONE_NEW*` flags.
    pub(crate) namespaces: i32,
}

impl Placement<'_> {
    fn args(&self, flags: u64) -> libc::clone_args {
        let mut flags = flags | u64::from(self.namespaces.cast_unsigned());
        let mut cgroup = 0;
        if let Some(directory) = self.cgroup {
            flags |= CLONE_INTO_CGROUP;
            cgroup = u64::from(directory.as_raw_fd().cast_unsigned());
        }
        libc::clone_args {
            flags,
            pidfd: 0,
            child_tid: 0,
            parent_tid: 0,
            exit_signal: libc::SIGCHLD as u64,
            stack: 0,
            stack_size: 0,
            tls: 0,
            set_tid: 0,
            set_tid_size: 0,
            cgroup,
        }
    }
}

/// Which side of a [`fork`] this is.
#[derive(Debug)]
pub(crate) enum Forked {
    /// The new process. `must_join`: it is not in its cgroup yet.
    Child {
        /// It has to move itself into the cgroup of its placement.
        must_join: bool,
    },
    /// The old one.
    Parent {
        /// The child.
        pid: i32,
        /// The child's pidfd.
        pidfd: OwnedFd,
    },
}

/// Copies this process, which must be single-threaded: then the copy may do all that the original may.
pub(crate) fn fork(placement: Placement<'_>) -> Result<Forked, Errno> {
    let mut pidfd: i32 = -1;
    let mut args = placement.args(libc::CLONE_PIDFD as u64);
    args.pidfd = &raw mut pidfd as u64;
    let (result, must_join) = match clone3(&args) {
        Some(result) => (result?, false),
        None => {
            let flags = libc::CLONE_PIDFD | libc::SIGCHLD | placement.namespaces;
            (clone_old(flags, &mut pidfd)?, placement.cgroup.is_some())
        }
    };
    if result == 0 {
        return Ok(Forked::Child { must_join });
    }
    // SAFETY: CLONE_PIDFD made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Forked::Parent { pid: pid_of(result), pidfd })
}

/// Whether a child of [`spawn`] writes into this very memory, or into a copy of it.
pub(crate) fn spawn_shares_memory() -> bool {
    cfg!(target_arch = "x86_64") && !CLONE3_REFUSED.load(Ordering::Relaxed)
}

/// Runs `entry(argument, must_join)` in a new process; returns its pid once it has exec'ed or exited, with the
/// code that `entry` gave. The child runs in this process's memory while this one stands still.
pub(crate) fn spawn<T>(
    placement: Placement<'_>,
    entry: fn(&T, bool) -> i32,
    argument: &T,
) -> Result<i32, Errno> {
    if let Some(result) = spawn_shared(placement, entry, argument) {
        return result;
    }
    // Without CLONE_VM the child has a copy of everything, this stack included, and simply goes on here.
    let args = placement.args(libc::CLONE_VFORK as u64);
    let (result, must_join) = match clone3(&args) {
        Some(result) => (result?, false),
        None => {
            let flags = libc::CLONE_VFORK | libc::SIGCHLD | placement.namespaces;
            (clone_old(flags, &mut 0)?, placement.cgroup.is_some())
        }
    };
    if result == 0 {
        exit_now(entry(argument, must_join));
    }
    Ok(pid_of(result))
}

fn pid_of(result: c_long) -> i32 {
    // A pid fits by the kernel's own types.
    result as i32
}

/// `None`: there is no clone3 here. Only for flags with which the child gets a copy of the memory.
fn clone3(args: &libc::clone_args) -> Option<Result<c_long, Errno>> {
    if CLONE3_REFUSED.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: `args` is a valid clone_args of the given size. No CLONE_VM: the child gets a copy of this
    // single-threaded process and returns here like the parent.
    let result = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::from_ref(args), size_of_val(args)) };
    usable(Errno::result(result), args)
}

/// Sorts out "no clone3 on this host" (no kernel support, or a filter) from a real failure.
fn usable(result: Result<c_long, Errno>, args: &libc::clone_args) -> Option<Result<c_long, Errno>> {
    match result {
        Err(Errno::ENOSYS) => {}
        // A filter's EPERM looks like the kernel's own about namespaces; without those it is a filter's.
        Err(Errno::EPERM) if args.flags & NAMESPACES == 0 => {}
        other => return Some(other),
    }
    CLONE3_REFUSED.store(true, Ordering::Relaxed);
    None
}

const NAMESPACES: u64 = (libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWUSER) as u64;

fn clone_old(flags: i32, pidfd: &mut i32) -> Result<c_long, Errno> {
    // SAFETY: no CLONE_VM and no stack: like fork. With CLONE_PIDFD the third word says where the descriptor
    // goes; without it the kernel ignores it. All architectures take these three in this order.
    Errno::result(unsafe {
        libc::syscall(
            libc::SYS_clone,
            c_long::from(flags),
            0_usize,
            std::ptr::from_mut(pidfd),
            0_usize,
            0_usize,
        )
    })
}

/// What the child finds on its side of the clone.
#[cfg(target_arch = "x86_64")]
struct Start<'a, T> {
    entry: fn(&T, bool) -> i32,
    argument: &'a T,
}

#[cfg(target_arch = "x86_64")]
extern "C" fn start_child<T>(start: *const Start<'_, T>) -> ! {
    // SAFETY: the pointer is to the parent's frame in `spawn_shared`, which stands still until the child execs
    // or exits.
    let start = unsafe { &*start };
    exit_now((start.entry)(start.argument, false))
}

/// The fast way: no page table is copied. `None` where it is not to be had.
#[cfg(target_arch = "x86_64")]
fn spawn_shared<T>(
    placement: Placement<'_>,
    entry: fn(&T, bool) -> i32,
    argument: &T,
) -> Option<Result<i32, Errno>> {
    if CLONE3_REFUSED.load(Ordering::Relaxed) {
        return None;
    }
    // No stack of its own: it goes on below ours, like a vfork, but leaves our frames alone.
    let args = placement.args((libc::CLONE_VM | libc::CLONE_VFORK) as u64);
    let start = Start { entry, argument };
    let result: i64;
    // SAFETY: `args` is a valid clone_args of the given size. The parent goes on at label 2 with only rax, rcx and
    // r11 changed, as after any system call; CLONE_VFORK keeps it there until the child has left its memory. The
    // child starts with the parent's stack pointer and moves it below everything that the parent may have put
    // there (the red zone has 128 bytes), to where any call of the parent's would go; it never returns into this
    // frame, since `start_child` does not return. What it writes elsewhere is the atomics behind `argument` and
    // libc's errno. No signal handler exists and all signals are blocked, so nothing else runs on either side.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "sub rsp, 256",
            "and rsp, -16",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw const args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") &raw const start,
            in("r13") start_child::<T> as extern "C" fn(*const Start<'_, T>) -> !,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    let result = if result < 0 { Err(Errno::from_raw(-result as i32)) } else { Ok(result) };
    usable(result, &args).map(|result| result.map(pid_of))
}

#[cfg(not(target_arch = "x86_64"))]
fn spawn_shared<T>(
    _placement: Placement<'_>,
    _entry: fn(&T, bool) -> i32,
    _argument: &T,
) -> Option<Result<i32, Errno>> {
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use toolcell_protocol::worker_api::WaitStatus;

    use super::super::memory::SharedWords;
    use super::super::process::{Children, reap};
    use super::*;

    fn end_of(pid: i32) -> WaitStatus {
        loop {
            match reap(pid) {
                Children::Ended(_, status) => return status,
                Children::Alive => std::thread::yield_now(),
                Children::None => panic!("{pid} is no child"),
            }
        }
    }

    fn answer(words: &[AtomicI32; 3], must_join: bool) -> i32 {
        words[0].store(nix::unistd::getppid().as_raw(), Ordering::Relaxed);
        words[1].store(i32::from(must_join), Ordering::Relaxed);
        7
    }

    // One test: the two ways share the flag that tells which is taken.
    #[test]
    fn a_child_is_made_with_clone3_and_without() {
        let me = nix::unistd::getpid().as_raw();
        for refused in [false, true] {
            CLONE3_REFUSED.store(refused, Ordering::Relaxed);
            assert_eq!(spawn_shares_memory(), cfg!(target_arch = "x86_64") && !refused);
            let words = SharedWords::new().expect("a page");
            let pid = spawn(Placement::default(), answer, &*words).expect("spawned");
            assert_eq!(words[0].load(Ordering::Relaxed), me, "it has run when spawn returns");
            assert_eq!(words[1].load(Ordering::Relaxed), 0);
            assert_eq!(end_of(pid), WaitStatus::Exited(7));
            match fork(Placement::default()).expect("forked") {
                Forked::Child { must_join } => exit_now(if must_join { 1 } else { 5 }),
                Forked::Parent { pid, pidfd } => {
                    assert!(super::super::pidfd_send_signal(&pidfd, 0).is_ok(), "the pidfd is the child's");
                    assert_eq!(end_of(pid), WaitStatus::Exited(5));
                }
            }
        }
        CLONE3_REFUSED.store(false, Ordering::Relaxed);
    }
}
