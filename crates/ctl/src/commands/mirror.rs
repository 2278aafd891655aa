//! `make-mirror`: copies all keys to another cluster, and then copies each later change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{First, race};

use api::Rpc;
use api::etcdserverpb as pb;
use api::etcdserverpb::request_op::Request;
use api::mvccpb::Event;
use api::mvccpb::event::EventType;
use bytes::Bytes;
use cli::{Command, Failure, Flag, Progress};
use client::{Client, TlsFiles, WatchUpdate, Watcher};

use super::mirror_revisions::{self, REPORT_INTERVAL, TXN_BYTES_MAX};
use super::{Run, UTILITY};
use crate::call::Call;
use crate::globals::Login;
use crate::ranges::{OPEN_END, prefix_end};

const PREFIX: Flag<String> = Flag::text("prefix", "", "Key-value prefix to mirror");
const REV: Flag<i64> = Flag::int("rev", "0", "Specify the kv revision to start to mirror");
const MAX_TXN_OPS: Flag<u64> = Flag::uint(
    "max-txn-ops",
    "128",
    "Maximum number of operations permitted in a transaction during syncing updates.",
);
const DEST_PREFIX: Flag<String> = Flag::text(
    "dest-prefix",
    "",
    "destination prefix to mirror a prefix to a different prefix in the destination cluster",
);
const NO_DEST_PREFIX: Flag<bool> =
    Flag::bool("no-dest-prefix", "mirror key-values to the root of the destination cluster");
const DEST_CERT: Flag<String> = Flag::text(
    "dest-cert",
    "",
    "Identify secure client using this TLS certificate file for the destination cluster",
);
const DEST_KEY: Flag<String> = Flag::text("dest-key", "", "Identify secure client using this TLS key file");
const DEST_CACERT: Flag<String> =
    Flag::text("dest-cacert", "", "Verify certificates of TLS enabled secure servers using this CA bundle");
const DEST_INSECURE_TRANSPORT: Flag<bool> =
    Flag::on("dest-insecure-transport", "Disable transport security for client connections");
const DEST_USER: Flag<String> = Flag::text(
    "dest-user",
    "",
    "Destination username[:password] for authentication (prompt if password is not supplied)",
);
const DEST_PASSWORD: Flag<String> = Flag::text(
    "dest-password",
    "",
    "Destination password for authentication (if this option is used, --user option shouldn't include password)",
);
const PROGRESS_KEY: Flag<String> = Flag::text(
    "progress-key",
    "",
    "key in the destination cluster that stores the progress of the mirror, so that it can resume (not in etcd's etcdctl)",
);

const KEEP_REVISIONS: Flag<bool> = Flag::bool(
    "keep-revisions",
    "apply every revision of the source to the destination, which is empty or restored from a snapshot of \
     the source (not in etcd's etcdctl)",
);
const CUT_OVER: Flag<bool> = Flag::bool(
    "cut-over",
    "with --keep-revisions: once the destination has caught up, stop writes at the source with its CORRUPT \
     alarm, compare, and exit (not in etcd's etcdctl)",
);

const STOP_TIMEOUT: Flag<Duration> = Flag::duration(
    "stop-timeout",
    "10s",
    "with --cut-over: maximum time for which writes are stopped at the source; after that, they resume, \
     and the cut-over has failed (not in etcd's etcdctl)",
);

pub(super) const MAKE_MIRROR: Command<Run> = Command {
    name: "make-mirror",
    usage: "make-mirror [options] <destination>",
    about: "Makes a mirror at the destination etcd cluster",
    example: "  etcdctl make-mirror 10.1.0.1:2379 --prefix /config/\n\n  \
              # Resume after a crash or a restart\n  \
              etcdctl make-mirror 10.1.0.1:2379 --prefix /config/ --progress-key /mirror/config\n\n  \
              # Move everything to a cluster restored from a snapshot, with all later revisions\n  \
              etcdctl make-mirror 10.1.0.1:2379 --keep-revisions --cut-over",
    flags: &[
        PREFIX.row(),
        REV.row(),
        MAX_TXN_OPS.row(),
        DEST_PREFIX.row(),
        NO_DEST_PREFIX.row(),
        DEST_CERT.row(),
        DEST_KEY.row(),
        DEST_CACERT.row(),
        DEST_INSECURE_TRANSPORT.row(),
        DEST_USER.row(),
        DEST_PASSWORD.row(),
        PROGRESS_KEY.row(),
        KEEP_REVISIONS.row(),
        CUT_OVER.row(),
        STOP_TIMEOUT.row(),
    ],
    group: UTILITY,
    run: Some(Run::asking(|call| Box::pin(make_mirror(call)))),
    ..Command::EMPTY
};

/// Maximum number of keys that one request reads.
const PAGE_KEYS: i64 = 1000;

pub(super) async fn make_mirror(call: &Call) -> Result<(), Failure> {
    let [destination] = call.args() else {
        return Err(Failure::bad_args("make-mirror takes one destination argument"));
    };
    let matches = &call.matches;
    let names = Names::read(call)?;
    let (keeps_revisions, cuts_over) = (matches.get(KEEP_REVISIONS), matches.get(CUT_OVER));
    if cuts_over && !keeps_revisions {
        return Err(Failure::bad_args("`--cut-over` needs `--keep-revisions`"));
    }
    if matches.is_given(STOP_TIMEOUT) && !cuts_over {
        return Err(Failure::bad_args("`--stop-timeout` needs `--cut-over`"));
    }
    let stop_limit = cuts_over.then(|| matches.get(STOP_TIMEOUT));
    if stop_limit.is_some_and(|limit| limit.is_zero()) {
        return Err(Failure::bad_args("`--stop-timeout` must be longer than 0"));
    }
    let is_partial = names != Names::default() || matches.get(NO_DEST_PREFIX) || matches.get(REV) != 0;
    if keeps_revisions && (is_partial || !matches.get(PROGRESS_KEY).is_empty()) {
        return Err(Failure::bad_args(
            "`--keep-revisions` mirrors all keys under their own names and continues from the \
             destination's revision: it cannot be used with `--prefix`, `--dest-prefix`, \
             `--no-dest-prefix`, `--rev` and `--progress-key`",
        ));
    }
    let globals = call.globals().await?;
    let path = |flag: Flag<String>| Some(matches.get(flag)).filter(|p| !p.is_empty()).map(Into::into);
    let files = TlsFiles {
        cert: path(DEST_CERT),
        key: path(DEST_KEY),
        cacert: path(DEST_CACERT),
        ..TlsFiles::default()
    };
    let (user, password) = (matches.get(DEST_USER), matches.get(DEST_PASSWORD));
    let login = Login::of_user(user, password, "Destination Password: ", &call.io)?;
    let endpoints = vec![crate::call::utf8(destination)?];
    let insecure = matches.get(DEST_INSECURE_TRANSPORT);
    if cuts_over {
        // Block the signals now, because `connected` starts threads (to look up host names), and the signals
        // must be blocked before other threads exist.
        call.interruption();
    }
    let target = globals.connected(globals.settings_of(endpoints, &files, insecure, &login)?).await?;
    let source = call.connect().await?;
    let operations_max = usize::try_from(matches.get(MAX_TXN_OPS)).unwrap_or(usize::MAX).max(1);
    if keeps_revisions {
        return mirror_revisions::replay(call, source, target, operations_max, stop_limit).await;
    }
    let mirror = Mirror {
        source,
        target,
        names,
        operations_max,
        progress_key: Bytes::copy_from_slice(matches.get(PROGRESS_KEY).as_bytes()),
        total: Arc::default(),
    };
    let reports = async {
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            let total = mirror.total.load(Ordering::Relaxed);
            if let Err(failure) = call.line(total.to_string()) {
                return failure;
            }
        }
    };
    let (First::Left(failure) | First::Right(failure)) = race(mirror.run(matches.get(REV)), reports).await;
    Err(failure)
}

/// Mapping of the names of keys at the source to names at the destination: one prefix is replaced by another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names {
    prefix: Vec<u8>,
    target_prefix: Vec<u8>,
}

impl Names {
    /// Reads the flags about prefixes. COMPAT-56: if no prefix is given for the destination, etcdctl removes
    /// the prefix from every key if `--rev` is given, and otherwise keeps it. This command keeps it in both
    /// cases.
    fn read(call: &Call) -> Result<Names, Failure> {
        let text = |flag: Flag<String>| call.matches.get(flag).as_bytes().to_vec();
        let (prefix, target) = (text(PREFIX), text(DEST_PREFIX));
        let none = call.matches.get(NO_DEST_PREFIX);
        if none && !target.is_empty() {
            return Err(Failure::bad_args(
                "`--dest-prefix` and `--no-dest-prefix` cannot be set at the same time, choose one",
            ));
        }
        let target_prefix = if none || !target.is_empty() { target } else { prefix.clone() };
        Ok(Names { prefix, target_prefix })
    }

    fn there(&self, key: &[u8]) -> Bytes {
        let rest = key.strip_prefix(&self.prefix[..]).unwrap_or(key);
        [&self.target_prefix, rest].concat().into()
    }

    /// Returns the range of the keys at the source that are mirrored, as key and range end.
    fn range(&self) -> (Bytes, Bytes) {
        if self.prefix.is_empty() {
            return (OPEN_END.into(), OPEN_END.into());
        }
        (self.prefix.clone().into(), prefix_end(&self.prefix).into())
    }
}

struct Mirror {
    source: Client,
    target: Client,
    names: Names,
    operations_max: usize,
    /// Key at the destination that stores the mirror's position; empty if the position is not stored.
    progress_key: Bytes,
    total: Arc<AtomicU64>,
}

impl Mirror {
    /// Mirrors without end, and returns only when an error occurs.
    async fn run(&self, from_revision: i64) -> Failure {
        match self.tried(from_revision).await {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    async fn tried(&self, from_revision: i64) -> Result<std::convert::Infallible, Failure> {
        let stored = self.stored().await?;
        let mirrored = match (from_revision, stored) {
            (revision, _) if revision > 1 => revision - 1,
            (_, Some(stored)) => stored,
            _ => self.copy_all().await?,
        };
        self.follow(mirrored, stored.is_some()).await
    }

    /// Returns the revision that an earlier run has reached; `None` if none is stored.
    async fn stored(&self) -> Result<Option<i64>, Failure> {
        if self.progress_key.is_empty() {
            return Ok(None);
        }
        let request = pb::RangeRequest { key: self.progress_key.clone(), ..Default::default() };
        let answer: pb::RangeResponse = self.target.call(Rpc::KvRange, &request).await?;
        let Some(kv) = answer.kvs.first() else { return Ok(None) };
        let position = std::str::from_utf8(&kv.value).ok().and_then(Position::read);
        let name = String::from_utf8_lossy(&self.progress_key).into_owned();
        let Some(position) = position else {
            return Err(Failure::error(format!(
                "key {name} at the destination does not contain a mirror's progress; choose another --progress-key"
            )));
        };
        let source = self.now().await?.0;
        if position.cluster_id != source {
            return Err(Failure::error(format!(
                "key {name} at the destination belongs to a mirror of cluster {:x}, not of {source:x}; choose another \
                 --progress-key, or delete that key to copy everything again",
                position.cluster_id
            )));
        }
        Ok(Some(position.revision))
    }

    /// Returns the source's cluster id and revision.
    async fn now(&self) -> Result<(u64, i64), Failure> {
        let key = if self.names.prefix.is_empty() { "foo".into() } else { self.names.prefix.clone().into() };
        let answer: pb::RangeResponse =
            self.source.call(Rpc::KvRange, &pb::RangeRequest { key, ..Default::default() }).await?;
        let header = answer.header.unwrap_or_default();
        Ok((header.cluster_id, header.revision))
    }

    /// Copies all keys that exist now. Returns the revision at which they were read.
    async fn copy_all(&self) -> Result<i64, Failure> {
        let (cluster_id, revision) = self.now().await?;
        let (mut key, range_end) = self.names.range();
        let mut progress = Progress::of_things("mirroring", None);
        loop {
            let request = pb::RangeRequest {
                key,
                range_end: range_end.clone(),
                limit: PAGE_KEYS,
                revision,
                ..Default::default()
            };
            let page: pb::RangeResponse = self.source.call(Rpc::KvRange, &request).await?;
            let last = page.kvs.last().map(|kv| [&kv.key[..], b"\0"].concat());
            progress.set_total(self.total.load(Ordering::Relaxed) + page.count.unsigned_abs());
            let puts = page.kvs.into_iter().map(|kv| self.put(&kv.key, kv.value));
            self.send(puts.collect(), &mut progress).await?;
            match last {
                Some(next) if page.more => key = next.into(),
                _ => break,
            }
        }
        self.note(Position { revision, cluster_id }).await?;
        Ok(revision)
    }

    fn put(&self, key: &[u8], value: Bytes) -> Request {
        Request::RequestPut(pb::PutRequest { key: self.names.there(key), value, ..Default::default() })
    }

    /// Sends operations to the destination, divided into transactions that are not too large for the
    /// destination.
    async fn send(&self, operations: Vec<Request>, progress: &mut Progress) -> Result<(), Failure> {
        let mut batch: Vec<pb::RequestOp> = Vec::new();
        let mut batch_bytes = 0;
        for operation in operations {
            let bytes = size(&operation);
            if batch.len() >= self.operations_max
                || (!batch.is_empty() && batch_bytes + bytes > TXN_BYTES_MAX)
            {
                self.commit(std::mem::take(&mut batch), progress).await?;
                batch_bytes = 0;
            }
            batch_bytes += bytes;
            batch.push(pb::RequestOp { request: Some(operation) });
        }
        if batch.is_empty() { Ok(()) } else { self.commit(batch, progress).await }
    }

    async fn commit(&self, success: Vec<pb::RequestOp>, progress: &mut Progress) -> Result<(), Failure> {
        let count = success.len() as u64;
        let request = pb::TxnRequest { success, ..Default::default() };
        let _: pb::TxnResponse = self.target.call(Rpc::KvTxn, &request).await?;
        let total = self.total.fetch_add(count, Ordering::Relaxed) + count;
        progress.at(total, "");
        Ok(())
    }

    /// Stores the position of the mirror at the destination. The destination may already have later
    /// operations, which a restarted mirror sends again. This does no harm, because each operation sets the
    /// complete value of a key or deletes the key.
    async fn note(&self, position: Position) -> Result<(), Failure> {
        if self.progress_key.is_empty() {
            return Ok(());
        }
        let value = position.written().into();
        let request = pb::PutRequest { key: self.progress_key.clone(), value, ..Default::default() };
        let _: pb::PutResponse = self.target.call(Rpc::KvPut, &request).await?;
        Ok(())
    }

    async fn follow(&self, mirrored: i64, is_resumed: bool) -> Result<std::convert::Infallible, Failure> {
        let (key, range_end) = self.names.range();
        let request =
            pb::WatchCreateRequest { key, range_end, start_revision: mirrored + 1, ..Default::default() };
        let mut watcher = Watcher::new(&self.source, request);
        let mut progress = Progress::of_things("mirroring", None);
        loop {
            match watcher.next().await? {
                Some(WatchUpdate::Events(response)) => {
                    let header = response.header.unwrap_or_default();
                    let mut revision = 0;
                    for events in response.events.chunk_by(|a, b| revision_of(a) == revision_of(b)) {
                        let operations = events.iter().map(|event| self.operation(event));
                        self.send(operations.collect(), &mut progress).await?;
                        revision = events.first().map_or(revision, revision_of);
                    }
                    if revision > 0 {
                        self.note(Position { revision, cluster_id: header.cluster_id }).await?;
                    }
                }
                Some(WatchUpdate::Canceled(response)) if response.compact_revision != 0 => {
                    let error = api::error::COMPACTED.message;
                    let remedy = if is_resumed {
                        format!(
                            " (the mirror stopped at revision {mirrored}, but the source has history only \
                             from {} on; delete the progress key to copy everything again)",
                            response.compact_revision
                        )
                    } else {
                        String::new()
                    };
                    return Err(Failure::error(format!("{error}{remedy}")));
                }
                Some(WatchUpdate::Canceled(response)) => {
                    return Err(Failure::error(format!("watch was canceled ({})", response.cancel_reason)));
                }
                Some(WatchUpdate::Created(_) | WatchUpdate::Progress(_)) => {}
                None => return Err(Failure::error("watch is canceled by the server")),
            }
        }
    }

    fn operation(&self, event: &Event) -> Request {
        let kv = event.kv.clone().unwrap_or_default();
        if event.r#type == EventType::Delete as i32 {
            let key = self.names.there(&kv.key);
            return Request::RequestDeleteRange(pb::DeleteRangeRequest { key, ..Default::default() });
        }
        self.put(&kv.key, kv.value)
    }
}

fn revision_of(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

fn size(operation: &Request) -> usize {
    match operation {
        Request::RequestPut(put) => put.key.len() + put.value.len(),
        Request::RequestDeleteRange(delete) => delete.key.len(),
        _ => 0,
    }
}

/// Position of a mirror: the cluster that it mirrors, and the revision that it has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    revision: i64,
    cluster_id: u64,
}

impl Position {
    /// Returns the text in which the position is stored, such as `revision 7 of cluster cdf818194e3a8c32`.
    fn written(self) -> String {
        format!("revision {} of cluster {:x}", self.revision, self.cluster_id)
    }

    fn read(text: &str) -> Option<Position> {
        let (revision, cluster_id) = text.strip_prefix("revision ")?.split_once(" of cluster ")?;
        let revision = revision.parse().ok().filter(|revision| *revision > 0)?;
        Some(Position { revision, cluster_id: u64::from_str_radix(cluster_id, 16).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_change_on_the_way() {
        let names =
            |prefix: &str, target: &str| Names { prefix: prefix.into(), target_prefix: target.into() };
        assert_eq!(names("/a/", "/b/").there(b"/a/x/a/"), "/b/x/a/");
        assert_eq!(names("/a/", "").there(b"/a/x"), "x");
        assert_eq!(names("", "").there(b"x"), "x");
        assert_eq!(names("a", "").range(), ("a".into(), "b".into()));
        assert_eq!(names("", "").range(), ("\0".into(), "\0".into()));
    }

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let position = Position { revision: 7, cluster_id: 0xcdf818194e3a8c32 };
        assert_eq!(position.written(), "revision 7 of cluster cdf818194e3a8c32");
        assert_eq!(Position::read(&position.written()), Some(position));
        assert_eq!(Position::read("7"), None);
        assert_eq!(Position::read("revision 0 of cluster 1"), None);
    }
}
