//! `kernlink-ipvs` compared with the kernel and `ipvsadm`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernlink_ipvs::{
    Availability, Client, Consistency, Error, Family, ForwardingMethod, Granularity, Ipvs, Operation,
    Persistence, PersistenceEngine, Protocol, RealServer, RealServerKey, Reason, Scheduler, SchedulerFlags,
    Thresholds, Tunnel, TunnelFlags, VirtualServer, VirtualServerKey, Weight, notation, sysctl,
};
use kernlink_kernel_tests::{
    kernel::{self, Feature},
    netns::NetNs,
    programs, requires, tools, wait,
};
use kernlink_netlink::Namespace;

/// A lock for tests that add, delete or list many virtual servers. The kernel finds the position of the next part of a listing by
/// counting the virtual servers of all namespaces, so changes in one test would interrupt the listings of another one.
fn lock_table() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    // A poisoned lock is ignored: the failed test is reported by itself.
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads the modules of two schedulers, which the kernel should not do for `ipvsadm` while the namespace of another test is deleted:
/// see [`Scheduler`].
fn load_lblc_and_lblcr() {
    for scheduler in [Scheduler::LBLC, Scheduler::LBLCR] {
        tools::must("modprobe", &[&scheduler.module().unwrap()]);
    }
}

/// Sets the flag that stops another thread, also after a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Virtual servers and real servers of all kinds, with combinations of all options of `ipvsadm`.
fn wide_range() -> Vec<(VirtualServer, Vec<RealServer>)> {
    let v4 = |n: u16| IpAddr::V4(Ipv4Addr::from(0x0a60_0000 + u32::from(n)));
    let v6 = |n: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12, n));
    let mut table = Vec::new();
    for n in 0..120_u16 {
        let port = 0x1234_u16.wrapping_mul(n + 1).max(1);
        let family = if n % 2 == 0 { Family::Ipv4 } else { Family::Ipv6 };
        let address = if family == Family::Ipv4 { v4(n) } else { v6(n) };
        let key = match n % 7 {
            0..=2 => VirtualServerKey::tcp(address, port),
            3 | 4 => VirtualServerKey::udp(address, port),
            5 => VirtualServerKey::sctp(address, port),
            _ => VirtualServerKey::mark(family, NonZeroU32::new(u32::from(n) + 1).unwrap()),
        };
        let schedulers = [
            Scheduler::RR,
            Scheduler::WRR,
            Scheduler::LC,
            Scheduler::WLC,
            Scheduler::SH,
            Scheduler::MH,
            Scheduler::DH,
            Scheduler::SED,
            Scheduler::NQ,
            Scheduler::LBLC,
            Scheduler::LBLCR,
            Scheduler::FO,
            Scheduler::OVF,
        ];
        let mut server = VirtualServer::new(key, schedulers[usize::from(n) % schedulers.len()]);
        if n % 3 == 0 {
            server.scheduler_flags = SchedulerFlags::from_bits_truncate(u32::from(n / 3) << 3);
            // `ipvsadm -S` does not print the third flag of these two.
            if [Scheduler::SH, Scheduler::MH].contains(&server.scheduler) {
                server.scheduler_flags.remove(SchedulerFlags::THIRD);
            }
        }
        if n % 4 == 1 {
            let mut persistence = Persistence::from_seconds(u32::from(n) * 97 + 1).unwrap();
            if n % 8 == 1 {
                persistence = persistence.with_granularity(match family {
                    Family::Ipv4 => Granularity::from_mask(Ipv4Addr::from(u32::MAX << (n % 25))),
                    Family::Ipv6 => Granularity::from_prefix_length((n % 128 + 1) as u8).unwrap(),
                });
            }
            server.persistence = Some(persistence);
        }
        if key.protocol() == Some(Protocol::Udp) {
            server.one_packet = n % 2 == 0;
            if server.persistence.is_some() {
                server.persistence_engine = Some(PersistenceEngine::SIP);
            }
        }
        let real_servers = (0..n % 9)
            .map(|r| {
                let address = if family == Family::Ipv4 {
                    v4(0x1000 + r)
                } else {
                    v6(0x1000 + r)
                };
                // `ipvsadm -R` uses the port of the virtual server for real servers that are not masqueraded.
                let is_free = matches!((n + r) % 7, 0 | 6) || key.port().is_none();
                let port = if is_free { port.wrapping_add(r) } else { port };
                let real = RealServer::new(RealServerKey::new(address, port))
                    .with_weight(Weight::new(u32::from(r) * u32::from(n) * 321).unwrap());
                match (n + r) % 7 {
                    0 => real,
                    1 => real.with_forwarding(ForwardingMethod::DirectRoute),
                    2 => real.with_tunnel(Tunnel::IPIP),
                    3 => real.with_tunnel(Tunnel::gue(6080 + r, TunnelFlags::REMOTE_CHECKSUM)),
                    4 => real.with_tunnel(Tunnel::gue(6080 + r, TunnelFlags::empty())),
                    5 => real.with_tunnel(Tunnel::gre(TunnelFlags::CHECKSUM)),
                    _ => real.with_thresholds(Thresholds::new(100 + u32::from(n), u32::from(r)).unwrap()),
                }
            })
            .collect();
        table.push((server, real_servers));
    }
    table
}

fn operations(table: &[(VirtualServer, Vec<RealServer>)]) -> Vec<Operation> {
    table
        .iter()
        .flat_map(|(server, real_servers)| {
            std::iter::once(Operation::AddVirtualServer(server.clone())).chain(real_servers.iter().map(
                |real| Operation::AddRealServer {
                    virtual_server: server.key,
                    real_server: real.clone(),
                },
            ))
        })
        .collect()
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// `ipvsadm -S` does not print thresholds.
fn without_thresholds(table: &[(VirtualServer, Vec<RealServer>)]) -> Vec<(VirtualServer, Vec<RealServer>)> {
    let mut table = table.to_vec();
    for (_, real_servers) in &mut table {
        for real_server in real_servers {
            real_server.thresholds = Thresholds::NONE;
        }
    }
    table
}

fn save(table: &[(VirtualServer, Vec<RealServer>)]) -> String {
    notation::save(table.iter().map(|(server, real_servers)| (server, real_servers)))
}

fn sorted(mut table: Vec<(VirtualServer, Vec<RealServer>)>) -> Vec<(VirtualServer, Vec<RealServer>)> {
    for (_, real_servers) in &mut table {
        real_servers.sort_by_key(|real| real.key);
    }
    table.sort_by_key(|(server, _)| server.key);
    table
}

#[test]
fn ipvsadm_prints_the_added_table() {
    requires!(Feature::Ipvs);
    let _lock = lock_table();
    let _inside = NetNs::new().enter();
    let table = wide_range();
    let mut client = Client::open().unwrap();
    for (outcome, operation) in client
        .execute(&operations(&table))
        .into_iter()
        .zip(operations(&table))
    {
        outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}"));
    }
    // Sorted lines, because the kernel lists in the order of hashes.
    assert_eq!(
        lines(&tools::ipvsadm_save()),
        lines(&save(&without_thresholds(&table)))
    );
    assert_eq!(client.list_all().unwrap(), sorted(table.clone()));

    // Thresholds are only in this listing.
    let shown: BTreeSet<(String, String, String)> = tools::ipvsadm_list(&["-Ln", "--thresholds"])
        .lines()
        .filter_map(|line| line.trim().strip_prefix("-> "))
        .filter_map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            Some((words.next()?, words.next()?, words.next()?))
        })
        .filter(|(address, ..)| address != "RemoteAddress:Port")
        .collect();
    let expected = table
        .iter()
        .flat_map(|(_, real_servers)| real_servers)
        .map(|real| {
            let thresholds = real.thresholds;
            (
                real.key.to_string(),
                thresholds.upper().to_string(),
                thresholds.lower().to_string(),
            )
        })
        .collect();
    assert_eq!(shown, expected);
}

#[test]
fn a_table_of_ipvsadm_is_listed() {
    requires!(Feature::Ipvs);
    let _lock = lock_table();
    let _inside = NetNs::new().enter();
    let table = wide_range();
    load_lblc_and_lblcr();
    tools::run_with_input("ipvsadm", &["-R"], &save(&table)).unwrap();
    let mut client = Client::open().unwrap();
    assert_eq!(client.list_all().unwrap(), sorted(table.clone()));

    // The output of `ipvsadm` can be parsed and executed, and results in the same output.
    let printed = tools::ipvsadm_save();
    let parsed = notation::parse(&printed).unwrap();
    client.flush().unwrap();
    for (outcome, operation) in client.execute(&parsed).into_iter().zip(&parsed) {
        outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}"));
    }
    assert_eq!(client.list_all().unwrap(), sorted(without_thresholds(&table)));
    assert_eq!(tools::ipvsadm_save(), printed);
}

#[test]
fn a_broadcast_address_of_the_host_is_refused_with_its_kind() {
    requires!(Feature::Ipvs);
    let namespace = NetNs::new();
    let _inside = namespace.enter();
    let mut client = Client::open().unwrap();
    let server = VirtualServer::new(
        VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80),
        Scheduler::RR,
    );
    client.add_virtual_server(&server).unwrap();
    // A broadcast address of a network of this host.
    tools::ip(&["link", "add", "net0", "type", "dummy"]);
    tools::ip(&["addr", "add", "10.9.8.7/24", "brd", "+", "dev", "net0"]);
    tools::ip(&["link", "set", "net0", "up"]);
    let real = RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 9, 8, 255), 80));
    let error = client.add_real_server(&server.key, &real).unwrap_err();
    assert!(error.is_invalid(), "{error:?}");
    assert!(
        error.to_string().ends_with(
            "invalid real server address 10.9.8.255: it is a broadcast address of this network namespace"
        ),
        "{error}"
    );
}

#[test]
fn the_error_in_a_namespace_without_loopback_names_it() {
    requires!(Feature::Ipvs);
    // `unshare` creates a namespace in which `lo` is down.
    let error = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let mut client = Client::open().unwrap();
        let server = VirtualServer::new(
            VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80),
            Scheduler::RR,
        );
        client.add_virtual_server(&server).unwrap();
        let real = RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 0, 0, 2), 80));
        client.add_real_server(&server.key, &real).unwrap_err()
    })
    .join()
    .unwrap();
    assert_eq!(error.reason(), Some(&Reason::LoopbackDown), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("interface lo of this network namespace has never been up"),
        "{error}"
    );
}

#[test]
fn without_the_capability_the_error_names_it() {
    if std::env::var_os(UNPRIVILEGED).is_some() {
        return assert_not_permitted();
    }
    requires!(Feature::Ipvs);
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    for lowered in [
        // An unprivileged user, and root of a user namespace, which has no capability in the initial user namespace.
        &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"][..],
        &["unshare", "--user", "--map-root-user", "--net"],
    ] {
        let test = [
            "--exact",
            "without_the_capability_the_error_names_it",
            "--nocapture",
        ];
        let output = programs::command(lowered[0])
            .args(&lowered[1..])
            .arg(this)
            .args(test)
            .env(UNPRIVILEGED, "1")
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && stdout.contains("refused three times"),
            "{lowered:?}: {output:?}"
        );
    }
}

const UNPRIVILEGED: &str = "KERNLINK_TEST_IS_UNPRIVILEGED";

fn assert_not_permitted() {
    let server = VirtualServer::new(
        VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80),
        Scheduler::RR,
    );
    let mut client = Client::open().unwrap();
    for error in [
        client.add_virtual_server(&server).unwrap_err(),
        client.list_virtual_servers().unwrap_err(),
        client.info().unwrap_err(),
    ] {
        assert!(error.is_permission_denied(), "{error:?}");
        assert!(!error.is_not_found() && !error.is_unsupported() && !error.is_unavailable());
        assert!(
            error
                .to_string()
                .contains("CAP_NET_ADMIN in the initial user namespace"),
            "{error}"
        );
    }
    println!("refused three times");
}

#[test]
fn support_contains_every_scheduler() {
    requires!(Feature::Ipvs);
    let _inside = NetNs::new().enter();
    let mut client = Client::open().unwrap();
    let key = VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80);
    client
        .add_virtual_server(&VirtualServer::new(key, Scheduler::RR))
        .unwrap();
    let support = client.support().unwrap();
    assert_eq!(support.info.version.to_string(), "1.2.1");
    assert!(support.info.connection_table_size.is_power_of_two());
    assert!(
        support
            .schedulers
            .contains(&(Scheduler::RR, Availability::Loaded))
    );
    // The kernel accepts exactly the schedulers that are reported as usable.
    for (scheduler, availability) in &support.schedulers {
        let outcome = client.update_virtual_server(&VirtualServer::new(key, *scheduler));
        assert_eq!(
            outcome.is_ok(),
            availability.is_usable(),
            "{scheduler}: {availability:?} {outcome:?}"
        );
        if let Err(error) = outcome {
            assert!(error.is_scheduler_unavailable(), "{error:?}");
        }
    }
}

#[test]
fn a_client_stays_in_its_namespace() {
    requires!(Feature::Ipvs);
    let (home, other) = (NetNs::new(), NetNs::new());
    let namespace = Namespace::from(std::os::fd::OwnedFd::from(home.file().try_clone().unwrap()));
    let mut client = Client::open_in(&namespace).unwrap();
    let key = VirtualServerKey::udp(Ipv4Addr::new(10, 0, 0, 1), 53);
    client
        .add_virtual_server(&VirtualServer::new(key, Scheduler::RR))
        .unwrap();
    let real = RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 0, 0, 2), 53));
    client.add_real_server(&key, &real).unwrap();
    // On a thread in another namespace, it reads the files of `/proc` of its own namespace.
    other.run(|| {
        let snapshot = client.snapshot().unwrap();
        assert!(snapshot.get(&key).unwrap().real_servers[0].agrees_with(&real));
        assert_eq!(Client::open().unwrap().list_virtual_servers().unwrap(), []);
    });
}

#[test]
fn clients_on_ten_threads_receive_their_own_answers() {
    requires!(Feature::Ipvs);
    let _lock = lock_table();
    let namespace = NetNs::new();
    let finished: Vec<Client> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..10_u8)
            .map(|thread| {
                let namespace = &namespace;
                scope.spawn(move || {
                    let _inside = namespace.enter();
                    let mut client = Client::open().unwrap();
                    for round in 0..5 {
                        let keys: Vec<_> = (1..=60)
                            .map(|port| VirtualServerKey::tcp(Ipv4Addr::new(10, 0, thread, round), port))
                            .collect();
                        // Every second virtual server is added twice; the second time it is refused.
                        let operations: Vec<_> = keys
                            .iter()
                            .flat_map(|key| {
                                let times = usize::from(key.port().unwrap() % 2) + 1;
                                std::iter::repeat_n(VirtualServer::new(*key, Scheduler::RR), times)
                            })
                            .map(Operation::AddVirtualServer)
                            .collect();
                        let mut seen = BTreeSet::new();
                        for (operation, outcome) in operations.iter().zip(client.execute(&operations)) {
                            let is_first = seen.insert(operation.virtual_server());
                            match outcome {
                                Ok(()) => assert!(is_first, "{operation}"),
                                Err(error) => assert!(!is_first && error.is_already_exists(), "{error}"),
                            }
                        }
                        for key in &keys {
                            assert_eq!(client.find_virtual_server(key).unwrap().unwrap().server.key, *key);
                        }
                    }
                    client
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // One client is moved through ten threads.
    let mut moved = finished.into_iter().next().unwrap();
    for thread in 0..10_u8 {
        moved = std::thread::spawn(move || {
            let listed = moved.list_virtual_servers().unwrap();
            assert_eq!(listed.len(), 10 * 5 * 60);
            let key = VirtualServerKey::tcp(Ipv4Addr::new(10, 0, thread, 0), 60);
            moved.zero(&key).unwrap();
            moved
        })
        .join()
        .unwrap();
    }
    assert!(matches!(
        moved.zero(&VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 10, 0), 60)),
        Err(Error::Refused { .. })
    ));
}

/// Reads a sysctl, writes the same value, and returns its name. `None` if the kernel does not have it.
fn read_and_write_back<T: sysctl::Value + PartialEq + std::fmt::Debug>(
    client: &mut Client,
    sysctl: &sysctl::Sysctl<T>,
) -> Option<&'static str> {
    let name = sysctl.description().name;
    match client.sysctl(sysctl) {
        Ok(value) => {
            client
                .set_sysctl(sysctl, &value)
                .unwrap_or_else(|error| panic!("{name} {value:?}: {error}"));
            assert_eq!(client.sysctl(sysctl).unwrap(), value, "{name}");
            Some(name)
        }
        Err(error) => {
            let is_too_old = sysctl.description().requires.is_none();
            assert!(
                error.is_unsupported() && error.is_kernel_too_old() == is_too_old,
                "{name}: {error:?}"
            );
            None
        }
    }
}

#[test]
fn every_file_below_net_ipv4_vs_has_a_typed_sysctl() {
    requires!(Feature::Ipvs);
    load_lblc_and_lblcr();
    let _inside = NetNs::new().enter();
    let mut client = Client::open().unwrap();
    let files: BTreeSet<String> = std::fs::read_dir(sysctl::DIRECTORY)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(files.len() >= 27, "{files:?}");
    macro_rules! walk {
        ($($sysctl:ident)*) => {
            [$(read_and_write_back(&mut client, &sysctl::$sysctl)),*]
        };
    }
    let walked = walk!(AM_DROPRATE AMEMTHRESH BACKUP_ONLY CACHE_BYPASS CONN_LFACTOR CONN_MAX CONN_REUSE_MODE CONNTRACK DEBUG_LEVEL DROP_ENTRY
        DROP_PACKET EST_CPULIST EST_NICE EXPIRE_NODEST_CONN EXPIRE_QUIESCENT_TEMPLATE IGNORE_TUNNELED LBLC_EXPIRATION
        LBLCR_EXPIRATION NAT_ICMP_SEND PMTU_DISC RUN_ESTIMATION SCHEDULE_ICMP SECURE_TCP SLOPPY_SCTP SLOPPY_TCP SNAT_REROUTE
        SVC_LFACTOR SYNC_PERSIST_MODE SYNC_PORTS SYNC_QLEN_MAX SYNC_REFRESH_PERIOD SYNC_RETRIES SYNC_SOCK_SIZE SYNC_THRESHOLD
        SYNC_VERSION);
    assert_eq!(walked.len(), sysctl::ALL.len());
    let typed: BTreeSet<String> = walked.into_iter().flatten().map(str::to_owned).collect();
    assert_eq!(files, typed);
}

#[test]
fn the_error_of_a_sysctl_of_a_newer_kernel_names_that_kernel() {
    requires!(Feature::Ipvs);
    let _inside = NetNs::new().enter();
    let value = Client::open().unwrap().sysctl(&sysctl::CONN_MAX);
    if kernel::release() >= "7.2".parse().unwrap() {
        assert!(value.is_ok(), "{value:?}");
        return;
    }
    let error = value.unwrap_err();
    assert!(
        error.is_kernel_too_old() && error.is_unsupported() && !error.is_unavailable(),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "unsupported sysctl net.ipv4.vs.conn_max; it requires Linux 7.2"
    );
}

#[test]
fn sysctls_are_those_of_the_clients_namespace() {
    requires!(Feature::Ipvs);
    let (home, other) = (NetNs::new(), NetNs::new());
    let mut client = home.run(|| Client::open().unwrap());
    other.run(|| {
        assert!(!client.sysctl(&sysctl::CONNTRACK).unwrap());
        client.set_sysctl(&sysctl::CONNTRACK, &true).unwrap();
        assert!(client.sysctl(&sysctl::CONNTRACK).unwrap());
        assert_eq!(tools::sysctl("net.ipv4.vs.conntrack"), "0");
    });
    assert_eq!(home.run(|| tools::sysctl("net.ipv4.vs.conntrack")), "1");
    // An invalid value is refused before it is written.
    let error = client.set_sysctl(&sysctl::SYNC_PORTS, &3).unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("sync_ports"),
        "{error}"
    );
}

#[test]
fn a_verified_snapshot_is_complete() {
    requires!(Feature::Ipvs);
    let _lock = lock_table();
    let namespace = NetNs::new();
    let _inside = namespace.enter();
    let fixed = |n: u16| VirtualServerKey::tcp(Ipv4Addr::new(10, 1, (n >> 8) as u8, n as u8), 80);
    let mut client = Client::open().unwrap();
    let mut operations = Vec::new();
    for n in 0..300 {
        operations.push(Operation::AddVirtualServer(VirtualServer::new(
            fixed(n),
            Scheduler::RR,
        )));
        for r in 1..=2 {
            let real_server = RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 2, 0, r), 80));
            operations.push(Operation::AddRealServer {
                virtual_server: fixed(n),
                real_server,
            });
        }
    }
    for outcome in client.execute(&operations) {
        outcome.unwrap();
    }
    let is_stopped = AtomicBool::new(false);
    let (mut verified, mut unverified) = (0, 0);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&is_stopped);
        // Other virtual servers are added and deleted in this namespace and in another one; the kernel's position counts both.
        for place in [namespace.clone(), NetNs::new()] {
            let is_stopped = &is_stopped;
            scope.spawn(move || {
                let _inside = place.enter();
                let mut client = Client::open().unwrap();
                for round in (0..=u8::MAX).cycle() {
                    if is_stopped.load(Ordering::Relaxed) {
                        break;
                    }
                    let keys =
                        (1..=40).map(|port| VirtualServerKey::udp(Ipv4Addr::new(10, 3, 0, round), port));
                    let add = |key| Operation::AddVirtualServer(VirtualServer::new(key, Scheduler::RR));
                    let operations: Vec<_> = keys
                        .clone()
                        .map(add)
                        .chain(keys.map(Operation::DeleteVirtualServer))
                        .collect();
                    for outcome in client.execute(&operations) {
                        outcome.unwrap();
                    }
                    // A pause in which a snapshot can succeed.
                    std::thread::sleep(std::time::Duration::from_millis(u64::from(round % 4) * 20));
                }
            });
        }
        for _ in 0..25 {
            let snapshot = client.snapshot().unwrap();
            if snapshot.consistency != Consistency::Verified {
                unverified += 1;
                continue;
            }
            verified += 1;
            for n in 0..300 {
                let entry = snapshot
                    .get(&fixed(n))
                    .unwrap_or_else(|| panic!("{} is missing", fixed(n)));
                assert_eq!(entry.real_servers.len(), 2, "{}", fixed(n));
            }
        }
    });
    println!("{verified} verified, {unverified} unverified");
    // Without changes a snapshot is verified. The kernel deletes the other namespace in the background, and other tests may run.
    wait::until(|| match client.snapshot().unwrap().consistency {
        Consistency::Verified => Ok(()),
        unverified => Err(format!("{unverified:?}")),
    });
}

#[test]
fn listings_are_complete_while_another_client_changes_the_same_virtual_server() {
    requires!(Feature::Ipvs);
    let _lock = lock_table();
    let namespace = NetNs::new();
    let _inside = namespace.enter();
    let mut client = Client::open().unwrap();
    // By address, and by one mark of both families, which a snapshot reads over netlink.
    let mark = NonZeroU32::new(7).unwrap();
    let keys = [
        VirtualServerKey::tcp(Ipv4Addr::new(10, 1, 0, 1), 80),
        VirtualServerKey::mark(Family::Ipv4, mark),
        VirtualServerKey::mark(Family::Ipv6, mark),
    ];
    let real = |key: VirtualServerKey, n: u16| {
        let address = match key.family() {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::from(0x0a02_0000 + u32::from(n))),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n)),
        };
        RealServer::new(RealServerKey::new(address, 80))
    };
    let add = move |virtual_server, n| Operation::AddRealServer {
        virtual_server,
        real_server: real(virtual_server, n),
    };
    let delete = move |virtual_server, n| Operation::DeleteRealServer {
        virtual_server,
        real_server: real(virtual_server, n).key,
    };
    const LASTING: u16 = 400;
    for key in keys {
        let server = std::iter::once(Operation::AddVirtualServer(VirtualServer::new(
            key,
            Scheduler::RR,
        )));
        let operations: Vec<_> = server.chain((1..=LASTING).map(|n| add(key, n))).collect();
        for outcome in client.execute(&operations) {
            outcome.unwrap();
        }
    }
    let is_stopped = AtomicBool::new(false);
    let rounds = AtomicU32::new(0);
    let (mut complete, mut interrupted) = (0, 0);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&is_stopped);
        let (is_stopped, rounds, place) = (&is_stopped, &rounds, namespace.clone());
        scope.spawn(move || {
            let _inside = place.enter();
            let mut client = Client::open().unwrap();
            // The kernel lists these real servers before the lasting ones. Their number increases with each round.
            for round in (1..=60_u16).cycle() {
                if is_stopped.load(Ordering::Relaxed) {
                    break;
                }
                for key in keys {
                    let numbers = 1000..1000 + round;
                    let operations: Vec<_> = numbers
                        .clone()
                        .map(|n| add(key, n))
                        .chain(numbers.map(|n| delete(key, n)))
                        .collect();
                    for outcome in client.execute(&operations) {
                        outcome.unwrap();
                    }
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let check = |key: VirtualServerKey, what: &str, mut listed: Vec<RealServerKey>| {
            let length = listed.len();
            listed.dedup();
            assert_eq!(listed.len(), length, "{what} of {key}: repeated real server");
            let missing: Vec<_> = (1..=LASTING)
                .map(|n| real(key, n).key)
                .filter(|real| listed.binary_search(real).is_err())
                .collect();
            assert!(
                missing.is_empty(),
                "{what} of {key}: {} are missing, {} first",
                missing.len(),
                missing[0]
            );
        };
        for _ in 0..30 {
            for key in keys {
                match client.list_real_servers(&key) {
                    Ok(listed) => {
                        complete += 1;
                        check(
                            key,
                            "listing",
                            listed.iter().map(|status| status.server.key).collect(),
                        );
                    }
                    Err(error) => {
                        assert!(error.is_interrupted(), "{error:?}");
                        interrupted += 1;
                    }
                }
            }
            let snapshot = client.snapshot().unwrap();
            if snapshot.consistency != Consistency::Verified {
                interrupted += 1;
                continue;
            }
            complete += 1;
            for key in keys {
                let entry = snapshot.get(&key).unwrap_or_else(|| panic!("{key} is missing"));
                let listed = entry.real_servers.iter().map(|summary| summary.key).collect();
                check(key, "snapshot", listed);
            }
        }
    });
    println!(
        "{complete} complete, {interrupted} interrupted, {} rounds of changes",
        rounds.into_inner()
    );
    // Without changes every listing is complete.
    for (server, real_servers) in client.list_all().unwrap() {
        assert_eq!(real_servers.len(), usize::from(LASTING), "{server}");
    }
    assert_eq!(client.snapshot().unwrap().consistency, Consistency::Verified);
}
