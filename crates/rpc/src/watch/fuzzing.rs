//! The index of watches by itself: what fuzzing measures.

use std::ops::ControlFlow;

use super::index::{Index, Keys};

/// Numbers, by the keys that they watch.
#[derive(Default)]
pub struct Watched(Index<u64>);

impl Watched {
    /// Has a number, which is not there yet, watch what a request with these keys would; `false` if that is nothing.
    pub fn insert(&mut self, key: &[u8], range_end: &[u8], number: u64) -> bool {
        let keys = Keys::of_request(key, range_end);
        keys.map(|keys| self.0.insert(&keys, number, number)).is_some()
    }

    /// Takes a number out that watches these keys; `false` if it does not.
    pub fn remove(&mut self, key: &[u8], range_end: &[u8], number: u64) -> bool {
        Keys::of_request(key, range_end).is_some_and(|keys| self.0.remove(&keys, number).is_some())
    }

    /// Returns the number of watches of this key; it stops counting at the given limit.
    pub fn concerned(&self, key: &[u8], at_most: usize) -> usize {
        let mut found = 0;
        let _ = self.0.visit(key, &mut |_| {
            found += 1;
            if found < at_most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        found
    }
}
