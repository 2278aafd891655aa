//! `export`: converts a data directory of Mainstay to one of etcd.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::etcdserverpb::InternalRaftRequest;
use bytes::Bytes;
use cli::{Command, Failure, Flag, Progress};
use consensus::{Entry, EntryKind};
use disk::{Disk, RealDisk};
use interchange::backend::Release;
use interchange::wal::Identity;
use interchange::{NewDataDir, NewMember};
use machine::{Machine, Members, Values};
use numbers::Revision;
use prost::Message as _;
use storage::etcd_database::{self, EtcdDatabase};
use storage::exported;
use storage::kv_hash::HashedKv;
use storage::stopped::Stopped;

use crate::Session;
use crate::max_learners;
use crate::places;
use crate::session::{Run, required};
use crate::target::{Target, refuse_taken};

const DATA_DIR: Flag<String> =
    Flag::text("data-dir", "", "Required. Path to the data directory, which must not be in use");
const RELEASE: Flag<String> =
    Flag::text("release", "3.7", "Release of etcd that will serve the output (3.5, 3.6, 3.7)");
const TO: Flag<String> = Flag::text(
    "to",
    "",
    "Required. Path to the output data directory, which must be empty or must not exist yet",
);

pub(crate) const EXPORT: Command<Run> = Command {
    name: "export",
    usage: "export --data-dir {Mainstay data dir} --to {output dir} [options]",
    about: "Converts a data directory of Mainstay into one for etcd 3.5 to 3.7, with the same member and cluster",
    long: "Converts the data directory of a stopped member into one for etcd 3.5 to 3.7.

Member, cluster, term, vote and index stay the same, and so do entries that are not known to be committed: the member
continues where Mainstay stopped, alone or with the others of its cluster. The cluster's version stays too: for a member
of several, the export is refused if --release is below that version, or may be once those entries are committed, unless a
downgrade to that release is in progress (etcdctl downgrade). From then on, use only one of the two directories: a member
started on the older one would forget what it has promised and acknowledged. So Mainstay refuses to start on its directory
or to export it again, because of a file in it (member/exported), which you may remove if etcd never starts on the output.
",
    example: "  etcdutl export --data-dir default.mainstay --to default.etcd && etcd --data-dir default.etcd",
    flags: &[
        DATA_DIR.row(),
        max_learners::FLAG.row(),
        RELEASE.row(),
        TO.row(),
    ],
    run: Some(Run(run)),
    ..Command::EMPTY
};

/// Message that is printed if no flags are given. It contains the steps to go back to etcd, because a file in
/// each data directory of Mainstay (`SIGN_NAME`) tells users to run this command without flags.
const STEPS: &str = "\
export converts a data directory of Mainstay into one for etcd: name both. To go back to etcd on one machine, where DIR is the --data-dir:

  1. check that the cluster is ready, and which release of etcd is possible: mainstay doctor migrate --to etcd --endpoints ...
  2. stop Mainstay (SIGTERM)
  3. mainstay utl export --data-dir DIR --to DIR.etcd --release 3.7 && mv DIR DIR.mainstay && mv DIR.etcd DIR
     (with --wal-dir=W also: mv W W.mainstay && mv DIR/member/wal W)
  4. start etcd with the flags that the member had

Convert one member after the other, and never use both directories of a member. Old files of etcd that are still in DIR are out of date";

/// Number of records, such as versions of keys, that each step of the first pass of an export examines. The
/// first pass computes the size of the new database.
const MEASURED_AT_ONCE: usize = 16 << 10;
const WRITTEN_AT_ONCE: usize = 1 << 20;

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    if !session.matches.is_given(DATA_DIR.row()) && !session.matches.is_given(TO.row()) {
        return Err(Failure::error(STEPS));
    }
    required(session, &[DATA_DIR.row(), TO.row()])?;
    let given = session.matches;
    let release = match given.get(RELEASE) {
        "3.5" => Release::V3_5,
        "3.6" => Release::V3_6,
        "3.7" => Release::V3_7,
        other => {
            let other = cli::go::quote(other);
            return Err(Failure::bad_args(format!("--release is 3.5, 3.6 or 3.7, not {other}")));
        }
    };
    let (from, to) = (PathBuf::from(given.get(DATA_DIR)), PathBuf::from(given.get(TO)));
    let besides =
        "; if it is an earlier export, remove it: it lacks everything that the member has done since";
    refuse_taken(&to, besides)?;
    places::refuse_other(&from)?;
    session.notices.info(
        "exporting",
        &[("data-dir", from.display().to_string().into()), ("to", to.display().to_string().into())],
    );
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let rules = max_learners::rules(given);
    let refuse_again = || exported::refuse_again(&RealDisk, &from.join("member"));
    // Check this before opening the directory: after an earlier export the log may have been moved away, and
    // the error should name the export, not a missing log.
    refuse_again().map_err(Failure::error)?;
    let mut stopped = Stopped::open_with(&disk, &from, None, rules).map_err(Failure::error)?;
    // Check again now that the directory is locked: another export may have finished since the first check.
    refuse_again().map_err(Failure::error)?;
    max_learners::check(given, stopped.refused_learner)?;
    let (id, members) = (stopped.identity.member_id, &stopped.machine.members);
    if let Some(witness) = members.witness() {
        return Err(Failure::error(format!(
            "the cluster has a witness, {witness:x}, and etcd would take it for a member with data: remove it with \
             `mainstay ctl member remove {witness:x}` while the cluster runs, and export again"
        )));
    }
    let agreed = Agreed::of(members, id, &stopped.uncommitted, release, given.get(RELEASE))?;
    let (index, term) = (stopped.machine.applied_index, stopped.machine.applied_term);
    let promised = stopped.hard_state;
    let uncommitted = std::mem::take(&mut stopped.uncommitted);
    let member = NewMember {
        identity: Identity { member_id: id, cluster_id: stopped.identity.cluster_id },
        index: index.0,
        term: term.0,
        release: agreed.form,
        conf_state: etcd_database::membership(members).conf_state(),
        newest_term: promised.term.max(term).0,
        vote: if promised.term < term { 0 } else { promised.vote.0 },
        entries: uncommitted.iter().map(entry).collect(),
    };
    let (member_count, newest_term, vote) = (members.by_id.len(), member.newest_term, member.vote);
    let mut target = Target::begin(&to)?;
    let mut progress = Progress::of_bytes("exporting", None);
    let new = NewDataDir::begin(&RealDisk, target.making(), member).map_err(Failure::error)?;
    let values = stopped.values();
    let cluster_version = agreed.version.clone();
    let bytes = write(&mut stopped.machine, &values, new, agreed, &mut progress)?;
    place(&mut target, &from.join("member"), &to)?;
    target.finish()?;
    progress.finish();
    let HashedKv { hash, compact_revision, revision } =
        stopped.hash_kv(Revision(0)).map_err(|status| Failure::error(status.message))?;
    session.notices.info(
        "exported",
        &[
            ("member-id", format!("{id:x}").into()),
            ("cluster-id", format!("{:x}", stopped.identity.cluster_id).into()),
            ("members", member_count.into()),
            ("cluster-version", cluster_version.into()),
            ("index", index.0.into()),
            ("last-index", (index.0 + uncommitted.len() as u64).into()),
            ("term", newest_term.into()),
            ("vote", format!("{vote:x}").into()),
            ("revision", revision.0.into()),
            ("compact-revision", compact_revision.0.into()),
            ("hash-kv", hash.into()),
            ("database-bytes", bytes.into()),
        ],
    );
    Ok(())
}

/// Moves the new directory to its final name, after marking Mainstay's member as exported. A marked member
/// does not start, so the two directories can never both be started, even if this process is killed in
/// between. For the same reason, if the move fails, the mark is removed only after the new directory.
fn place(target: &mut Target, member_dir: &Path, to: &Path) -> Result<(), Failure> {
    let marked = exported::mark(&RealDisk, member_dir, to).map_err(Failure::error);
    let Err(failure) = marked.and_then(|()| target.place()) else { return Ok(()) };
    if target.is_in_place() {
        return Err(failure);
    }
    let mark = member_dir.join(exported::MARK_NAME);
    let undone = match target.remove() {
        Err(error) => Err(format!(
            "cannot remove {}: {error}: this member can be used again once that directory is gone, and then {}",
            target.making().display(),
            mark.display()
        )),
        Ok(()) => exported::unmark(&RealDisk, member_dir).map_err(|error| {
            format!("{error}: this member can be used again once that file is gone for good")
        }),
    };
    Err(match undone {
        Ok(()) => failure,
        Err(error) => Failure::error(format!("{}; and {error}", failure.text.unwrap_or_default())),
    })
}

/// Cluster version and downgrade that the members of a cluster have agreed on, as they are written to the
/// directory for etcd of a given release.
pub(crate) struct Agreed {
    /// Cluster version; empty if none is decided.
    pub version: String,
    /// Target version of the downgrade that is in progress; `None` without a downgrade.
    pub downgrade_target: Option<String>,
    /// Release that determines the format of the database, derived from the cluster version.
    pub form: Release,
}

impl Agreed {
    /// Returns what `members` have agreed on. The member `own` will run etcd of release `release`, which is
    /// called `named` in error messages. `uncommitted` are the last entries of its log, which are not known
    /// to be committed.
    ///
    /// # Errors
    ///
    /// Returns an error if etcd of that release would exit, now or once some of the uncommitted entries are
    /// committed: because the release is below the cluster version and no downgrade to it is in progress, or
    /// because a downgrade to another version is in progress.
    ///
    /// There is no error for the only member of a cluster: its cluster version becomes that of the release,
    /// because no other member depends on it. A member whose log has uncommitted entries does not count as
    /// the only member.
    fn of(
        members: &Members,
        own: u64,
        uncommitted: &[Entry],
        release: Release,
        named: &str,
    ) -> Result<Agreed, Failure> {
        let lowered = format!("{named}.0");
        // The uncommitted entries must be empty: if this member had the only vote, all its entries would be
        // committed, so an uncommitted entry shows that there are voters that this member does not know yet.
        if members.by_id.keys().eq([&own]) && members.voters() == [own] && uncommitted.is_empty() {
            return Ok(Agreed { version: lowered, downgrade_target: None, form: release });
        }
        let refused = |which: &str, version: &str, target: Option<&str>| {
            let under_way = target.map_or(String::new(), |target| format!(", and goes down to {target}"));
            Failure::error(format!(
                "the cluster {which} of version {version}{under_way}, as far as this member knows what is \
                 committed, and etcd {named} does not start in it. Start the member again, downgrade the \
                 cluster with `etcdctl downgrade enable {named}`, one version at a time, until `etcdctl \
                 endpoint status` shows that version for every member, and export again; or choose another \
                 --release"
            ))
        };
        let version = members.cluster_version.as_str();
        let downgrade_target = members.downgrade_target.as_deref();
        if !serves(release, version, downgrade_target) {
            return Err(refused("is", version, downgrade_target));
        }
        let (mut later, mut later_target) = (version.to_owned(), downgrade_target.map(str::to_owned));
        for entry in uncommitted.iter().filter(|entry| entry.kind == EntryKind::Normal) {
            // Skip an entry that cannot be decoded, since it cannot be a change of the cluster version.
            let Ok(request) = InternalRaftRequest::decode(entry.data.clone()) else { continue };
            if let Some(set) = request.cluster_version_set {
                later = set.ver;
            } else if let Some(set) = request.downgrade_info_set {
                later_target = set.enabled.then_some(set.ver);
            } else {
                continue;
            }
            if !serves(release, &later, later_target.as_deref()) {
                return Err(refused("may come to be", &later, later_target.as_deref()));
            }
        }
        let decided = Release::of_cluster_version(version);
        let form = decided.map_or(release, |decided| decided.min(release).max(Release::V3_5));
        let is_below = decided.is_some_and(|decided| release < decided);
        let version = if is_below { lowered } else { version.to_owned() };
        Ok(Agreed { version, downgrade_target: members.downgrade_target.clone(), form })
    }
}

/// Returns true if etcd of this release can run in a cluster with this version and downgrade target.
/// Otherwise etcd exits.
fn serves(release: Release, version: &str, downgrade_target: Option<&str>) -> bool {
    let is_below = Release::of_cluster_version(version).is_some_and(|decided| release < decided);
    let goes_to_release = downgrade_target.and_then(Release::of_cluster_version) == Some(release);
    // etcd 3.5 starts in a cluster with a downgrade in progress only if 3.5 is the target.
    let is_other = release < Release::V3_6 && downgrade_target.is_some() && !goes_to_release;
    !is_other && (!is_below || goes_to_release)
}

/// Converts an entry to the encoding of etcd's log. An entry that records the remaining times of leases is
/// converted to one that removes these records (COMPAT-175): if etcd applied the records, a renewal would
/// give the leases only the recorded time.
fn entry(entry: &Entry) -> api::raftpb::Entry {
    let kind = match entry.kind {
        EntryKind::Normal => api::raftpb::EntryType::EntryNormal,
        EntryKind::ConfChange => api::raftpb::EntryType::EntryConfChange,
    };
    api::raftpb::Entry {
        r#type: Some(kind.into()),
        term: Some(entry.term.0),
        index: Some(entry.index.0),
        data: Some(without_notes(entry).unwrap_or_else(|| entry.data.clone())),
    }
}

/// Returns the data of an entry that records remaining times of leases, changed to remove these records;
/// `None` for other entries.
fn without_notes(entry: &Entry) -> Option<Bytes> {
    if entry.kind != EntryKind::Normal {
        return None;
    }
    let mut request = InternalRaftRequest::decode(entry.data.clone()).ok()?;
    for lease in &mut request.lease_checkpoint.as_mut()?.checkpoints {
        lease.remaining_ttl = 0;
    }
    Some(request.encode_to_vec().into())
}

/// Writes the state of a state machine to etcd's database in the directory `new`, and finishes the directory.
/// Returns the size of the database in bytes.
pub(crate) fn write(
    machine: &mut Machine,
    values: &dyn Values,
    new: NewDataDir<'_>,
    agreed: Agreed,
    progress: &mut Progress,
) -> Result<u64, Failure> {
    let view = machine.store.publish();
    let mut database = EtcdDatabase::new(view, &machine.head(), agreed.form);
    database.membership.cluster_version = agreed.version;
    database.membership.downgrade_target = agreed.downgrade_target;
    let compacted = database.meta.compact_revision();
    database.meta = new.meta(compacted);
    let mut measuring = database.measure();
    let plan = loop {
        if let Some(plan) = measuring.step(&database, MEASURED_AT_ONCE).map_err(Failure::error)? {
            break plan;
        }
    };
    progress.set_total(plan.size_bytes());
    let mut writing = database.write(new.database(plan).map_err(Failure::error)?).map_err(Failure::error)?;
    let mut written = 0;
    while !writing.step(&database, values, WRITTEN_AT_ONCE).map_err(Failure::error)? {
        written += WRITTEN_AT_ONCE as u64;
        progress.at(written, "");
    }
    new.finish(writing.into_writer(), &database.membership).map_err(Failure::error)?;
    Ok(plan.size_bytes())
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn the_mark_stays_where_the_directory_for_etcd_does() {
        let dir = TempDir::new("export-not-removed");
        let (member, to) = (dir.join("m"), dir.join("etcd"));
        std::fs::create_dir_all(&member).expect("is made");
        let mut target = Target::begin(&to).expect("begins");
        // The final name is taken in the meantime, and the unfinished directory cannot be removed because it
        // is a file.
        std::fs::create_dir_all(to.join("other")).expect("is made");
        std::fs::remove_dir_all(target.making()).expect("is removed");
        std::fs::write(target.making(), "").expect("is written");
        let failure = place(&mut target, &member, &to).expect_err("cannot be placed");
        let text = failure.text.expect("says why");
        let removing = format!("cannot remove {}: ", target.making().display());
        assert!(text.starts_with("cannot rename ") && text.contains(&removing), "{text}");
        assert!(text.ends_with(&format!("and then {}", member.join("exported").display())), "{text}");
        assert!(member.join("exported").exists());
    }
}
