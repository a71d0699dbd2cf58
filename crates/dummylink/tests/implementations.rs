//! Links that are not the kernel's: implementations with the required methods, and implementations behind pointers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_dummylink::{
    DummyLink, DummyLinks, Error, Fake, HostAddress, Link, LinkAddress, LinkName, LocalRoute, Operation,
    Ours, Selection, contract,
};

/// The required methods only, and one operation refused.
struct StandIn<L> {
    links: L,
    refused: Option<Operation>,
}

impl<L: DummyLinks> StandIn<L> {
    fn over(links: L) -> Self {
        Self { links, refused: None }
    }
}

impl<L: DummyLinks> DummyLinks for StandIn<L> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |operation: &Operation| {
            if self.refused.as_ref() == Some(operation) {
                return Err(Error::custom(operation, "the address is reserved"));
            }
            self.links.execute_one(operation.clone())
        };
        operations.iter().map(execute).collect()
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.links.links()
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
        self.links.list(selection)
    }
}

/// The required methods and `routes`.
struct WithRoutes<L>(StandIn<L>);

impl<L: DummyLinks> DummyLinks for WithRoutes<L> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.0.execute(operations)
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.0.links()
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
        self.0.list(selection)
    }

    fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
        self.0.links.routes(link)
    }
}

/// Returns no outcomes.
struct Mute;

impl DummyLinks for Mute {
    fn execute(&mut self, _: &[Operation]) -> Vec<Result<(), Error>> {
        Vec::new()
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        Ok(vec![Link::new(2, "d0".parse().unwrap(), Some(Link::DUMMY))])
    }

    fn list(&mut self, _: Selection) -> Result<Vec<HostAddress>, Error> {
        Ok(Vec::new())
    }
}

fn address(last: u8) -> LinkAddress {
    LinkAddress::host([10, 0, 0, last].into()).unwrap()
}

#[test]
fn the_required_methods_and_routes_keep_the_contract() {
    for (name, check) in contract::CHECKS {
        println!("{name}");
        check(&mut WithRoutes(StandIn::over(Fake::new())));
    }
}

#[test]
fn links_behind_pointers_keep_the_contract() {
    for (name, check) in contract::CHECKS {
        println!("{name}");
        let mut boxed: Box<dyn DummyLinks> = Box::new(Fake::new());
        let mut pointer = &mut boxed;
        check(&mut pointer);
    }
}

#[test]
fn a_pointer_uses_the_methods_of_what_it_points_to() {
    let (link, other): (LinkName, LinkName) = ("d0".parse().unwrap(), "d1".parse().unwrap());
    let mut fake = Fake::new()
        .with_link(link, Some("dummy"), &[])
        .with_alternative_name(&link, other);
    let mut pointer: &mut dyn DummyLinks = &mut fake;
    let found = DummyLinks::link(&mut pointer, &other).unwrap();
    assert_eq!(found.map(|found| found.name), Some(link));
    // The provided method knows first names only.
    assert_eq!(StandIn::over(&mut fake).link(&other).unwrap(), None);
}

#[test]
fn a_stand_in_reports_its_own_errors() {
    let link: LinkName = "d0".parse().unwrap();
    let mut links = StandIn {
        links: Fake::new(),
        refused: Some(Operation::AddAddress(link, address(2))),
    };
    links.ensure_link(&DummyLink::new(link)).unwrap();
    assert!(links.exists(&link).unwrap());
    links.add(&link, &address(1)).unwrap();
    let error = links.add(&link, &address(2)).unwrap_err();
    assert_eq!(error.to_string(), "cannot address add 10.0.0.2/32 dev d0");
    assert!(!error.is_not_found() && !error.is_unsupported() && !error.is_outcome_unknown());
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "the address is reserved");
}

#[test]
fn without_routes_replace_adds_addresses_and_deletes_no_ipv4_address() {
    let link: LinkName = "d0".parse().unwrap();
    let mut links = StandIn::over(Fake::new().with_link(link, Some("dummy"), &[address(1)]));
    assert!(links.routes(&link).unwrap_err().is_unsupported());
    let both = [address(1), address(2)];
    let replaced = links.replace(&link, &both, &Ours::Everything).unwrap();
    assert_eq!((replaced.done, replaced.failures.len()), (1, 0));
    let refused = links.replace(&link, &[], &Ours::Everything).unwrap_err();
    assert!(matches!(refused, Error::NotImplemented { .. }), "{refused}");
    assert_eq!(links.list(Selection::On(link)).unwrap().len(), 2);
}

#[test]
fn a_missing_outcome_is_an_error_of_unknown_outcome() {
    let link = DummyLink::new("d0".parse().unwrap());
    assert!(Mute.ensure_link(&link).unwrap_err().is_outcome_unknown());
    let replaced = Mute
        .replace(&link.name, &[address(1)], &Ours::Everything)
        .unwrap();
    let [(_, error)] = replaced.failures.as_slice() else {
        unreachable!("{replaced:?}")
    };
    assert!(error.is_outcome_unknown());
}
