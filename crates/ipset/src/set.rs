//! A set: its name, its type and its options.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use crate::entry::Entry;
use crate::entry_options::Timeout;
use crate::name::SetName;
use crate::network::Address;
use crate::set_family::SetFamily;
use crate::set_type::SetType;

/// A set as it is to be created, or as it is: without its content.
///
/// Printed as `ipset save` prints it behind the word `create`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Set {
    /// Its name.
    pub name: SetName,
    /// Its type.
    pub set_type: SetType,
    /// Its family; one of [`SetType::families`].
    pub family: SetFamily,
    /// Its options.
    pub options: SetOptions,
}

/// The options of a set. What a listed set has is filled in; `None` in a set to create takes the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct SetOptions {
    /// Hash types: number of buckets, which the kernel rounds up to a power of two and at least 64. Default 1 024. A
    /// set grows by itself, which costs time: give the number of entries expected.
    pub hashsize: Option<u32>,
    /// Hash types: most entries. Default 65 536; 0 sets that too.
    pub maxelem: Option<u32>,
    /// Hash types: most entries of one bucket before the table grows; 2 to 12, even. Default 12. Since Linux 5.11.
    pub bucketsize: Option<u8>,
    /// `hash:ip`, `bitmap:ip`, and from Linux 6.3 `hash:ip,port` and `hash:net,net`: addresses are cut to this prefix
    /// length, 1 to 32, or 1 to 128 for IPv6.
    pub netmask: Option<u8>,
    /// `hash:ip`, `hash:ip,port` and `hash:net,net`: addresses are masked with this; not with `netmask`. Since Linux 6.3.
    pub bitmask: Option<IpAddr>,
    /// `hash:ip,mark`: marks are masked with this; not 0. Default all bits.
    pub markmask: Option<u32>,
    /// Bitmap types: what can be in the set. The kernel demands it.
    pub range: Option<SetRange>,
    /// `list:set`: places; the kernel takes at least 4. Default 8. Newer kernels keep the number and no longer limit
    /// the list by it.
    pub size: Option<u32>,
    /// Entries go by themselves after this time unless they bring their own. `None` is a set without time-outs;
    /// [`Timeout::PERMANENT`] one where only entries that bring their own go.
    pub timeout: Option<Timeout>,
    /// Entries count packets and bytes.
    pub counters: bool,
    /// Entries can hold a comment.
    pub comment: bool,
    /// Entries can hold a mark, a class and a queue for packets.
    pub skbinfo: bool,
    /// Hash types: a full set drops an entry for a new one.
    pub forceadd: bool,
    /// Hash types: start value of the hash function; listed by every kernel that knows bucket sizes (Linux 5.11) and
    /// taken by those.
    pub initval: Option<u32>,
}

/// What can be in a bitmap set, first and last included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetRange {
    /// Of `bitmap:ip` and `bitmap:ip,mac`: at most 65 536 addresses, or blocks of the set's netmask.
    Addresses(Ipv4Addr, Ipv4Addr),
    /// Of `bitmap:port`.
    Ports(u16, u16),
}

impl Set {
    /// A set of this type, of the type's first family, with the kernel's defaults; of a `bitmap:port` all ports.
    pub fn new(name: SetName, set_type: SetType) -> Self {
        let family = set_type
            .families()
            .first()
            .copied()
            .unwrap_or(SetFamily::Unspecified);
        let range = (set_type == SetType::BitmapPort).then_some(SetRange::Ports(0, u16::MAX));
        Set {
            name,
            set_type,
            family,
            options: SetOptions {
                range,
                ..SetOptions::default()
            },
        }
    }

    /// With this family.
    #[must_use]
    pub fn with_family(mut self, family: impl Into<SetFamily>) -> Self {
        self.family = family.into();
        self
    }

    /// With these options in place of its own.
    pub fn with_options(mut self, options: SetOptions) -> Self {
        self.options = options;
        self
    }

    /// With this number of hash buckets.
    pub fn with_hashsize(mut self, hashsize: u32) -> Self {
        self.options.hashsize = Some(hashsize);
        self
    }

    /// With room for this many entries.
    pub fn with_maxelem(mut self, maxelem: u32) -> Self {
        self.options.maxelem = Some(maxelem);
        self
    }

    /// With hash buckets of at most this many entries.
    pub fn with_bucketsize(mut self, bucketsize: u8) -> Self {
        self.options.bucketsize = Some(bucketsize);
        self
    }

    /// With addresses cut to this prefix length.
    pub fn with_netmask(mut self, netmask: u8) -> Self {
        self.options.netmask = Some(netmask);
        self
    }

    /// With addresses masked.
    pub fn with_bitmask(mut self, bitmask: IpAddr) -> Self {
        self.options.bitmask = Some(bitmask);
        self
    }

    /// With marks masked.
    pub fn with_markmask(mut self, markmask: u32) -> Self {
        self.options.markmask = Some(markmask);
        self
    }

    /// Over this range.
    pub fn with_range(mut self, range: SetRange) -> Self {
        self.options.range = Some(range);
        self
    }

    /// With this number of places.
    pub fn with_size(mut self, size: u32) -> Self {
        self.options.size = Some(size);
        self
    }

    /// With time-outs.
    pub fn with_timeout(mut self, timeout: Timeout) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// With counters.
    pub fn with_counters(mut self) -> Self {
        self.options.counters = true;
        self
    }

    /// With comments.
    pub fn with_comment(mut self) -> Self {
        self.options.comment = true;
        self
    }

    /// With marks, classes and queues.
    pub fn with_skbinfo(mut self) -> Self {
        self.options.skbinfo = true;
        self
    }

    /// Dropping an entry for a new one when full.
    pub fn with_forceadd(mut self) -> Self {
        self.options.forceadd = true;
        self
    }

    /// With this start value of the hash function.
    pub fn with_initval(mut self, initval: u32) -> Self {
        self.options.initval = Some(initval);
        self
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.set_type)?;
        // The tool prints the family of hash types only, and of hash:mac none.
        if self.set_type.is_hash() && self.set_type != SetType::HashMac {
            write!(f, " family {}", self.family)?;
        }
        write!(f, "{}", self.options)
    }
}

/// The words as `ipset save` prints them, each with a space in front. The tool's own releases differ in whether they
/// print `forceadd`; here it is printed.
impl fmt::Display for SetOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            Some(SetRange::Addresses(first, last)) => write!(f, " range {first}-{last}")?,
            Some(SetRange::Ports(first, last)) => write!(f, " range {first}-{last}")?,
            None => {}
        }
        if let Some(markmask) = self.markmask {
            write!(f, " markmask {markmask:#010x}")?;
        }
        if let Some(hashsize) = self.hashsize {
            write!(f, " hashsize {hashsize}")?;
        }
        if let Some(maxelem) = self.maxelem {
            write!(f, " maxelem {maxelem}")?;
        }
        if let Some(netmask) = self.netmask {
            write!(f, " netmask {netmask}")?;
        }
        if let Some(bitmask) = self.bitmask {
            write!(f, " bitmask {}", Address(bitmask))?;
        }
        if let Some(size) = self.size {
            write!(f, " size {size}")?;
        }
        if let Some(timeout) = self.timeout {
            write!(f, " timeout {timeout}")?;
        }
        for (given, word) in [
            (self.counters, "counters"),
            (self.comment, "comment"),
            (self.skbinfo, "skbinfo"),
            (self.forceadd, "forceadd"),
        ] {
            if given {
                write!(f, " {word}")?;
            }
        }
        if let Some(bucketsize) = self.bucketsize {
            write!(f, " bucketsize {bucketsize}")?;
        }
        if let Some(initval) = self.initval {
            write!(f, " initval {initval:#010x}")?;
        }
        Ok(())
    }
}

/// A set and what the kernel says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetHeader {
    /// The set.
    pub set: Set,
    /// The revision of its type that it was created with.
    pub revision: u8,
    /// What changes while it is used.
    pub stats: SetStats,
}

impl SetHeader {
    /// A set of the newest revision that this crate knows, not in use and without entries.
    pub fn new(set: Set) -> Self {
        SetHeader {
            revision: set.set_type.newest_known_revision(),
            set,
            stats: SetStats::default(),
        }
    }
}

/// What changes while a set is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetStats {
    /// Rules and lists that use the set; a set in use cannot be destroyed.
    pub references: u32,
    /// Memory that the set takes; bytes.
    pub memory: u32,
    /// Entries in it; of a set with time-outs it may count some that have gone.
    pub elements: u32,
}

/// A set with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetContents {
    /// The set.
    pub header: SetHeader,
    /// Its entries, each once: of a `list:set` in their order, of a bitmap rising, of a hash in no order.
    pub entries: Vec<Entry>,
}

impl SetContents {
    /// A set with these entries and the header of [`SetHeader::new`].
    pub fn new(set: Set, entries: Vec<Entry>) -> Self {
        let mut header = SetHeader::new(set);
        header.stats.elements = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        SetContents { header, entries }
    }
}
