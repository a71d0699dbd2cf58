//! What a preflight found, as JSON. `docs/agent-reference.md` describes it: fields are added, and never renamed or removed, as long as
//! `version` is the same.

use serde::Serialize;

/// What a preflight found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    pub(crate) version: u32,
    /// The version of the program.
    pub(crate) agent: String,
    pub(crate) node: String,
    pub(crate) mode: String,
    pub(crate) families: Vec<String>,
    /// As `uname -r` prints it.
    pub(crate) kernel: String,
    /// The inode of the network namespace.
    pub(crate) network_namespace: Option<u64>,
    pub(crate) readiness: Readiness,
    pub(crate) checks: Vec<Check>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) modules: Vec<Module>,
    pub(crate) sysctls: Vec<Sysctl>,
    pub(crate) found: Vec<Found>,
    /// `None`: there is no plan, because the sources or the kernel cannot be read.
    pub(crate) plan: Option<Plan>,
    pub(crate) interrupted: Vec<String>,
    /// Events about Services and other objects, at most [`EVENTS`](super::EVENTS).
    pub(crate) events: Vec<String>,
}

/// Whether the agent can serve the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) enum Readiness {
    #[serde(rename = "ready")]
    Ready,
    #[serde(rename = "not ready")]
    NotReady,
    #[default]
    #[serde(rename = "unknown")]
    Unknown,
}

impl Readiness {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Readiness::Ready => "ready",
            Readiness::NotReady => "not ready",
            Readiness::Unknown => "unknown",
        }
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Ok,
    /// To be read; it does not prevent the agent from serving the node.
    Note,
    /// It could not be read.
    Unknown,
    Failure,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Note => "note",
            Outcome::Unknown => "unknown",
            Outcome::Failure => "failure",
        }
    }
}

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Check {
    pub(crate) check: &'static str,
    pub(crate) result: Outcome,
    pub(crate) text: String,
}

/// A tool that the mode starts, or that shows its objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tool {
    pub(crate) tool: &'static str,
    /// As it prints it. `None`: it is not installed.
    pub(crate) version: Option<String>,
    pub(crate) needed: bool,
}

/// A kernel module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Module {
    pub(crate) module: &'static str,
    /// `loaded`, also if it is built in; `installed`: the kernel loads it when it is used; `missing`; `unknown`.
    pub(crate) state: &'static str,
}

/// A sysctl that would be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sysctl {
    pub(crate) name: String,
    /// `None`: it cannot be read, or does not exist yet.
    pub(crate) now: Option<String>,
    pub(crate) then: String,
}

/// What the kernel has of a mode, of kube-proxy or of kernlink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Found {
    pub(crate) mode: &'static str,
    /// The mode in texts, such as `IPVS mode`.
    #[serde(skip)]
    pub(crate) title: &'static str,
    /// Whether Services are served in this mode. `None`: it cannot be read.
    pub(crate) serves: Option<bool>,
    /// The number of commands that remove it once the configured mode serves. `None` for the configured mode, which continues with what
    /// is there, and without a plan.
    pub(crate) removal: Option<usize>,
    /// The first of these commands, without their input.
    pub(crate) first_commands: Vec<String>,
}

/// What a sync would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    pub(crate) services: usize,
    pub(crate) frontends: usize,
    pub(crate) steps: usize,
    pub(crate) by_kind: Vec<Steps>,
}

/// The steps for the objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Steps {
    pub(crate) kind: &'static str,
    /// `None`: all families.
    pub(crate) family: Option<String>,
    pub(crate) steps: usize,
}
