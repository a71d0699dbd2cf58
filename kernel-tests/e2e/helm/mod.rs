//! The Helm chart in `dist/helm`, with the real helm: `cargo xtask verify helm`.

mod accepted;
mod lifecycle;
mod rendered;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kernlink_kernel_tests::programs;
use serde_json::Value;

use crate::dist;
use crate::support::{Manifests, text};

/// The image of all tests, which no node pulls.
const IMAGE: [&str; 4] = [
    "--set",
    "image.repository=REGISTRY/kernlink-agent",
    "--set",
    "image.tag=VERSION",
];
/// The name of the release.
const RELEASE: &str = "kernlink";
/// Settings that render each template.
const EVERYTHING: &str = "podMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,metrics.bindAddress=0.0.0.0:10249";

fn chart() -> PathBuf {
    dist::path("helm/kernlink")
}

/// helm, with a folder of its own for its files.
struct Helm {
    folder: Manifests,
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// Without a cluster.
    fn new() -> Self {
        Self {
            folder: Manifests::new(),
            kubeconfig: None,
        }
    }

    fn with_cluster(kubeconfig: &Path) -> Self {
        Self {
            kubeconfig: Some(kubeconfig.to_owned()),
            ..Self::new()
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = programs::from_variable("KERNLINK_HELM");
        command
            .env("HOME", &self.folder.0)
            .env("HELM_CACHE_HOME", self.folder.0.join("cache"))
            .env("HELM_CONFIG_HOME", self.folder.0.join("config"))
            .env("HELM_DATA_HOME", self.folder.0.join("data"))
            // A cluster of the user must not be asked.
            .env(
                "KUBECONFIG",
                self.kubeconfig.as_deref().unwrap_or(Path::new("/dev/null")),
            )
            .args(arguments);
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The standard output of a command that must succeed.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "helm {arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command that must fail printed.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(!output.status.success(), "helm {arguments:?}: {}", text(&output));
        text(&output)
    }

    /// The command line of `template` with these settings, in the form of `--set`, and further arguments.
    fn template<'a>(chart: &'a str, settings: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec!["template", RELEASE, chart, "--namespace", "kube-system"];
        arguments.extend(IMAGE);
        if !settings.is_empty() {
            arguments.extend(["--set", settings]);
        }
        arguments.extend(more);
        arguments
    }

    /// The objects of the chart with these settings.
    fn render(&self, settings: &str) -> Vec<Value> {
        let chart = chart();
        let chart = chart.to_str().unwrap();
        documents(&self.run(&Self::template(chart, settings, &[])))
    }
}

/// The documents of a stream of YAML.
fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n").map(dist::yaml);
    documents.filter(Value::is_object).collect()
}

/// The only object of a kind.
fn of_kind(objects: &[Value], kind: &str) -> Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("no {kind} in {objects:?}"));
    assert!(found.next().is_none(), "{kind}");
    object.clone()
}
