//! Decides the steps of the leader's autopilot: which learner becomes a voter, which member is removed, and which
//! member should lead. [`Autopilot`] sees what the leader knows about the members, and returns at most one step at
//! a time; the core proposes it like a change that a client requests, so a leader without a majority can do
//! nothing.
//!
//! # When a voter may be removed
//!
//! Of n voters, n/2 + 1 must answer. The *margin* is the number of voters that answer beyond that: so many more
//! may fail before the cluster stops. No step makes the margin smaller:
//!
//! ```text
//! voters  answer  needed  margin
//!      3       2       2       0   one voter is gone for good
//!      4       3       3       0   a spare is promoted first: n is odd, so one more voter is needed, and there is one
//!      3       3       2       1   then the voter that is gone is removed: n is even, so one voter less is needed
//! ```
//!
//! So with an odd number of voters the next step is always to promote a spare, and with an even number to remove
//! the voter that is gone. A leader that finds a replacement half done therefore goes on with it, though it knows
//! nothing of its predecessor. Without a spare, an odd number of voters stays as it is: the member may come back,
//! and its removal would gain nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use numbers::{Index, Term};
use planted::Bug;

use crate::autopilot::{
    AutopilotOptions, AutopilotState, MemberReport, MemberState, Mode, REPORT_INTERVAL, STEPS_MAX, Step,
    StepOutcome, StepRecord,
};

/// Time for which a member that has answered counts as alive, in election timeouts.
const ALIVE_TIMEOUTS: u32 = 3;
/// Time for which a learner must have been caught up before it is promoted, in election timeouts.
const CAUGHT_UP_TIMEOUTS: u32 = 2;
/// Number of report intervals after which a report counts no more.
const REPORT_AGE: u32 = 10;
/// Lowest duration of the 99th percentile of syncs at which a disk counts as slow.
const SLOW_SYNC: Duration = Duration::from_millis(100);
/// How many times faster another member's disk must be, which must not be slow itself, so that leadership moves
/// there. Neither of two disks that are alike fulfils that, so leadership does not go back and forth.
const FASTER: u32 = 4;
/// Number of intervals in a row in which the leader's disk must have been slow.
const SLOW_INTERVALS: u32 = 3;
/// Minimum number of syncs in an interval from which a percentile is computed.
const SYNCS_MIN: u128 = 20;
/// Number of intervals in which the leader's zone must have had no client while another zone had some.
const ZONE_INTERVALS: u32 = 10;
/// Fewest voters of which one may be removed, so that two are a majority of those left.
const VOTERS_MIN: usize = 4;

/// What the leader knows about a member.
#[derive(Clone, Debug)]
pub(super) struct MemberFacts {
    /// Id of the member.
    pub id: u64,
    /// Name of the member; empty if it was never started.
    pub name: String,
    /// True if the member has no vote.
    pub is_learner: bool,
    /// Index of the newest entry known to be on the member's disk.
    pub matched: Index,
    /// True if entries are sent to the member one after the other, so that it is not behind by a whole state.
    pub is_replicating: bool,
    /// True if the member has answered since the leader's last check.
    pub has_answered: bool,
    /// True if the CORRUPT alarm names the member.
    pub is_corrupt: bool,
}

/// Facts about the cluster from which the autopilot decides.
#[derive(Clone, Debug)]
pub(super) struct Situation {
    /// Id of this member, which leads.
    pub own: u64,
    /// Index of the newest committed entry.
    pub commit: Index,
    /// All members.
    pub members: Vec<MemberFacts>,
    /// Members that the CORRUPT alarm names and that are no longer in the cluster.
    pub removed_corrupt: Vec<u64>,
    /// True if a membership change or a move of leadership is under way, of whomever.
    pub is_changing: bool,
    /// True if one of the voters is a witness.
    pub has_witness: bool,
}

/// What is to be done, and what is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// The next step, with the reason for it.
    pub step: Option<(Step, String)>,
    /// Sentences that say what is not done, why, and what a person should do.
    pub advice: Vec<String>,
}

/// What the leader has observed of a member in its term.
#[derive(Debug)]
struct Observed {
    last_heard: Instant,
    /// Time since when the member has been caught up; `None` if it is not.
    caught_up_since: Option<Instant>,
    report: Option<(Instant, MemberReport)>,
    /// Counts of syncs at the beginning of the interval.
    syncs_before: Vec<u64>,
    sync_p99: Option<Duration>,
}

/// A comparison of the members' states with that of the leader.
#[derive(Debug)]
struct Compared {
    at: Instant,
    /// Ids of the other members whose states are equal.
    agreeing: Vec<u64>,
    /// Ids of the members whose states differ.
    differing: Vec<u64>,
}

/// What the leader has observed in its term.
#[derive(Debug)]
struct Watch {
    term: Term,
    /// Committed indexes of the past, oldest first, to tell what a learner should have.
    commits: VecDeque<(Instant, Index)>,
    members: BTreeMap<u64, Observed>,
    next_step: Instant,
    stepped: bool,
    is_open: bool,
    /// The last comparison of states.
    compared: Option<Compared>,
    window_began: Instant,
    slow_intervals: u32,
    no_clients_since: Option<Instant>,
}

/// The autopilot of a member; it decides while the member leads.
///
/// The core calls [`Autopilot::look`] regularly, carries out the step that it returns, and tells how the step
/// ended. All that this type remembers of the cluster is of one term, so a new leader observes for as long as its
/// predecessor did before it calls a member gone.
pub(super) struct Autopilot {
    options: AutopilotOptions,
    election_timeout: Duration,
    watch: Option<Watch>,
    records: VecDeque<StepRecord>,
    /// Number of steps recorded since the start.
    taken: u64,
    /// Ids of the members that were removed while their data were known to be wrong.
    removed_wrong: BTreeSet<u64>,
    advice: Vec<String>,
    next_look: Option<Instant>,
    /// Time as the autopilot counts it: that of the clock, without the time in which this member did not run.
    /// Otherwise a member that was suspended would take all others for silent when it runs again.
    time: Instant,
    /// Time of the clock at the last call of [`Autopilot::is_due`].
    clock: Instant,
}

/// A duration in the largest two units.
fn shown(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{s}s"),
        60..3600 => format!("{}m{}s", s / 60, s % 60),
        _ => format!("{}h{}m", s / 3600, s / 60 % 60),
    }
}

fn not_proven(member: &MemberFacts) -> String {
    format!(
        "the CORRUPT alarm names {}, and it is not proven that it is the one whose data are wrong: compare the members with \
         `mainstay ctl endpoint hashkv --cluster`",
        label(member)
    )
}

fn label(member: &MemberFacts) -> String {
    match member.name.as_str() {
        "" => format!("member {:x}", member.id),
        name => format!("member {name:?} ({:x})", member.id),
    }
}

fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// Returns the duration that 99 of 100 of the syncs do not exceed, by the buckets in which they are counted:
/// `after` without `before`. Returns `None` if they are too few, or if the counters began again in between.
fn percentile_99(before: &[u64], after: &[u64]) -> Option<Duration> {
    if before.len() != after.len() {
        return None;
    }
    let counts: Vec<u64> =
        before.iter().zip(after).map(|(before, after)| after.checked_sub(*before)).collect::<Option<_>>()?;
    let all: u128 = counts.iter().map(|count| u128::from(*count)).sum();
    if all < SYNCS_MIN {
        return None;
    }
    let (mut below, mut bound) = (0, Duration::from_millis(1));
    for count in counts {
        below += u128::from(count);
        if below * 100 >= all * 99 {
            break;
        }
        bound = bound.saturating_mul(2);
    }
    Some(bound)
}

impl Autopilot {
    /// Returns the autopilot of a member that does not lead.
    pub fn new(options: AutopilotOptions, election_timeout: Duration, now: Instant) -> Autopilot {
        Autopilot {
            options,
            election_timeout,
            watch: None,
            records: VecDeque::new(),
            taken: 0,
            removed_wrong: BTreeSet::new(),
            advice: Vec::new(),
            next_look: None,
            time: now,
            clock: now,
        }
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.options.mode
    }

    /// Takes over in which term this member leads, if it leads. Returns true if it is time to look at the cluster.
    /// Must be called at every tick.
    pub fn is_due(&mut self, leads_in: Option<Term>, clock: Instant) -> bool {
        let passed = clock.saturating_duration_since(self.clock);
        self.clock = clock;
        self.time += passed.min(self.election_timeout);
        let now = self.time;
        let Some(term) = leads_in.filter(|_| self.options.mode != Mode::Off) else {
            if self.watch.take().is_some() {
                self.close_open("this member has stopped leading");
                self.advice.clear();
                // The state must be published once more, without members and advice.
                return true;
            }
            return false;
        };
        if self.watch.as_ref().is_none_or(|watch| watch.term != term) {
            self.close_open("this member has led in another term since");
            self.watch = Some(Watch {
                term,
                commits: VecDeque::new(),
                members: BTreeMap::new(),
                next_step: now + self.options.interval,
                stepped: false,
                is_open: false,
                compared: None,
                window_began: now,
                slow_intervals: 0,
                no_clients_since: None,
            });
            self.next_look = None;
        }
        let is_due = self.next_look.is_none_or(|at| now >= at);
        if is_due {
            self.next_look = Some(now + self.election_timeout / 2);
        }
        is_due
    }

    /// Returns true while this type observes members, because this member leads.
    pub fn watches(&self) -> bool {
        self.watch.is_some()
    }

    /// Records that these members have answered since the last call.
    pub fn answered(&mut self, members: impl Iterator<Item = u64>) {
        let Some(watch) = self.watch.as_mut().filter(|_| !planted::is(Bug::AutopilotForgetsAnswers)) else {
            return;
        };
        for id in members {
            if let Some(observed) = watch.members.get_mut(&id) {
                observed.last_heard = self.time;
            }
        }
    }

    /// Takes what the members report about themselves; `None` if a member reports nothing. Reports of members
    /// that are not known yet are dropped. `agreeing` are the other members whose states are equal to that of this
    /// member, `differing` those whose states differ.
    pub fn reported(
        &mut self,
        reports: Vec<(u64, Option<MemberReport>)>,
        agreeing: Vec<u64>,
        differing: Vec<u64>,
    ) {
        let now = self.time;
        let Some(watch) = &mut self.watch else { return };
        watch.compared = Some(Compared { at: now, agreeing, differing });
        for (id, report) in reports {
            if let Some(observed) = watch.members.get_mut(&id) {
                // A member that cannot be asked keeps what it has reported until that is too old.
                if let Some(report) = report {
                    if observed.report.is_none() {
                        observed.syncs_before.clone_from(&report.syncs);
                    }
                    observed.report = Some((now, report));
                }
            }
        }
    }

    /// Looks at the cluster, and decides. Must be called only while this member leads, see [`Autopilot::is_due`].
    pub fn look(&mut self, situation: &Situation) -> Decision {
        self.observe(situation);
        let decision = self.decide(situation);
        self.advice.clone_from(&decision.advice);
        decision
    }

    fn observe(&mut self, situation: &Situation) {
        let (election_timeout, now) = (self.election_timeout, self.time);
        let Some(watch) = &mut self.watch else { return };
        watch.commits.push_back((now, situation.commit));
        // Keep one index that is at least an election timeout old, and all newer ones.
        while watch.commits.get(1).is_some_and(|(at, _)| *at + election_timeout <= now) {
            watch.commits.pop_front();
        }
        let due = watch.commits.front().filter(|(at, _)| *at + election_timeout <= now).map(|(_, due)| *due);
        let known: BTreeSet<u64> = situation.members.iter().map(|member| member.id).collect();
        watch.members.retain(|id, _| known.contains(id));
        for member in &situation.members {
            let observed = watch.members.entry(member.id).or_insert(Observed {
                last_heard: now,
                caught_up_since: None,
                report: None,
                syncs_before: Vec::new(),
                sync_p99: None,
            });
            let is_own = member.id == situation.own;
            if is_own || member.has_answered && !planted::is(Bug::AutopilotForgetsAnswers) {
                observed.last_heard = now;
            }
            let is_caught_up = is_own
                || member.is_replicating && due.is_some_and(|due| member.matched >= due && due > Index(0));
            observed.caught_up_since = is_caught_up.then(|| observed.caught_up_since.unwrap_or(now));
        }
        self.compare_disks(situation);
        self.compare_zones(situation);
    }

    /// At the end of an interval, computes how long the syncs of each member took in it.
    fn compare_disks(&mut self, situation: &Situation) {
        let now = self.time;
        let Some(watch) = &mut self.watch else { return };
        if now < watch.window_began + self.options.interval {
            return;
        }
        watch.window_began = now;
        for observed in watch.members.values_mut() {
            let report = observed.report.as_ref().filter(|(at, _)| is_fresh(*at, now));
            let syncs = report.map(|(_, report)| report.syncs.clone()).unwrap_or_default();
            observed.sync_p99 = percentile_99(&observed.syncs_before, &syncs);
            observed.syncs_before = syncs;
        }
        let is_slow = self.faster(situation).is_some();
        if let Some(watch) = &mut self.watch {
            watch.slow_intervals = if is_slow { watch.slow_intervals + 1 } else { 0 };
        }
    }

    /// Notes since when the leader's zone has had no clients while another has some.
    fn compare_zones(&mut self, situation: &Situation) {
        let now = self.time;
        let is_empty = self.busier_zone(situation).is_some();
        if let Some(watch) = &mut self.watch {
            watch.no_clients_since = is_empty.then(|| watch.no_clients_since.unwrap_or(now));
        }
    }

    fn silent(&self, id: u64) -> Duration {
        let now = self.time;
        let observed = self.watch.as_ref().and_then(|watch| watch.members.get(&id));
        observed.map_or(Duration::ZERO, |observed| now.saturating_duration_since(observed.last_heard))
    }

    fn is_alive(&self, id: u64) -> bool {
        self.silent(id) < self.election_timeout * ALIVE_TIMEOUTS
    }

    fn is_gone(&self, id: u64) -> bool {
        self.silent(id) >= self.options.replace_after
    }

    fn is_caught_up(&self, id: u64) -> bool {
        let now = self.time;
        let observed = self.watch.as_ref().and_then(|watch| watch.members.get(&id));
        let since = observed.and_then(|observed| observed.caught_up_since);
        since.is_some_and(|since| now >= since + self.election_timeout * CAUGHT_UP_TIMEOUTS)
            || planted::is(Bug::AutopilotPromotesEarly)
    }

    fn report(&self, id: u64) -> Option<&MemberReport> {
        let now = self.time;
        let (at, report) = self.watch.as_ref()?.members.get(&id)?.report.as_ref()?;
        is_fresh(*at, now).then_some(report)
    }

    /// Returns true if the state of this member is that of the leader, `own`.
    fn agrees(&self, id: u64, own: u64) -> bool {
        id == own || self.compared().is_some_and(|compared| compared.agreeing.contains(&id))
    }

    /// Returns true if a member's state is known to differ from that of this leader.
    fn differs(&self, id: u64) -> bool {
        self.compared().is_some_and(|compared| compared.differing.contains(&id))
    }

    fn compared(&self) -> Option<&Compared> {
        let compared = self.watch.as_ref()?.compared.as_ref()?;
        is_fresh(compared.at, self.time).then_some(compared)
    }

    fn sync_p99(&self, id: u64) -> Option<Duration> {
        self.watch.as_ref()?.members.get(&id)?.sync_p99
    }

    /// Returns the voters other than this member that could lead immediately.
    fn heirs<'s>(&'s self, situation: &'s Situation) -> impl Iterator<Item = &'s MemberFacts> {
        situation.members.iter().filter(move |member| {
            !member.is_learner
                && member.id != situation.own
                && !member.is_corrupt
                && member.is_replicating
                && self.is_alive(member.id)
                && self.is_caught_up(member.id)
                && self.report(member.id).is_some_and(|report| !report.drains)
        })
    }

    /// Returns the heir with the fastest disk, if the disk of this member is slow and that one is much faster.
    fn faster(&self, situation: &Situation) -> Option<(u64, Duration, Duration)> {
        let own = self.sync_p99(situation.own).filter(|own| *own >= SLOW_SYNC)?;
        let heirs = self.heirs(situation);
        let fastest = heirs.filter_map(|heir| Some((self.sync_p99(heir.id)?, heir.id))).min()?;
        let is_faster = fastest.0 < SLOW_SYNC && fastest.0.saturating_mul(FASTER) <= own;
        is_faster.then_some((fastest.1, own, fastest.0))
    }

    /// Returns an heir in the zone with the most clients, and that zone, if the zone of this member has none.
    fn busier_zone(&self, situation: &Situation) -> Option<(u64, String)> {
        let own = self.report(situation.own).map(|report| report.zone.clone())?;
        if own.is_empty() {
            return None;
        }
        let mut clients: BTreeMap<&str, u64> = BTreeMap::new();
        for member in situation.members.iter().filter(|member| self.is_alive(member.id)) {
            // A member that has not reported may be in this zone, and have clients.
            let report = self.report(member.id)?;
            let clients = clients.entry(&report.zone).or_default();
            *clients = clients.saturating_add(report.clients);
        }
        if clients.get(own.as_str()).is_some_and(|clients| *clients > 0) {
            return None;
        }
        let zone = |id: u64| self.report(id).map_or("", |report| report.zone.as_str());
        let heirs = self.heirs(situation).filter(|heir| !zone(heir.id).is_empty());
        let (most, heir) = heirs
            .map(|heir| (clients.get(zone(heir.id)).copied().unwrap_or(0), heir.id))
            .max_by_key(|(clients, id)| (*clients, std::cmp::Reverse(*id)))?;
        (most > 0).then(|| (heir, zone(heir).to_owned()))
    }

    fn decide(&self, situation: &Situation) -> Decision {
        let now = self.time;
        let mut decision = Decision::default();
        let Some(watch) = &self.watch else { return decision };
        if situation.has_witness {
            // The margin of voters says nothing there: a witness has no data, so which voters may be lost depends on
            // which of the others are in step.
            decision.advice.push(
                "the cluster has a witness, so nothing is changed: the autopilot replaces members with data only"
                    .to_owned(),
            );
            return decision;
        }
        let voters: Vec<&MemberFacts> =
            situation.members.iter().filter(|member| !member.is_learner).collect();
        let answering = voters.iter().filter(|member| self.is_alive(member.id)).count();
        if answering < quorum(voters.len()) {
            decision.advice.push(format!(
                "only {answering} of {} voters answer, and {} are needed, so nothing is changed: start the others again",
                voters.len(),
                quorum(voters.len())
            ));
            return decision;
        }
        let drains = self.report(situation.own).is_some_and(|report| report.drains);
        let step = self.repair(situation, &voters, &mut decision.advice);
        let step = step.or_else(|| self.promote(situation, &voters, &mut decision.advice));
        let waits = now < watch.next_step;
        let step = step.filter(|_| !waits).or_else(|| {
            // Clients are sent elsewhere at this moment, so this step does not wait for the first interval of a
            // leader.
            (drains && (!waits || !watch.stepped))
                .then(|| self.leave_draining(situation, &mut decision.advice))
                .flatten()
        });
        let step = step.or_else(|| if waits { None } else { self.move_leader(situation) });
        decision.step = step.filter(|_| !situation.is_changing && !watch.is_open);
        decision
    }

    /// Replaces voters that are gone or wrong, and removes such learners.
    fn repair(
        &self,
        situation: &Situation,
        voters: &[&MemberFacts],
        advice: &mut Vec<String>,
    ) -> Option<(Step, String)> {
        if let Some(id) = situation.removed_corrupt.iter().find(|id| self.removed_wrong.contains(id)) {
            let why =
                "the member that the CORRUPT alarm names had other data, and is no longer in the cluster";
            return Some((Step::Disarm(*id), why.to_owned()));
        }
        for id in &situation.removed_corrupt {
            // Whoever removed it may know more than the autopilot; the alarm alone does not say whose data are wrong.
            advice.push(format!(
                "the member {id:x}, which the CORRUPT alarm names, is no longer in the cluster: if the data of the others \
                 are right (`mainstay ctl endpoint hashkv --cluster`), disarm it with `mainstay ctl alarm disarm`"
            ));
        }
        let mut step = None;
        for (voter, fault) in self.bad_voters(situation, voters, advice) {
            let next = self.replace(voter, &fault, situation, voters, advice);
            step = step.or(next);
        }
        step.or_else(|| self.bad_learner(situation, voters, advice))
    }

    /// Returns the voters to be replaced, each with a clause that says why: first those that the CORRUPT alarm
    /// names, then those that are gone, longest first.
    fn bad_voters<'s>(
        &self,
        situation: &Situation,
        voters: &[&'s MemberFacts],
        advice: &mut Vec<String>,
    ) -> Vec<(&'s MemberFacts, String)> {
        let mut bad = Vec::new();
        let corrupt: Vec<&MemberFacts> = voters.iter().copied().filter(|voter| voter.is_corrupt).collect();
        let sound = self.sound(situation, voters);
        if corrupt.iter().any(|voter| voter.id == situation.own) {
            advice.push(
                "the CORRUPT alarm names this leader: another member has to take over first".to_owned(),
            );
        } else if !corrupt.is_empty() && (voters.len() < 3 || sound < quorum(voters.len())) {
            advice.push(format!(
                "the CORRUPT alarm names {} of {} voters, and {sound} of them have the data of the leader, which is no \
                 majority, so nobody knows which data are right: compare the members with `mainstay ctl endpoint hashkv \
                 --cluster`",
                corrupt.len(),
                voters.len()
            ));
        } else {
            let fault = "has other data than a majority of the voters (CORRUPT alarm)";
            for voter in corrupt {
                // The alarm may come from a comparison that knows only who differs from whom.
                if self.differs(voter.id) {
                    bad.push((voter, fault.to_owned()));
                } else {
                    advice.push(not_proven(voter));
                }
            }
        }
        let mut gone: Vec<&MemberFacts> =
            voters.iter().copied().filter(|voter| !voter.is_corrupt && self.is_gone(voter.id)).collect();
        gone.sort_by_key(|voter| (std::cmp::Reverse(self.silent(voter.id)), voter.id));
        for voter in gone {
            if voter.name.is_empty() {
                advice.push(format!(
                    "{} was added as a voter and never started: start it, or remove it with `mainstay ctl member remove \
                     {:x}`",
                    label(voter),
                    voter.id
                ));
            } else {
                let silent = shown(self.silent(voter.id));
                bad.push((voter, format!("has not answered for {silent}")));
            }
        }
        bad
    }

    /// Returns the number of voters that have the data of the leader and that no alarm names.
    fn sound(&self, situation: &Situation, voters: &[&MemberFacts]) -> usize {
        voters.iter().filter(|voter| !voter.is_corrupt && self.agrees(voter.id, situation.own)).count()
    }

    /// Returns the next step of the replacement of a voter: see the head of this file.
    fn replace(
        &self,
        voter: &MemberFacts,
        fault: &str,
        situation: &Situation,
        voters: &[&MemberFacts],
        advice: &mut Vec<String>,
    ) -> Option<(Step, String)> {
        let others = voters.iter().filter(|other| other.id != voter.id && self.is_alive(other.id)).count();
        let is_even = voters.len().is_multiple_of(2) && voters.len() >= VOTERS_MIN;
        if is_even && others >= quorum(voters.len() - 1) || planted::is(Bug::AutopilotIgnoresQuorum) {
            let why = format!(
                "it {fault}; {others} of the {} other voters answer, and {} are needed without it",
                voters.len() - 1,
                quorum(voters.len() - 1)
            );
            return Some((Step::Remove(voter.id), why));
        }
        let answering = voters.iter().filter(|other| self.is_alive(other.id)).count();
        let spares = situation.members.iter().filter(|member| {
            // The comparison may know that its data are wrong before the alarm names it.
            member.is_learner
                && !member.is_corrupt
                && !self.differs(member.id)
                && self.is_alive(member.id)
                && self.report(member.id).is_some()
        });
        let (ready, late): (Vec<&MemberFacts>, Vec<&MemberFacts>) =
            spares.partition(|spare| self.is_caught_up(spare.id));
        let spare = ready.into_iter().max_by_key(|spare| (spare.matched, std::cmp::Reverse(spare.id)));
        match spare {
            Some(spare) if answering + 1 >= quorum(voters.len() + 1) => {
                let why = format!("it replaces {}, which {fault}", label(voter));
                return Some((Step::Promote(spare.id), why));
            }
            Some(_) => advice.push(format!(
                "{} {fault}, and too many other voters do not answer to replace it: start them again",
                label(voter)
            )),
            None if !late.is_empty() => advice.push(format!(
                "{} {fault}, and {} has not caught up yet, so it waits: nothing is to be done unless this lasts",
                label(voter),
                label(late[0])
            )),
            None => advice.push(format!(
                "{} {fault}, and there is no spare: {}, or add a learner with `mainstay ctl member add NAME --learner \
                 --peer-urls=URL` and start it with --standby",
                label(voter),
                if voter.is_corrupt { "rebuild it with `mainstay rebuild`" } else { "start it again" }
            )),
        }
        None
    }

    /// Returns the removal of a learner that is gone or wrong.
    fn bad_learner(
        &self,
        situation: &Situation,
        voters: &[&MemberFacts],
        advice: &mut Vec<String>,
    ) -> Option<(Step, String)> {
        let mut step = None;
        let is_leader_sound = self.sound(situation, voters) >= quorum(voters.len());
        for learner in situation.members.iter().filter(|member| member.is_learner) {
            let silent = self.silent(learner.id);
            if learner.is_corrupt && !(is_leader_sound && self.differs(learner.id)) {
                advice.push(not_proven(learner));
            } else if learner.is_corrupt {
                let why = "it has other data than the voters (CORRUPT alarm), and no vote".to_owned();
                step = step.or(Some((Step::Remove(learner.id), why)));
            } else if self.is_gone(learner.id) && learner.name.is_empty() {
                advice.push(format!(
                    "{} was added as a learner and never started: start it, or remove it with `mainstay ctl member remove \
                     {:x}`",
                    label(learner),
                    learner.id
                ));
            } else if self.is_gone(learner.id) {
                let why = format!("it has not answered for {}, and has no vote", shown(silent));
                step = step.or(Some((Step::Remove(learner.id), why)));
            }
        }
        step
    }

    /// Returns the promotion of a learner that has caught up and is no standby.
    fn promote(
        &self,
        situation: &Situation,
        voters: &[&MemberFacts],
        advice: &mut Vec<String>,
    ) -> Option<(Step, String)> {
        let answering = voters.iter().filter(|voter| self.is_alive(voter.id)).count();
        let mut step = None;
        for learner in situation.members.iter().filter(|member| member.is_learner && !member.is_corrupt) {
            if !self.is_caught_up(learner.id) || !self.is_alive(learner.id) {
                continue;
            }
            match self.report(learner.id) {
                Some(report) if report.is_standby => {}
                Some(_) if self.differs(learner.id) => advice.push(format!(
                    "{} has caught up, and its state differs from the leader's, so it is not promoted: compare the members with \
                     `mainstay ctl endpoint hashkv --cluster`",
                    label(learner)
                )),
                Some(_) if answering + 1 < quorum(voters.len() + 1) => advice.push(format!(
                    "{} has caught up, and too few voters answer for one more: start the others again",
                    label(learner)
                )),
                Some(_) => {
                    let why = "it has caught up, and is no standby".to_owned();
                    step = step.or(Some((Step::Promote(learner.id), why)));
                }
                None => advice.push(format!(
                    "{} has caught up, and does not say whether it is a standby, because it runs etcd or another release \
                     of Mainstay: promote it with `mainstay ctl member promote {:x}`",
                    label(learner),
                    learner.id
                )),
            }
        }
        step
    }

    /// Returns the move of leadership away from this member, which drains.
    fn leave_draining(&self, situation: &Situation, advice: &mut Vec<String>) -> Option<(Step, String)> {
        let heir = self.heirs(situation).max_by_key(|heir| (heir.matched, std::cmp::Reverse(heir.id)));
        match heir {
            Some(heir) => Some((Step::MoveLeader(heir.id), "the leader drains its clients".to_owned())),
            None => {
                advice.push(
                    "the leader drains its clients, and no other voter can take over: wait until one has caught up"
                        .to_owned(),
                );
                None
            }
        }
    }

    /// Returns the move of leadership away from a slow disk, or from a zone without clients.
    fn move_leader(&self, situation: &Situation) -> Option<(Step, String)> {
        let now = self.time;
        let watch = self.watch.as_ref()?;
        if watch.slow_intervals >= SLOW_INTERVALS
            && let Some((heir, own, other)) = self.faster(situation)
        {
            let why = format!(
                "99 of 100 syncs of the leader's disk take up to {}, those of the new leader's up to {}",
                shown(own),
                shown(other)
            );
            return Some((Step::MoveLeader(heir), why));
        }
        let since = watch.no_clients_since?;
        if now < since + self.options.interval * ZONE_INTERVALS {
            return None;
        }
        let (heir, zone) = self.busier_zone(situation)?;
        let passed = shown(now.saturating_duration_since(since));
        let why = format!("the leader's zone has had no client for {passed}, and zone {zone:?} has some");
        Some((Step::MoveLeader(heir), why))
    }

    /// Records a step that is carried out now, or, in the mode [`Mode::DryRun`], would be. `at_ms` is the time in
    /// milliseconds since 1970. Returns false if the step was recorded as the last one already, and is only
    /// decided again.
    pub fn begin(&mut self, step: Step, why: &str, at_ms: u64) -> bool {
        let now = self.time;
        let is_wrong = matches!(step, Step::Remove(id) if self.differs(id));
        let Some(watch) = &mut self.watch else { return false };
        watch.next_step = now + self.options.interval;
        watch.stepped = true;
        let dry = self.options.mode == Mode::DryRun;
        if dry && self.records.back().is_some_and(|last| last.step == step) {
            return false;
        }
        watch.is_open = !dry;
        if is_wrong {
            self.removed_wrong.insert(step.member());
        }
        let outcome = if dry { StepOutcome::DryRun } else { StepOutcome::Open };
        if self.records.len() >= STEPS_MAX {
            self.records.pop_front();
        }
        let record = StepRecord { at_ms, step, why: why.to_owned(), outcome, error: String::new() };
        self.records.push_back(record);
        self.taken += 1;
        true
    }

    /// Returns the step under way, if there is one.
    pub fn open_step(&self) -> Option<Step> {
        self.watch.as_ref().filter(|watch| watch.is_open)?;
        self.records.back().filter(|record| record.outcome == StepOutcome::Open).map(|record| record.step)
    }

    /// Records how the step under way has ended; `error` says why it failed. Does nothing if no step is under way.
    pub fn ended(&mut self, error: Option<&str>) {
        if let Some(watch) = &mut self.watch {
            watch.is_open = false;
        }
        if let Some(last) = self.records.back_mut().filter(|last| last.outcome == StepOutcome::Open) {
            last.outcome = if error.is_some() { StepOutcome::Failed } else { StepOutcome::Done };
            if let (Step::Disarm(id), None) = (last.step, error) {
                self.removed_wrong.remove(&id);
            }
            last.error = error.unwrap_or_default().to_owned();
        }
    }

    /// Ends the step under way, because this member has stopped leading. A move of leadership has succeeded then;
    /// of a proposal this member does not know whether it becomes part of the log.
    fn close_open(&mut self, why: &str) {
        let moved = self.records.back().is_some_and(|last| matches!(last.step, Step::MoveLeader(_)));
        self.ended((!moved).then_some(why));
    }

    /// Returns the state as clients see it.
    pub fn state(&self, situation: Option<&Situation>) -> AutopilotState {
        let members = situation.map(|situation| situation.members.as_slice()).unwrap_or_default();
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let states = members.iter().map(|member| MemberState {
            id: member.id,
            name: member.name.clone(),
            is_learner: member.is_learner,
            is_standby: self.report(member.id).map(|report| report.is_standby),
            silent_ms: ms(self.silent(member.id)),
            is_caught_up: self.is_caught_up(member.id),
            sync_p99_ms: self.sync_p99(member.id).map(ms),
            clients: self.report(member.id).map(|report| report.clients),
        });
        AutopilotState {
            decides: self.watch.is_some(),
            taken: self.taken,
            steps: self.records.iter().cloned().collect(),
            advice: self.advice.clone(),
            members: states.collect(),
            gone: members.iter().filter(|member| self.is_gone(member.id)).count() as u64,
        }
    }
}

fn is_fresh(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < REPORT_INTERVAL * REPORT_AGE
}

#[cfg(test)]
mod tests;
