//! Defines the identity of a member, which its files contain, so that files of another member are detected.

use log::Owner;
use numbers::{ClusterId, MemberId};

/// The ids of a member and its cluster. They never change while a member runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Id of the member.
    pub member_id: u64,
    /// Id of the cluster.
    pub cluster_id: u64,
}

impl Identity {
    /// Returns the identity of the owner of a log.
    pub fn of(owner: Owner) -> Identity {
        Identity { member_id: owner.member_id.0, cluster_id: owner.cluster_id.0 }
    }

    /// Returns the ids in the type that the log uses.
    pub fn owner(&self) -> Owner {
        Owner { cluster_id: ClusterId(self.cluster_id), member_id: MemberId(self.member_id) }
    }

    /// Returns the ids in the form in which each run of a checkpoint stores them, so that a run of another
    /// member is detected.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.cluster_id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.member_id.to_le_bytes());
        bytes
    }
}
