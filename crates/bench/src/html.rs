//! One page that holds everything: plots as SVG, no scripts, nothing from elsewhere; light or dark as the reader's system.

use std::fmt::Write as _;

use crate::outcome::{Document, PERCENTILES, Row};
use crate::render::{short, short_or_blank};

/// Colours that differ for most eyes (Okabe and Ito), used for servers in turn.
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999"];
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 12.0;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5c6570;--line:#d5dae0;--paper:#fff;--warn:#fff3d6}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4b0;--line:#3a424c;--paper:#15181c;--warn:#4a3b12}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid var(--line)}h3{font-size:1rem;margin-bottom:.2rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.6rem;border:1px solid var(--line);border-radius:4px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem;display:block;overflow-x:auto}
th,td{padding:.2rem .55rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
.grid{stroke:var(--line);stroke-width:1}.warn{background:var(--warn);padding:.4rem .8rem;border-radius:4px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{color:var(--soft)}dd{margin:0}";

/// The page.
pub fn html(document: &Document) -> String {
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Benchmark report</title><style>";
    page += STYLE;
    page += "</style></head><body>\n<h1>Benchmark report</h1>\n";
    let _ = writeln!(page, "<p>{}</p>\n<pre>{}</pre>", escape(&document.time), escape(&document.command));
    if !document.warnings.is_empty() {
        page += "<div class=\"warn\"><strong>What spoils these figures</strong><ul>";
        for warning in &document.warnings {
            let _ = write!(page, "<li>{}</li>", escape(warning));
        }
        page += "</ul></div>\n";
    }
    if !document.conclusions.is_empty() {
        page += "<h2>Conclusions by situation</h2>\n<ul>";
        for conclusion in &document.conclusions {
            let _ = write!(page, "<li>{}</li>", escape(conclusion));
        }
        page += "</ul>\n";
    }
    page += "<h2>Figures</h2>\n";
    table(document, &mut page);
    for workload in workloads(document) {
        let rows: Vec<&Row> = document.rows.iter().filter(|row| row.workload == workload).collect();
        let _ = writeln!(page, "<h2>{}</h2>", escape(workload));
        if rows.len() > 1 {
            legend(&rows, &mut page);
            bars("Operations per second", &rows, |row| Some(row.median.rate), &mut page);
            bars("p99 latency, ms", &rows, |row| Some(row.median.percentile("p99")), &mut page);
            bars("Server CPU per operation, us", &rows, |row| row.median.server_cpu_us, &mut page);
        }
        page += "<h3>Latency by percentile, ms</h3>\n";
        distribution(&rows, &mut page);
        if rows.iter().any(|row| row.seconds.len() > 1) {
            page += "<h3>Operations per second over time</h3>\n";
            over_time(&rows, |second| second.1 as f64, &mut page);
            page += "<h3>p99 latency over time, ms</h3>\n";
            over_time(&rows, |second| second.3, &mut page);
        }
        for row in rows.iter().filter(|row| !row.errors.is_empty()) {
            let _ = writeln!(page, "<p>Failures {}:</p><ul>", escape(&row.server));
            for (text, count) in &row.errors {
                let _ = writeln!(page, "<li>{count} x {}</li>", escape(text));
            }
            page += "</ul>\n";
        }
    }
    page += "<h2>Measured on</h2>\n<dl>";
    for (name, value) in &document.facts {
        let _ = write!(page, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    page += "</dl>\n<p>Without a held rate, clients wait for an answer before they ask again: a server that stalls is asked \
             less, and its latencies look better than users would find them. With a held rate, latency counts from the time \
             each operation was meant to begin.</p>\n</body></html>\n";
    page
}

/// The names of the loads, each once, in the order they ran.
pub fn workloads(document: &Document) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in &document.rows {
        if !names.contains(&row.workload.as_str()) {
            names.push(&row.workload);
        }
    }
    names
}

/// The value of a row relative to that of another server with the same load.
pub fn ratio(
    document: &Document,
    row: &Row,
    to: Option<&str>,
    get: impl Fn(&Row) -> Option<f64>,
) -> Option<f64> {
    let other = document
        .rows
        .iter()
        .find(|other| other.workload == row.workload && Some(other.server.as_str()) == to)?;
    let (value, of) = (get(row)?, get(other)?);
    (of > 0.0).then_some(value / of)
}

fn table(document: &Document, page: &mut String) {
    *page += "<table><tr><th>load</th><th>server</th><th>per second</th>";
    for (_, name) in PERCENTILES {
        let _ = write!(page, "<th>{name} ms</th>");
    }
    *page += "<th>max ms</th><th>CPU us/op</th><th>CPU \u{2030}</th><th>RSS MB</th><th>disk B/op</th><th>syncs/op</th>";
    *page += "<th>client us/op</th><th>failed</th>";
    if document.reference.is_some() {
        *page += "<th>rate / ref.</th><th>CPU / ref.</th><th>rate / baseline</th>";
    }
    *page += "</tr>\n";
    for row in &document.rows {
        let median = &row.median;
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td>",
            escape(&row.workload),
            escape(&row.server),
            short(median.rate)
        );
        for ms in median.percentiles_ms {
            let _ = write!(page, "<td>{}</td>", short(ms));
        }
        let _ = write!(page, "<td>{}</td>", short(median.max_ms));
        for value in [
            median.server_cpu_us,
            median.server_per_mille,
            median.server_rss_mb,
            median.server_disk_bytes,
            median.server_fsyncs,
            Some(median.client_cpu_us),
        ] {
            let _ = write!(page, "<td>{}</td>", short_or_blank(value));
        }
        let _ = write!(page, "<td>{}</td>", median.failed);
        if document.reference.is_some() {
            let (reference, baseline) = (document.reference.as_deref(), document.baseline.as_deref());
            for value in [
                ratio(document, row, reference, |row| Some(row.median.rate)),
                ratio(document, row, reference, |row| row.median.server_cpu_us),
                ratio(document, row, baseline, |row| Some(row.median.rate)),
            ] {
                let _ = write!(page, "<td>{}</td>", short_or_blank(value));
            }
        }
        *page += "</tr>\n";
    }
    *page += "</table>\n";
}

fn legend(rows: &[&Row], page: &mut String) {
    *page += "<p>";
    for (at, row) in rows.iter().enumerate() {
        let _ = write!(
            page,
            "<span style=\"color:{}\">\u{25a0}</span> {} &nbsp; ",
            COLOURS[at % COLOURS.len()],
            escape(&row.server)
        );
    }
    *page += "</p>\n";
}

fn bars(title: &str, rows: &[&Row], get: impl Fn(&Row) -> Option<f64>, page: &mut String) {
    let most = rows.iter().filter_map(|row| get(row)).fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let height = rows.len() as f64 * 24.0 + 6.0;
    let _ = writeln!(
        page,
        "<h3>{title}</h3>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">"
    );
    for (at, row) in rows.iter().enumerate() {
        let y = at as f64 * 24.0;
        let value = get(row);
        let length = value.unwrap_or(0.0) / most * (WIDTH - 270.0);
        let _ = writeln!(
            page,
            "<text x=\"150\" y=\"{:.1}\" text-anchor=\"end\">{}</text><rect x=\"160\" y=\"{:.1}\" width=\"{length:.1}\" \
             height=\"18\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y + 16.0,
            escape(&row.server),
            y + 2.0,
            COLOURS[at % COLOURS.len()],
            166.0 + length,
            y + 16.0,
            value.map_or_else(|| "not known".to_owned(), short)
        );
    }
    *page += "</svg>\n";
}

/// A plot's frame: where values lie on the page.
struct Frame {
    low: f64,
    high: f64,
    log: bool,
}

impl Frame {
    fn y(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(self.low).ln() - self.low.ln()) / (self.high.ln() - self.low.ln()).max(1e-9)
        } else {
            (value - self.low) / (self.high - self.low).max(1e-9)
        };
        TOP + (1.0 - part.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM)
    }

    fn lines(&self) -> Vec<f64> {
        if !self.log {
            return (0..=4).map(|at| self.low + (self.high - self.low) * f64::from(at) / 4.0).collect();
        }
        let mut lines = Vec::new();
        let mut decade = 10_f64.powf(self.low.log10().floor());
        while decade <= self.high {
            lines.extend([1.0, 2.0, 5.0].map(|part| decade * part));
            decade *= 10.0;
        }
        lines.retain(|line| (self.low..=self.high).contains(line));
        lines
    }

    fn open(&self, page: &mut String) {
        let _ = writeln!(page, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
        for line in self.lines() {
            let y = self.y(line);
            let _ = writeln!(
                page,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                short(line)
            );
        }
    }
}

fn column(x: f64, label: &str, page: &mut String) {
    let _ = writeln!(
        page,
        "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
         text-anchor=\"middle\">{label}</text>",
        HEIGHT - BOTTOM,
        HEIGHT - BOTTOM + 18.0
    );
}

fn line(points: &[(f64, f64)], colour: &str, name: &str, page: &mut String) {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        page,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"><title>{}</title></polyline>",
        points.join(" "),
        escape(name)
    );
}

/// Percentiles on a scale of nines (1 / (1 - percentile)), latency on a logarithmic one.
fn distribution(rows: &[&Row], page: &mut String) {
    let points = || rows.iter().flat_map(|row| &row.distribution);
    let low = points().map(|(_, ms)| *ms).filter(|ms| *ms > 0.0).fold(f64::MAX, f64::min);
    let high = points().map(|(_, ms)| *ms).fold(0.0, f64::max);
    if high <= 0.0 || low > high {
        return;
    }
    let frame = Frame { low: low * 0.8, high: high * 1.2, log: true };
    frame.open(page);
    let nines = |percent: f64| (1.0 / (1.0 - percent / 100.0).max(1e-9)).log10();
    let most = points().map(|(percent, _)| nines(*percent)).fold(0.5, f64::max);
    let x = |percent: f64| LEFT + nines(percent) / most * (WIDTH - LEFT - RIGHT);
    for (percent, label) in [
        (0.0, "0"),
        (50.0, "50"),
        (90.0, "90"),
        (99.0, "99"),
        (99.9, "99.9"),
        (99.99, "99.99"),
        (99.999, "99.999"),
    ] {
        if nines(percent) <= most {
            column(x(percent), label, page);
        }
    }
    for (at, row) in rows.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            row.distribution.iter().map(|(percent, ms)| (x(*percent), frame.y(*ms))).collect();
        line(&points, COLOURS[at % COLOURS.len()], &row.server, page);
    }
    *page += "</svg>\n";
}

fn over_time(rows: &[&Row], get: impl Fn(&(f64, u64, f64, f64)) -> f64, page: &mut String) {
    let high = rows.iter().flat_map(|row| &row.seconds).map(&get).fold(0.0, f64::max);
    let last = rows.iter().flat_map(|row| &row.seconds).map(|second| second.0).fold(1.0, f64::max);
    if high <= 0.0 {
        return;
    }
    let frame = Frame { low: 0.0, high: high * 1.05, log: false };
    frame.open(page);
    let x = |second: f64| LEFT + second / last * (WIDTH - LEFT - RIGHT);
    for step in 0..=5 {
        let second = (last * f64::from(step) / 5.0).round();
        column(x(second), &format!("{second} s"), page);
    }
    for (at, row) in rows.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            row.seconds.iter().map(|second| (x(second.0), frame.y(get(second)))).collect();
        line(&points, COLOURS[at % COLOURS.len()], &row.server, page);
    }
    *page += "</svg>\n";
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
