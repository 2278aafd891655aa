//! Tracks which member leads, and decides whether this member may act as the leader and when it should give
//! up leadership. The core reports the status of the raft node and of the disk to [`Leadership`], and carries
//! out its decisions. [`Leadership`] itself does not call raft.
//!
//! # Example: when a leader has settled
//!
//! ```text
//! entries 90, 91 of term 4   member 1 led; 91 is on two of three members, its client was answered
//! term 5                     member 2 is elected: it has 91, but does not know that 91 is committed
//!                            `leads` is true, `has_settled` false: no read round begins, no lease clock runs
//! entry 92 of term 5         the empty entry that member 2 appends; committed, it commits 91 with it
//! entry 92 applied           `has_settled` is true: the state has all that earlier leaders acknowledged
//! term 6                     a newer term ends this in the same turn: `is_leading` is false immediately
//! ```

use std::time::{Duration, Instant};

use consensus::{RaftStatus, Role};
use numbers::{MemberId, Term};

use super::RequestId;

/// Time after the start during which the first election timeout may be shortened.
const ADVANCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Consequences of a new status of the raft node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StandingChange {
    /// True if this member has stopped leading, leads in another term, or has just begun to lead. In each
    /// case all lease clocks must be stopped.
    pub stops_leases: bool,
    /// True if the leader or the term has changed. In that case a snapshot stream that is being received
    /// counts as broken.
    pub cuts_off: bool,
    /// Id of the previous leader (0 if there was none) if the leader has changed; `None` if it has not.
    pub was: Option<MemberId>,
}

/// Result of a check of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiskStep {
    /// `Some(true)` if the disk has just been found to hang, `Some(false)` if it works again; `None` if
    /// nothing has changed.
    pub stalled: Option<bool>,
    /// Way in which this member has to give up leadership now; `None` if it keeps its role.
    pub leaves: Option<Resignation>,
}

/// Way in which a leader whose disk hangs gives up leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resignation {
    /// The leader transfers leadership to another member.
    HandsOver,
    /// The transfer failed, so the leader becomes a follower.
    GivesUp,
}

/// A client that waits until another member leads: the request, that member, and the time when the request
/// times out.
type Move = (RequestId, MemberId, Instant);

/// Tracks which member leads, and whether this member may act as the leader.
///
/// A message may change the role of this member in the middle of a turn. `leads` and `settled` keep their
/// values until the end of that turn.
pub(super) struct Leadership {
    leads: bool,
    /// The newest raft term. If this member leads, the term in which it leads.
    term: Term,
    /// True if this member leads and has applied an entry of its own term.
    settled: bool,
    /// True from the time at which this member settles until [`Leadership::take_settled`] is called.
    settled_unnoted: bool,
    leader: MemberId,
    disk_stalled: bool,
    gives_up_at: Option<Instant>,
    advance_until: Option<Instant>,
    /// Term of the last leader whose process is known to have ended. Further reports of the end of a leader's
    /// process are ignored in the same term.
    ended_term: Term,
    moves: Vec<Move>,
}

impl Leadership {
    /// Returns the value for a member that starts and knows no leader. `advances` says whether the first
    /// election timeout may be shortened.
    pub fn new(advances: bool, now: Instant) -> Leadership {
        Leadership {
            leads: false,
            term: Term(0),
            settled: false,
            settled_unnoted: false,
            leader: MemberId::NONE,
            disk_stalled: false,
            gives_up_at: None,
            advance_until: advances.then(|| now + ADVANCE_TIMEOUT),
            ended_term: Term(0),
            moves: Vec::new(),
        }
    }

    /// Returns true if this member leads.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Returns true if this member leads and has applied all entries of earlier leaders.
    pub fn has_settled(&self) -> bool {
        self.settled
    }

    /// Returns true if no leader is known, or if this member leads and has not applied all entries of earlier
    /// leaders.
    pub fn is_unsettled(&self) -> bool {
        self.leader() == MemberId::NONE || (self.leads() && !self.has_settled())
    }

    /// Returns the id of the leader; 0 for none.
    pub fn leader(&self) -> MemberId {
        self.leader
    }

    /// Returns true if this member leads at this moment and has applied all entries of earlier leaders. If a
    /// message of this turn has deposed this member, the result is already false, while [`Leadership::leads`]
    /// stays true until the end of the turn.
    pub fn is_leading(&self, raft_status: RaftStatus) -> bool {
        self.settled && raft_status.role == Role::Leader && raft_status.term == self.term
    }

    /// Takes over the new status of the raft node, and returns the consequences of the change.
    pub fn stands(&mut self, raft_status: RaftStatus) -> StandingChange {
        let leads = raft_status.role == Role::Leader;
        let mut stood = StandingChange::default();
        if leads != self.leads || leads && raft_status.term != self.term {
            self.settled = false;
            self.settled_unnoted = false;
            stood.stops_leases = true;
        }
        self.leads = leads;
        stood.cuts_off = raft_status.term != self.term
            || (raft_status.leader.is_some() && raft_status.leader != self.leader);
        self.term = raft_status.term;
        if raft_status.leader != self.leader {
            stood.was = Some(std::mem::replace(&mut self.leader, raft_status.leader));
        }
        stood
    }

    /// Records that an entry of this term was applied. Returns true if this member leads in that term and
    /// this entry is the first one of the term that it has applied.
    pub fn applied(&mut self, term: Term, raft_status: RaftStatus) -> bool {
        let settles = self.leads && !self.settled && term == raft_status.term;
        self.settled |= settles;
        self.settled_unnoted |= settles;
        settles
    }

    /// Returns true if this member has settled since the last call, that is, has applied the first entry of a
    /// term in which it leads. So each term gives true at most once.
    pub fn take_settled(&mut self) -> bool {
        std::mem::take(&mut self.settled_unnoted)
    }

    /// Checks if a sync of the disk hangs, because a member with such a disk must not lead. Called at each
    /// tick. `oldest` is the time since when the oldest batch has waited for its sync; `has_others` says
    /// whether another member could lead.
    pub fn watch_disk(
        &mut self,
        oldest: Option<Instant>,
        timeout: Duration,
        has_others: impl FnOnce() -> bool,
        now: Instant,
    ) -> DiskStep {
        let stalled = oldest.is_some_and(|at| now.saturating_duration_since(at) > timeout);
        let changed = (stalled != self.disk_stalled).then_some(stalled);
        self.disk_stalled = stalled;
        let mut step = DiskStep { stalled: changed, leaves: None };
        if !stalled || !self.leads || !has_others() {
            self.gives_up_at = None;
            return step;
        }
        match self.gives_up_at {
            None => {
                self.gives_up_at = Some(now + timeout);
                step.leaves = Some(Resignation::HandsOver);
            }
            Some(until) if now >= until => {
                self.gives_up_at = None;
                step.leaves = Some(Resignation::GivesUp);
            }
            Some(_) => {}
        }
        step
    }

    /// Registers a client that waits, at most until the time `until`, for `member` to become the leader.
    pub fn wait_for(&mut self, request_id: RequestId, member: MemberId, until: Instant) {
        self.moves.push((request_id, member, until));
    }

    /// Removes and returns the clients that need not wait any longer: with `true` if the member for which
    /// they waited leads, with `false` if they have timed out.
    pub fn take_moved(&mut self, leader: MemberId, now: Instant) -> Vec<(RequestId, bool)> {
        let mut taken = Vec::new();
        self.moves.retain(|&(request_id, member, until)| {
            let stays = leader != member && now < until;
            if !stays {
                taken.push((request_id, leader == member));
            }
            stays
        });
        taken
    }

    /// Returns true if the election timeout after the start should be shortened now: no leader is known, and
    /// `hears` returns true because another member is connected, so that a quorum may be running. Returns
    /// true only once.
    pub fn advances(&mut self, raft_status: RaftStatus, hears: impl FnOnce() -> bool, now: Instant) -> bool {
        let Some(until) = self.advance_until else { return false };
        if raft_status.leader.is_some() || raft_status.role != Role::Follower || now >= until {
            self.advance_until = None;
            return false;
        }
        let advances = hears();
        if advances {
            self.advance_until = None;
        }
        advances
    }

    /// Handles the report that the process of `member` has ended. Returns true if `member` is the leader that
    /// this member follows, but at most once per term.
    pub fn has_ended(&mut self, member: MemberId, raft_status: RaftStatus) -> bool {
        if self.leads || raft_status.leader != member || self.ended_term == raft_status.term {
            return false;
        }
        self.ended_term = raft_status.term;
        true
    }
}

#[cfg(test)]
mod tests {
    use numbers::Index;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn raft_status(role: Role, leader: u64, term: u64) -> RaftStatus {
        RaftStatus { role, leader: MemberId(leader), term: Term(term), commit: Index(0), last: Index(0) }
    }

    #[test]
    fn a_leader_settles_by_an_entry_of_its_own_term() {
        let mut leadership = Leadership::new(false, Instant::now());
        let leads = raft_status(Role::Leader, 1, 2);
        let stood = leadership.stands(leads);
        assert_eq!(stood, StandingChange { stops_leases: true, cuts_off: true, was: Some(MemberId(0)) });
        assert!(leadership.leads() && !leadership.has_settled() && !leadership.is_leading(leads));
        assert!(!leadership.applied(Term(1), leads));
        assert!(leadership.applied(Term(2), leads) && !leadership.applied(Term(2), leads));
        assert!(leadership.is_leading(leads));
        // A message has deposed the member in this turn.
        assert!(leadership.has_settled() && !leadership.is_leading(raft_status(Role::Follower, 0, 3)));
        let stood = leadership.stands(raft_status(Role::Follower, 0, 3));
        assert_eq!(stood, StandingChange { stops_leases: true, cuts_off: true, was: Some(MemberId(1)) });
        assert!(!leadership.leads() && !leadership.has_settled());
        assert_eq!(leadership.stands(raft_status(Role::Follower, 0, 3)), StandingChange::default());
    }

    #[test]
    fn a_leader_whose_disk_stands_still_hands_over_and_then_gives_up() {
        let start = Instant::now();
        let mut leadership = Leadership::new(false, start);
        leadership.stands(raft_status(Role::Leader, 1, 2));
        let watch = |leadership: &mut Leadership, oldest, late: u64, others| {
            leadership.watch_disk(oldest, TIMEOUT, || others, start + Duration::from_millis(late))
        };
        assert_eq!(watch(&mut leadership, Some(start), 1000, true), DiskStep::default());
        let stalls = DiskStep { stalled: Some(true), leaves: Some(Resignation::HandsOver) };
        assert_eq!(watch(&mut leadership, Some(start), 1001, true), stalls);
        assert_eq!(watch(&mut leadership, Some(start), 1500, true), DiskStep::default());
        assert_eq!(watch(&mut leadership, Some(start), 2001, true).leaves, Some(Resignation::GivesUp));
        assert_eq!(
            watch(&mut leadership, Some(start), 2002, false),
            DiskStep::default(),
            "nobody else could"
        );
        assert_eq!(watch(&mut leadership, None, 2003, true).stalled, Some(false));
    }

    #[test]
    fn whoever_waits_for_a_leader_hears_of_it_or_that_it_took_too_long() {
        let start = Instant::now();
        let mut leadership = Leadership::new(false, start);
        let request_id = |slot| RequestId { shard: 0, slot, generation: 0 };
        leadership.wait_for(request_id(1), MemberId(1), start + TIMEOUT);
        leadership.wait_for(request_id(2), MemberId(2), start + TIMEOUT);
        assert!(leadership.take_moved(MemberId(3), start).is_empty());
        assert_eq!(leadership.take_moved(MemberId(1), start), [(request_id(1), true)]);
        assert_eq!(leadership.take_moved(MemberId(3), start + TIMEOUT), [(request_id(2), false)]);
    }

    #[test]
    fn elections_are_brought_forward_once() {
        let start = Instant::now();
        let mut leadership = Leadership::new(true, start);
        let follows = raft_status(Role::Follower, 0, 1);
        assert!(!leadership.advances(follows, || false, start));
        assert!(leadership.advances(follows, || true, start));
        assert!(!leadership.advances(follows, || true, start));
        assert!(!Leadership::new(true, start).advances(follows, || true, start + ADVANCE_TIMEOUT));
        let follows = raft_status(Role::Follower, 3, 1);
        assert!(!leadership.has_ended(MemberId(2), follows));
        assert!(leadership.has_ended(MemberId(3), follows) && !leadership.has_ended(MemberId(3), follows));
    }
}
