//! Reading fields of a document with the path of the field in every error.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

/// A value and where it is in its object.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    value: Option<&'a Value>,
    path: Path<'a>,
}

/// Where a field is: a chain of names and positions, joined only when an error prints it.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Name(&'a Field<'a>, &'a str),
    Position(&'a Field<'a>, usize),
}

/// What was wrong with which field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) reason: String,
}

impl<'a> Field<'a> {
    pub(crate) fn root(value: &'a Value) -> Self {
        Self {
            value: Some(value),
            path: Path::Root,
        }
    }

    /// The field of this name; absent where the object is absent.
    pub(crate) fn get(&'a self, name: &'a str) -> Result<Field<'a>, FieldError> {
        let value = self.object()?.and_then(|object| object.get(name));
        Ok(Field {
            value,
            path: Path::Name(self, name),
        })
    }

    /// The value at a position of a list.
    fn at(&'a self, position: usize, value: &'a Value) -> Field<'a> {
        Field {
            value: Some(value),
            path: Path::Position(self, position),
        }
    }

    fn present(&self) -> Option<&'a Value> {
        self.value.filter(|value| !value.is_null())
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.present().is_none()
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> FieldError {
        FieldError {
            field: self.path.to_string(),
            reason: reason.into(),
        }
    }

    fn wrong_type(&self, wanted: &str, found: &Value) -> FieldError {
        self.error(format!("expected {wanted}, found {}", describe(found)))
    }

    fn object(&self) -> Result<Option<&'a Map<String, Value>>, FieldError> {
        match self.present() {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.wrong_type("an object", other)),
        }
    }

    /// The names of an object's fields; none where absent.
    #[cfg(feature = "kube-proxy-config")]
    pub(crate) fn names(&self) -> Result<Vec<&'a str>, FieldError> {
        Ok(self
            .object()?
            .map_or_else(Vec::new, |object| object.keys().map(String::as_str).collect()))
    }

    /// Names and values of an object whose values are strings; empty where absent.
    pub(crate) fn strings(&'a self) -> Result<Vec<(&'a str, &'a str)>, FieldError> {
        let Some(object) = self.object()? else {
            return Ok(Vec::new());
        };
        let mut strings = Vec::with_capacity(object.len());
        for name in object.keys() {
            let field = self.get(name)?;
            strings.push((name.as_str(), field.string()?.unwrap_or_default()));
        }
        Ok(strings)
    }

    /// Reads each item of a list; none where absent.
    pub(crate) fn list<T>(
        &'a self,
        mut read: impl FnMut(Field<'_>) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        self.items()?
            .iter()
            .enumerate()
            .map(|(position, item)| read(self.at(position, item)))
            .collect()
    }

    /// The items of a list as they are; none where absent.
    pub(crate) fn items(&self) -> Result<&'a [Value], FieldError> {
        match self.present() {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(self.wrong_type("a list", other)),
        }
    }

    pub(crate) fn string(&self) -> Result<Option<&'a str>, FieldError> {
        match self.present() {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type("a string", other)),
        }
    }

    /// A string that must be there and not be empty.
    pub(crate) fn required_string(&self) -> Result<&'a str, FieldError> {
        match self.string()? {
            Some(text) if !text.is_empty() => Ok(text),
            Some(_) => Err(self.error("must not be empty")),
            None => Err(self.error("is missing")),
        }
    }

    pub(crate) fn boolean(&self) -> Result<Option<bool>, FieldError> {
        match self.present() {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong_type("true or false", other)),
        }
    }

    pub(crate) fn integer(&self) -> Result<Option<i64>, FieldError> {
        match self.present() {
            None => Ok(None),
            Some(value @ Value::Number(number)) => number
                .as_i64()
                .map(Some)
                .ok_or_else(|| self.wrong_type("an integer", value)),
            Some(other) => Err(self.wrong_type("an integer", other)),
        }
    }

    /// A port; 0 where absent, and 0 only where `zero` allows it.
    pub(crate) fn port(&self, zero: Zero) -> Result<u16, FieldError> {
        match self.integer()? {
            None => Ok(0),
            Some(0) if zero == Zero::Allowed => Ok(0),
            Some(number @ 1..=65_535) => Ok(number as u16),
            Some(number) => Err(self.error(format!("{number} is not a port (1 to 65535)"))),
        }
    }

    /// Reads a string with a function; absent stays absent.
    pub(crate) fn parse<T>(
        &self,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(text) = self.string()? else {
            return Ok(None);
        };
        parse(text)
            .map(Some)
            .ok_or_else(|| self.error(format!("{text:?} is not {wanted}")))
    }
}

/// Whether a port may be given as 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zero {
    Allowed,
    Refused,
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Name(parent, name) => {
                if !matches!(parent.path, Path::Root) {
                    write!(f, "{}.", parent.path)?;
                }
                f.write_str(name)
            }
            Path::Position(parent, position) => write!(f, "{}[{position}]", parent.path),
        }
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) if text.chars().count() > 40 => {
            format!("the text {:?}…", text.chars().take(40).collect::<String>())
        }
        Value::String(text) => format!("the text {text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Gives out one allocation per distinct text: a manifest repeats node names, zones and namespaces over and over.
#[derive(Default)]
pub(crate) struct Interner(std::collections::HashSet<Arc<str>>);

impl Interner {
    pub(crate) fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = Arc::from(text);
        self.0.insert(Arc::clone(&new));
        new
    }
}
