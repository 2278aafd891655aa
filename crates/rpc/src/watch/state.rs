//! Holds the state of one watch of a client: its keys, its options and its progress ([`Watch`]). It is kept small,
//! because a member may have millions of watches.

use std::cell::Cell;
use std::rc::Rc;

use api::etcdserverpb::WatchCreateRequest;
use api::etcdserverpb::watch_create_request::FilterType;
use mvcc::{Snapshot, Version, View};
use numbers::Revision;
use telemetry::tracing::OpenSpan;

use super::hold::Hold;
use super::index::{Keys, Listed};
use super::stream::Stream;

/// A watch of a client, and its progress.
pub(super) struct Watch {
    /// Number of the watch, unique among all watches of the hub.
    pub serial: u64,
    /// Watch id, unique on its stream.
    pub id: i64,
    /// The stream of the watch. Streams and watches refer to each other; closing the stream breaks the cycle.
    pub stream: Rc<Stream>,
    /// Keys that are watched.
    pub keys: Keys,
    /// Options that the client chose.
    pub options: Options,
    /// The watch has received all changes below this revision. A synced watch has also received all changes
    /// through the hub's revision, even if that is higher.
    pub next: Cell<Revision>,
    /// True if the watch is in the hub's index of synced watches; false if it is among its stream's unsynced
    /// watches, or if `compacted` is true.
    pub synced: Cell<bool>,
    /// True if the server cancelled the watch because history that it still had to read was compacted. Such a
    /// watch is neither synced nor unsynced. As in etcd, it stays in the stream until the client cancels it
    /// too.
    pub compacted: Cell<bool>,
    /// True if the watch has received no event since the last round of periodic progress notifications.
    pub quiet: Cell<bool>,
    /// True if the response of the current slice could not be queued for the watch. Used only while a slice
    /// is delivered.
    pub left_behind: Cell<bool>,
    /// True if the watch is one of those to which the current turn delivers the revisions of a broadcast.
    /// Used only within one turn.
    pub chosen: Cell<bool>,
    /// Events of the current slice that match the watch.
    pub matched: Cell<Matched>,
    /// State that few watches have; `None` while it is empty.
    seldom: Cell<Option<Box<Seldom>>>,
}

/// Options of a watch, one bit each. They take one byte, because there may be millions of watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options(u8);

impl Options {
    const PREVIOUS: u8 = 1;
    const NO_PUT: u8 = 2;
    const NO_DELETE: u8 = 4;
    const FRAGMENT: u8 = 8;
    const PROGRESS: u8 = 16;

    /// Returns the options of a request. As in etcd, unknown filter values are ignored.
    pub fn of(request: &WatchCreateRequest) -> Options {
        let filters = |filter: FilterType| request.filters.contains(&(filter as i32));
        let chosen = [
            (Options::PREVIOUS, request.prev_kv),
            (Options::NO_PUT, filters(FilterType::Noput)),
            (Options::NO_DELETE, filters(FilterType::Nodelete)),
            (Options::FRAGMENT, request.fragment),
            (Options::PROGRESS, request.progress_notify),
        ];
        Options(chosen.iter().map(|(bit, is_chosen)| if *is_chosen { *bit } else { 0 }).sum())
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Returns true if events carry the previous key-value pair (`prev_kv`).
    pub fn previous(self) -> bool {
        self.has(Options::PREVIOUS)
    }

    /// Returns true if puts are filtered out.
    pub fn no_put(self) -> bool {
        self.has(Options::NO_PUT)
    }

    /// Returns true if deletions are filtered out.
    pub fn no_delete(self) -> bool {
        self.has(Options::NO_DELETE)
    }

    /// Returns true if large responses are fragmented.
    pub fn fragment(self) -> bool {
        self.has(Options::FRAGMENT)
    }

    /// Returns true if the client wants periodic progress notifications.
    pub fn progress(self) -> bool {
        self.has(Options::PROGRESS)
    }
}

/// State that few watches have.
#[derive(Default)]
struct Seldom {
    /// Hold that keeps history readable for the watch; set if the watch was synced and became unsynced.
    hold: Option<Rc<Hold>>,
    /// Start revision that the client asked for, if it was above the hub's revision; counted in
    /// [`Rare::ahead`](super::stream::Rare::ahead).
    ahead: Option<Revision>,
    /// The watch's span, if its stream is traced. It ends with the watch.
    span: Option<OpenSpan>,
}

impl Seldom {
    fn is_empty(&self) -> bool {
        self.hold.is_none() && self.ahead.is_none() && self.span.is_none()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stream.release_watch(&self.keys);
    }
}

impl Watch {
    /// Returns a watch of these keys that has received everything before `next`. The caller has reserved memory
    /// for it with [`Stream::hold_watch`].
    pub fn new(
        serial: u64,
        id: i64,
        stream: &Rc<Stream>,
        keys: Keys,
        options: Options,
        next: Revision,
        span: Option<OpenSpan>,
    ) -> Watch {
        let watch = Watch {
            serial,
            id,
            stream: Rc::clone(stream),
            keys,
            options,
            next: Cell::new(next),
            synced: Cell::new(true),
            compacted: Cell::new(false),
            quiet: Cell::new(true),
            left_behind: Cell::new(false),
            chosen: Cell::new(false),
            matched: Cell::default(),
            seldom: Cell::default(),
        };
        if span.is_some() {
            watch.with_seldom(|seldom| seldom.span = span);
        }
        watch
    }

    /// Returns a snapshot in which the watch can read its next history even if that was compacted. `None` if
    /// the watch has no hold, or if that history may have been removed despite the hold.
    pub fn held<'a>(&self, view: &'a View) -> Option<Snapshot<'a>> {
        let seldom = self.seldom.take()?;
        let held = seldom.hold.as_ref().and_then(|hold| hold.snapshot(view, self.next.get()));
        self.seldom.set(Some(seldom));
        held
    }

    /// Changes the state that few watches have, and frees its memory if nothing is left in it.
    fn with_seldom<R>(&self, change: impl FnOnce(&mut Seldom) -> R) -> R {
        let mut seldom = self.seldom.take().unwrap_or_default();
        let result = change(&mut seldom);
        self.seldom.set(if seldom.is_empty() { None } else { Some(seldom) });
        result
    }

    /// Returns the start revision that the client asked for, if it was above the hub's revision when the watch
    /// was created.
    pub fn ahead(&self) -> Option<Revision> {
        let seldom = self.seldom.take()?;
        let ahead = seldom.ahead;
        self.seldom.set(Some(seldom));
        ahead
    }

    /// Records that the watch starts above the hub's revision.
    pub fn set_ahead(&self, start: Revision) {
        self.with_seldom(|seldom| seldom.ahead = Some(start));
    }

    /// Sets or clears the hold of this watch, and updates the stream's count of watches with a hold.
    pub fn set_hold(&self, hold: Option<Rc<Hold>>) {
        let holds = usize::from(hold.is_some());
        let held =
            usize::from(self.with_seldom(|seldom| std::mem::replace(&mut seldom.hold, hold)).is_some());
        if holds != held {
            self.stream.count_held(holds, held);
        }
    }

    /// Returns true if the watch receives this change of one of its keys: the filters let the change pass,
    /// and the watch has not received the revision of the change yet.
    pub fn wants(&self, version: Version<'_>) -> bool {
        let left_out = if version.is_tombstone() { self.options.no_delete() } else { self.options.no_put() };
        !left_out && version.main() >= self.next.get()
    }
}

impl Listed for Rc<Watch> {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn serial(&self) -> u64 {
        self.serial
    }
}

/// Indexes of the events of a slice that match one watch, in ascending order. A single index, the usual case,
/// is stored without an allocation.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Matched {
    first: Option<u32>,
    #[expect(
        clippy::box_collection,
        reason = "each watch has it, and hardly any has more than one event at a time"
    )]
    rest: Option<Box<Vec<u32>>>,
}

impl Matched {
    /// Returns true if there are no indexes.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the number of indexes.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// Appends an index.
    pub fn push(&mut self, number: u32) {
        if self.first.is_none() {
            self.first = Some(number);
        } else {
            self.rest.get_or_insert_default().push(number);
        }
    }

    /// Removes all indexes that are not below `from`.
    pub fn truncate(&mut self, from: usize) {
        let is_kept = |number: &u32| (*number as usize) < from;
        if let Some(rest) = &mut self.rest {
            rest.truncate(rest.partition_point(is_kept));
        }
        self.rest.take_if(|rest| rest.is_empty());
        self.first = self.first.filter(is_kept);
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.first.into_iter().chain(self.rest.iter().flat_map(|rest| rest.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_small() {
        // With the 16 bytes of the `Rc` header these make 96 bytes, a size class of the allocator.
        assert!(size_of::<Watch>() <= 80, "a watch has {} bytes", size_of::<Watch>());
    }

    #[test]
    fn options_are_those_of_the_request() {
        let request = WatchCreateRequest {
            filters: vec![FilterType::Nodelete as i32, 77, FilterType::Nodelete as i32],
            fragment: true,
            ..WatchCreateRequest::default()
        };
        let options = Options::of(&request);
        assert!(options.no_delete() && options.fragment());
        assert!(!options.no_put() && !options.previous() && !options.progress());
        let other =
            WatchCreateRequest { prev_kv: true, progress_notify: true, ..WatchCreateRequest::default() };
        let filters = vec![FilterType::Noput as i32];
        let options = Options::of(&WatchCreateRequest { filters, ..other });
        assert!(options.no_put() && options.previous() && options.progress());
        assert!(!options.no_delete() && !options.fragment());
    }
}
