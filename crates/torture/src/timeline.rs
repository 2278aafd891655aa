//! Writes `timeline.html`, a single file that shows the faults and their effects on members and clients.

use std::io;

use html_report::{Axis, Chart, Column, Group, Lanes, Line, Lines, Page, Row, Scale, Span, Table, Tone};
use oracle::{Operation, Outcome};

use crate::chronicle::{Chapters, Reading, State, Trail};
use crate::report::{Sort, quantile, violations};
use crate::run::Finding;

/// Maximum number of points in a chart. A screen has hardly more pixels in a row.
const BUCKETS_MAX: u64 = 1200;
/// Maximum number of violations that the page lists.
const VIOLATIONS_MAX: usize = 500;

/// Returns the page as HTML.
pub fn html(finding: &Finding) -> String {
    let chapters = &finding.chapters;
    let operations = &finding.history.operations;
    let last = operations.iter().map(|operation| operation.returned).max().unwrap_or_default();
    let ends = chapters.bars.iter().filter_map(|bar| bar.recovered.or(bar.to));
    let end = ends.chain([last, finding.worked]).max().unwrap_or_default().max(1);
    let mut buckets = Buckets::count(operations, end);
    let found = violations(finding);
    let mut page = Page::new(&match found.len() {
        0 => "Torture: no violation".to_owned(),
        1 => "Torture: 1 violation".to_owned(),
        several => format!("Torture: {several} violations"),
    });
    page.paragraph(&about(finding));
    let unknown: u64 = buckets.unknown.iter().sum();
    page.figures(&[
        ("Violations", found.len().to_string()),
        ("Faults", chapters.bars.len().to_string()),
        ("Operations", operations.len().to_string()),
        ("Of unknown outcome", unknown.to_string()),
        ("Last revision", finding.verdict.figures.revision.to_string()),
        ("Watches", finding.history.watches.len().to_string()),
        ("Events told", finding.verdict.figures.events.to_string()),
    ]);
    if !found.is_empty() {
        page.heading("Violations");
        if found.len() > VIOLATIONS_MAX {
            page.note(&format!("The first {VIOLATIONS_MAX} of {}; report.json has all.", found.len()));
        }
        page.table(&violations_table(&found));
    }
    page.heading("What failed when");
    page.note("Drag over a chart to look closer; the pointer and the arrow keys read it. Faults are shaded, violations marked.");
    let mut charts = vec![Chart::Lanes(lanes(finding, end))];
    charts.extend(buckets.charts());
    page.charts(&charts);
    if !finding.skipped.is_empty() || !chapters.notes.is_empty() {
        page.heading("Remarks");
        let skipped = finding.skipped.iter().map(|(fault, why)| format!("skipped {fault}: {why}"));
        let notes = chapters.notes.iter().map(|(at, text)| format!("at {} s: {text}", seconds(*at)));
        page.list(&skipped.chain(notes).collect::<Vec<_>>());
    }
    page.html()
}

/// Writes the page to the output directory.
///
/// # Errors
/// Returns the error of the operating system.
pub fn write(finding: &Finding) -> io::Result<()> {
    std::fs::write(finding.out.join("timeline.html"), html(finding))
}

/// Returns a description of the run in one line.
fn about(finding: &Finding) -> String {
    let options = &finding.options;
    let server = options.server.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    format!(
        "{} members of {server}, {} clients, {:.0} s under faults, seed {}",
        finding.chapters.states.len(),
        options.clients,
        seconds(finding.worked),
        options.seed.unwrap_or_default()
    )
}

fn violations_table(found: &[(Option<u64>, String, String)]) -> Table {
    let row = |(at, kind, text): &(Option<u64>, String, String)| {
        let at = at.map(seconds);
        let when = at.map_or_else(String::new, |at| format!("{at}\u{a0}s"));
        Row { cells: vec![kind.clone(), when, text.clone()], mark: at }
    };
    Table {
        caption: "Violations".to_owned(),
        columns: vec![Column::text("kind"), Column::number("at"), Column::wide("what")],
        groups: vec![Group { name: None, rows: found.iter().take(VIOLATIONS_MAX).map(row).collect() }],
        is_dense: false,
    }
}

fn seconds(nanos: u64) -> f64 {
    (nanos as f64 / 1e6).round() / 1e3
}

/// Returns the lanes of the chart: one for the faults, and one for each member that shows when it ran, when
/// it led, and when it knew no leader.
fn lanes(finding: &Finding, end: u64) -> Lanes {
    let chapters = &finding.chapters;
    Lanes {
        title: "Faults and members".to_owned(),
        note: format!("Faults are injected until {} s", seconds(finding.worked)),
        end: seconds(end),
        spans: faults(chapters, end).into_iter().chain(members(chapters, end)).collect(),
    }
}

/// Returns the name of a member.
fn member(at: usize) -> String {
    format!("m{at}")
}

/// Returns a span for each fault, and one for the time from its end until all members were healthy.
fn faults(chapters: &Chapters, end: u64) -> Vec<Span> {
    let mut spans = Vec::new();
    for bar in &chapters.bars {
        let to = bar.to.unwrap_or(end);
        let after = bar.recovered.map_or_else(
            || "not all members were healthy again".to_owned(),
            |at| format!("all members were healthy {} ms after its end", at.saturating_sub(to) / 1_000_000),
        );
        let fault = Span {
            lane: "faults".to_owned(),
            kind: "fault",
            label: Some(bar.name.clone()),
            from: seconds(bar.from),
            to: seconds(to),
            detail: format!("{}; {after}", bar.detail),
            tone: Tone::Fault,
            also: bar.members.iter().map(|at| member(*at)).collect(),
            shades: true,
        };
        spans.push(fault);
        if let Some(at) = bar.recovered.filter(|at| *at > to) {
            spans.push(Span {
                lane: "faults".to_owned(),
                from: seconds(to),
                to: seconds(at),
                ..plain("until all were healthy", Tone::After)
            });
        }
    }
    spans
}

/// Returns a span without label and description. Its kind says enough.
fn plain(kind: &'static str, tone: Tone) -> Span {
    Span {
        lane: String::new(),
        kind,
        label: None,
        from: 0.0,
        to: 0.0,
        detail: String::new(),
        tone,
        also: Vec::new(),
        shades: false,
    }
}

fn members(chapters: &Chapters, end: u64) -> Vec<Span> {
    let mut spans = Vec::new();
    for (at, (states, readings)) in chapters.states.iter().zip(&chapters.readings).enumerate() {
        let mut add = |pieces: Vec<(u64, u64, Span)>| {
            spans.extend(pieces.into_iter().map(|(from, to, span)| Span {
                lane: member(at),
                from: seconds(from),
                to: seconds(to),
                ..span
            }));
        };
        let states = pieces(states, end, |state| {
            Some(match state {
                State::Up => plain("up", Tone::Good),
                State::Down => plain("down", Tone::Off),
                State::Paused => plain("stopped by SIGSTOP", Tone::Paused),
            })
        });
        let lost = pieces(readings, end, |reading: Reading| match reading {
            Reading { answers: false, .. } => Some(plain("does not answer", Tone::Warning)),
            Reading { sees_leader: false, .. } => Some(plain("knows no leader", Tone::Warning)),
            _ => None,
        });
        // While a member is down, it knows no leader either. Keep only the times at which its process was up.
        let is_up = |from: u64, to: u64| {
            states
                .iter()
                .any(|(begun, ended, state)| state.tone == Tone::Good && *begun < to && *ended > from)
        };
        let lost = lost.into_iter().filter(|(from, to, _)| is_up(*from, *to)).collect();
        let leads = pieces(readings, end, |reading: Reading| {
            let detail = format!("term {}", reading.term);
            reading.leads.then(|| Span { detail, ..plain("leads", Tone::Strong) })
        });
        add(states);
        add(lost);
        add(leads);
    }
    spans
}

/// Returns a span for each value of a trail for which `draw` returns one, with its start and its end.
fn pieces<T: Copy>(trail: &Trail<T>, end: u64, draw: impl Fn(T) -> Option<Span>) -> Vec<(u64, u64, Span)> {
    let mut out = Vec::new();
    for (nth, (from, value)) in trail.iter().enumerate() {
        let to = trail.get(nth + 1).map_or(end.max(*from), |(next, _)| *next);
        if let Some(what) = draw(*value) {
            out.push((*from, to, what));
        }
    }
    out
}

/// Counts and latencies of the clients' operations, in equal intervals of time.
struct Buckets {
    /// Length of an interval in nanoseconds; a whole number of seconds.
    width: u64,
    /// Number of operations that succeeded, by category and interval.
    done: [Vec<u64>; Sort::ALL.len()],
    /// Number of operations that were refused, by interval.
    refused: Vec<u64>,
    /// Number of operations with an unknown outcome, by interval.
    unknown: Vec<u64>,
    /// Latencies of the reads of each interval, in nanoseconds.
    reads: Vec<Vec<u64>>,
    /// Latencies of the writes and transactions of each interval, in nanoseconds.
    writes: Vec<Vec<u64>>,
}

impl Buckets {
    /// Counts the operations of a run that ended at the time `end`.
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

    /// Returns three charts over time: successful operations per second, failed operations per second, and
    /// latency.
    fn charts(&mut self) -> [Chart; 3] {
        let width = self.width;
        let per_second = |counts: &Vec<u64>| {
            counts.iter().map(|count| Some(*count as f64 / (width as f64 / 1e9))).collect::<Vec<_>>()
        };
        let done = Sort::ALL.iter().zip(&self.done).map(|(sort, counts)| (sort.name(), per_second(counts)));
        let failed = [("refused", per_second(&self.refused)), ("unknown", per_second(&self.unknown))];
        let done = self.chart("Operations", "Answered, by sort", "/s", Scale::Linear, done.collect());
        let failed = self.chart(
            "Failures",
            "Refused for certain, and of unknown outcome",
            "/s",
            Scale::Linear,
            failed.into(),
        );
        let mut times = Vec::new();
        for (per_mille, names) in [(500, ["reads p50", "writes p50"]), (990, ["reads p99", "writes p99"])] {
            for (name, buckets) in names.into_iter().zip([&mut self.reads, &mut self.writes]) {
                times.push((name, latencies(buckets, per_mille)));
            }
        }
        let times = self.chart(
            "Latency",
            "Of answered reads, and of writes and transactions; the axis is logarithmic",
            "ms",
            Scale::Log,
            times,
        );
        [done, failed, times]
    }

    fn chart(
        &self,
        title: &str,
        note: &str,
        unit: &'static str,
        scale: Scale,
        lines: Vec<(&str, Vec<Option<f64>>)>,
    ) -> Chart {
        let width = seconds(self.width);
        let line = |(colour, (name, values)): (usize, (&str, Vec<Option<f64>>))| Line {
            name: name.to_owned(),
            colour,
            values,
        };
        Chart::Lines(Lines {
            title: title.to_owned(),
            note: format!("{note}. Each point is of the {width} s from there on"),
            unit,
            scale,
            axis: Axis::Seconds,
            zooms: true,
            x: (0..self.refused.len()).map(|at| at as f64 * width).collect(),
            lines: lines.into_iter().enumerate().map(line).collect(),
        })
    }
}

/// Returns a quantile of the latencies of each interval, in milliseconds; `None` for an interval without any.
fn latencies(buckets: &mut [Vec<u64>], per_mille: usize) -> Vec<Option<f64>> {
    buckets
        .iter_mut()
        .map(|bucket| {
            bucket.sort_unstable();
            quantile(bucket, per_mille).map(|time| seconds(time) * 1e3)
        })
        .collect()
}
