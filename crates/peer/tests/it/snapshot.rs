use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use api::raftpb::{ConfState, Message, MessageType, Snapshot, SnapshotMetadata};
use bytes::Bytes;
use http::Response;
use mainstay_peer::{BoxError, OpenedSnapshot, SnapshotForm, SnapshotSource};
use prost::Message as _;
use testkit::Random;

use crate::kit::{self, Member, Timeouts, introduce, message};
use crate::raw::{self, headers, request, with};

const PIECE_BYTES: usize = 64 * 1024;

/// Observations of a received snapshot: number of bytes, their digest, the error at its end.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub bytes: usize,
    pub digest: u64,
    error: Option<String>,
}

/// Returns a piece of pseudorandom bytes that depends on `number`.
fn piece(number: usize) -> Bytes {
    Random::new(number as u64).bytes(PIECE_BYTES).into()
}

pub struct Source {
    pieces: usize,
    /// Number of pieces after which the source fails.
    fails_after: Option<usize>,
    asked: Arc<Mutex<Option<Option<Bytes>>>>,
    pub digest: Arc<Mutex<DefaultHasher>>,
    /// Data of the snapshot in the message, if the pieces are in etcd's format.
    data: Option<Bytes>,
    /// Receives the number of each piece that was taken.
    progress: Option<mpsc::Sender<usize>>,
}

impl Source {
    pub fn of(pieces: usize) -> Source {
        let (asked, digest) = (Arc::default(), Arc::default());
        Source { pieces, fails_after: None, asked, digest, data: None, progress: None }
    }
}

impl SnapshotSource for Source {
    fn open(&mut self, receiver: Option<Response<Bytes>>) -> Result<OpenedSnapshot<'_>, BoxError> {
        *self.asked.lock().unwrap() = Some(receiver.map(Response::into_body));
        if self.pieces == 0 {
            return Err("there is no snapshot".into());
        }
        let fails_after = self.fails_after;
        let form = if self.data.is_some() { SnapshotForm::Etcd } else { SnapshotForm::Own };
        let data = self.data.clone().unwrap_or_default();
        let pieces = Box::new((0..self.pieces).map(move |number| {
            if fails_after == Some(number) {
                return Err(io::Error::other("the disk is gone"));
            }
            if let Some(progress) = &self.progress {
                let _ = progress.send(number);
            }
            let piece = piece(number);
            self.digest.lock().unwrap().write(&piece);
            Ok(piece)
        }));
        Ok(OpenedSnapshot { form, data, pieces })
    }
}

pub fn metadata(from: u64, to: u64) -> Message {
    let conf_state = Some(ConfState { voters: vec![1, 2], ..ConfState::default() });
    let metadata = Some(SnapshotMetadata { conf_state, index: Some(77), term: Some(3) });
    Message {
        snapshot: Some(Snapshot { data: None, metadata }),
        ..message(MessageType::MsgSnap, from, to, 3)
    }
}

/// Makes a member read snapshots to their end; returns the observations.
pub fn reads(member: &Member) -> Arc<Mutex<Vec<(Message, Seen)>>> {
    reads_told(member, || ())
}

/// Makes a member read snapshots like [`reads`], and calls a function for each piece.
fn reads_told(
    member: &Member,
    of_piece: impl Fn() + Send + Sync + 'static,
) -> Arc<Mutex<Vec<(Message, Seen)>>> {
    let seen: Arc<Mutex<Vec<(Message, Seen)>>> = Arc::default();
    let all = Arc::clone(&seen);
    *member.recorder.take_snapshot.lock().unwrap() = Some(Arc::new(Box::new(move |message, body| {
        let (mut seen, mut digest) = (Seen::default(), DefaultHasher::new());
        for piece in body {
            of_piece();
            match piece {
                Ok(piece) => {
                    seen.bytes += piece.len();
                    digest.write(&piece);
                }
                Err(error) => seen.error = Some(error.to_string()),
            }
        }
        seen.digest = digest.finish();
        let result = seen.error.clone().map_or(Ok(()), Err);
        all.lock().unwrap().push((message, seen));
        result.map_err(Into::into)
    })));
    seen
}

fn two() -> (Member, Member) {
    let (one, two) = (kit::member(1), kit::member(2));
    introduce(&[&one, &two]);
    kit::wait_streams(&one, &two);
    (one, two)
}

#[test]
fn a_snapshot_of_50_mb_arrives_whole() {
    let (one, two) = two();
    let seen = reads(&two);
    two.recorder.with(|heard| heard.receiver = Some("I have up to 12".into()));
    let source = Source::of(50 * 16);
    let (asked, digest) = (Arc::clone(&source.asked), Arc::clone(&source.digest));
    one.peers.send_snapshot(metadata(1, 2), Box::new(source));
    one.recorder.wait("sent", |heard| (heard.snapshots_sent == [(2, true)]).then_some(()));
    let seen = seen.lock().unwrap();
    let expected = Seen { bytes: 50 << 20, digest: digest.lock().unwrap().finish(), error: None };
    assert_eq!(*seen, [(metadata(1, 2), expected)]);
    assert_eq!(asked.lock().unwrap().clone(), Some(Some("I have up to 12".into())));

    let (sent, received) = (one.peers.figures(), two.peers.figures());
    let (sent, received) = (&sent.peers[&2].snapshots_sent, &received.peers[&1].snapshots_received);
    assert_eq!((sent.successes, sent.failures, sent.in_flight, sent.seconds.count), (1, 0, 0, 1));
    assert_eq!((received.successes, received.failures, received.in_flight), (1, 0, 0));
    assert_eq!(received.bytes, 50 << 20);
    assert_eq!(sent.bytes, (50 << 20) + 8 + metadata(1, 2).encoded_len() as u64);
    assert_eq!(one.recorder.with(|heard| heard.unreachable.clone()), [0; 0]);
}

#[test]
fn a_receiver_that_does_not_know_the_question_gets_a_database() {
    let (one, two) = two();
    let seen = reads(&two);
    let source = Source { data: Some("an image".into()), ..Source::of(1) };
    let asked = Arc::clone(&source.asked);
    one.peers.send_snapshot(metadata(1, 2), Box::new(source));
    one.recorder.wait("sent", |heard| (heard.snapshots_sent == [(2, true)]).then_some(()));
    assert_eq!(asked.lock().unwrap().clone(), Some(None));
    assert_eq!(two.recorder.with(|heard| heard.forms.clone()), [SnapshotForm::Etcd]);
    let (message, bytes) = &seen.lock().unwrap()[0];
    assert_eq!(bytes.bytes, PIECE_BYTES);
    assert_eq!(message.snapshot.as_ref().and_then(|snapshot| snapshot.data.clone()), Some("an image".into()));
}

#[test]
fn a_receiver_that_is_only_busy_gets_nothing() {
    let (one, two) = two();
    let seen = reads(&two);
    two.recorder.with(|heard| heard.busy = true);
    let source = Source::of(1);
    let asked = Arc::clone(&source.asked);
    one.peers.send_snapshot(metadata(1, 2), Box::new(source));
    one.recorder.wait("failed", |heard| (heard.snapshots_sent == [(2, false)]).then_some(()));
    kit::wait_log(&one, "failed to send database snapshot", 2, "the member is stopping");
    assert_eq!(asked.lock().unwrap().clone(), None);
    assert!(seen.lock().unwrap().is_empty());
}

#[test]
fn a_source_that_fails_breaks_the_snapshot_off() {
    let (one, two) = two();
    let seen = reads(&two);
    let source = Source { fails_after: Some(20), ..Source::of(100) };
    one.peers.send_snapshot(metadata(1, 2), Box::new(source));
    one.recorder.wait("failed", |heard| (heard.snapshots_sent == [(2, false)]).then_some(()));
    one.recorder.wait("unreachable", |heard| (heard.unreachable == [2]).then_some(()));
    kit::wait_log(&one, "failed to send database snapshot", 2, "the disk is gone");
    kit::until("broken", || seen.lock().unwrap().iter().any(|seen| seen.1.error.is_some()).then_some(()));
    assert!(seen.lock().unwrap()[0].1.bytes <= 20 * PIECE_BYTES);

    // A snapshot that cannot be opened sends nothing.
    one.peers.send_snapshot(metadata(1, 2), Box::new(Source::of(0)));
    one.recorder.wait("failed", |heard| (heard.snapshots_sent == [(2, false), (2, false)]).then_some(()));
    assert_eq!(seen.lock().unwrap().len(), 1);
    let figures = two.peers.figures().peers[&1].snapshots_received.clone();
    assert_eq!((figures.successes, figures.failures, figures.in_flight), (0, 1, 0));
}

#[test]
fn a_connection_that_breaks_never_looks_like_an_end() {
    let (one, _two) = two();
    let seen = reads(&one);
    let headers = with(with(headers("2"), "X-Mainstay-Snapshot", "1"), "Transfer-Encoding", "chunked");
    let envelope = metadata(2, 1).encode_to_vec();
    let mut body = (envelope.len() as u64).to_be_bytes().to_vec();
    body.extend(&envelope);
    body.extend(b"half");
    let mut stream = raw::connect(&one.url);
    stream.write_all(&raw::head("POST", "/raft/snapshot", &headers)).unwrap();
    stream.write_all(&raw::chunk(&body)).unwrap();
    drop(stream);
    kit::until("broken", || seen.lock().unwrap().first().map(|_| ()));
    let seen = seen.lock().unwrap();
    assert_eq!((seen[0].1.bytes, &seen[0].0), (4, &metadata(2, 1)));
    assert!(seen[0].1.error.is_some(), "{seen:?}");
}

#[test]
fn strangers_with_slow_snapshots_make_way_for_the_member_whom_they_name() {
    let (one, two) = two();
    let seen = reads(&two);
    let headers = with(with(headers("1"), "X-Mainstay-Snapshot", "1"), "Transfer-Encoding", "chunked");
    let envelope = metadata(1, 2).encode_to_vec();
    let mut body = (envelope.len() as u64).to_be_bytes().to_vec();
    body.extend(&envelope);
    body.extend(b"half");
    // Connections from an address other than the one at which the member is reached.
    let strangers: Vec<_> = (0..5)
        .map(|_| {
            let mut stream = raw::connect_from([127, 0, 0, 2], &two.url);
            stream.write_all(&raw::head("POST", "/raft/snapshot", &headers)).unwrap();
            stream.write_all(&raw::chunk(&body)).unwrap();
            stream
        })
        .collect();
    let in_flight = || two.peers.figures().peers[&1].snapshots_received.in_flight;
    kit::until("they have all places", || (in_flight() == 4).then_some(()));
    one.peers.send_snapshot(metadata(1, 2), Box::new(Source::of(4)));
    one.recorder.wait("sent", |heard| (!heard.snapshots_sent.is_empty()).then_some(()));
    assert_eq!(one.recorder.with(|heard| heard.snapshots_sent.clone()), [(2, true)]);
    // All of them were ended for the real snapshot.
    kit::until("they are broken", || (seen.lock().unwrap().len() == 5).then_some(()));
    assert_eq!(in_flight(), 0);
    assert_eq!(seen.lock().unwrap().iter().filter(|(_, seen)| seen.error.is_some()).count(), 4);
    drop(strangers);
}

#[test]
fn a_member_is_at_home_only_where_streams_of_it_are_up() {
    let (one, two) = two();
    let _seen = reads(&two);
    let headers = with(with(headers("1"), "X-Mainstay-Snapshot", "1"), "Transfer-Encoding", "chunked");
    let envelope = metadata(1, 2).encode_to_vec();
    let mut body = (envelope.len() as u64).to_be_bytes().to_vec();
    body.extend(&envelope);
    let begin = |address| {
        let mut stream = raw::connect_from(address, &two.url);
        stream.write_all(&raw::head("POST", "/raft/snapshot", &headers)).unwrap();
        stream.write_all(&raw::chunk(&body)).unwrap();
        stream
    };
    let in_flight = || two.peers.figures().peers[&1].snapshots_received.in_flight;
    let lost = || {
        let lost = |line: &&String| line.contains("lost TCP streaming connection with remote peer");
        two.recorder.with(|heard| heard.lines.iter().filter(lost).count())
    };
    one.peers.stop();
    kit::until("both streams are lost", || (lost() == 2).then_some(()));
    let strangers: Vec<_> = (0..4).map(|_| begin([127, 0, 0, 2])).collect();
    kit::until("they have all places", || (in_flight() == 4).then_some(()));
    // The address now belongs to another process.
    let mut answer = [0; 12];
    begin([127, 0, 0, 1]).read_exact(&mut answer).unwrap();
    assert_eq!((&answer, in_flight()), (b"HTTP/1.1 503", 4));
    drop(strangers);
}

#[test]
fn slow_snapshots_from_a_members_own_address_make_way_for_its_own() {
    let timeouts = Timeouts { read: Duration::from_millis(150), ..kit::TIMEOUTS };
    let members = [1, 2].map(|id| {
        let (listener, url) = kit::listen();
        kit::member_at(id, kit::CLUSTER, listener, &url, timeouts)
    });
    let [one, two] = &members;
    introduce(&[one, two]);
    kit::wait_streams(one, two);
    let seen = reads(two);
    let headers = with(with(headers("1"), "X-Mainstay-Snapshot", "1"), "Transfer-Encoding", "chunked");
    let envelope = metadata(1, 2).encode_to_vec();
    let mut body = (envelope.len() as u64).to_be_bytes().to_vec();
    body.extend(&envelope);
    let mut strangers: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = raw::connect(&two.url);
            stream.write_all(&raw::head("POST", "/raft/snapshot", &headers)).unwrap();
            stream.write_all(&raw::chunk(&body)).unwrap();
            stream
        })
        .collect();
    let in_flight = || two.peers.figures().peers[&1].snapshots_received.in_flight;
    kit::until("they have all places", || (in_flight() == 4).then_some(()));
    // These connections send just enough not to time out.
    send_until_it_arrives(one, || {
        for stranger in &mut strangers {
            // The connection may have been closed for another snapshot.
            let _ = stranger.write_all(&raw::chunk(&[0; 1024]));
        }
    });
    kit::until("the others are broken off", || (in_flight() == 0).then_some(()));
    kit::until("all have come to their end", || (seen.lock().unwrap().len() == 5).then_some(()));
    assert_eq!(seen.lock().unwrap().iter().filter(|(_, seen)| seen.error.is_some()).count(), 4);
}

/// Sends a snapshot to member 2, and another after each failure, like raft, until one arrives. Calls `before`
/// before each.
fn send_until_it_arrives(one: &kit::Member, mut before: impl FnMut()) {
    let mut attempts = 0;
    kit::until("the snapshot arrives", || {
        let ended = one.recorder.with(|heard| heard.snapshots_sent.clone());
        let is_sent = ended.contains(&(2, true));
        if !is_sent && ended.len() == attempts {
            before();
            attempts += 1;
            one.peers.send_snapshot(metadata(1, 2), Box::new(Source::of(4)));
        }
        is_sent.then_some(())
    });
}

#[test]
fn a_snapshot_that_has_arrived_is_not_slow_while_its_receiver_works() {
    let timeouts = Timeouts { read: Duration::from_millis(500), ..kit::TIMEOUTS };
    let members = [1, 2].map(|id| {
        let (listener, url) = kit::listen();
        kit::member_at(id, kit::CLUSTER, listener, &url, timeouts)
    });
    let [one, two] = &members;
    introduce(&[one, two]);
    kit::wait_streams(one, two);
    let (end, ended) = mpsc::channel();
    let (work, worked) = mpsc::channel::<()>();
    // The first snapshot keeps its receiver busy until the test releases it.
    let worked = Mutex::new(Some(worked));
    *two.recorder.take_snapshot.lock().unwrap() = Some(Arc::new(Box::new(move |_, body| {
        let error = body.filter_map(Result::err).next();
        let work = worked.lock().unwrap().take();
        end.send(error.as_ref().map(ToString::to_string)).unwrap();
        // The receive ends with an error, because nothing is ever sent.
        let _ = work.map(|work| work.recv());
        error.map_or(Ok(()), |error| Err(error.into()))
    })));
    let headers = with(with(headers("1"), "X-Mainstay-Snapshot", "1"), "Transfer-Encoding", "chunked");
    let envelope = metadata(1, 2).encode_to_vec();
    let mut body = (envelope.len() as u64).to_be_bytes().to_vec();
    body.extend(&envelope);
    let begin = |rest: &[u8]| {
        let mut stream = raw::connect(&two.url);
        stream.write_all(&raw::head("POST", "/raft/snapshot", &headers)).unwrap();
        stream.write_all(&raw::chunk(&body)).unwrap();
        stream.write_all(rest).unwrap();
        stream
    };
    let mut whole = begin(b"0\r\n\r\n");
    assert_eq!(ended.recv(), Ok(None), "all of it has arrived");
    // The second connection sends nothing and times out. The first snapshot lasts longer than that.
    let silent = begin(b"");
    let broken = ended.recv().unwrap().expect("breaks off");
    assert!(broken.contains("silent"), "{broken}");
    drop(silent);
    // The next snapshot of this sender does not end the first one. If the sender's streams were interrupted,
    // it is refused until they are up again.
    send_until_it_arrives(one, || {});
    assert_eq!(ended.recv(), Ok(None));
    drop(work);
    let mut answer = [0; 12];
    whole.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 204");
}

#[test]
fn a_snapshot_is_broken_off_when_its_receiver_stops() {
    let (one, two) = two();
    let (reading, begun) = mpsc::channel();
    let seen = reads_told(&two, move || {
        // The test waits for the first piece only.
        let _ = reading.send(());
    });
    let (progress, taken) = mpsc::channel();
    one.peers
        .send_snapshot(metadata(1, 2), Box::new(Source { progress: Some(progress), ..Source::of(100_000) }));
    assert!(taken.iter().any(|number| number == 50));
    // Sent data may still be in the sockets.
    begun.recv().expect("the receiver reads");
    two.peers.stop();
    one.recorder.wait("failed", |heard| (heard.snapshots_sent == [(2, false)]).then_some(()));
    kit::until("broken", || seen.lock().unwrap().first().map(|_| ()));
    assert!(seen.lock().unwrap()[0].1.error.is_some());
    let last = taken.iter().last().unwrap_or(50);
    assert!(last < 99_999, "the source was not read to its end for nothing");
}

#[test]
fn a_refusal_reaches_the_sender_while_it_writes() {
    let (one, two) = two();
    *two.recorder.take_snapshot.lock().unwrap() = Some(Arc::new(Box::new(|_, body| {
        body.next().unwrap().unwrap();
        Err("mainstay: no room for it".into())
    })));
    let (progress, taken) = mpsc::channel();
    one.peers
        .send_snapshot(metadata(1, 2), Box::new(Source { progress: Some(progress), ..Source::of(100_000) }));
    one.recorder.wait("failed", |heard| (heard.snapshots_sent == [(2, false)]).then_some(()));
    kit::wait_log(
        &one,
        "failed to send database snapshot",
        2,
        "500 Internal Server Error: mainstay: no room for it",
    );
    assert!(taken.iter().last().unwrap() < 99_999);
}

#[test]
fn a_slow_receiver_slows_the_source() {
    let (one, two) = two();
    let (go, goes) = mpsc::channel::<()>();
    let goes = Mutex::new(goes);
    *two.recorder.take_snapshot.lock().unwrap() = Some(Arc::new(Box::new(move |_, body| {
        goes.lock().unwrap().recv().unwrap();
        assert_eq!(body.map(|piece| piece.unwrap().len()).sum::<usize>(), 2000 * PIECE_BYTES);
        Ok(())
    })));
    let (progress, taken) = mpsc::channel();
    one.peers
        .send_snapshot(metadata(1, 2), Box::new(Source { progress: Some(progress), ..Source::of(2000) }));
    // The source is read until all buffers are full, and no further.
    let mut last = 0;
    while let Ok(number) = taken.recv_timeout(std::time::Duration::from_millis(500)) {
        last = number;
    }
    assert!(last < 400, "{last} pieces were read ahead");
    go.send(()).unwrap();
    one.recorder.wait("sent", |heard| (heard.snapshots_sent == [(2, true)]).then_some(()));
}

#[test]
fn one_snapshot_at_a_time_goes_to_a_peer() {
    let (one, two) = two();
    let (go, goes) = mpsc::channel::<()>();
    let goes = Mutex::new(goes);
    *two.recorder.take_snapshot.lock().unwrap() = Some(Arc::new(Box::new(move |_, body| {
        goes.lock().unwrap().recv().unwrap();
        body.last();
        Ok(())
    })));
    one.peers.send_snapshot(metadata(1, 2), Box::new(Source::of(1)));
    one.peers.send_snapshot(metadata(1, 2), Box::new(Source::of(1)));
    one.recorder.wait("refused", |heard| (heard.snapshots_sent == [(2, false)]).then_some(()));
    // A MsgSnap among other messages has no snapshot data behind it.
    one.peers.send(vec![metadata(1, 2)]);
    one.recorder.wait("refused", |heard| (heard.snapshots_sent == [(2, false), (2, false)]).then_some(()));
    go.send(()).unwrap();
    one.recorder.wait("sent", |heard| (heard.snapshots_sent.last() == Some(&(2, true))).then_some(()));
}

#[test]
fn snapshots_are_refused_as_etcd_refuses_them() {
    let one = kit::member(1);
    one.peers.set_members(vec![(2, vec![kit::nowhere()])]);
    one.recorder.with(|heard| heard.removed_ids.push(9));
    let seen = reads(&one);
    let ours = || with(headers("2"), "X-Mainstay-Snapshot", "1");
    let framed = |message: &Message| {
        let mut body = (message.encoded_len() as u64).to_be_bytes().to_vec();
        message.encode(&mut body).unwrap();
        body
    };
    let good = framed(&metadata(2, 1));
    let mut limit = vec![0, 0, 0, 0, 4, 0, 0, 1];
    limit.extend([0; 100]);
    let cases = [
        (ours(), vec![0; 3], 400, "failed to decode raft message (unexpected EOF)\n"),
        (ours(), good[..12].to_vec(), 400, "failed to decode raft message (unexpected EOF)\n"),
        (ours(), limit, 400, "failed to decode raft message (rafthttp: error limit exceeded)\n"),
        (ours(), framed(&kit::heartbeat(2, 1, 3)), 400, "wrong raft message type\n"),
        (
            ours(),
            framed(&metadata(2, 3)),
            500,
            "failed to process raft message (cannot process message to mismatch member)\n",
        ),
        (
            ours(),
            framed(&metadata(9, 1)),
            403,
            "{\"message\":\"cannot process message from removed member\"}",
        ),
        (ours(), framed(&metadata(8, 1)), 403, "failed to process raft message (unknown sender)\n"),
        (with(ours(), "X-Etcd-Cluster-ID", "c2"), good.clone(), 412, "cluster ID mismatch\n"),
        (with(ours(), "X-Server-Version", ""), good.clone(), 412, "incompatible version\n"),
    ];
    for (headers, body, status, text) in cases {
        let answer = request(&one.url, "POST", "/raft/snapshot", &headers, &body);
        assert_eq!((answer.status, answer.text()), (status, text));
        assert_eq!(answer.header("x-etcd-cluster-id"), Some("c1"));
    }
    let got = request(&one.url, "GET", "/raft/snapshot", &ours(), b"");
    assert_eq!((got.status, got.header("allow")), (405, Some("POST")));
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(request(&one.url, "POST", "/raft/snapshot", &ours(), &good).status, 204);
    assert_eq!(request(&one.url, "POST", "/raft/snapshot", &headers("2"), &good).status, 204);
    assert_eq!(seen.lock().unwrap().len(), 2);
    assert_eq!(one.recorder.with(|heard| heard.forms.clone()), [SnapshotForm::Own, SnapshotForm::Etcd]);
    *one.recorder.take_snapshot.lock().unwrap() = None;
    let answer = request(&one.url, "POST", "/raft/snapshot", &headers("2"), &good);
    let text = "failed to save KV snapshot (no snapshot was expected)\n";
    assert_eq!((answer.status, answer.text()), (500, text));
    assert_eq!(one.peers.figures().unknown_snapshot_failures, 5);
}
