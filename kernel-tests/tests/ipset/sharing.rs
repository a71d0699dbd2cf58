//! Sets that rules, other processes and other namespaces use.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernlink_ipset::{Client, Entry, Error, IpSets, Operation, Set, SetType, uapi};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, tools, wait};
use kernlink_netlink::{AttributeWriter, Connection, Message, Namespace, Protocol, netfilter};

use crate::{client, fill, name, web, write_set_name};

/// Destroy and rename are refused; swap and replace succeed.
#[test]
fn a_set_in_a_rule_is_busy_and_can_be_swapped() {
    requires!(Feature::IpSet, Feature::Iptables);
    let mut client = client();
    let (used, other) = (name("used"), name("other"));
    for set in [used, other] {
        client.create(&Set::new(set, SetType::HashIpPort)).unwrap();
    }
    client.add(&other, &web(7)).unwrap();
    let rule = [
        "-w",
        "-A",
        "INPUT",
        "-m",
        "set",
        "--match-set",
        "used",
        "src,src",
        "-j",
        "ACCEPT",
    ];
    tools::must("iptables", &rule);
    assert_eq!(client.header(&used).unwrap().stats.references, 1);
    let error = client.destroy(&used).unwrap_err();
    assert!(error.is_busy(), "{error:?}");
    assert!(client.rename(&used, &name("new")).unwrap_err().is_busy());
    assert!(client.destroy_all().unwrap_err().is_busy());
    client.swap(&used, &other).unwrap();
    assert_eq!(client.list_set(&used).unwrap().entries, [web(7)]);
    client.replace(&used, &[web(8)]).unwrap();
    assert_eq!(client.list_set(&used).unwrap().entries, [web(8)]);
    // The rule still names the set, and the other set is not in use.
    assert!(tools::iptables_save("filter").contains("--match-set used src,src"));
    client.destroy(&other).unwrap();
    tools::must("iptables", &["-w", "-F", "INPUT"]);
    // A rule of nf_tables releases the set a moment after it was deleted.
    wait::until(|| client.destroy(&used));
}

/// While another process lists a set, destroy, swap and rename are tried again. They fail if the list does not end in time.
#[test]
fn a_list_in_another_process_delays_destroy_swap_and_rename() {
    requires!(Feature::IpSet);
    let mut client = client();
    // A list of several datagrams that is read quickly: the client waits about a second for a list to end.
    let set = Set::new(name("listed"), SetType::HashIpPort).with_hashsize(4096);
    fill(&mut client, &set, (0..4_000).map(web));
    client
        .create(&Set::new(name("other"), SetType::HashIpPort))
        .unwrap();
    let namespace = NetNs::current();
    let list = netfilter::message_type(uapi::NFNL_SUBSYS_IPSET, uapi::IPSET_CMD_LIST);
    // Begins a list in another thread, calls `work`, and ends the list: after `pause`, or after `work` if that is `None`.
    let while_listed = |pause: Option<Duration>, work: &mut dyn FnMut()| {
        std::thread::scope(|scope| {
            let (started, wait) = std::sync::mpsc::channel();
            let (finished, until) = std::sync::mpsc::channel::<()>();
            let namespace = namespace.clone();
            scope.spawn(move || {
                namespace.run(move || {
                    let mut connection = Connection::open(Protocol::Netfilter).unwrap();
                    let whole = |w: &mut AttributeWriter<'_>| write_set_name(w, "listed");
                    let count =
                        |message: Message<'_>| Ok::<_, kernlink_netlink::Error>(Some(message.payload.len()));
                    let mut dump = connection.dump(list, 0, whole, count).unwrap();
                    dump.next().unwrap().unwrap();
                    started.send(()).unwrap();
                    match pause {
                        Some(pause) => std::thread::sleep(pause),
                        None => drop(until.recv()),
                    }
                    assert!(dump.count() > 1);
                });
            });
            wait.recv().unwrap();
            work();
            drop(finished);
        });
    };
    let a_while = Some(Duration::from_millis(20));
    while_listed(a_while, &mut || client.swap(&set.name, &name("other")).unwrap());
    client.swap(&set.name, &name("other")).unwrap();
    while_listed(a_while, &mut || {
        client.rename(&set.name, &name("renamed")).unwrap()
    });
    client.rename(&name("renamed"), &set.name).unwrap();
    while_listed(None, &mut || {
        let error = client.destroy(&set.name).unwrap_err();
        assert!(error.is_busy(), "{error:?}");
    });
    while_listed(a_while, &mut || client.destroy(&set.name).unwrap());
    assert_eq!(client.names().unwrap(), [name("other")]);
}

/// Another client deletes the first entry and adds one at the end, again and again. A list has the entries of one moment, or is
/// an error.
#[test]
fn a_list_of_a_changing_set_is_consistent_or_an_error() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("changing"), SetType::HashIpPort).with_hashsize(4096);
    fill(&mut client, &set, (0..3_000).map(web));
    let namespace = NetNs::current();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            namespace.run(|| {
                let mut writer = Client::open().unwrap();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    let moved = [
                        Operation::delete(set.name, web(n)),
                        Operation::add(set.name, web(n + 3_000)),
                    ];
                    assert!(writer.execute(&moved).iter().all(Result::is_ok));
                    n += 1;
                }
            });
        });
        let mut changed = 0;
        for _ in 0..5 {
            match client.list_set(&set.name) {
                Ok(listed) => {
                    // One entry is missing between deletion and addition.
                    let listed_entries: BTreeSet<Entry> = listed.entries.iter().cloned().collect();
                    assert_eq!(listed_entries.len(), listed.entries.len());
                    assert!(
                        (2_999..=3_000).contains(&listed_entries.len()),
                        "{}",
                        listed_entries.len()
                    );
                }
                Err(Error::Changed { .. }) => changed += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        println!("{changed} of 5 lists failed because the set changed");
    });
    // A set that does not change is listed.
    assert_eq!(client.list_set(&set.name).unwrap().entries.len(), 3_000);
}

#[test]
fn a_client_works_in_the_namespace_that_it_was_opened_for() {
    requires!(Feature::IpSet);
    let mut local = client();
    let namespace = NetNs::new();
    let mut remote = Client::open_in(&Namespace::open(namespace.path()).unwrap()).unwrap();
    remote.create(&Set::new(name("remote"), SetType::HashIp)).unwrap();
    assert_eq!(local.names().unwrap(), []);
    assert_eq!(namespace.run(tools::ipset_save).lines().count(), 1);
}
