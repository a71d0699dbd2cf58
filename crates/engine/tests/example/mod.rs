//! A data path in memory with two kinds of objects: forwards, which lead from a frontend to endpoints, and addresses, at which a host
//! receives packets. An address is bound after a forward exists at it, and a forward is deleted after its address is released.

pub(crate) mod host;
mod state;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use kernlink_services::{Frontend, FrontendKey};

pub(crate) use self::state::Example;

/// The configuration of the example.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) services: kernlink_services::Config,
    /// What it does wrong.
    pub(crate) defect: Option<Defect>,
}

/// What a data path can do wrong. Each is found by a check of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Objects are written although they exist.
    WritesAlways,
    /// The first plan of a process writes all objects.
    WritesAtStart,
    /// Endpoints that were removed are not removed from forwards.
    KeepsEndpoints,
    /// A plan that is made again is another one.
    PlansEachObjectOnce,
    /// The objects of other programs are owned.
    OwnsEverything,
    /// After a failed operation the others are not executed.
    StopsAtAFailure,
    /// A refused operation is recorded as done.
    IgnoresRefusals,
    /// Addresses do not need their forwards.
    HasNoNeeds,
    /// An operation with an unknown outcome is taken for refused.
    TakesUnknownForRefused,
    /// An operation with an unknown outcome is taken for done.
    TakesUnknownForDone,
    /// Only objects that this process wrote are deleted.
    RemembersWhatItOwns,
    /// What was read first is used in later listings.
    ReadsOnce,
    /// A listing that failed is used as an empty one.
    TakesUnreadableForEmpty,
    /// A torn listing is used as if it were complete.
    UsesTornListings,
    /// A change makes all objects dirty.
    ComparesEverything,
    /// Every forward is deleted and added if one changes.
    RebuildsForEachChange,
    /// A forward that changes is deleted and added.
    DeletesToReplace,
    /// Restrictions apply after the forward exists.
    OpensBeforeItRestricts,
}

// snippet
/// Where a forward leads, and whom it admits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forward {
    pub(crate) frontend: Frontend,
    pub(crate) endpoints: BTreeSet<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    Forward(FrontendKey),
    Address(IpAddr),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Forward(key) => write!(f, "forward {key}"),
            Key::Address(address) => write!(f, "address {address}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    Add(FrontendKey, Forward),
    Change(FrontendKey, Forward),
    Delete(FrontendKey),
    Bind(IpAddr),
    Release(IpAddr),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = |f: &mut fmt::Formatter<'_>, verb, key, forward: &Forward| {
            write!(f, "forward {verb} {key} to {:?}", forward.endpoints)
        };
        match self {
            Operation::Add(key, forward) => write(f, "add", key, forward),
            Operation::Change(key, forward) => write(f, "change", key, forward),
            Operation::Delete(key) => write!(f, "forward delete {key}"),
            Operation::Bind(address) => write!(f, "address bind {address}"),
            Operation::Release(address) => write!(f, "address release {address}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    WriteForwards,
    BindAddresses,
    ReleaseAddresses,
    DeleteForwards,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::WriteForwards => "write forwards",
            Phase::BindAddresses => "bind addresses",
            Phase::ReleaseAddresses => "release addresses",
            Phase::DeleteForwards => "delete forwards",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    Refused(String),
    Unknown,
    Unreadable,
    Torn,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(operation) => write!(f, "{operation} was refused"),
            Error::Unknown => f.write_str("the outcome is unknown"),
            Error::Unreadable => f.write_str("the objects cannot be read"),
            Error::Torn => f.write_str("the objects changed while they were listed"),
        }
    }
}

impl std::error::Error for Error {}
// snippet
