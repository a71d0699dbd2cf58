//! Features that kernels before a release do not have.

use std::fmt;

use kernlink_base::KernelRelease;

use crate::element::ElementFlags;
use crate::expression::{BitwiseOperation, DynsetOperation, Expression, MetaKey};
use crate::operation::{Item, Operation};
use crate::table::TableFlags;

/// A feature that an operation or a request uses, and that the running kernel is too old for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requirement {
    /// The feature, in words of `nft`.
    pub feature: &'static str,
    /// The first release with it.
    pub since: KernelRelease,
    /// The release of the running kernel.
    pub running: KernelRelease,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Requirement {
            feature,
            since,
            running,
        } = self;
        write!(f, "{feature} requires Linux {since}; this kernel is {running}")
    }
}

/// A feature and the first release with it.
pub(crate) type Feature = (&'static str, KernelRelease);

pub(crate) const RESET_RULES: Feature = ("reset of rules", KernelRelease::new(6, 2));
pub(crate) const RESET_ELEMENTS: Feature = ("reset of elements", KernelRelease::new(6, 5));
const DESTROY: Feature = ("destroy", KernelRelease::new(6, 3));
const DYNSET_DELETE: Feature = ("deletion of an element by a rule", KernelRelease::new(5, 4));
const OWNER: Feature = ("table flag owner", KernelRelease::new(5, 12));
const PERSIST: Feature = ("table flag persist", KernelRelease::new(6, 9));
const CATCHALL: Feature = ("catch-all element", KernelRelease::new(5, 13));
const LAST: Feature = ("expression last", KernelRelease::new(5, 14));
const INNER: Feature = ("expression inner", KernelRelease::new(6, 2));
const BROUTE: Feature = ("meta broute", KernelRelease::new(6, 4));
const BITWISE_OF_REGISTERS: Feature = ("bitwise and, or, xor of two registers", KernelRelease::new(6, 13));

impl Requirement {
    /// The newest feature of an operation that the running kernel is too old for. `None` also if its release cannot be read.
    pub(crate) fn of_operation(operation: &Operation) -> Option<Self> {
        let running = KernelRelease::current().ok()?;
        let missing = features(operation)
            .into_iter()
            .filter(|(_, since)| *since > running);
        let (feature, since) = missing.max_by_key(|(_, since)| *since)?;
        Some(Requirement {
            feature,
            since,
            running,
        })
    }

    /// A feature, if the running kernel is too old for it.
    pub(crate) fn of_feature((feature, since): Feature) -> Option<Self> {
        let running = KernelRelease::current().ok()?;
        (since > running).then_some(Requirement {
            feature,
            since,
            running,
        })
    }
}

fn features(operation: &Operation) -> Vec<Feature> {
    let mut features = Vec::new();
    let item = match operation {
        Operation::Destroy(_) => {
            features.push(DESTROY);
            None
        }
        Operation::Add(item) | Operation::Create(item) => Some(item),
        Operation::Insert(rule) | Operation::Replace(_, rule) => {
            features.extend(rule.expressions.iter().filter_map(feature));
            None
        }
        Operation::Delete(_) | Operation::Flush(_) => None,
    };
    match item {
        Some(Item::Table(table)) => {
            let flags = [(TableFlags::OWNER, OWNER), (TableFlags::PERSIST, PERSIST)];
            let used = flags.into_iter().filter(|(flag, _)| table.flags.contains(*flag));
            features.extend(used.map(|(_, feature)| feature));
        }
        Some(Item::Rule(rule)) => features.extend(rule.expressions.iter().filter_map(feature)),
        Some(Item::Elements(elements)) => {
            let is_catchall = |element: &crate::Element| element.flags.contains(ElementFlags::CATCHALL);
            if elements.elements.iter().any(is_catchall) {
                features.push(CATCHALL);
            }
        }
        _ => {}
    }
    features
}

fn feature(expression: &Expression) -> Option<Feature> {
    match expression {
        Expression::Last(_) => Some(LAST),
        Expression::Inner(_) => Some(INNER),
        Expression::Dynset(dynset) if dynset.operation == DynsetOperation::Delete => Some(DYNSET_DELETE),
        Expression::Meta(meta) if meta.key == MetaKey::BridgeRoute => Some(BROUTE),
        Expression::MetaSet(meta) if meta.key == MetaKey::BridgeRoute => Some(BROUTE),
        Expression::Bitwise(bitwise)
            if matches!(
                bitwise.operation,
                BitwiseOperation::And | BitwiseOperation::Or | BitwiseOperation::Xor
            ) =>
        {
            Some(BITWISE_OF_REGISTERS)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bitwise, Dynset, Element, Elements, Last, Register, Rule, Table, TableFamily, TableKey};

    #[test]
    fn the_features_of_an_operation_are_found() {
        let table = TableKey::new(TableFamily::Ip, "t");
        let names = |operation: Operation| -> Vec<&str> {
            features(&operation).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(Operation::add(Table::new(table.clone()))), [""; 0]);
        let flags = TableFlags::OWNER | TableFlags::PERSIST;
        assert_eq!(
            names(Operation::create(Table::new(table.clone()).with_flags(flags))),
            ["table flag owner", "table flag persist"]
        );
        assert_eq!(names(Operation::destroy(table.clone())), ["destroy"]);
        let register = Register::data(0);
        let mut xor = Bitwise::new(register, register, 4_u32);
        xor.operation = BitwiseOperation::Xor;
        let rule = Rule::new(table.chain("a"), vec![Last::new().into(), xor.into()]);
        let expected = ["expression last", "bitwise and, or, xor of two registers"];
        assert_eq!(names(Operation::Insert(rule)), expected);
        let forget = Dynset::new("s", DynsetOperation::Delete, register);
        let rule = Rule::new(table.chain("a"), vec![forget.into()]);
        assert_eq!(names(Operation::add(rule)), ["deletion of an element by a rule"]);
        let elements = Elements::new(table.set("s"), [Element::catch_all()]);
        assert_eq!(names(Operation::add(elements)), ["catch-all element"]);
    }

    #[test]
    fn a_requirement_names_the_feature_and_both_releases() {
        let requirement = Requirement {
            feature: "destroy",
            since: KernelRelease::new(6, 3),
            running: KernelRelease::new(6, 1),
        };
        assert_eq!(
            requirement.to_string(),
            "destroy requires Linux 6.3; this kernel is 6.1"
        );
    }
}
