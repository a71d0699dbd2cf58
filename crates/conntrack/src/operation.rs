//! Operations on the table.

use std::fmt;

use kernlink_base::Family;

use crate::error::InvalidOperation;
use crate::filter::Filter;
use crate::flow::FlowKey;
use crate::flow_update::FlowUpdate;
use crate::new_flow::{NewFlow, check_seconds, check_states};
use crate::notation::family_name;

/// One change of the table.
///
/// `Display` is the notation of `conntrack`, with the fields of its listing for values that have no option.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Adds a flow (`conntrack -I`). Refused if a flow with one of the tuples exists.
    Add(NewFlow),
    /// Adds a flow, or updates the existing one: sets mark, timeout, labels and state, and adds the status bits to those of the
    /// flow. Its reply tuple and address translation do not change.
    ///
    /// With status bits, each of these operations needs a round trip; without them, many share one.
    Ensure(NewFlow),
    /// Updates a flow (`conntrack -U`). Refused if it does not exist. The kernel ignores the key's `id`.
    Update(FlowKey, FlowUpdate),
    /// Deletes one flow (`conntrack -D` with addresses and ports). Refused if it does not exist.
    Delete(FlowKey),
    /// Deletes all flows that match a filter (`conntrack -D`). It is not an error if no flow matches. The filter must have a
    /// condition; [`Operation::Flush`] deletes everything.
    DeleteMatching(Filter),
    /// Deletes all flows of a scope (`conntrack -F`).
    Flush(FlushScope),
}

/// The flows that a flush deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushScope {
    /// All flows.
    All,
    /// Flows of one family, in all zones.
    Family(Family),
    /// Flows of one zone, of both families.
    Zone(u16),
    /// Flows of one family in one zone.
    FamilyInZone(Family, u16),
}

impl FlushScope {
    /// The filter that matches the flows of this scope.
    #[must_use]
    pub fn filter(self) -> Filter {
        let filter = Filter::new();
        match self {
            FlushScope::All => filter,
            FlushScope::Family(family) => filter.with_family(family),
            FlushScope::Zone(zone) => filter.with_zone(zone),
            FlushScope::FamilyInZone(family, zone) => filter.with_family(family).with_zone(zone),
        }
    }
}

impl Operation {
    /// Returns an error for an operation that the kernel would misinterpret.
    pub(crate) fn check(&self) -> Result<(), InvalidOperation> {
        match self {
            Operation::Add(flow) | Operation::Ensure(flow) => flow.check(),
            Operation::Update(key, update) => {
                key.tuple.check("tuple")?;
                check_states(key.tuple.protocol, update.tcp_state, update.protocol_state)?;
                update.timeout.map_or(Ok(()), check_seconds)
            }
            Operation::Delete(key) => key.tuple.check("tuple"),
            Operation::DeleteMatching(filter) => {
                filter.check()?;
                if filter.is_unconditional() {
                    return Err(InvalidOperation::UnconditionalFilter);
                }
                Ok(())
            }
            Operation::Flush(_) => Ok(()),
        }
    }
}

impl fmt::Display for FlushScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlushScope::All => Ok(()),
            FlushScope::Family(family) => write!(f, " -f {}", family_name(*family)),
            FlushScope::Zone(zone) => write!(f, " -w {zone}"),
            FlushScope::FamilyInZone(family, zone) => write!(f, " -f {} -w {zone}", family_name(*family)),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Add(flow) => write!(f, "-I {flow}"),
            Operation::Ensure(flow) => write!(f, "-I or -U {flow}"),
            Operation::Update(key, update) => write!(f, "-U {key}{update}"),
            Operation::Delete(key) => write!(f, "-D {key}"),
            Operation::DeleteMatching(filter) => write!(f, "-D {filter}"),
            Operation::Flush(scope) => write!(f, "-F{scope}"),
        }
    }
}
