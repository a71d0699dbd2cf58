//! Foreign content that cannot be parsed.

use kernlink_iptables_restore::{
    Desired, Family, Iptables, Jump, Ownership, Position, Save, Table, Variant, diff, diff_operations,
};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::tools::{must, run_with_input};

use crate::{chain, client_of, for_each_variant, rule, run_tool, saved_text};

/// Content of a foreign program that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    /// Rules with a line feed in their comments, in a built-in chain and in another.
    LineFeed,
    /// A chain with a name of more than 28 characters, created with `nft`, with a rule in it and a jump to it.
    LongName,
    /// An nftables rule for which `iptables-nft-save` fails.
    Unprintable,
    /// The same in the chains that contain desired jumps.
    UnprintableInJumpChain,
    /// An nftables rule for which `iptables-nft-save` does not print the table.
    Incompatible,
}

impl Foreign {
    /// Creates it in table nat.
    fn create(self, variant: Variant) {
        run_tool(
            Family::Ipv4,
            variant,
            "-restore",
            &["--noflush"],
            "*nat\n:FOREIGN - [0:0]\n-A PREROUTING -j FOREIGN\n-A OUTPUT -j FOREIGN\nCOMMIT\n",
        );
        let nft = |commands: &str| run_with_input("nft", &["-f", "-"], commands).unwrap();
        match self {
            Foreign::LineFeed => {
                for (chain, comment) in [
                    ("PREROUTING", "one\ntwo"),
                    ("FOREIGN", "x\n-A PREROUTING -j KL-SERVICES\nCOMMIT"),
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
                    run_tool(
                        Family::Ipv4,
                        variant,
                        "",
                        &[&rule[..], &["-j", "ACCEPT"]].concat(),
                        "",
                    );
                }
            }
            Foreign::LongName => {
                let name = "a-chain-with-a-name-of-more-than-28-characters";
                nft(&format!(
                    "add chain ip nat {name}\nadd rule ip nat {name} ip saddr 192.0.2.1 accept\nadd rule ip nat PREROUTING jump {name}\n"
                ));
            }
            Foreign::Unprintable => drop(nft("add rule ip nat FOREIGN meta skuid 0 accept\n")),
            Foreign::UnprintableInJumpChain => {
                drop(nft(
                    "add rule ip nat PREROUTING meta skuid 0 accept\nadd rule ip nat OUTPUT meta skuid 0 accept\n",
                ));
            }
            Foreign::Incompatible => drop(nft("add rule ip nat FOREIGN numgen inc mod 2 0 accept\n")),
        }
    }

    /// Whether the tool cannot print the table.
    fn hides_table(self) -> bool {
        !matches!(self, Foreign::LineFeed | Foreign::LongName)
    }

    /// The foreign rules in table nat, printed by the tool that supports all of them.
    fn rules(variant: Variant) -> Vec<String> {
        let text = match variant {
            Variant::Legacy => saved_text(variant, Family::Ipv4),
            Variant::Nft => must("nft", &["--stateless", "list", "table", "ip", "nat"]),
        };
        let mut chain_is_owned = false;
        let mut foreign = Vec::new();
        for line in text.lines() {
            if line.starts_with("\tchain ") {
                chain_is_owned = line.contains("KL-");
            }
            let is_rule = match variant {
                Variant::Legacy => {
                    !line.starts_with(['*', ':'])
                        && !line.contains("owned jump")
                        && !line.starts_with("-A KL-")
                }
                Variant::Nft => {
                    line.starts_with("\t\t") && !line.contains("type nat hook") && !line.contains("KL-")
                }
            };
            if is_rule && !chain_is_owned {
                foreign.push(line.to_owned());
            }
        }
        foreign
    }
}

#[test]
fn owned_chains_and_jumps_are_written_next_to_unreadable_foreign_rules() {
    requires!(Feature::Iptables);
    let family = Family::Ipv4;
    let owned = Ownership::new().with_prefix("KL-");
    let all = [
        Foreign::LineFeed,
        Foreign::LongName,
        Foreign::Unprintable,
        Foreign::UnprintableInJumpChain,
        Foreign::Incompatible,
    ];
    for foreign in all {
        for_each_variant(|variant| {
            if variant == Variant::Legacy && foreign != Foreign::LineFeed {
                return;
            }
            eprintln!("{foreign:?}");
            foreign.create(variant);
            let before = Foreign::rules(variant);
            let mut client = client_of(variant);
            let error = client.save(&Save::table(family, Table::Nat)).unwrap_err();
            assert!(
                error.is_unreadable() && !error.is_permission_denied(),
                "{error:?}"
            );

            let desired = |mark| {
                let mut desired = Desired::new(family);
                let mark = rule(&format!("-j MARK --or-mark {mark:#x}"));
                desired.set_chain(Table::Nat, chain("KL-MARK"), [mark]).unwrap();
                let services = [rule("-p tcp -m tcp --dport 80 -j KL-MARK"), rule("-j RETURN")];
                desired
                    .set_chain(Table::Nat, chain("KL-SERVICES"), services)
                    .unwrap();
                for (from, position) in [("PREROUTING", Position::First), ("OUTPUT", Position::Last)] {
                    let rule = rule("-m comment --comment \"owned jump\" -j KL-SERVICES");
                    let from = chain(from);
                    desired
                        .add_jump(Table::Nat, Jump { from, rule, position })
                        .unwrap();
                }
                desired
            };
            // The second time with another rule, the third time unchanged.
            for mark in [0x10, 0x20, 0x20] {
                for request in [Save::table(family, Table::Nat), Save::all(family)] {
                    let saved = client.save(&request.lenient()).unwrap();
                    assert!(!saved.unreadable().is_empty());
                    assert_eq!(saved.is_unreadable(Table::Nat), foreign.hides_table());
                    for outcome in client.execute(&diff_operations(&saved, &desired(mark), &owned)) {
                        outcome.unwrap();
                    }
                }
                assert_eq!(Foreign::rules(variant), before);
                let printed = owned_in_nat(variant);
                assert_eq!(
                    printed,
                    [format!("{mark:#x}"), "2 services".into(), "2 jumps".into()]
                );
            }
            let saved = client.save(&Save::table(family, Table::Nat).lenient()).unwrap();
            let again = diff_operations(&saved, &desired(0x20), &owned);
            assert_eq!(again.is_empty(), !foreign.hides_table(), "{again:?}");
            if !foreign.hides_table() {
                // Everything owned can be deleted.
                client
                    .restore(&diff(&saved, &Desired::new(family), &owned))
                    .unwrap();
                assert!(!saved_text(variant, family).contains("-j KL-SERVICES\n-A"));
                assert_eq!(Foreign::rules(variant), before);
            }
        });
    }
}

/// The mark of `KL-MARK`, the number of rules in `KL-SERVICES`, and the number of jumps to it, printed by the tool that supports the
/// whole table.
fn owned_in_nat(variant: Variant) -> [String; 3] {
    let list = |chain: &str| match variant {
        Variant::Legacy => {
            let text = saved_text(variant, Family::Ipv4);
            let start = format!("-A {chain} ");
            let rules = text.lines().filter(|line| line.starts_with(&start));
            rules.map(str::to_owned).collect::<Vec<_>>()
        }
        Variant::Nft => {
            let text = must("nft", &["--stateless", "list", "chain", "ip", "nat", chain]);
            let rules = text
                .lines()
                .filter(|line| line.starts_with("\t\t") && !line.contains("type nat hook"));
            rules.map(|line| line.trim().to_owned()).collect()
        }
    };
    let mark = list("KL-MARK").join("; ");
    let mark = mark.split("0x").nth(1).unwrap().split(['/', ' ']).next().unwrap();
    // A line of a foreign comment looks like an owned jump. nft prints no comments.
    let jump = match variant {
        Variant::Legacy => "\"owned jump\" -j KL-SERVICES",
        Variant::Nft => "jump KL-SERVICES",
    };
    let jumps = |chain: &str| list(chain).iter().filter(|rule| rule.contains(jump)).count();
    [
        format!("0x{}", mark.trim_start_matches('0')),
        format!("{} services", list("KL-SERVICES").len()),
        format!("{} jumps", jumps("PREROUTING") + jumps("OUTPUT")),
    ]
}
