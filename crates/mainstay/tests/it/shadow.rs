//! Shadows as processes: they follow a member of Mainstay over its API, hold the same data, say so, and never say so
//! wrongly.

use std::path::{Path, PathBuf};
use std::process::Command;

use api::Rpc;
use api::etcdserverpb::{LeaseGrantRequest, LeaseGrantResponse, TxnRequest, TxnResponse};
use testkit::{TempDir, eventually, wait_until};

use crate::client::{Client, delete_op, put_op};
use crate::cluster::PATIENCE;
use crate::member::{Member, Setup, binary};
use crate::run;

const EQUAL: &str = "source and copy are equal";
const DIFFERENT: &str = "source and copy are DIFFERENT";

/// A source with the same address after a restart.
struct Source {
    setup: Setup,
    url: String,
}

impl Source {
    fn new(dir: &Path, token: &str) -> Source {
        let url = format!("http://{}", testkit::ports::free_address());
        std::fs::create_dir_all(dir.join(token)).expect("a directory");
        let mut setup = Setup::new(&dir.join(token));
        for flag in ["listen-client-urls", "advertise-client-urls"] {
            setup = setup.flag(format!("--{flag}={url}"));
        }
        Source { setup: setup.flag(format!("--initial-cluster-token={token}")), url }
    }

    /// Starts a shadow of this source.
    fn shadow(&self, dir: &Path, flags: &[&str]) -> Member {
        shadow(&self.url, dir, flags)
    }
}

fn shadow(feed: &str, dir: &Path, flags: &[&str]) -> Member {
    let mut command = Command::new(binary());
    // A loaded machine may need long for a hash, and a test should not wait a thousand times as long for the next.
    command
        .env_clear()
        .args(["shadow", "--compare-rest=0", "--feed", feed, "--data-dir"])
        .arg(dir)
        .args(flags);
    Member::launch(command, None)
}

/// Waits until the shadow has compared this revision or a later one, and found it equal.
fn equal_at(shadow: &Member, revision: i64) {
    wait_until("an equal comparison", PATIENCE, || {
        let said = shadow.said();
        assert!(!said.contains(DIFFERENT), "{said}");
        let mut equal = said.lines().filter(|line| line.contains(EQUAL));
        equal.any(|line| revision_in(line) >= revision).then_some(())
    });
}

/// Returns the number of the field `revision` of a log line.
fn revision_in(line: &str) -> i64 {
    let rest = line.split("\"revision\":").nth(1).unwrap_or_default();
    rest.split([',', '}']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Ends the shadow with SIGTERM; returns its exit code and what it said.
fn ended(shadow: Member) -> (Option<i32>, String) {
    shadow.signal(libc::SIGTERM);
    shadow.exit()
}

async fn transaction(client: &Client, keys: usize, round: usize) -> i64 {
    let mut success: Vec<_> = (0..keys).map(|n| put_op(format!("t/{n}"), format!("{round}"))).collect();
    success.push(delete_op("gone"));
    let request = TxnRequest { success, ..TxnRequest::default() };
    let answer: TxnResponse = client.call(Rpc::KvTxn, &request).await.expect("is taken");
    answer.header.expect("a header").revision
}

/// Makes changes of each kind. Returns the last revision.
async fn history(client: &Client, round: usize) -> i64 {
    let lease = client.grant(600).await.expect("is granted");
    for n in 0..40 {
        client.put(format!("k/{n}"), vec![b'v'; n * 50]).await.expect("is put");
        client.put_leased(format!("l/{n}"), "leased", lease).await.expect("is put");
    }
    client.put("gone", "x").await.expect("is put");
    transaction(client, 20, round).await;
    for n in 0..10 {
        client.delete(format!("k/{n}")).await.expect("is deleted");
    }
    // One revision with many deletions.
    client.revoke(lease).await.expect("is revoked");
    let kept = client.grant(600).await.expect("is granted");
    client.put_leased("kept", format!("{round}"), kept).await.expect("is put")
}

fn data_of(shadow: &Path) -> PathBuf {
    shadow.join("data")
}

/// Starts the copy of a shadow as a member that takes writes, as no one should.
fn opened(shadow: &Path) -> Member {
    let mut setup = Setup::new(shadow);
    setup.data_dir = data_of(shadow);
    setup.start()
}

#[test]
fn every_kind_of_change_every_compaction_and_every_restart_leaves_them_equal() {
    let dir = TempDir::in_memory("shadow");
    let (source, at) = (Source::new(dir.path(), "one"), dir.path().join("shadow"));
    let mut member = source.setup.start();
    run(async {
        let client = member.client().await;
        let before = history(&client, 0).await;
        client.compact(before - 20, true).await.expect("is compacted");
        let metrics = testkit::ports::free_address();
        let flags = [&*format!("--listen-metrics-urls=http://{metrics}"), "--compare-interval=1s"];
        let shadow = source.shadow(&at, &flags);
        shadow.wait_for("the copy serves nobody");
        equal_at(&shadow, before);

        let last = history(&client, 1).await;
        equal_at(&shadow, last);
        // A compaction is followed, and its hash compared.
        client.compact(last - 5, false).await.expect("is compacted");
        shadow.wait_for(&format!("\"followed a compaction of the source\",\"revision\":{}", last - 5));
        let last = history(&client, 2).await;
        equal_at(&shadow, last);
        let answer = testkit::http1::get(metrics, "/metrics");
        let text = answer.text();
        for line in [
            format!("mainstay_shadow_revision {last}"),
            format!("mainstay_shadow_source_revision {last}"),
            "mainstay_shadow_lag_revisions 0".to_owned(),
            "mainstay_shadow_different 0".to_owned(),
            "mainstay_shadow_connected 1".to_owned(),
            "mainstay_shadow_snapshots_total 1".to_owned(),
            "mainstay_shadow_comparisons_total{result=\"different\"} 0".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
        assert_eq!(testkit::http1::get(metrics, "/health").status, 200);
        // Nothing else listens.
        assert_eq!(listeners(shadow.pid()), 1, "only the listener for metrics");

        // Killed and started again, it goes on where its copy is.
        shadow.kill();
        let last = history(&client, 3).await;
        let shadow = source.shadow(&at, &flags);
        equal_at(&shadow, last);
        assert!(!shadow.said().contains("taking a snapshot"), "{}", shadow.said());
        // The source is away for a while.
        member.kill();
        shadow.wait_for("cannot follow the source; trying again");
        member = source.setup.start();
        let client = member.client().await;
        let last = history(&client, 4).await;
        equal_at(&shadow, last);
        shadow.wait_for("the shadow follows its source again");

        // Leases are those of the source, also one without keys.
        let request = LeaseGrantRequest { id: 77, ttl: 1234 };
        let _: LeaseGrantResponse = client.call(Rpc::LeaseGrant, &request).await.expect("is granted");
        let (code, said) = ended(shadow);
        assert_eq!(code, Some(0), "{said}");
        let shadow = source.shadow(&at, &flags);
        equal_at(&shadow, last);
        let reader = Client::connect(member.client_address()).await;
        let wanted = reader.leases().await.expect("leases").len();
        eventually("the leases are there", PATIENCE, async || {
            let answer = testkit::http1::get(metrics, "/metrics");
            let granted: u64 = answer
                .text()
                .lines()
                .find_map(|line| line.strip_prefix("etcd_debugging_lease_granted_total "))
                .and_then(|count| count.parse().ok())?;
            (granted >= 1).then_some(())
        })
        .await;
        let (code, said) = ended(shadow);
        assert_eq!(code, Some(0), "{said}");
        let copy = opened(&at);
        let there = copy.client().await;
        assert_eq!(there.leases().await.expect("leases").len(), wanted);
        assert_eq!(there.time_to_live(77, false).await.expect("a lease").granted_ttl, 1234);
        let (mine, theirs) =
            (client.hash_kv(last).await.expect("a hash"), there.hash_kv(last).await.expect("a hash"));
        assert_eq!((mine.hash, mine.compact_revision), (theirs.hash, theirs.compact_revision));
    });
}

/// Returns the number of listening TCP sockets of a process.
fn listeners(pid: u32) -> usize {
    let inodes: Vec<String> = ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok())
        .flat_map(|text| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A is the state LISTEN.
            (fields.get(3) == Some(&"0A")).then(|| format!("socket:[{}]", fields[9]))
        })
        .collect();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs");
    let open = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    open.filter(|target| inodes.iter().any(|inode| target.as_os_str() == inode.as_str())).count()
}

#[test]
fn a_planted_change_is_found_named_and_never_forgotten() {
    let dir = TempDir::in_memory("shadow-different");
    let (source, at) = (Source::new(dir.path(), "one"), dir.path().join("shadow"));
    let member = source.setup.start();
    run(async {
        let client = member.client().await;
        let last = history(&client, 0).await;
        let shadow = source.shadow(&at, &[]);
        equal_at(&shadow, last);
        let (code, _) = ended(shadow);
        assert_eq!(code, Some(0));
        // The same number of revisions, another value.
        let copy = opened(&at);
        let there = copy.client().await;
        there.put("planted", "y").await.expect("is put");
        copy.stop();
        client.put("planted", "x").await.expect("is put");
        let last = client.put("after", "x").await.expect("is put");
        let shadow = source.shadow(&at, &["--compare-interval=1s"]);
        let line = shadow.wait_for(DIFFERENT);
        assert!(line.contains("key \\\"planted\\\" is (create revision"), "{line}");
        assert!(line.contains("hash-of-copy") && line.contains(&source.url), "{line}");
        // It goes on, and says so at its end and at its next start.
        assert!(revision_in(&line) >= last - 1, "{line}");
        let (code, said) = ended(shadow);
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("of them DIFFERENT"), "{said}");
        let (code, said) = source.shadow(&at, &["--exit-on-mismatch"]).exit();
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("an earlier comparison with this data directory was different"), "{said}");
        assert!(data_of(&at).is_dir(), "the data are kept");
    });
}

#[test]
fn a_change_that_does_not_fit_the_copy_ends_the_shadow() {
    let dir = TempDir::in_memory("shadow-misfit");
    let (source, at) = (Source::new(dir.path(), "one"), dir.path().join("shadow"));
    let member = source.setup.start();
    run(async {
        let client = member.client().await;
        client.put("a", "x").await.expect("is put");
        let last = client.put("b", "x").await.expect("is put");
        let shadow = source.shadow(&at, &[]);
        equal_at(&shadow, last);
        assert_eq!(ended(shadow).0, Some(0));
        let copy = opened(&at);
        copy.client().await.delete("a").await.expect("is deleted");
        copy.stop();
        client.put("c", "x").await.expect("is put");
        client.delete("a").await.expect("is deleted");
        let (code, said) = source.shadow(&at, &["--compare-interval=0"]).exit();
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("the copy is different from the source"), "{said}");
    });
}

#[test]
fn a_copy_that_the_source_has_outrun_is_made_again_or_not_as_told() {
    let dir = TempDir::in_memory("shadow-outrun");
    let (source, at) = (Source::new(dir.path(), "one"), dir.path().join("shadow"));
    let member = source.setup.start();
    run(async {
        let client = member.client().await;
        let last = history(&client, 0).await;
        let shadow = source.shadow(&at, &[]);
        equal_at(&shadow, last);
        assert_eq!(ended(shadow).0, Some(0));
        history(&client, 1).await;
        let last = history(&client, 2).await;
        client.compact(last, true).await.expect("is compacted");
        let (code, said) = source.shadow(&at, &["--restart-on-compaction=false"]).exit();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("the source has compacted revision"), "{said}");
        let shadow = source.shadow(&at, &["--compare-interval=1s"]);
        shadow.wait_for("the shadow begins again from a snapshot");
        shadow.wait_for("made a copy from the snapshot");
        // At exactly the revision of the compaction the source has only the hash for the compact revision before it.
        let last = client.put("after", "x").await.expect("is put");
        equal_at(&shadow, last);
        let last = history(&client, 3).await;
        equal_at(&shadow, last);
        assert_eq!(ended(shadow).0, Some(0));
        // Compacted at exactly the next revision, a source may have lost the deletions of that revision.
        let (deleted, _) = client.delete("after").await.expect("is deleted");
        assert_eq!(deleted, last + 1);
        client.compact(deleted, true).await.expect("is compacted");
        let (code, said) = source.shadow(&at, &["--restart-on-compaction=false"]).exit();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&format!("the source has compacted revision {deleted}")), "{said}");
        // What a kill leaves of a copy that is being removed does not count as a copy.
        std::fs::rename(data_of(&at), at.join("data.removed")).expect("is renamed");
        let shadow = source.shadow(&at, &["--compare-interval=1s"]);
        shadow.wait_for("made a copy from the snapshot");
        let last = client.put("after", "y").await.expect("is put");
        equal_at(&shadow, last);
        assert!(!at.join("data.removed").exists(), "it is removed");
        assert_eq!(ended(shadow).0, Some(0));
    });
}

#[test]
fn another_cluster_an_older_source_and_a_foreign_directory_are_refused() {
    let dir = TempDir::in_memory("shadow-refused");
    let (one, two) = (Source::new(dir.path(), "one"), Source::new(dir.path(), "two"));
    let at = dir.path().join("shadow");
    let (first, second) = (one.setup.start(), two.setup.start());
    run(async {
        let client = first.client().await;
        client.put("a", "x").await.expect("is put");
        let both = format!("{},{}", one.url, two.url);
        let (code, said) = shadow(&both, &at, &[]).exit();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("--feed names members of two clusters"), "{said}");

        let running = one.shadow(&at, &[]);
        equal_at(&running, 2);
        let (code, said) = one.shadow(&at, &[]).exit();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("another shadow uses"), "{said}");
        assert_eq!(ended(running).0, Some(0));

        let (code, said) = two.shadow(&at, &[]).exit();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("but this shadow is a copy of cluster"), "{said}");

        // The copy is ahead: the source was restored from a backup with the same identity.
        let copy = opened(&at);
        copy.client().await.put("b", "x").await.expect("is put");
        copy.stop();
        let (code, said) = one.shadow(&at, &[]).exit();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("the source was restored from a backup"), "{said}");

        let (code, said) = one.shadow(&data_of(&at), &[]).exit();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("which no shadow has made"), "{said}");
        drop(second);
    });
}

#[test]
fn authentication_needs_root_and_the_copy_has_no_users() {
    let dir = TempDir::in_memory("shadow-auth");
    let (source, at) = (Source::new(dir.path(), "one"), dir.path().join("shadow"));
    let member = source.setup.start();
    run(async {
        let client = member.client().await;
        client.put("a", "x").await.expect("is put");
        let ctl = |words: &[&str]| {
            let mut command = Command::new(binary());
            let done = command
                .env_clear()
                .args(["ctl", "--endpoints", &source.url])
                .args(words)
                .output()
                .expect("it runs");
            assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        };
        ctl(&["user", "add", "root:pw"]);
        ctl(&["user", "grant-role", "root", "root"]);
        ctl(&["user", "add", "bob:pw"]);
        ctl(&["auth", "enable"]);
        for flags in [&[][..], &["--user=bob:pw"], &["--user=root:wrong"]] {
            let (code, said) = source.shadow(&at, flags).exit();
            assert_eq!(code, Some(1), "{flags:?}: {said}");
            assert!(said.contains("a user with the role root"), "{flags:?}: {said}");
        }
        let shadow = source.shadow(&at, &["--user=root:pw", "--compare-interval=1s"]);
        equal_at(&shadow, 2);
        // A change of users makes the shadow's token invalid.
        ctl(&["--user", "root:pw", "user", "add", "carl:pw"]);
        ctl(&["--user", "root:pw", "put", "b", "x"]);
        equal_at(&shadow, 3);
        assert_eq!(ended(shadow).0, Some(0));
        let copy = opened(&at);
        assert!(copy.client().await.get("b").await.expect("everyone may read").is_some());
    });
}
