//! Names of numbers, which the ruleset in the kernel does not have.

use std::collections::BTreeMap;

use crate::data_type::DataType;

/// Names of numbers for a listing; see [`Ruleset::with_names`](crate::Ruleset::with_names). The kernel has the numbers only. `nft` looks up the
/// names where it is called, each time it lists something; this crate reads nothing, and prints a number that has no name here as a number.
/// Without an entry, device 1 is `lo`, group 0 of devices is `default` and realm 0 is `cosmos`.
///
/// Names print in quotation marks, as they are.
///
/// ```
/// use kernlink_nftables::{MetaKey, Names, Ruleset, RuleBuilder, TableFamily, TableKey, Value};
/// # use kernlink_nftables::{Chain, ChainContents, Table, TableContents};
///
/// let mut names = Names::new();
/// // From `ip link`, or `if_nameindex` of the C library, in the network namespace of the ruleset.
/// names.devices.insert(7, "eth0".into());
/// let chain = TableKey::new(TableFamily::Ip, "t").chain("c");
/// let rule = RuleBuilder::new(chain.clone()).meta(MetaKey::InputIndex).equals(Value::host_u32(7)).build()?;
/// # let mut contents = TableContents::new(Table::new(chain.table.clone()));
/// # contents.chains.push(ChainContents::new(Chain::new(chain), vec![rule]));
/// # let mut ruleset = Ruleset::default();
/// # ruleset.tables.push(contents);
/// // Of a ruleset with this rule:
/// assert!(ruleset.with_names(&names).to_string().contains("iif \"eth0\""));
/// assert!(ruleset.to_string().contains("iif 7"));
/// # Ok::<(), kernlink_nftables::RuleError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Names {
    /// Devices by their indices (`iif`, `oif`, `iface_index`). `nft` asks the kernel, in its own network namespace.
    pub devices: BTreeMap<u32, Box<str>>,
    /// Groups of devices (`iifgroup`, `devgroup`): `/etc/iproute2/group`.
    pub device_groups: BTreeMap<u32, Box<str>>,
    /// Realms of routes (`rtclassid`, `realm`): `/etc/iproute2/rt_realms`.
    pub realms: BTreeMap<u32, Box<str>>,
    /// Marks (`meta mark`, `ct mark`, `mark`): `/etc/iproute2/rt_marks`.
    pub marks: BTreeMap<u32, Box<str>>,
    /// Paths of control groups below `/sys/fs/cgroup`, without a slash before them, by the inodes of their folders (`socket cgroupv2`,
    /// `cgroupsv2`).
    pub control_groups: BTreeMap<u64, Box<str>>,
}

impl Names {
    /// No names.
    #[must_use]
    pub const fn new() -> Self {
        Names {
            devices: BTreeMap::new(),
            device_groups: BTreeMap::new(),
            realms: BTreeMap::new(),
            marks: BTreeMap::new(),
            control_groups: BTreeMap::new(),
        }
    }

    /// The name of a value of a type.
    pub(crate) fn name(&self, data_type: DataType, number: u128) -> Option<&str> {
        let numbers = match data_type {
            DataType::InterfaceIndex => &self.devices,
            DataType::DeviceGroup => &self.device_groups,
            DataType::Realm => &self.realms,
            DataType::Mark => &self.marks,
            DataType::ControlGroup => {
                return self
                    .control_groups
                    .get(&u64::try_from(number).ok()?)
                    .map(|name| &**name);
            }
            _ => return None,
        };
        numbers.get(&u32::try_from(number).ok()?).map(|name| &**name)
    }
}
