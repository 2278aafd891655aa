//! A member whose data is damaged is rebuilt from the other members by one command, even if the command is
//! interrupted.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use disk::RealDisk;
use storage::log_dir::write_note;
use testkit::ports::free_address_of;
use testkit::{Random, TempDir, eventually};

use crate::auth::secured;
use crate::cluster::{Cluster, PATIENCE};
use crate::cluster_members::{id_of, remove};
use crate::damage::{flip, open};
use crate::member::{Member, Setup};
use crate::{filler, run};

const REBUILT: &str = "the member was rebuilt";
const KEYS: u32 = 140;
const VALUE_BYTES: usize = 512 << 10;

/// Returns the command that rebuilds the member which `start` would start.
fn rebuilding(start: &Command) -> Command {
    let mut command = Command::new(start.get_program());
    command.env_clear().arg("rebuild").args(start.get_args());
    command
}

/// Returns the path of the first segment of a member's log.
fn first_segment(cluster: &Cluster, at: usize) -> std::path::PathBuf {
    cluster.slots[at].data_dir.join("member/log/0000000000000000.seg")
}

#[test]
fn a_member_with_a_damaged_segment_is_rebuilt() {
    let mut cluster = Cluster::start("rebuild", 3, &["--snapshot-count=1000000"]);
    run(async {
        let client = cluster.client(0).await;
        for number in 0..KEYS {
            client.put(format!("k/{number:03}"), filler(number, VALUE_BYTES)).await.expect("puts are served");
        }
        let lease = client.grant(10_000).await.expect("leases are granted");
        client.put_leased("leased", "x", lease).await.expect("puts are served");
        cluster.assert_equal().await;

        // A running member is not touched.
        let said = Member::launch(rebuilding(&cluster.command(2)), None).refuses();
        assert!(said.contains("the member is running"), "{said}");

        cluster.kill(2);
        flip(&first_segment(&cluster, 2), 30 << 20);
        let said = Member::launch(cluster.command(2), None).refuses();
        assert!(said.contains("is damaged at offset") && said.contains("mainstay rebuild"), "{said}");
        let old: Vec<u64> =
            client.members().await.expect("members are listed").iter().map(|m| m.id).collect();
        client.put("meanwhile", "x").await.expect("the others go on");

        let command = rebuilding(&cluster.command(2));
        cluster.spawn_with(2, command);
        cluster.member(2).wait_for(REBUILT);
        // The new member's name is a separate entry, which the member proposes when it serves.
        let members = eventually("all have told their names", PATIENCE, async || {
            let members = client.members().await.expect("members are listed");
            members.iter().all(|member| !member.name.is_empty()).then_some(members)
        })
        .await;
        assert_eq!(members.len(), 3);
        assert_eq!(members.iter().filter(|member| !old.contains(&member.id)).count(), 1, "one has a new id");
        assert!(members.iter().all(|member| !member.is_learner), "{members:?}");
        cluster.assert_equal().await;
        let rebuilt = cluster.client(2).await;
        for number in 0..KEYS {
            let kv = rebuilt.get_local(format!("k/{number:03}")).await.expect("reads are served");
            assert_eq!(kv.expect("the key is there").value, filler(number, VALUE_BYTES));
        }
        assert_eq!(rebuilt.time_to_live(lease, true).await.expect("leases are served").keys.len(), 1);
        let aside = cluster.slots[2].data_dir.join("member.damaged-1");
        assert!(aside.join("log/0000000000000000.seg").exists(), "the old data is kept");

        // The new member counts as a voter, and later starts need no special flags.
        cluster.kill(0);
        cluster.put(2, "without the first", "x").await;
        cluster.start_one(0);
        cluster.kill(2);
        cluster.start_one(2);
        cluster.assert_equal().await;
        assert!(aside.exists());
    });
}

#[test]
fn a_rebuild_waits_for_a_member_that_has_not_told_its_name() {
    run(async {
        let mut cluster = Cluster::start("rebuild-unstarted", 3, &[]);
        cluster.put(0, "k", "x").await;
        cluster.assert_equal().await;
        let client = cluster.client(0).await;
        let id = id_of(&cluster.client(2).await).await;
        cluster.kill(2);
        open(&first_segment(&cluster, 2)).set_len(1000).expect("it can be cut");
        remove(&client, id).await;
        let fourth = cluster.add_slot();
        let fourth_id = cluster.announce(0, fourth, false).await;
        // Only two of the three listed members have been started, which is too few to add a fourth one.
        let rebuild = rebuilding(&cluster.command(2));
        cluster.spawn_with(2, rebuild);
        cluster.member(2).wait_for(&format!("not enough started members; start or remove: {fourth_id:x}"));
        let joining = cluster.joining(fourth, &[0, 1, fourth]);
        cluster.spawn_with(fourth, joining);
        cluster.member(2).wait_for(REBUILT);
        let rebuilt = cluster.client(2).await;
        eventually("the rebuilt member has the key", PATIENCE, async || {
            rebuilt.get("k").await.ok().flatten().map(|_| ())
        })
        .await;
        let members: Vec<u64> =
            client.members().await.expect("they are listed").iter().map(|m| m.id).collect();
        assert!(members.len() == 4 && members.contains(&fourth_id) && !members.contains(&id), "{members:x?}");
    });
}

#[test]
fn a_rebuild_goes_on_wherever_it_was_killed() {
    kill_rebuilds(Cluster::plan("rebuild-killed", 3, &[]), None);
}

#[test]
fn a_rebuild_with_a_log_of_its_own_goes_on_wherever_it_was_killed() {
    let mut cluster = Cluster::plan("rebuild-wal-dir", 3, &[]);
    let wal_dir = cluster.dir.path().join("wal");
    cluster.slots[2].flags = vec![format!("--wal-dir={}", wal_dir.display())];
    kill_rebuilds(cluster, Some(wal_dir));
}

/// The layout of a member that was taken over from etcd, and whose `member/wal` was a link.
#[test]
fn a_rebuild_with_a_log_behind_a_link_leaves_it_on_its_disk() {
    let cluster = Cluster::plan("rebuild-link", 3, &[]);
    let (member, other) = (cluster.slots[2].data_dir.join("member"), cluster.dir.path().join("other disk"));
    let link = member.join("wal");
    for dir in [&member, &other] {
        std::fs::create_dir_all(dir).expect("is made");
    }
    std::os::unix::fs::symlink(&other, &link).expect("is made");
    write_note(&RealDisk, &member, &link.join("log")).expect("is written");
    kill_rebuilds(cluster, Some(other.join("log")));
}

/// Kills rebuilds of the last member, whose log is in `wal_dir` or in its data directory.
fn kill_rebuilds(mut cluster: Cluster, wal_dir: Option<PathBuf>) {
    cluster.start_all();
    let mut dice = Random::new(7);
    run(async {
        let client = cluster.client(0).await;
        for number in 0..100u32 {
            client.put(format!("k/{number:03}"), filler(number, 100)).await.expect("puts are served");
        }
        cluster.assert_equal().await;
        cluster.kill(2);
        let segment = match &wal_dir {
            Some(dir) => dir.join("0000000000000000.seg"),
            None => first_segment(&cluster, 2),
        };
        open(&segment).set_len(0).expect("it can be cut");
        let (data_dir, etcds) = (cluster.slots[2].data_dir.clone(), "0000000000000000-0000000000000000.wal");
        let member_dir = data_dir.join("member");
        let link = Some(member_dir.join("wal")).filter(|link| link.is_symlink());
        if let Some(link) = &link {
            // The data directory had another name when the path was recorded. etcd's files must not be taken
            // for a store that etcd began.
            write_note(&RealDisk, &member_dir, "/before/member/wal/log".as_ref()).expect("is written");
            std::fs::write(link.join(etcds), b"etcd's").expect("is written");
        } else if wal_dir.is_some() {
            let flags = std::mem::take(&mut cluster.slots[2].flags);
            let said = Member::launch(rebuilding(&cluster.command(2)), None).refuses();
            cluster.slots[2].flags = flags;
            assert!(said.contains("give the --wal-dir with which it was started"), "{said}");
        }
        // Each rebuild is killed either when it has logged this line, or after a random delay.
        let steps = [
            "removing the old member",
            "moved the old data aside",
            "added the new member",
            "restored the state",
        ];
        let journal = cluster.slots[2].data_dir.join("rebuild");
        let mut refused = 0;
        for round in 0..10usize {
            let mut command = rebuilding(&cluster.command(2));
            command.arg("--log-level=debug");
            let mut member = Member::launch(command, None);
            match steps.get(round / 2).filter(|_| round % 2 == 0) {
                Some(step) => {
                    member.heard(step, Duration::from_secs(5));
                }
                None => {
                    let until = std::time::Instant::now() + Duration::from_millis(dice.below(400));
                    eventually("the moment comes", PATIENCE, async || {
                        (std::time::Instant::now() >= until).then_some(())
                    })
                    .await;
                }
            }
            assert!(
                member.runs() || member.said().contains("run the same command again"),
                "{}",
                member.said()
            );
            drop(member);
            if journal.exists() {
                let said = Member::launch(cluster.command(2), None).refuses();
                assert!(said.contains("a rebuild of this member was started"), "{said}");
                refused += 1;
            }
        }
        assert!(refused > 0, "none was killed under way");
        let command = rebuilding(&cluster.command(2));
        cluster.spawn_with(2, command);
        cluster.member(2).wait_for(REBUILT);
        assert!(!journal.exists());
        let members = client.members().await.expect("members are listed");
        assert_eq!(members.len(), 3, "{members:?}");
        cluster.assert_equal().await;
        let kv = cluster.client(2).await.get("k/050").await.expect("reads are served");
        assert_eq!(kv.expect("it is there").value, filler(50, 100));
        let aside = match &wal_dir {
            Some(dir) => dir.join("damaged-1/0000000000000000.seg"),
            None => cluster.slots[2].data_dir.join("member.damaged-1/log/0000000000000000.seg"),
        };
        assert_eq!(std::fs::metadata(aside).expect("it is kept").len(), 0, "the damaged one was moved first");
        cluster.kill(2);
        cluster.start_one(2);
        cluster.put(2, "after", "x").await;
        cluster.assert_equal().await;
        if let (Some(link), Some(log)) = (&link, &wal_dir) {
            assert!(link.is_symlink() && link.join("damaged-1").join(etcds).exists());
            assert!(log.join("0000000000000000.seg").exists(), "the new log is where the old one was");
            assert!(!member_dir.join("log").exists() && data_dir.join("member.damaged-1").exists());
        }
    });
}

#[test]
fn without_a_quorum_of_the_others_nothing_is_touched() {
    let mut cluster = Cluster::start("rebuild-alone", 3, &[]);
    run(async {
        cluster.put(0, "k", "v").await;
        cluster.assert_equal().await;
        for at in 0..3 {
            cluster.kill(at);
        }
        let segment = first_segment(&cluster, 2);
        open(&segment).set_len(0).expect("it can be cut");
        let said = Member::launch(rebuilding(&cluster.command(2)), None).refuses();
        assert!(said.contains("none of the other members answers"), "{said}");
        // A single other member starts but does not serve; its peer port answers.
        cluster.spawn(0);
        let address = cluster.slots[0].peer;
        eventually("it listens", PATIENCE, async || std::net::TcpStream::connect(address).ok()).await;
        let said = Member::launch(rebuilding(&cluster.command(2)), None).refuses();
        assert!(said.contains("quorum") || said.contains("none of the other members answers"), "{said}");
        let data_dir = &cluster.slots[2].data_dir;
        assert!(segment.exists() && !data_dir.join("rebuild").exists(), "nothing is touched");
        assert!(!data_dir.join("member.damaged-1").exists());
        // With a quorum, the rebuild works.
        cluster.spawn(1);
        let command = rebuilding(&cluster.command(2));
        cluster.member(1).wait_for(crate::member::READY);
        cluster.spawn_with(2, command);
        cluster.member(2).wait_for(REBUILT);
        cluster.assert_equal().await;
    });
}

#[test]
fn one_that_serves_without_a_quorum_is_told_apart() {
    let mut cluster = Cluster::start("rebuild-minority", 3, &[]);
    run(async {
        cluster.put(0, "k", "v").await;
        cluster.assert_equal().await;
        cluster.kill(1);
        cluster.kill(2);
        let said = Member::launch(rebuilding(&cluster.command(2)), None).refuses();
        assert!(said.contains("the other members have no quorum without this one"), "{said}");
        assert!(said.contains("--force-new-cluster"), "{said}");
        assert!(first_segment(&cluster, 2).exists());
    });
}

#[test]
fn a_single_member_has_nobody_to_be_rebuilt_from() {
    let dir = TempDir::new("rebuild-single");
    let setup = Setup::new(dir.path());
    setup.start().stop();
    let said = Member::launch(rebuilding(&setup.command()), None).refuses();
    assert!(said.contains("there is no source for a rebuild"), "{said}");
    assert!(said.contains("restore the data directory from a backup"), "{said}");
    setup.start().stop();
}

/// Returns the line that the journal of an interrupted rebuild holds.
fn journal(cluster: &Cluster, at: usize, old: u64, new: u64, state: &str) -> String {
    format!("{old:x} voter {new:x} {state} http://{}\n", cluster.slots[at].peer)
}

#[test]
fn a_rebuild_goes_on_only_for_the_member_it_was_begun_for() {
    let mut cluster = Cluster::start("rebuild-flags", 3, &[]);
    run(async {
        cluster.put(0, "k", "v").await;
        cluster.assert_equal().await;
        let client = cluster.client(0).await;
        let before = client.members().await.expect("members are listed");
        cluster.kill(2);
        let path = cluster.slots[2].data_dir.join("rebuild");
        std::fs::write(&path, journal(&cluster, 2, 0xdead, 0, "new")).expect("it can be written");
        // The flags belong to a running member, the data directory to the rebuilt one.
        let refused = || {
            let mut command = rebuilding(&cluster.command(1));
            command.arg("--data-dir").arg(&cluster.slots[2].data_dir);
            Member::launch(command, None).refuses()
        };
        let said = refused();
        assert!(said.contains("run it with the flags of that member"), "{said}");
        // A journal of an older version does not name its member. In this test, the running member has the
        // address.
        std::fs::write(&path, "dead voter\n").expect("it can be written");
        let said = refused();
        assert!(said.contains("is the address of member") && said.contains("(m1)"), "{said}");
        let (there, aside) = (path.with_file_name("member"), path.with_file_name("aside"));
        std::fs::rename(&there, &aside).expect("it can be moved");
        let said = refused();
        assert!(said.contains("answers at") && said.contains("stop it first"), "{said}");
        std::fs::rename(&aside, &there).expect("it can be moved");
        assert_eq!(client.members().await.expect("members are listed"), before, "nobody was removed");
        std::fs::remove_file(&path).expect("it can be removed");
        cluster.start_one(2);
        cluster.assert_equal().await;
    });
}

#[test]
fn flags_that_do_not_fit_are_refused_before_the_member_is_removed() {
    let mut cluster = Cluster::start("rebuild-address", 3, &[]);
    run(async {
        cluster.put(0, "k", "v").await;
        cluster.assert_equal().await;
        let client = cluster.client(0).await;
        let before = client.members().await.expect("members are listed");
        cluster.kill(2);
        let data_dir = cluster.slots[2].data_dir.clone();
        let (own, others) = (cluster.slots[2].peer_url(), cluster.slots[1].peer_url());
        let free = format!("http://{}", free_address_of(cluster.address()));
        let refused = |flags: &[String]| {
            let mut command = rebuilding(&cluster.command(2));
            command.args(flags);
            Member::launch(command, None).refuses()
        };
        // The state after a `member update` to other URLs than those in the flags.
        let moved = [
            format!("--initial-advertise-peer-urls={free}"),
            format!("--initial-cluster={},m2={free}", cluster.initial(&[0, 1])),
        ];
        let said = refused(&moved);
        assert!(
            said.contains(&format!("which the cluster lists at {own}, but the flags name {free}")),
            "{said}"
        );
        // The log belongs to another member.
        let said =
            refused(&[format!("--wal-dir={}", cluster.slots[1].data_dir.join("member/log").display())]);
        assert!(said.contains("holds the log of member") && said.contains("check --wal-dir"), "{said}");
        let other = cluster.dir.path().join("other");
        std::fs::create_dir_all(&other).expect("it can be made");
        std::fs::write(other.join("notes"), "x").expect("it can be written");
        let said = refused(&[format!("--wal-dir={}", other.display())]);
        assert!(said.contains("holds no log, but notes: check --wal-dir"), "{said}");
        assert!(other.join("notes").exists());
        // The journal belongs to a rebuild in another cluster.
        let line = journal(&cluster, 2, 0xdead, 0, "new");
        std::fs::write(data_dir.join("rebuild"), format!("{} beef\n", line.trim()))
            .expect("it can be written");
        let said = refused(&[]);
        assert!(said.contains("a rebuild of a member of cluster beef was started"), "{said}");
        // The member's data was already moved aside, and its address has changed since the rebuild began.
        std::fs::rename(data_dir.join("member"), data_dir.join("aside")).expect("it can be moved");
        let id = before.iter().find(|member| member.peer_urls == [own.clone()]).expect("it is listed").id;
        std::fs::write(data_dir.join("rebuild"), format!("{id:x} voter 0 new {free}\n"))
            .expect("it can be written");
        let said = refused(&moved);
        assert!(said.contains(&format!("which the cluster now lists at {own}")), "{said}");
        // One of the addresses belongs to another member.
        let urls = if own < others { format!("{own},{others}") } else { format!("{others},{own}") };
        std::fs::write(data_dir.join("rebuild"), format!("dead voter 0 new {urls}\n"))
            .expect("it can be written");
        let both = format!("--initial-advertise-peer-urls={own},{others}");
        let named = format!("--initial-cluster={},m2={own},m2={others}", cluster.initial(&[0]));
        let said = refused(&[both, named]);
        assert!(said.contains("is also one of this member"), "{said}");
        std::fs::rename(data_dir.join("aside"), data_dir.join("member")).expect("it can be moved");

        std::fs::remove_file(data_dir.join("rebuild")).expect("it can be removed");
        assert_eq!(client.members().await.expect("members are listed"), before, "nobody was removed");
        cluster.start_one(2);
        cluster.assert_equal().await;
    });
}

#[test]
fn a_cluster_with_users_wants_roots_certificate() {
    let mut cluster = Cluster::start("rebuild-users", 3, &[]);
    run(async {
        let client = cluster.client(0).await;
        let (root, _) = secured(&client).await;
        cluster.kill(2);
        let said = Member::launch(rebuilding(&cluster.command(2)), None).refuses();
        assert!(said.contains("authentication is on") && said.contains("issue it to root"), "{said}");
        assert!(!cluster.slots[2].data_dir.join("rebuild").exists(), "the member can be started as before");
        assert_eq!(root.members().await.expect("members are listed").len(), 3);
        cluster.start_one(2);
    });
}

#[test]
fn a_new_member_that_lost_its_data_once_it_ran_is_replaced_again() {
    replace_again(Cluster::plan("rebuild-again", 3, &[]));
}

#[test]
fn so_is_one_whose_log_is_left_in_a_directory_of_its_own() {
    let mut cluster = Cluster::plan("rebuild-again-wal-dir", 3, &[]);
    let wal_dir = cluster.dir.path().join("wal");
    cluster.slots[2].flags = vec![format!("--wal-dir={}", wal_dir.display())];
    replace_again(cluster);
}

/// Deletes the data directory of the last member, twice.
fn replace_again(mut cluster: Cluster) {
    cluster.start_all();
    run(async {
        cluster.put(0, "k", "v").await;
        cluster.assert_equal().await;
        let client = cluster.client(0).await;
        let ids = async || -> Vec<u64> {
            client.members().await.expect("members are listed").iter().map(|member| member.id).collect()
        };
        let name = cluster.slots[2].name.clone();
        let data_dir = cluster.slots[2].data_dir.clone();
        // A journal of an older version does not say which member was added, nor whether the member ran.
        for is_older in [false, true] {
            let before = ids().await;
            let members = client.members().await.expect("members are listed");
            let new = members.iter().find(|member| member.name == name).expect("it is a member").id;
            cluster.kill(2);
            // The state of a new member whose rebuild was killed after the member had run, and whose data is lost.
            std::fs::remove_dir_all(data_dir.join("member")).expect("it can be removed");
            let line = match is_older {
                false => journal(&cluster, 2, 0xdead, new, "started"),
                true => "dead voter\n".to_owned(),
            };
            std::fs::write(data_dir.join("rebuild"), line).expect("it can be written");
            let command = rebuilding(&cluster.command(2));
            cluster.spawn_with(2, command);
            cluster.member(2).wait_for(REBUILT);
            let after = ids().await;
            assert_eq!(after.len(), 3);
            assert!(
                before.contains(&new) && !after.contains(&new),
                "it may have voted under {new:x}: {after:x?}"
            );
            assert!(!data_dir.join("rebuild").exists());
            cluster.assert_equal().await;
        }
    });
}
