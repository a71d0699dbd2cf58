//! Kernel constants, under their C names.
//!
//! Source: [`nf_tables.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/netfilter/nf_tables.h),
//! [`nfnetlink.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/netfilter/nfnetlink.h) and
//! [`netfilter.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/netfilter.h).

#![allow(
    missing_docs,
    reason = "the C header is the documentation; the names are its names"
)]

macro_rules! constants {
    ($($kind:ty { $($name:ident = $value:expr,)* })*) => {
        $($(pub const $name: $kind = $value;)*)*

        #[cfg(test)]
        const ALL: &[(&str, i64)] = &[$($((stringify!($name), $name as i64),)*)*];
    };
}

constants! {
    u8 {
        NFT_MSG_NEWTABLE = 0,
        NFT_MSG_GETTABLE = 1,
        NFT_MSG_DELTABLE = 2,
        NFT_MSG_NEWCHAIN = 3,
        NFT_MSG_GETCHAIN = 4,
        NFT_MSG_DELCHAIN = 5,
        NFT_MSG_NEWRULE = 6,
        NFT_MSG_GETRULE = 7,
        NFT_MSG_DELRULE = 8,
        NFT_MSG_NEWSET = 9,
        NFT_MSG_GETSET = 10,
        NFT_MSG_DELSET = 11,
        NFT_MSG_NEWSETELEM = 12,
        NFT_MSG_GETSETELEM = 13,
        NFT_MSG_DELSETELEM = 14,
        NFT_MSG_NEWGEN = 15,
        NFT_MSG_GETGEN = 16,
        NFT_MSG_TRACE = 17,
        NFT_MSG_NEWOBJ = 18,
        NFT_MSG_GETOBJ = 19,
        NFT_MSG_DELOBJ = 20,
        NFT_MSG_GETOBJ_RESET = 21,
        NFT_MSG_NEWFLOWTABLE = 22,
        NFT_MSG_GETFLOWTABLE = 23,
        NFT_MSG_DELFLOWTABLE = 24,
        NFT_MSG_GETRULE_RESET = 25,
        NFT_MSG_DESTROYTABLE = 26,
        NFT_MSG_DESTROYCHAIN = 27,
        NFT_MSG_DESTROYRULE = 28,
        NFT_MSG_DESTROYSET = 29,
        NFT_MSG_DESTROYSETELEM = 30,
        NFT_MSG_DESTROYOBJ = 31,
        NFT_MSG_DESTROYFLOWTABLE = 32,
        NFT_MSG_GETSETELEM_RESET = 33,
    }
    u16 {
        NFTA_LIST_ELEM = 1,
    }
    u16 {
        NFTA_HOOK_HOOKNUM = 1,
        NFTA_HOOK_PRIORITY = 2,
        NFTA_HOOK_DEV = 3,
        NFTA_HOOK_DEVS = 4,
    }
    u16 {
        NFTA_TABLE_NAME = 1,
        NFTA_TABLE_FLAGS = 2,
        NFTA_TABLE_USE = 3,
        NFTA_TABLE_HANDLE = 4,
        NFTA_TABLE_USERDATA = 6,
        NFTA_TABLE_OWNER = 7,
    }
    u16 {
        NFTA_CHAIN_TABLE = 1,
        NFTA_CHAIN_HANDLE = 2,
        NFTA_CHAIN_NAME = 3,
        NFTA_CHAIN_HOOK = 4,
        NFTA_CHAIN_POLICY = 5,
        NFTA_CHAIN_USE = 6,
        NFTA_CHAIN_TYPE = 7,
        NFTA_CHAIN_COUNTERS = 8,
        NFTA_CHAIN_FLAGS = 10,
        NFTA_CHAIN_ID = 11,
        NFTA_CHAIN_USERDATA = 12,
    }
    u16 {
        NFTA_RULE_TABLE = 1,
        NFTA_RULE_CHAIN = 2,
        NFTA_RULE_HANDLE = 3,
        NFTA_RULE_EXPRESSIONS = 4,
        NFTA_RULE_COMPAT = 5,
        NFTA_RULE_POSITION = 6,
        NFTA_RULE_USERDATA = 7,
        NFTA_RULE_ID = 9,
        NFTA_RULE_POSITION_ID = 10,
        NFTA_RULE_CHAIN_ID = 11,
    }
    u16 {
        NFTA_RULE_COMPAT_PROTO = 1,
        NFTA_RULE_COMPAT_FLAGS = 2,
    }
    u16 {
        NFTA_SET_DESC_SIZE = 1,
        NFTA_SET_DESC_CONCAT = 2,
    }
    u16 {
        NFTA_SET_FIELD_LEN = 1,
    }
    u16 {
        NFTA_SET_TABLE = 1,
        NFTA_SET_NAME = 2,
        NFTA_SET_FLAGS = 3,
        NFTA_SET_KEY_TYPE = 4,
        NFTA_SET_KEY_LEN = 5,
        NFTA_SET_DATA_TYPE = 6,
        NFTA_SET_DATA_LEN = 7,
        NFTA_SET_POLICY = 8,
        NFTA_SET_DESC = 9,
        NFTA_SET_ID = 10,
        NFTA_SET_TIMEOUT = 11,
        NFTA_SET_GC_INTERVAL = 12,
        NFTA_SET_USERDATA = 13,
        NFTA_SET_OBJ_TYPE = 15,
        NFTA_SET_HANDLE = 16,
        NFTA_SET_EXPR = 17,
        NFTA_SET_EXPRESSIONS = 18,
        NFTA_SET_TYPE = 19,
        NFTA_SET_COUNT = 20,
    }
    u16 {
        NFTA_SET_ELEM_KEY = 1,
        NFTA_SET_ELEM_DATA = 2,
        NFTA_SET_ELEM_FLAGS = 3,
        NFTA_SET_ELEM_TIMEOUT = 4,
        NFTA_SET_ELEM_EXPIRATION = 5,
        NFTA_SET_ELEM_USERDATA = 6,
        NFTA_SET_ELEM_EXPR = 7,
        NFTA_SET_ELEM_OBJREF = 9,
        NFTA_SET_ELEM_KEY_END = 10,
        NFTA_SET_ELEM_EXPRESSIONS = 11,
    }
    u16 {
        NFTA_SET_ELEM_LIST_TABLE = 1,
        NFTA_SET_ELEM_LIST_SET = 2,
        NFTA_SET_ELEM_LIST_ELEMENTS = 3,
        NFTA_SET_ELEM_LIST_SET_ID = 4,
    }
    u16 {
        NFTA_DATA_VALUE = 1,
        NFTA_DATA_VERDICT = 2,
    }
    u16 {
        NFTA_VERDICT_CODE = 1,
        NFTA_VERDICT_CHAIN = 2,
        NFTA_VERDICT_CHAIN_ID = 3,
    }
    u16 {
        NFTA_EXPR_NAME = 1,
        NFTA_EXPR_DATA = 2,
    }
    u16 {
        NFTA_IMMEDIATE_DREG = 1,
        NFTA_IMMEDIATE_DATA = 2,
    }
    u16 {
        NFTA_BITWISE_SREG = 1,
        NFTA_BITWISE_DREG = 2,
        NFTA_BITWISE_LEN = 3,
        NFTA_BITWISE_MASK = 4,
        NFTA_BITWISE_XOR = 5,
        NFTA_BITWISE_OP = 6,
        NFTA_BITWISE_DATA = 7,
        NFTA_BITWISE_SREG2 = 8,
    }
    u16 {
        NFTA_BYTEORDER_SREG = 1,
        NFTA_BYTEORDER_DREG = 2,
        NFTA_BYTEORDER_OP = 3,
        NFTA_BYTEORDER_LEN = 4,
        NFTA_BYTEORDER_SIZE = 5,
    }
    u16 {
        NFTA_CMP_SREG = 1,
        NFTA_CMP_OP = 2,
        NFTA_CMP_DATA = 3,
    }
    u16 {
        NFTA_RANGE_SREG = 1,
        NFTA_RANGE_OP = 2,
        NFTA_RANGE_FROM_DATA = 3,
        NFTA_RANGE_TO_DATA = 4,
    }
    u16 {
        NFTA_LOOKUP_SET = 1,
        NFTA_LOOKUP_SREG = 2,
        NFTA_LOOKUP_DREG = 3,
        NFTA_LOOKUP_SET_ID = 4,
        NFTA_LOOKUP_FLAGS = 5,
    }
    u16 {
        NFTA_DYNSET_SET_NAME = 1,
        NFTA_DYNSET_SET_ID = 2,
        NFTA_DYNSET_OP = 3,
        NFTA_DYNSET_SREG_KEY = 4,
        NFTA_DYNSET_SREG_DATA = 5,
        NFTA_DYNSET_TIMEOUT = 6,
        NFTA_DYNSET_EXPR = 7,
        NFTA_DYNSET_FLAGS = 9,
        NFTA_DYNSET_EXPRESSIONS = 10,
    }
    u16 {
        NFTA_PAYLOAD_DREG = 1,
        NFTA_PAYLOAD_BASE = 2,
        NFTA_PAYLOAD_OFFSET = 3,
        NFTA_PAYLOAD_LEN = 4,
        NFTA_PAYLOAD_SREG = 5,
        NFTA_PAYLOAD_CSUM_TYPE = 6,
        NFTA_PAYLOAD_CSUM_OFFSET = 7,
        NFTA_PAYLOAD_CSUM_FLAGS = 8,
    }
    u16 {
        NFTA_EXTHDR_DREG = 1,
        NFTA_EXTHDR_TYPE = 2,
        NFTA_EXTHDR_OFFSET = 3,
        NFTA_EXTHDR_LEN = 4,
        NFTA_EXTHDR_FLAGS = 5,
        NFTA_EXTHDR_OP = 6,
        NFTA_EXTHDR_SREG = 7,
    }
    u16 {
        NFTA_HASH_SREG = 1,
        NFTA_HASH_DREG = 2,
        NFTA_HASH_LEN = 3,
        NFTA_HASH_MODULUS = 4,
        NFTA_HASH_SEED = 5,
        NFTA_HASH_OFFSET = 6,
        NFTA_HASH_TYPE = 7,
        NFTA_HASH_SET_NAME = 8,
        NFTA_HASH_SET_ID = 9,
    }
    u16 {
        NFTA_META_DREG = 1,
        NFTA_META_KEY = 2,
        NFTA_META_SREG = 3,
    }
    u16 {
        NFTA_RT_DREG = 1,
        NFTA_RT_KEY = 2,
    }
    u16 {
        NFTA_SOCKET_KEY = 1,
        NFTA_SOCKET_DREG = 2,
        NFTA_SOCKET_LEVEL = 3,
    }
    u16 {
        NFTA_CT_DREG = 1,
        NFTA_CT_KEY = 2,
        NFTA_CT_DIRECTION = 3,
        NFTA_CT_SREG = 4,
    }
    u16 {
        NFTA_FLOW_TABLE_NAME = 1,
    }
    u16 {
        NFTA_LIMIT_RATE = 1,
        NFTA_LIMIT_UNIT = 2,
        NFTA_LIMIT_BURST = 3,
        NFTA_LIMIT_TYPE = 4,
        NFTA_LIMIT_FLAGS = 5,
    }
    u16 {
        NFTA_CONNLIMIT_COUNT = 1,
        NFTA_CONNLIMIT_FLAGS = 2,
    }
    u16 {
        NFTA_COUNTER_BYTES = 1,
        NFTA_COUNTER_PACKETS = 2,
    }
    u16 {
        NFTA_LAST_SET = 1,
        NFTA_LAST_MSECS = 2,
    }
    u16 {
        NFTA_LOG_GROUP = 1,
        NFTA_LOG_PREFIX = 2,
        NFTA_LOG_SNAPLEN = 3,
        NFTA_LOG_QTHRESHOLD = 4,
        NFTA_LOG_LEVEL = 5,
        NFTA_LOG_FLAGS = 6,
    }
    u16 {
        NFTA_QUEUE_NUM = 1,
        NFTA_QUEUE_TOTAL = 2,
        NFTA_QUEUE_FLAGS = 3,
        NFTA_QUEUE_SREG_QNUM = 4,
    }
    u16 {
        NFTA_QUOTA_BYTES = 1,
        NFTA_QUOTA_FLAGS = 2,
        NFTA_QUOTA_CONSUMED = 4,
    }
    u16 {
        NFTA_SECMARK_CTX = 1,
    }
    u16 {
        NFTA_REJECT_TYPE = 1,
        NFTA_REJECT_ICMP_CODE = 2,
    }
    u16 {
        NFTA_NAT_TYPE = 1,
        NFTA_NAT_FAMILY = 2,
        NFTA_NAT_REG_ADDR_MIN = 3,
        NFTA_NAT_REG_ADDR_MAX = 4,
        NFTA_NAT_REG_PROTO_MIN = 5,
        NFTA_NAT_REG_PROTO_MAX = 6,
        NFTA_NAT_FLAGS = 7,
    }
    u16 {
        NFTA_TPROXY_FAMILY = 1,
        NFTA_TPROXY_REG_ADDR = 2,
        NFTA_TPROXY_REG_PORT = 3,
    }
    u16 {
        NFTA_MASQ_FLAGS = 1,
        NFTA_MASQ_REG_PROTO_MIN = 2,
        NFTA_MASQ_REG_PROTO_MAX = 3,
    }
    u16 {
        NFTA_REDIR_REG_PROTO_MIN = 1,
        NFTA_REDIR_REG_PROTO_MAX = 2,
        NFTA_REDIR_FLAGS = 3,
    }
    u16 {
        NFTA_DUP_SREG_ADDR = 1,
        NFTA_DUP_SREG_DEV = 2,
    }
    u16 {
        NFTA_FWD_SREG_DEV = 1,
        NFTA_FWD_SREG_ADDR = 2,
        NFTA_FWD_NFPROTO = 3,
    }
    u16 {
        NFTA_OBJREF_IMM_TYPE = 1,
        NFTA_OBJREF_IMM_NAME = 2,
        NFTA_OBJREF_SET_SREG = 3,
        NFTA_OBJREF_SET_NAME = 4,
        NFTA_OBJREF_SET_ID = 5,
    }
    u16 {
        NFTA_GEN_ID = 1,
        NFTA_GEN_PROC_PID = 2,
        NFTA_GEN_PROC_NAME = 3,
    }
    u16 {
        NFTA_FIB_DREG = 1,
        NFTA_FIB_RESULT = 2,
        NFTA_FIB_FLAGS = 3,
    }
    u16 {
        NFTA_CT_HELPER_NAME = 1,
        NFTA_CT_HELPER_L3PROTO = 2,
        NFTA_CT_HELPER_L4PROTO = 3,
    }
    u16 {
        NFTA_CT_TIMEOUT_L3PROTO = 1,
        NFTA_CT_TIMEOUT_L4PROTO = 2,
        NFTA_CT_TIMEOUT_DATA = 3,
    }
    u16 {
        NFTA_CT_EXPECT_L3PROTO = 1,
        NFTA_CT_EXPECT_L4PROTO = 2,
        NFTA_CT_EXPECT_DPORT = 3,
        NFTA_CT_EXPECT_TIMEOUT = 4,
        NFTA_CT_EXPECT_SIZE = 5,
    }
    u16 {
        NFTA_OBJ_TABLE = 1,
        NFTA_OBJ_NAME = 2,
        NFTA_OBJ_TYPE = 3,
        NFTA_OBJ_DATA = 4,
        NFTA_OBJ_USE = 5,
        NFTA_OBJ_HANDLE = 6,
        NFTA_OBJ_USERDATA = 8,
    }
    u16 {
        NFTA_FLOWTABLE_TABLE = 1,
        NFTA_FLOWTABLE_NAME = 2,
        NFTA_FLOWTABLE_HOOK = 3,
        NFTA_FLOWTABLE_USE = 4,
        NFTA_FLOWTABLE_HANDLE = 5,
        NFTA_FLOWTABLE_FLAGS = 7,
    }
    u16 {
        NFTA_FLOWTABLE_HOOK_NUM = 1,
        NFTA_FLOWTABLE_HOOK_PRIORITY = 2,
        NFTA_FLOWTABLE_HOOK_DEVS = 3,
    }
    u16 {
        NFTA_OSF_DREG = 1,
        NFTA_OSF_TTL = 2,
        NFTA_OSF_FLAGS = 3,
    }
    u16 {
        NFTA_SYNPROXY_MSS = 1,
        NFTA_SYNPROXY_WSCALE = 2,
        NFTA_SYNPROXY_FLAGS = 3,
    }
    u16 {
        NFTA_DEVICE_NAME = 1,
    }
    u16 {
        NFTA_XFRM_DREG = 1,
        NFTA_XFRM_KEY = 2,
        NFTA_XFRM_DIR = 3,
        NFTA_XFRM_SPNUM = 4,
    }
    u16 {
        NFTA_TRACE_TABLE = 1,
        NFTA_TRACE_CHAIN = 2,
        NFTA_TRACE_RULE_HANDLE = 3,
        NFTA_TRACE_TYPE = 4,
        NFTA_TRACE_VERDICT = 5,
        NFTA_TRACE_ID = 6,
        NFTA_TRACE_LL_HEADER = 7,
        NFTA_TRACE_NETWORK_HEADER = 8,
        NFTA_TRACE_TRANSPORT_HEADER = 9,
        NFTA_TRACE_IIF = 10,
        NFTA_TRACE_IIFTYPE = 11,
        NFTA_TRACE_OIF = 12,
        NFTA_TRACE_OIFTYPE = 13,
        NFTA_TRACE_MARK = 14,
        NFTA_TRACE_NFPROTO = 15,
        NFTA_TRACE_POLICY = 16,
        NFTA_TRACE_CT_ID = 18,
        NFTA_TRACE_CT_DIRECTION = 19,
        NFTA_TRACE_CT_STATUS = 20,
        NFTA_TRACE_CT_STATE = 21,
    }
    u16 {
        NFTA_NG_DREG = 1,
        NFTA_NG_MODULUS = 2,
        NFTA_NG_TYPE = 3,
        NFTA_NG_OFFSET = 4,
        NFTA_NG_SET_NAME = 5,
        NFTA_NG_SET_ID = 6,
    }
    u16 {
        NFTA_TUNNEL_KEY_IP_SRC = 1,
        NFTA_TUNNEL_KEY_IP_DST = 2,
    }
    u16 {
        NFTA_TUNNEL_KEY_IP6_SRC = 1,
        NFTA_TUNNEL_KEY_IP6_DST = 2,
        NFTA_TUNNEL_KEY_IP6_FLOWLABEL = 3,
    }
    u16 {
        NFTA_TUNNEL_KEY_OPTS_VXLAN = 1,
        NFTA_TUNNEL_KEY_OPTS_ERSPAN = 2,
        NFTA_TUNNEL_KEY_OPTS_GENEVE = 3,
    }
    u16 {
        NFTA_TUNNEL_KEY_VXLAN_GBP = 1,
    }
    u16 {
        NFTA_TUNNEL_KEY_ERSPAN_VERSION = 1,
        NFTA_TUNNEL_KEY_ERSPAN_V1_INDEX = 2,
        NFTA_TUNNEL_KEY_ERSPAN_V2_HWID = 3,
        NFTA_TUNNEL_KEY_ERSPAN_V2_DIR = 4,
    }
    u16 {
        NFTA_TUNNEL_KEY_GENEVE_CLASS = 1,
        NFTA_TUNNEL_KEY_GENEVE_TYPE = 2,
        NFTA_TUNNEL_KEY_GENEVE_DATA = 3,
    }
    u16 {
        NFTA_TUNNEL_KEY_ID = 1,
        NFTA_TUNNEL_KEY_IP = 2,
        NFTA_TUNNEL_KEY_IP6 = 3,
        NFTA_TUNNEL_KEY_FLAGS = 4,
        NFTA_TUNNEL_KEY_TOS = 5,
        NFTA_TUNNEL_KEY_TTL = 6,
        NFTA_TUNNEL_KEY_SPORT = 7,
        NFTA_TUNNEL_KEY_DPORT = 8,
        NFTA_TUNNEL_KEY_OPTS = 9,
    }
    u16 {
        NFTA_TUNNEL_KEY = 1,
        NFTA_TUNNEL_DREG = 2,
        NFTA_TUNNEL_MODE = 3,
    }
    u16 {
        NFTA_INNER_NUM = 1,
        NFTA_INNER_TYPE = 2,
        NFTA_INNER_FLAGS = 3,
        NFTA_INNER_HDRSIZE = 4,
        NFTA_INNER_EXPR = 5,
    }
    i32 {
        NFT_CONTINUE = -1,
        NFT_BREAK = -2,
        NFT_JUMP = -3,
        NFT_GOTO = -4,
        NFT_RETURN = -5,
    }
    u32 {
        NFT_REG_VERDICT = 0,
        NFT_REG_1 = 1,
        NFT_REG_2 = 2,
        NFT_REG_3 = 3,
        NFT_REG_4 = 4,
        NFT_REG32_00 = 8,
        NFT_REG32_01 = 9,
        NFT_REG32_02 = 10,
        NFT_REG32_03 = 11,
        NFT_REG32_04 = 12,
        NFT_REG32_05 = 13,
        NFT_REG32_06 = 14,
        NFT_REG32_07 = 15,
        NFT_REG32_08 = 16,
        NFT_REG32_09 = 17,
        NFT_REG32_10 = 18,
        NFT_REG32_11 = 19,
        NFT_REG32_12 = 20,
        NFT_REG32_13 = 21,
        NFT_REG32_14 = 22,
        NFT_REG32_15 = 23,
    }
    u32 {
        NFT_TABLE_F_DORMANT = 1,
        NFT_TABLE_F_OWNER = 2,
        NFT_TABLE_F_PERSIST = 4,
    }
    u32 {
        NFT_CHAIN_BASE = 1,
        NFT_CHAIN_HW_OFFLOAD = 2,
        NFT_CHAIN_BINDING = 4,
    }
    u32 {
        NFT_RULE_COMPAT_F_UNUSED = 1,
        NFT_RULE_COMPAT_F_INV = 2,
    }
    u32 {
        NFT_SET_ANONYMOUS = 1,
        NFT_SET_CONSTANT = 2,
        NFT_SET_INTERVAL = 4,
        NFT_SET_MAP = 8,
        NFT_SET_TIMEOUT = 16,
        NFT_SET_EVAL = 32,
        NFT_SET_OBJECT = 64,
        NFT_SET_CONCAT = 128,
        NFT_SET_EXPR = 256,
    }
    u32 {
        NFT_SET_POL_PERFORMANCE = 0,
        NFT_SET_POL_MEMORY = 1,
    }
    u32 {
        NFT_SET_ELEM_INTERVAL_END = 1,
        NFT_SET_ELEM_CATCHALL = 2,
    }
    u32 {
        NFT_DATA_VALUE = 0,
        NFT_DATA_VERDICT = 0xffffff00,
    }
    u32 {
        NFT_BITWISE_MASK_XOR = 0,
        NFT_BITWISE_LSHIFT = 1,
        NFT_BITWISE_RSHIFT = 2,
        NFT_BITWISE_AND = 3,
        NFT_BITWISE_OR = 4,
        NFT_BITWISE_XOR = 5,
    }
    u32 {
        NFT_BYTEORDER_NTOH = 0,
        NFT_BYTEORDER_HTON = 1,
    }
    u32 {
        NFT_CMP_EQ = 0,
        NFT_CMP_NEQ = 1,
        NFT_CMP_LT = 2,
        NFT_CMP_LTE = 3,
        NFT_CMP_GT = 4,
        NFT_CMP_GTE = 5,
    }
    u32 {
        NFT_RANGE_EQ = 0,
        NFT_RANGE_NEQ = 1,
    }
    u32 {
        NFT_LOOKUP_F_INV = 1,
    }
    u32 {
        NFT_DYNSET_OP_ADD = 0,
        NFT_DYNSET_OP_UPDATE = 1,
        NFT_DYNSET_OP_DELETE = 2,
    }
    u32 {
        NFT_DYNSET_F_INV = 1,
        NFT_DYNSET_F_EXPR = 2,
    }
    u32 {
        NFT_PAYLOAD_LL_HEADER = 0,
        NFT_PAYLOAD_NETWORK_HEADER = 1,
        NFT_PAYLOAD_TRANSPORT_HEADER = 2,
        NFT_PAYLOAD_INNER_HEADER = 3,
        NFT_PAYLOAD_TUN_HEADER = 4,
    }
    u32 {
        NFT_PAYLOAD_CSUM_NONE = 0,
        NFT_PAYLOAD_CSUM_INET = 1,
        NFT_PAYLOAD_CSUM_SCTP = 2,
    }
    u32 {
        NFT_PAYLOAD_L4CSUM_PSEUDOHDR = 1,
    }
    u32 {
        NFT_EXTHDR_F_PRESENT = 1,
    }
    u32 {
        NFT_EXTHDR_OP_IPV6 = 0,
        NFT_EXTHDR_OP_TCPOPT = 1,
        NFT_EXTHDR_OP_IPV4 = 2,
        NFT_EXTHDR_OP_SCTP = 3,
        NFT_EXTHDR_OP_DCCP = 4,
    }
    u32 {
        NFT_META_LEN = 0,
        NFT_META_PROTOCOL = 1,
        NFT_META_PRIORITY = 2,
        NFT_META_MARK = 3,
        NFT_META_IIF = 4,
        NFT_META_OIF = 5,
        NFT_META_IIFNAME = 6,
        NFT_META_OIFNAME = 7,
        NFT_META_IFTYPE = 8,
        NFT_META_OIFTYPE = 9,
        NFT_META_SKUID = 10,
        NFT_META_SKGID = 11,
        NFT_META_NFTRACE = 12,
        NFT_META_RTCLASSID = 13,
        NFT_META_SECMARK = 14,
        NFT_META_NFPROTO = 15,
        NFT_META_L4PROTO = 16,
        NFT_META_BRI_IIFNAME = 17,
        NFT_META_BRI_OIFNAME = 18,
        NFT_META_PKTTYPE = 19,
        NFT_META_CPU = 20,
        NFT_META_IIFGROUP = 21,
        NFT_META_OIFGROUP = 22,
        NFT_META_CGROUP = 23,
        NFT_META_PRANDOM = 24,
        NFT_META_SECPATH = 25,
        NFT_META_IIFKIND = 26,
        NFT_META_OIFKIND = 27,
        NFT_META_BRI_IIFPVID = 28,
        NFT_META_BRI_IIFVPROTO = 29,
        NFT_META_TIME_NS = 30,
        NFT_META_TIME_DAY = 31,
        NFT_META_TIME_HOUR = 32,
        NFT_META_SDIF = 33,
        NFT_META_SDIFNAME = 34,
        NFT_META_BRI_BROUTE = 35,
    }
    u32 {
        NFT_RT_CLASSID = 0,
        NFT_RT_NEXTHOP4 = 1,
        NFT_RT_NEXTHOP6 = 2,
        NFT_RT_TCPMSS = 3,
        NFT_RT_XFRM = 4,
    }
    u32 {
        NFT_HASH_JENKINS = 0,
        NFT_HASH_SYM = 1,
    }
    u32 {
        NFT_SOCKET_TRANSPARENT = 0,
        NFT_SOCKET_MARK = 1,
        NFT_SOCKET_WILDCARD = 2,
        NFT_SOCKET_CGROUPV2 = 3,
    }
    u32 {
        NFT_CT_STATE = 0,
        NFT_CT_DIRECTION = 1,
        NFT_CT_STATUS = 2,
        NFT_CT_MARK = 3,
        NFT_CT_SECMARK = 4,
        NFT_CT_EXPIRATION = 5,
        NFT_CT_HELPER = 6,
        NFT_CT_L3PROTOCOL = 7,
        NFT_CT_SRC = 8,
        NFT_CT_DST = 9,
        NFT_CT_PROTOCOL = 10,
        NFT_CT_PROTO_SRC = 11,
        NFT_CT_PROTO_DST = 12,
        NFT_CT_LABELS = 13,
        NFT_CT_PKTS = 14,
        NFT_CT_BYTES = 15,
        NFT_CT_AVGPKT = 16,
        NFT_CT_ZONE = 17,
        NFT_CT_EVENTMASK = 18,
        NFT_CT_SRC_IP = 19,
        NFT_CT_DST_IP = 20,
        NFT_CT_SRC_IP6 = 21,
        NFT_CT_DST_IP6 = 22,
        NFT_CT_ID = 23,
    }
    u32 {
        NFT_LIMIT_PKTS = 0,
        NFT_LIMIT_PKT_BYTES = 1,
    }
    u32 {
        NFT_LIMIT_F_INV = 1,
    }
    u32 {
        NFT_CONNLIMIT_F_INV = 1,
    }
    u32 {
        NFT_LOGLEVEL_EMERG = 0,
        NFT_LOGLEVEL_ALERT = 1,
        NFT_LOGLEVEL_CRIT = 2,
        NFT_LOGLEVEL_ERR = 3,
        NFT_LOGLEVEL_WARNING = 4,
        NFT_LOGLEVEL_NOTICE = 5,
        NFT_LOGLEVEL_INFO = 6,
        NFT_LOGLEVEL_DEBUG = 7,
        NFT_LOGLEVEL_AUDIT = 8,
    }
    u32 {
        NFT_QUOTA_F_INV = 1,
        NFT_QUOTA_F_DEPLETED = 2,
    }
    u32 {
        NFT_REJECT_ICMP_UNREACH = 0,
        NFT_REJECT_TCP_RST = 1,
        NFT_REJECT_ICMPX_UNREACH = 2,
    }
    u32 {
        NFT_REJECT_ICMPX_NO_ROUTE = 0,
        NFT_REJECT_ICMPX_PORT_UNREACH = 1,
        NFT_REJECT_ICMPX_HOST_UNREACH = 2,
        NFT_REJECT_ICMPX_ADMIN_PROHIBITED = 3,
    }
    u32 {
        NFT_NAT_SNAT = 0,
        NFT_NAT_DNAT = 1,
    }
    u32 {
        NFT_FIB_RESULT_OIF = 1,
        NFT_FIB_RESULT_OIFNAME = 2,
        NFT_FIB_RESULT_ADDRTYPE = 3,
    }
    u32 {
        NFTA_FIB_F_SADDR = 1,
        NFTA_FIB_F_DADDR = 2,
        NFTA_FIB_F_MARK = 4,
        NFTA_FIB_F_IIF = 8,
        NFTA_FIB_F_OIF = 16,
        NFTA_FIB_F_PRESENT = 32,
    }
    u32 {
        NFT_FLOWTABLE_HW_OFFLOAD = 1,
        NFT_FLOWTABLE_COUNTER = 2,
    }
    u32 {
        NFT_OSF_F_VERSION = 1,
    }
    u32 {
        NFT_XFRM_KEY_DADDR_IP4 = 1,
        NFT_XFRM_KEY_DADDR_IP6 = 2,
        NFT_XFRM_KEY_SADDR_IP4 = 3,
        NFT_XFRM_KEY_SADDR_IP6 = 4,
        NFT_XFRM_KEY_REQID = 5,
        NFT_XFRM_KEY_SPI = 6,
    }
    u32 {
        NFT_TRACETYPE_POLICY = 1,
        NFT_TRACETYPE_RETURN = 2,
        NFT_TRACETYPE_RULE = 3,
    }
    u32 {
        NFT_NG_INCREMENTAL = 0,
        NFT_NG_RANDOM = 1,
    }
    u32 {
        NFT_TUNNEL_F_ZERO_CSUM_TX = 1,
        NFT_TUNNEL_F_DONT_FRAGMENT = 2,
        NFT_TUNNEL_F_SEQ_NUMBER = 4,
    }
    u32 {
        NFT_TUNNEL_PATH = 0,
        NFT_TUNNEL_ID = 1,
    }
    u32 {
        NFT_TUNNEL_MODE_NONE = 0,
        NFT_TUNNEL_MODE_RX = 1,
        NFT_TUNNEL_MODE_TX = 2,
    }
    u32 {
        NFT_INNER_VXLAN = 1,
        NFT_INNER_GENEVE = 2,
    }
    u32 {
        NFT_INNER_HDRSIZE = 1,
        NFT_INNER_LL = 2,
        NFT_INNER_NH = 4,
        NFT_INNER_TH = 8,
    }
    u32 {
        NFT_OBJECT_COUNTER = 1,
        NFT_OBJECT_QUOTA = 2,
        NFT_OBJECT_CT_HELPER = 3,
        NFT_OBJECT_LIMIT = 4,
        NFT_OBJECT_CONNLIMIT = 5,
        NFT_OBJECT_TUNNEL = 6,
        NFT_OBJECT_CT_TIMEOUT = 7,
        NFT_OBJECT_SECMARK = 8,
        NFT_OBJECT_CT_EXPECT = 9,
        NFT_OBJECT_SYNPROXY = 10,
    }
}

/// The message that begins a transaction.
pub const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
/// The message that ends a transaction.
pub const NFNL_MSG_BATCH_END: u16 = 0x11;
/// The generation of the ruleset that a transaction requires.
pub const NFNL_BATCH_GENID: u16 = 1;

/// The multicast group of changes.
pub const NFNLGRP_NFTABLES: u32 = 7;
/// The multicast group of traces.
pub const NFNLGRP_NFTRACE: u32 = 9;

pub const NFPROTO_UNSPEC: u8 = 0;
pub const NFPROTO_INET: u8 = 1;
pub const NFPROTO_IPV4: u8 = 2;
pub const NFPROTO_ARP: u8 = 3;
pub const NFPROTO_NETDEV: u8 = 5;
pub const NFPROTO_BRIDGE: u8 = 7;
pub const NFPROTO_IPV6: u8 = 10;

/// `netfilter verdict` that drops a packet.
pub const NF_DROP: i32 = 0;
/// `netfilter verdict` that accepts a packet.
pub const NF_ACCEPT: i32 = 1;

/// The longest name, in bytes, including the terminating NUL.
pub const NFT_NAME_MAXLEN: usize = 256;
/// The longest user data of a rule, in bytes.
pub const NFT_USERDATA_MAXLEN: usize = 256;
/// The longest value, in bytes.
pub const NFT_DATA_VALUE_MAXLEN: usize = 64;
/// The longest name of a device, in bytes, including the terminating NUL.
pub const IFNAMSIZ: usize = 16;
/// The policy of a base chain that drops.
pub const NF_DROP_POLICY: u32 = 0;
/// The policy of a base chain that accepts.
pub const NF_ACCEPT_POLICY: u32 = 1;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use super::ALL;

    /// The constants of the header's enumerations with their values.
    fn header() -> BTreeMap<String, i64> {
        let path = "/usr/include/linux/netfilter/nf_tables.h";
        let text = fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("{path} (of the package linux-libc-dev): {error}"));
        let mut plain = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("/*") {
            plain.push_str(before);
            rest = after.split_once("*/").map_or("", |(_, after)| after);
        }
        plain.push_str(rest);
        let mut constants: BTreeMap<String, i64> = BTreeMap::new();
        for body in plain.split("enum ").skip(1) {
            let body = body.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            let Some((body, _)) = body else { continue };
            let lines = body.lines().filter(|line| !line.starts_with('#'));
            let body = lines.collect::<Vec<_>>().join(" ");
            let mut next = 0;
            for item in body.split(',') {
                let mut parts = item.split('=').map(str::trim);
                let name = parts.next().unwrap_or_default();
                match parts.next() {
                    None => {}
                    Some(text) => match value(text, &constants) {
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
            let is_end = ["_UNSPEC", "_PAD"].iter().any(|end| name.ends_with(end)) || name == "NFT_MSG_MAX";
            !name.starts_with("__") && !is_end
        });
        constants
    }

    fn value(text: &str, constants: &BTreeMap<String, i64>) -> Option<i64> {
        let text = text.trim_matches(['(', ')']).trim_end_matches('U');
        if let Some((one, shift)) = text.split_once("<<") {
            return Some(value(one.trim(), constants)? << value(shift.trim(), constants)?);
        }
        if let Some(digits) = text.strip_prefix("0x") {
            return i64::from_str_radix(digits, 16).ok();
        }
        text.parse().ok().or_else(|| constants.get(text).copied())
    }

    #[test]
    fn constants_have_the_values_of_the_header() {
        let known = header();
        assert!(known.len() > 480, "the header was not read: {}", known.len());
        let names: BTreeMap<&str, i64> = ALL.iter().copied().collect();
        let mut compared = 0;
        for (name, value) in &known {
            if let Some(used) = names.get(name.as_str()) {
                assert_eq!(used, value, "{name}");
                compared += 1;
            }
        }
        assert!(compared > 480, "{compared}");
    }

    /// All words of the crate's sources but this file and files of tests.
    fn words(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                words(&path, found);
            } else if path
                .file_name()
                .is_some_and(|name| name != "uapi.rs" && name != "tests.rs")
            {
                let text = fs::read_to_string(&path).unwrap();
                let split = text.split(|character: char| !character.is_alphanumeric() && character != '_');
                found.extend(split.filter(|word| word.starts_with("NFT")).map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_attribute_and_message_of_the_header_has_a_place_or_a_reason() {
        let mut used = BTreeSet::new();
        words(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut used);
        let rows = include_str!("../README.md")
            .lines()
            .filter(|line| line.starts_with("| `NFT"));
        let mut reasons = BTreeSet::new();
        for name in rows
            .flat_map(|row| row.split('`'))
            .filter(|name| name.starts_with("NFT"))
        {
            assert!(reasons.insert(name.to_owned()), "{name} is in the table twice");
            assert!(!used.contains(name), "{name} is used");
        }
        // The header of the distribution may be older than the constants here.
        let mut names: BTreeSet<String> = header().into_keys().collect();
        names.extend(ALL.iter().map(|(name, _)| (*name).to_owned()));
        let is_relevant = |name: &&String| name.starts_with("NFTA_") || name.starts_with("NFT_MSG_");
        let missing: Vec<&String> = names
            .iter()
            .filter(is_relevant)
            .filter(|name| !used.contains(*name) && !reasons.contains(*name))
            .collect();
        assert!(
            missing.is_empty(),
            "without a place and without a reason: {missing:?}"
        );
        let unknown: Vec<&String> = reasons.iter().filter(|name| !names.contains(*name)).collect();
        assert!(unknown.is_empty(), "not in the header: {unknown:?}");
    }
}
