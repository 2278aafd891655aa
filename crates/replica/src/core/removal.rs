//! Decides when the versions of keys that compactions made unreadable are removed, and which compaction
//! requests are answered only after that. [`Removal`] decides; the state machine removes the versions, and
//! `long_reads` says which versions readers still need.

use std::time::{Duration, Instant};

use numbers::Revision;

use super::Reply;

/// Pause before a removal checks again if the readers that it waits for have ended.
const READERS_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time that a removal waits for watches that lag behind. After it the removal begins, and watches
/// that still need the removed versions are cancelled as compacted. If a newer compaction replaces a waiting
/// one, both wait until the time of the newer one has passed, so that a removal may begin up to twice this
/// time after its compaction.
const WATCHES_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of versions that are removed in one turn of the core, which takes about 0.3 ms.
const VERSIONS_PER_SLICE_MAX: u64 = 256;

/// Returns the number of versions to remove per turn, and the pause after it, for `--compaction-batch-limit`
/// versions and a pause of `--compaction-sleep-interval` after them. The result removes as many versions per
/// second in shorter turns, so that other requests wait less for one of them.
///
/// ```text
/// 1000 versions, then 10 ms      250 versions, then 2.5 ms
/// ```
pub(super) fn slices(batch_limit: u64, interval: Duration) -> (u64, Duration) {
    let slices = batch_limit.div_ceil(VERSIONS_PER_SLICE_MAX).max(1);
    (batch_limit.div_ceil(slices), interval / u32::try_from(slices).unwrap_or(u32::MAX))
}

/// The next step of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is to be done now.
    Nothing,
    /// Publish a view, because a removal begins and [`Removal::through`] has changed.
    Publish,
    /// Remove the next slice of versions.
    Remove,
}

/// The result of removing a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceOutcome {
    /// The slice has removed some versions, and more are left.
    Some,
    /// All versions are removed, except those that readers still need.
    Waits,
    /// All versions are removed.
    All,
}

/// A compaction that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compaction {
    /// Compact revision before this compaction.
    pub previous: Revision,
    /// Compact revision that this compaction set.
    pub revision: Revision,
}

/// A compaction whose removal has not begun, because watches that lag behind may still need versions that it
/// makes unreadable.
#[derive(Clone, Copy)]
struct Pending {
    /// Compact revision that the compaction set.
    revision: Revision,
    /// Current revision when the compaction was applied. The removal begins once all watches have received
    /// the changes up to this revision.
    after: Revision,
    since: Instant,
}

impl Pending {
    /// Returns true if the removal may begin: all watches have received the changes up to `after`, or
    /// [`WATCHES_TIMEOUT`] has passed.
    fn is_due(&self, all_saw: impl Fn(Revision) -> bool, now: Instant) -> bool {
        all_saw(self.after) || now.saturating_duration_since(self.since) >= WATCHES_TIMEOUT
    }
}

/// The removal of versions that compactions made unreadable. A removal begins once all watches have received
/// the changes up to the compaction, and a view with the new [`Removal::through`] is published. It then
/// continues in slices with pauses between them.
///
/// Compactions may follow each other faster than watches that lag behind catch up. In that case the oldest
/// compaction keeps its own time limit, and its removal begins without the newer compactions.
///
/// Worked example: compactions arrive every 4 s, and one watch reads nothing. At first the compactions of 0 s
/// and 4 s are pending; then the compaction of 8 s replaces that of 4 s. At 10 s the removal of the
/// compaction of 0 s begins, and the watch is cancelled. At the next step all remaining watches have received
/// everything, and the removal of the compaction of 8 s begins.
///
/// This type only decides what to remove and when; it removes nothing itself.
pub(super) struct Removal {
    /// Pause between two slices.
    pause: Duration,
    /// Compact revision of the state.
    compacted: Revision,
    /// The oldest compaction whose removal has not begun.
    oldest: Option<Pending>,
    /// The newest compaction after `oldest` whose removal has not begun. It replaces the compactions between
    /// the two.
    newest: Option<Pending>,
    /// True if this process has begun a removal (it has published `through`) and versions may be left to
    /// remove. False for a removal that a restart has interrupted: while a compaction is pending, such a
    /// removal waits and continues together with the removal of that compaction.
    has_slices: bool,
    /// Compactions that are not published yet.
    unpublished: Vec<Compaction>,
    is_open: bool,
    next: Instant,
    /// Compact revision up to which old versions may already have been removed. All versions that a
    /// compaction at this revision keeps are present.
    through: Revision,
    /// Time at which the compaction whose removal began last was applied.
    asked: Instant,
    /// Answers to compaction requests that wait for the removal up to a revision, in the order of the
    /// revisions.
    waiters: Vec<(Revision, Reply)>,
}

impl Removal {
    /// Returns the value for a member that starts and whose state has the compact revision `compacted`. A
    /// removal is assumed to be in progress, so that a removal that a crash has interrupted continues.
    pub fn new(compacted: Revision, pause: Duration, now: Instant) -> Removal {
        Removal {
            pause,
            compacted,
            oldest: None,
            newest: None,
            has_slices: false,
            unpublished: Vec::new(),
            is_open: true,
            next: now,
            through: compacted,
            asked: now,
            waiters: Vec::new(),
        }
    }

    /// Records that the state, whose current revision is `current`, was compacted to `revision`. `is_hashed`
    /// says whether the hash of the compacted state is to be computed once the compaction is published.
    pub fn compacted(&mut self, revision: Revision, current: Revision, is_hashed: bool, now: Instant) {
        let previous = std::mem::replace(&mut self.compacted, revision);
        if is_hashed {
            self.unpublished.push(Compaction { previous, revision });
        }
        let pending = Pending { revision, after: current, since: now };
        match self.oldest {
            Some(_) => self.newest = Some(pending),
            None => self.oldest = Some(pending),
        }
        (self.is_open, self.next) = (true, now);
    }

    /// Records that another member's state, with this compact revision, has replaced the current state. The
    /// sender may have removed any version that its compaction made unreadable. So `through` becomes this
    /// compact revision, and watches that need an older version are cancelled, because they would miss
    /// events.
    pub fn restored(&mut self, compacted: Revision, now: Instant) {
        (self.compacted, self.through) = (compacted, compacted);
        (self.oldest, self.newest, self.has_slices) = (None, None, false);
        (self.is_open, self.next, self.asked) = (true, now, now);
        // These compactions belong to the replaced state, so their hashes must not be computed from the new
        // one.
        self.unpublished.clear();
    }

    /// Returns the compact revision up to which old versions may already have been removed. All versions that
    /// a compaction at this revision keeps are present.
    pub fn through(&self) -> Revision {
        self.through
    }

    /// Returns the time until the next step of a removal; `None` if there is nothing to remove.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        self.is_open.then(|| self.next.saturating_duration_since(now))
    }

    /// Removes and returns the compactions that are not published yet, in order.
    pub fn take_unpublished(&mut self) -> Vec<Compaction> {
        std::mem::take(&mut self.unpublished)
    }

    /// Returns the next step. `all_saw` says whether all watches have received the changes up to a revision.
    pub fn step(&mut self, all_saw: impl Fn(Revision) -> bool, now: Instant) -> Step {
        if !self.is_open || now < self.next {
            return Step::Nothing;
        }
        self.next = now + self.pause;
        let Some(oldest) = self.oldest else { return Step::Remove };
        let begun = match self.newest {
            Some(newest) if newest.is_due(&all_saw, now) => {
                (self.oldest, self.newest) = (None, None);
                newest
            }
            _ if oldest.is_due(&all_saw, now) => {
                self.oldest = self.newest.take();
                oldest
            }
            _ if self.has_slices => return Step::Remove,
            _ => return Step::Nothing,
        };
        // The caller publishes `through` before it removes anything. So the readers of every published state
        // know up to which compact revision versions of keys may be missing.
        (self.through, self.has_slices, self.asked) = (begun.revision, true, begun.since);
        Step::Publish
    }

    /// Records the result of a slice. Returns the answers that waited for the removal, and the duration of
    /// the whole removal if it has ended.
    ///
    /// A compaction request does not wait for versions that readers still need, as in etcd. It does not wait
    /// for the versions of pending compactions either: while one watch lags behind frequent compactions,
    /// there may always be a pending compaction.
    pub fn sliced(&mut self, sliced: SliceOutcome, now: Instant) -> (Vec<Reply>, Option<Duration>) {
        let took = match sliced {
            SliceOutcome::Some => return (Vec::new(), None),
            // Nothing more can be removed for the compactions whose removal has begun. The remaining versions
            // belong to a compaction that still waits for watches. So the answers up to `through` are
            // returned now.
            SliceOutcome::Waits | SliceOutcome::All if self.oldest.is_some() => {
                let took =
                    std::mem::take(&mut self.has_slices).then(|| now.saturating_duration_since(self.asked));
                let through = self.through;
                let told = self.waiters.extract_if(.., |(revision, _)| *revision <= through);
                return (told.map(|(_, reply)| reply).collect(), took);
            }
            SliceOutcome::Waits => {
                self.next = now + READERS_PAUSE;
                None
            }
            SliceOutcome::All => {
                (self.is_open, self.has_slices) = (false, false);
                Some(now.saturating_duration_since(self.asked))
            }
        };
        let told = std::mem::take(&mut self.waiters);
        (told.into_iter().map(|(_, reply)| reply).collect(), took)
    }

    /// Returns true if a removal is in progress.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Keeps an answer until the versions below the current compact revision are removed.
    pub fn keep(&mut self, reply: Reply) {
        self.waiters.push((self.compacted, reply));
    }

    /// Ends the removal, because this member is out of service and its state no longer changes.
    pub fn stop(&mut self) {
        self.is_open = false;
    }
}

#[cfg(test)]
mod tests {
    use numbers::Term;

    use super::*;
    use crate::core::{ReplyBody, RequestId};

    const PAUSE: Duration = Duration::from_millis(10);

    fn reply() -> Reply {
        let request_id = RequestId { shard: 0, slot: 1, generation: 0 };
        Reply { request_id, revision: Revision(9), raft_term: Term(1), body: ReplyBody::Readable(None) }
    }

    #[test]
    fn a_turn_removes_a_bounded_number_of_versions_at_the_rate_of_the_flags() {
        let of = |limit, millis| slices(limit, Duration::from_millis(millis));
        assert_eq!(of(1000, 10), (250, Duration::from_micros(2500)));
        assert_eq!(of(256, 10), (256, Duration::from_millis(10)));
        assert_eq!(of(1, 10), (1, Duration::from_millis(10)));
        assert_eq!(of(1 << 20, 4096), (256, Duration::from_millis(1)));
        assert!(of(u64::MAX, 10).0 <= VERSIONS_PER_SLICE_MAX);
    }

    #[test]
    fn nothing_is_removed_before_all_watches_saw_and_it_is_published() {
        let now = Instant::now();
        let mut removal = Removal::new(Revision(0), PAUSE, now);
        removal.compacted(Revision(5), Revision(9), true, now);
        assert_eq!(removal.take_unpublished(), [Compaction { previous: Revision(0), revision: Revision(5) }]);
        assert_eq!(removal.step(|revision| revision < Revision(9), now), Step::Nothing);
        assert_eq!((removal.through(), removal.wait(now)), (Revision(0), Some(PAUSE)));
        assert_eq!(removal.step(|_| true, now), Step::Nothing, "it pauses");
        assert_eq!(removal.step(|revision| revision <= Revision(9), now + PAUSE), Step::Publish);
        assert_eq!(removal.through(), Revision(5));
        assert_eq!(removal.step(|_| false, now + 2 * PAUSE), Step::Remove);
        // A removal does not wait any longer for watches that lag behind for too long.
        removal.compacted(Revision(7), Revision(12), false, now);
        assert!(removal.take_unpublished().is_empty());
        assert_eq!(removal.step(|_| false, now + WATCHES_TIMEOUT), Step::Publish);
    }

    #[test]
    fn compactions_that_follow_each_other_quickly_do_not_keep_a_lagging_watch_for_ever() {
        let start = Instant::now();
        let mut removal = Removal::new(Revision(0), PAUSE, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, revision) in [(0, 5), (4, 6), (8, 7)] {
            removal.compacted(Revision(revision), Revision(10 + revision), false, at(seconds));
            removal.keep(reply());
            assert_eq!(removal.step(|_| false, at(seconds)), Step::Nothing, "after {seconds} s");
        }
        assert_eq!(removal.step(|_| false, at(10)), Step::Publish);
        assert_eq!(removal.through(), Revision(5), "a watch has 10 s after each compaction");
        assert_eq!(removal.step(|_| false, at(11)), Step::Remove);
        let (told, took) = removal.sliced(SliceOutcome::Waits, at(11));
        assert_eq!((told.len(), took), (1, Some(Duration::from_secs(11))), "the first is removed");
        let (told, took) = removal.sliced(SliceOutcome::Waits, at(11));
        assert_eq!((told.len(), took), (0, None), "the compactions behind it are not removed");
        assert_eq!(removal.step(|_| false, at(12)), Step::Nothing);
        assert_eq!(removal.step(|_| false, at(18)), Step::Publish);
        assert_eq!(removal.through(), Revision(7));
        assert_eq!(removal.step(|_| false, at(19)), Step::Remove);
        let (told, took) = removal.sliced(SliceOutcome::All, at(19));
        assert_eq!((told.len(), took), (2, Some(Duration::from_secs(11))));
    }

    #[test]
    fn watches_that_saw_the_newest_compaction_let_all_be_removed_at_once() {
        let now = Instant::now();
        let mut removal = Removal::new(Revision(0), PAUSE, now);
        removal.compacted(Revision(5), Revision(9), false, now);
        removal.compacted(Revision(7), Revision(12), false, now);
        assert_eq!(removal.step(|_| true, now), Step::Publish);
        assert_eq!(removal.through(), Revision(7));
        assert_eq!(removal.step(|_| true, now + PAUSE), Step::Remove);
    }

    #[test]
    fn no_hash_is_ordered_of_a_compaction_whose_state_was_replaced_before_it_was_published() {
        let now = Instant::now();
        let mut removal = Removal::new(Revision(0), PAUSE, now);
        removal.compacted(Revision(5), Revision(9), true, now);
        removal.restored(Revision(20), now);
        assert!(removal.take_unpublished().is_empty());
        removal.compacted(Revision(25), Revision(30), true, now);
        assert_eq!(
            removal.take_unpublished(),
            [Compaction { previous: Revision(20), revision: Revision(25) }]
        );
    }

    #[test]
    fn whoever_waits_hears_at_the_end_or_when_only_readers_are_left() {
        let now = Instant::now();
        let mut removal = Removal::new(Revision(5), PAUSE, now);
        removal.keep(reply());
        let (told, took) = removal.sliced(SliceOutcome::Some, now);
        assert!(told.is_empty() && took.is_none());
        let (told, took) = removal.sliced(SliceOutcome::Waits, now);
        assert!(told.len() == 1 && took.is_none() && removal.wait(now) == Some(READERS_PAUSE));
        removal.keep(reply());
        let (told, took) = removal.sliced(SliceOutcome::All, now + PAUSE);
        assert!(told.len() == 1 && took == Some(PAUSE) && removal.wait(now).is_none());
        assert!(!removal.is_open());
    }
}
