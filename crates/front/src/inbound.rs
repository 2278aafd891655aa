use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::{Code, Status};
use bytes::Bytes;

use crate::assembler::Assembler;
use crate::inbox::{CutOff, RequestStream};
use accounting::ShardCounters;

/// The messages that a client sends on a streaming call. A message not taken keeps the client's window shut.
pub struct Inbound {
    from: From,
}

/// Gives the next request of a call that has no stream of HTTP/2, as [`Inbound::next`] does.
pub type NextMessage = Box<dyn FnMut(&mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>>>;

enum From {
    Wire(Wire),
    Local { next: NextMessage, counters: Arc<ShardCounters>, method: u16, ended: bool },
}

/// Messages from a stream of HTTP/2.
struct Wire {
    stream: RequestStream,
    assembler: Assembler,
    method: u16,
    ended: bool,
    /// Bytes charged for the message that has begun and is not whole, to the account of the connection. Not as a
    /// [`crate::ledger::Charge`], which has a pointer to that: the stream has one to the connection.
    charged: u32,
}

/// Status that a call gets when its client went away.
pub(crate) const CANCELED: Status = Status::new(Code::Canceled, "context canceled");
/// Status that a call gets when its client's stream ended inside a message.
pub(crate) const TRUNCATED: Status = Status::new(Code::Internal, "unexpected EOF");

impl Inbound {
    pub(crate) fn new(stream: RequestStream, assembler: Assembler, method: u16) -> Inbound {
        Inbound { from: From::Wire(Wire { stream, assembler, method, ended: false, charged: 0 }) }
    }

    pub(crate) fn local(next: NextMessage, counters: Arc<ShardCounters>, method: u16) -> Inbound {
        Inbound { from: From::Local { next, counters, method, ended: false } }
    }

    /// The next message; `None` when the client has closed its side. Errors: a message too large or
    /// malformed, a stream cut inside a message, a client gone. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for what [`Inbound::next`] returns, for a hand-written future.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        match &mut self.from {
            From::Wire(wire) => wire.poll_next(cx),
            From::Local { ended: true, .. } => Poll::Ready(Ok(None)),
            From::Local { next, counters, method, ended } => {
                let message = ready!(next(cx));
                match &message {
                    Ok(Some(message)) => counters.received(*method, message.len()),
                    Ok(None) | Err(_) => {
                        *ended = true;
                        // The body that it reads is given up, though it may go on.
                        *next = Box::new(|_| Poll::Ready(Ok(None)));
                    }
                }
                Poll::Ready(message)
            }
        }
    }
}

impl Wire {
    /// Charges so many bytes for the message that has begun, in place of what is charged for it.
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
            // The whole announced length is charged at once: a message that was begun can always be finished.
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
        // It is in the future of each open stream.
        assert!(size_of::<Inbound>() <= 48, "{} bytes", size_of::<Inbound>());
    }
}
