//! The binary in normal operation, without faults.

use std::io::{BufRead as _, BufReader};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use api::Rpc;
use api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, RangeRequest, RangeResponse, SnapshotRequest,
    SnapshotResponse, TxnRequest, TxnResponse,
};
use prost::Message as _;

use testkit::TempDir;

use crate::client::{delete_op, put_op, revision};
use crate::member::{READY, Setup, binary};
use crate::run;

/// Returns a setup that runs the binary under the name `etcd`.
fn as_etcd(dir: &TempDir) -> Setup {
    let program = dir.path().join("etcd");
    std::os::unix::fs::symlink(binary(), &program).expect("a link can be made");
    Setup { program, ..Setup::new(dir.path()) }
}

#[test]
fn by_the_name_etcd_it_behaves_as_etcd() {
    let dir = TempDir::new("etcd");
    let setup = as_etcd(&dir);
    let version = Command::new(&setup.program).arg("--version").output().expect("it runs");
    assert!(version.status.success());
    let text = String::from_utf8(version.stdout).expect("text");
    let names: Vec<&str> = text.lines().filter_map(|line| line.split(": ").next()).collect();
    let expected = ["etcd Version", "Git SHA", "Go Version", "Go OS/Arch", "Mainstay Version"];
    assert_eq!(names, expected, "{text}");
    assert!(text.starts_with(&format!("etcd Version: {}\n", api::API_VERSION)), "{text}");

    let mut member = setup.start();
    assert!(member.said().contains(READY));
    assert_eq!(member.printed(), "", "etcd prints nothing on standard output");
    run(async {
        let client = member.client().await;
        assert_eq!(client.put("k", "v").await, Ok(2));
    });
    member.signal(libc::SIGTERM);
    let status = member.wait();
    assert_eq!(status.signal(), Some(libc::SIGTERM), "whoever waits sees the signal: {status:?}");
}

#[test]
fn by_the_name_of_a_tool_it_is_that_tool() {
    let dir = TempDir::new("tools");
    for (name, usage) in [
        ("etcdctl", "Usage:\n  etcdctl [command]\n"),
        ("etcdutl", "Usage:\n  etcdutl [command]\n"),
        ("benchmark", "Usage:\n  benchmark [command]\n"),
        ("etcd-bench", "Usage:\n  benchmark [command]\n"),
    ] {
        let program = dir.path().join(name);
        std::os::unix::fs::symlink(binary(), &program).expect("a link can be made");
        let help = Command::new(&program).arg("--help").output().expect("it runs");
        assert!(help.status.success());
        let text = String::from_utf8(help.stdout).expect("text");
        assert!(text.contains(usage), "{name}: {text}");
    }
}

#[test]
fn it_completes_the_commands_of_all_tools() {
    let completion =
        |words: &[&str]| Command::new(binary()).arg("completion").args(words).output().expect("it runs");
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = completion(&[shell]);
        assert!(script.status.success());
        let text = String::from_utf8(script.stdout).expect("text");
        assert!(text.to_lowercase().contains(&format!("# {shell} completion for mainstay")), "{text}");
        for path in
            ["ctl lease keep-alive", "utl snapshot restore", "bench watch-latency", "grpc-proxy start"]
        {
            assert!(text.contains(&format!("'{path}'")), "{shell}: {path}");
        }
    }
    for words in [&[][..], &["tcsh"], &["bash", "zsh"]] {
        let refused = completion(words);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{words:?}");
        let text = String::from_utf8(refused.stderr).expect("text");
        assert_eq!(text, "completion takes one of bash, zsh, fish, powershell\n", "{words:?}");
    }
}

#[test]
fn an_interrupt_ends_it_too() {
    let dir = TempDir::new("interrupt");
    let mut member = Setup::new(dir.path()).start();
    member.signal(libc::SIGINT);
    assert_eq!(member.wait().signal(), Some(libc::SIGINT));
    assert_eq!(
        member.printed(),
        "",
        "it greets on a terminal only: a pipe has the log's JSON and nothing else"
    );
    drop(member);
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        assert_eq!(client.everything().await.expect("reads are served").count, 0);
    });
    member.stop();
}

#[test]
fn on_a_terminal_it_says_where_it_serves() {
    let dir = TempDir::new("greeting");
    let (mut terminal, mut inner) = (-1, -1);
    // SAFETY: both numbers outlive the call; the other arguments may be null.
    let opened = unsafe {
        libc::openpty(
            &mut terminal,
            &mut inner,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both descriptors were just opened, and nothing else owns them.
    let (terminal, inner) = unsafe { (OwnedFd::from_raw_fd(terminal), OwnedFd::from_raw_fd(inner)) };
    let mut child =
        Setup::new(dir.path()).command().stdout(inner).stderr(Stdio::null()).spawn().expect("it runs");
    let mut lines = BufReader::new(std::fs::File::from(terminal)).lines();
    let mut greeting = String::new();
    while !greeting.contains("/health") {
        let line = lines.next().expect("the greeting is whole").expect("the terminal can be read");
        greeting.push_str(&line);
        greeting.push('\n');
    }
    child.kill().and_then(|()| child.wait()).expect("it ends");
    assert!(greeting.contains("Mainstay is ready."), "{greeting}");
    assert!(greeting.contains("  mainstay ctl --endpoints=http://127.0.0.1:"), "{greeting}");
}

#[test]
fn words_that_are_no_commands_are_answered() {
    let run = |words: &[&str]| Command::new(binary()).env_clear().args(words).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    assert_eq!(run(&["help"]), run(&["--help"]));
    assert_eq!(run(&["help", "ctl", "get"]).stdout, run(&["ctl", "get", "--help"]).stdout);
    assert_eq!(run(&["version"]), run(&["--version"]));
    let mistyped = run(&["doctr"]);
    assert_eq!(mistyped.status.code(), Some(2));
    let said = text(mistyped.stderr);
    assert!(said.ends_with("\n\nDid you mean this?\n\tdoctor\n"), "{said}");
    let mistyped = run(&["--data-drr=x"]);
    let said = text(mistyped.stderr);
    assert!(
        said.contains("flag provided but not defined: -data-drr\n\nDid you mean this?\n\t--data-dir\n"),
        "{said}"
    );
    assert!(text(run(&["check", "--help"]).stdout).contains("\n  perf "));
}

#[test]
fn every_part_of_the_api_answers() {
    let dir = TempDir::new("smoke");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let mut watch = client.watch_all(0).await.expect("a watch can be opened");
        assert_eq!(client.put("a", "1").await, Ok(2));
        assert_eq!(client.put("a", "2").await, Ok(3));
        let success = vec![put_op("b", "x"), put_op("c", "x"), delete_op("a")];
        let txn = TxnRequest { success, ..TxnRequest::default() };
        let answer: TxnResponse = client.call(Rpc::KvTxn, &txn).await.expect("transactions are served");
        assert!(answer.succeeded && answer.responses.len() == 3);
        assert_eq!(revision(answer.header), 4);
        assert_eq!(client.delete("b").await, Ok((5, 1)));
        assert_eq!(client.delete("b").await, Ok((5, 0)));
        let mut events = Vec::new();
        while events.len() < 6 {
            for event in watch.next().await.expect("the watch goes on").events {
                let kv = event.kv.expect("events have keys");
                let key = String::from_utf8(kv.key.to_vec()).expect("text");
                events.push((event.r#type, key, kv.mod_revision));
            }
        }
        let seen: Vec<(i32, &str, i64)> =
            events.iter().map(|(kind, key, at)| (*kind, &key[..], *at)).collect();
        assert_eq!(seen, [(0, "a", 2), (0, "a", 3), (0, "b", 4), (0, "c", 4), (1, "a", 4), (1, "b", 5)]);

        let lease = client.grant(30).await.expect("a lease");
        client.put_leased("leased", "x", lease).await.expect("puts are served");
        let (mut sender, mut receiver) =
            client.channel.stream(Rpc::LeaseKeepAlive.path()).await.expect("a stream");
        for _ in 0..3 {
            let request = LeaseKeepAliveRequest { id: lease };
            sender.send(request.encode_to_vec().into()).await.expect("the stream is open");
            let answer = receiver.next().await.expect("an answer").expect("the stream goes on");
            let answer = LeaseKeepAliveResponse::decode(answer).expect("an answer");
            assert_eq!((answer.id, answer.ttl), (lease, 30));
        }
        sender.finish();
        assert_eq!(receiver.next().await, Ok(None));

        client.compact(5, true).await.expect("compacts");
        let old = RangeRequest { key: "a".into(), revision: 3, ..RangeRequest::default() };
        let refused: Result<RangeResponse, _> = client.call(Rpc::KvRange, &old).await;
        assert_eq!(refused, Err(api::error::COMPACTED));
        let hash = client.hash_kv(0).await.expect("a hash can be had");
        assert_eq!((hash.compact_revision, hash.hash_revision), (5, 6));

        let (mut sender, mut receiver) =
            client.channel.stream(Rpc::MaintenanceSnapshot.path()).await.expect("a stream");
        sender.send_last(SnapshotRequest {}.encode_to_vec().into()).await.expect("the stream is open");
        let mut blobs = Vec::new();
        while let Some(message) = receiver.next().await.expect("the snapshot goes on") {
            blobs.push(SnapshotResponse::decode(message).expect("a piece").blob);
        }
        assert_eq!(blobs.last().map(|digest| digest.len()), Some(32), "at last comes the digest");
        let status = client.status().await.expect("a status");
        assert_eq!((status.version.as_str(), status.leader != 0), (api::API_VERSION, true));
        assert!(status.db_size >= status.db_size_in_use && status.db_size_in_use > 0, "{status:?}");
    });
    member.stop();
}
