//! Transactions of netfilter: a batch that the kernel executes as a whole or not at all.

use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR};

use super::{Connection, keep_warning};
use crate::{Batch, Error, Refusal, message};

/// A request of a transaction that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedRequest {
    /// Its index in the batch. 0 is the message that begins the transaction: the refusal concerns the transaction as a whole.
    pub index: usize,
    /// Why.
    pub refusal: Refusal,
}

impl Connection {
    /// Executes a batch as one transaction: all its requests, or none of them. The first request must be
    /// `NFNL_MSG_BATCH_BEGIN` and the last one `NFNL_MSG_BATCH_END`
    /// ([`nfnetlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netfilter/nfnetlink.h)). Returns the refused
    /// requests in order. If the list is empty, the transaction was committed. A batch with fewer than three requests has nothing
    /// to execute and is not sent.
    ///
    /// The batch is sent in one system call; the send buffer grows as far as the kernel permits. The request before the last
    /// one gets `NLM_F_ACK`, because kernels before 6.10 never acknowledge `NFNL_MSG_BATCH_END`. The kernel acknowledges it after
    /// the commit.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the batch is larger than the largest send buffer that the caller may have; nothing was sent.
    /// [`Error::Overrun`] and [`Error::TimedOut`] if the outcome is unknown. If answers were lost but a refusal was
    /// received, the result is the received refusals: nothing was executed.
    pub fn execute_transaction(&mut self, batch: &mut Batch) -> Result<Vec<RefusedRequest>, Error> {
        let Some(acknowledged) = batch.len().checked_sub(2).filter(|index| *index > 0) else {
            return Ok(Vec::new());
        };
        self.finish_unread_dump()?;
        let sequence = self.take_sequences(batch.len());
        for index in 0..batch.len() {
            let message = batch.start(index)..batch.start(index + 1);
            let more_flags = if index == acknowledged { NLM_F_ACK } else { 0 };
            if let Some(message) = batch.bytes.get_mut(message) {
                message::set_sequence(message, sequence.wrapping_add(index as u32), more_flags);
            }
        }
        self.transport.reserve_send(batch.bytes.len())?;
        self.transport.send(&batch.bytes)?;
        self.read_refusals(sequence, batch.len(), acknowledged)
    }

    fn read_refusals(
        &mut self,
        sequence: u32,
        requests: usize,
        acknowledged: usize,
    ) -> Result<Vec<RefusedRequest>, Error> {
        let mut refused = Vec::new();
        let (mut is_acknowledged, mut is_overrun) = (false, false);
        loop {
            // The kernel queues all answers before `send` returns: after the acknowledgement only what is queued is read.
            let timeout = match is_acknowledged || is_overrun {
                true => Some(Duration::ZERO),
                false => self.timeout,
            };
            let length = match self.transport.receive(&mut self.buffer, timeout) {
                Ok(Some(length)) => length,
                Ok(None) if !refused.is_empty() => break,
                // A refusal may be among the lost answers.
                Ok(None) if is_overrun => return Err(Error::Overrun),
                Ok(None) if is_acknowledged => break,
                Ok(None) => return Err(Error::TimedOut),
                Err(Error::Overrun) => {
                    is_overrun = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut rest = self.buffer.get(..length).unwrap_or(&[]);
            while let Some(received) = message::take_message(&mut rest) {
                let received = received?;
                let index = received.sequence.wrapping_sub(sequence) as usize;
                if index >= requests || !matches!(received.message_type, NLMSG_ERROR | NLMSG_DONE) {
                    continue;
                }
                match message::acknowledgement(&received)?.outcome {
                    Ok(warning) => keep_warning(&mut self.warnings, warning),
                    Err(refusal) => refused.push(RefusedRequest { index, refusal }),
                }
                // A refusal of the whole transaction is the only answer.
                is_acknowledged |= index == 0 || index == acknowledged;
            }
        }
        // Several answers to one request keep their order.
        refused.sort_by_key(|refused: &RefusedRequest| refused.index);
        Ok(refused)
    }
}

#[cfg(test)]
#[cfg(feature = "fake")]
mod tests {
    use super::*;
    use crate::{Errno, Script};

    fn batch(requests: usize) -> Batch {
        let mut batch = Batch::new();
        for kind in 0..requests {
            batch
                .push(kind as u16 + 16, 0, |w| {
                    w.ne_u32(1, 7);
                })
                .unwrap();
        }
        batch
    }

    fn executed(script: Script, requests: usize) -> Result<Vec<(usize, Errno)>, Error> {
        let refused = script
            .connect()
            .unwrap()
            .execute_transaction(&mut batch(requests))?;
        Ok(refused
            .into_iter()
            .map(|refused| (refused.index, refused.refusal.errno))
            .collect())
    }

    #[test]
    fn the_request_before_the_last_one_is_acknowledged() {
        let script = Script::new().expect_anything().acknowledge(2, Ok(()));
        assert_eq!(executed(script, 4), Ok(vec![]));
    }

    #[test]
    fn an_acknowledgement_after_refusals_is_not_success() {
        let script = Script::new()
            .expect_anything()
            .acknowledge(1, Err(Errno::ENOENT))
            .acknowledge(2, Err(Errno::EEXIST))
            .acknowledge(3, Ok(()));
        assert_eq!(
            executed(script, 5),
            Ok(vec![(1, Errno::ENOENT), (2, Errno::EEXIST)])
        );
    }

    #[test]
    fn a_refused_beginning_is_the_only_answer() {
        let script = Script::new().expect_anything().acknowledge(0, Err(Errno::EPERM));
        assert_eq!(executed(script, 4), Ok(vec![(0, Errno::EPERM)]));
    }

    #[test]
    fn lost_answers_leave_the_outcome_unknown_unless_a_refusal_was_received() {
        let lost = Script::new().expect_anything().fail(Error::Overrun);
        assert_eq!(executed(lost, 4), Err(Error::Overrun));
        let none = Script::new().expect_anything();
        assert_eq!(executed(none, 4), Err(Error::TimedOut));
        let refused = Script::new()
            .expect_anything()
            .fail(Error::Overrun)
            .acknowledge(1, Err(Errno::ENOENT));
        assert_eq!(executed(refused, 4), Ok(vec![(1, Errno::ENOENT)]));
    }

    #[test]
    fn refusals_in_another_order_than_the_requests_are_returned_in_order() {
        let reversed = Script::new()
            .expect_anything()
            .acknowledge(3, Err(Errno::EBUSY))
            .acknowledge(1, Err(Errno::ENOENT))
            .acknowledge(3, Ok(()));
        assert_eq!(
            executed(reversed, 5),
            Ok(vec![(1, Errno::ENOENT), (3, Errno::EBUSY)])
        );
    }

    #[test]
    fn a_refusal_after_the_acknowledgement_is_not_success() {
        let late = Script::new()
            .expect_anything()
            .acknowledge(3, Ok(()))
            .acknowledge(1, Err(Errno::ENOENT));
        assert_eq!(executed(late, 5), Ok(vec![(1, Errno::ENOENT)]));
        let lost = Script::new()
            .expect_anything()
            .acknowledge(3, Ok(()))
            .fail(Error::Overrun);
        assert_eq!(executed(lost, 5), Err(Error::Overrun));
    }

    #[test]
    fn an_answer_with_another_sequence_number_is_no_outcome() {
        let script = Script::new()
            .expect_anything()
            // To no request of the transaction.
            .acknowledge(usize::MAX, Err(Errno::EEXIST))
            .acknowledge(2, Ok(()));
        assert_eq!(executed(script, 4), Ok(vec![]));
    }

    #[test]
    fn a_batch_without_requests_between_begin_and_end_is_not_sent() {
        assert_eq!(executed(Script::new(), 2), Ok(vec![]));
        assert_eq!(executed(Script::new(), 0), Ok(vec![]));
    }
}
