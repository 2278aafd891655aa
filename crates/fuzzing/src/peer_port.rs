//! Sends arbitrary bytes to the peer port: as streams of raft messages, and as whole connections.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::raftpb::{ConfState, Entry, Message, MessageType, Snapshot, SnapshotMetadata};
use bytes::Bytes;
use peer::{BoxError, Handler, Options, SnapshotForm, SnapshotOutcome, fuzzing};
use prost::Message as _;

use crate::script::{Scribe, Script, pieces};

const LOCAL: u64 = 0x11;
const REMOTE: u64 = 0x22;
/// Time within which a connection must end after its other end was closed.
const PATIENCE: Duration = Duration::from_secs(8);

fn examples() -> Vec<Message> {
    let of = |kind: MessageType| Message {
        r#type: Some(kind as i32),
        to: Some(LOCAL),
        from: Some(REMOTE),
        term: Some(5),
        ..Message::default()
    };
    let entry = |term, index| Entry {
        r#type: Some(0),
        term: Some(term),
        index: Some(index),
        data: Some(Bytes::from_static(b"data")),
    };
    let app = |log_term, index, entries, commit| Message {
        log_term: Some(log_term),
        index: Some(index),
        entries,
        commit: Some(commit),
        ..of(MessageType::MsgApp)
    };
    let conf = ConfState { voters: vec![LOCAL, REMOTE], ..ConfState::default() };
    let metadata = SnapshotMetadata { conf_state: Some(conf), index: Some(9), term: Some(4) };
    vec![
        app(4, 7, vec![entry(5, 8), entry(5, 9)], 6),
        app(5, 9, vec![entry(5, 10)], 8),
        app(5, 10, Vec::new(), 10),
        app(4, 2, vec![entry(4, 3)], 2),
        of(MessageType::MsgHeartbeat),
        Message { reject: Some(true), reject_hint: Some(3), ..of(MessageType::MsgAppResp) },
        Message { context: Some(Bytes::from_static(b"CampaignTransfer")), ..of(MessageType::MsgVote) },
        Message {
            snapshot: Some(Snapshot { data: None, metadata: Some(metadata) }),
            ..of(MessageType::MsgSnap)
        },
    ]
}

/// Fuzz target for both kinds of message streams. The decoded messages must be the same however the bytes are
/// divided, and they must be the same after they were written and read again.
pub fn run_streams(data: &[u8]) {
    let mut script = Script::new(data);
    let (is_apps, cut) = (script.flip(), script.u8());
    let bytes = script.rest();
    let read = |bytes: &[u8], cut| match is_apps {
        true => fuzzing::read_apps(LOCAL, REMOTE, pieces(bytes, cut)),
        false => fuzzing::read_messages(pieces(bytes, cut)),
    };
    let (messages, error) = read(bytes, 0);
    assert_eq!((messages.clone(), error), read(bytes, cut));
    // A stream for append messages can carry no others, so leave the others out.
    let messages: Vec<Message> = messages
        .into_iter()
        .filter(|message| !is_apps || message.r#type == Some(MessageType::MsgApp as i32))
        .collect();
    let written = if is_apps { fuzzing::write_apps(&messages) } else { fuzzing::write_messages(&messages) };
    let (again, error) = read(&written, cut);
    assert_eq!(error, None);
    if !is_apps {
        assert_eq!(messages, again);
    }
    // The encoding of append messages leaves out some fields, so compare only the fields that it keeps.
    assert_eq!(messages.len(), again.len());
    for (message, again) in messages.iter().zip(&again) {
        assert_eq!((message.r#type, &message.entries), (again.r#type, &again.entries));
        assert_eq!(message.commit.unwrap_or(0), again.commit.unwrap_or(0));
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(written) = fuzzing::rewrite_time(text)
    {
        assert_eq!(fuzzing::rewrite_time(&written).as_deref(), Some(written.as_str()), "{text}");
    }
}

/// Returns seeds with streams of both kinds, and a time.
pub fn seeds_streams() -> Vec<Vec<u8>> {
    let apps: Vec<Message> =
        examples().into_iter().filter(|message| message.r#type() == MessageType::MsgApp).collect();
    vec![
        [&[1, 7], fuzzing::write_apps(&apps).as_slice()].concat(),
        [&[0, 7], fuzzing::write_messages(&examples()).as_slice()].concat(),
        b"\0\x032026-11-21T12:50:53.5+02:00".to_vec(),
    ]
}

/// Handler that accepts every message and drops it.
struct Hole;

impl Handler for Hole {
    fn received(&self, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            assert_eq!(message.to.unwrap_or(0), LOCAL, "a message for somebody else: {message:?}");
            assert_ne!(message.r#type, Some(MessageType::MsgSnap as i32));
        }
    }

    fn is_removed(&self, id: u64) -> bool {
        id == 0x99
    }

    fn unreachable(&self, _: u64) {}

    fn snapshot_sent(&self, _: u64, _: SnapshotOutcome) {}

    fn removed(&self, _: u64) {}

    fn receive_snapshot(
        &self,
        message: Message,
        _: SnapshotForm,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), BoxError> {
        assert_eq!(message.r#type, Some(MessageType::MsgSnap as i32));
        for piece in body {
            piece?;
        }
        Ok(())
    }

    fn http(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = http::Response<Bytes>> + Send>> {
        Box::pin(async move { http::Response::new(request.into_body()) })
    }
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
}

const PATHS: [&str; 10] = [
    "/raft",
    "/raft/snapshot",
    "/raft/stream/msgapp/22",
    "/raft/stream/message/22",
    "/raft/stream/message/99",
    "/raft/probing",
    "/members",
    "/version",
    "/mainstay/snapshot",
    "/raft/stream/",
];

/// Fuzz target for connections: sends requests whose heads are built from the input, with the right length of
/// the body. If the first byte of the input is 0, all bytes after the second one are sent unchanged.
pub fn run_requests(data: &[u8]) {
    let mut script = Script::new(data);
    let (how, cut) = (script.u8(), script.u8());
    let mut bytes = Vec::new();
    if how == 0 {
        bytes.extend_from_slice(script.rest());
    }
    while !script.is_done() {
        let (path, flags) = (script.pick(&PATHS), script.u8());
        let method = if flags & 1 == 0 { "POST" } else { "GET" };
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n");
        if flags & 2 == 0 {
            head += "X-Server-From: 22\r\nX-Server-Version: 3.7.1\r\nX-Min-Cluster-Version: 3.0.0\r\n";
            head += "X-Etcd-Cluster-ID: c1\r\nX-Raft-To: 11\r\n";
        }
        if flags & 4 == 0 {
            head += "X-Mainstay-Snapshot: 1\r\n";
        }
        bytes.extend_from_slice(head.as_bytes());
        if flags & 8 != 0 {
            // Adds a header from the script, without line breaks, so that it stays a single header.
            let line = script.run().iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n'));
            bytes.extend(line);
            bytes.extend_from_slice(b"\r\n");
        }
        let mut body = script.run().to_vec();
        if path == "/raft/snapshot" && flags & 16 == 0 {
            let envelope = body.len() as u64;
            body.splice(0..0, envelope.to_be_bytes());
            body.extend_from_slice(script.run());
        }
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(&body);
    }
    let options = Options {
        local_id: LOCAL,
        cluster_id: 0xc1,
        peer_urls: vec!["http://127.0.0.1:2380".to_owned()],
        server_version: "3.7.1",
        min_cluster_version: "3.0.0",
        // A short timeout makes the member send heartbeats often. The writer of a stream notices that the
        // reader is gone only when it writes, so the connection would otherwise end late.
        read_timeout: Duration::from_millis(6),
        write_timeout: Duration::from_secs(2),
        listeners: Vec::new(),
        tls: None,
        local_address: None,
        zone: String::new(),
    };
    let pieces = pieces(&bytes, cut).map(Bytes::copy_from_slice).collect();
    let ended = RUNTIME
        .with(|runtime| fuzzing::serve(runtime, &options, Arc::new(Hole), &[REMOTE, 0x33], pieces, PATIENCE));
    assert!(ended.expect("the options are sound"), "the connection outlives its other end");
}

/// Returns requests to every path.
pub fn seeds_requests() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for message in examples() {
        seeds.push(Scribe::default().u8(1).u8(40).u8(0).u8(4).run(&message.encode_to_vec()).done());
    }
    let snapshot = examples().pop().map(|message| message.encode_to_vec()).unwrap_or_default();
    seeds.push(Scribe::default().u8(1).u8(0).u8(1).u8(0).run(&snapshot).run(b"the state").done());
    for path in 2..PATHS.len() as u8 {
        seeds.push(Scribe::default().u8(1).u8(0).u8(path).u8(1).run(b"").done());
        seeds.push(
            Scribe::default().u8(1).u8(0).u8(path).u8(8).run(b"X-PeerURLs: http://a:1").run(b"{}").done(),
        );
    }
    seeds.push(b"\0\x05GET /raft/probing HTTP/1.1\r\nHost: a\r\n\r\nGET /members HTTP/1.1\r\n\r\n".to_vec());
    seeds
}
