//! Many operations in few messages, with one outcome each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use kernlink_netlink::{Errno, Reply, flags};

use crate::client::{Client, IpSets};
use crate::element::{Element, InterfaceMatching};
use crate::entry::Entry;
use crate::entry_range::EntryRange;
use crate::error::{Error, Unsupported};
use crate::name::SetName;
use crate::operation::{Action, IfExists, Operation};
use crate::reason::Reason;
use crate::revisions::{self, WILDCARD};
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;
use crate::wire;

/// Whether what comes behind a failed operation is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    Continue,
    Stop,
}

/// Bytes that a nest may have: its length field has 16 bits.
const NEST: usize = u16::MAX as usize;
/// Messages that are collected before they are sent.
const WINDOW: usize = 128;
/// Entries that a range may have which is spread here because the kernel does not.
const SPREAD: u128 = 1 << 20;
/// How often something is tried that another process's listing blocks, and the first pause between; each is twice as
/// long as the one before, a quarter of a second at most.
const BUSY_ATTEMPTS: u32 = 12;
const BUSY_PAUSE: Duration = Duration::from_millis(1);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(250);

type Types = BTreeMap<SetName, Result<(SetType, SetFamily), Error>>;

/// One run over a list of operations.
struct Run<'o> {
    operations: &'o [Operation],
    on_failure: OnFailure,
    outcomes: Vec<Result<(), Error>>,
    /// Which operations have their outcome.
    is_done: Vec<bool>,
    /// Types of the sets that entries go to.
    types: Types,
    /// Each entry in a message of its own, after one was refused: then the next ones probably are as well.
    is_single: bool,
    /// The kernel does not answer, so nothing more is sent.
    is_silent: bool,
}

/// A message of the window: the operations it carries.
struct Item {
    operations: Range<usize>,
    count: usize,
}

impl Client {
    pub(crate) fn run(&mut self, operations: &[Operation], on_failure: OnFailure) -> Vec<Result<(), Error>> {
        let mut run = Run {
            operations,
            on_failure,
            outcomes: vec![Ok(()); operations.len()],
            is_done: vec![false; operations.len()],
            types: self.types_for(operations),
            is_single: false,
            is_silent: false,
        };
        let is_silent = |known: &Result<_, Error>| known.as_ref().is_err_and(Error::is_unanswered);
        run.is_silent = run.types.values().any(is_silent);
        let mut next = 0;
        while next < operations.len() && !run.is_silent {
            let Some((items, end)) = self.plan(&mut run, next) else {
                break;
            };
            if run.is_silent {
                break;
            }
            next = self.send(&mut run, &items).unwrap_or(end);
            if on_failure == OnFailure::Stop && run.stop() {
                break;
            }
        }
        if run.is_silent {
            run.leave_the_rest();
        }
        run.outcomes
    }

    /// Asks once for the types of all the sets that entries go to and, where the order of operations can matter, of
    /// those that are flushed or destroyed.
    fn types_for(&mut self, operations: &[Operation]) -> Types {
        let mut names = BTreeSet::new();
        let mut last = None;
        for operation in operations {
            let is_asked = is_about_entries(operation)
                || (operations.len() > 1
                    && matches!(operation, Operation::Flush { .. } | Operation::Destroy { .. }));
            if is_asked && last != Some(operation.set()) {
                last = Some(operation.set());
                names.insert(*operation.set());
            }
        }
        let names: Vec<SetName> = names.into_iter().collect();
        let types = self.types_of(&names);
        names.into_iter().zip(types).collect()
    }

    /// Writes the next messages into the batch: from `next` up to the operation that has to wait for their outcome.
    /// `None` where everything is done.
    fn plan(&mut self, run: &mut Run<'_>, next: usize) -> Option<(Vec<Item>, usize)> {
        self.batch.clear();
        let mut items: Vec<Item> = Vec::new();
        // Sets whose type or name the window changes, and sets with a nest of which a part may be sent again.
        let (mut changed, mut nested) = (BTreeSet::new(), BTreeSet::new());
        // Whether something in the window may have to be tried again because the set is being listed. It must not find
        // the set free by then because of something behind it.
        let mut may_be_busy = false;
        let mut index = next;
        while let Some(operation) = run.operations.get(index) {
            if run.is_silent {
                break;
            }
            if items.len() >= WINDOW || (run.on_failure == OnFailure::Stop && !items.is_empty()) {
                break;
            }
            if run.is_done.get(index) == Some(&true) {
                index += 1;
                continue;
            }
            if touches(operation, &changed)
                || (!nested.is_empty() && !may_follow(operation, &nested))
                || (may_be_busy && run.may_release(operation))
            {
                break;
            }
            let written = match operation {
                Operation::Add { .. } | Operation::Delete { .. } => self.write_entries(run, index),
                Operation::AddRange { range, .. } | Operation::DeleteRange { range, .. } => {
                    if !range.is_spread_by_kernel() {
                        if !items.is_empty() {
                            break;
                        }
                        let outcome = self.spread(run, operation, range);
                        run.finish(index, outcome);
                        if run.is_silent || (run.on_failure == OnFailure::Stop && run.has_failed(index)) {
                            return Some((items, index + 1));
                        }
                        index += 1;
                        continue;
                    }
                    self.write_range(run, operation, range).map(|()| index..index + 1)
                }
                _ => self.write_set(operation).map(|()| {
                    changed.extend(names_of(operation));
                    may_be_busy |= matches!(operation, Operation::Destroy { .. } | Operation::Rename { .. });
                    index..index + 1
                }),
            };
            match written {
                Ok(operations) => {
                    let is_done = run.is_done.get(operations.clone()).unwrap_or_default();
                    let count = is_done.iter().filter(|is_done| !**is_done).count();
                    index = operations.end;
                    if count > 1 || is_range(operation) {
                        nested.insert(*operation.set());
                    }
                    items.push(Item { operations, count });
                }
                Err(_) if run.on_failure == OnFailure::Stop && !items.is_empty() => break,
                Err(error) => {
                    run.finish(index, Err(error));
                    index += 1;
                    if run.on_failure == OnFailure::Stop {
                        break;
                    }
                }
            }
        }
        if items.is_empty() && index >= run.operations.len() {
            None
        } else {
            Some((items, index))
        }
    }

    /// Sends the batch and notes the outcomes. Returns the operation to go on with where that is not the one behind the
    /// window.
    fn send(&mut self, run: &mut Run<'_>, items: &[Item]) -> Option<usize> {
        let mut lines: Vec<Option<u32>> = vec![None; items.len()];
        let outcomes = self.connection.execute_with(&mut self.batch, |index, reply| {
            if let (Some(line), Reply::Refused { echo, .. }) = (lines.get_mut(index), reply) {
                *line = wire::refused_line(echo);
            }
        });
        let mut again = None;
        let mut has_refusals = false;
        for ((item, outcome), line) in items.iter().zip(outcomes).zip(lines) {
            let Err(error) = outcome else {
                run.succeed(item);
                continue;
            };
            has_refusals = true;
            let refused = match (&error, line) {
                // The line number is the operation's, counted from 1.
                (kernlink_netlink::Error::Refused(_), Some(line)) if item.count > 1 => (line as usize)
                    .checked_sub(1)
                    .filter(|index| item.operations.contains(index)),
                _ => (item.count == 1).then_some(item.operations.start),
            };
            match refused {
                Some(refused) => {
                    for index in item.operations.start..refused {
                        run.finish(index, Ok(()));
                    }
                    let outcome = self.failure(run, refused, error);
                    run.finish(refused, outcome);
                    if refused + 1 < item.operations.end {
                        again = Some(again.map_or(refused + 1, |again: usize| again.min(refused + 1)));
                    }
                }
                // A refusal of the message as a whole, or a broken connection: nothing is known about its entries.
                None => {
                    for index in item.operations.clone() {
                        if run.is_done.get(index) == Some(&false) {
                            let outcome = self.failure(run, index, error.clone());
                            run.finish(index, outcome);
                        }
                    }
                }
            }
        }
        run.is_single = has_refusals && run.on_failure == OnFailure::Continue;
        again
    }

    /// What a refusal of an operation comes to: usually an error, sometimes another attempt.
    fn failure(
        &mut self,
        run: &mut Run<'_>,
        index: usize,
        error: kernlink_netlink::Error,
    ) -> Result<(), Error> {
        let Some(operation) = run.operations.get(index) else {
            return Err(Error::NotAttempted);
        };
        let set_type = match operation {
            Operation::Create { set, .. } => Some(set.set_type),
            _ => run
                .types
                .get(operation.set())
                .and_then(|known| known.as_ref().ok())
                .map(|(set_type, _)| *set_type),
        };
        let error = Error::new(Action::Change(operation.clone()), error, set_type);
        match (operation, error.reason()) {
            // Kernels before 5.11 refuse whatever the flag says.
            (
                Operation::Destroy {
                    if_exists: IfExists::Succeed,
                    ..
                },
                Some(Reason::NoSuchSet),
            ) => Ok(()),
            (
                Operation::Destroy { set, .. }
                | Operation::Rename { from: set, .. }
                | Operation::Swap { first: set, .. },
                Some(Reason::Busy),
            ) => {
                let set = *set;
                let of_references = !matches!(operation, Operation::Swap { .. });
                let mut first = Some(error);
                self.retry_while_listed(of_references.then_some(&set), |client| match first.take() {
                    Some(error) => Err(error),
                    None => client.attempt_once(operation),
                })
            }
            (
                Operation::AddRange { range, .. } | Operation::DeleteRange { range, .. },
                Some(Reason::InvalidRange),
            ) if error_is_too_long_a_range(&error) => self.spread(run, operation, range),
            (_, Some(Reason::Full { .. })) => Err(self.with_maxelem(error, operation.set())),
            _ => Err(error),
        }
    }

    /// One operation on a set as a whole, once.
    fn attempt_once(&mut self, operation: &Operation) -> Result<(), Error> {
        self.batch.clear();
        self.write_set(operation)?;
        let outcome = self.connection.execute(&mut self.batch).pop();
        match outcome {
            Some(Err(error)) => Err(Error::new(Action::Change(operation.clone()), error, None)),
            _ => Ok(()),
        }
    }

    /// Tries again, a bounded number of times, while it is only a listing that keeps a set busy. Where `set` is given
    /// and a rule or list refers to it there is no point.
    pub(crate) fn retry_while_listed(
        &mut self,
        set: Option<&SetName>,
        mut action: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut pause = BUSY_PAUSE;
        let mut outcome = action(self);
        for _ in 1..BUSY_ATTEMPTS {
            if !outcome.as_ref().is_err_and(Error::is_busy) {
                break;
            }
            let is_referenced = match set {
                Some(set) => self.header(set).is_ok_and(|header| header.stats.references > 0),
                None => self
                    .headers()
                    .is_ok_and(|headers| headers.iter().any(|header| header.stats.references > 0)),
            };
            // A swap works on sets in use: it says busy only because of a listing.
            let is_swap = matches!(&outcome, Err(Error::Refused { refusal, .. }) if refusal.kernel.errno == Errno::EBUSY);
            if is_referenced && !is_swap {
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(BUSY_PAUSE_MAX);
            outcome = action(self);
        }
        outcome
    }

    fn with_maxelem(&mut self, mut error: Error, set: &SetName) -> Error {
        let options = self.header(set).ok().map(|header| header.set.options);
        if let Error::Refused { refusal, .. } = &mut error {
            refusal.reason = Reason::Full {
                maxelem: options.and_then(|options| options.maxelem.or(options.size)),
            };
        }
        error
    }

    /// The entries of a range one by one.
    fn spread(&mut self, run: &Run<'_>, operation: &Operation, range: &EntryRange) -> Result<(), Error> {
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
    fn write_set(&mut self, operation: &Operation) -> Result<(), Error> {
        let action = || Action::Change(operation.clone());
        let message_flags = flags_of(operation);
        let pushed = match operation {
            Operation::Create { set, .. } => {
                revisions::check_set(set, &action)?;
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

    fn write_range(&mut self, run: &Run<'_>, operation: &Operation, range: &EntryRange) -> Result<(), Error> {
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

    /// Writes the entries from `first` on that go to the same set in the same way, as many as fit one message. Entries
    /// that cannot be sent get their outcome here.
    fn write_entries(&mut self, run: &mut Run<'_>, first: usize) -> Result<Range<usize>, Error> {
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
                        .is_some_and(|next| goes_with(next, operation));
                if !follows {
                    wire::write_entry(w, entry, 0);
                    end = next;
                    return;
                }
                // Its presence makes the kernel name the entry that it refuses.
                w.net().be_u32(IPSET_ATTR_LINENO, 0);
                w.nested(IPSET_ATTR_ADT, |w| {
                    let start = w.position();
                    end = first;
                    loop {
                        wire::write_entry(w, entry, u32::try_from(end + 1).unwrap_or(u32::MAX));
                        // The next entry that can be sent; those before it that cannot get their outcome.
                        let following = loop {
                            end += 1;
                            let Some(following) = operations
                                .get(end)
                                .filter(|following| goes_with(following, operation))
                            else {
                                return;
                            };
                            let Some(next) = entry_of(following) else { return };
                            if w.position() - start + wire::entry_room(next) > NEST - 4 {
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

    /// Whether the kernel knows first parts of interface names.
    fn wildcard(&mut self, family: SetFamily) -> Result<Result<(), Unsupported>, Error> {
        let revisions = self.revisions(SetType::HashNetIface, family)?;
        let max = revisions.map(|revisions| revisions.max);
        Ok(if max.is_some_and(|max| max >= WILDCARD.0) {
            Ok(())
        } else {
            Err(Unsupported {
                what: "wildcard of hash:net,iface".into(),
                needed_revision: Some(WILDCARD.0),
                kernel_revision: max,
                first_kernel: WILDCARD.1,
            })
        })
    }

    pub(crate) fn run_tests(&mut self, set: &SetName, entries: &[Entry]) -> Vec<Result<bool, Error>> {
        let known = self
            .types_of(std::slice::from_ref(set))
            .pop()
            .unwrap_or(Err(Error::NotAttempted));
        let action = |entry: &Entry| Action::Test(*set, entry.clone());
        let (set_type, family) = match known {
            Ok(known) => known,
            Err(error) => {
                return entries
                    .iter()
                    .map(|entry| Err(error.clone().with_action(action(entry))))
                    .collect();
            }
        };
        self.batch.clear();
        let mut outcomes: Vec<Result<bool, Error>> = Vec::with_capacity(entries.len());
        let mut sent = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let checked = entry
                .element()
                .check(set_type, family)
                .map_err(|mismatch| Error::invalid_entry(action(entry), mismatch));
            outcomes.push(checked.map(|()| true));
            if outcomes.last().is_some_and(Result::is_ok) {
                let pushed = self.batch.push(wire::message_type(IPSET_CMD_TEST), 0, |w| {
                    wire::named(w, set);
                    wire::write_entry(w, entry, 0);
                });
                match pushed {
                    Ok(()) => sent.push(index),
                    Err(error) => {
                        outcomes.pop();
                        outcomes.push(Err(Error::new(action(entry), error, None)));
                    }
                }
            }
        }
        for (index, answer) in sent.into_iter().zip(self.connection.execute(&mut self.batch)) {
            let (Some(outcome), Some(entry)) = (outcomes.get_mut(index), entries.get(index)) else {
                continue;
            };
            if let Err(error) = answer {
                let error = Error::new(action(entry), error, Some(set_type));
                *outcome = if error.reason() == Some(Reason::NoSuchEntry) {
                    Ok(false)
                } else {
                    Err(error)
                };
            }
        }
        outcomes
    }
}

impl Run<'_> {
    fn type_of(&self, set: &SetName, action: &dyn Fn() -> Action) -> Result<(SetType, SetFamily), Error> {
        match self.types.get(set) {
            Some(Ok(known)) => Ok(*known),
            Some(Err(error)) => Err(error.clone().with_action(action())),
            None => Err(Error::of_errno(action(), Errno::ENOENT, None)),
        }
    }

    fn finish(&mut self, index: usize, outcome: Result<(), Error>) {
        let (Some(slot), Some(done)) = (self.outcomes.get_mut(index), self.is_done.get_mut(index)) else {
            return;
        };
        if std::mem::replace(done, true) {
            return;
        }
        let is_ok = outcome.is_ok();
        self.is_silent |= outcome.as_ref().is_err_and(Error::is_unanswered);
        *slot = outcome;
        if let (true, Some(operation)) = (is_ok, self.operations.get(index)) {
            follow(&mut self.types, operation);
        }
    }

    /// Whether an operation may take a set out of a list, and so out of use.
    fn may_release(&self, operation: &Operation) -> bool {
        let is_of_list = || matches!(self.types.get(operation.set()), Some(Ok((SetType::ListSet, _))));
        matches!(
            operation,
            Operation::Flush { .. } | Operation::Destroy { .. } | Operation::Delete { .. }
        ) && is_of_list()
    }

    /// Notes that a message was executed. What it did not carry has its outcome already.
    fn succeed(&mut self, item: &Item) {
        if item.count == 1 {
            self.finish(item.operations.start, Ok(()));
        } else if let Some(is_done) = self.is_done.get_mut(item.operations.clone()) {
            // Many are entries, which change no types, and whose outcomes are good from the start.
            is_done.fill(true);
        }
    }

    fn has_failed(&self, index: usize) -> bool {
        self.outcomes.get(index).is_some_and(Result::is_err)
    }

    /// After the kernel did not answer, marks what has no outcome yet.
    fn leave_the_rest(&mut self) {
        let rest = self.operations.iter().zip(&mut self.outcomes).zip(&self.is_done);
        for ((operation, outcome), _) in rest.filter(|(_, is_done)| !**is_done) {
            // Asking for the type of the set may be what was not answered.
            let known = self.types.get(operation.set());
            let lost = known.and_then(|known| known.as_ref().err());
            *outcome = Err(match lost.filter(|_| is_about_entries(operation)) {
                Some(error) if error.is_unanswered() => {
                    error.clone().with_action(Action::Change(operation.clone()))
                }
                _ => Error::NotAttempted,
            });
        }
    }

    /// After the first failure, marks what is behind it as not attempted.
    fn stop(&mut self) -> bool {
        let Some(failed) = self.outcomes.iter().position(Result::is_err) else {
            return false;
        };
        for outcome in self.outcomes.iter_mut().skip(failed + 1) {
            *outcome = Err(Error::NotAttempted);
        }
        true
    }
}

/// What an operation that was done means for the types of sets.
fn follow(types: &mut Types, operation: &Operation) {
    match operation {
        Operation::Create { set, .. } => {
            // One that was there keeps its own family.
            let known = types.entry(set.name).or_insert(Ok((set.set_type, set.family)));
            if known.is_err() {
                *known = Ok((set.set_type, set.family));
            }
        }
        Operation::Destroy { set, .. } => {
            types.remove(set);
        }
        Operation::Rename { from, to } => {
            if let Some(known) = types.remove(from) {
                types.insert(*to, known);
            }
        }
        _ => {}
    }
}

/// `ERANGE` itself: kernels from 5.17 to 6.1 had a longest range and left the spreading to the sender.
fn error_is_too_long_a_range(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kernel.errno == Errno::ERANGE)
}

fn is_about_entries(operation: &Operation) -> bool {
    matches!(operation, Operation::Add { .. } | Operation::Delete { .. }) || is_range(operation)
}

fn is_range(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::AddRange { .. } | Operation::DeleteRange { .. }
    )
}

fn entry_of(operation: &Operation) -> Option<&Entry> {
    match operation {
        Operation::Add { entry, .. } | Operation::Delete { entry, .. } => Some(entry),
        _ => None,
    }
}

/// All sets that an operation names.
fn names_of(operation: &Operation) -> impl Iterator<Item = SetName> {
    let second = match operation {
        Operation::Rename { to, .. } => Some(*to),
        Operation::Swap { second, .. } => Some(*second),
        Operation::Add { entry, .. } | Operation::Delete { entry, .. } => match entry.element() {
            Element::Set(name) => Some(*name),
            _ => None,
        },
        _ => None,
    };
    std::iter::once(*operation.set()).chain(second)
}

fn touches(operation: &Operation, names: &BTreeSet<SetName>) -> bool {
    !names.is_empty() && names_of(operation).any(|name| names.contains(&name))
}

/// Entries of other sets may be sent before a refused rest is sent again: that makes no difference to either.
fn may_follow(operation: &Operation, nested: &BTreeSet<SetName>) -> bool {
    is_about_entries(operation) && !touches(operation, nested)
}

/// Whether the second operation can travel in the first one's message.
fn goes_with(second: &Operation, first: &Operation) -> bool {
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

fn check_range(
    range: &EntryRange,
    set_type: SetType,
    family: SetFamily,
    action: &dyn Fn() -> Action,
) -> Result<(), Error> {
    range.check(set_type, family).map_err(|reason| {
        Error::invalid_entry(
            action(),
            crate::Mismatch {
                set_type,
                dimension: None,
                reason,
            },
        )
    })?;
    check_options(&range.first, set_type, action)
}

/// Whether a range that is spread here has no more entries than are sent one by one.
pub(crate) fn check_length(range: &EntryRange, action: &dyn Fn() -> Action) -> Result<(), Error> {
    let count = range.count();
    if count <= SPREAD {
        return Ok(());
    }
    let reason =
        format!("{count} entries; the maximum is {SPREAD} for a range that the kernel does not expand");
    Err(Error::invalid_option(action(), "range", reason))
}

/// Options of an entry that the kernel would ignore in a set of another kind.
pub(crate) fn check_options(
    entry: &Entry,
    set_type: SetType,
    action: &dyn Fn() -> Action,
) -> Result<(), Error> {
    if entry.is_plain() {
        return Ok(());
    }
    let options = entry.options();
    let has_networks = set_type.dimensions().contains(&crate::Dimension::Net);
    let wrong = |option, reason: &str| Err(Error::invalid_option(action(), option, reason));
    if options.nomatch && !has_networks {
        return wrong("nomatch", "only valid for set types with a network");
    }
    if options.position.is_some() && set_type != SetType::ListSet {
        return wrong("before or after", "only valid for set type list:set");
    }
    Ok(())
}
