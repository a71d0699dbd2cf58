//! Which chains are owned.

use std::collections::BTreeSet;

use crate::chain::ChainName;

/// The chains that [`diff`](crate::diff) may change and delete, by name or prefix, in every table.
///
/// All desired chains are owned too, and so is every rule in a foreign chain that jumps to an owned chain, unless
/// [`with_foreign_jumps`](Self::with_foreign_jumps) is set. Built-in chains are never owned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    names: BTreeSet<ChainName>,
    prefixes: BTreeSet<String>,
    pub(crate) keeps_foreign_jumps: bool,
}

impl Ownership {
    /// No chain but the desired ones.
    #[must_use]
    pub fn new() -> Self {
        Ownership::default()
    }

    /// Adds the chain with this name.
    #[must_use]
    pub fn with_chain(mut self, name: ChainName) -> Self {
        self.names.insert(name);
        self
    }

    /// Adds every chain whose name starts with `prefix`. The empty prefix adds every chain.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.prefixes.insert(prefix.into());
        self
    }

    /// Other programs may jump to owned chains: in foreign chains only the desired jumps are owned.
    #[must_use]
    pub fn with_foreign_jumps(mut self) -> Self {
        self.keeps_foreign_jumps = true;
        self
    }

    /// Whether the name or a prefix of it was added.
    #[must_use]
    pub fn is_owned(&self, name: &ChainName) -> bool {
        self.names.contains(name)
            || self
                .prefixes
                .iter()
                .any(|prefix| name.as_str().starts_with(prefix))
    }
}
