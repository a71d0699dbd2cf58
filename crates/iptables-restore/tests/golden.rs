//! Output of the real tools, parsed and rendered.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_iptables_restore::matches::SetDirection;
use kernlink_iptables_restore::targets::MarkTarget;
use kernlink_iptables_restore::{
    Edit, Error, Family, Line, Match, Network, Restore, Rule, Ruleset, Style, Table, Target,
};

/// Each pair is a rule in the input of `iptables-restore` 1.8.9 and the same rule as `iptables-save` printed it, equal in legacy and nft.
fn check_normal_form(family: Family, pairs: &str) {
    let mut wrong = Vec::new();
    let mut lines = pairs.lines();
    let mut count = 0;
    while let (Some(written), Some(saved)) = (lines.next(), lines.next()) {
        let written = written.strip_prefix("written ").unwrap();
        let saved = saved.strip_prefix("saved   ").unwrap();
        count += 1;
        let rule: Rule = written.parse().unwrap();
        let read: Rule = saved.parse().unwrap();
        if read.render(Style::SAVE) != saved {
            wrong.push(format!("saved    {saved}\nrendered {read}"));
        }
        let normal = rule.normal_form(family);
        if normal.render(Style::SAVE) != saved || normal != read.normal_form(family) {
            wrong.push(format!("written {written}\nsaved   {saved}\nnormal  {normal}"));
        }
        if read.normal_form(family) != read {
            wrong.push(format!(
                "saved   {saved}\nnot its own normal form: {}",
                read.normal_form(family)
            ));
        }
    }
    assert!(count > 10, "only {count} pairs");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_normal_form_is_what_the_tools_print_for_ipv4() {
    check_normal_form(Family::Ipv4, include_str!("golden/normal_form_ipv4.txt"));
}

#[test]
fn the_normal_form_is_what_the_tools_print_for_ipv6() {
    check_normal_form(Family::Ipv6, include_str!("golden/normal_form_ipv6.txt"));
}

#[test]
fn only_expected_matches_and_targets_are_verbatim() {
    let pairs = concat!(
        include_str!("golden/normal_form_ipv4.txt"),
        include_str!("golden/normal_form_ipv6.txt")
    );
    // Targets and matches that have no type on purpose.
    let untyped = ["TCPMSS", "DSCP", "NETMAP", "TRACE", "-m policy"];
    for line in pairs.lines() {
        let text = line.split_once(' ').unwrap().1.trim_start();
        let rule: Rule = text.parse().unwrap();
        let verbatim = rule.matches.iter().any(|test| matches!(test, Match::Verbatim(_)))
            || matches!(rule.target, Some(Target::Verbatim(_)));
        assert_eq!(verbatim, untyped.iter().any(|name| text.contains(name)), "{text}");
    }
}

/// The restore input of kube-proxy 1.36 in IPVS mode, parsed and rendered to the same bytes.
#[test]
fn kube_proxys_restore_input_is_rendered_byte_for_byte() {
    let text = include_str!("golden/kube_proxy_ipvs.restore");
    let mut restore = Restore::new(Family::Ipv4);
    let mut table = Table::Filter;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.parse().unwrap();
        } else if let Some(declared) = line.strip_prefix(':') {
            restore.push(
                table,
                Edit::declare(declared.strip_suffix(" - [0:0]").unwrap().parse().unwrap()),
            );
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let (chain, rule) = rule.split_once(' ').unwrap();
            let rule: Rule = rule.parse().unwrap();
            assert!(
                !rule.matches.iter().any(|test| matches!(test, Match::Verbatim(_))),
                "{rule}"
            );
            restore.push(table, Edit::append(chain.parse().unwrap(), rule));
        } else {
            assert_eq!(line, "COMMIT");
        }
    }
    assert_eq!(restore.render_checked(Style::KUBE_PROXY).unwrap(), text);
}

#[test]
fn a_rule_built_from_values_prints_as_kube_proxy_writes_it() {
    let rule = Rule::new()
        .with_comment("Kubernetes service cluster ip + port for masquerade purpose")
        .unwrap()
        .with(Match::set(
            "KUBE-CLUSTER-IP".parse().unwrap(),
            &[SetDirection::Destination; 2],
        ))
        .with(
            Match::source("10.244.0.0/16".parse::<Network>().unwrap())
                .negated()
                .unwrap(),
        )
        .jump("KUBE-MARK-MASQ".parse().unwrap());
    assert_eq!(
        Edit::append("KUBE-SERVICES".parse().unwrap(), rule).to_string(),
        "-A KUBE-SERVICES -m comment --comment \"Kubernetes service cluster ip + port for masquerade purpose\" \
         -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ"
    );
    let mark = Rule::new().with_target(Target::Mark(MarkTarget::Or(0x4000)));
    assert_eq!(mark.render(Style::KUBE_PROXY), "-j MARK --or-mark 0x00004000");
    assert!(mark.is_equivalent(
        &"-j MARK --set-xmark 0x4000/0x4000".parse().unwrap(),
        Family::Ipv4
    ));
}

/// Every file of `tests/golden/hosts`: the output of `iptables-save` 1.8.9 on Linux 6.18 for rules as these programs write them, `NAME.BACKEND.save`, and the same with `-c`, `NAME.BACKEND.counters.save`.
fn host_saves() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/hosts");
    let mut saves: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                std::fs::read_to_string(&path).unwrap(),
            )
        })
        .collect();
    saves.sort();
    saves
}

#[test]
fn saves_of_hosts_render_to_the_same_text() {
    let saves = host_saves();
    assert_eq!(saves.len(), 60);
    for (name, text) in saves {
        let ruleset: Ruleset = text.parse().unwrap();
        let expected: String = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_eq!(ruleset.render(Style::SAVE), expected, "{name}");
        assert!(ruleset.rule_count() > 5, "{name}");
        let family = if name.contains("ipv6") {
            Family::Ipv6
        } else {
            Family::Ipv4
        };
        // Saved rules are in their normal form.
        assert_eq!(ruleset.normal_form(family), ruleset, "{name}");
        let restore = ruleset.to_restore(family);
        assert_eq!(restore.render(Style::SAVE), expected, "{name}");
        assert_eq!(
            restore.line(1),
            Some(Line::Table(ruleset.tables().next().unwrap().0))
        );
        for counted in ruleset
            .tables()
            .flat_map(|(_, rules)| rules.chains())
            .flat_map(|(_, chain)| &chain.rules)
        {
            assert_eq!(counted.counters.is_some(), name.contains("counters"), "{name}");
        }
    }
}

#[test]
fn only_extensions_without_a_type_are_verbatim() {
    let mut verbatim = std::collections::BTreeSet::new();
    for (_, text) in host_saves() {
        let ruleset: Ruleset = text.parse().unwrap();
        for rule in ruleset
            .tables()
            .flat_map(|(_, rules)| rules.chains())
            .flat_map(|(_, chain)| chain.rules())
        {
            if let Some(Target::Verbatim(arguments)) = &rule.target {
                assert_eq!(arguments[0].as_str(), "-j");
                verbatim.insert(arguments[1].as_str().to_owned());
            }
            for test in &rule.matches {
                if let Match::Verbatim(arguments) = test {
                    let name = if arguments[0].as_str() == "-m" { 1 } else { 0 };
                    verbatim.insert(arguments[name].as_str().to_owned());
                }
            }
        }
    }
    let expected = "--chunk-types AUDIT CHECKSUM CLASSIFY DSCP NETMAP NFQUEUE TCPMSS TEE TOS TRACE TTL bpf cgroup \
                    connbytes connlabel connlimit dccp dscp esp hl iprange length mac nfacct pkttype policy quota \
                    realm rpfilter rt socket string tcpmss time tos ttl u32";
    assert_eq!(verbatim.into_iter().collect::<Vec<_>>().join(" "), expected);
}

/// Comments of `iptables-nft-save` about tables that it does not print, and foreign chains with the name of a target whose extension is
/// not installed.
#[test]
fn comments_of_the_tools_and_chains_named_like_targets_are_parsed() {
    let text = "\
# Warning: iptables-legacy tables present, use iptables-legacy-save to see them
# Table `security' is incompatible, use 'nft' tool.
# Table `raw' contains incompatible base-chains, use 'nft' tool to list them.
*filter
:INPUT DROP [12:3456]
:ROUTE - [0:0]
:ACCOUNT - [0:0]
[0:0] -A INPUT -j ROUTE
[18446744073709551615:18446744073709551615] -A ROUTE -g ACCOUNT
-A ACCOUNT
COMMIT
";
    let ruleset: Ruleset = text.parse().unwrap();
    assert_eq!(ruleset.rule_count(), 3);
    assert!(ruleset.is_unreadable(Table::Security) && !ruleset.is_unreadable(Table::Raw));
    let rendered = ruleset.to_string();
    assert!(text.ends_with(&rendered), "{rendered}");
    assert_eq!(ruleset.to_restore(Family::Ipv4).render(Style::SAVE), rendered);
}

#[test]
fn an_invalid_line_is_reported_with_its_number() {
    for (text, line, reason) in [
        ("*nat\n*filter\nCOMMIT\n", 2, "before the COMMIT"),
        ("*what\nCOMMIT\n", 1, "expected raw, mangle"),
        ("-A INPUT -j DROP\n", 1, "outside a table"),
        ("*nat\n:A - [0:0]\n-A B -j DROP\nCOMMIT\n", 3, "undeclared"),
        ("*nat\n:A - [0:0]\n:A - [0:0]\nCOMMIT\n", 3, "duplicate"),
        ("*nat\nCOMMIT\n*nat\nCOMMIT\n", 3, "duplicate"),
        ("*nat\n:A - [x:0]\nCOMMIT\n", 2, "packets:bytes"),
        ("*nat\n:A FOO [0:0]\nCOMMIT\n", 2, "expected ACCEPT or DROP"),
        ("*nat\n:A\nCOMMIT\n", 2, "without a policy"),
        (
            "*nat\n:A - [0:0]\n-A A -m comment --comment \"x\nCOMMIT\n",
            3,
            "unclosed double quote",
        ),
        ("*nat\n:A - [0:0]\n[1] -A A -j DROP\nCOMMIT\n", 3, "packets:bytes"),
        ("*nat\n-P INPUT DROP\nCOMMIT\n", 2, "expected a table"),
        ("*nat\n:A - [0:0]\n", 2, "no COMMIT"),
        (
            "*nat\n:abcdefghijklmnopqrstuvwxyz0123 - [0:0]\nCOMMIT\n",
            2,
            "exceeds 28",
        ),
    ] {
        let error = text.parse::<Ruleset>().unwrap_err();
        let Error::Parse {
            line: at,
            reason: reported,
            ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!(*at, line, "{error}");
        assert!(reported.contains(reason), "{error}");
    }
}
