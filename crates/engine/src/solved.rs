//! The codes of the events about failed operations, and the event that a problem is solved.

use kernlink_services::{Event, Reason};

/// The code of the event about operations that failed for one cause ([`Reason::DataPath`]).
pub const OPERATION_FAILED: &str = "OperationFailed";
/// The code of the event that what another one reported is not true any more.
pub const SOLVED: &str = "Solved";

/// The event that what another one reported is not true any more.
pub(crate) fn solved_event(event: Event) -> Event {
    let text = format!("solved, or no longer needed: {}", event.reason);
    Event {
        reason: Reason::DataPath { code: SOLVED, text },
        ..event
    }
}
