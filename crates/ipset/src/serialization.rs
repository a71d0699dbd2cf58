//! The feature `serde`: keys, names, values and events are strings, their notation. Names and comments are bytes: those that are not UTF-8 have no
//! notation, and cannot be serialized.

use kernlink_base::serialization::{Names, check_bytes};

use crate::{
    Element, Entry, EntryRange, InterfaceName, Operation, Position, Set, SetName, SetType, TypeName,
};

kernlink_base::serde_as_text!(
    crate::MacAddress,
    crate::Network,
    crate::ProtocolPort,
    crate::SetFamily,
    crate::SkbMark,
    crate::SkbPriority,
    crate::Timeout,
);
kernlink_base::serde_as_text!(
    names checked:
    crate::InterfaceName,
    crate::SetName,
    crate::SetType,
    crate::TypeName,
);
kernlink_base::serde_as_text!(
    serialize only, names checked:
    crate::Entry,
    crate::Operation,
    crate::Set,
);

impl Names for SetName {
    fn check_names(&self) -> Result<(), String> {
        check_bytes("set name", self.as_bytes())
    }
}

impl Names for TypeName {
    fn check_names(&self) -> Result<(), String> {
        check_bytes("set type name", self.as_bytes())
    }
}

impl Names for InterfaceName {
    fn check_names(&self) -> Result<(), String> {
        check_bytes("interface name", self.as_bytes())
    }
}

impl Names for SetType {
    fn check_names(&self) -> Result<(), String> {
        match self {
            SetType::Unknown(name) => name.check_names(),
            _ => Ok(()),
        }
    }
}

impl Names for Set {
    fn check_names(&self) -> Result<(), String> {
        self.name.check_names()?;
        self.set_type.check_names()
    }
}

impl Names for Entry {
    fn check_names(&self) -> Result<(), String> {
        match self.element() {
            Element::NetIface { interface, .. } => interface.name.check_names()?,
            Element::Set(name) => name.check_names()?,
            _ => {}
        }
        let options = self.options();
        if let Some(Position::Before(name) | Position::After(name)) = &options.position {
            name.check_names()?;
        }
        match &options.comment {
            Some(comment) => check_bytes("comment", comment.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Names for EntryRange {
    fn check_names(&self) -> Result<(), String> {
        self.first.check_names()
    }
}

impl Names for Operation {
    fn check_names(&self) -> Result<(), String> {
        match self {
            Operation::Create { set, .. } => set.check_names(),
            Operation::Destroy { set, .. } | Operation::Flush { set } => set.check_names(),
            Operation::Rename { from, to } => {
                from.check_names()?;
                to.check_names()
            }
            Operation::Swap { first, second } => {
                first.check_names()?;
                second.check_names()
            }
            Operation::Add { set, entry, .. } | Operation::Delete { set, entry, .. } => {
                set.check_names()?;
                entry.check_names()
            }
            Operation::AddRange { set, range, .. } | Operation::DeleteRange { set, range, .. } => {
                set.check_names()?;
                range.check_names()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kernlink_base::serialization::serde::Serialize;

    use super::*;
    use crate::{Comment, Interface, Network};

    #[test]
    fn values_are_their_notation() {
        let set = Set::new("blocked".parse().unwrap(), SetType::HashNet);
        let key = (set.name, set.set_type, "10.0.0.0/8".parse::<Network>().unwrap());
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(json, r#"["blocked","hash:net","10.0.0.0/8"]"#);
        assert_eq!(
            serde_json::from_str::<(SetName, SetType, Network)>(&json).unwrap(),
            key
        );
        assert_eq!(serde_json::to_value(&set).unwrap(), set.to_string());
    }

    #[test]
    fn names_and_comments_that_are_not_utf8_are_errors_that_name_them() {
        #[track_caller]
        fn refused(value: impl Serialize, what: &str) {
            let error = serde_json::to_string(&value).unwrap_err().to_string();
            let expected = format!(r#"{what} "a\xff" is not UTF-8, so it cannot be serialized as a string"#);
            assert_eq!(error, expected);
        }
        let name = SetName::from_bytes(b"a\xff").unwrap();
        let type_name = TypeName::from_bytes(b"a\xff").unwrap();
        let interface = InterfaceName::from_bytes(b"a\xff").unwrap();
        let comment = Comment::from_bytes(b"a\xff").unwrap();
        let good: SetName = "é".parse().unwrap();
        let net: Network = "10.0.0.0/8".parse().unwrap();
        let entry = Entry::net(net);
        refused(name, "set name");
        refused(type_name, "set type name");
        refused(SetType::Unknown(type_name), "set type name");
        refused(interface, "interface name");
        refused(Set::new(name, SetType::HashNet), "set name");
        refused(Set::new(good, SetType::Unknown(type_name)), "set type name");
        refused(Entry::set(name), "set name");
        refused(Entry::set(good).with_position(Position::After(name)), "set name");
        refused(Entry::net_iface(net, Interface::new(interface)), "interface name");
        let commented = entry.clone().with_comment(comment);
        refused(&commented, "comment");
        refused(Operation::create(Set::new(name, SetType::HashNet)), "set name");
        refused(Operation::destroy(name), "set name");
        refused(Operation::Flush { set: name }, "set name");
        refused(Operation::Rename { from: good, to: name }, "set name");
        refused(
            Operation::Swap {
                first: good,
                second: name,
            },
            "set name",
        );
        refused(Operation::add(name, entry.clone()), "set name");
        refused(Operation::add(good, commented), "comment");
        for json in [
            serde_json::to_string(&good).unwrap(),
            serde_json::to_string(&SetName::new("\u{fffd} \"").unwrap()).unwrap(),
        ] {
            let read: SetName = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), json);
        }
        assert!(serde_json::to_string(&Operation::add(good, entry)).is_ok());
    }
}
