//! What a call costs below the daemon: a stock of workers, one job each, against bare `posix_spawn` + capture +
//! wait, interleaved in one run.
//!
//! ```text
//! cargo run --release -p toolcell-worker --example calls -- [latency|throughput] [exec|builtin] [weak|cgroup|pidns] [N]
//! ```
#![allow(clippy::print_stdout)]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::sys::wait::waitpid;
use nix::unistd::pipe2;
use toolcell_protocol::codec;
use toolcell_protocol::frame::FrameBuffer;
use toolcell_protocol::id::CallUid;
use toolcell_protocol::version::WORKER_PROTOCOL;
use toolcell_protocol::worker_api::{
    Action, AttemptEnd, FromSpawner, FromWorker, Job, OutputPolicy, Rlimits, SpawnerSetup, ToSpawner,
    ToWorker, WaitStatus, WorkerKind,
};
use toolcell_worker::{cgroup, sys};

const PROGRAM: &str = "/bin/true";

struct Stock {
    child: Child,
    spawner: OwnedFd,
    base: Option<PathBuf>,
    kind: WorkerKind,
    ticket: u64,
    idle: VecDeque<Worker>,
    tools_cpu_us: u64,
}

struct Worker {
    stream: UnixStream,
    inbox: FrameBuffer,
}

impl Stock {
    fn new(kind: WorkerKind, with_cgroup: bool) -> Self {
        let base = with_cgroup.then(|| {
            let own = cgroup::own_directory().expect("a cgroup2 mount");
            let base = own.join(format!("toolcell-bench-{}", std::process::id()));
            cgroup::create(&base).expect("a cgroup base");
            base
        });
        let (spawner, theirs) = toolcell_worker::spawner_socketpair().expect("a socketpair");
        let child = toolcell_worker::spawner_command(theirs).spawn().expect("a spawner");
        let stock = Self { child, spawner, base, kind, ticket: 0, idle: VecDeque::new(), tools_cpu_us: 0 };
        let cgroup_base = stock.base.as_ref().map(|base| base.to_str().expect("text").to_owned());
        let setup = SpawnerSetup { version: WORKER_PROTOCOL, cgroup_base, remove_at_exit: None };
        stock.say(&ToSpawner::Hello(setup));
        let hello = sys::recv_packet(&stock.spawner).expect("a packet");
        assert!(hello.is_some());
        stock
    }

    fn say(&self, message: &ToSpawner) {
        let bytes = codec::encode(message).expect("encoded");
        sys::send_packet(&self.spawner, &bytes, &[]).expect("sent");
    }

    fn order(&mut self) {
        self.ticket += 1;
        let leaf = self.base.as_ref().map(|_| format!("leaf-{}", self.ticket));
        self.say(&ToSpawner::Fork { ticket: self.ticket, kind: self.kind, leaf, hurry: false });
    }

    /// Takes one packet of the spawner's.
    fn listen(&mut self) {
        let packet = sys::recv_packet(&self.spawner).expect("a packet").expect("the spawner lives");
        match codec::decode(&packet.bytes).expect("a message") {
            FromSpawner::Forked { .. } => {
                let mut fds = packet.fds.into_iter();
                let stream = UnixStream::from(fds.next().expect("a socket"));
                self.idle.push_back(Worker { stream, inbox: FrameBuffer::new() });
            }
            FromSpawner::Reaped { status: WaitStatus::Exited(0), .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn take(&mut self) -> Worker {
        loop {
            if let Some(worker) = self.idle.pop_front() {
                return worker;
            }
            self.listen();
        }
    }

    /// Takes what the spawner has said already.
    fn catch_up(&mut self) {
        while is_readable(&self.spawner, Duration::ZERO) {
            self.listen();
        }
    }

    fn close(mut self) {
        self.idle.clear();
        drop(self.spawner);
        assert!(self.child.wait().expect("reaped").success());
    }
}

impl Worker {
    fn give(&mut self, frames: &[u8]) {
        self.stream.write_all(frames).expect("sent");
    }

    /// Reads what is there; the tool's CPU time once the end has come.
    fn read(&mut self) -> Option<u64> {
        let mut piece = [0; 4096];
        let count = self.stream.read(&mut piece).expect("read");
        assert!(count > 0, "the worker has failed");
        self.inbox.extend(&piece[..count]);
        while let Some(body) = self.inbox.next_frame().expect("good frames") {
            if let FromWorker::Finished(finished) = codec::decode(body).expect("a message") {
                assert!(finished.proven_gone);
                match finished.end {
                    AttemptEnd::Ended(WaitStatus::Exited(0)) | AttemptEnd::Builtin { .. } => {
                        return Some(finished.usage.user_cpu_us + finished.usage.system_cpu_us);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        None
    }
}

fn is_readable(fd: impl AsFd, time: Duration) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(time).expect("short")).expect("polled") > 0
}

fn frames(kind: WorkerKind, pid_namespace: bool) -> Vec<u8> {
    let action = match kind {
        WorkerKind::Exec => Action::Exec { argv: vec![PROGRAM.as_bytes().to_vec().into()], stdin: None },
        WorkerKind::Builtin => {
            Action::Builtin { name: "read_file".to_owned(), args: r#"{"path":"/etc/passwd"}"#.to_owned() }
        }
    };
    let job = Job {
        call_uid: CallUid(Default::default()),
        attempt: 1,
        tool: "bench".to_owned(),
        action,
        identity: None,
        cwd: "/".to_owned(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned()), ("LANG".to_owned(), "C.UTF-8".to_owned())],
        umask: 0o022,
        rlimits: Rlimits {
            nofile_soft: Some(1024),
            nofile_hard: Some(4096),
            core_bytes: Some(0),
            ..Rlimits::default()
        },
        tree_cpu_ms: None,
        pid_namespace,
        output: OutputPolicy {
            inline_bytes: 65_536,
            tail_bytes: 32_768,
            stream: false,
            max_total_bytes: None,
            spool: None,
        },
    };
    let mut frames = Vec::new();
    codec::encode_frame(&ToWorker::Hello { version: WORKER_PROTOCOL }, &mut frames).expect("encoded");
    codec::encode_frame(&ToWorker::Job(Box::new(job)), &mut frames).expect("encoded");
    frames
}

/// What every supervisor must do at least: pipes, spawn, read both to their ends, wait.
fn bare() {
    let (stdout, child_stdout) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    let (stderr, child_stderr) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    let mut actions = PosixSpawnFileActions::init().expect("actions");
    actions.add_dup2(child_stdout.as_raw_fd(), 1).expect("stdout");
    actions.add_dup2(child_stderr.as_raw_fd(), 2).expect("stderr");
    let attributes = PosixSpawnAttr::init().expect("attributes");
    let environment: [&std::ffi::CStr; 1] = [c"PATH=/usr/bin:/bin"];
    let pid =
        posix_spawn(c"/bin/true", &actions, &attributes, &[c"/bin/true"], &environment).expect("spawned");
    drop((child_stdout, child_stderr));
    let mut output = Vec::new();
    for pipe in [stdout, stderr] {
        std::fs::File::from(pipe).read_to_end(&mut output).expect("read");
    }
    assert_eq!(waitpid(pid, None).expect("waited"), nix::sys::wait::WaitStatus::Exited(pid, 0));
}

/// Blocks of calls and of bare spawns take turns; inside a block they go back to back.
fn latency(stock: &mut Stock, frames: &[u8], count: usize) {
    const BLOCK: usize = 50;
    for _ in 0..4 {
        stock.order();
    }
    let (mut calls, mut bares) = (Vec::new(), Vec::new());
    for block in 0..=count / BLOCK {
        for _ in 0..BLOCK {
            let mut worker = stock.take();
            // Its Hello: it has rehearsed.
            assert!(is_readable(&worker.stream, Duration::from_secs(5)));
            let begun = Instant::now();
            worker.give(frames);
            while worker.read().is_none() {}
            let call = begun.elapsed();
            drop(worker);
            stock.order();
            stock.catch_up();
            calls.extend((block > 0).then_some(call));
        }
        while stock.idle.len() < 4 {
            stock.listen();
        }
        for _ in 0..BLOCK {
            let begun = Instant::now();
            bare();
            bares.extend((block > 0).then(|| begun.elapsed()));
        }
    }
    calls.sort_unstable();
    bares.sort_unstable();
    let at = |sorted: &[Duration], per_mille: usize| {
        sorted[(sorted.len() * per_mille / 1000).min(sorted.len() - 1)].as_secs_f64() * 1e6
    };
    for (name, per_mille) in [("p10", 100), ("p50", 500), ("p90", 900), ("p99", 990)] {
        let (call, spawn) = (at(&calls, per_mille), at(&bares, per_mille));
        println!(
            "{name}: call {call:7.1} us, bare {spawn:7.1} us, ratio {:.3}, overhead {:+.1} us",
            call / spawn,
            call - spawn
        );
    }
}

/// CPU time of this process and of all that it has reaped.
fn cpu_us() -> f64 {
    let of = |who| {
        let usage = getrusage(who).expect("usage");
        (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64
    };
    of(UsageWho::RUSAGE_SELF) + of(UsageWho::RUSAGE_CHILDREN)
}

/// User and system time of a process: fields of its `stat`, counted after the name, in ticks of 10 ms.
fn ticks_us(pid: u32, first: usize) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: u64 =
        fields[first..first + 2].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    ticks as f64 * 10_000.0
}

fn throughput(mut stock: Stock, frames: &[u8], count: usize) {
    let (begun, cpu) = (Instant::now(), cpu_us());
    let threads: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..count / 2 {
                    bare();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("joined");
    }
    let bare_rate = count as f64 / begun.elapsed().as_secs_f64();
    let bare_cpu = (cpu_us() - cpu) / count as f64;
    let cpu = cpu_us();
    for _ in 0..32 {
        stock.order();
    }
    let begun = Instant::now();
    let (mut done, mut ordered) = (0, 32);
    let mut running: Vec<Worker> = Vec::new();
    while done < count {
        while let Some(mut worker) = stock.idle.pop_front() {
            worker.give(frames);
            running.push(worker);
        }
        let mut fds = vec![PollFd::new(stock.spawner.as_fd(), PollFlags::POLLIN)];
        fds.extend(running.iter().map(|worker| PollFd::new(worker.stream.as_fd(), PollFlags::POLLIN)));
        poll(&mut fds, PollTimeout::NONE).expect("polled");
        let ready: Vec<bool> =
            fds.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect();
        for at in (0..running.len()).rev() {
            if ready[at + 1]
                && let Some(cpu_us) = running[at].read()
            {
                stock.tools_cpu_us += cpu_us;
                running.swap_remove(at);
                done += 1;
                if ordered < count {
                    stock.order();
                    ordered += 1;
                }
            }
        }
        if ready[0] {
            stock.catch_up();
        }
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    println!("calls {rate:.0}/s, bare {bare_rate:.0}/s (two threads), ratio {:.3}", rate / bare_rate);
    let (spawner, reaped) = (ticks_us(stock.child.id(), 11), ticks_us(stock.child.id(), 13));
    let tools = stock.tools_cpu_us as f64;
    // The spawner's end brings its CPU time, and that of all workers and tools.
    stock.close();
    let each = |us: f64| us / count as f64;
    let cpu = each(cpu_us() - cpu);
    println!("CPU a call: {cpu:.0} us, bare {bare_cpu:.0} us, ratio {:.3}", bare_cpu / cpu);
    println!(
        "of it: tool {:.0}, worker {:.0}, spawner {:.0}, this driver {:.0}",
        each(tools),
        each(reaped - tools),
        each(spawner),
        cpu - each(spawner + reaped)
    );
}

fn main() {
    toolcell_worker::run_if_spawner();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    let kind = if has("builtin") { WorkerKind::Builtin } else { WorkerKind::Exec };
    let count = words.iter().find_map(|word| word.parse().ok()).unwrap_or(2000);
    let mut stock = Stock::new(kind, has("cgroup"));
    let frames = frames(kind, has("pidns"));
    if has("throughput") {
        throughput(stock, &frames, count);
    } else {
        latency(&mut stock, &frames, count);
        stock.close();
    }
}
