//! The kernel's constants under their C names, from
//! [`include/uapi/linux/netfilter/ipset/`](https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/netfilter/ipset)
//! at version 6.12 unless a line names another header.

/// Netfilter's subsystem number of ipset, in the upper byte of a message type
/// ([`nfnetlink.h`](https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/netfilter/nfnetlink.h)).
pub const NFNL_SUBSYS_IPSET: u8 = 6;
/// No address family ([`netfilter.h`](https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/netfilter.h)).
pub const NFPROTO_UNSPEC: u8 = 0;
/// IPv4.
pub const NFPROTO_IPV4: u8 = 2;
/// IPv6.
pub const NFPROTO_IPV6: u8 = 10;
/// Bytes of an interface name with its NUL
/// ([`if.h`](https://elixir.bootlin.com/linux/v6.12/source/include/uapi/linux/if.h)).
pub const IFNAMSIZ: usize = 16;

/// The protocol version that adds looking up a set by name and by index.
pub const IPSET_PROTOCOL: u8 = 7;
/// The oldest protocol version that kernels support.
pub const IPSET_PROTOCOL_MIN: u8 = 6;
/// Bytes of a set or type name with its NUL.
pub const IPSET_MAXNAMELEN: usize = 32;
/// Bytes of a comment, without its NUL.
pub const IPSET_MAX_COMMENT_SIZE: usize = 255;
/// The index that no set has.
pub const IPSET_INVALID_ID: u16 = 65535;

/// Return the protocol version.
pub const IPSET_CMD_PROTOCOL: u8 = 1;
/// Create a set.
pub const IPSET_CMD_CREATE: u8 = 2;
/// Destroy a set, or all.
pub const IPSET_CMD_DESTROY: u8 = 3;
/// Remove all entries of a set, or of all.
pub const IPSET_CMD_FLUSH: u8 = 4;
/// Rename a set.
pub const IPSET_CMD_RENAME: u8 = 5;
/// Exchange two sets.
pub const IPSET_CMD_SWAP: u8 = 6;
/// List sets with their entries.
pub const IPSET_CMD_LIST: u8 = 7;
/// Add an entry.
pub const IPSET_CMD_ADD: u8 = 9;
/// Delete an entry.
pub const IPSET_CMD_DEL: u8 = 10;
/// Test for an entry.
pub const IPSET_CMD_TEST: u8 = 11;
/// A set's type, family and revision.
pub const IPSET_CMD_HEADER: u8 = 12;
/// The revisions of a set type.
pub const IPSET_CMD_TYPE: u8 = 13;
/// A set's index by its name.
pub const IPSET_CMD_GET_BYNAME: u8 = 14;
/// A set's name by its index.
pub const IPSET_CMD_GET_BYINDEX: u8 = 15;

/// Protocol version.
pub const IPSET_ATTR_PROTOCOL: u16 = 1;
/// Set name.
pub const IPSET_ATTR_SETNAME: u16 = 2;
/// Type name.
pub const IPSET_ATTR_TYPENAME: u16 = 3;
/// The second name of a rename or swap, in the slot of the type name.
pub const IPSET_ATTR_SETNAME2: u16 = IPSET_ATTR_TYPENAME;
/// Revision of a type.
pub const IPSET_ATTR_REVISION: u16 = 4;
/// Family of a set.
pub const IPSET_ATTR_FAMILY: u16 = 5;
/// Flags of a command.
pub const IPSET_ATTR_FLAGS: u16 = 6;
/// Nest of one entry, or of a set's options.
pub const IPSET_ATTR_DATA: u16 = 7;
/// Nest of many entries.
pub const IPSET_ATTR_ADT: u16 = 8;
/// Line number of the entry, returned if the entry is refused.
pub const IPSET_ATTR_LINENO: u16 = 9;
/// The oldest revision of a type that the kernel has.
pub const IPSET_ATTR_REVISION_MIN: u16 = 10;
/// Index of a set.
pub const IPSET_ATTR_INDEX: u16 = 11;

/// Address, or the first of a range.
pub const IPSET_ATTR_IP: u16 = 1;
/// Last address of a range.
pub const IPSET_ATTR_IP_TO: u16 = 2;
/// Prefix length.
pub const IPSET_ATTR_CIDR: u16 = 3;
/// Port, or the first of a range.
pub const IPSET_ATTR_PORT: u16 = 4;
/// Last port of a range.
pub const IPSET_ATTR_PORT_TO: u16 = 5;
/// Timeout in seconds.
pub const IPSET_ATTR_TIMEOUT: u16 = 6;
/// Protocol number.
pub const IPSET_ATTR_PROTO: u16 = 7;
/// Flags of an entry or of a set.
pub const IPSET_ATTR_CADT_FLAGS: u16 = 8;
/// Packet mark.
pub const IPSET_ATTR_MARK: u16 = 10;
/// Mask of packet marks.
pub const IPSET_ATTR_MARKMASK: u16 = 11;
/// Mask of addresses; since 6.3.
pub const IPSET_ATTR_BITMASK: u16 = 12;

/// Initial value of the hash function.
pub const IPSET_ATTR_INITVAL: u16 = 17;
/// Number of hash buckets.
pub const IPSET_ATTR_HASHSIZE: u16 = 18;
/// Maximum number of entries.
pub const IPSET_ATTR_MAXELEM: u16 = 19;
/// Prefix length to which addresses are masked.
pub const IPSET_ATTR_NETMASK: u16 = 20;
/// Maximum number of entries in a hash bucket.
pub const IPSET_ATTR_BUCKETSIZE: u16 = 21;
/// Maximum number of members of a list of sets.
pub const IPSET_ATTR_SIZE: u16 = 23;
/// Number of entries.
pub const IPSET_ATTR_ELEMENTS: u16 = 24;
/// Number of rules and lists that use the set.
pub const IPSET_ATTR_REFERENCES: u16 = 25;
/// Memory in bytes.
pub const IPSET_ATTR_MEMSIZE: u16 = 26;

/// Ethernet address.
pub const IPSET_ATTR_ETHER: u16 = 17;
/// Name of a member set.
pub const IPSET_ATTR_NAME: u16 = 18;
/// Name of the member before or after which the entry is added.
pub const IPSET_ATTR_NAMEREF: u16 = 19;
/// Second address, or the first of a range.
pub const IPSET_ATTR_IP2: u16 = 20;
/// Second prefix length.
pub const IPSET_ATTR_CIDR2: u16 = 21;
/// Last second address of a range.
pub const IPSET_ATTR_IP2_TO: u16 = 22;
/// Interface name.
pub const IPSET_ATTR_IFACE: u16 = 23;
/// Byte counter.
pub const IPSET_ATTR_BYTES: u16 = 24;
/// Packet counter.
pub const IPSET_ATTR_PACKETS: u16 = 25;
/// Comment.
pub const IPSET_ATTR_COMMENT: u16 = 26;
/// Packet mark (upper half) and mask (lower half) to set.
pub const IPSET_ATTR_SKBMARK: u16 = 27;
/// Traffic class to set.
pub const IPSET_ATTR_SKBPRIO: u16 = 28;
/// Hardware queue to set.
pub const IPSET_ATTR_SKBQUEUE: u16 = 29;

/// IPv4 address inside an address nest.
pub const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
/// IPv6 address inside an address nest.
pub const IPSET_ATTR_IPADDR_IPV6: u16 = 2;

/// List names only.
pub const IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;
/// List headers only.
pub const IPSET_FLAG_LIST_HEADER: u32 = 1 << 2;

/// The entry is added before the member in `IPSET_ATTR_NAMEREF`.
pub const IPSET_FLAG_BEFORE: u32 = 1 << 0;
/// The interface is a port of a bridge.
pub const IPSET_FLAG_PHYSDEV: u32 = 1 << 1;
/// The entry is an exception.
pub const IPSET_FLAG_NOMATCH: u32 = 1 << 2;
/// The set has counters.
pub const IPSET_FLAG_WITH_COUNTERS: u32 = 1 << 3;
/// The set has comments.
pub const IPSET_FLAG_WITH_COMMENT: u32 = 1 << 4;
/// A full set evicts an entry for a new one.
pub const IPSET_FLAG_WITH_FORCEADD: u32 = 1 << 5;
/// The set has marks, traffic classes and hardware queues for packets.
pub const IPSET_FLAG_WITH_SKBINFO: u32 = 1 << 6;
/// The interface name is a prefix.
pub const IPSET_FLAG_IFACE_WILDCARD: u32 = 1 << 7;

/// Malformed message.
pub const IPSET_ERR_PROTOCOL: i32 = 4097;
/// Unknown type or revision.
pub const IPSET_ERR_FIND_TYPE: i32 = 4098;
/// The network namespace has the maximum number of sets.
pub const IPSET_ERR_MAX_SETS: i32 = 4099;
/// The set is in use.
pub const IPSET_ERR_BUSY: i32 = 4100;
/// The second set exists (rename) or does not exist (swap).
pub const IPSET_ERR_EXIST_SETNAME2: i32 = 4101;
/// The sets differ in type or family (swap).
pub const IPSET_ERR_TYPE_MISMATCH: i32 = 4102;
/// The entry exists (add) or does not exist (delete, test).
pub const IPSET_ERR_EXIST: i32 = 4103;
/// Invalid prefix length.
pub const IPSET_ERR_INVALID_CIDR: i32 = 4104;
/// Invalid netmask.
pub const IPSET_ERR_INVALID_NETMASK: i32 = 4105;
/// Invalid family for the set type.
pub const IPSET_ERR_INVALID_FAMILY: i32 = 4106;
/// A timeout for an entry of a set without timeouts.
pub const IPSET_ERR_TIMEOUT: i32 = 4107;
/// The set is in use (rename).
pub const IPSET_ERR_REFERENCED: i32 = 4108;
/// Not an IPv4 address.
pub const IPSET_ERR_IPADDR_IPV4: i32 = 4109;
/// Not an IPv6 address.
pub const IPSET_ERR_IPADDR_IPV6: i32 = 4110;
/// Counters for an entry of a set without counters.
pub const IPSET_ERR_COUNTER: i32 = 4111;
/// A comment for an entry of a set without comments.
pub const IPSET_ERR_COMMENT: i32 = 4112;
/// Invalid mark mask.
pub const IPSET_ERR_INVALID_MARKMASK: i32 = 4113;
/// A mark, class or queue for an entry of a set without skbinfo.
pub const IPSET_ERR_SKBINFO: i32 = 4114;
/// Netmask and bitmask together, or an invalid bitmask; since 6.3.
pub const IPSET_ERR_BITMASK_NETMASK_EXCL: i32 = 4115;
/// The first of the numbers whose meaning depends on the kind of set type.
pub const IPSET_ERR_TYPE_SPECIFIC: i32 = 4352;

/// Hash types: `maxelem` reached.
pub const IPSET_ERR_HASH_FULL: i32 = 4352;
/// Hash types: an all-zero entry.
pub const IPSET_ERR_HASH_ELEM: i32 = 4353;
/// Hash types: invalid protocol.
pub const IPSET_ERR_INVALID_PROTO: i32 = 4354;
/// Hash types: missing protocol.
pub const IPSET_ERR_MISSING_PROTO: i32 = 4355;
/// Hash types: the type does not support ranges.
pub const IPSET_ERR_HASH_RANGE_UNSUPPORTED: i32 = 4356;
/// Hash types: invalid range.
pub const IPSET_ERR_HASH_RANGE: i32 = 4357;
/// Bitmap types: outside the range of the set.
pub const IPSET_ERR_BITMAP_RANGE: i32 = 4352;
/// Bitmap types: the range is too long.
pub const IPSET_ERR_BITMAP_RANGE_SIZE: i32 = 4353;
/// `list:set`: the member set does not exist.
pub const IPSET_ERR_NAME: i32 = 4352;
/// `list:set`: the member is a list.
pub const IPSET_ERR_LOOP: i32 = 4353;
/// `list:set`: before or after without a set name.
pub const IPSET_ERR_BEFORE: i32 = 4354;
/// `list:set`: the set named by before or after does not exist.
pub const IPSET_ERR_NAMEREF: i32 = 4355;
/// `list:set`: maximum number of members reached.
pub const IPSET_ERR_LIST_FULL: i32 = 4356;
/// `list:set`: the set named by before or after is not at that position of the list.
pub const IPSET_ERR_REF_EXIST: i32 = 4357;
