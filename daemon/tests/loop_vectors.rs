//! The published cases: what the classic detectors answer exactly, and what the progress rules should say.

use std::sync::Arc;

use serde_json::Value;
use toolcell_daemon::core::loop_detection::{
    CallFacts, Decision, Detector, Fingerprint, Level, LoopBlock, LoopConfig, LoopDetection, Reading,
    Recorded, Strategy, ToolTraits,
};

const VECTORS: &str = include_str!("data/loop_vectors.jsonl");

/// Replaces `{i}` and `{n}` in every string.
fn filled(value: &Value, i: usize, n: usize) -> Value {
    match value {
        Value::String(text) => text.replace("{i}", &i.to_string()).replace("{n}", &n.to_string()).into(),
        Value::Array(items) => items.iter().map(|item| filled(item, i, n)).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), filled(value, i, n)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

fn expanded(sequence: &Value) -> Vec<Value> {
    let mut out = Vec::new();
    let mut n = 0;
    for item in sequence.as_array().expect("a sequence is a list") {
        let Some(times) = item.get("repeat").and_then(Value::as_u64) else {
            let event = item.get("event").is_some();
            out.push(if event { item.clone() } else { filled(item, 0, n) });
            n += usize::from(!event);
            continue;
        };
        for i in 0..usize::try_from(times).expect("a small number") {
            let calls = item
                .get("calls")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_else(|| vec![item["call"].clone()]);
            for call in calls {
                out.push(filled(&call, i, n));
                n += 1;
            }
        }
    }
    out
}

fn config(vector: &Value, strategy: Strategy) -> LoopConfig {
    let parse =
        |value: &Value| LoopBlock::parse(value, Reading::Lenient).expect("lenient reading refuses nothing");
    let written = &vector["config"];
    let mut block = if written.get("global").is_some() || written.get("agent").is_some() {
        parse(&written["global"]).overlaid(&parse(&written["agent"]))
    } else {
        parse(written)
    };
    block.strategy = Some(strategy);
    LoopConfig::resolve(&block)
}

/// What was said before and after each call.
fn run(vector: &Value, strategy: Strategy) -> Vec<(Vec<Decision>, Vec<Decision>)> {
    let mut detection = LoopDetection::new(Arc::new(config(vector, strategy)));
    let mut current = None;
    let mut said: Vec<(Vec<Decision>, Vec<Decision>)> = Vec::new();
    for item in expanded(&vector["sequence"]) {
        match item.get("event").and_then(Value::as_str) {
            Some("compaction") => {
                detection.note_compaction_of(current);
                continue;
            }
            Some("new_run") => {
                current = item["run"].as_str().map(Fingerprint::of);
                continue;
            }
            Some(other) => panic!("unknown event {other}"),
            None => {}
        }
        let tool = item["tool"].as_str().expect("a call has a tool");
        let id = format!("c{}", said.len());
        let run = item.get("run").map_or(current, |run| run.as_str().map(Fingerprint::of));
        let facts = CallFacts::new(&id, tool, &item["args"], &ToolTraits::default(), &[], None).in_run(run);
        let before = detection.before_call(&facts);
        let mut after = Vec::new();
        if before.refusal().is_none() && item.get("pending").is_none() {
            let recorded = Recorded {
                result: item.get("result"),
                message: item.get("error").and_then(Value::as_str),
                ..Recorded::default()
            };
            if let Some(outcome) = recorded.outcome(&facts, &item["args"]) {
                after = detection.after_call(&facts, &outcome).0;
            }
        }
        said.push((before.0, after));
    }
    said
}

fn is_runner_path(detector: Detector) -> bool {
    matches!(detector, Detector::EditFrequency | Detector::RepeatPattern | Detector::ConsecutiveFailures)
}

fn level(name: &str) -> Option<Level> {
    match name {
        "none" => None,
        "warning" => Some(Level::Warning),
        "critical" => Some(Level::Block),
        "abort" => Some(Level::Abort),
        other => panic!("unknown level {other}"),
    }
}

fn vectors(profile: &str) -> Vec<Value> {
    let all = VECTORS
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str::<Value>(line).expect("a vector is JSON"));
    all.filter(|vector| vector["profile"] == profile).collect()
}

#[test]
fn classic_answers_every_verified_case_exactly() {
    let vectors = vectors("e2");
    assert_eq!(vectors.len(), 74);
    let mut wrong = Vec::new();
    for vector in &vectors {
        let said = run(vector, Strategy::Classic);
        for expect in vector["expect"].as_array().expect("a list") {
            let at = usize::try_from(expect["at"].as_u64().expect("an index")).expect("a small number");
            let want = level(expect["level"].as_str().expect("a name"));
            let (before, after) = &said[at];
            let answers = if want == Some(Level::Abort) { after } else { before };
            let answer = answers.iter().find(|decision| !is_runner_path(decision.detector));
            let guard = after.iter().any(|decision| decision.detector == Detector::CompactionLoopPersisted);
            let fits = answer.map(|d| d.level) == want
                && guard == (want == Some(Level::Abort))
                && answer.is_none_or(|d| {
                    expect["detector"] == d.detector.name()
                        && expect["count"] == d.count
                        && expect.get("emitted").is_none_or(|emitted| *emitted == d.emitted)
                });
            if !fits {
                wrong.push(format!("{}: wanted {expect}, got {answer:?} guard {guard}", vector["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn progress_says_what_a_good_detector_should_say() {
    let vectors = vectors("ideal");
    assert_eq!(vectors.len(), 12);
    let mut wrong = Vec::new();
    for vector in &vectors {
        let said = run(vector, Strategy::Progress);
        let all: Vec<(usize, &Decision)> = said
            .iter()
            .enumerate()
            // Warning n comes after outcome n, which is the same as before call n + 1.
            .flat_map(|(at, (before, after))| {
                before.iter().map(move |d| (at, d)).chain(after.iter().map(move |d| (at + 1, d)))
            })
            .filter(|(_, d)| d.level > Level::Note)
            .collect();
        for expect in vector["expect"].as_array().expect("a list") {
            let at = usize::try_from(expect["at"].as_u64().expect("an index")).expect("a small number");
            let want = level(expect["level"].as_str().expect("a name")).expect("ideal cases name a level");
            let reached = all.iter().any(|(when, d)| *when <= at && d.level >= want);
            let fits = match expect["mode"].as_str().unwrap_or("exact") {
                "by" => reached,
                "never" => !reached,
                _ => all.iter().any(|(when, d)| {
                    *when == at
                        && d.level == want
                        && (expect["count"].is_null() || expect["count"] == d.count)
                        && expect.get("emitted").is_none_or(|emitted| *emitted == d.emitted)
                }),
            };
            if !fits {
                let got: Vec<_> =
                    all.iter().take(6).map(|(at, d)| (at, d.detector.name(), d.level, d.count)).collect();
                wrong.push(format!("{}: wanted {expect}, got {got:?}", vector["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
