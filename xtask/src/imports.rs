//! Rules for imports between modules. Rules for dependencies between crates are in `layers.rs`.

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
/// Modules and paths are patterns. They begin with `crate` or with the name of another crate. In a segment `*` stands for any
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

/// A rule for the sources of one crate, its tests aside.
const RULE: Rule = Rule {
    package: "",
    modules: &["crate"],
    except: &[],
    must_not: &[],
    tests: false,
    only_with: "",
    why: "",
};

/// A rule about the structure of the proxier: modules, what they must not name, and why.
const fn proxier(
    modules: &'static [&'static str],
    must_not: &'static [&'static str],
    why: &'static str,
) -> Rule {
    Rule {
        package: "crates/proxier",
        modules,
        must_not,
        only_with: "crate::ipvs_mode",
        why,
        ..RULE
    }
}

/// A rule about the programs that the code of a package starts, tests included.
const fn programs(package: &'static str, except: &'static [&'static str]) -> Rule {
    Rule {
        package,
        except,
        must_not: &["std::process::Command::new", "nix::unistd::exec*"],
        tests: true,
        why: "external programs are started with kernlink_kernel_tests::programs::command, which knows their packages",
        ..RULE
    }
}

const RULES: &[Rule] = &[
    // Data paths are independent of each other, and what they share is independent of them.
    proxier(
        &["crate::*_mode"],
        &["crate::*_mode"],
        "a data path must not depend on another one",
    ),
    proxier(
        NEUTRAL,
        &["crate::*_mode"],
        "what all data paths share must not depend on one of them",
    ),
    proxier(
        NEUTRAL,
        KERNEL_CRATES,
        "what all data paths share must not depend on the kernel objects of one of them",
    ),
    // Inside IPVS mode.
    proxier(
        &["crate::ipvs_mode::observe|observed"],
        &["crate::ipvs_mode::compile|desired"],
        "what the kernel holds is read without regard to what is desired",
    ),
    proxier(
        &["crate::ipvs_mode::ownership"],
        &[
            "crate::ipvs_mode::compile|desired",
            "crate::ipvs_mode::plan|diff|order",
            "crate::plan",
        ],
        "ownership is decided from kernel state alone",
    ),
    // Programs.
    programs("kernel-tests", &["crate::programs"]),
    programs("benches", &[]),
    programs("examples", &["crate::network"]),
    programs("crates/*", &["crate::runner"]),
];

/// The modules of the proxier that serve all data paths.
const NEUTRAL: &[&str] = &[
    "crate::apply",
    "crate::data_path",
    "crate::error",
    "crate::plan",
    "crate::proxier",
    "crate::report",
    "crate::retry",
    "crate::runner",
    "crate::schedule",
    "crate::table",
];

const KERNEL_CRATES: &[&str] = &[
    "kernlink_netlink",
    "kernlink_ipvs",
    "kernlink_ipset",
    "kernlink_dummylink",
    "kernlink_conntrack",
    "kernlink_iptables_restore",
];

/// Fails with every place that breaks a rule.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let mut wrong = Vec::new();
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
                wrong.extend(rule.broken(&source, root));
            }
        }
    }
    // Several rules may name the same module.
    wrong.sort();
    wrong.dedup();
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("xtask/src/imports.rs does not allow\n  {}", wrong.join("\n  "))
}

impl Rule {
    /// The places in a crate that break the rule, one line for each file and each crate or module that is named there.
    fn broken(&self, source: &Crate, root: &Path) -> Vec<String> {
        let modules: Vec<_> = source.modules().collect();
        let exists = |pattern: &str| modules.iter().any(|module| prefix(pattern, module).is_some());
        if !self.only_with.is_empty() && !exists(self.only_with) {
            return Vec::new();
        }
        let own = self.must_not.iter().filter(|path| path.starts_with("crate::"));
        let mut wrong: Vec<_> = self
            .modules
            .iter()
            .chain(own)
            .filter(|pattern| !exists(pattern))
            .map(|pattern| {
                format!(
                    "{}: no module {pattern}, about which xtask/src/imports.rs has a rule",
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
            for path in &reference.leads_to {
                let named = self.must_not.iter().find_map(|pattern| prefix(pattern, path));
                if let Some(named) = named.filter(|&named| named != bound) {
                    let file = reference.file.strip_prefix(root).unwrap_or(&reference.file);
                    let what = format!("{} names {}", reference.module, named.join("::"));
                    let place = places.entry((file.to_owned(), what));
                    place.or_default().insert(reference.line);
                }
            }
        }
        wrong.extend(places.into_iter().map(|((file, what), lines)| {
            let mut lines = lines.into_iter();
            let first = lines.next().unwrap_or_default();
            let more: String = lines.map(|line| format!(", {line}")).collect();
            format!("{}:{first}{more}: {what}: {}", file.display(), self.why)
        }));
        wrong
    }

    /// The beginning of a module's path that makes the rule apply to it, if it does.
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

/// The beginning of a path that a pattern matches.
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

    /// What breaks the rules of the package in this folder, in a crate of these files.
    fn broken(folder: &str, files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let source = Crate::read(Path::new(files[0].0), &read).unwrap();
        RULES
            .iter()
            .filter(|rule| matches(rule.package, folder))
            .flat_map(|rule| rule.broken(&source, Path::new("/")))
            .collect()
    }

    /// A proxier in which one module has this text.
    fn proxier_with(module: &str, text: &str) -> Vec<String> {
        let modules = [
            "apply",
            "data_path",
            "error",
            "plan",
            "proxier",
            "report",
            "retry",
            "table",
            "ipvs_mode/compile",
            "ipvs_mode/observe",
            "ipvs_mode/ownership",
            "ipvs_mode/order",
            "ipvs_mode/client",
            "test_mode/client",
        ];
        let root = "pub mod apply; pub mod data_path; pub mod error; pub mod plan; pub mod proxier; pub mod report; pub mod retry; \
                    pub mod table; pub mod ipvs_mode { pub mod compile; pub mod observe; pub mod ownership; pub mod order; \
                    pub mod client; } pub mod test_mode { pub mod client; } pub use ipvs_mode::compile::Compiled;";
        let names: Vec<_> = modules.iter().map(|name| format!("src/{name}.rs")).collect();
        assert!(modules.contains(&module));
        let mut files = vec![("src/lib.rs", root)];
        files.extend(names.iter().zip(modules).map(|(name, this)| {
            let text = if this == module { text } else { "" };
            (name.as_str(), text)
        }));
        broken("crates/proxier", &files)
    }

    #[track_caller]
    fn assert_broken(found: &[String], expected: &[&str]) {
        let beginnings: Vec<_> = found
            .iter()
            .zip(expected)
            .map(|(line, expected)| line.get(..expected.len()).unwrap_or(line))
            .collect();
        assert_eq!(beginnings, expected, "{found:#?}");
        assert_eq!(found.len(), expected.len(), "{found:#?}");
    }

    #[test]
    fn the_structure_that_is_meant_breaks_no_rule() {
        let text =
            "use crate::table::Table;\nuse kernlink_ipvs::VirtualServer;\nuse super::compile::Compiled;";
        assert_broken(&proxier_with("ipvs_mode/client", text), &[]);
        assert_broken(&proxier_with("plan", "use kernlink_services::Frontend;"), &[]);
    }

    #[test]
    fn a_mode_that_imports_another_breaks_a_rule() {
        let found = proxier_with("test_mode/client", "\nuse crate::ipvs_mode::client::Client;");
        assert_broken(
            &found,
            &["src/test_mode/client.rs:2: crate::test_mode::client names crate::ipvs_mode: a data path"],
        );
        // Through the root's re-export, too.
        let found = proxier_with("test_mode/client", "fn f(_: crate::Compiled) {}");
        assert_broken(
            &found,
            &["src/test_mode/client.rs:1: crate::test_mode::client names crate::ipvs_mode: a data path"],
        );
    }

    #[test]
    fn a_neutral_module_that_imports_a_mode_breaks_a_rule() {
        for module in [
            "apply",
            "data_path",
            "error",
            "plan",
            "proxier",
            "report",
            "retry",
            "table",
        ] {
            let found = proxier_with(module, "fn f() { crate::ipvs_mode::compile::run(); }");
            let expected = format!("src/{module}.rs:1: crate::{module} names crate::ipvs_mode: what all");
            assert_broken(&found, &[&expected]);
        }
    }

    #[test]
    fn a_neutral_module_that_imports_a_kernel_crate_breaks_a_rule() {
        for name in KERNEL_CRATES {
            let found = proxier_with("table", &format!("use {name}::{{Client, Error}};"));
            let expected = format!("src/table.rs:1: crate::table names {name}: what all");
            assert_broken(&found, &[&expected]);
        }
    }

    #[test]
    fn observed_that_imports_desired_breaks_a_rule() {
        let found = proxier_with(
            "ipvs_mode/observe",
            "use super::compile;\n\nfn f() { compile::run() }",
        );
        assert_broken(
            &found,
            &[
                "src/ipvs_mode/observe.rs:1, 3: crate::ipvs_mode::observe names crate::ipvs_mode::compile: what",
            ],
        );
    }

    #[test]
    fn ownership_that_imports_what_is_desired_or_planned_breaks_a_rule() {
        for path in ["crate::ipvs_mode::compile", "super::order", "crate::plan::Step"] {
            let found = proxier_with("ipvs_mode/ownership", &format!("use {path};"));
            assert_broken(
                &found,
                &["src/ipvs_mode/ownership.rs:1: crate::ipvs_mode::ownership names crate::"],
            );
        }
    }

    #[test]
    fn tests_of_a_module_are_not_bound_by_its_imports() {
        let text = "#[cfg(test)] mod tests { use crate::ipvs_mode::client::Client; }";
        assert_broken(&proxier_with("plan", text), &[]);
    }

    #[test]
    fn lines_that_break_a_rule_alike_are_reported_together() {
        let text = "fn f() { kernlink_ipvs::x(); }\nfn g() {\n kernlink_ipvs::y(); }";
        assert_broken(
            &proxier_with("plan", text),
            &["src/plan.rs:1, 3: crate::plan names kernlink_ipvs: what"],
        );
    }

    #[test]
    fn a_rule_for_a_module_that_is_not_there_is_broken() {
        let files = [("src/lib.rs", "mod ipvs_mode { mod observe {} }")];
        let found = broken("crates/proxier", &files);
        assert!(
            found
                .iter()
                .any(|line| line.contains("no module crate::ipvs_mode::ownership,")),
            "{found:#?}"
        );
        // These rules apply only to a crate with `ipvs_mode`.
        let files = [("src/lib.rs", "mod plan { use kernlink_ipvs::X; }")];
        assert_broken(&broken("crates/proxier", &files), &[]);
    }

    #[test]
    fn starting_a_program_without_the_table_breaks_a_rule() {
        let text = "use std::process::Command as Process;\n#[test] fn t() {\n assert!(Process::new(\"nft\").status().is_ok()); }";
        for folder in ["kernel-tests", "benches", "examples", "crates/ipvs"] {
            let found = broken(folder, &[("tests/nft.rs", text)]);
            assert_broken(
                &found,
                &[
                    "tests/nft.rs:3: crate names std::process::Command::new: external programs are started with",
                ],
            );
        }
        // Commands of other crates, and the type alone, are no programs.
        let text = "use kernlink_iptables_restore::Command;\nfn f(_: &mut std::process::Command) { Command::new(); }";
        assert_broken(&broken("kernel-tests", &[("tests/rules.rs", text)]), &[]);
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
