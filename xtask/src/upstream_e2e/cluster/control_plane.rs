//! etcd, the API server, the controllers and the scheduler, on the router.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    Job,
    addresses::{API, DOMAIN, Node, ROUTER, SERVICES},
    api::{Api, get},
    daemon::Daemon,
    wait::until,
};
use crate::{upstream_e2e::options, workspace::output};

/// What authorises kubelets, proxies and this program: the token of each is its name.
const ADMIN: &str = "admin";
const KUBE_PROXY: &str = "kube-proxy";
const AGENT: &str = "kernlink-agent";

/// The running control plane.
#[derive(Debug)]
pub(super) struct ControlPlane {
    daemons: Vec<Daemon>,
    pub(super) api: Api,
}

/// The file with which a user reaches the API server.
pub(super) fn kubeconfig(cluster: &Path, user: &str) -> PathBuf {
    cluster.join(format!("{user}.kubeconfig"))
}

/// The file with which a proxy reaches the API server.
pub(super) fn of_proxy(cluster: &Path, proxy: &str) -> PathBuf {
    kubeconfig(
        cluster,
        if proxy == options::KUBE_PROXY {
            KUBE_PROXY
        } else {
            AGENT
        },
    )
}

impl ControlPlane {
    /// Starts everything, and waits until the API server is ready.
    pub(super) fn start(job: &Job) -> Result<Self> {
        let folder = job.layout().cluster();
        write_keys(&folder.join("keys"))?;
        write_users(&folder, job.nodes)?;
        let admin = kubeconfig(&folder, ADMIN);
        let api = Api::new(&job.layout().program("kubectl"), &admin);
        let logs = job.logs();
        let program = |name: &str| Command::new(job.layout().program(name));
        let mut control_plane = Self {
            daemons: vec![Daemon::start("etcd", &mut etcd(&folder), &logs)?],
            api,
        };
        let api_server = program("kube-apiserver")
            .args(api_server_arguments(&folder))
            .start(&logs)?;
        control_plane.daemons.push(api_server);
        until("the API server is ready", || {
            control_plane.check()?;
            Ok(control_plane.api.is_ready())
        })?;
        let keys = folder.join("keys");
        let controllers = program("kube-controller-manager")
            .arg(flag("--kubeconfig", &admin))
            .arg(flag("--root-ca-file", &keys.join("ca.crt")))
            .arg(flag(
                "--service-account-private-key-file",
                &keys.join("accounts.key"),
            ))
            .arg(format!("--service-cluster-ip-range={SERVICES}"))
            .args([
                "--leader-elect=false",
                "--use-service-account-credentials=true",
                "--allocate-node-cidrs=false",
            ])
            .start(&logs)?;
        let scheduler = program("kube-scheduler")
            .arg(flag("--kubeconfig", &admin))
            .arg("--leader-elect=false")
            .start(&logs)?;
        let proxy = Daemon::start("kubectl-proxy", &mut control_plane.api.proxy(), &logs)?;
        control_plane.daemons.extend([controllers, scheduler, proxy]);
        until("kubectl proxy answers", || {
            control_plane.check()?;
            Ok(get("/api/v1/namespaces/kube-system").is_ok())
        })?;
        Ok(control_plane)
    }

    /// Fails if a part has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.daemons.iter_mut().try_for_each(Daemon::check)
    }

    /// Creates the objects of the nodes. Their pod networks are fixed, because routes lead to them.
    pub(super) fn add_nodes(&self, nodes: usize) -> Result<()> {
        let items: Vec<_> = Node::all(nodes).map(node_object).collect();
        self.api
            .apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())
    }
}

fn node_object(node: Node) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node.name(), "labels": {
            "kubernetes.io/hostname": node.name(),
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/region": "region",
            "topology.kubernetes.io/zone": node.zone(),
        }},
        "spec": {"podCIDR": node.pods()[0], "podCIDRs": node.pods()},
    })
}

/// Starts a command under the name of its program.
trait Start {
    fn start(&mut self, logs: &Path) -> Result<Daemon>;
}

impl Start for Command {
    fn start(&mut self, logs: &Path) -> Result<Daemon> {
        let path = PathBuf::from(self.get_program());
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Daemon::start(&name, self, logs)
    }
}

fn flag(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

fn etcd(folder: &Path) -> Command {
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(folder.join("etcd")).args([
        "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--quota-backend-bytes=4294967296",
    ]);
    command
}

fn api_server_arguments(folder: &Path) -> Vec<String> {
    let keys = folder.join("keys");
    let mut arguments = vec![
        flag("--tls-cert-file", &keys.join("server.crt")),
        flag("--tls-private-key-file", &keys.join("server.key")),
        flag("--client-ca-file", &keys.join("ca.crt")),
        flag("--token-auth-file", &folder.join("tokens.csv")),
        flag("--service-account-key-file", &keys.join("accounts.pub")),
        flag("--service-account-signing-key-file", &keys.join("accounts.key")),
        format!("--advertise-address={}", ROUTER[0]),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}"),
    ];
    arguments.extend(
        [
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            "--secure-port=6443",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--kubelet-preferred-address-types=InternalIP",
        ]
        .map(str::to_owned),
    );
    arguments
}

/// The certificates of the cluster, and the keys of service accounts.
fn write_keys(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "localhost",
    ];
    let names = names.map(|name| format!("DNS:{name}")).into_iter().chain([
        format!("DNS:kubernetes.default.svc.{DOMAIN}"),
        "IP:127.0.0.1".to_owned(),
    ]);
    let addresses = ROUTER
        .into_iter()
        .chain(API)
        .map(|address| format!("IP:{address}"));
    let subjects: Vec<_> = names.chain(addresses).collect();
    let extension = format!("subjectAltName={}\n", subjects.join(","));
    fs::write(folder.join("server.ext"), extension).context("writing server.ext")?;
    for line in [
        "req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=kubernetes -keyout ca.key -out ca.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile server.ext -out server.crt",
        "genrsa -out accounts.key 2048",
        "rsa -in accounts.key -pubout -out accounts.pub",
    ] {
        output(
            Command::new("openssl")
                .args(line.split(' '))
                .current_dir(folder)
                .stderr(Stdio::piped()),
        )?;
    }
    Ok(())
}

/// The users that the API server knows: lines `TOKEN,USER,ID,"GROUPS"`.
fn tokens(nodes: usize) -> Vec<(String, String)> {
    let mut tokens = vec![
        (ADMIN.to_owned(), "admin,1,\"system:masters\"".to_owned()),
        (KUBE_PROXY.to_owned(), "system:kube-proxy,2".to_owned()),
        (
            AGENT.to_owned(),
            "system:serviceaccount:kube-system:kernlink-agent,3,\"system:serviceaccounts\"".to_owned(),
        ),
    ];
    for node in Node::all(nodes) {
        let name = node.name();
        tokens.push((
            name.clone(),
            format!("system:node:{name},{name},\"system:nodes\""),
        ));
    }
    tokens
}

fn write_users(folder: &Path, nodes: usize) -> Result<()> {
    let tokens = tokens(nodes);
    let lines: String = tokens
        .iter()
        .map(|(token, user)| format!("{token},{user}\n"))
        .collect();
    fs::write(folder.join("tokens.csv"), lines).context("writing tokens.csv")?;
    for (token, _) in tokens {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "user"}}],
            "clusters": [{"name": "cluster", "cluster": {
                "server": format!("https://{}:6443", ROUTER[0]),
                "certificate-authority": folder.join("keys/ca.crt"),
            }}],
            "users": [{"name": "user", "user": {"token": token}}],
        });
        let file = kubeconfig(folder, &token);
        fs::write(&file, config.to_string()).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// The file with which this program and the tests reach the API server.
pub(super) fn admin(cluster: &Path) -> PathBuf {
    kubeconfig(cluster, ADMIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_a_user_of_its_name() {
        let tokens = tokens(2);
        let last = tokens.last().unwrap();
        assert_eq!(last.0, "node2");
        assert_eq!(last.1, "system:node:node2,node2,\"system:nodes\"");
    }

    #[test]
    fn a_node_has_the_networks_of_its_pods_and_a_zone() {
        let object = node_object(Node(4));
        assert_eq!(
            object["spec"]["podCIDRs"],
            json!(["10.244.4.0/24", "fd00:10:244:4::/64"])
        );
        assert_eq!(
            object["metadata"]["labels"]["topology.kubernetes.io/zone"],
            json!("zone1")
        );
    }
}
