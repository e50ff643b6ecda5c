//! Loops planted into good runs: twelve kinds of loop that must be found, six kinds of honest repetition that must not.
//!
//! Everything is deterministic: the same runs give the same figures.

use serde::Serialize;
use serde_json::{Value, json};
use toolcell_daemon::core::loop_detection::{Level, LoopBlock};

use super::labels::{Share, fired_from, first};
use super::play::{config_of, play};
use super::record::{Item, Run};

/// Calls of a planted loop.
const LENGTH: usize = 24;
/// Runs that loops are planted into.
const RUNS: usize = 40;

/// Kinds of loop.
pub const LOOPS: &[&str] = &[
    "exact",
    "exact_volatile_result",
    "volatile_args",
    "key_order",
    "period2",
    "period3",
    "interleaved",
    "same_error_new_args",
    "poll_no_change",
    "edit_flip",
    "edit_churn",
    "unknown_tool",
];
/// Kinds of honest repetition.
pub const HONEST: &[&str] =
    &["poll_progress", "test_fix_cycle", "batch_edit_one_file", "paging", "same_ok_ack", "grep_misses"];

/// How one kind fared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlantedRow {
    /// The kind.
    pub kind: &'static str,
    /// Whether it should be found.
    pub is_loop: bool,
    /// Runs with a warning inside the planted part.
    pub warning: Share,
    /// Calls until that warning, median.
    pub warning_after: Option<usize>,
    /// Runs with a block inside it.
    pub block: Share,
}

/// Whether loops can be planted into a run.
#[must_use]
pub fn fits(run: &Run) -> bool {
    let calls = run.calls.iter().filter(|item| item.event.is_none()).count();
    run.outcome.as_deref() == Some("resolved") && (12..=120).contains(&calls) && calls == run.calls.len()
}

/// Plants every kind into the quiet runs of the pool and measures.
#[must_use]
pub fn measure(pool: &[Run], base: &LoopBlock) -> Vec<PlantedRow> {
    let mut order: Vec<(u64, &Run)> = pool.iter().map(|run| (mix(&run.run_id, 0), run)).collect();
    order.sort_by_key(|(hash, _)| *hash);
    // A run in which something is found as it is would hide what is found in the planted part.
    let quiet = |run: &Run| first(&play(run, config_of(run, base).into()), Level::Warning).is_none();
    let pool: Vec<&Run> = order.into_iter().map(|(_, run)| run).filter(|run| quiet(run)).take(RUNS).collect();
    let kinds = LOOPS.iter().map(|kind| (*kind, true)).chain(HONEST.iter().map(|kind| (*kind, false)));
    kinds
        .map(|(kind, is_loop)| {
            let mut row = PlantedRow {
                kind,
                is_loop,
                warning: Share::default(),
                warning_after: None,
                block: Share::default(),
            };
            let mut after = Vec::new();
            for run in &pool {
                let (planted, onset) = plant(run, kind);
                let said = play(&planted, config_of(&planted, base).into());
                let warned = fired_from(&said, Level::Warning, onset);
                after.extend(warned.map(|at| at - onset + 1));
                row.warning.add(warned.is_some());
                row.block.add(fired_from(&said, Level::Block, onset).is_some());
            }
            after.sort_unstable();
            row.warning_after = after.get(after.len() / 2).copied();
            row
        })
        .collect()
}

/// A number that depends on the name and nothing else.
fn mix(name: &str, salt: u64) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325 ^ salt, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    }) >> 8
}

fn plant(run: &Run, kind: &'static str) -> (Run, usize) {
    let calls = &run.calls;
    let third = calls.len() / 3;
    let onset = third + usize::try_from(mix(&run.run_id, mix(kind, 1))).unwrap_or(0) % third.max(1);
    let mut out = Run { calls: calls[..onset].to_vec(), ..run.clone() };
    let before = |back: usize| calls[onset.saturating_sub(back)].clone();
    let base = calls[onset].clone();
    let mut other = before(1);
    if other.tool == base.tool && other.args == base.args {
        other = before(2);
    }
    let context = Context { base, other, third: before(3) };
    out.calls.extend((0..LENGTH).map(|i| context.call(kind, i)));
    (out, onset)
}

struct Context {
    base: Item,
    other: Item,
    third: Item,
}

fn call(tool: &str, args: Value, result: String, failed: bool) -> Item {
    Item {
        tool: tool.to_owned(),
        args,
        result: Some(result.into()),
        error: Some(failed.into()),
        ..Item::default()
    }
}

const EDIT: &str = "str_replace_based_edit_tool";

impl Context {
    fn with_text(&self, text: String) -> Item {
        Item { result: Some(text.into()), result_sha: None, result_norm_sha: None, ..self.base.clone() }
    }

    fn with_args(&self, change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Item {
        let mut item = self.base.clone();
        if let Value::Object(map) = &mut item.args {
            change(map);
        }
        item
    }

    fn call(&self, kind: &str, i: usize) -> Item {
        match kind {
            "exact" => self.base.clone(),
            "exact_volatile_result" => {
                let text = self.base.result.as_ref().and_then(Value::as_str).unwrap_or_default();
                self.with_text(format!("[12:00:{i:02}] {text} done in 0.{i:03}s"))
            }
            "volatile_args" => self.with_args(|map| {
                map.insert("timestamp".to_owned(), format!("2026-01-01T00:00:{i:02}Z").into());
            }),
            "key_order" => self.with_args(|map| {
                // JSON objects have no order here; the other spelling of a number stands for it.
                map.insert("limit".to_owned(), if i.is_multiple_of(2) { json!(1) } else { json!(1.0) });
            }),
            "period2" => [&self.base, &self.other][i % 2].clone(),
            "period3" => [&self.base, &self.other, &self.third][i % 3].clone(),
            "interleaved" if i.is_multiple_of(2) => self.base.clone(),
            "interleaved" => call(
                "bash",
                json!({"command": format!("cat notes_{i}.txt")}),
                format!("note {}", mix("n", i as u64)),
                false,
            ),
            "same_error_new_args" => {
                let mut item = self.with_args(|map| {
                    for value in map.values_mut() {
                        if let Value::String(text) = value {
                            *text = format!("{text} --try{i}");
                        }
                    }
                    map.insert("attempt_name".to_owned(), format!("v{i}").into());
                });
                item.result = Some("Error: 401 Unauthorized: token expired".into());
                (item.result_sha, item.result_norm_sha, item.error, item.exit) =
                    (None, None, Some(true.into()), Some(1.into()));
                item
            }
            "poll_no_change" => call(
                "process",
                json!({"action": "poll", "id": "7"}),
                "status: running, no new output".to_owned(),
                false,
            ),
            "poll_progress" => call(
                "process",
                json!({"action": "poll", "id": "7"}),
                format!("epoch {i}/24 loss {:.4}", 1.0 / (i as f64 + 1.0)),
                false,
            ),
            "edit_flip" => {
                let (a, b) = if i.is_multiple_of(2) {
                    ("retries = 5", "retries = 3")
                } else {
                    ("retries = 3", "retries = 5")
                };
                edit("/app/config.py", a, b)
            }
            "edit_churn" if i.is_multiple_of(2) => {
                edit("/app/solver.py", &format!("x = {i}"), &format!("x = {}", i + 2))
            }
            "edit_churn" => {
                let text =
                    "FAILED tests/test_solver.py::test_a - assert 0 == 1\n1 failed in 0.12s".to_owned();
                call("bash", json!({"command": "pytest -q tests/test_solver.py"}), text, true)
            }
            "unknown_tool" => call(
                "reed_file",
                json!({"path": format!("src/{i}.py")}),
                "Error: unknown tool 'reed_file'".to_owned(),
                true,
            ),
            "test_fix_cycle" if i.is_multiple_of(2) => {
                edit(&format!("/app/m{i}.py"), &format!("a{i}"), &format!("b{i}"))
            }
            "test_fix_cycle" => {
                let left = 12 - i / 2;
                call(
                    "bash",
                    json!({"command": "cargo test"}),
                    format!("{} passed, {left} failed: case_{i}", i / 2),
                    left > 0,
                )
            }
            "batch_edit_one_file" => {
                edit("/app/big.py", &format!("def f{i}():"), &format!("def f{i}() -> None:"))
            }
            "paging" => {
                let args = json!({"command": "view", "path": "/app/big.py", "view_range": [i * 100 + 1, i * 100 + 100]});
                call(EDIT, args, format!("lines {}.. {}", i * 100 + 1, mix("page", i as u64)), false)
            }
            "same_ok_ack" => {
                call("create_item", json!({"title": format!("Item {i}")}), "ok".to_owned(), false)
            }
            _ => {
                let hit =
                    if i.is_multiple_of(3) { format!("src/a{i}.py:{i}: symbol_{i}") } else { String::new() };
                call("bash", json!({"command": format!("grep -rn symbol_{i} src | head")}), hit, false)
            }
        }
    }
}

fn edit(path: &str, old: &str, new: &str) -> Item {
    let args = json!({"command": "str_replace", "path": path, "old_str": old, "new_str": new});
    call(EDIT, args, format!("The file {path} has been edited. {new}"), false)
}
