//! Automation of this workspace, as `cargo xtask VERB`. CI calls the same verbs that a person types.

mod bench;
mod check;
mod guest;
mod host;
mod import_order;
mod imports;
mod layers;
mod libtest;
mod modules;
mod programs;
mod prose;
mod provision;
mod public_api;
mod report;
mod retry;
mod shape;
mod snippets;
mod step;
mod test;
mod vm;
mod words;
mod workspace;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use lexopt::{Arg, Parser, ValueExt};

use crate::{test::Which, workspace::Workspace};

const USAGE: &str = "\
usage: cargo xtask VERB

  check [PART]              all checks that are not tests, or those with PART in their names
  fix                       sorts imports, formats, and updates what documents show of the sources
  public-api                writes the public API of each published crate to public-api/
  shape                     prints which files each kernel crate has, as a Markdown table
  test [--tier TIER]...     the tests of all tiers, or of unit, host or vm; installs what is missing
  vm run -- COMMAND...      any command in a VM over this file system;
                            of `cargo run ...`, cargo runs here and the program in the VM
  vm test [FILTER]...       the kernel tests in the VM; FILTER is a test file's name or part of a test's
  bench [GROUP]             the benchmarks, or those with figures of one group

options of everything that boots the VM:
  --kvm                     hardware virtualisation instead of emulation
  --kernel FILE             another kernel image, with its modules in ../lib/modules;
                            also the environment variable KERNLINK_VM_KERNEL
  --time-limit SECONDS      for the VM as a whole
  --writable FOLDER         the guest may write to this folder of the host; may be repeated
";

/// What can be done in the VM.
const VM_VERBS: &str = "`cargo xtask vm run -- COMMAND...` and `cargo xtask vm test [FILTER]...`";

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verb {
    Help,
    Check {
        part: Option<String>,
    },
    Fix,
    PublicApi,
    Shape,
    Test {
        tiers: Vec<Which>,
    },
    VmRun {
        command: Vec<String>,
    },
    VmTest {
        filters: Vec<String>,
    },
    Bench {
        group: Option<String>,
    },
    /// Not for people: what the VM runner starts inside the VM.
    Guest {
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let (verb, options) = parse(Parser::from_env())?;
    if let Verb::Guest { folder } = &verb {
        guest::run(folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    if verb == Verb::Help {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    step::end_all_on_interrupt()?;
    let workspace = Workspace::load()?;
    let good = match verb {
        Verb::Check { part } => check::run(&workspace, part.as_deref())?,
        Verb::Fix => {
            import_order::fix(&workspace)?;
            snippets::write(&workspace)?;
            shape::write(&workspace)?;
            true
        }
        Verb::PublicApi => public_api::write(&workspace).map(|()| true)?,
        Verb::Shape => shape::print(&workspace).map(|()| true)?,
        Verb::Test { tiers } => test::run(&workspace, &tiers, &options)?,
        Verb::VmTest { filters } => test::run_vm_only(&workspace, &filters, &options)?,
        Verb::VmRun { command } => return vm::run_command(&workspace, &command, &options),
        Verb::Bench { group } => bench::run(&workspace, group.as_deref(), &options)?,
        Verb::Help | Verb::Guest { .. } => true,
    };
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn parse(mut parser: Parser) -> Result<(Verb, vm::Options)> {
    let mut words = Vec::new();
    let mut tiers = Vec::new();
    let mut options = vm::Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => return Ok((Verb::Help, options)),
            Arg::Long("tier") => tiers.push(Which::parse(&parser.value()?.string()?)?),
            Arg::Long("kvm") => options.kvm = true,
            Arg::Long("kernel") => options.kernel = Some(parser.value()?.into()),
            Arg::Long("writable") => options.writable.push(parser.value()?.into()),
            Arg::Long("time-limit") => {
                let seconds: u64 = parser.value()?.parse().context("--time-limit")?;
                ensure!(seconds > 0, "--time-limit: 0 seconds are too few for a boot");
                options.time_limit = Some(Duration::from_secs(seconds));
            }
            // Behind `--` everything is a value, so a command's own options are safe.
            Arg::Value(word) => words.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let mut words = words.into_iter();
    let verb = match words.next().as_deref() {
        None => Verb::Help,
        Some("check") => Verb::Check { part: words.next() },
        Some("fix") => Verb::Fix,
        Some("public-api") => Verb::PublicApi,
        Some("shape") => Verb::Shape,
        Some("test") if tiers.is_empty() => Verb::Test {
            tiers: Which::ALL.to_vec(),
        },
        Some("test") => Verb::Test {
            tiers: std::mem::take(&mut tiers),
        },
        Some("bench") => Verb::Bench { group: words.next() },
        Some("guest") => Verb::Guest {
            folder: words.next().context("guest: which folder?")?.into(),
        },
        Some("vm") => match words.next().as_deref() {
            Some("run") => {
                let command: Vec<_> = words.by_ref().collect();
                ensure!(!command.is_empty(), "vm run: no command; it stands behind `--`");
                Verb::VmRun { command }
            }
            Some("test") => Verb::VmTest {
                filters: words.by_ref().collect(),
            },
            Some(other) => bail!("vm {other}: there are {VM_VERBS}"),
            None => bail!("vm: what is to run there? {VM_VERBS}"),
        },
        Some(other) => bail!("no verb {other}; `cargo xtask --help` lists them"),
    };
    if let Some(word) = words.next() {
        bail!("one word too many: {word}");
    }
    ensure!(tiers.is_empty(), "--tier belongs to `test`");
    Ok((verb, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<(Verb, vm::Options)> {
        parse(Parser::from_iter(
            ["xtask"].into_iter().chain(line.split_whitespace()),
        ))
    }

    #[test]
    fn the_command_behind_the_dashes_keeps_its_own_options() {
        let (verb, options) = parsed("vm run --kvm -- cargo run --example demo -- --kvm a.yaml").unwrap();
        let command = ["cargo", "run", "--example", "demo", "--", "--kvm", "a.yaml"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(verb, Verb::VmRun { command });
        assert!(options.kvm);
    }

    #[test]
    fn all_tiers_run_where_none_is_named() {
        assert_eq!(
            parsed("test").unwrap().0,
            Verb::Test {
                tiers: Which::ALL.to_vec()
            }
        );
        assert_eq!(
            parsed("test --tier unit").unwrap().0,
            Verb::Test {
                tiers: vec![Which::Unit]
            }
        );
    }

    #[test]
    fn options_may_stand_anywhere() {
        let (verb, options) = parsed("vm --time-limit 60 test ipvs --kernel /boot/vmlinuz udp").unwrap();
        assert_eq!(
            verb,
            Verb::VmTest {
                filters: vec!["ipvs".to_owned(), "udp".to_owned()]
            }
        );
        assert_eq!(options.time_limit, Some(Duration::from_secs(60)));
        assert_eq!(options.kernel, Some("/boot/vmlinuz".into()));
    }

    #[test]
    fn wrong_words_are_named() {
        for (line, said) in [
            ("tests", "no verb tests"),
            ("check clippy twice", "one word too many: twice"),
            ("bench ipvs ipset", "one word too many: ipset"),
            ("vm", "vm: what is to run there? `cargo xtask vm run"),
            ("vm tests", "vm tests: there are `cargo xtask vm run"),
            ("vm run", "no command"),
            ("check --tier unit", "--tier belongs to `test`"),
            ("test --tier all", "--tier all"),
            ("test --fast", "--fast"),
            ("vm test --time-limit 0", "--time-limit"),
            ("vm test --time-limit soon", "--time-limit"),
        ] {
            let error = format!("{:#}", parsed(line).unwrap_err());
            assert!(error.contains(said), "{line}: {error}");
        }
    }

    #[test]
    fn no_verb_is_a_question() {
        assert_eq!(parsed("").unwrap().0, Verb::Help);
        assert_eq!(parsed("vm run --help").unwrap().0, Verb::Help);
    }
}
