//! Tests against real etcd, if `MAINSTAY_TEST_ETCD_DIR` names a directory with programs called `etcd-3.5` and
//! the like.

use std::path::PathBuf;

use api::Rpc;
use mainstay_bench::loadgen::ask::Asker;
use mainstay_bench::loadgen::wire::Fields;
use mainstay_bench::servers::{Contestant, Server, Source};
use mainstay_bench::tls;

use crate::tool::{SUMMARY, call, shape};
use testkit::TempDir;

/// Runs a test against a server for each of these programs; prints a note if there are none.
fn each(test: &str, mut run: impl FnMut(&Server, &str)) {
    let Some(directory) = std::env::var_os("MAINSTAY_TEST_ETCD_DIR").map(PathBuf::from) else {
        eprintln!("SKIPPED {test}: set MAINSTAY_TEST_ETCD_DIR to a directory with etcd-3.5, etcd-3.6 …");
        return;
    };
    let place = TempDir::new(test);
    let mut found = 0;
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("etcd-") {
            continue;
        }
        let source = Source::Program(entry.path(), Vec::new());
        let contestant = Contestant { name: name.clone(), source, tls: false };
        let server = Server::start(&contestant, place.path(), &tls::Files::default()).unwrap();
        let endpoint = format!("--endpoints={}", server.target.endpoints[0].address);
        run(&server, &endpoint);
        found += 1;
    }
    assert!(found > 0, "there is no etcd in that directory");
}

fn revision(server: &Server) -> i64 {
    let answer = Asker::new(server.target.clone())
        .unwrap()
        .ask(Rpc::KvRange, |message| {
            message.bytes(1, b"any");
        })
        .unwrap();
    Fields(Fields(&answer).bytes(1)).number(3) as i64
}

fn count(server: &Server) -> u64 {
    count_of(server, b"\0", b"\0")
}

fn count_of(server: &Server, key: &[u8], end: &[u8]) -> u64 {
    let answer = Asker::new(server.target.clone())
        .unwrap()
        .ask(Rpc::KvRange, |message| {
            message.bytes(1, key).bytes(2, end).flag(9, true);
        })
        .unwrap();
    Fields(&answer).number(4)
}

#[test]
fn loads_leave_what_they_should() {
    each("loads", |server, endpoint| {
        let run = |words: &[&str]| {
            let before = revision(server);
            let (code, out, err) = call(&[&[endpoint, "--clients=4", "--conns=2"], words].concat());
            assert_eq!(code, 0, "{words:?}: {err}");
            assert!(!out.contains("Error distribution"), "{words:?}: {out}");
            revision(server) - before
        };
        assert_eq!(run(&["put", "--total=50", "--sequential-keys", "--key-space-size=20"]), 50);
        assert_eq!(count(server), 20);
        assert_eq!(
            run(&["put", "--total=30", "--sequential-keys", "--key-space-size=15", "--key-prefix=/a/"]),
            30
        );
        assert_eq!((count_of(server, b"/a/", b"/a0"), count(server)), (15, 35));
        assert_eq!(run(&["txn-put", "--total=10", "--txn-ops=5", "--key-space-size=50"]), 10);
        assert_eq!(count(server), 65);
        assert_eq!(run(&["range", "--prefix", "--paginate", "--total=5"]), 0);
        assert_eq!(run(&["lease-keepalive", "--total=20"]), 0);
        assert_eq!(run(&["leases", "--total=50", "--renew=100", "--renew-for=200ms"]), 0);
        // Two of the four keys are written: each transaction that succeeded raised the revision once.
        for isolation in ["c", "r", "s", "ss"] {
            let words = ["stm", "--total=40", "--keys=8", "--keys-per-txn=4", "--isolation", isolation];
            assert_eq!(run(&words), 40, "{isolation}");
        }
        // Acquiring and releasing the lock take one revision each.
        assert_eq!(run(&["stm", "--total=20", "--stm-locker=lock-client"]), 40);
        assert_eq!(run(&["stm", "--total=20", "--stm-locker=lock-rpc"]), 40);
    });
}

#[test]
fn watches_see_every_event() {
    each("watches", |_, endpoint| {
        let out = |words: &[&str]| {
            let (code, out, err) = call(&[&[endpoint], words].concat());
            assert_eq!(code, 0, "{words:?}: {err}");
            shape(&out)
        };
        assert_eq!(
            out(&["watch", "--streams=3", "--watch-per-stream=7", "--put-total=20"]),
            format!("Watch creation summary:\n{SUMMARY}Watch events received summary:\n{SUMMARY}")
        );
        assert_eq!(
            out(&["watch-get", "--watchers=100", "--streams=3"]),
            format!("Get during watch summary:\n{SUMMARY}")
        );
        assert_eq!(
            out(&["watch-latency", "--put-total=20"]),
            format!("\nPut summary:\n{SUMMARY}\nWatch events summary:\n{SUMMARY}")
        );
    });
}

#[test]
fn logins_and_tokens() {
    each("logins", |server, endpoint| {
        let mut asker = Asker::new(server.target.clone()).unwrap();
        let mut ask = |method, name: &[u8], other: &[u8]| {
            asker
                .ask(method, |message| {
                    message.bytes(1, name).bytes(2, other);
                })
                .unwrap();
        };
        ask(Rpc::AuthUserAdd, b"root", b"secret");
        ask(Rpc::AuthRoleAdd, b"root", b"");
        ask(Rpc::AuthUserGrantRole, b"root", b"root");
        ask(Rpc::AuthEnable, b"", b"");
        let (code, out, err) = call(&[endpoint, "put", "--total=5"]);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("[5]\tetcdserver: user name is empty"), "{out}");
        for words in [["put", "--total=5"], ["authenticate", "--total=3"]] {
            let (code, out, err) = call(&[&[endpoint, "--user=root:secret"][..], &words].concat());
            assert_eq!((code, out.contains("Error")), (0, false), "{words:?}: {err}{out}");
        }
        let (code, _, err) = call(&[endpoint, "--user=root:wrong", "put"]);
        assert_eq!(code, 1);
        assert!(err.contains("etcdserver: authentication failed, invalid user ID or password"), "{err}");
    });
}
