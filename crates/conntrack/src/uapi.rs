//! Kernel constants, under their C names.
//!
//! Source:
//! [`nfnetlink_conntrack.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/netfilter/nfnetlink_conntrack.h) and
//! [`nfnetlink.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/netfilter/nfnetlink.h), except `CTA_FILTER_F_*`,
//! which are in an internal header of the kernel:
//! [`nf_internals.h`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_internals.h).

#![allow(
    missing_docs,
    reason = "the C header is the documentation; the names are its names"
)]

macro_rules! constants {
    ($($kind:ty { $($name:ident = $value:expr,)* })*) => {
        $($(pub const $name: $kind = $value;)*)*

        #[cfg(test)]
        const ALL: &[(&str, u64)] = &[$($((stringify!($name), $name as u64),)*)*];
    };
}

constants! {
    u8 {
        IPCTNL_MSG_CT_NEW = 0,
        IPCTNL_MSG_CT_GET = 1,
        IPCTNL_MSG_CT_DELETE = 2,
        IPCTNL_MSG_CT_GET_CTRZERO = 3,
        IPCTNL_MSG_CT_GET_STATS_CPU = 4,
        IPCTNL_MSG_CT_GET_STATS = 5,
        IPCTNL_MSG_CT_GET_DYING = 6,
        IPCTNL_MSG_CT_GET_UNCONFIRMED = 7,
        IPCTNL_MSG_EXP_NEW = 0,
        IPCTNL_MSG_EXP_GET = 1,
        IPCTNL_MSG_EXP_DELETE = 2,
        IPCTNL_MSG_EXP_GET_STATS_CPU = 3,
    }
    u32 {
        NFNLGRP_CONNTRACK_NEW = 1,
        NFNLGRP_CONNTRACK_UPDATE = 2,
        NFNLGRP_CONNTRACK_DESTROY = 3,
        NFNLGRP_CONNTRACK_EXP_NEW = 4,
        NFNLGRP_CONNTRACK_EXP_UPDATE = 5,
        NFNLGRP_CONNTRACK_EXP_DESTROY = 6,
    }
    u16 {
        CTA_TUPLE_ORIG = 1,
        CTA_TUPLE_REPLY = 2,
        CTA_STATUS = 3,
        CTA_PROTOINFO = 4,
        CTA_HELP = 5,
        CTA_NAT_SRC = 6,
        CTA_TIMEOUT = 7,
        CTA_MARK = 8,
        CTA_COUNTERS_ORIG = 9,
        CTA_COUNTERS_REPLY = 10,
        CTA_USE = 11,
        CTA_ID = 12,
        CTA_NAT_DST = 13,
        CTA_TUPLE_MASTER = 14,
        CTA_SEQ_ADJ_ORIG = 15,
        CTA_SEQ_ADJ_REPLY = 16,
        CTA_ZONE = 18,
        CTA_SECCTX = 19,
        CTA_TIMESTAMP = 20,
        CTA_MARK_MASK = 21,
        CTA_LABELS = 22,
        CTA_LABELS_MASK = 23,
        CTA_SYNPROXY = 24,
        CTA_FILTER = 25,
        CTA_STATUS_MASK = 26,
        CTA_TUPLE_IP = 1,
        CTA_TUPLE_PROTO = 2,
        CTA_TUPLE_ZONE = 3,
        CTA_IP_V4_SRC = 1,
        CTA_IP_V4_DST = 2,
        CTA_IP_V6_SRC = 3,
        CTA_IP_V6_DST = 4,
        CTA_PROTO_NUM = 1,
        CTA_PROTO_SRC_PORT = 2,
        CTA_PROTO_DST_PORT = 3,
        CTA_PROTO_ICMP_ID = 4,
        CTA_PROTO_ICMP_TYPE = 5,
        CTA_PROTO_ICMP_CODE = 6,
        CTA_PROTO_ICMPV6_ID = 7,
        CTA_PROTO_ICMPV6_TYPE = 8,
        CTA_PROTO_ICMPV6_CODE = 9,
        CTA_PROTOINFO_TCP = 1,
        CTA_PROTOINFO_DCCP = 2,
        CTA_PROTOINFO_SCTP = 3,
        CTA_PROTOINFO_TCP_STATE = 1,
        CTA_PROTOINFO_TCP_WSCALE_ORIGINAL = 2,
        CTA_PROTOINFO_TCP_WSCALE_REPLY = 3,
        CTA_PROTOINFO_TCP_FLAGS_ORIGINAL = 4,
        CTA_PROTOINFO_TCP_FLAGS_REPLY = 5,
        CTA_PROTOINFO_DCCP_STATE = 1,
        CTA_PROTOINFO_DCCP_ROLE = 2,
        CTA_PROTOINFO_DCCP_HANDSHAKE_SEQ = 3,
        CTA_PROTOINFO_SCTP_STATE = 1,
        CTA_PROTOINFO_SCTP_VTAG_ORIGINAL = 2,
        CTA_PROTOINFO_SCTP_VTAG_REPLY = 3,
        CTA_COUNTERS_PACKETS = 1,
        CTA_COUNTERS_BYTES = 2,
        CTA_TIMESTAMP_START = 1,
        CTA_TIMESTAMP_STOP = 2,
        CTA_NAT_V4_MINIP = 1,
        CTA_NAT_V4_MAXIP = 2,
        CTA_NAT_PROTO = 3,
        CTA_NAT_V6_MINIP = 4,
        CTA_NAT_V6_MAXIP = 5,
        CTA_PROTONAT_PORT_MIN = 1,
        CTA_PROTONAT_PORT_MAX = 2,
        CTA_SEQADJ_CORRECTION_POS = 1,
        CTA_SEQADJ_OFFSET_BEFORE = 2,
        CTA_SEQADJ_OFFSET_AFTER = 3,
        CTA_SYNPROXY_ISN = 1,
        CTA_SYNPROXY_ITS = 2,
        CTA_SYNPROXY_TSOFF = 3,
        CTA_EXPECT_MASTER = 1,
        CTA_EXPECT_TUPLE = 2,
        CTA_EXPECT_MASK = 3,
        CTA_EXPECT_TIMEOUT = 4,
        CTA_EXPECT_ID = 5,
        CTA_EXPECT_HELP_NAME = 6,
        CTA_EXPECT_ZONE = 7,
        CTA_EXPECT_FLAGS = 8,
        CTA_EXPECT_CLASS = 9,
        CTA_EXPECT_FN = 11,
        CTA_HELP_NAME = 1,
        CTA_SECCTX_NAME = 1,
        CTA_STATS_FOUND = 2,
        CTA_STATS_INVALID = 4,
        CTA_STATS_INSERT = 8,
        CTA_STATS_INSERT_FAILED = 9,
        CTA_STATS_DROP = 10,
        CTA_STATS_EARLY_DROP = 11,
        CTA_STATS_ERROR = 12,
        CTA_STATS_SEARCH_RESTART = 13,
        CTA_STATS_CLASH_RESOLVE = 14,
        CTA_STATS_CHAIN_TOOLONG = 15,
        CTA_STATS_GLOBAL_ENTRIES = 1,
        CTA_STATS_GLOBAL_MAX_ENTRIES = 2,
        CTA_STATS_EXP_NEW = 1,
        CTA_STATS_EXP_CREATE = 2,
        CTA_STATS_EXP_DELETE = 3,
        CTA_FILTER_ORIG_FLAGS = 1,
        CTA_FILTER_REPLY_FLAGS = 2,
    }
}

/// Time of an event; Linux 6.14 and later, so older headers do not have it.
pub const CTA_TIMESTAMP_EVENT: u16 = 27;

pub const CTA_FILTER_F_CTA_IP_SRC: u32 = 1 << 0;
pub const CTA_FILTER_F_CTA_IP_DST: u32 = 1 << 1;
pub const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
pub const CTA_FILTER_F_CTA_PROTO_SRC_PORT: u32 = 1 << 4;
pub const CTA_FILTER_F_CTA_PROTO_DST_PORT: u32 = 1 << 5;
pub const CTA_FILTER_F_CTA_PROTO_ICMP_TYPE: u32 = 1 << 6;
pub const CTA_FILTER_F_CTA_PROTO_ICMP_CODE: u32 = 1 << 7;
pub const CTA_FILTER_F_CTA_PROTO_ICMP_ID: u32 = 1 << 8;
pub const CTA_FILTER_F_CTA_PROTO_ICMPV6_TYPE: u32 = 1 << 9;
pub const CTA_FILTER_F_CTA_PROTO_ICMPV6_CODE: u32 = 1 << 10;
pub const CTA_FILTER_F_CTA_PROTO_ICMPV6_ID: u32 = 1 << 11;

/// Any address family.
pub const AF_UNSPEC: u8 = 0;
/// IPv4.
pub const AF_INET: u8 = 2;
/// IPv6.
pub const AF_INET6: u8 = 10;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::ALL;

    /// The constants of a header's enumerations, with their values, without those for the end, the beginning or padding and without
    /// obsolete second names.
    fn header(name: &str) -> BTreeMap<String, u64> {
        let path = format!("/usr/include/linux/netfilter/{name}");
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{path} (of the package linux-libc-dev): {error}"));
        let mut constants = BTreeMap::new();
        for body in text.split("enum ").skip(1) {
            let body = body.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            let Some((body, _)) = body else { continue };
            let mut next = 0;
            // Without comments and preprocessor lines.
            let body: String = body.lines().filter(|line| !line.starts_with('#')).collect();
            let mut plain = String::new();
            let mut rest = body.as_str();
            while let Some((before, after)) = rest.split_once("/*") {
                plain.push_str(before);
                rest = after.split_once("*/").map_or("", |(_, after)| after);
            }
            plain.push_str(rest);
            for item in plain.split(',') {
                let mut parts = item.split('=').map(str::trim);
                let name = parts.next().unwrap_or_default();
                match parts.next() {
                    None => {}
                    Some(value) => match value.parse().ok().or_else(|| constants.get(value).copied()) {
                        Some(value) => next = value,
                        None => continue,
                    },
                }
                if !name.is_empty() {
                    constants.insert(name.to_owned(), next);
                    next += 1;
                }
            }
        }
        constants.retain(|name, _| {
            let ends = ["_UNSPEC", "_MAX", "_PAD"];
            !name.starts_with("__")
                && (name.ends_with("PORT_MAX") || !ends.iter().any(|end| name.ends_with(end)))
                && !name.contains("NAT_SEQ_ADJ")
        });
        constants
    }

    #[test]
    fn constants_have_the_values_of_the_header() {
        let mut known = header("nfnetlink_conntrack.h");
        known.extend(header("nfnetlink.h"));
        assert!(known.len() > 130, "the headers were not read: {known:?}");
        for (name, value) in ALL {
            assert_eq!(known.get(*name), Some(value), "{name}");
        }
    }

    #[test]
    fn the_feature_table_has_every_constant_of_the_header_once() {
        let mut known: BTreeMap<String, u64> = header("nfnetlink_conntrack.h");
        known.extend(
            header("nfnetlink.h")
                .into_iter()
                .filter(|(name, _)| name.starts_with("NFNLGRP_CONNTRACK")),
        );
        // The headers of the distribution may be older.
        known.entry("CTA_TIMESTAMP_EVENT".to_owned()).or_insert(27);
        let used: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        let mut listed = BTreeMap::new();
        let table = include_str!("../README.md")
            .lines()
            .filter(|line| line.starts_with("| `"));
        for line in table {
            let mut columns = line.split('|').skip(1).map(str::trim);
            let (constants, supported) = (
                columns.next().unwrap_or_default(),
                columns.next().unwrap_or_default(),
            );
            for name in constants.split('`').filter(|name| {
                ["CTA_", "IPCTNL_", "NFNLGRP_"]
                    .iter()
                    .any(|start| name.starts_with(start))
            }) {
                assert_eq!(
                    listed.insert(name.to_owned(), supported),
                    None,
                    "{name} is listed twice"
                );
                assert!(known.contains_key(name), "{name} is not in the header");
                match supported {
                    "yes" => assert!(
                        used.contains(&name) || name == "CTA_TIMESTAMP_EVENT",
                        "{name} is not used"
                    ),
                    "no" => assert!(!used.contains(&name), "{name} is used"),
                    other => panic!("{name}: {other:?} is neither yes nor no"),
                }
            }
        }
        let missing: Vec<&String> = known.keys().filter(|name| !listed.contains_key(*name)).collect();
        assert!(missing.is_empty(), "not in the table: {missing:?}");
    }
}
