//! Listings of flows.

use std::fmt;

use crate::error::Error;
use crate::flow::Flow;

/// Iterator over flows; see [`Conntrack::flows`](crate::Conntrack::flows).
pub struct Flows<'a>(Box<dyn Iterator<Item = Result<Flow, Error>> + 'a>);

impl<'a> Flows<'a> {
    /// A listing of an implementation of [`Conntrack`](crate::Conntrack).
    pub fn new(flows: impl Iterator<Item = Result<Flow, Error>> + 'a) -> Self {
        Flows(Box::new(flows))
    }
}

impl Iterator for Flows<'_> {
    type Item = Result<Flow, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl fmt::Debug for Flows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flows").finish_non_exhaustive()
    }
}
