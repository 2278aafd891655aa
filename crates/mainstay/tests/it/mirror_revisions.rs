//! `make-mirror --keep-revisions`: a second cluster that replays the history of the first, and replaces it.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DeleteRangeRequest, DeleteRangeResponse,
    LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesResponse, RangeRequest, TxnRequest, TxnResponse,
};
use api::{Code, Rpc, Status};
use prost::Message as _;
use testkit::{TIMEOUT, TempDir};
use tokio::sync::watch;

use crate::client::{Client, delete_op, put_op};
use crate::forwarder::{Asked, Forwarder, Verdict};
use crate::member::{Member, Setup, binary};
use crate::run;

/// A member of a separate cluster, which has the same address after a restart.
struct Side {
    setup: Setup,
    url: String,
}

impl Side {
    fn new(dir: &Path, token: &str) -> Side {
        let url = format!("http://{}", testkit::ports::free_address());
        let mut setup = Setup::new(&dir.join(token));
        std::fs::create_dir(dir.join(token)).expect("a directory");
        for flag in ["listen-client-urls", "advertise-client-urls"] {
            setup = setup.flag(format!("--{flag}={url}"));
        }
        Side { setup: setup.flag(format!("--initial-cluster-token={token}")), url }
    }
}

fn mirror(source: &Side, target: &Side, flags: &[&str]) -> Command {
    between(&source.url, &target.url, flags)
}

fn between(source: &str, target: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .env_clear()
        .args(["ctl", "make-mirror", "--endpoints", source, "--keep-revisions", target])
        .args(flags)
        .stdin(Stdio::null());
    command
}

fn run_mirror(source: &Side, target: &Side, flags: &[&str]) -> Output {
    mirror(source, target, flags).output().expect("the binary runs")
}

fn refused(output: &Output, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(words), "{said}");
}

/// A running mirror process, which is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn delete_range(client: &Client, from: &str, to: &str) -> i64 {
    let request =
        DeleteRangeRequest { key: from.to_owned().into(), range_end: to.to_owned().into(), prev_kv: false };
    client.call::<DeleteRangeResponse>(Rpc::KvDeleteRange, &request).await.expect("is deleted").deleted
}

/// Makes changes of each kind: transactions of several keys, and ranges and leases with more keys than a
/// transaction may name.
async fn history(client: &Client) {
    for n in 0..150 {
        client.put(format!("a/{n:03}"), "once").await.expect("is put");
    }
    let lease = client.grant(600).await.expect("is granted");
    for n in 0..300 {
        // Every other key of the range belongs to the lease.
        let key = format!("l/{n:03}");
        let put = if n % 2 == 0 {
            client.put(key, "free").await
        } else {
            client.put_leased(key, "bound", lease).await
        };
        put.expect("is put");
    }
    let success = vec![put_op("t/1", "x"), delete_op("a/007"), put_op("a/001", "twice"), put_op("t/0", "")];
    let request = TxnRequest { success, ..TxnRequest::default() };
    let _: TxnResponse = client.call(Rpc::KvTxn, &request).await.expect("is taken");
    assert_eq!(delete_range(client, "a/", "a/1").await, 99, "all but a/007");
    client.revoke(lease).await.expect("is revoked");
    client.delete("t/1").await.expect("is deleted");
    client.put("t/1", "again").await.expect("is put");
    assert_eq!(delete_range(client, "l/", "l0").await, 150);
}

async fn hash(member: &Member) -> (i64, u32) {
    let client = member.client().await;
    let answer = client.hash_kv(0).await.expect("is hashed");
    (answer.hash_revision, answer.hash)
}

#[test]
fn a_mirror_goes_through_every_revision_and_takes_the_place_of_its_source() {
    let dir = TempDir::in_memory("mirror-revisions");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        let client = here.client().await;
        history(&client).await;
        let lease = client.grant(77).await.expect("is granted");
        client.put_leased("kept", "v", lease).await.expect("is put");
        let idle = client.grant(66).await.expect("is granted");

        // A client writes all the time, until the source refuses writes.
        let command =
            mirror(&source, &target, &["--cut-over"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = command.expect("the binary runs");
        let moved = tokio::task::spawn_blocking(|| child.wait_with_output().expect("it ends"));
        let mut written = 0_u64;
        let refusal = loop {
            match client.put("busy", written.to_string()).await {
                Ok(_) => written += 1,
                Err(status) => break status,
            }
        };
        assert_eq!(refusal, api::error::CORRUPT);
        let moved = moved.await.expect("no panic");
        let said = String::from_utf8_lossy(&moved.stdout).into_owned();
        assert!(moved.status.success(), "{said}{}", String::from_utf8_lossy(&moved.stderr));
        assert!(said.ends_with("the destination has taken the source's place\n"), "{said}");

        assert!(written > 0);
        let new = there.client().await;
        let busy = new.get("busy").await.expect("is read").expect("was written");
        assert_eq!(busy.value, (written - 1).to_string(), "the last acknowledged write");
        // The hash covers every version, creation, tombstone and lease of the whole history.
        assert_eq!(hash(&here).await, hash(&there).await);
        let (mut old_leases, mut new_leases) =
            (client.leases().await.expect("leases"), new.leases().await.expect("leases"));
        old_leases.sort_unstable();
        new_leases.sort_unstable();
        assert_eq!(old_leases, new_leases);
        assert!(new_leases.contains(&lease) && new_leases.contains(&idle));
        let life = new.time_to_live(lease, true).await.expect("a lease");
        assert_eq!((life.granted_ttl, life.keys), (77, vec!["kept".into()]));
        assert!(life.ttl >= 70, "it was renewed: {}", life.ttl);
        // A second cut-over is refused, and leaves the source as it is.
        new.put("first", "v").await.expect("takes writes");
        refused(&run_mirror(&source, &target, &["--cut-over"]), "the source already has a CORRUPT alarm");
        // The source still refuses writes, including deletes, until an operator clears the alarm.
        assert_eq!(client.delete("kept").await, Err(api::error::CORRUPT));
        client.disarm().await.expect("is disarmed");
        client.put("kept", "w").await.expect("takes writes again");
        new.put("kept", "x").await.expect("takes writes");
    });
}

#[test]
fn a_mirror_goes_on_where_its_destination_is_whoever_is_killed() {
    let dir = TempDir::in_memory("mirror-killed");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let here = source.setup.start();
    let mut there = target.setup.start();
    run(async {
        let client = here.client().await;
        for round in 0..3 {
            let mirror = Running(
                mirror(&source, &target, &[]).stdout(Stdio::null()).spawn().expect("the binary runs"),
            );
            history(&client).await;
            // The destination is killed in the middle of the run, under the same mirror.
            there.kill();
            there = target.setup.start();
            client.put("round", round.to_string()).await.expect("is put");
            if round == 1 {
                // Then the mirror itself is killed.
                drop(mirror);
                continue;
            }
            let wanted = client.status().await.expect("a status").header.expect("a header").revision;
            let new = there.client().await;
            let reached = async {
                while new.status().await.expect("a status").header.expect("a header").revision < wanted {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(TIMEOUT, reached).await.expect("the mirror comes up");
        }
        assert_eq!(hash(&here).await, hash(&there).await);
    });
}

#[test]
fn a_destination_that_is_no_copy_is_told_and_the_source_goes_on() {
    let dir = TempDir::in_memory("mirror-refused");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    refused(&run_mirror(&source, &source, &[]), "source and destination are the same cluster");
    run(async {
        let (client, new) = (here.client().await, there.client().await);
        new.put("k", "v").await.expect("is put");
        refused(
            &run_mirror(&source, &target, &[]),
            "the destination is at revision 2, but the source only at 1",
        );
        client.put("k", "other").await.expect("is put");
        let words = "at revision 2, 1 of 1 keys differ; the first is \"k\"";
        refused(&run_mirror(&source, &target, &["--cut-over"]), words);
        assert_eq!(client.alarms().await.expect("alarms"), []);

        // The destination stays an exact copy until a client writes to it.
        new.put("k", "v").await.expect("is put");
        client.put("k", "v").await.expect("is put");
        client.compact(3, true).await.expect("is compacted");
        new.compact(3, true).await.expect("is compacted");
        let running = mirror(&source, &target, &[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let running = running.expect("the binary runs");
        client.put("a", "1").await.expect("is put");
        while new.get("a").await.expect("is read").is_none() {
            tokio::task::yield_now().await;
        }
        new.put("foreign", "x").await.expect("is put");
        client.put("a", "2").await.expect("is put");
        let output = tokio::task::spawn_blocking(|| running.wait_with_output().expect("it ends"));
        refused(&output.await.expect("no panic"), "another client writes to the destination");
        assert_eq!(client.get("a").await.expect("is read").expect("is there").value, "2");

        // History that the source has compacted cannot be replayed.
        let fresh = Side::new(dir.path(), "three");
        let _there = fresh.setup.start();
        refused(&run_mirror(&source, &fresh, &[]), "compacted");
    });
    let words = run_mirror(&source, &target, &["--prefix=a"]);
    assert_eq!(words.status.code(), Some(128), "{}", String::from_utf8_lossy(&words.stderr));
}

/// Returns the action of an alarm request.
fn alarm_action(asked: &Asked) -> Option<AlarmAction> {
    if asked.path != Rpc::MaintenanceAlarm.path() {
        return None;
    }
    let request = AlarmRequest::decode(asked.message.clone()).expect("a request");
    AlarmAction::try_from(request.action).ok()
}

/// Runs a mirror to its end without blocking the runtime.
async fn ended(mut command: Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = tokio::task::spawn_blocking(move || command.output().expect("the binary runs"));
    running.await.expect("no panic")
}

/// Returns a signal that is set by the first request with this action, and a callback that sets it.
fn seen(action: AlarmAction) -> (watch::Receiver<bool>, impl Fn(&Asked)) {
    let (sender, receiver) = watch::channel(false);
    (receiver, move |asked: &Asked| {
        if alarm_action(asked) == Some(action) {
            sender.send_replace(true);
        }
    })
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn no_side_reads_more_than_what_has_changed_while_writes_are_stopped() {
    let dir = TempDir::in_memory("mirror-cheap");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        history(&here.client().await).await;
        let (stopped, see) = seen(AlarmAction::Activate);
        let left = Forwarder::start(here.client_address(), move |asked| {
            see(asked);
            Verdict::Pass
        })
        .await;
        // Records the requests to the destination from then on.
        let while_stopped = stopped.clone();
        let right = Forwarder::start(there.client_address(), move |asked| {
            if *while_stopped.borrow() && asked.path == Rpc::KvRange.path() {
                let range = RangeRequest::decode(asked.message.clone()).expect("a request");
                if !range.range_end.is_empty() && !range.count_only {
                    return Verdict::Fail(Status::new(Code::Internal, "a whole range"));
                }
            }
            Verdict::Pass
        })
        .await;
        succeeded(&ended(between(&left.url, &right.url, &["--cut-over"])).await);
        for asked in left.asked() {
            if asked.path == Rpc::KvRange.path() {
                let range = RangeRequest::decode(asked.message).expect("a request");
                assert_eq!(range.min_mod_revision, 0, "etcd reads everything for this, whatever the limit");
            } else if asked.path == Rpc::Watch.path() {
                assert!(asked.requires_leader, "a member that is cut off from the others says nothing more");
            }
        }
    });
}

#[test]
fn writes_go_on_when_the_destination_does_not_come_up_in_time() {
    let dir = TempDir::in_memory("mirror-bounded");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        let client = here.client().await;
        history(&client).await;
        let (stopped, see) = seen(AlarmAction::Activate);
        let failures = AtomicU32::new(0);
        let left = Forwarder::start(here.client_address(), move |asked| {
            see(asked);
            let is_first = || failures.fetch_add(1, Ordering::Relaxed) < 2;
            if alarm_action(asked) == Some(AlarmAction::Deactivate) && is_first() {
                return Verdict::Fail(api::error::TIMEOUT);
            }
            Verdict::Pass
        })
        .await;
        let (_never, silence) = watch::channel(false);
        let right = Forwarder::start(there.client_address(), move |_| {
            if *stopped.borrow() { Verdict::When(silence.clone()) } else { Verdict::Pass }
        })
        .await;
        let flags = ["--cut-over", "--stop-timeout=2s"];
        let output = ended(between(&left.url, &right.url, &flags)).await;
        refused(&output, "within 2s of --stop-timeout; the source accepts writes again");
        assert_eq!(client.alarms().await.expect("alarms"), []);
        client.put("goes", "on").await.expect("is put");
    });
}

#[test]
fn writes_are_not_stopped_while_that_would_take_too_long() {
    let dir = TempDir::in_memory("mirror-rehearsed");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, _there) = (source.setup.start(), target.setup.start());
    run(async {
        let client = here.client().await;
        history(&client).await;
        let flags = ["--cut-over", "--stop-timeout=1us"];
        let child = mirror(&source, &target, &flags).stdout(Stdio::piped()).spawn();
        let mut running = Running(child.expect("the binary runs"));
        let mut lines = BufReader::new(running.0.stdout.take().expect("is piped")).lines();
        let told = tokio::task::spawn_blocking(move || {
            lines.any(|line| line.is_ok_and(|line| line.contains("not stopping writes yet")))
        });
        assert!(told.await.expect("no panic"));
        assert_eq!(client.alarms().await.expect("alarms"), []);
        client.put("goes", "on").await.expect("is put");
    });
    for flags in [&["--stop-timeout=5s"][..], &["--cut-over", "--stop-timeout=0s"]] {
        let output = run_mirror(&source, &target, flags);
        assert_eq!(output.status.code(), Some(128), "{output:?}");
    }
}

#[test]
fn rehearsals_leave_the_source_time() {
    let dir = TempDir::in_memory("mirror-pauses");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, _there) = (source.setup.start(), target.setup.start());
    run(async {
        here.client().await.put("k", "v").await.expect("is put");
        let (times, mut listed) = watch::channel(Vec::new());
        let left = Forwarder::start(here.client_address(), move |asked| {
            // Each rehearsal sends this request once.
            if asked.path == Rpc::LeaseLeases.path() {
                times.send_modify(|times| times.push(Instant::now()));
            }
            Verdict::Pass
        })
        .await;
        let mut command = between(&left.url, &target.url, &["--cut-over", "--stop-timeout=1us"]);
        let _running = Running(command.stdout(Stdio::null()).spawn().expect("the binary runs"));
        let times = listed.wait_for(|times| times.len() >= 8).await.expect("comes").clone();
        // The first two requests may have been sent before the rehearsals.
        assert!(times[7] - times[2] >= 5 * Duration::from_millis(100), "{times:?}");
    });
}

#[test]
fn one_of_two_cut_overs_at_once_gives_way() {
    let dir = TempDir::in_memory("mirror-two");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        let client = here.client().await;
        client.put("k", "v").await.expect("is put");
        let (mut stopping, see) = seen(AlarmAction::Activate);
        let (go_on, signal) = watch::channel(false);
        let left = Forwarder::start(here.client_address(), move |asked| {
            see(asked);
            match alarm_action(asked) {
                Some(AlarmAction::Activate) => Verdict::When(signal.clone()),
                _ => Verdict::Pass,
            }
        })
        .await;
        let cut_over = tokio::spawn(ended(between(&left.url, &target.url, &["--cut-over"])));
        stopping.wait_for(|is_so| *is_so).await.expect("comes");
        // The mirror has found no alarm. Now another process raises its own alarm, before the mirror's.
        let other = 0x77;
        let alarm = AlarmType::Corrupt as i32;
        let request = AlarmRequest { action: AlarmAction::Activate as i32, member_id: other, alarm };
        let _: AlarmResponse = client.call(Rpc::MaintenanceAlarm, &request).await.expect("is raised");
        go_on.send_replace(true);
        let output = cut_over.await.expect("no panic");
        refused(
            &output,
            "the source has another CORRUPT alarm (77), possibly from a cut-over to another destination",
        );
        assert!(
            !String::from_utf8_lossy(&output.stdout).contains("has taken the source's place"),
            "{output:?}"
        );
        assert_eq!(client.alarms().await.expect("alarms"), [AlarmMember { member_id: other, alarm }]);
        there.client().await.put("goes", "on").await.expect("is put");
    });
}

#[test]
fn a_closed_terminal_ends_a_cut_over_and_another_signal_ends_its_end() {
    let dir = TempDir::in_memory("mirror-signals");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        let client = here.client().await;
        client.put("k", "v").await.expect("is put");
        let (mut stopped, see_stop) = seen(AlarmAction::Activate);
        let (mut taken_back, see_end) = seen(AlarmAction::Deactivate);
        let (_never, silence) = watch::channel(false);
        let no_answer = silence.clone();
        let left = Forwarder::start(here.client_address(), move |asked| {
            see_stop(asked);
            see_end(asked);
            match alarm_action(asked) {
                Some(AlarmAction::Deactivate) => Verdict::When(no_answer.clone()),
                _ => Verdict::Pass,
            }
        })
        .await;
        let is_stopped = stopped.clone();
        let right = Forwarder::start(there.client_address(), move |_| {
            if *is_stopped.borrow() { Verdict::When(silence.clone()) } else { Verdict::Pass }
        })
        .await;
        let mut command = between(&left.url, &right.url, &["--cut-over", "--stop-timeout=60s"]);
        // A test run under `nohup` inherits an ignored SIGHUP, which the mirror would keep ignoring.
        // SAFETY: signal() may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                Ok(())
            })
        };
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let pid = libc::pid_t::try_from(child.id()).expect("a pid");
        // SAFETY: plain system calls; the process is a child that was not waited for yet.
        let signal = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        stopped.wait_for(|is_so| *is_so).await.expect("comes");
        // The mirror knows that writes are stopped when it requests the revision.
        let is_next = |asked: &[Asked]| {
            let mut behind =
                asked.iter().skip_while(|asked| alarm_action(asked) != Some(AlarmAction::Activate));
            behind.any(|asked| asked.path == Rpc::KvRange.path())
        };
        while !is_next(&left.asked()) {
            tokio::task::yield_now().await;
        }
        signal(libc::SIGHUP);
        taken_back.wait_for(|is_so| *is_so).await.expect("comes");
        signal(libc::SIGTERM);
        let output = tokio::task::spawn_blocking(|| child.wait_with_output().expect("it ends"));
        let output = output.await.expect("no panic");
        refused(&output, "interrupted; the source accepts no writes");
        refused(&output, "(interrupted again): run `alarm disarm`");
    });
}

#[test]
fn a_cut_over_stays_done_whoever_reads_of_it() {
    let dir = TempDir::in_memory("mirror-unread");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, _there) = (source.setup.start(), target.setup.start());
    run(async {
        let client = here.client().await;
        client.put("k", "v").await.expect("is put");
        let (go_on, signal) = watch::channel(false);
        let left = Forwarder::start(here.client_address(), move |asked| match alarm_action(asked) {
            Some(AlarmAction::Activate) => Verdict::When(signal.clone()),
            _ => Verdict::Pass,
        })
        .await;
        let mut command = between(&left.url, &target.url, &["--cut-over"]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let stdout = child.stdout.take().expect("is piped");
        let read = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(stdout).lines();
            lines.any(|line| line.is_ok_and(|line| line.contains("stopping writes")))
        });
        assert!(read.await.expect("no panic"));
        // No one reads the pipe any more, so a write to it fails.
        go_on.send_replace(true);
        let output = tokio::task::spawn_blocking(|| child.wait_with_output().expect("it ends"));
        succeeded(&output.await.expect("no panic"));
        assert_eq!(client.put("k", "w").await, Err(api::error::CORRUPT));
    });
}

#[test]
fn a_source_that_refuses_the_alarm_is_not_said_to_be_stopped() {
    let dir = TempDir::in_memory("mirror-no-alarm");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, _there) = (source.setup.start(), target.setup.start());
    run(async {
        here.client().await.put("k", "v").await.expect("is put");
        let left = Forwarder::start(here.client_address(), |asked| match alarm_action(asked) {
            Some(AlarmAction::Activate) => Verdict::Fail(api::error::PERMISSION_DENIED),
            _ => Verdict::Pass,
        })
        .await;
        let output = ended(between(&left.url, &target.url, &["--cut-over"])).await;
        refused(&output, "the source refuses to stop writes, and continues: etcdserver: permission denied");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("accepts no writes"), "{output:?}");
    });
}

#[test]
fn leases_are_those_of_the_source_when_the_destination_takes_its_place() {
    let dir = TempDir::in_memory("mirror-leases");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        let (client, new) = (here.client().await, there.client().await);
        let grant = async |client: &Client, id, ttl| {
            let request = LeaseGrantRequest { ttl, id };
            let _: LeaseGrantResponse = client.call(Rpc::LeaseGrant, &request).await.expect("is granted");
        };
        // Leases granted again with the same ids, but other TTLs.
        for (id, before, now) in [(7, 3600, 50), (8, 50, 3600)] {
            grant(&new, id, before).await;
            grant(&client, id, now).await;
        }
        for id in 100..110 {
            grant(&client, id, 600).await;
            grant(&new, id, 600).await;
        }
        // Renewals whose responses are held back until all of them were requested.
        let renewals = AtomicU32::new(0);
        let right = Forwarder::start(there.client_address(), move |asked| {
            let is_renewal = asked.path == Rpc::LeaseKeepAlive.path();
            if is_renewal && renewals.fetch_add(1, Ordering::Relaxed) < 11 {
                Verdict::Keep
            } else {
                Verdict::Pass
            }
        })
        .await;
        succeeded(&ended(between(&source.url, &right.url, &["--cut-over"])).await);
        for (id, ttl) in [(7, 50), (8, 3600), (100, 600), (109, 600)] {
            assert_eq!(new.time_to_live(id, false).await.expect("a lease").granted_ttl, ttl, "lease {id}");
        }
    });
}

#[test]
fn a_lease_that_a_member_does_not_list_yet_is_kept() {
    let dir = TempDir::in_memory("mirror-unlisted");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        let (client, new) = (here.client().await, there.client().await);
        for side in [&client, &new] {
            let request = LeaseGrantRequest { ttl: 600, id: 7 };
            let _: LeaseGrantResponse = side.call(Rpc::LeaseGrant, &request).await.expect("is granted");
        }
        let left = Forwarder::start(here.client_address(), |asked| {
            if asked.path != Rpc::LeaseLeases.path() {
                return Verdict::Pass;
            }
            Verdict::Answer(LeaseLeasesResponse::default().encode_to_vec())
        })
        .await;
        succeeded(&ended(between(&left.url, &target.url, &["--cut-over"])).await);
        assert_eq!(new.leases().await.expect("leases"), [7]);
    });
}

#[test]
fn a_deletion_of_keys_that_are_too_long_for_one_request_is_mirrored() {
    let dir = TempDir::in_memory("mirror-long-keys");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        let client = here.client().await;
        for n in 0..120 {
            client.put(format!("k/{n:03}/{}", "x".repeat(14_000)), "v").await.expect("is put");
        }
        assert_eq!(delete_range(&client, "k/", "k0").await, 120);
        succeeded(&ended(mirror(&source, &target, &["--cut-over"])).await);
        assert_eq!(hash(&here).await, hash(&there).await);
    });
}
