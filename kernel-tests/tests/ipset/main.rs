//! Sets on a real kernel, with ipset(8) as second opinion.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernlink_ipset::{
    Client, Comment, Element, Entry, EntryOptions, EntryRange, Error, Fake, IfExists, Interface,
    InterfaceMatching, InterfaceSide, IpSets, MacAddress, Operation, ProtocolPort, Reason, Set, SetContents,
    SetFamily, SetName, SetOptions, SetRange, SetType, SkbMark, SkbPriority, Timeout, notation,
    uapi,
};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, since, tools, wait};
use kernlink_netlink::{AttributeWriter, Connection, Message, Namespace, Protocol, flags, netfilter};

/// A client in a namespace of its own, which the calling thread stays in.
fn client() -> Client {
    std::mem::forget(NetNs::new().enter());
    Client::open().unwrap()
}

fn name(text: &str) -> SetName {
    SetName::new(text).unwrap()
}

fn web(n: u32) -> Entry {
    Entry::ip_port(
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n)),
        ProtocolPort::tcp(80),
    )
}

fn fill(client: &mut Client, set: &Set, entries: impl Iterator<Item = Entry>) {
    client.create(set).unwrap();
    let operations: Vec<_> = entries.map(|entry| Operation::add(set.name, entry)).collect();
    for (operation, outcome) in operations.iter().zip(client.execute(&operations)) {
        outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}"));
    }
}

/// Lines without order, but for lists of sets.
fn lines(text: &str) -> BTreeSet<String> {
    text.lines()
        .map(|line| line.trim_end().replace(" forceadd", ""))
        .collect()
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn u32(&mut self) -> u32 {
        (self.next(1 << 16) as u32) << 16 | self.next(1 << 16) as u32
    }

    fn flip(&mut self) -> bool {
        self.next(2) == 1
    }

    fn address(&mut self, family: SetFamily) -> String {
        match (family, self.next(4)) {
            (SetFamily::Inet6, 0) => {
                Ipv6Addr::from_bits(u128::from(self.u32()) << 96 | u128::from(self.u32())).to_string()
            }
            (SetFamily::Inet6, 1) => {
                Ipv6Addr::from_bits(0xffff_0000_0000 | u128::from(self.u32())).to_string()
            }
            (SetFamily::Inet6, 2) => {
                Ipv6Addr::from_bits(u128::from(self.u32()) << 16 | 0x0001_0000).to_string()
            }
            (SetFamily::Inet6, _) => Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(self.u32())).to_string(),
            _ => Ipv4Addr::from_bits(0x0a00_0000 | self.u32() >> 8).to_string(),
        }
    }

    fn network(&mut self, family: SetFamily) -> String {
        let bits = if family == SetFamily::Inet6 { 128 } else { 32 };
        format!("{}/{}", self.address(family), 1 + self.next(bits))
    }

    fn port(&mut self, family: SetFamily) -> String {
        match self.next(6) {
            0 => format!("tcp:{}", self.next(65536)),
            1 => format!("udp:{}", self.next(65536)),
            2 => format!("sctp:{}", self.next(65536)),
            3 => format!("udplite:{}", self.next(65536)),
            4 => {
                let protocol = if family == SetFamily::Inet6 {
                    "icmpv6"
                } else {
                    "icmp"
                };
                format!("{protocol}:{}/{}", self.next(256), self.next(256))
            }
            _ => format!("{}:0", [2, 47, 50, 89, 200, 255][self.next(6) as usize]),
        }
    }

    fn mac(&mut self) -> String {
        let bytes: Vec<String> = (0..6).map(|_| format!("{:02x}", 1 + self.next(255))).collect();
        bytes.join(":")
    }

    fn interface(&mut self) -> String {
        let side = if self.flip() { "physdev:" } else { "" };
        format!("{side}eth{}", self.next(1000))
    }

    /// A set with options, of which each is given or not.
    fn set(&mut self, number: usize, set_type: SetType, family: SetFamily, kernel: u8) -> Set {
        let mut options = SetOptions::default();
        match set_type {
            SetType::BitmapIp | SetType::BitmapIpMac => {
                options.range = Some(SetRange::Addresses(
                    Ipv4Addr::new(10, 0, 0, 0),
                    Ipv4Addr::new(10, 0, 127, 255),
                ));
            }
            SetType::BitmapPort => options.range = Some(SetRange::Ports(0, 65535)),
            SetType::ListSet => options.size = Some(4 + self.next(20) as u32),
            _ => {
                options.hashsize = self.flip().then(|| 64 << self.next(4));
                options.maxelem = self.flip().then(|| 5000 + self.next(1000) as u32);
                options.forceadd = self.flip();
                options.bucketsize = (kernel >= 1 && self.flip()).then(|| 2 + 2 * self.next(6) as u8);
                options.initval = (kernel >= 1 && self.flip()).then(|| self.u32());
            }
        }
        match set_type {
            SetType::HashIp | SetType::BitmapIp => {
                options.netmask = self.flip().then(|| 16 + self.next(16) as u8);
            }
            SetType::HashIpMark => options.markmask = self.flip().then(|| self.u32() | 1),
            _ => {}
        }
        if set_type == SetType::HashIp && kernel >= 6 && options.netmask.is_none() && self.flip() {
            options.bitmask = Some(match family {
                SetFamily::Inet6 => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX << 64 | 0xff00)),
                _ => IpAddr::V4(Ipv4Addr::new(255, 255, 0, 255)),
            });
        }
        options.timeout = self.flip().then(|| Timeout::from_secs(1_000_000).unwrap());
        options.counters = self.flip();
        options.comment = self.flip();
        options.skbinfo = self.flip();
        Set::new(name(&format!("{number}-{set_type}-{family}")), set_type)
            .with_family(family)
            .with_options(options)
    }

    fn entry(&mut self, set: &Set) -> Entry {
        let family = set.family;
        let text = match set.set_type {
            SetType::BitmapIp => format!("10.0.{}.{}", self.next(128), self.next(256)),
            SetType::BitmapIpMac => format!("10.0.{}.{},{}", self.next(128), self.next(256), self.mac()),
            SetType::BitmapPort => self.next(65536).to_string(),
            SetType::HashIp => self.address(family),
            SetType::HashMac => self.mac(),
            SetType::HashIpMac => format!("{},{}", self.address(family), self.mac()),
            SetType::HashIpMark => format!("{},{:#x}", self.address(family), self.u32()),
            SetType::HashIpPort => format!("{},{}", self.address(family), self.port(family)),
            SetType::HashIpPortIp => format!(
                "{},{},{}",
                self.address(family),
                self.port(family),
                self.address(family)
            ),
            SetType::HashIpPortNet => format!(
                "{},{},{}",
                self.address(family),
                self.port(family),
                self.network(family)
            ),
            SetType::HashNet => self.network(family),
            SetType::HashNetNet => format!("{},{}", self.network(family), self.network(family)),
            SetType::HashNetPort => format!("{},{}", self.network(family), self.port(family)),
            SetType::HashNetPortNet => {
                format!(
                    "{},{},{}",
                    self.network(family),
                    self.port(family),
                    self.network(family)
                )
            }
            SetType::HashNetIface => format!("{},{}", self.network(family), self.interface()),
            _ => format!("member-{}", self.next(8)),
        };
        let mut entry = Entry::parse(&text, set.set_type, family).unwrap();
        let mut options = EntryOptions::default();
        // Of time-outs only the one that does not run is the same later.
        if set.options.timeout.is_some() {
            options.timeout = Some(Timeout::PERMANENT);
        }
        if set.options.counters {
            (options.packets, options.bytes) =
                (Some(u64::from(self.u32())), Some(u64::from(self.u32()) << 20));
        }
        if set.options.comment && self.flip() {
            options.comment =
                Some(Comment::new(&format!("remark {} \\ ' # -exist", self.next(1000))).unwrap());
        }
        if set.options.skbinfo {
            options.skb_mark = self.flip().then(|| SkbMark {
                mark: self.u32(),
                mask: self.u32() | 1,
            });
            options.skb_priority = self.flip().then(|| SkbPriority {
                major: self.next(65536) as u16,
                minor: 7,
            });
            options.skb_queue = self.flip().then(|| 1 + self.next(65535) as u16);
        }
        let has_network = set.set_type.to_string().contains("net");
        options.nomatch = has_network && self.next(4) == 0;
        entry = entry.with_options(options);
        entry
    }
}

/// Sets of every type and family that the kernel has, with their entries.
fn generated(client: &mut Client, seed: u64) -> Vec<(Set, Vec<Entry>)> {
    let mut numbers = Numbers(seed);
    let mut sets = Vec::new();
    for number in 0..2 {
        for set_type in SetType::ALL {
            for family in set_type.families().iter().copied() {
                let Some(revisions) = client.revisions(set_type, family).unwrap() else {
                    continue;
                };
                // Which of the optional options the kernel has: 1 for bucket sizes, 6 for bitmasks as well.
                let newest = set_type.newest_known_revision();
                let has_bitmask = matches!(
                    set_type,
                    SetType::HashIp | SetType::HashIpPort | SetType::HashNetNet
                );
                let kernel = match revisions.max {
                    max if max >= newest => 6,
                    max if has_bitmask && max + 1 == newest => 1,
                    _ => 0,
                };
                let set = numbers.set(number, set_type, family, kernel);
                let count = if set_type == SetType::ListSet { 5 } else { 30 };
                let entries = (0..count).map(|_| numbers.entry(&set)).collect();
                sets.push((set, entries));
            }
        }
    }
    sets
}

fn create_list_members(client: &mut Client) {
    for number in 0..8 {
        client
            .ensure_set(&Set::new(name(&format!("member-{number}")), SetType::BitmapPort))
            .unwrap();
    }
}

/// Every type, both families, every option: the tool prints what was written here, and both read it as the same values.
#[test]
fn what_is_written_here_ipset_save_prints() {
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
                // An all-zero address is left out by a mask of the set.
                Err(error) if error.reason() == Some(Reason::NullElement) => {}
                outcome => outcome.unwrap_or_else(|error| panic!("{set}\n{operation}: {error:?}")),
            }
        }
        kinds.insert((set.set_type, set.family));
        let mine = client.list_set(&set.name).unwrap();
        assert!(!mine.entries.is_empty(), "{set}");
        let saved = tools::ipset_save_one(&set.name.to_string());
        let printed = notation::save(std::slice::from_ref(&mine)).unwrap();
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
        assert_eq!(mine.header.set.options.forceadd, set.options.forceadd, "{set}");
    }
    println!("{} kinds of sets", kinds.len());
    assert!(kinds.len() >= 17, "{kinds:?}");
}

/// The entries of a set in a text.
fn values(operations: &[Operation], set: &SetName) -> BTreeSet<Entry> {
    operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::Add { set: to, entry, .. } if to == set => Some(entry.clone()),
            _ => None,
        })
        .collect()
}

/// The same words, given to the tool and read here.
#[test]
fn names_of_services_short_addresses_and_old_places_mean_what_they_mean_to_the_tool() {
    requires!(Feature::IpSet);
    let mut client = client();
    for (kind, taken, refused) in [
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
        let create = notation::parse(&format!("create KL-OURS {kind}\n")).unwrap();
        client.execute(&create).pop().unwrap().unwrap();
        let header = client.header(&name("KL-OURS")).unwrap();
        let known = |_: &SetName| Some((header.set.set_type, header.set.family));
        for words in taken {
            tools::must("ipset", &["add", "KL-TOOL", words]);
            let operations = notation::parse_with(&format!("add KL-OURS {words}\n"), known);
            let operations = operations.unwrap_or_else(|error| panic!("{words}: {}", error.error));
            for outcome in client.execute(&operations) {
                outcome.unwrap_or_else(|error| panic!("{words}: {error:?}"));
            }
        }
        for words in refused {
            tools::run("ipset", &["add", "KL-TOOL", words]).unwrap_err();
            let operations = notation::parse_with(&format!("add KL-OURS {words}\n"), known);
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
        assert_eq!(entries("KL-OURS"), entries("KL-TOOL"), "{kind}");
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
    for (text, is_there) in [
        (text, true),
        (format!("{first},after,{second}"), true),
        (format!("{first},before,{second}"), false),
    ] {
        let entry = Entry::parse(&text, SetType::ListSet, list.family).unwrap();
        assert_eq!(client.test(&list.name, &entry).unwrap(), is_there, "{text}");
        assert_eq!(
            tools::run("ipset", &["-T", "KL-LIST", &text]).is_ok(),
            is_there,
            "{text}"
        );
    }
}

/// And the other way round.
#[test]
fn what_ipset_restore_writes_is_read_here() {
    requires!(Feature::IpSet);
    let mut client = client();
    create_list_members(&mut client);
    for (set, entries) in generated(&mut client, 2) {
        // What the kernel would keep as something else is not comparable here.
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
        // The tool takes `wildcard` and `forceadd` like any other word; it reads what is printed here unchanged.
        tools::run_with_input("ipset", &["restore"], &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mine = client.list_set(&set.name).unwrap();
        let listed: BTreeSet<_> = mine.entries.iter().map(|entry| *entry.element()).collect();
        let wanted: BTreeSet<_> = entries.iter().map(|entry| *entry.element()).collect();
        assert_eq!(listed, wanted, "{set}");
        // The options of entries that were given twice are the last ones.
        for entry in &mine.entries {
            let last = entries
                .iter()
                .rfind(|given| given.element() == entry.element())
                .unwrap();
            assert_eq!(entry, last, "{set}");
        }
        let options = mine.header.set.options;
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

/// One entry of each kind, as text that somebody might compare.
#[test]
fn the_examples_print_like_ipset_prints_them() {
    requires!(Feature::IpSet);
    let mut client = client();
    examples::create_members(&mut client);
    for (set, entries) in examples::examples() {
        if client.revisions(set.set_type, set.family).unwrap().is_none() {
            continue;
        }
        fill(&mut client, &set, entries.into_iter());
        let mine = client.list_set(&set.name).unwrap();
        let saved = tools::ipset_save_one(&set.name.to_string());
        assert_eq!(lines(&notation::save(&[mine]).unwrap()), lines(&saved));
    }
    let all = client.list().unwrap();
    assert_eq!(lines(&notation::save(&all).unwrap()), lines(&tools::ipset_save()));
}

/// All protocol numbers and the ICMP messages, whose names the tool takes from tables of its own.
#[test]
fn protocols_and_messages_print_like_ipset_prints_them() {
    requires!(Feature::IpSet);
    let mut client = client();
    let address: IpAddr = [10, 0, 0, 1].into();
    let address6: IpAddr = Ipv6Addr::LOCALHOST.into();
    let icmp = (0..=20).flat_map(|kind| [0, 1, 2, 5, 13].map(|code| ProtocolPort::icmp(kind, code)));
    let icmpv6 = (1..=5)
        .chain(128..=138)
        .flat_map(|kind| [0, 1, 2, 4].map(|code| ProtocolPort::icmpv6(kind, code)));
    let protocols = (1..=255).map(|number| ProtocolPort::new(kernlink_ipset::Protocol(number), 0));
    let four = Set::new(name("four"), SetType::HashIpPort);
    let six = Set::new(name("six"), SetType::HashIpPort).with_family(SetFamily::Inet6);
    let plain: Vec<_> = protocols
        .filter(|port| !matches!(port.protocol.0, 1 | 58))
        .collect();
    fill(
        &mut client,
        &four,
        icmp.chain(plain).map(|port| Entry::ip_port(address, port)),
    );
    fill(
        &mut client,
        &six,
        icmpv6.map(|port| Entry::ip_port(address6, port)),
    );
    for set in [four, six] {
        let mine = client.list_set(&set.name).unwrap();
        assert_eq!(
            lines(&notation::save(&[mine]).unwrap()),
            lines(&tools::ipset_save_one(&set.name.to_string()))
        );
    }
}

/// Far more than one message each way.
#[test]
fn sixty_thousand_entries_are_one_set_again() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("large"), SetType::HashIpPort).with_hashsize(65536);
    fill(&mut client, &set, (0..60_000).map(web));
    let mut listed = client.list_set(&set.name).unwrap();
    assert_eq!(listed.header.stats.elements, 60_000);
    listed.entries.sort();
    assert!(
        listed
            .entries
            .iter()
            .eq((0..60_000).map(web).collect::<BTreeSet<_>>().iter())
    );
    let all = client.list().unwrap();
    assert_eq!((all.len(), all[0].entries.len()), (1, 60_000));
    let answers = client.test_all(&set.name, &[web(0), web(59_999), web(60_000)]);
    assert_eq!(answers, [Ok(true), Ok(true), Ok(false)]);
    let deletions: Vec<_> = (0..60_000).map(|n| Operation::delete(set.name, web(n))).collect();
    assert!(client.execute(&deletions).iter().all(Result::is_ok));
    assert_eq!(client.list_set(&set.name).unwrap().entries, []);
}

/// Entries of very different sizes fill messages to the brim.
#[test]
fn entries_with_long_comments_fit_their_messages() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("comments"), SetType::HashIpPort).with_comment();
    let entry = |n: u32| match n % 3 {
        0 => web(n),
        rest => web(n).with_comment(Comment::new(&"x".repeat(rest as usize * 127)).unwrap()),
    };
    fill(&mut client, &set, (0..5000).map(entry));
    let mut listed = client.list_set(&set.name).unwrap().entries;
    listed.sort();
    assert_eq!(
        listed,
        (0..5000)
            .map(entry)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
}

/// In the middle of a long batch: exactly those that fit are in, and the first that does not is named.
///
/// The kernel counts in parts of 1 024 buckets (`ahash_region` in
/// [`ip_set_hash_gen.h`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipset/ip_set_hash_gen.h)), so only a hash of
/// one part has an exact limit. With one entry for each bucket none of the buckets overflows, whatever the random seed of the
/// hash, and so the hash does not grow to two parts. Comments make the batch several messages.
#[test]
fn a_set_that_fills_up_says_where() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("full"), SetType::HashIpPort)
        .with_hashsize(1024)
        .with_maxelem(1001)
        .with_comment();
    client.create(&set).unwrap();
    let entry = |n| web(n).with_comment(Comment::new(&"x".repeat(100)).unwrap());
    let operations: Vec<_> = (0..3000).map(|n| Operation::add(set.name, entry(n))).collect();
    let outcomes = client.execute_until_failure(&operations);
    assert_eq!(outcomes.iter().position(Result::is_err), Some(1001));
    let error = outcomes[1001].clone().unwrap_err();
    assert_eq!(error.to_string(), format!("cannot {}", operations[1001]));
    assert_eq!(error.reason(), Some(Reason::Full { maxelem: Some(1001) }));
    assert!(
        outcomes[1002..]
            .iter()
            .all(|outcome| *outcome == Err(Error::NotAttempted))
    );
    let listed: BTreeSet<Entry> = client.list_set(&set.name).unwrap().entries.into_iter().collect();
    assert_eq!(listed, (0..1001).map(entry).collect());
    // Going on with the rest fails for each of the rest, and for nothing else.
    let outcomes = client.execute(&operations);
    assert!(
        outcomes[..1001]
            .iter()
            .all(|outcome| outcome.as_ref().unwrap_err().is_already_exists())
    );
    assert!(
        outcomes[1001..]
            .iter()
            .all(|outcome| outcome.as_ref().unwrap_err().is_full())
    );
}

/// A hash of more than 1 024 buckets counts in parts of that many. A part that has its share takes nothing more once the set as a
/// whole has reached its limit; the others go on until they have theirs. So the set takes a few hundred more than its limit, how
/// many and which depends on the random seed of the hash. What it took and what it refused is known all the same.
#[test]
fn a_large_set_that_fills_up_says_which_entries_are_in() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("full"), SetType::HashIpPort)
        .with_hashsize(32768)
        .with_maxelem(20_001);
    client.create(&set).unwrap();
    let operations: Vec<_> = (0..22_000).map(|n| Operation::add(set.name, web(n))).collect();
    let outcomes = client.execute(&operations);
    let taken: BTreeSet<Entry> = (0..)
        .zip(&outcomes)
        .filter(|(_, o)| o.is_ok())
        .map(|(n, _)| web(n))
        .collect();
    // All parts but a few have had their shares by then, so some of the last 1 999 are refused, and those parts take the others.
    assert!((20_001..22_000).contains(&taken.len()), "{}", taken.len());
    assert!(
        outcomes
            .iter()
            .flat_map(|outcome| outcome.as_ref().err())
            .all(Error::is_full)
    );
    let listed: BTreeSet<Entry> = client.list_set(&set.name).unwrap().entries.into_iter().collect();
    assert_eq!(listed, taken);
}

/// Scattered over many messages, each refusal is about the right entry.
#[test]
fn refusals_in_a_long_batch_are_about_the_right_entries() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("scattered"), SetType::HashIpPort).with_hashsize(32768);
    let is_there = |n: u32| n % 1013 == 7 || (9000..9300).contains(&n);
    fill(&mut client, &set, (0..20_000).filter(|n| is_there(*n)).map(web));
    let operations: Vec<_> = (0..20_000).map(|n| Operation::add(set.name, web(n))).collect();
    for (n, outcome) in client.execute(&operations).into_iter().enumerate() {
        assert_eq!(outcome.is_err(), is_there(n as u32), "{n}: {outcome:?}");
    }
    assert_eq!(client.header(&set.name).unwrap().stats.elements, 20_000);
}

/// The kernel adds in slices of 2^14 and goes on by itself; one command fills the set.
#[test]
fn a_long_range_is_one_command() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("range"), SetType::HashIp)
        .with_hashsize(1 << 17)
        .with_maxelem(1 << 17);
    client.create(&set).unwrap();
    let range = |text: &str| EntryRange::parse(text, set.set_type, set.family).unwrap();
    client
        .add_range(&set.name, &range("10.0.0.0-10.1.200.0"))
        .unwrap();
    let wanted = 0x1_c801;
    assert_eq!(client.header(&set.name).unwrap().stats.elements, wanted);
    // Hits the limit half way: what fits is in.
    let error = client.add_range(&set.name, &range("11.0.0.0/15")).unwrap_err();
    assert_eq!(
        error.reason(),
        Some(Reason::Full {
            maxelem: Some(1 << 17)
        })
    );
    assert!(client.header(&set.name).unwrap().stats.elements >= 1 << 17);
}

/// Destroy and rename are refused, swap and replace work.
#[test]
fn a_set_in_a_rule_is_busy_and_can_be_swapped() {
    requires!(Feature::IpSet, Feature::Iptables);
    let mut client = client();
    let (used, other) = (name("used"), name("other"));
    for set in [used, other] {
        client.create(&Set::new(set, SetType::HashIpPort)).unwrap();
    }
    client.add(&other, &web(7)).unwrap();
    let rule = [
        "-w",
        "-A",
        "INPUT",
        "-m",
        "set",
        "--match-set",
        "used",
        "src,src",
        "-j",
        "ACCEPT",
    ];
    tools::must("iptables", &rule);
    assert_eq!(client.header(&used).unwrap().stats.references, 1);
    let error = client.destroy(&used).unwrap_err();
    assert!(error.is_busy(), "{error:?}");
    assert!(client.rename(&used, &name("new")).unwrap_err().is_busy());
    assert!(client.destroy_all().unwrap_err().is_busy());
    client.swap(&used, &other).unwrap();
    assert_eq!(client.list_set(&used).unwrap().entries, [web(7)]);
    client.replace(&used, &[web(8)]).unwrap();
    assert_eq!(client.list_set(&used).unwrap().entries, [web(8)]);
    // The rule still names the set, and the other one is free.
    assert!(tools::iptables_save("filter").contains("--match-set used src,src"));
    client.destroy(&other).unwrap();
    tools::must("iptables", &["-w", "-F", "INPUT"]);
    // Rules of nf_tables let go a moment later.
    wait::until(|| client.destroy(&used));
}

/// What another process's listing blocks is done once the listing has ended, and given up when it does not end.
#[test]
fn a_listing_elsewhere_delays_destroy_swap_and_rename() {
    requires!(Feature::IpSet);
    let mut client = client();
    // Some datagrams, and soon read: the client waits a second in all for a listing to end.
    let set = Set::new(name("listed"), SetType::HashIpPort).with_hashsize(4096);
    fill(&mut client, &set, (0..4_000).map(web));
    client
        .create(&Set::new(name("other"), SetType::HashIpPort))
        .unwrap();
    let namespace = NetNs::current();
    let list = netfilter::message_type(uapi::NFNL_SUBSYS_IPSET, uapi::IPSET_CMD_LIST);
    // Begins a listing elsewhere, does something, and ends the listing: after a while, or only when that is done.
    let while_listed = |pause: Option<Duration>, work: &mut dyn FnMut()| {
        std::thread::scope(|scope| {
            let (started, wait) = std::sync::mpsc::channel();
            let (finished, until) = std::sync::mpsc::channel::<()>();
            let namespace = namespace.clone();
            scope.spawn(move || {
                namespace.run(move || {
                    let mut connection = Connection::open(Protocol::Netfilter).unwrap();
                    let whole = |w: &mut AttributeWriter<'_>| begin(w, "listed");
                    let count =
                        |message: Message<'_>| Ok::<_, kernlink_netlink::Error>(Some(message.payload.len()));
                    let mut dump = connection.dump(list, 0, whole, count).unwrap();
                    dump.next().unwrap().unwrap();
                    started.send(()).unwrap();
                    match pause {
                        Some(pause) => std::thread::sleep(pause),
                        None => drop(until.recv()),
                    }
                    assert!(dump.count() > 1);
                });
            });
            wait.recv().unwrap();
            work();
            drop(finished);
        });
    };
    let a_while = Some(Duration::from_millis(20));
    while_listed(a_while, &mut || client.swap(&set.name, &name("other")).unwrap());
    client.swap(&set.name, &name("other")).unwrap();
    while_listed(a_while, &mut || {
        client.rename(&set.name, &name("renamed")).unwrap()
    });
    client.rename(&name("renamed"), &set.name).unwrap();
    while_listed(None, &mut || {
        let error = client.destroy(&set.name).unwrap_err();
        assert!(error.is_busy(), "{error:?}");
    });
    while_listed(a_while, &mut || client.destroy(&set.name).unwrap());
    assert_eq!(client.names().unwrap(), [name("other")]);
}

/// While a token is moved on and on, a listing either shows one state that was, or says that it could not.
#[test]
fn a_set_that_changes_while_it_is_listed_is_noticed() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("restless"), SetType::HashIpPort).with_hashsize(4096);
    fill(&mut client, &set, (0..3_000).map(web));
    let namespace = NetNs::current();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            namespace.run(|| {
                let mut writer = Client::open().unwrap();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    let moved = [
                        Operation::delete(set.name, web(n)),
                        Operation::add(set.name, web(n + 3_000)),
                    ];
                    assert!(writer.execute(&moved).iter().all(Result::is_ok));
                    n += 1;
                }
            });
        });
        let mut noticed = 0;
        for _ in 0..5 {
            match client.list_set(&set.name) {
                Ok(listed) => {
                    // 3 000 in a row, or the moment between deletion and addition.
                    let there: BTreeSet<Entry> = listed.entries.iter().cloned().collect();
                    assert_eq!(there.len(), listed.entries.len());
                    assert!((2_999..=3_000).contains(&there.len()), "{}", there.len());
                }
                Err(Error::Changed { .. }) => noticed += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        println!("{noticed} of 5 listings were given up");
    });
    // At rest it can be listed again.
    assert_eq!(client.list_set(&set.name).unwrap().entries.len(), 3_000);
}

/// A client opened for another namespace works there and not here.
#[test]
fn a_client_works_in_the_namespace_it_was_opened_for() {
    requires!(Feature::IpSet);
    let mut here = client();
    let elsewhere = NetNs::new();
    let mut there = Client::open_in(&Namespace::open(elsewhere.path()).unwrap()).unwrap();
    there.create(&Set::new(name("there"), SetType::HashIp)).unwrap();
    assert_eq!(here.names().unwrap(), []);
    assert_eq!(elsewhere.run(tools::ipset_save).lines().count(), 1);
}

/// Newer options, on kernels that have them.
#[test]
fn bitmasks_are_kept_by_newer_kernels() {
    requires!(Feature::IpSet);
    since!(6, 3);
    let mut client = client();
    let mask: IpAddr = [255, 0, 255, 0].into();
    let set = Set::new(name("masked"), SetType::HashIpPort).with_bitmask(mask);
    fill(&mut client, &set, [web(0x0001_0203)].into_iter());
    let listed = client.list_set(&set.name).unwrap();
    assert_eq!(listed.header.set.options.bitmask, Some(mask));
    assert_eq!(listed.entries[0].to_string(), "10.0.2.0,tcp:80");
    assert!(tools::ipset_save().contains("bitmask 255.0.255.0"));
    let set = Set::new(name("cut"), SetType::HashIpPort).with_netmask(16);
    fill(&mut client, &set, [web(0x0001_0203)].into_iter());
    assert_eq!(
        client.list_set(&set.name).unwrap().entries[0].to_string(),
        "10.1.0.0,tcp:80"
    );
}

/// On older ones the error says since when there are any.
#[test]
fn an_option_that_the_kernel_lacks_is_refused_with_the_first_kernel() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("masked"), SetType::HashIpPort).with_bitmask([255, 0, 255, 0].into());
    let has_it = client
        .revisions(SetType::HashIpPort, SetFamily::Inet)
        .unwrap()
        .unwrap()
        .max
        >= 7;
    match client.create(&set) {
        Ok(()) => assert!(has_it),
        Err(error) => {
            assert!(error.is_unsupported() && !has_it, "{error:?}");
            assert!(
                error
                    .to_string()
                    .contains("bitmask of hash:ip,port requires Linux 6.3 or newer (revision 7"),
                "{error}"
            );
        }
    }
    // A type that no kernel has.
    let unknown: SetType = "hash:no,such".parse().unwrap();
    assert_eq!(client.revisions(unknown, SetFamily::Inet).unwrap(), None);
    let error = client.create(&Set::new(name("unknown"), unknown)).unwrap_err();
    assert!(error.is_unsupported(), "{error:?}");
}

/// The test runs itself again as root without `CAP_NET_ADMIN`.
#[test]
fn without_the_privilege_nothing_works_and_the_reason_is_clear() {
    let set = Set::new(name("a"), SetType::HashIp);
    if std::env::var_os("KERNLINK_WITHOUT_NET_ADMIN").is_some() {
        let mut client = Client::open().unwrap();
        for outcome in [
            client.create(&set),
            client.names().map(drop),
            client.destroy_all(),
        ] {
            let error = outcome.unwrap_err();
            assert!(error.is_permission_denied(), "{error:?}");
            assert_eq!(error.reason(), Some(Reason::PermissionDenied));
        }
        return;
    }
    requires!(Feature::IpSet);
    let mut client = client();
    client.create(&set).unwrap();
    let program = std::env::current_exe().unwrap();
    let test = "without_the_privilege_nothing_works_and_the_reason_is_clear";
    let setpriv = [
        "KERNLINK_WITHOUT_NET_ADMIN=1",
        "setpriv",
        "--bounding-set",
        "-net_admin",
        "--",
    ];
    let arguments = [program.to_str().unwrap(), "--exact", test, "--nocapture"];
    let said =
        tools::run("env", &[&setpriv[..], &arguments[..]].concat()).unwrap_or_else(|error| panic!("{error}"));
    assert!(said.contains("1 passed"), "{said}");
}

/// Whatever is done, in whatever order, comes out the same on the kernel and on the fake.
#[test]
fn the_fake_answers_like_the_kernel_to_random_operations() {
    requires!(Feature::IpSet);
    let mut client = client();
    let mut numbers = Numbers(7);
    for round in 0..12 {
        let mut fake = Fake::new();
        client.flush_all().unwrap();
        client.destroy_all().unwrap();
        for _ in 0..3 {
            let operations: Vec<Operation> = (0..80).map(|_| random_operation(&mut numbers)).collect();
            let stops = numbers.next(4) == 0;
            let (kernel, twin) = match stops {
                true => (
                    client.execute_until_failure(&operations),
                    fake.execute_until_failure(&operations),
                ),
                false => (client.execute(&operations), fake.execute(&operations)),
            };
            for (number, operation) in operations.iter().enumerate() {
                let kind = |outcome: &Result<(), Error>| match outcome {
                    Ok(()) => "done".to_owned(),
                    Err(Error::Refused { refusal, .. }) => {
                        format!("{:?} {}", refusal.reason, refusal.kernel.errno.0)
                    }
                    Err(error) => error.to_string(),
                };
                let before: Vec<String> = operations[..number].iter().map(ToString::to_string).collect();
                assert_eq!(
                    kind(&kernel[number]),
                    kind(&twin[number]),
                    "round {round}: {operation}\n{before:#?}"
                );
            }
            assert_eq!(contents(&mut client), contents(&mut fake), "round {round}");
            let probes: Vec<Entry> = operations
                .iter()
                .filter_map(|operation| match operation {
                    Operation::Add { entry, .. } => Some(Entry::new(*entry.element())),
                    _ => None,
                })
                .collect();
            for set in ["a", "b", "c", "d"] {
                let answers = client
                    .test_all(&name(set), &probes)
                    .into_iter()
                    .zip(fake.test_all(&name(set), &probes));
                for (probe, (kernel, twin)) in probes.iter().zip(answers) {
                    let kind = |answer: Result<bool, Error>| answer.map_err(|error| error.reason());
                    assert_eq!(kind(kernel), kind(twin), "round {round}: test {set} {probe}");
                }
            }
        }
    }
}

fn random_operation(numbers: &mut Numbers) -> Operation {
    let set = |numbers: &mut Numbers| name(["a", "b", "c", "d"][numbers.next(4) as usize]);
    let target = set(numbers);
    let if_exists = if numbers.flip() {
        IfExists::Fail
    } else {
        IfExists::Succeed
    };
    match numbers.next(14) {
        0 | 1 => {
            let set_type = [
                SetType::HashIpPort,
                SetType::HashNet,
                SetType::BitmapPort,
                SetType::ListSet,
                SetType::HashIp,
                SetType::HashNetIface,
                SetType::BitmapIpMac,
            ];
            let mut set = Set::new(target, set_type[numbers.next(7) as usize]);
            match set.set_type {
                SetType::BitmapIpMac => {
                    let (first, last) = (Ipv4Addr::new(10, 0, 0, 0), Ipv4Addr::new(10, 0, 0, 3));
                    set = set.with_range(SetRange::Addresses(first, last));
                }
                SetType::HashIp if numbers.flip() => set = set.with_netmask(31),
                _ => {}
            }
            if numbers.flip() {
                set = set.with_comment();
            }
            if set.set_type.is_hash() && numbers.flip() {
                set = set.with_maxelem(3);
            }
            Operation::Create {
                set: Box::new(set),
                if_exists,
            }
        }
        2 => Operation::Destroy {
            set: target,
            if_exists,
        },
        3 => Operation::Flush { set: target },
        4 => Operation::Rename {
            from: target,
            to: set(numbers),
        },
        5 => Operation::Swap {
            first: target,
            second: set(numbers),
        },
        other => {
            let number = numbers.next(5) as u8;
            let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
            let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
            let entry = match numbers.next(12) {
                0 => Entry::set(set(numbers)),
                5 => Entry::ip(address),
                6 => Entry::ip_mac(address, mac(numbers.next(2) as u8)),
                7 => Element::IpMac {
                    ip: address,
                    mac: None,
                }
                .into(),
                8 | 9 => {
                    let interface = Interface::new(format!("eth{}", numbers.next(3)).parse().unwrap());
                    let interface = match numbers.next(4) {
                        0 => Interface::new("eth".parse().unwrap()).with_matching(InterfaceMatching::Prefix),
                        1 => interface.with_side(InterfaceSide::BridgePort),
                        _ => interface,
                    };
                    Entry::net_iface(format!("10.{}.0.0/16", number / 3).parse().unwrap(), interface)
                }
                1 | 2 => Entry::port(u16::from(number)),
                3 | 4 => Entry::net(format!("10.{number}.0.0/16").parse().unwrap()),
                _ => web(u32::from(number)),
            };
            let entry = match numbers.next(10) {
                0 => entry.with_comment(Comment::new("x").unwrap()),
                1 => entry.with_timeout(Timeout::from_secs(5).unwrap()),
                _ => entry,
            };
            match other % 3 {
                0 => Operation::Delete {
                    set: target,
                    entry,
                    if_exists,
                },
                _ => Operation::Add {
                    set: target,
                    entry,
                    if_exists,
                },
            }
        }
    }
}

/// All sets by name, entries in order of value but for lists.
fn contents(sets: &mut dyn IpSets) -> Vec<(String, u32, Vec<Entry>)> {
    let mut contents: Vec<_> = sets
        .list()
        .unwrap()
        .into_iter()
        .map(|set| {
            let mut entries = set.entries;
            if set.header.set.set_type != SetType::ListSet {
                entries.sort();
            }
            let (set, references) = (set.header.set, set.header.stats.references);
            (format!("{} {}", set.name, set.set_type), references, entries)
        })
        .collect();
    contents.sort();
    contents
}

// --- the numbers of refusals ------------------------------------------------------------------------------------------

fn begin(w: &mut AttributeWriter<'_>, set: &str) {
    w.header(&netfilter::Header::new(0).to_bytes());
    w.u8(uapi::IPSET_ATTR_PROTOCOL, uapi::IPSET_PROTOCOL_MIN);
    w.string(uapi::IPSET_ATTR_SETNAME, set);
}

fn address(w: &mut AttributeWriter<'_>, kind: u16, text: &str) {
    let address: IpAddr = text.parse().unwrap();
    let inner = if address.is_ipv4() {
        uapi::IPSET_ATTR_IPADDR_IPV4
    } else {
        uapi::IPSET_ATTR_IPADDR_IPV6
    };
    w.nested(kind, |w| {
        w.net().address(inner, address);
    });
}

/// What the kernel answers to a message that this crate would not send.
fn answer(connection: &mut Connection, command: u8, write: impl FnOnce(&mut AttributeWriter<'_>)) -> i32 {
    let kind = netfilter::message_type(uapi::NFNL_SUBSYS_IPSET, command);
    match connection.execute_one(kind, flags::NLM_F_EXCL, write) {
        Ok(()) => 0,
        Err(error) => error.errno().map_or(-1, |errno| errno.0),
    }
}

/// Of `create NAME TYPE` with these options.
fn answer_to_create(
    connection: &mut Connection,
    (set_type, revision, family): (&str, u8, u8),
    write: impl FnOnce(&mut AttributeWriter<'_>),
) -> i32 {
    answer(connection, uapi::IPSET_CMD_CREATE, |w| {
        begin(w, "new");
        w.string(uapi::IPSET_ATTR_TYPENAME, set_type);
        w.u8(uapi::IPSET_ATTR_REVISION, revision);
        w.u8(uapi::IPSET_ATTR_FAMILY, family);
        w.nested(uapi::IPSET_ATTR_DATA, write);
    })
}

/// Of `add NAME ENTRY` with these attributes.
fn answer_to_add(
    connection: &mut Connection,
    set: &str,
    write: impl FnOnce(&mut AttributeWriter<'_>),
) -> i32 {
    answer(connection, uapi::IPSET_CMD_ADD, |w| {
        begin(w, set);
        w.nested(uapi::IPSET_ATTR_DATA, write);
    })
}

/// Those that the client cannot cause, because it refuses before; the others are provoked in the contract. Together they
/// are the table in the crate's documentation.
#[test]
fn the_kernel_means_by_its_numbers_what_the_table_says() {
    use uapi::*;
    requires!(Feature::IpSet);
    let mut client = client();
    client.create(&Set::new(name("ip"), SetType::HashIp)).unwrap();
    client
        .create(&Set::new(name("ip6"), SetType::HashIp).with_family(SetFamily::Inet6))
        .unwrap();
    client
        .create(&Set::new(name("port"), SetType::HashIpPort))
        .unwrap();
    client.create(&Set::new(name("net"), SetType::HashNet)).unwrap();
    client.create(&Set::new(name("list"), SetType::ListSet)).unwrap();
    let mut connection = Connection::open(Protocol::Netfilter).unwrap();
    let c = &mut connection;
    let ip = ("hash:ip", 0, NFPROTO_IPV4);

    let old_protocol = answer(c, IPSET_CMD_FLUSH, |w| {
        w.header(&netfilter::Header::new(0).to_bytes());
        w.u8(IPSET_ATTR_PROTOCOL, 5);
    });
    assert_eq!(old_protocol, IPSET_ERR_PROTOCOL);
    assert_eq!(
        answer_to_create(c, ("hash:ip", 99, NFPROTO_IPV4), |_| {}),
        IPSET_ERR_FIND_TYPE
    );
    assert_eq!(
        answer_to_create(c, ("hash:nothing", 0, NFPROTO_IPV4), |_| {}),
        IPSET_ERR_FIND_TYPE
    );
    let prefix = answer_to_add(c, "net", |w| {
        address(w, IPSET_ATTR_IP, "10.0.0.0");
        w.u8(IPSET_ATTR_CIDR, 0);
    });
    assert_eq!(prefix, IPSET_ERR_INVALID_CIDR);
    let netmask = answer_to_create(c, ip, |w| {
        w.u8(IPSET_ATTR_NETMASK, 33);
    });
    assert_eq!(netmask, IPSET_ERR_INVALID_NETMASK);
    // A family that the type has not: the look-up of type and family fails first.
    assert_eq!(
        answer_to_create(c, ("hash:ip", 0, 77), |_| {}),
        IPSET_ERR_INVALID_FAMILY
    );
    // The header has numbers for these, IPSET_ERR_IPADDR_IPV4 and IPSET_ERR_IPADDR_IPV6, which no kernel uses.
    let v6 = answer_to_add(c, "ip", |w| address(w, IPSET_ATTR_IP, "::1"));
    let v4 = answer_to_add(c, "ip6", |w| address(w, IPSET_ATTR_IP, "10.0.0.1"));
    assert_eq!((v6, v4), (IPSET_ERR_PROTOCOL, IPSET_ERR_PROTOCOL));
    let null = answer_to_add(c, "port", |w| {
        address(w, IPSET_ATTR_IP, "10.0.0.1");
        w.net().be_u16(IPSET_ATTR_PORT, 1);
        w.u8(IPSET_ATTR_PROTO, 0);
    });
    assert_eq!(null, IPSET_ERR_INVALID_PROTO);
    let missing = answer_to_add(c, "port", |w| {
        address(w, IPSET_ATTR_IP, "10.0.0.1");
        w.net().be_u16(IPSET_ATTR_PORT, 1);
    });
    assert_eq!(missing, IPSET_ERR_MISSING_PROTO);
    let range6 = answer_to_add(c, "ip6", |w| {
        address(w, IPSET_ATTR_IP, "::1");
        address(w, IPSET_ATTR_IP_TO, "::2");
    });
    assert_eq!(range6, IPSET_ERR_HASH_RANGE_UNSUPPORTED);
    let whole = answer_to_add(c, "net", |w| {
        address(w, IPSET_ATTR_IP, "0.0.0.0");
        address(w, IPSET_ATTR_IP_TO, "255.255.255.255");
    });
    assert_eq!(whole, IPSET_ERR_HASH_RANGE);
    let before_nothing = answer_to_add(c, "list", |w| {
        w.string(IPSET_ATTR_NAME, "ip");
        w.net().be_u32(IPSET_ATTR_CADT_FLAGS, IPSET_FLAG_BEFORE);
    });
    assert_eq!(before_nothing, IPSET_ERR_BEFORE);
    if client
        .revisions(SetType::HashIpMark, SetFamily::Inet)
        .unwrap()
        .is_some()
    {
        let markmask = answer_to_create(c, ("hash:ip,mark", 0, NFPROTO_IPV4), |w| {
            w.net().be_u32(IPSET_ATTR_MARKMASK, 0);
        });
        assert_eq!(markmask, IPSET_ERR_INVALID_MARKMASK);
    }
    if client
        .revisions(SetType::HashIp, SetFamily::Inet)
        .unwrap()
        .is_some_and(|revisions| revisions.max >= 6)
    {
        let both = answer_to_create(c, ("hash:ip", 6, NFPROTO_IPV4), |w| {
            w.u8(IPSET_ATTR_NETMASK, 24);
            address(w, IPSET_ATTR_BITMASK, "255.0.0.0");
        });
        assert_eq!(both, IPSET_ERR_BITMASK_NETMASK_EXCL);
    }
    // A list of sets takes more members than its size in these kernels.
    for number in 0..20 {
        let member = name(&format!("m{number}"));
        client.create(&Set::new(member, SetType::HashIp)).unwrap();
        client.add(&name("list"), &Entry::set(member)).unwrap();
    }
    let listed: SetContents = client.list_set(&name("list")).unwrap();
    assert_eq!(
        (listed.entries.len(), listed.header.set.options.size),
        (20, Some(8))
    );
}

const UNPRIVILEGED: &str = "KERNLINK_TEST_IS_UNPRIVILEGED";

/// The kernel answers the first request of each send only.
#[test]
fn a_caller_without_the_right_is_refused_every_operation() {
    if std::env::var_os(UNPRIVILEGED).is_some() {
        return all_are_refused();
    }
    requires!(Feature::IpSet);
    let this = std::env::current_exe().unwrap();
    let said = tools::must(
        "setpriv",
        &[
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "env",
            &format!("{UNPRIVILEGED}=1"),
            this.to_str().unwrap(),
            "--exact",
            "a_caller_without_the_right_is_refused_every_operation",
            "--nocapture",
        ],
    );
    assert!(said.contains("refused 1000"), "{said}");
}

fn all_are_refused() {
    let mut client = Client::open().unwrap();
    let operations: Vec<Operation> = (0..500)
        .flat_map(|number| {
            [
                Operation::Rename {
                    from: name(&format!("from{number}")),
                    to: name(&format!("to{number}")),
                },
                Operation::add(name(&format!("set{}", number / 10)), web(number)),
            ]
        })
        .collect();
    let outcomes = client.execute(&operations);
    for (operation, outcome) in operations.iter().zip(&outcomes) {
        let error = outcome.clone().unwrap_err();
        assert!(error.is_permission_denied(), "{operation}: {error:?}");
    }
    println!("refused {}", outcomes.len());
}
