//! `cargo xtask verify`: what is too slow, or needs too much, for CI.

use std::{fs, process::Command, time::Instant};

use anyhow::{Context, Result, ensure};

use crate::{
    e2e, fuzz, helm, image, neighbours, provision, site, vm,
    workspace::{Workspace, succeed},
};

/// A part of it.
struct Part {
    name: &'static str,
    /// What it shows, for people.
    about: &'static str,
    /// Whether it has something to run for the mode that is given on the command line.
    has_mode: fn(e2e::Mode) -> bool,
    /// False if something failed, which is printed.
    run: fn(&Workspace, &Options) -> Result<bool>,
}

/// All parts, in the order in which they run: those that take the least time first. A new part is a line here and one in CONTRIBUTING.md.
const PARTS: &[Part] = &[
    Part {
        name: "prometheus",
        about: "the tests of the alerts, and the scrape configurations, with promtool",
        has_mode: |_| true,
        run: |workspace, _| promtool(workspace),
    },
    Part {
        name: "site",
        about: "the documents as a site with search, with its links",
        has_mode: |_| true,
        run: |workspace, _| site::build(workspace).map(|_| true),
    },
    Part {
        name: "helm",
        about: "the Helm chart with the real helm, and with a real API server",
        has_mode: |_| true,
        run: run_helm,
    },
    Part {
        name: "image",
        about: "the container image, in containers with the capabilities of the DaemonSet",
        has_mode: |_| true,
        run: |workspace, _| run_image(workspace),
    },
    Part {
        name: "neighbours",
        about: "firewalls, Docker and CNI plug-ins on a node, with traffic to Services",
        has_mode: neighbours::has_mode,
        run: |workspace, options| neighbours::run(workspace, options.end_to_end.mode),
    },
    Part {
        name: "cluster",
        about: "the agent with a real API server, in nftables, iptables and IPVS mode",
        has_mode: |_| true,
        run: |workspace, options| e2e::run(workspace, &options.end_to_end, &options.vm),
    },
    Part {
        name: "fuzz",
        about: "all fuzz targets, for a minute each",
        has_mode: |_| true,
        run: |workspace, _| fuzz::run(workspace, &fuzz::Options::default()),
    },
];

/// What is given on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) end_to_end: e2e::Options,
    pub(crate) vm: vm::Options,
}

/// Runs all parts, or those with this text in their names. A part that fails does not prevent the next one. False if one failed,
/// or none has something to run for the mode.
pub(crate) fn run(workspace: &Workspace, part: Option<&str>, options: &Options) -> Result<bool> {
    let selected = selected(part)?;
    let mut lines = Vec::new();
    let (mut is_good, mut has_run) = (true, false);
    for part in selected {
        println!("== {}: {} ==", part.name, part.about);
        let start = Instant::now();
        let mode = options.end_to_end.mode;
        let outcome = if let Some(mode) = mode.filter(|mode| !(part.has_mode)(*mode)) {
            println!("not run: {} has nothing for {} mode", part.name, mode.name());
            "not run"
        } else {
            has_run = true;
            match (part.run)(workspace, options) {
                Ok(true) => "good",
                Ok(false) => "FAILED",
                Err(error) => {
                    eprintln!("xtask: {}: {error:#}", part.name);
                    "FAILED"
                }
            }
        };
        is_good &= outcome != "FAILED";
        lines.push(format!(
            "{outcome:<7} {:>6.1} s  {}",
            start.elapsed().as_secs_f64(),
            part.name
        ));
    }
    println!("\n{}", lines.join("\n"));
    Ok(is_good && has_run)
}

fn selected(part: Option<&str>) -> Result<Vec<&'static Part>> {
    let parts: Vec<_> = PARTS
        .iter()
        .filter(|known| part.is_none_or(|part| known.name.contains(part)))
        .collect();
    let known: Vec<_> = PARTS.iter().map(|part| part.name).collect();
    ensure!(
        !parts.is_empty(),
        "verify: no part has `{}` in its name; known: {}",
        part.unwrap_or_default(),
        known.join(", ")
    );
    Ok(parts)
}

/// The tests in `kernel-tests/e2e/helm`.
fn run_helm(workspace: &Workspace, options: &Options) -> Result<bool> {
    let program = helm::program(workspace)?;
    let resources = helm::custom_resources()?;
    e2e::run_module(
        workspace,
        &options.end_to_end,
        "helm::",
        &[
            ("KERNLINK_HELM", &program),
            ("KERNLINK_PROMETHEUS_OPERATOR", &resources),
        ],
    )
}

/// Checks and tests what is in `dist/prometheus`.
fn promtool(workspace: &Workspace) -> Result<bool> {
    let promtool = match provision::find("promtool") {
        Some(path) => path,
        None => {
            // Not installed, because the package starts a server.
            let folder = workspace.target().join("tools/prometheus");
            let file = folder.join("usr/bin/promtool");
            if !file.is_file() {
                fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
                provision::unpack(&["prometheus"], &folder)?;
            }
            file
        }
    };
    let folder = workspace.root().join("dist/prometheus");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&promtool);
        succeed(command.current_dir(&folder).args(arguments))
    };
    run(&["check", "rules", "kernlink.rules.yaml"])?;
    run(&["test", "rules", "kernlink.rules.test.yaml"])?;
    let check_config = ["check", "config", "--syntax-only"];
    run(&[&check_config[..], &["scrape-hosts.yaml"]].concat())?;
    let text = fs::read_to_string(folder.join("scrape.yaml")).context("reading scrape.yaml")?;
    let copy = workspace.target().join("xtask/scrape.yaml");
    fs::write(&copy, without_discovery(&text)?).with_context(|| format!("writing {}", copy.display()))?;
    run(&[&check_config[..], &[&copy.to_string_lossy()]].concat())?;
    Ok(true)
}

/// A scrape configuration without the discovery of targets in Kubernetes, which the promtool of Debian does not have.
fn without_discovery(text: &str) -> Result<String> {
    let begin = text
        .find("    kubernetes_sd_configs:")
        .context("no kubernetes_sd_configs")?;
    let end = text.find("    relabel_configs:").context("no relabel_configs")?;
    ensure!(begin < end, "relabel_configs before kubernetes_sd_configs");
    Ok(format!("{}{}", &text[..begin], &text[end..]))
}

/// Writes the image, and runs containers of it.
fn run_image(workspace: &Workspace) -> Result<bool> {
    let folder = workspace.target().join("xtask/image");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let options = image::Options {
        folder,
        check: true,
        ..image::Options::default()
    };
    image::run(workspace, &options).map(|()| true)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn a_part_is_selected_by_a_text_in_its_name() {
        assert_eq!(selected(None).unwrap().len(), PARTS.len());
        let names: Vec<_> = selected(Some("hel"))
            .unwrap()
            .iter()
            .map(|part| part.name)
            .collect();
        assert_eq!(names, ["helm"]);
        let error = selected(Some("hull")).err().unwrap().to_string();
        assert!(
            error.contains("no part has `hull` in its name; known: "),
            "{error}"
        );
        assert!(error.contains("helm"), "{error}");
    }

    #[test]
    fn only_neighbours_has_nothing_for_a_mode() {
        let parts = |mode| {
            let parts = PARTS.iter().filter(move |part| !(part.has_mode)(mode));
            parts.map(|part| part.name).collect::<Vec<_>>()
        };
        assert_eq!(parts(e2e::Mode::Ipvs), ["neighbours"]);
        for mode in [e2e::Mode::Nftables, e2e::Mode::Iptables] {
            assert!(parts(mode).is_empty(), "{mode:?}");
        }
    }

    #[test]
    fn the_discovery_of_targets_is_left_out() {
        let text = "a:\n  - b: c\n    kubernetes_sd_configs:\n      - d\n    relabel_configs:\n      - e\n";
        let expected = "a:\n  - b: c\n    relabel_configs:\n      - e\n";
        assert_eq!(without_discovery(text).unwrap(), expected);
        assert!(without_discovery(expected).is_err());
    }

    #[test]
    fn each_part_is_in_the_table_of_contributing() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
        let table = text.split("\n## What CI does not run\n").nth(1).unwrap();
        let table = table.split("\n#").next().unwrap();
        let documented: Vec<_> = table
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        let parts: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        assert_eq!(documented, parts);
    }
}
