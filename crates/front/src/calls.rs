//! The open calls of a connection: [`Calls`] finds them by their stream, and has the wakers that they are polled with.

use std::sync::Arc;
use std::task::Waker;

use http2::Key;

use crate::call::Call;
use crate::turn::{SlotWake, Turn};

/// The calls that are open, at the places of their streams. A place is used again, but never with the same key.
#[derive(Default)]
pub(crate) struct Calls {
    places: Vec<Option<(Key, Call)>>,
    /// Wakers by place. They are kept and reused by the calls that follow in the same place.
    wakers: Vec<Option<Waker>>,
    open: u32,
    /// Those of them that wait to be begun.
    waiting: u32,
}

impl Calls {
    /// Number of calls that are open.
    pub(crate) fn len(&self) -> usize {
        self.open as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Number of calls that wait to be begun.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Number of places, used or not.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn insert(&mut self, key: Key, call: Call) {
        let place = key.slot();
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        self.open += 1;
        self.waiting += u32::from(matches!(call, Call::Waiting(_)));
        let before = self.places[place].replace((key, call));
        assert!(before.is_none(), "a call is taken out before its stream's place is used again");
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.at(key.slot()) == Some(key)
    }

    /// Key of the call in a place.
    pub(crate) fn at(&self, place: usize) -> Option<Key> {
        self.places.get(place)?.as_ref().map(|(key, _)| *key)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Call> {
        let (its, call) = self.places.get_mut(key.slot())?.as_mut()?;
        (*its == key).then_some(call)
    }

    /// Takes a call out.
    pub(crate) fn take(&mut self, key: Key) -> Option<Call> {
        if !self.contains(key) {
            return None;
        }
        let (_, call) = self.places[key.slot()].take()?;
        self.open -= 1;
        self.waiting -= u32::from(matches!(call, Call::Waiting(_)));
        Some(call)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Call)> {
        self.places.iter_mut().flatten().map(|(key, call)| (*key, call))
    }

    /// The waker of the calls in a place.
    pub(crate) fn waker(&mut self, place: usize, turn: &Arc<Turn>) -> &Waker {
        if place >= self.wakers.len() {
            self.wakers.resize(place + 1, None);
        }
        self.wakers[place]
            .get_or_insert_with(|| Waker::from(Arc::new(SlotWake { turn: turn.clone(), slot: place as u32 })))
    }

    /// Gives back the memory of places that are not used, behind the last one that is.
    pub(crate) fn rest(&mut self) {
        let used = self.places.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.places.truncate(used);
        self.places.shrink_to_fit();
        self.wakers.truncate(used);
        self.wakers.shrink_to_fit();
    }
}
