//! What a call costs, beside a bare baseline in the same run.
//!
//! `cargo bench -p toolcell-tests` runs everything with 10,000 calls a row; `-- --quick` takes under a minute;
//! `TOOLCELL_BENCH_CONFIG` is added to the daemon's configuration; `-- --only exec,stream` picks parts (exec, empty, builtin, throughput, stream, kill, memory).
//! The table is Markdown; `docs/PERFORMANCE.md` keeps one.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]

mod baseline;
mod figures;
mod host;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use figures::{Samples, Table, median};
use host::{Host, calls};
use toolcell_client::blocking::Session;
use toolcell_protocol::call::{BatchResult, Status};

/// The program whose run is compared.
const NOOP: &str = "/bin/true";

/// Calls that alternate with as many bare spawns.
const BLOCK: usize = 25;

/// Measures something and adds its rows.
type Part = fn(&Plan, &Path, &mut Table);

struct Plan {
    calls: usize,
    gap_calls: usize,
    stream_bytes: u64,
    stream_runs: usize,
    kills: usize,
    only: Option<Vec<String>>,
}

impl Plan {
    fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == part))
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == baseline::RELAY_ARGUMENT) {
        baseline::relay(std::io::stdin().lock(), std::io::stdout().lock()).expect("relayed");
        return;
    }
    let quick = args.iter().any(|arg| arg == "--quick");
    let only = args
        .iter()
        .position(|arg| arg == "--only")
        .and_then(|at| args.get(at + 1))
        .map(|list| list.split(',').map(str::to_owned).collect());
    let plan = if quick {
        Plan { calls: 1000, gap_calls: 500, stream_bytes: 128 << 20, stream_runs: 3, kills: 50, only }
    } else {
        Plan { calls: 10_000, gap_calls: 10_000, stream_bytes: 1 << 30, stream_runs: 11, kills: 500, only }
    };
    let toolcelld = host::release_binary();
    let mut table = Table::default();
    let parts: [(&str, Part); 7] = [
        ("memory", memory),
        ("exec", exec),
        ("empty", empty),
        ("builtin", builtin),
        ("throughput", throughput),
        ("kill", kill),
        ("stream", stream),
    ];
    for (name, part) in parts {
        if plan.wants(name) {
            eprintln!("{name} …");
            part(&plan, &toolcelld, &mut table);
            eprintln!("{}", table.print());
        }
    }
    println!("{}", table.print());
}

fn run_one(session: &Session, tool: &str, args: &str) -> BatchResult {
    session
        .execute(calls(1, tool, args))
        .and_then(toolcell_client::blocking::RunningBatch::finish)
        .expect("a result")
}

/// Alternates blocks of calls and of bare spawns, with a pause before each.
fn interleave(session: &Session, tool: &str, args: &str, count: usize, gap: Duration) -> (Samples, Samples) {
    let (mut ours, mut bare, mut inside) = (Samples::default(), Samples::default(), Samples::default());
    let mut output = Vec::new();
    let program = PathBuf::from(NOOP);
    let pause = || {
        if !gap.is_zero() {
            std::thread::sleep(gap);
        }
    };
    for n in 0..count.div_ceil(BLOCK) + 1 {
        for _ in 0..BLOCK {
            pause();
            let start = Instant::now();
            baseline::spawn_capture_wait(&program, &mut output).expect("spawned");
            let took = start.elapsed();
            if n > 0 {
                bare.push(took);
            }
        }
        for _ in 0..BLOCK {
            pause();
            let start = Instant::now();
            let result = run_one(session, tool, args);
            let took = start.elapsed();
            assert_eq!(result.results[0].status, Status::Ok, "{:?}", result.results[0]);
            if n > 0 {
                ours.push(took);
                inside.push(Duration::from_micros(result.results[0].details.duration_us.unwrap_or(0)));
            }
        }
    }
    eprintln!("  of which inside the worker, p50: {:.0} µs", inside.quantile_us(0.5));
    (ours, bare)
}

fn containment(host: &Host) -> String {
    host.client.server_status().expect("a status").containment.name().to_owned()
}

fn exec(plan: &Plan, toolcelld: &Path, table: &mut Table) {
    let host = Host::start(toolcelld, "");
    let session = host.session("exec");
    let held = containment(&host);
    let (ours, bare) = interleave(&session, "noop", "{}", plan.calls, Duration::ZERO);
    let what =
        |quantile: &str| format!("exec'd no-op, warm stock, rlimits, {held}, back to back, {quantile}");
    table.compare(&what("p50"), &ours, &bare, 0.5, "≤ 1.40");
    table.compare(&what("p99"), &ours, &bare, 0.99, "≤ 1.6");
    let (ours, bare) = interleave(&session, "noop", "{}", plan.gap_calls, Duration::from_millis(2));
    table.compare("the same, 2 ms between calls, p50", &ours, &bare, 0.5, "≤ 1.25");
    table.compare("the same, 2 ms between calls, p99", &ours, &bare, 0.99, "–");
}

fn empty(plan: &Plan, toolcelld: &Path, table: &mut Table) {
    let host = Host::start(toolcelld, "[cells]\nidle_workers = 0\nidle_builtin_workers = 0\n");
    let session = host.session("empty");
    let (ours, bare) = interleave(&session, "noop", "{}", plan.calls, Duration::ZERO);
    table.compare("exec'd no-op, stock empty, back to back, p50", &ours, &bare, 0.5, "≤ 1.6");
}

fn builtin(plan: &Plan, toolcelld: &Path, table: &mut Table) {
    let host = Host::start(toolcelld, "");
    let session = host.session("builtin");
    let args = format!("{{\"path\": {:?}}}", host.block());
    let (ours, bare) = interleave(&session, "read_file", &args, plan.calls, Duration::ZERO);
    table.compare("read_file of 4 KiB, back to back, p50", &ours, &bare, 0.5, "≤ 0.35");
    let (ours, bare) = interleave(&session, "read_file", &args, plan.gap_calls, Duration::from_millis(2));
    table.compare("the same, 2 ms between calls, p50", &ours, &bare, 0.5, "≤ 0.25");
}

fn throughput(plan: &Plan, toolcelld: &Path, table: &mut Table) {
    let host = Host::start(toolcelld, "[limits]\nmax_running_per_session = 32\n");
    let session = host.session("throughput");
    let block = 1000;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for n in 0..=plan.calls.div_ceil(block) {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut output = Vec::new();
                    for _ in 0..block / 2 {
                        baseline::spawn_capture_wait(Path::new(NOOP), &mut output).expect("spawned");
                    }
                });
            }
        });
        let bare_rate = block as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        let result = session
            .execute(calls(block, "noop", "{}"))
            .and_then(toolcell_client::blocking::RunningBatch::finish)
            .expect("a result");
        let our_rate = block as f64 / start.elapsed().as_secs_f64();
        assert!(result.results.iter().all(|result| result.status == Status::Ok));
        if n > 0 {
            bare.push(bare_rate);
            ours.push(our_rate);
        }
    }
    let (ours, bare) = (median(ours), median(bare));
    table.row(
        "32 no-op calls in flight against two threads of bare spawns",
        &format!("{bare:.0}/s"),
        &format!("{ours:.0}/s"),
        &format!("{:.2}", ours / bare),
        "≥ 0.70",
    );
}

fn stream(plan: &Plan, toolcelld: &Path, table: &mut Table) {
    let host = Host::start(toolcelld, "");
    let session = host.session("stream");
    let bytes = plan.stream_bytes;
    let args = format!("{{\"bytes\": {bytes}}}");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..plan.stream_runs {
        let start = Instant::now();
        let got =
            baseline::stream("/usr/bin/head", &["-c", &bytes.to_string(), "/dev/zero"]).expect("streamed");
        bare.push(bytes as f64 / start.elapsed().as_secs_f64());
        assert_eq!(got, bytes);
        let start = Instant::now();
        let mut request = calls(1, "gibibyte", &args);
        request[0].stream = true;
        let mut batch = session.execute(request).expect("accepted");
        let mut got = 0;
        while let Some(event) = batch.next_event().expect("an event") {
            if let toolcell_client::BatchEvent::Output(chunk) = event {
                got += chunk.bytes.len() as u64;
            }
        }
        let result = batch.finish().expect("a result");
        ours.push(bytes as f64 / start.elapsed().as_secs_f64());
        assert_eq!(got, bytes);
        assert_eq!(result.results[0].status, Status::Ok);
    }
    let peak = status_kib(host.pid(), "VmHWM:");
    let (ours, bare) = (median(ours), median(bare));
    let gib = |rate: f64| format!("{:.2} GiB/s", rate / f64::from(1 << 30));
    table.row(
        &format!(
            "{} MiB of output through to the client, no spool (median of {})",
            bytes >> 20,
            plan.stream_runs
        ),
        &gib(bare),
        &gib(ours),
        &format!("{:.2}", ours / bare),
        "≥ 0.7",
    );
    table.row("peak resident memory of the daemon after that", "–", &format!("{peak} KiB"), "–", "flat");
}

fn kill(plan: &Plan, toolcelld: &Path, table: &mut Table) {
    let host = Host::start(toolcelld, "");
    let session = host.session("kill");
    let (mut inside, mut seen) = (Samples::default(), Samples::default());
    for _ in 0..plan.kills {
        let batch = session.execute(calls(1, "family", "{}")).expect("accepted");
        let uid = batch.call_uids()[0];
        let page = host.client.call_output(uid, 0, 100, Duration::from_secs(10)).expect("output");
        assert!(!page.pieces.is_empty(), "it says when all five are there");
        let start = Instant::now();
        host.client.call_kill(uid, "benchmark").expect("killed");
        seen.push(start.elapsed());
        let result = batch.finish().expect("a result");
        let killed = result.results[0].details.kill.as_ref().expect("it was killed");
        assert!(killed.proven_gone);
        inside.push(Duration::from_micros(killed.took_us));
    }
    let us = |samples: &Samples| format!("{:.0} µs", samples.quantile_us(0.99));
    table.row("kill of a five-process tree: KILL to proof, p99", "–", &us(&inside), "–", "≤ 5 ms");
    table.row("the same as the client sees it, p99", "–", &us(&seen), "–", "–");
}

fn memory(_: &Plan, toolcelld: &Path, table: &mut Table) {
    let host = Host::start(toolcelld, "");
    let deadline = Instant::now() + Duration::from_secs(5);
    let status = loop {
        let status = host.client.server_status().expect("a status");
        if status.idle_workers >= 16 {
            break status;
        }
        assert!(Instant::now() < deadline, "the stock fills");
    };
    let spawner = u32::try_from(status.spawner_pid.expect("a spawner")).expect("a pid");
    table.row(
        "daemon, resident, idle",
        "–",
        &format!("{} KiB", status_kib(host.pid(), "VmRSS:")),
        "–",
        "≤ 8 MiB",
    );
    let workers = children(spawner);
    assert!(!workers.is_empty(), "idle workers are the spawner's children");
    let private = workers.iter().map(|worker| private_kib(*worker)).max().unwrap_or(0);
    table.row("idle worker, private, the largest", "–", &format!("{private} KiB"), "–", "≤ 128 KiB");
    table.row("spawner, private", "–", &format!("{} KiB", private_kib(spawner)), "–", "–");
}

fn status_kib(pid: u32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status file");
    number_after(&text, key)
}

fn private_kib(pid: u32) -> u64 {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("readable as the same user");
    number_after(&text, "Private_Clean:") + number_after(&text, "Private_Dirty:")
}

fn number_after(text: &str, key: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .expect("the key is there")
}

fn children(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .expect("a children file")
        .split_whitespace()
        .map(|pid| pid.parse().expect("a pid"))
        .collect()
}
