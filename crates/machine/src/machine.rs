//! The state machine: one deterministic `apply`. [`Machine::apply`] takes an entry as a [`Command`] and returns what it did as
//! [`Applied`]; `dispatch` has a function for each kind of request. It knows no raft, clock, file or client; values come from
//! the reader that the caller hands in.

use std::collections::BTreeMap;

use api::error;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, CompactionRequest, DeleteRangeRequest, InternalRaftRequest,
    LeaseCheckpointRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest, TxnRequest,
};
use api::membershippb::{ClusterMemberAttrSetRequest, ClusterVersionSetRequest, DowngradeInfoSetRequest};
use api::raftpb;
use api::{Code, Status};
use bytes::Bytes;
use mvcc::{KeyRange, Location, RevisionError, Snapshot, Store, Value, Version, Writer};
use numbers::{ChangeId, Index, LeaseId, MemberId, Revision, Seconds, Term};
use planted::{Bug, Measure};
use prost::Message as _;

use crate::alarm::Alarms;
use crate::auth::{Auth, AuthChange, RightsCache};
use crate::check;
use crate::key_value::{Projection, StoredKeyValue, Values};
use crate::lease::Leases;
use crate::member::Members;
use crate::range::{Failure, refused};
use crate::reconfiguration;
use crate::request;
use crate::sliced::{Budget, Unfinished, Work};
use crate::state_hash::{Effect, StateHash, StatePoint, StateTrail};
use crate::txn::{self, Deleted, OpOutcome, Past, Path, Ranged, Read, TxnOutcome};

/// Options of a member that affect applying. They count only for entries that do not carry them.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Maximum number of learners at the same time; etcd's `--max-learners`. It applies to a learner that was proposed by
    /// a member running etcd, or an older version of this program: etcd's members also judge it by their own option.
    pub learners_max: usize,
}

/// A committed entry.
#[derive(Clone, Copy)]
pub struct Command<'a> {
    /// Index of the entry in the log.
    pub index: Index,
    /// The term of that entry.
    pub term: Term,
    /// The bytes of an `InternalRaftRequest` or, for a membership change, of etcd's `ConfChange`.
    pub data: &'a Bytes,
    /// Location of the first byte of `data` in the log.
    pub location: Location,
}

impl std::fmt::Debug for Command<'_> {
    /// The request is told by its length: values, and hashes of passwords, are in it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Command { index, term, data, location } = self;
        f.debug_struct("Command")
            .field("index", index)
            .field("term", term)
            .field("bytes", &data.len())
            .field("location", location)
            .finish()
    }
}

/// The entry cannot be applied, and so nothing after it can: the member has to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The entry.
    pub index: Index,
    /// Text for the operator: what is wrong, and what to do.
    pub why: String,
    /// True if the entry is sound, but a value that it depends on could not be read on this member. The machine is as it
    /// was before the entry, and other members may be able to apply it.
    pub is_unreadable: bool,
}

impl std::fmt::Display for Fatal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot apply entry {}: {}", self.index, self.why)
    }
}

impl std::error::Error for Fatal {}

/// The result of an entry, for its proposer. It is moved several times on its way to its client, so what is large
/// and rare in it lies behind a pointer.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A put.
    Put {
        /// The revision written.
        revision: Revision,
        /// Previous key-value pair, if it was asked for.
        previous: Option<Box<StoredKeyValue>>,
    },
    /// A delete.
    DeleteRange(Deleted),
    /// A transaction.
    Txn(TxnOutcome),
    /// A compaction; the removal of what it made unreadable goes on behind it.
    Compacted,
    /// A lease with this TTL in seconds.
    LeaseGranted {
        /// Id of the lease.
        id: LeaseId,
        /// TTL of the lease, in seconds.
        ttl: Seconds,
    },
    /// A lease is gone, with its keys.
    LeaseRevoked,
    /// Times left were noted.
    LeaseCheckpointed,
    /// The alarms that the request is about.
    Alarms(Vec<AlarmMember>),
    /// A user has authenticated; a simple token ends with this index.
    Authenticated {
        /// The entry.
        index: Index,
    },
    /// The entry was applied and has no answer of its own.
    Done,
}

impl Outcome {
    /// Returns true if its answer holds what was there before, or what was read: that must stay readable until it is
    /// answered.
    pub fn names_values(&self) -> bool {
        match self {
            Outcome::Put { previous, .. } => previous.is_some(),
            Outcome::DeleteRange(deleted) => deleted.previous.names_values(),
            Outcome::Txn(txn) => txn.names_values(),
            _ => false,
        }
    }

    /// Returns true if something is left to be read by the answering side, in the state right behind the entry.
    pub fn reads_later(&self) -> bool {
        match self {
            Outcome::DeleteRange(deleted) => matches!(deleted.previous, Read::Past(_)),
            Outcome::Txn(txn) => txn.reads_later(),
            _ => false,
        }
    }
}

// Up to 128 bytes are moved without a call.
const _: () = assert!(size_of::<Applied>() <= 128);

/// A change beside keys and values, for callers that keep their own record of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A lease exists now.
    LeaseGranted {
        /// Id of the lease.
        id: LeaseId,
        /// TTL of the lease in seconds.
        ttl: Seconds,
    },
    /// A lease is gone.
    LeaseRevoked(LeaseId),
    /// The compact revision rose.
    Compacted(Revision),
    /// An alarm was raised or cleared.
    Alarms(Option<Raised>),
    /// A member's attributes or the cluster's version changed.
    Members,
    /// Users or roles changed, or somebody has authenticated.
    Auth(Box<AuthChange>),
}

/// An alarm that was not raised before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Type of the alarm, etcd's number.
    pub alarm: i32,
    /// The member for which it was raised.
    pub member_id: u64,
    /// Why, as the entry has it for that member; no part of the state.
    pub cause: u32,
}

/// A committed entry's effect.
#[derive(Debug, PartialEq)]
pub struct Applied {
    /// The id under which it was proposed; 0 for a leader's empty entry.
    pub request_id: u64,
    /// etcd's name of the request; empty for a leader's empty entry, [`UNDECODABLE`] for an entry that is no request and
    /// therefore changes nothing.
    pub op: &'static str,
    /// Result for the client.
    pub outcome: Result<Outcome, Status>,
    /// Change beside keys and values.
    pub change: Option<Change>,
}

/// Effect of a membership change on the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoterChange {
    /// A voter was added, or a learner promoted.
    AddVoter(MemberId),
    /// A learner was added.
    AddLearner(MemberId),
    /// A member left.
    Remove(MemberId),
    /// The set of members did not change; the attributes of this one did.
    Update(MemberId),
}

/// A committed membership change's effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfApplied {
    /// The id under which it was proposed.
    pub request_id: u64,
    /// The change, or why there was none: raft is then told of a change of node 0, as in etcd.
    pub outcome: Result<VoterChange, Status>,
}

/// The bytes of one segment that the index still points at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentUse {
    /// Values.
    pub values: u64,
    /// Bytes of the live values.
    pub bytes: u64,
}

/// The replicated state of one member.
pub struct Machine {
    rules: Rules,
    /// Keys and values.
    pub store: Store,
    /// Leases.
    pub leases: Leases,
    /// Alarms.
    pub alarms: Alarms,
    /// Members.
    pub members: Members,
    /// Users and roles.
    pub auth: Auth,
    pub(crate) rights: RightsCache,
    /// The last entry applied.
    pub applied_index: Index,
    /// The term of that entry.
    pub applied_term: Term,
    pub(crate) usage: BTreeMap<u32, SegmentUse>,
    pub(crate) in_use_bytes: u64,
    /// The highest main revision of a deletion that compaction has physically removed; see [`crate::image::Head`].
    pub(crate) delta_from_min: Revision,
    pub(crate) hash: StateHash,
    /// The entry behind the last one applied, as long as it is not whole.
    pub(crate) unfinished: Option<Box<Unfinished>>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("applied_index", &self.applied_index)
            .field("revision", &self.store.current_revision())
            .finish_non_exhaustive()
    }
}

/// The bytes that a version counts for: its key, its value, and what the index and the log keep about it.
pub(crate) fn version_bytes(version: Version<'_>) -> u64 {
    loaded_bytes(version.key(), version.value_len())
}

/// Returns the bytes in use of a version that is still to be loaded.
pub(crate) fn loaded_bytes(key: &[u8], value_len: u32) -> u64 {
    64 + key.len() as u64 + u64::from(value_len)
}

/// The accounting that every write and removal keeps up to date.
pub(crate) struct Accounting<'a> {
    leases: &'a mut Leases,
    usage: &'a mut BTreeMap<u32, SegmentUse>,
    in_use_bytes: &'a mut u64,
    hash: &'a mut StateHash,
}

impl Accounting<'_> {
    fn added(&mut self, change: &mvcc::Change<'_>) {
        self.hash.key_changed(change);
        let version = change.version;
        *self.in_use_bytes += version_bytes(version);
        if version.value_len() > 0 {
            let usage = self.usage.entry(version.location().segment).or_default();
            usage.values += 1;
            usage.bytes += u64::from(version.value_len());
        }
    }
}

impl Machine {
    /// An empty state.
    pub fn new(rules: Rules) -> Machine {
        Machine::with_store(rules, Store::new())
    }

    pub(crate) fn with_store(rules: Rules, store: Store) -> Machine {
        Machine {
            rules,
            store,
            leases: Leases::default(),
            alarms: Alarms::default(),
            members: Members::default(),
            auth: Auth::default(),
            rights: RightsCache::default(),
            applied_index: Index(0),
            applied_term: Term(0),
            usage: BTreeMap::new(),
            in_use_bytes: 0,
            delta_from_min: Revision(0),
            hash: StateHash::first(),
            unfinished: None,
        }
    }

    /// The bytes of everything that is not compacted away, with leases and their keys: what the quota is held against.
    pub fn in_use_bytes(&self) -> u64 {
        self.bytes_before().unwrap_or_else(|| self.in_use_bytes + self.leases.bytes())
    }

    /// Returns the live values of each segment of the log.
    pub fn usage(&self) -> &BTreeMap<u32, SegmentUse> {
        &self.usage
    }

    /// The rolling hash of all that entries changed up to the last one applied. `None` when it cannot be known,
    /// since an image of a version without it was at the beginning: that compares with nothing.
    pub fn state_hash(&self) -> Option<u64> {
        self.hash_before().unwrap_or_else(|| self.hash.value())
    }

    /// The hash as it was after the entry `from_index`, if that is still remembered, and after each entry behind it
    /// that changed anything; the last [`crate::STATE_POINTS_MAX`] are. Empty when the hash is not known.
    pub fn state_hashes(&self, from_index: Index) -> impl ExactSizeIterator<Item = StatePoint> + '_ {
        self.hash.points(from_index)
    }

    /// Returns the hashes of the state after the entries from this index on, to be compared with another member's.
    pub fn state_trail(&self, from_index: Index) -> StateTrail {
        self.newest_state_trail(from_index, usize::MAX)
    }

    /// Returns the newest `points_max` points of [`Machine::state_trail`].
    pub fn newest_state_trail(&self, from_index: Index, points_max: usize) -> StateTrail {
        let points = self.state_hashes(from_index);
        let older = points.len().saturating_sub(points_max);
        StateTrail { applied_index: self.applied_index, points: points.skip(older).collect() }
    }

    /// Applies a committed entry. With `answer` false nothing is noted of what it read.
    ///
    /// # Errors
    ///
    /// As [`Machine::apply_for`].
    pub fn apply(
        &mut self,
        command: Command<'_>,
        values: &dyn Values,
        answer: bool,
    ) -> Result<Applied, Fatal> {
        self.apply_for(command, values, |_| answer)
    }

    /// Applies a committed entry. `waits` says whether a request waits for the entry proposed under an id: if not, nothing
    /// is noted of what it read. What ranges inside transactions found is left to the answering side, see
    /// [`txn::Read::Past`], and to be read in the state right behind the entry or in one that is not compacted further.
    ///
    /// # Errors
    ///
    /// When the entry is of a kind that this version does not know, or a value it depends on cannot be read. Nothing has
    /// changed then.
    pub fn apply_for(
        &mut self,
        command: Command<'_>,
        values: &dyn Values,
        waits: impl FnOnce(u64) -> bool,
    ) -> Result<Applied, Fatal> {
        let index = command.index;
        let applied = self.begin(command, values, &mut u64::MAX.clone(), waits)?;
        applied.ok_or_else(|| {
            self.unfinished = None;
            Fatal { index, why: Failure::NotAtHand.text(), is_unreadable: true }
        })
    }

    /// Applies an entry as [`Machine::apply_for`] does. But an entry that costs more than this step allows is left for
    /// [`Machine::go_on`], and so is one that depends on a value that is not at hand ([`crate::ReadError::NotAtHand`]);
    /// nothing of it is done then, and `None` is returned.
    ///
    /// `left` is the cost that this step may still have, in about keys, operations and KiB of what is compared. It is
    /// lowered by what was done; with `u64::MAX` no entry costs too much.
    ///
    /// # Errors
    ///
    /// As for [`Machine::apply_for`].
    pub fn begin(
        &mut self,
        command: Command<'_>,
        values: &dyn Values,
        left: &mut u64,
        waits: impl FnOnce(u64) -> bool,
    ) -> Result<Option<Applied>, Fatal> {
        let before = (self.applied_index, self.applied_term);
        self.next(command)?;
        if command.data.is_empty() {
            return Ok(Some(Applied { request_id: 0, op: "", outcome: Ok(Outcome::Done), change: None }));
        }
        let mut request = InternalRaftRequest::default();
        if let Err(why) = request::command(&mut request, command.data) {
            // It follows from the bytes alone, so no member applies it. Nobody can have proposed it and wait for it.
            self.hash.entry_done(self.applied_index, self.store.current_revision());
            let outcome = Err(undecodable(&why));
            return Ok(Some(Applied { request_id: 0, op: UNDECODABLE, outcome, change: None }));
        }
        let request_id = match &request.header {
            Some(header) if header.id != 0 => header.id,
            _ => request.id,
        };
        let answer = waits(request_id);
        let allowed = self.allowed(&request);
        let may_be_long = request.put.is_none() && allowed.is_ok();
        let (cost, work) = if may_be_long { Work::of(self, &request, *left) } else { (1, None) };
        if let Some(work) = work {
            (self.applied_index, self.applied_term) = before;
            self.keep(command, request, (request_id, answer), work);
            return Ok(None);
        }
        if *left < u64::MAX {
            planted::looked_at_more(Measure::Applied, usize::try_from(cost).unwrap_or(usize::MAX));
        }
        if !planted::is(Bug::EntriesAtOnceAreFree) {
            *left = left.saturating_sub(cost);
        }
        let mut change = None;
        let outcome = match self.dispatch(command, &request, allowed, values, answer, &mut change) {
            Ok(outcome) => Ok(outcome),
            Err(Failure::Refused(status)) => Err(status),
            // A transaction's comparisons, before anything has changed.
            Err(Failure::NotAtHand) => {
                (self.applied_index, self.applied_term) = before;
                self.keep(command, request, (request_id, answer), Work::txn());
                return Ok(None);
            }
            Err(failure) => {
                (self.applied_index, self.applied_term) = before;
                let is_unreadable = matches!(failure, Failure::Unreadable(_));
                let why = failure.text();
                return Err(Fatal { index: command.index, why, is_unreadable });
            }
        };
        self.hash.entry_done(self.applied_index, self.store.current_revision());
        Ok(Some(Applied { request_id, op: op_name(&request), outcome, change }))
    }

    fn next(&mut self, command: Command<'_>) -> Result<(), Fatal> {
        assert!(self.unfinished.is_none(), "an entry is whole before the next one");
        assert_eq!(command.index, self.applied_index.next(), "entries are applied in order, each once");
        if command.term < self.applied_term {
            return Err(Fatal {
                index: command.index,
                why: "its term is older than its predecessor's".to_owned(),
                is_unreadable: false,
            });
        }
        self.applied_index = command.index;
        self.applied_term = command.term;
        Ok(())
    }

    /// Applies a request about keys or leases, or leaves it to [`Machine::dispatch_cluster`]. `change` gets what the core has
    /// to hear beside the outcome.
    fn dispatch(
        &mut self,
        command: Command<'_>,
        request: &InternalRaftRequest,
        allowed: Result<(), Status>,
        values: &dyn Values,
        answer: bool,
        change: &mut Option<Change>,
    ) -> Result<Outcome, Failure> {
        if self.alarms.any(AlarmType::Corrupt as i32) && is_refused_when_corrupt(request) {
            return Err(error::CORRUPT.into());
        }
        let own = planted::is(Bug::ApplyDependsOnMember) && self.in_use_bytes > 48 << 10;
        if self.alarms.any(AlarmType::Nospace as i32) && takes_space(request) || own && request.put.is_some()
        {
            return Err(error::NO_SPACE.into());
        }
        allowed?;
        if let Some(put) = &request.put {
            return Ok(self.put(command, put)?);
        }
        if let Some(delete) = &request.delete_range {
            return Ok(Outcome::DeleteRange(self.delete_range(delete, answer)));
        }
        if let Some(txn) = &request.txn {
            return self.txn(command, txn, values, answer);
        }
        if let Some(compaction) = &request.compaction {
            return self.compact(compaction, change);
        }
        if let Some(grant) = &request.lease_grant {
            return Ok(self.lease_grant(grant, change)?);
        }
        if let Some(revoke) = &request.lease_revoke {
            return Ok(self.lease_revoke(revoke, change)?);
        }
        if let Some(checkpoint) = &request.lease_checkpoint {
            return Ok(self.lease_checkpoint(checkpoint));
        }
        self.dispatch_cluster(request, change)
    }

    /// Applies a request about alarms, the cluster's version or the members' attributes.
    fn dispatch_cluster(
        &mut self,
        request: &InternalRaftRequest,
        change: &mut Option<Change>,
    ) -> Result<Outcome, Failure> {
        if let Some(alarm) = &request.alarm {
            return Ok(Outcome::Alarms(self.alarm(alarm, request.alarm_cause, change)));
        }
        if let Some(version) = &request.cluster_version_set {
            self.set_cluster_version(version);
            *change = Some(Change::Members);
            return Ok(Outcome::Done);
        }
        if let Some(set) = &request.cluster_member_attr_set {
            self.set_member_attributes(set);
            *change = Some(Change::Members);
            return Ok(Outcome::Done);
        }
        if let Some(set) = &request.downgrade_info_set {
            self.set_downgrade(set);
            *change = Some(Change::Members);
            return Ok(Outcome::Done);
        }
        if request.downgrade_version_test.is_some() {
            // Tests of etcd 3.6 write it to logs, and it does nothing.
            return Ok(Outcome::Done);
        }
        if request.range.is_some() {
            // etcd before 3.1 sent reads through the log; they change nothing.
            return Ok(Outcome::Done);
        }
        if let Some(outcome) = self.apply_auth(self.applied_index, request, change) {
            return Ok(outcome?);
        }
        Err(Failure::Unknown(
            "it holds a request that this version does not know; start the version that wrote it".to_owned(),
        ))
    }

    fn lease_grant(
        &mut self,
        grant: &LeaseGrantRequest,
        change: &mut Option<Change>,
    ) -> Result<Outcome, Status> {
        let ttl = self.leases.grant(LeaseId(grant.id), Seconds(grant.ttl))?;
        self.hash.mix(Effect::LeaseGranted, &[grant.id as u64, grant.ttl as u64]);
        *change = Some(Change::LeaseGranted { id: LeaseId(grant.id), ttl });
        Ok(Outcome::LeaseGranted { id: LeaseId(grant.id), ttl })
    }

    /// Notes the time left of leases that still exist.
    fn lease_checkpoint(&mut self, checkpoint: &LeaseCheckpointRequest) -> Outcome {
        for lease in &checkpoint.checkpoints {
            self.leases.checkpoint(LeaseId(lease.id), Seconds(lease.remaining_ttl));
        }
        Outcome::LeaseCheckpointed
    }

    fn set_cluster_version(&mut self, version: &ClusterVersionSetRequest) {
        if self.members.cluster_version != version.ver {
            self.members.cluster_version = version.ver.clone();
            self.hash.mix(Effect::ClusterVersion, &[]);
            self.hash.mix_texts([&version.ver]);
        }
    }

    /// Sets the name and the client URLs of a member, if it still is one.
    fn set_member_attributes(&mut self, set: &ClusterMemberAttrSetRequest) {
        if let Some(member) = self.members.by_id.get_mut(&set.member_id)
            && let Some(attributes) = &set.member_attributes
            && (member.name != attributes.name || member.client_urls != attributes.client_urls)
        {
            member.name = attributes.name.clone();
            member.client_urls = attributes.client_urls.clone();
            self.hash.mix(Effect::MemberAttributes, &[set.member_id]);
            self.hash.mix_texts(std::iter::once(&member.name).chain(&member.client_urls));
        }
    }

    fn set_downgrade(&mut self, set: &DowngradeInfoSetRequest) {
        let target = set.enabled.then(|| set.ver.clone());
        if self.members.downgrade_target != target {
            self.hash.mix(Effect::Downgrade, &[]);
            self.hash.mix_texts(&target);
            self.members.downgrade_target = target;
        }
    }

    fn put(&mut self, command: Command<'_>, put: &PutRequest) -> Result<Outcome, Status> {
        if put.lease != 0 && self.leases.get(LeaseId(put.lease)).is_none() {
            return Err(error::LEASE_NOT_FOUND);
        }
        txn::check_put(&self.store.snapshot(), &self.leases, put)?;
        let (mut writer, mut accounting) = self.writing();
        let previous = write_put(&mut writer, &mut accounting, command, put);
        let revision = writer.finish();
        Ok(Outcome::Put { revision, previous })
    }

    /// Returns the writer of the store and the accounting that go with an entry.
    pub(crate) fn writing(&mut self) -> (Writer<'_>, Accounting<'_>) {
        let accounting = Accounting {
            leases: &mut self.leases,
            usage: &mut self.usage,
            in_use_bytes: &mut self.in_use_bytes,
            hash: &mut self.hash,
        };
        (self.store.begin(), accounting)
    }

    fn delete_range(&mut self, delete: &DeleteRangeRequest, answer: bool) -> Deleted {
        let (mut writer, mut accounting) = self.writing();
        let mut deleted = write_delete(&mut writer, &mut accounting, delete, answer);
        deleted.revision = writer.finish();
        deleted
    }

    fn txn(
        &mut self,
        command: Command<'_>,
        request: &TxnRequest,
        values: &dyn Values,
        answer: bool,
    ) -> Result<Outcome, Failure> {
        let snapshot = self.store.snapshot();
        let path = txn::choose(&snapshot, request, values)?;
        txn::check_path(&snapshot, &self.leases, request, &path)?;
        let (mut writer, mut accounting) = self.writing();
        let mut run =
            Run { writer: &mut writer, accounting: &mut accounting, command, answer, known: txn::KNOWN_MAX };
        let mut outcome = run.branch(request, &path)?;
        outcome.revision = writer.finish();
        Ok(Outcome::Txn(outcome))
    }

    fn compact(
        &mut self,
        request: &CompactionRequest,
        change: &mut Option<Change>,
    ) -> Result<Outcome, Failure> {
        self.store.compact(Revision(request.revision)).map_err(|e: RevisionError| refused(e))?;
        self.hash.mix(Effect::Compacted, &[request.revision as u64]);
        *change = Some(Change::Compacted(Revision(request.revision)));
        Ok(Outcome::Compacted)
    }

    /// Removes a slice of what a compaction made unreadable; says whether that was all.
    pub fn compact_step(&mut self, budget: u64) -> bool {
        self.compact_step_through(Revision::MAX, budget)
    }

    /// Removes versions as [`Machine::compact_step`] does, but only what a compaction at `through` would, since a reader
    /// needs the rest.
    pub fn compact_step_through(&mut self, through: Revision, budget: u64) -> bool {
        assert!(self.is_whole(), "nothing is removed amid an entry");
        let (usage, in_use_bytes) = (&mut self.usage, &mut self.in_use_bytes);
        let delta_from_min = &mut self.delta_from_min;
        let progress = self.store.compact_step_through(through, budget, |version| {
            if version.is_tombstone() {
                *delta_from_min = (*delta_from_min).max(version.main());
            }
            *in_use_bytes = in_use_bytes.saturating_sub(version_bytes(version));
            if version.value_len() > 0
                && let Some(usage) = usage.get_mut(&version.location().segment)
            {
                usage.values = usage.values.saturating_sub(1);
                usage.bytes = usage.bytes.saturating_sub(u64::from(version.value_len()));
            }
        });
        progress.done
    }

    /// Notes that the value of a version was copied to another segment; says whether anybody still wanted it.
    pub fn relocate(&mut self, change: ChangeId, from: Location, to: Location) -> bool {
        let snapshot = self.store.snapshot();
        let Some(version) = snapshot.version_at(change) else { return false };
        if version.location() != from || version.value_len() == 0 {
            return false;
        }
        let bytes = u64::from(version.value_len());
        version.set_location(to);
        if let Some(old) = self.usage.get_mut(&from.segment) {
            old.values = old.values.saturating_sub(1);
            old.bytes = old.bytes.saturating_sub(bytes);
        }
        if planted::is(Bug::MovedValueNotCounted) {
            return true;
        }
        let new = self.usage.entry(to.segment).or_default();
        new.values += 1;
        new.bytes += bytes;
        true
    }

    fn lease_revoke(
        &mut self,
        request: &LeaseRevokeRequest,
        change: &mut Option<Change>,
    ) -> Result<Outcome, Status> {
        let lease = self.leases.revoke(LeaseId(request.id)).ok_or(error::LEASE_NOT_FOUND)?;
        *change = Some(Change::LeaseRevoked(LeaseId(request.id)));
        self.hash.mix(Effect::LeaseRevoked, &[request.id as u64, lease.keys.len() as u64]);
        // The lease is gone, and with it what the accounting says of its keys.
        let keys = lease.keys.iter().map(|(key, ())| (key.clone(), ()));
        self.delete_keys(keys, &mut Budget::endless());
        Ok(Outcome::LeaseRevoked)
    }

    fn alarm(&mut self, request: &AlarmRequest, cause: u32, change: &mut Option<Change>) -> Vec<AlarmMember> {
        let one = AlarmMember { member_id: request.member_id, alarm: request.alarm };
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => self.alarms.list(request.alarm, request.member_id),
            Ok(AlarmAction::Activate) if request.alarm != AlarmType::None as i32 => {
                let is_new = self.alarms.raise(request.alarm, request.member_id);
                if is_new {
                    self.hash.mix(Effect::AlarmRaised, &[request.alarm as u64, request.member_id]);
                }
                let raised = Raised { alarm: request.alarm, member_id: request.member_id, cause };
                *change = Some(Change::Alarms(is_new.then_some(raised)));
                vec![one]
            }
            Ok(AlarmAction::Deactivate) if self.alarms.clear(request.alarm, request.member_id) => {
                self.hash.mix(Effect::AlarmCleared, &[request.alarm as u64, request.member_id]);
                *change = Some(Change::Alarms(None));
                vec![one]
            }
            _ => Vec::new(),
        }
    }

    /// Returns true if the membership change of an entry, applied now, would be refused for the number of learners alone, by
    /// [`Rules::learners_max`]: members with a higher limit carry it out. False for bytes that are no change of members.
    pub fn is_refused_by_learners_max(&self, data: &Bytes) -> bool {
        let limit = self.rules.learners_max;
        raftpb::ConfChange::decode(data.clone())
            .is_ok_and(|change| reconfiguration::is_refused_by_learners_max(&self.members, &change, limit))
    }

    /// Applies a committed membership change. One that the members there no longer allow changes nothing and is
    /// answered as etcd does; raft then has to be told that nothing changed.
    ///
    /// # Errors
    ///
    /// When the entry cannot be understood.
    pub fn apply_conf_change(&mut self, command: Command<'_>) -> Result<ConfApplied, Fatal> {
        let fatal = |why: String| Fatal { index: command.index, why, is_unreadable: false };
        self.next(command)?;
        let change = raftpb::ConfChange::decode(command.data.clone())
            .map_err(|e| fatal(format!("it is no membership change: {e}")))?;
        let request_id = change.id.unwrap_or(0);
        // What makes no sense came from outside, with a member's forwarded proposal, and changes nothing.
        let outcome = reconfiguration::read(&change).and_then(|change| {
            change.check(&self.members, self.rules.learners_max)?;
            Ok(change.apply(&mut self.members, &mut self.hash))
        });
        self.hash.entry_done(self.applied_index, self.store.current_revision());
        Ok(ConfApplied { request_id, outcome })
    }
}

/// A chosen branch while it runs. Everything that can fail was checked before.
struct Run<'a, 's, 'b> {
    writer: &'a mut Writer<'s>,
    accounting: &'a mut Accounting<'b>,
    command: Command<'a>,
    answer: bool,
    /// Number of keys that the outcome may still name by itself.
    known: usize,
}

impl Run<'_, '_, '_> {
    fn branch(&mut self, request: &TxnRequest, path: &Path) -> Result<TxnOutcome, Failure> {
        let ops = txn::branch(request, path.succeeded);
        let mut outcome = TxnOutcome {
            revision: Revision(0),
            succeeded: path.succeeded,
            responses: Vec::with_capacity(ops.len()),
        };
        let mut nested = path.nested.iter();
        let cut = planted::is(Bug::TransactionCutShort)
            && ops.len() > 1
            && ops.iter().any(|op| matches!(op.request, Some(Request::RequestDeleteRange(_))));
        for op in &ops[..ops.len() - usize::from(cut)] {
            let done = match &op.request {
                Some(Request::RequestRange(range)) => {
                    OpOutcome::Range(write_range(self.writer, self.answer, &mut self.known, range)?)
                }
                Some(Request::RequestPut(put)) => {
                    let previous = write_put(self.writer, self.accounting, self.command, put);
                    OpOutcome::Put { revision: self.writer.revision(), previous }
                }
                Some(Request::RequestDeleteRange(delete)) => {
                    let mut deleted = write_delete(self.writer, self.accounting, delete, self.answer);
                    deleted.revision = self.writer.snapshot().current_revision();
                    OpOutcome::DeleteRange(deleted)
                }
                Some(Request::RequestTxn(inner)) => {
                    let path = nested.next().ok_or(error::KEY_NOT_FOUND)?;
                    OpOutcome::Txn(self.branch(inner, path)?)
                }
                None => return Err(error::KEY_NOT_FOUND.into()),
            };
            outcome.responses.push(done);
        }
        Ok(outcome)
    }
}

/// Whether an entry is refused while there is no space.
fn takes_space(request: &InternalRaftRequest) -> bool {
    request.put.is_some()
        || request.lease_grant.is_some()
        || request.txn.as_ref().is_some_and(|txn| check::txn_cost(txn) > 0)
}

/// [`Applied::op`] of an entry that is no request.
pub const UNDECODABLE: &str = "Undecodable";

fn undecodable(why: &request::Undecodable) -> Status {
    Status::with(Code::Internal, format!("mainstay: the entry is no request: {why}"))
}

/// etcd's name for what a request asks.
pub(crate) fn op_name(request: &InternalRaftRequest) -> &'static str {
    // Nearly all entries are puts or transactions.
    if request.put.is_some() {
        return "Put";
    }
    if request.txn.is_some() {
        return "Txn";
    }
    let names = [
        (request.delete_range.is_some(), "DeleteRange"),
        (request.compaction.is_some(), "Compaction"),
        (request.lease_grant.is_some(), "LeaseGrant"),
        (request.lease_revoke.is_some(), "LeaseRevoke"),
        (request.lease_checkpoint.is_some(), "LeaseCheckpoint"),
        (request.alarm.is_some(), "Alarm"),
        (request.cluster_version_set.is_some(), "ClusterVersionSet"),
        (request.cluster_member_attr_set.is_some(), "ClusterMemberAttrSet"),
        (request.downgrade_info_set.is_some(), "DowngradeInfoSet"),
        (request.authenticate.is_some(), "Authenticate"),
        (request.auth_enable.is_some(), "AuthEnable"),
        (request.auth_disable.is_some(), "AuthDisable"),
        (request.auth_status.is_some(), "AuthStatus"),
        (request.auth_user_add.is_some(), "AuthUserAdd"),
        (request.auth_user_delete.is_some(), "AuthUserDelete"),
        (request.auth_user_get.is_some(), "AuthUserGet"),
        (request.auth_user_list.is_some(), "AuthUserList"),
        (request.auth_user_change_password.is_some(), "AuthUserChangePassword"),
        (request.auth_user_grant_role.is_some(), "AuthUserGrantRole"),
        (request.auth_user_revoke_role.is_some(), "AuthUserRevokeRole"),
        (request.auth_role_add.is_some(), "AuthRoleAdd"),
        (request.auth_role_delete.is_some(), "AuthRoleDelete"),
        (request.auth_role_get.is_some(), "AuthRoleGet"),
        (request.auth_role_list.is_some(), "AuthRoleList"),
        (request.auth_role_grant_permission.is_some(), "AuthRoleGrantPermission"),
        (request.auth_role_revoke_permission.is_some(), "AuthRoleRevokePermission"),
    ];
    names.into_iter().find_map(|(there, name)| there.then_some(name)).unwrap_or("Unknown")
}

/// Returns the location, length and checksum of a slice of the entry's data.
fn value_of(command: Command<'_>, bytes: &Bytes) -> Value {
    if bytes.is_empty() {
        return Value::default();
    }
    let (start, end) = (command.data.as_ptr() as usize, command.data.as_ptr() as usize + command.data.len());
    let at = bytes.as_ptr() as usize;
    assert!(at >= start && at + bytes.len() <= end, "the value is a slice of its entry");
    Value {
        location: Location {
            segment: command.location.segment,
            offset: command.location.offset + (at - start) as u32,
        },
        len: bytes.len() as u32,
        crc: crc32c::crc32c(bytes),
    }
}

pub(crate) fn write_put(
    writer: &mut Writer<'_>,
    accounting: &mut Accounting<'_>,
    command: Command<'_>,
    put: &PutRequest,
) -> Option<Box<StoredKeyValue>> {
    let kept = (put.ignore_value || put.ignore_lease)
        .then(|| present(&writer.snapshot(), &put.key))
        .flatten()
        .map(|version| (version.value(), version.lease()));
    let value = match kept {
        Some((value, _)) if put.ignore_value => value,
        _ => value_of(command, &put.value),
    };
    let lease = match kept {
        Some((_, lease)) if put.ignore_lease => lease,
        _ => LeaseId(put.lease),
    };
    let change = writer.put(&put.key, value, lease);
    accounting.added(&change);
    let previous_lease = change.previous.map_or(LeaseId::NONE, Version::lease);
    let previous =
        change.previous.filter(|_| put.prev_kv).map(|version| Box::new(StoredKeyValue::of(version)));
    accounting.leases.attach(&put.key, previous_lease, lease);
    previous
}

fn present<'a>(snapshot: &Snapshot<'a>, key: &[u8]) -> Option<Version<'a>> {
    // Revision 0 is the current one, which can always be read.
    snapshot.get(key, Revision::CURRENT).ok().flatten()
}

/// A range amid a transaction.
pub(crate) fn write_range(
    writer: &Writer<'_>,
    answer: bool,
    known: &mut usize,
    range: &RangeRequest,
) -> Result<Ranged, Status> {
    let (snapshot, changes) = (writer.snapshot(), writer.changes());
    if answer {
        return txn::read_range(&snapshot, changes, range, known);
    }
    let revision = snapshot.current_revision();
    Ok(Ranged { revision, projection: Projection::default(), read: Read::NOTHING })
}

fn write_delete(
    writer: &mut Writer<'_>,
    accounting: &mut Accounting<'_>,
    delete: &DeleteRangeRequest,
    answer: bool,
) -> Deleted {
    let mut deletion = Deletion::begin(writer);
    deletion.go_on(writer, accounting, delete, answer, &mut Budget::endless());
    deletion.end(delete)
}

/// A deletion that is under way.
pub(crate) struct Deletion {
    /// Main revision of its first change.
    first: ChangeId,
    /// The key behind which it goes on.
    behind: Option<Box<[u8]>>,
    deleted: u64,
    /// The first of what it deleted, if that is to be answered.
    previous: Option<StoredKeyValue>,
}

impl Deletion {
    pub fn begin(writer: &Writer<'_>) -> Deletion {
        let first = ChangeId { main: writer.revision(), sub: writer.changes() };
        Deletion { first, behind: None, deleted: 0, previous: None }
    }

    /// Deletes the next keys; says whether that was all.
    pub fn go_on(
        &mut self,
        writer: &mut Writer<'_>,
        accounting: &mut Accounting<'_>,
        delete: &DeleteRangeRequest,
        answer: bool,
        budget: &mut Budget,
    ) -> bool {
        let wanted = answer && delete.prev_kv;
        let previous = &mut self.previous;
        let range = KeyRange::of_request(&delete.key, &delete.range_end);
        let range = self.behind.as_deref().map_or(range, |key| range.after(key));
        let some = writer.delete_some(range, |change| {
            accounting.added(&change);
            // The key is copied and hashed.
            budget.spend(1, 2 * change.version.key().len() as u64);
            if let Some(gone) = change.previous {
                accounting.leases.detach(gone.key(), gone.lease());
                if wanted && previous.is_none() {
                    *previous = Some(StoredKeyValue::of(gone));
                }
            }
            !budget.is_spent()
        });
        self.deleted += some.count;
        self.behind = some.stopped_at.filter(|_| !planted::is(Bug::SlicedDeletionCutShort));
        self.behind.is_none()
    }

    /// Returns the result of the deletion, without the revision.
    pub fn end(&mut self, delete: &DeleteRangeRequest) -> Deleted {
        let previous = match self.previous.take() {
            Some(first) if self.deleted == 1 => Read::Known { found: vec![first], more: false, count: 1 },
            // They are those that were there before the first of them went.
            Some(_) => {
                let (key, range_end) = (delete.key.clone(), delete.range_end.clone());
                Read::Past(Box::new(Past {
                    request: RangeRequest { key, range_end, ..RangeRequest::default() },
                    before: self.first,
                }))
            }
            None => Read::NOTHING,
        };
        Deleted { revision: Revision(0), deleted: self.deleted as i64, previous }
    }
}

/// Returns true for a request that is not applied while the CORRUPT alarm is raised.
fn is_refused_when_corrupt(request: &InternalRaftRequest) -> bool {
    request.put.is_some()
        || request.range.is_some()
        || request.delete_range.is_some()
        || request.txn.is_some()
        || request.compaction.is_some()
        || request.lease_grant.is_some()
        || request.lease_revoke.is_some()
}
