//! Remembers why a received state was refused, if the next attempt would probably be refused for the same
//! reason: [`Refusals`].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ReceiveError;

/// Pause after the first refusal for a reason; it doubles with each further refusal for the same reason.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Maximum pause after a refusal.
const PAUSE_MAX: Duration = Duration::from_secs(5 * 60);

/// The last refusal of a state for a reason that lies in the state itself or in this member's disk.
///
/// A leader sends its whole state again at its next heartbeat, whatever the response was. Without a pause,
/// both members would handle gigabytes each time, only for the state to be refused again. So attempts during
/// a pause are refused before the data are received. The pause doubles with each refusal, and an accepted
/// state ends it.
#[derive(Default)]
pub(super) struct Refusals {
    last: Mutex<Option<Refused>>,
}

struct Refused {
    kind: &'static str,
    /// Text of the error.
    reason: String,
    pause: Duration,
    until: Instant,
}

impl Refusals {
    fn last(&self) -> MutexGuard<'_, Option<Refused>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the pause after the last refusal is not over.
    ///
    /// # Errors
    ///
    /// [`ReceiveError::RefusedBefore`] with the reason of the last refusal, and the time that is left.
    pub fn check(&self, now: Instant) -> Result<(), ReceiveError> {
        match &*self.last() {
            Some(refused) if now < refused.until => {
                Err(ReceiveError::RefusedBefore { reason: refused.reason.clone(), left: refused.until - now })
            }
            _ => Ok(()),
        }
    }

    /// Records the result of an attempt.
    pub fn note(&self, ended: Result<(), &ReceiveError>, now: Instant) {
        let mut last = self.last();
        let Err(error) = ended else {
            *last = None;
            return;
        };
        let Some(kind) = error.lasting_kind() else { return };
        let again = last.as_ref().filter(|refused| refused.kind == kind);
        let pause = again.map_or(PAUSE_FIRST, |refused| (2 * refused.pause).min(PAUSE_MAX));
        *last = Some(Refused { kind, reason: error.to_string(), pause, until: now + pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::Shortage;

    #[test]
    fn pauses_grow_with_the_same_reason_and_end_with_a_state_that_is_taken() {
        let (refusals, mut now) = (Refusals::default(), Instant::now());
        let shortage = ReceiveError::NoRoom(Shortage { free_bytes: 1, wanted_bytes: 2 });
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert!(refusals.check(now).is_ok());
            refusals.note(Err(&shortage), now);
            assert!(refusals.check(now + Duration::from_secs(seconds) - Duration::from_millis(1)).is_err());
            // A refusal for a temporary reason starts no pause, and changes nothing.
            refusals.note(Err(&ReceiveError::NotNow(None)), now);
            now += Duration::from_secs(seconds);
        }
        refusals.note(Err(&ReceiveError::OtherEntry), now);
        assert!(refusals.check(now + PAUSE_FIRST).is_ok(), "another reason begins with the first pause");
        refusals.note(Err(&shortage), now);
        refusals.note(Ok(()), now);
        assert!(refusals.check(now).is_ok());
    }
}
