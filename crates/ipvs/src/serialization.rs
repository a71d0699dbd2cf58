//! The feature `serde`: keys, names, values and events are strings, their notation.

kernlink_base::serde_as_text!(
    crate::InterfaceName,
    crate::Operation,
    crate::PersistenceEngine,
    crate::RealServerKey,
    crate::Scheduler,
    crate::VirtualServerKey,
);
kernlink_base::serde_as_text!(
    serialize only:
    crate::Executed,
    crate::RealServer,
    crate::VirtualServer,
);

#[cfg(test)]
mod tests {
    use crate::{Operation, RealServerKey, Scheduler, VirtualServer, VirtualServerKey};

    #[test]
    fn values_are_their_notation() {
        let web = VirtualServer::new("-t 10.0.0.1:80".parse().unwrap(), Scheduler::RR);
        let json = serde_json::to_string(&(web.key, &web)).unwrap();
        assert_eq!(json, r#"["-t 10.0.0.1:80","-A -t 10.0.0.1:80 -s rr"]"#);
        let read: (VirtualServerKey, Operation) = serde_json::from_str(&json).unwrap();
        assert_eq!(read, (web.key, Operation::AddVirtualServer(web)));
        let error = serde_json::from_str::<RealServerKey>("\"10.0.0.1\"")
            .unwrap_err()
            .to_string();
        assert!(error.contains("invalid real server \"10.0.0.1\""), "{error}");
    }
}
