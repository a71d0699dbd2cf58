//! Rules and texts that are restored, saved and compared with their normal form.

use std::collections::BTreeMap;

use kernlink_iptables_restore::targets::SetAction;
use kernlink_iptables_restore::{
    Chain, ChainName, Comment, Condition, Desired, Edit, Family, InterfacePattern, Iptables, Match, Names,
    Ownership, Restore, Rule, Ruleset, Save, Style, Table, Target, diff,
};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::tools::must;
use kernlink_netlink::flags::{NLM_F_CREATE, NLM_F_EXCL};
use kernlink_netlink::netfilter::{Header, message_type};
use kernlink_netlink::{Connection, Protocol};

use crate::{chain, client_of, for_each_variant, golden, infix, rule, run_tool};

/// Names of the golden files. A name with `ipv6` is of IPv6.
const HOSTS: [&str; 15] = [
    "calico",
    "cilium",
    "docker",
    "docker_ipv6",
    "fail2ban",
    "firewalld",
    "firewalld_ipv6",
    "flannel",
    "ipv6",
    "istio",
    "kube_proxy_iptables",
    "kube_proxy_ipvs",
    "kube_proxy_nfacct_ipv6",
    "mixed",
    "ufw",
];

/// Creates the objects that the rules of these hosts refer to.
fn create_referenced_objects() {
    let mut sets = vec![
        ("KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port range 0-65535"),
        ("KUBE-NODE-PORT-TCP", "bitmap:port range 0-65535"),
        ("KUBE-IPVS-IPS", "hash:ip"),
        ("f2b-ports", "hash:ip"),
        ("cali40masq-ipam-pools", "hash:net"),
        ("cali40all-ipam-pools", "hash:net"),
        ("cali40all-vxlan-net", "hash:net"),
        ("cali40s:9SU6Xl6HxkPZv7_cB2k", "hash:net"),
        ("trusted6", "hash:net family inet6"),
        ("classes", "hash:ip skbinfo"),
    ];
    for name in [
        "KUBE-LOOP-BACK",
        "KUBE-CLUSTER-IP",
        "KUBE-EXTERNAL-IP",
        "KUBE-EXTERNAL-IP-LOCAL",
        "KUBE-LOAD-BALANCER",
    ] {
        sets.push((name, "hash:ip,port,ip"));
    }
    for (name, kind) in sets {
        let arguments: Vec<_> = ["create", name].into_iter().chain(kind.split(' ')).collect();
        must("ipset", &arguments);
    }
    // The message of `nfacct add NAME`. Source: `include/uapi/linux/netfilter/nfnetlink_acct.h`, Linux 6.1.
    const NFNL_SUBSYS_ACCT: u8 = 7;
    const NFNL_MSG_ACCT_NEW: u8 = 0;
    const NFACCT_NAME: u16 = 1;
    let mut connection = Connection::open(Protocol::Netfilter).unwrap();
    for name in [
        "ct_state_invalid_dropped_pkts",
        "localhost_nps_accepted_pkts",
        "all-in",
    ] {
        let message = message_type(NFNL_SUBSYS_ACCT, NFNL_MSG_ACCT_NEW);
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        connection
            .execute_one(message, flags, |writer| {
                writer
                    .header(&Header::new(0).to_bytes())
                    .string(NFACCT_NAME, name);
            })
            .unwrap();
    }
}

#[test]
fn saves_of_hosts_are_restored_and_saved_equal() {
    requires!(Feature::Iptables, Feature::IpSet);
    for_each_variant(|variant| {
        create_referenced_objects();
        let kind = infix(variant);
        let mut client = client_of(variant);
        for host in HOSTS {
            let family = if host.contains("ipv6") {
                Family::Ipv6
            } else {
                Family::Ipv4
            };
            let text = golden(&format!("hosts/{host}.{kind}.save"));
            let ruleset: Ruleset = text.parse().unwrap();
            client
                .restore(&ruleset.to_restore(family))
                .unwrap_or_else(|error| panic!("{host}: {error:?}"));
            let again = only_tables_of(&ruleset, &client.save(&Save::all(family)).unwrap());
            assert_eq!(again.to_string(), ruleset.to_string(), "{host}");

            // With counters. ip6tables-nft-restore 1.8.9 writes zero for those of rules.
            let mut ruleset: Ruleset = golden(&format!("hosts/{host}.{kind}.counters.save"))
                .parse()
                .unwrap();
            client.restore(&ruleset.to_restore(family)).unwrap();
            let mut again = only_tables_of(
                &ruleset,
                &client.save(&Save::all(family).with_counters()).unwrap(),
            );
            if family == Family::Ipv6 {
                ruleset.clear_rule_counters();
                again.clear_rule_counters();
            }
            assert_eq!(again.to_string(), ruleset.to_string(), "{host}");
            client.restore(&emptied(&ruleset).to_restore(family)).unwrap();
        }
    });
}

/// The tables of `saved` that `like` contains. Legacy also prints tables that were created by a read.
fn only_tables_of(like: &Ruleset, saved: &Ruleset) -> Ruleset {
    let mut only = Ruleset::new();
    for (table, _) in like.tables() {
        *only.table_mut(table) = saved.table(table).unwrap().clone();
    }
    only
}

fn emptied(ruleset: &Ruleset) -> Ruleset {
    let mut empty = Ruleset::new();
    for (table, rules) in ruleset.tables() {
        let empty = empty.table_mut(table);
        for (name, chain) in rules.chains().filter(|(name, _)| table.is_builtin(name)) {
            empty.insert(
                *name,
                Chain {
                    rules: Vec::new(),
                    ..chain.clone()
                },
            );
        }
    }
    empty
}

/// A table in which the rule is valid.
fn table_for(rule: &Rule) -> Table {
    match &rule.target {
        Some(Target::Dnat(_) | Target::Snat(_) | Target::Masquerade(_) | Target::Redirect(_)) => Table::Nat,
        Some(Target::Notrack | Target::Ct(_)) => Table::Raw,
        Some(Target::Tproxy(_)) => Table::Mangle,
        Some(Target::Set(set)) if matches!(set.action, SetAction::Map { .. }) => Table::Mangle,
        Some(Target::Verbatim(arguments)) => {
            match arguments.iter().map(|argument| argument.as_str()).nth(1) {
                Some("NETMAP") => Table::Nat,
                Some("TRACE") => Table::Raw,
                _ => Table::Mangle,
            }
        }
        _ => Table::Filter,
    }
}

#[test]
fn every_typed_match_and_target_is_saved_in_its_normal_form() {
    requires!(Feature::Iptables, Feature::IpSet);
    for_each_variant(|variant| {
        for (set, kind) in [
            ("S", "hash:ip,port counters timeout 0"),
            ("S6", "hash:ip,port family inet6 counters timeout 0"),
            ("M", "hash:ip skbinfo"),
        ] {
            let arguments: Vec<_> = ["create", set].into_iter().chain(kind.split(' ')).collect();
            must("ipset", &arguments);
        }
        for family in Family::ALL {
            let file = if family == Family::Ipv4 {
                "normal_form_ipv4.txt"
            } else {
                "normal_form_ipv6.txt"
            };
            let mut desired: BTreeMap<Table, Vec<Rule>> = BTreeMap::new();
            for line in golden(file)
                .lines()
                .filter_map(|line| line.strip_prefix("written "))
            {
                desired
                    .entry(table_for(&rule(line)))
                    .or_default()
                    .push(rule(line));
            }
            let (name, foo) = (chain("KL-ALL"), chain("FOO"));
            let mut restore = Restore::new(family);
            for (table, rules) in &desired {
                restore.push(*table, Edit::declare(foo));
                restore.push(*table, Edit::declare(name));
                for rule in rules {
                    restore.push(*table, Edit::append(name, rule.clone()));
                }
            }
            let mut client = client_of(variant);
            client
                .restore(&restore)
                .unwrap_or_else(|error| panic!("{error:?}"));
            for (table, rules) in desired {
                let saved = client.save(&Save::table(family, table)).unwrap();
                let read: Vec<String> = saved
                    .chain(table, &name)
                    .unwrap()
                    .rules()
                    .map(Rule::to_string)
                    .collect();
                let expected: Vec<String> = rules
                    .iter()
                    .map(|rule| rule.normal_form(family).to_string())
                    .collect();
                assert_eq!(read.join("\n"), expected.join("\n"));
            }
        }
    });
}

/// The tools print numbers for names, and nft does not store an option without an effect.
#[test]
fn rules_with_names_and_with_an_nflog_range_are_written_once() {
    requires!(Feature::Iptables);
    let names = Names::from_host();
    for_each_variant(|variant| {
        for (family, address) in [(Family::Ipv4, "192.0.2.1"), (Family::Ipv6, "[2001:db8::1]")] {
            let mut desired = Desired::new(family);
            let name = chain("KL-NAMES");
            for (table, texts) in [
                (
                    Table::Filter,
                    vec![
                        "-p tcp --dport smtp".to_owned(),
                        "-p udp -m udp ! --sport domain:ntp".into(),
                        "-p tcp -m multiport --dports ssh,http,ftp-data:ftp".into(),
                        "-p tcp --dport 0x50 --sport 010".into(),
                        "-p 0x11 -m conntrack --ctproto 17 --ctorigdstport domain".into(),
                        "-p ospf -j ACCEPT".into(),
                        "-m owner --uid-owner root ! --gid-owner daemon".into(),
                        "-j NFLOG --nflog-range 20 --nflog-group 3".into(),
                    ],
                ),
                (
                    Table::Nat,
                    vec![
                        format!("-p tcp -j DNAT --to-destination {address}:ssh"),
                        format!("-p tcp -j DNAT --to-destination {address}:ftp-data"),
                        format!("-p tcp -j DNAT --to-destination {address}:10-20/ftp"),
                        "-p tcp -j REDIRECT --to-ports ftp-data".into(),
                    ],
                ),
            ] {
                let rules = texts.iter().map(|text| names.parse_rule(text).unwrap());
                desired.set_chain(table, name, rules).unwrap();
                // The tool resolves the same names.
                let lines = texts.iter().map(|text| format!("-A KL-TOOL {text}\n"));
                let input = format!(
                    "*{table}\n:KL-TOOL - [0:0]\n{}COMMIT\n",
                    lines.collect::<String>()
                );
                run_tool(
                    family,
                    variant,
                    "-restore",
                    &["--wait", "30", "--noflush"],
                    &input,
                );
            }
            let mut client = client_of(variant);
            let owned = Ownership::new();
            let saved = client.save(&Save::all(family)).unwrap();
            client.restore(&diff(&saved, &desired, &owned)).unwrap();
            let saved = client.save(&Save::all(family)).unwrap();
            let again = diff(&saved, &desired, &owned);
            assert!(again.is_empty(), "{again}");
            for table in [Table::Filter, Table::Nat] {
                let rules = |name: &str| -> Vec<String> {
                    let chain = saved.chain(table, &chain(name)).unwrap();
                    chain.rules().map(Rule::to_string).collect()
                };
                assert_eq!(rules("KL-NAMES"), rules("KL-TOOL"));
            }
        }
    });
}

#[test]
fn the_ipvs_match_is_saved_in_its_normal_form() {
    requires!(Feature::Iptables, Feature::Ipvs);
    for_each_variant(|variant| {
        let mut client = client_of(variant);
        for (family, address) in [(Family::Ipv4, "192.0.2.1"), (Family::Ipv6, "2001:db8::1")] {
            let desired = [
                format!("-s {address} -m ipvs --vaddr {address} --vproto tcp --vport 1234 -j DROP"),
                "-m ipvs --ipvs".into(),
                "-m ipvs ! --ipvs".into(),
                format!("-m ipvs ! --vaddr {address} --vdir REPLY ! --vmethod MASQ --vportctl 21 -j ACCEPT"),
            ]
            .map(|text| rule(&text));
            let name = chain("KL-IPVS");
            let mut restore = Restore::new(family).with(Table::Filter, Edit::declare(name));
            for rule in &desired {
                restore.push(Table::Filter, Edit::append(name, rule.clone()));
            }
            client.restore(&restore).unwrap();
            let saved = client.save(&Save::table(family, Table::Filter)).unwrap();
            let read: Vec<String> = saved
                .chain(Table::Filter, &name)
                .unwrap()
                .rules()
                .map(Rule::to_string)
                .collect();
            let expected = desired.map(|rule| rule.normal_form(family).to_string());
            assert_eq!(read.join("\n"), expected.join("\n"));
        }
    });
}

/// Texts that must be quoted or refused, or the tools would parse them as something else.
const NASTY: [&str; 16] = [
    "-j DROP",
    "\" -j DROP --comment \"",
    "\\",
    "\\\"",
    "it's",
    "!",
    "-A INPUT -j ACCEPT",
    "--comment",
    "-t nat",
    "#",
    "a\tb",
    "a\rb",
    "é\u{85}\u{2028}",
    "COMMIT",
    "*nat",
    ":INPUT DROP [0:0]",
];

#[test]
fn no_comment_is_executed_as_a_second_command() {
    requires!(Feature::Iptables);
    for_each_variant(|variant| {
        let name = chain("KL-NASTY");
        for family in Family::ALL {
            let mut restore = Restore::new(family).with(Table::Filter, Edit::declare(name));
            let rules: Vec<Rule> = NASTY
                .iter()
                .map(|text| {
                    Rule::new()
                        .with_comment(text)
                        .unwrap()
                        .with_target(Target::Return)
                })
                .collect();
            for rule in &rules {
                restore.push(Table::Filter, Edit::append(name, rule.clone()));
            }
            for style in [Style::SAVE, Style::RESTORE] {
                let mut client = client_of(variant).with_style(style);
                client.restore(&restore).unwrap();
                let saved = client.save(&Save::all(family)).unwrap();
                let read: Vec<Rule> = saved
                    .chain(Table::Filter, &name)
                    .unwrap()
                    .rules()
                    .cloned()
                    .collect();
                assert_eq!(read, rules);
                assert_eq!(saved.rule_count(), rules.len(), "{saved}");
            }
        }
    });
}

#[test]
fn accepted_chain_and_interface_names_are_saved_unchanged() {
    requires!(Feature::Iptables);
    for_each_variant(|variant| {
        let mut client = client_of(variant);
        let names = [
            "a#b", "[0:0]", "COMMIT", "*nat", "a'b", "a\\b", "$x", "é", "a:b", "(x)", "a!b", "1",
        ];
        let mut restore = Restore::new(Family::Ipv4);
        let mut count = 0;
        for text in names {
            if let Ok(name) = ChainName::new(text) {
                restore.push(Table::Filter, Edit::declare(name));
                if let Ok(pattern) = InterfacePattern::new(text) {
                    let rule = Rule::new().with(Match::InInterface(Condition::Is(pattern)));
                    restore.push(Table::Filter, Edit::append(name, rule));
                    count += 1;
                }
            }
        }
        client
            .restore(&restore)
            .unwrap_or_else(|error| panic!("{error:?}"));
        let saved = client.save(&Save::table(Family::Ipv4, Table::Filter)).unwrap();
        assert_eq!(saved.rule_count(), count);
        for (_, edits) in restore.tables() {
            for edit in edits {
                let chain = saved
                    .chain(Table::Filter, edit.chain())
                    .unwrap_or_else(|| panic!("{edit}: {saved}"));
                assert_eq!(chain.rules().next(), edit.rule().or(chain.rules().next()));
            }
        }
    });
}

#[test]
fn the_longest_comment_is_not_truncated() {
    requires!(Feature::Iptables);
    for_each_variant(|variant| {
        let mut client = client_of(variant);
        let name = chain("KL-LONG");
        let long = "\"".repeat(Comment::LIMIT);
        let restore = Restore::new(Family::Ipv4)
            .with(Table::Filter, Edit::declare(name))
            .with(
                Table::Filter,
                Edit::append(name, Rule::new().with_comment(&long).unwrap()),
            );
        client.restore(&restore).unwrap();
        let saved = client.save(&Save::table(Family::Ipv4, Table::Filter)).unwrap();
        let read = saved.chain(Table::Filter, &name).unwrap().rules().next().unwrap();
        assert_eq!(read.matches, [Match::comment(&long).unwrap()]);
    });
}

#[test]
fn a_foreign_comment_truncated_within_a_character_is_parsed() {
    requires!(Feature::Iptables);
    for_each_variant(|variant| {
        // 200 characters of two bytes: the tool truncates the comment within one.
        let text = format!(
            "*filter\n-A INPUT -m comment --comment \"x{}\"\nCOMMIT\n",
            "é".repeat(200)
        );
        run_tool(
            Family::Ipv4,
            variant,
            "-restore",
            &["--wait", "30", "--noflush"],
            &text,
        );
        let saved = client_of(variant)
            .save(&Save::table(Family::Ipv4, Table::Filter))
            .unwrap();
        assert_eq!(saved.rule_count(), 1, "{saved}");
    });
}
