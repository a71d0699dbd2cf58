//! Rules for imports between modules. The rules for dependencies between crates are in `layers.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use cargo_metadata::TargetKind;

use crate::{
    modules::{Crate, FullPath},
    workspace::Workspace,
};

/// A rule that some modules of a package must not name certain modules, crates or functions, in an import or in a path.
///
/// Modules and paths are patterns. They begin with `crate` or with the name of another crate. In a segment, `*` is any
/// text, and `|` separates alternatives. A pattern also matches everything below what it names.
struct Rule {
    /// The package, by its folder in the workspace; a pattern.
    package: &'static str,
    /// The modules to which the rule applies.
    modules: &'static [&'static str],
    /// Modules among these to which it does not apply.
    except: &'static [&'static str],
    /// What they must not name. A module may always name itself and what is below it: in a rule for `crate::*_mode`, the path
    /// `crate::*_mode` means the other modes.
    must_not: &'static [&'static str],
    /// Whether the rule also applies to code for tests: the package's tests, benchmarks and examples, and what is under
    /// `#[cfg(test)]`.
    tests: bool,
    /// The rule applies only to a crate with this module; empty for every crate.
    ///
    /// A rule that applies must name modules of the crate that exist. Otherwise renaming a module would disable the rule.
    only_with: &'static str,
    why: &'static str,
}

/// The default values: a rule for the sources of a crate without its tests.
const RULE: Rule = Rule {
    package: "",
    modules: &["crate"],
    except: &[],
    must_not: &[],
    tests: false,
    only_with: "",
    why: "",
};

/// A rule for starting external programs, in tests as well.
const fn programs(package: &'static str, except: &'static [&'static str]) -> Rule {
    Rule {
        package,
        except,
        must_not: &["std::process::Command::new", "nix::unistd::exec*"],
        tests: true,
        why: "external programs are started with kernlink_kernel_tests::programs::command, which has the list of their packages",
        ..RULE
    }
}

const RULES: &[Rule] = &[
    // What data paths share.
    Rule {
        package: "crates/netfilter",
        must_not: &[
            "kernlink_engine::plan",
            "kernlink_engine::proxier",
            "kernlink_engine::table",
        ],
        why: "what data paths have in common must not depend on how plans are made",
        ..RULE
    },
    Rule {
        package: "crates/host",
        must_not: &[
            "kernlink_engine::plan",
            "kernlink_engine::proxier",
            "kernlink_engine::table",
        ],
        why: "what data paths have in common must not depend on how plans are made",
        ..RULE
    },
    Rule {
        package: "crates/host",
        modules: &["crate::watch::changes|pace"],
        must_not: &["crate::watch::watcher", "std::thread"],
        only_with: "crate::watch",
        why: "what events require is decided from the events and the time alone",
        ..RULE
    },
    // Inside IPVS mode.
    Rule {
        package: "crates/ipvs-mode",
        modules: &["crate::observe"],
        must_not: &["crate::compile"],
        only_with: "crate::observe",
        why: "the kernel state is read independently of the desired state",
        ..RULE
    },
    Rule {
        package: "crates/ipvs-mode",
        modules: &["crate::ownership"],
        must_not: &["crate::compile", "crate::plan|order", "kernlink_engine::plan"],
        only_with: "crate::observe",
        why: "ownership must not depend on how desired state and plans are computed",
        ..RULE
    },
    // The agent.
    Rule {
        package: "crates/agent",
        modules: &["crate::cluster"],
        must_not: &["kernlink_proxier", "crate::agent|http|once|report|state|folder"],
        only_with: "crate::cluster",
        why: "a source must not depend on what its objects are used for",
        ..RULE
    },
    Rule {
        package: "crates/agent",
        modules: &["crate::folder"],
        must_not: &["kernlink_proxier", "crate::agent|http|once|report|state"],
        only_with: "crate::folder",
        why: "a source must not depend on what its objects are used for",
        ..RULE
    },
    // Userspace mode.
    Rule {
        package: "crates/userspace",
        modules: &["crate::balance", "crate::budget", "crate::flows", "crate::ports"],
        must_not: &[
            "crate::proxy",
            "crate::data_path",
            "nix",
            "socket2",
            "std::fs",
            "std::thread",
            "tokio",
            "std::time::Instant::now",
        ],
        only_with: "crate::proxy",
        why: "choices, ports and flows are decided without sockets and clocks",
        ..RULE
    },
    Rule {
        package: "crates/userspace",
        modules: &["crate::proxy"],
        must_not: &[
            "crate::data_path",
            "kernlink_engine",
            "kernlink_services",
            "kernlink_iptables_restore",
        ],
        only_with: "crate::proxy",
        why: "copying does not depend on Services and rules",
        ..RULE
    },
    Rule {
        package: "crates/userspace",
        modules: &["crate::data_path"],
        must_not: &["tokio::net", "socket2", "nix"],
        only_with: "crate::data_path",
        why: "the data path uses sockets through one trait, so that it can be tested with a fake",
        ..RULE
    },
    // Programs.
    programs("kernel-tests", &["crate::programs"]),
    programs("benches", &[]),
    programs("examples", &[]),
    programs(
        "crates/*",
        &["crate::runner", "crate::client::load", "crate::git"],
    ),
];

/// Fails with a list of all violations.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let mut violations = Vec::new();
    for package in workspace.metadata.workspace_packages() {
        let manifest = package.manifest_path.as_std_path();
        let folder = manifest.parent().unwrap_or(root);
        let folder = folder.strip_prefix(root).unwrap_or(folder);
        for target in &package.targets {
            let is_product = matches!(target.kind.first(), Some(TargetKind::Lib | TargetKind::Bin));
            let rules: Vec<_> = RULES
                .iter()
                .filter(|rule| matches(rule.package, &folder.to_string_lossy()))
                .filter(|rule| is_product || rule.tests)
                .collect();
            if rules.is_empty() {
                continue;
            }
            let source = Crate::read(target.src_path.as_std_path(), &|path| fs::read_to_string(path))?;
            for rule in rules {
                violations.extend(rule.violations_in(&source, root));
            }
        }
    }
    // Several rules may name the same module.
    violations.sort();
    violations.dedup();
    if violations.is_empty() {
        return Ok(());
    }
    bail!(
        "imports that xtask/src/imports.rs does not allow\n  {}",
        violations.join("\n  ")
    )
}

impl Rule {
    /// The violations in a crate, one line for each file and each crate or module that it names.
    fn violations_in(&self, source: &Crate, root: &Path) -> Vec<String> {
        let modules: Vec<_> = source.modules().collect();
        let exists = |pattern: &str| modules.iter().any(|module| prefix(pattern, module).is_some());
        if !self.only_with.is_empty() && !exists(self.only_with) {
            return Vec::new();
        }
        let own = self.must_not.iter().filter(|path| path.starts_with("crate::"));
        let mut violations: Vec<_> = self
            .modules
            .iter()
            .chain(own)
            .filter(|pattern| !exists(pattern))
            .map(|pattern| {
                format!(
                    "{}: no module {pattern}, which a rule in xtask/src/imports.rs names",
                    self.package
                )
            })
            .collect();
        let mut places: BTreeMap<(PathBuf, String), BTreeSet<usize>> = BTreeMap::new();
        for reference in source.references() {
            if reference.is_test && !self.tests {
                continue;
            }
            let Some(bound) = self.bound(&reference.module) else {
                continue;
            };
            for path in &reference.resolves_to {
                let named = self.must_not.iter().find_map(|pattern| prefix(pattern, path));
                if let Some(named) = named.filter(|&named| named != bound) {
                    let file = reference.file.strip_prefix(root).unwrap_or(&reference.file);
                    let what = format!("{} names {}", reference.module, named.join("::"));
                    let place = places.entry((file.to_owned(), what));
                    place.or_default().insert(reference.line);
                }
            }
        }
        violations.extend(places.into_iter().map(|((file, what), lines)| {
            let mut lines = lines.into_iter();
            let first = lines.next().unwrap_or_default();
            let more: String = lines.map(|line| format!(", {line}")).collect();
            format!("{}:{first}{more}: {what}: {}", file.display(), self.why)
        }));
        violations
    }

    /// The beginning of the module's path that the rule matches. `None` if the rule does not apply to the module.
    fn bound<'a>(&self, module: &'a FullPath) -> Option<&'a [String]> {
        if self
            .except
            .iter()
            .any(|pattern| prefix(pattern, module).is_some())
        {
            return None;
        }
        self.modules.iter().find_map(|pattern| prefix(pattern, module))
    }
}

/// The beginning of a path that matches a pattern.
fn prefix<'a>(pattern: &str, path: &'a FullPath) -> Option<&'a [String]> {
    let segments: Vec<_> = pattern.split("::").collect();
    let beginning = path.0.get(..segments.len())?;
    let mut pairs = segments.into_iter().zip(beginning);
    pairs
        .all(|(pattern, segment)| matches(pattern, segment))
        .then_some(beginning)
}

/// Whether a pattern matches all of a text: `*` is any text, `|` separates alternatives.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    pattern.split('|').any(|pattern| match pattern.split_once('*') {
        Some((before, after)) => text
            .strip_prefix(before)
            .is_some_and(|rest| rest.ends_with(after)),
        None => pattern == text,
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// The violations in a crate of these files, by the rules for the package in this folder.
    fn violations_in(folder: &str, files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let source = Crate::read(Path::new(files[0].0), &read).unwrap();
        RULES
            .iter()
            .filter(|rule| matches(rule.package, folder))
            .flat_map(|rule| rule.violations_in(&source, Path::new("/")))
            .collect()
    }

    /// The violations in a crate of IPVS mode in which one module has this text.
    fn ipvs_mode_with(module: &str, text: &str) -> Vec<String> {
        let modules = ["compile", "observe", "ownership", "order", "plan", "client"];
        assert!(modules.contains(&module));
        let root: String = modules.iter().map(|name| format!("pub mod {name}; ")).collect();
        let root = format!("{root} pub use compile::Compiled;");
        let names = modules.map(|name| format!("src/{name}.rs"));
        let mut files = vec![("src/lib.rs", root.as_str())];
        files.extend(names.iter().zip(&modules).map(|(name, this)| {
            let text = if *this == module { text } else { "" };
            (name.as_str(), text)
        }));
        violations_in("crates/ipvs-mode", &files)
    }

    #[track_caller]
    fn assert_violations(found: &[String], expected: &[&str]) {
        let beginnings: Vec<_> = found
            .iter()
            .zip(expected)
            .map(|(line, expected)| line.get(..expected.len()).unwrap_or(line))
            .collect();
        assert_eq!(beginnings, expected, "{found:#?}");
        assert_eq!(found.len(), expected.len(), "{found:#?}");
    }

    #[test]
    fn allowed_imports_are_no_violations() {
        let text = "use kernlink_engine::table::Table;\nuse kernlink_ipvs::VirtualServer;\nuse super::compile::Compiled;";
        assert_violations(&ipvs_mode_with("client", text), &[]);
        assert_violations(
            &ipvs_mode_with("ownership", "use kernlink_services::Frontend;"),
            &[],
        );
    }

    #[test]
    fn observe_must_not_import_compile() {
        let found = ipvs_mode_with("observe", "use super::compile;\n\nfn f() { compile::run() }");
        assert_violations(
            &found,
            &["src/observe.rs:1, 3: crate::observe names crate::compile: the"],
        );
        // Through the root's re-export, too.
        let found = ipvs_mode_with("observe", "fn f(_: crate::Compiled) {}");
        assert_violations(
            &found,
            &["src/observe.rs:1: crate::observe names crate::compile: the"],
        );
    }

    #[test]
    fn ownership_must_not_import_compile_or_plan() {
        for path in [
            "crate::compile",
            "super::order",
            "crate::plan",
            "kernlink_engine::plan::Step",
        ] {
            let found = ipvs_mode_with("ownership", &format!("use {path};"));
            assert_violations(&found, &["src/ownership.rs:1: crate::ownership names "]);
        }
    }

    #[test]
    fn what_events_require_must_not_depend_on_the_watcher_and_on_threads() {
        let files = [
            ("src/lib.rs", "pub mod watch;"),
            ("src/watch.rs", "mod changes; mod pace; mod watcher;"),
            ("src/watch/changes.rs", "use super::watcher;\nuse std::thread;"),
            ("src/watch/pace.rs", ""),
            ("src/watch/watcher.rs", "use std::thread;"),
        ];
        assert_violations(
            &violations_in("crates/host", &files),
            &[
                "src/watch/changes.rs:1: crate::watch::changes names crate::watch::watcher: what events",
                "src/watch/changes.rs:2: crate::watch::changes names std::thread: what events",
            ],
        );
    }

    #[test]
    fn rules_do_not_apply_to_tests_of_a_module() {
        let text = "#[cfg(test)] mod tests { use crate::compile::Compiled; }";
        assert_violations(&ipvs_mode_with("observe", text), &[]);
    }

    #[test]
    fn a_rule_that_names_a_missing_module_is_reported() {
        let files = [("src/lib.rs", "mod observe {}")];
        let found = violations_in("crates/ipvs-mode", &files);
        assert!(
            found
                .iter()
                .any(|line| line.contains("no module crate::ownership,")),
            "{found:#?}"
        );
        // These rules apply only to a crate with `observe`.
        let files = [("src/lib.rs", "mod ownership { use kernlink_engine::plan::X; }")];
        assert_violations(&violations_in("crates/ipvs-mode", &files), &[]);
    }

    #[test]
    fn programs_must_be_started_with_the_declared_table() {
        let text = "use std::process::Command as Process;\n#[test] fn t() {\n assert!(Process::new(\"nft\").status().is_ok()); }";
        for folder in ["kernel-tests", "benches", "examples", "crates/ipvs"] {
            let found = violations_in(folder, &[("tests/nft.rs", text)]);
            assert_violations(
                &found,
                &[
                    "tests/nft.rs:3: crate names std::process::Command::new: external programs are started with",
                ],
            );
        }
        // The name `Command` of another crate, and the type without its constructor, are allowed.
        let text = "use kernlink_iptables_restore::Command;\nfn f(_: &mut std::process::Command) { Command::new(); }";
        assert_violations(&violations_in("kernel-tests", &[("tests/rules.rs", text)]), &[]);
    }

    #[test]
    fn patterns_match_whole_segments() {
        assert!(matches("*_mode", "ipvs_mode") && !matches("*_mode", "ipvs_modes"));
        assert!(matches("observe|observed", "observed") && !matches("observe|observed", "observer"));
        assert!(matches("crates/*", "crates/ipvs") && !matches("crates/*", "benches"));
        let path = FullPath(["crate", "plan", "diff"].map(str::to_owned).to_vec());
        assert_eq!(prefix("crate::plan", &path), path.0.get(..2));
        assert_eq!(prefix("crate::planned", &path), None);
        assert_eq!(prefix("crate::plan::diff::x", &path), None);
    }
}
