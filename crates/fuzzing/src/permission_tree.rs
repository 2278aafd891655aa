//! Implements etcd's permission tree a second time, for comparison with Mainstay's implementation. It follows
//! the textbook, with loops and parent pointers. [`crate::auth_requests`] uses it to predict the result for
//! ranges that contain no keys.

/// Index that means "no node".
const NIL: usize = usize::MAX;

struct Node {
    begin: Vec<u8>,
    /// End of the interval; empty for no end.
    end: Vec<u8>,
    is_red: bool,
    parent: usize,
    children: [usize; 2],
}

/// Red-black tree of intervals. Nodes are never removed, because etcd builds a new tree after each change of
/// permissions.
pub(crate) struct PermissionTree {
    nodes: Vec<Node>,
    root: usize,
}

/// Returns a sort key for a bound of an interval. As in etcd, an empty bound comes after all others.
fn bound(of: &[u8]) -> (bool, &[u8]) {
    (of.is_empty(), of)
}

impl PermissionTree {
    /// Builds a tree by inserting the intervals in this order.
    pub fn of(intervals: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> PermissionTree {
        let mut tree = PermissionTree { nodes: Vec::new(), root: NIL };
        for (begin, end) in intervals {
            tree.insert(begin, end);
        }
        tree
    }

    fn is_red(&self, node: usize) -> bool {
        node != NIL && self.nodes[node].is_red
    }

    fn insert(&mut self, begin: Vec<u8>, end: Vec<u8>) {
        let new = self.nodes.len();
        let (mut parent, mut at, mut side) = (NIL, self.root, 0);
        while at != NIL {
            let other = &self.nodes[at];
            let is_before = (bound(&begin), bound(&end)) < (bound(&other.begin), bound(&other.end));
            side = usize::from(!is_before);
            (parent, at) = (at, other.children[side]);
        }
        self.nodes.push(Node { begin, end, is_red: true, parent, children: [NIL; 2] });
        match parent {
            NIL => self.root = new,
            parent => self.nodes[parent].children[side] = new,
        }
        let mut at = new;
        while self.is_red(self.nodes[at].parent) {
            let parent = self.nodes[at].parent;
            let grandparent = self.nodes[parent].parent;
            let side = usize::from(self.nodes[grandparent].children[1] == parent);
            let uncle = self.nodes[grandparent].children[1 - side];
            if self.is_red(uncle) {
                self.nodes[parent].is_red = false;
                self.nodes[uncle].is_red = false;
                self.nodes[grandparent].is_red = true;
                at = grandparent;
                continue;
            }
            if self.nodes[parent].children[1 - side] == at {
                at = parent;
                self.rotate(at, side);
            }
            let parent = self.nodes[at].parent;
            self.nodes[parent].is_red = false;
            self.nodes[grandparent].is_red = true;
            self.rotate(grandparent, 1 - side);
        }
        self.nodes[self.root].is_red = false;
    }

    /// Rotates `down` below its child on the other side. The node `down` becomes the child of that node on
    /// `side`.
    fn rotate(&mut self, down: usize, side: usize) {
        let up = self.nodes[down].children[1 - side];
        let (between, parent) = (self.nodes[up].children[side], self.nodes[down].parent);
        self.nodes[down].children[1 - side] = between;
        if between != NIL {
            self.nodes[between].parent = down;
        }
        self.nodes[up].parent = parent;
        if parent == NIL {
            self.root = up;
        } else {
            let of_parent = usize::from(self.nodes[parent].children[1] == down);
            self.nodes[parent].children[of_parent] = up;
        }
        self.nodes[up].children[side] = down;
        self.nodes[down].parent = up;
    }

    fn max(&self, node: usize) -> &[u8] {
        let Node { end, children, .. } = &self.nodes[node];
        let below = children.iter().filter(|child| **child != NIL).map(|child| self.max(*child));
        below.fold(end, |max, end| if bound(end) > bound(max) { end } else { max })
    }

    /// Appends the nodes that etcd's search finds as overlapping the interval, in ascending order of their
    /// intervals.
    fn visit<'a>(&'a self, node: usize, begin: &[u8], end: &[u8], found: &mut Vec<&'a Node>) {
        if node == NIL {
            return;
        }
        let Node { begin: from, end: to, children: [left, right], .. } = &self.nodes[node];
        let (asked, asked_end, from) = (bound(begin), bound(end), bound(from));
        if asked < from && asked_end <= from {
            self.visit(*left, begin, end, found);
        } else if asked < bound(to) {
            self.visit(*left, begin, end, found);
            found.push(&self.nodes[node]);
            self.visit(*right, begin, end, found);
        } else {
            let max = bound(self.max(node));
            let is_before = from < asked && max <= asked;
            let is_behind = from >= asked_end;
            if !is_before && !is_behind {
                self.visit(*left, begin, end, found);
                self.visit(*right, begin, end, found);
            }
        }
    }

    /// Returns true if the nodes that etcd's search finds cover the interval without a gap.
    pub fn covers(&self, begin: &[u8], end: &[u8]) -> bool {
        let mut found = Vec::new();
        self.visit(self.root, begin, end, &mut found);
        let Some((first, rest)) = found.split_first() else { return false };
        let mut reached = bound(&first.end);
        for node in rest {
            if reached < bound(&node.begin) {
                return false;
            }
            reached = reached.max(bound(&node.end));
        }
        reached >= bound(end) && bound(&first.begin) <= bound(begin)
    }
}
