//! Provides the buffers of a connection: [`Input`] for received bytes that are not processed yet, [`Output`]
//! for bytes to write. A connection without such bytes holds no buffer.
//!
//! Spare buffers belong to the thread, not to a connection. So a few buffers, which stay in the processor's
//! cache, serve all connections of a shard one after the other. The rejected alternative is a pool to which
//! each connection has a reference: with such a pool, connections could not move to other threads.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::frame::{self, HEAD_BYTES};

/// Size of an input buffer in bytes: two frames of the largest size accepted.
const INPUT_BYTES: usize = 2 * (frame::PAYLOAD_BYTES_MAX + HEAD_BYTES);
/// Size of an output buffer in bytes, which is also the limit for what [`Output::write`] appends with one
/// call.
pub(crate) const OUTPUT_BYTES: usize = 16 * 1024;
/// Maximum number of spare buffers of each kind that a thread keeps. Further ones are deallocated.
const SPARE_MAX: usize = 64;
/// Bodies of up to this size in bytes are copied into the buffer after their frame header, which costs less
/// than a separate slice in the vectored write.
pub(crate) const COPIED_BYTES_MAX: usize = 2 * 1024;

thread_local! {
    static SPARE: RefCell<Spare> = const { RefCell::new(Spare { inputs: Vec::new(), outputs: Vec::new() }) };
}

struct Spare {
    inputs: Vec<Box<[u8]>>,
    outputs: Vec<Vec<u8>>,
}

fn with_spare<T>(take: impl FnOnce(&mut Spare) -> T) -> Option<T> {
    // Returns `None` while the thread ends, because its thread-local storage is not accessible then. The
    // caller then allocates a buffer or drops it.
    SPARE.try_with(|spare| take(&mut spare.borrow_mut())).ok()
}

fn take_input() -> Box<[u8]> {
    with_spare(|spare| spare.inputs.pop())
        .flatten()
        .unwrap_or_else(|| vec![0; INPUT_BYTES].into_boxed_slice())
}

fn give_input(buffer: Box<[u8]>) {
    with_spare(|spare| {
        if spare.inputs.len() < SPARE_MAX {
            spare.inputs.push(buffer);
        }
    });
}

fn take_output() -> Vec<u8> {
    with_spare(|spare| spare.outputs.pop()).flatten().unwrap_or_else(|| Vec::with_capacity(OUTPUT_BYTES))
}

fn give_output(mut buffer: Vec<u8>) {
    buffer.clear();
    with_spare(|spare| {
        if spare.outputs.len() < SPARE_MAX {
            spare.outputs.push(buffer);
        }
    });
}

/// Bytes received from the peer that [`crate::Connection::next`] has not taken yet. Holds a buffer only while
/// there are such bytes.
///
/// ```text
/// if !connection.is_blocked() {             // if it was blocked, complete frames may be left: process them first
///     let n = stream.read(input.space())?;
///     input.filled(n);
/// }
/// let mut at = 0;
/// while let Some(event) = connection.next(input.unread(), &mut at)? { ... }
/// input.consume(at);                        // an empty input returns its buffer
/// ```
#[derive(Debug, Default)]
pub struct Input {
    buffer: Option<Box<[u8]>>,
    at: u32,
    end: u32,
}

impl Input {
    /// Returns the free space behind the held bytes. The space is never empty if all bytes taken by
    /// [`crate::Connection::next`] were consumed, because then less than one frame is held. While the
    /// connection is blocked ([`crate::Connection::is_blocked`]) the space may be empty. If nothing was read
    /// into the space, call [`Input::consume`] with 0 to return an empty buffer.
    pub fn space(&mut self) -> &mut [u8] {
        let buffer = self.buffer.get_or_insert_with(take_input);
        let (at, end) = (self.at as usize, self.end as usize);
        // Moves a partial frame to the beginning of the buffer if the rest of the frame might otherwise not
        // fit.
        if at > 0 && buffer.len() - at < frame::PAYLOAD_BYTES_MAX + HEAD_BYTES {
            buffer.copy_within(at..end, 0);
            (self.at, self.end) = (0, (end - at) as u32);
        }
        &mut buffer[self.end as usize..]
    }

    /// Marks the first `bytes` bytes of the space as filled.
    ///
    /// # Panics
    ///
    /// If the space is smaller.
    pub fn filled(&mut self, bytes: usize) {
        let len = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        let end = self.end as usize + bytes;
        assert!(end <= len, "a buffer of {len} bytes is filled up to {end}");
        self.end = end as u32;
    }

    /// Returns the held bytes.
    pub fn unread(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[self.at as usize..self.end as usize])
    }

    /// Drops the oldest `bytes` bytes. If none are left, the buffer returns to the thread's spare buffers.
    ///
    /// # Panics
    ///
    /// If fewer bytes are held.
    pub fn consume(&mut self, bytes: usize) {
        let held = (self.end - self.at) as usize;
        assert!(bytes <= held, "{bytes} of {held} bytes are consumed");
        self.at += bytes as u32;
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
            self.buffer.take().into_iter().for_each(give_input);
        }
    }

    /// Returns true if no byte is held. If all bytes taken by [`crate::Connection::next`] were consumed, this
    /// means that the received bytes do not end inside a frame.
    pub fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// Returns the size of the held buffer in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.buffer.take().into_iter().for_each(give_input);
    }
}

/// Consecutive bytes of the output, which are one slice of a vectored write.
#[derive(Debug)]
enum Segment {
    /// Range of a buffer, which is identified by its number. Later segments are in later ranges or buffers.
    Own { buffer: u32, start: u16, end: u16 },
    /// Body that is referenced, not copied.
    Shared(Bytes),
}

/// Bytes to write to the peer, as a list of slices: frames are in pooled buffers, long bodies are referenced
/// and not copied. One vectored write sends many slices.
///
/// ```text
/// let mut slices = [IoSlice::new(&[]); 64];
/// let count = output.slices(&mut slices);
/// let n = stream.write_vectored(&slices[..count])?;
/// output.advance(n);
/// ```
#[derive(Debug, Default)]
pub struct Output {
    /// Pending bytes; `None` in an idle connection, after [`Output::rest`], to save memory.
    queue: Option<Box<Queue>>,
    /// Number of pending bytes. It fits 32 bits, because the output contains at most a few bodies.
    len: u32,
    written: u64,
    /// Total number of bytes that had ever been appended when the last frame of a call (HEADERS,
    /// CONTINUATION, DATA) was complete.
    calls_end: u64,
    /// Bytes of PING acknowledgements that were appended since bytes were last written or refused.
    pongs: u32,
}

/// The pending segments, and the buffers that contain them.
#[derive(Debug, Default)]
struct Queue {
    segments: VecDeque<Segment>,
    /// Buffers that contain the frames. One buffer contains many segments, between which referenced bodies
    /// are sent.
    buffers: VecDeque<Vec<u8>>,
    /// Number of the first buffer in `buffers`. The numbers increase and wrap.
    first_buffer: u32,
}

impl Queue {
    fn bytes_of<'a>(&'a self, segment: &'a Segment) -> &'a [u8] {
        match segment {
            Segment::Own { buffer, start, end } => {
                let place = buffer.wrapping_sub(self.first_buffer) as usize;
                &self.buffers[place][usize::from(*start)..usize::from(*end)]
            }
            Segment::Shared(bytes) => bytes,
        }
    }

    /// Drops the first `bytes` bytes. Buffers without pending segments return to the thread's spare buffers.
    fn advance(&mut self, bytes: usize) {
        let mut rest = bytes;
        while let Some(first) = self.segments.front_mut() {
            let left = match first {
                Segment::Own { start, end, .. } => usize::from(*end - *start),
                Segment::Shared(bytes) => bytes.len(),
            };
            if rest < left {
                match first {
                    Segment::Own { start, .. } => *start += rest as u16,
                    Segment::Shared(bytes) => bytes.advance(rest),
                }
                return;
            }
            rest -= left;
            if let Some(Segment::Own { buffer, end, .. }) = self.segments.pop_front() {
                // The segment was in the first of `buffers`, because earlier buffers were already returned.
                // That buffer is finished if another one follows it, or if the segment was its last one.
                let is_done =
                    self.buffers.len() > 1 || self.buffers.front().is_some_and(|own| own.len() == end.into());
                if is_done && !self.is_used(buffer) {
                    self.buffers.pop_front().into_iter().for_each(give_output);
                    self.first_buffer = self.first_buffer.wrapping_add(1);
                }
            }
        }
    }

    /// Returns true if a pending segment is in this buffer.
    fn is_used(&self, buffer: u32) -> bool {
        // The search is short: each referenced body follows the header of its frame, so the next range of a
        // buffer is near the front.
        let next = self.segments.iter().find_map(|segment| match segment {
            Segment::Own { buffer, .. } => Some(*buffer),
            Segment::Shared(_) => None,
        });
        next == Some(buffer)
    }

    /// Appends the bytes that `write` writes. Returns their number and the result of `write`.
    fn write<T>(&mut self, bytes_max: usize, write: impl FnOnce(&mut Vec<u8>) -> T) -> (usize, T) {
        if self.buffers.back().is_none_or(|own| own.capacity() - own.len() < bytes_max) {
            self.buffers.push_back(take_output());
        }
        let last = self.first_buffer.wrapping_add(self.buffers.len() as u32 - 1);
        let Some(bytes) = self.buffers.back_mut() else {
            unreachable!("the last buffer was just seen or made")
        };
        let before = bytes.len();
        let result = write(bytes);
        let written = bytes.len() - before;
        // The casts are lossless: a buffer never grows beyond its capacity of [`OUTPUT_BYTES`], which fits 16
        // bits.
        let after = bytes.len() as u16;
        match self.segments.back_mut() {
            Some(Segment::Own { buffer, end, .. }) if *buffer == last => *end = after,
            _ => self.segments.push_back(Segment::Own { buffer: last, start: before as u16, end: after }),
        }
        (written, result)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.buffers.drain(..).for_each(give_output);
    }
}

impl Output {
    /// Returns the number of pending bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if no bytes are pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the total number of bytes ever written, as reported to [`Output::advance`].
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the total number of bytes ever written, but not beyond the end of the last frame of a call
    /// (HEADERS, CONTINUATION, DATA). The number increases only while the peer reads such frames;
    /// acknowledgements and window updates do not count.
    pub fn written_of_calls(&self) -> u64 {
        self.written.min(self.calls_end)
    }

    /// Returns the total number of bytes ever appended, up to the end of the last frame of a call (HEADERS,
    /// CONTINUATION, DATA).
    pub fn appended_of_calls(&self) -> u64 {
        self.calls_end
    }

    /// Notes that the peer did not accept the pending bytes. [`Output::is_pongs_only`] then returns false for
    /// them, so that PING acknowledgements among them are not held back again.
    pub fn note_refused(&mut self) {
        self.pongs = 0;
    }

    /// Returns true if the pending bytes consist of PING acknowledgements only, and the peer has not refused
    /// them before. The owner may then delay the write until there is another frame.
    pub fn is_pongs_only(&self) -> bool {
        self.len > 0 && self.len == self.pongs
    }

    /// Returns the pending bytes if they are one slice.
    pub fn only(&self) -> Option<&[u8]> {
        let queue = self.queue.as_ref().filter(|queue| queue.segments.len() == 1)?;
        queue.segments.front().map(|segment| queue.bytes_of(segment))
    }

    /// Fills `into` with the first slices of pending bytes, and returns their number. If the number is below
    /// the length of `into`, there are no further slices.
    pub fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        let Some(queue) = &self.queue else { return count };
        for (slice, segment) in into.iter_mut().zip(&queue.segments) {
            *slice = IoSlice::new(queue.bytes_of(segment));
            count += 1;
        }
        count
    }

    /// Drops the first `bytes` bytes after they were written. Empty buffers return to the thread's spare
    /// buffers.
    ///
    /// # Panics
    ///
    /// If fewer bytes are pending.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "{bytes} of {} bytes were written", self.len);
        self.len -= bytes as u32;
        self.written += bytes as u64;
        self.pongs = 0;
        if let Some(queue) = &mut self.queue {
            queue.advance(bytes);
        }
    }

    /// Returns the size of the held buffers in bytes; referenced bodies do not count.
    pub fn heap_bytes(&self) -> usize {
        let Some(queue) = &self.queue else { return 0 };
        size_of::<Queue>()
            + queue.buffers.len() * OUTPUT_BYTES
            + queue.buffers.capacity() * size_of::<Vec<u8>>()
            + queue.segments.capacity() * size_of::<Segment>()
    }

    /// Frees memory that is kept only to make the next write cheaper.
    pub(crate) fn rest(&mut self) {
        if self.len == 0 {
            self.queue = None;
        } else if let Some(queue) = &mut self.queue {
            queue.segments.shrink_to_fit();
            queue.buffers.shrink_to_fit();
        }
    }

    /// Appends the bytes that `write` writes to its argument: at most `bytes_max`, which must not exceed
    /// [`OUTPUT_BYTES`]. Returns the result of `write`.
    pub(crate) fn write<T>(&mut self, bytes_max: usize, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        debug_assert!(bytes_max <= OUTPUT_BYTES, "{bytes_max} bytes are more than a buffer has");
        let (written, result) = self.queue.get_or_insert_default().write(bytes_max, write);
        self.len += written as u32;
        result
    }

    /// Notes that the last appended bytes are a frame of a call, for [`Output::written_of_calls`] and
    /// [`Output::appended_of_calls`].
    pub(crate) fn note_call(&mut self) {
        self.calls_end = self.written + u64::from(self.len);
    }

    /// Appends a frame with its header and payload.
    pub(crate) fn frame(&mut self, kind: u8, flags: u8, stream: u32, body: &[u8]) {
        self.write(HEAD_BYTES + body.len(), |out| {
            frame::put_head(out, body.len(), kind, flags, stream);
            out.extend_from_slice(body);
        });
    }

    /// Appends a PING acknowledgement.
    pub(crate) fn pong(&mut self, body: [u8; 8]) {
        self.frame(frame::kind::PING, frame::flag::ACK, 0, &body);
        self.pongs += (HEAD_BYTES + body.len()) as u32;
    }

    /// Appends bytes by reference, without copying them.
    pub(crate) fn share(&mut self, body: Bytes) {
        self.len += body.len() as u32;
        self.queue.get_or_insert_default().segments.push_back(Segment::Shared(body));
    }

    /// Appends a DATA frame whose payload is `head` followed by `body`.
    pub(crate) fn data(&mut self, flags: u8, stream: u32, head: &[u8], body: Bytes) {
        let len = head.len() + body.len();
        let copied = if body.len() <= COPIED_BYTES_MAX { body.len() } else { 0 };
        self.write(HEAD_BYTES + head.len() + copied, |out| {
            frame::put_head(out, len, frame::kind::DATA, flags, stream);
            out.extend_from_slice(head);
            out.extend_from_slice(&body[..copied]);
        });
        if copied < body.len() {
            self.share(body);
        }
        self.note_call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 100];
        let count = output.slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn output_is_what_was_written_however_it_is_taken() {
        let mut output = Output::default();
        let body = Bytes::from(vec![7; 10_000]);
        for stream in 1..20 {
            output.frame(frame::kind::PING, 0, stream, &[1; 8]);
            output.data(0, stream, b"head", body.slice(..(stream as usize) * 500));
        }
        let mut whole = all(&output);
        assert_eq!(whole.len(), output.len());
        // Long bodies are referenced, not copied.
        assert!(output.heap_bytes() < OUTPUT_BYTES + 4_000, "{}", output.heap_bytes());
        let mut step = 1;
        while !output.is_empty() {
            let n = step.min(output.len());
            output.advance(n);
            assert!(output.only().is_none_or(|only| only == &whole[n..]));
            whole.drain(..n);
            assert_eq!(all(&output), whole);
            step = step * 3 % 7_919;
        }
        assert_eq!(output.len(), 0);
        output.rest();
        assert_eq!(output.heap_bytes(), 0);
    }

    #[test]
    fn answers_to_pings_are_known_where_nothing_else_waits() {
        let mut output = Output::default();
        assert!(!output.is_pongs_only(), "nothing waits");
        output.pong([1; 8]);
        output.pong([2; 8]);
        assert!(output.is_pongs_only());
        // Another frame is written in part, until as many bytes are left as two acknowledgements have. The
        // length alone must not be mistaken for acknowledgements.
        output.data(0, 1, b"", Bytes::from(vec![7; 100]));
        assert!(!output.is_pongs_only());
        output.advance(output.len() - 34);
        assert!(!output.is_pongs_only());
        output.pong([3; 8]);
        assert!(!output.is_pongs_only());
        output.advance(output.len());
        assert!(!output.is_pongs_only());
        output.pong([4; 8]);
        assert!(output.is_pongs_only());
        output.note_refused();
        output.pong([5; 8]);
        assert!(!output.is_pongs_only());
    }

    #[test]
    fn input_holds_a_buffer_only_while_it_holds_bytes() {
        let mut input = Input::default();
        assert_eq!((input.heap_bytes(), input.unread()), (0, &[][..]));
        let mut next = 0_u8;
        let mut expected = VecDeque::new();
        for round in 0..1_000 {
            let space = input.space();
            assert!(!space.is_empty());
            let n = (round * 37 % 20_000).min(space.len());
            for byte in &mut space[..n] {
                *byte = next;
                expected.push_back(next);
                next = next.wrapping_add(1);
            }
            input.filled(n);
            assert!(input.unread().iter().eq(&expected));
            // Leaves less than one frame unread, as `Input::space` requires.
            let stays = (round * 13 % frame::PAYLOAD_BYTES_MAX).min(expected.len());
            let consumed = expected.len() - stays;
            input.consume(consumed);
            expected.drain(..consumed);
        }
        input.consume(expected.len());
        assert_eq!(input.heap_bytes(), 0);
    }
}
