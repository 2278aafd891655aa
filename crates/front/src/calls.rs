//! The open calls of a connection: [`Calls`] finds them by their stream, and has the wakers that they are polled with.

use std::sync::Arc;
use std::task::Waker;

use http2::Key;

use crate::call::Call;
use crate::turn::{SlotWake, Turn};

/// The calls that are open, at the places of their streams. A place is used again, but never with the same key.
#[derive(Default)]
pub(crate) struct Calls {
    /// A connection has them once it had a call, until it rests without one.
    tables: Option<Box<Tables>>,
    open: u32,
    /// Those of them that wait to be begun.
    waiting: u32,
}

#[derive(Default)]
struct Tables {
    places: Vec<Option<(Key, Call)>>,
    /// Wakers by place. They are kept and reused by the calls that follow in the same place.
    wakers: Vec<Option<Waker>>,
    /// Calls that the service has, and that end with their answer.
    pending: u32,
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

    /// Number of calls that the service has, and that end with their answer.
    pub(crate) fn pending(&self) -> usize {
        self.tables.as_ref().map_or(0, |tables| tables.pending as usize)
    }

    /// Number of places, used or not.
    pub(crate) fn places(&self) -> usize {
        self.tables.as_ref().map_or(0, |tables| tables.places.len())
    }

    pub(crate) fn insert(&mut self, key: Key, call: Call) {
        let place = key.slot();
        let Tables { places, pending, .. } = &mut **self.tables.get_or_insert_default();
        if place >= places.len() {
            places.resize_with(place + 1, || None);
        }
        self.open += 1;
        self.waiting += u32::from(matches!(call, Call::Waiting(_)));
        *pending += u32::from(matches!(call, Call::Pending(_)));
        let before = places[place].replace((key, call));
        assert!(before.is_none(), "a call is taken out before its stream's place is used again");
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.at(key.slot()) == Some(key)
    }

    /// Key of the call in a place.
    pub(crate) fn at(&self, place: usize) -> Option<Key> {
        self.tables.as_ref()?.places.get(place)?.as_ref().map(|(key, _)| *key)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Call> {
        let (its, call) = self.tables.as_mut()?.places.get_mut(key.slot())?.as_mut()?;
        (*its == key).then_some(call)
    }

    /// Takes a call out.
    pub(crate) fn take(&mut self, key: Key) -> Option<Call> {
        let Tables { places, pending, .. } = &mut **self.tables.as_mut()?;
        let place = places.get_mut(key.slot())?;
        let (_, call) = place.take_if(|(its, _)| *its == key)?;
        self.open -= 1;
        self.waiting -= u32::from(matches!(call, Call::Waiting(_)));
        *pending -= u32::from(matches!(call, Call::Pending(_)));
        Some(call)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Call)> {
        let places = self.tables.iter_mut().flat_map(|tables| &mut tables.places);
        places.flatten().map(|(key, call)| (*key, call))
    }

    /// The waker of the calls in a place.
    pub(crate) fn waker(&mut self, place: usize, turn: &Arc<Turn>) -> &Waker {
        let wakers = &mut self.tables.get_or_insert_default().wakers;
        if place >= wakers.len() {
            wakers.resize(place + 1, None);
        }
        wakers[place]
            .get_or_insert_with(|| Waker::from(Arc::new(SlotWake { turn: turn.clone(), slot: place as u32 })))
    }

    /// Gives back the memory of places that are not used, behind the last one that is.
    pub(crate) fn rest(&mut self) {
        if self.is_empty() {
            self.tables = None;
        } else if let Some(Tables { places, wakers, .. }) = self.tables.as_deref_mut() {
            let used = places.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            places.truncate(used);
            places.shrink_to_fit();
            wakers.truncate(used);
            wakers.shrink_to_fit();
        }
    }
}
