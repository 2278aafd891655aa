//! When users or roles change, or a key of tokens has gone, every watch is asked for again: nobody sees what was done after their permission went.
//!
//! A round asks for all watches, a bounded part of them in each turn, always by the newest users and roles. Once it is over,
//! what had been published when it began may be handed out: every watch was asked for by those users and roles, or by newer
//! ones. What was published since waits for the next round, if users or roles changed meanwhile. So changes that come faster
//! than a round takes delay events by two rounds, and do not keep them back for ever.
//!
//! # Example: 3000 watches, 1024 in a turn
//!
//! ```text
//! published                        round                            handed out
//! revision 70, auth revision 7                                      through 70
//! revision 74, auth revision 8     begins at 74: watches 1 .. 1024
//! revision 76, auth revision 9     .. 2048, by auth revision 9
//! revision 79, auth revision 9     .. 3000: over                    through 74
//!                                  begins at 79                     nothing new
//!                                  over; no change since            through 79, and what follows
//! ```

use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use api::Status;
use api::etcdserverpb::WatchResponse;
use planted::Bug;
use replica::shared::Published;

use super::Hub;
use crate::watch::permit;
use crate::watch::queued::Queued;
use crate::watch::stream::Stream;

/// Which users and roles all watches were allowed by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reviewed {
    is_enabled: bool,
    auth_revision: u64,
    /// [`replica::credentials::Credentials::withdrawals`].
    withdrawals: u64,
}

impl Reviewed {
    /// Those of a state, after so many withdrawals of sessions.
    pub fn by(state: &Published, withdrawals: u64) -> Reviewed {
        Reviewed { is_enabled: state.auth.is_enabled(), auth_revision: state.auth.revision(), withdrawals }
    }
}

/// A round that is under way.
pub(super) struct Round {
    /// The state when it began: what may be handed out once it is over.
    begun: Arc<Published>,
    withdrawals: u64,
    /// The last stream that there was then. Those made later were asked for by a state as new.
    last: u64,
    /// The stream, and the watch of it, behind which the round goes on.
    behind: (u64, i64),
}

/// Work between two looks at other calls, in watches that are asked for and permissions that are joined for it: half a
/// millisecond.
const REVIEWED_AT_ONCE: usize = 1024;

impl Hub {
    /// Asks for the next watches, if users or roles changed since all were. Returns the newest state that may be handed out,
    /// history included; `None` while there is none.
    pub(super) fn review(&self, newest: &Arc<Published>) -> Option<Arc<Published>> {
        if self.is_reviewed_by(newest) {
            self.reviewing.take();
            self.cleared.take();
            return Some(Arc::clone(newest));
        }
        let mut round = self.reviewing.take().unwrap_or_else(|| Round {
            begun: Arc::clone(newest),
            withdrawals: self.shared.clients.credentials.withdrawals(),
            last: self.serial.get(),
            behind: (0, i64::MIN),
        });
        if self.go_round(newest, &mut round) {
            self.reviewed.set(Reviewed::by(&round.begun, round.withdrawals));
            // Held only while another round is to come: a hub without work has no turn in which it would let go.
            *self.cleared.borrow_mut() = (!self.is_reviewed_by(newest)).then_some(round.begun);
        } else {
            *self.reviewing.borrow_mut() = Some(round);
        }
        self.readable(newest)
    }

    /// Returns the newest state that may be handed out, without asking for any watch.
    pub(super) fn readable(&self, newest: &Arc<Published>) -> Option<Arc<Published>> {
        if self.is_reviewed_by(newest) { Some(Arc::clone(newest)) } else { self.cleared.borrow().clone() }
    }

    /// Asks for some more watches; returns true if the round is over.
    fn go_round(&self, newest: &Published, round: &mut Round) -> bool {
        let mut left = if newest.auth.is_enabled() { REVIEWED_AT_ONCE } else { return true };
        while left > 0 {
            let (serial, behind) = round.behind;
            if serial > round.last {
                // The newest of all was a stream, without a watch behind it.
                return true;
            }
            let next = self
                .streams
                .borrow()
                .range(serial..=round.last)
                .next()
                .map(|(serial, stream)| (*serial, Rc::clone(stream)));
            let Some((found, stream)) = next else { return true };
            let behind = if found == serial { behind } else { i64::MIN };
            let mut refused: Vec<(i64, Status)> = Vec::new();
            // A stream without a watch counts, too.
            left -= 1;
            let mut last = None;
            for (id, watch) in stream.watches.borrow().range((Bound::Excluded(behind), Bound::Unbounded)) {
                if left == 0 {
                    break;
                }
                let (key, range_end) = watch.keys.as_request();
                let mut joined = 0;
                if let Err(status) = stream.permit.still_allows(&newest.auth, key, range_end, &mut joined)
                    && !planted::is(Bug::WatchNotReviewed)
                {
                    refused.push((id, status));
                }
                left = left.saturating_sub(1 + joined);
                last = Some(id);
            }
            for (id, refusal) in refused {
                self.withdraw(newest, &stream, id, &refusal);
            }
            round.behind = match last {
                Some(id) if left == 0 => (found, id),
                None if left == 0 => (found, behind),
                _ => (found + 1, i64::MIN),
            };
        }
        false
    }

    /// Returns true if all watches are allowed by the users and roles of this state.
    fn is_reviewed_by(&self, state: &Published) -> bool {
        self.reviewed.get() == Reviewed::by(state, self.shared.clients.credentials.withdrawals())
    }

    /// Ends a watch whose user may no longer read its keys.
    fn withdraw(&self, state: &Published, stream: &Rc<Stream>, id: i64, refusal: &Status) {
        let Some(watch) = stream.watches.borrow_mut().remove(id) else { return };
        self.forget(&watch);
        let response = WatchResponse {
            header: Some(self.header(state, self.revision.get())),
            watch_id: id,
            canceled: true,
            cancel_reason: permit::reason(refusal),
            ..WatchResponse::default()
        };
        stream.push(Queued::control(&response));
    }
}
