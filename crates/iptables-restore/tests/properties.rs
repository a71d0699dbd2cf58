//! Properties on random values.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use kernlink_iptables_restore::matches::{SetDirection, SetReference};
use kernlink_iptables_restore::targets::{Log, Nflog, SetAction, SetTarget};
use kernlink_iptables_restore::{
    Argument, Chain, ChainName, Comment, Condition, CountedRule, Counters, Edit, Family, InterfacePattern,
    LogPrefix, Mask, Match, Network, NflogPrefix, Policy, Restore, Rule, Ruleset, SetName, Style, Table,
    Target,
};
use proptest::prelude::*;

/// Every match and target of the golden files.
static POOL: LazyLock<(Vec<Match>, Vec<Target>)> = LazyLock::new(|| {
    let pairs = concat!(
        include_str!("golden/normal_form_ipv4.txt"),
        include_str!("golden/normal_form_ipv6.txt")
    );
    let (mut matches, mut targets) = (Vec::new(), Vec::new());
    for line in pairs.lines() {
        let rule: Rule = line.split_once(' ').unwrap().1.parse().unwrap();
        matches.extend(rule.matches);
        targets.extend(rule.target);
    }
    (matches, targets)
});

/// Text with quotes, escapes, line feeds and commands.
fn nasty() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\"".to_owned()),
        Just("'".to_owned()),
        Just("\\".to_owned()),
        Just(" ".to_owned()),
        Just("\t".to_owned()),
        Just("\n".to_owned()),
        Just("\r".to_owned()),
        Just("\0".to_owned()),
        Just("!".to_owned()),
        Just("#".to_owned()),
        Just("-".to_owned()),
        Just("--".to_owned()),
        Just("-j DROP".to_owned()),
        Just("\n-A INPUT -j ACCEPT".to_owned()),
        Just("\nCOMMIT\n*nat\n".to_owned()),
        Just("é".to_owned()),
        Just("\u{2028}".to_owned()),
        Just("\u{85}".to_owned()),
        Just("[0:0]".to_owned()),
        Just(":".to_owned()),
        Just("*".to_owned()),
        Just("$(reboot)".to_owned()),
        "[a-zA-Z0-9_]{1,6}",
        any::<String>(),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn network() -> impl Strategy<Value = Network> {
    prop_oneof![
        (any::<u32>(), prop::option::of(0..=32u8)).prop_map(|(address, prefix)| Network {
            address: std::net::Ipv4Addr::from_bits(address).into(),
            mask: prefix.map(Mask::Prefix),
        }),
        (any::<u128>(), prop::option::of(0..=128u8)).prop_map(|(address, prefix)| Network {
            address: std::net::Ipv6Addr::from_bits(address).into(),
            mask: prefix.map(Mask::Prefix),
        }),
        (any::<u32>(), any::<u32>()).prop_map(|(address, mask)| Network {
            address: std::net::Ipv4Addr::from_bits(address).into(),
            mask: Some(Mask::Bits(std::net::Ipv4Addr::from_bits(mask).into())),
        }),
    ]
}

fn signed<T: Clone + std::fmt::Debug>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Condition<T>> {
    (value, any::<bool>()).prop_map(|(value, negated)| {
        if negated {
            Condition::Not(value)
        } else {
            Condition::Is(value)
        }
    })
}

fn test() -> impl Strategy<Value = Match> {
    prop_oneof![
        8 => (0..POOL.0.len()).prop_map(|index| POOL.0[index].clone()),
        1 => signed(network()).prop_map(Match::Source),
        1 => signed(network()).prop_map(Match::Destination),
        1 => nasty().prop_filter_map("comment", |text| Comment::new(&text).ok().map(Match::Comment)),
        1 => signed(nasty().prop_filter_map("interface", |text| InterfacePattern::new(&text).ok()))
            .prop_map(Match::InInterface),
        1 => nasty().prop_filter_map("set", |text| {
            SetName::new(&text).ok().map(|name| Match::set(name, &[SetDirection::Source, SetDirection::Destination]))
        }),
        1 => nasty().prop_filter_map("argument", |text| {
            Some(Match::Verbatim(vec![Argument::new("-m").ok()?, Argument::new("unheard-of").ok()?, Argument::new("--of").ok()?,
                Argument::new(&text).ok().filter(|argument| !argument.to_string().starts_with(['-', '!']))?]))
        }),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        6 => (0..POOL.1.len()).prop_map(|index| POOL.1[index].clone()),
        1 => nasty().prop_filter_map("chain", |text| ChainName::new(&text).ok().map(Target::Jump)),
        1 => nasty().prop_filter_map("chain", |text| ChainName::new(&text).ok().map(Target::Goto)),
        1 => nasty().prop_filter_map("prefix", |text| {
            Some(Target::Log(Box::new(Log { prefix: Some(LogPrefix::new(&text).ok()?), ..Log::default() })))
        }),
        1 => nasty().prop_filter_map("prefix", |text| {
            Some(Target::Nflog(Box::new(Nflog { prefix: Some(NflogPrefix::new(&text).ok()?), ..Nflog::default() })))
        }),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    (prop::collection::vec(test(), 0..5), prop::option::of(target()))
        .prop_map(|(matches, target)| Rule { matches, target })
}

fn counters() -> impl Strategy<Value = Counters> {
    (any::<u64>(), any::<u64>()).prop_map(|(packets, bytes)| Counters { packets, bytes })
}

fn ruleset() -> impl Strategy<Value = Ruleset> {
    let counted =
        (rule(), prop::option::of(counters())).prop_map(|(rule, counters)| CountedRule { rule, counters });
    let chain = (
        nasty().prop_filter_map("chain", |text| ChainName::new(&text).ok()),
        prop::option::of(prop_oneof![Just(Policy::Accept), Just(Policy::Drop)]),
        counters(),
        prop::collection::vec(counted, 0..4),
    )
        .prop_map(|(name, policy, counters, rules)| {
            (
                name,
                Chain {
                    policy,
                    counters,
                    rules,
                    ..Chain::default()
                },
            )
        });
    let table = (0..Table::ALL.len(), prop::collection::vec(chain, 0..4));
    prop::collection::vec(table, 0..4).prop_map(|tables| {
        let mut ruleset = Ruleset::new();
        for (table, chains) in tables {
            let rules = ruleset.table_mut(Table::ALL[table]);
            for (name, chain) in chains {
                rules.insert(name, chain);
            }
        }
        ruleset
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_rendered_rule_is_parsed_to_the_same_rule(rule in rule()) {
        for style in [Style::SAVE, Style::RESTORE, Style::KUBE_PROXY] {
            let text = rule.render(style);
            prop_assert_eq!(&text.parse::<Rule>().unwrap(), &rule, "{}", text);
        }
    }

    #[test]
    fn a_rendered_rule_set_is_parsed_to_the_same_rule_set(ruleset in ruleset()) {
        for style in [Style::SAVE, Style::RESTORE, Style::KUBE_PROXY] {
            let text = ruleset.render(style);
            prop_assert_eq!(&text.parse::<Ruleset>().unwrap(), &ruleset, "{}", text);
        }
    }

    #[test]
    fn the_normal_form_is_its_own_normal_form(rule in rule()) {
        for family in Family::ALL {
            let normal = rule.normal_form(family);
            prop_assert_eq!(&normal.normal_form(family), &normal);
            prop_assert!(rule.is_equivalent(&normal, family));
            let (mut of_rule, mut of_normal) = (DefaultHasher::new(), DefaultHasher::new());
            rule.hash_normal_form(family, &mut of_rule);
            normal.hash(&mut of_normal);
            prop_assert_eq!(of_rule.finish(), of_normal.finish());
        }
    }

    #[test]
    fn any_text_is_refused_or_parsed_to_a_rule_that_renders_to_itself(text in nasty()) {
        if let Ok(rule) = text.parse::<Rule>() {
            let again: Rule = rule.render(Style::SAVE).parse().unwrap();
            prop_assert_eq!(again, rule);
        }
        let _ = text.parse::<Ruleset>();
    }

    #[test]
    fn damaged_lines_are_skipped_by_a_lenient_parse(
        damages in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::sample::select(vec!["\n", "\"", "\\", " ", "\n*", "\n:", "\n-A "])),
            0..6,
        )
    ) {
        let mut text = include_str!("golden/hosts/docker.nft.save").to_owned();
        for (place, damage) in damages {
            text.insert_str(place.index(text.len()), damage);
        }
        let lenient = Ruleset::parse_lenient(&text);
        let again: Ruleset = lenient.render(Style::SAVE).parse().unwrap();
        prop_assert_eq!(again.rule_count(), lenient.rule_count());
        match text.parse::<Ruleset>() {
            Ok(strict) => prop_assert_eq!(lenient, strict),
            Err(_) => prop_assert!(!lenient.unreadable().is_empty()),
        }
    }

    #[test]
    fn arguments_in_any_order_are_parsed_to_a_rule_that_renders_to_itself(
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..12)
    ) {
        let pairs = include_str!("golden/normal_form_ipv4.txt");
        let arguments: Vec<&str> = pairs.split_ascii_whitespace().filter(|argument| *argument != "written" && *argument != "saved").collect();
        let line: Vec<&str> = places.iter().map(|place| arguments[place.index(arguments.len())]).collect();
        if let Ok(rule) = line.join(" ").parse::<Rule>() {
            let text = rule.render(Style::SAVE);
            prop_assert_eq!(text.parse::<Rule>().unwrap(), rule, "{}", text);
        }
    }

    /// For any name or text, one edit is rendered to one line that is parsed to the same rule.
    #[test]
    fn no_text_is_rendered_to_a_second_command(
        comment in nasty(), interface in nasty(), chain in nasty(), set in nasty(), prefix in nasty()
    ) {
        let mut rule = Rule::new();
        if let Ok(comment) = Comment::new(&comment) {
            rule = rule.with(Match::Comment(comment));
        }
        if let Ok(interface) = InterfacePattern::new(&interface) {
            rule = rule.with(Match::OutInterface(Condition::Is(interface)));
        }
        let reference = SetName::new(&set).ok().map(|set| SetReference::new(set, &[SetDirection::Source]));
        if let Some(reference) = &reference {
            rule = rule.with(Match::set(reference.name.clone(), &reference.directions));
        }
        rule.target = match (LogPrefix::new(&prefix), reference) {
            (Ok(prefix), _) => Some(Target::Log(Box::new(Log { prefix: Some(prefix), ..Log::default() }))),
            (_, Some(set)) => Some(Target::Set(Box::new(SetTarget::new(SetAction::Add, set)))),
            _ => None,
        };
        let name = ChainName::new(&chain).unwrap_or_else(|_| ChainName::new("FINE").unwrap());
        let restore = Restore::new(Family::Ipv4)
            .with(Table::Filter, Edit::declare(name))
            .with(Table::Filter, Edit::append(name, rule.clone()));
        for style in [Style::SAVE, Style::RESTORE, Style::KUBE_PROXY] {
            let text = restore.render_checked(style).unwrap();
            // The tools end lines at line feeds and at nothing else.
            let lines: Vec<&str> = text.split('\n').collect();
            let [table, declared, appended, commit, end] = lines[..] else {
                panic!("{} lines: {text:?}", lines.len());
            };
            prop_assert_eq!((table, commit, end), ("*filter", "COMMIT", ""));
            prop_assert_eq!(declared, format!(":{name} - [0:0]"));
            let rest = appended.strip_prefix(&format!("-A {name}")).unwrap();
            prop_assert_eq!(rest.parse::<Rule>().unwrap(), rule.clone());
            let read: Ruleset = text.parse().unwrap();
            prop_assert_eq!(read.rule_count(), 1);
            prop_assert_eq!(read.chain(Table::Filter, &name).unwrap().rules().next().unwrap(), &rule);
        }
    }
}
