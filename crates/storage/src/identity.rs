//! Who a member is.

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
    /// Returns the identity of the member whose log this is.
    pub fn of(owner: Owner) -> Identity {
        Identity { member_id: owner.member_id.0, cluster_id: owner.cluster_id.0 }
    }

    /// Returns the ids as the log has them.
    pub fn owner(&self) -> Owner {
        Owner { cluster_id: ClusterId(self.cluster_id), member_id: MemberId(self.member_id) }
    }

    /// Returns the bytes that a checkpoint's runs carry, so that another member's run is not taken for this one's.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.cluster_id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.member_id.to_le_bytes());
        bytes
    }
}
