//! `check datascale`: writes an amount of data and measures how much memory the server needs for it.

use stdx::{First, race};

use api::etcdserverpb as pb;
use bytes::Bytes;
use cli::{Command, Failure, Flag, Progress};

use super::Run;
use super::measurement::{AUTO_COMPACT, AUTO_DEFRAG, give_back_space, workload};
use crate::call::Call;
use crate::load::{Clients, RandomKeys, connections, delete_all, refuse_if_used};
use crate::metrics::resident_bytes;

const LOAD: Flag<String> = Flag::text(
    "load",
    "s",
    "The datascale check's workload model. Accepted workloads: s(small), m(medium), l(large), xl(xLarge)",
);
const PREFIX: Flag<String> =
    Flag::text("prefix", "/etcdctl-check-datascale/", "The prefix for writing the datascale check's keys.");

pub(super) const DATASCALE: Command<Run> = Command {
    name: "datascale",
    usage: "datascale [options]",
    about: "Check the memory usage of holding data for different workloads on a given server endpoint.",
    long: "If no endpoint is provided, localhost will be used. If multiple endpoints are provided, first endpoint will be used.",
    example: "  etcdctl check datascale --load=s --auto-compact",
    flags: &[LOAD.row(), PREFIX.row(), AUTO_COMPACT.row(), AUTO_DEFRAG.row()],
    run: Some(Run::asking(|call| Box::pin(check(call)))),
    ..Command::EMPTY
};

const KEY_BYTES: usize = 512;
const VALUE_BYTES: usize = 512;

/// Number of key-value pairs to write, and number of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Workload {
    pairs: u64,
    clients: usize,
}

/// The workloads `s`, `m`, `l` and `xl`.
const WORKLOADS: [Workload; 4] = [
    Workload { pairs: 10_000, clients: 50 },
    Workload { pairs: 100_000, clients: 200 },
    Workload { pairs: 1_000_000, clients: 500 },
    Workload { pairs: 3_000_000, clients: 1000 },
];

pub(super) async fn check(call: &Call) -> Result<(), Failure> {
    let workload = workload(call, LOAD, WORKLOADS)?;
    let prefix = call.matches.get(PREFIX);
    let mut interruption = call.interruption();
    let clients = connections(call, workload.clients).await?;
    let Some(one) = clients.first().cloned() else { return Ok(()) };
    refuse_if_used(&one, prefix, "").await?;
    let endpoint = one.endpoints().into_iter().next().unwrap_or_default();
    let before = memory(call, &endpoint, "before").await?;
    call.line(format!(
        "Start data scale check for work load [{} key-value pairs, {} bytes per key-value, {} concurrent clients].",
        workload.pairs,
        KEY_BYTES + VALUE_BYTES,
        workload.clients
    ))?;
    let clients = Clients::start(clients);
    let writing = race(write_all(workload, prefix, &clients), interruption.came()).await;
    let interrupted = writing == First::Right(());
    let outcome = clients.finish().await;
    let after = memory(call, &endpoint, "after").await;
    let deleted_at = delete_all(&one, prefix).await?;
    give_back_space(call, &one, Some(deleted_at)).await?;
    let used_mib = (after? - before) / (1024.0 * 1024.0);
    if interrupted {
        call.warn("Warning: interrupted; the written keys are being deleted");
        return Err(Failure::said(Failure::ERROR));
    }
    if !outcome.errors.is_empty() {
        call.write(outcome.error_lines().as_bytes())?;
        return Err(Failure::said(Failure::ERROR));
    }
    call.line(format!("PASS: Approximate system memory used : {used_mib:.2} MB."))
}

async fn write_all(workload: Workload, prefix: &str, clients: &Clients) {
    let value = Bytes::from(vec![0; VALUE_BYTES]);
    let mut keys = RandomKeys::new(prefix, KEY_BYTES);
    let mut progress = Progress::of_things("writing", Some(workload.pairs));
    for _ in 0..workload.pairs {
        let request = pb::PutRequest { key: keys.next().into(), value: value.clone(), ..Default::default() };
        clients.offer(request).await;
        progress.at(clients.done(), "");
    }
}

/// Returns the server's resident memory, in bytes.
async fn memory(call: &Call, endpoint: &str, when: &str) -> Result<f64, Failure> {
    match resident_bytes(endpoint).await {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            call.line(error.to_string())?;
            call.line(format!(
                "FAIL: Could not read process_resident_memory_bytes {when} the put operations."
            ))?;
            Err(Failure::said(Failure::ERROR))
        }
    }
}
