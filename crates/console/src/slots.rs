//! Limits the number of browser connections: [`Slots`]. If all slots are taken, a connection without a
//! request in flight is closed for the new one, so that idle connections cannot use up the limit.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use crate::connection_state::ConnectionState;

/// The slots of all connections, of which there are at most `max`.
#[derive(Debug)]
pub(crate) struct Slots {
    max: usize,
    taken: RefCell<Vec<OpenConnection>>,
    /// Increases with each use. Gives each connection its id, and determines the order in which connections
    /// became idle.
    counter: Cell<u64>,
}

#[derive(Debug)]
struct OpenConnection {
    id: u64,
    /// Value of the counter when the connection last became idle.
    idle_since: u64,
    state: Rc<ConnectionState>,
}

/// The slot of one connection. It is given back on drop.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: Rc<ConnectionState>,
    id: u64,
    slots: Rc<Slots>,
}

impl Slots {
    pub(crate) fn new(max: usize) -> Rc<Slots> {
        Rc::new(Slots { max, taken: RefCell::default(), counter: Cell::new(0) })
    }

    /// Takes a slot for a connection from this address. If none is free, takes that of the connection that
    /// has been idle longest, which is closed. Returns `None` if all connections have a request in flight.
    pub(crate) fn take(self: &Rc<Slots>, address: Option<IpAddr>) -> Option<Rc<Slot>> {
        let mut taken = self.taken.borrow_mut();
        if taken.len() >= self.max {
            let idle = taken.iter().enumerate().filter(|(_, taken)| !taken.state.has_request());
            let (oldest, _) = idle.min_by_key(|(_, taken)| taken.idle_since)?;
            taken.swap_remove(oldest).state.evict();
        }
        let id = self.count();
        let state = Rc::new(ConnectionState::of(address));
        taken.push(OpenConnection { id, idle_since: id, state: Rc::clone(&state) });
        Some(Rc::new(Slot { state, id, slots: Rc::clone(self) }))
    }

    fn count(&self) -> u64 {
        let count = self.counter.get() + 1;
        self.counter.set(count);
        count
    }
}

impl Slot {
    /// Records that the connection has become idle, because its request has ended.
    pub(crate) fn mark_idle(&self) {
        let count = self.slots.count();
        if let Some(taken) = self.slots.taken.borrow_mut().iter_mut().find(|taken| taken.id == self.id) {
            taken.idle_since = count;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.taken.borrow_mut().retain(|taken| taken.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_idle_for_longest_gives_way() {
        let slots = Slots::new(2);
        let (first, second) = (slots.take(None).unwrap(), slots.take(None).unwrap());
        // The first connection has served a request after the second one was opened, so the second one has
        // been idle longer.
        first.mark_idle();
        let third = slots.take(None).unwrap();
        assert_eq!(slots.taken.borrow().len(), 2);
        drop(second);
        assert_eq!(slots.taken.borrow().len(), 2, "it had lost its place already");
        drop((first, third));
        assert!(slots.taken.borrow().is_empty());
    }
}
