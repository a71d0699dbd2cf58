//! Foreign objects do not change when owned objects do.

use kernlink_kernel_tests::tools;
use kernlink_proxier::ipvs_mode::Proxier;

use crate::clusters::{everything, node, web};
use crate::support::{State, assert_same, feed, proxier, replace_objects, restarted, state, sync};

/// Adds foreign objects: addresses, sets, virtual servers by address and by firewall mark.
pub(crate) fn add_foreign_objects() {
    tools::ip_batch(
        "link add other type dummy\naddress add 198.51.100.77/32 dev other\naddress add 2001:db8:77::77/128 dev other\n",
    );
    feed(
        "ipset",
        &["restore"],
        "create ALLOWED hash:ip\nadd ALLOWED 198.51.100.3\ncreate KUBELIKE hash:ip,port\nadd KUBELIKE 10.96.0.11,tcp:80\n",
    );
    feed(
        "ipvsadm",
        &["-R"],
        "-A -t 203.0.113.200:80 -s wlc\n-a -t 203.0.113.200:80 -r 198.51.100.50:80 -g -w 3\n\
         -A -t 198.51.100.77:80 -s rr\n-A -t [2001:db8:77::77]:80 -s rr\n-A -u [2001:db8:ff::200]:53 -s sh\n\
         -A -f 7 -s rr\n-a -f 7 -r 198.51.100.51:0 -m -w 1\n",
    );
}

/// Adds foreign chains, and foreign rules in built-in chains.
pub(crate) fn add_foreign_rules() {
    let rules = "*nat\n:ELSEWHERE - [0:0]\n-A PREROUTING -p tcp --dport 7777 -j ELSEWHERE\n-A ELSEWHERE -j RETURN\nCOMMIT\n\
                 *filter\n:GUARD - [0:0]\n-A INPUT -p tcp --dport 22 -j GUARD\n-A GUARD -m comment --comment \"not kernlink\" -j ACCEPT\n\
                 -A FORWARD -d 198.51.100.9/32 -j DROP\nCOMMIT\n";
    feed("iptables-restore", &["--noflush"], rules);
    feed(
        "ip6tables-restore",
        &["--noflush"],
        &rules.replace("198.51.100.9/32", "2001:db8:9::9/128"),
    );
}

/// The foreign objects of a state, which [`add_foreign_objects`] added.
fn foreign_part(state: &State) -> State {
    let is_owned = |line: &str| line.contains("KUBE-") || line.contains("KERNLINK-");
    let mut part = state.clone();
    for (section, lines) in &mut part {
        match section.as_str() {
            "ipvs" => lines.retain(|line| {
                ["203.0.113.200", "-f 7", ".77:80 ", "::77]:80 ", "ff::200"]
                    .iter()
                    .any(|foreign| line.contains(foreign))
            }),
            "addresses of kube-ipvs0" => lines.clear(),
            _ => lines.retain(|line| !is_owned(line)),
        }
    }
    part.retain(|section, lines| !lines.is_empty() && !section.contains("KUBE-"));
    part
}

#[test]
fn removing_a_service_removes_its_objects_and_no_others_also_after_a_restart() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    node().run(|| {
        add_foreign_objects();
        add_foreign_rules();
        let foreign = state();
        let mut before = proxier(&web(&[(0, "node-a")]));
        sync(&mut before);
        let without = state();
        assert_same(
            &foreign_part(&without),
            &foreign_part(&foreign),
            "foreign objects with owned ones",
        );

        let both = web(&[(0, "node-a")]) + &everything();
        replace_objects(&mut before, &both);
        sync(&mut before);
        assert_ne!(state(), without);
        replace_objects(&mut before, &web(&[(0, "node-a")]));
        sync(&mut before);
        assert_same(&state(), &without, "after the removal");

        let mut before = restarted(before, &both);
        sync(&mut before);
        let mut after = restarted(before, &web(&[(0, "node-a")]));
        sync(&mut after);
        assert_same(&state(), &without, "after the removal with a restart in between");

        // Without Services the owned objects are empty sets, the link and the rules.
        sync(&mut restarted(after, ""));
        let nothing = state();
        assert_same(
            &foreign_part(&nothing),
            &foreign_part(&foreign),
            "foreign objects at the end",
        );
        assert_eq!(nothing["ipvs"], foreign["ipvs"]);
        assert_eq!(nothing.get("addresses of kube-ipvs0"), None);
        let entries = |state: &State| -> Vec<String> {
            let lines = state["ipset"].iter();
            lines.filter(|line| line.starts_with("add ")).cloned().collect()
        };
        assert_eq!(entries(&nothing), entries(&foreign));
    });
}

#[test]
fn a_foreign_virtual_server_at_a_new_virtual_ip_is_not_changed_and_is_reported_once() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    node().run(|| {
        // At the cluster IPs and load-balancer IP of later Services, with ports that no Service has.
        let foreign = [
            "-A -t 10.96.0.1:9999 -s wlc",
            "-a -t 10.96.0.1:9999 -r 198.51.100.50:9999 -g -w 3",
            "-A -u [fd00:10:96::1]:9999 -s sh",
            "-A -t 203.0.113.10:9999 -s rr",
        ];
        feed("ipvsadm", &["-R"], &(foreign.join("\n") + "\n"));
        let assert_unchanged = |what: &str| {
            let state = state();
            for line in foreign {
                let is_there = state["ipvs"].iter().any(|listed| listed.contains(line));
                assert!(is_there, "{what}: {line} is not in {:#?}", state["ipvs"]);
            }
        };
        assert_unchanged("before");
        let mut proxier = proxier(&web(&[(0, "node-a")]));
        let mut reports: Vec<String> = Vec::new();
        let mut sync_and_check = |proxier: &mut Proxier, what: &str| {
            let events = sync(proxier).events;
            reports.extend(events.iter().map(ToString::to_string));
            assert_unchanged(what);
        };
        sync_and_check(&mut proxier, "the first sync");
        let bound = &state()["addresses of kube-ipvs0"];
        assert!(bound.contains(&"10.96.0.1/32".to_owned()), "{bound:?}");
        sync_and_check(&mut proxier, "the second sync");
        proxier.resync();
        sync_and_check(&mut proxier, "after reading the kernel again");
        // An address that is bound later, and one that is no longer bound.
        replace_objects(&mut proxier, &(web(&[(0, "node-a")]) + &everything()));
        sync_and_check(&mut proxier, "with a load balancer");
        proxier.resync();
        sync_and_check(
            &mut proxier,
            "with a load balancer, after reading the kernel again",
        );
        replace_objects(&mut proxier, "");
        sync_and_check(&mut proxier, "without Services");
        proxier.resync();
        sync_and_check(&mut proxier, "without Services, after reading the kernel again");
        for server in [
            "-t 10.96.0.1:9999",
            "-u [fd00:10:96::1]:9999",
            "-t 203.0.113.10:9999",
        ] {
            let of_server = reports.iter().filter(|report| report.contains(server));
            assert_eq!(of_server.count(), 1, "{server}: {reports:#?}");
        }
    });
}
