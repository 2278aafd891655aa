//! Listeners with TLS: transfer of data, admission, expulsion, and that slow clients do not delay others.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ::tls::{Resolver, ServerTls, Settings, Version};
use accounting::Budget;
use bytes::Bytes;
use client::Channel;
use mainstay_front::{Listener, ListenerSocket, Options, Protocols, Rejection};
use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;
use testkit::TIMEOUT;
use testkit::http2::{Connection, DATA, GOAWAY, HEADERS, message};

use crate::echo::{Running, block_on, run_on, until};
use crate::pki::{Pki, reload};
use crate::tunnel::{Pieces, Tunnel, WHOLE};

const MIB: usize = 1 << 20;

/// Records the rejections that a front reports.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Rejection>>>);

impl Told {
    fn options(&self) -> Options {
        let told = self.0.clone();
        Options {
            shards: 1,
            rejected: Arc::new(move |rejected| told.lock().unwrap().push(rejected.clone())),
            ..Options::default()
        }
    }

    /// Waits for the next rejection.
    fn next(&self) -> Rejection {
        testkit::wait_until("a rejection", TIMEOUT, || {
            let mut told = self.0.lock().unwrap();
            (!told.is_empty()).then(|| told.remove(0))
        })
    }
}

fn serve(options: Options, tls: &ServerTls) -> Running {
    serve_with(options, tls, false)
}

fn serve_with(options: Options, tls: &ServerTls, checks_address: bool) -> Running {
    let (listener, address) = testkit::ports::listen();
    let socket = ListenerSocket::Tcp(listener);
    run_on(
        options,
        address,
        vec![Listener {
            socket,
            tls: Some(tls.clone()),
            also_plain: false,
            checks_address,
            serves: Protocols::All,
        }],
    )
}

fn one_shard() -> Options {
    Options { shards: 1, ..Options::default() }
}

/// Checks that a client is admitted and served.
fn serves(address: SocketAddr, config: &Arc<ClientConfig>) {
    let tunnel = Tunnel::to(address, config.clone(), WHOLE);
    block_on(async {
        let channel = Channel::connect(tunnel.address).await.expect("a connection");
        assert_eq!(channel.unary("/test.Echo/Unary", "a".into()).await, Ok("a".into()));
    });
}

/// Returns the configuration with HTTP/1 as the only ALPN protocol.
fn http1_only(config: &Arc<ClientConfig>) -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(config);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn without_alpn(config: &Arc<ClientConfig>) -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(config);
    config.alpn_protocols.clear();
    Arc::new(config)
}

/// Performs a handshake until the server has ended it; returns the client's error.
fn meet(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<(), String> {
    let mut stream = testkit::http1::connect(address);
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut client = ClientConnection::new(http1_only(config), name).unwrap();
    let mut stream = rustls::Stream::new(&mut client, &mut stream);
    // Only a read after the handshake shows whether the server accepts the client.
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").map_err(|error| error.to_string())?;
    stream.read(&mut [0; 1]).map(drop).map_err(|error| error.to_string())
}

#[test]
fn calls_and_http1_go_through_in_both_versions() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let running = serve(one_shard(), &tls);
    for version in [Version::Tls12, Version::Tls13] {
        let settings = Settings { max_version: Some(version), ..Settings::default() };
        let config = pki.client_with(settings);
        let tunnel = Tunnel::to(running.address, config.clone(), WHOLE);
        block_on(async {
            let channel = Channel::connect(tunnel.address).await.expect("a connection");
            for len in [0, 1, 1000, 16_379, 16_380, 70_000, 2_000_000] {
                let text = Bytes::from(vec![len as u8; len]);
                for path in ["/test.Echo/Unary", "/test.Echo/Later"] {
                    assert_eq!(channel.unary(path, text.clone()).await, Ok(text.clone()), "{path} {len}");
                }
            }
            let calls: Vec<_> = (0..300)
                .map(|call| {
                    let channel = channel.clone();
                    tokio::spawn(
                        async move { channel.unary("/test.Echo/Later", call.to_string().into()).await },
                    )
                })
                .collect();
            for (call, answer) in calls.into_iter().enumerate() {
                assert_eq!(answer.await.expect("the call's task"), Ok(Bytes::from(call.to_string())));
            }
        });
        // A client that negotiated HTTP/2 must speak it; for others the first bytes decide.
        let mut breaks_its_word = testkit::http1::connect(tunnel.address);
        breaks_its_word.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut told = Vec::new();
        let _ = breaks_its_word.read_to_end(&mut told);
        assert_eq!(told, b"");
        for config in [http1_only(&config), without_alpn(&config)] {
            let tunnel = Tunnel::to(running.address, config, WHOLE);
            let answer = testkit::http1::get(tunnel.address, "/health");
            assert_eq!(answer.text(), "GET /health 0 true");
        }
    }
}

#[test]
fn how_records_cut_what_a_client_sends_does_not_matter() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let running = serve(one_shard(), &tls);
    for (plain, wire, len) in
        [(1, usize::MAX, 3000), (7, 1, 3000), (16_384, 1, 20_000), (16_384, 5, 20_000), (9, 1460, 9_000)]
    {
        let tunnel = Tunnel::to(running.address, without_alpn(&pki.client(None)), Pieces { plain, wire });
        block_on(async {
            let channel = Channel::connect(tunnel.address).await.expect("a connection");
            for call in 0..3 {
                let text = Bytes::from(vec![call; len]);
                let answer = channel.unary("/test.Echo/Unary", text.clone()).await;
                assert_eq!(answer, Ok(text), "{plain} {wire}");
            }
        });
        assert_eq!(testkit::http1::get(tunnel.address, "/a").text(), "GET /a 0 true");
    }
}

#[test]
fn a_client_that_takes_little_gets_all_of_it() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let running = serve(one_shard(), &tls);
    let tunnel = Tunnel::to(running.address, pki.client(None), WHOLE);
    let mut raw = Connection::greedy(tunnel.address);
    raw.call(1, "/test.Echo/Repeat", &[], &message(0, b"300/60000"));
    let mut bytes = 0;
    while bytes < 300 * 60_000 {
        bytes += raw.next_of(DATA).payload.len();
    }
    raw.call(3, "/test.Echo/Unary", &[], &message(0, b"x"));
    while raw.next_of(DATA).payload != message(0, b"x") {}
}

#[test]
fn the_name_in_a_certificate_is_the_user_only_where_the_listener_says_so() {
    let pki = Pki::new();
    pki.issue("alice", &[]);
    pki.issue("", &[]);
    let only_trusted = || Settings { client_cert_auth: false, ..pki.mutual() };
    for (settings, shown, user) in [
        (pki.mutual(), "alice", "Some(\"alice\")"),
        (only_trusted(), "alice", "None"),
        (pki.settings(), "alice", "None"),
        // A certificate without a common name still identifies its user, by the empty name.
        (pki.mutual(), "", "Some(\"\")"),
        (only_trusted(), "", "None"),
    ] {
        let (tls, _reloader) = pki.load(settings);
        let running = serve(one_shard(), &tls);
        let tunnel = Tunnel::to(running.address, pki.client(Some(shown)), WHOLE);
        block_on(async {
            let channel = Channel::connect(tunnel.address).await.expect("a connection");
            assert_eq!(channel.unary("/test.Echo/WhoAmI", Bytes::new()).await, Ok(user.into()));
        });
    }
}

#[test]
fn who_is_not_let_in_is_told_of_in_etcds_words() {
    let (pki, other) = (Pki::new(), Pki::new());
    pki.issue("mallory", &["mallory.example"]);
    other.issue("stranger", &[]);
    let settings = pki.mutual();
    pki.revoke(&["mallory"]);
    let (tls, _reloader) = pki.load(settings);
    let told = Told::default();
    let running = serve(told.options(), &tls);
    pki.issue("alice", &[]);
    let stranger = {
        let [cert, key] = ["crt", "key"].map(|kind| {
            let file = other.read(&format!("stranger.{kind}"));
            pki.write(&format!("stranger.{kind}"), file)
        });
        let (client_cert_file, client_key_file) = (Some(cert), Some(key));
        pki.client_with(Settings { client_cert_file, client_key_file, ..Settings::default() })
    };
    for (config, error, seen) in [
        (pki.client(None), "tls: client didn't provide a certificate", "CertificateRequired"),
        (
            stranger,
            "tls: failed to verify certificate: x509: certificate signed by unknown authority",
            "UnknownCA",
        ),
        (pki.client(Some("mallory")), "revoked", "received fatal alert"),
    ] {
        let client_says = meet(running.address, &config).unwrap_err();
        let rejected = told.next();
        assert!(rejected.error.contains(error), "{rejected:?}");
        assert!(client_says.contains(seen), "{client_says}");
        assert!(!rejected.was_admitted && !rejected.is_end_of_file);
    }
    // Input that is not TLS, and an incomplete TLS record.
    let says = |bytes: &[u8]| {
        let mut stream = testkit::http1::connect(running.address);
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // The connection may also end with a reset.
        let _ = stream.read_to_end(&mut answer);
        (answer, told.next())
    };
    let not_tls = "tls: first record does not look like a TLS handshake";
    let (answer, rejected) = says(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(
        String::from_utf8(answer).unwrap(),
        "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    );
    assert_eq!(rejected.error, not_tls);
    assert_eq!(says(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").1.error, not_tls);
    let end = says(b"").1;
    assert!(end.error == "EOF" && end.is_end_of_file);
    let end = says(&[22, 3, 1, 0, 200, 1]).1;
    assert!(end.error == "unexpected EOF" && !end.is_end_of_file, "{end:?}");
    serves(running.address, &pki.client(Some("alice")));
}

#[test]
fn nobody_waits_for_those_who_are_slow() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let told = Told::default();
    let options = Options { handshake_timeout: Duration::from_secs(3600), ..told.options() };
    let running = serve(options, &tls);
    let slow: Vec<TcpStream> = (0..200)
        .map(|n| {
            let mut stream = testkit::http1::connect(running.address);
            stream.write_all(&[22, 3, 1, 0, 200, 1][..n % 7]).unwrap();
            stream
        })
        .collect();
    serves(running.address, &pki.client(None));
    assert_eq!(running.front.connections_refused().load(Relaxed), 0);
    drop(slow);
    assert!(told.next().error.contains("EOF"));
}

#[test]
fn a_handshake_that_takes_too_long_is_given_up() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let told = Told::default();
    let options = Options { handshake_timeout: Duration::from_millis(20), ..told.options() };
    let running = serve(options, &tls);
    let mut stream = testkit::http1::connect(running.address);
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    let (local, remote) = (running.address, stream.local_addr().unwrap());
    assert_eq!(told.next().error, format!("read tcp {local}->{remote}: i/o timeout"));
}

/// Plain and TLS on one socket, like etcd when `--listen-client-urls` names one address with http and https.
#[test]
fn the_first_byte_tells_tls_from_plain_where_a_listener_takes_both() {
    let pki = Pki::new();
    pki.issue("alice", &[]);
    let (tls, _reloader) = pki.load(pki.mutual());
    let told = Told::default();
    let (listener, address) = testkit::ports::listen();
    let dir = testkit::TempDir::in_memory("front-both");
    let path = dir.path().join("s");
    let sockets = [ListenerSocket::Tcp(listener), ListenerSocket::Unix(UnixListener::bind(&path).unwrap())];
    let both = |socket| Listener {
        socket,
        tls: Some(tls.clone()),
        also_plain: true,
        checks_address: false,
        serves: Protocols::All,
    };
    let options = Options { handshake_timeout: Duration::from_secs(3600), ..told.options() };
    let running = run_on(options, address, sockets.map(both).into());
    // A client that sends nothing does not delay others.
    let silent = testkit::http1::connect(address);
    serves(address, &pki.client(Some("alice")));
    block_on(async {
        let channel = Channel::connect(address).await.expect("a connection");
        assert_eq!(channel.unary("/test.Echo/Unary", "a".into()).await, Ok("a".into()));
    });
    assert_eq!(testkit::http1::get(address, "/health").text(), "GET /health 0 true");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("GET /health 0 true"), "{answer}");
    // A TLS client must still present its certificate, and input of neither kind is a failed handshake.
    assert!(meet(address, &pki.client(None)).is_err());
    assert!(told.next().error.contains("certificate"));
    let mut neither = testkit::http1::connect(address);
    neither.write_all(&[0; 16]).unwrap();
    assert_eq!(told.next().error, "tls: first record does not look like a TLS handshake");
    drop(silent);
    assert!(told.next().is_end_of_file);
    drop(running);
}

#[test]
fn a_listener_that_takes_both_waits_for_a_first_byte_as_for_a_handshake() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let told = Told::default();
    let options = Options { handshake_timeout: Duration::from_millis(20), ..told.options() };
    let (listener, address) = testkit::ports::listen();
    let socket = ListenerSocket::Tcp(listener);
    let listener =
        Listener { socket, tls: Some(tls), also_plain: true, checks_address: false, serves: Protocols::All };
    let _running = run_on(options, address, vec![listener]);
    let mut silent = testkit::http1::connect(address);
    assert!(told.next().error.ends_with("i/o timeout"));
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
}

/// Starts a front with a listener for plain and TLS connections, and a handshake timeout of one hour.
fn serve_both(tls: &ServerTls, options: Options) -> Running {
    let (listener, address) = testkit::ports::listen();
    let socket = ListenerSocket::Tcp(listener);
    let listener = Listener {
        socket,
        tls: Some(tls.clone()),
        also_plain: true,
        checks_address: false,
        serves: Protocols::All,
    };
    let options = Options { handshake_timeout: Duration::from_secs(3600), ..options };
    run_on(options, address, vec![listener])
}

#[test]
fn plain_clients_of_a_listener_that_takes_both_are_not_refused_for_handshakes() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let budget = Budget::new(16 * MIB);
    let running = serve_both(&tls, Options { budget: budget.clone(), ..one_shard() });
    let refused = running.front.connections_refused();
    let begun: Vec<TcpStream> = (0..150)
        .map(|_| {
            let mut stream = testkit::http1::connect(running.address);
            stream.write_all(&[22, 3, 1]).unwrap();
            stream
        })
        .collect();
    testkit::wait_until("further handshakes are refused", TIMEOUT, || {
        (refused.load(Relaxed) == 150 - 64).then_some(())
    });
    let silent: Vec<TcpStream> = (0..50).map(|_| testkit::http1::connect(running.address)).collect();
    for mut stream in silent {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("GET /health 0 true"), "{answer}");
    }
    assert_eq!(refused.load(Relaxed), 150 - 64);
    drop(begun);
    testkit::wait_until("nothing is left", TIMEOUT, || (budget.held_bytes() == 0).then_some(()));
}

#[test]
fn plain_clients_of_a_listener_that_takes_both_do_not_wait_for_handshakes() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let (told, gate) = (Told::default(), Arc::new(Names::default()));
    let (sink, waits) = (told.clone(), gate.clone());
    let rejected = Arc::new(move |rejected: &Rejection| {
        sink.0.lock().unwrap().push(rejected.clone());
        waits.wait();
    });
    let running = serve_both(&tls, Options { rejected, ..one_shard() });
    let mut neither = testkit::http1::connect(running.address);
    neither.write_all(&[0; 16]).unwrap();
    testkit::wait_until("the thread stands still", TIMEOUT, || gate.is_asked.load(SeqCst).then_some(()));
    let mut stream = testkit::http1::connect(running.address);
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    // Opened before the assertion may fail, because dropping the front waits for its threads.
    gate.may_answer();
    assert!(read.is_ok() && answer.ends_with("GET /health 0 true"), "{read:?}: {answer}");
}

#[test]
fn handshakes_that_are_begun_and_left_are_bounded() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let budget = Budget::new(16 * MIB);
    let hour = Duration::from_secs(3600);
    let options = Options { handshake_timeout: hour, budget: budget.clone(), ..one_shard() };
    let running = serve(options, &tls);
    let refused = running.front.connections_refused();
    let left: Vec<TcpStream> = (0..150).map(|_| testkit::http1::connect(running.address)).collect();
    // One address alone may hold half of an eighth of the budget.
    let held = || budget.held_bytes() / 16_384;
    testkit::wait_until("those beyond are refused", TIMEOUT, || {
        (refused.load(Relaxed) == 150 - 64).then_some(())
    });
    assert_eq!(held(), 64);
    drop(left);
    testkit::wait_until("the others have gone", TIMEOUT, || (held() == 0).then_some(()));
    serves(running.address, &pki.client(None));
}

#[test]
fn a_connection_that_ends_leaves_nothing() {
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let budget = Budget::new(64 * MIB);
    let running = serve(Options { budget: budget.clone(), ..one_shard() }, &tls);
    let tunnel = Tunnel::to(running.address, pki.client(None), WHOLE);
    let mut raw = Connection::h2(tunnel.address, &[]);
    raw.call(1, "/test.Echo/Unary", &[], &message(0, &[7; 15_000]));
    let mut bytes = 0;
    while bytes < 15_005 {
        bytes += raw.next_of(DATA).payload.len();
    }
    // An idle connection holds no buffer.
    let idle = || budget.held_bytes();
    testkit::wait_until("it is idle", TIMEOUT, || (idle() <= 224 * 1024).then_some(()));
    drop(raw);
    testkit::wait_until("it is gone", TIMEOUT, || (idle() == 0).then_some(()));
}

/// The revoked client has an idle connection, one with a running call, and one over HTTP/1.
#[test]
fn who_is_revoked_has_to_leave_and_others_stay() {
    let pki = Pki::new();
    pki.issue("alice", &[]);
    pki.issue("mallory", &[]);
    let (tls, mut reloader) = pki.load(pki.mutual());
    let told = Told::default();
    let running = serve(told.options(), &tls);
    let [alice, mallory] =
        ["alice", "mallory"].map(|name| Tunnel::to(running.address, pki.client(Some(name)), WHOLE));
    let mut stays = Connection::h2(alice.address, &[]);
    let [idle, mut watching] = [(); 2].map(|()| Connection::h2(mallory.address, &[]));
    watching.call(1, "/test.Echo/UntilClosing", &[], &message(0, b"a"));
    watching.next_of(HEADERS);
    let mut silent = Connection::silent(mallory.address);
    let over_http1 = Tunnel::to(running.address, http1_only(&pki.client(Some("mallory"))), WHOLE);
    let mut http1 = testkit::http1::connect(over_http1.address);
    http1.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    assert_eq!(testkit::http1::read_answer(&mut http1).status, 200);
    let connections = &running.front.counters()[0].connections;
    testkit::wait_until("all are in", TIMEOUT, || (connections.load(Relaxed) == 5).then_some(()));
    // A reload without a change closes no connection.
    running.front.tls_reloaded();
    pki.revoke(&["mallory"]);
    reload(&mut reloader);
    running.front.tls_reloaded();
    for mut raw in [idle, watching] {
        let goaway = raw.next_of(GOAWAY);
        assert_eq!((&goaway.payload[4..8], &goaway.payload[8..]), (&[0; 4][..], &b"certificate"[..]));
        raw.closed();
    }
    assert!(silent.read_to_close().is_empty());
    assert_eq!(http1.read(&mut [0; 1]).unwrap(), 0);
    for _ in 0..4 {
        let rejected = told.next();
        assert!(rejected.was_admitted && rejected.error.contains("revoked"), "{rejected:?}");
    }
    stays.call(1, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(stays.next_of(DATA).payload, message(0, b"a"));
    block_on(until("the watch's call has ended", || running.seen.alive.load(SeqCst) == 0));
}

#[test]
fn who_has_a_certificate_that_ends_has_to_leave() {
    let pki = Pki::new();
    pki.issue("alice", &[]);
    let (tls, _reloader) = pki.load(pki.mutual());
    let told = Told::default();
    let certificates_checked_every = Duration::from_millis(5);
    let running = serve(Options { certificates_checked_every, ..told.options() }, &tls);
    let tunnel = Tunnel::to(running.address, pki.client(Some("alice")), WHOLE);
    let mut raw = Connection::h2(tunnel.address, &[]);
    raw.call(1, "/test.Echo/Unary", &[], &message(0, b"a"));
    raw.next_of(DATA);
    pki.let_certificates_end();
    raw.next_of(GOAWAY);
    raw.closed();
    assert!(told.next().error.contains("expired"));
}

/// Resolver that blocks until the gate opens and then finds no name. Other callbacks use its gate too.
#[derive(Default)]
struct Names {
    may_answer: Mutex<bool>,
    changed: Condvar,
    is_asked: AtomicBool,
}

impl Names {
    fn wait(&self) {
        self.is_asked.store(true, SeqCst);
        let may = self.may_answer.lock().unwrap();
        drop(self.changed.wait_while(may, |may| !*may).unwrap());
    }
}

impl Names {
    fn may_answer(&self) {
        *self.may_answer.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Resolver for Names {
    fn names(&self, _: IpAddr) -> Result<Vec<String>, String> {
        self.wait();
        Err("lookup 127.0.0.1: no such host".to_owned())
    }

    fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let known = name == "here.example";
        if known { Ok(vec![[127, 0, 0, 1].into()]) } else { Err(format!("lookup {name}: no such host")) }
    }
}

#[test]
fn certificates_are_compared_with_addresses_where_the_listener_says_so() {
    let pki = Pki::new();
    for (name, hosts) in [
        ("any", &[][..]),
        ("at", &["127.0.0.1"]),
        ("away", &["10.9.9.9"]),
        ("here", &["here.example"]),
        ("gone", &["gone.example"]),
    ] {
        pki.issue(name, hosts);
    }
    let (tls, _reloader) = pki.load(pki.mutual());
    let (told, names) = (Told::default(), Arc::new(Names::default()));
    let options = || Options { resolver: names.clone(), ..told.options() };
    let running = serve_with(options(), &tls, true);
    let mut waits = testkit::http1::connect(running.address);
    std::thread::scope(|threads| {
        let here = threads.spawn(|| serves(running.address, &pki.client(Some("here"))));
        for name in ["any", "at"] {
            serves(running.address, &pki.client(Some(name)));
        }
        names.may_answer();
        here.join().unwrap();
    });
    for (name, error, addresses, host) in [
        ("away", "tls: x509: certificate is valid for 10.9.9.9, not 127.0.0.1", 1, 0),
        ("gone", "tls: \"127.0.0.1\" does not match any of DNSNames [\"gone.example\"]", 0, 1),
    ] {
        let _ = meet(running.address, &pki.client(Some(name)));
        let rejected = told.next();
        assert!(rejected.error.contains(error.trim_start_matches("tls: ")), "{rejected:?}");
        let names = rejected.names.unwrap();
        assert_eq!((names.ip_addresses.len(), names.dns_names.len()), (addresses, host));
    }
    waits.write_all(b"x").unwrap();
    let running = serve_with(options(), &tls, false);
    serves(running.address, &pki.client(Some("away")));
}

#[test]
fn unix_sockets_are_served_with_and_without_tls() {
    let pki = Pki::new();
    pki.issue("alice", &[]);
    let (tls, _reloader) = pki.load(pki.mutual());
    let dir = testkit::TempDir::in_memory("front-unix");
    for tls in [None, Some(tls)] {
        let is_secured = tls.is_some();
        let path = dir.path().join(format!("{is_secured}.sock"));
        let socket = ListenerSocket::Unix(UnixListener::bind(&path).unwrap());
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let running = run_on(
            one_shard(),
            nowhere,
            vec![Listener { socket, tls, also_plain: false, checks_address: true, serves: Protocols::All }],
        );
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let request = b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let mut answer = String::new();
        if is_secured {
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let config = http1_only(&pki.client(Some("alice")));
            let mut client = ClientConnection::new(config, name).unwrap();
            let mut stream = rustls::Stream::new(&mut client, &mut stream);
            stream.write_all(request).unwrap();
            // The server announces the end of the connection.
            stream.read_to_string(&mut answer).unwrap();
        } else {
            stream.write_all(request).unwrap();
            stream.read_to_string(&mut answer).unwrap();
        }
        assert!(answer.ends_with("GET /health 0 true"), "{answer}");
        drop(running);
    }
}

/// Starts a front whose handshake thread blocks in its first report of a rejection until the returned gate
/// opens. Returns the front, the recorded rejections and the gate.
fn held_up(options: Options, tls: &ServerTls) -> (Running, Told, Arc<Names>) {
    let (told, gate) = (Told::default(), Arc::new(Names::default()));
    let (sink, waits) = (told.clone(), gate.clone());
    let rejected = Arc::new(move |rejected: &Rejection| {
        sink.0.lock().unwrap().push(rejected.clone());
        waits.wait();
    });
    let running = serve(Options { shards: 1, rejected, ..options }, tls);
    (running, told, gate)
}

/// Connects from the address `from` and sends input that is not a handshake.
fn not_a_handshake(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    socket.set_nonblocking(false).unwrap();
    (&socket).write_all(b"PRI * HTTP/2.0\r\n\r\n").unwrap();
    socket
}

#[test]
fn an_address_with_many_handshakes_holds_up_another_by_few_steps() {
    const MANY: usize = 50;
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let budget = Budget::new(64 * MIB);
    let (running, told, gate) = held_up(Options { budget: budget.clone(), ..one_shard() }, &tls);
    let _first = not_a_handshake([127, 0, 0, 1], running.address);
    testkit::wait_until("the thread stands still", TIMEOUT, || gate.is_asked.load(SeqCst).then_some(()));
    let _many = [(); MANY].map(|()| not_a_handshake([127, 0, 0, 1], running.address));
    let _other = not_a_handshake([127, 0, 0, 2], running.address);
    testkit::wait_until("all have arrived", TIMEOUT, || {
        (budget.held_bytes() >= (MANY + 2) * 16_384).then_some(())
    });
    gate.may_answer();
    let place = testkit::wait_until("ten were rejected", TIMEOUT, || {
        let told = told.0.lock().unwrap();
        let other = told.iter().position(|rejected| rejected.remote.ip() == IpAddr::from([127, 0, 0, 2]));
        (told.len() >= 10).then_some(other)
    });
    assert!(place.is_some_and(|place| place <= 3), "{place:?}");
}

#[test]
fn a_handshake_whose_time_is_over_when_its_turn_comes_is_not_begun() {
    const PATIENCE: Duration = Duration::from_millis(20);
    let pki = Pki::new();
    let (tls, _reloader) = pki.load(pki.settings());
    let budget = Budget::new(64 * MIB);
    let options = Options { budget: budget.clone(), handshake_timeout: PATIENCE, ..one_shard() };
    let (running, told, gate) = held_up(options, &tls);
    let _first = not_a_handshake([127, 0, 0, 1], running.address);
    testkit::wait_until("the thread stands still", TIMEOUT, || gate.is_asked.load(SeqCst).then_some(()));
    let mut stream = testkit::http1::connect(running.address);
    let mut client =
        ClientConnection::new(pki.client(None), ServerName::try_from("127.0.0.1").unwrap()).unwrap();
    client.write_tls(&mut stream).unwrap();
    testkit::wait_until("it has arrived", TIMEOUT, || (budget.held_bytes() >= 2 * 16_384).then_some(()));
    let arrived = Instant::now();
    testkit::wait_until("its time is over", TIMEOUT, || (arrived.elapsed() > PATIENCE).then_some(()));
    gate.may_answer();
    assert!(!matches!(stream.read(&mut [0; 1]), Ok(1..)), "nothing was signed");
    assert!(told.0.lock().unwrap().last().is_some_and(|last| last.error.ends_with("i/o timeout")));
}

#[test]
fn who_is_revoked_on_the_way_in_has_to_leave() {
    let pki = Pki::new();
    pki.issue("mallory", &["here.example"]);
    let (tls, mut reloader) = pki.load(pki.mutual());
    let (told, names) = (Told::default(), Arc::new(Names::default()));
    let running = serve_with(Options { resolver: names.clone(), ..told.options() }, &tls, true);
    std::thread::scope(|threads| {
        let client = pki.client(Some("mallory"));
        threads.spawn(move || meet(running.address, &client));
        testkit::wait_until("names are looked up", TIMEOUT, || names.is_asked.load(SeqCst).then_some(()));
        pki.revoke(&["mallory"]);
        reload(&mut reloader);
        running.front.tls_reloaded();
        names.may_answer();
        let rejected = told.next();
        assert!(rejected.was_admitted && rejected.error.contains("revoked"), "{rejected:?}");
    });
}
