//! A map that forgets: at most `cap` entries, roughly the least recently used go first, at constant cost.
//!
//! Two generations: entries are written to the young one and move there when they are used; when it is full it becomes
//! the old one, and what the old one still held is forgotten.

use serde::{Deserialize, Serialize};

use super::digest::{Fingerprint, FingerprintMap};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recent<V> {
    young: FingerprintMap<V>,
    old: FingerprintMap<V>,
    half: usize,
}

impl<V> Recent<V> {
    pub(crate) fn new(cap: usize) -> Self {
        Self {
            young: FingerprintMap::default(),
            old: FingerprintMap::default(),
            half: cap.div_ceil(2).max(1),
        }
    }

    /// Looks without counting it as a use.
    pub(crate) fn peek(&self, key: Fingerprint) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    pub(crate) fn get_mut(&mut self, key: Fingerprint) -> Option<&mut V> {
        if !self.young.contains_key(&key) {
            let value = self.old.remove(&key)?;
            self.insert(key, value);
        }
        self.young.get_mut(&key)
    }

    pub(crate) fn insert(&mut self, key: Fingerprint, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            // Swap, so that both tables are used again and nothing is allocated once they have grown.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub(crate) fn entry(&mut self, key: Fingerprint, new: impl FnOnce() -> V) -> &mut V {
        if self.peek(key).is_none() {
            self.insert(key, new());
        }
        match self.get_mut(key) {
            Some(value) => value,
            None => unreachable!("the entry was inserted above"),
        }
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.young.values_mut().chain(self.old.values_mut())
    }

    /// Bytes taken, tables included, as an upper estimate.
    pub(crate) fn bytes(&self) -> usize {
        (self.young.capacity() + self.old.capacity()) * (size_of::<(Fingerprint, V)>() + 2)
    }
}
