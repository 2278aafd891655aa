//! The console, with members that are processes. The tests of the crate `mainstay-console` use scripted members.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::http1::{self, Answer};
use testkit::ports::free_address;
use testkit::{TIMEOUT, TempDir, wait_until};

use crate::auth::{CHEAP, secured};
use crate::certificates::{Folder, flag};
use crate::cluster::Cluster;
use crate::member::{Setup, binary};
use crate::run;
use crate::tls::https;

const OWN: (&str, &str) = ("X-Mainstay-Console", "1");

/// Sends a request with the address as host name; returns the connection on which the response arrives.
fn ask(console: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = http1::connect(console);
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nHost: {console}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in [&[OWN], headers].concat() {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).expect("the console reads");
    stream
}

/// Returns the response to a request.
fn answer(console: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = ask(console, method, path, headers, body);
    let mut answer = http1::read_head(&mut stream);
    match answer.header("content-length").map(|length| length.parse().expect("a number")) {
        Some(length) => {
            answer.body = vec![0; length];
            stream.read_exact(&mut answer.body).expect("the body is whole");
        }
        None => {
            while let Some(chunk) = http1::read_chunk(&mut stream).filter(|chunk| !chunk.is_empty()) {
                answer.body.extend(chunk);
            }
        }
    }
    answer
}

fn call(
    console: SocketAddr,
    endpoint: &str,
    call: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Value) {
    let answer = answer(console, "POST", &format!("/api/endpoint/{endpoint}/v3/{call}"), headers, body);
    (answer.status, serde_json::from_str(answer.text()).expect("JSON"))
}

fn members(console: SocketAddr) -> Value {
    let answer = answer(console, "GET", "/api/members", &[], "");
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_str(answer.text()).expect("JSON")
}

/// Checks through one console what it shows of a cluster of three: pages, members, calls, a watch, a member
/// that goes down.
fn sees_the_cluster(cluster: &mut Cluster, console: SocketAddr, own: usize) {
    assert_eq!(answer(console, "GET", "/", &[], "").header("content-type"), Some("text/html; charset=utf-8"));
    let list = members(console);
    let endpoints = list["endpoints"].as_array().expect("a list");
    assert_eq!(endpoints.len(), 3, "{list}");
    let id_of = |slot: usize| {
        let url = format!("http://{}", cluster.slots[slot].client);
        let found = endpoints.iter().find(|endpoint| endpoint["url"] == url.as_str());
        found
            .and_then(|endpoint| endpoint["id"].as_str())
            .unwrap_or_else(|| panic!("{url} in {list}"))
            .to_owned()
    };
    let ids = [0, 1, 2].map(id_of);
    assert_eq!(ids[own], "0");
    assert!(endpoints.iter().all(|endpoint| endpoint["memberId"].as_str().is_some_and(|id| id.len() == 16)));

    // A watch at one member reports a put at another.
    let path = format!("/api/endpoint/{}/v3/watch", ids[1]);
    let mut watch = ask(console, "POST", &path, &[], r#"{"create_request":{"key":"Zm9v"}}"#);
    assert_eq!(http1::read_head(&mut watch).status, 200);
    let mut event =
        || String::from_utf8(http1::read_chunk(&mut watch).expect("the stream goes on")).expect("text");
    assert!(event().contains("\"created\":true"));
    for value in ["YQ==", "Yg=="] {
        let put = format!(r#"{{"key":"Zm9v","value":"{value}"}}"#);
        assert_eq!(call(console, &ids[2], "kv/put", &[], &put).0, 200);
        let told = event();
        assert!(told.contains(value), "{told}");
    }
    for id in &ids {
        let (status, range) = call(console, id, "kv/range", &[], r#"{"key":"Zm9v"}"#);
        assert_eq!((status, &range["kvs"][0]["value"]), (200, &Value::from("Yg==")));
        let metrics = answer(console, "GET", &format!("/api/endpoint/{id}/metrics"), &[], "");
        assert!(metrics.text().contains("etcd_server_has_leader 1"), "{}", metrics.text());
        for page in ["health", "readyz?verbose", "version", "debug/mainstay", "debug/requests"] {
            let answer = answer(console, "GET", &format!("/api/endpoint/{id}/{page}"), &[], "");
            assert_eq!(answer.status, 200, "{page}: {}", answer.text());
        }
    }

    // A member that is down is listed, and shown as down.
    let down = (own + 1) % 3;
    cluster.slots[down].member.take().expect("it runs").kill();
    assert_eq!(members(console)["endpoints"].as_array().map(Vec::len), Some(3));
    let (status, error) = call(console, &ids[down], "kv/range", &[], r#"{"key":"Zm9v"}"#);
    assert_eq!((status, &error["code"]), (502, &Value::from(14)), "{error}");
    let other = (own + 2) % 3;
    wait_until("the others go on", TIMEOUT, || {
        (call(console, &ids[other], "kv/range", &[], r#"{"key":"Zm9v"}"#).0 == 200).then_some(())
    });
}

#[test]
fn a_member_shows_its_cluster() {
    let mut cluster = Cluster::plan("console", 3, &[]);
    let console = free_address();
    cluster.slots[1].flags.push(format!("--listen-console-urls=http://{console}"));
    cluster.start_all();
    assert_eq!(members(console)["self"].as_str().map(str::len), Some(16));
    sees_the_cluster(&mut cluster, console, 1);
}

#[test]
fn a_console_by_itself_shows_a_cluster() {
    let mut cluster = Cluster::start("console-alone", 3, &[]);
    let mut process = Command::new(binary())
        .env_clear()
        .args(["console", "--listen=http://127.0.0.1:0"])
        .arg(format!("--endpoints={}", cluster.slots[0].client))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let output = process.stdout.as_mut().expect("it is piped");
    BufReader::new(output).read_line(&mut line).expect("it says where it is");
    let address =
        line.trim().strip_prefix("The console is at http://").and_then(|rest| rest.strip_suffix('/'));
    let console = address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    assert_eq!(members(console)["self"], Value::Null);
    sees_the_cluster(&mut cluster, console, 0);
    // SAFETY: kill is called with the id of a child that has not been waited for.
    let told = unsafe { libc::kill(libc::pid_t::try_from(process.id()).expect("a pid"), libc::SIGTERM) };
    assert_eq!(told, 0, "the process takes the signal");
    assert!(process.wait().expect("it is our child").success());
}

#[test]
fn users_log_in_through_it() {
    let dir = TempDir::new("console-users");
    let console = free_address();
    let member =
        Setup::new(dir.path()).flag(CHEAP).flag(format!("--listen-console-urls=http://{console}")).start();
    run(async { secured(&member.client().await).await });
    let range = r#"{"key":"Zm9v"}"#;
    let (status, error) = call(console, "0", "kv/range", &[], range);
    assert_eq!((status, &error["message"]), (400, &Value::from("etcdserver: user name is empty")));
    let (status, error) = call(console, "0", "kv/range", &[("Authorization", "bad")], range);
    assert_eq!((status, &error["code"]), (401, &Value::from(16)), "{error}");
    let login = |name: &str, password: &str| {
        let body = format!(r#"{{"name":"{name}","password":"{password}"}}"#);
        call(console, "0", "auth/authenticate", &[], &body)
    };
    assert_eq!(login("root", "wrong").0, 400);
    let token = |name: &str, password: &str| {
        let (status, answer) = login(name, password);
        assert_eq!(status, 200, "{answer}");
        answer["token"].as_str().expect("a token").to_owned()
    };
    let root = token("root", "rootpw");
    assert_eq!(call(console, "0", "kv/range", &[("Authorization", &root)], range).0, 200);
    // Bob may not read the key.
    let bob = token("bob", "bobpw");
    let (status, error) = call(console, "0", "kv/range", &[("Authorization", &bob)], range);
    assert_eq!((status, &error["message"]), (403, &Value::from("etcdserver: permission denied")));
}

#[test]
fn tls_is_that_of_the_listeners_for_clients() {
    let dir = TempDir::new("console-tls");
    let authority = Folder::new(dir.path(), "authority");
    let own = authority.issue("server", &[1], &["127.0.0.1", "localhost"]);
    let (secure, plain) = (free_address(), free_address());
    let member = https(dir.path())
        .flag(flag("cert-file", &own.cert))
        .flag(flag("key-file", &own.key))
        .flag(flag("trusted-ca-file", &authority.ca))
        .flag(format!("--listen-console-urls=https://{secure},http://{plain}"))
        .start();
    member.wait_for("the console's listener asks for none");
    let browser = authority.issue("browser", &[2], &[]);
    let ask = |settings| run(crate::tls::get(secure, settings, "/"));
    let page = ask(crate::tls::trusting(&authority, Some(&browser))).expect("it is served");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    ask(crate::tls::trusting(&authority, None)).expect_err("no certificate was shown");
    // The console reaches the member with the member's own certificate.
    let (status, range) = call(plain, "0", "kv/range", &[], r#"{"key":"Zm9v"}"#);
    assert_eq!(status, 200, "{range}");
}
