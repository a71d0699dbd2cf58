//! `-m statistic`: a share of the packets.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::wire::options::{Options, decimal, once};
use crate::wire::render::Printer;

/// Which share of the packets passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statistic {
    /// Each packet with this probability.
    Random(Probability),
    /// Packet number `packet` of every `every`.
    Nth {
        /// Length of a round; at least 1.
        every: u32,
        /// Which packet of a round, counted from 0; less than `every`.
        packet: u32,
    },
}

/// A probability in the kernel's own precision: a whole number of parts of 2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    const ONE: u32 = 0x8000_0000;

    /// The nearest probability the kernel can hold.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] outside 0 to 1.
    pub fn new(probability: f64) -> Result<Self, Error> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(Error::invalid(
                "probability",
                &probability.to_string(),
                "is not between 0 and 1",
            ));
        }
        // Between 0 and 2^31, so the cast is exact.
        Ok(Probability((probability * f64::from(Self::ONE)).round() as u32))
    }

    /// Parts of 2^31: 0 to 2^31.
    pub fn parts(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Probability {
    /// With the eleven digits of `iptables-save`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.11}", f64::from(self.0) / f64::from(Self::ONE))
    }
}

impl FromStr for Probability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let value = text.parse::<f64>().ok().filter(|_| plain);
        Probability::new(value.ok_or_else(|| Error::invalid("probability", text, "is not a decimal number"))?)
    }
}

impl Statistic {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Condition<Self>> {
        let (mut mode, mut probability, mut every, mut packet) = (None, None, None, None);
        while let Some(flag) = options.flag() {
            match flag.name {
                "--mode" => {
                    flag.plain()?;
                    once(&mut mode, options.next()?)?;
                }
                "--probability" => once(&mut probability, flag.sign(options.value()?))?,
                "--every" => once(&mut every, flag.sign(decimal(options.next()?)?))?,
                "--packet" => {
                    flag.plain()?;
                    once(&mut packet, decimal(options.next()?)?)?;
                }
                _ => {
                    options.give_back(&flag);
                    break;
                }
            }
        }
        match (mode?, probability, every, packet) {
            ("random", Some(probability), None, None) => Some(probability.map(Statistic::Random)),
            ("nth", None, Some(every), packet) => Some(every.map(|every| Statistic::Nth {
                every,
                packet: packet.unwrap_or(0),
            })),
            _ => None,
        }
    }

    pub(super) fn print(test: &Condition<Self>, out: &mut Printer<'_>) {
        match test.value() {
            Statistic::Random(probability) => {
                out.word("-m statistic --mode random");
                out.required("--probability", test, |out, _| out.value(probability));
            }
            Statistic::Nth { every, packet } => {
                out.word("-m statistic --mode nth");
                out.required("--every", test, |out, _| out.value(every));
                out.option("--packet", &Some(packet));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_print_with_the_kernels_precision() {
        for (written, saved) in [
            ("0.33333", "0.33332999982"),
            ("0.5", "0.50000000000"),
            ("1", "1.00000000000"),
            ("0.3333333333", "0.33333333349"),
        ] {
            let probability: Probability = written.parse().unwrap();
            assert_eq!(probability.to_string(), saved);
            assert_eq!(saved.parse(), Ok(probability));
        }
        for bad in ["", "1.1", "-0.1", "nan", "1e-3", "."] {
            assert!(bad.parse::<Probability>().is_err(), "{bad}");
        }
    }
}
