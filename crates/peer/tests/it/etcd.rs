//! Tests against a real etcd, whose other member is the test.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api::raftpb::{Entry, Message, MessageType};
use bytes::Bytes;
use mainstay_peer::Listener;
use testkit::TempDir;
use tls::{Settings, Tls};

use crate::kit::{self, DEADLINE, Member, TIMEOUTS, message};
use crate::pki::{Authority, Files, load, params};

/// etcd process under test; killed when dropped.
struct Etcd {
    child: Child,
    /// Held until the test ends, then removed.
    _directory: TempDir,
    peer_url: String,
    client_url: String,
}

/// TLS files and settings for the two members.
struct Secured {
    /// Held until the test ends, then removed.
    _files: Files,
    etcd: Settings,
    ours: Tls,
}

impl Secured {
    fn new() -> Secured {
        let (files, authority) = (Files::new(), Authority::new("ca"));
        let etcd = files.settings("etcd", &authority, params("etcd", &["127.0.0.1"]));
        let ours = load(files.settings("ours", &authority, params("ours", &["127.0.0.1"]))).0;
        Secured { _files: files, etcd, ours }
    }

    /// Returns the TLS flags for etcd.
    fn flags(&self) -> Vec<String> {
        let flag = |name: &str, file: &Option<PathBuf>| {
            format!("--peer-{name}={}", file.as_deref().unwrap().display())
        };
        let Settings { cert_file, key_file, trusted_ca_file, .. } = &self.etcd;
        vec![
            flag("cert-file", cert_file),
            flag("key-file", key_file),
            flag("trusted-ca-file", trusted_ca_file),
            "--peer-client-cert-auth".to_owned(),
        ]
    }
}

impl Etcd {
    fn start(binary: &str, other: &str, secured: Option<&Secured>) -> Etcd {
        let free = || testkit::ports::free_address();
        let scheme = if secured.is_some() { "https" } else { "http" };
        let (peer_url, client_url) = (format!("{scheme}://{}", free()), format!("http://{}", free()));
        let directory = TempDir::new("peer-etcd");
        let cluster = format!("etcd={peer_url},ours={other}");
        let options = [
            ("--name", "etcd"),
            ("--data-dir", directory.path().to_str().unwrap()),
            ("--listen-peer-urls", &peer_url),
            ("--initial-advertise-peer-urls", &peer_url),
            ("--listen-client-urls", &client_url),
            ("--advertise-client-urls", &client_url),
            ("--initial-cluster", &cluster),
        ];
        let child = Command::new(binary)
            .args(options.iter().flat_map(|option| [option.0, option.1]))
            .args(secured.map(Secured::flags).unwrap_or_default())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Etcd { child, _directory: directory, peer_url, client_url }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fetch(
    url: &str,
    method: &str,
    path: &str,
    body: &str,
    tls: Option<&tls::ClientTls>,
) -> Result<http::Response<Bytes>, mainstay_peer::RequestError> {
    let request =
        http::Request::builder().method(method).uri(path).body(Bytes::from(body.to_owned())).unwrap();
    mainstay_peer::fetch(url, request, Duration::from_secs(5), tls)
}

/// Follower that accepts everything, and records what it receives.
struct Follower<'a> {
    member: &'a Member,
    leader: u64,
    counts: std::collections::BTreeMap<&'static str, usize>,
    entries: Vec<Entry>,
    commit: u64,
    term: u64,
    read_answers: Vec<Message>,
}

impl Follower<'_> {
    /// Answers messages until a condition holds.
    fn follow(&mut self, what: &str, mut done: impl FnMut(&Follower<'_>) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !done(self) {
            assert!(Instant::now() < deadline, "waited in vain: {what}; {:?}", self.counts);
            for message in self.member.recorder.wait_messages(1) {
                let kind = MessageType::try_from(message.r#type.unwrap_or(0)).unwrap();
                *self.counts.entry(kind.as_str_name()).or_default() += 1;
                if let Some(answer) = self.answer(kind, message) {
                    self.member.peers.send(vec![answer]);
                }
            }
        }
    }

    fn answer(&mut self, kind: MessageType, got: Message) -> Option<Message> {
        assert_eq!((got.from, got.to), (Some(self.leader), Some(self.member.id)));
        let term = got.term.unwrap_or(0);
        let reply = |kind| message(kind, self.member.id, self.leader, term);
        match kind {
            MessageType::MsgPreVote => Some(reply(MessageType::MsgPreVoteResp)),
            MessageType::MsgVote => Some(reply(MessageType::MsgVoteResp)),
            MessageType::MsgHeartbeat => {
                Some(Message { context: got.context, ..reply(MessageType::MsgHeartbeatResp) })
            }
            MessageType::MsgApp => {
                let index = got.index.unwrap_or(0);
                for (at, entry) in got.entries.iter().enumerate() {
                    assert_eq!(entry.index, Some(index + 1 + at as u64), "entries follow the previous index");
                }
                self.term = term;
                self.commit = self.commit.max(got.commit.unwrap_or(0));
                let last = index + got.entries.len() as u64;
                self.entries.extend(got.entries);
                Some(Message { index: Some(last), ..reply(MessageType::MsgAppResp) })
            }
            MessageType::MsgReadIndexResp => {
                self.read_answers.push(got);
                None
            }
            _ => None,
        }
    }
}

/// Starts the etcd that the environment names, and the other member of its cluster. Returns `None` to skip
/// the test.
fn start(secured: Option<&Secured>) -> Option<(Etcd, Member, u64)> {
    let Ok(binary) = std::env::var("MAINSTAY_TEST_ETCD") else {
        println!("skipped: MAINSTAY_TEST_ETCD names no etcd binary");
        return None;
    };
    let (socket, mut url) = kit::listen();
    if secured.is_some() {
        url = url.replace("http://", "https://");
    }
    let etcd = Etcd::start(&binary, &url, secured);
    let tls = secured.map(|secured| secured.ours.client());
    let listed =
        kit::until("etcd's members", || fetch(&etcd.peer_url, "GET", "/members", "", tls.as_ref()).ok());
    let cluster = u64::from_str_radix(listed.headers()["x-etcd-cluster-id"].to_str().unwrap(), 16).unwrap();
    let members: serde_json::Value = serde_json::from_slice(listed.body()).unwrap();
    let id_of = |url: &str| {
        let mut all = members.as_array().unwrap().iter();
        all.find(|member| member["peerURLs"][0] == url).unwrap()["id"].as_u64().unwrap()
    };
    let (theirs, ours) = (id_of(&etcd.peer_url), id_of(&url));
    let listener = Listener { socket: socket.into(), tls: secured.and_then(|secured| secured.ours.server()) };
    let member = kit::member_with(ours, cluster, listener, tls, &url, TIMEOUTS);
    member.peers.set_members(vec![(theirs, vec![etcd.peer_url.clone()])]);
    Some((etcd, member, theirs))
}

#[test]
fn a_real_etcd_is_elected_and_replicates() {
    is_elected_and_replicates(None);
}

#[test]
fn a_real_etcd_is_elected_and_replicates_over_tls() {
    is_elected_and_replicates(Some(&Secured::new()));
}

fn is_elected_and_replicates(secured: Option<&Secured>) {
    let Some((etcd, member, leader)) = start(secured) else { return };
    let ours = member.id;
    let mut follower = Follower {
        member: &member,
        leader,
        counts: Default::default(),
        entries: Vec::new(),
        commit: 0,
        term: 0,
        read_answers: Vec::new(),
    };
    follower
        .follow("a leader that commits", |seen| seen.commit >= 3 && seen.counts.contains_key("MsgHeartbeat"));
    assert!(follower.counts.contains_key("MsgPreVote") && follower.counts.contains_key("MsgVote"));
    assert!(member.peers.active_since(leader).is_some());
    assert!(member.peers.release(leader).is_some_and(|release| release >= (3, 4)));

    // Client writes arrive: small ones, and one that spans many reads. etcd sends them in the short form.
    let large = "x".repeat(1_000_000);
    let puts: Vec<String> = (0..50).map(|n| format!("{{\"key\":\"{n:04}\",\"value\":\"eA==\"}}")).collect();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            for put in puts.iter().chain([&format!("{{\"key\":\"bGFyZ2U=\",\"value\":\"{large}\"}}")]) {
                let answer = fetch(&etcd.client_url, "POST", "/v3/kv/put", put, None).unwrap();
                assert_eq!(answer.status().as_u16(), 200, "{answer:?}");
            }
        });
        follower.follow("the writes", |_| client.is_finished());
    });
    let data = |entry: &&Entry| entry.data.as_ref().map_or(0, |data| data.len());
    assert!(follower.entries.iter().any(|entry| data(&entry) > 700_000), "the large value came");
    assert!(follower.entries.windows(2).all(|pair| pair[0].index.unwrap() < pair[1].index.unwrap()));

    // Requests to etcd are answered.
    let asked = Entry { data: Some("12345678".into()), ..Entry::default() };
    let ask =
        Message { entries: vec![asked], term: None, ..message(MessageType::MsgReadIndex, ours, leader, 0) };
    member.peers.send(vec![ask]);
    follower.follow("the answer to ReadIndex", |seen| !seen.read_answers.is_empty());
    let read = &follower.read_answers[0];
    assert_eq!(read.entries[0].data.as_deref(), Some(&b"12345678"[..]));
    assert!(read.index.unwrap() >= 53);

    let figures = member.peers.figures().peers[&leader].clone();
    println!("term {}, commit {}, messages {:?}", follower.term, follower.commit, follower.counts);
    println!("figures {figures:?}");
    assert_eq!((figures.send_failures, figures.receive_failures), (0, 0));
}

#[test]
fn a_real_etcd_follows_our_streams() {
    follows_our_streams(None);
}

#[test]
fn a_real_etcd_follows_our_streams_over_tls() {
    follows_our_streams(Some(&Secured::new()));
}

fn follows_our_streams(secured: Option<&Secured>) {
    const TERM: u64 = 50;
    let Some((_etcd, member, theirs)) = start(secured) else { return };
    let recorder = &member.recorder;
    // etcd dials this member too. Both of its streams must be up, so that no message uses the pipeline.
    for stream in ["msgapp", "message"] {
        kit::wait_log(&member, "established TCP streaming connection", theirs, stream);
        kit::wait_log(&member, "a remote peer connected to a stream", theirs, stream);
    }
    let wait_for = |kind: MessageType, holds: &dyn Fn(&Message) -> bool| {
        recorder.wait(kind.as_str_name(), |heard| {
            let mut all = heard.messages.iter();
            all.find(|(_, m)| m.r#type == Some(kind as i32) && m.term == Some(TERM) && holds(m)).map(|_| ())
        });
    };
    // etcd's log holds two entries of term 1 after creating a cluster of two. A leadership transfer gets its
    // vote immediately.
    let vote = Message {
        index: Some(2),
        log_term: Some(1),
        context: Some("CampaignTransfer".into()),
        ..message(MessageType::MsgVote, member.id, theirs, TERM)
    };
    member.peers.send(vec![vote]);
    wait_for(MessageType::MsgVoteResp, &|m| !m.reject.unwrap_or(false));

    // A whole frame, then short ones: with one entry, several, large ones, none. The commit index does not
    // advance, so the content of the entries does not matter.
    let entry = |index: u64, bytes: usize| Entry {
        r#type: Some(0),
        term: Some(TERM),
        index: Some(index),
        data: Some(vec![index as u8; bytes].into()),
    };
    let app = |index: u64, log_term: u64, sizes: &[usize]| Message {
        index: Some(index),
        log_term: Some(log_term),
        commit: Some(2),
        entries: sizes.iter().enumerate().map(|(at, bytes)| entry(index + 1 + at as u64, *bytes)).collect(),
        ..message(MessageType::MsgApp, member.id, theirs, TERM)
    };
    let mut last = 2;
    for (log_term, sizes) in [
        (1, &[0][..]),
        (TERM, &[10]),
        (TERM, &[5000, 0, 100, 70_000, 4096]),
        (TERM, &[900_000]),
        (TERM, &[]),
        (TERM, &[1; 500]),
    ] {
        member.peers.send(vec![app(last, log_term, sizes)]);
        last += sizes.len() as u64;
        wait_for(MessageType::MsgAppResp, &|m| m.index == Some(last) && !m.reject.unwrap_or(false));
    }
    let beat = Message { context: Some("\0\0abcdef".into()), ..kit::heartbeat(member.id, theirs, TERM) };
    member.peers.send(vec![beat.clone()]);
    wait_for(MessageType::MsgHeartbeatResp, &|m| m.context == beat.context);
    println!("{:?}", member.peers.figures().peers[&theirs]);
}
