//! The kernel's table.

mod batch;
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
use crate::flow_update::Changes;
use crate::flows::Flows;
use crate::new_flow::NewFlow;
use crate::operation::{Operation, Scope};
use crate::stale_filter::StaleFlows;
use crate::statistics::{CpuStatistics, ExpectationStatistics, Totals};
use crate::zone::ZoneScope;
use crate::{uapi, wire};

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

/// How much filtering the kernel is trusted with. Flows that it lists are checked here in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelFiltering {
    /// As much as the running kernel can do: listing (Linux 5.8) and deleting (Linux 6.11).
    #[default]
    Full,
    /// Listing only: flows to delete are listed and deleted one by one by their identity, which also
    /// counts them. What older kernels do in any case.
    Listing,
    /// None, except by family: everything is listed and filtered here.
    Off,
}

/// The kernel's connection-tracking table of one network namespace, over netlink.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    filtering: KernelFiltering,
    /// Whether the kernel takes a filter when listing; `None` until it was tried.
    filters_listing: Option<bool>,
    /// Whether it reads conditions on reply tuples and masked marks of such a filter rightly.
    reads_conditions: Option<bool>,
    /// Whether it takes one when deleting.
    filters_deletion: Option<bool>,
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
    /// As [`open`](Self::open), and what goes wrong entering the namespace.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Self::connect(Connection::open_in(
            kernlink_netlink::Protocol::Netfilter,
            namespace,
        ))
    }

    /// A client over a connection of [`Protocol::Netfilter`](kernlink_netlink::Protocol::Netfilter).
    pub fn over(connection: Connection) -> Self {
        Client {
            connection,
            filtering: KernelFiltering::Full,
            filters_listing: None,
            reads_conditions: None,
            filters_deletion: None,
            ipv6: Ipv6Comparison::Unknown,
            batch: Batch::new(),
        }
    }

    /// Lets the kernel do less of the filtering than it could.
    pub fn set_kernel_filtering(&mut self, filtering: KernelFiltering) {
        self.filtering = filtering;
    }

    /// Changes how long to wait for each answer of the kernel; `None` waits for ever. 30 seconds unless set. An operation
    /// that timed out may have been executed ([`Error::is_outcome_unknown`]), and those behind it in the same call are
    /// not sent.
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
        let mut client = Self::over(connection);
        // A question that needs no table and that every kernel with the module can answer: netfilter
        // says EINVAL for a subsystem that it does not have.
        match client.totals() {
            Ok(_) => Ok(client),
            Err(Error::Request { source, .. }) if source.errno() == Some(Errno::EINVAL) => {
                Err(Error::ModuleMissing { source })
            }
            Err(error) => Err(error),
        }
    }

    /// What each processor counted (`conntrack -S`), in the order of the processors.
    pub fn cpu_statistics(&mut self) -> Result<Vec<CpuStatistics>, Error> {
        self.connection
            .dump_all(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET_STATS_CPU),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_cpu_statistics(message.payload).map(Some),
            )
            .map_err(request_failed("read the statistics of each processor"))
    }

    /// What each processor counted about expectations (`conntrack -S exp`).
    pub fn expectation_statistics(&mut self) -> Result<Vec<ExpectationStatistics>, Error> {
        self.connection
            .dump_all(
                wire::expectation_message(uapi::IPCTNL_MSG_EXP_GET_STATS_CPU),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_expectation_statistics(message.payload).map(Some),
            )
            .map_err(request_failed("read the statistics of expectations"))
    }

    /// Flows that were removed from the table and that the kernel keeps until the news of it could be
    /// delivered (`conntrack -L dying`).
    pub fn dying(&mut self) -> Result<Vec<Flow>, Error> {
        self.special_list(uapi::IPCTNL_MSG_CT_GET_DYING, "list dying flows")
    }

    /// Flows whose first packet has not left this host yet (`conntrack -L unconfirmed`). Linux keeps
    /// no list of them any more since 6.0: it is always empty there.
    pub fn unconfirmed(&mut self) -> Result<Vec<Flow>, Error> {
        self.special_list(uapi::IPCTNL_MSG_CT_GET_UNCONFIRMED, "list unconfirmed flows")
    }

    /// Lists all flows of a family and sets their counters to zero (`conntrack -L -z`). There is no
    /// filter because the kernel zeroes what it lists, before it can be checked here.
    pub fn list_and_zero_counters(&mut self, family: Option<Family>) -> Result<Vec<Flow>, Error> {
        let number = family.map_or(uapi::AF_UNSPEC, wire::family_number);
        self.connection
            .dump_all(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET_CTRZERO),
                0,
                |w| wire::header(w, number),
                |message| wire::read_flow(message.payload).map(Some),
            )
            .map_err(request_failed("list flows and zero their counters"))
    }

    fn special_list(&mut self, command: u8, attempt: &'static str) -> Result<Vec<Flow>, Error> {
        self.connection
            .dump_all(
                wire::flow_message(command),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_flow(message.payload).map(Some),
            )
            .map_err(request_failed(attempt))
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
        // The kernel does not compare the number here.
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
        Ok(self.delete_all(&keys))
    }

    fn delete_all(&mut self, keys: &[FlowKey]) -> Deletion {
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
                Err(error) if error.errno() == Some(Errno::ENOENT) => deletion.vanished += 1,
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
