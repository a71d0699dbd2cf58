//! What an entry carries besides its dimensions.

use std::fmt;
use std::str::FromStr;

use crate::name::SetName;
use crate::parse::{self, ParseError};
use crate::uapi::IPSET_MAX_COMMENT_SIZE;

/// What an entry carries besides its dimensions. Each option needs its extension in the set.
///
/// Two entries with the same dimensions and different options are the same member of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryOptions {
    /// Time until the entry goes; listed: what is left. Needs a set with time-outs; `None` takes the set's own.
    pub timeout: Option<Timeout>,
    /// Packet counter to start with; listed: its value. Needs a set with counters; `None` starts at 0.
    pub packets: Option<u64>,
    /// Byte counter to start with; listed: its value. Needs a set with counters; `None` starts at 0.
    pub bytes: Option<u64>,
    /// A remark. Needs a set with comments.
    pub comment: Option<Comment>,
    /// Mark that the `SET` target puts on packets. Needs a set with skbinfo.
    pub skb_mark: Option<SkbMark>,
    /// Traffic class that the `SET` target puts on packets; 0:0 is none. Needs a set with skbinfo.
    pub skb_priority: Option<SkbPriority>,
    /// Hardware queue that the `SET` target puts on packets; 0 is none. Needs a set with skbinfo.
    pub skb_queue: Option<u16>,
    /// The entry is an exception: packets that it matches do not match the set. Only types with a network.
    pub nomatch: bool,
    /// Where the entry goes in a `list:set`; `None` is the end. Never listed.
    pub position: Option<Position>,
}

impl EntryOptions {
    pub(crate) const NONE: EntryOptions = EntryOptions {
        timeout: None,
        packets: None,
        bytes: None,
        comment: None,
        skb_mark: None,
        skb_priority: None,
        skb_queue: None,
        nomatch: false,
        position: None,
    };

    /// What the kernel does not tell apart from nothing becomes nothing.
    pub(crate) fn normalised(mut self) -> Self {
        self.skb_mark = self.skb_mark.filter(|mark| *mark != SkbMark { mark: 0, mask: 0 });
        self.skb_priority = self
            .skb_priority
            .filter(|priority| *priority != SkbPriority { major: 0, minor: 0 });
        self.skb_queue = self.skb_queue.filter(|queue| *queue != 0);
        self.comment = self.comment.filter(|comment| !comment.as_bytes().is_empty());
        self
    }

    /// Without what changes by itself: counters and what is left of the time-out.
    pub(crate) fn configured(&self) -> Self {
        EntryOptions {
            timeout: None,
            packets: None,
            bytes: None,
            ..self.clone()
        }
    }

    /// Reads the words after the element; `None` for a word that is not the name of an option of entries.
    pub(crate) fn set_word<'a>(
        &mut self,
        word: &str,
        next: &mut dyn FnMut() -> Option<&'a str>,
    ) -> Result<bool, ParseError> {
        let missing = || ParseError::new("option", word, "requires a value");
        match word {
            "nomatch" => self.nomatch = true,
            "timeout" => self.timeout = Some(next().ok_or_else(missing)?.parse()?),
            "packets" => {
                self.packets = Some(parse::number("packets", next().ok_or_else(missing)?, u64::MAX)?)
            }
            "bytes" => self.bytes = Some(parse::number("bytes", next().ok_or_else(missing)?, u64::MAX)?),
            "comment" => self.comment = Some(Comment::new(next().ok_or_else(missing)?)?),
            "skbmark" => self.skb_mark = Some(next().ok_or_else(missing)?.parse()?),
            "skbprio" => self.skb_priority = Some(next().ok_or_else(missing)?.parse()?),
            "skbqueue" => {
                let queue = parse::number("skbqueue", next().ok_or_else(missing)?, u64::from(u16::MAX))?;
                self.skb_queue = Some(u16::try_from(queue).unwrap_or_default());
            }
            "before" | "after" => {
                let text = next().ok_or_else(missing)?;
                let name =
                    SetName::new(text).map_err(|error| ParseError::new("set name", text, error.reason()))?;
                self.position = Some(if word == "before" {
                    Position::Before(name)
                } else {
                    Position::After(name)
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The words as `ipset save` prints them, each with a space in front; before and after as `ipset add` takes them.
impl fmt::Display for EntryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

impl EntryOptions {
    /// `wildcard` is part of the element, yet printed among the options.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, wildcard: &str) -> fmt::Result {
        match &self.position {
            Some(Position::Before(name)) => write!(f, " before {name}")?,
            Some(Position::After(name)) => write!(f, " after {name}")?,
            None => {}
        }
        if let Some(timeout) = self.timeout {
            write!(f, " timeout {timeout}")?;
        }
        if self.nomatch {
            f.write_str(" nomatch")?;
        }
        f.write_str(wildcard)?;
        if let Some(packets) = self.packets {
            write!(f, " packets {packets}")?;
        }
        if let Some(bytes) = self.bytes {
            write!(f, " bytes {bytes}")?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " comment \"{comment}\"")?;
        }
        if let Some(mark) = self.skb_mark {
            write!(f, " skbmark {mark}")?;
        }
        if let Some(priority) = self.skb_priority {
            write!(f, " skbprio {priority}")?;
        }
        if let Some(queue) = self.skb_queue {
            write!(f, " skbqueue {queue}")?;
        }
        Ok(())
    }
}

/// A time-out in seconds, 0 to 2 147 483; 0 never ends. More would be cut in silence by the kernel and is refused here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeout(u32);

impl Timeout {
    /// Never ends.
    pub const PERMANENT: Timeout = Timeout(0);
    /// The longest time-out: `IPSET_MAX_TIMEOUT` of
    /// [`ip_set.h`](https://elixir.bootlin.com/linux/v6.12/source/include/linux/netfilter/ipset/ip_set.h).
    pub const MAX: Timeout = Timeout(2_147_483);

    /// A time-out of so many seconds; 0 never ends.
    ///
    /// # Errors
    ///
    /// More than [`Self::MAX`].
    pub fn from_secs(seconds: u32) -> Result<Self, ParseError> {
        if seconds > Self::MAX.0 {
            return Err(ParseError::new(
                "timeout",
                seconds,
                format_args!("is more than {} seconds", Self::MAX.0),
            ));
        }
        Ok(Timeout(seconds))
    }

    /// What a kernel lists, whatever it is.
    pub(crate) fn listed(seconds: u32) -> Self {
        Timeout(seconds)
    }

    /// Seconds; 0 never ends.
    pub fn as_secs(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0)
    }
}

impl FromStr for Timeout {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let seconds = parse::number("timeout", text, u64::from(Self::MAX.0))?;
        Ok(Timeout(u32::try_from(seconds).unwrap_or_default()))
    }
}

/// A remark on an entry: at most 255 bytes without NUL. The kernel takes any other bytes; the notation of ipset(8)
/// has no way to write a quotation mark, so [`Comment::new`] refuses one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(Box<[u8]>);

impl Comment {
    /// A comment that ipset(8) can print and read.
    ///
    /// # Errors
    ///
    /// Longer than 255 bytes (`IPSET_MAX_COMMENT_SIZE`), a NUL, a quotation mark or a line break.
    pub fn new(text: &str) -> Result<Self, ParseError> {
        if text.contains(['"', '\n', '\r']) {
            return Err(ParseError::new(
                "comment",
                text,
                "must not contain a quotation mark or a line break",
            ));
        }
        Self::from_bytes(text.as_bytes())
    }

    /// Any comment that the kernel takes.
    ///
    /// # Errors
    ///
    /// Longer than 255 bytes (`IPSET_MAX_COMMENT_SIZE`), or a NUL.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        let error = |reason: &str| Err(ParseError::new("comment", String::from_utf8_lossy(bytes), reason));
        if bytes.len() > IPSET_MAX_COMMENT_SIZE {
            return error("has more than 255 bytes (IPSET_MAX_COMMENT_SIZE)");
        }
        if bytes.contains(&0) {
            return error("must not contain a NUL byte");
        }
        Ok(Comment(bytes.into()))
    }

    /// The bytes, without a NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// A packet mark with the bits of it that count: `0x1/0xff`, or `0x1` for all bits.
#[doc(alias = "skbmark")]
#[doc(alias = "IPSET_ATTR_SKBMARK")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkbMark {
    /// The mark.
    pub mark: u32,
    /// The bits that are set from `mark`; `0xffffffff` is all.
    pub mask: u32,
}

impl fmt::Display for SkbMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.mark)?;
        if self.mask == u32::MAX {
            Ok(())
        } else {
            write!(f, "/{:#x}", self.mask)
        }
    }
}

impl fmt::Debug for SkbMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SkbMark {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let part = |part: &str| {
            let digits = part.strip_prefix("0x").or_else(|| part.strip_prefix("0X"))?;
            if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                u32::from_str_radix(digits, 16).ok()
            } else {
                None
            }
        };
        let (mark, mask) = text.split_once('/').map_or((text, "0xffffffff"), |parts| parts);
        part(mark)
            .zip(part(mask))
            .map(|(mark, mask)| SkbMark { mark, mask })
            .ok_or_else(|| {
                ParseError::new(
                    "skbmark",
                    text,
                    "is not a mark such as 0x1, or mark/mask, of 32 bits",
                )
            })
    }
}

/// A traffic class, `major:minor` in hexadecimal.
#[doc(alias = "skbprio")]
#[doc(alias = "IPSET_ATTR_SKBPRIO")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkbPriority {
    /// Number of the queueing discipline.
    pub major: u16,
    /// Number of the class in it.
    pub minor: u16,
}

impl fmt::Display for SkbPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.major, self.minor)
    }
}

impl fmt::Debug for SkbPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SkbPriority {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let part = |part: &str| {
            let plain = part.bytes().all(|byte| byte.is_ascii_hexdigit());
            u16::from_str_radix(part, 16).ok().filter(|_| plain)
        };
        text.split_once(':')
            .and_then(|(major, minor)| {
                Some(SkbPriority {
                    major: part(major)?,
                    minor: part(minor)?,
                })
            })
            .ok_or_else(|| {
                ParseError::new(
                    "skbprio",
                    text,
                    "is not major:minor, each a hexadecimal number of 16 bits",
                )
            })
    }
}

/// The place of a member in a `list:set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// Right before this member.
    #[doc(alias = "IPSET_FLAG_BEFORE")]
    Before(SetName),
    /// Right after this member.
    #[doc(alias = "IPSET_ATTR_NAMEREF")]
    After(SetName),
}
