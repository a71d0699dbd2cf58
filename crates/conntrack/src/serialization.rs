//! The feature `serde`: keys, names, values and events are strings, their notation.

kernlink_base::serde_as_text!(crate::FlowKey,);
kernlink_base::serde_as_text!(
    serialize only:
    crate::Event,
    crate::Expectation,
    crate::Flow,
);

#[cfg(test)]
mod tests {
    use crate::{Event, Flow, FlowKey};

    #[test]
    fn values_are_their_notation() {
        let key: FlowKey = "tcp src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2 zone=3"
            .parse()
            .unwrap();
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(json, format!("\"{key}\""));
        assert_eq!(serde_json::from_str::<FlowKey>(&json).unwrap(), key);
        let flow = Flow::new(key.tuple, key.tuple.inverted().unwrap());
        let event = Event::New(flow);
        assert_eq!(serde_json::to_value(&event).unwrap(), event.to_string());
        let error = serde_json::from_str::<FlowKey>("\"tcp\"")
            .unwrap_err()
            .to_string();
        assert!(error.contains("src is missing"), "{error}");
    }
}
