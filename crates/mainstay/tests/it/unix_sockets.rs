//! `unix` and `unixs` URLs: members that clients reach through a file.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use testkit::TempDir;

use crate::certificates::{Folder, flag};
use crate::member::{Member, READY, Setup, binary};

/// Starts a member that serves clients only at these URLs, and runs in this directory.
fn start(dir: &Path, urls: &str, flags: &[String]) -> Member {
    let mut command = Setup::new(dir).command();
    command.current_dir(dir).arg(format!("--listen-client-urls={urls}"));
    command.arg(format!("--advertise-client-urls={urls}")).args(flags);
    let member = Member::launch(command, None);
    member.wait_for(READY);
    member
}

/// Runs one of the tools in this directory; panics if it fails.
fn tool(dir: &Path, words: &[&str]) -> String {
    let output = run_tool(dir, words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run_tool(dir: &Path, words: &[&str]) -> Output {
    Command::new(binary()).env_clear().current_dir(dir).args(words).output().expect("the binary runs")
}

/// Returns the response to a GET.
fn page(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the member listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_member_is_served_and_watched_over_through_files() {
    let dir = TempDir::in_memory("unix");
    let (socket, metrics) = (dir.path().join("etcd.sock"), dir.path().join("metrics.sock"));
    let audit = dir.path().join("audit.log");
    let urls = format!("unix://localhost:1,unix://{}", socket.display());
    let flags = [
        format!("--listen-metrics-urls=unix://{}", metrics.display()),
        format!("--audit-log={}", audit.display()),
        // Clients of a Unix socket have no address, so this limit must not affect them.
        "--max-connections-per-address=1".to_owned(),
    ];
    let member = start(dir.path(), &urls, &flags);
    member.wait_for(&format!("\"address\":\"{}\"", socket.display()));
    member.wait_for("\"address\":\"localhost:1\"");

    let endpoint = format!("unix://{}", socket.display());
    let held: Vec<UnixStream> = (0..3).map(|_| UnixStream::connect(&socket).expect("it listens")).collect();
    tool(dir.path(), &["ctl", "--endpoints", &endpoint, "put", "k", "v"]);
    drop(held);
    // A relative path, and both endpoints together.
    assert_eq!(tool(dir.path(), &["ctl", "--endpoints=unix://localhost:1", "get", "k"]), "k\nv\n");
    let both = format!("--endpoints=unix:localhost:1,{endpoint}");
    assert_eq!(tool(dir.path(), &["ctl", &both, "endpoint", "health"]).lines().count(), 2);
    let listed = tool(dir.path(), &["ctl", &both, "member", "list"]);
    assert!(listed.contains("unix://localhost:1") && listed.contains(&endpoint), "{listed}");
    for page in [page(&socket, "/health"), page(&metrics, "/health")] {
        assert!(page.contains("{\"health\":\"true\""), "{page}");
    }
    assert!(page(&metrics, "/metrics").contains("etcd_server_has_leader 1"));
    assert!(page(&socket, "/debug/mainstay").contains("\"name\":\"m\""));
    // The other tools accept Unix socket endpoints, too.
    let told = run_tool(dir.path(), &["doctor", "--endpoints", &endpoint, "--write-out=json", "--for=100ms"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(&endpoint) && !told.contains("not reached"), "{told}");
    tool(dir.path(), &["bench", "--endpoints", &endpoint, "put", "--total=10", "--clients=2"]);

    member.stop();
    assert!(!socket.exists() && !metrics.exists() && !dir.path().join("localhost:1").exists());
    let audit = std::fs::read_to_string(&audit).expect("the audit log is there");
    assert!(audit.contains("\"remote\":\"@"), "{audit}");
}

#[test]
fn members_reach_each_other_through_files() {
    let dir = TempDir::in_memory("unix-members");
    // The first two URLs have etcd's form, whose files are below the working directory.
    let last = format!("unix://{}", dir.path().join("m3.sock").display());
    let peers = ["unix://m1:0", "unix://127.0.0.1:2380", &last];
    let initial: Vec<String> = (1..).zip(peers).map(|(n, url)| format!("m{n}={url}")).collect();
    let initial = initial.join(",");
    let launch = |n: usize| {
        let home = dir.path().join(format!("home{n}"));
        let mut command = Setup::new(&home).command();
        let (peer, client) = (peers[n - 1], format!("unix://c{n}"));
        command.current_dir(dir.path()).args([
            format!("--name=m{n}"),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={initial}"),
        ]);
        Member::launch(command, None)
    };
    let mut members: Vec<Member> = (1..=3).map(launch).collect();
    for member in &members {
        member.wait_for(READY);
    }
    tool(dir.path(), &["ctl", "--endpoints=unix://c1", "put", "k", "v"]);
    for n in 1..=3 {
        // A linearizable read: this member knows the leader, or leads.
        assert_eq!(tool(dir.path(), &["ctl", &format!("--endpoints=unix://c{n}"), "get", "k"]), "k\nv\n");
    }
    let listed = tool(dir.path(), &["ctl", "--endpoints=unix://c2", "member", "list"]);
    assert!(peers.iter().all(|url| listed.contains(url)), "{listed}");
    assert!(dir.path().join("m1:0").exists() && dir.path().join("127.0.0.1:2380").exists());
    // A killed member leaves its socket file behind, and starts again.
    members.remove(2).kill();
    tool(dir.path(), &["ctl", "--endpoints=unix://c1", "put", "k", "w"]);
    let third = launch(3);
    third.wait_for(READY);
    assert_eq!(tool(dir.path(), &["ctl", "--endpoints=unix://c3", "get", "k"]), "k\nw\n");
    members.push(third);
    for member in members {
        member.stop();
    }
    assert!(!dir.path().join("m1:0").exists() && !dir.path().join("m3.sock").exists());
}

#[test]
fn the_socket_of_a_killed_member_is_taken_over() {
    let dir = TempDir::in_memory("unix-killed");
    let socket = dir.path().join("s");
    let url = format!("unix://{}", socket.display());
    start(dir.path(), &url, &[]).kill();
    assert!(socket.exists(), "nobody removed it");
    let member = start(dir.path(), &url, &[]);
    tool(dir.path(), &["ctl", "--endpoints", &url, "put", "k", "v"]);
    // The socket file of a running member is not replaced, even by a member with another data directory.
    let other = TempDir::in_memory("unix-other");
    let refused = Setup::new(other.path()).flag(format!("--listen-client-urls={url}")).refused();
    assert!(
        refused.contains(&format!("cannot listen on {url}: another process is listening on this socket"))
    );
    tool(dir.path(), &["ctl", "--endpoints", &url, "get", "k"]);
    member.stop();
}

#[test]
fn a_socket_that_cannot_be_is_named() {
    let dir = TempDir::in_memory("unix-refused");
    let file = dir.path().join("a-file");
    std::fs::write(&file, "").expect("a file can be written");
    for (path, words) in [
        (file.display().to_string(), "is a file that is not a socket".to_owned()),
        (format!("{}/no/s", dir.path().display()), "No such file or directory".to_owned()),
        (format!("/{}", "x".repeat(200)), "may have at most 107 bytes; this one has 201".to_owned()),
    ] {
        let said = Setup::new(dir.path()).flag(format!("--listen-client-urls=unix://{path}")).refused();
        assert!(said.contains(&format!("cannot listen on unix://{path}")) && said.contains(&words), "{said}");
    }
    let said = Setup::new(dir.path()).flag("--listen-client-urls=unixs://s").refused();
    let words =
        "TLS key/cert (--cert-file, --key-file) must be provided for client url unixs://s with HTTPS scheme";
    assert!(said.contains(words), "{said}");
}

#[test]
fn tls_is_spoken_through_a_file() {
    let dir = TempDir::in_memory("unixs");
    let socket = dir.path().join("etcd.sock");
    let url = format!("unixs://{}", socket.display());
    let authority = Folder::new(dir.path(), "ca");
    // Clients compare the certificate with the name of the socket file.
    let own = authority.issue("member", &[1], &["etcd.sock"]);
    let user = authority.issue("user", &[2], &[]);
    let flags = [
        flag("cert-file", &own.cert),
        flag("key-file", &own.key),
        flag("trusted-ca-file", &authority.ca),
        "--client-cert-auth".to_owned(),
    ];
    let member = start(dir.path(), &url, &flags);
    member.wait_for("serving client traffic securely");
    let ca = flag("cacert", &authority.ca);
    let [cert, key] = [flag("cert", &user.cert), flag("key", &user.key)];
    tool(dir.path(), &["ctl", "--endpoints", &url, &ca, &cert, &key, "put", "k", "v"]);
    // A client without a certificate is refused.
    let refused =
        run_tool(dir.path(), &["ctl", "--endpoints", &url, &ca, "--command-timeout=1s", "get", "k"]);
    assert!(!refused.status.success());
    member.wait_for("rejected connection on client endpoint");
    member.stop();

    // A self-made certificate is issued for the name of the socket file, too.
    let own = TempDir::in_memory("unixs-auto");
    let member = start(own.path(), "unixs://made.sock", &["--auto-tls".to_owned()]);
    let cert = own.path().join("data/fixtures/client/cert.pem");
    let ca = flag("cacert", &cert);
    tool(own.path(), &["ctl", "--endpoints=unixs://made.sock", &ca, "put", "k", "v"]);
    member.stop();
}
