//! The kustomization in `dist/kubernetes` has all manifests, and its components fit them.

use std::fs;
use std::path::{Path, PathBuf};

use kernlink_kernel_tests::programs;
use serde_json::Value;

use crate::support::{Manifests, text};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/kubernetes")
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn read(path: &str) -> Value {
    yaml(&fs::read_to_string(folder().join(path)).unwrap())
}

fn array(value: &Value) -> Vec<Value> {
    value.as_array().unwrap().clone()
}

/// The DaemonSet with these components, in order.
fn daemonset(components: &[&str]) -> Value {
    let mut manifest = read("daemonset.yaml");
    for component in components {
        let component = read(&format!("components/{component}/kustomization.yaml"));
        assert_eq!(component["kind"], "Component");
        for patch in array(&component["patches"]) {
            for field in ["kind", "name"] {
                let of_manifest = manifest.pointer(if field == "kind" {
                    "/kind"
                } else {
                    "/metadata/name"
                });
                assert_eq!(patch["target"].get(field), of_manifest);
            }
            for operation in array(&yaml(patch["patch"].as_str().unwrap())) {
                apply(&operation, &mut manifest);
            }
        }
    }
    manifest
}

/// An operation of a JSON patch. Panics if it does not fit.
fn apply(operation: &Value, manifest: &mut Value) {
    let (parent, name) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
    let target = manifest.pointer_mut(parent).unwrap();
    match operation["op"].as_str().unwrap() {
        "add" if name == "-" => target.as_array_mut().unwrap().push(operation["value"].clone()),
        "remove" => {
            let removed = target.as_object_mut().unwrap().remove(name);
            assert!(removed.is_some(), "{operation}");
        }
        other => panic!("{other} is not used"),
    }
}

/// The arguments of a container, with the files of this folder.
fn arguments(manifest: &Value, pointer: &str, files: &Path) -> Vec<String> {
    let arguments = array(manifest.pointer(pointer).unwrap());
    let arguments = arguments.iter().map(|argument| argument.as_str().unwrap());
    arguments
        .map(|argument| {
            let argument = argument.replace("/etc/kube-proxy", &files.display().to_string());
            argument.replace("$(NODE_NAME)", "node-a")
        })
        .collect()
}

#[test]
fn the_kustomization_names_every_manifest() {
    let mut files: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml")
        .collect();
    files.sort();
    let mut resources: Vec<String> = array(&read("kustomization.yaml")["resources"])
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    resources.sort();
    assert_eq!(resources, files);
}

#[test]
fn the_components_fit_the_daemonset_and_the_agent_accepts_their_arguments() {
    let files = Manifests::new();
    let config = "{\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\", \"kind\": \"KubeProxyConfiguration\", \"mode\": \"iptables\"}";
    files.replace("config.conf", config);
    files.replace("kubeconfig.conf", "{}");
    let of_agent = "/spec/template/spec/containers/0/args";
    let of_init = "/spec/template/spec/initContainers/0/args";
    let capabilities = "/spec/template/spec/containers/0/securityContext/capabilities/add";
    let configuration = |manifest: &Value, pointer: &str| -> Value {
        let mut arguments = arguments(manifest, pointer, &files.0);
        let length = arguments.len();
        arguments.retain(|argument| argument != "--init-only");
        assert_eq!(
            length - arguments.len(),
            usize::from(pointer == of_init),
            "{pointer}"
        );
        let output = programs::agent().args(arguments).arg("--print-config").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let mut tried = Vec::new();
    for (components, mode, has_init, metrics) in [
        (&[][..], "iptables", true, "127.0.0.1:10249"),
        (&["nftables"], "nftables", true, "127.0.0.1:10249"),
        (&["userspace"], "userspace", false, "127.0.0.1:10249"),
        (&["metrics"], "iptables", true, "0.0.0.0:10249"),
        (
            &["nftables", "metrics", "without-init-container"],
            "nftables",
            false,
            "0.0.0.0:10249",
        ),
    ] {
        let manifest = daemonset(components);
        let agent = configuration(&manifest, of_agent);
        assert_eq!(agent["mode"], mode, "{components:?}");
        assert_eq!(agent["metricsBindAddress"], metrics, "{components:?}");
        assert_eq!(manifest.pointer(of_init).is_some(), has_init, "{components:?}");
        // Both containers program the node in the same mode.
        if has_init {
            assert_eq!(configuration(&manifest, of_init)["mode"], mode, "{components:?}");
        }
        let binds = array(manifest.pointer(capabilities).unwrap()).contains(&Value::from("NET_BIND_SERVICE"));
        assert_eq!(binds, mode == "userspace", "{components:?}");
        tried.extend(components.iter().map(|component| (*component).to_owned()));
    }
    let mut all: Vec<String> = fs::read_dir(folder().join("components"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    tried.sort();
    tried.dedup();
    assert_eq!(tried, all);
}
