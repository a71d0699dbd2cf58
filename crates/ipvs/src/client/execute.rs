//! Executing operations over netlink.

use kernlink_base::KernelRelease;
use kernlink_netlink::Errno;

use super::Client;
use super::namespace::has_local_table;
use crate::error::{Error, InvalidOperation};
use crate::modules::ModuleLookup;
use crate::operation::Operation;
use crate::real_server::TunnelKind;
use crate::reason::Reason;

/// How many operations are encoded before they are sent. This is about one send: a socket accepts 208 KiB at once, and an operation
/// has about 100 bytes. Larger chunks would not save system calls and would not fit the processor's caches.
const OPERATIONS_PER_CHUNK: usize = 1500;

/// The type of a message without effect that the kernel acknowledges. It is sent after operations that stop a daemon.
///
/// If a daemon is stopped before its thread has run, `kthread_stop` returns `EINTR`
/// ([`kthread.c`](https://github.com/torvalds/linux/blob/v6.1/kernel/kthread.c)). This is the only error for which netlink sends no
/// acknowledgement (`netlink_rcv_skb` in [`af_netlink.c`](https://github.com/torvalds/linux/blob/v6.1/net/netlink/af_netlink.c)).
const NLMSG_NOOP: u16 = 1;

impl Client {
    /// One outcome for each operation, in order. After a lost answer the rest of the operations is not sent.
    pub(super) fn execute_chunks(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        for chunk in operations.chunks(OPERATIONS_PER_CHUNK) {
            if !self.execute_chunk(chunk, &mut outcomes) {
                break;
            }
        }
        let not_sent = operations.iter().skip(outcomes.len()).map(|operation| {
            Err(Error::Transport {
                operation: Box::new(operation.clone()),
                source: kernlink_netlink::Error::NotSent,
            })
        });
        outcomes.extend(not_sent);
        outcomes
    }

    /// Appends the outcomes of one chunk. Returns whether the next chunk may be sent.
    fn execute_chunk(&mut self, operations: &[Operation], outcomes: &mut Vec<Result<(), Error>>) -> bool {
        let not_loaded = self.loading.prepare(operations);
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let first = outcomes.len();
        for operation in operations {
            let outcome = match self.check_kernel_support(operation) {
                Ok(()) => not_loaded.check(operation),
                Err(problem) => Err(Error::Invalid {
                    operation: Box::new(operation.clone()),
                    problem,
                }),
            };
            outcomes.push(outcome.and_then(|()| operation.encode(self.family, &mut batch)));
        }
        if operations
            .iter()
            .any(|operation| matches!(operation, Operation::StopDaemon(_)))
        {
            let _an_empty_message_fits = batch.push(NLMSG_NOOP, 0, |_| {});
        }
        let answers = self.connection.execute(&mut batch);
        self.batch = batch;
        let may_continue = !answers.iter().any(|answer| match answer {
            Ok(()) | Err(kernlink_netlink::Error::Overrun) => false,
            Err(error) => error.is_outcome_unknown() || *error == kernlink_netlink::Error::NotSent,
        });
        let mut answers = answers.into_iter();
        let outcomes = outcomes.get_mut(first..).unwrap_or_default();
        let sent = operations
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| outcome.is_ok());
        let mut modules = ModuleLookup::default();
        for (operation, outcome) in sent {
            let Some(mut answer) = answers.next() else { break };
            if operation.is_two_requests() {
                let update = answers.next().unwrap_or(Ok(()));
                answer = match answer {
                    Err(error) if update.is_err() && error.errno() != Some(Errno::EEXIST) => Err(error),
                    _ => update,
                };
            }
            if let Err(error) = answer {
                *outcome = Err(self.explain(operation, error, &mut modules));
            }
        }
        may_continue
    }

    /// Refuses what an older kernel would ignore: tunnel attributes before Linux 5.3.
    fn check_kernel_support(&mut self, operation: &Operation) -> Result<(), InvalidOperation> {
        let (Operation::AddRealServer { real_server, .. }
        | Operation::UpdateRealServer { real_server, .. }
        | Operation::EnsureRealServer { real_server, .. }) = operation
        else {
            return Ok(());
        };
        if real_server.tunnel.kind == TunnelKind::Ipip {
            return Ok(());
        }
        if self.release.is_none() {
            self.release = KernelRelease::current().ok();
        }
        match self.release {
            Some(release) if release < KernelRelease::new(5, 3) => {
                Err(InvalidOperation::TunnelKind { release })
            }
            _ => Ok(()),
        }
    }

    /// The error of a refused operation. Its reason is derived from the operation, the error number, the state of the network
    /// namespace and the installed modules.
    fn explain(
        &self,
        operation: &Operation,
        error: kernlink_netlink::Error,
        modules: &mut ModuleLookup,
    ) -> Error {
        let kernlink_netlink::Error::Refused(refusal) = error else {
            return Error::Transport {
                operation: Box::new(operation.clone()),
                source: error,
            };
        };
        let reason = match (Reason::of(operation, refusal.errno), operation) {
            (
                Reason::Unexplained,
                Operation::AddRealServer { real_server, .. }
                | Operation::UpdateRealServer { real_server, .. }
                | Operation::EnsureRealServer { real_server, .. },
            ) if refusal.errno == Errno::EINVAL && real_server.key.address.is_ipv4() => {
                match self.in_namespace(has_local_table) {
                    Ok(Some(false)) => Reason::LoopbackDown,
                    // The only addresses left that the kernel does not accept as unicast.
                    Ok(Some(true)) => Reason::ForbiddenAddress {
                        address: real_server.key.address,
                        kind: "a broadcast address of this network namespace",
                    },
                    Ok(None) | Err(_) => Reason::Unexplained,
                }
            }
            (reason, _) => modules.refine(reason),
        };
        Error::refused(operation, refusal.errno, reason)
    }
}

#[cfg(test)]
mod tests {
    use kernlink_netlink::Batch;

    use super::super::load::Loading;
    use super::super::namespace::ClientNamespace;
    use super::*;
    use crate::client::Ipvs;

    #[test]
    fn nothing_is_sent_after_a_timeout() {
        // The script has one send without an answer and fails on another one.
        let script = kernlink_netlink::Script::new().expect_anything();
        let mut client = Client {
            connection: script.connect().unwrap(),
            family: 0x20,
            batch: Batch::new(),
            namespace: ClientNamespace::current().unwrap(),
            loading: Loading::default(),
            release: None,
            has_many: false,
        };
        let operations = vec![Operation::Flush; OPERATIONS_PER_CHUNK + 10];
        let outcomes = client.execute(&operations);
        assert_eq!(outcomes.len(), operations.len());
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let Error::Transport { source, .. } = outcome.unwrap_err() else {
                panic!("{index}")
            };
            let is_sent = index < OPERATIONS_PER_CHUNK;
            assert_eq!(source.is_outcome_unknown(), is_sent, "{index}: {source}");
            assert_eq!(source == kernlink_netlink::Error::NotSent, !is_sent, "{index}");
        }
    }
}
