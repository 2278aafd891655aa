//! Decides when automatic compactions are due, by age or by number of revisions, like the two modes of etcd.
//!
//! # Example: a retention of 10 hours
//!
//! ```text
//!  0:00  the revision is recorded, and then every 6 minutes (a tenth of an hour); 101 records are kept
//! 10:00  the first compaction, to the revision of 0:00
//! 11:00  the next one, to the revision of 0:54: the oldest record is one period and one tenth of an hour old
//! ```
//!
//! With a retention of less than an hour all intervals are shorter. For example, with a retention of 5
//! minutes the revision is recorded every 30 seconds, and a compaction is made every 5 minutes. Every member
//! records revisions, and the leader compacts; a failed compaction is tried again at the next record.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use numbers::Revision;

/// Interval at which the revision mode checks the number of revisions.
const REVISION_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Maximum time between two compactions of the periodic mode.
const PERIODIC_INTERVAL_MAX: Duration = Duration::from_secs(60 * 60);
/// Number of revisions that the periodic mode records within one interval.
const NOTES_PER_INTERVAL: u32 = 10;

/// Mode of automatic compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    /// No automatic compaction.
    Off,
    /// Compacts revisions older than this duration, which is not zero.
    Periodic(Duration),
    /// Compacts all revisions except the newest ones, of which this many are kept; not 0.
    Revision(u64),
}

/// Decides when to compact, and to which revision.
#[derive(Debug)]
pub struct Compactor {
    mode: AutoCompaction,
    /// Recorded revisions, oldest first.
    notes: VecDeque<Revision>,
    next: Instant,
    /// Time of the last compaction, or of the start. The next compaction is due when `interval` has passed
    /// since.
    since: Instant,
    interval: Duration,
    /// Revision to which the last compaction was requested, and the time of the request. The periodic mode
    /// resets it to `None` once the state is compacted to that revision.
    asked: Option<(Revision, Instant)>,
}

impl Compactor {
    /// Returns a compactor that starts at `now`.
    pub fn new(mode: AutoCompaction, now: Instant) -> Compactor {
        let interval = match mode {
            AutoCompaction::Periodic(period) => period,
            AutoCompaction::Off | AutoCompaction::Revision(_) => Duration::ZERO,
        };
        let mut compactor =
            Compactor { mode, notes: VecDeque::new(), next: now, since: now, interval, asked: None };
        if let AutoCompaction::Revision(_) = mode {
            compactor.next = now + REVISION_INTERVAL;
        }
        compactor
    }

    /// Returns the time between two checks; `None` if automatic compaction is off.
    fn pause(&self) -> Option<Duration> {
        match self.mode {
            AutoCompaction::Off => None,
            AutoCompaction::Revision(_) => Some(REVISION_INTERVAL),
            AutoCompaction::Periodic(period) => Some(period.min(PERIODIC_INTERVAL_MAX) / NOTES_PER_INTERVAL),
        }
    }

    /// Returns the revision to compact to if a compaction is due. Followers call this, too, so that a member
    /// that becomes the leader already has the recorded revisions. `compacted` is the compact revision of the
    /// state. `leads` is true if this member may propose a compaction.
    pub fn due(
        &mut self,
        revision: Revision,
        compacted: Revision,
        leads: bool,
        now: Instant,
    ) -> Option<Revision> {
        let pause = self.pause()?;
        if now < self.next {
            return None;
        }
        self.next = now + pause;
        let target = match self.mode {
            AutoCompaction::Off => return None,
            AutoCompaction::Revision(keep) => revision - i64::try_from(keep).unwrap_or(i64::MAX),
            AutoCompaction::Periodic(period) => {
                if let Some((_, at)) = self.asked.take_if(|(to, _)| *to <= compacted) {
                    // The state was compacted to the revision that this member requested, no matter which
                    // leader proposed it. The next compaction is due one interval after the request.
                    (self.since, self.interval) = (at, period.min(PERIODIC_INTERVAL_MAX));
                }
                let oldest = self.notes.front().copied();
                self.notes.push_back(revision);
                let kept = period.as_nanos() / pause.as_nanos().max(1) + 1;
                if self.notes.len() as u128 > kept {
                    self.notes.pop_front();
                }
                oldest.filter(|_| now.saturating_duration_since(self.since) >= self.interval)?
            }
        };
        if !leads || target <= compacted || target <= Revision::FIRST {
            return None;
        }
        self.asked = Some((target, now));
        Some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn revision_mode_keeps_so_many_and_tries_again() {
        let start = Instant::now();
        let mut compactor = Compactor::new(AutoCompaction::Revision(100), start);
        let mut due = |revision, compacted, leads, looks| {
            compactor.due(Revision(revision), Revision(compacted), leads, start + REVISION_INTERVAL * looks)
        };
        assert_eq!(due(500, 0, true, 0), None);
        assert_eq!(due(500, 0, true, 1), Some(Revision(400)));
        assert_eq!(due(500, 0, true, 2), Some(Revision(400)), "the first one failed");
        assert_eq!(due(500, 400, true, 3), None);
        assert_eq!(due(501, 400, false, 4), None, "another member leads");
        assert_eq!(due(501, 400, true, 5), Some(Revision(401)));
        assert_eq!(due(50, 0, true, 6), None);
    }

    /// Returns minutes and revisions of the compactions within `minutes` minutes, with ten changes a minute.
    /// Each compaction succeeds, except those that are due in one of the minutes in `fails`.
    fn compactions(period: Duration, minutes: u32, fails: &[u32], leads_from: u32) -> Vec<(u32, i64)> {
        let start = Instant::now();
        let mut compactor = Compactor::new(AutoCompaction::Periodic(period), start);
        let (mut compacted, mut all) = (Revision(0), Vec::new());
        for minute in 0..=minutes {
            let revision = Revision(i64::from(minute) * 10 + 2);
            if let Some(to) =
                compactor.due(revision, compacted, minute >= leads_from, start + MINUTE * minute)
            {
                all.push((minute, to.0));
                if !fails.contains(&minute) {
                    compacted = to;
                }
            }
        }
        all
    }

    #[test]
    fn periodic_mode_compacts_when_etcd_does() {
        // The first compaction is to the state of an hour before; the next ones, every hour, are to the state
        // of an hour and six minutes before.
        assert_eq!(compactions(60 * MINUTE, 200, &[], 0), [(60, 2), (120, 542), (180, 1142)]);
        // A long period delays only the first compaction. After that, one is due every hour.
        assert_eq!(compactions(180 * MINUTE, 310, &[], 0), [(180, 2), (240, 542), (300, 1142)]);
        // With a short period, a compaction is due every ten minutes.
        assert_eq!(compactions(10 * MINUTE, 40, &[], 0), [(10, 2), (20, 92), (30, 192), (40, 292)]);
        // A failed compaction is tried again at the next check, and a new leader makes the compaction that is
        // due.
        assert_eq!(compactions(60 * MINUTE, 130, &[60, 66], 0), [(60, 2), (66, 2), (72, 62)]);
        assert_eq!(compactions(60 * MINUTE, 160, &[], 100), [(102, 362)]);
    }
}
