//! The kernel's table.

use std::time::Duration;

use kernlink_netlink::{Batch, Connection, Errno, Namespace, Refusal, flags};

use crate::deletion::{Conntrack, Deletion, Flows};
use crate::error::Error;
use crate::expectation::{Expectation, NewExpectation};
use crate::filter::Filter;
use crate::flow::{Flow, FlowKey, Status};
use crate::kernel_filter::{self, Ipv6Addresses, KernelFilter};
use crate::operation::{NewFlow, Operation, Scope};
use crate::protocol_state::{Family, Protocol};
use crate::statistics::{CpuStatistics, ExpectationStatistics, Totals};
use crate::tuple::Tuple;
use crate::{uapi, wire};

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
    ipv6: Ipv6Knowledge,
    batch: Batch,
}

/// Whether this kernel compares IPv6 addresses the right way round. Linux does not, from 5.8 to at
/// least 6.18: flows with *another* address pass
/// ([`ctnetlink_filter_match_tuple`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c#L1060)).
/// Only a filter that lets through the very flow it names proves the contrary.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ipv6Knowledge {
    /// No IPv6 flow was seen so far.
    None,
    /// This one was there a moment ago and can be asked for.
    Sample(Tuple),
    Right,
    Inverted,
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
            ipv6: Ipv6Knowledge::None,
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

    /// Creates an expectation: a flow like it, when it begins, belongs to its master.
    ///
    /// The kernel gives a new expectation the time of the master's helper; another one is set by a second message.
    ///
    /// # Errors
    /// [`is_already_exists`](Error::is_already_exists), [`is_not_found`](Error::is_not_found) if the master is not there,
    /// [`is_unsupported`](Error::is_unsupported) if it has no helper or the kernel does not have the helper that is named.
    pub fn add_expectation(&mut self, expectation: &NewExpectation) -> Result<(), Error> {
        expectation.check().map_err(|problem| Error::InvalidExpectation {
            expectation: expectation.to_string().into(),
            problem,
        })?;
        let create = flags::NLM_F_CREATE | flags::NLM_F_EXCL;
        let change = expectation.timeout.map(|_| 0);
        for flags in [Some(create), change].into_iter().flatten() {
            self.connection
                .execute_one(wire::expectation_message(uapi::IPCTNL_MSG_EXP_NEW), flags, |w| {
                    wire::write_new_expectation(w, expectation)
                })
                .map_err(|source| Error::Expectation {
                    attempt: "create",
                    expectation: expectation.to_string().into(),
                    source,
                })?;
        }
        Ok(())
    }

    /// Deletes an expectation that was listed: the one of this tuple and zone, if it has this number (0 is any). In a
    /// zone other than 0, set [`Expectation::zone`] first: the kernel does not list it.
    ///
    /// # Errors
    /// [`is_not_found`](Error::is_not_found), also if an expectation of this tuple has another number.
    pub fn delete_expectation(&mut self, expectation: &Expectation) -> Result<(), Error> {
        expectation
            .tuple
            .check("tuple")
            .map_err(|problem| Error::InvalidExpectation {
                expectation: expectation.to_string().into(),
                problem,
            })?;
        self.connection
            .execute_one(wire::expectation_message(uapi::IPCTNL_MSG_EXP_DELETE), 0, |w| {
                wire::write_expectation_key(w, expectation)
            })
            .map_err(|source| Error::Expectation {
                attempt: "delete",
                expectation: expectation.to_string().into(),
                source,
            })
    }

    /// Deletes all expectations of both families (`conntrack -F expect`).
    pub fn flush_expectations(&mut self) -> Result<(), Error> {
        self.connection
            .execute_one(wire::expectation_message(uapi::IPCTNL_MSG_EXP_DELETE), 0, |w| {
                wire::header(w, uapi::AF_UNSPEC)
            })
            .map_err(|source| Error::Expectation {
                attempt: "delete",
                expectation: "(all)".into(),
                source,
            })
    }

    /// Connections that helpers have announced (`conntrack -L expect`), of both families.
    pub fn expectations(&mut self) -> Result<Vec<Expectation>, Error> {
        self.connection
            .dump_all(
                wire::expectation_message(uapi::IPCTNL_MSG_EXP_GET),
                0,
                |w| wire::header(w, uapi::AF_UNSPEC),
                |message| wire::read_expectation(message.payload).map(Some),
            )
            .map_err(request_failed("list expectations"))
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
        let number = family.map_or(uapi::AF_UNSPEC, Family::number);
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

    /// Whether the kernel takes filters when listing; tried once.
    fn filters_listing(&mut self) -> Result<bool, Error> {
        if self.filtering == KernelFiltering::Off {
            return Ok(false);
        }
        if let Some(known) = self.filters_listing {
            return Ok(known);
        }
        let dump = self.connection.dump(
            wire::flow_message(uapi::IPCTNL_MSG_CT_GET),
            0,
            kernel_filter::write_listing_probe,
            |_| Ok::<_, kernlink_netlink::Error>(Some(())),
        );
        let first = dump
            .map_err(request_failed("list flows"))?
            .next()
            .transpose()
            .or_else(|error| match error.errno() {
                Some(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(Some(())),
                _ => Err(request_failed("list flows")(error)),
            })?;
        // A flow that came nevertheless says that the filter was not understood.
        let known = first.is_none();
        self.filters_listing = Some(known);
        Ok(known)
    }

    /// Whether a kernel that takes filters reads conditions on reply tuples and masked marks rightly; tried once.
    fn reads_conditions(&mut self) -> Result<bool, Error> {
        if let Some(known) = self.reads_conditions {
            return Ok(known);
        }
        let dump = self.connection.dump(
            wire::flow_message(uapi::IPCTNL_MSG_CT_GET),
            0,
            kernel_filter::write_reply_probe,
            |_| Ok::<_, kernlink_netlink::Error>(Some(())),
        );
        let known = match dump.map_err(request_failed("list flows"))?.next() {
            Some(Err(error)) if error.errno() == Some(Errno::EINVAL) => true,
            Some(Err(error)) if error.errno() != Some(Errno::EOPNOTSUPP) => {
                return Err(request_failed("list flows")(error));
            }
            _ => false,
        };
        self.reads_conditions = Some(known);
        Ok(known)
    }

    /// Whether the kernel takes filters when deleting; tried once, and not by deleting.
    fn filters_deletion(&mut self) -> Result<bool, Error> {
        if self.filtering != KernelFiltering::Full {
            return Ok(false);
        }
        if let Some(known) = self.filters_deletion {
            return Ok(known);
        }
        let probe = self.connection.execute_one(
            wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE),
            0,
            kernel_filter::write_deletion_probe,
        );
        let known = match probe {
            Err(error) if matches!(error.errno(), Some(Errno::EINVAL | Errno::EOPNOTSUPP)) => true,
            Err(error) if error.errno() == Some(Errno::ENOENT) => false,
            Ok(()) => false,
            Err(error) => return Err(request_failed("delete flows by a filter")(error)),
        };
        self.filters_deletion = Some(known);
        Ok(known)
    }

    /// Whether IPv6 addresses may be given to the kernel.
    fn ipv6_addresses(&mut self) -> Result<Ipv6Addresses, Error> {
        if let Ipv6Knowledge::Sample(tuple) = self.ipv6 {
            self.ipv6 = self.try_ipv6(&tuple)?;
        }
        Ok(match self.ipv6 {
            Ipv6Knowledge::Right => Ipv6Addresses::Pushed,
            _ => Ipv6Addresses::HeldBack,
        })
    }

    /// Lists by an address that a flow was seen to have: if that flow comes, addresses are compared
    /// the right way round, and if others come, they are not. Nothing proves nothing: the flow may
    /// have ended.
    fn try_ipv6(&mut self, sample: &Tuple) -> Result<Ipv6Knowledge, Error> {
        let mut filter = Filter::new()
            .with_protocol(sample.protocol)
            .with_source(ipnet::IpNet::from(sample.source));
        if matches!(sample.protocol, Protocol::TCP | Protocol::UDP) {
            filter = filter.with_source_port(sample.source_socket().port());
        }
        let request = KernelFilter::of(&filter, Some(Family::Ipv6), Ipv6Addresses::Pushed);
        let mut dump = self
            .connection
            .dump(
                wire::flow_message(uapi::IPCTNL_MSG_CT_GET),
                0,
                |w| request.write_listing(w),
                |message| wire::read_flow(message.payload).map(Some),
            )
            .map_err(request_failed("list flows"))?;
        match dump.next().transpose().map_err(request_failed("list flows"))? {
            Some(flow) if flow.original.source == sample.source => Ok(Ipv6Knowledge::Right),
            Some(_) => Ok(Ipv6Knowledge::Inverted),
            None => Ok(Ipv6Knowledge::None),
        }
    }

    /// What of a filter the kernel shall do when listing.
    fn listing_filter(&mut self, filter: &Filter) -> Result<KernelFilter, Error> {
        let family = filter.implied_family();
        // The family alone needs no trial.
        let is_trivial =
            KernelFilter::of(filter, family, Ipv6Addresses::Pushed) == KernelFilter::family_only(family);
        if is_trivial || !self.filters_listing()? {
            return Ok(KernelFilter::family_only(family));
        }
        let ipv6 = self.ipv6_addresses()?;
        let request = KernelFilter::of(filter, family, ipv6);
        if request.may_be_misread() && !self.reads_conditions()? {
            return Ok(request.without_misread());
        }
        Ok(request)
    }

    /// Deletes by a filter in the kernel, if it can do all of it. `false` if it cannot.
    fn delete_in_kernel(&mut self, filter: &Filter) -> Result<bool, Error> {
        if !self.filters_deletion()? {
            return Ok(false);
        }
        let ipv6 = self.ipv6_addresses()?;
        // Tuples need a family, so a filter without one is sent for each.
        let any_family = KernelFilter::of(filter, None, ipv6);
        let requests = match filter.implied_family() {
            None if any_family.is_exact => vec![any_family],
            None => [Family::Ipv4, Family::Ipv6]
                .map(|family| KernelFilter::of(filter, Some(family), ipv6))
                .into(),
            family => vec![KernelFilter::of(filter, family, ipv6)],
        };
        if !requests.iter().all(|request| request.is_exact) {
            return Ok(false);
        }
        for request in requests {
            self.connection
                .execute_one(wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE), 0, |w| {
                    request.write_deletion(w);
                })
                .map_err(|source| Error::Failed {
                    operation: Box::new(Operation::DeleteMatching(filter.clone())),
                    source,
                })?;
        }
        Ok(true)
    }

    fn flush_scope(&mut self, scope: Scope) -> Result<(), Error> {
        match scope {
            Scope::Everything => self
                .connection
                .execute_one(wire::flow_message(uapi::IPCTNL_MSG_CT_DELETE), 0, |w| {
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
    fn execute_batch(&mut self, operations: &[Operation], outcomes: &mut [Result<(), Error>]) {
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
                .execute_one(
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

fn failed(operation: &Operation, source: kernlink_netlink::Error) -> Error {
    Error::Failed {
        operation: Box::new(operation.clone()),
        source,
    }
}

fn request_failed(attempt: &'static str) -> impl Fn(kernlink_netlink::Error) -> Error {
    move |source| Error::Request { attempt, source }
}

fn push(batch: &mut Batch, operation: &Operation) -> Result<(), kernlink_netlink::Error> {
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
fn batch_length(operations: &[Operation]) -> usize {
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
                    if flow.family() == Family::Ipv6 && *ipv6 == Ipv6Knowledge::None {
                        *ipv6 = Ipv6Knowledge::Sample(flow.original);
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
