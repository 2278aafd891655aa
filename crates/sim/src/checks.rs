//! Checks the properties that must hold after every step under any fault: raft's five properties, and
//! Mainstay's own invariants.

use std::collections::{BTreeMap, BTreeSet};

use machine::StateTrail;
use numbers::{Index, Revision, Term};

use crate::network::Host;

/// Number of an observer's newest entries that are compared with the committed ones after each step.
const FOLLOWED_MAX: u64 = 32;

/// State of a member that the checks read after a step.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Member id.
    pub id: u64,
    /// Sequence number of the member's current process: 1 for the first process at this place, and 1 more at
    /// each start.
    pub life: u64,
    /// True if the member is the leader.
    pub leads: bool,
    /// Current raft term of the member.
    pub term: Term,
    /// Commit index of the member.
    pub commit: Index,
    /// Index of the last entry that the member has applied.
    pub applied: Index,
    /// Raft term of the entry at [`Self::applied`].
    pub applied_term: Term,
    /// Index of the first entry in the member's log.
    pub first: Index,
    /// Index of the last entry in the member's log.
    pub last: Index,
    /// Index of the last entry that raft knows to be durable.
    pub synced: Index,
    /// Index of the last entry on disk. While a snapshot is installed or entries are overwritten, this index
    /// can differ from [`Self::synced`], because raft learns of it later.
    pub stored: Index,
    /// Index of the last entry that a durable checkpoint covers. While a second snapshot is installed
    /// directly after a first one, raft's synced index may still be below this index.
    pub checkpoint: Index,
    /// Ids of the voters in the member's raft configuration.
    pub voters: Vec<u64>,
    /// Ids of the voters in the state that the member has applied.
    pub voting_members: Vec<u64>,
    /// Revision of the member's key-value store.
    pub revision: i64,
}

/// Durable part of one member's log: the terms of the entries after `base`.
#[derive(Clone, Debug, Default)]
struct Durable {
    base: Index,
    terms: Vec<Term>,
}

impl Durable {
    fn last(&self) -> Index {
        self.base + self.terms.len() as u64
    }

    fn term(&self, index: Index) -> Option<Term> {
        let at = index.0.checked_sub(self.base.0 + 1)?;
        self.terms.get(usize::try_from(at).ok()?).copied()
    }

    /// Updates this copy of the terms from the member's log. The scan goes from the end backwards and stops
    /// at the first entry whose term is equal: if two logs agree on an entry, they agree on all entries
    /// before it, so the rest of the copy is still right.
    fn follow(&mut self, first: Index, synced: Index, term: &dyn Fn(Index) -> Option<Term>) {
        if self.last() + 1 < first || self.base >= synced {
            // The member has installed a snapshot, so its log begins at a later entry, and the old copy is
            // dropped.
            *self = Durable { base: first.previous().min(synced), terms: Vec::new() };
        }
        let len = usize::try_from(synced.ahead_of(self.base)).unwrap_or(0);
        self.terms.truncate(len);
        let known = self.terms.len();
        self.terms.resize(len, Term(0));
        for at in (0..len).rev() {
            let index = self.base + at as u64 + 1;
            let Some(now) = term(index) else { continue };
            if at < known && self.terms[at] == now {
                break;
            }
            self.terms[at] = now;
        }
    }
}

/// Data recorded about a committed entry.
#[derive(Debug)]
struct Committed {
    /// Raft term of the entry.
    term: Term,
    /// Raft term in which a member first reported the entry as committed.
    in_term: Term,
}

/// Everything that the checks have recorded about the run so far.
#[derive(Default)]
pub struct Checks {
    /// Index of the last entry with which each founding member starts. These entries are committed without a
    /// vote.
    founding: Index,
    /// Id of the leader of each term.
    leaders: BTreeMap<Term, u64>,
    /// All committed entries, starting at index 1.
    committed: Vec<Committed>,
    /// Revision and hash of the state after the entry at each index.
    states: BTreeMap<Index, (Revision, u64)>,
    /// Candidate that each member voted for in each term, by member id and term.
    votes: BTreeMap<(u64, Term), u64>,
    members: BTreeMap<Host, Member>,
    /// Places of observers. Their terms may go back, and all their entries are committed.
    pub observers: BTreeSet<Host>,
    /// Place of the witness, which never leads and stores no keys; `None` if there is none.
    pub witness: Option<Host>,
    /// True if disks may fail to return data that was written.
    pub reads_fail: bool,
}

#[derive(Default)]
struct Member {
    standing: Standing,
    durable: Durable,
    hashed: Index,
    /// Highest raft term of any message in which the member made a promise.
    promised: Term,
}

impl Checks {
    /// Creates checks for a cluster founded by this number of members.
    pub fn new(members: usize) -> Checks {
        Checks { founding: Index(members as u64), ..Checks::default() }
    }

    /// Returns the highest index that any member has reported as committed.
    pub fn commit(&self) -> Index {
        Index(self.committed.len() as u64)
    }

    /// Returns the state of a member at the last check.
    pub fn standing(&self, place: Host) -> Option<&Standing> {
        self.members.get(&place).map(|member| &member.standing)
    }

    /// Returns the revision of the store after the newest entry that any member has applied.
    pub fn revision(&self) -> i64 {
        self.states.last_key_value().map_or(1, |(_, (revision, _))| revision.0)
    }

    /// Forgets the member at this place and its promises, because its data was lost on purpose and a new
    /// member replaces it.
    pub fn forget(&mut self, place: Host) {
        self.members.remove(&place);
    }

    /// Records that a member sends a message with a promise (that it stored entries, or voted): from now on
    /// the member must never be in an earlier term. `stored_through` is the last entry that the message
    /// confirms as stored.
    ///
    /// # Errors
    ///
    /// Returns an error if the promised entry is not durable.
    pub fn promises(&mut self, place: Host, term: Term, stored_through: Option<Index>) -> Result<(), String> {
        let member = self.members.entry(place).or_default();
        if !self.observers.contains(&place) {
            member.promised = member.promised.max(term);
        }
        // The check applies only to the current term. Entries stored in an earlier term may have been
        // replaced since, by the same sync that made the message ready. A message of an earlier term has no
        // effect anyway, like one that the network delayed.
        if let Some(index) = stored_through
            && term >= member.standing.term
            && index > member.durable.last().max(member.standing.checkpoint).max(member.standing.stored)
        {
            return Err(format!(
                "member {place} says that it has stored entry {index}, but only {} is durable; {:?}",
                member.durable.last(),
                member.standing
            ));
        }
        Ok(())
    }

    /// Records that a member sends a vote.
    ///
    /// # Errors
    ///
    /// Returns an error if the member voted for another candidate in this term.
    pub fn votes(&mut self, id: u64, term: Term, candidate: u64) -> Result<(), String> {
        let known = *self.votes.entry((id, term)).or_insert(candidate);
        if known != candidate {
            return Err(format!(
                "member {id:x} votes for {candidate:x} in term {term}, and has for {known:x}"
            ));
        }
        Ok(())
    }

    /// Checks a member after a step.
    ///
    /// # Errors
    ///
    /// Returns an error that describes the property that does not hold.
    pub fn look(
        &mut self,
        place: Host,
        now: Standing,
        term: &dyn Fn(Index) -> Option<Term>,
        trail: &dyn Fn(Index) -> StateTrail,
    ) -> Result<(), String> {
        let before = self.members.entry(place).or_default();
        let life_goes_on = before.standing.life == now.life;
        if life_goes_on {
            let was = &before.standing;
            let is_older = now.term < was.term && !self.observers.contains(&place);
            if is_older || now.commit < was.commit || now.applied < was.applied {
                return Err(format!("member {place} went back: from {was:?} to {now:?}"));
            }
        } else {
            self.returned(place, &now, term)?;
        }
        if now.applied > now.commit {
            return Err(format!(
                "member {place} has applied {} but only {} is committed",
                now.applied, now.commit
            ));
        }
        // The check is skipped if disks may fail to read: a member that cannot read an entry for a follower
        // gives up that entry and all entries before it, so its log then begins later.
        if now.synced + 1 >= now.first && now.first > now.checkpoint + 1 && !self.reads_fail {
            return Err(format!(
                "the log of member {place} is synced from entry {} on, but its checkpoint ends at {}",
                now.first, now.checkpoint
            ));
        }
        if now.voters != now.voting_members {
            return Err(format!(
                "member {place} has applied that {:x?} vote, but counts {:x?}",
                now.voting_members, now.voters
            ));
        }
        let was_voters = self.members.get(&place).map(|m| m.standing.voters.clone()).unwrap_or_default();
        let moved = {
            let member = self.members.entry(place).or_default();
            let was = &member.standing;
            let quiet = life_goes_on
                && (was.term, was.commit, was.applied, was.last, was.synced, was.leads)
                    == (now.term, now.commit, now.applied, now.last, now.synced, now.leads);
            if !quiet {
                member.durable.follow(now.first, now.synced, term);
            }
            member.standing = now.clone();
            !quiet
        };
        if !moved {
            return Ok(());
        }
        if self.witness == Some(place) && (now.leads || now.revision > 1) {
            return Err(format!("the witness leads or has keys: {now:?}"));
        }
        if now.leads {
            self.led(place, &now, term)?;
        }
        if self.observers.contains(&place) {
            self.follows(place, &now, term)?;
        }
        self.commits(place, &now, &was_voters, term)?;
        self.applies(place, &now, trail)
    }

    /// Checks that a restarted process has kept everything it promised before.
    fn returned(
        &mut self,
        place: Host,
        now: &Standing,
        term: &dyn Fn(Index) -> Option<Term>,
    ) -> Result<(), String> {
        let commit = self.commit();
        let Some(before) = self.members.get_mut(&place) else { return Ok(()) };
        if before.standing.life == 0 {
            return Ok(());
        }
        if now.term < before.promised {
            return Err(format!(
                "member {place} came back in term {}, but had promised something in term {}",
                now.term, before.promised
            ));
        }
        let last = before.durable.last().min(commit);
        if now.last < last {
            return Err(format!(
                "member {place} came back with entries up to {}, but had {last} durable",
                now.last
            ));
        }
        for index in before.durable.base.next().through(last) {
            let (was, is) = (before.durable.term(index), term(index));
            if index >= now.first && is != was {
                return Err(format!(
                    "member {place} came back with entry {index} of term {is:?}, was {was:?}"
                ));
            }
        }
        before.hashed = Index(0);
        Ok(())
    }

    fn led(
        &mut self,
        place: Host,
        now: &Standing,
        term: &dyn Fn(Index) -> Option<Term>,
    ) -> Result<(), String> {
        match self.leaders.get(&now.term) {
            Some(id) if *id == now.id => return Ok(()),
            Some(other) => {
                return Err(format!("two leaders in term {}: {other:x} and {:x}", now.term, now.id));
            }
            None => {
                self.leaders.insert(now.term, now.id);
            }
        }
        for (at, Committed { term: entry_term, in_term: commit_term }) in self.committed.iter().enumerate() {
            let index = Index(at as u64 + 1);
            let missing = index > now.last || index >= now.first && term(index) != Some(*entry_term);
            if *commit_term < now.term && missing {
                return Err(format!(
                    "member {place} leads in term {} without entry {index} of term {entry_term}, committed in \
                     term {commit_term}",
                    now.term
                ));
            }
        }
        Ok(())
    }

    /// Checks the log of an observer: its feeder has applied all entries, so they are committed. An entry that
    /// is not could be replaced in the cluster, but never at the observer.
    fn follows(
        &self,
        place: Host,
        now: &Standing,
        term: &dyn Fn(Index) -> Option<Term>,
    ) -> Result<(), String> {
        if now.last > self.commit() {
            return Err(format!(
                "the observer at {place} has entry {}, but only {} is committed",
                now.last,
                self.commit()
            ));
        }
        for index in now.last.saturating_sub(FOLLOWED_MAX).max(now.first).max(Index(1)).through(now.last) {
            let known = self.committed[usize::try_from(index.0 - 1).unwrap_or(0)].term;
            if let Some(own) = term(index)
                && own != known
            {
                return Err(format!(
                    "the observer at {place} has entry {index} of term {own}, committed is one of term {known}"
                ));
            }
        }
        Ok(())
    }

    fn commits(
        &mut self,
        place: Host,
        now: &Standing,
        was_voters: &[u64],
        term: &dyn Fn(Index) -> Option<Term>,
    ) -> Result<(), String> {
        for index in self.commit().next().through(now.commit) {
            let Some(entry_term) = term(index) else {
                return Err(format!("member {place} knows entry {index} to be committed, but not its term"));
            };
            if index <= self.founding {
                self.committed.push(Committed { term: entry_term, in_term: Term(0) });
                continue;
            }
            // A leader that has applied its own removal still commits with the votes of the previous
            // configuration, until enough other members know of the removal. So a majority that includes the
            // leader is also accepted.
            let with_itself: Vec<u64> = now.voters.iter().copied().chain([now.id]).collect();
            let with_itself = if now.voters.contains(&now.id) { &[][..] } else { &with_itself[..] };
            for voters in [&now.voters[..], was_voters, with_itself] {
                let stored = voters.iter().filter(|id| self.has(**id, index, entry_term)).count();
                if stored * 2 > voters.len() {
                    self.committed.push(Committed { term: entry_term, in_term: now.term });
                    break;
                }
            }
            if self.commit() < index {
                return Err(format!(
                    "entry {index} of term {entry_term} is committed at member {place}, but not durable at a majority \
                     of {:x?}",
                    now.voters
                ));
            }
        }
        // Entries that this member knows to be committed must equal the recorded ones. It is enough to check
        // the last few entries, because the check runs after every step.
        let newest = now.commit.min(self.commit());
        for index in newest.saturating_sub(4).max(now.first).through(newest) {
            if index == Index(0) {
                continue;
            }
            let known = self.committed[usize::try_from(index.0 - 1).unwrap_or(0)].term;
            if let Some(own) = term(index)
                && own != known
            {
                return Err(format!(
                    "entry {index} is committed with term {known}, at member {place} with {own}"
                ));
            }
        }
        Ok(())
    }

    fn has(&self, id: u64, index: Index, term: Term) -> bool {
        self.members.values().any(|member| {
            member.standing.id == id
                && (member.durable.term(index) == Some(term)
                    // Entries that a snapshot covers count as stored.
                    || member.durable.base >= index && member.durable.base > Index(0))
        })
    }

    fn applies(
        &mut self,
        place: Host,
        now: &Standing,
        trail: &dyn Fn(Index) -> StateTrail,
    ) -> Result<(), String> {
        if now.applied > Index(0) {
            let known = usize::try_from(now.applied.0 - 1).ok().and_then(|at| self.committed.get(at));
            if known.is_none_or(|known| known.term != now.applied_term) {
                return Err(format!(
                    "member {place} applied entry {} of term {}, committed is {known:?}",
                    now.applied, now.applied_term
                ));
            }
        }
        if self.witness == Some(place) {
            return Ok(());
        }
        let Some(member) = self.members.get_mut(&place) else { return Ok(()) };
        if member.hashed >= now.applied {
            return Ok(());
        }
        for point in &trail(member.hashed).points {
            let state = (point.revision, point.hash);
            // A state machine that was restored from a snapshot adds a point to its trail for an entry that
            // did not change the state. So the comparison uses the newest recorded state at or before this
            // index.
            let newest = self.states.last_key_value().map_or(Index(0), |(index, _)| *index);
            let known = match self.states.range(..=point.index).next_back() {
                _ if point.index > newest => *self.states.entry(point.index).or_insert(state),
                Some((_, known)) => *known,
                None => continue,
            };
            if known != state {
                return Err(format!(
                    "the state of member {place} after entry {} is {state:x?}, that of another was {known:x?}",
                    point.index
                ));
            }
        }
        member.hashed = now.applied;
        Ok(())
    }

    /// Compares all durable logs with each other (raft's log matching property).
    ///
    /// # Errors
    ///
    /// Returns an error if two logs have an equal entry and differ in an earlier entry.
    pub fn compare_logs(&self) -> Result<(), String> {
        let members: Vec<(&Host, &Member)> = self.members.iter().collect();
        for (at, (place, a)) in members.iter().enumerate() {
            for (other, b) in &members[at + 1..] {
                let first = a.durable.base.max(b.durable.base) + 1;
                let last = a.durable.last().min(b.durable.last());
                let mut matched = false;
                for index in first.through(last).rev() {
                    let (mine, theirs) = (a.durable.term(index), b.durable.term(index));
                    if matched && mine != theirs {
                        return Err(format!(
                            "members {place} and {other} have an entry in common, but entry {index} differs: {mine:?} \
                             and {theirs:?}"
                        ));
                    }
                    matched |= mine == theirs;
                }
            }
        }
        Ok(())
    }
}
