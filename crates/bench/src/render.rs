//! Formats results as JSON, as CSV, and as text for a terminal.

use std::fmt::Write as _;

use cli::json::string;
pub use html_report::short;

use crate::outcome::{Document, Figures, PERCENTILES, Row};

/// Formats a number as JSON. NaN and infinity become `null`, because JSON has no such numbers.
fn number(value: f64) -> String {
    if value.is_finite() { format!("{value}") } else { "null".to_owned() }
}

fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "null".to_owned(), number)
}

fn list<T>(items: impl IntoIterator<Item = T>, one: impl Fn(T) -> String) -> String {
    let items: Vec<String> = items.into_iter().map(one).collect();
    format!("[{}]", items.join(","))
}

fn map(pairs: &[(&str, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{}:{value}", string(name))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn figures(figures: &Figures) -> String {
    let mut percentiles: Vec<(&str, String)> = vec![
        ("mean", number(figures.mean_ms)),
        ("min", number(figures.min_ms)),
        ("max", number(figures.max_ms)),
    ];
    percentiles
        .extend(PERCENTILES.iter().zip(figures.percentiles_ms).map(|((_, name), ms)| (*name, number(ms))));
    map(&[
        ("operations", figures.count.to_string()),
        ("failed", figures.failed.to_string()),
        ("elapsed_s", number(figures.elapsed_s)),
        ("rate_per_s", number(figures.rate)),
        ("latency_ms", map(&percentiles)),
        (
            "server",
            map(&[
                ("cpu_us_per_operation", maybe(figures.server_cpu_us)),
                ("cpu_per_mille", maybe(figures.server_per_mille)),
                ("rss_mb", maybe(figures.server_rss_mb)),
                ("disk_bytes_per_operation", maybe(figures.server_disk_bytes)),
                ("fsyncs_per_operation", maybe(figures.server_fsyncs)),
            ]),
        ),
        (
            "generator",
            map(&[
                ("cpu_us_per_operation", number(figures.client_cpu_us)),
                ("busiest_thread", number(figures.client_busy)),
                ("waited_for_cpu", number(figures.client_starved)),
            ]),
        ),
    ])
}

/// Formats the result as one JSON object, followed by a line feed.
pub fn json(document: &Document) -> String {
    let row = |row: &Row| {
        map(&[
            ("workload", string(&row.workload)),
            ("server", string(&row.server)),
            ("median", figures(&row.median)),
            ("runs", list(&row.runs, figures)),
            (
                "distribution",
                list(&row.distribution, |(percent, ms)| {
                    map(&[("percent", number(*percent)), ("ms", number(*ms))])
                }),
            ),
            (
                "seconds",
                list(&row.seconds, |(second, count, p50, p99)| {
                    map(&[
                        ("second", number(*second)),
                        ("operations", count.to_string()),
                        ("p50_ms", number(*p50)),
                        ("p99_ms", number(*p99)),
                    ])
                }),
            ),
            (
                "errors",
                list(&row.errors, |(text, count)| {
                    map(&[("text", string(text)), ("count", count.to_string())])
                }),
            ),
        ])
    };
    let facts: Vec<(&str, String)> =
        document.facts.iter().map(|(name, value)| (name.as_str(), string(value))).collect();
    let numbers: Vec<(&str, String)> = (document.numbers.iter())
        .map(|(server, values)| {
            let values: Vec<(&str, String)> =
                values.iter().map(|(name, value)| (name.as_str(), number(*value))).collect();
            (server.as_str(), map(&values))
        })
        .collect();
    let mut text = map(&[
        ("version", "1".to_owned()),
        ("command", string(&document.command)),
        ("time", string(&document.time)),
        ("facts", map(&facts)),
        ("warnings", list(&document.warnings, string)),
        ("reference", document.reference.as_ref().map_or_else(|| "null".to_owned(), string)),
        ("baseline", document.baseline.as_ref().map_or_else(|| "null".to_owned(), string)),
        ("rows", list(&document.rows, row)),
        ("numbers", map(&numbers)),
        ("conclusions", list(&document.conclusions, string)),
    ]);
    text.push('\n');
    text
}

/// Formats the result as CSV: a header, then one line for each run.
pub fn csv(document: &Document) -> String {
    let mut out =
        "workload,server,run,operations,failed,elapsed_s,rate_per_s,mean_ms,min_ms,max_ms".to_owned();
    for (_, name) in PERCENTILES {
        let _ = write!(out, ",{name}_ms");
    }
    out += ",server_cpu_us,server_cpu_per_mille,server_rss_mb,server_disk_bytes,server_fsyncs,generator_cpu_us,\
            generator_busiest,generator_waited\n";
    for row in &document.rows {
        for (at, run) in row.runs.iter().enumerate() {
            let _ = write!(
                out,
                "{},{},{},{},{},{},{},{},{},{}",
                quoted(&row.workload),
                quoted(&row.server),
                at + 1,
                run.count,
                run.failed,
                run.elapsed_s,
                run.rate,
                run.mean_ms,
                run.min_ms,
                run.max_ms
            );
            for ms in run.percentiles_ms {
                let _ = write!(out, ",{ms}");
            }
            for value in [
                run.server_cpu_us,
                run.server_per_mille,
                run.server_rss_mb,
                run.server_disk_bytes,
                run.server_fsyncs,
                Some(run.client_cpu_us),
                Some(run.client_busy),
                Some(run.client_starved),
            ] {
                let _ = write!(out, ",{}", value.map_or_else(String::new, |value| value.to_string()));
            }
            out.push('\n');
        }
    }
    out
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Formats a number with [`short`]; an unknown value becomes an empty string.
pub fn short_or_blank(value: Option<f64>) -> String {
    value.map_or_else(String::new, short)
}

/// Formats the numbers that etcd's report does not contain, as text for a terminal.
pub fn details(row: &Row) -> String {
    let median = &row.median;
    let mut text = String::new();
    let name = if row.workload.is_empty() { String::new() } else { format!(" of {}", row.workload) };
    let of = if row.runs.len() > 1 {
        format!("Medians of {} runs{name}", row.runs.len())
    } else {
        format!("Details{name}")
    };
    let _ = writeln!(text, "\n{of}:");
    let _ = writeln!(
        text,
        "  Rate:\t{} per second ({} operations, {} failed)",
        short(median.rate),
        median.count,
        median.failed
    );
    let percentiles: Vec<String> = PERCENTILES
        .iter()
        .zip(median.percentiles_ms)
        .map(|((_, name), ms)| format!("{name} {}", short(ms)))
        .collect();
    let _ = writeln!(text, "  Latency:\t{} max {} ms", percentiles.join("  "), short(median.max_ms));
    if median.server_cpu_us.is_some() || median.server_rss_mb.is_some() {
        let mut parts = Vec::new();
        if let (Some(us), Some(per_mille)) = (median.server_cpu_us, median.server_per_mille) {
            parts.push(format!(
                "CPU {} us per operation ({} per mille of a core)",
                short(us),
                short(per_mille)
            ));
        }
        if let Some(mb) = median.server_rss_mb {
            parts.push(format!("memory {} MB", short(mb)));
        }
        if let Some(bytes) = median.server_disk_bytes {
            parts.push(format!("disk {} bytes per operation", short(bytes)));
        }
        if let Some(fsyncs) = median.server_fsyncs {
            parts.push(format!("{} syncs per operation", short(fsyncs)));
        }
        let _ = writeln!(text, "  Server:\t{}", parts.join(", "));
    }
    let _ = writeln!(
        text,
        "  Generator:\tCPU {} us per operation, busiest thread {:.0} % of a CPU",
        short(median.client_cpu_us),
        median.client_busy * 100.0
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_are_quoted() {
        assert_eq!(quoted("a,b\"c"), "\"a,b\"\"c\"");
        assert_eq!(quoted("ab"), "ab");
    }
}
