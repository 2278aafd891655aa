//! A member that responds as a script says: gRPC and HTTP/1.1 on one port, as in etcd.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::etcdserverpb::{
    AlarmMember, AlarmResponse, AlarmType, AuthUserListResponse, HashKvRequest, HashKvResponse,
    LeaseLeasesResponse, LeaseStatus, Member, MemberListResponse, RangeRequest, RangeResponse,
    ResponseHeader, StatusResponse,
};
use api::mvccpb::KeyValue;
use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The responses of a fake member.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub status: StatusResponse,
    pub members: Vec<Member>,
    pub alarms: Vec<AlarmMember>,
    pub keys: Vec<(&'static str, usize)>,
    /// Ids of leases.
    pub leases: Vec<i64>,
    pub users: Vec<String>,
    /// Hash and compacted revision for each request in turn, the last one repeated; `None`: the revision was
    /// compacted.
    pub hashes: Vec<Option<(u32, i64)>>,
    /// Number of requests for the list of members that are refused before one succeeds.
    pub lists_refused: usize,
    /// Id of the member in responses with the list of members and HashKV, if it is another member.
    pub answered_by: Option<u64>,
    /// Calls that are refused with `etcdserver: user name is empty`; `*` stands for all calls.
    pub refused: Vec<&'static str>,
    /// Calls that get no response.
    pub silent: Vec<&'static str>,
    /// The first page and all later pages of metrics, as complete HTTP responses.
    pub metrics: [Vec<u8>; 2],
    pub page: Vec<u8>,
    pub version: Vec<u8>,
    /// Response at the root of API version 2; `None` if it is not served.
    pub old_keys: Option<Vec<u8>>,
}

impl Script {
    /// Returns the header of responses, which names the responding member.
    fn header(&self) -> Option<ResponseHeader> {
        let own = self.status.header?;
        Some(ResponseHeader { member_id: self.answered_by.unwrap_or(own.member_id), ..own })
    }
}

/// A fake member that serves until it is dropped.
pub struct FakeMember {
    pub address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FakeMember {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns an HTTP response with a Content-Length.
pub fn ok(headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Returns an HTTP response with another status.
pub fn status(code: u16) -> Vec<u8> {
    format!("HTTP/1.1 {code} x\r\nContent-Length: 0\r\n\r\n").into_bytes()
}

/// Returns a status of the member with this id.
pub fn status_of(id: u64, version: &str, leader: u64) -> StatusResponse {
    StatusResponse {
        header: Some(ResponseHeader { cluster_id: 9, member_id: id, revision: 5, raft_term: 2 }),
        version: version.to_owned(),
        db_size: 100_000,
        db_size_in_use: 90_000,
        leader,
        raft_index: 10,
        raft_term: 2,
        raft_applied_index: 10,
        ..StatusResponse::default()
    }
}

pub fn no_space(member_id: u64) -> AlarmMember {
    AlarmMember { member_id, alarm: AlarmType::Nospace as i32 }
}

impl FakeMember {
    /// Listens before the script is made, so that the script may contain the address.
    pub async fn start(script: impl FnOnce(SocketAddr) -> Script) -> FakeMember {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let script = script(listener.local_addr().unwrap());
        FakeMember::on(listener, script)
    }

    /// Serves on a socket whose address others may know already.
    pub fn on(listener: std::net::TcpListener, script: Script) -> FakeMember {
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(script);
        let asked = Arc::new(Asked::default());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script.clone(), asked.clone()));
            }
        });
        FakeMember { address, task }
    }
}

/// Number of requests so far, for responses that change.
#[derive(Default)]
struct Asked {
    metrics: AtomicUsize,
    hashes: AtomicUsize,
    lists: AtomicUsize,
}

async fn serve(mut stream: TcpStream, script: Arc<Script>, asked: Arc<Asked>) {
    let mut first = [0; 3];
    // The kernel may deliver fewer bytes at first; three bytes arrive in one piece on loopback.
    if stream.peek(&mut first).await.is_err() {
        return;
    }
    if &first == b"PRI" {
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        while let Some(Ok((request, respond))) = connection.accept().await {
            tokio::spawn(call(request, respond, script.clone(), asked.clone()));
        }
        return;
    }
    let mut request = Vec::new();
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
            return;
        }
    }
    let line = String::from_utf8_lossy(&request).into_owned();
    let answer = match line.split(' ').nth(1) {
        Some("/metrics") => script.metrics[asked.metrics.fetch_add(1, Ordering::Relaxed).min(1)].clone(),
        Some("/debug/mainstay") => script.page.clone(),
        Some("/version") => script.version.clone(),
        Some("/v2/keys") => script.old_keys.clone().unwrap_or_else(|| status(404)),
        _ => status(404),
    };
    // The client may have closed the connection.
    let _ = stream.write_all(&answer).await;
    let _ = stream.shutdown().await;
}

async fn call(
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    script: Arc<Script>,
    asked: Arc<Asked>,
) {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    let mut message = BytesMut::new();
    while let Some(Ok(part)) = body.data().await {
        let _ = body.flow_control().release_capacity(part.len());
        message.extend_from_slice(&part);
    }
    if script.silent.contains(&path.rsplit('/').next().unwrap_or_default()) {
        std::future::pending::<()>().await;
    }
    let refused = |code: &'static str, text: &'static str| {
        let head = http::Response::builder().header("content-type", "application/grpc");
        head.header("grpc-status", code).header("grpc-message", text).body(()).unwrap()
    };
    if script.refused.iter().any(|call| *call == "*" || path.rsplit('/').next() == Some(call)) {
        let _ = respond.send_response(refused("3", "etcdserver: user name is empty"), true);
        return;
    }
    let answer = match path.as_str() {
        "/etcdserverpb.Maintenance/HashKV" => {
            let revision = HashKvRequest::decode(&message[5..]).unwrap().revision;
            assert!(revision > 0, "a revision that all members have");
            let turn = asked.hashes.fetch_add(1, Ordering::Relaxed);
            let Some((hash, compact_revision)) = script.hashes[turn.min(script.hashes.len() - 1)] else {
                let text = "etcdserver: mvcc: required revision has been compacted";
                let _ = respond.send_response(refused("11", text), true);
                return;
            };
            let header = script.header();
            HashKvResponse { header, hash, compact_revision, hash_revision: revision }.encode_to_vec()
        }
        "/etcdserverpb.Lease/LeaseLeases" => {
            let leases = script.leases.iter().map(|id| LeaseStatus { id: *id }).collect();
            LeaseLeasesResponse { header: None, leases }.encode_to_vec()
        }
        "/etcdserverpb.Auth/UserList" => {
            AuthUserListResponse { header: None, users: script.users.clone() }.encode_to_vec()
        }
        "/etcdserverpb.Maintenance/Status" => script.status.encode_to_vec(),
        "/etcdserverpb.Maintenance/Alarm" => {
            AlarmResponse { header: None, alarms: script.alarms.clone() }.encode_to_vec()
        }
        "/etcdserverpb.Cluster/MemberList" => {
            if asked.lists.fetch_add(1, Ordering::Relaxed) < script.lists_refused {
                let _ = respond.send_response(refused("8", "etcdserver: too many requests"), true);
                return;
            }
            MemberListResponse { header: script.header(), members: script.members.clone() }.encode_to_vec()
        }
        "/etcdserverpb.KV/Range" => range(&script, &message[5..]).encode_to_vec(),
        _ => {
            let _ = respond.send_response(refused("12", "unknown method"), true);
            return;
        }
    };
    let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let Ok(mut send) = respond.send_response(head, false) else { return };
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(answer.len() as u32);
    framed.extend_from_slice(&answer);
    let _ = send.send_data(framed.freeze(), false);
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let _ = send.send_trailers(trailers);
}

fn range(script: &Script, message: &[u8]) -> RangeResponse {
    let request = RangeRequest::decode(message).unwrap();
    assert!(request.limit > 0 && (request.serializable || &request.key[..] == b"health"), "a careful reader");
    let behind = script.keys.iter().filter(|(key, _)| key.as_bytes() >= &request.key[..]);
    let kvs: Vec<KeyValue> = behind
        .clone()
        .take(request.limit as usize)
        .map(|(key, bytes)| KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            value: vec![b'v'; *bytes].into(),
            ..KeyValue::default()
        })
        .collect();
    RangeResponse { header: None, more: behind.count() > kvs.len(), count: 0, kvs }
}
