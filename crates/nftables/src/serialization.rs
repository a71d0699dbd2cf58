//! The feature `serde`: keys, names, values and events are strings, their notation.

kernlink_base::serde_as_text!(
    crate::ChainKey,
    crate::FlowtableKey,
    crate::ObjectKey,
    crate::RuleKey,
    crate::SetKey,
    crate::TableFamily,
    crate::TableKey,
);
kernlink_base::serde_as_text!(
    serialize only:
    crate::Event,
    crate::Generation,
    crate::Operation,
    crate::Rule,
    crate::Ruleset,
    crate::Trace,
);

#[cfg(test)]
mod tests {
    use crate::{ChainKey, Event, TableKey};

    #[test]
    fn values_are_their_notation() {
        let chain: ChainKey = "inet filter input".parse().unwrap();
        let json = serde_json::to_string(&(&chain, &chain.table)).unwrap();
        assert_eq!(json, r#"["inet filter input","inet filter"]"#);
        assert_eq!(
            serde_json::from_str::<(ChainKey, TableKey)>(&json).unwrap(),
            (chain.clone(), chain.table)
        );
        assert!(serde_json::from_str::<ChainKey>("\"inet filter\"").is_err());
        let event = Event::Overrun;
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            "events were lost: the receive buffer was full"
        );
    }
}
