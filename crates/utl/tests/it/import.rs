//! Tests of `import` and `export`.

use interchange::DataDir;
use interchange::backend::{Backend, Change};
use numbers::{Index, LeaseId, Revision, Seconds, Term};
use storage::kv_hash::HashedKv;

use testkit::TempDir;

use crate::kit::{RELEASES, done, etcd_dir, everything, names, open, refused, text};

/// HashKV at the end of all golden directories: revision 40, compacted at 4.
const HASH: u32 = 1_556_182_464;

#[test]
fn a_member_goes_on_where_etcd_stopped() {
    for release in RELEASES {
        let dir = TempDir::new("import");
        let (from, to) = (etcd_dir(&dir, release), dir.join("m"));
        let before = everything(&from);
        let (index, last, term, members, leases) = {
            let source = DataDir::open(&disk::RealDisk, &from).expect("is sound");
            let mut leases = Vec::new();
            let mut walk = source.base.leases().expect("are there");
            while let Some(lease) = walk.step().expect("is sound") {
                leases.push((LeaseId(lease.id), Seconds(lease.ttl)));
            }
            let members = source.membership.clone();
            (source.end(), source.wal.last(), source.wal.hard_state.term, members, leases)
        };
        let told = done(&["import", "--data-dir", text(&from), "--to", text(&to)]);
        assert!(
            told.err.contains(&format!("\"revision\": 40, \"compact-revision\": 4, \"hash-kv\": {HASH}"))
        );
        assert_eq!(everything(&from), before, "{release}: what is read is not changed");
        let mut member = open(&to);
        assert_eq!(
            member.hash_kv(Revision(0)),
            Ok(HashedKv { hash: HASH, compact_revision: Revision(4), revision: Revision(40) }),
            "{release}"
        );
        assert_eq!(member.machine.applied_index, Index(index));
        assert_eq!((member.hard_state.term, member.hard_state.commit), (Term(term), Index(last)));
        assert_eq!(member.identity.member_id, members.members[0].id);
        assert_eq!(member.machine.members.by_id.len(), 1);
        let found: Vec<_> = member.machine.leases.iter().map(|(id, lease)| (id, lease.ttl)).collect();
        assert_eq!(found, leases);
        drop(member);
        // Export it back: the history equals that of etcd's own database and log.
        let back = dir.join("back");
        done(&["export", "--data-dir", text(&to), "--to", text(&back), "--release", "3.6"]);
        let again = DataDir::open(&disk::RealDisk, &back).expect("is sound");
        assert_eq!((again.base_index(), again.end()), (index, index));
        assert_eq!(again.wal.identity.member_id, members.members[0].id);
        assert_eq!(interchange::hash_kv(&again.base, Revision(0)).expect("can be hashed").hash, HASH);
        assert_eq!(again.meta.storage_version.as_deref(), Some("3.6.0"));
        let source = DataDir::open(&disk::RealDisk, &from).expect("is sound");
        let (is, was) = (history(&again.base), history(&source.base));
        assert_eq!(is[..was.len()], was[..], "{release}");
        let auth = |base: &Backend<_>| base.auth().expect("is there");
        assert_eq!(auth(&again.base), auth(&source.base), "{release}");
        assert_eq!(again.base.auth().expect("is there").users.len(), 2);
        for (path, mode, _) in everything(&back) {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, expected, "{}", path.display());
        }
    }
}

fn history<S: interchange::Source>(backend: &Backend<S>) -> Vec<String> {
    let (mut all, mut walk) = (Vec::new(), backend.history().expect("is there"));
    while let Some(Change { head, value }) = walk.step().expect("is sound") {
        all.push(format!("{head:?} {value:?}"));
    }
    all
}

#[test]
fn what_cannot_come_over_is_refused_and_leaves_nothing() {
    let dir = TempDir::new("refused");
    let (from, to) = (etcd_dir(&dir, "3.4"), dir.join("m"));
    let args = ["import", "--data-dir", text(&from), "--to", text(&to)];
    // A running etcd holds this lock.
    let db = from.join("member/snap/db");
    let lock = disk::Disk::lock(&disk::RealDisk, &db).expect("is free");
    let refusal = refused(&[&args[..], &["--without-users"]].concat(), 1);
    assert!(
        refusal.contains("locked by another process") && refusal.contains("stop etcd first"),
        "{refusal}"
    );
    drop(lock);
    std::fs::write(&to, b"something").expect("is written");
    assert!(refused(&args, 1).contains("already exists"));
    std::fs::remove_file(&to).expect("is removed");
    let nothing = dir.join("nothing");
    assert!(
        refused(&["import", "--data-dir", text(&nothing), "--to", text(&to)], 1).contains("does not exist")
    );
    assert!(
        refused(&["export", "--data-dir", text(&from), "--to", text(&to)], 1).contains("no data of a member")
    );
    assert!(refused(&["export", "--data-dir", text(&from)], 1).contains("required flag(s) \"to\" not set"));
    let args = ["export", "--data-dir", text(&from), "--to", text(&to), "--release", "3.4"];
    assert!(refused(&args, 128).contains("--release is 3.5, 3.6 or 3.7"));
    assert_eq!(names(&dir), ["3.4.etcd"]);
}

#[test]
fn a_log_apart_is_found() {
    let dir = TempDir::new("apart");
    let (from, to) = (etcd_dir(&dir, "3.6"), dir.join("m"));
    let wal = dir.join("wal");
    std::fs::rename(from.join("member/wal"), &wal).expect("is moved");
    let args = ["import", "--data-dir", text(&from), "--to", text(&to), "--without-users"];
    refused(&args, 1);
    done(&[&args[..], &["--wal-dir", text(&wal)]].concat());
    assert_eq!(
        open(&to).hash_kv(Revision(0)),
        Ok(HashedKv { hash: HASH, compact_revision: Revision(4), revision: Revision(40) })
    );
}

#[test]
fn a_directory_of_mainstay_needs_no_defragmentation() {
    let dir = TempDir::new("defrag");
    let (from, to) = (etcd_dir(&dir, "3.7"), dir.join("m"));
    done(&["import", "--data-dir", text(&from), "--to", text(&to), "--without-users"]);
    let told = done(&["defrag", "--data-dir", text(&to)]);
    assert!(told.err.contains("nothing to defragment"), "{}", told.err);
    assert!(told.err.contains("\"live-value-bytes\": 5057"), "{}", told.err);
    assert!(told.err.contains("finished defragmenting directory"), "{}", told.err);
}

#[test]
fn what_another_process_uses_is_left_alone() {
    let dir = TempDir::new("lock");
    let from = etcd_dir(&dir, "3.6");
    let lock = disk::Disk::lock(&disk::RealDisk, &from.join("member/snap/db")).expect("is free");
    let before = everything(&from);
    for command in [&["defrag"][..], &["migrate", "--target-version", "3.7"]] {
        let refusal = refused(&[command, &["--data-dir", text(&from), "--timeout", "100ms"]].concat(), 1);
        assert!(refusal.contains("timeout: ") && refusal.contains("in use by another process"), "{refusal}");
    }
    assert_eq!(everything(&from), before);
    drop(lock);
    done(&["defrag", "--data-dir", text(&from), "--timeout", "100ms"]);
}

#[test]
fn the_log_goes_to_a_directory_of_its_own() {
    let dir = TempDir::new("to-apart");
    let (from, to, wal) = (etcd_dir(&dir, "3.6"), dir.join("m"), dir.join("log"));
    let args = ["import", "--data-dir", text(&from), "--to", text(&to)];
    let apart = [&args[..], &["--to-wal-dir", text(&wal)]].concat();
    // The log's directory already exists, or is at a place that is not possible.
    std::fs::create_dir(&wal).expect("is made");
    assert!(refused(&apart, 1).contains("exists"));
    std::fs::remove_dir(&wal).expect("is removed");
    let below = to.join("log");
    let inside = [&args[..], &["--to-wal-dir", text(&below)]].concat();
    assert!(
        refused(&inside, 128)
            .contains("--to-wal-dir is inside --to: choose a directory below its \"member\"")
    );
    assert_eq!(names(&dir), ["3.6.etcd"]);
    done(&apart);
    assert!(!to.join("member/log").exists());
    assert!(std::fs::read_dir(&wal).expect("is there").next().is_some());
    let expected = Ok(HashedKv { hash: HASH, compact_revision: Revision(4), revision: Revision(40) });
    assert_eq!(open(&to).hash_kv(Revision(0)), expected, "the data directory notes where its log is");
    assert_eq!(names(&dir), ["3.6.etcd", "log", "m"]);
    let (to, below) = (dir.join("n"), dir.join("n/member/elsewhere"));
    done(&["import", "--data-dir", text(&from), "--to", text(&to), "--to-wal-dir", text(&below)]);
    assert_eq!(open(&to).hash_kv(Revision(0)), expected);
}
