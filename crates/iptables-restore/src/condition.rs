//! Tests that `!` can negate.

/// A value that the packet must have, or must not have (`!` before the option).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "invert")]
pub enum Condition<T> {
    /// The packet must have the value.
    Is(T),
    /// The packet must not have the value; rendered with `!`.
    Not(T),
}

impl<T> Condition<T> {
    /// The value, negated or not.
    pub fn value(&self) -> &T {
        match self {
            Condition::Is(value) | Condition::Not(value) => value,
        }
    }

    /// Whether it is [`Condition::Not`].
    pub fn is_negated(&self) -> bool {
        matches!(self, Condition::Not(_))
    }

    /// The same test of another value.
    #[must_use]
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
