//! A set of every type with entries, for the contract, the tests in `tests/` and the kernel tests, which include this file.

use std::net::Ipv4Addr;

use kernlink_ipset::{
    Comment, Entry, IpSets, Set, SetFamily, SetName, SetRange, SetType, SkbMark, SkbPriority, Timeout,
};

/// A set of every type and family with all extensions, and entries with every option of the type. The entries are permanent, so
/// that they list the same timeout at any time.
pub(crate) fn examples() -> Vec<(Set, Vec<Entry>)> {
    let mut examples = Vec::new();
    for &set_type in SetType::ALL {
        for family in set_type.families().iter().copied() {
            let mut set = Set::new(set_name(&format!("{set_type}-{family}")), set_type)
                .with_family(family)
                .with_timeout(Timeout::from_secs(1000).unwrap())
                .with_counters()
                .with_comment()
                .with_skbinfo();
            if matches!(set_type, SetType::BitmapIp | SetType::BitmapIpMac) {
                set = set.with_range(SetRange::Addresses(
                    Ipv4Addr::new(10, 0, 0, 0),
                    Ipv4Addr::new(10, 0, 255, 255),
                ));
            }
            if set_type == SetType::HashIpMark {
                set = set.with_markmask(0x00ff_ff0f);
            }
            if set_type.is_hash() {
                set = set.with_hashsize(2048).with_maxelem(4321);
            }
            let entries = texts(set_type, family)
                .into_iter()
                .enumerate()
                .map(|(index, text)| {
                    let text = format!("{text} timeout 0 packets {index} bytes {}", index * 1000);
                    let entry = Entry::parse(&text, set_type, family).unwrap();
                    match index % 3 {
                        0 => entry.with_comment(Comment::new("a comment, with \\ and 'quotes'").unwrap()),
                        1 => entry
                            .with_skb_mark(SkbMark {
                                mark: 0x1234_5678,
                                mask: 0xffff_0000,
                            })
                            .with_skb_priority(SkbPriority {
                                major: 0x12,
                                minor: 0x3456,
                            })
                            .with_skb_queue(0x789a),
                        _ => entry.with_skb_mark(SkbMark {
                            mark: 1,
                            mask: u32::MAX,
                        }),
                    }
                })
                .collect();
            examples.push((set, entries));
        }
    }
    examples
}

/// Entries of a type, in the form in which ipset(8) prints them.
fn texts(set_type: SetType, family: SetFamily) -> Vec<String> {
    let inet6 = family == SetFamily::Inet6;
    let a = if inet6 { "2001:db8::1234" } else { "10.0.1.2" };
    let b = if inet6 { "::ffff:10.1.2.3" } else { "10.0.3.4" };
    let net = if inet6 {
        "2001:db8:12::/46"
    } else {
        "172.16.0.0/13"
    };
    let net2 = if inet6 {
        "fe80::/64 nomatch"
    } else {
        "192.168.4.0/22 nomatch"
    };
    let plain2 = net2.trim_end_matches(" nomatch");
    let all = if inet6 { "::/0" } else { "0.0.0.0/0" };
    let icmp = if inet6 {
        "ipv6-icmp:echo-request"
    } else {
        "icmp:8/7"
    };
    match set_type {
        SetType::BitmapIp | SetType::HashIp => vec![a.into(), b.into()],
        SetType::BitmapIpMac => vec![a.into(), format!("{b},0A:0B:0C:0D:0E:0F")],
        SetType::BitmapPort => vec!["0".into(), "4660".into(), "65535".into()],
        SetType::HashMac => vec!["0A:0B:0C:0D:0E:0F".into(), "02:00:00:00:00:01".into()],
        SetType::HashIpMac => vec![format!("{a},0A:0B:0C:0D:0E:0F"), format!("{b},02:00:00:00:00:01")],
        SetType::HashIpMark => vec![format!("{a},0x00345608"), format!("{b},0x00000000")],
        SetType::HashIpPort => {
            vec![
                format!("{a},tcp:4660"),
                format!("{b},udp:0"),
                format!("{a},{icmp}"),
                format!("{b},ospf:0"),
            ]
        }
        SetType::HashIpPortIp => vec![format!("{a},sctp:4660,{b}"), format!("{b},udplite:1,{a}")],
        SetType::HashIpPortNet => vec![
            format!("{a},tcp:4660,{net}"),
            format!("{b},udp:1,{a}"),
            format!("{b},udp:1,{net2}"),
        ],
        SetType::HashNet => vec![net.into(), net2.into(), a.into()],
        SetType::HashNetNet => vec![
            format!("{net},{plain2}"),
            format!("{a},{net2}"),
            format!("{a},{b}"),
        ],
        SetType::HashNetPort => vec![
            format!("{net},tcp:4660"),
            format!("{plain2},udp:1 nomatch"),
            format!("{a},{icmp}"),
        ],
        SetType::HashNetPortNet => {
            vec![
                format!("{net},tcp:4660,{plain2}"),
                format!("{all},udp:1,{net2}"),
                format!("{a},tcp:1,{b}"),
            ]
        }
        SetType::HashNetIface => {
            vec![
                format!("{net},eth0"),
                format!("{plain2},physdev:veth nomatch wildcard"),
                format!("{all},lo"),
            ]
        }
        SetType::ListSet => vec!["member-b".into(), "member-a".into()],
        _ => Vec::new(),
    }
}

/// Creates the sets that are members in the example of `list:set`.
pub(crate) fn create_members(sets: &mut dyn IpSets) {
    for member in ["member-a", "member-b"] {
        sets.ensure_set(&Set::new(set_name(member), SetType::HashIp))
            .unwrap();
    }
}

fn set_name(text: &str) -> SetName {
    SetName::new(text).unwrap()
}
