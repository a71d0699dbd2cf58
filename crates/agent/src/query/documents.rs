//! The answers of the agent as JSON. `docs/agent-reference.md` describes them: fields are added, and never renamed or removed, as long as
//! `version` is the same.

use serde::{Deserialize, Serialize};

/// The version of the answers.
pub(crate) const VERSION: u32 = 1;

/// The answer to `/v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Status {
    pub(crate) version: u32,
    /// The version of the program.
    pub(crate) agent: String,
    pub(crate) pid: u32,
    pub(crate) node: String,
    pub(crate) mode: String,
    /// The inode of the network namespace.
    pub(crate) network_namespace: Option<u64>,
    /// `ok`, `waiting` or `failing`.
    pub(crate) state: String,
    /// What is awaited before the first sync.
    pub(crate) waiting_for: Option<String>,
    pub(crate) families: Vec<FamilyStatus>,
    pub(crate) services: usize,
    pub(crate) conflicts: usize,
    /// Services of which an operation failed and is tried again.
    pub(crate) failing_services: usize,
    pub(crate) node_eligible: Option<bool>,
    pub(crate) syncs: u64,
    pub(crate) failed_syncs: u64,
    /// The error of the last sync, if it did nothing.
    pub(crate) error: Option<String>,
    pub(crate) last_sync: Option<LastSync>,
    /// How long the oldest change waits that no sync has brought to the kernel.
    pub(crate) pending_seconds: Option<f64>,
    /// Objects whose operations failed and are tried again.
    pub(crate) waiting: Vec<Waiting>,
    /// The first of the operations that failed and are tried again.
    pub(crate) failing: Vec<Failing>,
    pub(crate) hand_over: Option<HandOver>,
    pub(crate) api_server: Option<ApiServer>,
    /// The last events, the oldest first.
    pub(crate) events: Vec<RecentEvent>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FamilyStatus {
    pub(crate) name: String,
    /// RFC 3339. `None`: none was successful.
    pub(crate) last_success: Option<String>,
    pub(crate) pending_seconds: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LastSync {
    /// RFC 3339.
    pub(crate) ended: String,
    pub(crate) age_seconds: f64,
    pub(crate) duration_seconds: f64,
    pub(crate) done: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Waiting {
    pub(crate) kind: String,
    pub(crate) family: Option<String>,
    pub(crate) objects: usize,
}

/// An operation that failed and is tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Failing {
    pub(crate) object: String,
    pub(crate) service: Option<String>,
    /// The first line of the operation.
    pub(crate) operation: String,
    pub(crate) reason: Option<String>,
    pub(crate) attempts: u32,
    /// The time since the first of these attempts.
    pub(crate) failing_seconds: u64,
    pub(crate) next_attempt_seconds: u64,
}

/// What another mode, or kube-proxy, left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HandOver {
    /// The modes whose objects the last sync removed.
    pub(crate) modes: Vec<String>,
    /// Endpoints that stay until their connections end.
    pub(crate) draining: usize,
    /// Operations that failed and are tried again.
    pub(crate) waiting: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ApiServer {
    /// `ok` or `stale`.
    pub(crate) state: String,
    /// The kinds of objects that cannot be read.
    pub(crate) stale: Vec<StaleKind>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StaleKind {
    pub(crate) kind: String,
    pub(crate) since: String,
    pub(crate) seconds: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RecentEvent {
    pub(crate) time: String,
    pub(crate) subject: String,
    pub(crate) text: String,
}

/// The answer to `/v1/services`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceList {
    pub(crate) version: u32,
    pub(crate) mode: String,
    pub(crate) frontends: Vec<FrontendRow>,
    /// If one Service was asked for: why it is not served.
    pub(crate) not_served: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FrontendRow {
    /// `10.96.0.1:80/TCP`.
    pub(crate) frontend: String,
    /// `cluster IP`, `node port`, `load-balancer IP` or `external IP`.
    pub(crate) kind: String,
    /// `namespace/name:port`, the one that is listed.
    pub(crate) service: String,
    /// The service port that owns the frontend.
    pub(crate) owner: String,
    /// `Cluster` or `Local`.
    pub(crate) policy: String,
    /// Whether everything that it needs is in the kernel, as last read or written.
    pub(crate) in_kernel: bool,
    pub(crate) endpoints_used: usize,
    pub(crate) endpoints_not_used: usize,
    /// Those that are used, `10.0.0.1:8080`. `None`: they were not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoints: Option<Vec<String>>,
}

/// The answer to `/v1/explain`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Explanation {
    pub(crate) version: u32,
    pub(crate) mode: String,
    /// `10.96.0.1:80/TCP`.
    pub(crate) frontend: String,
    pub(crate) from: Option<String>,
    /// `served`, `not served` or `unknown`.
    pub(crate) verdict: String,
    /// Why it is not served, or not known.
    pub(crate) causes: Vec<String>,
    /// What else an operator should know.
    pub(crate) notes: Vec<String>,
    pub(crate) owner: Option<Owner>,
    /// Who else defines the frontend; at most 20.
    pub(crate) conflicts: Vec<Contender>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) unused_slices: Vec<UnusedSlice>,
    /// What happens to a new connection, step by step.
    pub(crate) steps: Vec<String>,
    pub(crate) kernel_objects: Vec<Object>,
    pub(crate) failing: Vec<Failing>,
    /// The events about the Service that apply now, and the last ones about it.
    pub(crate) events: Vec<RecentEvent>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Owner {
    /// `namespace/name:port`.
    pub(crate) service: String,
    pub(crate) kinds: Vec<String>,
    pub(crate) policy: String,
    pub(crate) affinity_seconds: Option<u64>,
    /// Empty: all sources are admitted.
    pub(crate) source_ranges: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Contender {
    pub(crate) service: String,
    pub(crate) kind: String,
    pub(crate) reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Endpoint {
    /// `10.0.0.1:8080`.
    pub(crate) endpoint: String,
    pub(crate) node: Option<String>,
    pub(crate) zone: Option<String>,
    pub(crate) used: bool,
    /// Why it is not used, for programs.
    pub(crate) reason: Option<String>,
    /// The same for people.
    pub(crate) text: Option<String>,
    pub(crate) weight: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct UnusedSlice {
    pub(crate) slice: String,
    pub(crate) endpoints: usize,
    pub(crate) text: String,
}

/// An object of the kernel in the notation of its tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Object {
    pub(crate) desired: String,
    /// `same`, `different`, `missing`, `unknown` or `not read`.
    pub(crate) state: String,
    /// As it was found, or why it could not be read.
    pub(crate) found: Option<String>,
}

/// The answer to `/v1/log-level`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LogLevel {
    pub(crate) version: u32,
    /// The level, and those of modules, separated by commas.
    pub(crate) filter: String,
    pub(crate) configured: String,
    /// The time until the log returns to the configured level. `None`: it does not.
    pub(crate) seconds_left: Option<u64>,
}

/// The answer to `/v1/support`: what no other answer has, for `kernlink-agent support-bundle`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Support {
    pub(crate) version: u32,
    /// The version of the program, with its commit.
    pub(crate) agent: String,
    /// A `KubeProxyConfiguration`.
    pub(crate) configuration: serde_json::Value,
    /// The flags of the command line that have values.
    pub(crate) flags: std::collections::BTreeMap<String, String>,
    /// The events that are kept, the oldest first.
    pub(crate) events: Vec<RecentEvent>,
    /// The page of metrics. `None`: it cannot be made.
    pub(crate) metrics: Option<String>,
}

/// What the agent answers instead if a request is invalid or cannot be answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Problem {
    pub(crate) version: u32,
    pub(crate) error: String,
}
