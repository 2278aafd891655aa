//! Output of the tool about unreachable endpoints: the last line is etcdctl's, the reason is printed before it.

use std::ffi::OsString;
use std::io::Read as _;
use std::net::TcpListener;
use std::time::Duration;

use cli::Io;

use crate::fake_server::{FakeServer, Script};

/// Returns exit code and standard error of a command with this endpoint.
fn ctl(endpoint: &str, words: &[&str]) -> (u8, String) {
    let (io, printed) = Io::in_memory();
    let mut args: Vec<OsString> = words.iter().map(OsString::from).collect();
    args.push(format!("--endpoints={endpoint}").into());
    args.push("--command-timeout=1s".into());
    let code = ctl::run_in(&args, &io, None);
    assert_eq!(printed.out(), "");
    (code, printed.err().replace(endpoint.trim_start_matches("https://"), "ADDRESS"))
}

/// Starts a server of another protocol, which reads some data and closes the connection; returns its endpoint.
fn hangs_up() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().read(&mut [0; 1 << 16]);
        }
    });
    address
}

#[test]
fn the_reason_stands_before_the_error() {
    let gone = testkit::ports::free_address().to_string();
    let refused = "Warning: ADDRESS: connection error: desc = \"transport: Error while dialing: dial tcp ADDRESS: connect: \
                   connection refused\"\n";
    let late = "Error: context deadline exceeded\n";
    for words in [&["get", "a"][..], &["put", "a", "b"], &["member", "list"]] {
        assert_eq!(ctl(&gone, words), (1, format!("{refused}{late}")), "{words:?}");
    }
    let (code, err) = ctl(&gone, &["endpoint", "health"]);
    assert_eq!(code, 1);
    assert!(err.starts_with(refused) && err.ends_with("Error: unhealthy cluster\n"), "{err}");
    let (code, err) = ctl(&gone, &["get", "a", "--user=root:p", "--dial-timeout=500ms"]);
    assert_eq!((code, err), (2, format!("{refused}{late}")));
}

/// Returns the standard error of a watch of this endpoint, as soon as it contains `until`. The watch has no
/// time limit, and runs until the test program ends.
fn watch(endpoint: &str, until: &str) -> String {
    let (io, printed) = Io::in_memory();
    let args = [
        "watch".to_owned(),
        "a".to_owned(),
        "--dial-timeout=50ms".to_owned(),
        format!("--endpoints={endpoint}"),
    ];
    let args = args.map(OsString::from);
    std::thread::spawn(move || ctl::run_in(&args, &io, None));
    testkit::wait_until(until, Duration::from_secs(60), || printed.err().contains(until).then_some(()));
    printed.err()
}

#[test]
fn the_wrong_protocol_is_named() {
    let plain = FakeServer::start(Script::default());
    let hint =
        "InvalidContentType\" (the server does not use TLS at this port: try http://, or another port)\n";
    watch(&format!("https://{}", plain.address), hint);
    watch(
        &hangs_up(),
        "EOF\" (the server closed the connection: it may require TLS at this port (https://), or this is not the client port)\n",
    );
}

#[test]
fn a_command_without_a_time_limit_says_once_what_it_waits_for() {
    let err = watch(&testkit::ports::free_address().to_string(), "connection refused");
    assert_eq!(err.matches("connection refused").count(), 1, "{err}");
}
