//! Errors about fields.

use std::fmt::{self, Write};

use kernlink_services::escape::EscapeWriter;

/// A field with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FieldError {
    /// The path of the field in its object, such as `spec.ports[0].port`; empty for the object as a whole.
    pub field: String,
    /// What is invalid, and what is valid.
    pub reason: String,
}

impl fmt::Display for FieldError {
    /// `field: reason` on one line; control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.reason)
    }
}

impl FieldError {
    /// The error with its path inside another field.
    #[cfg(feature = "objects")]
    pub(crate) fn inside(self, parent: impl fmt::Display) -> Self {
        let needs_dot = !self.field.is_empty() && !self.field.starts_with('[');
        let dot = if needs_dot { "." } else { "" };
        Self {
            field: format!("{parent}{dot}{}", self.field),
            reason: self.reason,
        }
    }
}

/// The invalid fields of one object. Serde finds wrong types in a first pass, then the conversion finds invalid values.
#[cfg(any(feature = "objects", feature = "kube-proxy-config"))]
#[derive(Debug)]
pub(crate) struct FieldErrors {
    list: Vec<FieldError>,
    /// `list[..reset]` are type errors of the first pass. Their fields were reset to defaults, and the second pass must not report anything
    /// inside them.
    reset: usize,
    /// Whether one of them makes the whole object invalid.
    is_fatal: bool,
}

#[cfg(any(feature = "objects", feature = "kube-proxy-config"))]
impl FieldErrors {
    /// The errors of the first pass.
    pub(crate) fn of_types(list: Vec<FieldError>) -> Self {
        let reset = list.len();
        Self {
            is_fatal: reset > 0,
            list,
            reset,
        }
    }

    /// A field without whose value the object has no meaning.
    pub(crate) fn add(&mut self, field: impl fmt::Display, reason: impl Into<String>) {
        self.is_fatal = true;
        self.ignore(field, reason);
    }

    /// A field, or an item of a list, that is ignored: the object is converted without it.
    pub(crate) fn ignore(&mut self, field: impl fmt::Display, reason: impl Into<String>) {
        let field = field.to_string();
        let is_reset = |error: &FieldError| {
            field.strip_prefix(&error.field).is_some_and(|rest| {
                error.field.is_empty() || rest.is_empty() || rest.starts_with('.') || rest.starts_with('[')
            })
        };
        if !self.list.iter().take(self.reset).any(is_reset) {
            let reason = reason.into();
            self.list.push(FieldError { field, reason });
        }
    }

    /// Whether none of the errors makes the whole object invalid.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_fatal
    }

    pub(crate) fn into_vec(self) -> Vec<FieldError> {
        self.list
    }
}
