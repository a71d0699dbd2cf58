//! The feature `serde`: keys, names, values and events are strings, their notation.

kernlink_base::serde_as_text!(crate::AddressKey, crate::Label, crate::LinkName,);
kernlink_base::serde_as_text!(
    serialize only:
    crate::DummyLink,
    crate::Event,
    crate::HostAddress,
    crate::Link,
    crate::LinkAddress,
    crate::Operation,
    crate::ReplaceReport,
);

#[cfg(test)]
mod tests {
    use crate::{AddressKey, Event, LinkName, ReplaceReport};

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
}
