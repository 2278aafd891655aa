//! Work of one connection per turn, without threads and sockets: server and client run alternately.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use accounting::Budget;
use mainstay_front::{Options, fuzzing};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::task::{JoinHandle, LocalSet};

use testkit::http2::{
    DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    call_block, frame, message,
};

use crate::compression::packed;
use crate::echo::{Seen, block_on, serve_in_memory, serve_in_memory_by, until};

const MIB: usize = 1 << 20;
const EACH: usize = 100_000;
/// Settings with an initial window of 0: no answer's body can be sent.
const SHUT: [u8; 6] = [0, 4, 0, 0, 0, 0];
/// Settings with the largest initial window.
const OPEN: [u8; 6] = [0, 4, 0x7f, 0xff, 0xff, 0xff];

pub(crate) struct Client {
    pub(crate) stream: DuplexStream,
    pub(crate) seen: Arc<Seen>,
    pub(crate) served: JoinHandle<()>,
    /// Received bytes that are not a complete frame yet.
    come: Vec<u8>,
}

impl Client {
    pub(crate) async fn new(options: Options, unread_bytes: usize, settings: &[u8]) -> Client {
        Client::begin(serve_in_memory(options, unread_bytes), settings).await
    }

    /// Creates a client of a server that never grants this connection another long turn.
    async fn behind_others(options: Options, settings: &[u8]) -> Client {
        let served = serve_in_memory_by(options, 64 * MIB, fuzzing::serve_where_others_go_first);
        Client::begin(served, settings).await
    }

    async fn begin(
        (stream, seen, served): (DuplexStream, Arc<Seen>, JoinHandle<()>),
        settings: &[u8],
    ) -> Client {
        let mut client = Client { stream, seen, served, come: Vec::new() };
        client.send(PREFACE).await;
        client.send(&frame(SETTINGS, 0, 0, settings)).await;
        client
    }

    /// Writes until all bytes are taken, or until the server takes none during many turns. Returns the number
    /// of bytes taken.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> usize {
        let (mut taken, mut refused) = (0, 0);
        while taken < bytes.len() && refused < 1000 {
            let n = self.offer(&bytes[taken..]);
            (taken, refused) = (taken + n, if n > 0 { 0 } else { refused + 1 });
            turn().await;
        }
        taken
    }

    /// Writes as much as the server takes immediately. Returns the number of bytes.
    fn offer(&mut self, bytes: &[u8]) -> usize {
        match Pin::new(&mut self.stream).poll_write(&mut Context::from_waker(Waker::noop()), bytes) {
            Poll::Ready(Ok(n)) => n,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        }
    }

    /// Returns the frames that have arrived so far.
    pub(crate) fn frames(&mut self) -> Vec<Frame> {
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = vec![0; MIB];
        loop {
            let mut space = ReadBuf::new(&mut buffer);
            if !Pin::new(&mut self.stream).poll_read(&mut context, &mut space).is_ready()
                || space.filled().is_empty()
            {
                break;
            }
            self.come.extend_from_slice(space.filled());
        }
        let mut rest = &self.come[..];
        let frames = std::iter::from_fn(|| Frame::take(&mut rest)).collect();
        self.come = rest.to_vec();
        frames
    }
}

/// Lets the server run one turn.
pub(crate) async fn turn() {
    let mut waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs a test's client and the server's connection alternately.
pub(crate) fn run(test: impl Future<Output = ()> + 'static) {
    block_on(async {
        let local = LocalSet::new();
        local.run_until(async { tokio::task::spawn_local(test).await.expect("the test") }).await;
    });
}

pub(crate) fn calls(path: &str, first: u32, count: u32, more: &[(&str, &str)], text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for call in first..first + count {
        bytes.extend(frame(HEADERS, END_HEADERS, 2 * call + 1, &call_block(path, more)));
        bytes.extend(frame(DATA, END_STREAM, 2 * call + 1, &message(0, text.as_bytes())));
    }
    bytes
}

#[test]
fn answers_that_are_ready_at_once_are_sent_as_fast_as_they_are_taken() {
    const CALLS: u32 = 100;
    run(async {
        // The client reads all the time, so only a few answers are queued at any time.
        let options =
            Options { answer_bytes_max: 20 * EACH, request_bytes_max: 30 * EACH, ..Options::default() };
        let mut client = Client::new(options, 64 * MIB, &OPEN).await;
        client.send(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])).await;
        client.send(&calls("/test.Echo/Gate", 0, CALLS, &[], &EACH.to_string())).await;
        until("all calls wait", || client.seen.alive.load(SeqCst) == CALLS as usize).await;
        client.seen.open_gate();
        let (mut bytes, mut ended) = (0, 0);
        while ended < CALLS {
            for frame in client.frames() {
                match frame.kind {
                    DATA => bytes += frame.payload.len(),
                    HEADERS if frame.flags & END_STREAM != 0 => ended += 1,
                    _ => {}
                }
            }
            turn().await;
        }
        assert_eq!(bytes, CALLS as usize * (EACH + 5));
    });
}

/// gRPC clients send a PING together with the next request.
#[test]
fn the_answer_to_a_ping_goes_out_with_that_of_a_call() {
    run(async {
        let kinds = |frames: Vec<Frame>| frames.iter().map(|frame| frame.kind).collect::<Vec<_>>();
        let mut client = Client::new(Options::default(), 64 * MIB, &OPEN).await;
        let ping = frame(PING, 0, 0, b"12345678");
        client.send(&ping).await;
        turn().await;
        assert_eq!(kinds(client.frames()).last(), Some(&PING), "no call is awaited");
        client.send(&[calls("/test.Echo/Gate", 0, 1, &[], "9"), ping.clone()].concat()).await;
        until("the call waits", || client.seen.alive.load(SeqCst) == 1).await;
        for _ in 0..20 {
            turn().await;
        }
        assert_eq!(kinds(client.frames()), [0; 0]);
        client.seen.open_gate();
        until("it is answered", || client.seen.alive.load(SeqCst) == 0).await;
        for _ in 0..20 {
            turn().await;
        }
        assert_eq!(kinds(client.frames()), [PING, HEADERS, DATA, HEADERS]);
        // While another answer is being sent, the client measures bandwidth, so the PING is acknowledged
        // immediately.
        client.send(&frame(SETTINGS, 0, 0, &SHUT)).await;
        let big = calls("/test.Echo/Big", 2, 1, &[], &EACH.to_string());
        client.send(&[calls("/test.Echo/Never", 1, 1, &[], "9"), big].concat()).await;
        until("the call waits", || client.seen.alive.load(SeqCst) == 1).await;
        client.frames();
        client.send(&ping).await;
        turn().await;
        assert_eq!(kinds(client.frames()), [PING]);
        client
            .send(&[frame(RST_STREAM, 0, 3, &[0, 0, 0, 8]), frame(RST_STREAM, 0, 5, &[0, 0, 0, 8])].concat())
            .await;
        until("both are over", || client.seen.alive.load(SeqCst) == 0).await;
        // A stream may send its next message at any time, so the acknowledgement does not wait for it.
        client.send(&frame(HEADERS, END_HEADERS, 7, &call_block("/test.Echo/Bidi", &[]))).await;
        until("the stream is open", || client.seen.alive.load(SeqCst) == 1).await;
        client.frames();
        client.send(&ping).await;
        turn().await;
        assert_eq!(kinds(client.frames()), [PING]);
    });
}

#[test]
fn a_turn_packs_so_many_answers_only() {
    const CALLS: u32 = 60;
    run(async {
        let options = Options { answer_bytes_max: 3 * EACH, ..Options::default() };
        let mut client = Client::new(options, 64 * MIB, &SHUT).await;
        client.send(&calls("/test.Echo/Gate", 0, 3, &[], &EACH.to_string())).await;
        let gzip = [("grpc-encoding", "gzip")];
        client.send(&calls("/test.Echo/Gate", 3, CALLS, &gzip, &EACH.to_string())).await;
        until("all calls wait", || client.seen.alive.load(SeqCst) == 3 + CALLS as usize).await;
        client.seen.open_gate();
        until("all are made", || client.seen.alive.load(SeqCst) == 0).await;
        client.frames();
        // All compressed answers fit into the room that one uncompressed answer occupied.
        client.send(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).await;
        let (mut sent, mut at_once) = (0, 0);
        while sent < CALLS as usize {
            let heads = client.frames().iter().filter(|frame| frame.kind == HEADERS).count();
            (sent, at_once) = (sent + heads, at_once.max(heads));
            turn().await;
        }
        assert!(at_once * EACH <= 3 * MIB, "{at_once} at once");
    });
}

#[test]
fn pieces_of_one_turn_stay_within_the_budget() {
    const CALLS: u32 = 2000;
    run(async {
        let budget = Budget::new(16 * MIB);
        let options = Options { budget: budget.clone(), ..Options::default() };
        let mut client = Client::new(options, 64 * 1024, &SHUT).await;
        client.send(&calls("/test.Echo/Pieces", 0, CALLS, &[], "1000000")).await;
        let before = budget.held_bytes();
        assert!(before < 12 * MIB, "{budget:?}");
        // All calls can continue at the same time.
        client.send(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])).await;
        client.send(&frame(SETTINGS, 0, 0, &OPEN)).await;
        until("pieces are made", || client.seen.pieces.load(SeqCst) > 0).await;
        for _ in 0..1000 {
            turn().await;
        }
        // Pieces are made only as far as they fit into the output buffer, whatever the windows allow.
        assert!(!client.served.is_finished());
        let (pieces, held_max) = (client.seen.pieces.load(SeqCst), client.seen.held_max.load(SeqCst));
        assert!(pieces < 50 && held_max < before + MIB, "{pieces} {before} {held_max} {budget:?}");
        assert!(budget.held_bytes() < before + MIB, "{budget:?}");
    });
}

/// The window is smaller than a message prefix: the part that fits is sent, and the rest waits for the window
/// without polling.
#[test]
fn an_answer_in_pieces_begins_in_whatever_window_there_is() {
    for window in 1..=6 {
        run(async move {
            let mut client = Client::new(Options::default(), 64 * MIB, &[0, 4, 0, 0, 0, window]).await;
            client.send(&calls("/test.Echo/Pieces", 0, 1, &[], "1000")).await;
            for _ in 0..100 {
                turn().await;
            }
            let bytes = |frames: Vec<Frame>| -> usize {
                frames.iter().filter(|frame| frame.kind == DATA).map(|frame| frame.payload.len()).sum()
            };
            assert_eq!(bytes(client.frames()), usize::from(window));
            client.send(&frame(WINDOW_UPDATE, 0, 1, &[0, 1, 0, 0])).await;
            let mut rest = 0;
            while rest < 1005 - usize::from(window) {
                rest += bytes(client.frames());
                turn().await;
            }
            assert_eq!(rest, 1005 - usize::from(window));
        });
    }
}

/// Requests that waited, because the queued answers were at their limit, begin in several turns, at the same
/// rate as new requests.
#[test]
fn calls_that_have_waited_begin_in_several_turns() {
    const CALLS: u32 = 6000;
    run(async {
        let options = Options { answer_bytes_max: EACH, ..Options::default() };
        let mut client = Client::new(options, 64 * MIB, &SHUT).await;
        client.send(&calls("/test.Echo/Big", 0, 2, &[], &EACH.to_string())).await;
        client.send(&calls("/test.Echo/Never", 2, CALLS, &[], "")).await;
        assert_eq!(client.seen.alive.load(SeqCst), 0, "there is no room");
        for call in 0..2 {
            client.offer(&frame(RST_STREAM, 0, 2 * call + 1, &[0, 0, 0, 8]));
        }
        let (mut before, mut at_once) = (0, 0);
        while before < CALLS as usize {
            turn().await;
            let begun = client.seen.alive.load(SeqCst);
            (before, at_once) = (begun, at_once.max(begun - before));
        }
        assert!(at_once <= 8 * 256, "{at_once} at once");
    });
}

/// Data that a call has received and not consumed keeps the window closed, and is charged.
#[test]
fn what_follows_a_message_that_was_taken_is_charged() {
    // Less than the window of the connection.
    const CALLS: u32 = 16;
    const BEHIND: usize = 60_000;
    run(async {
        let budget = Budget::new(64 * MIB);
        let options = Options { budget: budget.clone(), ..Options::default() };
        let mut client = Client::new(options, 64 * MIB, &[]).await;
        let before = budget.held_bytes();
        let mut taken = 0;
        for call in 0..CALLS {
            let head = call_block("/test.Echo/UntilClosing", &[("x-reads-one", "yes")]);
            client.send(&frame(HEADERS, END_HEADERS, 2 * call + 1, &head)).await;
            let body = [message(0, b"one"), message(0, &vec![b'x'; BEHIND])].concat();
            for part in body.chunks(15_000) {
                taken += client.send(&frame(DATA, 0, 2 * call + 1, part)).await;
            }
        }
        for _ in 0..100 {
            turn().await;
        }
        assert!(taken > 900_000, "{taken}");
        let given_back: usize = client
            .frames()
            .iter()
            .filter(|frame| frame.kind == WINDOW_UPDATE && frame.stream == 0)
            .map(|frame| {
                u32::from_be_bytes([frame.payload[0], frame.payload[1], frame.payload[2], frame.payload[3]])
                    as usize
            })
            .sum();
        // The first window update of the server enlarges the window to 1 MiB.
        assert!(given_back <= MIB, "{given_back}");
        // The initial buffers have been freed, which explains the difference to the data sent.
        assert!(budget.held_bytes() >= before + 900_000, "{before} {budget:?}");
    });
}

/// The data examined to make a piece counts as work, however short the piece is.
#[test]
fn few_pieces_for_which_much_is_looked_at_are_made_in_a_turn() {
    const CALLS: u32 = 100;
    run(async {
        let mut client = Client::new(Options::default(), 64 * MIB, &SHUT).await;
        client.send(&calls("/test.Echo/Looks", 0, CALLS, &[], &(MIB / 2).to_string())).await;
        assert_eq!(client.seen.pieces.load(SeqCst), 0, "the windows are shut");
        // All calls can continue at the same time.
        client.send(&frame(SETTINGS, 0, 0, &OPEN)).await;
        let (mut before, mut at_once) = (0, 0);
        while before < CALLS as usize {
            let made = client.seen.pieces.load(SeqCst);
            (before, at_once) = (made, at_once.max(made - before));
            turn().await;
        }
        // A turn has two halves, and each ends once the examined data exceeds its limit.
        assert!(at_once <= 6, "{at_once} at once");
    });
}

/// The limit on examined data per turn holds for every kind of call.
#[test]
fn calls_for_which_much_is_looked_at_have_so_many_slices_in_a_turn() {
    const CALLS: u32 = 100;
    for (path, slices) in [("/test.Echo/LooksAtOnce", CALLS), ("/test.Echo/LooksLater", 10 * CALLS)] {
        run(async move {
            let mut client = Client::new(Options::default(), 64 * MIB, &OPEN).await;
            let calls = calls(path, 0, CALLS, &[], &(MIB / 2).to_string());
            assert_eq!(client.offer(&calls), calls.len());
            let (mut before, mut at_once) = (0, 0);
            while before < slices as usize {
                turn().await;
                client.frames();
                let made = client.seen.pieces.load(SeqCst);
                (before, at_once) = (made, at_once.max(made - before));
            }
            // One call in each half of a turn.
            assert!(at_once <= 2, "{path}: {at_once} at once");
        });
    }
}

/// Work of the front itself reduces the work left for slices of a service.
#[test]
fn a_slice_is_as_large_as_what_packing_an_answer_has_left() {
    const TURN: usize = 64 << 10;
    const PACKED: usize = 60_000;
    run(async {
        let mut client = Client::new(Options::default(), 64 * MIB, &OPEN).await;
        let packed = calls("/test.Echo/Big", 0, 1, &[("grpc-encoding", "gzip")], &PACKED.to_string());
        let calls = [packed, calls("/test.Echo/LooksInSlices", 1, 1, &[], "")].concat();
        assert_eq!(client.offer(&calls), calls.len());
        while client.seen.pieces.load(SeqCst) == 0 {
            turn().await;
        }
        // The other half of the turn has no answer to compress, so its slice has full size.
        let looked_at = client.seen.pieces.load(SeqCst);
        assert!((1..=TURN - PACKED).contains(&(looked_at % TURN)), "{looked_at} bytes");
    });
}

#[test]
fn a_stream_packs_so_much_in_a_turn_only() {
    const MESSAGES: usize = 60;
    run(async {
        let mut client = Client::new(Options::default(), 64 * MIB, &OPEN).await;
        let text = format!("{MESSAGES}/{EACH}");
        client.send(&calls("/test.Echo/Repeat", 0, 1, &[("grpc-encoding", "gzip")], &text)).await;
        let (mut sent, mut at_once) = (0, 0);
        while sent < MESSAGES {
            let messages = client.frames().iter().filter(|frame| frame.kind == DATA).count();
            (sent, at_once) = (sent + messages, at_once.max(messages));
            turn().await;
        }
        assert!(at_once * EACH <= 3 * MIB, "{at_once} at once");
    });
}

#[test]
fn a_stream_unpacks_so_much_in_a_turn_only() {
    const MESSAGES: usize = 60;
    // Large messages, and messages so small that the fixed cost of a decoder dominates.
    for (each, at_once_max) in [(EACH, 3), (10, 40)] {
        run(async move {
            let mut client = Client::new(Options::default(), 64 * MIB, &OPEN).await;
            let fields = [("grpc-encoding", "gzip"), ("x-listens", "yes")];
            let mut bytes = frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/UntilClosing", &fields));
            let packed = message(1, &packed(&vec![0; each])).repeat(MESSAGES);
            assert!(packed.len() < 16_000);
            bytes.extend(frame(DATA, 0, 1, &packed));
            // All bytes must arrive in one read of the server.
            assert_eq!(client.offer(&bytes), bytes.len());
            let (mut before, mut at_once) = (0, 0);
            while before < MESSAGES {
                let taken = client.seen.taken.load(SeqCst);
                (before, at_once) = (taken, at_once.max(taken - before));
                turn().await;
            }
            assert!(at_once <= at_once_max, "{at_once} messages of {each} bytes at once");
        });
    }
}

/// Uncompressed messages share a frame; compressed messages go in separate frames, each of which the client
/// decompresses as one message.
#[test]
fn messages_that_are_sent_together_share_a_frame_unless_they_are_packed() {
    const MESSAGES: usize = 60;
    run(async {
        for (fields, frames) in [(&[][..], MESSAGES / 20), (&[("grpc-encoding", "gzip")][..], MESSAGES)] {
            let mut client = Client::new(Options::default(), 64 * MIB, &OPEN).await;
            client.send(&calls("/test.Echo/Repeat", 0, 1, fields, &format!("{MESSAGES}/50/20"))).await;
            let (mut data, mut ended) = (0, false);
            while !ended {
                for frame in client.frames() {
                    data += usize::from(frame.kind == DATA);
                    ended |= frame.flags & END_STREAM != 0;
                }
                turn().await;
            }
            assert_eq!(data, frames, "{fields:?}");
        }
    });
}

#[test]
fn a_client_that_is_not_read_from_is_not_taken_for_silent() {
    // Longer than the preceding steps take on a busy machine.
    let timeout = Duration::from_secs(1);
    run(async move {
        let options = Options {
            request_timeout: timeout,
            keepalive_interval: timeout,
            keepalive_timeout: timeout,
            ..Options::default()
        };
        let mut client = Client::new(options, 4096, &[]).await;
        // A call whose request is incomplete.
        client.send(&frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/Unary", &[]))).await;
        // The client does not read the answers of the other calls, until the server stops reading.
        let mut left = Vec::new();
        for stream in 1..1000_u32 {
            let path = format!("/test.Echo/{stream}{}", "x".repeat(2000));
            let call = frame(HEADERS, END_HEADERS | END_STREAM, 2 * stream + 1, &call_block(&path, &[]));
            let taken = client.send(&call).await;
            if taken < call.len() {
                left.extend(&call[taken..]);
                break;
            }
        }
        assert!(!left.is_empty(), "the server never stopped reading");
        // A silent client is pinged after one timeout and its connection is closed after another.
        let begun = Instant::now();
        while begun.elapsed() < 3 * timeout {
            assert!(!client.served.is_finished(), "the server has closed the connection");
            tokio::time::sleep(timeout / 20).await;
        }
        // The incomplete call is still open.
        left.extend(frame(DATA, END_STREAM, 1, &message(0, b"a")));
        loop {
            let mut of_call = client.frames().into_iter().filter(|frame| frame.stream == 1);
            if let Some(frame) = of_call.next() {
                assert_eq!(frame.kind, HEADERS);
                break;
            }
            assert!(!client.served.is_finished(), "the server has closed the connection");
            let n = client.offer(&left);
            left.drain(..n);
            turn().await;
        }
    });
}

#[test]
fn the_calls_of_a_connection_that_closes_end_in_turns() {
    const CALLS: u32 = 2000;
    run(async {
        let mut client = Client::new(Options::default(), MIB, &[]).await;
        let block = call_block("/test.Echo/Bidi", &[]);
        for call in 0..CALLS {
            client.send(&frame(HEADERS, END_HEADERS, 2 * call + 1, &block)).await;
        }
        let seen = client.seen.clone();
        let alive = || seen.alive.load(SeqCst);
        until("all calls have begun", || alive() == CALLS as usize).await;
        let Client { stream, served, .. } = client;
        drop(stream);
        let mut left = alive();
        while left > 0 {
            turn().await;
            let now = alive();
            assert!(left - now <= 256, "{} calls ended in one turn", left - now);
            left = now;
        }
        served.await.expect("the connection ends");
    });
}

#[test]
fn a_connection_that_waits_for_a_long_turn_goes_at_once_if_its_memory_is_needed() {
    run(async {
        let budget = Budget::new(16 * MIB);
        let options = || Options { budget: budget.clone(), ..Options::default() };
        let mut largest = Client::behind_others(options(), &OPEN).await;
        largest.send(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])).await;
        largest.send(&calls("/test.Echo/Pieces", 0, 1, &[], "8000000/8000000")).await;
        until("a long turn", || largest.seen.pieces.load(SeqCst) > 0).await;
        assert!(budget.held_bytes() > 4 * MIB, "{budget:?}");
        let mut others = Vec::new();
        let mut begun = frame(HEADERS, END_HEADERS, 1, &call_block("/test.Echo/Unary", &[]));
        begun.extend(frame(DATA, 0, 1, &message(0, &[0; 700_000])[..15_000]));
        while budget.connections_shed() == 0 {
            assert!(others.len() < 20, "{budget:?}");
            let mut other = Client::new(options(), 64 * MIB, &SHUT).await;
            other.send(&begun).await;
            others.push(other);
        }
        until("the largest is gone", || largest.served.is_finished()).await;
    });
}
