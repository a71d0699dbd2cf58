//! One reading after the other.

use std::time::{Duration, Instant};

use kernlink_base::ErrorChain;
use kernlink_proxier::host::{KernelSysctls, Sysctls};

use super::flows::{Flows, Found};
use super::reading::Reading;
use super::targets::{self, Served};
use super::virtual_servers::{self, VirtualServers};
use crate::commands::client::Client;
use crate::modes::Mode;

/// The time after which the agent is asked for its Services again: its answer is large, and its syncs wait for parts of it.
const SERVICES_INTERVAL: Duration = Duration::from_secs(10);

/// A reading may take this part of the time, at most: the pause after it is so many times as long.
const PAUSE_FACTOR: u32 = 9;

/// Where connections are counted.
#[derive(Debug)]
enum Source {
    Flows(Flows),
    VirtualServers(VirtualServers),
}

/// Reads the kernel, and the Services from the agent.
pub(super) struct Reader {
    /// `None`: the virtual servers of the kernel.
    client: Option<Client>,
    served: Served,
    asked: Instant,
    source: Source,
    last: Option<Instant>,
    counts_bytes: bool,
    most_flows: u32,
    /// Why the Services are those of an earlier answer.
    stale: Option<String>,
}

impl Source {
    fn new(has_agent: bool, mode: &str, most_flows: u32) -> Self {
        if !has_agent || mode == Mode::Ipvs.name() {
            Self::VirtualServers(VirtualServers::default())
        } else {
            Self::Flows(Flows::new(most_flows, mode == Mode::Userspace.name()))
        }
    }
}

impl Reader {
    /// Asks for the Services for the first time.
    ///
    /// # Errors
    /// If there is no answer, or the kernel has no virtual servers.
    pub(super) fn open(client: Option<Client>, most_flows: u32) -> Result<Self, String> {
        let served = ask(client.as_ref())?;
        let source = Source::new(client.is_some(), &served.mode, most_flows);
        Ok(Self {
            client,
            served,
            asked: Instant::now(),
            source,
            last: None,
            counts_bytes: false,
            most_flows,
            stale: None,
        })
    }

    /// Whether the kernel counted bytes at the last reading.
    pub(super) fn counts_bytes(&self) -> bool {
        self.counts_bytes
    }

    /// Reads everything once.
    pub(super) fn read(&mut self) -> Reading {
        if self.last.is_some() && self.asked.elapsed() >= SERVICES_INTERVAL {
            match ask(self.client.as_ref()) {
                Ok(served) => {
                    if served.mode != self.served.mode {
                        self.source = Source::new(self.client.is_some(), &served.mode, self.most_flows);
                    }
                    self.served = served;
                    self.stale = None;
                }
                Err(why) => self.stale = Some(why),
            }
            self.asked = Instant::now();
        }
        let stale = self.stale.iter();
        let mut notes: Vec<String> = stale
            .map(|why| format!("the Services are those of an earlier answer: {why}"))
            .collect();
        let begin = Instant::now();
        let (name, found) = match &mut self.source {
            Source::Flows(flows) => {
                // Without it the module is not loaded, and there is no flow.
                let has_bytes = sysctl("net.netfilter.nf_conntrack_acct", &mut notes).as_deref() == Some("1");
                self.counts_bytes = has_bytes;
                ("conntrack", flows.read(&self.served.targets, has_bytes))
            }
            Source::VirtualServers(servers) => {
                // Linux before 5.17 always sums its counters.
                let has_bytes = sysctl("net.ipv4.vs.run_estimation", &mut notes).as_deref() != Some("0");
                self.counts_bytes = has_bytes;
                ("ipvs", servers.read(&self.served.targets, has_bytes))
            }
        };
        let elapsed = self.last.replace(begin).map(|last| begin.duration_since(last));
        let Found { counted, notes: more } = found;
        let mode = self.client.is_some().then_some(self.served.mode.as_str());
        let counted = self.served.targets.iter().cloned().zip(counted);
        let mut reading = Reading::new(mode, name, elapsed, counted);
        notes.extend(more);
        reading.notes = notes;
        reading
    }
}

/// How long the reader waits after a reading of this duration.
pub(super) fn pause(interval: Duration, reading: Duration) -> Duration {
    interval.max(reading * PAUSE_FACTOR)
}

fn ask(client: Option<&Client>) -> Result<Served, String> {
    match client {
        Some(client) => targets::ask(client),
        None => Ok(Served {
            mode: Mode::Ipvs.name().to_owned(),
            targets: virtual_servers::all()?,
        }),
    }
}

/// A sysctl. What cannot be read is named in the notes.
fn sysctl(name: &str, notes: &mut Vec<String>) -> Option<String> {
    let value = KernelSysctls::open().and_then(|mut kernel| kernel.read(name));
    value.unwrap_or_else(|error| {
        notes.push(ErrorChain(&error).to_string());
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_take_a_tenth_of_the_time_at_most() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(seconds(2), Duration::from_millis(10)), seconds(2));
        assert_eq!(pause(seconds(2), seconds(1)), seconds(9));
    }
}
