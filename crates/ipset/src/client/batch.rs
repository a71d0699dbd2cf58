//! Executing many operations with few messages, and one outcome for each operation.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kernlink_netlink::{Errno, Reply};

use crate::client::{Client, IpSets};
use crate::element::Element;
use crate::entry::Entry;
use crate::error::Error;
use crate::name::SetName;
use crate::operation::{Action, IfExists, Operation};
use crate::reason::Reason;
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;
use crate::wire;

/// Whether the operations after a failed one are executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    Continue,
    Stop,
}

/// Maximum number of messages in one send.
const MAX_MESSAGES: usize = 128;

/// Type and family of each set that was requested, or why they could not be read.
pub(super) type Types = BTreeMap<SetName, Result<(SetType, SetFamily), Error>>;

/// The execution of a list of operations.
pub(super) struct Run<'o> {
    pub(super) operations: &'o [Operation],
    pub(super) on_failure: OnFailure,
    pub(super) outcomes: Vec<Result<(), Error>>,
    /// Whether the operation has its outcome.
    pub(super) is_done: Vec<bool>,
    /// Types of the sets whose entries change.
    types: Types,
    /// Whether each entry gets a message of its own. Set after a refusal, because the next entries will probably be refused too.
    pub(super) is_single: bool,
    /// The kernel did not answer a request. Nothing more is sent then.
    is_unanswered: bool,
}

/// A message of the batch.
struct SentMessage {
    /// The operations from the first to the last in the message. Some of them may have had their outcome before.
    operations: Range<usize>,
    /// The number of operations in the message.
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
            is_unanswered: false,
        };
        let is_unanswered = |set_type: &Result<_, Error>| set_type.as_ref().is_err_and(Error::is_unanswered);
        run.is_unanswered = run.types.values().any(is_unanswered);
        let mut next = 0;
        while next < operations.len() && !run.is_unanswered {
            let Some((messages, end)) = self.write_messages(&mut run, next) else {
                break;
            };
            if run.is_unanswered {
                break;
            }
            next = self.send(&mut run, &messages).unwrap_or(end);
            if on_failure == OnFailure::Stop && run.stop() {
                break;
            }
        }
        if run.is_unanswered {
            run.finish_unanswered();
        }
        let Run { outcomes, types, .. } = run;
        if outcomes.iter().all(Result::is_ok) && operations.iter().all(is_about_entries) {
            self.remember_types(types);
        } else {
            self.forget_types();
        }
        outcomes
    }

    /// The types, remembered or requested once, of all sets whose entries change and, if the order of operations can matter, of all sets that
    /// are flushed or destroyed.
    fn types_for(&mut self, operations: &[Operation]) -> Types {
        let mut names = BTreeSet::new();
        let mut last = None;
        for operation in operations {
            let is_needed = is_about_entries(operation)
                || (operations.len() > 1
                    && matches!(operation, Operation::Flush { .. } | Operation::Destroy { .. }));
            if is_needed && last != Some(operation.set()) {
                last = Some(operation.set());
                names.insert(*operation.set());
            }
        }
        let mut types = self.remembered_types(&names);
        names.retain(|name| !types.contains_key(name));
        let names: Vec<SetName> = names.into_iter().collect();
        let requested = self.types_of(&names);
        types.extend(names.into_iter().zip(requested));
        types
    }

    /// Writes the next messages into the batch: from `next` up to an operation that has to wait for their outcome. Returns the
    /// messages and the index of that operation; `None` if all operations have their outcome.
    fn write_messages(&mut self, run: &mut Run<'_>, next: usize) -> Option<(Vec<SentMessage>, usize)> {
        self.batch.clear();
        let mut messages: Vec<SentMessage> = Vec::new();
        // Sets whose type or name the messages change, and sets of whose message a part may have to be sent again.
        let (mut changed, mut nested) = (BTreeSet::new(), BTreeSet::new());
        // Whether one of the messages may have to be sent again because its set is being listed. A later operation must not take
        // the set out of use before that.
        let mut may_be_busy = false;
        let mut index = next;
        while let Some(operation) = run.operations.get(index) {
            if run.is_unanswered {
                break;
            }
            if messages.len() >= MAX_MESSAGES || (run.on_failure == OnFailure::Stop && !messages.is_empty()) {
                break;
            }
            if run.is_done.get(index) == Some(&true) {
                index += 1;
                continue;
            }
            if names_any_of(operation, &changed)
                || (!nested.is_empty() && !is_independent_of(operation, &nested))
                || (may_be_busy && run.may_release(operation))
            {
                break;
            }
            let written = match operation {
                Operation::Add { .. } | Operation::Delete { .. } => self.write_entries(run, index),
                Operation::AddRange { range, .. } | Operation::DeleteRange { range, .. } => {
                    if !range.is_expanded_by_kernel() {
                        if !messages.is_empty() {
                            break;
                        }
                        let outcome = self.execute_expanded(run, operation, range);
                        run.finish(index, outcome);
                        if run.is_unanswered || (run.on_failure == OnFailure::Stop && run.has_failed(index)) {
                            return Some((messages, index + 1));
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
                    messages.push(SentMessage { operations, count });
                }
                Err(_) if run.on_failure == OnFailure::Stop && !messages.is_empty() => break,
                Err(error) => {
                    run.finish(index, Err(error));
                    index += 1;
                    if run.on_failure == OnFailure::Stop {
                        break;
                    }
                }
            }
        }
        if messages.is_empty() && index >= run.operations.len() {
            None
        } else {
            Some((messages, index))
        }
    }

    /// Sends the batch and records the outcomes. Returns the first operation that has to be sent again, if there is one.
    fn send(&mut self, run: &mut Run<'_>, messages: &[SentMessage]) -> Option<usize> {
        let mut lines: Vec<Option<u32>> = vec![None; messages.len()];
        let outcomes = self.connection.execute_with(&mut self.batch, |index, reply| {
            if let (Some(line), Reply::Refused { echo, .. }) = (lines.get_mut(index), reply) {
                *line = wire::refused_line(echo);
            }
        });
        let mut again = None;
        let mut has_refusals = false;
        for ((message, outcome), line) in messages.iter().zip(outcomes).zip(lines) {
            let Err(error) = outcome else {
                run.succeed(message);
                continue;
            };
            has_refusals = true;
            let refused = match (&error, line) {
                // The line number is the index of the operation, counted from 1.
                (kernlink_netlink::Error::Refused(_), Some(line)) if message.count > 1 => (line as usize)
                    .checked_sub(1)
                    .filter(|index| message.operations.contains(index)),
                _ => (message.count == 1).then_some(message.operations.start),
            };
            match refused {
                Some(refused) => {
                    for index in message.operations.start..refused {
                        run.finish(index, Ok(()));
                    }
                    let outcome = self.failure(run, refused, error);
                    run.finish(refused, outcome);
                    if refused + 1 < message.operations.end {
                        again = Some(again.map_or(refused + 1, |again: usize| again.min(refused + 1)));
                    }
                }
                // The message as a whole was refused or the connection failed: no entry has an outcome of its own.
                None => {
                    for index in message.operations.clone() {
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

    /// The outcome of an operation that failed: an error, or the outcome of another attempt.
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
                .and_then(|set_type| set_type.as_ref().ok())
                .map(|(set_type, _)| *set_type),
        };
        let error = Error::new(Action::Change(operation.clone()), error, set_type);
        match (operation, error.reason()) {
            // Kernels before 5.11 refuse to destroy a missing set even without NLM_F_EXCL.
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
                let fails_if_referenced = !matches!(operation, Operation::Swap { .. });
                let mut first = Some(error);
                self.retry_while_listed(fails_if_referenced.then_some(&set), |client| match first.take() {
                    Some(error) => Err(error),
                    None => client.attempt_once(operation),
                })
            }
            (
                Operation::AddRange { range, .. } | Operation::DeleteRange { range, .. },
                Some(Reason::InvalidRange),
            ) if is_range_too_long(&error) => self.execute_expanded(run, operation, range),
            (Operation::Create { set, .. }, Some(Reason::SetExists { .. })) => {
                Err(self.with_set_type(error, &set.name))
            }
            (Operation::Rename { to, .. }, Some(Reason::SetExists { .. })) => {
                Err(self.with_set_type(error, to))
            }
            (_, Some(Reason::Full { .. })) => Err(self.with_maxelem(error, operation.set())),
            _ => Err(error),
        }
    }

    /// Sends one operation on a set as a whole, without another attempt.
    fn attempt_once(&mut self, operation: &Operation) -> Result<(), Error> {
        self.batch.clear();
        self.write_set(operation)?;
        let outcome = self.connection.execute(&mut self.batch).pop();
        match outcome {
            Some(Err(error)) => Err(Error::new(Action::Change(operation.clone()), error, None)),
            _ => Ok(()),
        }
    }

    /// Adds the type of the set that exists to a refusal because of its name.
    fn with_set_type(&mut self, mut error: Error, name: &SetName) -> Error {
        if let Error::Refused { refusal, .. } = &mut error {
            refusal.reason = Reason::SetExists {
                set_type: self.header(name).ok().map(|header| header.set.set_type),
            };
        }
        error
    }

    /// Adds the limit of the set to a refusal because the set is full.
    fn with_maxelem(&mut self, mut error: Error, set: &SetName) -> Error {
        let options = self.header(set).ok().map(|header| header.set.options);
        if let Error::Refused { refusal, .. } = &mut error {
            refusal.reason = Reason::Full {
                maxelem: options.and_then(|options| options.maxelem.or(options.size)),
            };
        }
        error
    }

    /// Tests whether entries are in a set: one message for each entry.
    pub(crate) fn run_tests(&mut self, set: &SetName, entries: &[Entry]) -> Vec<Result<bool, Error>> {
        let set_type = self
            .types_of(std::slice::from_ref(set))
            .pop()
            .unwrap_or(Err(Error::NotAttempted));
        let action = |entry: &Entry| Action::Test(*set, entry.clone());
        let (set_type, family) = match set_type {
            Ok(set_type) => set_type,
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
    pub(super) fn type_of(
        &self,
        set: &SetName,
        action: &dyn Fn() -> Action,
    ) -> Result<(SetType, SetFamily), Error> {
        match self.types.get(set) {
            Some(Ok(set_type)) => Ok(*set_type),
            Some(Err(error)) => Err(error.clone().with_action(action())),
            None => Err(Error::of_errno(action(), Errno::ENOENT, None)),
        }
    }

    /// Records the outcome of an operation, unless it has one.
    fn finish(&mut self, index: usize, outcome: Result<(), Error>) {
        let (Some(slot), Some(done)) = (self.outcomes.get_mut(index), self.is_done.get_mut(index)) else {
            return;
        };
        if std::mem::replace(done, true) {
            return;
        }
        let is_ok = outcome.is_ok();
        self.is_unanswered |= outcome.as_ref().is_err_and(Error::is_unanswered);
        *slot = outcome;
        if let (true, Some(operation)) = (is_ok, self.operations.get(index)) {
            update_types(&mut self.types, operation);
        }
    }

    /// Whether an operation may remove a set from a list, so that it is not in use any more.
    fn may_release(&self, operation: &Operation) -> bool {
        let is_of_list = || matches!(self.types.get(operation.set()), Some(Ok((SetType::ListSet, _))));
        matches!(
            operation,
            Operation::Flush { .. } | Operation::Destroy { .. } | Operation::Delete { .. }
        ) && is_of_list()
    }

    /// Records that a message was executed. Operations in its range that it did not contain have their outcome already.
    fn succeed(&mut self, message: &SentMessage) {
        if message.count == 1 {
            self.finish(message.operations.start, Ok(()));
        } else if let Some(is_done) = self.is_done.get_mut(message.operations.clone()) {
            // Entries, which change no types. Their outcomes are `Ok` from the start.
            is_done.fill(true);
        }
    }

    fn has_failed(&self, index: usize) -> bool {
        self.outcomes.get(index).is_some_and(Result::is_err)
    }

    /// After the kernel did not answer: gives the operations without outcome their error.
    fn finish_unanswered(&mut self) {
        let rest = self.operations.iter().zip(&mut self.outcomes).zip(&self.is_done);
        for ((operation, outcome), _) in rest.filter(|(_, is_done)| !**is_done) {
            // The request for the type of the set may be the one without answer.
            let set_type = self.types.get(operation.set());
            let error = set_type.and_then(|set_type| set_type.as_ref().err());
            *outcome = Err(match error.filter(|_| is_about_entries(operation)) {
                Some(error) if error.is_unanswered() => {
                    error.clone().with_action(Action::Change(operation.clone()))
                }
                _ => Error::NotAttempted,
            });
        }
    }

    /// Whether an operation failed; the outcomes of all operations after it become [`Error::NotAttempted`].
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

/// Updates the types of sets after an operation was executed.
fn update_types(types: &mut Types, operation: &Operation) {
    match operation {
        Operation::Create { set, .. } => {
            // An existing set keeps its family.
            let set_type = types.entry(set.name).or_insert(Ok((set.set_type, set.family)));
            if set_type.is_err() {
                *set_type = Ok((set.set_type, set.family));
            }
        }
        Operation::Destroy { set, .. } => {
            types.remove(set);
        }
        Operation::Rename { from, to } => {
            if let Some(set_type) = types.remove(from) {
                types.insert(*to, set_type);
            }
        }
        _ => {}
    }
}

/// Whether the error is `ERANGE` itself: kernels from 5.17 to 6.1 limit the length of a range, and the sender has to expand
/// longer ones.
fn is_range_too_long(error: &Error) -> bool {
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

fn names_any_of(operation: &Operation, names: &BTreeSet<SetName>) -> bool {
    !names.is_empty() && names_of(operation).any(|name| names.contains(&name))
}

/// Whether an operation changes only entries of sets other than these, so that it may be executed before them.
fn is_independent_of(operation: &Operation, nested: &BTreeSet<SetName>) -> bool {
    is_about_entries(operation) && !names_any_of(operation, nested)
}
