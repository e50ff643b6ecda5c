//! The rolling detectors in their fixed order. The first that answers is the answer.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::super::config::Rolling;
use super::super::decision::{Detector, Level};
use super::super::digest::{Fingerprint, FingerprintMap};
use super::super::facts::CallFacts;
use super::super::outcome::Outcome;
use super::window::{Call, PingPong, Result, Window};

/// Warning keys that are remembered, oldest inserted forgotten first.
const MAX_KEYS: usize = 256;

/// What the detectors say before a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finding {
    pub(crate) detector: Detector,
    pub(crate) level: Level,
    pub(crate) count: u32,
    pub(crate) emitted: bool,
    pub(crate) key: Fingerprint,
}

/// State of one session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RollingState {
    window: Window,
    buckets: FingerprintMap<u32>,
    inserted: VecDeque<Fingerprint>,
}

fn call(facts: &CallFacts) -> Call {
    Call {
        run: facts.run.unwrap_or_default(),
        tool: facts.classic_tool,
        signature: facts.signature,
        call_id: Fingerprint::of(&facts.call_id),
    }
}

impl RollingState {
    /// Judges a call against the calls before it; a call that is not blocked is recorded.
    pub(crate) fn before(&mut self, facts: &CallFacts, config: &Rolling, detect: bool) -> Option<Finding> {
        let call = call(facts);
        let finding = if detect { self.judge(call, facts.classic_poll, config) } else { None };
        if finding.is_none_or(|finding| finding.level < Level::Block) {
            self.window.admit(call, config.history_size);
        }
        finding
    }

    pub(crate) fn after(&mut self, facts: &CallFacts, outcome: &Outcome, config: &Rolling) {
        if let Some(hash) = outcome.classic {
            let result = Result { hash, unknown_name: outcome.unknown_name };
            self.window.outcome(call(facts), result, config.history_size);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.window.clear();
        self.buckets.clear();
        self.inserted.clear();
    }

    fn judge(&mut self, call: Call, poll: bool, config: &Rolling) -> Option<Finding> {
        let window = &self.window;
        let (unknown, name) = window.unknown_tool(call);
        if unknown >= config.unknown_tool {
            let key = call.tool.with(name.unwrap_or_default());
            return Some(critical(Detector::UnknownToolRepeat, unknown, key));
        }
        let (streak, hash) = window.no_progress(call);
        let result_key = |kind: u64| Fingerprint(kind).with(call.signature).with(hash.unwrap_or_default());
        if streak >= config.global {
            return Some(critical(Detector::GlobalCircuitBreaker, streak, result_key(1)));
        }
        if poll && config.known_poll_no_progress {
            if streak >= config.critical {
                return Some(critical(Detector::KnownPollNoProgress, streak, result_key(2)));
            }
            if streak >= config.warning {
                return Some(self.warning(call.run, Detector::KnownPollNoProgress, streak, result_key(2)));
            }
        }
        if let Some(PingPong { count, settled, other }) = window.ping_pong(call).filter(|_| config.ping_pong)
        {
            let (a, b) = (call.signature.min(other), call.signature.max(other));
            let key = Fingerprint(3).with(a).with(b);
            if count >= config.critical && settled {
                return Some(critical(Detector::PingPong, count, key));
            }
            if count >= config.warning {
                return Some(self.warning(call.run, Detector::PingPong, count, key));
            }
        }
        if !poll && config.generic_repeat {
            if streak >= config.critical {
                return Some(critical(Detector::GenericRepeat, streak, result_key(4)));
            }
            let recent = window.recent(call);
            if recent >= config.warning {
                return Some(self.warning(
                    call.run,
                    Detector::GenericRepeat,
                    recent,
                    Fingerprint(4).with(call.signature),
                ));
            }
        }
        None
    }

    /// A warning is shown when its count reaches a higher ten than the last one shown under this key.
    fn warning(&mut self, run: Fingerprint, detector: Detector, count: u32, key: Fingerprint) -> Finding {
        let scoped = key.with(run);
        let bucket = count / 10;
        let emitted = bucket > self.buckets.get(&scoped).copied().unwrap_or(0);
        if emitted {
            if self.buckets.insert(scoped, bucket).is_none() {
                self.inserted.push_back(scoped);
            }
            if self.inserted.len() > MAX_KEYS
                && let Some(oldest) = self.inserted.pop_front()
            {
                self.buckets.remove(&oldest);
            }
        }
        Finding { detector, level: Level::Warning, count, emitted, key }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.window.bytes() + self.buckets.capacity() * 18 + self.inserted.capacity() * 8
    }
}

const fn critical(detector: Detector, count: u32, key: Fingerprint) -> Finding {
    Finding { detector, level: Level::Block, count, emitted: true, key }
}
