//! The rolling detectors against a slow, obvious implementation of the same rules, over random sequences.
//!
//! The slow one keeps a plain list and walks it for every question. What is random: tools, arguments, results, errors,
//! runs, calls whose outcome never arrives or arrives late, and the configuration.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use toolcell_daemon::core::loop_detection::{
    CallFacts, Detector, Fingerprint, Level, LoopBlock, LoopConfig, LoopDetection, Recorded, Rolling,
    Strategy as LoopStrategy, ToolTraits,
};

#[derive(Debug, Clone)]
struct Record {
    run: u8,
    tool: String,
    signature: String,
    id: String,
    result: Option<String>,
    unknown: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Answer {
    detector: Detector,
    level: Level,
    count: u32,
    emitted: bool,
}

#[derive(Debug, Default)]
struct Slow {
    records: Vec<Record>,
    buckets: Vec<(String, u32)>,
}

impl Slow {
    fn window(&self, run: u8) -> Vec<&Record> {
        self.records.iter().filter(|r| r.run == run).collect()
    }

    fn trim(&mut self, size: u32) {
        let surplus = self.records.len().saturating_sub(size as usize);
        self.records.drain(..surplus);
    }

    fn emitted(&mut self, key: String, count: u32) -> bool {
        let bucket = count / 10;
        let known = self.buckets.iter().position(|(k, _)| *k == key);
        if bucket <= known.map_or(0, |at| self.buckets[at].1) {
            return false;
        }
        match known {
            Some(at) => self.buckets[at].1 = bucket,
            None => self.buckets.push((key, bucket)),
        }
        if self.buckets.len() > 256 {
            self.buckets.remove(0);
        }
        true
    }

    fn judge(
        &mut self,
        run: u8,
        tool: &str,
        signature: &str,
        poll: bool,
        config: &Rolling,
    ) -> Option<Answer> {
        let window: Vec<Record> = self.window(run).into_iter().cloned().collect();
        let critical = |detector, count| Some(Answer { detector, level: Level::Block, count, emitted: true });

        let mut unknown = 0;
        let name = window.last().and_then(|r| r.unknown.clone());
        for record in window.iter().rev() {
            if record.tool != tool || record.unknown.is_none() || record.unknown != name {
                break;
            }
            unknown += 1;
        }
        if unknown >= config.unknown_tool {
            return critical(Detector::UnknownToolRepeat, unknown);
        }

        let mine: Vec<&Record> = window.iter().filter(|r| r.signature == signature).collect();
        let results: Vec<&String> = mine.iter().rev().filter_map(|r| r.result.as_ref()).collect();
        let streak = results.iter().take_while(|r| **r == results[0]).count() as u32;
        if streak >= config.global {
            return critical(Detector::GlobalCircuitBreaker, streak);
        }
        let latest = results.first().map(|r| (*r).clone()).unwrap_or_default();
        if poll && config.known_poll_no_progress {
            if streak >= config.critical {
                return critical(Detector::KnownPollNoProgress, streak);
            }
            if streak >= config.warning {
                let emitted = self.emitted(format!("{run}poll{signature}{latest}"), streak);
                return Some(Answer {
                    detector: Detector::KnownPollNoProgress,
                    level: Level::Warning,
                    count: streak,
                    emitted,
                });
            }
        }
        if config.ping_pong
            && let Some((count, settled, other)) = ping_pong(&window, signature)
        {
            if count >= config.critical && settled {
                return critical(Detector::PingPong, count);
            }
            if count >= config.warning {
                let mut pair = [signature.to_owned(), other];
                pair.sort();
                let emitted = self.emitted(format!("{run}pair{pair:?}"), count);
                return Some(Answer { detector: Detector::PingPong, level: Level::Warning, count, emitted });
            }
        }
        if !poll && config.generic_repeat {
            if streak >= config.critical {
                return critical(Detector::GenericRepeat, streak);
            }
            let recent = mine.len() as u32;
            if recent >= config.warning {
                let emitted = self.emitted(format!("{run}generic{signature}"), recent);
                return Some(Answer {
                    detector: Detector::GenericRepeat,
                    level: Level::Warning,
                    count: recent,
                    emitted,
                });
            }
        }
        None
    }

    fn outcome(&mut self, record: Record, size: u32) {
        let waiting = self.records.iter_mut().rev().find(|r| {
            r.result.is_none()
                && r.run == record.run
                && r.id == record.id
                && r.tool == record.tool
                && r.signature == record.signature
        });
        match waiting {
            Some(waiting) => (waiting.result, waiting.unknown) = (record.result, record.unknown),
            None => {
                self.records.push(record);
                self.trim(size);
            }
        }
    }
}

fn ping_pong(window: &[Record], signature: &str) -> Option<(u32, bool, String)> {
    let newest = window.last()?;
    let other = window.iter().rev().find(|r| r.signature != newest.signature)?;
    let mut count = 0;
    for record in window.iter().rev() {
        let expected = if count % 2 == 0 { &newest.signature } else { &other.signature };
        if record.signature != *expected {
            break;
        }
        count += 1;
    }
    if count < 2 || other.signature != signature {
        return None;
    }
    let tail = &window[window.len() - count..];
    let settled = [&newest.signature, &other.signature].iter().all(|side| {
        let results: Vec<_> = tail.iter().filter(|r| r.signature == **side).map(|r| &r.result).collect();
        results.iter().all(|r| r.is_some() && **r == *results[0])
    });
    Some((count as u32 + 1, settled, newest.signature.clone()))
}

#[derive(Debug, Clone)]
struct Step {
    tool: u8,
    args: u8,
    result: u8,
    run: u8,
    /// 0: at once; 1: never; n: so many steps later.
    delay: u8,
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly few tools and results, so that streaks come about.
    (
        0_u8..4,
        0_u8..3,
        prop_oneof![6 => Just(0_u8), 2 => 0_u8..3],
        prop_oneof![5 => Just(0_u8), 1 => 0_u8..3],
        prop_oneof![8 => Just(0_u8), 1 => 1_u8..5],
    )
        .prop_map(|(tool, args, result, run, delay)| Step { tool, args, result, run, delay })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // A few random steps, many times over: loops, with something else between them.
    prop::collection::vec((prop::collection::vec(step(), 1..5), 1_usize..15), 1..10)
        .prop_map(|parts| parts.into_iter().flat_map(|(part, times)| vec![part; times].concat()).collect())
}

fn config() -> impl Strategy<Value = LoopBlock> {
    (2_u32..40, 1_u32..8, 1_u32..8, 1_u32..8, 1_u32..20, any::<[bool; 3]>()).prop_map(
        |(history, warning, critical, unknown, global, on)| LoopBlock {
            enabled: Some(true),
            strategy: Some(LoopStrategy::Classic),
            history_size: Some(history),
            warning_threshold: Some(warning),
            critical_threshold: Some(warning + critical),
            unknown_tool_threshold: Some(unknown),
            global_circuit_breaker_threshold: Some(global),
            generic_repeat: Some(on[0] || on[1]),
            known_poll_no_progress: Some(on[1]),
            ping_pong: Some(on[2]),
            ..LoopBlock::default()
        },
    )
}

const TOOLS: [&str; 4] = ["read", "command_status", "ghost", "grep"];

fn check(steps: &[Step], block: &LoopBlock) -> Result<(), TestCaseError> {
    let config = Arc::new(LoopConfig::resolve(block));
    let rolling = config.rolling;
    let mut fast = LoopDetection::new(config);
    let mut slow = Slow::default();
    let mut late: HashMap<usize, Vec<(CallFacts, Value, Record)>> = HashMap::new();
    for (at, step) in steps.iter().enumerate() {
        for (facts, result, record) in late.remove(&at).unwrap_or_default() {
            finish(&mut fast, &mut slow, &facts, &result, record, rolling.history_size);
        }
        let tool = TOOLS[usize::from(step.tool)];
        let args = json!({"a": step.args});
        let run = (step.run > 0).then(|| Fingerprint::of(&step.run.to_string()));
        let facts =
            CallFacts::new(&format!("c{at}"), tool, &args, &ToolTraits::default(), &[], None).in_run(run);
        let signature = format!("{tool}{args}");
        let said = fast.before_call(&facts);
        let answer = said.0.first().map(|d| Answer {
            detector: d.detector,
            level: d.level,
            count: d.count,
            emitted: d.emitted,
        });
        let expected = slow.judge(step.run, tool, &signature, tool == "command_status", &rolling);
        prop_assert_eq!(&answer, &expected, "step {} of {:?}", at, steps);
        if answer.is_some_and(|answer| answer.level >= Level::Block) {
            continue;
        }
        let unknown = tool == "ghost" && step.result == 0;
        let text = if unknown { "unknown tool ghost".to_owned() } else { format!("result {}", step.result) };
        let record = Record {
            run: step.run,
            tool: tool.to_owned(),
            signature,
            id: facts.call_id.to_string(),
            result: None,
            unknown: None,
        };
        slow.records.push(record.clone());
        slow.trim(rolling.history_size);
        let finished = Record {
            result: Some(format!("{unknown}{text}")),
            unknown: unknown.then(|| "ghost".to_owned()),
            ..record
        };
        let result = json!({"text": text, "error": unknown});
        match step.delay {
            0 => finish(&mut fast, &mut slow, &facts, &result, finished, rolling.history_size),
            1 => {}
            n => late.entry(at + usize::from(n)).or_default().push((facts, result, finished)),
        }
    }
    Ok(())
}

fn finish(
    fast: &mut LoopDetection,
    slow: &mut Slow,
    facts: &CallFacts,
    result: &Value,
    record: Record,
    size: u32,
) {
    let text = result["text"].as_str();
    let recorded = if result["error"] == true {
        Recorded { message: text, ..Recorded::default() }
    } else {
        Recorded { result: Some(&result["text"]), ..Recorded::default() }
    };
    let outcome = recorded.outcome(facts, &Value::Null).expect("there is an outcome");
    fast.after_call(facts, &outcome);
    slow.outcome(record, size);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn classic_agrees_with_a_slow_and_obvious_implementation(steps in steps(), block in config()) {
        check(&steps, &block)?;
    }
}
