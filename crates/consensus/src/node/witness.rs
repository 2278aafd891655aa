//! The witness: a voter that keeps no values. A leader sends it entries without payload, and only those that it
//! may have (`crate::witness`). The witness itself empties payloads before it appends entries, and never
//! campaigns.

use bytes::Bytes;
use numbers::MemberId;
use planted::Bug;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use raft::eraftpb::{self, EntryType, MessageType};
use raft::{GetEntriesContext, StateRole};

use super::{APPEND_BYTES_MAX, Node};
use crate::entry::ConfChangeKind;
use crate::wire;
use crate::witness::{Held, Moment};

/// Field number in `InternalRaftRequest` of an alarm, which concerns a member.
const ALARM: u32 = 10;
/// Field numbers of the requests that concern the membership: the cluster version, attributes of a member, and a
/// downgrade.
const OF_MEMBERS: std::ops::RangeInclusive<u32> = 1300..=1302;

impl Node {
    /// Returns the witness of the cluster; [`MemberId::NONE`] if it has none.
    pub fn witness(&self) -> MemberId {
        MemberId(self.witness.id())
    }

    /// Returns true if this leader counts the witness, because too few members with data answer; also while a
    /// member that is back has not caught up. Another machine must not be lost now.
    pub fn counts_witness(&self) -> bool {
        self.witness.counts()
    }

    /// Returns true if no leader is known, and the witness has refused this member its vote for two election timeouts,
    /// because the witness has newer entries, whose values only a member has that is down.
    pub fn is_behind_witness(&self) -> bool {
        self.raw.raft.leader_id == 0
            && self.witness.has_refused(self.ticks, self.config.election_ticks as u64)
    }

    /// Returns true if this leader may propose to remove the member. It must not while the witness counts and the member
    /// has what was committed with the witness, because the others may lack it.
    pub fn may_remove(&self, id: MemberId) -> bool {
        planted::is(Bug::WitnessOutlivesTheData) || self.witness.may_remove(id.0, self.config.id.0)
    }

    /// Returns an error if this node is told to be a witness and the cluster has it as a member with data, or the other
    /// way round: it would acknowledge values that it does not keep.
    pub(super) fn check_kind(&self, own_is_witness: bool) -> Result<(), crate::event::NodeBug> {
        if own_is_witness == self.config.is_witness {
            return Ok(());
        }
        let kind = |is_witness| if is_witness { "a witness" } else { "a member with data" };
        Err(crate::event::NodeBug(format!(
            "this process is {}, and the cluster has it as {}",
            kind(self.config.is_witness),
            kind(own_is_witness)
        )))
    }

    /// Takes note of a message that was accepted. `own_term` is this node's term before the message.
    pub(super) fn note_heard(&mut self, heard: Heard, own_term: u64) {
        let Heard { kind, from, term, reject } = heard;
        let raft = &self.raw.raft;
        let leads = raft.leader_id == from && raft.term == term;
        self.witness.heard(from, leads, self.ticks);
        // A refusal because of the candidate's term names a newer one. One that does not is about the log; or, if it
        // refuses a vote and not a pre-vote, about a vote for another candidate, which nobody repeats for long.
        let answers =
            matches!(kind, MessageType::MsgRequestPreVoteResponse | MessageType::MsgRequestVoteResponse);
        if answers && reject && from == self.witness.id() && term <= own_term {
            self.witness.refused(self.ticks, self.config.election_ticks as u64);
        }
    }

    /// Returns true if a message proposes, to this leader, a removal that it must not propose now.
    pub(super) fn proposes_unsafe_removal(&self, message: &eraftpb::Message) -> bool {
        self.raw.raft.state == StateRole::Leader
            && message.get_msg_type() == MessageType::MsgPropose
            && message.entries.iter().filter_map(removed_by).any(|id| !self.may_remove(id))
    }

    /// Returns the index of the first entry that is not committed and removes a member that is in step.
    fn removal_under_way(&self) -> Option<u64> {
        let raft = &self.raw.raft;
        if !raft.has_pending_conf() || planted::is(Bug::WitnessOutlivesTheData) {
            return None;
        }
        let log = &raft.raft_log;
        let unstable = &log.unstable;
        let stable = self.raw.store().between(log.committed, unstable.offset.saturating_sub(1));
        let entries = stable.chain(unstable.entries.iter().filter(|entry| entry.index > log.committed));
        let (own, witness) = (self.config.id.0, self.witness.id());
        let mut removals = entries.filter(|entry| {
            removed_by(entry)
                .is_some_and(|id| id.0 != witness && (id.0 == own || self.witness.is_in_step(id.0)))
        });
        removals.next().map(|entry| entry.index)
    }

    /// Brings up to date what this leader may send to the witness, and sends it.
    pub(super) fn settle_witness(&mut self) {
        let id = self.witness.id();
        if id == 0 {
            self.held = None;
            return;
        }
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            self.held = None;
            self.witness.stop_leading();
            return;
        }
        let removal = self.removal_under_way();
        let prs = raft.prs();
        let is_voter = |member: u64| member != id && prs.conf().voters().contains(member);
        let mut voters: Vec<(u64, u64)> = prs
            .iter()
            .filter(|(member, _)| is_voter(**member))
            .map(|(member, progress)| (*member, progress.matched))
            .collect();
        voters.sort_unstable();
        // The witness has a vote only once the change that adds it is applied.
        let votes = voters.len() + usize::from(prs.conf().voters().contains(id));
        self.witness.look(&Moment {
            own: self.config.id.0,
            term: raft.term,
            tick: self.ticks,
            timeout: self.config.election_ticks as u64,
            committed: raft.raft_log.committed,
            last: raft.raft_log.last_index(),
            voters: &voters,
            quorum: votes / 2 + 1,
            removal,
        });
        self.release();
    }

    /// Sends the witness the entries that were held back and that it may have now.
    fn release(&mut self) {
        let id = self.witness.id();
        let Some(held) = self.held else { return };
        let raft = &self.raw.raft;
        let replicates =
            raft.prs().get(id).is_some_and(|progress| progress.state == raft::ProgressState::Replicate);
        if !replicates {
            // Raft finds out what the witness has, and makes the appends again.
            self.held = None;
            return;
        }
        let through = held.last.min(self.witness.sendable());
        let mut first = held.first;
        let mut appends = Vec::new();
        while first <= through {
            let log = &raft.raft_log;
            let in_memory = first > self.raw.store().before_index;
            let entries = log.slice(first, through + 1, APPEND_BYTES_MAX, GetEntriesContext::empty(false));
            let (Some(entries), Ok(log_term)) =
                (entries.ok().filter(|entries| in_memory && !entries.is_empty()), log.term(first - 1))
            else {
                // These entries were dropped from memory: raft makes the appends again.
                self.held = None;
                if let Some(progress) = self.raw.raft.mut_prs().get_mut(id) {
                    progress.become_probe();
                }
                return;
            };
            let mut append = eraftpb::Message {
                to: id,
                from: self.config.id.0,
                term: raft.term,
                index: first - 1,
                log_term,
                commit: held.commit.max(log.committed),
                ..Default::default()
            };
            append.set_msg_type(MessageType::MsgAppend);
            first += entries.len() as u64;
            append.set_entries(entries.into());
            appends.push(append);
        }
        self.held = (first <= held.last).then_some(Held { first, ..held });
        let persisted = raft.raft_log.persisted;
        for mut append in appends {
            strip(&mut append);
            self.outbox.post(append, persisted);
        }
    }

    /// Takes an append that raft has made for the witness. Returns what may be sent now; the rest is held back.
    pub(super) fn for_witness(&mut self, mut append: eraftpb::Message) -> Option<eraftpb::Message> {
        let before = append.index;
        if let Some(held) = &mut self.held {
            if before == held.last {
                // What follows held entries waits with them; an append that only tells the commit index, too.
                held.last = append.entries.last().map_or(held.last, |entry| entry.index);
                held.commit = held.commit.max(append.commit);
                return None;
            }
            // Raft has begun again at another place.
            self.held = None;
        }
        let sendable = self.witness.sendable();
        let last = append.entries.last().map_or(before, |entry| entry.index);
        let progress = self.raw.raft.prs().get(append.to);
        let replicates = progress.is_some_and(|progress| progress.state == raft::ProgressState::Replicate);
        if last > sendable && !append.entries.is_empty() {
            let mut entries = append.take_entries().into_vec();
            entries.retain(|entry| entry.index <= sendable);
            if replicates {
                let first = entries.last().map_or(before, |entry| entry.index) + 1;
                self.held = Some(Held { first, last, commit: append.commit });
                if entries.is_empty() {
                    return None;
                }
            }
            append.set_entries(entries.into());
        }
        strip(&mut append);
        Some(append)
    }

    /// Empties the payloads of an append that this witness has received.
    pub(super) fn prepare_for_witness(&self, message: &mut eraftpb::Message) {
        use MessageType as M;
        if !self.config.is_witness {
            return;
        }
        match message.get_msg_type() {
            M::MsgAppend => strip(message),
            M::MsgRequestVote | M::MsgRequestPreVote if planted::is(Bug::WitnessVotesBehind) => {
                let log = &self.raw.raft.raft_log;
                (message.index, message.log_term) = (log.last_index(), log.last_term());
            }
            _ => {}
        }
    }

    /// Returns true if this node must not campaign because it is a witness.
    pub(super) fn never_leads(&self) -> bool {
        (self.config.is_witness || self.config.id.0 == self.witness.id())
            && !planted::is(Bug::WitnessCampaigns)
    }
}

/// A message of another member, as far as it says something about that member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub kind: MessageType,
    pub from: u64,
    pub term: u64,
    pub reject: bool,
}

/// Returns the member that an entry removes, if it removes one.
fn removed_by(entry: &eraftpb::Entry) -> Option<MemberId> {
    let is_change = entry.entry_type == EntryType::EntryConfChange;
    let change = is_change.then(|| wire::decode_conf_change(&entry.context).ok())??;
    (change.kind == ConfChangeKind::Remove).then_some(change.node)
}

/// Empties the payloads of entries that a witness does not need.
fn strip(message: &mut eraftpb::Message) {
    for entry in message.mut_entries().iter_mut() {
        if entry.entry_type == EntryType::EntryNormal && !concerns_members(&entry.data) {
            entry.data = Bytes::new();
        }
    }
}

/// Returns true if the payload of an entry changes what a witness knows: the cluster version, the attributes of
/// members, their alarms, or a downgrade. A payload that cannot be decoded changes nothing on any member.
fn concerns_members(mut data: &[u8]) -> bool {
    while !data.is_empty() {
        let Ok((field, wire)) = decode_key(&mut data) else { return false };
        if field == ALARM || OF_MEMBERS.contains(&field) {
            return true;
        }
        if skip_field(wire, field, &mut data, DecodeContext::default()).is_err() {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::{InternalRaftRequest, PutRequest};
    use api::membershippb::{ClusterVersionSetRequest, DowngradeInfoSetRequest};
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_witness_keeps_what_concerns_members() {
        let kept = |request: InternalRaftRequest| concerns_members(&request.encode_to_vec());
        let header = Some(api::etcdserverpb::RequestHeader { id: 7, ..Default::default() });
        let put = Some(PutRequest { key: "k".into(), value: vec![1; 1000].into(), ..Default::default() });
        assert!(!kept(InternalRaftRequest { header: header.clone(), put, ..Default::default() }));
        let ver = Some(ClusterVersionSetRequest { ver: "3.7.0".into() });
        assert!(kept(InternalRaftRequest { header, cluster_version_set: ver, ..Default::default() }));
        let alarm = Some(api::etcdserverpb::AlarmRequest { alarm: 1, ..Default::default() });
        assert!(kept(InternalRaftRequest { alarm, ..Default::default() }));
        let set = Some(DowngradeInfoSetRequest::default());
        assert!(kept(InternalRaftRequest { downgrade_info_set: set, ..Default::default() }));
        assert!(!concerns_members(b"") && !concerns_members(&[0xff; 20]) && !concerns_members(&[0x0a, 0xff]));
    }
}
