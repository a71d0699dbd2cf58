//! Automation of this workspace: `cargo xtask VERB`. CI runs the same commands as developers.

mod alerts;
mod bench;
mod check;
mod circles;
mod conformance;
mod demo;
mod e2e;
mod figures;
mod fuzz;
mod guest;
mod helm;
mod host;
mod image;
mod import_order;
mod imports;
mod kubernetes;
mod layers;
mod libtest;
mod links;
mod metrics;
mod modules;
mod neighbours;
mod nft_suite;
mod nft_vectors;
mod package;
mod pictures;
mod programs;
mod promql;
mod prose;
mod provision;
mod public_api;
mod report;
mod retry;
mod shape;
mod site;
mod snippets;
mod step;
mod table_cells;
mod test;
mod threads;
mod tools;
mod upstream_e2e;
mod verify;
mod vm;
mod watchers;
mod words;
mod workspace;

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use lexopt::{Arg, Parser, ValueExt};

use crate::{test::Tier, workspace::Workspace};

const USAGE: &str = "\
usage: cargo xtask VERB

  demo [--mode MODE] [FILE]...
                            program a node's kernel with the manifests, in network namespaces, and send requests;
                            as root, install missing programs first; MODE is nftables (default), iptables or ipvs;
                            without root or what cannot be installed, show the plan on an in-memory kernel
  check [PART]              run all checks except tests, or those with PART in their names
  fix                       sort imports, format, update example programs, tables and pictures in documents
  public-api                write the public API of each published crate to public-api/
  package                   check what the packages of the published crates contain, then publish all of them without
                            upload (cargo publish --dry-run), in the order of their dependencies
  semver COMMIT             list the public items in public-api/ of a commit, such as the tag of a release, that are
                            removed or changed now; exit with 1 if there are any in a crate with a compatible version
  shape                     print the files of each kernel crate as a Markdown table
  test [--tier TIER]...     run the tests of all tiers, or of the given ones: unit, host, vm;
                            as root, install missing programs first
  vm run -- COMMAND...      run a command in a VM that shares this file system;
                            for `cargo run ...`, cargo builds on the host, the program runs in the VM
  vm test [--repeat N] [FILTER]...
                            run the kernel tests in a VM, N times in one boot (default: 1);
                            FILTER is the name of a test file, or a part of the names of tests
  e2e [--mode MODE] [--kube-apiserver FILE] [--services N]
                            run the agent with a real kube-apiserver, which is built with Go, and etcd; as root;
                            MODE is nftables or iptables, on this machine, or ipvs, in a VM (default: one after the other);
                            N Services are added at once (default: 600)
  e2e --kube-proxy FILE [--mode MODE] [--kube-apiserver FILE] [--services N]
                            pass a node from the agent to kube-proxy and back, and measure both with N Services
                            (default: 1000); MODE is nftables or iptables (default: one after the other)
  image FOLDER [--legacy] [--agent FILE] [--check]
                            write the root file system of the container image, with the iptables tools of this system;
                            --legacy: tools without a variant in their names write legacy tables (default: nft);
                            --agent: this program, linked statically, instead of building it;
                            --check: run containers of it with the capabilities of the DaemonSet; as root
  bench [--check] [--kube-proxy FILE] [GROUP]
                            run the benchmarks, or those with figures of one group;
                            --check: compare each figure with its value and its aim in docs/benchmarks.md;
                            exit with 1 if one does not hold;
                            --kube-proxy: measure this program in the same run, in the group nftables_mode
  bench watchers [--check] [--watchers N] [--services M] [--kube-apiserver FILE] [--etcd FILE] [--reflectors FILE]
                            measure what N watchers of the agent (default: 1000), and then of client-go, cost a real
                            API server: changes with M Services (default: 10000), and a restart with 200; as root;
                            programs that are not given are built with Go; not part of `bench` without a group
  nft-suite FOLDER [--nft FILE]
                            copy each rule of the test suite of nft (FOLDER: tests of its sources) with
                            kernlink-nftables, and print counts and differences; as root;
                            --nft: with this program (default: the installed one)
  nft-vectors FOLDER        read and write the messages that the tests of google/nftables (FOLDER: its sources) expect
                            as bytes with kernlink-nftables, and print counts and differences
  site                      write the documents as a site with search to target/site/html
  verify [PART]             run what CI does not run, because it is slow or needs much, or the parts with PART in their names;
                            with the options of `e2e`; as root
  fuzz [--seconds N] [PART] run all fuzz targets, or those with PART in their names, for N seconds each (default: 60)
";

/// After the options of the other commands.
const VM_USAGE: &str = "
options of commands that boot a VM:
  --kvm                     use hardware virtualisation (default: emulation)
  --kernel FILE             boot this kernel image, with its modules in ../lib/modules
                            (default: the environment variable KERNLINK_VM_KERNEL,
                            else the kernel package of the distribution)
  --time-limit SECONDS      stop the VM after this time (default: 3600)
  --writable FOLDER         let the guest write to this folder of the host; may be repeated
";

/// The verbs after `vm`.
const VM_VERBS: &str = "`cargo xtask vm run -- COMMAND...` and `cargo xtask vm test [FILTER]...`";

/// What the command line requests.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verb {
    Help,
    Check {
        part: Option<String>,
    },
    Demo {
        mode: Option<e2e::Mode>,
        files: Vec<String>,
    },
    Fix,
    Package,
    PublicApi,
    Semver {
        /// What the API is compared with.
        commit: String,
    },
    Shape,
    Test {
        tiers: Vec<Tier>,
    },
    VmRun {
        command: Vec<String>,
    },
    VmTest {
        filters: Vec<String>,
        /// How often to run them, one run after the other.
        repeat: NonZeroUsize,
    },
    Bench {
        group: Option<String>,
        /// Whether figures are compared with the documented ones.
        check: bool,
        /// kube-proxy, to be measured too.
        kube_proxy: Option<PathBuf>,
        /// Of the group `watchers`.
        watchers: watchers::Options,
    },
    EndToEnd(e2e::Options),
    Image(image::Options),
    NftSuite(nft_suite::Options),
    NftVectors {
        /// The sources of google/nftables.
        folder: PathBuf,
    },
    Fuzz(fuzz::Options),
    Site,
    Verify {
        part: Option<String>,
        end_to_end: e2e::Options,
    },
    UpstreamE2e(Box<upstream_e2e::Options>),
    /// Internal: started by [`upstream_e2e`] in the namespaces of a cluster.
    UpstreamCluster {
        job: PathBuf,
    },
    /// Internal: started by [`upstream_e2e`] in the namespaces of a node.
    UpstreamNode {
        job: PathBuf,
    },
    /// Internal: started by [`neighbours`] in the namespaces of its node.
    NeighboursNode {
        job: PathBuf,
    },
    /// Internal: started inside the VM by [`vm`].
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
    if let Verb::UpstreamCluster { job } = &verb {
        upstream_e2e::init(job)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Verb::UpstreamNode { job } = &verb {
        upstream_e2e::init_node(job)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Verb::NeighboursNode { job } = &verb {
        return neighbours::init(job);
    }
    if verb == Verb::Help {
        print!("{USAGE}{}{VM_USAGE}", upstream_e2e::USAGE);
        return Ok(ExitCode::SUCCESS);
    }
    step::end_all_on_interrupt()?;
    if provision::is_root() {
        provision::install(&[provision::BUILD_PROGRAMS])?;
    }
    let workspace = Workspace::load()?;
    let good = match verb {
        Verb::Demo { mode, files } => return demo::run(&workspace, mode, &files),
        Verb::Check { part } => check::run(&workspace, part.as_deref())?,
        Verb::Fix => {
            import_order::fix(&workspace)?;
            snippets::write(&workspace)?;
            shape::write(&workspace)?;
            pictures::write(&workspace)?;
            true
        }
        Verb::Package => package::run(&workspace).map(|()| true)?,
        Verb::PublicApi => public_api::write(&workspace).map(|()| true)?,
        Verb::Semver { commit } => public_api::semver(&workspace, &commit)?,
        Verb::Shape => shape::print(&workspace).map(|()| true)?,
        Verb::Test { tiers } => test::run(&workspace, &tiers, &options)?,
        Verb::VmTest { filters, repeat } => test::run_vm_only(&workspace, &filters, repeat, &options)?,
        Verb::VmRun { command } => return vm::run_command(&workspace, &command, &options),
        Verb::Bench {
            group,
            check,
            kube_proxy,
            watchers,
        } => bench::run(
            &workspace,
            group.as_deref(),
            check,
            kube_proxy.as_deref(),
            &watchers,
            &options,
        )?,
        Verb::EndToEnd(end_to_end) => e2e::run(&workspace, &end_to_end, &options)?,
        Verb::NftSuite(options) => nft_suite::run(&workspace, &options)?,
        Verb::NftVectors { folder } => nft_vectors::run(&workspace, &folder)?,
        Verb::Fuzz(options) => fuzz::run(&workspace, &options)?,
        Verb::Site => {
            println!("{}", site::build(&workspace)?.display());
            true
        }
        Verb::Verify { part, end_to_end } => {
            let vm = options.clone();
            verify::run(&workspace, part.as_deref(), &verify::Options { end_to_end, vm })?
        }
        Verb::Image(options) => image::run(&workspace, &options).map(|()| true)?,
        Verb::UpstreamE2e(options) => upstream_e2e::run(&workspace, &options)?,
        Verb::Help
        | Verb::Guest { .. }
        | Verb::UpstreamCluster { .. }
        | Verb::UpstreamNode { .. }
        | Verb::NeighboursNode { .. } => true,
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
    let mut end_to_end = e2e::Options::default();
    let mut watchers = watchers::Options::default();
    let mut repeat = None;
    let mut image = image::Options::default();
    let mut nft = None;
    let mut seconds = None;
    let mut options = vm::Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => return Ok((Verb::Help, options)),
            Arg::Long("tier") => tiers.push(Tier::parse(&parser.value()?.string()?)?),
            Arg::Long("kube-apiserver") => end_to_end.api_server = Some(parser.value()?.into()),
            Arg::Long("mode") => end_to_end.mode = Some(e2e::Mode::parse(&parser.value()?.string()?)?),
            Arg::Long("kube-proxy") => end_to_end.kube_proxy = Some(parser.value()?.into()),
            Arg::Long("services") => {
                end_to_end.services = Some(parser.value()?.parse().context("--services")?)
            }
            Arg::Long("etcd") => watchers.etcd = Some(parser.value()?.into()),
            Arg::Long("reflectors") => watchers.reflectors = Some(parser.value()?.into()),
            Arg::Long("watchers") => watchers.watchers = Some(parser.value()?.parse().context("--watchers")?),
            Arg::Long("legacy") => image.is_legacy = true,
            Arg::Long("agent") => image.agent = Some(parser.value()?.into()),
            Arg::Long("check") => image.check = true,
            Arg::Long("nft") => nft = Some(PathBuf::from(parser.value()?)),
            Arg::Long("repeat") => repeat = Some(parser.value()?.parse().context("--repeat")?),
            Arg::Long("seconds") => seconds = Some(parser.value()?.parse().context("--seconds")?),
            Arg::Long("kvm") => options.kvm = true,
            Arg::Long("kernel") => options.kernel = Some(parser.value()?.into()),
            Arg::Long("writable") => options.writable.push(parser.value()?.into()),
            Arg::Long("time-limit") => {
                let seconds: u64 = parser.value()?.parse().context("--time-limit")?;
                ensure!(
                    seconds > 0,
                    "--time-limit: invalid value 0; the minimum is 1 second"
                );
                options.time_limit = Some(Duration::from_secs(seconds));
            }
            // It has options of its own, some with the names of these.
            Arg::Value(word) if words.is_empty() && word == "upstream-e2e" => {
                let upstream = upstream_e2e::Options::parse(&mut parser)?;
                return Ok((Verb::UpstreamE2e(Box::new(upstream)), options));
            }
            // After `--` everything is a value, also the options of the command.
            Arg::Value(word) => words.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let mut words = words.into_iter();
    let verb = match words.next().as_deref() {
        None => Verb::Help,
        Some("check") => Verb::Check { part: words.next() },
        Some("demo") => Verb::Demo {
            mode: end_to_end.mode.take(),
            files: words.by_ref().collect(),
        },
        Some("fix") => Verb::Fix,
        Some("package") => Verb::Package,
        Some("public-api") => Verb::PublicApi,
        Some("semver") => Verb::Semver {
            commit: words.next().context("semver: missing commit")?,
        },
        Some("shape") => Verb::Shape,
        Some("site") => Verb::Site,
        Some("test") if tiers.is_empty() => Verb::Test {
            tiers: Tier::ALL.to_vec(),
        },
        Some("test") => Verb::Test {
            tiers: std::mem::take(&mut tiers),
        },
        Some("e2e") => {
            ensure!(
                end_to_end.mode != Some(e2e::Mode::Ipvs) || end_to_end.kube_proxy.is_none(),
                "--mode: with --kube-proxy, nftables and iptables are valid"
            );
            Verb::EndToEnd(std::mem::take(&mut end_to_end))
        }
        Some("image") => {
            let folder = words.next().context("image: missing folder")?.into();
            Verb::Image(image::Options {
                folder,
                ..std::mem::take(&mut image)
            })
        }
        Some("nft-suite") => Verb::NftSuite(nft_suite::Options {
            folder: words.next().context("nft-suite: missing folder")?.into(),
            nft: nft.take(),
        }),
        Some("nft-vectors") => Verb::NftVectors {
            folder: words.next().context("nft-vectors: missing folder")?.into(),
        },
        Some("fuzz") => Verb::Fuzz(fuzz::Options {
            part: words.next(),
            seconds: seconds.take(),
        }),
        Some("verify") => Verb::Verify {
            part: words.next(),
            end_to_end: std::mem::take(&mut end_to_end),
        },
        Some("bench") => {
            let group = words.next();
            let mut of_watchers = watchers::Options::default();
            if group.as_deref() == Some(watchers::GROUP) {
                of_watchers = std::mem::take(&mut watchers);
                of_watchers.api_server = end_to_end.api_server.take();
                of_watchers.services = end_to_end.services.take();
            }
            Verb::Bench {
                group,
                check: std::mem::take(&mut image.check),
                kube_proxy: end_to_end.kube_proxy.take(),
                watchers: of_watchers,
            }
        }
        Some("guest") => Verb::Guest {
            folder: words.next().context("guest: missing folder")?.into(),
        },
        Some(upstream_e2e::CLUSTER) => Verb::UpstreamCluster {
            job: words.next().context("missing file")?.into(),
        },
        Some(upstream_e2e::NODE) => Verb::UpstreamNode {
            job: words.next().context("missing file")?.into(),
        },
        Some(neighbours::NODE) => Verb::NeighboursNode {
            job: words.next().context("missing file")?.into(),
        },
        Some("vm") => match words.next().as_deref() {
            Some("run") => {
                let command: Vec<_> = words.by_ref().collect();
                ensure!(
                    !command.is_empty(),
                    "vm run: missing command; expected `cargo xtask vm run -- COMMAND...`"
                );
                Verb::VmRun { command }
            }
            Some("test") => Verb::VmTest {
                filters: words.by_ref().collect(),
                repeat: repeat.take().unwrap_or(NonZeroUsize::MIN),
            },
            Some(other) => bail!("unknown verb `vm {other}`; expected {VM_VERBS}"),
            None => bail!("missing verb after `vm`; expected {VM_VERBS}"),
        },
        Some(other) => bail!("unknown verb `{other}`; `cargo xtask --help` lists the known ones"),
    };
    if let Some(word) = words.next() {
        bail!("unexpected argument `{word}`");
    }
    ensure!(tiers.is_empty(), "--tier is an option of `test` only");
    ensure!(
        end_to_end == e2e::Options::default(),
        "--kube-apiserver and --services are options of `e2e`, `verify` and `bench watchers` only, --kube-proxy of `e2e`, `verify` and `bench`, --mode of `e2e`, `verify` and `demo`"
    );
    ensure!(
        watchers == watchers::Options::default(),
        "--etcd, --reflectors and --watchers are options of `bench watchers` only"
    );
    ensure!(
        image == image::Options::default(),
        "--legacy and --agent are options of `image` only, --check of `image` and `bench`"
    );
    ensure!(nft.is_none(), "--nft is an option of `nft-suite` only");
    ensure!(seconds.is_none(), "--seconds is an option of `fuzz` only");
    ensure!(repeat.is_none(), "--repeat is an option of `vm test` only");
    Ok((verb, options))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn parsed(line: &str) -> Result<(Verb, vm::Options)> {
        parse(Parser::from_iter(
            ["xtask"].into_iter().chain(line.split_whitespace()),
        ))
    }

    #[test]
    fn options_after_the_dashes_belong_to_the_command() {
        let (verb, options) = parsed("vm run --kvm -- cargo run --example demo -- --kvm a.yaml").unwrap();
        let command = ["cargo", "run", "--example", "demo", "--", "--kvm", "a.yaml"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(verb, Verb::VmRun { command });
        assert!(options.kvm);
    }

    #[test]
    fn the_demo_has_a_mode_and_files() {
        let (verb, _) = parsed("demo --mode ipvs a.yaml").unwrap();
        let files = vec!["a.yaml".to_owned()];
        let mode = Some(e2e::Mode::Ipvs);
        assert_eq!(verb, Verb::Demo { mode, files });
    }

    #[test]
    fn a_benchmark_may_be_checked() {
        for (line, group, check) in [
            ("bench --check sync", Some("sync"), true),
            ("bench --check", None, true),
            ("bench sync", Some("sync"), false),
        ] {
            let group = group.map(str::to_owned);
            let expected = Verb::Bench {
                group,
                check,
                kube_proxy: None,
                watchers: watchers::Options::default(),
            };
            assert_eq!(parsed(line).unwrap().0, expected, "{line}");
        }
        let (verb, _) = parsed("bench nftables_mode --kube-proxy /k").unwrap();
        let expected = Verb::Bench {
            group: Some("nftables_mode".to_owned()),
            check: false,
            kube_proxy: Some("/k".into()),
            watchers: watchers::Options::default(),
        };
        assert_eq!(verb, expected);
        let (verb, _) =
            parsed("bench watchers --watchers 5 --services 7 --kube-apiserver /a --etcd /e").unwrap();
        let watchers = watchers::Options {
            api_server: Some("/a".into()),
            etcd: Some("/e".into()),
            watchers: NonZeroU32::new(5),
            services: NonZeroU32::new(7),
            ..watchers::Options::default()
        };
        let expected = Verb::Bench {
            group: Some("watchers".to_owned()),
            check: false,
            kube_proxy: None,
            watchers,
        };
        assert_eq!(verb, expected);
        let error = parsed("test --check").unwrap_err().to_string();
        assert!(error.contains("--check of `image` and `bench`"), "{error}");
    }

    #[test]
    fn the_tests_of_kubernetes_have_options_of_their_own() {
        let (verb, _) = parsed("upstream-e2e --mode userspace --runs 3").unwrap();
        assert!(matches!(verb, Verb::UpstreamE2e(options) if options.runs.get() == 3));
        let error = parsed("upstream-e2e --mode nftables --kvm").unwrap_err();
        assert!(error.to_string().contains("--kvm"), "{error}");
    }

    #[test]
    fn without_a_tier_all_tiers_run() {
        assert_eq!(
            parsed("test").unwrap().0,
            Verb::Test {
                tiers: Tier::ALL.to_vec()
            }
        );
        assert_eq!(
            parsed("test --tier unit").unwrap().0,
            Verb::Test {
                tiers: vec![Tier::Unit]
            }
        );
    }

    #[test]
    fn options_and_arguments_may_be_mixed() {
        let (verb, options) =
            parsed("vm --time-limit 60 test ipvs --kernel /boot/vmlinuz --repeat 3 udp").unwrap();
        assert_eq!(
            verb,
            Verb::VmTest {
                filters: vec!["ipvs".to_owned(), "udp".to_owned()],
                repeat: NonZeroUsize::new(3).unwrap(),
            }
        );
        assert_eq!(options.time_limit, Some(Duration::from_secs(60)));
        assert_eq!(options.kernel, Some("/boot/vmlinuz".into()));
    }

    #[test]
    fn an_error_names_the_invalid_argument() {
        for (line, expected) in [
            ("tests", "unknown verb `tests`"),
            ("check clippy twice", "unexpected argument `twice`"),
            ("bench ipvs ipset", "unexpected argument `ipset`"),
            ("vm", "missing verb after `vm`; expected `cargo xtask vm run"),
            (
                "vm tests",
                "unknown verb `vm tests`; expected `cargo xtask vm run",
            ),
            ("vm run", "missing command"),
            ("check --tier unit", "--tier is an option of `test` only"),
            ("test --tier all", "unknown tier `all`"),
            ("test --fast", "--fast"),
            ("vm test --time-limit 0", "--time-limit"),
            ("vm test --repeat 0", "--repeat"),
            ("e2e --mode userspace", "unknown mode `userspace`"),
            (
                "e2e --mode ipvs --kube-proxy f",
                "nftables and iptables are valid",
            ),
            (
                "test --mode ipvs",
                "options of `e2e`, `verify` and `bench watchers` only",
            ),
            ("e2e --watchers 5", "options of `bench watchers` only"),
            ("bench sync --etcd e", "options of `bench watchers` only"),
            ("bench watchers --watchers 0", "--watchers"),
            ("image", "image: missing folder"),
            ("nft-suite", "nft-suite: missing folder"),
            ("nft-vectors", "nft-vectors: missing folder"),
            ("fuzz --seconds 0", "--seconds"),
            ("test --seconds 5", "--seconds is an option of `fuzz` only"),
            ("test --nft nft", "--nft is an option of `nft-suite` only"),
            ("test --legacy", "options of `image` only"),
            ("test --repeat 2", "--repeat is an option of `vm test` only"),
            ("vm test --time-limit soon", "--time-limit"),
        ] {
            let error = format!("{:#}", parsed(line).unwrap_err());
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn without_a_verb_the_help_is_printed() {
        assert_eq!(parsed("").unwrap().0, Verb::Help);
        assert_eq!(parsed("vm run --help").unwrap().0, Verb::Help);
    }
}
