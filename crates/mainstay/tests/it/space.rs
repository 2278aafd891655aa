//! Disk space: it is freed after a compaction, and writes are refused with etcd's text when none is left.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use api::error;
use api::etcdserverpb::AlarmType;

use testkit::{TempDir, eventually};

use crate::client::Client;
use crate::member::Setup;
use crate::{filler, run};

pub const MIB: usize = 1 << 20;

/// Returns the bytes of all files below a directory.
fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            // The file was deleted after it was listed.
            Err(_) => 0,
        })
        .sum()
}

/// Overwrites ten keys; returns the newest revision.
async fn overwrite(client: &Client, from: u32, to: u32) -> i64 {
    let mut revision = 0;
    for number in from..to {
        revision =
            client.put(format!("k/{}", number % 10), filler(number, MIB)).await.expect("puts are served");
    }
    revision
}

async fn assert_newest(client: &Client, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let kv = client.get(format!("k/{}", number % 10)).await.expect("reads are served");
        assert_eq!(kv.expect("the key is there").value, filler(number, MIB), "value {number}");
    }
}

#[test]
fn a_compaction_gives_space_back_by_itself() {
    let dir = TempDir::new("space");
    let setup = Setup::new(dir.path());
    run(async {
        let member = setup.start();
        let client = member.client().await;
        // Each of the first segments contains a value that stays live.
        let mut revision = 0;
        for old in 0..5u32 {
            client.put(format!("old/{old}"), filler(old, MIB)).await.expect("puts are served");
            revision = overwrite(&client, old * 100, old * 100 + 100).await;
        }
        let before = disk_bytes(&setup.data_dir);
        assert!(before > 500 * MIB as u64, "{before}");
        client.compact(revision, false).await.expect("compacts");
        // The member gets no other requests: no writes, no defragmentation.
        let mut bytes = 0;
        eventually("the data directory shrinks", Duration::from_secs(60), async || {
            bytes = disk_bytes(&setup.data_dir);
            (bytes < 350 * MIB as u64).then_some(())
        })
        .await;
        println!("{} MiB, after a compaction {} MiB", before / MIB as u64, bytes / MIB as u64);
        assert_kept(&client).await;
        let hash = client.hash_kv(0).await.expect("a hash can be had");
        member.kill();

        let member = setup.start();
        let client = member.client().await;
        assert_kept(&client).await;
        assert_eq!(client.hash_kv(0).await.expect("a hash can be had").hash, hash.hash);
        member.kill();

        // Deleted segments are no longer in the log, so the log cannot be used without its checkpoint.
        std::fs::remove_file(setup.data_dir.join("member/checkpoint/MANIFEST")).expect("it is there");
        let said = setup.refused();
        let manifest = setup.data_dir.join("member/checkpoint/MANIFEST");
        assert!(said.contains(&manifest.display().to_string()), "{said}");
        assert!(said.contains("the log alone is not sufficient"), "{said}");
    });
}

/// Asserts that everything exists that a compaction has to keep.
async fn assert_kept(client: &Client) {
    assert_newest(client, 490..500).await;
    for old in 0..5u32 {
        let kv = client.get(format!("old/{old}")).await.expect("reads are served");
        assert_eq!(kv.expect("it is there").value, filler(old, MIB), "old value {old}");
    }
}

/// Writes new keys until one is refused; returns how many were accepted.
async fn fill(client: &Client, keys_max: u32) -> u32 {
    for number in 0..keys_max {
        match client.put(format!("fill/{number:04}"), filler(number, MIB)).await {
            Ok(_) => {}
            Err(status) => {
                assert_eq!(status, error::NO_SPACE);
                return number;
            }
        }
    }
    panic!("{keys_max} MiB were taken");
}

/// Asserts which operations a member with a raised alarm allows, and which it refuses.
async fn assert_no_space(client: &Client, taken: u32) {
    let alarms = eventually("the alarm is raised", Duration::from_secs(20), async || {
        let alarms = client.alarms().await.expect("alarms are listed");
        (!alarms.is_empty()).then_some(alarms)
    })
    .await;
    assert_eq!(alarms.iter().map(|a| a.alarm).collect::<Vec<_>>(), [AlarmType::Nospace as i32]);
    assert_eq!(client.put("small", "x").await, Err(error::NO_SPACE));
    assert_eq!(client.grant(60).await, Err(error::NO_SPACE));
    let errors = client.status().await.expect("a status").errors;
    assert!(errors.iter().any(|e| e.contains("NOSPACE")), "{errors:?}");
    for number in 0..taken {
        let kv = client.get(format!("fill/{number:04}")).await.expect("reads are served");
        assert_eq!(kv.expect("what was acknowledged is there").value, filler(number, MIB));
    }
}

/// Deletes all but one key, compacts, clears the alarm, and writes again.
async fn make_room(client: &Client, taken: u32) {
    let mut revision = 0;
    for number in 1..taken {
        let (at, deleted) = client.delete(format!("fill/{number:04}")).await.expect("deletes are served");
        assert_eq!(deleted, 1);
        revision = at;
    }
    client.compact(revision, true).await.expect("compactions are served");
    // The compaction does not wait for readers, such as a checkpoint, that keep some of the data for a moment.
    eventually("what was deleted is removed", Duration::from_secs(20), async || {
        let in_use = client.status().await.expect("a status").db_size_in_use;
        (in_use < 4 * MIB as i64).then_some(())
    })
    .await;
}

#[test]
fn a_quota_is_kept_and_deleting_frees_it() {
    let dir = TempDir::new("quota");
    let setup = Setup::new(dir.path()).flag(format!("--quota-backend-bytes={}", 32 * MIB));
    run(async {
        let member = setup.start();
        let client = member.client().await;
        let taken = fill(&client, 64).await;
        assert!((20..=32).contains(&taken), "{taken} MiB of 32");
        member.wait_for("the data is close to its quota");
        assert_no_space(&client, taken).await;
        member.kill();

        // The alarm survives a restart.
        let member = setup.start();
        let client = member.client().await;
        assert_no_space(&client, taken).await;
        make_room(&client, taken).await;
        assert_eq!(client.put("small", "x").await, Err(error::NO_SPACE), "the alarm is still raised");
        client.disarm().await.expect("the alarm is taken back");
        assert_eq!(client.alarms().await.expect("alarms are listed"), []);
        for number in 100..110u32 {
            client
                .put(format!("k/{}", number % 10), filler(number, MIB))
                .await
                .expect("puts are served again");
        }
        assert_newest(&client, 100..110).await;
        member.stop();
    });
}

/// A separate file system in memory, which is unmounted when this is dropped.
pub struct SmallDisk {
    pub path: PathBuf,
}

impl SmallDisk {
    /// Mounts the file system; returns `None` if this process may not mount.
    pub fn mount(dir: &TempDir, bytes: usize) -> Option<SmallDisk> {
        let path = dir.path().join("small-disk");
        std::fs::create_dir_all(&path).expect("a directory can be made");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(&path);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(SmallDisk { path })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let outcome = Command::new("umount").arg("--lazy").arg(&self.path).status();
        if !outcome.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.path.display());
        }
    }
}

#[test]
fn a_full_disk_loses_nothing_and_is_survived() {
    let dir = TempDir::new("full");
    let Some(disk) = SmallDisk::mount(&dir, 512 * MIB) else {
        let words = "SKIPPED a_full_disk_loses_nothing_and_is_survived: mounting a tmpfs needs root";
        // Written directly, since the test harness would capture the output.
        writeln!(std::io::stderr(), "{words}").expect("standard error is open");
        return;
    };
    let setup = Setup::new(&disk.path);
    run(async {
        let member = setup.start();
        let client = member.client().await;
        // Another file takes the rest of the disk, except for some 64 MiB.
        let ballast = disk.path.join("ballast");
        std::fs::write(&ballast, vec![1; 256 * MIB]).expect("there is room for the ballast");
        let taken = fill(&client, 600).await;
        assert!(taken > 50, "{taken}");
        assert_no_space(&client, taken).await;
        client.delete("fill/0000").await.expect("deletes are served");
        let hash = client.hash_kv(0).await.expect("a hash can be had").hash;
        member.kill();

        // The member starts on the full disk, too.
        let member = setup.start();
        let client = member.client().await;
        assert_eq!(client.hash_kv(0).await.expect("a hash can be had").hash, hash);
        assert!(client.get("fill/0000").await.expect("reads are served").is_none());
        for number in 1..taken {
            let kv = client.get(format!("fill/{number:04}")).await.expect("reads are served");
            assert_eq!(kv.expect("what was acknowledged is there").value, filler(number, MIB));
        }
        assert_eq!(client.put("small", "x").await, Err(error::NO_SPACE));

        std::fs::remove_file(&ballast).expect("the ballast is ours");
        eventually("the alarm can be taken back and writes go on", Duration::from_secs(30), async || {
            client.disarm().await.ok()?;
            client.put("small", "x").await.ok()
        })
        .await;
        for number in 100..150u32 {
            client
                .put(format!("k/{}", number % 10), filler(number, MIB))
                .await
                .expect("puts are served again");
        }
        assert_newest(&client, 140..150).await;
        member.stop();
    });
}
