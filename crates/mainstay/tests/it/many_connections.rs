//! The command `bench connections` against a member.

use std::process::{Command, Output};

use testkit::TempDir;

use crate::certificates::{Folder, flag};
use crate::member::{Setup, binary};

fn bench(endpoint: &str, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env_clear().args(["bench", "--endpoints", endpoint, "connections", "--json=-"]).args(words);
    command.output().expect("it runs")
}

/// Returns a number in the JSON object that the command prints.
fn figure(output: &Output, name: &str) -> f64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).expect("an object");
    report[name].as_f64().unwrap_or_else(|| panic!("{name}: {text}"))
}

const LOAD: [&str; 6] =
    ["--connections=60", "--watches-per-connection=5", "--hold=1s", "--lease-ttl=3", "--storm", "--rate=200"];

#[test]
fn connections_with_leases_and_watches_are_counted_and_come_back() {
    let dir = TempDir::new("bench-connections");
    let member = Setup::new(dir.path()).start();
    let output = bench(&member.client_address().to_string(), &LOAD);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((figure(&output, "ready"), figure(&output, "watches")), (60.0, 300.0));
    assert_eq!((figure(&output, "failed"), figure(&output, "lost")), (0.0, 0.0));
    // Each lease is renewed once a second.
    assert!(figure(&output, "renewals") >= 50.0, "{output:?}");
    assert_eq!((figure(&output, "storm_ready"), figure(&output, "storm_full")), (60.0, 0.0));
    assert!(figure(&output, "rss_before_bytes") > 0.0 && figure(&output, "p99_during_ms") > 0.0);
}

#[test]
fn clients_that_come_back_resume_their_tls_sessions_if_they_may() {
    let dir = TempDir::new("bench-connections-tls");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], &["127.0.0.1"]);
    let member = Setup::new(dir.path())
        .flag("--listen-client-urls=https://127.0.0.1:0")
        .flag("--advertise-client-urls=https://127.0.0.1:0")
        .flag(flag("cert-file", &own.cert))
        .flag(flag("key-file", &own.key))
        .start();
    let endpoint = format!("https://{}", member.client_address());
    let cacert = flag("cacert", &authority.ca);
    let output = bench(&endpoint, &[&LOAD[..], &[&cacert]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!((figure(&output, "storm_full"), figure(&output, "storm_resumed")), (0.0, 60.0));
    let output = bench(&endpoint, &[&LOAD[..], &[&cacert, "--no-tickets"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!((figure(&output, "storm_full"), figure(&output, "storm_resumed")), (60.0, 0.0));
}

#[test]
fn flags_without_an_effect_are_refused() {
    for (words, text) in [
        (&["--rate=5"][..], "--rate has an effect only with --storm"),
        (&["--storm", "--no-tickets"], "--no-tickets has an effect only with TLS"),
        (&["--lease-ttl=0", "--watches-per-connection=0"], "must not both be 0"),
        (&["--connections=0"], "expected positive --connections"),
        (&["--clients=5"], "clients"),
    ] {
        let output = bench("127.0.0.1:1", words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(text), "{words:?}: {said}");
    }
}
