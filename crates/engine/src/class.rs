//! What a kernel object is, for counts of operations and failures.

use kernlink_services::Family;

/// What a kernel object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// The kind, in lower case with underscores: a label of metrics.
    pub kind: &'static str,
    /// The family that it is for. `None`: all families.
    pub family: Option<Family>,
    /// Whether all Services of the family depend on it, such as the rules. As long as an operation on such an object fails, the family
    /// counts as not synced.
    pub is_shared: bool,
}
