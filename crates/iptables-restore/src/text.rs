//! Texts with a limit: comments, log prefixes, names of sets.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::wire::token::check_text;

macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $field:literal, $limit:literal, $constant:literal, $extra:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            /// Longest text in bytes.
            #[doc = concat!("This is `", $constant, "`.")]
            pub const LIMIT: usize = $limit;

            /// Takes a text that the tools keep whole.
            ///
            /// # Errors
            ///
            /// [`Error::TooLong`] above [`Self::LIMIT`] bytes, which the tools would cut or refuse;
            /// [`Error::Invalid`] if it holds a line feed or a NUL or is not of the form described above.
            pub fn new(text: &str) -> Result<Self, Error> {
                check_text($field, text, Self::LIMIT, $constant)?;
                let extra: fn(&str) -> Option<&'static str> = $extra;
                match extra(text) {
                    Some(reason) => Err(Error::invalid($field, text, reason)),
                    None => Ok($name(text.into())),
                }
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                $name::new(text)
            }
        }
    };
}

text! {
    /// A comment, which the kernel keeps with the rule. It may be empty.
    Comment, "comment", 255, "XT_MAX_COMMENT_LEN - 1", |_| None
}

text! {
    /// What a log line begins with. It may be empty.
    LogPrefix, "log prefix", 29, "length of xt_log_info.prefix - 1", |_| None
}

text! {
    /// What a message to a logging process begins with. It may be empty.
    NflogPrefix, "nflog prefix", 63, "length of xt_nflog_info.prefix - 1", |_| None
}

text! {
    /// Name of an ipset: not empty, no blank, no comma, no control character, no double quote.
    SetName, "set name", 31, "IPSET_MAXNAMELEN - 1", bare
}

text! {
    /// Name of a list of recent addresses: not empty, no blank, no control character, no `/` or double quote.
    RecentName, "recent list name", 199, "XT_RECENT_NAME_LEN - 1", bare
}

text! {
    /// Name of a table of rates: not empty, no blank, no control character, no `/` or double quote.
    HashlimitName, "hashlimit name", 255, "length of xt_hashlimit_mtinfo3.name - 1", bare
}

text! {
    /// Name of a connection-tracking helper or time-out policy: not empty, no blank.
    ConntrackName, "conntrack helper or timeout name", 31, "length of xt_ct_target_info_v1.timeout - 1", bare
}

text! {
    /// Names of connection-tracking events joined by commas: lower-case letters and commas only.
    EventList, "conntrack events", 255, "length that the tools' word buffer surely takes", |text| {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte == b',';
        (text.is_empty() || !text.bytes().all(known)).then_some("is not names in lower case joined by commas")
    }
}

impl EventList {
    /// Names in the order in which the tools print them; a list with one they do not know stays as it is.
    ///
    /// Source: `ct_event_tbl` in `extensions/libxt_CT.c`, iptables 1.8.9.
    pub(crate) fn in_the_tools_order(&self) -> Self {
        const ORDER: [&str; 10] = [
            "new",
            "related",
            "destroy",
            "reply",
            "assured",
            "protoinfo",
            "helper",
            "mark",
            "natseqinfo",
            "secmark",
        ];
        if !self.0.split(',').all(|name| ORDER.contains(&name)) {
            return self.clone();
        }
        let named = |name: &&str| self.0.split(',').any(|known| known == *name);
        let names: Vec<&str> = ORDER.into_iter().filter(named).collect();
        EventList(names.join(",").into())
    }
}

/// Why a name that the tools print without quotes cannot stand so.
fn bare(name: &str) -> Option<&'static str> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '"' | ',');
    if name.is_empty() {
        Some("is empty")
    } else if name == "!" || name.starts_with('-') {
        Some("is '!' or starts with '-', which the tools read as something else")
    } else if name.contains(bad) {
        Some("holds a blank, a control character, a '/', a ',' or a double quote")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_that_would_be_cut_or_would_end_the_line_is_refused_by_name() {
        assert!(Comment::new(&"x".repeat(255)).is_ok());
        for bad in ["x".repeat(256), "a\nb".into(), "a\0b".into()] {
            assert!(Comment::new(&bad).unwrap_err().to_string().starts_with("comment"));
        }
    }
}
