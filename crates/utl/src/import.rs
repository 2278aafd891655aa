//! `import`: a data directory for Mainstay of one of etcd.

use std::path::PathBuf;
use std::sync::Arc;

use api::etcdserverpb::InternalRaftRequest;
use bytes::Bytes;
use cli::Progress;
use disk::{Disk, RealDisk};
use interchange::{Command, DataDir};
use log::HardState;
use prost::Message as _;
use storage::Identity;
use storage::etcd_database;
use storage::restoration::{Restoration, RestoredEntry, RestoredHead};
use storage::stopped::Stopped;

use crate::commands::required;
use crate::target::{Target, is_taken};
use crate::{Refusal, Session, etcd_dir};

pub(crate) fn run(session: &mut Session<'_>) -> Result<(), Refusal> {
    required(session, &["data-dir", "to"])?;
    let given = session.matches;
    let (from, to) = (PathBuf::from(given.text("data-dir")), PathBuf::from(given.text("to")));
    let wal_dir = match given.text("wal-dir") {
        "" => from.join("member").join("wal"),
        dir => PathBuf::from(dir),
    };
    if is_taken(&to).unwrap_or(true) {
        return Err(Refusal::failed(format!("{} is there already, and not empty", to.display())));
    }
    session.notices.info(
        "importing",
        &[("data-dir", from.display().to_string().into()), ("to", to.display().to_string().into())],
    );
    let source = DataDir::open_with(&RealDisk, &from, &wal_dir).map_err(|e| {
        let what = format!("{}: {e}", from.display());
        Refusal::failed(if what.contains("locked by another process") {
            format!("{what}: stop etcd first")
        } else {
            what
        })
    })?;
    etcd_dir::check_versions(source.meta.storage_version.as_deref(), &source.membership)?;
    let without_users = given.flag("without-users");
    let guarded = etcd_dir::check_users(&source.base, without_users, "the state")?;
    if let Some(loss) = source.old_store.loss()
        && !given.flag("without-old-store")
    {
        return Err(Refusal::failed(format!(
            "the old store (API version 2) would be lost, and {loss}: Mainstay has no such store, nor has etcd from 3.6 \
             on. Move what is needed (ETCDCTL_API=3 etcdctl migrate of 3.4), or leave it out with --without-old-store"
        )));
    }
    let target = Target::begin(&to)?;
    let identity = source.wal.identity;
    let identity = Identity { member_id: identity.member_id, cluster_id: identity.cluster_id };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut restoration =
        Restoration::begin(&disk, target.making(), identity.clone()).map_err(Refusal::failed)?;
    let index = source.base_index();
    let term = source
        .base_term()
        .ok_or_else(|| Refusal::failed(format!("nothing says in which term entry {index} was written")))?;
    let total = source.base.bolt().size_bytes();
    let leases = etcd_dir::leases(&source.base)?;
    let lease_ids = leases.iter().map(|(id, _, _)| *id).collect();
    let mut progress = Progress::of_bytes("importing", Some(total));
    let mut filling = restoration
        .fill(RestoredHead {
            compact_revision: source.meta.compact_revision().unwrap_or(-1),
            index,
            term,
            leases,
            alarms: source.base.alarms().map_err(Refusal::failed)?,
            members: etcd_database::members(&source.membership),
            // Members stopped at different entries.
            is_shared: false,
        })
        .map_err(Refusal::failed)?;
    let without_lease =
        etcd_dir::take_history(&source.base, &lease_ids, &mut filling, &mut |bytes| progress.at(bytes, ""))?;
    let mut machine = filling.finish(None).map_err(Refusal::failed)?;
    progress.finish();
    without_lease.warn(&mut session.notices);
    let mut tail = Tail {
        source: &source,
        next: index + 1,
        term,
        guarded,
        without_users,
        without_old_store: given.flag("without-old-store"),
        left_out: 0,
        progress: Progress::of_things("entries", Some(source.wal.last().saturating_sub(index))),
    };
    let promised = source.wal.hard_state;
    // A term that the log has entries of was promised, whatever came of the last record.
    let newest = source.wal.term(source.wal.last()).unwrap_or(0).max(term);
    let hard_state = HardState {
        term: promised.term.max(newest),
        vote: if promised.term < newest { 0 } else { promised.vote },
        commit: source.end(),
    };
    let terms = restoration.follow(&mut machine, hard_state, &mut tail).map_err(Refusal::failed)?;
    let left_out = tail.left_out;
    drop(tail);
    restoration.finish(machine, &terms).map_err(Refusal::failed)?;
    // Read it back, as a start would.
    let mut made = Stopped::open(&disk, target.making()).map_err(Refusal::failed)?;
    let (hash, compacted, revision) = made.hash_kv(0).map_err(|status| Refusal::failed(status.message))?;
    let members = made.machine.members.by_id.len();
    drop(made);
    target.finish()?;
    if left_out > 0 {
        session.notices.warn(
            "left out entries that change users, roles or authentication",
            &[("entries", left_out.into())],
        );
    }
    session.notices.info(
        "imported",
        &[
            ("member-id", format!("{:x}", identity.member_id).into()),
            ("cluster-id", format!("{:x}", identity.cluster_id).into()),
            ("members", members.into()),
            ("database-index", index.into()),
            ("index", source.end().into()),
            ("last-index", source.wal.last().into()),
            ("revision", revision.into()),
            ("compact-revision", compacted.into()),
            ("hash-kv", hash.into()),
        ],
    );
    Ok(())
}

/// The entries behind the database, in today's words.
struct Tail<'s> {
    source: &'s DataDir,
    next: u64,
    term: u64,
    /// Authentication is on: etcd holds some requests against it only when it applies them.
    guarded: bool,
    without_users: bool,
    without_old_store: bool,
    /// Entries that change users, roles or authentication.
    left_out: u64,
    progress: Progress,
}

impl Iterator for Tail<'_> {
    type Item = Result<RestoredEntry, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next;
        if index > self.source.wal.last() {
            return None;
        }
        self.next += 1;
        self.progress.at(index - self.source.base_index(), "");
        Some(self.entry(index))
    }
}

impl Tail<'_> {
    fn entry(&mut self, index: u64) -> Result<RestoredEntry, String> {
        let found = self.source.wal.entry(index).map_err(|e| e.to_string())?;
        let entry = found.ok_or_else(|| format!("entry {index} is missing in the log"))?;
        let command = Command::of(&entry).map_err(|e| format!("entry {index}: {}", e.what))?;
        let term = entry.term();
        if term < self.term {
            return Err(format!("entry {index} is of term {term}, the one before it of {}", self.term));
        }
        self.term = term;
        let (entry_type, data) = match command {
            Command::Nothing => (0, Bytes::new()),
            Command::ConfChange(_) => (1, entry.data.unwrap_or_default()),
            Command::Request(data) => (0, self.request(index, data)?),
            Command::OldWrite { .. } if self.without_old_store => (0, Bytes::new()),
            Command::OldWrite { method, path } => {
                return Err(format!(
                    "entry {index} asks the old store (API version 2) for {method} {path}, which Mainstay does not have, \
                     nor has etcd from 3.6 on: leave that out with --without-old-store"
                ));
            }
        };
        let entry = log::Entry { term, index, entry_type, data };
        Ok(RestoredEntry { applies: index <= self.source.end(), entry })
    }

    fn request(&mut self, index: u64, data: Bytes) -> Result<Bytes, String> {
        let request = InternalRaftRequest::decode(data.clone())
            .map_err(|e| format!("entry {index} is no request that this version knows: {e}"))?;
        if let Some(change) = change_of_users(&request) {
            // Before 3.5 these hold passwords as they were typed; none of it is kept.
            if !self.without_users {
                return Err(format!(
                    "entry {index} asks for {change}, and this version of Mainstay has no authentication: leave all that \
                     out with --without-users, or go on with etcd"
                ));
            }
            self.guarded |= request.auth_enable.is_some();
            self.guarded &= request.auth_disable.is_none();
            self.left_out += 1;
            return Ok(Bytes::new());
        }
        if self.guarded && may_be_refused(&request) {
            return Err(format!(
                "entry {index} is not in etcd's database yet, and whether its user was permitted to ask for it only etcd \
                 can say: start etcd on the directory once more and stop it in order (SIGTERM), which writes the \
                 database, then import again"
            ));
        }
        Ok(data)
    }
}

/// What a request changes about users, roles or authentication. One that only reads, or was a log-in, changes nothing
/// here either.
fn change_of_users(request: &InternalRaftRequest) -> Option<&'static str> {
    let all = [
        (request.auth_enable.is_some(), "authentication to be on"),
        (request.auth_disable.is_some(), "authentication to be off"),
        (request.authenticate.is_some(), "a log-in"),
        (request.auth_status.is_some(), "the state of authentication"),
        (request.auth_user_add.is_some(), "a user"),
        (request.auth_user_delete.is_some(), "a user to be deleted"),
        (request.auth_user_get.is_some(), "what a user may do"),
        (request.auth_user_change_password.is_some(), "another password"),
        (request.auth_user_grant_role.is_some(), "a role for a user"),
        (request.auth_user_revoke_role.is_some(), "a role to be taken from a user"),
        (request.auth_user_list.is_some(), "the users"),
        (request.auth_role_list.is_some(), "the roles"),
        (request.auth_role_add.is_some(), "a role"),
        (request.auth_role_delete.is_some(), "a role to be deleted"),
        (request.auth_role_get.is_some(), "what a role may do"),
        (request.auth_role_grant_permission.is_some(), "a permission for a role"),
        (request.auth_role_revoke_permission.is_some(), "a permission to be taken from a role"),
    ];
    all.into_iter().find_map(|(is, what)| is.then_some(what))
}

/// Whether etcd asks, when it applies this, what its user may do.
fn may_be_refused(request: &InternalRaftRequest) -> bool {
    request.put.is_some()
        || request.delete_range.is_some()
        || request.txn.is_some()
        || request.lease_revoke.is_some()
        || request.compaction.is_some()
        || request.lease_grant.is_some()
        || request.alarm.is_some()
}
