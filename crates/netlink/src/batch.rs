//! Many requests in few system calls.

use crate::{AttributeWriter, Error, Refusal, message};

/// Requests collected for [`Connection::execute`](crate::Connection::execute).
///
/// A batch is one growing buffer: pushing a request allocates nothing once the buffer is large
/// enough, and [`clear`](Self::clear) keeps it. Executing a batch does not consume it.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// Where each message ends.
    pub(crate) ends: Vec<usize>,
}

impl Batch {
    /// A batch without requests.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Appends a request. `flags` are `NLM_F_*` bits beyond `NLM_F_REQUEST`; acknowledgements are
    /// asked for by the connection where it needs them.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if an attribute outgrows 65 535 bytes; the batch is then as it was.
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
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all requests together.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// The requests as they are sent, headers included. Sequence numbers and acknowledgements are the
    /// connection's to set: a batch that was not executed yet has neither.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| {
            self.bytes
                .get(self.start(index)..self.start(index + 1))
                .unwrap_or(&[])
        })
    }

    /// Removes all requests and keeps the memory.
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

    /// How many requests from `first` on fit into one send: at least one.
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
        /// What the kernel repeats of the request behind its netlink header. Mostly empty; ipset
        /// marks the failing entry in it.
        echo: &'b [u8],
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_keeps_to_both_limits_and_is_never_empty() {
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
    fn a_request_that_is_too_large_leaves_the_batch_as_it_was() {
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
