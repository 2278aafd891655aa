//! Provides an ordered map that is cheap to copy.
//!
//! The map consists of sorted chunks of some hundred entries behind shared pointers. A copy shares all chunks
//! with its original; a write clones the chunk that it changes if another copy shares that chunk. So a list
//! of a million leases, or the million keys of one lease, is copied by copying some thousand pointers, and
//! another thread can read the copy, which does not change. The cost is that a look-up takes two binary
//! searches instead of computing one hash. In return, no operation takes as long as the growth of a large
//! hash table.
//!
//! # Memory
//!
//! A member with millions of leases has most of its memory in three of these maps, so little of it may be
//! unused:
//!
//! * In a map of several chunks each chunk has the memory of a full one, 4 KiB. Chunks that grow step by step
//!   leave freed blocks of many sizes behind; with the allocator mimalloc that was a fifth of the memory.
//! * An entry that belongs into a full chunk goes to a neighbour if one has room. Only if none has, the chunk
//!   is split, at the place of the new entry. Halves would stay half full for ever if keys arrive nearly in
//!   order, as those of many clients do.
//!
//! ```text
//! keys arrive ascending or descending     all memory of the chunks is used
//! nearly in order, or in no order         seven eighths of it (measured: 88 % to 99 %)
//! ```

use std::borrow::Borrow;
use std::sync::Arc;

/// Bytes of a full chunk: a size of which mimalloc's pages hold a whole number.
const CHUNK_BYTES: usize = 4096;
/// Entries of a full chunk if they are so large that fewer fit into [`CHUNK_BYTES`].
const CHUNK_ENTRIES_MIN: usize = 16;

/// Entries in the order of their keys.
type Chunk<K, V> = Arc<Vec<(K, V)>>;

/// An ordered map. Copying it costs one pointer for the entries of each chunk, which are some hundred.
#[derive(Clone)]
pub struct SharedMap<K, V> {
    /// Chunks with their lower bounds: all keys of a chunk are at or above its bound, and all keys of earlier
    /// chunks are below it. No chunk is empty.
    chunks: Vec<(K, Chunk<K, V>)>,
    len: usize,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> SharedMap<K, V> {
        SharedMap::new()
    }
}

impl<K, V> SharedMap<K, V> {
    /// Returns a map without entries.
    pub const fn new() -> SharedMap<K, V> {
        SharedMap { chunks: Vec::new(), len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Maximum number of entries of a chunk.
    const CHUNK_MAX: usize = {
        let fit = CHUNK_BYTES / size_of::<(K, V)>();
        if fit > CHUNK_ENTRIES_MIN { fit } else { CHUNK_ENTRIES_MIN }
    };
    /// Neighbours that have at most this many entries together become one chunk. The number is lower than
    /// [`SharedMap::CHUNK_MAX`], so that the next insertion does not split them again.
    const MERGED_MAX: usize = Self::CHUNK_MAX / 4 * 3;

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the position of the chunk that may contain this key; `None` if the key is below all chunks.
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.chunks.partition_point(|(first, _)| first.borrow() <= key).checked_sub(1)
    }

    /// Returns the value of this key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (_, chunk) = self.chunks.get(self.chunk_of(key)?)?;
        let at = chunk.binary_search_by(|(known, _)| known.borrow().cmp(key)).ok()?;
        chunk.get(at).map(|(_, value)| value)
    }

    /// Returns a mutable reference to the value of this key. Copies of the map keep the old value.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let of = self.chunk_of(key)?;
        let (_, chunk) = self.chunks.get(of)?;
        let at = chunk.binary_search_by(|(known, _)| known.borrow().cmp(key)).ok()?;
        self.entries_mut(of, 0)?.get_mut(at).map(|(_, value)| value)
    }

    /// Returns the entries of a chunk, to be changed, with capacity for `more` further ones. Copies of the map
    /// keep the old entries.
    fn entries_mut(&mut self, of: usize, more: usize) -> Option<&mut Vec<(K, V)>> {
        let is_only = self.chunks.len() == 1;
        let (_, chunk) = self.chunks.get_mut(of)?;
        let len = chunk.len() + more;
        if Arc::get_mut(chunk).is_none() {
            let mut copy = Vec::with_capacity(Self::capacity(len, is_only));
            copy.extend_from_slice(chunk);
            *chunk = Arc::new(copy);
        }
        let entries = Arc::get_mut(chunk)?;
        if len > entries.capacity() {
            entries.reserve_exact(Self::capacity(len, is_only) - entries.len());
        }
        Some(entries)
    }

    /// Returns the capacity of a chunk that needs memory for `len` entries: that of a full one or, if it is the
    /// only one of its map, an eighth more than it needs. There may be millions of maps with few entries.
    fn capacity(len: usize, is_only: bool) -> usize {
        if is_only { (len + len / 8).min(Self::CHUNK_MAX).max(len) } else { Self::CHUNK_MAX.max(len) }
    }

    /// Returns the number of entries that a chunk can still take; 0 if there is no such chunk.
    fn room(&self, of: usize) -> usize {
        self.chunks.get(of).map_or(0, |(_, chunk)| Self::CHUNK_MAX.saturating_sub(chunk.len()))
    }

    /// Sets the value of this key. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        // Keys often arrive in ascending order, as when a member starts with millions of leases.
        let last = self.chunks.len().checked_sub(1);
        let is_of_last = self.chunks.last().is_some_and(|(bound, _)| *bound <= key);
        let of = if is_of_last { last } else { self.chunk_of(&key).or(last.map(|_| 0)) };
        let Some(of) = of else {
            // There may be millions of maps with one entry, such as the keys of leases.
            self.chunks.reserve_exact(1);
            self.chunks.push((key.clone(), Arc::new(vec![(key, value)])));
            self.len = 1;
            return None;
        };
        let (_, chunk) = self.chunks.get(of)?;
        let place = match chunk.last() {
            Some((last, _)) if *last < key => Err(chunk.len()),
            _ => chunk.binary_search_by(|(known, _)| known.cmp(&key)),
        };
        let at = match place {
            Ok(at) => {
                let (_, known) = self.entries_mut(of, 0)?.get_mut(at)?;
                return Some(std::mem::replace(known, value));
            }
            Err(at) => at,
        };
        let (of, at) = if self.room(of) > 0 { (of, at) } else { self.make_room(of, at, &key)? };
        if at == 0
            && let Some((bound, _)) = self.chunks.get_mut(of)
        {
            *bound = key.clone();
        }
        self.entries_mut(of, 1)?.insert(at, (key, value));
        self.len += 1;
        None
    }

    /// Makes room for a new key that belongs at the place `at` of the full chunk `of`. Returns the chunk and the
    /// place at which it belongs then.
    fn make_room(&mut self, of: usize, at: usize, key: &K) -> Option<(usize, usize)> {
        let before = of.checked_sub(1).map_or(0, |before| self.room(before));
        let after = self.room(of + 1);
        // Only what is on the neighbour's side of the new key moves. So a chunk that is filled in order stays full.
        if after > 0 && after >= before {
            let kept = at.max(Self::CHUNK_MAX - after.div_ceil(2));
            let moved = self.entries_mut(of, 0)?.split_off(kept);
            self.entries_mut(of + 1, moved.len() + 1)?.splice(..0, moved);
            self.set_bound(of + 1);
            return Some(if kept < Self::CHUNK_MAX { (of, at) } else { (of + 1, 0) });
        }
        if let Some(neighbour) = of.checked_sub(1)
            && before > 0
        {
            let count = at.min(before.div_ceil(2));
            let moved: Vec<(K, V)> = self.entries_mut(of, 0)?.drain(..count).collect();
            let entries = self.entries_mut(neighbour, count + 1)?;
            entries.extend(moved);
            let len = entries.len();
            self.set_bound(of);
            return Some(if count > 0 { (of, at - count) } else { (neighbour, len) });
        }
        let mut rest = Vec::with_capacity(Self::CHUNK_MAX);
        if at == 0 {
            self.chunks.insert(of, (key.clone(), Arc::new(rest)));
            return Some((of, 0));
        }
        rest.extend(self.entries_mut(of, 0)?.drain(at..));
        let bound = rest.first().map_or(key, |(first, _)| first).clone();
        self.chunks.insert(of + 1, (bound, Arc::new(rest)));
        Some(if at <= Self::CHUNK_MAX / 2 { (of, at) } else { (of + 1, 0) })
    }

    /// Makes the bound of a chunk its first key.
    fn set_bound(&mut self, of: usize) {
        if let Some((bound, chunk)) = self.chunks.get_mut(of)
            && let Some((first, _)) = chunk.first()
        {
            *bound = first.clone();
        }
    }

    /// Removes this key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let of = self.chunk_of(key)?;
        let (_, chunk) = self.chunks.get(of)?;
        let at = chunk.binary_search_by(|(known, _)| known.borrow().cmp(key)).ok()?;
        let entries = self.entries_mut(of, 0)?;
        let (_, value) = entries.remove(at);
        let left = entries.len();
        self.len -= 1;
        if left == 0 {
            self.chunks.remove(of);
        } else {
            let fits = |other: usize| {
                self.chunks.get(other).is_some_and(|(_, chunk)| left + chunk.len() <= Self::MERGED_MAX)
            };
            // The previous chunk may take the rest, too: keys that are removed in ascending order leave small chunks
            // behind.
            let merged =
                if fits(of + 1) { Some(of) } else { of.checked_sub(1).filter(|before| fits(*before)) };
            if let Some(into) = merged {
                let (_, next) = self.chunks.remove(into + 1);
                self.entries_mut(into, next.len())?.extend_from_slice(&next);
            }
        }
        // What is left of a map may stay for long.
        if let [(_, only)] = self.chunks.as_mut_slice()
            && only.len() < only.capacity() / 4
            && let Some(entries) = Arc::get_mut(only)
        {
            entries.shrink_to(Self::capacity(entries.len(), true));
        }
        Some(value)
    }

    /// Returns all entries in ascending key order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks.iter().flat_map(|(_, chunk)| chunk.iter().map(|(key, value)| (key, value)))
    }

    /// Returns the entry with the smallest key.
    pub fn first(&self) -> Option<(&K, &V)> {
        self.chunks.first()?.1.first().map(|(key, value)| (key, value))
    }

    /// Returns a key of the map; seeds that follow each other select keys far apart, all over the order of the keys.
    pub fn some_key(&self, seed: u64) -> Option<&K> {
        // An odd factor spreads the seeds, whose upper half then selects a chunk. All chunks have about as many entries.
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let at = (mixed as usize).checked_rem(self.chunks.len())?;
        self.chunks.get(at)?.1.first().map(|(key, _)| key)
    }

    /// Removes the entries with the largest keys, which are those of one chunk. Returns their number; 0 once the map is
    /// empty. It is the cheapest way to empty a large map in slices.
    pub fn remove_chunk(&mut self) -> usize {
        let removed = self.chunks.pop().map_or(0, |(_, chunk)| chunk.len());
        self.len -= removed;
        removed
    }

    /// Returns all keys in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Returns the entries after this key, or all entries if `None`, in key order.
    pub fn after<'a, Q: Ord + ?Sized>(
        &'a self,
        key: Option<&Q>,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let (of, at) = match key {
            None => (0, 0),
            Some(key) => {
                let of = self.chunk_of(key).unwrap_or(0);
                let at = |chunk: &Vec<(K, V)>| chunk.partition_point(|(known, _)| known.borrow() <= key);
                (of, self.chunks.get(of).map_or(0, |(_, chunk)| at(chunk)))
            }
        };
        let chunks = self.chunks.get(of..).unwrap_or_default();
        chunks.iter().flat_map(|(_, chunk)| chunk.iter().map(|(key, value)| (key, value))).skip(at)
    }
}

/// Iterator that moves the entries out of a map in key order. Each chunk is freed once its entries have been
/// returned.
pub struct IntoEntries<K, V> {
    chunks: std::vec::IntoIter<(K, Chunk<K, V>)>,
    entries: std::vec::IntoIter<(K, V)>,
}

impl<K: Clone, V: Clone> Iterator for IntoEntries<K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(entry);
            }
            let (_, chunk) = self.chunks.next()?;
            self.entries = Arc::unwrap_or_clone(chunk).into_iter();
        }
    }
}

impl<K: Clone, V: Clone> IntoIterator for SharedMap<K, V> {
    type Item = (K, V);
    type IntoIter = IntoEntries<K, V>;

    fn into_iter(self) -> IntoEntries<K, V> {
        IntoEntries { chunks: self.chunks.into_iter(), entries: Vec::new().into_iter() }
    }
}

impl<K: Ord + Clone + PartialEq, V: Clone + PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &SharedMap<K, V>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Ord + Clone, V: Clone + Eq> Eq for SharedMap<K, V> {}

impl<K: Ord + Clone + std::fmt::Debug, V: Clone + std::fmt::Debug> std::fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Entries of a full chunk of the maps of these tests, whose entries have 16 bytes.
    const CHUNK_MAX: usize = SharedMap::<u64, u64>::CHUNK_MAX;

    /// Returns the number of entries for which the chunks have memory.
    fn capacity(map: &SharedMap<u32, u64>) -> usize {
        map.chunks.iter().map(|(_, chunk)| chunk.capacity()).sum()
    }

    #[test]
    fn keys_in_no_order_that_somebody_chooses_make_many_chunks() {
        let mut map = SharedMap::new();
        for key in 0..CHUNK_MAX as u32 {
            map.insert(key, 0);
        }
        for key in (1000..101_000).rev() {
            map.insert(key, 0);
        }
        assert!(map.chunks.len() < 100_000 / (CHUNK_MAX / 4), "{} chunks", map.chunks.len());
        for step in [1, 100] {
            let mut map = SharedMap::new();
            for key in 0..100_000 {
                map.insert(key, 0);
            }
            for key in (0..100_000).filter(|key| key % 100 != step - 1) {
                map.remove(&key);
            }
            assert_eq!(map.len(), 1000);
            assert!(capacity(&map) < 4000, "memory for {} of 1000 entries", capacity(&map));
        }
    }

    /// Asserts that the map equals the model, and that its chunks are valid.
    fn assert_holds(map: &SharedMap<u32, u64>, model: &BTreeMap<u32, u64>) {
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        assert!(map.iter().eq(model.iter()));
        assert!(map.chunks.iter().all(|(_, chunk)| (1..=CHUNK_MAX).contains(&chunk.len())));
        assert!(map.chunks.iter().all(|(first, chunk)| chunk.first().is_some_and(|(key, _)| first <= key)));
        assert!(map.chunks.windows(2).all(|two| two[0].1.last().is_some_and(|(key, _)| *key < two[1].0)));
    }

    #[test]
    fn it_does_what_an_ordered_map_does_and_copies_stay_as_they_are() {
        let (mut map, mut model) = (SharedMap::default(), BTreeMap::new());
        let mut copies: Vec<(SharedMap<u32, u64>, BTreeMap<u32, u64>)> = Vec::new();
        let mut random = testkit::Random::new(7);
        for step in 0..60_000u64 {
            let key = random.below(6000) as u32;
            // The map grows for the first half of the steps, then shrinks until it is empty.
            let grows = step < 30_000;
            match random.below(8) {
                0 => assert_eq!(map.get(&key), model.get(&key)),
                1 if map.get(&key).is_some() => {
                    *map.get_mut(&key).expect("is there") = step;
                    model.insert(key, step);
                }
                2..=6 if grows => assert_eq!(map.insert(key, step), model.insert(key, step)),
                7 if grows => assert_eq!(map.remove(&key), model.remove(&key)),
                _ => assert_eq!(map.remove(&key), model.remove(&key)),
            }
            if step % 6000 == 0 {
                assert!(map.after(Some(&key)).eq(model.range(key + 1..)));
                copies.push((map.clone(), model.clone()));
            }
        }
        assert_holds(&map, &model);
        for (map, model) in &copies {
            assert_holds(map, model);
            assert!(map.clone().into_iter().eq(model.iter().map(|(key, value)| (*key, *value))));
        }
        for key in 0..6000 {
            assert_eq!(map.remove(&key), model.remove(&key));
        }
        assert_holds(&map, &model);
        assert!(map.chunks.is_empty() && map.after(Some(&1)).next().is_none());
    }

    #[test]
    fn little_memory_is_unused_whatever_the_order_of_the_keys() {
        const KEYS: u64 = 100_000;
        // Keys in order, but each among the next `window` ones, as from so many clients at once.
        let nearly_in_order = |window: u64| {
            let mut random = testkit::Random::new(window);
            let mut waiting: Vec<u64> = (0..window).collect();
            let mut next = window..KEYS;
            let from = move || {
                let at = random.below(waiting.len() as u64) as usize;
                match next.next() {
                    Some(key) => std::mem::replace(&mut waiting[at], key),
                    None => waiting.swap_remove(at),
                }
            };
            std::iter::repeat_with(from).take(KEYS as usize)
        };
        let mut random = testkit::Random::new(11);
        let in_no_order = || random.below(u64::MAX);
        // Three series that ascend, as the ids that three members make.
        let in_series = (0..KEYS).map(|key| ((key % 3) << 32) + key / 3);
        type Keys<'k> = Box<dyn Iterator<Item = u64> + 'k>;
        let orders: [(&str, f64, Keys<'_>); 8] = [
            ("ascending", 1.01, Box::new(0..KEYS)),
            ("descending", 1.01, Box::new((0..KEYS).rev())),
            ("in series", 1.01, Box::new(in_series)),
            ("within 16", 1.02, Box::new(nearly_in_order(16))),
            ("within 250", 1.11, Box::new(nearly_in_order(250))),
            ("within 1000", 1.15, Box::new(nearly_in_order(1000))),
            ("within 4000", 1.16, Box::new(nearly_in_order(4000))),
            ("in no order", 1.16, Box::new(std::iter::repeat_with(in_no_order).take(KEYS as usize))),
        ];
        for (order, most, keys) in orders {
            let mut map: SharedMap<u64, u64> = SharedMap::new();
            for key in keys {
                map.insert(key, key);
            }
            let capacity: usize = map.chunks.iter().map(|(_, chunk)| chunk.capacity()).sum();
            let each = capacity as f64 / KEYS as f64;
            assert!(map.len() == KEYS as usize && each <= most, "{order}: memory for {each:.3} entries each");
            while !map.is_empty() {
                let before = map.len();
                let removed = map.remove_chunk();
                assert!((1..=CHUNK_MAX).contains(&removed) && map.len() == before - removed);
            }
            assert_eq!(map.remove_chunk(), 0);
        }
    }

    #[test]
    fn a_small_map_has_the_memory_that_it_needs() {
        let mut map: SharedMap<u64, u64> = SharedMap::new();
        assert_eq!(map.first(), None);
        for key in 0..CHUNK_MAX as u64 {
            map.insert(key, key);
            let [(_, only)] = map.chunks.as_slice() else { unreachable!("the map has one chunk") };
            assert!(only.capacity() <= (only.len() + only.len() / 8).min(CHUNK_MAX), "{}", only.capacity());
        }
        for key in (1..2000).rev().chain(CHUNK_MAX as u64..2000) {
            map.insert(key, key);
        }
        for key in (8..2000).rev() {
            map.remove(&key);
        }
        let [(_, only)] = map.chunks.as_slice() else { unreachable!("the map has one chunk") };
        assert!((only.len(), only.capacity()) <= (8, 40), "{}", only.capacity());
        assert_eq!(map.first(), Some((&0, &0)));
    }

    #[test]
    fn chunks_are_well_filled_and_a_copy_shares_all_but_what_changes() {
        let mut map = SharedMap::default();
        for key in 0..100_000u64 {
            map.insert(key, ());
        }
        assert!(map.chunks.len() <= 100_000 / CHUNK_MAX + 1);
        let copy = map.clone();
        for key in 5000..5010 {
            map.remove(&key);
        }
        let shared = map.chunks.iter().zip(&copy.chunks).filter(|(a, b)| Arc::ptr_eq(&a.1, &b.1)).count();
        assert_eq!(shared, copy.chunks.len() - 1);
        for key in 0..99_990u64 {
            map.remove(&key);
        }
        assert!(map.chunks.len() <= 2, "what has become small is merged: {}", map.chunks.len());
    }
}
