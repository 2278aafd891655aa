//! Members that communicate over TLS, and clients that are not admitted.

use std::hash::Hasher;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use api::raftpb::MessageType;
use mainstay_peer::{Listener, Target};
use testkit::Random;
use testkit::certificates::rcgen::{SerialNumber, date_time_ymd};
use tls::Settings;

use crate::kit::{self, Member, app, heartbeat, introduce, message, wait_streams};
use crate::pki::{self, Authority, Files, load, params, wait_rejected};
use crate::snapshot::{Source, metadata, reads};

const HERE: &[&str] = &["127.0.0.1"];

/// Starts two members with certificates of one authority.
fn pair(files: &Files, authority: &Authority) -> (Member, Member) {
    let one = load(files.settings("one", authority, params("one", HERE))).0;
    let two = load(files.settings("two", authority, params("two", HERE))).0;
    let pair = (pki::member(1, &one), pki::member(2, &two));
    introduce(&[&pair.0, &pair.1]);
    wait_streams(&pair.0, &pair.1);
    pair
}

#[test]
fn two_members_exchange_messages_requests_and_a_snapshot() {
    let (one, two) = pair(&Files::new(), &Authority::new("ca"));
    let mut sent: Vec<_> = (1..=500).map(|index| app(1, 2, index, (index as usize * 37) % 9000)).collect();
    sent.push(app(1, 2, 17, 3_000_000));
    for batch in sent.chunks(7) {
        one.peers.send(batch.to_vec());
    }
    assert!(two.recorder.wait_messages(sent.len()) == sent, "MsgApp arrive whole and in order");
    let votes: Vec<_> = (1..=300).map(|term| message(MessageType::MsgPreVote, 2, 1, term)).collect();
    two.peers.send(votes.clone());
    assert_eq!(one.recorder.wait_messages(votes.len()), votes);

    let seen = reads(&two);
    let source = Source::of(300);
    let digest = Arc::clone(&source.digest);
    one.peers.send_snapshot(metadata(1, 2), Box::new(source));
    one.recorder.wait("the snapshot", |heard| (heard.snapshots_sent == [(2, true)]).then_some(()));
    let seen = seen.lock().unwrap();
    let [(_, seen)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((seen.bytes, seen.digest), (300 * 64 * 1024, digest.lock().unwrap().finish()));

    for target in [Target::Member(2), Target::Url(two.url.clone())] {
        let mut request = http::Request::new(bytes::Bytes::from(vec![7; 200_000]));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = "/echo".parse().unwrap();
        let answer = kit::block_on(one.peers.request(target, request, kit::DEADLINE)).unwrap();
        assert!(answer.body().len() == 200_000 && answer.body().iter().all(|byte| *byte == 7));
    }
    assert_eq!(one.recorder.with(|heard| heard.unreachable.clone()), [0; 0]);
}

#[test]
fn a_member_is_fetched_from_before_there_are_peers() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let tls = load(files.settings("one", &authority, params("one", HERE))).0;
    let one = pki::member(1, &tls);
    let mut request = http::Request::new(bytes::Bytes::from("boot"));
    *request.uri_mut() = "/echo".parse().unwrap();
    let answer = mainstay_peer::fetch(&one.url, request.clone(), kit::DEADLINE, Some(&tls.client())).unwrap();
    assert_eq!(&answer.body()[..], b"boot");
    let strangers = load(files.settings("other", &Authority::new("other"), params("one", HERE))).0;
    let error =
        mainstay_peer::fetch(&one.url, request, kit::DEADLINE, Some(&strangers.client())).unwrap_err();
    let text = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert_eq!(error.to_string(), format!("{}: {text}", one.url));
    wait_rejected(&one, "remote error: tls: unknown certificate authority");
}

/// Starts a member that dials another with these listener settings; checks the reported error.
#[track_caller]
fn cannot_dial(files: &Files, authority: &Authority, listener: Settings, error: &str) -> (Member, Member) {
    let dialing = load(files.settings("dialing", authority, params("dialing", HERE))).0;
    let pair = (pki::member(1, &dialing), pki::member(2, &load(listener).0));
    pair.0.peers.set_members(vec![(2, vec![pair.1.url.clone()])]);
    kit::wait_log(&pair.0, "cannot dial a stream of a peer", 2, error);
    pair
}

#[test]
fn a_member_is_not_dialed_if_its_certificate_is_not_for_it() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let settings = files.settings("stranger", &Authority::new("other"), params("x", HERE));
    let (_dialing, stranger) =
        cannot_dial(&files, &authority, settings, "x509: certificate signed by unknown authority");
    wait_rejected(&stranger, "remote error: tls: unknown certificate authority");

    let elsewhere = files.settings("elsewhere", &authority, params("x", &["10.9.8.7"]));
    let error = "x509: certificate is valid for 10.9.8.7, not 127.0.0.1";
    let (_dialing, elsewhere) = cannot_dial(&files, &authority, elsewhere, error);
    wait_rejected(&elsewhere, "remote error: tls: unknown certificate");

    let mut expired = params("x", HERE);
    expired.not_after = date_time_ymd(2025, 2, 1);
    let expired = files.settings("expired", &authority, expired);
    cannot_dial(&files, &authority, expired, "x509: certificate has expired or is not yet valid");
}

/// Checks that a client with this certificate is rejected for this reason and gets no answer.
#[track_caller]
fn is_rejected(member: &Member, settings: Settings, error: &str) {
    let settings = Settings { insecure_skip_verify: true, ..settings };
    let mut stream = pki::connect(member, &load(settings).0);
    let mut answer = Vec::new();
    // Either call may fail, depending on when the other end closes.
    let _ = stream.write_all(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    wait_rejected(member, error);
}

fn is_answered(member: &Member, settings: Settings) {
    let settings = Settings { insecure_skip_verify: true, ..settings };
    let mut stream = pki::connect(member, &load(settings).0);
    stream.write_all(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn who_has_no_good_certificate_is_not_let_in() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let one = pki::member(1, &load(files.settings("one", &authority, params("one", HERE))).0);
    is_rejected(&one, Settings::default(), "tls: client didn't provide a certificate");
    let other = files.settings("other", &Authority::new("other"), params("one", HERE));
    is_rejected(&one, other, "x509: certificate signed by unknown authority");
    let mut expired = params("x", HERE);
    expired.not_after = date_time_ymd(2025, 2, 1);
    let expired = files.settings("expired", &authority, expired);
    is_rejected(&one, expired, "x509: certificate has expired or is not yet valid");
    is_answered(&one, files.settings("good", &authority, params("good", HERE)));
}

/// If the names of members are configured, another certificate of the same authority, such as a client
/// port's, is refused.
#[test]
fn only_allowed_names_are_let_in() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let member = files.settings("one", &authority, params("member", HERE));
    let named = Settings { allowed_cns: vec!["member".to_owned()], ..member.clone() };
    let one = pki::member(1, &load(named).0);
    let client = files.settings("client", &authority, params("client", HERE));
    is_rejected(&one, client.clone(), "client certificate authentication failed");
    is_answered(&one, member.clone());
    let hosts = Settings { allowed_hostnames: vec!["member.example".to_owned()], ..member };
    let one = pki::member(1, &load(hosts).0);
    is_rejected(&one, client, "client certificate authentication failed");
    let named = params("x", &["127.0.0.1", "member.example"]);
    is_answered(&one, files.settings("named", &authority, named));
}

#[test]
fn a_certificate_is_for_the_address_that_its_member_comes_from() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let settings = files.settings("one", &authority, params("one", HERE));
    let one = pki::member(1, &load(settings.clone()).0);
    let elsewhere = files.settings("elsewhere", &authority, params("x", &["10.9.8.7"]));
    is_rejected(&one, elsewhere.clone(), "x509: certificate is valid for 10.9.8.7, not 127.0.0.1");
    // The log line contains the names in the certificate.
    wait_rejected(&one, "(\"ip-addresses\", [\"10.9.8.7\"])");
    // A name that must be looked up.
    let nowhere = files.settings("nowhere", &authority, params("x", &["nowhere.invalid"]));
    let error = "tls: \\\"127.0.0.1\\\" does not match any of DNSNames [\\\"nowhere.invalid\\\"]";
    is_rejected(&one, nowhere.clone(), error);
    is_answered(&one, files.settings("local", &authority, params("x", &["localhost"])));
    // A certificate without names is accepted from every address.
    is_answered(&one, files.settings("unnamed", &authority, params("x", &[])));

    let skips = Settings { skip_client_san_verify: true, ..settings };
    let one = pki::member(1, &load(skips).0);
    is_answered(&one, elsewhere);
    is_answered(&one, nowhere);
}

#[test]
fn a_certificate_that_is_revoked_loses_its_streams() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let crl_file = Some(files.write("crl", authority.revoke(&[&[9]])));
    let settings = Settings { crl_file, ..files.settings("one", &authority, params("one", HERE)) };
    let (tls, mut reloader) = load(settings);
    let one = pki::member(1, &tls);
    let mut revoked = params("two", HERE);
    revoked.serial_number = Some(SerialNumber::from_slice(&[77]));
    let two = pki::member(2, &load(files.settings("two", &authority, revoked)).0);
    let three = pki::member(3, &load(files.settings("three", &authority, params("three", HERE))).0);
    introduce(&[&one, &two, &three]);
    for (a, b) in [(&one, &two), (&one, &three), (&two, &three)] {
        wait_streams(a, b);
    }

    files.write("crl", authority.revoke(&[&[9], &[77]]));
    pki::reload(&mut reloader);
    one.peers.tls_reloaded();
    let text = "closed a TLS connection between members";
    // Both directions are lost: the stream that the peer dialed, and the one that this member dialed.
    for stream in ["msgapp", "message"] {
        kit::wait_log(&one, "lost a remote peer's connection to a stream", 2, stream);
    }
    kit::wait_log(&one, "lost TCP streaming connection", 2, "");
    one.recorder.wait("both are closed", |heard| {
        let closed = heard.lines.iter().filter(|line| line.contains(text));
        (closed.filter(|line| line.contains("certificate serial 4d revoked")).count() >= 4).then_some(())
    });
    wait_rejected(&one, "certificate serial 4d revoked");
    kit::wait_log(&one, "cannot dial a stream of a peer", 2, "certificate serial 4d revoked");
    // The connections of other members are unaffected.
    one.peers.send(vec![heartbeat(1, 3, 5)]);
    assert_eq!(three.recorder.wait_messages(1), [heartbeat(1, 3, 5)]);
    let lost = |heard: &mut kit::Heard| {
        heard.lines.iter().any(|line| line.contains("lost") && line.contains("\"3\""))
    };
    assert!(!one.recorder.with(lost));
}

#[test]
fn messages_go_on_beside_garbage_and_half_handshakes() {
    let (one, two) = pair(&Files::new(), &Authority::new("ca"));
    let address = one.url.strip_prefix("https://").unwrap();
    let mut garbage = Random::new(5);
    let mut halves = Vec::new();
    for round in 0..60_u64 {
        let mut socket = TcpStream::connect(address).unwrap();
        let bytes = match round % 4 {
            // A record whose length field exceeds its content, a complete record of random bytes, no bytes,
            // and input that is not TLS.
            0 => vec![22, 3, 1, 0x40, 0, 1, 0, 0x3f],
            1 => [&[22, 3, 1, 0, 200][..], &garbage.bytes(200)].concat(),
            2 => Vec::new(),
            _ => b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        };
        socket.write_all(&bytes).unwrap();
        halves.push(socket);
        two.peers.send(vec![app(2, 1, round + 1, 100)]);
        one.peers.send(vec![heartbeat(1, 2, round + 1)]);
    }
    assert_eq!(one.recorder.wait_messages(60).len(), 60);
    assert_eq!(two.recorder.wait_messages(60).len(), 60);
    wait_rejected(&one, "tls: first record does not look like a TLS handshake");
    // A plain connection is closed without an answer, as in etcd.
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    drop(halves);
    let lost = |heard: &mut kit::Heard| heard.lines.iter().any(|line| line.contains("lost"));
    assert!(!one.recorder.with(lost) && !two.recorder.with(lost));
}

#[test]
fn rejected_connections_are_said_a_few_times_a_second() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let one = pki::member(1, &load(files.settings("one", &authority, params("one", HERE))).0);
    let address = one.url.strip_prefix("https://").unwrap();
    for _ in 0..300 {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(b"HEAD / HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
    }
    // The last of the earlier connections was rejected before this one.
    let mut lines = 0;
    kit::until("the number of those left out", || {
        let _ = TcpStream::connect(address).unwrap().write_all(b"HEAD / HTTP/1.1\r\n\r\n");
        one.recorder.with(|heard| {
            lines = heard.lines.iter().filter(|line| line.contains("rejected connection")).count();
            heard.lines.iter().any(|line| line.contains("rejections-left-out")).then_some(())
        })
    });
    assert!(lines < 200, "{lines}");
}

/// A health check that only connects does not count towards the limit of log lines about rejections.
#[test]
fn a_connection_that_says_nothing_is_not_warned_of() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let one = pki::member(1, &load(files.settings("one", &authority, params("one", HERE))).0);
    let address = one.url.strip_prefix("https://").unwrap();
    for _ in 0..20 {
        drop(TcpStream::connect(address).unwrap());
    }
    let told = |level: &str| {
        let start = format!("{level} rejected connection");
        one.recorder.with(|heard| heard.lines.iter().filter(|line| line.starts_with(&start)).count())
    };
    kit::until("all are told of", || (told("Debug") + told("Warn") == 20).then_some(()));
    assert_eq!(told("Warn"), 0);
    let _ = TcpStream::connect(address).unwrap().write_all(b"HEAD / HTTP/1.1\r\n\r\n");
    wait_rejected(&one, "tls: first record does not look like a TLS handshake");
    assert_eq!(told("Warn"), 1);
}

/// One member's listener still speaks plain HTTP while the other already uses TLS, in both directions.
#[test]
fn members_with_and_without_tls_talk_while_a_cluster_is_changed() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let tls = load(files.settings("one", &authority, params("one", HERE))).0;
    let one = pki::member(1, &tls);
    let (socket, url) = kit::listen();
    let listener = Listener { socket: socket.into(), tls: None };
    let two = kit::member_with(2, kit::CLUSTER, listener, Some(tls.client()), &url, kit::TIMEOUTS);
    introduce(&[&one, &two]);
    wait_streams(&one, &two);
    one.peers.send(vec![heartbeat(1, 2, 5)]);
    assert_eq!(two.recorder.wait_messages(1), [heartbeat(1, 2, 5)]);
}
