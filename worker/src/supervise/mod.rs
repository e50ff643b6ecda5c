//! A worker with a native tool: start it, watch it, clear up after it, tell how it was. One loop, one thread.
//!
//! ```text
//!            main process ended                     both pipes at their end, or 200 ms
//! Running ──────────────────────▶ Draining ─────────────────────────────────────────▶ leftovers killed
//!    │                               ▲                                                      │
//!    └ Kill, limit: tree killed ─────┘                                          read what is still there
//!    │                                                                                      │
//!    └ end-of-file: tree killed ─▶ exit                    exit ◀── Finished sent ◀── Leaving
//! ```
//!
//! A short tool costs two waits: one until it has ended, and none after that. In the first millisecond only the
//! socket and the children are watched: `Started` is held back for it, and output stays in the pipe.

mod cpu;
mod finish;
mod wait;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signalfd::SignalFd;
use nix::unistd::read;
use toolcell_protocol::call::{Blob, Layers, Leftover, LimitName, Stream};
use toolcell_protocol::worker_api::{FromWorker, Job, ToWorker};

use self::cpu::CpuBudget;
use self::wait::Ready;

use crate::cgroup::Cgroup;
use crate::channel::{Channel, Flushed, Received};
use crate::containment::Tree;
use crate::job::Stdin;
use crate::output::Output;
use crate::spawner::Facts;
use crate::worker::{self, EXIT_DONE, EXIT_NOT_GONE, EXIT_PROTOCOL, Kit, Pipe};

/// How long `Started` waits for a quick end, to leave together with it.
const HOLD_BACK: Duration = Duration::from_millis(1);

/// How long a pipe that outlives the main process is waited for.
const DRAIN_TIME: Duration = Duration::from_millis(200);

/// How long the last reading may take, if somebody outside the tree goes on writing.
const LAST_READING: Duration = Duration::from_millis(100);

/// How long a killed tree is waited for before the result says that it may not be gone.
const PROOF_TIME: Duration = Duration::from_secs(2);

/// Shortest time between two `Spooled`.
const PROGRESS_PAUSE: Duration = Duration::from_millis(25);

/// A read this large means that the tool fills the pipe faster than we empty it: it gets a larger one.
const FLOOD_BYTES: usize = 64 * 1024;
const FLOOD_PIPE_BYTES: i32 = 1024 * 1024;

/// Starts the tool and stays with it to the end; the result is the worker's exit code.
pub(crate) fn run(
    facts: &Facts,
    kit: Kit,
    channel: Channel,
    leaf: Option<Cgroup>,
    job: &Job,
    argv: &[Blob],
    stdin: Option<&Blob>,
) -> i32 {
    // Before the clone: it returns when the tool has long been running, or has already ended.
    let started_at = Instant::now();
    let started = match crate::start::start(facts, &kit, leaf, job, argv, stdin) {
        Ok(started) => started,
        Err(refusal) => return worker::refuse(channel, refusal),
    };
    let now = Instant::now();
    // The tool alone holds the writing ends from here on.
    let Kit {
        stdout: Pipe { read: stdout, write },
        stderr: Pipe { read: stderr, write: second },
        children,
        ..
    } = kit;
    drop((write, second));
    let mut supervision = Supervision {
        channel,
        children,
        tree: started.tree,
        stdin: started.stdin,
        layers: started.layers,
        cpu_seconds: started.cpu_seconds,
        memory_controller: facts.memory_controller,
        output: Output::new(&job.output),
        pipes: [
            Reading { stream: Stream::Stdout, fd: Some(stdout), enlarged: false },
            Reading { stream: Stream::Stderr, fd: Some(stderr), enlarged: false },
        ],
        phase: Phase::Running,
        started_at,
        ended_at: None,
        hold_until: Some(now + HOLD_BACK),
        next_progress: now,
        cpu: job.tree_cpu_ms.map(|budget_ms| CpuBudget::new(budget_ms, now)),
        signalled: false,
        killed_for: None,
        cpu_before_kill_us: 0,
        open_after_exit: false,
        leftovers: Vec::new(),
        proven_gone: false,
    };
    supervision.announce();
    let code = supervision.run();
    // The process ends now and the kernel takes everything back faster than we could.
    std::mem::forget(supervision);
    code
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The main process runs.
    Running,
    /// It has ended; its pipes may still be open, until this moment at most.
    Draining(Instant),
    /// Nothing of the tree is left; what it had written is read, until this moment at most.
    LastReading(Instant),
    /// `Finished` is on its way.
    Leaving,
}

/// One output pipe.
#[derive(Debug)]
struct Reading {
    stream: Stream,
    /// `None` at its end.
    fd: Option<OwnedFd>,
    enlarged: bool,
}

struct Supervision {
    channel: Channel,
    children: SignalFd,
    tree: Tree,
    stdin: Option<Stdin>,
    layers: Layers,
    cpu_seconds: Option<u64>,
    memory_controller: bool,
    output: Output,
    pipes: [Reading; 2],
    phase: Phase,
    started_at: Instant,
    ended_at: Option<Instant>,
    hold_until: Option<Instant>,
    next_progress: Instant,
    cpu: Option<CpuBudget>,
    signalled: bool,
    killed_for: Option<(LimitName, u64)>,
    /// CPU time of the tree when it was about to be killed.
    cpu_before_kill_us: u64,
    open_after_exit: bool,
    leftovers: Vec<Leftover>,
    proven_gone: bool,
}

impl Supervision {
    fn announce(&mut self) {
        self.channel.queue(&FromWorker::Started { pid: self.tree.main(), layers: self.layers.clone() });
    }

    fn run(&mut self) -> i32 {
        // What came together with the job: the socket will not be readable because of it.
        if let Err(code) = self.obey_received() {
            return code;
        }
        loop {
            if self.may_send() && self.channel.flush() == Flushed::Gone {
                return self.abandon();
            }
            let moved = match self.phase {
                Phase::Running => false,
                Phase::Draining(until) => self.drain(until),
                Phase::LastReading(until) => self.read_last(until),
                Phase::Leaving if !self.channel.has_pending() => return self.exit_code(),
                Phase::Leaving => false,
            };
            if moved {
                continue;
            }
            let Ok(ready) = self.wait() else { return self.abandon() };
            if ready.children || ready.init {
                self.look_at_children(ready);
            }
            if ready.socket
                && let Err(code) = self.obey()
            {
                return code;
            }
            if self.phase == Phase::Running {
                self.read_ready(ready);
            }
            self.on_time();
        }
    }

    /// `Started` waits for a quick end, but not for anything that is in its way.
    fn may_send(&mut self) -> bool {
        match self.hold_until {
            Some(until)
                if self.phase != Phase::Leaving && !self.channel.is_full() && Instant::now() < until =>
            {
                false
            }
            _ => {
                self.hold_until = None;
                self.channel.has_pending()
            }
        }
    }

    fn look_at_children(&mut self, ready: Ready) {
        if ready.init {
            self.tree.hear_init();
        } else {
            self.tree.reap();
        }
        if ready.children && (self.tree.status().is_none() || self.phase != Phase::Running) {
            // Only now taken, for the sake of tools that end with nothing else left: those need no more looks.
            // A child that ends after this raises it again; one that ended just before is reaped here.
            let _ = self.children.read_signal();
            self.tree.hear_init();
        }
        if self.tree.status().is_some() && self.phase == Phase::Running {
            self.ended(DRAIN_TIME);
        }
    }

    fn ended(&mut self, drain_time: Duration) {
        let now = Instant::now();
        self.ended_at = Some(now);
        self.phase = Phase::Draining(now + drain_time);
    }

    /// Does what the daemon says. An error is the exit code.
    fn obey(&mut self) -> Result<(), i32> {
        if self.channel.receive(false) == Received::Gone {
            return Err(self.abandon());
        }
        self.obey_received()
    }

    fn obey_received(&mut self) -> Result<(), i32> {
        loop {
            match self.channel.next() {
                Ok(None) => return Ok(()),
                Ok(Some(ToWorker::Terminate)) => {
                    self.signalled |= self.phase == Phase::Running;
                    self.tree.terminate();
                }
                Ok(Some(ToWorker::Kill)) => {
                    self.signalled |= self.phase == Phase::Running;
                    self.kill();
                }
                Ok(Some(ToWorker::StopStream)) => self.output.stop_stream(),
                Ok(Some(ToWorker::Hello { .. } | ToWorker::Job(_))) | Err(_) => {
                    let _ = self.abandon();
                    return Err(EXIT_PROTOCOL);
                }
            }
        }
    }

    /// Kills the whole tree. Returns when its main process is reaped, which must be so before anything can be
    /// told about it; the rest has its time.
    fn kill(&mut self) {
        if matches!(self.phase, Phase::LastReading(_) | Phase::Leaving) {
            return;
        }
        // Whoever reaps them first may not live to tell what they used.
        self.cpu_before_kill_us = self.tree.cpu_us();
        self.proven_gone = self.tree.kill(Instant::now() + PROOF_TIME);
        while self.tree.status().is_none() {
            // Uninterruptible sleep. The daemon has told its client by now; we keep trying unless it is gone too.
            self.proven_gone = self.tree.kill(Instant::now() + PROOF_TIME);
            if self.channel.receive(false) == Received::Gone {
                break;
            }
        }
        if self.phase == Phase::Running {
            self.ended(Duration::ZERO);
        } else {
            self.phase = Phase::Draining(Instant::now());
        }
    }

    /// The daemon is gone: nobody is told, but the tree goes.
    fn abandon(&mut self) -> i32 {
        let gone = self.tree.kill(Instant::now() + PROOF_TIME);
        if gone { EXIT_DONE } else { EXIT_NOT_GONE }
    }

    /// All is said. A namespace's init may still be on its way out, for which nobody needed to wait.
    fn exit_code(&mut self) -> i32 {
        let gone = self.proven_gone && (self.tree.is_reaped() || self.tree.kill(Instant::now() + PROOF_TIME));
        if gone { EXIT_DONE } else { EXIT_NOT_GONE }
    }

    fn read_ready(&mut self, ready: Ready) {
        for (at, is_ready) in ready.pipes.into_iter().enumerate() {
            if is_ready && !self.channel.is_full() {
                self.read_once(at);
                if self.may_send() && self.channel.flush() == Flushed::Gone {
                    // Seen again as end-of-file at the next look.
                    return;
                }
            }
        }
    }

    /// Reads one piece of one pipe; says whether there may be more.
    fn read_once(&mut self, at: usize) -> bool {
        let Some(fd) = &self.pipes[at].fd else { return false };
        let stream = self.pipes[at].stream;
        let count = match read(fd, self.channel.buffer()) {
            Ok(0) => {
                self.pipes[at].fd = None;
                return false;
            }
            Ok(count) => count,
            Err(Errno::EINTR) => return true,
            Err(Errno::EAGAIN) => return false,
            Err(_) => {
                self.pipes[at].fd = None;
                return false;
            }
        };
        if count >= FLOOD_BYTES && !self.pipes[at].enlarged {
            self.pipes[at].enlarged = true;
            // Refused above the user's share of pipe memory: then it stays as it is.
            let _ = fcntl(fd, FcntlArg::F_SETPIPE_SZ(FLOOD_PIPE_BYTES));
        }
        let travelling = self.output.take(stream, self.channel.read_bytes(count));
        self.channel.queue_chunk(stream, travelling, count);
        if let Some(limit) = self.output.exceeded()
            && self.killed_for.is_none()
            && self.phase == Phase::Running
        {
            self.killed_for = Some((LimitName::Output, limit));
            self.kill();
        }
        true
    }

    /// Reads until both pipes have nothing more to give. False: the socket is full, so not yet.
    fn read_all(&mut self, until: Instant) -> bool {
        for at in [0, 1] {
            loop {
                if self.channel.is_full() {
                    // What fills it may leave at once.
                    self.hold_until = None;
                    if self.channel.flush() != Flushed::All {
                        return false;
                    }
                }
                if !self.read_once(at) {
                    break;
                }
                // Somebody writes without end.
                if Instant::now() >= until + LAST_READING {
                    break;
                }
            }
        }
        true
    }

    fn pipes_are_closed(&self) -> bool {
        self.pipes.iter().all(|pipe| pipe.fd.is_none())
    }

    /// True if the phase has changed.
    fn drain(&mut self, until: Instant) -> bool {
        if !self.read_all(until) || (!self.pipes_are_closed() && Instant::now() < until) {
            return false;
        }
        self.open_after_exit = !self.pipes_are_closed();
        self.clear_leftovers();
        self.phase = Phase::LastReading(Instant::now() + LAST_READING);
        true
    }

    /// Kills what the main process has left behind.
    fn clear_leftovers(&mut self) {
        if self.proven_gone {
            return;
        }
        if self.tree.is_empty() {
            self.proven_gone = true;
            return;
        }
        if !self.signalled && self.killed_for.is_none() {
            self.leftovers = self.tree.leftovers();
        }
        self.proven_gone = self.tree.kill(Instant::now() + PROOF_TIME);
    }

    /// True if the phase has changed.
    fn read_last(&mut self, until: Instant) -> bool {
        if !self.read_all(until) {
            return false;
        }
        let finished = self.finish();
        self.channel.queue(&FromWorker::Finished(Box::new(finished)));
        self.phase = Phase::Leaving;
        true
    }

    fn on_time(&mut self) {
        if self.phase == Phase::Leaving {
            return;
        }
        if self.output.has_progress() && !self.channel.is_full() && Instant::now() >= self.next_progress {
            let (total_bytes, spool_bytes) = self.output.take_progress();
            self.channel.queue(&FromWorker::Spooled { total_bytes, spool_bytes });
            self.next_progress = Instant::now() + PROGRESS_PAUSE;
        }
        if self.phase == Phase::Running
            && let Some(cpu) = &mut self.cpu
            && cpu.is_exceeded(Instant::now(), &self.tree)
        {
            self.killed_for = Some((LimitName::Cpu, cpu.budget_ms));
            self.kill();
        }
    }
}
