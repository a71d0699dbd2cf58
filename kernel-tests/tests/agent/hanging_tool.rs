//! SIGTERM while a tool of iptables never ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{requires, wait};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::iptables_mode::choose;
use crate::support::{Agent, Manifests, service, wait_for_answer};

/// Before all other folders in which the agent searches the tools.
const FOLDER: &str = "/usr/local/sbin";

/// The number of the process of a tool that hangs.
const HANGING: &str = "/run/hanging";

/// What releases a tool that hangs: a line.
const FIFO: &str = "/run/fifo";

/// Replaces a tool, for the calling thread and the programs that it starts, by a shell script, which calls it by its path.
pub(crate) fn replace_by(tool: &str, script: &str) {
    let none: Option<&str> = None;
    mount(Some("tmpfs"), FOLDER, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    let path = Path::new(FOLDER).join(tool);
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Replaces a tool, for the calling thread and the programs that it starts, by one that hangs after this file exists, until it is released.
pub(crate) fn replace(tool: &str, file: &str) {
    if !Path::new(FIFO).exists() {
        mkfifo(FIFO, Mode::S_IRWXU).unwrap();
    }
    let script = format!(
        "#!/bin/sh
case \"$*\" in *--version*) exec /usr/sbin/{tool} \"$@\";; esac
[ -e {file} ] || exec /usr/sbin/{tool} \"$@\"
echo $$ > {HANGING}
read line < {FIFO}
exec /usr/sbin/{tool} \"$@\"
"
    );
    replace_by(tool, &script);
}

/// Releases the tool that hangs.
pub(crate) fn release() {
    fs::write(FIFO, "\n").unwrap();
}

/// Waits until the tool hangs. Returns its process.
pub(crate) fn wait_until_it_hangs() -> String {
    wait::until(|| match fs::read_to_string(HANGING) {
        Ok(pid) if pid.ends_with('\n') => Ok(pid.trim().to_owned()),
        other => Err(format!("{other:?}")),
    })
}

/// Ends the agent, and with it the tool, which would be killed after a minute otherwise.
fn stop(agent: Agent, pid: &str) {
    let (status, log) = agent.stop();
    assert!(status.success(), "{log}");
    assert!(log.contains("the tools that it runs are ended"), "{log}");
    assert!(!log.contains("did not finish within"), "{log}");
    wait::until(|| match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) if !stat.contains(") Z ") => Err(stat),
        _ => Ok(()),
    });
    fs::remove_file(HANGING).unwrap();
}

#[test]
fn the_agent_ends_at_sigterm_although_a_tool_hangs_and_the_next_one_continues() {
    requires!(Feature::Iptables);
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        choose("iptables-nft");
        let mode = &["--proxy-mode", "iptables", "--iptables-sync-period", "10m"];
        let hangs = "/run/hangs";

        // In a sync.
        replace("iptables-restore", hangs);
        let agent = Agent::start(&manifests.0, mode);
        wait_for_answer(&network, "10.96.0.1", "pod0");
        agent.wait_for(" synced done=", 1);
        fs::write(hangs, "").unwrap();
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[1]));
        let pid = wait_until_it_hangs();
        stop(agent, &pid);

        // Before the first sync, while the tables are read.
        manifests.replace("c.yaml", "kind: [");
        replace("iptables-save", hangs);
        let agent = Agent::start(&manifests.0, mode);
        let pid = wait_until_it_hangs();
        stop(agent, &pid);
        fs::remove_file(manifests.0.join("c.yaml")).unwrap();

        fs::remove_file(hangs).unwrap();
        let agent = Agent::start(&manifests.0, mode);
        wait_for_answer(&network, "10.96.0.2", "pod1");
        wait_for_answer(&network, "10.96.0.1", "pod0");
        agent.stop();
    });
}
