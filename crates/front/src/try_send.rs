use api::Status;
use bytes::Bytes;

/// Reason why a message was not queued; `M` is the type of the message, or of the messages.
#[derive(Debug)]
pub enum TrySend<M = Bytes> {
    /// The stream's buffer is full, or this turn has compressed as many messages as it may. Contains the
    /// message or messages that were not queued.
    Full(M),
    /// The message exceeds the size limit; the call should end with this status.
    TooLong(Status),
    /// The call has ended.
    Closed,
}

impl<M> TrySend<M> {
    /// Converts the returned message or messages with `wrap`.
    pub fn map<N>(self, wrap: impl FnOnce(M) -> N) -> TrySend<N> {
        match self {
            TrySend::Full(message) => TrySend::Full(wrap(message)),
            TrySend::TooLong(status) => TrySend::TooLong(status),
            TrySend::Closed => TrySend::Closed,
        }
    }
}
