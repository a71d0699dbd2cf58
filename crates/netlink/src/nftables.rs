//! Notifications of nf_tables: which chains changed, and the end of each transaction
//! ([`nf_tables.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netfilter/nf_tables.h)).

use std::time::Duration;

use crate::{Error, Events, Message, Protocol, Subscription, netfilter};

/// The multicast group of nf_tables
/// ([`nfnetlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netfilter/nfnetlink.h)).
pub const NFNLGRP_NFTABLES: u32 = 7;

const NFT_MSG_NEWTABLE: u8 = 0;
const NFT_MSG_DELTABLE: u8 = 2;
const NFT_MSG_NEWCHAIN: u8 = 3;
const NFT_MSG_DELCHAIN: u8 = 5;
const NFT_MSG_NEWRULE: u8 = 6;
const NFT_MSG_DELRULE: u8 = 8;
const NFT_MSG_NEWGEN: u8 = 15;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::take_message;

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
