use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::{Code, Status};
use bytes::Bytes;

use crate::assembler::Assembler;
use crate::inbox::{CutOff, RequestStream};
use accounting::ShardCounters;

/// Receives the messages of a client on a streaming call. Messages that are not taken keep the client's
/// window closed.
pub struct Inbound {
    source: MessageSource,
}

/// Poll function for the next request of a call without an HTTP/2 stream, with the results of
/// [`Inbound::next`].
pub type NextMessage = Box<dyn FnMut(&mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>>>;

enum MessageSource {
    Wire(Wire),
    Local { next: NextMessage, counters: Arc<ShardCounters>, method: u16, ended: bool },
}

/// Messages from an HTTP/2 stream.
struct Wire {
    stream: RequestStream,
    assembler: Assembler,
    method: u16,
    ended: bool,
    /// Bytes charged to the connection's account for the incomplete message. Stored as a plain number: a
    /// [`crate::ledger::Charge`] would contain a pointer to the account, which the stream has already.
    charged: u32,
}

/// Status of a call whose client has disconnected or cancelled it.
pub(crate) const CANCELED: Status = Status::new(Code::Canceled, "context canceled");
/// Status of a call whose client ended the stream inside a message.
pub(crate) const TRUNCATED: Status = Status::new(Code::Internal, "unexpected EOF");

impl Inbound {
    pub(crate) fn new(stream: RequestStream, assembler: Assembler, method: u16) -> Inbound {
        Inbound { source: MessageSource::Wire(Wire { stream, assembler, method, ended: false, charged: 0 }) }
    }

    pub(crate) fn local(next: NextMessage, counters: Arc<ShardCounters>, method: u16) -> Inbound {
        Inbound { source: MessageSource::Local { next, counters, method, ended: false } }
    }

    /// Returns the next message; `None` when the client has closed its side. Fails if a message is too large
    /// or malformed, if the stream is cut inside a message, or if the client has disconnected. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the result of [`Inbound::next`], for a hand-written future.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        match &mut self.source {
            MessageSource::Wire(wire) => wire.poll_next(cx),
            MessageSource::Local { ended: true, .. } => Poll::Ready(Ok(None)),
            MessageSource::Local { next, counters, method, ended } => {
                let message = ready!(next(cx));
                match &message {
                    Ok(Some(message)) => counters.received(*method, message.len()),
                    Ok(None) | Err(_) => {
                        *ended = true;
                        // Drops the request body, even if the client is still sending it.
                        *next = Box::new(|_| Poll::Ready(Ok(None)));
                    }
                }
                Poll::Ready(message)
            }
        }
    }
}

impl Wire {
    /// Raises the charge for the incomplete message to its announced length, `announced` bytes.
    fn charge(&mut self, announced: u32) {
        if announced > self.charged {
            let account = &self.stream.around().account;
            account.charge_request((announced - self.charged) as usize);
            self.charged = announced;
        }
    }

    fn release(&mut self) {
        if self.charged > 0 {
            self.stream.around().account.release_request(std::mem::take(&mut self.charged) as usize);
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        loop {
            ready!(self.stream.poll_turn(cx));
            let assembled = self.stream.cut(&mut self.assembler).inspect_err(|_| self.ended = true)?;
            if let Some(assembled) = assembled {
                self.release();
                self.stream.around().shard.counters.received(self.method, assembled.wire_bytes);
                return Poll::Ready(Ok(Some(assembled.message)));
            }
            // The whole announced length is charged at once, so that a message that has begun can always be
            // completed.
            if let Some(len) = self.assembler.announced() {
                self.charge(len);
                self.stream.around().check_requests().inspect_err(|_| self.ended = true)?;
            }
            match ready!(self.stream.poll_more(cx)) {
                Some(Ok(())) => {}
                Some(Err(CutOff)) => {
                    self.ended = true;
                    return Poll::Ready(Err(CANCELED));
                }
                None => {
                    self.ended = true;
                    let whole = !self.assembler.is_mid_message();
                    return Poll::Ready(if whole { Ok(None) } else { Err(TRUNCATED) });
                }
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiving_half_of_a_stream_is_small() {
        // `Inbound` is part of the future of each open stream.
        assert!(size_of::<Inbound>() <= 48, "{} bytes", size_of::<Inbound>());
    }
}
