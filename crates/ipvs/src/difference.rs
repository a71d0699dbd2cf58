//! Differences between a desired and an observed table.

use std::collections::BTreeMap;
use std::fmt;

use kernlink_base::ErrorChain;

use crate::error::Error;
use crate::operation::Operation;
use crate::real_server::{RealServer, RealServerKey, Thresholds, Tunnel};
use crate::snapshot::{RealServerSummary, Snapshot};
use crate::virtual_server::{VirtualServer, VirtualServerKey};

/// The operations that change the table `observed`, as returned by [`Ipvs::list_all`](crate::Ipvs::list_all), to `desired`.
///
/// Virtual servers are in the order of `desired`, each followed by its real servers. Real servers are first added, then updated,
/// then deleted, so that a virtual server is not without real servers in between. Real servers that are not desired are deleted.
/// Virtual servers that are not desired are deleted last, and only if `is_owned` returns true. If `desired` contains a key more
/// than once, the first value is used. There is no operation for an object that is equal in both tables.
///
/// ```
/// use kernlink_ipvs::{RealServer, RealServerKey, Scheduler, VirtualServer, VirtualServerKey, Weight, difference};
///
/// let web = VirtualServer::new(VirtualServerKey::tcp([10, 96, 0, 10], 80), Scheduler::RR);
/// let pod = |last| RealServer::new(RealServerKey::new([10, 1, 0, last], 8080));
/// let observed = [(web.clone(), vec![pod(1), pod(2)])];
/// let desired = [(web, vec![pod(1).with_weight(Weight::DRAINING), pod(3)])];
/// let lines: Vec<String> = difference(&desired, &observed, |_| false)
///     .iter()
///     .map(ToString::to_string)
///     .collect();
/// assert_eq!(
///     lines,
///     [
///         "-a -t 10.96.0.10:80 -r 10.1.0.3:8080 -m -w 1",
///         "-e -t 10.96.0.10:80 -r 10.1.0.1:8080 -m -w 0",
///         "-d -t 10.96.0.10:80 -r 10.1.0.2:8080",
///     ]
/// );
/// ```
#[must_use]
pub fn difference(
    desired: &[(VirtualServer, Vec<RealServer>)],
    observed: &[(VirtualServer, Vec<RealServer>)],
    is_owned: impl Fn(&VirtualServerKey) -> bool,
) -> Vec<Operation> {
    let observed = observed.iter().map(|(server, real_servers)| {
        let real_servers = real_servers
            .iter()
            .map(|real| (real.key, ObservedReal::Listed(real)));
        (server, real_servers.collect())
    });
    compare(desired, observed, is_owned)
}

/// An operation of [`Ipvs::converge`](crate::Ipvs::converge) and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Executed {
    /// The operation.
    pub operation: Operation,
    /// The outcome of the operation.
    pub outcome: Result<(), Error>,
}

impl fmt::Display for Executed {
    /// The operation as options of `ipvsadm`; after a failure also `: ` and the error with its causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operation.fmt(f)?;
        match &self.outcome {
            Ok(()) => Ok(()),
            Err(error) => write!(f, ": {}", ErrorChain(error)),
        }
    }
}

impl Snapshot {
    /// The operations that change the table of this snapshot to `desired`, as [`difference`] returns them.
    ///
    /// A snapshot contains neither thresholds nor tunnels. So a real server that is desired with other values than
    /// [`Thresholds::NONE`] and [`Tunnel::IPIP`] is updated every time, and a real server that has other values in the kernel but
    /// should not is not updated. If thresholds or tunnels are in use, compare with [`Ipvs::list_all`](crate::Ipvs::list_all).
    #[must_use]
    pub fn difference(
        &self,
        desired: &[(VirtualServer, Vec<RealServer>)],
        is_owned: impl Fn(&VirtualServerKey) -> bool,
    ) -> Vec<Operation> {
        let observed = self.virtual_servers.iter().map(|entry| {
            let real_servers = entry.real_servers.iter();
            let real_servers = real_servers.map(|real| (real.key, ObservedReal::Summary(real)));
            (&entry.virtual_server.server, real_servers.collect())
        });
        compare(desired, observed, is_owned)
    }
}

/// A real server of a listing or of a snapshot.
#[derive(Clone, Copy)]
enum ObservedReal<'o> {
    Listed(&'o RealServer),
    Summary(&'o RealServerSummary),
}

impl ObservedReal<'_> {
    fn is_equal_to(self, desired: &RealServer) -> bool {
        match self {
            Self::Listed(real) => real == desired,
            Self::Summary(real) => {
                real.agrees_with(desired)
                    && desired.thresholds == Thresholds::NONE
                    && desired.tunnel == Tunnel::IPIP
            }
        }
    }
}

fn compare<'o>(
    desired: &[(VirtualServer, Vec<RealServer>)],
    observed: impl Iterator<Item = (&'o VirtualServer, BTreeMap<RealServerKey, ObservedReal<'o>>)>,
    is_owned: impl Fn(&VirtualServerKey) -> bool,
) -> Vec<Operation> {
    let mut observed: BTreeMap<VirtualServerKey, _> = observed
        .map(|(server, real_servers)| (server.key, Some((server, real_servers))))
        .collect();
    let mut operations = Vec::new();
    for (server, real_servers) in desired {
        let mut observed_reals = match observed.insert(server.key, None) {
            // The same key again.
            Some(None) => continue,
            Some(Some((observed, real_servers))) => {
                if observed != server {
                    operations.push(Operation::UpdateVirtualServer(server.clone()));
                }
                real_servers
            }
            None => {
                operations.push(Operation::AddVirtualServer(server.clone()));
                BTreeMap::new()
            }
        };
        let virtual_server = server.key;
        let mut desired_reals: BTreeMap<RealServerKey, &RealServer> = BTreeMap::new();
        for real_server in real_servers {
            desired_reals.entry(real_server.key).or_insert(real_server);
        }
        let mut updates = Vec::new();
        for real_server in desired_reals.into_values() {
            let real_server = real_server.clone();
            match observed_reals.remove(&real_server.key) {
                None => operations.push(Operation::AddRealServer {
                    virtual_server,
                    real_server,
                }),
                Some(observed) if !observed.is_equal_to(&real_server) => {
                    updates.push(Operation::UpdateRealServer {
                        virtual_server,
                        real_server,
                    })
                }
                Some(_) => {}
            }
        }
        operations.append(&mut updates);
        operations.extend(
            observed_reals
                .into_keys()
                .map(|real_server| Operation::DeleteRealServer {
                    virtual_server,
                    real_server,
                }),
        );
    }
    let undesired = observed
        .into_iter()
        .filter_map(|(key, undesired)| undesired.map(|_| key));
    operations.extend(
        undesired
            .filter(|key| is_owned(key))
            .map(Operation::DeleteVirtualServer),
    );
    operations
}
