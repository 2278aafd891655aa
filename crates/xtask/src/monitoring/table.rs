//! Collects the metrics that a member exports, for the generators of this module.

use std::collections::BTreeMap;

use api::Rpc;
use config::MetricsDetail;
use telemetry::metrics::{MetricType, Metrics};

/// Labels that Prometheus adds to each series of a target.
pub const TARGET_LABELS: [&str; 2] = ["job", "instance"];

/// One metric.
pub struct Row {
    /// Name of the metric family.
    pub name: String,
    /// Type: `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Names of the labels.
    pub labels: Vec<String>,
    /// Description of the metric, which is exported as `# HELP`.
    pub help: String,
    /// Bounds of a histogram: the first bound, the factor between two bounds, and their number.
    pub bounds: Option<(f64, f64, usize)>,
}

/// All metrics by name, and the series of recording rules.
#[derive(Default)]
pub struct Table {
    rows: BTreeMap<String, Row>,
    recorded: BTreeMap<String, Vec<String>>,
}

impl Table {
    /// Returns the metrics that a member with detailed counting (`--metrics=extensive`) exports, including
    /// those of its process.
    pub fn of_a_member() -> Table {
        let metrics = Metrics::new(&Rpc::ALL, MetricsDetail::Extensive);
        let mut table = Table::default();
        for row in metrics.descriptors() {
            table.insert(Row {
                name: row.name.to_owned(),
                kind: row.kind.as_str(),
                labels: row.labels.iter().map(|label| (*label).to_owned()).collect(),
                help: row.help.to_owned(),
                bounds: row.buckets.map(|buckets| (buckets.start, buckets.factor, buckets.count)),
            });
        }
        // The metrics of the process (`process_…`) have no descriptors. Read them from the text that a member
        // exports; they have no labels.
        let mut text = String::new();
        metrics.render(&mut text);
        let mut help = "";
        for line in text.lines() {
            if let Some((_, rest)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                help = rest;
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
                && !table.rows.contains_key(name)
            {
                let kinds = [MetricType::Counter, MetricType::Gauge, MetricType::Histogram];
                let kind = kinds.iter().map(|each| each.as_str()).find(|each| *each == kind);
                table.insert(Row {
                    name: name.to_owned(),
                    kind: kind.unwrap_or("gauge"),
                    labels: Vec::new(),
                    help: help.to_owned(),
                    bounds: None,
                });
            }
        }
        // Expressions may also use `up`, which Prometheus itself adds for each target.
        table.recorded.insert("up".to_owned(), Vec::new());
        table
    }

    fn insert(&mut self, row: Row) {
        self.rows.insert(row.name.clone(), row);
    }

    /// Adds the series of a recording rule, with its labels.
    pub fn record(&mut self, name: &str, labels: &[&str]) {
        self.recorded.insert(name.to_owned(), labels.iter().map(|label| (*label).to_owned()).collect());
    }

    /// Returns the metrics, sorted by name.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// Looks up a series that an expression names. Returns the name of the metric, and the labels of the
    /// series without [`TARGET_LABELS`].
    pub fn series(&self, name: &str) -> Option<(&str, Vec<&str>)> {
        if let Some((name, labels)) = self.recorded.get_key_value(name) {
            return Some((name, labels.iter().map(String::as_str).collect()));
        }
        if let Some(row) = self.rows.get(name)
            && row.kind != "histogram"
        {
            return Some((&row.name, row.labels.iter().map(String::as_str).collect()));
        }
        // A histogram has no series with its own name, but only series with these suffixes.
        ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
            let row = self.rows.get(name.strip_suffix(suffix)?)?;
            if row.kind != "histogram" {
                return None;
            }
            let bound = (*suffix == "_bucket").then_some("le");
            Some((row.name.as_str(), row.labels.iter().map(String::as_str).chain(bound).collect()))
        })
    }
}
