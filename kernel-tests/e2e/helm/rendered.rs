//! What the chart renders, without a cluster.

use std::fs;

use serde_json::{Value, json};

use super::{EVERYTHING, Helm, IMAGE, RELEASE, chart, documents, of_kind};
use crate::dist::{self, arguments, daemonset};
use crate::support::{Manifests, text};

const AGENT: &str = "/spec/template/spec/containers/0/args";
const INIT: &str = "/spec/template/spec/initContainers/0/args";
/// The labels that only objects of a chart have.
const LABELS: [&str; 5] = [
    "helm.sh/chart",
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
];

/// The object without the labels of the chart, all of which it must have.
fn without_labels(mut object: Value) -> Value {
    let labels = object["metadata"]["labels"].as_object_mut().unwrap();
    for label in LABELS {
        assert!(labels.remove(label).is_some(), "{label} in {labels:?}");
    }
    if labels.is_empty() {
        object["metadata"].as_object_mut().unwrap().remove("labels");
    }
    object
}

/// In an order that does not depend on the templates.
fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    objects.sort_by_key(|object| (object["kind"].to_string(), object["metadata"]["name"].to_string()));
    objects
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn the_chart_is_without_faults_for_helm() {
    let helm = Helm::new();
    let chart = chart();
    let lint = ["lint", "--strict", chart.to_str().unwrap()];
    let printed = helm.run(&[&lint[..], &IMAGE, &["--namespace", "kube-system"]].concat());
    assert!(printed.contains("0 chart(s) failed"), "{printed}");
    helm.run(
        &[
            &lint[..],
            &IMAGE,
            &["--namespace", "kube-system", "--set", EVERYTHING],
        ]
        .concat(),
    );
    // The archive has the files themselves, not links.
    let package = helm.folder.0.join("package");
    helm.run(&[
        "package",
        chart.to_str().unwrap(),
        "--destination",
        package.to_str().unwrap(),
    ]);
    let archive = fs::read_dir(&package).unwrap().next().unwrap().unwrap().path();
    let template = Helm::template(archive.to_str().unwrap(), EVERYTHING, &[]);
    assert_eq!(documents(&helm.run(&template)), helm.render(EVERYTHING));
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn the_objects_are_those_of_the_kustomization() {
    let helm = Helm::new();
    let rbac = fs::read_to_string(dist::path("kubernetes/rbac.yaml")).unwrap();
    for (settings, components) in [
        ("", &[][..]),
        ("mode=nftables", &["nftables"]),
        ("mode=userspace", &["userspace"]),
        ("metrics.bindAddress=0.0.0.0:10249", &["metrics"]),
        ("healthz.bindAddress=127.0.0.1:10256", &["healthz-loopback"]),
        ("healthz.bindAddress=none", &["without-healthz"]),
        ("initContainer.enabled=false", &["without-init-container"]),
        (
            "mode=nftables,healthz.bindAddress=127.0.0.1:10256,metrics.bindAddress=0.0.0.0:10249,initContainer.enabled=false",
            &[
                "nftables",
                "healthz-loopback",
                "metrics",
                "without-init-container",
            ],
        ),
    ] {
        let rendered = helm.render(settings).into_iter().map(without_labels).collect();
        let mut expected = documents(&rbac);
        expected.push(daemonset(components));
        assert_eq!(sorted(rendered), sorted(expected), "{settings}");
    }
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn the_agent_accepts_the_arguments_and_the_configuration_of_each_mode() {
    let helm = Helm::new();
    for mode in ["nftables", "iptables", "ipvs", "userspace"] {
        // By the flag, and by the configuration.
        for field in ["mode", "configuration.fields.mode"] {
            let settings = format!(
                "{field}={mode},configuration.create=true,configuration.apiServer=https://192.0.2.1:6443,\
                 configuration.fields.conntrack.min=1000000,configuration.fields.healthzBindAddress=[::1]:1256,\
                 extraArgs[0]=--node-ip=192.0.2.7"
            );
            let objects = helm.render(&settings);
            let files = Manifests::new();
            let config = of_kind(&objects, "ConfigMap");
            for (name, text) in config["data"].as_object().unwrap() {
                files.replace(name, text.as_str().unwrap());
            }
            let manifest = of_kind(&objects, "DaemonSet");
            assert_eq!(
                manifest.pointer(INIT).is_some(),
                mode != "userspace",
                "{settings}"
            );
            let capabilities =
                &manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"];
            let binds = capabilities["add"]
                .as_array()
                .unwrap()
                .contains(&json!("NET_BIND_SERVICE"));
            assert_eq!(binds, mode == "userspace", "{settings}");
            for pointer in [AGENT, INIT] {
                if manifest.pointer(pointer).is_none() {
                    continue;
                }
                let mut arguments = arguments(&manifest, pointer, &files.0);
                arguments.retain(|argument| argument != "--init-only");
                let mut agent = kernlink_kernel_tests::programs::from_variable("KERNLINK_E2E_AGENT");
                let output = agent.args(arguments).arg("--print-config").output().unwrap();
                assert!(output.status.success(), "{settings}: {}", text(&output));
                let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(printed["mode"], mode, "{settings}");
                assert_eq!(printed["healthzBindAddress"], "[::1]:1256", "{settings}");
                assert_eq!(printed["conntrack"]["min"], 1_000_000, "{printed}");
            }
            let get = &manifest["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"];
            assert_eq!(
                get,
                &json!({"path": "/livez", "host": "::1", "port": 1256}),
                "{settings}"
            );
        }
    }
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn an_address_without_a_port_has_the_default_one() {
    let helm = Helm::new();
    let create = "configuration.create=true,configuration.apiServer=https://192.0.2.1:6443";
    for (address, host) in [
        ("0.0.0.0", None),
        ("192.0.2.7", Some("192.0.2.7")),
        ("::", None),
        ("fd00::1", Some("fd00::1")),
    ] {
        for field in ["healthz.bindAddress", "configuration.fields.healthzBindAddress"] {
            let objects = helm.render(&format!(
                "{create},{field}={address},{EVERYTHING},metrics.bindAddress={address}"
            ));
            let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
            for probe in ["livenessProbe", "readinessProbe"] {
                let get = &pod["containers"][0][probe]["httpGet"];
                assert_eq!(get["port"], 10256, "{field}={address}");
                assert_eq!(
                    get.get("host"),
                    host.map(|host| json!(host)).as_ref(),
                    "{field}={address}"
                );
            }
            let monitor = of_kind(&objects, "PodMonitor").to_string();
            assert!(monitor.contains(":10249"), "{address}: {monitor}");
        }
    }
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn the_rules_and_the_job_of_prometheus_are_those_of_dist() {
    let objects = Helm::new().render(&format!("{EVERYTHING},metrics.bindAddress=0.0.0.0:9999"));
    let rules = of_kind(&objects, "PrometheusRule");
    assert_eq!(
        rules["spec"]["groups"],
        dist::read("prometheus/kernlink.rules.yaml")["groups"]
    );
    let dashboard: Vec<_> = objects
        .iter()
        .filter_map(|object| object["data"]["kernlink.json"].as_str())
        .collect();
    let expected = fs::read_to_string(dist::path("grafana/kernlink.json")).unwrap();
    assert_eq!(dashboard, [expected]);

    let job = &dist::read("prometheus/scrape.yaml")["scrape_configs"][0];
    let monitor = of_kind(&objects, "PodMonitor");
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"];
    // The label `job` is the value of the label `app` of the pods.
    assert_eq!(monitor["spec"]["jobLabel"], "app");
    assert_eq!(pod["metadata"]["labels"]["app"], job["job_name"]);
    assert_eq!(
        monitor["spec"]["selector"]["matchLabels"],
        json!({"app": job["job_name"]})
    );
    let rules = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
        .as_array()
        .unwrap();
    let expected = job["relabel_configs"].as_array().unwrap();
    assert_eq!(rules.len(), expected.len());
    for (rule, expected) in rules.iter().zip(expected) {
        let replacement = expected.get("replacement").map(|text| text.as_str().unwrap());
        assert_eq!(rule["sourceLabels"], expected["source_labels"]);
        assert_eq!(rule.get("targetLabel"), expected.get("target_label"));
        assert_eq!(rule.get("regex"), expected.get("regex"));
        assert_eq!(
            rule["action"],
            expected.get("action").cloned().unwrap_or(json!("replace"))
        );
        assert_eq!(
            rule.get("replacement").cloned(),
            replacement.map(|text| json!(text.replace("10249", "9999")))
        );
    }
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn invalid_values_are_refused_with_a_message() {
    let helm = Helm::new();
    let chart = chart();
    let chart = chart.to_str().unwrap();
    for (settings, expected) in [
        ("mode=ebpf", "value must be one of"),
        ("mod=ipvs", "additional properties 'mod' not allowed"),
        ("image.name=a", "additional properties 'name' not allowed"),
        ("maxUnavailable=0", "at '/maxUnavailable'"),
        ("maxUnavailable=0%", "at '/maxUnavailable'"),
        ("maxUnavailable=101%", "at '/maxUnavailable'"),
        ("metrics.bindAddress=everywhere", "at '/metrics/bindAddress'"),
        ("metrics.bindAddress=0.0.0.0:", "at '/metrics/bindAddress'"),
        ("healthz.bindAddress=::1:10256", "at '/healthz/bindAddress'"),
        ("extraArgs[0]=proxy-mode", "at '/extraArgs/0'"),
        ("image.digest=sha256:12", "at '/image/digest'"),
        ("podMonitor.interval=fast", "at '/podMonitor/interval'"),
        (
            "configuration.create=true,configuration.apiServer=http://a",
            "at '/configuration/apiServer'",
        ),
        (
            "configuration.create=true,configuration.apiServer=https://a,configuration.fields.kind=Pod",
            "at '/configuration/fields/kind'",
        ),
        ("configuration.create=true", "configuration.apiServer is missing"),
        (
            "configuration.fields.mode=ipvs",
            "are for configuration.create=true",
        ),
        (
            "configuration.existingConfigMap=",
            "configuration.existingConfigMap is empty",
        ),
        (
            "podMonitor.enabled=true",
            "does not reach a metrics server at `127.0.0.1:10249`",
        ),
        (
            "podMonitor.enabled=true,metrics.bindAddress=127.0.0.1:1",
            "does not reach a metrics server at `127.0.0.1:1`",
        ),
        (
            "podMonitor.enabled=true,metrics.bindAddress=::1",
            "does not reach a metrics server at `[::1]:10249`",
        ),
        (
            "podMonitor.enabled=true,metrics.bindAddress=none",
            "does not reach a metrics server at `none`",
        ),
        ("image.repository=", "image.repository is missing"),
    ] {
        let printed = helm.refused(&Helm::template(chart, settings, &[]));
        assert!(printed.contains(expected), "{settings}: {printed}");
    }
    let elsewhere = ["template", RELEASE, chart, "--namespace", "other"];
    let printed = helm.refused(&[&elsewhere[..], &IMAGE].concat());
    assert!(
        printed.contains("kube-proxy is in the namespace kube-system, and the release in other"),
        "{printed}"
    );
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn the_pods_change_if_and_only_if_the_configuration_of_the_chart_does() {
    let helm = Helm::new();
    let create = "configuration.create=true,configuration.apiServer=https://192.0.2.1:6443";
    let template = |settings: &str| {
        let objects = helm.render(settings);
        of_kind(&objects, "DaemonSet")["spec"]["template"].clone()
    };
    let annotation =
        |template: &Value| template["metadata"]["annotations"]["kernlink.io/configuration"].clone();
    let first = template(create);
    assert_eq!(annotation(&first).as_str().unwrap().len(), 64);
    assert_eq!(template(create), first);
    // What is not configuration does not restart the agents.
    assert_eq!(
        template(
            &format!("{create},{EVERYTHING},metrics.bindAddress=").replace("podMonitor.enabled=true,", "")
        ),
        first
    );
    let mut changed = template(&format!("{create},configuration.fields.iptables.syncPeriod=10s"));
    assert_ne!(annotation(&changed), annotation(&first));
    changed["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
    assert_eq!(changed, first);
}
