//! Texts and names with a limit: comments, log prefixes, names of sets.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::uapi;

macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $field:literal, $limit:expr, $constant:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            #[doc = concat!("Longest text in bytes: ", $constant, ".")]
            pub const LIMIT: usize = $limit;

            /// A text that the tools and the kernel store completely.
            ///
            /// # Errors
            ///
            /// [`Error::TooLong`] above [`Self::LIMIT`] bytes, which the tools would truncate or refuse;
            /// [`Error::Invalid`] if it contains a line feed or a NUL, or does not have the form described above.
            pub fn new(text: &str) -> Result<Self, Error> {
                check_text($field, text, Self::LIMIT, $constant)?;
                let check: fn(&str) -> Option<&'static str> = $check;
                match check(text) {
                    Some(reason) => Err(Error::invalid($field, text, reason)),
                    None => Ok($name(text.into())),
                }
            }

            /// The text.
            #[must_use]
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
    /// A comment, which the kernel stores with the rule. May be empty.
    Comment, "comment", uapi::XT_MAX_COMMENT_LEN - 1, "XT_MAX_COMMENT_LEN - 1", |_| None
}

text! {
    /// The prefix of a log line. May be empty.
    LogPrefix, "log prefix", 29, "size of xt_log_info.prefix - 1", |_| None
}

text! {
    /// The prefix of a message to a logging process. May be empty.
    NflogPrefix, "nflog prefix", 63, "size of xt_nflog_info.prefix - 1", |_| None
}

text! {
    /// The name of an ipset: not empty, without whitespace, control characters, `/`, `,` and double quotes.
    SetName, "set name", uapi::IPSET_MAXNAMELEN - 1, "IPSET_MAXNAMELEN - 1", check_name
}

text! {
    /// The name of a list of recent addresses: not empty, without whitespace, control characters, `/`, `,` and double quotes.
    RecentName, "recent list name", uapi::XT_RECENT_NAME_LEN - 1, "XT_RECENT_NAME_LEN - 1", check_name
}

text! {
    /// The name of a hashlimit table: not empty, without whitespace, control characters, `/`, `,` and double quotes.
    HashlimitName, "hashlimit name", 255, "size of xt_hashlimit_mtinfo3.name - 1", check_name
}

text! {
    /// The name of a connection-tracking helper or timeout policy: not empty, without whitespace, control characters, `/`, `,`
    /// and double quotes.
    ConntrackName, "conntrack helper or timeout name", 31, "size of xt_ct_target_info_v1.timeout - 1", check_name
}

text! {
    /// Names of connection-tracking events separated by commas: lower-case letters and commas only.
    EventList, "conntrack events", 255, "length that fits the argument buffer of the tools", |text| {
        let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte == b',';
        (text.is_empty() || !text.bytes().all(is_valid)).then_some("expected lower-case names separated by commas")
    }
}

impl EventList {
    /// Names in the order in which the tools print them. A list with a name that they do not support is unchanged.
    ///
    /// Source: `ct_event_tbl` in `extensions/libxt_CT.c`, iptables 1.8.9.
    pub(crate) fn in_tool_order(&self) -> Self {
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
        let is_listed = |name: &&str| self.0.split(',').any(|listed| listed == *name);
        let names: Vec<&str> = ORDER.into_iter().filter(is_listed).collect();
        EventList(names.join(",").into())
    }
}

/// Why a name cannot be used that the tools print without quotes.
fn check_name(name: &str) -> Option<&'static str> {
    let is_invalid = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '"' | ',');
    if name.is_empty() {
        Some("must not be empty")
    } else if name == "!" || name.starts_with('-') {
        Some("must not be '!' or start with '-'")
    } else if name.contains(is_invalid) {
        Some("must not contain whitespace, control characters, '/', ',' or double quotes")
    } else {
        None
    }
}

/// Refuses what no quoting protects, and what is too long.
pub(crate) fn check_text(
    field: &'static str,
    text: &str,
    limit: usize,
    constant: &'static str,
) -> Result<(), Error> {
    if text.contains('\n') {
        return Err(Error::invalid(field, text, "must not contain a line feed"));
    }
    if text.contains('\0') {
        return Err(Error::invalid(field, text, "must not contain a NUL"));
    }
    if text.len() > limit {
        return Err(Error::TooLong {
            field,
            value: text.into(),
            length: text.len(),
            limit,
            constant,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_that_are_too_long_or_contain_a_line_feed_are_refused() {
        assert!(Comment::new(&"x".repeat(255)).is_ok());
        for text in ["x".repeat(256), "a\nb".into(), "a\0b".into()] {
            let error = Comment::new(&text).unwrap_err();
            assert!(error.to_string().starts_with("invalid comment"), "{error}");
        }
    }
}
