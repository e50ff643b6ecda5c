//! Counters with the calls that made them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::super::digest::Fingerprint;
use super::super::error_line::cut;

/// Calls that a decision names.
const NAMED: usize = 8;
/// Call ids that are remembered, and how much of each.
const MAX_IDS: usize = 96;
const MAX_ID: usize = 96;

/// The ordinals of the newest calls of a series.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Calls {
    len: u8,
    ordinals: [u32; NAMED],
}

impl Calls {
    pub(crate) fn push(&mut self, ordinal: u32) {
        if usize::from(self.len) == NAMED {
            self.ordinals.copy_within(1.., 0);
            self.ordinals[NAMED - 1] = ordinal;
        } else {
            self.ordinals[usize::from(self.len)] = ordinal;
            self.len += 1;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ordinals[..usize::from(self.len)].iter().copied()
    }
}

/// A counter that starts over.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Streak {
    pub(crate) count: u32,
    /// What is counted; another subject starts over.
    pub(crate) subject: Fingerprint,
    pub(crate) calls: Calls,
}

impl Streak {
    pub(crate) fn add(&mut self, subject: Fingerprint, ordinal: u32) {
        if self.subject != subject {
            *self = Self { subject, ..Self::default() };
        }
        self.count = self.count.saturating_add(1);
        self.calls.push(ordinal);
    }

    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }
}

/// Ids of the newest calls of the session, by ordinal.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CallIds {
    next: u32,
    ids: VecDeque<Box<str>>,
}

impl CallIds {
    /// Gives the next call its ordinal.
    pub(crate) fn add(&mut self, id: &str) -> u32 {
        let id = cut(id, MAX_ID);
        if self.ids.len() == MAX_IDS
            && let Some(mut oldest) = self.ids.pop_front().map(String::from)
        {
            // The text's memory is used again: nothing is allocated once the ring is full.
            oldest.clear();
            oldest.push_str(id);
            self.ids.push_back(oldest.into_boxed_str());
        } else {
            self.ids.push_back(id.into());
        }
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// The ordinal of the newest call with this id, else of the newest call.
    pub(crate) fn ordinal(&self, id: &str) -> u32 {
        let id = cut(id, MAX_ID);
        let back = self.ids.iter().rev().position(|known| **known == *id).unwrap_or(0);
        self.next.wrapping_sub(u32::try_from(back).unwrap_or(0))
    }

    pub(crate) fn names(&self, calls: &Calls) -> Vec<String> {
        let name = |ordinal: u32| {
            let back = usize::try_from(self.next.wrapping_sub(ordinal)).ok()?;
            let index = self.ids.len().checked_sub(back + 1)?;
            self.ids.get(index).map(|id| id.to_string())
        };
        calls.iter().filter_map(name).collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.ids.capacity() * size_of::<Box<str>>() + self.ids.iter().map(|id| id.len()).sum::<usize>()
    }
}
