//! Orders the streams that wait for their turn to read history.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use numbers::Revision;

use crate::watch::stream::{Class, Due, Place, Stream};

/// Streams that wait for their turn to read history, ordered by [`Class`].
///
/// Streams that hold fetched values ([`Class::Laden`]) go first, so that these values are freed soon: if
/// 10,000 streams each held a fetched slice, they would hold gigabytes. Streams of the other two classes
/// alternate.
#[derive(Default)]
pub(super) struct Line {
    classes: [BTreeMap<u64, Rc<Stream>>; 3],
    /// The streams that wait, in the order in which they fall behind, without those that wait for their
    /// client.
    due: BTreeSet<Due>,
    numbers: u64,
    /// Number of consecutive turns that streams of class [`Class::Laden`] have had since the last turn of
    /// another stream.
    laden_since: usize,
    /// True if the last turn of a stream that was not of class [`Class::Laden`] was that of a stream of class
    /// [`Class::Held`].
    held_was_last: bool,
}

/// Number of consecutive turns of streams of class [`Class::Laden`] after which one other stream gets its
/// turn. The limit is needed because reading fetched values may cause further fetches: streams of this class
/// could otherwise keep all other streams waiting.
const LADEN_MAX: usize = 16;

impl Line {
    /// Adds a stream at the end of its class. A stream that waits already changes its class if that lets it
    /// read sooner.
    pub fn enter(&mut self, stream: &Rc<Stream>) {
        let class = stream.class();
        if let Some(place) = stream.rare_if_any().and_then(|rare| rare.place.get()) {
            if place.0 <= class {
                self.set_due(stream, stream.pace().map(|pace| (pace.due(), place)));
                return;
            }
            self.remove(place);
        }
        self.numbers += 1;
        self.put(stream, (class, self.numbers));
    }

    /// Puts a stream at the front of the queue.
    pub fn enter_first(&mut self, stream: &Rc<Stream>) {
        self.laden_since = 0;
        self.put(stream, (Class::Laden, 0));
    }

    /// Removes and returns the stream whose turn is next.
    pub fn pop(&mut self) -> Option<Rc<Stream>> {
        let [laden, held, other] = &self.classes;
        let none_but_laden = held.is_empty() && other.is_empty();
        let class = if !laden.is_empty() && (none_but_laden || self.laden_since < LADEN_MAX) {
            Class::Laden
        } else if !held.is_empty() && (other.is_empty() || !self.held_was_last) {
            Class::Held
        } else {
            Class::Other
        };
        let number = *self.class(class).first_key_value()?.0;
        if class == Class::Laden {
            self.laden_since += 1;
        } else {
            self.laden_since = 0;
            self.held_was_last = class == Class::Held;
        }
        self.remove((class, number))
    }

    /// Removes and returns the stream that falls behind most urgently, whatever its class, if any falls behind
    /// now that this revision is published.
    pub fn pop_due(&mut self, current: Revision) -> Option<Rc<Stream>> {
        let (due, place) = *self.due.first()?;
        if due <= current { self.remove(place) } else { None }
    }

    /// Does not count a stream that waits as one that falls behind, because it waits for its client.
    pub fn pause(&mut self, stream: &Stream) {
        self.set_due(stream, None);
    }

    fn put(&mut self, stream: &Rc<Stream>, place: Place) {
        stream.rare().place.set(Some(place));
        let replaced = self.class(place.0).insert(place.1, Rc::clone(stream));
        assert!(replaced.is_none(), "a place in line is one stream's");
        self.set_due(stream, stream.pace().map(|pace| (pace.due(), place)));
    }

    fn remove(&mut self, (class, number): Place) -> Option<Rc<Stream>> {
        let stream = self.class(class).remove(&number)?;
        stream.rare().place.set(None);
        self.set_due(&stream, None);
        Some(stream)
    }

    fn set_due(&mut self, stream: &Stream, due: Option<Due>) {
        let Some(rare) = stream.rare_if_any() else { return };
        let before = rare.due.replace(due);
        if before != due {
            before.map(|before| self.due.remove(&before));
            self.due.extend(due);
        }
    }

    fn class(&mut self, class: Class) -> &mut BTreeMap<u64, Rc<Stream>> {
        &mut self.classes[class as usize]
    }
}
