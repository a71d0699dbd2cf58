//! Notifications of nf_tables, without those of own changes.

use std::collections::BTreeSet;

use kernlink_netlink::nftables::{self, ElementChange, Notification};
use kernlink_netlink::{Error, Message};

/// Decodes them.
pub(super) type Decode = Box<dyn FnMut(Message<'_>) -> Result<Option<RulesNotification>, Error> + Send>;

/// A notification of nf_tables.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RulesNotification {
    /// A change of tables, chains or rules, or the end of a transaction.
    Rules(Notification),
    /// A change of elements.
    Elements(ElementChange),
}

/// Decodes the notifications of other programs, and the ends of all transactions; those of elements if own changes are known.
pub(super) fn decode_for(own_ports: BTreeSet<u32>) -> Decode {
    Box::new(move |message| {
        let is_own = own_ports.contains(&message.port);
        if !is_own
            && !own_ports.is_empty()
            && let Some(change) = nftables::decode_elements(message)?
        {
            return Ok(Some(RulesNotification::Elements(change)));
        }
        let notification = nftables::decode(message)?;
        let is_noticed =
            |notification: &Notification| !is_own || matches!(notification, Notification::Generation(_));
        Ok(notification.filter(is_noticed).map(RulesNotification::Rules))
    })
}
