//! etcd and kube-apiserver in the namespace of the calling thread.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kernlink_kernel_tests::{programs, wait};
use serde_json::{Value, json};

use crate::support::Manifests;

const SERVER: &str = "https://127.0.0.1:6443";
/// The token of the test, which may do everything.
const ADMIN: &str = "admin-token";
/// The token of the agent, which may do what `dist/kubernetes/rbac.yaml` permits.
const AGENT: &str = "agent-token";

/// The processes of a cluster without nodes. They end with it.
pub(crate) struct Cluster {
    folder: Manifests,
    etcd: Child,
    api_server: Child,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let folder = Manifests::new();
        let tokens = format!(
            "{ADMIN},admin,1,system:masters\n{AGENT},system:serviceaccount:kube-system:kernlink-agent,2,system:serviceaccounts\n"
        );
        fs::write(folder.0.join("tokens.csv"), tokens).unwrap();
        let etcd = start_etcd(&folder);
        let api_server = start_api_server(&folder);
        let this = Self {
            folder,
            etcd,
            api_server,
        };
        this.wait();
        let rbac = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/kubernetes/rbac.yaml");
        for document in fs::read_to_string(rbac).unwrap().split("---\n") {
            this.send("POST", &collection_of(document), "application/yaml", document);
        }
        this
    }

    /// A kubeconfig file with the token of the agent.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        let path = self.folder.0.join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": SERVER, "certificate-authority": "certs/apiserver.crt"}}],
            "users": [{"name": "u", "user": {"token": AGENT}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(&path, text.to_string()).unwrap();
        path
    }

    pub(crate) fn create(&self, object: &Value) {
        self.send(
            "POST",
            &collection(object),
            "application/json",
            &object.to_string(),
        );
    }

    pub(crate) fn patch(&self, object: &Value, patch: &Value) {
        self.send(
            "PATCH",
            &path(object),
            "application/merge-patch+json",
            &patch.to_string(),
        );
    }

    pub(crate) fn delete(&self, object: &Value) {
        self.send("DELETE", &path(object), "application/json", "");
    }

    /// The address is in the status, which a kubelet writes.
    pub(crate) fn set_node_address(&self, address: &str) {
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let path = "/api/v1/nodes/node-a/status";
        self.send("PATCH", path, "application/merge-patch+json", &status.to_string());
    }

    pub(crate) fn stop_api_server(&mut self) {
        end(&mut self.api_server);
    }

    pub(crate) fn start_api_server(&mut self) {
        self.api_server = start_api_server(&self.folder);
        self.wait();
    }

    pub(crate) fn restart_etcd(&mut self) {
        end(&mut self.etcd);
        self.etcd = start_etcd(&self.folder);
        self.wait();
    }

    fn wait(&self) {
        wait::until(
            || match self.request("GET", "/readyz", "text/plain", "")?.as_str() {
                "ok200" => Ok(()),
                answer => Err(answer.to_owned()),
            },
        );
    }

    /// Sends a request until it succeeds: the server may still be starting.
    fn send(&self, method: &str, path: &str, content_type: &str, body: &str) {
        wait::until(|| match self.request(method, path, content_type, body)? {
            // What an earlier attempt without an answer has done already.
            answer if method == "POST" && answer.ends_with("409") => Ok(()),
            answer if method == "DELETE" && answer.ends_with("404") => Ok(()),
            answer if answer.ends_with("200") || answer.ends_with("201") => Ok(()),
            answer => Err(format!("{method} {path}: {answer}")),
        });
    }

    /// The body of the answer, followed by its status.
    fn request(&self, method: &str, path: &str, content_type: &str, body: &str) -> Result<String, String> {
        let mut curl = programs::from_variable("KERNLINK_CURL")
            .args([
                "--silent",
                "--show-error",
                "--max-time",
                "30",
                "--write-out",
                "%{http_code}",
                "--data-binary",
                "@-",
            ])
            .args([
                "--request",
                method,
                "--header",
                &format!("Authorization: Bearer {ADMIN}"),
            ])
            .args(["--header", &format!("Content-Type: {content_type}"), "--cacert"])
            .arg(self.folder.0.join("certs/apiserver.crt"))
            .arg(format!("{SERVER}{path}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        curl.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let output = curl.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        end(&mut self.api_server);
        end(&mut self.etcd);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn start_etcd(folder: &Manifests) -> Child {
    let mut etcd = programs::from_variable("KERNLINK_ETCD");
    etcd.args([
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
    ])
    .args([
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--data-dir",
    ])
    .arg(folder.0.join("etcd"));
    spawn(etcd, folder, "etcd.log")
}

fn start_api_server(folder: &Manifests) -> Child {
    let in_folder = |flag: &str, name: &str| format!("--{flag}={}", folder.0.join(name).display());
    let mut api_server = programs::from_variable("KERNLINK_KUBE_APISERVER");
    api_server
        .args([
            "--etcd-servers=http://127.0.0.1:2379",
            "--service-cluster-ip-range=10.96.0.0/16",
        ])
        .args([
            "--bind-address=127.0.0.1",
            "--advertise-address=192.0.2.1",
            "--secure-port=6443",
        ])
        .args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
        ])
        .args([
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
        ])
        .arg(in_folder("cert-dir", "certs"))
        .arg(in_folder("token-auth-file", "tokens.csv"))
        // The key of the certificate that the server has made for itself.
        .arg(in_folder("service-account-key-file", "certs/apiserver.key"))
        .arg(in_folder(
            "service-account-signing-key-file",
            "certs/apiserver.key",
        ));
    spawn(api_server, folder, "kube-apiserver.log")
}

fn spawn(mut command: Command, folder: &Manifests, log: &str) -> Child {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.0.join(log))
        .unwrap();
    command
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// The path to which objects of this kind are posted.
fn collection(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str();
    let (group, name) = match object["kind"].as_str().unwrap() {
        "Namespace" => ("/api/v1", "namespaces"),
        "Node" => ("/api/v1", "nodes"),
        "Service" => ("/api/v1", "services"),
        "EndpointSlice" => ("/apis/discovery.k8s.io/v1", "endpointslices"),
        other => panic!("{other}"),
    };
    match namespace {
        Some(namespace) => format!("{group}/namespaces/{namespace}/{name}"),
        None => format!("{group}/{name}"),
    }
}

fn path(object: &Value) -> String {
    format!(
        "{}/{}",
        collection(object),
        object["metadata"]["name"].as_str().unwrap()
    )
}

/// As [`collection`], for a document of `rbac.yaml`.
fn collection_of(document: &str) -> String {
    let kind = document
        .lines()
        .find_map(|line| line.strip_prefix("kind: "))
        .unwrap();
    match kind {
        "ServiceAccount" => "/api/v1/namespaces/kube-system/serviceaccounts".to_owned(),
        kind => format!("/apis/rbac.authorization.k8s.io/v1/{}s", kind.to_lowercase()),
    }
}
