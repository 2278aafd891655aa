//! gRPC-Web, as browsers speak it, over HTTP/1.1 and HTTP/2.

use std::io::Write as _;
use std::net::SocketAddr;

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    AuthenticateRequest, AuthenticateResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request};
use prost::Message;
use testkit::{TempDir, http1};

use crate::auth::{CHEAP, secured};
use crate::certificates::{Folder, files, flag};
use crate::client::Client;
use crate::cluster::PATIENCE;
use crate::gateway::over_h2;
use crate::member::Setup;
use crate::run;
use crate::tls::{https, trusting};

const BYTES: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text";
const OK: &str = "grpc-status:0\r\n";

fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    [&[0], &u32::try_from(bytes.len()).expect("it is short").to_be_bytes()[..], &bytes].concat()
}

/// Returns the messages of a response, and the text of its trailers.
fn unframed(mut body: &[u8]) -> (Vec<Vec<u8>>, String) {
    let mut messages = Vec::new();
    loop {
        let (prefix, rest) = body.split_at_checked(5).expect("a frame has a prefix");
        let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        let (frame, rest) = rest.split_at_checked(len).expect("a frame is whole");
        if prefix[0] == 0x80 {
            assert!(rest.is_empty(), "something behind the end");
            return (messages, String::from_utf8(frame.to_vec()).expect("the end is text"));
        }
        assert_eq!(prefix[0], 0, "a message");
        messages.push(frame.to_vec());
        body = rest;
    }
}

/// Decodes base64 that consists of several pieces, each with its own padding.
fn unpadded(text: &[u8]) -> Vec<u8> {
    text.chunks(4).flat_map(|group| STANDARD.decode(group).expect("groups of base64")).collect()
}

/// Sends a body to a method; returns the response body, decoded if it is base64.
fn sent(address: SocketAddr, method: &str, kind: &str, more: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut stream = http1::connect(address);
    let length = body.len().to_string();
    let mut headers = vec![("Content-Type", kind), ("Content-Length", &length), ("X-Grpc-Web", "1")];
    headers.extend(more);
    stream.write_all(&http1::head("POST", &format!("/etcdserverpb.{method}"), &headers)).expect("is sent");
    stream.write_all(body).expect("is sent");
    let mut answer = http1::read_head(&mut stream);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    if answer.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = http1::read_chunk(&mut stream).filter(|chunk| !chunk.is_empty()) {
            assert!(chunk.len() < 2 << 20, "a chunk of {} bytes", chunk.len());
            answer.body.extend(chunk);
        }
    } else {
        let length = answer.header("content-length").and_then(|length| length.parse().ok());
        answer.body.resize(length.expect("a length"), 0);
        std::io::Read::read_exact(&mut stream, &mut answer.body).expect("the body is whole");
    }
    let is_text = kind.starts_with(TEXT);
    let written = if is_text { "application/grpc-web-text+proto" } else { "application/grpc-web+proto" };
    assert_eq!(answer.header("content-type"), Some(written));
    if is_text { unpadded(&answer.body) } else { answer.body }
}

fn call(address: SocketAddr, method: &str, kind: &str, message: &impl Message) -> (Vec<Vec<u8>>, String) {
    let body = framed(message);
    let body = if kind.starts_with(TEXT) { STANDARD.encode(body).into_bytes() } else { body };
    unframed(&sent(address, method, kind, &[], &body))
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() }
}

fn range(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

#[test]
fn calls_are_answered_in_the_form_that_they_have() {
    let dir = TempDir::new("grpc-web");
    let member = Setup::new(dir.path()).start();
    let address = member.client_address();
    for kind in [BYTES, "application/grpc-web", TEXT, "application/grpc-web-text+proto; charset=utf-8"] {
        let (messages, end) = call(address, "KV/Put", kind, &put("k", kind));
        assert_eq!((messages.len(), end.as_str()), (1, OK), "{kind}");
        PutResponse::decode(&messages[0][..]).expect("it is a message");
        let (messages, end) = call(address, "KV/Range", kind, &range("k"));
        let answer = RangeResponse::decode(&messages[0][..]).expect("it is a message");
        assert_eq!((answer.kvs[0].value.as_ref(), end.as_str()), (kind.as_bytes(), OK), "{kind}");
        // An error is sent as trailers without a message; the HTTP status is 200.
        let (messages, end) = call(address, "KV/Range", kind, &range(""));
        assert!(messages.is_empty());
        assert_eq!(end, "grpc-status:3\r\ngrpc-message:etcdserver: key is not provided\r\n", "{kind}");
    }
    // These calls are counted as the gRPC calls that they stand for.
    let metrics = http1::get(address, "/metrics");
    let counted = r#"grpc_server_handled_total{grpc_code="OK",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 4"#;
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    let answer = http1::request(
        address,
        "POST",
        "/etcdserverpb.KV/Range",
        &[("Content-Type", "application/grpc-web+json")],
        b"{}",
    );
    assert_eq!(answer.status, 404, "a form that is none of gRPC-Web's: {answer:?}");
}

#[test]
fn what_is_no_call_is_told_so() {
    let dir = TempDir::new("grpc-web-bad");
    let member = Setup::new(dir.path()).start();
    let address = member.client_address();
    let good = framed(&range("k"));
    let in_base64 = STANDARD.encode(&good);
    for (kind, method, more, body, end) in [
        (BYTES, "KV/Nothing", None, &good[..], "12\r\ngrpc-message:unknown method /etcdserverpb.KV/Nothing"),
        (BYTES, "KV/Range", None, b"", "13\r\ngrpc-message:mainstay: the body contains no message"),
        (
            BYTES,
            "KV/Range",
            None,
            b"\0\0",
            "13\r\ngrpc-message:mainstay: the body ends within the prefix of a message",
        ),
        (
            BYTES,
            "KV/Range",
            None,
            b"\0\0\0\0\x09abc",
            "13\r\ngrpc-message:mainstay: the body ends within a message",
        ),
        (
            BYTES,
            "KV/Range",
            None,
            b"\x01\0\0\0\0",
            "13\r\ngrpc-message:grpc: compressed flag set with identity or empty encoding",
        ),
        (
            BYTES,
            "KV/Range",
            None,
            b"\x80\0\0\0\0",
            "13\r\ngrpc-message:mainstay: a frame of the request is not a message",
        ),
        (
            BYTES,
            "KV/Range",
            None,
            &[&good[..], &good].concat(),
            "13\r\ngrpc-message:mainstay: the body contains more than one message",
        ),
        (
            BYTES,
            "KV/Range",
            None,
            b"\0\xff\xff\xff\xff",
            "8\r\ngrpc-message:grpc: received message larger than max (4294967295 vs. 2097152)",
        ),
        (
            BYTES,
            "KV/Range",
            Some(("Grpc-Timeout", "soon")),
            &good,
            "3\r\ngrpc-message:invalid grpc-timeout: soon",
        ),
        (
            BYTES,
            "KV/Range",
            Some(("Grpc-Encoding", "gzip")),
            &good,
            "12\r\ngrpc-message:grpc: Decompressor is not installed for grpc-encoding \"gzip\"",
        ),
        (
            TEXT,
            "KV/Range",
            None,
            b"====",
            "13\r\ngrpc-message:mainstay: the body is not valid base64: Invalid symbol 61, offset 0.",
        ),
        (
            TEXT,
            "KV/Range",
            None,
            &in_base64.as_bytes()[1..],
            "13\r\ngrpc-message:mainstay: the body is not valid base64: ",
        ),
    ] {
        let answer = sent(address, method, kind, more.as_slice(), body);
        let (messages, said) = unframed(&answer);
        assert!(messages.is_empty(), "{method} {body:?}");
        assert!(said.starts_with(&format!("grpc-status:{end}")), "{method} {body:?}: {said}");
    }
    // A body that is too long is not read to its end.
    let mut stream = http1::connect(address);
    let headers = [("Content-Type", BYTES), ("Content-Length", "100000000"), ("Connection", "close")];
    stream.write_all(&http1::head("POST", "/etcdserverpb.KV/Put", &headers)).expect("is sent");
    let space = vec![0; 1 << 20];
    let mut taken = 0;
    while taken < 90 && stream.write_all(&space).is_ok() {
        taken += 1;
    }
    assert!(taken < 90, "the member does not take it all");
    // The member still serves.
    assert_eq!(call(address, "KV/Range", BYTES, &range("k")).1, OK);
}

#[test]
fn a_watch_is_answered_event_by_event() {
    let dir = TempDir::new("grpc-web-watch");
    let member = Setup::new(dir.path()).start();
    let create = WatchCreateRequest { key: "foo".into(), ..Default::default() };
    let body = framed(&WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
    let mut stream = http1::connect(member.client_address());
    let length = body.len().to_string();
    let headers = [("Content-Type", BYTES), ("Content-Length", length.as_str())];
    stream.write_all(&http1::head("POST", "/etcdserverpb.Watch/Watch", &headers)).expect("is sent");
    stream.write_all(&body).expect("is sent");
    assert_eq!(http1::read_head(&mut stream).status, 200);
    let mut next = || {
        let chunk = http1::read_chunk(&mut stream).expect("the stream goes on");
        (chunk[0], WatchResponse::decode(&chunk[5..]).expect("a message in each chunk"))
    };
    let (flags, created) = next();
    assert_eq!((flags, created.created), (0, true));
    for value in ["one", "two"] {
        run(async { member.client().await.put("foo", value).await.expect("is put") });
        let (_, response) = next();
        let kv = response.events[0].kv.as_ref().expect("of a put");
        assert_eq!(kv.value, value.as_bytes());
    }
    let is_over = || {
        let ended = r#"grpc_server_handled_total{grpc_code="Canceled",grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 1"#;
        http1::get(member.client_address(), "/metrics").text().contains(ended)
    };
    assert!(!is_over());
    stream.shutdown(std::net::Shutdown::Both).expect("it was open");
    run(testkit::eventually("the call ends with its client", PATIENCE, async || is_over().then_some(())));
}

#[test]
fn large_answers_are_whole_in_both_forms() {
    let dir = TempDir::new("grpc-web-large");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for n in 0..40 {
            client.put(format!("k{n:02}"), vec![n; 300_001]).await.expect("is put");
        }
    });
    let all = RangeRequest { range_end: "l".into(), ..range("k") };
    for kind in [BYTES, TEXT] {
        let (messages, end) = call(member.client_address(), "KV/Range", kind, &all);
        assert_eq!((messages.len(), end.as_str()), (1, OK), "{kind}");
        let answer = RangeResponse::decode(&messages[0][..]).expect("it is a message");
        assert_eq!(answer.kvs.len(), 40);
        assert!((0..).zip(&answer.kvs).all(|(n, kv)| kv.value == vec![n; 300_001]), "{kind}");
    }
    for (n, kind) in (0..).zip([BYTES, TEXT]) {
        let request = PutRequest { prev_kv: true, ..put(&format!("k{n:02}"), "") };
        let (messages, end) = call(member.client_address(), "KV/Put", kind, &request);
        assert_eq!((messages.len(), end.as_str()), (1, OK), "{kind}");
        let answer = PutResponse::decode(&messages[0][..]).expect("it is a message");
        assert!(answer.prev_kv.is_some_and(|kv| kv.value == vec![n; 300_001]), "{kind}");
        let delete = DeleteRangeRequest { prev_kv: true, ..DeleteRangeRequest::default() };
        let delete = DeleteRangeRequest { key: format!("k{:02}", n + 2).into(), ..delete };
        let (messages, end) = call(member.client_address(), "KV/DeleteRange", kind, &delete);
        assert_eq!((messages.len(), end.as_str()), (1, OK), "{kind}");
        let answer = DeleteRangeResponse::decode(&messages[0][..]).expect("it is a message");
        assert!(answer.deleted == 1 && answer.prev_kvs[0].value == vec![n + 2; 300_001], "{kind}");
    }
}

#[test]
fn browsers_are_told_which_pages_may_call() {
    let dir = TempDir::new("grpc-web-cors");
    let member = Setup::new(dir.path()).flag("--cors=https://ui.example:8443").start();
    let address = member.client_address();
    let asks = |origin: &str, path: &str| {
        http1::request(
            address,
            "OPTIONS",
            path,
            &[("Origin", origin), ("Access-Control-Request-Method", "POST")],
            b"",
        )
    };
    let allowed = asks("https://ui.example:8443", "/etcdserverpb.KV/Range");
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (200, Some("https://ui.example:8443"))
    );
    let headers = allowed.header("access-control-allow-headers").expect("it says which");
    for header in ["x-grpc-web", "x-user-agent", "grpc-timeout", "content-type", "authorization", "token"] {
        assert!(headers.split(", ").any(|one| one == header), "{header} in {headers}");
    }
    assert_eq!(
        asks("https://ui.example:8443", "/v3/kv/range").header("access-control-allow-headers"),
        Some("accept, content-type, authorization"),
        "as etcd where it has pages"
    );
    assert_eq!(
        asks("https://evil.example:8443", "/etcdserverpb.KV/Range").header("access-control-allow-origin"),
        None
    );
    let headers = [("Content-Type", BYTES), ("Origin", "https://evil.example:8443")];
    let answer = http1::request(address, "POST", "/etcdserverpb.KV/Range", &headers, &framed(&range("k")));
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None));

    // A page whose host name was rebound to the member sends its own name as host.
    let dir = TempDir::new("grpc-web-hosts");
    let member = Setup::new(dir.path()).flag("--host-whitelist=db.example").start();
    let headers = [("Content-Type", BYTES)];
    let answer = http1::request(
        member.client_address(),
        "POST",
        "/etcdserverpb.KV/Range",
        &headers,
        &framed(&range("k")),
    );
    assert_eq!(answer.status, 421, "{answer:?}");
}

#[test]
fn a_user_is_whose_token_it_is() {
    let dir = TempDir::new("grpc-web-users");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    let address = member.client_address();
    run(async { secured(&member.client().await).await });
    assert_eq!(
        call(address, "KV/Put", BYTES, &put("k", "v")).1,
        "grpc-status:3\r\ngrpc-message:etcdserver: user name is empty\r\n"
    );
    let login = AuthenticateRequest { name: "root".to_owned(), password: "rootpw".to_owned() };
    let (messages, end) = call(address, "Auth/Authenticate", TEXT, &login);
    assert_eq!(end, OK);
    let token = AuthenticateResponse::decode(&messages[0][..]).expect("it is a message").token;
    let body = framed(&put("k", "v"));
    for header in ["Token", "Authorization"] {
        let answer = sent(address, "KV/Put", BYTES, &[(header, &token)], &body);
        assert_eq!(unframed(&answer).1, OK, "{header}");
        let answer = sent(address, "KV/Put", BYTES, &[(header, "x.1")], &body);
        let end = "grpc-status:16\r\ngrpc-message:etcdserver: invalid auth token\r\n";
        assert_eq!(unframed(&answer).1, end, "{header}");
    }
}

#[test]
fn over_tls_it_is_served_by_http2_too_and_a_certificate_is_no_user() {
    let dir = TempDir::new("grpc-web-tls");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], &["127.0.0.1", "localhost"]);
    let root = authority.issue("root", &[2], &[]);
    let member = https(dir.path())
        .flag(flag("cert-file", &own.cert))
        .flag(flag("key-file", &own.key))
        .flag("--client-cert-auth")
        .flag(flag("trusted-ca-file", &authority.ca))
        .flag(CHEAP)
        .start();
    let address = member.client_address();
    let ask = || {
        let uri = format!("https://{address}/etcdserverpb.KV/Put");
        let request = Request::builder().method(Method::POST).uri(uri).header("content-type", TEXT);
        // The frame of a put of the key `foo`.
        over_h2(
            address,
            trusting(&authority, Some(&root)),
            request.body(()).expect("a request"),
            "AAAAAAUKA2Zvbw==",
        )
    };
    run(async {
        let client = Client::secured(address, &files(&authority, Some(&root))).await.expect("is let in");
        let answer = ask().await;
        assert_eq!(answer.status(), 200);
        let (messages, end) = unframed(&unpadded(answer.body().as_bytes()));
        assert_eq!((messages.len(), end.as_str()), (1, OK));
        assert_eq!(client.get("foo").await.expect("a member that serves").expect("it is there").value, "");
        secured(&client).await;
        assert_eq!(ask().await.status(), 400, "a browser shows its certificate for any page");
    });
}
