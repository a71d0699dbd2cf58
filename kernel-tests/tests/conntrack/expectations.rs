//! Expectations.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use kernlink_conntrack::{
    Client, Conntrack, Event, EventKinds, Events, Family, Filter, FlowKey, NewExpectation, NewFlow,
    ProtocolPart, Status, Tuple, Zone,
};
use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, tools};

use crate::listing::{client_list, socket, tool_list};

#[test]
fn an_expectation_of_a_helper_is_listed() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let network = Network::new(1);
    let server = SocketAddr::new(Network::pod_ipv4(0).into(), 21);
    network.node.run(|| {
        // The helper may be a module or built in.
        let _built_in = tools::run("modprobe", &["nf_conntrack_ftp"]);
        let rule = "-w -t raw -A PREROUTING -p tcp --dport 21 -j CT --helper ftp";
        tools::must("iptables", &rule.split(' ').collect::<Vec<_>>());
    });
    let kinds = EventKinds::EXPECTATIONS;
    let timeout = Some(Duration::from_secs(5));
    let mut events = network
        .node
        .run(|| Events::open(kinds, &Filter::new(), timeout))
        .unwrap();

    // The part of an FTP session in which the server announces its data port, 2000.
    let listener = network.pods[0].run(|| TcpListener::bind(server)).unwrap();
    let mut control = network.client.run(|| TcpStream::connect(server)).unwrap();
    let (mut session, client) = listener.accept().unwrap();
    // The helper reads only data after a first line.
    let mut line = [0; 6];
    session.write_all(b"220 ok\r\n").unwrap();
    control.read_exact(&mut line).unwrap();
    control.write_all(b"PASV\r\n").unwrap();
    session.read_exact(&mut line).unwrap();
    session
        .write_all(b"227 Entering Passive Mode (10,244,0,2,7,208)\r\n")
        .unwrap();
    control.read_exact(&mut line).unwrap();

    network.node.run(|| {
        let mut table = Client::open().unwrap();
        let master = Tuple::tcp(client, server);
        let flow = table.flow(&FlowKey::new(master)).unwrap();
        assert_eq!(flow.helper.as_deref(), Some("ftp"));
        assert_eq!(client_list(&mut table, &Filter::new()), tool_list(&[]));
        let expectations = table.expectations().unwrap();
        let [expectation] = expectations.as_slice() else {
            panic!("{expectations:#?}")
        };
        assert_eq!(expectation.master, master);
        let data = Tuple::tcp(
            SocketAddr::new(client.ip(), 0),
            SocketAddr::new(server.ip(), 2000),
        );
        assert_eq!(expectation.tuple, data);
        let mask = ProtocolPart::Ports {
            source: 0,
            destination: 0xffff,
        };
        assert_eq!(expectation.mask.part, mask);
        assert_eq!(expectation.helper.as_deref(), Some("ftp"));
        assert!(
            (200..=300).contains(&expectation.timeout.unwrap().as_secs()),
            "{expectation}"
        );

        let Some(Ok(Event::ExpectationNew(event))) = events.next() else {
            panic!("no event of the expectation")
        };
        // The ids are not compared: Linux 6.1 has other ids in events than in listings.
        assert_eq!(
            (event.tuple, event.master),
            (expectation.tuple, expectation.master)
        );
        let expected = tools::must("conntrack", &["-L", "expect"]);
        let without_time = |line: &str| line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap();
        assert_eq!(
            without_time(expected.trim()),
            without_time(&expectation.to_string())
        );
        // The expected flow begins, and its master is the flow that announced it.
        let listener = network.pods[0]
            .run(|| TcpListener::bind((server.ip(), 2000)))
            .unwrap();
        let transfer = network
            .client
            .run(|| TcpStream::connect((server.ip(), 2000)))
            .unwrap();
        let child = Tuple::tcp(transfer.local_addr().unwrap(), listener.local_addr().unwrap());
        let flow = table.flow(&FlowKey::new(child)).unwrap();
        assert_eq!(flow.master.as_deref(), Some(&master));
        assert!(flow.status.contains(Status::EXPECTED));
        assert_eq!(table.expectations().unwrap(), []);
        assert!(matches!(events.next(), Some(Ok(Event::ExpectationDestroy(_)))));
    });
}

#[test]
fn expectations_are_added_and_deleted() {
    requires!(Feature::Conntrack, Feature::Iptables);
    NetNs::new().run(|| {
        // The helper may be a module or built in.
        let _built_in = tools::run("modprobe", &["nf_conntrack_ftp"]);
        let mut client = Client::open().unwrap();
        for (source, server) in [("10.0.0.1", "10.0.0.2"), ("[fd00::1]", "[fd00::2]")] {
            let master = Tuple::tcp(socket(&format!("{source}:4660")), socket(&format!("{server}:21")));
            let tuple = Tuple::tcp(socket(&format!("{source}:0")), socket(&format!("{server}:2000")));
            let ones = if tuple.source.is_ipv4() {
                "255.255.255.255"
            } else {
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]"
            };
            let mask = Tuple::tcp(socket(&format!("{ones}:0")), socket(&format!("{ones}:65535")));
            let new = NewExpectation::new(master, tuple, mask)
                .with_zone(7)
                .with_helper("ftp")
                .with_timeout(Duration::from_secs(4000));
            assert!(client.add_expectation(&new).unwrap_err().is_not_found());
            let flow = NewFlow::new(master, Duration::from_secs(600)).with_zone(Zone::new(7));
            client.add(&flow).unwrap();
            // The master has no helper.
            assert!(client.add_expectation(&new).unwrap_err().is_unsupported());
            client.delete(&flow.key()).unwrap();
            client.add(&flow.with_helper("ftp")).unwrap();
            client.add_expectation(&new).unwrap();
            assert!(client.add_expectation(&new).unwrap_err().is_already_exists());
            let expectations = client.expectations().unwrap();
            let [added] = expectations.as_slice() else {
                panic!("{expectations:#?}")
            };
            assert_eq!(
                (added.master, added.tuple, added.mask),
                (new.master, new.tuple, new.mask)
            );
            assert_eq!(added.helper.as_deref(), Some("ftp"));
            assert!(
                (3000..=4000).contains(&added.timeout.unwrap().as_secs()),
                "{added}"
            );
            let family = match tuple.family() {
                Family::Ipv4 => "ipv4",
                Family::Ipv6 => "ipv6",
            };
            let expected = tools::must("conntrack", &["-L", "expect", "-f", family]);
            let without_time = |line: &str| line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap();
            assert_eq!(without_time(expected.trim()), without_time(&added.to_string()));
            // The kernel does not list the zone.
            let mut listed = added.clone();
            listed.zone = Zone::new(7);
            let mut other = listed.clone();
            other.id ^= 1;
            assert!(client.delete_expectation(&other).unwrap_err().is_not_found());
            client.delete_expectation(&listed).unwrap();
            assert!(client.delete_expectation(&listed).unwrap_err().is_not_found());
            assert_eq!(client.expectations().unwrap(), []);
            client.add_expectation(&new).unwrap();
            client.flush_expectations().unwrap();
            assert_eq!(client.expectations().unwrap(), []);
        }
    });
}
