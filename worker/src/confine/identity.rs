//! As whom a tool runs. Only a root daemon asks for it.

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use toolcell_protocol::worker_api::Identity;

/// An identity, ready to be assumed without taking memory.
#[derive(Debug)]
pub(crate) struct IdentityPlan {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl IdentityPlan {
    pub(crate) fn new(identity: &Identity) -> Self {
        Self {
            uid: Uid::from_raw(identity.uid),
            gid: Gid::from_raw(identity.gid),
            groups: identity.groups.iter().copied().map(Gid::from_raw).collect(),
        }
    }

    pub(crate) const fn owner(&self) -> (Uid, Gid) {
        (self.uid, self.gid)
    }

    /// Groups first, the uid last: after it the rest would not be allowed any more. Real, effective and saved
    /// ids all change, so there is no way back, and the kernel drops the capabilities of a former root.
    pub(crate) fn assume(&self) -> Result<(), Errno> {
        setgroups(&self.groups)?;
        setresgid(self.gid, self.gid, self.gid)?;
        setresuid(self.uid, self.uid, self.uid)
    }
}
