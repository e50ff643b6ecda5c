//! What loop detection costs a call, in CPU time. Prints one line a figure; run with `--release`.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::Arc;

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};
use toolcell_daemon::core::loop_detection::{
    CallFacts, Ended, LoopBlock, LoopConfig, LoopDetection, Outcome, OutcomeBuilder, Output, Reading,
    ToolTraits,
};

/// CPU time of this process so far, in seconds: other load on the machine does not show in it.
fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the kernel counts it");
    let time = usage.user_time() + usage.system_time();
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

fn session(config: &Value) -> LoopDetection {
    let block = LoopBlock::parse(config, Reading::Strict).expect("the configuration is right");
    LoopDetection::new(Arc::new(LoopConfig::resolve(&block)))
}

/// Distinct calls and outcomes, as a session of that many different calls has them.
fn ready(count: usize) -> Vec<(CallFacts, Outcome)> {
    let made = |i: usize| {
        let args = json!({"command": format!("cat src/file_{i}.rs | head -n {}", i % 7)});
        let facts =
            CallFacts::new(&format!("call_{i:08}"), "bash", &args, &ToolTraits::default(), &[], Some("/w"));
        let mut builder = OutcomeBuilder::new();
        builder.push(Output::Stdout, format!("result {i}\n").as_bytes());
        let ended = if i.is_multiple_of(5) { Ended::Failed } else { Ended::Ok };
        let outcome = builder.finish(&facts, ended, Some(0));
        (facts, outcome)
    };
    (0..count).map(made).collect()
}

/// Nanoseconds a call (before and after) once the session has seen `history` calls.
fn per_call(config: &Value, history: usize) -> f64 {
    const MEASURED: usize = 200_000;
    let calls = ready(30_000);
    let mut detection = session(config);
    let mut run = |from: usize, count: usize| {
        for (facts, outcome) in calls.iter().cycle().skip(from % calls.len()).take(count) {
            let before = detection.before_call(facts);
            if before.refusal().is_none() {
                black_box(detection.after_call(facts, outcome));
            }
        }
    };
    run(0, history);
    let start = cpu();
    run(history, MEASURED);
    (cpu() - start) * 1e9 / MEASURED as f64
}

fn fingerprinting(ended: Ended) -> (f64, f64) {
    const MEASURED: u32 = 50_000;
    let args = format!(
        "{{\"command\": \"grep -rn 'some pattern' ./src//core | head -50 {}\", \"timeout\": 30}}",
        "x".repeat(120)
    );
    let result = "src/core/session.rs:120: let x = 42; // 2026-01-31T10:00:00Z took 0.12s\n".repeat(20);
    let traits = ToolTraits::default();
    let value: Value = serde_json::from_str(&args).expect("JSON");
    let facts = CallFacts::new("c", "bash", &value, &traits, &[], Some("/w"));
    let start = cpu();
    for _ in 0..MEASURED {
        let value: Value = serde_json::from_str(black_box(&args)).expect("JSON");
        black_box(CallFacts::new("c", "bash", &value, &traits, &[], Some("/w")));
    }
    let of_args = (cpu() - start) * 1e6 / f64::from(MEASURED);
    let start = cpu();
    for _ in 0..MEASURED {
        let mut builder = OutcomeBuilder::new();
        builder.push(Output::Stdout, black_box(&result.as_bytes()[..1024]));
        black_box(builder.finish(&facts, ended, Some(0)));
    }
    (of_args, (cpu() - start) * 1e6 / f64::from(MEASURED))
}

fn main() {
    let classic = |size: u32| json!({"enabled": true, "strategy": "classic", "history_size": size});
    for (name, config, history) in [
        ("progress, after 30 calls", json!({}), 30),
        ("progress, after 30,000 calls", json!({}), 30_000),
        ("classic, window 30, after 30 calls", classic(30), 30),
        ("classic, window 30, after 30,000 calls", classic(30), 30_000),
        ("classic, window 30,000, full", classic(30_000), 30_000),
    ] {
        println!("{name:44} {:7.0} ns a call", per_call(&config, history));
    }
    let (of_args, of_result) = fingerprinting(Ended::Ok);
    let (_, of_failure) = fingerprinting(Ended::Failed);
    println!("{:44} {of_args:7.2} us", "parse and fingerprint 200 bytes of arguments");
    println!("{:44} {of_result:7.2} us", "fingerprint 1 KiB of result");
    println!("{:44} {of_failure:7.2} us", "the same, and find its error line");
    let mut detection = session(&json!({}));
    for (facts, outcome) in &ready(30_000) {
        if detection.before_call(facts).refusal().is_none() {
            detection.after_call(facts, outcome);
        }
    }
    println!("{:44} {:7} bytes", "state after 30,000 different calls", detection.state().bytes());
}
