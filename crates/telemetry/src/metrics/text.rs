//! Writes metrics in Prometheus' text format, version 0.0.4.

use std::fmt::Write as _;

/// Value of the `Content-Type` header of the response to a scrape. As in etcd, it does not depend on the
/// request's `Accept` header.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Type of a metric, as its TYPE line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// The value only increases.
    Counter,
    /// The value increases and decreases.
    Gauge,
    /// A distribution over buckets.
    Histogram,
}

impl MetricType {
    /// Returns the word of the TYPE line.
    pub fn as_str(self) -> &'static str {
        match self {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        }
    }
}

/// The labels of one series: name and value of each, in the order in which they are written.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// Writes families of metrics, one after the other, to a string.
pub(super) struct Writer<'a> {
    out: &'a mut String,
    name: &'a str,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut String) -> Writer<'a> {
        Writer { out, name: "" }
    }

    /// Begins a family. Errors are ignored here and in the methods below, because writing to a `String`
    /// cannot fail.
    pub(super) fn family(&mut self, name: &'a str, kind: MetricType, help: &str) {
        self.name = name;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
    }

    pub(super) fn sample(&mut self, labels: Labels<'_>, value: f64) {
        self.line("", labels, None, value);
    }

    pub(super) fn distribution(&mut self, labels: Labels<'_>, cumulative: &[(f64, u64)], sum: f64) {
        for (bound, count) in cumulative {
            self.line("_bucket", labels, Some(*bound), *count as f64);
        }
        let count = cumulative.last().map_or(0, |(_, count)| *count);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count as f64);
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<f64>, value: f64) {
        let _ = write!(self.out, "{}{suffix}", self.name);
        let mut separator = '{';
        for (name, value) in labels {
            let _ = write!(self.out, "{separator}{name}=\"");
            write_label_value(self.out, value);
            self.out.push('"');
            separator = ',';
        }
        if let Some(bound) = bound {
            let _ = write!(self.out, "{separator}le=\"");
            write_go_float(self.out, bound);
            self.out.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.out.push('}');
        }
        self.out.push(' ');
        write_go_float(self.out, value);
        self.out.push('\n');
    }
}

fn write_label_value(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// Writes a number as Go's `strconv` does with the format `g` and the shortest precision that reads back
/// unchanged. The spelling must be Go's, because the bounds of buckets are labels, and a different label is a
/// different series.
pub(super) fn write_go_float(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("NaN");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        return;
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Go's shortest format writes an exponent if the exponent is less than -4 or at least 6.
    if (-4..6).contains(&exponent) {
        let _ = write!(out, "{value}");
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_as_go_spells_them() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-3.0, "-3"),
            (0.001, "0.001"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (52.4288, "52.4288"),
            (819_200.0, "819200"),
            (8_388_608.0, "8.388608e+06"),
            (1_795_247_704.85, "1.79524770485e+09"),
            (u64::MAX as f64, "1.8446744073709552e+19"),
            (f64::INFINITY, "+Inf"),
        ] {
            let mut out = String::new();
            write_go_float(&mut out, value);
            assert_eq!(out, text);
        }
    }
}
