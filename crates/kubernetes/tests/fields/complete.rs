//! Objects in which every field of the API has a value, and each field that a service proxy uses another one than its default.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    Condition, FieldsV1, ManagedFieldsEntry, ObjectMeta, OwnerReference, Time,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn texts<const N: usize>(texts: [&str; N]) -> Option<Vec<String>> {
    Some(texts.map(str::to_owned).to_vec())
}

fn map<const N: usize>(entries: [(&str, &str); N]) -> Option<BTreeMap<String, String>> {
    let entries = entries.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Some(entries.into())
}

fn time() -> Time {
    Time("2026-01-01T00:00:00Z".parse().unwrap())
}

/// Labels and annotations have one of each that is used for the objects of some kind.
fn metadata(
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
) -> ObjectMeta {
    ObjectMeta {
        annotations,
        creation_timestamp: Some(time()),
        deletion_grace_period_seconds: Some(30),
        deletion_timestamp: Some(time()),
        finalizers: texts(["service.kubernetes.io/load-balancer-cleanup"]),
        generate_name: text("web-"),
        generation: Some(3),
        labels,
        managed_fields: Some(vec![ManagedFieldsEntry {
            api_version: text("v1"),
            fields_type: text("FieldsV1"),
            fields_v1: Some(FieldsV1(json!({"f:spec": {"f:ports": {".": {}}}}))),
            manager: text("kubectl"),
            operation: text("Update"),
            subresource: text("status"),
            time: Some(time()),
        }]),
        name: text("web"),
        namespace: text("shop"),
        owner_references: Some(vec![OwnerReference {
            api_version: "apps/v1".to_owned(),
            block_owner_deletion: Some(true),
            controller: Some(true),
            kind: "Deployment".to_owned(),
            name: "web".to_owned(),
            uid: "6d1f".to_owned(),
        }]),
        resource_version: text("17"),
        self_link: text("/api/v1/web"),
        uid: text("5c2e"),
    }
}

pub(crate) fn service() -> Value {
    let port = core::ServicePort {
        app_protocol: text("kubernetes.io/h2c"),
        name: text("dns"),
        node_port: Some(30_053),
        port: 53,
        protocol: text("UDP"),
        target_port: Some(IntOrString::String("dns".to_owned())),
    };
    let spec = core::ServiceSpec {
        allocate_load_balancer_node_ports: Some(true),
        cluster_ip: text("10.96.0.1"),
        cluster_ips: texts(["10.96.0.1", "fd00:96::1"]),
        external_ips: texts(["203.0.113.1"]),
        external_name: text("example.org"),
        external_traffic_policy: text("Local"),
        health_check_node_port: Some(32_000),
        internal_traffic_policy: text("Local"),
        ip_families: texts(["IPv4", "IPv6"]),
        ip_family_policy: text("RequireDualStack"),
        load_balancer_class: text("example.org/lb"),
        load_balancer_ip: text("192.0.2.66"),
        load_balancer_source_ranges: texts(["198.18.0.0/15"]),
        ports: Some(vec![port]),
        publish_not_ready_addresses: Some(true),
        selector: map([("app", "web")]),
        session_affinity: text("ClientIP"),
        session_affinity_config: Some(core::SessionAffinityConfig {
            client_ip: Some(core::ClientIPConfig {
                timeout_seconds: Some(600),
            }),
        }),
        traffic_distribution: text("PreferClose"),
        type_: text("LoadBalancer"),
    };
    let ingress = core::LoadBalancerIngress {
        hostname: text("lb.example.org"),
        ip: text("198.51.100.1"),
        ip_mode: text("Proxy"),
        ports: Some(vec![core::PortStatus {
            error: text("example.org/none"),
            port: 53,
            protocol: "UDP".to_owned(),
        }]),
    };
    let condition = Condition {
        last_transition_time: time(),
        message: "a text".to_owned(),
        observed_generation: Some(3),
        reason: "Reason".to_owned(),
        status: "True".to_owned(),
        type_: "LoadBalancerPortsError".to_owned(),
    };
    let object = core::Service {
        metadata: metadata(
            map([
                ("app", "web"),
                ("service.kubernetes.io/service-proxy-name", "other"),
            ]),
            map([
                ("example.org/note", "x"),
                ("kernlink.io/scheduler", "rr"),
                ("service.kubernetes.io/topology-mode", "Auto"),
            ]),
        ),
        spec: Some(spec),
        status: Some(core::ServiceStatus {
            conditions: Some(vec![condition]),
            load_balancer: Some(core::LoadBalancerStatus {
                ingress: Some(vec![ingress]),
            }),
        }),
    };
    serde_json::to_value(object).unwrap()
}

fn endpoint(address: &str) -> discovery::Endpoint {
    discovery::Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(discovery::EndpointConditions {
            ready: Some(false),
            serving: Some(false),
            terminating: Some(true),
        }),
        deprecated_topology: map([("topology.kubernetes.io/region", "r1")]),
        hints: Some(discovery::EndpointHints {
            for_nodes: Some(vec![discovery::ForNode {
                name: "node-a".to_owned(),
            }]),
            for_zones: Some(vec![discovery::ForZone {
                name: "z1".to_owned(),
            }]),
        }),
        hostname: text("web-0"),
        node_name: text("node-a"),
        target_ref: Some(core::ObjectReference {
            api_version: text("v1"),
            field_path: text("spec.containers{web}"),
            kind: text("Pod"),
            name: text("web-0"),
            namespace: text("shop"),
            resource_version: text("16"),
            uid: text("7a3b"),
        }),
        zone: text("z1"),
    }
}

pub(crate) fn endpoint_slice() -> Value {
    let object = discovery::EndpointSlice {
        address_type: "IPv4".to_owned(),
        endpoints: Some(vec![endpoint("10.244.1.1"), endpoint("10.244.1.2")]),
        metadata: metadata(
            map([
                ("app", "web"),
                ("kubernetes.io/service-name", "web"),
                ("service.kubernetes.io/headless", ""),
            ]),
            map([
                ("example.org/note", "x"),
                (
                    "endpoints.kubernetes.io/last-change-trigger-time",
                    "2026-01-01T00:00:00Z",
                ),
            ]),
        ),
        ports: Some(vec![discovery::EndpointPort {
            app_protocol: text("kubernetes.io/h2c"),
            name: text("dns"),
            port: Some(5_353),
            protocol: text("UDP"),
        }]),
    };
    serde_json::to_value(object).unwrap()
}

fn config_source() -> Option<core::NodeConfigSource> {
    Some(core::NodeConfigSource {
        config_map: Some(core::ConfigMapNodeConfigSource {
            kubelet_config_key: "kubelet".to_owned(),
            name: "config".to_owned(),
            namespace: "kube-system".to_owned(),
            resource_version: text("4"),
            uid: text("8c4d"),
        }),
    })
}

fn quantities() -> Option<BTreeMap<String, Quantity>> {
    Some([("memory".to_owned(), Quantity("8Gi".to_owned()))].into())
}

fn node_info() -> core::NodeSystemInfo {
    core::NodeSystemInfo {
        architecture: "amd64".to_owned(),
        boot_id: "b".to_owned(),
        container_runtime_version: "containerd://2.1".to_owned(),
        kernel_version: "6.12".to_owned(),
        kube_proxy_version: "v1.36.3".to_owned(),
        kubelet_version: "v1.36.3".to_owned(),
        machine_id: "m".to_owned(),
        operating_system: "linux".to_owned(),
        os_image: "Debian".to_owned(),
        running_in_user_namespace: Some(true),
        swap: Some(core::NodeSwapStatus { capacity: Some(1) }),
        system_uuid: "s".to_owned(),
    }
}

/// A Node that is being deleted.
pub(crate) fn node() -> Value {
    let address = |type_: &str, address: &str| core::NodeAddress {
        address: address.to_owned(),
        type_: type_.to_owned(),
    };
    let spec = core::NodeSpec {
        config_source: config_source(),
        external_id: text("e"),
        pod_cidr: text("10.244.1.0/24"),
        pod_cidrs: texts(["10.244.1.0/24", "fd00:244:1::/64"]),
        pod_preemption_policy: Some(core::NodePodPreemptionPolicy {
            disable_resize_preemption: texts(["example.org/owner"]),
        }),
        provider_id: text("example:///i"),
        taints: Some(vec![core::Taint {
            effect: "NoSchedule".to_owned(),
            key: "example.org/taint".to_owned(),
            time_added: Some(time()),
            value: text("v"),
        }]),
        unschedulable: Some(true),
    };
    let status = core::NodeStatus {
        addresses: Some(vec![
            address("InternalIP", "192.0.2.1"),
            address("ExternalIP", "2001:db8::1"),
        ]),
        allocatable: quantities(),
        capacity: quantities(),
        conditions: Some(vec![core::NodeCondition {
            last_heartbeat_time: Some(time()),
            last_transition_time: Some(time()),
            message: text("a text"),
            reason: text("Reason"),
            status: "True".to_owned(),
            type_: "Ready".to_owned(),
        }]),
        config: Some(core::NodeConfigStatus {
            active: config_source(),
            assigned: config_source(),
            error: text("a text"),
            last_known_good: config_source(),
        }),
        daemon_endpoints: Some(core::NodeDaemonEndpoints {
            kubelet_endpoint: Some(core::DaemonEndpoint { port: 10_250 }),
        }),
        declared_features: texts(["Feature"]),
        features: Some(core::NodeFeatures {
            supplemental_groups_policy: Some(true),
        }),
        images: Some(vec![core::ContainerImage {
            names: texts(["example.org/image:1"]),
            size_bytes: Some(5),
        }]),
        node_info: Some(node_info()),
        phase: text("Running"),
        runtime_handlers: Some(vec![core::NodeRuntimeHandler {
            features: Some(core::NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(true),
                user_namespaces: Some(true),
            }),
            name: text("runc"),
        }]),
        volumes_attached: Some(vec![core::AttachedVolume {
            device_path: "/dev/x".to_owned(),
            name: "v".to_owned(),
        }]),
        volumes_in_use: texts(["v"]),
    };
    let object = core::Node {
        metadata: metadata(
            map([("app", "web"), ("topology.kubernetes.io/zone", "z1")]),
            map([("example.org/note", "x")]),
        ),
        spec: Some(spec),
        status: Some(status),
    };
    serde_json::to_value(object).unwrap()
}
