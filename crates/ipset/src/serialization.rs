//! The feature `serde`: keys, names, values and events are strings, their notation.

kernlink_base::serde_as_text!(
    crate::InterfaceName,
    crate::MacAddress,
    crate::Network,
    crate::ProtocolPort,
    crate::SetFamily,
    crate::SetName,
    crate::SetType,
    crate::SkbMark,
    crate::SkbPriority,
    crate::Timeout,
    crate::TypeName,
);
kernlink_base::serde_as_text!(
    serialize only:
    crate::Entry,
    crate::Operation,
    crate::Set,
);

#[cfg(test)]
mod tests {
    use crate::{Network, Set, SetName, SetType};

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
}
