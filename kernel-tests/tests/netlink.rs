//! Subscriptions and other network namespaces, tested with route netlink, which every kernel supports.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use kernlink_kernel_tests::{netns::NetNs, programs, tools};
use kernlink_netlink::{
    Batch, Connection, Errno, Error, Event, Message, Namespace, Protocol, Subscription, netfilter,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const IFLA_IFNAME: u16 = 3;
const IFA_LOCAL: u16 = 2;

/// The name of a listed or changed link.
fn link(message: Message<'_>) -> Result<Option<String>, Error> {
    if message.message_type != RTM_NEWLINK {
        return Ok(None);
    }
    for attribute in message.attributes(16)? {
        let attribute = attribute?;
        if attribute.kind() == IFLA_IFNAME {
            return Ok(Some(attribute.string()?.to_owned()));
        }
    }
    Err(Error::Malformed {
        what: "link: no name",
    })
}

/// The last byte of an address that was added.
fn address(message: Message<'_>) -> Result<Option<u8>, Error> {
    if message.message_type != RTM_NEWADDR {
        return Ok(None);
    }
    let mut local = None;
    for attribute in message.attributes(8)? {
        let attribute = attribute?;
        if attribute.kind() == IFA_LOCAL {
            local = attribute.bytes().last().copied();
        }
    }
    Ok(local)
}

fn add_link(name: &str) {
    tools::ip(&[
        "link",
        "add",
        name,
        "type",
        "veth",
        "peer",
        "name",
        &format!("{name}-peer"),
    ]);
}

fn add_addresses(last: std::ops::Range<u32>) {
    let lines = last.map(|n| {
        format!(
            "address add 10.{}.{}.{}/32 dev lo\n",
            n >> 16,
            n >> 8 & 255,
            n & 255
        )
    });
    tools::ip_batch(&lines.collect::<String>());
}

fn current_namespace() -> PathBuf {
    std::fs::read_link("/proc/thread-self/ns/net").unwrap()
}

#[test]
fn notifications_arrive_in_order_and_the_iterator_continues_after_a_timeout() {
    let _inside = NetNs::new().enter();
    let subscription = Subscription::open(Protocol::Route, &[RTNLGRP_IPV4_IFADDR]).unwrap();
    let mut events = subscription.events(Some(Duration::ZERO), address);
    assert_eq!(events.next(), None);
    add_addresses(1..200);
    // `ip` has exited: all notifications are queued.
    for n in 1..200 {
        assert_eq!(events.next(), Some(Ok(Event::Notification(n))));
    }
    assert_eq!(events.next(), None);
    add_addresses(200..201);
    events.set_timeout(None);
    assert_eq!(events.next(), Some(Ok(Event::Notification(200))));
}

#[test]
fn an_overrun_is_an_event_and_later_notifications_are_received() {
    let _inside = NetNs::new().enter();
    let mut subscription = Subscription::open(Protocol::Route, &[RTNLGRP_IPV4_IFADDR]).unwrap();
    subscription.set_receive_buffer(4096).unwrap();
    let mut events = subscription.events(Some(Duration::ZERO), address);
    add_addresses(1..1000);
    let seen: Vec<Event<u8>> = events.by_ref().map(Result::unwrap).collect();
    let overruns = seen.iter().filter(|event| **event == Event::Overrun).count();
    assert!(overruns >= 1 && seen.len() - overruns < 999, "{seen:?}");
    // The buffer is empty now: further notifications are received.
    add_addresses(1000..1001);
    assert_eq!(events.next(), Some(Ok(Event::Notification((1000 & 255) as u8))));
    assert_eq!(events.next(), None);
}

#[test]
fn connections_and_subscriptions_work_in_another_namespace_and_the_thread_stays() {
    let (here, there) = (NetNs::new(), NetNs::new());
    let _inside = here.enter();
    let before = current_namespace();
    let by_path = Namespace::open(there.path()).unwrap();
    let by_descriptor = Namespace::from(OwnedFd::from(there.file().try_clone().unwrap()));
    for (number, namespace) in [by_path, by_descriptor].iter().enumerate() {
        let subscription = Subscription::open_in(Protocol::Route, &[RTNLGRP_LINK], namespace).unwrap();
        let mut connection = Connection::open_in(Protocol::Route, namespace).unwrap();
        assert_eq!(current_namespace(), before);
        let name = format!("there{number}");
        there.run(|| add_link(&name));
        let mut events = subscription.events(None, link);
        while events.next().unwrap().unwrap() != Event::Notification(name.clone()) {}
        let links = connection.dump_all(
            RTM_GETLINK,
            0,
            |w| {
                w.header(&[0; 16]);
            },
            link,
        );
        assert!(links.unwrap().contains(&name));
        // The thread is in the same namespace as before, which has no such link.
        assert_eq!(current_namespace(), before);
        assert!(tools::run("ip", &["link", "show", &name]).is_err());
    }
}

#[test]
fn the_thread_stays_in_its_namespace_if_work_in_another_one_panics() {
    let (here, there) = (NetNs::new(), NetNs::new());
    let _inside = here.enter();
    let before = current_namespace();
    let namespace = Namespace::open(there.path()).unwrap();
    let inside = namespace.run(current_namespace).unwrap();
    assert_ne!(inside, before);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        namespace.run(|| assert_eq!(current_namespace(), before))
    }));
    assert!(panicked.is_err());
    assert_eq!(current_namespace(), before);
    // A namespace of another type is refused; the thread stays as well.
    let other = Namespace::open("/proc/thread-self/ns/uts").unwrap();
    assert!(matches!(other.run(|| ()), Err(Error::Namespace { .. })));
    assert_eq!(current_namespace(), before);
}

const WAITS: &str = "KERNLINK_TEST_WAITS";

#[test]
fn a_wait_continues_after_a_signal() {
    if std::env::var_os(WAITS).is_some() {
        return wait_for_an_address();
    }
    let _inside = NetNs::new().enter();
    let mut child = programs::this_program()
        .args(["--exact", "a_wait_continues_after_a_signal", "--nocapture"])
        .env(WAITS, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let process = Pid::from_raw(child.id().cast_signed());
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    while !output.next().unwrap().unwrap().contains("waiting") {}
    // A receive with a timeout returns EINTR when its process continues after a stop, with or without a signal handler.
    for _ in 0..20 {
        interrupt(process);
        std::thread::sleep(Duration::from_millis(5));
    }
    add_addresses(7..8);
    let rest: Vec<String> = output.map(Result::unwrap).collect();
    let status = child.wait().unwrap();
    assert!(
        status.success() && rest.iter().any(|line| line.contains("received 7")),
        "{status} {rest:?}"
    );
}

/// Stops a process and continues it. It may have exited.
fn interrupt(process: Pid) {
    kill(process, Signal::SIGSTOP).unwrap();
    let stat = format!("/proc/{process}/stat");
    // Stopped, or a zombie if it has exited.
    while ![") T ", ") Z "]
        .iter()
        .any(|state| std::fs::read_to_string(&stat).unwrap().contains(state))
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(process, Signal::SIGCONT).unwrap();
}

fn wait_for_an_address() {
    let subscription = Subscription::open(Protocol::Route, &[RTNLGRP_IPV4_IFADDR]).unwrap();
    println!("waiting");
    // Long enough for the slowest machine: the test is that the wait does not end before the event.
    let received = subscription
        .events(Some(Duration::from_secs(600)), address)
        .next();
    let Some(Ok(Event::Notification(number))) = received else {
        panic!("{received:?}")
    };
    println!("received {number}");
}

const TIMES_OUT: &str = "KERNLINK_TEST_TIMES_OUT";

#[test]
fn signals_do_not_prolong_a_timeout() {
    if std::env::var_os(TIMES_OUT).is_some() {
        return wait_for_nothing();
    }
    let _inside = NetNs::new().enter();
    let mut child = programs::this_program()
        .args(["--exact", "signals_do_not_prolong_a_timeout", "--nocapture"])
        .env(TIMES_OUT, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let process = Pid::from_raw(child.id().cast_signed());
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    while !output.next().unwrap().unwrap().contains("waiting") {}
    // Each signal interrupts the wait. They arrive at intervals shorter than the timeout until the wait ends: a timeout that
    // restarted after each signal would never end.
    let mut interruptions = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        interruptions += 1;
        assert!(interruptions < 3000, "the wait does not end");
        // Not reaped yet, so the process still exists.
        interrupt(process);
        std::thread::sleep(Duration::from_millis(20));
    };
    let rest: Vec<String> = output.map(Result::unwrap).collect();
    assert!(
        status.success() && rest.iter().any(|line| line.contains("received nothing")),
        "{status} {rest:?}"
    );
}

fn wait_for_nothing() {
    let subscription = Subscription::open(Protocol::Route, &[RTNLGRP_IPV4_IFADDR]).unwrap();
    println!("waiting");
    let received = subscription
        .events(Some(Duration::from_millis(500)), address)
        .next();
    assert_eq!(received, None);
    println!("received nothing");
}

#[test]
fn a_receive_buffer_size_that_the_kernel_would_reduce_is_refused() {
    let _inside = NetNs::new().enter();
    let mut subscription = Subscription::open(Protocol::Route, &[RTNLGRP_IPV4_IFADDR]).unwrap();
    for bytes in [1 << 30, 1 << 31, 1 << 32, usize::MAX] {
        let error = subscription.set_receive_buffer(bytes).unwrap_err();
        assert_eq!(error, Error::ReceiveBuffer { bytes });
        assert_eq!(
            error.to_string(),
            format!("invalid receive buffer of {bytes} bytes; valid: 0 to 1073741823")
        );
    }
    subscription.set_receive_buffer((1 << 30) - 1).unwrap();
    // None of the refused sizes reduced the buffer to the minimum of 2 304 bytes: all notifications are received.
    let mut events = subscription.events(Some(Duration::ZERO), address);
    add_addresses(1..250);
    let received: Vec<_> = events.by_ref().collect();
    assert!(
        received.len() == 249 && !received.contains(&Ok(Event::Overrun)),
        "{received:?}"
    );
}

const UNPRIVILEGED: &str = "KERNLINK_TEST_IS_UNPRIVILEGED";

#[test]
fn a_netfilter_batch_without_cap_net_admin_is_refused_at_once_and_as_a_whole() {
    if std::env::var_os(UNPRIVILEGED).is_some() {
        return refused_as_a_whole();
    }
    let this = std::env::current_exe().unwrap();
    let test = "a_netfilter_batch_without_cap_net_admin_is_refused_at_once_and_as_a_whole";
    let output = tools::must(
        "setpriv",
        &[
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "env",
            &format!("{UNPRIVILEGED}=1"),
            this.to_str().unwrap(),
            "--exact",
            test,
            "--nocapture",
        ],
    );
    assert!(output.contains("refused 5000"), "{output}");
}

fn refused_as_a_whole() {
    let mut connection = Connection::open(Protocol::Netfilter).unwrap();
    // Without a timeout, waiting for an answer that the kernel does not send would never end.
    connection.set_timeout(None).unwrap();
    let mut batch = Batch::new();
    for _ in 0..5000 {
        // An entry of connection tracking (IPCTNL_MSG_CT_NEW).
        let message_type = netfilter::message_type(netfilter::NFNL_SUBSYS_CTNETLINK, 0);
        batch
            .push(message_type, 0, |w| {
                w.header(&netfilter::Header::new(2).to_bytes());
            })
            .unwrap();
    }
    let outcomes = connection.execute(&mut batch);
    assert_eq!(outcomes.len(), 5000);
    for outcome in &outcomes {
        let error = outcome.clone().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EPERM), "{error:?}");
        assert!(!error.is_outcome_unknown());
    }
    println!("refused {}", outcomes.len());
}

#[test]
fn a_connection_has_a_file_descriptor() {
    let connection = Connection::open(Protocol::Route).unwrap();
    let address: nix::sys::socket::NetlinkAddr = nix::sys::socket::getsockname(
        std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&connection)),
    )
    .unwrap();
    assert_ne!(address.pid(), 0);
}
