//! Resolving names of ports, protocols, users and groups as the tools do.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use crate::error::Error;
use crate::protocol::Protocol;
use crate::rule::Rule;
use crate::wire::token::{Token, split};

/// Names of ports, protocols, users and groups with their numbers.
///
/// The tools resolve names when a rule is loaded, and print numbers (for a protocol, its name). [`FromStr`](std::str::FromStr) of
/// [`Rule`] keeps names verbatim. Such a rule can be loaded, but never equals its saved form, so [`diff`](crate::diff) writes its
/// chain each time.
///
/// ```
/// use kernlink_iptables_restore::{Family, Names, Rule};
///
/// let names = Names::new().with_services("smtp 25/tcp mail # Simple Mail Transfer\n");
/// let rule = names.parse_rule("-p tcp --dport mail -j ACCEPT")?;
/// let saved: Rule = "-p tcp -m tcp --dport 25 -j ACCEPT".parse()?;
/// assert!(rule.is_equivalent(&saved, Family::Ipv4));
/// # Ok::<(), kernlink_iptables_restore::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Port by name and protocol.
    services: HashMap<String, HashMap<String, u16>>,
    /// Port by name; the first entry of that name.
    first_services: HashMap<String, u16>,
    protocols: HashMap<String, u8>,
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

/// What the value of an option can contain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ports of the rule's protocol: ranges with `:`, separated by commas.
    Ports,
    /// As `Ports`, of any protocol.
    AnyPorts,
    /// `PORT`, `PORT-PORT` or `PORT-PORT/PORT`.
    NatPorts,
    /// As `NatPorts`, after an address and a colon.
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
    /// Only the protocol names that are built into the tools.
    #[must_use]
    pub fn new() -> Self {
        Names::default()
    }

    /// The names of this host: `/etc/services`, `/etc/protocols`, `/etc/passwd` and `/etc/group`, read now.
    ///
    /// A file that cannot be read is taken as empty, as the tools do. Other sources of the name service switch
    /// (`/etc/nsswitch.conf`) are not used.
    #[must_use]
    pub fn from_host() -> Self {
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

    /// Adds services in the format of `/etc/services`: `smtp 25/tcp mail`. The first entry for a name and protocol is used. Lines in
    /// another format are skipped.
    #[must_use]
    pub fn with_services(mut self, text: &str) -> Self {
        for mut fields in entries(text) {
            let (Some(name), Some(number)) = (fields.next(), fields.next()) else {
                continue;
            };
            let Some((port, protocol)) = number.split_once('/') else {
                continue;
            };
            let Ok(port) = port.parse() else { continue };
            for name in [name].into_iter().chain(fields) {
                self.first_services.entry(name.into()).or_insert(port);
                let ports = self.services.entry(name.into()).or_default();
                ports.entry(protocol.into()).or_insert(port);
            }
        }
        self
    }

    /// Adds protocols in the format of `/etc/protocols`: `ospf 89 OSPFIGP`. The first entry for a name is used. Lines in another format
    /// are skipped.
    #[must_use]
    pub fn with_protocols(mut self, text: &str) -> Self {
        for mut fields in entries(text) {
            let (Some(name), Some(number)) = (fields.next(), fields.next()) else {
                continue;
            };
            let Ok(number) = number.parse() else { continue };
            for name in [name].into_iter().chain(fields) {
                self.protocols.entry(name.into()).or_insert(number);
            }
        }
        self
    }

    /// Adds users in the format of `/etc/passwd`.
    #[must_use]
    pub fn with_users(mut self, text: &str) -> Self {
        add_ids(&mut self.users, text);
        self
    }

    /// Adds groups in the format of `/etc/group`.
    #[must_use]
    pub fn with_groups(mut self, text: &str) -> Self {
        add_ids(&mut self.groups, text);
        self
    }

    /// Parses the text after `-A CHAIN` as [`FromStr`](std::str::FromStr) of [`Rule`] does, and replaces names by numbers. Hexadecimal
    /// and octal numbers in the same options become decimal.
    ///
    /// Resolved are names of ports (`-m tcp`, `udp`, `sctp`, `dccp`, `multiport`, `conntrack`, `ipvs`; `DNAT`, `SNAT`,
    /// `MASQUERADE`, `REDIRECT`, `TPROXY`), of protocols, and of users and groups (`-m owner`). Unknown names are kept verbatim;
    /// the tool may refuse them. Names of hosts are kept verbatim too: the saved form has one rule for each address of the host.
    ///
    /// # Errors
    ///
    /// As for [`Rule`]'s `FromStr`.
    pub fn parse_rule(&self, text: &str) -> Result<Rule, Error> {
        // Checks the whole text.
        let rule: Rule = text.parse()?;
        let mut tokens = Vec::new();
        if split(text, &mut tokens).is_err() {
            return Ok(rule);
        }
        self.resolve(&mut tokens);
        Ok(Rule::from_tokens(&tokens))
    }

    /// The port of a service by its name or alias; without a protocol, that of the first entry.
    #[must_use]
    pub fn port(&self, service: &str, protocol: Option<Protocol>) -> Option<u16> {
        match protocol {
            Some(protocol) => {
                let protocol = protocol.normal_form().to_string();
                self.services.get(service)?.get(&protocol).copied()
            }
            None => self.first_services.get(service).copied(),
        }
    }

    /// The protocol with this number or name. Names that are built into the tools take precedence.
    pub fn protocol(&self, text: &str) -> Option<Protocol> {
        if let Some(number) = integer(text) {
            return u8::try_from(number).ok().map(Protocol::Number);
        }
        let known = text.parse().ok();
        known.or_else(|| self.protocols.get(text).copied().map(Protocol::Number))
    }

    fn resolve(&self, tokens: &mut [Token<'_>]) {
        let protocol = tokens.windows(2).find_map(|pair| match pair {
            [option, value] if !option.is_quoted && !option.is_match_option => {
                let is_protocol = matches!(option.text.as_ref(), "-p" | "--protocol" | "--proto");
                is_protocol.then(|| self.protocol(&value.text))?
            }
            _ => None,
        });
        for at in 1..tokens.len() {
            let (before, rest) = tokens.split_at_mut(at);
            let (Some(option), Some(value)) = (before.last(), rest.first_mut()) else {
                continue;
            };
            let kind = Some(&option.text)
                .filter(|_| !option.is_quoted)
                .and_then(|text| Kind::of(text));
            let resolved = match kind {
                None => None,
                Some(Kind::Ports) => self.ports(&value.text, protocol),
                Some(Kind::AnyPorts) => self.ports(&value.text, None),
                Some(Kind::NatPorts) => self.nat_ports(&value.text),
                Some(Kind::NatAddress) => self.nat_address(&value.text),
                // A value that parses without names is kept as written.
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

    /// A list of ranges with every port as a decimal number; `None` if a name is unknown.
    fn ports(&self, text: &str, protocol: Option<Protocol>) -> Option<String> {
        let end = |port: &str| match port {
            "" => Some(String::new()),
            _ => self.resolve_port(port, protocol).map(|port| port.to_string()),
        };
        let range = |range: &str| {
            let ends: Option<Vec<String>> = range.split(':').map(end).collect();
            Some(ends?.join(":"))
        };
        let ranges: Option<Vec<String>> = text.split(',').map(range).collect();
        Some(ranges?.join(","))
    }

    fn resolve_port(&self, text: &str, protocol: Option<Protocol>) -> Option<u16> {
        match integer(text) {
            Some(number) => u16::try_from(number).ok(),
            None => self.port(text, protocol),
        }
    }

    /// Only a single port and the base of a range can be names, because names can contain dashes.
    fn nat_ports(&self, text: &str) -> Option<String> {
        if let Some(port) = self.resolve_port(text, None) {
            return Some(port.to_string());
        }
        let (range, base) = match text.split_once('/') {
            Some((range, base)) => (range, Some(self.resolve_port(base, None)?)),
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
            // Several colons without brackets are an IPv6 address.
            None => text.find(':').filter(|_| colons == 1 && !text.contains(']'))?,
        };
        let (address, ports) = (text.get(..at)?, text.get(at + 1..)?);
        Some(format!("{address}:{}", self.nat_ports(ports)?))
    }
}

/// The fields of each line, without comments.
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

/// Parses a number as `strtoul` with base 0: decimal, hexadecimal after `0x`, octal after `0`.
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
    use kernlink_base::Family;

    use super::*;

    fn names() -> Names {
        Names::new()
            .with_services("# comment\nssh 22/tcp\nftp-data\t20/tcp\nftp 21/tcp\nbroken x/tcp\nalone\nsmtp 25/tcp mail #x\ntricky 1/udp\ntricky 2/tcp\nntp 123/udp\n")
            .with_protocols("ospfigp 89 OSPF-X\nbroken x\n")
            .with_users("root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:33:33::/:/bin/false\n")
            .with_groups("www:x:34:\n")
    }

    #[test]
    fn names_become_the_numbers_that_the_tools_print() {
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
            let rule = names().parse_rule(written).unwrap();
            let saved: Rule = saved.parse().unwrap();
            assert!(
                rule.is_equivalent(&saved, Family::Ipv4),
                "{written}: {rule} does not equal {saved}"
            );
        }
    }

    #[test]
    fn unknown_names_are_kept_verbatim() {
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
            assert_eq!(names().parse_rule(text), text.parse(), "{text}");
        }
        assert!(names().parse_rule("-p tcp\n").is_err());
        // The value of another option is not resolved.
        let rule = names().parse_rule("-m comment --comment ssh -j ssh").unwrap();
        assert_eq!(rule.to_string(), "-m comment --comment ssh -j ssh");
    }

    #[test]
    fn built_in_protocol_names_are_resolved_without_files() {
        let rule = Names::new().parse_rule("-p mh --dport smtp").unwrap();
        assert_eq!(
            rule.normal_form(Family::Ipv6).to_string(),
            "-p mobility-header --dport smtp"
        );
        assert_eq!(Names::new().protocol("ipv6-mh").map(Protocol::number), Some(135));
        assert_eq!(Names::new().protocol("300"), None);
    }
}
