use api::{Code, Status};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Size of the gRPC message prefix in bytes: one flag byte and the length as a big-endian u32.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Returns the message with its gRPC prefix. Fails with `ResourceExhausted` if the message is larger than
/// `bytes_max`.
pub(crate) fn framed(message: &[u8], bytes_max: usize) -> Result<Bytes, Status> {
    if message.len() > bytes_max {
        let text = format!("trying to send message larger than max ({} vs. {bytes_max})", message.len());
        return Err(Status::with(Code::ResourceExhausted, text));
    }
    let len = u32::try_from(message.len())
        .map_err(|_| Status::new(Code::ResourceExhausted, "grpc: message too large"))?;
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    frame.put_u8(0);
    frame.put_u32(len);
    frame.put_slice(message);
    Ok(frame.freeze())
}

/// Splits a received body into gRPC messages.
#[derive(Debug)]
pub(crate) struct Messages {
    buffer: BytesMut,
    message_bytes_max: usize,
}

impl Messages {
    pub(crate) fn new(message_bytes_max: usize) -> Messages {
        Messages { buffer: BytesMut::new(), message_bytes_max }
    }

    pub(crate) fn push(&mut self, payload: &[u8]) {
        self.buffer.extend_from_slice(payload);
    }

    pub(crate) fn is_mid_message(&self) -> bool {
        !self.buffer.is_empty()
    }

    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let [flag, a, b, c, d, ..] = self.buffer[..] else { return Ok(None) };
        if flag != 0 {
            let text = format!("grpc: received unexpected payload format {flag}");
            return Err(Status::with(Code::Internal, text));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.message_bytes_max {
            let text =
                format!("grpc: received message larger than max ({len} vs. {})", self.message_bytes_max);
            return Err(Status::with(Code::ResourceExhausted, text));
        }
        if self.buffer.len() < PREFIX_BYTES + len {
            return Ok(None);
        }
        self.buffer.advance(PREFIX_BYTES);
        Ok(Some(self.buffer.split_to(len).freeze()))
    }
}
