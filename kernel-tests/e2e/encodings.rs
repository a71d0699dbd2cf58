//! Lists and watches of a real API server in JSON and in protobuf: equal objects are equal changes.

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::wait;
use kernlink_kubernetes::Converter;
use kernlink_kubernetes::watch::protobuf::{self, Frames};
use kernlink_kubernetes::watch::{self, Event, Item};
use kernlink_services::Kind;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::random_objects::{
    ADDRESS_TYPES, metadata, node, node_status, service, service_change, service_status, slice, slice_change,
};
use crate::requests::{collection, path};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const KINDS: [(Kind, &str); 3] = [
    (Kind::Service, "/api/v1/services"),
    (Kind::EndpointSlice, "/apis/discovery.k8s.io/v1/endpointslices"),
    (Kind::Node, "/api/v1/nodes"),
];
/// The objects of each kind.
const OBJECTS: usize = 200;
/// The name of the object of each kind that is created after all others.
const LAST: &str = "last";

/// Method, path, content type, body.
type Request = (&'static str, String, &'static str, String);

fn generate<T: std::fmt::Debug>(runner: &mut TestRunner, strategy: &impl Strategy<Value = T>) -> T {
    strategy.new_tree(runner).unwrap().current()
}

fn patch(path: String, patch: &Value) -> Request {
    ("PATCH", path, "application/merge-patch+json", patch.to_string())
}

/// Sends requests in order. Returns how many were successful: the API server does not accept every combination of fields.
fn send(cluster: &Cluster, requests: &[Request]) -> usize {
    let output = cluster.requests().batch(requests).output().unwrap();
    let answers = String::from_utf8_lossy(&output.stdout);
    let statuses: Vec<&str> = answers.lines().collect();
    assert_eq!(
        statuses.len(),
        requests.len(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // 404: an object that was refused.
    let is_known = |status: &&&str| ["200", "201", "404", "422"].contains(*status);
    assert_eq!(
        statuses.iter().filter(is_known).count(),
        requests.len(),
        "{answers}"
    );
    statuses.iter().filter(|status| status.starts_with('2')).count()
}

/// Random objects of all kinds.
fn objects(runner: &mut TestRunner) -> Vec<Value> {
    let mut objects = Vec::new();
    for number in 0..OBJECTS {
        objects.push(generate(runner, &service(format!("s{number}"))));
        let address_type = ADDRESS_TYPES[number % ADDRESS_TYPES.len()];
        objects.push(generate(runner, &slice(format!("e{number}"), address_type)));
        objects.push(generate(runner, &node(format!("node-{number}"))));
    }
    objects
}

fn statuses(runner: &mut TestRunner, objects: &[Value]) -> Vec<Request> {
    let with_status = objects.iter().filter_map(|object| {
        let status = match object["kind"].as_str()? {
            "Service" => generate(runner, &service_status()),
            "Node" => generate(runner, &node_status()),
            _ => return None,
        };
        Some(patch(
            format!("{}/status", path(object)),
            &json!({"status": status}),
        ))
    });
    with_status.collect()
}

/// Random changes of objects, and deletions.
fn changes(runner: &mut TestRunner, objects: &[Value]) -> Vec<Request> {
    let changes = objects.iter().enumerate().map(|(number, object)| {
        if number % 7 == 0 {
            return ("DELETE", path(object), JSON, String::new());
        }
        let mut change = match object["kind"].as_str().unwrap() {
            "Service" => json!({"spec": generate(runner, &service_change())}),
            "EndpointSlice" => generate(runner, &slice_change(object["addressType"].as_str().unwrap())),
            _ => json!({"spec": {"unschedulable": number % 2 == 0}}),
        };
        change["metadata"] = generate(runner, &metadata());
        patch(path(object), &change)
    });
    changes.collect()
}

/// The list of a kind in both encodings, with its version.
fn list(cluster: &Cluster, kind: Kind, path: &str) -> ([Vec<Item>; 2], String) {
    let requests = cluster.requests();
    let in_json = watch::read_page(kind, &requests.read(path, JSON), &mut Converter::new()).unwrap();
    let body = requests.read(path, PROTOBUF);
    let in_protobuf = protobuf::read_page(kind, body.into(), &mut Converter::new()).unwrap();
    ([in_json.items, in_protobuf.items], in_json.resource_version)
}

/// The events of a watch in both encodings.
fn watched(cluster: &Cluster, kind: Kind, path: &str) -> [Vec<Event>; 2] {
    let requests = cluster.requests();
    let body = requests.read(path, JSON);
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let in_json = lines.map(|line| watch::read_event(kind, line, &mut Converter::new()).unwrap());
    let in_json = in_json.collect();
    let mut frames = Frames::new();
    frames.push(&requests.read(path, PROTOBUF));
    let frames = std::iter::from_fn(|| frames.next_frame().unwrap());
    let in_protobuf = frames.map(|frame| protobuf::read_event(kind, frame, &mut Converter::new()).unwrap());
    [in_json, in_protobuf.collect()]
}

/// Reads a watch until both encodings have the object that was created last, and the end of the initial list if it has one.
fn complete(cluster: &Cluster, kind: Kind, path: &str, has_list: bool) -> [Vec<Item>; 2] {
    let both = wait::until(|| {
        let both = watched(cluster, kind, path);
        let is_complete = |events: &Vec<Event>| {
            let is_end = |event: &Event| {
                matches!(
                    event,
                    Event::Bookmark {
                        ends_initial_list: true,
                        ..
                    }
                )
            };
            let is_last = |event: &Event| {
                let Event::Item { item, .. } = event else {
                    return false;
                };
                item.name.as_ref().is_some_and(|name| &*name.name == LAST)
            };
            events.iter().any(is_last) && events.iter().any(is_end) == has_list
        };
        if both.iter().all(is_complete) {
            Ok(both)
        } else {
            Err(format!("{both:?}"))
        }
    });
    both.map(|events| {
        let items = events.into_iter().filter_map(|event| match event {
            Event::Item { item, .. } => Some(item),
            Event::Bookmark { .. } => None,
            other => panic!("{other:?}"),
        });
        items.collect()
    })
}

/// Why the server does not stream a list, which is equal in both encodings. `None` if it does.
fn refused(cluster: &Cluster, kind: Kind, path: &str) -> Option<String> {
    let both = watched(cluster, kind, path);
    let [Event::Error(status)] = &both[0][..] else {
        return None;
    };
    assert_eq!(both[0], both[1], "{kind}");
    Some(status.to_string())
}

/// Checks that two encodings have equal objects, and that each of them can be used.
fn assert_equal(kind: Kind, [in_json, in_protobuf]: &[Vec<Item>; 2]) {
    for (one, other) in in_json.iter().zip(in_protobuf) {
        assert_eq!(one, other, "{kind}");
        assert!(
            one.change.is_some(),
            "the API server accepted an object that cannot be used: {one:#?}"
        );
    }
    assert_eq!(in_json.len(), in_protobuf.len(), "{kind}");
}

#[test]
#[ignore = "the same in every mode: cargo xtask e2e runs it once"]
fn random_objects_are_equal_changes_in_json_and_protobuf() {
    NetNs::new().run(|| {
        let cluster = Cluster::start_with(&["--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112"]);
        cluster.create(&json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}));
        let mut runner = TestRunner::default();
        let objects = objects(&mut runner);
        let creations: Vec<Request> = objects
            .iter()
            .map(|object| ("POST", collection(object), JSON, object.to_string()))
            .collect();
        let created = send(&cluster, &creations);
        let with_status = send(&cluster, &statuses(&mut runner, &objects));
        let versions = KINDS.map(|(kind, path)| {
            let (lists, version) = list(&cluster, kind, path);
            assert_equal(kind, &lists);
            println!("{kind}: {} objects in a list", lists[0].len());
            assert!(lists[0].len() > OBJECTS / 3, "the API server refuses too many");
            version
        });

        let changed = send(&cluster, &changes(&mut runner, &objects));
        let changed_statuses = send(&cluster, &statuses(&mut runner, &objects));
        println!(
            "accepted: {created} of {} objects, {with_status} statuses; then {changed} changes and {changed_statuses} statuses",
            objects.len()
        );
        let last = [
            json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": LAST, "namespace": "shop"}, "spec": {"ports": [{"port": 80}]}}),
            json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": {"name": LAST, "namespace": "shop"}, "addressType": "IPv4", "endpoints": []}),
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": LAST}}),
        ];
        last.iter().for_each(|object| cluster.create(object));
        for ((kind, path), version) in KINDS.into_iter().zip(versions) {
            let watch = format!("{path}?watch=1&timeoutSeconds=2&resourceVersion={version}");
            let events = complete(&cluster, kind, &watch, false);
            assert_equal(kind, &events);
            println!("{kind}: {} events in a watch", events[0].len());
            assert!(events[0].len() > OBJECTS / 3, "the API server refuses too many");

            let streamed = format!(
                "{path}?watch=1&timeoutSeconds=2&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"
            );
            if let Some(message) = refused(&cluster, kind, &streamed) {
                // Such as with etcd 3.4, which cannot report progress.
                println!("{kind}: lists are not streamed: {message}");
                continue;
            }
            let streamed = complete(&cluster, kind, &streamed, true).map(|mut items| {
                items.sort_by_key(|item| item.name.clone());
                items
            });
            assert_equal(kind, &streamed);
            let (mut lists, _) = list(&cluster, kind, path);
            lists.iter_mut().for_each(|items| items.sort_by_key(|item| item.name.clone()));
            assert_equal(kind, &lists);
            assert_eq!(streamed, lists, "{kind}");
            println!("{kind}: {} objects in a streamed list", streamed[0].len());
        }
    });
}
