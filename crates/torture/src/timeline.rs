//! `timeline.html`: what failed when, and what clients noticed of it, in one file that needs nothing else.

use std::io;

use oracle::Outcome;
use serde_json::{Value, json};

use crate::chronicle::{Reading, State, Trail};
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

fn data(finding: &Finding) -> Value {
    let chapters = &finding.chapters;
    let operations = &finding.history.operations;
    let last = operations.iter().map(|operation| operation.returned).max().unwrap_or_default();
    let ends = chapters.bars.iter().filter_map(|bar| bar.recovered.or(bar.to));
    let end = ends.chain([last, finding.worked]).max().unwrap_or_default().max(1);
    let width = (end / BUCKETS_MAX / 1_000_000_000 + 1) * 1_000_000_000;
    let buckets = usize::try_from(end / width).unwrap_or_default() + 1;

    let mut done = [(); Sort::ALL.len()].map(|()| vec![0_u64; buckets]);
    let mut failed = [(); 2].map(|()| vec![0_u64; buckets]);
    let mut times = [(); 2].map(|()| vec![Vec::new(); buckets]);
    for operation in operations {
        let at = usize::try_from(operation.returned / width).unwrap_or(usize::MAX);
        let sort = Sort::of(&operation.request);
        match operation.outcome {
            Outcome::Done(..) => {
                let counts =
                    Sort::ALL.iter().position(|other| *other == sort).and_then(|nth| done.get_mut(nth));
                if let Some(count) = counts.and_then(|counts| counts.get_mut(at)) {
                    *count += 1;
                }
                let kind = match sort {
                    Sort::Read => &mut times[0],
                    Sort::Write | Sort::Txn => &mut times[1],
                    Sort::Lease | Sort::Compact => continue,
                };
                if let Some(bucket) = kind.get_mut(at) {
                    bucket.push(operation.returned.saturating_sub(operation.call));
                }
            }
            Outcome::Refused(_) | Outcome::Unknown(_) => {
                let nth = usize::from(matches!(operation.outcome, Outcome::Unknown(_)));
                if let Some(count) = failed[nth].get_mut(at) {
                    *count += 1;
                }
            }
        }
    }
    let latency = |buckets: &mut Vec<Vec<u64>>, per_mille: usize| -> Vec<Value> {
        buckets
            .iter_mut()
            .map(|bucket| {
                bucket.sort_unstable();
                quantile(bucket, per_mille).map_or(Value::Null, |time| json!(seconds(time) * 1e3))
            })
            .collect()
    };
    let [reads, writes] = &mut times;
    let latencies = json!([
        { "name": "reads p50", "values": latency(reads, 500) },
        { "name": "reads p99", "values": latency(reads, 990) },
        { "name": "writes p50", "values": latency(writes, 500) },
        { "name": "writes p99", "values": latency(writes, 990) },
    ]);
    let rates: Vec<Value> = Sort::ALL
        .iter()
        .zip(&done)
        .map(|(sort, counts)| json!({ "name": sort.name(), "values": counts }))
        .collect();

    let members: Vec<Value> = chapters
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
        .collect();
    let bars: Vec<Value> = chapters
        .bars
        .iter()
        .map(|bar| {
            json!({
                "name": bar.name, "detail": bar.detail, "members": bar.members,
                "from": seconds(bar.from), "to": seconds(bar.to.unwrap_or(end)),
                "recovered": bar.recovered.map(seconds),
            })
        })
        .collect();
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
        "bucket": seconds(width),
        "server": server,
        "seed": options.seed.unwrap_or_default().to_string(),
        "clients": options.clients,
        "members": members,
        "bars": bars,
        "rates": rates,
        "refused": failed[0],
        "unknown": failed[1],
        "latencies": latencies,
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
