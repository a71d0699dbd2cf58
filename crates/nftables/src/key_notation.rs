//! Reading keys as they print.

use std::str::FromStr;

use crate::chain::ChainKey;
use crate::flowtable::FlowtableKey;
use crate::object::{ObjectKey, ObjectKind};
use crate::rule::RuleKey;
use crate::set::SetKey;
use crate::table::TableKey;
use crate::table_family::TableFamily;

/// A text that is not the notation of a key. A key whose names contain white space prints, but cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} {text:?}; expected `{expected}`, names without white space")]
pub struct ParseKeyError {
    what: &'static str,
    text: Box<str>,
    expected: &'static str,
}

impl ParseKeyError {
    fn new(what: &'static str, text: &str, expected: &'static str) -> Self {
        ParseKeyError {
            what,
            text: text.into(),
            expected,
        }
    }
}

/// The words of a text; `None` if there are not `N`.
fn words<const N: usize>(text: &str) -> Option<[&str; N]> {
    let words: Vec<_> = text.split_whitespace().collect();
    words.try_into().ok()
}

impl FromStr for TableFamily {
    type Err = ParseKeyError;

    /// Parses a name such as `inet`, or the number of another family.
    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let named = [
            TableFamily::Ip,
            TableFamily::Ip6,
            TableFamily::Inet,
            TableFamily::Arp,
            TableFamily::Bridge,
            TableFamily::Netdev,
        ];
        let found = named.into_iter().find(|family| family.to_string() == text);
        found
            .or_else(|| text.parse().ok().map(TableFamily::from_number))
            .ok_or_else(|| {
                ParseKeyError::new(
                    "table family",
                    text,
                    "ip, ip6, inet, arp, bridge, netdev or a number from 0 to 255",
                )
            })
    }
}

impl FromStr for TableKey {
    type Err = ParseKeyError;

    /// Parses what `Display` prints: `inet filter`.
    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let [family, name] = words(text).ok_or(ParseKeyError::new("table key", text, "FAMILY TABLE"))?;
        Ok(TableKey::new(family.parse::<TableFamily>()?, name))
    }
}

/// The key of something with a name in a table.
fn named<K>(
    what: &'static str,
    text: &str,
    make: impl FnOnce(TableKey, Box<str>) -> K,
) -> Result<K, ParseKeyError> {
    let [family, table, name] = words(text).ok_or(ParseKeyError::new(what, text, "FAMILY TABLE NAME"))?;
    Ok(make(
        TableKey::new(family.parse::<TableFamily>()?, table),
        name.into(),
    ))
}

impl FromStr for ChainKey {
    type Err = ParseKeyError;

    /// Parses what `Display` prints: `inet filter input`.
    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        named("chain key", text, ChainKey::new)
    }
}

impl FromStr for SetKey {
    type Err = ParseKeyError;

    /// Parses what `Display` prints: `inet filter banned`.
    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        named("set key", text, SetKey::new)
    }
}

impl FromStr for FlowtableKey {
    type Err = ParseKeyError;

    /// Parses what `Display` prints: `inet filter fast`.
    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        named("flowtable key", text, FlowtableKey::new)
    }
}

impl FromStr for RuleKey {
    type Err = ParseKeyError;

    /// Parses what `Display` prints: `inet filter input handle 7`.
    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let error = || ParseKeyError::new("rule key", text, "FAMILY TABLE CHAIN handle NUMBER");
        let (chain, handle) = text.rsplit_once(" handle ").ok_or_else(error)?;
        Ok(RuleKey::new(chain.parse()?, handle.parse().map_err(|_| error())?))
    }
}

impl FromStr for ObjectKey {
    type Err = ParseKeyError;

    /// Parses what `Display` prints: `counter inet filter web`, `ct helper inet filter ftp`.
    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let error = || ParseKeyError::new("object key", text, "KIND FAMILY TABLE NAME");
        let words: Vec<_> = text.split_whitespace().collect();
        let (kind, key) = words
            .split_at_checked(words.len().saturating_sub(3))
            .ok_or_else(error)?;
        let &[family, table, name] = key else {
            return Err(error());
        };
        let kind = kind.join(" ");
        // Every kind with a name has a number below 32.
        let mut known = (0..32).map(ObjectKind::from_number);
        let kind = match known.find(|known| known.to_string() == kind) {
            Some(known) => known,
            None => kind.parse().map(ObjectKind::from_number).map_err(|_| error())?,
        };
        Ok(ObjectKey::new(
            TableKey::new(family.parse::<TableFamily>()?, table),
            kind,
            name,
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = String> {
        "[^\\s\\x00]{1,9}"
    }

    fn table() -> impl Strategy<Value = TableKey> {
        (any::<u8>(), name()).prop_map(|(family, name)| TableKey::new(TableFamily::from_number(family), name))
    }

    proptest! {
        #[test]
        fn keys_read_back_as_they_print(table in table(), name in name(), handle in any::<u64>(), kind in any::<u8>()) {
            prop_assert_eq!(table.to_string().parse(), Ok(table.clone()));
            let chain = ChainKey::new(table.clone(), name.clone());
            prop_assert_eq!(chain.to_string().parse(), Ok(chain.clone()));
            let set = SetKey::new(table.clone(), name.clone());
            prop_assert_eq!(set.to_string().parse(), Ok(set));
            let flowtable = FlowtableKey::new(table.clone(), name.clone());
            prop_assert_eq!(flowtable.to_string().parse(), Ok(flowtable));
            let rule = RuleKey::new(chain, handle);
            prop_assert_eq!(rule.to_string().parse(), Ok(rule));
            let object = ObjectKey::new(table, ObjectKind::from_number(u32::from(kind)), name);
            prop_assert_eq!(object.to_string().parse(), Ok(object));
        }
    }

    #[test]
    fn a_name_with_white_space_is_not_read_as_another_key() {
        let key = ChainKey::new(TableKey::new(TableFamily::Inet, "my table"), "input");
        let error = key.to_string().parse::<ChainKey>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid chain key \"inet my table input\"; expected `FAMILY TABLE NAME`, names without white space"
        );
        assert!("inet".parse::<TableKey>().is_err());
        assert!("inet t c handle x".parse::<RuleKey>().is_err());
        assert!("nope inet t c".parse::<ObjectKey>().is_err());
        assert!("t c".parse::<ObjectKey>().is_err());
    }
}
