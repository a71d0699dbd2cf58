//! The chart installed, upgraded, rolled back and removed by helm on a real API server. There is no kubelet and no controller: these are the objects
//! only.

use std::fs;

use kernlink_kernel_tests::netns::NetNs;
use serde_json::{Value, json};

use super::accepted::{collection, create_custom_resources};
use super::{EVERYTHING, Helm, IMAGE, RELEASE, chart};
use crate::cluster::Cluster;
use crate::dist::{self, daemonset};

const CONFIG_MAP: &str = "/api/v1/namespaces/kube-system/configmaps/kube-proxy";
const DAEMONSET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/kernlink-agent";
const ANNOTATION: &str = "/spec/template/metadata/annotations/kernlink.io~1configuration";

fn create_config_map(cluster: &Cluster) {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "data": {"config.conf": "mode: iptables", "kubeconfig.conf": "{}"},
    });
    create(cluster, &object);
}

fn create(cluster: &Cluster, object: &Value) {
    let requests = cluster.requests();
    requests.send(
        "POST",
        &collection(object),
        "application/json",
        &object.to_string(),
    );
}

fn get(cluster: &Cluster, path: &str) -> Value {
    serde_json::from_str(&cluster.get(path)).unwrap()
}

/// How often the pods of the DaemonSet changed, and its pods.
fn pods(cluster: &Cluster) -> (u64, Value) {
    let daemonset = get(cluster, DAEMONSET);
    (
        daemonset["metadata"]["generation"].as_u64().unwrap(),
        daemonset["spec"]["template"].clone(),
    )
}

/// The names of the objects of a release, of all kinds that a chart can have.
fn objects_of_release(cluster: &Cluster) -> Vec<String> {
    let mut names = Vec::new();
    for kind in [
        "/api/v1/serviceaccounts",
        "/api/v1/configmaps",
        "/apis/apps/v1/daemonsets",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/rbac.authorization.k8s.io/v1/roles",
        "/apis/rbac.authorization.k8s.io/v1/rolebindings",
        "/apis/monitoring.coreos.com/v1/podmonitors",
        "/apis/monitoring.coreos.com/v1/prometheusrules",
    ] {
        let selector = format!("{kind}?labelSelector=app.kubernetes.io%2Finstance%3D{RELEASE}");
        let list = get(cluster, &selector);
        for item in list["items"].as_array().unwrap() {
            let name = item["metadata"]["name"].as_str().unwrap();
            names.push(format!("{}/{name}", kind.rsplit('/').next().unwrap()));
        }
    }
    names
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn a_release_is_installed_upgraded_rolled_back_and_removed() {
    NetNs::new().run(|| {
        let cluster = Cluster::start_without_objects();
        create_custom_resources(&cluster);
        create_config_map(&cluster);
        let helm = Helm::with_cluster(&cluster.admin_kubeconfig());
        let chart = chart();
        let of_chart = |verb: &str, settings: &str| {
            let mut arguments = vec![
                verb,
                RELEASE,
                chart.to_str().unwrap(),
                "--namespace",
                "kube-system",
            ];
            arguments.extend(IMAGE);
            arguments.extend(["--set", settings]);
            let printed = helm.run(&arguments);
            println!("helm {verb}: {}", printed.lines().next().unwrap_or_default());
            printed
        };

        let printed = of_chart("install", EVERYTHING);
        assert!(
            printed.contains("kubectl label node NODE kernlink.io/proxy=true"),
            "{printed}"
        );
        assert!(!printed.contains("was not found"), "{printed}");
        assert_eq!(
            objects_of_release(&cluster),
            [
                "serviceaccounts/kernlink-agent",
                "configmaps/kernlink-agent-dashboard",
                "daemonsets/kernlink-agent",
                "clusterroles/kernlink-agent",
                "clusterrolebindings/kernlink-agent",
                "roles/kernlink-agent",
                "rolebindings/kernlink-agent",
                "podmonitors/kernlink-agent",
                "prometheusrules/kernlink-agent"
            ]
        );
        let (generation, installed) = pods(&cluster);
        assert_eq!(generation, 1);
        let checksum = get(&cluster, DAEMONSET).pointer(ANNOTATION).cloned().unwrap();
        assert_eq!(checksum.as_str().unwrap().len(), 64);

        // Without a change nothing restarts.
        of_chart("upgrade", EVERYTHING);
        assert_eq!(pods(&cluster), (1, installed.clone()));

        // A change of the ConfigMap, which is not part of the release, restarts the agents.
        let patch = json!({"data": {"config.conf": "mode: nftables"}}).to_string();
        cluster
            .requests()
            .send("PATCH", CONFIG_MAP, "application/merge-patch+json", &patch);
        assert_eq!(pods(&cluster).0, 1, "not by the change itself");
        of_chart("upgrade", EVERYTHING);
        let (generation, mut changed) = pods(&cluster);
        assert_eq!(generation, 2);
        assert_ne!(get(&cluster, DAEMONSET).pointer(ANNOTATION), Some(&checksum));
        changed["metadata"]["annotations"] = installed["metadata"]["annotations"].clone();
        assert_eq!(changed, installed, "nothing else changed");

        // A mode, and no PodMonitor any more.
        of_chart("upgrade", "mode=userspace");
        let (generation, changed) = pods(&cluster);
        assert_eq!(generation, 3);
        assert!(changed["spec"].get("initContainers").is_none(), "{changed}");
        let arguments = changed["spec"]["containers"][0]["args"].as_array().unwrap();
        assert!(arguments.contains(&json!("--proxy-mode=userspace")), "{changed}");
        assert!(
            !objects_of_release(&cluster)
                .iter()
                .any(|name| name.contains("monitor"))
        );

        // The pods are those of the first revision, with the sum of the ConfigMap of that time.
        helm.run(&["rollback", RELEASE, "1", "--namespace", "kube-system"]);
        assert_eq!(pods(&cluster), (4, installed));
        assert_eq!(objects_of_release(&cluster).len(), 9);

        helm.run(&["uninstall", RELEASE, "--namespace", "kube-system"]);
        assert_eq!(objects_of_release(&cluster), [""; 0]);
        // What kubeadm created stays.
        assert_eq!(get(&cluster, CONFIG_MAP)["data"]["config.conf"], "mode: nftables");
    });
}

#[test]
#[ignore = "needs helm: cargo xtask verify helm"]
fn a_release_takes_over_what_the_kustomization_created() {
    NetNs::new().run(|| {
        let cluster = Cluster::start_without_objects();
        create_config_map(&cluster);
        let rbac = fs::read_to_string(dist::path("kubernetes/rbac.yaml")).unwrap();
        for object in super::documents(&rbac) {
            create(&cluster, &object);
        }
        create(&cluster, &daemonset(&["nftables"]));
        let (_, pods_before) = pods(&cluster);
        let id = get(&cluster, DAEMONSET)["metadata"]["uid"].clone();

        let helm = Helm::with_cluster(&cluster.admin_kubeconfig());
        let chart = chart();
        let mut install = vec![
            "install",
            RELEASE,
            chart.to_str().unwrap(),
            "--namespace",
            "kube-system",
        ];
        install.extend(IMAGE);
        install.extend(["--set", "mode=nftables"]);
        let printed = helm.refused(&install);
        assert!(
            printed.contains("cannot be imported into the current release"),
            "{printed}"
        );
        assert_eq!(pods(&cluster), (1, pods_before.clone()), "nothing changed");
        assert!(
            helm.run(&["list", "--namespace", "kube-system", "--short"])
                .trim()
                .is_empty()
        );

        install.extend(["--take-ownership", "--force-conflicts"]);
        helm.run(&install);
        // It is the same object, whose pods differ in the sum of the configuration only.
        assert_eq!(get(&cluster, DAEMONSET)["metadata"]["uid"], id);
        let (_, mut pods_after) = pods(&cluster);
        let annotations = pods_after["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("annotations");
        assert!(annotations.is_some());
        assert_eq!(pods_after, pods_before);
    });
}
