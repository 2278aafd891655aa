//! Decides which directory has the newest state, and what is certain about it: [`Judgement::of`].
//!
//! # Why the choice is sound
//!
//! The newest log is that with the highest last term and, among these, the highest last index. That is raft's own
//! rule for votes: if the directories of a majority of the voters are there, their members could elect the one with
//! the newest log, and a leader has every committed entry (Ongaro and Ousterhout, "In Search of an Understandable
//! Consensus Algorithm", the leader completeness property). An observer or a learner may have the newest log, too:
//! it has the entries of a leader up to its last one, and that leader had every entry that was committed before its
//! term.
//!
//! Which members vote is itself in the log. The argument holds if the directories are a majority of every set of
//! voters that the newest log has from its last known committed entry on. Suppose it lacked a committed entry, and
//! take the first such: all earlier ones are in the log, so the set of voters that committed it is one of these.
//!
//! A cluster that was begun again with some of its members (`--force-new-cluster`) has a second history, for which
//! none of this holds. It is recognized where a directory has a committed entry, or a state, that the newest does not
//! have ([`Judgement::contradict`]), or entries of a member that the newest log does not count as a voter.
//!
//! With fewer directories, nothing is known about what only the missing members have acknowledged.

use numbers::{EntryId, Index};

use super::found::{Found, Kind};

/// Conclusions from the directories of one cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    /// Position of the directory with the newest log; that of the shadow with the highest revision if all are
    /// shadows.
    pub newest: usize,
    /// Voters of the newest log's last configuration whose directories are there, and those whose are not.
    pub present: Vec<u64>,
    pub absent: Vec<u64>,
    /// Number of voters that are a majority.
    pub quorum: usize,
    /// True if the newest log certainly has every committed entry.
    pub is_complete: bool,
    /// Last entry of the newest log that is certainly committed.
    pub certain: Index,
    /// Last entry of the newest log that may have been acknowledged to a client: a majority may have it.
    pub maybe: Index,
    /// Highest index that some directory knows to be committed, if it is after the end of the newest log: the entries
    /// in between are in no directory.
    pub lost: Option<Index>,
    /// Directories with a committed entry that the newest log does not have, or with another state: they are of another
    /// history.
    pub contradicting: Vec<usize>,
    /// Directories with entries that the newest log does not have, of members that do not vote in its configuration.
    /// These entries were never committed, unless the newest log is of a cluster that was begun without these members
    /// (`--force-new-cluster`): a majority of the old cluster may then have acknowledged them.
    pub estranged: Vec<usize>,
    /// Comparison of each directory with the newest.
    pub relations: Vec<Relation>,
    /// Positions of shadows with revisions above that of the newest log.
    pub shadows_ahead: Vec<usize>,
}

/// Comparison of a directory with the one that has the newest log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// It has the same entries.
    Same,
    /// It has the same entries up to its last one, and lacks this many.
    Behind { lacks: u64 },
    /// It has the same entries up to this one. The `own` ones after it were never committed.
    Differs { common: Index, own: u64, lacks: u64 },
    /// The directory has only entries that are older than those whose terms are known.
    Unclear,
    /// It is a shadow, whose log is its own.
    Apart,
}

/// Makes an older directory with the id of another one a copy: it cannot be the last that the member has written.
/// Several directories with one id are an error of the operator or a copy that was restored, and the member counts
/// once.
pub(super) fn settle_copies(all: &mut [Found]) {
    for at in 0..all.len() {
        let is_older = |this: &Found, other: &Found, before: bool| {
            let key = |found: &Found| (found.last.term, found.last.index, found.term, found.heard);
            key(this) < key(other) || (key(this) == key(other) && before)
        };
        let is_copy = all[at].kind == Kind::Member
            && all.iter().enumerate().any(|(other_at, other)| {
                other.kind == Kind::Member
                    && other_at != at
                    && (other.cluster_id, other.member_id) == (all[at].cluster_id, all[at].member_id)
                    && is_older(&all[at], other, other_at < at)
            });
        if is_copy {
            all[at].kind = Kind::Copy;
        }
    }
}

impl Judgement {
    /// Judges directories of one cluster; `None` if there is none.
    pub(super) fn of(all: &[Found]) -> Option<Judgement> {
        let with_log = |found: &&(usize, &Found)| found.1.has_log();
        let numbered: Vec<(usize, &Found)> = all.iter().enumerate().collect();
        let by_log = numbered.iter().filter(with_log).max_by_key(|(at, found)| {
            // Among equal logs, take one that is not suspect, and which knows most.
            let preferred = (!found.is_corrupt, found.kind == Kind::Member, found.committed.index);
            (found.last.term, found.last.index, preferred, std::cmp::Reverse(*at))
        });
        let Some(&(newest, best)) = by_log else {
            let &(newest, best) =
                numbered.iter().max_by_key(|(at, found)| (found.revision, std::cmp::Reverse(*at)))?;
            return Some(Judgement {
                newest,
                present: Vec::new(),
                absent: Vec::new(),
                quorum: 0,
                is_complete: false,
                certain: best.last.index,
                maybe: best.last.index,
                lost: None,
                contradicting: Vec::new(),
                estranged: Vec::new(),
                relations: vec![Relation::Apart; all.len()],
                shadows_ahead: Vec::new(),
            });
        };
        let is_present =
            |id: &u64| all.iter().any(|found| found.kind == Kind::Member && found.member_id == *id);
        let is_majority =
            |voters: &Vec<u64>| 2 * voters.iter().filter(|id| is_present(id)).count() > voters.len();
        let voters = best.voters.last().cloned().unwrap_or_default();
        let (present, absent): (Vec<u64>, Vec<u64>) = voters.iter().copied().partition(is_present);
        let quorum = voters.len() / 2 + 1;
        let relations: Vec<Relation> = all.iter().map(|found| relation(found, best)).collect();
        let contradicting: Vec<usize> = numbered
            .iter()
            .filter(|(_, found)| found.has_log() && lacks_committed(best, found))
            .map(|(at, _)| *at)
            .collect();
        let votes = |id: u64| best.voters.iter().flatten().any(|voter| *voter == id);
        let estranged: Vec<usize> = numbered
            .iter()
            .filter(|(at, found)| {
                let has_own = matches!(relations[*at], Relation::Differs { .. } | Relation::Unclear);
                let was_voter = found.voters.iter().flatten().any(|voter| *voter == found.member_id);
                has_own
                    && was_voter
                    && matches!(found.kind, Kind::Member | Kind::Copy)
                    && !votes(found.member_id)
            })
            .map(|(at, _)| *at)
            .filter(|at| !contradicting.contains(at))
            .collect();
        let heard = all.iter().filter(|found| found.has_log()).map(|found| found.heard).max();
        let lost = heard.filter(|heard| *heard > best.last.index && contradicting.is_empty());
        // An entry that any directory knows to be committed is committed in the newest log, too, which has it.
        let certain = heard.unwrap_or_default().min(best.last.index).max(best.committed.index);
        let maybe = match best.voters.len() {
            0 | 1 => {
                let holders = |index: Index| {
                    let held = numbered.iter().filter(|(at, found)| {
                        found.kind == Kind::Member
                            && present.contains(&found.member_id)
                            && shared(found, best, relations[*at]) >= index
                    });
                    held.count()
                };
                let mut ends: Vec<Index> =
                    numbered.iter().map(|(at, found)| shared(found, best, relations[*at])).collect();
                ends.push(best.last.index);
                ends.retain(|end| holders(*end) + absent.len() >= quorum);
                ends.into_iter().max().unwrap_or(certain).max(certain)
            }
            _ => best.last.index,
        };
        let is_complete = contradicting.is_empty()
            && estranged.is_empty()
            && lost.is_none()
            && !best.voters.is_empty()
            && best.voters.iter().all(is_majority);
        let ahead =
            |(_, found): &&(usize, &Found)| found.kind == Kind::Shadow && found.revision > best.revision;
        let shadows_ahead = numbered.iter().filter(ahead).map(|(at, _)| *at).collect();
        Some(Judgement {
            newest,
            present,
            absent,
            quorum,
            is_complete,
            certain,
            maybe,
            lost,
            contradicting,
            estranged,
            relations,
            shadows_ahead,
        })
    }

    /// Records that the state of a directory is not one that the newest log has had: it is of another history.
    pub(super) fn contradict(&mut self, at: usize) {
        if !self.contradicting.contains(&at) {
            self.contradicting.push(at);
            self.contradicting.sort_unstable();
        }
        self.estranged.retain(|other| *other != at);
        (self.is_complete, self.lost) = (false, None);
    }
}

/// Returns the last entry that a directory shares with the one that has the newest log; where that is unclear, the
/// last one that it may share.
fn shared(found: &Found, best: &Found, relation: Relation) -> Index {
    match relation {
        Relation::Same => best.last.index,
        Relation::Behind { .. } | Relation::Unclear => found.last.index.min(best.last.index),
        Relation::Differs { common, .. } => common,
        Relation::Apart => Index(0),
    }
}

/// Returns true if the newest log certainly lacks an entry that the other directory knows to be committed.
///
/// Two clusters that have one cluster's past (one was started with `--force-new-cluster`) may elect their leaders in
/// the same terms, so the contents are compared, too.
fn lacks_committed(best: &Found, other: &Found) -> bool {
    let EntryId { index, term } = other.committed;
    if index > best.last.index || best.terms.at(index).is_some_and(|known| known != term) {
        return true;
    }
    if other.committed == best.committed && other.committed_revision != best.committed_revision {
        return true;
    }
    let starts = best.terms.runs().iter().chain(other.terms.runs()).map(|run| run.index);
    let differ = |at: Index| {
        let (one, two) = (best.terms.at(at), other.terms.at(at));
        one.is_some() && two.is_some() && one != two
    };
    if starts.filter(|start| *start <= index).any(differ) {
        return true;
    }
    let first = best.first_checksum().max(other.first_checksum());
    first.through(index).any(|index| {
        let (one, two) = (best.checksum(index), other.checksum(index));
        one.is_some() && two.is_some() && one != two && best.terms.at(index) == other.terms.at(index)
    })
}

fn relation(found: &Found, best: &Found) -> Relation {
    if !found.has_log() {
        return Relation::Apart;
    }
    if found.last == best.last {
        return Relation::Same;
    }
    match common(found, best) {
        None => Relation::Unclear,
        Some(index) if index == found.last.index => Relation::Behind { lacks: best.last.index.0 - index.0 },
        Some(index) => Relation::Differs {
            common: index,
            own: found.last.index.0 - index.0,
            lacks: best.last.index.0.saturating_sub(index.0),
        },
    }
}

/// Returns the last entry that two logs share; `None` if the terms that are known do not tell.
///
/// Two logs that have an entry with the same index and term are equal up to it (the log matching property). So the
/// search goes down from the end of the shorter log, run by run of equal terms.
fn common(one: &Found, other: &Found) -> Option<Index> {
    // Whatever both know to be committed is the same in both, unless they are of two histories.
    let surely = one.committed.index.min(other.committed.index);
    let mut index = one.last.index.min(other.last.index);
    while index > surely {
        let (Some(first), Some(second)) = (one.terms.at(index), other.terms.at(index)) else { return None };
        if first == second {
            return Some(index);
        }
        // All entries of the higher term's run differ from those of the other log, whose terms are lower there.
        let higher = if first > second { &one.terms } else { &other.terms };
        let start = higher.runs().iter().rfind(|run| run.index <= index).map_or(Index(1), |run| run.index);
        index = Index(start.0.saturating_sub(1));
    }
    Some(surely)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use machine::Members;
    use numbers::{Revision, Term};
    use storage::terms::Terms;

    use super::*;

    /// Returns the directory of member `id` of three, with these runs of terms (first index, term), up to `last`.
    pub(in crate::recover) fn member(id: u64, runs: &[(u64, u64)], last: u64, committed: u64) -> Found {
        let mut terms = Terms::default();
        for (index, term) in runs {
            terms.push(EntryId { index: Index(*index), term: Term(*term) });
        }
        let at = |index| EntryId { index: Index(index), term: terms.at(Index(index)).unwrap_or_default() };
        Found {
            dir: PathBuf::from(format!("m{id}")),
            data_dir: PathBuf::from(format!("m{id}")),
            kind: Kind::Member,
            cluster_id: 9,
            member_id: id,
            term: at(last).term,
            vote: 0,
            last: at(last),
            committed: at(committed),
            heard: Index(committed),
            committed_revision: Revision(committed as i64),
            revision: Revision(last as i64),
            compact_revision: Revision(-1),
            keys: 0,
            checksums: Vec::new(),
            voters: vec![vec![1, 2, 3]],
            members: Members::default(),
            is_corrupt: false,
            accused: Vec::new(),
            is_torn: false,
            formed: None,
            terms,
        }
    }

    fn judged(all: &[Found]) -> Judgement {
        Judgement::of(all).expect("there are directories")
    }

    #[test]
    fn the_newest_log_is_that_of_the_highest_term_and_then_the_longest() {
        let all = [
            member(1, &[(1, 1)], 50, 10),
            member(2, &[(1, 1), (11, 2)], 12, 10),
            member(3, &[(1, 1), (11, 2)], 14, 11),
        ];
        let found = judged(&all);
        assert_eq!((found.newest, found.is_complete, found.certain), (2, true, Index(11)));
        assert_eq!(
            found.relations,
            [
                Relation::Differs { common: Index(10), own: 40, lacks: 4 },
                Relation::Behind { lacks: 2 },
                Relation::Same
            ]
        );
        // Entries 13 and 14 are at one member of three, and no member is missing: nobody was told of them.
        assert_eq!(found.maybe, Index(12));
        // If the others are missing, they may have any of them.
        let alone = judged(&all[2..]);
        assert_eq!((alone.is_complete, alone.maybe, alone.absent), (false, Index(14), vec![1, 2]));
    }

    #[test]
    fn two_of_three_are_enough_and_one_is_not() {
        let all = [member(1, &[(1, 1)], 20, 5), member(2, &[(1, 1)], 22, 5)];
        assert!(judged(&all).is_complete);
        assert_eq!(judged(&all).maybe, Index(22), "the third may have what only one has here");
        assert!(!judged(&all[..1]).is_complete);
    }

    #[test]
    fn an_older_directory_of_the_same_member_does_not_count() {
        let mut all = [member(1, &[(1, 1)], 20, 5), member(1, &[(1, 1)], 22, 5)];
        settle_copies(&mut all);
        assert_eq!([all[0].kind, all[1].kind], [Kind::Copy, Kind::Member]);
        let found = judged(&all);
        assert_eq!((found.is_complete, found.present), (false, vec![1]));
        let mut same = [member(1, &[(1, 1)], 20, 5), member(1, &[(1, 1)], 20, 5)];
        settle_copies(&mut same);
        assert_eq!([same[0].kind, same[1].kind], [Kind::Member, Kind::Copy]);
    }

    #[test]
    fn a_majority_is_needed_of_every_set_of_voters_on_the_way() {
        let grown =
            |id| Found { voters: vec![vec![1], vec![1, 2], vec![1, 2, 3]], ..member(id, &[(1, 1)], 30, 5) };
        let all = [grown(2), grown(3)];
        // Members 2 and 3 are a majority of three, but member 1 alone may have committed what they lack.
        assert!(!judged(&all).is_complete);
        assert!(judged(&[grown(1), grown(2)]).is_complete);
        assert_eq!(judged(&[grown(1), grown(2)]).maybe, Index(30));
    }

    #[test]
    fn observers_count_for_no_majority_and_may_have_the_newest_log() {
        let observer = Found { kind: Kind::Observer, ..member(77, &[(1, 1)], 25, 25) };
        let all = [member(1, &[(1, 1)], 20, 5), observer];
        let found = judged(&all);
        assert_eq!((found.newest, found.is_complete, found.certain), (1, false, Index(25)));
        assert_eq!(found.relations[0], Relation::Behind { lacks: 5 });
    }

    #[test]
    fn entries_that_are_known_to_be_committed_and_are_nowhere_are_lost() {
        let all = [Found { heard: Index(30), ..member(1, &[(1, 1)], 20, 20) }, member(2, &[(1, 1)], 18, 5)];
        let found = judged(&all);
        assert_eq!(
            (found.lost, found.is_complete),
            (Some(Index(30)), false),
            "though two of three are there"
        );
    }

    #[test]
    fn two_histories_are_noticed() {
        // Member 1 was started alone with --force-new-cluster after entry 10, and the others went on.
        let all = [member(1, &[(1, 1), (11, 5)], 15, 15), member(2, &[(1, 1), (11, 2)], 40, 40)];
        let found = judged(&all);
        assert_eq!((found.newest, found.contradicting.as_slice()), (0, [1].as_slice()));
        assert!(!found.is_complete);
        // Both elected their leaders in the same term.
        let checked = |checksums: &[u32], found| Found { checksums: checksums.to_vec(), ..found };
        let twins = |second: &[u32]| {
            let one = checked(&[11, 12, 13, 14], member(1, &[(1, 1), (11, 2)], 14, 12));
            [one, checked(second, member(2, &[(1, 1), (11, 2)], 13, 13))]
        };
        assert!(judged(&twins(&[10, 11, 12, 13])).is_complete);
        assert_eq!(judged(&twins(&[10, 11, 99, 98])).contradicting, [1]);
        assert_eq!(judged(&twins(&[])).contradicting, [0; 0], "nothing is known of the contents");
        let same_end = [member(1, &[(1, 1), (11, 5)], 45, 45), member(2, &[(1, 1), (11, 2)], 40, 40)];
        assert_eq!(judged(&same_end).contradicting, [1]);
    }

    #[test]
    fn entries_of_a_member_that_the_newest_does_not_count_may_have_been_acknowledged() {
        // Member 1 was started alone with --force-new-cluster. Members 2 and 3 have acknowledged entries 11 to 40, of
        // which member 2 has not heard that they are committed.
        let alone = Found { voters: vec![vec![1]], ..member(1, &[(1, 1), (11, 5)], 15, 15) };
        let all = [alone.clone(), member(2, &[(1, 1), (11, 2)], 40, 10)];
        let found = judged(&all);
        assert_eq!((found.newest, &*found.estranged, found.is_complete), (0, &[1][..], false));
        // A directory that ends before tells nothing that the newest does not have.
        let all = [alone, member(2, &[(1, 1)], 10, 10)];
        assert_eq!((judged(&all).estranged, judged(&all).is_complete), (vec![], true));
        // The tail of a member that votes was never committed.
        let all = [member(1, &[(1, 1), (11, 5)], 15, 15), member(2, &[(1, 1), (11, 2)], 40, 10)];
        assert_eq!((judged(&all).estranged, judged(&all).is_complete), (vec![], true));
    }

    #[test]
    fn the_same_last_committed_entry_after_other_ones_is_another_history() {
        // Two restores of different snapshots under the same ids: entry 30 is of term 3 in both.
        let other = member(2, &[(1, 2), (25, 3)], 30, 30);
        let all = [member(1, &[(1, 1), (25, 3)], 31, 30), other.clone()];
        assert_eq!(judged(&all).contradicting, [1]);
        let same = Found { committed_revision: Revision(29), ..member(2, &[(1, 1), (25, 3)], 30, 30) };
        assert_eq!(
            judged(&[all[0].clone(), same]).contradicting,
            [1],
            "the same entries cannot give another revision"
        );
    }

    #[test]
    fn logs_whose_older_terms_are_forgotten_are_compared_as_far_as_they_go() {
        // Both are certain up to 100; what the first has behind that is below what the second knows the terms of.
        let all = [member(1, &[(90, 3)], 105, 100), member(2, &[(110, 4)], 120, 115)];
        assert_eq!(judged(&all).relations, [Relation::Unclear, Relation::Same]);
        let all = [member(1, &[(90, 3)], 100, 100), member(2, &[(110, 4)], 120, 115)];
        assert_eq!(judged(&all).relations[0], Relation::Behind { lacks: 20 });
    }

    #[test]
    fn among_equal_logs_one_that_is_not_quarantined_is_taken() {
        let all = [
            Found { is_corrupt: true, ..member(1, &[(1, 1)], 20, 20) },
            member(2, &[(1, 1)], 20, 5),
            member(3, &[(1, 1)], 20, 6),
        ];
        assert_eq!(judged(&all).newest, 2);
    }

    #[test]
    fn a_shadow_is_compared_by_its_revision() {
        let shadow = |revision| Found {
            kind: Kind::Shadow,
            revision: Revision(revision),
            ..member(5, &[(1, 1)], 9_000, 9_000)
        };
        let all = [member(1, &[(1, 1)], 20, 5), shadow(21), shadow(20)];
        let found = judged(&all);
        assert_eq!((found.newest, found.shadows_ahead), (0, vec![1]));
        let found = judged(&all[1..]);
        assert_eq!((found.newest, found.is_complete), (0, false));
        assert_eq!(Judgement::of(&[]), None);
    }
}
