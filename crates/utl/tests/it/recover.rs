//! `mainstay recover` on directories that were restored from snapshots: two histories under the same ids, revisions that
//! clients have seen, and two commands at once. `mainstay/tests/it/recover.rs` has the tests with processes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cli::Io;
use disk::{Disk as _, RealDisk};
use interchange::backend::{ChangeHead, StoredChangeId};
use numbers::Revision;
use testkit::TempDir;

use crate::bump::database;
use crate::kit::{Told, done, text};

const CLUSTER: &str = "a=http://127.0.0.1:1,b=http://127.0.0.1:2,c=http://127.0.0.1:3";

/// Writes a snapshot with these keys, at revisions from 2 on.
fn snapshot(path: &Path, keys: &[&str]) {
    let change = |(at, key): (usize, &&'static str)| {
        let main = Revision(at as i64 + 2);
        ChangeHead {
            revision: StoredChangeId { main, sub: 0 },
            key: key.as_bytes(),
            create_revision: main,
            mod_revision: main,
            version: 1,
            ..ChangeHead::default()
        }
    };
    // The keys of tests are literals.
    let keys: Vec<&'static str> = keys.iter().map(|key| &*String::from(*key).leak()).collect();
    database(path, &keys.iter().enumerate().map(change).collect::<Vec<_>>());
}

/// Restores a snapshot as the directory of a member of three, whose ids follow from names and URLs.
fn member(dir: &TempDir, name: &str, keys: &[&str]) -> PathBuf {
    let (from, to) = (dir.join(format!("{name}.db")), dir.join(name));
    snapshot(&from, keys);
    let port = match name {
        "a" => 1,
        "b" => 2,
        _ => 3,
    };
    let url = format!("http://127.0.0.1:{port}");
    let args = ["snapshot", "restore", text(&from), "--data-dir", text(&to), "--name", name];
    done(&[&args[..], &["--initial-cluster", CLUSTER, "--initial-advertise-peer-urls", &url]].concat());
    to
}

fn recover(args: &[&str]) -> Told {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let (io, printed) = Io::in_memory();
    let code = utl::recover::run_in(&args, &io);
    Told { code, out: printed.out(), err: printed.err() }
}

fn form(dir: &TempDir, args: &[&str]) -> Told {
    let new = dir.join("new");
    let own =
        ["--form", "--data-dir", text(&new), "--name=n", "--initial-advertise-peer-urls=http://127.0.0.1:9"];
    recover(&[args, &own].concat())
}

#[test]
fn two_snapshots_that_were_restored_under_the_same_ids_are_two_histories() {
    let dir = TempDir::new("recover-restored-twice");
    let (a, b) = (member(&dir, "a", &["x", "y"]), member(&dir, "b", &["x", "z"]));
    let said = recover(&[text(&a), text(&b)]);
    assert!(said.out.contains("has other keys at revision 3 than"), "{said:?}");
    let said = form(&dir, &[text(&a), text(&b), "--accept-loss"]);
    assert!(said.code != 0 && said.err.contains("the directories have two histories"), "{said:?}");
    let c = member(&dir, "c", &["x", "y"]);
    let said = recover(&[text(&a), text(&c)]);
    assert!(said.code == 0 && said.out.contains("no acknowledged write is missing"), "{said:?}");
}

#[test]
fn no_revision_that_clients_may_have_seen_is_given_out_again() {
    let dir = TempDir::new("recover-bump");
    let a = member(&dir, "a", &["x", "y"]);
    let said = form(&dir, &[text(&a), "--accept-loss", "--bump-revision=1000"]);
    assert!(said.code != 0 && said.err.contains("give at least 1099511627776"), "{said:?}");
    assert!(!dir.join("new").exists());
    let said = form(&dir, &[text(&a), "--accept-loss"]);
    assert!(said.code == 0 && said.out.contains("at revision 1099511627779"), "{said:?}");
}

#[test]
fn two_commands_do_not_form_a_cluster_from_the_same_directory_at_once() {
    let dir = TempDir::new("recover-at-once");
    let (a, b) = (member(&dir, "a", &["x"]), member(&dir, "b", &["x"]));
    // What the other command holds.
    let other = RealDisk.lock(&b).expect("is free");
    let said = form(&dir, &[text(&a), text(&b)]);
    assert!(said.code != 0 && said.err.contains("another command holds"), "{said:?}");
    assert_eq!(recover(&[text(&a), text(&b)]).code, 0, "looking goes on");
    drop(other);
    let said = form(&dir, &[text(&a), text(&b)]);
    assert_eq!(said.code, 0, "{said:?}");
}
