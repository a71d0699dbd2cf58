//! Refusals, the lock, detection of variants, and differences that are written by one restore.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use kernlink_iptables_restore::{
    Client, Desired, Edit, Error, Family, Iptables, Jump, Ownership, Position, RefusalSearch, Refused,
    Restore, Rule, Ruleset, Save, Style, Table, Variant, VariantInUse, diff,
};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{programs, requires};

use crate::{chain, client_of, for_each_variant, golden, infix, lock_file, own_lock_file, rule, saved_text};

#[test]
fn the_rule_that_the_kernel_refuses_is_found_among_many() {
    requires!(Feature::Iptables);
    for_each_variant(|variant| {
        let mut client = client_of(variant);
        let (first, second) = (chain("KL-A"), chain("KL-B"));
        let refused_edit = Edit::append(second, rule("-j TPROXY --on-port 99 --on-ip 192.0.2.1"));
        let mut restore = Restore::new(Family::Ipv4)
            .with(Table::Nat, Edit::declare(first))
            .with(Table::Filter, Edit::declare(first))
            .with(Table::Filter, Edit::declare(second));
        for place in 0..1000 {
            if place == 777 {
                restore.push(Table::Filter, refused_edit.clone());
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
        let error = client.restore(&restore).unwrap_err();
        let Error::Refused { refused, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(
            **refused,
            Refused::Edit {
                table: Table::Filter,
                edit: refused_edit
            }
        );
        // The tool prints the tables that the error reports as changed.
        assert_eq!(error.applied(), [Table::Nat]);
        let text = saved_text(variant, Family::Ipv4);
        let nat = text.split("*nat\n").nth(1).unwrap();
        assert!(nat.contains(":KL-A - [0:0]"), "{text}");
        assert_eq!(text.matches("KL-").count(), 1, "{text}");

        // Without the search, legacy reports only the table. nft reports the line.
        let error = client
            .with_refusal_search(RefusalSearch::Disabled)
            .restore(&restore)
            .unwrap_err();
        let Error::Refused { refused, .. } = &error else {
            panic!("{error:?}")
        };
        let table_only = **refused == Refused::Table(Table::Filter);
        assert_eq!(table_only, variant == Variant::Legacy, "{error:?}");
    });
}

#[test]
fn a_rule_with_a_missing_set_is_reported() {
    requires!(Feature::Iptables, Feature::IpSet);
    for_each_variant(|variant| {
        let refused_edit = Edit::append(chain("KL-A"), rule("-m set --match-set KL-NONE dst -j ACCEPT"));
        let restore = Restore::new(Family::Ipv4)
            .with(Table::Filter, Edit::declare(chain("KL-A")))
            .with(Table::Filter, refused_edit.clone());
        let error = client_of(variant).restore(&restore).unwrap_err();
        assert!(error.is_not_found(), "{error:?}");
        let Error::Refused { refused, text, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(
            **refused,
            Refused::Edit {
                table: Table::Filter,
                edit: refused_edit
            }
        );
        assert!(text.contains("KL-NONE"), "{text}");
    });
}

/// A program that holds the lock until it is killed.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Self {
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
fn the_holder_of_the_lock_is_reported() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let path = lock_file("held");
        let holder = Holder::of(&path);
        let pid = holder.0.id();
        let restore = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare(chain("KL-A")));
        let mut legacy = client_of(Variant::Legacy)
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
        client_of(Variant::Nft)
            .with_lock_file(&path)
            .with_wait(Duration::ZERO)
            .restore(&restore)
            .unwrap();
        drop(holder);
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn a_lock_is_waited_for_until_it_is_released() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let path = lock_file("released");
        let holder = Holder::of(&path);
        let restore = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare(chain("KL-A")));
        let mut legacy = client_of(Variant::Legacy).with_lock_file(&path);
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
fn rules_in_both_variants_are_detected() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let restore = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare(chain("KL-A")));
        let mut any = Client::new().with_lock_file(own_lock_file());
        let empty = any.detect_variants(Family::Ipv4).unwrap();
        assert_eq!(empty.in_use(), VariantInUse::Neither(empty.default));
        client_of(Variant::Nft).restore(&restore).unwrap();
        assert_eq!(
            any.detect_variants(Family::Ipv4).unwrap().in_use(),
            VariantInUse::One(Variant::Nft)
        );
        client_of(Variant::Legacy).restore(&restore).unwrap();
        let hint = Restore::new(Family::Ipv4).with(Table::Mangle, Edit::declare(chain("KUBE-IPTABLES-HINT")));
        client_of(Variant::Legacy).restore(&hint).unwrap();
        let both = any.detect_variants(Family::Ipv4).unwrap();
        assert_eq!(
            both.in_use(),
            VariantInUse::Both {
                preferred: Variant::Legacy
            },
            "{both:?}"
        );
        assert_eq!(
            any.detect_variants(Family::Ipv6).unwrap().in_use(),
            VariantInUse::Neither(both.default)
        );
    });
    let _ = std::fs::remove_file(own_lock_file());
}

fn desired_state(family: Family, mark: u32) -> Desired {
    let mut desired = Desired::new(family);
    let set = |desired: &mut Desired, table, name: &str, rules: &[&str]| {
        desired
            .set_chain(table, chain(name), rules.iter().map(|text| rule(text)))
            .unwrap();
    };
    set(
        &mut desired,
        Table::Nat,
        "KL-MARK",
        &[&format!("-j MARK --or-mark {mark:#x}")],
    );
    set(
        &mut desired,
        Table::Nat,
        "KL-SERVICES",
        &["-p tcp --dport 80 -j KL-MARK", "-p udp --dport 53 -j KL-MARK"],
    );
    set(
        &mut desired,
        Table::Filter,
        "KL-FORWARD",
        &["-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"],
    );
    let foreign = rule("-m addrtype --dst-type LOCAL -j DOCKER");
    for (table, from, to, position) in [
        (Table::Nat, "PREROUTING", "KL-SERVICES", Position::First),
        (Table::Nat, "OUTPUT", "KL-SERVICES", Position::Last),
        (
            Table::Filter,
            "FORWARD",
            "KL-FORWARD",
            Position::After(rule("-j DOCKER-USER")),
        ),
        (Table::Nat, "PREROUTING", "KL-MARK", Position::Before(foreign)),
    ] {
        let rule = rule("-m comment --comment \"owned jump\"").jump(chain(to));
        desired
            .add_jump(
                table,
                Jump {
                    from: chain(from),
                    rule,
                    position,
                },
            )
            .unwrap();
    }
    desired
}

#[test]
fn a_difference_is_written_by_one_restore_and_can_be_deleted() {
    requires!(Feature::Iptables);
    for_each_variant(|variant| {
        let kind = infix(variant);
        let family = Family::Ipv4;
        let docker: Ruleset = golden(&format!("hosts/docker.{kind}.save")).parse().unwrap();
        let mut client = client_of(variant);
        client.restore(&docker.to_restore(family)).unwrap();
        let before = saved_text(variant, family);
        let owned = Ownership::new().with_prefix("KL-");
        let mut step = |desired: &Desired| {
            let saved = client.save(&Save::all(family)).unwrap();
            let restore = diff(&saved, desired, &owned);
            client
                .restore(&restore)
                .unwrap_or_else(|error| panic!("{restore}\n{error:?}"));
            let saved = client.save(&Save::all(family)).unwrap();
            let again = diff(&saved, desired, &owned);
            assert!(again.is_empty(), "{again}");
            (restore, saved)
        };
        let (_, saved) = step(&desired_state(family, 0x10));
        let rules = |table, name: &str| -> Vec<String> {
            saved
                .chain(table, &chain(name))
                .unwrap()
                .rules()
                .map(Rule::to_string)
                .collect()
        };
        let comment = "-m comment --comment \"owned jump\"";
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

        // After a change of one chain, only that chain is written.
        let (restore, _) = step(&desired_state(family, 0x20));
        assert_eq!(
            restore.render(Style::SAVE),
            "*nat\n:KL-MARK - [0:0]\n-A KL-MARK -j MARK --or-mark 0x20\nCOMMIT\n"
        );
        step(&Desired::new(family));
        assert_eq!(saved_text(variant, family), before);
    });
}
