//! Tests of `snapshot restore` into a data directory of Mainstay.

use std::collections::BTreeMap;
use std::path::Path;

use numbers::{Index, LeaseId, MemberId, Revision, Term};
use storage::kv_hash::HashedKv;
use testkit::TempDir;

use crate::kit::{HASHES, RELEASES, done, etcd_dir, everything, names, open, refused, snapshot, text, utl};

/// COMPAT-42: etcdutl changes both files, and cannot restore the snapshot afterwards.
#[test]
fn hashkv_and_a_migration_that_changes_nothing_leave_the_file_as_it_was() {
    for release in RELEASES {
        let dir = TempDir::in_memory("only-read");
        let file = snapshot(&dir, release);
        let before = std::fs::read(&file).expect("is there");
        done(&["hashkv", text(&file)]);
        assert!(std::fs::read(&file).expect("is there") == before, "{release}: hashkv");
        done(&["snapshot", "restore", text(&file), "--data-dir", text(&dir.join("m"))]);
        let data_dir = etcd_dir(&dir, release);
        let database = data_dir.join("member/snap/db");
        let before = std::fs::read(&database).expect("is there");
        // 3.4 has no version that could be changed, and 3.8 does not exist yet.
        let own = if release == "3.4" { ("3.6", 1) } else { (release, 0) };
        for (target, code) in [("3.8", 1), own] {
            let told = utl(&["migrate", "--data-dir", text(&data_dir), "--target-version", target]);
            assert_eq!(told.code, code, "{release} to {target}: {told:?}");
            assert!(std::fs::read(&database).expect("is there") == before, "{release}: migrate to {target}");
        }
    }
}

#[test]
fn etcds_snapshots_become_members() {
    for release in RELEASES {
        let dir = TempDir::new("restore");
        let (from, to) = (snapshot(&dir, release), dir.join("m"));
        let told = done(&["snapshot", "restore", text(&from), "--data-dir", text(&to)]);
        assert!(
            told.out.is_empty() && told.err.contains("\"revision\": 10, \"compact-revision\": 4"),
            "{told:?}"
        );
        let added = concat!(
            "info\tadded member\t{\"cluster-id\": \"cdf818194e3a8c32\", \"local-member-id\": \"0\", ",
            "\"added-peer-id\": \"8e9e05c52164694d\", \"added-peer-peer-urls\": [\"http://localhost:2380\"], ",
            "\"added-peer-is-learner\": false}"
        );
        assert!(told.err.contains(added), "{told:?}");
        let mut member = open(&to);
        for (revision, hash) in (5..).zip(HASHES) {
            assert_eq!(
                member.hash_kv(Revision(revision)),
                Ok(HashedKv { hash, compact_revision: Revision(4), revision: Revision(revision) }),
                "{release}"
            );
        }
        assert_eq!(
            member.hash_kv(Revision(0)),
            Ok(HashedKv { hash: HASHES[5], compact_revision: Revision(4), revision: Revision(10) })
        );
        assert!(member.hash_kv(Revision(3)).is_err() && member.hash_kv(Revision(11)).is_err());
        // The ids that etcd computes from the default options.
        let identity = &member.identity;
        assert_eq!((identity.member_id, identity.cluster_id), (0x8e9e_05c5_2164_694d, 0xcdf8_1819_4e3a_8c32));
        let state = &member.machine;
        assert_eq!((state.applied_index, state.applied_term), (Index(1), Term(1)));
        let hard_state = member.hard_state;
        assert_eq!(
            (hard_state.term, hard_state.vote, hard_state.commit),
            (Term(1), MemberId(identity.member_id), Index(1))
        );
        let only: Vec<_> = state.members.by_id.values().collect();
        assert_eq!(only.len(), 1);
        assert_eq!((only[0].name.as_str(), only[0].client_urls.len()), ("default", 0));
        assert_eq!(only[0].peer_urls, ["http://localhost:2380"]);
        let version = format!("{release}.0");
        assert_eq!(state.members.cluster_version, version);
        let leases: Vec<_> = state.leases.iter().collect();
        assert_eq!(leases.len(), 1);
        assert!(state.state_hash().is_some());
        let users: Vec<_> = state.auth.users().map(|user| user.name.clone()).collect();
        assert_eq!((users.len(), state.auth.roles().count()), (2, 1), "{users:?}");
        drop(member);
        for (path, mode, _) in everything(&to) {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, expected, "{}", path.display());
        }
    }
}

#[test]
fn a_bumped_revision_is_the_compact_revision() {
    let dir = TempDir::new("bump");
    let (from, to) = (snapshot(&dir, "3.6"), dir.join("m"));
    let args = ["snapshot", "restore", text(&from), "--data-dir", text(&to), "--without-users"];
    done(&[&args[..], &["--bump-revision", "1000", "--mark-compacted"]].concat());
    let mut member = open(&to);
    let HashedKv { compact_revision, revision, .. } = member.hash_kv(Revision(0)).expect("can be hashed");
    assert_eq!((compact_revision, revision), (Revision(1010), Revision(1010)));
    assert!(member.hash_kv(Revision(1009)).is_err(), "everything before counts as compacted");
    let snapshot = member.machine.store.snapshot();
    let live: Vec<_> = [b"a", b"c", b"d", b"e"]
        .iter()
        .map(|key| snapshot.get(*key, Revision::CURRENT).expect("can be read").map(|version| version.main()))
        .collect();
    assert!(live.iter().all(|version| version.is_some_and(|main| main <= Revision(10))), "{live:?}");
    let too_far = dir.join("n");
    let refusal = refused(
        &[
            &args[..4],
            &[
                text(&too_far),
                "--without-users",
                "--mark-compacted",
                "--bump-revision",
                "9223372036854775807",
            ],
        ]
        .concat(),
        1,
    );
    assert!(refusal.contains("revision 10 cannot be raised by 9223372036854775807"), "{refusal}");
}

#[test]
fn members_of_a_cluster_begin_with_the_same() {
    let dir = TempDir::new("cluster");
    let from = snapshot(&dir, "3.7");
    let cluster = "m1=http://127.0.0.1:1,m2=http://127.0.0.1:2,m3=http://127.0.0.1:3";
    let mut found = BTreeMap::new();
    for n in ["1", "2", "3"] {
        let (to, url) = (dir.join(n), format!("http://127.0.0.1:{n}"));
        let name = format!("m{n}");
        done(&[
            "snapshot",
            "restore",
            text(&from),
            "--data-dir",
            text(&to),
            "--without-users",
            "--name",
            &name,
            "--initial-cluster",
            cluster,
            "--initial-advertise-peer-urls",
            &url,
            "--initial-cluster-token",
            "t",
        ]);
        let mut member = open(&to);
        assert_eq!(
            member.hash_kv(Revision(0)),
            Ok(HashedKv { hash: HASHES[5], compact_revision: Revision(4), revision: Revision(10) })
        );
        assert_eq!((member.machine.applied_index, member.hard_state.commit), (Index(3), Index(3)));
        let own = &member.machine.members.by_id[&member.identity.member_id];
        assert_eq!((own.name.as_str(), own.peer_urls.as_slice()), (name.as_str(), [url].as_slice()));
        let shared = (member.identity.cluster_id, member.machine.state_hash(), member.hard_state.vote.0);
        found.insert(member.identity.member_id, shared);
    }
    assert_eq!(found.len(), 3, "each has an id of its own");
    let all: Vec<_> = found.values().collect();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    assert!(found.keys().min() == Some(&all[0].2), "the first of them has the vote");
}

#[test]
fn what_does_not_fit_together_is_refused_and_leaves_nothing() {
    let dir = TempDir::new("refused");
    let (from, to) = (snapshot(&dir, "3.7"), dir.join("m"));
    let args = ["snapshot", "restore", text(&from), "--data-dir", text(&to)];
    for (more, expected) in [
        (&["--format", "other"][..], "--format is mainstay or etcd, not \"other\""),
        (&["--format", "etcd", "--without-users"], "--without-users requires --format mainstay"),
    ] {
        let refusal = refused(&[&args[..], more].concat(), 128);
        assert!(refusal.contains(expected), "{refusal}");
    }
    assert_eq!(names(&dir), ["3.7.db"]);
    // The target may be an empty directory with the remains of a killed attempt. The directory itself is
    // kept, because it may be a mount point.
    std::fs::create_dir_all(to.join("unfinished/member/log")).expect("is made");
    mark(&to.join("unfinished"));
    let inode =
        |path: &std::path::Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().expect("is there"));
    let was = inode(&to);
    done(&[&args[..], &["--without-users"]].concat());
    assert_eq!(inode(&to), was);
    assert_eq!(std::fs::read_dir(&to).expect("is there").count(), 1);
    open(&to);
    let refusal = refused(&[&args[..], &["--without-users"]].concat(), 1);
    assert_eq!(refusal, format!("data-dir \"{}\" not empty or could not be read", text(&to)));
}

#[test]
fn help_has_an_example_for_every_command() {
    for command in ["snapshot status", "snapshot restore", "hashkv", "defrag", "migrate", "import", "export"]
    {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let told = utl(&words);
        assert_eq!(told.code, 0);
        assert!(told.out.contains(&format!("Examples:\n  etcdutl {command}")), "{}", told.out);
    }
    utl::PROGRAM.assert_sound();
}

fn set_mode(path: &Path, mode: u32) {
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("can be set");
}

/// Makes a directory look like the remains of a killed attempt of this user.
fn mark(dir: &Path) {
    std::fs::write(dir.join("unfinished-by-mainstay"), "").expect("is written");
    set_mode(dir, 0o700);
}

#[test]
fn only_what_an_attempt_of_our_own_left_is_cleared() {
    let dir = TempDir::new("planted");
    let from = snapshot(&dir, "3.6");
    let (to, unfinished, precious) = (dir.join("m"), dir.join("m.unfinished"), dir.join("precious"));
    std::fs::create_dir(&precious).expect("is made");
    std::fs::write(precious.join("letter"), "dear").expect("is written");
    let letter = || std::fs::read_to_string(precious.join("letter")).expect("is still there");
    let args = ["snapshot", "restore", text(&from), "--data-dir", text(&to), "--without-users"];
    let stays = |what: &str| {
        let refusal = refused(&args, 1);
        assert!(refusal.contains("was not created by this program for this user"), "{what}: {refusal}");
        assert_eq!(letter(), "dear", "{what}");
        assert!(!to.exists(), "{what}");
    };
    // A symbolic link to a directory, with and without the mark.
    std::os::unix::fs::symlink(&precious, &unfinished).expect("is made");
    stays("a link");
    mark(&precious);
    stays("a link to what is marked");
    std::fs::remove_file(precious.join("unfinished-by-mainstay")).expect("is removed");
    std::fs::remove_file(&unfinished).expect("is removed");
    // A directory with this name that a user made.
    std::fs::rename(&precious, &unfinished).expect("is moved");
    set_mode(&unfinished, 0o700);
    let refusal = refused(&args, 1);
    assert!(refusal.contains("was not created by this program"), "{refusal}");
    assert!(unfinished.join("letter").exists());
    // A directory that other users may write to, although it has the mark.
    mark(&unfinished);
    set_mode(&unfinished, 0o777);
    let refusal = refused(&args, 1);
    assert!(refusal.contains("was not created by this program"), "{refusal}");
    assert!(unfinished.join("letter").exists());
    set_mode(&unfinished, 0o700);
    done(&args);
    assert_eq!(names(&dir), ["3.6.db", "m"]);
    assert_eq!(std::fs::read_dir(&to).expect("is there").count(), 1, "the mark is gone");
    open(&to);
}

#[test]
fn a_log_apart_comes_to_be_with_its_data_directory_or_not_at_all() {
    let dir = TempDir::new("wal-dir");
    let (from, to) = (snapshot(&dir, "3.6"), dir.join("m"));
    let args = ["snapshot", "restore", text(&from), "--format", "etcd", "--data-dir", text(&to), "--wal-dir"];
    fn with<'a>(args: &[&'a str], wal: &'a Path) -> Vec<&'a str> {
        [args, &[text(wal)]].concat()
    }
    for (wal, expected) in [
        (to.join("wal"), "choose a directory below its \"member\""),
        (to.clone(), "is inside"),
        (dir.join(""), "--data-dir is inside --wal-dir"),
        (to.join("member/../wal"), "must not contain \"..\""),
    ] {
        let refusal = utl(&with(&args, &wal)).err;
        assert!(refusal.contains(expected) || refusal.contains("exists"), "{}: {refusal}", wal.display());
        assert_eq!(names(&dir), ["3.6.db"], "{}: nothing is left", wal.display());
    }
    for wal in [to.join("member/log"), dir.join("wal")] {
        done(&with(&args, &wal));
        let opened = interchange::DataDir::open_with(&disk::RealDisk, &to, &wal).expect("is sound");
        assert_eq!(opened.meta.storage_version.as_deref(), Some("3.6.0"));
        drop(opened);
        std::fs::remove_dir_all(&to).expect("is removed");
    }
    assert_eq!(names(&dir), ["3.6.db", "wal"]);
}

#[test]
fn a_key_whose_lease_does_not_exist_is_named_and_stays() {
    let dir = TempDir::new("dangling");
    let (path, to) = (dir.join("s.db"), dir.join("m"));
    let release = interchange::backend::Release::V3_6;
    let meta = interchange::backend::Meta::default();
    let mut sizes = interchange::backend::BackendLayout::new(release);
    let change = |main: i64, key: &'static str, lease: i64| interchange::backend::ChangeHead {
        revision: interchange::backend::StoredChangeId { main: Revision(main), sub: 0 },
        is_tombstone: false,
        key: key.as_bytes(),
        create_revision: Revision(main),
        mod_revision: Revision(main),
        version: 1,
        lease: LeaseId(lease),
    };
    let all = [change(2, "kept", 0x77), change(3, "overwritten", 0x78), change(4, "free", 0)];
    let overwriting = interchange::backend::ChangeHead {
        create_revision: Revision(3),
        version: 2,
        ..change(5, "overwritten", 0)
    };
    sizes.meta(&meta).expect("fits");
    for head in all.iter().chain([&overwriting]) {
        sizes.change(head, 1).expect("fits");
    }
    let file = std::fs::File::create(&path).expect("is made");
    let out = interchange::snapshot::Digesting::new(file);
    let mut writer = interchange::backend::BackendWriter::new(out, sizes.finish().expect("fits"), release)
        .expect("begins");
    writer.meta(&meta).expect("is written");
    for head in all.into_iter().chain([overwriting]) {
        writer.change(&interchange::backend::Change { head, value: b"x" }).expect("is written");
    }
    writer.finish().and_then(|out| Ok(out.finish()?)).expect("is written");
    let told = done(&["snapshot", "restore", text(&path), "--data-dir", text(&to)]);
    let said = "the lease of a key does not exist";
    assert_eq!(told.err.matches(said).count(), 1, "{}", told.err);
    let line = told.err.lines().find(|line| line.contains(said)).expect("is said");
    assert!(line.contains("kept") && line.contains("\"lease\": \"77\""), "{line}");
    let mut member = open(&to);
    let (backend, _) =
        interchange::snapshot::open(std::fs::File::open(&path).expect("is there")).expect("is sound");
    let expected = interchange::hash_kv(&backend, Revision(0)).expect("can be hashed").hash;
    assert_eq!(member.hash_kv(Revision(0)).map(|found| found.hash), Ok(expected));
    assert!(member.machine.store.snapshot().get(b"kept", Revision::CURRENT).expect("can be read").is_some());
}

#[test]
fn a_database_that_is_migrated_keeps_its_owner() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = TempDir::new("owner");
    let from = etcd_dir(&dir, "3.6");
    let db = from.join("member/snap/db");
    set_mode(&db, 0o640);
    // Only root can change the owner of a file.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if is_root {
        std::os::unix::fs::chown(&db, Some(1234), Some(4321)).expect("can be changed");
    }
    let before = std::fs::metadata(&db).expect("is there");
    done(&["migrate", "--data-dir", text(&from), "--target-version", "3.7"]);
    let after = std::fs::metadata(&db).expect("is there");
    assert_ne!(before.ino(), after.ino(), "it was written anew");
    let of = |file: &std::fs::Metadata| (file.uid(), file.gid(), file.mode());
    assert_eq!(of(&after), of(&before));
}
