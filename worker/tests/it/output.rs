//! Output: exact counts, bounded memory, chunks, spool.

use std::time::{Duration, Instant};

use toolcell_protocol::call::{LimitName, Stream};
use toolcell_protocol::worker_api::{AttemptEnd, FromWorker, SpoolPolicy, ToWorker, WaitStatus};

use crate::driver::{Cage, Spawner, in_every_cage, job, script, state, wait_until};

fn resident_bytes(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

#[test]
fn a_hundred_mebibytes_take_no_memory_and_every_byte_is_counted() {
    const TOTAL: usize = 100 << 20;
    let mut spawner = Spawner::plain();
    let mut worker =
        spawner.start(Cage::Weak, script(&format!("yes 0123456789abcde | head -c {TOTAL}; printf END")));
    let (worker_pid, mut largest) = (worker.pid, 0);
    let run = worker.finish_watched(|_| largest = largest.max(resident_bytes(worker_pid)));
    let finished = run.finished();
    assert_eq!(finished.end, AttemptEnd::Ended(WaitStatus::Exited(0)));
    assert_eq!(finished.stdout_bytes as usize, TOTAL + 3);
    assert_eq!(run.stdout.len(), 64 * 1024);
    let tail: Vec<u8> = finished.tail.iter().flat_map(|segment| segment.bytes.0.clone()).collect();
    assert_eq!(tail.len(), 32 * 1024);
    let line = b"0123456789abcde\n";
    assert!(run.stdout.chunks(16).all(|chunk| chunk == line));
    let expected: Vec<u8> = line.iter().copied().cycle().take(TOTAL).collect();
    let mut end = expected[TOTAL - (32 * 1024 - 3)..].to_vec();
    end.extend_from_slice(b"END");
    assert!(tail == end);
    assert_eq!(finished.omitted_bytes as usize, TOTAL + 3 - 96 * 1024);
    assert!(largest > 0 && largest < 4 << 20, "the worker grew to {largest} bytes");
    assert!(!run.spooled.is_empty(), "progress is told");
}

#[test]
fn a_stream_travels_whole_in_numbered_chunks() {
    in_every_cage(|cage, spawner| {
        let mut stream = script("head -c 5000000 /dev/zero; head -c 100000 /dev/zero >&2");
        stream.output.stream = true;
        let run = spawner.run_in(cage, stream);
        assert_eq!((run.stdout.len(), run.stderr.len()), (5_000_000, 100_000));
        assert_eq!((run.finished().omitted_bytes, run.finished().tail.len()), (0, 0));
    });
}

#[test]
fn a_stream_that_nobody_reads_holds_the_tool_and_a_stopped_one_does_not() {
    let mut spawner = Spawner::plain();
    let mut stream = script("head -c 20000000 /dev/zero; echo END");
    stream.output.stream = true;
    let mut worker = spawner.start(Cage::Weak, stream);
    let (pid, _) = worker.started();
    // The tool waits in a write: socket and pipe are full.
    wait_until("the tool waits", || {
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).is_ok_and(|text| {
            text.split_whitespace().any(|child| {
                std::fs::read_to_string(format!("/proc/{child}/wchan"))
                    .is_ok_and(|chan| chan.contains("pipe"))
                    || std::fs::read_to_string(format!("/proc/{child}/syscall"))
                        .is_ok_and(|call| call.starts_with("1 0x1 "))
            })
        })
    });
    worker.send(&ToWorker::StopStream);
    let run = worker.finish();
    let finished = run.finished();
    assert_eq!(finished.stdout_bytes, 20_000_004);
    assert!(run.stdout.len() < 20_000_000);
    let tail: usize = finished.tail.iter().map(|segment| segment.bytes.0.len()).sum();
    assert_eq!(finished.omitted_bytes as usize, 20_000_004 - run.stdout.len() - tail);
    assert!(finished.tail.last().expect("a tail").bytes.0.ends_with(b"END\n"));
}

/// Waits until a process is seen asleep many times in a row.
fn sleeps_for_good(pid: i32) {
    let mut seen = 0;
    wait_until("it sleeps", || {
        seen = if state(pid) == Some('S') { seen + 1 } else { 0 };
        seen >= 20
    });
}

#[test]
fn a_kill_is_heard_while_the_stream_is_blocked() {
    let mut spawner = Spawner::plain();
    let mut flood = job(&["yes"]);
    flood.output.stream = true;
    let mut worker = spawner.start(Cage::Weak, flood);
    let (pid, _) = worker.started();
    // Socket and pipe are full.
    sleeps_for_good(pid);
    worker.send(&ToWorker::Kill);
    wait_until("the tool is gone", || state(pid).is_none());
    // The rest of the output waits for us; the worker must not spin meanwhile.
    sleeps_for_good(worker.pid);
    let run = worker.finish();
    assert!(run.finished().signalled && run.finished().proven_gone);
    assert_eq!(run.stdout.len() as u64, run.finished().stdout_bytes);
}

#[test]
fn output_beyond_the_limit_ends_the_tool_and_names_the_limit() {
    in_every_cage(|cage, spawner| {
        let mut flood = job(&["yes"]);
        flood.output.max_total_bytes = Some(1_000_000);
        let run = spawner.run_in(cage, flood);
        let finished = run.finished();
        assert_eq!(finished.killed_for, Some((LimitName::Output, 1_000_000)), "{cage:?}");
        assert!(finished.stdout_bytes > 1_000_000 && finished.stdout_bytes < 4_000_000);
        assert!(finished.proven_gone && !finished.signalled);
    });
}

#[test]
fn the_spool_holds_the_whole_output_and_small_output_makes_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("spool");
    let mut spawner = Spawner::plain();
    let spool = SpoolPolicy { path: path.to_str().expect("text").to_owned(), max_bytes: 3_000_000 };
    let mut small = script("head -c 65536 /dev/zero");
    small.output.spool = Some(spool.clone());
    assert_eq!(spawner.run(small).finished().spool, None);
    assert!(!path.exists());
    for (bytes, kept) in [(2_000_000_usize, 2_000_000_u64), (5_000_000, 3_000_000)] {
        let mut large = script(&format!("echo first; yes | head -c {bytes} >&2"));
        large.output.spool = Some(spool.clone());
        let run = spawner.run(large);
        let info = run.finished().spool.as_ref().expect("a spool");
        assert_eq!(info.complete, bytes == 2_000_000);
        assert_eq!(info.error, None);
        assert_eq!(info.bytes, if info.complete { kept + 6 } else { kept });
        let file = std::fs::read(&path).expect("the spool");
        let mut rest = &file[..];
        let mut whole = Vec::new();
        while let Some((head, tail)) = rest.split_first_chunk::<5>() {
            let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let stream = if head[0] == 1 { Stream::Stdout } else { Stream::Stderr };
            whole.push((stream, &tail[..length]));
            rest = &tail[length..];
        }
        assert_eq!(whole[0], (Stream::Stdout, &b"first\n"[..]));
        let stderr: Vec<u8> = whole[1..].iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        assert!(stderr.chunks(2).all(|chunk| chunk == b"y\n" || chunk == b"y"));
        assert_eq!(stderr.len() as u64 + 6, info.bytes);
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_spool_that_cannot_be_made_costs_the_spool_and_not_the_call() {
    let mut spawner = Spawner::plain();
    let mut large = script("head -c 1000000 /dev/zero; exit 4");
    large.output.spool = Some(SpoolPolicy { path: "/proc/no/spool/here".to_owned(), max_bytes: 1 << 30 });
    let run = spawner.run(large);
    assert_eq!(run.finished().end, AttemptEnd::Ended(WaitStatus::Exited(4)));
    assert_eq!(run.finished().stdout_bytes, 1_000_000);
    let info = run.finished().spool.as_ref().expect("it was needed");
    assert!(!info.complete && info.error.as_ref().is_some_and(|why| why.contains("/proc/no/spool/here")));
}

#[test]
fn output_written_in_the_last_moment_is_never_lost() {
    let mut spawner = Spawner::plain();
    for _ in 0..100 {
        let run = spawner.run(script("head -c 5000 /dev/zero"));
        assert_eq!(run.stdout.len(), 5000);
    }
}

#[test]
fn started_and_output_of_a_long_tool_arrive_while_it_runs() {
    let mut spawner = Spawner::plain();
    let begun = Instant::now();
    let mut worker = spawner.start(Cage::Weak, script("echo now; exec sleep 300"));
    worker.started();
    match worker.receive() {
        Some(FromWorker::Output { seq: 0, stream: Stream::Stdout, bytes }) => assert_eq!(bytes.0, b"now\n"),
        other => panic!("{other:?}"),
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    worker.send(&ToWorker::Kill);
    assert!(worker.finish().finished().proven_gone);
}
