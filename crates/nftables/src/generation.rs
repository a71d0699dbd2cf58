//! Generations of the ruleset.

/// A generation of the ruleset. Every transaction that changes something makes a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// The number; it wraps around and is never 0.
    pub id: u32,
    /// The process that made it, by its number in the initial PID namespace; only in notifications.
    pub pid: Option<u32>,
    /// The name of that process's thread; only in notifications.
    pub name: Option<Box<str>>,
}
