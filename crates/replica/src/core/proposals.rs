//! Gathers proposals (commands of clients and of the core itself), forms batches of them, and decides which
//! proposals are repeated. [`Proposals`] also keeps the requests that wait for the entries of proposals. It
//! does not call raft: the core's loop does.
//!
//! # Example: a forwarded proposal and a new leader
//!
//! Member 2 follows member 1, the leader of term 4. Two puts of its clients are forwarded in one message that
//! names term 4. The requests wait here under the ids 71 and 72, with `ProposalTerm { term: 4, bound: true
//! }`.
//!
//! ```text
//! log    entry 100, term 4   put, id 71        member 1 appends it, and stops before it takes id 72
//!        entry 101, term 5   empty             member 3 leads now; this is its first entry
//! member 2
//!        applies 100         takes out id 71 and answers its client
//!        applies 101         `lost(5)`: id 72 was given in term 4 and is not applied
//!        proposes id 72 again, to member 3 in term 5
//!        applies 102, term 5 id 72: answers its client
//! ```
//!
//! Id 72 cannot be applied twice. After an entry of term 5 the log has no entry of term 4, so the first
//! attempt is not in the log. If the message of the first attempt is still in flight, member 1 or 3 will
//! refuse it, because it names term 4. A leader that does not announce this rule (etcd) may append the
//! message later: then `bound` is false, nothing is proposed again, and the client gets etcd's timeout.

use std::time::{Duration, Instant};

use api::raftpb;
use bytes::Bytes;
use numbers::{Index, LeaseId, Seconds, Term};
use planted::{Bug, Measure};

use super::batching::Batching;
use super::{MemberChange, RequestId, Writer};
use crate::arrivals::Charge;
use crate::fold::FoldMap;

/// Maximum bytes of unapplied commands that a follower has forwarded.
const FORWARDED_BYTES_MAX: usize = 8 << 20;

/// The request that waits for an entry to be applied.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A client, which is answered through its shard. If the flag is true, the request is a compaction whose
    /// reply waits until all versions that it made unreadable are removed.
    Client(RequestId, bool),
    /// A client that renews a lease whose renewal had to go through the log, and the TTL in seconds to report
    /// to the client.
    KeepAlive(RequestId, Seconds),
    /// The core, which revokes this expired lease.
    Expiry(LeaseId),
    /// A client that changes the membership, and the requested change.
    Members(RequestId, Box<MemberChange>),
    /// The core, which publishes this member's name and client URLs.
    Attributes,
    /// The autopilot, for its step.
    Autopilot,
    /// No request waits: the core proposed the entry and needs no answer.
    Nobody,
}

/// A proposal whose entry is not applied yet.
struct Open {
    waiter: Waiter,
    since: Instant,
    given: ProposalTerm,
    /// A client's command, which is kept so that it can be proposed again if the leader did not append it;
    /// otherwise `None`.
    data: Option<Bytes>,
}

/// The leader's term in which a proposal was given to that leader, and whether the proposal is bound to that
/// term.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProposalTerm {
    /// Raft term of the leader to which the proposal was given.
    pub term: Term,
    /// True if the entry can enter the log only in that term, so that it may be proposed again in a later
    /// term. If false, the entry may still be applied at any later time. It must not be proposed again, and
    /// the waiting request times out, as in etcd.
    pub bound: bool,
}

/// A client's command that is not proposed yet.
pub(super) struct Proposal {
    pub request_id: RequestId,
    pub id: u64,
    pub data: Bytes,
    pub wait_removed: bool,
    pub since: Instant,
}

/// Limits for the proposals of one turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProposalLimits {
    /// True if this member leads and appends the proposals to its own log; false if they are forwarded to the
    /// leader.
    pub leads: bool,
    /// Bytes that wait to be synced or applied.
    pub queued_bytes: usize,
    /// Maximum of [`Self::queued_bytes`]. While it is reached, no proposal is made.
    pub queued_bytes_max: usize,
}

/// Keeps the commands of clients and of the core, from their arrival until they are applied or given up.
///
/// Commands wait here until a batch of them is proposed. After that, their requests wait here under the ids
/// in the entries ([`Proposals::take`]). This type proposes nothing itself: the core's loop does.
pub(super) struct Proposals {
    /// Commands of this member's clients that are not proposed yet.
    gathered: Vec<Proposal>,
    /// Messages with commands that other members have forwarded to this member while it leads.
    forwarded: Vec<(raftpb::Message, Charge)>,
    /// True if some commands have to wait, either for space in the log's queue or for a leader.
    held_back: bool,
    /// True if some commands have to wait for space in the log's queue.
    held_for_room: bool,
    batching: Batching,
    /// Batching of logins, which is separate from that of other commands: logins wait for each other, and
    /// other commands do not wait for logins.
    login_batching: Batching,
    /// Number of logins that arrived since the last batch was formed.
    logins: usize,
    /// Proposals whose entries are not applied yet, by the id in the entry.
    waiting: FoldMap<u64, Open>,
    /// Total size in bytes of the clients' commands in `waiting`.
    open_bytes: usize,
    /// Index of the last entry of the newest batch of clients' commands.
    gathered_through: Index,
    next_sweep: Instant,
}

impl Proposals {
    /// Returns an empty table. Proposals wait for further proposals for at most `window`.
    pub fn new(now: Instant, window: Duration) -> Proposals {
        Proposals {
            gathered: Vec::new(),
            forwarded: Vec::new(),
            held_back: false,
            held_for_room: false,
            batching: Batching::new(now, window),
            login_batching: Batching::new(now, window),
            logins: 0,
            waiting: FoldMap::default(),
            open_bytes: 0,
            gathered_through: Index(0),
            next_sweep: now,
        }
    }

    /// Records the duration of a sync of the log.
    pub fn synced(&mut self, took: Duration) {
        self.batching.synced(took);
        self.login_batching.synced(took);
    }

    /// Records whether proposals are in flight (proposed and not applied).
    pub fn look(&mut self, under_way: bool, now: Instant) {
        let (writes, logins) = self.writes_and_logins();
        self.batching.look(under_way, writes, now);
        self.login_batching.look(under_way, logins, now);
    }

    /// Queues a command of a client until it is proposed. `writer` contains the port of the client's
    /// connection and tells whether the command is a login, because logins have separate batching.
    pub fn push(&mut self, proposal: Proposal, writer: Writer, now: Instant) {
        let bytes = proposal.data.len();
        match writer {
            Writer::Port(port) => self.batching.wrote(port, bytes, now),
            Writer::Login(port) => {
                self.login_batching.wrote(port, bytes, now);
                self.logins += 1;
            }
        }
        self.gathered.push(proposal);
    }

    /// Queues a message with commands that another member forwards to this member, which leads.
    pub fn forward(&mut self, message: raftpb::Message, charge: Charge, now: Instant) {
        self.batching.came(now);
        self.forwarded.push((message, charge));
    }

    /// Returns true if any command waits to be proposed.
    pub fn has_gathered(&self) -> bool {
        !self.gathered.is_empty() || !self.forwarded.is_empty()
    }

    /// Returns true if a command of this member's own clients waits to be proposed.
    pub fn has_own(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// Returns true if some commands have to wait, either for space in the log's queue or for a leader.
    pub fn is_held_back(&self) -> bool {
        self.held_back
    }

    /// Returns true if some commands have to wait for space in the log's queue.
    pub fn is_held_for_room(&self) -> bool {
        self.held_for_room
    }

    /// Returns the number of waiting commands that are not logins, and the number of waiting logins. Logins
    /// that were held back in an earlier batch count as other commands.
    fn writes_and_logins(&self) -> (usize, usize) {
        let logins = self.logins.min(self.gathered.len());
        (self.gathered.len() - logins + self.forwarded.len(), logins)
    }

    /// Returns true if only logins wait to be proposed, while a batch of them is being formed. A write that
    /// arrives in that time should wake the core, because it must not wait with them.
    pub fn gathers_logins_only(&self) -> bool {
        matches!(self.writes_and_logins(), (0, 1..))
    }

    /// Returns the number of further proposals to wait for, and the maximum time, on a member that is the
    /// only one of its cluster. Returns `None` if the waiting proposals should be made now. If a command
    /// other than a login waits, the logins join its batch.
    pub fn wait(&self, now: Instant) -> Option<(usize, Duration)> {
        match self.writes_and_logins() {
            (0, logins @ 1..) => self.login_batching.wait(logins, now),
            (writes, _) => self.batching.wait(writes, now),
        }
    }

    /// Returns the result of [`Self::wait`] for a cluster; see [`Batching::wait_in_cluster`].
    pub fn wait_in_cluster(
        &self,
        under_way: bool,
        pace: Duration,
        now: Instant,
    ) -> Option<(usize, Duration)> {
        match self.writes_and_logins() {
            (0, logins @ 1..) => self.login_batching.wait_in_cluster(logins, under_way, pace, now),
            (writes, logins) => self.batching.wait_in_cluster(writes + logins, under_way, pace, now),
        }
    }

    /// Returns true if some commands of clients are proposed and not applied.
    pub fn is_under_way(&self) -> bool {
        self.open_bytes > 0
    }

    /// Starts a batch: passes on the commands that other members have forwarded, as many as the log's queue
    /// has space for. The rest of these commands wait for the next sync. `thin_out` removes the entries for
    /// which the disk has no space, and `take` receives each message of the batch. Returns the size in bytes
    /// of the entries passed to `take`.
    pub fn go(
        &mut self,
        ground: ProposalLimits,
        thin_out: impl FnMut(&mut raftpb::Message),
        take: impl FnMut(raftpb::Message),
        now: Instant,
    ) -> usize {
        let logins = self.logins.min(self.gathered.len());
        self.logins = 0;
        let (went, went_bytes) = self.go_forwarded(ground, thin_out, take);
        let writes = self.gathered.len() - logins + went;
        // A batch that contains only logins is not counted here, because it must not change the average size
        // of batches of writes.
        if writes > 0 || logins == 0 {
            self.batching.went(writes, now);
        }
        if logins > 0 {
            self.login_batching.went(logins, now);
        }
        self.held_back = !self.forwarded.is_empty();
        self.held_for_room = self.held_back;
        went_bytes
    }

    fn go_forwarded(
        &mut self,
        ground: ProposalLimits,
        mut thin_out: impl FnMut(&mut raftpb::Message),
        mut take: impl FnMut(raftpb::Message),
    ) -> (usize, usize) {
        if self.forwarded.is_empty() {
            return (0, 0);
        }
        // The limit applies only while this member leads. If it no longer leads, all messages are passed to
        // raft, which refuses them.
        let ProposalLimits { leads: bounded, mut queued_bytes, queued_bytes_max: bytes_max } = ground;
        let (mut went, mut went_bytes, mut waits) = (0, 0, Vec::new());
        for (mut message, charge) in std::mem::take(&mut self.forwarded) {
            if bounded && queued_bytes >= bytes_max && !planted::is(Bug::HandedOnWithoutRoom) {
                // The whole message waits. The free space is not checked now, but when the entries are passed
                // on.
                waits.push((message, charge));
                continue;
            }
            if bounded {
                // The space is checked again, because the disk may have become short of space since the
                // message arrived.
                thin_out(&mut message);
                let fits = |entry: &&raftpb::Entry| {
                    let room = queued_bytes < bytes_max || planted::is(Bug::HandedOnWithoutRoom);
                    if room {
                        planted::looked_at(Measure::Queued, queued_bytes * 100 / bytes_max.max(1));
                    }
                    queued_bytes += entry.data.as_ref().map_or(0, Bytes::len);
                    room
                };
                let count = message.entries.iter().take_while(fits).count();
                let rest = message.entries.split_off(count);
                if !rest.is_empty() {
                    let now = std::mem::take(&mut message.entries);
                    waits.push((raftpb::Message { entries: rest, ..message.clone() }, charge));
                    message.entries = now;
                }
            }
            if !message.entries.is_empty() {
                went += 1;
                went_bytes += message
                    .entries
                    .iter()
                    .filter_map(|entry| entry.data.as_ref())
                    .map(Bytes::len)
                    .sum::<usize>();
                take(message);
            }
        }
        self.forwarded = waits;
        (went, went_bytes)
    }

    /// Returns the commands of clients to propose now, oldest first: as many as the log's queue has space for
    /// and, on a follower, as [`FORWARDED_BYTES_MAX`] allows. The commands stay in this table until
    /// [`Proposals::proposed`] is called.
    pub fn next_batch(&mut self, ground: ProposalLimits) -> Vec<Bytes> {
        let mut queued_bytes = ground.queued_bytes;
        // Commands for which the log's queue has no space wait for the next sync.
        let mut fits = |proposal: &Proposal| {
            let room = queued_bytes < ground.queued_bytes_max;
            queued_bytes += proposal.data.len();
            room
        };
        let mut count = self.gathered.iter().take_while(|proposal| fits(proposal)).count();
        if !ground.leads {
            count = count.min(self.forwardable());
        }
        self.held_back |= count < self.gathered.len();
        self.held_for_room |= ground.leads && count < self.gathered.len();
        self.gathered[..count].iter().map(|proposal| proposal.data.clone()).collect()
    }

    /// Returns the number of gathered proposals that a follower may forward now. The number is limited
    /// because proposals share the connection to the leader with heartbeats, which must not be delayed much.
    fn forwardable(&self) -> usize {
        let mut room = FORWARDED_BYTES_MAX.saturating_sub(self.open_bytes);
        let fits = |proposal: &&Proposal| {
            let fits = room > 0;
            room = room.saturating_sub(proposal.data.len());
            fits
        };
        self.gathered.iter().take_while(fits).count()
    }

    /// Records that the raft node refused the batch, because there is no leader or the leader is transferring
    /// leadership. The commands stay gathered and wait for the next leader.
    pub fn refused(&mut self) {
        (self.held_back, self.held_for_room) = (true, false);
    }

    /// Records that the oldest `count` of the gathered commands were given to a leader. `taken` is called
    /// with the size in bytes of each of them.
    pub fn proposed(&mut self, count: usize, given: ProposalTerm, mut taken: impl FnMut(usize)) {
        for proposal in self.gathered.drain(..count) {
            taken(proposal.data.len());
            let waiter = Waiter::Client(proposal.request_id, proposal.wait_removed);
            self.open_bytes += proposal.data.len();
            let open = Open { waiter, since: proposal.since, given, data: Some(proposal.data) };
            self.waiting.insert(proposal.id, open);
        }
    }

    /// Records `last`, the index of the last entry of the batch that was just proposed.
    pub fn gathered_through(&mut self, last: Index) {
        self.gathered_through = last;
    }

    /// Returns true if the entry at this index is the last entry of the newest batch of clients' commands.
    pub fn has_gathered_through(&self, last: Index) -> bool {
        self.gathered_through == last
    }

    /// Removes and returns the gathered commands for which `stays` returns false.
    pub fn take_out(&mut self, mut stays: impl FnMut(&Proposal) -> bool) -> Vec<Proposal> {
        let mut out = Vec::new();
        for proposal in std::mem::take(&mut self.gathered) {
            if stays(&proposal) {
                self.gathered.push(proposal);
            } else {
                out.push(proposal);
            }
        }
        out
    }

    /// Removes and returns all gathered commands.
    pub fn take_all(&mut self) -> Vec<Proposal> {
        std::mem::take(&mut self.gathered)
    }

    /// Removes and returns all requests that wait for an entry, in the order of the ids, because this member
    /// goes out of service.
    pub fn end(&mut self) -> Vec<Waiter> {
        self.forwarded.clear();
        self.held_back = false;
        let mut ids: Vec<u64> = self.waiting.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.take(id)).collect()
    }

    /// Registers a request that waits for the entry with this id. `given` says to which leader the entry was
    /// given.
    pub fn await_entry(&mut self, id: u64, waiter: Waiter, since: Instant, given: ProposalTerm) {
        self.waiting.insert(id, Open { waiter, since, given, data: None });
    }

    /// Returns the number of entries for which requests wait.
    pub fn open(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if a request waits for the entry with this id.
    pub fn is_awaited(&self, id: u64) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Returns the request that waits for the entry with this id.
    pub fn waiter(&self, id: u64) -> Option<&Waiter> {
        self.waiting.get(&id).map(|open| &open.waiter)
    }

    /// Removes and returns the request that waits for the entry with this id.
    pub fn take(&mut self, id: u64) -> Option<Waiter> {
        let open = self.waiting.remove(&id)?;
        self.open_bytes = self.open_bytes.saturating_sub(open.data.map_or(0, |data| data.len()));
        Some(open.waiter)
    }

    /// Handles the first applied entry of a newer `term`. A proposal is lost if three conditions hold: it was
    /// given to a leader of an older term, that leader accepts forwarded proposals only for its own term, and
    /// the proposal is not applied by now. The log cannot contain it later, because after an entry of the
    /// newer term it has no entry of an older term.
    ///
    /// Lost commands of clients are gathered to be proposed again, and `again` is called with the size in
    /// bytes of each. Returns the other requests that waited for lost entries, with their times of arrival.
    pub fn lost(&mut self, term: Term, mut again: impl FnMut(usize)) -> Vec<(Waiter, Instant)> {
        let is_lost = |open: &Open| open.given.bound && open.given.term < term;
        let mut lost: Vec<u64> =
            self.waiting.iter().filter(|(_, open)| is_lost(open)).map(|(id, _)| *id).collect();
        lost.sort_unstable();
        let (mut commands, mut others) = (Vec::new(), Vec::new());
        for id in lost {
            let Some(open) = self.waiting.remove(&id) else { continue };
            self.open_bytes = self.open_bytes.saturating_sub(open.data.as_ref().map_or(0, Bytes::len));
            match (open.waiter, open.data) {
                (Waiter::Client(request_id, wait_removed), Some(data)) => {
                    again(data.len());
                    commands.push(Proposal { request_id, id, data, wait_removed, since: open.since });
                }
                (waiter, _) => others.push((waiter, open.since)),
            }
        }
        if !commands.is_empty() {
            // The lost commands are sorted by their arrival and put in front of the gathered commands, which
            // arrived later.
            commands.sort_unstable_by_key(|proposal| (proposal.since, proposal.id));
            commands.append(&mut self.gathered);
            self.gathered = commands;
        }
        others
    }

    /// Forgets the data of all proposals, because another member's state has replaced the current one. The
    /// new state contains entries that this member has not applied, and these proposals may be among them. If
    /// they were proposed again, they could take effect twice. The waiting requests time out.
    pub fn forget_commands(&mut self) {
        for open in self.waiting.values_mut() {
            open.data = None;
            open.given.bound &= !matches!(open.waiter, Waiter::Client(..) | Waiter::Members(..));
        }
        self.open_bytes = 0;
    }

    /// Gives up proposals that have waited longer than `timeout`; called at each tick. Their clients have
    /// timed out, and a proposal that was lost on its way to the leader is never applied. `taken` is called
    /// with the size in bytes of each command that was never proposed. Returns the requests that waited for
    /// entries.
    pub fn sweep(&mut self, timeout: Duration, now: Instant, mut taken: impl FnMut(usize)) -> Vec<Waiter> {
        let late = |since: &Instant| now.saturating_duration_since(*since) >= timeout;
        // The gathered commands are in the order of their arrival, so the expired ones are at the front.
        let expired = self.gathered.iter().take_while(|proposal| late(&proposal.since)).count();
        for proposal in self.gathered.drain(..expired) {
            taken(proposal.data.len());
        }
        if now < self.next_sweep {
            return Vec::new();
        }
        self.next_sweep = now + timeout / 4;
        // The revocation of an expired lease is never given up here. A leader's own entries are lost only at
        // the end of its term, so the revocation may still be in flight. A second revocation could end a new
        // lease that was granted with the same id after the first one.
        let lost = |open: &Open| late(&open.since) && !matches!(open.waiter, Waiter::Expiry(_));
        let mut lost: Vec<u64> =
            self.waiting.iter().filter(|(_, open)| lost(open)).map(|(id, _)| *id).collect();
        lost.sort_unstable();
        lost.into_iter().filter_map(|id| self.take(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrivals;

    const GIVEN: ProposalTerm = ProposalTerm { term: Term(2), bound: true };
    const LEADS: ProposalLimits = ProposalLimits { leads: true, queued_bytes: 0, queued_bytes_max: 1000 };

    fn proposal(id: u64, bytes: usize, since: Instant) -> Proposal {
        let request_id = RequestId { shard: 0, slot: u32::try_from(id).expect("small"), generation: 0 };
        Proposal { request_id, id, data: Bytes::from(vec![0; bytes]), wait_removed: false, since }
    }

    fn gathered(ids: &[(u64, usize)], now: Instant) -> Proposals {
        let mut proposals = Proposals::new(now, Duration::from_millis(2));
        ids.iter().for_each(|(id, bytes)| proposals.push(proposal(*id, *bytes, now), Writer::Port(1), now));
        proposals
    }

    fn went(proposals: &mut Proposals, ground: ProposalLimits, now: Instant) -> usize {
        proposals.go(ground, |_| {}, |_| {}, now);
        let batch = proposals.next_batch(ground);
        proposals.proposed(batch.len(), GIVEN, |_| {});
        batch.len()
    }

    #[test]
    fn what_finds_no_room_waits_and_a_follower_hands_on_so_much() {
        let now = Instant::now();
        let mut proposals = gathered(&[(1, 600), (2, 600), (3, 600)], now);
        assert_eq!(went(&mut proposals, LEADS, now), 2);
        assert!(proposals.is_held_back() && proposals.is_held_for_room() && proposals.is_under_way());
        assert_eq!(went(&mut proposals, ProposalLimits { queued_bytes: 1000, ..LEADS }, now), 0);
        let half = FORWARDED_BYTES_MAX / 2;
        let mut proposals = gathered(&[(1, half), (2, half), (3, 1)], now);
        let follows = ProposalLimits { leads: false, queued_bytes: 0, queued_bytes_max: usize::MAX };
        assert_eq!(went(&mut proposals, follows, now), 2);
        assert!(proposals.is_held_back() && !proposals.is_held_for_room());
        assert!(matches!(proposals.take(1), Some(Waiter::Client(request_id, false)) if request_id.slot == 1));
        assert!(!proposals.is_awaited(1) && proposals.is_awaited(2));
        assert_eq!(went(&mut proposals, follows, now), 1);
    }

    #[test]
    fn a_write_does_not_wait_for_logins() {
        let now = Instant::now();
        let mut proposals = Proposals::new(now, Duration::from_millis(2));
        let ground = ProposalLimits { queued_bytes_max: usize::MAX, ..LEADS };
        let push = |proposals: &mut Proposals, writer| proposals.push(proposal(1, 10, now), writer, now);
        for _ in 0..20 {
            (0..100).for_each(|port| push(&mut proposals, Writer::Login(port)));
            assert_eq!(went(&mut proposals, ground, now), 100);
        }
        // Logins wait for half of the connections that log in.
        push(&mut proposals, Writer::Login(1));
        assert_eq!(proposals.wait(now).map(|(more, _)| more), Some(49));
        assert!(proposals.gathers_logins_only());
        // A write is proposed immediately, together with the waiting logins.
        push(&mut proposals, Writer::Port(200));
        assert!(!proposals.gathers_logins_only());
        assert_eq!(proposals.wait(now), None);
        assert_eq!(went(&mut proposals, ground, now), 2);
        // Logins do not make the batches of other writers smaller.
        for _ in 0..20 {
            (0..100).for_each(|port| push(&mut proposals, Writer::Port(port)));
            assert_eq!(went(&mut proposals, ground, now), 100);
            push(&mut proposals, Writer::Login(1));
            assert_eq!(went(&mut proposals, ground, now), 1);
        }
        (0..30).for_each(|port| push(&mut proposals, Writer::Login(port)));
        push(&mut proposals, Writer::Port(1));
        assert_eq!(proposals.wait(now).map(|(more, _)| more), Some(49));
    }

    #[test]
    fn what_is_forwarded_is_cut_where_the_log_is_full() {
        let now = Instant::now();
        let mut proposals = Proposals::new(now, Duration::from_millis(2));
        let arrivals = Arrivals::default();
        let entry = |bytes| raftpb::Entry { data: Some(Bytes::from(vec![0; bytes])), ..Default::default() };
        for _ in 0..2 {
            let message = raftpb::Message { entries: vec![entry(600), entry(600)], ..Default::default() };
            let (mut admitted, charge) = arrivals.admit(&mut vec![message]).expect("there is room");
            proposals.forward(admitted.remove(0), charge, now);
        }
        let mut taken = Vec::new();
        let ground = ProposalLimits { queued_bytes_max: 600, ..LEADS };
        assert_eq!(proposals.go(ground, |_| {}, |message| taken.push(message.entries.len()), now), 600);
        assert_eq!(taken, [1]);
        assert!(proposals.has_gathered() && proposals.is_held_for_room());
        assert_eq!(
            proposals.go(LEADS, |message| message.entries.clear(), |_| panic!("none is left"), now),
            0
        );
        assert!(!proposals.has_gathered());
    }

    #[test]
    fn commands_that_a_lost_leader_did_not_take_are_proposed_again_before_others() {
        let now = Instant::now();
        let mut proposals = gathered(&[(1, 10), (2, 10)], now);
        assert_eq!(went(&mut proposals, LEADS, now), 2);
        proposals.await_entry(3, Waiter::Expiry(LeaseId(9)), now, GIVEN);
        proposals.await_entry(4, Waiter::Nobody, now, ProposalTerm { bound: false, ..GIVEN });
        proposals.push(proposal(5, 10, now), Writer::Port(1), now);
        assert!(proposals.lost(Term(2), |_| panic!("it may still be applied")).is_empty());
        let mut again = 0;
        let others = proposals.lost(Term(3), |bytes| again += bytes);
        assert!(matches!(others[..], [(Waiter::Expiry(LeaseId(9)), _)]));
        assert_eq!((again, proposals.open(), proposals.is_under_way()), (20, 1, false));
        let ids: Vec<u64> = proposals.take_all().iter().map(|proposal| proposal.id).collect();
        assert_eq!(ids, [1, 2, 5]);
    }

    #[test]
    fn nothing_is_proposed_again_once_the_state_was_replaced() {
        let now = Instant::now();
        let mut proposals = gathered(&[(1, 10)], now);
        went(&mut proposals, LEADS, now);
        proposals.forget_commands();
        assert!(proposals.lost(Term(9), |_| {}).is_empty());
        assert!(!proposals.has_gathered() && proposals.is_awaited(1) && !proposals.is_under_way());
    }

    #[test]
    fn what_waits_too_long_is_given_up_but_for_revocations() {
        let (now, timeout) = (Instant::now(), Duration::from_secs(8));
        let mut proposals = gathered(&[(1, 10)], now);
        went(&mut proposals, LEADS, now);
        proposals.await_entry(2, Waiter::Expiry(LeaseId(9)), now, GIVEN);
        proposals.push(proposal(3, 10, now), Writer::Port(1), now);
        let mut taken = 0;
        assert!(proposals.sweep(timeout, now, |bytes| taken += bytes).is_empty());
        let given_up = proposals.sweep(timeout, now + timeout, |bytes| taken += bytes);
        assert!(matches!(given_up[..], [Waiter::Client(..)]));
        assert_eq!((taken, proposals.open(), proposals.has_own()), (10, 1, false));
        assert_eq!(proposals.end().len(), 1);
    }
}
