//! Random objects that an API server accepts, most of them, with content in all fields that it lets a client write.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Texts that encodings write in different ways.
const TEXTS: [&str; 6] = [
    "",
    "Auto",
    "<a> & \"b\" \\ / \u{7f}",
    "é \u{1f600} \u{2028}\u{feff}",
    "\n\t\r",
    "{\"a\": [null]}",
];

fn text(values: &'static [&'static str]) -> BoxedStrategy<Value> {
    prop::sample::select(values).prop_map(Value::from).boxed()
}

/// Null, which is an absent field, or a value.
fn optional(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    prop::option::of(value)
        .prop_map(|value| value.unwrap_or_default())
        .boxed()
}

fn list(item: impl Strategy<Value = Value> + 'static, size: std::ops::Range<usize>) -> BoxedStrategy<Value> {
    prop::collection::vec(item, size).prop_map(Value::from).boxed()
}

/// A value of each strategy, with its name.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let object = values.prop_map(move |values| {
        let names = names.iter().map(|name| (*name).to_owned());
        Value::Object(names.zip(values).collect())
    });
    object.boxed()
}

fn map(
    names: &'static [&'static str],
    value: impl Strategy<Value = Value> + 'static,
) -> BoxedStrategy<Value> {
    let name = prop::sample::select(names).prop_map(str::to_owned);
    let entries = prop::collection::btree_map(name, value, 0..4);
    entries
        .prop_map(|entries| Value::Object(Map::from_iter(entries)))
        .boxed()
}

/// Labels and annotations.
pub(crate) fn metadata() -> BoxedStrategy<Value> {
    let labels = map(
        &[
            "app",
            "kubernetes.io/service-name",
            "service.kubernetes.io/headless",
            "service.kubernetes.io/service-proxy-name",
            "topology.kubernetes.io/zone",
        ],
        text(&["", "web", "a.b_c"]),
    );
    let annotations = map(
        &[
            "endpoints.kubernetes.io/last-change-trigger-time",
            "example.org/note",
            "kernlink.io/scheduler",
            "service.kubernetes.io/topology-mode",
        ],
        prop_oneof![text(&TEXTS), text(&["2026-01-01T00:00:00.25Z", "rr"])],
    );
    object(vec![("labels", labels), ("annotations", annotations)])
}

fn service_ports() -> BoxedStrategy<Value> {
    let port = object(vec![
        ("protocol", text(&["TCP", "UDP", "SCTP"])),
        ("appProtocol", optional(text(&["kubernetes.io/h2c", "http"]))),
        (
            "targetPort",
            prop_oneof![(1..65_536).prop_map(Value::from), text(&["web", "dns"])].boxed(),
        ),
    ]);
    let ports = prop::collection::vec((port, 1_u32..65_536), 1..4);
    let named = ports.prop_map(|ports: Vec<(Value, u32)>| {
        let ports = ports
            .into_iter()
            .enumerate()
            .map(|(position, (mut port, number))| {
                port["name"] = format!("p{position}").into();
                port["port"] = number.into();
                port
            });
        ports.collect::<Value>()
    });
    named.boxed()
}

fn ports_without_names() -> BoxedStrategy<Value> {
    let port = object(vec![
        ("protocol", text(&["TCP", "UDP"])),
        ("port", (1..65_536).prop_map(Value::from).boxed()),
    ]);
    list(port, 1..2)
}

/// The fields of a specification of a Service that may be changed.
pub(crate) fn service_change() -> BoxedStrategy<Value> {
    let affinity = prop_oneof![
        Just(json!({"sessionAffinity": "None", "sessionAffinityConfig": null})),
        Just(json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": null})),
        (1..86_401).prop_map(|seconds| {
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
        }),
    ];
    let fields = object(vec![
        (
            "ports",
            prop_oneof![4 => service_ports(), 1 => ports_without_names()].boxed(),
        ),
        ("selector", optional(Just(json!({"app": "web"})))),
        (
            "externalIPs",
            list(text(&["203.0.113.7", "203.0.113.8", "2001:db8::7"]), 0..3),
        ),
        ("internalTrafficPolicy", optional(text(&["Cluster", "Local"]))),
        (
            "publishNotReadyAddresses",
            any::<bool>().prop_map(Value::from).boxed(),
        ),
        (
            "trafficDistribution",
            optional(text(&["PreferClose", "PreferSameNode"])),
        ),
    ]);
    merged(fields, affinity)
}

/// A specification of a Service.
fn service_spec() -> BoxedStrategy<Value> {
    let families = optional(text(&["SingleStack", "PreferDualStack", "RequireDualStack"]));
    let families = families.prop_map(|policy| json!({"ipFamilyPolicy": policy}));
    let external = || optional(text(&["Cluster", "Local"]));
    let node_port =
        external().prop_map(|policy| json!({"type": "NodePort", "externalTrafficPolicy": policy}));
    let load_balancer = object(vec![
        ("type", Just(json!("LoadBalancer")).boxed()),
        ("externalTrafficPolicy", external()),
        (
            "allocateLoadBalancerNodePorts",
            optional(any::<bool>().prop_map(Value::from)),
        ),
        ("loadBalancerClass", optional(text(&["example.org/lb"]))),
        (
            "loadBalancerSourceRanges",
            list(text(&["198.51.100.0/24", "0.0.0.0/0"]), 0..3),
        ),
    ]);
    let kind = prop_oneof![
        3 => Just(json!({"type": "ClusterIP"})),
        3 => node_port,
        4 => load_balancer,
        1 => Just(json!({"type": "ClusterIP", "clusterIP": "None"})),
        1 => Just(json!({"type": "ExternalName", "externalName": "example.org", "internalTrafficPolicy": null, "ipFamilyPolicy": null})),
    ];
    merged(merged(service_change(), families), kind)
}

/// The fields of two objects; those of the second one replace others.
fn merged(
    one: impl Strategy<Value = Value> + 'static,
    other: impl Strategy<Value = Value> + 'static,
) -> BoxedStrategy<Value> {
    let both = (one, other).prop_map(|(mut one, mut other)| {
        let fields = other.as_object_mut().unwrap();
        one.as_object_mut().unwrap().append(fields);
        one
    });
    both.boxed()
}

pub(crate) fn service(name: String) -> impl Strategy<Value = Value> {
    (metadata(), service_spec()).prop_map(move |(metadata, spec)| {
        json!({"kind": "Service", "apiVersion": "v1", "metadata": named(metadata, &name), "spec": spec})
    })
}

/// A status of a Service of type `LoadBalancer`, with conditions whose time is null, which the API server stores.
pub(crate) fn service_status() -> BoxedStrategy<Value> {
    let ports = optional(list(
        object(vec![
            ("port", (1..65_536).prop_map(Value::from).boxed()),
            ("protocol", text(&["TCP", "UDP"])),
            ("error", optional(text(&["example.org/Refused"]))),
        ]),
        0..2,
    ));
    let address = object(vec![
        ("ip", text(&["198.51.100.1", "198.51.100.2", "2001:db8::1"])),
        ("ipMode", optional(text(&["VIP", "Proxy"]))),
        ("ports", ports),
    ]);
    let host = Just(json!({"hostname": "lb.example.org"}));
    let condition = object(vec![
        ("type", text(&["example.org/A", "example.org/B"])),
        ("status", text(&["True", "False", "Unknown"])),
        ("reason", text(&["Reason"])),
        ("message", text(&TEXTS)),
        ("lastTransitionTime", optional(text(&["2026-01-01T00:00:00Z"]))),
    ]);
    object(vec![
        (
            "loadBalancer",
            list(prop_oneof![4 => address, 1 => host], 0..3)
                .prop_map(|ingress| json!({"ingress": ingress}))
                .boxed(),
        ),
        ("conditions", list(condition, 0..2)),
    ])
}

fn endpoint(addresses: &'static [&'static str]) -> BoxedStrategy<Value> {
    let condition = || optional(any::<bool>().prop_map(Value::from));
    let conditions = object(vec![
        ("ready", condition()),
        ("serving", condition()),
        ("terminating", condition()),
    ]);
    let names =
        |values: &'static [&'static str]| list(text(values).prop_map(|name| json!({"name": name})), 0..3);
    let hints = object(vec![
        ("forZones", names(&["z1", "z2"])),
        ("forNodes", names(&["node-0"])),
    ]);
    object(vec![
        ("addresses", list(text(addresses), 1..3)),
        ("conditions", optional(conditions)),
        ("hostname", optional(text(&["web-0"]))),
        ("nodeName", optional(text(&["node-0", "node-1"]))),
        ("zone", optional(text(&["z1", "z2"]))),
        ("hints", optional(hints)),
        (
            "targetRef",
            optional(Just(
                json!({"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "6d1f"}),
            )),
        ),
        (
            "deprecatedTopology",
            optional(Just(json!({"example.org/rack": "r1"}))),
        ),
    ])
}

/// The fields of a slice of an address type that may be changed.
pub(crate) fn slice_change(address_type: &str) -> BoxedStrategy<Value> {
    let addresses: &'static [&'static str] = match address_type {
        "IPv4" => &["10.244.1.1", "10.244.1.2", "10.244.2.1"],
        "IPv6" => &["fd00:244::1", "fd00:244::2"],
        _ => &["web.example.org", "db.example.org"],
    };
    let port = object(vec![
        ("name", optional(text(&["", "web"]))),
        ("port", optional((1..65_536).prop_map(Value::from))),
        ("protocol", optional(text(&["TCP", "UDP", "SCTP"]))),
        ("appProtocol", optional(text(&["http"]))),
    ]);
    object(vec![
        ("endpoints", list(endpoint(addresses), 0..4)),
        ("ports", optional(list(port, 0..2))),
    ])
}

pub(crate) const ADDRESS_TYPES: [&str; 3] = ["IPv4", "IPv6", "FQDN"];

pub(crate) fn slice(name: String, address_type: &'static str) -> impl Strategy<Value = Value> {
    (metadata(), slice_change(address_type)).prop_map(move |(metadata, mut slice)| {
        slice["kind"] = json!("EndpointSlice");
        slice["apiVersion"] = json!("discovery.k8s.io/v1");
        slice["addressType"] = json!(address_type);
        slice["metadata"] = named(metadata, &name);
        slice
    })
}

pub(crate) fn node(name: String) -> impl Strategy<Value = Value> {
    let taint = object(vec![
        (
            "key",
            text(&["ToBeDeletedByClusterAutoscaler", "example.org/taint"]),
        ),
        ("value", text(&["", "x"])),
        ("effect", text(&["NoSchedule", "NoExecute"])),
    ]);
    let networks = prop_oneof![
        Just(json!([])),
        Just(json!(["10.244.1.0/24"])),
        Just(json!(["fd00:244:1::/64", "10.244.1.0/24"])),
    ];
    let parts = (metadata(), list(taint, 0..2), networks, any::<bool>());
    parts.prop_map(move |(mut metadata, taints, networks, unschedulable)| {
        metadata["name"] = json!(name);
        let spec = json!({"podCIDRs": networks, "podCIDR": networks.get(0), "taints": taints, "unschedulable": unschedulable});
        json!({"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": spec})
    })
}

/// What a kubelet writes.
pub(crate) fn node_status() -> BoxedStrategy<Value> {
    let address = object(vec![
        ("type", text(&["InternalIP", "ExternalIP", "Hostname"])),
        ("address", text(&["192.0.2.1", "2001:db8::1"])),
    ]);
    let condition = Just(
        json!({"type": "Ready", "status": "True", "lastHeartbeatTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}),
    );
    object(vec![
        ("addresses", list(address, 0..3)),
        ("conditions", list(condition, 0..2)),
        (
            "capacity",
            optional(Just(json!({"cpu": "1500m", "memory": "8Gi"}))),
        ),
        (
            "images",
            list(
                Just(json!({"names": ["example.org/image:1"], "sizeBytes": 5_000_000_000_u64})),
                0..2,
            ),
        ),
    ])
}

fn named(mut metadata: Value, name: &str) -> Value {
    metadata["name"] = json!(name);
    metadata["namespace"] = json!("shop");
    metadata
}
