//! Commands that work with a backup in a directory.

use std::ffi::OsString;
use std::fs;
use std::sync::Arc;

use backup::command::run_in;
use backup::directory::DirectoryStore;
use backup::plan::Moment;
use backup::shipper::Pace;
use backup::source::Source as _;
use cli::Io;
use testkit::TempDir;

use crate::model::{Backup, Node, cluster, pace, restore};

/// Runs a command. Returns its exit code and its output.
fn run(words: &[&str]) -> (u8, String) {
    let (io, printed) = Io::in_memory();
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let code = run_in(&words, &io);
    (code, printed.out() + &printed.err())
}

/// A backup of several epochs in a directory.
fn backed_up(dir: &TempDir) -> (Arc<Node>, Arc<DirectoryStore>, Backup) {
    let (node, store) = (Node::new(21, "raft"), Arc::new(DirectoryStore::open(dir.path()).expect("exists")));
    let pace = Pace { base_ms: 3000, ..pace() };
    let mut backup = Backup::start_with(&node, &store, "one", 0, pace);
    for _ in 0..40 {
        node.work(3);
        backup.settle();
        (0..5).for_each(|_| drop(backup.step().expect("the store answers")));
    }
    (node, store, backup)
}

#[test]
fn what_was_pruned_leaves_every_later_moment() {
    let dir = TempDir::new("backup-prune");
    let (node, store, mut backup) = backed_up(&dir);
    let url = format!("file://{}", dir.path().display());
    let (code, listed) = run(&["list", &url, "-w", "json"]);
    let list: serde_json::Value = serde_json::from_str(&listed).expect("is JSON");
    let epochs = list.as_array().expect("a list").len();
    assert!(code == 0 && epochs > 4, "{listed}");
    assert!(list.as_array().into_iter().flatten().all(|epoch| epoch["gap"].is_null()), "{listed}");
    let (code, said) = run(&["verify", &url]);
    assert!(code == 0 && said.contains("all is whole"), "{said}");
    // Without the flag nothing is deleted.
    let (code, said) = run(&["prune", &url, "--older-than", "1h"]);
    assert!(code == 0 && said.contains("would be deleted"), "{said}");
    assert_eq!(run(&["list", &url, "-w", "json"]).1, listed);
    // A directory that an earlier pruning has emptied.
    fs::create_dir(dir.path().join(cluster()).join("chain/000")).expect("is created");
    assert_eq!(run(&["list", &url, "-w", "json"]).1, listed);
    let count = || walk(dir.path());
    let before = count();
    let (code, said) = run(&["prune", &url, "--older-than", "1h", "--delete"]);
    assert!(code == 0 && said.contains(" deleted; "), "{said}");
    assert!(count() * 3 < before, "{} of {before} objects are left", count());
    let (_, listed) = run(&["list", &url, "-w", "json"]);
    let list: serde_json::Value = serde_json::from_str(&listed).expect("is JSON");
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{listed}");
    for sizes_only in [&["verify", &url, "--sizes-only"][..], &["verify", &url]] {
        let (code, said) = run(sizes_only);
        assert!(code == 0 && said.contains("all is whole"), "{said}");
    }
    // The chain goes on, and everything later is there.
    node.work(30);
    backup.settle();
    let from = list[0]["from"]["revision"].as_i64().expect("a revision");
    for (revision, hash) in node.hashes().range(from + 1..) {
        assert_eq!(restore(&*store, Moment::Revision(*revision)).expect("is there").1, *hash);
    }
    let (_, lost) = run(&["restore", &url, "--to-revision=2", "--data-dir", "/nowhere/x"]);
    assert!(lost.contains("begins only with revision"), "{lost}");
}

fn walk(dir: &std::path::Path) -> usize {
    let entries = fs::read_dir(dir).expect("exists").map(|entry| entry.expect("is readable").path());
    entries.map(|path| if path.is_dir() { walk(&path) } else { 1 }).sum()
}

#[test]
fn verify_names_what_is_damaged() {
    let dir = TempDir::new("backup-verify");
    let (..) = backed_up(&dir);
    let url = format!("file://{}", dir.path().display());
    let data = dir.path().join(cluster()).join("data");
    let first =
        fs::read_dir(&data).expect("exists").next().expect("is not empty").expect("is readable").path();
    let victim =
        fs::read_dir(&first).expect("exists").next().expect("is not empty").expect("is readable").path();
    let whole = fs::read(&victim).expect("is readable");
    fs::write(&victim, &whole[..whole.len() - 1]).expect("is writable");
    let (code, said) = run(&["verify", &url]);
    let name = victim.file_name().and_then(|name| name.to_str()).expect("a name");
    // Small parts that were merged are needed by no restore.
    if code == 0 {
        assert!(said.contains("all is whole"), "{said}");
    } else {
        assert!(said.contains("DAMAGED") && said.contains(name), "{said}");
    }
    fs::write(&victim, &whole).expect("is writable");
    let chain = dir.path().join(cluster()).join("chain/0000000000000");
    let link = chain.join("0000000000000005.json");
    let text = fs::read_to_string(&link).expect("is readable");
    fs::write(&link, text.replace("\"shipper\":\"one\"", "\"shipper\":\"two\"")).expect("is writable");
    let (code, said) = run(&["verify", &url]);
    assert!(code == 1 && said.contains("does not follow the manifest before it"), "{said}");
    fs::remove_file(&link).expect("is removed");
    let (code, said) = run(&["verify", &url]);
    assert!(code == 1 && said.contains("are missing"), "{said}");
}

#[test]
fn a_drill_restores_compares_and_reports() {
    let dir = TempDir::new("backup-drill");
    let place = dir.path().join("place");
    fs::create_dir(&place).expect("is created");
    let (node, store) = (Node::new(22, "raft"), Arc::new(DirectoryStore::open(&place).expect("exists")));
    node.work(20);
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    node.work(20);
    backup.settle();
    let url = format!("file://{}", place.display());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (work, metrics, page) = (path("work"), path("drill.prom"), path("drill.html"));
    let words = ["drill", &url, "--work-dir", &work, "--metrics-file", &metrics, "--page", &page];
    let (code, said) = run(&words);
    let revision = node.position().revision;
    assert!(code == 0 && said.starts_with(&format!("restored revision {revision} ")), "{said}");
    assert!(said.contains("of its base is the cluster's") && !dir.path().join("work").exists(), "{said}");
    let text = fs::read_to_string(&metrics).expect("is written");
    assert!(text.contains("mainstay_backup_drill_success 1\n"), "{text}");
    assert!(fs::read_to_string(&page).expect("is written").contains(&revision.to_string()));
    // A drill that fails says so everywhere.
    for entry in fs::read_dir(place.join(cluster()).join("data")).expect("exists") {
        for object in fs::read_dir(entry.expect("is readable").path()).expect("exists") {
            fs::write(object.expect("is readable").path(), "").expect("is writable");
        }
    }
    let (code, said) = run(&words);
    assert!(code == 1 && said.contains("has 0 bytes instead of"), "{said}");
    assert!(fs::read_to_string(&metrics).expect("is written").contains("mainstay_backup_drill_success 0\n"));
    assert!(fs::read_to_string(&page).expect("is written").contains("cannot be restored"));
}

#[test]
fn a_diff_lists_every_change_also_those_that_were_compacted() {
    let dir = TempDir::new("backup-diff");
    let place = dir.path().join("place");
    fs::create_dir(&place).expect("is created");
    let (node, store) = (Node::new(23, "raft"), Arc::new(DirectoryStore::open(&place).expect("exists")));
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    node.put("a", "1");
    let from = node.position().revision;
    for number in 0..5 {
        node.put("a", &format!("value {number}"));
        node.put("b", "x");
    }
    let compaction = api::etcdserverpb::CompactionRequest { revision: from + 8, physical: false };
    node.apply(api::etcdserverpb::InternalRaftRequest {
        compaction: Some(compaction),
        header: Some(api::etcdserverpb::RequestHeader { username: "anna".to_owned(), ..Default::default() }),
        ..Default::default()
    });
    backup.settle();
    let (first, second) = (format!("file://{}@{from}", place.display()), (from + 10).to_string());
    let work = dir.path().join("work").display().to_string();
    let (code, said) = run(&["diff", &first, &second, "--prefix", "a", "--values", "--work-dir", &work]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(code == 0 && lines.len() == 5, "{said}");
    assert!(
        lines[0].starts_with(&format!("{} ", from + 1)) && lines[0].ends_with("put \"a\" \"value 0\""),
        "{said}"
    );
    assert!(!dir.path().join("work").exists());
    let (code, said) = run(&["diff", &first, "1999-01-01T00:00:00Z", "--work-dir", &work]);
    assert!(code == 1, "{said}");
}

/// A separate file system in memory, which is unmounted when this is dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// Mounts the file system; returns `None` if this process may not mount.
    fn mount(dir: &TempDir, bytes: u64) -> Option<SmallDisk> {
        let path = dir.path().join("small-disk");
        fs::create_dir(&path).expect("is created");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(&path);
        mount.output().is_ok_and(|output| output.status.success()).then_some(SmallDisk(path))
    }

    fn resize(&self, bytes: u64) {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-o", &format!("remount,size={bytes}")]).arg(&self.0);
        assert!(mount.output().is_ok_and(|output| output.status.success()), "it can be resized");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What stays mounted goes with the machine.
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_disk_that_is_too_small_ends_a_restore_with_what_is_needed_and_a_larger_one_completes_it() {
    use std::io::Write as _;

    const MIB: u64 = 1 << 20;
    let dir = TempDir::new("backup-small-disk");
    let place = dir.path().join("place");
    fs::create_dir(&place).expect("is created");
    let (node, store) = (Node::new(24, "raft"), Arc::new(DirectoryStore::open(&place).expect("exists")));
    let value = "v".repeat(1 << 20);
    for number in 0..24 {
        node.put(&format!("key-{number}"), &value);
    }
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    let url = format!("file://{}", place.display());
    let Some(disk) = SmallDisk::mount(&dir, 16 * MIB) else {
        let words = "SKIPPED a_disk_that_is_too_small_ends_a_restore_with_what_is_needed_and_a_larger_one_completes_it: \
                     mounting a tmpfs needs root";
        writeln!(std::io::stderr(), "{words}").expect("standard error is open");
        return;
    };
    let data_dir = disk.0.join("data").display().to_string();
    let restore = || run(&["restore", &url, "--data-dir", &data_dir]);
    let left = || fs::read_dir(&disk.0).expect("is readable").count();
    for mib in [16, 30] {
        disk.resize(mib * MIB);
        let (code, said) = restore();
        assert!(code == 1 && said.contains("the restore needs about"), "{said}");
        assert!(said.contains("has no space for"), "{said}");
        assert_eq!(left(), 0, "nothing is left on the full disk");
    }
    disk.resize(400 * MIB);
    let (code, said) = restore();
    assert!(code == 0 && said.starts_with("restored revision"), "{said}");
}
