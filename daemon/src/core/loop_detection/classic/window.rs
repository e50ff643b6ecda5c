//! The records of the last `history_size` calls, with every streak kept up to date, so that no question costs a walk.
//!
//! Each record carries what the streaks were when it was the newest of its run; a question reads the newest record and
//! caps the number by what is still in the window. An outcome that arrives for an older record (parallel calls) makes
//! the numbers behind it wrong: they are counted again from there, which costs as many steps as there are newer records.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::super::digest::{Fingerprint, FingerprintMap};

/// A call at admission: what a record is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) run: Fingerprint,
    pub(crate) tool: Fingerprint,
    pub(crate) signature: Fingerprint,
    pub(crate) call_id: Fingerprint,
}

/// What came back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Result {
    pub(crate) hash: Fingerprint,
    pub(crate) unknown_name: Option<Fingerprint>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    run: Fingerprint,
    tool: Fingerprint,
    signature: Fingerprint,
    call_id: Fingerprint,
    hash: Option<Fingerprint>,
    unknown_name: Option<Fingerprint>,
    /// The record before this one in the same run, if it was there.
    previous: Option<u64>,
    /// Newest records that strictly alternate between two signatures, ending here.
    alternating: u32,
    /// Of those, the newest with results that are equal on each side.
    settled: u32,
    /// Contiguous records of one tool that carry one unknown name, ending here.
    unknown: u32,
}

/// All records of one run with one signature.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Group {
    records: u32,
    hashed: u32,
    /// Newest hashed records with the hash of the newest.
    streak: u32,
    newest_hash: Option<Fingerprint>,
    newest_hashed: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Run {
    records: u32,
    newest: u64,
}

/// The window of one session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Window {
    records: VecDeque<Record>,
    /// Number of the oldest record.
    first: u64,
    groups: FingerprintMap<Group>,
    runs: FingerprintMap<Run>,
}

/// Two calls in turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PingPong {
    /// Length, the call under judgement included.
    pub(crate) count: u32,
    /// Both sides bring nothing new.
    pub(crate) settled: bool,
    pub(crate) other: Fingerprint,
}

impl Window {
    fn at(&self, number: u64) -> Option<&Record> {
        self.records.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn at_mut(&mut self, number: u64) -> Option<&mut Record> {
        self.records.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn newest(&self, run: Fingerprint) -> Option<(&Record, u32)> {
        let run = self.runs.get(&run)?;
        Some((self.at(run.newest)?, run.records))
    }

    /// Records with this signature in the window, with or without a result.
    pub(crate) fn recent(&self, call: Call) -> u32 {
        self.groups.get(&group(call.run, call.signature)).map_or(0, |group| group.records)
    }

    /// Newest results of this call that are equal, and the result.
    pub(crate) fn no_progress(&self, call: Call) -> (u32, Option<Fingerprint>) {
        let group = self.groups.get(&group(call.run, call.signature));
        group.map_or((0, None), |group| (group.streak, group.newest_hash))
    }

    /// Newest records of the run that are this tool, all saying that one name is unknown; and the name.
    pub(crate) fn unknown_tool(&self, call: Call) -> (u32, Option<Fingerprint>) {
        match self.newest(call.run) {
            Some((newest, records)) if newest.tool == call.tool => {
                (newest.unknown.min(records), newest.unknown_name)
            }
            _ => (0, None),
        }
    }

    /// Whether this call goes on with an alternation.
    pub(crate) fn ping_pong(&self, call: Call) -> Option<PingPong> {
        let (newest, records) = self.newest(call.run)?;
        let alternating = newest.alternating.min(records);
        if alternating < 2 {
            return None;
        }
        let other = self.at(newest.previous?)?.signature;
        (other == call.signature).then(|| PingPong {
            count: alternating + 1,
            settled: newest.settled >= alternating,
            other: newest.signature,
        })
    }

    /// The call was admitted.
    pub(crate) fn admit(&mut self, call: Call, size: u32) {
        self.append(call, None, size);
    }

    /// The outcome of a call: goes to the newest record that still waits for it, else makes a record of its own.
    pub(crate) fn outcome(&mut self, call: Call, result: Result, size: u32) {
        let waits = self
            .groups
            .get(&group(call.run, call.signature))
            .is_some_and(|group| group.hashed < group.records);
        let found = if waits {
            self.records.iter().rposition(|r| {
                r.hash.is_none()
                    && r.run == call.run
                    && r.call_id == call.call_id
                    && r.tool == call.tool
                    && r.signature == call.signature
            })
        } else {
            None
        };
        match found {
            None => self.append(call, Some(result), size),
            Some(index) => {
                let number = self.first + index as u64;
                let record = &mut self.records[index];
                record.hash = Some(result.hash);
                record.unknown_name = result.unknown_name;
                self.hashed(call, result.hash, number);
                self.count_from(number, call.run);
            }
        }
    }

    fn append(&mut self, call: Call, result: Option<Result>, size: u32) {
        let number = self.first + self.records.len() as u64;
        let run = self.runs.entry(call.run).or_default();
        let previous = (run.records > 0).then_some(run.newest);
        run.records += 1;
        run.newest = number;
        self.groups.entry(group(call.run, call.signature)).or_default().records += 1;
        self.records.push_back(Record {
            run: call.run,
            tool: call.tool,
            signature: call.signature,
            call_id: call.call_id,
            hash: result.map(|r| r.hash),
            unknown_name: result.and_then(|r| r.unknown_name),
            previous,
            alternating: 0,
            settled: 0,
            unknown: 0,
        });
        if let Some(result) = result {
            self.hashed(call, result.hash, number);
        }
        self.count_at(number);
        while self.records.len() > size as usize {
            self.evict();
        }
    }

    /// A record of this group has got its hash.
    fn hashed(&mut self, call: Call, hash: Fingerprint, number: u64) {
        let Some(group) = self.groups.get_mut(&group(call.run, call.signature)) else { return };
        group.hashed += 1;
        if group.hashed == 1 || number > group.newest_hashed {
            group.streak = if group.newest_hash == Some(hash) { group.streak + 1 } else { 1 };
            group.newest_hash = Some(hash);
            group.newest_hashed = number;
            return;
        }
        // An older record of the group: walk, since the streak may now be interrupted or longer.
        let newest_hash = group.newest_hash;
        let mine = self.records.iter().rev().filter(|r| r.run == call.run && r.signature == call.signature);
        let streak = mine.filter_map(|r| r.hash).take_while(|hash| Some(*hash) == newest_hash).count();
        group.streak = u32::try_from(streak).unwrap_or(u32::MAX);
    }

    /// Counts anew from this record to the newest of its run.
    fn count_from(&mut self, number: u64, run: Fingerprint) {
        let end = self.first + self.records.len() as u64;
        for number in number..end {
            if self.at(number).is_some_and(|r| r.run == run) {
                self.count_at(number);
            }
        }
    }

    fn count_at(&mut self, number: u64) {
        let Some(record) = self.at(number) else { return };
        let before = record.previous.and_then(|number| self.at(number));
        let two_before = before.and_then(|before| before.previous).and_then(|number| self.at(number));
        let turns = before.is_some_and(|before| before.signature != record.signature);
        let (mut alternating, mut settled) = (1, u32::from(record.hash.is_some()));
        if let Some(before) = before.filter(|_| turns) {
            let goes_on = two_before.filter(|two| two.signature == record.signature);
            alternating = if goes_on.is_some() { before.alternating + 1 } else { 2 };
            settled = match record.hash {
                None => 0,
                Some(hash) => match goes_on {
                    Some(two) if two.hash == Some(hash) => before.settled + 1,
                    _ => 1 + u32::from(before.hash.is_some()),
                },
            };
        }
        let unknown = match record.unknown_name {
            None => 0,
            Some(name) => match before {
                Some(before) if before.tool == record.tool && before.unknown_name == Some(name) => {
                    before.unknown + 1
                }
                _ => 1,
            },
        };
        if let Some(record) = self.at_mut(number) {
            (record.alternating, record.settled, record.unknown) = (alternating, settled, unknown);
        }
    }

    fn evict(&mut self) {
        let Some(gone) = self.records.pop_front() else { return };
        self.first += 1;
        let key = group(gone.run, gone.signature);
        if let Some(group) = self.groups.get_mut(&key) {
            group.records -= 1;
            if gone.hash.is_some() {
                group.hashed -= 1;
                group.streak = group.streak.min(group.hashed);
                if group.hashed == 0 {
                    group.newest_hash = None;
                }
            }
            if group.records == 0 {
                self.groups.remove(&key);
            }
        }
        if let Some(run) = self.runs.get_mut(&gone.run) {
            run.records -= 1;
            if run.records == 0 {
                self.runs.remove(&gone.run);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
            + self.groups.capacity() * (size_of::<(Fingerprint, Group)>() + 2)
            + self.runs.capacity() * (size_of::<(Fingerprint, Run)>() + 2)
    }
}

const fn group(run: Fingerprint, signature: Fingerprint) -> Fingerprint {
    run.with(signature)
}
