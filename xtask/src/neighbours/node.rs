//! The process in the namespaces.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use kernlink_kernel_tests::{
    load::Load,
    manifests::{cluster_ips, service, slices},
    netns::NetNs,
    tools,
    traffic::{Connection, Network, Protocol, Server},
};

use super::{
    Job,
    programs::{Action, FUNCTIONS, NEIGHBOURS, Neighbour, PACKAGES},
};
use crate::workspace::output;

/// How many connections of each client are served before and after an action.
const CONNECTIONS: u64 = 100;

/// After this time a script, or the start of an agent, is a failure. Far more than each takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Makes the system's folders writable for this process alone, and installs the packages, which start nothing. The new folders are those of
/// [`REPLACED`](super::REPLACED). Docker gets no configuration and no data of the machine. From then on no program loads a kernel module:
/// Docker's `br_netfilter` would change what the machine does with its own packets.
const INSTALL: &str = r#"
for folder in usr etc var; do
  mkdir -p overlays/$folder overlays/.work/$folder
  mount -t overlay overlay -o lowerdir=/$folder,upperdir=$PWD/overlays/$folder,workdir=$PWD/overlays/.work/$folder /$folder
done
mkdir -p /etc/docker /var/lib/docker /var/lib/containerd
for folder in boot opt run etc/docker var/lib/docker var/lib/containerd; do
  mount -t tmpfs -o mode=755 tmpfs /$folder
done
mkdir /run/lock /run/dbus $HOME
echo '{}' >/etc/docker/daemon.json
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
if [ -d /etc/initramfs-tools ]; then
  echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf
fi
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends --no-download -o Debug::NoLocking=true -o Dir::Cache::archives=$PWD/../archives "$@"
ln -sf /bin/true /usr/sbin/modprobe
dbus-daemon --system --fork --nopidfile
"#;

/// What happened during an action.
#[derive(Debug)]
struct Row {
    mode: String,
    neighbour: &'static str,
    action: &'static str,
    served: u64,
    /// What the connections that were not served report.
    failures: Vec<String>,
    /// The longest time of a connection that was served, in seconds.
    longest: f64,
    loss: Option<&'static str>,
}

impl Row {
    /// A loss that is known need not be seen in each run.
    fn is_good(&self) -> bool {
        self.failures.is_empty() || self.loss.is_some()
    }

    fn print(&self) -> String {
        let remark = match (self.loss, self.failures.is_empty()) {
            (None, true) => "",
            (None, false) => "FAILED",
            (Some(why), _) => why,
        };
        format!(
            "| {} | {} | {} | {} | {} | {:.1} | {remark} |",
            self.mode,
            self.neighbour,
            self.action,
            self.served + self.failures.len() as u64,
            self.failures.len(),
            self.longest
        )
    }
}

/// Installs the programs and runs them. Fails also if a connection did.
pub(crate) fn run(file: &Path) -> Result<ExitCode> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let job: Job = serde_json::from_str(&text).with_context(|| format!("reading {}", file.display()))?;
    let logs = job.folder.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    println!("installing {}", PACKAGES.join(" "));
    let mut install = shell(&job.control_group, INSTALL);
    install.arg("install").args(PACKAGES).current_dir(&job.folder);
    script(&mut install, &logs.join("install.log"), LIMIT).context("installing the programs")?;

    let mut rows = Vec::new();
    for mode in &job.modes {
        for neighbour in NEIGHBOURS {
            println!("{mode} mode: {}", neighbour.name);
            rows.extend(
                with_neighbour(&job, mode, neighbour)
                    .with_context(|| format!("{mode} mode, {}", neighbour.name))?,
            );
        }
    }
    println!("\n| mode | program | action | connections | failed | longest, s | |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    rows.iter().for_each(|row| println!("{}", row.print()));
    println!();
    for package in NEIGHBOURS
        .iter()
        .map(|neighbour| neighbour.package)
        .collect::<BTreeSet<_>>()
    {
        println!(
            "{}",
            output(Command::new("dpkg-query").args(["-W", package]))?.trim()
        );
    }
    println!(
        "{}Linux {}",
        output(Command::new("iptables").arg("--version"))?,
        output(Command::new("uname").arg("-r"))?
    );
    let good = rows.iter().all(Row::is_good);
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A new node with an agent, and all actions of a program.
fn with_neighbour(job: &Job, mode: &str, neighbour: &Neighbour) -> Result<Vec<Row>> {
    let mut node = Node::start(job, mode)?;
    node.run("prepare", neighbour.prepare)?;
    let mut rows = Vec::new();
    for action in neighbour.actions {
        node.restart_agent(job)?;
        let row = node
            .act(neighbour, action)
            .with_context(|| action.name.to_owned())?;
        println!("{}", row.print());
        row.failures
            .iter()
            .take(3)
            .for_each(|failure| println!("  {failure}"));
        rows.push(row);
    }
    node.run("clean", neighbour.clean)?;
    node.end_agent()?;
    Ok(rows)
}

#[derive(Debug)]
struct Node {
    mode: String,
    network: Network,
    _servers: Vec<Server>,
    agent: Child,
    logs: PathBuf,
    control_group: String,
}

impl Node {
    /// A new network with a running agent.
    fn start(job: &Job, mode: &str) -> Result<Self> {
        let network = Network::new(3);
        let mut servers = network.serve(Protocol::Tcp, 8080);
        servers.extend(network.serve(Protocol::Udp, 5353));
        // As on every node, addresses of Services are routed somewhere until they are translated.
        network.node.run(|| {
            for gateway in [
                IpAddr::from(Network::client_ipv4()),
                Network::client_ipv6().into(),
            ] {
                tools::ip(&["route", "add", "default", "via", &gateway.to_string()]);
            }
        });
        let manifests = job.folder.join("manifests");
        fs::create_dir_all(&manifests).with_context(|| format!("creating {}", manifests.display()))?;
        let ports = [", nodePort: 30080", ", nodePort: 30053"];
        let pods = [(1, "node-a"), (2, "node-a")];
        let objects = service("web", 1, "type: NodePort", ports, &[]) + &slices("web", &pods);
        fs::write(manifests.join("web.yaml"), objects).context("writing the manifests")?;
        let logs = job.folder.join("logs");
        Ok(Self {
            agent: start_agent(job, mode, &network.node)?,
            mode: mode.to_owned(),
            network,
            _servers: servers,
            logs,
            control_group: job.control_group.clone(),
        })
    }

    /// Starts the agent again: after several actions in a row it would delay its repairs, as for a program that changes its rules back all the time.
    fn restart_agent(&mut self, job: &Job) -> Result<()> {
        self.end_agent()?;
        self.agent = start_agent(job, &self.mode, &self.network.node)?;
        Ok(())
    }

    fn end_agent(&mut self) -> Result<()> {
        ensure!(
            self.agent.try_wait()?.is_none(),
            "the agent has ended; see {}",
            self.logs.display()
        );
        self.agent.kill()?;
        self.agent.wait()?;
        Ok(())
    }

    /// From where to which frontends connections are opened.
    fn clients(&self) -> Vec<(&NetNs, Protocol, SocketAddr)> {
        let network = &self.network;
        let (pod, node, client) = (&network.pods[0], &network.node, &network.client);
        let [v4, v6] = cluster_ips(1);
        let (node_v4, node_v6) = (Network::node_ipv4(), Network::node_ipv6());
        vec![
            (pod, Protocol::Tcp, (v4, 80).into()),
            (pod, Protocol::Tcp, (v6, 80).into()),
            (pod, Protocol::Udp, (v4, 53).into()),
            (node, Protocol::Tcp, (v4, 80).into()),
            (client, Protocol::Tcp, (node_v4, 30080).into()),
            (client, Protocol::Tcp, (node_v6, 30080).into()),
        ]
    }

    /// Does something while connections are opened all the time, and others stay open.
    fn act(&self, neighbour: &Neighbour, action: &Action) -> Result<Row> {
        let clients = self.clients();
        let load = Load::start(&clients);
        let mut open = Vec::new();
        for (namespace, protocol, target) in clients {
            if protocol == Protocol::Tcp {
                let mut connection = Connection::open(namespace, protocol, target)?;
                connection.ask()?;
                open.push((target, connection));
            }
        }
        load.wait_for_each(CONNECTIONS);
        let outcome = self.run(action.name, action.script);
        load.wait_for_each(CONNECTIONS);
        let longest = load.longest().as_secs_f64();
        let (mut served, mut failures) = load.stop();
        for (target, connection) in &mut open {
            match connection.ask() {
                Ok(_) => served += 1,
                Err(error) => failures.push(format!("open connection to {target}: {error}")),
            }
        }
        outcome?;
        Ok(Row {
            mode: self.mode.clone(),
            neighbour: neighbour.name,
            action: action.name,
            served,
            failures,
            longest,
            loss: action
                .loss
                .and_then(|(mode, why)| (mode.is_empty() || mode == self.mode).then_some(why)),
        })
    }

    /// Runs a script on the node.
    fn run(&self, name: &str, text: &str) -> Result<()> {
        let mut command = shell(&self.control_group, text);
        let log = self.logs.join("action.log");
        self.network
            .node
            .run(|| script(&mut command, &log, LIMIT))
            .with_context(|| name.to_owned())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _has_ended_already = self.agent.kill();
        let _has_ended_already = self.agent.wait();
    }
}

/// Starts an agent on a node. Returns after its first sync.
fn start_agent(job: &Job, mode: &str, node: &NetNs) -> Result<Child> {
    let mut command = Command::new(&job.agent);
    command
        .args(["--node-name", "node-a", "--proxy-mode", mode, "--watch"])
        .arg(job.folder.join("manifests"))
        .arg("--node-ip")
        .arg(format!("{},{}", Network::node_ipv4(), Network::node_ipv6()))
        // All namespaces share the settings of connection tracking.
        .args(["--conntrack-max-per-core", "0"])
        .args(["--conntrack-tcp-timeout-established", "0s"])
        .args(["--conntrack-tcp-timeout-close-wait", "0s"]);
    let log = job.folder.join("logs/agent.log");
    let mut agent = node.run(|| spawn(&mut command, &log))?;
    let start = Instant::now();
    loop {
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if text.contains(" synced done=") {
            return Ok(agent);
        }
        if let Some(status) = agent.try_wait()? {
            bail!("the agent ended: {status}\n{text}");
        }
        if start.elapsed() >= LIMIT {
            agent.kill()?;
            agent.wait()?;
            bail!("the agent has no sync after {} s\n{text}", LIMIT.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a program whose output goes to a file.
fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
    let errors = file
        .try_clone()
        .with_context(|| format!("creating {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn()
        .with_context(|| format!("starting {}", command.get_program().display()))
}

/// A script with [`FUNCTIONS`]. It does not get the environment of the caller, which may name another Docker or another bus.
fn shell(control_group: &str, text: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin")
        .env("HOME", "/run/home")
        .env("CONTROL_GROUP", control_group)
        .args(["-ec", &format!("{FUNCTIONS}{text}")]);
    command
}

/// Runs a script to its end. The error has the last lines of its output.
fn script(command: &mut Command, log: &Path, limit: Duration) -> Result<()> {
    let mut child = spawn(command, log)?;
    let start = Instant::now();
    let end = loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => break status.to_string(),
            None if start.elapsed() >= limit => {
                child.kill()?;
                child.wait()?;
                break format!("not at its end after {} s", limit.as_secs());
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    let lines: Vec<_> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(10)..).unwrap_or_default();
    bail!("{end}:\n{}", last.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(failures: &[&str], loss: Option<&'static str>) -> Row {
        Row {
            mode: "nftables".to_owned(),
            neighbour: "Docker",
            action: "stop",
            served: 10,
            failures: failures.iter().map(|&text| text.to_owned()).collect(),
            longest: 1.04,
            loss,
        }
    }

    #[test]
    fn a_failed_connection_is_a_failure_unless_its_reason_is_known() {
        let print = |row: &Row| (row.is_good(), row.print());
        let line = |failed: u8, all: u8, remark: &str| {
            format!("| nftables | Docker | stop | {all} | {failed} | 1.0 | {remark} |")
        };
        assert_eq!(print(&row(&[], None)), (true, line(0, 10, "")));
        assert_eq!(print(&row(&["refused"], None)), (false, line(1, 11, "FAILED")));
        assert_eq!(print(&row(&["refused"], Some("why"))), (true, line(1, 11, "why")));
        assert_eq!(print(&row(&[], Some("why"))), (true, line(0, 10, "why")));
    }

    #[test]
    fn a_script_fails_with_its_last_lines_and_at_its_time_limit() {
        let log = std::env::temp_dir().join(format!("xtask-neighbours-script-{}", std::process::id()));
        let run = |text: &str, limit| script(&mut shell("group", text), &log, Duration::from_secs(limit));
        // Cargo sets this variable.
        run(
            "[ -z \"$CARGO_MANIFEST_DIR\" ]; [ $HOME = /run/home ]; [ $CONTROL_GROUP = group ]",
            60,
        )
        .unwrap();
        let error = run("echo why; false", 60).unwrap_err().to_string();
        assert_eq!(error, "exit status: 1:\nwhy");
        let error = run("echo why; exec sleep 1000", 1).unwrap_err().to_string();
        assert!(error.starts_with("not at its end after 1 s"), "{error}");
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn each_program_and_each_action_is_in_the_table_of_the_documents() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = fs::read_to_string(root.join("docs/support.md")).unwrap();
        let table = text
            .split("\n## Other programs that write rules\n")
            .nth(1)
            .unwrap();
        let table = table.split("\n## ").next().unwrap();
        for neighbour in NEIGHBOURS {
            for action in neighbour.actions {
                let begin = format!("\n| {} | {} | ", neighbour.name, action.name);
                assert!(table.contains(&begin), "{begin}");
            }
        }
    }
}
