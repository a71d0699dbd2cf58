//! The agent in iptables mode, with the legacy and the nft tools. It needs no IPVS.

use std::fs;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{requires, tools, wait};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::support::{Agent, Manifests, ask, get, run, service, text, wait_for_answer};

const MODE: &[&str] = &["--proxy-mode", "iptables", "--iptables-sync-period", "10m"];

/// The tools of iptables: what `iptables` is on the host, and another variant.
pub(crate) const MULTI: [&str; 2] = ["iptables-legacy", "iptables-nft"];

/// Makes a variant the default of the host, for the calling thread and the programs that it starts.
pub(crate) fn choose(variant: &str) {
    let is_file = |folder: &&str| fs::exists(format!("{folder}/{variant}")).unwrap_or(false);
    let folder = ["/usr/sbin", "/sbin"].into_iter().find(is_file).unwrap();
    let chosen = fs::canonicalize(format!("{folder}/{variant}")).unwrap();
    let default = fs::canonicalize(format!("{folder}/iptables")).unwrap();
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    if chosen != default {
        mount(Some(&chosen), &default, none, MsFlags::MS_BIND, none).unwrap();
    }
    // The lock file of the legacy tools is that of the whole host.
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none).unwrap();
}

/// The rules of table `nat`.
pub(crate) fn rules() -> String {
    tools::run("iptables-save", &["-t", "nat"]).unwrap()
}

/// The rules of tables `filter` and `nat` of both families, without counters.
fn all_rules() -> String {
    let tables = ["iptables-save", "ip6tables-save"]
        .into_iter()
        .flat_map(|tool| ["filter", "nat"].map(|table| tools::run(tool, &["-t", table]).unwrap()));
    let text: String = tables.collect();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split(" [").next().unwrap_or(line).to_owned() + "\n")
        .collect()
}

/// `--cleanup` removes the Services and leaves what is foreign; with `--dry-run` it changes nothing.
fn assert_is_cleaned_up(network: &Network, manifests: &Manifests) {
    let foreign = "-A INPUT -s 192.0.2.66/32 -j DROP\n";
    let words: Vec<&str> = foreign.split_whitespace().collect();
    tools::run("iptables", &words).unwrap();
    let before = all_rules();
    let planned = text(&run(&manifests.0, &[MODE, &["--cleanup", "--dry-run"]].concat()));
    assert!(planned.contains("-X KUBE-SVC-"), "{planned}");
    assert_eq!(all_rules(), before);
    assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");

    let cleaned = run(&manifests.0, &[MODE, &["--cleanup"]].concat());
    assert!(cleaned.status.success(), "{}", text(&cleaned));
    let after = all_rules();
    assert!(after.contains(foreign), "{after}");
    let is_left = |line: &&str| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL");
    assert_eq!(after.lines().find(is_left), None, "{after}");
    assert!(ask(&network.client, "10.96.0.1").is_err());
    let again = run(&manifests.0, &[MODE, &["--cleanup", "--dry-run"]].concat());
    assert_eq!(text(&again), "# nothing to do\n");
}

#[test]
fn an_agent_in_iptables_mode_follows_its_folder_and_leaves_the_kernel_working() {
    requires!(Feature::Iptables);
    for variant in MULTI {
        let network = Network::new(2);
        let _servers = network.serve(Protocol::Tcp, 8080);
        let manifests = Manifests::new();
        manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
        network.node.run(|| {
            choose(variant);
            let version = tools::run("iptables", &["--version"]).unwrap();
            let expected = if variant == "iptables-nft" {
                "nf_tables"
            } else {
                "legacy"
            };
            assert!(version.contains(expected), "{version}");

            let agent = Agent::start(&manifests.0, MODE);
            agent.wait_for(" synced done=", 1);
            assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");
            assert_eq!(agent.status("THP_enabled:"), "0");
            let mode = get("127.0.0.1:10249", "/proxyMode").unwrap();
            assert!(mode.ends_with("\r\n\r\niptables"), "{mode}");
            wait::until(|| match get("127.0.0.1:10256", "/healthz")? {
                answer if answer.starts_with("HTTP/1.1 200 OK\r\n") => Ok(()),
                answer => Err(answer),
            });

            // A new Service, a changed one, and one that is deleted.
            manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0]));
            wait_for_answer(&network, "10.96.0.2", "pod0");
            manifests.replace("a.yaml", &service("a", "10.96.0.1", &[1]));
            wait_for_answer(&network, "10.96.0.1", "pod1");
            fs::remove_file(manifests.0.join("b.yaml")).unwrap();
            wait::until(|| match rules() {
                rules if rules.contains("default/b") => Err(rules),
                _ => Ok(()),
            });
            assert!(ask(&network.client, "10.96.0.2").is_err());
            // What another program removes is repaired, although the period is ten minutes.
            tools::run("iptables", &["-w", "-t", "nat", "-F"]).unwrap();
            wait::until(|| ask(&network.client, "10.96.0.1"));
            let page = get("127.0.0.1:10249", "/metrics").unwrap();
            let syncs = "\nkubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} ";
            assert!(page.contains(syncs), "{page}");
            let counted = "\nkubeproxy_iptables_ct_state_invalid_dropped_packets_total ";
            assert!(page.contains(counted), "{page}");

            // The end of the agent changes nothing.
            let before = rules();
            let (status, log) = agent.stop();
            assert!(status.success(), "{log}");
            assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod1");
            assert!(before.contains("default/a"), "{before}");
            let plan = run(&manifests.0, &[MODE, &["--dry-run"]].concat());
            assert_eq!(text(&plan), "# nothing to do\n");

            // IPVS mode is not used: no set, no link.
            assert!(!tools::ip_addresses().contains("kube-ipvs0"));

            // What is not known at the start is not deleted.
            manifests.replace("b.yaml", "kind: [");
            let agent = Agent::start(&manifests.0, MODE);
            agent.wait_for("nothing is synced: some objects of the folder are not known", 1);
            assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod1");
            fs::remove_file(manifests.0.join("b.yaml")).unwrap();
            fs::remove_file(manifests.0.join("a.yaml")).unwrap();
            manifests.replace("c.yaml", &service("c", "10.96.0.3", &[0]));
            wait_for_answer(&network, "10.96.0.3", "pod0");
            agent.stop();

            // One sync, with all Services.
            manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
            let once = run(&manifests.0, &[MODE, &["--once"]].concat());
            assert!(once.status.success(), "{}", text(&once));
            wait_for_answer(&network, "10.96.0.1", "pod0");
            assert_eq!(ask(&network.client, "10.96.0.3").unwrap(), "pod0");
            assert_is_cleaned_up(&network, &manifests);
        });
    }
}

#[test]
fn a_sync_that_changes_something_has_a_line_in_the_log_only_if_asked_for() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    let file = manifests.0.join("kube-proxy.conf");
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    fs::write(&file, format!("{header}logging: {{verbosity: 2}}\n")).unwrap();
    let of_file = ["--config", file.to_str().unwrap()];
    network.node.run(|| {
        choose("iptables-nft");
        for (arguments, has_all) in [
            (&[][..], false),
            (&["--v", "2"], true),
            (&of_file, true),
            (&[of_file[0], of_file[1], "-v1"], false),
        ] {
            manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
            let agent = Agent::start(&manifests.0, &[MODE, arguments].concat());
            agent.wait_for(" synced done=", 1);
            for name in ["b", "c"] {
                let address = if name == "b" { "10.96.0.2" } else { "10.96.0.3" };
                manifests.replace("b.yaml", &service(name, address, &[0]));
                wait_for_answer(&network, address, "pod0");
            }
            let (_, log) = agent.stop();
            let lines = log.matches(" synced done=").count();
            assert_eq!(lines > 1, has_all, "{arguments:?}: {log}");
            fs::remove_file(manifests.0.join("b.yaml")).unwrap();
        }
    });
}

/// All Services change while no restore succeeds. None loses its endpoints then, or when restores succeed again.
#[test]
fn services_are_served_while_another_program_has_the_lock_of_the_tables_and_afterwards() {
    const SERVICES: u8 = 8;
    requires!(Feature::Iptables);
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    let address = |number: u8| format!("10.96.0.{}", number + 1);
    let write = |pod: u8| {
        let text: String = (0..SERVICES)
            .map(|number| service(&format!("s{number}"), &address(number), &[pod]))
            .collect();
        manifests.replace("all.yaml", &text);
    };
    // Every Service is answered, by these pods.
    let pods = || -> Vec<String> {
        let answers = (0..SERVICES).map(|number| ask(&network.client, &address(number)));
        answers.collect::<Result<_, _>>().unwrap()
    };
    write(0);
    network.node.run(|| {
        choose("iptables-legacy");
        let agent = Agent::start(&manifests.0, MODE);
        agent.wait_for(" synced done=", 1);
        assert_eq!(pods(), vec!["pod0"; SERVICES.into()]);
        for round in 1..=2 {
            let new = round % 2;
            let lock = fs::File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open("/run/xtables.lock");
            let lock = Flock::lock(lock.unwrap(), FlockArg::LockExclusive)
                .map_err(|(_, errno)| errno)
                .unwrap();
            write(new);
            // The tools wait for the lock for some seconds.
            agent.wait_for("synced in part; what failed is retried", round.into());
            assert_eq!(pods(), vec![format!("pod{}", 1 - new); SERVICES.into()]);
            drop(lock);
            wait::until(|| match pods() {
                pods if pods.iter().all(|pod| *pod == format!("pod{new}")) => Ok(()),
                pods => Err(format!("{pods:?}")),
            });
        }
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
    });
}
