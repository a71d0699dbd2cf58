//! Parts of rules that several data paths write, and reading the tables that they write to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use kernlink_base::ErrorChain;
use kernlink_engine::unreadable::{RULES_UNREADABLE, RULES_UNSUPPORTED};
use kernlink_iptables_restore::matches::{MarkMatch, SetDirection};
use kernlink_iptables_restore::{
    ChainName, ChainReader, Error, Iptables, Match, RefusedKind, Rule, Ruleset, Save, SetName, Table,
    UnreadableLine,
};
use kernlink_services::{Event, Family, FrontendKey, Protocol};

/// A rule in a built-in chain that jumps to an owned chain. If it does not exist, it is inserted at the top of its chain; its position
/// does not matter afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The table.
    pub table: Table,
    /// The built-in chain.
    pub chain: ChainName,
    /// The rule.
    pub rule: Rule,
}

/// The frontend whose packets a rule of `KUBE-SERVICES` matches: by one address, protocol and port. `None` for any other rule, such as the one
/// of all node ports.
#[must_use]
pub fn frontend_of_rule(rule: &Rule) -> Option<FrontendKey> {
    let (protocol, port) = node_port_of_rule(rule)?;
    let text = rule.to_string();
    let mut words = text.split_ascii_whitespace();
    words.find(|word| *word == "-d")?;
    let address = words.next()?.split('/').next()?.parse().ok()?;
    Some(FrontendKey {
        address,
        protocol,
        port,
    })
}

/// The protocol and port that a rule of `KUBE-NODEPORTS` matches. `None` for any other rule.
#[must_use]
pub fn node_port_of_rule(rule: &Rule) -> Option<(Protocol, u16)> {
    let text = rule.to_string();
    let mut words = text.split_ascii_whitespace();
    let mut matched = (None, None);
    while let Some(word) = words.next() {
        match word {
            "!" => return None,
            "-p" => matched.0 = words.next().and_then(protocol),
            "--dport" => matched.1 = words.next()?.parse().ok(),
            _ => {}
        }
    }
    Some((matched.0?, matched.1?))
}

fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "tcp" => Some(Protocol::Tcp),
        "udp" => Some(Protocol::Udp),
        "sctp" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// The tables with owned chains.
pub const TABLES: &[Table] = &[Table::Nat, Table::Filter];

/// 127.0.0.0/8.
pub const LOOPBACK_IPV4: IpNet = IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8);
/// ::1/128.
pub const LOOPBACK_IPV6: IpNet = IpNet::new_assert(IpAddr::V6(Ipv6Addr::LOCALHOST), 128);

/// Reads [`TABLES`] of a family. What cannot be parsed is recorded in the rule set.
///
/// # Errors
/// The first table that could not be read.
pub fn read_tables(iptables: &mut dyn Iptables, family: Family) -> Result<Ruleset, Error> {
    let of_family = read_tables_of(iptables, &[family]).pop();
    of_family.map_or(Err(Error::OutcomeMissing), |(_, read)| read)
}

/// Reads [`TABLES`] of several families, all at the same time. Returns one result for each family, in order.
pub fn read_tables_of(
    iptables: &mut dyn Iptables,
    families: &[Family],
) -> Vec<(Family, Result<Ruleset, Error>)> {
    by_family(families, iptables.save_all(&requests(families)))
}

/// As [`read_tables_of`], but each chain is passed to a reader, and the results contain only what the reader returns.
pub fn read_chains_of(
    iptables: &mut dyn Iptables,
    families: &[Family],
    reader: &mut dyn ChainReader,
) -> Vec<(Family, Result<Ruleset, Error>)> {
    by_family(families, iptables.save_chains(&requests(families), reader))
}

fn requests(families: &[Family]) -> Vec<Save> {
    let tables = |family: &Family| {
        let family = *family;
        TABLES
            .iter()
            .map(move |&table| Save::table(family, table).lenient())
    };
    families.iter().flat_map(tables).collect()
}

/// The answers to the requests for the tables of these families.
fn by_family(
    families: &[Family],
    answers: Vec<Result<Ruleset, Error>>,
) -> Vec<(Family, Result<Ruleset, Error>)> {
    let mut answers = answers.into_iter();
    let mut of_family = || {
        let mut rules = Ruleset::new();
        let mut problem = None;
        for _ in TABLES {
            match answers.next().unwrap_or(Err(Error::OutcomeMissing)) {
                Ok(table) => rules.merge(table),
                Err(error) => _ = problem.get_or_insert(error),
            }
        }
        problem.map_or(Ok(rules), Err)
    };
    families.iter().map(|family| (*family, of_family())).collect()
}

/// The events about tables that the tool does not print, and about rules that cannot be parsed. They do not change as long as these rules do
/// not, regardless of what else the tables contain.
#[must_use]
pub fn unreadable_rules(rules: &Ruleset, family: Family) -> Vec<Event> {
    let mut events = Vec::new();
    let mut of_tables = Vec::new();
    for &table in Table::ALL {
        if let Some(line) = rules.unreadable_table(table) {
            let text = format!("{family} table {table} cannot be read: {}", line.description());
            events.push(Event::host(RULES_UNREADABLE, text));
            of_tables.push(line);
        }
    }
    let mut lines = rules.unreadable().into_iter();
    if let Some(line) = lines.find(|line| !of_tables.contains(line)) {
        let text = format!(
            "{family} tables contain rules that cannot be parsed; foreign ones are not changed: {}",
            line.description()
        );
        events.push(Event::host("ForeignRulesUnreadable", text));
    }
    events
}

/// The event about tables that cannot be read.
#[must_use]
pub fn unreadable_tables(error: &Error, family: Family) -> Event {
    let text = format!("{family} tables cannot be read: {}", ErrorChain(error));
    Event::host(rules_code(error), text)
}

/// The code of the event about tables that were not read because of an error.
#[must_use]
pub fn rules_code(error: &Error) -> &'static str {
    match error {
        Error::Refused {
            kind: RefusedKind::Unsupported,
            ..
        } => RULES_UNSUPPORTED,
        _ => RULES_UNREADABLE,
    }
}

/// The error about a table that the tool cannot print.
pub fn unreadable_table(saved: &Ruleset, table: Table) -> Error {
    let line = saved.unreadable_table(table).map(UnreadableLine::description);
    let cause = line.unwrap_or_else(|| format!("table {table} cannot be read"));
    Error::custom("read tables", cause)
}

/// The match of a mark with all of its bits.
#[must_use]
pub fn mark_match(mark: u32) -> MarkMatch {
    MarkMatch {
        value: mark,
        mask: Some(mark),
    }
}

/// The rule that masquerades connections whose source is in a set.
#[must_use]
pub fn masquerade_sources(set: SetName) -> Rule {
    Rule::new()
        .with(Match::set(set, &[SetDirection::Source]))
        .jump(chain_name("KUBE-MARK-MASQ"))
}

/// The chain with a name that is a constant of a data path.
#[must_use]
pub fn chain_name(name: &str) -> ChainName {
    #[expect(clippy::expect_used, reason = "constants that tests of the data paths check")]
    ChainName::new(name).expect("a chain name that fits the kernel")
}

/// A comment that is a constant of a data path.
#[must_use]
pub fn comment_match(text: &str) -> Match {
    #[expect(clippy::expect_used, reason = "constants that tests of the data paths check")]
    Match::comment(text).expect("a comment that fits the kernel")
}

#[cfg(test)]
mod tests {
    use kernlink_engine::unreadable::is_unreadable;
    use kernlink_iptables_restore::Refused;

    use super::*;

    fn events(saved: &str) -> Vec<Event> {
        unreadable_rules(&Ruleset::parse_lenient(saved), Family::Ipv4)
    }

    #[test]
    fn a_foreign_rule_is_reported_in_the_same_way_wherever_it_is() {
        let saved = |chains: &str| {
            format!(
                "*nat\n:POSTROUTING ACCEPT [0:0]\n{chains}-A POSTROUTING -m comment --comment \"a\nb\"\nCOMMIT\n"
            )
        };
        let first = events(&saved(""));
        assert_eq!(first, events(&saved(":KUBE-SVC-A - [0:0]\n")));
        assert_eq!(first.len(), 1);
        assert!(!first.iter().any(is_unreadable), "{first:?}");
    }

    #[test]
    fn a_table_that_the_tool_does_not_print_is_not_known() {
        let incompatible = "# Table `nat' is incompatible, use 'nft' tool.\n";
        let found = events(incompatible);
        assert!(found.len() == 1 && found.iter().all(is_unreadable), "{found:?}");
        let with_rule = format!("{incompatible}*filter\n:INPUT ACCEPT [0:0]\n-A INPUT \"a\nCOMMIT\n");
        let found = events(&with_rule);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found.iter().filter(|event| is_unreadable(event)).count(), 1);
    }

    #[test]
    fn tables_that_the_kernel_does_not_have_are_known() {
        let refused = |kind| Error::Refused {
            tool: "ip6tables-save".into(),
            refused: Box::new(Refused::Whole(Family::Ipv6)),
            kind,
            text: String::new(),
            status: Some(3),
            applied: Vec::new(),
        };
        let is_unknown = |error: &Error| is_unreadable(&unreadable_tables(error, Family::Ipv6));
        assert!(!is_unknown(&refused(RefusedKind::Unsupported)));
        assert!(is_unknown(&refused(RefusedKind::PermissionDenied)));
        // Without the tool, another program may have written tables.
        assert!(is_unknown(&Error::custom(
            "read tables",
            "the tool is not installed"
        )));
    }
}
