//! Output: nothing lost, nothing invented, memory flat, readers that do not read disturb nobody. (Rows O.)

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use toolcell_protocol::call::{Containment, Status, Stream};
use toolcell_protocol::client_api::{KillAnswer, OnDisconnect, Reply, Request};
use toolcell_protocol::id::CallUid;
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::pattern;
use toolcell_tests::peer::{PATIENCE, Peer, bash, call, habit, streamed, within};
use toolcell_tests::procfs;
use toolcell_tests::setting::{self, Setting};
use toolcell_tests::waiting::wait_until;

const WEAK: Setting = Setting::own(Containment::Weak);
const GIBIBYTE: u64 = 1 << 30;
const MEBIBYTE: u64 = 1 << 20;

/// Largest resident size of the daemon, its spawner and its workers, in KiB, while something runs.
#[derive(Debug, Default, Clone, Copy)]
struct Sizes {
    daemon: u64,
    workers: u64,
}

fn sizes(daemon: &TestDaemon, spawner: i32) -> Sizes {
    let family = procfs::processes();
    let workers = family.iter().filter(|process| process.parent == spawner);
    Sizes {
        daemon: procfs::resident_kib(daemon.pid()).unwrap_or(0),
        workers: workers.filter_map(|worker| procfs::resident_kib(worker.id.pid)).max().unwrap_or(0),
    }
}

/// Head, tail and the middle line of a text that was cut, and whether they fit the flood.
fn check_cut_flood(text: &str, total: u64, omitted: u64) {
    let line_from = text.find("[... ").expect("a line that says what is missing");
    let line_to = line_from + text[line_from..].find('\n').expect("the line ends") + 1;
    // The line itself may be set off by a line break that is not of the output.
    let head = &text[..line_from];
    let tail = &text[line_to..];
    let head_fits = |head: &str| head.as_bytes() == pattern::bytes(0, head.len());
    let shown_head = if head_fits(head) { head } else { head.strip_suffix('\n').unwrap_or(head) };
    assert!(head_fits(shown_head), "the head is not the beginning of the output");
    assert!(shown_head.len() > 3000 && tail.len() > 3000, "{} and {}", shown_head.len(), tail.len());
    let from = total - tail.len() as u64;
    assert!(tail.as_bytes() == pattern::bytes(from, tail.len()), "the tail is not the end of the output");
    assert_eq!(shown_head.len() as u64 + omitted + tail.len() as u64, total, "the bytes do not add up");
    assert!(text[line_from..line_to].contains(&omitted.to_string()), "{}", &text[line_from..line_to]);
}

#[test]
fn a_gibibyte_of_output_is_counted_cut_and_spooled_with_flat_memory() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        client.run_one(habit("flood 300000"));
        let spawner = daemon.spawner().expect("a spawner");
        let before = procfs::peak_resident_kib(daemon.pid()).expect("the daemon is there");
        let batch = client.execute(vec![habit(&format!("flood {GIBIBYTE}"))]);
        let call_uid = batch.call_uids[0];
        let ended = std::sync::atomic::AtomicBool::new(false);
        let give_up = Instant::now() + PATIENCE;
        let watcher = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = Sizes::default();
                while !ended.load(std::sync::atomic::Ordering::Relaxed) && Instant::now() < give_up {
                    let now = sizes(&daemon, spawner);
                    most.workers = most.workers.max(now.workers);
                    most.daemon = most.daemon.max(now.daemon);
                    std::thread::sleep(Duration::from_millis(10));
                }
                most
            });
            let result = client.finish(&batch).results.remove(0);
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(result.status, Status::Ok, "{result:#?}");
            assert_eq!((result.details.stdout_bytes, result.details.stderr_bytes), (GIBIBYTE, 0));
            assert!(result.details.truncated, "{:#?}", result.details);
            check_cut_flood(&result.for_model, GIBIBYTE, result.details.omitted_bytes);
            let spool = result.details.spool.as_ref().expect("it was spooled");
            assert!(!spool.complete && spool.error.is_none(), "{spool:?}");
            watch.join().expect("the watcher ends")
        });
        let after = procfs::peak_resident_kib(daemon.pid()).expect("the daemon is there");
        assert!(after <= before + 8 * 1024, "KiB of the daemon: {before} then {after}");
        assert!(watcher.workers <= 16 * 1024, "a worker had {} KiB", watcher.workers);
        // What the spool kept is the beginning; the rest is counted as skipped, but for the tail if it is kept.
        let (out, err, skipped) = client.read_output(call_uid);
        assert!(err.is_empty());
        assert_eq!(out.len() as u64 + skipped, GIBIBYTE);
        let kept = usize::try_from(64 * MEBIBYTE).expect("fits");
        assert!(out.len() >= kept, "{} bytes are kept", out.len());
        assert!(out[..kept] == pattern::bytes(0, kept), "the spool is not the beginning of the output");
    });
}

#[test]
fn a_gibibyte_streams_through_whole_and_in_order_with_flat_memory() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let before = procfs::peak_resident_kib(daemon.pid()).expect("the daemon is there");
    let batch = client.execute(vec![streamed(habit(&format!("flood {GIBIBYTE}")))]);
    let (mut at, mut seq) = (0_u64, 0);
    let mut expected = Vec::new();
    while at < GIBIBYTE {
        let chunk = client.chunk(PATIENCE).expect("a chunk");
        assert_eq!((chunk.call_uid, chunk.seq, chunk.stream), (batch.call_uids[0], seq, Stream::Stdout));
        // Whole chunks are compared at every 64th; the rest by their length, which the numbers prove.
        if seq % 64 == 0 {
            expected.resize(chunk.bytes.0.len(), 0);
            pattern::fill(at, &mut expected);
            assert!(chunk.bytes.0 == expected, "chunk {seq} at {at} is not what the tool wrote");
        }
        at += chunk.bytes.0.len() as u64;
        seq += 1;
    }
    assert_eq!(at, GIBIBYTE);
    let result = client.finish(&batch).results.remove(0);
    assert_eq!((result.status, result.details.stdout_bytes), (Status::Ok, GIBIBYTE));
    assert!(result.details.spool.is_none(), "a streamed call keeps no spool: {:?}", result.details.spool);
    let after = procfs::peak_resident_kib(daemon.pid()).expect("the daemon is there");
    assert!(after <= before + 16 * 1024, "KiB of the daemon: {before} then {after}");
}

#[test]
fn both_outputs_are_counted_and_kept_apart() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let result = client.run_one(habit("flood 3000000 both"));
        assert_eq!(result.status, Status::Ok, "{result:#?}");
        assert_eq!((result.details.stdout_bytes, result.details.stderr_bytes), (3_000_000, 3_000_000));
        let (out, err, skipped) = client.read_output(result.call_uid);
        let expected = pattern::bytes(0, 3_000_000);
        assert!(out == expected && err == expected && skipped == 0, "{} {} {skipped}", out.len(), err.len());
    });
}

#[test]
fn every_byte_value_survives_kept_spooled_and_streamed() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let all: Vec<u8> = (0..=255).collect();
    for times in [1, 256, 4000] {
        let result = client.run_one(habit(&format!("all-bytes {times}")));
        assert_eq!(result.status, Status::Ok, "{result:#?}");
        let (out, _, skipped) = client.read_output(result.call_uid);
        assert!(out == all.repeat(times) && skipped == 0, "{times} times: {} bytes", out.len());
    }
    let batch = client.execute(vec![streamed(habit("all-bytes 4000"))]);
    let mut out = Vec::new();
    while out.len() < 4000 * 256 {
        out.extend(client.chunk(PATIENCE).expect("a chunk").bytes.0);
    }
    assert!(out == all.repeat(4000), "the stream differs");
    client.finish(&batch);
}

#[test]
fn o14_characters_survive_at_every_border() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    // One byte per write: every read may end inside a character.
    let result = client.run_one(habit("chars 2000"));
    assert_eq!(result.for_model, "€".repeat(2000));
    // Cut for the model at every offset within a character: 0 to 3 letters in front shift all borders.
    for shift in 0..4 {
        let script = format!("printf '{}'; for i in {{1..60000}}; do printf '€ä𝄞'; done", "a".repeat(shift));
        let result = client.run_one(bash(&script));
        assert_eq!(result.status, Status::Ok, "{result:#?}");
        assert!(result.details.truncated);
        assert!(!result.for_model.contains('\u{fffd}'), "shift {shift}: a character was cut");
        let (out, _, skipped) = client.read_output(result.call_uid);
        let expected = format!("{}{}", "a".repeat(shift), "€ä𝄞".repeat(60_000));
        assert!(out == expected.as_bytes() && skipped == 0, "shift {shift}: {} bytes", out.len());
    }
}

#[test]
fn o01_a_leaked_pipe_does_not_hold_the_result() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let started = Instant::now();
        let result = daemon.client().run_one(bash("sleep 60 & echo A; exit 5"));
        assert!(started.elapsed() < Duration::from_secs(15), "took {:?}", started.elapsed());
        assert_eq!((result.status, result.details.exit_code), (Status::Error, Some(5)), "{result:#?}");
        assert!(result.for_model.starts_with("A\n"), "{result:#?}");
        assert!(result.details.stdout_open_after_exit, "{result:#?}");
    });
}

#[test]
fn o02_short_tools_are_never_said_to_leak_under_load() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut hogs = daemon.client();
    let busy = hogs.execute(vec![habit("spin 8 60")]);
    hogs.started(busy.call_uids[0]);
    let mut client = daemon.client();
    for _ in 0..5 {
        let result = client.run((0..100).map(|_| habit("ok")).collect());
        for result in &result.results {
            assert_eq!(result.status, Status::Ok, "{result:#?}");
            assert!(!result.details.stdout_open_after_exit, "a false leak: {result:#?}");
        }
    }
}

#[test]
fn o04_what_is_written_in_the_last_moment_is_there() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let expected = pattern::bytes(0, 5000);
        for _ in 0..5 {
            let result = client.run((0..100).map(|_| habit("last-moment 5000")).collect());
            for result in &result.results {
                assert_eq!(result.status, Status::Ok, "{result:#?}");
                assert!(result.for_model.as_bytes() == expected, "{} bytes", result.for_model.len());
            }
        }
    });
}

#[test]
fn o05_a_daemon_that_was_stopped_loses_nothing() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let batch = client.execute(vec![habit("drip 5 20"), habit("flood 50000")]);
    client.started(batch.call_uids[0]);
    daemon.signal(Signal::SIGSTOP);
    daemon.wait_until_no_tool_is_left(Duration::from_secs(10));
    daemon.signal(Signal::SIGCONT);
    let result = client.finish(&batch);
    assert_eq!(result.results[0].for_model, "line 0\nline 1\nline 2\nline 3\nline 4\n");
    assert_eq!(result.results[1].details.stdout_bytes, 50_000);
    assert!(result.results.iter().all(|result| result.status == Status::Ok), "{result:#?}");
}

#[test]
fn o07_a_background_job_does_not_wedge_the_call() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let started = Instant::now();
        let result = daemon.client().run_one(bash("echo A && sleep 300 & sleep 0.1; echo B"));
        assert!(started.elapsed() < Duration::from_secs(15), "took {:?}", started.elapsed());
        assert_eq!(result.status, Status::Ok, "{result:#?}");
        assert!(result.for_model.contains("A\n") && result.for_model.contains("B\n"), "{result:#?}");
    });
}

#[test]
fn o08_a_reader_that_never_reads_holds_its_own_tool_and_nothing_else() {
    let daemon = TestDaemon::in_setting(WEAK);
    let before = procfs::resident_kib(daemon.pid()).expect("the daemon is there");
    let mut deaf = daemon.client();
    let batch = deaf.execute(vec![streamed(habit("flood 200000000")), streamed(habit("flood 200000000"))]);
    let mut client = daemon.client();
    wait_until("the deaf reader's tools run", Duration::from_secs(20), || {
        let running = client.status().running;
        if running == 2 { Ok(()) } else { Err(running) }
    });
    for _ in 0..5 {
        let result = client.run((0..20).map(|_| habit("flood 100000")).collect());
        assert!(result.results.iter().all(|result| result.status == Status::Ok), "{result:#?}");
    }
    assert_eq!(client.status().running, 2, "the deaf reader's tools are held");
    let grown = procfs::resident_kib(daemon.pid()).expect("there").saturating_sub(before);
    assert!(grown < 32 * 1024, "the daemon grew by {grown} KiB");
    // Held or not, it can be killed.
    let kill = Request::CallKill { call_uid: batch.call_uids[0], reason: "deaf".into() };
    assert_eq!(client.granted(kill), Reply::CallKilled(KillAnswer::Killed));
    drop(deaf);
    daemon.wait_until_no_tool_is_left(Duration::from_secs(10));
}

/// Reads a call's output while it runs and gives the moments at which pieces came.
fn follow(peer: &mut Peer, call_uid: CallUid) -> (Vec<u8>, usize) {
    let (mut out, mut cursor, mut pages) = (Vec::new(), 0, 0);
    loop {
        let request = Request::CallOutput { call_uid, cursor, max_bytes: 65_536, wait_ms: 20_000 };
        let Reply::Output(page) = peer.granted(request) else { panic!("no page") };
        pages += usize::from(!page.pieces.is_empty());
        out.extend(page.pieces.into_iter().flat_map(|piece| piece.bytes.0));
        cursor = page.next_cursor;
        if page.end {
            return (out, pages);
        }
    }
}

#[test]
fn output_can_be_followed_while_the_tool_runs_and_read_again_later() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client_that(OnDisconnect::Linger);
    let batch = client.execute(vec![habit("drip 6 80")]);
    let mut watcher = daemon.peer();
    let (live, pages) = follow(&mut watcher, batch.call_uids[0]);
    client.finish(&batch);
    assert_eq!(live, b"line 0\nline 1\nline 2\nline 3\nline 4\nline 5\n");
    assert!(pages >= 3, "the output came in {pages} pages, not while it was written");
    let (later, ..) = watcher.read_output(batch.call_uids[0]);
    assert_eq!(later, live);
}

#[test]
fn o13_too_much_output_is_a_limit_with_its_value_and_the_whole_tree_goes() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("limited", "limits.output_bytes = 1000000").start();
        let mut client = daemon.client();
        let within_limit = client.run_one(call("limited", &json!({"line": "flood 1000000"})));
        assert_eq!(within_limit.status, Status::Ok, "{within_limit:#?}");
        let result = client.run_one(call("limited", &json!({"line": "flood 100000000000"})));
        assert_eq!(result.status, Status::LimitExceeded, "{result:#?}");
        let limit = result.status_detail.limit.map(|limit| limit.name());
        assert_eq!(
            (limit, result.status_detail.limit_value),
            (Some("output"), Some(1_000_000)),
            "{result:#?}"
        );
        assert!(result.details.stdout_bytes > 1_000_000, "{result:#?}");
        assert!(result.details.stdout_bytes < 8_000_000, "{result:#?}");
        assert!(daemon.tool_processes().is_empty(), "something is left");
    });
}

#[test]
fn o18_a_pipe_whose_reader_has_gone_ends_its_writer() {
    let daemon = TestDaemon::in_setting(WEAK);
    let started = Instant::now();
    let result = daemon.client().run_one(bash("yes | head -1"));
    assert_eq!((result.status, result.for_model.as_str()), (Status::Ok, "y\n"), "{result:#?}");
    assert!(started.elapsed() < Duration::from_secs(15), "took {:?}", started.elapsed());
}

#[test]
fn l13_a_slow_reader_does_not_look_like_an_idle_tool() {
    let daemon = TestDaemon::configure(WEAK).tool("quick", "idle_timeout_ms = 500").start();
    let mut client = daemon.client();
    let flood = call("quick", &json!({"line": "flood 20000000"}));
    let batch = client.execute(vec![streamed(within(50_000, flood))]);
    client.started(batch.call_uids[0]);
    // Three times the idle timeout: the tool is blocked for all of it, and not idle.
    std::thread::sleep(Duration::from_millis(1500));
    let mut got = 0;
    while got < 20_000_000 {
        got += client.chunk(PATIENCE).expect("a chunk").bytes.0.len();
    }
    let result = client.finish(&batch).results.remove(0);
    assert_eq!(result.status, Status::Ok, "{result:#?}");
}
