//! Expectations.

use std::fmt;
use std::time::Duration;

use crate::error::InvalidOperation;
use crate::new_flow::{check_seconds, is_helper_name};
use crate::tuple::Tuple;
use crate::zone::Zone;

bitflags::bitflags! {
    /// Flags of an expectation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct ExpectationFlags: u32 {
        /// Not deleted when a flow matches.
        #[doc(alias = "NF_CT_EXPECT_PERMANENT")]
        const PERMANENT = 1;
        /// Not compared with flows yet.
        #[doc(alias = "NF_CT_EXPECT_INACTIVE")]
        const INACTIVE = 2;
        /// Added by a program.
        #[doc(alias = "NF_CT_EXPECT_USERSPACE")]
        const USERSPACE = 4;
        /// Bits without a name are kept.
        const _ = !0;
    }
}

/// A flow that another flow has announced, such as the data connection of FTP (`conntrack -L expect`).
///
/// `Display` is the line of `conntrack -L expect`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expectation {
    /// Original tuple of the flow that announced it, its master.
    pub master: Tuple,
    /// Original tuple of the expected flow.
    pub tuple: Tuple,
    /// Bits of the tuple that are compared; a port of 0 is any port.
    pub mask: Tuple,
    /// The zone. Zone 0 if the kernel does not list it, as kernels up to 6.18
    /// ([`ctnetlink_exp_dump_expect`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c)).
    pub zone: Zone,
    /// Time until the expectation ends, in whole seconds; `None` is no end.
    pub timeout: Option<Duration>,
    /// Id of the expectation. Linux 6.1 has other ids in events than in listings.
    pub id: u32,
    /// Name of the helper that the expected flow gets.
    pub helper: Option<Box<str>>,
    /// Flags.
    pub flags: ExpectationFlags,
    /// Class, a number of the helper.
    pub class: u32,
    /// Name of the kernel function that is called when a flow matches, if any.
    pub function: Option<Box<str>>,
}

/// An expectation to add ([`Client::add_expectation`](crate::Client::add_expectation)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewExpectation {
    /// Original tuple of its master, an existing flow with a helper in the same zone.
    pub master: Tuple,
    /// Original tuple of the expected flow, of the family of the master.
    pub tuple: Tuple,
    /// Bits of the source that are compared; a port of 0 is any port. The destination is always compared completely. The
    /// family and the protocol are those of `tuple`.
    pub mask: Tuple,
    /// Id of the zone; 0 by default.
    pub zone: u16,
    /// Time until the expectation ends, whole seconds up to `u32::MAX`; `None` is the timeout of the master's helper.
    pub timeout: Option<Duration>,
    /// Name of the helper that the expected flow gets; `None` is no helper.
    pub helper: Option<String>,
    /// Flags. [`ExpectationFlags::USERSPACE`] has no effect.
    pub flags: ExpectationFlags,
    /// Class, a number of `helper`; 0 without a helper.
    pub class: u32,
}

impl NewExpectation {
    /// An expectation in zone 0, with the timeout of the master's helper, without a helper and flags.
    #[must_use]
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

    /// Sets the zone.
    #[must_use]
    pub fn with_zone(mut self, zone: u16) -> Self {
        self.zone = zone;
        self
    }

    /// Sets the timeout.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the helper of the expected flow.
    #[must_use]
    pub fn with_helper(mut self, helper: impl Into<String>) -> Self {
        self.helper = Some(helper.into());
        self
    }

    /// Sets the flags.
    #[must_use]
    pub fn with_flags(mut self, flags: ExpectationFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the class.
    #[must_use]
    pub fn with_class(mut self, class: u32) -> Self {
        self.class = class;
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidOperation> {
        self.master.check("master tuple")?;
        self.tuple.check("tuple")?;
        self.mask.check("mask")?;
        let has_family = |other: &Tuple| other.family() == self.tuple.family();
        if !has_family(&self.master) {
            return Err(InvalidOperation::MixedFamilies {
                field: "master tuple",
            });
        }
        if !has_family(&self.mask) || self.mask.protocol != self.tuple.protocol {
            return Err(InvalidOperation::MaskMismatch);
        }
        if self.helper.as_deref().is_some_and(|name| !is_helper_name(name)) {
            return Err(InvalidOperation::HelperName);
        }
        self.timeout.map_or(Ok(()), check_seconds)
    }
}

impl fmt::Display for NewExpectation {
    /// As `conntrack -L expect` prints it.
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

/// The fields of a tuple, with a prefix before the second field. The caller prints the prefix of the first field; ports have no
/// prefix.
fn second_prefixed(prefix: &str, tuple: &Tuple) -> String {
    tuple.to_string().replacen(' ', &format!(" {prefix}"), 1)
}
