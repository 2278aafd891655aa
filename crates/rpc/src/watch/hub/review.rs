//! Checks every watch again after users or roles change, or after a key that signs tokens is removed. So a
//! watch receives no change that was made after its user lost the permission.
//!
//! A round checks all watches, a bounded number in each turn, always against the newest users and roles.
//! After the round, the state that was published when the round began may be delivered: every watch was
//! checked against the users and roles of that state, or against newer ones. If users or roles changed during
//! the round, later states wait for the next round. So even if users or roles change faster than a round
//! takes, events are delayed by two rounds at most.
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

/// Identifies the users, roles and sessions against which all watches were checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reviewed {
    is_enabled: bool,
    auth_revision: u64,
    /// Number of withdrawn sessions, see [`replica::credentials::Credentials::withdrawals`].
    withdrawals: u64,
}

impl Reviewed {
    /// Returns the value for the users and roles of a published state, after `withdrawals` withdrawals of
    /// sessions.
    pub fn by(state: &Published, withdrawals: u64) -> Reviewed {
        Reviewed { is_enabled: state.auth.is_enabled(), auth_revision: state.auth.revision(), withdrawals }
    }
}

/// A pass over all watches, in progress, which checks that the user of each watch still has the permission to
/// read its keys.
pub(super) struct Round {
    /// State that was published when the round began. It may be delivered after the round.
    begun: Arc<Published>,
    withdrawals: u64,
    /// Highest serial number that was in use when the round began; streams and watches share one counter. The
    /// round checks only streams with serial numbers up to this one. Streams and watches created later need
    /// no check in this round, because a watch is checked at its creation, against a state at least as new as
    /// `begun`.
    last: u64,
    /// Stream and watch that were checked last; the round continues after them.
    behind: (u64, i64),
}

/// Maximum work before other calls run, about half a millisecond: the number of watches checked plus the
/// number of permissions merged for the checks.
const REVIEWED_AT_ONCE: usize = 1024;

impl Hub {
    /// Checks the next watches if users or roles changed since all watches were checked. Returns the newest
    /// state whose changes, and history, may be delivered; `None` if there is no such state yet.
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
            // The old state is kept only if another round must follow. Without a round, the hub may have no
            // later turn in which it would free the state.
            *self.cleared.borrow_mut() = (!self.is_reviewed_by(newest)).then_some(round.begun);
        } else {
            *self.reviewing.borrow_mut() = Some(round);
        }
        self.readable(newest)
    }

    /// Returns the newest state that may be delivered, without checking any watch.
    pub(super) fn readable(&self, newest: &Arc<Published>) -> Option<Arc<Published>> {
        if self.is_reviewed_by(newest) { Some(Arc::clone(newest)) } else { self.cleared.borrow().clone() }
    }

    /// Checks some more watches; returns true if the round is finished.
    fn go_round(&self, newest: &Published, round: &mut Round) -> bool {
        let mut left = if newest.auth.is_enabled() { REVIEWED_AT_ONCE } else { return true };
        while left > 0 {
            let (serial, behind) = round.behind;
            if serial > round.last {
                // The stream that was checked last has the serial number `last`, and all its watches are
                // checked. No other stream is left for this round.
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
            // A stream without watches counts as work, too, because there may be many of them.
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

    /// Returns true if all watches were checked against the users and roles of this state.
    fn is_reviewed_by(&self, state: &Published) -> bool {
        self.reviewed.get() == Reviewed::by(state, self.shared.clients.credentials.withdrawals())
    }

    /// Cancels a watch whose user may no longer read its keys.
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
