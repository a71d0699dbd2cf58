use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;
use crate::desired::Position;
use crate::error::Refused;
use crate::restore::{Edit, RestoreMode};
use crate::rule::Rule;
use crate::runner::{Completion, Invocation};
use crate::variant::VariantInUse;

/// A runner that returns scripted results and records invocations.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: &'static str,
    version_queries: usize,
    only_short_names: bool,
    /// Standard error of a failed save.
    save_stderr: &'static str,
    results: Vec<(i32, &'static str)>,
    invocations: Vec<Invocation>,
    locked: Vec<(PathBuf, Duration)>,
    lock_is_free: bool,
}

impl Runner for Script {
    fn run(&mut self, invocation: Invocation) -> Result<Completion, Error> {
        let mut state = self.0.lock().unwrap();
        let completion = |status, stdout: &str, stderr: &str| {
            let (stdout, stderr) = (stdout.into(), stderr.into());
            Ok(Completion {
                status: Some(status),
                signal: None,
                stdout,
                stderr,
            })
        };
        let name = &invocation.program;
        if state.only_short_names && (name.contains("-nft") || name.contains("-legacy")) {
            return Err(Error::NotStarted {
                tool: name.clone(),
                kind: std::io::ErrorKind::NotFound,
                text: String::new(),
            });
        }
        let old = state.version.contains("v1.6.1") && invocation.program.ends_with("-restore");
        if invocation.arguments == ["--version"] {
            state.version_queries += 1;
            if old {
                return completion(2, "", "iptables-restore: unrecognized option '--version'");
            }
            return completion(0, state.version, "");
        }
        if old && invocation.arguments.contains(&"--wait".into()) {
            let text =
                "iptables-restore: unrecognized option '--wait'\nCan't open 5: No such file or directory\n";
            return completion(1, "", text);
        }
        let save = invocation.program.ends_with("-save");
        state.invocations.push(invocation);
        match state.results.pop() {
            Some((0, text)) if save => completion(0, text, ""),
            Some((status, text)) if save => completion(status, text, state.save_stderr),
            Some((status, text)) => completion(status, "", text),
            None => completion(0, "", ""),
        }
    }

    fn lock(&mut self, path: &Path, wait: Duration) -> Result<Box<dyn Send>, Error> {
        let mut state = self.0.lock().unwrap();
        state.locked.push((path.into(), wait));
        if state.lock_is_free {
            return Ok(Box::new(()));
        }
        Err(Error::Locked {
            waited: wait,
            holder: None,
        })
    }

    fn lock_holder(&mut self, _: &Path) -> Option<crate::LockHolder> {
        Some(crate::LockHolder {
            pid: 4711,
            command: "firewall-cmd --reload".into(),
        })
    }
}

fn script(version: &'static str, results: &[(i32, &'static str)]) -> (Script, Client) {
    let script = Script::default();
    {
        let mut state = script.0.lock().unwrap();
        state.version = version;
        state.results = results.iter().rev().copied().collect();
    }
    let command = Client::with_runner(Box::new(script.clone()));
    (script, command)
}

const NFT: &str = "iptables-restore v1.8.9 (nf_tables)\n";

fn restore(table: Table) -> Restore {
    let chain = "A".parse().unwrap();
    Restore::new(Family::Ipv6)
        .with(table, Edit::declare(chain))
        .with(table, Edit::append(chain, "-j RETURN".parse().unwrap()))
}

fn lines(script: &Script) -> Vec<String> {
    let state = script.0.lock().unwrap();
    state
        .invocations
        .iter()
        .map(|invocation| format!("{} {}", invocation.program, invocation.arguments.join(" ")))
        .collect()
}

#[test]
fn a_restore_is_one_process_with_the_options_of_its_version() {
    let (script, mut command) = script(NFT, &[]);
    command.restore(&restore(Table::Nat)).unwrap();
    let mut replace = restore(Table::Nat);
    replace.mode = RestoreMode::Replace;
    command.restore(&replace).unwrap();
    command.test(&restore(Table::Nat)).unwrap();
    command = command
        .with_wait(Duration::ZERO)
        .with_variant(Variant::Legacy)
        .with_lock_file("/x/lock");
    command.restore(&restore(Table::Nat)).unwrap();
    command.restore(&Restore::new(Family::Ipv6)).unwrap();
    assert_eq!(
        lines(&script),
        [
            "ip6tables-restore --wait 5 --noflush --counters",
            "ip6tables-restore --wait 5 --counters",
            "ip6tables-restore --wait 5 --noflush --counters --test",
            "ip6tables-legacy-restore --wait 1 --noflush --counters",
        ]
    );
    let state = script.0.lock().unwrap();
    assert_eq!(
        state.invocations[0].stdin,
        b"*nat\n:A - [0:0]\n-A A -j RETURN\nCOMMIT\n"
    );
    assert!(state.invocations[0].environment.is_empty());
    assert_eq!(state.invocations[0].timeout, Duration::from_secs(125));
    assert_eq!(state.invocations[3].environment["XTABLES_LOCKFILE"], "/x/lock");
    assert!(state.locked.is_empty());
}

#[test]
fn a_restore_does_not_read_the_version_of_the_tool() {
    let (script, mut command) = script(NFT, &[]);
    command.restore(&restore(Table::Nat)).unwrap();
    command.restore(&restore(Table::Nat)).unwrap();
    let state = script.0.lock().unwrap();
    assert_eq!((state.version_queries, state.invocations.len()), (0, 2));
}

#[test]
fn the_lock_is_taken_for_tools_that_do_not_take_it() {
    let (script, mut command) = script("iptables v1.6.1\n", &[]);
    assert!(matches!(
        command.restore(&restore(Table::Nat)),
        Err(Error::Locked { .. })
    ));
    assert_eq!(lines(&script), Vec::<String>::new());
    script.0.lock().unwrap().lock_is_free = true;
    command.restore(&restore(Table::Nat)).unwrap();
    assert_eq!(lines(&script), ["ip6tables-restore --noflush --counters"]);
    let lock = (PathBuf::from("/run/xtables.lock"), Duration::from_secs(5));
    assert_eq!(script.0.lock().unwrap().locked, [lock.clone(), lock]);
}

#[test]
fn the_holder_of_the_lock_is_reported() {
    let text = "Another app is currently holding the xtables lock; still 0s 0us time ahead to have a chance to grab the lock...\nAnother app is currently holding the xtables lock. Perhaps you want to use the -w option?\n";
    let (_, mut command) = script("iptables-restore v1.8.9 (legacy)", &[(4, text)]);
    let error = command.restore(&restore(Table::Nat)).unwrap_err();
    assert!(error.is_temporary());
    assert_eq!(
        error.to_string(),
        "cannot take the xtables lock within 5s: held by process 4711 (firewall-cmd --reload)"
    );
}

#[test]
fn the_refused_line_and_the_changed_tables_are_reported() {
    let text = "iptables-nft-restore v1.8.9 (nf_tables): \nline 7: RULE_APPEND failed (Invalid argument): rule in chain A";
    let (_, mut command) = script(NFT, &[(4, text)]);
    let chain = "A".parse().unwrap();
    let refused_edit = Edit::append(chain, "-j MASQUERADE".parse().unwrap());
    let mut two = restore(Table::Nat);
    two.push(Table::Filter, Edit::declare(chain));
    two.push(Table::Filter, refused_edit.clone());
    let error = command.restore(&two).unwrap_err();
    assert_eq!(error.applied(), [Table::Nat]);
    assert_eq!(error.chain(), Some(&chain));
    let Error::Refused { refused, status, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(
        *refused,
        Refused::Edit {
            table: Table::Filter,
            edit: refused_edit
        }
    );
    assert_eq!(status, Some(4));
}

#[test]
fn a_refused_rule_has_the_same_error_in_every_line_of_an_input() {
    let error = |input: &Restore, text| {
        let (_, mut command) = script(NFT, &[(4, text)]);
        command.restore(input).unwrap_err()
    };
    let first = error(
        &restore(Table::Nat),
        "iptables-nft-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (Invalid argument): rule in chain A",
    );
    let mut later = Restore::new(Family::Ipv6).with(Table::Nat, Edit::declare("B".parse().unwrap()));
    let edits = restore(Table::Nat);
    let (_, edits) = edits.tables().next().unwrap();
    later.table_mut(Table::Nat).extend_from_slice(edits);
    let second = error(
        &later,
        "iptables-nft-restore v1.8.9 (nf_tables): \nline 4: RULE_APPEND failed (Invalid argument): rule in chain A",
    );
    assert_eq!(first, second);
}

#[test]
fn a_line_without_a_reason_is_explained_from_the_tables() {
    let saved = "*nat\n:OUTPUT ACCEPT [0:0]\n:A - [0:0]\n-A OUTPUT -j A\nCOMMIT\n";
    let legacy = "iptables-restore v1.8.9 (legacy)";
    for (edit, in_use, not_found) in [
        (Edit::delete_chain("A".parse().unwrap()), true, false),
        (Edit::delete_chain("B".parse().unwrap()), false, true),
        (
            Edit::delete("A".parse().unwrap(), "-j DROP".parse().unwrap()),
            false,
            false,
        ),
    ] {
        let (_, mut command) = script(legacy, &[(1, "iptables-restore: line 2 failed"), (0, saved)]);
        let error = command
            .restore(&Restore::new(Family::Ipv4).with(Table::Nat, edit))
            .unwrap_err();
        assert_eq!(
            (error.is_in_use(), error.is_not_found()),
            (in_use, not_found),
            "{error}"
        );
    }
}

#[test]
fn tables_are_read_by_save() {
    let (script, mut command) = script(
        NFT,
        &[(
            0,
            "# x\n*nat\n:OUTPUT ACCEPT [1:2]\n[3:4] -A OUTPUT -j RETURN\nCOMMIT\n",
        )],
    );
    let saved = command
        .save(&Save::table(Family::Ipv4, Table::Nat).with_counters())
        .unwrap();
    assert_eq!(saved.rule_count(), 1);
    assert!(
        command
            .save(&Save::all(Family::Ipv6))
            .unwrap()
            .tables()
            .next()
            .is_none()
    );
    assert_eq!(
        lines(&script),
        ["iptables-save --counters --table nat", "ip6tables-save "]
    );
}

#[test]
fn both_variants_are_detected() {
    let full = "*filter\n:INPUT ACCEPT [0:0]\n:A - [0:0]\n-A INPUT -j A\nCOMMIT\n";
    let (script, mut command) = script(NFT, &[(0, full), (0, full)]);
    let detection = command.detect_variants(Family::Ipv4).unwrap();
    assert_eq!(detection.default, Some(Variant::Nft));
    assert!(matches!(detection.in_use(), VariantInUse::Both { .. }));
    assert_eq!(lines(&script), ["iptables-legacy-save ", "iptables-nft-save "]);
}

#[test]
fn the_tools_of_a_selected_variant_are_not_asked_for_their_version() {
    let (script, command) = script(NFT, &[]);
    let mut nft = command.with_variant(Variant::Nft);
    let all = [Family::Ipv4, Family::Ipv6].map(Save::all);
    assert!(nft.save_all(&all).iter().all(Result::is_ok));
    nft.restore(&restore(Table::Nat)).unwrap();
    assert_eq!(nft.variant(Family::Ipv6), Some(Variant::Nft));
    assert_eq!(
        lines(&script),
        [
            "iptables-nft-save ",
            "ip6tables-nft-save ",
            "ip6tables-nft-restore --wait 5 --noflush --counters"
        ]
    );
    assert_eq!(script.0.lock().unwrap().version_queries, 0);
}

#[test]
fn unqualified_tools_are_found_by_a_restore_and_by_several_reads() {
    let (script, command) = script("iptables v1.8.9 (legacy)", &[]);
    script.0.lock().unwrap().only_short_names = true;
    let mut legacy = command.with_variant(Variant::Legacy);
    legacy.restore(&restore(Table::Nat)).unwrap();
    let both = [Table::Nat, Table::Filter].map(|table| Save::table(Family::Ipv4, table));
    assert!(legacy.save_all(&both).iter().all(Result::is_ok));
    assert_eq!(
        lines(&script),
        [
            "ip6tables-restore --wait 5 --noflush --counters",
            "iptables-save --table nat",
            "iptables-save --table filter"
        ]
    );
    assert_eq!(script.0.lock().unwrap().version_queries, 2);
}

#[test]
fn a_tool_that_is_replaced_by_another_one_is_found_after_a_failure() {
    // Its name is without the variant now.
    let (script_of_variant, command) = script("iptables v1.8.9 (legacy)", &[]);
    let mut legacy = command.with_variant(Variant::Legacy);
    legacy.restore(&restore(Table::Nat)).unwrap();
    script_of_variant.0.lock().unwrap().only_short_names = true;
    assert!(legacy.restore(&restore(Table::Nat)).is_err());
    legacy.restore(&restore(Table::Nat)).unwrap();
    // It does not wait for the lock itself now.
    let (script, mut command) = script(NFT, &[]);
    command.restore(&restore(Table::Nat)).unwrap();
    {
        let mut state = script.0.lock().unwrap();
        state.version = "iptables v1.6.1\n";
        state.lock_is_free = true;
    }
    assert!(command.restore(&restore(Table::Nat)).is_err());
    command.restore(&restore(Table::Nat)).unwrap();
}

#[test]
fn unqualified_tools_are_used_if_they_are_of_the_variant() {
    let full = "*filter\n:INPUT ACCEPT [0:0]\n:A - [0:0]\nCOMMIT\n";
    let (script, command) = script("iptables v1.6.1", &[(0, full), (0, "")]);
    script.0.lock().unwrap().only_short_names = true;
    script.0.lock().unwrap().lock_is_free = true;
    let mut legacy = command.with_variant(Variant::Legacy);
    legacy.save(&Save::all(Family::Ipv6)).unwrap();
    legacy.restore(&restore(Table::Nat)).unwrap();
    let error = legacy
        .with_variant(Variant::Nft)
        .save(&Save::all(Family::Ipv4))
        .unwrap_err();
    assert!(
        error.is_unsupported() && error.to_string().contains("-nft"),
        "{error}"
    );
    assert_eq!(
        lines(&script),
        ["ip6tables-save ", "ip6tables-restore --noflush --counters"]
    );
    script.0.lock().unwrap().results = vec![(0, full)];
    let detection = Client::with_runner(Box::new(script))
        .detect_variants(Family::Ipv4)
        .unwrap();
    assert_eq!(detection.in_use(), VariantInUse::One(Variant::Legacy));
    assert_eq!(detection.nft, None);
}

fn jump(position: Position) -> Jump {
    Jump {
        from: "OUTPUT".parse().unwrap(),
        rule: "-m comment --comment \"it's owned\" -j A".parse().unwrap(),
        position,
    }
}

const ABSENT: (i32, &str) = (
    1,
    "iptables: Bad rule (does a matching rule exist in that chain?).\n",
);

#[test]
fn a_jump_is_added_only_if_it_is_not_found() {
    let arguments = "-m comment --comment it's owned -j A";
    for (version, wait, position, option) in [
        (NFT, "--wait 5 ", Position::First, "-I"),
        (
            "iptables v1.6.1\n",
            "--wait 5 ",
            Position::Before(Rule::new()),
            "-I",
        ),
        ("iptables v1.4.21\n", "--wait ", Position::Last, "-A"),
        ("iptables v1.4.19\n", "", Position::After(Rule::new()), "-A"),
    ] {
        let (script, mut command) = script(version, &[ABSENT]);
        script.0.lock().unwrap().lock_is_free = true;
        let jump = jump(position);
        command.ensure_jump(Family::Ipv6, Table::Nat, &jump).unwrap();
        let check = format!("ip6tables {wait}-t nat -C OUTPUT {arguments}");
        let write = format!("ip6tables {wait}-t nat {option} OUTPUT {arguments}");
        assert_eq!(lines(&script), [check.as_str(), &write]);
        // Without a scripted result the check succeeds.
        command.ensure_jump(Family::Ipv6, Table::Nat, &jump).unwrap();
        assert_eq!(lines(&script), [check.as_str(), &write, &check]);
        // The oldest tools do not take the lock.
        let locked = script.0.lock().unwrap().locked.len();
        assert_eq!(locked, if wait.is_empty() { 3 } else { 0 });
    }
}

#[test]
fn a_jump_is_inserted_at_the_top_if_the_tool_cannot_parse_a_rule() {
    let text = "Error: cmp sreg undef\niptables v1.8.9 (nf_tables): Parsing nftables rule failed\nPerhaps iptables or your kernel needs to be upgraded.\n";
    let (script, command) = script(NFT, &[(3, text)]);
    let mut command = command.with_variant(Variant::Nft);
    command
        .ensure_jump(Family::Ipv4, Table::Nat, &jump(Position::Last))
        .unwrap();
    let last = lines(&script).pop().unwrap();
    assert!(
        last.starts_with("iptables-nft --wait 5 -t nat -I OUTPUT "),
        "{last}"
    );
}

#[test]
fn a_refused_jump_is_reported() {
    let missing = (1, "iptables: No chain/target/match by that name.\n");
    for (results, count) in [
        (vec![ABSENT, missing], 2),
        (
            vec![(2, "iptables v1.8.9 (nf_tables): Chain 'A' does not exist")],
            1,
        ),
    ] {
        let (script, mut command) = script(NFT, &results);
        let error = command
            .ensure_jump(Family::Ipv4, Table::Nat, &jump(Position::First))
            .unwrap_err();
        assert!(error.is_not_found() && !error.is_unreadable(), "{error:?}");
        assert_eq!(error.chain(), Some(&"OUTPUT".parse().unwrap()));
        assert_eq!(lines(&script).len(), count);
    }
    let denied = "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)\n";
    let (_, mut command) = script(NFT, &[(3, denied)]);
    let error = command
        .ensure_jump(Family::Ipv4, Table::Nat, &jump(Position::First))
        .unwrap_err();
    assert!(error.is_permission_denied(), "{error:?}");
    let held = "Another app is currently holding the xtables lock. Stopped waiting after 1s.\n";
    let (_, mut command) = script(NFT, &[(4, held)]);
    let error = command
        .ensure_jump(Family::Ipv4, Table::Nat, &jump(Position::First))
        .unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error:?}");
}

#[test]
fn a_lenient_save_returns_the_tables_that_can_be_printed() {
    // Standard output before the failure is not the reason.
    let failed = "-A INPUT -m comment --comment \"Permission denied\"\n";
    let nat = "*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -m comment --comment \"a\nb\"\nCOMMIT\n";
    let results = [(3, failed), (0, ""), (0, ""), (0, nat), (3, failed), (0, "")];
    let (script, mut command) = script(NFT, &results);
    script.0.lock().unwrap().save_stderr = "iptables-save v1.8.9 (nf_tables): Parsing nftables rule failed\n";
    let saved = command.save(&Save::all(Family::Ipv4).lenient()).unwrap();
    assert_eq!(
        saved.tables().map(|(table, _)| table).collect::<Vec<_>>(),
        [Table::Nat]
    );
    assert!(saved.is_unreadable(Table::Filter));
    assert_eq!(saved.unreadable().len(), 2);
    assert_eq!(lines(&script).len(), 1 + Table::ALL.len());
    script.0.lock().unwrap().results = vec![(3, failed)];
    let error = command.save(&Save::all(Family::Ipv4)).unwrap_err();
    assert!(
        error.is_unreadable() && !error.is_permission_denied() && !error.is_unsupported(),
        "{error:?}"
    );
    // Other failures are errors of a lenient save too.
    let mut state = script.0.lock().unwrap();
    state.results = vec![(4, "")];
    state.save_stderr = "Could not fetch rule set generation id: Permission denied (you must be root)\n";
    drop(state);
    let error = command.save(&Save::all(Family::Ipv4).lenient()).unwrap_err();
    assert!(
        error.is_permission_denied() && !error.is_unreadable(),
        "{error:?}"
    );
}
