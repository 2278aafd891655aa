//! Removal of versions that compactions made unreadable: when it begins, how it continues, and which requests
//! wait for its end. [`Removal`] decides; the machine removes the versions, and `long_reads` limits how far.

use std::time::{Duration, Instant};

use numbers::Revision;

use super::Reply;

/// Pause before a removal checks again if the readers that it waits for have ended.
const READERS_PAUSE: Duration = Duration::from_millis(200);
/// Time that a removal waits for watches that lag behind; after it they are canceled as compacted.
const WATCHES_TIMEOUT: Duration = Duration::from_secs(10);

/// The next step of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is to be done now.
    Nothing,
    /// Publish a view: [`Removal::through`] has changed, and a removal begins.
    Publish,
    /// Remove a slice of versions.
    Remove,
}

/// The result of removing a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sliced {
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

/// The removal of versions that compactions made unreadable. It begins once all watches have seen everything
/// up to the publication of the compaction and the new [`Removal::through`] is published, and then continues
/// in slices with pauses in between.
///
/// This type only decides when to remove; it removes nothing itself.
pub(super) struct Removal {
    /// Pause between two slices.
    pause: Duration,
    /// Compact revision of the state.
    compacted: Revision,
    /// Compactions that are not published yet.
    unpublished: Vec<Compaction>,
    is_open: bool,
    next: Instant,
    /// Revision above which all versions are still present.
    through: Revision,
    /// Current revision when the last compaction was applied; its removal begins once all watches have seen
    /// everything up to here.
    after: Revision,
    asked: Instant,
    /// Answers to compaction requests that wait for the removal.
    waiters: Vec<Reply>,
}

impl Removal {
    /// Returns the state after a start with this compact revision. It continues a removal that a crash
    /// interrupted.
    pub fn new(compacted: Revision, pause: Duration, now: Instant) -> Removal {
        Removal {
            pause,
            compacted,
            unpublished: Vec::new(),
            is_open: true,
            next: now,
            through: compacted,
            after: Revision(0),
            asked: now,
            waiters: Vec::new(),
        }
    }

    /// Records that the state, whose current revision is `current`, was compacted to `revision`. `is_hashed`
    /// says if the hash of the compaction is to be computed once it is published.
    pub fn compacted(&mut self, revision: Revision, current: Revision, is_hashed: bool, now: Instant) {
        let previous = std::mem::replace(&mut self.compacted, revision);
        if is_hashed {
            self.unpublished.push(Compaction { previous, revision });
        }
        (self.is_open, self.next, self.after, self.asked) = (true, now, current, now);
    }

    /// Records that another member's state, with these compact and current revisions, replaced the present
    /// one. The sender may have removed any compacted version: watches that need one are canceled, because
    /// they would miss events.
    pub fn restored(&mut self, compacted: Revision, current: Revision, now: Instant) {
        (self.compacted, self.through) = (compacted, compacted);
        (self.is_open, self.next, self.after, self.asked) = (true, now, current, now);
        // These compactions belong to the replaced state.
        self.unpublished.clear();
    }

    /// Returns the revision above which all versions are still present.
    pub fn through(&self) -> Revision {
        self.through
    }

    /// Returns the time until the next step of a removal; `None` if there is nothing to remove.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        self.is_open.then(|| self.next.saturating_duration_since(now))
    }

    /// Takes out the compactions that are not published yet, in order.
    pub fn take_unpublished(&mut self) -> Vec<Compaction> {
        std::mem::take(&mut self.unpublished)
    }

    /// Returns the next step. `all_saw` says if all watches were notified of everything up to a revision.
    pub fn step(
        &mut self,
        compacted: Revision,
        all_saw: impl FnOnce(Revision) -> bool,
        now: Instant,
    ) -> Step {
        if !self.is_open || now < self.next {
            return Step::Nothing;
        }
        self.next = now + self.pause;
        if self.through >= compacted {
            return Step::Remove;
        }
        let waited = now.saturating_duration_since(self.asked) >= WATCHES_TIMEOUT;
        if !all_saw(self.after) && !waited {
            return Step::Nothing;
        }
        // The revision is published before anything is removed.
        self.through = compacted;
        Step::Publish
    }

    /// Records the result of a slice. Returns the answers that waited for it, and the duration of the whole
    /// removal if it has ended. A compaction request does not wait for readers, as in etcd.
    pub fn sliced(&mut self, sliced: Sliced, now: Instant) -> (Vec<Reply>, Option<Duration>) {
        let took = match sliced {
            Sliced::Some => return (Vec::new(), None),
            Sliced::Waits => {
                self.next = now + READERS_PAUSE;
                None
            }
            Sliced::All => {
                self.is_open = false;
                Some(now.saturating_duration_since(self.asked))
            }
        };
        (std::mem::take(&mut self.waiters), took)
    }

    /// Returns true if there is something to remove.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Keeps an answer until the current removal has ended.
    pub fn keep(&mut self, reply: Reply) {
        self.waiters.push(reply);
    }

    /// Ends the removal, because the state does not change any more.
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
    fn nothing_is_removed_before_all_watches_saw_and_it_is_published() {
        let now = Instant::now();
        let mut removal = Removal::new(Revision(0), PAUSE, now);
        removal.compacted(Revision(5), Revision(9), true, now);
        assert_eq!(removal.take_unpublished(), [Compaction { previous: Revision(0), revision: Revision(5) }]);
        assert_eq!(removal.step(Revision(5), |revision| revision < Revision(9), now), Step::Nothing);
        assert_eq!((removal.through(), removal.wait(now)), (Revision(0), Some(PAUSE)));
        assert_eq!(removal.step(Revision(5), |_| true, now), Step::Nothing, "it pauses");
        assert_eq!(removal.step(Revision(5), |revision| revision <= Revision(9), now + PAUSE), Step::Publish);
        assert_eq!(removal.through(), Revision(5));
        assert_eq!(removal.step(Revision(5), |_| false, now + 2 * PAUSE), Step::Remove);
        // Watches that lag behind for too long are not waited for.
        removal.compacted(Revision(7), Revision(12), false, now);
        assert!(removal.take_unpublished().is_empty());
        assert_eq!(removal.step(Revision(7), |_| false, now + WATCHES_TIMEOUT), Step::Publish);
    }

    #[test]
    fn no_hash_is_ordered_of_a_compaction_whose_state_was_replaced_before_it_was_published() {
        let now = Instant::now();
        let mut removal = Removal::new(Revision(0), PAUSE, now);
        removal.compacted(Revision(5), Revision(9), true, now);
        removal.restored(Revision(20), Revision(30), now);
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
        let (told, took) = removal.sliced(Sliced::Some, now);
        assert!(told.is_empty() && took.is_none());
        let (told, took) = removal.sliced(Sliced::Waits, now);
        assert!(told.len() == 1 && took.is_none() && removal.wait(now) == Some(READERS_PAUSE));
        removal.keep(reply());
        let (told, took) = removal.sliced(Sliced::All, now + PAUSE);
        assert!(told.len() == 1 && took == Some(PAUSE) && removal.wait(now).is_none());
        assert!(!removal.is_open());
    }
}
