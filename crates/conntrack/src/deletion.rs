//! The outcome of deleting several flows.

use crate::error::Error;
use crate::flow::FlowKey;

/// The outcome of deleting several flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deletion {
    /// Number of deleted flows; `None` if the kernel deleted them by a filter, which returns no number.
    pub deleted: Option<u64>,
    /// Number of flows that did not exist any more, or whose tuple belongs to another flow now.
    pub not_found: u64,
    /// Flows that could not be deleted, with the error of each.
    pub failed: Vec<(FlowKey, Error)>,
}

impl Deletion {
    /// Converts failures to an error.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if a flow could not be deleted.
    pub fn into_result(self) -> Result<(), Error> {
        let failed = self.failed.len() as u64;
        match self.failed.into_iter().next() {
            None => Ok(()),
            Some((_, first)) => Err(Error::Incomplete {
                deleted: self.deleted.unwrap_or(0),
                not_found: self.not_found,
                failed,
                first: Box::new(first),
            }),
        }
    }
}
