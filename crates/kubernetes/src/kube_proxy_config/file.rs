//! The fields of the file as deserialized by serde, before validation.

use serde::{Deserialize, Deserializer};
use serde_ignored::Path;

use crate::deserialize::object_or_default;

/// A file. An empty one is an object without fields.
#[derive(Default)]
pub(super) struct File {
    pub(super) fields: Fields,
    /// The paths of the fields that are not in [`Fields`].
    pub(super) undeclared: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Fields {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) bind_address: Option<String>,
    pub(super) bind_address_hard_fail: Option<bool>,
    pub(super) healthz_bind_address: Option<String>,
    pub(super) metrics_bind_address: Option<String>,
    pub(super) hostname_override: Option<String>,
    #[serde(rename = "clusterCIDR")]
    pub(super) cluster_cidr: Option<String>,
    pub(super) detect_local_mode: Option<String>,
    #[serde(deserialize_with = "object_or_default")]
    pub(super) detect_local: DetectLocal,
    pub(super) node_port_addresses: Option<Vec<Option<String>>>,
    pub(super) service_proxy_name: Option<String>,
    pub(super) port_range: Option<String>,
    pub(super) udp_idle_timeout: Option<String>,
    #[serde(deserialize_with = "object_or_default")]
    pub(super) client_connection: ClientConnection,
    #[serde(deserialize_with = "object_or_default")]
    pub(super) ipvs: Ipvs,
    #[serde(deserialize_with = "object_or_default")]
    pub(super) iptables: Iptables,
    #[serde(deserialize_with = "object_or_default")]
    pub(super) nftables: Nftables,
    #[serde(deserialize_with = "object_or_default")]
    pub(super) conntrack: Conntrack,
    #[serde(deserialize_with = "object_or_default")]
    pub(super) logging: Logging,
    #[serde(deserialize_with = "object_or_default")]
    pub(super) kernlink: Kernlink,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Logging {
    pub(super) verbosity: Option<i64>,
}

/// The fields that kube-proxy does not have.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Kernlink {
    pub(super) service_annotations: Option<Vec<Option<String>>>,
    pub(super) service_annotation_namespaces: Option<Vec<Option<String>>>,
    pub(super) service_schedulers: Option<Vec<Option<String>>>,
    #[serde(rename = "ignoreExternalIPs")]
    pub(super) ignore_external_ips: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClientConnection {
    pub(super) kubeconfig: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DetectLocal {
    pub(super) bridge_interface: Option<String>,
    pub(super) interface_name_prefix: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Ipvs {
    pub(super) sync_period: Option<String>,
    pub(super) min_sync_period: Option<String>,
    pub(super) scheduler: Option<String>,
    #[serde(rename = "excludeCIDRs")]
    pub(super) exclude_cidrs: Option<Vec<Option<String>>>,
    #[serde(rename = "strictARP")]
    pub(super) strict_arp: Option<bool>,
    pub(super) tcp_timeout: Option<String>,
    pub(super) tcp_fin_timeout: Option<String>,
    pub(super) udp_timeout: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Iptables {
    pub(super) masquerade_bit: Option<i64>,
    pub(super) masquerade_all: Option<bool>,
    pub(super) localhost_node_ports: Option<bool>,
    pub(super) sync_period: Option<String>,
    pub(super) min_sync_period: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Nftables {
    pub(super) masquerade_bit: Option<i64>,
    pub(super) masquerade_all: Option<bool>,
    pub(super) sync_period: Option<String>,
    pub(super) min_sync_period: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Conntrack {
    pub(super) max_per_core: Option<i64>,
    pub(super) min: Option<i64>,
    pub(super) tcp_established_timeout: Option<String>,
    pub(super) tcp_close_wait_timeout: Option<String>,
    pub(super) tcp_be_liberal: Option<bool>,
    pub(super) udp_timeout: Option<String>,
    pub(super) udp_stream_timeout: Option<String>,
}

impl<'de> Deserialize<'de> for File {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut undeclared = Vec::new();
        let mut add = |path: Path<'_>| undeclared.push(field_path(&path));
        let fields = object_or_default(serde_ignored::Deserializer::new(deserializer, &mut add))?;
        Ok(Self { fields, undeclared })
    }
}

/// The path as in errors: `ipvs.scheduler`.
fn field_path(path: &Path<'_>) -> String {
    let below = |parent: &Path<'_>, name: String| match field_path(parent) {
        parent if parent.is_empty() || name.starts_with('[') => parent + &name,
        parent => format!("{parent}.{name}"),
    };
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => below(parent, format!("[{index}]")),
        Path::Map { parent, key } => below(parent, key.clone()),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            field_path(parent)
        }
    }
}
