//! Who a member is.

/// The ids of a member and its cluster. They never change while a member runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Id of the member.
    pub member_id: u64,
    /// Id of the cluster.
    pub cluster_id: u64,
}

impl Identity {
    /// Returns the bytes that a checkpoint's runs carry, so that another member's run is not taken for this one's.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.cluster_id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.member_id.to_le_bytes());
        bytes
    }
}
