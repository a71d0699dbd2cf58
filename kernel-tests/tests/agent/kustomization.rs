//! The kustomization in `dist/kubernetes` has all manifests, and its components fit them.

use std::fs;

use kernlink_kernel_tests::programs;
use serde_json::Value;

use crate::dist::{arguments, array, components, daemonset, path, read};
use crate::support::{Manifests, text};

#[test]
fn the_kustomization_names_every_manifest() {
    let mut files: Vec<String> = fs::read_dir(path("kubernetes"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml")
        .collect();
    files.sort();
    let mut resources: Vec<String> = array(&read("kubernetes/kustomization.yaml")["resources"])
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    resources.sort();
    assert_eq!(resources, files);
}

#[test]
fn the_documented_commands_find_the_pods_and_the_socket() {
    let manifest = read("kubernetes/daemonset.yaml");
    let agent = &manifest["spec"]["template"]["spec"]["containers"][0];
    let place = format!(
        "-n {} -c {} ",
        manifest["metadata"]["namespace"].as_str().unwrap(),
        agent["name"].as_str().unwrap()
    );
    let label = &manifest["spec"]["template"]["metadata"]["labels"]["app"];
    let label = format!("-l app={} ", label.as_str().unwrap());
    let page = fs::read_to_string(path("../docs/operations.md")).unwrap();
    let commands: Vec<&str> = page
        .lines()
        .filter(|line| line.contains("kubectl exec -n"))
        .collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    assert!(
        commands.iter().all(|command| command.contains(&place)),
        "{commands:?}"
    );
    let lists = page.lines().filter(|line| line.contains("kubectl get pods"));
    assert!(lists.clone().count() == 2 && lists.clone().all(|line| line.contains(&label)));
    // Where the agent listens, and where the command finds it, without a shell.
    let mounts = array(&agent["volumeMounts"]);
    assert!(mounts.iter().any(|mount| mount["mountPath"] == "/run/kernlink"));
    assert!(
        manifest["spec"]["template"]["spec"]["hostNetwork"]
            .as_bool()
            .unwrap()
    );
    let image = fs::read_to_string(path("Containerfile")).unwrap();
    assert!(image.contains(r#"ENTRYPOINT ["/usr/local/bin/kernlink-agent"]"#));
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
    let loopback = "127.0.0.1:10249";
    let everywhere = "0.0.0.0:10256";
    for (with, mode, has_init, metrics, healthz) in [
        (&[][..], "iptables", true, loopback, everywhere),
        (&["nftables"], "nftables", true, loopback, everywhere),
        (&["userspace"], "userspace", false, loopback, everywhere),
        (&["metrics"], "iptables", true, "0.0.0.0:10249", everywhere),
        (
            &["healthz-loopback"],
            "iptables",
            true,
            loopback,
            "127.0.0.1:10256",
        ),
        (&["without-healthz"], "iptables", true, loopback, "none"),
        (
            &["nftables", "metrics", "without-init-container"],
            "nftables",
            false,
            "0.0.0.0:10249",
            everywhere,
        ),
    ] {
        let manifest = daemonset(with);
        let agent = configuration(&manifest, of_agent);
        assert_eq!(agent["mode"], mode, "{with:?}");
        assert_eq!(agent["metricsBindAddress"], metrics, "{with:?}");
        assert_eq!(agent["healthzBindAddress"], healthz, "{with:?}");
        // The kubelet asks where the agent listens. Without a host it asks the address of the node.
        for probe in ["readinessProbe", "livenessProbe"] {
            let probe = manifest.pointer(&format!("/spec/template/spec/containers/0/{probe}/httpGet"));
            let asked = probe.map(|get| {
                let host = get.get("host").map_or("0.0.0.0", |host| host.as_str().unwrap());
                format!("{host}:{}", get["port"])
            });
            assert_eq!(asked.as_deref().unwrap_or("none"), healthz, "{with:?}");
        }
        assert_eq!(manifest.pointer(of_init).is_some(), has_init, "{with:?}");
        // Both containers program the node in the same mode.
        if has_init {
            assert_eq!(configuration(&manifest, of_init)["mode"], mode, "{with:?}");
        }
        let binds = array(manifest.pointer(capabilities).unwrap()).contains(&Value::from("NET_BIND_SERVICE"));
        assert_eq!(binds, mode == "userspace", "{with:?}");
        tried.extend(with.iter().map(|component| (*component).to_owned()));
    }
    tried.sort();
    tried.dedup();
    assert_eq!(tried, components());
}
