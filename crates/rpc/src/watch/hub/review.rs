//! When users or roles change, every watch is asked for again: nobody sees what was done after their permission went.

use std::ops::Bound;
use std::rc::Rc;

use api::etcdserverpb::WatchResponse;
use replica::shared::Published;

use super::Hub;
use crate::watch::permit;
use crate::watch::stream::{Queued, Stream};

/// Which users and roles all watches were allowed by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reviewed {
    is_enabled: bool,
    auth_revision: u64,
}

impl Reviewed {
    /// Those of a state.
    pub fn by(state: &Published) -> Reviewed {
        Reviewed { is_enabled: state.auth.is_enabled(), auth_revision: state.auth.revision() }
    }
}

/// A review that is under way: the stream and the watch behind which it goes on.
#[derive(Clone, Copy)]
pub(super) struct Review {
    by: Reviewed,
    behind: (u64, i64),
}

/// Watches that are asked for between two looks at other calls: half a millisecond.
const REVIEWED_AT_ONCE: usize = 1024;

impl Hub {
    /// Asks for the next watches, if users or roles changed since all were; returns true if none is left. Until then
    /// nothing is handed out, neither what changed now nor history.
    pub(super) fn review(&self, state: &Published) -> bool {
        let now = Reviewed::by(state);
        if self.reviewed.get() == now {
            self.reviewing.set(None);
            return true;
        }
        let mut behind = match self.reviewing.get() {
            Some(review) if review.by == now => review.behind,
            _ => (0, i64::MIN),
        };
        let mut left = if now.is_enabled { REVIEWED_AT_ONCE } else { 0 };
        let mut has_more = now.is_enabled;
        while has_more && left > 0 {
            let next = self
                .streams
                .borrow()
                .range(behind.0..)
                .next()
                .map(|(serial, stream)| (*serial, stream.clone()));
            let Some((serial, stream)) = next else {
                has_more = false;
                break;
            };
            if serial != behind.0 {
                behind = (serial, i64::MIN);
            }
            let mut ids: Vec<i64> = Vec::new();
            let mut looked_at = 0;
            let mut last = None;
            for (id, watch) in
                stream.watches.borrow().range((Bound::Excluded(behind.1), Bound::Unbounded)).take(left)
            {
                let (key, range_end) = watch.keys.as_request();
                if stream.permit.still_allows(&state.auth, key, range_end).is_err()
                    && !planted::is(planted::Bug::WatchNotReviewed)
                {
                    ids.push(*id);
                }
                looked_at += 1;
                last = Some(*id);
            }
            for id in ids {
                self.withdraw(state, &stream, id);
            }
            left -= looked_at.min(left);
            match last {
                Some(id) if left == 0 => behind = (serial, id),
                // A stream without a watch counts, too.
                _ => {
                    behind = (serial + 1, i64::MIN);
                    left = left.saturating_sub(1);
                }
            }
        }
        if has_more {
            self.reviewing.set(Some(Review { by: now, behind }));
            return false;
        }
        self.reviewed.set(now);
        self.reviewing.set(None);
        true
    }

    /// Returns true if all watches are allowed by the users and roles of this state.
    pub(super) fn is_reviewed_by(&self, state: &Published) -> bool {
        self.reviewed.get() == Reviewed::by(state)
    }

    /// Ends a watch whose user may no longer read its keys.
    fn withdraw(&self, state: &Published, stream: &Rc<Stream>, id: i64) {
        let Some(watch) = stream.watches.borrow_mut().remove(&id) else { return };
        let (key, range_end) = watch.keys.as_request();
        let refusal = stream.permit.still_allows(&state.auth, key, range_end).err();
        self.forget(&watch);
        let response = WatchResponse {
            header: Some(self.header(state, self.revision.get())),
            watch_id: id,
            canceled: true,
            cancel_reason: refusal.map(|refusal| permit::reason(&refusal)).unwrap_or_default(),
            ..WatchResponse::default()
        };
        stream.push(Queued::control(&response));
    }
}
