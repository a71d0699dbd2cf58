//! What can be asked of the table.

use std::fmt;

use kernlink_base::Family;

use crate::error::InvalidOperation;
use crate::filter::Filter;
use crate::flow::FlowKey;
use crate::flow_update::Changes;
use crate::new_flow::{NewFlow, check_seconds, check_states};
use crate::notation::family_name;

/// One change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Put a flow into the table; refused if one with either tuple is there (`conntrack -I`).
    Add(NewFlow),
    /// Put a flow into the table, or give mark, timeout, labels and state to the one that is there and add the
    /// status bits to those that it has; its reply tuple and translation stay as they are.
    ///
    /// With status bits each of these operations costs a round trip, without them many share one.
    Ensure(NewFlow),
    /// Change a flow (`conntrack -U`); refused if it is not there. The kernel does not look at the
    /// key's `id` here.
    Update(FlowKey, Changes),
    /// Take one flow out of the table (`conntrack -D` with both addresses and ports); refused if it is not there.
    Delete(FlowKey),
    /// Take all flows out of the table that a filter accepts (`conntrack -D`). None is not an
    /// error. A filter that accepts everything is: that is what [`Operation::Flush`] is for.
    DeleteMatching(Filter),
    /// Empty the table, or a part of it that has a name (`conntrack -F`).
    Flush(Scope),
}

/// How much of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// All of it.
    Everything,
    /// One family, in all zones.
    Family(Family),
    /// One zone, both families.
    Zone(u16),
    /// One family in one zone.
    FamilyInZone(Family, u16),
}

impl Scope {
    /// The filter that accepts this scope; without a condition for everything.
    pub fn filter(self) -> Filter {
        let filter = Filter::new();
        match self {
            Scope::Everything => filter,
            Scope::Family(family) => filter.with_family(family),
            Scope::Zone(zone) => filter.with_zone(zone),
            Scope::FamilyInZone(family, zone) => filter.with_family(family).with_zone(zone),
        }
    }
}

impl Operation {
    /// What of this operation the kernel would refuse without a word, or take for something else.
    pub(crate) fn check(&self) -> Result<(), InvalidOperation> {
        match self {
            Operation::Add(flow) | Operation::Ensure(flow) => flow.check(),
            Operation::Update(key, changes) => {
                key.tuple.check("tuple")?;
                check_states(key.tuple.protocol, changes.tcp_state, changes.protocol_state)?;
                changes.timeout.map_or(Ok(()), check_seconds)
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

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Everything => Ok(()),
            Scope::Family(family) => write!(f, " -f {}", family_name(*family)),
            Scope::Zone(zone) => write!(f, " -w {zone}"),
            Scope::FamilyInZone(family, zone) => write!(f, " -f {} -w {zone}", family_name(*family)),
        }
    }
}

impl fmt::Display for Operation {
    /// In the notation of `conntrack`, with the words of its listing where it has no option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Add(flow) => write!(f, "-I {flow}"),
            Operation::Ensure(flow) => write!(f, "-I or -U {flow}"),
            Operation::Update(key, changes) => write!(f, "-U {key}{changes}"),
            Operation::Delete(key) => write!(f, "-D {key}"),
            Operation::DeleteMatching(filter) => write!(f, "-D {filter}"),
            Operation::Flush(scope) => write!(f, "-F{scope}"),
        }
    }
}
