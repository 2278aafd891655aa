//! `doctor migrate` against scripted members: the output for operators, and the effect of hostile members.

use std::ffi::OsString;
use std::time::Duration;

use api::etcdserverpb::{DowngradeInfo, Member};

use crate::commands::{Outcome, outcome};
use crate::fake_member::{FakeMember, Script, no_space, ok, status, status_of};
use crate::output::expect;

/// A metrics page of etcd, without the connections of each member.
const ETCD: &str = "etcd_server_has_leader 1\netcd_server_go_version{server_go_version=\"go1.23\"} 1\n\
                    etcd_mvcc_db_total_size_in_bytes 100000\netcd_server_quota_backend_bytes 2000000000\n\
                    etcd_debugging_mvcc_current_revision 5\netcd_debugging_mvcc_compact_revision 2\n";

/// Returns the metrics pages of the member with this id, which has connections to these members.
fn metrics_of(id: u64, others: &[(u64, u8)]) -> [Vec<u8>; 2] {
    let links = others.iter().map(|(other, works)| {
        format!("etcd_network_active_peers{{Local=\"{id:x}\",Remote=\"{other:x}\"}} {works}\n")
    });
    let page = ok("", &format!("{ETCD}{}", links.collect::<String>()));
    [page.clone(), page]
}

/// Runs the command against three members of etcd 3.6, changed by `change`, with these flags and the first
/// member's endpoint.
fn migrate(change: impl FnOnce(&mut [Script; 3]), flags: &[&str]) -> Outcome {
    let listeners: Vec<_> = (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let members: Vec<Member> = addresses
        .iter()
        .zip(1..)
        .map(|(address, id)| Member {
            id,
            name: format!("m{id}"),
            client_urls: vec![format!("http://{address}")],
            peer_urls: vec![format!("http://10.0.0.{id}:2380")],
            ..Member::default()
        })
        .collect();
    let mut scripts = [1, 2, 3].map(|id| Script {
        status: status_of(id, "3.6.16", 1),
        members: members.clone(),
        leases: vec![7, 9],
        hashes: vec![Some((77, 2))],
        metrics: metrics_of(
            id,
            &[1, 2, 3]
                .map(|other| (other, 1))
                .into_iter()
                .filter(|(other, _)| *other != id)
                .collect::<Vec<_>>(),
        ),
        page: status(404),
        version: ok("", r#"{"etcdserver":"3.6.16","etcdcluster":"3.6.0"}"#),
        ..Script::default()
    });
    change(&mut scripts);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fakes: Vec<FakeMember> = runtime.block_on(async {
        listeners
            .into_iter()
            .zip(scripts)
            .map(|(listener, script)| FakeMember::on(listener, script))
            .collect()
    });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = std::thread::spawn(move || runtime.block_on(stopped));
    let mut args = vec!["migrate".to_owned(), format!("--endpoints={}", addresses[0])];
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let mut outcome = outcome(&args.iter().map(OsString::from).collect::<Vec<OsString>>());
    drop(stop);
    assert!(server.join().unwrap().is_err(), "the sender is dropped");
    drop(fakes);
    for (address, number) in addresses.iter().zip(1..) {
        outcome.output = outcome.output.replace(&address.to_string(), &format!("10.0.0.{number}:2379"));
    }
    outcome
}

/// Changes a member to one of Mainstay.
fn mainstay(script: &mut Script) {
    script.page = ok("", r#"{"clients":[]}"#);
}

fn found(outcome: &Outcome) -> Vec<String> {
    let parsed: serde_json::Value = serde_json::from_str(&outcome.output).unwrap();
    let findings = parsed["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_step_is_told() {
    let before = migrate(|_| (), &[]);
    expect("migrate-before.txt", &before.output);
    assert_eq!((before.code, &*before.error), (0, ""));
    let half = migrate(|scripts| scripts[1..].iter_mut().for_each(mainstay), &["-w", "json"]);
    expect("migrate-half.json", &half.output);
    let parsed: serde_json::Value = serde_json::from_str(&half.output).unwrap();
    assert_eq!(parsed["next"]["is_leader"], true);
    let done = migrate(|scripts| scripts.iter_mut().for_each(mainstay), &[]);
    expect("migrate-done.txt", &done.output);
    assert_eq!(done.code, 0);
    let back = migrate(|scripts| scripts.iter_mut().for_each(mainstay), &["--to=etcd"]);
    expect("migrate-back.txt", &back.output);
    assert_eq!(back.code, 0);
    let again = migrate(|_| (), &["--to=etcd", "--json"]);
    let parsed: serde_json::Value = serde_json::from_str(&again.output).unwrap();
    assert_eq!(
        (&parsed["done"], &parsed["ready"], &parsed["next"]),
        (&true.into(), &true.into(), &().into())
    );
}

#[test]
fn what_stands_against_a_step_is_named() {
    let named = |change: fn(&mut [Script; 3])| {
        let outcome = migrate(change, &["--json"]);
        assert_eq!(outcome.code, 1, "{outcome:?}");
        found(&outcome)
    };
    assert_eq!(named(|scripts| scripts[1].hashes = vec![Some((78, 2))]), ["hash-kv"]);
    assert_eq!(named(|scripts| scripts[2].leases = vec![7]), ["members-disagree"]);
    assert_eq!(
        named(|scripts| {
            scripts[2].members.pop();
        }),
        ["members-disagree"]
    );
    assert_eq!(named(|scripts| scripts[2].status.raft_applied_index = 9), ["not-caught-up"]);
    assert_eq!(
        named(|scripts| {
            for script in scripts {
                script.alarms = vec![no_space(2)];
            }
        }),
        ["alarm-nospace"]
    );
    assert_eq!(
        named(|scripts| {
            for script in scripts {
                let target_version = "3.5.0".to_owned();
                script.status.downgrade_info = Some(DowngradeInfo { enabled: true, target_version });
            }
        }),
        ["downgrade"]
    );
    assert_eq!(named(|scripts| scripts[1].metrics = [status(404), status(404)]), ["unknown-product"]);
    assert_eq!(
        named(|scripts| {
            scripts[1].metrics = metrics_of(2, &[(1, 1), (3, 0)]);
            scripts[2].metrics = metrics_of(3, &[(1, 1), (2, 0)]);
        }),
        ["broken-peer-links"]
    );
    // The second endpoint leads to the first member.
    assert_eq!(
        named(|scripts| scripts[0].members[2].client_urls = scripts[0].members[1].client_urls.clone()),
        ["not-each-once"]
    );
    assert_eq!(named(|scripts| scripts[0].lists_refused = 1), ["not-each-once"]);
    assert_eq!(named(|scripts| scripts[1].answered_by = Some(3)), ["hash-kv", "members-disagree"]);
    let gone = migrate(
        |scripts| scripts[0].members[2].client_urls = vec!["http://127.0.0.1:1".to_owned()],
        &["--json"],
    );
    assert_eq!((gone.code, found(&gone)), (1, vec!["unreachable".to_owned()]));
}

#[test]
fn connections_that_cannot_be_seen_are_told() {
    let outcome = migrate(|scripts| scripts[1].metrics = metrics_of(2, &[]), &[]);
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let told = "broken-peer-links at m2 (http://10.0.0.2:2379), because its metrics have no etcd_network_active_peers";
    assert!(outcome.output.replace("\n    ", " ").contains(told), "{}", outcome.output);
}

#[test]
fn the_way_back_waits_for_a_downgrade() {
    let back = |cluster: &'static str| {
        migrate(
            |scripts| {
                for script in scripts {
                    mainstay(script);
                    let target_version = "3.5.0".to_owned();
                    script.status.downgrade_info = Some(DowngradeInfo { enabled: true, target_version });
                    script.version =
                        ok("", &format!(r#"{{"etcdserver":"3.6.16","etcdcluster":"{cluster}"}}"#));
                }
            },
            &["--to=etcd", "--json"],
        )
    };
    let early = back("3.6.0");
    assert_eq!((early.code, found(&early)), (1, vec!["downgrade".to_owned()]));
    let ready = back("3.5.0");
    assert_eq!((ready.code, found(&ready)), (0, vec!["downgrade".to_owned()]));
    assert!(ready.output.contains("--release 3.5 "), "{}", ready.output);
}

#[test]
fn a_compaction_in_between_is_asked_past() {
    let overtaken = migrate(|scripts| scripts[1].hashes = vec![None, Some((70, 1)), Some((77, 2))], &[]);
    assert_eq!(overtaken.code, 0, "{}", overtaken.output);
    let always = migrate(|scripts| scripts[1].hashes = vec![None], &["--json"]);
    assert_eq!((always.code, found(&always)), (1, vec!["hash-kv".to_owned()]));
    assert!(always.output.contains("required revision has been compacted"));
}

#[test]
fn old_keys_and_users_of_34() {
    let of_34 = |change: fn(&mut Script)| {
        migrate(
            |scripts| {
                for script in scripts {
                    script.status.version = "3.4.30".to_owned();
                    script.version = ok("", r#"{"etcdserver":"3.4.30","etcdcluster":"3.4.0"}"#);
                    change(script);
                }
            },
            &["--json"],
        )
    };
    let none = of_34(|script| script.old_keys = Some(ok("", r#"{"action":"get","node":{"dir":true}}"#)));
    assert_eq!((none.code, found(&none)), (0, vec!["patch-releases".to_owned()]));
    let some = of_34(|script| {
        script.old_keys = Some(ok("", r#"{"node":{"dir":true,"nodes":[{"key":"/a"},{"key":"/b"}]}}"#));
        script.users = vec!["root".to_owned()];
    });
    assert_eq!(
        (some.code, found(&some)),
        (1, ["old-keys", "patch-releases", "passwords-while-mixed"].map(str::to_owned).to_vec())
    );
}

#[test]
fn members_that_lie_or_say_nothing_cannot_hold_it_up() {
    let begun = std::time::Instant::now();
    let hostile = migrate(
        |scripts| {
            let endless =
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx".to_vec();
            scripts[1].metrics = [endless.clone(), endless];
            scripts[1].version = ok("", "{\"etcdserver\":\"\\u001b[2J\",\"etcdcluster\":\"9.9.9.9\"}");
            scripts[1].status.version = "\u{1b}[2J".to_owned();
            scripts[2].status.header.as_mut().unwrap().revision = i64::MIN;
            scripts[2].silent = vec!["LeaseLeases", "Range", "UserList"];
            scripts[2].leases = Vec::new();
        },
        &["--command-timeout=300ms"],
    );
    assert_eq!(hostile.code, 1);
    assert!(!hostile.output.contains('\u{1b}'), "{}", hostile.output);
    for text in [
        "unknown-product",
        "releases",
        "no-linearizable-read",
        "a member reports revision -9223372036854775808",
        "leases could not be compared",
    ] {
        assert!(hostile.output.contains(text), "{text}: {}", hostile.output);
    }
    // Some ten requests of 300 ms each, on a busy machine.
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_directory_and_a_file_are_looked_at() {
    let dir = testkit::TempDir::new("migrating");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let data = path("none");
    let outcome = migrate(|_| (), &["--json", &format!("--data-dir={data}")]);
    assert_eq!((outcome.code, found(&outcome)), (1, vec!["data-directory".to_owned()]));
    std::fs::write(path("etcd.yaml"), "name: m1\nno-such-key: 1\n").unwrap();
    let outcome = migrate(|_| (), &["--json", &format!("--config-file={}", path("etcd.yaml"))]);
    assert_eq!((outcome.code, found(&outcome)), (0, vec!["settings".to_owned()]), "only a warning");
}
