//! Orders the streams that wait for their turn to read history.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::watch::stream::{Class, Place, Stream};

/// Streams that wait for their turn to read history, ordered by [`Class`].
///
/// Streams that hold fetched values ([`Class::Laden`]) go first, so that these values are freed soon: if
/// 10,000 streams each held a fetched slice, they would hold gigabytes. Streams of the other two classes
/// alternate.
#[derive(Default)]
pub(super) struct Line {
    classes: [BTreeMap<u64, Rc<Stream>>; 3],
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
        if let Some((before, number)) = stream.rare_if_any().and_then(|rare| rare.place.get()) {
            if before <= class {
                return;
            }
            self.class(before).remove(&number);
        }
        self.numbers += 1;
        self.put(stream, (class, self.numbers));
    }

    /// Puts a stream at the front of the queue.
    pub fn enter_first(&mut self, stream: &Rc<Stream>) {
        self.laden_since = 0;
        self.put(stream, (Class::Laden, 0));
    }

    /// Removes and returns the stream whose turn is next, if it satisfies `may_go`.
    pub fn pop_if(&mut self, may_go: impl FnOnce(&Stream) -> bool) -> Option<Rc<Stream>> {
        let [laden, held, other] = &self.classes;
        let none_but_laden = held.is_empty() && other.is_empty();
        let class = if !laden.is_empty() && (none_but_laden || self.laden_since < LADEN_MAX) {
            Class::Laden
        } else if !held.is_empty() && (other.is_empty() || !self.held_was_last) {
            Class::Held
        } else {
            Class::Other
        };
        let first = self.class(class).first_entry().filter(|first| may_go(first.get()))?;
        let stream = first.remove();
        if class == Class::Laden {
            self.laden_since += 1;
        } else {
            self.laden_since = 0;
            self.held_was_last = class == Class::Held;
        }
        stream.rare().place.set(None);
        Some(stream)
    }

    fn put(&mut self, stream: &Rc<Stream>, place: Place) {
        stream.rare().place.set(Some(place));
        let replaced = self.class(place.0).insert(place.1, Rc::clone(stream));
        assert!(replaced.is_none(), "a place in line is one stream's");
    }

    fn class(&mut self, class: Class) -> &mut BTreeMap<u64, Rc<Stream>> {
        &mut self.classes[class as usize]
    }
}
