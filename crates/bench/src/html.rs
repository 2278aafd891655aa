//! Formats a result as a single HTML page with the conclusions, bars for each load, warnings, and a table of
//! all numbers.

use html_report::{
    Axis, Bar, Bars, Chart, Column, Fill, Group, Line, Lines, Page, Row as TableRow, Scale, Table,
};

use crate::outcome::{Document, PERCENTILES, Row};
use crate::render::{short, short_or_blank};

/// Returns the HTML page.
pub fn html(document: &Document) -> String {
    let servers = servers(document);
    let title = match servers.as_slice() {
        [] | [_] => "Benchmark report".to_owned(),
        several => format!("Comparison of {}", several.join(", ")),
    };
    let mut page = Page::new(&title);
    if !document.conclusions.is_empty() {
        page.heading("Conclusions by situation");
        page.list(&document.conclusions);
    }
    if servers.len() > 1 {
        page.heading("Each load");
        page.note(&said_of_bars(document));
        for workload in workloads(document) {
            page.subheading(workload);
            page.bars(&bars_of(document, &servers, workload));
        }
    }
    if !document.warnings.is_empty() {
        page.warning("Disturbances of these figures", &document.warnings);
    }
    page.heading("All figures");
    page.table(&table(document));
    page.heading("Latency and progress of each load");
    for workload in workloads(document) {
        plots_of(document, &servers, workload, &mut page);
    }
    for (server, values) in &document.numbers {
        page.heading(&if server.is_empty() { "Numbers".to_owned() } else { format!("Numbers of {server}") });
        let shown = values.iter().map(|(name, value)| (name.clone(), short(*value)));
        page.facts(&shown.collect::<Vec<_>>());
    }
    page.heading("Measured on");
    let mut facts = vec![("Time".to_owned(), document.time.clone())];
    facts.extend(document.facts.iter().cloned());
    page.facts(&facts);
    page.paragraph("To repeat the measurement:");
    page.command(&document.command);
    page.note(
        "Without a fixed rate, clients wait for an answer before the next request: a server that stalls \
         gets fewer requests, and its latencies look better than users would experience them. With a fixed \
         rate, latency counts from the scheduled start of each operation.",
    );
    page.html()
}

/// Returns the names of the servers without repetitions, in the order of the rows.
fn servers(document: &Document) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in &document.rows {
        if !names.contains(&row.server.as_str()) {
            names.push(&row.server);
        }
    }
    names
}

/// Returns the index of the server of a row. It determines the color and line style of this server in all
/// charts.
fn place(servers: &[&str], row: &Row) -> usize {
    servers.iter().position(|name| *name == row.server).unwrap_or(0)
}

/// Returns the names of the loads without repetitions, in the order in which they ran.
pub fn workloads(document: &Document) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in &document.rows {
        if !names.contains(&row.workload.as_str()) {
            names.push(&row.workload);
        }
    }
    names
}

/// Returns a row's value divided by the value that the server `to` has for the same load; `None` if either is
/// missing.
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

/// Returns the text above the bars that explains what they show.
fn said_of_bars(document: &Document) -> String {
    let mut said = "Medians.".to_owned();
    if let Some(reference) = &document.reference {
        said += &format!(" The last column is the ratio to the figure of {reference}.");
    }
    if let Some(baseline) = &document.baseline {
        said += &format!(
            " {baseline} does nothing: its grey bar is the limit set by load generator, network and \
             kernel; it is cut (broken end) where it would dwarf the others."
        );
    }
    said
}

fn bars_of(document: &Document, servers: &[&str], workload: &str) -> Vec<Bars> {
    let rows: Vec<&Row> = document.rows.iter().filter(|row| row.workload == workload).collect();
    let p99 = |row: &Row| Some(row.median.percentile("p99"));
    [
        bars(document, servers, ("Rate", "/s", "more is better"), &rows, |row| Some(row.median.rate)),
        bars(document, servers, ("p99 latency", "ms", "less is better"), &rows, p99),
        bars(document, servers, ("Server CPU per operation", "µs", "less is better"), &rows, |row| {
            row.median.server_cpu_us
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns a chart with a bar for each row, scaled to the longest bar of a server other than the baseline.
/// `about` contains the title, the unit, and a text that says whether high or low values are good. Returns
/// `None` if no row has a value.
fn bars(
    document: &Document,
    servers: &[&str],
    about: (&str, &str, &str),
    rows: &[&Row],
    get: impl Fn(&Row) -> Option<f64>,
) -> Option<Bars> {
    let is_limit = |row: &Row| document.baseline.as_deref() == Some(row.server.as_str());
    let longest = |limits: bool| {
        rows.iter().filter(|row| limits || !is_limit(row)).filter_map(|row| get(row)).fold(0.0, f64::max)
    };
    let most = if longest(false) > 0.0 { longest(false) } else { longest(true) };
    if most <= 0.0 {
        return None;
    }
    let reference = document.reference.as_deref();
    let (title, unit, better) = about;
    let bar = |row: &&Row| {
        let value = get(row);
        let is_reference = reference == Some(row.server.as_str());
        let mark = match () {
            () if is_limit(row) => "bare limit",
            () if is_reference => "reference",
            () => "",
        };
        let times = ratio(document, row, reference, &get).filter(|_| !is_reference);
        Bar {
            name: row.server.clone(),
            mark: mark.to_owned(),
            fill: if is_limit(row) { Fill::Limit } else { Fill::Colour(place(servers, row)) },
            share: value.unwrap_or(0.0) / most,
            value: value
                .map_or_else(|| "not known".to_owned(), |value| format!("{}\u{a0}{unit}", short(value))),
            beside: times.map_or_else(String::new, |times| format!("{} \u{d7}", short(times))),
        }
    };
    Some(Bars {
        title: title.to_owned(),
        note: better.to_owned(),
        beside: "times the reference".to_owned(),
        rows: rows.iter().map(bar).collect(),
    })
}

/// Returns the table with the medians of all rows.
fn table(document: &Document) -> Table {
    let mut heads = vec!["rate, /s".to_owned()];
    heads.extend(PERCENTILES.iter().map(|(_, name)| format!("{name}, ms")));
    heads.extend(
        [
            "max, ms",
            "CPU, µs/op",
            "CPU, \u{2030} of a core",
            "RSS, MB",
            "disk, B/op",
            "syncs/op",
            "client CPU, µs/op",
            "failed",
        ]
        .map(str::to_owned),
    );
    let (reference, baseline) = (document.reference.as_deref(), document.baseline.as_deref());
    if reference.is_some() {
        heads.extend(["rate / ref.", "CPU / ref."].map(str::to_owned));
    }
    if baseline.is_some() {
        heads.push("rate / limit".to_owned());
    }
    let row = |row: &Row| {
        let median = &row.median;
        let mut cells = vec![row.server.clone(), short(median.rate)];
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
        TableRow { cells, mark: None }
    };
    let group = |workload: &str| Group {
        name: Some(workload.to_owned()),
        rows: document.rows.iter().filter(|row| row.workload == workload).map(row).collect(),
    };
    let mut columns = vec![Column::text("server")];
    columns.extend(heads.into_iter().map(Column::number));
    Table {
        caption: "All figures".to_owned(),
        columns,
        groups: workloads(document).into_iter().map(group).collect(),
        is_dense: true,
    }
}

fn plots_of(document: &Document, servers: &[&str], workload: &str, page: &mut Page) {
    let rows: Vec<(usize, &Row)> = (document.rows.iter())
        .filter(|row| row.workload == workload)
        .map(|row| (place(servers, row), row))
        .collect();
    page.subheading(workload);
    let over_time = |title, unit, get: fn(&(f64, u64, f64, f64)) -> f64| over_time(title, unit, &rows, get);
    let mut charts: Vec<Chart> = distribution(&rows).into_iter().collect();
    if rows.iter().any(|(_, row)| row.seconds.len() > 1) {
        charts.extend(over_time("Rate over time", "/s", |second| second.1 as f64));
        charts.extend(over_time("p99 latency over time", "ms", |second| second.3));
    }
    page.charts(&charts);
    for (_, row) in rows.iter().filter(|(_, row)| !row.errors.is_empty()) {
        page.paragraph(&format!("Failures {}:", row.server));
        let texts: Vec<String> =
            row.errors.iter().map(|(text, count)| format!("{count} \u{d7} {text}")).collect();
        page.list(&texts);
    }
}

/// Returns the line for a row in a chart. Its name is the server's, or the load's if the row names no server.
fn line((colour, row): &(usize, &Row), values: Vec<Option<f64>>) -> Line {
    let name = if row.server.is_empty() { &row.workload } else { &row.server };
    Line { name: name.clone(), colour: *colour, values }
}

/// Returns the values of a row at each position of the x axis; `None` at positions for which the row has no
/// value.
fn at_each<T>(
    x: &[f64],
    points: &[T],
    place: impl Fn(&T) -> f64,
    get: impl Fn(&T) -> f64,
) -> Vec<Option<f64>> {
    x.iter().map(|x| points.iter().find(|point| place(point) == *x).map(&get)).collect()
}

/// Returns the values in ascending order, without repetitions.
fn sorted(places: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut places: Vec<f64> = places.collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places
}

/// Returns the chart of the latency over the percentiles; `None` if there are no latencies.
fn distribution(rows: &[(usize, &Row)]) -> Option<Chart> {
    let all = || rows.iter().flat_map(|(_, row)| &row.distribution);
    if !all().any(|(_, ms)| *ms > 0.0) {
        return None;
    }
    let x = sorted(all().map(|(percent, _)| *percent));
    let lines = rows
        .iter()
        .map(|row| line(row, at_each(&x, &row.1.distribution, |(percent, _)| *percent, |(_, ms)| *ms)))
        .collect();
    Some(Chart::Lines(Lines {
        title: "Latency by percentile".to_owned(),
        note: "Both axes are logarithmic".to_owned(),
        unit: "ms",
        scale: Scale::Log,
        axis: Axis::Percent,
        zooms: false,
        x,
        lines,
    }))
}

/// Returns the chart of a value over the seconds of the run; `None` if the value is always zero.
fn over_time(
    title: &str,
    unit: &'static str,
    rows: &[(usize, &Row)],
    get: fn(&(f64, u64, f64, f64)) -> f64,
) -> Option<Chart> {
    let all = || rows.iter().flat_map(|(_, row)| &row.seconds);
    if !all().any(|second| get(second) > 0.0) {
        return None;
    }
    let x = sorted(all().map(|second| second.0));
    let lines =
        rows.iter().map(|row| line(row, at_each(&x, &row.1.seconds, |second| second.0, get))).collect();
    Some(Chart::Lines(Lines {
        title: title.to_owned(),
        note: "The run with the median rate".to_owned(),
        unit,
        scale: Scale::Linear,
        axis: Axis::Seconds,
        zooms: false,
        x,
        lines,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Figures;

    fn row(server: &str, rate: f64) -> Row {
        let median = Figures { rate, percentiles_ms: [rate; 6], ..Figures::default() };
        Row { workload: "put".into(), server: server.into(), median, ..Row::default() }
    }

    fn rates(document: &Document) -> Vec<Bar> {
        let rows: Vec<&Row> = document.rows.iter().collect();
        let about = ("Rate", "/s", "more is better");
        bars(document, &servers(document), about, &rows, |row| Some(row.median.rate)).unwrap().rows
    }

    #[test]
    fn the_bare_limit_is_cut_where_it_would_dwarf_the_servers() {
        let document = Document {
            rows: vec![row("a", 100.0), row("b", 50.0), row("nothing", 9000.0)],
            reference: Some("a".into()),
            baseline: Some("nothing".into()),
            ..Document::default()
        };
        let bars = rates(&document);
        let drawn = |bar: &Bar| (bar.fill, bar.share);
        assert_eq!(
            bars.iter().map(drawn).collect::<Vec<_>>(),
            [(Fill::Colour(0), 1.0), (Fill::Colour(1), 0.5), (Fill::Limit, 90.0)]
        );
        assert_eq!((&*bars[2].value, &*bars[2].beside), ("9000\u{a0}/s", "90.0 \u{d7}"));
        // A bar that is longer than the chart is cut off, with a visible mark.
        let page = html(&document);
        assert!(
            page.contains("<rect class=\"bar limit\" width=\"100.0%\" height=\"100%\"/><line class=\"cut\""),
            "{page}"
        );
        assert!(
            page.contains("<rect class=\"bar colour-1\" width=\"50.0%\" height=\"100%\"/></svg>"),
            "{page}"
        );
        // If no other server has a value, the baseline determines the scale.
        let alone = Document { rows: vec![row("nothing", 9.0), row("b", 0.0)], ..document };
        assert_eq!(drawn(&rates(&alone)[0]), (Fill::Limit, 1.0));
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
            numbers: vec![(evil.into(), vec![(evil.into(), 1.0)])],
            rows: vec![one, Row { workload: evil.into(), ..row("b", 1.0) }],
            reference: Some(evil.into()),
            baseline: Some("b".into()),
        };
        let page = html(&document);
        assert_eq!(page.matches("<script").count(), 1, "the page's own: {page}");
        assert!(!page.contains('\u{202e}') && !page.contains('\u{7}'), "{page}");
        assert!(page.matches(safe).count() > 12, "every text is there: {page}");
    }

    #[test]
    fn servers_that_end_at_other_times_have_gaps_in_the_table() {
        let mut rows = vec![row("a", 1.0), row("b", 1.0)];
        rows[0].seconds = vec![(0.0, 5, 1.0, 2.0), (1.0, 6, 1.0, 3.0)];
        rows[1].seconds = vec![(1.0, 7, 1.0, 4.0)];
        let page = html(&Document { rows, ..Document::default() });
        let rate = "<tr><th scope=\"row\">0\u{a0}s</th><td>5.00\u{a0}/s</td><td>–</td></tr>";
        let p99 = "<tr><th scope=\"row\">1\u{a0}s</th><td>3.00\u{a0}ms</td><td>4.00\u{a0}ms</td></tr>";
        assert!(page.contains(rate) && page.contains(p99), "{page}");
    }
}
