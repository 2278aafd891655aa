//! Defines the results of a measurement: the numbers of each run, their medians, and facts about the
//! environment.

use crate::loadgen::drive::{Generator, Run};
use crate::loadgen::samples::Series;
use crate::usage::Usage;

/// Percentiles that are reported, with their names.
pub const PERCENTILES: [(f64, &str); 6] =
    [(50.0, "p50"), (90.0, "p90"), (95.0, "p95"), (99.0, "p99"), (99.9, "p99.9"), (99.99, "p99.99")];

/// The numbers that describe one run. Latencies are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Number of successful operations.
    pub count: u64,
    /// Number of failed operations.
    pub failed: u64,
    /// Duration of the run in seconds.
    pub elapsed_s: f64,
    /// Operations per second.
    pub rate: f64,
    /// Mean latency.
    pub mean_ms: f64,
    /// Lowest latency.
    pub min_ms: f64,
    /// Highest latency.
    pub max_ms: f64,
    /// Latencies at the percentiles, in the order of [`PERCENTILES`].
    pub percentiles_ms: [f64; 6],
    /// CPU time that the server used per operation, in microseconds; `None` if unknown.
    pub server_cpu_us: Option<f64>,
    /// CPU time that the server used per second of the run, in thousandths of one core; `None` if unknown.
    pub server_per_mille: Option<f64>,
    /// Resident memory of the server at the end of the run, in megabytes; `None` if unknown.
    pub server_rss_mb: Option<f64>,
    /// Number of bytes that the server wrote to its disk per operation; `None` if unknown.
    pub server_disk_bytes: Option<f64>,
    /// Number of log syncs that the server made per operation; `None` if unknown.
    pub server_fsyncs: Option<f64>,
    /// CPU time that the load generator used per operation, in microseconds.
    pub client_cpu_us: f64,
    /// CPU time of the load generator's busiest thread as a fraction of the run's duration, from 0 to 1.
    pub client_busy: f64,
    /// Time for which the load generator's threads waited for a CPU, as a fraction of the run's duration.
    pub client_starved: f64,
}

impl Figures {
    /// Computes the numbers for a series. `all` is the number of operations of all series of the run; the
    /// resources that the server and the load generator used are divided by it.
    pub fn new(
        series: &Series,
        elapsed_s: f64,
        generator: &Generator,
        usage: Option<Usage>,
        all: u64,
    ) -> Self {
        let histogram = series.histogram();
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let count = series.count();
        let each = |value: f64| value / all.max(1) as f64;
        let elapsed = elapsed_s.max(1e-9);
        Self {
            count,
            failed: series.failed(),
            elapsed_s,
            rate: count as f64 / elapsed,
            mean_ms: histogram.mean() / 1e6,
            min_ms: ms(histogram.min()),
            max_ms: ms(histogram.max()),
            percentiles_ms: PERCENTILES.map(|(percent, _)| ms(histogram.percentile(percent))),
            server_cpu_us: usage.and_then(|usage| usage.cpu_s).map(|cpu| each(cpu * 1e6)),
            server_per_mille: usage.and_then(|usage| usage.cpu_s).map(|cpu| cpu / elapsed * 1000.0),
            server_rss_mb: usage.and_then(|usage| usage.rss_bytes).map(|bytes| bytes as f64 / 1e6),
            server_disk_bytes: usage.and_then(|usage| usage.written_bytes).map(|bytes| each(bytes as f64)),
            server_fsyncs: usage.and_then(|usage| usage.fsyncs).map(each),
            client_cpu_us: each(generator.cpu.as_secs_f64() * 1e6),
            client_busy: generator.busiest,
            client_starved: generator.starved.as_secs_f64() / elapsed,
        }
    }

    /// Returns the medians of the runs, computed separately for each number.
    pub fn median(runs: &[Self]) -> Self {
        let of = |get: &dyn Fn(&Self) -> f64| median(runs.iter().map(get).collect()).unwrap_or(0.0);
        let maybe = |get: &dyn Fn(&Self) -> Option<f64>| median(runs.iter().filter_map(get).collect());
        let mut percentiles_ms = [0.0; 6];
        for (at, percentile) in percentiles_ms.iter_mut().enumerate() {
            *percentile = of(&|run| run.percentiles_ms[at]);
        }
        Self {
            count: of(&|run| run.count as f64) as u64,
            failed: of(&|run| run.failed as f64) as u64,
            elapsed_s: of(&|run| run.elapsed_s),
            rate: of(&|run| run.rate),
            mean_ms: of(&|run| run.mean_ms),
            min_ms: of(&|run| run.min_ms),
            max_ms: of(&|run| run.max_ms),
            percentiles_ms,
            server_cpu_us: maybe(&|run| run.server_cpu_us),
            server_per_mille: maybe(&|run| run.server_per_mille),
            server_rss_mb: maybe(&|run| run.server_rss_mb),
            server_disk_bytes: maybe(&|run| run.server_disk_bytes),
            server_fsyncs: maybe(&|run| run.server_fsyncs),
            client_cpu_us: of(&|run| run.client_cpu_us),
            client_busy: of(&|run| run.client_busy),
            client_starved: of(&|run| run.client_starved),
        }
    }

    /// Returns the latency at the percentile with this name.
    pub fn percentile(&self, name: &str) -> f64 {
        let at = PERCENTILES.iter().position(|(_, known)| *known == name);
        at.and_then(|at| self.percentiles_ms.get(at)).copied().unwrap_or(0.0)
    }
}

/// Returns the median: the middle value, or the mean of the two middle ones; `None` if there are no values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { (values[middle - 1] + upper) / 2.0 } else { upper })
}

/// One load on one server: a row of the result, over all runs.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Name of the load.
    pub workload: String,
    /// Name of the server.
    pub server: String,
    /// The numbers of each run.
    pub runs: Vec<Figures>,
    /// Medians of the runs.
    pub median: Figures,
    /// Latency by percentile over all runs, for the chart: pairs of a percentage, and the latency in
    /// milliseconds that this percentage of the operations did not exceed.
    pub distribution: Vec<(f64, f64)>,
    /// Course of the run whose rate is closest to the median. For each second: its number, the number of
    /// operations, and their p50 and p99 in milliseconds.
    pub seconds: Vec<(f64, u64, f64, f64)>,
    /// Error messages of failed operations, each with its number of occurrences, over all runs.
    pub errors: Vec<(String, u64)>,
}

impl Row {
    /// Creates a row from its runs. `series` is the index of the series of each run that the row describes.
    /// `usages` has the server's resource usage in each run.
    pub fn new(workload: &str, server: &str, runs: &[Run], series: usize, usages: &[Option<Usage>]) -> Self {
        let mut row = Self { workload: workload.to_owned(), server: server.to_owned(), ..Self::default() };
        let mut all = Series::default();
        for (at, run) in runs.iter().enumerate() {
            let Some(one) = run.series.get(series) else { continue };
            let together: u64 = run.series.iter().map(|series| series.count() + series.failed()).sum();
            let usage = usages.get(at).copied().flatten();
            row.runs.push(Figures::new(one, run.elapsed.as_secs_f64(), &run.generator, usage, together));
            all.add(one.clone());
        }
        row.median = Figures::median(&row.runs);
        let histogram = all.histogram();
        if histogram.count() > 0 {
            // Choose percentages that are evenly spaced on a logarithmic scale (0 %, 50 %, 75 %, 87.5 % and
            // so on, with three more between each two), as far as the number of samples allows.
            let steps = ((histogram.count() as f64).log2() * 4.0).ceil() as u32;
            row.distribution = (0..=steps.min(100))
                .map(|step| 100.0 * (1.0 - 0.5_f64.powf(f64::from(step) / 4.0)))
                .map(|percent| (percent, histogram.percentile(percent) as f64 / 1e6))
                .collect();
        }
        row.errors = all.errors.iter().map(|(text, count)| (text.clone(), *count)).collect();
        let closest = row.runs.iter().enumerate().min_by(|(_, a), (_, b)| {
            (a.rate - row.median.rate).abs().total_cmp(&(b.rate - row.median.rate).abs())
        });
        if let Some(one) = closest.and_then(|(at, _)| runs.get(at)).and_then(|run| run.series.get(series)) {
            let first = one.seconds.keys().next().copied().unwrap_or(0);
            row.seconds = (one.seconds.iter())
                .map(|(second, what)| {
                    let ms = |percent| what.latencies.percentile(percent) as f64 / 1e6;
                    ((second - first) as f64, what.latencies.count(), ms(50.0), ms(99.0))
                })
                .collect();
        }
        row
    }
}

/// The complete result of a measurement, as reports show it.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// The command line, without passwords.
    pub command: String,
    /// Time of the measurement, as RFC 3339.
    pub time: String,
    /// Facts about the machine and the servers, as pairs of name and value.
    pub facts: Vec<(String, String)>,
    /// Warnings about conditions that may have distorted the results.
    pub warnings: Vec<String>,
    /// Rows of the result.
    pub rows: Vec<Row>,
    /// Further numbers about each server: its name, and pairs of a name, which ends with the unit, and a value.
    pub numbers: Vec<(String, Vec<(String, f64)>)>,
    /// Sentences that summarize the results.
    pub conclusions: Vec<String>,
    /// Name of the server to which the ratios in the report refer; `None` for no ratios.
    pub reference: Option<String>,
    /// Name of the responder, a server that does no work; `None` if it does not take part.
    pub baseline: Option<String>,
}
