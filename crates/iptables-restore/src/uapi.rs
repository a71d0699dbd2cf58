//! Constants of the kernel's iptables and ipset headers under their C names, as of Linux 6.1.
//!
//! Sizes of names and texts include the closing NUL.

/// Size of an interface name ([`linux/if.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/if.h)).
pub const IFNAMSIZ: usize = 16;

/// Size of the name of a match, target or chain
/// ([`linux/netfilter/x_tables.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/x_tables.h)).
pub const XT_EXTENSION_MAXNAMELEN: usize = 29;

/// Size of a comment
/// ([`linux/netfilter/xt_comment.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/xt_comment.h)).
pub const XT_MAX_COMMENT_LEN: usize = 256;

/// Ports in a multiport match; a range counts as two
/// ([`linux/netfilter/xt_multiport.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/xt_multiport.h)).
pub const XT_MULTI_PORTS: usize = 15;

/// Size of the name of a list of recent addresses
/// ([`linux/netfilter/xt_recent.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/xt_recent.h)).
pub const XT_RECENT_NAME_LEN: usize = 200;

/// Units per second in which the limit match stores the time per packet
/// ([`linux/netfilter/xt_limit.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/xt_limit.h)).
pub const XT_LIMIT_SCALE: u64 = 10_000;

/// Units per second in which the hashlimit match stores the time per packet
/// ([`linux/netfilter/xt_hashlimit.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/xt_hashlimit.h)).
#[doc(alias = "XT_HASHLIMIT_SCALE_v2")]
pub const XT_HASHLIMIT_SCALE_V2: u64 = 1_000_000;

/// The hashlimit match charges rates in bytes per `1 << XT_HASHLIMIT_BYTE_SHIFT` bytes
/// ([`linux/netfilter/xt_hashlimit.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/xt_hashlimit.h)).
pub const XT_HASHLIMIT_BYTE_SHIFT: u32 = 4;

/// Size of the name of an ipset
/// ([`linux/netfilter/ipset/ip_set.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/ipset/ip_set.h)).
pub const IPSET_MAXNAMELEN: usize = 32;

/// Most dimensions of an ipset, and so most directions of a reference to one
/// ([`linux/netfilter/ipset/ip_set.h`](https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/ipset/ip_set.h)).
pub const IPSET_DIM_MAX: usize = 6;
