//! Which watches a key concerns.

use std::collections::HashMap;

use bytes::Bytes;

/// Where a range ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// Before this key.
    Before(Bytes),
    /// Nowhere.
    Unbounded,
}

impl End {
    fn is_above(&self, key: &[u8]) -> bool {
        match self {
            End::Before(end) => key < end.as_ref(),
            End::Unbounded => true,
        }
    }
}

/// The keys that a watch is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Keys {
    /// One key.
    Single(Bytes),
    /// Keys from one on.
    Range(Bytes, End),
}

/// Things in the order of their serial numbers, which mostly come ascending.
#[derive(Debug)]
struct Crowd<T>(Vec<(u64, T)>);

impl<T> Crowd<T> {
    fn insert(&mut self, serial: u64, item: T) {
        let at = self.0.partition_point(|(other, _)| *other < serial);
        assert!(self.0.get(at).is_none_or(|(other, _)| *other != serial), "{serial} is in the index already");
        self.0.insert(at, (serial, item));
    }

    fn remove(&mut self, serial: u64) -> Option<T> {
        let at = self.0.binary_search_by_key(&serial, |(other, _)| *other).ok()?;
        Some(self.0.remove(at).1)
    }
}

/// Things by the keys they are about: single keys in a map, ranges in an interval tree. Finding those of a key costs
/// O(log n) and what is found.
#[derive(Debug)]
pub(super) struct Index<T> {
    singles: HashMap<Bytes, Crowd<T>>,
    ranges: Option<Box<Node<T>>>,
    /// State of the generator of the tree's priorities.
    priority: u64,
    len: usize,
}

/// A node of a treap (Seidel and Aragon, "Randomized search trees", 1996) ordered by range; each knows the greatest
/// end below it.
#[derive(Debug)]
struct Node<T> {
    start: Bytes,
    end: End,
    end_max: End,
    priority: u64,
    crowd: Crowd<T>,
    left: Option<Box<Node<T>>>,
    right: Option<Box<Node<T>>>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Index { singles: HashMap::new(), ranges: None, priority: 0x9e37_79b9_7f4a_7c15, len: 0 }
    }
}

impl<T> Index<T> {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a thing in; its serial number is its own.
    pub fn insert(&mut self, keys: &Keys, serial: u64, item: T) {
        match keys {
            Keys::Single(key) => match self.singles.get_mut(key) {
                Some(crowd) => crowd.insert(serial, item),
                None => {
                    self.singles.insert(key.clone(), Crowd(vec![(serial, item)]));
                }
            },
            Keys::Range(start, end) => {
                // xorshift64: anything but sorted priorities will do.
                self.priority ^= self.priority << 13;
                self.priority ^= self.priority >> 7;
                self.priority ^= self.priority << 17;
                let fresh = (self.priority, serial, item);
                self.ranges = Some(Node::insert(self.ranges.take(), start, end, fresh));
            }
        }
        self.len += 1;
    }

    /// Takes a thing out, if it is in.
    pub fn remove(&mut self, keys: &Keys, serial: u64) -> Option<T> {
        let removed = match keys {
            Keys::Single(key) => {
                let crowd = self.singles.get_mut(key)?;
                let removed = crowd.remove(serial);
                if crowd.0.is_empty() {
                    self.singles.remove(key);
                }
                removed
            }
            Keys::Range(start, end) => Node::remove(&mut self.ranges, start, end, serial),
        };
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// Visits everything that is about `key`.
    pub fn visit(&self, key: &[u8], visit: &mut impl FnMut(&T)) {
        if let Some(crowd) = self.singles.get(key) {
            crowd.0.iter().for_each(|(_, item)| visit(item));
        }
        Node::visit(&self.ranges, key, visit);
    }

    /// Visits everything.
    pub fn visit_all(&self, visit: &mut impl FnMut(&T)) {
        for crowd in self.singles.values() {
            crowd.0.iter().for_each(|(_, item)| visit(item));
        }
        Node::visit_all(&self.ranges, visit);
    }
}

impl<T> Node<T> {
    fn refresh(&mut self) {
        let mut greatest = &self.end;
        for child in [&self.left, &self.right].into_iter().flatten() {
            greatest = greatest.max(&child.end_max);
        }
        if self.end_max != *greatest {
            self.end_max = greatest.clone();
        }
    }

    fn order(&self, start: &Bytes, end: &End) -> std::cmp::Ordering {
        start.cmp(&self.start).then_with(|| end.cmp(&self.end))
    }

    fn insert(
        node: Option<Box<Node<T>>>,
        start: &Bytes,
        end: &End,
        (priority, serial, item): (u64, u64, T),
    ) -> Box<Node<T>> {
        let Some(mut node) = node else {
            return Box::new(Node {
                start: start.clone(),
                end: end.clone(),
                end_max: end.clone(),
                priority,
                crowd: Crowd(vec![(serial, item)]),
                left: None,
                right: None,
            });
        };
        match node.order(start, end) {
            std::cmp::Ordering::Equal => node.crowd.insert(serial, item),
            std::cmp::Ordering::Less => {
                let mut child = Node::insert(node.left.take(), start, end, (priority, serial, item));
                if child.priority > node.priority {
                    node.left = child.right.take();
                    node.refresh();
                    child.right = Some(node);
                    node = child;
                } else {
                    node.left = Some(child);
                }
            }
            std::cmp::Ordering::Greater => {
                let mut child = Node::insert(node.right.take(), start, end, (priority, serial, item));
                if child.priority > node.priority {
                    node.right = child.left.take();
                    node.refresh();
                    child.left = Some(node);
                    node = child;
                } else {
                    node.right = Some(child);
                }
            }
        }
        node.refresh();
        node
    }

    fn remove(slot: &mut Option<Box<Node<T>>>, start: &Bytes, end: &End, serial: u64) -> Option<T> {
        let node = slot.as_mut()?;
        let removed = match node.order(start, end) {
            std::cmp::Ordering::Equal => {
                let removed = node.crowd.remove(serial);
                if node.crowd.0.is_empty() {
                    let (left, right) = (node.left.take(), node.right.take());
                    *slot = Node::merge(left, right);
                    return removed;
                }
                removed
            }
            std::cmp::Ordering::Less => Node::remove(&mut node.left, start, end, serial),
            std::cmp::Ordering::Greater => Node::remove(&mut node.right, start, end, serial),
        };
        node.refresh();
        removed
    }

    /// One tree of two, of which all of the left come before all of the right.
    fn merge(left: Option<Box<Node<T>>>, right: Option<Box<Node<T>>>) -> Option<Box<Node<T>>> {
        match (left, right) {
            (Some(mut left), Some(mut right)) => Some(if left.priority > right.priority {
                left.right = Node::merge(left.right.take(), Some(right));
                left.refresh();
                left
            } else {
                right.left = Node::merge(Some(left), right.left.take());
                right.refresh();
                right
            }),
            (one, other) => one.or(other),
        }
    }

    fn visit(node: &Option<Box<Node<T>>>, key: &[u8], visit: &mut impl FnMut(&T)) {
        let Some(node) = node else { return };
        if !node.end_max.is_above(key) {
            return;
        }
        Node::visit(&node.left, key, visit);
        if node.start.as_ref() <= key {
            if node.end.is_above(key) {
                node.crowd.0.iter().for_each(|(_, item)| visit(item));
            }
            Node::visit(&node.right, key, visit);
        }
    }

    fn visit_all(node: &Option<Box<Node<T>>>, visit: &mut impl FnMut(&T)) {
        let Some(node) = node else { return };
        Node::visit_all(&node.left, visit);
        node.crowd.0.iter().for_each(|(_, item)| visit(item));
        Node::visit_all(&node.right, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keys {
        fn holds(&self, key: &[u8]) -> bool {
            match self {
                Keys::Single(single) => single == key,
                Keys::Range(start, end) => start.as_ref() <= key && end.is_above(key),
            }
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % n
        }

        fn key(&mut self) -> Bytes {
            let len = self.below(3) as usize;
            (0..len).map(|_| b'a' + self.below(6) as u8).collect::<Vec<_>>().into()
        }

        fn keys(&mut self) -> Keys {
            let (one, other) = (self.key(), self.key());
            match self.below(4) {
                0 => Keys::Single(one),
                1 => Keys::Range(one, End::Unbounded),
                _ => Keys::Range(one.clone().min(other.clone()), End::Before(one.max(other))),
            }
        }
    }

    #[test]
    fn finds_what_a_list_finds() {
        for seed in 0..20 {
            let mut random = Random(seed);
            let mut index = Index::default();
            let mut list: Vec<(u64, Keys)> = Vec::new();
            for serial in 0..600u64 {
                let keys = random.keys();
                index.insert(&keys, serial, serial);
                list.push((serial, keys));
                while random.below(3) == 0 && !list.is_empty() {
                    let (serial, keys) = list.swap_remove(random.below(list.len() as u64) as usize);
                    assert_eq!(index.remove(&keys, serial), Some(serial));
                    assert_eq!(index.remove(&keys, serial), None);
                }
                assert_eq!(index.len, list.len());
                let key = random.key();
                let mut found = Vec::new();
                index.visit(&key, &mut |serial| found.push(*serial));
                found.sort_unstable();
                let mut expected: Vec<u64> =
                    list.iter().filter(|(_, keys)| keys.holds(&key)).map(|(serial, _)| *serial).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed}, key {key:?}");
            }
            let mut all = Vec::new();
            index.visit_all(&mut |serial| all.push(*serial));
            assert_eq!(all.len(), list.len());
            for (serial, keys) in list {
                assert_eq!(index.remove(&keys, serial), Some(serial));
            }
            assert!(index.is_empty() && index.ranges.is_none() && index.singles.is_empty());
        }
    }

    #[test]
    fn ascending_ranges_make_no_deep_tree() {
        fn depth(node: &Option<Box<Node<u64>>>) -> usize {
            node.as_ref().map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
        }
        let mut index = Index::default();
        for n in 0..10_000u64 {
            let start = Bytes::from(format!("{n:08}"));
            index.insert(&Keys::Range(start.clone(), End::Before(start)), n, n);
        }
        assert!(depth(&index.ranges) < 60, "depth {}", depth(&index.ranges));
    }
}
