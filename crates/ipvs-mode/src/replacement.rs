//! Replacing a set by one with other parameters, while rules use it.

use std::fmt;

use kernlink_ipset::{Entry, Error, IfExists, IpSets, Operation, Set, SetName};
use kernlink_services::Family;

use super::sets::SetId;

/// Gives a set other parameters in one step: a packet matches either the old set or the new one.
///
/// The kernel cannot change the parameters of a set. A temporary set is created and filled, swapped with the set, and destroyed. Its name
/// is that of the set, cut to 30 bytes, and `~`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// The set with its new parameters. Type and family must be those of the existing set: the kernel swaps no others.
    pub set: Set,
    /// All entries of the new set.
    pub entries: Vec<Entry>,
}

impl Replacement {
    /// The operations in order. The first one removes what a process left that ended during a replacement.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        let temporary = temporary_name(&self.set.name);
        let mut set = self.set.clone();
        set.name = temporary;
        let destroy = Operation::Destroy {
            set: temporary,
            if_exists: IfExists::Succeed,
        };
        let additions = self.entries.iter().cloned();
        [destroy.clone(), Operation::create(set)]
            .into_iter()
            .chain(additions.map(|entry| Operation::ensure(temporary, entry)))
            .chain([
                Operation::Swap {
                    first: temporary,
                    second: self.set.name,
                },
                destroy,
            ])
            .collect()
    }

    /// Executes the operations up to the first that fails. If the set could not be swapped, it is unchanged.
    pub(super) fn execute(&self, sets: &mut dyn IpSets) -> Result<(), Error> {
        let operations = self.operations();
        let mut outcomes = sets.execute_until_failure(&operations);
        outcomes.resize(operations.len(), Err(Error::OutcomeMissing));
        let outcome = outcomes.into_iter().find(Result::is_err).unwrap_or(Ok(()));
        if outcome.is_err()
            && let Some(destroy) = operations.last()
        {
            // If this fails too, the next listing finds the temporary set, which is owned.
            sets.execute(std::slice::from_ref(destroy));
        }
        outcome
    }
}

impl fmt::Display for Replacement {
    /// The command, followed by its standard input.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("restore")?;
        let operations = self.operations();
        operations
            .iter()
            .try_for_each(|operation| write!(f, "\n{operation}"))
    }
}

/// The name of the temporary set in a replacement.
fn temporary_name(name: &SetName) -> SetName {
    let cut = name.as_bytes().iter().copied().take(MAX_NAME - 1);
    let bytes: Vec<u8> = cut.chain([b'~']).collect();
    // At most 31 bytes, none of them NUL.
    SetName::from_bytes(&bytes).unwrap_or(*name)
}

/// The length of the longest name of a set, in bytes.
const MAX_NAME: usize = 31;

/// The set whose temporary set has this name.
pub(super) fn of_temporary(name: &SetName) -> Option<(Family, SetId)> {
    if name.as_bytes().last() != Some(&b'~') {
        return None;
    }
    let mut all = Family::ALL
        .into_iter()
        .flat_map(|family| SetId::ALL.iter().map(move |&set| (family, set)));
    all.find(|(family, set)| temporary_name(&set.name(*family)) == *name)
}

/// The name of the temporary set of a set.
pub(super) fn temporary_of(family: Family, set: SetId) -> SetName {
    temporary_name(&set.name(family))
}

/// The definition of a set for a number of entries: `definition` if it holds so many, otherwise one that holds a quarter more at least.
pub(super) fn definition_for(definition: &Set, entries: usize) -> Set {
    let mut set = definition.clone();
    if set
        .options
        .maxelem
        .is_some_and(|maxelem| entries > maxelem as usize)
    {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        let needed = entries.saturating_add(entries / 4);
        set.options.maxelem = Some(needed.checked_next_power_of_two().unwrap_or(u32::MAX));
        // About four entries in a bucket, so that the kernel does not resize the set again and again while it is filled.
        set.options.hashsize = set.options.hashsize.max(Some((needed / 4).min(1 << 24)));
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temporary_set_of_each_set_has_a_name_of_its_own() {
        for family in Family::ALL {
            for &set in SetId::ALL {
                let name = temporary_of(family, set);
                assert!(name.as_bytes().len() <= 31, "{name}");
                assert_eq!(SetId::of_name(&name), None);
                assert_eq!(of_temporary(&name), Some((family, set)));
            }
        }
        for name in ["KUBE-CLUSTER-IP", "blocked~", "~"] {
            assert_eq!(of_temporary(&SetName::new(name).unwrap()), None);
        }
    }

    #[test]
    fn a_definition_is_that_of_kube_proxy_until_it_is_too_small() {
        let definition = SetId::ClusterIp.definition(Family::Ipv4);
        for (entries, maxelem) in [
            (0, 65_536),
            (65_536, 65_536),
            (65_537, 131_072),
            (104_858, 131_072),
            (104_859, 262_144),
            (usize::MAX, u32::MAX),
        ] {
            let set = definition_for(&definition, entries);
            assert_eq!(set.options.maxelem, Some(maxelem), "{entries}");
        }
        let bitmap = SetId::NodePortTcp.definition(Family::Ipv4);
        assert_eq!(definition_for(&bitmap, 65_536), bitmap);
    }
}
