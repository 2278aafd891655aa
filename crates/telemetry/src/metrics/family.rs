//! Defines a family of metrics: its description, which is a row of the table, and its series, one for each
//! combination of label values.

use std::sync::{Arc, PoisonError, RwLock};

use super::series::{Buckets, Counter, Distribution, Gauge, Histogram, Total};
use super::text::{Labels, MetricType, Writer};

/// Maximum number of series of a family with labels. If more are requested, all further ones are one series
/// whose label values are [`OVERFLOW`]. The limit bounds the memory, because some label values come from
/// clients.
const SERIES_MAX: usize = 256;
const OVERFLOW: &str = "other";

/// Description of a metric: one row of the table.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// Name of the metric.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: MetricType,
    /// HELP text.
    pub help: &'static str,
    /// Names of the labels, in the order in which their values are given.
    pub labels: &'static [&'static str],
    /// Upper bounds of the buckets; `None` if the metric is not a histogram, or its bounds do not follow a
    /// formula.
    pub buckets: Option<Buckets>,
}

impl Descriptor {
    fn bounds(&self) -> Vec<f64> {
        let buckets = self.buckets.unwrap_or_else(|| unreachable!("{} has no buckets", self.name));
        buckets.bounds()
    }
}

/// A kind of series, such as a counter, which the table can create and a scrape can write.
pub(super) trait Instrument: Clone + Send + Sync + 'static {
    const KIND: MetricType;
    fn make(descriptor: &Descriptor) -> Self;
    fn render(&self, labels: Labels<'_>, writer: &mut Writer<'_>);
}

/// A family with labels. It has a series for each combination of label values. Clones refer to the same
/// family.
#[derive(Clone)]
pub struct Labelled<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    descriptor: Descriptor,
    series: RwLock<Vec<(Vec<String>, T)>>,
}

impl<T: Clone> Labelled<T> {
    /// Returns the number of series.
    pub fn len(&self) -> usize {
        self.shared.series.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns true if the family has no series yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[allow(private_bounds, reason = "instruments are made in this module only")]
impl<T: Instrument> Labelled<T> {
    /// Returns the series with these label values, which are in the order of [`Descriptor::labels`]. Creates
    /// the series if it does not exist. This takes a lock, so code that updates a series often should keep
    /// the result.
    pub fn with(&self, values: &[&str]) -> T {
        let descriptor = &self.shared.descriptor;
        assert_eq!(values.len(), descriptor.labels.len(), "labels of {}", descriptor.name);
        if let Some(found) = find(&self.shared.series.read().unwrap_or_else(PoisonError::into_inner), values)
        {
            return found;
        }
        let mut series = self.shared.series.write().unwrap_or_else(PoisonError::into_inner);
        let overflow = vec![OVERFLOW; values.len()];
        let values = if series.len() < SERIES_MAX { values } else { &overflow };
        if let Some(found) = find(&series, values) {
            return found;
        }
        let made = T::make(descriptor);
        series.push((values.iter().map(ToString::to_string).collect(), made.clone()));
        series.sort_by(|a, b| a.0.cmp(&b.0));
        made
    }
}

impl Labelled<Gauge> {
    /// Sets the series with these label values to 1, and all other series of the family to 0.
    pub fn mark_only(&self, marked: &[Vec<String>]) {
        for (values, series) in &*self.shared.series.read().unwrap_or_else(PoisonError::into_inner) {
            if !marked.contains(values) {
                series.set(0);
            }
        }
        for values in marked {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            self.with(&values).set(1);
        }
    }
}

impl Labelled<Gauge> {
    /// Replaces all series of the family with `series`: each is a combination of label values and its number.
    /// Ignores repeated combinations, and series beyond the maximum number.
    pub fn replace(&self, series: Vec<(Vec<String>, i64)>) {
        let mut made: Vec<(Vec<String>, Gauge)> = Vec::new();
        for (values, value) in series.into_iter().take(SERIES_MAX) {
            assert_eq!(
                values.len(),
                self.shared.descriptor.labels.len(),
                "labels of {}",
                self.shared.descriptor.name
            );
            if made.iter().all(|(known, _)| *known != values) {
                let gauge = Gauge::default();
                gauge.set(value);
                made.push((values, gauge));
            }
        }
        made.sort_by(|a, b| a.0.cmp(&b.0));
        *self.shared.series.write().unwrap_or_else(PoisonError::into_inner) = made;
    }
}

fn find<T: Clone>(series: &[(Vec<String>, T)], values: &[&str]) -> Option<T> {
    series.iter().find(|(existing, _)| existing == values).map(|(_, found)| found.clone())
}

impl Instrument for Counter {
    const KIND: MetricType = MetricType::Counter;

    fn make(_: &Descriptor) -> Counter {
        Counter::new()
    }

    fn render(&self, labels: Labels<'_>, writer: &mut Writer<'_>) {
        writer.sample(labels, self.value() as f64);
    }
}

impl Instrument for Total {
    const KIND: MetricType = MetricType::Counter;

    fn make(_: &Descriptor) -> Total {
        Total::default()
    }

    fn render(&self, labels: Labels<'_>, writer: &mut Writer<'_>) {
        writer.sample(labels, self.value() as f64);
    }
}

impl Instrument for Gauge {
    const KIND: MetricType = MetricType::Gauge;

    fn make(_: &Descriptor) -> Gauge {
        Gauge::default()
    }

    fn render(&self, labels: Labels<'_>, writer: &mut Writer<'_>) {
        writer.sample(labels, self.value() as f64);
    }
}

impl Instrument for Histogram {
    const KIND: MetricType = MetricType::Histogram;

    fn make(descriptor: &Descriptor) -> Histogram {
        Histogram::new(&descriptor.bounds())
    }

    fn render(&self, labels: Labels<'_>, writer: &mut Writer<'_>) {
        writer.distribution(labels, &self.cumulative(), self.sum());
    }
}

impl Instrument for Distribution {
    const KIND: MetricType = MetricType::Histogram;

    fn make(descriptor: &Descriptor) -> Distribution {
        Distribution::new(&descriptor.bounds())
    }

    fn render(&self, labels: Labels<'_>, writer: &mut Writer<'_>) {
        writer.distribution(labels, &self.cumulative(), self.sum());
    }
}

/// A family with or without labels, as the registry creates and writes it.
pub(super) trait Family: Clone + Send + Sync + 'static {
    const KIND: MetricType;
    fn make(descriptor: &Descriptor) -> Self;
    fn render(&self, descriptor: &Descriptor, writer: &mut Writer<'_>);
}

impl<T: Instrument> Family for T {
    const KIND: MetricType = T::KIND;

    fn make(descriptor: &Descriptor) -> T {
        assert!(descriptor.labels.is_empty(), "{} has labels", descriptor.name);
        <T as Instrument>::make(descriptor)
    }

    fn render(&self, descriptor: &Descriptor, writer: &mut Writer<'_>) {
        writer.family(descriptor.name, descriptor.kind, descriptor.help);
        Instrument::render(self, &[], writer);
    }
}

impl<T: Instrument> Family for Labelled<T> {
    const KIND: MetricType = T::KIND;

    fn make(descriptor: &Descriptor) -> Labelled<T> {
        assert!(!descriptor.labels.is_empty(), "{} has no labels", descriptor.name);
        let shared = Shared { descriptor: descriptor.clone(), series: RwLock::new(Vec::new()) };
        Labelled { shared: Arc::new(shared) }
    }

    fn render(&self, descriptor: &Descriptor, writer: &mut Writer<'_>) {
        let series = self.shared.series.read().unwrap_or_else(PoisonError::into_inner);
        if series.is_empty() {
            return;
        }
        writer.family(descriptor.name, descriptor.kind, descriptor.help);
        for (values, metric) in series.iter() {
            let mut labels: Vec<(&str, &str)> =
                descriptor.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            // Sort the labels by name, whatever their declared order, as Prometheus' Go client does.
            labels.sort_unstable();
            metric.render(&labels, writer);
        }
    }
}
