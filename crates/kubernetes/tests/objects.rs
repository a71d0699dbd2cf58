//! Conversion of API objects.
#![cfg(feature = "objects")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test reports the reason by panicking"
)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kernlink_kubernetes::FieldError;
use kernlink_kubernetes::objects::Converter;
use kernlink_services::{
    AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, Family, Hints, Ingress, IngressMode,
    Node, NodeAddressType, ObjectName, Port, Protocol, Service, ServiceType, SessionAffinity, TrafficPolicy,
};

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn texts<const N: usize>(texts: [&str; N]) -> Option<Vec<String>> {
    Some(texts.map(str::to_owned).to_vec())
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: some(name),
        namespace: some("shop"),
        creation_timestamp: Some(Time("2026-01-01T00:00:00Z".parse().unwrap())),
        labels: Some(
            [
                ("kubernetes.io/service-name", "web"),
                ("topology.kubernetes.io/zone", "z1"),
                ("service.kubernetes.io/service-proxy-name", "other"),
                ("app", "web"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ),
        ..ObjectMeta::default()
    }
}

fn service() -> core::Service {
    core::Service {
        metadata: metadata("web"),
        spec: Some(core::ServiceSpec {
            type_: some("LoadBalancer"),
            cluster_ip: some("10.96.0.1"),
            cluster_ips: texts(["10.96.0.1", "fd00:96::1"]),
            ip_families: texts(["IPv4", "IPv6"]),
            external_ips: texts(["203.0.113.1"]),
            load_balancer_source_ranges: texts(["198.18.0.0/15"]),
            external_traffic_policy: some("Local"),
            internal_traffic_policy: some("Cluster"),
            health_check_node_port: Some(32_000),
            session_affinity: some("ClientIP"),
            session_affinity_config: Some(core::SessionAffinityConfig {
                client_ip: Some(core::ClientIPConfig {
                    timeout_seconds: Some(600),
                }),
            }),
            ports: Some(vec![
                core::ServicePort {
                    name: some("http"),
                    port: 80,
                    node_port: Some(30_080),
                    ..core::ServicePort::default()
                },
                core::ServicePort {
                    name: some("dns"),
                    protocol: some("UDP"),
                    port: 65_535,
                    ..core::ServicePort::default()
                },
            ]),
            ..core::ServiceSpec::default()
        }),
        status: Some(core::ServiceStatus {
            load_balancer: Some(core::LoadBalancerStatus {
                ingress: Some(vec![
                    core::LoadBalancerIngress {
                        ip: some("198.51.100.1"),
                        ip_mode: some("Proxy"),
                        ..core::LoadBalancerIngress::default()
                    },
                    core::LoadBalancerIngress {
                        hostname: some("lb.example"),
                        ..core::LoadBalancerIngress::default()
                    },
                ]),
            }),
            ..core::ServiceStatus::default()
        }),
    }
}

fn slice() -> discovery::EndpointSlice {
    discovery::EndpointSlice {
        metadata: metadata("web-x"),
        address_type: "IPv4".to_owned(),
        ports: Some(vec![discovery::EndpointPort {
            name: some("http"),
            port: Some(8_080),
            protocol: some("SCTP"),
            ..discovery::EndpointPort::default()
        }]),
        endpoints: Some(vec![endpoint("10.244.1.1"), endpoint("10.244.1.2")]),
    }
}

fn endpoint(address: &str) -> discovery::Endpoint {
    discovery::Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(discovery::EndpointConditions {
            ready: Some(false),
            serving: None,
            terminating: Some(true),
        }),
        node_name: some("node-a"),
        zone: some("z1"),
        hints: Some(discovery::EndpointHints {
            for_zones: Some(vec![discovery::ForZone {
                name: "z1".to_owned(),
            }]),
            for_nodes: None,
        }),
        ..discovery::Endpoint::default()
    }
}

fn address(address_type: &str, address: &str) -> core::NodeAddress {
    core::NodeAddress {
        type_: address_type.to_owned(),
        address: address.to_owned(),
    }
}

fn node() -> core::Node {
    core::Node {
        metadata: metadata("node-a"),
        spec: Some(core::NodeSpec {
            pod_cidr: some("10.244.1.0/24"),
            pod_cidrs: texts(["10.244.1.0/24", "fd00:244:1::/64"]),
            ..core::NodeSpec::default()
        }),
        status: Some(core::NodeStatus {
            addresses: Some(vec![
                address("Hostname", "node-a"),
                address("InternalIP", "192.0.2.1"),
                address("ExternalIP", "2001:db8::1"),
            ]),
            ..core::NodeStatus::default()
        }),
    }
}

fn lines(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn the_trigger_time_of_a_slice_is_read() {
    let trigger_time = |text: &str| {
        let mut slice = slice();
        let name = "endpoints.kubernetes.io/last-change-trigger-time".to_owned();
        slice.metadata.annotations = Some([(name, text.to_owned())].into());
        let converted = Converter::new().endpoint_slice(&slice);
        assert_eq!(converted.errors, []);
        converted.object.unwrap().trigger_time
    };
    let expected = SystemTime::UNIX_EPOCH + Duration::new(1_767_225_600, 123_456_789);
    assert_eq!(trigger_time("2026-01-01T00:00:00.123456789Z"), Some(expected));
    assert_eq!(
        trigger_time("2026-01-01T01:00:00.123456789+01:00"),
        Some(expected)
    );
    assert_eq!(trigger_time("yesterday"), None);
}

#[test]
fn a_node_that_is_deleted_or_removed_by_the_autoscaler_is_leaving() {
    let is_leaving = |node: &core::Node| {
        let converted = Converter::new().node(node);
        assert_eq!(converted.errors, []);
        converted.object.unwrap().is_leaving
    };
    assert!(!is_leaving(&node()));
    let mut deleted = node();
    deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
    assert!(deleted.metadata.deletion_timestamp.is_some());
    assert!(is_leaving(&deleted));
    let tainted = |key: &str| {
        let mut node = node();
        node.spec.as_mut().unwrap().taints = Some(vec![core::Taint {
            key: key.to_owned(),
            ..core::Taint::default()
        }]);
        is_leaving(&node)
    };
    assert!(tainted("ToBeDeletedByClusterAutoscaler"));
    assert!(!tainted("node.kubernetes.io/unreachable"));
}

#[test]
fn a_service_is_converted() {
    let converted = Converter::new().service(&service());
    assert_eq!(converted.errors, []);
    let mut expected = Service::new(ObjectName::new("shop", "web"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80).with_node_port(30_080))
        .with_port(Port::new("dns", 65_535).with_protocol(Protocol::Udp));
    expected.created = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600));
    // A service proxy does not use the others.
    let name = "service.kubernetes.io/service-proxy-name".to_owned();
    expected.labels = [(name, "other".to_owned())].into();
    expected.service_type = ServiceType::LoadBalancer;
    expected.cluster_ips = texts(["10.96.0.1", "fd00:96::1"]).unwrap();
    expected.ip_families = vec![Family::Ipv4, Family::Ipv6];
    expected.external_ips = texts(["203.0.113.1"]).unwrap();
    expected.load_balancer_source_ranges = texts(["198.18.0.0/15"]).unwrap();
    expected.external_traffic_policy = TrafficPolicy::Local;
    expected.health_check_node_port = 32_000;
    expected.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(600));
    expected.ingress = vec![
        Ingress {
            ip: "198.51.100.1".to_owned(),
            mode: IngressMode::Proxy,
        },
        Ingress::default(),
    ];
    assert_eq!(converted.object, Some(expected));
}

#[test]
fn a_slice_is_converted() {
    let converted = Converter::new().endpoint_slice(&slice());
    assert_eq!(converted.errors, []);
    let endpoint = |last| {
        let conditions = Conditions {
            ready: false,
            serving: true,
            terminating: true,
        };
        let hints = Hints {
            zones: vec!["z1".into()],
            nodes: vec![],
        };
        Endpoint::new([10, 244, 1, last].into())
            .with_conditions(conditions)
            .with_node("node-a")
            .with_zone("z1")
            .with_hints(hints)
    };
    let expected = EndpointSlice::new(ObjectName::new("shop", "web-x"), "web", Family::Ipv4)
        .with_port(EndpointPort::new("http", 8_080).with_protocol(Protocol::Sctp))
        .with_endpoint(endpoint(1))
        .with_endpoint(endpoint(2));
    assert_eq!(converted.object, Some(expected));
}

#[test]
fn a_node_is_converted() {
    let converted = Converter::new().node(&node());
    assert_eq!(converted.errors, []);
    let mut expected = Node::new("node-a")
        .with_zone("z1")
        .with_internal_address([192, 0, 2, 1].into())
        .with_internal_address("2001:db8::1".parse().unwrap())
        .with_pod_cidr("10.244.1.0/24".parse().unwrap())
        .with_pod_cidr("fd00:244:1::/64".parse().unwrap());
    expected.addresses[1].address_type = NodeAddressType::External;
    assert_eq!(converted.object, Some(expected));
    // The older field is used if the newer one is empty.
    let mut object = node();
    object.spec.as_mut().unwrap().pod_cidrs = Some(Vec::new());
    let node = Converter::new().node(&object).object.unwrap();
    assert_eq!(node.pod_cidrs, ["10.244.1.0/24".parse().unwrap()]);
}

#[test]
fn absent_fields_have_the_defaults_of_the_api_server() {
    let mut object = core::Service::default();
    object.metadata.name = some("web");
    object.spec = Some(core::ServiceSpec {
        session_affinity: some("ClientIP"),
        ports: Some(vec![core::ServicePort {
            port: 80,
            ..core::ServicePort::default()
        }]),
        ..core::ServiceSpec::default()
    });
    let service = Converter::new().service(&object).object.unwrap();
    let mut expected = Service::new(ObjectName::new("default", "web")).with_port(Port::new("", 80));
    expected.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(10_800));
    assert_eq!(service, expected);
    let mut object = slice();
    object.endpoints = Some(vec![discovery::Endpoint {
        addresses: vec!["10.244.1.1".to_owned()],
        ..discovery::Endpoint::default()
    }]);
    object.ports = Some(vec![discovery::EndpointPort::default()]);
    let slice = Converter::new().endpoint_slice(&object).object.unwrap();
    assert_eq!(slice.endpoints, [Endpoint::new([10, 244, 1, 1].into())]);
    let port = EndpointPort {
        name: None,
        protocol: Protocol::Tcp,
        port: 0,
    };
    assert_eq!(slice.ports, [port]);
}

#[test]
fn all_invalid_fields_of_a_service_are_reported() {
    let mut object = service();
    object.metadata.name = some("");
    let spec = object.spec.as_mut().unwrap();
    spec.type_ = some("Nodeport");
    spec.ip_families = texts(["IPv4", "ipv6"]);
    spec.external_traffic_policy = some("local");
    spec.internal_traffic_policy = some("Zone");
    spec.health_check_node_port = Some(-1);
    let config = spec.session_affinity_config.as_mut().unwrap();
    config.client_ip.as_mut().unwrap().timeout_seconds = Some(86_401);
    let ports = spec.ports.as_mut().unwrap();
    ports[0].port = 0;
    ports[0].node_port = Some(65_536);
    ports[1].protocol = some("ICMP");
    let status = object.status.as_mut().unwrap();
    let ingress = status.load_balancer.as_mut().unwrap().ingress.as_mut().unwrap();
    ingress[1].ip_mode = some("vip");
    let converted = Converter::new().service(&object);
    assert_eq!(converted.object, None);
    assert_eq!(
        lines(&converted.errors),
        [
            "metadata.name: must not be empty",
            "spec.type: \"Nodeport\" is not ClusterIP, NodePort, LoadBalancer or ExternalName; the default is used",
            "spec.ipFamilies[1]: \"ipv6\" is not IPv4 or IPv6; ignored",
            "spec.ports[0].port: 0 is not a port (1 to 65535)",
            "spec.ports[0].nodePort: 65536 is not a port (1 to 65535)",
            "spec.ports[1].protocol: \"ICMP\" is not TCP, UDP or SCTP; the port is ignored",
            "spec.externalTrafficPolicy: \"local\" is not Cluster or Local; the default is used",
            "spec.internalTrafficPolicy: \"Zone\" is not Cluster or Local; the default is used",
            "spec.healthCheckNodePort: -1 is not a port (1 to 65535)",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401 is not a number of seconds from 1 to 86400",
            "status.loadBalancer.ingress[1].ipMode: \"vip\" is not VIP or Proxy; the address is not served",
        ]
    );
}

#[test]
fn an_invalid_endpoint_does_not_affect_the_others() {
    let mut object = slice();
    let mut mapped = endpoint("::ffff:10.244.1.9");
    mapped.addresses.push("not used".to_owned());
    let long = "x".repeat(1_000);
    object.endpoints = Some(vec![
        endpoint("pod.example"),
        endpoint("10.244.1.1"),
        endpoint("fd00::1"),
        discovery::Endpoint::default(),
        mapped,
        endpoint(&long),
    ]);
    let converted = Converter::new().endpoint_slice(&object);
    assert_eq!(
        lines(&converted.errors),
        [
            "endpoints[0].addresses[0]: \"pod.example\" is not an IP address",
            "endpoints[2].addresses[0]: fd00::1 is not an IPv4 address",
            "endpoints[3].addresses: must not be empty",
            &format!(
                "endpoints[5].addresses[0]: \"{}\"… is not an IP address",
                "x".repeat(80)
            ),
        ]
    );
    let slice = converted.object.unwrap();
    let addresses: Vec<_> = slice
        .endpoints
        .iter()
        .map(|endpoint| endpoint.address.to_string())
        .collect();
    assert_eq!(addresses, ["10.244.1.1", "10.244.1.9"]);
    // An invalid field of the slice affects all of them.
    object.ports.as_mut().unwrap()[0].port = Some(70_000);
    object.metadata.name = None;
    let converted = Converter::new().endpoint_slice(&object);
    assert_eq!(converted.object, None);
    assert_eq!(
        lines(&converted.errors),
        [
            "metadata.name: is missing",
            "ports[0].port: 70000 is not a port (1 to 65535); the port is ignored",
        ]
    );
    object = self::slice();
    object.address_type = "FQDN".to_owned();
    let slice = Converter::new().endpoint_slice(&object).object.unwrap();
    assert_eq!(
        (slice.address_type, slice.endpoints.len()),
        (AddressType::Other, 0)
    );
}

/// The API server checks neither the number nor the sign.
#[test]
fn an_endpoint_port_that_is_out_of_range_does_not_affect_the_others() {
    let mut object = slice();
    let port = |name: &str, port| discovery::EndpointPort {
        name: Some(name.to_owned()),
        port: Some(port),
        ..Default::default()
    };
    object.ports = Some(vec![port("a", 70_000), port("b", 8080), port("c", -1)]);
    let converted = Converter::new().endpoint_slice(&object);
    let errors = [
        "ports[0].port: 70000 is not a port (1 to 65535); the port is ignored",
        "ports[2].port: -1 is not a port (1 to 65535); the port is ignored",
    ];
    assert_eq!(lines(&converted.errors), errors);
    let slice = converted.object.unwrap();
    let ports: Vec<_> = slice.ports.iter().map(|port| port.port).collect();
    assert_eq!(ports, [8080]);
    assert!(!slice.endpoints.is_empty());
}

#[test]
fn an_invalid_address_does_not_affect_the_node() {
    let mut object = node();
    object.spec.as_mut().unwrap().pod_cidrs = texts(["10.244.1.0", "fd00:244:1::/64"]);
    let addresses = object.status.as_mut().unwrap().addresses.as_mut().unwrap();
    addresses[1].address = "node-a.example".to_owned();
    let converted = Converter::new().node(&object);
    assert_eq!(
        lines(&converted.errors),
        [
            "spec.podCIDRs[0]: \"10.244.1.0\" is not a network such as 10.244.1.0/24",
            "status.addresses[1].address: \"node-a.example\" is not an IP address",
        ]
    );
    let node = converted.object.unwrap();
    assert_eq!(node.addresses.len(), 1);
    assert_eq!(node.pod_cidrs, ["fd00:244:1::/64".parse().unwrap()]);
    object.metadata.name = None;
    let converted = Converter::new().node(&object);
    assert_eq!(converted.object, None);
    assert_eq!(lines(&converted.errors), ["metadata.name: is missing"]);
}

#[test]
fn labels_and_annotations_that_a_service_proxy_does_not_use_are_not_converted() {
    let mut object = service();
    object.metadata.annotations = Some(
        [
            "kernlink.io/scheduler",
            "service.kubernetes.io/topology-mode",
            "kubernetes.io/x",
            "service.beta.kubernetes.io/x",
            "kubectl.kubernetes.io/last-applied-configuration",
            "notkernlink.io/x",
            "kernlink.io.example/x",
            "x",
        ]
        .map(|name| (name.to_owned(), String::new()))
        .into(),
    );
    let service = Converter::new().service(&object).object.unwrap();
    assert_eq!(
        service.annotations.keys().collect::<Vec<_>>(),
        ["kernlink.io/scheduler", "service.kubernetes.io/topology-mode"]
    );
}

#[test]
fn objects_of_one_converter_share_names() {
    let mut converter = Converter::new();
    let service = converter.service(&service()).object.unwrap();
    let slice = converter.endpoint_slice(&slice()).object.unwrap();
    let other = converter.endpoint_slice(&self::slice()).object.unwrap();
    assert!(Arc::ptr_eq(&service.name.namespace, &slice.name.namespace));
    assert!(Arc::ptr_eq(&service.name.name, slice.service.as_ref().unwrap()));
    let node = |slice: &EndpointSlice| slice.endpoints[0].node.clone().unwrap();
    assert!(Arc::ptr_eq(&node(&slice), &node(&other)));
}

mod used_fields {
    //! Only the fields that a service proxy uses affect an object.

    use kernlink_kubernetes::Converter;
    use kernlink_kubernetes::kernlink_services::{
        AddressType, Family, IngressMode, Protocol, ServiceType, SessionAffinity, TrafficPolicy,
    };
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn service() -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "labels": {}, "annotations": {"kernlink.io/scheduler": "rr"}},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}], "selector": {"app": "web"}},
            "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}},
        })
    }

    fn slice() -> Value {
        json!({
            "metadata": {"name": "web-x", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": ["10.244.0.1"], "conditions": {"ready": true}, "nodeName": "a"}],
        })
    }

    fn node() -> Value {
        json!({
            "metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "z"}},
            "spec": {"podCIDRs": ["10.244.0.0/24"], "taints": [{"key": "t"}]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
        })
    }

    #[test]
    fn a_service_with_a_condition_without_a_time_is_converted() {
        let mut object = service();
        let expected = Converter::new().service_from_json(object.clone()).object;
        assert!(expected.is_some());
        object["status"]["conditions"] = json!([{"type": "X", "status": "True", "reason": "r", "message": "", "lastTransitionTime": null}]);
        let converted = Converter::new().service_from_json(object);
        assert_eq!((converted.object, converted.errors), (expected, Vec::new()));
    }

    #[test]
    fn unknown_values_are_the_default_and_a_port_with_an_unknown_protocol_costs_that_port_only() {
        let mut object = service();
        object["spec"]["type"] = json!("ClusterMesh");
        object["spec"]["sessionAffinity"] = json!("Cookie");
        object["spec"]["internalTrafficPolicy"] = json!("Zone");
        object["spec"]["externalTrafficPolicy"] = json!("Zone");
        object["spec"]["ports"] =
            json!([{"name": "q", "port": 443, "protocol": "QUIC"}, {"name": "http", "port": 80}]);
        object["status"]["loadBalancer"]["ingress"][0]["ipMode"] = json!("Tunnel");
        let converted = Converter::new().service_from_json(object);
        let service = converted.object.unwrap();
        assert_eq!(service.service_type, ServiceType::ClusterIp);
        assert_eq!(service.session_affinity, SessionAffinity::None);
        assert_eq!(service.internal_traffic_policy, TrafficPolicy::Cluster);
        assert_eq!(service.external_traffic_policy, TrafficPolicy::Cluster);
        // kube-proxy serves the address of a load balancer only if the mode is VIP, or missing.
        assert_eq!(service.ingress[0].mode, IngressMode::Proxy);
        let ports: Vec<(u16, Protocol)> = service
            .ports
            .iter()
            .map(|port| (port.port, port.protocol))
            .collect();
        assert_eq!(ports, [(80, Protocol::Tcp)]);
        let fields: Vec<&str> = converted.errors.iter().map(|error| &*error.field).collect();
        assert_eq!(
            fields,
            [
                "spec.type",
                "spec.ports[0].protocol",
                "spec.externalTrafficPolicy",
                "spec.internalTrafficPolicy",
                "spec.sessionAffinity",
                "status.loadBalancer.ingress[0].ipMode",
            ]
        );

        let mut object = slice();
        object["ports"] =
            json!([{"name": "q", "port": 8443, "protocol": "QUIC"}, {"name": "http", "port": 8080}]);
        let converted = Converter::new().endpoint_slice_from_json(object);
        let slice = converted.object.unwrap();
        assert_eq!((slice.ports.len(), slice.endpoints.len()), (1, 1));
        assert_eq!(converted.errors.len(), 1);
    }

    #[test]
    fn an_unknown_family_leaves_the_other_families_their_cluster_ips() {
        let mut object = service();
        object["spec"]["ipFamilies"] = json!(["IPv8", "IPv6", "IPvX", "IPv4", "IPvZ"]);
        object["spec"]["clusterIPs"] = json!(["8:8", "fd00:96::1", "x", "10.96.0.1"]);
        let converted = Converter::new().service_from_json(object);
        let service = converted.object.unwrap();
        assert_eq!(service.ip_families, [Family::Ipv6, Family::Ipv4]);
        assert_eq!(service.cluster_ips, ["fd00:96::1", "10.96.0.1"]);
        let fields: Vec<&str> = converted.errors.iter().map(|error| &*error.field).collect();
        assert_eq!(
            fields,
            ["spec.ipFamilies[0]", "spec.ipFamilies[2]", "spec.ipFamilies[4]"]
        );
    }

    #[test]
    fn a_slice_of_an_unknown_address_type_has_no_endpoints_and_is_reported() {
        let mut object = slice();
        object["addressType"] = json!("IPv8");
        object["endpoints"] = json!([{"addresses": ["8:8"]}]);
        let converted = Converter::new().endpoint_slice_from_json(object);
        let slice = converted.object.unwrap();
        assert_eq!(
            (slice.address_type, slice.endpoints),
            (AddressType::Other, vec![])
        );
        let fields: Vec<&str> = converted.errors.iter().map(|error| &*error.field).collect();
        assert_eq!(fields, ["addressType"]);
    }

    /// A value of any type.
    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            Just(json!([null, 1, {"a": []}])),
            Just(json!({"a": null, "": [1]})),
        ]
    }

    /// Fields that no service proxy uses, in each of the objects. `~1` is a slash in a name.
    const UNUSED: [&[&str]; 3] = [
        &[
            "/status/conditions",
            "/status/unknown",
            "/status/loadBalancer/unknown",
            "/status/loadBalancer/ingress/0/hostname",
            "/status/loadBalancer/ingress/0/ports",
            "/spec/selector",
            "/spec/externalName",
            "/spec/trafficDistribution",
            "/spec/allocateLoadBalancerNodePorts",
            "/spec/ipFamilyPolicy",
            "/spec/ports/0/targetPort",
            "/spec/ports/0/appProtocol",
            "/spec/unknown",
            "/metadata/managedFields",
            "/metadata/ownerReferences",
            "/metadata/finalizers",
            "/metadata/uid",
            "/metadata/resourceVersion",
            "/metadata/generateName",
            "/metadata/annotations/service.beta.kubernetes.io~1x",
            "/metadata/deletionTimestamp",
            "/metadata/labels/team",
            "/metadata/annotations/example.com~1x",
            "/unknown",
        ],
        &[
            "/metadata/managedFields",
            "/metadata/ownerReferences",
            "/metadata/labels/team",
            "/ports/0/appProtocol",
            "/endpoints/0/targetRef",
            "/endpoints/0/hostname",
            "/endpoints/0/deprecatedTopology",
            "/endpoints/0/conditions/unknown",
            "/unknown",
        ],
        &[
            "/metadata/annotations",
            "/metadata/managedFields",
            "/metadata/labels/team",
            "/spec/unschedulable",
            "/spec/providerID",
            "/spec/taints/0/effect",
            "/spec/taints/0/timeAdded",
            "/status/conditions",
            "/status/capacity",
            "/status/images",
            "/status/nodeInfo",
            "/status/addresses/0/unknown",
            "/unknown",
        ],
    ];

    proptest! {
        #[test]
        fn nothing_in_a_field_that_is_not_used_affects_an_object(
            values in prop::collection::vec((0_usize..3, any::<prop::sample::Index>(), any_value()), 1..8),
        ) {
            let mut objects = [service(), slice(), node()];
            let read = |objects: &[Value; 3]| {
                let mut converter = Converter::new();
                let [service, slice, node] = objects.clone();
                (
                    converter.service_from_json(service),
                    converter.endpoint_slice_from_json(slice),
                    converter.node_from_json(node),
                )
            };
            let expected = read(&objects);
            prop_assert!(expected.0.object.is_some() && expected.1.object.is_some() && expected.2.object.is_some());
            for (which, index, value) in values {
                let path = UNUSED[which][index.index(UNUSED[which].len())];
                let (parent, field) = path.rsplit_once('/').unwrap();
                let parent = objects[which].pointer_mut(parent).unwrap();
                parent[field.replace("~1", "/")] = value;
            }
            prop_assert_eq!(read(&objects), expected);
        }
    }
}
