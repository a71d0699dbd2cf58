//! Partial objects from those of [`k8s_openapi`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use k8s_openapi::api::discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    ClientIpConfig, Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, Label,
    LoadBalancerIngress, LoadBalancerStatus, Metadata, Named, Node, NodeAddress, NodeSpec, NodeStatus,
    Service, ServicePort, ServiceSpec, ServiceStatus, SessionAffinityConfig, Taint,
};

impl From<&ObjectMeta> for Metadata {
    fn from(object: &ObjectMeta) -> Self {
        Self {
            name: object.name.clone(),
            namespace: object.namespace.clone(),
            resource_version: object.resource_version.clone(),
            creation_timestamp: object.creation_timestamp.as_ref().map(|time| time.0.into()),
            deletion_timestamp: object.deletion_timestamp.as_ref().map(|time| time.0.into()),
            labels: labels(object.labels.as_ref()),
            annotations: labels(object.annotations.as_ref()),
        }
    }
}

fn labels(texts: Option<&BTreeMap<String, String>>) -> Vec<Label> {
    let texts = texts.into_iter().flatten();
    let used = texts.filter(|(name, _)| Label::is_used(name));
    used.map(|(name, value)| Label::new(name.clone(), value.clone()))
        .collect()
}

impl From<&v1::Service> for Service {
    fn from(object: &v1::Service) -> Self {
        Self {
            metadata: Some((&object.metadata).into()),
            spec: object.spec.as_ref().map(Into::into),
            status: object.status.as_ref().map(|status| ServiceStatus {
                load_balancer: status.load_balancer.as_ref().map(|status| LoadBalancerStatus {
                    ingress: each(status.ingress.as_deref(), |ingress| LoadBalancerIngress {
                        ip: ingress.ip.clone(),
                        ip_mode: ingress.ip_mode.clone(),
                    }),
                }),
            }),
        }
    }
}

impl From<&v1::ServiceSpec> for ServiceSpec {
    fn from(spec: &v1::ServiceSpec) -> Self {
        let config = spec.session_affinity_config.as_ref();
        Self {
            ports: each(spec.ports.as_deref(), |port| ServicePort {
                name: port.name.clone(),
                protocol: port.protocol.clone(),
                port: Some(port.port),
                node_port: port.node_port,
            }),
            cluster_ip: spec.cluster_ip.clone(),
            cluster_ips: spec.cluster_ips.clone().unwrap_or_default(),
            type_: spec.type_.clone(),
            external_ips: spec.external_ips.clone().unwrap_or_default(),
            session_affinity: spec.session_affinity.clone(),
            load_balancer_source_ranges: spec.load_balancer_source_ranges.clone().unwrap_or_default(),
            external_traffic_policy: spec.external_traffic_policy.clone(),
            health_check_node_port: spec.health_check_node_port,
            session_affinity_config: config.map(|config| SessionAffinityConfig {
                client_ip: config.client_ip.as_ref().map(|config| ClientIpConfig {
                    timeout_seconds: config.timeout_seconds,
                }),
            }),
            ip_families: spec.ip_families.clone().unwrap_or_default(),
            internal_traffic_policy: spec.internal_traffic_policy.clone(),
        }
    }
}

impl From<&discovery::v1::EndpointSlice> for EndpointSlice {
    fn from(object: &discovery::v1::EndpointSlice) -> Self {
        Self {
            metadata: Some((&object.metadata).into()),
            endpoints: each(Some(object.endpoints.items()), |endpoint| endpoint.into()),
            ports: each(object.ports.as_deref(), |port| EndpointPort {
                name: port.name.clone(),
                protocol: port.protocol.clone(),
                port: port.port,
            }),
            address_type: Some(object.address_type.clone()),
        }
    }
}

impl From<&discovery::v1::Endpoint> for Endpoint {
    fn from(object: &discovery::v1::Endpoint) -> Self {
        let named = |name: &String| Named {
            name: Some(name.clone()),
        };
        Self {
            addresses: object.addresses.clone(),
            conditions: object.conditions.as_ref().map(|conditions| EndpointConditions {
                ready: conditions.ready,
                serving: conditions.serving,
                terminating: conditions.terminating,
            }),
            node_name: object.node_name.clone(),
            zone: object.zone.clone(),
            hints: object.hints.as_ref().map(|hints| EndpointHints {
                for_zones: each(hints.for_zones.as_deref(), |zone| named(&zone.name)),
                for_nodes: each(hints.for_nodes.as_deref(), |node| named(&node.name)),
            }),
        }
    }
}

impl From<&v1::Node> for Node {
    fn from(object: &v1::Node) -> Self {
        Self {
            metadata: Some((&object.metadata).into()),
            spec: object.spec.as_ref().map(|spec| NodeSpec {
                pod_cidr: spec.pod_cidr.clone(),
                pod_cidrs: spec.pod_cidrs.clone().unwrap_or_default(),
                taints: each(spec.taints.as_deref(), |taint| Taint {
                    key: Some(taint.key.clone()),
                }),
            }),
            status: object.status.as_ref().map(|status| NodeStatus {
                addresses: each(status.addresses.as_deref(), |address| NodeAddress {
                    type_: Some(address.type_.clone()),
                    address: Some(address.address.clone()),
                }),
            }),
        }
    }
}

fn each<A, T>(list: Option<&[A]>, convert: impl FnMut(&A) -> T) -> Vec<T> {
    list.unwrap_or_default().iter().map(convert).collect()
}

/// A list whose type depends on the Kubernetes version: `endpoints` of a slice is optional from 1.36 on.
trait List<T> {
    fn items(&self) -> &[T];
}

impl<T> List<T> for Vec<T> {
    fn items(&self) -> &[T] {
        self
    }
}

impl<T> List<T> for Option<Vec<T>> {
    fn items(&self) -> &[T] {
        self.as_deref().unwrap_or_default()
    }
}
