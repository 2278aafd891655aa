//! Removing the versions that compactions made unreadable: when it begins, how it continues, and which requests wait for its
//! end. [`Removal`] decides; the machine removes, and `long_reads` says how far it may go.

use std::time::{Duration, Instant};

use numbers::Revision;

use super::Reply;

/// Pause before a removal looks again whether readers that it waits for have ended.
const READERS_PAUSE: Duration = Duration::from_millis(200);
/// Time that a removal waits for watches that are behind; after it they are canceled as compacted.
const WATCHES_TIMEOUT: Duration = Duration::from_secs(10);

/// The next step of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is nothing to do now.
    Nothing,
    /// Publish a view: [`Removal::through`] has changed, and a removal begins.
    Publish,
    /// A slice is to be removed.
    Remove,
}

/// The result of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sliced {
    /// It has removed some versions, and there are more.
    Some,
    /// Everything is gone that nobody reads.
    Waits,
    /// Everything is gone.
    All,
}

/// A compaction that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compaction {
    /// The compact revision before it.
    pub previous: Revision,
    /// The compact revision that it set.
    pub revision: Revision,
}

/// The removal of what compactions made unreadable. It goes on in slices, with pauses between them, once all watches have
/// come as far as the compaction's publication and what it will remove is published.
///
/// It removes nothing itself: it says when.
pub(super) struct Removal {
    /// Between two slices.
    pause: Duration,
    /// The compact revision.
    compacted: Revision,
    /// Compactions that are not published yet.
    unpublished: Vec<Compaction>,
    is_open: bool,
    next: Instant,
    /// Changes above this revision are all still there.
    through: Revision,
    /// The revision of the last compaction's publication: its removal begins once all watches have come so far.
    after: Revision,
    asked: Instant,
    /// Answers to compactions that wait for the removal.
    waiters: Vec<Reply>,
}

impl Removal {
    /// Returns the state after a start, with this compact revision. A removal that a crash cut short goes on.
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

    /// The state at the revision `current` is compacted to this one now. `is_hashed` says whether its hash is to be computed
    /// once it is published.
    pub fn compacted(&mut self, revision: Revision, current: Revision, is_hashed: bool, now: Instant) {
        let previous = std::mem::replace(&mut self.compacted, revision);
        if is_hashed {
            self.unpublished.push(Compaction { previous, revision });
        }
        (self.is_open, self.next, self.after, self.asked) = (true, now, current, now);
    }

    /// Notes that another member's state replaced the present one, with these compact and current revisions. The sender
    /// may have removed anything compacted: watches that need it are canceled instead of being told a part.
    pub fn restored(&mut self, compacted: Revision, current: Revision, now: Instant) {
        (self.compacted, self.through) = (compacted, compacted);
        (self.is_open, self.next, self.after, self.asked) = (true, now, current, now);
        // They were compactions of a state that is no longer there.
        self.unpublished.clear();
    }

    /// Changes above this revision are all still there.
    pub fn through(&self) -> Revision {
        self.through
    }

    /// Returns the time until the next step of a removal; `None` if there is nothing to remove.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        self.is_open.then(|| self.next.saturating_duration_since(now))
    }

    /// Takes out the compactions that are not published yet, in their order.
    pub fn take_unpublished(&mut self) -> Vec<Compaction> {
        std::mem::take(&mut self.unpublished)
    }

    /// Returns the next step. `all_saw` says if all watches have been told of everything up to a revision.
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
        // Published before anything is removed.
        self.through = compacted;
        Step::Publish
    }

    /// A slice was removed. Returns the answers that waited for this, and how long the whole removal took, if it is at its
    /// end. The request for the removal does not wait for readers, as in etcd.
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

    /// Keeps an answer until the removal under way is at its end.
    pub fn keep(&mut self, reply: Reply) {
        self.waiters.push(reply);
    }

    /// Ends it: the state changes no more.
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
        // Watches that lag behind too long are overtaken.
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
