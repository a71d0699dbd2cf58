//! Tests on the running kernel that need no privilege: the generic netlink controller, and links over
//! route netlink.

use kernlink_netlink::generic::Family;
use kernlink_netlink::{Batch, Connection, Errno, Error, Namespace, Protocol};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFINFO: [u8; 16] = [0; 16];

#[test]
fn the_controller_resolves_its_own_family() {
    let mut connection = Connection::open(Protocol::Generic).unwrap();
    let family = Family::resolve(&mut connection, "nlctrl").unwrap();
    assert_eq!(family.id, 0x10);
    assert!(
        family.groups.iter().any(|(name, _)| &**name == "notify"),
        "{family:?}"
    );
}

#[test]
fn an_unknown_family_is_reported_with_its_name() {
    let mut connection = Connection::open(Protocol::Generic).unwrap();
    let error = Family::resolve(&mut connection, "kernlink-none").unwrap_err();
    assert_eq!(
        error,
        Error::UnknownFamily {
            name: "kernlink-none".into()
        }
    );
    assert_eq!(
        error.to_string(),
        "generic netlink family \"kernlink-none\" does not exist, and the kernel loaded no module for it"
    );
}

#[test]
fn ten_connections_on_ten_threads_receive_their_own_answers() {
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut connection = Connection::open(Protocol::Generic).unwrap();
                for _ in 0..50 {
                    assert_eq!(Family::resolve(&mut connection, "nlctrl").unwrap().id, 0x10);
                    assert!(Family::resolve(&mut connection, "absent").is_err());
                }
                // The same connection, moved to another thread.
                scope.spawn(move || Family::resolve(&mut connection, "nlctrl").unwrap());
            });
        }
    });
}

#[test]
fn a_batch_in_which_every_request_fails_reports_every_failure() {
    let mut connection = Connection::open(Protocol::Route).unwrap();
    let mut batch = Batch::new();
    for _ in 0..5000 {
        // ENODEV: there is no such interface. EPERM without privilege.
        batch
            .push(RTM_NEWLINK, 0, |w| {
                let mut header = IFINFO;
                header[4..8].copy_from_slice(&0x7fff_fff0_i32.to_ne_bytes());
                w.header(&header);
            })
            .unwrap();
    }
    let outcomes = connection.execute(&mut batch);
    assert_eq!(outcomes.len(), 5000);
    for outcome in &outcomes {
        let errno = outcome.clone().unwrap_err().errno();
        assert!(matches!(errno, Some(Errno::ENODEV | Errno::EPERM)), "{outcome:?}");
    }
}

#[test]
fn a_route_request_is_checked_strictly_and_refused_with_a_text() {
    const RTM_GETADDR: u16 = 22;
    let mut connection = Connection::open(Protocol::Route).unwrap();
    // AF_INET and a prefix length, which has no meaning in a dump: without strict checking it is ignored.
    let listed = connection.dump_all(
        RTM_GETADDR,
        0,
        |w| {
            w.header(&[2, 33, 0, 0, 0, 0, 0, 0]);
        },
        |_| Ok::<_, Error>(Some(())),
    );
    let Err(Error::Refused(refusal)) = listed else {
        panic!("{listed:?}")
    };
    assert_eq!(refusal.errno, Errno::EINVAL);
    assert!(
        refusal
            .message
            .as_deref()
            .is_some_and(|text| text.contains("header")),
        "{refusal:?}"
    );
}

#[test]
fn another_thread_can_enter_the_current_namespace() {
    let namespace = Namespace::current().unwrap();
    match Connection::open_in(Protocol::Route, &namespace) {
        Ok(mut connection) => {
            let links = connection.dump_all(
                RTM_GETLINK,
                0,
                |w| {
                    w.header(&IFINFO);
                },
                |_| Ok::<_, Error>(Some(())),
            );
            assert!(!links.unwrap().is_empty());
        }
        // Entering requires CAP_SYS_ADMIN also for the current namespace.
        Err(error) => assert_eq!(
            error,
            Error::Namespace {
                call: "enter",
                path: Some(std::path::Path::new("/proc/thread-self/ns/net").into()),
                errno: Errno::EPERM
            }
        ),
    }
}

#[test]
fn a_file_that_is_not_a_network_namespace_is_refused() {
    let missing = Namespace::open("/run/netns/kernlink-none").unwrap_err();
    assert_eq!(missing.errno(), Some(Errno::ENOENT));
    assert_eq!(
        missing.to_string(),
        "cannot open the network namespace /run/netns/kernlink-none"
    );
    let file = Namespace::open("/proc/self/ns/uts").unwrap();
    let error = file.run(|| ()).unwrap_err();
    assert!(
        matches!(error, Error::Namespace { call: "enter", .. }),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "cannot enter the network namespace /proc/self/ns/uts"
    );
}
