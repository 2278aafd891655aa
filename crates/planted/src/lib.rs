//! Lets the simulator plant bugs on purpose, one at a time, to show that its tests find them.
//!
//! The crate contains only the switch. At each place where a bug can be planted, the code calls [`is`] and
//! behaves wrongly if the result is true. Only the simulator's own builds enable the feature `armed`. Without
//! it the result is the constant `false`, and the wrong code is not compiled into the program.
//!
//! In addition, some places report how much work they do in one step ([`looked_at`]), so that the simulator
//! can check that this work is bounded. Without the feature nothing is counted.
//!
//! The wrong behavior itself is implemented at the places where the bugs are planted, and not in this crate.
//!
//! Start reading with [`Bug`], the list of bugs. Invariant: without the feature `armed`, [`is`] takes no
//! time. Tests: `cargo test -p mainstay-sim --features planted`.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident = $name:literal;)+) => {
        /// A bug that can be planted. Its documentation says what goes wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug { $($(#[doc = $doc])+ $bug),+ }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$(Bug::$bug),+];

            /// Returns the name by which a command line selects the bug.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name),+ }
            }

            /// Returns a description of the wrong behavior.
            pub fn about(self) -> &'static str {
                match self { $(Bug::$bug => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

bugs! {
    /// log: a batch is reported as durable and never synced.
    AckBeforeSync = "ack-before-sync";
    /// log: a failed sync is retried and its success is trusted, although the kernel has dropped the pages
    /// that it could not write.
    SyncErrorIgnored = "sync-error-ignored";
    /// log: a segment is used although its directory entry was never made durable.
    DirectoryNotSynced = "directory-not-synced";
    /// log: the checksums in a segment can be computed from ids that clients know, so a client can forge a
    /// value that recovery takes for log records.
    SegmentGuessable = "segment-guessable";
    /// log: the vote is left out of the hard state, so a restarted member may vote twice in a term.
    VoteForgotten = "vote-forgotten";
    /// log: recovery accepts records whose checksum does not match.
    ChecksumIgnored = "checksum-ignored";
    /// log: an invalid record anywhere is taken for the end of the log, even if acknowledged records follow
    /// it.
    DamageTakenForTornEnd = "damage-taken-for-torn-end";
    /// log: a log that ends before the position recorded at the last start is opened, as if only an
    /// unfinished write were missing.
    NotedEndIgnored = "noted-end-ignored";
    /// log: when zeros end the log, recovery does not search for records after them, so that an acknowledged
    /// write that the disk has lost goes unnoticed.
    HoleTakenForEnd = "hole-taken-for-end";
    /// log: a value that was read is returned even if its checksum does not match.
    ValueUnverified = "value-unverified";
    /// log: the checksum of a value is not verified after it was decompressed.
    DecompressedUnverified = "decompressed-unverified";
    /// log: a block of the index that is read from a checkpoint is used even if its checksum does not match.
    BlockUnverified = "block-unverified";
    /// log: a run of a checkpoint gets its final name before it is synced.
    CheckpointTorn = "checkpoint-torn";
    /// log: the manifest is renamed into place before its contents are synced.
    ManifestNotSynced = "manifest-not-synced";
    /// log: a checkpoint on a full disk does not use the space that is reserved for it.
    CheckpointWithoutReserve = "checkpoint-without-reserve";
    /// consensus: a follower's acknowledgement is sent before its entries are on disk.
    PromiseBeforeSync = "promise-before-sync";
    /// consensus: a removed voter still counts for the quorum.
    RemovedVoterCounted = "removed-voter-counted";
    /// consensus: a leader sends the witness all that is on the leader's disk, as if the other members were lost.
    WitnessCountsAlways = "witness-counts-always";
    /// consensus: a witness campaigns like a member with data.
    WitnessCampaigns = "witness-campaigns";
    /// consensus: a witness votes for a candidate whose log is behind its own.
    WitnessVotesBehind = "witness-votes-behind";
    /// consensus: a member with data may be removed while the witness counts, although the others may lack what it has.
    WitnessOutlivesTheData = "witness-outlives-the-data";
    /// consensus: a forwarded proposal is accepted in any term, although its sender may have proposed it
    /// again.
    ForwardedInAnyTerm = "forwarded-in-any-term";
    /// consensus: a leader that was removed stops sending messages immediately, even if no other member knows
    /// that the removal is committed.
    RemovedLeaderSilent = "removed-leader-silent";
    /// consensus: a removed member may learn that its removal is committed at a time when the other members
    /// do not have the commit index of the removal on disk yet.
    RemovalToldUnnoted = "removal-told-unnoted";
    /// consensus: commands forwarded to a leader that runs etcd are proposed again, although that leader may
    /// still propose them.
    ProposedAgainAfterEtcd = "proposed-again-after-etcd";
    /// consensus: log entries that are being overwritten count as synced if only their index matches.
    OverwrittenCountsAsSynced = "overwritten-counts-as-synced";
    /// machine: whether a put is refused for lack of space depends on the progress of this member's physical
    /// compaction.
    ApplyDependsOnMember = "apply-depends-on-member";
    /// machine: the most deeply nested requests that a shard accepts cannot be decoded when they are applied,
    /// because a log entry adds one level of nesting.
    ApplyCountsLevels = "apply-counts-levels";
    /// machine: a revoked lease loses its keys, but continues to exist.
    LeaseRevived = "lease-revived";
    /// machine: after a restart the last key of the checkpoint is not attached to its lease any more.
    LeaseKeyForgotten = "lease-key-forgotten";
    /// machine: a transaction that has several operations, one of them a deletion, skips its last operation.
    TransactionCutShort = "transaction-cut-short";
    /// machine: a comparison of a transaction uses the state before the last revision.
    CompareOnOldState = "compare-on-old-state";
    /// machine: the compact revision is lost in a restart, so a compacted read returns whatever versions are
    /// left.
    CompactRevisionForgotten = "compact-revision-forgotten";
    /// machine: merging the runs of a checkpoint drops the version that is current at the compact revision.
    CompactionDropsCurrent = "compaction-drops-current";
    /// machine: a value that was relocated in the log is not counted for its new segment, so that the segment
    /// may be deleted while it contains the value.
    MovedValueNotCounted = "moved-value-not-counted";
    /// machine: a checkpoint does not record that a value is compressed, so that after a restart the bytes of its
    /// record are taken for the value.
    CompressedMarkLost = "compressed-mark-lost";
    /// server: a checkpoint records an applied index that is one higher than the last entry that its state
    /// contains.
    AppliedIndexEarly = "applied-index-early";
    /// machine: a long read continues at the newest revision instead of at the revision where it began.
    LongReadMixesRevisions = "long-read-mixes-revisions";
    /// server: a segment is deleted although a view may still read it.
    SegmentDeletedUnderView = "segment-deleted-under-view";
    /// server: a segment is deleted before the checkpoint that does not need it is durable.
    SegmentDeletedEarly = "segment-deleted-early";
    /// server: a leader's entries are accepted even if the log has no space for them, and the member then
    /// exits.
    FullLogFatal = "full-log-fatal";
    /// server: a checkpoint is triggered only by the number of entries, however many bytes they have.
    CheckpointByEntriesAlone = "checkpoint-by-entries-alone";
    /// server: a NOSPACE alarm that the disk raised stays although the disk has free space again.
    DiskAlarmStays = "disk-alarm-stays";
    /// server: the cause of a NOSPACE alarm is not read from the log entry that raised the alarm, but only
    /// from a separate file, which may be missing after a crash.
    AlarmCauseForgotten = "alarm-cause-forgotten";
    /// server: a leader counts its entries as synced when it passes them to its log.
    LeaderCountsUnsynced = "leader-counts-unsynced";
    /// server: a leader answers linearizable reads without checking that it is still the leader.
    StaleRead = "stale-read";
    /// server: a linearizable read is answered once the leader has confirmed it, although this member has not
    /// applied all entries up to the index of the read.
    ReadBeforeApplied = "read-before-applied";
    /// server: waiting commands are proposed again as soon as there is a new leader, although the log of that
    /// leader may already contain them.
    ProposedAgainEarly = "proposed-again-early";
    /// machine: a new learner is checked against the limit of each member's own option, and not against the
    /// limit in the log entry.
    LearnersByMember = "learners-by-member";
    /// server: the member stops if its raft node refuses to start an election.
    RefusalFatal = "refusal-fatal";
    /// server: a leader proposes its own removal without transferring the leadership first.
    RemovedLeading = "removed-leading";
    /// server: waiting commands may be proposed again although an installed snapshot may contain them.
    ProposedAgainAfterSnapshot = "proposed-again-after-snapshot";
    /// server: the member stops if a value that a transaction compares cannot be read from the disk.
    UnreadableValueIsFatal = "unreadable-value-is-fatal";
    /// machine: a deletion that runs in slices ends after the first slice.
    SlicedDeletionCutShort = "sliced-deletion-cut-short";
    /// machine: entries that are applied together in one step do not count against the limit of work of that
    /// step.
    EntriesAtOnceAreFree = "entries-at-once-are-free";
    /// core: a partly applied entry counts as applied, so that linearizable reads are answered without it.
    HalfWayCountsAsApplied = "half-way-counts-as-applied";
    /// readers: reads of values that the core needs are queued behind the reads of clients.
    CoreReadsInTheQueue = "core-reads-in-the-queue";
    /// readers: values that were read and that no call has taken yet still count as being read, so that other
    /// reads wait for them.
    UntakenHoldsUpReads = "untaken-holds-up-reads";
    /// core: proposals that followers have forwarded are proposed even if the log has too much queued.
    HandedOnWithoutRoom = "handed-on-without-room";
    /// server: a snapshot is acknowledged before it is durable.
    SnapshotAcknowledgedEarly = "snapshot-acknowledged-early";
    /// server: the received part of a snapshot whose stream was interrupted is kept forever.
    BrokenPartKept = "broken-part-kept";
    /// server: a member that becomes leader again uses the lease deadlines of its earlier leadership.
    OldLeaseDeadlines = "old-lease-deadlines";
    /// server: a leader renews leases without checking that it is still the leader.
    RenewedByDeposed = "renewed-by-deposed";
    /// server: a lease expires by its leader's clock although a renewal that arrived in time is queued, or
    /// apply is behind.
    LeasesExpireBehind = "leases-expire-behind";
    /// server: linearizable reads that the leader has confirmed are kept until this member has applied all
    /// entries up to their index, even if no client waits for them any more.
    ConfirmedReadsKept = "confirmed-reads-kept";
    /// server: a renewal does not cancel a lease checkpoint that is still on its way into the log.
    NoteOverRenewal = "note-over-renewal";
    /// server: a lease checkpoint is proposed after an entry that grants another lease with the same id, so
    /// that the other lease gets its remaining TTL.
    NoteOverGrant = "note-over-grant";
    /// server: an expired lease is revoked although entries of the log that are not applied yet revoke it and
    /// grant another lease with the same id.
    GrantedAgainExpires = "granted-again-expires";
    /// server: the ids of a member's commands depend only on the time of day at its start, so that they
    /// repeat if the clock was set back.
    IdsByTheClock = "ids-by-the-clock";
    /// server: a renewal returns that a lease does not exist although the revocation of the lease is not
    /// committed yet.
    ExpiredRenewedEarly = "expired-renewed-early";
    /// server: a watch silently skips events that a compaction has removed.
    WatchLostAtCompaction = "watch-lost-at-compaction";
    /// server: a watch of a slow client sends its last events twice.
    WatchFallsTooFarBehind = "watch-falls-too-far-behind";
    /// server: a response is sent although values of it were not in memory: it contains zeros instead.
    AnsweredWithoutValues = "answered-without-values";
    /// server: a client gets a progress notification before it has all events up to that revision.
    ProgressAhead = "progress-ahead";
    /// server: a client gets a progress notification at a revision that is lower than that of an event which
    /// its watch has already sent from the history.
    ProgressBelowHistory = "progress-below-history";
    /// server: the tree of watched ranges is not balanced, so that it can become as deep as the number of
    /// watches, depending on their order.
    WatchTreeDegenerates = "watch-tree-degenerates";
    /// server: a leader computes the deadlines of all leases in one turn, however many leases exist.
    LeasesAllAtOnce = "leases-all-at-once";
    /// server: the deadlines of leases are also computed, and kept, on members that are not the leader.
    LeaseClocksKept = "lease-clocks-kept";
    /// server: the memory of messages from other members is never freed.
    ArrivalsKept = "arrivals-kept";
    /// machine: permissions are checked only for the operations that a transaction makes if its comparisons
    /// succeed, and not for those that it makes if they fail.
    SecondBranchUngated = "second-branch-ungated";
    /// machine: cached permissions of a user are used although users or roles have changed since.
    RightsCacheStale = "rights-cache-stale";
    /// machine: the permissions of the user of an entry are not checked again when the entry is applied.
    GateAtArrivalOnly = "gate-at-arrival-only";
    /// machine: an entry is applied although users or roles have changed since its token was checked.
    TokenRevisionIgnored = "token-revision-ignored";
    /// machine: a snapshot that is sent to another member does not contain the users and roles.
    SnapshotWithoutAuth = "snapshot-without-auth";
    /// server: a watch continues although its user may no longer read its keys.
    WatchNotReviewed = "watch-not-reviewed";
    /// server: tokens stay valid when their user gets another password or is deleted.
    TokenOutlivesUser = "token-outlives-user";
    /// server: the renewal of a lease by a user waits until a long entry is applied, and the lease expires
    /// meanwhile.
    RenewalWaitsForEntry = "renewal-waits-for-entry";
    /// core: a turn answers all waiting requests of clients, however much work they need.
    QuestionsAllAtOnce = "questions-all-at-once";
    /// server: a read-only transaction makes its comparisons in one step, however many keys they visit.
    ComparedAllAtOnce = "compared-all-at-once";
    /// server: connections stay open although their certificates were revoked, or their certificate
    /// authorities are no longer trusted.
    RevokedConnectionsKept = "revoked-connections-kept";
    /// core: a feeder answers a read of an observer without a round, as if it knew everything that is
    /// committed.
    ObserverReadWithoutRound = "observer-read-without-round";
    /// core: a feeder confirms a read of an observer with the index 1, so that the observer serves it before it
    /// has applied what the read requires.
    ObserverReadWithoutIndex = "observer-read-without-index";
    /// consensus: a feeder sends its observers entries that it has not applied, and that may be replaced.
    UnappliedFed = "unapplied-fed";
    /// consensus: a feeder passes proposals of its observers on in any term and without the term to which they
    /// are bound, although the observer may propose them again.
    ObserverProposalUnbound = "observer-proposal-unbound";
    /// core: an observer that feeds another one names itself as a learner in the snapshots that it sends.
    ObserverNamedInSnapshot = "observer-named-in-snapshot";
    /// core: an observer that lacks space raises the NOSPACE alarm, which stops the writes of the cluster.
    ObserverRaisesAlarm = "observer-raises-alarm";
    /// core: the autopilot removes a voter that is gone although no spare has taken its place, so that fewer
    /// members may fail than before.
    AutopilotIgnoresQuorum = "autopilot-ignores-quorum";
    /// core: the autopilot promotes learners that have not caught up.
    AutopilotPromotesEarly = "autopilot-promotes-early";
    /// core: the autopilot counts the silence of a member from when it first saw it, whether it answers or not.
    AutopilotForgetsAnswers = "autopilot-forgets-answers";
    /// core: the staleness of the state is counted from the end of a round, although the round says nothing about
    /// what was committed after it began.
    StalenessFromAnswer = "staleness-from-answer";
}

/// A kind of work whose amount in one step must be bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Number of nodes on a path from the root to a leaf in the tree of watched ranges.
    WatchDepth,
    /// Number of leases that a leader visits in one turn.
    Leases,
    /// Number of keys and operations in the entries that one turn of the core applies as a whole, without
    /// dividing them into slices.
    Applied,
    /// Length of the log's queue, in percent of its maximum, at the time when the leader proposed an entry
    /// that a follower has forwarded.
    Queued,
    /// Work that one turn of the core had already done for clients' requests when it began to answer a
    /// further one.
    Questions,
    /// Number of keys that a shard visits in one step for the comparisons of a read-only transaction.
    Compared,
    /// Number of expired leases that a leader revokes although entries of its log that are not applied yet
    /// revoke them and grant other leases with their ids.
    GrantedAhead,
}

const MEASURES: usize = Measure::GrantedAhead as usize + 1;

/// Returns true if this build counts work. A caller that needs additional computation for a report should do
/// that computation only if this returns true.
#[inline(always)]
pub fn measures() -> bool {
    cfg!(feature = "armed")
}

thread_local! {
    static MOST: [Cell<usize>; MEASURES] = const { [const { Cell::new(0) }; MEASURES] };
    static SO_FAR: [Cell<usize>; MEASURES] = const { [const { Cell::new(0) }; MEASURES] };
}

/// Reports that the caller visits this number of things, such as keys, in one step. The maximum is kept for
/// [`most`].
#[inline(always)]
pub fn looked_at(measure: Measure, things: usize) {
    if cfg!(feature = "armed") {
        MOST.with(|most| most[measure as usize].set(most[measure as usize].get().max(things)));
    }
}

/// Reports that the caller visits this number of things in one of several parts of a step. The numbers since
/// the last call of [`begin`] are added up.
#[inline(always)]
pub fn looked_at_more(measure: Measure, things: usize) {
    if cfg!(feature = "armed") {
        let so_far = SO_FAR.with(|so_far| {
            let so_far = &so_far[measure as usize];
            so_far.set(so_far.get() + things);
            so_far.get()
        });
        looked_at(measure, so_far);
    }
}

/// Begins a step whose parts report their work with [`looked_at_more`]: sets the sum to 0.
#[inline(always)]
pub fn begin(measure: Measure) {
    if cfg!(feature = "armed") {
        SO_FAR.with(|so_far| so_far[measure as usize].set(0));
    }
}

/// Returns the maximum number that this thread has reported for one step since the last call of this
/// function, and resets it to 0.
pub fn most(measure: Measure) -> usize {
    MOST.with(|most| most[measure as usize].take())
}

/// Number of the bug that is planted, counted from 1; 0 if no bug is planted.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants a bug in this process, instead of the one planted before; `None` removes it.
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8 + 1), Ordering::SeqCst);
}

/// Returns true if any bug is planted in this process.
pub fn is_any() -> bool {
    cfg!(feature = "armed") && PLANTED.load(Ordering::Relaxed) != 0
}

/// Returns true if this bug is planted in this process. If so, the caller must behave wrongly in the way that
/// the documentation of the bug describes.
#[inline(always)]
pub fn is(bug: Bug) -> bool {
    cfg!(feature = "armed") && PLANTED.load(Ordering::Relaxed) == bug as u8 + 1
}
