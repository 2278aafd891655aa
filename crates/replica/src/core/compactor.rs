//! Compaction without being asked: by age, or by number of revisions, as etcd's two modes do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use config::AutoCompaction;
use numbers::Revision;

/// Interval at which the revision mode looks.
const REVISION_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The longest time between two looks of the periodic mode's compactions.
const PERIODIC_INTERVAL_MAX: Duration = Duration::from_secs(60 * 60);
/// The periodic mode notes the revision this often within one interval.
const NOTES_PER_INTERVAL: u32 = 10;

/// Decides when to compact to which revision.
#[derive(Debug)]
pub struct Compactor {
    mode: AutoCompaction,
    /// Revisions noted, with the time.
    notes: VecDeque<(Instant, Revision)>,
    next: Instant,
    compacted: Revision,
}

impl Compactor {
    /// Begins now.
    pub fn new(mode: AutoCompaction, now: Instant) -> Compactor {
        let mut compactor = Compactor { mode, notes: VecDeque::new(), next: now, compacted: Revision(0) };
        compactor.next = now + compactor.pause().unwrap_or(Duration::from_secs(3600));
        compactor
    }

    /// The time between two looks; `None` when compaction is left to clients.
    fn pause(&self) -> Option<Duration> {
        match self.mode {
            AutoCompaction::Off => None,
            AutoCompaction::Revision(_) => Some(REVISION_INTERVAL),
            AutoCompaction::Periodic(period) => Some(period.min(PERIODIC_INTERVAL_MAX) / NOTES_PER_INTERVAL),
        }
    }

    /// The revision to compact to now, if it is time.
    pub fn due(&mut self, revision: Revision, now: Instant) -> Option<Revision> {
        let pause = self.pause()?;
        if now < self.next {
            return None;
        }
        self.next = now + pause;
        let target = match self.mode {
            AutoCompaction::Off => return None,
            AutoCompaction::Revision(keep) => revision - i64::try_from(keep).unwrap_or(i64::MAX),
            AutoCompaction::Periodic(period) => {
                self.notes.push_back((now, revision));
                let mut target = None;
                while let Some(&(noted, at)) = self.notes.front()
                    && now.saturating_duration_since(noted) >= period
                {
                    target = Some(at);
                    self.notes.pop_front();
                }
                target?
            }
        };
        if target <= self.compacted || target <= Revision::FIRST {
            return None;
        }
        self.compacted = target;
        Some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_mode_keeps_so_many() {
        let start = Instant::now();
        let mut compactor = Compactor::new(AutoCompaction::Revision(100), start);
        assert_eq!(compactor.due(Revision(500), start), None);
        assert_eq!(compactor.due(Revision(500), start + REVISION_INTERVAL), Some(Revision(400)));
        assert_eq!(compactor.due(Revision(500), start + REVISION_INTERVAL * 2), None);
        assert_eq!(compactor.due(Revision(501), start + REVISION_INTERVAL * 3), Some(Revision(401)));
    }

    #[test]
    fn periodic_mode_keeps_so_long() {
        let start = Instant::now();
        let period = Duration::from_secs(3600);
        let mut compactor = Compactor::new(AutoCompaction::Periodic(period), start);
        let mut compactions = Vec::new();
        for minute in 0..180u32 {
            let now = start + Duration::from_secs(60) * minute;
            if let Some(to) = compactor.due(Revision(i64::from(minute) * 10 + 2), now) {
                compactions.push((minute, to));
            }
        }
        // Noted every 6 minutes; what was noted an hour ago is the target.
        assert_eq!(compactions.first(), Some(&(66, Revision(62))));
        assert!(compactions.windows(2).all(|w| w[0].1 < w[1].1));
        assert!(compactions.iter().all(|(minute, to)| i64::from(*minute) * 10 + 2 - to.0 >= 600));
    }
}
