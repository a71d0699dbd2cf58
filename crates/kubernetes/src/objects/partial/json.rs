//! Deserialization of partial objects. Null is an absent field, as for the API server. An object is never read from a list, which derived code
//! accepts.

use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::label::Label;
use super::time::Time;

/// A value that is an object.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object_<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object_<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_any(Object_(PhantomData)).map(Self)
    }
}

/// An object that may be absent.
pub(super) fn object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let object = Option::<Object<T>>::deserialize(deserializer)?;
    Ok(object.map(|object| object.0))
}

/// A list of objects.
pub(super) fn objects<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let objects = Option::<Vec<Object<T>>>::deserialize(deserializer)?;
    Ok(objects
        .unwrap_or_default()
        .into_iter()
        .map(|object| object.0)
        .collect())
}

/// A list of texts.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A text; `None` for any other value.
pub(super) fn text_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct Text;

    impl<'de> Visitor<'de> for Text {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a value")
        }

        fn visit_str<E>(self, text: &str) -> Result<Option<String>, E> {
            Ok(Some(text.to_owned()))
        }

        fn visit_unit<E>(self) -> Result<Option<String>, E> {
            Ok(None)
        }

        fn visit_bool<E>(self, _: bool) -> Result<Option<String>, E> {
            Ok(None)
        }

        fn visit_i64<E>(self, _: i64) -> Result<Option<String>, E> {
            Ok(None)
        }

        fn visit_u64<E>(self, _: u64) -> Result<Option<String>, E> {
            Ok(None)
        }

        fn visit_f64<E>(self, _: f64) -> Result<Option<String>, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Option<String>, A::Error> {
            IgnoredAny.visit_seq(list).map(|_| None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<String>, A::Error> {
            IgnoredAny.visit_map(map).map(|_| None)
        }
    }

    deserializer.deserialize_any(Text)
}

/// A time as text.
pub(super) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let time = text.map(|text| text.parse::<Timestamp>().map_err(D::Error::custom));
    Ok(time.transpose()?.map(Time::from))
}

/// The labels or annotations that may be used.
pub(super) fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Label>, D::Error> {
    struct Labels;

    impl<'de> Visitor<'de> for Labels {
        type Value = Vec<Label>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<Vec<Label>, E> {
            Ok(Vec::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Label>, A::Error> {
            let mut labels = Vec::new();
            while let Some(name) = map.next_key::<String>()? {
                if !Label::is_used(&name) {
                    map.next_value::<IgnoredAny>()?;
                } else if let Some(value) = map.next_value::<Option<String>>()? {
                    labels.push(Label::new(name, value));
                }
            }
            Ok(labels)
        }
    }

    deserializer.deserialize_any(Labels)
}
