//! Lists and watch events of an API server.
#![cfg(feature = "watch")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test reports the reason by panicking"
)]

use kernlink_kubernetes::Converter;
use kernlink_kubernetes::kernlink_services::{Change, Kind, ObjectChange, ObjectName};
use kernlink_kubernetes::watch::{Event, Item, Page, Status, Unreadable, read_event, read_page, read_status};

fn page(kind: Kind, body: &str) -> Result<Page, Unreadable> {
    read_page(kind, body.as_bytes(), &mut Converter::new())
}

fn event(kind: Kind, line: &str) -> Result<Event, Unreadable> {
    read_event(kind, line.as_bytes(), &mut Converter::new())
}

fn item(event: Event) -> Item {
    match event {
        Event::Item { item, .. } => item,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_has_its_objects_its_version_and_the_token_of_the_next_page() {
    // As an API server writes it: items have no kind, and fields that are not used.
    let body = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1024","continue":"abc","remainingItemCount":1},
        "items":[{"metadata":{"name":"web","namespace":"shop","uid":"6d","resourceVersion":"8","creationTimestamp":"2026-01-01T00:00:00Z",
        "managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]},
        "spec":{"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":8080}],"clusterIP":"10.96.0.10","clusterIPs":["10.96.0.10"]},
        "status":{"loadBalancer":{}}}]}"#;
    let page = page(Kind::Service, body).unwrap();
    assert_eq!((&*page.resource_version, &*page.continue_token), ("1024", "abc"));
    let [item] = &page.items[..] else {
        panic!("{page:?}");
    };
    assert_eq!(item.name, Some(ObjectName::new("shop", "web")));
    let Some(Change::Services(ObjectChange::Upsert(service))) = &item.change else {
        panic!("{item:?}");
    };
    assert_eq!(service.ports[0].port, 80);
    assert!(item.errors.is_empty());
}

#[test]
fn an_empty_list_may_be_null() {
    let expected = Page {
        resource_version: "5".to_owned(),
        ..Page::default()
    };
    for items in [r#","items":null"#, r#","items":[]"#, ""] {
        let body = format!(r#"{{"kind":"NodeList","metadata":{{"resourceVersion":"5"}}{items}}}"#);
        assert_eq!(page(Kind::Node, &body).unwrap(), expected);
    }
}

#[test]
fn an_invalid_object_in_a_list_has_errors_and_the_others_are_read() {
    let body = r#"{"kind":"ServiceList","metadata":{"resourceVersion":"5"},"items":[
        {"metadata":{"name":"a","namespace":"x"},"spec":{"ports":[{"port":"eighty"}]}},
        {"metadata":{"name":"b","namespace":"x"},"spec":{"ports":[{"port":80000}]}},
        {"metadata":{"name":7}},
        3,
        {"metadata":{"name":"c","namespace":"x"},"spec":{"ports":[{"port":80}]}}]}"#;
    let page = page(Kind::Service, body).unwrap();
    let found: Vec<(Option<String>, bool, String)> = page
        .items
        .iter()
        .map(|item| {
            let errors: Vec<String> = item.errors.iter().map(ToString::to_string).collect();
            let name = item.name.as_ref().map(ToString::to_string);
            (name, item.change.is_some(), errors.join("; "))
        })
        .collect();
    assert_eq!(found[0].0.as_deref(), Some("x/a"));
    assert!(
        found[0]
            .2
            .starts_with("spec.ports[0].port: expected a whole number, found the text \"eighty\""),
        "{found:?}"
    );
    let reason = "spec.ports[0].port: 80000 is not a port (1 to 65535)";
    assert_eq!(found[1], (Some("x/b".to_owned()), false, reason.to_owned()));
    assert_eq!((&found[2].0, found[2].1), (&None, false));
    assert_eq!((&found[3].0, found[3].1), (&None, false));
    assert_eq!(found[4], (Some("x/c".to_owned()), true, String::new()));
}

#[test]
fn nothing_in_a_field_that_is_not_used_affects_an_object() {
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    let objects = [
        (
            Kind::Service,
            r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"7"META},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80IN}]OUT},
            "status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.1"IN}]}OUT}TOP}"#,
        ),
        (
            Kind::EndpointSlice,
            r#"{"metadata":{"name":"web-x","namespace":"shop","resourceVersion":"7","labels":{"kubernetes.io/service-name":"web"}META},
            "addressType":"IPv4","ports":[{"port":80IN}],"endpoints":[{"addresses":["10.244.0.1"],"conditions":{"ready":true}OUT}]TOP}"#,
        ),
        (
            Kind::Node,
            r#"{"metadata":{"name":"a","resourceVersion":"7"META},"spec":{"podCIDRs":["10.244.0.0/24"],"taints":[{"key":"t"IN}]OUT},
            "status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"IN}]OUT}TOP}"#,
        ),
    ];
    for (kind, template) in objects {
        let read = |meta: &str, value: &str| {
            let of = |names: &[&str]| {
                names
                    .iter()
                    .map(|name| format!(",\"{name}\":{value}"))
                    .collect::<String>()
            };
            let object = template
                .replace("META", meta)
                .replace("IN", &of(&["error", "targetPort", "effect"]))
                .replace("OUT", &of(&["conditions2", "selector", "targetRef", "capacity"]))
                .replace("TOP", &of(&["unknown"]));
            let event = event(kind, &format!(r#"{{"type":"MODIFIED","object":{object}}}"#)).unwrap();
            let body =
                format!(r#"{{"kind":"{kind}List","metadata":{{"resourceVersion":"9"}},"items":[{object}]}}"#);
            let item = page(kind, &body).unwrap().items.pop().unwrap();
            (event, item)
        };
        let (event, item) = read("", "0");
        assert!(item.change.is_some() && item.errors.is_empty(), "{item:?}");
        assert!(matches!(&event, Event::Item { resource_version, .. } if resource_version == "7"));
        // Numbers and depths that a tree of values cannot hold, too.
        for value in ["null", "{}", "[null,{}]", "\"x\"", "-1.5", "1e999", &deep] {
            for meta in [
                "managedFields",
                "ownerReferences",
                "uid",
                "finalizers",
                "deletionGracePeriodSeconds",
            ] {
                let meta = format!(r#","{meta}":{value}"#);
                assert_eq!(
                    read(&meta, value),
                    (event.clone(), item.clone()),
                    "{kind} {value}"
                );
            }
        }
    }
    // A condition as the API server stores it.
    let line = r#"{"type":"ADDED","object":{"metadata":{"name":"web","namespace":"shop","resourceVersion":"7"},"spec":{"ports":[{"port":80}]},
        "status":{"loadBalancer":{},"conditions":[{"type":"X","status":"True","lastTransitionTime":null,"reason":"r","message":""}]}}}"#;
    let item = item(event(Kind::Service, line).unwrap());
    assert!(item.change.is_some() && item.errors.is_empty(), "{item:?}");
}

#[test]
fn an_invalid_endpoint_does_not_affect_the_others() {
    let line = r#"{"type":"ADDED","object":{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"web-1","namespace":"shop",
        "resourceVersion":"9","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4","ports":[{"port":8080}],
        "endpoints":[{"addresses":["10.0.0.1"]},{"addresses":[3]},{"addresses":["10.0.0.3"]}]}}"#;
    let item = item(event(Kind::EndpointSlice, line).unwrap());
    let Some(Change::EndpointSlices(ObjectChange::Upsert(slice))) = &item.change else {
        panic!("{item:?}");
    };
    assert_eq!(slice.endpoints.len(), 2);
    assert_eq!(item.errors.len(), 1);
    assert_eq!(item.errors[0].field, "endpoints[1].addresses[0]");
}

#[test]
fn events_of_a_watch_are_read() {
    let node = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","resourceVersion":"3"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}"#;
    let added = event(Kind::Node, &format!(r#"{{"type":"ADDED","object":{node}}}"#)).unwrap();
    let modified = event(
        Kind::Node,
        &format!("{{\"object\":{node},\"type\":\"MODIFIED\"}}\n"),
    )
    .unwrap();
    assert_eq!(added, modified);
    let Event::Item {
        item,
        resource_version,
    } = added
    else {
        panic!("{added:?}");
    };
    assert_eq!(resource_version, "3");
    assert!(
        matches!(item.change, Some(Change::Nodes(ObjectChange::Upsert(_)))),
        "{item:?}"
    );

    let deleted = event(Kind::Node, &format!(r#"{{"type":"DELETED","object":{node}}}"#)).unwrap();
    let name = ObjectName::new("", "n");
    let expected = Event::Item {
        item: Item {
            name: Some(name.clone()),
            change: Some(Change::Nodes(ObjectChange::Delete(name))),
            errors: Vec::new(),
        },
        resource_version: "3".to_owned(),
    };
    assert_eq!(deleted, expected);
}

#[test]
fn a_deleted_object_needs_only_a_name() {
    let line =
        r#"{"type":"DELETED","object":{"metadata":{"name":"web","namespace":"shop"},"spec":{"ports":7}}}"#;
    let item = item(event(Kind::Service, line).unwrap());
    assert_eq!(
        item.change,
        Some(Change::Services(ObjectChange::Delete(ObjectName::new(
            "shop", "web"
        ))))
    );
}

#[test]
fn bookmarks_have_a_version_and_may_end_the_initial_list() {
    let line = |annotations: &str| {
        format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"Service","apiVersion":"v1","metadata":{{"resourceVersion":"12"{annotations}}}}}}}"#
        )
    };
    for (annotations, ends_initial_list) in [
        ("", false),
        (r#","annotations":{"k8s.io/initial-events-end":"true"}"#, true),
        (r#","annotations":{"k8s.io/initial-events-end":"false"}"#, false),
    ] {
        let expected = Event::Bookmark {
            resource_version: "12".to_owned(),
            ends_initial_list,
        };
        assert_eq!(event(Kind::Service, &line(annotations)).unwrap(), expected);
    }
}

#[test]
fn a_status_names_the_cause_and_whether_a_list_is_needed() {
    let line = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (7)","reason":"Expired","code":410}}"#;
    let Event::Error(status) = event(Kind::Service, line).unwrap() else {
        panic!();
    };
    assert!(status.needs_list());
    assert_eq!(
        status.to_string(),
        "too old resource version: 1 (7) (410 Expired)"
    );

    let body = r#"{"kind":"Status","message":"Timeout: Too large resource version: 9, current: 3","reason":"Timeout",
        "details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}"#;
    assert!(read_status(504, body.as_bytes()).needs_list());
    let body = r#"{"kind":"Status","status":"Failure","message":"services is forbidden","reason":"Forbidden","code":403}"#;
    assert!(!read_status(403, body.as_bytes()).needs_list());
    let status = read_status(502, b"<html>\nbad gateway\n");
    assert_eq!(status.to_string(), "<html>\\nbad gateway (502)");
    assert_eq!(Status::default().to_string(), "status 0");
}

#[test]
fn an_answer_of_another_form_is_an_error() {
    for body in [
        "",
        "<html>",
        "[]",
        "{}",
        r#"{"kind":"Status","metadata":{"resourceVersion":"5"}}"#,
        r#"{"kind":"NodeList","metadata":{"resourceVersion":"5"},"items":[]}"#,
        r#"{"kind":"ServiceList","metadata":{"resourceVersion":""},"items":[]}"#,
        r#"{"kind":"ServiceList","metadata":{"resourceVersion":"5"},"items":7}"#,
        r#"{"kind":"ServiceList","metadata":{"resourceVersion":"5"},"items":[{"metadata":{}}"#,
    ] {
        assert!(page(Kind::Service, body).is_err(), "{body}");
    }
    for line in ["", "{}", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":{"#] {
        assert!(event(Kind::Service, line).is_err(), "{line}");
    }
    let unknown = event(Kind::Service, r#"{"type":"LATER","object":{}}"#).unwrap();
    assert_eq!(unknown, Event::Unknown("LATER".to_owned()));
}
