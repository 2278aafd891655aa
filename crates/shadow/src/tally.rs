//! Counts the results of a shadow's comparisons and measures its lag, for its metrics and its log.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use telemetry::metrics::ShadowMetrics;

/// Counts of comparisons and snapshots since the process has started, and the last comparison.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) equal: u64,
    pub(crate) different: u64,
    pub(crate) skipped: u64,
    pub(crate) snapshots: u64,
    /// The first revision at which a comparison with this data directory was different before the process started.
    earlier: Option<i64>,
    /// Revision and time of the last comparison that was equal or different.
    last: Option<(i64, SystemTime)>,
}

impl Tally {
    /// Returns the counts of a process that has just started. `earlier` is the first revision at which a comparison with
    /// its data directory was different.
    pub(crate) fn of(earlier: Option<i64>) -> Tally {
        Tally { earlier, ..Tally::default() }
    }

    /// Records that a comparison at this revision was equal.
    pub(crate) fn equal(&mut self, revision: i64) {
        self.equal += 1;
        self.last = Some((revision, SystemTime::now()));
    }

    /// Records that a comparison at this revision was different.
    pub(crate) fn different(&mut self, revision: i64) {
        self.different += 1;
        self.last = Some((revision, SystemTime::now()));
    }

    /// Returns the summary for the log.
    pub(crate) fn summary(&self) -> String {
        let made = self.equal + self.different;
        let through =
            self.last.map_or(String::new(), |(revision, _)| format!(", through revision {revision}"));
        let since_start = match (made, self.different) {
            (0, _) => "no comparison yet".to_owned(),
            (1, 0) => format!("1 comparison, equal{through}"),
            (_, 0) => format!("{made} comparisons, all equal{through}"),
            (_, different) => format!("{made} comparisons, {different} of them DIFFERENT{through}"),
        };
        match self.earlier {
            Some(revision) => {
                format!("{since_start}; before this start one was DIFFERENT, first at revision {revision}")
            }
            None => since_start,
        }
    }

    /// Copies the counts to the metrics of the copy, which begin at 0 with each start of the copy.
    pub(crate) fn publish(&self, metrics: &ShadowMetrics) {
        let counts = [("equal", self.equal), ("different", self.different), ("skipped", self.skipped)];
        for (result, count) in counts {
            metrics.comparisons.with(&[result]).raise_to(count);
        }
        metrics.snapshots.raise_to(self.snapshots);
        if let Some((revision, at)) = self.last {
            metrics.compared_revision.set(revision);
            metrics.compared_at.set_u64(at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
        }
    }
}

/// Lag of the copy behind its source. Shared by the tasks that find it out and the one that publishes it, so that it
/// also grows while the session waits for something.
#[derive(Debug)]
pub(crate) struct Lag {
    known: Mutex<Known>,
    /// Time for which the knowledge that the copy has everything counts as news.
    patience: Duration,
}

/// The newest known revision of the source, and when the copy had everything.
#[derive(Debug)]
struct Known {
    /// Newest revision of the source that is known.
    source_revision: i64,
    /// Revision that the source had at a time, until the copy has reached it.
    asked: Option<(i64, Instant)>,
    /// Last time for which it is known that the copy had all revisions of the source.
    current_at: Instant,
}

impl Lag {
    /// Returns the lag of a copy of which nothing is known yet. `patience` is the time between two questions to the
    /// source, with some margin.
    pub(crate) fn new(now: Instant, patience: Duration) -> Lag {
        Lag { known: Mutex::new(Known { source_revision: 0, asked: None, current_at: now }), patience }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the source had this revision at a time.
    pub(crate) fn source_had(&self, revision: i64, at: Instant) {
        let mut known = self.known();
        known.source_revision = known.source_revision.max(revision);
        // The earliest position is kept until it is reached: under load a later one may always be ahead.
        known.asked.get_or_insert((revision, at));
    }

    /// Records that the copy has reached this revision.
    pub(crate) fn reached(&self, revision: i64) {
        let mut known = self.known();
        known.source_revision = known.source_revision.max(revision);
        if let Some((_, at)) = known.asked.take_if(|(asked, _)| *asked <= revision) {
            known.current_at = known.current_at.max(at);
        }
    }

    /// Returns the newest revision of the source that is known.
    pub(crate) fn source_revision(&self) -> i64 {
        self.known().source_revision
    }

    /// Returns the time for which the copy has not been known to have all revisions; zero if it has them.
    pub(crate) fn time(&self, now: Instant) -> Duration {
        let known = self.known();
        let since = now.saturating_duration_since(known.current_at);
        if known.asked.is_none() && since < self.patience { Duration::ZERO } else { since }
    }

    /// Copies the lag to the metrics of a copy that has this revision.
    pub(crate) fn publish(&self, revision: i64, metrics: &ShadowMetrics) {
        self.reached(revision);
        let source_revision = self.source_revision();
        metrics.revision.set(revision);
        metrics.source_revision.set(source_revision);
        metrics.lag_revisions.set((source_revision - revision).max(0));
        metrics.lag_seconds.set_u64(self.time(Instant::now()).as_secs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_when_anything_was_different() {
        let mut tally = Tally { skipped: 4, ..Tally::default() };
        assert_eq!(tally.summary(), "no comparison yet");
        tally.equal(7);
        assert_eq!(tally.summary(), "1 comparison, equal, through revision 7");
        tally.equal(9);
        assert_eq!(tally.summary(), "2 comparisons, all equal, through revision 9");
        tally.different(11);
        assert_eq!(tally.summary(), "3 comparisons, 1 of them DIFFERENT, through revision 11");
        let mut tally = Tally::of(Some(5));
        tally.equal(7);
        let summary = "1 comparison, equal, through revision 7; before this start one was DIFFERENT, first at revision 5";
        assert_eq!(tally.summary(), summary);
    }

    #[test]
    fn the_lag_grows_while_the_source_is_silent_or_the_copy_is_behind() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let lag = Lag::new(start, Duration::from_secs(12));
        lag.source_had(10, at(5));
        lag.reached(9);
        assert_eq!((lag.time(at(8)), lag.source_revision()), (Duration::from_secs(8), 10));
        lag.reached(10);
        assert_eq!(lag.time(at(8)), Duration::ZERO);
        assert_eq!(lag.time(at(20)), Duration::from_secs(15), "nothing was heard since");
        lag.source_had(11, at(21));
        lag.source_had(12, at(22));
        lag.reached(11);
        assert_eq!((lag.time(at(23)), lag.source_revision()), (Duration::ZERO, 12));
    }
}
