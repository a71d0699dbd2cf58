//! Pseudo-random sets and entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernlink_ipset::{
    Client, Comment, Entry, EntryOptions, IpSets, Set, SetFamily, SetOptions, SetRange, SetType, SkbMark,
    SkbPriority, Timeout,
};

use crate::name;

/// Pseudo-random numbers, the same in every run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    pub(crate) fn u32(&mut self) -> u32 {
        (self.next(1 << 16) as u32) << 16 | self.next(1 << 16) as u32
    }

    pub(crate) fn flip(&mut self) -> bool {
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

    /// A set with random options of those that the kernel has: `level` 0 has none of the newer ones, 1 has bucket sizes and
    /// initial values, 6 has bitmasks as well.
    fn set(&mut self, number: usize, set_type: SetType, family: SetFamily, level: u8) -> Set {
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
                options.bucketsize = (level >= 1 && self.flip()).then(|| 2 + 2 * self.next(6) as u8);
                options.initval = (level >= 1 && self.flip()).then(|| self.u32());
            }
        }
        match set_type {
            SetType::HashIp | SetType::BitmapIp => {
                options.netmask = self.flip().then(|| 16 + self.next(16) as u8);
            }
            SetType::HashIpMark => options.markmask = self.flip().then(|| self.u32() | 1),
            _ => {}
        }
        if set_type == SetType::HashIp && level >= 6 && options.netmask.is_none() && self.flip() {
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
        let entry = Entry::parse(&text, set.set_type, family).unwrap();
        let mut options = EntryOptions::default();
        // Only a permanent entry lists the same timeout later.
        if set.options.timeout.is_some() {
            options.timeout = Some(Timeout::PERMANENT);
        }
        if set.options.counters {
            (options.packets, options.bytes) =
                (Some(u64::from(self.u32())), Some(u64::from(self.u32()) << 20));
        }
        if set.options.comment && self.flip() {
            options.comment =
                Some(Comment::new(&format!("comment {} \\ ' # -exist", self.next(1000))).unwrap());
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
        entry.with_options(options)
    }
}

/// Two sets of every type and family that the kernel has, with entries.
pub(crate) fn generated(client: &mut Client, seed: u64) -> Vec<(Set, Vec<Entry>)> {
    let mut numbers = Numbers(seed);
    let mut sets = Vec::new();
    for number in 0..2 {
        for &set_type in SetType::ALL {
            for family in set_type.families().iter().copied() {
                let Some(revisions) = client.revisions(set_type, family).unwrap() else {
                    continue;
                };
                let newest = set_type.newest_known_revision();
                let has_bitmask = matches!(
                    set_type,
                    SetType::HashIp | SetType::HashIpPort | SetType::HashNetNet
                );
                let level = match revisions.max {
                    max if max >= newest => 6,
                    max if has_bitmask && max + 1 == newest => 1,
                    _ => 0,
                };
                let set = numbers.set(number, set_type, family, level);
                let count = if set_type == SetType::ListSet { 5 } else { 30 };
                let entries = (0..count).map(|_| numbers.entry(&set)).collect();
                sets.push((set, entries));
            }
        }
    }
    sets
}

/// The sets that are members of the generated lists of sets.
pub(crate) fn create_list_members(client: &mut Client) {
    for number in 0..8 {
        client
            .ensure_set(&Set::new(name(&format!("member-{number}")), SetType::BitmapPort))
            .unwrap();
    }
}
