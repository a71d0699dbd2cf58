//! Names of ports, protocols, users and groups, as the tools resolve them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use crate::error::Error;
use crate::network::Protocol;
use crate::rule::Rule;
use crate::wire::token::{RawWord, split};

/// Names of ports, protocols, users and groups, to read rules in which they stand for numbers.
///
/// The tools resolve such names when a rule is loaded, and print numbers (of a protocol its name). A rule read without
/// this, by [`FromStr`](std::str::FromStr), keeps them word by word; it loads as well, but never equals its saved form, so
/// [`diff`](crate::diff) writes its chain each time.
///
/// ```
/// use kernlink_iptables_restore::{Family, Names, Rule};
///
/// let names = Names::new().with_services("smtp 25/tcp mail # Simple Mail Transfer\n");
/// let rule = names.rule("-p tcp --dport mail -j ACCEPT")?;
/// let saved: Rule = "-p tcp -m tcp --dport 25 -j ACCEPT".parse()?;
/// assert!(rule.means_the_same(&saved, Family::Ipv4));
/// # Ok::<(), kernlink_iptables_restore::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Port by name and protocol; by name alone the first of that name.
    services: HashMap<String, HashMap<String, u16>>,
    first_services: HashMap<String, u16>,
    protocols: HashMap<String, u8>,
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

/// What the value of an option names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ports of the rule's protocol: ranges with `:`, parted by commas.
    Ports,
    /// The same of any protocol.
    AnyPorts,
    /// `PORT`, `PORT-PORT` or `PORT-PORT/PORT`.
    NatPorts,
    /// The same behind an address and a colon.
    NatAddress,
    Protocol,
    User,
    Group,
}

impl Kind {
    fn of(option: &str) -> Option<Self> {
        Some(match option {
            "--sport"
            | "--source-port"
            | "--dport"
            | "--destination-port"
            | "--sports"
            | "--source-ports"
            | "--dports"
            | "--destination-ports"
            | "--ports" => Kind::Ports,
            "--ctorigsrcport" | "--ctorigdstport" | "--ctreplsrcport" | "--ctrepldstport" | "--vport"
            | "--vportctl" | "--on-port" => Kind::AnyPorts,
            "--to-ports" => Kind::NatPorts,
            "--to-destination" | "--to-source" => Kind::NatAddress,
            "-p" | "--protocol" | "--proto" | "--ctproto" | "--vproto" => Kind::Protocol,
            "--uid-owner" => Kind::User,
            "--gid-owner" => Kind::Group,
            _ => return None,
        })
    }
}

impl Names {
    /// No names but those of protocols that the tools know themselves.
    pub fn new() -> Self {
        Names::default()
    }

    /// The names of this host: `/etc/services`, `/etc/protocols`, `/etc/passwd` and `/etc/group`, read now.
    ///
    /// A file that is missing or cannot be read has no names, as for the tools. Other sources of the name service
    /// switch (`/etc/nsswitch.conf`) are not asked.
    pub fn of_host() -> Self {
        let read = |path: &str| {
            let bytes = std::fs::read(Path::new(path)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Names::new()
            .with_services(&read("/etc/services"))
            .with_protocols(&read("/etc/protocols"))
            .with_users(&read("/etc/passwd"))
            .with_groups(&read("/etc/group"))
    }

    /// And these services, in the form of `/etc/services`: `smtp 25/tcp mail`. Of two with the same name and protocol
    /// the first counts. Lines of another form are skipped.
    pub fn with_services(mut self, text: &str) -> Self {
        for mut words in entries(text) {
            let (Some(name), Some(number)) = (words.next(), words.next()) else {
                continue;
            };
            let Some((port, protocol)) = number.split_once('/') else {
                continue;
            };
            let Ok(port) = port.parse() else { continue };
            for name in [name].into_iter().chain(words) {
                self.first_services.entry(name.into()).or_insert(port);
                let ports = self.services.entry(name.into()).or_default();
                ports.entry(protocol.into()).or_insert(port);
            }
        }
        self
    }

    /// And these protocols, in the form of `/etc/protocols`: `ospf 89 OSPFIGP`. Of two with the same name the first
    /// counts. Lines of another form are skipped.
    pub fn with_protocols(mut self, text: &str) -> Self {
        for mut words in entries(text) {
            let (Some(name), Some(number)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(number) = number.parse() else { continue };
            for name in [name].into_iter().chain(words) {
                self.protocols.entry(name.into()).or_insert(number);
            }
        }
        self
    }

    /// And these users, in the form of `/etc/passwd`.
    pub fn with_users(mut self, text: &str) -> Self {
        add_ids(&mut self.users, text);
        self
    }

    /// And these groups, in the form of `/etc/group`.
    pub fn with_groups(mut self, text: &str) -> Self {
        add_ids(&mut self.groups, text);
        self
    }

    /// Reads the words after `-A CHAIN`, as [`FromStr`](std::str::FromStr) of [`Rule`] does, with names replaced by the
    /// numbers they stand for. So are hexadecimal and octal numbers in the same places.
    ///
    /// Replaced are names of ports (`-m tcp`, `udp`, `sctp`, `dccp`, `multiport`, `conntrack`, `ipvs`; `DNAT`, `SNAT`,
    /// `MASQUERADE`, `REDIRECT`, `TPROXY`), of protocols, and of users and groups (`-m owner`). A name that is not known stays,
    /// and the tool may refuse it. Names of hosts stay too: a rule with one always differs from its saved form, which has one
    /// rule for each address.
    ///
    /// # Errors
    ///
    /// As for [`Rule`]'s `FromStr`.
    pub fn rule(&self, text: &str) -> Result<Rule, Error> {
        // Checks the text as a whole.
        let rule: Rule = text.parse()?;
        let mut words = Vec::new();
        if split(text, &mut words).is_err() {
            return Ok(rule);
        }
        self.resolve(&mut words);
        Ok(Rule::read(&words))
    }

    /// The port of a service, by a name or alias of it; of any protocol, the first there is, if none is given.
    pub fn port(&self, service: &str, protocol: Option<Protocol>) -> Option<u16> {
        match protocol {
            Some(protocol) => {
                let protocol = protocol.normal_form().to_string();
                self.services.get(service)?.get(&protocol).copied()
            }
            None => self.first_services.get(service).copied(),
        }
    }

    /// The protocol with this number or name, first of those that the tools know themselves.
    pub fn protocol(&self, text: &str) -> Option<Protocol> {
        if let Some(number) = integer(text) {
            return u8::try_from(number).ok().map(Protocol::Number);
        }
        let known = text.parse().ok();
        known.or_else(|| self.protocols.get(text).copied().map(Protocol::Number))
    }

    fn resolve(&self, words: &mut [RawWord<'_>]) {
        let protocol = words.windows(2).find_map(|pair| match pair {
            [option, value] if !option.quoted && !option.is_claimed => {
                let is_protocol = matches!(option.text.as_ref(), "-p" | "--protocol" | "--proto");
                is_protocol.then(|| self.protocol(&value.text))?
            }
            _ => None,
        });
        for at in 1..words.len() {
            let (before, rest) = words.split_at_mut(at);
            let (Some(option), Some(value)) = (before.last(), rest.first_mut()) else {
                continue;
            };
            let kind = Some(&option.text)
                .filter(|_| !option.quoted)
                .and_then(|text| Kind::of(text));
            let resolved = match kind {
                None => None,
                Some(Kind::Ports) => self.ports(&value.text, protocol),
                Some(Kind::AnyPorts) => self.ports(&value.text, None),
                Some(Kind::NatPorts) => self.nat_ports(&value.text),
                Some(Kind::NatAddress) => self.nat_address(&value.text),
                // What is read without help stays as it was written.
                Some(Kind::Protocol) if value.text.parse::<Protocol>().is_ok() => None,
                Some(Kind::Protocol) => self
                    .protocol(&value.text)
                    .map(|protocol| protocol.number().to_string()),
                Some(Kind::User) => self.users.get(value.text.as_ref()).map(u32::to_string),
                Some(Kind::Group) => self.groups.get(value.text.as_ref()).map(u32::to_string),
            };
            if let Some(resolved) = resolved {
                value.text = Cow::Owned(resolved);
            }
        }
    }

    /// Each port of a list of ranges that is not a decimal number, resolved; none if one is unknown.
    fn ports(&self, text: &str, protocol: Option<Protocol>) -> Option<String> {
        let end = |port: &str| match port {
            "" => Some(String::new()),
            _ => self.one_port(port, protocol).map(|port| port.to_string()),
        };
        let range = |range: &str| {
            let ends: Option<Vec<String>> = range.split(':').map(end).collect();
            Some(ends?.join(":"))
        };
        let ranges: Option<Vec<String>> = text.split(',').map(range).collect();
        Some(ranges?.join(","))
    }

    fn one_port(&self, text: &str, protocol: Option<Protocol>) -> Option<u16> {
        match integer(text) {
            Some(number) => u16::try_from(number).ok(),
            None => self.port(text, protocol),
        }
    }

    /// Only a single port and the base of a range may be named, because names have dashes in them.
    fn nat_ports(&self, text: &str) -> Option<String> {
        if let Some(port) = self.one_port(text, None) {
            return Some(port.to_string());
        }
        let (range, base) = match text.split_once('/') {
            Some((range, base)) => (range, Some(self.one_port(base, None)?)),
            None => (text, None),
        };
        let (first, last) = range.split_once('-')?;
        let number = |text: &str| integer(text).and_then(|number| u16::try_from(number).ok());
        let range = format!("{}-{}", number(first)?, number(last)?);
        Some(base.map_or(range.clone(), |base| format!("{range}/{base}")))
    }

    fn nat_address(&self, text: &str) -> Option<String> {
        let colons = text.bytes().filter(|byte| *byte == b':').count();
        let at = match text.rfind("]:") {
            Some(bracket) => bracket + 1,
            // Without brackets more than one colon is an IPv6 address.
            None => text.find(':').filter(|_| colons == 1 && !text.contains(']'))?,
        };
        let (address, ports) = (text.get(..at)?, text.get(at + 1..)?);
        Some(format!("{address}:{}", self.nat_ports(ports)?))
    }
}

/// The words of each line, without comments.
fn entries(text: &str) -> impl Iterator<Item = std::str::SplitAsciiWhitespace<'_>> {
    text.lines().map(|line| {
        let entry = line.split('#').next().unwrap_or_default();
        entry.split_ascii_whitespace()
    })
}

/// `NAME:PASSWORD:NUMBER:...`
fn add_ids(ids: &mut HashMap<String, u32>, text: &str) {
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(Ok(id))) = (fields.next(), fields.nth(1).map(str::parse)) {
            ids.entry(name.into()).or_insert(id);
        }
    }
}

/// A number as `strtoul` with base 0 reads it: decimal, hexadecimal after `0x`, octal after `0`.
fn integer(text: &str) -> Option<u32> {
    let digits = |text: &str, radix| {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        plain.then(|| u32::from_str_radix(text, radix).ok()).flatten()
    };
    if let Some(hexadecimal) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        digits(hexadecimal, 16)
    } else if text.len() > 1 && text.starts_with('0') {
        digits(text, 8)
    } else {
        digits(text, 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;

    fn names() -> Names {
        Names::new()
            .with_services("# comment\nssh 22/tcp\nftp-data\t20/tcp\nftp 21/tcp\nbroken x/tcp\nalone\nsmtp 25/tcp mail #x\ntricky 1/udp\ntricky 2/tcp\nntp 123/udp\n")
            .with_protocols("ospfigp 89 OSPF-X\nbroken x\n")
            .with_users("root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:33:33::/:/bin/false\n")
            .with_groups("www:x:34:\n")
    }

    #[test]
    fn names_are_the_numbers_that_the_tools_print() {
        for (written, saved) in [
            ("-p tcp --dport smtp", "-p tcp -m tcp --dport 25"),
            ("-p tcp --dport mail", "-p tcp -m tcp --dport 25"),
            ("-m tcp --dport ssh: -p 6", "-p tcp -m tcp --dport 22:65535"),
            (
                "-p tcp -m tcp ! --sport ftp-data:smtp",
                "-p tcp -m tcp ! --sport 20:25",
            ),
            (
                "-p tcp --dport 0x50 --sport 010",
                "-p tcp -m tcp --sport 8 --dport 80",
            ),
            ("-p tcp --dport tricky", "-p tcp -m tcp --dport 2"),
            ("-p udp --dport tricky", "-p udp -m udp --dport 1"),
            (
                "-p tcp -m multiport --dports ssh,80,ftp:smtp",
                "-p tcp -m multiport --dports 22,80,21:25",
            ),
            ("-p dccp -m dccp --dport 0x10", "-p dccp -m dccp --dport 16"),
            ("-p 0x11", "-p udp"),
            ("-p ospfigp", "-p ospf"),
            ("-p OSPF-X", "-p ospf"),
            (
                "-m conntrack --ctproto 6 --ctorigdstport ssh",
                "-m conntrack --ctproto 6 --ctorigdstport 22",
            ),
            (
                "-m ipvs --vproto ospfigp --vport tricky",
                "-m ipvs --vproto 89 --vport 1",
            ),
            (
                "-m owner ! --uid-owner root --gid-owner www",
                "-m owner ! --uid-owner 0 --gid-owner 34",
            ),
            (
                "-p tcp -j DNAT --to-destination 192.0.2.1:ftp-data",
                "-p tcp -j DNAT --to-destination 192.0.2.1:20",
            ),
            (
                "-p tcp -j DNAT --to-destination :ssh",
                "-p tcp -j DNAT --to-destination :22",
            ),
            (
                "-p tcp -j DNAT --to-destination 192.0.2.1:10-0x14/ftp",
                "-p tcp -j DNAT --to-destination 192.0.2.1:10-20/21",
            ),
            (
                "-p tcp -j DNAT --to-destination [2001:db8::1]:ssh",
                "-p tcp -j DNAT --to-destination [2001:db8::1]:22",
            ),
            (
                "-p tcp -j SNAT --to-source 2001:db8::1",
                "-p tcp -j SNAT --to-source 2001:db8::1",
            ),
            (
                "-p tcp -j REDIRECT --to-ports ftp-data",
                "-p tcp -j REDIRECT --to-ports 20",
            ),
            ("-p udp -j TPROXY --on-port ntp", "-p udp -j TPROXY --on-port 123"),
        ] {
            let rule = names().rule(written).unwrap();
            let saved: Rule = saved.parse().unwrap();
            assert!(
                rule.means_the_same(&saved, Family::Ipv4),
                "{written}: {rule} is not {saved}"
            );
        }
    }

    #[test]
    fn what_is_not_known_or_no_name_stays_as_it_is() {
        for text in [
            "-p tcp --dport no-such",
            "-p udp --dport ssh",
            "-p tcp -m multiport --dports ssh,no-such",
            "-p no-such",
            "-p tcp --dport 70000",
            "-p tcp -m comment --comment --dport -m comment --comment ssh",
            "-p tcp -j DNAT --to-destination 192.0.2.1:ssh-ftp",
            "-m owner --uid-owner nobody",
            "-m string --string \"--dport\" ssh",
            "-p tcp -j REDIRECT --to-ports",
        ] {
            assert_eq!(names().rule(text), text.parse(), "{text}");
        }
        assert!(names().rule("-p tcp\n").is_err());
        // Of an option that takes no name nothing is looked up.
        let rule = names().rule("-m comment --comment ssh -j ssh").unwrap();
        assert_eq!(rule.to_string(), "-m comment --comment ssh -j ssh");
    }

    #[test]
    fn without_files_the_protocols_of_the_tools_are_known() {
        let rule = Names::new().rule("-p mh --dport smtp").unwrap();
        assert_eq!(
            rule.normal_form(Family::Ipv6).to_string(),
            "-p mobility-header --dport smtp"
        );
        assert_eq!(Names::new().protocol("ipv6-mh").map(Protocol::number), Some(135));
        assert_eq!(Names::new().protocol("300"), None);
    }
}
