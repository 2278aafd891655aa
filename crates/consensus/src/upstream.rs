//! Tracks the feeder of an observer: [`Upstream`].

/// For an observer: where its entries come from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Upstream {
    /// Id of the feeder whose messages this observer takes; 0 for none.
    pub feeder: u64,
    /// Id of the cluster's leader according to the feeder; 0 for none.
    pub leader: u64,
    /// Number of feeders up to the member from which the entries come; 0 while it is not known.
    pub depth: u8,
    /// Number of ticks after which a silent feeder counts as lost, if that is more than two election timeouts.
    pub silence_max: u64,
    /// True if the feeder has another history than this observer. Nothing more is taken from it.
    pub is_foreign: bool,
}
