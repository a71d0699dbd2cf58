//! Manifests, as written by users and printed by `kubectl`.
#![cfg(feature = "manifest")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test reports the reason by panicking"
)]

use std::fmt::Write;

use kernlink_kubernetes::manifest::{Objects, read};
use kernlink_services::{AddressType, Kind, ObjectName, Protocol, ServiceType, SessionAffinity};

fn errors(objects: &Objects) -> String {
    objects.errors.iter().map(|error| format!("{error}\n")).collect()
}

const SERVICE: &str = "apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  creationTimestamp: 2026-01-01T00:00:00Z
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {\"a\": 1}
    kernlink.io/scheduler: wrr
spec:
  clusterIP: 10.96.11.12
  clusterIPs: [10.96.11.12]
  ports:
  - name: http
    port: 80
    targetPort: web
    nodePort: 30080
  - {name: dns, port: 53, protocol: UDP}
  sessionAffinity: ClientIP
  type: NodePort
";

const SLICE: &str = "addressType: IPv4
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-abc
  namespace: shop
  labels: {kubernetes.io/service-name: web}
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- addresses: [10.244.1.21]
  conditions: {ready: true}
  nodeName: node-a
  zone: z1
  hints: {forZones: [{name: z1}], forNodes: null}
- addresses: [10.244.2.21, 10.244.2.22]
  conditions: {ready: false, serving: true, terminating: true}
";

#[test]
fn a_stream_of_documents_is_read() {
    let objects = read(
        "web.yaml",
        &format!("# a shop\n---\n{SERVICE}---\n\n---\n{SLICE}...\n"),
    );
    assert_eq!(errors(&objects), "");
    let [service] = &objects.services[..] else {
        panic!("{objects:?}")
    };
    assert_eq!(service.name.to_string(), "shop/web");
    assert_eq!(service.service_type, ServiceType::NodePort);
    assert_eq!(
        service.session_affinity,
        SessionAffinity::ClientIp(std::time::Duration::from_secs(10_800))
    );
    assert_eq!(service.annotations.len(), 1, "{:?}", service.annotations);
    let ports: Vec<_> = service
        .ports
        .iter()
        .map(|p| (&*p.name, p.port, p.protocol, p.node_port))
        .collect();
    assert_eq!(
        ports,
        [("http", 80, Protocol::Tcp, 30_080), ("dns", 53, Protocol::Udp, 0)]
    );
    assert!(service.created.is_some());
    let [slice] = &objects.endpoint_slices[..] else {
        panic!("{objects:?}")
    };
    assert!(matches!(slice.address_type, AddressType::Ip(_)));
    let endpoints: Vec<_> = slice
        .endpoints
        .iter()
        .map(|e| (e.address.to_string(), e.conditions.ready, e.conditions.serving))
        .collect();
    assert_eq!(
        endpoints,
        [
            ("10.244.1.21".into(), true, true),
            ("10.244.2.21".into(), false, true)
        ]
    );
    assert_eq!(slice.endpoints[0].hints.as_ref().unwrap().zones.len(), 1);
}

/// The text as one item of a YAML list.
fn item(text: &str) -> String {
    let lines = text.lines().enumerate();
    lines
        .map(|(n, line)| format!("{} {line}\n", if n == 0 { "-" } else { " " }))
        .collect()
}

#[test]
fn lists_single_documents_and_streams_are_the_same() {
    let stream = read("a", &format!("{SERVICE}---\n{SLICE}"));
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n{}{}",
        item(SERVICE),
        item(SLICE)
    );
    assert_eq!(stream, read("b", &list));
    let bare = |text: &str| {
        let named = |line: &&str| line.starts_with("kind:") || line.starts_with("apiVersion:");
        text.lines()
            .filter(|line| !named(line))
            .fold(String::new(), |all, line| all + line + "\n")
    };
    let typed = format!(
        "apiVersion: v1\nkind: ServiceList\nitems:\n{}---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems:\n{}",
        item(&bare(SERVICE)),
        item(&bare(SLICE)),
    );
    let typed = read("c", &typed);
    assert_eq!(errors(&typed), "");
    assert_eq!(stream, typed);
}

#[test]
fn an_error_names_file_document_object_field_and_reason() {
    let invalid = SERVICE.replace("nodePort: 30080", "nodePort: 300800");
    let other = SERVICE.replace("name: web\n", "name: other\n");
    let objects = read("shop.yaml", &format!("{SLICE}---\n{invalid}---\n{other}"));
    assert_eq!(
        errors(&objects),
        "shop.yaml: document 2 (line 17): Service shop/web: spec.ports[0].nodePort: 300800 is not a port (1 to 65535)\n"
    );
    assert_eq!(objects.services.len(), 1);
    assert_eq!(objects.endpoint_slices.len(), 1);
}

#[test]
fn an_invalid_document_does_not_affect_the_others() {
    let objects = read(
        "x.yaml",
        &format!("{SERVICE}---\nkind: [Service\nname: x\n---\n{SLICE}"),
    );
    assert_eq!(objects.services.len() + objects.endpoint_slices.len(), 2);
    assert_eq!(objects.errors.len(), 1, "{}", errors(&objects));
    assert_eq!(objects.errors[0].document, 2);
    assert!(
        (21..=24).contains(&objects.errors[0].line),
        "{}",
        errors(&objects)
    );
}

#[test]
fn json_values_that_follow_each_other_are_read() {
    let service = |name: &str| {
        format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"Service\",\n \"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {{}}}}\n"
        )
    };
    let text = service("a") + "\n" + &service("b");
    let objects = read("f", &text);
    assert_eq!(errors(&objects), "");
    assert_eq!(objects.services.len(), 2);
    // Values before an invalid one are read; the error has the line of the invalid one.
    let objects = read("f", &(text + &service("c").replace("v1", "v2") + "{\"kind\":\n}"));
    assert_eq!(objects.services.len(), 2);
    assert_eq!(
        errors(&objects),
        "f: document 3 (line 6): Service c: apiVersion: \"v2\" is not supported; expected \"v1\"\n\
         f: document 4 (line 9): expected value\n"
    );
    // JSON followed by a comment is one YAML document.
    assert_eq!(errors(&read("f", &(service("a") + "# the end"))), "");
}

#[test]
fn a_directive_is_not_a_document() {
    let objects = read(
        "f",
        &format!("%YAML 1.2\n# a shop\n---\n{SERVICE}...\n%YAML 1.2\n---\n{SLICE}"),
    );
    assert_eq!(errors(&objects), "");
    assert_eq!((objects.services.len(), objects.endpoint_slices.len()), (1, 1));
}

#[test]
fn an_error_in_an_item_without_a_name_has_its_position() {
    let list = format!("kind: List\nitems:\n{}- {{x: 1}}\n- 3\n", item(SERVICE));
    let objects = read("l.yaml", &list);
    assert_eq!(objects.services.len(), 1);
    assert_eq!(
        errors(&objects),
        "l.yaml: document 1 (line 1): items[1].kind: is missing\n\
         l.yaml: document 1 (line 1): items[2]: expected an object, found the number 3\n"
    );
}

#[test]
fn an_error_is_one_line_and_counts_lines_of_the_file() {
    let doubled = "kind: Service\nkind: Service\n";
    let named = "apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: \"a\\nb\"}\nspec: 1\n";
    assert_eq!(
        errors(&read("x.yaml", &format!("---\n{doubled}---\n{named}"))),
        "x.yaml: document 1 (line 3): duplicate mapping key: kind\n\
         x.yaml: document 2 (line 4): Service a\\nb/x: spec: expected an object, found the number 1\n"
    );
}

#[test]
fn an_invalid_field_is_named() {
    for (from, to, expected) in [
        (
            "name: web\n",
            "name: 7\n",
            "Service: metadata.name: expected a text, found the number 7",
        ),
        ("name: web\n", "x: y\n", "Service: metadata.name: is missing"),
        (
            "port: 80\n",
            "port: eighty\n",
            "Service shop/web: spec.ports[0].port: expected a whole number, found the text \"eighty\"",
        ),
        (
            "port: 80\n",
            "port: 0\n",
            "Service shop/web: spec.ports[0].port: 0 is not a port (1 to 65535)",
        ),
        (
            "protocol: UDP",
            "protocol: ICMP",
            "Service shop/web: spec.ports[1].protocol: \"ICMP\" is not TCP, UDP or SCTP; the port is ignored",
        ),
        (
            "type: NodePort",
            "type: Nodeport",
            "Service shop/web: spec.type: \"Nodeport\" is not ClusterIP, NodePort, LoadBalancer or ExternalName; the default is used",
        ),
        (
            "apiVersion: v1",
            "apiVersion: v2",
            "Service shop/web: apiVersion: \"v2\" is not supported; expected \"v1\"",
        ),
        (
            "spec:",
            "spec: 5\nx:",
            "Service shop/web: spec: expected an object, found the number 5",
        ),
        (
            "2026-01-01T00:00:00Z",
            "yesterday",
            "Service shop/web: metadata.creationTimestamp: \"yesterday\" is not a time such as 2026-01-01T00:00:00Z",
        ),
    ] {
        let objects = read("f", &SERVICE.replacen(from, to, 1));
        assert_eq!(errors(&objects), format!("f: document 1 (line 1): {expected}\n"));
        // Unknown values of some fields do not cost the Service.
        let is_ignored = ["default is used", "ignored", "not served"]
            .iter()
            .any(|end| expected.ends_with(end));
        assert_eq!(objects.services.len(), usize::from(is_ignored), "{expected}");
    }
}

#[test]
fn all_invalid_fields_of_an_object_are_reported() {
    let text = SERVICE
        .replace("port: 80\n", "port: eighty\n")
        .replace("nodePort: 30080", "nodePort: 300800")
        .replace("protocol: UDP", "protocol: ICMP")
        .replace(
            "clusterIPs: [10.96.11.12]",
            "clusterIPs: [1, 10.96.11.12, {}]\n  externalIPs: 5",
        )
        .replace(
            "kernlink.io/scheduler: wrr",
            "kernlink.io/scheduler: 7\n    kernlink.io/x: []",
        );
    let objects = read("f", &text);
    let fields: Vec<_> = objects
        .errors
        .iter()
        .map(|error| format!("{}: {}", error.field, error.reason))
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.annotations.kernlink.io/scheduler: expected a text, found the number 7",
            "metadata.annotations.kernlink.io/x: expected a text, found a list",
            "spec.clusterIPs[0]: expected a text, found the number 1",
            "spec.externalIPs: expected a list, found the number 5",
            "spec.ports[0].port: expected a whole number, found the text \"eighty\"",
            "spec.ports[0].nodePort: 300800 is not a port (1 to 65535)",
            "spec.ports[1].protocol: \"ICMP\" is not TCP, UDP or SCTP; the port is ignored",
        ]
    );
    assert!(objects.services.is_empty());
}

/// As in the API server, which also treats a null label as absent.
#[test]
fn a_field_that_is_null_is_absent() {
    let text = SERVICE.replace(
        "kernlink.io/scheduler: wrr",
        "kernlink.io/scheduler: null\n    kernlink.io/x: z",
    ) + "status: null\n";
    let objects = read("f", &text);
    assert_eq!(errors(&objects), "");
    let annotations = &objects.services[0].annotations;
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["kernlink.io/x"]);
}

#[test]
fn kinds_of_other_groups_are_counted() {
    let knative = SERVICE.replace("apiVersion: v1", "apiVersion: serving.knative.dev/v1");
    let beta = SLICE.replace("discovery.k8s.io/v1", "discovery.k8s.io/v1beta1");
    let objects = read(
        "f",
        &format!(
            "{knative}---\n{beta}---\n{}",
            SLICE.replace("discovery.k8s.io/", "")
        ),
    );
    assert_eq!(
        objects.other.into_iter().collect::<Vec<_>>(),
        [("Service.serving.knative.dev".to_owned(), 1)]
    );
    let reasons: Vec<_> = objects
        .errors
        .iter()
        .map(|error| (error.field.as_str(), error.reason.as_str()))
        .collect();
    assert_eq!(
        reasons,
        [
            (
                "apiVersion",
                "\"discovery.k8s.io/v1beta1\" is not supported; expected \"discovery.k8s.io/v1\""
            ),
            (
                "apiVersion",
                "\"v1\" is not supported; expected \"discovery.k8s.io/v1\""
            ),
        ]
    );
}

#[test]
fn an_invalid_endpoint_does_not_affect_the_slice() {
    let objects = read("f", &SLICE.replace("10.244.1.21", "fd00::1"));
    assert_eq!(
        errors(&objects),
        "f: document 1 (line 1): EndpointSlice shop/web-abc: \
         endpoints[0].addresses[0]: fd00::1 is not an IPv4 address\n"
    );
    assert_eq!(objects.endpoint_slices[0].endpoints.len(), 1);
    // The same for a wrong type.
    let text = SLICE
        .replace("10.244.1.21", "7")
        .replace("ready: false", "ready: 3")
        + "- 5\n- addresses: []\n";
    let objects = read("f", &(text + "- addresses: [10.244.9.9]\n  nodeName: node-z\n"));
    assert_eq!(
        errors(&objects),
        "f: document 1 (line 1): EndpointSlice shop/web-abc: \
         endpoints[0].addresses[0]: expected a text, found the number 7\n\
         f: document 1 (line 1): EndpointSlice shop/web-abc: \
         endpoints[1].conditions.ready: expected true or false, found the number 3\n\
         f: document 1 (line 1): EndpointSlice shop/web-abc: \
         endpoints[2]: expected an object, found the number 5\n\
         f: document 1 (line 1): EndpointSlice shop/web-abc: endpoints[3].addresses: must not be empty\n"
    );
    let endpoints = &objects.endpoint_slices[0].endpoints;
    assert_eq!(
        (endpoints.len(), endpoints[0].node.as_deref()),
        (1, Some("node-z"))
    );
    assert!(objects.missing.is_empty());
    let objects = read("f", &SLICE.replace("addressType: IPv4", "addressType: IPX"));
    assert_eq!(
        errors(&objects),
        "f: document 1 (line 1): EndpointSlice shop/web-abc: addressType: \"IPX\" is not IPv4, IPv6 or FQDN; the endpoints are ignored\n"
    );
    assert_eq!(objects.endpoint_slices[0].endpoints, []);
    assert!(objects.missing.is_empty());
}

#[test]
fn other_kinds_are_counted() {
    let objects = read(
        "f",
        "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\n---\nkind: ConfigMap\n",
    );
    assert_eq!(objects.other["ConfigMap"], 2);
    assert_eq!(errors(&objects), "");
}

/// Otherwise a Service is deleted because of a typing error.
#[test]
fn a_kind_that_does_not_exist_is_an_error() {
    let errors_of = |kind: &str, version: &str| {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: web, namespace: shop}}\n");
        let objects = read("f", &text);
        let name = ObjectName::new("shop", "web");
        let may_be_meant = objects.missing.may_include(Kind::Service, &name);
        assert_eq!(may_be_meant, !objects.errors.is_empty(), "{kind}");
        let other = ObjectName::new("shop", "other");
        assert!(!objects.missing.may_include(Kind::Service, &other), "{kind}");
        errors(&objects)
    };
    let prefix = "f: document 1 (line 1): kind: ";
    let read_kinds = "kinds that are read: Service, EndpointSlice, Node\n";
    for (kind, version) in [
        ("Sevice", "v1"),
        ("service", "v1"),
        ("Nodes", "v1"),
        ("list", "v1"),
        ("Deployment", "v1"),
        ("Endpointslice", "discovery.k8s.io/v1"),
        ("EndpointSlices", "discovery.k8s.io/v1beta1"),
    ] {
        let expected = format!("{prefix}{kind:?} is not a kind of {version}; {read_kinds}");
        assert_eq!(errors_of(kind, version), expected);
    }
    let missing = format!("{prefix}\"Sevice\" is not a kind of v1, and apiVersion is missing; {read_kinds}");
    assert_eq!(errors_of("Sevice", ""), missing);
    for version in ["discovery.k8s.io/v1", "core/v1", "apps/v1"] {
        let text = errors_of("Service", version);
        assert!(
            text.contains(&format!(
                "apiVersion: {version:?} is not supported; expected \"v1\""
            )),
            "{text}"
        );
    }
    // Other APIs may have any kind.
    for (kind, version) in [
        ("Deployment", "apps/v1"),
        ("Secret", "v1"),
        ("Device", "example.com/v1"),
        ("Service", "serving.knative.dev/v1"),
        ("Gateway", "gateway.networking.k8s.io/v1"),
        // A file of kustomize.
        ("Kustomization", ""),
    ] {
        assert_eq!(errors_of(kind, version), "");
    }
}

#[test]
fn a_document_that_expands_too_much_is_an_error() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let previous = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(bomb, "a{level}: &a{level} [{previous}]").unwrap();
    }
    for text in [
        bomb,
        "[".repeat(100_000),
        format!("{}{}", "{\"a\":".repeat(50_000), "}".repeat(50_000)),
        "- ".repeat(50_000),
    ] {
        assert_eq!(read("bomb", &text).errors.len(), 1);
    }
}

#[test]
fn a_node_is_read() {
    let objects = read(
        "n",
        "apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: z1}}
spec: {podCIDR: 10.244.1.0/24}
status: {addresses: [{type: Hostname, address: node-a}, {type: InternalIP, address: 192.0.2.1}]}
",
    );
    assert_eq!(errors(&objects), "");
    let node = &objects.nodes[0];
    assert_eq!(
        (node.name.to_string(), node.zone.as_deref(), node.addresses.len()),
        ("node-a".into(), Some("z1"), 1)
    );
    assert_eq!(node.pod_cidrs[0].to_string(), "10.244.1.0/24");
}

#[test]
fn an_invalid_node_address_does_not_affect_the_node() {
    let objects = read(
        "n",
        "apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDRs: [10.244.1.0/24, fd00::/x]}
status:
  addresses:
  - {type: InternalIP, address: node-a.example}
  - {type: InternalIP, address: 192.0.2.1}
  - {type: InternalIP, address: 5}
  - {type: Hostname, address: node-a}
  - {type: ExternalIP, address: 2001:db8::1}
",
    );
    assert_eq!(
        errors(&objects),
        "n: document 1 (line 1): Node node-a: spec.podCIDRs[1]: \"fd00::/x\" is not a network such as 10.244.1.0/24\n\
         n: document 1 (line 1): Node node-a: status.addresses[0].address: \"node-a.example\" is not an IP address\n\
         n: document 1 (line 1): Node node-a: status.addresses[2].address: expected a text, found the number 5\n"
    );
    let node = &objects.nodes[0];
    let addresses: Vec<_> = node
        .addresses
        .iter()
        .map(|address| address.address.to_string())
        .collect();
    assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);
    assert_eq!(node.pod_cidrs.len(), 1);
    // The Node is not missing.
    assert_eq!(objects.into_changes().unwrap().len(), 6);
}

fn names(objects: &Objects) -> Vec<String> {
    let services = objects.services.iter().map(|object| object.name.to_string());
    let slices = objects
        .endpoint_slices
        .iter()
        .map(|object| object.name.to_string());
    let nodes = objects.nodes.iter().map(|object| object.name.to_string());
    let mut names: Vec<_> = services.chain(slices).chain(nodes).collect();
    names.sort();
    names
}

fn service_named(name: &str) -> String {
    format!(
        "---\n{}",
        SERVICE.replace("name: web\n", &format!("name: {name}\n"))
    )
}

/// No change removes an object of the truncated part.
#[test]
fn a_truncated_text_has_no_changes() {
    let list = format!(
        "apiVersion: v1\nitems:\n{}{}kind: List\n",
        item(SERVICE),
        item(SLICE)
    );
    let all = names(&read("f", &list));
    assert_eq!(all, ["shop/web", "shop/web-abc"]);
    for end in 1..list.len() - "\n".len() {
        let objects = read("f", &list[..end]);
        if let Ok(changes) = objects.into_changes() {
            panic!("truncated at {end}: {changes:?}");
        }
    }
    // kubectl prints the kind of a slice after its endpoints.
    let slice = SLICE.replace("kind: EndpointSlice\n", "") + "kind: EndpointSlice\n";
    for end in 1..slice.len() - "\n".len() {
        assert!(
            read("f", &slice[..end]).into_changes().is_err(),
            "truncated at {end}"
        );
    }
    // The same for JSON.
    let list = "{\"apiVersion\": \"v1\", \"kind\": \"ServiceList\", \"items\": \
                [{\"metadata\": {\"name\": \"a\"}}, {\"metadata\": {\"name\": \"b\"}}]}";
    assert!(read("f", list).into_changes().is_ok());
    for end in 1..list.len() {
        assert!(
            read("f", &list[..end]).into_changes().is_err(),
            "truncated at {end}"
        );
    }
}

#[test]
fn objects_that_could_not_be_read_are_missing_by_name() {
    let text = service_named("a")
        + &service_named("b").replace("port: 80", "port: 0")
        + &format!("---\n{}", SLICE.replace("addressType: IPv4", "addressType: \"\""))
        + "---\napiVersion: v2\nkind: Node\nmetadata: {name: node-a}\n";
    let objects = read("f", &text);
    let missing: Vec<_> = objects
        .missing
        .named
        .iter()
        .map(|(kind, name)| format!("{kind} {name}"))
        .collect();
    assert_eq!(
        missing,
        ["Service shop/b", "EndpointSlice shop/web-abc", "Node node-a"]
    );
    assert!(!objects.missing.unnamed);
    let incomplete = objects.into_changes().unwrap_err();
    assert_eq!(
        incomplete.to_string(),
        "objects could not be read (3 errors, first: f: document 2 (line 23): Service shop/b: \
         spec.ports[0].port: 0 is not a port (1 to 65535))"
    );
    assert_eq!(names(&incomplete.objects), ["shop/a"]);
    assert_eq!(incomplete.objects.into_changes_without_missing().len(), 6);
    // Without a valid name, any object may be missing.
    for invalid in ["name: 7\n", "name: ''\n", "x: y\n", "name: x\n  namespace: {}\n"] {
        let text = SERVICE
            .replace("name: web\n", invalid)
            .replace("  namespace: shop\n", "");
        let missing = read("f", &text).missing;
        assert!(
            missing.unnamed && missing.named.is_empty(),
            "{invalid}: {missing:?}"
        );
    }
    for invalid in [
        "5",
        "kind: 5",
        "a: 1",
        "kind: List\nitems: 5",
        "kind: List\nitems: [5]",
        "a: [",
    ] {
        assert!(read("f", invalid).missing.unnamed, "{invalid}");
    }
    // A missing namespace is `default`.
    let text = SERVICE
        .replace("  namespace: shop\n", "")
        .replace("port: 80", "port: 0");
    let missing: Vec<_> = read("f", &text)
        .missing
        .named
        .into_iter()
        .map(|(_, name)| name.to_string())
        .collect();
    assert_eq!(missing, ["default/web"]);
}

#[test]
fn a_file_that_becomes_invalid_keeps_its_earlier_objects() {
    let invalid = |name: &str| service_named(name).replace("port: 80", "port: 0");
    let changed = |name: &str| service_named(name).replace("port: 80", "port: 81");
    let first = read(
        "f",
        &(service_named("a") + &service_named("b") + &service_named("c")),
    );
    // The invalid object has a name: only that one is kept, c is removed.
    let mut second = read("f", &(changed("a") + &invalid("b") + &invalid("new")));
    second.keep_from(&first);
    assert_eq!(names(&second), ["shop/a", "shop/b"]);
    let ports: Vec<_> = second
        .services
        .iter()
        .map(|service| service.ports[0].port)
        .collect();
    assert_eq!(ports, [81, 80]);
    assert_eq!(second.errors.len(), 2);
    assert!(second.missing.is_empty());
    // The invalid part has no name: all objects are kept.
    let mut third = read("f", &(changed("a") + "---\nkind: ["));
    third.keep_from(&first);
    assert_eq!(names(&third), ["shop/a", "shop/b", "shop/c"]);
    assert!(third.clone().into_changes().is_ok());
    // They are kept as long as the file is invalid.
    let mut fourth = read("f", "kind: [");
    fourth.keep_from(&third);
    assert_eq!(names(&fourth), names(&third));
    let mut fifth = read("f", &service_named("c"));
    fifth.keep_from(&fourth);
    assert_eq!(names(&fifth), ["shop/c"]);
}

#[test]
fn an_object_that_was_never_read_stays_missing() {
    let invalid = |name: &str| service_named(name).replace("port: 80", "port: 0");
    let nothing = Objects::default();
    let mut first = read("f", &(service_named("a") + &invalid("b") + "---\nkind: ["));
    first.keep_from(&nothing);
    assert!(first.missing.unnamed);
    let mut second = read("f", &(service_named("a") + &invalid("b") + &invalid("c")));
    second.keep_from(&first);
    assert_eq!(second.missing.named.len(), 2);
    let mut third = read("f", "kind: [");
    third.keep_from(&second);
    assert!(
        !third.missing.unnamed && third.missing.named.len() == 2,
        "{:?}",
        third.missing
    );
    assert_eq!(names(&third), ["shop/a"]);
    let mut fourth = read("f", &(service_named("b") + &service_named("c")));
    fourth.keep_from(&third);
    assert!(fourth.missing.is_empty());
}

#[test]
fn objects_of_several_texts_are_joined() {
    let invalid = service_named("b").replace("port: 80", "port: 0");
    let mut all = Objects::default();
    all.extend(read("f", &(service_named("a") + &invalid)));
    assert_eq!(all.missing.named.len(), 1);
    all.extend(read("g", &format!("kind: ConfigMap\n---\n{SLICE}")));
    assert_eq!(names(&all), ["shop/a", "shop/web-abc"]);
    assert_eq!((all.errors.len(), all.other["ConfigMap"]), (1, 1));
    assert!(all.clone().into_changes().is_err());
    // Another text has the missing object.
    all.extend(read("h", &service_named("b")));
    assert!(all.into_changes().is_ok());
}

#[test]
fn one_invalid_document_in_ten_does_not_affect_the_others() {
    let mut text = String::new();
    for n in 0..100 {
        let service = SERVICE.replace("name: web\n", &format!("name: web-{n}\n"));
        let invalid = [
            "port: 80\n",
            "name: http",
            "spec:",
            "kind: Service",
            "clusterIPs: [",
        ][n / 10 % 5];
        text += &if n % 10 == 0 {
            service.replace(invalid, "port: {{\n")
        } else {
            service
        };
        text += "---\n";
    }
    let objects = read("f", &text);
    assert_eq!(objects.services.len(), 90, "{}", errors(&objects));
    assert_eq!(objects.errors.len(), 10);
}

#[test]
fn the_objects_of_recorded_clusters_are_read_without_an_error() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../proxier/tests/oracle");
    let mut fixtures = 0;
    for fixture in std::fs::read_dir(folder).unwrap() {
        let path = fixture.unwrap().path().join("objects.yaml");
        if let Ok(text) = std::fs::read_to_string(&path) {
            assert_eq!(errors(&read(&path.display().to_string(), &text)), "");
            fixtures += 1;
        }
    }
    assert_eq!(fixtures, 19);
}

#[test]
fn an_error_about_a_limit_does_not_contain_names_of_the_parser() {
    let many = |part: &str| format!("{{{}}}", part.repeat(2_000));
    let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
    let aliased = format!(
        "a: &a [{}]\nb: &b [{}]\nc: [{}]\n",
        "x,".repeat(400),
        "*a,".repeat(400),
        "*b,".repeat(400)
    );
    for text in [many("a,"), deep.clone(), aliased] {
        let objects = read("f", &text);
        let text = errors(&objects);
        assert_eq!(objects.errors.len(), 1, "{text}");
        for word in ["budget", "breach", "{", "Limits", "max_"] {
            assert!(!text.contains(word), "{text}");
        }
    }
    assert_eq!(
        errors(&read("f", &deep)),
        "f: document 1 (line 1): more than 64 nested levels\n"
    );
}

#[test]
fn names_are_printed_on_one_line() {
    let evil = "a\\nService kube-system/dns: all is well\\e[31m\\u202e";
    let text = SERVICE
        .replace("name: web\n", &format!("name: \"{evil}\"\n"))
        .replace(
            "port: 80\n",
            &format!("port: \"{evil}\"\n    protocol: \"{evil}\"\n"),
        );
    let objects = read("f\n", &text);
    assert_eq!(objects.errors.len(), 2, "{}", errors(&objects));
    let incomplete = objects.clone().into_changes().unwrap_err().to_string();
    let lines = objects.errors.iter().map(ToString::to_string);
    for line in lines.chain([incomplete]) {
        assert!(
            !line.chars().any(|c| c.is_control() || c == '\u{202e}'),
            "{line:?}"
        );
    }
}

#[test]
fn an_object_that_occurs_twice_is_returned_twice() {
    let other = SERVICE.replace("port: 80", "port: 81");
    let objects = read("f", &format!("{SERVICE}---\n{other}"));
    let ports: Vec<_> = objects
        .services
        .iter()
        .map(|service| service.ports[0].port)
        .collect();
    assert_eq!(ports, [80, 81]);
    // An object that is valid once is not missing.
    let invalid = SERVICE.replace("port: 80", "port: 0");
    let objects = read("f", &format!("{SERVICE}---\n{invalid}"));
    assert_eq!((objects.services.len(), objects.errors.len()), (1, 1));
    assert!(objects.missing.is_empty());
}
