//! What the kernel refuses, with which number, and what older kernels lack.

use std::net::IpAddr;

use kernlink_ipset::{Client, Entry, IpSets, Operation, Reason, Set, SetContents, SetFamily, SetType, uapi};
use kernlink_kernel_tests::{kernel::Feature, requires, since, tools};
use kernlink_netlink::{AttributeWriter, Connection, Protocol, flags, netfilter};

use crate::{client, fill, name, web, write_set_name};

/// The refusals that the client cannot cause because it checks before it sends; the contract causes the others. Together they are
/// the table in the documentation of the crate.
#[test]
fn error_numbers_have_the_meanings_of_the_table() {
    use uapi::*;
    requires!(Feature::IpSet);
    let mut client = client();
    client.create(&Set::new(name("ip"), SetType::HashIp)).unwrap();
    client
        .create(&Set::new(name("ip6"), SetType::HashIp).with_family(SetFamily::Inet6))
        .unwrap();
    client
        .create(&Set::new(name("port"), SetType::HashIpPort))
        .unwrap();
    client.create(&Set::new(name("net"), SetType::HashNet)).unwrap();
    client.create(&Set::new(name("list"), SetType::ListSet)).unwrap();
    let mut connection = Connection::open(Protocol::Netfilter).unwrap();
    let c = &mut connection;
    let ip = ("hash:ip", 0, NFPROTO_IPV4);

    let old_protocol = answer(c, IPSET_CMD_FLUSH, |w| {
        w.header(&netfilter::Header::new(0).to_bytes());
        w.u8(IPSET_ATTR_PROTOCOL, 5);
    });
    assert_eq!(old_protocol, IPSET_ERR_PROTOCOL);
    assert_eq!(
        answer_to_create(c, ("hash:ip", 99, NFPROTO_IPV4), |_| {}),
        IPSET_ERR_FIND_TYPE
    );
    assert_eq!(
        answer_to_create(c, ("hash:nothing", 0, NFPROTO_IPV4), |_| {}),
        IPSET_ERR_FIND_TYPE
    );
    let prefix = answer_to_add(c, "net", |w| {
        write_address(w, IPSET_ATTR_IP, "10.0.0.0");
        w.u8(IPSET_ATTR_CIDR, 0);
    });
    assert_eq!(prefix, IPSET_ERR_INVALID_CIDR);
    let netmask = answer_to_create(c, ip, |w| {
        w.u8(IPSET_ATTR_NETMASK, 33);
    });
    assert_eq!(netmask, IPSET_ERR_INVALID_NETMASK);
    // A family that does not exist.
    assert_eq!(
        answer_to_create(c, ("hash:ip", 0, 77), |_| {}),
        IPSET_ERR_INVALID_FAMILY
    );
    // The header has IPSET_ERR_IPADDR_IPV4 and IPSET_ERR_IPADDR_IPV6 for these, but no kernel returns them.
    let v6 = answer_to_add(c, "ip", |w| write_address(w, IPSET_ATTR_IP, "::1"));
    let v4 = answer_to_add(c, "ip6", |w| write_address(w, IPSET_ATTR_IP, "10.0.0.1"));
    assert_eq!((v6, v4), (IPSET_ERR_PROTOCOL, IPSET_ERR_PROTOCOL));
    let null = answer_to_add(c, "port", |w| {
        write_address(w, IPSET_ATTR_IP, "10.0.0.1");
        w.net().be_u16(IPSET_ATTR_PORT, 1);
        w.u8(IPSET_ATTR_PROTO, 0);
    });
    assert_eq!(null, IPSET_ERR_INVALID_PROTO);
    let missing = answer_to_add(c, "port", |w| {
        write_address(w, IPSET_ATTR_IP, "10.0.0.1");
        w.net().be_u16(IPSET_ATTR_PORT, 1);
    });
    assert_eq!(missing, IPSET_ERR_MISSING_PROTO);
    let range6 = answer_to_add(c, "ip6", |w| {
        write_address(w, IPSET_ATTR_IP, "::1");
        write_address(w, IPSET_ATTR_IP_TO, "::2");
    });
    assert_eq!(range6, IPSET_ERR_HASH_RANGE_UNSUPPORTED);
    let whole = answer_to_add(c, "net", |w| {
        write_address(w, IPSET_ATTR_IP, "0.0.0.0");
        write_address(w, IPSET_ATTR_IP_TO, "255.255.255.255");
    });
    assert_eq!(whole, IPSET_ERR_HASH_RANGE);
    let before_nothing = answer_to_add(c, "list", |w| {
        w.string(IPSET_ATTR_NAME, "ip");
        w.net().be_u32(IPSET_ATTR_CADT_FLAGS, IPSET_FLAG_BEFORE);
    });
    assert_eq!(before_nothing, IPSET_ERR_BEFORE);
    if client
        .revisions(SetType::HashIpMark, SetFamily::Inet)
        .unwrap()
        .is_some()
    {
        let markmask = answer_to_create(c, ("hash:ip,mark", 0, NFPROTO_IPV4), |w| {
            w.net().be_u32(IPSET_ATTR_MARKMASK, 0);
        });
        assert_eq!(markmask, IPSET_ERR_INVALID_MARKMASK);
    }
    if client
        .revisions(SetType::HashIp, SetFamily::Inet)
        .unwrap()
        .is_some_and(|revisions| revisions.max >= 6)
    {
        let both = answer_to_create(c, ("hash:ip", 6, NFPROTO_IPV4), |w| {
            w.u8(IPSET_ATTR_NETMASK, 24);
            write_address(w, IPSET_ATTR_BITMASK, "255.0.0.0");
        });
        assert_eq!(both, IPSET_ERR_BITMASK_NETMASK_EXCL);
    }
    // In these kernels a list of sets takes more members than its size.
    for number in 0..20 {
        let member = name(&format!("m{number}"));
        client.create(&Set::new(member, SetType::HashIp)).unwrap();
        client.add(&name("list"), &Entry::set(member)).unwrap();
    }
    let listed: SetContents = client.list_set(&name("list")).unwrap();
    assert_eq!(
        (listed.entries.len(), listed.header.set.options.size),
        (20, Some(8))
    );
}

fn write_address(w: &mut AttributeWriter<'_>, kind: u16, text: &str) {
    let address: IpAddr = text.parse().unwrap();
    let inner = if address.is_ipv4() {
        uapi::IPSET_ATTR_IPADDR_IPV4
    } else {
        uapi::IPSET_ATTR_IPADDR_IPV6
    };
    w.nested(kind, |w| {
        w.net().address(inner, address);
    });
}

/// The error number with which the kernel answers a message that this crate would not send; 0 for success.
fn answer(connection: &mut Connection, command: u8, write: impl FnOnce(&mut AttributeWriter<'_>)) -> i32 {
    let kind = netfilter::message_type(uapi::NFNL_SUBSYS_IPSET, command);
    match connection.execute_one(kind, flags::NLM_F_EXCL, write) {
        Ok(()) => 0,
        Err(error) => error.errno().map_or(-1, |errno| errno.0),
    }
}

/// The answer to `create` with these options.
fn answer_to_create(
    connection: &mut Connection,
    (set_type, revision, family): (&str, u8, u8),
    write: impl FnOnce(&mut AttributeWriter<'_>),
) -> i32 {
    answer(connection, uapi::IPSET_CMD_CREATE, |w| {
        write_set_name(w, "new");
        w.string(uapi::IPSET_ATTR_TYPENAME, set_type);
        w.u8(uapi::IPSET_ATTR_REVISION, revision);
        w.u8(uapi::IPSET_ATTR_FAMILY, family);
        w.nested(uapi::IPSET_ATTR_DATA, write);
    })
}

/// The answer to `add` of an entry with these attributes.
fn answer_to_add(
    connection: &mut Connection,
    set: &str,
    write: impl FnOnce(&mut AttributeWriter<'_>),
) -> i32 {
    answer(connection, uapi::IPSET_CMD_ADD, |w| {
        write_set_name(w, set);
        w.nested(uapi::IPSET_ATTR_DATA, write);
    })
}

#[test]
fn kernels_from_6_3_have_bitmasks_and_netmasks_of_more_types() {
    requires!(Feature::IpSet);
    since!(6, 3);
    let mut client = client();
    let mask: IpAddr = [255, 0, 255, 0].into();
    let set = Set::new(name("masked"), SetType::HashIpPort).with_bitmask(mask);
    fill(&mut client, &set, [web(0x0001_0203)].into_iter());
    let listed = client.list_set(&set.name).unwrap();
    assert_eq!(listed.header.set.options.bitmask, Some(mask));
    assert_eq!(listed.entries[0].to_string(), "10.0.2.0,tcp:80");
    assert!(tools::ipset_save().contains("bitmask 255.0.255.0"));
    let set = Set::new(name("cut"), SetType::HashIpPort).with_netmask(16);
    fill(&mut client, &set, [web(0x0001_0203)].into_iter());
    assert_eq!(
        client.list_set(&set.name).unwrap().entries[0].to_string(),
        "10.1.0.0,tcp:80"
    );
}

#[test]
fn an_option_that_the_kernel_lacks_is_refused_with_the_first_kernel_that_has_it() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("masked"), SetType::HashIpPort).with_bitmask([255, 0, 255, 0].into());
    let is_supported = client
        .revisions(SetType::HashIpPort, SetFamily::Inet)
        .unwrap()
        .unwrap()
        .max
        >= 7;
    match client.create(&set) {
        Ok(()) => assert!(is_supported),
        Err(error) => {
            assert!(error.is_unsupported() && !is_supported, "{error:?}");
            assert!(
                error
                    .to_string()
                    .contains("bitmask of hash:ip,port requires Linux 6.3 or newer (revision 7"),
                "{error}"
            );
        }
    }
    // A type that does not exist.
    let unknown: SetType = "hash:no,such".parse().unwrap();
    assert_eq!(client.revisions(unknown, SetFamily::Inet).unwrap(), None);
    let error = client.create(&Set::new(name("unknown"), unknown)).unwrap_err();
    assert!(error.is_unsupported(), "{error:?}");
}

/// The test runs itself again as root without `CAP_NET_ADMIN`.
#[test]
fn a_caller_without_cap_net_admin_gets_permission_denied() {
    let set = Set::new(name("a"), SetType::HashIp);
    if std::env::var_os("KERNLINK_WITHOUT_NET_ADMIN").is_some() {
        let mut client = Client::open().unwrap();
        for outcome in [
            client.create(&set),
            client.names().map(drop),
            client.destroy_all(),
        ] {
            let error = outcome.unwrap_err();
            assert!(error.is_permission_denied(), "{error:?}");
            assert_eq!(error.reason(), Some(Reason::PermissionDenied));
        }
        return;
    }
    requires!(Feature::IpSet);
    let mut client = client();
    client.create(&set).unwrap();
    let program = std::env::current_exe().unwrap();
    let test = "refusals::a_caller_without_cap_net_admin_gets_permission_denied";
    let setpriv = [
        "KERNLINK_WITHOUT_NET_ADMIN=1",
        "setpriv",
        "--bounding-set",
        "-net_admin",
        "--",
    ];
    let arguments = [program.to_str().unwrap(), "--exact", test, "--nocapture"];
    let output =
        tools::run("env", &[&setpriv[..], &arguments[..]].concat()).unwrap_or_else(|error| panic!("{error}"));
    assert!(output.contains("1 passed"), "{output}");
}

const UNPRIVILEGED: &str = "KERNLINK_TEST_IS_UNPRIVILEGED";

/// The kernel answers only the first request of each send. The test runs itself again as another user.
#[test]
fn every_operation_of_an_unprivileged_caller_is_refused() {
    if std::env::var_os(UNPRIVILEGED).is_some() {
        return all_are_refused();
    }
    requires!(Feature::IpSet);
    let program = std::env::current_exe().unwrap();
    let output = tools::must(
        "setpriv",
        &[
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "env",
            &format!("{UNPRIVILEGED}=1"),
            program.to_str().unwrap(),
            "--exact",
            "refusals::every_operation_of_an_unprivileged_caller_is_refused",
            "--nocapture",
        ],
    );
    assert!(output.contains("refused 1000"), "{output}");
}

fn all_are_refused() {
    let mut client = Client::open().unwrap();
    let operations: Vec<Operation> = (0..500)
        .flat_map(|number| {
            [
                Operation::Rename {
                    from: name(&format!("from{number}")),
                    to: name(&format!("to{number}")),
                },
                Operation::add(name(&format!("set{}", number / 10)), web(number)),
            ]
        })
        .collect();
    let outcomes = client.execute(&operations);
    for (operation, outcome) in operations.iter().zip(&outcomes) {
        let error = outcome.clone().unwrap_err();
        assert!(error.is_permission_denied(), "{operation}: {error:?}");
    }
    println!("refused {}", outcomes.len());
}
