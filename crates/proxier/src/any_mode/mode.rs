//! Which mode.

use std::fmt;
use std::str::FromStr;

/// A mode, under kube-proxy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// `iptables`: Services are chains and rules.
    Iptables,
    /// `ipvs`: Services are virtual servers.
    Ipvs,
}

impl Mode {
    /// Both modes.
    pub const ALL: [Self; 2] = [Mode::Iptables, Mode::Ipvs];

    /// The other mode.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Mode::Iptables => Mode::Ipvs,
            Mode::Ipvs => Mode::Iptables,
        }
    }
}

/// The name of a mode is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not supported; supported: iptables, ipvs, or empty, which means iptables")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Parses kube-proxy's names; empty is `iptables`, as in kube-proxy.
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "" | "iptables" => Ok(Mode::Iptables),
            "ipvs" => Ok(Mode::Ipvs),
            _ => Err(UnknownMode(text.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_names_of_kube_proxy_and_empty_means_iptables() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_ne!(mode.other(), mode);
        }
        assert_eq!("".parse(), Ok(Mode::Iptables));
        for name in ["nftables", "userspace", "IPVS"] {
            let error = name.parse::<Mode>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{name:?} is not supported; supported: iptables, ipvs, or empty, which means iptables"
                )
            );
        }
    }
}
