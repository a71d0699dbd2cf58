//! The fake compared with the kernel.

use std::net::{IpAddr, Ipv4Addr};

use kernlink_ipset::{
    Comment, Element, Entry, Error, Fake, IfExists, Interface, InterfaceMatching, InterfaceSide, IpSets,
    MacAddress, Operation, Set, SetRange, SetType, Timeout,
};
use kernlink_kernel_tests::{kernel::Feature, requires};

use crate::generator::Numbers;
use crate::{client, name, web};

/// Outcomes, lists and tests of random operations in random order are the same.
#[test]
fn the_fake_and_the_kernel_agree_on_random_operations() {
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
            let (kernel, faked) = match stops {
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
                    kind(&faked[number]),
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
                for (probe, (kernel, faked)) in probes.iter().zip(answers) {
                    let kind = |answer: Result<bool, Error>| answer.map_err(|error| error.reason());
                    assert_eq!(kind(kernel), kind(faked), "round {round}: test {set} {probe}");
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

/// All sets by name. Entries are sorted, except those of lists of sets.
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
