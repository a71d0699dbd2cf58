//! The trait [`Conntrack`], and its implementation by the kernel.

mod batch;
mod diagnostics;
mod expectations;
mod filtering;

use std::time::Duration;

use kernlink_base::Family;
use kernlink_netlink::{Batch, Connection, Errno, Namespace, Refusal};

use self::batch::{batch_length, push};
use self::filtering::Ipv6Comparison;
use crate::deletion::Deletion;
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::{Flow, FlowKey};
use crate::flow_update::FlowUpdate;
use crate::flows::Flows;
use crate::new_flow::NewFlow;
use crate::operation::{FlushScope, Operation};
use crate::stale_filter::StaleFilter;
use crate::statistics::Totals;
use crate::zone::ZoneDirection;
use crate::{uapi, wire};

/// A connection-tracking table. [`Client`] is the table of the kernel, `Fake` (feature `fake`) a table in memory.
///
/// An implementation needs two methods: [`execute`](Self::execute) and [`flows`](Self::flows). A wrapper around a [`Client`] should
/// also forward [`flow`](Self::flow), [`delete_matching`](Self::delete_matching), [`delete_many`](Self::delete_many) and
/// [`totals`](Self::totals): three of the provided methods list the table, and the provided `totals` has no limit.
/// [`Error::custom`] makes errors that do not come from the kernel.
///
/// ```
/// use kernlink_conntrack::{Conntrack, Error, Filter, Flows, Operation};
///
/// /// Refuses to flush.
/// struct WithoutFlush<C>(C);
///
/// impl<C: Conntrack> Conntrack for WithoutFlush<C> {
///     fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
///         let execute = |operation: &Operation| match operation {
///             Operation::Flush(_) => Err(Error::custom("flush the table", "flushing is disabled")),
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
    /// Executes operations in order and returns one outcome for each, in order. Operations after a failed one are executed.
    ///
    /// [`Client`] sends many operations in few system calls. If the outcome of one of them is unknown, it does not send the later
    /// ones: [`Error::NotSent`].
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// Iterates over the flows that match a filter, in no particular order (`conntrack -L`).
    ///
    /// The table may change during the listing. A flow that exists from the beginning to the end of the listing is returned once,
    /// except if the kernel's hash table is resized: then flows may be missing or returned twice.
    ///
    /// # Errors
    /// [`Error::InvalidFilter`] for a contradictory filter. Other errors are items of the iterator.
    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error>;

    /// Returns one flow (`conntrack -G`).
    ///
    /// The provided method lists all flows of the family and protocol.
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found), also if the flow with this tuple has another `id`.
    fn flow(&mut self, key: &FlowKey) -> Result<Flow, Error> {
        key.tuple.check("tuple").map_err(|problem| Error::InvalidFilter {
            filter: key.to_string(),
            problem,
        })?;
        let filter = Filter::new()
            .with_family(key.tuple.family())
            .with_protocol(key.tuple.protocol);
        let flows = self.list(&filter)?;
        // The kernel looks up the zone id of the original direction first, then that of the reply direction.
        let mut found = [ZoneDirection::Original, ZoneDirection::Reply]
            .into_iter()
            .filter_map(|direction| {
                let place = (key.zone.id_in(direction), key.tuple);
                flows.iter().find(|flow| {
                    place == (flow.zone.id_in(ZoneDirection::Original), flow.original)
                        || place == (flow.zone.id_in(ZoneDirection::Reply), flow.reply)
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

    /// Deletes all flows that match a filter (`conntrack -D`) and counts them. It is not an error if no flow matches.
    ///
    /// The provided method lists the flows and deletes each by its [`key_by_reply`](Flow::key_by_reply).
    ///
    /// # Errors
    /// If no deletion was attempted: the filter has no condition or is contradictory, or the table cannot be listed. Flows
    /// that could not be deleted are in [`Deletion::failed`], by their [`key_by_reply`](Flow::key_by_reply).
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
        Ok(self.delete_many(&keys))
    }

    /// Deletes flows by key and counts them.
    fn delete_many(&mut self, keys: &[FlowKey]) -> Deletion {
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
                Err(error) if error.is_not_found() => deletion.not_found += 1,
                Err(error) => deletion.failed.push((*key, error)),
            }
        }
        deletion
    }

    /// The number of flows and its limit (`conntrack -C`).
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

    /// Collects all flows that match a filter.
    ///
    /// # Errors
    /// As [`flows`](Self::flows), and the first error of the listing.
    fn list(&mut self, filter: &Filter) -> Result<Vec<Flow>, Error> {
        self.flows(filter)?.collect()
    }

    /// Collects all flows that match at least one of several filters, each once, with one listing of the table. An empty list of
    /// filters matches no flow. The kernel compares the conditions that all filters have in common.
    ///
    /// # Errors
    /// As [`list`](Self::list).
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

    /// Deletes all flows that match at least one of several filters, with one listing of the table, each by its
    /// [`key_by_reply`](Flow::key_by_reply), and counts them.
    ///
    /// # Errors
    /// As [`delete_matching`](Self::delete_matching). Every filter must have a condition.
    fn delete_any(&mut self, filters: &[Filter]) -> Result<Deletion, Error> {
        for filter in filters {
            let operation = Operation::DeleteMatching(filter.clone());
            operation.check().map_err(|problem| Error::Invalid {
                operation: Box::new(operation),
                problem,
            })?;
        }
        let keys: Vec<FlowKey> = self.list_any(filters)?.iter().map(Flow::key_by_reply).collect();
        Ok(self.delete_many(&keys))
    }

    /// Adds a flow (`conntrack -I`).
    ///
    /// # Errors
    /// [`is_already_exists`](Error::is_already_exists), [`is_table_full`](Error::is_table_full),
    /// [`is_unsupported`](Error::is_unsupported) for a helper that the kernel does not have,
    /// [`is_not_found`](Error::is_not_found) for a master that does not exist.
    fn add(&mut self, flow: &NewFlow) -> Result<(), Error> {
        self.execute_one(Operation::Add(flow.clone()))
    }

    /// Adds a flow, or updates the existing one; see [`Operation::Ensure`].
    ///
    /// # Errors
    /// As [`add`](Self::add) and [`update`](Self::update), without [`is_already_exists`](Error::is_already_exists);
    /// [`is_unsupported`](Error::is_unsupported) for address translation, a master or another helper of an existing flow.
    fn ensure(&mut self, flow: &NewFlow) -> Result<(), Error> {
        self.execute_one(Operation::Ensure(flow.clone()))
    }

    /// Updates a flow (`conntrack -U`).
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found), [`is_busy`](Error::is_busy) for status bits that
    /// cannot be cleared, [`is_timeout_fixed`](Error::is_timeout_fixed).
    fn update(&mut self, key: &FlowKey, update: &FlowUpdate) -> Result<(), Error> {
        self.execute_one(Operation::Update(*key, update.clone()))
    }

    /// Deletes one flow (`conntrack -D` with addresses and ports).
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found), also if the flow with this tuple has another `id`.
    /// [`is_busy`](Error::is_busy) on old kernels for a flow that a flow table forwards.
    fn delete(&mut self, key: &FlowKey) -> Result<(), Error> {
        self.execute_one(Operation::Delete(*key))
    }

    /// Deletes all flows of a scope (`conntrack -F`).
    ///
    /// # Errors
    /// [`is_permission_denied`](Error::is_permission_denied); [`Error::Incomplete`] if flows of a family or zone could not be
    /// deleted.
    fn flush(&mut self, scope: FlushScope) -> Result<(), Error> {
        self.execute_one(Operation::Flush(scope))
    }

    /// Collects the stale flows, with one listing of the table. An empty filter lists nothing.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn list_stale(&mut self, filter: &StaleFilter) -> Result<Vec<Flow>, Error> {
        if filter.is_empty() {
            return Ok(Vec::new());
        }
        self.flows(&filter.common_filter())?
            .filter(|flow| flow.as_ref().is_ok_and(|flow| filter.is_stale(flow)) || flow.is_err())
            .collect()
    }

    /// Deletes the stale flows, with one listing of the table.
    ///
    /// Each is deleted by its [`key_by_reply`](Flow::key_by_reply), so that a later flow with the same original tuple but
    /// another destination is not deleted. [`Deletion::failed`] has these keys.
    ///
    /// # Errors
    /// As [`list_stale`](Self::list_stale).
    fn delete_stale(&mut self, filter: &StaleFilter) -> Result<Deletion, Error> {
        let keys: Vec<FlowKey> = self.list_stale(filter)?.iter().map(Flow::key_by_reply).collect();
        Ok(self.delete_many(&keys))
    }

    /// Executes one operation.
    ///
    /// # Errors
    /// The error of the operation; [`Error::OutcomeMissing`] if [`execute`](Self::execute) returned no outcome.
    fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
        self.execute(&[operation])
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }
}

/// How much filtering is left to the kernel. Flows that the kernel lists are compared with the filter again in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelFiltering {
    /// As much as the running kernel supports: listing (Linux 5.8) and deleting (Linux 6.11). The default.
    #[default]
    Full,
    /// Listing only. Flows to delete are listed and deleted one by one by their key, and counted. Clients of kernels before 6.11
    /// always do so.
    Listing,
    /// By family only. The other conditions are compared in this process.
    Off,
}

/// The kernel's connection-tracking table of one network namespace, over netlink.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    filtering: KernelFiltering,
    /// Whether the kernel supports filters in listings; `None` until it was probed.
    filters_listings: Option<bool>,
    /// Whether it compares reply tuples and masked marks of such a filter correctly; `None` until it was probed.
    compares_reply_tuples: Option<bool>,
    /// Whether it supports filters in deletions; `None` until it was probed.
    filters_deletions: Option<bool>,
    ipv6: Ipv6Comparison,
    batch: Batch,
}

impl Client {
    /// Opens a client in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`is_module_missing`](Error::is_module_missing), [`is_permission_denied`](Error::is_permission_denied).
    pub fn open() -> Result<Self, Error> {
        let connection = Connection::open(kernlink_netlink::Protocol::Netfilter);
        Self::connect(connection)
    }

    /// Opens a client in another network namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`open`](Self::open), and errors of entering the namespace.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Self::connect(Connection::open_in(
            kernlink_netlink::Protocol::Netfilter,
            namespace,
        ))
    }

    /// A client that uses a connection of [`Protocol::Netfilter`](kernlink_netlink::Protocol::Netfilter).
    #[must_use]
    pub fn from_connection(connection: Connection) -> Self {
        Client {
            connection,
            filtering: KernelFiltering::Full,
            filters_listings: None,
            compares_reply_tuples: None,
            filters_deletions: None,
            ipv6: Ipv6Comparison::Unknown,
            batch: Batch::new(),
        }
    }

    /// Limits the filtering that is left to the kernel. [`KernelFiltering::Full`] by default.
    pub fn set_kernel_filtering(&mut self, filtering: KernelFiltering) {
        self.filtering = filtering;
    }

    /// Sets the timeout for each answer of the kernel; `None` waits without limit. The default is 30 seconds. An operation
    /// that timed out may have been executed ([`Error::is_outcome_unknown`]); later operations of the same call are not sent.
    ///
    /// # Errors
    /// If the socket cannot be configured.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.connection
            .set_timeout(timeout)
            .map_err(request_failed("set the timeout"))
    }

    fn connect(connection: Result<Connection, kernlink_netlink::Error>) -> Result<Self, Error> {
        let connection = connection.map_err(|source| match source.errno() {
            Some(Errno::EPROTONOSUPPORT) => Error::ModuleMissing { source },
            _ => request_failed("open a connection to the kernel")(source),
        })?;
        let mut client = Self::from_connection(connection);
        // Every kernel with the module answers this request. netfilter returns EINVAL for a subsystem that it does not have.
        match client.totals() {
            Ok(_) => Ok(client),
            Err(Error::Request { source, .. }) if source.errno() == Some(Errno::EINVAL) => {
                Err(Error::ModuleMissing { source })
            }
            Err(error) => Err(error),
        }
    }
}

fn failed(operation: &Operation, source: kernlink_netlink::Error) -> Error {
    Error::Failed {
        operation: Box::new(operation.clone()),
        source,
    }
}

fn request_failed(attempt: &'static str) -> impl Fn(kernlink_netlink::Error) -> Error {
    move |source| Error::Request { attempt, source }
}

impl Conntrack for Client {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = vec![Ok(()); operations.len()];
        let mut rest = (operations, &mut outcomes[..]);
        while let Some(first) = rest.0.first() {
            let length = batch_length(rest.0);
            let (now, later) = rest.0.split_at(length);
            let (now_outcomes, later_outcomes) = rest.1.split_at_mut(length);
            match (first, now_outcomes.first_mut()) {
                (Operation::DeleteMatching(filter), Some(outcome)) => {
                    *outcome = self.delete_matching(filter).and_then(Deletion::into_result);
                }
                (Operation::Flush(scope), Some(outcome)) => *outcome = self.flush_scope(*scope),
                _ => self.execute_batch(now, now_outcomes),
            }
            let is_lost =
                |outcome: &Result<(), Error>| outcome.as_ref().is_err_and(Error::is_outcome_unknown);
            if now_outcomes.iter().any(is_lost) {
                for (operation, outcome) in later.iter().zip(later_outcomes) {
                    *outcome = Err(Error::NotSent {
                        operation: Box::new(operation.clone()),
                    });
                }
                break;
            }
            rest = (later, later_outcomes);
        }
        outcomes
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        filter.check().map_err(|problem| Error::InvalidFilter {
            filter: filter.to_string(),
            problem,
        })?;
        let request = self.listing_filter(filter)?;
        let filter = filter.clone();
        let ipv6 = &mut self.ipv6;
        let dump = self
            .connection
            .dump(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET),
                0,
                |w| request.write_listing(w),
                move |message| {
                    let flow = wire::read_flow(message.payload)?;
                    if flow.family() == Family::Ipv6 && *ipv6 == Ipv6Comparison::Unknown {
                        *ipv6 = Ipv6Comparison::Sample(flow.original);
                    }
                    Ok(filter.matches(&flow).then_some(flow))
                },
            )
            .map_err(request_failed("list flows"))?;
        Ok(Flows::new(
            dump.map(|flow| flow.map_err(request_failed("list flows"))),
        ))
    }

    fn flow(&mut self, key: &FlowKey) -> Result<Flow, Error> {
        const ATTEMPT: &str = "look up a flow";
        let absent = || Error::Request {
            attempt: ATTEMPT,
            source: kernlink_netlink::Error::Refused(Refusal::new(Errno::ENOENT)),
        };
        key.tuple.check("tuple").map_err(|problem| Error::InvalidFilter {
            filter: key.to_string(),
            problem,
        })?;
        let flows = self
            .connection
            .request(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET),
                0,
                |w| wire::write_key(w, key),
                |message| wire::read_flow(message.payload).map(Some),
            )
            .map_err(request_failed(ATTEMPT))?;
        // The kernel does not compare the id in this request.
        flows
            .into_iter()
            .find(|flow| key.id.is_none_or(|id| flow.id == id))
            .ok_or_else(absent)
    }

    fn delete_matching(&mut self, filter: &Filter) -> Result<Deletion, Error> {
        let operation = Operation::DeleteMatching(filter.clone());
        operation.check().map_err(|problem| Error::Invalid {
            operation: Box::new(operation),
            problem,
        })?;
        if self.delete_in_kernel(filter)? {
            return Ok(Deletion::default());
        }
        let keys: Vec<FlowKey> = self
            .flows(filter)?
            .map(|flow| flow.map(|flow| flow.key_by_reply()))
            .collect::<Result<_, _>>()?;
        Ok(self.delete_many(&keys))
    }

    fn delete_many(&mut self, keys: &[FlowKey]) -> Deletion {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let mut deletion = Deletion {
            deleted: Some(0),
            ..Deletion::default()
        };
        let mut sent = Vec::with_capacity(keys.len());
        for key in keys {
            let operation = Operation::Delete(*key);
            let error = match operation.check() {
                Ok(()) => push(&mut batch, &operation)
                    .err()
                    .map(|source| failed(&operation, source)),
                Err(problem) => Some(Error::Invalid {
                    operation: Box::new(operation),
                    problem,
                }),
            };
            match error {
                None => sent.push(*key),
                Some(error) => deletion.failed.push((*key, error)),
            }
        }
        let results = self.connection.execute(&mut batch);
        self.batch = batch;
        for (key, result) in sent.into_iter().zip(results) {
            match result {
                Ok(()) => *deletion.deleted.get_or_insert_default() += 1,
                Err(error) if error.errno() == Some(Errno::ENOENT) => deletion.not_found += 1,
                Err(error) => deletion
                    .failed
                    .push((key, failed(&Operation::Delete(key), error))),
            }
        }
        deletion
    }

    fn totals(&mut self) -> Result<Totals, Error> {
        let totals = self
            .connection
            .request(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET_STATS),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_totals(message.payload).map(Some),
            )
            .map_err(request_failed("count flows"))?;
        Ok(totals.into_iter().next().unwrap_or_default())
    }
}
