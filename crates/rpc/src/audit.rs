//! Builds the lines of the audit log: who made a call, for which keys, users or members, and how the call
//! ended.
//!
//! A shard collects the data of a line ([`Call`]), and the log's own thread writes it (`Line`). Lines contain
//! no values, passwords or tokens. The shard removes passwords and tokens from a request before it queues the
//! request for the log's thread.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use api::etcdserverpb as pb;
use api::etcdserverpb::request_op::Request;
use api::{Code, Rpc, Status, error, v3electionpb, v3lockpb};
use bytes::Bytes;
use front::Answer;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use stdx::calendar::format_rfc3339;
use stdx::log_text::write_text;
use telemetry::audit::{AuditLog, Entry};

/// Maximum number of bytes of a key, a name or an error message that a line shows.
const TEXT_BYTES_MAX: usize = 256;
/// Maximum number of comparisons and ranges of one transaction that a line shows. Also the maximum number of
/// URLs of one member.
const LISTED_MAX: usize = 64;
/// Maximum number of puts and deletions of one transaction that a line shows: as many as a transaction may
/// have by default.
const WRITES_LISTED_MAX: usize = 128;
/// Maximum number of writes of a refused transaction that a line shows; also the maximum number of its ranges
/// and comparisons together.
const REFUSED_LISTED_MAX: usize = 4;
/// Maximum length in bytes, without the value of a put, of a request that is decoded for its line in the
/// audit log.
const LISTABLE_BYTES_MAX: usize = 4 << 20;
/// Maximum length in bytes of a refused request that is decoded for its line in the audit log.
const REFUSED_LISTABLE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of comparisons and operations of a transaction that is decoded for its line in the audit
/// log. It is many times the number that an accepted transaction may have, unless `--max-txn-ops` was raised.
const LISTABLE_ELEMENTS_MAX: usize = 64 << 10;
/// Number of bytes from the beginning of a response that are kept for its line in the audit log: enough for
/// the header and the number field that follows the header in some responses.
pub(crate) const ANSWER_BYTES: usize = 64;
/// Maximum length in bytes of a request that is copied for its line. A longer request is not copied: the line
/// refers to the received bytes, which keeps a whole read buffer of the connection in memory.
const COPIED_BYTES_MAX: usize = 4096;

/// Handle with which a shard writes to the audit log.
#[derive(Clone)]
pub struct Auditor {
    /// The log that receives the lines.
    pub log: Arc<AuditLog>,
    /// True if calls that change nothing are logged even if they are allowed.
    pub reads: bool,
}

/// Identity of the caller of a call.
#[derive(Clone)]
pub struct Who {
    /// Name of the user; empty without a user.
    pub user: Arc<str>,
    /// Source of the user: `token`, `certificate`, or `none`.
    pub by: &'static str,
    /// Common name in the client's verified certificate, even if it is not the user.
    pub certificate: Option<Arc<str>>,
    /// Address of the client.
    pub remote: SocketAddr,
    /// True if the call needs a user and has none. Such a call is refused.
    pub is_stranger: bool,
}

/// Record of a call in progress. Its line in the audit log is written when the call is answered, or when the
/// record is dropped because the client disconnected.
pub struct Call {
    auditor: Auditor,
    line: Option<Line>,
}

impl Auditor {
    /// Starts the record of a call. For a stream, `message` is `None`; its request is added later with
    /// [`Call::asks`].
    pub fn begin(&self, rpc: Rpc, who: Who, message: Option<&Bytes>, at: SystemTime) -> Call {
        let line = Line {
            at,
            who,
            rpc,
            message: message.map_or(Asked::Unknown, |message| Asked::of(rpc, message)),
            answer: Vec::new(),
            result: Err(CANCELED),
            reads: self.reads,
        };
        Call { auditor: self.clone(), line: Some(line) }
    }
}

const CANCELED: Status = Status::new(Code::Canceled, "context canceled");

impl Call {
    /// Adds to the record the request of a stream, once the request has arrived.
    pub fn asks(&mut self, message: &Bytes) {
        if let Some(line) = &mut self.line {
            line.message = Asked::of(line.rpc, message);
        }
    }

    /// Writes the line of an answered call.
    pub fn done(mut self, answer: &Result<Answer, Status>) {
        let (result, beginning) = match answer {
            Ok(Answer::Whole(bytes)) => (Ok(()), &bytes[..]),
            Ok(Answer::Pieces { beginning, .. }) => (Ok(()), &beginning[..]),
            Err(status) => (Err(status.clone()), &[][..]),
        };
        self.end(result, &beginning[..beginning.len().min(ANSWER_BYTES)]);
    }

    /// Writes the line of a stream that has ended.
    pub fn ended(mut self, result: &Result<(), Status>) {
        self.end(result.clone(), &[]);
    }

    fn end(&mut self, result: Result<(), Status>, answer: &[u8]) {
        let Some(mut line) = self.line.take() else { return };
        line.result = result;
        line.answer = answer.to_vec();
        if !line.is_wanted() {
            return;
        }
        if !line.is_refused() {
            self.auditor.log.push(Box::new(line));
            return;
        }
        self.auditor.log.push_refused(line.who.remote.ip(), || {
            line.message.shorten(REFUSED_LISTABLE_BYTES_MAX);
            Box::new(line)
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Err(CANCELED), &[]);
    }
}

/// A refused TLS handshake.
struct RefusedHandshake {
    at: SystemTime,
    remote: SocketAddr,
    error: String,
    /// Number of other handshakes that were refused since the last line and for which no line was written.
    others: u64,
}

/// Writes a refused TLS handshake to the audit log. `others` is the number of handshakes that were refused
/// since the last line.
pub fn handshake_refused(log: &AuditLog, remote: SocketAddr, error: &str, others: u64, at: SystemTime) {
    let error = beginning_of(error).to_owned();
    log.push_refused(remote.ip(), || Box::new(RefusedHandshake { at, remote, error, others }));
}

impl Entry for RefusedHandshake {
    fn bytes(&self) -> usize {
        self.error.len()
    }

    fn write(&self, out: &mut String) {
        out.push('{');
        let mut fields = Fields { out, is_first: true };
        fields.text("ts", &format_rfc3339(self.at));
        fields.text("user", "");
        fields.text("auth", "none");
        fields.text("remote", &front::shown_peer(self.remote).to_string());
        fields.text("method", "TLS handshake");
        fields.text("code", Code::Unauthenticated.name());
        fields.text("error", &self.error);
        if self.others > 0 {
            fields.number("others", i64::try_from(self.others).unwrap_or(i64::MAX));
        }
        fields.out.push('}');
    }
}

/// Request of a call, as it is kept for the call's line in the audit log.
enum Asked {
    /// The request is not known, or the call was refused before it was decoded.
    Unknown,
    /// The request, without secrets.
    Request(Bytes),
    /// The request is too large to be queued and decoded. The number is its length in bytes.
    TooLarge(usize),
}

impl Asked {
    fn of(rpc: Rpc, message: &Bytes) -> Asked {
        let mut asked = Asked::Request(kept(rpc, message));
        asked.shorten(LISTABLE_BYTES_MAX);
        asked
    }

    /// Keeps only the length of a request of more than `bytes_max` bytes.
    fn shorten(&mut self, bytes_max: usize) {
        if let Asked::Request(message) = self
            && message.len() > bytes_max
        {
            *self = Asked::TooLarge(message.len());
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Asked::Request(message) => message.len(),
            Asked::Unknown | Asked::TooLarge(_) => 0,
        }
    }
}

/// A stand-in for a request that cannot be decoded. The request itself is not queued, because it may contain
/// secrets; these bytes cannot be decoded either, so the line says so.
const UNDECODABLE: &[u8] = &[0];

/// Returns the request as it is queued for its line. Secrets are removed, because they must not be queued.
/// Large values are removed to save memory.
fn kept(rpc: Rpc, message: &Bytes) -> Bytes {
    fn without<M: Message + Default>(message: &Bytes, clear: impl FnOnce(&mut M)) -> Bytes {
        let Ok(mut request) = M::decode(message.clone()) else { return Bytes::from_static(UNDECODABLE) };
        clear(&mut request);
        request.encode_to_vec().into()
    }
    match rpc {
        Rpc::Authenticate => without(message, |request: &mut pb::AuthenticateRequest| {
            request.password.clear();
        }),
        Rpc::AuthUserAdd => without(message, |request: &mut pb::AuthUserAddRequest| {
            request.password.clear();
            request.hashed_password.clear();
        }),
        Rpc::AuthUserChangePassword => without(message, |request: &mut pb::AuthUserChangePasswordRequest| {
            request.password.clear();
            request.hashed_password.clear();
        }),
        Rpc::KvPut if message.len() > COPIED_BYTES_MAX => without(message, |request: &mut pb::PutRequest| {
            request.value.clear();
        }),
        Rpc::ElectionCampaign if message.len() > COPIED_BYTES_MAX => {
            without(message, |request: &mut v3electionpb::CampaignRequest| request.value.clear())
        }
        Rpc::ElectionProclaim if message.len() > COPIED_BYTES_MAX => {
            without(message, |request: &mut v3electionpb::ProclaimRequest| request.value.clear())
        }
        _ if message.len() <= COPIED_BYTES_MAX => Bytes::copy_from_slice(message),
        _ => message.clone(),
    }
}

/// Returns true if a call of this method cannot change anything. For transactions it returns false.
fn is_read(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::KvRange
            | Rpc::KvRangeStream
            | Rpc::Watch
            | Rpc::LeaseKeepAlive
            | Rpc::LeaseTimeToLive
            | Rpc::LeaseLeases
            | Rpc::ClusterMemberList
            | Rpc::MaintenanceStatus
            | Rpc::MaintenanceHash
            | Rpc::MaintenanceHashKv
            | Rpc::ConnectionsCount
            | Rpc::AuthStatus
            | Rpc::AuthUserGet
            | Rpc::AuthUserList
            | Rpc::AuthRoleGet
            | Rpc::AuthRoleList
            | Rpc::ElectionLeader
            | Rpc::ElectionObserve
            | Rpc::HealthCheck
            | Rpc::HealthList
            | Rpc::HealthWatch
    )
}

/// Returns true if the status means that the caller lacked a right or was not authenticated.
pub(crate) fn is_refusal(status: &Status) -> bool {
    matches!(status.code, Code::PermissionDenied | Code::Unauthenticated)
        || [error::USER_EMPTY, error::AUTH_FAILED, error::AUTH_OLD_REVISION].contains(status)
}

/// Returns true if a call that ended with this status certainly had no effect.
fn is_without_effect(status: &Status) -> bool {
    matches!(
        status.code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::DataLoss
    ) || [error::TOO_MANY_REQUESTS, error::NO_SPACE, error::NO_LEADER].contains(status)
}

/// Data of one line of the audit log.
struct Line {
    at: SystemTime,
    who: Who,
    rpc: Rpc,
    message: Asked,
    /// First bytes of the response.
    answer: Vec<u8>,
    result: Result<(), Status>,
    reads: bool,
}

impl Line {
    /// Returns true if the call is logged. Calls whose method only reads are left out, unless they were
    /// refused or reads are logged too. Transactions count as writes here; those that only read are
    /// recognized later, from the request.
    fn is_wanted(&self) -> bool {
        self.reads || !is_read(self.rpc) || self.result.as_ref().is_err_and(is_refusal)
    }

    /// Returns true if the line goes to the separate file of refused calls: the call certainly had no effect,
    /// or it is a read or failed call of an unauthenticated caller. Anyone can cause any number of such
    /// lines, and they must not displace the lines of other calls.
    fn is_refused(&self) -> bool {
        self.who.is_stranger && (self.result.is_err() || is_read(self.rpc))
            || self.result.as_ref().is_err_and(is_without_effect)
    }
}

impl Entry for Line {
    fn bytes(&self) -> usize {
        self.message.bytes() + self.answer.len() + self.who.user.len()
    }

    fn write(&self, out: &mut String) {
        let mut fields = Fields { out, is_first: true };
        let before = fields.out.len();
        fields.out.push('{');
        fields.text("ts", &format_rfc3339(self.at));
        fields.text("user", &self.who.user);
        fields.text("auth", self.who.by);
        if let Some(name) = &self.who.certificate {
            fields.text("certificate", name);
        }
        fields.text("remote", &front::shown_peer(self.who.remote).to_string());
        fields.text("method", self.rpc.method().path);
        let changes = match &self.message {
            Asked::Unknown => !is_read(self.rpc),
            Asked::TooLarge(bytes) => {
                fields.too_large(*bytes);
                !is_read(self.rpc)
            }
            Asked::Request(message) => self.write_request(message, &mut fields).unwrap_or_else(|| {
                fields.flag("undecodable", true);
                true
            }),
        };
        self.write_answer(&mut fields);
        match &self.result {
            Ok(()) => fields.text("code", Code::Ok.name()),
            Err(status) => {
                fields.text("code", status.code.name());
                fields.text("error", &status.message);
            }
        }
        fields.out.push('}');
        // The line is removed again if the transaction turns out to be a read and reads are not logged. This
        // is known only now, because the request was decoded only for this line.
        if !changes && !self.reads && !self.result.as_ref().is_err_and(is_refusal) {
            out.truncate(before);
        }
    }
}

impl Line {
    /// Writes the fields of the request. Returns true if the request may change something, or `None` if it
    /// cannot be decoded.
    fn write_request(&self, message: &Bytes, fields: &mut Fields<'_>) -> Option<bool> {
        fn decoded<M: Message + Default>(message: &Bytes) -> Option<M> {
            M::decode(message.clone()).ok()
        }
        let (listed_max, writes_listed_max) = match self.is_refused() {
            true => (REFUSED_LISTED_MAX, REFUSED_LISTED_MAX),
            false => (LISTED_MAX, WRITES_LISTED_MAX),
        };
        match self.rpc {
            Rpc::KvRange | Rpc::KvRangeStream => {
                let request: pb::RangeRequest = decoded(message)?;
                fields.range(&request.key, &request.range_end);
            }
            Rpc::Watch => {
                let request: pb::WatchCreateRequest = decoded(message)?;
                fields.range(&request.key, &request.range_end);
            }
            Rpc::KvPut => {
                let request: pb::PutRequest = decoded(message)?;
                fields.range(&request.key, &[]);
                fields.lease(request.lease);
            }
            Rpc::KvDeleteRange => {
                let request: pb::DeleteRangeRequest = decoded(message)?;
                fields.range(&request.key, &request.range_end);
            }
            // The decoder of the state machine is used, because it accepts transactions that are nested
            // deeper than prost's limit.
            Rpc::KvTxn => {
                let txn = match machine::request::txn(message.clone(), LISTABLE_ELEMENTS_MAX) {
                    Ok((txn, _)) => txn,
                    Err(machine::request::Undecodable::TooMany) => {
                        fields.too_large(message.len());
                        return Some(true);
                    }
                    Err(_) => return None,
                };
                return Some(fields.txn(&txn, writes_listed_max, listed_max));
            }
            Rpc::KvCompact => {
                let request: pb::CompactionRequest = decoded(message)?;
                fields.number("compact_revision", request.revision);
            }
            Rpc::LeaseGrant => {
                let request: pb::LeaseGrantRequest = decoded(message)?;
                fields.lease(request.id);
                fields.number("ttl", request.ttl);
            }
            Rpc::LeaseRevoke => fields.lease(decoded::<pb::LeaseRevokeRequest>(message)?.id),
            Rpc::LeaseKeepAlive => fields.lease(decoded::<pb::LeaseKeepAliveRequest>(message)?.id),
            Rpc::LeaseTimeToLive => fields.lease(decoded::<pb::LeaseTimeToLiveRequest>(message)?.id),
            Rpc::ClusterMemberAdd => {
                let request: pb::MemberAddRequest = decoded(message)?;
                fields.texts("peer_urls", &request.peer_urls, listed_max);
                fields.flag("learner", request.is_learner && !request.is_witness);
                if request.is_witness {
                    fields.flag("witness", true);
                }
            }
            Rpc::ClusterMemberRemove => fields.id("member", decoded::<pb::MemberRemoveRequest>(message)?.id),
            Rpc::ClusterMemberUpdate => {
                let request: pb::MemberUpdateRequest = decoded(message)?;
                fields.id("member", request.id);
                fields.texts("peer_urls", &request.peer_urls, listed_max);
            }
            Rpc::ClusterMemberPromote => {
                fields.id("member", decoded::<pb::MemberPromoteRequest>(message)?.id);
            }
            Rpc::MaintenanceAlarm => {
                let request: pb::AlarmRequest = decoded(message)?;
                fields.text("action", request.action().as_str_name());
                fields.text("alarm", request.alarm().as_str_name());
                fields.id("member", request.member_id);
                return Some(request.action != pb::alarm_request::AlarmAction::Get as i32);
            }
            Rpc::MaintenanceMoveLeader => {
                fields.id("member", decoded::<pb::MoveLeaderRequest>(message)?.target_id);
            }
            Rpc::Authenticate => fields.text("name", &decoded::<pb::AuthenticateRequest>(message)?.name),
            Rpc::AuthUserAdd => {
                let request: pb::AuthUserAddRequest = decoded(message)?;
                fields.text("name", &request.name);
                fields.flag("no_password", request.options.is_some_and(|options| options.no_password));
            }
            Rpc::AuthUserGet => fields.text("name", &decoded::<pb::AuthUserGetRequest>(message)?.name),
            Rpc::AuthUserDelete => fields.text("name", &decoded::<pb::AuthUserDeleteRequest>(message)?.name),
            Rpc::AuthUserChangePassword => {
                fields.text("name", &decoded::<pb::AuthUserChangePasswordRequest>(message)?.name);
            }
            Rpc::AuthUserGrantRole => {
                let request: pb::AuthUserGrantRoleRequest = decoded(message)?;
                fields.text("name", &request.user);
                fields.text("role", &request.role);
            }
            Rpc::AuthUserRevokeRole => {
                let request: pb::AuthUserRevokeRoleRequest = decoded(message)?;
                fields.text("name", &request.name);
                fields.text("role", &request.role);
            }
            Rpc::AuthRoleAdd => fields.text("role", &decoded::<pb::AuthRoleAddRequest>(message)?.name),
            Rpc::AuthRoleGet => fields.text("role", &decoded::<pb::AuthRoleGetRequest>(message)?.role),
            Rpc::AuthRoleDelete => fields.text("role", &decoded::<pb::AuthRoleDeleteRequest>(message)?.role),
            Rpc::AuthRoleGrantPermission => {
                let request: pb::AuthRoleGrantPermissionRequest = decoded(message)?;
                fields.text("role", &request.name);
                if let Some(permission) = &request.perm {
                    fields.text("permission", permission.perm_type().as_str_name());
                    fields.range(&permission.key, &permission.range_end);
                }
            }
            Rpc::AuthRoleRevokePermission => {
                let request: pb::AuthRoleRevokePermissionRequest = decoded(message)?;
                fields.text("role", &request.role);
                fields.range(&request.key, &request.range_end);
            }
            Rpc::Lock => {
                let request: v3lockpb::LockRequest = decoded(message)?;
                fields.key("name", &request.name);
                fields.lease(request.lease);
            }
            Rpc::LockUnlock => fields.range(&decoded::<v3lockpb::UnlockRequest>(message)?.key, &[]),
            Rpc::ElectionCampaign => {
                let request: v3electionpb::CampaignRequest = decoded(message)?;
                fields.key("name", &request.name);
                fields.lease(request.lease);
            }
            Rpc::ElectionLeader | Rpc::ElectionObserve => {
                fields.key("name", &decoded::<v3electionpb::LeaderRequest>(message)?.name);
            }
            Rpc::ElectionProclaim => {
                let request: v3electionpb::ProclaimRequest = decoded(message)?;
                fields.range(&request.leader.unwrap_or_default().key, &[]);
            }
            Rpc::ElectionResign => {
                let request: v3electionpb::ResignRequest = decoded(message)?;
                fields.range(&request.leader.unwrap_or_default().key, &[]);
            }
            _ => {}
        }
        Some(!is_read(self.rpc))
    }

    /// Writes the fields of the response: the revision after the call, and for some methods the number that
    /// follows the header in the response.
    fn write_answer(&self, fields: &mut Fields<'_>) {
        let Some((header, second)) = beginning(&self.answer) else { return };
        if header.revision != 0 {
            fields.number("revision", header.revision);
        }
        match self.rpc {
            Rpc::LeaseGrant => fields.lease_as("granted_lease", second.unwrap_or_default() as i64),
            Rpc::KvDeleteRange => fields.number("deleted", second.unwrap_or_default() as i64),
            Rpc::KvTxn => fields.flag("succeeded", second.unwrap_or_default() != 0),
            _ => {}
        }
    }
}

/// Decodes the header of a response, and the second field of the response if that field is a number.
fn beginning(mut answer: &[u8]) -> Option<(pb::ResponseHeader, Option<u64>)> {
    let (1, WireType::LengthDelimited) = decode_key(&mut answer).ok()? else { return None };
    let len = usize::try_from(decode_varint(&mut answer).ok()?).ok()?;
    let (header, mut rest) = answer.split_at_checked(len)?;
    let header = pb::ResponseHeader::decode(header).ok()?;
    let second = match decode_key(&mut rest) {
        Ok((2, WireType::Varint)) => decode_varint(&mut rest).ok(),
        _ => None,
    };
    Some((header, second))
}

/// Returns the beginning of a text, of at most [`TEXT_BYTES_MAX`] bytes.
fn beginning_of(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writer for the fields of a line, or of an object in it.
struct Fields<'o> {
    out: &'o mut String,
    is_first: bool,
}

impl Fields<'_> {
    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(',');
        }
        let _ = write!(self.out, "\"{name}\":");
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        write_text(self.out, beginning_of(text));
    }

    fn texts(&mut self, name: &str, texts: &[String], listed_max: usize) {
        self.name(name);
        self.out.push('[');
        for (i, text) in texts.iter().take(listed_max).enumerate() {
            if i > 0 {
                self.out.push(',');
            }
            write_text(self.out, beginning_of(text));
        }
        self.out.push(']');
    }

    fn number(&mut self, name: &str, number: i64) {
        self.name(name);
        let _ = write!(self.out, "{number}");
    }

    /// Writes that a request of `bytes` bytes is too large to be decoded.
    fn too_large(&mut self, bytes: usize) {
        self.flag("too_large", true);
        self.number("request_bytes", i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    fn flag(&mut self, name: &str, flag: bool) {
        self.name(name);
        let _ = write!(self.out, "{flag}");
    }

    /// Writes an id in hexadecimal, as command-line tools show it.
    fn id(&mut self, name: &str, id: u64) {
        self.name(name);
        let _ = write!(self.out, "\"{id:x}\"");
    }

    fn lease_as(&mut self, name: &str, lease: i64) {
        if lease != 0 {
            self.id(name, lease as u64);
        }
    }

    fn lease(&mut self, lease: i64) {
        self.lease_as("lease", lease);
    }

    /// Writes a key: as text if it is printable, else in base64. A long key is cut off.
    fn key(&mut self, name: &str, key: &[u8]) {
        let shown = &key[..key.len().min(TEXT_BYTES_MAX)];
        match std::str::from_utf8(shown) {
            Ok(text) if !text.chars().any(char::is_control) => self.text(name, text),
            _ => {
                use base64::Engine as _;
                self.name(&format!("{name}_base64"));
                let _ = write!(self.out, "\"{}\"", base64::engine::general_purpose::STANDARD.encode(shown));
            }
        }
        if key.len() > shown.len() {
            self.number(&format!("{name}_bytes"), key.len() as i64);
        }
    }

    fn range(&mut self, key: &[u8], range_end: &[u8]) {
        self.key("key", key);
        if !range_end.is_empty() {
            self.key("range_end", range_end);
        }
    }

    /// Lists the writes, reads and comparisons of a transaction, in this order, from all branches and nested
    /// transactions. At most `writes_max` writes and `others_max` other operations are listed. Returns true
    /// if the transaction may write.
    fn txn(&mut self, txn: &pb::TxnRequest, writes_max: usize, others_max: usize) -> bool {
        let (mut writes, mut ranges, mut compares) = (Vec::new(), Vec::new(), Vec::new());
        // These counters include operations that are not listed.
        let (mut writes_count, mut others_count) = (0, 0);
        let mut open = vec![txn];
        while let Some(txn) = open.pop() {
            others_count += txn.compare.len();
            compares.extend(txn.compare.iter().take(others_max.saturating_sub(compares.len())));
            for op in txn.success.iter().chain(&txn.failure) {
                match &op.request {
                    Some(Request::RequestTxn(nested)) => open.push(nested),
                    Some(Request::RequestRange(range)) => {
                        others_count += 1;
                        if ranges.len() < others_max {
                            ranges.push(range);
                        }
                    }
                    Some(write @ (Request::RequestPut(_) | Request::RequestDeleteRange(_))) => {
                        writes_count += 1;
                        if writes.len() < writes_max {
                            writes.push(write);
                        }
                    }
                    None => {}
                }
            }
        }
        compares.truncate(others_max - ranges.len());
        self.name("ranges");
        self.out.push('[');
        let mut is_first = true;
        for write in &writes {
            match write {
                Request::RequestPut(put) => self.operation(&mut is_first, "put", &put.key, &[], put.lease),
                Request::RequestDeleteRange(delete) => {
                    self.operation(&mut is_first, "delete", &delete.key, &delete.range_end, 0);
                }
                Request::RequestRange(_) | Request::RequestTxn(_) => {}
            }
        }
        for range in &ranges {
            self.operation(&mut is_first, "range", &range.key, &range.range_end, 0);
        }
        for compare in &compares {
            self.operation(&mut is_first, "compare", &compare.key, &compare.range_end, 0);
        }
        self.out.push(']');
        let left_out = writes_count - writes.len() + others_count - ranges.len() - compares.len();
        if left_out > 0 {
            self.number("ranges_left_out", left_out as i64);
        }
        writes_count > 0
    }

    fn operation(&mut self, is_first: &mut bool, op: &str, key: &[u8], range_end: &[u8], lease: i64) {
        if !std::mem::take(is_first) {
            self.out.push(',');
        }
        self.out.push('{');
        let mut fields = Fields { out: self.out, is_first: true };
        fields.text("op", op);
        fields.range(key, range_end);
        fields.lease(lease);
        self.out.push('}');
    }
}

#[cfg(test)]
mod tests;
