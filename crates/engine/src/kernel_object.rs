//! Kernel objects that serve a frontend, for an operator: as they should be, and as they are.

/// A kernel object, or a part of one, in the notation of the standard tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelObject {
    /// As it should be, such as `-A 10.96.0.1:80/TCP -s rr`.
    pub desired: String,
    /// As it is.
    pub found: Found,
}

/// A kernel object as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// It is as it should be. The text has what else was read, such as counters; empty if there is nothing.
    Same(String),
    /// It exists with other attributes: as it was found.
    Different(String),
    /// It does not exist.
    Missing,
    /// It could not be read: the reason.
    Unknown(String),
    /// It was not read: there are too many.
    NotRead,
}

impl KernelObject {
    /// An object that is as it should be.
    #[must_use]
    pub fn same(desired: impl Into<String>) -> Self {
        Self {
            desired: desired.into(),
            found: Found::Same(String::new()),
        }
    }

    /// An object that does not exist.
    #[must_use]
    pub fn missing(desired: impl Into<String>) -> Self {
        Self {
            desired: desired.into(),
            found: Found::Missing,
        }
    }

    /// An object that exists with other attributes.
    #[must_use]
    pub fn different(desired: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            desired: desired.into(),
            found: Found::Different(found.into()),
        }
    }

    /// An object that could not be read.
    #[must_use]
    pub fn unknown(desired: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            desired: desired.into(),
            found: Found::Unknown(why.into()),
        }
    }
}
