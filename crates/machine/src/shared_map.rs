//! Provides an ordered map that is cheap to copy.
//!
//! The map consists of sorted chunks of up to 256 entries behind shared pointers. A copy shares all chunks
//! with its original; a write clones the chunk that it changes if another copy shares that chunk. So a list
//! of a million leases, or the million keys of one lease, is copied by copying some thousand pointers, and
//! another thread can read the copy, which does not change. The cost is that a look-up takes two binary
//! searches instead of computing one hash. In return, no operation takes as long as the growth of a large
//! hash table.

use std::borrow::Borrow;
use std::sync::Arc;

const CHUNK_MAX: usize = 256;

/// Entries in the order of their keys.
type Chunk<K, V> = Arc<Vec<(K, V)>>;

/// An ordered map. Copying it costs one pointer per 128 to 256 entries.
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
        let (_, chunk) = self.chunks.get_mut(of)?;
        let at = chunk.binary_search_by(|(known, _)| known.borrow().cmp(key)).ok()?;
        Arc::make_mut(chunk).get_mut(at).map(|(_, value)| value)
    }

    /// Sets the value of this key. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(of) = self.chunk_of(&key).or((!self.chunks.is_empty()).then_some(0)) else {
            // There may be millions of maps with one entry, such as the keys of leases.
            self.chunks.reserve_exact(1);
            self.chunks.push((key.clone(), Arc::new(vec![(key, value)])));
            self.len = 1;
            return None;
        };
        let (first, chunk) = self.chunks.get_mut(of)?;
        let at = match chunk.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(at) => {
                let (_, known) = Arc::make_mut(chunk).get_mut(at)?;
                return Some(std::mem::replace(known, value));
            }
            Err(at) => at,
        };
        self.len += 1;
        if key < *first {
            *first = key.clone();
        }
        if chunk.len() < CHUNK_MAX {
            let entries = Arc::make_mut(chunk);
            make_room(entries);
            entries.insert(at, (key, value));
            return None;
        }
        // The key belongs between this full chunk and the next one. If that has room, it goes there: otherwise
        // keys in descending order would make a chunk each.
        if at == CHUNK_MAX
            && let Some((first, next)) = self.chunks.get_mut(of + 1)
            && next.len() < CHUNK_MAX / 2
        {
            *first = key.clone();
            let next = Arc::make_mut(next);
            make_room(next);
            next.insert(0, (key, value));
            return None;
        }
        let entries = Arc::make_mut(&mut self.chunks.get_mut(of)?.1);
        // Keys often arrive in ascending order. In that case the full chunk stays full, and a new chunk
        // begins.
        let mut rest = entries.split_off(if at == CHUNK_MAX { CHUNK_MAX } else { CHUNK_MAX / 2 });
        match at.checked_sub(entries.len()) {
            Some(at) => {
                make_room(&mut rest);
                rest.insert(at, (key, value));
            }
            None => entries.insert(at, (key, value)),
        }
        // The first half may not grow again, but has the capacity of a full chunk.
        entries.shrink_to(entries.len() + entries.len() / 8);
        if let Some((first, _)) = rest.first() {
            self.chunks.insert(of + 1, (first.clone(), Arc::new(rest)));
        }
        None
    }

    /// Removes this key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let of = self.chunk_of(key)?;
        let (_, chunk) = self.chunks.get_mut(of)?;
        let at = chunk.binary_search_by(|(known, _)| known.borrow().cmp(key)).ok()?;
        let entries = Arc::make_mut(chunk);
        let (_, value) = entries.remove(at);
        let left = entries.len();
        // What is left may stay for long.
        if left < entries.capacity() / 4 {
            entries.shrink_to(left + left / 8);
        }
        self.len -= 1;
        if left == 0 {
            self.chunks.remove(of);
            return Some(value);
        }
        let fits = |other: usize| {
            self.chunks.get(other).is_some_and(|(_, chunk)| left + chunk.len() <= CHUNK_MAX / 2)
        };
        // The previous chunk may take the rest, too: keys that are removed in ascending order leave small chunks behind.
        let merged = if fits(of + 1) { Some(of) } else { of.checked_sub(1).filter(|before| fits(*before)) };
        if let Some(into) = merged {
            let (_, next) = self.chunks.remove(into + 1);
            if let Some((_, chunk)) = self.chunks.get_mut(into) {
                Arc::make_mut(chunk).extend_from_slice(&next);
            }
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

    /// Removes the entries with the largest keys, up to 256 of them. Returns their number; 0 once the map is
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

/// Reserves capacity for one more entry of a chunk, and for an eighth more than it has. A vector would double
/// its capacity, which a full chunk never needs, and a third of the memory of a large map would be unused.
fn make_room<T>(entries: &mut Vec<T>) {
    if entries.len() == entries.capacity() {
        let more = (1 + entries.len() / 8).min(CHUNK_MAX.saturating_sub(entries.len())).max(1);
        entries.reserve_exact(more);
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
        let mut random = testkit::Random::new(11);
        let (mut ascending, mut mixed) = (SharedMap::new(), SharedMap::new());
        for key in 0..100_000u64 {
            ascending.insert(key, key);
            mixed.insert(random.below(u64::MAX), key);
        }
        let capacity = |map: &SharedMap<u64, u64>| -> usize {
            map.chunks.iter().map(|(_, chunk)| chunk.capacity()).sum()
        };
        assert!(capacity(&ascending) <= 100_000 + CHUNK_MAX, "{}", capacity(&ascending));
        assert!(capacity(&mixed) <= 115_000, "{}", capacity(&mixed));
        assert_eq!((ascending.first(), SharedMap::<u64, u64>::new().first()), (Some((&0, &0)), None));
        while !ascending.is_empty() {
            let before = ascending.len();
            let removed = ascending.remove_chunk();
            assert!((1..=CHUNK_MAX).contains(&removed) && ascending.len() == before - removed);
        }
        assert_eq!(ascending.remove_chunk(), 0);
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
