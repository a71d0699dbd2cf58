//! The programs, and what is done with them.

/// All packages. Some depend on others.
pub(super) const PACKAGES: &[&str] = &[
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "dbus",
    "docker.io",
    "firewalld",
    "nftables",
    "python3-nftables",
    "runc",
    "ufw",
];

/// A program that writes rules of its own. Its package is one of [`PACKAGES`].
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) name: &'static str,
    /// The package whose version is printed.
    pub(super) package: &'static str,
    /// A script for the node, before the first action and without traffic.
    pub(super) prepare: &'static str,
    pub(super) actions: &'static [Action],
    /// A script after the last action.
    pub(super) clean: &'static str,
}

/// What is done under traffic, as a script for the node.
#[derive(Debug)]
pub(super) struct Action {
    pub(super) name: &'static str,
    pub(super) script: &'static str,
    /// Why connections may fail, with the mode in which they may, or an empty text for all modes.
    pub(super) loss: Option<(&'static str, &'static str)>,
}

impl Action {
    const fn new(name: &'static str, script: &'static str) -> Self {
        Self {
            name,
            script,
            loss: None,
        }
    }

    const fn with_loss(mut self, mode: &'static str, why: &'static str) -> Self {
        self.loss = Some((mode, why));
        self
    }
}

/// What all scripts can use. A loop in them ends at the latest with the time limit of the script.
pub(super) const FUNCTIONS: &str = r#"
umask 022
# Ends the process that this file has the ID of. Then it stays as a zombie: its parent is the first process, which does not wait for it.
end() {
  id=$(cat "$1")
  kill "$id"
  while grep -q '^State:[[:space:]]*[^[:space:]XZ]' /proc/$id/status; do sleep 0.1; done
}
docker() { command docker --host unix:///run/docker.sock "$@"; }
start_docker() {
  dockerd --config-file /etc/docker/daemon.json --data-root /var/lib/docker --host unix:///run/docker.sock \
    --cgroup-parent /$CONTROL_GROUP >>/run/dockerd.log 2>&1 &
  until docker version; do sleep 0.1; done
  iptables -t nat -S DOCKER
}
start_firewalld() {
  firewalld
  until firewall-cmd --state; do sleep 0.1; done
}
"#;

const FIREWALLD_START: &str = "start_firewalld";
const FIREWALLD_STOP: &str = "end /run/firewalld.pid";
const FIREWALLD_RESTART: &str = "end /run/firewalld.pid; start_firewalld";

const DOCKER_START: &str = "start_docker";
const DOCKER_STOP: &str = "end /run/docker.pid";
const DOCKER_RESTART: &str = "end /run/docker.pid; start_docker";

/// Services in iptables mode are not served from then on until the agent has repaired the rules.
const FLUSHES: &str = "it deletes all rules of iptables";

const FIREWALLD_ACTIONS: &[Action] = &[
    Action::new("start", FIREWALLD_START).with_loss("iptables", FLUSHES),
    Action::new("reload", "firewall-cmd --reload").with_loss("iptables", FLUSHES),
    Action::new("complete reload", "firewall-cmd --complete-reload").with_loss("iptables", FLUSHES),
    Action::new("restart", FIREWALLD_RESTART).with_loss("iptables", FLUSHES),
    Action::new("stop", FIREWALLD_STOP).with_loss("iptables", FLUSHES),
];

/// As containerd calls the plug-ins of a pod: the result of each is an input of the next one.
const CNI_ADD: &str = r#"
export CNI_COMMAND=ADD CNI_PATH=/usr/lib/cni CNI_IFNAME=eth0
for pod in 1 2 3 4 5; do
  ip netns add cni$pod
  export CNI_CONTAINERID=cni$pod CNI_NETNS=/run/netns/cni$pod
  result=$(echo '{"cniVersion": "0.4.0", "name": "neighbours", "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
    "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "dataDir": "/run/cni"}}' | /usr/lib/cni/bridge)
  result=$(echo '{"cniVersion": "0.4.0", "name": "neighbours", "type": "portmap",
    "runtimeConfig": {"portMappings": [{"hostPort": '$((9000 + pod))', "containerPort": 80, "protocol": "tcp"}]},
    "prevResult": '"$result"'}' | /usr/lib/cni/portmap)
  echo '{"cniVersion": "0.4.0", "name": "neighbours", "type": "firewall", "backend": "iptables", "prevResult": '"$result"'}' |
    /usr/lib/cni/firewall
done
iptables -t nat -S CNI-HOSTPORT-DNAT | grep 9005
iptables -S CNI-FORWARD | grep 10.88.0"#;
const CNI_DELETE: &str = r#"
export CNI_COMMAND=DEL CNI_PATH=/usr/lib/cni CNI_IFNAME=eth0
for pod in 1 2 3 4 5; do
  export CNI_CONTAINERID=cni$pod CNI_NETNS=/run/netns/cni$pod
  echo '{"cniVersion": "0.4.0", "name": "neighbours", "type": "firewall", "backend": "iptables"}' | /usr/lib/cni/firewall
  echo '{"cniVersion": "0.4.0", "name": "neighbours", "type": "portmap",
    "runtimeConfig": {"portMappings": [{"hostPort": '$((9000 + pod))', "containerPort": 80, "protocol": "tcp"}]}}' | /usr/lib/cni/portmap
  echo '{"cniVersion": "0.4.0", "name": "neighbours", "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
    "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "dataDir": "/run/cni"}}' | /usr/lib/cni/bridge
  ip netns delete cni$pod
done"#;

/// In the order in which they run, each on a new node.
pub(super) const NEIGHBOURS: &[Neighbour] = &[
    Neighbour {
        name: "firewalld",
        package: "firewalld",
        prepare: "",
        actions: FIREWALLD_ACTIONS,
        clean: "",
    },
    Neighbour {
        name: "firewalld, `FirewallBackend=iptables`",
        package: "firewalld",
        prepare: "sed -i 's/^FirewallBackend=.*/FirewallBackend=iptables/' /etc/firewalld/firewalld.conf",
        actions: FIREWALLD_ACTIONS,
        clean: "sed -i 's/^FirewallBackend=.*/FirewallBackend=nftables/' /etc/firewalld/firewalld.conf",
    },
    Neighbour {
        name: "ufw, as installed",
        package: "ufw",
        prepare: "",
        actions: &[Action::new("enable", "ufw --force enable").with_loss("", "it drops forwarded packets")],
        clean: "ufw disable",
    },
    Neighbour {
        name: "ufw, after `ufw default allow routed`",
        package: "ufw",
        prepare: "ufw default allow routed",
        actions: &[
            Action::new("enable", "ufw --force enable; ufw status | grep -w active"),
            Action::new("reload", "ufw reload"),
            Action::new("restart", "/lib/ufw/ufw-init stop; /lib/ufw/ufw-init start"),
            Action::new("disable", "ufw disable"),
        ],
        clean: "ufw default deny routed",
    },
    Neighbour {
        name: "nftables.service",
        package: "nftables",
        prepare: "",
        actions: &[
            Action::new("start, reload", "nft -f /etc/nftables.conf").with_loss("iptables", FLUSHES),
            Action::new("stop", "nft flush ruleset").with_loss("iptables", FLUSHES),
        ],
        clean: "",
    },
    Neighbour {
        name: "Docker",
        package: "docker.io",
        prepare: "",
        actions: &[
            Action::new("start", DOCKER_START),
            Action::new(
                "container with a published port",
                "mkdir -p /run/image/bin; cp $(which busybox) /run/image/bin; tar -C /run/image -c . | docker import - box
docker run --detach --name web --publish 8088:80 box /bin/busybox httpd -f -p 80; iptables -t nat -S DOCKER | grep 8088",
            ),
            Action::new("container removed", "docker rm --force web"),
            Action::new("restart", DOCKER_RESTART),
            Action::new("stop", DOCKER_STOP),
        ],
        clean: "",
    },
    Neighbour {
        name: "CNI plug-ins bridge, portmap, firewall",
        package: "containernetworking-plugins",
        prepare: "",
        actions: &[
            Action::new("5 pods added", CNI_ADD),
            Action::new("5 pods removed", CNI_DELETE),
        ],
        clean: "",
    },
];
