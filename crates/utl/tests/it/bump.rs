//! The pair without key and value that `snapshot restore --bump-revision` leaves in etcd's database, which
//! HashKV always covers. It is preserved by every conversion, in both directions.
//!
//! The hashes are those returned by etcd 3.7.3 for directories restored with etcdutl 3.7.3.

use std::path::{Path, PathBuf};

use disk::RealDisk;
use interchange::DataDir;
use interchange::backend::{BackendLayout, BackendWriter, Change, ChangeHead, Meta, Release};
use interchange::snapshot::Digesting;
use numbers::{ChangeId, LeaseId, Revision};
use storage::kv_hash::HashedKv;
use testkit::TempDir;

use crate::kit::{done, open, text};
use crate::round_trip::{saved, saved_own};
use crate::takeover::start_with;

/// HashKV of the golden snapshot of 3.7, bumped by 1000.
const ONCE: HashedKv =
    HashedKv { hash: 1_006_600_392, compact_revision: Revision(1010), revision: Revision(1010) };
/// HashKV of a snapshot of that store, bumped by 1000 again.
const TWICE: HashedKv =
    HashedKv { hash: 901_612_521, compact_revision: Revision(2010), revision: Revision(2010) };
/// HashKV of an empty store, bumped by 1000.
const EMPTY: HashedKv =
    HashedKv { hash: 1_941_238_518, compact_revision: Revision(1000), revision: Revision(1000) };

const BUMP: [&str; 3] = ["--bump-revision", "1000", "--mark-compacted"];

fn restore(from: &Path, to: PathBuf, flags: &[&[&str]]) -> PathBuf {
    let args = ["snapshot", "restore", text(from), "--data-dir", text(&to)];
    done(&[&args, flags.concat().as_slice()].concat());
    to
}

/// Key, change, create revision, version and lease of a stored key.
type Row = (Vec<u8>, ChangeId, Revision, i64, LeaseId);

/// Returns a member's hash, and its keys in order.
fn held(data: &Path) -> (HashedKv, Vec<Row>) {
    let mut member = open(data);
    let hash = member.hash_kv(Revision(0)).expect("can be hashed");
    let snapshot = member.machine.store.snapshot();
    let row = |v: mvcc::Version<'_>| (v.key().to_vec(), v.id(), v.create_revision(), v.version(), v.lease());
    (hash, snapshot.histories().map(row).collect())
}

fn etcds_hash(dir: &Path) -> HashedKv {
    let made = DataDir::open(&RealDisk, dir).expect("is sound");
    let found = interchange::hash_kv(&made.base, Revision(0)).expect("can be hashed");
    HashedKv { hash: found.hash, compact_revision: found.compact_revision, revision: found.hash_revision }
}

#[test]
fn a_raised_revision_comes_over_by_every_way() {
    let dir = TempDir::new("bump-ways");
    let from = crate::kit::snapshot(&dir, "3.7");
    let plain = restore(&from, dir.join("plain"), &[]);
    let own = dir.join("own.db");
    std::fs::write(&own, saved_own(&mut open(&plain))).expect("is written");
    // Directories for etcd.
    let etcd = restore(&from, dir.join("etcd"), &[&BUMP, &["--format", "etcd"]]);
    let own_etcd = restore(&own, dir.join("own-etcd"), &[&BUMP, &["--format", "etcd"]]);
    assert_eq!((etcds_hash(&etcd), etcds_hash(&own_etcd)), (ONCE, ONCE));
    // Directories for Mainstay.
    let direct = restore(&from, dir.join("direct"), &[&BUMP]);
    let of_own = restore(&own, dir.join("of-own"), &[&BUMP]);
    let db = etcd.join("member/snap/db");
    let of_db = restore(&db, dir.join("of-db"), &[&["--skip-hash-check"]]);
    let imported = dir.join("imported");
    done(&["import", "--data-dir", text(&etcd), "--to", text(&imported)]);
    let again = dir.join("again.db");
    std::fs::write(&again, saved(&mut open(&direct))).expect("is written");
    let of_saved = restore(&again, dir.join("of-saved"), &[]);
    let own_again = dir.join("own-again.db");
    std::fs::write(&own_again, saved_own(&mut open(&direct))).expect("is written");
    let of_saved_own = restore(&own_again, dir.join("of-saved-own"), &[]);
    let (said, outcome) = start_with(&own_etcd, &[], false);
    assert_eq!(outcome, Ok(()), "{said}");
    let expected = held(&direct);
    assert_eq!(expected.0, ONCE);
    assert_eq!(expected.1[0].1, ChangeId::first_of(Revision(1010)), "the pair");
    for member in [&direct, &of_own, &of_db, &imported, &of_saved, &of_saved_own, &own_etcd] {
        assert_eq!(held(member), expected, "{}", member.display());
        let back = member.with_extension("back");
        done(&["export", "--data-dir", text(member), "--to", text(&back), "--release", "3.7"]);
        assert_eq!(etcds_hash(&back), ONCE, "{}", member.display());
        assert!(done(&["hashkv", text(&back.join("member/snap/db"))]).out.contains("1006600392"));
    }
    // The second pair replaces the first one.
    let mut twice = Vec::new();
    for (name, file) in [("etcd", &again), ("own", &own_again)] {
        let to = restore(file, dir.join(format!("twice-{name}")), &[&BUMP]);
        twice.push(held(&to));
        let to = restore(file, dir.join(format!("twice-{name}-etcd")), &[&BUMP, &["--format", "etcd"]]);
        assert_eq!(etcds_hash(&to), TWICE, "{name}");
    }
    assert_eq!(twice[0], twice[1]);
    let (hash, rows) = &twice[0];
    assert_eq!((*hash, rows.iter().filter(|row| row.0.is_empty()).count()), (TWICE, 1));
}

/// Writes a snapshot of these changes, none of which has a value.
pub fn database(path: &Path, changes: &[ChangeHead<'_>]) {
    let (release, meta) = (Release::V3_6, Meta::default());
    let mut sizes = BackendLayout::new(release);
    sizes.meta(&meta).expect("fits");
    changes.iter().for_each(|head| sizes.change(head, 0).expect("fits"));
    let out = Digesting::new(std::fs::File::create(path).expect("is made"));
    let mut writer = BackendWriter::new(out, sizes.finish().expect("fits"), release).expect("begins");
    writer.meta(&meta).expect("is written");
    changes.iter().for_each(|&head| writer.change(&Change { head, value: b"" }).expect("is written"));
    writer.finish().and_then(|out| Ok(out.finish()?)).expect("is written");
}

#[test]
fn an_empty_store_is_raised_from_nothing() {
    let dir = TempDir::new("bump-empty");
    let from = dir.join("s.db");
    database(&from, &[]);
    let direct = restore(&from, dir.join("direct"), &[&BUMP]);
    assert_eq!(held(&direct).0, EMPTY);
    assert_eq!(etcds_hash(&restore(&from, dir.join("etcd"), &[&BUMP, &["--format", "etcd"]])), EMPTY);
}

/// etcdutl never leaves such a database, because it marks the new revision as compacted.
#[test]
fn a_revision_raised_twice_without_compaction_comes_over() {
    let dir = TempDir::new("bump-twice");
    let (from, to) = (dir.join("s.db"), dir.join("m"));
    database(&from, &[ChangeHead::bump(Revision(20)), ChangeHead::bump(Revision(30))]);
    restore(&from, to.clone(), &[]);
    let (backend, _) =
        interchange::snapshot::open(std::fs::File::open(&from).expect("is there")).expect("is sound");
    let mut member = open(&to);
    for revision in [1, 20, 25, 30] {
        let expected = interchange::hash_kv(&backend, Revision(revision)).expect("can be hashed").hash;
        let found = member.hash_kv(Revision(revision)).map(|found| found.hash);
        assert_eq!(found, Ok(expected), "{revision}");
    }
}
