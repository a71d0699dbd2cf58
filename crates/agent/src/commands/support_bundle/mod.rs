//! `kernlink-agent support-bundle`: one archive for an issue. It has what the agent answers and what the node has of kernlink and kube-proxy, and no
//! secrets.
//!
//! | module | what it does |
//! | --- | --- |
//! | `archive` | the file: mode, names, what is missing in it |
//! | `partial` | the file while it is not complete; it does not stay after an error or a signal |
//! | `redaction` | what is removed from texts |
//! | `secrets` | the credentials of this node, which are searched and removed |
//! | `kernel_objects` | tables, chains, sets, virtual servers |
//! | `node` | kernel, sysctls, modules, tools |

mod archive;
mod kernel_objects;
mod node;
mod partial;
mod redaction;
mod secrets;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use clap::Args;
use hyper::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use self::archive::{Archive, Target};
use self::partial::Partial;
use self::redaction::Redaction;
use super::client::{self, Failed};
use super::{Socket, duration};
use crate::exit::Exit;
use crate::flags::Flags;
use crate::modes::{Config, Mode};
use crate::query::documents::Support;
use crate::query::worker::NotRead;
use crate::settings::Settings;
use crate::{preflight, print, version};

/// The number of attempts to get an answer for which a sync must have ended. Each takes up to 0.7 seconds.
const ATTEMPTS: u32 = 30;
/// The time between these attempts.
const PAUSE: Duration = Duration::from_millis(300);

/// What is collected, and where it is written.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The archive, which must not exist, or - for standard output; default: kernlink-support-TIME.tar.gz in the current folder
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    overwrite: bool,
    /// Do without the report of preflight, which reads the API server and needs the memory of another agent
    #[arg(long)]
    without_preflight: bool,
    /// The longest time of the report of preflight, 1s to 24h, such as 10m; after it the archive is completed without the report
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    preflight_timeout: Duration,
    #[command(flatten)]
    socket: Socket,
    /// Flags of the agent, for its configuration and the report of preflight; default: those of the running agent
    #[arg(last = true, value_name = "FLAG")]
    flags: Vec<OsString>,
}

impl Arguments {
    /// Writes the archive.
    pub(super) fn run(self) -> ExitCode {
        match self.write() {
            Ok(()) => Exit::Success.into(),
            Err(Stopped { exit, problem }) => {
                print::text(&problem);
                exit.into()
            }
        }
    }

    fn write(self) -> Result<(), Stopped> {
        let now = SystemTime::now();
        let flags = match self.flags.is_empty() {
            true => None,
            false => Some(Flags::parse(self.flags.clone()).map_err(|error| Stopped {
                exit: Exit::Usage,
                problem: error.to_string(),
            })?),
        };
        let path = self.output.clone().unwrap_or_else(|| default_path(now));
        let partial = Partial::default();
        if !archive::is_standard_output(&path) {
            let waits = partial.remove_at_signals();
            waits.map_err(|error| Stopped::failure(format!("cannot wait for signals: {error}")))?;
        }
        // Before anything is collected: this takes long.
        let target = Target::open(&path, self.overwrite, &partial).map_err(Stopped::failure)?;
        let client = self.socket.client();
        let ask = |path: &str| match &client {
            Ok(client) => client.send(&Method::GET, path).map_err(|Failed(why)| why),
            Err(Failed(why)) => Err(why.clone()),
        };
        let support = ask("/v1/support").and_then(|body| parsed::<Support>(&body));
        let flags = flags.or_else(|| flags_of(support.as_ref().ok()?));
        let settings = match &flags {
            Some(flags) => Settings::new(flags).map_err(|error| error.to_string()),
            None => Err(
                "the flags of the agent are not known: it does not answer, and none follow `--`".to_owned(),
            ),
        };
        let known = secrets::of_node(flags.as_ref(), settings.as_ref().ok(), support.as_ref().ok());
        let redaction = Redaction::new(known);
        let mut archive = Archive::new(target, redaction, now);
        self.collect(&mut archive, ask, support, settings)?;
        let missing = archive.finish().map_err(Stopped::failure)?;
        let mut page = format!("written: {}", path.display());
        for (file, why) in missing {
            page.push_str(&format!("\nmissing: {file}: {why}"));
        }
        page.push_str("\nSecrets were removed. Read it before you publish it: it has names and addresses of this cluster.");
        // Standard output may be the archive.
        print::notice(&page);
        Ok(())
    }

    fn collect(
        &self,
        archive: &mut Archive,
        ask: impl Fn(&str) -> Result<Vec<u8>, String>,
        support: Result<Support, String>,
        settings: Result<Settings, String>,
    ) -> Result<(), Stopped> {
        let running = support
            .as_ref()
            .map_or("it does not answer", |support| support.agent.as_str());
        let versions = format!("this program: {}\nrunning agent: {running}\n", version::TEXT);
        archive
            .text("version.txt", Ok(versions))
            .map_err(Stopped::failure)?;
        let status = ask("/v1/status");
        let services = unless_in_sync(|| ask("/v1/services"), || thread::sleep(PAUSE));
        for (file, answer) in [("status.json", status), ("services.json", services)] {
            let answer = answer.and_then(|body| parsed::<Value>(&body));
            archive.json(file, answer).map_err(Stopped::failure)?;
        }
        let of_agent = |field: &dyn Fn(&Support) -> Value| match &support {
            Ok(support) => Ok(field(support)),
            Err(why) => Err(why.clone()),
        };
        let events = of_agent(&|support: &Support| json!(support.events));
        archive.json("events.json", events).map_err(Stopped::failure)?;
        let flags = of_agent(&|support: &Support| json!(support.flags));
        archive.json("flags.json", flags).map_err(Stopped::failure)?;
        // Without an agent, the one that its flags lead to.
        let configuration = of_agent(&|support: &Support| support.configuration.clone());
        let configuration = configuration.or_else(|why| match &settings {
            Ok(settings) => Ok(print::configuration_value(&settings.file)),
            Err(_) => Err(why),
        });
        archive
            .json("configuration.json", configuration)
            .map_err(Stopped::failure)?;
        let metrics = support.and_then(|support| {
            support
                .metrics
                .ok_or_else(|| "the agent cannot make it".to_owned())
        });
        archive.text("metrics.txt", metrics).map_err(Stopped::failure)?;
        for (file, text) in node::files() {
            archive.text(file, text).map_err(Stopped::failure)?;
        }
        let config = match &settings {
            Ok(settings) => settings.config.clone(),
            Err(_) => Config::new(Mode::Ipvs, ""),
        };
        for (file, text) in kernel_objects::files(&config) {
            archive.text(file, text).map_err(Stopped::failure)?;
        }
        let report = match self.without_preflight {
            true => Err("--without-preflight".to_owned()),
            false => settings.and_then(|settings| preflight_report(settings, self.preflight_timeout)),
        };
        archive.json("preflight.json", report).map_err(Stopped::failure)
    }
}

/// Why there is no archive.
struct Stopped {
    exit: Exit,
    problem: String,
}

impl Stopped {
    fn failure(problem: String) -> Self {
        Self {
            exit: Exit::Failure,
            problem,
        }
    }
}

fn default_path(now: SystemTime) -> PathBuf {
    let time = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
    PathBuf::from(format!(
        "kernlink-support-{}.tar.gz",
        time.strftime("%Y%m%dT%H%M%SZ")
    ))
}

fn parsed<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    client::parse(body).map_err(|Failed(why)| why)
}

/// Asks, and asks again after a pause while the agent cannot answer because a sync is in progress, up to a number of times.
fn unless_in_sync(ask: impl Fn() -> Result<Vec<u8>, String>, pause: impl Fn()) -> Result<Vec<u8>, String> {
    let mut answer = ask();
    for _ in 1..ATTEMPTS {
        if !matches!(&answer, Err(why) if why == NotRead::Syncing.text()) {
            break;
        }
        pause();
        answer = ask();
    }
    answer
}

/// The flags of the running agent. `None`: they are of another version.
fn flags_of(support: &Support) -> Option<Flags> {
    Flags::parse(arguments(&support.flags)).ok()
}

/// The command line with these flags.
fn arguments(flags: &BTreeMap<String, String>) -> Vec<OsString> {
    let arguments = flags
        .iter()
        .filter_map(|(name, value)| match (name.as_str(), value.as_str()) {
            // They have no value on the command line.
            ("in-cluster" | "all-nodes", "true") => Some(format!("--{name}")),
            ("in-cluster" | "all-nodes", _) => None,
            // That of the configuration file may be greater than the flag allows.
            ("v", value) if value.parse::<u8>().is_err() => None,
            _ => Some(format!("--{name}={value}")),
        });
    arguments.map(OsString::from).collect()
}

/// The report of preflight. The API server may keep it waiting, so it has a thread of its own, which ends with this process at the latest.
fn preflight_report(settings: Settings, timeout: Duration) -> Result<Value, String> {
    let (sender, report) = mpsc::channel();
    let thread = thread::Builder::new().spawn(move || {
        let report = preflight::examine_as_json(&settings);
        let _ = sender.send(report.map_err(|error| error.to_string()));
    });
    thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    match report.recv_timeout(timeout) {
        Ok(report) => report,
        Err(mpsc::RecvTimeoutError::Timeout) => Err(format!(
            "not complete after {} seconds; --preflight-timeout allows more",
            timeout.as_secs()
        )),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err("its thread ended".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How often is asked, and the last answer, if a question has this problem at first.
    fn asked(problem: &str, syncs: u32) -> (u32, Result<Vec<u8>, String>) {
        let (attempts, pauses) = (Cell::new(0), Cell::new(0));
        let ask = || {
            attempts.set(attempts.get() + 1);
            if attempts.get() <= syncs {
                Err(problem.to_owned())
            } else {
                Ok(b"{}".to_vec())
            }
        };
        let answer = unless_in_sync(ask, || pauses.set(pauses.get() + 1));
        assert_eq!(pauses.get() + 1, attempts.get());
        (attempts.get(), answer)
    }

    #[test]
    fn an_agent_in_a_sync_is_asked_again() {
        let syncing = NotRead::Syncing.text();
        assert_eq!(asked(syncing, 0), (1, Ok(b"{}".to_vec())));
        assert_eq!(asked(syncing, 2), (3, Ok(b"{}".to_vec())));
        assert_eq!(asked(syncing, 1_000), (ATTEMPTS, Err(syncing.to_owned())));
        for other in [NotRead::NotStarted.text(), "no agent listens"] {
            assert_eq!(asked(other, 1), (1, Err(other.to_owned())));
        }
    }

    #[test]
    fn the_flags_of_an_agent_are_its_command_line() {
        for line in [
            "--watch /m --node-name a --proxy-mode nftables --masquerade-all --zone z",
            "--kubeconfig /k --in-cluster --all-nodes --socket none --nodeport-addresses 192.0.2.0/24,fd00::/64 --v 4",
            "--watch /m --node-name a --hostname-override b --masquerade-all=True",
            "--watch /m --node-ip= --node-ip 192.0.2.1",
            "--watch /m --iptables-localhost-nodeports=false --ip-families ipv6 --service-annotations=",
        ] {
            let flags = Flags::parse(line.split(' ').map(OsString::from)).unwrap();
            let again = Flags::parse(arguments(&flags.given.0)).unwrap();
            assert_eq!(again.given, flags.given, "{line}");
            let overrides = |flags: &Flags| -> BTreeMap<_, _> {
                let given = flags.overrides.0.iter();
                given.map(|(flag, value)| (flag.name, value.clone())).collect()
            };
            assert_eq!(overrides(&again), overrides(&flags), "{line}");
            assert_eq!(again.node_ips.concat(), flags.node_ips.concat(), "{line}");
        }
    }
}
