//! Processes that hide from whoever wants to end them.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, pipe, setpgid, setsid};

use crate::{Outcome, Words, raw, say};

/// Ends this process at once, without unwinding into the parent's code.
fn leave() -> ! {
    std::process::exit(0)
}

/// A pipe on which a descendant says that it has come so far.
struct Sign(OwnedFd, OwnedFd);

impl Sign {
    fn new() -> nix::Result<Self> {
        let (read, write) = pipe()?;
        Ok(Self(read, write))
    }

    fn wait(self) -> std::io::Result<()> {
        drop(self.1);
        let mut byte = [0];
        File::from(self.0).read_exact(&mut byte)
    }

    fn give(self) -> nix::Result<()> {
        nix::unistd::write(&self.1, b"!").map(drop)
    }
}

/// What the main process does once its family is up: `exit` or `stay`.
fn go_on(mode: &str, lifetime: Duration) -> Outcome {
    say("family up\n")?;
    if mode == "stay" {
        thread::sleep(lifetime);
    }
    Ok(0)
}

/// `hidden-family exit|stay [SECONDS]`: a grandchild that called setsid twice, ignores TERM, holds standard
/// output open and forks in a loop.
pub fn hidden(words: &mut Words) -> Outcome {
    let mode = words.text()?;
    let lifetime = words.seconds()?;
    let sign = Sign::new()?;
    if raw::split()?.is_none() {
        setsid()?;
        if raw::split()?.is_some() {
            leave();
        }
        setsid()?;
        raw::ignore(Signal::SIGTERM)?;
        let end = Instant::now() + lifetime;
        sign.give()?;
        while Instant::now() < end {
            if raw::split()?.is_none() {
                let _ = setsid();
                thread::sleep(Duration::from_millis(20));
                leave();
            }
            while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {}
            thread::sleep(Duration::from_millis(2));
        }
        leave();
    }
    sign.wait()?;
    go_on(&mode, lifetime)
}

/// `fork-run exit|stay [SECONDS]`: each process forks its successor and exits, so that one is always alive and
/// none for long; as `setsid-run` each in a session of its own.
pub fn fork_run(words: &mut Words, new_sessions: bool) -> Outcome {
    let mode = words.text()?;
    let lifetime = words.seconds()?;
    let sign = Sign::new()?;
    if raw::split()?.is_none() {
        raw::ignore(Signal::SIGTERM)?;
        let end = Instant::now() + lifetime;
        let mut sign = Some(sign);
        let mut generation = 0_u32;
        while Instant::now() < end {
            if raw::split()?.is_some() {
                leave();
            }
            if new_sessions && generation.is_multiple_of(3) {
                let _ = setsid();
            }
            generation += 1;
            if generation == 10
                && let Some(sign) = sign.take()
            {
                sign.give()?;
            }
        }
        leave();
    }
    sign.wait()?;
    go_on(&mode, lifetime)
}

/// `daemonize [SECONDS]`: double fork, setsid, every descriptor closed, working directory `/`.
pub fn daemonize(words: &mut Words) -> Outcome {
    let lifetime = words.seconds()?;
    let sign = Sign::new()?;
    if raw::split()?.is_none() {
        setsid()?;
        if raw::split()?.is_some() {
            leave();
        }
        std::env::set_current_dir("/")?;
        sign.give()?;
        for fd in 0..3 {
            let _ = nix::unistd::close(fd);
        }
        thread::sleep(lifetime);
        leave();
    }
    sign.wait()?;
    say("daemon up\n")?;
    Ok(0)
}

/// `tree COUNT [SECONDS]`: a chain of processes, each in a process group of its own, all alive until killed.
pub fn tree(words: &mut Words) -> Outcome {
    let count: u32 = words.number()?;
    let lifetime = words.seconds()?;
    let sign = Sign::new()?;
    for depth in 1..count {
        if raw::split()?.is_some() {
            if depth == 1 {
                sign.wait()?;
                say("family up\n")?;
            }
            thread::sleep(lifetime);
            leave();
        }
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    }
    if count > 1 {
        sign.give()?;
    } else {
        say("family up\n")?;
    }
    thread::sleep(lifetime);
    leave();
}

/// `leak-pipe [SECONDS] [CODE]`: exits while a child holds both outputs.
pub fn leak_pipe(words: &mut Words) -> Outcome {
    let lifetime = words.seconds()?;
    let code = words.number_or(0)?;
    say("before the leak\n")?;
    if raw::split()?.is_none() {
        thread::sleep(lifetime);
        leave();
    }
    Ok(code)
}

/// `spin CHILDREN [SECONDS]`: burns CPU in that many children; the parent waits.
pub fn spin(words: &mut Words) -> Outcome {
    let children: u32 = words.number()?;
    let end = Instant::now() + words.seconds()?;
    for _ in 0..children {
        if raw::split()?.is_none() {
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            leave();
        }
    }
    say("spinning\n")?;
    if children == 0 {
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
    while waitpid(None, None).is_ok() {}
    Ok(0)
}

/// `parent-exits-on-term [SECONDS]`: the child ignores TERM, the parent exits on it.
pub fn parent_exits_on_term(words: &mut Words) -> Outcome {
    let lifetime = words.seconds()?;
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.thread_block()?;
    if raw::split()?.is_none() {
        raw::ignore(Signal::SIGTERM)?;
        thread::sleep(lifetime);
        leave();
    }
    say("family up\n")?;
    set.wait()?;
    Ok(0)
}
