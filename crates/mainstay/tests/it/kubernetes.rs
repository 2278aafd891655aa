//! The load of a Kubernetes cluster (`mainstay bench kubernetes`), against a member of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::TempDir;

use crate::member::{Member, Setup, binary};
use crate::run;

/// Runs the load for two seconds, with more flags. Returns the result.
fn load(member: &Member, more: &[&str]) -> Value {
    load_with(&[&format!("--endpoints={}", member.client_address())], more)
}

/// Runs the load with flags of the tool and of the command. Returns the result.
fn load_with(flags: &[&str], more: &[&str]) -> Value {
    let words = [
        "--json=-",
        "kubernetes",
        "--nodes=40",
        "--pods-per-node=1",
        "--pod-lifetime=4s",
        "--lease-interval=400ms",
        "--status-interval=1s",
        "--compaction-interval=300ms",
        "--warmup=500ms",
        "--duration=2s",
        "--pod-bytes-max=12288",
    ];
    let mut command = Command::new(binary());
    command.env_clear().arg("bench").args(flags).args(words).args(more);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn operations(result: &Value, kind: &str) -> u64 {
    let rows = result["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["workload"] == kind);
    row.and_then(|row| row["median"]["operations"].as_u64()).unwrap_or(0)
}

#[test]
fn no_comparison_fails_and_each_api_server_receives_every_write() {
    let dir = TempDir::in_memory("kubernetes");
    let member = Setup::new(dir.path()).start();
    let result = load(&member, &[]);
    let number =
        |name: &str| result["numbers"][""][name].as_f64().unwrap_or_else(|| panic!("{name}: {result}"));
    for name in ["conflicts", "differences", "disordered_events"] {
        assert_eq!(number(name), 0.0, "{name}: {}", result["conclusions"]);
    }
    // Whatever the machine does, each of 40 nodes was due in each of five intervals.
    let renewals = operations(&result, "lease renewal") + number("skipped lease renewal") as u64;
    assert_eq!(renewals, 200);
    for kind in [
        "node status",
        "pod create",
        "pod update",
        "pod delete",
        "event",
        "revision read",
        "progress request",
        "compaction txn",
        "compaction",
        "event delivery",
    ] {
        assert!(operations(&result, kind) > 0, "{kind}: {result}");
    }
    assert_eq!(result["facts"]["Lists"], "RangeStream");
    assert!(number("listed_keys") >= 3.0 * 120.0, "three API servers list leases, nodes and pods");
    assert!(number("server_cpu_cores") > 0.0 && number("thread core cpu_cores") > 0.0, "{result}");
    assert!(number("log_bytes_per_node_per_s") > 0.0);
    // Once more with the same keys, as another run of the tool: it does not count what was there before.
    let again = load(&member, &["--watch-events=false", "--api-servers=2", "--contents=incompressible"]);
    assert_eq!(again["numbers"][""]["differences"], 0.0, "{}", again["conclusions"]);
    assert_eq!(again["numbers"][""]["conflicts"], 0.0);
    member.stop();
}

#[test]
fn a_server_that_is_started_is_measured_over_tls() {
    let dir = TempDir::in_memory("kubernetes-tls");
    // The server writes its flags to a file first.
    let (server, flags) = (dir.path().join("server"), dir.path().join("flags"));
    let script =
        format!("#!/bin/sh\necho \"$@\" > {}\nexec {} \"$@\"\n", flags.display(), binary().display());
    std::fs::write(&server, script).expect("the script is written");
    std::fs::set_permissions(&server, Permissions::from_mode(0o755)).expect("it is made executable");
    let (server, place) =
        (format!("--server=mainstay={}", server.display()), format!("--data-dir={}", dir.path().display()));
    let result = load_with(&[], &[&server, &place, "--tls"]);
    let numbers = &result["numbers"]["mainstay"];
    assert_eq!(numbers["differences"], 0.0, "{result}");
    assert_eq!(numbers["conflicts"], 0.0, "{result}");
    let flags = std::fs::read_to_string(&flags).expect("the server was started");
    assert!(flags.contains("--cert-file") && !flags.contains("listen-client-urls=http:"), "{flags}");
}

#[test]
fn the_objects_of_a_real_cluster_are_left_alone() {
    let dir = TempDir::in_memory("kubernetes-real");
    let member = Setup::new(dir.path()).start();
    run(async { member.client().await.put("/registry/pods/default/mine", "v").await.expect("it writes") });
    let endpoint = format!("--endpoints={}", member.client_address());
    let words = ["bench", &endpoint, "kubernetes", "--nodes=1"];
    let output = Command::new(binary()).env_clear().args(words).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the server has 1 keys below /registry/ that this tool has not written"), "{said}");
    run(async {
        let everything = member.client().await.everything().await.expect("it reads");
        assert_eq!(everything.kvs.len(), 1, "nothing was written");
    });
    member.stop();
}

#[test]
fn what_another_client_writes_is_told() {
    let dir = TempDir::in_memory("kubernetes-other");
    let member = Setup::new(dir.path()).start();
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            run(async {
                let client = member.client().await;
                let key = "/registry/leases/kube-node-lease/node-00000007";
                // The load refuses to run where others have written. So wait until it has begun.
                let deadline = Instant::now() + Duration::from_secs(60);
                while !done.load(Ordering::Relaxed) && Instant::now() < deadline {
                    if client.get(key).await.expect("it reads").is_some() {
                        client.put(key, "stolen").await.expect("it writes");
                    }
                }
            });
        });
        let result = load(&member, &[]);
        done.store(true, Ordering::Relaxed);
        result
    });
    let numbers = &result["numbers"][""];
    assert!(numbers["conflicts"].as_f64() > Some(0.0), "{numbers}");
    assert!(numbers["differences"].as_f64() > Some(0.0), "{numbers}");
    let told = result["conclusions"].to_string();
    assert!(told.contains("Not carried") && told.contains("the comparison of the revision failed"), "{told}");
    member.stop();
}
