//! Batches: many requests in few system calls.

use crate::{AttributeWriter, Error, Refusal, message};

/// Requests collected for [`Connection::execute`](crate::Connection::execute).
///
/// All requests are in one buffer. [`clear`](Self::clear) keeps its memory, so a reused batch does not
/// allocate. Executing a batch does not consume it.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// The end of each message in `bytes`.
    pub(crate) ends: Vec<usize>,
}

impl Batch {
    /// A batch without requests.
    #[must_use]
    pub fn new() -> Self {
        Batch::default()
    }

    /// Appends a request. `flags` are `NLM_F_*` bits in addition to `NLM_F_REQUEST`. The connection sets `NLM_F_ACK`
    /// where it needs an acknowledgement.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if an attribute is longer than 65 535 bytes; the batch is then unchanged.
    pub fn push(
        &mut self,
        message_type: u16,
        flags: u16,
        write: impl FnOnce(&mut AttributeWriter<'_>),
    ) -> Result<(), Error> {
        message::append(&mut self.bytes, message_type, flags, write)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Length of all requests in bytes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// The requests as they are sent, including headers. The connection sets sequence numbers and `NLM_F_ACK` when it
    /// executes the batch; before that they are 0.
    #[must_use]
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| {
            self.bytes
                .get(self.start(index)..self.start(index + 1))
                .unwrap_or(&[])
        })
    }

    /// Removes all requests. Keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(crate) fn start(&self, index: usize) -> usize {
        index
            .checked_sub(1)
            .and_then(|previous| self.ends.get(previous))
            .copied()
            .unwrap_or(0)
    }

    /// The number of requests, starting at `first`, that fit into one send: at least one.
    pub(crate) fn chunk(&self, first: usize, max_requests: usize, max_bytes: usize) -> usize {
        let start = self.start(first);
        let ends = self.ends.get(first..).unwrap_or(&[]);
        let fitting = ends
            .iter()
            .take(max_requests)
            .take_while(|end| **end - start <= max_bytes)
            .count();
        fitting.max(1).min(ends.len())
    }
}

/// What the kernel sends back for one request of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply<'b> {
    /// A message with content.
    Message(crate::Message<'b>),
    /// The kernel refused the request.
    Refused {
        /// Why.
        refusal: &'b Refusal,
        /// The part of the request that the kernel repeats, without the netlink header. Usually empty; ipset
        /// writes the number of the failing entry to it.
        echo: &'b [u8],
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_respects_both_limits_and_is_never_empty() {
        let mut batch = Batch::new();
        for _ in 0..5 {
            batch
                .push(1, 0, |w| {
                    w.ne_u32(1, 7);
                })
                .unwrap();
        }
        assert_eq!(batch.byte_len(), 5 * 24);
        assert_eq!(batch.chunk(0, 3, 10_000), 3);
        assert_eq!(batch.chunk(3, 3, 10_000), 2);
        assert_eq!(batch.chunk(1, 100, 48), 2);
        assert_eq!(batch.chunk(1, 100, 1), 1);
    }

    #[test]
    fn a_request_that_is_too_large_leaves_the_batch_unchanged() {
        let mut batch = Batch::new();
        batch
            .push(1, 0, |w| {
                w.flag(1);
            })
            .unwrap();
        let error = batch
            .push(1, 0, |w| {
                w.nested(2, |w| {
                    w.bytes(3, &[0; 65_530]);
                });
            })
            .unwrap_err();
        assert_eq!(
            error,
            Error::TooLarge {
                what: "an attribute",
                limit: 65_535
            }
        );
        assert_eq!((batch.len(), batch.byte_len()), (1, 20));
    }
}
