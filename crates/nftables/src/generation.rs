//! Generations of the ruleset.

/// A generation of the ruleset. Every transaction that changes something makes a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// The number; it wraps around and is never 0.
    pub id: u32,
    /// The thread that made it, by its number in the initial PID namespace; only in notifications. It is that of the process if it has one
    /// thread.
    pub pid: Option<u32>,
    /// The name of that thread; only in notifications.
    pub name: Option<Box<str>>,
}
