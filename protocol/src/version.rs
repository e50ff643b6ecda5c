//! Which protocol versions exist and how two peers agree on one.

use serde::{Deserialize, Serialize};

/// Version of the client conversation that this build speaks best.
pub const CLIENT_PROTOCOL: u32 = 1;

/// Oldest version of the client conversation that this build still speaks.
pub const CLIENT_PROTOCOL_OLDEST: u32 = 1;

/// Version of the daemon ⇄ spawner and daemon ⇄ worker conversations. Both ends come from one build, so the
/// numbers must be equal.
pub const WORKER_PROTOCOL: u32 = 1;

/// The range of versions that a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRange {
    /// Oldest version spoken.
    pub oldest: u32,
    /// Newest version spoken.
    pub newest: u32,
}

impl VersionRange {
    /// The range of this build's client conversation.
    pub const CLIENT: Self = Self { oldest: CLIENT_PROTOCOL_OLDEST, newest: CLIENT_PROTOCOL };

    /// The newest version that both ranges hold, if there is one.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest && newest >= other.oldest).then_some(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_chosen() {
        let range = |oldest, newest| VersionRange { oldest, newest };
        assert_eq!(range(1, 3).common(range(2, 5)), Some(3));
        assert_eq!(range(1, 3).common(range(3, 3)), Some(3));
        assert_eq!(range(1, 2).common(range(3, 5)), None);
        assert_eq!(range(3, 1).common(range(1, 5)), None);
    }
}
