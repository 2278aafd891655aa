//! Formats a report exactly as etcd's benchmark does, line by line.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stdx::calendar::Utc;

use crate::loadgen::samples::Series;

use crate::go;

/// Options for the format of a report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// True to print all digits (`--precise`).
    pub precise: bool,
    /// True to print a line for each second (`--sample`).
    pub sample: bool,
}

impl Style {
    fn number(self, value: f64) -> String {
        if self.precise { go::general(value) } else { format!("{value:.4}") }
    }
}

/// Percentiles in etcd's report.
pub const PERCENTILES: [f64; 8] = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];

/// Statistics of a run, as the report contains them. Times are in seconds.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Duration of the run.
    pub total: f64,
    /// Distinct latencies in ascending order, each with its number of occurrences.
    latencies: Vec<(f64, u64)>,
    count: u64,
    /// Mean latency.
    pub average: f64,
    /// Standard deviation of the latencies.
    pub stddev: f64,
    /// Requests per second.
    pub rate: f64,
}

impl Stats {
    /// Computes the statistics. `weight` is the number of requests per operation, which is 1 except for `mvcc
    /// put`.
    pub fn new(series: &Series, total: Duration, weight: f64) -> Self {
        let total = total.as_secs_f64();
        // Divide the latency by the weight in whole nanoseconds, so that rounding is the same as in etcd's
        // tool.
        let latencies: Vec<(f64, u64)> = series
            .sorted()
            .into_iter()
            .map(|(nanos, count)| ((nanos as f64 / weight).trunc() / 1e9, count))
            .collect();
        let count: u64 = latencies.iter().map(|(_, count)| count).sum();
        let sum: f64 = latencies.iter().map(|(latency, count)| latency * *count as f64).sum();
        let average = sum / count as f64;
        let squares: f64 =
            latencies.iter().map(|(l, count)| (l - average) * (l - average) * *count as f64).sum();
        Self {
            total,
            average,
            stddev: (squares / count as f64).sqrt(),
            rate: count as f64 / total * weight,
            latencies,
            count,
        }
    }

    /// Returns the lowest latency, in seconds.
    pub fn fastest(&self) -> f64 {
        self.latencies.first().map_or(0.0, |(latency, _)| *latency)
    }

    /// Returns the highest latency, in seconds.
    pub fn slowest(&self) -> f64 {
        self.latencies.last().map_or(0.0, |(latency, _)| *latency)
    }

    /// Returns a percentile as etcd's report defines it: the latency at the index that corresponds to the
    /// percentage. Returns 0 if there are too few samples for it.
    pub fn percentile(&self, percent: f64) -> f64 {
        let mut before = 0;
        for (latency, count) in &self.latencies {
            // `place` is an index, counted from 0, into all samples in ascending order.
            let place = self.place(percent);
            if place < before + count {
                return *latency;
            }
            before += count;
        }
        0.0
    }

    fn place(&self, percent: f64) -> u64 {
        let all = self.count as f64;
        let mut place = (percent * all / 100.0).floor() as u64;
        while (place as f64) * 100.0 / all < percent {
            place += 1;
        }
        while place > 0 && (place - 1) as f64 * 100.0 / all >= percent {
            place -= 1;
        }
        place
    }
}

/// Returns the text of a report; empty if there are neither successful nor failed operations.
pub fn report(style: Style, series: &Series, total: Duration) -> String {
    weighted(style, series, total, 1.0)
}

/// Returns a report like [`report`] for operations that each consist of `weight` requests.
pub fn weighted(style: Style, series: &Series, total: Duration, weight: f64) -> String {
    let mut text = String::new();
    if series.count() > 0 {
        let stats = Stats::new(series, total, weight);
        let secs = |value| format!("{} secs", style.number(value));
        text += "\nSummary:\n";
        for (name, value) in [
            ("Total", stats.total),
            ("Slowest", stats.slowest()),
            ("Fastest", stats.fastest()),
            ("Average", stats.average),
            ("Stddev", stats.stddev),
        ] {
            let _ = writeln!(text, "  {name}:\t{}.", secs(value));
        }
        let _ = writeln!(text, "  Requests/sec:\t{}", style.number(stats.rate));
        histogram(style, &stats, &mut text);
        text += "\nLatency distribution:\n";
        for percent in PERCENTILES {
            let latency = stats.percentile(percent);
            if latency > 0.0 {
                let _ = writeln!(text, "  {}% in {}.", go::general(percent), secs(latency));
            }
        }
        if style.sample {
            samples(series, &mut text);
        }
    }
    if series.failed() > 0 {
        text += "\nError distribution:\n";
        for (error, count) in &series.errors {
            let _ = writeln!(text, "  [{count}]\t{error}");
        }
    }
    text
}

fn histogram(style: Style, stats: &Stats, text: &mut String) {
    const STEPS: usize = 10;
    let step = (stats.slowest() - stats.fastest()) / STEPS as f64;
    let mut bounds = [0.0; STEPS + 1];
    for (at, bound) in bounds.iter_mut().enumerate() {
        *bound = stats.fastest() + step * at as f64;
    }
    bounds[STEPS] = stats.slowest();
    let mut counts = [0_u64; STEPS + 1];
    let mut at = 0;
    for (latency, count) in &stats.latencies {
        while *latency > bounds[at] && at < STEPS {
            at += 1;
        }
        counts[at] += count;
    }
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    *text += "\nResponse time histogram:\n";
    for (bound, count) in bounds.into_iter().zip(counts) {
        let bar = "∎".repeat((count * 40 / most) as usize);
        let _ = writeln!(text, "  {} [{count}]\t|{bar}", style.number(bound));
    }
}

fn samples(series: &Series, text: &mut String) {
    *text += "\nSample in one second (unix latency throughput):\n";
    *text += "UNIX-SECOND,MIN-LATENCY-MS,AVG-LATENCY-MS,MAX-LATENCY-MS,AVG-THROUGHPUT\n";
    let (Some(first), Some(last)) = (series.seconds.keys().next(), series.seconds.keys().next_back()) else {
        return;
    };
    for second in *first..=*last {
        // Print a line for a second without operations too, as etcd's tool does.
        let (min, mean, max, count) = series.seconds.get(&second).map_or((0, 0, 0, 0), |second| {
            let all = &second.latencies;
            (all.min(), all.mean() as u64, all.max(), all.count())
        });
        let show = |nanos| cli::go::duration(Duration::from_nanos(nanos));
        let _ = writeln!(text, "{second},{},{},{},{count}", show(min), show(mean), show(max));
    }
    *text += "\n";
}

/// Returns the name and the contents of the file that `--report-perfdash` writes.
pub fn perfdash(operation: &str, series: &Series, total: Duration, now: SystemTime) -> (String, String) {
    let stats = Stats::new(series, total, 1.0);
    let ms = |percent| {
        let value = if series.count() == 0 { 0.0 } else { stats.percentile(percent) };
        general_json((value * 1000.0 * 10_000.0).round() / 10_000.0)
    };
    let text = format!(
        "{{\n  \"version\": \"v1\",\n  \"dataItems\": [\n    {{\n      \"data\": {{\n        \"Perc50\": {},\n        \
         \"Perc90\": {},\n        \"Perc99\": {}\n      }},\n      \"labels\": {{\n        \"Operation\": \"{}\"\n      \
         }},\n      \"unit\": \"ms\"\n    }}\n  ]\n}}",
        ms(50.0),
        ms(90.0),
        ms(99.0),
        operation.to_uppercase()
    );
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    (format!("EtcdAPI_benchmark_{operation}_{}.json", rfc3339(seconds)), text)
}

/// Formats a number as Go's JSON encoder does, for numbers that it writes without an exponent.
fn general_json(value: f64) -> String {
    format!("{value}")
}

/// Writes the perfdash file into the directory that etcd's tool uses. Returns the message about success or
/// failure.
pub fn write_perfdash(operation: &str, series: &Series, total: Duration, artifacts: Option<&str>) -> String {
    let (name, text) = perfdash(operation, series, total, SystemTime::now());
    let folder = PathBuf::from(artifacts.filter(|dir| !dir.is_empty()).unwrap_or("./_artifacts"));
    let mut said = String::new();
    if let Err(error) = std::fs::create_dir_all(&folder) {
        let _ = writeln!(said, "Error creating artifacts directory: {error}");
    }
    // Remove a leading "./" from the path, as Go's `filepath.Join` does, so that the message is the same.
    let path = folder.join(name);
    let path = path.strip_prefix("./").unwrap_or(&path).to_path_buf();
    match std::fs::write(&path, text) {
        Ok(()) => {
            let _ = writeln!(said, "Successfully created a JSON perf report at {}", path.display());
        }
        Err(error) => {
            let _ = writeln!(said, "Error writing to file: {error}");
        }
    }
    said
}

/// Formats seconds since 1970 as RFC 3339.
pub fn rfc3339(seconds: u64) -> String {
    format!("{}Z", Utc::from_unix(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_767_225_599), "2025-12-31T23:59:59Z");
    }

    #[test]
    fn percentiles_need_enough_samples() {
        let few = Series::of(0, (1..=10).map(|ms| ms * 1_000_000));
        let stats = Stats::new(&few, Duration::from_secs(1), 1.0);
        assert_eq!(stats.percentile(50.0), 0.006);
        assert_eq!(stats.percentile(90.0), 0.010);
        assert_eq!(stats.percentile(95.0), 0.0);
    }
}
