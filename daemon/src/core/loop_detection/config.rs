//! The configuration that the detectors run with, made from the blocks that people write.
//!
//! A block ([`LoopBlock`]) knows which keys were written. An agent's block is laid over the global one key by key
//! ([`LoopBlock::overlaid`]); [`LoopConfig::resolve`] then fills in the defaults and keeps the thresholds in order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::Fingerprint;

/// Which set of rules runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Runner paths and rolling detectors, as documented elsewhere, to the letter.
    Classic,
    /// Repeats count only when they bring nothing new and nothing was changed in between.
    Progress,
}

/// When a progress rule warns and when it blocks; absent is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Steps {
    /// Warn (or note) after outcome number this.
    pub warn: Option<u32>,
    /// Block the call after outcome number this.
    pub block: Option<u32>,
}

impl Steps {
    pub(crate) const fn at(warn: u32, block: u32) -> Self {
        Self { warn: Some(warn), block: Some(block) }
    }

    const fn warn_only(warn: u32) -> Self {
        Self { warn: Some(warn), block: None }
    }

    pub(crate) fn blocks(self, count: u32) -> bool {
        self.block.is_some_and(|block| count >= block)
    }
}

/// One block of configuration: what was written, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoopBlock {
    /// `enabled`
    pub enabled: Option<bool>,
    /// `strategy`
    pub strategy: Option<Strategy>,
    /// `history_size`
    pub history_size: Option<u32>,
    /// `warning_threshold`
    pub warning_threshold: Option<u32>,
    /// `critical_threshold`
    pub critical_threshold: Option<u32>,
    /// `unknown_tool_threshold`
    pub unknown_tool_threshold: Option<u32>,
    /// `global_circuit_breaker_threshold`
    pub global_circuit_breaker_threshold: Option<u32>,
    /// `detectors.generic_repeat`
    pub generic_repeat: Option<bool>,
    /// `detectors.known_poll_no_progress`
    pub known_poll_no_progress: Option<bool>,
    /// `detectors.ping_pong`
    pub ping_pong: Option<bool>,
    /// `post_compaction_guard.window_size`
    pub window_size: Option<u32>,
    /// `max_edits_per_file`
    pub max_edits_per_file: Option<u32>,
    /// `min_repeat_pattern`
    pub min_repeat_pattern: Option<u32>,
    /// `max_consecutive_failures`
    pub max_consecutive_failures: Option<u32>,
    /// `rules.<name>`
    pub rules: BTreeMap<String, RuleBlock>,
    /// `volatile_keys`
    pub volatile_keys: Option<Vec<String>>,
    /// `cooldown_calls`
    pub cooldown_calls: Option<u32>,
    /// `budget.max_calls`
    pub max_calls: Option<u32>,
    /// `budget.max_time_ms`
    pub max_time_ms: Option<u64>,
}

/// What was written for one rule: 0 is never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleBlock {
    /// `warn`
    pub warn: Option<u32>,
    /// `block`
    pub block: Option<u32>,
}

impl LoopBlock {
    /// This block with `agent` laid over it: a key that the agent wrote wins, key by key.
    #[must_use]
    pub fn overlaid(&self, agent: &Self) -> Self {
        let mut rules = self.rules.clone();
        for (name, over) in &agent.rules {
            let rule = rules.entry(name.clone()).or_default();
            rule.warn = over.warn.or(rule.warn);
            rule.block = over.block.or(rule.block);
        }
        Self {
            enabled: agent.enabled.or(self.enabled),
            strategy: agent.strategy.or(self.strategy),
            history_size: agent.history_size.or(self.history_size),
            warning_threshold: agent.warning_threshold.or(self.warning_threshold),
            critical_threshold: agent.critical_threshold.or(self.critical_threshold),
            unknown_tool_threshold: agent.unknown_tool_threshold.or(self.unknown_tool_threshold),
            global_circuit_breaker_threshold: agent
                .global_circuit_breaker_threshold
                .or(self.global_circuit_breaker_threshold),
            generic_repeat: agent.generic_repeat.or(self.generic_repeat),
            known_poll_no_progress: agent.known_poll_no_progress.or(self.known_poll_no_progress),
            ping_pong: agent.ping_pong.or(self.ping_pong),
            window_size: agent.window_size.or(self.window_size),
            max_edits_per_file: agent.max_edits_per_file.or(self.max_edits_per_file),
            min_repeat_pattern: agent.min_repeat_pattern.or(self.min_repeat_pattern),
            max_consecutive_failures: agent.max_consecutive_failures.or(self.max_consecutive_failures),
            rules,
            volatile_keys: agent.volatile_keys.clone().or_else(|| self.volatile_keys.clone()),
            cooldown_calls: agent.cooldown_calls.or(self.cooldown_calls),
            max_calls: agent.max_calls.or(self.max_calls),
            max_time_ms: agent.max_time_ms.or(self.max_time_ms),
        }
    }
}

/// Limits of the runner paths. In `progress` only those that were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerLimits {
    /// Edits of one file that are fine; the next one warns, the one after it aborts.
    pub max_edits_per_file: Option<u32>,
    /// Identical consecutive calls that warn.
    pub min_repeat_pattern: Option<u32>,
    /// Consecutive failures that warn.
    pub max_consecutive_failures: Option<u32>,
}

/// Settings of the rolling detectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)]
pub struct Rolling {
    /// Whether they run at all.
    pub on: bool,
    /// Calls that are looked at.
    pub history_size: u32,
    /// Warn from here.
    pub warning: u32,
    /// Block from here.
    pub critical: u32,
    /// Block an unknown tool from here.
    pub unknown_tool: u32,
    /// Block any call without progress from here.
    pub global: u32,
    /// Detector `generic_repeat`.
    pub generic_repeat: bool,
    /// Detector `known_poll_no_progress`.
    pub known_poll_no_progress: bool,
    /// Detector `ping_pong`.
    pub ping_pong: bool,
}

/// Steps of every progress rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Same call, same error.
    pub same_error: Steps,
    /// Same call, same result.
    pub same_result: Steps,
    /// New arguments, same error, same tool.
    pub error_family: Steps,
    /// The same for checks: a search without a hit or a failing test is an answer.
    pub check_family: Steps,
    /// The same error from several tools.
    pub infrastructure: Steps,
    /// Laps of a cycle.
    pub cycle: Steps,
    /// Calls in a row that bring nothing that was not seen before.
    pub no_news: Steps,
    /// Edits put in again after they were taken out.
    pub oscillation: Steps,
    /// Laps of edit and same failing check.
    pub failing_check: Steps,
    /// Calls of tools that do not exist.
    pub unknown_tool: Steps,
    /// Malformed or empty calls.
    pub malformed_call: Steps,
    /// Messages of the model that no call could be read from.
    pub no_call: Steps,
    /// Polls without change.
    pub poll_no_change: Steps,
    /// The same call without an outcome.
    pub no_answer: Steps,
    /// Rewrites of one file with nothing in between.
    pub rewrite: Steps,
    /// Failures in a row: level `note`.
    pub consecutive_failures: Steps,
    /// Edits of one file: level `note`.
    pub edit_frequency: Steps,
    /// Blocks in a row: `block` is the number that aborts.
    pub blocks_without_progress: Steps,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            same_error: Steps::at(3, 5),
            same_result: Steps::at(4, 6),
            error_family: Steps::at(4, 5),
            check_family: Steps::at(6, 10),
            infrastructure: Steps::at(4, 6),
            cycle: Steps::at(3, 4),
            no_news: Steps::at(5, 8),
            oscillation: Steps::at(2, 4),
            failing_check: Steps::at(6, 9),
            unknown_tool: Steps::at(3, 5),
            malformed_call: Steps::at(3, 5),
            no_call: Steps::at(5, 6),
            poll_no_change: Steps::at(10, 20),
            no_answer: Steps::at(10, 20),
            rewrite: Steps::warn_only(10),
            consecutive_failures: Steps::warn_only(6),
            edit_frequency: Steps::warn_only(40),
            blocks_without_progress: Steps { warn: None, block: Some(3) },
        }
    }
}

impl Rules {
    /// The steps of the rule that configuration calls `name`.
    pub(crate) fn named(&mut self, name: &str) -> Option<&mut Steps> {
        Some(match name {
            "same_error" => &mut self.same_error,
            "same_result" => &mut self.same_result,
            "error_family" => &mut self.error_family,
            "check_family" => &mut self.check_family,
            "infrastructure" => &mut self.infrastructure,
            "cycle" => &mut self.cycle,
            "no_news" => &mut self.no_news,
            "oscillation" => &mut self.oscillation,
            "failing_check" => &mut self.failing_check,
            "unknown_tool" => &mut self.unknown_tool,
            "malformed_call" => &mut self.malformed_call,
            "no_call" => &mut self.no_call,
            "poll_no_change" => &mut self.poll_no_change,
            "no_answer" => &mut self.no_answer,
            "rewrite" => &mut self.rewrite,
            "consecutive_failures" => &mut self.consecutive_failures,
            "edit_frequency" => &mut self.edit_frequency,
            "blocks_without_progress" => &mut self.blocks_without_progress,
            _ => return None,
        })
    }
}

/// What the detectors run with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopConfig {
    /// False only if `enabled = false` was written: then nothing runs at all.
    pub on: bool,
    /// Which set of rules.
    pub strategy: Strategy,
    /// Runner paths.
    pub runner: RunnerLimits,
    /// Rolling detectors (`classic` only).
    pub rolling: Rolling,
    /// Observations of the guard after a compaction.
    pub guard_window: u32,
    /// Progress rules (`progress` only).
    pub rules: Rules,
    /// Argument keys that say nothing about what is asked for, besides the built-in ones.
    pub volatile_keys: Vec<String>,
    /// Calls after which a blocked key gets one more try.
    pub cooldown_calls: u32,
    /// Budget: calls of a session.
    pub max_calls: Option<u32>,
    /// Budget: time of a session.
    pub max_time_ms: Option<u64>,
    /// Fingerprint of all the above.
    pub version: Fingerprint,
}

impl Default for LoopConfig {
    fn default() -> Self {
        Self::resolve(&LoopBlock::default())
    }
}

impl LoopConfig {
    /// Fills in the defaults and raises thresholds until they are in order: critical above warning, global above critical.
    #[must_use]
    pub fn resolve(block: &LoopBlock) -> Self {
        let on = block.enabled != Some(false);
        let strategy = block.strategy.unwrap_or(Strategy::Progress);
        let warning = block.warning_threshold.unwrap_or(10);
        let critical = block.critical_threshold.unwrap_or(20).max(warning.saturating_add(1));
        let global = block.global_circuit_breaker_threshold.unwrap_or(30).max(critical.saturating_add(1));
        let classic = strategy == Strategy::Classic;
        let runner_default = |written: Option<u32>, default: u32| {
            if written.is_none() && classic { Some(default) } else { written }
        };
        let mut config = Self {
            on,
            strategy,
            runner: RunnerLimits {
                max_edits_per_file: runner_default(block.max_edits_per_file, 20),
                min_repeat_pattern: runner_default(block.min_repeat_pattern, 3),
                max_consecutive_failures: runner_default(block.max_consecutive_failures, 4),
            },
            rolling: Rolling {
                on: classic && block.enabled == Some(true),
                history_size: block.history_size.unwrap_or(30),
                warning,
                critical,
                unknown_tool: block.unknown_tool_threshold.unwrap_or(10),
                global,
                generic_repeat: block.generic_repeat.unwrap_or(true),
                known_poll_no_progress: block.known_poll_no_progress.unwrap_or(true),
                ping_pong: block.ping_pong.unwrap_or(true),
            },
            guard_window: block.window_size.unwrap_or(3),
            rules: resolve_rules(block),
            volatile_keys: block.volatile_keys.clone().unwrap_or_default(),
            cooldown_calls: block.cooldown_calls.unwrap_or(10),
            max_calls: block.max_calls,
            max_time_ms: block.max_time_ms,
            version: Fingerprint::default(),
        };
        config.version = Fingerprint::of(&format!("{config:?}"));
        config
    }
}

/// The keys that people have for the rolling detectors keep their meaning where a progress rule stands in their place:
/// `warning_threshold` and `critical_threshold` set the counts of the same-call rules, `unknown_tool_threshold` the block
/// of unknown tools, `detectors` switch rules off. `rules.<name>` wins over them.
fn resolve_rules(block: &LoopBlock) -> Rules {
    let mut rules = Rules::default();
    for steps in [&mut rules.same_error, &mut rules.same_result] {
        if let Some(warning) = block.warning_threshold {
            *steps = Steps::at(warning, warning.saturating_add(2));
        }
        if let Some(critical) = block.critical_threshold {
            let warn = match block.warning_threshold {
                Some(warning) => warning,
                None => steps.warn.unwrap_or(critical).min(critical.saturating_sub(1)).max(1),
            };
            *steps = Steps::at(warn, critical.max(warn.saturating_add(1)));
        }
    }
    if let Some(limit) = block.unknown_tool_threshold {
        rules.unknown_tool = Steps::at(limit.saturating_sub(1).clamp(1, 3), limit);
    }
    if block.generic_repeat == Some(false) {
        rules.same_error = Steps::default();
        rules.same_result = Steps::default();
    }
    if block.known_poll_no_progress == Some(false) {
        rules.poll_no_change = Steps::default();
    }
    if block.ping_pong == Some(false) {
        rules.cycle = Steps::default();
    }
    for (name, written) in &block.rules {
        if let Some(steps) = rules.named(name) {
            let value = |written: u32| (written > 0).then_some(written);
            steps.warn = written.warn.map_or(steps.warn, value);
            steps.block = written.block.map_or(steps.block, value);
            if let (Some(warn), Some(block)) = (steps.warn, steps.block) {
                steps.block = Some(block.max(warn.saturating_add(1)));
            }
        }
    }
    rules
}
