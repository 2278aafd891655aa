//! A state that has arrived from another member ([`ReceivedState`]), and what became of it ([`Outcome`]).

use api::{Status, raftpb};
use machine::Machine;
use numbers::Index;
use tokio::sync::oneshot;

/// A state that has arrived completely.
pub struct ReceivedState {
    /// The MsgSnap message of the state.
    pub message: raftpb::Message,
    /// The received state.
    pub machine: Box<Machine>,
    /// Applied index of the receiver's own state on which this one was built; `None` if it was built from
    /// nothing.
    pub base_applied: Option<Index>,
    /// Sender for the outcome of the state, if its receiver waits for it. It is dropped without an outcome
    /// only when the core ends.
    pub told: Option<oneshot::Sender<Outcome>>,
}

/// Outcome of a state that has arrived completely.
#[derive(Debug)]
pub enum Outcome {
    /// A checkpoint of the state is durable on this member.
    Durable,
    /// Raft has ignored the state, because this member already has its entries.
    NotWanted,
    /// Raft refused the message of the state, for this reason.
    Refused(String),
    /// The state is installed, and its first checkpoint failed for this reason. Another one is tried.
    NotSaved(String),
    /// The attempt was over when the state had arrived, or the member went out of service before the state
    /// was durable.
    GivenUp(Status),
}
