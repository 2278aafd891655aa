//! `check perf`: writes keys at a given rate and measures whether the cluster keeps up.

use std::time::Duration;
use stdx::{First, race};

use api::etcdserverpb as pb;
use bytes::Bytes;
use cli::{Command, Failure, Flag, Progress};
use tokio::time::{Instant, sleep};

use super::Run;
use super::measurement::{AUTO_COMPACT, AUTO_DEFRAG, give_back_space, workload};
use crate::call::Call;
use crate::load::{Clients, Outcome, RandomKeys, connections, delete_all, refuse_if_used};
use crate::process::Interruption;

const LOAD: Flag<String> = Flag::text(
    "load",
    "s",
    "The performance check's workload model. Accepted workloads: s(small), m(medium), l(large), xl(xLarge). Different workload models use different configurations in terms of number of clients and expected throughput.",
);
const PREFIX: Flag<String> =
    Flag::text("prefix", "/etcdctl-check-perf/", "The prefix for writing the performance check's keys.");

pub(super) const PERF: Command<Run> = Command {
    name: "perf",
    usage: "perf [options]",
    about: "Check the performance of the etcd cluster",
    example: "  # 1000 writes per second by 200 clients for a minute\n  etcdctl check perf --load=m",
    flags: &[LOAD.row(), PREFIX.row(), AUTO_COMPACT.row(), AUTO_DEFRAG.row()],
    run: Some(Run::asking(|call| Box::pin(check(call)))),
    ..Command::EMPTY
};

const KEY_BYTES: usize = 256;
const VALUE_BYTES: usize = 1024;

/// If this process is late because this machine is slow, it sends the late writes afterwards if the delay is
/// at most this time; otherwise it skips them. Writes that were due while a slow cluster kept all clients
/// busy are always skipped.
const CATCH_UP: Duration = Duration::from_millis(100);

/// Pause before the next check whether writes are due.
const TICK: Duration = Duration::from_millis(1);

/// Rate, number of clients and duration of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Workload {
    writes_per_second: u32,
    clients: usize,
    duration: Duration,
}

/// The workloads `s`, `m`, `l` and `xl`.
const WORKLOADS: [Workload; 4] = [
    Workload { writes_per_second: 150, clients: 50, duration: Duration::from_secs(60) },
    Workload { writes_per_second: 1000, clients: 200, duration: Duration::from_secs(60) },
    Workload { writes_per_second: 8000, clients: 500, duration: Duration::from_secs(60) },
    Workload { writes_per_second: 15000, clients: 1000, duration: Duration::from_secs(60) },
];

pub(super) async fn check(call: &Call) -> Result<(), Failure> {
    let workload = workload(call, LOAD, WORKLOADS)?;
    let prefix = call.matches.get(PREFIX);
    let interruption = call.interruption();
    let clients = connections(call, workload.clients).await?;
    let Some(first) = clients.first().cloned() else { return Ok(()) };
    refuse_if_used(&first.within(workload.duration), prefix, "'").await?;
    let (outcome, offered) = measure(workload, prefix, Clients::start(clients), interruption).await;
    let deleted_at = delete_all(&first, prefix).await;
    if let Err(status) = &deleted_at {
        let error = client::shown(status);
        call.line(format!("FAIL: Cleanup failed during key deletion: ERROR({error})"))?;
    }
    give_back_space(call, &first, deleted_at.ok()).await?;
    if let Some(warning) = offered.warning(workload) {
        call.warn(warning);
    }
    let (text, passed) = verdict(workload, &outcome);
    call.write(text.as_bytes())?;
    if passed { Ok(()) } else { Err(Failure::said(Failure::ERROR)) }
}

/// Result of generating the load: the number of writes that this process has queued for the clients, and the
/// number that it has skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offered {
    writes: u64,
    /// Number of writes that were skipped because this process was late although clients were free.
    missed: u64,
    interrupted: bool,
}

impl Offered {
    /// Returns a warning if the result depends more on this machine than on the cluster.
    fn warning(&self, workload: Workload) -> Option<String> {
        if self.interrupted {
            return Some("Warning: interrupted; the result covers only the part that was run".to_owned());
        }
        let wanted = u64::from(workload.writes_per_second) * workload.duration.as_secs();
        // The check passes with nine tenths of the writes, so one tenth may be missing. Warn if this machine
        // has missed more than half of that tenth (a twentieth of all writes), because then it influences the
        // result as much as the cluster does.
        (self.missed * 20 > wanted).then(|| {
            format!(
                "Warning: this machine was too slow to generate {} writes/s: {} of {wanted} writes were \
                 never sent although clients were free. The result does not describe the cluster; run the \
                 check on another or an idle machine.",
                workload.writes_per_second, self.missed
            )
        })
    }
}

async fn measure(
    workload: Workload,
    prefix: &str,
    clients: Clients,
    mut interruption: Interruption,
) -> (Outcome, Offered) {
    let value = Bytes::from(vec![0; VALUE_BYTES]);
    let mut keys = RandomKeys::new(prefix, KEY_BYTES);
    let mut offered = Offered::default();
    let mut progress = Progress::of_things(
        "writing",
        Some(u64::from(workload.writes_per_second) * workload.duration.as_secs()),
    );
    let end = Instant::now() + workload.duration;
    let interval = Duration::from_secs(1) / workload.writes_per_second;
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        if now >= end {
            break;
        }
        if let Some(late) = now.checked_duration_since(next).filter(|late| *late > CATCH_UP) {
            let lost = u64::try_from(late.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u64::MAX);
            if clients.has_room() {
                offered.missed += lost;
            }
            next = now;
        }
        let mut was_full = false;
        while next <= now {
            was_full |= !clients.has_room();
            let request =
                pb::PutRequest { key: keys.next().into(), value: value.clone(), ..Default::default() };
            let turn = tokio::time::timeout_at(end, clients.offer(request)).await;
            if turn.is_err() {
                break;
            }
            offered.writes += 1;
            next += interval;
        }
        if was_full {
            // All clients were busy because the cluster was slow. Skip the writes that were due in that time,
            // so that they do not count as missed by this machine.
            next = next.max(Instant::now());
        }
        progress.at(clients.done(), "");
        if race(sleep(TICK), interruption.came()).await == First::Right(()) {
            offered.interrupted = true;
            break;
        }
    }
    progress.finish();
    (clients.finish().await, offered)
}

/// Returns the lines of the result, and true if the result is a pass by etcdctl's limits.
fn verdict(workload: Workload, outcome: &Outcome) -> (String, bool) {
    let mut text = outcome.error_lines();
    let mut passed = text.is_empty();
    let (rate, slowest, deviation) = (outcome.rate(), outcome.slowest(), outcome.deviation());
    let shown_rate = rate as u64 + 1;
    let mut line = |good: bool, pass: String, fail: String| {
        passed &= good;
        text.push_str(if good { &pass } else { &fail });
        text.push('\n');
    };
    line(
        rate / f64::from(workload.writes_per_second) > 0.9,
        format!("PASS: Throughput is {shown_rate} writes/s"),
        format!("FAIL: Throughput too low: {shown_rate} writes/s"),
    );
    line(
        slowest <= 0.5,
        format!("PASS: Slowest request took {slowest:.6}s"),
        format!("Slowest request took too long: {slowest:.6}s"),
    );
    line(
        deviation <= 0.1,
        format!("PASS: Stddev is {deviation:.6}s"),
        format!("Stddev too high: {deviation:.6}s"),
    );
    text.push_str(if passed { "PASS\n" } else { "FAIL\n" });
    (text, passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(count: usize, latency: f64, slowest: f64) -> Outcome {
        let mut latencies = vec![latency; count - 1];
        latencies.push(slowest);
        Outcome { latencies, total: 60.0, ..Outcome::default() }
    }

    #[test]
    fn a_cluster_that_keeps_up_passes() {
        let workload = WORKLOADS[0];
        let expected = "PASS: Throughput is 151 writes/s\nPASS: Slowest request took 0.020000s\n\
                        PASS: Stddev is 0.000200s\nPASS\n";
        assert_eq!(verdict(workload, &outcome(9000, 0.001, 0.02)), (expected.to_owned(), true));
    }

    #[test]
    fn a_slow_one_fails_by_each_limit() {
        let workload = WORKLOADS[1];
        let expected = "FAIL: Throughput too low: 1 writes/s\nSlowest request took too long: 2.000000s\n\
                        Stddev too high: 0.750000s\nFAIL\n";
        assert_eq!(verdict(workload, &outcome(2, 0.5, 2.0)), (expected.to_owned(), false));
    }

    #[test]
    fn no_write_at_all_fails() {
        let nothing = Outcome { total: 60.0, ..Outcome::default() };
        let (text, passed) = verdict(WORKLOADS[0], &nothing);
        assert!(!passed, "{text}");
    }

    #[test]
    fn a_machine_that_is_too_slow_says_so() {
        let workload = WORKLOADS[3];
        assert_eq!(Offered { writes: 899_000, missed: 1000, interrupted: false }.warning(workload), None);
        let slow = Offered { writes: 500_000, missed: 400_000, interrupted: false };
        assert!(
            slow.warning(workload).unwrap().contains("too slow to generate 15000 writes/s: 400000 of 900000")
        );
    }
}
