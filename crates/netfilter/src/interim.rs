//! Chains and rules as the neutral values of a hand-over.

use kernlink_engine::retire::{Interim, Name};
use kernlink_iptables_restore::{ChainName, Rule, Table};
use kernlink_services::Family;

/// The name of a chain.
#[must_use]
pub fn name_of_chain(family: Family, table: Table, chain: &str) -> Name<'_> {
    Name {
        family,
        table: table.as_str(),
        name: chain,
    }
}

/// The rules that a chain of the serving mode must have meanwhile.
pub fn interim<'a>(
    family: Family,
    table: Table,
    chain: &'static str,
    rules: impl IntoIterator<Item = &'a Rule>,
) -> Interim {
    Interim {
        family,
        table: table.as_str(),
        chain,
        rules: rules.into_iter().map(ToString::to_string).collect(),
    }
}

/// The rules of all retiring modes for a chain, in order. `None`: no retiring mode has any for it, not even an empty list.
#[must_use]
pub fn interim_rules(
    interim: &[Interim],
    family: Family,
    table: Table,
    chain: &ChainName,
) -> Option<Vec<Rule>> {
    let of_chain = |other: &&Interim| {
        other.family == family && other.table == table.as_str() && other.chain == chain.as_str()
    };
    let mut of_chain = interim.iter().filter(of_chain).peekable();
    of_chain.peek()?;
    // They were printed by `interim`, so they can be parsed.
    let rules = of_chain.flat_map(|interim| &interim.rules);
    Some(rules.filter_map(|rule| rule.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain_name;

    #[test]
    fn rules_of_a_chain_are_found_in_order() {
        let services = chain_name("KUBE-SERVICES");
        let rules: Vec<Rule> = ["-d 10.96.0.1/32 -p tcp -j KUBE-SVC-A", "-j KUBE-NODEPORTS"]
            .map(|text| text.parse().unwrap())
            .into();
        let values = [interim(Family::Ipv4, Table::Nat, "KUBE-SERVICES", &rules)];
        let found = |family, table, chain| interim_rules(&values, family, table, chain);
        assert_eq!(found(Family::Ipv4, Table::Nat, &services), Some(rules));
        assert_eq!(found(Family::Ipv6, Table::Nat, &services), None);
        assert_eq!(found(Family::Ipv4, Table::Filter, &services), None);
        assert_eq!(found(Family::Ipv4, Table::Nat, &chain_name("OTHER")), None);
    }
}
