//! Finds the watches that match a key: [`Index`], a map for single keys and a balanced tree of ranges. It
//! contains only keys, serial numbers and generic items.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::ops::{Bound, ControlFlow};
use std::rc::Rc;

use planted::{Bug, Measure};
use slab::Slab;

/// A key, or an end of a range. A watch and its index share the bytes.
type Key = Rc<[u8]>;

/// The end of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum End {
    /// The range ends before this key.
    Before(Key),
    /// The range has no end.
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

/// Keys that a watch covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Keys {
    /// One key.
    Single(Key),
    /// All keys from one key up to an end. Boxed, because most watches cover a single key.
    Range(Box<(Key, End)>),
}

impl Keys {
    /// Returns the keys that a request covers: one key; the keys from `key` to before `range_end`; or, with
    /// `range_end` `\0`, all keys from `key` on. Returns `None` if the request covers no keys. The bytes are
    /// copied, because the decoded bytes would keep the whole received frame in memory.
    pub fn of_request(key: &[u8], range_end: &[u8]) -> Option<Keys> {
        let key = Key::from(if key.is_empty() { b"\0" } else { key });
        match range_end {
            b"" => Some(Keys::Single(key)),
            b"\0" => Some(Keys::range(key, End::Unbounded)),
            end if *end <= *key => None,
            end => Some(Keys::range(key, End::Before(Key::from(end)))),
        }
    }

    fn range(start: Key, end: End) -> Keys {
        Keys::Range(Box::new((start, end)))
    }

    /// Returns the keys in the form of a request: key and range end.
    pub fn as_request(&self) -> (&[u8], &[u8]) {
        match self {
            Keys::Single(key) => (key, b""),
            Keys::Range(range) => match &**range {
                (key, End::Unbounded) => (key, b"\0"),
                (start, End::Before(end)) => (start, end),
            },
        }
    }

    /// Returns the number of bytes of the keys that define the range.
    pub fn bytes(&self) -> usize {
        match self {
            Keys::Single(key) => key.len(),
            Keys::Range(range) => match &**range {
                (key, End::Unbounded) => key.len(),
                (start, End::Before(end)) => start.len() + end.len(),
            },
        }
    }
}

/// An item of an index, which knows the keys that it covers: the index itself does not hold the single keys, because
/// there may be millions of items.
pub(super) trait Listed {
    /// Returns the keys, which never change.
    fn keys(&self) -> &Keys;

    /// Returns the serial number, which no other item of the index has.
    fn serial(&self) -> u64;
}

/// Items of the same keys, ordered by serial number. A single item, the usual case, is stored without an
/// allocation.
#[derive(Debug)]
enum Watches<T> {
    One(T),
    /// A tree, because clients choose how many watches one key has, and the order in which they are added and
    /// removed.
    #[expect(clippy::box_collection, reason = "most keys have one")]
    Many(Box<BTreeMap<u64, T>>),
}

impl<T: Listed> Watches<T> {
    fn insert(&mut self, item: T) {
        if let Watches::One(_) = self
            && let Watches::One(first) = std::mem::replace(self, Watches::Many(Box::default()))
            && let Watches::Many(many) = self
        {
            many.insert(first.serial(), first);
        }
        if let Watches::Many(many) = self {
            let serial = item.serial();
            let replaced = many.insert(serial, item);
            assert!(replaced.is_none(), "{serial} is in the index already");
        }
    }

    /// Removes an item, and returns the items that are left, if any.
    fn remove(self, serial: u64) -> (Option<T>, Option<Watches<T>>) {
        match self {
            Watches::One(item) if item.serial() == serial => (Some(item), None),
            Watches::One(_) => (None, Some(self)),
            Watches::Many(mut many) => {
                let removed = many.remove(&serial);
                (removed, if many.is_empty() { None } else { Some(Watches::Many(many)) })
            }
        }
    }

    /// Removes an item in place, unless it is the only one, which is left for [`Watches::remove`]; the second value
    /// tells that.
    fn take(&mut self, serial: u64) -> (Option<T>, bool) {
        match self {
            Watches::One(item) => (None, item.serial() == serial),
            Watches::Many(many) if many.len() == 1 => (None, many.contains_key(&serial)),
            Watches::Many(many) => (many.remove(&serial), false),
        }
    }

    /// Visits the items after the serial number `behind`.
    fn visit(&self, behind: Option<u64>, visit: &mut impl FnMut(&T) -> ControlFlow<()>) -> ControlFlow<()> {
        match self {
            Watches::One(item) if behind.is_some_and(|behind| item.serial() <= behind) => {
                ControlFlow::Continue(())
            }
            Watches::One(item) => visit(item),
            Watches::Many(many) => {
                let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
                many.range((from, Bound::Unbounded)).try_for_each(|(_, item)| visit(item))
            }
        }
    }

    /// Returns the keys of the items. At least one item is left.
    fn keys(&self) -> &Keys {
        match self {
            Watches::One(item) => item.keys(),
            Watches::Many(many) => many.values().next().expect("the index drops keys without items").keys(),
        }
    }
}

/// Items of a single key. Compares and hashes as the key.
#[derive(Debug)]
struct OfKey<T>(Watches<T>);

impl<T: Listed> Borrow<[u8]> for OfKey<T> {
    fn borrow(&self) -> &[u8] {
        match self.0.keys() {
            Keys::Single(key) => key,
            Keys::Range(_) => unreachable!("ranges are in the tree"),
        }
    }
}

impl<T: Listed> Hash for OfKey<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let key: &[u8] = self.borrow();
        key.hash(state);
    }
}

impl<T: Listed> PartialEq for OfKey<T> {
    fn eq(&self, other: &Self) -> bool {
        let (key, other): (&[u8], &[u8]) = (self.borrow(), other.borrow());
        key == other
    }
}

impl<T: Listed> Eq for OfKey<T> {}

/// Position at which a visit stopped: keys and serial number of the last visited item, which may have been
/// removed since.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub keys: Keys,
    pub serial: u64,
}

/// Items by the keys that they cover: single keys in a hash table, ranges in an interval tree. Finding the items of
/// a key costs O(log n) plus the number found; insertion and removal cost O(log n), whatever clients choose
/// to watch.
#[derive(Debug)]
pub(super) struct Index<T> {
    singles: HashSet<OfKey<T>>,
    ranges: Tree<T>,
    len: usize,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Index { singles: HashSet::new(), ranges: Tree::default(), len: 0 }
    }
}

impl<T> Index<T> {
    /// Returns true if the index is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T: Listed> Index<T> {
    /// Inserts an item; no other item may have its serial number.
    pub fn insert(&mut self, item: T) {
        match item.keys().clone() {
            Keys::Single(key) => {
                let all = match self.singles.take(&*key) {
                    Some(OfKey(mut others)) => {
                        others.insert(item);
                        others
                    }
                    None => Watches::One(item),
                };
                self.singles.insert(OfKey(all));
            }
            Keys::Range(range) => self.ranges.insert(&range.0, &range.1, item),
        }
        self.len += 1;
    }

    /// Removes and returns an item, if it exists.
    pub fn remove(&mut self, keys: &Keys, serial: u64) -> Option<T> {
        let removed = match keys {
            Keys::Single(key) => {
                let OfKey(watches) = self.singles.take(&**key)?;
                let (removed, left) = watches.remove(serial);
                if let Some(left) = left {
                    self.singles.insert(OfKey(left));
                }
                removed
            }
            Keys::Range(range) => self.ranges.remove(&range.0, &range.1, serial),
        };
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// Visits all items that cover `key`, until `visit` stops. `visit` must not use this index.
    pub fn visit(&self, key: &[u8], visit: &mut impl FnMut(&T) -> ControlFlow<()>) -> ControlFlow<()> {
        self.visit_behind(key, None, visit)
    }

    /// Visits items as [`Index::visit`] does, after the position at which an earlier visit for the same key
    /// stopped. The order of visits does not depend on items that were added or removed in between.
    pub fn visit_behind(
        &self,
        key: &[u8],
        behind: Option<&Place>,
        visit: &mut impl FnMut(&T) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (serial, range) = match behind {
            None => (None, None),
            Some(Place { keys: Keys::Single(_), serial }) => (Some(*serial), None),
            Some(Place { keys: Keys::Range(range), serial }) => (None, Some((&range.0, &range.1, *serial))),
        };
        if range.is_none()
            && let Some(OfKey(watches)) = self.singles.get(key)
        {
            watches.visit(serial, visit)?;
        }
        self.ranges.visit(key, range, visit)
    }
}

/// Index that means "no node".
const NIL: u32 = u32::MAX;

/// A treap (Seidel and Aragon, "Randomized search trees", 1996) ordered by range. Each node stores the
/// greatest end in its subtree.
///
/// The expected depth is O(log n) as long as clients cannot predict the priorities, so each priority is a
/// hash with a random key of this tree. The visited items and their order do not depend on the priorities, so
/// the behavior is the same in every run. Nodes lie in one array and no function is recursive, so even a
/// deep tree would not exhaust the stack.
#[derive(Debug)]
struct Tree<T> {
    nodes: Slab<Node<T>>,
    root: u32,
    priorities: RandomState,
    /// Number of nodes created so far; the next priority is the hash of this number.
    made: u64,
    /// Nodes from the root to the position of a change. Empty between changes; kept to reuse its memory.
    path: Vec<u32>,
    /// Nodes whose children a change replaced, parents first. Empty between changes; kept to reuse its
    /// memory.
    touched: Vec<u32>,
    /// Nodes to which a visit returns. Unused between visits; kept to reuse its memory.
    stack: RefCell<Vec<u32>>,
}

#[derive(Debug)]
struct Node<T> {
    start: Key,
    end: End,
    end_max: End,
    priority: u64,
    watches: Watches<T>,
    left: u32,
    right: u32,
}

impl<T> Node<T> {
    fn order(&self, start: &Key, end: &End) -> Ordering {
        start.cmp(&self.start).then_with(|| end.cmp(&self.end))
    }
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Tree {
            nodes: Slab::new(),
            root: NIL,
            priorities: RandomState::new(),
            made: 0,
            path: Vec::new(),
            touched: Vec::new(),
            stack: RefCell::default(),
        }
    }
}

impl<T: Listed> Tree<T> {
    fn node(&self, at: u32) -> &Node<T> {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node<T> {
        &mut self.nodes[at as usize]
    }

    /// Makes `child` a child of `parent`, or the root if `parent` is `None`.
    fn attach(&mut self, parent: Option<(u32, Ordering)>, child: u32) {
        match parent {
            None => self.root = child,
            Some((at, Ordering::Less)) => self.node_mut(at).left = child,
            Some((at, _)) => self.node_mut(at).right = child,
        }
    }

    fn refresh(&mut self, at: u32) {
        let node = self.node(at);
        let mut greatest = &node.end;
        for child in [node.left, node.right] {
            if child != NIL {
                greatest = greatest.max(&self.node(child).end_max);
            }
        }
        if node.end_max != *greatest {
            let greatest = greatest.clone();
            self.node_mut(at).end_max = greatest;
        }
    }

    /// Updates `end_max` of the touched nodes, then of the nodes on the path, children first.
    fn refresh_changed(&mut self) {
        while let Some(at) = self.touched.pop() {
            self.refresh(at);
        }
        while let Some(at) = self.path.pop() {
            self.refresh(at);
        }
    }

    fn find(&self, start: &Key, end: &End) -> Option<u32> {
        let mut at = self.root;
        while at != NIL {
            let node = self.node(at);
            at = match node.order(start, end) {
                Ordering::Equal => return Some(at),
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
            };
        }
        None
    }

    fn insert(&mut self, start: &Key, end: &End, item: T) {
        if let Some(at) = self.find(start, end) {
            return self.node_mut(at).watches.insert(item);
        }
        self.made += 1;
        let priority = match planted::is(Bug::WatchTreeDegenerates) {
            true => u64::MAX - self.made,
            false => self.priorities.hash_one(self.made),
        };
        let (mut parent, mut at) = (None, self.root);
        while at != NIL && self.node(at).priority >= priority {
            self.path.push(at);
            let order = self.node(at).order(start, end);
            parent = Some((at, order));
            at = if order.is_lt() { self.node(at).left } else { self.node(at).right };
        }
        planted::looked_at(Measure::WatchDepth, self.path.len());
        let (left, right) = self.split(at, start, end);
        let node = Node {
            start: start.clone(),
            end: end.clone(),
            end_max: end.clone(),
            priority,
            watches: Watches::One(item),
            left,
            right,
        };
        let fresh =
            u32::try_from(self.nodes.insert(node)).expect("fewer than 2^32 - 1 watched ranges fit in memory");
        self.attach(parent, fresh);
        self.path.push(fresh);
        self.refresh_changed();
    }

    /// Splits a tree in two, at a range that it does not contain: the nodes before the range, and those after
    /// it.
    fn split(&mut self, mut at: u32, start: &Key, end: &End) -> (u32, u32) {
        let (mut left, mut right) = (NIL, NIL);
        let (mut left_end, mut right_end) = (NIL, NIL);
        while at != NIL {
            self.touched.push(at);
            let node = self.node(at);
            if node.order(start, end).is_gt() {
                let next = node.right;
                if left_end == NIL {
                    left = at
                } else {
                    self.node_mut(left_end).right = at
                }
                left_end = at;
                at = next;
            } else {
                let next = node.left;
                if right_end == NIL {
                    right = at
                } else {
                    self.node_mut(right_end).left = at
                }
                right_end = at;
                at = next;
            }
        }
        if left_end != NIL {
            self.node_mut(left_end).right = NIL;
        }
        if right_end != NIL {
            self.node_mut(right_end).left = NIL;
        }
        (left, right)
    }

    fn remove(&mut self, start: &Key, end: &End, serial: u64) -> Option<T> {
        self.path.clear();
        let (mut parent, mut at) = (None, self.root);
        while at != NIL {
            let node = self.node(at);
            let order = node.order(start, end);
            let next = match order {
                Ordering::Equal => break,
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
            };
            self.path.push(at);
            (parent, at) = (Some((at, order)), next);
        }
        if at == NIL {
            self.path.clear();
            return None;
        }
        let (removed, is_empty) = self.node_mut(at).watches.take(serial);
        if is_empty {
            let node = self.nodes.remove(at as usize);
            self.merge(parent, node.left, node.right);
            self.refresh_changed();
            // The last item leaves with its node.
            return node.watches.remove(serial).0;
        }
        self.path.clear();
        removed
    }

    /// Merges two trees into one and attaches it at `place`. All nodes of `left` come before all nodes of
    /// `right`.
    fn merge(&mut self, mut place: Option<(u32, Ordering)>, mut left: u32, mut right: u32) {
        while left != NIL && right != NIL {
            if self.node(left).priority > self.node(right).priority {
                self.attach(place, left);
                self.touched.push(left);
                place = Some((left, Ordering::Greater));
                left = self.node(left).right;
            } else {
                self.attach(place, right);
                self.touched.push(right);
                place = Some((right, Ordering::Less));
                right = self.node(right).left;
            }
        }
        self.attach(place, if left == NIL { right } else { left });
    }

    /// Visits the items that cover `key`, ordered by range, after the position `behind`.
    fn visit(
        &self,
        key: &[u8],
        behind: Option<(&Key, &End, u64)>,
        visit: &mut impl FnMut(&T) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.root == NIL {
            return ControlFlow::Continue(());
        }
        let mut stack = self.stack.take();
        stack.clear();
        let mut at = self.root;
        let flow = loop {
            while at != NIL {
                let node = self.node(at);
                if !node.end_max.is_above(key) {
                    break;
                }
                // The nodes before the position, and everything left of them, were visited already.
                let order = behind.map_or(Ordering::Less, |(start, end, _)| node.order(start, end));
                if order.is_gt() {
                    at = node.right;
                    continue;
                }
                if node.start.as_ref() <= key {
                    stack.push(at);
                }
                at = if order.is_eq() { NIL } else { node.left };
            }
            let Some(next) = stack.pop() else { break ControlFlow::Continue(()) };
            let node = self.node(next);
            if node.end.is_above(key) {
                let serial = behind
                    .filter(|(start, end, _)| node.order(start, end).is_eq())
                    .map(|(_, _, serial)| serial);
                if node.watches.visit(serial, visit).is_break() {
                    break ControlFlow::Break(());
                }
            }
            at = node.right;
        };
        *self.stack.borrow_mut() = stack;
        flow
    }

    /// Returns the number of nodes on the longest path from the root.
    #[cfg(test)]
    fn depth(&self) -> usize {
        let (mut deepest, mut below) = (0, vec![(self.root, 1)]);
        while let Some((at, depth)) = below.pop() {
            if at != NIL {
                deepest = deepest.max(depth);
                below.push((self.node(at).left, depth + 1));
                below.push((self.node(at).right, depth + 1));
            }
        }
        deepest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Random;

    /// An item that is only its keys and its number.
    #[derive(Debug, PartialEq)]
    struct Item(Keys, u64);

    impl Listed for Item {
        fn keys(&self) -> &Keys {
            &self.0
        }

        fn serial(&self) -> u64 {
            self.1
        }
    }

    #[test]
    fn a_single_key_takes_two_words_of_the_index() {
        assert_eq!(size_of::<OfKey<std::rc::Rc<Item>>>(), 16);
    }

    impl Keys {
        fn holds(&self, key: &[u8]) -> bool {
            match self {
                Keys::Single(single) => **single == *key,
                Keys::Range(range) => range.0.as_ref() <= key && range.1.is_above(key),
            }
        }
    }

    fn any_key(random: &mut Random) -> Key {
        let len = random.below(3) as usize;
        (0..len).map(|_| b'a' + random.below(6) as u8).collect::<Vec<_>>().into()
    }

    fn any_keys(random: &mut Random) -> Keys {
        let (one, other) = (any_key(random), any_key(random));
        match random.below(4) {
            0 => Keys::Single(one),
            1 => Keys::range(one, End::Unbounded),
            _ => Keys::range(one.clone().min(other.clone()), End::Before(one.max(other))),
        }
    }

    #[test]
    fn finds_what_a_list_finds() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut index = Index::default();
            let mut list: Vec<(u64, Keys)> = Vec::new();
            for serial in 0..600u64 {
                let keys = any_keys(&mut random);
                index.insert(Item(keys.clone(), serial));
                list.push((serial, keys));
                while random.below(3) == 0 && !list.is_empty() {
                    let (serial, keys) = list.swap_remove(random.below(list.len() as u64) as usize);
                    assert_eq!(index.remove(&keys, serial), Some(Item(keys.clone(), serial)));
                    assert_eq!(index.remove(&keys, serial), None);
                }
                assert_eq!(index.len, list.len());
                let key = any_key(&mut random);
                let mut found = Vec::new();
                let _ = index.visit(&key, &mut |Item(_, serial)| {
                    found.push(*serial);
                    ControlFlow::Continue(())
                });
                // Repeat the visit, but stop it at random items and continue it after each stop. Sometimes
                // the item at which it stopped is removed from the index before it continues. It must still
                // visit the same items in the same order as the visit without stops.
                let (mut parts, mut place): (Vec<u64>, Option<Place>) = (Vec::new(), None);
                while index
                    .visit_behind(&key, place.take().as_ref(), &mut |Item(_, serial)| {
                        parts.push(*serial);
                        let keys =
                            list.iter().find(|(other, _)| other == serial).expect("is there").1.clone();
                        place = Some(Place { keys, serial: *serial });
                        if random.below(3) == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                    .is_break()
                {
                    if random.below(4) == 0 {
                        let serial = *parts.last().expect("it stopped there");
                        let at = list.iter().position(|(other, _)| *other == serial).expect("is there");
                        index.remove(&list.swap_remove(at).1, serial);
                    }
                }
                assert_eq!(parts, found, "seed {seed}, key {key:?}");
                found.retain(|serial| list.iter().any(|(other, _)| other == serial));
                found.sort_unstable();
                let mut expected: Vec<u64> =
                    list.iter().filter(|(_, keys)| keys.holds(&key)).map(|(serial, _)| *serial).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed}, key {key:?}");
            }
            for (serial, keys) in list {
                assert_eq!(index.remove(&keys, serial), Some(Item(keys.clone(), serial)));
            }
            assert!(index.is_empty() && index.ranges.nodes.is_empty() && index.singles.is_empty());
        }
    }

    #[test]
    fn ascending_ranges_make_no_deep_tree() {
        let mut index = Index::default();
        for n in 0..10_000u64 {
            let start = Key::from(format!("{n:08}").as_bytes());
            index.insert(Item(Keys::range(start.clone(), End::Before(start)), n));
        }
        assert!(index.ranges.depth() < 60, "depth {}", index.ranges.depth());
    }

    #[test]
    fn ranges_chosen_for_a_known_seed_make_no_deep_tree() {
        // The ranges are inserted in the order of the priorities that a constant seed would give. The range
        // with the highest priority has the smallest start, and so on, so that each node would be the only
        // child of the previous one.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut priorities: Vec<(u64, u64)> = (0..10_000)
            .map(|n| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state, n)
            })
            .collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        let mut starts = vec![0; priorities.len()];
        for (rank, (_, n)) in priorities.into_iter().enumerate() {
            starts[n as usize] = rank;
        }
        let mut index = Index::default();
        for (serial, start) in (0u64..).zip(&starts) {
            let keys = Keys::range(format!("{start:08}").into_bytes().into(), End::Unbounded);
            index.insert(Item(keys, serial));
        }
        assert!(index.ranges.depth() < 60, "depth {}", index.ranges.depth());
    }

    #[test]
    fn no_depth_uses_up_the_stack() {
        // A chain of nodes is built by hand, because no priorities lead to one.
        let mut index = Index::default();
        for n in 0..200_000u64 {
            let start: Key = format!("{n:08}").into_bytes().into();
            let node = Node {
                start: start.clone(),
                end: End::Unbounded,
                end_max: End::Unbounded,
                priority: u64::MAX - n,
                watches: Watches::One(Item(Keys::range(start, End::Unbounded), n)),
                left: NIL,
                right: if n == 199_999 { NIL } else { n as u32 + 1 },
            };
            index.ranges.nodes.insert(node);
            index.len += 1;
        }
        index.ranges.root = 0;
        let mut found = 0;
        let _ = index.visit(b"00199999", &mut |_| {
            found += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(found, 200_000);
        let last = Keys::range(b"00199999"[..].into(), End::Unbounded);
        assert_eq!(index.remove(&last, 199_999), Some(Item(last.clone(), 199_999)));
        index.insert(Item(last, 7));
        let first = Keys::range(b"00000000"[..].into(), End::Unbounded);
        assert_eq!(index.remove(&first, 0), Some(Item(first.clone(), 0)));
        drop(index);
    }

    #[test]
    fn any_number_of_watches_of_one_key_come_and_go() {
        let key = Keys::Single(b"k"[..].into());
        let mut index = Index::default();
        // The smallest serial numbers are inserted last, as for unsynced watches that catch up, and removed
        // first, as when their stream ends. If the index stored its items in an array, each of these steps
        // would move all other items.
        for serial in (0..200_000u64).rev() {
            index.insert(Item(key.clone(), serial));
        }
        let mut order = Vec::new();
        let _ = index.visit(b"k", &mut |Item(_, serial)| {
            order.push(*serial);
            ControlFlow::Continue(())
        });
        assert!(order.iter().copied().eq(0..200_000));
        for serial in 0..200_000u64 {
            assert_eq!(index.remove(&key, serial), Some(Item(key.clone(), serial)));
        }
        assert!(index.is_empty() && index.singles.is_empty());
    }
}
