//! A node: a kubelet, containerd and the proxy, in namespaces of their own. This program is its first process, so everything in the node ends
//! with it.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::wait::{WaitStatus, wait},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Job,
    addresses::{DNS, DOMAIN, Node, PODS},
    control_plane::{kubeconfig, of_proxy},
    daemon::Daemon,
    network,
    wait::until,
};
use crate::{
    upstream_e2e::{cgroups, images},
    workspace::{output, succeed},
};

/// The socket of containerd, in the mounts of the node.
const SOCKET: &str = "/run/containerd/containerd.sock";
/// The sysctls of the whole machine that a kubelet writes, with the values that it wants.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
/// In the folder of a node: how the proxy ended. Missing as long as it runs.
const ENDED: &str = "proxy-ended";
/// The pause before a kubelet that ended is started again.
const PAUSE: Duration = Duration::from_secs(2);

/// What the first process of a node does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeJob {
    name: String,
    folder: PathBuf,
    images: Vec<PathBuf>,
    kubelet: Vec<String>,
    proxy: Vec<String>,
}

impl NodeJob {
    fn new(job: &Job, node: Node) -> Self {
        let cluster = job.layout().cluster();
        let folder = cluster.join(node.name());
        let program = |name: &str| job.layout().program(name).display().to_string();
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let kubelet = vec![
            program("kubelet"),
            flag("config", &folder.join("kubelet.json")),
            flag("kubeconfig", &kubeconfig(&cluster, &node.name())),
            format!("--hostname-override={}", node.name()),
            format!("--node-ip={}", node.addresses().join(",")),
            "--root-dir=/var/lib/kubelet".to_owned(),
        ];
        let proxy = vec![
            job.proxy.display().to_string(),
            flag("kubeconfig", &of_proxy(&cluster, &job.proxy_name)),
            format!("--proxy-mode={}", job.mode),
            format!("--hostname-override={}", node.name()),
            format!("--cluster-cidr={PODS}"),
            // The table of connections is that of the machine.
            "--conntrack-max-per-core=0".to_owned(),
            "--healthz-bind-address=0.0.0.0:10256".to_owned(),
            "--metrics-bind-address=0.0.0.0:10249".to_owned(),
        ];
        Self {
            name: node.name(),
            images: images::archives(&job.layout()),
            folder,
            kubelet,
            proxy,
        }
    }
}

/// Starts a node.
pub(super) fn start(job: &Job, node: Node) -> Result<Daemon> {
    let node_job = NodeJob::new(job, node);
    let folder = &node_job.folder;
    for name in [
        "lib/kubelet",
        "lib/containerd",
        "lib/cni",
        "log/pods",
        "log/containers",
        "cni",
        "sysctls",
    ] {
        fs::create_dir_all(folder.join(name)).with_context(|| format!("creating {name}"))?;
    }
    for (name, text) in [
        ("kubelet.json", kubelet(folder)),
        ("containerd.toml", containerd(folder)),
        ("cni/10-bridge.conflist", cni(node)),
        // A DNS server that does not exist: pods ask the one of the cluster.
        ("resolv.conf", "nameserver 127.0.0.53\n".to_owned()),
        ("job.json", serde_json::to_string(&node_job)?),
    ] {
        fs::write(folder.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    let groups = cgroups::create(&node.name())?;
    // The namespace of control groups begins with those that the process is in.
    let script = "for group in \"$@\"; do [ \"$group\" != -- ] || break; echo $$ >\"$group/cgroup.procs\"; shift; done; shift; exec \"$@\"";
    let mut command = Command::new("sh");
    command
        .args(["-e", "-c", script, "sh"])
        .args(groups)
        .args(["--", "nsenter"])
        .arg(format!("--net={}", network::file(&node.name())))
        .args([
            "unshare",
            "--mount",
            "--pid",
            "--mount-proc",
            "--uts",
            "--ipc",
            "--cgroup",
        ])
        .args(["--fork", "--kill-child"])
        .arg(&job.xtask)
        .arg(super::NODE)
        .arg(folder.join("job.json"))
        // Of a login: containerd would write there.
        .env_remove("XDG_RUNTIME_DIR");
    Daemon::start(&node.name(), &mut command, &job.logs())
}

/// How the proxy of a node ended. `None`: it runs.
pub(super) fn proxy_end(job: &Job, node: Node) -> Option<String> {
    let file = job.layout().cluster().join(node.name()).join(ENDED);
    fs::read_to_string(file).ok()
}

/// The first process of a node.
pub(super) fn init(job: &Path) -> Result<()> {
    let text = fs::read_to_string(job).with_context(|| format!("reading {}", job.display()))?;
    let job: NodeJob = serde_json::from_str(&text).with_context(|| format!("reading {}", job.display()))?;
    mounts(&job)?;
    succeed(Command::new("hostname").arg(&job.name))?;
    let containerd = background(
        &job,
        "containerd",
        &[
            "containerd".into(),
            "--config".into(),
            path(&job, "containerd.toml"),
        ],
    )?;
    let ctr = || {
        let mut command = Command::new("ctr");
        command.args(["--address", SOCKET]);
        command
    };
    until("containerd answers", || Ok(output(ctr().arg("version")).is_ok()))?;
    for image in &job.images {
        output(
            ctr()
                .args(["--namespace", "k8s.io", "images", "import"])
                .arg(image),
        )?;
    }
    let mut kubelet = background(&job, "kubelet", &job.kubelet)?;
    let proxy = background(&job, "proxy", &job.proxy)?;
    println!("started");
    loop {
        let status = wait().context("waiting for programs of the node")?;
        let ended = status.pid();
        if ended == Some(kubelet) {
            eprintln!("the kubelet ended: {status:?}");
            thread::sleep(PAUSE);
            kubelet = background(&job, "kubelet", &job.kubelet)?;
        } else if ended == Some(proxy) {
            let how = match status {
                WaitStatus::Exited(_, status) => format!("exit status {status}"),
                other => format!("{other:?}"),
            };
            fs::write(job.folder.join(ENDED), how).context("writing how the proxy ended")?;
        } else if ended == Some(containerd) {
            bail!("containerd ended: {status:?}");
        }
    }
}

fn path(job: &NodeJob, name: &str) -> String {
    job.folder.join(name).display().to_string()
}

/// Starts a program, whose output is appended to a file. This process waits for all of its children at once.
fn background(job: &NodeJob, name: &str, words: &[String]) -> Result<Pid> {
    let (program, arguments) = words.split_first().context("an empty command")?;
    let log = job.folder.join(format!("{name}.log"));
    let file = File::options()
        .create(true)
        .append(true)
        .open(&log)
        .with_context(|| format!("opening {}", log.display()))?;
    let errors = file.try_clone().context("opening the log")?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {program}"))?;
    Ok(Pid::from_raw(
        child.id().try_into().context("process ID above 2^31")?,
    ))
}

fn mount(arguments: &[&str]) -> Result<()> {
    succeed(Command::new("mount").args(arguments))
}

/// The mounts of a node: its control groups, its state, and sysctls of the machine that it must not change.
fn mounts(job: &NodeJob) -> Result<()> {
    mount(&["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup"])?;
    for controller in cgroups::CONTROLLERS {
        let folder = format!("/sys/fs/cgroup/{controller}");
        fs::create_dir(&folder).with_context(|| format!("creating {folder}"))?;
        let options = match controller {
            "systemd" => "none,name=systemd",
            other => other,
        };
        mount(&["-t", "cgroup", "-o", options, "cgroup", &folder])?;
    }
    for (name, target) in [("lib", "/var/lib"), ("log", "/var/log")] {
        mount(&["--bind", &path(job, name), target])?;
    }
    mount(&["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])?;
    for name in ["/run/lock", "/run/netns"] {
        fs::create_dir(name).with_context(|| format!("creating {name}"))?;
    }
    for (sysctl, value) in SYSCTLS {
        let file = path(job, &format!("sysctls/{}", sysctl.replace('/', ".")));
        fs::write(&file, format!("{value}\n")).with_context(|| format!("writing {file}"))?;
        mount(&["--bind", &file, &format!("/proc/sys/{sysctl}")])?;
    }
    // Containers with mount propagation need it.
    mount(&["--make-rshared", "/"])
}

fn kubelet(folder: &Path) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [DNS],
        "clusterDomain": DOMAIN,
        "resolvConf": folder.join("resolv.conf"),
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        // All nodes have the disk and memory of this machine.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    })
    .to_string()
}

fn containerd(folder: &Path) -> String {
    let cni = folder.join("cni");
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{}"
"#,
        images::PAUSE,
        cni.display()
    )
}

/// Pods are on a bridge, with an address of each family, and have host ports.
fn cni(node: Node) -> String {
    let ranges: Vec<_> = node
        .pods()
        .into_iter()
        .map(|subnet| json!([{"subnet": subnet}]))
        .collect();
    json!({
        "cniVersion": "0.4.0", "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "ranges": ranges,
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        ],
    })
    .to_string()
}
