//! The line of streams that wait for their turn to read history.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::watch::stream::{Class, Place, Stream};

/// Streams that wait for their turn to read history.
///
/// The laden ones go first, so that hardly more is held than what arrives between two turns: 10,000 streams that hold a
/// slice each would hold gigabytes. The other two classes take turns with each other.
#[derive(Default)]
pub(super) struct Line {
    classes: [BTreeMap<u64, Rc<Stream>>; 3],
    numbers: u64,
    /// Turns in a row that went to streams that hold something, since one went to another stream.
    laden_since: usize,
    /// True if the last stream that was not laden was a held one.
    held_was_last: bool,
}

/// Number of laden streams after which another one gets its turn: reading fetched values may lead to more being fetched.
const LADEN_MAX: usize = 16;

impl Line {
    /// Takes a stream in, at the end of its class. One that stands in line already may change to a class that comes first
    /// sooner.
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

    /// Puts a stream at the head of the line.
    pub fn enter_first(&mut self, stream: &Rc<Stream>) {
        self.laden_since = 0;
        self.put(stream, (Class::Laden, 0));
    }

    /// Takes out whose turn it is.
    pub fn pop(&mut self) -> Option<Rc<Stream>> {
        let [laden, held, other] = &self.classes;
        let none_but_laden = held.is_empty() && other.is_empty();
        let class = if !laden.is_empty() && (none_but_laden || self.laden_since < LADEN_MAX) {
            self.laden_since += 1;
            Class::Laden
        } else {
            self.laden_since = 0;
            self.held_was_last = !held.is_empty() && (other.is_empty() || !self.held_was_last);
            if self.held_was_last { Class::Held } else { Class::Other }
        };
        let (_, stream) = self.class(class).pop_first()?;
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
