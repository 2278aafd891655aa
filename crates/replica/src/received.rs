//! Types for a state that was received completely from another member ([`ReceivedState`]), and for the
//! outcome of its installation ([`Outcome`]).

use api::{Status, raftpb};
use machine::Machine;
use numbers::Index;
use tokio::sync::oneshot;

/// A state that was received completely from another member.
pub struct ReceivedState {
    /// The MsgSnap message that belongs to the state.
    pub message: raftpb::Message,
    /// The received state.
    pub machine: Box<Machine>,
    /// Applied index of this member's own state on which the received state builds; `None` if it builds on
    /// none.
    pub base_applied: Option<Index>,
    /// Sender for the outcome of the state, if the receiving thread waits for it. It is dropped without an
    /// outcome only when the core ends.
    pub told: Option<oneshot::Sender<Outcome>>,
}

/// Outcome for a state that was received completely.
#[derive(Debug)]
pub enum Outcome {
    /// A checkpoint of the state is durable on this member.
    Durable,
    /// Raft has ignored the state, because this member already has the entries that it contains.
    NotWanted,
    /// Raft refused the message that belongs to the state, for this reason.
    Refused(String),
    /// The state is installed, but its first checkpoint failed, for this reason. The checkpoint is tried
    /// again.
    NotSaved(String),
    /// The attempt had already ended when the state was complete, or the member went out of service before
    /// the state was durable.
    GivenUp(Status),
}
