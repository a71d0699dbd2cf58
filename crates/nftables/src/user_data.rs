//! Data that user space stores at objects: comments, and what `nft` needs to print an object as it was written.

use std::fmt;

use kernlink_netlink::{Attribute, AttributeWriter, Error};

use crate::wire::Field;

/// User data of an object: a list of entries, each with a type of 1 byte and at most 255 bytes. The kernel does not read it.
///
/// The types are those of libnftnl
/// ([`udata.h`](https://git.netfilter.org/libnftnl/tree/include/libnftnl/udata.h)). What is not such a list is kept as it is.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserData(Box<[u8]>);

/// The type of a comment in the user data of tables, chains, rules, elements and objects.
pub(crate) const COMMENT: u8 = 0;
/// The byte order of the keys of a set.
pub(crate) const SET_KEY_BYTE_ORDER: u8 = 0;
/// The byte order of the data of a map.
pub(crate) const SET_DATA_BYTE_ORDER: u8 = 1;
/// Whether `nft` merges elements.
pub(crate) const SET_AUTO_MERGE: u8 = 2;
/// What the keys of a set are values of.
pub(crate) const SET_KEY_TYPE_OF: u8 = 3;
/// What the data of a map are values of.
pub(crate) const SET_DATA_TYPE_OF: u8 = 4;
/// Whether the data of a map are ranges.
pub(crate) const SET_DATA_INTERVAL: u8 = 6;
/// The type of a comment in the user data of sets.
pub(crate) const SET_COMMENT: u8 = 7;

impl UserData {
    /// No user data.
    #[must_use]
    pub fn new() -> Self {
        UserData::default()
    }

    /// User data of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        UserData(bytes.into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, in order. Ends at one that exceeds the data.
    pub fn entries(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let [kind, length, after @ ..] = rest else {
                return None;
            };
            let (payload, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            Some((*kind, payload))
        })
    }

    /// The first entry of a type.
    #[must_use]
    pub fn entry(&self, kind: u8) -> Option<&[u8]> {
        self.entries()
            .find_map(|(found, payload)| (found == kind).then_some(payload))
    }

    /// Appends an entry. One of more than 255 bytes is not appended; the result is then false.
    pub fn push(&mut self, kind: u8, payload: &[u8]) -> bool {
        let Ok(length) = u8::try_from(payload.len()) else {
            return false;
        };
        let mut bytes = std::mem::take(&mut self.0).into_vec();
        bytes.extend_from_slice(&[kind, length]);
        bytes.extend_from_slice(payload);
        self.0 = bytes.into();
        true
    }

    /// Appends 32 bits in the host's byte order, as libnftnl does.
    pub(crate) fn push_u32(&mut self, kind: u8, number: u32) {
        self.push(kind, &number.to_ne_bytes());
    }

    /// The 32 bits of an entry in the host's byte order.
    pub(crate) fn u32(&self, kind: u8) -> Option<u32> {
        Some(u32::from_ne_bytes(self.entry(kind)?.try_into().ok()?))
    }

    /// Replaces the entries of a type by one.
    pub(crate) fn set(&mut self, kind: u8, payload: &[u8]) -> bool {
        let mut kept = UserData::new();
        for (found, payload) in self.entries().filter(|(found, _)| *found != kind) {
            kept.push(found, payload);
        }
        let is_complete = kept.push(kind, payload);
        if is_complete {
            *self = kept;
        }
        is_complete
    }

    /// As [`set`](Self::set), with 32 bits.
    pub(crate) fn set_u32(&mut self, kind: u8, number: u32) {
        self.set(kind, &number.to_ne_bytes());
    }

    /// The text of an entry without its terminating NUL; `None` if it is not UTF-8.
    pub(crate) fn text(&self, kind: u8) -> Option<&str> {
        let bytes = self.entry(kind)?;
        std::str::from_utf8(bytes.strip_suffix(&[0]).unwrap_or(bytes)).ok()
    }

    /// Appends text with a terminating NUL.
    pub(crate) fn push_text(&mut self, kind: u8, text: &str) -> bool {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.push(kind, &bytes)
    }
}

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries()).finish()
    }
}

impl Field for UserData {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        if !self.is_empty() {
            writer.bytes(kind, &self.0);
        }
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        Ok(UserData(attribute.bytes().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_where_one_exceeds_the_data() {
        let mut data = UserData::new();
        assert!(data.push_text(COMMENT, "web"));
        data.push_u32(2, 1);
        assert_eq!(data.as_bytes()[..6], [0, 4, b'w', b'e', b'b', 0]);
        assert_eq!(data.text(COMMENT), Some("web"));
        assert_eq!(data.entry(2), Some(&1_u32.to_ne_bytes()[..]));
        assert_eq!(data.entries().count(), 2);
        assert!(!data.push(COMMENT, &[0; 256]));
        let broken = UserData::from_bytes(&[0, 1, b'a', 0, 9, b'b']);
        assert_eq!(broken.entries().collect::<Vec<_>>(), [(0, &b"a"[..])]);
        assert_eq!(broken.as_bytes().len(), 6);
    }
}
