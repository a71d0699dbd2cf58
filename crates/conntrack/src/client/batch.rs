//! Execution of operations.

use kernlink_netlink::{Batch, Errno, flags};

use super::{Client, Conntrack, failed};
use crate::error::Error;
use crate::flow::FlowKey;
use crate::new_flow::NewFlow;
use crate::operation::{FlushScope, Operation};
use crate::status::Status;
use crate::{uapi, wire};

impl Client {
    pub(super) fn flush_scope(&mut self, scope: FlushScope) -> Result<(), Error> {
        match scope {
            FlushScope::All => self
                .connection
                .execute_one(wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE), 0, |w| {
                    wire::flush_header(w, uapi::AF_UNSPEC);
                })
                .map_err(|source| Error::Failed {
                    operation: Box::new(Operation::Flush(scope)),
                    source,
                }),
            // Kernels before 5.3 ignore the family of this request and kernels before 6.8 the zone, so parts of the table are
            // deleted by a filter.
            _ => self.delete_matching(&scope.filter())?.into_result(),
        }
    }

    /// Sends operations on single flows in one batch. `outcomes` has the same length as `operations`.
    pub(super) fn execute_batch(&mut self, operations: &[Operation], outcomes: &mut [Result<(), Error>]) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        // The index of the operation of each request.
        let mut indices = Vec::with_capacity(operations.len());
        for (index, (operation, outcome)) in operations.iter().zip(outcomes.iter_mut()).enumerate() {
            let pushed = operation
                .check()
                .map_err(|problem| Error::Invalid {
                    operation: Box::new(operation.clone()),
                    problem,
                })
                .and_then(|()| push(&mut batch, operation).map_err(|source| failed(operation, source)));
            match pushed {
                Ok(()) => indices.push(index),
                Err(error) => *outcome = Err(error),
            }
        }
        let results = self.connection.execute(&mut batch);
        self.batch = batch;
        for (index, result) in indices.into_iter().zip(results) {
            if let (Err(source), Some(outcome), Some(operation)) =
                (result, outcomes.get_mut(index), operations.get(index))
            {
                *outcome = Err(failed(operation, source));
            }
        }
        self.explain_refusals(operations, outcomes);
        if let ([.., Operation::Ensure(flow)], Some(outcome)) = (operations, outcomes.last_mut())
            && outcome.as_ref().is_err_and(Error::is_busy)
        {
            *outcome = self.ensure_existing(flow);
        }
    }

    /// Distinguishes `EPERM` for a flow with a fixed timeout from a missing capability. A caller who can read the flow has the
    /// capability.
    fn explain_refusals(&mut self, operations: &[Operation], outcomes: &mut [Result<(), Error>]) {
        for (operation, outcome) in operations.iter().zip(outcomes) {
            let key = match (operation, &*outcome) {
                (Operation::Update(key, update), Err(error))
                    if update.timeout.is_some() && error.errno() == Some(Errno::EPERM) =>
                {
                    FlowKey { id: None, ..*key }
                }
                (Operation::Ensure(flow), Err(error)) if error.errno() == Some(Errno::EPERM) => flow.key(),
                _ => continue,
            };
            match (self.flow(&key), &mut *outcome) {
                (Ok(flow), Err(Error::Failed { operation, source }))
                    if flow.status.contains(Status::FIXED_TIMEOUT) =>
                {
                    *outcome = Err(Error::TimeoutFixed {
                        operation: operation.clone(),
                        source: source.clone(),
                    });
                }
                // Without the capability the other flows cannot be read either.
                (Err(error), _) if error.is_permission_denied() => return,
                _ => {}
            }
        }
    }

    /// Updates an existing flow with status bits that the kernel does not clear: the request has these bits too.
    fn ensure_existing(&mut self, new: &NewFlow) -> Result<(), Error> {
        let mut outcome = Ok(());
        // Packets may set SEEN_REPLY and ASSURED between reading and updating: two further attempts are enough.
        for _ in 0..3 {
            let mut flow = new.clone();
            match self.flow(&new.key()) {
                Ok(existing) => flow.status |= existing.status,
                // The flow ended: the request adds a new one.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
            outcome = self
                .connection
                .execute_one(
                    wire::flow_message(uapi::IPCTNL_MSG_CT_NEW),
                    flags::NLM_F_CREATE,
                    |w| wire::write_new_flow(w, &flow),
                )
                .map_err(|source| failed(&Operation::Ensure(new.clone()), source));
            if !outcome.as_ref().is_err_and(Error::is_busy) {
                break;
            }
        }
        outcome
    }
}

pub(super) fn push(batch: &mut Batch, operation: &Operation) -> Result<(), kernlink_netlink::Error> {
    let new = wire::flow_message(uapi::IPCTNL_MSG_CT_NEW);
    match operation {
        Operation::Add(flow) => batch.push(new, flags::NLM_F_CREATE | flags::NLM_F_EXCL, |w| {
            wire::write_new_flow(w, flow);
        }),
        Operation::Ensure(flow) => batch.push(new, flags::NLM_F_CREATE, |w| wire::write_new_flow(w, flow)),
        Operation::Update(key, update) => batch.push(new, 0, |w| wire::write_update(w, key, update)),
        Operation::Delete(key) => batch.push(wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE), 0, |w| {
            wire::write_key(w, key);
        }),
        // `execute` does not put these into a batch.
        Operation::DeleteMatching(_) | Operation::Flush(_) => Ok(()),
    }
}

fn is_single(operation: &Operation) -> bool {
    !matches!(operation, Operation::DeleteMatching(_) | Operation::Flush(_))
}

/// The number of operations of the next batch. An operation that may need a second request ends its batch, so that no later
/// operation is executed before that request.
pub(super) fn batch_length(operations: &[Operation]) -> usize {
    let may_need_second_request =
        |operation: &Operation| matches!(operation, Operation::Ensure(flow) if !flow.status.is_empty());
    let singles = operations
        .iter()
        .take_while(|operation| is_single(operation))
        .count();
    operations
        .iter()
        .take(singles)
        .position(may_need_second_request)
        .map_or(singles.max(1), |last| last + 1)
}
