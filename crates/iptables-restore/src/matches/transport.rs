//! `-m tcp`, `-m udp`, `-m sctp`: ports and flags.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::network::PortRange;
use crate::wire::options::{Options, decimal, once};
use crate::wire::render::Printer;

/// Ports, flags and options of TCP. All tests are optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpMatch {
    /// `--sport`: source ports.
    pub source_ports: Option<Condition<PortRange>>,
    /// `--dport`: destination ports.
    pub destination_ports: Option<Condition<PortRange>>,
    /// `--tcp-option`: number of an option the header holds, 1 to 255.
    pub option: Option<Condition<u8>>,
    /// `--tcp-flags`; `--syn` is one such test.
    pub flags: Option<Condition<TcpFlagsTest>>,
}

/// Which flags are looked at, and which of those must be set while the others are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpFlagsTest {
    /// Flags looked at.
    pub examined: TcpFlags,
    /// Flags that must be set; those examined and not in here must be clear.
    pub set: TcpFlags,
}

impl TcpFlagsTest {
    /// `--syn`: SYN set; RST, ACK and FIN clear.
    pub const SYN: TcpFlagsTest = TcpFlagsTest {
        examined: TcpFlags(0x17),
        set: TcpFlags(0x02),
    };
}

/// A set of [`TcpFlag`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(u8);

/// A flag of the TCP header. The number is its bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpFlag {
    /// FIN
    Fin = 0x01,
    /// SYN
    Syn = 0x02,
    /// RST
    Rst = 0x04,
    /// PSH
    Psh = 0x08,
    /// ACK
    Ack = 0x10,
    /// URG
    Urg = 0x20,
}

const FLAGS: [(TcpFlag, &str); 6] = [
    (TcpFlag::Fin, "FIN"),
    (TcpFlag::Syn, "SYN"),
    (TcpFlag::Rst, "RST"),
    (TcpFlag::Psh, "PSH"),
    (TcpFlag::Ack, "ACK"),
    (TcpFlag::Urg, "URG"),
];

impl TcpFlags {
    /// These flags.
    pub fn new(flags: impl IntoIterator<Item = TcpFlag>) -> Self {
        TcpFlags(flags.into_iter().fold(0, |bits, flag| bits | flag as u8))
    }

    /// Whether `flag` is in the set.
    pub fn contains(self, flag: TcpFlag) -> bool {
        self.0 & flag as u8 != 0
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("NONE");
        }
        let mut separator = "";
        for (flag, name) in FLAGS {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl FromStr for TcpFlags {
    type Err = Error;

    /// Names joined by commas, `ALL` or `NONE`, in any case.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut flags = TcpFlags::default();
        for word in text.split(',') {
            match FLAGS.iter().find(|(_, name)| name.eq_ignore_ascii_case(word)) {
                Some((flag, _)) => flags.0 |= *flag as u8,
                None if word.eq_ignore_ascii_case("ALL") => flags.0 = 0x3f,
                None if word.eq_ignore_ascii_case("NONE") => {}
                None => {
                    return Err(Error::invalid(
                        "tcp flags",
                        text,
                        "names a flag that there is not",
                    ));
                }
            }
        }
        Ok(flags)
    }
}

impl TcpMatch {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut tcp = TcpMatch::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--sport" | "--source-port" => once(&mut tcp.source_ports, flag.sign(options.value()?))?,
                "--dport" | "--destination-port" => {
                    once(&mut tcp.destination_ports, flag.sign(options.value()?))?;
                }
                "--tcp-option" => once(&mut tcp.option, flag.sign(decimal(options.next()?)?))?,
                "--tcp-flags" => {
                    let test = TcpFlagsTest {
                        examined: options.value()?,
                        set: options.value()?,
                    };
                    once(&mut tcp.flags, flag.sign(test))?;
                }
                "--syn" => once(&mut tcp.flags, flag.sign(TcpFlagsTest::SYN))?,
                _ => {
                    options.give_back(&flag);
                    break;
                }
            }
        }
        Some(tcp)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-m tcp");
        out.test("--sport", &self.source_ports);
        out.test("--dport", &self.destination_ports);
        out.test("--tcp-option", &self.option);
        out.condition("--tcp-flags", &self.flags, |out, test| {
            out.value(test.examined);
            out.value(test.set);
        });
    }

    /// The tools leave out a test of the whole range, and one that looks at no flag.
    pub(super) fn normal_form(mut self) -> Self {
        self.source_ports = restricting(self.source_ports);
        self.destination_ports = restricting(self.destination_ports);
        self.flags = self
            .flags
            .filter(|test| *test != Condition::Is(TcpFlagsTest::default()));
        self
    }
}

/// The test, unless every port passes it.
fn restricting(ports: Option<Condition<PortRange>>) -> Option<Condition<PortRange>> {
    ports.filter(|test| {
        *test
            != Condition::Is(PortRange {
                first: 0,
                last: u16::MAX,
            })
    })
}

macro_rules! ports_only {
    ($(#[$doc:meta])* $name:ident, $option:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name {
            /// `--sport`: source ports.
            pub source_ports: Option<Condition<PortRange>>,
            /// `--dport`: destination ports.
            pub destination_ports: Option<Condition<PortRange>>,
        }

        impl $name {
            pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
                let mut ports = $name::default();
                while let Some(flag) = options.flag() {
                    match flag.name {
                        "--sport" | "--source-port" => {
                            once(&mut ports.source_ports, flag.sign(options.value()?))?;
                        }
                        "--dport" | "--destination-port" => {
                            once(&mut ports.destination_ports, flag.sign(options.value()?))?;
                        }
                        _ => {
                            options.give_back(&flag);
                            break;
                        }
                    }
                }
                Some(ports)
            }

            pub(super) fn print(&self, out: &mut Printer<'_>) {
                out.word($option);
                out.test("--sport", &self.source_ports);
                out.test("--dport", &self.destination_ports);
            }
        }
    };
}

ports_only! {
    /// Ports of UDP. Both tests are optional.
    UdpMatch, "-m udp"
}

impl UdpMatch {
    /// The tools leave out a test of the whole range.
    pub(super) fn normal_form(mut self) -> Self {
        self.source_ports = restricting(self.source_ports);
        self.destination_ports = restricting(self.destination_ports);
        self
    }
}

ports_only! {
    /// Ports of SCTP. Both tests are optional; tests of chunks stay verbatim. Unlike those of TCP and UDP, a test of the
    /// whole range is printed.
    SctpMatch, "-m sctp"
}
