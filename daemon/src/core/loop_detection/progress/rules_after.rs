//! What the rules say after an outcome: warnings and notes.

use super::super::config::{Rules, Steps};
use super::super::decision::{Detector, Level};
use super::super::digest::Fingerprint;
use super::super::facts::{CallFacts, Malformed};
use super::super::outcome::{Ended, Outcome};
use super::errors::{FRESH_ENDS, Series};
use super::series::{Calls, Streak};
use super::{Check, Finding, ProgressState, Repeat};

/// New things between two equal errors that show that something else was tried.
const LOOKED_AROUND: u32 = 2;

/// If every one of the calls without news failed, it takes so many fewer of them.
const ALL_FAILED: u32 = 2;

/// Collects findings; only the first one that is due is shown, since they are about the same call.
struct Findings<'a> {
    out: &'a mut Vec<Finding>,
    shown: bool,
}

impl Findings<'_> {
    fn warn(
        &mut self,
        detector: Detector,
        steps: Steps,
        count: u32,
        key: Fingerprint,
        calls: Calls,
        extra: u32,
    ) {
        let Some(warn) = steps.warn.filter(|warn| count >= *warn) else { return };
        // At the threshold, at its doublings, and when the next one will not be run any more.
        let due =
            (count.is_multiple_of(warn) && (count / warn).is_power_of_two()) || steps.block == Some(count);
        let level = match detector {
            Detector::ConsecutiveFailures | Detector::EditFrequency => Level::Note,
            _ => Level::Warning,
        };
        let emitted = due && (level == Level::Note || !self.shown);
        self.shown |= due && level == Level::Warning;
        self.out.push(Finding { detector, level, count, emitted, key, calls, extra, block_at: steps.block });
    }
}

impl ProgressState {
    /// Takes the outcome of a call in and says what it means.
    pub(crate) fn after(
        &mut self,
        facts: &CallFacts,
        outcome: &Outcome,
        ordinal: u32,
        rules: &Rules,
        out: &mut Vec<Finding>,
    ) {
        if self.unanswered.subject == facts.key {
            self.unanswered.end();
        }
        if outcome.ended == Ended::NotCounted {
            return;
        }
        let failed = outcome.failed();
        let pair = facts.key.with(outcome.digest);
        let seen = self.known.get_mut(pair).copied();
        self.known.insert(pair, self.compactions);
        let known = seen.is_some();
        let fresh = !failed && !known;
        if fresh && facts.changes {
            // Doing the same thing again with the same answer is no change.
            self.epoch = self.epoch.wrapping_add(1);
        }
        self.novel = self.novel.wrapping_add(u32::from(!known));
        let mut findings = Findings { out, shown: false };
        let unusable = self.malformed_and_unknown(facts, outcome, known, ordinal, rules, &mut findings);
        let repeat = self.repeat(facts, outcome, ordinal, rules, &mut findings);
        self.cycles.add(facts.key, pair, ordinal);
        if let Some(cycle) = rules.cycle.warn.and_then(|warn| self.cycles.going(warn)) {
            findings.warn(Detector::Cycle, rules.cycle, cycle.laps, cycle.key, cycle.calls, cycle.period);
        }
        if !facts.poll {
            self.no_news(facts, failed, seen == Some(self.compactions), ordinal, rules, &mut findings);
        }
        if fresh {
            self.fresh = self.fresh.wrapping_add(1);
            self.errors.fresh(facts.tool_key);
        }
        if failed {
            self.check(facts, outcome, ordinal, rules, &mut findings);
            // A check that is run again is no new attempt: other rules count it. Nor is a call that could not be used.
            let again = facts.check && !outcome.broken && repeat != Repeated::New;
            if !again && !unusable {
                self.error(facts, outcome, ordinal, rules, &mut findings);
            }
        } else {
            self.files_edited(facts, outcome, ordinal, rules, &mut findings);
        }
        self.rewrite(facts, failed, ordinal, rules, &mut findings);
        if failed && !facts.failure_expected && !facts.check {
            self.failures.add(subject(facts), ordinal);
            let Streak { count, calls, .. } = self.failures;
            findings.warn(
                Detector::ConsecutiveFailures,
                rules.consecutive_failures,
                count,
                facts.tool_key,
                calls,
                0,
            );
        } else {
            self.failures.end();
        }
    }

    fn no_news(
        &mut self,
        facts: &CallFacts,
        failed: bool,
        seen: bool,
        ordinal: u32,
        rules: &Rules,
        findings: &mut Findings<'_>,
    ) {
        if !seen {
            self.stale.end();
            return;
        }
        self.stale.add(subject(facts), ordinal);
        let Streak { count, calls, subject, .. } = self.stale;
        self.stale_failures = u32::from(failed) + if count == 1 { 0 } else { self.stale_failures };
        let mut steps = rules.no_news;
        if self.stale_failures == count {
            steps.warn = steps.warn.map(|warn| warn.saturating_sub(ALL_FAILED).max(1));
        }
        findings.warn(Detector::NoNews, steps, count, subject, calls, 0);
    }

    /// Says whether the call could not be used at all: then no other rule about errors counts it.
    fn malformed_and_unknown(
        &mut self,
        facts: &CallFacts,
        outcome: &Outcome,
        known: bool,
        ordinal: u32,
        rules: &Rules,
        findings: &mut Findings<'_>,
    ) -> bool {
        let malformed =
            outcome.ended == Ended::InvalidArgs || (outcome.failed() && facts.malformed.is_some());
        if malformed {
            self.malformed.add(subject(facts), ordinal);
            remember(&mut self.malformed_tools, facts.tool_key);
            self.malformed_fresh = 0;
            let Streak { count, calls, .. } = self.malformed;
            findings.warn(
                Detector::MalformedCall,
                malformed_steps(facts, rules),
                count,
                facts.tool_key,
                calls,
                0,
            );
        } else if !outcome.failed() {
            self.malformed_fresh += u32::from(!known);
            if self.malformed_fresh >= FRESH_ENDS {
                self.malformed.end();
            }
        }
        let unknown = outcome.ended == Ended::UnknownTool
            || (outcome.failed() && outcome.unknown_name == Some(facts.classic_tool));
        if unknown {
            // One subject for all names: hopping from one wrong name to the next is no progress.
            self.unknown.add(subject(facts), ordinal);
            remember(&mut self.unknown_tools, facts.tool_key);
            let Streak { count, calls, .. } = self.unknown;
            findings.warn(Detector::UnknownTool, rules.unknown_tool, count, facts.tool_key, calls, 0);
        } else {
            self.unknown.end();
        }
        malformed || unknown
    }

    fn repeat(
        &mut self,
        facts: &CallFacts,
        outcome: &Outcome,
        ordinal: u32,
        rules: &Rules,
        findings: &mut Findings<'_>,
    ) -> Repeated {
        let failed = outcome.failed();
        let new = Repeat {
            result: outcome.digest,
            count: 0,
            failed,
            broken: outcome.broken,
            novel: self.novel,
            apart: false,
            epoch: self.epoch,
            fresh: self.fresh,
            blocked_at: None,
            calls: Calls::default(),
        };
        let repeat = self.repeats.entry(facts.key, || new);
        let unchanged = repeat.goes_on(facts, self.epoch, self.fresh);
        let repeated = match repeat.count {
            0 => Repeated::New,
            _ if repeat.result == outcome.digest => Repeated::Same,
            _ => Repeated::Moved,
        };
        if repeated == Repeated::Moved || !unchanged {
            *repeat = new;
        }
        (repeat.epoch, repeat.fresh) = (self.epoch, self.fresh);
        repeat.count = repeat.count.saturating_add(1);
        repeat.calls.push(ordinal);
        repeat.apart |= self.novel.wrapping_sub(repeat.novel) >= LOOKED_AROUND;
        repeat.novel = self.novel;
        let Repeat { count, calls, apart, .. } = *repeat;
        let (detector, mut steps) = same_call_rule(facts, failed, outcome.broken, rules);
        if detector == Detector::SameResult && apart {
            steps.block = None; // see `blocked_repeat`
        }
        if detector == Detector::SameError && apart {
            // Something else was tried in between: one more is waited for.
            steps.warn = steps.warn.map(|warn| warn.saturating_add(1));
        }
        findings.warn(detector, steps, count, facts.key, calls, 0);
        repeated
    }

    fn error(
        &mut self,
        facts: &CallFacts,
        outcome: &Outcome,
        ordinal: u32,
        rules: &Rules,
        findings: &mut Findings<'_>,
    ) {
        let Some(error) = outcome.error.map(|error| error.with(facts.run.unwrap_or_default())) else {
            return;
        };
        let no_hit = facts.check && outcome.empty;
        if facts.failure_expected || no_hit {
            return;
        }
        let (family, spread) =
            self.errors.failed(facts, error, facts.check && !outcome.broken, ordinal, self.fresh);
        if spread.tool_count >= 2 {
            let Series { count, calls, tool_count, .. } = spread;
            findings.warn(
                Detector::Infrastructure,
                rules.infrastructure,
                count,
                error,
                calls,
                u32::from(tool_count),
            );
        }
        let steps = if family.checks_only { rules.check_family } else { rules.error_family };
        findings.warn(
            Detector::ErrorFamily,
            steps,
            family.count,
            facts.tool_key.with(error),
            family.calls,
            0,
        );
    }

    fn check(
        &mut self,
        facts: &CallFacts,
        outcome: &Outcome,
        ordinal: u32,
        rules: &Rules,
        findings: &mut Findings<'_>,
    ) {
        if !facts.shell && !facts.check {
            return;
        }
        let new = Check {
            result: outcome.digest,
            laps: 1,
            edits: self.edits,
            blocked_at: None,
            calls: Calls::default(),
        };
        let check = self.checks.entry(facts.key, || new);
        if check.result != outcome.digest {
            *check = new;
        }
        if check.edits != self.edits {
            check.laps = check.laps.saturating_add(1);
            check.edits = self.edits;
        }
        check.calls.push(ordinal);
        let Check { laps, calls, .. } = *check;
        findings.warn(Detector::FailingCheck, rules.failing_check, laps, facts.key, calls, 0);
    }

    fn files_edited(
        &mut self,
        facts: &CallFacts,
        outcome: &Outcome,
        ordinal: u32,
        rules: &Rules,
        findings: &mut Findings<'_>,
    ) {
        if facts.restores {
            self.files.restored();
        }
        for (index, edit) in facts.edits.iter().enumerate() {
            self.edits = self.edits.wrapping_add(1);
            let seen =
                outcome.contents.iter().find(|(path, _)| *path == edit.path).map(|(_, content)| *content);
            let (file, flip) = self.files.edited(edit, seen, ordinal);
            let extra = u32::try_from(index).unwrap_or(0);
            if flip {
                findings.warn(
                    Detector::Oscillation,
                    rules.oscillation,
                    file.flips,
                    edit.path,
                    file.calls,
                    extra,
                );
            }
            findings.warn(
                Detector::EditFrequency,
                rules.edit_frequency,
                file.edits,
                edit.path,
                Calls::default(),
                extra,
            );
        }
    }

    fn rewrite(
        &mut self,
        facts: &CallFacts,
        failed: bool,
        ordinal: u32,
        rules: &Rules,
        findings: &mut Findings<'_>,
    ) {
        match facts.edits.first().filter(|_| facts.rewrites) {
            None => self.rewrites.end(),
            Some(_) if failed => {}
            Some(edit) => {
                self.rewrites.add(edit.path, ordinal);
                let Streak { count, calls, .. } = self.rewrites;
                findings.warn(Detector::Rewrite, rules.rewrite, count, edit.path, calls, 0);
            }
        }
    }
}

/// How a call stands to the same call before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeated {
    New,
    Same,
    /// Another result than before.
    Moved,
}

/// Keeps the newest few names.
fn remember(names: &mut [Fingerprint; 4], name: Fingerprint) {
    if !names.contains(&name) {
        names.rotate_right(1);
        names[0] = name;
    }
}

/// What a streak over all tools is about: the run.
fn subject(facts: &CallFacts) -> Fingerprint {
    Fingerprint(1).with(facts.run.unwrap_or_default())
}

/// Which rule a repeated call falls under.
pub(super) const fn same_call_rule(
    facts: &CallFacts,
    failed: bool,
    broken: bool,
    rules: &Rules,
) -> (Detector, Steps) {
    if facts.poll {
        (Detector::PollNoChange, rules.poll_no_change)
    } else if failed && (!facts.check || broken) {
        (Detector::SameError, rules.same_error)
    } else {
        (Detector::SameResult, rules.same_result)
    }
}

/// Messages that no call could be read from are each a new text with the same error.
pub(super) const fn malformed_steps(facts: &CallFacts, rules: &Rules) -> Steps {
    if matches!(facts.malformed, Some(Malformed::NoCall)) { rules.no_call } else { rules.malformed_call }
}
