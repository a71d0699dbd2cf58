//! Operations on single flows, many in one batch.

use kernlink_netlink::{Batch, Errno, flags};

use super::{Client, Conntrack, failed};
use crate::error::Error;
use crate::flow::FlowKey;
use crate::new_flow::NewFlow;
use crate::operation::{Operation, Scope};
use crate::status::Status;
use crate::{uapi, wire};

impl Client {
    pub(super) fn flush_scope(&mut self, scope: Scope) -> Result<(), Error> {
        match scope {
            Scope::Everything => self
                .connection
                .acknowledged(wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE), 0, |w| {
                    wire::flush_header(w, uapi::AF_UNSPEC);
                })
                .map_err(|source| Error::Failed {
                    operation: Box::new(Operation::Flush(scope)),
                    source,
                }),
            // Kernels before 5.3 ignore the family here and those before 6.8 the zone. So parts of the
            // table are deleted by filter, which takes care.
            _ => self.delete_matching(&scope.filter())?.into_result(),
        }
    }

    /// Sends single-flow operations in one batch; `outcomes` has room for as many.
    pub(super) fn execute_batch(&mut self, operations: &[Operation], outcomes: &mut [Result<(), Error>]) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        // Which operation each request of the batch is.
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
            *outcome = self.ensure_present(flow);
        }
    }

    /// Tells `EPERM` for a flow whose timeout is fixed from a missing capability: who may look at the flow has it.
    fn explain_refusals(&mut self, operations: &[Operation], outcomes: &mut [Result<(), Error>]) {
        for (operation, outcome) in operations.iter().zip(outcomes) {
            let key = match (operation, &*outcome) {
                (Operation::Update(key, changes), Err(error))
                    if changes.timeout.is_some() && error.errno() == Some(Errno::EPERM) =>
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
                // Without the capability the others are not asked about.
                (Err(error), _) if error.is_permission_denied() => return,
                _ => {}
            }
        }
    }

    /// Changes a flow that is there and has status bits that the kernel keeps: they are asked for as well.
    fn ensure_present(&mut self, wanted: &NewFlow) -> Result<(), Error> {
        let mut outcome = Ok(());
        // Packets may set further bits meanwhile, of which there are two that matter.
        for _ in 0..3 {
            let mut flow = wanted.clone();
            match self.flow(&wanted.key()) {
                Ok(present) => flow.status |= present.status,
                // It ended meanwhile: a new one is made as it is wanted.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
            outcome = self
                .connection
                .acknowledged(
                    wire::flow_message(uapi::IPCTNL_MSG_CT_NEW),
                    flags::NLM_F_CREATE,
                    |w| wire::write_new_flow(w, &flow),
                )
                .map_err(|source| failed(&Operation::Ensure(wanted.clone()), source));
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
        Operation::Update(key, changes) => batch.push(new, 0, |w| wire::write_changes(w, key, changes)),
        Operation::Delete(key) => batch.push(wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE), 0, |w| {
            wire::write_key(w, key);
        }),
        // These two are no single message; `execute` does them apart.
        Operation::DeleteMatching(_) | Operation::Flush(_) => Ok(()),
    }
}

fn is_single(operation: &Operation) -> bool {
    !matches!(operation, Operation::DeleteMatching(_) | Operation::Flush(_))
}

/// How many operations go into one batch. What may have to be asked twice is the last one, so that nothing that
/// comes behind it has been executed then.
pub(super) fn batch_length(operations: &[Operation]) -> usize {
    let asks_twice =
        |operation: &Operation| matches!(operation, Operation::Ensure(flow) if !flow.status.is_empty());
    let singles = operations
        .iter()
        .take_while(|operation| is_single(operation))
        .count();
    operations
        .iter()
        .take(singles)
        .position(asks_twice)
        .map_or(singles.max(1), |last| last + 1)
}
