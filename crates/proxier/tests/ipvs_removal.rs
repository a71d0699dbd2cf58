//! The removal of what IPVS mode left, if operations fail or the kernel cannot be read: what identifies an object as owned stays as long as the
//! object does.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/host.rs"]
mod host;
#[path = "support/node.rs"]
mod node;
#[path = "support/udp.rs"]
mod udp;
#[path = "support/without_module.rs"]
mod without_module;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_dummylink::LinkName;
use kernlink_iptables_restore::{
    Edit, Error, Iptables, Operation, Refused, RefusedKind, Restore, Ruleset, Save, Table,
};
use kernlink_proxier::ipvs_mode::hand_back::HandBack;
use kernlink_proxier::ipvs_mode::retire::Retiring;
use kernlink_proxier::ipvs_mode::{Kernel, SetId};
use kernlink_proxier::retire::{Retire, Retired, RetiredOutcome, Round};
use kernlink_services::{Family, Service};

use crate::faulty::Faults;
use crate::node::{bound, config, endpoints, proxier, service, upsert, virtual_servers};
use crate::udp::{NODE_PORT, add, clients, udp, udp_endpoints, udp_service, with_node_port};
use crate::without_module::WithoutModule;

/// A host after IPVS mode served a TCP and a UDP Service, with a flow to the latter, and faults that tests inject.
fn served() -> (Kernel, Faults) {
    served_with(udp_service("dns", "10.96.0.10"))
}

fn served_with(dns: Service) -> (Kernel, Faults) {
    let mut proxier = proxier(config(), host::host());
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[1]);
    upsert(&mut proxier, dns);
    udp_endpoints(&mut proxier, "dns", &[1]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let mut kernel = proxier.into_kernel();
    add(&mut kernel, &[udp(1, "10.96.0.10:53", "10.244.0.1:5353")]);
    let (mut kernel, faults) = Faults::of_kernel(kernel);
    kernel.rules = faults.tables(kernel.rules);
    (kernel, faults)
}

/// The same after kube-proxy served: there is no ledger.
fn served_by_kube_proxy() -> (Kernel, Faults) {
    handed_back(served())
}

fn handed_back((mut kernel, faults): (Kernel, Faults)) -> (Kernel, Faults) {
    let plan = HandBack::plan(&mut kernel);
    assert!(plan.execute(&mut kernel).iter().all(Result::is_ok), "{plan}");
    assert!(
        !set_names(&mut kernel)
            .iter()
            .any(|name| name.starts_with("KERNLINK"))
    );
    (kernel, faults)
}

/// One round of a removal by a new process, without a serving mode.
fn clean(kernel: Kernel) -> (Kernel, Retired) {
    let links = Box::new(kernlink_dummylink::Fake::new());
    let mut retiring = Retiring::new(config(), links).unwrap().with_kernel(kernel);
    let retired = retiring.retire(&Round::without_serving_mode(Instant::now()));
    (retiring.into_kernel().unwrap(), retired)
}

/// A new process on a node that another mode serves. By the link it finds that something is left.
fn retiring(kernel: Kernel) -> Retiring {
    let link = LinkName::new("kube-ipvs0").unwrap();
    let links = Box::new(kernlink_dummylink::Fake::new().with_link(link, Some("dummy"), &[]));
    Retiring::new(config(), links).unwrap().with_kernel(kernel)
}

/// One round while another mode serves the node, which serves all frontends. Returns when the next one is due.
fn round(retiring: &mut Retiring, now: Instant) -> (Retired, Instant) {
    let retired = retiring.retire(&Round {
        has_serving_mode: true,
        ..Round::without_serving_mode(now)
    });
    let next = retired.next.unwrap_or(now).max(now + Duration::from_secs(1));
    (retired, next)
}

/// The commands that failed, and those that were skipped.
fn undone(retired: &Retired) -> (Vec<&str>, Vec<&str>) {
    let with = |is: fn(&RetiredOutcome) -> bool| {
        let steps = retired.steps.iter().filter(move |step| is(&step.outcome));
        steps.map(|step| step.summary()).collect()
    };
    (
        with(|outcome| matches!(outcome, RetiredOutcome::Failed(_))),
        with(|outcome| *outcome == RetiredOutcome::Skipped),
    )
}

fn set_names(kernel: &mut Kernel) -> Vec<String> {
    let headers = kernel.sets.headers().unwrap().into_iter();
    headers.map(|header| header.set.name.to_string()).collect()
}

/// The virtual servers of Services.
fn owned_servers(kernel: &mut Kernel) -> Vec<String> {
    let mut servers = virtual_servers(kernel);
    servers.retain(|server| server.contains("10.96.0."));
    servers
}

/// Ends the faults, and removes the rest: nothing stays.
fn remove_rest(kernel: Kernel, faults: &Faults) {
    faults.end();
    let (mut kernel, retired) = clean(kernel);
    assert_eq!(undone(&retired), (Vec::new(), Vec::new()));
    assert_eq!((retired.problems, retired.kept), (Vec::new(), Vec::new()));
    assert_eq!(clients(&mut kernel), [0; 0]);
    let listed = host::listed(&mut kernel);
    assert_eq!(listed, host::listed(&mut host::host()));
    let rules = kernel.rules.save(&Save::all(Family::Ipv4));
    let rules = rules.unwrap().to_string();
    assert!(!rules.contains("KUBE-"), "{rules}");
}

#[test]
fn stale_flows_that_could_not_be_deleted_are_deleted_by_the_next_removal() {
    for (mut kernel, faults) in [served(), served_by_kube_proxy()] {
        faults.refuse("conntrack -L");
        // After the first removal, only an entry names the virtual server.
        for _ in 0..2 {
            let (again, retired) = clean(kernel);
            kernel = again;
            let (failed, skipped) = undone(&retired);
            assert_eq!(
                failed,
                [
                    "# conntrack: delete the stale IPv4 UDP flows to 1 destination, except those that rules translated"
                ]
            );
            assert_eq!(skipped.last(), Some(&"ip link delete kube-ipvs0 type dummy"));
            assert!(!retired.is_gone);
            assert_eq!(owned_servers(&mut kernel), Vec::<String>::new());
        }
        faults.end();
        assert_eq!(clients(&mut kernel), [1]);
        remove_rest(kernel, &faults);
    }
}

#[test]
fn stale_flows_to_a_node_port_are_found_by_its_entry() {
    let dns = with_node_port(udp_service("dns", "10.96.0.10"), NODE_PORT);
    let (mut kernel, faults) = handed_back(served_with(dns));
    add(&mut kernel, &[udp(2, "192.0.2.1:30053", "10.244.0.1:5353")]);
    faults.refuse("conntrack -L");
    let (mut kernel, retired) = clean(kernel);
    assert!(!retired.is_gone);
    faults.end();
    assert_eq!(clients(&mut kernel), [1, 2]);
    remove_rest(kernel, &faults);
}

#[test]
fn while_another_mode_serves_a_udp_virtual_server_waits_for_the_deletion_of_its_flows_and_no_other_does() {
    let (kernel, faults) = served();
    let mut retiring = retiring(kernel);
    let start = Instant::now();
    assert_eq!(retiring.read(start, &|_| false), Ok(true));
    faults.refuse("conntrack -L");
    let (retired, mut now) = round(&mut retiring, start);
    let (failed, skipped) = undone(&retired);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].contains("flows"), "{failed:?}");
    assert_eq!(skipped.first(), Some(&"ipvsadm -D -u 10.96.0.10:53"));
    let is_deleted = |_| {
        let (retired, next) = round(&mut retiring, now);
        now = next;
        let mut steps = retired.steps.iter();
        steps.any(|step| step.command == "ipvsadm -D -t 10.96.0.1:80" && step.outcome == RetiredOutcome::Done)
    };
    assert!((0..10).any(is_deleted));
    remove_rest(retiring.into_kernel().unwrap(), &faults);
}

/// It is not known which sets rules name, nor which chains are left.
#[test]
fn while_the_tables_cannot_be_read_chains_sets_and_the_link_stay() {
    let (kernel, faults) = served();
    let mut retiring = retiring(kernel);
    let mut now = Instant::now();
    assert_eq!(retiring.read(now, &|_| false), Ok(true));
    faults.refuse("read tables");
    let mut problems = Vec::new();
    for _ in 0..20 {
        let (retired, next) = round(&mut retiring, now);
        now = next;
        for step in &retired.steps {
            let is_of_rest = ["destroy", "link delete", "-restore"].map(|text| step.command.contains(text));
            assert_eq!(is_of_rest, [false; 3], "{}", step.command);
        }
        assert!(!retired.is_gone);
        problems = retired.problems;
    }
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(retiring.read(now, &|_| false), Err(problems[0].clone()));
    faults.end();
    assert_eq!(retiring.read(now, &|_| false), Ok(true));
    let is_gone = |_| {
        let (retired, next) = round(&mut retiring, now);
        now = next;
        retired.is_gone
    };
    assert!((0..60).any(is_gone));
    remove_rest(retiring.into_kernel().unwrap(), &faults);
}

/// Tables of a host without those of IPv6.
struct WithoutIpv6(Box<dyn Iptables>);

impl Iptables for WithoutIpv6 {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.0.execute(operations)
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        if request.family != Family::Ipv6 {
            return self.0.save(request);
        }
        Err(Error::Refused {
            tool: "ip6tables-save".to_owned(),
            refused: Box::new(Refused::Whole(Family::Ipv6)),
            kind: RefusedKind::Unsupported,
            text: "Table does not exist".to_owned(),
            status: Some(3),
            applied: Vec::new(),
        })
    }
}

#[test]
fn the_removal_ends_on_a_host_without_the_tables_of_a_family() {
    let (mut kernel, faults) = served();
    kernel.rules = Box::new(WithoutIpv6(kernel.rules));
    let mut retiring = retiring(kernel);
    let mut now = Instant::now();
    assert_eq!(retiring.read(now, &|_| false), Ok(true));
    let is_gone = |_| {
        let (retired, next) = round(&mut retiring, now);
        now = next;
        assert_eq!(retired.problems, [""; 0]);
        retired.is_gone
    };
    assert!((0..60).any(is_gone));
    remove_rest(retiring.into_kernel().unwrap(), &faults);
}

#[test]
fn the_link_is_deleted_with_the_sets_or_by_the_next_round_if_a_rule_names_one() {
    for is_named in [false, true] {
        let (mut kernel, _) = served();
        if is_named {
            let rule = "-m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT";
            let edit = Edit::append("FORWARD".parse().unwrap(), rule.parse().unwrap());
            let restore = Restore::new(Family::Ipv4).with(Table::Filter, edit);
            kernel.rules.restore(&restore).unwrap();
        }
        let mut retiring = retiring(kernel);
        let mut now = Instant::now();
        assert_eq!(retiring.read(now, &|_| false), Ok(true));
        let mut rounds = Vec::new();
        loop {
            let (retired, next) = round(&mut retiring, now);
            assert_eq!(undone(&retired), (Vec::new(), Vec::new()));
            if retired.is_gone {
                break;
            }
            rounds.push(retired);
            assert!(rounds.len() < 60, "{:?}", rounds.last());
            now = next;
        }
        let round_of = |text: &str| {
            let has = |round: &Retired| round.steps.iter().any(|step| step.command.contains(text));
            rounds.iter().position(has).unwrap()
        };
        let chains = round_of("-X KUBE-IPVS-FILTER");
        assert_eq!(round_of("destroy KUBE-LOOP-BACK"), chains);
        assert_eq!(round_of("link delete"), chains + usize::from(is_named));
        let sets = set_names(&mut retiring.into_kernel().unwrap());
        assert_eq!(sets.contains(&"KUBE-CLUSTER-IP".to_owned()), is_named);
    }
}

#[test]
fn without_a_ledger_the_sets_stay_as_long_as_a_virtual_server_cannot_be_deleted() {
    let (kernel, faults) = served_by_kube_proxy();
    faults.refuse("-D -t 10.96.0.1:80");
    let (mut kernel, retired) = clean(kernel);
    assert_eq!(undone(&retired).0, ["ipvsadm -D -t 10.96.0.1:80"]);
    let frontends = "10.96.0.1,tcp:80";
    let cluster_ips = node::entries(&mut kernel, SetId::ClusterIp);
    assert!(
        cluster_ips.iter().any(|entry| entry == frontends),
        "{cluster_ips:?}"
    );
    // Nothing leads to it meanwhile, and what identifies no virtual server is gone.
    assert_eq!(bound(&mut kernel), Vec::<String>::new());
    assert!(
        !set_names(&mut kernel)
            .iter()
            .any(|name| name.contains("LOOP-BACK"))
    );
    remove_rest(kernel, &faults);
}

/// As after a kube-proxy that ended before it wrote its sets.
#[test]
fn an_address_that_alone_identifies_a_virtual_server_stays_as_long_as_it_does() {
    let (mut kernel, faults) = served_by_kube_proxy();
    kernel.sets.flush(&SetId::ClusterIp.name(Family::Ipv4)).unwrap();
    faults.refuse("-D -t 10.96.0.1:80");
    let (mut kernel, retired) = clean(kernel);
    let (failed, skipped) = undone(&retired);
    assert_eq!(failed, ["ipvsadm -D -t 10.96.0.1:80"]);
    for command in [
        "ip address delete 10.96.0.1/32 dev kube-ipvs0",
        "ip link delete kube-ipvs0 type dummy",
    ] {
        assert!(skipped.contains(&command), "{skipped:?}");
    }
    assert_eq!(bound(&mut kernel), ["10.96.0.1/32"]);
    remove_rest(kernel, &faults);
}

#[test]
fn a_family_of_which_it_is_not_known_which_virtual_servers_are_owned_stays_as_it_is() {
    let unreadable = [
        (served(), "read set KERNLINK-VS"),
        (served(), "read sets"),
        (served(), "read addresses"),
        (served_by_kube_proxy(), "read set KUBE-CLUSTER-IP"),
    ];
    for ((mut kernel, faults), reading) in unreadable {
        let before = host::listed(&mut kernel);
        faults.refuse(reading);
        let (mut kernel, retired) = clean(kernel);
        assert_eq!(
            (retired.problems.len(), retired.is_gone),
            (1, false),
            "{reading}: {:?}",
            retired.problems
        );
        assert!(
            retired
                .kept
                .iter()
                .any(|kept| kept.starts_with("what IPVS mode left of IPv4 stays")),
            "{reading}: {:?}",
            retired.kept
        );
        faults.end();
        let is_ipv4 = |line: &String| !line.contains("inet6") && !line.contains("-6-");
        let after: Vec<String> = host::listed(&mut kernel).into_iter().filter(is_ipv4).collect();
        let before: Vec<String> = before.into_iter().filter(is_ipv4).collect();
        assert_eq!(after, before, "{reading}");
        remove_rest(kernel, &faults);
    }
}

#[test]
fn it_is_not_known_whether_it_serves_only_if_it_is_not_known_which_virtual_servers_are_owned() {
    let is_serving = |reading: &str| {
        let (kernel, faults) = served();
        faults.refuse(reading);
        let links = Box::new(kernlink_dummylink::Fake::new());
        let mut retiring = Retiring::new(config(), links).unwrap().with_kernel(kernel);
        retiring.is_serving()
    };
    assert!(is_serving("read set KERNLINK-VS").is_err());
    assert_eq!(is_serving("read set KUBE-LOOP-BACK"), Ok(true));
}

#[test]
fn a_restore_that_is_refused_keeps_the_sets_of_its_family_only() {
    let (kernel, faults) = served();
    faults.refuse("ip6tables-restore");
    let (mut kernel, retired) = clean(kernel);
    let (failed, skipped) = undone(&retired);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].starts_with("ip6tables-restore"), "{failed:?}");
    assert!(
        !skipped.is_empty() && skipped.iter().all(|command| command.contains("-6-")),
        "{skipped:?}"
    );
    let kept = set_names(&mut kernel)
        .into_iter()
        .filter(|name| !name.contains("-6-"));
    assert_eq!(kept.collect::<Vec<_>>(), ["blocked"]);
    remove_rest(kernel, &faults);
}

#[test]
fn a_set_whose_entries_cannot_be_read_is_destroyed() {
    let (kernel, faults) = served();
    faults.refuse("read set KUBE-CLUSTER-IP");
    let (mut kernel, retired) = clean(kernel);
    assert_eq!(undone(&retired), (Vec::new(), Vec::new()));
    assert_eq!(set_names(&mut kernel), ["blocked"]);
    remove_rest(kernel, &faults);
}

/// Without the module the flows cannot be deleted, and the connections of the node not be read.
#[test]
fn the_removal_ends_on_a_kernel_without_connection_tracking_over_netlink() {
    for has_serving_mode in [true, false] {
        let (mut kernel, faults) = served();
        let is_loaded = Arc::new(Mutex::new(false));
        kernel.conntrack = Box::new(WithoutModule::new(
            kernlink_conntrack::Fake::new(),
            Arc::clone(&is_loaded),
        ));
        let mut retiring = retiring(kernel);
        let mut now = Instant::now();
        if has_serving_mode {
            assert_eq!(retiring.read(now, &|_| false), Ok(true));
        }
        let unserved = BTreeMap::new();
        let mut rounds = 0;
        loop {
            let retired = retiring.retire(&Round {
                has_serving_mode,
                unserved: &unserved,
                now,
                ..Round::without_serving_mode(now)
            });
            assert_eq!((undone(&retired).0, &retired.problems), (Vec::new(), &Vec::new()));
            if retired.is_gone {
                break;
            }
            rounds += 1;
            assert!(rounds < 20, "{retired:?}");
            now += Duration::from_secs(60);
        }
        *is_loaded.lock().unwrap() = true;
        remove_rest(retiring.into_kernel().unwrap(), &faults);
    }
}

#[test]
fn a_process_that_could_not_destroy_a_set_goes_on_until_it_is_destroyed() {
    let (kernel, faults) = served();
    faults.refuse("destroy KUBE-CLUSTER-IP");
    let mut retiring = retiring(kernel);
    let mut now = Instant::now();
    assert!(retiring.read(now, &|_| false).unwrap());
    let with_serving_mode = |now| Round {
        has_serving_mode: true,
        ..Round::without_serving_mode(now)
    };
    let mut failures = 0;
    for _ in 0..60 {
        let retired = retiring.retire(&with_serving_mode(now));
        assert!(!retired.is_gone);
        failures += undone(&retired).0.len();
        if failures == 2 {
            assert_eq!(retired.waiting, 1);
            break;
        }
        // The kernel is not read as a whole in between.
        now = retired.next.unwrap_or(now).max(now + Duration::from_secs(1));
    }
    // It was tried again.
    assert_eq!(failures, 2);
    faults.end();
    let is_gone = |_| {
        let retired = retiring.retire(&with_serving_mode(now));
        now = retired.next.unwrap_or(now).max(now + Duration::from_secs(1));
        retired.is_gone
    };
    assert!((0..60).any(is_gone));
    let mut kernel = retiring.into_kernel().unwrap();
    assert_eq!(host::listed(&mut kernel), host::listed(&mut host::host()));
}
