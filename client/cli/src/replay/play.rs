//! Plays one recorded run through the detectors.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use toolcell_daemon::core::loop_detection::{
    CallFacts, Decisions, Fingerprint, Level, LoopBlock, LoopConfig, LoopDetection, Reading, Recorded,
    ToolTraits,
};

use super::record::{Item, Run};

/// Before the call ran, or after its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before.
    Before,
    /// After.
    After,
}

/// One decision and where it fell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Said {
    /// Index over calls, from 0.
    pub at: usize,
    /// Before or after that call.
    pub phase: Phase,
    /// Who decided.
    pub detector: &'static str,
    /// What follows.
    pub level: Level,
    /// How often it was seen.
    pub count: u32,
    /// Whether it is shown.
    pub emitted: bool,
    /// The text.
    pub message: String,
}

/// The configuration of a run: its own block if it has one, laid over `base`.
#[must_use]
pub fn config_of(run: &Run, base: &LoopBlock) -> LoopConfig {
    let lenient = |value: &Value| LoopBlock::parse(value, Reading::Lenient).unwrap_or_default();
    let Some(written) = &run.config else { return LoopConfig::resolve(base) };
    let (global, agent) = (written.get("global"), written.get("agent"));
    let mut block = if global.is_some() || agent.is_some() {
        let part = |part: Option<&Value>| part.map(lenient).unwrap_or_default();
        part(global).overlaid(&part(agent))
    } else {
        lenient(written)
    };
    // `strategy` may also stand beside the two blocks.
    block.strategy = block.strategy.or_else(|| lenient(written).strategy);
    LoopConfig::resolve(&base.overlaid(&block))
}

/// All that was said in a run. A blocked call's outcome is not used; it goes on after an abort.
#[must_use]
pub fn play(run: &Run, config: Arc<LoopConfig>) -> Vec<Said> {
    let traits: Vec<(&str, ToolTraits)> =
        run.tools.iter().map(|(name, tool)| (name.as_str(), tool.traits())).collect();
    let undeclared = ToolTraits::default();
    let volatile = config.volatile_keys.clone();
    let mut detection = LoopDetection::new(config);
    let mut current: Option<Fingerprint> = None;
    let mut said = Vec::new();
    let mut at = 0;
    for item in &run.calls {
        if let Some(event) = &item.event {
            match event.as_str() {
                "compaction" => detection.note_compaction_of(item.run.as_ref().map_or(current, run_of)),
                "user_turn" => detection.note_user_turn(),
                "new_run" => current = item.run.as_ref().and_then(run_of),
                _ => {}
            }
            continue;
        }
        let index;
        let id = match &item.call_id {
            Some(id) => id.as_str(),
            None => {
                index = at.to_string();
                &index
            }
        };
        let declared =
            traits.iter().find(|(name, _)| *name == item.tool).map_or(&undeclared, |(_, traits)| traits);
        let facts = CallFacts::new(id, &item.tool, &item.args, declared, &volatile, None)
            .in_run(item.run.as_ref().map_or(current, run_of));
        let before = detection.before_call(&facts);
        let refused = before.refusal().is_some();
        record(&mut said, at, Phase::Before, before);
        if !refused
            && !item.pending
            && let Some(outcome) = recorded(item).outcome(&facts, &item.args)
        {
            record(&mut said, at, Phase::After, detection.after_call(&facts, &outcome));
        }
        at += 1;
    }
    said
}

fn run_of(run: &Value) -> Option<Fingerprint> {
    run.as_str().map(Fingerprint::of)
}

fn record(said: &mut Vec<Said>, at: usize, phase: Phase, decisions: Decisions) {
    said.extend(decisions.0.into_iter().map(|decision| Said {
        at,
        phase,
        detector: decision.detector.name(),
        level: decision.level,
        count: decision.count,
        emitted: decision.emitted,
        message: decision.message,
    }));
}

fn recorded(item: &Item) -> Recorded<'_> {
    let (failed, message) = match &item.error {
        Some(Value::Bool(failed)) => (Some(*failed), None),
        Some(Value::String(message)) => (Some(true), Some(message.as_str())),
        None | Some(Value::Null) => (None, None),
        Some(_) => (Some(true), None),
    };
    Recorded {
        result: item.result.as_ref(),
        failed,
        message,
        exit: item.exit.as_ref().and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok()),
        raw_sha: item.result_sha.as_deref(),
        masked_sha: item.result_norm_sha.as_deref(),
    }
}
