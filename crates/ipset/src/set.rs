//! Sets: name, type, family and options.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use crate::entry::Entry;
use crate::entry_options::Timeout;
use crate::name::SetName;
use crate::network::Address;
use crate::set_family::SetFamily;
use crate::set_type::SetType;

/// A set without its entries: one to create, or one that was listed.
///
/// Printed as `ipset save` prints it after the word `create`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Set {
    /// The name.
    pub name: SetName,
    /// The type.
    pub set_type: SetType,
    /// The family; one of [`SetType::families`].
    pub family: SetFamily,
    /// The options.
    pub options: SetOptions,
}

/// The options of a set. A listed set has the values in the kernel. In a set to create, `None` is the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct SetOptions {
    /// Hash types: number of buckets, which the kernel rounds up to a power of two and at least 64. Default 1 024. The kernel
    /// resizes a set when necessary, which takes time; set this to the expected number of entries.
    pub hashsize: Option<u32>,
    /// Hash types: maximum number of entries. Default 65 536; 0 is the default too.
    pub maxelem: Option<u32>,
    /// Hash types: maximum number of entries in a bucket before the hash is resized; 2 to 12, even. Default 12. Since Linux 5.11.
    pub bucketsize: Option<u8>,
    /// `hash:ip`, `bitmap:ip`, and since Linux 6.3 `hash:ip,port` and `hash:net,net`: prefix length to which addresses are
    /// masked, 1 to 32, or 1 to 128 for IPv6.
    pub netmask: Option<u8>,
    /// `hash:ip`, `hash:ip,port` and `hash:net,net`: mask of addresses; not 0, and not together with `netmask`. Since Linux 6.3.
    pub bitmask: Option<IpAddr>,
    /// `hash:ip,mark`: mask of marks; not 0. Default all bits.
    pub markmask: Option<u32>,
    /// Bitmap types: the range of valid entries; required.
    pub range: Option<SetRange>,
    /// `list:set`: maximum number of members; at least 4. Default 8. Newer kernels store the number but do not limit the list.
    pub size: Option<u32>,
    /// Default timeout of entries. `None` is a set without timeouts; with [`Timeout::PERMANENT`] only entries with a timeout of
    /// their own are deleted.
    pub timeout: Option<Timeout>,
    /// Entries count packets and bytes.
    pub counters: bool,
    /// Entries can have a comment.
    pub comment: bool,
    /// Entries can have a mark, a traffic class and a hardware queue for packets.
    pub skbinfo: bool,
    /// Hash types: a full set evicts an entry for a new one.
    pub forceadd: bool,
    /// Hash types: initial value of the hash function. Default random. Since Linux 5.11.
    pub initval: Option<u32>,
}

/// The range of a bitmap set: first and last value, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetRange {
    /// The range of a `bitmap:ip` or `bitmap:ip,mac` set: at most 65 536 addresses, or blocks of the set's netmask.
    Addresses(Ipv4Addr, Ipv4Addr),
    /// The range of a `bitmap:port` set.
    Ports(u16, u16),
}

impl Set {
    /// A set of this type with the type's first family and the kernel's defaults. The range of a `bitmap:port` is all ports.
    #[must_use]
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

    /// With these options instead of its own.
    #[must_use]
    pub fn with_options(mut self, options: SetOptions) -> Self {
        self.options = options;
        self
    }

    /// With this number of hash buckets.
    #[must_use]
    pub fn with_hashsize(mut self, hashsize: u32) -> Self {
        self.options.hashsize = Some(hashsize);
        self
    }

    /// With this maximum number of entries.
    #[must_use]
    pub fn with_maxelem(mut self, maxelem: u32) -> Self {
        self.options.maxelem = Some(maxelem);
        self
    }

    /// With this maximum number of entries in a bucket.
    #[must_use]
    pub fn with_bucketsize(mut self, bucketsize: u8) -> Self {
        self.options.bucketsize = Some(bucketsize);
        self
    }

    /// With addresses masked to this prefix length.
    #[must_use]
    pub fn with_netmask(mut self, netmask: u8) -> Self {
        self.options.netmask = Some(netmask);
        self
    }

    /// With this mask of addresses.
    #[must_use]
    pub fn with_bitmask(mut self, bitmask: IpAddr) -> Self {
        self.options.bitmask = Some(bitmask);
        self
    }

    /// With this mask of marks.
    #[must_use]
    pub fn with_markmask(mut self, markmask: u32) -> Self {
        self.options.markmask = Some(markmask);
        self
    }

    /// With this range of valid entries.
    #[must_use]
    pub fn with_range(mut self, range: SetRange) -> Self {
        self.options.range = Some(range);
        self
    }

    /// With this maximum number of members.
    #[must_use]
    pub fn with_size(mut self, size: u32) -> Self {
        self.options.size = Some(size);
        self
    }

    /// With timeouts, and this default timeout of entries.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Timeout) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// With counters.
    #[must_use]
    pub fn with_counters(mut self) -> Self {
        self.options.counters = true;
        self
    }

    /// With comments.
    #[must_use]
    pub fn with_comment(mut self) -> Self {
        self.options.comment = true;
        self
    }

    /// With marks, traffic classes and hardware queues.
    #[must_use]
    pub fn with_skbinfo(mut self) -> Self {
        self.options.skbinfo = true;
        self
    }

    /// With eviction of an entry for a new one when the set is full.
    #[must_use]
    pub fn with_forceadd(mut self) -> Self {
        self.options.forceadd = true;
        self
    }

    /// With this initial value of the hash function.
    #[must_use]
    pub fn with_initval(mut self, initval: u32) -> Self {
        self.options.initval = Some(initval);
        self
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.set_type)?;
        // The tool prints the family of hash types only, except hash:mac.
        if self.set_type.is_hash() && self.set_type != SetType::HashMac {
            write!(f, " family {}", self.family)?;
        }
        write!(f, "{}", self.options)
    }
}

/// The options as `ipset save` prints them, each after a space. `forceadd` is always printed; not all releases of the tool print
/// it.
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

/// A set with its revision and statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetHeader {
    /// The set.
    pub set: Set,
    /// The revision of its type that it was created with.
    pub revision: u8,
    /// The statistics.
    pub stats: SetStats,
}

impl SetHeader {
    /// A set of the newest revision that this crate supports, with all statistics 0.
    #[must_use]
    pub fn new(set: Set) -> Self {
        SetHeader {
            revision: set.set_type.newest_known_revision(),
            set,
            stats: SetStats::default(),
        }
    }
}

/// Statistics of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetStats {
    /// Number of rules and lists that use the set. A set in use cannot be destroyed.
    pub references: u32,
    /// Memory of the set in bytes.
    pub memory: u32,
    /// Number of entries. In a set with timeouts it may include entries that have timed out.
    pub elements: u32,
}

/// A set with its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetContents {
    /// The set.
    pub header: SetHeader,
    /// The entries, each once: of a `list:set` in the order of the list, of a bitmap ascending, of a hash in no particular order.
    pub entries: Vec<Entry>,
}

impl SetContents {
    /// A set with these entries and the header of [`SetHeader::new`].
    #[must_use]
    pub fn new(set: Set, entries: Vec<Entry>) -> Self {
        let mut header = SetHeader::new(set);
        header.stats.elements = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        SetContents { header, entries }
    }
}
