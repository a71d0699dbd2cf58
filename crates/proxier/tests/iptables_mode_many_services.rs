//! Changes of many Services at once in iptables mode, which several threads compile and compare.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;

use kernlink_iptables_restore::{Chain, Ruleset, Style, Table};
use kernlink_proxier::iptables_mode::Proxier;
use kernlink_services::{Change, Family, ObjectChange};

use crate::iptables_node::{
    SOURCE, deliver, deliver_numbered, kernel, proxier_on, saved, service, slice, sync,
};

/// Enough for several threads; all rules of endpoints have comments.
const NUMBER: u16 = 900;

/// The chains with their rules. Rules of Services in the chains that they share may be in any order.
fn chains(proxier: &mut Proxier) -> Vec<String> {
    let rules: Ruleset = saved(proxier, Family::Ipv4);
    let of_chain = |table: Table, name: &str, chain: &Chain| {
        let mut rules: Vec<String> = chain.rules().map(|rule| rule.render(Style::SAVE)).collect();
        if name == "KUBE-SERVICES" {
            rules.sort();
        }
        format!("{table} {name}: {}", rules.join("; "))
    };
    let mut chains = Vec::new();
    for (table, content) in rules.tables() {
        chains.extend(
            content
                .chains()
                .map(|(name, chain)| of_chain(table, name.as_str(), chain)),
        );
    }
    chains.sort();
    chains
}

#[test]
fn many_services_are_written_as_few_are() {
    let mut at_once = proxier_on(kernel());
    deliver_numbered(&mut at_once, NUMBER, &[1]);
    sync(&mut at_once);
    let mut in_turns = proxier_on(kernel());
    deliver(&mut in_turns, Vec::new(), Vec::new());
    for number in 0..NUMBER {
        in_turns.change(SOURCE, Change::Services(ObjectChange::Upsert(service(number))));
        in_turns.change(
            SOURCE,
            Change::EndpointSlices(ObjectChange::Upsert(slice(number, &[1]))),
        );
        if number % 60 == 0 {
            sync(&mut in_turns);
        }
    }
    sync(&mut in_turns);
    let all = chains(&mut at_once);
    assert!(all.len() > 2 * usize::from(NUMBER), "{}", all.len());
    assert_eq!(all, chains(&mut in_turns));

    // What is written is equal to what is desired.
    at_once.resync();
    let again = sync(&mut at_once);
    assert!(again.plan.is_empty(), "{}", again.plan);

    let mut without = proxier_on(kernel());
    deliver(&mut without, Vec::new(), Vec::new());
    sync(&mut without);
    deliver(&mut at_once, Vec::new(), Vec::new());
    sync(&mut at_once);
    assert_eq!(chains(&mut at_once), chains(&mut without));
}
