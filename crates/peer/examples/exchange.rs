//! Measures the cost of a message between two members in one process: one sends MsgApp, the other answers
//! each, with a window of messages in flight. `exchange [messages] [window] [bytes of the entry] [tls]`; run
//! it with `--release`.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use api::raftpb::{Entry, Message, MessageType};
use bytes::Bytes;
use mainstay_peer::{BoxError, Handler, Listener, Log, Options, Peers, SnapshotForm, SnapshotOutcome};
use testkit::certificates::{Pair, params_for};

#[derive(Default)]
struct Member {
    /// Connections to answer with; set only on the answering member.
    answers: OnceLock<Arc<Peers>>,
    received: Mutex<u64>,
    changed: Condvar,
}

impl Handler for Member {
    fn received(&self, messages: &mut Vec<Message>) {
        if let Some(peers) = self.answers.get() {
            let answer = |got: Message| Message {
                r#type: Some(MessageType::MsgAppResp as i32),
                to: got.from,
                from: got.to,
                term: got.term,
                index: got.index,
                ..Message::default()
            };
            peers.send(messages.drain(..).map(answer).collect());
            return;
        }
        *self.received.lock().unwrap() += messages.len() as u64;
        messages.clear();
        self.changed.notify_all();
    }

    fn is_removed(&self, _: u64) -> bool {
        false
    }

    fn unreachable(&self, id: u64) {
        eprintln!("unreachable: {id}");
    }

    fn snapshot_sent(&self, _: u64, _: SnapshotOutcome) {}

    fn removed(&self, _: u64) {}

    fn receive_snapshot(
        &self,
        _: Message,
        _: SnapshotForm,
        _: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), BoxError> {
        Err("none is expected".into())
    }

    fn http(&self, _: http::Request<Bytes>) -> Pin<Box<dyn Future<Output = http::Response<Bytes>> + Send>> {
        Box::pin(std::future::ready(http::Response::new(Bytes::new())))
    }
}

/// Returns a TLS configuration with one self-signed certificate for both members.
fn certificate() -> tls::Tls {
    let directory = testkit::TempDir::in_memory("exchange");
    let own = Pair::self_signed(&params_for("exchange", &["127.0.0.1"]));
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let settings = tls::Settings {
        cert_file: file("crt", own.cert.clone()),
        key_file: file("key", own.key),
        trusted_ca_file: file("ca", own.cert),
        ..tls::Settings::default()
    };
    tls::Tls::load(settings, Arc::new(rustls::time_provider::DefaultTimeProvider)).unwrap().0
}

fn start(id: u64, member: &Arc<Member>, tls: Option<&tls::Tls>) -> (Arc<Peers>, String) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", socket.local_addr().unwrap());
    let options = Options {
        local_id: id,
        cluster_id: 1,
        peer_urls: vec![url.clone()],
        server_version: "3.7.1",
        min_cluster_version: "3.0.0",
        read_timeout: Duration::from_secs(5),
        write_timeout: Duration::from_secs(5),
        listeners: vec![Listener { socket: socket.into(), tls: tls.and_then(tls::Tls::server) }],
        tls: tls.map(tls::Tls::client),
        local_address: None,
        zone: String::new(),
    };
    let log: Log = Arc::new(|_, _, _| {});
    (Arc::new(Peers::start(options, Arc::clone(member) as Arc<dyn Handler>, log).unwrap()), url)
}

/// Returns the CPU time that this process has used.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn main() {
    let is_number = |argument: &String| argument.parse::<u64>().is_ok();
    let (numbers, words): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(is_number);
    let tls = words.iter().any(|word| word == "tls").then(certificate);
    let mut arguments = numbers.iter().filter_map(|argument| argument.parse::<u64>().ok());
    let messages = arguments.next().unwrap_or(300_000);
    let window = arguments.next().unwrap_or(64);
    let bytes = arguments.next().unwrap_or(1024) as usize;
    let (one, two) = (Arc::new(Member::default()), Arc::new(Member::default()));
    let ((sender, sender_url), (answerer, answerer_url)) =
        (start(1, &one, tls.as_ref()), start(2, &two, tls.as_ref()));
    let _ = two.answers.set(Arc::clone(&answerer));
    sender.set_members(vec![(2, vec![answerer_url])]);
    answerer.set_members(vec![(1, vec![sender_url])]);
    while sender.active_since(2).is_none() || answerer.active_since(1).is_none() {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(500));

    let data = Bytes::from(vec![7; bytes]);
    let (begun, begun_cpu) = (Instant::now(), cpu());
    let mut sent = 0;
    while sent < messages {
        let mut received = one.received.lock().unwrap();
        while sent - *received >= window {
            received = one.changed.wait(received).unwrap();
        }
        let room = (window - (sent - *received)).min(messages - sent);
        drop(received);
        let app = |index| Message {
            r#type: Some(MessageType::MsgApp as i32),
            to: Some(2),
            from: Some(1),
            term: Some(3),
            log_term: Some(3),
            index: Some(index - 1),
            commit: Some(index - 1),
            entries: vec![Entry {
                r#type: Some(0),
                term: Some(3),
                index: Some(index),
                data: Some(data.clone()),
            }],
            ..Message::default()
        };
        sender.send((sent + 1..=sent + room).map(app).collect());
        sent += room;
    }
    let mut received = one.received.lock().unwrap();
    while *received < messages {
        received = one.changed.wait(received).unwrap();
    }
    let (took, used) = (begun.elapsed(), cpu() - begun_cpu);
    println!(
        "{messages} MsgApp of {bytes} bytes and their answers, {window} in flight: {:.0}/s, {:.2} us CPU each, both members together",
        messages as f64 / took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / messages as f64,
    );
}
