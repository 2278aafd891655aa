//! Implements the cursor: a position in a frozen tree, from which a reader walks in both directions.

use crate::node::{Inner, Leaf, Node, Order, Slot, prefetch_leaf};
use crate::tree::Stack;
use crate::version::Version;

/// A position in a tree: at an entry, or after the last entry.
pub(crate) struct Cursor<'t, K: Order> {
    root: Option<Node<'t, K>>,
    path: Stack<(&'t Inner<K>, usize)>,
    /// `None` if the position is after the last entry.
    leaf: Option<&'t Leaf>,
    at: usize,
}

impl<K: Order> Clone for Cursor<'_, K> {
    fn clone(&self) -> Self {
        Cursor { root: self.root, path: self.path, leaf: self.leaf, at: self.at }
    }
}

/// Number of entries by which prefetching of records is ahead of the walk.
const PREFETCH: usize = 8;

impl<'t, K: Order> Cursor<'t, K> {
    /// Returns the entry equal to `query`.
    pub(crate) fn find(root: Option<Node<'t, K>>, query: K::Query<'_>) -> Option<Slot> {
        let mut node = root?;
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.find::<K>(query).ok().map(|at| leaf.slots()[at]),
                Node::Inner(inner) => node = inner.child(inner.route(query)),
            }
        }
    }

    /// Returns the position after the last entry.
    pub(crate) fn end(root: Option<Node<'t, K>>) -> Cursor<'t, K> {
        Cursor { root, path: Stack::new(), leaf: None, at: 0 }
    }

    /// Returns the position of the first entry not below `query`; with `after` true, of the first entry above
    /// it.
    pub(crate) fn seek(root: Option<Node<'t, K>>, query: K::Query<'_>, after: bool) -> Cursor<'t, K> {
        let mut cursor = Cursor::end(root);
        let Some(mut node) = root else { return cursor };
        loop {
            match node {
                Node::Leaf(leaf) => {
                    let at = match leaf.find::<K>(query) {
                        Ok(at) => at + usize::from(after),
                        Err(at) => at,
                    };
                    (cursor.leaf, cursor.at) = (Some(leaf), at);
                    if at >= leaf.len() {
                        cursor.next_leaf(false);
                    }
                    return cursor;
                }
                Node::Inner(inner) => {
                    let at = inner.route(query);
                    cursor.path.push((inner, at));
                    node = inner.child(at);
                }
            }
        }
    }

    /// Returns the number of live entries (not tombstones) before this position.
    pub(crate) fn rank(&self) -> u64 {
        let Some(leaf) = self.leaf else {
            return match self.root {
                None => 0,
                Some(Node::Leaf(leaf)) => leaf.weight(),
                Some(Node::Inner(inner)) => inner.weight(),
            };
        };
        let above: u64 = self.path.as_slice().iter().flat_map(|&(inner, at)| &inner.counts[..at]).sum();
        above + leaf.slots()[..self.at].iter().map(|slot| slot.weight()).sum::<u64>()
    }

    pub(crate) fn same_place(&self, other: &Self) -> bool {
        // A leaf that was evicted between two steps may have two addresses, so its place is compared.
        let leaf_of =
            |cursor: &Self| cursor.path.as_slice().last().map(|&(inner, at)| (std::ptr::from_ref(inner), at));
        match (self.leaf, other.leaf) {
            (Some(_), Some(_)) => leaf_of(self) == leaf_of(other) && self.at == other.at,
            (None, None) => true,
            _ => false,
        }
    }

    /// Returns true at the first entry of a leaf, and after the last entry of the tree.
    pub(crate) fn is_at_leaf_start(&self) -> bool {
        self.leaf.is_none() || self.at == 0
    }

    /// Returns the entry at this position; `None` after the last.
    pub(crate) fn slot(&self) -> Option<Slot> {
        self.leaf.map(|leaf| leaf.slots()[self.at])
    }

    /// Returns the version at this position; `None` after the last.
    pub(crate) fn version(&self) -> Option<Version<'t>> {
        self.leaf.map(|leaf| leaf.version(self.at))
    }

    /// Moves to the next entry. If `live_only` is true, subtrees that contain only tombstones may be skipped.
    pub(crate) fn advance(&mut self, live_only: bool) {
        let Some(leaf) = self.leaf else { return };
        self.at += 1;
        if self.at >= leaf.len() {
            self.next_leaf(live_only);
        } else if self.at + PREFETCH < leaf.len() {
            leaf.version(self.at + PREFETCH).prefetch();
        }
    }

    fn next_leaf(&mut self, live_only: bool) {
        self.leaf = None;
        self.at = 0;
        while let Some((inner, at)) = self.path.pop() {
            let next = (at + 1..inner.len()).find(|&next| !live_only || inner.counts[next] > 0);
            if let Some(next) = next {
                self.path.push((inner, next));
                self.descend(inner.child(next), |inner| {
                    (0..inner.len()).find(|&at| !live_only || inner.counts[at] > 0).unwrap_or(0)
                });
                if self.leaf.is_some_and(|leaf| leaf.len() == 0) {
                    // A block could not be read; the base reports it.
                    self.leaf = None;
                    continue;
                }
                self.prefetch(0, 1);
                return;
            }
        }
    }

    /// Prefetches the first records of a leaf that was just entered, and the following leaf in the direction
    /// of the walk.
    fn prefetch(&self, from: usize, step: isize) {
        if let Some(leaf) = self.leaf {
            for at in (from..leaf.len()).take(PREFETCH) {
                leaf.version(at).prefetch();
            }
        }
        if let Some(&(inner, at)) = self.path.as_slice().last()
            && let Some(&next) = inner.children[..inner.len()].get(at.wrapping_add_signed(step))
        {
            prefetch_leaf(next);
        }
    }

    fn descend(&mut self, mut node: Node<'t, K>, choose: impl Fn(&Inner<K>) -> usize) {
        loop {
            match node {
                Node::Leaf(leaf) => {
                    self.leaf = Some(leaf);
                    return;
                }
                Node::Inner(inner) => {
                    let at = choose(inner);
                    self.path.push((inner, at));
                    node = inner.child(at);
                }
            }
        }
    }

    /// Moves to the previous entry. Returns false, without moving, at the first entry. If `live_only` is
    /// true, subtrees that contain only tombstones may be skipped.
    pub(crate) fn retreat(&mut self, live_only: bool) -> bool {
        if self.leaf.is_some() && self.at > 0 {
            self.at -= 1;
            if let Some(leaf) = self.leaf
                && self.at >= PREFETCH
            {
                leaf.version(self.at - PREFETCH).prefetch();
            }
            return true;
        }
        let last = |inner: &Inner<K>| {
            (0..inner.len()).rev().find(|&at| !live_only || inner.counts[at] > 0).unwrap_or(inner.len() - 1)
        };
        let before = self.clone();
        let mut is_found = false;
        if self.leaf.is_none() {
            let Some(root) = self.root else { return false };
            self.descend(root, last);
            is_found = self.leaf.is_some_and(|leaf| leaf.len() > 0);
        }
        // Passes over leaves whose block could not be read, which are empty; the base reports it.
        while !is_found {
            let Some((inner, at)) = self.path.pop() else {
                *self = before;
                return false;
            };
            if let Some(previous) = (0..at).rev().find(|&at| !live_only || inner.counts[at] > 0) {
                self.path.push((inner, previous));
                self.descend(inner.child(previous), last);
                is_found = self.leaf.is_some_and(|leaf| leaf.len() > 0);
            }
        }
        self.at = self.leaf.map_or(0, |leaf| leaf.len() - 1);
        self.prefetch((self.at + 1).saturating_sub(PREFETCH), -1);
        true
    }
}
