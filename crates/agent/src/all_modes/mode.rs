//! Which mode.

use std::fmt;
use std::str::FromStr;

use kernlink_proxier::any_mode;

/// A mode, under kube-proxy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `iptables` or `ipvs`: the kernel forwards packets to endpoints.
    InKernel(any_mode::Mode),
    /// `userspace`: this process accepts connections and copies.
    Userspace,
}

/// The name of a mode is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0;
        write!(
            f,
            "{name:?} is not supported; supported: iptables, ipvs, userspace, or empty, which means iptables"
        )
    }
}

impl std::error::Error for UnknownMode {}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Parses kube-proxy's names; empty is `iptables`, as in kube-proxy.
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        if text == "userspace" {
            return Ok(Mode::Userspace);
        }
        let mode = text.parse().map_err(|_| UnknownMode(text.to_owned()))?;
        Ok(Mode::InKernel(mode))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::InKernel(mode) => mode.fmt(f),
            Mode::Userspace => f.write_str("userspace"),
        }
    }
}
