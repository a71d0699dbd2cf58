//! Complete listings of a table that changes during the listing.
//!
//! The kernel sends a list of virtual servers, or of the real servers of one virtual server, in several datagrams. It fills each
//! datagram under one lock, so a datagram is a part of the table at one moment. The next datagram starts at a position that is
//! counted from the head of the table again. If `n` servers before this position are deleted in between, the kernel skips
//! `n` others and does not report it (`ip_vs_genl_dump_services` and `ip_vs_genl_dump_dests` in [`ip_vs_ctl.c`][source]). Two
//! equal lists do not prove that a list is complete: a client that adds and deletes the same servers repeatedly can make both
//! skip the same one.
//!
//! An overlap proves it. The kernel inserts at the head of a list (of a hash bucket, for virtual servers) and does not move
//! what is in it. Let `x` be in a part, and in a second part that the kernel made later. A server that was after `x` when the
//! first part was made, and still exists, is after `x` when the second is made. So no server is missing between the two
//! parts. It does not matter whether the kernel walks the list under a lock or under RCU: within a part it does not skip a server
//! that stays. This holds even if `x` was deleted and added again in between, because that moves it towards the head only.
//! (Exception: Linux 7.1 and newer move virtual servers when they resize the hash table, see `net.ipv4.vs.svc_lfactor`.)
//!
//! To get overlapping parts, two dumps run at the same time on two sockets. The kernel makes the first part of a dump when it
//! is requested, and each other part when the part before it is read. The first part on a new socket has one page at most;
//! later ones are larger, because the kernel sizes them by the reader's buffer. Let `A` be a dump on a socket that was read
//! from before, and `B` one on a new socket. If they are read in the order `B1 A1 B2 A2 B3 ...`, the kernel makes their parts
//! in the order `A1 B2 A2 B3 A3 ...`, and neighbours in this order overlap:
//!
//! ```text
//! A1 |-----------------|                   |-----------------| A3
//!           B2 |-----------------|
//!               A2    |-----------------|
//! ```
//!
//! A part that has room for one more message reaches the end of the table.
//!
//! [source]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c

use std::collections::BTreeMap;

use kernlink_netlink::{AttributeWriter, Connection, Error, Message, list_until_consistent};

/// The maximum number of attempts. An attempt fails if parts do not overlap, which requires that more servers than fit into one
/// page are deleted while one datagram is read. So a second attempt is rare.
const MAX_ATTEMPTS: u32 = 10;

/// The maximum length of a message of a listing, in bytes.
const LONGEST_MESSAGE: usize = 420;

/// The minimum capacity of a datagram, in bytes: a page of 4096 minus the kernel's overhead (`NLMSG_GOODSIZE`).
const SMALLEST_DATAGRAM: usize = 3500;

/// The minimum capacity of a datagram that is sized by the reader's buffer, in bytes: 16 384 minus the kernel's overhead since
/// Linux 4.4, 32 768 since 4.11.
const SMALLEST_LARGE_DATAGRAM: usize = 15_872;

/// A datagram of a listing.
#[derive(Clone, Debug)]
pub(super) struct Part<T> {
    pub(super) items: Vec<T>,
    /// In bytes.
    pub(super) length: usize,
}

/// The result of a listing.
#[derive(Clone, Debug)]
pub(super) struct Listing<T> {
    /// In the order of the keys, each key once.
    pub(super) items: Vec<T>,
    /// Whether all items that existed during the whole listing are contained.
    pub(super) is_complete: bool,
    /// The number of attempts, at least 1.
    pub(super) attempts: u32,
}

/// A dump request, and the decoder of its messages.
pub(super) struct Request<W, R> {
    pub(super) message_type: u16,
    pub(super) write: W,
    pub(super) read: R,
}

impl<W, R, T> Request<W, R>
where
    W: Fn(&mut AttributeWriter<'_>),
    R: Fn(Message<'_>) -> Result<Option<T>, Error>,
{
    /// Lists over `first`, an open connection. If one datagram does not contain everything, it also lists over
    /// a connection from `second`, which must return a new one each time. With `is_large` the listing starts with two connections.
    pub(super) fn list<K: Ord, E: From<Error>>(
        &self,
        first: &mut Connection,
        mut second: impl FnMut() -> Result<Connection, E>,
        key: impl Fn(&T) -> K,
        is_large: bool,
    ) -> Result<Listing<T>, E> {
        if !is_large {
            let mut parts = self.parts(first)?.into_iter();
            let part = parts.next();
            if part.as_ref().is_none_or(|part| has_room(part.length, 0, 0)) {
                return Ok(Listing {
                    items: newest(part, &key),
                    is_complete: true,
                    attempts: 1,
                });
            }
        }
        let listing = list_until_consistent(MAX_ATTEMPTS, |before: Option<&(Vec<T>, Coverage)>| {
            let (parts, first_length) = self.overlapping_parts(first, &mut second()?)?;
            let coverage = coverage_of(&parts, first_length, &key);
            let items = newest(parts, &key);
            let is_complete = match coverage {
                Coverage::Whole => true,
                // The last datagrams of both dumps are full by chance. Two attempts that end at the same item are enough.
                Coverage::UpToAnEnd => before.is_some_and(|(before, coverage)| {
                    *coverage == Coverage::UpToAnEnd
                        && before.len() == items.len()
                        && before
                            .iter()
                            .zip(&items)
                            .all(|(one, other)| key(one) == key(other))
                }),
                Coverage::Gap => false,
            };
            Ok::<_, E>(((items, coverage), is_complete))
        })?;
        Ok(Listing {
            items: listing.value.0,
            is_complete: listing.is_consistent,
            attempts: listing.attempts,
        })
    }

    fn parts(&self, connection: &mut Connection) -> Result<Vec<Part<T>>, Error> {
        let mut dump = connection.dump(self.message_type, 0, &self.write, &self.read)?;
        let mut parts = Vec::new();
        while let Some(datagram) = dump.next_datagram() {
            let datagram = datagram?;
            parts.push(Part {
                items: datagram.items,
                length: datagram.length,
            });
        }
        Ok(parts)
    }

    /// The parts of two dumps in the order in which the kernel made them, without the first part of the second dump, and the length
    /// of that part.
    fn overlapping_parts(
        &self,
        first: &mut Connection,
        second: &mut Connection,
    ) -> Result<(Vec<Part<T>>, usize), Error> {
        let mut first = first.dump(self.message_type, 0, &self.write, &self.read)?;
        let mut second = second.dump(self.message_type, 0, &self.write, &self.read)?;
        let first_length = second
            .next_datagram()
            .transpose()?
            .map_or(0, |datagram| datagram.length);
        let mut parts = Vec::new();
        let mut is_finished = [false; 2];
        while is_finished != [true; 2] {
            for (dump, is_finished) in [&mut first, &mut second].into_iter().zip(&mut is_finished) {
                match dump.next_datagram() {
                    Some(datagram) => {
                        let datagram = datagram?;
                        parts.push(Part {
                            items: datagram.items,
                            length: datagram.length,
                        });
                    }
                    None => *is_finished = true,
                }
            }
        }
        Ok((parts, first_length))
    }
}

/// How much of a table is contained in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    /// Everything.
    Whole,
    /// Everything up to the last item, which may not be the end of the table.
    UpToAnEnd,
    /// Items between two parts may be missing.
    Gap,
}

/// The coverage of parts that were made one after the other, the first of them at the start of the table. `first_length` is the
/// length of a datagram with the minimum capacity.
fn coverage_of<T, K: Ord>(parts: &[Part<T>], first_length: usize, key: &impl Fn(&T) -> K) -> Coverage {
    let longest = parts.iter().map(|part| part.length).max().unwrap_or(0);
    let mut last: Option<&Part<T>> = None;
    for part in parts {
        // The end of one dump; the other dump may continue.
        if part.items.is_empty() {
            continue;
        }
        if let Some(last) = last
            && !overlap(last, part, key)
        {
            return Coverage::Gap;
        }
        if has_room(part.length, first_length, longest) {
            return Coverage::Whole;
        }
        last = Some(part);
    }
    // An empty table has no parts with items.
    if last.is_none() {
        Coverage::Whole
    } else {
        Coverage::UpToAnEnd
    }
}

fn overlap<T, K: Ord>(one: &Part<T>, other: &Part<T>, key: &impl Fn(&T) -> K) -> bool {
    // The first items of the second part are usually near the end of the first part.
    other.items.iter().any(|item| {
        let key_of_item = key(item);
        one.items.iter().rev().any(|earlier| key(earlier) == key_of_item)
    })
}

/// Whether a datagram of this length certainly has room for one more message. Its capacity is either the minimum (also if the
/// kernel is short of memory) or sized by the reader's buffer, as for the `longest` datagram.
fn has_room(length: usize, first_length: usize, longest: usize) -> bool {
    let small = SMALLEST_DATAGRAM.max(first_length);
    let large = SMALLEST_LARGE_DATAGRAM.max(longest);
    // With pages larger than 4 KiB the minimum capacity is up to 8 KiB. Unless `first_length` decides, assume 8 KiB.
    let no_longer_small = if (1..=4096).contains(&first_length) {
        4096
    } else {
        8192
    };
    length + LONGEST_MESSAGE <= small || (length > no_longer_small && length + LONGEST_MESSAGE <= large)
}

/// The items of all parts, in the order of the keys. Of items with equal keys the last one is used.
fn newest<T, K: Ord>(parts: impl IntoIterator<Item = Part<T>>, key: &impl Fn(&T) -> K) -> Vec<T> {
    let items = parts.into_iter().flat_map(|part| part.items);
    let by_key: BTreeMap<K, T> = items.map(|item| (key(&item), item)).collect();
    by_key.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Length of a message in bytes.
    const MESSAGE: usize = 400;
    /// Messages of the smallest datagrams and of the others: 3 600 and 20 000 bytes.
    const SMALL: usize = 9;
    const LARGE: usize = 50;

    /// A model of the kernel's list, which inserts at the head.
    struct Table(Vec<u32>);

    /// The position of a dump.
    #[derive(Default)]
    struct Cursor(usize);

    impl Table {
        fn part(&self, cursor: &mut Cursor, room: usize) -> Part<u32> {
            let items: Vec<u32> = self.0.iter().skip(cursor.0).take(room).copied().collect();
            cursor.0 += items.len();
            let length = (items.len() * MESSAGE).max(20);
            Part { items, length }
        }
    }

    /// Lists on two sockets, calls `change` before each part is made, and returns the arguments of [`coverage_of`].
    fn list_twice(table: &mut Table, mut change: impl FnMut(&mut Table)) -> (Vec<Part<u32>>, usize) {
        let (mut first, mut second) = (Cursor::default(), Cursor::default());
        let mut parts = vec![table.part(&mut first, LARGE)];
        change(table);
        let first_length = table.part(&mut second, SMALL).length;
        for _ in 0..40 {
            change(table);
            parts.push(table.part(&mut second, LARGE));
            change(table);
            parts.push(table.part(&mut first, LARGE));
        }
        (parts, first_length)
    }

    #[test]
    fn an_unchanged_table_of_any_length_is_listed_completely() {
        for length in 0..400 {
            let (parts, first_length) = list_twice(&mut Table((0..length).collect()), |_| {});
            let coverage = coverage_of(&parts, first_length, &|item| *item);
            assert!(coverage != Coverage::Gap, "{length}");
            // If the last datagrams of both dumps are full, a second attempt must end at the same item.
            let remainder = (length as usize + LARGE - SMALL) % LARGE;
            assert!(
                coverage == Coverage::Whole || [0, LARGE - 1].contains(&remainder),
                "{length}"
            );
            assert_eq!(newest(parts, &|item| *item), (0..length).collect::<Vec<_>>());
        }
    }

    #[test]
    fn deleting_and_adding_the_same_items_causes_equal_listings_without_overlap() {
        // Sixty items are added before a part and deleted before the next one, so each dump skips sixty items.
        let lasting: Vec<u32> = (0..300).collect();
        let churn: Vec<u32> = (1000..1060).collect();
        let mut is_added = false;
        let mut table = Table(lasting.clone());
        let change = |table: &mut Table| {
            is_added = !is_added;
            table.0 = if is_added {
                [&churn[..], &lasting].concat()
            } else {
                lasting.clone()
            };
        };
        let (parts, first_length) = list_twice(&mut table, change);
        assert_eq!(coverage_of(&parts, first_length, &|item| *item), Coverage::Gap);
    }

    #[test]
    fn a_datagram_has_room_only_if_it_cannot_be_full() {
        for (length, expected) in [
            (20, true),
            (3080, true),
            (3300, false),
            (7000, false),
            (8300, true),
            (15_400, true),
            (15_600, false),
            (32_000, false),
        ] {
            assert_eq!(has_room(length, 0, 0), expected, "{length}");
        }
        // With known lengths of the first and the longest datagram.
        for (length, expected) in [
            (3300, true),
            (3700, false),
            (4200, true),
            (31_900, true),
            (32_200, false),
        ] {
            assert_eq!(has_room(length, 3720, 32_400), expected, "{length}");
        }
    }

    #[derive(Clone, Debug)]
    enum Change {
        Add(u32),
        Delete(usize),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            (1000_u32..1030).prop_map(Change::Add),
            any::<usize>().prop_map(Change::Delete),
        ];
        prop::collection::vec(change, 0..4)
    }

    proptest! {
        #[test]
        fn a_complete_listing_contains_all_items_that_existed_throughout(
            length in 0_u32..300,
            changes in prop::collection::vec(changes(), 0..30),
            (large_change, at) in (0_usize..200, 0_usize..30),
        ) {
            let mut table = Table((0..length).collect());
            // Items that were not deleted at any time.
            let mut lasting: BTreeSet<u32> = table.0.iter().copied().collect();
            let mut step = 0;
            let (parts, first_length) = list_twice(&mut table, |table| {
                for change in changes.get(step).into_iter().flatten() {
                    match change {
                        Change::Add(item) if table.0.contains(item) => {}
                        Change::Add(item) => table.0.insert(0, *item),
                        Change::Delete(_) if table.0.is_empty() => {}
                        Change::Delete(position) => {
                            let item = table.0.remove(position % table.0.len());
                            lasting.remove(&item);
                        }
                    }
                }
                if step == at {
                    for item in table.0.drain(..large_change.min(table.0.len())) {
                        lasting.remove(&item);
                    }
                }
                step += 1;
            });
            if coverage_of(&parts, first_length, &|item| *item) == Coverage::Whole {
                let listed: BTreeSet<u32> = newest(parts, &|item| *item).into_iter().collect();
                prop_assert!(lasting.is_subset(&listed), "{:?}", lasting.difference(&listed));
            }
        }
    }
}
