//! Rendering, parsing and comparing rule sets, compared with the iptables tools, on the running kernel.
//!
//! Needs root and the tools of both variants. Runs in a new network namespace. The rules are those of kube-proxy in iptables mode: for
//! each service port of type LoadBalancer four rules in long chains, a chain for external traffic, a chain that selects one of two
//! endpoints, and a chain for each endpoint.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use kernlink_benches::{figure, median};
use kernlink_iptables_restore::{
    ChainName, Client, Completion, Desired, Family, Invocation, Iptables, Jump, LocalRunner, Ownership,
    Position, Restore, Rule, Ruleset, Runner, Save, Style, Table, Variant, diff,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("cannot create a network namespace, which needs root: {error}"))?;
    let lock = std::env::temp_dir().join(format!("kernlink-bench-{}.lock", std::process::id()));
    for (variant, name) in [(Variant::Legacy, "legacy"), (Variant::Nft, "nft")] {
        for rules in [10_000, 100_000] {
            text(name, rules, &lock)?;
        }
        one_chain(variant, name, 10_000, &lock)?;
    }
    std::fs::remove_file(lock)?;
    Ok(())
}

/// Rules of one service port, and chains of one service port.
const RULES: usize = 15;
const CHAINS: usize = 4;

/// The desired state for a number of service ports.
fn desired_state(services: usize) -> Outcome<Desired> {
    let mut desired = Desired::new(Family::Ipv4);
    let table = Table::Nat;
    let (mut portals, mut node_ports) = (Vec::new(), Vec::new());
    let rules = |texts: &[String]| -> Outcome<Vec<Rule>> {
        let read = texts.iter().map(|text| text.parse());
        Ok(read.collect::<Result<_, _>>()?)
    };
    for service in 0..services {
        let (high, low) = (service / 250, service % 250);
        let internal = format!("KUBE-SVC-{service:016}");
        let external = format!("KUBE-EXT-{service:016}");
        let name = format!("namespace-{high}/service-{service}:http");
        let comment = |text: &str| format!("-m comment --comment \"{name}{text}\"");
        let to_port =
            |address: &str, kind: &str| format!("-d {address}/32 -p tcp {} -m tcp --dport 80", comment(kind));
        let cluster_ip = format!("10.96.{high}.{low}");
        portals.extend(rules(&[
            format!("{} -j {internal}", to_port(&cluster_ip, " cluster IP")),
            format!(
                "{} -j {external}",
                to_port(&format!("192.0.{high}.{low}"), " external IP")
            ),
            format!(
                "{} -j {external}",
                to_port(&format!("198.51.{high}.{low}"), " loadbalancer IP")
            ),
        ])?);
        let port = 30_000 + service;
        node_ports.extend(rules(&[format!(
            "-p tcp {} -m tcp --dport {port} -j {external}",
            comment("")
        )])?);
        let local = |text: &str| {
            let comment =
                format!("-m comment --comment \"{text} LOCAL traffic for {name} external destinations\"");
            format!("{comment} -m addrtype --src-type LOCAL")
        };
        let outside = [
            format!("-s 10.200.0.0/14 {} -j {internal}", comment(" from pods")),
            format!("{} -j KUBE-MARK-MASQ", local("masquerade")),
            format!("{} -j {internal}", local("route")),
            format!("-j {internal}"),
        ];
        desired.set_chain(table, external.parse()?, rules(&outside)?)?;
        let mut choices = vec![format!(
            "! -s 10.200.0.0/14 {} -j KUBE-MARK-MASQ",
            to_port(&cluster_ip, " cluster IP")
        )];
        for endpoint in 0..2 {
            let chain = format!("KUBE-SEP-{service:015}{endpoint}");
            let address = format!("10.{}.{high}.{low}", 200 + endpoint);
            let chance = if endpoint == 0 {
                " -m statistic --mode random --probability 0.50000000000"
            } else {
                ""
            };
            choices.push(format!(
                "{}{chance} -j {chain}",
                comment(&format!(" -> {address}:8080"))
            ));
            let there = [
                format!("-s {address}/32 {} -j KUBE-MARK-MASQ", comment("")),
                format!(
                    "-p tcp {} -m tcp -j DNAT --to-destination {address}:8080",
                    comment("")
                ),
            ];
            desired.set_chain(table, chain.parse()?, rules(&there)?)?;
        }
        desired.set_chain(table, internal.parse()?, rules(&choices)?)?;
    }
    let mark = rules(&["-j MARK --set-xmark 0x4000/0x4000".into()])?;
    desired.set_chain(table, "KUBE-MARK-MASQ".parse()?, mark)?;
    let last = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS".parse()?;
    desired.set_chain(table, "KUBE-SERVICES".parse()?, portals.into_iter().chain([last]))?;
    desired.set_chain(table, "KUBE-NODEPORTS".parse()?, node_ports)?;
    let rule = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES".parse()?;
    desired.add_jump(
        table,
        Jump {
            from: "PREROUTING".parse()?,
            rule,
            position: Position::First,
        },
    )?;
    Ok(desired)
}

struct Tool {
    variant: &'static str,
    lock: PathBuf,
}

impl Tool {
    /// Runs the tool once.
    fn run(&self, verb: &str, arguments: &[&str], input: Vec<u8>) -> Outcome<Completion> {
        let completion = LocalRunner::new().run(Invocation {
            program: format!("iptables-{}-{verb}", self.variant),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: BTreeMap::from([("XTABLES_LOCKFILE".into(), self.lock.display().to_string())]),
            stdin: input,
            timeout: Duration::from_secs(1200),
            output_limit: 1 << 30,
        })?;
        if completion.status != Some(0) {
            return Err(String::from_utf8_lossy(&completion.stderr).into());
        }
        Ok(completion)
    }
}

/// Compares rendering with `iptables-restore --test`, and parsing with `iptables-save`.
fn text(name: &'static str, rules: usize, lock: &std::path::Path) -> Outcome<()> {
    let tool = Tool {
        variant: name,
        lock: lock.into(),
    };
    // The time of nft's save grows with the square of the number of chains: half a minute for 27 000. So it runs once, without a
    // warm-up.
    let slow = name == "nft" && rules > 50_000;
    let runs = if rules > 50_000 { 3 } else { 5 };
    let own_runs = 9;
    let restore = diff(&Ruleset::new(), &desired_state(rules / RULES)?, &Ownership::new());
    let bytes = restore.render_checked(Style::RESTORE)?.into_bytes();
    println!("{name}: {rules} rules, {} bytes of restore input", bytes.len());

    let render = median(
        own_runs,
        || Outcome::Ok(()),
        |()| Ok(restore.render_checked(Style::RESTORE)?),
    )?;
    let check = |bytes: Vec<u8>| tool.run("restore", &["--counters", "--test"], bytes);
    let test = if slow {
        timed(|| check(bytes.clone()))?.0
    } else {
        median(runs, || Outcome::Ok(bytes.clone()), check)?
    };
    println!("  render {render:?}, restore --test {test:?}");
    figure(
        &format!("iptables.render_over_tool.{rules}.{name}"),
        ratio(render, test),
        "ratio",
    )?;

    // Into an empty table: with --noflush, nft needs minutes to declare this number of chains.
    tool.run("restore", &["--counters"], bytes)?;
    let list = || tool.run("save", &["--table", "nat"], Vec::new());
    let (first, saved) = timed(list)?;
    let save = if slow {
        first
    } else {
        median(runs, || Outcome::Ok(()), |()| list())?
    };
    let saved = String::from_utf8(saved.stdout)?;
    let parse = median(own_runs, || Outcome::Ok(()), |()| Ok(saved.parse::<Ruleset>()?))?;
    println!("  parse {parse:?} of {} bytes, save {save:?}", saved.len());
    figure(
        &format!("iptables.parse_over_tool.{rules}.{name}"),
        ratio(parse, save),
        "ratio",
    )?;
    empty(&tool)
}

/// Compares one changed chain, by `diff` and restore, with a restore of all chains.
fn one_chain(variant: Variant, name: &'static str, chains: usize, lock: &std::path::Path) -> Outcome<()> {
    let tool = Tool {
        variant: name,
        lock: lock.into(),
    };
    let tools = || {
        let command = Client::new().with_variant(variant).with_lock_file(lock);
        command.with_timeout(Duration::from_secs(1200))
    };
    let mut command = tools();
    let mut desired = desired_state(chains / CHAINS)?;
    let owned = Ownership::new().with_prefix("KUBE-");
    let everything = diff(&Ruleset::new(), &desired, &Ownership::new());
    command.restore(&everything)?;
    // All chains declared and filled, without the jump, which exists.
    let again = Restore::new(Family::Ipv4);
    let full = everything
        .tables()
        .flat_map(|(table, edits)| edits.iter().map(move |edit| (table, edit)));
    let full = full
        .filter(|(table, edit)| !table.is_builtin(edit.chain()))
        .fold(again, |restore, (table, edit)| restore.with(table, edit.clone()));
    let whole = median(5, || Outcome::Ok(()), |()| Ok(command.restore(&full)?))?;

    let changed: ChainName = format!("KUBE-SVC-{:016}", chains / CHAINS / 2).parse()?;
    let mut compare = Duration::ZERO;
    let mut round = 0;
    let part = median(
        9,
        || {
            // The save is not measured: callers keep what they read or wrote last.
            let saved = tools().save(&Save::table(Family::Ipv4, Table::Nat))?;
            round += 1;
            let rule = format!("-p tcp -m tcp --dport {round} -j KUBE-MARK-MASQ").parse()?;
            desired.set_chain(Table::Nat, changed, [rule])?;
            Outcome::Ok((saved, desired.clone()))
        },
        |(saved, desired)| {
            let start = std::time::Instant::now();
            let restore = diff(&saved, &desired, &owned);
            compare = start.elapsed();
            if restore.tables().map(|(_, edits)| edits.len()).sum::<usize>() != 2 {
                return Err(format!("expected one chain and one rule: {restore}").into());
            }
            command.restore(&restore)?;
            // Returned so that dropping them is not measured.
            Outcome::Ok((saved, desired))
        },
    )?;
    println!("{name}: {chains} chains: all chains {whole:?}, one chain {part:?}, of that diff {compare:?}");
    figure(
        &format!("iptables.full_over_diff.{chains}.{name}"),
        ratio(whole, part),
        "ratio",
    )?;
    empty(&tool)
}

/// The time of one run, and its result.
fn timed<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<(Duration, T)> {
    let start = std::time::Instant::now();
    let result = work()?;
    Ok((start.elapsed(), result))
}

fn empty(tool: &Tool) -> Outcome<()> {
    let input = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";
    tool.run("restore", &[], input.into()).map(drop)
}

fn ratio(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64()
}
