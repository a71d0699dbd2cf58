//! What watchers requested, by the audit log of the API server.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Each list and watch of what watchers read: a list when it is answered, a watch when it begins, and both when they are refused.
const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [system:serviceaccount:kube-system:kernlink-agent]
  verbs: [list, watch]
- level: None
";

/// A log that an API server writes.
pub(super) struct Audit(PathBuf);

impl Audit {
    /// Writes the policy into a folder. Returns what the API server has to be started with, too.
    pub(super) fn new(folder: &Path, name: &str) -> (Self, [String; 2]) {
        let (policy, log) = (
            folder.join("audit.yaml"),
            folder.join(format!("audit-{name}.log")),
        );
        fs::write(&policy, POLICY).unwrap();
        let arguments = [
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
        ];
        (Self(log), arguments)
    }

    pub(super) fn read(&self) -> Requests {
        let mut requests = Requests::default();
        for line in fs::read_to_string(&self.0).unwrap().lines() {
            requests.add(&serde_json::from_str(line).unwrap());
        }
        requests
    }
}

/// Requests by their time.
#[derive(Default)]
pub(super) struct Requests {
    /// The times of lists that were answered, and of streamed lists that began, in milliseconds of the day.
    lists: Vec<u64>,
    watches: usize,
    /// Lists and watches that were refused.
    pub(super) refused: usize,
    /// The refused ones by code.
    codes: BTreeMap<u64, usize>,
}

impl Requests {
    fn add(&mut self, event: &Value) {
        let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
        let has_ended = event["stage"] == "ResponseComplete";
        let is_watch = event["verb"] == "watch";
        if code != 200 {
            // Zero: the server ended before it answered.
            if has_ended && code != 0 {
                self.refused += 1;
                *self.codes.entry(code).or_default() += 1;
            }
            return;
        }
        // A watch is counted when it begins.
        if has_ended == is_watch {
            return;
        }
        let path = event["requestURI"].as_str().unwrap();
        if is_watch && !path.contains("sendInitialEvents=true") {
            self.watches += 1;
        } else {
            let time = event["requestReceivedTimestamp"].as_str().unwrap();
            self.lists.push(milliseconds_of_the_day(time));
        }
    }

    /// Each page of a list is one.
    pub(super) fn lists(&self) -> usize {
        self.lists.len()
    }

    /// The most lists that were requested in a second.
    pub(super) fn most_in_a_second(&self) -> usize {
        let mut times = self.lists.clone();
        times.sort_unstable();
        let within =
            |(position, first): (usize, &u64)| times.partition_point(|time| *time < first + 1_000) - position;
        times.iter().enumerate().map(within).max().unwrap_or_default()
    }

    /// The seconds from the first list to the last one.
    pub(super) fn spread(&self) -> f64 {
        let (first, last) = (self.lists.iter().min(), self.lists.iter().max());
        let milliseconds = first
            .zip(last)
            .map_or(0, |(first, last)| u32::try_from(last - first).unwrap());
        f64::from(milliseconds) / 1e3
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lists, {} watches, {} refused",
            self.lists(),
            self.watches,
            self.refused
        )?;
        let codes = self
            .codes
            .iter()
            .map(|(code, number)| format!("; {code}: {number}"));
        f.write_str(&codes.collect::<String>())
    }
}

/// Of a time such as `2026-01-31T10:11:12.345678Z`.
fn milliseconds_of_the_day(time: &str) -> u64 {
    let (_, time) = time.split_once('T').unwrap();
    let time = time.trim_end_matches('Z');
    let parts: Vec<f64> = time.split(':').map(|part| part.parse().unwrap()).collect();
    let seconds = parts[0] * 3600.0 + parts[1] * 60.0 + parts[2];
    // Less than a day.
    (seconds * 1e3) as u64
}
