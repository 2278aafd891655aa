//! Registers long-running readers, and tells the core which versions of keys must not be removed because a
//! reader needs them.
//!
//! Large ranges and snapshots for clients, calls that wait for the disk, answers of writes, hashes,
//! checkpoints and transfers to other members read the state at one point in time slice by slice from the
//! newest view ([`machine::AsOf`]). Each such reader is registered here while it exists, with the versions
//! that it needs. Before the core physically removes versions, it checks here which ones are needed. A reader
//! may delay the removal only for a limited time ([`Reader::patience`]). After that it is ended: its next
//! slice fails. A range or a snapshot that advances gets more time ([`Reader::longest`]) as long as all
//! superseded versions, including those that no compaction has reached yet, take few bytes
//! ([`KEPT_BYTES_MAX`]).
//!
//! A reader delays only the removal of versions that compactions have made unreadable since the reader began.
//! It does not keep data in memory that is written while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use machine::{AsOf, Newest};
use mvcc::{Moment, View};
use numbers::Revision;

use crate::shared::{Published, Shared};

/// Maximum number of bytes of superseded versions that exist while a reader gets more time than its patience.
/// With a quota, an eighth of the quota, if that is less.
pub const KEPT_BYTES_MAX: u64 = 1 << 30;

/// The kind of a reader that reads an old state slice by slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A range on its way to a client, the reply to a write with previous values, or a call that waits for
    /// the disk.
    Range,
    /// HashKV, Hash, the comparison with another member, or the hash of a compaction.
    Hash,
    /// A snapshot for a client. Also this member's own state, while another member's state that builds on it
    /// is being received.
    Snapshot,
    /// The state on its way to another member. Its time limit counts from its last slice and not from its
    /// beginning. With a limit for the whole transfer, a large database could never be sent, because each
    /// attempt begins at the start of the database.
    Transfer,
    /// A checkpoint.
    Checkpoint,
    /// A watch that has caught up and whose newest events could not be delivered immediately.
    Watch,
}

impl Reader {
    /// Returns the time for which a reader of this kind may delay the removal of compacted versions, counted
    /// from its beginning or, for [`Reader::Transfer`], from its last slice (COMPAT-79, COMPAT-80).
    pub fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Reader::Watch => 60,
            Reader::Range => 5 * 60,
            Reader::Hash => 10 * 60,
            Reader::Snapshot | Reader::Transfer | Reader::Checkpoint => 30 * 60,
        })
    }

    /// Returns the time after its beginning for which a reader of this kind may delay the removal if it keeps
    /// few bytes and each of its slices begins within its patience after the slice before; `None` if that
    /// makes no difference for the kind.
    pub fn longest(self) -> Option<Duration> {
        let hours = match self {
            Reader::Range => 1,
            Reader::Snapshot => 6,
            Reader::Hash | Reader::Transfer | Reader::Checkpoint | Reader::Watch => return None,
        };
        Some(Duration::from_secs(hours * 60 * 60))
    }
}

/// The open readers of old states, and the versions that each of them keeps from removal.
#[derive(Default)]
pub struct LongReads {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    readers: BTreeMap<u64, Entry>,
    /// Ids of all readers, ordered by [`Entry::keeps`], so that the core, which checks often, visits only
    /// readers that delay a removal.
    by_keeps: BTreeSet<(Revision, u64)>,
    /// No reader exceeds its time limit before this time, so until then [`LongReads::removable`] does not
    /// search the readers. `None` if there are no readers.
    due: Option<Instant>,
    /// True if `due` is valid only while the readers keep few bytes.
    keeps_few: bool,
    next: u64,
    /// Number of times that [`LongReads::removable`] has searched all readers for some that have exceeded
    /// their time limits.
    #[cfg(test)]
    looks: usize,
}

impl Open {
    fn end(&mut self, number: u64) {
        if let Some(entry) = self.readers.remove(&number) {
            self.by_keeps.remove(&(entry.keeps, number));
        }
    }
}

struct Entry {
    reader: Reader,
    since: Instant,
    /// Time at which the newest slice of the reader began.
    came_on: Instant,
    /// Compact revision up to which this reader allows removal.
    keeps: Revision,
}

impl Entry {
    /// Returns the time from which on the reader may be ended if it delays a removal. `keeps_few` is true if
    /// superseded versions take few bytes.
    fn due(&self, keeps_few: bool) -> Instant {
        let patience = self.reader.patience();
        match self.reader.longest() {
            _ if self.reader == Reader::Transfer => self.came_on + patience,
            Some(longest) if keeps_few => (self.came_on + patience).min(self.since + longest),
            _ => self.since + patience,
        }
    }
}

/// Limit of a removal, returned by [`LongReads::removable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removable {
    /// Compact revision up to which versions may be removed: those that a compaction at this revision would
    /// remove.
    pub through: Revision,
    /// Number of readers that were ended to allow the removal.
    pub overtaken: usize,
}

impl LongReads {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a reader, and returns its number. Nothing is removed until [`LongReads::needs`] says which
    /// versions the reader needs.
    fn begin(&self, reader: Reader, since: Instant) -> u64 {
        let mut open = self.open();
        open.next += 1;
        let number = open.next;
        let entry = Entry { reader, since, came_on: since, keeps: Revision::MIN };
        // At its beginning, a reader is due at the same time whether it keeps few bytes or many.
        let due = entry.due(false);
        open.due = Some(open.due.map_or(due, |earliest| earliest.min(due)));
        open.readers.insert(number, entry);
        open.by_keeps.insert((Revision::MIN, number));
        number
    }

    /// Sets the compact revision up to which a reader allows removal. Returns false if the reader was ended.
    fn needs(&self, number: u64, keeps: Revision) -> bool {
        let Open { readers, by_keeps, .. } = &mut *self.open();
        let Some(entry) = readers.get_mut(&number) else { return false };
        by_keeps.remove(&(entry.keeps, number));
        by_keeps.insert((keeps, number));
        entry.keeps = keeps;
        true
    }

    /// Records that a reader has begun another slice.
    fn came_on(&self, number: u64, now: Instant) {
        if let Some(entry) = self.open().readers.get_mut(&number) {
            entry.came_on = now;
        }
    }

    /// Registers a reader of the state that `load` returns, together with the compact revision that the state
    /// needs. If the core ends all readers in the meantime, because it has replaced the state, registers the
    /// reader again and loads the new state.
    fn begin_with<T>(
        &self,
        reader: Reader,
        now: impl Fn() -> Instant,
        mut load: impl FnMut() -> (T, Revision),
    ) -> (u64, T) {
        loop {
            // The reader is registered before the state is loaded. So the loaded state is complete: versions
            // removed before the registration are already compacted in the loaded view, and after the
            // registration no version is removed until `needs` is called.
            let number = self.begin(reader, now());
            let (loaded, keeps) = load();
            if self.needs(number, keeps) {
                return (number, loaded);
            }
        }
    }

    fn end(&self, number: u64) {
        self.open().end(number);
    }

    /// Returns the compact revision up to which versions may be removed for a compaction at `wanted`. Ends
    /// readers that delay the removal and have exceeded their time limits. `keeps_few` is true if superseded
    /// versions take few bytes, so that readers that advance may have more time.
    pub fn removable(&self, wanted: Revision, keeps_few: bool, now: Instant) -> Removable {
        let mut open = self.open();
        let mut overtaken = Vec::new();
        let is_blocked = open.by_keeps.first().is_some_and(|(keeps, _)| *keeps < wanted);
        // The core calls this often, and many readers may be open. So the readers are searched only if at
        // least one delays the removal and at least one may have exceeded its time limit.
        let is_due = open.due.is_some_and(|due| now >= due || open.keeps_few && !keeps_few);
        if is_blocked && is_due {
            let is_over =
                |number: &u64| open.readers.get(number).is_some_and(|entry| now >= entry.due(keeps_few));
            let in_the_way = open.by_keeps.range(..(wanted, 0)).map(|(_, number)| *number);
            overtaken = in_the_way.filter(is_over).collect();
            overtaken.iter().for_each(|number| open.end(*number));
            open.due = open.readers.values().map(|entry| entry.due(keeps_few)).min();
            open.keeps_few = keeps_few;
            #[cfg(test)]
            {
                open.looks += 1;
            }
        }
        let through = open.by_keeps.first().map_or(wanted, |(keeps, _)| *keeps).min(wanted);
        Removable { through, overtaken: overtaken.len() }
    }

    /// Ends all readers, because the state that they read was replaced. Returns the number of ended readers.
    pub fn end_all(&self) -> usize {
        let mut open = self.open();
        open.by_keeps.clear();
        open.due = None;
        std::mem::take(&mut open.readers).len()
    }

    /// Returns the number of open readers, and the time at which the oldest of them began.
    pub fn figures(&self) -> (usize, Option<Instant>) {
        let open = self.open();
        // Numbers are assigned in the order in which readers begin, so the first reader is the oldest.
        (open.readers.len(), open.readers.values().next().map(|entry| entry.since))
    }
}

/// Registration of a reader, which ends when it is dropped.
struct Registered {
    /// Weak reference, because a reader may live a little longer than the member.
    shared: Weak<Shared>,
    reads: Arc<LongReads>,
    number: u64,
}

impl Newest for Registered {
    fn view(&self) -> Option<Arc<View>> {
        let shared = self.shared.upgrade()?;
        self.reads.came_on(self.number, shared.member.clock.now());
        Some(Arc::clone(&shared.state.load().view))
    }

    fn needs(&self, moment: &Moment) {
        // The result is not needed: if the reader was ended, its next slice returns the error.
        let _ = self.reads.needs(self.number, moment.keeps());
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.reads.end(self.number);
    }
}

impl Shared {
    fn register(self: &Arc<Shared>, reader: Reader) -> Registered {
        let number = self.data.long_reads.begin(reader, self.member.clock.now());
        Registered { shared: Arc::downgrade(self), reads: Arc::clone(&self.data.long_reads), number }
    }

    /// Returns a reader of the newest state, which any thread may read slice by slice, and the published
    /// state that it reads. Some questions, such as counts, are answered faster by the view in the published
    /// state, because the reader would have to walk the index. The caller should drop the published state
    /// soon, because its view keeps memory.
    pub fn read_long(self: &Arc<Shared>, reader: Reader) -> (AsOf, Arc<Published>) {
        let (number, (state, moment)) = self.data.long_reads.begin_with(
            reader,
            || self.member.clock.now(),
            || {
                let state = self.state.load_full();
                let moment = state.view.moment();
                let keeps = moment.keeps();
                ((state, moment), keeps)
            },
        );
        let (shared, reads) = (Arc::downgrade(self), Arc::clone(&self.data.long_reads));
        (AsOf::new(moment, Arc::new(Registered { shared, reads, number })), state)
    }

    /// Returns a reader of a view just published, for reading slice by slice. `moment` determines whether the
    /// reader sees everything that is physically present, or only what is readable. Only the core may call
    /// this, and only before its next removal. On another thread, the versions could already be removed
    /// before the reader is registered.
    pub fn read_long_at(self: &Arc<Shared>, reader: Reader, moment: Moment) -> AsOf {
        let registered = self.register(reader);
        registered.needs(&moment);
        AsOf::new(moment, Arc::new(registered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_what_they_need_for_a_while() {
        let reads = LongReads::default();
        let start = Instant::now();
        let removable = |wanted, after: u64| {
            let Removable { through, overtaken } =
                reads.removable(Revision(wanted), false, start + Duration::from_secs(after));
            (through.0, overtaken)
        };
        assert_eq!(removable(100, 0), (100, 0));
        let first = reads.begin(Reader::Range, start);
        assert_eq!(removable(100, 0), (i64::MIN, 0), "it has not said what it needs");
        reads.needs(first, Revision(50));
        assert_eq!(removable(100, 1), (50, 0));
        assert_eq!(removable(40, 1), (40, 0));
        let second = reads.begin(Reader::Snapshot, start + Duration::from_secs(60));
        reads.needs(second, Revision(70));
        assert_eq!(reads.figures(), (2, Some(start)));
        assert_eq!(removable(100, 299), (50, 0));
        assert_eq!(removable(50, 10_000), (50, 0), "nobody is in the way");
        assert_eq!(removable(100, 300), (70, 1));
        assert_eq!(reads.figures().0, 1);
        reads.end(first);
        reads.end(second);
        assert_eq!(removable(100, 300), (100, 0));
        reads.begin(Reader::Checkpoint, start);
        assert_eq!(reads.end_all(), 1);
        assert_eq!(removable(100, 0), (100, 0));
        // The versions that an ended reader needs are no longer kept.
        let ended = reads.begin(Reader::Range, start);
        reads.end(ended);
        assert!(!reads.needs(ended, Revision(10)));
        let others: Vec<u64> = (0..1000).map(|_| reads.begin(Reader::Range, start)).collect();
        others
            .iter()
            .zip((20..).map(Revision))
            .for_each(|(number, keeps)| assert!(reads.needs(*number, keeps)));
        reads.needs(others[0], Revision(30));
        assert_eq!((removable(2000, 0), removable(25, 0)), ((21, 0), (21, 0)));
        assert_eq!(removable(520, 300), (520, 500));
        assert_eq!(removable(2000, 300), (2000, 500));
        assert_eq!((reads.figures(), reads.open().by_keeps.len()), ((0, None), 0));
    }

    #[test]
    fn a_transfer_has_time_as_long_as_it_comes_on() {
        let reads = LongReads::default();
        let start = Instant::now();
        let minutes = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let [transfer, snapshot] =
            [Reader::Transfer, Reader::Snapshot].map(|reader| reads.begin(reader, start));
        assert!(reads.needs(transfer, Revision(50)) && reads.needs(snapshot, Revision(40)));
        for at in [20, 40, 60, 80] {
            reads.came_on(transfer, minutes(at));
            reads.came_on(snapshot, minutes(at));
            let through = Revision(if at < 30 { 40 } else { 50 });
            assert_eq!(
                reads.removable(Revision(100), false, minutes(at)).through,
                through,
                "after {at} minutes"
            );
        }
        assert_eq!(reads.removable(Revision(100), false, minutes(109)).through, Revision(50));
        assert_eq!(
            reads.removable(Revision(100), false, minutes(110)),
            Removable { through: Revision(100), overtaken: 1 }
        );
        // A reader that was ended stays ended.
        reads.came_on(transfer, minutes(111));
        assert!(!reads.needs(transfer, Revision(50)));
    }

    #[test]
    fn a_range_or_a_snapshot_that_advances_has_more_time_while_it_keeps_few_bytes() {
        let reads = LongReads::default();
        let start = Instant::now();
        let minutes = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let kinds = [Reader::Range, Reader::Range, Reader::Snapshot, Reader::Hash];
        let [list, stalled, snapshot, hash] = kinds.map(|reader| reads.begin(reader, start));
        for (number, keeps) in [(stalled, 10), (list, 20), (hash, 25), (snapshot, 30)] {
            assert!(reads.needs(number, Revision(keeps)));
        }
        let advance = |at: u64| {
            [list, hash, snapshot].iter().for_each(|number| reads.came_on(*number, minutes(at)));
        };
        let removable = |keeps_few, at| {
            let Removable { through, overtaken } = reads.removable(Revision(100), keeps_few, minutes(at));
            (through.0, overtaken)
        };
        advance(4);
        assert_eq!(removable(true, 4), (10, 0));
        assert_eq!(removable(true, 5), (20, 1), "one did not advance");
        advance(8);
        assert_eq!(removable(true, 12), (20, 1), "the time of a hash is not extended");
        reads.end(list);
        assert_eq!(removable(true, 12), (30, 0));
        let list = reads.begin(Reader::Range, minutes(12));
        assert!(reads.needs(list, Revision(20)));
        reads.came_on(list, minutes(16));
        assert_eq!(removable(true, 18), (20, 0));
        // Once there are many bytes, the time since the beginning counts again, at once.
        assert_eq!(removable(false, 18), (30, 1));
        for at in (30..340).step_by(20) {
            reads.came_on(snapshot, minutes(at));
            assert_eq!(removable(true, at + 10), (30, 0), "after {at} minutes");
        }
        reads.came_on(snapshot, minutes(359));
        assert_eq!(removable(true, 360), (100, 1), "six hours are over");
    }

    #[test]
    fn readers_are_not_looked_at_before_one_can_be_over_its_patience() {
        let reads = LongReads::default();
        let start = Instant::now();
        let first = reads.begin(Reader::Hash, start);
        let others: Vec<u64> = (0..100).map(|_| reads.begin(Reader::Range, start)).collect();
        for number in others.iter().chain([&first]) {
            assert!(reads.needs(*number, Revision(20)));
        }
        let removable =
            |wanted, after| reads.removable(Revision(wanted), false, start + Duration::from_secs(after));
        for after in 0..300 {
            assert_eq!(removable(100, after), Removable { through: Revision(20), overtaken: 0 });
        }
        assert_eq!(reads.open().looks, 0);
        assert_eq!(removable(100, 300), Removable { through: Revision(20), overtaken: 100 });
        for after in 301..600 {
            assert_eq!(removable(100, after).overtaken, 0);
        }
        assert_eq!(reads.open().looks, 1);
        // A reader that began later exceeds its time limit sooner.
        let watch = reads.begin(Reader::Watch, start + Duration::from_secs(500));
        assert!(reads.needs(watch, Revision(30)));
        assert_eq!(removable(100, 560).overtaken, 1);
        assert_eq!(removable(100, 600), Removable { through: Revision(100), overtaken: 1 });
        assert_eq!(reads.figures(), (0, None));
        // A reader that has exceeded its time limit but delays no removal causes no search.
        let looks = reads.open().looks;
        let beside = reads.begin(Reader::Range, start + Duration::from_secs(600));
        assert!(reads.needs(beside, Revision(100)));
        for after in 1000..1100 {
            assert_eq!(removable(100, after), Removable { through: Revision(100), overtaken: 0 });
        }
        assert_eq!(reads.open().looks, looks);
        assert_eq!(removable(101, 1100), Removable { through: Revision(101), overtaken: 1 });
    }

    #[test]
    fn a_reader_that_begins_while_the_state_is_replaced_is_written_down_for_the_new_one() {
        let reads = LongReads::default();
        let mut loads = 0;
        let load = || {
            loads += 1;
            // The state is replaced after the reader was registered for the first time, and before it has
            // loaded the state.
            if loads == 1 {
                assert_eq!(reads.end_all(), 1);
            }
            (loads, Revision(50))
        };
        let (number, loaded) = reads.begin_with(Reader::Range, Instant::now, load);
        assert_eq!(loaded, 2);
        assert_eq!(reads.removable(Revision(100), false, Instant::now()).through, Revision(50));
        reads.end(number);
        assert_eq!(reads.removable(Revision(100), false, Instant::now()).through, Revision(100));
    }
}
