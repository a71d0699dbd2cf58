//! Generations of the ruleset.

use std::fmt;

/// A generation of the ruleset. Every transaction that changes something makes a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// The number; it wraps around and is never 0.
    pub id: u32,
    /// The thread that made it, by its number in the initial PID namespace; only in notifications. It is that of the process if it has one
    /// thread.
    pub pid: Option<u32>,
    /// The name of that thread; only in notifications.
    pub name: Option<Box<str>>,
}

impl fmt::Display for Generation {
    /// As `nft monitor` prints it: `# new generation 7 by process 4242 (nft)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "# new generation {}", self.id)?;
        if let Some(pid) = self.pid {
            write!(f, " by process {pid}")?;
        }
        match &self.name {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_prints_as_nft_prints_it() {
        let mut generation = Generation {
            id: 7,
            pid: Some(4242),
            name: Some("nft".into()),
        };
        assert_eq!(generation.to_string(), "# new generation 7 by process 4242 (nft)");
        (generation.pid, generation.name) = (None, None);
        assert_eq!(generation.to_string(), "# new generation 7");
    }
}
