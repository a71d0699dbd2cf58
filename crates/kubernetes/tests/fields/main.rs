//! Every field of the types of the API, missing and with content of every type: a field that a service proxy does not use has no effect, and one
//! that it uses costs at most the object, or the part of it that is documented, with an error that names the field.
//!
//! The objects are complete. They are written without `..Default::default()`, so that a field of a later version of Kubernetes is not
//! forgotten: this does not compile without it.
#![cfg(all(feature = "manifest", feature = "watch"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test reports the reason by panicking"
)]

mod complete;

use std::collections::BTreeSet;

use kernlink_kubernetes::kernlink_services::{Change, Kind, ObjectChange};
use kernlink_kubernetes::watch::{Event, Item, read_event, read_page};
use kernlink_kubernetes::{Converted, Converter, FieldError, manifest};
use serde_json::{Value, json};

use self::Cost::{Object, Part};

/// What content of another type costs, at most.
#[derive(Clone, Copy, Debug)]
enum Cost {
    /// The object stays as it was.
    Object,
    /// The object is used without the field or item of this pattern.
    Part(&'static str),
}

/// The fields that a service proxy uses. `[]` is each item of a list. All other fields have no effect.
const SERVICE: &[(&str, Cost)] = &[
    ("metadata", Object),
    ("metadata.name", Object),
    ("metadata.namespace", Object),
    ("metadata.creationTimestamp", Object),
    ("metadata.labels", Object),
    ("metadata.labels.service.kubernetes.io/service-proxy-name", Object),
    ("metadata.annotations", Object),
    ("metadata.annotations.kernlink.io/scheduler", Object),
    ("metadata.annotations.service.kubernetes.io/topology-mode", Object),
    ("spec", Object),
    ("spec.type", Object),
    ("spec.clusterIP", Object),
    ("spec.clusterIPs", Object),
    ("spec.clusterIPs[]", Object),
    ("spec.ipFamilies", Object),
    ("spec.ipFamilies[]", Object),
    ("spec.ports", Object),
    ("spec.ports[]", Object),
    ("spec.ports[].name", Object),
    ("spec.ports[].protocol", Object),
    ("spec.ports[].port", Object),
    ("spec.ports[].nodePort", Object),
    ("spec.externalIPs", Object),
    ("spec.externalIPs[]", Object),
    ("spec.loadBalancerSourceRanges", Object),
    ("spec.loadBalancerSourceRanges[]", Object),
    ("spec.externalTrafficPolicy", Object),
    ("spec.internalTrafficPolicy", Object),
    ("spec.healthCheckNodePort", Object),
    ("spec.sessionAffinity", Object),
    ("spec.sessionAffinityConfig", Object),
    ("spec.sessionAffinityConfig.clientIP", Object),
    ("spec.sessionAffinityConfig.clientIP.timeoutSeconds", Object),
    ("status", Object),
    ("status.loadBalancer", Object),
    ("status.loadBalancer.ingress", Object),
    ("status.loadBalancer.ingress[]", Object),
    ("status.loadBalancer.ingress[].ip", Object),
    ("status.loadBalancer.ingress[].ipMode", Object),
];

const ENDPOINT_SLICE: &[(&str, Cost)] = &[
    ("metadata", Object),
    ("metadata.name", Object),
    ("metadata.namespace", Object),
    ("metadata.labels", Object),
    ("metadata.labels.kubernetes.io/service-name", Object),
    ("metadata.labels.service.kubernetes.io/headless", Object),
    ("metadata.annotations", Object),
    (
        "metadata.annotations.endpoints.kubernetes.io/last-change-trigger-time",
        Object,
    ),
    ("addressType", Object),
    ("ports", Object),
    ("ports[]", Object),
    ("ports[].name", Object),
    ("ports[].protocol", Object),
    ("ports[].port", Object),
    ("endpoints", Object),
    ("endpoints[]", Part("endpoints[]")),
    ("endpoints[].addresses", Part("endpoints[]")),
    ("endpoints[].addresses[]", Part("endpoints[]")),
    ("endpoints[].conditions", Part("endpoints[]")),
    ("endpoints[].conditions.ready", Part("endpoints[]")),
    ("endpoints[].conditions.serving", Part("endpoints[]")),
    ("endpoints[].conditions.terminating", Part("endpoints[]")),
    ("endpoints[].nodeName", Part("endpoints[]")),
    ("endpoints[].zone", Part("endpoints[]")),
    ("endpoints[].hints", Part("endpoints[]")),
    ("endpoints[].hints.forZones", Part("endpoints[]")),
    ("endpoints[].hints.forZones[]", Part("endpoints[]")),
    ("endpoints[].hints.forZones[].name", Part("endpoints[]")),
    ("endpoints[].hints.forNodes", Part("endpoints[]")),
    ("endpoints[].hints.forNodes[]", Part("endpoints[]")),
    ("endpoints[].hints.forNodes[].name", Part("endpoints[]")),
];

/// Of every Node.
const NODE: &[(&str, Cost)] = &[
    ("metadata", Object),
    ("metadata.name", Object),
    ("metadata.labels", Object),
    ("metadata.labels.topology.kubernetes.io/zone", Object),
    ("spec", Object),
    ("spec.taints", Object),
    ("spec.taints[]", Object),
    ("spec.taints[].key", Object),
    ("status", Object),
    ("status.addresses", Object),
    ("status.addresses[]", Part("status.addresses[]")),
    ("status.addresses[].type", Part("status.addresses[]")),
    ("status.addresses[].address", Part("status.addresses[]")),
];

/// In addition, of a Node that is being deleted.
const DELETED_NODE: &[(&str, Cost)] = &[
    ("metadata.deletionTimestamp", Object),
    ("spec.podCIDRs", Object),
    ("spec.podCIDRs[]", Part("spec.podCIDRs[]")),
];

/// In addition, of a Node that the autoscaler removes, with the older field for the pod network only.
const OLDER_NODE: &[(&str, Cost)] = &[("spec.podCIDR", Part("spec.podCIDR"))];

/// The object that was read, and its errors.
#[derive(Clone, Debug, PartialEq)]
struct Read {
    change: Option<Change>,
    errors: Vec<(String, String)>,
}

impl Read {
    fn new<'a>(change: Option<Change>, errors: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let errors = errors.into_iter();
        Self {
            change,
            errors: errors
                .map(|(field, reason)| (field.clone(), reason.clone()))
                .collect(),
        }
    }

    fn of_converted<T>(converted: Converted<T>, change: fn(ObjectChange<T>) -> Change) -> Self {
        let object = converted.object.map(ObjectChange::Upsert).map(change);
        Self::new(object, fields(&converted.errors))
    }

    fn of_item(item: &Item) -> Self {
        Self::new(item.change.clone(), fields(&item.errors))
    }
}

fn fields(errors: &[FieldError]) -> impl Iterator<Item = (&String, &String)> {
    errors.iter().map(|error| (&error.field, &error.reason))
}

/// Reads an object as an event and in a list of an API server.
fn of_answers(kind: Kind, text: &str) -> [Read; 2] {
    let line = format!(r#"{{"type":"MODIFIED","object":{text}}}"#);
    let event = read_event(kind, line.as_bytes(), &mut Converter::new());
    let Ok(Event::Item { item, .. }) = event else {
        panic!("{event:?}");
    };
    let list = format!(r#"{{"kind":"{kind}List","metadata":{{"resourceVersion":"9"}},"items":[{text}]}}"#);
    let page = read_page(kind, list.as_bytes(), &mut Converter::new()).unwrap();
    [Read::of_item(&item), Read::of_item(&page.items[0])]
}

/// Reads an object in all ways, and returns the result, which is the same. A manifest needs its kind and version.
fn read(kind: Kind, object: &Value) -> Read {
    let (mut converter, tree) = (Converter::new(), object.clone());
    let expected = match kind {
        Kind::Service => Read::of_converted(converter.service_from_json(tree), Change::Services),
        Kind::EndpointSlice => {
            Read::of_converted(converter.endpoint_slice_from_json(tree), Change::EndpointSlices)
        }
        Kind::Node => Read::of_converted(converter.node_from_json(tree), Change::Nodes),
    };
    let text = object.to_string();
    for found in of_answers(kind, &text) {
        assert_eq!(found, expected, "{text}");
    }
    let is_version = ["v1", "discovery.k8s.io/v1"]
        .iter()
        .any(|version| object["apiVersion"] == *version);
    if is_version && object["kind"] == *kind.to_string() {
        let read = manifest::read("f", &text);
        let errors: Vec<_> = read
            .errors
            .iter()
            .map(|error| (&error.field, &error.reason))
            .collect();
        let services = read
            .services
            .iter()
            .cloned()
            .map(ObjectChange::Upsert)
            .map(Change::Services);
        let slices = read.endpoint_slices.iter().cloned().map(ObjectChange::Upsert);
        let nodes = read
            .nodes
            .iter()
            .cloned()
            .map(ObjectChange::Upsert)
            .map(Change::Nodes);
        let change = services
            .chain(slices.map(Change::EndpointSlices))
            .chain(nodes)
            .next();
        assert_eq!(Read::new(change, errors), expected, "{text}");
    }
    expected
}

/// A field, or an item of a list.
#[derive(Clone, Debug)]
struct Position {
    /// The JSON pointer of the value that contains it.
    parent: String,
    /// The name of the field, or the number of the item.
    name: String,
    is_field: bool,
    /// As in errors: `spec.ports[0].port`.
    path: String,
    /// Of all items: `spec.ports[].port`.
    pattern: String,
}

impl Position {
    fn pointer(&self) -> String {
        format!(
            "{}/{}",
            self.parent,
            self.name.replace('~', "~0").replace('/', "~1")
        )
    }

    /// The object without it.
    fn removed(&self, object: &Value) -> Value {
        let mut object = object.clone();
        match object.pointer_mut(&self.parent).unwrap() {
            Value::Object(fields) => _ = fields.remove(&self.name).unwrap(),
            Value::Array(items) => _ = items.remove(self.name.parse().unwrap()),
            other => panic!("{other}"),
        }
        object
    }

    /// The object with other content in it.
    fn replaced(&self, object: &Value, content: Value) -> Value {
        let mut object = object.clone();
        *object.pointer_mut(&self.pointer()).unwrap() = content;
        object
    }
}

/// All fields and items of a value.
fn positions(value: &Value, parent: &str, path: &str, pattern: &str, found: &mut Vec<Position>) {
    let mut add = |name: String, is_field: bool, path: String, pattern: String, value: &Value| {
        let position = Position {
            parent: parent.to_owned(),
            name,
            is_field,
            path,
            pattern,
        };
        found.push(position.clone());
        positions(
            value,
            &position.pointer(),
            &position.path,
            &position.pattern,
            found,
        );
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                add(
                    name.clone(),
                    true,
                    format!("{path}{dot}{name}"),
                    format!("{pattern}{dot}{name}"),
                    value,
                );
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                add(
                    index.to_string(),
                    false,
                    format!("{path}[{index}]"),
                    format!("{pattern}[]"),
                    value,
                );
            }
        }
        _ => {}
    }
}

/// Content of every type, and content that the types of a client library do not expect.
fn contents() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(7),
        json!(-1.5),
        json!("unknown"),
        json!(""),
        json!([]),
        json!([null, 1, {"a": []}]),
        json!({}),
        json!({"a": null, "": [1]}),
    ]
}

/// Content that has no place in a tree of values: a number that is too large, half of a character, and a depth that no decoder follows.
fn raw_contents() -> [String; 3] {
    [
        "1e999".to_owned(),
        r#""\ud800""#.to_owned(),
        format!("{}{}", "[".repeat(500), "]".repeat(500)),
    ]
}

fn same_type(one: &Value, other: &Value) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Whether an error about one of these fields is about the other, or about what contains it.
fn is_about(found: &str, path: &str) -> bool {
    path.starts_with(found) || found.starts_with(path)
}

/// Checks all fields of an object of a kind. Returns the patterns of those without which it would be another one.
fn check(kind: Kind, object: &Value, used: &[(&str, Cost)]) -> BTreeSet<String> {
    let expected = read(kind, object);
    assert!(
        expected.change.is_some() && expected.errors.is_empty(),
        "{expected:#?}"
    );
    let mut all = Vec::new();
    positions(object, "", "", "", &mut all);
    let mut effective = BTreeSet::new();
    check_unknown_field(kind, object, "", &expected);
    for position in &all {
        check_unknown_field(kind, object, &position.pointer(), &expected);
        match used.iter().find(|(pattern, _)| *pattern == position.pattern) {
            None => check_unused(kind, object, position, &expected),
            Some((_, cost)) => {
                check_used(kind, object, position, *cost, &all);
                if read(kind, &position.removed(object)) != expected {
                    effective.insert(position.pattern.clone());
                }
            }
        }
    }
    effective
}

fn patterns<'a>(lists: impl IntoIterator<Item = &'a [(&'static str, Cost)]>) -> BTreeSet<String> {
    let all = lists.into_iter().flatten();
    all.map(|(pattern, _)| (*pattern).to_owned()).collect()
}

/// A field that a service proxy does not use: nothing has an effect.
fn check_unused(kind: Kind, object: &Value, position: &Position, expected: &Read) {
    let path = &position.path;
    assert_eq!(
        read(kind, &position.removed(object)),
        *expected,
        "{path} is missing"
    );
    for content in contents() {
        let found = read(kind, &position.replaced(object, content.clone()));
        assert_eq!(found, *expected, "{path}: {content}");
    }
    // It is used if the list is empty, which is known when the whole object was read.
    if path == "spec.podCIDR" {
        return;
    }
    let text = position.replaced(object, json!("\u{1}")).to_string();
    for content in raw_contents() {
        let found = of_answers(kind, &text.replace(r#""\u0001""#, &content));
        assert_eq!(found, [expected.clone(), expected.clone()], "{path}: {content}");
    }
}

/// A field that a service proxy uses: null is a missing field, content of another type costs what is documented, and an unknown text or a number
/// out of range no more than that.
fn check_used(kind: Kind, object: &Value, position: &Position, cost: Cost, all: &[Position]) {
    let original = object.pointer(&position.pointer()).unwrap();
    let missing = read(kind, &position.removed(object));
    let without_part = match cost {
        Object => None,
        Part(pattern) => {
            let is_part = |part: &&Position| part.pattern == pattern && position.path.starts_with(&part.path);
            let part = all.iter().find(is_part).unwrap();
            read(kind, &part.removed(object)).change
        }
    };
    for content in contents() {
        let found = read(kind, &position.replaced(object, content.clone()));
        let what = format!("{}: {content}: {found:#?}", position.path);
        if content.is_null() && position.is_field {
            assert_eq!(found, missing, "{what}");
        } else if !same_type(&content, original) {
            assert_eq!(found.change, without_part, "{what}");
            let (field, _) = found.errors.first().unwrap_or_else(|| panic!("no error: {what}"));
            assert!(is_about(field, &position.path), "{what}");
        } else if found.change.is_none() || !found.errors.is_empty() {
            // Not in silence, and never more than that.
            assert!(found.change.is_some() || matches!(cost, Object), "{what}");
            assert!(
                found
                    .errors
                    .iter()
                    .any(|(field, _)| is_about(field, &position.path)),
                "{what}"
            );
        }
        // Kubernetes adds values to its types and policies. A time is not one of them.
        if content == "unknown" && original.is_string() && !position.path.ends_with("Timestamp") {
            assert!(found.change.is_some(), "{what}");
        }
    }
}

/// A field of a later version of Kubernetes in an object, or a label or annotation that is not used.
fn check_unknown_field(kind: Kind, object: &Value, pointer: &str, expected: &Read) {
    for content in contents() {
        let mut changed = object.clone();
        let Some(fields) = changed.pointer_mut(pointer).unwrap().as_object_mut() else {
            return;
        };
        fields.insert("ofALaterVersion".to_owned(), content.clone());
        assert_eq!(
            read(kind, &changed),
            *expected,
            "{pointer}/ofALaterVersion: {content}"
        );
    }
}

#[test]
fn no_field_of_a_service_has_an_effect_that_a_service_proxy_does_not_need() {
    let effective = check(Kind::Service, &complete::service(), SERVICE);
    assert_eq!(effective, patterns([SERVICE]));
}

#[test]
fn no_field_of_a_slice_has_an_effect_that_a_service_proxy_does_not_need() {
    let effective = check(Kind::EndpointSlice, &complete::endpoint_slice(), ENDPOINT_SLICE);
    assert_eq!(effective, patterns([ENDPOINT_SLICE]));
}

#[test]
fn no_field_of_a_node_has_an_effect_that_a_service_proxy_does_not_need() {
    let node = complete::node();
    let mut effective = check(Kind::Node, &node, &[NODE, DELETED_NODE].concat());
    let mut older = node;
    let metadata = older["metadata"].as_object_mut().unwrap();
    metadata.remove("deletionTimestamp").unwrap();
    older["spec"].as_object_mut().unwrap().remove("podCIDRs").unwrap();
    older["spec"]["taints"][0]["key"] = json!("ToBeDeletedByClusterAutoscaler");
    effective.append(&mut check(Kind::Node, &older, &[NODE, OLDER_NODE].concat()));
    assert_eq!(effective, patterns([NODE, DELETED_NODE, OLDER_NODE]));
}
