//! The trait [`IpSets`] and its implementation on the kernel.

mod batch;
mod listing;
mod messages;
mod remembered;
mod retry;

use std::collections::{BTreeMap, HashMap};

use kernlink_netlink::{Batch, Connection, Errno, Namespace, Protocol, flags};

use crate::entry::Entry;
use crate::entry_range::EntryRange;
use crate::error::Error;
use crate::matching::Members;
use crate::name::SetName;
use crate::operation::{Action, IfExists, Operation};
use crate::revisions::Revisions;
use crate::set::{Set, SetContents, SetHeader};
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;
use crate::wire;

/// The sets of one network namespace: in the kernel with [`Client`], or in memory with `Fake` (feature `fake`).
///
/// An implementation must have three methods: [`execute`](Self::execute), [`list_set`](Self::list_set) and
/// [`headers`](Self::headers). The provided methods use these three, except [`index_of`](Self::index_of),
/// [`name_of`](Self::name_of) and [`revisions`](Self::revisions), which return [`Error::NotImplemented`]. A wrapper around a
/// [`Client`] should forward [`execute_until_failure`](Self::execute_until_failure) and [`list`](Self::list) too, because the
/// provided methods need one call for each operation and for each set. [`Error::custom`] is for errors that do not come from the
/// kernel.
///
/// ```
/// use kernlink_ipset::{Error, IpSets, Operation, SetContents, SetHeader, SetName};
///
/// /// Refuses to destroy sets.
/// struct WithoutDestroy<S>(S);
///
/// impl<S: IpSets> IpSets for WithoutDestroy<S> {
///     fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
///         let execute = |operation: &Operation| match operation {
///             Operation::Destroy { .. } => Err(Error::custom(operation.clone(), "no set may be destroyed on this host")),
///             operation => self.0.execute_one(operation.clone()),
///         };
///         operations.iter().map(execute).collect()
///     }
///
///     fn list_set(&mut self, name: &SetName) -> Result<SetContents, Error> {
///         self.0.list_set(name)
///     }
///
///     fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
///         self.0.headers()
///     }
/// }
/// ```
pub trait IpSets: Send {
    /// Executes operations in order and returns one outcome for each, in order. A failed operation does not stop the operations
    /// after it.
    ///
    /// [`Client`] sends consecutive entries of one set together, more than a thousand in a message. The kernel stops at the first
    /// entry that it refuses; the entries after it are sent again.
    ///
    /// If the kernel does not answer within the connection's timeout, nothing more is sent. Operations that were sent and not
    /// answered fail with that error, and their outcome is unknown. Operations that were not sent fail with
    /// [`Error::NotAttempted`].
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// Like [`execute`](Self::execute), but stops at the first failure: the outcome of each operation after it is
    /// [`Error::NotAttempted`].
    ///
    /// The provided method executes one operation at a time.
    fn execute_until_failure(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let mut has_failed = false;
        let execute = |operation: &Operation| {
            if has_failed {
                return Err(Error::NotAttempted);
            }
            let outcome = self.execute_one(operation.clone());
            has_failed = outcome.is_err();
            outcome
        };
        operations.iter().map(execute).collect()
    }

    /// All sets with their entries, lists of sets last. Command line: `ipset list`.
    ///
    /// The kernel does not report that a set changed while it was listed. [`Client`] therefore lists twice and compares,
    /// without timeouts and counters, and lists again while the two differ, up to eight times. The provided method calls
    /// [`list_set`](Self::list_set) for each set of [`headers`](Self::headers) and leaves out sets that no longer exist.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] if the sets changed during every attempt.
    fn list(&mut self) -> Result<Vec<SetContents>, Error> {
        let mut sets = Vec::new();
        for header in self.headers()? {
            match self.list_set(&header.set.name) {
                Ok(contents) => sets.push(contents),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sets)
    }

    /// One set with its entries, listed and compared as in [`list`](Self::list). Command line: `ipset list NAME`.
    ///
    /// # Errors
    ///
    /// `is_not_found`; [`Error::Changed`].
    fn list_set(&mut self, name: &SetName) -> Result<SetContents, Error>;

    /// All sets without their entries, lists of sets last. Command line: `ipset list -terse`.
    ///
    /// # Errors
    ///
    /// `is_permission_denied`.
    fn headers(&mut self) -> Result<Vec<SetHeader>, Error>;

    /// One set without its entries. Command line: `ipset list -terse NAME`.
    ///
    /// # Errors
    ///
    /// `is_not_found`.
    fn header(&mut self, name: &SetName) -> Result<SetHeader, Error> {
        let headers = self.headers()?;
        let found = headers.into_iter().find(|header| header.set.name == *name);
        found.ok_or_else(|| Error::of_errno(Action::List(*name), Errno::ENOENT, None))
    }

    /// The names of all sets, lists of sets last. Command line: `ipset list -name`.
    ///
    /// # Errors
    ///
    /// `is_permission_denied`.
    fn names(&mut self) -> Result<Vec<SetName>, Error> {
        let headers = self.headers()?;
        Ok(headers.into_iter().map(|header| header.set.name).collect())
    }

    /// Whether each entry is in the set, in order. Command line: `ipset test`.
    ///
    /// An address is in a set of networks if a network of the set contains it, unless the smallest such network has the option
    /// `nomatch`. The provided method lists the set and compares as the kernel does.
    ///
    /// # Errors
    ///
    /// For each entry: `is_not_found` if the set does not exist, `is_invalid` if the set cannot hold such an entry.
    fn test_all(&mut self, set: &SetName, entries: &[Entry]) -> Vec<Result<bool, Error>> {
        let listed = self.list_set(set).map(Members::new);
        let test = |entry: &Entry| {
            let action = || Action::Test(*set, entry.clone());
            match &listed {
                Ok(members) => members.test(entry, &action),
                Err(error) => Err(error.clone().with_action(action())),
            }
        };
        entries.iter().map(test).collect()
    }

    /// The index of the set in the kernel, by which rules refer to it. After a swap the indexes stay with the names.
    /// Since Linux 4.20.
    ///
    /// # Errors
    ///
    /// `is_not_found`, `is_unsupported`; [`Error::NotImplemented`] from the provided method.
    #[doc(alias = "IPSET_CMD_GET_BYNAME")]
    fn index_of(&mut self, name: &SetName) -> Result<u16, Error> {
        Err(Error::not_implemented(Action::IndexOf(*name)))
    }

    /// The name of the set with this index. Since Linux 4.20.
    ///
    /// # Errors
    ///
    /// `is_not_found`, `is_unsupported`; [`Error::NotImplemented`] from the provided method.
    #[doc(alias = "IPSET_CMD_GET_BYINDEX")]
    fn name_of(&mut self, index: u16) -> Result<SetName, Error> {
        Err(Error::not_implemented(Action::NameOf(index)))
    }

    /// The revisions of a set type in this family that the kernel has; `None` if the kernel does not have the type.
    ///
    /// # Errors
    ///
    /// `is_permission_denied`; [`Error::NotImplemented`] from the provided method.
    #[doc(alias = "IPSET_CMD_TYPE")]
    fn revisions(&mut self, set_type: SetType, family: SetFamily) -> Result<Option<Revisions>, Error> {
        let _ = family;
        Err(Error::not_implemented(Action::Revisions(set_type)))
    }

    /// Destroys all sets of the network namespace, or none if one of them is in use. Command line: `ipset destroy`.
    ///
    /// [`Client`] does this in one step. The provided method reads the [`headers`](Self::headers) and destroys one set after
    /// the other; if one of them fails, the others are still destroyed.
    ///
    /// # Errors
    ///
    /// `is_busy`.
    fn destroy_all(&mut self) -> Result<(), Error> {
        let headers = self.headers()?;
        if headers.iter().any(|header| header.stats.references > 0) {
            return Err(Error::of_errno(Action::DestroyAll, Errno(IPSET_ERR_BUSY), None));
        }
        let destroy = |header: SetHeader| Operation::Destroy {
            set: header.set.name,
            if_exists: IfExists::Succeed,
        };
        let operations: Vec<Operation> = headers.into_iter().map(destroy).collect();
        first_failure(self.execute(&operations), operations.len())
    }

    /// Removes all entries of all sets of the network namespace. Command line: `ipset flush`.
    ///
    /// The provided method flushes each set of [`headers`](Self::headers).
    ///
    /// # Errors
    ///
    /// `is_permission_denied`.
    fn flush_all(&mut self) -> Result<(), Error> {
        let names = self.names()?;
        let operations: Vec<Operation> = names.into_iter().map(|set| Operation::Flush { set }).collect();
        let mut outcomes = self.execute(&operations);
        // Another client may have destroyed a set since.
        for outcome in &mut outcomes {
            if outcome.as_ref().is_err_and(Error::is_not_found) {
                *outcome = Ok(());
            }
        }
        first_failure(outcomes, operations.len())
    }

    /// Creates a set. Command line: `ipset create`.
    ///
    /// # Errors
    ///
    /// `is_already_exists`, `is_unsupported`, `is_invalid`.
    fn create(&mut self, set: &Set) -> Result<(), Error> {
        self.execute_one(Operation::create(set.clone()))
    }

    /// Creates a set unless it exists. Command line: `ipset create -exist`.
    ///
    /// # Errors
    ///
    /// `is_already_exists` if a set with this name has another type or other options, `is_unsupported`, `is_invalid`.
    fn ensure_set(&mut self, set: &Set) -> Result<(), Error> {
        self.execute_one(Operation::ensure_set(set.clone()))
    }

    /// Destroys a set. Command line: `ipset destroy NAME`.
    ///
    /// # Errors
    ///
    /// `is_not_found`, `is_busy`.
    fn destroy(&mut self, set: &SetName) -> Result<(), Error> {
        self.execute_one(Operation::destroy(*set))
    }

    /// Removes all entries of a set. Command line: `ipset flush NAME`.
    ///
    /// # Errors
    ///
    /// `is_not_found`.
    fn flush(&mut self, set: &SetName) -> Result<(), Error> {
        self.execute_one(Operation::Flush { set: *set })
    }

    /// Renames a set that is not in use. Command line: `ipset rename`.
    ///
    /// # Errors
    ///
    /// `is_not_found`, `is_already_exists`, `is_busy`.
    fn rename(&mut self, from: &SetName, to: &SetName) -> Result<(), Error> {
        self.execute_one(Operation::Rename { from: *from, to: *to })
    }

    /// Exchanges the contents of two sets, even if they are in use. Command line: `ipset swap`.
    ///
    /// # Errors
    ///
    /// `is_not_found`; a refusal if type or family differ.
    fn swap(&mut self, first: &SetName, second: &SetName) -> Result<(), Error> {
        self.execute_one(Operation::Swap {
            first: *first,
            second: *second,
        })
    }

    /// Adds an entry. Command line: `ipset add`.
    ///
    /// # Errors
    ///
    /// `is_not_found` if the set does not exist, `is_already_exists`, `is_full`, `is_invalid`.
    fn add(&mut self, set: &SetName, entry: &Entry) -> Result<(), Error> {
        self.execute_one(Operation::add(*set, entry.clone()))
    }

    /// Adds an entry, or updates the options of an existing one. Command line: `ipset add -exist`.
    ///
    /// # Errors
    ///
    /// `is_not_found` if the set does not exist, `is_full`, `is_invalid`.
    fn ensure(&mut self, set: &SetName, entry: &Entry) -> Result<(), Error> {
        self.execute_one(Operation::ensure(*set, entry.clone()))
    }

    /// Deletes an entry. Command line: `ipset del`.
    ///
    /// # Errors
    ///
    /// `is_not_found`, `is_invalid`.
    fn delete(&mut self, set: &SetName, entry: &Entry) -> Result<(), Error> {
        self.execute_one(Operation::delete(*set, entry.clone()))
    }

    /// Adds all entries of a range. Command line: `ipset add` with a range.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add); the entries before the refused one stay in the set.
    fn add_range(&mut self, set: &SetName, range: &EntryRange) -> Result<(), Error> {
        self.execute_one(Operation::AddRange {
            set: *set,
            range: Box::new(range.clone()),
            if_exists: IfExists::Fail,
        })
    }

    /// Whether an entry is in the set; see [`test_all`](Self::test_all). Command line: `ipset test`.
    ///
    /// # Errors
    ///
    /// `is_not_found` if the set does not exist, `is_invalid`.
    fn test(&mut self, set: &SetName, entry: &Entry) -> Result<bool, Error> {
        self.test_all(set, std::slice::from_ref(entry))
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }

    /// Replaces all entries of a set in one step: a packet is matched against either the old or the new entries.
    ///
    /// A temporary set is created and filled, swapped with the set, and destroyed. If filling it fails, it is destroyed and
    /// the set is unchanged. The temporary set has the options of the set, a hashsize for the number of entries, and the
    /// name of the set, cut to at most 29 bytes, followed by `~` and a digit. It remains if the process ends before it is
    /// destroyed, or if destroying it fails; then the error is returned although the entries were replaced.
    ///
    /// # Errors
    ///
    /// `is_not_found`; the error of the first entry that fails: `is_full`, `is_invalid`, or `is_already_exists` if `entries`
    /// contains an entry twice.
    fn replace(&mut self, set: &SetName, entries: &[Entry]) -> Result<(), Error> {
        let header = self.header(set)?;
        let temporary = create_temporary(self, &header.set, entries.len())?;
        let mut operations: Vec<Operation> = entries
            .iter()
            .map(|entry| Operation::add(temporary, entry.clone()))
            .collect();
        operations.push(Operation::Swap {
            first: temporary,
            second: *set,
        });
        let outcome = first_failure(self.execute_until_failure(&operations), operations.len());
        let destroyed = self.destroy(&temporary);
        outcome.and(destroyed)
    }

    /// Executes one operation.
    fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
        self.execute(std::slice::from_ref(&operation))
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }
}

/// Creates an empty set like `set` with a temporary name and a hashsize for this number of entries. Returns the name.
fn create_temporary(sets: &mut (impl IpSets + ?Sized), set: &Set, entries: usize) -> Result<SetName, Error> {
    let mut number = 0;
    loop {
        let name = temporary_name(&set.name, number);
        let mut temporary = set.clone();
        temporary.name = name;
        temporary.options.initval = None;
        if set.set_type.is_hash() {
            let needed = u32::try_from(entries).unwrap_or(u32::MAX);
            temporary.options.hashsize = temporary.options.hashsize.max(Some(needed.min(1 << 24)));
        }
        match sets.create(&temporary) {
            Ok(()) => return Ok(name),
            Err(error) if error.is_already_exists() && number < 9 => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The first error of the outcomes of `count` operations.
fn first_failure(outcomes: Vec<Result<(), Error>>, count: usize) -> Result<(), Error> {
    let is_complete = outcomes.len() >= count;
    outcomes.into_iter().collect::<Result<(), Error>>()?;
    if is_complete {
        Ok(())
    } else {
        Err(Error::OutcomeMissing)
    }
}

/// The first bytes of the name, followed by `~` and a digit.
fn temporary_name(name: &SetName, number: u8) -> SetName {
    let mut bytes: Vec<u8> = name
        .as_bytes()
        .iter()
        .copied()
        .take(IPSET_MAXNAMELEN - 3)
        .collect();
    bytes.extend([b'~', b'0' + number]);
    // At most 31 bytes, none of them NUL.
    SetName::from_bytes(&bytes).unwrap_or(*name)
}

/// A netlink connection to the sets of a network namespace.
///
/// Requires `CAP_NET_ADMIN` in the user namespace that owns the network namespace. A client is used by one thread at a time; open
/// one for each thread.
#[derive(Debug)]
pub struct Client {
    pub(crate) connection: Connection,
    pub(crate) batch: Batch,
    revisions: HashMap<(SetType, SetFamily), Option<Revisions>>,
    /// The types of sets by name; `None` if the client does not remember them.
    remembered: Option<BTreeMap<SetName, (SetType, SetFamily)>>,
}

impl Client {
    /// Opens a connection in the calling thread's network namespace. The kernel loads the module `ip_set` if it is not built in.
    ///
    /// Each call waits at most 30 seconds for each datagram of an answer. For another timeout, use
    /// [`Connection::set_timeout`] and [`from_connection`](Self::from_connection).
    ///
    /// # Errors
    ///
    /// If the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Connection::open(Protocol::Netfilter)
            .map(Self::from_connection)
            .map_err(|error| Error::new(Action::Open, error, None))
    }

    /// Opens a connection in another network namespace.
    ///
    /// # Errors
    ///
    /// If the namespace cannot be entered or the socket cannot be opened.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Connection::open_in(Protocol::Netfilter, namespace)
            .map(Self::from_connection)
            .map_err(|error| Error::new(Action::Open, error, None))
    }

    /// Uses this connection, whose protocol must be [`Protocol::Netfilter`], for example a scripted connection in a test.
    #[must_use]
    pub fn from_connection(connection: Connection) -> Self {
        Client {
            connection,
            batch: Batch::new(),
            revisions: HashMap::new(),
            remembered: None,
        }
    }

    /// Remembers the types of sets, so that a change of entries is one request: otherwise the type of each set is requested before its
    /// entries change. For callers whose sets no other program replaces by sets of another type. A set that a rule refers to cannot be
    /// replaced like this: the kernel refuses to destroy it, and to swap it with a set of another type.
    ///
    /// The types are forgotten after every failed operation and every operation on sets as a whole, and read again by every listing.
    #[must_use]
    pub fn with_remembered_types(mut self) -> Self {
        self.remembered = Some(BTreeMap::new());
        self
    }

    /// One set with its entries, listed once: faster than [`IpSets::list_set`], but inconsistent if the set changes at the same
    /// time. For callers that are the only writer, and for sets that change all the time.
    ///
    /// # Errors
    ///
    /// `is_not_found`.
    pub fn list_set_once(&mut self, name: &SetName) -> Result<SetContents, Error> {
        let mut sets = self.dump(Some(name), 0)?;
        match (sets.pop(), sets.is_empty()) {
            (Some(set), true) => Ok(set),
            _ => Err(Error::of_errno(Action::List(*name), Errno::ENOENT, None)),
        }
    }

    /// All sets with their entries, listed once; see [`Self::list_set_once`].
    ///
    /// # Errors
    ///
    /// `is_permission_denied`.
    pub fn list_once(&mut self) -> Result<Vec<SetContents>, Error> {
        self.dump(None, 0)
    }

    /// Sends a request without changes and decodes its answer.
    fn request<T>(
        &mut self,
        action: Action,
        command: u8,
        write: impl FnOnce(&mut kernlink_netlink::AttributeWriter<'_>),
        mut read: impl FnMut(&[u8]) -> Result<T, kernlink_netlink::Error>,
    ) -> Result<Option<T>, Error> {
        self.connection
            .request(wire::message_type(command), 0, write, |message| {
                read(message.payload).map(Some)
            })
            .map(|mut answers| answers.pop())
            .map_err(|error| Error::new(action, error, None))
    }

    /// Sends a command without a name, which applies to all sets.
    fn request_for_all(&mut self, command: u8, action: Action) -> Result<(), Error> {
        self.connection
            .execute_one(wire::message_type(command), flags::NLM_F_EXCL, |w| {
                wire::preamble(w, IPSET_PROTOCOL_MIN)
            })
            .map_err(|error| Error::new(action, error, None))
    }
}

impl IpSets for Client {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.run(operations, crate::client::batch::OnFailure::Continue)
    }

    fn execute_until_failure(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.run(operations, crate::client::batch::OnFailure::Stop)
    }

    fn list(&mut self) -> Result<Vec<SetContents>, Error> {
        self.list_consistent(None)
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, Error> {
        let mut sets = self.list_consistent(Some(name))?;
        sets.pop()
            .ok_or_else(|| Error::of_errno(Action::List(*name), Errno::ENOENT, None))
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
        let sets = self.dump(None, IPSET_FLAG_LIST_HEADER)?;
        Ok(sets.into_iter().map(|set| set.header).collect())
    }

    fn header(&mut self, name: &SetName) -> Result<SetHeader, Error> {
        let mut sets = self.dump(Some(name), IPSET_FLAG_LIST_HEADER)?;
        let set = sets
            .pop()
            .ok_or_else(|| Error::of_errno(Action::List(*name), Errno::ENOENT, None))?;
        Ok(set.header)
    }

    fn names(&mut self) -> Result<Vec<SetName>, Error> {
        self.connection
            .dump_all(
                wire::message_type(IPSET_CMD_LIST),
                0,
                |w| {
                    wire::preamble(w, IPSET_PROTOCOL_MIN);
                    w.net().be_u32(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_SETNAME);
                },
                |message| wire::read_list_part(message.payload).map(|part| Some(part.name)),
            )
            .map_err(|error| Error::new(Action::ListAll, error, None))
    }

    fn test_all(&mut self, set: &SetName, entries: &[Entry]) -> Vec<Result<bool, Error>> {
        self.run_tests(set, entries)
    }

    fn index_of(&mut self, name: &SetName) -> Result<u16, Error> {
        let action = Action::IndexOf(*name);
        let answer = self.request(
            action.clone(),
            IPSET_CMD_GET_BYNAME,
            |w| {
                wire::preamble(w, IPSET_PROTOCOL);
                wire::name(w, name);
            },
            wire::read_name_and_index,
        );
        let index = require_protocol_7(answer)?.and_then(|(_, index)| index);
        index.ok_or_else(|| Error::of_errno(action, Errno::ENOENT, None))
    }

    fn name_of(&mut self, index: u16) -> Result<SetName, Error> {
        let action = Action::NameOf(index);
        let answer = self.request(
            action.clone(),
            IPSET_CMD_GET_BYINDEX,
            |w| wire::write_index_query(w, index),
            wire::read_name_and_index,
        );
        let name = require_protocol_7(answer)?.and_then(|(name, _)| name);
        name.ok_or_else(|| Error::of_errno(action, Errno::ENOENT, None))
    }

    fn revisions(&mut self, set_type: SetType, family: SetFamily) -> Result<Option<Revisions>, Error> {
        if let Some(known) = self.revisions.get(&(set_type, family)) {
            return Ok(*known);
        }
        let answer = self.request(
            Action::Revisions(set_type),
            IPSET_CMD_TYPE,
            |w| wire::write_type_query(w, set_type, family),
            wire::read_revisions,
        );
        let revisions = match answer {
            Err(error) if error.reason() == Some(crate::Reason::UnknownType) => None,
            answer => answer?,
        };
        // A missing type may come with a module later.
        if revisions.is_some() {
            self.revisions.insert((set_type, family), revisions);
        }
        Ok(revisions)
    }

    fn destroy_all(&mut self) -> Result<(), Error> {
        self.forget_types();
        self.retry_while_listed(None, |client| {
            client.request_for_all(IPSET_CMD_DESTROY, Action::DestroyAll)
        })
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        self.request_for_all(IPSET_CMD_FLUSH, Action::FlushAll)
    }
}

/// Replaces the errors of kernels before protocol 7, which reject look-ups as malformed messages, by [`Error::Unsupported`].
fn require_protocol_7<T>(answer: Result<T, Error>) -> Result<T, Error> {
    match answer {
        Err(Error::Refused { action, refusal })
            if matches!(refusal.reason, crate::Reason::Protocol) || refusal.kernel.errno == Errno::EINVAL =>
        {
            Err(Error::Unsupported {
                action,
                unsupported: Box::new(crate::Unsupported {
                    what: "looking up sets by name and index (protocol 7)".into(),
                    needed_revision: None,
                    kernel_revision: None,
                    first_kernel: "4.20",
                }),
            })
        }
        answer => answer,
    }
}
