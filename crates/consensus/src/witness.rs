//! Decides when a leader counts the witness: a voter whose log has terms and indexes but no values.
//!
//! For raft a witness is a voter like any other, so {leader, witness} would be a quorum of two members and a
//! witness, and an entry could be committed while the other member is merely slow. If then the leader's machine
//! were lost, the acknowledged write would be lost with it: nobody else has its value. So the leader sends the
//! witness an entry only when the entry is already on a quorum of members with data. The witness then never
//! decides a commit, and its log is never ahead of the member that has to take over.
//!
//! Only while so many members with data do not answer that they are no quorum any more, the witness *counts*: it
//! gets entries once they are on the disks of the members that do answer. That is one member fewer than a quorum;
//! the witness is the missing vote.
//!
//! Raft stays safe whatever this module decides, because all it does is to delay messages to one member.
//!
//! # Example: members 1 and 2, witness 9; member 1 leads, entries through 20 are everywhere
//!
//! ```text
//! entry 21 on the disk of 1        1 of 2 members with data: the witness does not get it
//! member 2 acknowledges 21         committed; now the witness gets 21
//! member 2 is silent               entry 22 waits on the disk of member 1, nothing is committed
//! ... for an election timeout      the witness counts: it gets 22 and acknowledges it: committed
//! member 2 is back, has 20         the witness still counts, and member 2 catches up
//! member 2 acknowledges 30         as far as the commit was half a timeout ago: entries wait for member 2 again
//! member 2 has all that the        the witness does not count any more: either of the members may be lost
//! witness got
//! ```
//!
//! Why the witness never may have more than the members: it does not campaign, and refuses its vote to a
//! candidate behind it. If it had an entry that only the lost leader has, the other member could never lead,
//! although the entry was never acknowledged to anybody.

use std::collections::BTreeMap;

use planted::Bug;

/// A data member, as its leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    /// True if the leader waits for this member before it commits.
    in_step: bool,
    /// Tick at which a message of the member arrived last.
    heard: u64,
    /// Index through which the member's log is known to be on its disk.
    matched: u64,
    /// Tick at which the member last acknowledged something new, or had nothing to acknowledge.
    advanced: u64,
}

/// Whether the witness counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Every entry that the witness has is on a quorum of members with data.
    Off,
    /// The members that are in step are no quorum without the witness.
    Counts,
    /// They are a quorum again, but the witness may have entries up to this index that not all of them have.
    Ends {
        /// Index of the newest entry that the witness may have.
        through: u64,
    },
}

/// The witness of the cluster, and what a leader knows about the members with data. What concerns the members
/// belongs to one term in which this node leads.
#[derive(Debug)]
pub(crate) struct Witness {
    /// Id of the witness; 0 if the cluster has none.
    id: u64,
    /// Term in which this node leads; 0 if it does not.
    term: u64,
    members: BTreeMap<u64, Standing>,
    mode: Mode,
    /// Commit indexes at the last two marks, the older first. A mark is set every half election timeout.
    marks: (u64, u64),
    /// Tick of the last mark.
    marked: u64,
    /// Index through which entries may be sent to the witness.
    sendable: u64,
    /// Leader that this node followed before it led, and the tick at which its last message arrived; 0 if this node
    /// has led since, because what it knew then is old.
    followed: (u64, u64),
    /// Ticks of the first and the last refusal of a vote, by the witness, because its log is newer. Refusals that
    /// follow each other closely belong together.
    refused: Option<(u64, u64)>,
}

/// Entries that raft has made for the witness and that it may not have yet. They are without a gap, and all in
/// memory, because they are not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Index of the first of them.
    pub first: u64,
    /// Index of the last of them.
    pub last: u64,
    /// Commit index of the newest append that raft has made.
    pub commit: u64,
}

/// What a leader knows at the moment, as input of [`Witness::look`].
#[derive(Debug)]
pub(crate) struct Moment<'a> {
    /// Id of this node.
    pub own: u64,
    /// Current term.
    pub term: u64,
    /// Current tick.
    pub tick: u64,
    /// Ticks of an election timeout.
    pub timeout: u64,
    /// Commit index.
    pub committed: u64,
    /// Index of the last entry of this leader's log.
    pub last: u64,
    /// Id of each voter with data, and the index through which its log is on its disk.
    pub voters: &'a [(u64, u64)],
    /// Number of votes that are a quorum, the witness included.
    pub quorum: usize,
    /// Index of the first entry that is not committed and removes a member that is in step; `None` if there is none.
    pub removal: Option<u64>,
}

impl Witness {
    /// Returns the state of a node that starts in a cluster with this witness; 0 for none.
    pub fn new(id: u64) -> Witness {
        Witness {
            id,
            term: 0,
            members: BTreeMap::new(),
            mode: Mode::Off,
            marks: (0, 0),
            marked: 0,
            sendable: 0,
            followed: (0, 0),
            refused: None,
        }
    }

    /// Returns the id of the witness; 0 if the cluster has none.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sets the witness; 0 for none.
    pub fn set(&mut self, id: u64) {
        if self.id != id {
            // A leader has heard nothing of itself: what it knew before it led says nothing about the others now.
            let followed = if self.term == 0 { self.followed } else { (0, 0) };
            *self = Witness { followed, ..Witness::new(id) };
        }
    }

    /// Records that a message of this member arrived. `leads` says whether the member leads this node.
    pub fn heard(&mut self, from: u64, leads: bool, tick: u64) {
        if leads {
            self.followed = (from, tick);
            self.refused = None;
        } else if from == self.followed.0 {
            self.followed.1 = tick;
        }
        if let Some(member) = self.members.get_mut(&from) {
            member.heard = tick;
        }
    }

    /// Records that the witness has refused this node its vote because its log is newer. Refusals belong together if
    /// no more than three timeouts lie between them.
    pub fn refused(&mut self, tick: u64, timeout: u64) {
        let first = match self.refused {
            Some((first, last)) if tick.saturating_sub(last) <= 3 * timeout => first,
            _ => tick,
        };
        self.refused = Some((first, tick));
    }

    /// Returns true if the witness has refused this node its vote for two election timeouts, and lately.
    pub fn has_refused(&self, tick: u64, timeout: u64) -> bool {
        self.refused.is_some_and(|(first, last)| {
            last.saturating_sub(first) >= 2 * timeout && tick.saturating_sub(last) <= 3 * timeout
        })
    }

    /// Returns true if a member with data may be removed: the witness does not count, or the member is not one of those
    /// that have what was committed with the witness. `own` is the id of this leader.
    pub fn may_remove(&self, id: u64, own: u64) -> bool {
        let has_all = id == own || self.members.get(&id).is_some_and(|member| member.in_step);
        self.id == 0 || id == self.id || !self.counts() || !has_all
    }

    /// Forgets what belongs to a term in which this node led.
    pub fn stop_leading(&mut self) {
        self.term = 0;
        self.members.clear();
        self.mode = Mode::Off;
    }

    /// Returns true if the witness counts, or may have entries that a quorum of members with data has not.
    pub fn counts(&self) -> bool {
        self.term != 0 && self.mode != Mode::Off
    }

    /// Returns true if this leader waits for the member before it commits.
    pub fn is_in_step(&self, id: u64) -> bool {
        self.members.get(&id).is_some_and(|member| member.in_step)
    }

    /// Returns the index through which entries may be sent to the witness.
    pub fn sendable(&self) -> u64 {
        self.sendable
    }

    /// Takes what the leader knows now. Must be called after every event of a leader.
    pub fn look(&mut self, moment: &Moment<'_>) {
        if self.term != moment.term {
            self.begin_term(moment);
        }
        self.members.retain(|id, _| moment.voters.iter().any(|(voter, _)| voter == id));
        for (id, matched) in moment.voters.iter().filter(|(id, _)| *id != moment.own) {
            // A member that was added in this term has to catch up first.
            let member = self.members.entry(*id).or_insert(Standing {
                in_step: false,
                heard: 0,
                matched: 0,
                advanced: 0,
            });
            if *matched > member.matched || *matched >= moment.last {
                member.advanced = moment.tick;
            }
            member.matched = *matched;
            let is_silent = |since: u64| moment.tick.saturating_sub(since) >= moment.timeout;
            let is_lost = is_silent(member.heard) || is_silent(member.advanced);
            if member.in_step {
                member.in_step = !is_lost;
            } else {
                member.in_step = !is_lost && member.heard > 0 && *matched > 0 && *matched >= self.marks.0;
            }
        }
        if moment.tick.saturating_sub(self.marked) >= (moment.timeout / 2).max(1) {
            self.marked = moment.tick;
            self.marks = (self.marks.1, moment.committed);
        }
        self.settle_mode(moment);
    }

    fn begin_term(&mut self, moment: &Moment<'_>) {
        let (leader, heard) = std::mem::take(&mut self.followed);
        let was_silent = |id: u64| id == leader && moment.tick.saturating_sub(heard) >= moment.timeout;
        self.term = moment.term;
        self.members = moment
            .voters
            .iter()
            .filter(|(id, _)| *id != moment.own)
            .map(|(id, matched)| {
                // The leader before is known to be lost if it was silent for long enough. All others are
                // waited for, for an election timeout.
                let standing = Standing {
                    in_step: !was_silent(*id),
                    heard: if was_silent(*id) { heard } else { moment.tick },
                    matched: *matched,
                    advanced: if was_silent(*id) { heard } else { moment.tick },
                };
                (*id, standing)
            })
            .collect();
        // The witness may have anything that this leader's log has, and nothing is known of the others.
        self.mode = Mode::Ends { through: moment.last };
        self.marks = (moment.committed, moment.committed);
        self.marked = moment.tick;
        self.sendable = moment.committed;
    }

    fn settle_mode(&mut self, moment: &Moment<'_>) {
        let in_step =
            |id: u64| id == moment.own || self.members.get(&id).is_some_and(|member| member.in_step);
        let mut present: Vec<u64> =
            moment.voters.iter().filter(|(id, _)| in_step(*id)).map(|(_, matched)| *matched).collect();
        let mut all: Vec<u64> = moment.voters.iter().map(|(_, matched)| *matched).collect();
        let counts = present.len() < moment.quorum;
        // Index that the wanted number of these members have on disk.
        let level = |matched: &mut Vec<u64>, wanted: usize| {
            matched.sort_unstable_by(|a, b| b.cmp(a));
            wanted.checked_sub(1).and_then(|at| matched.get(at)).copied().unwrap_or(0)
        };
        let safe = level(&mut all, moment.quorum);
        if counts {
            self.mode = Mode::Counts;
            let level = level(&mut present, moment.quorum - 1);
            // The removal of a member that is in step must not be committed with the witness: the others may lack what
            // only that member has.
            let fence = moment.removal.filter(|at| *at > safe).map_or(u64::MAX, |at| at - 1);
            self.sendable = self.sendable.max(moment.committed).max(level.min(fence));
            return;
        }
        if self.mode == Mode::Counts {
            self.mode = Mode::Ends { through: self.sendable };
        }
        if let Mode::Ends { through } = self.mode
            && safe >= through
        {
            self.mode = Mode::Off;
        }
        let sent_always = planted::is(Bug::WitnessCountsAlways);
        let safe = if sent_always { level(&mut present, moment.quorum - 1) } else { safe };
        // What was sent before the members were a quorum again is not taken back.
        self.sendable = self.sendable.max(moment.committed).max(safe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 10;

    /// Two members and a witness; member 1 leads.
    struct Leader {
        witness: Witness,
        tick: u64,
        committed: u64,
    }

    impl Leader {
        fn new(followed: (u64, u64), tick: u64) -> Leader {
            let witness = Witness { followed, ..Witness::new(9) };
            Leader { witness, tick, committed: 20 }
        }

        /// Returns what may be sent and whether the witness counts, if member 1 has entries through `own` and
        /// member 2 through `other`.
        fn look(&mut self, own: u64, other: u64) -> (u64, bool) {
            let voters = [(1, own), (2, other)];
            let (tick, committed) = (self.tick, self.committed);
            let moment = Moment {
                own: 1,
                term: 5,
                tick,
                timeout: TIMEOUT,
                committed,
                last: own,
                voters: &voters,
                quorum: 2,
                removal: None,
            };
            self.witness.look(&moment);
            (self.witness.sendable(), self.witness.counts())
        }
    }

    #[test]
    fn the_example_of_the_documentation() {
        let mut leader = Leader::new((0, 0), 100);
        assert_eq!(leader.look(20, 0), (20, true), "nothing is known of member 2");
        leader.witness.heard(2, false, 100);
        assert_eq!(leader.look(20, 20), (20, false));
        assert_eq!(leader.look(21, 20), (20, false), "only the leader has it");
        assert_eq!(leader.look(21, 21), (21, false));
        leader.committed = 21;
        for tick in 100..110 {
            leader.tick = tick;
            assert_eq!(leader.look(22, 21), (21, false), "at {tick}");
        }
        leader.tick = 110;
        assert_eq!(leader.look(22, 21), (22, true), "silent for an election timeout");
        for tick in 111..140 {
            leader.tick = tick;
            leader.committed = 30;
            leader.look(30, 21);
        }
        leader.witness.heard(2, false, 140);
        leader.tick = 140;
        assert_eq!(leader.look(40, 29), (40, true), "not as far as the older mark");
        assert_eq!(leader.look(41, 30), (40, true), "waited for, and still behind what the witness has");
        assert_eq!(leader.look(41, 40), (40, false));
        assert_eq!(leader.look(42, 41), (41, false));
    }

    #[test]
    fn a_member_that_answers_but_stores_nothing_is_not_waited_for() {
        let mut leader = Leader::new((0, 0), 100);
        assert_eq!(leader.look(20, 20), (20, false));
        for tick in 101..=111 {
            leader.tick = tick;
            leader.witness.heard(2, false, tick);
            let counts = leader.look(21, 20).1;
            assert_eq!(counts, tick >= 110, "at {tick}");
        }
        // With nothing to store it stays in step, however long that takes.
        let mut leader = Leader::new((0, 0), 100);
        for tick in 101..200 {
            leader.tick = tick;
            leader.witness.heard(2, false, tick);
            assert_eq!(leader.look(20, 20), (20, false));
        }
    }

    #[test]
    fn the_leader_before_is_not_waited_for_once_more() {
        let mut leader = Leader::new((2, 80), 100);
        assert_eq!(leader.look(21, 0), (21, true), "silent for 20 ticks");
        let mut leader = Leader::new((2, 95), 100);
        assert_eq!(leader.look(21, 0), (20, true), "it may have handed over");
        leader.tick = 110;
        assert_eq!(leader.look(21, 0), (21, true));
    }

    #[test]
    fn of_four_members_and_a_witness_three_are_enough() {
        let mut witness = Witness::new(9);
        let mut look = |tick: u64, matched: [u64; 4], heard: &[u64]| {
            heard.iter().for_each(|id| witness.heard(*id, false, tick));
            let voters: Vec<(u64, u64)> = (1..).zip(matched).collect();
            witness.look(&Moment {
                own: 1,
                term: 2,
                tick,
                timeout: TIMEOUT,
                committed: 5,
                last: matched[0],
                voters: &voters,
                quorum: 3,
                removal: None,
            });
            (witness.sendable(), witness.counts())
        };
        assert_eq!(look(1, [5, 5, 5, 0], &[2, 3]), (5, false));
        assert_eq!(look(2, [7, 7, 5, 0], &[2, 3]), (5, false), "two of three");
        for tick in 3..12 {
            assert_eq!(look(tick, [7, 7, 6, 0], &[2, 3]), (6, false), "member 4 is down");
        }
        assert_eq!(look(12, [7, 7, 6, 0], &[2, 3]), (6, false), "its last acknowledgement is 9 ticks old");
        assert_eq!(
            look(13, [9, 8, 6, 0], &[2]),
            (8, true),
            "two members have it, and the witness is the third"
        );
    }
}
