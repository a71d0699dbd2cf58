//! What can be asked of the table.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::error::InvalidOperation;
use crate::filter::Filter;
use crate::flow::{FlowKey, Labels, Status};
use crate::protocol_state::{Family, Protocol, ProtocolState, TcpState};
use crate::tuple::{Tuple, Zone};

/// One change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Put a flow into the table; refused if one with either tuple is there (`conntrack -I`).
    Add(NewFlow),
    /// Put a flow into the table, or give mark, timeout, labels and state to the one that is there and add the
    /// status bits to those that it has; its reply tuple and translation stay as they are.
    ///
    /// With status bits each of these operations costs a round trip, without them many share one.
    Ensure(NewFlow),
    /// Change a flow (`conntrack -U`); refused if it is not there. The kernel does not look at the
    /// key's `id` here.
    Update(FlowKey, Changes),
    /// Take one flow out of the table (`conntrack -D` with both addresses and ports); refused if it is not there.
    Delete(FlowKey),
    /// Take all flows out of the table that a filter accepts (`conntrack -D`). None is not an
    /// error. A filter that accepts everything is: that is what [`Operation::Flush`] is for.
    DeleteMatching(Filter),
    /// Empty the table, or a part of it that has a name (`conntrack -F`).
    Flush(Scope),
}

/// How much of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// All of it.
    Everything,
    /// One family, in all zones.
    Family(Family),
    /// One zone, both families.
    Zone(u16),
    /// One family in one zone.
    FamilyInZone(Family, u16),
}

impl Scope {
    /// The filter that accepts this scope; without a condition for everything.
    pub fn filter(self) -> Filter {
        let filter = Filter::new();
        match self {
            Scope::Everything => filter,
            Scope::Family(family) => filter.with_family(family),
            Scope::Zone(zone) => filter.with_zone(zone),
            Scope::FamilyInZone(family, zone) => filter.with_family(family).with_zone(zone),
        }
    }
}

/// A flow to put into the table without a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewFlow {
    /// Tuple of the original direction.
    pub original: Tuple,
    /// Tuple of the reply direction; `None` is the original's inverse, changed by translation.
    pub reply: Option<Tuple>,
    /// The zone.
    pub zone: Zone,
    /// Whole seconds until the flow ends without a packet, from 0 (at once) to `u32::MAX`.
    pub timeout: Duration,
    /// Mark.
    pub mark: u32,
    /// Status bits; [`Status::CONFIRMED`] is added, and bits that belong to the kernel have no effect.
    pub status: Status,
    /// Labels. A flow that is made while no rule of the network namespace uses labels has no room for them, and the
    /// kernel then makes it without and reports no error; of one that is there, [`Operation::Ensure`] is refused
    /// (`ENOSPC`).
    pub labels: Option<Labels>,
    /// State of a TCP connection; without it the kernel starts at `NONE`.
    pub tcp_state: Option<TcpState>,
    /// All that the kernel knows of a TCP connection or an SCTP association, in place of `tcp_state`. Of TCP, the window
    /// scales count only if the flags of both directions have the bit 1 (window scaling).
    pub protocol_state: Option<ProtocolState>,
    /// Name of a helper that the kernel has.
    pub helper: Option<String>,
    /// Original tuple of the flow that is its master, in the same zone.
    pub master: Option<Tuple>,
    /// Where the source is translated to.
    pub source_nat: Option<NatTarget>,
    /// Where the destination is translated to.
    pub destination_nat: Option<NatTarget>,
}

/// Where an end of a flow is translated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatTarget {
    /// Address, of the flow's family.
    pub address: IpAddr,
    /// Port; `None` keeps the port if it is free.
    pub port: Option<u16>,
}

impl NewFlow {
    /// A flow whose replies are its inverse: zone 0, mark 0, no status, no translation.
    pub fn new(original: Tuple, timeout: Duration) -> Self {
        NewFlow {
            original,
            reply: None,
            zone: Zone::DEFAULT,
            timeout,
            mark: 0,
            status: Status::empty(),
            labels: None,
            tcp_state: None,
            protocol_state: None,
            helper: None,
            master: None,
            source_nat: None,
            destination_nat: None,
        }
    }

    /// With this reply tuple. To let the kernel translate packets, set the translation instead.
    pub fn with_reply(mut self, reply: Tuple) -> Self {
        self.reply = Some(reply);
        self
    }

    /// In this zone.
    pub fn with_zone(mut self, zone: Zone) -> Self {
        self.zone = zone;
        self
    }

    /// With this mark.
    pub fn with_mark(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }

    /// With these status bits.
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// With these labels.
    pub fn with_labels(mut self, labels: Labels) -> Self {
        self.labels = Some(labels);
        self
    }

    /// In this TCP state.
    pub fn with_tcp_state(mut self, state: TcpState) -> Self {
        self.tcp_state = Some(state);
        self
    }

    /// In this state of its protocol, TCP or SCTP.
    pub fn with_protocol_state(mut self, state: ProtocolState) -> Self {
        self.protocol_state = Some(state);
        self
    }

    /// Read by this helper.
    pub fn with_helper(mut self, helper: impl Into<String>) -> Self {
        self.helper = Some(helper.into());
        self
    }

    /// Expected by this flow.
    pub fn with_master(mut self, master: Tuple) -> Self {
        self.master = Some(master);
        self
    }

    /// With its source translated.
    pub fn with_source_nat(mut self, address: IpAddr, port: Option<u16>) -> Self {
        self.source_nat = Some(NatTarget { address, port });
        self
    }

    /// With its destination translated.
    pub fn with_destination_nat(mut self, address: IpAddr, port: Option<u16>) -> Self {
        self.destination_nat = Some(NatTarget { address, port });
        self
    }

    /// Its identity.
    pub fn key(&self) -> FlowKey {
        FlowKey::new(self.original).with_zone(self.zone)
    }

    pub(crate) fn check(&self) -> Result<(), InvalidOperation> {
        self.original.check("original tuple")?;
        check_seconds(self.timeout)?;
        match &self.reply {
            Some(reply) => {
                reply.check("reply tuple")?;
                if reply.family() != self.original.family() || reply.protocol != self.original.protocol {
                    return Err(InvalidOperation::TuplesDiffer);
                }
            }
            None if self.original.inverted().is_none() => return Err(InvalidOperation::NoInverse),
            None => {}
        }
        if let Some(master) = &self.master {
            master.check("master tuple")?;
        }
        check_states(self.original.protocol, self.tcp_state, self.protocol_state)?;
        for (field, target) in [
            ("source translation", self.source_nat),
            ("destination translation", self.destination_nat),
        ] {
            if target.is_some_and(|target| Family::of(target.address) != self.original.family()) {
                return Err(InvalidOperation::MixedFamilies { field });
            }
        }
        if self.helper.as_deref().is_some_and(|name| !is_helper_name(name)) {
            return Err(InvalidOperation::HelperName);
        }
        Ok(())
    }
}

/// What to change of a flow; `None` leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// Whole seconds until the flow ends without a packet, from 0 (at once) to `u32::MAX`.
    pub timeout: Option<Duration>,
    /// Value and mask of the mark: bits in the mask become those of the value.
    pub mark: Option<(u32, u32)>,
    /// All status bits that it has and shall have: the kernel refuses to take away
    /// [`Status::SEEN_REPLY`] and [`Status::ASSURED`]. [`Status::CONFIRMED`] is added.
    pub status: Option<Status>,
    /// Value and mask of the labels: labels in the mask become those of the value, the others stay. Refused
    /// (`ENOSPC`) for a flow that was made while no rule used labels.
    pub labels: Option<(Labels, Labels)>,
    /// State of a TCP connection.
    pub tcp_state: Option<TcpState>,
    /// All that the kernel knows of a TCP connection or an SCTP association, in place of `tcp_state`; see
    /// [`NewFlow::protocol_state`].
    pub protocol_state: Option<ProtocolState>,
}

impl Changes {
    /// No change.
    pub fn new() -> Self {
        Changes::default()
    }

    /// Another timeout. Refused ([`Error::is_timeout_fixed`](crate::Error::is_timeout_fixed)) for a flow with
    /// [`Status::FIXED_TIMEOUT`].
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Another mark.
    pub fn with_mark(self, mark: u32) -> Self {
        self.with_masked_mark(mark, u32::MAX)
    }

    /// Other bits of the mark, those in the mask.
    pub fn with_masked_mark(mut self, mark: u32, mask: u32) -> Self {
        self.mark = Some((mark, mask));
        self
    }

    /// The status bits that it has and shall have.
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = Some(status);
        self
    }

    /// Other labels, those in the mask.
    pub fn with_labels(mut self, labels: Labels, mask: Labels) -> Self {
        self.labels = Some((labels, mask));
        self
    }

    /// Another TCP state.
    pub fn with_tcp_state(mut self, state: TcpState) -> Self {
        self.tcp_state = Some(state);
        self
    }

    /// Another state of its protocol, TCP or SCTP: state, flags, window scales, verification tags.
    pub fn with_protocol_state(mut self, state: ProtocolState) -> Self {
        self.protocol_state = Some(state);
        self
    }
}

impl Operation {
    /// What of this operation the kernel would refuse without a word, or take for something else.
    pub(crate) fn check(&self) -> Result<(), InvalidOperation> {
        match self {
            Operation::Add(flow) | Operation::Ensure(flow) => flow.check(),
            Operation::Update(key, changes) => {
                key.tuple.check("tuple")?;
                check_states(key.tuple.protocol, changes.tcp_state, changes.protocol_state)?;
                changes.timeout.map_or(Ok(()), check_seconds)
            }
            Operation::Delete(key) => key.tuple.check("tuple"),
            Operation::DeleteMatching(filter) => {
                filter.check()?;
                if filter.is_unconditional() {
                    return Err(InvalidOperation::UnconditionalFilter);
                }
                Ok(())
            }
            Operation::Flush(_) => Ok(()),
        }
    }
}

/// The kernel ignores a state of another protocol.
fn check_states(
    protocol: Protocol,
    tcp: Option<TcpState>,
    state: Option<ProtocolState>,
) -> Result<(), InvalidOperation> {
    const MAX_WINDOW_SCALE: u8 = 14;
    let expected = match state {
        None => tcp.map(|_| Protocol::TCP),
        Some(ProtocolState::Tcp { window_scale, .. }) => {
            if tcp.is_some() {
                return Err(InvalidOperation::TwoStates);
            }
            if let Some(scale) = window_scale.into_iter().find(|scale| *scale > MAX_WINDOW_SCALE) {
                return Err(InvalidOperation::WindowScale { scale });
            }
            Some(Protocol::TCP)
        }
        Some(ProtocolState::Sctp { .. }) => Some(Protocol::SCTP),
        Some(ProtocolState::Dccp { .. }) => return Err(InvalidOperation::DccpState),
    };
    match expected {
        Some(expected) if expected != protocol => Err(InvalidOperation::StateOfAnotherProtocol {
            state: expected,
            protocol,
        }),
        _ => Ok(()),
    }
}

/// Whether a helper can have this name.
pub(crate) fn is_helper_name(name: &str) -> bool {
    (1..=15).contains(&name.len()) && !name.contains('\0')
}

pub(crate) fn check_seconds(timeout: Duration) -> Result<(), InvalidOperation> {
    if timeout.subsec_nanos() == 0 && u32::try_from(timeout.as_secs()).is_ok() {
        Ok(())
    } else {
        Err(InvalidOperation::Timeout { timeout })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Everything => Ok(()),
            Scope::Family(family) => write!(f, " -f {family}"),
            Scope::Zone(zone) => write!(f, " -w {zone}"),
            Scope::FamilyInZone(family, zone) => write!(f, " -f {family} -w {zone}"),
        }
    }
}

impl fmt::Display for Operation {
    /// In the notation of `conntrack`, with the words of its listing where it has no option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Add(flow) => write!(f, "-I {flow}"),
            Operation::Ensure(flow) => write!(f, "-I or -U {flow}"),
            Operation::Update(key, changes) => write!(f, "-U {key}{changes}"),
            Operation::Delete(key) => write!(f, "-D {key}"),
            Operation::DeleteMatching(filter) => write!(f, "-D {filter}"),
            Operation::Flush(scope) => write!(f, "-F{scope}"),
        }
    }
}

impl fmt::Display for NewFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} timeout={}", self.key(), self.timeout.as_secs())?;
        if let Some(reply) = &self.reply {
            write!(f, " reply {reply}")?;
        }
        for (name, target) in [("src-nat", self.source_nat), ("dst-nat", self.destination_nat)] {
            match target {
                Some(NatTarget { address, port: None }) => write!(f, " {name}={address}")?,
                Some(NatTarget {
                    address,
                    port: Some(port),
                }) => write!(f, " {name}={}", std::net::SocketAddr::new(address, port))?,
                None => {}
            }
        }
        if self.mark != 0 {
            write!(f, " mark={}", self.mark)?;
        }
        if !self.status.is_empty() {
            write!(f, " status={}", self.status)?;
        }
        if let Some(labels) = self.labels {
            write!(f, " labels={:#x}", labels.0)?;
        }
        if let Some(state) = self.tcp_state {
            write!(f, " state={state}")?;
        }
        if let Some(state) = self.protocol_state {
            write!(f, " {state}")?;
        }
        if let Some(helper) = &self.helper {
            write!(f, " helper={helper}")?;
        }
        if let Some(master) = &self.master {
            write!(f, " master {} {master}", master.protocol)?;
        }
        Ok(())
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(timeout) = self.timeout {
            write!(f, " timeout={}", timeout.as_secs())?;
        }
        match self.mark {
            Some((mark, u32::MAX)) => write!(f, " mark={mark}")?,
            Some((mark, mask)) => write!(f, " mark={mark:#x}/{mask:#x}")?,
            None => {}
        }
        if let Some(status) = self.status {
            write!(f, " status={status}")?;
        }
        if let Some((labels, mask)) = self.labels {
            write!(f, " labels={:#x}/{:#x}", labels.0, mask.0)?;
        }
        if let Some(state) = self.tcp_state {
            write!(f, " state={state}")?;
        }
        match self.protocol_state {
            Some(state) => write!(f, " {state}"),
            None => Ok(()),
        }
    }
}
