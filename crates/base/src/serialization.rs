//! The feature `serde`: values are their notation.

#[doc(hidden)]
pub use serde;

/// Implements `serde::Serialize` by `Display` and, without `serialize only`, `serde::Deserialize` by `FromStr`: a value is a string, its
/// notation. The macro is for the crates of kernlink.
#[macro_export]
macro_rules! serde_as_text {
    (serialize only: $($type:ty),* $(,)?) => {$(
        impl $crate::serialization::serde::Serialize for $type {
            fn serialize<S>(&self, serializer: S) -> Result<S::Ok, S::Error>
            where
                S: $crate::serialization::serde::Serializer,
            {
                serializer.collect_str(self)
            }
        }
    )*};
    ($($type:ty),* $(,)?) => {
        $crate::serde_as_text!(serialize only: $($type),*);
        $(
            impl<'de> $crate::serialization::serde::Deserialize<'de> for $type {
                fn deserialize<D>(deserializer: D) -> Result<Self, D::Error>
                where
                    D: $crate::serialization::serde::Deserializer<'de>,
                {
                    let text = <String as $crate::serialization::serde::Deserialize>::deserialize(deserializer)?;
                    text.parse().map_err(<D::Error as $crate::serialization::serde::de::Error>::custom)
                }
            }
        )*
    };
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
}
