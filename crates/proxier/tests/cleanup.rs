//! Cleanup removes everything that is owned and nothing else; hand-back leaves what kube-proxy would have written.
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
mod support;

use kernlink_dummylink::LinkName;
use kernlink_ipset::{Operation as SetOperation, SetName};
use kernlink_iptables_restore::{Edit, Family as TablesFamily, Restore, Save, Table};
use kernlink_proxier::ipvs_mode::hand_back::HandBack;
use kernlink_proxier::ipvs_mode::retire::Retiring;
use kernlink_proxier::ipvs_mode::{Kernel, Operation, Proxier, SetId};
use kernlink_proxier::retire::{Retire, Retired, RetiredOutcome, RetiredStep, Round};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, ObjectChange, ObjectName, Port, Service,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::faulty::Faults;
use crate::host::{config, host, now, state};
use crate::support::clusters::{Step, apply, step};

/// A Service with an endpoint.
fn service() -> [Step; 2] {
    let name = ObjectName::new("ns", "web");
    let service = Service::new(name.clone())
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80));
    let slice = EndpointSlice::new(name, "web", Family::Ipv4)
        .with_port(EndpointPort::new("http", 8080))
        .with_endpoint(Endpoint::new([10, 244, 0, 1].into()));
    [
        Step::Change(0, Change::Services(ObjectChange::Upsert(service))),
        Step::Change(0, Change::EndpointSlices(ObjectChange::Upsert(slice))),
    ]
}

/// A host after a sync with these steps.
fn synced(steps: &[Step]) -> Kernel {
    let mut proxier = Proxier::new(&config(), host()).unwrap();
    apply(&mut proxier, steps);
    let synced = proxier.sync(now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    proxier.into_kernel()
}

/// IPVS mode on this node, which no mode serves.
/// Adds a rule of another program.
fn append_to_prerouting(kernel: &mut Kernel, rule: &str) {
    let edit = Edit::append("PREROUTING".parse().unwrap(), rule.parse().unwrap());
    let restore = Restore::new(TablesFamily::Ipv4).with(Table::Nat, edit);
    kernel.rules.restore(&restore).unwrap();
}

fn retiring(kernel: Kernel) -> Retiring {
    let links = Box::new(kernlink_dummylink::Fake::new());
    Retiring::new(config(), links).unwrap().with_kernel(kernel)
}

fn clean_up(retiring: &mut Retiring) -> Retired {
    retiring.retire(&Round::without_serving_mode(now()))
}

/// The steps of a removal, which are not executed.
fn plan(retiring: &mut Retiring) -> Retired {
    retiring.retire(&Round {
        executes: false,
        ..Round::without_serving_mode(now())
    })
}

fn commands(retired: &Retired) -> Vec<&str> {
    retired.steps.iter().map(|step| step.command.as_str()).collect()
}

/// Removes everything, with one round.
fn clean(kernel: Kernel) -> Kernel {
    let mut retiring = retiring(kernel);
    let retired = clean_up(&mut retiring);
    for step in &retired.steps {
        assert_eq!(step.outcome, RetiredOutcome::Done, "{}", step.command);
    }
    assert_eq!((retired.problems, retired.kept), (Vec::new(), Vec::new()));
    retiring.into_kernel().unwrap()
}

fn set_names(kernel: &mut Kernel) -> Vec<String> {
    let headers = kernel.sets.headers().unwrap().into_iter();
    headers.map(|header| header.set.name.to_string()).collect()
}

/// The state without tables that were created when they were read.
fn comparable(kernel: &mut Kernel) -> Vec<String> {
    for family in TablesFamily::ALL {
        for table in [Table::Nat, Table::Filter] {
            kernel.rules.save(&Save::table(family, table)).unwrap();
        }
    }
    let text = state(kernel);
    text.lines().map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn cleanup_leaves_the_host_as_it_was(steps in vec(step(), 0..30)) {
        let mut retiring = retiring(synced(&steps));
        let planned = plan(&mut retiring);
        let mut kernel = clean(retiring.into_kernel().unwrap());
        prop_assert_eq!(comparable(&mut kernel), comparable(&mut host()));
        prop_assert!(!planned.steps.is_empty());
        // Again: nothing is left to do.
        let again = plan(&mut self::retiring(kernel));
        prop_assert_eq!(commands(&again), Vec::<&str>::new());
        prop_assert!(again.is_gone);
    }

    #[test]
    fn hand_back_removes_the_sets_of_kernlink_only_and_kernlink_can_return(steps in vec(step(), 0..30)) {
        let mut kernel = synced(&steps);
        let before = set_names(&mut kernel);
        let removal = HandBack::plan(&mut kernel);
        prop_assert!(removal.execute(&mut kernel).iter().all(Result::is_ok), "{}", removal);
        let kept: Vec<String> = before.into_iter().filter(|name| !name.starts_with("KERNLINK")).collect();
        prop_assert_eq!(set_names(&mut kernel), kept);
        let mut proxier = Proxier::new(&config(), kernel).unwrap();
        apply(&mut proxier, &steps);
        let plan = proxier.plan(now()).unwrap();
        for (_, step) in plan.steps() {
            let text = step.operation.to_string();
            prop_assert!(text.contains("KERNLINK"), "{}", plan);
        }
    }
}

#[test]
fn a_chain_that_a_foreign_rule_uses_stays_with_the_chains_that_it_uses() {
    let mut kernel = synced(&[]);
    let rule = "-p tcp -m tcp --dport 8080 -j KUBE-LOAD-BALANCER";
    append_to_prerouting(&mut kernel, rule);
    let mut retiring = retiring(kernel);
    let retired = clean_up(&mut retiring);
    let is_done = |step: &RetiredStep| step.outcome == RetiredOutcome::Done;
    assert!(retired.steps.iter().all(is_done), "{:?}", retired.steps);
    let kept = [
        "IPv4 chain KUBE-LOAD-BALANCER of table nat stays: foreign rules use it",
        "IPv4 chain KUBE-MARK-MASQ of table nat stays: foreign rules use it",
    ];
    assert_eq!(retired.kept, kept);
    let mut kernel = retiring.into_kernel().unwrap();
    let saved = kernel.rules.save(&Save::table(Family::Ipv4, Table::Nat)).unwrap();
    let saved = saved.to_string();
    assert!(
        saved.contains("-A PREROUTING -p tcp -m tcp --dport 8080 -j KUBE-LOAD-BALANCER"),
        "{saved}"
    );
    assert!(
        saved.contains(":KUBE-MARK-MASQ") && !saved.contains("KUBE-SERVICES"),
        "{saved}"
    );
}

#[test]
fn hand_back_restores_the_size_of_an_enlarged_set() {
    let mut kernel = synced(&[]);
    let mut larger = SetId::ClusterIp.definition(Family::Ipv4);
    larger.options.maxelem = Some(131_072);
    let replace = kernlink_proxier::ipvs_mode::replacement::Replacement {
        set: larger,
        entries: Vec::new(),
    };
    kernel.execute(&Operation::ReplaceSet(Box::new(replace))).unwrap();
    let removal = HandBack::plan(&mut kernel);
    assert!(
        removal.execute(&mut kernel).iter().all(Result::is_ok),
        "{removal}"
    );
    assert_eq!(removal.too_large, []);
    let header = kernel
        .sets
        .header(&SetName::new("KUBE-CLUSTER-IP").unwrap())
        .unwrap();
    assert_eq!(header.set.options.maxelem, Some(65_536));
    // An unknown set stays.
    assert!(set_names(&mut kernel).contains(&"blocked".to_owned()));
    assert!(!removal.operations.iter().any(|operation| {
        matches!(operation, Operation::Set(SetOperation::Destroy { set, .. }) if set.to_string().starts_with("KUBE"))
    }));
}

#[test]
fn the_plan_of_a_cleanup_prints_the_commands_that_it_executes_and_changes_nothing() {
    let mut kernel = synced(&service());
    let before = comparable(&mut kernel);
    let mut retiring = retiring(kernel);
    let planned = plan(&mut retiring);
    let planned = commands(&planned);
    for command in [
        "ip address delete 10.96.0.1/32 dev kube-ipvs0",
        "ipvsadm -D -t 10.96.0.1:80",
        "ipset destroy KUBE-CLUSTER-IP",
        "ip link delete kube-ipvs0 type dummy",
    ] {
        let at = planned.iter().position(|planned| *planned == command);
        assert!(at.is_some(), "{command}: {planned:#?}");
    }
    assert!(
        planned.iter().any(|command| command.contains("-X KUBE-SERVICES")),
        "{planned:#?}"
    );
    assert_eq!(planned.last(), Some(&"ip link delete kube-ipvs0 type dummy"));
    // Sets are destroyed with their entries.
    assert!(
        !planned.iter().any(|command| command.starts_with("ipset del ")),
        "{planned:#?}"
    );
    let mut kernel = retiring.into_kernel().unwrap();
    assert_eq!(comparable(&mut kernel), before);
    let mut retiring = self::retiring(kernel);
    assert_eq!(commands(&clean_up(&mut retiring)), planned);
}

/// A host with the chains of iptables mode, on which IPVS mode did not run.
#[test]
fn a_cleanup_creates_nothing_where_ipvs_mode_is_not_in_use() {
    let mut kernel = host();
    let chain = kernlink_iptables_restore::Restore::new(Family::Ipv4).with(
        Table::Nat,
        kernlink_iptables_restore::Edit::declare("KUBE-SERVICES".parse().unwrap()),
    );
    kernel.rules.restore(&chain).unwrap();
    let mut before = comparable(&mut kernel);
    let mut retiring = retiring(kernel);
    assert_eq!(plan(&mut retiring).steps.len(), 1);
    let retired = clean_up(&mut retiring);
    assert_eq!(commands(&retired).len(), 1);
    before.retain(|line| !line.contains("KUBE-SERVICES"));
    assert_eq!(comparable(&mut retiring.into_kernel().unwrap()), before);
}

/// A set that a foreign rule names cannot be destroyed.
#[test]
fn a_set_that_a_rule_names_which_stays_is_emptied_and_stays() {
    let mut kernel = synced(&service());
    append_to_prerouting(
        &mut kernel,
        "-m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
    );
    let mut retiring = retiring(kernel);
    let retired = clean_up(&mut retiring);
    let kept = "set KUBE-CLUSTER-IP stays: rules that stay name it";
    assert_eq!(retired.kept, [kept]);
    let again = clean_up(&mut retiring);
    assert_eq!((commands(&again), &again.kept), (vec![], &vec![kept.to_owned()]));
    let mut kernel = retiring.into_kernel().unwrap();
    assert_eq!(set_names(&mut kernel), ["blocked", "KUBE-CLUSTER-IP"]);
    let set = SetName::new("KUBE-CLUSTER-IP").unwrap();
    assert_eq!(kernel.sets.list_set(&set).unwrap().entries, []);
    let link = LinkName::new("kube-ipvs0").unwrap();
    assert!(!kernel.links.exists(&link).unwrap());
}

/// By the ledger the next removal recognises the virtual server.
#[test]
fn the_ledger_and_the_link_stay_as_long_as_a_virtual_server_cannot_be_deleted() {
    let (kernel, faults) = Faults::of_kernel(synced(&service()));
    let mut retiring = retiring(kernel);
    faults.refuse("-D -t 10.96.0.1:80");
    let retired = clean_up(&mut retiring);
    let of = |outcome: fn(&RetiredOutcome) -> bool| -> Vec<&str> {
        let steps = retired.steps.iter().filter(|step| outcome(&step.outcome));
        steps.map(RetiredStep::summary).collect()
    };
    let failed = of(|outcome| matches!(outcome, RetiredOutcome::Failed(_)));
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(
        of(|outcome| *outcome == RetiredOutcome::Skipped),
        [
            "ipset destroy KERNLINK-VS",
            "ip link delete kube-ipvs0 type dummy"
        ]
    );
    faults.end();
    let mut kernel = clean(retiring.into_kernel().unwrap());
    assert_eq!(comparable(&mut kernel), comparable(&mut host()));
}

/// The rest of a cleanup that did not end.
#[test]
fn a_cleanup_removes_a_link_without_sets() {
    let kernel = synced(&[]);
    let (kernel, faults) = Faults::of_kernel(kernel);
    let mut retiring = retiring(kernel);
    faults.refuse("link delete");
    clean_up(&mut retiring);
    faults.end();
    let mut kernel = retiring.into_kernel().unwrap();
    assert_eq!(set_names(&mut kernel), ["blocked"]);
    let mut kernel = clean(kernel);
    assert_eq!(comparable(&mut kernel), comparable(&mut host()));
}
