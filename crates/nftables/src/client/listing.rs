//! Reading.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use kernlink_netlink::{AttributeWriter, Batch, Connection, Errno, Message, Reply, netfilter};

use super::{ATTEMPTS, ElementIter, Nftables, messages};
use crate::chain::{Chain, ChainKey};
use crate::element::{Element, Elements};
use crate::error::Error;
use crate::flowtable::Flowtable;
use crate::object::Object;
use crate::reason::may_be_unsupported;
use crate::requirement::{Feature, RESET_ELEMENTS, RESET_RULES, Requirement};
use crate::rule::Rule;
use crate::ruleset::{ChainContents, Ruleset, SetContents, TableContents};
use crate::set::{Set, SetKey};
use crate::table::{Table, TableKey};
use crate::table_family::TableFamily;
use crate::uapi::{
    NFT_MSG_GETCHAIN, NFT_MSG_GETFLOWTABLE, NFT_MSG_GETGEN, NFT_MSG_GETOBJ, NFT_MSG_GETOBJ_RESET,
    NFT_MSG_GETRULE, NFT_MSG_GETRULE_RESET, NFT_MSG_GETSET, NFT_MSG_GETSETELEM, NFT_MSG_GETSETELEM_RESET,
    NFT_MSG_GETTABLE, NFTA_FLOWTABLE_TABLE, NFTA_OBJ_TABLE, NFTA_SET_TABLE,
};
use crate::wire::{self, ElementList, MISSING};

type NetlinkError = kernlink_netlink::Error;

fn failed(attempt: impl Into<Box<str>>) -> impl FnOnce(NetlinkError) -> Error {
    |source| match source {
        NetlinkError::DumpInterrupted { attempts } => Error::Interrupted {
            attempt: attempt.into(),
            attempts,
        },
        source => Error::Request {
            attempt: attempt.into(),
            source,
        },
    }
}

/// As [`failed`], for a request that old kernels do not have.
fn failed_or_unsupported(attempt: String, feature: Feature) -> impl FnOnce(NetlinkError) -> Error {
    move |source| {
        let requirement = source
            .errno()
            .filter(|errno| may_be_unsupported(*errno))
            .and_then(|_| Requirement::of_feature(feature));
        match requirement {
            Some(requirement) => Error::Unsupported {
                attempt: attempt.into(),
                requirement,
                source,
            },
            None => failed(attempt)(source),
        }
    }
}

/// A listing of something that does not exist is empty.
fn or_empty<T>(listed: Result<Vec<T>, NetlinkError>) -> Result<Vec<T>, NetlinkError> {
    match listed {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Vec::new()),
        listed => listed,
    }
}

/// One object; `None` if it does not exist.
fn one<T>(
    connection: &mut Connection,
    command: u8,
    write: impl FnOnce(&mut AttributeWriter<'_>),
    decode: fn(&Message<'_>) -> Result<T, NetlinkError>,
) -> Result<Option<T>, NetlinkError> {
    let found = connection.request(wire::message_type(command), 0, write, |message| {
        decode(&message).map(Some)
    });
    or_empty(found).map(|found| found.into_iter().next())
}

/// The generation of a ruleset as its messages have it: the low 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShortGeneration(u16);

impl ShortGeneration {
    pub(super) fn new(generation: u32) -> Self {
        ShortGeneration(generation as u16)
    }

    fn of(message: &Message<'_>) -> Result<Self, NetlinkError> {
        netfilter::Header::from_bytes(message.payload).map(|header| ShortGeneration(header.resource))
    }

    /// An error if the message is of another generation.
    fn check(self, message: &Message<'_>) -> Result<(), NetlinkError> {
        match ShortGeneration::of(message)? == self {
            true => Ok(()),
            false => Err(INTERRUPTED),
        }
    }
}

const INTERRUPTED: NetlinkError = NetlinkError::DumpInterrupted { attempts: 1 };

/// With a generation, the listing is of this one and is tried once.
fn dump<T>(
    connection: &mut Connection,
    generation: Option<ShortGeneration>,
    command: u8,
    write: impl Fn(&mut AttributeWriter<'_>),
    decode: impl Fn(&Message<'_>) -> Result<Option<T>, NetlinkError>,
) -> Result<Vec<T>, NetlinkError> {
    let Some(generation) = generation else {
        let listed = connection.dump_all(wire::message_type(command), 0, write, |message| decode(&message));
        return or_empty(listed);
    };
    dump_once(connection, command, write, |message| {
        generation.check(message)?;
        decode(message)
    })
}

/// As [`dump`], without another attempt after a change: it would miss what the first one reset.
fn dump_once<T>(
    connection: &mut Connection,
    command: u8,
    write: impl Fn(&mut AttributeWriter<'_>),
    decode: impl Fn(&Message<'_>) -> Result<Option<T>, NetlinkError>,
) -> Result<Vec<T>, NetlinkError> {
    let dump = connection.dump(wire::message_type(command), 0, write, |message: Message<'_>| {
        decode(&message)
    })?;
    or_empty(dump.collect())
}

pub(super) fn reset_objects(connection: &mut Connection, table: &TableKey) -> Result<Vec<Object>, Error> {
    let write = |writer: &mut AttributeWriter<'_>| {
        wire::header(writer, table.family);
        writer.string(NFTA_OBJ_TABLE, &table.name);
    };
    dump_once(connection, NFT_MSG_GETOBJ_RESET, write, |message| {
        wire::decode_object(message).map(|object| (object.key.table == *table).then_some(object))
    })
    .map_err(failed(format!("reset objects of {table}")))
}

pub(super) fn reset_rules(
    connection: &mut Connection,
    table: &TableKey,
    chain: Option<&str>,
) -> Result<Vec<Rule>, Error> {
    dump_once(
        connection,
        NFT_MSG_GETRULE_RESET,
        |writer| wire::encode_rules_of(writer, table, chain),
        |message| wire::decode_rule(message).map(Some),
    )
    .map_err(failed_or_unsupported(
        format!("reset rules of {table}"),
        RESET_RULES,
    ))
}

pub(super) fn reset_elements(connection: &mut Connection, set: &SetKey) -> Result<Vec<Element>, Error> {
    let first = Cell::new(None);
    let lists = dump_once(
        connection,
        NFT_MSG_GETSETELEM_RESET,
        |writer| wire::encode_set_of_elements(writer, set),
        |message| elements_of(message, &first).map(Some),
    );
    let lists = lists.map_err(failed_or_unsupported(
        format!("reset elements of set {set}"),
        RESET_ELEMENTS,
    ))?;
    Ok(lists.into_iter().flatten().collect())
}

/// `complete`: the last generation that this returned, whose transaction has ended.
pub(super) fn generation(connection: &mut Connection, complete: &mut Option<u32>) -> Result<u32, Error> {
    let write = |writer: &mut AttributeWriter<'_>| wire::header(writer, TableFamily::Unknown(0));
    one(connection, NFT_MSG_GETGEN, write, wire::decode_generation)
        .and_then(|generation| generation.ok_or(MISSING))
        .and_then(|generation| {
            if *complete != Some(generation.id) {
                wait_for_transaction(connection)?;
                *complete = Some(generation.id);
            }
            Ok(generation.id)
        })
        .map_err(failed("read the generation of the ruleset"))
}

/// Returns when no transaction is executed that began before: the kernel executes one after the other.
///
/// A transaction increments the generation first and removes what it deletes then, so a listing of this generation alone may miss what moves to the
/// position of something that is removed meanwhile
/// (`nf_tables_commit` in [`nf_tables_api.c`](https://github.com/torvalds/linux/blob/v6.12/net/netfilter/nf_tables_api.c)).
fn wait_for_transaction(connection: &mut Connection) -> Result<(), NetlinkError> {
    // A request that only reads is refused or ignored in a transaction, but answered.
    let mut batch = messages::reading_transaction()?;
    let refused = connection.execute_transaction(&mut batch)?;
    match refused.into_iter().find(|refused| refused.index == 0) {
        Some(refused) => Err(NetlinkError::Refused(refused.refusal)),
        None => Ok(()),
    }
}

pub(super) fn tables(
    connection: &mut Connection,
    generation: Option<ShortGeneration>,
    family: Option<TableFamily>,
) -> Result<Vec<Table>, Error> {
    dump(
        connection,
        generation,
        NFT_MSG_GETTABLE,
        |writer| wire::header(writer, family.unwrap_or(TableFamily::Unknown(0))),
        |message| wire::decode_table(message).map(Some),
    )
    .map_err(failed("list tables"))
}

/// The kernel ignores the table, and lists the chains of all tables of the family.
pub(super) fn chains(
    connection: &mut Connection,
    generation: Option<ShortGeneration>,
    table: &TableKey,
) -> Result<Vec<Chain>, Error> {
    dump(
        connection,
        generation,
        NFT_MSG_GETCHAIN,
        |writer| wire::header(writer, table.family),
        |message| wire::decode_chain(message).map(|chain| (chain.key.table == *table).then_some(chain)),
    )
    .map_err(failed(format!("list chains of {table}")))
}

pub(super) fn rules(
    connection: &mut Connection,
    generation: Option<ShortGeneration>,
    table: &TableKey,
    chain: Option<&str>,
) -> Result<Vec<Rule>, Error> {
    dump(
        connection,
        generation,
        NFT_MSG_GETRULE,
        |writer| wire::encode_rules_of(writer, table, chain),
        |message| wire::decode_rule(message).map(Some),
    )
    .map_err(failed(format!("list rules of {table}")))
}

pub(super) fn sets(
    connection: &mut Connection,
    generation: Option<ShortGeneration>,
    table: &TableKey,
) -> Result<Vec<Set>, Error> {
    let write = |writer: &mut AttributeWriter<'_>| {
        wire::header(writer, table.family);
        writer.string(NFTA_SET_TABLE, &table.name);
    };
    dump(connection, generation, NFT_MSG_GETSET, write, |message| {
        wire::decode_set(message).map(Some)
    })
    .map_err(failed(format!("list sets of {table}")))
}

pub(super) fn objects(
    connection: &mut Connection,
    generation: Option<ShortGeneration>,
    table: &TableKey,
) -> Result<Vec<Object>, Error> {
    let write = |writer: &mut AttributeWriter<'_>| {
        wire::header(writer, table.family);
        writer.string(NFTA_OBJ_TABLE, &table.name);
    };
    dump(connection, generation, NFT_MSG_GETOBJ, write, |message| {
        wire::decode_object(message).map(|object| (object.key.table == *table).then_some(object))
    })
    .map_err(failed(format!("list objects of {table}")))
}

pub(super) fn flowtables(
    connection: &mut Connection,
    generation: Option<ShortGeneration>,
    table: &TableKey,
) -> Result<Vec<Flowtable>, Error> {
    let write = |writer: &mut AttributeWriter<'_>| {
        wire::header(writer, table.family);
        writer.string(NFTA_FLOWTABLE_TABLE, &table.name);
    };
    dump(connection, generation, NFT_MSG_GETFLOWTABLE, write, |message| {
        wire::decode_flowtable(message).map(|flowtable| (flowtable.key.table == *table).then_some(flowtable))
    })
    .map_err(failed(format!("list flowtables of {table}")))
}

pub(super) fn table(connection: &mut Connection, key: &TableKey) -> Result<Option<Table>, Error> {
    let write = |writer: &mut AttributeWriter<'_>| wire::encode_table_key(writer, key);
    one(connection, NFT_MSG_GETTABLE, write, wire::decode_table).map_err(failed(format!("read table {key}")))
}

pub(super) fn chain(connection: &mut Connection, key: &ChainKey) -> Result<Option<Chain>, Error> {
    let write = |writer: &mut AttributeWriter<'_>| wire::encode_chain_key(writer, key);
    one(connection, NFT_MSG_GETCHAIN, write, wire::decode_chain).map_err(failed(format!("read chain {key}")))
}

pub(super) fn set(connection: &mut Connection, key: &SetKey) -> Result<Option<Set>, Error> {
    let write = |writer: &mut AttributeWriter<'_>| wire::encode_set_key(writer, key);
    one(connection, NFT_MSG_GETSET, write, wire::decode_set).map_err(failed(format!("read set {key}")))
}

/// The elements in a message. The kernel does not report changes during a dump of elements as `NLM_F_DUMP_INTR`, so its messages must be of
/// one generation, that of the first one.
fn elements_of(
    message: &Message<'_>,
    first: &Cell<Option<ShortGeneration>>,
) -> Result<Vec<Element>, NetlinkError> {
    match first.get() {
        Some(generation) => generation.check(message)?,
        None => first.set(Some(ShortGeneration::of(message)?)),
    }
    ElementList::decode(message)?.collect()
}

/// With a generation, the elements are of this one.
pub(super) fn elements<'a>(
    connection: &'a mut Connection,
    generation: Option<ShortGeneration>,
    set: &SetKey,
) -> Result<ElementIter<'a>, Error> {
    let attempt: Box<str> = format!("list elements of set {set}").into();
    let first = Cell::new(generation);
    let decode = move |message: Message<'_>| elements_of(&message, &first).map(Some);
    let message_type = wire::message_type(NFT_MSG_GETSETELEM);
    let dump = connection
        .dump(
            message_type,
            0,
            |writer| wire::encode_set_of_elements(writer, set),
            decode,
        )
        .map_err(failed(attempt.clone()))?;
    Ok(Box::new(Flattened {
        messages: dump,
        elements: Vec::new().into_iter(),
        attempt,
    }))
}

/// The elements of messages. Ends after an error.
struct Flattened<I> {
    messages: I,
    elements: std::vec::IntoIter<Element>,
    attempt: Box<str>,
}

impl<I: Iterator<Item = Result<Vec<Element>, NetlinkError>>> Iterator for Flattened<I> {
    type Item = Result<Element, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(element) = self.elements.next() {
                return Some(Ok(element));
            }
            match self.messages.next()? {
                Ok(elements) => self.elements = elements.into_iter(),
                Err(error) => return Some(Err(failed(self.attempt.clone())(error))),
            }
        }
    }
}

/// One request for each, because the kernel refuses a whole request if one of its keys does not exist.
pub(super) fn find_elements(
    connection: &mut Connection,
    elements: &Elements,
) -> Result<Vec<Option<Element>>, Error> {
    let attempt = || format!("look up elements of set {}", elements.set);
    let mut batch = Batch::new();
    for element in &elements.elements {
        let key = [element.key_only()];
        batch
            .push(wire::message_type(NFT_MSG_GETSETELEM), 0, |writer| {
                wire::encode_elements(writer, &elements.set, None, &key);
            })
            .map_err(failed(attempt()))?;
    }
    let mut found = vec![None; elements.elements.len()];
    let mut malformed = None;
    let outcomes = connection.execute_with(&mut batch, |index, reply| {
        if let (Reply::Message(message), Some(found)) = (reply, found.get_mut(index)) {
            match ElementList::decode(&message).and_then(|mut list| list.next().transpose()) {
                Ok(element) => *found = element,
                Err(error) => malformed = Some(error),
            }
        }
    });
    if let Some(error) = malformed {
        return Err(failed(attempt())(error));
    }
    let mut is_any_missing = false;
    for outcome in outcomes {
        match outcome {
            Ok(()) => {}
            Err(error) if error.errno() == Some(Errno::ENOENT) => is_any_missing = true,
            Err(error) => return Err(failed(attempt())(error)),
        }
    }
    // Without an answer for any of them, it may be the set that is missing.
    if is_any_missing && found.iter().all(Option::is_none) && set(connection, &elements.set)?.is_none() {
        let refusal = kernlink_netlink::Refusal::new(Errno::ENOENT);
        return Err(failed(attempt())(NetlinkError::Refused(refusal)));
    }
    Ok(found)
}

pub(super) fn list_elements(
    nftables: &mut (impl Nftables + ?Sized),
    set: &SetKey,
) -> Result<Vec<Element>, Error> {
    let mut generation = nftables.generation()?;
    for _ in 0..ATTEMPTS {
        let elements = list_once(nftables, set);
        let before = std::mem::replace(&mut generation, nftables.generation()?);
        match elements {
            // A change within one message of the kernel is noticed only by this.
            Ok(_) if generation != before => {}
            Err(Error::Interrupted { .. }) => {}
            elements => return elements,
        }
    }
    Err(interrupted_elements(set, ATTEMPTS))
}

/// The elements of a set, by one attempt.
///
/// The kernel adapts the size of a hash table some time after elements were added or deleted. A dump then begins again, or continues at another
/// position, in one generation. If no transaction is executed meanwhile, it returns as many elements as the set has at least, so elements are missing
/// only if others are returned twice.
fn list_once(nftables: &mut (impl Nftables + ?Sized), set: &SetKey) -> Result<Vec<Element>, Error> {
    let elements: Result<Vec<Element>, Error> = nftables.elements(set)?.collect();
    match elements {
        Ok(elements) if has_duplicates(&elements) => Err(interrupted_elements(set, 1)),
        elements => elements,
    }
}

fn interrupted_elements(set: &SetKey, attempts: u32) -> Error {
    Error::Interrupted {
        attempt: format!("list elements of set {set}").into(),
        attempts,
    }
}

/// Whether two elements are the same. Their hashes are compared: if those of others are equal by chance, the next attempt has other ones.
fn has_duplicates(elements: &[Element]) -> bool {
    let hasher = RandomState::new();
    let hash = |element: &Element| hasher.hash_one((&element.key, &element.key_end, element.flags));
    let mut hashes: Vec<u64> = elements.iter().map(hash).collect();
    hashes.sort_unstable();
    hashes.windows(2).any(|pair| pair.first() == pair.last())
}

/// `read` reads a ruleset once, of a generation if it can.
pub(super) fn ruleset<N: Nftables + ?Sized>(
    nftables: &mut N,
    read: impl Fn(&mut N, u32) -> Result<Ruleset, Error>,
) -> Result<Ruleset, Error> {
    let mut generation = nftables.generation()?;
    for _ in 0..ATTEMPTS {
        let ruleset = read(nftables, generation);
        let before = std::mem::replace(&mut generation, nftables.generation()?);
        match ruleset {
            Ok(ruleset) if generation == before => return Ok(ruleset),
            Ok(_) | Err(Error::Interrupted { .. }) => {}
            // A set that was deleted after it was listed.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::Interrupted {
        attempt: "list the ruleset".into(),
        attempts: ATTEMPTS,
    })
}

/// Reads each listing once, apart from what the implementation repeats itself.
pub(super) fn read(nftables: &mut (impl Nftables + ?Sized)) -> Result<Ruleset, Error> {
    let mut ruleset = Ruleset::default();
    for table in nftables.tables(None)? {
        let contents = contents(nftables, table, |nftables, set| {
            list_once(nftables, set).map(Some)
        })?;
        ruleset.tables.push(contents);
    }
    Ok(ruleset)
}

/// Reads each listing of a table by itself. A set that was deleted after it was listed is left out.
pub(super) fn table_contents<N: Nftables + ?Sized>(
    nftables: &mut N,
    key: &TableKey,
) -> Result<Option<TableContents>, Error> {
    let Some(table) = nftables.table(key)? else {
        return Ok(None);
    };
    let contents = contents(nftables, table, |nftables, set| {
        match nftables.list_elements(set) {
            Err(error) if error.is_not_found() => Ok(None),
            listed => listed.map(Some),
        }
    });
    match contents {
        // The table was deleted meanwhile.
        Err(error) if error.is_not_found() && nftables.table(key)?.is_none() => Ok(None),
        read => read.map(Some),
    }
}

/// What a table has. `list`: the elements of a set; `None` leaves the set out.
fn contents<N: Nftables + ?Sized>(
    nftables: &mut N,
    table: Table,
    list: impl Fn(&mut N, &SetKey) -> Result<Option<Vec<Element>>, Error>,
) -> Result<TableContents, Error> {
    let mut contents = TableContents::new(table);
    let key = &contents.table.key;
    contents.objects = nftables.objects(key)?;
    for set in nftables.sets(key)? {
        if let Some(elements) = list(nftables, &set.key)? {
            contents.sets.push(SetContents::new(set, elements));
        }
    }
    contents.flowtables = nftables.flowtables(key)?;
    let mut rules: HashMap<ChainKey, Vec<Rule>> = HashMap::new();
    for rule in nftables.rules(key, None)? {
        rules.entry(rule.chain.clone()).or_default().push(rule);
    }
    for chain in nftables.chains(key)? {
        let rules = rules.remove(&chain.key).unwrap_or_default();
        contents.chains.push(ChainContents::new(chain, rules));
    }
    Ok(contents)
}
