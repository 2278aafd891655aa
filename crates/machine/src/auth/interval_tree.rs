//! Reproduces etcd's red-black interval tree, because the shape of that tree decides the result of some
//! permission checks.

use std::cmp::Ordering;

use bytes::Bytes;

/// Compares two bounds as etcd does. An empty bound is after all others.
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    a.is_empty().cmp(&b.is_empty()).then_with(|| a.cmp(b))
}

/// Keys from `begin` up to but not including `end`; an empty `end` means no upper bound. If `end` is not
/// after `begin`, the interval contains no keys, but the tree orders and searches it like any other interval.
#[derive(Clone, Copy)]
pub(super) struct Interval<'a> {
    pub begin: &'a [u8],
    pub end: &'a [u8],
}

impl Interval<'_> {
    /// Returns `Equal` if the two intervals overlap; otherwise the side of `other` on which `self` is. The
    /// comparisons must be made in etcd's order: if one interval contains no keys, the result depends on it.
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
    /// The largest `end` of the node and all its descendants. Valid only after `set_max`, which is called
    /// when all intervals are inserted.
    max: Bytes,
    is_red: bool,
    /// Left and right subtree.
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

    /// Inserts an interval below `node`. Returns the new root of the subtree.
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

    /// Repairs a red node with a red child after an insertion on this side. If `self` itself is red, its
    /// parent makes the repair.
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

    /// Rotates the child on this side into the position of this node. Returns the child.
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

    /// Visits, in order, the intervals that etcd's search finds to overlap `asked`, and merges them into
    /// `found`. Returns false at the first gap.
    ///
    /// An interval without keys does not fit into the order of the tree, so whether a subtree is searched
    /// depends on the nodes above it. The result must be the same as in etcd, so the search visits the same
    /// nodes.
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

/// Intervals in a tree with the shape that etcd's tree has after the same insertions. It is the red-black
/// tree of Cormen, Leiserson, Rivest and Stein, in which each node also stores the largest end below it.
///
/// For an interval with keys, the result is the same as the result of [`super::KeyRanges`], which needs no
/// tree. For an interval without keys, etcd skips subtrees depending on their position:
///
/// ```text
/// [a, c) with right child [m, z):  [n, a) is after [a, c), and does not overlap [a, z): child skipped
/// [m, z) with left child [a, c):   [n, a) overlaps [m, z), as etcd compares them: allowed
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IntervalTree(Option<Box<Node>>);

impl IntervalTree {
    /// Builds the tree by inserting these intervals, each given by its begin and end, in this order.
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

    /// Returns true if, by etcd's search, the intervals of the tree cover `asked`.
    pub(super) fn covers(&self, asked: Interval<'_>) -> bool {
        let mut found = None;
        self.0.as_ref().is_none_or(|root| root.visit(asked, &mut found))
            && found.is_some_and(|found| {
                compare(found.end, asked.end).is_ge() && compare(found.begin, asked.begin).is_le()
            })
    }
}
