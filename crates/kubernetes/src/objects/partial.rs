//! API objects with the fields that a service proxy uses, from JSON and from protobuf.
//!
//! A field that is not here is skipped in both encodings, with any content. The numbers of the fields are those of the messages in
//! [`core/v1`](https://github.com/kubernetes/api/blob/v0.36.3/core/v1/generated.proto),
//! [`discovery/v1`](https://github.com/kubernetes/api/blob/v0.36.3/discovery/v1/generated.proto) and
//! [`meta/v1`](https://github.com/kubernetes/apimachinery/blob/v0.36.3/pkg/apis/meta/v1/generated.proto). Go writes each field that is not
//! a pointer, also one that is empty: an empty text is an absent one.

mod json;
mod label;
mod time;
mod typed;

use prost::Message;
use serde::Deserialize;

pub(crate) use self::json::Object;
use self::json::{labels, list, object, objects, text_or_none, time};
pub(crate) use self::label::{Label, SERVICE_PREFIXES};
pub(crate) use self::time::Time;

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) namespace: Option<String>,
    /// Only the version of a watch: a value of another type is an absent one.
    #[prost(string, optional, tag = "6")]
    #[serde(deserialize_with = "text_or_none")]
    pub(crate) resource_version: Option<String>,
    #[prost(message, optional, tag = "8")]
    #[serde(deserialize_with = "time")]
    pub(crate) creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    #[serde(deserialize_with = "time")]
    pub(crate) deletion_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "11")]
    #[serde(deserialize_with = "labels")]
    pub(crate) labels: Vec<Label>,
    #[prost(message, repeated, tag = "12")]
    #[serde(deserialize_with = "labels")]
    pub(crate) annotations: Vec<Label>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Service {
    #[prost(message, optional, tag = "1")]
    #[serde(deserialize_with = "object")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    #[serde(deserialize_with = "object")]
    pub(crate) spec: Option<ServiceSpec>,
    #[prost(message, optional, tag = "3")]
    #[serde(deserialize_with = "object")]
    pub(crate) status: Option<ServiceStatus>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub(crate) ports: Vec<ServicePort>,
    #[prost(string, optional, tag = "3")]
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<String>,
    #[prost(string, repeated, tag = "18")]
    #[serde(rename = "clusterIPs", deserialize_with = "list")]
    pub(crate) cluster_ips: Vec<String>,
    #[prost(string, optional, tag = "4")]
    #[serde(rename = "type")]
    pub(crate) type_: Option<String>,
    #[prost(string, repeated, tag = "5")]
    #[serde(rename = "externalIPs", deserialize_with = "list")]
    pub(crate) external_ips: Vec<String>,
    #[prost(string, optional, tag = "7")]
    pub(crate) session_affinity: Option<String>,
    #[prost(string, repeated, tag = "9")]
    #[serde(deserialize_with = "list")]
    pub(crate) load_balancer_source_ranges: Vec<String>,
    #[prost(string, optional, tag = "11")]
    pub(crate) external_traffic_policy: Option<String>,
    #[prost(int32, optional, tag = "12")]
    pub(crate) health_check_node_port: Option<i32>,
    #[prost(message, optional, tag = "14")]
    #[serde(deserialize_with = "object")]
    pub(crate) session_affinity_config: Option<SessionAffinityConfig>,
    #[prost(string, repeated, tag = "19")]
    #[serde(deserialize_with = "list")]
    pub(crate) ip_families: Vec<String>,
    #[prost(string, optional, tag = "22")]
    pub(crate) internal_traffic_policy: Option<String>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServicePort {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) protocol: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(crate) port: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub(crate) node_port: Option<i32>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SessionAffinityConfig {
    #[prost(message, optional, tag = "1")]
    #[serde(rename = "clientIP", deserialize_with = "object")]
    pub(crate) client_ip: Option<ClientIpConfig>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientIpConfig {
    #[prost(int32, optional, tag = "1")]
    pub(crate) timeout_seconds: Option<i32>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceStatus {
    #[prost(message, optional, tag = "1")]
    #[serde(deserialize_with = "object")]
    pub(crate) load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoadBalancerStatus {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub(crate) ingress: Vec<LoadBalancerIngress>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoadBalancerIngress {
    #[prost(string, optional, tag = "1")]
    pub(crate) ip: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) ip_mode: Option<String>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EndpointSlice {
    #[prost(message, optional, tag = "1")]
    #[serde(deserialize_with = "object")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "objects")]
    pub(crate) endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    #[serde(deserialize_with = "objects")]
    pub(crate) ports: Vec<EndpointPort>,
    #[prost(string, optional, tag = "4")]
    pub(crate) address_type: Option<String>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "list")]
    pub(crate) addresses: Vec<String>,
    #[prost(message, optional, tag = "2")]
    #[serde(deserialize_with = "object")]
    pub(crate) conditions: Option<EndpointConditions>,
    #[prost(string, optional, tag = "6")]
    pub(crate) node_name: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub(crate) zone: Option<String>,
    #[prost(message, optional, tag = "8")]
    #[serde(deserialize_with = "object")]
    pub(crate) hints: Option<EndpointHints>,
}

#[derive(Clone, Copy, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EndpointConditions {
    #[prost(bool, optional, tag = "1")]
    pub(crate) ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    pub(crate) serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    pub(crate) terminating: Option<bool>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EndpointHints {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub(crate) for_zones: Vec<Named>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "objects")]
    pub(crate) for_nodes: Vec<Named>,
}

/// A zone or a node of a hint.
#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Named {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EndpointPort {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) protocol: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(crate) port: Option<i32>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Node {
    #[prost(message, optional, tag = "1")]
    #[serde(deserialize_with = "object")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    #[serde(deserialize_with = "object")]
    pub(crate) spec: Option<NodeSpec>,
    #[prost(message, optional, tag = "3")]
    #[serde(deserialize_with = "object")]
    pub(crate) status: Option<NodeStatus>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeSpec {
    #[prost(string, optional, tag = "1")]
    #[serde(rename = "podCIDR")]
    pub(crate) pod_cidr: Option<String>,
    #[prost(string, repeated, tag = "7")]
    #[serde(rename = "podCIDRs", deserialize_with = "list")]
    pub(crate) pod_cidrs: Vec<String>,
    #[prost(message, repeated, tag = "5")]
    #[serde(deserialize_with = "objects")]
    pub(crate) taints: Vec<Taint>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Taint {
    #[prost(string, optional, tag = "1")]
    pub(crate) key: Option<String>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    #[prost(message, repeated, tag = "5")]
    #[serde(deserialize_with = "objects")]
    pub(crate) addresses: Vec<NodeAddress>,
}

#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeAddress {
    #[prost(string, optional, tag = "1")]
    #[serde(rename = "type")]
    pub(crate) type_: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) address: Option<String>,
}
