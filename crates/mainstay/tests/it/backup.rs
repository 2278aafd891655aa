//! Backups as processes: an observer's log, and the API of any cluster, are shipped to a directory; processes are killed
//! meanwhile; every moment is restored exactly.

use std::path::Path;
use std::process::{Command, Output};

use testkit::{TempDir, wait_until};

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::member::{Member, Setup, binary};
use crate::run;

/// Starts to ship the log of a cluster to a directory.
fn ship_log(cluster: &Cluster, at: usize, data_dir: &Path, to: &Path) -> Member {
    let peer = format!("http://{}", testkit::ports::free_address_of(cluster.address()));
    let mut command = Command::new(binary());
    command
        .env_clear()
        .args(["backup", "run", "--backup-max-lag=1s", "--heartbeat-interval=50", "--election-timeout=500"])
        .arg(format!("--feed={}", cluster.slots[at].peer_url()))
        .arg(format!("--data-dir={}", data_dir.display()))
        .arg(format!("--to=file://{}", to.display()))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"));
    Member::launch(command, None)
}

fn mainstay(arguments: &[&str]) -> Output {
    Command::new(binary()).env_clear().args(arguments).output().expect("it runs")
}

/// Returns the newest revision in a backup; 0 if there is none.
fn shipped(to: &Path) -> i64 {
    let listed = mainstay(&["backup", "list", &url(to), "-w", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|epoch| epoch["to"]["revision"].as_i64())
        .max()
        .unwrap_or(0)
}

fn url(to: &Path) -> String {
    format!("file://{}", to.display())
}

/// Waits until a backup has a revision.
fn wait_for(to: &Path, revision: i64, backup: &Member) {
    wait_until("the revision is in the backup", PATIENCE, || {
        let said = backup.said();
        assert!(!said.contains("cannot go on") && !said.contains("\"fatal\""), "{said}");
        (shipped(to) >= revision).then_some(())
    });
}

/// Restores a moment, and starts a member on it.
fn restored(to: &Path, dir: &Path, moment: &[&str]) -> Member {
    let setup = Setup::new(dir);
    let data_dir = format!("--data-dir={}", setup.data_dir.display());
    let place = url(to);
    let fixed = ["utl", "snapshot", "restore", &place, &data_dir, "--name=m"];
    let peer = "http://127.0.0.1:2380";
    let (cluster, own) =
        (format!("--initial-cluster=m={peer}"), format!("--initial-advertise-peer-urls={peer}"));
    let output = mainstay(&[&fixed[..], &[&cluster, &own], moment].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    setup.start()
}

async fn same_as(client: &Client, revision: i64, hash: u32) {
    let found = client.hash_kv(0).await.expect("a hash");
    assert_eq!((found.hash_revision, found.hash), (revision, hash), "the state of revision {revision}");
}

#[test]
fn every_revision_is_restored_though_the_shipper_is_killed_again_and_again() {
    let dir = TempDir::in_memory("backup");
    let (to, data_dir) = (dir.path().join("to"), dir.path().join("shipper"));
    std::fs::create_dir(&to).expect("a directory");
    run(async {
        let mut cluster = Cluster::start("backed-up", 1, &[]);
        let client = cluster.client(0).await;
        let mut hashes = Vec::new();
        for round in 0..6 {
            let backup = ship_log(&cluster, 0, &data_dir, &to);
            for n in 0..30 {
                let lease = if n % 7 == 0 { client.grant(600).await.expect("is granted") } else { 0 };
                let value = format!("{round} {n}");
                client.put_leased(format!("k/{}", n % 11), value, lease).await.expect("is put");
            }
            let (last, _) = client.delete(format!("k/{round}")).await.expect("is deleted");
            let hash = client.hash_kv(0).await.expect("a hash");
            hashes.push((hash.hash_revision, hash.hash));
            // What is restored is the state before this: right after the transaction with that revision.
            if round == 3 {
                client.compact(last - 10, true).await.expect("is compacted");
            }
            if round % 2 == 0 {
                wait_for(&to, hash.hash_revision, &backup);
            }
            backup.kill();
        }
        // The last one runs until everything is there, and ends cleanly.
        let backup = ship_log(&cluster, 0, &data_dir, &to);
        let newest = hashes.last().expect("there are some").0;
        wait_for(&to, newest, &backup);
        backup.stop();
        cluster.kill(0);
        let verified = mainstay(&["backup", "verify", &url(&to)]);
        let text = String::from_utf8_lossy(&verified.stdout);
        assert!(verified.status.success() && text.contains("all is whole"), "{text}");
        // Moments before the first base are not in it.
        let listed = mainstay(&["backup", "list", &url(&to), "-w", "json"]);
        let list: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("is JSON");
        let from = list[0]["from"]["revision"].as_i64().expect("a revision");
        for (revision, hash) in hashes.iter().filter(|(revision, _)| *revision > from) {
            let at = dir.path().join(format!("restored-{revision}"));
            let member = restored(&to, &at, &[&format!("--to-revision={revision}")]);
            let address = member.client_address();
            same_as(&Client::connect(address).await, *revision, *hash).await;
            member.kill();
        }
        let drilled = mainstay(&[
            "backup",
            "drill",
            &url(&to),
            &format!("--work-dir={}", dir.path().join("drill").display()),
        ]);
        let text = String::from_utf8_lossy(&drilled.stdout);
        assert!(drilled.status.success() && text.contains(&format!("restored revision {newest} ")), "{text}");
        assert!(text.contains("of its base is the cluster's"), "{text}");
    });
}

#[test]
fn a_cluster_of_any_etcd_is_followed_over_its_api() {
    let dir = TempDir::in_memory("backup-api");
    let to = dir.path().join("to");
    std::fs::create_dir(&to).expect("a directory");
    run(async {
        let cluster = Cluster::start("followed", 1, &[]);
        let client = cluster.client(0).await;
        client.put("before", "x").await.expect("is put");
        let start = || {
            let mut command = Command::new(binary());
            command
                .env_clear()
                .args(["backup", "run", "--backup-max-lag=1s", "--compare-interval=0"])
                .arg(format!("--endpoints=http://{}", cluster.slots[0].client))
                .arg(format!("--data-dir={}", dir.path().join("shadow").display()))
                .arg(format!("--to={}", url(&to)));
            Member::launch(command, None)
        };
        let mut hashes = Vec::new();
        for round in 0..3 {
            let backup = start();
            for n in 0..20 {
                client.put(format!("k/{n}"), format!("{round} {n}")).await.expect("is put");
            }
            let hash = client.hash_kv(0).await.expect("a hash");
            wait_for(&to, hash.hash_revision, &backup);
            hashes.push((hash.hash_revision, hash.hash));
            backup.kill();
        }
        for (revision, hash) in &hashes[1..] {
            let member = restored(
                &to,
                &dir.path().join(format!("r-{revision}")),
                &[&format!("--to-revision={revision}")],
            );
            let address = member.client_address();
            same_as(&Client::connect(address).await, *revision, *hash).await;
            member.kill();
        }
        let first = hashes[0].0;
        let (from, until) = (format!("{}@{first}", url(&to)), (first + 3).to_string());
        let work = format!("--work-dir={}", dir.path().join("diff").display());
        let changes = mainstay(&["utl", "snapshot", "diff", &from, &until, "--prefix=k/", "--values", &work]);
        let text = String::from_utf8_lossy(&changes.stdout);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text} {}", String::from_utf8_lossy(&changes.stderr));
        assert!(lines[1].starts_with(&format!("{} ", first + 2)), "{text}");
        assert!(lines[1].ends_with("put \"k/1\" \"1 1\""), "{text}");
    });
}

#[test]
fn what_cannot_be_used_is_refused_with_the_reason() {
    let dir = TempDir::in_memory("backup-refused");
    let missing = url(&dir.path().join("missing"));
    let empty = url(dir.path());
    for (arguments, told) in [
        (vec!["backup", "list", &missing[..]], "is not an existing directory"),
        (vec!["backup", "restore", &empty, "--data-dir=/nowhere/x"], "has no backup"),
        (vec!["backup", "restore", &empty, "--to-revision=1", "--to-time=2026-11-21T10:50:53Z"], "not both"),
        (vec!["backup", "restore", &empty, "--bump-revision=1"], "--mark-compacted required"),
        (vec!["backup", "run", "--to", "nowhere", "--feed=http://a:1", "--data-dir=d"], "the place is s3://"),
        (vec!["backup", "prune", &empty], "--older-than is required"),
        (vec!["utl", "snapshot", "diff", "a", "b"], "is no URL@moment"),
        (vec!["backup", "nothing"], "nothing"),
    ] {
        let output = mainstay(&arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(told), "{arguments:?}: {text}");
    }
}
