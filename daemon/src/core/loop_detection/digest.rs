//! Fingerprints: 64-bit digests that stand for arguments, results, error lines and file contents.
//!
//! XXH3 is fixed by a specification, so a stored state stays comparable after an upgrade. Nothing here has to withstand
//! an attacker: an agent that forges collisions only blinds the detector of its own session.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

/// A fingerprint. Equal inputs have equal fingerprints; different ones differ but for a chance of 2⁻⁶⁴.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// The fingerprint of a text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
    }

    /// The fingerprint of an ordered pair. Cheap, for use on the path of every call.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        let mixed = (self.0 ^ other.0.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 29) ^ other.0).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        Self(mixed ^ (mixed >> 32))
    }

    /// Sixteen hexadecimal digits, the form used in decisions.
    #[must_use]
    pub fn to_hex(self) -> String {
        format!("{:016x}", self.0)
    }
}

/// Takes bytes in pieces of any size; the pieces do not show in the fingerprint.
///
/// Small pieces are gathered first, since the masking feeds it word by word.
pub(crate) struct Digest {
    state: Xxh3Default,
    gathered: [u8; 256],
    len: usize,
}

impl Digest {
    pub(crate) fn new() -> Self {
        Self { state: Xxh3Default::new(), gathered: [0; 256], len: 0 }
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        if self.len == self.gathered.len() {
            self.flush();
        }
        self.gathered[self.len] = byte;
        self.len += 1;
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        if bytes.len() > self.gathered.len() - self.len {
            self.flush();
            if bytes.len() > self.gathered.len() {
                self.state.update(bytes);
                return;
            }
        }
        self.gathered[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn flush(&mut self) {
        self.state.update(&self.gathered[..self.len]);
        self.len = 0;
    }

    pub(crate) fn finish(&mut self) -> Fingerprint {
        self.flush();
        Fingerprint(self.state.digest())
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest")
    }
}

/// Fingerprints are well mixed already: the map's hash is the fingerprint itself.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A map from fingerprints.
pub(crate) type FingerprintMap<V> = HashMap<Fingerprint, V, BuildHasherDefault<Identity>>;
