//! The capabilities that `dist/` gives the agent are sufficient, and each of them is necessary.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, requires, tools};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

use crate::iptables_mode::choose;
use crate::support::{Agent, Manifests, ask, command, get, run, service, text, wait_for_answer};

/// The capabilities of the container in the DaemonSet, without `CAP_`.
fn of_the_daemonset() -> Vec<String> {
    let words = words_after("kubernetes/daemonset.yaml", "capabilities: {drop: [ALL], add: [");
    words
        .split_once(']')
        .unwrap()
        .0
        .split(", ")
        .map(str::to_lowercase)
        .collect()
}

/// The capabilities of the systemd unit, without `CAP_`.
fn of_the_unit() -> Vec<String> {
    let words = words_after("kernlink-agent.service", "\nCapabilityBoundingSet=");
    let line = words.lines().next().unwrap();
    line.split(' ')
        .map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase())
        .collect()
}

fn words_after(file: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist").join(file);
    let content = fs::read_to_string(path).unwrap();
    content.split_once(text).unwrap().1.to_owned()
}

/// Runs a program as root with these capabilities, and nothing that could give it more.
fn limited(command: &Command, capabilities: &[&str]) -> Output {
    limited_command(command, capabilities).output().unwrap()
}

/// A command that runs a program as root with these capabilities, and nothing that could give it more.
pub(crate) fn limited_command(command: &Command, capabilities: &[&str]) -> Command {
    let set: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let mut limited = programs::command("setpriv");
    limited
        .args(["--no-new-privs", "--inh-caps", "-all", "--bounding-set"])
        .arg(format!("-all{set}"))
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            limited.env(name, value);
        }
    }
    limited
}

fn names(capabilities: &[String]) -> Vec<&str> {
    capabilities.iter().map(String::as_str).collect()
}

/// Serves a Service with these capabilities, and removes everything. The sysctls have their values already, as after the init container.
fn serve_and_remove(mode: &str, capabilities: &[&str]) {
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        let run = |capabilities: &[&str], action| {
            limited(
                &command(&manifests.0, &["--proxy-mode", mode, action]),
                capabilities,
            )
        };
        let succeed = |action| {
            let output = run(capabilities, action);
            assert!(output.status.success(), "{action}: {}", text(&output));
        };
        for _ in 0..2 {
            succeed("--once");
            assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");
            succeed("--cleanup");
            ask(&network.client, "10.96.0.1").unwrap_err();
            // `KUBE-FIREWALL` is the kubelet's too.
            let rules = tools::run("iptables-save", &[]).unwrap();
            assert!(!rules.contains("KUBE-SERVICES"), "{rules}");
            let tables = tools::run("nft", &["list", "tables"]).unwrap();
            assert!(!tables.contains("kernlink"), "{tables}");
        }
        // Where nothing is left, a cleanup creates nothing.
        let again = command(&manifests.0, &["--proxy-mode", mode, "--cleanup", "--dry-run"])
            .output()
            .unwrap();
        assert_eq!(text(&again), "# nothing to do\n");
    });
}

#[test]
fn the_capabilities_of_the_manifests_are_sufficient_in_iptables_mode() {
    requires!(Feature::Iptables);
    serve_and_remove("iptables", &names(&of_the_daemonset()));
}

#[test]
fn the_administration_of_networks_is_sufficient_in_nftables_mode() {
    requires!(Feature::Iptables);
    serve_and_remove("nftables", &["net_admin"]);
}

#[test]
fn the_capabilities_of_the_manifests_are_sufficient_in_ipvs_mode() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    serve_and_remove("ipvs", &names(&of_the_daemonset()));
}

/// A plan that is made without reading the kernel must not be taken for a complete one.
#[test]
fn a_plan_without_rights_names_what_could_not_be_read_and_fails() {
    requires!(Feature::Iptables);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        for mode in ["iptables", "userspace"] {
            for cleanup in [&["--dry-run"][..], &["--dry-run", "--cleanup"]] {
                let arguments = [&["--proxy-mode", mode][..], cleanup].concat();
                let output = limited(&command(&manifests.0, &arguments), &[]);
                let page = String::from_utf8_lossy(&output.stdout);
                assert_eq!(output.status.code(), Some(1), "{}", text(&output));
                let unknown = page
                    .lines()
                    .filter(|line| line.starts_with("# cannot be read; the plan may be wrong: "));
                let tables = unknown
                    .filter(|line| line.contains("iptables-save") || line.contains("tables cannot be read"));
                assert!(tables.count() > 0, "{}", text(&output));
                let output = limited(&command(&manifests.0, &arguments), &["net_admin", "net_raw"]);
                assert!(output.status.success(), "{}", text(&output));
            }
        }
    });
}

#[test]
fn each_capability_of_the_manifests_is_necessary() {
    requires!(Feature::Iptables);
    assert_eq!(of_the_daemonset(), ["net_admin", "net_raw"]);
    // Only userspace mode, which claims ports, uses the third.
    assert_eq!(of_the_unit(), ["net_admin", "net_raw", "net_bind_service"]);
    let network = Network::new(1);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        let once = command(&manifests.0, &["--proxy-mode", "iptables", "--once"]);
        let output = limited(&once, &["net_raw"]);
        assert!(!output.status.success(), "{}", text(&output));
        // The iptables tools open a raw socket for legacy tables.
        let mut legacy = programs::command("iptables-legacy-save");
        legacy.args(["-t", "filter"]);
        // They load the module, for which these capabilities are not enough.
        tools::run("iptables-legacy-save", &["-t", "filter"]).unwrap();
        assert!(!limited(&legacy, &["net_admin"]).status.success());
        let output = limited(&legacy, &["net_admin", "net_raw"]);
        assert!(output.status.success(), "{}", text(&output));
    });
}

/// Set in the child process of the next test.
const CHILD: &str = "KERNLINK_TEST_HAS_THE_NAME_OF_THE_LOCK";

#[test]
fn an_agent_starts_while_a_process_without_privileges_has_the_name_of_its_lock() {
    requires!(Feature::Iptables);
    if std::env::var_os(CHILD).is_some() {
        let user = Uid::from_raw(65_534);
        nix::unistd::setresuid(user, user, user).unwrap();
        let address = SocketAddr::from_abstract_name("kernlink-proxier").unwrap();
        let _socket = UnixListener::bind_addr(&address).unwrap();
        println!("bound");
        // Until the test ends it, or ends.
        return std::io::stdin().lines().for_each(drop);
    }
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        let name = "privileges::an_agent_starts_while_a_process_without_privileges_has_the_name_of_its_lock";
        let mut child = programs::this_program()
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.lines().any(|line| line.unwrap().contains("bound")));
        let iptables = ["--proxy-mode", "iptables"];
        let init = run(&manifests.0, &[&iptables[..], &["--init-only"]].concat());
        assert!(init.status.success(), "{}", text(&init));
        let agent = Agent::start(&manifests.0, &iptables);
        agent.wait_for(" synced ", 1);
        // Another agent does not start, with or without its servers.
        for action in ["--init-only", "--once", "--cleanup"] {
            let second = run(&manifests.0, &[&iptables[..], &[action]].concat());
            assert_eq!(second.status.code(), Some(3), "{}", text(&second));
            let holder = format!("programmed by process {}", agent.child.id());
            assert!(text(&second).contains(&holder), "{}", text(&second));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

/// System calls that the default profile of container runtimes permits with the capabilities of the DaemonSet, and systemd's group
/// `@system-service`: those of `/usr/share/containers/seccomp.json` and of `systemd-analyze syscall-filter` that a program like this may use.
const PERMITTED: &str = "accept4 access alarm arch_prctl bind brk capget chdir chmod chown clock_gettime clock_nanosleep clone clone3 close connect \
    dup dup2 dup3 epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 execve exit exit_group faccessat faccessat2 \
    fcntl flock fstat fsync ftruncate futex getcwd getdents64 getegid geteuid getgid getpeername getpgrp getpid \
    getppid getrandom getresgid getresuid getrusage getsockname getsockopt gettid gettimeofday getuid \
    inotify_add_watch inotify_init1 inotify_rm_watch ioctl kill listen lseek lstat madvise membarrier memfd_create \
    mkdir mmap mprotect mremap munmap nanosleep newfstatat open openat openat2 pidfd_open pidfd_send_signal pipe pipe2 poll \
    ppoll prctl pread64 prlimit64 pselect6 pwrite64 read readlink readlinkat readv recvfrom recvmmsg recvmsg \
    restart_syscall rseq rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_getaffinity \
    sched_yield select sendmmsg sendmsg sendto set_robust_list set_tid_address setpgid setsockopt shutdown \
    sigaltstack socket socketpair splice stat statfs statx sysinfo tgkill timer_create timer_settime umask uname \
    unlink vfork wait4 waitid write writev";

/// A process that would continue when its tracer is killed.
struct Traced(Pid);

impl Drop for Traced {
    fn drop(&mut self) {
        let _has_ended = kill(self.0, Signal::SIGKILL);
    }
}

#[test]
fn the_agent_and_its_tools_use_only_system_calls_that_the_manifests_permit() {
    requires!(Feature::Iptables);
    assert!(
        words_after("kubernetes/daemonset.yaml", "seccompProfile: {type: ").starts_with("RuntimeDefault}")
    );
    assert!(words_after("kernlink-agent.service", "\nSystemCallFilter=").starts_with("@system-service\n"));
    let permitted: BTreeSet<&str> = PERMITTED.split(' ').collect();
    for (mode, variant) in [
        ("iptables", "iptables-nft"),
        ("iptables", "iptables-legacy"),
        ("userspace", "iptables-nft"),
    ] {
        let network = Network::new(2);
        let _servers = network.serve(Protocol::Tcp, 8080);
        let manifests = Manifests::new();
        manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
        // The agent watches the folder of the manifests.
        let traces = Manifests::new();
        let calls = traces.0.join("calls");
        network.node.run(|| {
            choose(variant);
            let agent = command(&manifests.0, &["--proxy-mode", mode]);
            let mut traced = programs::command("strace");
            traced
                .args(["-f", "-qq", "-o"])
                .arg(&calls)
                .arg(agent.get_program())
                .args(agent.get_args());
            let mut tracer = Agent::spawn(traced);
            tracer.wait_for(" synced done=", 1);
            let number = tracer.child.id();
            let children = fs::read_to_string(format!("/proc/{number}/task/{number}/children")).unwrap();
            let agent = Traced(Pid::from_raw(children.trim().parse().unwrap()));
            wait_for_answer(&network, "10.96.0.1", "pod0");
            manifests.replace("a.yaml", &service("a", "10.96.0.1", &[1]));
            wait_for_answer(&network, "10.96.0.1", "pod1");
            assert!(
                get("127.0.0.1:10256", "/livez")
                    .unwrap()
                    .starts_with("HTTP/1.1 200")
            );
            // A signal to the tracer would not reach the agent.
            kill(agent.0, Signal::SIGTERM).unwrap();
            assert!(tracer.child.wait().unwrap().success(), "{}", tracer.log());
            // Another process may have its number now.
            std::mem::forget(agent);
        });
        let text = String::from_utf8_lossy(&fs::read(&calls).unwrap()).into_owned();
        // `123 read(3, ...) = 4`, and `123 <... read resumed>...`; other lines are about signals and ends.
        let name = |line: &str| {
            let (_, call) = line.split_once(' ')?;
            let (name, _) = call.trim_start().split_once('(')?;
            let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            is_name.then(|| name.to_owned())
        };
        let used: BTreeSet<String> = text.lines().filter_map(name).collect();
        assert!(used.len() > 30, "{used:?}");
        let others: Vec<&String> = used
            .iter()
            .filter(|name| !permitted.contains(name.as_str()))
            .collect();
        assert!(others.is_empty(), "{mode}, {variant}: {others:?}");
    }
}
