//! Notifications of nf_tables: which chains changed, and the end of each transaction. Tables that belong to a connection
//! ([`nf_tables.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netfilter/nf_tables.h)).
//!
//! The crate `kernlink-nftables` has all objects and events of nf_tables. This module is for programs that use iptables over nf_tables,
//! need no more than this, and must not depend on that crate: those that watch the chains of `iptables-nft`.

use std::time::Duration;

use crate::flags::{NLM_F_CREATE, NLM_F_EXCL};
use crate::{
    Attribute, AttributeWriter, Batch, Connection, Errno, Error, Events, Message, Protocol, Subscription,
    netfilter,
};

/// The multicast group of nf_tables
/// ([`nfnetlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netfilter/nfnetlink.h)).
pub const NFNLGRP_NFTABLES: u32 = 7;

/// `NFPROTO_INET`: both IP families.
pub const NFPROTO_INET: u8 = 1;

/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`: message types of a transaction.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

const NFT_MSG_NEWTABLE: u8 = 0;
const NFT_MSG_GETTABLE: u8 = 1;
const NFT_MSG_DELTABLE: u8 = 2;
const NFT_MSG_NEWCHAIN: u8 = 3;
const NFT_MSG_DELCHAIN: u8 = 5;
const NFT_MSG_NEWRULE: u8 = 6;
const NFT_MSG_DELRULE: u8 = 8;
const NFT_MSG_NEWSETELEM: u8 = 12;
const NFT_MSG_DELSETELEM: u8 = 14;
const NFT_MSG_NEWGEN: u8 = 15;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_TABLE_USERDATA: u16 = 6;
const NFTA_TABLE_OWNER: u16 = 7;
const NFT_TABLE_F_OWNER: u32 = 2;
/// The type of a comment in the user data of a table, for `nft`
/// ([`udata.h`](https://git.netfilter.org/libnftnl/tree/include/libnftnl/udata.h?h=libnftnl-1.2.8)).
const NFTNL_UDATA_TABLE_COMMENT: u8 = 0;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_GEN_ID: u16 = 1;
const NFTA_GEN_PROC_PID: u16 = 2;
const NFTA_GEN_PROC_NAME: u16 = 3;

/// A notification of nf_tables. The kernel sends the changes of a transaction after the whole transaction was executed, then its
/// [`Generation`](Notification::Generation).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// A table, a chain or a rule was added, changed or deleted.
    Change(Change),
    /// The end of a transaction.
    Generation(Generation),
}

/// Which table or chain a transaction changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// `NFPROTO_*`: 2 is IPv4, 10 is IPv6, 1 is inet.
    pub family: u8,
    /// The table.
    pub table: Box<str>,
    /// The chain that was added, changed or deleted, or whose rules were. `None`: the table itself was added, changed or deleted.
    pub chain: Option<Box<str>>,
}

impl Change {
    /// A change of a table, or of a chain in it.
    #[must_use]
    pub fn new(family: u8, table: &str, chain: Option<&str>) -> Self {
        Self {
            family,
            table: table.into(),
            chain: chain.map(Into::into),
        }
    }
}

/// Which elements of a set or map a transaction added, changed or deleted.
#[doc(alias = "NFT_MSG_NEWSETELEM")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElementChange {
    /// `NFPROTO_*`: 2 is IPv4, 10 is IPv6, 1 is inet.
    pub family: u8,
    /// The table.
    pub table: Box<str>,
    /// The set or map.
    pub set: Box<str>,
    /// The bytes of their keys. The kernel sends a notification for each element.
    pub keys: Vec<Box<[u8]>>,
}

impl ElementChange {
    /// A change of elements with these keys.
    #[must_use]
    pub fn new(family: u8, table: &str, set: &str, keys: Vec<Box<[u8]>>) -> Self {
        Self {
            family,
            table: table.into(),
            set: set.into(),
            keys,
        }
    }
}

/// A generation of the rules of a network namespace. Each transaction that is executed makes a new one; reading does not.
#[doc(alias = "NFT_MSG_NEWGEN")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// The number of the generation. It wraps around.
    pub id: u32,
    /// The process that executed the transaction, by its number in the initial PID namespace. `None` before Linux 4.15.
    pub pid: Option<u32>,
    /// The name of its thread, at most 15 bytes. `None` before Linux 4.15.
    pub name: Option<Box<str>>,
}

impl Generation {
    /// A generation without a process.
    #[must_use]
    pub fn new(id: u32) -> Self {
        Self {
            id,
            pid: None,
            name: None,
        }
    }
}

/// Subscribes to the notifications of nf_tables in the calling thread's network namespace. `timeout` is that of
/// [`Subscription::events`]. Notifications of other objects (sets, their elements, flow tables) are ignored.
///
/// The kernel loads the module `nf_tables` if necessary. Requires `CAP_NET_ADMIN`.
///
/// # Errors
/// [`Error::Socket`] if the kernel refuses.
#[doc(alias = "nft monitor")]
pub fn events(timeout: Option<Duration>) -> Result<Events<Notification, Decode>, Error> {
    let subscription = Subscription::open(Protocol::Netfilter, &[NFNLGRP_NFTABLES])?;
    Ok(subscription.events(timeout, decode as Decode))
}

/// The type of [`decode`].
pub type Decode = fn(Message<'_>) -> Result<Option<Notification>, Error>;

/// Decodes a notification. `None` for those that are ignored.
///
/// # Errors
/// [`Error::Malformed`], [`Error::AttributeLength`].
pub fn decode(message: Message<'_>) -> Result<Option<Notification>, Error> {
    if message.message_type.to_be_bytes()[0] != netfilter::NFNL_SUBSYS_NFTABLES {
        return Ok(None);
    }
    match netfilter::command(message.message_type) {
        NFT_MSG_NEWTABLE | NFT_MSG_DELTABLE => decode_change(message, NFTA_TABLE_NAME, None),
        NFT_MSG_NEWCHAIN | NFT_MSG_DELCHAIN => {
            decode_change(message, NFTA_CHAIN_TABLE, Some(NFTA_CHAIN_NAME))
        }
        NFT_MSG_NEWRULE | NFT_MSG_DELRULE => decode_change(message, NFTA_RULE_TABLE, Some(NFTA_RULE_CHAIN)),
        NFT_MSG_NEWGEN => decode_generation(message),
        _ => Ok(None),
    }
}

/// Decodes a notification about elements. `None` for all others.
///
/// # Errors
/// [`Error::Malformed`], [`Error::AttributeLength`].
pub fn decode_elements(message: Message<'_>) -> Result<Option<ElementChange>, Error> {
    if message.message_type.to_be_bytes()[0] != netfilter::NFNL_SUBSYS_NFTABLES
        || !matches!(
            netfilter::command(message.message_type),
            NFT_MSG_NEWSETELEM | NFT_MSG_DELSETELEM
        )
    {
        return Ok(None);
    }
    let family = netfilter::Header::from_bytes(message.payload)?.family;
    let (mut table, mut set, mut keys) = (None, None, Vec::new());
    for attribute in message.attributes(netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_SET_ELEM_LIST_TABLE => table = Some(attribute.string()?.into()),
            NFTA_SET_ELEM_LIST_SET => set = Some(attribute.string()?.into()),
            NFTA_SET_ELEM_LIST_ELEMENTS => {
                for element in attribute.nested() {
                    let element = element?;
                    if element.kind() == NFTA_LIST_ELEM {
                        keys.extend(element_key(&element)?);
                    }
                }
            }
            _ => {}
        }
    }
    let (Some(table), Some(set)) = (table, set) else {
        return Err(Error::Malformed {
            what: "notification of nf_tables: no name of a table or of a set",
        });
    };
    Ok(Some(ElementChange {
        family,
        table,
        set,
        keys,
    }))
}

/// The key of an element. `None`: it is the one for all keys that no other element has.
fn element_key(element: &Attribute<'_>) -> Result<Option<Box<[u8]>>, Error> {
    for attribute in element.nested() {
        let attribute = attribute?;
        if attribute.kind() != NFTA_SET_ELEM_KEY {
            continue;
        }
        for value in attribute.nested() {
            let value = value?;
            if value.kind() == NFTA_DATA_VALUE {
                return Ok(Some(value.bytes().into()));
            }
        }
    }
    Ok(None)
}

/// `table` and `chain` are the types of the attributes with the names.
fn decode_change(
    message: Message<'_>,
    table: u16,
    chain: Option<u16>,
) -> Result<Option<Notification>, Error> {
    let family = netfilter::Header::from_bytes(message.payload)?.family;
    let mut table_name = None;
    let mut chain_name = None;
    for attribute in message.attributes(netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        if attribute.kind() == table {
            table_name = Some(attribute.string()?.into());
        } else if Some(attribute.kind()) == chain {
            chain_name = Some(attribute.string()?.into());
        }
    }
    let table = table_name.ok_or(Error::Malformed {
        what: "notification of nf_tables: no name of a table",
    })?;
    if chain.is_some() && chain_name.is_none() {
        return Err(Error::Malformed {
            what: "notification of nf_tables: no name of a chain",
        });
    }
    Ok(Some(Notification::Change(Change {
        family,
        table,
        chain: chain_name,
    })))
}

fn decode_generation(message: Message<'_>) -> Result<Option<Notification>, Error> {
    let mut generation = Generation::new(0);
    let mut has_id = false;
    for attribute in message.attributes(netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_GEN_ID => {
                generation.id = attribute.be_u32()?;
                has_id = true;
            }
            NFTA_GEN_PROC_PID => generation.pid = Some(attribute.be_u32()?),
            // The name of a thread may contain any bytes.
            NFTA_GEN_PROC_NAME => generation.name = attribute.string().ok().map(Into::into),
            _ => {}
        }
    }
    if !has_id {
        return Err(Error::Malformed {
            what: "notification of nf_tables: no NFTA_GEN_ID",
        });
    }
    Ok(Some(Notification::Generation(generation)))
}

/// A table, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// The port ID of the connection that it belongs to. `None`: to none, it stays until it is deleted.
    pub owner: Option<u32>,
    /// The comment, which `nft` prints.
    pub comment: Option<Box<str>>,
}

/// The largest length of a comment, in bytes.
#[doc(alias = "NFTNL_UDATA_COMMENT_MAXLEN")]
pub const MAX_COMMENT: usize = 128;

/// Creates a table that belongs to a connection of [`Protocol::Netfilter`]: only this one can change or delete it, `nft flush ruleset` of other
/// processes keeps it, and the kernel deletes it when the connection is closed. A table without chains has no effect on packets.
/// `comment` is for the operator; what exceeds [`MAX_COMMENT`] is cut.
///
/// Since Linux 5.12. The kernel loads the module `nf_tables` if necessary. Requires `CAP_NET_ADMIN`.
///
/// # Errors
/// [`Error::Refused`]: with `EPERM` if the table belongs to another connection, or without `CAP_NET_ADMIN`; with `EEXIST` if it exists and
/// belongs to none or to this one; see also [`is_unsupported`].
#[doc(alias = "NFT_TABLE_F_OWNER")]
pub fn add_owned_table(
    connection: &mut Connection,
    family: u8,
    name: &str,
    comment: &str,
) -> Result<(), Error> {
    let end = (0..=MAX_COMMENT.min(comment.len())).rev();
    let comment = end.into_iter().find_map(|end| comment.get(..end)).unwrap_or("");
    transaction(connection, |batch| {
        let message_type = table_message(NFT_MSG_NEWTABLE);
        batch.push(message_type, NLM_F_CREATE | NLM_F_EXCL, |writer| {
            write_table(writer, family, name);
            writer.be_u32(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
            writer.bytes(NFTA_TABLE_USERDATA, &user_data(comment));
        })
    })
}

/// Deletes a table with all that is in it.
///
/// # Errors
/// [`Error::Refused`]: with `EPERM` if the table belongs to another connection, or without `CAP_NET_ADMIN`; with `ENOENT` if it does not
/// exist.
pub fn delete_table(connection: &mut Connection, family: u8, name: &str) -> Result<(), Error> {
    transaction(connection, |batch| {
        batch.push(table_message(NFT_MSG_DELTABLE), 0, |writer| {
            write_table(writer, family, name)
        })
    })
}

/// Reads a table. `None` if it does not exist. Requires `CAP_NET_ADMIN`.
///
/// # Errors
/// [`Error::Refused`], see also [`is_unsupported`].
pub fn read_table(connection: &mut Connection, family: u8, name: &str) -> Result<Option<Table>, Error> {
    let write = |writer: &mut AttributeWriter<'_>| write_table(writer, family, name);
    match connection.request(table_message(NFT_MSG_GETTABLE), 0, write, decode_table) {
        Ok(tables) => Ok(tables.into_iter().next()),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error means that the kernel has no nf_tables, not this family of tables, or no tables that belong to a connection.
#[must_use]
pub fn is_unsupported(error: &Error) -> bool {
    let errnos = [
        // No netfilter, or no nf_tables.
        Errno::EPROTONOSUPPORT,
        Errno::EOPNOTSUPP,
        Errno::EAFNOSUPPORT,
        // Before Linux 5.12: an unknown flag.
        Errno::EINVAL,
    ];
    error.errno().is_some_and(|errno| errnos.contains(&errno))
}

fn table_message(command: u8) -> u16 {
    netfilter::message_type(netfilter::NFNL_SUBSYS_NFTABLES, command)
}

fn transaction(
    connection: &mut Connection,
    push: impl FnOnce(&mut Batch) -> Result<(), Error>,
) -> Result<(), Error> {
    let header = netfilter::Header {
        resource: netfilter::NFNL_SUBSYS_NFTABLES.into(),
        ..netfilter::Header::new(0)
    };
    let mark = |writer: &mut AttributeWriter<'_>| _ = writer.header(&header.to_bytes());
    let mut batch = Batch::new();
    batch.push(BATCH_BEGIN, 0, mark)?;
    push(&mut batch)?;
    batch.push(BATCH_END, 0, mark)?;
    let mut refused = connection.execute_transaction(&mut batch)?.into_iter();
    refused
        .next()
        .map_or(Ok(()), |request| Err(Error::Refused(request.refusal)))
}

fn write_table(writer: &mut AttributeWriter<'_>, family: u8, name: &str) {
    writer.header(&netfilter::Header::new(family).to_bytes());
    writer.string(NFTA_TABLE_NAME, name);
}

/// Type, length and value of a comment, which ends with a zero byte.
fn user_data(comment: &str) -> Vec<u8> {
    let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
    let mut bytes = vec![NFTNL_UDATA_TABLE_COMMENT, length];
    bytes.extend_from_slice(comment.as_bytes());
    bytes.push(0);
    bytes
}

fn decode_table(message: Message<'_>) -> Result<Option<Table>, Error> {
    if message.message_type != table_message(NFT_MSG_NEWTABLE) {
        return Ok(None);
    }
    let mut table = Table {
        owner: None,
        comment: None,
    };
    for attribute in message.attributes(netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_TABLE_OWNER => table.owner = Some(attribute.be_u32()?),
            NFTA_TABLE_USERDATA => table.comment = comment(attribute.bytes()),
            _ => {}
        }
    }
    Ok(Some(table))
}

/// The comment in the user data of a table. Other programs may write any bytes there.
fn comment(mut data: &[u8]) -> Option<Box<str>> {
    while let [kind, length, rest @ ..] = data {
        let (value, next) = rest.split_at_checked(usize::from(*length))?;
        if *kind == NFTNL_UDATA_TABLE_COMMENT {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return std::str::from_utf8(text).ok().map(Into::into);
        }
        data = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::take_message;

    #[test]
    fn the_comment_of_a_table_is_found_among_other_user_data() {
        let data = user_data("process 7");
        assert_eq!(data, b"\x00\x0aprocess 7\0");
        assert_eq!(comment(&data).as_deref(), Some("process 7"));
        let other = [&[9, 2, 1, 1][..], &data].concat();
        assert_eq!(comment(&other).as_deref(), Some("process 7"));
        for invalid in [&b""[..], b"\x00", b"\x00\x05abc", b"\x00\x01\xff", b"\x07\x01a"] {
            assert_eq!(comment(invalid), None, "{invalid:?}");
        }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<char> = hex.chars().filter(char::is_ascii_hexdigit).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// The notifications in a datagram.
    fn decoded(mut datagram: &[u8]) -> Vec<Result<Option<Notification>, Error>> {
        let mut all = Vec::new();
        while let Some(message) = take_message(&mut datagram) {
            all.push(decode(message.unwrap()));
        }
        all
    }

    fn change(family: u8, table: &str, chain: Option<&str>) -> Notification {
        Notification::Change(Change::new(family, table, chain))
    }

    #[test]
    fn the_changes_of_a_transaction_are_decoded() {
        // `nft flush ruleset` on Linux 6.18: a rule, a set, two chains and a table of IPv4, a chain and a table of IPv6.
        let datagram = bytes(
            "9c000000080a000001000000e001000002000007080001006e617400120002004b5542452d53455256494345530000000c00030000000000000000
             02600004002c0001000c000100636f756e746572001c0002000c00010000000000000000000c000200000000000000000030000100
             0e000100696d6d6564696174650000001c0002000800010000000000100002000c00020008000100fffffffb
             300000000b0a000001000000e001000002000007080001006e61740008000200666f6f000c0010000000000000000005
             3c000000050a000001000000e001000002000007080001006e617400120003004b5542452d53455256494345530000000c0002000000000000000001
             38000000050a000001000000e001000002000007080001006e6174000f000300505245524f5554494e4700000c0002000000000000000003
             30000000020a000001000000e001000002000007080001006e61740008000300000000000c0004000000000000000001
             40000000050a000001000000e00100000a0000070b00010066696c7465720000110003004b5542452d464f525741524400000000
             0c0002000000000000000001
             34000000020a000001000000e00100000a0000070b00010066696c746572000008000300000000000c0004000000000000000002",
        );
        let expected = [
            Some(change(2, "nat", Some("KUBE-SERVICES"))),
            None,
            Some(change(2, "nat", Some("KUBE-SERVICES"))),
            Some(change(2, "nat", Some("PREROUTING"))),
            Some(change(2, "nat", None)),
            Some(change(10, "filter", Some("KUBE-FORWARD"))),
            Some(change(10, "filter", None)),
        ];
        assert_eq!(decoded(&datagram), expected.map(Ok));
    }

    #[test]
    fn a_generation_has_the_process_that_made_it() {
        // `iptables-restore` on Linux 6.18.
        let restore = "380000000f0a000002000000cd01000000000002080001000000000208000200000001cd1400030069707461626c65732d726573746f7200";
        let expected = Generation {
            id: 2,
            pid: Some(0x1cd),
            name: Some("iptables-restor".into()),
        };
        assert_eq!(
            decoded(&bytes(restore)),
            [Ok(Some(Notification::Generation(expected)))]
        );
        // Before Linux 4.15 there is only the number.
        let old = "1c0000000f0a00000200000000000000000000020800010000000102";
        let expected = Generation::new(0x102);
        assert_eq!(
            decoded(&bytes(old)),
            [Ok(Some(Notification::Generation(expected)))]
        );
    }

    #[test]
    fn a_notification_without_its_names_is_an_error() {
        for (hex, expected) in [
            ("14000000080a0000000000000000000002000007", "no name of a table"),
            (
                "1c000000080a0000000000000000000002000007080001006e617400",
                "no name of a chain",
            ),
            ("140000000f0a0000000000000000000000000007", "no NFTA_GEN_ID"),
            ("12000000080a000000000000000000000200", "shorter than its header"),
        ] {
            let error = decoded(&bytes(hex)).remove(0).unwrap_err();
            assert!(error.to_string().ends_with(expected), "{error}");
        }
    }

    #[test]
    fn notifications_of_other_subsystems_are_ignored() {
        // ipset (6).
        let other = "140000000f060000000000000000000002000000";
        assert_eq!(decoded(&bytes(other)), [Ok(None)]);
    }
}
