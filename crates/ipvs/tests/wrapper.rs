//! A wrapper that implements only the required methods of `Ipvs`, and implementations in boxes and references.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;

use kernlink_ipvs::{
    Error, Fake, Ipvs, Operation, RealServerStatus, Scheduler, Timeouts, VirtualServer, VirtualServerKey,
    VirtualServerStatus, contract,
};

/// Implements the required methods, and refuses operations on one virtual server.
struct Wrapper<I> {
    table: I,
    refused: Option<VirtualServerKey>,
}

impl<I: Ipvs> Wrapper<I> {
    fn new(table: I) -> Self {
        Self { table, refused: None }
    }
}

impl<I: Ipvs> Ipvs for Wrapper<I> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |operation: &Operation| {
            if operation.virtual_server().is_some() && operation.virtual_server() == self.refused {
                return Err(Error::custom(operation.describe(), "the address is reserved"));
            }
            self.table.execute_one(operation.clone())
        };
        operations.iter().map(execute).collect()
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        self.table.list_virtual_servers()
    }

    fn list_real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<RealServerStatus>, Error> {
        self.table.list_real_servers(key)
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.table.timeouts()
    }
}

#[test]
fn the_required_methods_are_enough_for_the_contract_without_daemons() {
    contract::run(|check| {
        if !check.name.contains("daemon") {
            (check.run)(&mut Wrapper::new(Fake::new()));
        }
    })
    .unwrap();
}

#[test]
fn boxes_and_references_pass_the_contract() {
    contract::run(|check| {
        let boxed: Box<dyn Ipvs> = Box::new(Fake::new());
        let reference: &'static mut Box<dyn Ipvs> = Box::leak(Box::new(boxed));
        (check.run)(&mut { reference });
    })
    .unwrap();
}

#[test]
fn errors_of_a_wrapper_have_its_own_cause() {
    let mut fake = Fake::new();
    let reserved = VirtualServerKey::tcp(Ipv4Addr::new(10, 96, 0, 10), 80);
    let mut table = Wrapper {
        table: &mut fake as &mut dyn Ipvs,
        refused: Some(reserved),
    };
    for error in [
        table
            .ensure_virtual_server(&VirtualServer::new(reserved, Scheduler::RR))
            .unwrap_err(),
        table.zero(&reserved).unwrap_err(),
    ] {
        assert!(!error.is_not_found() && !error.is_invalid() && !error.is_outcome_unknown());
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "the address is reserved");
    }
    table
        .add_virtual_server(&VirtualServer::new(
            VirtualServerKey::udp(Ipv4Addr::new(10, 96, 0, 10), 80),
            Scheduler::RR,
        ))
        .unwrap();
    for error in [table.list_daemons().unwrap_err(), table.info().unwrap_err()] {
        assert!(matches!(error, Error::Custom { .. }), "{error:?}");
    }
    assert_eq!(fake.executed().len(), 1);
}
