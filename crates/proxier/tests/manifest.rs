//! Manifests as people write and `kubectl` prints them.
#![cfg(feature = "manifest")]

use std::fmt::Write;

use kernlink_proxier::source::manifest::{Objects, read};
use kernlink_proxier::source::{AddressType, Protocol, ServiceType, SessionAffinity};

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
    let broken = SERVICE.replace("nodePort: 30080", "nodePort: 300800");
    let other = SERVICE.replace("name: web\n", "name: other\n");
    let objects = read("shop.yaml", &format!("{SLICE}---\n{broken}---\n{other}"));
    assert_eq!(
        errors(&objects),
        "shop.yaml: document 2 (line 17): Service shop/web: spec.ports[0].nodePort: 300800 is not a port (1 to 65535)\n"
    );
    assert_eq!(objects.services.len(), 1);
    assert_eq!(objects.endpoint_slices.len(), 1);
}

#[test]
fn a_broken_document_leaves_the_others() {
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
    // What comes before a broken one is read; the broken one is named by its own line.
    let objects = read("f", &(text + &service("c").replace("v1", "v2") + "{\"kind\":\n}"));
    assert_eq!(objects.services.len(), 2);
    assert_eq!(
        errors(&objects),
        "f: document 3 (line 6): Service c: apiVersion: \"v2\" is not read, only \"v1\"\n\
         f: document 4 (line 9): expected value\n"
    );
    // Flow style with a remark behind it is YAML and one document.
    assert_eq!(errors(&read("f", &(service("a") + "# the end"))), "");
}

#[test]
fn directives_are_no_document() {
    let objects = read(
        "f",
        &format!("%YAML 1.2\n# a shop\n---\n{SERVICE}...\n%YAML 1.2\n---\n{SLICE}"),
    );
    assert_eq!(errors(&objects), "");
    assert_eq!((objects.services.len(), objects.endpoint_slices.len()), (1, 1));
}

#[test]
fn a_slice_port_without_a_name_or_number_is_said() {
    use kernlink_proxier::config::Config;
    use kernlink_proxier::model::Model;
    use kernlink_proxier::source::SourceId;
    let slice = SLICE.replace(
        "{name: http, port: 8080, protocol: TCP}",
        "{port: 8080}, {name: http}, {name: '', port: 1}",
    );
    let mut model = Model::new(Config::new("node-a"));
    let mut said = Vec::new();
    let headless = slice.replace(
        "service-name: web",
        "service-name: web, service.kubernetes.io/headless: ''",
    );
    for change in read(
        "f",
        &format!("{slice}---\n{}", headless.replace("web-abc", "web-def")),
    )
    .into_changes()
    {
        said.extend(model.change(SourceId(0), change));
    }
    assert_eq!(said, model.object_events());
    let said: Vec<String> = said.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "EndpointSlice shop/web-abc: ports[0].name: is missing, so no port of the Service leads to it \
             (name: \"\" is the unnamed one)",
            "EndpointSlice shop/web-abc: ports[1].port: is missing or 0, so no port of the Service leads to it",
        ]
    );
}

#[test]
fn an_item_without_a_name_is_found_by_its_place() {
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
fn wrong_fields_are_named() {
    for (from, to, expected) in [
        (
            "name: web\n",
            "name: 7\n",
            "Service: metadata.name: expected a string, found the number 7",
        ),
        ("name: web\n", "x: y\n", "Service: metadata.name: is missing"),
        (
            "port: 80\n",
            "port: eighty\n",
            "Service shop/web: spec.ports[0].port: expected an integer, found the text \"eighty\"",
        ),
        (
            "port: 80\n",
            "port: 0\n",
            "Service shop/web: spec.ports[0].port: 0 is not a port (1 to 65535)",
        ),
        (
            "protocol: UDP",
            "protocol: ICMP",
            "Service shop/web: spec.ports[1].protocol: \"ICMP\" is not TCP, UDP or SCTP",
        ),
        (
            "type: NodePort",
            "type: Nodeport",
            "Service shop/web: spec.type: \"Nodeport\" is not ClusterIP, NodePort, LoadBalancer or ExternalName",
        ),
        (
            "apiVersion: v1",
            "apiVersion: v2",
            "Service shop/web: apiVersion: \"v2\" is not read, only \"v1\"",
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
        assert!(objects.services.is_empty());
    }
}

#[test]
fn an_endpoint_that_is_wrong_leaves_the_slice() {
    let objects = read("f", &SLICE.replace("10.244.1.21", "fd00::1"));
    assert_eq!(
        errors(&objects),
        "f: document 1 (line 1): EndpointSlice shop/web-abc: \
         endpoints[0].addresses[0]: fd00::1 is not an IPv4 address\n"
    );
    assert_eq!(objects.endpoint_slices[0].endpoints.len(), 1);
    let objects = read("f", &SLICE.replace("addressType: IPv4", "addressType: IPX"));
    assert_eq!(
        errors(&objects),
        "f: document 1 (line 1): EndpointSlice shop/web-abc: addressType: \"IPX\" is not IPv4, IPv6 or FQDN\n"
    );
    assert!(objects.endpoint_slices.is_empty());
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

#[test]
fn a_yaml_bomb_is_refused() {
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
fn every_tenth_service_broken_leaves_nine_tenths() {
    let mut text = String::new();
    for n in 0..100 {
        let service = SERVICE.replace("name: web\n", &format!("name: web-{n}\n"));
        let broken = [
            "port: 80\n",
            "name: http",
            "spec:",
            "kind: Service",
            "clusterIPs: [",
        ][n / 10 % 5];
        text += &if n % 10 == 0 {
            service.replace(broken, "port: {{\n")
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
fn the_worlds_of_kube_proxy_are_read_without_an_error() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle");
    let mut worlds = 0;
    for world in std::fs::read_dir(folder).unwrap() {
        let path = world.unwrap().path().join("objects.yaml");
        if let Ok(text) = std::fs::read_to_string(&path) {
            assert_eq!(errors(&read(&path.display().to_string(), &text)), "");
            worlds += 1;
        }
    }
    assert_eq!(worlds, 19);
}

#[test]
fn what_costs_too_much_to_read_is_said_in_words() {
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
        let said = errors(&objects);
        assert_eq!(objects.errors.len(), 1, "{said}");
        for word in ["budget", "breach", "{", "Limits", "max_"] {
            assert!(!said.contains(word), "{said}");
        }
    }
    assert_eq!(
        errors(&read("f", &deep)),
        "f: document 1 (line 1): nests deeper than 64 levels\n"
    );
}

#[test]
fn names_stay_on_one_line_wherever_they_are_printed() {
    use kernlink_proxier::config::Config;
    use kernlink_proxier::model::Model;
    use kernlink_proxier::source::SourceId;
    let evil = "a\\nService kube-system/dns: all is well\\e[31m\\u202e";
    let text = SERVICE
        .replace("name: web\n", &format!("name: \"{evil}\"\n"))
        .replace("name: http", &format!("name: \"{evil}\""))
        .replace(
            "kernlink.io/scheduler: wrr",
            &format!(
                "\"kernlink.io/{evil}\": \"x\\ny\"\n    kernlink.io/weights: \"zone={evil}:1,zone={evil}:1\""
            ),
        )
        .replace(
            "- {name: dns,",
            &format!("- {{name: \"{evil}\", port: 80}}\n  - {{name: dns,"),
        )
        .replace("10.96.11.12\n", "127.0.0.1\n");
    let objects = read("f\n", &format!("{text}---\n{text}"));
    assert_eq!(objects.services.len(), 2, "{}", errors(&objects));
    let mut model = Model::new(Config::new("node-a"));
    let mut said = Vec::new();
    for change in objects.into_changes() {
        said.extend(model.change(SourceId(0), change));
    }
    said.extend(model.object_events());
    assert!(said.len() > 4, "{said:?}");
    let broken = text.replace("port: 80\n", &format!("port: \"{evil}\"\n"));
    let lines = said.iter().map(ToString::to_string);
    let refused = read("f\n", &broken);
    assert!(!refused.errors.is_empty());
    let lines = lines.chain(refused.errors.iter().map(ToString::to_string));
    for line in lines {
        assert!(
            !line.chars().any(|c| c.is_control() || c == '\u{202e}'),
            "{line:?}"
        );
    }
}

#[test]
fn an_object_that_occurs_twice_is_said_and_the_last_counts() {
    use kernlink_proxier::config::Config;
    use kernlink_proxier::model::Model;
    use kernlink_proxier::source::{ObjectName, SourceId};
    let other = SERVICE.replace("port: 80", "port: 81");
    let objects = read("f", &format!("{SERVICE}---\n{other}---\n{SLICE}---\n{SLICE}"));
    let mut model = Model::new(Config::new("node-a"));
    let mut said = Vec::new();
    for change in objects.into_changes() {
        said.extend(model.change(SourceId(0), change));
    }
    let said: Vec<String> = said.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "Service shop/web: source 0 lists it more than once; the last one counts",
            "EndpointSlice shop/web-abc: source 0 lists it more than once; the last one counts",
        ]
    );
    let exposures: Vec<_> = model.exposures(&ObjectName::new("shop", "web")).collect();
    assert_eq!(exposures[0].frontends[0].port, 81);
}
