//! Lists and watches in protobuf, compared with the same ones in JSON. The messages are those of `k8s-pb`, which are generated from the files of
//! Kubernetes, with all fields.
#![cfg(feature = "watch")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test reports the reason by panicking"
)]

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_pb::api::core::v1 as core;
use k8s_pb::api::discovery::v1 as discovery;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::runtime;
use kernlink_kubernetes::Converter;
use kernlink_kubernetes::kernlink_services::{Change, Kind, ObjectChange, ObjectName};
use kernlink_kubernetes::watch::protobuf::{Frames, read_event, read_page, read_status};
use kernlink_kubernetes::watch::{self, Event, Item, Page};
use proptest::prelude::*;
use prost::Message;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};
use serde_json::{Value, json};

/// The envelope of an object.
fn envelope(kind: &str, raw: Vec<u8>) -> Vec<u8> {
    let unknown = runtime::Unknown {
        type_meta: Some(runtime::TypeMeta {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
        }),
        raw: Some(raw),
        content_encoding: Some(String::new()),
        content_type: Some(String::new()),
    };
    [b"k8s\0", &*unknown.encode_to_vec()].concat()
}

/// A list of objects as they are encoded.
fn list(kind: Kind, items: &[Vec<u8>]) -> Bytes {
    let metadata = meta::ListMeta {
        resource_version: Some("1024".to_owned()),
        r#continue: Some("abc".to_owned()),
        self_link: Some(String::new()),
        remaining_item_count: Some(7),
    };
    let mut raw = Vec::new();
    prost::encoding::message::encode(1, &metadata, &mut raw);
    for item in items {
        prost::encoding::bytes::encode(2, item, &mut raw);
    }
    envelope(&format!("{kind}List"), raw).into()
}

fn frame(event: &str, object: Vec<u8>) -> Bytes {
    let event = meta::WatchEvent {
        r#type: Some(event.to_owned()),
        object: Some(runtime::RawExtension { raw: Some(object) }),
    };
    event.encode_to_vec().into()
}

fn page(kind: Kind, items: &[Vec<u8>]) -> Page {
    read_page(kind, list(kind, items), &mut Converter::new()).unwrap()
}

fn page_of_json(kind: Kind, items: &[Value]) -> Page {
    let list = json!({
        "kind": format!("{kind}List"),
        "metadata": {"resourceVersion": "1024", "continue": "abc"},
        "items": items,
    });
    watch::read_page(kind, list.to_string().as_bytes(), &mut Converter::new()).unwrap()
}

/// A text that a field may have, or any other one, also an empty one.
fn text(valid: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop_oneof![
        8 => prop::sample::select(valid).prop_map(str::to_owned),
        1 => Just(String::new()),
        1 => "\\PC{0,9}",
    ])
}

fn texts(valid: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(valid).prop_map(Option::unwrap_or_default), 0..3)
}

fn number() -> impl Strategy<Value = Option<i32>> {
    prop::option::of(prop_oneof![
        6 => prop::sample::select(&[0, 1, 80, 443, 30080, 65535][..]),
        1 => any::<i32>(),
    ])
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    let names = &[
        "kubernetes.io/service-name",
        "service.kubernetes.io/headless",
        "service.kubernetes.io/topology-mode",
        "kernlink.io/scheduler",
        "topology.kubernetes.io/zone",
        "endpoints.kubernetes.io/last-change-trigger-time",
        "team",
        "kubectl.kubernetes.io/last-applied-configuration",
    ][..];
    let value = text(&["web", "Auto", "z1", "2026-01-01T00:00:00.25Z"]).prop_map(Option::unwrap_or_default);
    prop::collection::btree_map(prop::sample::select(names).prop_map(str::to_owned), value, 0..5)
}

/// The times that an API server may store. One without seconds is the time 0 of Go.
fn time() -> impl Strategy<Value = Option<meta::Time>> {
    prop::option::of(prop_oneof![
        (0_i64..4_000_000_000).prop_map(|seconds| meta::Time {
            seconds: Some(seconds),
            nanos: Some(0)
        }),
        Just(meta::Time {
            seconds: None,
            nanos: None
        }),
    ])
}

fn metadata() -> impl Strategy<Value = Option<meta::ObjectMeta>> {
    let metadata = (
        text(&["web", "db"]),
        text(&["shop", "default"]),
        time(),
        time(),
        labels(),
        labels(),
    );
    let metadata =
        metadata.prop_map(
            |(name, namespace, created, deleted, labels, annotations)| meta::ObjectMeta {
                name,
                namespace,
                generate_name: Some("web-".to_owned()),
                self_link: Some(String::new()),
                uid: Some("6d1f".to_owned()),
                resource_version: Some("17".to_owned()),
                generation: Some(3),
                creation_timestamp: created,
                deletion_timestamp: deleted,
                labels,
                annotations,
                finalizers: vec!["service.kubernetes.io/load-balancer-cleanup".to_owned()],
                owner_references: vec![meta::OwnerReference {
                    name: Some("owner".to_owned()),
                    ..Default::default()
                }],
                managed_fields: vec![meta::ManagedFieldsEntry {
                    manager: Some("m".to_owned()),
                    ..Default::default()
                }],
                ..Default::default()
            },
        );
    prop_oneof![9 => metadata.prop_map(Some), 1 => Just(None)]
}

fn metadata_json(metadata: Option<&meta::ObjectMeta>) -> Value {
    let Some(metadata) = metadata else {
        return Value::Null;
    };
    let time = |time: &Option<meta::Time>| {
        let seconds = time.as_ref()?.seconds?;
        let time = kernlink_kubernetes::k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap();
        Some(time.to_string())
    };
    json!({
        "name": metadata.name, "namespace": metadata.namespace, "uid": "6d1f", "resourceVersion": "17",
        "creationTimestamp": time(&metadata.creation_timestamp), "deletionTimestamp": time(&metadata.deletion_timestamp),
        "labels": metadata.labels, "annotations": metadata.annotations,
    })
}

fn service() -> impl Strategy<Value = core::Service> {
    let protocol = &["TCP", "UDP", "SCTP"];
    let port = (text(&["http", "dns"]), text(protocol), number(), number());
    let port = port.prop_map(|(name, protocol, port, node_port)| core::ServicePort {
        name,
        protocol,
        port,
        node_port,
        app_protocol: Some("h2c".to_owned()),
        ..Default::default()
    });
    let policy = || text(&["Cluster", "Local"]);
    let affinity = prop::option::of(prop::option::of(number()));
    let affinity = affinity.prop_map(|config| {
        config.map(|client| core::SessionAffinityConfig {
            client_ip: client.map(|timeout_seconds| core::ClientIpConfig { timeout_seconds }),
        })
    });
    let addresses = || text(&["10.96.0.10", "fd00::10", "None"]);
    let first = (
        prop::collection::vec(port, 0..3),
        addresses(),
        texts(&["10.96.0.10", "fd00::10"]),
        text(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]),
        texts(&["192.0.2.9"]),
        text(&["None", "ClientIP"]),
        texts(&["198.51.100.0/24"]),
    );
    let second = (policy(), number(), affinity, texts(&["IPv4", "IPv6"]), policy());
    let spec = (first, second).prop_map(|(first, second)| core::ServiceSpec {
        ports: first.0,
        cluster_ip: first.1,
        cluster_ips: first.2,
        r#type: first.3,
        external_ips: first.4,
        session_affinity: first.5,
        load_balancer_source_ranges: first.6,
        external_traffic_policy: second.0,
        health_check_node_port: second.1,
        session_affinity_config: second.2,
        ip_families: second.3,
        internal_traffic_policy: second.4,
        selector: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
        load_balancer_ip: Some("192.0.2.66".to_owned()),
        external_name: Some("example.org".to_owned()),
        publish_not_ready_addresses: Some(true),
        ip_family_policy: Some("SingleStack".to_owned()),
        allocate_load_balancer_node_ports: Some(true),
        load_balancer_class: Some("x/y".to_owned()),
        traffic_distribution: Some("PreferClose".to_owned()),
    });
    let ingress =
        (text(&["192.0.2.1"]), text(&["VIP", "Proxy"])).prop_map(|(ip, ip_mode)| core::LoadBalancerIngress {
            ip,
            ip_mode,
            hostname: Some("example.org".to_owned()),
            ports: vec![core::PortStatus {
                port: Some(80),
                ..Default::default()
            }],
        });
    let status =
        prop::option::of(prop::collection::vec(ingress, 0..3)).prop_map(|ingress| core::ServiceStatus {
            load_balancer: ingress.map(|ingress| core::LoadBalancerStatus { ingress }),
            conditions: vec![meta::Condition::default()],
        });
    (metadata(), prop::option::of(spec), prop::option::of(status)).prop_map(|(metadata, spec, status)| {
        core::Service {
            metadata,
            spec,
            status,
        }
    })
}

fn service_json(service: &core::Service) -> Value {
    let spec = service.spec.as_ref().map(|spec| {
        let ports = spec.ports.iter().map(|port| {
            json!({"name": port.name, "protocol": port.protocol, "port": port.port, "nodePort": port.node_port})
        });
        let config = spec.session_affinity_config.as_ref().map(|config| {
            json!({"clientIP": config.client_ip.as_ref().map(|client| json!({"timeoutSeconds": client.timeout_seconds}))})
        });
        json!({
            "ports": ports.collect::<Vec<_>>(), "clusterIP": spec.cluster_ip, "clusterIPs": spec.cluster_ips,
            "type": spec.r#type, "externalIPs": spec.external_ips, "sessionAffinity": spec.session_affinity,
            "loadBalancerSourceRanges": spec.load_balancer_source_ranges, "externalTrafficPolicy": spec.external_traffic_policy,
            "healthCheckNodePort": spec.health_check_node_port, "sessionAffinityConfig": config,
            "ipFamilies": spec.ip_families, "internalTrafficPolicy": spec.internal_traffic_policy,
        })
    });
    let status = service.status.as_ref().map(|status| {
        let load_balancer = status.load_balancer.as_ref().map(|status| {
            let ingress = status
                .ingress
                .iter()
                .map(|ingress| json!({"ip": ingress.ip, "ipMode": ingress.ip_mode}));
            json!({"ingress": ingress.collect::<Vec<_>>()})
        });
        json!({"loadBalancer": load_balancer})
    });
    json!({"metadata": metadata_json(service.metadata.as_ref()), "spec": spec, "status": status})
}

fn slice() -> impl Strategy<Value = discovery::EndpointSlice> {
    let condition = || prop::option::of(any::<bool>());
    let conditions = (condition(), condition(), condition());
    let conditions = conditions.prop_map(|(ready, serving, terminating)| discovery::EndpointConditions {
        ready,
        serving,
        terminating,
    });
    let hints = (texts(&["z1", "z2"]), texts(&["n1"])).prop_map(|(zones, nodes)| discovery::EndpointHints {
        for_zones: zones
            .into_iter()
            .map(|name| discovery::ForZone { name: Some(name) })
            .collect(),
        for_nodes: nodes
            .into_iter()
            .map(|name| discovery::ForNode { name: Some(name) })
            .collect(),
    });
    let endpoint = (
        texts(&["10.244.0.5", "10.244.0.6", "fd00:1::5"]),
        prop::option::of(conditions),
        text(&["n1", "n2"]),
        text(&["z1"]),
        prop::option::of(hints),
    );
    let endpoint = endpoint.prop_map(
        |(addresses, conditions, node_name, zone, hints)| discovery::Endpoint {
            addresses,
            conditions,
            node_name,
            zone,
            hints,
            hostname: Some("web-0".to_owned()),
            target_ref: Some(core::ObjectReference {
                name: Some("web-0".to_owned()),
                ..Default::default()
            }),
            deprecated_topology: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        },
    );
    let port = (text(&["http"]), text(&["TCP", "UDP", "SCTP"]), number());
    let port = port.prop_map(|(name, protocol, port)| discovery::EndpointPort {
        name,
        protocol,
        port,
        app_protocol: Some("h2c".to_owned()),
    });
    let parts = (
        metadata(),
        text(&["IPv4", "IPv6", "FQDN"]),
        prop::collection::vec(endpoint, 0..4),
        prop::collection::vec(port, 0..3),
    );
    parts.prop_map(
        |(metadata, address_type, endpoints, ports)| discovery::EndpointSlice {
            metadata,
            address_type,
            endpoints,
            ports,
        },
    )
}

fn slice_json(slice: &discovery::EndpointSlice) -> Value {
    let endpoints = slice.endpoints.iter().map(|endpoint| {
        let conditions = endpoint.conditions.as_ref().map(|conditions| {
            json!({"ready": conditions.ready, "serving": conditions.serving, "terminating": conditions.terminating})
        });
        let hints = endpoint.hints.as_ref().map(|hints| {
            let zones: Vec<Value> = hints.for_zones.iter().map(|zone| json!({"name": zone.name})).collect();
            let nodes: Vec<Value> = hints.for_nodes.iter().map(|node| json!({"name": node.name})).collect();
            json!({"forZones": zones, "forNodes": nodes})
        });
        json!({
            "addresses": endpoint.addresses, "conditions": conditions, "nodeName": endpoint.node_name,
            "zone": endpoint.zone, "hints": hints,
        })
    });
    let ports = slice.ports.iter();
    let ports = ports.map(|port| json!({"name": port.name, "protocol": port.protocol, "port": port.port}));
    json!({
        "metadata": metadata_json(slice.metadata.as_ref()), "addressType": slice.address_type,
        "endpoints": endpoints.collect::<Vec<_>>(), "ports": ports.collect::<Vec<_>>(),
    })
}

fn node() -> impl Strategy<Value = core::Node> {
    let taint = text(&["ToBeDeletedByClusterAutoscaler", "other"]).prop_map(|key| core::Taint {
        key,
        value: Some("x".to_owned()),
        ..Default::default()
    });
    let spec = (
        text(&["10.244.1.0/24"]),
        texts(&["10.244.1.0/24", "fd00::/64"]),
        prop::collection::vec(taint, 0..2),
    );
    let spec = spec.prop_map(|(pod_cidr, pod_cid_rs, taints)| core::NodeSpec {
        pod_cidr,
        pod_cid_rs,
        taints,
        provider_id: Some("aws:///i".to_owned()),
        unschedulable: Some(true),
        external_id: Some("e".to_owned()),
        ..Default::default()
    });
    let address = (
        text(&["InternalIP", "ExternalIP", "Hostname"]),
        text(&["192.0.2.1", "2001:db8::1"]),
    );
    let address = address.prop_map(|(r#type, address)| core::NodeAddress { r#type, address });
    let status = prop::collection::vec(address, 0..3).prop_map(|addresses| core::NodeStatus {
        addresses,
        phase: Some("Running".to_owned()),
        volumes_in_use: vec!["v".to_owned()],
        conditions: vec![core::NodeCondition {
            reason: Some("x".to_owned()),
            ..Default::default()
        }],
        images: vec![core::ContainerImage {
            names: vec!["i".to_owned()],
            size_bytes: Some(5),
        }],
        ..Default::default()
    });
    (metadata(), prop::option::of(spec), prop::option::of(status)).prop_map(|(metadata, spec, status)| {
        core::Node {
            metadata,
            spec,
            status,
        }
    })
}

fn node_json(node: &core::Node) -> Value {
    let spec = node.spec.as_ref().map(|spec| {
        let taints: Vec<Value> = spec
            .taints
            .iter()
            .map(|taint| json!({"key": taint.key}))
            .collect();
        json!({"podCIDR": spec.pod_cidr, "podCIDRs": spec.pod_cid_rs, "taints": taints})
    });
    let status = node.status.as_ref().map(|status| {
        let addresses = status.addresses.iter();
        let addresses = addresses.map(|address| json!({"type": address.r#type, "address": address.address}));
        json!({"addresses": addresses.collect::<Vec<_>>()})
    });
    json!({"metadata": metadata_json(node.metadata.as_ref()), "spec": spec, "status": status})
}

/// A message, and the same object in JSON.
fn object() -> impl Strategy<Value = (Kind, Vec<u8>, Value)> {
    prop_oneof![
        service().prop_map(|object| (Kind::Service, object.encode_to_vec(), service_json(&object))),
        slice().prop_map(|object| (Kind::EndpointSlice, object.encode_to_vec(), slice_json(&object))),
        node().prop_map(|object| (Kind::Node, object.encode_to_vec(), node_json(&object))),
    ]
}

/// A message that is decoded.
struct Decoded {
    /// The numbers of the fields that are used.
    fields: &'static [u32],
    /// Those that are messages.
    messages: &'static [(u32, &'static Decoded)],
}

const fn decoded(fields: &'static [u32], messages: &'static [(u32, &'static Decoded)]) -> Decoded {
    Decoded { fields, messages }
}

const PAIR: Decoded = decoded(&[1, 2], &[]);
const NAME: Decoded = decoded(&[1], &[]);
const THREE: Decoded = decoded(&[1, 2, 3], &[]);
const METADATA: Decoded = decoded(
    &[1, 3, 6, 8, 9, 11, 12],
    &[(8, &PAIR), (9, &PAIR), (11, &PAIR), (12, &PAIR)],
);
const SERVICE_SPEC: Decoded = decoded(
    &[1, 3, 4, 5, 7, 9, 11, 12, 14, 18, 19, 22],
    &[
        (1, &decoded(&[1, 2, 3, 5], &[])),
        (14, &decoded(&[1], &[(1, &NAME)])),
    ],
);
const SERVICE_STATUS: Decoded = decoded(&[1], &[(1, &decoded(&[1], &[(1, &decoded(&[1, 3], &[]))]))]);
const SERVICE: Decoded = decoded(
    &[1, 2, 3],
    &[(1, &METADATA), (2, &SERVICE_SPEC), (3, &SERVICE_STATUS)],
);
const ENDPOINT: Decoded = decoded(
    &[1, 2, 6, 7, 8],
    &[(2, &THREE), (8, &decoded(&[1, 2], &[(1, &NAME), (2, &NAME)]))],
);
const ENDPOINT_SLICE: Decoded = decoded(&[1, 2, 3, 4], &[(1, &METADATA), (2, &ENDPOINT), (3, &THREE)]);
const NODE: Decoded = decoded(
    &[1, 2, 3],
    &[
        (1, &METADATA),
        (2, &decoded(&[1, 5, 7], &[(5, &NAME)])),
        (3, &decoded(&[5], &[(5, &PAIR)])),
    ],
);

/// A message without the fields that are not used. With a wire type, each of them, and one of a later version, has content of that type.
fn with_unused(message: &[u8], decoded: &Decoded, content: Option<WireType>) -> Vec<u8> {
    let mut rest = message;
    let mut result = Vec::new();
    while !rest.is_empty() {
        let field = rest;
        let (number, wire_type) = decode_key(&mut rest).unwrap();
        let nested = decoded.messages.iter().find(|(nested, _)| *nested == number);
        if let Some((_, nested)) = nested {
            let length = decode_varint(&mut rest).unwrap().try_into().unwrap();
            let (inner, after) = rest.split_at(length);
            rest = after;
            prost::encoding::bytes::encode(number, &with_unused(inner, nested, content), &mut result);
            continue;
        }
        skip_field(wire_type, number, &mut rest, DecodeContext::default()).unwrap();
        if decoded.fields.contains(&number) {
            result.extend_from_slice(&field[..field.len() - rest.len()]);
        }
    }
    let unused = (1..=40)
        .chain([1_000])
        .filter(|number| !decoded.fields.contains(number));
    for (number, wire_type) in unused.filter_map(|number| Some((number, content?))) {
        encode_key(number, wire_type, &mut result);
        match wire_type {
            WireType::Varint => encode_varint(u64::MAX, &mut result),
            WireType::SixtyFourBit => result.extend([0xff; 8]),
            WireType::ThirtyTwoBit => result.extend([0xff; 4]),
            // Neither UTF-8 nor a message.
            WireType::LengthDelimited => result.extend([2, 0xff, 0xff]),
            WireType::StartGroup => encode_key(number, WireType::EndGroup, &mut result),
            WireType::EndGroup => panic!("not a field"),
        }
    }
    result
}

fn content() -> impl Strategy<Value = Option<WireType>> {
    prop::sample::select(vec![
        None,
        Some(WireType::Varint),
        Some(WireType::SixtyFourBit),
        Some(WireType::ThirtyTwoBit),
        Some(WireType::LengthDelimited),
        Some(WireType::StartGroup),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn equal_objects_are_equal_changes_in_json_and_protobuf((kind, message, json) in object()) {
        let expected = page_of_json(kind, std::slice::from_ref(&json));
        prop_assert_eq!(page(kind, std::slice::from_ref(&message)), expected);
        for event in ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"] {
            let line = json!({"type": event, "object": json}).to_string();
            let expected = watch::read_event(kind, line.as_bytes(), &mut Converter::new());
            let object = envelope(&kind.to_string(), message.clone());
            prop_assert_eq!(read_event(kind, frame(event, object), &mut Converter::new()), expected);
        }
    }

    #[test]
    fn fields_that_are_not_used_have_no_effect_without_content_and_with_any(
        (kind, message, json) in object(),
        content in content(),
    ) {
        let decoded = match kind {
            Kind::Service => &SERVICE,
            Kind::EndpointSlice => &ENDPOINT_SLICE,
            Kind::Node => &NODE,
        };
        let changed = with_unused(&message, decoded, content);
        prop_assert_eq!(page(kind, &[changed]), page_of_json(kind, &[json]));
    }

    #[test]
    fn a_message_that_is_damaged_does_not_affect_the_others(
        (kind, message, json) in object(),
        position in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let mut damaged = message.clone();
        if !damaged.is_empty() {
            let position = position.index(damaged.len());
            if cut { damaged.truncate(position) } else { damaged[position] = byte }
        }
        let expected = page_of_json(kind, &[json]);
        let page = page(kind, &[message.clone(), damaged, message]);
        prop_assert_eq!(&page.items[0], &expected.items[0]);
        prop_assert_eq!(&page.items[2], &expected.items[0]);
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200), has_magic in any::<bool>()) {
        let magic: &[u8] = if has_magic { b"k8s\0" } else { b"" };
        let bytes = Bytes::from([magic, &bytes].concat());
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            let _ = read_page(kind, bytes.clone(), &mut Converter::new());
            let _ = read_event(kind, bytes.clone(), &mut Converter::new());
        }
        let _ = read_status(500, bytes.clone());
        let mut frames = Frames::new();
        frames.push(&bytes);
        while let Ok(Some(_)) = frames.next_frame() {}
    }
}

/// An object with a name.
fn named(name: &str) -> Vec<u8> {
    let metadata = meta::ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("shop".to_owned()),
        resource_version: Some("17".to_owned()),
        ..Default::default()
    };
    let object = core::Service {
        metadata: Some(metadata),
        ..Default::default()
    };
    object.encode_to_vec()
}

#[test]
fn an_object_that_cannot_be_decoded_is_known_by_its_name() {
    // The field `spec`, of another wire type.
    let invalid = [named("web"), vec![0x10, 1]].concat();
    let page = page(Kind::Service, &[invalid.clone(), vec![0xff]]);
    let [item, unnamed] = &page.items[..] else {
        panic!("{page:?}");
    };
    assert_eq!(item.name, Some(ObjectName::new("shop", "web")));
    assert_eq!(item.change, None);
    assert!(item.errors[0].reason.contains("invalid wire type"), "{item:?}");
    assert_eq!(
        (&unnamed.name, &unnamed.change, unnamed.errors.len()),
        (&None, &None, 1)
    );
    let event = read_event(
        Kind::Service,
        frame("MODIFIED", envelope("Service", invalid)),
        &mut Converter::new(),
    );
    let Event::Item {
        item,
        resource_version,
    } = event.unwrap()
    else {
        panic!("not an object");
    };
    assert!(item.change.is_none());
    assert_eq!(resource_version, "17");
}

#[test]
fn a_text_that_is_not_utf_8_makes_the_object_invalid_only_if_it_is_used() {
    let metadata = |field: u32| {
        let mut metadata = Vec::new();
        prost::encoding::string::encode(1, &"web".to_owned(), &mut metadata);
        prost::encoding::bytes::encode(field, &vec![0xff_u8, 0xfe], &mut metadata);
        let mut object = Vec::new();
        prost::encoding::bytes::encode(1, &metadata, &mut object);
        page(Kind::Service, &[object]).items.remove(0)
    };
    // `generateName` and `uid`.
    assert!(metadata(2).change.is_some() && metadata(5).change.is_some());
    let Item { change, errors, .. } = metadata(3);
    assert!(
        change.is_none() && errors[0].reason.contains("UTF-8"),
        "{errors:?}"
    );
    // As in JSON: the API server replaces what is not UTF-8.
    let label = |value: &[u8]| {
        let mut entry = Vec::new();
        prost::encoding::bytes::encode(1, &b"kernlink.io/x".to_vec(), &mut entry);
        prost::encoding::bytes::encode(2, &value.to_vec(), &mut entry);
        entry
    };
    let mut metadata = Vec::new();
    prost::encoding::string::encode(1, &"web".to_owned(), &mut metadata);
    prost::encoding::bytes::encode(12, &label(b"a\xff"), &mut metadata);
    let mut object = Vec::new();
    prost::encoding::bytes::encode(1, &metadata, &mut object);
    let item = page(Kind::Service, &[object]).items.remove(0);
    let Some(Change::Services(ObjectChange::Upsert(service))) = item.change else {
        panic!("{item:?}");
    };
    assert_eq!(service.annotations["kernlink.io/x"], "a\u{fffd}");
}

#[test]
fn an_answer_of_another_form_is_an_error() {
    let read = |body: Vec<u8>| {
        read_page(Kind::Service, body.into(), &mut Converter::new())
            .unwrap_err()
            .reason
    };
    assert!(read(b"{\"kind\":\"ServiceList\"}".to_vec()).contains("does not begin with"));
    assert!(read(Vec::new()).contains("does not begin with"));
    let nodes = envelope("NodeList", Vec::new());
    assert_eq!(read(nodes), "kind \"NodeList\"; expected \"ServiceList\"");
    assert!(read(envelope("ServiceList", Vec::new())).contains("metadata.resourceVersion is missing"));
    let mut compressed = b"k8s\0".to_vec();
    prost::encoding::string::encode(3, &"gzip".to_owned(), &mut compressed);
    assert!(read(compressed).contains("contentEncoding \"gzip\""));
    let event = |event, object| read_event(Kind::Service, frame(event, object), &mut Converter::new());
    assert!(
        event("ADDED", named("web"))
            .unwrap_err()
            .reason
            .contains("does not begin with")
    );
    let reason = event("ADDED", envelope("Node", named("web"))).unwrap_err().reason;
    assert!(reason.contains("the kind \"Node\""), "{reason}");
    assert_eq!(event("OTHER", Vec::new()), Ok(Event::Unknown("OTHER".to_owned())));
}

#[test]
fn bookmarks_have_a_version_and_may_end_the_initial_list() {
    for (annotations, ends_initial_list) in [
        (BTreeMap::new(), false),
        (
            BTreeMap::from([("k8s.io/initial-events-end".to_owned(), "true".to_owned())]),
            true,
        ),
        (
            BTreeMap::from([("k8s.io/initial-events-end".to_owned(), "false".to_owned())]),
            false,
        ),
    ] {
        let metadata = meta::ObjectMeta {
            resource_version: Some("99".to_owned()),
            annotations,
            ..Default::default()
        };
        let node = core::Node {
            metadata: Some(metadata),
            ..Default::default()
        };
        let frame = frame("BOOKMARK", envelope("Node", node.encode_to_vec()));
        let expected = Event::Bookmark {
            resource_version: "99".to_owned(),
            ends_initial_list,
        };
        assert_eq!(read_event(Kind::Node, frame, &mut Converter::new()), Ok(expected));
    }
}

#[test]
fn a_status_is_that_of_the_body() {
    let status = meta::Status {
        status: Some("Failure".to_owned()),
        message: Some("too old resource version".to_owned()),
        reason: Some("Expired".to_owned()),
        code: Some(410),
        details: Some(meta::StatusDetails {
            causes: vec![meta::StatusCause {
                reason: Some("x".to_owned()),
                ..Default::default()
            }],
            retry_after_seconds: Some(3),
            ..Default::default()
        }),
        ..Default::default()
    };
    let body = envelope("Status", status.encode_to_vec());
    let json = json!({
        "kind": "Status", "status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410,
        "details": {"causes": [{"reason": "x"}], "retryAfterSeconds": 3},
    });
    let expected = watch::read_status(500, json.to_string().as_bytes());
    assert!(expected.needs_list());
    assert_eq!(read_status(500, body.clone().into()), expected);
    assert_eq!(
        read_event(Kind::Node, frame("ERROR", body), &mut Converter::new()),
        Ok(Event::Error(expected.clone()))
    );
    // What a proxy answers.
    assert_eq!(read_status(502, "Bad Gateway".into()).message, "Bad Gateway");
    assert_eq!(read_status(502, json.to_string().into()), expected);
    assert_eq!(
        read_status(503, envelope("Service", named("web")).into()).code,
        503
    );
}

#[test]
fn frames_are_complete_however_they_are_received_and_bounded() {
    let all = [
        b"\0\0\0\x03abc".to_vec(),
        b"\0\0\0\0".to_vec(),
        b"\0\0\x01\0".to_vec(),
        vec![7; 256],
        b"\0\0\0\x02x".to_vec(),
    ]
    .concat();
    let expected = [b"abc".to_vec(), Vec::new(), vec![7; 256]];
    for size in [1, 2, 3, 5, 100, all.len()] {
        let mut frames = Frames::new();
        let mut found = Vec::new();
        for part in all.chunks(size) {
            frames.push(part);
            while let Some(frame) = frames.next_frame().unwrap() {
                found.push(frame.to_vec());
            }
        }
        assert_eq!(found, expected, "{size}");
    }
    let mut frames = Frames::new();
    frames.push(&u32::MAX.to_be_bytes());
    assert!(
        frames
            .next_frame()
            .unwrap_err()
            .reason
            .contains("a frame of 4294967295 bytes")
    );
}

/// The files of a kind that kube-apiserver 1.36.3 sent: a list and the first events of a watch, both in JSON and in protobuf.
macro_rules! recorded {
    ($kind:literal) => {
        [
            &include_bytes!(concat!("protobuf/", $kind, ".list.json"))[..],
            include_bytes!(concat!("protobuf/", $kind, ".list.pb")),
            include_bytes!(concat!("protobuf/", $kind, ".watch.json")),
            include_bytes!(concat!("protobuf/", $kind, ".watch.pb")),
        ]
    };
}

#[test]
fn what_an_api_server_sent_is_equal_in_json_and_protobuf() {
    for (kind, count, [list_json, list, watch_json, watch]) in [
        (Kind::Service, 3, recorded!("services")),
        (Kind::Node, 1, recorded!("nodes")),
        (Kind::EndpointSlice, 1, recorded!("endpointslices")),
    ] {
        let expected = watch::read_page(kind, list_json, &mut Converter::new()).unwrap();
        assert!(
            expected
                .items
                .iter()
                .all(|item| item.change.is_some() && item.errors.is_empty())
        );
        assert_eq!(expected.items.len(), count);
        let page = read_page(kind, Bytes::from_static(list), &mut Converter::new()).unwrap();
        assert_eq!(page, expected);

        let lines = watch_json
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let expected: Vec<Event> = lines
            .map(|line| watch::read_event(kind, line, &mut Converter::new()).unwrap())
            .collect();
        assert_eq!(expected.len(), count);
        let mut frames = Frames::new();
        frames.push(watch);
        let found = std::iter::from_fn(|| frames.next_frame().unwrap());
        let found: Vec<Event> = found
            .map(|frame| read_event(kind, frame, &mut Converter::new()).unwrap())
            .collect();
        assert_eq!(found, expected);
    }
    let status = read_status(0, Bytes::from_static(include_bytes!("protobuf/status.pb")));
    assert_eq!((status.code, &*status.reason), (400, "BadRequest"));
    assert_eq!(
        status,
        watch::read_status(0, include_bytes!("protobuf/status.json"))
    );
}
