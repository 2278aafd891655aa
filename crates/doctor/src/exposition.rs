//! Parses Prometheus' text format, as far as etcd and Mainstay use it. Lines that cannot be parsed are
//! counted and skipped.

use std::collections::BTreeMap;

use crate::histogram::Histogram;

/// Largest number of samples kept from one page. Further samples are counted and ignored: only a faulty
/// server has more.
const SAMPLES_MAX: usize = 200_000;

/// One page of metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    samples: BTreeMap<String, Vec<Sample>>,
    /// Number of lines that were ignored: invalid lines, and samples above the limit.
    pub lines_ignored: usize,
}

/// One sample of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name and value of each label, unescaped, in the page's order.
    pub labels: Vec<(String, String)>,
    /// Value of the sample; may be infinite or NaN.
    pub value: f64,
}

impl Sample {
    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn bears(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

impl Exposition {
    /// Parses a page. Accepts any text; an invalid line has no effect on other lines.
    pub fn read(text: &str) -> Exposition {
        let mut page = Exposition::default();
        let mut kept = 0;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match sample(line) {
                Some((name, sample)) if kept < SAMPLES_MAX => {
                    kept += 1;
                    match page.samples.get_mut(name) {
                        Some(series) => series.push(sample),
                        None => _ = page.samples.insert(name.to_owned(), vec![sample]),
                    }
                }
                _ => page.lines_ignored += 1,
            }
        }
        page
    }

    /// Returns all samples with this name.
    pub fn samples(&self, name: &str) -> &[Sample] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns true if a sample or a histogram with this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.samples.contains_key(name) || self.samples.contains_key(&format!("{name}_count"))
    }

    /// Returns the sum over the series that have these labels; `None` if there is no such series, or the sum
    /// is not a finite number.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.samples(name).iter().filter(|sample| sample.bears(labels)).peekable();
        found.peek()?;
        Some(found.map(|sample| sample.value).sum()).filter(|sum: &f64| sum.is_finite())
    }

    /// Returns a histogram, summed over the series with these labels.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)]) -> Option<Histogram> {
        let count = self.sum(&format!("{name}_count"), labels)?;
        let sum = self.sum(&format!("{name}_sum"), labels).unwrap_or(0.0);
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.samples(&format!("{name}_bucket")).iter().filter(|sample| sample.bears(labels)) {
            let Some(bound) = sample.label("le").and_then(number).filter(|bound| !bound.is_nan()) else {
                continue;
            };
            if !sample.value.is_finite() {
                continue;
            }
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        Some(Histogram::new(buckets, count, sum))
    }
}

/// Parses `name{label="value",...} number [timestamp]`.
fn sample(line: &str) -> Option<(&str, Sample)> {
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if name.is_empty() || !name.chars().all(is_name) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (Vec::new(), rest),
    };
    let mut words = rest.split_whitespace();
    let value = number(words.next()?)?;
    // Only a timestamp may follow the number. It is checked and then ignored.
    if let Some(timestamp) = words.next() {
        timestamp.parse::<f64>().ok()?;
    }
    words.next().is_none().then_some((name, Sample { labels, value }))
}

/// Parses a number as Prometheus writes it. Rust's parser accepts all these forms, including `+Inf` and
/// `NaN`.
fn number(word: &str) -> Option<f64> {
    word.parse().ok()
}

/// Parses the labels after `{`. Returns them, and the text after `}`.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let quoted = after.trim_start().strip_prefix('"')?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    c => value.push(c),
                },
                (_, c) => value.push(c),
            }
        };
        labels.push((name.trim().to_owned(), value));
        rest = quoted[end..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Random;

    #[test]
    fn samples_are_read_in_all_their_forms() {
        let page = Exposition::read(
            "# HELP a b\n# TYPE a counter\na 1\na{x=\"y\"} 2 1700000000\nb{x=\"1\",y=\"q\\\"\\\\\\n\",} +Inf\n\
             c NaN\n  d:e   4e-3  \n\nf{ x = \"}\" } -1\n",
        );
        assert_eq!(page.lines_ignored, 0);
        assert_eq!(page.sum("a", &[]), Some(3.0));
        assert_eq!(page.sum("a", &[("x", "y")]), Some(2.0));
        assert_eq!(page.sum("a", &[("x", "z")]), None);
        assert_eq!(page.samples("b")[0].label("y"), Some("q\"\\\n"));
        assert_eq!(page.sum("b", &[]), None, "infinite");
        assert!(page.samples("c")[0].value.is_nan());
        assert_eq!(page.sum("c", &[]), None, "no number");
        assert_eq!(page.sum("d:e", &[]), Some(0.004));
        assert_eq!(page.samples("f")[0].label("x"), Some("}"));
    }

    #[test]
    fn broken_lines_cost_themselves_alone() {
        let text = "a\n{x=\"y\"} 1\na{x=\"y\" 1\na{x=y} 1\na{x=\"y} 1\na{x} 1\n1a 2\na b\na 1 2 3\na{x=\"\\\n<html>\ngood 1\n";
        let page = Exposition::read(text);
        assert_eq!(page.sum("good", &[]), Some(1.0));
        assert_eq!(page.sum("a", &[]), None);
        assert_eq!(page.lines_ignored, 11);
    }

    #[test]
    fn garbage_is_read_as_something() {
        let pieces =
            ["a", "{", "}", "\"", "\\", "=", ",", " ", "\n", "le", "1", "NaN", "_bucket", "#", "ü", "+Inf"];
        let mut random = Random::new(7);
        for _ in 0..3000 {
            let length = random.number() % 40;
            let text: String =
                (0..length).map(|_| pieces[(random.number() % pieces.len() as u64) as usize]).collect();
            let page = Exposition::read(&text);
            let kept: usize = page.samples.values().map(Vec::len).sum();
            assert!(kept + page.lines_ignored <= text.lines().count(), "{text:?}");
            if let Some(histogram) = page.histogram("a", &[]) {
                assert!(histogram.quantile(0.99).is_none_or(|value| !value.is_nan()), "{text:?}");
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut random = Random::new(11);
        for _ in 0..500 {
            let value = random.number() as f64 / 1e3;
            let label: String = (0..random.number() % 8)
                .map(|_| ['a', '"', '\\', '\n', 'ü', '}', ','][(random.number() % 7) as usize])
                .collect();
            let escaped = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let page = Exposition::read(&format!("m{{l=\"{escaped}\"}} {value}\n"));
            assert_eq!(page.samples("m"), [Sample { labels: vec![("l".to_owned(), label)], value }]);
        }
    }
}
