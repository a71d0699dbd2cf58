//! What `docs/kubeadm.md` and `dist/kubernetes` have users do, with the files that kubeadm writes.

use std::fs;
use std::path::Path;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, requires, wait};
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::cluster::{ADDRESS, add, api_node};
use crate::support::{Agent, Manifests, get, text, wait_for_answer};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// The files of the ConfigMap `kube-proxy`: a configuration with the defaults of kubeadm, except for what all network namespaces share.
fn write_config_map(files: &Manifests, server: &ApiServer, healthz: &str) {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "bindAddress": "0.0.0.0",
        // kubeadm's path, which exists in the pod of kube-proxy only.
        "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"}, "healthzBindAddress": healthz, "mode": "",
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    });
    files.replace("config.conf", &config.to_string());
    files.replace("kubeconfig.conf", &server.kubeconfig("secret"));
}

/// The arguments of the container, but not those of the init container.
fn arguments_of_the_daemonset() -> Vec<String> {
    let manifest = read("dist/kubernetes/daemonset.yaml");
    let (_, container) = manifest.split_once("\n      containers:\n").unwrap();
    let (_, arguments) = container.split_once("          args:\n").unwrap();
    let lines = arguments.lines().map(str::trim);
    let lines = lines.take_while(|line| line.starts_with("- ") || line.starts_with('#'));
    lines
        .filter_map(|line| line.strip_prefix("- "))
        .map(str::to_owned)
        .collect()
}

/// The overrides of the pod in the document that compares before the change.
fn pod_of_the_document() -> Value {
    let document = read("docs/kubeadm.md");
    let (_, begin) = document.split_once("--overrides '").unwrap();
    let (overrides, _) = begin.split_once("}'\n").unwrap();
    serde_json::from_str(&format!("{overrides}}}")).unwrap()
}

#[test]
fn the_comparison_of_the_document_prints_a_plan_with_the_files_that_kubeadm_writes() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let files = Manifests::new();
    let pod = pod_of_the_document();
    let container = &pod["spec"]["containers"][0];
    let mounts = container["volumeMounts"].as_array().unwrap();
    let is_config = |mount: &&Value| mount["name"] == "config";
    let mounted = mounts.iter().find(is_config).unwrap()["mountPath"]
        .as_str()
        .unwrap();
    let names = |list: &Value| {
        let items = list.as_array().unwrap().iter();
        items
            .map(|item| item.as_str().unwrap().to_lowercase())
            .collect::<Vec<_>>()
    };
    let capabilities = names(&container["securityContext"]["capabilities"]["add"]);
    let arguments = container["args"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| argument.as_str().unwrap().replace("NODE", "node-a"));
    let folder = files.0.display().to_string();
    let arguments: Vec<String> = arguments
        .map(|argument| argument.replace(mounted, &folder))
        .collect();
    network.node.run(|| {
        let server = ApiServer::start(ADDRESS, true);
        write_config_map(&files, &server, "");
        server.apply(api_node(&["192.0.2.1"]));
        add(&server, "a", "10.96.0.1", 0);
        let set: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
        let planned = programs::command("setpriv")
            .args(["--no-new-privs", "--inh-caps", "-all", "--bounding-set"])
            .arg(format!("-all{set}"))
            .arg(programs::agent().get_program())
            .args(&arguments)
            .output()
            .unwrap();
        assert!(planned.status.success(), "{}", text(&planned));
        assert!(text(&planned).contains("-d 10.96.0.1/32"), "{}", text(&planned));
    });
}

#[test]
fn the_probes_of_the_daemonset_are_answered_as_the_document_describes() {
    requires!(Feature::Iptables);
    let manifest = read("dist/kubernetes/daemonset.yaml");
    let probes: Vec<&str> = manifest
        .split("httpGet: {path: ")
        .skip(1)
        .map(|probe| probe.split_once(", port: 10256}").unwrap().0)
        .collect();
    assert_eq!(probes, ["/healthz", "/livez"]);
    let files = Manifests::new();
    let folder = files.0.display().to_string();
    let arguments = arguments_of_the_daemonset();
    let arguments: Vec<String> = arguments
        .iter()
        .map(|argument| {
            argument
                .replace("/etc/kube-proxy", &folder)
                .replace("$(NODE_NAME)", "node-a")
        })
        .collect();
    assert!(arguments.len() > 2, "{arguments:?}");
    // By address of the configuration: the addresses at which a probe is answered, and those at which it is not.
    for (healthz, answered, refused) in [
        ("", &["192.0.2.1", "127.0.0.1"][..], &[][..]),
        ("127.0.0.1", &["127.0.0.1"], &["192.0.2.1"]),
        ("none", &[], &["192.0.2.1", "127.0.0.1"]),
    ] {
        let network = Network::new(1);
        let _servers = network.serve(Protocol::Tcp, 8080);
        network.node.run(|| {
            let server = ApiServer::start(ADDRESS, true);
            write_config_map(&files, &server, healthz);
            server.apply(api_node(&["192.0.2.1"]));
            add(&server, "a", "10.96.0.1", 0);
            let mut command = programs::agent();
            command.args(&arguments);
            let agent = Agent::spawn(command);
            wait_for_answer(&network, "10.96.0.1", "pod0");
            for path in &probes {
                for address in answered {
                    wait::until(|| match get(&format!("{address}:10256"), path)? {
                        answer if answer.starts_with("HTTP/1.1 200 ") => Ok(()),
                        answer => Err(answer),
                    });
                }
                for address in refused {
                    assert!(
                        get(&format!("{address}:10256"), path).is_err(),
                        "{healthz}: {address}"
                    );
                }
            }
            agent.stop();
        });
    }
}
