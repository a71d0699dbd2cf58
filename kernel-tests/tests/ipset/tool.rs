//! Comparisons with ipset(8).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use kernlink_ipset::{
    Entry, IpSets, Operation, ProtocolPort, Reason, Set, SetFamily, SetName, SetType, notation,
};
use kernlink_kernel_tests::{kernel::Feature, requires, tools};

use crate::generator::{create_list_members, generated};
use crate::{client, examples, fill, name};

/// Every type, both families, every option: `ipset save` prints what was written, and its output parses to the same values.
#[test]
fn ipset_save_prints_what_the_crate_writes() {
    requires!(Feature::IpSet);
    let mut client = client();
    create_list_members(&mut client);
    let mut kinds = BTreeSet::new();
    for (set, entries) in generated(&mut client, 1) {
        client
            .create(&set)
            .unwrap_or_else(|error| panic!("{set}: {error:?}"));
        let operations: Vec<_> = entries
            .into_iter()
            .map(|entry| Operation::ensure(set.name, entry))
            .collect();
        for (operation, outcome) in operations.iter().zip(client.execute(&operations)) {
            match outcome {
                // An address that is all-zero after the mask of the set.
                Err(error) if error.reason() == Some(Reason::NullElement) => {}
                outcome => outcome.unwrap_or_else(|error| panic!("{set}\n{operation}: {error:?}")),
            }
        }
        kinds.insert((set.set_type, set.family));
        let contents = client.list_set(&set.name).unwrap();
        assert!(!contents.entries.is_empty(), "{set}");
        let saved = tools::ipset_save_one(&set.name.to_string());
        let printed = notation::save(std::slice::from_ref(&contents)).unwrap();
        if set.set_type == SetType::ListSet {
            assert_eq!(printed, saved);
        }
        assert_eq!(lines(&printed), lines(&saved), "{set}");
        let read = notation::parse(&saved).unwrap_or_else(|error| panic!("{error}: {}", error.error));
        assert_eq!(
            values(&read, &set.name),
            values(&notation::parse(&printed).unwrap(), &set.name),
            "{set}"
        );
        assert_eq!(
            contents.header.set.options.forceadd, set.options.forceadd,
            "{set}"
        );
    }
    println!("{} kinds of sets", kinds.len());
    assert!(kinds.len() >= 17, "{kinds:?}");
}

/// The entries that the operations add to a set.
fn values(operations: &[Operation], set: &SetName) -> BTreeSet<Entry> {
    operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::Add { set: to, entry, .. } if to == set => Some(entry.clone()),
            _ => None,
        })
        .collect()
}

/// The tool and this crate parse the same arguments.
#[test]
fn service_names_short_addresses_and_old_positions_are_parsed_as_the_tool_does() {
    requires!(Feature::IpSet);
    let mut client = client();
    for (kind, accepted, refused) in [
        (
            "hash:ip,port",
            &[
                "2.1.0.3,smtp",
                "2.1.0.3,tcp:ssh",
                "2.1.0.3,udp:domain",
                "2.1.0.3,6:http",
                "2.1.0.3,[ftp-data]",
                "2.1.0.4,tcp:[ftp-data]-ftp",
                "2.1.0.5,ftp-[ftp-data]",
                "2.1.0.6,0x50",
                "2.1,010",
            ][..],
            &[
                "2.1.0.3,no_such",
                "2.1.0.3,udp:ssh",
                "2.1.0.3,ftp-data",
                "2.1.0.3,[80]80",
            ][..],
        ),
        (
            "bitmap:port range ssh-65535",
            &["smtp", "udp:domain", "1000-1003"],
            &["sctp:80", "ssh-no_such"],
        ),
        (
            "hash:net",
            &["10.1/16", "11.010.258", "0/1"],
            &["1.2.3.256", "1.2.3.4.5", "08", "0x0a.1"],
        ),
        ("hash:net,iface", &["0/0,eth0"], &["0/33,eth0"]),
        (
            "bitmap:ip range 167772160-10.255",
            &["10.7", "167772169"],
            &["11"],
        ),
    ] {
        let words: Vec<_> = ["create", "KL-TOOL"].into_iter().chain(kind.split(' ')).collect();
        tools::must("ipset", &words);
        let create = notation::parse(&format!("create KL-CRATE {kind}\n")).unwrap();
        client.execute(&create).pop().unwrap().unwrap();
        let header = client.header(&name("KL-CRATE")).unwrap();
        let type_of = |_: &SetName| Some((header.set.set_type, header.set.family));
        for words in accepted {
            tools::must("ipset", &["add", "KL-TOOL", words]);
            let operations = notation::parse_with(&format!("add KL-CRATE {words}\n"), type_of);
            let operations = operations.unwrap_or_else(|error| panic!("{words}: {}", error.error));
            for outcome in client.execute(&operations) {
                outcome.unwrap_or_else(|error| panic!("{words}: {error:?}"));
            }
        }
        for words in refused {
            tools::run("ipset", &["add", "KL-TOOL", words]).unwrap_err();
            let operations = notation::parse_with(&format!("add KL-CRATE {words}\n"), type_of);
            let outcomes = operations.map(|operations| client.execute(&operations));
            assert!(
                outcomes.is_err() || outcomes.is_ok_and(|outcomes| outcomes.iter().any(Result::is_err)),
                "{words}"
            );
        }
        let entries = |set: &str| -> BTreeSet<String> {
            let text = tools::ipset_save_one(set).replace(set, "SET");
            text.lines()
                .filter(|line| line.starts_with("add"))
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(entries("KL-CRATE"), entries("KL-TOOL"), "{kind}");
        assert_eq!(
            client.header(&name("KL-TOOL")).unwrap().set.options.range,
            header.set.options.range
        );
        tools::must("ipset", &["destroy"]);
    }
    create_list_members(&mut client);
    let members: Vec<String> = client
        .names()
        .unwrap()
        .iter()
        .take(2)
        .map(ToString::to_string)
        .collect();
    let [first, second] = &members[..] else {
        panic!("{members:?}")
    };
    let list = Set::new(name("KL-LIST"), SetType::ListSet);
    client.create(&list).unwrap();
    tools::must("ipset", &["-A", "KL-LIST", first]);
    let text = format!("{second},before,{first}");
    let entry = Entry::parse(&text, SetType::ListSet, list.family).unwrap();
    client.add(&list.name, &entry).unwrap();
    for (text, is_member) in [
        (text, true),
        (format!("{first},after,{second}"), true),
        (format!("{first},before,{second}"), false),
    ] {
        let entry = Entry::parse(&text, SetType::ListSet, list.family).unwrap();
        assert_eq!(client.test(&list.name, &entry).unwrap(), is_member, "{text}");
        assert_eq!(
            tools::run("ipset", &["-T", "KL-LIST", &text]).is_ok(),
            is_member,
            "{text}"
        );
    }
}

/// The other direction.
#[test]
fn the_crate_lists_what_ipset_restore_writes() {
    requires!(Feature::IpSet);
    let mut client = client();
    create_list_members(&mut client);
    for (set, entries) in generated(&mut client, 2) {
        // Sets that mask their entries are not comparable.
        if set.options.netmask.is_some() || set.options.bitmask.is_some() || set.options.markmask.is_some() {
            continue;
        }
        let mut operations = vec![Operation::create(set.clone())];
        operations.extend(
            entries
                .iter()
                .map(|entry| Operation::ensure(set.name, entry.clone())),
        );
        let text = notation::render(&operations).unwrap();
        tools::run_with_input("ipset", &["restore"], &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let contents = client.list_set(&set.name).unwrap();
        let listed: BTreeSet<_> = contents.entries.iter().map(|entry| *entry.element()).collect();
        let expected: BTreeSet<_> = entries.iter().map(|entry| *entry.element()).collect();
        assert_eq!(listed, expected, "{set}");
        // An entry that was added twice has the options of the last addition.
        for entry in &contents.entries {
            let last = entries
                .iter()
                .rfind(|given| given.element() == entry.element())
                .unwrap();
            assert_eq!(entry, last, "{set}");
        }
        let options = contents.header.set.options;
        assert_eq!(
            (
                options.timeout,
                options.counters,
                options.comment,
                options.skbinfo,
                options.forceadd
            ),
            (
                set.options.timeout,
                set.options.counters,
                set.options.comment,
                set.options.skbinfo,
                set.options.forceadd
            )
        );
        assert_eq!(
            options.bucketsize.filter(|_| set.options.bucketsize.is_some()),
            set.options.bucketsize,
            "{set}"
        );
        assert_eq!(
            options.initval.filter(|_| set.options.initval.is_some()),
            set.options.initval,
            "{set}"
        );
    }
}

#[test]
fn the_examples_print_as_ipset_prints_them() {
    requires!(Feature::IpSet);
    let mut client = client();
    examples::create_members(&mut client);
    for (set, entries) in examples::examples() {
        if client.revisions(set.set_type, set.family).unwrap().is_none() {
            continue;
        }
        fill(&mut client, &set, entries.into_iter());
        let contents = client.list_set(&set.name).unwrap();
        let saved = tools::ipset_save_one(&set.name.to_string());
        assert_eq!(lines(&notation::save(&[contents]).unwrap()), lines(&saved));
    }
    let all = client.list().unwrap();
    assert_eq!(lines(&notation::save(&all).unwrap()), lines(&tools::ipset_save()));
}

/// All protocol numbers, and the ICMP messages that the tool prints by name.
#[test]
fn protocols_and_icmp_messages_print_as_ipset_prints_them() {
    requires!(Feature::IpSet);
    let mut client = client();
    let address: IpAddr = [10, 0, 0, 1].into();
    let address6: IpAddr = Ipv6Addr::LOCALHOST.into();
    let icmp = (0..=20).flat_map(|kind| [0, 1, 2, 5, 13].map(|code| ProtocolPort::icmp(kind, code)));
    let icmpv6 = (1..=5)
        .chain(128..=138)
        .flat_map(|kind| [0, 1, 2, 4].map(|code| ProtocolPort::icmpv6(kind, code)));
    let protocols = (1..=255).map(|number| ProtocolPort::new(kernlink_ipset::Protocol(number), 0));
    let inet = Set::new(name("inet"), SetType::HashIpPort);
    let inet6 = Set::new(name("inet6"), SetType::HashIpPort).with_family(SetFamily::Inet6);
    let plain: Vec<_> = protocols
        .filter(|port| !matches!(port.protocol.0, 1 | 58))
        .collect();
    fill(
        &mut client,
        &inet,
        icmp.chain(plain).map(|port| Entry::ip_port(address, port)),
    );
    fill(
        &mut client,
        &inet6,
        icmpv6.map(|port| Entry::ip_port(address6, port)),
    );
    for set in [inet, inet6] {
        let contents = client.list_set(&set.name).unwrap();
        assert_eq!(
            lines(&notation::save(&[contents]).unwrap()),
            lines(&tools::ipset_save_one(&set.name.to_string()))
        );
    }
}

/// The lines as a set. `forceadd` is removed, because not every version of the tool prints it.
fn lines(text: &str) -> BTreeSet<String> {
    text.lines()
        .map(|line| line.trim_end().replace(" forceadd", ""))
        .collect()
}
