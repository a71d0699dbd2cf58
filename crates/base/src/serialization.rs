//! The feature `serde`: values are their notation.

#[doc(hidden)]
pub use serde;

/// Implements `serde::Serialize` by `Display` and, without `serialize only`, `serde::Deserialize` by `FromStr`: a value is a string, its
/// notation. With `names checked`, for types with [`Names`](crate::serialization::Names), a value with a name that its notation does not represent
/// is an error instead. The macro is for the crates of kernlink.
#[macro_export]
macro_rules! serde_as_text {
    (serialize only, names checked: $($type:ty),* $(,)?) => {
        $crate::serde_as_text!(serialize by $crate::serialization::Names::check_names: $($type),*);
    };
    (serialize only: $($type:ty),* $(,)?) => {
        $crate::serde_as_text!(serialize by $crate::serialization::is_text: $($type),*);
    };
    (names checked: $($type:ty),* $(,)?) => {
        $crate::serde_as_text!(serialize only, names checked: $($type),*);
        $crate::serde_as_text!(deserialize only: $($type),*);
    };
    (serialize by $check:path: $($type:ty),* $(,)?) => {$(
        impl $crate::serialization::serde::Serialize for $type {
            fn serialize<S>(&self, serializer: S) -> Result<S::Ok, S::Error>
            where
                S: $crate::serialization::serde::Serializer,
            {
                $check(self).map_err(<S::Error as $crate::serialization::serde::ser::Error>::custom)?;
                serializer.collect_str(self)
            }
        }
    )*};
    (deserialize only: $($type:ty),* $(,)?) => {$(
        impl<'de> $crate::serialization::serde::Deserialize<'de> for $type {
            fn deserialize<D>(deserializer: D) -> Result<Self, D::Error>
            where
                D: $crate::serialization::serde::Deserializer<'de>,
            {
                let text = <String as $crate::serialization::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(<D::Error as $crate::serialization::serde::de::Error>::custom)
            }
        }
    )*};
    ($($type:ty),* $(,)?) => {
        $crate::serde_as_text!(serialize only: $($type),*);
        $crate::serde_as_text!(deserialize only: $($type),*);
    };
}

/// Every value of these types has its notation.
#[doc(hidden)]
pub fn is_text<T>(_value: &T) -> Result<(), std::convert::Infallible> {
    Ok(())
}

/// A value with names or comments that are bytes.
#[doc(hidden)]
pub trait Names {
    /// Checks all of them, see [`check_bytes`].
    ///
    /// # Errors
    /// The reason if one is not UTF-8.
    fn check_names(&self) -> Result<(), String>;
}

/// The bytes of a name or comment are its notation if they are UTF-8. `what`: which name it is, such as `set name`.
///
/// # Errors
/// The reason if they are not.
#[doc(hidden)]
pub fn check_bytes(what: &str, bytes: &[u8]) -> Result<(), String> {
    if std::str::from_utf8(bytes).is_ok() {
        return Ok(());
    }
    let escaped = bytes.escape_ascii();
    Err(format!(
        "{what} \"{escaped}\" is not UTF-8, so it cannot be serialized as a string"
    ))
}

serde_as_text!(crate::Family, crate::Protocol);

#[cfg(test)]
mod tests {
    use crate::{Family, Protocol};

    #[test]
    fn values_are_their_notation() {
        let values = (Family::Ipv6, Protocol::TCP, Protocol(253));
        let json = serde_json::to_string(&values).unwrap();
        assert_eq!(json, r#"["IPv6","tcp","253"]"#);
        assert_eq!(
            serde_json::from_str::<(Family, Protocol, Protocol)>(&json).unwrap(),
            values
        );
        let error = serde_json::from_str::<Family>(r#""IPv5""#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("invalid address family \"IPv5\""), "{error}");
    }
    #[test]
    fn bytes_that_are_not_utf8_are_named() {
        assert_eq!(super::check_bytes("set name", "é".as_bytes()), Ok(()));
        assert_eq!(
            super::check_bytes("set name", b"a\xff").unwrap_err(),
            r#"set name "a\xff" is not UTF-8, so it cannot be serialized as a string"#
        );
    }
}
