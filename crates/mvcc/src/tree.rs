//! Implements the writer's operations on the copy-on-write B+tree.
//!
//! The writer changes nodes that it created in the current batch in place. It copies every other node before
//! the first change, so that the tree below a published root never changes. Copied nodes are retired, not
//! freed: see `epoch`.

use std::marker::PhantomData;

use numbers::ChangeId;

use crate::cursor::Cursor;
use crate::epoch::{Epochs, Kind};
use crate::node::{DEPTH_MAX, INNER, Inner, LEAF, Leaf, Node, NodeHead, NodePtr, Order, STUB, Slot, Stub};
use crate::version::Version;

/// A fixed-size stack for paths through the tree.
pub(crate) struct Stack<T: Copy> {
    items: [std::mem::MaybeUninit<T>; DEPTH_MAX],
    len: usize,
}

impl<T: Copy> Clone for Stack<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Copy> Copy for Stack<T> {}

impl<T: Copy> Stack<T> {
    pub(crate) fn new() -> Stack<T> {
        Stack { items: [const { std::mem::MaybeUninit::uninit() }; DEPTH_MAX], len: 0 }
    }

    pub(crate) fn push(&mut self, item: T) {
        self.items[self.len].write(item);
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: all items below the length were written.
        Some(unsafe { self.items[self.len].assume_init() })
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: all items below the length were written, and `MaybeUninit<T>` has the layout of `T`.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr().cast::<T>(), self.len) }
    }
}

/// Fences of a node: the separators to its left and right; `None` at an edge of the tree.
type Fences<'f, K> = (Option<<K as Order>::Query<'f>>, Option<<K as Order>::Query<'f>>);

fn shared<K: Order>((low, high): Fences<'_, K>) -> u32 {
    K::shared(low, high)
}

/// One step of a path from the root: a node, the fences of the node, and the position of the chosen child.
struct Step<'f, K: Order> {
    node: *mut Inner<K>,
    at: usize,
    fences: Fences<'f, K>,
}

impl<K: Order> Clone for Step<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Order> Copy for Step<'_, K> {}

/// The writer's tree. A view gets a copy of `root` at publication.
pub(crate) struct Tree<K: Order> {
    pub(crate) root: NodePtr,
    /// Number of entries that are not tombstones.
    pub(crate) live: u64,
    /// Number of all entries.
    pub(crate) len: u64,
    order: PhantomData<K>,
}

/// Moves a new node to the heap.
pub(crate) fn allocate<T>(node: T, epochs: &Epochs) -> NodePtr {
    epochs.census().node_created(size_of::<T>());
    Box::into_raw(Box::new(node)).cast::<NodeHead>()
}

/// Returns a node that the writer may change: the node itself if it was created in the current batch,
/// otherwise a copy; for a stub, an ordinary leaf with the same entries. The original of a copy is retired.
///
/// # Safety
/// The node belongs to the writer's tree of order `K`; the caller stores the returned node in its place.
unsafe fn writable<K: Order>(node: NodePtr, epochs: &mut Epochs) -> NodePtr {
    /// # Safety
    /// `node` is alive and of type `T`.
    unsafe fn copied<T>(node: NodePtr, epochs: &Epochs) -> NodePtr {
        epochs.census().node_created(size_of::<T>());
        let mut copy = Box::<T>::new_uninit();
        // SAFETY: source and target are each one whole `T`, and nodes are plain words that can be copied
        // bytewise.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(node.cast::<T>(), 1) };
        Box::into_raw(copy).cast::<NodeHead>()
    }
    // SAFETY: promised by the caller. The level tells the type of the node. The caller replaces the old node
    // by the copy, so the old node leaves the tree and may be retired.
    unsafe {
        if (*node).level == STUB {
            let leaf = (*node.cast::<Stub>()).to_leaf(epochs);
            epochs.retire_node(node, Kind::Stub);
            return allocate(leaf, epochs);
        }
        if (*node).epoch == epochs.batch() {
            return node;
        }
        let (copy, kind) = match (*node).level {
            0 => (copied::<Leaf>(node, epochs), Kind::Leaf),
            _ => (copied::<Inner<K>>(node, epochs), K::INNER_KIND),
        };
        (*copy).epoch = epochs.batch();
        epochs.retire_node(node, kind);
        copy
    }
}

/// Returns separator `at` of a node that is being changed, without borrowing the node; `None` if `at` is an
/// edge of the node.
///
/// # Safety
/// `node` is alive. The result is valid until the end of the writer's operation, since separators that leave
/// the tree are only retired; retired objects are freed by a publication or by `Store::reclaim`, never during
/// an operation.
unsafe fn fence<'f, K: Order>(node: *const Inner<K>, at: usize) -> Option<K::Query<'f>> {
    // SAFETY: promised by the caller.
    unsafe { (at > 0 && at < (*node).len()).then(|| K::separator_query((*node).separators[at])) }
}

impl<K: Order> Tree<K> {
    pub(crate) fn new() -> Tree<K> {
        Tree { root: std::ptr::null_mut(), live: 0, len: 0, order: PhantomData }
    }

    /// Returns the root for reading. The tree cannot be changed while the root is borrowed.
    pub(crate) fn node(&self) -> Option<Node<'_, K>> {
        // SAFETY: the tree's nodes are alive, and changing them needs `&mut self`.
        unsafe { Node::open(self.root) }
    }

    /// Returns the first entry.
    pub(crate) fn first(&self) -> Option<Version<'_>> {
        let mut node = self.node()?;
        loop {
            match node {
                Node::Leaf(leaf) => return (leaf.len() > 0).then(|| leaf.version(0)),
                Node::Inner(inner) => node = inner.child(0),
            }
        }
    }

    pub(crate) fn find(&self, query: K::Query<'_>) -> Option<Slot> {
        Cursor::find(self.node(), query)
    }

    /// Sets the entry at `query` to the result of `make`, which receives the current entry, if there is one.
    /// The record of the new entry must compare equal to `query`.
    pub(crate) fn upsert(
        &mut self,
        query: K::Query<'_>,
        epochs: &mut Epochs,
        make: impl FnOnce(Option<Slot>, &mut Epochs) -> Slot,
    ) -> Slot {
        if self.root.is_null() {
            self.root = allocate(Leaf::new(epochs.batch()), epochs);
        }
        let mut path: Stack<(*mut Inner<K>, usize)> = Stack::new();
        let mut fences: Fences<'_, K> = (None, None);
        // Fences of the parent of `node`.
        let mut outer_fences = fences;
        // SAFETY: the whole path is made writable from the root down, and each copy is stored in its parent
        // before the next step. So every pointer used below points to a node of the writer's current tree,
        // which no view can see. References to a node are short and never overlap.
        unsafe {
            self.root = writable::<K>(self.root, epochs);
            let mut node = self.root;
            while (*node).level > 0 {
                if usize::from((*node).len) == INNER {
                    // Full inner nodes are split on the way down, so that a parent always has space for
                    // another child.
                    let parent = self.parent_of(node, &mut path, epochs);
                    let at = path.pop().map_or(0, |(_, at)| at);
                    split_inner::<K>(parent, at, fences, epochs);
                    let at = (*parent).route(query);
                    path.push((parent, at));
                    fences = (fence(parent, at).or(fences.0), fence(parent, at + 1).or(fences.1));
                    node = (*parent).children[at];
                }
                let inner = node.cast::<Inner<K>>();
                let at = (*inner).route(query);
                let child = writable::<K>((*inner).children[at], epochs);
                (*inner).children[at] = child;
                path.push((inner, at));
                outer_fences = fences;
                fences = (fence(inner, at).or(fences.0), fence(inner, at + 1).or(fences.1));
                node = child;
            }
            let mut leaf = node.cast::<Leaf>();
            let slot;
            let (mut grown, mut shrunk) = (0, 0);
            match (*leaf).find::<K>(query) {
                Ok(at) => {
                    let old = (*leaf).slots[at];
                    slot = make(Some(old), epochs);
                    (*leaf).slots[at] = slot;
                    (grown, shrunk) = (grown + slot.weight(), shrunk + old.weight());
                }
                Err(mut at) => {
                    slot = make(None, epochs);
                    if (*leaf).len() == LEAF {
                        let parent = self.parent_of(node, &mut path, epochs);
                        let child = path.pop().map_or(0, |(_, at)| at);
                        let append = fences.1.is_none() && at == LEAF;
                        let left = match append {
                            true => None,
                            false => spill::<K>(parent, child, outer_fences, epochs),
                        };
                        let left = left.unwrap_or_else(|| {
                            split_leaf::<K>(parent, child, query, append, fences, epochs);
                            child
                        });
                        let is_right = K::compare(query, (*parent).separator(left + 1)).is_ge();
                        let child = left + usize::from(is_right);
                        leaf = (*parent).children[child].cast::<Leaf>();
                        path.push((parent, child));
                        let (Ok(place) | Err(place)) = (*leaf).find::<K>(query);
                        at = place;
                    }
                    (*leaf).insert::<K>(at, query, slot);
                    grown += slot.weight();
                    self.len += 1;
                }
            }
            for &(inner, at) in path.as_slice() {
                (*inner).counts[at] = (*inner).counts[at] + grown - shrunk;
            }
            self.live = self.live + grown - shrunk;
            slot
        }
    }

    /// Returns the parent of `node`, which is the last entry of `path`. If `node` is the root, creates a new
    /// root above it, adds the new root to `path`, and returns it.
    ///
    /// # Safety
    /// `path` contains the ancestors of `node`, root first. `node` and its ancestors are writable nodes of
    /// the writer's tree.
    unsafe fn parent_of(
        &mut self,
        node: NodePtr,
        path: &mut Stack<(*mut Inner<K>, usize)>,
        epochs: &Epochs,
    ) -> *mut Inner<K> {
        if let Some(&(parent, _)) = path.as_slice().last() {
            return parent;
        }
        // SAFETY: promised by the caller.
        let level = unsafe { (*node).level };
        let mut root = Inner::<K>::new(epochs.batch(), level + 1);
        root.insert(0, K::no_separator(), node, self.live);
        self.root = allocate(root, epochs);
        let parent = self.root.cast::<Inner<K>>();
        path.push((parent, 0));
        parent
    }

    /// Removes the entry at `query`, which must exist.
    pub(crate) fn remove(&mut self, query: K::Query<'_>, epochs: &mut Epochs) -> Slot {
        assert!(!self.root.is_null(), "removing from an empty tree");
        let mut path: Stack<Step<'_, K>> = Stack::new();
        let mut fences: Fences<'_, K> = (None, None);
        // SAFETY: the whole path is made writable from the root down, and each copy is stored in its parent
        // before the next step. So every pointer used below points to a node of the writer's current tree,
        // which no view can see. References to a node are short and never overlap.
        unsafe {
            self.root = writable::<K>(self.root, epochs);
            let mut node = self.root;
            while (*node).level > 0 {
                let inner = node.cast::<Inner<K>>();
                let at = (*inner).route(query);
                let child = writable::<K>((*inner).children[at], epochs);
                (*inner).children[at] = child;
                path.push(Step { node: inner, at, fences });
                fences = (fence(inner, at).or(fences.0), fence(inner, at + 1).or(fences.1));
                node = child;
            }
            let leaf = node.cast::<Leaf>();
            let Ok(at) = (*leaf).find::<K>(query) else { panic!("removing what is not in the tree") };
            let slot = (*leaf).remove(at);
            self.len -= 1;
            self.live -= slot.weight();
            for step in path.as_slice() {
                (*step.node).counts[step.at] -= slot.weight();
            }
            self.shrink(path, epochs);
            slot
        }
    }

    /// Restores the minimum fill of the nodes on a path, after the lowest one lost entries.
    ///
    /// # Safety
    /// The nodes of `path` and their chosen children are writable nodes of the writer's tree, root first, and
    /// the root is not null.
    unsafe fn shrink(&mut self, mut path: Stack<Step<'_, K>>, epochs: &mut Epochs) {
        // SAFETY: promised by the caller.
        unsafe {
            while let Some(step) = path.pop() {
                let child = (*step.node).children[step.at];
                let low = if is_inner(child) { INNER / 4 } else { LEAF / 4 };
                if usize::from((*child).len) >= low || (*step.node).len() < 2 {
                    break;
                }
                rebalance::<K>(step, epochs);
            }
            while is_inner(self.root) && (*self.root).len == 1 {
                let old = self.root;
                self.root = (*old.cast::<Inner<K>>()).children[0];
                epochs.retire_node(old, K::INNER_KIND);
            }
            if (*self.root).level == 0 && (*self.root).len == 0 {
                epochs.retire_node(self.root, Kind::Leaf);
                self.root = std::ptr::null_mut();
            }
        }
    }

    /// Makes the path to the leaf at `query` writable, without the leaf itself, and returns it.
    ///
    /// # Safety
    /// The root is not null, and the tree is not changed as long as the fences of the steps are used.
    unsafe fn writable_path<'f>(&mut self, query: K::Query<'_>, epochs: &mut Epochs) -> Stack<Step<'f, K>> {
        let mut path: Stack<Step<'f, K>> = Stack::new();
        let mut fences: Fences<'f, K> = (None, None);
        let mut place: *mut NodePtr = &raw mut self.root;
        // SAFETY: the path is made writable from the root down, and each copy is stored in its parent before
        // the next step.
        unsafe {
            while is_inner(*place) {
                *place = writable::<K>(*place, epochs);
                let inner = (*place).cast::<Inner<K>>();
                let at = (*inner).route(query);
                path.push(Step { node: inner, at, fences });
                fences = (fence(inner, at).or(fences.0), fence(inner, at + 1).or(fences.1));
                place = &raw mut (*inner).children[at];
            }
        }
        path
    }

    /// Makes an ordinary leaf of the stub that contains `query`, if it is a stub.
    pub(crate) fn pin(&mut self, query: K::Query<'_>, epochs: &mut Epochs) {
        if self.root.is_null() {
            return;
        }
        // SAFETY: the path is writable, and the new leaf is stored in the place of the stub.
        unsafe {
            let path = self.writable_path(query, epochs);
            let place = self.place(&path);
            *place = writable::<K>(*place, epochs);
        }
    }

    /// Replaces the leaf or stub that contains `query` by a node with the same entries. Returns the old node,
    /// which the caller retires.
    pub(crate) fn replace_leaf(
        &mut self,
        query: K::Query<'_>,
        epochs: &mut Epochs,
        new: impl FnOnce(&mut Epochs) -> NodePtr,
    ) -> NodePtr {
        assert!(!self.root.is_null(), "there is a leaf to replace");
        // SAFETY: the path is writable; the entries and so the counts stay as they are.
        unsafe {
            let path = self.writable_path(query, epochs);
            let place = self.place(&path);
            std::mem::replace(&mut *place, new(epochs))
        }
    }

    /// Returns the place of the pointer to the leaf at the end of a path.
    ///
    /// # Safety
    /// The nodes of the path are writable nodes of the tree.
    unsafe fn place(&mut self, path: &Stack<Step<'_, K>>) -> *mut NodePtr {
        match path.as_slice().last() {
            None => &raw mut self.root,
            // SAFETY: promised by the caller.
            Some(step) => unsafe { &raw mut (*step.node).children[step.at] },
        }
    }

    /// Removes the first leaf if its last entry is not above `through`. Returns the query of its last entry,
    /// and the number of its entries.
    pub(crate) fn remove_first_leaf(
        &mut self,
        through: ChangeId,
        epochs: &mut Epochs,
    ) -> Option<(ChangeId, u64)> {
        let mut first = self.root;
        // SAFETY: the nodes are alive while the tree is borrowed.
        while !first.is_null() && unsafe { is_inner(first) } {
            // SAFETY: an inner node has a first child.
            first = unsafe { (*first.cast::<Inner<K>>()).children[0] };
        }
        if first.is_null() {
            return None;
        }
        // SAFETY: a stub is in no tree from which leaves are removed, so the node is a leaf. It is unlinked
        // from a writable path, and then retired.
        unsafe {
            assert!((*first).level == 0, "stubs are not removed");
            let leaf = &*first.cast::<Leaf>();
            let last = leaf.version(leaf.len() - 1).id();
            if last > through {
                return None;
            }
            let (entries, weight) = (leaf.len() as u64, leaf.weight());
            let mut path = self.writable_path(leaf.query::<K>(0), epochs);
            self.len -= entries;
            self.live -= weight;
            let Some(&step) = path.as_slice().last() else {
                self.root = std::ptr::null_mut();
                epochs.retire_node(first, Kind::Leaf);
                return Some((last, entries));
            };
            for step in path.as_slice() {
                (*step.node).counts[step.at] -= weight;
            }
            // The next leaf now begins where the removed one began, so its prefix may be too long.
            let next = writable::<K>((*step.node).children[1], epochs);
            (*step.node).children[1] = next;
            let high = fence(step.node, 2).or(step.fences.1);
            let prefix = shared::<K>((step.fences.0, high));
            if (*next).prefix > prefix {
                (*next.cast::<Leaf>()).set_prefix::<K>(prefix);
            }
            unlink::<K>(&mut *step.node, 0, epochs);
            path.pop();
            self.shrink(path, epochs);
            Some((last, entries))
        }
    }
}

/// Returns true if a node is neither a leaf nor a stub.
///
/// # Safety
/// The node is alive.
pub(crate) unsafe fn is_inner(node: NodePtr) -> bool {
    // SAFETY: promised by the caller.
    !matches!(unsafe { (*node).level }, 0 | STUB)
}

/// Removes child `at` of `parent`, which has another child, with everything in it. The range of a neighbor
/// becomes wider.
///
/// # Safety
/// `parent` is a writable node of the writer's tree, and the child is a leaf.
unsafe fn unlink<K: Order>(parent: &mut Inner<K>, at: usize, epochs: &mut Epochs) {
    let gone = parent.children[at];
    if at == 0 {
        parent.children[0] = parent.children[1];
        parent.counts[0] = parent.counts[1];
    }
    let separator = parent.remove(at.max(1));
    K::retire_separator(separator, epochs);
    // SAFETY: promised by the caller; the leaf was just taken out of the tree.
    unsafe { epochs.retire_node(gone, Kind::Leaf) };
}

/// Splits the full inner node that is child `at` of `parent` into two nodes. `fences` are the fences of the
/// child.
///
/// # Safety
/// Parent and child are writable nodes of the writer's tree, and the parent has space for another child.
unsafe fn split_inner<K: Order>(parent: *mut Inner<K>, at: usize, fences: Fences<'_, K>, epochs: &Epochs) {
    // SAFETY: promised by the caller; `right` is new, so the references do not overlap.
    unsafe {
        let left = &mut *(*parent).children[at].cast::<Inner<K>>();
        let keep = if fences.1.is_none() { INNER - 4 } else { INNER / 2 };
        let mut right = Inner::<K>::new(epochs.batch(), left.node.level);
        let separator = left.move_tail(keep, &mut right, K::no_separator());
        let middle = K::separator_query(separator);
        left.set_prefix(shared::<K>((fences.0, Some(middle))));
        right.set_prefix(shared::<K>((Some(middle), fences.1)));
        (*parent).counts[at] = left.weight();
        let weight = right.weight();
        (*parent).insert(at + 1, separator, allocate(right, epochs), weight);
    }
}

/// Makes space in the full leaf `at` of `parent` by moving entries to its emptier neighbor, if that
/// neighbor has enough space. Returns the position of the left leaf of the pair, or `None` if the leaf has
/// to be split. Without this step, leaves would be only two thirds full after insertions in random order;
/// with it they are four fifths full. They are also fuller after insertions that ascend at many positions of
/// the tree.
///
/// # Safety
/// `parent` and its child `at` are writable nodes of the writer's tree, and `fences` are the fences of
/// `parent`.
unsafe fn spill<K: Order>(
    parent: *mut Inner<K>,
    at: usize,
    fences: Fences<'_, K>,
    epochs: &mut Epochs,
) -> Option<usize> {
    // SAFETY: promised by the caller; a neighbor is made writable and stored before it is changed.
    unsafe {
        let len = |at: usize| usize::from((*(*parent).children[at]).len);
        let is_stub = |at: usize| (*(*parent).children[at]).level == STUB;
        let lefts = [at.checked_sub(1), (at + 1 < (*parent).len()).then_some(at)];
        // A stub has no entries that could move.
        let pairs = lefts.into_iter().flatten().filter(|&left| !is_stub(left) && !is_stub(left + 1));
        let left = pairs.min_by_key(|&left| len(left) + len(left + 1))?;
        if len(left) + len(left + 1) > 2 * LEAF - LEAF / 8 {
            return None;
        }
        for at in [left, left + 1] {
            (*parent).children[at] = writable::<K>((*parent).children[at], epochs);
        }
        even_out_leaves::<K>(&mut *parent, left, fences, epochs);
        Some(left)
    }
}

/// Gives the leaf `l` of `parent` and the leaf to its right the same number of entries. `fences` are the
/// fences of the parent.
///
/// # Safety
/// `parent` and both leaves are writable nodes of the writer's tree, and the leaves have more than one entry
/// in total.
unsafe fn even_out_leaves<K: Order>(
    parent: &mut Inner<K>,
    l: usize,
    fences: Fences<'_, K>,
    epochs: &mut Epochs,
) {
    let r = l + 1;
    // SAFETY: promised by the caller; the leaves are two different nodes.
    unsafe {
        let left = &mut *parent.children[l].cast::<Leaf>();
        let right = &mut *parent.children[r].cast::<Leaf>();
        let half = (left.len() + right.len()) / 2;
        let (came_left, came_right) = if left.len() > half {
            let moved = left.len() - half;
            left.move_tail(half, right, true);
            (half..half, 0..moved)
        } else {
            let before = left.len();
            right.move_front(half - before, left);
            (before..half, 0..0)
        };
        let separator = K::separate(left.query::<K>(half - 1), right.query::<K>(0), epochs);
        let middle = Some(K::separator_query(separator));
        let low = fence(parent, l).or(fences.0);
        let high = fence(parent, r + 1).or(fences.1);
        let same_prefix = left.node.prefix == right.node.prefix;
        for (leaf, came, prefix) in [
            (&mut *left, came_left, shared::<K>((low, middle))),
            (&mut *right, came_right, shared::<K>((middle, high))),
        ] {
            // A prefix that is too long for the new fences must be shortened. One that could be longer stays
            // as it is, because recomputing all heads would read all records.
            if leaf.node.prefix > prefix {
                leaf.set_prefix::<K>(prefix);
            } else if !same_prefix {
                leaf.set_heads::<K>(came);
            }
        }
        (parent.counts[l], parent.counts[r]) = (left.weight(), right.weight());
        K::retire_separator(parent.replace_separator(r, separator), epochs);
    }
}

/// Splits the full leaf `at` of `parent` for the insertion of `query`. The right half may be empty if
/// `append` is true, that is, if `query` is after all entries.
///
/// # Safety
/// As for `split_inner`.
unsafe fn split_leaf<K: Order>(
    parent: *mut Inner<K>,
    at: usize,
    query: K::Query<'_>,
    append: bool,
    fences: Fences<'_, K>,
    epochs: &Epochs,
) {
    // SAFETY: promised by the caller; `right` is new, so the references do not overlap.
    unsafe {
        let left = &mut *(*parent).children[at].cast::<Leaf>();
        let keep = if append { K::APPEND_KEEP } else { LEAF / 2 };
        let mut right = Leaf::new(epochs.batch());
        left.move_tail(keep, &mut right, false);
        let separator = match right.len() {
            0 => K::separate(left.query::<K>(keep - 1), query, epochs),
            _ => K::separate(left.query::<K>(keep - 1), right.query::<K>(0), epochs),
        };
        let middle = K::separator_query(separator);
        let old_prefix = left.node.prefix;
        right.node.prefix = old_prefix;
        for (half, prefix) in [
            (&mut *left, shared::<K>((fences.0, Some(middle)))),
            (&mut right, shared::<K>((Some(middle), fences.1))),
        ] {
            if prefix != old_prefix {
                half.set_prefix::<K>(prefix);
            }
        }
        (*parent).counts[at] = left.weight();
        let weight = right.weight();
        (*parent).insert(at + 1, separator, allocate(right, epochs), weight);
    }
}

/// Merges the underfull child of `step` with a neighbor, or moves entries between them.
///
/// # Safety
/// The step's node and child are writable nodes of the writer's tree, and the node has at least two children.
unsafe fn rebalance<K: Order>(step: Step<'_, K>, epochs: &mut Epochs) {
    // SAFETY: promised by the caller. Both neighbors are made writable and stored in the parent before they
    // are changed, and they are two different nodes.
    unsafe {
        let parent = &mut *step.node;
        let is_partner = |at: usize| at < parent.len() && (*parent.children[at]).level != STUB;
        let l = if is_partner(step.at + 1) {
            step.at
        } else if step.at > 0 && is_partner(step.at - 1) {
            step.at - 1
        } else {
            // A leaf between stubs stays small, until nothing is left of it.
            if (*parent.children[step.at]).len == 0 {
                unlink::<K>(parent, step.at, epochs);
            }
            return;
        };
        let r = l + 1;
        for at in [l, r] {
            parent.children[at] = writable::<K>(parent.children[at], epochs);
        }
        let low = fence(parent, l).or(step.fences.0);
        let high = fence(parent, r + 1).or(step.fences.1);
        let right_pointer = parent.children[r];
        if (*right_pointer).level == 0 {
            let left = &mut *parent.children[l].cast::<Leaf>();
            let right = &mut *right_pointer.cast::<Leaf>();
            let total = left.len() + right.len();
            let same_prefix = left.node.prefix == right.node.prefix;
            if total <= LEAF {
                right.move_tail(0, left, false);
                let prefix = shared::<K>((low, high));
                if !same_prefix || left.node.prefix != prefix {
                    left.set_prefix::<K>(prefix);
                }
                parent.counts[l] = left.weight();
                K::retire_separator(parent.remove(r), epochs);
                epochs.retire_node(right_pointer, Kind::Leaf);
            } else {
                even_out_leaves::<K>(parent, l, step.fences, epochs);
            }
        } else {
            let left = &mut *parent.children[l].cast::<Inner<K>>();
            let right = &mut *right_pointer.cast::<Inner<K>>();
            let total = left.len() + right.len();
            if total <= INNER {
                right.move_tail(0, left, parent.separators[r]);
                left.set_prefix(shared::<K>((low, high)));
                parent.counts[l] = left.weight();
                parent.remove(r);
                epochs.retire_node(right_pointer, K::INNER_KIND);
            } else {
                let separator = right.even_out(left, parent.separators[r], total / 2);
                let middle = K::separator_query(separator);
                left.set_prefix(shared::<K>((low, Some(middle))));
                right.set_prefix(shared::<K>((Some(middle), high)));
                (parent.counts[l], parent.counts[r]) = (left.weight(), right.weight());
                parent.replace_separator(r, separator);
            }
        }
    }
}
