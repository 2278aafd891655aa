//! Compares how fast a stream reads history with how fast revisions are published ([`Pace`]).

use numbers::Revision;

/// Tells whether a stream reads history faster than new revisions are published, and how many revisions its
/// next slice has to contain for that.
///
/// A turn of the shard reads little history, so that it does not delay other calls. Meanwhile, new revisions
/// are published, which the stream has to read, too. So a slice contains at least twice as many revisions as were published since
/// the slice before, and a stream that would fall behind otherwise reads in this turn, however much other
/// streams have read. What is published while the stream waits for its client counts half, so that the next
/// slice makes up for it once, and not at all if twice the slice is published until the client has taken it:
/// such a client cannot catch up, and longer slices would only wait in memory.
///
/// # Example
///
/// ```text
///                                                  published through   the stream has read through
/// slice 1 reads 230 revisions, which are 64 KiB    50,000              1,230
/// 90 revisions are published; 2 * 90 < 230:        50,090
/// the stream waits as long as others have a turn
/// 60 more are published; 2 * 150 >= 230:           50,150
/// the stream reads in this turn, 300 at least                          1,530
/// ```
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Newest revision that was published when the limits of the last slice were set, raised by what does not
    /// count of that published since.
    seen: Revision,
    /// Newest revision that was published when the limits of the slice that is being read were set, raised in
    /// the same way. Reading a slice takes several turns if values have to be fetched, or if the slice is a
    /// revision of many changes.
    begun: Revision,
    /// Newest revision that was published when the stream began to wait for its client, if it waits.
    paused_at: Option<Revision>,
    /// Number of revisions in the last slice.
    advanced: usize,
    /// Number of groups of watches that read one after the other.
    groups: usize,
}

/// Number of revisions of a stream's first slice, before that is known.
const FIRST_SLICE: usize = 128;

impl Pace {
    /// Returns the pace of a stream that begins to wait for its first slice.
    pub fn new(current: Revision) -> Pace {
        Pace { seen: current, begun: current, paused_at: None, advanced: FIRST_SLICE, groups: 1 }
    }

    /// Returns true if the stream waits for its client.
    pub fn is_paused(self) -> bool {
        self.paused_at.is_some()
    }

    /// Returns the pace of a stream that begins to wait for its client.
    pub fn paused(self, current: Revision) -> Pace {
        Pace { paused_at: Some(current), ..self }
    }

    /// Returns the pace of a stream whose client can take more.
    pub fn resumed(self, current: Revision) -> Pace {
        let Some(paused_at) = self.paused_at else { return self };
        let published = (current.0 - paused_at.0).max(0);
        let counted = if (published as usize) < 2 * self.advanced { (published + 1) / 2 } else { 0 };
        let left_out = published - counted;
        Pace { seen: self.seen + left_out, begun: self.begun + left_out, paused_at: None, ..self }
    }

    /// Returns the pace when the limits of a slice are set. A stream that still waits for its client may read,
    /// too: its wait so far is over, and another begins.
    pub fn at_slice(self, current: Revision) -> Pace {
        let pace = if self.is_paused() { self.resumed(current).paused(current) } else { self };
        Pace { begun: current, ..pace }
    }

    /// Returns the pace after a slice of so many revisions, for one of so many groups of watches.
    pub fn after_slice(self, advanced: usize, groups: usize) -> Pace {
        Pace { seen: self.begun, advanced, groups, ..self }
    }

    /// Returns the minimum number of revisions of the next slice; 0 if none was published.
    pub fn revisions_min(self, current: Revision) -> usize {
        let published = usize::try_from(current.0 - self.seen.0).unwrap_or(0);
        published.saturating_mul(2).saturating_mul(self.groups)
    }

    /// Returns the published revision from which on the stream falls behind if it goes on to read slices like
    /// the last one: it then has to read at once.
    pub fn due(self) -> Revision {
        self.seen + self.advanced.div_ceil(2 * self.groups).max(1) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(advanced: usize, groups: usize) -> Pace {
        Pace::new(Revision(40_000)).at_slice(Revision(50_000)).after_slice(advanced, groups)
    }

    #[test]
    fn a_slice_has_twice_what_was_published_since_the_one_before() {
        let at = |pace: Pace, at| (pace.revisions_min(Revision(at)), Revision(at) >= pace.due());
        assert_eq!(at(pace(230, 1), 50_000), (0, false));
        assert_eq!(at(pace(230, 1), 50_090), (180, false));
        assert_eq!(at(pace(230, 1), 50_114), (228, false));
        assert_eq!(at(pace(230, 1), 50_115), (230, true));
        assert_eq!(at(pace(1, 1), 50_001), (2, true));
        // Three groups of watches take turns.
        assert_eq!(at(pace(230, 3), 50_050), (300, true));
        // A state without the newest changes, because users have to be checked first, is none to fall behind.
        assert_eq!(at(pace(230, 1), 49_000), (0, false));
    }

    #[test]
    fn what_is_published_while_the_client_is_waited_for_counts_half_or_not_at_all() {
        let at = |pace: Pace, at| pace.revisions_min(Revision(at));
        let resumed = pace(230, 1).resumed(Revision(50_100));
        assert_eq!(at(resumed, 50_100), 200);
        let resumed = pace(230, 1).paused(Revision(50_003)).resumed(Revision(50_103));
        assert_eq!(at(resumed, 50_113), 2 * 3 + 100 + 2 * 10);
        let resumed = pace(230, 1).paused(Revision(50_003)).resumed(Revision(50_463));
        assert_eq!(at(resumed, 50_473), 2 * 3 + 2 * 10);
        // What is published while values are fetched counts.
        let fetched = pace(230, 1).at_slice(Revision(50_200));
        assert_eq!(at(fetched.after_slice(10, 1), 50_300), 200);
        let paused = pace(230, 1).paused(Revision(50_100)).at_slice(Revision(50_200)).after_slice(10, 1);
        assert_eq!(at(paused.resumed(Revision(50_210)), 50_210), 10);
        let fetched = fetched.paused(Revision(50_250)).resumed(Revision(50_290));
        assert_eq!(at(fetched.after_slice(10, 1), 50_300), 2 * 50 + 40 + 2 * 10);
    }
}
