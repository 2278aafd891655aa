//! Gives fuzz targets access to the index of watches, without a hub.

use std::ops::ControlFlow;

use super::index::{Index, Keys, Listed};

/// A watch that is only its keys and its number.
struct Numbered {
    keys: Keys,
    number: u64,
}

impl Listed for Numbered {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn serial(&self) -> u64 {
        self.number
    }
}

/// Index of watches in which each watch is only its keys and its number.
#[derive(Default)]
pub struct Watched(Index<Numbered>);

impl Watched {
    /// Adds a watch with a number that is not in the index yet, for the keys of a request. Returns false if
    /// the request covers no keys.
    pub fn insert(&mut self, key: &[u8], range_end: &[u8], number: u64) -> bool {
        let keys = Keys::of_request(key, range_end);
        keys.map(|keys| self.0.insert(Numbered { keys, number })).is_some()
    }

    /// Removes the watch with this number and these keys. Returns false if it is not in the index.
    pub fn remove(&mut self, key: &[u8], range_end: &[u8], number: u64) -> bool {
        Keys::of_request(key, range_end).is_some_and(|keys| self.0.remove(&keys, number).is_some())
    }

    /// Returns the number of watches that cover this key. Counting stops at `at_most`.
    pub fn concerned(&self, key: &[u8], at_most: usize) -> usize {
        let mut found = 0;
        let _ = self.0.visit(key, &mut |_| {
            found += 1;
            if found < at_most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        found
    }
}
