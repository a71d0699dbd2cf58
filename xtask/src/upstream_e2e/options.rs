//! The command line of `cargo xtask upstream-e2e`.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use lexopt::{Arg, Parser, ValueExt};
use regex::Regex;
use serde::{Deserialize, Serialize};

/// What `--help` prints about the command.
pub(crate) const USAGE: &str = "\
  upstream-e2e --mode MODE  run the end-to-end tests of Kubernetes on a cluster in network namespaces of this machine, as root;
                            MODE is nftables, iptables or userspace (ipvs is not supported yet: its cluster would have to
                            run in the VM); builds Kubernetes with Go and the images of the tests the first time (about
                            30 minutes); exit with 1 if a test has another result than expected;
                            tests that have a result in the folder are not run again
    --kube-proxy FILE       test this program instead of the agent; its results appear next to those of the agent
    --agent FILE            test this program instead of building the agent
    --focus REGEX           only tests of the selection whose names match
    --folder FOLDER         for programs, images and results (default: upstream-e2e in the target folder)
    --nodes N               the number of nodes, in three zones, 2 to 9 (default: 3; tests of zones need 6)
    --processes N           run this number of tests at the same time (default: 8)
    --runs N                run each test until it has N results (default: 1)
    --again                 run each test N times although it has results
    --list                  print the selection and end
    --build                 build what is missing and end
    --record                write the results in the folder to docs/conformance.md
";

/// The default of `--nodes`.
const NODES: usize = 3;
/// The default of `--processes`.
const PROCESSES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// The mode of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Mode {
    Nftables,
    Iptables,
    Userspace,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Nftables, Self::Iptables, Self::Userspace];

    /// Its name in kube-proxy.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Userspace => "userspace",
        }
    }

    /// The mode of kube-proxy to compare with. kube-proxy has no userspace mode any more.
    pub(crate) fn of_kube_proxy(self) -> Self {
        match self {
            Self::Nftables => Self::Nftables,
            Self::Iptables | Self::Userspace => Self::Iptables,
        }
    }

    fn parse(name: &str) -> Result<Self> {
        if name == "ipvs" {
            bail!("--mode: ipvs is not supported yet; supported: nftables, iptables, userspace");
        }
        let found = Self::ALL.into_iter().find(|mode| mode.name() == name);
        found.with_context(|| format!("--mode: unknown mode `{name}`; known: nftables, iptables, userspace"))
    }
}

/// The program that is tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// The agent. `None`: it is built.
    Kernlink(Option<PathBuf>),
    KubeProxy(PathBuf),
}

impl Proxy {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kernlink(_) => KERNLINK,
            Self::KubeProxy(_) => KUBE_PROXY,
        }
    }
}

/// Names of proxies in folders and rules.
pub(crate) const KERNLINK: &str = "kernlink";
pub(crate) const KUBE_PROXY: &str = "kube-proxy";

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Test,
    List,
    Build,
    Record,
}

/// What is given on the command line.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) proxy: Proxy,
    pub(crate) focus: Option<Regex>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) nodes: usize,
    pub(crate) processes: NonZeroUsize,
    pub(crate) runs: NonZeroUsize,
    pub(crate) is_again: bool,
    pub(crate) action: Action,
}

impl PartialEq for Options {
    fn eq(&self, other: &Self) -> bool {
        let regex = |options: &Self| options.focus.as_ref().map(|focus| focus.as_str().to_owned());
        (self.mode, &self.proxy, regex(self), &self.folder)
            == (other.mode, &other.proxy, regex(other), &other.folder)
            && (self.nodes, self.processes, self.runs) == (other.nodes, other.processes, other.runs)
            && (self.is_again, self.action) == (other.is_again, other.action)
    }
}

impl Eq for Options {}

impl Options {
    /// Parses what follows the name of the command.
    pub(crate) fn parse(parser: &mut Parser) -> Result<Self> {
        let mut mode = None;
        let mut kube_proxy = None;
        let mut agent = None;
        let mut actions = Vec::new();
        let mut options = Self {
            mode: Mode::Nftables,
            proxy: Proxy::Kernlink(None),
            focus: None,
            folder: None,
            nodes: NODES,
            processes: PROCESSES,
            runs: NonZeroUsize::MIN,
            is_again: false,
            action: Action::Test,
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Arg::Long("mode") => mode = Some(Mode::parse(&parser.value()?.string()?)?),
                Arg::Long("kube-proxy") => kube_proxy = Some(PathBuf::from(parser.value()?)),
                Arg::Long("agent") => agent = Some(PathBuf::from(parser.value()?)),
                Arg::Long("focus") => {
                    options.focus = Some(Regex::new(&parser.value()?.string()?).context("--focus")?);
                }
                Arg::Long("folder") => options.folder = Some(parser.value()?.into()),
                Arg::Long("nodes") => options.nodes = parser.value()?.parse().context("--nodes")?,
                Arg::Long("processes") => {
                    options.processes = parser.value()?.parse().context("--processes")?
                }
                Arg::Long("runs") => options.runs = parser.value()?.parse().context("--runs")?,
                Arg::Long("again") => options.is_again = true,
                Arg::Long("list") => actions.push(Action::List),
                Arg::Long("build") => actions.push(Action::Build),
                Arg::Long("record") => actions.push(Action::Record),
                other => return Err(other.unexpected().into()),
            }
        }
        ensure!(
            (2..=9).contains(&options.nodes),
            "--nodes: invalid value {}; valid: 2 to 9",
            options.nodes
        );
        ensure!(
            actions.len() <= 1,
            "--list, --build and --record exclude each other"
        );
        options.action = actions.first().copied().unwrap_or(Action::Test);
        let is_without_mode = matches!(options.action, Action::Build | Action::Record);
        options.mode = match mode {
            Some(mode) => mode,
            None if is_without_mode => options.mode,
            None => bail!("upstream-e2e: missing --mode; valid: nftables, iptables, userspace"),
        };
        options.proxy = match (agent, kube_proxy) {
            (Some(_), Some(_)) => bail!("--agent and --kube-proxy exclude each other"),
            (agent, None) => Proxy::Kernlink(agent),
            (None, Some(_)) if options.mode == Mode::Userspace => {
                bail!("--mode: with --kube-proxy, nftables and iptables are valid")
            }
            (None, Some(path)) => Proxy::KubeProxy(path),
        };
        Ok(options)
    }

    /// The folder for everything.
    pub(crate) fn folder(&self, target: &Path) -> PathBuf {
        self.folder.clone().unwrap_or_else(|| target.join("upstream-e2e"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options> {
        Options::parse(&mut Parser::from_args(line.split_whitespace()))
    }

    #[test]
    fn the_agent_is_tested_on_three_nodes() {
        let options = parsed("--mode nftables").unwrap();
        assert_eq!(options.proxy, Proxy::Kernlink(None));
        assert_eq!(
            (options.nodes, options.processes.get(), options.runs.get()),
            (3, 8, 1)
        );
        assert_eq!(options.folder(Path::new("/t")), Path::new("/t/upstream-e2e"));
    }

    #[test]
    fn values_of_options_are_used() {
        let options = parsed(
            "--mode iptables --kube-proxy /k --focus affinity --folder /f --nodes 6 --processes 1 --runs 10 --again",
        )
        .unwrap();
        assert_eq!(options.mode, Mode::Iptables);
        assert_eq!(options.proxy, Proxy::KubeProxy("/k".into()));
        assert!(options.focus.as_ref().unwrap().is_match("session affinity"));
        assert_eq!(options.folder(Path::new("/t")), Path::new("/f"));
        assert_eq!(
            (options.nodes, options.processes.get(), options.runs.get()),
            (6, 1, 10)
        );
        assert!(options.is_again);
        assert_eq!(parsed("--build").unwrap().action, Action::Build);
    }

    #[test]
    fn an_error_names_what_is_valid() {
        for (line, expected) in [
            ("", "missing --mode; valid: nftables, iptables, userspace"),
            ("--mode ipvs", "ipvs is not supported yet"),
            ("--mode ebpf", "unknown mode `ebpf`; known: nftables"),
            (
                "--mode userspace --kube-proxy /k",
                "nftables and iptables are valid",
            ),
            ("--mode nftables --agent /a --kube-proxy /k", "exclude each other"),
            (
                "--mode nftables --nodes 1",
                "--nodes: invalid value 1; valid: 2 to 9",
            ),
            ("--mode nftables --processes 0", "--processes"),
            ("--mode nftables --focus (", "--focus"),
            ("--mode nftables --list --build", "exclude each other"),
            ("--mode nftables core", "core"),
        ] {
            let error = format!("{:#}", parsed(line).unwrap_err());
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
