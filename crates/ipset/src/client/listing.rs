//! Reading sets from the kernel.

use kernlink_netlink::{Message, Reply, list_until_consistent};

use crate::client::Client;
use crate::entry::Entry;
use crate::error::Error;
use crate::name::SetName;
use crate::operation::Action;
use crate::set::SetContents;
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;
use crate::wire;

/// How often sets are listed at most until two lists in a row are equal.
const LIST_ATTEMPTS: u32 = 8;

impl Client {
    /// Lists one set or all until two lists in a row are equal, apart from timeouts and counters.
    pub(super) fn list_consistent(&mut self, name: Option<&SetName>) -> Result<Vec<SetContents>, Error> {
        let listing = list_until_consistent(LIST_ATTEMPTS, |before: Option<&Vec<SetContents>>| {
            let sets = self.dump(name, 0)?;
            let is_same = before.is_some_and(|before| is_same_content(before, &sets));
            Ok((sets, is_same))
        })?;
        if listing.is_consistent {
            return Ok(listing.value);
        }
        let action = Box::new(name.map_or(Action::ListAll, |name| Action::List(*name)));
        Err(Error::Changed {
            action,
            attempts: listing.attempts,
        })
    }

    /// Lists one set or all once.
    pub(super) fn dump(
        &mut self,
        name: Option<&SetName>,
        list_flags: u32,
    ) -> Result<Vec<SetContents>, Error> {
        let mut sets: Vec<SetContents> = Vec::new();
        let result = self.connection.dump_all(
            wire::message_type(IPSET_CMD_LIST),
            0,
            |w| {
                match name {
                    Some(name) => wire::named(w, name),
                    None => wire::preamble(w, IPSET_PROTOCOL_MIN),
                }
                if list_flags != 0 {
                    w.net().be_u32(IPSET_ATTR_FLAGS, list_flags);
                }
            },
            |message| merge(&mut sets, &message).map(|()| None::<()>),
        );
        match result {
            Ok(_) => {
                self.remember_listed(name, &sets);
                Ok(sets)
            }
            Err(error) => Err(Error::new(
                name.map_or(Action::ListAll, |name| Action::List(*name)),
                error,
                None,
            )),
        }
    }

    /// Type and family of each set.
    pub(crate) fn types_of(&mut self, names: &[SetName]) -> Vec<Result<(SetType, SetFamily), Error>> {
        self.batch.clear();
        let mut types: Vec<Result<(SetType, SetFamily), Error>> = Vec::with_capacity(names.len());
        for name in names {
            types.push(Err(Error::NotAttempted));
            // A name always fits.
            let _infallible = self
                .batch
                .push(wire::message_type(IPSET_CMD_HEADER), 0, |w| wire::named(w, name));
        }
        let outcomes = self.connection.execute_with(&mut self.batch, |index, reply| {
            if let (Some(slot), Reply::Message(message), Some(name)) =
                (types.get_mut(index), reply, names.get(index))
            {
                *slot = wire::read_type_and_family(message.payload)
                    .map_err(|error| Error::new(Action::List(*name), error, None));
            }
        });
        for ((slot, outcome), name) in types.iter_mut().zip(outcomes).zip(names) {
            if let Err(error) = outcome {
                *slot = Err(Error::new(Action::List(*name), error, None));
            }
        }
        types
    }
}

/// Adds one message of a list to the sets read so far.
fn merge(sets: &mut Vec<SetContents>, message: &Message<'_>) -> Result<(), kernlink_netlink::Error> {
    let part = wire::read_list_part(message.payload)?;
    if let Some(header) = part.header {
        sets.push(SetContents {
            header,
            entries: Vec::new(),
        });
    }
    let Some(nest) = part.entries else { return Ok(()) };
    // A message without a header continues the set before it.
    match sets.last_mut() {
        Some(set) if set.header.set.name == part.name => {
            if matches!(set.header.set.set_type, SetType::Unknown(_)) {
                return Ok(());
            }
            set.entries.reserve(set.header.stats.elements as usize & 0xffff);
            wire::read_entries(nest, set.header.set.set_type, &mut set.entries)
        }
        _ => Err(kernlink_netlink::Error::Malformed {
            what: "list: entries of a set without its header",
        }),
    }
}

/// Whether two lists are equal, apart from statistics, counters and timeouts.
fn is_same_content(before: &[SetContents], after: &[SetContents]) -> bool {
    let same_set = |(before, after): (&SetContents, &SetContents)| {
        let same_entry = |(before, after): (&Entry, &Entry)| before.is_configured_as(after);
        before.header.set == after.header.set
            && before.entries.len() == after.entries.len()
            && before.entries.iter().zip(&after.entries).all(same_entry)
    };
    before.len() == after.len() && before.iter().zip(after).all(same_set)
}
