//! Deserialization of the fields that are used, and of no others.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::Used::{self, Items, Value as All};

impl Used {
    /// Deserializes what [`Self::reduce`] leaves. Nothing else is held in memory, and values that have no place in a [`Value`] have no effect.
    pub(in super::super) fn read(&self, text: &str) -> serde_json::Result<Value> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let value = self.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for &Used {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            All => Value::deserialize(deserializer),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for &Used {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            match self.of_field(&name) {
                Some(used) => _ = fields.insert(name, map.next_value_seed(used)?),
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        match self {
            Items(used) => {
                while let Some(item) = list.next_element_seed(*used)? {
                    items.push(item);
                }
            }
            _ => while list.next_element::<IgnoredAny>()?.is_some() {},
        }
        Ok(Value::Array(items))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
}
