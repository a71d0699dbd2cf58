//! Which events a monitor returns.

use kernlink_netlink::{Error, Message};

use crate::table::TableKey;
use crate::table_family::TableFamily;
use crate::uapi::{
    NFT_MSG_DELCHAIN, NFT_MSG_DELFLOWTABLE, NFT_MSG_DELOBJ, NFT_MSG_DELRULE, NFT_MSG_DELSET,
    NFT_MSG_DELSETELEM, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWFLOWTABLE, NFT_MSG_NEWOBJ,
    NFT_MSG_NEWRULE, NFT_MSG_NEWSET, NFT_MSG_NEWSETELEM, NFT_MSG_NEWTABLE, NFTA_TABLE_NAME,
};
use crate::wire;

bitflags::bitflags! {
    /// Kinds of [items](crate::Item).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ItemKinds: u8 {
        /// Tables.
        const TABLES = 1;
        /// Chains.
        const CHAINS = 2;
        /// Rules.
        const RULES = 4;
        /// Sets and maps.
        const SETS = 8;
        /// Elements of sets and maps.
        const ELEMENTS = 16;
        /// Stateful objects.
        const OBJECTS = 32;
        /// Flowtables.
        const FLOWTABLES = 64;
    }
}

impl ItemKinds {
    /// The kind that messages of a command are about.
    fn of_command(command: u8) -> Option<Self> {
        Some(match command {
            NFT_MSG_NEWTABLE | NFT_MSG_DELTABLE => ItemKinds::TABLES,
            NFT_MSG_NEWCHAIN | NFT_MSG_DELCHAIN => ItemKinds::CHAINS,
            NFT_MSG_NEWRULE | NFT_MSG_DELRULE => ItemKinds::RULES,
            NFT_MSG_NEWSET | NFT_MSG_DELSET => ItemKinds::SETS,
            NFT_MSG_NEWSETELEM | NFT_MSG_DELSETELEM => ItemKinds::ELEMENTS,
            NFT_MSG_NEWOBJ | NFT_MSG_DELOBJ => ItemKinds::OBJECTS,
            NFT_MSG_NEWFLOWTABLE | NFT_MSG_DELFLOWTABLE => ItemKinds::FLOWTABLES,
            _ => return None,
        })
    }
}

/// Which events a [`Monitor`](crate::Monitor) returns. The default is all of them.
///
/// The kernel sends several changes in one datagram, so all events are received. Those that do not match are not decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventFilter {
    /// Tables of this family, and what is in them. `None`: of all families.
    pub family: Option<TableFamily>,
    /// Tables of this name, and what is in them. `None`: of every name.
    pub table: Option<Box<str>>,
    /// Changes of these kinds of items. Traces do not depend on it.
    pub kinds: ItemKinds,
}

impl Default for EventFilter {
    fn default() -> Self {
        EventFilter {
            family: None,
            table: None,
            kinds: ItemKinds::all(),
        }
    }
}

impl EventFilter {
    /// All events.
    #[must_use]
    pub fn new() -> Self {
        EventFilter::default()
    }

    /// Events of one table.
    #[must_use]
    pub fn of_table(table: &TableKey) -> Self {
        EventFilter {
            family: Some(table.family),
            table: Some(table.name.clone()),
            ..EventFilter::default()
        }
    }

    /// Sets the family.
    #[must_use]
    pub fn with_family(mut self, family: impl Into<TableFamily>) -> Self {
        self.family = Some(family.into());
        self
    }

    /// Sets the kinds of items.
    #[must_use]
    pub fn with_kinds(mut self, kinds: ItemKinds) -> Self {
        self.kinds = kinds;
        self
    }

    /// Whether a message that is about something in a table, or a trace, matches.
    pub(crate) fn matches(&self, message: &Message<'_>) -> Result<bool, Error> {
        let [_, command] = message.message_type.to_be_bytes();
        if ItemKinds::of_command(command).is_some_and(|kind| !self.kinds.contains(kind)) {
            return Ok(false);
        }
        if self.family.is_none() && self.table.is_none() {
            return Ok(true);
        }
        let (family, attributes) = wire::parts(message)?;
        if self.family.is_some_and(|required| required != family) {
            return Ok(false);
        }
        let Some(table) = &self.table else {
            return Ok(true);
        };
        for attribute in attributes {
            let attribute = attribute?;
            // `NFTA_CHAIN_TABLE` and those of the other messages have the same number.
            if attribute.kind() == NFTA_TABLE_NAME {
                return Ok(wire::text(&attribute) == *table);
            }
        }
        Ok(false)
    }
}
