use std::io;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use api::authpb::Permission;
use clock::Clock;
use config::MetricsDetail;
use telemetry::audit::Lines;
use telemetry::logging::{Format, Level, Logger};
use telemetry::metrics::Metrics;

use super::*;

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Lines for Memory {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.0.lock().expect("is whole").extend_from_slice(lines);
        Ok(())
    }

    fn sync(&mut self) {}
}

/// What is logged of calls.
struct Book {
    auditor: Auditor,
    memory: Memory,
}

impl Book {
    fn new(reads: bool) -> Book {
        let memory = Memory::default();
        let logger = Arc::new(Logger::to(Level::Info, Format::Json, Vec::new()));
        let metrics = Metrics::new(&[], MetricsDetail::Basic).audit;
        let log = AuditLog::to(memory.clone(), 1000, Clock::real(), logger, metrics).expect("starts");
        Book { auditor: Auditor { log: Arc::new(log), reads }, memory }
    }

    fn begin(&self, rpc: Rpc, request: &impl Message) -> Call {
        self.begin_with(rpc, request.encode_to_vec().into(), None)
    }

    fn begin_with(&self, rpc: Rpc, request: Bytes, certificate: Option<&str>) -> Call {
        let remote = SocketAddr::from(([127, 0, 0, 1], 4711));
        let who = Who { user: "bob".into(), by: "token", certificate: certificate.map(Arc::from), remote };
        self.auditor.begin(rpc, who, &request, UNIX_EPOCH + Duration::from_secs(1))
    }

    /// A call that was answered so.
    fn call(&self, rpc: Rpc, request: &impl Message, answer: &impl Message) {
        self.begin(rpc, request).done(&Ok(Answer::Whole(answer.encode_to_vec().into())));
    }

    /// The lines, without what all of them begin with.
    fn lines(self) -> Vec<String> {
        self.lines_with(|_| false).0
    }

    /// The same, and apart from them those of another kind, whole.
    fn lines_with(self, is_other: impl Fn(&str) -> bool) -> (Vec<String>, Vec<String>) {
        self.auditor.log.stop();
        let bytes = std::mem::take(&mut *self.memory.0.lock().expect("is whole"));
        let text = String::from_utf8(bytes).expect("is text");
        let begin = "{\"ts\":\"1970-01-01T00:00:01Z\",\"user\":\"bob\",\"auth\":\"token\",\"remote\":\"127.0.0.1:4711\",\"method\":\"/";
        let line = |line: &str| {
            let _: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let rest = line.strip_prefix(begin).unwrap_or_else(|| panic!("{line}"));
            rest.trim_end_matches('}').to_owned()
        };
        let (others, calls): (Vec<&str>, Vec<&str>) = text.lines().partition(|text| is_other(text));
        (calls.into_iter().map(line).collect(), others.into_iter().map(str::to_owned).collect())
    }
}

fn header() -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { cluster_id: u64::MAX, member_id: u64::MAX, revision: 7, raft_term: 2 })
}

fn changed() -> pb::PutResponse {
    pb::PutResponse { header: header(), ..Default::default() }
}

#[test]
fn each_method_says_what_it_is_about() {
    let book = Book::new(true);
    let put = pb::PutRequest { key: "a".into(), value: "secret".into(), lease: 255, ..Default::default() };
    book.call(Rpc::KvPut, &put, &changed());
    let range = pb::RangeRequest { key: "a".into(), range_end: "\u{0}".into(), ..Default::default() };
    book.call(Rpc::KvRange, &range, &changed());
    let delete = pb::DeleteRangeRequest { key: "a".into(), range_end: "b".into(), prev_kv: false };
    let deleted = pb::DeleteRangeResponse { header: header(), deleted: 3, prev_kvs: Vec::new() };
    book.call(Rpc::KvDeleteRange, &delete, &deleted);
    book.call(Rpc::KvCompact, &pb::CompactionRequest { revision: 5, physical: true }, &changed());
    let granted = pb::LeaseGrantResponse { header: header(), id: 31, ttl: 60, error: String::new() };
    book.call(Rpc::LeaseGrant, &pb::LeaseGrantRequest { ttl: 60, id: 0 }, &granted);
    book.call(Rpc::LeaseRevoke, &pb::LeaseRevokeRequest { id: 31 }, &changed());
    let add = pb::MemberAddRequest { peer_urls: vec!["http://x:1".into()], is_learner: true };
    book.call(Rpc::ClusterMemberAdd, &add, &changed());
    book.call(Rpc::ClusterMemberRemove, &pb::MemberRemoveRequest { id: 0xabc }, &changed());
    let alarm = pb::AlarmRequest { action: 2, member_id: 0, alarm: 1 };
    book.call(Rpc::MaintenanceAlarm, &alarm, &changed());
    book.call(Rpc::MaintenanceMoveLeader, &pb::MoveLeaderRequest { target_id: 17 }, &changed());
    book.call(Rpc::AuthEnable, &pb::AuthEnableRequest {}, &changed());
    let grant = pb::AuthUserGrantRoleRequest { user: "eve".into(), role: "r".into() };
    book.call(Rpc::AuthUserGrantRole, &grant, &changed());
    let perm = Permission { perm_type: 2, key: "a".into(), range_end: "b".into() };
    let grant = pb::AuthRoleGrantPermissionRequest { name: "r".into(), perm: Some(perm) };
    book.call(Rpc::AuthRoleGrantPermission, &grant, &changed());
    book.begin(Rpc::MaintenanceSnapshot, &pb::SnapshotRequest {}).ended(&Ok(()));
    let (from, at) = (SocketAddr::from(([127, 0, 0, 1], 4711)), UNIX_EPOCH);
    handshake_refused(&book.auditor.log, from, "bad certificate", 2, at);
    drop(book.begin(Rpc::KvPut, &pb::PutRequest { key: "gone".into(), ..Default::default() }));
    let expected = [
        "etcdserverpb.KV/Put\",\"key\":\"a\",\"lease\":\"ff\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.KV/Range\",\"key\":\"a\",\"range_end_base64\":\"AA==\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.KV/DeleteRange\",\"key\":\"a\",\"range_end\":\"b\",\"revision\":7,\"deleted\":3,\"code\":\"OK\"",
        "etcdserverpb.KV/Compact\",\"compact_revision\":5,\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Lease/LeaseGrant\",\"ttl\":60,\"revision\":7,\"granted_lease\":\"1f\",\"code\":\"OK\"",
        "etcdserverpb.Lease/LeaseRevoke\",\"lease\":\"1f\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Cluster/MemberAdd\",\"peer_urls\":[\"http://x:1\"],\"learner\":true,\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Cluster/MemberRemove\",\"member\":\"abc\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Maintenance/Alarm\",\"action\":\"DEACTIVATE\",\"alarm\":\"NOSPACE\",\"member\":\"0\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Maintenance/MoveLeader\",\"member\":\"11\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Auth/AuthEnable\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Auth/UserGrantRole\",\"name\":\"eve\",\"role\":\"r\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Auth/RoleGrantPermission\",\"role\":\"r\",\"permission\":\"READWRITE\",\"key\":\"a\",\"range_end\":\"b\",\"revision\":7,\"code\":\"OK\"",
        "etcdserverpb.Maintenance/Snapshot\",\"code\":\"OK\"",
        "etcdserverpb.KV/Put\",\"key\":\"gone\",\"code\":\"Canceled\",\"error\":\"context canceled\"",
    ];
    let (lines, refused) = book.lines_with(|line| line.contains("TLS handshake"));
    assert_eq!(
        refused,
        ["{\"ts\":\"1970-01-01T00:00:00Z\",\"user\":\"\",\"auth\":\"none\",\"remote\":\"127.0.0.1:4711\",\
          \"method\":\"TLS handshake\",\"code\":\"Unauthenticated\",\"error\":\"bad certificate\",\"others\":2}"]
    );
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(line, expected);
    }
    assert_eq!(lines.len(), expected.len());
}

#[test]
fn all_branches_of_a_transaction_are_there_up_to_a_bound() {
    let op = |request| pb::RequestOp { request: Some(request) };
    let put = |n: usize| {
        op(Request::RequestPut(pb::PutRequest { key: format!("p{n}").into(), ..Default::default() }))
    };
    let nested = pb::TxnRequest { failure: vec![put(7)], ..Default::default() };
    let range = pb::RangeRequest { key: "r".into(), ..Default::default() };
    let txn = pb::TxnRequest {
        compare: vec![pb::Compare { key: "c".into(), ..Default::default() }],
        success: vec![op(Request::RequestTxn(nested)), put(1)],
        failure: vec![op(Request::RequestRange(range.clone()))],
    };
    let answer = pb::TxnResponse { header: header(), succeeded: true, responses: Vec::new() };
    let book = Book::new(false);
    book.call(Rpc::KvTxn, &txn, &answer);
    let many = pb::TxnRequest { success: (0..100).map(put).collect(), ..Default::default() };
    book.call(Rpc::KvTxn, &many, &answer);
    // It only reads.
    let reading = pb::TxnRequest { success: vec![op(Request::RequestRange(range))], ..Default::default() };
    book.call(Rpc::KvTxn, &reading, &answer);
    let lines = book.lines();
    assert_eq!(
        lines[0],
        "etcdserverpb.KV/Txn\",\"ranges\":[{\"op\":\"compare\",\"key\":\"c\"},{\"op\":\"put\",\"key\":\"p1\"},\
         {\"op\":\"range\",\"key\":\"r\"},{\"op\":\"put\",\"key\":\"p7\"}],\"revision\":7,\"succeeded\":true,\"code\":\"OK\""
    );
    assert!(lines[1].contains("\"key\":\"p63\"") && !lines[1].contains("\"key\":\"p64\""));
    assert!(lines[1].contains("\"ranges_left_out\":36"));
    assert_eq!(lines.len(), 2);
}

#[test]
fn no_secret_is_written_or_waits() {
    let planted = || "pl4nted".to_owned();
    let who = pb::AuthenticateRequest { name: "eve".into(), password: planted() };
    let add = pb::AuthUserAddRequest {
        name: "eve".into(),
        password: planted(),
        hashed_password: planted(),
        options: None,
    };
    let change = pb::AuthUserChangePasswordRequest {
        name: "eve".into(),
        password: planted(),
        hashed_password: planted(),
    };
    for (rpc, message) in [
        (Rpc::Authenticate, who.encode_to_vec()),
        (Rpc::AuthUserAdd, add.encode_to_vec()),
        (Rpc::AuthUserChangePassword, change.encode_to_vec()),
    ] {
        let kept = kept(rpc, &message.into());
        assert!(
            !kept.windows(7).any(|part| part == b"pl4nted") && kept.windows(3).any(|part| part == b"eve")
        );
    }
    let book = Book::new(true);
    let token = pb::AuthenticateResponse { header: header(), token: planted() };
    book.call(Rpc::Authenticate, &who, &token);
    book.begin(Rpc::Authenticate, &who).done(&Err(error::AUTH_FAILED));
    book.call(Rpc::AuthUserAdd, &add, &changed());
    book.call(Rpc::AuthUserChangePassword, &change, &changed());
    // What is no such message may be anything.
    let mut call = book.begin(Rpc::Authenticate, &pb::AuthEnableRequest {});
    call.asks(&Bytes::from_static(b"pl4nted"));
    call.done(&Err(error::AUTH_FAILED));
    let put = pb::PutRequest { key: "k".into(), value: planted().into(), ..Default::default() };
    book.call(Rpc::KvPut, &put, &changed());
    let lines = book.lines();
    assert!(lines.iter().all(|line| !line.contains("pl4nted")), "{lines:?}");
    assert_eq!(lines.len(), 6);
    assert!(lines[0].contains("\"name\":\"eve\",\"revision\":7,\"code\":\"OK\""), "{}", lines[0]);
    let failed = "authentication failed, invalid user ID or password";
    assert!(lines[1].contains("\"name\":\"eve\"") && lines[1].contains(failed), "{}", lines[1]);
}

#[test]
fn reads_are_there_if_they_are_asked_for_or_refused() {
    let range = pb::RangeRequest { key: "a".into(), ..Default::default() };
    for (reads, lines) in [(false, 2), (true, 4)] {
        let book = Book::new(reads);
        book.call(Rpc::KvRange, &range, &changed());
        book.begin(Rpc::KvRange, &range).done(&Err(error::PERMISSION_DENIED));
        book.begin(Rpc::Watch, &range).ended(&Err(error::INVALID_AUTH_TOKEN));
        book.begin(Rpc::KvRange, &range).done(&Err(error::COMPACTED));
        assert_eq!(book.lines().len(), lines);
    }
}

#[test]
fn what_is_long_is_cut_and_large_values_do_not_wait() {
    let put =
        pb::PutRequest { key: "k".repeat(1000).into(), value: vec![1; 1 << 20].into(), ..Default::default() };
    assert!(kept(Rpc::KvPut, &put.encode_to_vec().into()).len() < 1100);
    let book = Book::new(false);
    book.call(Rpc::KvPut, &put, &changed());
    let line = book.lines().remove(0);
    assert!(line.contains(&format!("\"key\":\"{}\",\"key_bytes\":1000", "k".repeat(256))), "{line}");
    assert!(line.len() < 600);
}

/// A field that nobody knows, with groups in groups: the machine takes more of them than the decoder of messages.
fn groups(levels: usize) -> Vec<u8> {
    let mut bytes = vec![(15 << 3) | 3; levels];
    bytes.extend(vec![(15 << 3) | 4; levels]);
    bytes
}

#[test]
fn a_transaction_shows_its_keys_however_deep_it_is() {
    let book = Book::new(false);
    let put = pb::PutRequest { key: b"hidden".to_vec().into(), ..Default::default() };
    let operation = pb::RequestOp { request: Some(Request::RequestPut(put)) };
    let mut bytes = pb::TxnRequest { success: vec![operation], ..Default::default() }.encode_to_vec();
    bytes.extend(groups(120));
    assert!(
        pb::TxnRequest::decode(&bytes[..]).is_err() && machine::request::txn(bytes.clone().into()).is_ok()
    );
    let answer =
        Answer::Whole(pb::TxnResponse { header: header(), ..Default::default() }.encode_to_vec().into());
    book.begin_with(Rpc::KvTxn, bytes.into(), None).done(&Ok(answer));
    let lines = book.lines();
    assert!(lines.len() == 1 && lines[0].contains("hidden"), "{lines:?}");
}

#[test]
fn what_cannot_be_shown_is_said() {
    let book = Book::new(false);
    for rpc in [Rpc::KvPut, Rpc::Authenticate] {
        book.begin_with(rpc, b"\0secret".to_vec().into(), None).done(&Err(error::EMPTY_KEY));
    }
    let lines = book.lines();
    assert!(
        lines.iter().all(|line| line.contains("\"undecodable\":true") && !line.contains("secret")),
        "{lines:?}"
    );
    assert_eq!(lines.len(), 2);
}

#[test]
fn the_certificate_of_a_client_is_shown_beside_its_user() {
    let book = Book::new(false);
    let request = pb::PutRequest { key: b"a".to_vec().into(), ..Default::default() };
    let answer = Answer::Whole(changed().encode_to_vec().into());
    book.begin_with(Rpc::KvPut, request.encode_to_vec().into(), Some("apiserver")).done(&Ok(answer));
    let (_, lines) = book.lines_with(|_| true);
    assert!(
        lines.len() == 1 && lines[0].contains("\"auth\":\"token\",\"certificate\":\"apiserver\""),
        "{lines:?}"
    );
}
