//! iptables mode on a node that another mode serves.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kernlink_engine::retire::{Kept, Name, Retire, Retired, RetiredOutcome, Round, Unserved};
use kernlink_iptables_mode::retire::Retiring;
use kernlink_iptables_restore::{
    Error, Fake, Iptables, Operation, Refused, RefusedKind, Ruleset, Save, Table,
};
use kernlink_services::{Family, FrontendKey, ObjectName, Protocol};

/// What iptables mode wrote for some Services, and two chains of the kubelet.
const SERVED: &str = r#"*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-SVC-OPEN - [0:0]
:KUBE-SVC-DNS - [0:0]
:KUBE-SEP-OPEN - [0:0]
:KUBE-EXT-OPEN - [0:0]
:KUBE-EXT-LB - [0:0]
:KUBE-FW-LB - [0:0]
:KUBE-FW-ALL - [0:0]
:KUBE-FW-OTHERS - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-OPEN
-A KUBE-SERVICES -d 10.96.0.2/32 -p udp -m udp --dport 53 -j KUBE-SVC-DNS
-A KUBE-SERVICES -d 203.0.113.1/32 -p tcp -m tcp --dport 80 -j KUBE-FW-LB
-A KUBE-SERVICES -d 203.0.113.2/32 -p tcp -m tcp --dport 80 -j KUBE-FW-ALL
-A KUBE-SERVICES -d 203.0.113.3/32 -p tcp -m tcp --dport 80 -j KUBE-FW-OTHERS
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-EXT-OPEN
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30081 -j KUBE-EXT-LB
-A KUBE-SVC-OPEN -j KUBE-SEP-OPEN
-A KUBE-SEP-OPEN -p tcp -m tcp -j DNAT --to-destination 10.244.1.1:8080
-A KUBE-EXT-OPEN -j KUBE-MARK-MASQ
-A KUBE-EXT-OPEN -j KUBE-SVC-OPEN
-A KUBE-FW-LB -s 198.51.100.0/24 -j KUBE-EXT-LB
-A KUBE-FW-LB -s 203.0.113.1/32 -j KUBE-EXT-LB
-A KUBE-FW-LB -j KUBE-MARK-DROP
-A KUBE-FW-ALL -j KUBE-EXT-LB
-A KUBE-FW-OTHERS ! -s 192.0.2.0/24 -j KUBE-EXT-LB
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-PROXY-FIREWALL -d 203.0.113.1/32 -p tcp -m tcp --dport 80 -j DROP
COMMIT
"#;

/// The rule of a mode that has `KUBE-SERVICES` too, and now serves.
const OF_SERVING_MODE: &str = "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\n";

/// The tables of a node, which the test and the mode share.
#[derive(Clone, Default)]
struct Tables {
    fake: Arc<Mutex<Fake>>,
    /// The table of a family that cannot be read, and why.
    failing: Arc<Mutex<Option<(Family, Table, RefusedKind)>>>,
}

impl Iptables for Tables {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.fake.lock().unwrap().execute(operations)
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        match *self.failing.lock().unwrap() {
            Some((family, table, kind)) if request.family == family && request.table == Some(table) => {
                Err(refused(family, kind))
            }
            _ => self.fake.lock().unwrap().save(request),
        }
    }
}

fn refused(family: Family, kind: RefusedKind) -> Error {
    Error::Refused {
        tool: "the tool".into(),
        refused: Box::new(Refused::Whole(family)),
        kind,
        text: "it fails".into(),
        status: Some(1),
        applied: Vec::new(),
    }
}

impl Tables {
    /// These of IPv4.
    fn of(text: &str) -> Self {
        let tables = Self::default();
        let ruleset = Ruleset::parse_lenient(text);
        tables.fake.lock().unwrap().set_ruleset(Family::Ipv4, ruleset);
        tables
    }

    fn retiring(&self) -> Retiring {
        Retiring::new(Box::new(self.clone()))
    }

    fn fail(&self, failing: Option<(Family, Table, RefusedKind)>) {
        *self.failing.lock().unwrap() = failing;
    }

    fn ruleset(&self) -> Ruleset {
        self.fake.lock().unwrap().ruleset(Family::Ipv4)
    }

    /// The targets of the rules of a chain.
    fn targets(&self, table: Table, chain: &str) -> Vec<String> {
        let ruleset = self.ruleset();
        let found = ruleset.chain(table, &chain.parse().unwrap());
        let rules = found.into_iter().flat_map(|chain| chain.rules());
        let target = |rule: String| rule.split_once("-j ").unwrap().1.to_owned();
        rules.map(|rule| target(rule.to_string())).collect()
    }

    /// The chains of a table that begin with `KUBE-`.
    fn chains(&self, table: Table) -> BTreeSet<String> {
        let ruleset = self.ruleset();
        let chains = ruleset.table(table).into_iter().flat_map(|rules| rules.chains());
        let names = chains.map(|(name, _)| name.to_string());
        names.filter(|name| name.starts_with("KUBE-")).collect()
    }
}

fn frontend(address: &str, protocol: Protocol, port: u16) -> FrontendKey {
    FrontendKey {
        address: address.parse::<IpAddr>().unwrap(),
        protocol,
        port,
    }
}

fn open() -> FrontendKey {
    frontend("10.96.0.1", Protocol::Tcp, 80)
}

type AllUnserved = BTreeMap<FrontendKey, Unserved>;

fn unserved(frontends: &[(FrontendKey, &[&str])]) -> AllUnserved {
    let frontends = frontends.iter().map(|(frontend, ranges)| {
        let ranges: Vec<ipnet::IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let unserved = Unserved {
            service: ObjectName::new("ns", "service"),
            source_ranges: ranges.into(),
        };
        (*frontend, unserved)
    });
    frontends.collect()
}

fn round<'a>(unserved: &'a AllUnserved, kept: Kept<'a>) -> Round<'a> {
    Round {
        now: Instant::now(),
        has_serving_mode: true,
        unserved,
        has_served: true,
        kept,
        executes: true,
    }
}

fn outcomes(retired: &Retired) -> Vec<&RetiredOutcome> {
    retired.steps.iter().map(|step| &step.outcome).collect()
}

/// No other mode has any of these names.
const NONE: Kept<'static> = &|_| false;

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn chains_of_services_stay_with_the_last_unserved_frontend_and_what_refuses_packets_only_until_any_is_served()
{
    let tables = Tables::of(SERVED);
    let mut retiring = tables.retiring();
    assert_eq!(retiring.mode(), "iptables mode");
    assert_eq!(retiring.read(Instant::now(), NONE), Ok(true));
    assert_eq!(retiring.is_serving(), Ok(true));
    assert_eq!(retiring.interim(), []);
    let only_open = unserved(&[(open(), &[])]);
    let (of_filter, of_mangle) = (tables.chains(Table::Filter), tables.chains(Table::Mangle));
    let retired = retiring.retire(&Round {
        has_served: false,
        ..round(&only_open, NONE)
    });
    assert_eq!(outcomes(&retired), [&RetiredOutcome::Done]);
    assert_eq!((retired.held.len(), retired.is_gone), (1, false));
    assert!(retired.held.contains(&open()));
    assert_eq!(tables.targets(Table::Nat, "KUBE-SERVICES"), ["KUBE-SVC-OPEN"]);
    assert_eq!(tables.targets(Table::Nat, "KUBE-NODEPORTS"), [""; 0]);
    assert_eq!(tables.targets(Table::Nat, "PREROUTING"), ["KUBE-SERVICES"]);
    assert!(
        tables
            .chains(Table::Nat)
            .is_superset(&names(&["KUBE-SVC-OPEN", "KUBE-SEP-OPEN"]))
    );
    assert_eq!(
        (tables.chains(Table::Filter), tables.chains(Table::Mangle)),
        (of_filter, of_mangle.clone())
    );
    // The serving mode serves another frontend: its packets are not translated here.
    let retired = retiring.retire(&round(&only_open, NONE));
    assert_eq!(outcomes(&retired), [&RetiredOutcome::Done]);
    assert_eq!(tables.chains(Table::Filter), names(&["KUBE-FIREWALL"]));
    assert_eq!(tables.targets(Table::Filter, "OUTPUT"), ["KUBE-FIREWALL"]);
    assert_eq!(tables.targets(Table::Nat, "KUBE-SERVICES"), ["KUBE-SVC-OPEN"]);
    assert_eq!(tables.chains(Table::Mangle), of_mangle);
    let retired = retiring.retire(&round(&only_open, NONE));
    assert_eq!((retired.steps.len(), retired.held.len()), (0, 1));
    assert_eq!(retiring.read(Instant::now(), NONE), Ok(true));
    let retired = retiring.retire(&round(&AllUnserved::new(), NONE));
    assert_eq!(
        (outcomes(&retired), retired.is_gone),
        (vec![&RetiredOutcome::Done], false)
    );
    assert_eq!(tables.chains(Table::Nat), names(&["KUBE-MARK-DROP"]));
    assert_eq!(tables.chains(Table::Mangle), names(&["KUBE-KUBELET-CANARY"]));
    assert_eq!(tables.targets(Table::Nat, "PREROUTING"), [""; 0]);
    assert!(retiring.retire(&round(&AllUnserved::new(), NONE)).is_gone);
    assert_eq!(retiring.read(Instant::now(), NONE), Ok(false));
    assert_eq!(retiring.is_serving(), Ok(false));
}

#[test]
fn a_node_port_stays_with_the_rule_that_leads_to_node_ports() {
    let tables = Tables::of(SERVED);
    let node_port = frontend("192.0.2.1", Protocol::Tcp, 30_080);
    let all = unserved(&[
        (node_port, &[]),
        (frontend("192.0.2.1", Protocol::Udp, 30_080), &[]),
        (frontend("2001:db8::1", Protocol::Tcp, 30_080), &[]),
        (frontend("192.0.2.1", Protocol::Tcp, 30_082), &[]),
    ]);
    let retired = tables.retiring().retire(&round(&all, NONE));
    assert_eq!(retired.held, [node_port].into());
    assert_eq!(tables.targets(Table::Nat, "KUBE-SERVICES"), ["KUBE-NODEPORTS"]);
    assert_eq!(tables.targets(Table::Nat, "KUBE-NODEPORTS"), ["KUBE-EXT-OPEN"]);
}

#[test]
fn a_frontend_is_not_held_if_its_chains_admit_a_client_that_its_source_ranges_do_not_admit() {
    let balancer = |last: u8| frontend(&format!("203.0.113.{last}"), Protocol::Tcp, 80);
    let cases: [(FrontendKey, &[&str], bool); 12] = [
        (balancer(1), &["198.51.100.0/24"], true),
        (balancer(1), &["192.0.2.0/24", "198.51.0.0/16"], true),
        (balancer(1), &[], true),
        (balancer(1), &["198.51.100.0/25"], false),
        (balancer(1), &["203.0.113.0/24"], false),
        // Rules without a source, and for all but a network.
        (balancer(2), &["198.51.100.0/24"], false),
        (balancer(2), &[], true),
        (balancer(3), &["198.51.100.0/24"], false),
        (balancer(3), &[], true),
        // It had no source ranges.
        (open(), &["198.51.100.0/24"], false),
        (open(), &[], true),
        // No frontend of iptables mode.
        (balancer(4), &[], false),
    ];
    for (frontend, ranges, is_held) in cases {
        let tables = Tables::of(SERVED);
        let all = unserved(&[(frontend, ranges)]);
        let retired = tables.retiring().retire(&round(&all, NONE));
        assert_eq!(retired.held.contains(&frontend), is_held, "{frontend} {ranges:?}");
        assert_eq!(retired.held.len(), usize::from(is_held));
    }
}

/// The names that IPVS mode has too.
fn of_ipvs_mode(name: &Name<'_>) -> bool {
    match name.table {
        "nat" => ["KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"].contains(&name.name),
        "filter" => ["KUBE-FORWARD", "KUBE-PROXY-FIREWALL"].contains(&name.name),
        _ => false,
    }
}

#[test]
fn in_a_chain_of_the_serving_mode_only_rules_that_lead_to_own_chains_are_interim_and_then_removed() {
    let mut text = SERVED.to_owned();
    let at = text.find("-A KUBE-NODEPORTS").unwrap();
    text.insert_str(at, OF_SERVING_MODE);
    let tables = Tables::of(&text);
    let mut retiring = tables.retiring();
    let interim = |retiring: &Retiring| -> Vec<String> {
        let all = retiring.interim();
        assert!(all.len() <= 1);
        for interim in &all {
            let place = (interim.family, interim.table, interim.chain);
            assert_eq!(place, (Family::Ipv4, "nat", "KUBE-SERVICES"));
        }
        let rules = all.into_iter().flat_map(|interim| interim.rules);
        rules
            .map(|rule| rule.rsplit(' ').next().unwrap().to_owned())
            .collect()
    };
    let of_services = [
        "KUBE-SVC-OPEN",
        "KUBE-SVC-DNS",
        "KUBE-FW-LB",
        "KUBE-FW-ALL",
        "KUBE-FW-OTHERS",
        "KUBE-NODEPORTS",
    ];
    assert_eq!(retiring.read(Instant::now(), &of_ipvs_mode), Ok(true));
    assert_eq!(interim(&retiring), of_services);
    let only_open = unserved(&[(open(), &[])]);
    let planned = Round {
        executes: false,
        ..round(&only_open, &of_ipvs_mode)
    };
    let retired = retiring.retire(&planned);
    assert_eq!(outcomes(&retired), [&RetiredOutcome::Planned]);
    let command = &retired.steps[0].command;
    assert!(command.contains("-D KUBE-SERVICES -d 10.96.0.2/32"), "{command}");
    assert!(!command.contains("KUBE-SVC-OPEN"), "{command}");
    assert_eq!(interim(&retiring), of_services);
    // A refused change changes nothing.
    let error = refused(Family::Ipv4, RefusedKind::Other);
    tables.fake.lock().unwrap().fail_next(error);
    let retired = retiring.retire(&round(&only_open, &of_ipvs_mode));
    assert!(matches!(outcomes(&retired)[..], [RetiredOutcome::Failed(_)]));
    assert!(!retired.is_gone);
    assert_eq!(interim(&retiring), of_services);
    let retired = retiring.retire(&round(&only_open, &of_ipvs_mode));
    assert_eq!(outcomes(&retired), [&RetiredOutcome::Done]);
    assert_eq!(
        tables.targets(Table::Nat, "KUBE-SERVICES"),
        ["KUBE-SVC-OPEN", "ACCEPT"]
    );
    assert_eq!(interim(&retiring), ["KUBE-SVC-OPEN"]);
    assert_eq!(
        tables.chains(Table::Filter),
        names(&["KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-FIREWALL"])
    );
    // The jump to the firewall has conditions of its own in each mode.
    assert_eq!(tables.targets(Table::Filter, "INPUT"), [""; 0]);
    assert_eq!(tables.targets(Table::Filter, "FORWARD"), ["KUBE-FORWARD"]);
    let retired = retiring.retire(&round(&AllUnserved::new(), &of_ipvs_mode));
    assert_eq!(outcomes(&retired), [&RetiredOutcome::Done]);
    assert_eq!(tables.targets(Table::Nat, "KUBE-SERVICES"), ["ACCEPT"]);
    assert_eq!(tables.targets(Table::Nat, "OUTPUT"), ["KUBE-SERVICES"]);
    assert_eq!(
        tables.chains(Table::Nat),
        names(&[
            "KUBE-SERVICES",
            "KUBE-POSTROUTING",
            "KUBE-MARK-MASQ",
            "KUBE-MARK-DROP"
        ])
    );
    assert_eq!(interim(&retiring), [""; 0]);
    assert!(
        retiring
            .retire(&round(&AllUnserved::new(), &of_ipvs_mode))
            .is_gone
    );
    assert_eq!(retiring.read(Instant::now(), &of_ipvs_mode), Ok(false));
}

#[test]
fn a_line_of_another_program_that_cannot_be_parsed_stays_in_the_chain() {
    let mut text = SERVED.to_owned();
    let at = text.find("-A KUBE-NODEPORTS").unwrap();
    text.insert_str(at, "-A KUBE-SERVICES -m unknown --option \"a\nb\" -j ACCEPT\n");
    let tables = Tables::of(&text);
    let only_open = unserved(&[(open(), &[])]);
    let retired = tables.retiring().retire(&round(&only_open, NONE));
    assert_eq!(outcomes(&retired), [&RetiredOutcome::Done]);
    assert_eq!(tables.targets(Table::Nat, "KUBE-SERVICES"), ["KUBE-SVC-OPEN"]);
    let ruleset = tables.ruleset();
    let services = ruleset.chain(Table::Nat, &"KUBE-SERVICES".parse().unwrap());
    assert_eq!(services.unwrap().unreadable.len(), 1);
}

#[test]
fn a_jump_alone_is_left_and_the_chain_of_the_kubelet_is_not() {
    let left = |text: &str, kept: Kept<'_>| Tables::of(text).retiring().read(Instant::now(), kept);
    let jump = "*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
COMMIT
";
    assert_eq!(left(jump, NONE), Ok(true));
    assert_eq!(left(jump, &of_ipvs_mode), Ok(false));
    let firewall = "*filter
:INPUT ACCEPT [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
COMMIT
";
    assert_eq!(left(firewall, NONE), Ok(true));
    // The chain stays, the jump of iptables mode does not.
    assert_eq!(left(firewall, &of_ipvs_mode), Ok(true));
    let other_jump = firewall.replace("-m conntrack --ctstate NEW ", "");
    assert_eq!(left(&other_jump, &of_ipvs_mode), Ok(false));
    let kubelet = "*filter
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
-A OUTPUT -j KUBE-FIREWALL
COMMIT
";
    assert_eq!(left(kubelet, NONE), Ok(false));
}

#[test]
fn a_table_that_cannot_be_read_is_a_problem_and_one_that_does_not_exist_is_not() {
    let nothing = AllUnserved::new();
    let unsupported = Some((Family::Ipv6, Table::Nat, RefusedKind::Unsupported));
    let failing = Some((Family::Ipv6, Table::Nat, RefusedKind::Other));
    let tables = Tables::of(SERVED);
    let mut retiring = tables.retiring();
    tables.fail(unsupported);
    assert_eq!(retiring.read(Instant::now(), NONE), Ok(true));
    tables.fail(failing);
    assert!(retiring.read(Instant::now(), NONE).is_err());
    // It does not prevent the removal from the other family.
    let retired = retiring.retire(&round(&nothing, NONE));
    assert_eq!(
        (retired.problems.len(), outcomes(&retired)),
        (1, vec![&RetiredOutcome::Done])
    );
    assert_eq!(tables.chains(Table::Nat), names(&["KUBE-MARK-DROP"]));
    tables.fail(None);
    assert_eq!(retiring.read(Instant::now(), NONE), Ok(false));
    // A table that the tool cannot print.
    let tables = Tables::of(SERVED);
    tables
        .fake
        .lock()
        .unwrap()
        .set_unreadable(Family::Ipv4, Table::Nat);
    let mut retiring = tables.retiring();
    assert!(retiring.read(Instant::now(), NONE).is_err());
    let retired = retiring.retire(&round(&nothing, NONE));
    assert_eq!((retired.problems.len(), retired.steps.len()), (1, 0));
    // Only the table that has the chain which kube-proxy checks.
    let tables = Tables::of(SERVED);
    tables.fail(Some((Family::Ipv4, Table::Mangle, RefusedKind::Other)));
    let retired = tables.retiring().retire(&round(&nothing, NONE));
    assert_eq!(
        (retired.problems.len(), outcomes(&retired)),
        (1, vec![&RetiredOutcome::Done])
    );
    assert_eq!(tables.chains(Table::Nat), names(&["KUBE-MARK-DROP"]));
    assert!(tables.chains(Table::Mangle).contains("KUBE-PROXY-CANARY"));
}

#[test]
fn it_has_the_names_of_its_chains_in_their_tables_only() {
    let retiring = Tables::default().retiring();
    let has = |table, name| {
        let family = Family::Ipv4;
        retiring.has(&Name { family, table, name })
    };
    for name in ["KUBE-SERVICES", "KUBE-NODEPORTS"] {
        assert!(
            has("nat", name) && has("filter", name) && !has("mangle", name),
            "{name}"
        );
    }
    assert!(has("nat", "KUBE-POSTROUTING") && !has("filter", "KUBE-POSTROUTING"));
    assert!(has("filter", "KUBE-FORWARD") && !has("nat", "KUBE-FORWARD"));
    assert!(has("nat", "KUBE-SVC-OPEN") && !has("filter", "KUBE-SVC-OPEN"));
    assert!(!has("nat", "KUBE-LOAD-BALANCER"));
}
