//! A test that can be turned around with `!`.

/// A value that a packet must have, or must not have (`!` before the option).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "invert")]
pub enum Condition<T> {
    /// The packet must have the value.
    Is(T),
    /// The packet must not have the value; written with `!`.
    Not(T),
}

impl<T> Condition<T> {
    /// The value, whichever way the test goes.
    pub fn value(&self) -> &T {
        match self {
            Condition::Is(value) | Condition::Not(value) => value,
        }
    }

    /// Whether the test is turned around.
    pub fn is_negated(&self) -> bool {
        matches!(self, Condition::Not(_))
    }

    /// The same test on another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Condition<U> {
        match self {
            Condition::Is(value) => Condition::Is(change(value)),
            Condition::Not(value) => Condition::Not(change(value)),
        }
    }
}

impl<T> From<T> for Condition<T> {
    fn from(value: T) -> Self {
        Condition::Is(value)
    }
}
