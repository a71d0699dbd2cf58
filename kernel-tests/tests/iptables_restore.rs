//! What only the kernel and the iptables tools show of kernlink-iptables-restore, legacy and nft.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what went wrong by panicking"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use kernlink_iptables_restore::targets::SetAction;
use kernlink_iptables_restore::{
    Backend, Chain, ChainName, Command, Comment, Condition, Edit, Error, Family, InterfacePattern, Iptables,
    Jump, Match, Names, Owned, Place, Refused, Restore, Rule, Ruleset, Save, Style, Table, Target, Trial,
    Verdict, Wanted, diff, diff_operations,
};
use kernlink_kernel_tests::{
    kernel::Feature,
    netns::NetNs,
    programs, requires,
    tools::{must, run_with_input},
};
use kernlink_netlink::{
    Connection, Protocol,
    flags::{NLM_F_CREATE, NLM_F_EXCL},
    netfilter::{Header, message_type},
};

const BACKENDS: [Backend; 2] = [Backend::Legacy, Backend::Nft];

/// A lock file of the test's own: its namespaces are private, so others' locks are not in its way.
fn lock_file(name: &str) -> PathBuf {
    // On a tmpfs, as /run/xtables.lock is: on an overlay /proc/locks names the file below, so no holder is found.
    PathBuf::from(format!(
        "/dev/shm/kernlink-iptables-{}-{name}",
        std::process::id()
    ))
}

fn command(backend: Backend) -> Command {
    Command::new()
        .with_backend(backend)
        .with_wait(Duration::from_secs(30))
        // The search for a refused rule starts the tool a dozen times, each with a thousand rules.
        .with_time_limit(Duration::from_secs(600))
        .with_lock_file(own_lock_file())
}

/// Named after the test, as the threads of a test all are: no test waits for another.
fn own_lock_file() -> PathBuf {
    lock_file(std::thread::current().name().unwrap_or("unnamed"))
}

/// Runs a test for each back end in a namespace of its own.
fn for_each_backend(test: impl Fn(Backend) + Sync) {
    for backend in BACKENDS {
        eprintln!("{backend}");
        NetNs::new().run(|| test(backend));
    }
    // Not there if the test needed none.
    let _ = std::fs::remove_file(own_lock_file());
}

fn chain(name: &str) -> ChainName {
    name.parse().unwrap()
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

/// The second opinion: what the tool prints, without its comments.
fn saved_text(backend: Backend, family: Family) -> String {
    let infix = match backend {
        Backend::Legacy => "legacy",
        Backend::Nft => "nft",
    };
    let text = must(&format!("{}-{infix}-save", family.tool()), &[]);
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Only the tables that are in `like`: legacy prints those too that somebody once looked at.
fn only_tables_of(like: &Ruleset, saved: &Ruleset) -> Ruleset {
    let mut only = Ruleset::new();
    for (table, _) in like.tables() {
        *only.table_mut(table) = saved.table(table).unwrap().clone();
    }
    only
}

fn golden(name: &str) -> String {
    let path = format!(
        "{}/../crates/iptables-restore/tests/golden/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of the golden files; those with `ipv6` in them are of IPv6.
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

/// Makes the objects that rules of these hosts refer to.
fn make_what_hosts_refer_to() {
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
        let words: Vec<_> = ["create", name].into_iter().chain(kind.split(' ')).collect();
        must("ipset", &words);
    }
    // What `nfacct add NAME` sends. Source: `include/uapi/linux/netfilter/nfnetlink_acct.h`, Linux 6.1.
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
fn saves_of_hosts_are_restored_and_saved_again_equal() {
    requires!(Feature::Iptables, Feature::IpSet);
    for_each_backend(|backend| {
        make_what_hosts_refer_to();
        let kind = if backend == Backend::Legacy {
            "legacy"
        } else {
            "nft"
        };
        let mut command = command(backend);
        for host in HOSTS {
            let family = if host.contains("ipv6") {
                Family::Ipv6
            } else {
                Family::Ipv4
            };
            let text = golden(&format!("hosts/{host}.{kind}.save"));
            let ruleset: Ruleset = text.parse().unwrap();
            command
                .restore(&ruleset.to_restore(family))
                .unwrap_or_else(|error| panic!("{host}: {error:?}"));
            let again = only_tables_of(&ruleset, &command.save(&Save::all(family)).unwrap());
            assert_eq!(again.to_string(), ruleset.to_string(), "{host}");

            // And with counters. ip6tables-nft-restore 1.8.9 takes those of rules and writes zero.
            let mut ruleset: Ruleset = golden(&format!("hosts/{host}.{kind}.counters.save"))
                .parse()
                .unwrap();
            command.restore(&ruleset.to_restore(family)).unwrap();
            let mut again = only_tables_of(
                &ruleset,
                &command.save(&Save::all(family).with_counters()).unwrap(),
            );
            if family == Family::Ipv6 {
                ruleset.forget_rule_counters();
                again.forget_rule_counters();
            }
            assert_eq!(again.to_string(), ruleset.to_string(), "{host}");
            command.restore(&emptied(&ruleset).to_restore(family)).unwrap();
        }
    });
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

/// The table a rule can stand in.
fn table_for(rule: &Rule) -> Table {
    match &rule.target {
        Some(Target::Dnat(_) | Target::Snat(_) | Target::Masquerade(_) | Target::Redirect(_)) => Table::Nat,
        Some(Target::Notrack | Target::Ct(_)) => Table::Raw,
        Some(Target::Tproxy(_)) => Table::Mangle,
        Some(Target::Set(set)) if matches!(set.action, SetAction::Map { .. }) => Table::Mangle,
        Some(Target::Verbatim(words)) => match words.iter().map(|word| word.as_str()).nth(1) {
            Some("NETMAP") => Table::Nat,
            Some("TRACE") => Table::Raw,
            _ => Table::Mangle,
        },
        _ => Table::Filter,
    }
}

#[test]
fn every_typed_match_and_target_is_taken_and_comes_back_in_its_normal_form() {
    requires!(Feature::Iptables, Feature::IpSet);
    for_each_backend(|backend| {
        for (set, kind) in [
            ("S", "hash:ip,port counters timeout 0"),
            ("S6", "hash:ip,port family inet6 counters timeout 0"),
            ("M", "hash:ip skbinfo"),
        ] {
            let words: Vec<_> = ["create", set].into_iter().chain(kind.split(' ')).collect();
            must("ipset", &words);
        }
        for family in Family::ALL {
            let file = if family == Family::Ipv4 {
                "normal_form_ipv4.txt"
            } else {
                "normal_form_ipv6.txt"
            };
            let mut wanted: BTreeMap<Table, Vec<Rule>> = BTreeMap::new();
            for line in golden(file)
                .lines()
                .filter_map(|line| line.strip_prefix("written "))
            {
                wanted.entry(table_for(&rule(line))).or_default().push(rule(line));
            }
            let (name, foo) = (chain("KL-ALL"), chain("FOO"));
            let mut restore = Restore::new(family);
            for (table, rules) in &wanted {
                restore.push(*table, Edit::declare(foo));
                restore.push(*table, Edit::declare(name));
                for rule in rules {
                    restore.push(*table, Edit::append(name, rule.clone()));
                }
            }
            let mut command = command(backend);
            command
                .restore(&restore)
                .unwrap_or_else(|error| panic!("{error:?}"));
            for (table, rules) in wanted {
                let saved = command.save(&Save::table(family, table)).unwrap();
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

/// What the tools print differently from how it was written: names become numbers, and nft forgets what has no effect.
#[test]
fn rules_with_names_and_with_an_nflog_range_are_written_once() {
    requires!(Feature::Iptables);
    let names = Names::of_host();
    for_each_backend(|backend| {
        for (family, address) in [(Family::Ipv4, "192.0.2.1"), (Family::Ipv6, "[2001:db8::1]")] {
            let mut wanted = Wanted::new(family);
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
                let rules = texts.iter().map(|text| names.rule(text).unwrap());
                wanted.set_chain(table, name, rules).unwrap();
                // The tool itself, given the names, makes the same of them.
                let lines = texts.iter().map(|text| format!("-A KL-THEIRS {text}\n"));
                let input = format!(
                    "*{table}\n:KL-THEIRS - [0:0]\n{}COMMIT\n",
                    lines.collect::<String>()
                );
                let infix = if backend == Backend::Legacy {
                    "legacy"
                } else {
                    "nft"
                };
                let lock = format!("XTABLES_LOCKFILE={}", own_lock_file().display());
                let restore = format!("{}-{infix}-restore", family.tool());
                run_with_input("env", &[&lock, &restore, "--wait", "30", "--noflush"], &input).unwrap();
            }
            let mut command = command(backend);
            let owned = Owned::new();
            let saved = command.save(&Save::all(family)).unwrap();
            command.restore(&diff(&saved, &wanted, &owned)).unwrap();
            let saved = command.save(&Save::all(family)).unwrap();
            let again = diff(&saved, &wanted, &owned);
            assert!(again.is_empty(), "{again}");
            for table in [Table::Filter, Table::Nat] {
                let rules = |name: &str| -> Vec<String> {
                    let chain = saved.chain(table, &chain(name)).unwrap();
                    chain.rules().map(Rule::to_string).collect()
                };
                assert_eq!(rules("KL-NAMES"), rules("KL-THEIRS"));
            }
        }
    });
}

#[test]
fn the_ipvs_match_comes_back_in_its_normal_form() {
    requires!(Feature::Iptables, Feature::Ipvs);
    for_each_backend(|backend| {
        let mut command = command(backend);
        for (family, address) in [(Family::Ipv4, "192.0.2.1"), (Family::Ipv6, "2001:db8::1")] {
            let wanted = [
                format!("-s {address} -m ipvs --vaddr {address} --vproto tcp --vport 1234 -j DROP"),
                "-m ipvs --ipvs".into(),
                "-m ipvs ! --ipvs".into(),
                format!("-m ipvs ! --vaddr {address} --vdir REPLY ! --vmethod MASQ --vportctl 21 -j ACCEPT"),
            ]
            .map(|text| rule(&text));
            let name = chain("KL-IPVS");
            let mut restore = Restore::new(family).with(Table::Filter, Edit::declare(name));
            for rule in &wanted {
                restore.push(Table::Filter, Edit::append(name, rule.clone()));
            }
            command.restore(&restore).unwrap();
            let saved = command.save(&Save::table(family, Table::Filter)).unwrap();
            let read: Vec<String> = saved
                .chain(Table::Filter, &name)
                .unwrap()
                .rules()
                .map(Rule::to_string)
                .collect();
            let expected = wanted.map(|rule| rule.normal_form(family).to_string());
            assert_eq!(read.join("\n"), expected.join("\n"));
        }
    });
}

/// Strings that would do harm if they were not quoted, or were not refused.
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
fn no_comment_makes_a_second_command() {
    requires!(Feature::Iptables);
    for_each_backend(|backend| {
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
                let mut command = command(backend).with_style(style);
                command.restore(&restore).unwrap();
                let saved = command.save(&Save::all(family)).unwrap();
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
fn chain_and_interface_names_that_are_taken_are_those_that_are_meant() {
    requires!(Feature::Iptables);
    for_each_backend(|backend| {
        let mut command = command(backend);
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
        command
            .restore(&restore)
            .unwrap_or_else(|error| panic!("{error:?}"));
        let saved = command.save(&Save::table(Family::Ipv4, Table::Filter)).unwrap();
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
fn the_longest_comment_is_kept_whole() {
    requires!(Feature::Iptables);
    for_each_backend(|backend| {
        let mut command = command(backend);
        let name = chain("KL-LONG");
        let long = "\"".repeat(Comment::LIMIT);
        let restore = Restore::new(Family::Ipv4)
            .with(Table::Filter, Edit::declare(name))
            .with(
                Table::Filter,
                Edit::append(name, Rule::new().with_comment(&long).unwrap()),
            );
        command.restore(&restore).unwrap();
        let saved = command.save(&Save::table(Family::Ipv4, Table::Filter)).unwrap();
        let read = saved.chain(Table::Filter, &name).unwrap().rules().next().unwrap();
        assert_eq!(read.matches, [Match::comment(&long).unwrap()]);
    });
}

#[test]
fn the_rule_that_the_kernel_refuses_is_found_among_many() {
    requires!(Feature::Iptables);
    for_each_backend(|backend| {
        let mut command = command(backend);
        let (first, second) = (chain("KL-A"), chain("KL-B"));
        let culprit = Edit::append(second, rule("-j TPROXY --on-port 99 --on-ip 192.0.2.1"));
        let mut restore = Restore::new(Family::Ipv4)
            .with(Table::Nat, Edit::declare(first))
            .with(Table::Filter, Edit::declare(first))
            .with(Table::Filter, Edit::declare(second));
        for place in 0..1000 {
            if place == 777 {
                restore.push(Table::Filter, culprit.clone());
            }
            let test = format!(
                "-s 10.1.{}.{}/32 -p tcp -m tcp --dport 1234 -j RETURN",
                place / 256,
                place % 256
            );
            restore.push(
                Table::Filter,
                Edit::append(if place % 2 == 0 { first } else { second }, rule(&test)),
            );
        }
        restore.push(Table::Mangle, Edit::declare(first));
        let error = command.restore(&restore).unwrap_err();
        let Error::Refused { refused, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(
            **refused,
            Refused::Edit {
                table: Table::Filter,
                edit: culprit
            }
        );
        // What the error says of the tables is what the tool finds there.
        assert_eq!(error.applied(), [Table::Nat]);
        let text = saved_text(backend, Family::Ipv4);
        let nat = text.split("*nat\n").nth(1).unwrap();
        assert!(nat.contains(":KL-A - [0:0]"), "{text}");
        assert_eq!(text.matches("KL-").count(), 1, "{text}");

        // Without trials legacy knows only the table; nft names the line by itself.
        let error = command.with_trials(Trial::None).restore(&restore).unwrap_err();
        let Error::Refused { refused, .. } = &error else {
            panic!("{error:?}")
        };
        let table_only = **refused == Refused::Table(Table::Filter);
        assert_eq!(table_only, backend == Backend::Legacy, "{error:?}");
    });
}

#[test]
fn a_rule_with_a_missing_set_is_named() {
    requires!(Feature::Iptables, Feature::IpSet);
    for_each_backend(|backend| {
        let culprit = Edit::append(chain("KL-A"), rule("-m set --match-set KL-NONE dst -j ACCEPT"));
        let restore = Restore::new(Family::Ipv4)
            .with(Table::Filter, Edit::declare(chain("KL-A")))
            .with(Table::Filter, culprit.clone());
        let error = command(backend).restore(&restore).unwrap_err();
        assert!(error.is_not_found(), "{error:?}");
        let Error::Refused { refused, text, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(
            **refused,
            Refused::Edit {
                table: Table::Filter,
                edit: culprit
            }
        );
        assert!(text.contains("KL-NONE"), "{text}");
    });
}

/// A program that holds the lock until it is killed.
struct Holder(Child);

impl Holder {
    fn of(path: &std::path::Path) -> Self {
        let holder = programs::command("flock")
            .arg("--no-fork")
            .arg(path)
            .args(["sh", "-c", "echo held; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut holder = Holder(holder);
        let mut held = [0; 5];
        std::io::Read::read_exact(holder.0.stdout.as_mut().unwrap(), &mut held).unwrap();
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_lock_that_stays_held_is_told_with_its_holder() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let path = lock_file("held");
        let holder = Holder::of(&path);
        let pid = holder.0.id();
        let restore = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare(chain("KL-A")));
        let mut legacy = command(Backend::Legacy)
            .with_lock_file(&path)
            .with_wait(Duration::from_secs(1));
        let error = legacy.restore(&restore).unwrap_err();
        let Error::Locked {
            holder: Some(named), ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(named.pid, pid, "{error}");
        assert!(named.command.contains("sleep"), "{error}");
        assert!(
            legacy
                .save(&Save::all(Family::Ipv4))
                .unwrap()
                .chain(Table::Filter, &chain("KL-A"))
                .is_none()
        );
        let error = legacy.with_wait(Duration::ZERO).restore(&restore).unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{error:?}");
        // nftables has no lock.
        command(Backend::Nft)
            .with_lock_file(&path)
            .with_wait(Duration::ZERO)
            .restore(&restore)
            .unwrap();
        drop(holder);
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn a_lock_that_is_given_back_is_waited_for() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let path = lock_file("released");
        let holder = Holder::of(&path);
        let restore = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare(chain("KL-A")));
        let mut legacy = command(Backend::Legacy).with_lock_file(&path);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                drop(holder);
            });
            legacy.restore(&restore).unwrap();
        });
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn rules_in_both_back_ends_are_seen() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let restore = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare(chain("KL-A")));
        let mut any = Command::new().with_lock_file(own_lock_file());
        let empty = any.detect(Family::Ipv4).unwrap();
        assert_eq!(empty.verdict(), Verdict::Neither(empty.default));
        command(Backend::Nft).restore(&restore).unwrap();
        assert_eq!(
            any.detect(Family::Ipv4).unwrap().verdict(),
            Verdict::One(Backend::Nft)
        );
        command(Backend::Legacy).restore(&restore).unwrap();
        let hint = Restore::new(Family::Ipv4).with(Table::Mangle, Edit::declare(chain("KUBE-IPTABLES-HINT")));
        command(Backend::Legacy).restore(&hint).unwrap();
        let both = any.detect(Family::Ipv4).unwrap();
        assert_eq!(
            both.verdict(),
            Verdict::Both {
                guess: Backend::Legacy
            },
            "{both:?}"
        );
        assert_eq!(
            any.detect(Family::Ipv6).unwrap().verdict(),
            Verdict::Neither(both.default)
        );
    });
    let _ = std::fs::remove_file(own_lock_file());
}

fn wishes(family: Family, mark: u32) -> Wanted {
    let mut wanted = Wanted::new(family);
    let set = |wanted: &mut Wanted, table, name: &str, rules: &[&str]| {
        wanted
            .set_chain(table, chain(name), rules.iter().map(|text| rule(text)))
            .unwrap();
    };
    set(
        &mut wanted,
        Table::Nat,
        "KL-MARK",
        &[&format!("-j MARK --or-mark {mark:#x}")],
    );
    set(
        &mut wanted,
        Table::Nat,
        "KL-SERVICES",
        &["-p tcp --dport 80 -j KL-MARK", "-p udp --dport 53 -j KL-MARK"],
    );
    set(
        &mut wanted,
        Table::Filter,
        "KL-FORWARD",
        &["-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"],
    );
    let theirs = rule("-m addrtype --dst-type LOCAL -j DOCKER");
    for (table, from, to, place) in [
        (Table::Nat, "PREROUTING", "KL-SERVICES", Place::First),
        (Table::Nat, "OUTPUT", "KL-SERVICES", Place::Last),
        (
            Table::Filter,
            "FORWARD",
            "KL-FORWARD",
            Place::After(rule("-j DOCKER-USER")),
        ),
        (Table::Nat, "PREROUTING", "KL-MARK", Place::Before(theirs)),
    ] {
        let rule = rule("-m comment --comment \"our own\"").jump(chain(to));
        wanted
            .add_jump(
                table,
                Jump {
                    from: chain(from),
                    rule,
                    place,
                },
            )
            .unwrap();
    }
    wanted
}

#[test]
fn a_difference_is_written_by_one_restore_and_all_of_it_can_be_taken_away() {
    requires!(Feature::Iptables);
    for_each_backend(|backend| {
        let kind = if backend == Backend::Legacy {
            "legacy"
        } else {
            "nft"
        };
        let family = Family::Ipv4;
        let docker: Ruleset = golden(&format!("hosts/docker.{kind}.save")).parse().unwrap();
        let mut command = command(backend);
        command.restore(&docker.to_restore(family)).unwrap();
        let before = saved_text(backend, family);
        let owned = Owned::new().with_prefix("KL-");
        let mut step = |wanted: &Wanted| {
            let saved = command.save(&Save::all(family)).unwrap();
            let restore = diff(&saved, wanted, &owned);
            command
                .restore(&restore)
                .unwrap_or_else(|error| panic!("{restore}\n{error:?}"));
            let saved = command.save(&Save::all(family)).unwrap();
            let again = diff(&saved, wanted, &owned);
            assert!(again.is_empty(), "{again}");
            (restore, saved)
        };
        let (_, saved) = step(&wishes(family, 0x10));
        let rules = |table, name: &str| -> Vec<String> {
            saved
                .chain(table, &chain(name))
                .unwrap()
                .rules()
                .map(Rule::to_string)
                .collect()
        };
        let comment = "-m comment --comment \"our own\"";
        assert_eq!(
            rules(Table::Nat, "PREROUTING"),
            [
                &format!("{comment} -j KL-SERVICES"),
                &format!("{comment} -j KL-MARK"),
                "-m addrtype --dst-type LOCAL -j DOCKER"
            ]
        );
        assert_eq!(
            rules(Table::Nat, "OUTPUT").last().unwrap(),
            &format!("{comment} -j KL-SERVICES")
        );
        assert_eq!(
            rules(Table::Filter, "FORWARD")[1],
            format!("{comment} -j KL-FORWARD")
        );

        // One chain changes: that chain is all that is written.
        let (restore, _) = step(&wishes(family, 0x20));
        assert_eq!(
            restore.render(Style::SAVE),
            "*nat\n:KL-MARK - [0:0]\n-A KL-MARK -j MARK --or-mark 0x20\nCOMMIT\n"
        );
        step(&Wanted::new(family));
        assert_eq!(saved_text(backend, family), before);
    });
}

#[test]
fn somebody_elses_broken_comment_does_not_keep_us_from_reading() {
    requires!(Feature::Iptables);
    for_each_backend(|backend| {
        // 200 characters of two bytes: the tool cuts the comment in the middle of one.
        let kind = if backend == Backend::Legacy {
            "legacy"
        } else {
            "nft"
        };
        let text = format!(
            "*filter\n-A INPUT -m comment --comment \"x{}\"\nCOMMIT\n",
            "é".repeat(200)
        );
        let lock = format!("XTABLES_LOCKFILE={}", own_lock_file().display());
        let restore = format!("iptables-{kind}-restore");
        run_with_input("env", &[&lock, &restore, "--wait", "30", "--noflush"], &text).unwrap();
        let saved = command(backend)
            .save(&Save::table(Family::Ipv4, Table::Filter))
            .unwrap();
        assert_eq!(saved.rule_count(), 1, "{saved}");
    });
}

/// Starts an iptables tool of the back end as somebody else would, with the lock file of the test.
fn theirs(backend: Backend, verb: &str, arguments: &[&str], input: &str) {
    let kind = match backend {
        Backend::Legacy => "legacy",
        Backend::Nft => "nft",
    };
    let lock = format!("XTABLES_LOCKFILE={}", own_lock_file().display());
    let program = format!("iptables-{kind}{verb}");
    let words = [&[lock.as_str(), &program], arguments].concat();
    run_with_input("env", &words, input).unwrap();
}

/// Foreign content that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    /// Rules with a line feed in their comments, in a built-in chain and in another.
    LineFeed,
    /// A chain made with `nft` that has a name of more than 28 characters, and rules in it and to it.
    LongName,
    /// An nftables rule for which `iptables-nft-save` fails.
    Unprintable,
    /// The same in the chain that our jump is in.
    UnprintableBesideUs,
    /// An nftables rule for which `iptables-nft-save` leaves the table out.
    Incompatible,
}

impl Foreign {
    /// Makes it in table nat.
    fn make(self, backend: Backend) {
        theirs(
            backend,
            "-restore",
            &["--noflush"],
            "*nat\n:THEIRS - [0:0]\n-A PREROUTING -j THEIRS\n-A OUTPUT -j THEIRS\nCOMMIT\n",
        );
        let nft = |commands: &str| run_with_input("nft", &["-f", "-"], commands).unwrap();
        match self {
            Foreign::LineFeed => {
                for (chain, comment) in [
                    ("PREROUTING", "one\ntwo"),
                    ("THEIRS", "x\n-A PREROUTING -j KL-SERVICES\nCOMMIT"),
                ] {
                    let rule = [
                        "-w",
                        "30",
                        "-t",
                        "nat",
                        "-I",
                        chain,
                        "-m",
                        "comment",
                        "--comment",
                        comment,
                    ];
                    theirs(backend, "", &[&rule[..], &["-j", "ACCEPT"]].concat(), "");
                }
            }
            Foreign::LongName => {
                let name = "a-chain-with-a-name-of-more-than-28-characters";
                nft(&format!(
                    "add chain ip nat {name}\nadd rule ip nat {name} ip saddr 192.0.2.1 accept\nadd rule ip nat PREROUTING jump {name}\n"
                ));
            }
            Foreign::Unprintable => drop(nft("add rule ip nat THEIRS meta skuid 0 accept\n")),
            Foreign::UnprintableBesideUs => {
                drop(nft(
                    "add rule ip nat PREROUTING meta skuid 0 accept\nadd rule ip nat OUTPUT meta skuid 0 accept\n",
                ));
            }
            Foreign::Incompatible => drop(nft("add rule ip nat THEIRS numgen inc mod 2 0 accept\n")),
        }
    }

    /// Whether the table cannot be printed at all.
    fn hides_table(self) -> bool {
        !matches!(self, Foreign::LineFeed | Foreign::LongName)
    }

    /// Their rules in table nat, as the tool that knows all of it prints them.
    fn rules(backend: Backend) -> Vec<String> {
        let text = match backend {
            Backend::Legacy => saved_text(backend, Family::Ipv4),
            Backend::Nft => must("nft", &["--stateless", "list", "table", "ip", "nat"]),
        };
        let mut chain_is_ours = false;
        let mut theirs = Vec::new();
        for line in text.lines() {
            if line.starts_with("\tchain ") {
                chain_is_ours = line.contains("KL-");
            }
            let is_rule = match backend {
                Backend::Legacy => {
                    !line.starts_with(['*', ':']) && !line.contains("our own") && !line.starts_with("-A KL-")
                }
                Backend::Nft => {
                    line.starts_with("\t\t") && !line.contains("type nat hook") && !line.contains("KL-")
                }
            };
            if is_rule && !chain_is_ours {
                theirs.push(line.to_owned());
            }
        }
        theirs
    }
}

#[test]
fn what_others_wrote_and_cannot_be_read_keeps_none_of_our_chains_and_jumps_away() {
    requires!(Feature::Iptables);
    let family = Family::Ipv4;
    let owned = Owned::new().with_prefix("KL-");
    let all = [
        Foreign::LineFeed,
        Foreign::LongName,
        Foreign::Unprintable,
        Foreign::UnprintableBesideUs,
        Foreign::Incompatible,
    ];
    for foreign in all {
        for_each_backend(|backend| {
            if backend == Backend::Legacy && foreign != Foreign::LineFeed {
                return;
            }
            eprintln!("{foreign:?}");
            foreign.make(backend);
            let before = Foreign::rules(backend);
            let mut command = command(backend);
            let error = command.save(&Save::table(family, Table::Nat)).unwrap_err();
            assert!(
                error.is_unreadable() && !error.is_permission_denied(),
                "{error:?}"
            );

            let wanted = |mark| {
                let mut wanted = Wanted::new(family);
                let mark = rule(&format!("-j MARK --or-mark {mark:#x}"));
                wanted.set_chain(Table::Nat, chain("KL-MARK"), [mark]).unwrap();
                let services = [rule("-p tcp -m tcp --dport 80 -j KL-MARK"), rule("-j RETURN")];
                wanted
                    .set_chain(Table::Nat, chain("KL-SERVICES"), services)
                    .unwrap();
                for (from, place) in [("PREROUTING", Place::First), ("OUTPUT", Place::Last)] {
                    let rule = rule("-m comment --comment \"our own\" -j KL-SERVICES");
                    let from = chain(from);
                    wanted.add_jump(Table::Nat, Jump { from, rule, place }).unwrap();
                }
                wanted
            };
            // Another chain's content the second time; and doing it again changes nothing.
            for mark in [0x10, 0x20, 0x20] {
                for request in [Save::table(family, Table::Nat), Save::all(family)] {
                    let saved = command.save(&request.tolerant()).unwrap();
                    assert!(!saved.unreadable().is_empty());
                    assert_eq!(saved.is_unreadable(Table::Nat), foreign.hides_table());
                    for outcome in command.execute(&diff_operations(&saved, &wanted(mark), &owned)) {
                        outcome.unwrap();
                    }
                }
                assert_eq!(Foreign::rules(backend), before);
                let ours = ours_in_nat(backend);
                assert_eq!(
                    ours,
                    [format!("{mark:#x}"), "2 services".into(), "2 jumps".into()]
                );
            }
            let saved = command.save(&Save::table(family, Table::Nat).tolerant()).unwrap();
            let again = diff_operations(&saved, &wanted(0x20), &owned);
            assert_eq!(again.is_empty(), !foreign.hides_table(), "{again:?}");
            if !foreign.hides_table() {
                // And all of ours goes again.
                command
                    .restore(&diff(&saved, &Wanted::new(family), &owned))
                    .unwrap();
                assert!(!saved_text(backend, family).contains("-j KL-SERVICES\n-A"));
                assert_eq!(Foreign::rules(backend), before);
            }
        });
    }
}

/// The mark in our chain, the number of rules in the other, and the number of jumps to it, as the tool that knows all of the table
/// prints it.
fn ours_in_nat(backend: Backend) -> [String; 3] {
    let list = |chain: &str| match backend {
        Backend::Legacy => {
            let text = saved_text(backend, Family::Ipv4);
            let start = format!("-A {chain} ");
            let rules = text.lines().filter(|line| line.starts_with(&start));
            rules.map(str::to_owned).collect::<Vec<_>>()
        }
        Backend::Nft => {
            let text = must("nft", &["--stateless", "list", "chain", "ip", "nat", chain]);
            let rules = text
                .lines()
                .filter(|line| line.starts_with("\t\t") && !line.contains("type nat hook"));
            rules.map(|line| line.trim().to_owned()).collect()
        }
    };
    let mark = list("KL-MARK").join("; ");
    let mark = mark.split("0x").nth(1).unwrap().split(['/', ' ']).next().unwrap();
    // A line of a foreign comment is made to look like one of ours; nft shows no comments.
    let jump = match backend {
        Backend::Legacy => "\"our own\" -j KL-SERVICES",
        Backend::Nft => "jump KL-SERVICES",
    };
    let jumps = |chain: &str| list(chain).iter().filter(|rule| rule.contains(jump)).count();
    [
        format!("0x{}", mark.trim_start_matches('0')),
        format!("{} services", list("KL-SERVICES").len()),
        format!("{} jumps", jumps("PREROUTING") + jumps("OUTPUT")),
    ]
}
