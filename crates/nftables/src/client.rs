//! The trait [`Nftables`], and its implementation by the kernel.

mod dependencies;
mod listing;
mod messages;

use kernlink_netlink::{Batch, Connection, Errno, Namespace, Protocol};

use self::listing::ShortGeneration;
use self::messages::{Encoded, encode};
use crate::chain::{Chain, ChainKey};
use crate::element::{Element, Elements};
use crate::error::Error;
use crate::flowtable::Flowtable;
use crate::object::Object;
use crate::operation::Operation;
use crate::reason::Reason;
use crate::rule::Rule;
use crate::ruleset::{Ruleset, TableContents};
use crate::set::{Set, SetKey};
use crate::table::{Table, TableKey};
use crate::table_family::TableFamily;

/// Iterator over the elements of a set; see [`Nftables::elements`].
pub type ElementIter<'a> = Box<dyn Iterator<Item = Result<Element, Error>> + 'a>;

/// The ruleset of a network namespace. [`Client`] is that of the kernel, `Fake` (feature `fake`) one in memory.
///
/// [`Error::custom`] makes errors that do not come from the kernel.
pub trait Nftables: Send {
    /// Executes operations as one transaction: all in order, or none. Returns one outcome for each, in order. With a generation,
    /// the transaction is refused if the ruleset is not of this one ([`Error::GenerationChanged`]). 0 is every generation.
    ///
    /// If an operation is refused, its outcome has the reason, and that of the operations that were not refused is
    /// [`Error::NotExecuted`]. If the transaction is refused as a whole, or its outcome is unknown, all have the same error.
    fn execute_at(&mut self, generation: Option<u32>, transaction: &[Operation]) -> Vec<Result<(), Error>>;

    /// Executes operations as one transaction; see [`execute_at`](Self::execute_at).
    fn execute(&mut self, transaction: &[Operation]) -> Vec<Result<(), Error>> {
        self.execute_at(None, transaction)
    }

    /// As [`execute`](Self::execute), with one result: the first error that is not [`Error::NotExecuted`].
    ///
    /// # Errors
    /// Nothing was executed, unless [`is_outcome_unknown`](Error::is_outcome_unknown).
    fn apply(&mut self, transaction: &[Operation]) -> Result<(), Error> {
        let mut result = Ok(());
        let mut outcomes = self.execute(transaction).into_iter();
        for _ in transaction {
            match outcomes.next().unwrap_or(Err(Error::OutcomeMissing)) {
                Ok(()) => {}
                Err(error) if !error.is_not_executed() => return Err(error),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Executes the operations that the kernel does not refuse, and returns one outcome for each: a transaction; if some of it is refused, a
    /// transaction of the rest, without the refused operations and those that add to, or refer to, something that was not added. Their
    /// outcome is [`Error::NotExecuted`].
    fn execute_rest(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        dependencies::execute_rest(self, operations)
    }

    /// As [`execute_rest`](Self::execute_rest), but of an operation on elements only those elements are left out that the kernel refuses, or
    /// that refer to something that was not added: their indices, with the reasons. Both elements of a range are left out together. An error
    /// is the outcome of an operation that was left out as a whole.
    ///
    /// A refused operation is divided into messages of one element each, so that the kernel names all refused ones at once.
    fn execute_rest_by_element(
        &mut self,
        operations: &[Operation],
    ) -> Vec<Result<Vec<(usize, Error)>, Error>> {
        dependencies::execute_rest_by_element(self, operations)
    }

    /// Adds elements in transactions of at most this many, which keeps each of them short. Elements that exist with the same data are not
    /// an error.
    ///
    /// # Errors
    /// The first refusal. Elements of earlier transactions were added.
    fn add_elements(&mut self, elements: &Elements, in_transaction: usize) -> Result<(), Error> {
        for part in elements.elements.chunks(in_transaction.max(1)) {
            let part = Elements::new(elements.set.clone(), part.to_vec());
            self.apply(&[Operation::add(part)])?;
        }
        Ok(())
    }

    /// The port ID of the socket, by which notifications of the kernel show that this client caused a change. Default: unknown.
    fn port(&self) -> Option<u32> {
        None
    }

    /// The number of the generation of the ruleset. Waits for a transaction that the kernel is executing: until it ends, a listing of its generation
    /// may be incomplete.
    ///
    /// # Errors
    /// [`Error::Request`].
    fn generation(&mut self) -> Result<u32, Error>;

    /// The tables of a family, or of all families.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::Interrupted`].
    fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error>;

    /// The chains of a table. A table that does not exist has none; this is also true for the other listings.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::Interrupted`].
    fn chains(&mut self, table: &TableKey) -> Result<Vec<Chain>, Error>;

    /// The rules of a table, or of one chain of it. The rules of each chain are in order.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::Interrupted`].
    fn rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error>;

    /// The sets and maps of a table, without their elements.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::Interrupted`].
    fn sets(&mut self, table: &TableKey) -> Result<Vec<Set>, Error>;

    /// Iterates over the elements of a set or map, in no particular order. Expired elements are not returned.
    ///
    /// # Errors
    /// Items: [`is_not_found`](Error::is_not_found) if the set does not exist, or is deleted meanwhile; [`Error::Interrupted`] after a change
    /// of the ruleset, because elements may be missing or returned twice. It is noticed at the kernel's next message, which has up to some
    /// thousand elements and the low 16 bits of the generation: not in the last message, nor if the difference is a multiple of 65 536.
    /// While the kernel adapts the size of a hash table, soon after elements were added or deleted, elements may also be missing or returned
    /// twice, without an error. [`list_elements`](Self::list_elements) notices all of this.
    fn elements<'a>(&'a mut self, set: &SetKey) -> Result<ElementIter<'a>, Error>;

    /// The elements of a set or map as they were at one time, in no particular order.
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found); [`Error::Interrupted`] if the ruleset, or the size of the set's hash table, changed during each of
    /// 10 attempts.
    fn list_elements(&mut self, set: &SetKey) -> Result<Vec<Element>, Error> {
        listing::list_elements(self, set)
    }

    /// Looks up elements by their keys: one outcome for each, `None` if it does not exist or has expired. In a set of ranges an element is
    /// found by a key in its range.
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found) if the set does not exist.
    fn find_elements(&mut self, elements: &Elements) -> Result<Vec<Option<Element>>, Error>;

    /// The stateful objects of a table.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::Interrupted`].
    fn objects(&mut self, table: &TableKey) -> Result<Vec<Object>, Error>;

    /// The flowtables of a table.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::Interrupted`].
    fn flowtables(&mut self, table: &TableKey) -> Result<Vec<Flowtable>, Error>;

    /// One table; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Request`].
    fn table(&mut self, key: &TableKey) -> Result<Option<Table>, Error> {
        let tables = self.tables(Some(key.family))?;
        Ok(tables.into_iter().find(|table| table.key == *key))
    }

    /// One chain; `None` if it or its table does not exist.
    ///
    /// # Errors
    /// [`Error::Request`].
    fn chain(&mut self, key: &ChainKey) -> Result<Option<Chain>, Error> {
        let chains = self.chains(&key.table)?;
        Ok(chains.into_iter().find(|chain| chain.key == *key))
    }

    /// One set or map; `None` if it or its table does not exist.
    ///
    /// # Errors
    /// [`Error::Request`].
    fn set(&mut self, key: &SetKey) -> Result<Option<Set>, Error> {
        let sets = self.sets(&key.table)?;
        Ok(sets.into_iter().find(|set| set.key == *key))
    }

    /// A table with all that it has (`nft list table`). `None`: there is no such table. Each of its listings is of one time, but not of the same as
    /// the others: for that see [`ruleset`](Self::ruleset).
    ///
    /// # Errors
    /// What a listing returns, such as [`Error::Interrupted`].
    fn table_contents(&mut self, key: &TableKey) -> Result<Option<TableContents>, Error> {
        listing::table_contents(self, key)
    }

    /// The whole ruleset as it was at one time (`nft list ruleset`).
    ///
    /// # Errors
    /// [`Error::Interrupted`] if it changed during each of 10 attempts.
    fn ruleset(&mut self) -> Result<Ruleset, Error> {
        listing::ruleset(self, |nftables, _| listing::read(nftables))
    }
}

/// How often a listing that is interrupted by changes is tried.
const ATTEMPTS: u32 = 10;

/// The ruleset of the kernel.
///
/// It is that of the network namespace in which the client was opened. Requires `CAP_NET_ADMIN` in the user namespace that owns it.
/// The socket of the client is the owner of the tables with the flag [`OWNER`](crate::TableFlags::OWNER) that it makes.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    batch: Batch,
    /// Listings are of this generation, and are tried once.
    listed: Option<ShortGeneration>,
    /// The last generation that was read. Its transaction has ended.
    complete: Option<u32>,
}

impl Client {
    /// Opens a connection in the calling thread's network namespace.
    ///
    /// Each call waits at most 30 seconds for each datagram of an answer; [`Connection::set_timeout`] of
    /// [`connection`](Self::connection) sets another time.
    ///
    /// # Errors
    /// [`Error::Request`] if no socket can be opened.
    pub fn open() -> Result<Self, Error> {
        Connection::open(Protocol::Netfilter)
            .map(Self::from_connection)
            .map_err(open_failed)
    }

    /// Opens a connection in another network namespace.
    ///
    /// # Errors
    /// [`Error::Request`] if the namespace cannot be entered, or no socket can be opened.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Connection::open_in(Protocol::Netfilter, namespace)
            .map(Self::from_connection)
            .map_err(open_failed)
    }

    /// A client on a connection of [`Protocol::Netfilter`].
    #[must_use]
    pub fn from_connection(connection: Connection) -> Self {
        Client {
            connection,
            batch: Batch::new(),
            listed: None,
            complete: None,
        }
    }

    /// The connection, for its timeout and warnings.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The stateful objects of a table; sets what they count to 0 (`nft reset counters`, `nft reset quotas`).
    ///
    /// # Errors
    /// [`Error::Request`]; [`Error::Interrupted`] if the ruleset changed meanwhile: some objects were reset.
    pub fn reset_objects(&mut self, table: &TableKey) -> Result<Vec<Object>, Error> {
        listing::reset_objects(&mut self.connection, table)
    }

    /// The rules of a table or chain; sets what they count to 0 (`nft reset rules`, Linux 6.2).
    ///
    /// # Errors
    /// As [`reset_objects`](Self::reset_objects); [`Error::Unsupported`].
    pub fn reset_rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error> {
        listing::reset_rules(&mut self.connection, table, chain)
    }

    /// The elements of a set; sets what they count to 0 (`nft reset set`, Linux 6.5). While the kernel adapts the size of a hash table
    /// (see [`elements`](Nftables::elements)), elements may be missing, or returned again with 0.
    ///
    /// # Errors
    /// As [`reset_objects`](Self::reset_objects); [`Error::Unsupported`].
    pub fn reset_elements(&mut self, set: &SetKey) -> Result<Vec<Element>, Error> {
        listing::reset_elements(&mut self.connection, set)
    }

    fn outcomes(
        &mut self,
        encoded: &Encoded,
        operations: &[Operation],
        generation: Option<u32>,
    ) -> Vec<Result<(), Error>> {
        let refused = match self.connection.execute_transaction(&mut self.batch) {
            Ok(refused) => refused,
            Err(source) => return vec![Err(Error::Failed { source }); operations.len()],
        };
        let mut outcomes: Vec<Option<Error>> = vec![None; operations.len()];
        let mut first = None;
        for refused in refused {
            // The kernel reports these for the guilty operation first, and then for every later one of its table.
            let is_consequence = first.is_some()
                && refused.refusal.offset.is_none()
                && matches!(refused.refusal.errno, Errno::EMLINK | Errno::EOPNOTSUPP);
            let Some((operation, first_element)) = encoded.origin(refused.index) else {
                // The message that begins or ends the transaction.
                let error = match (refused.refusal.errno, generation) {
                    (Errno::ERESTART, Some(required)) => Error::GenerationChanged { required },
                    _ => Error::TransactionRefused {
                        reason: Reason::new(refused.refusal),
                    },
                };
                return vec![Err(error); operations.len()];
            };
            if is_consequence {
                continue;
            }
            first.get_or_insert(operation);
            let offset = refused.refusal.offset.map(|offset| offset as usize);
            let element = offset
                .and_then(|offset| crate::wire::located(self.batch.messages().nth(refused.index)?, offset))
                .map(|element| first_element + element);
            let (Some(outcome), Some(operation)) = (outcomes.get_mut(operation), operations.get(operation))
            else {
                continue;
            };
            outcome.get_or_insert_with(|| {
                let reason = Reason::of_operation(refused.refusal, operation);
                Error::refused(operation, element, reason)
            });
        }
        let Some(refused) = first else {
            return vec![Ok(()); operations.len()];
        };
        outcomes
            .into_iter()
            .map(|outcome| Err(outcome.unwrap_or(Error::NotExecuted { refused })))
            .collect()
    }
}

fn open_failed(source: kernlink_netlink::Error) -> Error {
    Error::Request {
        attempt: "open a connection to nf_tables".into(),
        source,
    }
}

impl Nftables for Client {
    fn execute_at(&mut self, generation: Option<u32>, transaction: &[Operation]) -> Vec<Result<(), Error>> {
        self.batch.clear();
        let encoded = match encode(&mut self.batch, generation, transaction) {
            Ok(encoded) => encoded,
            Err((refused, error)) => {
                let mut outcomes = vec![Err(Error::NotExecuted { refused }); transaction.len()];
                if let Some(outcome) = outcomes.get_mut(refused) {
                    *outcome = Err(error);
                }
                return outcomes;
            }
        };
        let outcomes = self.outcomes(&encoded, transaction, generation);
        self.batch.clear();
        outcomes
    }

    fn port(&self) -> Option<u32> {
        self.connection.port().ok()
    }

    fn generation(&mut self) -> Result<u32, Error> {
        listing::generation(&mut self.connection, &mut self.complete)
    }

    fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error> {
        listing::tables(&mut self.connection, self.listed, family)
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<Chain>, Error> {
        listing::chains(&mut self.connection, self.listed, table)
    }

    fn rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error> {
        listing::rules(&mut self.connection, self.listed, table, chain)
    }

    fn sets(&mut self, table: &TableKey) -> Result<Vec<Set>, Error> {
        listing::sets(&mut self.connection, self.listed, table)
    }

    fn elements<'a>(&'a mut self, set: &SetKey) -> Result<ElementIter<'a>, Error> {
        listing::elements(&mut self.connection, self.listed, set)
    }

    fn find_elements(&mut self, elements: &Elements) -> Result<Vec<Option<Element>>, Error> {
        listing::find_elements(&mut self.connection, elements)
    }

    fn objects(&mut self, table: &TableKey) -> Result<Vec<Object>, Error> {
        listing::objects(&mut self.connection, self.listed, table)
    }

    fn flowtables(&mut self, table: &TableKey) -> Result<Vec<Flowtable>, Error> {
        listing::flowtables(&mut self.connection, self.listed, table)
    }

    fn table(&mut self, key: &TableKey) -> Result<Option<Table>, Error> {
        listing::table(&mut self.connection, key)
    }

    fn chain(&mut self, key: &ChainKey) -> Result<Option<Chain>, Error> {
        listing::chain(&mut self.connection, key)
    }

    fn set(&mut self, key: &SetKey) -> Result<Option<Set>, Error> {
        listing::set(&mut self.connection, key)
    }

    fn ruleset(&mut self) -> Result<Ruleset, Error> {
        listing::ruleset(self, |client, generation| {
            client.listed = Some(ShortGeneration::new(generation));
            let ruleset = listing::read(client);
            client.listed = None;
            ruleset
        })
    }
}
