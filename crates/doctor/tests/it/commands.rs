//! The commands from their arguments to output and exit code.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;

use api::etcdserverpb::Member;
use cli::Io;

use crate::fake_member::{FakeMember, Script, no_space, ok, status, status_of};
use crate::output::expect;

/// Output and exit code of a command.
#[derive(Debug)]
pub struct Outcome {
    pub output: String,
    pub error: String,
    pub code: u8,
}

fn printed(run: impl FnOnce(&Io) -> u8) -> Outcome {
    let (io, printed) = Io::in_memory();
    let code = run(&io);
    Outcome { output: printed.out(), error: printed.err(), code }
}

/// Runs `doctor` with these arguments.
pub fn outcome(args: &[OsString]) -> Outcome {
    printed(|io| doctor::run_in(args, io))
}

/// Runs `check` with these arguments.
fn check_outcome(args: &[OsString]) -> Outcome {
    printed(|io| doctor::check_in(args, io))
}

fn words(words: &[String]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Runs a command against a scripted member; returns its output with the member's address replaced.
fn beside(
    change: impl FnOnce(&mut Script) + Send + 'static,
    command: impl FnOnce(String) -> Outcome,
) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fake = runtime.block_on(FakeMember::start(|address| {
        let url = format!("http://{address}");
        let metrics = "etcd_server_has_leader 1\ngrpc_server_started_total{grpc_type=\"unary\"} 3\n";
        let mut script = Script {
            status: status_of(0xa, "3.7.1", 0xa),
            members: vec![Member {
                id: 0xa,
                name: "m1".to_owned(),
                client_urls: vec![url],
                ..Member::default()
            }],
            metrics: [ok("", metrics), ok("", metrics)],
            page: status(404),
            version: ok("", r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0"}"#),
            ..Script::default()
        };
        change(&mut script);
        script
    }));
    let address = fake.address.to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = std::thread::spawn(move || runtime.block_on(stopped));
    let mut outcome = command(address.clone());
    drop(stop);
    assert!(server.join().unwrap().is_err(), "the sender is dropped");
    outcome.output = outcome.output.replace(&address, "ADDRESS");
    outcome
}

fn examine(change: impl FnOnce(&mut Script) + Send + 'static, flags: &[&str]) -> Outcome {
    beside(change, |address| {
        // A busy machine may respond late.
        let patience = "--limit-answer=1m".to_owned();
        let mut args = vec![format!("--endpoints={address}"), "--for=50ms".to_owned(), patience];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        outcome(&words(&args))
    })
}

#[test]
fn exit_codes_say_what_was_found() {
    let healthy = examine(|_| (), &["--only=no-leader,alarm-nospace"]);
    assert_eq!(
        (healthy.code, &*healthy.output),
        (0, "Examined 1 member for 0 s:\n  m1 (ADDRESS): etcd 3.7.1\nNothing found, by 2 rules.\n")
    );
    assert_eq!(examine(|script| script.alarms = vec![no_space(0xa)], &[]).code, 5);
    let large = |script: &mut Script| script.keys = vec![("k", 200_000)];
    assert_eq!(examine(large, &[]).code, 6);
    assert_eq!(examine(large, &["--skip=large-values"]).code, 0);
    assert_eq!(examine(large, &["--sample=0"]).code, 0);
    assert_eq!(examine(large, &["--limit-value-bytes=300000"]).code, 0);
    let machine = examine(large, &["-w", "json"]);
    let parsed: serde_json::Value = serde_json::from_str(&machine.output).unwrap();
    assert_eq!(parsed["findings"][0]["name"], "large-values");
}

/// A member with authentication enabled, queried without a user: it serves metrics and version, and refuses
/// every call.
#[test]
fn a_cluster_that_cannot_be_read_is_not_healthy() {
    let unread = examine(|script| script.refused = vec!["*"], &[]);
    assert_eq!(unread.code, 7, "{unread:?}");
    let text = unread.output.replace("\n    ", " ");
    assert!(text.contains("it is unknown whether the cluster is healthy."), "{text}");
    assert!(text.contains("alarm-corrupt, alarm-nospace, because no list of alarms: "), "{text}");
    assert!(text.contains(
        "Do: authentication is on (auth enable): give a user, preferably root: --user=root:PASSWORD"
    ));
    let machine = examine(|script| script.refused = vec!["*"], &["--json"]);
    let parsed: serde_json::Value = serde_json::from_str(&machine.output).unwrap();
    assert_eq!((&parsed["healthy"], &parsed["verdict"]), (&false.into(), &"unknown".into()));
    assert!(parsed["remedies"][0].as_str().unwrap().contains("--user=root:PASSWORD"), "{parsed}");
    // One refused call is enough, and warnings do not outrank it: what was not read may be worse.
    let large = |script: &mut Script| {
        script.refused = vec!["Alarm"];
        script.keys = vec![("k", 200_000)];
    };
    let hidden = examine(large, &[]);
    assert!(hidden.code == 7 && hidden.output.contains("1 warning, by "), "{hidden:?}");
    assert_eq!(examine(large, &["--skip=alarm-nospace,alarm-corrupt"]).code, 6);
    // Metrics that are served elsewhere count as not examined, too.
    let elsewhere = examine(|script| script.metrics = [status(404), status(404)], &[]);
    assert!(elsewhere.code == 7 && elsewhere.output.contains("Do: if metrics are served elsewhere"));
    // A certain finding takes precedence over a failed request.
    let alarm = |script: &mut Script| {
        script.refused = vec!["Range"];
        script.alarms = vec![no_space(0xa)];
    };
    assert_eq!(examine(alarm, &[]).code, 5);
    // Nothing can be read.
    let nothing = examine(
        |script| {
            script.refused = vec!["*"];
            script.metrics = [status(404), status(404)];
        },
        &[],
    );
    assert_eq!(nothing.code, 1, "{nothing:?}");
    assert!(nothing.error.contains("--user=root:PASSWORD"), "{nothing:?}");
}

#[test]
fn a_page_is_written_beside_the_output_and_changes_no_exit_code() {
    let folder = testkit::TempDir::new("doctor-html");
    let file = folder.path().join("report.html");
    let flag = format!("--html={}", file.display());
    let with_page = examine(|script| script.alarms = vec![no_space(0xa)], &["--only=alarm-nospace", &flag]);
    let without = examine(|script| script.alarms = vec![no_space(0xa)], &["--only=alarm-nospace"]);
    assert_eq!((with_page.code, &with_page.output), (5, &without.output), "{with_page:?}");
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("alarm-nospace: the NOSPACE alarm is raised"), "{page}");
    // The page names keys and clients, so only this user may read it, and an existing file is replaced as a whole.
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    std::fs::write(&file, "x".repeat(1 << 20)).unwrap();
    examine(|_| (), &["--only=no-leader", &flag]);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.len() < 1 << 20 && page.ends_with("</html>\n"), "{}", page.len());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    // A killed run with the same process number has left a partial file.
    let part = folder.path().join(format!(".report.html.{}", std::process::id()));
    std::fs::write(&part, "a part").unwrap();
    assert_eq!(examine(|_| (), &["--only=no-leader", &flag]).code, 0);
    assert!(!part.exists() && std::fs::read_to_string(&file).unwrap().ends_with("</html>\n"));
    // A symbolic link may lead to a file that must not be overwritten.
    let (other, link) = (folder.path().join("other"), folder.path().join("link.html"));
    std::fs::write(&other, "mine").unwrap();
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let failed = examine(|_| (), &["--only=no-leader", &format!("--html={}", link.display())]);
    assert!(failed.code == 1 && failed.error.contains("not a regular file"), "{failed:?}");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
    // If the file cannot be written, the command fails after its output.
    let nowhere = format!("--html={}", folder.path().join("no/report.html").display());
    let failed = examine(|_| (), &["--only=no-leader", &nowhere]);
    assert_eq!(failed.code, 1);
    assert!(
        failed.output.contains("Nothing found") && failed.error.contains("Error: cannot write "),
        "{failed:?}"
    );
    // The exit code still reports the findings.
    let failed = examine(|script| script.alarms = vec![no_space(0xa)], &["--only=alarm-nospace", &nowhere]);
    assert!(failed.code == 5 && failed.error.contains("Error: cannot write "), "{failed:?}");
}

#[test]
fn help_tells_everything() {
    let text = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        match args.first().is_some_and(|word| word == "check") {
            true => check_outcome(&words(&args[1..])).output,
            false => outcome(&words(&args)).output,
        }
    };
    expect("help.txt", &text(&["--help"]));
    expect("help-migrate.txt", &text(&["migrate", "--help"]));
    expect("help-upgrade.txt", &text(&["upgrade", "--help"]));
    expect("list.txt", &text(&["--list"]));
    expect("help-disk.txt", &text(&["check", "disk", "--help"]));
    expect("help-network.txt", &text(&["check", "network", "--help"]));
}

#[test]
fn what_cannot_be_done_is_refused() {
    let refused = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let outcome = outcome(&words(&args));
        assert_eq!((outcome.code, &*outcome.output), (1, ""));
        outcome.error
    };
    assert_eq!(
        refused(&["--only=nonsense"]),
        "Error: there is no check named \"nonsense\": see mainstay doctor --list\n"
    );
    assert!(refused(&["--nonsense"]).starts_with("Error: unknown flag: --nonsense\n"));
    assert!(refused(&["10.0.0.1:2379"]).contains("give endpoints with --endpoints"));
    assert_eq!(
        refused(&["--json", "migrate"]),
        "Error: migrate comes before the flags: mainstay doctor migrate --endpoints=...\n"
    );
    assert_eq!(
        refused(&["migrate", "--to=consul"]),
        "Error: --to must be mainstay or etcd, not \"consul\"\n"
    );
    assert_eq!(refused(&["upgrade", "--pid=x"]), "Error: --pid takes process ids, not \"x\"\n");
    assert!(refused(&["upgrade", "--pid=4294967295"]).contains("/proc/4294967295/cmdline"));
    assert_eq!(refused(&["migrate", "--wal-dir=/w"]), "Error: --wal-dir requires --data-dir\n");
    assert!(refused(&["migrate", "10.0.0.1:2379"]).contains("unknown argument"));
    assert!(refused(&["migrate", "--for=1s"]).starts_with("Error: unknown flag: --for\n"));
    assert!(refused(&["migrate", "--metrics-endpoints=a:1,b:2"]).contains("one URL for each of --endpoints"));
    assert!(refused(&["--user=root"]).contains("a password is missing"));
    assert!(refused(&["-w", "table"]).contains("unknown output format \"table\""));
    assert!(refused(&["--metrics-endpoints=a:1,b:2"]).contains("one URL for each of --endpoints"));
    assert_eq!(refused(&["--for=0s"]), "Error: --for must be at least 10ms\n");
    let gone = testkit::ports::free_address();
    for words in [&[][..], &["migrate"]] {
        let endpoints = format!("--endpoints={gone}");
        let error = refused(&[words, &[&endpoints]].concat());
        let why = format!("{gone}: dial tcp {gone}: connect: connection refused");
        assert_eq!(error, format!("Error: no member can be reached: {why}\n"));
    }
}

#[test]
fn the_network_to_a_member_is_measured() {
    let network = |flags: &[&str]| {
        beside(
            |script| script.keys = vec![("big", 400_000), ("second", 400_000)],
            |address| {
                let mut args =
                    vec!["network".to_owned(), format!("--endpoints={address}"), "--for=50ms".to_owned()];
                args.extend(flags.iter().map(|flag| (*flag).to_owned()));
                check_outcome(&words(&args))
            },
        )
    };
    let outcome = network(&["--json", "--count=5", "--limit-loss=1", "--limit-rtt=1m"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let parsed: serde_json::Value = serde_json::from_str(&outcome.output).unwrap();
    let measured = &parsed["endpoints"][0];
    assert_eq!(measured["endpoint"], "ADDRESS");
    for figure in ["upload_bytes_per_second", "download_bytes_per_second", "mtu", "call_p99_seconds"] {
        assert!(measured[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {measured}");
    }
    assert_eq!(network(&["--count=5", "--limit-rtt=1ns"]).code, 1);
}

#[test]
fn a_disk_needs_a_path() {
    let disk = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        check_outcome(&words(&args))
    };
    assert!(disk(&["disk"]).error.contains("--path=DIR is missing"));
    assert!(disk(&["disk", "--path=/nonexistent"]).error.starts_with("Error: /nonexistent: "));
    let help = disk(&[]).output;
    for listed in ["Available Commands:", "disk", "network", "perf", "datascale"] {
        assert!(help.contains(listed), "{listed}: {help}");
    }
    let dir = testkit::TempDir::new("disk");
    let few = disk(&["disk", "--path", &dir.path().to_string_lossy(), "--count=3", "--size=100"]);
    assert_eq!(
        (few.code, &*few.error),
        (1, "Error: only 3 records were written, but 100 are needed: give a longer --for\n")
    );
}
