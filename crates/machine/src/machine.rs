//! The deterministic state machine, which applies committed log entries. [`Machine::apply`] takes an entry as
//! a [`Command`] and returns its effect as [`Applied`]; `dispatch` calls one function per kind of request.
//! The module does not depend on raft, clocks, files or clients; the caller passes in a reader of values.

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
use numbers::{ChangeId, Index, LeaseId, Revision, Seconds, Term};
use planted::{Bug, Measure};
use prost::Message as _;

use crate::alarm::Alarms;
use crate::auth::{Auth, AuthChange, RightsCache};
use crate::check;
use crate::key_value::{Projection, StoredKeyValue, Values};
use crate::lease::Leases;
use crate::member::Members;
use crate::range::{Failure, refused};
use crate::reconfiguration::{self, VoterChange};
use crate::request;
use crate::sliced::{Budget, Unfinished, Work};
use crate::state_hash::{Effect, StateHash, StatePoint, StateTrail};
use crate::txn::{self, Deleted, OpOutcome, Past, Path, Ranged, Read, TxnOutcome};

/// Options of this member that affect how entries are applied. If an entry itself contains the value of an
/// option, the entry is applied with that value instead.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Maximum number of learners at the same time; etcd's `--max-learners`. Used only for a new learner
    /// whose entry does not contain the limit, because the entry was proposed by a member that runs etcd or
    /// an older release of Mainstay. Members that run etcd always use their own option.
    pub learners_max: usize,
}

/// A committed log entry, as input of [`Machine::apply`].
#[derive(Clone, Copy)]
pub struct Command<'a> {
    /// Index of the entry in the log.
    pub index: Index,
    /// Raft term of the entry.
    pub term: Term,
    /// Bytes of an `InternalRaftRequest` or, for a membership change, of etcd's `ConfChange`.
    pub data: &'a Bytes,
    /// Location of the first byte of `data` in the log.
    pub location: Location,
}

impl std::fmt::Debug for Command<'_> {
    /// Formats the request only as its length, because the request may contain values and password hashes.
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

/// Error of an entry that cannot be applied. No later entry can be applied either, so the member must stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// Log index of the entry.
    pub index: Index,
    /// Text for the operator: the problem, and what to do about it.
    pub why: String,
    /// True if the entry is valid, but a value that it depends on could not be read on this member. The
    /// machine is in the state before the entry, and other members may be able to apply it.
    pub is_unreadable: bool,
}

impl std::fmt::Display for Fatal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot apply entry {}: {}", self.index, self.why)
    }
}

impl std::error::Error for Fatal {}

/// Result of an entry for the request that proposed it. The result is moved several times between threads, so
/// large and rare parts are boxed.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Result of a put.
    Put {
        /// Revision of the put.
        revision: Revision,
        /// Previous key-value pair, if the request asked for it.
        previous: Option<Box<StoredKeyValue>>,
    },
    /// Result of a delete.
    DeleteRange(Deleted),
    /// Result of a transaction.
    Txn(TxnOutcome),
    /// A compaction was accepted; the compacted versions are removed in the background.
    Compacted,
    /// A lease was granted.
    LeaseGranted {
        /// Id of the lease.
        id: LeaseId,
        /// TTL of the lease, in seconds.
        ttl: Seconds,
    },
    /// A lease was revoked, and its keys were deleted.
    LeaseRevoked,
    /// The remaining TTLs of a lease checkpoint were stored.
    LeaseCheckpointed,
    /// Alarms that the request selected or changed.
    Alarms(Vec<AlarmMember>),
    /// A user has authenticated; the index of this entry is the second part of a simple token.
    Authenticated {
        /// Log index of the entry.
        index: Index,
    },
    /// The entry was applied, and its response has no content.
    Done,
}

impl Outcome {
    /// Returns true if the response contains key-value pairs, either previous pairs or pairs that were read.
    /// The caller must then keep their values readable until the response is sent.
    pub fn names_values(&self) -> bool {
        match self {
            Outcome::Put { previous, .. } => previous.is_some(),
            Outcome::DeleteRange(deleted) => deleted.previous.names_values(),
            Outcome::Txn(txn) => txn.names_values(),
            _ => false,
        }
    }

    /// Returns true if a part of the response is not known yet. The caller must read that part after apply,
    /// from the state right after the entry.
    pub fn reads_later(&self) -> bool {
        match self {
            Outcome::DeleteRange(deleted) => matches!(deleted.previous, Read::Past(_)),
            Outcome::Txn(txn) => txn.reads_later(),
            _ => false,
        }
    }
}

// An `Applied` is moved often. Moves of up to 128 bytes are compiled without a call of memcpy, so it must not
// be larger.
const _: () = assert!(size_of::<Applied>() <= 128);

/// A change of state other than keys and values, for callers that keep their own record of such state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A lease was granted.
    LeaseGranted {
        /// Id of the lease.
        id: LeaseId,
        /// TTL of the lease in seconds.
        ttl: Seconds,
    },
    /// A lease was revoked.
    LeaseRevoked(LeaseId),
    /// The compact revision rose to this revision.
    Compacted(Revision),
    /// A request raised or cleared an alarm. Contains the alarm if the request raised one that was not raised
    /// before; otherwise `None`.
    Alarms(Option<Raised>),
    /// A member's attributes or the cluster's version changed.
    Members,
    /// Users or roles changed, or a user has authenticated.
    Auth(Box<AuthChange>),
}

/// An alarm that an entry has just raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Type of the alarm, as etcd numbers alarms.
    pub alarm: i32,
    /// Id of the member for which the alarm was raised.
    pub member_id: u64,
    /// Cause of the alarm, as a number in the entry. The cause is not part of the replicated state.
    pub cause: u32,
}

/// Effect of a committed entry.
#[derive(Debug, PartialEq)]
pub struct Applied {
    /// Id under which the request was proposed; 0 for the empty entry of a new leader.
    pub request_id: u64,
    /// etcd's name of the request. Empty for the empty entry of a new leader; [`UNDECODABLE`] for an entry
    /// that cannot be decoded as a request and therefore changes nothing.
    pub op: &'static str,
    /// Result for the client.
    pub outcome: Result<Outcome, Status>,
    /// Change of state other than keys and values.
    pub change: Option<Change>,
}

/// Effect of a committed membership change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfApplied {
    /// Id under which the change was proposed.
    pub request_id: u64,
    /// The change, or the reason why it was refused. After a refusal, the caller must report a change of node
    /// 0 to raft, as etcd does, so that raft's membership stays the same.
    pub outcome: Result<VoterChange, Status>,
}

/// Number and size of the live values in one segment of the log. A value is live while the index of keys
/// contains its location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentUse {
    /// Number of live values.
    pub values: u64,
    /// Bytes that the live values take in the segment: of a compressed value, the size of its record, rounded
    /// up ([`Location::stored_bytes`]).
    pub bytes: u64,
    /// Part of `bytes` that are of values that are not compressed.
    pub raw_bytes: u64,
}

impl SegmentUse {
    pub(crate) fn add(&mut self, value: Value) {
        let bytes = value.location.stored_bytes(value.len);
        self.values += 1;
        self.bytes += bytes;
        if !value.location.is_compressed() {
            self.raw_bytes += bytes;
        }
    }

    pub(crate) fn remove(&mut self, value: Value) {
        let bytes = value.location.stored_bytes(value.len);
        self.values = self.values.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        if !value.location.is_compressed() {
            self.raw_bytes = self.raw_bytes.saturating_sub(bytes);
        }
    }
}

/// The replicated state of one member.
pub struct Machine {
    rules: Rules,
    /// All versions of all keys.
    pub store: Store,
    /// All granted leases.
    pub leases: Leases,
    /// All raised alarms.
    pub alarms: Alarms,
    /// Members of the cluster, and the cluster version.
    pub members: Members,
    /// Users, roles, and whether authentication is enabled.
    pub auth: Auth,
    pub(crate) rights: RightsCache,
    /// Log index of the last applied entry.
    pub applied_index: Index,
    /// Raft term of the entry at `applied_index`.
    pub applied_term: Term,
    pub(crate) usage: BTreeMap<u32, SegmentUse>,
    pub(crate) in_use_bytes: u64,
    /// Highest main revision of a tombstone that compaction has physically removed; see `delta_from_min` of
    /// [`crate::image::Head`].
    pub(crate) delta_from_min: Revision,
    pub(crate) hash: StateHash,
    /// The entry after `applied_index`, while it is being applied in slices.
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

/// Returns the number of bytes that a version adds to the bytes in use: its key, its value, and a fixed
/// amount for its metadata.
pub(crate) fn version_bytes(version: Version<'_>) -> u64 {
    loaded_bytes(version.key().len(), version.value_len())
}

/// Returns the same as [`version_bytes`], for a version that a restore has decoded and not yet added to the
/// store.
pub(crate) fn loaded_bytes(key_len: usize, value_len: u32) -> u64 {
    64 + key_len as u64 + u64::from(value_len)
}

/// The parts of the state that must be updated together with the store: the keys of leases, the live values
/// by segment, the bytes in use, and the state hash.
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
            self.usage.entry(version.location().segment()).or_default().add(version.value());
        }
    }
}

impl Machine {
    /// Returns an empty state.
    pub fn new(rules: Rules) -> Machine {
        Machine::with_store(rules, Store::new())
    }

    /// Returns the state that a witness keeps of this one: the position in the log, the members with their alarms,
    /// and the cluster version. It has no keys, leases and users, and its state hash is not known, because it cannot be
    /// compared with that of members with data.
    pub fn of_witness(&self) -> Machine {
        let mut bare = Machine::new(self.rules);
        bare.members = self.members.clone();
        bare.alarms = self.alarms.clone();
        bare.applied_index = self.applied_index;
        bare.applied_term = self.applied_term;
        bare.hash = StateHash::new(None, self.applied_index, bare.store.current_revision());
        bare
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

    /// Returns the bytes in use, which the space quota limits: all versions that compaction has not
    /// physically removed, and the leases with their keys.
    pub fn in_use_bytes(&self) -> u64 {
        self.bytes_before().unwrap_or_else(|| self.in_use_bytes + self.leases.bytes())
    }

    /// Returns the number and size of the live values in each segment of the log, keyed by segment.
    pub fn usage(&self) -> &BTreeMap<u32, SegmentUse> {
        &self.usage
    }

    /// Returns true if a version's value is compressed.
    pub fn has_compressed_values(&self) -> bool {
        self.usage.values().any(|usage| usage.raw_bytes < usage.bytes)
    }

    /// Returns the rolling hash of all changes up to the last applied entry. Returns `None` if the hash is
    /// unknown, because the state was restored from an image that contains no usable hash. This member's
    /// state then cannot be compared with the states of other members.
    pub fn state_hash(&self) -> Option<u64> {
        self.hash_before().unwrap_or_else(|| self.hash.value())
    }

    /// Returns the hash after the entry `from_index`, if it is still stored, and the hash after each later
    /// entry that changed the state. The newest [`crate::STATE_POINTS_MAX`] hashes are stored. Returns
    /// nothing if the hash is unknown.
    pub fn state_hashes(&self, from_index: Index) -> impl ExactSizeIterator<Item = StatePoint> + '_ {
        self.hash.points(from_index)
    }

    /// Returns the hashes of the state after the entries from this index on, so that they can be compared
    /// with the hashes of another member.
    pub fn state_trail(&self, from_index: Index) -> StateTrail {
        self.newest_state_trail(from_index, usize::MAX)
    }

    /// Returns at most the newest `points_max` points of [`Machine::state_trail`].
    pub fn newest_state_trail(&self, from_index: Index, points_max: usize) -> StateTrail {
        let points = self.state_hashes(from_index);
        let older = points.len().saturating_sub(points_max);
        StateTrail { applied_index: self.applied_index, points: points.skip(older).collect() }
    }

    /// Applies a committed entry. If `answer` is false, the outcome does not contain what the entry has read.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Machine::apply_for`].
    pub fn apply(
        &mut self,
        command: Command<'_>,
        values: &dyn Values,
        answer: bool,
    ) -> Result<Applied, Fatal> {
        self.apply_for(command, values, |_| answer)
    }

    /// Applies a committed entry. `waits` returns true if a request waits for the entry with the given id; if
    /// it returns false, the outcome does not contain what the entry has read. Ranges inside a transaction
    /// are not evaluated by this call, except up to 1024 ranges of a single key. The caller evaluates the
    /// others (see [`txn::Read::Past`]) in the state right after the entry, or in a later state with the same
    /// compact revision.
    ///
    /// # Errors
    ///
    /// Returns an error if this release does not know the kind of the entry, if the term of the entry is
    /// older than the term of the previous entry, or if a value on which the entry depends cannot be read.
    /// The state is then unchanged.
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

    /// Applies an entry like [`Machine::apply_for`], unless the entry costs more than this step allows or
    /// depends on a value that is not in memory ([`crate::ReadError::NotAtHand`]). In these cases the entry
    /// changes nothing yet, and the result is `None`; the caller continues with [`Machine::go_on`].
    ///
    /// `left` is the cost that this step may still spend; one unit is about one key, one operation or one KiB
    /// of compared values. The cost of the entry is subtracted from it. With `u64::MAX` no entry is too
    /// expensive.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Machine::apply_for`].
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
            // Decoding depends only on the bytes of the entry, so every member skips this entry. `waits` is
            // not called: this process proposes only entries that can be decoded, so none of its requests
            // waits for this one.
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
            // A comparison of the transaction needs a value that is not in memory. Comparisons are evaluated
            // before any change, so nothing has changed yet, and `go_on` can start the transaction from the
            // beginning once the value is in memory.
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

    /// Applies a request about keys or leases, and passes all others to [`Machine::dispatch_cluster`].
    /// `change` receives the change of state other than keys and values.
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
            // Tests of etcd 3.6 write this request to logs. It has no effect.
            return Ok(Outcome::Done);
        }
        if request.range.is_some() {
            // etcd before 3.1 proposed reads as entries. They change nothing.
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

    /// Stores the remaining TTLs of leases that still exist.
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

    /// Sets the name and the client URLs of a member, if it is still in the cluster.
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

    /// Returns a writer of the store, and the accounting that must be updated with each write.
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

    /// Removes up to `budget` versions that a compaction made unreadable. Returns true if none is left.
    pub fn compact_step(&mut self, budget: u64) -> bool {
        self.compact_step_through(Revision::MAX, budget)
    }

    /// Removes versions like [`Machine::compact_step`], but only those that are unreadable after a compaction
    /// at `through`. A reader that began before a later compaction may still need the others.
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
                && let Some(usage) = usage.get_mut(&version.location().segment())
            {
                usage.remove(version.value());
            }
        });
        progress.done
    }

    /// Stores the new location of a value that was copied to another segment. Returns false without a change
    /// if the version no longer exists, or its value is no longer at `from`.
    pub fn relocate(&mut self, change: ChangeId, from: Location, to: Location) -> bool {
        let Some(before) = self.store.relocate(change, from, to) else { return false };
        if let Some(old) = self.usage.get_mut(&from.segment()) {
            old.remove(before);
        }
        if planted::is(Bug::MovedValueNotCounted) {
            return true;
        }
        self.usage.entry(to.segment()).or_default().add(Value { location: to, ..before });
        true
    }

    fn lease_revoke(
        &mut self,
        request: &LeaseRevokeRequest,
        change: &mut Option<Change>,
    ) -> Result<Outcome, Status> {
        let keys = self.leases.revoke(LeaseId(request.id)).ok_or(error::LEASE_NOT_FOUND)?;
        *change = Some(Change::LeaseRevoked(LeaseId(request.id)));
        self.hash.mix(Effect::LeaseRevoked, &[request.id as u64, keys.len() as u64]);
        // `revoke` has removed the lease together with its set of keys, so deleting the keys does not have to
        // update that set.
        self.delete_keys(keys.into_iter(), &mut Budget::endless());
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

    /// Returns true if the membership change in `data` would be refused now only because of
    /// [`Rules::learners_max`]; members with a higher limit would apply it. Returns false for bytes that
    /// cannot be decoded as a membership change.
    pub fn is_refused_by_learners_max(&self, data: &Bytes) -> bool {
        let limit = self.rules.learners_max;
        raftpb::ConfChange::decode(data.clone())
            .is_ok_and(|change| reconfiguration::is_refused_by_learners_max(&self.members, &change, limit))
    }

    /// Applies a committed membership change. A change that the current members no longer allow changes
    /// nothing and gets etcd's error; the caller must then report to raft that nothing changed.
    ///
    /// # Errors
    ///
    /// Returns an error if the entry cannot be decoded, or if its term is older than the term of the previous
    /// entry.
    pub fn apply_conf_change(&mut self, command: Command<'_>) -> Result<ConfApplied, Fatal> {
        let fatal = |why: String| Fatal { index: command.index, why, is_unreadable: false };
        self.next(command)?;
        let change = raftpb::ConfChange::decode(command.data.clone())
            .map_err(|e| fatal(format!("it is no membership change: {e}")))?;
        let request_id = change.id.unwrap_or(0);
        // An invalid change must not stop this member, because it can come from a proposal that another
        // member forwarded. As in etcd, it is refused and changes nothing.
        let outcome = reconfiguration::read(&change).and_then(|change| {
            change.check(&self.members, self.rules.learners_max)?;
            Ok(change.apply(&mut self.members, &mut self.hash))
        });
        self.hash.entry_done(self.applied_index, self.store.current_revision());
        Ok(ConfApplied { request_id, outcome })
    }
}

/// Runs the chosen branch of a transaction. The caller has already made all checks that can fail.
struct Run<'a, 's, 'b> {
    writer: &'a mut Writer<'s>,
    accounting: &'a mut Accounting<'b>,
    command: Command<'a>,
    answer: bool,
    /// Number of single-key ranges that may still be evaluated now; see [`txn::KNOWN_MAX`].
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

/// Returns true if the entry is refused while the NOSPACE alarm is raised.
fn takes_space(request: &InternalRaftRequest) -> bool {
    request.put.is_some()
        || request.lease_grant.is_some()
        || request.txn.as_ref().is_some_and(|txn| check::txn_cost(txn) > 0)
}

/// Value of [`Applied::op`] for an entry that does not decode as a request.
pub const UNDECODABLE: &str = "Undecodable";

fn undecodable(why: &request::Undecodable) -> Status {
    Status::with(Code::Internal, format!("mainstay: the entry is no request: {why}"))
}

/// Returns etcd's name of the kind of a request.
pub(crate) fn op_name(request: &InternalRaftRequest) -> &'static str {
    // Nearly all entries are puts or transactions, so these are checked first.
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

/// Returns the location, length and checksum of `bytes`, which must be empty or a slice of the entry's data.
fn value_of(command: Command<'_>, bytes: &Bytes) -> Value {
    if bytes.is_empty() {
        return Value::default();
    }
    let (start, end) = (command.data.as_ptr() as usize, command.data.as_ptr() as usize + command.data.len());
    let at = bytes.as_ptr() as usize;
    assert!(at >= start && at + bytes.len() <= end, "the value is a slice of its entry");
    Value {
        location: Location::new(command.location.segment(), command.location.offset() + (at - start) as u32),
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
    // The current revision is never compacted, so this read cannot fail.
    snapshot.get(key, Revision::CURRENT).ok().flatten()
}

/// Evaluates a range inside a transaction. If `answer` is false, returns an empty result without reading,
/// because no request waits for the result.
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

/// A deletion that runs in slices.
pub(crate) struct Deletion {
    /// Id of the first change of this deletion.
    first: ChangeId,
    /// Last key deleted by the previous slice. The next slice continues after it.
    behind: Option<Box<[u8]>>,
    deleted: u64,
    /// The first deleted key-value pair, if the request wants previous pairs.
    previous: Option<StoredKeyValue>,
}

impl Deletion {
    pub fn begin(writer: &Writer<'_>) -> Deletion {
        let first = ChangeId { main: writer.revision(), sub: writer.changes() };
        Deletion { first, behind: None, deleted: 0, previous: None }
    }

    /// Deletes keys until the budget is spent. Returns true if all keys of the range are deleted.
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
            // The key is copied and hashed, so its bytes count twice.
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

    /// Returns the result of the deletion; the caller fills in its revision.
    pub fn end(&mut self, delete: &DeleteRangeRequest) -> Deleted {
        let previous = match self.previous.take() {
            Some(first) if self.deleted == 1 => Read::Known { found: vec![first], more: false, count: 1 },
            // Several deleted pairs are not collected here: they are read after apply, from the state before
            // the first deletion.
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

/// Returns true for a request that is refused while the CORRUPT alarm is raised.
fn is_refused_when_corrupt(request: &InternalRaftRequest) -> bool {
    request.put.is_some()
        || request.range.is_some()
        || request.delete_range.is_some()
        || request.txn.is_some()
        || request.compaction.is_some()
        || request.lease_grant.is_some()
        || request.lease_revoke.is_some()
}
