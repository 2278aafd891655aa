//! What goes into the log: clients' commands and the core's own, and who waits for them.

use std::time::{Duration, Instant};

use api::Status;
use api::error;
use api::etcdserverpb::{InternalRaftRequest, RequestHeader};
use api::raftpb;
use bytes::Bytes;
use consensus::Request;
use log::Space;
use planted::{Bug, Measure};
use prost::Message as _;

use super::room::{Purpose, purpose_of};
use super::run::Core;
use super::{MemberChange, Ticket};

/// Bytes that may wait in the log to be synced before the core holds proposals back.
const LOG_QUEUE_BYTES: usize = 64 << 20;
/// Bytes of commands that a follower hands on before some of them are applied.
const FORWARDED_BYTES_MAX: usize = 8 << 20;

/// Who waits for an entry.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A client, through its shard. `true`: until everything a compaction made unreadable is removed.
    Client(Ticket, bool),
    /// A client whose keepalive had to go through the log, and the TTL to answer.
    KeepAlive(Ticket, i64),
    /// The expiry of this lease.
    Expiry(i64),
    /// A client who changes the members, and the change.
    Members(Ticket, Box<MemberChange>),
    /// This member's own name and addresses, to be known to all.
    Attributes,
    /// Nobody: the core's own business.
    Nobody,
}

/// Something proposed whose entry is waited for.
pub(super) struct Open {
    pub waiter: Waiter,
    pub since: Instant,
    given: Given,
    /// A client's command, to be proposed again if the leader did not get it into the log.
    data: Option<Bytes>,
}

/// To which leader something was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// The leader's term.
    term: u64,
    /// Whether it gets into the log in that term or never. Otherwise it may be applied at any time, and nobody may
    /// propose it again: whoever waits is told after a while that it took too long, as in etcd.
    bound: bool,
}

impl Open {
    pub fn new(waiter: Waiter, since: Instant, given: Given) -> Open {
        Open { waiter, since, given, data: None }
    }
}

/// A client's command that is not proposed yet.
pub(super) struct Proposal {
    pub ticket: Ticket,
    pub id: u64,
    pub data: Bytes,
    pub wait_removed: bool,
    pub since: Instant,
}

impl Core {
    /// Whether the log can take more before its next sync.
    pub(super) fn log_has_room(&self) -> bool {
        self.log.queued_bytes() < LOG_QUEUE_BYTES
    }

    pub(super) fn has_gathered(&self) -> bool {
        !self.gathered.is_empty() || !self.handed_on.is_empty()
    }

    /// How many more proposals to wait for, and how long; `None` to go ahead.
    pub(super) fn gathering_wait(&self, now: Instant) -> Option<(usize, Duration)> {
        let waiting = self.gathered.len() + self.handed_on.len();
        if self.machine.members.by_id.len() <= 1 {
            return self.gathering.wait(waiting, now);
        }
        let standing = self.node.standing();
        let under_way =
            if self.leadership.leads() { standing.last > standing.commit } else { self.open_bytes > 0 };
        self.gathering.wait_in_cluster(waiting, under_way, self.pressure.pace(), now)
    }

    /// Proposes what has gathered, unless it is better to wait: for more, for the log, or for a leader.
    pub(super) fn propose_gathered(&mut self, now: Instant) {
        if !self.has_gathered() || self.gathering_wait(now).is_some() {
            return;
        }
        let (handed_on, handed_on_bytes) = self.propose_handed_on();
        self.gathering.went(self.gathered.len() + handed_on, now);
        self.held_back = !self.handed_on.is_empty();
        self.held_for_room = self.held_back;
        if self.gathered.is_empty() {
            return;
        }
        if self.stopping.is_some() {
            for proposal in std::mem::take(&mut self.gathered) {
                self.shared.proposal_taken(proposal.data.len());
                self.refuse(proposal.ticket, error::STOPPED);
            }
            return;
        }
        let queue_bytes_max =
            if self.room.has_plenty(&self.log) { LOG_QUEUE_BYTES } else { self.refuse_without_room() };
        if self.gathered.is_empty() {
            return;
        }
        // What was just proposed is not in the log yet.
        let mut queued_bytes = self.queued_bytes() + handed_on_bytes;
        // What the log cannot take yet waits here for its next sync.
        let mut fits = |proposal: &Proposal| {
            let room = queued_bytes < queue_bytes_max;
            queued_bytes += proposal.data.len();
            room
        };
        let mut count = self.gathered.iter().take_while(|proposal| fits(proposal)).count();
        if !self.leadership.leads() {
            count = count.min(self.forwardable());
        }
        self.held_back |= count < self.gathered.len();
        self.held_for_room |= self.leadership.leads() && count < self.gathered.len();
        if count == 0 {
            return;
        }
        let entries = self.gathered[..count].iter().map(|proposal| proposal.data.clone()).collect();
        if self.node.request(Request::Propose(entries)).is_err() {
            // No leader, or one that is handing over: the next one takes them, if it comes in time.
            (self.held_back, self.held_for_room) = (true, false);
            return;
        }
        let given = self.given();
        for proposal in self.gathered.drain(..count) {
            self.shared.proposal_taken(proposal.data.len());
            let waiter = Waiter::Client(proposal.ticket, proposal.wait_removed);
            self.open_bytes += proposal.data.len();
            let open = Open { waiter, since: proposal.since, given, data: Some(proposal.data) };
            self.waiting.insert(proposal.id, open);
        }
    }

    /// Whether what was held back for want of room has room again, though no sync of the log tells so: it was what is to
    /// be applied that took the room.
    pub(super) fn has_room_again(&self) -> bool {
        self.held_for_room && self.queued_bytes() < self.queue_bytes_max()
    }

    /// Bytes that wait to be synced or applied.
    fn queued_bytes(&self) -> usize {
        self.log.queued_bytes() + self.applying.bytes()
    }

    /// Proposes what other members have handed on, as far as the log has room for it: the rest waits for its next sync.
    /// Returns the number of messages that went, and the bytes of their entries.
    fn propose_handed_on(&mut self) -> (usize, usize) {
        if self.handed_on.is_empty() {
            return (0, 0);
        }
        // Raft refuses what a member that does not lead any more is left with.
        let bounded = self.leadership.leads();
        let (mut queued_bytes, bytes_max) = (self.queued_bytes(), self.queue_bytes_max());
        let (mut went, mut went_bytes, mut waits) = (0, 0, Vec::new());
        for (mut message, charge) in std::mem::take(&mut self.handed_on) {
            if bounded && queued_bytes >= bytes_max && !planted::is(Bug::HandedOnWithoutRoom) {
                // Its turn has not come: it is not even looked at.
                waits.push((message, charge));
                continue;
            }
            if bounded {
                // The disk may have come to be short of room since they came.
                self.room.thin_out(&self.log, &mut message);
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
                self.step_received(message);
            }
        }
        self.handed_on = waits;
        (went, went_bytes)
    }

    /// To whom a proposal goes that is made now.
    pub(super) fn given(&self) -> Given {
        Given { term: self.node.standing().term, bound: self.node.binds_proposals() }
    }

    /// Refuses what the disk has no room for. Returns how many bytes may wait for the log, of what is left.
    fn refuse_without_room(&mut self) -> usize {
        let idle = self.log.queued_bytes() == 0;
        for proposal in std::mem::take(&mut self.gathered) {
            let purpose = purpose_of(&proposal.data);
            // While something is being written its room counts as taken, and may be there again: that is waited for.
            let waits = !idle && self.log.space() == Space::Ample;
            if waits || self.room.has(&self.log, proposal.data.len(), purpose) {
                self.gathered.push(proposal);
            } else {
                self.shared.proposal_taken(proposal.data.len());
                self.refuse(proposal.ticket, error::NO_SPACE);
            }
        }
        self.queue_bytes_max()
    }

    /// How many bytes may wait for the log: of what is left, where the disk is short of room.
    fn queue_bytes_max(&self) -> usize {
        if self.room.has_plenty(&self.log) {
            LOG_QUEUE_BYTES
        } else {
            LOG_QUEUE_BYTES.min(self.log.segment_bytes() as usize / 4)
        }
    }

    /// How many of the gathered proposals a follower may hand on now. What goes to the leader shares its connection
    /// with heartbeats, which must not wait long.
    fn forwardable(&self) -> usize {
        let mut room = FORWARDED_BYTES_MAX.saturating_sub(self.open_bytes);
        let fits = |proposal: &&Proposal| {
            let fits = room > 0;
            room = room.saturating_sub(proposal.data.len());
            fits
        };
        self.gathered.iter().take_while(fits).count()
    }

    /// Nobody waits for this entry any more.
    pub(super) fn taken_from_waiting(&mut self, id: u64) -> Option<Waiter> {
        let open = self.waiting.remove(&id)?;
        self.open_bytes = self.open_bytes.saturating_sub(open.data.map_or(0, |data| data.len()));
        Some(open.waiter)
    }

    /// An entry of a newer term than those before has been applied: what was given to a leader of an older term, and
    /// has not been applied by now, never will be, if that leader takes forwarded proposals only for its own term: for
    /// in the log no entry of an older term follows. Then clients' commands and changes are proposed again.
    pub(super) fn propose_again(&mut self, term: u64) {
        let mut lost: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, open)| open.given.bound && open.given.term < term)
            .map(|(id, _)| *id)
            .collect();
        lost.sort_unstable();
        let mut again = Vec::new();
        for id in lost {
            let Some(open) = self.waiting.remove(&id) else { continue };
            self.open_bytes = self.open_bytes.saturating_sub(open.data.as_ref().map_or(0, bytes::Bytes::len));
            match (open.waiter, open.data) {
                (Waiter::Client(ticket, wait_removed), Some(data)) => {
                    self.shared.proposal_again(data.len());
                    again.push(Proposal { ticket, id, data, wait_removed, since: open.since });
                }
                (Waiter::Members(ticket, change), _) => {
                    self.membership.was_lost((ticket, *change, open.since));
                }
                (waiter, _) => self.give_up(waiter, error::LEADER_CHANGED),
            }
        }
        if again.is_empty() {
            return;
        }
        // In the order in which they came, before those that came later.
        again.sort_unstable_by_key(|proposal| (proposal.since, proposal.id));
        again.append(&mut self.gathered);
        self.gathered = again;
    }

    /// The state was replaced by another member's: entries were passed over, and what was proposed may be among them.
    /// Nothing of it may be proposed again, or it could count twice; whoever waits is told that its time is up.
    pub(super) fn forget_commands(&mut self) {
        for open in self.waiting.values_mut() {
            open.data = None;
            open.given.bound &= !matches!(open.waiter, Waiter::Client(..) | Waiter::Members(..));
        }
        self.open_bytes = 0;
    }

    /// Proposes something of the core's own.
    pub(super) fn propose_own(&mut self, mut request: InternalRaftRequest, waiter: Waiter) {
        let id = self.shared.request_id();
        request.header = Some(RequestHeader { id, ..RequestHeader::default() });
        let data = Bytes::from(request.encode_to_vec());
        // A follower's own disk has nothing to do with what it hands on.
        let full = self.leadership.leads() && !self.room.has(&self.log, data.len(), Purpose::Own);
        let refused = full || self.node.request(Request::Propose(vec![data])).is_err();
        if refused {
            self.give_up(waiter, error::NO_LEADER);
        } else {
            self.waiting.insert(id, Open::new(waiter, self.shared.clock.now(), self.given()));
        }
    }

    pub(super) fn give_up(&mut self, waiter: Waiter, status: Status) {
        match waiter {
            Waiter::Client(ticket, _) | Waiter::Members(ticket, _) => self.refuse(ticket, status),
            // The next leader is asked.
            Waiter::KeepAlive(ticket, _) => self.refuse(ticket, error::NOT_PRIMARY_LESSOR),
            Waiter::Expiry(id) => {
                self.leases.revocation_ended(id, true, self.shared.clock.now());
            }
            Waiter::Attributes => self.attributes.were_lost(),
            Waiter::Nobody => {}
        }
    }

    /// Forgets what has waited for too long: the clients were told, and a proposal that was lost on its way to the
    /// leader never comes back.
    pub(super) fn sweep_waiting(&mut self, now: Instant) {
        // The shards tell the clients; this is for what remains.
        let timeout = self.shared.limits.request_timeout + Duration::from_secs(1);
        let late = |since: &Instant| now.saturating_duration_since(*since) >= timeout;
        // In the order of their arrival, the oldest first.
        let expired = self.gathered.iter().take_while(|proposal| late(&proposal.since)).count();
        for proposal in self.gathered.drain(..expired) {
            self.shared.proposal_taken(proposal.data.len());
            self.shared.metrics.server.proposals_failed.inc();
        }
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + timeout / 4;
        // A leader's own entries are lost only with its term. A lease must not be revoked a second time while its first
        // revocation is under way: its id may be granted again in between.
        let lost = |open: &Open| late(&open.since) && !matches!(open.waiter, Waiter::Expiry(_));
        let mut lost: Vec<u64> =
            self.waiting.iter().filter(|(_, open)| lost(open)).map(|(id, _)| *id).collect();
        lost.sort_unstable();
        for id in lost {
            if let Some(waiter) = self.taken_from_waiting(id) {
                self.shared.metrics.server.proposals_failed.inc();
                self.give_up(waiter, error::TIMEOUT);
            }
        }
    }
}
