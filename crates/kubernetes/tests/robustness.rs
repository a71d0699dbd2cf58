//! An invalid object does not affect other objects, and is reported.
#![cfg(feature = "manifest")]
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use kernlink_kubernetes::manifest::{Objects, read};
use kernlink_kubernetes::objects::Converter;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The number of objects of each kind.
const OBJECTS: usize = 4;
/// The number of the invalid object.
const INVALID: usize = 2;

fn service(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": format!("web-{number}"),
            "namespace": "shop",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"kernlink.io/scheduler": "wrr"},
            "labels": {"app": "web"},
        },
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": format!("10.96.0.{number}"),
            "clusterIPs": [format!("10.96.0.{number}"), format!("fd00:96::{number}")],
            "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": [format!("203.0.113.{number}")],
            "loadBalancerSourceRanges": ["198.18.0.0/15"],
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster",
            "healthCheckNodePort": 32_000 + number,
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30_000 + number}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": format!("198.51.100.{number}"), "ipMode": "VIP"}]}},
    })
}

fn slice(number: usize) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("web-{number}-x"),
            "namespace": "shop",
            "labels": {"kubernetes.io/service-name": format!("web-{number}")},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [{
            "addresses": [format!("10.244.1.{number}")],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "node-a",
            "zone": "z1",
            "hints": {"forZones": [{"name": "z1"}], "forNodes": [{"name": "node-a"}]},
        }],
    })
}

fn node(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": format!("node-{number}"), "labels": {"topology.kubernetes.io/zone": "z1"}},
        "spec": {"podCIDR": "10.244.2.0/24", "podCIDRs": ["10.244.2.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": format!("192.0.2.{}", 100 + number)}]},
    })
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn documents(items: &[Value]) -> String {
    items.iter().map(|object| format!("---\n{object}\n")).collect()
}

/// All objects, one of them replaced.
fn objects(make: fn(usize) -> Value, invalid: &Value) -> Vec<Value> {
    let kind = make(INVALID)["kind"].clone();
    let all = (0..OBJECTS).flat_map(|number| {
        [
            (number, service(number)),
            (number, slice(number)),
            (number, node(number)),
        ]
    });
    all.map(|(number, object)| {
        let is_invalid = number == INVALID && object["kind"] == kind;
        if is_invalid { invalid.clone() } else { object }
    })
    .collect()
}

/// The objects as text, without those of the number [`INVALID`].
fn others(objects: &Objects) -> Vec<String> {
    let is_other = |text: &String| {
        ["web-2", "node-2"]
            .iter()
            .all(|name| !text.contains(&format!("\"{name}")))
    };
    let services = objects.services.iter().map(|object| format!("{object:?}"));
    let slices = objects.endpoint_slices.iter().map(|object| format!("{object:?}"));
    let nodes = objects.nodes.iter().map(|object| format!("{object:?}"));
    services.chain(slices).chain(nodes).filter(is_other).collect()
}

/// Reads all objects, one of them invalid. The others must not change, every error must be about the invalid one, and if it is not read
/// it must be missing.
fn check(make: fn(usize) -> Value, invalid: &Value) -> Objects {
    let sound = read("f", &list(&objects(make, &make(INVALID))));
    assert_eq!(sound.errors, []);
    let items = objects(make, invalid);
    let of_list = read("f", &list(&items));
    let of_documents = read("f", &documents(&items));
    for read in [&of_list, &of_documents] {
        let kept = others(read);
        for object in others(&sound) {
            assert!(kept.contains(&object), "{invalid}: {object} is missing");
        }
        for error in &read.errors {
            for number in (0..OBJECTS).filter(|number| *number != INVALID) {
                let text = error.to_string();
                assert!(
                    !text.contains(&format!("-{number}:")) && !text.contains(&format!("-{number}-x:")),
                    "{invalid}: {text}"
                );
            }
        }
        let count = read.services.len() + read.endpoint_slices.len() + read.nodes.len();
        let other: usize = read.other.values().sum();
        assert_eq!(
            count + other < items.len(),
            !read.missing.is_empty(),
            "{invalid}: {:?} {:?}",
            read.missing,
            read.errors
        );
        assert!(read.missing.is_empty() || !read.errors.is_empty(), "{invalid}");
    }
    assert_eq!(of_list.services, of_documents.services);
    assert_eq!(of_list.missing, of_documents.missing);
    of_list
}

/// Paths of all values in a tree.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                paths(value, &format!("{path}/{}", name.replace('/', "~1")), found);
            }
        }
        Value::Array(items) => {
            for (position, value) in items.iter().enumerate() {
                paths(value, &format!("{path}/{position}"), found);
            }
        }
        _ => {}
    }
}

/// Values that are invalid in every field.
fn invalid_values() -> [Value; 7] {
    [
        json!(-7),
        json!(1e300),
        json!(u64::MAX),
        json!("\u{0}"),
        json!([[[]]]),
        json!({"a": {"b": []}}),
        json!(true),
    ]
}

#[test]
fn an_invalid_field_does_not_affect_other_objects() {
    for make in [service, slice, node] {
        let mut all = Vec::new();
        paths(&make(INVALID), "", &mut all);
        assert!(all.len() > 10);
        for path in all {
            for value in invalid_values() {
                let mut invalid = make(INVALID);
                *invalid.pointer_mut(&path).unwrap() = value;
                check(make, &invalid);
            }
        }
    }
}

#[test]
fn a_field_of_a_wrong_type_is_reported() {
    for (make, path) in [
        (service as fn(usize) -> Value, "/metadata/creationTimestamp"),
        (service, "/metadata/labels"),
        (service, "/spec/clusterIP"),
        (service, "/spec/clusterIPs/0"),
        (service, "/spec/ipFamilies"),
        (service, "/spec/ports/0"),
        (service, "/spec/ports/0/nodePort"),
        (service, "/spec/sessionAffinityConfig/clientIP/timeoutSeconds"),
        (service, "/status/loadBalancer/ingress/0/ip"),
        (slice, "/addressType"),
        (slice, "/ports/0/port"),
        (slice, "/endpoints"),
        (slice, "/endpoints/0/addresses/0"),
        (slice, "/endpoints/0/conditions/ready"),
        (slice, "/endpoints/0/hints/forZones"),
        (node, "/spec/podCIDRs/0"),
        (node, "/status/addresses/0/address"),
    ] {
        for value in [json!([[[]]]), json!(-7.5)] {
            let mut invalid = make(INVALID);
            *invalid.pointer_mut(path).unwrap() = value;
            let read = check(make, &invalid);
            let field = path.trim_start_matches('/').replace('/', ".");
            let field = field.replace(".0", "[0]");
            let fields: Vec<_> = read.errors.iter().map(|error| error.field.as_str()).collect();
            assert!(
                fields.first().is_some_and(|first| first.starts_with(&field)),
                "{field}: {fields:?}"
            );
        }
    }
}

#[test]
fn values_that_are_not_objects_do_not_affect_the_others() {
    for make in [service, slice, node] {
        for value in [json!(7), json!("text"), json!([]), json!({}), json!({"kind": 3})] {
            let read = check(make, &value);
            assert!(read.missing.unnamed && !read.errors.is_empty(), "{value}");
        }
        for missing in ["apiVersion", "kind", "metadata"] {
            let mut invalid = make(INVALID);
            invalid.as_object_mut().unwrap().remove(missing);
            let read = check(make, &invalid);
            assert_eq!(read.errors.len(), 1, "{missing}: {:?}", read.errors);
        }
    }
}

/// Any tree of values.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        prop_oneof!["IPv4", "TCP", "10.0.0.1", "fd00::/64", "Service", "v1"].prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z]{1,4}|name|port|items|kind", inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Several fields of one object replaced at once.
    #[test]
    fn any_values_do_not_affect_other_objects(
        kind in 0..3_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..6),
    ) {
        let make = [service, slice, node][kind];
        let mut invalid = make(INVALID);
        for (index, value) in changes {
            let mut all = Vec::new();
            paths(&invalid, "", &mut all);
            let path: &String = index.get(&all);
            *invalid.pointer_mut(path).unwrap() = value;
        }
        // A document with only null is empty.
        prop_assume!(!invalid.is_null());
        // A list would contain more objects.
        prop_assume!(invalid["kind"].as_str().is_none_or(|kind| !kind.ends_with("List")));
        check(make, &invalid);
    }

    /// A typed object is converted to the same result as a manifest.
    #[test]
    fn manifests_and_typed_objects_have_the_same_result(
        kind in 0..3_usize,
        index in any::<prop::sample::Index>(),
        value in any_value(),
    ) {
        let sound = [service, slice, node][kind](INVALID);
        let mut object = sound.clone();
        let mut all = Vec::new();
        paths(&object, "", &mut all);
        let path: &String = index.get(&all);
        *object.pointer_mut(path).unwrap() = value;
        // Objects of other kinds are not read.
        prop_assume!(["kind", "apiVersion"].iter().all(|name| object[name] == sound[name]));
        let objects = read("f", &object.to_string());
        let mut converter = Converter::new();
        let errors = match kind {
            0 => serde_json::from_value(object).map(|object| {
                let converted = converter.service(&object);
                assert_eq!(converted.object.as_ref(), objects.services.first());
                converted.errors
            }),
            1 => serde_json::from_value(object).map(|object| {
                let converted = converter.endpoint_slice(&object);
                assert_eq!(converted.object.as_ref(), objects.endpoint_slices.first());
                converted.errors
            }),
            _ => serde_json::from_value(object).map(|object| {
                let converted = converter.node(&object);
                assert_eq!(converted.object.as_ref(), objects.nodes.first());
                converted.errors
            }),
        };
        if let Ok(errors) = errors {
            let read: Vec<_> = objects.errors.iter().map(|error| (&error.field, &error.reason)).collect();
            let errors: Vec<_> = errors.iter().map(|error| (&error.field, &error.reason)).collect();
            prop_assert_eq!(read, errors);
        }
    }

    #[test]
    fn any_text_is_read(text in "(\\PC|\n|---\n|kind: |: |\\{|\\[|- |\"|&a |\\*a )*") {
        let objects = read("f", &text);
        for error in &objects.errors {
            prop_assert!(error.line >= 1 && error.document >= 1);
            prop_assert!(!error.to_string().contains('\n'));
        }
        prop_assert!(objects.errors.is_empty() || !objects.missing.is_empty());
    }
}
