//! `timeline.html`: what failed when, and what clients noticed of it, in one file that needs nothing else.

use std::io;

use oracle::{Operation, Outcome};
use serde_json::{Value, json};

use crate::chronicle::{Chapters, Reading, State, Trail};
use crate::report::{Sort, quantile, violations};
use crate::run::Finding;

const TEMPLATE: &str = include_str!("timeline.html");
/// Where the data goes.
const DATA: &str = "/*DATA*/null";
/// At most so many buckets of time: more than a screen has pixels are of no use.
const BUCKETS_MAX: u64 = 1200;
/// At most so many violations are drawn.
const VIOLATIONS_MAX: usize = 500;

/// The document.
pub fn html(finding: &Finding) -> String {
    // Nothing in the data may end the script that it stands in.
    let data = data(finding).to_string().replace('<', "\\u003c");
    TEMPLATE.replacen(DATA, &data, 1)
}

/// Writes it to the output directory.
///
/// # Errors
/// The operating system's.
pub fn write(finding: &Finding) -> io::Result<()> {
    std::fs::write(finding.out.join("timeline.html"), html(finding))
}

fn seconds(nanos: u64) -> f64 {
    (nanos as f64 / 1e6).round() / 1e3
}

/// Pieces of a trail that are worth drawing: from, to, what.
fn pieces<T: Copy>(trail: &Trail<T>, end: u64, draw: impl Fn(T) -> Option<Value>) -> Vec<Value> {
    let mut out = Vec::new();
    for (nth, (from, value)) in trail.iter().enumerate() {
        let to = trail.get(nth + 1).map_or(end.max(*from), |(next, _)| *next);
        if let Some(what) = draw(*value) {
            out.push(json!([seconds(*from), seconds(to), what]));
        }
    }
    out
}

/// What clients did, counted in equal pieces of time, which the page calls buckets.
struct Buckets {
    /// How long a bucket is, in nanoseconds; whole seconds.
    width: u64,
    /// Per sort of request and bucket, how many operations were done.
    done: [Vec<u64>; Sort::ALL.len()],
    /// Per bucket, how many operations were refused.
    refused: Vec<u64>,
    /// Per bucket, of how many operations it is unknown whether they happened.
    unknown: Vec<u64>,
    /// Per bucket, how long each read took, in nanoseconds.
    reads: Vec<Vec<u64>>,
    /// Per bucket, how long each write and each transaction took, in nanoseconds.
    writes: Vec<Vec<u64>>,
}

impl Buckets {
    /// Counts the operations of a run that ended at `end`.
    fn count(operations: &[Operation], end: u64) -> Buckets {
        let width = (end / BUCKETS_MAX / 1_000_000_000 + 1) * 1_000_000_000;
        let count = usize::try_from(end / width).unwrap_or_default() + 1;
        let mut buckets = Buckets {
            width,
            done: [(); Sort::ALL.len()].map(|()| vec![0; count]),
            refused: vec![0; count],
            unknown: vec![0; count],
            reads: vec![Vec::new(); count],
            writes: vec![Vec::new(); count],
        };
        for operation in operations {
            buckets.add(operation);
        }
        buckets
    }

    fn add(&mut self, operation: &Operation) {
        let at = usize::try_from(operation.returned / self.width).unwrap_or(usize::MAX);
        let sort = Sort::of(&operation.request);
        let counts = match operation.outcome {
            Outcome::Done(..) => {
                let times = match sort {
                    Sort::Read => Some(&mut self.reads),
                    Sort::Write | Sort::Txn => Some(&mut self.writes),
                    Sort::Lease | Sort::Compact => None,
                };
                if let Some(bucket) = times.and_then(|times| times.get_mut(at)) {
                    bucket.push(operation.returned.saturating_sub(operation.call));
                }
                Sort::ALL.iter().position(|other| *other == sort).and_then(|nth| self.done.get_mut(nth))
            }
            Outcome::Refused(_) => Some(&mut self.refused),
            Outcome::Unknown(_) => Some(&mut self.unknown),
        };
        if let Some(count) = counts.and_then(|counts| counts.get_mut(at)) {
            *count += 1;
        }
    }

    /// The medians and 99th percentiles of each bucket, as the page wants them.
    fn latencies(&mut self) -> Value {
        let latency = |buckets: &mut Vec<Vec<u64>>, per_mille: usize| -> Vec<Value> {
            buckets
                .iter_mut()
                .map(|bucket| {
                    bucket.sort_unstable();
                    quantile(bucket, per_mille).map_or(Value::Null, |time| json!(seconds(time) * 1e3))
                })
                .collect()
        };
        json!([
            { "name": "reads p50", "values": latency(&mut self.reads, 500) },
            { "name": "reads p99", "values": latency(&mut self.reads, 990) },
            { "name": "writes p50", "values": latency(&mut self.writes, 500) },
            { "name": "writes p99", "values": latency(&mut self.writes, 990) },
        ])
    }

    /// How many operations of each sort were done in each bucket.
    fn rates(&self) -> Vec<Value> {
        Sort::ALL
            .iter()
            .zip(&self.done)
            .map(|(sort, counts)| json!({ "name": sort.name(), "values": counts }))
            .collect()
    }
}

/// For each member when it ran, when it led, and when it had no leader.
fn members(chapters: &Chapters, end: u64) -> Vec<Value> {
    chapters
        .states
        .iter()
        .zip(&chapters.readings)
        .enumerate()
        .map(|(at, (states, readings))| {
            let state = pieces(states, end, |state| {
                Some(json!(match state {
                    State::Up => "up",
                    State::Down => "down",
                    State::Paused => "paused",
                }))
            });
            let leads = pieces(readings, end, |reading: Reading| reading.leads.then(|| json!(reading.term)));
            let lost = pieces(readings, end, |reading: Reading| {
                if !reading.answers {
                    Some(json!("does not answer"))
                } else if !reading.sees_leader {
                    Some(json!("knows no leader"))
                } else {
                    None
                }
            });
            json!({ "name": format!("m{at}"), "state": state, "leads": leads, "lost": lost })
        })
        .collect()
}

/// The faults, each as a bar from its beginning to its end.
fn bars(chapters: &Chapters, end: u64) -> Vec<Value> {
    chapters
        .bars
        .iter()
        .map(|bar| {
            json!({
                "name": bar.name, "detail": bar.detail, "members": bar.members,
                "from": seconds(bar.from), "to": seconds(bar.to.unwrap_or(end)),
                "recovered": bar.recovered.map(seconds),
            })
        })
        .collect()
}

/// All that the page draws.
fn data(finding: &Finding) -> Value {
    let chapters = &finding.chapters;
    let operations = &finding.history.operations;
    let last = operations.iter().map(|operation| operation.returned).max().unwrap_or_default();
    let ends = chapters.bars.iter().filter_map(|bar| bar.recovered.or(bar.to));
    let end = ends.chain([last, finding.worked]).max().unwrap_or_default().max(1);
    let mut buckets = Buckets::count(operations, end);
    let found = violations(finding);
    let shown: Vec<Value> = found
        .iter()
        .take(VIOLATIONS_MAX)
        .map(|(at, kind, text)| json!({ "at": at.map(seconds), "kind": kind, "text": text }))
        .collect();
    let figures = &finding.verdict.figures;
    let options = &finding.options;
    let server = options.server.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    json!({
        "end": seconds(end),
        "worked": seconds(finding.worked),
        "bucket": seconds(buckets.width),
        "server": server,
        "seed": options.seed.unwrap_or_default().to_string(),
        "clients": options.clients,
        "members": members(chapters, end),
        "bars": bars(chapters, end),
        "rates": buckets.rates(),
        "refused": buckets.refused,
        "unknown": buckets.unknown,
        "latencies": buckets.latencies(),
        "violations": shown,
        "violations_all": found.len(),
        "skipped": finding.skipped.iter().map(|(fault, why)| format!("{fault}: {why}")).collect::<Vec<_>>(),
        "notes": chapters.notes.iter().map(|(at, text)| json!([seconds(*at), text])).collect::<Vec<_>>(),
        "operations": operations.len(),
        "revision": figures.revision,
        "watches": finding.history.watches.len(),
        "events": figures.events,
    })
}
