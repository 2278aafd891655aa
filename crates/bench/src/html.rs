//! One page that holds everything: what the figures say, a chart for each load, what spoils the figures, and all of them.
//! No scripts, nothing from elsewhere; light or dark as the reader's system; readable on a phone. A chart of bars is a
//! table whose cells hold the bars, and each plot has its points in a table behind it, so that nothing is said by a picture,
//! or by a colour, alone.

use std::fmt::Write as _;

use crate::outcome::{Document, PERCENTILES, Row};
use crate::render::{short, short_or_blank};

/// How many colours and kinds of line there are; servers have them in turn.
const COLOURS: usize = 7;
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 58.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 14.0;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59626d;--line:#d5dae0;--paper:#fff;--warn:#fff3d6;--track:#eef1f4;
--c0:#0072b2;--c1:#b85c00;--c2:#00795a;--c3:#a8478a;--c4:#5f6b00;--c5:#6f4fc4;--c6:#666}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#a3adb8;--line:#3a424c;--paper:#15181c;--warn:#4a3b12;--track:#22272e;
--c0:#56b4e9;--c1:#e69f00;--c2:#2fc797;--c3:#e59bc8;--c4:#c2c84a;--c5:#b7a2f2;--c6:#aaa}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1240px;margin:1.5rem auto;padding:0 1rem}
p,li,dd{max-width:68rem;overflow-wrap:anywhere}a{color:var(--c0)}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid var(--line)}h3{font-size:1.05rem;margin:1.6rem 0 .2rem}
h4,caption{font-size:.9rem;font-weight:600;margin:.4rem 0;text-align:left}small,.soft{color:var(--soft);font-weight:400}
pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.6rem;border:1px solid var(--line);border-radius:4px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(20rem,100%),1fr));gap:.4rem 2rem;align-items:start}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:right;font-weight:400;padding:.12rem .4rem}th[scope=row],th[scope=rowgroup]{text-align:left;overflow-wrap:anywhere}
.bars{width:100%;table-layout:fixed;font-size:.85rem}.bars th,.bars td{padding:.12rem .3rem .12rem 0;vertical-align:middle}
.bars .track{width:38%}.bars .is{width:19%}.bars .to{width:19%}
.bar{display:block;height:.95rem;min-width:2px;border-radius:2px;background:var(--c);forced-color-adjust:none}
.bar.limit{background:repeating-linear-gradient(45deg,var(--c6) 0 3px,var(--track) 3px 7px)}.bar.cut{border-right:3px dotted var(--ink)}
.all{overflow-x:auto}.figures{font-size:.76rem;width:100%}.figures th,.figures td{border-bottom:1px solid var(--line);padding:.16rem .3rem}
.figures thead th{vertical-align:bottom;color:var(--soft)}.figures th[scope=rowgroup]{font-weight:600;padding-top:.6rem}
.points{font-size:.8rem}.points td,.points th{border-bottom:1px solid var(--line)}.scroll{overflow-x:auto}
svg{width:100%;max-width:36rem;height:auto;display:block}svg text{fill:var(--soft);font:13px system-ui,sans-serif}
.grid{stroke:var(--line);stroke-width:1}.line{fill:none;stroke:var(--c);stroke-width:2.2}
.key{display:inline-block;width:2.6rem;height:.7rem;vertical-align:middle}.legend span{margin-right:1.2rem;white-space:nowrap}
.c0{--c:var(--c0)}.c1{--c:var(--c1);stroke-dasharray:7 3}.c2{--c:var(--c2);stroke-dasharray:2 3}.c3{--c:var(--c3);stroke-dasharray:9 3 2 3}
.c4{--c:var(--c4);stroke-dasharray:12 4}.c5{--c:var(--c5);stroke-dasharray:4 2}.c6{--c:var(--c6);stroke-dasharray:1 2}
.warn{background:var(--warn);padding:.4rem .8rem;border-radius:4px;margin-top:2rem}.warn h2{margin-top:.3rem}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) 1fr;gap:.1rem 1rem}dt{color:var(--soft);overflow-wrap:anywhere}dd{margin:0}
@media (max-width:46rem){.figures,.figures tbody{display:block}.figures thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
.figures tr{display:grid;grid-template-columns:1fr 1fr;gap:0 1.2rem;padding:.3rem 0;border-bottom:1px solid var(--line);font-size:.85rem}
.figures th,.figures td{border:0;padding:.05rem 0}.figures th{grid-column:1/-1;font-weight:600}.figures td{display:flex;justify-content:space-between}
.figures td::before{content:attr(data-of);color:var(--soft)}.figures td:empty{display:none}}";

/// The page.
pub fn html(document: &Document) -> String {
    let servers = servers(document);
    let title = match servers.as_slice() {
        [] | [_] => "Benchmark report".to_owned(),
        several => format!("Comparison of {}", several.join(", ")),
    };
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";
    let _ = write!(page, "<title>{}</title><style>", escape(&title));
    page += STYLE;
    let _ = writeln!(page, "</style></head><body>\n<h1>{}</h1>", escape(&title));
    if !document.conclusions.is_empty() {
        page += "<h2>Conclusions by situation</h2>\n";
        list(&document.conclusions, &mut page);
    }
    if servers.len() > 1 {
        page += "<h2>Each load</h2>\n";
        said_of_bars(document, &mut page);
        for workload in workloads(document) {
            bars_of(document, workload, &mut page);
        }
    }
    if !document.warnings.is_empty() {
        page += "<div class=\"warn\"><h2>What spoils these figures</h2>\n";
        list(&document.warnings, &mut page);
        page += "</div>\n";
    }
    page += "<h2>All figures</h2>\n";
    table(document, &mut page);
    page += "<h2>Latency, and the course of each load</h2>\n";
    for workload in workloads(document) {
        plots_of(document, &servers, workload, &mut page);
    }
    page += "<h2>Measured on</h2>\n<dl>";
    let _ = write!(page, "<dt>Time</dt><dd>{}</dd>", escape(&document.time));
    for (name, value) in &document.facts {
        let _ = write!(page, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    let _ = writeln!(page, "</dl>\n<p>To repeat it:</p>\n<pre>{}</pre>", escape(&document.command));
    page += "<p>Without a held rate, clients wait for an answer before they ask again: a server that stalls is asked less, and \
             its latencies look better than users would find them. With a held rate, latency counts from the time each \
             operation was meant to begin.</p>\n</body></html>\n";
    page
}

fn list(lines: &[String], page: &mut String) {
    *page += "<ul>";
    for line in lines {
        let _ = write!(page, "<li>{}</li>", escape(line));
    }
    *page += "</ul>\n";
}

/// The names of the servers, each once, in the order of their rows.
fn servers(document: &Document) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in &document.rows {
        if !names.contains(&row.server.as_str()) {
            names.push(&row.server);
        }
    }
    names
}

/// The place of a server among all, by which it has its colour and kind of line everywhere.
fn place(servers: &[&str], row: &Row) -> usize {
    servers.iter().position(|name| *name == row.server).unwrap_or(0)
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

/// What the marks of the charts mean.
fn said_of_bars(document: &Document, page: &mut String) {
    *page += "<p class=\"soft\">Medians.";
    if let Some(reference) = &document.reference {
        let _ = write!(page, " The last column is how many times the figure of {} it is.", escape(reference));
    }
    if let Some(baseline) = &document.baseline {
        let _ = write!(
            page,
            " {} does nothing: its hatched bar is the bare limit, which generator, network and kernel set; it is cut \
             (dotted end) where it would dwarf the others.",
            escape(baseline)
        );
    }
    *page += "</p>\n";
}

fn bars_of(document: &Document, workload: &str, page: &mut String) {
    let rows: Vec<&Row> = document.rows.iter().filter(|row| row.workload == workload).collect();
    let _ = writeln!(page, "<h3>{}</h3>\n<div class=\"charts\">", escape(workload));
    bars(document, "Operations per second", "more is better", &rows, |row| Some(row.median.rate), page);
    let p99 = |row: &Row| Some(row.median.percentile("p99"));
    bars(document, "p99 latency, ms", "less is better", &rows, p99, page);
    let cpu = |row: &Row| row.median.server_cpu_us;
    bars(document, "Server CPU per operation, us", "less is better", &rows, cpu, page);
    *page += "</div>\n";
}

/// A table with a bar for each server, as long as its figure beside the longest of the servers.
fn bars(
    document: &Document,
    title: &str,
    better: &str,
    rows: &[&Row],
    get: impl Fn(&Row) -> Option<f64>,
    page: &mut String,
) {
    let is_limit = |row: &Row| document.baseline.as_deref() == Some(row.server.as_str());
    let longest = |limits: bool| {
        rows.iter().filter(|row| limits || !is_limit(row)).filter_map(|row| get(row)).fold(0.0, f64::max)
    };
    let most = if longest(false) > 0.0 { longest(false) } else { longest(true) };
    if most <= 0.0 {
        return;
    }
    let servers = servers(document);
    let reference = document.reference.as_deref();
    let _ = writeln!(
        page,
        "<table class=\"bars\"><caption>{title} <small>({better})</small></caption><thead hidden><tr><th scope=\"col\">server</th>\
         <td></td><th scope=\"col\">{title}</th><th scope=\"col\">times the reference</th></tr></thead><tbody>"
    );
    for row in rows {
        let value = get(row);
        let part = value.unwrap_or(0.0) / most * 100.0;
        let kind = match (is_limit(row), part > 100.0) {
            (true, true) => "limit cut".to_owned(),
            (true, false) => "limit".to_owned(),
            _ => format!("c{}", place(&servers, row) % COLOURS),
        };
        let mark = match () {
            () if is_limit(row) => " <small>bare limit</small>",
            () if reference == Some(row.server.as_str()) => " <small>reference</small>",
            () => "",
        };
        let times = ratio(document, row, reference, &get).filter(|_| reference != Some(row.server.as_str()));
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\">{}{mark}</th><td class=\"track\" aria-hidden=\"true\"><span class=\"bar {kind}\" \
             style=\"width:{:.1}%\"></span></td><td class=\"is\">{}</td><td class=\"to\">{}</td></tr>",
            escape(&row.server),
            part.min(100.0),
            value.map_or_else(|| "not known".to_owned(), short),
            times.map_or_else(String::new, |times| format!("{} \u{d7}", short(times))),
        );
    }
    *page += "</tbody></table>\n";
}

/// All medians. Roles are given, for a phone shows the rows as blocks, which takes a table's meaning from it.
fn table(document: &Document, page: &mut String) {
    let mut heads = vec!["per second".to_owned()];
    heads.extend(PERCENTILES.iter().map(|(_, name)| format!("{name} ms")));
    for name in
        ["max ms", "CPU us/op", "CPU \u{2030}", "RSS MB", "disk B/op", "syncs/op", "client us/op", "failed"]
    {
        heads.push(name.to_owned());
    }
    let (reference, baseline) = (document.reference.as_deref(), document.baseline.as_deref());
    if reference.is_some() {
        heads.extend(["rate / ref.", "CPU / ref."].map(str::to_owned));
    }
    if baseline.is_some() {
        heads.push("rate / limit".to_owned());
    }
    *page += "<div class=\"all\" role=\"region\" aria-label=\"All figures\" tabindex=\"0\"><table class=\"figures\" role=\"table\">\
              <thead role=\"rowgroup\"><tr role=\"row\"><th scope=\"col\" role=\"columnheader\">server</th>";
    for head in &heads {
        let _ = write!(page, "<th scope=\"col\" role=\"columnheader\">{head}</th>");
    }
    *page += "</tr></thead>\n";
    for workload in workloads(document) {
        let _ = writeln!(
            page,
            "<tbody role=\"rowgroup\"><tr role=\"row\"><th scope=\"rowgroup\" role=\"rowheader\" colspan=\"{}\">{}</th></tr>",
            heads.len() + 1,
            escape(workload)
        );
        for row in document.rows.iter().filter(|row| row.workload == workload) {
            let median = &row.median;
            let mut cells = vec![short(median.rate)];
            cells.extend(median.percentiles_ms.map(short));
            cells.push(short(median.max_ms));
            cells.extend(
                [
                    median.server_cpu_us,
                    median.server_per_mille,
                    median.server_rss_mb,
                    median.server_disk_bytes,
                    median.server_fsyncs,
                    Some(median.client_cpu_us),
                ]
                .map(short_or_blank),
            );
            cells.push(median.failed.to_string());
            if reference.is_some() {
                cells.push(short_or_blank(ratio(document, row, reference, |row| Some(row.median.rate))));
                cells.push(short_or_blank(ratio(document, row, reference, |row| row.median.server_cpu_us)));
            }
            if baseline.is_some() {
                cells.push(short_or_blank(ratio(document, row, baseline, |row| Some(row.median.rate))));
            }
            let name = escape(&row.server);
            let _ = write!(page, "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">{name}</th>");
            for (head, cell) in heads.iter().zip(cells) {
                let _ = write!(page, "<td role=\"cell\" data-of=\"{head}\">{cell}</td>");
            }
            *page += "</tr>\n";
        }
        *page += "</tbody>\n";
    }
    *page += "</table></div>\n";
}

fn plots_of(document: &Document, servers: &[&str], workload: &str, page: &mut String) {
    let rows: Vec<(usize, &Row)> = (document.rows.iter())
        .filter(|row| row.workload == workload)
        .map(|row| (place(servers, row), row))
        .collect();
    let _ = writeln!(page, "<h3>{}</h3>", escape(workload));
    if servers.len() > 1 {
        legend(&rows, page);
    }
    *page += "<div class=\"charts\">\n";
    distribution(workload, &rows, page);
    if rows.iter().any(|(_, row)| row.seconds.len() > 1) {
        over_time(workload, "Operations per second", &rows, |second| second.1 as f64, page);
        over_time(workload, "p99 latency, ms", &rows, |second| second.3, page);
    }
    *page += "</div>\n";
    for (_, row) in rows.iter().filter(|(_, row)| !row.errors.is_empty()) {
        let _ = writeln!(page, "<p>Failures {}:</p><ul>", escape(&row.server));
        for (text, count) in &row.errors {
            let _ = writeln!(page, "<li>{count} x {}</li>", escape(text));
        }
        *page += "</ul>\n";
    }
}

fn legend(rows: &[(usize, &Row)], page: &mut String) {
    *page += "<p class=\"legend\">";
    for (at, row) in rows {
        let _ = write!(
            page,
            "<span><svg class=\"key\" viewBox=\"0 0 40 10\" aria-hidden=\"true\"><path class=\"line c{}\" d=\"M0 5H40\"/></svg> \
             {}</span>",
            at % COLOURS,
            escape(&row.server)
        );
    }
    *page += "</p>\n";
}

/// The points of a plot as a table: a column for each row of `lines`, which have the same points.
fn points(
    about: &str,
    first: &str,
    rows: &[(usize, &Row)],
    lines: &[(String, Vec<Option<f64>>)],
    page: &mut String,
) {
    let _ = write!(
        page,
        "<details><summary class=\"soft\">{about}, as a table</summary><div class=\"scroll\"><table class=\"points\"><thead><tr>\
         <th scope=\"col\">{first}</th>"
    );
    for (_, row) in rows {
        let name = if row.server.is_empty() { &row.workload } else { &row.server };
        let _ = write!(page, "<th scope=\"col\">{}</th>", escape(name));
    }
    *page += "</tr></thead><tbody>\n";
    for (name, values) in lines {
        let _ = write!(page, "<tr><th scope=\"row\">{name}</th>");
        for value in values {
            let _ = write!(page, "<td>{}</td>", short_or_blank(*value));
        }
        *page += "</tr>\n";
    }
    *page += "</tbody></table></div></details>\n";
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

    fn open(&self, label: &str, page: &mut String) {
        let _ = writeln!(
            page,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(label)
        );
        for line in self.lines() {
            let y = self.y(line);
            let _ = writeln!(
                page,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
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

fn line(points: &[(f64, f64)], at: usize, name: &str, page: &mut String) {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        page,
        "<polyline class=\"line c{}\" points=\"{}\"><title>{}</title></polyline>",
        at % COLOURS,
        points.join(" "),
        escape(name)
    );
}

/// Percentiles on a scale of nines (1 / (1 - percentile)), latency on a logarithmic one.
fn distribution(workload: &str, rows: &[(usize, &Row)], page: &mut String) {
    let all = || rows.iter().flat_map(|(_, row)| &row.distribution);
    let low = all().map(|(_, ms)| *ms).filter(|ms| *ms > 0.0).fold(f64::MAX, f64::min);
    let high = all().map(|(_, ms)| *ms).fold(0.0, f64::max);
    if high <= 0.0 || low > high {
        return;
    }
    let about = "Latency by percentile, ms";
    let _ = write!(page, "<div><h4>{about}</h4>");
    let frame = Frame { low: low * 0.8, high: high * 1.2, log: true };
    frame.open(&format!("Plot of {workload}: {about}"), page);
    let nines = |percent: f64| (1.0 / (1.0 - percent / 100.0).max(1e-9)).log10();
    let most = all().map(|(percent, _)| nines(*percent)).fold(0.5, f64::max);
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
    for (at, row) in rows {
        let points: Vec<(f64, f64)> =
            row.distribution.iter().map(|(percent, ms)| (x(*percent), frame.y(*ms))).collect();
        line(&points, *at, &row.server, page);
    }
    *page += "</svg>\n";
    let lines: Vec<(String, Vec<Option<f64>>)> = (PERCENTILES.iter().enumerate())
        .map(|(at, (_, name))| {
            let of = |(_, row): &(usize, &Row)| row.median.percentiles_ms.get(at).copied();
            ((*name).to_owned(), rows.iter().map(of).collect())
        })
        .collect();
    points(about, "percentile", rows, &lines, page);
    *page += "</div>\n";
}

fn over_time(
    workload: &str,
    about: &str,
    rows: &[(usize, &Row)],
    get: impl Fn(&(f64, u64, f64, f64)) -> f64,
    page: &mut String,
) {
    let high = rows.iter().flat_map(|(_, row)| &row.seconds).map(&get).fold(0.0, f64::max);
    let last = rows.iter().flat_map(|(_, row)| &row.seconds).map(|second| second.0).fold(1.0, f64::max);
    if high <= 0.0 {
        return;
    }
    let about = format!("{about}, over time");
    let _ = write!(page, "<div><h4>{about}</h4>");
    let frame = Frame { low: 0.0, high: high * 1.05, log: false };
    frame.open(&format!("Plot of {workload}: {about}"), page);
    let x = |second: f64| LEFT + second / last * (WIDTH - LEFT - RIGHT);
    let steps = last.min(5.0);
    for step in 0..=steps as u32 {
        let second = (last * f64::from(step) / steps).round();
        column(x(second), &format!("{second} s"), page);
    }
    for (at, row) in rows {
        let points: Vec<(f64, f64)> =
            row.seconds.iter().map(|second| (x(second.0), frame.y(get(second)))).collect();
        line(&points, *at, &row.server, page);
    }
    *page += "</svg>\n";
    let mut seconds: Vec<f64> =
        rows.iter().flat_map(|(_, row)| &row.seconds).map(|second| second.0).collect();
    seconds.sort_by(f64::total_cmp);
    seconds.dedup();
    let lines: Vec<(String, Vec<Option<f64>>)> = seconds
        .into_iter()
        .map(|at| {
            let of = |(_, row): &(usize, &Row)| row.seconds.iter().find(|second| second.0 == at).map(&get);
            (format!("{at} s"), rows.iter().map(of).collect())
        })
        .collect();
    points(&about, "second", rows, &lines, page);
    *page += "</div>\n";
}

/// A text as the page shows it. Control characters and marks of direction, which could make it look like another
/// one, are replaced.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' => out.push(letter),
            letter if stdx::log_text::is_unprintable(letter) => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Figures;

    fn row(server: &str, rate: f64) -> Row {
        let median = Figures { rate, percentiles_ms: [rate; 6], ..Figures::default() };
        Row { workload: "put".into(), server: server.into(), median, ..Row::default() }
    }

    #[test]
    fn the_bare_limit_is_cut_where_it_would_dwarf_the_servers() {
        let document = Document {
            rows: vec![row("a", 100.0), row("b", 50.0), row("nothing", 9000.0)],
            reference: Some("a".into()),
            baseline: Some("nothing".into()),
            ..Document::default()
        };
        let page = html(&document);
        assert!(page.contains("<span class=\"bar c0\" style=\"width:100.0%\">"), "{page}");
        assert!(page.contains("<span class=\"bar c1\" style=\"width:50.0%\">"), "{page}");
        assert!(page.contains("<span class=\"bar limit cut\" style=\"width:100.0%\">"), "{page}");
        assert!(page.contains("<td class=\"is\">9000</td><td class=\"to\">90.0 \u{d7}</td>"), "{page}");
        // Without other servers it has the scale to itself.
        let alone = Document { rows: vec![row("nothing", 9.0), row("b", 0.0)], ..document };
        assert!(html(&alone).contains("<span class=\"bar limit\" style=\"width:100.0%\">"));
    }

    #[test]
    fn what_others_wrote_is_text_on_the_page() {
        let evil = "<script>alert(\"1\")</script>&\u{202e}x\u{7}";
        let safe = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;\u{fffd}x\u{fffd}";
        let mut one = Row { workload: evil.into(), ..row(evil, 3.0) };
        one.errors = vec![(evil.into(), 1)];
        one.distribution = vec![(0.0, 1.0), (50.0, 2.0)];
        one.seconds = vec![(0.0, 1, 1.0, 1.0), (1.0, 2, 1.0, 1.0)];
        let document = Document {
            command: evil.into(),
            time: evil.into(),
            facts: vec![(evil.into(), evil.into())],
            warnings: vec![evil.into()],
            conclusions: vec![evil.into()],
            rows: vec![one, Row { workload: evil.into(), ..row("b", 1.0) }],
            reference: Some(evil.into()),
            baseline: Some("b".into()),
        };
        let page = html(&document);
        assert!(!page.contains("<script") && !page.contains('\u{202e}') && !page.contains('\u{7}'), "{page}");
        assert!(page.matches(safe).count() > 12, "every text is there: {page}");
    }
}
