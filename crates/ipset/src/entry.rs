//! Entries of sets.

use std::fmt;
use std::net::IpAddr;

use crate::element::{Element, Interface};
use crate::entry_options::{Comment, EntryOptions, Position, SkbMark, SkbPriority, Timeout};
use crate::entry_range::EntryRange;
use crate::mac::MacAddress;
use crate::name::SetName;
use crate::network::Network;
use crate::parse::ParseError;
use crate::protocol_port::ProtocolPort;
use crate::set_family::SetFamily;
use crate::set_type::SetType;

/// An entry of a set: an element with options. An entry without options allocates no memory.
///
/// Printed and parsed in the notation of `ipset save`: `10.0.0.1,tcp:80 timeout 30 comment "web"`.
///
/// ```
/// use kernlink_ipset::{Entry, Family, ProtocolPort, SetType};
///
/// let entry = Entry::ip_port([10, 0, 0, 1].into(), ProtocolPort::tcp(80));
/// assert_eq!(entry.to_string(), "10.0.0.1,tcp:80");
/// assert_eq!(Entry::parse("10.0.0.1,80", SetType::HashIpPort, Family::Ipv4), Ok(entry));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    element: Element,
    /// `None` if all options have their default values, so that equal entries are equal values.
    options: Option<Box<EntryOptions>>,
}

impl Entry {
    /// An entry without options.
    #[must_use]
    pub fn new(element: Element) -> Self {
        Entry {
            element,
            options: None,
        }
    }

    /// An entry of a `hash:ip` or `bitmap:ip` set.
    #[must_use]
    pub fn ip(ip: IpAddr) -> Self {
        Element::Ip(ip).into()
    }

    /// An entry of a `hash:ip,mac` or `bitmap:ip,mac` set.
    #[must_use]
    pub fn ip_mac(ip: IpAddr, mac: MacAddress) -> Self {
        Element::IpMac { ip, mac: Some(mac) }.into()
    }

    /// An entry of a `hash:ip,mark` set.
    #[must_use]
    pub fn ip_mark(ip: IpAddr, mark: u32) -> Self {
        Element::IpMark { ip, mark }.into()
    }

    /// An entry of a `hash:ip,port` set.
    #[must_use]
    pub fn ip_port(ip: IpAddr, port: ProtocolPort) -> Self {
        Element::IpPort { ip, port }.into()
    }

    /// An entry of a `hash:ip,port,ip` set.
    #[must_use]
    pub fn ip_port_ip(ip: IpAddr, port: ProtocolPort, second: IpAddr) -> Self {
        Element::IpPortIp { ip, port, second }.into()
    }

    /// An entry of a `hash:ip,port,net` set.
    #[must_use]
    pub fn ip_port_net(ip: IpAddr, port: ProtocolPort, net: Network) -> Self {
        Element::IpPortNet { ip, port, net }.into()
    }

    /// An entry of a `hash:mac` set.
    #[must_use]
    pub fn mac(mac: MacAddress) -> Self {
        Element::Mac(mac).into()
    }

    /// An entry of a `hash:net` set.
    #[must_use]
    pub fn net(net: Network) -> Self {
        Element::Net(net).into()
    }

    /// An entry of a `hash:net,net` set.
    #[must_use]
    pub fn net_net(net: Network, second: Network) -> Self {
        Element::NetNet { net, second }.into()
    }

    /// An entry of a `hash:net,port` set.
    #[must_use]
    pub fn net_port(net: Network, port: ProtocolPort) -> Self {
        Element::NetPort { net, port }.into()
    }

    /// An entry of a `hash:net,port,net` set.
    #[must_use]
    pub fn net_port_net(net: Network, port: ProtocolPort, second: Network) -> Self {
        Element::NetPortNet { net, port, second }.into()
    }

    /// An entry of a `hash:net,iface` set.
    #[must_use]
    pub fn net_iface(net: Network, interface: Interface) -> Self {
        Element::NetIface { net, interface }.into()
    }

    /// An entry of a `bitmap:port` set.
    #[must_use]
    pub fn port(port: u16) -> Self {
        Element::Port(port).into()
    }

    /// An entry of a `list:set` set.
    #[must_use]
    pub fn set(name: SetName) -> Self {
        Element::Set(name).into()
    }

    /// The element. It identifies the entry in its set, except in `bitmap:ip,mac`, where the address alone does.
    #[must_use]
    pub fn element(&self) -> &Element {
        &self.element
    }

    /// Whether the entry has no options.
    pub(crate) fn is_plain(&self) -> bool {
        self.options.is_none()
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &EntryOptions {
        self.options.as_deref().unwrap_or(&EntryOptions::NONE)
    }

    /// With these options instead of its own. Values that the kernel treats as unset are removed: mark `0x0/0x0`, class `0:0`,
    /// queue 0, and an empty comment.
    #[must_use]
    pub fn with_options(mut self, options: EntryOptions) -> Self {
        let options = options.normalised();
        self.options = (options != EntryOptions::NONE).then(|| Box::new(options));
        self
    }

    /// With a timeout, after which the kernel deletes the entry.
    #[must_use]
    pub fn with_timeout(self, timeout: Timeout) -> Self {
        self.with(|options| options.timeout = Some(timeout))
    }

    /// With initial values of the counters.
    #[must_use]
    pub fn with_counters(self, packets: u64, bytes: u64) -> Self {
        self.with(|options| (options.packets, options.bytes) = (Some(packets), Some(bytes)))
    }

    /// With a comment.
    #[must_use]
    pub fn with_comment(self, comment: Comment) -> Self {
        self.with(|options| options.comment = Some(comment))
    }

    /// With a mark for matching packets.
    #[must_use]
    pub fn with_skb_mark(self, mark: SkbMark) -> Self {
        self.with(|options| options.skb_mark = Some(mark))
    }

    /// With a traffic class for matching packets.
    #[must_use]
    pub fn with_skb_priority(self, priority: SkbPriority) -> Self {
        self.with(|options| options.skb_priority = Some(priority))
    }

    /// With a hardware queue for matching packets.
    #[must_use]
    pub fn with_skb_queue(self, queue: u16) -> Self {
        self.with(|options| options.skb_queue = Some(queue))
    }

    /// As an exception: packets that the entry matches do not match the set.
    #[must_use]
    pub fn with_nomatch(self) -> Self {
        self.with(|options| options.nomatch = true)
    }

    /// At this position of a `list:set`.
    #[must_use]
    pub fn with_position(self, position: Position) -> Self {
        self.with(|options| options.position = Some(position))
    }

    /// Parses the notation of ipset(8) for a set of this type and family: the element, followed by options.
    ///
    /// # Errors
    ///
    /// The first invalid word, or a range of several entries; [`EntryRange::parse`] parses those.
    pub fn parse(text: &str, set_type: SetType, family: impl Into<SetFamily>) -> Result<Self, ParseError> {
        EntryRange::parse(text, set_type, family)?
            .into_single()
            .map_err(|range| ParseError::new("entry", range, "is a range of entries; expected one entry"))
    }

    /// The entry without the options that change with time: counters and timeout.
    #[must_use]
    pub fn configured(&self) -> Self {
        match &self.options {
            None => self.clone(),
            Some(options) => Entry::new(self.element).with_options(options.configured()),
        }
    }

    /// Whether two entries are equal apart from counters and timeouts.
    pub(crate) fn is_configured_as(&self, other: &Entry) -> bool {
        self.element == other.element
            && match (&self.options, &other.options) {
                (None, None) => true,
                _ => self.options().configured() == other.options().configured(),
            }
    }

    fn with(self, change: impl FnOnce(&mut EntryOptions)) -> Self {
        let mut options = self.options.as_deref().cloned().unwrap_or_default();
        change(&mut options);
        self.with_options(options)
    }
}

impl From<Element> for Entry {
    fn from(element: Element) -> Self {
        Entry::new(element)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.element)?;
        self.options().write(f, self.element.wildcard())
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(set_type: SetType, text: &str) -> Entry {
        let family = if text.contains("::") {
            SetFamily::Inet6
        } else {
            SetFamily::Inet
        };
        Entry::parse(text, set_type, family).unwrap_or_else(|error| panic!("{set_type} {text}: {error}"))
    }

    #[test]
    fn entries_print_as_ipset_save_prints_them_and_parse() {
        for (set_type, text) in [
            (SetType::BitmapIp, "10.0.0.1"),
            (SetType::BitmapIpMac, "10.0.0.1"),
            (SetType::BitmapIpMac, "10.0.0.1,0A:0B:CC:01:02:03"),
            (SetType::BitmapPort, "80"),
            (SetType::HashIp, "fe80::1"),
            (SetType::HashMac, "0A:0B:CC:01:02:03"),
            (SetType::HashIpMac, "10.0.0.1,0A:0B:CC:01:02:03"),
            (SetType::HashIpMark, "10.0.0.1,0x00001234"),
            (SetType::HashIpPort, "10.0.0.1,tcp:80"),
            (SetType::HashIpPort, "fe80::1,ipv6-icmp:echo-request"),
            (SetType::HashIpPortIp, "10.0.0.1,udp:53,10.0.0.2"),
            (SetType::HashIpPortNet, "10.0.0.1,sctp:80,10.0.0.0/8"),
            (SetType::HashIpPortNet, "10.0.0.1,sctp:80,10.0.0.7"),
            (SetType::HashNet, "10.0.0.0/8 nomatch"),
            (SetType::HashNetNet, "10.0.0.0/8,192.168.1.1"),
            (SetType::HashNetPort, "10.0.0.0/8,tcp:0"),
            (SetType::HashNetPortNet, "::/0,tcp:1,fe80::/10"),
            (
                SetType::HashNetIface,
                "0.0.0.0/0,physdev:eth timeout 7 nomatch wildcard",
            ),
            (SetType::ListSet, "other before third"),
            (
                SetType::HashIp,
                "10.0.0.1 timeout 0 packets 5 bytes 6 comment \"hello x\" skbmark 0x1/0xff skbprio 1:10 skbqueue 3",
            ),
        ] {
            assert_eq!(entry(set_type, text).to_string(), text);
        }
    }

    #[test]
    fn different_forms_of_an_entry_are_equal() {
        assert_eq!(
            entry(SetType::HashNet, "10.0.0.1/32"),
            entry(SetType::HashNet, "10.0.0.1")
        );
        assert_eq!(
            entry(SetType::HashNet, "10.0.0.0-10.0.0.255"),
            entry(SetType::HashNet, "10.0.0.9/24")
        );
        assert_eq!(
            entry(SetType::HashIp, "10.0.0.1-10.0.0.1"),
            entry(SetType::HashIp, "10.0.0.1/32")
        );
        assert_eq!(
            entry(SetType::HashIp, "10.0.0.1 skbmark 0x0/0x0 skbprio 0:0 skbqueue 0"),
            entry(SetType::HashIp, "10.0.0.1")
        );
        assert_eq!(
            entry(SetType::BitmapPort, "tcp:80"),
            entry(SetType::BitmapPort, "80")
        );
    }

    #[test]
    fn the_old_form_of_a_position_in_a_list_is_parsed() {
        for (old, new) in [
            ("bar,after,foo", "bar after foo"),
            ("bar,before,foo timeout 5", "bar before foo timeout 5"),
        ] {
            assert_eq!(entry(SetType::ListSet, old), entry(SetType::ListSet, new));
        }
        for bad in [
            "bar,foo",
            "bar,between,foo",
            "bar,before",
            "bar,before,",
            "bar,before,foo after x",
        ] {
            assert!(
                Entry::parse(bad, SetType::ListSet, SetFamily::Inet).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn an_entry_without_options_takes_no_more_than_64_bytes() {
        assert!(size_of::<Entry>() <= 64, "{}", size_of::<Entry>());
    }

    #[test]
    fn an_entry_of_another_type_is_refused_with_dimension_and_reason() {
        let check = |text: &str, as_type, set_type, family| {
            entry(as_type, text)
                .element()
                .check(set_type, family)
                .unwrap_err()
                .without_type()
        };
        assert_eq!(
            check("10.0.0.1", SetType::HashIp, SetType::HashIpPort, SetFamily::Inet),
            "the entry has 1 dimensions; the type has 2"
        );
        assert_eq!(
            check(
                "10.0.0.1,tcp:1,10.0.0.2",
                SetType::HashIpPortIp,
                SetType::HashIpPortNet,
                SetFamily::Inet
            ),
            "dimension 3 (net): found ip"
        );
        assert_eq!(
            check(
                "10.0.0.1,tcp:1",
                SetType::HashIpPort,
                SetType::HashIpPort,
                SetFamily::Inet6
            ),
            "dimension 1 (ip): 10.0.0.1 is not an address of family inet6"
        );
        let all = Entry::net("0.0.0.0/0".parse().unwrap());
        assert_eq!(
            all.element()
                .check(SetType::HashNet, SetFamily::Inet)
                .unwrap_err()
                .without_type(),
            "dimension 1 (net): 0.0.0.0/0: the set type does not support prefix length 0; use an `EntryRange`, which is split into two networks of prefix length 1"
        );
    }

    #[test]
    fn errors_name_the_invalid_word_and_the_reason() {
        let error = |set_type, text: &str| {
            Entry::parse(text, set_type, SetFamily::Inet)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(SetType::HashIpPort, "10.0.0.1"),
            "entry \"10.0.0.1\" has 1 dimensions; set type hash:ip,port has 2"
        );
        assert_eq!(
            error(SetType::HashIp, "10.0.0.0/30"),
            "entry \"10.0.0.0-10.0.0.3\" is a range of entries; expected one entry"
        );
        assert_eq!(
            error(SetType::HashIp, "10.0.0.1 timeout"),
            "option \"timeout\" requires a value"
        );
        assert_eq!(
            error(SetType::HashIp, "10.0.0.1 wildcard"),
            "entry option \"wildcard\" is unknown or not valid for set type hash:ip"
        );
        assert_eq!(
            error(SetType::HashIp, "10.0.0.1 comment \"x"),
            "line \"10.0.0.1 comment \\\"x\" has an unclosed quotation mark"
        );
        assert_eq!(
            error(SetType::HashIp, ""),
            "address \"\" is neither an IPv4 nor an IPv6 address"
        );
    }
}
