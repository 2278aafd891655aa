//! Commands whose arguments name the wrong place.

use testkit::TempDir;

use crate::kit::{done, etcd_dir, golden, refused, snapshot, text};

#[test]
fn a_command_that_is_pointed_at_another_place_says_what_is_there_and_what_to_do() {
    let dir = TempDir::in_memory("places");
    let (from, data, to) = (snapshot(&dir, "3.7"), dir.join("m"), dir.join("to"));
    done(&["snapshot", "restore", text(&from), "--data-dir", text(&data)]);
    let etcds = etcd_dir(&dir, "3.6");
    let (member, snap, db) = (data.join("member"), data.join("member/snap"), data.join("member/snap/db"));
    let (data, member, snap, db, to) = (text(&data), text(&member), text(&snap), text(&db), text(&to));
    let (missing, etcds_member) = (format!("{data}-missing"), format!("{}/member", text(&etcds)));
    let (below, beside) =
        (format!("{snap}/x"), "is a file that keeps etcd from starting on a directory of Mainstay");
    let not_data = "is a file: name the --data-dir of a member";
    let part = format!("is only a part of a data directory: give the whole directory, --data-dir {data}");
    let etcds_part =
        format!("is only a part of a data directory: give the whole directory, --data-dir {}", text(&etcds));
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["import", "--data-dir", data, "--to", to],
            &["holds a member of Mainstay", "Start `mainstay` on it as it is", "utl export --data-dir"],
        ),
        (&["import", "--data-dir", snap, "--to", to], &[not_data]),
        (&["import", "--data-dir", &missing, "--to", to], &["does not exist"]),
        (&["import", "--data-dir", &etcds_member, "--to", to], &[&etcds_part]),
        (&["import", "--data-dir", text(&etcds), "--to", &below], &["cannot look into", &below]),
        (&["import", "--data-dir", text(&etcds), "--to", snap], &["already exists"]),
        (&["export", "--data-dir", member, "--to", to], &[&part]),
        (&["export", "--data-dir", snap, "--to", to], &[not_data]),
        (&["export", "--data-dir", data, "--to", &below], &["cannot look into", &below]),
        (&["drop-etcd", "--data-dir", snap], &[not_data]),
        (&["drop-etcd", "--data-dir", member], &[&part]),
        (
            &["migrate", "--data-dir", data, "--target-version", "3.6"],
            &["holds a member of Mainstay", "utl export --release"],
        ),
        (&["hashkv", db], &["not a directory", beside, "etcdctl snapshot save", "utl export --data-dir"]),
        (&["hashkv", snap], &["not a database", beside]),
        (&["hashkv", data], &["is a directory", "snapshot save"]),
        (&["snapshot", "status", db], &["not a directory", beside]),
        (&["snapshot", "restore", db, "--data-dir", to], &["not a directory", beside]),
        (&["snapshot", "restore", snap, "--data-dir", to], &["not a database", beside]),
        (&["snapshot", "restore", data, "--data-dir", to], &["is a directory"]),
    ];
    for (args, words) in cases {
        let refusal = refused(args, 1);
        for words in *words {
            assert!(refusal.contains(words), "{args:?}: no {words:?} in {refusal}");
        }
        assert!(
            !refusal.contains("os error 20") || words.contains(&"cannot look into"),
            "{args:?}: {refusal}"
        );
    }
    assert!(!std::path::Path::new(to).exists());
}

#[test]
fn what_a_first_start_leaves_that_failed_is_told_from_a_member() {
    let dir = TempDir::in_memory("left-by-first-start");
    let (etcds, from) = (etcd_dir(&dir, "3.6"), snapshot(&dir, "3.7"));
    let to = dir.join("to");
    let member = to.join("member");
    std::fs::create_dir_all(member.join("checkpoint")).expect("is made");
    std::fs::write(member.join("lock"), b"").expect("is written");
    let command =
        format!("only the remains of a failed first start: `rm -r {}`, and try again", text(&member));
    let (import, restore) = (
        ["import", "--data-dir", text(&etcds), "--to", text(&to)],
        ["snapshot", "restore", text(&from), "--data-dir", text(&to)],
    );
    for args in [&import, &restore] {
        let refusal = refused(args, 1);
        assert!(refusal.contains(&command), "{refusal}");
    }
    // The directory is refused because a start is in progress, or because it contains more files.
    let start = disk::Disk::lock(&disk::RealDisk, &member.join("lock")).expect("is free");
    assert!(!refused(&import, 1).contains(&command));
    drop(start);
    for path in ["member/other", "other", "member/checkpoint/MANIFEST", "member/wal-dir"] {
        std::fs::write(to.join(path), golden("3.7-db")).expect("is written");
        assert!(!refused(&import, 1).contains(&command), "{path}");
        std::fs::remove_file(to.join(path)).expect("is removed");
    }
    assert!(refused(&import, 1).contains(&command));
    std::fs::remove_dir_all(&member).expect("is removed");
    done(&import);
}
