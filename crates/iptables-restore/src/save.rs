//! Requests to read tables.

use kernlink_base::Family;

#[cfg(doc)]
use crate::ruleset::Ruleset;
use crate::table::Table;

/// Which tables are read, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// `iptables-save` or `ip6tables-save`.
    pub family: Family,
    /// The table to read; `None` for all tables that exist. Reading a table by name creates it if the kernel supports it.
    pub table: Option<Table>,
    /// Whether the counters of rules are read. Those of policies always are.
    pub counters: bool,
    /// Whether lines that cannot be parsed are skipped and recorded ([`Ruleset::unreadable`]) instead of being an error.
    pub lenient: bool,
}

impl Save {
    /// All tables that exist, without the counters of rules.
    #[must_use]
    pub fn all(family: Family) -> Self {
        Save {
            family,
            table: None,
            counters: false,
            lenient: false,
        }
    }

    /// One table, without the counters of rules.
    #[must_use]
    pub fn table(family: Family, table: Table) -> Self {
        Save {
            family,
            table: Some(table),
            counters: false,
            lenient: false,
        }
    }

    /// Reads the counters of rules too.
    #[must_use]
    pub fn with_counters(mut self) -> Self {
        self.counters = true;
        self
    }

    /// Skips and records what cannot be parsed, so that foreign rules cannot make the read fail.
    ///
    /// Skipped are the lines listed at [`Ruleset::parse_lenient`], and tables that the tool fails to print because they
    /// contain nftables rules that it does not support; these are [`Ruleset::is_unreadable`]. If all tables are requested and
    /// the tool fails, each of the five tables is read by name, which creates those that do not exist.
    #[must_use]
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }
}
