//! `-m statistic`: a fraction of the packets.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::wire::options::{Options, decimal, set_once};
use crate::wire::render::Printer;

/// The packets that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statistic {
    /// Every packet with this probability.
    Random(Probability),
    /// One of every `every` packets.
    Nth {
        /// At least 1.
        every: u32,
        /// Which of them, from 0; less than `every`.
        packet: u32,
    },
}

/// A probability as the kernel stores it: a multiple of 2^-31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    const ONE: u32 = 0x8000_0000;

    /// The nearest probability that the kernel can store.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] outside 0 to 1.
    pub fn new(probability: f64) -> Result<Self, Error> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(Error::invalid(
                "probability",
                &probability.to_string(),
                "expected a number from 0 to 1",
            ));
        }
        // Between 0 and 2^31, so the cast is exact.
        Ok(Probability((probability * f64::from(Self::ONE)).round() as u32))
    }

    /// The multiple of 2^-31: 0 to 2^31.
    #[must_use]
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
        Probability::new(
            value.ok_or_else(|| {
                Error::invalid("probability", text, "expected a decimal number from 0 to 1")
            })?,
        )
    }
}

impl Statistic {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Condition<Self>> {
        let (mut mode, mut probability, mut every, mut packet) = (None, None, None, None);
        while let Some(flag) = options.flag() {
            match flag.name {
                "--mode" => {
                    flag.not_negated()?;
                    set_once(&mut mode, options.next()?)?;
                }
                "--probability" => set_once(&mut probability, flag.condition(options.value()?))?,
                "--every" => set_once(&mut every, flag.condition(decimal(options.next()?)?))?,
                "--packet" => {
                    flag.not_negated()?;
                    set_once(&mut packet, decimal(options.next()?)?)?;
                }
                _ => {
                    options.put_back(&flag);
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
                out.literal("-m statistic --mode random");
                out.required("--probability", test, |out, _| out.value(probability));
            }
            Statistic::Nth { every, packet } => {
                out.literal("-m statistic --mode nth");
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
        for text in ["", "1.1", "-0.1", "nan", "1e-3", "."] {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
    }
}
