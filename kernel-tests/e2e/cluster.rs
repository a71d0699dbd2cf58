//! etcd and kube-apiserver in the namespace of the calling thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use kernlink_kernel_tests::{programs, wait};
use serde_json::{Value, json};

use crate::link;
use crate::requests::{ADMIN, Requests, collection, collection_of, path};
use crate::support::Manifests;

const SERVER: &str = "https://127.0.0.1:6443";
const ETCD: &str = "http://127.0.0.1:2379";
/// The token of the agent, which may do what `dist/kubernetes/rbac.yaml` permits.
const AGENT: &str = "agent-token";

/// The processes of a cluster without nodes. They end with it.
pub(crate) struct Cluster {
    folder: Manifests,
    requests: Requests,
    etcd: Child,
    api_server: Child,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further arguments of the API server, which replace others until it is started again.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_at(SERVER, arguments)
    }

    /// With further arguments, such as another address on which it listens. Requests are sent to `server`, `https://ADDRESS:PORT`, which the
    /// certificate must have.
    pub(crate) fn start_at(server: &'static str, arguments: &[&str]) -> Self {
        let this = Self::start_empty(server, arguments);
        let rbac = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/kubernetes/rbac.yaml");
        for document in fs::read_to_string(rbac).unwrap().split("---\n") {
            this.requests
                .send("POST", &collection_of(document), "application/yaml", document);
        }
        this
    }

    /// Without the objects of the agent, for those who create them. It accepts privileged containers, as those of kubeadm do.
    pub(crate) fn start_without_objects() -> Self {
        Self::start_empty(SERVER, &["--allow-privileged=true"])
    }

    fn start_empty(server: &'static str, arguments: &[&str]) -> Self {
        let folder = Manifests::new();
        let tokens = format!(
            "{ADMIN},admin,1,system:masters\n{AGENT},system:serviceaccount:kube-system:kernlink-agent,2,system:serviceaccounts\n"
        );
        fs::write(folder.0.join("tokens.csv"), tokens).unwrap();
        let etcd = start_etcd(&folder);
        let api_server = start_api_server(&folder, arguments);
        let requests = Requests::new(server, &folder.0);
        let this = Self {
            folder,
            requests,
            etcd,
            api_server,
        };
        this.wait();
        this
    }

    /// A kubeconfig file with the token of the agent.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_for(&format!("https://{}", link::ADDRESS))
    }

    /// One with another way to the server, `https://ADDRESS:PORT`, of which the certificate must have the address.
    pub(crate) fn kubeconfig_for(&self, server: &str) -> PathBuf {
        self.write_kubeconfig("kubeconfig", server, AGENT)
    }

    /// A kubeconfig file of an administrator, for programs in the namespace of the server.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.write_kubeconfig("admin-kubeconfig", SERVER, ADMIN)
    }

    fn write_kubeconfig(&self, name: &str, server: &str, token: &str) -> PathBuf {
        let path = self.folder.0.join(name);
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": "certs/apiserver.crt"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(&path, text.to_string()).unwrap();
        path
    }

    pub(crate) fn create(&self, object: &Value) {
        self.requests.send(
            "POST",
            &collection(object),
            "application/json",
            &object.to_string(),
        );
    }

    pub(crate) fn patch(&self, object: &Value, patch: &Value) {
        self.requests.send(
            "PATCH",
            &path(object),
            "application/merge-patch+json",
            &patch.to_string(),
        );
    }

    pub(crate) fn delete(&self, object: &Value) {
        self.requests
            .send("DELETE", &path(object), "application/json", "");
    }

    /// The address is in the status, which a kubelet writes.
    pub(crate) fn set_node_address(&self, address: &str) {
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let path = "/api/v1/nodes/node-a/status";
        self.requests
            .send("PATCH", path, "application/merge-patch+json", &status.to_string());
    }

    /// Sends requests to the API server itself.
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// The answer to `GET path`.
    pub(crate) fn get(&self, path: &str) -> String {
        wait::until(|| {
            let answer = self.requests.request("GET", path, "text/plain", "")?;
            let body = answer.strip_suffix("200").map(str::to_owned);
            body.ok_or_else(|| format!("GET {path}: {answer}"))
        })
    }

    /// The events on Nodes.
    pub(crate) fn node_events(&self) -> String {
        self.get("/apis/events.k8s.io/v1/namespaces/default/events")
    }

    /// The lists of Services that the server has answered since its start. Each page is one.
    pub(crate) fn lists_of_services(&self) -> u64 {
        let metrics = self.get("/metrics");
        let of_services = |line: &&str| {
            line.starts_with("apiserver_request_total{")
                && ["code=\"200\"", "resource=\"services\"", "verb=\"LIST\""]
                    .iter()
                    .all(|label| line.contains(label))
        };
        let counts = metrics.lines().filter(of_services);
        counts
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// The process of the API server.
    pub(crate) fn api_server_id(&self) -> u32 {
        self.api_server.id()
    }

    /// A folder for files of tests, which is removed at the end.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Removes all versions but the present one from etcd.
    pub(crate) fn compact(&self) {
        // "AA==": the key that is one byte, 0.
        let range = json!({"key": "AA=="});
        let revision = ask_etcd("range", &range)["header"]["revision"].clone();
        ask_etcd("compaction", &json!({"revision": revision, "physical": true}));
    }

    /// Writes a value that is not an object: the version of etcd becomes a later one.
    pub(crate) fn write_to_etcd(&self) {
        ask_etcd("put", &json!({"key": "AA==", "value": "AA=="}));
    }

    pub(crate) fn stop_api_server(&mut self) {
        end(&mut self.api_server);
    }

    pub(crate) fn start_api_server(&mut self) {
        self.start_api_server_with(&[]);
    }

    /// With further arguments, which replace others until it is started again.
    pub(crate) fn start_api_server_with(&mut self, arguments: &[&str]) {
        self.api_server = start_api_server(&self.folder, arguments);
        self.wait();
    }

    /// Starts an API server that does not stream lists, also where etcd can report progress: clients read them in pages.
    pub(crate) fn start_api_server_without_streams(&mut self) {
        self.start_api_server_with(&["--feature-gates=WatchList=false"]);
    }

    pub(crate) fn restart_etcd(&mut self) {
        end(&mut self.etcd);
        self.etcd = start_etcd(&self.folder);
        self.wait();
    }

    fn wait(&self) {
        wait::until(|| {
            match self
                .requests
                .request("GET", "/readyz", "text/plain", "")?
                .as_str()
            {
                "ok200" => Ok(()),
                answer => Err(answer.to_owned()),
            }
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        end(&mut self.api_server);
        end(&mut self.etcd);
    }
}

/// The answer of etcd to a request of its gateway for JSON.
fn ask_etcd(path: &str, body: &Value) -> Value {
    let mut curl = programs::from_variable("KERNLINK_CURL");
    let body = body.to_string();
    curl.args(["--silent", "--show-error", "--fail", "--data", &body]);
    let output = curl.arg(format!("{ETCD}/v3/kv/{path}")).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
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

fn start_api_server(folder: &Manifests, arguments: &[&str]) -> Child {
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
        ))
        .args(arguments);
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
