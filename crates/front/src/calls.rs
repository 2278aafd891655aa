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
    #[expect(clippy::box_collection, reason = "an idle connection has two words less")]
    places: Option<Box<Vec<Place>>>,
    open: u32,
    /// Those of them that wait to be begun.
    waiting: u32,
}

#[derive(Default)]
struct Place {
    call: Option<(Key, Call)>,
    /// It is kept and reused by the calls that follow in the same place.
    waker: Option<Waker>,
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

    /// Returns true if the service has a call that ends with its answer, going by the first places: clients that wait for answers have
    /// few streams, and of thousands not each is looked at.
    pub(crate) fn awaits_answer(&self) -> bool {
        const LOOKED_AT: usize = 64;
        let places = self.places.iter().flat_map(|places| places.iter().take(LOOKED_AT));
        places.filter_map(|place| place.call.as_ref()).any(|(_, call)| matches!(call, Call::Pending(_)))
    }

    /// Number of places, used or not.
    pub(crate) fn places(&self) -> usize {
        self.places.as_ref().map_or(0, |places| places.len())
    }

    pub(crate) fn insert(&mut self, key: Key, call: Call) {
        let place = key.slot();
        self.open += 1;
        self.waiting += u32::from(matches!(call, Call::Waiting(_)));
        let before = self.place(place).call.replace((key, call));
        assert!(before.is_none(), "a call is taken out before its stream's place is used again");
    }

    /// A place, which is made if it is not there.
    fn place(&mut self, place: usize) -> &mut Place {
        let places = self.places.get_or_insert_default();
        if place >= places.len() {
            places.resize_with(place + 1, Place::default);
        }
        &mut places[place]
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.at(key.slot()) == Some(key)
    }

    /// Key of the call in a place.
    pub(crate) fn at(&self, place: usize) -> Option<Key> {
        self.places.as_ref()?.get(place)?.call.as_ref().map(|(key, _)| *key)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Call> {
        let (its, call) = self.places.as_mut()?.get_mut(key.slot())?.call.as_mut()?;
        (*its == key).then_some(call)
    }

    /// Takes a call out.
    pub(crate) fn take(&mut self, key: Key) -> Option<Call> {
        let place = self.places.as_mut()?.get_mut(key.slot())?;
        let (_, call) = place.call.take_if(|(its, _)| *its == key)?;
        self.open -= 1;
        self.waiting -= u32::from(matches!(call, Call::Waiting(_)));
        Some(call)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Call)> {
        let places = self.places.iter_mut().flat_map(|places| places.iter_mut());
        places.filter_map(|place| place.call.as_mut()).map(|(key, call)| (*key, call))
    }

    /// The waker of the calls in a place.
    pub(crate) fn waker(&mut self, place: usize, turn: &Arc<Turn>) -> &Waker {
        let fresh = || Waker::from(Arc::new(SlotWake { turn: turn.clone(), slot: place as u32 }));
        self.place(place).waker.get_or_insert_with(fresh)
    }

    /// Gives back the memory of places that are not used, behind the last one that is.
    pub(crate) fn rest(&mut self) {
        if self.is_empty() {
            self.places = None;
        } else if let Some(places) = &mut self.places {
            let used = places.iter().rposition(|place| place.call.is_some()).map_or(0, |last| last + 1);
            places.truncate(used);
            places.shrink_to_fit();
        }
    }
}
