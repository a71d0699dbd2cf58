//! Objects, sets, elements, chains and flowtables are read from the kernel as they were written.

use std::time::Duration;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{requires, since, tools};
use kernlink_nftables::{
    BaseChain, Chain, ChainFlags, ChainType, ConnectionExpectation, ConnectionLimit, ConnectionTimeout,
    ConnectionTrackingKey, Counter, DataType, Element, Elements, ExtensionHeaderKind, FibFlags, FibResult,
    Flowtable, FlowtableKey, HashKind, Helper, Hook, HostU32, InvertFlags, Limit, LimitKind, MetaKey,
    Nftables, NumberGeneratorKind, Object, ObjectData, ObjectKey, ObjectKind, Operation, PayloadBase, Policy,
    Quota, QuotaFlags, RouteKey, Set, SetFlags, SocketKey, Synproxy, SynproxyFlags, Table, TableFamily,
    TableFlags, TableKey, Timeouts, TypeOf, Value, Verdict, XfrmKey,
};

use crate::{client, listing, table};

/// `typeof ip saddr . tcp dport`, as `nft` declares sets too.
#[test]
fn nft_lists_sets_with_what_their_keys_and_data_are() {
    let field = |header, name| TypeOf::field(header, name).unwrap();
    let option = |kind, header, name| TypeOf::extension(kind, header, name).unwrap();
    let keys = [
        vec![field("ip", "saddr"), field("tcp", "dport")],
        vec![field("vlan", "id")],
        vec![
            TypeOf::Meta {
                key: MetaKey::InputName,
                tunnel: None,
            },
            field("ip", "protocol"),
            field("th", "dport"),
        ],
        vec![TypeOf::ConnectionTracking {
            key: ConnectionTrackingKey::SourceIp,
            direction: Some(0),
        }],
        vec![
            TypeOf::Meta {
                key: MetaKey::Cpu,
                tunnel: None,
            },
            field("ip", "daddr"),
        ],
        vec![TypeOf::OsFingerprint],
        vec![option(ExtensionHeaderKind::Ipv6, "frag", "frag-off")],
        vec![option(ExtensionHeaderKind::TcpOption, "maxseg", "size")],
        vec![option(ExtensionHeaderKind::Ipv4Option, "rr", "addr")],
        vec![option(ExtensionHeaderKind::SctpChunk, "data", "tsn")],
        vec![TypeOf::Socket(SocketKey::Mark)],
        vec![TypeOf::Route(RouteKey::NextHop)],
        vec![TypeOf::Fib {
            result: FibResult::AddressType,
            flags: FibFlags::DESTINATION,
        }],
        vec![TypeOf::NumberGenerator {
            kind: NumberGeneratorKind::Random,
            modulus: 4,
            offset: 1,
        }],
        vec![TypeOf::Hash {
            kind: HashKind::Symmetric,
            modulus: 8,
            offset: 0,
            seed: None,
        }],
        vec![TypeOf::Xfrm {
            key: XfrmKey::RequestId,
            direction: 0,
            number: 0,
        }],
        vec![TypeOf::Bits {
            base: PayloadBase::Transport,
            offset: 32,
            length: 32,
            tunnel: None,
        }],
    ];
    NetNs::new().run(|| {
        let mut client = client();
        client.apply(&[Operation::add(Table::new(table()))]).unwrap();
        let mut declarations = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let names: Vec<String> = key.iter().map(ToString::to_string).collect();
            let names = names.join(" . ");
            let data = [field("ip", "daddr"), field("tcp", "sport")];
            let sets = [
                Set::new(table().set(format!("set{index}")), &[]).with_type_of(key),
                Set::verdict_map(table().set(format!("verdicts{index}")), &[])
                    .with_type_of(key)
                    .with_data_type_of(&[TypeOf::Verdict]),
                Set::map(table().set(format!("map{index}")), &[], &[])
                    .with_type_of(key)
                    .with_data_type_of(&data),
            ];
            for set in sets {
                client
                    .apply(&[Operation::add(set.clone())])
                    .unwrap_or_else(|error| panic!("{names}: {error}"));
                let read = client.set(&set.key).unwrap().unwrap();
                assert_eq!(read.key_type_of().unwrap(), *key);
                assert_eq!(read.configuration().user_data, set.user_data);
            }
            declarations.extend([
                format!("\t\ttypeof {names}"),
                format!("\t\ttypeof {names} : verdict"),
                format!("\t\ttypeof {names} : ip daddr . tcp sport"),
            ]);
        }
        let listing = listing();
        let printed = client.ruleset().unwrap().to_string();
        let typed = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| line.starts_with("\t\ttype"));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(typed(&listing), declarations);
        assert_eq!(typed(&printed), declarations);
    });
}

#[test]
fn objects_are_read_as_they_were_written() {
    NetNs::new().run(|| {
        let mut client = client();
        client.apply(&[Operation::add(Table::new(table()))]).unwrap();
        let limit = |kind, flags| {
            Limit::new(25_u64, 60_u64)
                .with_burst(9_u32)
                .with_kind(kind)
                .with_flags(flags)
        };
        let timeouts = |protocol: u8, timeouts: &[(u16, u32)]| {
            ConnectionTimeout::new(protocol, Timeouts(timeouts.to_vec())).with_family(Some(2))
        };
        let tcp: Vec<(u16, u32)> = (1..=11).map(|state| (state, 100 + u32::from(state))).collect();
        let contents = [
            (
                ObjectKind::Counter,
                ObjectData::Counter(Counter::new().with_bytes(1_u64 << 60).with_packets(3_u64)),
            ),
            (
                ObjectKind::Quota,
                ObjectData::Quota(Quota::new(1_u64 << 50).with_consumed(7_u64)),
            ),
            (
                ObjectKind::Quota,
                ObjectData::Quota(
                    Quota::new(99_u64)
                        .with_flags(QuotaFlags::INVERT)
                        .with_consumed(98_u64),
                ),
            ),
            (
                ObjectKind::Limit,
                ObjectData::Limit(limit(LimitKind::Packets, InvertFlags::INVERT)),
            ),
            (
                ObjectKind::Limit,
                ObjectData::Limit(limit(LimitKind::Bytes, InvertFlags::empty())),
            ),
            (
                ObjectKind::ConnectionLimit,
                ObjectData::ConnectionLimit(ConnectionLimit::new(5_u32).with_flags(InvertFlags::INVERT)),
            ),
            (ObjectKind::Timeout, ObjectData::Timeout(timeouts(6, &tcp))),
            (
                ObjectKind::Timeout,
                ObjectData::Timeout(timeouts(17, &[(1, 11), (2, 22)])),
            ),
            (
                ObjectKind::Expectation,
                ObjectData::Expectation(
                    ConnectionExpectation::new(17_u8, 9876_u16, HostU32(120_000), 12_u8).with_family(Some(2)),
                ),
            ),
            (
                ObjectKind::Synproxy,
                ObjectData::Synproxy(
                    Synproxy::new()
                        .with_maximum_segment(Some(1460))
                        .with_window_scale(Some(14))
                        .with_flags(
                            SynproxyFlags::MAXIMUM_SEGMENT
                                | SynproxyFlags::WINDOW_SCALE
                                | SynproxyFlags::SACK,
                        ),
                ),
            ),
            (
                ObjectKind::Helper,
                ObjectData::Helper(Helper::new("ftp", 6_u8).with_family(Some(2))),
            ),
        ];
        for (number, (kind, data)) in contents.into_iter().enumerate() {
            let key = ObjectKey::new(table(), kind, format!("object-{number}"));
            let object = Object::new(key.clone(), data).with_comment("a comment");
            let added = client.apply(&[Operation::create(object.clone())]);
            if kind == ObjectKind::Helper && added.is_err() {
                // The module of the helper.
                continue;
            }
            added.unwrap_or_else(|error| panic!("{error}: {error:?} {object:?}"));
            let read = client.objects(&table()).unwrap();
            let mut read = read.into_iter().find(|object| object.key == key).unwrap();
            assert!(read.handle.take().is_some());
            assert_eq!(read, object);
        }
    });
}

#[test]
fn sets_are_read_as_they_were_written() {
    NetNs::new().run(|| {
        let mut client = client();
        client.apply(&[Operation::add(Table::new(table()))]).unwrap();
        let set = |types: &[DataType]| Set::new(table().set("s"), types);
        let addresses = [DataType::Ipv4Address, DataType::Service];
        let counter = || Counter::new().into();
        let limit = || Limit::new(3_u64, 60_u64).with_burst(5_u32).into();
        let hour = Duration::from_secs(3600);
        let dynamic = SetFlags::EVAL | SetFlags::TIMEOUT;
        let sets = [
            set(&[DataType::Mark]),
            set(&[DataType::Mark]).with_size(77).with_comment("marks"),
            set(&addresses),
            set(&addresses).with_intervals(),
            set(&[DataType::Ipv6Address, DataType::Protocol, DataType::Service])
                .with_intervals()
                .with_size(9),
            set(&[DataType::Service]).with_intervals().with_timeout(hour),
            set(&addresses).with_timeout(Duration::from_millis(12_340)),
            set(&addresses)
                .with_timeout(hour)
                .with_collection_interval(Duration::from_secs(7)),
            set(&addresses).with_flags(SetFlags::TIMEOUT),
            set(&addresses)
                .with_flags(dynamic)
                .with_size(5)
                .with_timeout(hour),
            set(&addresses).with_expressions(vec![counter()]),
            set(&addresses)
                .with_flags(SetFlags::EVAL)
                .with_size(64)
                .with_expressions(vec![counter(), limit()]),
            set(&[DataType::Service]).with_flags(SetFlags::CONSTANT),
            Set::map(
                table().set("s"),
                &addresses,
                &[DataType::Ipv4Address, DataType::Service],
            ),
            Set::map(table().set("s"), &addresses, &[DataType::Mark]).with_intervals(),
            Set::verdict_map(table().set("s"), &[DataType::InterfaceName]),
            Set::object_map(table().set("s"), &addresses, ObjectKind::Counter),
            Set::object_map(table().set("s"), &[DataType::Mark], ObjectKind::Limit).with_size(3),
        ];
        for set in sets {
            client
                .apply(&[Operation::create(set.clone())])
                .unwrap_or_else(|error| panic!("{error}: {error:?} {set:?}"));
            let read = client.sets(&table()).unwrap().remove(0);
            assert_eq!(read.configuration(), set);
            assert!(client.set(&set.key).unwrap().unwrap().handle.is_some());
            client.apply(&[Operation::delete(set.key)]).unwrap();
        }
    });
}

#[test]
fn elements_are_read_as_they_were_written() {
    NetNs::new().run(|| {
        let mut client = client();
        let counter = Object::counter(table(), "c");
        client
            .apply(&[
                Operation::add(Table::new(table())),
                Operation::add(Chain::new(table().chain("a"))),
                Operation::add(counter),
            ])
            .unwrap();
        let hour = Duration::from_secs(3600);
        let marks = || Set::new(table().set("s"), &[DataType::Mark]);
        let mark = |mark| Element::new(Value::host_u32(mark));
        let counted = |packets: u64| {
            Counter::new()
                .with_packets(packets)
                .with_bytes(1_u64 << 40)
                .into()
        };
        let limit = || Limit::new(3_u64, 60_u64).with_burst(5_u32).into();
        let verdict = |verdict| mark(1).with_verdict(verdict);
        let verdicts = || Set::verdict_map(table().set("s"), &[DataType::Mark]);
        let values = || Set::map(table().set("s"), &[DataType::Mark], &[DataType::Ipv6Address; 4]);
        let pairs = || Set::new(table().set("s"), &[DataType::Service, DataType::Mark]).with_intervals();
        let pair = |first: [u8; 2], last: [u8; 2], mark: u32| {
            let key = |port: [u8; 2]| Value::concat([Value::from(port), Value::host_u32(mark)]);
            Element::new(key(first)).with_key_end(key(last))
        };
        let cases = [
            (marks(), mark(1).with_comment("one")),
            (marks(), Element::catch_all().with_comment("all")),
            (
                marks().with_expressions(vec![counted(0)]),
                mark(1).with_expressions(vec![counted(9)]),
            ),
            (
                marks().with_expressions(vec![counted(0), limit()]),
                mark(1).with_expressions(vec![counted(9), limit()]),
            ),
            (marks(), mark(1).with_expressions(vec![counted(3)])),
            (verdicts(), verdict(Verdict::jump("a"))),
            (verdicts(), verdict(Verdict::goto("a")).with_comment("to a")),
            (verdicts(), verdict(Verdict::Accept)),
            (verdicts(), verdict(Verdict::Return)),
            (verdicts(), verdict(Verdict::Continue)),
            (verdicts(), Element::catch_all().with_verdict(Verdict::Drop)),
            (values(), mark(7).with_value([9; 64])),
            (values(), Element::catch_all().with_value([8; 64])),
            (
                Set::object_map(table().set("s"), &[DataType::Mark], ObjectKind::Counter),
                mark(1).with_object("c"),
            ),
            (pairs(), pair([0, 80], [0, 90], 4)),
            (
                pairs().with_timeout(hour),
                pair([0, 80], [0, 80], 4).with_timeout(hour * 2),
            ),
            (
                marks().with_timeout(hour),
                mark(1).with_timeout(Duration::from_millis(12_340)),
            ),
            (marks().with_timeout(hour), mark(1)),
            (marks().with_flags(SetFlags::TIMEOUT), mark(1)),
            (marks().with_flags(SetFlags::TIMEOUT), mark(1).with_timeout(hour)),
        ];
        for (set, element) in cases {
            let elements = Elements::new(set.key.clone(), [element.clone()]);
            client
                .apply(&[
                    Operation::create(set.clone()),
                    Operation::create(elements.clone()),
                ])
                .unwrap_or_else(|error| panic!("{error}: {error:?} {element:?}"));
            let listed = client.list_elements(&set.key).unwrap().remove(0);
            let found = client.find_elements(&elements).unwrap().remove(0).unwrap();
            for mut read in [listed, found] {
                let expires = set.timeout.is_some() || element.timeout.is_some();
                assert_eq!(read.expiration.take().is_some(), expires, "{element:?}");
                assert_eq!(read, element);
            }
            client.apply(&[Operation::delete(elements)]).unwrap();
            assert_eq!(client.list_elements(&set.key), Ok(vec![]));
            client.apply(&[Operation::delete(set.key)]).unwrap();
        }
    });
}

#[test]
fn an_element_that_never_expires_is_read_as_such_from_a_set_with_a_timeout() {
    since!(6, 12);
    NetNs::new().run(|| {
        let mut client = client();
        let set = Set::new(table().set("s"), &[DataType::Mark]).with_timeout(Duration::from_secs(60));
        let never = Element::new(Value::host_u32(1)).with_timeout(Duration::ZERO);
        let elements = Elements::new(set.key.clone(), [never.clone()]);
        client
            .apply(&[
                Operation::add(Table::new(table())),
                Operation::add(set.clone()),
                Operation::add(elements),
            ])
            .unwrap();
        let read = client.list_elements(&set.key).unwrap();
        assert_eq!(read, [never]);
        // What was read makes the same again.
        let operations = client.ruleset().unwrap().operations();
        client.apply(&[Operation::delete(table())]).unwrap();
        client.apply(&operations).unwrap();
        assert_eq!(client.list_elements(&set.key).unwrap(), read);
        let printed = client.ruleset().unwrap().to_string();
        assert!(printed.contains("timeout 0s"), "{printed}");
    });
}

#[test]
fn chains_and_tables_are_read_as_they_were_written() {
    NetNs::new().run(|| {
        tools::must("ip", &["link", "add", "one", "type", "veth", "peer", "two"]);
        let mut client = client();
        let base = |chain_type, hook, priority| BaseChain::new(chain_type, hook, priority);
        let filter = |hook, priority| base(ChainType::Filter, hook, priority);
        use TableFamily::{Arp, Bridge, Inet, Ip, Ip6, Netdev};
        let cases = [
            (Ip, filter(Hook::Input, i32::MIN + 1)),
            (Ip6, filter(Hook::Forward, i32::MAX - 1).with_policy(Policy::Drop)),
            (Inet, base(ChainType::Nat, Hook::Postrouting, BaseChain::SRCNAT)),
            (Inet, base(ChainType::Nat, Hook::Output, -100)),
            (Inet, base(ChainType::Route, Hook::Output, -150)),
            (Arp, filter(Hook::Input, 0)),
            (Arp, filter(Hook::Output, 1)),
            (Bridge, filter(Hook::Prerouting, -300)),
            (Bridge, filter(Hook::Postrouting, 300)),
            (Inet, filter(Hook::Ingress, 5).with_devices(["one"])),
            (Netdev, filter(Hook::Ingress, 5).with_devices(["one"])),
            (
                Netdev,
                filter(Hook::Ingress, -5)
                    .with_devices(["one", "two"])
                    .with_policy(Policy::Drop),
            ),
            (Netdev, filter(Hook::Egress, 7).with_devices(["two"])),
        ];
        for (family, base) in cases {
            let key = TableKey::new(family, "x".repeat(255));
            let table = Table::new(key.clone())
                .with_flags(TableFlags::DORMANT)
                .with_comment("a table");
            let chain = Chain::new(key.chain("y".repeat(255)))
                .with_base(base)
                .with_comment("a chain");
            client
                .apply(&[Operation::create(table.clone()), Operation::create(chain.clone())])
                .unwrap_or_else(|error| panic!("{error}: {error:?} {chain:?}"));
            assert_eq!(client.table(&key).unwrap().unwrap().configuration(), table);
            let listed = client.chains(&key).unwrap().remove(0);
            let one = client.chain(&chain.key).unwrap().unwrap();
            assert!(listed.flags.contains(ChainFlags::BASE));
            for read in [listed, one] {
                assert_eq!(read.configuration(), chain);
            }
            client.apply(&[Operation::delete(key)]).unwrap();
        }
    });
}

#[test]
fn flowtables_are_read_as_they_were_written() {
    requires!(Feature::Flowtable);
    NetNs::new().run(|| {
        tools::must("ip", &["link", "add", "one", "type", "veth", "peer", "two"]);
        let mut client = client();
        let key = TableKey::new(TableFamily::Inet, "t");
        client.apply(&[Operation::add(Table::new(key.clone()))]).unwrap();
        let name = FlowtableKey::new(key.clone(), "f");
        for devices in [&["one", "two"][..], &["two"]] {
            let flowtable = Flowtable::new(name.clone(), -7, devices.iter().copied());
            client.apply(&[Operation::create(flowtable.clone())]).unwrap();
            let mut read = client.flowtables(&key).unwrap().remove(0);
            assert!(read.handle.take().is_some());
            read.devices.sort();
            assert_eq!(read, flowtable);
            client.apply(&[Operation::delete(name.clone())]).unwrap();
        }
    });
}
