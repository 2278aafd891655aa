//! Stores the open calls of a connection: [`Calls`] finds a call by its HTTP/2 stream, and owns the wakers
//! with which the calls are polled.

use std::sync::Arc;
use std::task::Waker;

use http2::Key;

use crate::call::{Call, StreamingCall};
use crate::turn::{SlotWake, Turn};

/// Open calls, indexed by the slot that the HTTP/2 engine has given to their stream. A slot is reused by
/// later streams, but each stream has another key.
#[derive(Default)]
pub(crate) struct Calls {
    /// `None` until the first call, and after the connection has gone idle without open calls, to save
    /// memory.
    #[expect(clippy::box_collection, reason = "an idle connection has two words less")]
    slots: Option<Box<Vec<CallSlot>>>,
    open: u32,
    /// Number of open calls that are in the state [`Call::Waiting`].
    waiting: u32,
}

#[derive(Default)]
struct CallSlot {
    call: Option<(Key, Call)>,
    /// Waker for the call in this slot. Later calls in the slot reuse it.
    waker: Option<Waker>,
}

impl Calls {
    /// Returns the number of open calls.
    pub(crate) fn len(&self) -> usize {
        self.open as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Returns the number of open calls that wait to begin ([`Call::Waiting`]).
    pub(crate) fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Returns true if the service is answering a unary call. Checks only the first 64 slots, because a
    /// client that waits for unary answers usually has few streams, and checking thousands of slots takes too
    /// long.
    pub(crate) fn awaits_answer(&self) -> bool {
        const LOOKED_AT: usize = 64;
        let slots = self.slots.iter().flat_map(|slots| slots.iter().take(LOOKED_AT));
        slots.filter_map(|slot| slot.call.as_ref()).any(|(_, call)| matches!(call, Call::Pending(_)))
    }

    /// Returns the number of slots, used or not.
    pub(crate) fn slots(&self) -> usize {
        self.slots.as_ref().map_or(0, |slots| slots.len())
    }

    pub(crate) fn insert(&mut self, key: Key, call: Call) {
        let slot = key.slot();
        self.open += 1;
        self.waiting += u32::from(matches!(call, Call::Waiting(_)));
        let before = self.slot(slot).call.replace((key, call));
        assert!(before.is_none(), "a call is taken out before its stream's place is used again");
    }

    /// Returns the table entry of a slot, and creates the entry if it does not exist.
    fn slot(&mut self, slot: usize) -> &mut CallSlot {
        let slots = self.slots.get_or_insert_default();
        if slot >= slots.len() {
            slots.resize_with(slot + 1, CallSlot::default);
        }
        &mut slots[slot]
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.at(key.slot()) == Some(key)
    }

    /// Returns the key of the call in a slot.
    pub(crate) fn at(&self, slot: usize) -> Option<Key> {
        self.slots.as_ref()?.get(slot)?.call.as_ref().map(|(key, _)| *key)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Call> {
        let (its, call) = self.slots.as_mut()?.get_mut(key.slot())?.call.as_mut()?;
        (*its == key).then_some(call)
    }

    /// Returns the streaming call in a slot, and the waker for the slot; `None` if the slot has no streaming
    /// call.
    pub(crate) fn streaming(
        &mut self,
        slot: usize,
        turn: &Arc<Turn>,
    ) -> Option<(Key, &mut StreamingCall, &Waker)> {
        let CallSlot { call, waker } = self.slots.as_mut()?.get_mut(slot)?;
        let Some((key, Call::Streaming(streaming))) = call else { return None };
        Some((*key, streaming, waker.get_or_insert_with(|| slot_waker(slot, turn))))
    }

    /// Removes and returns a call.
    pub(crate) fn take(&mut self, key: Key) -> Option<Call> {
        let slot = self.slots.as_mut()?.get_mut(key.slot())?;
        let (_, call) = slot.call.take_if(|(its, _)| *its == key)?;
        self.open -= 1;
        self.waiting -= u32::from(matches!(call, Call::Waiting(_)));
        Some(call)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Call)> {
        let slots = self.slots.iter_mut().flat_map(|slots| slots.iter_mut());
        slots.filter_map(|slot| slot.call.as_mut()).map(|(key, call)| (*key, call))
    }

    /// Returns the waker for the calls in a slot.
    pub(crate) fn waker(&mut self, slot: usize, turn: &Arc<Turn>) -> &Waker {
        self.slot(slot).waker.get_or_insert_with(|| slot_waker(slot, turn))
    }

    /// Frees the memory of all slots after the last one that has a call.
    pub(crate) fn rest(&mut self) {
        if self.is_empty() {
            self.slots = None;
        } else if let Some(slots) = &mut self.slots {
            let used = slots.iter().rposition(|slot| slot.call.is_some()).map_or(0, |last| last + 1);
            slots.truncate(used);
            slots.shrink_to_fit();
        }
    }
}

fn slot_waker(slot: usize, turn: &Arc<Turn>) -> Waker {
    Waker::from(Arc::new(SlotWake { turn: turn.clone(), slot: slot as u32 }))
}
