//! Checks of sets and entries before they are sent.

use std::net::IpAddr;

use crate::element::Mismatch;
use crate::entry::Entry;
use crate::entry_range::EntryRange;
use crate::error::Error;
use crate::operation::Action;
use crate::revisions::{SetOption, set_options};
use crate::set::{Set, SetRange};
use crate::set_family::SetFamily;
use crate::set_type::{Dimension, SetType};

/// Maximum number of entries of a range that is expanded here because the kernel does not expand it.
const MAX_EXPANDED: u128 = 1 << 20;

/// Whether the options of a set are valid for its type on any kernel. The kernel ignores options that the type does not have, and
/// corrects some values; both are errors here.
pub(crate) fn check_set(set: &Set, action: &dyn Fn() -> Action) -> Result<(), Error> {
    let invalid =
        |option: SetOption, reason: String| Err(Error::invalid_option(action(), option.name(), reason));
    if !set.set_type.families().contains(&set.family) {
        let families: Vec<String> = set.set_type.families().iter().map(SetFamily::to_string).collect();
        let reason = format!(
            "{} is not a family of {}; valid: {}",
            set.family,
            set.set_type,
            families.join(", ")
        );
        return Err(Error::invalid_option(action(), "family", reason));
    }
    for option in set_options(set) {
        if option.since(set.set_type).is_none() {
            return invalid(option, format!("not an option of set type {}", set.set_type));
        }
    }
    let options = &set.options;
    let bits = set.family.address_bits();
    match options.netmask {
        Some(0) => return invalid(SetOption::Netmask, "must not be 0".to_owned()),
        Some(netmask) if netmask > bits => {
            return invalid(SetOption::Netmask, format!("{netmask} is not from 1 to {bits}"));
        }
        Some(_) if options.bitmask.is_some() => {
            return invalid(
                SetOption::Netmask,
                "must not be combined with a bitmask".to_owned(),
            );
        }
        _ => {}
    }
    match options.bitmask {
        Some(bitmask) if SetFamily::of(bitmask) != set.family => {
            return invalid(
                SetOption::Bitmask,
                format!("{bitmask} is not an address of family {}", set.family),
            );
        }
        Some(IpAddr::V4(bitmask)) if bitmask.is_unspecified() => {
            return invalid(SetOption::Bitmask, "must not be 0".to_owned());
        }
        Some(IpAddr::V6(bitmask)) if bitmask.is_unspecified() => {
            return invalid(SetOption::Bitmask, "must not be 0".to_owned());
        }
        _ => {}
    }
    if options.markmask == Some(0) {
        return invalid(SetOption::Markmask, "must not be 0".to_owned());
    }
    if let Some(bucketsize) = options.bucketsize
        && !(2..=12).contains(&bucketsize)
    {
        return invalid(SetOption::Bucketsize, format!("{bucketsize} is not from 2 to 12"));
    }
    if let Some(bucketsize) = options.bucketsize.filter(|bucketsize| bucketsize % 2 == 1) {
        return invalid(
            SetOption::Bucketsize,
            format!("{bucketsize} is odd; the kernel would round it up"),
        );
    }
    match (set.set_type, options.range) {
        (SetType::BitmapIp | SetType::BitmapIpMac, Some(SetRange::Addresses(first, last)))
            if first > last =>
        {
            invalid(SetOption::Range, "the end is before the start".to_owned())
        }
        (SetType::BitmapPort, Some(SetRange::Ports(first, last))) if first > last => {
            invalid(SetOption::Range, "the end is before the start".to_owned())
        }
        (SetType::BitmapIp | SetType::BitmapIpMac, Some(SetRange::Addresses(..)))
        | (SetType::BitmapPort, Some(SetRange::Ports(..))) => Ok(()),
        (SetType::BitmapPort, _) => invalid(SetOption::Range, "a range of ports is required".to_owned()),
        (SetType::BitmapIp | SetType::BitmapIpMac, _) => invalid(
            SetOption::Range,
            "a range of IPv4 addresses is required".to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Whether a set of this type and family can hold the entries of a range.
pub(crate) fn check_range(
    range: &EntryRange,
    set_type: SetType,
    family: SetFamily,
    action: &dyn Fn() -> Action,
) -> Result<(), Error> {
    range.check(set_type, family).map_err(|reason| {
        Error::invalid_entry(
            action(),
            Mismatch {
                set_type,
                dimension: None,
                reason,
            },
        )
    })?;
    check_options(&range.first, set_type, action)
}

/// Whether a range that the kernel does not expand is short enough to be expanded here.
pub(crate) fn check_length(range: &EntryRange, action: &dyn Fn() -> Action) -> Result<(), Error> {
    let count = range.count();
    if count <= MAX_EXPANDED {
        return Ok(());
    }
    let reason =
        format!("{count} entries; the maximum is {MAX_EXPANDED} for a range that the kernel does not expand");
    Err(Error::invalid_option(action(), "range", reason))
}

/// Whether the options of an entry are valid for the set type. The kernel would ignore the others.
pub(crate) fn check_options(
    entry: &Entry,
    set_type: SetType,
    action: &dyn Fn() -> Action,
) -> Result<(), Error> {
    if entry.is_plain() {
        return Ok(());
    }
    let options = entry.options();
    let has_networks = set_type.dimensions().contains(&Dimension::Net);
    let invalid = |option, reason: &str| Err(Error::invalid_option(action(), option, reason));
    if options.nomatch && !has_networks {
        return invalid("nomatch", "only valid for set types with a network");
    }
    if options.position.is_some() && set_type != SetType::ListSet {
        return invalid("before or after", "only valid for set type list:set");
    }
    Ok(())
}
