//! Bugs that are planted on purpose, to show that the simulator finds them.
//!
//! What it is: one switch. A place that could go wrong asks [`is`] whether it has to, for one run of the simulator.
//! Without the feature `armed`, which only the simulator's own builds turn on, the answer is a constant `false` and the
//! wrong code is not in the program. Beside it a few places tell how much they look at in one go ([`looked_at`]), for the
//! simulator to see that it is bounded; without the feature nothing is counted.
//!
//! What it does not know: what the bugs do; that is written where they are planted.
//!
//! Tests: `cargo test -p mainstay-sim --features planted`.

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
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$bug),+];

            /// Its name on a command line.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name),+ }
            }

            /// What goes wrong, in a sentence.
            pub fn about(self) -> &'static str {
                match self { $(Bug::$bug => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

bugs! {
    /// log: a batch is reported as durable and never synced.
    AckBeforeSync = "ack-before-sync";
    /// log: a sync that failed is tried again and believed, though the kernel has dropped what it could not write.
    SyncErrorIgnored = "sync-error-ignored";
    /// log: a segment comes into use though its name in the directory was never made durable.
    DirectoryNotSynced = "directory-not-synced";
    /// log: a segment's identity follows from ids that clients know, so that values can be taken for records.
    SegmentGuessable = "segment-guessable";
    /// log: the vote is left out of the hard state, so a member that was restarted may vote twice in a term.
    VoteForgotten = "vote-forgotten";
    /// log: recovery takes records whose checksum does not match.
    ChecksumIgnored = "checksum-ignored";
    /// log: an invalid record ends the log wherever it stands, whatever was acknowledged behind it.
    DamageTakenForTornEnd = "damage-taken-for-torn-end";
    /// log: a log that ends before the end that it had at the last start is taken for one with a torn end.
    NotedEndIgnored = "noted-end-ignored";
    /// log: where zeros end the log, what was written behind them is not looked for: an acknowledged write that the disk has lost
    /// goes unnoticed.
    HoleTakenForEnd = "hole-taken-for-end";
    /// log: a value is given out as it is read, whatever its checksum.
    ValueUnverified = "value-unverified";
    /// log: a checkpoint's run is given its name before it is synced.
    CheckpointTorn = "checkpoint-torn";
    /// log: the manifest is renamed into place before its contents are synced.
    ManifestNotSynced = "manifest-not-synced";
    /// log: a checkpoint on a full disk does not use the room that is kept for it.
    CheckpointWithoutReserve = "checkpoint-without-reserve";
    /// consensus: a follower's acknowledgement leaves before its entries are on disk.
    PromiseBeforeSync = "promise-before-sync";
    /// consensus: a removed voter goes on counting for the quorum.
    RemovedVoterCounted = "removed-voter-counted";
    /// consensus: a forwarded proposal is taken in whatever term it comes, though its sender may have proposed it again.
    ForwardedInAnyTerm = "forwarded-in-any-term";
    /// consensus: a leader that is removed falls silent at once, whoever knows that its removal is committed.
    RemovedLeaderSilent = "removed-leader-silent";
    /// consensus: a member hears that its removal is committed before the others have that on disk.
    RemovalToldUnnoted = "removal-told-unnoted";
    /// consensus: commands handed on to a leader that runs etcd are proposed again, though it may pass them on late.
    ProposedAgainAfterEtcd = "proposed-again-after-etcd";
    /// consensus: what is being overwritten in the log counts as synced by its index alone.
    OverwrittenCountsAsSynced = "overwritten-counts-as-synced";
    /// machine: whether a put is refused for want of space depends on how far this member's own removal has come.
    ApplyDependsOnMember = "apply-depends-on-member";
    /// machine: apply does not decode what is nested as deep as a shard accepts, since an entry adds a level.
    ApplyCountsLevels = "apply-counts-levels";
    /// machine: a revoked lease loses its keys, but lives on.
    LeaseRevived = "lease-revived";
    /// machine: after a restart the last key of the checkpoint is not tied to its lease any more.
    LeaseKeyForgotten = "lease-key-forgotten";
    /// machine: a transaction of several operations that deletes leaves out its last operation.
    TransactionCutShort = "transaction-cut-short";
    /// machine: a comparison of a transaction is made on the state before the last revision.
    CompareOnOldState = "compare-on-old-state";
    /// machine: the compact revision is forgotten by a restart, so a compacted read gives what happens to be left.
    CompactRevisionForgotten = "compact-revision-forgotten";
    /// machine: merging the runs of a checkpoint drops the version that is current at the compact revision.
    CompactionDropsCurrent = "compaction-drops-current";
    /// machine: a value that was moved is not counted for its new segment, which may be deleted with it.
    MovedValueNotCounted = "moved-value-not-counted";
    /// server: a checkpoint says that it has one entry more than it has.
    AppliedIndexEarly = "applied-index-early";
    /// machine: a long read goes on at the newest revision instead of at its own.
    LongReadMixesRevisions = "long-read-mixes-revisions";
    /// server: a segment is deleted although a view may still read it.
    SegmentDeletedUnderView = "segment-deleted-under-view";
    /// server: a segment is deleted before the checkpoint is durable that does without it.
    SegmentDeletedEarly = "segment-deleted-early";
    /// server: a leader's entries are taken whether the log has room for them or not, and end the member if not.
    FullLogFatal = "full-log-fatal";
    /// server: a checkpoint is due by the number of entries alone, however many bytes they are.
    CheckpointByEntriesAlone = "checkpoint-by-entries-alone";
    /// server: NOSPACE that the disk had raised stays although the disk has room again.
    DiskAlarmStays = "disk-alarm-stays";
    /// server: what raised NOSPACE is noted beside the log alone, which a crash may come before.
    AlarmCauseForgotten = "alarm-cause-forgotten";
    /// server: a leader counts its entries as synced when it hands them to its log.
    LeaderCountsUnsynced = "leader-counts-unsynced";
    /// server: a leader answers linearizable reads without asking whether it still leads.
    StaleRead = "stale-read";
    /// server: a read is answered once the leader has confirmed it, though this member has not applied so far.
    ReadBeforeApplied = "read-before-applied";
    /// server: commands that wait are proposed again as soon as there is another leader, who may have them already.
    ProposedAgainEarly = "proposed-again-early";
    /// machine: a new learner is judged by each member's own option, not by what the entry says.
    LearnersByMember = "learners-by-member";
    /// server: a campaign that the raft node refuses ends the member.
    RefusalFatal = "refusal-fatal";
    /// server: a leader proposes its own removal without handing over first.
    RemovedLeading = "removed-leading";
    /// server: commands that wait may be proposed again though a state taken over may have them.
    ProposedAgainAfterSnapshot = "proposed-again-after-snapshot";
    /// server: a value that the disk does not give back, and that a transaction compares, ends the member.
    UnreadableValueIsFatal = "unreadable-value-is-fatal";
    /// machine: a deletion that is done in slices ends with the first of them.
    SlicedDeletionCutShort = "sliced-deletion-cut-short";
    /// machine: what entries do that are applied at once is not taken from what a step may do.
    EntriesAtOnceAreFree = "entries-at-once-are-free";
    /// core: an entry that is half-way counts as applied, so that linearizable reads are answered without it.
    HalfWayCountsAsApplied = "half-way-counts-as-applied";
    /// readers: what the core wants waits behind what clients read.
    CoreReadsInTheQueue = "core-reads-in-the-queue";
    /// readers: values that were read and that nobody takes count as being read, so that others wait for them.
    UntakenHoldsUpReads = "untaken-holds-up-reads";
    /// core: what followers hand on is proposed whatever the log has waiting.
    HandedOnWithoutRoom = "handed-on-without-room";
    /// server: a snapshot is acknowledged before it is durable.
    SnapshotAcknowledgedEarly = "snapshot-acknowledged-early";
    /// server: what has arrived of a snapshot whose stream broke off is kept for ever.
    BrokenPartKept = "broken-part-kept";
    /// server: a leader that led before goes by the deadlines of leases that it knew then.
    OldLeaseDeadlines = "old-lease-deadlines";
    /// server: a leader renews leases without asking whether it still leads.
    RenewedByDeposed = "renewed-by-deposed";
    /// server: a lease expires by its leader's clock though a renewal that came in time waits, or apply is behind.
    LeasesExpireBehind = "leases-expire-behind";
    /// server: reads whose round is confirmed are kept until this member has applied so far, whoever still waits.
    ConfirmedReadsKept = "confirmed-reads-kept";
    /// server: a renewal does not take back a note of the time left that is still on its way into the log.
    NoteOverRenewal = "note-over-renewal";
    /// server: the time left of a lease is noted behind an entry that grants another one under its id, which takes it for its
    /// own.
    NoteOverGrant = "note-over-grant";
    /// server: a lease is revoked when its time is up, though entries of the log that are not applied revoke it and grant another one
    /// under its id.
    GrantedAgainExpires = "granted-again-expires";
    /// server: the ids of a member's commands follow from the time of day at its start alone, which a clock that was set back shows
    /// again.
    IdsByTheClock = "ids-by-the-clock";
    /// server: a renewal says that a lease is gone before its revocation is committed.
    ExpiredRenewedEarly = "expired-renewed-early";
    /// server: events that a compaction has removed are left out of a watch without a word.
    WatchLostAtCompaction = "watch-lost-at-compaction";
    /// server: a watch whose client is slow is given its last events again.
    WatchFallsTooFarBehind = "watch-falls-too-far-behind";
    /// server: an answer goes out although values of it were not at hand: zeros stand in their places.
    AnsweredWithoutValues = "answered-without-values";
    /// server: a client is told of progress before it has all events up to there.
    ProgressAhead = "progress-ahead";
    /// server: a client is told of progress at a revision below one that a watch has read as history.
    ProgressBelowHistory = "progress-below-history";
    /// server: the tree of watched ranges gets as deep as the order in which clients watch them wants.
    WatchTreeDegenerates = "watch-tree-degenerates";
    /// server: a leader starts the clocks of all leases in one turn, however many there are.
    LeasesAllAtOnce = "leases-all-at-once";
    /// server: the clocks of leases run, and stay, on members that do not lead too.
    LeaseClocksKept = "lease-clocks-kept";
    /// server: the room that messages of other members took is not given back.
    ArrivalsKept = "arrivals-kept";
    /// machine: of a transaction only what it does if its comparisons hold is asked for.
    SecondBranchUngated = "second-branch-ungated";
    /// machine: what a user may do is remembered although users or roles have changed since.
    RightsCacheStale = "rights-cache-stale";
    /// machine: an entry is not asked again for its user's permission when it is applied.
    GateAtArrivalOnly = "gate-at-arrival-only";
    /// machine: an entry is applied though users or roles have changed since its token was looked at.
    TokenRevisionIgnored = "token-revision-ignored";
    /// machine: a state that is sent to another member comes without users and roles.
    SnapshotWithoutAuth = "snapshot-without-auth";
    /// server: a watch goes on though its user may no longer read its keys.
    WatchNotReviewed = "watch-not-reviewed";
    /// server: tokens stay valid when their user gets another password or is deleted.
    TokenOutlivesUser = "token-outlives-user";
    /// server: a user's renewal of a lease waits for the end of a long entry, and the lease expires meanwhile.
    RenewalWaitsForEntry = "renewal-waits-for-entry";
    /// core: a turn answers all questions of clients that wait, however much it looks at for them.
    QuestionsAllAtOnce = "questions-all-at-once";
    /// server: a read-only transaction makes its comparisons in one go, however many keys they look at.
    ComparedAllAtOnce = "compared-all-at-once";
    /// server: connections live on whose certificates were revoked, or whose authorities are no longer trusted.
    RevokedConnectionsKept = "revoked-connections-kept";
}

/// Something of which there must not be much in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nodes on the way down in the tree of watched ranges.
    WatchDepth,
    /// Leases that a leader looks at in one turn.
    Leases,
    /// Keys and operations of the entries that one turn of the core applies at once.
    Applied,
    /// What the log had waiting when the leader proposed another entry that was handed on to it, in percent of what it may
    /// have waiting.
    Queued,
    /// What a turn of the core had looked at for questions when it answered another one.
    Questions,
    /// Keys that a shard looks at in one go for what a read-only transaction compares.
    Compared,
    /// Leases that a leader revokes because their time is up, though entries of its log that are not applied revoke them and grant
    /// others under their ids.
    GrantedAhead,
}

const MEASURES: usize = Measure::GrantedAhead as usize + 1;

/// Returns true in a build that measures, so that a place may take some trouble for it.
#[inline(always)]
pub fn measures() -> bool {
    cfg!(feature = "armed")
}

thread_local! {
    static MOST: [Cell<usize>; MEASURES] = const { [const { Cell::new(0) }; MEASURES] };
    static SO_FAR: [Cell<usize>; MEASURES] = const { [const { Cell::new(0) }; MEASURES] };
}

/// Tells how many things a place looks at in one go.
#[inline(always)]
pub fn looked_at(measure: Measure, things: usize) {
    if cfg!(feature = "armed") {
        MOST.with(|most| most[measure as usize].set(most[measure as usize].get().max(things)));
    }
}

/// The same of a place that goes in several steps: these are some more since [`begin`].
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

/// What is told with [`looked_at_more`] begins anew.
#[inline(always)]
pub fn begin(measure: Measure) {
    if cfg!(feature = "armed") {
        SO_FAR.with(|so_far| so_far[measure as usize].set(0));
    }
}

/// The most that this thread has looked at in one go since this was asked last.
pub fn most(measure: Measure) -> usize {
    MOST.with(|most| most[measure as usize].take())
}

/// The bug that is planted now, counted from 1; 0 for none.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants a bug in this process, or none.
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8 + 1), Ordering::SeqCst);
}

/// Whether there is a bug in this process.
pub fn is_any() -> bool {
    cfg!(feature = "armed") && PLANTED.load(Ordering::Relaxed) != 0
}

/// Whether the place that asks has to go wrong.
#[inline(always)]
pub fn is(bug: Bug) -> bool {
    cfg!(feature = "armed") && PLANTED.load(Ordering::Relaxed) == bug as u8 + 1
}
