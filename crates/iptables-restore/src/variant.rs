//! Which iptables it is: versions, and the two back ends in the kernel.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::ruleset::Ruleset;
use crate::table::Table;

/// Where the rules are kept in the kernel. Both can hold rules at the same time, and both then apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backend {
    /// The tables of `ip_tables`: `iptables-legacy-restore`. One lock file for the whole host.
    Legacy,
    /// nftables: `iptables-nft-restore`. No lock.
    #[doc(alias = "nf_tables")]
    Nft,
}

impl Backend {
    /// How the tool calls it in its version.
    pub fn as_str(self) -> &'static str {
        match self {
            Backend::Legacy => "legacy",
            Backend::Nft => "nf_tables",
        }
    }

    /// What stands in the names of its tools after `iptables`.
    pub(crate) fn infix(self) -> &'static str {
        match self {
            Backend::Legacy => "-legacy",
            Backend::Nft => "-nft",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Version of the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number; 0 if there is none.
    pub patch: u16,
    /// The back end, which tools from 1.8.0 on name; older ones are all legacy.
    pub backend: Backend,
}

impl Version {
    fn at_least(&self, version: (u16, u16, u16)) -> bool {
        (self.major, self.minor, self.patch) >= version
    }

    /// Whether restore itself takes the lock and knows `--wait` (from 1.6.2 on).
    pub fn restore_waits(&self) -> bool {
        self.at_least((1, 6, 2))
    }

    /// Whether `iptables` itself takes the lock and knows `--wait` (from 1.4.20 on).
    pub fn waits(&self) -> bool {
        self.at_least((1, 4, 20))
    }

    /// Whether `iptables --wait` takes a number of seconds (from 1.4.22 on).
    pub fn waits_for_seconds(&self) -> bool {
        self.at_least((1, 4, 22))
    }

    /// Whether `MASQUERADE --random-fully` is known (from 1.6.2 on).
    pub fn knows_random_fully(&self) -> bool {
        self.at_least((1, 6, 2))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "v{}.{}.{} ({})",
            self.major, self.minor, self.patch, self.backend
        )
    }
}

impl FromStr for Version {
    type Err = Error;

    /// Reads what `--version` prints: `iptables-restore v1.8.9 (nf_tables)`, `iptables v1.6.1`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = || {
            Error::invalid(
                "iptables version",
                text.trim(),
                "is not of the form vMAJOR.MINOR.PATCH",
            )
        };
        let numbers = text.split_whitespace().find_map(|word| {
            let word = word.strip_prefix('v')?;
            word.starts_with(|c: char| c.is_ascii_digit()).then_some(word)
        });
        let mut numbers = numbers.ok_or_else(refused)?.split('.').map(|number| {
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().map_err(|_| refused())
        });
        let mut next = || numbers.next().transpose();
        Ok(Version {
            major: next()?.ok_or_else(refused)?,
            minor: next()?.ok_or_else(refused)?,
            patch: next()?.unwrap_or(0),
            backend: if text.contains("nf_tables") {
                Backend::Nft
            } else {
                Backend::Legacy
            },
        })
    }
}

/// What one back end holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Version of its tools.
    pub version: Version,
    /// Rules in all tables. A line that could not be read counts as one.
    pub rules: usize,
    /// Chains that are not built in.
    pub chains: usize,
    /// Whether kubelet has left the mark that shows its back end: chain `KUBE-IPTABLES-HINT` or
    /// `KUBE-KUBELET-CANARY` in table mangle.
    pub kubelet: bool,
}

impl Holding {
    pub(crate) fn of(version: Version, saved: &Ruleset) -> Self {
        let names = |table: Table| saved.table(table).into_iter().flat_map(|rules| rules.chains());
        let kubelet = names(Table::Mangle)
            .any(|(name, _)| matches!(name.as_str(), "KUBE-IPTABLES-HINT" | "KUBE-KUBELET-CANARY"));
        let chains = saved
            .tables()
            .map(|(table, rules)| rules.chains().filter(|(name, _)| !table.is_builtin(name)).count())
            .sum();
        Holding {
            version,
            rules: saved.rule_count() + saved.unreadable().len(),
            chains,
            kubelet,
        }
    }

    fn is_empty(&self) -> bool {
        self.rules == 0 && self.chains == 0
    }
}

/// What both back ends of a family hold; none for one whose tools or kernel part are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detection {
    /// The legacy tables.
    pub legacy: Option<Holding>,
    /// nftables.
    pub nft: Option<Holding>,
    /// What the tools without `-legacy` or `-nft` in their name use.
    pub default: Option<Backend>,
}

/// Where rules are, as a detection found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// In one back end only: use that.
    One(Backend),
    /// In none: use what the tools use without being told.
    Neither(Option<Backend>),
    /// In both, which nearly always is a mistake on that host: packets meet both, and an accepted packet of
    /// the one can be dropped by the other.
    Both {
        /// The better guess: where kubelet is, else where more rules are.
        guess: Backend,
    },
}

impl Detection {
    /// Where rules are.
    pub fn verdict(&self) -> Verdict {
        let held = |holding: Option<Holding>| holding.filter(|holding| !holding.is_empty());
        match (held(self.legacy), held(self.nft)) {
            (Some(_), None) => Verdict::One(Backend::Legacy),
            (None, Some(_)) => Verdict::One(Backend::Nft),
            (None, None) => Verdict::Neither(self.default),
            (Some(legacy), Some(nft)) => {
                let weight = |holding: Holding| (holding.kubelet, holding.rules, holding.chains);
                let guess = if weight(legacy) > weight(nft) {
                    Backend::Legacy
                } else {
                    Backend::Nft
                };
                Verdict::Both { guess }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_tools_print() {
        for (text, printed) in [
            ("iptables-restore v1.8.9 (nf_tables)\n", "v1.8.9 (nf_tables)"),
            ("iptables v1.8.7 (legacy)", "v1.8.7 (legacy)"),
            ("iptables v1.6.1", "v1.6.1 (legacy)"),
            ("ip6tables v1.4.21-rc1", "v1.4.21 (legacy)"),
            ("iptables v1.10", "v1.10.0 (legacy)"),
        ] {
            assert_eq!(text.parse::<Version>().unwrap().to_string(), printed);
        }
        assert!("usage: iptables".parse::<Version>().is_err());
        assert!(!"iptables v1.6.1".parse::<Version>().unwrap().restore_waits());
    }

    #[test]
    fn rules_in_both_back_ends_are_told_and_kubelets_mark_decides() {
        let version: Version = "iptables v1.8.9 (legacy)".parse().unwrap();
        let holding = |rules, kubelet| {
            Some(Holding {
                version,
                rules,
                chains: 0,
                kubelet,
            })
        };
        let detection = |legacy, nft| {
            Detection {
                legacy,
                nft,
                default: Some(Backend::Nft),
            }
            .verdict()
        };
        assert_eq!(
            detection(holding(1, false), holding(0, false)),
            Verdict::One(Backend::Legacy)
        );
        assert_eq!(detection(None, holding(1, false)), Verdict::One(Backend::Nft));
        assert_eq!(
            detection(holding(0, false), None),
            Verdict::Neither(Some(Backend::Nft))
        );
        let both = detection(holding(1, true), holding(9, false));
        assert_eq!(
            both,
            Verdict::Both {
                guess: Backend::Legacy
            }
        );
        let both = detection(holding(1, false), holding(9, false));
        assert_eq!(both, Verdict::Both { guess: Backend::Nft });
    }
}
