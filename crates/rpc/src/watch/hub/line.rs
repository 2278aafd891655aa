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

/// Maximum number of streams among which an urgent one is searched.
const SEARCHED_MAX: usize = 256;

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
        let (_, stream) = self.class(class).pop_first()?;
        if class == Class::Laden {
            self.laden_since += 1;
        } else {
            self.laden_since = 0;
            self.held_was_last = class == Class::Held;
        }
        stream.rare().place.set(None);
        Some(stream)
    }

    /// Removes and returns the first of the next [`SEARCHED_MAX`] streams that `is_urgent`, whatever its class.
    pub fn pop_urgent(&mut self, is_urgent: impl Fn(&Stream) -> bool) -> Option<Rc<Stream>> {
        let all = self.classes.iter_mut().flat_map(|class| class.iter());
        let found = all.take(SEARCHED_MAX).find(|(_, stream)| is_urgent(stream));
        let (class, number) = found.and_then(|(_, stream)| stream.rare().place.take())?;
        self.class(class).remove(&number)
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
