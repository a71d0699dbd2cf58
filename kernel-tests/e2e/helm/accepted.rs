//! Whether a real API server accepts the objects of the chart.

use std::{env, fs, path::Path};

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::wait;
use serde_json::{Value, json};

use super::{EVERYTHING, Helm};
use crate::cluster::Cluster;

/// The path to which objects of this kind are posted.
pub(super) fn collection(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str();
    let version = object["apiVersion"].as_str().unwrap();
    let api = if version.contains('/') { "apis" } else { "api" };
    let name = object["kind"].as_str().unwrap().to_lowercase() + "s";
    match namespace {
        Some(namespace) => format!("/{api}/{version}/namespaces/{namespace}/{name}"),
        None => format!("/{api}/{version}/{name}"),
    }
}

/// Creates the definitions of the custom resources of the Prometheus Operator.
pub(super) fn create_custom_resources(cluster: &Cluster) {
    let folder = env::var("KERNLINK_PROMETHEUS_OPERATOR").unwrap();
    for name in ["podmonitors", "prometheusrules"] {
        let file = Path::new(&folder).join(format!("monitoring.coreos.com_{name}.yaml"));
        let text = fs::read_to_string(file).unwrap();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        cluster.requests().send("POST", path, "application/yaml", &text);
        let path = format!("/apis/monitoring.coreos.com/v1/{name}");
        wait::until(|| {
            let answer = cluster.requests().request("GET", &path, "text/plain", "")?;
            if answer.ends_with("200") {
                Ok(())
            } else {
                Err(answer)
            }
        });
    }
}

/// The answer of the API server to the creation of an object, which it does not store. It refuses fields that it does not have.
fn dry_run(cluster: &Cluster, object: &Value) -> String {
    let path = format!("{}?dryRun=All&fieldValidation=Strict", collection(object));
    let answer = cluster
        .requests()
        .request("POST", &path, "application/json", &object.to_string());
    answer.unwrap()
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn an_api_server_accepts_the_objects_of_all_settings() {
    NetNs::new().run(|| {
        let cluster = Cluster::start_without_objects();
        create_custom_resources(&cluster);
        let helm = Helm::new();
        let mut kinds = Vec::new();
        for settings in [
            "",
            "mode=nftables",
            "mode=iptables",
            "mode=ipvs",
            "mode=userspace",
            EVERYTHING,
            "podMonitor.enabled=true,podMonitor.interval=30s,metrics.bindAddress=[::]:10249,podMonitor.labels.release=a",
            "configuration.create=true,configuration.apiServer=https://192.0.2.1:6443,configuration.fields.mode=nftables",
            "healthz.bindAddress=127.0.0.1:10256,initContainer.enabled=false,maxUnavailable=1",
            "healthz.bindAddress=none,priorityClassName=,imagePullSecrets[0].name=a,podAnnotations.a=b,podLabels.c=d",
            "image.pullPolicy=Always,nodeSelector.kernlink\\.io/proxy=null,resources=null,tolerations=null",
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]\
             .matchExpressions[0].key=a,affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution\
             .nodeSelectorTerms[0].matchExpressions[0].operator=Exists",
        ] {
            for object in helm.render(settings) {
                let answer = dry_run(&cluster, &object);
                assert!(answer.ends_with("201"), "{settings}: {object}: {answer}");
                kinds.push(object["kind"].as_str().unwrap().to_owned());
            }
        }
        println!("accepted: {} objects", kinds.len());
        kinds.sort();
        kinds.dedup();
        assert_eq!(
            kinds,
            [
                "ClusterRole",
                "ClusterRoleBinding",
                "ConfigMap",
                "DaemonSet",
                "PodMonitor",
                "PrometheusRule",
                "Role",
                "RoleBinding",
                "ServiceAccount"
            ]
        );
        // The server would refuse an object that is wrong.
        let mut wrong = helm.render("").into_iter().find(|object| object["kind"] == "DaemonSet").unwrap();
        wrong["spec"]["template"]["spec"]["hostNetworks"] = json!(true);
        let answer = dry_run(&cluster, &wrong);
        assert!(answer.contains("hostNetworks") && answer.ends_with("400"), "{answer}");
    });
}
