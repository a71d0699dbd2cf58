//! How the data path of `docs/new-data-path.md` leaves a node that another mode serves.

// snippet
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use kernlink_engine::DataPath;
use kernlink_engine::retire::{Kept, Retire, Retired, RetiredOutcome, RetiredStep, Round};
use kernlink_engine::services::FrontendKey;

use crate::balancer::Balancer;
use crate::example::host::{Kernel, Owner};
use crate::example::{Error, Forward, Key, Operation};

/// What the data path left on a node.
#[derive(Debug)]
pub(crate) struct Retiring {
    pub(crate) kernel: Kernel,
}

impl Retire for Retiring {
    fn mode(&self) -> &'static str {
        "the example"
    }

    fn read(&mut self, _now: Instant, _kept: Kept<'_>) -> Result<bool, String> {
        let left = self.removal(&|_, _| false).map_err(|error| error.to_string())?;
        Ok(!left.is_empty())
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        let (memory, _) = self.kernel.list().map_err(|error| error.to_string())?;
        Ok(memory
            .forwards
            .values()
            .any(|(owner, _)| *owner == Owner::Example))
    }

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        let mut retired = Retired::default();
        // One that is restricted now, and was not before, is not kept: it would stay open.
        let stays = |key: &FrontendKey, forward: &Forward| {
            let unserved = round.unserved.get(key);
            unserved.is_some_and(|now| {
                now.source_ranges.is_empty() || now.source_ranges == forward.frontend.source_ranges
            })
        };
        let removal = match self.removal(&stays) {
            Ok(removal) => removal,
            Err(error) => {
                retired.problems.push(error.to_string());
                return retired;
            }
        };
        // The addresses that could not be released: their forwards stay, or the node itself would be reached.
        let mut bound = BTreeSet::new();
        for (key, operation) in removal {
            let is_skipped = matches!(key, Key::Forward(forward) if bound.contains(&forward.address));
            let outcome = if !round.executes {
                RetiredOutcome::Planned
            } else if is_skipped {
                RetiredOutcome::Skipped
            } else {
                match self.kernel.execute(&[&operation]).pop() {
                    Some(Ok(())) => RetiredOutcome::Done,
                    Some(Err(error)) => RetiredOutcome::Failed(error.to_string()),
                    None => RetiredOutcome::Failed(Balancer::outcome_missing().to_string()),
                }
            };
            if let (Key::Address(address), RetiredOutcome::Failed(_)) = (&key, &outcome) {
                bound.insert(*address);
            }
            retired.steps.push(RetiredStep {
                class: Balancer::class(&key),
                command: operation.to_string(),
                outcome,
            });
        }
        match self.kernel.list() {
            Ok((memory, _)) => {
                let forwards = memory.forwards.iter();
                let owned = forwards.filter(|(_, (owner, _))| *owner == Owner::Example);
                let held = owned.filter(|(key, _)| round.unserved.contains_key(key));
                retired.held = held.map(|(key, _)| *key).collect();
                retired.is_gone = self.removal(&|_, _| false).is_ok_and(|left| left.is_empty());
            }
            Err(error) => retired.problems.push(error.to_string()),
        }
        retired
    }
}

impl Retiring {
    /// The operations that remove everything but some forwards and their addresses: an address before the last forward at it.
    fn removal(
        &self,
        stays: &dyn Fn(&FrontendKey, &Forward) -> bool,
    ) -> Result<Vec<(Key, Operation)>, Error> {
        let (memory, is_complete) = self.kernel.list()?;
        if !is_complete {
            return Err(Error::Torn);
        }
        let owned = memory.forwards.iter();
        let owned = owned.filter(|(_, (owner, _))| *owner == Owner::Example);
        let (kept, removed): (Vec<_>, Vec<_>) = owned.partition(|(key, (_, forward))| stays(key, forward));
        let needed: BTreeSet<IpAddr> = kept.iter().map(|(key, _)| key.address).collect();
        let addresses = memory.addresses.iter();
        let released = addresses
            .filter(|(address, owner)| **owner == Owner::Example && !needed.contains(address))
            .map(|(address, _)| (Key::Address(*address), Operation::Release(*address)));
        let deleted = removed
            .into_iter()
            .map(|(key, _)| (Key::Forward(*key), Operation::Delete(*key)));
        Ok(released.chain(deleted).collect())
    }
}
// snippet
