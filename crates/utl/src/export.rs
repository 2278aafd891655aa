//! `export`: a data directory for etcd of one of Mainstay.

use std::path::PathBuf;
use std::sync::Arc;

use cli::{Command, Failure, Flag, Progress};
use disk::{Disk, RealDisk};
use interchange::backend::Release;
use interchange::wal::Identity;
use interchange::{NewDataDir, NewMember};
use machine::{Machine, Values};
use numbers::Revision;
use storage::etcd_database::{self, EtcdDatabase};
use storage::kv_hash::HashedKv;
use storage::stopped::Stopped;

use crate::Session;
use crate::commands::Run;
use crate::commands::required;
use crate::target::{Target, is_taken};

const DATA_DIR: Flag<String> = Flag::text("data-dir", "", "Required. Path to the data directory, not in use");
const RELEASE: Flag<String> =
    Flag::text("release", "3.7", "Which etcd will serve the output (3.5, 3.6, 3.7)");
const TO: Flag<String> =
    Flag::text("to", "", "Required. Path to the output data directory, which must not exist or be empty");

pub(crate) const EXPORT: Command<Run> = Command {
    name: "export",
    usage: "export --data-dir {Mainstay data dir} --to {output dir} [options]",
    about: "Makes a data directory for etcd 3.5 to 3.7 of one of Mainstay, with the same member and cluster",
    long: "Makes a data directory for etcd 3.5 to 3.7 of that of a stopped member, which has to be the only one with a vote.

Of a cluster with several members, save a snapshot instead (etcdctl snapshot save) and restore it for each new member
(etcdutl snapshot restore --format etcd).
",
    example: "  etcdutl export --data-dir default.mainstay --to default.etcd && etcd --data-dir default.etcd",
    flags: &[
        DATA_DIR.row(),
        RELEASE.row(),
        TO.row(),
    ],
    run: Some(Run(run)),
    ..Command::EMPTY
};

/// Versions measured, and bytes written, between two looks at the progress.
const MEASURED_AT_ONCE: usize = 16 << 10;
const WRITTEN_AT_ONCE: usize = 1 << 20;

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
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
    if is_taken(&to).unwrap_or(true) {
        return Err(Failure::error(format!("{} is there already, and not empty", to.display())));
    }
    session.notices.info(
        "exporting",
        &[("data-dir", from.display().to_string().into()), ("to", to.display().to_string().into())],
    );
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut stopped = Stopped::open(&disk, &from).map_err(Failure::error)?;
    let (id, members) = (stopped.identity.member_id, &stopped.machine.members);
    if members.voters() != [id] || !members.learners().is_empty() {
        return Err(Failure::error(format!(
            "member {id:x} is one of {} of its cluster, and may not know of all that was acknowledged: save a snapshot \
             of the running cluster (etcdctl snapshot save), and restore it for each member of the new one (etcdutl \
             snapshot restore --format etcd)",
            members.by_id.len()
        )));
    }
    let (index, term) = (stopped.machine.applied_index, stopped.machine.applied_term);
    let member = NewMember {
        identity: Identity { member_id: id, cluster_id: stopped.identity.cluster_id },
        index: index.0,
        term: term.0,
        release,
        conf_state: etcd_database::membership(members).conf_state(),
        vote: id,
    };
    let target = Target::begin(&to)?;
    let mut progress = Progress::of_bytes("exporting", None);
    let new = NewDataDir::begin(&RealDisk, target.making(), member).map_err(Failure::error)?;
    let values = stopped.values();
    let version = format!("{}.0", given.get(RELEASE));
    let bytes = write(&mut stopped.machine, &values, new, release, &version, &mut progress)?;
    target.finish()?;
    progress.finish();
    let HashedKv { hash, compact_revision, revision } =
        stopped.hash_kv(Revision(0)).map_err(|status| Failure::error(status.message))?;
    session.notices.info(
        "exported",
        &[
            ("member-id", format!("{id:x}").into()),
            ("cluster-id", format!("{:x}", stopped.identity.cluster_id).into()),
            ("index", index.0.into()),
            ("revision", revision.0.into()),
            ("compact-revision", compact_revision.0.into()),
            ("hash-kv", hash.into()),
            ("database-bytes", bytes.into()),
        ],
    );
    Ok(())
}

/// Writes a machine's state and finishes the directory; gives the bytes of the database.
pub(crate) fn write(
    machine: &mut Machine,
    values: &dyn Values,
    new: NewDataDir<'_>,
    release: Release,
    cluster_version: &str,
    progress: &mut Progress,
) -> Result<u64, Failure> {
    let view = machine.store.publish();
    let mut database = EtcdDatabase::new(view, &machine.head(), release);
    database.membership.cluster_version = cluster_version.to_owned();
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
