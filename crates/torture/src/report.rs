//! Formats the findings of a run as text for a console, and as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;

use oracle::{Operation, Outcome, Request};
use serde_json::{Value, json};

use crate::run::Finding;

/// Maximum number of violations of one kind that are printed. One bug can cause very many.
const SHOWN_OF_A_KIND: usize = 4;
/// Maximum number of characters that are printed of one violation.
const SHOWN_CHARS: usize = 700;

/// Category of a request, for the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// Ranges.
    Read,
    /// Puts and deletions.
    Write,
    /// Transactions.
    Txn,
    /// Requests about leases.
    Lease,
    /// Compactions.
    Compact,
}

impl Sort {
    /// All categories.
    pub const ALL: [Sort; 5] = [Sort::Read, Sort::Write, Sort::Txn, Sort::Lease, Sort::Compact];

    /// Returns the category of a request.
    pub fn of(request: &Request) -> Sort {
        match request {
            Request::Range(_) => Sort::Read,
            Request::Put(_) | Request::Delete(_) => Sort::Write,
            Request::Txn(_) => Sort::Txn,
            Request::Compact { .. } => Sort::Compact,
            Request::Grant { .. }
            | Request::Revoke { .. }
            | Request::KeepAlive { .. }
            | Request::TimeToLive { .. }
            | Request::Leases => Sort::Lease,
        }
    }

    /// Returns the name of the category.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Read => "reads",
            Sort::Write => "writes",
            Sort::Txn => "transactions",
            Sort::Lease => "leases",
            Sort::Compact => "compactions",
        }
    }
}

/// Returns the quantile `per_mille` (990 for the 99th percentile) of values in ascending order; `None` if
/// there are no values.
pub fn quantile(sorted: &[u64], per_mille: usize) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get(last * per_mille / 1000).copied()
}

fn millis(nanos: u64) -> f64 {
    (nanos as f64 / 1e4).round() / 100.0
}

fn latencies(operations: &[Operation], sort: Sort) -> Vec<u64> {
    let of_sort = operations.iter().filter(|operation| Sort::of(&operation.request) == sort);
    let done = of_sort.filter(|operation| matches!(operation.outcome, Outcome::Done(..)));
    let mut times: Vec<u64> =
        done.map(|operation| operation.returned.saturating_sub(operation.call)).collect();
    times.sort_unstable();
    times
}

/// Returns the numbers of operations of a category that were done, were refused, and have an unknown outcome.
fn outcomes(operations: &[Operation], sort: Sort) -> [u64; 3] {
    let mut counts = [0; 3];
    for operation in operations.iter().filter(|operation| Sort::of(&operation.request) == sort) {
        counts[match operation.outcome {
            Outcome::Done(..) => 0,
            Outcome::Refused(_) => 1,
            Outcome::Unknown(_) => 2,
        }] += 1;
    }
    counts
}

/// Returns, for each kill of a leader, the time in nanoseconds until a put that was sent after the kill had
/// succeeded, in ascending order.
fn after_leader_kills(finding: &Finding) -> Vec<u64> {
    let kills = finding.chapters.bars.iter().filter(|bar| bar.name == "kill-leader");
    let mut times: Vec<u64> = kills
        .filter_map(|bar| {
            let writes = finding.history.operations.iter().filter(|operation| {
                operation.call >= bar.from
                    && matches!(operation.request, Request::Put(_))
                    && matches!(operation.outcome, Outcome::Done(..))
            });
            Some(writes.map(|operation| operation.returned).min()? - bar.from)
        })
        .collect();
    times.sort_unstable();
    times
}

/// Returns all violations. Each has a time, if it is known, a kind, and a description.
pub fn violations(finding: &Finding) -> Vec<(Option<u64>, String, String)> {
    let mut out = Vec::new();
    for trouble in &finding.chapters.troubles {
        out.push((Some(trouble.at), trouble.kind.clone(), trouble.text.clone()));
    }
    let operations: BTreeMap<u64, u64> =
        finding.history.operations.iter().map(|operation| (operation.id, operation.returned)).collect();
    let watches: BTreeMap<u64, u64> = finding
        .history
        .watches
        .iter()
        .map(|watch| (watch.id, watch.responses.last().map_or(watch.opened, |response| response.at)))
        .collect();
    let time = |ids: &[u64], watch_ids: &[u64]| {
        let times = ids.iter().filter_map(|id| operations.get(id));
        times.chain(watch_ids.iter().filter_map(|id| watches.get(id))).copied().max()
    };
    for violation in &finding.verdict.violations {
        let at = time(&violation.operations, &violation.watches);
        out.push((at, format!("{:?}", violation.kind), violation.text.clone()));
    }
    for undecided in &finding.verdict.undecided {
        out.push((time(&undecided.operations, &[]), "Undecided".to_owned(), undecided.text.clone()));
    }
    out.sort_by_key(|(at, ..)| at.unwrap_or(u64::MAX));
    out
}

fn counts<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

fn listed<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let words: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn recoveries(finding: &Finding) -> Vec<u64> {
    let mut times: Vec<u64> =
        finding.chapters.bars.iter().filter_map(|bar| Some(bar.recovered?.saturating_sub(bar.to?))).collect();
    times.sort_unstable();
    times
}

/// Returns the report as JSON.
pub fn json(finding: &Finding) -> Value {
    let options = &finding.options;
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let operations = &finding.history.operations;
    let by_sort: serde_json::Map<String, Value> = Sort::ALL
        .into_iter()
        .map(|sort| {
            let [done, refused, unknown] = outcomes(operations, sort);
            let times = latencies(operations, sort);
            let at = |per_mille| quantile(&times, per_mille).map(millis);
            let value = json!({
                "done": done, "refused": refused, "unknown": unknown,
                "p50_ms": at(500), "p99_ms": at(990), "max_ms": at(1000),
            });
            (sort.name().to_owned(), value)
        })
        .collect();
    let faults: Vec<Value> = finding
        .chapters
        .bars
        .iter()
        .map(|bar| {
            json!({
                "name": bar.name, "detail": bar.detail, "members": bar.members,
                "from_ms": millis(bar.from), "to_ms": bar.to.map(millis),
                "recovered_ms": bar.recovered.map(millis),
            })
        })
        .collect();
    let skipped: Vec<Value> =
        finding.skipped.iter().map(|(fault, why)| json!({ "fault": fault.name(), "why": why })).collect();
    let violations: Vec<Value> = violations(finding)
        .into_iter()
        .map(|(at, kind, text)| json!({ "at_ms": at.map(millis), "kind": kind, "text": text }))
        .collect();
    let figures = &finding.verdict.figures;
    json!({
        "verdict": if finding.is_clean() { "no violation" } else { "violations" },
        "violations": violations,
        "options": {
            "server": path(&options.server),
            "second_build": path(&options.second_build),
            "members": options.members,
            "seconds": options.seconds,
            "seed": options.seed,
            "every": options.every,
            "faults": finding.faults.iter().map(|fault| fault.name()).collect::<Vec<_>>(),
            "clients": options.clients,
            "rate": options.rate,
            "timeout_ms": options.timeout_ms,
            "flags": options.flags,
            "tls": options.tls,
            "users": options.users,
            "bug": options.bug,
        },
        "skipped": skipped,
        "worked_ms": millis(finding.worked),
        "operations": by_sort,
        "failures": finding.failures,
        "security": finding.security.iter().copied().collect::<BTreeMap<_, _>>(),
        "faults": faults,
        "recoveries_ms": recoveries(finding).into_iter().map(millis).collect::<Vec<_>>(),
        "leader_kill_to_write_ms": after_leader_kills(finding).into_iter().map(millis).collect::<Vec<_>>(),
        "notes": finding.chapters.notes.iter().map(|(at, text)| json!({ "at_ms": millis(*at), "text": text })).collect::<Vec<_>>(),
        "judged": {
            "ms": finding.judging.as_millis() as u64,
            "operations": figures.operations,
            "answered": figures.answered,
            "refused": figures.refused,
            "unknown": figures.unknown,
            "unknown_happened": figures.unknown_happened,
            "revision": figures.revision,
            "watches": figures.watches,
            "events": figures.events,
            "progress": figures.progress,
            "leases": figures.leases,
            "leases_expired": figures.leases_expired,
            "compactions": figures.compactions,
            "holdings": figures.holdings,
            "finals": figures.finals,
            "choices": figures.choices,
            "search_steps": figures.search_steps,
        },
    })
}

/// Returns the summary of a run, for the console.
pub fn summary(finding: &Finding) -> String {
    let mut out = String::new();
    write_summary(finding, &mut out);
    out
}

fn write_summary(finding: &Finding, out: &mut String) {
    // Ignore errors, because writing to a `String` cannot fail.
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<12}{text}");
    };
    let options = &finding.options;
    let server = options.server.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let seed = options.seed.unwrap_or_default();
    line(
        "run",
        format!("{server}, {} members, {} s, seed {seed}", options.members, finding.worked / 1_000_000_000),
    );
    let operations = &finding.history.operations;
    for sort in Sort::ALL {
        let [done, refused, unknown] = outcomes(operations, sort);
        let times = latencies(operations, sort);
        let at = |per_mille| quantile(&times, per_mille).map_or(0.0, millis);
        line(
            sort.name(),
            format!(
                "{done} done, {refused} refused, {unknown} unknown; p50 {} ms, p99 {} ms",
                at(500),
                at(990)
            ),
        );
    }
    line("failures", listed(finding.failures.iter().map(|(kind, count)| (kind.as_str(), *count))));
    line("faults", listed(counts(finding.chapters.bars.iter().map(|bar| bar.name.as_str()))));
    if !finding.security.is_empty() {
        let words: Vec<String> = finding.security.iter().map(|(name, n)| format!("{n} {name}")).collect();
        line("security", words.join(", "));
    }
    let skipped: BTreeSet<&str> = finding.skipped.iter().map(|(fault, _)| fault.name()).collect();
    if !skipped.is_empty() {
        line("skipped", skipped.into_iter().collect::<Vec<_>>().join(", "));
    }
    for (name, times) in [("recovery", recoveries(finding)), ("failover", after_leader_kills(finding))] {
        if let (Some(median), Some(worst)) = (quantile(&times, 500), times.last()) {
            let what = if name == "recovery" {
                "end of a fault to all members healthy"
            } else {
                "leader killed to next write"
            };
            line(
                name,
                format!(
                    "{what}: median {} ms, worst {} ms, of {}",
                    millis(median),
                    millis(*worst),
                    times.len()
                ),
            );
        }
    }
    let figures = &finding.verdict.figures;
    line(
        "watches",
        format!(
            "{}, {} events, {} progress notifications",
            figures.watches, figures.events, figures.progress
        ),
    );
    line(
        "judged",
        format!(
            "{} operations up to revision {}, {} unknown of which {} were writes that happened, {} leases, {} expired, \
             {} holdings of locks, {} compactions, {} final states; {} ms",
            figures.operations,
            figures.revision,
            figures.unknown,
            figures.unknown_happened,
            figures.leases,
            figures.leases_expired,
            figures.holdings,
            figures.compactions,
            figures.finals,
            finding.judging.as_millis()
        ),
    );
    line("results", finding.out.display().to_string());
    let violations = violations(finding);
    let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, kind, text) in &violations {
        let count = shown.entry(kind).or_default();
        *count += 1;
        if *count <= SHOWN_OF_A_KIND {
            let at = at.map_or(String::new(), |at| format!(" at {:.2} s", at as f64 / 1e9));
            let text: String = text.chars().take(SHOWN_CHARS).collect();
            line("VIOLATION", format!("{kind}{at}: {text}"));
        }
    }
    if violations.is_empty() {
        line("verdict", "no violation".to_owned());
    } else {
        let kinds = listed(shown.into_iter().map(|(kind, count)| (kind, count as u64)));
        line("verdict", format!("{} violations: {kinds}", violations.len()));
    }
}

/// Writes the history and the report to the output directory.
///
/// # Errors
/// Returns the error of the operating system.
pub fn write(finding: &Finding) -> io::Result<()> {
    std::fs::write(finding.out.join("history.jsonl"), finding.history.to_lines())?;
    let mut report = serde_json::to_string_pretty(&json(finding)).map_err(io::Error::other)?;
    report.push('\n');
    std::fs::write(finding.out.join("report.json"), report)
}
