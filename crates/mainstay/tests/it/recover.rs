//! `mainstay recover` after the loss of a quorum: it names the newest of the directories that are left and changes none,
//! and the cluster that it forms again has every acknowledged write, ends watches from before, and has no second leader
//! beside it.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use api::Rpc;
use api::etcdserverpb::{MemberPromoteRequest, MemberPromoteResponse};
use serde_json::Value;
use testkit::eventually;

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::damage::flip;
use crate::member::{Member, READY, binary};
use crate::run;

/// Value of `--bump-revision`, by default.
const BUMP: i64 = 1_000_000_000;

/// Returns the command `mainstay recover` for directories in the cluster's own, with these flags.
fn command(cluster: &Cluster, dirs: &[&str], flags: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env_clear().current_dir(cluster.dir.path()).arg("recover").args(dirs).args(flags);
    command
}

fn recover(cluster: &Cluster, dirs: &[&str], flags: &[&str]) -> Output {
    command(cluster, dirs, flags).output().expect("it runs")
}

/// Runs the command, which must refuse; returns what it says.
fn refused(cluster: &Cluster, dirs: &[&str], flags: &[&str]) -> String {
    let output = recover(cluster, dirs, flags);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !said.contains("panicked"), "{said}");
    said
}

/// Runs the command, which must succeed; returns what it prints.
fn done(cluster: &Cluster, dirs: &[&str], flags: &[&str]) -> String {
    let output = recover(cluster, dirs, flags);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn report(cluster: &Cluster, dirs: &[&str]) -> Value {
    serde_json::from_str(&done(cluster, dirs, &["-w", "json"])).expect("it is JSON")
}

/// Returns the flags that form the cluster again as the member of a place, in the directory `new`.
fn form(cluster: &Cluster, at: usize, flags: &[&str]) -> Vec<String> {
    let slot = &cluster.slots[at];
    let own = ["--form".to_owned(), "--data-dir=new".to_owned(), format!("--name={}", slot.name)];
    let urls = format!("--initial-advertise-peer-urls={}", slot.peer_url());
    own.into_iter().chain([urls]).chain(flags.iter().map(|flag| (*flag).to_owned())).collect()
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// Returns the paths, contents and times of change of all files below a directory.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let (mut found, mut dirs) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).expect("it is readable") {
            let path = entry.expect("it is readable").path();
            let meta = path.metadata().expect("it is there");
            let modified = meta.modified().expect("it has a time");
            if meta.is_dir() {
                dirs.push(path.clone());
                found.push((path, Vec::new(), modified));
            } else {
                found.push((path.clone(), std::fs::read(&path).expect("it is readable"), modified));
            }
        }
    }
    found.sort();
    found
}

/// Lets the new cluster take the place of a member.
fn take_place(cluster: &Cluster, at: usize) {
    let data_dir = &cluster.slots[at].data_dir;
    let old = data_dir.with_extension("old");
    if data_dir.exists() {
        std::fs::rename(data_dir, &old).expect("it is moved");
    }
    std::fs::rename(cluster.dir.join("new"), data_dir).expect("it is moved");
}

async fn has(client: &Client, key: &str) -> bool {
    client.get(key.to_owned()).await.expect("reads are served").is_some()
}

/// Asserts that a watch from this revision on, which was given out before the recovery, ends as compacted.
async fn assert_watch_is_compacted(client: &Client, from: i64) {
    let mut watch = client.watch_all(from).await.expect("watches are opened");
    let ended = watch.next().await.expect("it is answered");
    assert!(ended.canceled && ended.compact_revision > BUMP && ended.events.is_empty(), "{ended:?}");
}

#[test]
fn the_newest_directory_is_found_and_the_cluster_formed_again_without_a_second_leader() {
    run(async {
        let mut cluster = Cluster::start("recover", 3, &[]);
        let leader = cluster.leader().await;
        let (early, late) = ((leader + 1) % 3, (leader + 2) % 3);
        let dirs: Vec<String> = cluster.slots.iter().map(|slot| slot.name.clone()).collect();
        let dirs: Vec<&str> = dirs.iter().map(String::as_str).collect();
        cluster.put(leader, "first", "x").await;
        cluster.assert_equal().await;
        cluster.kill(early);
        for number in 0..5 {
            cluster.put(leader, &format!("late/{number}"), "x").await;
        }
        let lease = cluster.client(leader).await.grant(3600).await.expect("leases are granted");
        let client = cluster.client(leader).await;
        let revision = client.put_leased("leased", "x", lease).await.expect("it is taken");
        let id = client.status().await.expect("a status").header.expect("a header").cluster_id;
        let said = refused(&cluster, &dirs, &[]);
        assert!(said.contains("is in use: stop the member that runs on it"), "{said}");
        cluster.kill(late);
        cluster.kill(leader);

        // Nothing is changed by looking, not even a time.
        let before = files(cluster.dir.path());
        let all = report(&cluster, &dirs);
        assert!(files(cluster.dir.path()) == before);
        assert_eq!((&all["complete"], &all["quorum"]), (&true.into(), &2.into()), "{all}");
        assert!([dirs[leader], dirs[late]].contains(&all["newest"].as_str().expect("a name")), "{all}");
        let of_early = all["directories"]
            .as_array()
            .and_then(|all| all.iter().find(|found| found["directory"] == dirs[early]))
            .expect("it is listed");
        assert_eq!(of_early["would_lose"]["keys"], 6, "{all}");
        assert_eq!(of_early["would_lose"]["to_revision"], revision, "{all}");
        let text = done(&cluster, &dirs, &[]);
        assert!(text.contains("no acknowledged write is missing"), "{text}");

        // One of three is no majority: what the others have cannot be known.
        let alone = report(&cluster, &dirs[early..=early]);
        assert_eq!(alone["complete"], false, "{alone}");
        let flags = form(&cluster, leader, &[]);
        let said = refused(&cluster, &dirs[early..=early], &words(&flags));
        assert!(
            said.contains("acknowledged writes may be missing") && !cluster.dir.join("new").exists(),
            "{said}"
        );
        // The id is kept only if no majority of the old members can start.
        let two = [dirs[leader], dirs[early]];
        for flags in [vec!["--keep-cluster-id"], vec!["--keep-cluster-id", "--bump-revision=0"]] {
            let flags = form(&cluster, leader, &flags);
            let said = refused(&cluster, &two, &words(&flags));
            assert!(said.contains("elect a second leader: give --mark"), "{said}");
        }
        assert!(files(cluster.dir.path()) == before, "a refusal changes nothing");

        let flags = form(&cluster, leader, &["--keep-cluster-id", "--mark"]);
        let said = done(&cluster, &two, &words(&flags));
        assert!(said.contains("The old directories are marked"), "{said}");
        for at in [leader, early] {
            let said = Member::launch(cluster.command(at), None).refuses();
            assert!(said.contains("was formed again in") && said.contains("second leader"), "{said}");
        }
        // A second cluster is not formed from the same directories.
        let mut again = form(&cluster, leader, &["--mark"]);
        again.push("--data-dir=another".to_owned());
        let said = refused(&cluster, &two, &words(&again));
        assert!(said.contains("a cluster was already formed from"), "{said}");

        take_place(&cluster, leader);
        // The formed directory is not where the marks say any more, and may run.
        let said = refused(&cluster, &two, &words(&flags));
        assert!(said.contains("a cluster was already formed from"), "{said}");
        cluster.start_one(leader);
        let client = cluster.client(leader).await;
        let header = client.status().await.expect("a status").header.expect("a header");
        assert_eq!(header.cluster_id, id);
        assert!(header.revision > BUMP, "{header:?}");
        for number in 0..5 {
            assert!(has(&client, &format!("late/{number}")).await);
        }
        assert_eq!(client.time_to_live(lease, true).await.expect("leases are served").keys.len(), 1);
        assert_watch_is_compacted(&client, revision).await;
        assert_watch_is_compacted(&client, 1).await;
        // The member whose directory was not there comes back beside the new cluster: it is no member of it.
        let (code, said) = Member::launch(cluster.command(late), None).exit();
        assert!(code == Some(1) && said.contains("permanently removed"), "{code:?} {said}");
        assert_eq!(client.members().await.expect("they are listed").len(), 1);

        // The others join with empty directories.
        for at in [early, late] {
            let data_dir = cluster.slots[at].data_dir.clone();
            std::fs::rename(&data_dir, data_dir.with_extension("old")).expect("it is moved");
            let id = cluster.announce(leader, at, true).await;
            let members = if at == early { vec![leader, early] } else { vec![leader, early, late] };
            let joining = cluster.joining(at, &members);
            cluster.spawn_with(at, joining);
            cluster.member(at).wait_for(READY);
            eventually("it is promoted", PATIENCE, async || {
                let promoted: Result<MemberPromoteResponse, _> =
                    client.call(Rpc::ClusterMemberPromote, &MemberPromoteRequest { id }).await;
                promoted.ok()
            })
            .await;
        }
        cluster.put(late, "afterwards", "x").await;
        cluster.assert_equal().await;
        cluster.kill(leader);
        assert!(has(&cluster.client(early).await, "late/4").await);
        cluster.put(early, "without the first", "x").await;
    });
}

#[test]
fn with_a_minority_an_observer_may_have_the_newest_state() {
    run(async {
        let mut cluster = Cluster::start("recover-observer", 3, &[]);
        let leader = cluster.leader().await;
        let early = (leader + 1) % 3;
        cluster.put(leader, "first", "x").await;
        cluster.assert_equal().await;
        cluster.kill(early);
        let observer = cluster.add_slot();
        let command = crate::observers::observer(&cluster, observer, &[leader], &[]);
        cluster.spawn_with(observer, command);
        cluster.member(observer).wait_for(READY);
        let revision = cluster.put(leader, "late", "x").await;
        let reader = cluster.client(observer).await;
        eventually("the observer has the key", PATIENCE, async || {
            reader.get_local("late").await.ok().flatten().map(|_| ())
        })
        .await;
        for at in cluster.running() {
            cluster.kill(at);
        }
        let names: Vec<String> = [early, observer].iter().map(|at| cluster.slots[*at].name.clone()).collect();
        let dirs = [names[0].as_str(), names[1].as_str()];
        let found = report(&cluster, &dirs);
        assert_eq!((&found["newest"], &found["complete"]), (&dirs[1].into(), &false.into()), "{found}");
        let text = done(&cluster, &dirs, &[]);
        assert!(text.contains("Directories of 1 of 3 voters are here, but 2 are needed"), "{text}");
        let flags = form(&cluster, early, &["--accept-loss", "--bump-revision=0"]);
        let said = refused(&cluster, &dirs, &words(&flags));
        assert!(said.contains("--bump-revision=0 is possible only if"), "{said}");
        let flags = form(&cluster, early, &["--accept-loss"]);
        let said = done(&cluster, &dirs, &words(&flags));
        assert!(said.contains("Never start a member on the old directories"), "{said}");
        take_place(&cluster, early);
        cluster.start_one(early);
        let client = cluster.client(early).await;
        assert!(has(&client, "late").await && has(&client, "first").await);
        assert_watch_is_compacted(&client, revision + 1).await;
    });
}

#[test]
fn damaged_copied_and_contradicting_directories_are_not_taken_for_what_they_are_not() {
    run(async {
        let mut cluster = Cluster::start("recover-doubtful", 3, &["--snapshot-count=1000000"]);
        cluster.put(0, "first", "x").await;
        cluster.assert_equal().await;
        for at in 0..3 {
            cluster.kill(at);
        }
        let copy = |from: &str, to: &str| {
            let status = Command::new("cp")
                .args(["-a", from, to])
                .current_dir(cluster.dir.path())
                .status()
                .expect("it runs");
            assert!(status.success());
        };
        copy("m0", "backup");
        copy("m1", "alone");
        // A copy counts for nothing, and of two directories of one member only the newer counts.
        for (dirs, flags) in [(&["m0"][..], &["--copy=alone"][..]), (&["m0", "backup"], &[])] {
            let flags: Vec<&str> = flags.iter().copied().chain(["-w", "json"]).collect();
            let found: Value = serde_json::from_str(&done(&cluster, dirs, &flags)).expect("it is JSON");
            assert_eq!(found["complete"], false, "{found}");
        }
        let said = refused(&cluster, &["m0", "m1", "./m0"], &[]);
        assert!(said.contains("is given twice"), "{said}");
        // The record behind the flipped bytes proves that they were synced.
        flip(&cluster.slots[2].data_dir.join("member/log/0000000000000000.seg"), 4096 + 80);
        let found = report(&cluster, &["m0", "m1", "m2"]);
        assert_eq!(
            (&found["complete"], &found["unusable"][0]["directory"]),
            (&true.into(), &"m2".into()),
            "{found}"
        );
        let found = report(&cluster, &["m0", "m2"]);
        assert_eq!(found["complete"], false, "{found}");
        let said = refused(&cluster, &["m2", "nothing"], &[]);
        assert!(
            said.contains("no directory can be used") && said.contains("nothing does not exist"),
            "{said}"
        );

        // One member was started alone by --force-new-cluster, and the others went on.
        let mut forced = cluster.command(1);
        forced.arg("--force-new-cluster").arg("--data-dir").arg(cluster.dir.join("alone"));
        cluster.spawn_with(1, forced);
        cluster.member(1).wait_for(READY);
        cluster.put(1, "alone", "x").await;
        cluster.kill(1);
        let old = cluster.slots[2].data_dir.clone();
        std::fs::remove_dir_all(&old).expect("it is removed");
        let of_one = report(&cluster, &["alone"]);
        assert_eq!(of_one["complete"], true, "it is the only voter: {of_one}");
        cluster.spawn(0);
        cluster.spawn(1);
        cluster.put(0, "others", "x").await;
        cluster.put(0, "others", "y").await;
        cluster.kill(0);
        cluster.kill(1);
        let flags = form(&cluster, 0, &["--accept-loss"]);
        let said = refused(&cluster, &["alone", "m0"], &words(&flags));
        assert!(said.contains("the directories have two histories"), "{said}");
        let said = refused(&cluster, &["alone", "m0"], &words(&form(&cluster, 0, &["--from=m0"])));
        assert!(said.contains("acknowledged writes may be missing"), "{said}");
        let flags = form(&cluster, 0, &["--from=m0", "--accept-loss", "-w=json"]);
        let said = done(&cluster, &["m0", "alone"], &words(&flags));
        let formed: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("it is JSON");
        assert_eq!((&formed["formed_from"], &formed["marked"]), (&"m0".into(), &Value::Array(Vec::new())));
        take_place(&cluster, 0);
        cluster.start_one(0);
        let client = cluster.client(0).await;
        assert!(has(&client, "others").await && !has(&client, "alone").await);
    });
}

#[test]
fn a_recovery_that_is_killed_at_any_moment_leaves_no_two_that_can_start() {
    run(async {
        let mut cluster = Cluster::start("recover-killed", 3, &[]);
        for number in 0..64 {
            cluster.put(0, &format!("k/{number}"), &"v".repeat(64 << 10)).await;
        }
        cluster.assert_equal().await;
        for at in 0..3 {
            cluster.kill(at);
        }
        let dirs = ["m0", "m1", "m2"];
        let flags = form(&cluster, 0, &["--mark", "--keep-cluster-id"]);
        let (unfinished, new) = (cluster.dir.join("new.unfinished"), cluster.dir.join("new"));
        let marks = || {
            let marked = |slot: &crate::cluster::MemberSlot| slot.data_dir.join("member/recovered").exists();
            cluster.slots.iter().filter(|slot| marked(slot)).count()
        };
        let (mut killed, mut after) = (0, std::time::Duration::ZERO);
        while !new.exists() {
            let mut child = command(&cluster, &dirs, &words(&flags))
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("it runs");
            while !unfinished.exists() && child.try_wait().expect("it is ours").is_none() {
                std::thread::yield_now();
            }
            let until = std::time::Instant::now() + after;
            while std::time::Instant::now() < until && child.try_wait().expect("it is ours").is_none() {
                std::thread::yield_now();
            }
            // It may have ended by itself.
            let _ = child.kill();
            killed += u32::from(child.wait().expect("it ends").signal() == Some(libc::SIGKILL));
            assert!(
                !new.exists() || marks() == 3,
                "the new directory appears only when no old member can start"
            );
            after = (after + std::time::Duration::from_millis(1)) * 3 / 2;
        }
        println!("{killed} were killed");
        take_place(&cluster, 0);
        cluster.start_one(0);
        let client = cluster.client(0).await;
        for number in 0..64 {
            assert!(has(&client, &format!("k/{number}")).await);
        }
    });
}

/// Mounting needs root, and is for the full tests.
#[cfg(feature = "full")]
#[test]
fn a_full_disk_ends_a_recovery_with_nothing_changed() {
    use std::io::Write as _;

    use crate::space::{MIB, SmallDisk};

    run(async {
        let mut cluster = Cluster::start("recover-full", 1, &[]);
        for number in 0..48 {
            cluster.put(0, &format!("k/{number}"), &"v".repeat(1 << 20)).await;
        }
        cluster.kill(0);
        let Some(disk) = SmallDisk::mount(&cluster.dir, 40 * MIB) else {
            let words =
                "SKIPPED a_full_disk_ends_a_recovery_with_nothing_changed: mounting a tmpfs needs root";
            writeln!(std::io::stderr(), "{words}").expect("standard error is open");
            return;
        };
        let before = files(&cluster.slots[0].data_dir);
        let mut flags = form(&cluster, 0, &["--mark"]);
        flags.push(format!("--data-dir={}", disk.path.join("new").display()));
        let said = refused(&cluster, &["m0"], &words(&flags));
        assert!(said.contains("no space") && said.contains("nothing was formed"), "{said}");
        assert!(files(&cluster.slots[0].data_dir) == before, "and nothing is marked");
        let left = std::fs::read_dir(&disk.path).expect("it is readable").count();
        assert_eq!(left, 0, "nothing is left on the full disk");
        done(&cluster, &["m0"], &words(&form(&cluster, 0, &["--mark"])));
        take_place(&cluster, 0);
        cluster.start_one(0);
        assert!(has(&cluster.client(0).await, "k/47").await);
    });
}
