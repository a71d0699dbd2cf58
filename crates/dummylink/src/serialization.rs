//! The feature `serde`: keys, names, values and events are strings, their notation. Names of links and labels are bytes: those that are not UTF-8
//! have no notation, and cannot be serialized.

use kernlink_base::serialization::{Names, check_bytes};

use crate::{DummyLink, Event, HostAddress, Label, Link, LinkAddress, LinkName, Operation, ReplaceReport};

kernlink_base::serde_as_text!(crate::AddressKey);
kernlink_base::serde_as_text!(names checked: crate::Label, crate::LinkName);
kernlink_base::serde_as_text!(
    serialize only, names checked:
    crate::DummyLink,
    crate::Event,
    crate::HostAddress,
    crate::Link,
    crate::LinkAddress,
    crate::Operation,
    crate::ReplaceReport,
);

impl Names for LinkName {
    fn check_names(&self) -> Result<(), String> {
        check_bytes("link name", self.as_bytes())
    }
}

impl Names for Label {
    fn check_names(&self) -> Result<(), String> {
        check_bytes("address label", self.as_bytes())
    }
}

impl Names for DummyLink {
    fn check_names(&self) -> Result<(), String> {
        self.name.check_names()
    }
}

impl Names for Link {
    fn check_names(&self) -> Result<(), String> {
        self.name.check_names()
    }
}

impl Names for LinkAddress {
    fn check_names(&self) -> Result<(), String> {
        self.label.as_ref().map_or(Ok(()), Names::check_names)
    }
}

impl Names for HostAddress {
    fn check_names(&self) -> Result<(), String> {
        self.link.check_names()?;
        self.address.check_names()
    }
}

impl Names for Operation {
    fn check_names(&self) -> Result<(), String> {
        self.link().check_names()?;
        match self {
            Operation::AddAddress(_, address)
            | Operation::EnsureAddress(_, address)
            | Operation::UpdateAddress(_, address) => address.check_names(),
            _ => Ok(()),
        }
    }
}

impl Names for Event {
    fn check_names(&self) -> Result<(), String> {
        match self {
            Event::LinkChanged(link) | Event::LinkDeleted(link) => link.check_names(),
            Event::AddressChanged(address) | Event::AddressDeleted(address) => address.check_names(),
            Event::Overrun => Ok(()),
        }
    }
}

impl Names for ReplaceReport {
    fn check_names(&self) -> Result<(), String> {
        self.failures
            .iter()
            .try_for_each(|(operation, _)| operation.check_names())
    }
}

#[cfg(test)]
mod tests {
    use kernlink_base::serialization::serde::Serialize;

    use super::*;
    use crate::{AddressKey, Error};

    #[test]
    fn values_are_their_notation() {
        let key: AddressKey = "10.0.0.1/24".parse().unwrap();
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(json, "\"10.0.0.1/24\"");
        assert_eq!(serde_json::from_str::<AddressKey>(&json).unwrap(), key);
        assert_eq!(
            serde_json::from_str::<LinkName>("\"dummy0\"")
                .unwrap()
                .to_string(),
            "dummy0"
        );
        assert!(serde_json::from_str::<LinkName>("\"a/b\"").is_err());
        let report = ReplaceReport::default();
        assert_eq!(serde_json::to_value(&report).unwrap(), "0 operations done");
        assert_eq!(
            Event::Overrun.to_string(),
            "events were lost: the receive buffer was full"
        );
    }

    #[test]
    fn names_and_labels_that_are_not_utf8_are_errors_that_name_them() {
        #[track_caller]
        fn refused(value: impl Serialize, what: &str) {
            let error = serde_json::to_string(&value).unwrap_err().to_string();
            let expected = format!(r#"{what} "a\xff" is not UTF-8, so it cannot be serialized as a string"#);
            assert_eq!(error, expected);
        }
        let name = LinkName::from_kernel(b"a\xff").unwrap();
        let label = Label::from_kernel(b"a\xff").unwrap();
        let good: LinkName = "é".parse().unwrap();
        let key: AddressKey = "10.0.0.1/24".parse().unwrap();
        let address = LinkAddress::new(key);
        let labelled = LinkAddress::new(key).with_label(label);
        let on = |link| HostAddress::new(link, 1, address.clone());
        refused(name, "link name");
        refused(label, "address label");
        refused(DummyLink::new(name), "link name");
        refused(Link::new(1, name, None), "link name");
        refused(&labelled, "address label");
        refused(on(name), "link name");
        refused(HostAddress::new(good, 1, labelled.clone()), "address label");
        refused(Event::LinkDeleted(Link::new(1, name, None)), "link name");
        refused(Event::AddressChanged(on(name)), "link name");
        let delete = Operation::DeleteLink(name);
        refused(&delete, "link name");
        refused(Operation::AddLink(DummyLink::new(name)), "link name");
        let add = Operation::AddAddress(good, labelled);
        refused(&add, "address label");
        let error = Error::Invalid {
            operation: "x".into(),
            reason: "y",
        };
        let report = ReplaceReport {
            failures: vec![(delete, error)],
            ..ReplaceReport::default()
        };
        refused(report, "link name");
        assert_eq!(serde_json::to_value(on(good)).unwrap(), on(good).to_string());
        let json = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<LinkName>(&json).unwrap(), good);
    }
}
