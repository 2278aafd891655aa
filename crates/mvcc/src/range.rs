//! Defines key ranges, and iterators over a range of a snapshot.

use numbers::{ChangeId, Revision};

use crate::cursor::Cursor;
use crate::node::ByKey;
use crate::version::Version;
use crate::view::Snapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End<'k> {
    Unbounded,
    Before(&'k [u8]),
    Through(&'k [u8]),
}

/// A range of keys in byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'k> {
    start: &'k [u8],
    start_excluded: bool,
    end: End<'k>,
}

impl<'k> KeyRange<'k> {
    /// Every key.
    pub const ALL: KeyRange<'static> = KeyRange { start: b"", start_excluded: false, end: End::Unbounded };

    /// Returns the range of a single key.
    pub fn single(key: &'k [u8]) -> KeyRange<'k> {
        KeyRange { start: key, start_excluded: false, end: End::Through(key) }
    }

    /// Returns the keys from `start` up to but not including `end`; empty if `end` is not above `start`.
    pub fn half_open(start: &'k [u8], end: &'k [u8]) -> KeyRange<'k> {
        KeyRange { start, start_excluded: false, end: End::Before(end) }
    }

    /// Returns the keys from `start` on.
    pub fn from(start: &'k [u8]) -> KeyRange<'k> {
        KeyRange { start, start_excluded: false, end: End::Unbounded }
    }

    /// Returns the range of a request's `key` and `range_end` by etcd's rules: an empty end means the single
    /// key, an end of one zero byte means all keys from `key` on.
    pub fn of_request(key: &'k [u8], range_end: &'k [u8]) -> KeyRange<'k> {
        match range_end {
            b"" => KeyRange::single(key),
            b"\0" => KeyRange::from(key),
            _ => KeyRange::half_open(key, range_end),
        }
    }

    /// Returns the part of the range after `key`, to continue an ascending walk.
    #[must_use]
    pub fn after(self, key: &'k [u8]) -> KeyRange<'k> {
        if key < self.start { self } else { KeyRange { start: key, start_excluded: true, ..self } }
    }

    /// Returns the part of the range before `key`, to continue a descending walk.
    #[must_use]
    pub fn before(self, key: &'k [u8]) -> KeyRange<'k> {
        let within = match self.end {
            End::Unbounded => true,
            End::Before(end) => key < end,
            End::Through(end) => key <= end,
        };
        if within { KeyRange { end: End::Before(key), ..self } } else { self }
    }

    /// Returns the key at which the range starts, and true if this key itself belongs to the range.
    pub fn start(&self) -> (&'k [u8], bool) {
        (self.start, !self.start_excluded)
    }

    /// Returns the key before or at which the range ends; `None` if it has no end.
    pub fn end(&self) -> Option<&'k [u8]> {
        match self.end {
            End::Unbounded => None,
            End::Before(end) | End::Through(end) => Some(end),
        }
    }

    /// Returns the key of the range if the range can contain only this key.
    pub fn as_single(&self) -> Option<&'k [u8]> {
        (!self.start_excluded && self.end == End::Through(self.start)).then_some(self.start)
    }

    /// Returns true if no key can be in the range.
    pub fn is_empty(&self) -> bool {
        match self.end {
            End::Unbounded => false,
            End::Before(end) => end <= self.start,
            End::Through(end) => end < self.start || (self.start_excluded && end == self.start),
        }
    }

    /// Returns true if the key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        (if self.start_excluded { key > self.start } else { key >= self.start }) && self.is_before_end(key)
    }

    pub(crate) fn is_before_end(&self, key: &[u8]) -> bool {
        match self.end {
            End::Unbounded => true,
            End::Before(end) => key < end,
            End::Through(end) => key <= end,
        }
    }

    pub(crate) fn seek<'t>(&self, snapshot: &Snapshot<'t>) -> Cursor<'t, ByKey> {
        Cursor::seek(snapshot.keys(), self.start, self.start_excluded)
    }

    pub(crate) fn seek_end<'t>(&self, snapshot: &Snapshot<'t>) -> Cursor<'t, ByKey> {
        match self.end {
            End::Unbounded => Cursor::end(snapshot.keys()),
            End::Before(end) => Cursor::seek(snapshot.keys(), end, false),
            End::Through(end) => Cursor::seek(snapshot.keys(), end, true),
        }
    }
}

/// Iterator over the live versions of a range at one revision, in key order. It can be advanced from both
/// ends.
pub struct Range<'a> {
    snapshot: Snapshot<'a>,
    front: Cursor<'a, ByKey>,
    back: Cursor<'a, ByKey>,
    mode: Mode,
    /// Number of keys that an ascending walk may still visit.
    looks: u64,
    /// Newest version of the key visited last, once `looks` is 0.
    stopped: Option<Version<'a>>,
}

#[derive(Clone, Copy)]
enum Mode {
    /// Reads at the current revision, where the newest version of each key is the result. The number counts
    /// the live keys that remain to be returned.
    Current(u64),
    /// Reads at this older revision, searching the history of each key, until the two cursors meet.
    Historic(Revision),
    /// Reads the state before this change, searching the history of each key, until the two cursors meet. The
    /// second field is the compact revision.
    Before(ChangeId, Revision),
    Done,
}

impl<'a> Range<'a> {
    fn walk(
        snapshot: &Snapshot<'a>,
        front: Cursor<'a, ByKey>,
        back: Cursor<'a, ByKey>,
        mode: Mode,
    ) -> Range<'a> {
        Range { snapshot: *snapshot, front, back, mode, looks: u64::MAX, stopped: None }
    }

    pub(crate) fn new(snapshot: &Snapshot<'a>, range: KeyRange<'_>, rev: Revision) -> Range<'a> {
        let end = Cursor::end(snapshot.keys());
        if range.is_empty() {
            return Range::walk(snapshot, end.clone(), end, Mode::Done);
        }
        let (front, back) = (range.seek(snapshot), range.seek_end(snapshot));
        let mode = if snapshot.is_newest(rev) {
            Mode::Current(snapshot.between(&front, &back))
        } else if front.same_place(&back) {
            Mode::Done
        } else {
            Mode::Historic(rev)
        };
        Range::walk(snapshot, front, back, mode)
    }

    /// Returns an iterator over the versions of a range that were live just before `change`, which must be
    /// above the compact revision.
    pub(crate) fn before(snapshot: &Snapshot<'a>, range: KeyRange<'_>, change: ChangeId) -> Range<'a> {
        let end = Cursor::end(snapshot.keys());
        if range.is_empty() {
            return Range::walk(snapshot, end.clone(), end, Mode::Done);
        }
        let (front, back) = (range.seek(snapshot), range.seek_end(snapshot));
        let mode = match front.same_place(&back) {
            true => Mode::Done,
            false => Mode::Before(change, snapshot.compact_revision()),
        };
        Range::walk(snapshot, front, back, mode)
    }

    /// Sets the number of keys that an ascending walk may visit before it stops. At the current revision only
    /// live keys count. At an older revision every key counts, because any number of keys that did not exist
    /// at that revision may precede a live key. [`Range::stopped_at`] returns the key after which to
    /// continue.
    pub fn set_looks(&mut self, looks: u64) {
        self.looks = looks;
    }

    /// Returns the number of keys that the walk may still visit, see [`Range::set_looks`].
    pub fn looks_left(&self) -> u64 {
        self.looks
    }

    /// Returns the key after which to continue, if the walk stopped because of the limit of
    /// [`Range::set_looks`].
    pub fn stopped_at(&self) -> Option<&'a [u8]> {
        self.stopped.map(Version::key)
    }

    /// Counts the visit of a key against the limit, and records the key if the limit is reached.
    fn looked(&mut self, version: Version<'a>) {
        self.looks -= 1;
        if self.looks == 0 {
            self.stopped = Some(version);
        }
    }

    /// Moves the back cursor to the previous entry. Returns false if there is none, which happens only after a
    /// fault of a base.
    fn retreat(&mut self, live_only: bool) -> bool {
        let moved = self.back.retreat(live_only);
        assert!(moved || self.snapshot.fault().is_some(), "the counts and the cursors promised more keys");
        moved
    }

    fn meet(&mut self) {
        if self.front.same_place(&self.back) {
            self.mode = Mode::Done;
        }
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = Version<'a>;

    fn next(&mut self) -> Option<Version<'a>> {
        loop {
            if self.looks == 0 {
                return None;
            }
            match &mut self.mode {
                Mode::Done | Mode::Current(0) => return None,
                Mode::Current(left) => {
                    let slot = self.front.slot()?;
                    let version = self.front.version()?;
                    self.front.advance(true);
                    if slot.is_live() {
                        *left -= 1;
                        self.looked(version);
                        return Some(version);
                    }
                }
                &mut Mode::Before(change, compacted) => {
                    let newest = self.front.version()?;
                    self.front.advance(false);
                    self.meet();
                    self.looked(newest);
                    if let Some(version) = newest.before(change, compacted) {
                        return Some(version);
                    }
                }
                &mut Mode::Historic(rev) => {
                    let newest = self.front.version()?;
                    self.front.advance(false);
                    self.meet();
                    self.looked(newest);
                    if let Some(version) = newest.at(rev).filter(|version| !version.is_tombstone()) {
                        return Some(version);
                    }
                }
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.mode {
            Mode::Current(left) => (left as usize, Some(left as usize)),
            Mode::Historic(_) | Mode::Before(..) => (0, None),
            Mode::Done => (0, Some(0)),
        }
    }
}

impl DoubleEndedIterator for Range<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        loop {
            match &mut self.mode {
                Mode::Done | Mode::Current(0) => return None,
                Mode::Current(left) => {
                    *left -= 1;
                    loop {
                        if !self.retreat(true) {
                            return None;
                        }
                        if self.back.slot()?.is_live() {
                            return self.back.version();
                        }
                    }
                }
                &mut Mode::Before(change, compacted) => {
                    if !self.retreat(false) {
                        return None;
                    }
                    let newest = self.back.version()?;
                    self.meet();
                    if let Some(version) = newest.before(change, compacted) {
                        return Some(version);
                    }
                }
                &mut Mode::Historic(rev) => {
                    if !self.retreat(false) {
                        return None;
                    }
                    let newest = self.back.version()?;
                    self.meet();
                    if let Some(version) = newest.at(rev).filter(|version| !version.is_tombstone()) {
                        return Some(version);
                    }
                }
            }
        }
    }
}
