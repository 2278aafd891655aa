//! Converts from etcd to Mainstay and back, through files.

use std::sync::Arc;

use disk::{Disk, RealDisk};
use interchange::backend::{BackendWriter, Release};
use interchange::{DataDir, snapshot};
use machine::snapshot::SnapshotWriter;
use numbers::Revision;
use storage::etcd_database::EtcdDatabase;
use storage::kv_hash::HashedKv;
use storage::stopped::Stopped;

use testkit::TempDir;

use crate::kit::{HASHES, RELEASES, done, open, text};

/// Returns the snapshot that a running member would send of this state.
pub fn saved(member: &mut Stopped) -> Vec<u8> {
    let head = member.machine.head();
    let view = member.machine.store.publish();
    let database = EtcdDatabase::new(view, &head, Release::V3_6);
    let mut measuring = database.measure();
    let plan = loop {
        // One version per step: the caller may interrupt the passes at any point.
        if let Some(plan) = measuring.step(&database, 1).expect("fits") {
            break plan;
        }
    };
    let out = snapshot::Digesting::new(Vec::new());
    let writer = BackendWriter::new(out, plan, Release::V3_6).expect("begins");
    let mut writing = database.write(writer).expect("begins");
    let values = member.values();
    while !writing.step(&database, &values, 1).expect("is written") {}
    writing.into_writer().finish().expect("is what was measured").finish().expect("a vector takes all")
}

/// Returns the snapshot in the format that early versions sent.
pub fn saved_own(member: &mut Stopped) -> Vec<u8> {
    let head = member.machine.head();
    let mut writer = SnapshotWriter::new(member.machine.store.publish(), head);
    let values = member.values();
    let mut bytes = Vec::new();
    while let Some(chunk) = writer.next_chunk(&values).expect("can be read") {
        bytes.extend_from_slice(&chunk);
    }
    let mut out = Vec::new();
    let mut digesting = snapshot::Digesting::new(&mut out);
    std::io::Write::write_all(&mut digesting, &bytes).expect("a vector takes all");
    digesting.finish().expect("a vector takes all");
    out
}

fn history(bytes: &[u8]) -> Vec<String> {
    let (backend, _) = snapshot::open(bytes).expect("is sound");
    let (mut all, mut walk) = (Vec::new(), backend.history().expect("is there"));
    while let Some(change) = walk.step().expect("is sound") {
        all.push(format!("{change:?}"));
    }
    let mut leases = backend.leases().expect("are there");
    while let Some(lease) = leases.step().expect("is sound") {
        all.push(format!("{lease:?}"));
    }
    all.push(format!("{:?}", backend.alarms().expect("are there")));
    all
}

#[test]
fn a_snapshot_comes_back_as_it_went() {
    for release in RELEASES {
        let dir = TempDir::new("trip");
        let (from, to) = (crate::kit::snapshot(&dir, release), dir.join("m"));
        done(&["snapshot", "restore", text(&from), "--data-dir", text(&to), "--without-users"]);
        let mut member = open(&to);
        let back = saved(&mut member);
        let own = saved_own(&mut member);
        drop(member);
        assert_eq!(back.len() % 512, 32);
        let original = crate::kit::golden(&format!("{release}-snapshot"));
        assert_eq!(history(&back), history(&original), "{release}");
        let (backend, parts) = snapshot::open(back.clone()).expect("is sound");
        assert!(parts.has_digest);
        for (revision, hash) in (5..).zip(HASHES) {
            let found = interchange::hash_kv(&backend, Revision(revision)).expect("can be hashed");
            assert_eq!((found.hash, found.compact_revision), (hash, Revision(4)), "{release} at {revision}");
        }
        // The directory has no cluster version, so that any etcd may serve it.
        assert_eq!(backend.membership().expect("is there").cluster_version, "");
        assert_eq!(backend.meta().expect("is there").storage_version.as_deref(), Some("3.6.0"));
        // Convert again, from both kinds of files to both kinds of directories.
        for (kind, bytes) in [("new", &back), ("own", &own)] {
            let file = dir.join(format!("{kind}.db"));
            std::fs::write(&file, bytes).expect("is written");
            let again = dir.join(format!("{kind}-mainstay"));
            done(&["snapshot", "restore", text(&file), "--data-dir", text(&again)]);
            assert_eq!(
                open(&again).hash_kv(Revision(0)),
                Ok(HashedKv { hash: HASHES[5], compact_revision: Revision(4), revision: Revision(10) }),
                "{release} {kind}"
            );
            let again = dir.join(format!("{kind}-etcd"));
            done(&["snapshot", "restore", text(&file), "--data-dir", text(&again), "--format", "etcd"]);
            let made = DataDir::open(&RealDisk, &again).expect("is sound");
            assert_eq!(interchange::hash_kv(&made.base, Revision(0)).expect("can be hashed").hash, HASHES[5]);
            assert!(!again.join("between").exists());
            let bumped = dir.join(format!("{kind}-bumped"));
            done(&[
                "snapshot",
                "restore",
                text(&file),
                "--data-dir",
                text(&bumped),
                "--bump-revision",
                "90",
                "--mark-compacted",
            ]);
            let HashedKv { compact_revision, revision, .. } =
                open(&bumped).hash_kv(Revision(0)).expect("can be hashed");
            assert_eq!((compact_revision, revision), (Revision(100), Revision(100)), "{release} {kind}");
        }
    }
}

#[test]
fn a_bumped_snapshot_of_etcdutl_is_taken() {
    let dir = TempDir::new("bumped");
    let (from, made, to) = (crate::kit::snapshot(&dir, "3.7"), dir.join("etcd"), dir.join("m"));
    let bump = ["--bump-revision", "90", "--mark-compacted"];
    let restore = ["snapshot", "restore", text(&from), "--data-dir", text(&made), "--format", "etcd"];
    done(&[&restore[..], &bump].concat());
    let db = made.join("member/snap/db");
    let restore = ["snapshot", "restore", text(&db), "--data-dir", text(&to), "--skip-hash-check"];
    done(&[&restore[..], &["--without-users"]].concat());
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut member = Stopped::open(&disk, &to).expect("is a member");
    let HashedKv { compact_revision, revision, .. } = member.hash_kv(Revision(0)).expect("can be hashed");
    assert_eq!((compact_revision, revision), (Revision(100), Revision(100)));
}
