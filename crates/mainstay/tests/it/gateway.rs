//! The JSON gateway and the pages, over HTTP/1.1 and HTTP/2. `interop/gateway_same.py` compares every call
//! with real etcd's.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use testkit::{TempDir, http1};
use tokio_rustls::TlsConnector;

use crate::auth::{CHEAP, secured};
use crate::certificates::{Folder, files, flag};
use crate::client::Client;
use crate::cluster::PATIENCE;
use crate::member::Setup;
use crate::run;
use crate::tls::{https, trusting};

const LOOPBACK: &[&str] = &["127.0.0.1", "localhost"];

/// Sends a JSON call on a separate connection; returns status and body.
fn call(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let answer = http1::request(address, "POST", path, headers, body.as_bytes());
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    (answer.status, answer.text().to_owned())
}

/// Replaces the header in the body of a response, since its ids differ.
fn bare(body: &str) -> String {
    match (body.find("{\"cluster_id\""), body.find('}')) {
        (Some(start), Some(end)) => format!("{}H{}", &body[..start], &body[end + 1..]),
        _ => body.to_owned(),
    }
}

#[test]
fn calls_in_json_are_answered_as_etcd_answers_them() {
    let dir = TempDir::new("gateway");
    let member = Setup::new(dir.path()).start();
    let address = member.client_address();
    let ask = |path: &str, body: &str| {
        let (status, body) = call(address, path, &[], body);
        (status, bare(&body))
    };
    let ok = |body: &str| (200, body.to_owned());
    assert_eq!(ask("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#), ok(r#"{"header":H}"#));
    assert_eq!(
        ask("/v3beta/kv/put", r#"{"key":"Zm9v","value":"YmF6","prevKv":true} and more"#),
        ok(
            r#"{"header":H,"prev_kv":{"key":"Zm9v","create_revision":"2","mod_revision":"2","version":"1","value":"YmFy"}}"#
        )
    );
    assert_eq!(
        ask("/v3/kv/range", r#"{"key":"Zm9v"}"#),
        ok(
            r#"{"header":H,"kvs":[{"key":"Zm9v","create_revision":"2","mod_revision":"3","version":"2","value":"YmF6"}],"count":"1"}"#
        )
    );
    assert_eq!(
        ask(
            "/v3/kv/txn",
            r#"{"compare":[{"key":"Zm9v","target":"VERSION","version":"2"}],"success":[{"request_range":{"key":"Zm9v","count_only":true}}]}"#
        ),
        ok(
            r#"{"header":H,"succeeded":true,"responses":[{"response_range":{"header":{"revision":"3"},"count":"1"}}]}"#
        )
    );
    assert_eq!(ask("/v3/lease/grant", r#"{"TTL":"60","ID":7}"#), ok(r#"{"header":H,"ID":"7","TTL":"60"}"#));
    // The body of a stream comes in chunks, each preceded by its length.
    let renewed = ask("/v3/lease/keepalive", r#"{"ID":7}{"ID":"8"}"#).1;
    assert!(renewed.contains("{\"result\":{\"header\":H,\"ID\":\"7\",\"TTL\":\"60\"}}\n"), "{renewed}");
    for (path, body, status, error) in [
        ("/v3/kv/range", "", 400, r#"{"code":3,"message":"etcdserver: key is not provided"}"#),
        ("/v3/kv/range", "{\"key\":", 400, r#"{"code":3,"message":"unexpected EOF"}"#),
        (
            "/v3/kv/range",
            "{\"key\":5}",
            400,
            r#"{"code":3,"message":"proto: (line 1:8): invalid value for bytes field key: 5"}"#,
        ),
        ("/v3/kv/rang", "", 404, r#"{"code":5,"message":"Not Found"}"#),
        (
            "/v3/lease/revoke",
            "{\"ID\":1}",
            404,
            r#"{"code":5,"message":"etcdserver: requested lease not found"}"#,
        ),
    ] {
        assert_eq!(ask(path, body), (status, error.to_owned()), "{path} {body}");
    }
    let answer = http1::get(address, "/v3/kv/range");
    assert_eq!((answer.status, answer.text()), (501, r#"{"code":12,"message":"Method Not Allowed"}"#));
    assert_eq!(http1::request(address, "POST", "/v3alpha/kv/put", &[], b"{}").status, 404);
    let late = call(address, "/v3/kv/range", &[("Grpc-Timeout", "x")], "{}");
    assert_eq!(late, (400, r#"{"code":3,"message":"invalid grpc-timeout: x"}"#.to_owned()));
    // JSON calls are counted as the gRPC calls that they stand for.
    let metrics = http1::get(address, "/metrics");
    let counted = r#"grpc_server_handled_total{grpc_code="OK",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 2"#;
    assert!(metrics.text().contains(counted), "{}", metrics.text());
}

#[test]
fn a_watch_goes_on_while_its_client_takes_it() {
    let dir = TempDir::new("gateway-watch");
    let member = Setup::new(dir.path()).start();
    let mut stream = http1::connect(member.client_address());
    stream
        .write_all(&http1::head("POST", "/v3/watch", &[("Transfer-Encoding", "chunked")]))
        .expect("is sent");
    let create = |key: &str| format!("{{\"create_request\":{{\"key\":\"{key}\"}}}}");
    // A request may be split at any byte.
    let first = create("Zm9v");
    stream.write_all(&http1::chunk(&first.as_bytes()[..9])).expect("is sent");
    stream.write_all(&http1::chunk(&first.as_bytes()[9..])).expect("is sent");
    let head = http1::read_head(&mut stream);
    assert_eq!((head.status, head.header("grpc-metadata-content-type")), (200, Some("application/grpc")));
    let mut line = || {
        let chunk = http1::read_chunk(&mut stream).expect("the stream goes on");
        (bare(&String::from_utf8(chunk).expect("JSON is text")), stream.try_clone().expect("a socket"))
    };
    assert_eq!(line().0, "{\"result\":{\"header\":H,\"created\":true}}\n");
    run(async { member.client().await.put("foo", "bar").await.expect("is put") });
    let (event, mut stream) = line();
    assert_eq!(
        event,
        "{\"result\":{\"header\":H,\"events\":[{\"kv\":{\"key\":\"Zm9v\",\"create_revision\":\"2\",\"mod_revision\":\"2\",\
         \"version\":\"1\",\"value\":\"YmFy\"}}]}}\n"
    );
    stream.write_all(&http1::chunk(b"{\"cancel_request\":{}}")).expect("is sent");
    let (cancelled, stream) = line();
    assert_eq!(cancelled, "{\"result\":{\"header\":H,\"canceled\":true}}\n");
    let is_over = || {
        let ended = r#"grpc_server_handled_total{grpc_code="Canceled",grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 1"#;
        http1::get(member.client_address(), "/metrics").text().contains(ended)
    };
    assert!(!is_over());
    stream.shutdown(std::net::Shutdown::Both).expect("it was open");
    run(testkit::eventually("the call ends with its client", PATIENCE, async || is_over().then_some(())));
}

/// Each request is larger than one turn may read, so that it waits for another turn.
#[test]
fn large_requests_of_a_stream_are_all_taken() {
    const REQUESTS: usize = 20;
    let dir = TempDir::new("gateway-watch-large");
    let member = Setup::new(dir.path()).start();
    let mut stream = http1::connect(member.client_address());
    stream
        .write_all(&http1::head("POST", "/v3/watch", &[("Transfer-Encoding", "chunked")]))
        .expect("is sent");
    let unknown = "A".repeat(50_000);
    let create = format!("{{\"unknown\":\"{unknown}\",\"create_request\":{{\"key\":\"Zm9v\"}}}}");
    stream.write_all(&http1::chunk(create.repeat(REQUESTS).as_bytes())).expect("is sent");
    assert_eq!(http1::read_head(&mut stream).status, 200);
    let (mut said, mut created) = (String::new(), 0);
    while created < REQUESTS {
        let chunk = http1::read_chunk(&mut stream).expect("the stream goes on");
        said.push_str(&String::from_utf8(chunk).expect("JSON is text"));
        created = said.matches("\"created\":true").count();
    }
    assert_eq!(created, REQUESTS, "{said}");
}

#[test]
fn a_body_takes_no_more_memory_than_it_may() {
    let dir = TempDir::new("gateway-bounds");
    let member = Setup::new(dir.path()).start();
    let address = member.client_address();
    let large = format!("{{\"key\":\"Zm9v\",\"value\":\"{}\"}}", "A".repeat(2_200_000));
    let (status, body) = call(address, "/v3/kv/put", &[], &large);
    assert_eq!((status, body.as_str()), (400, r#"{"code":3,"message":"etcdserver: request is too large"}"#));
    // The body is longer than any message may be. In JSON the message itself could be short, with white space
    // around it.
    let mut stream = http1::connect(address);
    let head = http1::head("POST", "/v3/kv/put", &[("Content-Length", "100000000"), ("Connection", "close")]);
    stream.write_all(&head).expect("is sent");
    let space = vec![b' '; 1 << 20];
    let mut sent = 0;
    while sent < 90 && stream.write_all(&space).is_ok() {
        sent += 1;
    }
    assert!(sent < 90, "the member does not take it all");
    // A value of a stream that never ends.
    let mut stream = http1::connect(address);
    stream.write_all(&http1::head("POST", "/v3/watch", &[("Content-Length", "100000000")])).expect("is sent");
    stream.write_all(b"{\"create_request\":{\"key\":\"").expect("is sent");
    let value = vec![b'A'; 1 << 20];
    for _ in 0..20 {
        if stream.write_all(&value).is_err() {
            break;
        }
    }
    let answer = http1::read_head(&mut stream);
    assert_eq!(answer.status, 429, "{answer:?}");
    let deep = "[".repeat(200_000);
    let (status, body) = call(address, "/v3/kv/put", &[], &deep);
    assert_eq!((status, body.contains("exceeded max depth")), (400, true), "{body}");
}

#[test]
fn larger_requests_that_are_allowed_reach_the_gateway_too() {
    use base64::Engine as _;
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let dir = TempDir::new("gateway-larger");
    let member = Setup::new(dir.path()).flag("--max-request-bytes=8388608").start();
    let address = member.client_address();
    let body = |bytes: usize| format!(r#"{{"key":"Zm9v","value":"{}"}}"#, encode(&vec![b'v'; bytes]));
    let (status, said) = call(address, "/v3/kv/put", &[], &body(8 << 20));
    assert_eq!((status, said.contains("request is too large")), (400, true), "{said}");
    let (status, said) = call(address, "/v3/kv/put", &[], &body(6 << 20));
    assert_eq!(status, 200, "{said}");
    // The same call in gRPC-Web with base64.
    let put = api::etcdserverpb::PutRequest {
        key: "foo".into(),
        value: vec![b'w'; 6 << 20].into(),
        ..Default::default()
    };
    let text = encode(&testkit::http2::message(0, &prost::Message::encode_to_vec(&put)));
    let headers = [("content-type", "application/grpc-web-text")];
    let answer = http1::request(address, "POST", "/etcdserverpb.KV/Put", &headers, text.as_bytes());
    let said = base64::engine::general_purpose::STANDARD.decode(answer.text()).expect("it is base64");
    assert!(String::from_utf8_lossy(&said).contains("grpc-status:0"), "{answer:?}");
}

/// The field names are longer than the values, so the JSON body is many times as long as its message.
#[test]
fn a_body_of_many_small_operations_is_taken_if_its_message_is() {
    const OPERATIONS: usize = 150_000;
    let dir = TempDir::new("gateway-small");
    let member = Setup::new(dir.path()).flag(format!("--max-txn-ops={OPERATIONS}")).start();
    let operation = r#"{"request_delete_range":{"key":"YQ=="}}"#;
    let operations = vec![operation; OPERATIONS].join(",");
    let body = format!(r#"{{"success":[{operations}]}}"#);
    let message_bytes = OPERATIONS * 7;
    assert!(message_bytes < 1_572_864 && body.len() > 5 * message_bytes);
    let (status, said) = call(member.client_address(), "/v3/kv/txn", &[], &body);
    assert_eq!(
        (status, said.contains(r#""succeeded":true"#)),
        (200, true),
        "{}",
        &said[..said.len().min(200)]
    );
}

#[test]
fn who_waits_for_a_lock_and_leaves_gives_its_place_up() {
    let dir = TempDir::new("gateway-lock");
    let member = Setup::new(dir.path()).start();
    let address = member.client_address();
    let lock = r#"{"name":"bG9jaw=="}"#;
    let (status, body) = call(address, "/v3/lock/lock", &[], lock);
    assert_eq!(status, 200, "{body}");
    let keys = || {
        let all = r#"{"key":"bG9jaw==","range_end":"bG9jbA==","count_only":true}"#;
        let (_, body) = call(address, "/v3/kv/range", &[], all);
        let answer: serde_json::Value = serde_json::from_str(&body).expect("it is JSON");
        answer["count"].as_str().expect("a number").to_owned()
    };
    assert_eq!(keys(), "1");
    // A byte follows the request: a server that does not read it does not see that the client closes.
    let mut stream = http1::connect(address);
    let length = lock.len().to_string();
    stream.write_all(&http1::head("POST", "/v3/lock/lock", &[("Content-Length", &length)])).expect("is sent");
    stream.write_all(format!("{lock}G").as_bytes()).expect("is sent");
    run(testkit::eventually("it waits", PATIENCE, async || (keys() == "2").then_some(())));
    drop(stream);
    run(testkit::eventually("it is given up", PATIENCE, async || (keys() == "1").then_some(())));
}

/// Sends a call whose response is large; returns the response.
fn large(address: SocketAddr, path: &str, body: &str) -> serde_json::Value {
    let mut stream = http1::connect(address);
    let length = body.len().to_string();
    stream.write_all(&http1::head("POST", path, &[("Content-Length", &length)])).expect("is sent");
    stream.write_all(body.as_bytes()).expect("is sent");
    let head = http1::read_head(&mut stream);
    assert_eq!((head.status, head.header("transfer-encoding")), (200, Some("chunked")));
    let mut json = Vec::new();
    loop {
        let chunk = http1::read_chunk(&mut stream).expect("the body ends");
        assert!(chunk.len() < 1 << 20, "a chunk of {} bytes", chunk.len());
        if chunk.is_empty() {
            break;
        }
        json.extend(chunk);
    }
    serde_json::from_slice(&json).expect("it is JSON")
}

#[test]
fn large_answers_are_whole() {
    let dir = TempDir::new("gateway-large");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for n in 0..40 {
            client.put(format!("k{n:02}"), vec![n; 300_000]).await.expect("is put");
        }
    });
    let is_whole = |kvs: &serde_json::Value| {
        let kvs = kvs.as_array().expect("a list");
        assert_eq!(kvs.len(), 40);
        assert!(kvs.iter().all(|kv| kv["value"].as_str().is_some_and(|value| value.len() == 400_000)));
    };
    let (address, all) = (member.client_address(), r#""key":"aw==","range_end":"bA==""#);
    let range = large(address, "/v3/kv/range", &format!("{{{all}}}"));
    assert_eq!(range["count"], "40");
    is_whole(&range["kvs"]);
    // The responses of a transaction's operations are written in pieces, too.
    let read = format!(r#"{{"request_range":{{{all}}}}}"#);
    let within = format!(r#"{{"request_txn":{{"success":[{read}]}}}}"#);
    let delete = format!(r#"{{"request_delete_range":{{{all},"prev_kv":true}}}}"#);
    let txn = large(address, "/v3/kv/txn", &format!(r#"{{"success":[{read},{within},{delete}]}}"#));
    let [range, within, deleted] = [0, 1, 2].map(|at| &txn["responses"][at]);
    let range_within = &within["response_txn"]["responses"][0];
    for range in [range, range_within].map(|range| &range["response_range"]) {
        assert_eq!(range["count"], "40");
        is_whole(&range["kvs"]);
    }
    assert_eq!(deleted["response_delete_range"]["deleted"], "40");
    is_whole(&deleted["response_delete_range"]["prev_kvs"]);
}

#[test]
fn what_writes_give_back_is_whole_however_large_it_is() {
    let dir = TempDir::new("gateway-previous");
    let member = Setup::new(dir.path()).start();
    let lease = run(async {
        let client = member.client().await;
        let lease = client.grant(1000).await.expect("a lease");
        client.put_leased("k", vec![7; 300_000], lease).await.expect("is put");
        lease
    });
    let value = "BwcH".repeat(100_000);
    let before = |mod_revision: &str| {
        serde_json::json!({
            "key": "aw==", "create_revision": "2", "mod_revision": mod_revision, "version": "1",
            "value": value, "lease": lease.to_string(),
        })
    };
    let mut put = large(member.client_address(), "/v3/kv/put", r#"{"key":"aw==","prev_kv":true}"#);
    assert_eq!(put["prev_kv"].take(), before("2"));
    assert_eq!(put["header"]["revision"], "3");
    run(async {
        let client = member.client().await;
        client.delete("k").await.expect("is deleted");
        client.put_leased("k", vec![7; 300_000], lease).await.expect("is put");
    });
    let mut deleted =
        large(member.client_address(), "/v3/kv/deleterange", r#"{"key":"aw==","prev_kv":true}"#);
    assert_eq!((&deleted["header"]["revision"], &deleted["deleted"]), (&"6".into(), &"1".into()));
    let mut kv = before("5");
    kv["create_revision"] = "5".into();
    assert_eq!(deleted["prev_kvs"].take(), serde_json::json!([kv]));
}

/// Sends one request over TLS and HTTP/2.
pub async fn over_h2(
    address: SocketAddr,
    settings: tls::Settings,
    request: Request<()>,
    body: &'static str,
) -> Response<String> {
    let settings = tls::Settings { client_alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()], ..settings };
    let (tls, _) = tls::Tls::load(settings, Arc::new(tls::SystemClock)).expect("the files are good");
    let client = tls.client();
    let name = client.server_name("127.0.0.1").expect("an address");
    let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let stream = TlsConnector::from(client.config()).connect(name, stream).await.expect("is let in");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "as Go's server prefers");
    let (mut send, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
    // The connection task ends with the client's handle.
    drop(tokio::spawn(connection));
    let (answer, mut out) = send.send_request(request, false).expect("is sent");
    out.send_data(Bytes::from_static(body.as_bytes()), true).expect("is sent");
    let (head, mut received) = answer.await.expect("is answered").into_parts();
    let mut text = Vec::new();
    while let Some(data) = received.data().await {
        let data = data.expect("the body is whole");
        received.flow_control().release_capacity(data.len()).expect("is given back");
        text.extend_from_slice(&data);
    }
    Response::from_parts(head, String::from_utf8(text).expect("text"))
}

#[test]
fn pages_and_calls_in_json_are_served_over_http2_too() {
    let dir = TempDir::new("gateway-h2");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], LOOPBACK);
    let member =
        https(dir.path()).flag(flag("cert-file", &own.cert)).flag(flag("key-file", &own.key)).start();
    let address = member.client_address();
    run(async {
        let client = Client::secured(address, &files(&authority, None)).await.expect("is let in");
        client.put("big", vec![7; 1_000_000]).await.expect("is put");
        let ask = |method: Method, path: &str, body: &'static str| {
            let uri = format!("https://{address}{path}");
            let request = Request::builder().method(method).uri(uri).body(()).expect("a request");
            over_h2(address, trusting(&authority, None), request, body)
        };
        let answer = ask(Method::GET, "/health", "").await;
        assert_eq!(
            (answer.status().as_u16(), answer.body().as_str()),
            (200, r#"{"health":"true","reason":""}"#)
        );
        assert_eq!(answer.headers()["content-length"], "29");
        let answer = ask(Method::GET, "/metrics", "").await;
        assert!(answer.body().ends_with('\n') && answer.body().len() > 10_000);
        assert_eq!(ask(Method::GET, "/nothing", "").await.status(), 404);
        let answer = ask(Method::HEAD, "/health", "").await;
        assert_eq!((answer.status().as_u16(), answer.body().as_str()), (405, ""));
        let answer = ask(Method::POST, "/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#).await;
        assert_eq!((answer.status().as_u16(), bare(answer.body()).as_str()), (200, r#"{"header":H}"#));
        // The response is larger than the flow-control window of a stream.
        let answer = ask(Method::POST, "/v3/kv/range", r#"{"key":"YmlnIA=="}"#).await;
        assert_eq!(bare(answer.body()), r#"{"header":H}"#);
        let answer = ask(Method::POST, "/v3/kv/range", r#"{"key":"Ymln"}"#).await;
        assert!(answer.body().len() > 1_300_000, "{}", answer.body().len());
        let answer = ask(Method::POST, "/v3/lease/keepalive", r#"{"ID":1}{"ID":2}"#).await;
        assert_eq!(answer.body().lines().count(), 2);
        assert_eq!(client.get("foo").await.expect("a member that serves").expect("it is there").value, "bar");
    });
}

#[test]
fn a_user_of_the_gateway_is_whose_token_it_is() {
    let dir = TempDir::new("gateway-users");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], LOOPBACK);
    let root = authority.issue("root", &[2], &[]);
    let member = https(dir.path())
        .flag(flag("cert-file", &own.cert))
        .flag(flag("key-file", &own.key))
        .flag("--client-cert-auth")
        .flag(flag("trusted-ca-file", &authority.ca))
        .flag(CHEAP)
        .start();
    let address = member.client_address();
    run(async {
        let client = Client::secured(address, &files(&authority, Some(&root))).await.expect("is let in");
        secured(&client).await;
        let uri = format!("https://{address}/v3/kv/put");
        let request = Request::builder().method(Method::POST).uri(uri).body(()).expect("a request");
        let settings = trusting(&authority, Some(&root));
        let answer = over_h2(address, settings, request, r#"{"key":"Zm9v"}"#).await;
        let text = "CommonName of client sending a request against gateway will be ignored and not used as expected\n";
        assert_eq!((answer.status().as_u16(), answer.body().as_str()), (400, text));
    });

    let dir = TempDir::new("gateway-tokens");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    let address = member.client_address();
    run(async { secured(&member.client().await).await });
    let denied = call(address, "/v3/kv/put", &[], r#"{"key":"Zm9v"}"#);
    assert_eq!(denied, (400, r#"{"code":3,"message":"etcdserver: user name is empty"}"#.to_owned()));
    let answer =
        http1::request(address, "POST", "/v3/kv/put", &[("Authorization", "x.1")], b"{\"key\":\"Zm9v\"}");
    assert_eq!(
        (answer.status, answer.header("www-authenticate")),
        (401, Some("etcdserver: invalid auth token"))
    );
    let (_, body) = call(address, "/v3/auth/authenticate", &[], r#"{"name":"root","password":"rootpw"}"#);
    let body: serde_json::Value = serde_json::from_str(&body).expect("it is JSON");
    let token = body["token"].as_str().expect("a token");
    for header in ["Authorization", "Grpc-Metadata-Token"] {
        let (status, body) = call(address, "/v3/kv/put", &[(header, token)], r#"{"key":"Zm9v"}"#);
        assert_eq!(status, 200, "{header}: {body}");
    }
}

#[test]
fn without_a_gateway_its_paths_are_none() {
    let dir = TempDir::new("gateway-off");
    let member = Setup::new(dir.path()).flag("--enable-grpc-gateway=false").start();
    for path in ["/v3/kv/put", "/v3beta/kv/put", "/v3", "/v3/"] {
        let answer = http1::request(member.client_address(), "POST", path, &[], b"{\"key\":\"Zm9v\"}");
        assert_eq!((answer.status, answer.text()), (404, "404 page not found\n"), "{path}");
    }
    // A page cannot reach the member by gRPC-Web either.
    let headers = [("Content-Type", "application/grpc-web+proto"), ("Origin", "https://any.example")];
    let empty = b"\0\0\0\0\0";
    let answer = http1::request(member.client_address(), "POST", "/etcdserverpb.KV/Range", &headers, empty);
    assert_eq!(answer.status, 404, "{answer:?}");
}
