//! Tests of the program on the loopback, with crashes only.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use testkit::{TIMEOUT, TempDir, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_mainstay-torture");

/// Path of the server, built beside this program. If it is missing, the test reports that it was skipped,
/// bypassing the test harness's capture.
fn server(test: &str) -> Option<PathBuf> {
    let path = Path::new(PROGRAM).parent().map(|dir| dir.join("mainstay")).filter(|path| path.is_file());
    if path.is_none() {
        let words = "there is no mainstay binary beside the program; build it: cargo build -p mainstay";
        writeln!(std::io::stderr(), "SKIPPED {test}: {words}").expect("standard error is open");
    }
    path
}

/// Returns a command for the program that keeps its working directories in `scratch`. In a shared directory,
/// a run would remove and report what another test's killed run left.
fn program(scratch: &TempDir) -> Command {
    let mut command = Command::new(PROGRAM);
    command.env("TMPDIR", scratch.path()).stdin(Stdio::null());
    command
}

fn run(scratch: &TempDir, arguments: &[&str]) -> Output {
    program(scratch).args(arguments).output().expect("the program can be started")
}

/// Returns the ids of processes with these words in their command lines.
fn processes(words: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc is there").filter_map(Result::ok);
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|id| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(words)
        })
        .collect()
}

#[test]
fn crashes_on_the_loopback_break_no_promise() {
    let Some(server) = server("crashes_on_the_loopback_break_no_promise") else { return };
    let scratch = TempDir::new("torture-run");
    let out = scratch.join("out");
    let out_text = out.to_str().expect("UTF-8");
    let output = run(
        &scratch,
        &[
            "--server",
            server.to_str().expect("UTF-8"),
            "--network=loopback",
            "--faults=kill-leader,kill-all",
            "--seconds=10",
            "--every=1",
            "--clients=6",
            "--rate=100",
            "--seed=5",
            "--out",
            out_text,
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    assert!(said.ends_with("verdict     no violation\n"), "{said}");
    assert_eq!(errors, "", "quiet in a pipe");
    let report = std::fs::read_to_string(out.join("report.json")).expect("there is a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("it is JSON");
    assert_eq!(report["verdict"], "no violation");
    assert_eq!(report["judged"]["finals"], 3);
    assert!(report["faults"].as_array().is_some_and(|faults| !faults.is_empty()), "{report}");
    assert!(report["operations"]["writes"]["done"].as_u64() > Some(20), "{report}");
    for file in ["timeline.html", "m0.log", "m1.log", "m2.log"] {
        assert!(out.join(file).metadata().is_ok_and(|metadata| metadata.len() > 0), "{file}");
    }
    let history = out.join("history.jsonl");
    let judged = run(&scratch, &["--judge", history.to_str().expect("UTF-8")]);
    assert_eq!(judged.status.code(), Some(0), "{}", String::from_utf8_lossy(&judged.stdout));

    // The oracle has to notice a response that no server gave.
    let text = std::fs::read_to_string(&history).expect("there is a history");
    let from = text.find("\"deleted\":1").expect("somebody deleted a key");
    let (before, after) = text.split_at(from);
    std::fs::write(&history, format!("{before}\"deleted\":7{}", &after["\"deleted\":1".len()..]))
        .expect("written");
    let judged = run(&scratch, &["--judge", history.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&judged.stdout);
    assert_eq!(judged.status.code(), Some(1), "{said}");
    assert!(said.contains("VIOLATION"), "{said}");
}

#[test]
fn users_over_tls_see_no_more_than_they_may_while_certificates_change() {
    let Some(server) = server("users_over_tls_see_no_more_than_they_may_while_certificates_change") else {
        return;
    };
    let scratch = TempDir::new("torture-tls");
    let out = scratch.join("out");
    let output = run(
        &scratch,
        &[
            "--server",
            server.to_str().expect("UTF-8"),
            "--network=loopback",
            "--tls",
            "--users",
            "--faults=rotate-certs,revoke-cert,auth-off",
            "--seconds=8",
            "--every=0.5",
            "--clients=4",
            "--rate=50",
            "--seed=5",
            "--out",
            out.to_str().expect("UTF-8"),
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    let report = std::fs::read_to_string(out.join("report.json")).expect("there is a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("it is JSON");
    // There may be time for only one change of certificates, and a member that is killed during it is not
    // counted.
    for (name, least) in [("logins", 3), ("changes of users", 3), ("reloads", 2)] {
        assert!(report["security"][name].as_u64() >= Some(least), "{name}: {}", report["security"]);
    }
    let history = std::fs::read_to_string(out.join("history.jsonl")).expect("there is a history");
    for part in ["grant", "asker"] {
        assert!(history.contains(&format!("\"is\":\"{part}\"")), "{part}");
    }
}

fn started(scratch: &TempDir, server: &Path, out: &str) -> Child {
    let child = program(scratch)
        .args(["--network=loopback", "--faults=", "--seconds=300", "--clients=1", "--rate=10", "--server"])
        .arg(server)
        .arg("--out")
        .arg(scratch.join(out))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program can be started");
    let words = format!("mainstay-torture-{}/", child.id());
    wait_until("three members run", TIMEOUT, || (processes(&words).len() >= 3).then_some(()));
    child
}

#[test]
fn members_end_with_the_program_however_it_ends() {
    let Some(server) = server("members_end_with_the_program_however_it_ends") else { return };
    let scratch = TempDir::new("torture-killed");
    let mut child = started(&scratch, &server, "first");
    let words = format!("mainstay-torture-{}/", child.id());
    let left = scratch.join(format!("mainstay-torture-{}", child.id()));
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
    wait_until("no member outlives the program", TIMEOUT, || processes(&words).is_empty().then_some(()));
    assert!(left.exists(), "nobody was there to remove it");
    // The next run removes the directory.
    let mut child = started(&scratch, &server, "second");
    let words = format!("mainstay-torture-{}/", child.id());
    assert!(!left.exists(), "what a killed run left is removed");
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
    wait_until("no member outlives the program", TIMEOUT, || processes(&words).is_empty().then_some(()));
}

#[test]
fn what_cannot_be_set_up_is_said_with_exit_code_2() {
    let scratch = TempDir::new("torture-refused");
    let out = scratch.join("out");
    let out = out.to_str().expect("UTF-8");
    let itself = PROGRAM;
    for (arguments, words) in [
        (&["--members", "2"][..], "--members: must be 1, 3 or 5, not \"2\""),
        (&["--server", "/nowhere", "--out", out], "/nowhere: No such file or directory"),
        (
            &["--server", itself, "--network", "loopback", "--faults", "partition", "--out", out],
            "the fault partition-leader is not possible on this machine: members are on the loopback",
        ),
        (&["--judge", "/nowhere"], "/nowhere: No such file or directory"),
        // The server under test does not run; this is not a fault of the machine, which has another exit
        // code.
        (
            &["--server", "/bin/false", "--network", "loopback", "--faults", "", "--out", out],
            "the cluster does not start: m0 does not stay up",
        ),
    ] {
        let output = run(&scratch, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
    let help = run(&scratch, &["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(
        String::from_utf8_lossy(&help.stdout).starts_with("Runs a cluster of real processes under faults")
    );
}
