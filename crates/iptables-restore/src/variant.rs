//! Legacy and nft: the variants of iptables, their versions, and which of them contains rules.

use std::fmt;
use std::str::FromStr;

use kernlink_base::Family;

use crate::error::Error;
use crate::ruleset::Ruleset;
use crate::table::Table;

/// Where the kernel keeps the rules. Both variants can contain rules at the same time, and then both apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variant {
    /// The tables of `ip_tables`: `iptables-legacy-restore`. One lock file for the whole host.
    Legacy,
    /// nftables: `iptables-nft-restore`. No lock.
    #[doc(alias = "nf_tables")]
    Nft,
}

impl Variant {
    /// The name that `iptables --version` prints: `legacy` or `nf_tables`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Variant::Legacy => "legacy",
            Variant::Nft => "nf_tables",
        }
    }

    /// The part of the names of its tools after `iptables`.
    pub(crate) fn infix(self) -> &'static str {
        match self {
            Variant::Legacy => "-legacy",
            Variant::Nft => "-nft",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The first part of the names of a family's tools: `iptables` or `ip6tables`.
#[must_use]
pub fn tool(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    }
}

/// Version and variant of the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// 1 of `v1.8.9`.
    pub major: u16,
    /// 8 of `v1.8.9`.
    pub minor: u16,
    /// 9 of `v1.8.9`; 0 if the version has no third number.
    pub patch: u16,
    /// The variant, which tools print since 1.8.0. All older tools are legacy.
    pub variant: Variant,
}

impl Version {
    fn at_least(&self, version: (u16, u16, u16)) -> bool {
        (self.major, self.minor, self.patch) >= version
    }

    /// Whether `iptables-restore` takes the lock and supports `--wait` (since 1.6.2).
    #[must_use]
    pub fn restore_supports_wait(&self) -> bool {
        self.at_least((1, 6, 2))
    }

    /// Whether `iptables` takes the lock and supports `--wait` (since 1.4.20).
    #[must_use]
    pub fn supports_wait(&self) -> bool {
        self.at_least((1, 4, 20))
    }

    /// Whether `iptables --wait` takes a number of seconds (since 1.4.22).
    #[must_use]
    pub fn supports_wait_seconds(&self) -> bool {
        self.at_least((1, 4, 22))
    }

    /// Whether `MASQUERADE --random-fully` is supported (since 1.6.2).
    #[must_use]
    pub fn supports_random_fully(&self) -> bool {
        self.at_least((1, 6, 2))
    }
}

impl fmt::Display for Version {
    /// `v1.8.9 (nf_tables)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "v{}.{}.{} ({})",
            self.major, self.minor, self.patch, self.variant
        )
    }
}

impl FromStr for Version {
    type Err = Error;

    /// Parses the output of `--version`: `iptables-restore v1.8.9 (nf_tables)`, `iptables v1.6.1`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::invalid("iptables version", text.trim(), "expected vMAJOR.MINOR.PATCH");
        let numbers = text.split_whitespace().find_map(|word| {
            let word = word.strip_prefix('v')?;
            word.starts_with(|c: char| c.is_ascii_digit()).then_some(word)
        });
        let mut numbers = numbers.ok_or_else(invalid)?.split('.').map(|number| {
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().map_err(|_| invalid())
        });
        let mut next = || numbers.next().transpose();
        Ok(Version {
            major: next()?.ok_or_else(invalid)?,
            minor: next()?.ok_or_else(invalid)?,
            patch: next()?.unwrap_or(0),
            variant: if text.contains("nf_tables") {
                Variant::Nft
            } else {
                Variant::Legacy
            },
        })
    }
}

/// What the tables of one variant contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariantUsage {
    /// Version of its tools.
    pub version: Version,
    /// Rules in all tables. A line that could not be parsed counts as one.
    pub rules: usize,
    /// Chains that are not built in.
    pub chains: usize,
    /// Whether kubelet uses this variant: table mangle has a chain `KUBE-IPTABLES-HINT` or `KUBE-KUBELET-CANARY`.
    pub has_kubelet_chain: bool,
}

impl VariantUsage {
    pub(crate) fn of(version: Version, saved: &Ruleset) -> Self {
        let chains = |table: Table| saved.table(table).into_iter().flat_map(|rules| rules.chains());
        let has_kubelet_chain = chains(Table::Mangle)
            .any(|(name, _)| matches!(name.as_str(), "KUBE-IPTABLES-HINT" | "KUBE-KUBELET-CANARY"));
        let chains = saved
            .tables()
            .map(|(table, rules)| rules.chains().filter(|(name, _)| !table.is_builtin(name)).count())
            .sum();
        VariantUsage {
            version,
            rules: saved.rule_count() + saved.unreadable().len(),
            chains,
            has_kubelet_chain,
        }
    }

    fn is_empty(&self) -> bool {
        self.rules == 0 && self.chains == 0
    }
}

/// The variants of one family that this host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectedVariants {
    /// The legacy tables; `None` if their tools or kernel modules are missing.
    pub legacy: Option<VariantUsage>,
    /// nftables; `None` if its tools or kernel modules are missing.
    pub nft: Option<VariantUsage>,
    /// The variant of the tools without `-legacy` or `-nft` in their names.
    pub default: Option<Variant>,
}

/// Which variants contain rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariantInUse {
    /// Only this one.
    One(Variant),
    /// None. The value is [`DetectedVariants::default`].
    Neither(Option<Variant>),
    /// Both, which is nearly always a misconfiguration: packets pass the rules of both, so one variant can drop what the other
    /// accepts.
    Both {
        /// The variant that kubelet uses, otherwise the one with more rules.
        preferred: Variant,
    },
}

impl DetectedVariants {
    /// Which variants contain rules.
    #[must_use]
    pub fn in_use(&self) -> VariantInUse {
        let not_empty = |usage: Option<VariantUsage>| usage.filter(|usage| !usage.is_empty());
        match (not_empty(self.legacy), not_empty(self.nft)) {
            (Some(_), None) => VariantInUse::One(Variant::Legacy),
            (None, Some(_)) => VariantInUse::One(Variant::Nft),
            (None, None) => VariantInUse::Neither(self.default),
            (Some(legacy), Some(nft)) => {
                let weight = |usage: VariantUsage| (usage.has_kubelet_chain, usage.rules, usage.chains);
                let preferred = if weight(legacy) > weight(nft) {
                    Variant::Legacy
                } else {
                    Variant::Nft
                };
                VariantInUse::Both { preferred }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_from_the_output_of_the_tools() {
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
        assert!(
            !"iptables v1.6.1"
                .parse::<Version>()
                .unwrap()
                .restore_supports_wait()
        );
    }

    #[test]
    fn kubelets_chain_decides_if_both_variants_contain_rules() {
        let version: Version = "iptables v1.8.9 (legacy)".parse().unwrap();
        let usage = |rules, has_kubelet_chain| {
            Some(VariantUsage {
                version,
                rules,
                chains: 0,
                has_kubelet_chain,
            })
        };
        let in_use = |legacy, nft| {
            DetectedVariants {
                legacy,
                nft,
                default: Some(Variant::Nft),
            }
            .in_use()
        };
        assert_eq!(
            in_use(usage(1, false), usage(0, false)),
            VariantInUse::One(Variant::Legacy)
        );
        assert_eq!(in_use(None, usage(1, false)), VariantInUse::One(Variant::Nft));
        assert_eq!(
            in_use(usage(0, false), None),
            VariantInUse::Neither(Some(Variant::Nft))
        );
        assert_eq!(
            in_use(usage(1, true), usage(9, false)),
            VariantInUse::Both {
                preferred: Variant::Legacy
            }
        );
        assert_eq!(
            in_use(usage(1, false), usage(9, false)),
            VariantInUse::Both {
                preferred: Variant::Nft
            }
        );
    }
}
