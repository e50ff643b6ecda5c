//! What the rules forbid before a call: blocks, and the end of the run after too many of them.

use super::super::config::{LoopConfig, Rules, Steps};
use super::super::decision::{Detector, Level};
use super::super::digest::Fingerprint;
use super::super::facts::CallFacts;
use super::errors::Series;
use super::rules_after::{malformed_steps, same_call_rule};
use super::series::{Calls, Streak};
use super::{Finding, ProgressState};

/// Whether the call gets another try.
#[derive(Debug, Default)]
struct Trial {
    granted: bool,
}

impl ProgressState {
    /// Judges a call. If something is found, the call is not to be run.
    pub(crate) fn before(
        &mut self,
        facts: &CallFacts,
        ordinal: u32,
        config: &LoopConfig,
        out: &mut Vec<Finding>,
    ) {
        let rules = &config.rules;
        let mut trial = Trial::default();
        let found = self
            .blocked_streaks(facts, rules)
            .or_else(|| self.blocked_repeat(facts, ordinal, config, &mut trial))
            .or_else(|| self.blocked_check(facts, ordinal, config, &mut trial))
            .or_else(|| self.blocked_cycle(facts, rules))
            .or_else(|| self.blocked_stale(facts, rules))
            .or_else(|| self.blocked_edit(facts, rules))
            .or_else(|| self.blocked_family(facts, rules));
        // A call that is on trial after its cool-down runs, whatever another rule has against it.
        let Some(finding) =
            found.or_else(|| self.unanswered(facts, ordinal, rules, out)).filter(|_| !trial.granted)
        else {
            return;
        };
        let key = finding.key;
        out.push(finding);
        let blocks = self.blocked(ordinal);
        if rules.blocks_without_progress.blocks(blocks) {
            let calls = self.blocks.calls;
            out.push(block(Detector::BlocksWithoutProgress, Level::Abort, blocks, key, calls, 0));
        }
    }

    /// Calls whose outcome never arrives leave no result to compare; they are counted when they are made.
    fn unanswered(
        &mut self,
        facts: &CallFacts,
        ordinal: u32,
        rules: &Rules,
        out: &mut Vec<Finding>,
    ) -> Option<Finding> {
        let before = if self.unanswered.subject == facts.key { self.unanswered } else { Streak::default() };
        let Streak { count, calls, .. } = before;
        if rules.no_answer.blocks(count) {
            return Some(block(Detector::NoAnswer, Level::Block, count, facts.key, calls, 0));
        }
        if let Some(warn) = rules.no_answer.warn.filter(|warn| count >= *warn) {
            let mut finding = block(Detector::NoAnswer, Level::Warning, count, facts.key, calls, 0);
            finding.emitted = count == warn;
            finding.block_at = rules.no_answer.block;
            out.push(finding);
        }
        self.unanswered.add(facts.key, ordinal);
        None
    }

    fn blocked_streaks(&self, facts: &CallFacts, rules: &Rules) -> Option<Finding> {
        let streak = |streak: &Streak, steps: Steps, detector| {
            steps
                .blocks(streak.count)
                .then(|| block(detector, Level::Block, streak.count, facts.tool_key, streak.calls, 0))
        };
        // Only calls that are malformed again: a repaired one has to get through.
        let malformed = facts.malformed.filter(|_| self.malformed_tools.contains(&facts.tool_key));
        malformed
            .and_then(|_| streak(&self.malformed, malformed_steps(facts, rules), Detector::MalformedCall))
            .or_else(|| {
                let unknown = self.unknown_tools.contains(&facts.tool_key);
                unknown.then(|| streak(&self.unknown, rules.unknown_tool, Detector::UnknownTool)).flatten()
            })
    }

    fn blocked_repeat(
        &mut self,
        facts: &CallFacts,
        ordinal: u32,
        config: &LoopConfig,
        trial: &mut Trial,
    ) -> Option<Finding> {
        let (epoch, fresh) = (self.epoch, self.fresh);
        let repeat = self.repeats.get_mut(facts.key)?;
        let (detector, steps) = same_call_rule(facts, repeat.failed, repeat.broken, &config.rules);
        // Asking now and then how things stand (`git status` between real work) is worth a word, and no more.
        let now_and_then = detector == Detector::SameResult && repeat.apart;
        if now_and_then || !steps.blocks(repeat.count) || !repeat.goes_on(facts, epoch, fresh) {
            return None;
        }
        if cooled_down(&mut repeat.blocked_at, ordinal, config.cooldown_calls, trial) {
            return None;
        }
        Some(block(detector, Level::Block, repeat.count, facts.key, repeat.calls, 0))
    }

    fn blocked_check(
        &mut self,
        facts: &CallFacts,
        ordinal: u32,
        config: &LoopConfig,
        trial: &mut Trial,
    ) -> Option<Finding> {
        let check = self.checks.get_mut(facts.key)?;
        if !config.rules.failing_check.blocks(check.laps)
            || cooled_down(&mut check.blocked_at, ordinal, config.cooldown_calls, trial)
        {
            return None;
        }
        Some(block(Detector::FailingCheck, Level::Block, check.laps, facts.key, check.calls, 0))
    }

    fn blocked_cycle(&self, facts: &CallFacts, rules: &Rules) -> Option<Finding> {
        let cycle = self.cycles.going(rules.cycle.block?)?;
        let goes_on = self.cycles.goes_on(&cycle, facts.key);
        goes_on
            .then(|| block(Detector::Cycle, Level::Block, cycle.laps, cycle.key, cycle.calls, cycle.period))
    }

    /// Only a call that was made before: a new one has to get through.
    fn blocked_stale(&self, facts: &CallFacts, rules: &Rules) -> Option<Finding> {
        let made_before = !facts.poll && self.repeats.peek(facts.key).is_some();
        let blocks = made_before && rules.no_news.blocks(self.stale.count);
        blocks.then(|| {
            block(Detector::NoNews, Level::Block, self.stale.count, self.stale.subject, self.stale.calls, 0)
        })
    }

    fn blocked_edit(&self, facts: &CallFacts, rules: &Rules) -> Option<Finding> {
        facts.edits.iter().enumerate().find_map(|(index, edit)| {
            let file = self.files.would_flip(edit).filter(|file| rules.oscillation.blocks(file.flips))?;
            let extra = u32::try_from(index).unwrap_or(0);
            Some(block(Detector::Oscillation, Level::Block, file.flips, edit.path, file.calls, extra))
        })
    }

    fn blocked_family(&mut self, facts: &CallFacts, rules: &Rules) -> Option<Finding> {
        let fresh = self.fresh;
        let family = self.errors.of_tool(facts.tool_key)?;
        // A tool that both reads and edits: that its edits fail is no reason to refuse a look.
        let other_use = !facts.shell && family.changes != facts.changes;
        if !family.alive(fresh) || other_use {
            return None;
        }
        let error = family.error;
        let steps = if family.checks_only { rules.check_family } else { rules.error_family };
        let by_tool = family_block(family, steps, Detector::ErrorFamily, facts.tool_key.with(error));
        if by_tool.is_some() {
            return by_tool;
        }
        let probing = family.probing;
        let spread = self.errors.of_error(error)?;
        if probing || spread.tool_count < 2 || !spread.alive(fresh) || !spread.of_tool(facts.tool_key) {
            return None;
        }
        family_block(spread, rules.infrastructure, Detector::Infrastructure, error)
    }
}

/// After a block the next call is let through, to see whether the error is still there.
fn family_block(series: &mut Series, steps: Steps, detector: Detector, key: Fingerprint) -> Option<Finding> {
    if series.probing || !steps.blocks(series.count) {
        return None;
    }
    series.probing = true;
    Some(block(detector, Level::Block, series.count, key, series.calls, u32::from(series.tool_count)))
}

/// A key stays blocked for some calls, then gets one more try.
fn cooled_down(blocked_at: &mut Option<u32>, ordinal: u32, cooldown: u32, trial: &mut Trial) -> bool {
    let since = *blocked_at.get_or_insert(ordinal);
    let over = ordinal.wrapping_sub(since) >= cooldown;
    if over {
        *blocked_at = None;
        trial.granted = true;
    }
    over
}

const fn block(
    detector: Detector,
    level: Level,
    count: u32,
    key: Fingerprint,
    calls: Calls,
    extra: u32,
) -> Finding {
    Finding { detector, level, count, emitted: true, key, calls, extra, block_at: None }
}
