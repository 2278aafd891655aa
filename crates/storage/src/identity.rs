//! Who a member is.

/// What never changes while a member runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// This member.
    pub member_id: u64,
    /// Its cluster.
    pub cluster_id: u64,
}

impl Identity {
    /// What a checkpoint's runs carry, so that one of another member is not taken for this one's.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.cluster_id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.member_id.to_le_bytes());
        bytes
    }
}
