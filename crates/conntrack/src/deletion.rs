//! What every table can do.

use std::fmt;

use kernlink_netlink::{Errno, Refusal};

use crate::error::Error;
use crate::filter::Filter;
use crate::flow::{Flow, FlowKey};
use crate::operation::{Changes, NewFlow, Operation, Scope};
use crate::stale_filter::StaleFlows;
use crate::statistics::Totals;
use crate::tuple::ZoneScope;

/// A connection-tracking table: the kernel's through [`Client`](crate::Client), or one in memory through `Fake` (feature
/// `fake`).
///
/// Your own implementation needs two methods: [`execute`](Self::execute) and [`flows`](Self::flows). A wrapper around a
/// [`Client`](crate::Client) should forward [`flow`](Self::flow), [`delete_matching`](Self::delete_matching),
/// [`delete_all`](Self::delete_all) and [`totals`](Self::totals) too: three of the provided ones list the table, and the
/// provided `totals` has no limit. [`Error::custom`] is for errors that do not come from the kernel.
///
/// ```
/// use kernlink_conntrack::{Conntrack, Error, Filter, Flows, Operation};
///
/// /// Does not empty the table.
/// struct Keeping<C>(C);
///
/// impl<C: Conntrack> Conntrack for Keeping<C> {
///     fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
///         let execute = |operation: &Operation| match operation {
///             Operation::Flush(_) => Err(Error::custom("empty the table", "the connections of this host must be kept")),
///             operation => self.0.execute_one(operation.clone()),
///         };
///         operations.iter().map(execute).collect()
///     }
///
///     fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
///         self.0.flows(filter)
///     }
/// }
/// ```
pub trait Conntrack: Send {
    /// Executes operations in order and returns one outcome for each, in order. A failed operation does not stop those
    /// behind it.
    ///
    /// [`Client`](crate::Client) sends many operations in few system calls. If the outcome of one of them is unknown, it does
    /// not send the later ones: [`Error::NotSent`].
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// Iterates over the flows that a filter accepts, in no order (`conntrack -L`).
    ///
    /// The table may change meanwhile. A flow that exists from the beginning to the end is listed once, except if the
    /// kernel's hash table is resized: then flows may be missing or listed twice.
    ///
    /// # Errors
    /// A contradictory filter. Other errors come as items.
    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error>;

    /// One flow (`conntrack -G`).
    ///
    /// The provided method lists all flows of the family and protocol.
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found), also if the tuple belongs to a flow with another `id`.
    fn flow(&mut self, key: &FlowKey) -> Result<Flow, Error> {
        key.tuple.check("tuple").map_err(|problem| Error::InvalidFilter {
            filter: key.to_string(),
            problem,
        })?;
        let filter = Filter::new()
            .with_family(key.tuple.family())
            .with_protocol(key.tuple.protocol);
        let flows = self.list(&filter)?;
        // The kernel looks in the zone as it concerns the original direction, then as it concerns the reply direction.
        let mut found = [ZoneScope::Original, ZoneScope::Reply]
            .into_iter()
            .filter_map(|scope| {
                let place = (key.zone.number_in(scope), key.tuple);
                flows.iter().find(|flow| {
                    place == (flow.zone.number_in(ZoneScope::Original), flow.original)
                        || place == (flow.zone.number_in(ZoneScope::Reply), flow.reply)
                })
            });
        found
            .next()
            .filter(|flow| key.id.is_none_or(|id| flow.id == id))
            .cloned()
            .ok_or(Error::Request {
                attempt: "look up a flow",
                source: kernlink_netlink::Error::Refused(Refusal::new(Errno::ENOENT)),
            })
    }

    /// Deletes all flows that a filter accepts (`conntrack -D`) and counts them. No such flow is not an error.
    ///
    /// The provided method lists the flows and deletes each by its [`key_by_reply`](Flow::key_by_reply).
    ///
    /// # Errors
    /// If nothing was tried: a filter without a condition or with contradictory ones, or a table
    /// that cannot be read. Flows that could not be deleted are in the outcome, by their
    /// [`key_by_reply`](Flow::key_by_reply).
    fn delete_matching(&mut self, filter: &Filter) -> Result<Deletion, Error> {
        let operation = Operation::DeleteMatching(filter.clone());
        operation.check().map_err(|problem| Error::Invalid {
            operation: Box::new(operation),
            problem,
        })?;
        let keys: Vec<FlowKey> = self
            .flows(filter)?
            .map(|flow| flow.map(|flow| flow.key_by_reply()))
            .collect::<Result<_, _>>()?;
        Ok(self.delete_all(&keys))
    }

    /// Deletes flows by identity and counts them.
    fn delete_all(&mut self, keys: &[FlowKey]) -> Deletion {
        let operations: Vec<Operation> = keys.iter().copied().map(Operation::Delete).collect();
        let mut deletion = Deletion {
            deleted: Some(0),
            ..Deletion::default()
        };
        let missing = std::iter::repeat_with(|| Err(Error::OutcomeMissing));
        for (key, outcome) in keys
            .iter()
            .zip(self.execute(&operations).into_iter().chain(missing))
        {
            match outcome {
                Ok(()) => *deletion.deleted.get_or_insert_default() += 1,
                Err(error) if error.is_not_found() => deletion.vanished += 1,
                Err(error) => deletion.failed.push((*key, error)),
            }
        }
        deletion
    }

    /// How full the table is (`conntrack -C`).
    ///
    /// The provided method counts the flows and returns no limit.
    fn totals(&mut self) -> Result<Totals, Error> {
        let mut count = 0_u32;
        for flow in self.flows(&Filter::new())? {
            flow?;
            count = count.saturating_add(1);
        }
        Ok(Totals {
            entries: count,
            limit: None,
        })
    }

    /// All flows that a filter accepts, in memory.
    fn list(&mut self, filter: &Filter) -> Result<Vec<Flow>, Error> {
        self.flows(filter)?.collect()
    }

    /// All flows that at least one of several filters accepts, each once, in one pass over the table. Without a filter,
    /// none. The kernel filters by the conditions that all of them have.
    ///
    /// # Errors
    /// A contradictory filter, and what goes wrong listing.
    fn list_any(&mut self, filters: &[Filter]) -> Result<Vec<Flow>, Error> {
        for filter in filters {
            filter.check().map_err(|problem| Error::InvalidFilter {
                filter: filter.to_string(),
                problem,
            })?;
        }
        let Some(common) = Filter::common(filters) else {
            return Ok(Vec::new());
        };
        self.flows(&common)?
            .filter(|flow| {
                flow.as_ref()
                    .map_or(true, |flow| filters.iter().any(|filter| filter.matches(flow)))
            })
            .collect()
    }

    /// Deletes all flows that at least one of several filters accepts, in one pass over the table, each by its
    /// [`key_by_reply`](Flow::key_by_reply), and counts them.
    ///
    /// # Errors
    /// As of [`delete_matching`](Self::delete_matching); a filter without a condition among them is refused.
    fn delete_any(&mut self, filters: &[Filter]) -> Result<Deletion, Error> {
        for filter in filters {
            let operation = Operation::DeleteMatching(filter.clone());
            operation.check().map_err(|problem| Error::Invalid {
                operation: Box::new(operation),
                problem,
            })?;
        }
        let keys: Vec<FlowKey> = self.list_any(filters)?.iter().map(Flow::key_by_reply).collect();
        Ok(self.delete_all(&keys))
    }

    /// Adds a flow (`conntrack -I`).
    ///
    /// # Errors
    /// [`is_already_exists`](Error::is_already_exists), [`is_table_full`](Error::is_table_full),
    /// [`is_unsupported`](Error::is_unsupported) for a helper that the kernel does not have,
    /// [`is_not_found`](Error::is_not_found) for a master that is not there.
    fn add(&mut self, flow: &NewFlow) -> Result<(), Error> {
        self.execute_one(Operation::Add(flow.clone()))
    }

    /// Adds a flow, or changes the one that exists; see [`Operation::Ensure`].
    ///
    /// # Errors
    /// As [`add`](Self::add) and [`update`](Self::update), without [`is_already_exists`](Error::is_already_exists);
    /// [`is_unsupported`](Error::is_unsupported) for translation, a master or another helper of a flow that is there.
    fn ensure(&mut self, flow: &NewFlow) -> Result<(), Error> {
        self.execute_one(Operation::Ensure(flow.clone()))
    }

    /// Changes a flow (`conntrack -U`).
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found), [`is_busy`](Error::is_busy) for status bits that
    /// cannot be taken away, [`is_timeout_fixed`](Error::is_timeout_fixed).
    fn update(&mut self, key: &FlowKey, changes: &Changes) -> Result<(), Error> {
        self.execute_one(Operation::Update(*key, changes.clone()))
    }

    /// Deletes one flow (`conntrack -D` with addresses and ports).
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found), also if the tuple belongs to a flow with another `id`
    /// by now. [`is_busy`](Error::is_busy) on old kernels for a flow that a flow table forwards.
    fn delete(&mut self, key: &FlowKey) -> Result<(), Error> {
        self.execute_one(Operation::Delete(*key))
    }

    /// Empties the table or a named part of it (`conntrack -F`).
    fn flush(&mut self, scope: Scope) -> Result<(), Error> {
        self.execute_one(Operation::Flush(scope))
    }

    /// The flows that are stale, in one pass over the table.
    fn stale(&mut self, question: &StaleFlows) -> Result<Vec<Flow>, Error> {
        if question.is_empty() {
            return Ok(Vec::new());
        }
        self.flows(&question.filter())?
            .filter(|flow| flow.as_ref().is_ok_and(|flow| question.is_stale(flow)) || flow.is_err())
            .collect()
    }

    /// Deletes the flows that are stale, in one pass over the table.
    ///
    /// Each is deleted by its [`key_by_reply`](Flow::key_by_reply), so that a later flow with the same original tuple but
    /// another destination is not deleted. The outcome names flows that could not be deleted by these keys.
    fn delete_stale(&mut self, question: &StaleFlows) -> Result<Deletion, Error> {
        let keys: Vec<FlowKey> = self.stale(question)?.iter().map(Flow::key_by_reply).collect();
        Ok(self.delete_all(&keys))
    }

    /// Executes one operation.
    fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
        self.execute(&[operation])
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }
}

/// Iterator over flows; see [`Conntrack::flows`].
pub struct Flows<'a>(Box<dyn Iterator<Item = Result<Flow, Error>> + 'a>);

impl<'a> Flows<'a> {
    /// Iterates over what an implementation of [`Conntrack`] has found.
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
