//! Starts staged faults and advances them step by step.

use api::Rpc;
use api::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest};
use prost::Message as _;

use super::{Staged, Step};
use crate::checks::Standing;
use crate::member::{Caller, Place};
use crate::network::Host;
use crate::profile::{Fault, SLOW, Work};
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::world::{Calling, Event, Undo, World};

/// Longest time for which a stranded follower is cut off.
const AWAY_MAX: Nanos = 2500 * MILLI;
/// Time within which a follower that is connected again should receive a snapshot.
const SNAPSHOT_MAX: Nanos = 2 * SECOND;
/// Time without other faults that a leader needs to hand over its leadership before its removal.
const CALM: Nanos = 1500 * MILLI;

impl World {
    /// Starts the waiting fault if the call that arrives at this member is suitable for it.
    pub(crate) fn lurk(&mut self, at: Host, request: &Calling) {
        let Some(fault) = self.staged.lurks.filter(|_| self.chaos) else { return };
        let Some(leader) = self.leader() else { return };
        if fault == Fault::Ambush && at == leader && self.is_granted_anew(request) {
            self.staged.lurks = None;
            return self.hold_up_grant(leader);
        }
        let (writes, lease) = match request {
            Calling::Unary(Rpc::KvPut | Rpc::KvTxn, _) => (true, None),
            Calling::Unary(..) => (false, None),
            Calling::Renew(lease) => (false, Some(*lease)),
        };
        let (turn, delay, sync) = (self.profile.turn, self.profile.delay, self.profile.sync);
        match (fault, lease) {
            (Fault::Strand, _) if writes && at != leader && self.staged.stranded.is_none() => {
                // Cuts off the follower when its forwarded write has approximately reached the leader.
                let delay = 2 * turn + delay / 2 + self.dice.faults.around(delay);
                self.schedule.after(delay, Event::Staged(Step::CutOff(at)));
            }
            // Without slow faults, clients also grant leases again under a revoked id. In that case, the
            // ambush ignores most renewals and waits for such a grant.
            (Fault::Ambush, Some(_))
                if !SLOW.iter().any(|fault| self.profile.fails(*fault)) && !self.dice.faults.one_in(4) =>
            {
                return;
            }
            (Fault::Ambush, Some(lease)) if at == leader && self.dice.faults.one_in(4) => {
                self.depose(leader, lease);
            }
            (Fault::Ambush, Some(_)) => {
                let delay = self.dice.faults.below(2 * (turn + delay + sync) + 1);
                self.schedule.after(delay, Event::Staged(Step::Stop));
            }
            _ => return,
        }
        self.staged.lurks = None;
    }

    /// Returns true if the request grants a lease under an id whose revocation is in flight.
    fn is_granted_anew(&self, request: &Calling) -> bool {
        let Calling::Unary(Rpc::LeaseGrant, message) = request else { return false };
        let grant = LeaseGrantRequest::decode(message.clone());
        let id = grant.map_or(0, |grant| grant.id);
        self.extras
            .iter()
            .any(|extra| matches!(extra.request, oracle::Request::Revoke { id: one } if one == id))
    }

    /// Stalls the followers until the leader has recorded how much time the lease that is being revoked has
    /// left; then ends the leader. The next leader uses the recorded time.
    fn hold_up_grant(&mut self, leader: Host) {
        let now = self.now();
        let length = 2300 * MILLI;
        for at in self.running().into_iter().filter(|at| *at != leader) {
            self.places[at].stalled_until = now + length;
        }
        let delay = length + self.dice.faults.between(200 * MILLI, 800 * MILLI);
        self.schedule.after(delay, Event::Staged(Step::Depose));
    }

    /// Pauses a leader for so long that another leader is elected. Meanwhile, a client revokes the lease at
    /// another member. After the pause, the old leader handles a renewal of that lease.
    fn depose(&mut self, leader: Host, lease: i64) {
        let now = self.now();
        let others = self.running().into_iter().filter(|at| *at != leader);
        let others: Vec<Host> = others.filter(|at| self.paused(*at).is_none()).collect();
        if others.len() < 2 {
            return;
        }
        let other = self.dice.faults.pick(&others);
        let election = self.profile.flags.election;
        self.places[leader].paused_until = now + 3 * election + 2 * SECOND;
        self.schedule.after(3 * election, Event::Staged(Step::Revoke(other, lease)));
        self.schedule.after(3 * election + SECOND, Event::Staged(Step::Renew(leader, lease)));
    }

    /// Stages a fault around the removal of a member that the operator is about to request.
    pub(crate) fn stage_removal(&mut self, id: u64) {
        let now = self.now();
        let Some(leader) = self.leader().filter(|at| self.places[*at].id == id) else { return };
        let others: Vec<Host> = self.running().into_iter().filter(|at| *at != leader).collect();
        if self.profile.fails(Fault::NoHeir) && self.chaos {
            let life = self.places[leader].lives;
            let election = self.profile.flags_of(leader, life).election;
            for at in &others {
                let length = election * self.dice.faults.between(22, 40) / 10;
                self.places[*at].stalled_until = now + length;
                let factor = self.dice.faults.pick(&[1, 10, 30]);
                self.places[*at].slowness.begin(factor);
                self.schedule.after(length + 4 * SECOND, Event::Undo(Undo::SlowDisk(*at)));
            }
            // Writes after the removal fill the replication windows of the followers.
            for number in 0..8 {
                let delay = 2 * election + 100 * MILLI + number * 20 * MILLI;
                self.schedule.after(delay, Event::Staged(Step::Write(leader)));
            }
        }
        let here = |place: &Place| place.retired || place.lives == 0 || place.process.is_some();
        let calm = now > self.staged.fault_at + CALM && self.places.iter().all(here);
        if self.profile.fails(Fault::Farewell) && self.chaos && calm && !others.is_empty() {
            self.staged.leaving = Some(leader);
        }
    }

    /// Checks whether a member has reached the point that a staged fault waits for, and continues the fault
    /// then.
    pub(crate) fn look_at_stage(&mut self, at: Host, before: Option<&Standing>) {
        let Some(now) = self.checks.standing(at).cloned() else { return };
        // While a leader hands over, it does not report that it leads, so its previous report counts as well.
        let led = now.leads || before.is_some_and(|before| before.leads);
        if self.staged.leaving == Some(at) && led && !self.is_member(at, now.id) {
            self.staged.leaving = None;
            self.schedule.after(0, Event::Staged(Step::Vanish(at)));
        }
        let took_over = before.is_some_and(|before| before.life == now.life && now.applied > before.last);
        if self.staged.stranded.is_some_and(|(stranded, _)| stranded == at) && took_over {
            self.staged.stranded = None;
            let (delay, step) = match self.dice.faults.below(4) {
                0 => (self.dice.faults.around(2 * self.profile.sync), Step::End(at, true)),
                _ => (self.dice.faults.below(400 * MILLI), Step::Depose),
            };
            self.schedule.after(delay, Event::Staged(step));
        }
    }

    fn is_member(&self, at: Host, id: u64) -> bool {
        let process = self.places[at].process.as_ref();
        process.is_none_or(|process| process.stepped.published().members.by_id.contains_key(&id))
    }

    pub(crate) fn staged(&mut self, step: Step) {
        let now = self.now();
        if !self.chaos {
            self.staged = Staged::default();
            return;
        }
        if !matches!(step, Step::Behind(_)) {
            self.trace.note(now, format_args!("staged: {step:?}"));
        }
        match step {
            Step::CutOff(at) => {
                self.staged.stranded = Some((at, now + AWAY_MAX));
                self.staged.back = false;
                for other in (0..self.places.len()).filter(|other| *other != at) {
                    self.network.cut(at, other, now);
                    self.network.cut(other, at, now);
                }
                self.schedule.after(50 * MILLI, Event::Staged(Step::Behind(at)));
            }
            Step::Behind(at) => {
                let leader = self.leader().filter(|leader| *leader != at);
                let standing = |at| self.checks.standing(at);
                let far = leader
                    .and_then(standing)
                    .zip(standing(at))
                    .is_some_and(|(leader, own)| leader.first > own.last + 1);
                let late = self.staged.stranded.is_none_or(|(_, until)| now >= until);
                if !far && !late {
                    self.schedule.after(50 * MILLI, Event::Staged(Step::Behind(at)));
                    return;
                }
                if let Some(leader) = leader.filter(|_| self.profile.works(Work::Compact)) {
                    let revision = (self.newest() - 1).max(1);
                    self.extra(oracle::Request::Compact { revision, physical: false }, leader);
                }
                let delay = self.dice.faults.below(300 * MILLI);
                self.schedule.after(delay, Event::Staged(Step::Back(at)));
            }
            Step::Back(at) => {
                self.network.join();
                self.staged.back = true;
                self.schedule.after(SNAPSHOT_MAX, Event::Staged(Step::Late(at)));
            }
            Step::Late(at) => {
                if self.staged.back && self.staged.stranded.is_some_and(|(stranded, _)| stranded == at) {
                    self.staged.stranded = None;
                }
            }
            Step::End(at, power) => self.crash(at, power),
            Step::Depose => {
                if let Some(leader) = self.leader() {
                    let power = self.dice.faults.one_in(2);
                    self.crash(leader, power);
                }
            }
            Step::Stop => {
                if let Some(leader) = self.leader() {
                    self.stop(leader);
                }
            }
            Step::Write(at) => {
                let value = format!("behind.{}", self.next_operation).into_bytes();
                let put = oracle::Put { key: b"k000".to_vec(), value, ..oracle::Put::default() };
                self.extra(oracle::Request::Put(put), at);
            }
            Step::Revoke(at, id) => self.extra(oracle::Request::Revoke { id }, at),
            Step::Renew(at, id) => self.extra(oracle::Request::KeepAlive { id }, at),
            Step::Crowd(at, leases) => self.crowd(at, leases),
            Step::Disperse(at, leases) => {
                for number in 0..leases {
                    let revoke = LeaseRevokeRequest { id: CROWD_LEASES + number as i64 };
                    self.crowd_call(at, Rpc::LeaseRevoke, revoke.encode_to_vec());
                }
            }
            Step::Vanish(at) => {
                for other in (0..self.places.len()).filter(|other| *other != at) {
                    self.network.break_off(at, other);
                }
                self.end(at, true);
                self.places[at].retired = true;
                self.places[at].starts_at = None;
            }
        }
    }

    /// Grants this number of leases at the same time. After a while all of them are revoked at the same time,
    /// or they expire together.
    fn crowd(&mut self, at: Host, leases: u64) {
        let ttl = i64::try_from(self.dice.faults.between(2, 9)).unwrap_or(2);
        for number in 0..leases {
            let grant = LeaseGrantRequest { id: CROWD_LEASES + number as i64, ttl };
            self.crowd_call(at, Rpc::LeaseGrant, grant.encode_to_vec());
        }
        for number in 0..leases.min(5) {
            let key = format!("k{number:03}").into_bytes();
            let value = format!("crowd.{number}").into_bytes();
            let put =
                oracle::Put { key, value, lease: CROWD_LEASES + number as i64, ..oracle::Put::default() };
            self.extra(oracle::Request::Put(put), at);
        }
        if self.dice.faults.one_in(2) {
            let delay = self.dice.faults.between(SECOND, 3 * SECOND);
            self.schedule.after(delay, Event::Staged(Step::Disperse(at, leases)));
        } else if self.dice.faults.one_in(2) {
            // The leader shuts down, so that the next leader has to start the timers of all leases.
            let delay = self.dice.faults.between(SECOND / 2, 2 * SECOND);
            self.schedule.after(delay, Event::Staged(Step::Stop));
        }
    }

    fn crowd_call(&mut self, at: Host, rpc: Rpc, message: Vec<u8>) {
        self.next_operation += 1;
        let operation = self.next_operation;
        self.place_call(Caller::Crowd, operation, at, Calling::Unary(rpc, message.into()), SECOND);
    }

    /// Sends an operation of a new client, which makes no other call.
    pub(crate) fn extra(&mut self, request: oracle::Request, to: Host) {
        self.next_operation += 1;
        let id = self.next_operation;
        let calling = Calling::of(&request);
        let call = self.now();
        let client = EXTRA_CLIENTS + id;
        self.extras.push(oracle::Operation {
            id,
            client,
            member: to as u64 + 1,
            life: 0,
            call,
            returned: 0,
            request,
            outcome: oracle::Outcome::Unknown(String::new()),
            fence: None,
        });
        self.counts.operations += 1;
        self.place_call(Caller::Extra, id, to, calling, crate::clients::PATIENCE);
    }
}

/// First lease id of a crowd.
const CROWD_LEASES: i64 = 1 << 40;
/// First number of the clients that make one call.
const EXTRA_CLIENTS: u64 = 1 << 20;
