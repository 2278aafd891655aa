use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::{Code, Status};
use bytes::Bytes;

use crate::assembler::Assembler;
use crate::inbox::{CutOff, RequestStream};
use accounting::ShardCounters;

/// Receives the client's messages of a streaming call. The client's flow-control window reopens only for
/// messages that the service has taken.
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
    /// Bytes that are reserved in the connection's memory account for the incomplete message. A plain number
    /// saves memory: a [`crate::ledger::Charge`] would contain another pointer to the account, which `stream`
    /// has already.
    charged: u32,
}

/// Status of a call whose client has disconnected or has cancelled the call.
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
    /// or malformed, if the memory limit is reached, if the stream ends inside a message, or if the client
    /// has reset the stream or disconnected. The future may be dropped without losing a message.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the result of [`Inbound::next`]. For hand-written futures.
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
                        // Drops the closure with the request body, even if the client is still sending the
                        // body.
                        *next = Box::new(|_| Poll::Ready(Ok(None)));
                    }
                }
                Poll::Ready(message)
            }
        }
    }
}

impl Wire {
    /// Raises the memory reservation for the incomplete message to `announced` bytes, the length in its
    /// prefix.
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
        if self.stream.is_waiting(cx) {
            return Poll::Pending;
        }
        loop {
            ready!(self.stream.poll_turn(cx));
            let assembled = self.stream.cut(&mut self.assembler).inspect_err(|_| self.ended = true)?;
            if let Some(assembled) = assembled {
                self.release();
                self.stream.around().shard.counters.received(self.method, assembled.wire_bytes);
                return Poll::Ready(Ok(Some(assembled.message)));
            }
            // Memory for the whole announced length of the message is reserved when its prefix has arrived,
            // so that a message that was accepted can always be completed.
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
        // The size matters because `Inbound` is part of the future of each open stream.
        assert!(size_of::<Inbound>() <= 48, "{} bytes", size_of::<Inbound>());
    }
}
