//! Assigns each revision that no response claims to a possible maker: an operation with an unknown outcome,
//! or the end of a lease. Each maker gets at most one revision. This is a bipartite matching that grows by
//! augmenting paths (Berge 1957), so an earlier choice between several makers never prevents a later
//! assignment.

use std::collections::{BTreeMap, HashMap, HashSet};

/// Something that may have made a revision which no answered write claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Maker {
    /// An operation with an unknown outcome, by its position in the history.
    Operation(usize),
    /// The end of a lease, by expiry or by a revocation: the lease's id, and a number that distinguishes the
    /// ends of leases with the same id if the id was granted several times.
    LeaseEnd(i64, usize),
}

#[derive(Default)]
pub(crate) struct Matching {
    revision_of: HashMap<Maker, i64>,
    /// The maker assigned to each revision. This map is the inverse of `revision_of`.
    given_to: BTreeMap<i64, Maker>,
    makers_of: BTreeMap<i64, Vec<Maker>>,
}

impl Matching {
    /// Assigns one of these possible makers to a revision. If needed, changes the makers of other revisions.
    /// If there is no assignment for all revisions, returns false and changes nothing.
    pub fn add(&mut self, revision: i64, makers: &[Maker]) -> bool {
        self.makers_of.insert(revision, makers.to_vec());
        if self.augment(revision) {
            return true;
        }
        self.makers_of.remove(&revision);
        false
    }

    /// Searches for an augmenting path, breadth-first and without recursion.
    fn augment(&mut self, revision: i64) -> bool {
        let mut came_from: HashMap<Maker, i64> = HashMap::new();
        let mut visited: HashSet<i64> = HashSet::from([revision]);
        let mut queue = std::collections::VecDeque::from([revision]);
        while let Some(at) = queue.pop_front() {
            for maker in self.makers_of.get(&at).into_iter().flatten() {
                if came_from.contains_key(maker) {
                    continue;
                }
                came_from.insert(*maker, at);
                match self.revision_of.get(maker) {
                    Some(other) => {
                        if visited.insert(*other) {
                            queue.push_back(*other);
                        }
                    }
                    None => {
                        self.shift(*maker, revision, &came_from);
                        return true;
                    }
                }
            }
        }
        false
    }

    fn shift(&mut self, free: Maker, root: i64, came_from: &HashMap<Maker, i64>) {
        let mut maker = free;
        while let Some(revision) = came_from.get(&maker) {
            self.revision_of.insert(maker, *revision);
            // Continue with the maker that this revision had before: it gets the revision that is one step
            // closer to the root of the path.
            match self.given_to.insert(*revision, maker) {
                Some(before) if *revision != root => maker = before,
                _ => break,
            }
        }
    }

    /// Removes the assignments of a revision and of all later ones.
    pub fn truncate(&mut self, revision: i64) {
        self.makers_of.split_off(&revision);
        for maker in self.given_to.split_off(&revision).into_values() {
            self.revision_of.remove(&maker);
        }
    }

    /// Returns the revision assigned to a maker, if any.
    pub fn revision_of(&self, maker: Maker) -> Option<i64> {
        self.revision_of.get(&maker).copied()
    }

    /// Returns the possible makers of a revision that were passed to [`Matching::add`].
    pub fn makers(&self, revision: i64) -> &[Maker] {
        self.makers_of.get(&revision).map_or(&[], Vec::as_slice)
    }

    /// Returns each maker that is assigned to a revision, with that revision.
    pub fn given(&self) -> impl Iterator<Item = (Maker, i64)> {
        self.revision_of.iter().map(|(maker, revision)| (*maker, *revision))
    }
}
