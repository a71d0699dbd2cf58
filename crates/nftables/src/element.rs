//! Elements of sets and maps.

use std::time::Duration;

use crate::expression::Expression;
use crate::set::SetKey;
use crate::user_data::{self, UserData};
use crate::value::Value;
use crate::verdict::{Data, Verdict};
use crate::wire::flags_field;

bitflags::bitflags! {
    /// Flags of an element.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ElementFlags: u32 {
        /// Its key is the first one after a range.
        const INTERVAL_END = crate::uapi::NFT_SET_ELEM_INTERVAL_END;
        /// It is found for every key that no other element has (Linux 5.13).
        const CATCHALL = crate::uapi::NFT_SET_ELEM_CATCHALL;
        const _ = !0;
    }
}

flags_field!(ElementFlags);

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Element {
    /// The key; without bytes for the catch-all element.
    pub key: Value,
    /// The last key of a range, of sets of the flag [`CONCAT`](crate::SetFlags::CONCAT).
    pub key_end: Option<Value>,
    /// The data of a map.
    pub data: Option<Data>,
    /// The object of a map to objects.
    pub object: Option<Box<str>>,
    /// Flags.
    pub flags: ElementFlags,
    /// The timeout; `None`: that of the set. Zero: the element does not expire. Kernels before 6.12 accept this too, but return it as
    /// `None`.
    pub timeout: Option<Duration>,
    /// The time until the element expires; `None` when written: the whole timeout.
    pub expiration: Option<Duration>,
    /// Expressions, such as a counter.
    pub expressions: Vec<Expression>,
    /// User data, at most 254 bytes.
    pub user_data: UserData,
}

impl Element {
    /// An element of a set.
    #[must_use]
    pub fn new(key: impl Into<Value>) -> Self {
        Element {
            key: key.into(),
            key_end: None,
            data: None,
            object: None,
            flags: ElementFlags::empty(),
            timeout: None,
            expiration: None,
            expressions: Vec::new(),
            user_data: UserData::new(),
        }
    }

    /// The element for all keys that no other element has.
    #[must_use]
    pub fn catch_all() -> Self {
        Element::new(Value::new(&[])).with_flags(ElementFlags::CATCHALL)
    }

    /// Sets the last key of a range of concatenations.
    #[must_use]
    pub fn with_key_end(mut self, key_end: Value) -> Self {
        self.key_end = Some(key_end);
        self
    }

    /// Sets the value of a map.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<Value>) -> Self {
        self.data = Some(Data::Value(value.into()));
        self
    }

    /// Sets the `netfilter verdict` of a verdict map.
    #[must_use]
    pub fn with_verdict(mut self, verdict: Verdict) -> Self {
        self.data = Some(Data::Verdict(verdict));
        self
    }

    /// Sets the object of a map to objects.
    #[must_use]
    pub fn with_object(mut self, name: impl Into<Box<str>>) -> Self {
        self.object = Some(name.into());
        self
    }

    /// Sets the flags.
    #[must_use]
    pub fn with_flags(mut self, flags: ElementFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the timeout, in whole milliseconds. With zero the element does not expire.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the time until it expires, at most its timeout.
    #[must_use]
    pub fn with_expiration(mut self, expiration: Duration) -> Self {
        self.expiration = Some(expiration);
        self
    }

    /// Sets the expressions.
    #[must_use]
    pub fn with_expressions(mut self, expressions: Vec<Expression>) -> Self {
        self.expressions = expressions;
        self
    }

    /// Adds a comment, of at most 128 bytes for `nft`. One of more than 251 bytes is not added.
    #[must_use]
    pub fn with_comment(mut self, comment: &str) -> Self {
        if comment.len() <= 251 {
            self.user_data.push_text(user_data::COMMENT, comment);
        }
        self
    }

    /// The comment.
    #[must_use]
    pub fn comment(&self) -> Option<&str> {
        self.user_data.text(user_data::COMMENT)
    }

    /// The element with its key only, as a deletion needs it.
    #[must_use]
    pub fn key_only(&self) -> Self {
        Element {
            key_end: self.key_end.clone(),
            flags: self.flags,
            ..Element::new(self.key.clone())
        }
    }
}

/// Elements of one set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elements {
    /// The set.
    pub set: SetKey,
    /// The elements.
    pub elements: Vec<Element>,
}

impl Elements {
    /// These elements of a set.
    #[must_use]
    pub fn new(set: SetKey, elements: impl IntoIterator<Item = Element>) -> Self {
        Elements {
            set,
            elements: elements.into_iter().collect(),
        }
    }
}
