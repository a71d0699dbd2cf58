//! The outcome of deleting several flows.

use crate::error::Error;
use crate::flow::FlowKey;

/// What became of flows that were to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deletion {
    /// How many were deleted; `None` if the kernel did it in one message: it does not count.
    pub deleted: Option<u64>,
    /// How many had ended, or given way to another flow, before their turn came.
    pub vanished: u64,
    /// Those that could not be deleted, and why.
    pub failed: Vec<(FlowKey, Error)>,
}

impl Deletion {
    /// An error if some flow could not be deleted.
    pub fn into_result(self) -> Result<(), Error> {
        let failed = self.failed.len() as u64;
        match self.failed.into_iter().next() {
            None => Ok(()),
            Some((_, first)) => Err(Error::Incomplete {
                deleted: self.deleted.unwrap_or(0),
                vanished: self.vanished,
                failed,
                first: Box::new(first),
            }),
        }
    }
}
