//! The numbers of desired objects.

use super::state::State;

/// The numbers of desired objects of userspace mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Listening ports.
    pub listeners: usize,
    /// Claims.
    pub claims: usize,
    /// Rules in portal chains, by family index.
    pub rules: [usize; 2],
}

impl State {}
