//! helm, and the custom resources of the Prometheus Operator, from their Go modules.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{
    kubernetes,
    retry::retry,
    step,
    workspace::{Workspace, output},
};

/// The version that is built.
const VERSION: &str = "4.3.1";
/// The version of the Prometheus Operator whose custom resources the objects must fit.
const OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator@v0.85.0";

/// helm, which is built below the target folder if it is missing.
pub(crate) fn program(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join(format!("tools/helm-{VERSION}"));
    let file = folder.join("helm");
    if file.is_file() {
        return Ok(file);
    }
    let go = kubernetes::go().with_context(|| {
        format!("helm {VERSION} is built with Go 1.26 or later, which is missing: install it")
    })?;
    eprintln!("xtask: building helm {VERSION}, which takes several minutes");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    // The file has its name only when it is complete.
    let build = folder.join("build");
    retry("building helm", || {
        step::succeed_in_group(
            Command::new(&go)
                .current_dir(&folder)
                .envs([("CGO_ENABLED", "0"), ("GO111MODULE", "on"), ("GOFLAGS", "")])
                .env("GOBIN", &build)
                .args(["install", "-ldflags", "-s -w"])
                .arg(format!("helm.sh/helm/v4/cmd/helm@v{VERSION}")),
        )
    })?;
    fs::rename(build.join("helm"), &file).with_context(|| format!("renaming {}", file.display()))?;
    Ok(file)
}

/// The folder with the definitions of the custom resources `PodMonitor` and `PrometheusRule`.
pub(crate) fn custom_resources() -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Download {
        #[serde(rename = "Dir")]
        sources: PathBuf,
    }
    let go = kubernetes::go().context("Go 1.26 or later is missing: install it")?;
    let json = retry("downloading the Prometheus Operator", || {
        output(
            Command::new(&go)
                .current_dir("/")
                .env("GO111MODULE", "on")
                .args(["mod", "download", "-json", OPERATOR]),
        )
    })?;
    let download: Download = serde_json::from_str(&json).with_context(|| format!("reading {json:?}"))?;
    let folder = download.sources.join("example/prometheus-operator-crd");
    ensure!(folder.is_dir(), "{OPERATOR} has no folder {}", folder.display());
    Ok(folder)
}
