//! Memory that hostile clients can make a member hold: its peak stays near its budget, and other clients are served.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use api::Rpc;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{RangeRequest, RequestOp, TxnRequest, TxnResponse, range_request};
use prost::Message as _;

use testkit::{TempDir, eventually, http1};

use testkit::http2::{Connection, DATA, END_HEADERS, HEADERS, call, call_block, frame, message};

use crate::client::{Client, put_op};
use crate::cluster::PATIENCE;
use crate::member::{Member, Setup};
use crate::{filler, run};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
/// Bytes that the allocator and the kernel's accounting may add to a budget of 64 MiB.
const MARGIN: u64 = 96 * MIB;

fn member(dir: &TempDir) -> Member {
    Setup::new(dir.path()).flag(format!("--client-memory-bytes={BUDGET}")).start()
}

#[test]
fn memory_for_clients_that_is_too_little_for_a_few_requests_is_raised_and_told_of() {
    let dir = TempDir::in_memory("raised");
    let setup = Setup::new(dir.path()).flag("--max-request-bytes=16777216");
    let member = setup.flag("--client-memory-bytes=1048576").start();
    let line = member.wait_for("--client-memory-bytes is below");
    assert!(line.contains("1048576") && line.contains(&(4 * (16 * MIB + (512 << 10))).to_string()), "{line}");
    member.stop();
}

/// Asserts that another client can read and write.
fn serves_others(member: &Member) {
    run(async {
        let client = member.client().await;
        client.put("other", "x").await.expect("puts are served");
        client.get("other").await.expect("reads are served");
    });
}

fn held_its_bound(member: &Member, before: u64, what: &str) {
    let grown = member.peak_bytes().saturating_sub(before);
    println!("{what}: {} MiB more at the peak", grown / MIB);
    assert!(grown < BUDGET + MARGIN, "{what}: {} MiB", grown / MIB);
    serves_others(member);
}

/// Connects with HTTP/2; `window` is the initial flow-control window of each response, in bytes.
fn connect(address: SocketAddr, window: u32) -> Connection {
    Connection::h2(address, &[&[0, 4][..], &window.to_be_bytes()].concat())
}

fn packed(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(plain).and_then(|()| encoder.finish()).expect("packing into memory")
}

/// An empty comparison, operation or URL takes two bytes, and a thousand of them compress to two bytes of gzip.
#[test]
fn requests_of_a_million_elements_are_refused_before_they_are_made() {
    const ELEMENTS: usize = 1_000_000;
    let dir = TempDir::in_memory("elements");
    let member = member(&dir);
    let address = member.client_address();
    let before = member.peak_bytes();
    let cases = [
        (Rpc::KvTxn, [0x0a, 0], "3"),
        (Rpc::KvTxn, [0x12, 0], "3"),
        (Rpc::ClusterMemberAdd, [0x0a, 0], "3"),
        (Rpc::ClusterMemberUpdate, [0x12, 0], "3"),
    ];
    for (rpc, element, status) in cases {
        let body = packed(&element.repeat(ELEMENTS));
        assert!(body.len() < 3000, "{} bytes", body.len());
        let mut connection = connect(address, 65_535);
        connection.call(1, rpc.path(), &[("grpc-encoding", "gzip")], &message(1, &body));
        let head = connection.next_of(HEADERS).payload;
        let head = String::from_utf8_lossy(&head);
        assert!(head.contains(&format!("grpc-status\u{1}{status}")), "{rpc:?}: {head}");
    }
    let json = |element: &str| vec![element; ELEMENTS].join(",");
    for (path, body, said) in [
        ("/v3/kv/txn", format!(r#"{{"compare":[{}]}}"#, json("{}")), "too many operations in txn request"),
        ("/v3/kv/txn", format!(r#"{{"success":[{}]}}"#, json("{}")), "too many operations in txn request"),
        (
            "/v3/cluster/member/add",
            format!(r#"{{"peerURLs":[{}]}}"#, json("\"\"")),
            "too many values of peerURLs",
        ),
    ] {
        let answer = http1::request(address, "POST", path, &[], body.as_bytes());
        assert!(answer.text().contains(said), "{path}: {answer:?}");
    }
    let grown = member.peak_bytes().saturating_sub(before);
    println!("a million elements: {} MiB more at the peak", grown / MIB);
    assert!(grown < 48 * MIB, "{} MiB", grown / MIB);
    serves_others(&member);
}

/// Opens a call without a message; returns false if the server has closed the connection.
fn open_call(connection: &mut Connection, stream: u32, rpc: Rpc) -> bool {
    connection.send(&frame(HEADERS, END_HEADERS, stream, &call_block(rpc.path(), &[])))
}

#[test]
fn calls_without_messages() {
    let dir = TempDir::in_memory("opened");
    let member = member(&dir);
    let before = member.peak_bytes();
    let mut open = Vec::new();
    for rpc in [Rpc::KvPut, Rpc::Watch, Rpc::LeaseKeepAlive] {
        let mut connection = connect(member.client_address(), 65_535);
        for call in 0..60_000 {
            if !open_call(&mut connection, 2 * call + 1, rpc) {
                break;
            }
        }
        open.push(connection);
        serves_others(&member);
    }
    held_its_bound(&member, before, "180,000 calls without messages");
}

#[test]
fn answers_that_nobody_takes() {
    let dir = TempDir::in_memory("unread");
    let member = member(&dir);
    run(async {
        member.client().await.put("large", filler(1, 1_400_000)).await.expect("puts are served");
    });
    let before = member.peak_bytes();
    let read = RangeRequest { key: "large".into(), ..RangeRequest::default() };
    let read = RequestOp { request: Some(Request::RequestRange(read)) };
    let request = TxnRequest { success: vec![put_op("small", "x"), read], ..TxnRequest::default() };
    let mut connection = connect(member.client_address(), 0);
    for number in 0..500 {
        if !connection.send(&call(2 * number + 1, Rpc::KvTxn.path(), &request.encode_to_vec())) {
            break;
        }
    }
    // These calls come later, on another connection, so the member has handled the calls before them.
    for _ in 0..20 {
        serves_others(&member);
    }
    held_its_bound(&member, before, "500 answers of 1.4 MB that nobody takes");
}

#[test]
fn clients_that_take_the_beginning_of_a_large_value() {
    let dir = TempDir::in_memory("beginnings");
    let member = Setup::new(dir.path()).start();
    run(async {
        member.client().await.put("large", filler(1, 1_400_000)).await.expect("puts are served");
    });
    serves_others(&member);
    let before = member.peak_bytes();
    let read = RangeRequest { key: "large".into(), ..RangeRequest::default() }.encode_to_vec();
    let mut open = Vec::new();
    for _ in 0..200 {
        // A Go client accepts this much of a response before it reads any.
        let mut connection = connect(member.client_address(), 65_535);
        assert!(connection.send(&call(1, Rpc::KvRange.path(), &read)));
        open.push(connection);
    }
    for connection in &mut open {
        while connection.next().expect("it is answered").kind != DATA {}
    }
    serves_others(&member);
    let grown = member.peak_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "{} MiB for 200 clients of a value of 1.4 MB", grown / MIB);
}

#[test]
fn ranges_in_another_order() {
    let dir = TempDir::in_memory("sorted");
    let member = member(&dir);
    run(async {
        let client = member.client().await;
        for n in 0..60 {
            let puts = (0..100).map(|key| put_op(format!("{n}-{key}-{}", "k".repeat(1000)), "x"));
            let request = TxnRequest { success: puts.collect(), ..TxnRequest::default() };
            let _: TxnResponse = client.call(Rpc::KvTxn, &request).await.expect("puts are served");
        }
    });
    let before = member.peak_bytes();
    // Each call gathers 7 MB of keys, and all calls run concurrently.
    let read = RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        sort_target: range_request::SortTarget::Mod as i32,
        sort_order: range_request::SortOrder::Descend as i32,
        ..RangeRequest::default()
    };
    let mut open = Vec::new();
    run(async {
        // This client connects first: while its address holds the whole budget, new connections from that
        // address are refused.
        let client = member.client().await;
        for _ in 0..12 {
            let mut connection = connect(member.client_address(), 0);
            for number in 0..4 {
                connection.send(&call(2 * number + 1, Rpc::KvRange.path(), &read.encode_to_vec()));
            }
            open.push(connection);
        }
        for _ in 0..20 {
            client.put("other", "x").await.expect("puts are served");
            client.get("other").await.expect("reads are served");
        }
    });
    held_its_bound(&member, before, "48 ranges in another order");
}

#[test]
fn bodies_of_http_1() {
    let dir = TempDir::in_memory("bodies");
    let member = member(&dir);
    let before = member.peak_bytes();
    let mut open = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(member.client_address()).expect("a connection");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time-out can be set");
        // The connections that hold most memory are closed while they send.
        let head = b"POST /health HTTP/1.1\r\nHost: m\r\nContent-Length: 4000000\r\n\r\n";
        let _ = stream.write_all(head).and_then(|()| stream.write_all(&vec![b'x'; 3_900_000]));
        open.push(stream);
    }
    // The member has read as much as it may hold, and has closed some connections.
    let scrape = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(member.client_address())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n")?;
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics)?;
        Ok(metrics)
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The scrape comes from the address that holds most memory, so it may be refused for a while, too.
        let answer = scrape();
        let metrics = answer.as_deref().unwrap_or_default();
        let shed =
            metrics.lines().find_map(|line| line.strip_prefix("mainstay_client_connections_shed_total "));
        if shed.is_some_and(|shed| shed != "0") {
            break;
        }
        assert!(Instant::now() < deadline, "nobody was told to go: {answer:?}");
    }
    // A client from this address may be refused for a while, too.
    run(eventually("others are served", PATIENCE, async || {
        let client = Client::within(PATIENCE, member.client_address()).await.ok()?;
        client.put("others", "come").await.ok()
    }));
    held_its_bound(&member, before, "100 unfinished bodies of 3.9 MB");
}
