//! The tables of kube-proxy's nftables mode, as `nft list table` prints them. Only what kube-proxy writes is read.

use kernlink_proxier::nftables_mode::nftables::{
    BaseChain, Chain, ChainType, ConnectionTrackingKey, DataType, DynsetOperation, Element, Elements,
    FibFlags, Hook, MetaKey, NatFlags, Operation, RejectKind, RuleBuilder, Set, SetFlags, Table, TableKey,
    Value, Verdict,
};

use super::*;

/// What adds the tables of a listing, in the order in which the kernel accepts it.
pub(super) fn operations(listing: &str) -> Vec<Operation> {
    let mut operations = Vec::new();
    let mut lines = listing.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(header) = line.strip_prefix("table ") else {
            assert_eq!(line, "");
            continue;
        };
        let (family, name) = header.trim_end_matches(" {").split_once(' ').unwrap();
        let family = match family {
            "ip" => Family::Ipv4,
            "ip6" => Family::Ipv6,
            _ => panic!("{line}"),
        };
        let mut table = Listed::new(family, name);
        while let Some(line) = lines.next().filter(|line| *line != "}") {
            let body: Vec<&str> = match line.strip_suffix(" {") {
                Some(_) => lines.by_ref().take_while(|line| *line != "}").collect(),
                None => Vec::new(),
            };
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                [] | [""] | ["comment", ..] => {}
                [kind @ ("set" | "map"), name, "{"] => table.set(kind, name, &body.join(" ")),
                ["chain", name, "{"] => table.chain(name, &body),
                _ => panic!("{line}"),
            }
        }
        operations.extend(table.operations());
    }
    operations
}

/// A table while its listing is read.
struct Listed {
    key: TableKey,
    /// With those that are part of a rule, which have names of their own here.
    sets: Vec<(Set, Vec<Element>)>,
    chains: Vec<Chain>,
    rules: Vec<(String, String)>,
}

impl Listed {
    fn new(family: Family, name: &str) -> Self {
        Self {
            key: TableKey::new(family, name),
            sets: Vec::new(),
            chains: Vec::new(),
            rules: Vec::new(),
        }
    }

    fn set(&mut self, kind: &str, name: &str, body: &str) {
        let types = body.strip_prefix("type ").unwrap();
        let end = types.find(['\t', '"']).unwrap_or(types.len());
        let end = [" comment", " elements", " size", " flags", " timeout"]
            .iter()
            .filter_map(|next| types.find(next))
            .fold(end, usize::min);
        let (keys, is_map) = match types[..end].trim().split_once(" : ") {
            Some((keys, "verdict")) => (keys, true),
            None => (&types[..end], false),
            Some(_) => panic!("{body}"),
        };
        assert_eq!(is_map, kind == "map", "{body}");
        let types: Vec<DataType> = keys.trim().split(" . ").map(data_type).collect();
        let key = self.key.set(name);
        let mut set = match is_map {
            true => Set::verdict_map(key, &types),
            false => Set::new(key, &types),
        };
        if body.contains(" flags dynamic,timeout") {
            // The limit has no effect on a hand-over.
            set = set
                .with_flags(SetFlags::EVAL | SetFlags::TIMEOUT)
                .with_timeout(Duration::from_secs(10_800));
        }
        let elements = body
            .split_once("elements = {")
            .map_or("", |(_, list)| list.trim_end_matches('}'));
        let elements = elements.split(',').map(str::trim).filter(|text| !text.is_empty());
        let elements = elements.map(|text| element(&types, text)).collect();
        self.sets.push((set, elements));
    }

    fn chain(&mut self, name: &str, body: &[&str]) {
        let mut chain = Chain::new(self.key.chain(name));
        for line in body {
            let Some(base) = line.strip_prefix("type ") else {
                if !line.starts_with("comment ") {
                    self.rules.push((name.to_owned(), (*line).to_owned()));
                }
                continue;
            };
            let words: Vec<&str> = base.trim_end_matches("; policy accept;").split(' ').collect();
            let [kind, "hook", hook, "priority", priority @ ..] = &words[..] else {
                panic!("{line}");
            };
            let kind = match *kind {
                "filter" => ChainType::Filter,
                "nat" => ChainType::Nat,
                _ => panic!("{line}"),
            };
            let hook = match *hook {
                "prerouting" => Hook::Prerouting,
                "input" => Hook::Input,
                "forward" => Hook::Forward,
                "output" => Hook::Output,
                "postrouting" => Hook::Postrouting,
                _ => panic!("{line}"),
            };
            let priority = match priority {
                ["filter"] => 0,
                ["dstnat"] => -100,
                ["srcnat"] => 100,
                ["dstnat", "-", "10"] => -110,
                [number] => number.parse().unwrap(),
                _ => panic!("{line}"),
            };
            chain = chain.with_base(BaseChain::new(kind, hook, priority));
        }
        self.chains.push(chain);
    }

    fn operations(mut self) -> Vec<Operation> {
        let rules = std::mem::take(&mut self.rules).into_iter();
        let rules: Vec<Operation> = rules
            .map(|(chain, text)| {
                let rule = self.rule(&chain, &text).build();
                Operation::add(rule.unwrap_or_else(|error| panic!("{text}: {error}")))
            })
            .collect();
        let mut operations = vec![Operation::add(Table::new(self.key))];
        operations.extend(self.sets.iter().map(|(set, _)| Operation::add(set.clone())));
        operations.extend(self.chains.into_iter().map(Operation::add));
        let elements = self.sets.into_iter().filter(|(_, elements)| !elements.is_empty());
        operations.extend(elements.map(|(set, elements)| Operation::add(Elements::new(set.key, elements))));
        operations.extend(rules);
        operations
    }

    fn named(&self, name: &str) -> Set {
        let name = name.trim_start_matches('@');
        let mut sets = self.sets.iter();
        let found = sets.find(|(set, _)| *set.key.name == *name);
        found.unwrap_or_else(|| panic!("no set {name}")).0.clone()
    }

    /// A set that is part of a rule.
    fn anonymous(&mut self, make: impl FnOnce(nftables::SetKey) -> Set, elements: Vec<Element>) -> Set {
        let set = make(self.key.set(format!("anonymous-{}", self.sets.len())));
        self.sets.push((set.clone(), elements));
        set
    }

    fn rule(&mut self, chain: &str, text: &str) -> RuleBuilder {
        let mut rule = RuleBuilder::new(self.key.chain(chain));
        let text = text.split(" comment ").next().unwrap();
        let mut words = text.split(' ').peekable();
        // The type of the field before, for a value.
        let mut of_key: Vec<DataType> = Vec::new();
        while let Some(word) = words.next() {
            rule = match word {
                "." => rule,
                "ip" | "ip6" | "th" | "meta" | "ct" | "fib" => {
                    let field = words.next().unwrap();
                    let address = if word == "ip" {
                        DataType::Ipv4Address
                    } else {
                        DataType::Ipv6Address
                    };
                    match (word, field) {
                        ("ip" | "ip6", "saddr") => {
                            of_key.push(address);
                            rule.source_address()
                        }
                        ("ip" | "ip6", "daddr") => {
                            of_key.push(address);
                            rule.destination_address()
                        }
                        ("th", "dport") => {
                            of_key.push(DataType::Service);
                            rule.destination_port()
                        }
                        ("meta", "l4proto") => {
                            of_key.push(DataType::Protocol);
                            rule.transport_protocol()
                        }
                        ("meta", "mark") => {
                            let rest: Vec<&str> = words.by_ref().take(6).collect();
                            match rest[..] {
                                ["set", "meta", "mark", "|", bit] => rule.set_mark(!number(bit), number(bit)),
                                ["set", "meta", "mark", "^", bit, "masquerade"] => {
                                    assert_eq!(words.next(), Some("fully-random"));
                                    rule.set_mark(u32::MAX, number(bit))
                                        .masquerade(NatFlags::FULLY_RANDOM)
                                }
                                ["set", "meta", "mark", "|", bit, next @ ("jump" | "goto")] => {
                                    let target = words.next().unwrap();
                                    rule.set_mark(!number(bit), number(bit))
                                        .verdict(verdict(next, target))
                                }
                                ["&", bit, "!=", "0x00000000", "meta", "mark"] => {
                                    let rest: Vec<&str> = words.by_ref().collect();
                                    let ["set", "meta", "mark", "^", changed, "masquerade", "fully-random"] =
                                        rest[..]
                                    else {
                                        panic!("{text}");
                                    };
                                    let masked = Value::host_u32(number(bit));
                                    rule.meta(MetaKey::Mark)
                                        .masked(masked, Value::host_u32(0))
                                        .differs_from(Value::host_u32(0))
                                        .set_mark(u32::MAX, number(changed))
                                        .masquerade(NatFlags::FULLY_RANDOM)
                                }
                                _ => panic!("{text}"),
                            }
                        }
                        ("ct", key) => {
                            let (key, bit) = match (key, words.next().unwrap()) {
                                ("state", "new") => (ConnectionTrackingKey::State, 8),
                                ("status", "dnat") => (ConnectionTrackingKey::Status, 0x20),
                                _ => panic!("{text}"),
                            };
                            rule.connection(key)
                                .masked(Value::host_u32(bit), Value::host_u32(0))
                                .differs_from(Value::host_u32(0))
                        }
                        ("fib", field) => {
                            let flags = match field {
                                "daddr" => FibFlags::DESTINATION,
                                "saddr" => FibFlags::SOURCE,
                                _ => panic!("{text}"),
                            };
                            assert_eq!((words.next(), words.next()), (Some("type"), Some("local")));
                            rule.address_type(flags).equals(Value::host_u32(2))
                        }
                        _ => panic!("{text}"),
                    }
                }
                "vmap" => {
                    let map = words.next().unwrap();
                    of_key.clear();
                    match map {
                        "{" => {
                            let elements = listed(words.by_ref());
                            let elements = elements.iter().map(|text| random_element(text)).collect();
                            let make = |key| Set::verdict_map(key, &[DataType::Mark]);
                            let map = self.anonymous(make, elements);
                            rule.verdict_of(&map)
                        }
                        name => rule.verdict_of(&self.named(name)),
                    }
                }
                name if name.starts_with('@') => {
                    of_key.clear();
                    rule.is_in(&self.named(name))
                }
                "!=" => {
                    let value = words.next().unwrap();
                    let types = std::mem::take(&mut of_key);
                    if value == "{" {
                        let ranges = listed(words.by_ref());
                        let set = self.ranges(&types, &ranges);
                        rule.is_not_in(&set)
                    } else {
                        let (address, mask) = prefix(value);
                        rule.masked(mask, Value::new(&vec![0; address.len()]))
                            .differs_from(address)
                    }
                }
                "{" => {
                    let ranges = listed(words.by_ref());
                    let set = self.ranges(&std::mem::take(&mut of_key), &ranges);
                    rule.is_in(&set)
                }
                "numgen" => {
                    assert_eq!((words.next(), words.next()), (Some("random"), Some("mod")));
                    rule.random(words.next().unwrap().parse().unwrap())
                }
                "dnat" => {
                    let family = words.next().unwrap();
                    assert_eq!(words.next(), Some("to"));
                    match words.next().unwrap() {
                        "numgen" => {
                            assert_eq!((words.next(), words.next()), (Some("random"), Some("mod")));
                            let modulus = words.next().unwrap().parse().unwrap();
                            assert_eq!((words.next(), words.next()), (Some("map"), Some("{")));
                            let address = if family == "ip" {
                                DataType::Ipv4Address
                            } else {
                                DataType::Ipv6Address
                            };
                            let types = [address, DataType::Service];
                            let elements = listed(words.by_ref());
                            let elements = elements.iter().map(|text| {
                                let (index, endpoint) = text.split_once(" : ").unwrap();
                                Element::new(Value::host_u32(index.parse().unwrap()))
                                    .with_value(values(&types, endpoint))
                            });
                            let elements = elements.collect();
                            let make = |key| Set::map(key, &[DataType::Mark], &types);
                            let map = self.anonymous(make, elements);
                            rule.random(modulus).value_of(&map).destination_nat()
                        }
                        endpoint => {
                            let endpoint: SocketAddr = endpoint.parse().unwrap();
                            rule.destination_nat_to(endpoint.ip(), Some(endpoint.port()))
                        }
                    }
                }
                "update" => {
                    let set = self.named(words.next().unwrap());
                    let key: Vec<&str> = words.by_ref().take(4).collect();
                    assert!(matches!(key[..], ["{", "ip" | "ip6", "saddr", "}"]), "{text}");
                    rule.source_address()
                        .change_set(DynsetOperation::Update, &set, None)
                }
                "masquerade" => {
                    assert_eq!(words.next(), Some("fully-random"));
                    rule.masquerade(NatFlags::FULLY_RANDOM)
                }
                "reject" => rule.reject(RejectKind::Icmp, Some(if self.is_ipv4() { 3 } else { 4 })),
                "drop" => rule.verdict(Verdict::Drop),
                "jump" | "goto" => rule.verdict(verdict(word, words.next().unwrap())),
                value => {
                    let value = values(&std::mem::take(&mut of_key), value);
                    // A protocol alone is not padded.
                    let is_protocol = text.contains(&format!("meta l4proto {word} "));
                    rule.equals(if is_protocol {
                        Value::new(&value.as_bytes()[..1])
                    } else {
                        value
                    })
                }
            };
        }
        rule
    }

    fn is_ipv4(&self) -> bool {
        self.key.family == Family::Ipv4.into()
    }

    /// A set of networks and addresses.
    fn ranges(&mut self, types: &[DataType], ranges: &[String]) -> Set {
        let make = |key| Set::new(key, types).with_intervals();
        let set = self.anonymous(make, Vec::new());
        let elements = ranges.iter().flat_map(|range| {
            let network: ipnet::IpNet = match range.parse() {
                Ok(network) => network,
                Err(_) => range.parse::<IpAddr>().unwrap().into(),
            };
            set.interval(network.network().into(), network.broadcast().into())
        });
        let elements = elements.collect();
        self.sets.last_mut().unwrap().1 = elements;
        set
    }
}

/// The elements of a list in a rule, whose brace was read.
fn listed<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let words: Vec<&str> = words.take_while(|word| *word != "}").collect();
    words.join(" ").split(", ").map(str::to_owned).collect()
}

fn number(text: &str) -> u32 {
    u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

fn data_type(name: &str) -> DataType {
    match name {
        "ipv4_addr" => DataType::Ipv4Address,
        "ipv6_addr" => DataType::Ipv6Address,
        "inet_proto" => DataType::Protocol,
        "inet_service" => DataType::Service,
        _ => panic!("{name}"),
    }
}

/// A value of these types, with dots between them.
fn values(types: &[DataType], text: &str) -> Value {
    let fields = text.split(" . ").zip(types).map(|(text, of)| match of {
        DataType::Protocol => match text {
            "tcp" => Value::protocol(6),
            "udp" => Value::protocol(17),
            "sctp" => Value::protocol(132),
            _ => panic!("{text}"),
        },
        DataType::Service => Value::port(text.parse().unwrap()),
        _ => text.parse::<IpAddr>().unwrap().into(),
    });
    Value::concat(fields)
}

/// An address, or a network as address and mask.
fn prefix(text: &str) -> (Value, Value) {
    let network: ipnet::IpNet = match text.parse() {
        Ok(network) => network,
        Err(_) => text.parse::<IpAddr>().unwrap().into(),
    };
    (network.network().into(), network.netmask().into())
}

fn verdict(word: &str, chain: &str) -> Verdict {
    match word {
        "goto" => Verdict::goto(chain),
        "jump" => Verdict::jump(chain),
        _ => panic!("{word}"),
    }
}

/// `0 : goto CHAIN`.
fn random_element(text: &str) -> Element {
    let (index, target) = text.split_once(" : ").unwrap();
    let (word, chain) = target.split_once(' ').unwrap();
    Element::new(Value::host_u32(index.parse().unwrap())).with_verdict(verdict(word, chain))
}

/// `KEY`, `KEY comment "TEXT"`, `KEY : drop` or `KEY : goto CHAIN`.
fn element(types: &[DataType], text: &str) -> Element {
    let (key, target) = text.rsplit_once(" : ").unwrap_or((text, ""));
    let key = key.split(" comment ").next().unwrap();
    let element = Element::new(values(types, key));
    match target.split_once(' ') {
        Some((word, chain)) => element.with_verdict(verdict(word, chain)),
        None if target == "drop" => element.with_verdict(Verdict::Drop),
        None => element,
    }
}
