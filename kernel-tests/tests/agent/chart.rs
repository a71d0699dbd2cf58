//! What the Helm chart in `dist/helm` says twice is equal. `cargo xtask verify helm` renders it.

use std::collections::BTreeSet;
use std::fs;

use kernlink_kernel_tests::programs;
use regex::Regex;
use serde_json::Value;

use crate::dist::{path, read, yaml};

const CHART: &str = "helm/kernlink";

/// The names of the values, with those below them.
fn names(value: &Value, prefix: &str, names: &mut BTreeSet<String>) {
    for (name, below) in value.as_object().into_iter().flatten() {
        let name = format!("{prefix}{name}");
        self::names(below, &format!("{name}."), names);
        names.insert(name);
    }
}

/// The names of the values that the schema permits. Objects with any fields have none below them.
fn permitted(schema: &Value, prefix: &str, names: &mut BTreeSet<String>) {
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        let name = format!("{prefix}{name}");
        permitted(below, &format!("{name}."), names);
        names.insert(name);
    }
}

#[test]
fn the_chart_has_the_files_of_dist_and_no_copies() {
    let mut links = BTreeSet::new();
    for entry in fs::read_dir(path(CHART).join("files")).unwrap() {
        let entry = entry.unwrap();
        let target = fs::read_link(entry.path()).unwrap();
        let file = fs::canonicalize(entry.path()).unwrap();
        let folder = fs::canonicalize(path("")).unwrap();
        assert_eq!(target.file_name().unwrap(), entry.file_name());
        links.insert(file.strip_prefix(folder).unwrap().display().to_string());
    }
    let expected = [
        "grafana/kernlink.json",
        "kubernetes/daemonset.yaml",
        "kubernetes/rbac.yaml",
        "prometheus/kernlink.rules.yaml",
        "prometheus/scrape.yaml",
    ];
    assert_eq!(links, expected.map(str::to_owned).into());
}

#[test]
fn the_version_of_the_chart_is_that_of_the_agent() {
    let chart = read("helm/kernlink/Chart.yaml");
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_default_values_are_those_of_the_daemonset() {
    let values = read("helm/kernlink/values.yaml");
    let manifest = read("kubernetes/daemonset.yaml");
    let pod = &manifest["spec"]["template"]["spec"];
    for name in ["nodeSelector", "tolerations", "priorityClassName"] {
        assert_eq!(values[name], pod[name], "{name}");
    }
    assert_eq!(values["resources"], pod["containers"][0]["resources"]);
    let rolling = &manifest["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(values["maxUnavailable"], rolling["maxUnavailable"]);
    let config = pod["volumes"].as_array().unwrap().iter();
    let config = config.clone().find(|volume| volume["name"] == "config").unwrap();
    assert_eq!(
        values["configuration"]["existingConfigMap"],
        config["configMap"]["name"]
    );
}

#[test]
fn the_schema_has_each_value_and_no_other() {
    let schema = fs::read_to_string(path(CHART).join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let values = yaml(&fs::read_to_string(path(CHART).join("values.yaml")).unwrap());
    let (mut documented, mut allowed) = (BTreeSet::new(), BTreeSet::new());
    names(&values, "", &mut documented);
    permitted(&schema, "", &mut allowed);
    // Values of a parent chart, and fields with a form of their own in an object with any fields.
    allowed.retain(|name| name != "global" && !name.starts_with("configuration.fields."));
    // Objects with any fields.
    let open = ["nodeSelector.", "resources.", "dashboard.labels."];
    documented.retain(|name| !open.iter().any(|prefix| name.starts_with(prefix)));
    assert_eq!(documented, allowed);
}

#[test]
fn the_schema_permits_the_addresses_of_servers_that_the_agent_accepts() {
    let schema = fs::read_to_string(path(CHART).join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let pattern = &schema["definitions"]["address"]["pattern"];
    let pattern = Regex::new(pattern.as_str().unwrap()).unwrap();
    for address in [
        "",
        "none",
        "0.0.0.0",
        "0.0.0.0:10256",
        "0.0.0.0:",
        "0.0.0.0:0",
        "::",
        "::1",
        "fd00:1:2:3:4:5:6:7",
        "::ffff:192.0.2.7",
        "[::]:10249",
        "[fd00::1]:80",
        "::1:10256",
        "[::1]",
        ":10256",
        "10256",
        "localhost",
        "localhost:80",
        "everywhere",
    ] {
        let mut agent = programs::agent();
        agent.args(["--watch", "/m", "--node-name", "n", "--print-config"]);
        let output = agent.arg(format!("--healthz-bind-address={address}")).output();
        let is_accepted = output.unwrap().status.success();
        assert_eq!(pattern.is_match(address), is_accepted, "{address:?}");
    }
}
