//! Writing operations into messages.

use std::ops::Range;

use kernlink_netlink::{Errno, flags};

use super::batch::{OnFailure, Run};
use crate::client::{Client, IpSets};
use crate::element::{Element, InterfaceMatching};
use crate::entry::Entry;
use crate::entry_range::EntryRange;
use crate::error::{Error, Unsupported};
use crate::operation::{Action, IfExists, Operation};
use crate::revisions::{self, WILDCARD_KERNEL, WILDCARD_REVISION};
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;
use crate::validation::{check_length, check_options, check_range, check_set};
use crate::wire;

/// Maximum length of a nest in bytes: its length field has 16 bits.
const MAX_NEST: usize = u16::MAX as usize;

impl Client {
    /// Executes an operation on a range as operations on its entries, up to the first failure.
    pub(super) fn execute_expanded(
        &mut self,
        run: &Run<'_>,
        operation: &Operation,
        range: &EntryRange,
    ) -> Result<(), Error> {
        let (set, action) = (*operation.set(), || Action::Change(operation.clone()));
        let (set_type, family) = run.type_of(&set, &action)?;
        check_range(range, set_type, family, &action)?;
        check_length(range, &action)?;
        let if_exists = operation.if_exists();
        let is_add = matches!(operation, Operation::AddRange { .. });
        let operations: Vec<Operation> = range
            .entries()
            .map(|entry| match is_add {
                true => Operation::Add {
                    set,
                    entry,
                    if_exists,
                },
                false => Operation::Delete {
                    set,
                    entry,
                    if_exists,
                },
            })
            .collect();
        let outcomes = self.run(&operations, OnFailure::Stop);
        outcomes
            .into_iter()
            .find_map(Result::err)
            .map_or(Ok(()), |error| Err(error.with_action(action())))
    }

    /// Writes an operation on a set as a whole.
    pub(super) fn write_set(&mut self, operation: &Operation) -> Result<(), Error> {
        let action = || Action::Change(operation.clone());
        let message_flags = flags_of(operation);
        let pushed = match operation {
            Operation::Create { set, .. } => {
                check_set(set, &action)?;
                let Some(revisions) = self.revisions(set.set_type, set.family)? else {
                    return Err(Error::of_errno(action(), Errno(IPSET_ERR_FIND_TYPE), None));
                };
                let revision = revisions::choose_revision(set, revisions, &action)?;
                self.batch
                    .push(wire::message_type(IPSET_CMD_CREATE), message_flags, |w| {
                        wire::write_create(w, set, revision);
                    })
            }
            Operation::Rename { from, to } => {
                self.batch
                    .push(wire::message_type(IPSET_CMD_RENAME), message_flags, |w| {
                        wire::named_twice(w, from, to)
                    })
            }
            Operation::Swap { first, second } => {
                self.batch
                    .push(wire::message_type(IPSET_CMD_SWAP), message_flags, |w| {
                        wire::named_twice(w, first, second)
                    })
            }
            Operation::Flush { set } => {
                self.batch
                    .push(wire::message_type(IPSET_CMD_FLUSH), message_flags, |w| {
                        wire::named(w, set)
                    })
            }
            _ => {
                let set = operation.set();
                self.batch
                    .push(wire::message_type(IPSET_CMD_DESTROY), message_flags, |w| {
                        wire::named(w, set)
                    })
            }
        };
        pushed.map_err(|error| Error::new(action(), error, None))
    }

    /// Writes an operation on a range that the kernel expands.
    pub(super) fn write_range(
        &mut self,
        run: &Run<'_>,
        operation: &Operation,
        range: &EntryRange,
    ) -> Result<(), Error> {
        let action = || Action::Change(operation.clone());
        let (set_type, family) = run.type_of(operation.set(), &action)?;
        check_range(range, set_type, family, &action)?;
        self.batch
            .push(
                wire::message_type(command_of(operation)),
                flags_of(operation),
                |w| {
                    wire::named(w, operation.set());
                    wire::write_range(w, range);
                },
            )
            .map_err(|error| Error::new(action(), error, None))
    }

    /// Writes one message with the operation `first` and those after it that can be in the same message, as many as fit. Entries
    /// that are not valid for the set get their outcome here. Returns the range of operations that the message covers.
    pub(super) fn write_entries(&mut self, run: &mut Run<'_>, first: usize) -> Result<Range<usize>, Error> {
        let Some(operation) = run.operations.get(first) else {
            return Err(Error::NotAttempted);
        };
        let action = |operation: &Operation| Action::Change(operation.clone());
        let set = *operation.set();
        let (set_type, family) = run.type_of(&set, &|| action(operation))?;
        let wildcard = if set_type == SetType::HashNetIface {
            self.wildcard(family)?
        } else {
            Ok(())
        };
        let check = |operation: &Operation, entry: &Entry| {
            if let Err(mismatch) = entry.element().check(set_type, family) {
                return Err(Error::invalid_entry(action(operation), mismatch));
            }
            check_options(entry, set_type, &|| action(operation))?;
            match (&wildcard, entry.element()) {
                (Err(unsupported), Element::NetIface { interface, .. })
                    if interface.matching == InterfaceMatching::Prefix =>
                {
                    let action = Box::new(action(operation));
                    Err(Error::Unsupported {
                        action,
                        unsupported: Box::new(unsupported.clone()),
                    })
                }
                _ => Ok(()),
            }
        };
        let mut entry = entry_of(operation).ok_or(Error::NotAttempted)?;
        check(operation, entry)?;
        let (operations, on_failure, is_single) = (run.operations, run.on_failure, run.is_single);
        let (outcomes, is_done) = (&mut run.outcomes, &mut run.is_done);
        let mut end = first;
        let pushed = self.batch.push(
            wire::message_type(command_of(operation)),
            flags_of(operation),
            |w| {
                wire::named(w, &set);
                let next = first + 1;
                let follows = !is_single
                    && operations
                        .get(next)
                        .is_some_and(|next| can_share_message(next, operation));
                if !follows {
                    wire::write_entry(w, entry, 0);
                    end = next;
                    return;
                }
                // With this attribute the kernel returns the line number of the entry that it refuses.
                w.net().be_u32(IPSET_ATTR_LINENO, 0);
                w.nested(IPSET_ATTR_ADT, |w| {
                    let start = w.position();
                    end = first;
                    loop {
                        wire::write_entry(w, entry, u32::try_from(end + 1).unwrap_or(u32::MAX));
                        // The next valid entry; invalid ones before it get their outcome.
                        let following = loop {
                            end += 1;
                            let Some(following) = operations
                                .get(end)
                                .filter(|following| can_share_message(following, operation))
                            else {
                                return;
                            };
                            let Some(next) = entry_of(following) else { return };
                            if w.position() - start + wire::entry_room(next) > MAX_NEST - 4 {
                                return;
                            }
                            if is_done.get(end) == Some(&true) {
                                continue;
                            }
                            match check(following, next) {
                                Ok(()) => break next,
                                Err(_) if on_failure == OnFailure::Stop => return,
                                Err(error) => {
                                    if let (Some(outcome), Some(done)) =
                                        (outcomes.get_mut(end), is_done.get_mut(end))
                                    {
                                        *outcome = Err(error);
                                        *done = true;
                                    }
                                }
                            }
                        };
                        entry = following;
                    }
                });
            },
        );
        pushed.map_err(|error| Error::new(action(operation), error, None))?;
        Ok(first..end)
    }

    /// Whether the kernel supports prefixes of interface names.
    fn wildcard(&mut self, family: SetFamily) -> Result<Result<(), Unsupported>, Error> {
        let revisions = self.revisions(SetType::HashNetIface, family)?;
        let max = revisions.map(|revisions| revisions.max);
        Ok(if max.is_some_and(|max| max >= WILDCARD_REVISION) {
            Ok(())
        } else {
            Err(Unsupported {
                what: "wildcard of hash:net,iface".into(),
                needed_revision: Some(WILDCARD_REVISION),
                kernel_revision: max,
                first_kernel: WILDCARD_KERNEL,
            })
        })
    }
}

fn entry_of(operation: &Operation) -> Option<&Entry> {
    match operation {
        Operation::Add { entry, .. } | Operation::Delete { entry, .. } => Some(entry),
        _ => None,
    }
}

/// Whether two operations change entries of the same set in the same way.
fn can_share_message(second: &Operation, first: &Operation) -> bool {
    match (first, second) {
        (
            Operation::Add { set, if_exists, .. },
            Operation::Add {
                set: second_set,
                if_exists: second_if_exists,
                ..
            },
        )
        | (
            Operation::Delete { set, if_exists, .. },
            Operation::Delete {
                set: second_set,
                if_exists: second_if_exists,
                ..
            },
        ) => set == second_set && if_exists == second_if_exists,
        _ => false,
    }
}

fn command_of(operation: &Operation) -> u8 {
    match operation {
        Operation::Add { .. } | Operation::AddRange { .. } => IPSET_CMD_ADD,
        _ => IPSET_CMD_DEL,
    }
}

fn flags_of(operation: &Operation) -> u16 {
    match operation.if_exists() {
        IfExists::Fail => flags::NLM_F_EXCL,
        IfExists::Succeed => 0,
    }
}
