//! Connections that a helper has announced.

use std::fmt;
use std::time::Duration;

use crate::error::InvalidOperation;
use crate::new_flow::{check_seconds, is_helper_name};
use crate::tuple::Tuple;
use crate::zone::Zone;

bitflags::bitflags! {
    /// What kind of expectation it is.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct ExpectationFlags: u32 {
        /// Stays when it is met.
        #[doc(alias = "NF_CT_EXPECT_PERMANENT")]
        const PERMANENT = 1;
        /// Not to be met yet.
        #[doc(alias = "NF_CT_EXPECT_INACTIVE")]
        const INACTIVE = 2;
        /// Made by a program.
        #[doc(alias = "NF_CT_EXPECT_USERSPACE")]
        const USERSPACE = 4;
        /// Bits that have no name yet.
        const _ = !0;
    }
}

/// A connection that another one has announced, such as the data connection of FTP
/// (`conntrack -L expect`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expectation {
    /// Original tuple of the flow that announced it.
    pub master: Tuple,
    /// What is expected.
    pub tuple: Tuple,
    /// Which bits of what is expected must fit: 0 in a port means any.
    pub mask: Tuple,
    /// The zone, zone 0 where the kernel leaves it out: up to 6.18 it does not list the zone of an expectation
    /// ([`ctnetlink_exp_dump_expect`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c)).
    pub zone: Zone,
    /// Whole seconds for which it is expected; `None` for ever.
    pub timeout: Option<Duration>,
    /// Number of the expectation. Linux 6.1 tells another one in news than in listings.
    pub id: u32,
    /// Name of the helper that the new flow will get.
    pub helper: Option<Box<str>>,
    /// What kind of expectation it is.
    pub flags: ExpectationFlags,
    /// Class, in the helper's numbering.
    pub class: u32,
    /// Name of the function in the kernel that is called when it is met, where it has one.
    pub function: Option<Box<str>>,
}

/// An expectation to create ([`Client::add_expectation`](crate::Client::add_expectation)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewExpectation {
    /// Original tuple of the flow that announces it, in the same zone. The flow has a helper.
    pub master: Tuple,
    /// Tuple of the expected flow, of the family of the master.
    pub tuple: Tuple,
    /// Which bits of the source of what is expected must fit: 0 in a port means any. The destination must fit in
    /// any case. Of the family and the protocol of what is expected.
    pub mask: Tuple,
    /// Number of the zone.
    pub zone: u16,
    /// Whole seconds for which it is expected, up to `u32::MAX`; `None` is the time of the master's helper.
    pub timeout: Option<Duration>,
    /// Name of the helper that the new flow will get; `None` for none.
    pub helper: Option<String>,
    /// What kind of expectation it is. [`ExpectationFlags::USERSPACE`] has no effect.
    pub flags: ExpectationFlags,
    /// Class, in the numbering of `helper`; 0 without one.
    pub class: u32,
}

impl NewExpectation {
    /// An expectation in zone 0, for the time of the master's helper, without a helper of its own.
    pub fn new(master: Tuple, tuple: Tuple, mask: Tuple) -> Self {
        NewExpectation {
            master,
            tuple,
            mask,
            zone: 0,
            timeout: None,
            helper: None,
            flags: ExpectationFlags::empty(),
            class: 0,
        }
    }

    /// In this zone.
    pub fn with_zone(mut self, zone: u16) -> Self {
        self.zone = zone;
        self
    }

    /// For this time.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// With this helper for the new flow.
    pub fn with_helper(mut self, helper: impl Into<String>) -> Self {
        self.helper = Some(helper.into());
        self
    }

    /// Of this kind.
    pub fn with_flags(mut self, flags: ExpectationFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Of this class.
    pub fn with_class(mut self, class: u32) -> Self {
        self.class = class;
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidOperation> {
        self.master.check("master tuple")?;
        self.tuple.check("tuple")?;
        self.mask.check("mask")?;
        let is_alike = |other: &Tuple| other.family() == self.tuple.family();
        if !is_alike(&self.master) {
            return Err(InvalidOperation::MixedFamilies {
                field: "master tuple",
            });
        }
        if !is_alike(&self.mask) || self.mask.protocol != self.tuple.protocol {
            return Err(InvalidOperation::MaskDiffers);
        }
        if self.helper.as_deref().is_some_and(|name| !is_helper_name(name)) {
            return Err(InvalidOperation::HelperName);
        }
        self.timeout.map_or(Ok(()), check_seconds)
    }
}

impl fmt::Display for NewExpectation {
    /// As `conntrack -L expect` prints it, as far as it is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Expectation {
            master: self.master,
            tuple: self.tuple,
            mask: self.mask,
            zone: Zone::new(self.zone),
            timeout: self.timeout,
            id: 0,
            helper: self.helper.as_deref().map(Into::into),
            flags: self.flags,
            class: self.class,
            function: None,
        }
        .fmt(f)
    }
}

impl fmt::Display for Expectation {
    /// As `conntrack -L expect` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.timeout {
            Some(timeout) => write!(f, "{} ", timeout.as_secs())?,
            None => f.write_str("- ")?,
        }
        write!(
            f,
            "proto={} {} mask-{} master-{}",
            self.tuple.protocol.0,
            self.tuple,
            second_prefixed("mask-", &self.mask),
            second_prefixed("master-", &self.master),
        )?;
        if self.zone != Zone::DEFAULT {
            write!(f, " zone={}", self.zone.id)?;
        }
        write!(f, " class={}", self.class)?;
        match &self.helper {
            Some(helper) => write!(f, " helper={helper}"),
            None => Ok(()),
        }
    }
}

/// The fields of a tuple, with a prefix before the second: the first gets it from where it stands, and ports
/// have none.
fn second_prefixed(prefix: &str, tuple: &Tuple) -> String {
    tuple.to_string().replacen(' ', &format!(" {prefix}"), 1)
}
