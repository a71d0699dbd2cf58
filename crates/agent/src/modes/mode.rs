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
    /// `nftables`: Services are elements of maps and sets.
    Nftables,
    /// `userspace`: this process accepts connections and copies.
    Userspace,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Mode::Iptables, Mode::Ipvs, Mode::Nftables, Mode::Userspace];

    /// kube-proxy's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
            Mode::Nftables => "nftables",
            Mode::Userspace => "userspace",
        }
    }
}

/// The name of a mode is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Mode::ALL.map(Mode::name).join(", ");
        let name = &self.0;
        write!(
            f,
            "{name:?} is not supported; supported: {known}, or empty, which means iptables"
        )
    }
}

impl std::error::Error for UnknownMode {}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Parses kube-proxy's names; empty is `iptables`, as in kube-proxy.
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        if text.is_empty() {
            return Ok(Mode::Iptables);
        }
        let known = Self::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
