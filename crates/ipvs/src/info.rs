//! Version and table size of IPVS.

use std::fmt;

/// The version of IPVS and the size of its connection table.
#[doc(alias = "IPVS_CMD_GET_INFO")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Info {
    /// The version of IPVS, 1.2.1 for many years. It does not indicate features; use the kernel release for this.
    #[doc(alias = "IPVS_INFO_ATTR_VERSION")]
    #[doc(alias = "IP_VS_VERSION_CODE")]
    pub version: Version,
    /// Buckets of the connection table, a power of two. Set by the module parameter `ip_vs.conn_tab_bits`.
    #[doc(alias = "IPVS_INFO_ATTR_CONN_TAB_SIZE")]
    pub connection_table_size: u32,
}

impl Info {
    /// A version and the size of the connection table.
    #[must_use]
    pub fn new(version: Version, connection_table_size: u32) -> Self {
        Self {
            version,
            connection_table_size,
        }
    }
}

/// A version of IPVS. Prints as `1.2.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 1 in 1.2.3.
    pub major: u8,
    /// 2 in 1.2.3.
    pub minor: u8,
    /// 3 in 1.2.3.
    pub patch: u8,
}

impl Version {
    /// The version of a kernel number (`IP_VS_VERSION_CODE`): one byte for each part, the highest byte is not used.
    #[must_use]
    pub fn from_code(code: u32) -> Self {
        let [_, major, minor, patch] = code.to_be_bytes();
        Self { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
