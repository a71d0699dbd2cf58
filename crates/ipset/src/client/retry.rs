//! Further attempts of operations that fail while another process lists a set.

use std::time::Duration;

use kernlink_netlink::Errno;

use crate::client::{Client, IpSets};
use crate::error::Error;
use crate::name::SetName;

/// Maximum number of attempts.
const ATTEMPTS: u32 = 12;
/// The pause after the first attempt. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(250);

impl Client {
    /// Calls `execute` again, up to [`ATTEMPTS`] times, while it fails because a set is being listed. It is not called again if
    /// `set`, or with `None` any set, is in use by a rule or list, unless the operation is a swap.
    pub(crate) fn retry_while_listed(
        &mut self,
        set: Option<&SetName>,
        mut execute: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut pause = FIRST_PAUSE;
        let mut outcome = execute(self);
        for _ in 1..ATTEMPTS {
            if !outcome.as_ref().is_err_and(Error::is_busy) {
                break;
            }
            let is_referenced = match set {
                Some(set) => self.header(set).is_ok_and(|header| header.stats.references > 0),
                None => self
                    .headers()
                    .is_ok_and(|headers| headers.iter().any(|header| header.stats.references > 0)),
            };
            // Sets in use can be swapped; a swap is refused only while a set is being listed.
            let is_swap = matches!(&outcome, Err(Error::Refused { refusal, .. }) if refusal.kernel.errno == Errno::EBUSY);
            if is_referenced && !is_swap {
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
            outcome = execute(self);
        }
        outcome
    }
}
