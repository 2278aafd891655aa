//! Implements a map from which entries that were not used for some time can be removed cheaply.

use std::collections::{BTreeMap, HashMap};

use crate::keyed::{Prehashed, Tag};

/// Maximum number of entries that one eviction moves back because they were used recently. After that many,
/// the eviction removes the next entry even if that one was used recently. This bounds the work of one
/// insertion.
const SECOND_CHANCES: usize = 64;

/// A value that records the time of its last use.
pub(crate) trait Used {
    /// Returns the time of the last use, in nanoseconds since an epoch that all values of a map share.
    fn used_ns(&self) -> u64;
}

/// Values by their [`Tag`], ordered by the time of their last use that the map has seen.
///
/// A use only changes the value, which may happen without the map's lock. So the map sorts its entries by the
/// last use that it has seen, which is never later than the true last use, and corrects the order when an
/// entry reaches the front. If the first entry is not due, no entry is. Neither a use nor the passing of time
/// costs work proportional to the number of entries. (A timer wheel would have to move the entry at each
/// use.)
///
/// Example, with an idle time of 300: `a` is inserted at 0 and used at 200, `b` is inserted at 100. At 310
/// the first entry is `a`: its last use that the map has seen is 0, so it seems due. Its true last use is
/// 200, so it moves behind `b`. Now `b` is first, and it is not due.
pub(crate) struct Aging<V> {
    entries: HashMap<Tag, Entry<V>, Prehashed>,
    order: BTreeMap<Place, Tag>,
    next: u64,
}

/// The last use that the map has seen, in nanoseconds, and a number that makes positions unique.
type Place = (u64, u64);

struct Entry<V> {
    value: V,
    place: Place,
}

impl<V> Default for Aging<V> {
    fn default() -> Aging<V> {
        Aging { entries: HashMap::default(), order: BTreeMap::new(), next: 0 }
    }
}

impl<V: Used> Aging<V> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, tag: Tag) -> Option<&V> {
        self.entries.get(&tag).map(|entry| &entry.value)
    }

    pub fn get_mut(&mut self, tag: Tag) -> Option<&mut V> {
        self.entries.get_mut(&tag).map(|entry| &mut entry.value)
    }

    /// Inserts a value and returns the previous value with this tag.
    pub fn insert(&mut self, tag: Tag, value: V) -> Option<V> {
        let before = self.remove(tag);
        let place = self.place(value.used_ns());
        self.order.insert(place, tag);
        self.entries.insert(tag, Entry { value, place });
        before
    }

    pub fn remove(&mut self, tag: Tag) -> Option<V> {
        let entry = self.entries.remove(&tag)?;
        self.order.remove(&entry.place);
        Some(entry.value)
    }

    /// Removes and returns one entry whose last use is before `since_ns`, if there is one. Checks at most
    /// `steps` entries, and subtracts the number of checked entries from `steps`.
    pub fn pop_unused(&mut self, since_ns: u64, steps: &mut usize) -> Option<(Tag, V)> {
        while *steps > 0 {
            let (&(seen_ns, _), &tag) = self.order.first_key_value()?;
            if seen_ns >= since_ns {
                return None;
            }
            *steps -= 1;
            if !self.moved_back(tag, seen_ns) {
                return self.remove(tag).map(|value| (tag, value));
            }
        }
        None
    }

    /// Removes and returns the least recently used entry. If more than [`SECOND_CHANCES`] entries were used
    /// since the map last checked them, the result is only approximately the least recently used one.
    pub fn pop_least_used(&mut self) -> Option<(Tag, V)> {
        for _ in 0..SECOND_CHANCES {
            let (&(seen_ns, _), &tag) = self.order.first_key_value()?;
            if !self.moved_back(tag, seen_ns) {
                break;
            }
        }
        let (_, &tag) = self.order.first_key_value()?;
        self.remove(tag).map(|value| (tag, value))
    }

    /// Returns a lower bound of the last use of all entries, in nanoseconds; `None` if the map is empty.
    pub fn first_used_ns(&self) -> Option<u64> {
        self.order.first_key_value().map(|(&(seen_ns, _), _)| seen_ns)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Tag, &V)> {
        self.entries.iter().map(|(tag, entry)| (*tag, &entry.value))
    }

    /// Moves the first entry to the position of its true last use. Returns false if the entry was not used
    /// since the map last checked it.
    fn moved_back(&mut self, tag: Tag, seen_ns: u64) -> bool {
        let used_ns = self.get(tag).map_or(0, Used::used_ns);
        if used_ns <= seen_ns {
            return false;
        }
        let place = self.place(used_ns);
        if let Some(entry) = self.entries.get_mut(&tag) {
            self.order.remove(&entry.place);
            entry.place = place;
            self.order.insert(place, tag);
        }
        true
    }

    fn place(&mut self, used_ns: u64) -> Place {
        self.next += 1;
        (used_ns, self.next)
    }
}
