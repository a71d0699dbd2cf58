//! Flows to add.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use kernlink_base::{Family, Protocol};

use crate::error::InvalidOperation;
use crate::flow::{FlowKey, Labels};
use crate::notation::ProtocolName;
use crate::protocol_state::{ProtocolState, TcpState};
use crate::status::Status;
use crate::tuple::Tuple;
use crate::zone::Zone;

/// A flow to add to the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewFlow {
    /// Tuple of the original direction.
    pub original: Tuple,
    /// Tuple of the reply direction; `None` is the inverse of the original tuple, changed by address translation.
    pub reply: Option<Tuple>,
    /// The zone; zone 0 by default.
    pub zone: Zone,
    /// Time until the flow ends without a packet, whole seconds from 0 (at once) to `u32::MAX`.
    pub timeout: Duration,
    /// Mark; 0 by default.
    pub mark: u32,
    /// Status bits, none by default. [`Status::CONFIRMED`] is added; bits that only the kernel sets have no effect.
    pub status: Status,
    /// Labels. If no rule of the network namespace uses labels, a new flow has no room for them: the kernel adds it without labels
    /// and reports no error. [`Operation::Ensure`](crate::Operation::Ensure) of an existing flow without room is refused
    /// (`ENOSPC`).
    pub labels: Option<Labels>,
    /// State of a TCP connection; `None` is [`TcpState::NONE`].
    pub tcp_state: Option<TcpState>,
    /// State of a TCP connection or an SCTP association with all fields, instead of `tcp_state`. The window scales of TCP have an
    /// effect only if the flags of both directions have the bit 1 (window scaling).
    pub protocol_state: Option<ProtocolState>,
    /// Name of a helper of the kernel, 1 to 15 bytes.
    pub helper: Option<String>,
    /// Original tuple of its master, an existing flow in the same zone.
    pub master: Option<Tuple>,
    /// Translation of the source.
    pub source_nat: Option<NatTarget>,
    /// Translation of the destination.
    pub destination_nat: Option<NatTarget>,
}

/// The result of an address translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatTarget {
    /// Address, of the flow's family.
    pub address: IpAddr,
    /// Port; `None` keeps the port if it is unused.
    pub port: Option<u16>,
}

impl NewFlow {
    /// A flow in zone 0 with mark 0; no other field is set.
    #[must_use]
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

    /// Sets the reply tuple. To make the kernel translate packets, set the address translation instead.
    #[must_use]
    pub fn with_reply(mut self, reply: Tuple) -> Self {
        self.reply = Some(reply);
        self
    }

    /// Sets the zone.
    #[must_use]
    pub fn with_zone(mut self, zone: Zone) -> Self {
        self.zone = zone;
        self
    }

    /// Sets the mark.
    #[must_use]
    pub fn with_mark(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }

    /// Sets the status bits.
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// Sets the labels.
    #[must_use]
    pub fn with_labels(mut self, labels: Labels) -> Self {
        self.labels = Some(labels);
        self
    }

    /// Sets the TCP state.
    #[must_use]
    pub fn with_tcp_state(mut self, state: TcpState) -> Self {
        self.tcp_state = Some(state);
        self
    }

    /// Sets the state of TCP or SCTP.
    #[must_use]
    pub fn with_protocol_state(mut self, state: ProtocolState) -> Self {
        self.protocol_state = Some(state);
        self
    }

    /// Sets the helper.
    #[must_use]
    pub fn with_helper(mut self, helper: impl Into<String>) -> Self {
        self.helper = Some(helper.into());
        self
    }

    /// Sets the original tuple of the master.
    #[must_use]
    pub fn with_master(mut self, master: Tuple) -> Self {
        self.master = Some(master);
        self
    }

    /// Translates the source (SNAT).
    #[must_use]
    pub fn with_source_nat(mut self, address: IpAddr, port: Option<u16>) -> Self {
        self.source_nat = Some(NatTarget { address, port });
        self
    }

    /// Translates the destination (DNAT).
    #[must_use]
    pub fn with_destination_nat(mut self, address: IpAddr, port: Option<u16>) -> Self {
        self.destination_nat = Some(NatTarget { address, port });
        self
    }

    /// The key: original tuple and zone.
    #[must_use]
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
                    return Err(InvalidOperation::TupleMismatch);
                }
            }
            None if self.original.inverted().is_none() => return Err(InvalidOperation::NoReplyType),
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
            write!(f, " master {} {master}", ProtocolName(master.protocol))?;
        }
        Ok(())
    }
}

/// Returns an error for a state that the kernel would ignore or misinterpret.
pub(crate) fn check_states(
    protocol: Protocol,
    tcp: Option<TcpState>,
    state: Option<ProtocolState>,
) -> Result<(), InvalidOperation> {
    const MAX_WINDOW_SCALE: u8 = 14;
    let expected = match state {
        None => tcp.map(|_| Protocol::TCP),
        Some(ProtocolState::Tcp { window_scale, .. }) => {
            if tcp.is_some() {
                return Err(InvalidOperation::ConflictingStates);
            }
            if let Some(scale) = window_scale.into_iter().find(|scale| *scale > MAX_WINDOW_SCALE) {
                return Err(InvalidOperation::WindowScale { scale });
            }
            Some(Protocol::TCP)
        }
        Some(ProtocolState::Sctp { .. }) => Some(Protocol::SCTP),
        Some(ProtocolState::Dccp { .. }) => return Err(InvalidOperation::UnsupportedDccpState),
    };
    match expected {
        Some(expected) if expected != protocol => Err(InvalidOperation::StateMismatch {
            state: expected,
            protocol,
        }),
        _ => Ok(()),
    }
}

/// Whether this is a valid name of a helper (`NF_CT_HELPER_NAME_LEN`).
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
