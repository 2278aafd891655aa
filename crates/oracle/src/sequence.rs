//! Builds the sequence of changes, revision by revision, and checks every response against it.
//!
//! Most revisions are claimed by the response to a write, which has the revision in its header. The other
//! revisions were made by writes with unknown outcomes, by leases that ended, or by no known operation. If
//! several candidates would change the store in the same way, it only matters that there are enough of them
//! ([`Matching`]), not which one made the revision. If candidates would change the store differently, and no
//! client saw the result, the judge tries one after the other: it goes back when a response contradicts the
//! choice.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use crate::candidates::Candidates;
use crate::evidence::Evidence;
use crate::findings::{brief, shorten, show};
use crate::matching::{Maker, Matching};
use crate::movable::Movable;
use crate::rules::members;
use crate::store::{Change, Effect, Store, agrees};
use crate::timeline::Timeline;
use crate::{History, KeyValue, Kind, Operation, Refusal, Request, Response, Verdict, Violation};

/// One possible cause of a revision that no response claims: a list of changes, and all makers (operations or
/// lease ends) that would make exactly these changes.
#[derive(Clone)]
struct Choice {
    changes: Vec<Change>,
    makers: Vec<Maker>,
}

/// A revision with more than one possible cause, and the indices of the causes that were not tried yet.
struct Fork {
    revision: i64,
    untried: Vec<usize>,
}

/// A contradiction between the history and the sequence.
struct Found {
    revision: i64,
    violation: Violation,
    /// True if the contradiction exists for every choice of causes.
    is_certain: bool,
}

/// The attempt that got furthest: its choices from revision 2 on, and the revision of its first
/// contradiction.
struct Furthest {
    revision: i64,
    path: Vec<usize>,
}

/// The sequence of all changes.
pub(crate) struct Sequence<'a> {
    history: &'a History,
    evidence: &'a Evidence<'a>,
    timeline: &'a Timeline,
    candidates: Candidates<'a>,
    /// The store after the last revision, with all older revisions.
    pub store: Store,
    /// The makers that are assigned to the revisions which no response claims.
    pub matching: Matching,
    /// Position of the operation whose response claims a revision, by this revision.
    claims: HashMap<i64, usize>,
    /// Positions of the operations that changed nothing and were answered from the state after a revision, by
    /// this revision.
    answers: HashMap<i64, Vec<usize>>,
    /// Number of possible causes of a revision, by this revision; 0 if a response claims the revision or no
    /// cause was found.
    ways: HashMap<i64, usize>,
    /// Keys whose history depends on the choices. They are computed when the first contradiction is found.
    movable: OnceCell<Movable<'a>>,
    /// Contradictions found so far.
    found: Vec<Found>,
    steps: u64,
    /// True if other choices, which were not tried, might explain the history as well, or the search was
    /// given up.
    pub is_ambiguous: bool,
}

const SEARCH_STEPS_MAX: u64 = 300_000;

impl<'a> Sequence<'a> {
    pub fn new(
        history: &'a History,
        evidence: &'a Evidence<'a>,
        timeline: &'a Timeline,
        verdict: &mut Verdict,
    ) -> Self {
        let mut sequence = Sequence {
            history,
            evidence,
            timeline,
            candidates: Candidates::new(history, evidence),
            store: Store::new(),
            matching: Matching::default(),
            claims: HashMap::new(),
            answers: HashMap::new(),
            ways: HashMap::new(),
            movable: OnceCell::new(),
            found: Vec::new(),
            steps: 0,
            is_ambiguous: false,
        };
        sequence.claim(verdict);
        sequence.build(verdict);
        sequence
    }

    /// Returns the keys whose history depends on the revisions at which writes with unknown outcomes are
    /// placed.
    pub fn movable(&self) -> &Movable<'a> {
        self.movable.get_or_init(|| Movable::new(self.history, &self.candidates))
    }

    /// Returns the operation whose response claims a revision.
    pub fn claimed(&self, revision: i64) -> Option<&'a Operation> {
        self.claims.get(&revision).map(|at| &self.history.operations[*at])
    }

    /// Returns true if only the end of this lease can have made this revision.
    ///
    /// This requires that every key deleted by the revision was certainly attached to the lease before. The
    /// write that attached a key is certain if a response claims its revision, or if its revision has only
    /// one possible cause.
    pub fn is_end_of(&self, revision: i64, lease: i64) -> bool {
        let makers = self.matching.makers(revision);
        let is_known = |made: i64| self.claims.contains_key(&made) || self.ways.get(&made) == Some(&1);
        let was_on_it = |change: &Change| {
            let before = self.store.at(&change.key, revision - 1);
            before.is_some_and(|kv| kv.lease == lease && is_known(kv.mod_revision))
        };
        is_known(revision)
            && !makers.is_empty()
            && makers.iter().all(|maker| matches!(maker, Maker::LeaseEnd(id, _) if *id == lease))
            && self.store.changes(revision).iter().all(was_on_it)
    }

    /// Records which response claims each revision. A write increases the revision by exactly one, so two
    /// responses must not claim the same revision.
    fn claim(&mut self, verdict: &mut Verdict) {
        for (at, op) in self.history.operations.iter().enumerate() {
            let Some((header, _)) = op.done() else { continue };
            if !op.changed() {
                if op.is_of_keys() || matches!(op.request, Request::Revoke { .. }) {
                    self.answers.entry(header.revision).or_default().push(at);
                }
                continue;
            }
            if header.revision < 2 {
                let text = format!("{}: the first change has revision 2", brief(op));
                verdict.add(Violation::of(Kind::WrongAnswer, &[op], text));
                continue;
            }
            if let Some(other) = self.claims.insert(header.revision, at) {
                let other = &self.history.operations[other];
                let text = format!(
                    "revision {} is claimed by {} and by {}",
                    header.revision,
                    brief(other),
                    brief(op)
                );
                verdict.add(Violation::of(Kind::RevisionTwice, &[other, op], text));
            }
        }
    }

    fn build(&mut self, verdict: &mut Verdict) {
        let steps_max = match self.history.settings.search_steps_max {
            0 => SEARCH_STEPS_MAX,
            steps_max => steps_max,
        };
        let mut forks: Vec<Fork> = Vec::new();
        let mut path: Vec<usize> = Vec::new();
        let mut furthest: Option<Furthest> = None;
        // The choices for revisions up to this one are final: contradictions there are reported, and the
        // search does not go back because of them.
        let mut settled = 1;
        // From this revision on, a contradiction may be the result of a wrong choice, because the search was
        // given up.
        let mut open_from = i64::MAX;
        let mut first_fork = i64::MAX;
        self.hold_answers(1);
        let mut revision = 2;
        while revision <= self.timeline.last {
            let mut choices = self.choices(revision);
            let choice = match path.get(index(revision)) {
                Some(chosen) => *chosen,
                None => {
                    if choices.len() > 1 {
                        verdict.figures.choices += 1;
                        first_fork = first_fork.min(revision);
                        forks.push(Fork { revision, untried: (1..choices.len()).rev().collect() });
                    }
                    path.push(0);
                    0
                }
            };
            self.ways.insert(revision, choices.len());
            let choice = (choice < choices.len()).then(|| choices.swap_remove(choice));
            let before = self.found.len();
            self.take(revision, choice);
            // Ignore contradictions that exist for every choice, because another choice would not help.
            let contradicted = self.found[before..].iter().any(|found| !found.is_certain);
            if !contradicted && furthest.as_ref().is_some_and(|best| best.revision <= revision) {
                furthest = None;
            }
            let may_go_back = || revision > settled && forks.iter().any(|fork| !fork.untried.is_empty());
            if contradicted && may_go_back() {
                let further = furthest.as_ref().is_none_or(|known| known.revision < revision);
                if further {
                    furthest = Some(Furthest { revision, path: path.clone() });
                }
                if self.steps < steps_max
                    && let Some(fork) = go_back(&mut forks, &mut path)
                {
                    self.steps += u64::try_from(revision - fork).unwrap_or(0) + 1;
                    self.rewind(fork);
                    revision = fork;
                    continue;
                }
            }
            if contradicted
                && revision > settled
                && let Some(best) = furthest.take()
            {
                // Either all other choices fail as well, or the search has taken too long. Use the choices
                // with which the sequence got furthest.
                if self.steps >= steps_max {
                    open_from = open_from.min(first_fork);
                }
                first_fork = i64::MAX;
                settled = best.revision;
                let back = common(&path, &best.path).min(best.revision).min(revision);
                path = best.path;
                forks.clear();
                self.rewind(back);
                revision = back;
                continue;
            }
            revision += 1;
        }
        verdict.figures.search_steps = self.steps;
        self.is_ambiguous = forks.iter().any(|fork| !fork.untried.is_empty()) || open_from < i64::MAX;
        for Found { revision, violation, is_certain } in std::mem::take(&mut self.found) {
            if revision >= open_from && !is_certain {
                let text = format!(
                    "the search for the place of writes with unknown outcomes was given up after {} steps; in the best \
                     order found this remains: {violation}",
                    self.steps
                );
                verdict.leave_open(violation.operations, text);
            } else {
                verdict.add(violation);
            }
        }
        let operations =
            self.matching.given().filter(|(maker, _)| matches!(maker, Maker::Operation(_))).count();
        verdict.figures.unknown_happened = u64::try_from(operations).unwrap_or(u64::MAX);
    }

    /// Undoes all revisions from `revision` on.
    fn rewind(&mut self, revision: i64) {
        while self.store.revision >= revision {
            self.store.undo();
        }
        self.matching.truncate(revision);
        self.found.retain(|found| found.revision < revision);
    }

    /// Returns the possible causes of a revision that no response claims.
    fn choices(&mut self, revision: i64) -> Vec<Choice> {
        if self.claims.contains_key(&revision) {
            return Vec::new();
        }
        let seen = self.evidence.of(revision);
        if seen.keys.is_empty() && self.evidence.is_covered(revision) {
            // A watch of all keys had to report the changes of this revision and reported none, so no cause
            // is possible.
            return Vec::new();
        }
        let by = self.timeline.not_after(revision).time;
        let mut choices: Vec<Choice> = Vec::new();
        for maker in self.candidates.makers(seen, &self.store, by) {
            let changes = match maker {
                Maker::LeaseEnd(lease, _) => self.store.lease_end(lease),
                Maker::Operation(at) => match self.store.changes_of(&self.history.operations[at].request) {
                    Some(changes) => changes,
                    None => continue,
                },
            };
            if changes.is_empty() || changes.iter().any(|change| self.is_on_dead_lease(change, revision)) {
                continue;
            }
            match choices.iter_mut().find(|choice| choice.changes == changes) {
                Some(choice) => choice.makers.push(maker),
                None => choices.push(Choice { changes, makers: vec![maker] }),
            }
        }
        let (fitting, others): (Vec<Choice>, Vec<Choice>) =
            choices.into_iter().partition(|choice| self.evidence.allows(revision, &choice.changes));
        // Keep a cause that makes at least one of the changes that clients saw. The end of a lease must fit
        // exactly: it deletes all keys of the lease together, so it is no cause if a watch of all keys
        // reported other changes.
        let half = |choice: &Choice| match seen.keys.is_empty() {
            true => true,
            false => {
                let is_end = matches!(choice.makers[0], Maker::LeaseEnd(..));
                !(is_end && seen.whole) && choice.changes.iter().any(|change| seen.has(change))
            }
        };
        let others: Vec<Choice> = others.into_iter().filter(half).collect();
        let mut fitting = self.free(revision, fitting);
        if fitting.is_empty() {
            // No cause agrees with all changes that clients saw, so some client saw a wrong event. Accept a
            // cause that agrees partly, and leave it to the rule for watches to report the event.
            fitting = self.free(revision, others);
        }
        fitting
    }

    /// Returns the causes that have at least one maker which is not needed for an earlier revision.
    fn free(&mut self, revision: i64, choices: Vec<Choice>) -> Vec<Choice> {
        let matching = &mut self.matching;
        let free = choices.into_iter().filter(|choice| {
            let free = matching.add(revision, &choice.makers);
            matching.truncate(revision);
            free
        });
        free.collect()
    }

    /// Returns true if this change, which no client saw, would attach a key to a lease that has certainly
    /// ended.
    fn is_on_dead_lease(&self, change: &Change, revision: i64) -> bool {
        let lease = change.put.as_ref().map_or(0, |kv| kv.lease);
        if lease == 0 || self.store.has_keys(lease) || self.evidence.of(revision).has(change) {
            return false;
        }
        let ended = |end| {
            let makers =
                self.matching.revision_of(end).map_or(&[][..], |revision| self.matching.makers(revision));
            !makers.is_empty()
                && makers.iter().all(|maker| matches!(maker, Maker::LeaseEnd(id, _) if *id == lease))
        };
        self.candidates.is_revoked_before(lease, revision) || self.candidates.lease_ends(lease).all(ended)
    }

    /// Adds a revision to the store, and checks the responses from the state at this revision.
    fn take(&mut self, revision: i64, choice: Option<Choice>) {
        let changes = match (self.claims.get(&revision), choice) {
            (Some(at), _) => self.answered(revision, &self.history.operations[*at]),
            (None, Some(choice)) => {
                assert!(self.matching.add(revision, &choice.makers), "was tried before");
                choice.changes
            }
            (None, None) => self.unexplained(revision),
        };
        self.store.commit(changes);
        self.hold_answers(revision);
    }

    /// Returns the changes that an answered write has made.
    fn answered(&mut self, revision: i64, op: &'a Operation) -> Vec<Change> {
        let Some((_, response)) = op.done() else { return Vec::new() };
        let seen = self.evidence.of(revision);
        let effect = match self.store.evaluate(&op.request) {
            Some(Ok(effect)) => effect,
            refused => {
                let text = format!("{} was answered, but had to be refused: {refused:?}", brief(op));
                let is_certain = self.is_certain_of(op);
                self.find(revision, Violation::of(Kind::WrongAnswer, &[op], text), is_certain);
                return seen.changes();
            }
        };
        self.compare(revision, op, response, &effect);
        let shares_a_key = effect.changes.iter().any(|change| seen.keys.contains_key(&change.key));
        if !seen.whole || shares_a_key {
            // Use the computed effect of the write. If a watch reported other changes of these keys, the rule
            // for watches reports the violation.
            return effect.changes;
        }
        let told: Vec<String> = seen.keys.keys().map(|key| show(key)).collect();
        let text = format!("{}: its revision shows keys {told:?} instead", brief(op));
        let is_certain = self.is_certain_of(op);
        self.find(revision, Violation::of(Kind::LostWrite, &[op], shorten(text)), is_certain);
        seen.changes()
    }

    fn compare(&mut self, revision: i64, op: &Operation, response: &Response, effect: &Effect) {
        if agrees(&op.request, response, &effect.response) {
            return;
        }
        let text = shorten(format_args!("{}: answered {response:?}", brief(op)));
        let text =
            format!("{text}; at its revision it is {}", shorten(format_args!("{:?}", effect.response)));
        let is_certain = self.is_certain_of(op) || self.differs_for_certain(op, response, &effect.response);
        self.find(revision, Violation::of(Kind::WrongAnswer, &[op], text), is_certain);
    }

    fn find(&mut self, revision: i64, violation: Violation, is_certain: bool) {
        self.found.push(Found { revision, violation, is_certain });
    }

    /// Returns true if the correct response to the operation is the same for every choice.
    fn is_certain_of(&self, op: &Operation) -> bool {
        !self.movable().decides(&op.request)
    }

    /// Returns true if the response to a range read is wrong for every choice: it differs from the expected
    /// one in a key whose history does not depend on the choices.
    fn differs_for_certain(&self, op: &Operation, got: &Response, expected: &Response) -> bool {
        let (Request::Range(range), Response::Range(got), Response::Range(expected)) =
            (&op.request, got, expected)
        else {
            return false;
        };
        // Such a response cannot be compared key by key: which keys a limit cuts off depends on other keys,
        // and a response without values may lack leases.
        if range.limit > 0 || range.count_only || range.keys_only {
            return false;
        }
        let of = |kvs: &[KeyValue]| -> BTreeMap<Vec<u8>, KeyValue> {
            kvs.iter().map(|kv| (kv.key.clone(), kv.clone())).collect()
        };
        let (got, expected) = (of(&got.kvs), of(&expected.kvs));
        let mut keys = got.keys().chain(expected.keys());
        keys.any(|key| got.get(key) != expected.get(key) && !self.movable().has(key))
    }

    /// Checks the responses, linearizable or serializable, that were given from the state at this revision
    /// and changed nothing. Also checks the final states of members at this revision, and that a lease which
    /// was revoked at this revision has no keys.
    fn hold_answers(&mut self, revision: i64) {
        let history = self.history;
        for member in history.finals.iter().filter(|member| member.revision == revision) {
            if let Some((violation, is_certain)) = members::held(member, self) {
                self.find(revision, violation, is_certain);
            }
        }
        for at in self.answers.get(&revision).cloned().unwrap_or_default() {
            let op = &history.operations[at];
            let Some((_, response)) = op.done() else { continue };
            if let Request::Revoke { id } = op.request {
                if self.store.has_keys(id) {
                    let text = format!("{}: keys of the lease are there after it", brief(op));
                    self.find(revision, Violation::of(Kind::LeaseKeys, &[op], text), false);
                }
                continue;
            }
            match self.store.evaluate(&op.request) {
                Some(Ok(effect)) => {
                    self.compare(revision, op, response, &effect);
                    if !effect.changes.is_empty() && agrees(&op.request, response, &effect.response) {
                        let text = format!("{}: it changed keys, but has no revision of its own", brief(op));
                        let is_certain = self.is_certain_of(op);
                        self.find(revision, Violation::of(Kind::WrongAnswer, &[op], text), is_certain);
                    }
                }
                Some(Err(Refusal::FutureRevision)) => {
                    let text = format!("{}: it reads a revision that was not there", brief(op));
                    let is_certain = self.is_certain_of(op) || matches!(op.request, Request::Range(_));
                    self.find(revision, Violation::of(Kind::FutureRevision, &[op], text), is_certain);
                }
                Some(Err(refusal)) => {
                    let text = format!("{}: it had to be refused: {refusal:?}", brief(op));
                    let is_certain = self.is_certain_of(op);
                    self.find(revision, Violation::of(Kind::WrongAnswer, &[op], text), is_certain);
                }
                None => {}
            }
        }
    }

    /// Reports a revision that neither a single operation nor the end of a lease can have made. Returns the
    /// changes of the revision that clients saw.
    fn unexplained(&mut self, revision: i64) -> Vec<Change> {
        let seen = self.evidence.of(revision);
        let unrecorded = &self.history.settings.unrecorded;
        let is_unrecorded = |key: &[u8]| unrecorded.iter().any(|prefix| key.starts_with(prefix));
        if seen.keys.is_empty() {
            if unrecorded.is_empty() {
                let text = format!(
                    "revision {revision} is not there: nothing was seen of it and no write is left that made it, of {}",
                    self.timeline.last
                );
                self.find(revision, Violation::of(Kind::RevisionGap, &[], text), false);
            }
            return Vec::new();
        }
        let changes = seen.changes();
        if !seen.keys.keys().all(|key| is_unrecorded(key)) {
            let violation = self.explain(revision, &changes);
            let is_certain = self.candidates.is_strange(&changes);
            self.find(revision, violation, is_certain);
        }
        changes
    }

    /// Returns a violation for changes that no operation explains. Its kind and description name the most
    /// likely cause.
    fn explain(&self, revision: i64, changes: &[Change]) -> Violation {
        let keys: Vec<String> = changes.iter().map(|change| show(&change.key)).collect();
        let say = |kind, op: Option<&Operation>, why: &str| {
            let operations: Vec<&Operation> = op.into_iter().collect();
            let whose = op.map(brief).unwrap_or_default();
            let text = format!("revision {revision} changes {keys:?}: {why}{whose}");
            Violation::of(kind, &operations, shorten(text))
        };
        for op in self.candidates.writers_like(changes) {
            let claimed = op.done().map(|(header, _)| header.revision);
            match &op.outcome {
                crate::Outcome::Refused(_) => {
                    if let Some(Ok(effect)) = self.store.evaluate(&op.request)
                        && effect.changes == changes
                    {
                        return say(Kind::RefusedHappened, Some(op), "that is ");
                    }
                }
                crate::Outcome::Done(..)
                    if op.changed() && changes.iter().any(|change| change.put.is_some()) =>
                {
                    let there = self.evidence.of(claimed.unwrap_or(0));
                    let left_out = |change: &Change| there.whole && !there.keys.contains_key(&change.key);
                    let kind = if changes.iter().all(left_out) { Kind::NotAtomic } else { Kind::WriteTwice };
                    let text = format!("that is of the write of revision {}: ", claimed.unwrap_or(0));
                    return say(kind, Some(op), &text);
                }
                crate::Outcome::Done(..) => {}
                crate::Outcome::Unknown(_) => {
                    if op.call > self.timeline.not_after(revision).time {
                        return say(Kind::Order, Some(op), "it was seen before this was called: ");
                    }
                    let at = self.candidates.place(op);
                    let before = at.and_then(|at| self.matching.revision_of(Maker::Operation(at)));
                    if let Some(before) = before {
                        return say(
                            Kind::WriteTwice,
                            Some(op),
                            &format!("revision {before} was already made by "),
                        );
                    }
                }
            }
        }
        let lease = changes.iter().map(|change| match &change.put {
            None => self.store.at(&change.key, revision).map_or(0, |kv| kv.lease),
            Some(_) => 0,
        });
        let leases: Vec<i64> = lease.collect();
        if let Some(lease) = leases.first().filter(|lease| **lease != 0)
            && leases.iter().all(|other| other == lease)
        {
            let why = format!(
                "these are attached to lease {lease}, but they are not all of its keys, or it had ended before"
            );
            return say(Kind::LeaseKeys, None, &why);
        }
        say(Kind::Stranger, None, "no operation does that")
    }
}

fn index(revision: i64) -> usize {
    usize::try_from(revision - 2).unwrap_or(0)
}

/// Goes back to the last revision with an untried choice and takes that choice. Returns the revision, or
/// `None` if no untried choice is left.
fn go_back(forks: &mut Vec<Fork>, path: &mut Vec<usize>) -> Option<i64> {
    while let Some(fork) = forks.last_mut() {
        if let Some(next) = fork.untried.pop() {
            path.truncate(index(fork.revision));
            path.push(next);
            return Some(fork.revision);
        }
        forks.pop();
    }
    None
}

/// Returns the first revision at which two paths differ.
fn common(a: &[usize], b: &[usize]) -> i64 {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    i64::try_from(same).unwrap_or(i64::MAX).saturating_add(2)
}
