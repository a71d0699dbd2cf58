//! An object with invalid content affects no other object.
#![cfg(feature = "kubernetes")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test reports errors by panicking"
)]

mod support;

use std::sync::LazyLock;

use kernlink_kubernetes::manifest;
use kernlink_proxier::ipvs_mode::Config;
use serde_json::{Value, json};

use crate::support::{build, lines, listings};

/// The number of objects of each kind.
const OBJECTS: usize = 10;
/// The number of the object with invalid content.
const BROKEN: usize = 3;

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

/// The lines of the listings of a cluster, and its errors and events.
fn outcome(text: &str) -> (Vec<String>, Vec<String>) {
    let objects = manifest::read("manifests", text);
    let mut events: Vec<String> = objects.errors.iter().map(ToString::to_string).collect();
    let desired = build(
        &Config::new("node-a"),
        "eth0=192.0.2.1,eth0=2001:db8::1",
        objects.into_changes_without_missing(),
    );
    events.extend(support::events(&desired).iter().map(ToString::to_string));
    let listings = listings(&desired);
    let listed = [&listings.ipvs, &listings.ipset, &listings.addresses];
    (listed.into_iter().flat_map(|text| lines(text)).collect(), events)
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// The lines of the listings without the broken object and the objects that belong to it.
fn expected_lines() -> &'static [String] {
    static EXPECTED: LazyLock<Vec<String>> = LazyLock::new(|| {
        let sound: Vec<Value> = (0..OBJECTS)
            .filter(|number| *number != BROKEN)
            .flat_map(|number| [service(number), slice(number), node(number)])
            .collect();
        let (lines, events) = outcome(&list(&sound));
        assert_eq!(events, [""; 0]);
        lines
    });
    &EXPECTED
}

/// Whether an error or event is expected.
#[derive(Clone, Copy, PartialEq)]
enum Reported {
    Yes,
    /// The invalid content is in a field that is not read, or has the effect of a missing field.
    No,
}

/// Breaks one object of ten. Checks that the desired state of the others does not change, and that errors and events concern the broken
/// object only.
fn check(what: &str, expected: Reported, make: fn(usize) -> Value, broken: impl Fn(Value) -> Value) {
    let everything: Vec<Value> = (0..OBJECTS)
        .flat_map(|number| {
            let mut objects = [service(number), slice(number), node(number)];
            if number == BROKEN {
                let kind = make(number)["kind"].clone();
                let object = objects.iter_mut().find(|object| object["kind"] == kind);
                let object = object.unwrap();
                *object = broken(object.take());
            }
            objects
        })
        .collect();
    let documents = everything.iter().map(|object| format!("---\n{object}\n"));
    for (form, text) in [
        ("a list", list(&everything)),
        ("documents", documents.collect::<String>()),
    ] {
        let (listed, events) = outcome(&text);
        let missing: Vec<_> = expected_lines()
            .iter()
            .filter(|line| !listed.contains(line))
            .collect();
        assert!(
            missing.is_empty(),
            "{what} in {form}: missing {missing:#?}\nevents {events:#?}"
        );
        assert_eq!(
            events.is_empty(),
            expected == Reported::No,
            "{what} in {form}: events {events:#?}"
        );
        for number in (0..OBJECTS).filter(|number| *number != BROKEN) {
            let about = |line: &&String| {
                line.contains(&format!("web-{number}:")) || line.contains(&format!("web-{number}-x:"))
            };
            assert_eq!(events.iter().find(about), None, "{what} in {form}");
        }
    }
}

/// A field replaced, by its path, in objects of a kind.
fn replaced(make: fn(usize) -> Value, path: &str, value: &Value) {
    let is_unknown = value.is_object() && MAPS.contains(&path);
    // Any text is a valid name; it is printed on one line.
    let is_name =
        value.is_string() && ["/metadata/name", "/metadata/namespace", "/spec/ports/0/name"].contains(&path);
    let reported = if is_unknown || is_name {
        Reported::No
    } else {
        Reported::Yes
    };
    check(&format!("{path} = {value}"), reported, make, |mut object| {
        *object.pointer_mut(path).unwrap() = value.clone();
        object
    });
}

/// Maps in which unknown names are ignored.
const MAPS: [&str; 5] = [
    "/metadata/labels",
    "/endpoints/0/conditions",
    "/endpoints/0/hints",
    "/endpoints/0/hints/forZones/0",
    "/status/addresses/0",
];

/// Values that are invalid in every field.
fn invalid_values() -> [Value; 4] {
    [json!(-7), json!("\u{0}"), json!([[[]]]), json!({"a": {"b": []}})]
}

#[test]
fn broken_services_do_not_affect_others() {
    for path in [
        "/metadata/name",
        "/metadata/namespace",
        "/metadata/creationTimestamp",
        "/spec/type",
        "/spec/clusterIPs/0",
        "/spec/ipFamilies",
        "/spec/ipFamilies/0",
        "/spec/externalIPs",
        "/spec/externalIPs/0",
        "/spec/loadBalancerSourceRanges/0",
        "/spec/externalTrafficPolicy",
        "/spec/internalTrafficPolicy",
        "/spec/healthCheckNodePort",
        "/spec/sessionAffinity",
        "/spec/sessionAffinityConfig/clientIP/timeoutSeconds",
        "/spec/ports",
        "/spec/ports/0",
        "/spec/ports/0/name",
        "/spec/ports/0/protocol",
        "/spec/ports/0/port",
        "/spec/ports/0/nodePort",
        "/status/loadBalancer/ingress",
        "/status/loadBalancer/ingress/0/ip",
        "/status/loadBalancer/ingress/0/ipMode",
        "/metadata/annotations/kernlink.io~1scheduler",
    ] {
        for value in invalid_values() {
            replaced(service, path, &value);
        }
    }
}

#[test]
fn services_with_values_out_of_range_do_not_affect_others() {
    for (path, values) in [
        (
            "/spec/ports/0/port",
            vec![json!(0), json!(65_536), json!(1.5), json!("80")],
        ),
        (
            "/spec/ports/0/nodePort",
            vec![json!(65_536), json!(u64::MAX), json!("x")],
        ),
        ("/spec/ports/0/protocol", vec![json!("ICMP"), json!("tcp ")]),
        ("/spec/healthCheckNodePort", vec![json!(65_536), json!(i64::MIN)]),
        (
            "/spec/sessionAffinityConfig/clientIP/timeoutSeconds",
            vec![json!(u64::MAX), json!(1e300), json!("600")],
        ),
        (
            "/spec/clusterIPs/0",
            vec![json!("10.96.0.256"), json!("fd00::1"), json!("")],
        ),
        (
            "/spec/loadBalancerSourceRanges/0",
            vec![json!("198.18.0.0/33"), json!("198.18.0.0/-1"), json!("any")],
        ),
        (
            "/metadata/creationTimestamp",
            vec![json!("yesterday"), json!("2026-13-01T00:00:00Z")],
        ),
    ] {
        for value in &values {
            replaced(service, path, value);
        }
    }
}

#[test]
fn broken_slices_do_not_affect_others() {
    for path in [
        "/metadata/name",
        "/addressType",
        "/ports",
        "/ports/0",
        "/ports/0/port",
        "/ports/0/protocol",
        "/endpoints",
        "/endpoints/0",
        "/endpoints/0/addresses",
        "/endpoints/0/addresses/0",
        "/endpoints/0/conditions",
        "/endpoints/0/conditions/ready",
        "/endpoints/0/hints",
        "/endpoints/0/hints/forZones",
    ] {
        for value in invalid_values() {
            replaced(slice, path, &value);
        }
    }
}

#[test]
fn broken_nodes_do_not_affect_others() {
    for path in [
        "/metadata/name",
        "/metadata/labels",
        "/spec/podCIDRs",
        "/spec/podCIDRs/0",
        "/status/addresses",
        "/status/addresses/0",
        "/status/addresses/0/address",
    ] {
        for value in invalid_values() {
            replaced(node, path, &value);
        }
    }
}

#[test]
fn values_that_are_not_objects_do_not_affect_others() {
    for make in [service, slice, node] {
        for value in [json!(7), json!("text"), json!([]), json!({}), json!({"kind": 3})] {
            check(&value.to_string(), Reported::Yes, make, |_| value.clone());
        }
        for missing in ["apiVersion", "kind", "metadata"] {
            check(&format!("no {missing}"), Reported::Yes, make, |mut object| {
                object.as_object_mut().unwrap().remove(missing);
                object
            });
        }
    }
}
