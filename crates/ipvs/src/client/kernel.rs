//! The kernel's table, over generic netlink.

use std::io::Read;
use std::os::linux::fs::MetadataExt;

use kernlink_netlink::generic::Family;
use kernlink_netlink::{
    AttributeReader, AttributeWriter, Batch, Connection, Errno, Message, Namespace, Protocol,
};

use super::listing::{Listing, Request};
use crate::availability::{Availability, ModuleLookup, Modules, Support};
use crate::client::Ipvs;
use crate::connections::{ConnectionFilter, Connections};
use crate::daemon::Daemon;
use crate::error::{Error, InvalidOperation, Unavailable};
use crate::info::Info;
use crate::operation::Operation;
use crate::real_server::TunnelKind;
use crate::reason::Reason;
use crate::scheduler::Scheduler;
use crate::snapshot::Snapshot;
use crate::stats::{RealServerStatus, VirtualServerStatus};
use crate::sysctl::{Setting, Value};
use crate::timeouts::Timeouts;
use crate::uapi::*;
use crate::virtual_server::VirtualServerKey;
use crate::wire;

/// The IPVS table of one network namespace of the running kernel.
///
/// A client holds one netlink socket and belongs to the network namespace it was opened in, whichever thread uses it.
/// Clients do not share anything: give each thread its own, or move one between threads.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    family: u16,
    /// Kept between calls for its memory.
    batch: Batch,
    /// Where the files of `/proc` are read.
    namespace: Namespace,
    /// Device and inode of the namespace, which tell whether a thread is in it.
    identity: Option<(u64, u64)>,
    /// The kernel's release, as far as it was needed.
    release: Option<String>,
    /// Whether the virtual servers were too many for one datagram when they were last listed.
    has_many: bool,
}

impl Client {
    /// Opens the table of the calling thread's network namespace. The kernel loads the module `ip_vs` if it has it.
    ///
    /// Opening needs no privilege; everything else needs `CAP_NET_ADMIN` in the initial user namespace.
    ///
    /// # Errors
    /// [`Error::is_unavailable`] if there is no IPVS in the kernel.
    pub fn open() -> Result<Self, Error> {
        let namespace = Namespace::current().map_err(Error::request("open the network namespace"))?;
        let mut connection =
            Connection::open(Protocol::Generic).map_err(Error::request("open a netlink socket"))?;
        let family = match Family::resolve(&mut connection, IPVS_GENL_NAME) {
            Ok(family) => family.id,
            Err(kernlink_netlink::Error::UnknownFamily { .. }) => {
                return Err(Unavailable::diagnose().into());
            }
            Err(error) => return Err(Error::request("look up the netlink family IPVS")(error)),
        };
        Ok(Self {
            connection,
            family,
            batch: Batch::new(),
            namespace,
            identity: current_namespace(),
            release: None,
            has_many: false,
        })
    }

    /// Opens the table of another network namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`open`](Self::open), and what hinders entering the namespace.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        namespace
            .run(Self::open)
            .map_err(Error::request("open IPVS in another network namespace"))?
    }

    /// How long to wait for the kernel's answer; `None` waits for ever. 30 seconds unless set.
    ///
    /// # Errors
    /// What the socket says to it.
    pub fn set_timeout(&mut self, timeout: Option<std::time::Duration>) -> Result<(), Error> {
        self.connection
            .set_timeout(timeout)
            .map_err(Error::request("set the timeout"))
    }

    /// What the running kernel's IPVS can do.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`] without the right to ask.
    pub fn support(&mut self) -> Result<Support, Error> {
        let info = self.info()?;
        let modules = Modules::of_running_kernel();
        let schedulers = Scheduler::KNOWN
            .into_iter()
            .map(|scheduler| {
                (
                    scheduler,
                    Availability::of(&format!("ip_vs_{scheduler}"), &modules),
                )
            })
            .collect();
        Ok(Support {
            release: modules.release,
            info,
            schedulers,
        })
    }

    /// The connections of the client's network namespace that match a filter, read as the iterator goes on; the client is
    /// free for other things meanwhile. `ipvsadm -L -n -c` shows them.
    ///
    /// # Errors
    /// The table in `/proc` cannot be read.
    pub fn connections(&mut self, filter: ConnectionFilter) -> Result<Connections, Error> {
        self.inside(|| Connections::open(filter))?
    }

    /// Reads a setting of the client's network namespace.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] if the kernel does not have it: [`Error::is_kernel_too_old`], or a module is missing or an
    /// option of the kernel's configuration.
    pub fn setting<T: Value>(&mut self, setting: &Setting<T>) -> Result<T, Error> {
        self.inside(|| setting.read())?
    }

    /// Writes a setting of the client's network namespace.
    ///
    /// # Errors
    /// [`Error::is_invalid`] if the value is out of range, [`Error::is_unsupported`] if the kernel does not have the
    /// setting, [`Error::is_permission_denied`] without the right.
    pub fn set_setting<T: Value>(&mut self, setting: &Setting<T>, value: &T) -> Result<(), Error> {
        self.inside(|| setting.write(value))?
    }

    /// The virtual servers, in the order of their keys.
    pub(crate) fn read_virtual_servers(&mut self) -> Result<Listing<VirtualServerStatus>, Error> {
        let attempt = "list the virtual servers";
        let listing = self.list(
            attempt,
            self.has_many,
            |writer| wire::write_header(writer, IPVS_CMD_GET_SERVICE),
            |message| {
                wire::body(message.payload, IPVS_CMD_NEW_SERVICE)
                    .and_then(wire::read_virtual_server)
                    .map(Some)
            },
            |status| status.server.key,
        )?;
        self.has_many = listing.items.len() > MANY;
        Ok(listing)
    }

    /// The real servers of a virtual server, in the order of their keys.
    pub(crate) fn read_real_servers(
        &mut self,
        virtual_server: &VirtualServerKey,
    ) -> Result<Listing<RealServerStatus>, Error> {
        let family = virtual_server.family();
        self.list(
            "list the real servers",
            false,
            |writer| {
                wire::write_header(writer, IPVS_CMD_GET_DEST);
                wire::write_service_key(writer, virtual_server);
            },
            |message| {
                let body = wire::body(message.payload, IPVS_CMD_NEW_DEST)?;
                wire::read_real_server(body, Some(family)).map(Some)
            },
            |status| status.server.key,
        )
    }

    fn list<T, K: Ord>(
        &mut self,
        attempt: &'static str,
        is_large: bool,
        write: impl Fn(&mut AttributeWriter<'_>),
        read: impl Fn(Message<'_>) -> Result<Option<T>, kernlink_netlink::Error>,
        key: impl Fn(&T) -> K,
    ) -> Result<Listing<T>, Error> {
        let request = Request {
            message_type: self.family,
            write,
            read,
        };
        let (namespace, identity) = (&self.namespace, self.identity);
        let timeout = self.connection.timeout();
        let second = || {
            let open = || Connection::open(Protocol::Generic);
            let mut connection = inside(namespace, identity, open)??;
            connection.set_timeout(timeout)?;
            Ok::<_, kernlink_netlink::Error>(connection)
        };
        request
            .list(&mut self.connection, second, key, is_large)
            .map_err(Error::request(attempt))
    }

    /// Does something in the client's network namespace: on this thread if it is there, else on one of its own.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        inside(&self.namespace, self.identity, work)
            .map_err(Error::request("go to the network namespace of the client"))
    }

    /// What the kernel would ignore because it is too old for it.
    fn check_age(&mut self, operation: &Operation) -> Result<(), InvalidOperation> {
        let (Operation::AddRealServer { real_server, .. }
        | Operation::UpdateRealServer { real_server, .. }
        | Operation::EnsureRealServer { real_server, .. }) = operation
        else {
            return Ok(());
        };
        if real_server.tunnel.kind == TunnelKind::Ipip {
            return Ok(());
        }
        let release = self.release.get_or_insert_with(kernel_release);
        match release_number(release) {
            Some(number) if number < (5, 3) => Err(InvalidOperation::TunnelKind {
                release: release.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// The error of a refused operation, explained with what the namespace and the kernel's modules show besides the
    /// operation.
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
                match self.inside(has_local_table) {
                    Ok(Some(false)) => Reason::LoopbackDown,
                    // All that is left of what the kernel takes for no unicast address.
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

impl Ipvs for Client {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        for chunk in operations.chunks(OPERATIONS_IN_ONE_SEND) {
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

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        complete(self.read_virtual_servers()?, "list the virtual servers")
    }

    fn find_virtual_server(&mut self, key: &VirtualServerKey) -> Result<Option<VirtualServerStatus>, Error> {
        let found = self.connection.request(
            self.family,
            0,
            |writer| {
                wire::write_header(writer, IPVS_CMD_GET_SERVICE);
                wire::write_service_key(writer, key);
            },
            |message| {
                wire::body(message.payload, IPVS_CMD_NEW_SERVICE)
                    .and_then(wire::read_virtual_server)
                    .map(Some)
            },
        );
        match found {
            Ok(mut servers) => Ok(servers.pop()),
            Err(error) if error.errno() == Some(Errno::ESRCH) => Ok(None),
            Err(error) => Err(Error::request("read a virtual server")(error)),
        }
    }

    fn list_real_servers(
        &mut self,
        virtual_server: &VirtualServerKey,
    ) -> Result<Vec<RealServerStatus>, Error> {
        complete(self.read_real_servers(virtual_server)?, "list the real servers")
    }

    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        crate::snapshot::take(self)
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.ask(
            "read the time-outs",
            [IPVS_CMD_GET_CONFIG, IPVS_CMD_SET_CONFIG],
            wire::read_timeouts,
        )
    }

    fn list_daemons(&mut self) -> Result<Vec<Daemon>, Error> {
        let mut daemons = self
            .connection
            .dump_all(
                self.family,
                0,
                |writer| wire::write_header(writer, IPVS_CMD_GET_DAEMON),
                |message| {
                    wire::body(message.payload, IPVS_CMD_NEW_DAEMON)
                        .and_then(wire::read_daemon)
                        .map(Some)
                },
            )
            .map_err(Error::request("list the daemons"))?;
        daemons.sort_by_key(|daemon| daemon.role);
        Ok(daemons)
    }

    fn info(&mut self) -> Result<Info, Error> {
        self.ask(
            "read version and table size",
            [IPVS_CMD_GET_INFO, IPVS_CMD_SET_INFO],
            wire::read_info,
        )
    }
}

impl Client {
    /// Whether the operations behind these may be sent: not after silence.
    fn execute_chunk(&mut self, operations: &[Operation], outcomes: &mut Vec<Result<(), Error>>) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let first = outcomes.len();
        for operation in operations {
            let outcome = match self.check_age(operation) {
                Ok(()) => operation.encode(self.family, &mut batch),
                Err(problem) => Err(Error::Invalid {
                    operation: Box::new(operation.clone()),
                    problem,
                }),
            };
            outcomes.push(outcome);
        }
        if operations
            .iter()
            .any(|operation| matches!(operation, Operation::StopDaemon(_)))
        {
            let _an_empty_message_fits = batch.push(NLMSG_NOOP, 0, |_| {});
        }
        let answers = self.connection.execute(&mut batch);
        self.batch = batch;
        let may_go_on = !answers.iter().any(|answer| match answer {
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
        may_go_on
    }

    /// A request that is a bare command, with one message for an answer.
    fn ask<T>(
        &mut self,
        attempt: &'static str,
        [command, answer]: [u8; 2],
        read: fn(AttributeReader<'_>) -> Result<T, kernlink_netlink::Error>,
    ) -> Result<T, Error> {
        self.connection
            .request(
                self.family,
                0,
                |writer| wire::write_header(writer, command),
                |message| wire::body(message.payload, answer).and_then(read).map(Some),
            )
            .and_then(|mut answers| {
                answers.pop().ok_or(kernlink_netlink::Error::Malformed {
                    what: "answer: an acknowledgement and nothing else",
                })
            })
            .map_err(Error::request(attempt))
    }
}

/// A message that does nothing and is acknowledged all the same; it goes behind the end of a daemon.
///
/// A daemon that ends before its thread has run makes the kernel say nothing at all: `kthread_stop` then returns `EINTR`
/// ([`kthread.c`](https://github.com/torvalds/linux/blob/v6.1/kernel/kthread.c)), and for that error alone netlink sends no
/// acknowledgement (`netlink_rcv_skb` in [`af_netlink.c`](https://github.com/torvalds/linux/blob/v6.1/net/netlink/af_netlink.c)).
const NLMSG_NOOP: u16 = 1;

/// As many operations are encoded before they are sent: mostly one send, as a socket takes 208 KiB at once and an operation has
/// around 100 bytes. Encoding more ahead would gain no system call and miss the processor's caches.
const OPERATIONS_IN_ONE_SEND: usize = 1500;

/// More virtual servers than this never fit one datagram, of 32 KiB at most with 250 bytes each.
const MANY: usize = 130;

/// What was listed, if nothing is missing.
fn complete<T>(listing: Listing<T>, attempt: &'static str) -> Result<Vec<T>, Error> {
    if listing.is_complete {
        return Ok(listing.items);
    }
    Err(Error::request(attempt)(
        kernlink_netlink::Error::DumpInterrupted {
            attempts: listing.attempts,
        },
    ))
}

/// Does something in a network namespace: on this thread if it is there, else on one of its own.
fn inside<T: Send>(
    namespace: &Namespace,
    identity: Option<(u64, u64)>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, kernlink_netlink::Error> {
    if identity.is_some() && identity == current_namespace() {
        return Ok(work());
    }
    namespace.run(work)
}

/// Device and inode of the calling thread's network namespace.
fn current_namespace() -> Option<(u64, u64)> {
    let metadata = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some((metadata.st_dev(), metadata.st_ino()))
}

/// Whether the thread's network namespace has a local routing table, which comes with the first interface that goes up.
fn has_local_table() -> Option<bool> {
    let mut file = std::fs::File::open("/proc/thread-self/net/fib_trie").ok()?;
    let mut first = [0];
    file.read(&mut first).ok().map(|length| length != 0)
}

/// The running kernel's release, as `uname -r` prints it; empty if `/proc` does not tell.
pub(crate) fn kernel_release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

/// The first two numbers of a release: (6, 1) of `6.1.0-56-amd64`.
pub(crate) fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        assert_eq!(release_number("6.1.0-56-amd64"), Some((6, 1)));
        assert_eq!(release_number("5.10.0"), Some((5, 10)));
        assert_eq!(release_number("7.0-rc1"), Some((7, 0)));
        assert_eq!(release_number("unknown"), None);
    }

    #[test]
    fn nothing_is_sent_after_silence() {
        // One send without an answer; another one would be off script.
        let script = kernlink_netlink::Script::new().expect_anything();
        let mut client = Client {
            connection: script.connect().unwrap(),
            family: 0x20,
            batch: Batch::new(),
            namespace: Namespace::current().unwrap(),
            identity: None,
            release: None,
            has_many: false,
        };
        let operations = vec![Operation::Flush; OPERATIONS_IN_ONE_SEND + 10];
        let outcomes = client.execute(&operations);
        assert_eq!(outcomes.len(), operations.len());
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let Error::Transport { source, .. } = outcome.unwrap_err() else {
                panic!("{index}")
            };
            let is_sent = index < OPERATIONS_IN_ONE_SEND;
            assert_eq!(source.is_outcome_unknown(), is_sent, "{index}: {source}");
            assert_eq!(source == kernlink_netlink::Error::NotSent, !is_sent, "{index}");
        }
    }

    #[test]
    fn clients_may_move_between_threads() {
        fn is_send<T: Send>() {}
        is_send::<Client>();
    }
}
