//! The metrics of the process, under the names of Prometheus' client libraries.

use std::collections::HashMap;
use std::fs;

use kernlink_proxier::metrics::prometheus::core::{Collector, Desc};
use kernlink_proxier::metrics::prometheus::proto::MetricFamily;
use kernlink_proxier::metrics::prometheus::{self, Counter, Gauge};

/// Ticks of processor time and of start times in a second: `USER_HZ` in `/proc`, the same on all architectures that the program is built for.
const TICKS: f64 = 100.0;

type Metric = (&'static str, &'static str, fn(&Files) -> Option<f64>);

const CPU: Metric = (
    "process_cpu_seconds_total",
    "Total user and system CPU time spent in seconds.",
    Files::processor_seconds,
);

const GAUGES: [Metric; 6] = [
    (
        "process_open_fds",
        "Number of open file descriptors.",
        Files::open_descriptors,
    ),
    (
        "process_max_fds",
        "Maximum number of open file descriptors.",
        Files::most_descriptors,
    ),
    (
        "process_virtual_memory_bytes",
        "Virtual memory size in bytes.",
        |files| files.kib("VmSize:"),
    ),
    (
        "process_resident_memory_bytes",
        "Resident memory size in bytes.",
        |files| files.kib("VmRSS:"),
    ),
    (
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        Files::start_time,
    ),
    (
        "process_threads",
        "Number of OS threads in the process.",
        |files| files.status("Threads:")?.parse().ok(),
    ),
];

/// What `/proc` has of a process. A file that cannot be read is empty, and its metrics are missing.
#[derive(Debug, Default)]
struct Files {
    stat: String,
    status: String,
    limits: String,
    /// `/proc/stat`.
    system: String,
    descriptors: Option<usize>,
}

impl Files {
    fn of_this_process() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            stat: read("/proc/self/stat"),
            status: read("/proc/self/status"),
            limits: read("/proc/self/limits"),
            system: read("/proc/stat"),
            // Without that of the folder itself.
            descriptors: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|folder| folder.count().saturating_sub(1)),
        }
    }

    /// A field of `stat` by its number in proc(5), from 3.
    fn field(&self, number: usize) -> Option<f64> {
        // The name of the program may contain spaces and parentheses.
        let (_, fields) = self.stat.rsplit_once(") ")?;
        fields.split(' ').nth(number.checked_sub(3)?)?.parse().ok()
    }

    fn status(&self, name: &str) -> Option<&str> {
        let line = self.status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim())
    }

    fn kib(&self, name: &str) -> Option<f64> {
        let kib: f64 = self.status(name)?.strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024.0)
    }

    fn processor_seconds(&self) -> Option<f64> {
        Some((self.field(14)? + self.field(15)?) / TICKS)
    }

    fn start_time(&self) -> Option<f64> {
        let boot = self.system.lines().find_map(|line| line.strip_prefix("btime "))?;
        Some(boot.trim().parse::<f64>().ok()? + self.field(22)? / TICKS)
    }

    fn most_descriptors(&self) -> Option<f64> {
        let line = self
            .limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))?;
        // `unlimited` has no number.
        line.split_whitespace().next()?.parse().ok()
    }

    fn open_descriptors(&self) -> Option<f64> {
        let descriptors = u32::try_from(self.descriptors?).ok()?;
        Some(descriptors.into())
    }
}

/// Reads the metrics of this process at each scrape.
#[derive(Debug)]
pub(crate) struct ProcessCollector(Vec<Desc>);

impl ProcessCollector {
    /// # Errors
    /// None in practice: the names are valid and different.
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let metrics = std::iter::once(&CPU).chain(&GAUGES);
        let descriptions = metrics.map(|(name, help, _)| {
            Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), HashMap::new())
        });
        Ok(Self(descriptions.collect::<Result<_, _>>()?))
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        families(&Files::of_this_process())
    }
}

fn families(files: &Files) -> Vec<MetricFamily> {
    let (name, help, read) = CPU;
    let mut families = Vec::new();
    if let (Some(value), Ok(counter)) = (read(files), Counter::new(name, help)) {
        counter.inc_by(value.max(0.0));
        families.extend(counter.collect());
    }
    for (name, help, read) in GAUGES {
        if let (Some(value), Ok(gauge)) = (read(files), Gauge::new(name, help)) {
            gauge.set(value);
            families.extend(gauge.collect());
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(files: &Files) -> Vec<(String, f64)> {
        let families = families(files).into_iter();
        families
            .map(|family| {
                let metric = &family.get_metric()[0];
                let value = match family.name() {
                    "process_cpu_seconds_total" => metric.get_counter().get_value(),
                    _ => metric.get_gauge().get_value(),
                };
                (family.name().to_owned(), value)
            })
            .collect()
    }

    #[test]
    fn the_files_of_proc_are_read() {
        let mut fields = vec!["0"; 50];
        (fields[0], fields[11], fields[12], fields[19]) = ("S", "150", "25", "1200");
        let files = Files {
            stat: format!("7 (a ) b) {}\n", fields.join(" ")),
            status: "Name:\ta\nVmSize:\t    2048 kB\nVmRSS:\t 1024 kB\nThreads:\t9\n".to_owned(),
            limits: "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n"
                .to_owned(),
            system: "cpu 1 2\nbtime 1700000000\n".to_owned(),
            descriptors: Some(12),
        };
        let expected = [
            ("process_cpu_seconds_total", 1.75),
            ("process_open_fds", 12.0),
            ("process_max_fds", 1024.0),
            ("process_virtual_memory_bytes", 2_097_152.0),
            ("process_resident_memory_bytes", 1_048_576.0),
            ("process_start_time_seconds", 1_700_000_012.0),
            ("process_threads", 9.0),
        ];
        assert_eq!(
            values(&files),
            expected.map(|(name, value)| (name.to_owned(), value))
        );
    }

    #[test]
    fn what_cannot_be_read_is_missing() {
        assert_eq!(values(&Files::default()), []);
        let unlimited = Files {
            limits: "Max open files            unlimited            unlimited            files\n".to_owned(),
            stat: "7 (a".to_owned(),
            ..Files::default()
        };
        assert_eq!(values(&unlimited), []);
    }

    #[test]
    fn this_process_has_all_of_them() {
        let names: Vec<String> = values(&Files::of_this_process())
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let known: Vec<&str> = std::iter::once(CPU.0)
            .chain(GAUGES.map(|(name, ..)| name))
            .collect();
        assert_eq!(names, known);
    }
}
