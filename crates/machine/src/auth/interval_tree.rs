//! etcd's red-black tree of intervals, as far as its shape decides what a user may do.

use std::cmp::Ordering;

use bytes::Bytes;

/// Compares two bounds as etcd does. An empty one is behind all others.
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    a.is_empty().cmp(&b.is_empty()).then_with(|| a.cmp(b))
}

/// Keys from `begin` on, before `end`, which is empty if nothing ends it. Where `end` is not behind `begin`, the interval has
/// no keys, but still a place among the others.
#[derive(Clone, Copy)]
pub(super) struct Interval<'a> {
    pub begin: &'a [u8],
    pub end: &'a [u8],
}

impl Interval<'_> {
    /// `Equal` if the two overlap, else on which side of `other` this one is. The order of the questions matters where one of
    /// the intervals has no keys.
    fn side(self, other: Interval<'_>) -> Ordering {
        if compare(self.begin, other.begin).is_lt() && compare(self.end, other.begin).is_le() {
            Ordering::Less
        } else if compare(self.begin, other.end).is_ge() {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    begin: Bytes,
    end: Bytes,
    /// The largest `end` of the node and all below it. Right only once all intervals are in the tree.
    max: Bytes,
    is_red: bool,
    /// What sorts before the node, and what sorts behind it.
    children: [Option<Box<Node>>; 2],
}

const LEFT: usize = 0;
const RIGHT: usize = 1;

fn is_red(node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.is_red)
}

impl Node {
    fn interval(&self) -> Interval<'_> {
        Interval { begin: &self.begin, end: &self.end }
    }

    fn child(&self, side: usize) -> Option<&Node> {
        self.children[side].as_deref()
    }

    fn is_child_red(&self, side: usize) -> bool {
        is_red(self.child(side))
    }

    fn set_child_black(&mut self, side: usize) {
        if let Some(child) = &mut self.children[side] {
            child.is_red = false;
        }
    }

    /// Inserts below `node`, and returns what is in its place then.
    fn insert(node: Option<Box<Node>>, begin: &Bytes, end: &Bytes) -> Box<Node> {
        let Some(mut node) = node else {
            return Box::new(Node {
                begin: begin.clone(),
                end: end.clone(),
                max: Bytes::new(),
                is_red: true,
                children: [None, None],
            });
        };
        let order = compare(begin, &node.begin).then_with(|| compare(end, &node.end));
        let side = if order.is_lt() { LEFT } else { RIGHT };
        node.children[side] = Some(Node::insert(node.children[side].take(), begin, end));
        node.balanced(side)
    }

    /// Mends what an insertion on this side has left behind: a red node with a red child. A red node leaves that to the one
    /// above it.
    fn balanced(mut self: Box<Node>, side: usize) -> Box<Node> {
        let other = 1 - side;
        let Some(child) = &self.children[side] else { return self };
        let is_inner = child.is_child_red(other);
        if self.is_red || !child.is_red || !(is_inner || child.is_child_red(side)) {
            return self;
        }
        if self.is_child_red(other) {
            self.is_red = true;
            self.set_child_black(LEFT);
            self.set_child_black(RIGHT);
            return self;
        }
        if is_inner {
            self.children[side] = self.children[side].take().map(|child| child.rotated(other));
        }
        self.is_red = true;
        self.set_child_black(side);
        self.rotated(side)
    }

    /// Puts the child of this side in the node's place, and the node below it.
    fn rotated(mut self: Box<Node>, side: usize) -> Box<Node> {
        match self.children[side].take() {
            None => self,
            Some(mut child) => {
                self.children[side] = child.children[1 - side].take();
                child.children[1 - side] = Some(self);
                child
            }
        }
    }

    fn set_max(&mut self) {
        self.max = self.end.clone();
        for child in self.children.iter_mut().flatten() {
            child.set_max();
            if compare(&child.max, &self.max).is_gt() {
                self.max = child.max.clone();
            }
        }
    }

    /// Goes through what is found to overlap `asked`, in order, and joins it in `found`. Returns false at the first gap.
    ///
    /// An interval without keys is neither left nor right of some of those that have its beginning, and is compared with the
    /// others as if it were not backward: whether a subtree is looked at then depends on what is above it.
    fn visit<'a>(&'a self, asked: Interval<'_>, found: &mut Option<Interval<'a>>) -> bool {
        let below =
            |side: usize, found: &mut _| self.child(side).is_none_or(|child| child.visit(asked, found));
        match asked.side(self.interval()) {
            Ordering::Less => below(LEFT, found),
            Ordering::Greater => {
                let all = Interval { begin: &self.begin, end: &self.max };
                all.side(asked).is_ne() || (below(LEFT, found) && below(RIGHT, found))
            }
            Ordering::Equal => below(LEFT, found) && self.join(found) && below(RIGHT, found),
        }
    }

    fn join<'a>(&'a self, found: &mut Option<Interval<'a>>) -> bool {
        match found {
            None => *found = Some(self.interval()),
            Some(joined) if compare(joined.end, &self.begin).is_lt() => return false,
            Some(joined) if compare(&self.end, joined.end).is_gt() => joined.end = &self.end,
            Some(_) => {}
        }
        true
    }
}

/// Intervals in the shape that etcd's tree has after the same insertions: the red-black tree of Cormen, Leiserson, Rivest and
/// Stein, whose nodes know the largest end below them.
///
/// Where every interval that is asked for has keys, the answers are those of [`super::KeyRanges`], which needs no tree. Asked
/// for one without keys, etcd overlooks subtrees, by their place:
///
/// ```text
/// [a, c) with [m, z) on its right:  [n, a) is behind [a, c), and [a, z) is not before it: [m, z) is not looked at
/// [m, z) with [a, c) on its left:   [n, a) overlaps [m, z): allowed
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IntervalTree(Option<Box<Node>>);

impl IntervalTree {
    /// Inserts intervals, each given by its beginning and its end, in this order.
    pub(super) fn of(intervals: impl IntoIterator<Item = (Bytes, Bytes)>) -> IntervalTree {
        let mut root = None;
        for (begin, end) in intervals {
            let mut node = Node::insert(root, &begin, &end);
            node.is_red = false;
            root = Some(node);
        }
        if let Some(root) = &mut root {
            root.set_max();
        }
        IntervalTree(root)
    }

    /// Whether etcd finds that the intervals of the tree cover the one that is asked for.
    pub(super) fn covers(&self, asked: Interval<'_>) -> bool {
        let mut found = None;
        self.0.as_ref().is_none_or(|root| root.visit(asked, &mut found))
            && found.is_some_and(|found| {
                compare(found.end, asked.end).is_ge() && compare(found.begin, asked.begin).is_le()
            })
    }
}
