//! Metrics of one page, built from numbers at the time of a scrape.

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram as Sample, LabelPair, Metric, MetricFamily, MetricType,
};

use crate::status::Histogram;

/// The labels of a sample: names and values.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// Metrics of one page.
#[derive(Clone, Debug, Default)]
pub struct Families(Vec<MetricFamily>);

impl Families {
    /// Adds a counter with its samples. The name ends in `_total`. Without samples it is left out.
    pub fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) {
        let metrics = samples.into_iter().map(|(labels, value)| {
            let mut counter = Counter::default();
            counter.set_value(number(value));
            let mut metric = metric(labels);
            metric.set_counter(counter);
            metric
        });
        self.add(name, help, MetricType::COUNTER, metrics.collect());
    }

    /// Adds a gauge with its samples. Without samples it is left out.
    pub fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, f64)>,
    ) {
        let metrics = samples.into_iter().map(|(labels, value)| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            let mut metric = metric(labels);
            metric.set_gauge(gauge);
            metric
        });
        self.add(name, help, MetricType::GAUGE, metrics.collect());
    }

    /// Adds a histogram of durations in seconds with its samples. Without samples it is left out.
    pub fn histogram<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, &'a Histogram)>,
    ) {
        let metrics = samples.into_iter().map(|(labels, histogram)| {
            let buckets = histogram.cumulative().map(|(bound, count)| {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bound);
                bucket.set_cumulative_count(count);
                bucket
            });
            let mut sample = Sample::default();
            sample.set_bucket(buckets.collect());
            sample.set_sample_count(histogram.count());
            sample.set_sample_sum(histogram.sum().as_secs_f64());
            let mut metric = metric(labels);
            metric.set_histogram(sample);
            metric
        });
        self.add(name, help, MetricType::HISTOGRAM, metrics.collect());
    }

    fn add(&mut self, name: &str, help: &str, metric_type: MetricType, metrics: Vec<Metric>) {
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(metric_type);
        family.set_metric(metrics);
        self.0.push(family);
    }

    /// The metrics, in the order in which they were added.
    #[must_use]
    pub fn into_families(self) -> Vec<MetricFamily> {
        self.0
    }

    /// These metrics and those of a registry, by name.
    pub(super) fn with(mut self, registered: Vec<MetricFamily>) -> Vec<MetricFamily> {
        self.0.extend(registered);
        self.0.sort_by(|one, other| one.name().cmp(other.name()));
        self.0
    }
}

fn metric(labels: Labels<'_>) -> Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    Metric::from_label(pairs.collect())
}

/// A counter as a value of a metric. Values have 53 bits in the text format, as in every client library.
#[expect(clippy::cast_precision_loss, reason = "the format has no other numbers")]
#[must_use]
pub fn number(value: u64) -> f64 {
    value as f64
}
