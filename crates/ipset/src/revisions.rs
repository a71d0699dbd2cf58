//! Revisions of set types: which options a type has, since which revision and since which kernel.

use crate::error::{Error, Unsupported};
use crate::operation::Action;
use crate::set::Set;
use crate::set_type::SetType;

/// The revisions of a set type that the running kernel has: all from the oldest to the newest.
///
/// Each revision adds options. [`Set`]s are created with the newest revision that both the kernel and this crate support.
#[doc(alias = "IPSET_CMD_TYPE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revisions {
    /// The oldest.
    pub min: u8,
    /// The newest.
    pub max: u8,
}

impl SetType {
    /// The newest revision that this crate supports; 0 for an unknown type.
    #[must_use]
    pub fn newest_known_revision(&self) -> u8 {
        match self {
            SetType::BitmapIp | SetType::BitmapIpMac | SetType::BitmapPort | SetType::ListSet => 3,
            SetType::HashMac | SetType::HashIpMac => 1,
            SetType::HashIpMark | SetType::HashNetPortNet => 3,
            SetType::HashNetNet => 4,
            SetType::HashIp | SetType::HashIpPortIp => 6,
            SetType::HashNet | SetType::HashIpPort => 7,
            SetType::HashIpPortNet | SetType::HashNetPort | SetType::HashNetIface => 8,
            SetType::Unknown(_) => 0,
        }
    }

    /// The first kernel that has the type, as `major.minor`.
    #[must_use]
    pub fn first_kernel(&self) -> &'static str {
        match self {
            SetType::HashNetIface => "3.1",
            SetType::HashNetNet | SetType::HashNetPortNet => "3.13",
            SetType::HashIpMark => "3.15",
            SetType::HashMac => "3.18",
            SetType::HashIpMac => "4.10",
            _ => "2.6.39",
        }
    }
}

/// An option of a set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetOption {
    Hashsize,
    Maxelem,
    Bucketsize,
    Initval,
    Netmask,
    Bitmask,
    Markmask,
    Range,
    Size,
    Timeout,
    Counters,
    Comment,
    Skbinfo,
    Forceadd,
}

impl SetOption {
    /// The first revision of a type with the option, and the first kernel with that revision; `None` if the type does not have
    /// the option. From the comments at `IPSET_TYPE_REV_MAX` of
    /// [the types' sources](https://elixir.bootlin.com/linux/v6.12/source/net/netfilter/ipset).
    pub(crate) fn since(self, set_type: SetType) -> Option<(u8, &'static str)> {
        use SetType::*;
        let since = |revision, kernel| Some((revision, kernel));
        match (self, set_type) {
            (_, Unknown(_)) => None,
            (SetOption::Hashsize | SetOption::Maxelem, _) if set_type.is_hash() => {
                since(0, set_type.first_kernel())
            }
            (SetOption::Netmask, HashIp | BitmapIp) | (SetOption::Markmask, HashIpMark) => {
                since(0, set_type.first_kernel())
            }
            (SetOption::Range, BitmapIp | BitmapIpMac | BitmapPort) | (SetOption::Size, ListSet) => {
                since(0, "2.6.39")
            }
            (SetOption::Bitmask, HashIp) => since(6, "6.3"),
            (SetOption::Bitmask | SetOption::Netmask, HashIpPort) => since(7, "6.3"),
            (SetOption::Bitmask | SetOption::Netmask, HashNetNet) => since(4, "6.3"),
            (SetOption::Timeout, _) => since(0, set_type.first_kernel()),
            (SetOption::Counters, BitmapIp | BitmapIpMac | BitmapPort | HashIp | ListSet) => since(1, "3.10"),
            (SetOption::Counters, HashIpPort | HashIpPortIp) => since(2, "3.10"),
            (SetOption::Counters, HashNet | HashNetIface) => since(3, "3.10"),
            (SetOption::Counters, HashIpPortNet | HashNetPort) => since(4, "3.10"),
            (SetOption::Counters, _) => since(0, set_type.first_kernel()),
            (SetOption::Comment, BitmapIp | BitmapIpMac | BitmapPort | HashIp | ListSet) => since(2, "3.13"),
            (SetOption::Comment, HashIpPort | HashIpPortIp) => since(3, "3.13"),
            (SetOption::Comment, HashNet | HashNetIface) => since(4, "3.13"),
            (SetOption::Comment, HashIpPortNet | HashNetPort) => since(5, "3.13"),
            (SetOption::Comment, _) => since(0, set_type.first_kernel()),
            (SetOption::Forceadd, HashIp) => since(3, "3.15"),
            (SetOption::Forceadd, HashIpPort | HashIpPortIp) => since(4, "3.15"),
            (SetOption::Forceadd, HashNet | HashNetIface) => since(5, "3.15"),
            (SetOption::Forceadd, HashIpPortNet | HashNetPort) => since(6, "3.15"),
            (SetOption::Forceadd, HashIpMark | HashNetNet | HashNetPortNet) => since(1, "3.15"),
            (SetOption::Forceadd, HashMac | HashIpMac) => since(0, set_type.first_kernel()),
            (SetOption::Skbinfo, BitmapIp | BitmapIpMac | BitmapPort | ListSet) => since(3, "3.18"),
            (SetOption::Skbinfo, HashIp) => since(4, "3.18"),
            (SetOption::Skbinfo, HashIpPort | HashIpPortIp) => since(5, "3.18"),
            (SetOption::Skbinfo, HashNet | HashNetIface) => since(6, "3.18"),
            (SetOption::Skbinfo, HashIpPortNet | HashNetPort) => since(7, "3.18"),
            (SetOption::Skbinfo, HashIpMark | HashNetNet | HashNetPortNet) => since(2, "3.18"),
            (SetOption::Skbinfo, HashMac | HashIpMac) => since(0, set_type.first_kernel()),
            (SetOption::Bucketsize, HashIp) => since(5, "5.11"),
            (SetOption::Bucketsize, HashIpPort | HashIpPortIp) => since(6, "5.11"),
            (SetOption::Bucketsize, HashNet) => since(7, "5.11"),
            (SetOption::Bucketsize, HashIpPortNet | HashNetPort | HashNetIface) => since(8, "5.11"),
            (SetOption::Bucketsize, HashIpMark | HashNetNet | HashNetPortNet) => since(3, "5.11"),
            (SetOption::Bucketsize, HashMac | HashIpMac) => since(1, "5.11"),
            (SetOption::Initval, _) => SetOption::Bucketsize.since(set_type),
            _ => None,
        }
    }

    /// The name in the notation of ipset(8).
    pub(crate) fn name(self) -> &'static str {
        match self {
            SetOption::Hashsize => "hashsize",
            SetOption::Maxelem => "maxelem",
            SetOption::Bucketsize => "bucketsize",
            SetOption::Initval => "initval",
            SetOption::Netmask => "netmask",
            SetOption::Bitmask => "bitmask",
            SetOption::Markmask => "markmask",
            SetOption::Range => "range",
            SetOption::Size => "size",
            SetOption::Timeout => "timeout",
            SetOption::Counters => "counters",
            SetOption::Comment => "comment",
            SetOption::Skbinfo => "skbinfo",
            SetOption::Forceadd => "forceadd",
        }
    }
}

/// The revision to create a set with, on a kernel with these revisions.
pub(crate) fn choose_revision(
    set: &Set,
    kernel: Revisions,
    action: &dyn Fn() -> Action,
) -> Result<u8, Error> {
    for option in set_options(set) {
        if let Some((needed, first_kernel)) = option.since(set.set_type)
            && needed > kernel.max
        {
            return Err(Error::Unsupported {
                action: Box::new(action()),
                unsupported: Box::new(Unsupported {
                    what: format!("{} of {}", option.name(), set.set_type).into(),
                    needed_revision: Some(needed),
                    kernel_revision: Some(kernel.max),
                    first_kernel,
                }),
            });
        }
    }
    Ok(set
        .set_type
        .newest_known_revision()
        .clamp(kernel.min, kernel.max.max(kernel.min))
        .min(kernel.max))
}

/// The first revision of `hash:net,iface` with prefixes of interface names.
pub(crate) const WILDCARD_REVISION: u8 = 7;
/// The first kernel with [`WILDCARD_REVISION`].
pub(crate) const WILDCARD_KERNEL: &str = "5.5";

/// The options that are given for a set.
pub(crate) fn set_options(set: &Set) -> impl Iterator<Item = SetOption> {
    let options = &set.options;
    [
        (options.hashsize.is_some(), SetOption::Hashsize),
        (options.maxelem.is_some(), SetOption::Maxelem),
        (options.bucketsize.is_some(), SetOption::Bucketsize),
        (options.initval.is_some(), SetOption::Initval),
        (options.netmask.is_some(), SetOption::Netmask),
        (options.bitmask.is_some(), SetOption::Bitmask),
        (options.markmask.is_some(), SetOption::Markmask),
        (options.range.is_some(), SetOption::Range),
        (options.size.is_some(), SetOption::Size),
        (options.timeout.is_some(), SetOption::Timeout),
        (options.counters, SetOption::Counters),
        (options.comment, SetOption::Comment),
        (options.skbinfo, SetOption::Skbinfo),
        (options.forceadd, SetOption::Forceadd),
    ]
    .into_iter()
    .filter_map(|(given, option)| given.then_some(option))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SetName;

    const OPTIONS: [SetOption; 14] = [
        SetOption::Hashsize,
        SetOption::Maxelem,
        SetOption::Bucketsize,
        SetOption::Initval,
        SetOption::Netmask,
        SetOption::Bitmask,
        SetOption::Markmask,
        SetOption::Range,
        SetOption::Size,
        SetOption::Timeout,
        SetOption::Counters,
        SetOption::Comment,
        SetOption::Skbinfo,
        SetOption::Forceadd,
    ];

    #[test]
    fn no_option_needs_a_newer_revision_than_the_newest_known() {
        for &set_type in SetType::ALL {
            let needed = OPTIONS
                .iter()
                .filter_map(|option| option.since(set_type))
                .map(|(revision, _)| revision);
            let newest = set_type.newest_known_revision();
            assert!(needed.clone().all(|revision| revision <= newest), "{set_type}");
            // An option, or prefixes of interface names, need the newest revision.
            let wildcard = (set_type == SetType::HashNetIface).then_some(WILDCARD_REVISION);
            assert_eq!(needed.chain(wildcard).max(), Some(newest), "{set_type}");
        }
    }

    #[test]
    fn a_set_is_created_with_the_newest_revision_that_both_sides_support() {
        let set = Set::new(SetName::new("a").unwrap(), SetType::HashIp).with_comment();
        let action = || Action::ListAll;
        let choose = |min, max| choose_revision(&set, Revisions { min, max }, &action);
        assert_eq!(choose(0, 5), Ok(5));
        assert_eq!(choose(0, 6), Ok(6));
        assert_eq!(choose(0, 99), Ok(6));
        let error = choose(0, 1).unwrap_err();
        assert!(error.is_unsupported());
        assert_eq!(
            error.to_string(),
            "cannot list all sets: comment of hash:ip requires Linux 3.13 or newer (revision 2 of the set type; this kernel has revision 1)"
        );
    }
}
