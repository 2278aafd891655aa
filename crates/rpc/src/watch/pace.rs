//! How fast a stream reads history ([`Pace`]).

use numbers::Revision;

/// Tells whether a stream reads history faster than new revisions are published, and how many revisions its
/// next slice has to contain for that.
///
/// A turn of the shard reads little history, so that nobody waits for it. But every revision that is published
/// meanwhile is one more to read. So a slice contains at least twice as many revisions as were published since
/// the slice before, and a stream that would fall behind otherwise reads in this turn, however much other
/// streams have read.
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
    /// Newest revision that was published when the stream read its last slice, or when it began to wait for
    /// its first one.
    seen: Revision,
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
        Pace { seen: current, advanced: FIRST_SLICE, groups: 1 }
    }

    /// Returns the pace after a slice of so many revisions, for one of so many groups of watches.
    pub fn after_slice(current: Revision, advanced: usize, groups: usize) -> Pace {
        Pace { seen: current, advanced, groups }
    }

    /// Returns the minimum number of revisions of the next slice; 0 if none was published.
    pub fn revisions_min(self, current: Revision) -> usize {
        let published = usize::try_from(current.0 - self.seen.0).unwrap_or(0);
        published.saturating_mul(2).saturating_mul(self.groups)
    }

    /// Returns true if the stream would fall behind if it continued to read slices like the last one, each
    /// after as many published revisions as now.
    pub fn is_too_slow(self, current: Revision) -> bool {
        let needed = self.revisions_min(current);
        needed > 0 && needed >= self.advanced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_has_twice_what_was_published_since_the_one_before() {
        let pace = Pace::after_slice(Revision(50_000), 230, 1);
        assert_eq!((pace.revisions_min(Revision(50_000)), pace.is_too_slow(Revision(50_000))), (0, false));
        assert_eq!((pace.revisions_min(Revision(50_090)), pace.is_too_slow(Revision(50_090))), (180, false));
        assert_eq!((pace.revisions_min(Revision(50_150)), pace.is_too_slow(Revision(50_150))), (300, true));
        // Three groups of watches take turns.
        let pace = Pace::after_slice(Revision(50_000), 230, 3);
        assert_eq!((pace.revisions_min(Revision(50_050)), pace.is_too_slow(Revision(50_050))), (300, true));
        // A state without the newest changes, because users have to be checked first, is none to fall behind.
        assert_eq!((pace.revisions_min(Revision(49_000)), pace.is_too_slow(Revision(49_000))), (0, false));
    }
}
