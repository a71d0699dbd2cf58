//! `-m multiport`: a list of ports.

use std::fmt;

use crate::condition::Condition;
use crate::error::Error;
use crate::network::PortRange;
use crate::uapi::XT_MULTI_PORTS;
use crate::wire::options::Options;
use crate::wire::render::Printer;

/// A list of ports and ranges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Multiport {
    side: MultiportSide,
    ports: Vec<PortRange>,
}

/// The port of the packet that must be in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MultiportSide {
    /// `--sports`
    Source,
    /// `--dports`
    Destination,
    /// `--ports`: either one.
    Either,
}

impl MultiportSide {
    fn option(self) -> &'static str {
        match self {
            MultiportSide::Source => "--sports",
            MultiportSide::Destination => "--dports",
            MultiportSide::Either => "--ports",
        }
    }
}

impl Multiport {
    /// Maximum number of ports in a list, [`XT_MULTI_PORTS`]; a range counts as two.
    #[doc(alias = "XT_MULTI_PORTS")]
    pub const LIMIT: usize = XT_MULTI_PORTS;

    /// A list of 1 to [`Multiport::LIMIT`] ports in the given order.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the list is empty, [`Error::TooLong`] if it contains too many ports.
    pub fn new(side: MultiportSide, ports: impl IntoIterator<Item = PortRange>) -> Result<Self, Error> {
        let ports: Vec<_> = ports.into_iter().collect();
        let length: usize = ports
            .iter()
            .map(|range| if range.first == range.last { 1 } else { 2 })
            .sum();
        let multiport = Multiport { side, ports };
        if length == 0 {
            return Err(Error::invalid("multiport", "", "must contain a port"));
        }
        if length > Self::LIMIT {
            return Err(Error::TooLong {
                field: "multiport",
                value: multiport.to_string(),
                length,
                limit: Self::LIMIT,
                constant: "XT_MULTI_PORTS",
            });
        }
        Ok(multiport)
    }

    /// The port that must be in the list.
    #[must_use]
    pub fn side(&self) -> MultiportSide {
        self.side
    }

    /// The list, in order.
    #[must_use]
    pub fn ports(&self) -> &[PortRange] {
        &self.ports
    }

    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Condition<Self>> {
        let flag = options.flag()?;
        let side = match flag.name {
            "--sports" | "--source-ports" => MultiportSide::Source,
            "--dports" | "--destination-ports" => MultiportSide::Destination,
            "--ports" => MultiportSide::Either,
            _ => return None,
        };
        let ports: Option<Vec<_>> = options
            .next()?
            .split(',')
            .map(|port| PortRange::read(port, ':'))
            .collect();
        Some(flag.condition(Multiport::new(side, ports?).ok()?))
    }

    pub(super) fn print(test: &Condition<Self>, out: &mut Printer<'_>) {
        out.literal("-m multiport");
        out.required(test.value().side.option(), test, |out, ports| out.value(ports));
    }
}

impl fmt::Display for Multiport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for range in &self.ports {
            write!(f, "{separator}{range}")?;
            separator = ",";
        }
        Ok(())
    }
}
