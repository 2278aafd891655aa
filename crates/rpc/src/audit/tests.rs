use std::io;
use std::rc::Rc;
use std::sync::Mutex;
use std::task::Context;
use std::time::{Duration, UNIX_EPOCH};

use api::authpb::Permission;
use clock::Clock;
use telemetry::audit::Lines;
use telemetry::logging::{Format, Level, Logger};
use telemetry::metrics::{Metrics, MetricsDetail};

use serde_json::Value;

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

/// An audit log whose lines stay in memory.
struct Book {
    auditor: Auditor,
    memory: Memory,
    /// Lines of refused calls.
    refused: Memory,
}

impl Book {
    fn new(reads: bool) -> Book {
        let (memory, refused) = (Memory::default(), Memory::default());
        let logger = Arc::new(Logger::to(Level::Info, Format::Json, Vec::new()));
        let metrics = Metrics::new(&[], MetricsDetail::Basic).audit;
        let log = AuditLog::to(memory.clone(), refused.clone(), 1000, Clock::real(), logger, metrics)
            .expect("starts");
        Book { auditor: Auditor { log: Arc::new(log), reads }, memory, refused }
    }

    fn begin(&self, rpc: Rpc, request: &impl Message) -> Call {
        self.begin_with(rpc, request.encode_to_vec().into(), None)
    }

    fn begin_with(&self, rpc: Rpc, request: Bytes, certificate: Option<&str>) -> Call {
        let remote = SocketAddr::from(([127, 0, 0, 1], 4711));
        let certificate = certificate.map(Arc::from);
        let who = Who { user: "bob".into(), by: "token", certificate, remote, is_stranger: false };
        self.auditor.begin(rpc, who, Some(&request), UNIX_EPOCH + Duration::from_secs(1))
    }

    /// Stops the log. Returns the text of the main file and that of the file for refused calls.
    fn texts(&self) -> [String; 2] {
        self.auditor.log.stop();
        [&self.memory, &self.refused].map(|memory| {
            String::from_utf8(std::mem::take(&mut *memory.0.lock().expect("is whole"))).expect("is text")
        })
    }

    /// Records a call that got this response.
    fn call(&self, rpc: Rpc, request: &impl Message, answer: &impl Message) {
        self.begin(rpc, request).done(&Ok(Answer::Whole(answer.encode_to_vec().into())));
    }

    /// Returns all lines, without the prefix that they share.
    fn lines(self) -> Vec<String> {
        self.lines_with(|_| false).0
    }

    /// Returns the lines like [`Book::lines`], and separately the unchanged lines for which `is_other` is true.
    fn lines_with(self, is_other: impl Fn(&str) -> bool) -> (Vec<String>, Vec<String>) {
        let text = self.texts().concat();
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
    let add =
        pb::MemberAddRequest { peer_urls: vec!["http://x:1".into()], is_learner: true, is_witness: false };
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
    let many = pb::TxnRequest { success: (0..200).map(put).collect(), ..Default::default() };
    book.call(Rpc::KvTxn, &many, &answer);
    // This transaction only reads.
    let reading = pb::TxnRequest { success: vec![op(Request::RequestRange(range))], ..Default::default() };
    book.call(Rpc::KvTxn, &reading, &answer);
    let lines = book.lines();
    assert_eq!(
        lines[0],
        "etcdserverpb.KV/Txn\",\"ranges\":[{\"op\":\"put\",\"key\":\"p1\"},{\"op\":\"put\",\"key\":\"p7\"},\
         {\"op\":\"range\",\"key\":\"r\"},{\"op\":\"compare\",\"key\":\"c\"}],\"revision\":7,\"succeeded\":true,\"code\":\"OK\""
    );
    assert!(lines[1].contains("\"key\":\"p127\"") && !lines[1].contains("\"key\":\"p128\""));
    assert!(lines[1].contains("\"ranges_left_out\":72"));
    assert_eq!(lines.len(), 2);
}

#[test]
fn of_an_answer_in_pieces_the_beginning_is_enough() {
    let book = Book::new(false);
    let delete = pb::DeleteRangeRequest { key: "a".into(), range_end: "b".into(), prev_kv: true };
    let deleted = pb::DeleteRangeResponse { header: header(), deleted: 3, prev_kvs: Vec::new() };
    let beginning = deleted.encode_to_vec().into();
    let source = Box::new(|_: usize, _: &mut Context<'_>| panic!("no part is made for the log"));
    let answer = Answer::Pieces { len: 1 << 20, beginning, source, held: Rc::default() };
    book.begin(Rpc::KvDeleteRange, &delete).done(&Ok(answer));
    let lines = book.lines();
    let expected = "etcdserverpb.KV/DeleteRange\",\"key\":\"a\",\"range_end\":\"b\",\"revision\":7,\"deleted\":3,\"code\":\"OK\"";
    assert_eq!(lines, [expected]);
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
    // A message that cannot be decoded may contain anything.
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
    assert!(lines[4].contains("\"name\":\"eve\"") && lines[4].contains(failed), "{}", lines[4]);
}

#[test]
fn reads_are_there_if_they_are_asked_for_or_refused() {
    let range = pb::RangeRequest { key: "a".into(), ..Default::default() };
    for (reads, lines) in [(false, 3), (true, 5)] {
        let book = Book::new(reads);
        book.call(Rpc::KvRange, &range, &changed());
        book.begin(Rpc::KvRange, &range).done(&Err(error::PERMISSION_DENIED));
        book.begin(Rpc::Watch, &range).ended(&Err(error::INVALID_AUTH_TOKEN));
        book.begin(Rpc::KvRange, &range).done(&Err(error::AUTH_OLD_REVISION));
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

/// Returns an unknown field with nested groups. The state machine's decoder accepts more levels than the
/// decoder of messages.
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
        pb::TxnRequest::decode(&bytes[..]).is_err() && machine::request::txn(bytes.clone().into(), 9).is_ok()
    );
    let answer =
        Answer::Whole(pb::TxnResponse { header: header(), ..Default::default() }.encode_to_vec().into());
    book.begin_with(Rpc::KvTxn, bytes.into(), None).done(&Ok(answer));
    let lines = book.lines();
    assert!(lines.len() == 1 && lines[0].contains("hidden"), "{lines:?}");
}

#[test]
fn a_transaction_of_very_many_elements_is_not_made_for_its_line() {
    // A learner refuses the call. This happens before the elements of the transaction are counted.
    let book = Book::new(false);
    let bytes = [0x0a, 0].repeat(LISTABLE_ELEMENTS_MAX + 1);
    let refused = Status::new(Code::Unavailable, "etcdserver: rpc not supported for learner");
    book.begin_with(Rpc::KvTxn, bytes.into(), None).done(&Err(refused));
    let lines = book.lines();
    assert!(
        lines.len() == 1 && lines[0].contains("\"too_large\":true,\"request_bytes\":131074"),
        "{lines:?}"
    );
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

/// Returns a transaction with this many puts and comparisons.
fn txn(puts: usize, compares: usize) -> pb::TxnRequest {
    let put = |n: usize| pb::PutRequest { key: format!("put{n}").into(), ..Default::default() };
    let compare = |n: usize| pb::Compare { key: format!("compared{n}").into(), ..Default::default() };
    pb::TxnRequest {
        compare: (0..compares).map(compare).collect(),
        success: (0..puts).map(|n| pb::RequestOp { request: Some(Request::RequestPut(put(n))) }).collect(),
        failure: Vec::new(),
    }
}

#[test]
fn no_comparison_hides_what_a_transaction_writes() {
    let book = Book::new(false);
    book.call(Rpc::KvTxn, &txn(100, 1000), &changed());
    let line = book.lines().remove(0);
    assert!(
        line.contains("\"put0\"") && line.contains("\"put99\"") && line.contains("\"compared63\""),
        "{line}"
    );
    assert!(!line.contains("\"compared64\"") && line.contains("\"ranges_left_out\":936"), "{line}");
}

#[test]
fn refused_calls_have_few_short_lines_apart_from_the_others() {
    let book = Book::new(false);
    let refused = [error::PERMISSION_DENIED, error::EMPTY_KEY, error::LEASE_NOT_FOUND, error::NO_LEADER];
    for status in refused.into_iter().cycle().take(500) {
        book.begin(Rpc::KvTxn, &txn(1000, 1000)).done(&Err(status));
    }
    book.call(Rpc::KvTxn, &txn(100, 0), &changed());
    // These calls may have been carried out.
    book.begin(Rpc::KvTxn, &txn(100, 0)).done(&Err(error::TIMEOUT));
    drop(book.begin(Rpc::KvTxn, &txn(100, 0)));
    let [accepted, refused] = book.texts();
    assert_eq!((accepted.lines().count(), accepted.matches("\"put99\"").count()), (3, 3), "{accepted}");
    assert!(accepted.contains("timed out") && accepted.contains("Canceled"), "{accepted}");
    let count = "\"remote\":\"127.0.0.1\",\"refused_not_shown\":";
    let (told, lines): (Vec<&str>, Vec<&str>) = refused.lines().partition(|line| line.contains(count));
    assert!(lines.len() <= 100 && lines.iter().all(|line| line.len() < 1000), "{refused}");
    let not_shown = |line: &&str| line.split_once(count)?.1.trim_end_matches('}').parse::<usize>().ok();
    assert_eq!(told.iter().filter_map(not_shown).sum::<usize>(), 500 - lines.len(), "{told:?}");
}

#[test]
fn nothing_that_nobody_asks_for_is_among_what_users_do() {
    let book = Book::new(true);
    let who = |is_stranger| Who {
        user: "".into(),
        by: "none",
        certificate: None,
        remote: SocketAddr::from(([127, 0, 0, 1], 4711)),
        is_stranger,
    };
    let request = txn(1, 0).encode_to_vec().into();
    let begin = |rpc, who| book.auditor.begin(rpc, who, Some(&request), UNIX_EPOCH);
    // The client disconnects before the call is answered.
    drop(begin(Rpc::KvTxn, who(true)));
    begin(Rpc::AuthStatus, who(true)).ended(&Ok(()));
    drop(begin(Rpc::KvTxn, who(false)));
    begin(Rpc::Authenticate, who(true)).ended(&Ok(()));
    let texts = book.texts().map(|text| text.lines().count());
    assert_eq!(texts, [2, 2]);
}

#[test]
fn no_text_moves_a_cursor_or_changes_the_order_of_others() {
    let book = Book::new(false);
    let planted =
        "\u{7f}\u{85}\u{9b}2J\u{2028}\u{2029}\u{202e}\u{2066}\u{200b}\u{61c}\u{feff}\u{e0041}\"\\\n";
    let delete = pb::AuthUserDeleteRequest { name: planted.to_owned() };
    book.call(Rpc::AuthUserDelete, &delete, &changed());
    let put = pb::PutRequest { key: "a\u{202e}b".into(), ..Default::default() };
    book.call(Rpc::KvPut, &put, &changed());
    let add =
        pb::MemberAddRequest { peer_urls: vec![planted.to_owned()], is_learner: false, is_witness: false };
    book.call(Rpc::ClusterMemberAdd, &add, &changed());
    let [text, _] = book.texts();
    assert!(text.is_ascii(), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("is JSON")).collect();
    assert_eq!((lines[0]["name"].as_str(), lines[1]["key"].as_str()), (Some(planted), Some("a\u{202e}b")));
    assert_eq!(lines[2]["peer_urls"][0].as_str(), Some(planted));
}

#[test]
fn a_request_that_is_too_large_to_be_listed_is_there() {
    let book = Book::new(false);
    let large = pb::TxnRequest {
        success: vec![pb::RequestOp {
            request: Some(Request::RequestPut(pb::PutRequest {
                key: "k".into(),
                value: vec![1; 20 << 20].into(),
                ..Default::default()
            })),
        }],
        ..Default::default()
    };
    let bytes = large.encoded_len();
    book.call(Rpc::KvTxn, &large, &changed());
    book.begin(Rpc::KvTxn, &large).done(&Err(error::PERMISSION_DENIED));
    let [accepted, refused] = book.texts();
    for text in [accepted, refused] {
        assert!(text.contains(&format!("\"too_large\":true,\"request_bytes\":{bytes}")), "{text}");
    }
}
