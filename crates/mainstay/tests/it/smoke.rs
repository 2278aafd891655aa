//! What the binary does when all is well.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use crate::client::ALL;
use crate::member::{Member, READY, Setup, binary};
use crate::run;
use crate::temp_dir::TempDir;

/// The binary under the name `etcd`.
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
fn an_interrupt_ends_it_too() {
    let dir = TempDir::new("interrupt");
    let mut member = Setup::new(dir.path()).start();
    assert!(member.printed().contains("Mainstay is ready."));
    member.signal(libc::SIGINT);
    assert_eq!(member.wait().signal(), Some(libc::SIGINT));
    drop(member);
    let member: Member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        assert_eq!(client.everything().await.expect("reads are served").count, 0, "{ALL:?}");
    });
    member.stop();
}
