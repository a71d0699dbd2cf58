//! Dummy links on the kernel, compared with `ip`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use kernlink_dummylink::{
    AddressFlags, AddressKey, AddressProtocol, Client, DummyLink, DummyLinks, Error, Event, Events,
    HostAddress, Lifetime, Link, LinkAddress, LinkName, LinkState, LocalRoute, Operation, Ownership, Scope,
    Selection,
};
use kernlink_kernel_tests::{
    kernel::Feature,
    netns::NetNs,
    requires, since, tools,
    traffic::{Network, Protocol, ask_many},
    wait,
};
use kernlink_netlink::Namespace;

fn name(text: &str) -> LinkName {
    text.parse().unwrap()
}

fn key(text: &str) -> AddressKey {
    text.parse().unwrap()
}

fn host(number: u32) -> LinkAddress {
    LinkAddress::host(Ipv4Addr::from(0x0a40_0000 + number).into()).unwrap()
}

/// Link, address, prefix length, scope and flags as listed by `ip -j address`.
fn listed_by_ip() -> BTreeSet<String> {
    let json: serde_json::Value =
        serde_json::from_str(&tools::must("ip", &["-j", "address", "show"])).unwrap();
    let mut listed = BTreeSet::new();
    for link in json.as_array().unwrap() {
        for address in link.get("addr_info").unwrap().as_array().unwrap() {
            let text = |field: &str| {
                address
                    .get(field)
                    .and_then(|value| value.as_str())
                    .unwrap_or_default()
                    .to_owned()
            };
            let flags: Vec<_> = [
                "secondary",
                "temporary",
                "nodad",
                "noprefixroute",
                "tentative",
                "deprecated",
            ]
            .into_iter()
            .filter(|flag| address.get(flag).is_some())
            .collect();
            listed.insert(format!(
                "{} {}/{} {} peer={} broadcast={} forever={} {flags:?}",
                link.get("ifname").unwrap().as_str().unwrap(),
                text("local"),
                address.get("prefixlen").unwrap(),
                text("scope"),
                text("address"),
                text("broadcast"),
                address.get("valid_life_time").unwrap().as_u64() == Some(u64::from(u32::MAX)),
            ));
        }
    }
    listed
}

/// The addresses listed by the client and by `ip` at a moment without changes and without duplicate address detection. The kernel
/// adds and checks IPv6 addresses asynchronously, for example link-local addresses of links that were set up.
fn both_listings(client: &mut Client) -> (Vec<HostAddress>, BTreeSet<String>) {
    wait::until(|| {
        let before = listed_by_ip();
        let listed = client.list(Selection::All).unwrap();
        let after = listed_by_ip();
        if before == after && !after.iter().any(|line| line.contains("tentative")) {
            Ok((listed, after))
        } else {
            Err(format!("changing addresses: {before:#?} {after:#?}"))
        }
    })
}

fn listed_by_client(listed: &[HostAddress]) -> BTreeSet<String> {
    let words = [
        (AddressFlags::SECONDARY, "secondary"),
        (AddressFlags::NO_DAD, "nodad"),
        (AddressFlags::NO_PREFIX_ROUTE, "noprefixroute"),
        (AddressFlags::TENTATIVE, "tentative"),
        (AddressFlags::DEPRECATED, "deprecated"),
    ];
    listed
        .iter()
        .map(|seen| {
            let address = &seen.address;
            let flags: Vec<_> = words
                .iter()
                .filter(|(flag, _)| address.flags.contains(*flag))
                .map(|(_, word)| *word)
                .collect();
            format!(
                "{} {}/{} {} peer={} broadcast={} forever={} {flags:?}",
                seen.link,
                address.key.address(),
                address.key.prefix_length(),
                address.scope,
                address
                    .key
                    .peer()
                    .map(|peer| peer.to_string())
                    .unwrap_or_default(),
                address
                    .broadcast
                    .map(|broadcast| broadcast.to_string())
                    .unwrap_or_default(),
                address.lifetime.valid == Lifetime::INFINITY,
            )
        })
        .collect()
}

#[test]
fn the_client_lists_the_same_addresses_as_ip_on_links_of_any_kind() {
    NetNs::new().run(|| {
        tools::ip(&["link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
        tools::ip(&["link", "set", "v0", "up"]);
        tools::ip(&["link", "set", "v1", "up"]);
        for address in [
            "10.1.0.1/24",
            "10.1.0.2/24",
            "10.2.0.1/32",
            "fd00:1::1/64",
            "fd00:1::2/128",
        ] {
            tools::ip(&["address", "add", address, "dev", "v0"]);
        }
        tools::ip(&["address", "add", "10.3.0.1", "peer", "10.3.0.2/32", "dev", "v1"]);
        tools::ip(&[
            "address",
            "add",
            "10.4.0.1/24",
            "broadcast",
            "+",
            "scope",
            "link",
            "valid_lft",
            "1000",
            "preferred_lft",
            "500",
            "dev",
            "v1",
        ]);
        tools::ip(&[
            "address",
            "add",
            "fd00:2::1/64",
            "nodad",
            "noprefixroute",
            "dev",
            "v1",
        ]);
        let mut client = Client::open().unwrap();
        let (listed, shown) = both_listings(&mut client);
        assert_eq!(listed_by_client(&listed), shown);
        let one = client.list(Selection::On(name("v1"))).unwrap();
        let others = client.list(Selection::Except(name("v1"))).unwrap();
        assert!(
            one.iter().all(|seen| seen.link == name("v1"))
                && others.iter().all(|seen| seen.link != name("v1"))
        );
        assert_eq!(one.len() + others.len(), listed.len());
        assert_eq!(
            client.link(&name("v0")).unwrap().unwrap().kind.as_deref(),
            Some("veth")
        );
        let names: Vec<_> = client
            .links()
            .unwrap()
            .iter()
            .map(|link: &Link| link.name.to_string())
            .collect();
        assert_eq!(names.len(), 3, "{names:?}");
    });
}

#[test]
fn the_client_and_ip_list_each_others_addresses() {
    requires!(Feature::DummyLink);
    NetNs::new().run(|| {
        let link = name("d0");
        let mut client = Client::open().unwrap();
        client
            .ensure_link(
                &DummyLink::new(link)
                    .with_mtu(1400)
                    .with_alias("test")
                    .with_state(LinkState::Up),
            )
            .unwrap();
        let shown = tools::must("ip", &["-d", "link", "show", "dev", "d0"]);
        for words in ["mtu 1400", "NOARP", "UP", "alias test", "dummy"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        let addresses = [
            LinkAddress::new(key("10.5.0.1/24"))
                .with_broadcast([10, 5, 0, 255].into())
                .with_scope(Scope::Link),
            LinkAddress::new(key("10.5.0.2/24")).with_scope(Scope::Link),
            LinkAddress::new(key("10.6.0.1/32")).with_protocol(AddressProtocol::KERNLINK),
            LinkAddress::new(key("fd00:5::1/128")),
            LinkAddress::new(key("fd00:5:1::1/64"))
                .with_flags(AddressFlags::NO_DAD | AddressFlags::NO_PREFIX_ROUTE),
            LinkAddress::new(key("10.7.0.1/24")).with_lifetime(Lifetime {
                valid: 5000,
                preferred: 4000,
            }),
        ];
        for address in &addresses {
            client.add(&link, address).unwrap();
        }
        tools::ip(&["address", "add", "10.8.0.1/20", "dev", "d0"]);
        tools::ip(&["-6", "address", "add", "fd00:8::1/100", "dev", "d0"]);
        let (listed, shown) = both_listings(&mut client);
        assert_eq!(listed_by_client(&listed), shown);
        let text = tools::must("ip", &["address", "show", "dev", "d0"]);
        assert_eq!(text.matches("inet ").count(), 5, "{text}");
        client.delete(&link, &key("10.6.0.1/32")).unwrap();
        tools::ip(&["address", "delete", "fd00:5::1/128", "dev", "d0"]);
        assert!(
            client
                .delete(&link, &key("fd00:5::1/128"))
                .unwrap_err()
                .is_not_found()
        );
        let (listed, shown) = both_listings(&mut client);
        assert_eq!(listed_by_client(&listed), shown);
        client.delete_link(&link).unwrap();
        assert!(tools::run("ip", &["link", "show", "dev", "d0"]).is_err());
    });
}

#[test]
fn the_protocol_of_an_address_is_stored() {
    requires!(Feature::DummyLink);
    since!(5, 18);
    NetNs::new().run(|| {
        let mut client = Client::open().unwrap();
        client.ensure_link(&DummyLink::new(name("d0"))).unwrap();
        for text in ["10.1.0.1/32", "fd00::1/128"] {
            client
                .add(
                    &name("d0"),
                    &LinkAddress::new(key(text)).with_protocol(AddressProtocol::KERNLINK),
                )
                .unwrap();
        }
        let protocols: Vec<_> = client
            .list(Selection::On(name("d0")))
            .unwrap()
            .iter()
            .map(|seen| seen.address.protocol)
            .collect();
        assert_eq!(protocols, [AddressProtocol::KERNLINK, AddressProtocol::KERNLINK]);
        let ownership = [
            LinkAddress::new(key("10.1.0.1/32")),
            LinkAddress::new(key("fd00::1/128")),
        ];
        assert_eq!(
            client
                .replace(&name("d0"), &ownership, &Ownership::All)
                .unwrap()
                .done,
            0,
            "the protocol was compared"
        );
    });
}

#[test]
fn printed_operations_have_the_same_effect_with_ip() {
    requires!(Feature::DummyLink);
    let link = name("d0");
    let operations = [
        Operation::AddLink(DummyLink::new(link).with_mtu(9000)),
        Operation::AddAddress(link, LinkAddress::new(key("10.5.0.1/24")).with_scope(Scope::Host)),
        Operation::AddAddress(
            link,
            LinkAddress::new(key("10.5.1.1/24")).with_flags(AddressFlags::NO_PREFIX_ROUTE),
        ),
        Operation::AddAddress(link, LinkAddress::new(key("fd00:5::1/128"))),
        Operation::AddAddress(link, LinkAddress::new(key("10.5.2.1/32"))),
        Operation::DeleteAddress(link, key("10.5.2.1/32")),
        Operation::AddRoute(link, LocalRoute::new("10.96.0.0/12".parse().unwrap())),
    ];
    let state = || {
        wait::for_ipv6_addresses();
        (
            listed_by_ip(),
            tools::must("ip", &["route", "show", "table", "local", "proto", "static"]),
        )
    };
    let by_client = NetNs::new().run(|| {
        let outcomes = Client::open().unwrap().execute(&operations);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        state()
    });
    let by_ip = NetNs::new().run(|| {
        let lines: String = operations
            .iter()
            .map(|operation| format!("{operation}\n"))
            .collect();
        tools::run_with_input("ip", &["-batch", "-"], &lines).unwrap();
        state()
    });
    assert_eq!(by_client, by_ip);
}

#[test]
fn foreign_addresses_and_desired_addresses_on_other_links_are_reported_and_not_changed() {
    requires!(Feature::DummyLink);
    NetNs::new().run(|| {
        let link = name("kube-ipvs0");
        let mut client = Client::open().unwrap();
        client.ensure_link(&DummyLink::new(link)).unwrap();
        tools::ip(&["link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
        tools::ip(&["address", "add", "10.96.0.1/32", "dev", "v0"]);
        tools::ip(&["address", "add", "172.16.0.1/24", "dev", "kube-ipvs0"]);
        let ownership = Ownership::Within(vec!["10.96.0.0/12".parse().unwrap()]);
        let desired = [LinkAddress::new(key("10.96.0.1/32"))];
        let report = client.replace(&link, &desired, &ownership).unwrap();
        assert_eq!(report.failures, []);
        assert_eq!(
            report
                .difference
                .foreign
                .iter()
                .map(|seen| seen.address.key)
                .collect::<Vec<_>>(),
            [key("172.16.0.1/24")]
        );
        assert_eq!(
            report
                .difference
                .elsewhere
                .iter()
                .map(|seen| seen.link)
                .collect::<Vec<_>>(),
            [name("v0")]
        );
        let report = client.replace(&link, &[], &ownership).unwrap();
        assert_eq!(report.done, 1);
        let listed = listed_by_ip();
        assert!(
            listed.iter().any(|line| line.starts_with("v0 10.96.0.1/32")),
            "{listed:?}"
        );
        assert!(
            listed
                .iter()
                .any(|line| line.starts_with("kube-ipvs0 172.16.0.1/24")),
            "{listed:?}"
        );
    });
}

#[test]
fn a_link_of_another_kind_is_reported_and_not_changed() {
    NetNs::new().run(|| {
        tools::ip(&["link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "v1"]);
        tools::ip(&["address", "add", "10.96.0.1/32", "dev", "kube-ipvs0"]);
        let before = (tools::must("ip", &["-d", "link"]), listed_by_ip());
        let link = name("kube-ipvs0");
        let mut client = Client::open().unwrap();
        let desired = DummyLink::new(link).with_mtu(9000).with_state(LinkState::Up);
        let error = client.ensure_link(&desired).unwrap_err();
        assert!(
            error.is_wrong_kind() && error.to_string().contains("veth"),
            "{error}"
        );
        for operation in [
            Operation::DeleteLink(link),
            Operation::AddAddress(link, host(1)),
            Operation::DeleteAddress(link, key("10.96.0.1/32")),
        ] {
            assert!(
                client.execute_one(operation.clone()).unwrap_err().is_wrong_kind(),
                "{operation}"
            );
        }
        let report = client.replace(&link, &[host(1)], &Ownership::All).unwrap();
        assert_eq!(report.done, 0);
        assert!(
            !report.failures.is_empty() && report.failures.iter().all(|(_, error)| error.is_wrong_kind())
        );
        assert_eq!((tools::must("ip", &["-d", "link"]), listed_by_ip()), before);
    });
}

#[test]
fn a_link_is_found_by_its_alternative_names() {
    requires!(Feature::DummyLink);
    since!(5, 5);
    NetNs::new().run(|| {
        let (link, other) = (name("d0"), name("kube-ipvs0"));
        let mut client = Client::open().unwrap();
        client.ensure_link(&DummyLink::new(link)).unwrap();
        tools::ip(&["link", "property", "add", "dev", "d0", "altname", "kube-ipvs0"]);
        client.ensure_link(&DummyLink::new(other).with_mtu(9000)).unwrap();
        assert_eq!(client.link(&other).unwrap().unwrap().name, link);
        assert_eq!(client.link(&link).unwrap().unwrap().mtu, 9000);
        let desired = [host(1), LinkAddress::new(key("fd00::1/128"))];
        let report = client.replace(&other, &desired, &Ownership::All).unwrap();
        assert_eq!((report.done, report.failures.len()), (2, 0), "{report:?}");
        let report = client.replace(&other, &desired, &Ownership::All).unwrap();
        assert_eq!((report.done, report.failures.len()), (0, 0), "{report:?}");
        let on = client.list(Selection::On(other)).unwrap();
        assert!(on.len() == 2 && on.iter().all(|seen| seen.link == link), "{on:?}");
        let others = client.list(Selection::Except(other)).unwrap();
        assert!(others.iter().all(|seen| seen.link != link), "{others:?}");
        client.delete_link(&other).unwrap();
        assert_eq!(client.link(&link).unwrap(), None);
    });
}

#[test]
fn a_listing_of_one_link_is_complete_during_changes() {
    requires!(Feature::DummyLink);
    NetNs::new().run(|| {
        let link = name("d0");
        let mut client = Client::open().unwrap();
        client.ensure_link(&DummyLink::new(link)).unwrap();
        // The kernel continues a dump by position, so deleting earlier addresses could hide later ones.
        let add = |range: std::ops::Range<u32>| -> Vec<_> {
            range
                .map(|number| Operation::AddAddress(link, host(number)))
                .collect()
        };
        for outcome in client.execute(&add(0..3_500)) {
            outcome.unwrap();
        }
        let unchanged: BTreeSet<_> = (1_500..3_500).map(|number| host(number).key).collect();
        let mut second = Client::open().unwrap();
        let changes = std::thread::spawn(move || {
            for number in 0..1_500 {
                second.delete(&link, &host(number).key).unwrap();
            }
        });
        loop {
            let is_last = changes.is_finished();
            match client.list(Selection::On(link)) {
                Ok(listed) => {
                    let keys: BTreeSet<_> = listed.iter().map(|seen| seen.address.key).collect();
                    let missing = unchanged.difference(&keys).count();
                    assert_eq!(
                        (missing, listed.len() - keys.len()),
                        (0, 0),
                        "missing, duplicates"
                    );
                }
                Err(Error::Netlink {
                    error: kernlink_netlink::Error::DumpInterrupted { .. },
                    ..
                }) if !is_last => {}
                Err(error) => panic!("{error:?}"),
            }
            if is_last {
                break;
            }
        }
        changes.join().unwrap();
        assert_eq!(client.list(Selection::On(link)).unwrap().len(), 2_000);
    });
}

#[test]
fn the_link_local_address_of_the_kernel_is_not_deleted() {
    requires!(Feature::DummyLink);
    NetNs::new().run(|| {
        let link = name("d0");
        let mut client = Client::open().unwrap();
        client
            .ensure_link(&DummyLink::new(link).with_state(LinkState::Up))
            .unwrap();
        let made = wait::until(|| match client.list(Selection::On(link)).unwrap().as_slice() {
            [made] => Ok(made.address.key),
            other => Err(format!("{other:?}")),
        });
        client
            .add(&link, &LinkAddress::new(key("fe80::1234/128")))
            .unwrap();
        let wide = Ownership::Within(vec!["::/0".parse().unwrap()]);
        for ownership in [Ownership::All, wide] {
            let report = client.replace(&link, &[], &ownership).unwrap();
            assert_eq!(report.failures, []);
            let foreign: Vec<_> = report
                .difference
                .foreign
                .iter()
                .map(|seen| seen.address.key)
                .collect();
            assert_eq!(foreign, [made]);
        }
        assert_eq!(client.list(Selection::On(link)).unwrap().len(), 1);
        let link_local = Ownership::Within(vec!["fe80::/10".parse().unwrap()]);
        assert_eq!(client.replace(&link, &[], &link_local).unwrap().done, 1);
        assert_eq!(client.list(Selection::On(link)).unwrap(), []);
    });
}

#[test]
fn disabled_ipv6_is_distinguished_from_a_missing_privilege() {
    requires!(Feature::DummyLink);
    NetNs::new().run(|| {
        let link = name("d0");
        let mut client = Client::open().unwrap();
        client
            .ensure_link(&DummyLink::new(link).with_state(LinkState::Up))
            .unwrap();
        tools::set_sysctl("net.ipv6.conf.d0.disable_ipv6", "1");
        let address = LinkAddress::new(key("fd00::1/128"));
        let route = LocalRoute::new("fd00:96::/112".parse().unwrap());
        for error in [
            client.add(&link, &address).unwrap_err(),
            client.ensure(&link, &address).unwrap_err(),
            client.ensure_route(&link, &route).unwrap_err(),
        ] {
            assert!(
                error.is_ipv6_disabled() && !error.is_permission_denied(),
                "{error:?}"
            );
        }
        client.add(&link, &host(1)).unwrap();
    });
}

#[test]
fn a_client_uses_the_namespace_in_which_it_was_opened() {
    let namespace = NetNs::new();
    namespace.run(|| {
        tools::ip(&[
            "link",
            "add",
            "inside",
            "type",
            "veth",
            "peer",
            "name",
            "inside-peer",
        ])
    });
    let opened = Namespace::open(namespace.path()).unwrap();
    let mut client = Client::open_in(&opened).unwrap();
    assert!(client.link(&name("inside")).unwrap().is_some());
    assert!(Client::open().unwrap().link(&name("inside")).unwrap().is_none());
}

#[test]
fn changes_without_privilege_are_refused_with_permission_denied() {
    requires!(Feature::DummyLink);
    NetNs::new().run(|| {
        Client::open()
            .unwrap()
            .ensure_link(&DummyLink::new(name("d0")))
            .unwrap();
        // Safe Rust can drop capabilities only for a new process.
        let program = std::env::current_exe().unwrap();
        let part = [
            program.to_str().unwrap(),
            "--exact",
            "helper_without_privilege",
            "--ignored",
        ];
        let arguments: Vec<_> = ["--bounding-set=-all", "--inh-caps=-all"]
            .into_iter()
            .chain(part)
            .collect();
        let output = tools::must("setpriv", &arguments);
        assert!(output.contains("1 passed"), "{output}");
    });
}

#[test]
#[ignore = "started by changes_without_privilege_are_refused_with_permission_denied"]
fn helper_without_privilege() {
    let mut client = Client::open().unwrap();
    for error in [
        client.add(&name("d0"), &host(1)).unwrap_err(),
        client.delete_link(&name("d0")).unwrap_err(),
        client.ensure_link(&DummyLink::new(name("d1"))).unwrap_err(),
    ] {
        assert!(error.is_permission_denied(), "{error:?}");
    }
    assert_eq!(client.list(Selection::On(name("d0"))).unwrap(), []);
}

#[test]
fn changes_of_links_and_addresses_are_events() {
    NetNs::new().run(|| {
        let mut events = Events::open(Some(Duration::from_secs(10))).unwrap();
        tools::ip(&["link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
        tools::ip(&["link", "set", "v0", "up"]);
        tools::ip(&["address", "add", "10.1.0.1/32", "dev", "v0"]);
        tools::ip(&["address", "add", "fd00::1/128", "nodad", "dev", "v0"]);
        // The kernel sends the event of an IPv6 address when it becomes usable, asynchronously.
        wait::for_ipv6_addresses();
        tools::ip(&["address", "delete", "10.1.0.1/32", "dev", "v0"]);
        tools::ip(&["link", "delete", "v0"]);
        let mut lines = Vec::new();
        for event in &mut events {
            lines.push(match event.unwrap() {
                Event::LinkChanged(link) => format!("link {}", link.name),
                Event::LinkDeleted(link) => format!("no link {}", link.name),
                Event::AddressChanged(seen) => format!("{} on {}", seen.address.key, seen.link),
                Event::AddressDeleted(seen) => format!("no {} on {}", seen.address.key, seen.link),
                other => panic!("{other:?}"),
            });
            if lines.last().is_some_and(|line| line == "no link v0") {
                break;
            }
        }
        let mut position = 0;
        for desired in [
            "link v0",
            "10.1.0.1/32 on v0",
            "fd00::1/128 on v0",
            "no 10.1.0.1/32 on v0",
            "no link v0",
        ] {
            let found = lines.iter().skip(position).position(|line| line == desired);
            position +=
                found.unwrap_or_else(|| panic!("{desired:?} is missing or out of order in {lines:?}")) + 1;
        }
    });
}

#[test]
fn an_overrun_of_events_is_reported_and_resync_reads_everything() {
    NetNs::new().run(|| {
        tools::ip(&["link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
        let mut events = Events::open(Some(Duration::from_secs(5))).unwrap();
        events.set_receive_buffer(4096).unwrap();
        let lines: String = (1..=200)
            .map(|number| format!("address add 10.1.0.{number}/32 dev v0\n"))
            .collect();
        tools::run_with_input("ip", &["-batch", "-"], &lines).unwrap();
        let overrun = events
            .by_ref()
            .take(300)
            .any(|event| event.unwrap() == Event::Overrun);
        assert!(overrun, "no overrun: 200 events fit into a buffer of 4 kB");
        let snapshot = events.resync().unwrap();
        let on_v0 = snapshot
            .addresses
            .iter()
            .filter(|seen| seen.link == name("v0"))
            .count();
        assert_eq!((on_v0, snapshot.links.len()), (200, 3));
        // Later events are received.
        tools::ip(&["address", "delete", "10.1.0.7/32", "dev", "v0"]);
        match events.next().unwrap().unwrap() {
            Event::AddressDeleted(seen) => assert_eq!(seen.address.key, key("10.1.0.7/32")),
            other => panic!("{other:?}"),
        }
        events.set_timeout(Some(Duration::ZERO));
        assert!(events.next().is_none());
    });
}

#[test]
fn a_local_route_makes_virtual_servers_reachable_like_an_address() {
    requires!(Feature::DummyLink, Feature::Ipvs);
    let network = Network::new(2);
    let _servers = [network.serve(Protocol::Tcp, 80), network.serve(Protocol::Udp, 80)];
    let virtual_ips: [IpAddr; 2] = ["10.96.7.7".parse().unwrap(), "fd00:96::77".parse().unwrap()];
    let link = name("kube-ipvs0");
    network.node.run(|| {
        let mut client = Client::open().unwrap();
        // IPv6 routes require the link to be up.
        client
            .ensure_link(&DummyLink::new(link).with_state(LinkState::Up))
            .unwrap();
        for prefix in ["10.96.0.0/12", "fd00:96::/112"] {
            client
                .ensure_route(&link, &LocalRoute::new(prefix.parse().unwrap()))
                .unwrap();
        }
        assert_eq!(client.routes(&link).unwrap().len(), 2);
        tools::set_sysctl("net.ipv4.ip_forward", "1");
        for (address, pods) in virtual_ips.iter().zip([
            [0, 1].map(|number| Network::pod_ipv4(number).to_string()),
            [0, 1].map(|number| format!("[{}]", Network::pod_ipv6(number))),
        ]) {
            let server = std::net::SocketAddr::new(*address, 80).to_string();
            for protocol in ["-t", "-u"] {
                tools::must("ipvsadm", &["-A", protocol, &server, "-s", "rr"]);
                for pod in &pods {
                    tools::must(
                        "ipvsadm",
                        &["-a", protocol, &server, "-r", &format!("{pod}:80"), "-m"],
                    );
                }
            }
        }
    });
    network.client.run(|| {
        tools::must(
            "ip",
            &[
                "route",
                "replace",
                "10.96.0.0/12",
                "via",
                &Network::node_ipv4().to_string(),
            ],
        );
        tools::must(
            "ip",
            &[
                "-6",
                "route",
                "replace",
                "fd00:96::/112",
                "via",
                &Network::node_ipv6().to_string(),
            ],
        );
    });
    for address in virtual_ips {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let tally = ask_many(&network.client, protocol, (address, 80).into(), 10);
            tally.assert_balanced(&["pod0", "pod1"], 0);
        }
    }
    // Without the route the address is not local and requests fail.
    network.node.run(|| {
        let mut client = Client::open().unwrap();
        client
            .delete_route(&link, &LocalRoute::new("10.96.0.0/12".parse().unwrap()))
            .unwrap();
    });
    let tally = ask_many(&network.client, Protocol::Tcp, (virtual_ips[0], 80).into(), 2);
    assert_eq!(tally.answers.len(), 0, "{tally:?}");
}
