//! Values that replace fields of a file.

use serde_json::{Map, Value};

/// A value that replaces a field of the file, for [`read_with`](super::read_with).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override<'a> {
    /// The path of the field, such as `ipvs.scheduler`.
    pub field: &'a str,
    /// The value.
    pub value: OverrideValue,
}

/// The value of an [`Override`]: one of the types that the fields of the file have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideValue {
    /// A text, also a duration, an address or a network.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
    /// A whole number.
    Number(i64),
    /// True or false.
    Bool(bool),
}

impl Override<'_> {
    /// Sets the field in the tree of the file. A value that should be an object and is not one stays, so that it is reported.
    pub(super) fn apply(&self, file: &mut Value) {
        let mut value = file;
        for name in self.field.split('.') {
            if value.is_null() {
                *value = Value::Object(Map::new());
            }
            let Value::Object(fields) = value else {
                return;
            };
            value = fields.entry(name).or_insert(Value::Null);
        }
        *value = match &self.value {
            OverrideValue::Text(text) => Value::from(text.as_str()),
            OverrideValue::List(list) => Value::from(list.as_slice()),
            OverrideValue::Number(number) => Value::from(*number),
            OverrideValue::Bool(bool) => Value::from(*bool),
        };
    }
}
