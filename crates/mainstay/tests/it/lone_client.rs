//! A client alone: who works for it. On the way to the core and back no thread is to be woken.

use std::path::PathBuf;
use std::time::Instant;

use testkit::{TIMEOUT, TempDir};

use crate::member::{Member, Setup};
use crate::run;

/// The number of times that the core's thread has gone to sleep by itself.
fn sleeps_of_core(member: &Member) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", member.pid())).expect("it runs");
    let core: PathBuf = tasks
        .map(|task| task.expect("the kernel lists threads").path())
        .find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "core"))
        .expect("the core has a thread");
    let status = std::fs::read_to_string(core.join("status")).expect("the core runs");
    let line =
        status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("it is counted");
    line.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn the_core_sleeps_while_a_client_alone_writes() {
    const PUTS: u64 = 100;
    let dir = TempDir::new("lone-client");
    // A disk that stalls would have the core write by itself for a while: then it is asked again.
    let setup = Setup::new(dir.path()).flag("--unsafe-no-fsync");
    run(async {
        let member = setup.start();
        let client = member.client().await;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let before = sleeps_of_core(&member);
            for number in 0..PUTS {
                client.put(format!("k/{number}"), "x").await.expect("puts are served");
            }
            let sleeps = sleeps_of_core(&member) - before;
            if sleeps < PUTS / 4 {
                break;
            }
            assert!(Instant::now() < deadline, "the core was woken {sleeps} times for {PUTS} puts");
        }
        member.stop();
        let member = setup.start();
        assert_eq!(member.client().await.everything().await.expect("reads").kvs.len() as u64, PUTS);
    });
}

#[test]
fn clients_alone_on_their_threads_write_beside_each_other() {
    const PUTS: u64 = 300;
    let dir = TempDir::new("lone-clients");
    let setup = Setup::new(dir.path());
    run(async {
        let member = setup.start();
        // As many connections as threads serve, and some more: with one each, with several, and with one again.
        for clients in [1, 2, 3, 2, 1] {
            let mut writing = Vec::new();
            for name in 0..clients {
                let client = member.client().await;
                writing.push(tokio::spawn(async move {
                    for number in 0..PUTS {
                        client.put(format!("k/{name}/{number}"), "x").await.expect("puts are served");
                    }
                }));
            }
            for writes in writing {
                writes.await.expect("all are answered");
            }
        }
        member.kill();
        let member = setup.start();
        assert_eq!(member.client().await.everything().await.expect("reads").kvs.len() as u64, 3 * PUTS);
    });
}
