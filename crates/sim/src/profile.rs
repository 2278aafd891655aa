//! Draws the profile of a seed's world: number of members, work of the clients, and kinds and rate of faults.
//!
//! Swarm testing (Groce et al. 2012): each seed enables a random half of all faults and operations. A fault
//! that is always present could hide a bug that appears only without it.

use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos, SECOND};

macro_rules! kinds {
    ($(#[doc = $about:literal])+ $kind:ident { $($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+ }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $kind { $($(#[doc = $doc])+ $variant),+ }

        impl $kind {
            /// All kinds, in declaration order.
            pub const ALL: &[$kind] = &[$($kind::$variant),+];

            /// Returns the name that the command line uses.
            pub fn name(self) -> &'static str {
                match self { $($kind::$variant => $name),+ }
            }
        }
    };
}

kinds! {
    /// Kinds of faults.
    Fault {
        /// Power fails at one member: unsynced data is kept, lost or torn.
        Power = "power";
        /// Power fails in the middle of a disk operation.
        PowerAtOperation = "power-at-operation";
        /// A process is killed; the data it wrote stays in the page cache.
        Kill = "kill";
        /// A process shuts down cleanly and is started again.
        Stop = "stop";
        /// A process is paused for a while.
        Pause = "pause";
        /// Power fails at several members at the same moment, perhaps at all.
        Blackout = "blackout";
        /// A member's clock runs too fast or too slow.
        Drift = "drift";
        /// A member's clock jumps forward.
        Jump = "jump";
        /// The network is cut in both directions between two groups of members.
        Partition = "partition";
        /// The network is cut in one direction between two groups of members.
        OneWay = "one-way";
        /// Single messages are lost.
        Loss = "loss";
        /// Messages are delivered twice.
        Duplication = "duplication";
        /// Messages overtake each other.
        Reordering = "reordering";
        /// Some links are slow.
        SlowLink = "slow-link";
        /// Connections break while they transfer snapshots.
        Break = "break";
        /// A disk finishes no writes for a while and reports no error.
        Stall = "stall";
        /// A disk is always slow.
        SlowDisk = "slow-disk";
        /// A disk fills up.
        Full = "full";
        /// A write fails.
        WriteError = "write-error";
        /// A sync fails.
        SyncError = "sync-error";
        /// A read fails.
        ReadError = "read-error";
        /// A disk loses all its data; the operator replaces the member.
        DiskLost = "disk-lost";
        /// A bit of synced data flips.
        Decay = "decay";
        /// Clients are cut off from a member, or responses to them are lost.
        ClientLoss = "client-loss";
        /// Members have different flags, and each process start draws new flags, as in a rolling change.
        Flags = "flags";
        /// Connections between members break at any message, and all their in-flight messages are lost.
        Cut = "cut";
        /// Members, in most cases the leader, are removed until one voter is left.
        Shrink = "shrink";
        /// Disks are small until the end of the run, so deletions and compactions have to free space.
        Tight = "tight";
        /// Quotas are close to the amount that clients write.
        Quota = "quota";
        /// Some members behave like etcd: they accept proposals of any term, forward them, and do not know
        /// Mainstay's protocol extensions.
        Etcd = "etcd";
        /// A follower that has forwarded a write is cut off for so long that it needs a snapshot; then its
        /// leader or the follower itself ends.
        Strand = "strand";
        /// A leader is stopped or paused while it renews leases.
        Ambush = "ambush";
        /// No other member can take over from a leader that is being removed, because the disks of the others
        /// stall for a while.
        NoHeir = "no-heir";
        /// A leader that is being removed ends as soon as it has applied the removal, and all its messages
        /// that have not arrived are lost.
        Farewell = "farewell";
        /// Any file operation fails, with any error.
        FileError = "file-error";
        /// A machine is suspended: its process and its clock stand still while the rest of the world
        /// continues.
        Suspend = "suspend";
        /// A disk reports a write as done and synced although it is not.
        LostWrite = "lost-write";
        /// A disk writes data to a wrong position and reports no error.
        Misdirected = "misdirected-write";
        /// A member's time of day jumps forward or back, or restarts at each process start from an earlier
        /// value.
        Wall = "wall-clock";
        /// One or two observers follow the cluster, and serve clients. All faults happen at them, too.
        Observers = "observers";
        /// Members run the autopilot, the operator leaves the membership to it, and members are lost for good.
        Autopilot = "autopilot";
        /// The last founding member is a witness. Once, while the leader says that the others are in step, one
        /// machine is lost for good, with its disk.
        Witness = "witness";
    }
}

kinds! {
    /// Kinds of work that clients do.
    Work {
        /// Puts, some of them with a lease or with a request for the previous value.
        Put = "put";
        /// Deletions of one key or of several keys.
        Delete = "delete";
        /// Linearizable ranges.
        Range = "range";
        /// Serializable ranges.
        Stale = "stale";
        /// Ranges at an old revision.
        History = "history";
        /// Transactions: compare-and-set, several operations, nested ones.
        Txn = "txn";
        /// Compactions.
        Compact = "compact";
        /// Leases: grant, renew, revoke, read, and let expire.
        Lease = "lease";
        /// Locks built on a lease and a transaction.
        Lock = "lock";
        /// Watches.
        Watch = "watch";
        /// Members are added, promoted and removed.
        Members = "members";
        /// Leadership is moved.
        MoveLeader = "move-leader";
        /// Defragment, HashKV, status, alarms.
        Maintenance = "maintenance";
        /// Values of tens of kilobytes.
        BigValues = "big-values";
        /// Leases that their clients renew at the last moment before they expire.
        Keep = "keep";
        /// Values made of forged log records, based on the ids and numbers that clients know.
        Forged = "forged";
        /// Requests that are hard to handle: deep and large transactions, values that look like log records,
        /// a thousand leases, and watches in an order that unbalances a tree.
        Hostile = "hostile";
        /// Users, roles and tokens: permissions are granted and revoked.
        Users = "users";
        /// Leases that are revoked and granted again under the same id, mostly directly before they expire.
        Regrant = "regrant";
    }
}

/// Set of faults or of work, as a bit mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(pub u64);

impl Kinds {
    /// Returns true if the set contains the kind with this number; a kind is cast to its number.
    pub fn has(self, kind: u8) -> bool {
        self.0 & (1 << kind) != 0
    }

    /// Returns the set with this kind added.
    pub fn with(self, kind: u8) -> Kinds {
        Kinds(self.0 | 1 << kind)
    }

    /// Returns the set with this kind removed.
    pub fn without(self, kind: u8) -> Kinds {
        Kinds(self.0 & !(1 << kind))
    }
}

/// Approximate limit of client operations in a run.
const OPERATIONS_MAX: u64 = 2500;
/// Value of `--quota-backend-bytes` in worlds without quota faults.
const QUOTA_BYTES: u64 = 2 << 30;
/// Faults that no seed has by default, because Mainstay does not tolerate them yet; `--with` enables them.
const HELD_BACK: &[Fault] = &[Fault::Tight];
/// Faults that are each drawn from their own random stream, so that they do not change other draws of a seed.
/// The number n with a fault means that one seed in n has the fault.
const WITH_OWN_DICE: &[(Fault, u64)] = &[
    (Fault::FileError, 3),
    (Fault::Suspend, 4),
    (Fault::LostWrite, 5),
    (Fault::Misdirected, 5),
    (Fault::Wall, 4),
    (Fault::Observers, 3),
    (Fault::Autopilot, 6),
    (Fault::Witness, 6),
];
/// Faults that need an operator who removes members, or members that run etcd, so that no world with autopilots
/// has them; nor has one a witness, whose cluster an autopilot leaves alone.
const WITHOUT_AUTOPILOT: &[Fault] =
    &[Fault::Shrink, Fault::NoHeir, Fault::Farewell, Fault::Tight, Fault::Etcd, Fault::Witness];
/// Faults that need a specially arranged world (see [`Profile::arrange`]). The number n with a fault means
/// that one seed in n has the fault, independent of its other faults.
const STAGED: &[(Fault, u64)] = &[
    (Fault::Strand, 6),
    (Fault::Ambush, 8),
    (Fault::NoHeir, 12),
    (Fault::Farewell, 16),
    (Fault::Shrink, 4),
    (Fault::Tight, 10),
];

/// Faults that destroy data for good, and members that know no witnesses.
const DESTROYS: &[Fault] =
    &[Fault::DiskLost, Fault::Decay, Fault::LostWrite, Fault::Misdirected, Fault::ReadError, Fault::Etcd];

/// Faults that may delay a revocation for seconds.
pub(crate) const SLOW: &[Fault] =
    &[Fault::Pause, Fault::Suspend, Fault::Jump, Fault::Stall, Fault::SlowDisk, Fault::Full, Fault::SlowLink];

/// Command-line flags of a member that may differ between members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Value of `--election-timeout`, in nanoseconds.
    pub election: Nanos,
    /// Value of `--heartbeat-interval`, in nanoseconds.
    pub heartbeat: Nanos,
    /// Value of `--pre-vote`.
    pub pre_vote: bool,
    /// Value of `--snapshot-count`: number of new entries before a checkpoint is taken.
    pub snapshot_count: u64,
    /// Value of `--snapshot-catchup-entries`: number of entries covered by a checkpoint that the log keeps
    /// for slow followers.
    pub catchup_entries: u64,
    /// Value of `--max-learners`.
    pub learners_max: u64,
    /// Value of `--quota-backend-bytes`.
    pub quota_bytes: u64,
    /// Value of `--max-txn-ops`.
    pub txn_ops_max: u64,
    /// Value of `--max-request-bytes`.
    pub request_bytes_max: u64,
    /// Value of `--compaction-batch-limit`.
    pub compaction_batch: u64,
    /// Value of `--strict-reconfig-check`.
    pub strict: bool,
    /// Value of `--initial-election-tick-advance`.
    pub advance: bool,
}

impl Flags {
    fn draw(rng: &mut Rng) -> Flags {
        let election = rng.pick(&[500, 1000, 1000, 2000]) * MILLI;
        Flags {
            election,
            heartbeat: election / rng.pick(&[10, 10, 5]),
            pre_vote: !rng.one_in(4),
            snapshot_count: rng.pick(&[1, 5, 20, 100]),
            catchup_entries: rng.pick(&[1, 5, 20, 50, 200]),
            learners_max: rng.pick(&[1, 2, 3]),
            quota_bytes: QUOTA_BYTES,
            txn_ops_max: rng.pick(&[16, 128, 128, 1024]),
            request_bytes_max: rng.pick(&[64 << 10, 1 << 20, 1 << 21]),
            compaction_batch: rng.pick(&[1, 10, 1000]),
            strict: !rng.one_in(3),
            advance: !rng.one_in(4),
        }
    }
}

/// Profile of a seed's world: one field for each choice that the seed makes.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The seed itself.
    pub seed: u64,
    /// Number of founding members; all of them vote.
    pub members: usize,
    /// Number of observers, which follow the cluster and are no members of it.
    pub observers: usize,
    /// Number of clients that make one call at a time.
    pub clients: usize,
    /// Number of watch streams that are open at the same time.
    pub watchers: usize,
    /// Number of keys that clients use.
    pub keys: u64,
    /// Kinds of faults that happen.
    pub faults: Kinds,
    /// Kinds of work that clients do.
    pub work: Kinds,
    /// Weight of each kind of work, in the order of [`Work::ALL`].
    pub weights: Vec<u64>,
    /// Mean time between two faults.
    pub fault_every: Nanos,
    /// Mean time between two actions of the operator.
    pub operator_every: Nanos,
    /// Mean time that a client waits between two operations.
    pub think: Nanos,
    /// Duration of the phase with faults.
    pub chaos: Nanos,
    /// Mean network delay of a message.
    pub delay: Nanos,
    /// Mean duration of one write and sync of the log.
    pub sync: Nanos,
    /// Mean delay between the moment at which a member has work and the moment at which its core runs.
    pub turn: Nanos,
    /// Flags of all members, unless members have different flags.
    pub flags: Flags,
    /// Size of a log segment in bytes.
    pub segment_bytes: u32,
    /// Number of entries that are applied between two checkpoints.
    pub checkpoint_entries: u64,
    /// Size of each disk in bytes, in worlds with small disks.
    pub disk_bytes: u64,
    /// Bytes that may be in flight to a follower; `None` for the default.
    pub window_bytes: Option<usize>,
    /// Number of leases that are granted at the same time; 0 for none.
    pub crowd: u64,
    /// Size of the largest values in bytes, in worlds without small disks.
    value_bytes: u64,
    /// Maximum number of waiting batches that the log writes together; `None` for all of them. The other
    /// batches are treated as if they had arrived during the write.
    pub log_batches: Option<usize>,
    /// Mean duration of a value read that misses the page cache, in the phase with faults; `None` if such
    /// reads finish immediately.
    pub reads: Option<Nanos>,
    /// True if tokens are signed and carry the auth revision at which they were issued; otherwise members
    /// store the tokens.
    pub signed_tokens: bool,
    /// Mean duration of one step of background work, in addition to the disk time.
    pub background: Nanos,
}

impl Profile {
    /// Draws the profile of a seed.
    pub fn of(seed: u64) -> Profile {
        let mut rng = Rng::stream(seed, "profile");
        let members = rng.pick(&[1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 4, 5, 5, 7]);
        let half = |rng: &mut Rng, count: usize| {
            // A tenth of the draws disables all kinds, another tenth enables all kinds.
            match rng.below(10) {
                0 => 0,
                1 => (1 << count) - 1,
                2 | 3 => rng.draw() & rng.draw(),
                _ => rng.draw(),
            }
        };
        // Faults from `FileError` on, and some kinds of work, are drawn from their own random streams, so
        // that these draws do not change the others.
        let file_error = Fault::FileError as usize;
        let mut faults = Kinds(half(&mut rng, file_error) & ((1 << file_error) - 1));
        for (fault, times) in WITH_OWN_DICE {
            if Rng::stream(seed, fault.name()).one_in(*times) {
                faults = faults.with(*fault as u8);
            }
        }
        let mut stage = Rng::stream(seed, "stage");
        for (fault, times) in STAGED {
            let staged = stage.one_in(*times);
            faults = if staged { faults.with(*fault as u8) } else { faults.without(*fault as u8) };
        }
        let staged = [Fault::Shrink, Fault::NoHeir, Fault::Farewell];
        if staged.iter().any(|fault| faults.has(*fault as u8)) {
            faults = faults.without(Fault::Autopilot as u8);
        }
        for fault in HELD_BACK {
            faults = faults.without(*fault as u8);
        }
        let mut work = half(&mut rng, Work::Users as usize) & !(1 << Work::Users as u8);
        if Rng::stream(seed, "users").one_in(6) {
            work |= 1 << Work::Users as u8;
        }
        if Rng::stream(seed, Work::Regrant.name()).one_in(6) {
            work |= 1 << Work::Regrant as u8;
        }
        // Without writes a run could not detect lost data, so puts are always enabled.
        work |= 1 << Work::Put as u8;
        let mut flags = Flags::draw(&mut rng);
        flags.learners_max = 2;
        if faults.has(Fault::Quota as u8) {
            flags.quota_bytes = rng.pick(&[32, 64, 200]) << 10;
        }
        let clients = rng.pick(&[2, 3, 5, 8]);
        let think = rng.pick(&[5, 20, 50, 100]) * MILLI;
        // If clients send many operations in a short time, a short run is enough.
        let chaos = rng.between(5, 25) * SECOND;
        let chaos = chaos.min((OPERATIONS_MAX * think / clients as u64).max(4 * SECOND));
        // With large values, the smallest segments would each contain little more than a header, so larger
        // segments are drawn.
        let large = work & 1 << Work::BigValues as u8 != 0;
        let sizes: &[u32] = if large { &[64, 64, 128, 256] } else { &[16, 16, 32, 32, 64, 256] };
        let mut segment_bytes: u32 = rng.pick(sizes) << 10;
        // Without compaction, forged and hostile values would soon fill more segments than the smallest
        // segment size can list. Real members choose a segment size that suits their disk, so a larger one is
        // used here, too.
        let does = |kind: Work| work & 1 << kind as u8 != 0;
        if does(Work::Forged) && does(Work::Hostile) && !does(Work::Compact) {
            segment_bytes = segment_bytes.max(64 << 10);
        }
        let mut paces = Rng::stream(seed, "paces");
        let mut checkpoint_entries = rng.pick(&[5, 20, 50, 200]);
        if paces.one_in(3) {
            // With these settings, a follower that lags only a little needs a snapshot.
            (flags.catchup_entries, flags.snapshot_count, checkpoint_entries) = (1, 1, 5);
        }
        Profile {
            seed,
            members,
            observers: 0,
            clients,
            watchers: rng.pick(&[1, 2, 4]),
            keys: rng.pick(&[3, 8, 20, 60]),
            faults,
            work: Kinds(work),
            weights: (0..Work::Users as usize).map(|_| rng.between(1, 10)).collect(),
            fault_every: rng.pick(&[300, 1000, 3000]) * MILLI,
            operator_every: rng.pick(&[200, 1000, 1000]) * MILLI,
            think,
            chaos,
            delay: rng.pick(&[100_000, 500_000, 2 * MILLI, 10 * MILLI]),
            sync: rng.pick(&[100_000, MILLI, 5 * MILLI]),
            turn: rng.pick(&[2_000, 20_000, 200_000]),
            flags,
            segment_bytes,
            checkpoint_entries,
            disk_bytes: u64::from(segment_bytes) * rng.between(10, 40) + (128 << 10),
            window_bytes: rng.pick(&[None, None, Some(1), Some(2_000), Some(50_000)]),
            crowd: if work & 1 << Work::Hostile as u8 != 0 {
                stage.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 300, 300, 1000, 1000, 2000, 5000])
            } else {
                0
            },
            value_bytes: rng.pick(&[4_000, 40_000, 40_000, 200_000]),
            log_batches: paces.pick(&[None, None, Some(1), Some(2)]),
            reads: paces.pick(&[None, None, Some(0), Some(20 * MILLI), Some(300 * MILLI), Some(2 * SECOND)]),
            signed_tokens: Rng::stream(seed, "tokens").one_in(2),
            background: paces.pick(&[0, 0, 0, 20 * MILLI, 100 * MILLI]),
        }
    }

    /// Adapts the other properties of the world to the enabled faults and work. Must be called after the last
    /// change of the set of faults.
    pub fn arrange(&mut self) {
        let mut rng = Rng::stream(self.seed, "arrangement");
        let works = |work: Work| 1 << work as u8;
        if self.fails(Fault::Autopilot) {
            WITHOUT_AUTOPILOT.iter().for_each(|fault| self.faults = self.faults.without(*fault as u8));
            self.faults = self.faults.with(Fault::DiskLost as u8);
            self.work = self.work.without(Work::Members as u8);
            self.members = self.members.max(3);
            // Members count as gone after five election timeouts, and are replaced in several steps.
            self.chaos = self.chaos.max(30 * SECOND);
            self.operator_every = 500 * MILLI;
            // The replacement after the faults takes so long that thousands of leases would expire together with
            // the last checks, which then wait for their revocations.
            self.crowd = 0;
        }
        if self.works(Work::Users) {
            // Staged faults need clients without tokens, and faults that use up space need alarms that any
            // client may disarm. So runs with users have neither.
            let without = STAGED.iter().map(|(fault, _)| *fault).chain([Fault::Quota, Fault::Full]);
            without.for_each(|fault| self.faults = self.faults.without(fault as u8));
            self.work = self.work.without(Work::Keep as u8).without(Work::Regrant as u8);
            self.crowd = 0;
            self.chaos = self.chaos.max(8 * SECOND);
        }
        if self.works(Work::Regrant) {
            // The bug that this work looks for appears only with stalled disks: the revocation and the new
            // grant have to wait for the disk while the old lease expires.
            self.work.0 |= works(Work::Keep);
            self.faults = self.faults.with(Fault::Stall as u8).without(Fault::Quota as u8);
        }
        if self.fails(Fault::Strand) {
            // With these settings, a follower that is cut off soon needs a snapshot.
            self.flags.catchup_entries = rng.pick(&[1, 5]);
            self.flags.snapshot_count = 1;
            self.checkpoint_entries = 5;
            self.think = self.think.min(20 * MILLI);
            self.work.0 |= rng.pick(&[0, works(Work::Watch) | works(Work::Compact)]);
            self.members = self.members.max(3);
        }
        if !self.works(Work::Hostile) || self.fails(Fault::Tight) {
            // The leases of the crowd are hostile work, and a small disk has no space for their state.
            self.crowd = 0;
        }
        if self.fails(Fault::Ambush) {
            self.work.0 |= works(Work::Keep);
            self.members = self.members.max(2);
            if rng.one_in(2) {
                SLOW.iter().for_each(|fault| self.faults = self.faults.without(*fault as u8));
            }
        }
        if self.fails(Fault::NoHeir) {
            self.faults = self.faults.without(Fault::Farewell as u8);
        }
        if self.fails(Fault::Farewell) {
            // The handover of leadership has to succeed before the leader ends, so all faults that could
            // prevent the handover are disabled.
            let calm = [Fault::Farewell, Fault::ClientLoss, Fault::Stop];
            self.faults =
                Kinds(calm.iter().fold(0, |kinds, fault| kinds | 1 << *fault as u8) & self.faults.0);
        }
        if self.fails(Fault::Farewell) || self.fails(Fault::NoHeir) {
            self.faults = self.faults.with(Fault::Shrink as u8);
            self.work.0 |= works(Work::Members);
            self.flags.strict = false;
            self.operator_every = 200 * MILLI;
            self.members = rng.pick(&[2, 2, 2, 3]);
            self.window_bytes = rng.pick(&[None, Some(1), Some(1)]);
            self.chaos = self.chaos.max(12 * SECOND);
        }
        if self.fails(Fault::Witness) {
            // What a cluster with a witness survives is one lost machine. So no other fault may destroy data, and
            // the members stay those that were founded.
            let without = STAGED.iter().map(|(fault, _)| *fault).chain(DESTROYS.iter().copied());
            without.for_each(|fault| self.faults = self.faults.without(fault as u8));
            self.work = self.work.without(Work::Members as u8);
            self.crowd = 0;
            self.members = Rng::stream(self.seed, "witness").pick(&[3, 3, 3, 5]);
            self.chaos = self.chaos.max(12 * SECOND);
        }
        if !self.fails(Fault::Quota) {
            self.flags.quota_bytes = QUOTA_BYTES;
        }
        self.observers = if self.fails(Fault::Observers) {
            Rng::stream(self.seed, "number of observers").pick(&[1, 2, 2])
        } else {
            0
        };
    }

    /// Returns the place of the witness.
    pub fn witness(&self) -> Option<usize> {
        self.fails(Fault::Witness).then(|| self.members - 1)
    }

    /// Returns true if the member at a place behaves like etcd. At least one member of the cluster does not.
    pub fn is_etcd(&self, place: usize) -> bool {
        let mut rng = Rng::stream(self.seed, "etcd");
        let own = rng.place(self.members);
        let is_observer = (self.members..self.members + self.observers).contains(&place);
        self.fails(Fault::Etcd) && place != own && !is_observer && rng.draw() >> (place % 64) & 1 == 1
    }

    /// Returns the size of the largest values in bytes. On a small disk, one value must leave space for
    /// others.
    pub fn value_bytes(&self) -> u64 {
        if self.fails(Fault::Tight) { u64::from(self.segment_bytes / 4) } else { self.value_bytes }
    }

    /// Returns true if reads of values from disk take 300 ms or more on average, so that calls that wait for
    /// values keep their views of the store for a long time.
    pub fn reads_slowly(&self) -> bool {
        self.reads.is_some_and(|mean| mean >= 300 * MILLI)
    }

    /// Returns the size of every disk in bytes; `None` if disks are not small.
    pub fn capacity(&self) -> Option<u64> {
        self.fails(Fault::Tight).then_some(self.disk_bytes)
    }

    /// Returns the flags of the member at a place for one of its process starts.
    pub fn flags_of(&self, place: usize, life: u64) -> Flags {
        if !self.fails(Fault::Flags) {
            return self.flags.clone();
        }
        let mut rng = Rng::stream(self.seed, &format!("flags {place} {life}"));
        let mut flags = Flags::draw(&mut rng);
        // Pre-vote stays on if members have different flags: without it, a member with a short timeout and a
        // short log could start one election after another and prevent the election of others, as in etcd.
        flags.pre_vote = true;
        if self.fails(Fault::Quota) {
            flags.quota_bytes = rng.pick(&[32, 64, 200]) << 10;
        }
        flags
    }

    /// Returns true if this fault may happen.
    pub fn fails(&self, fault: Fault) -> bool {
        self.faults.has(fault as u8)
    }

    /// Returns true if a member may have to read values that its disk cannot return.
    pub fn reads_fail(&self) -> bool {
        let faults = [Fault::ReadError, Fault::Decay, Fault::LostWrite, Fault::Misdirected];
        faults.iter().any(|fault| self.fails(*fault))
    }

    /// Returns true if clients do this work.
    pub fn works(&self, work: Work) -> bool {
        self.work.has(work as u8)
    }

    /// Describes the world in one line.
    pub fn describe(&self) -> String {
        let faults: Vec<&str> = Fault::ALL.iter().filter(|f| self.fails(**f)).map(|f| f.name()).collect();
        let work: Vec<&str> = Work::ALL.iter().filter(|w| self.works(**w)).map(|w| w.name()).collect();
        format!(
            "{} members, {} observers, {} clients, {} s of faults [{}], work [{}], delay {} us, sync {} us, turn {} us, \
             election {} ms, pre-vote {}, catch-up {} entries, segments {} KiB, checkpoints {} entries",
            self.members,
            self.observers,
            self.clients,
            self.chaos / SECOND,
            faults.join(" "),
            work.join(" "),
            self.delay / 1000,
            self.sync / 1000,
            self.turn / 1000,
            self.flags.election / MILLI,
            self.flags.pre_vote,
            self.flags.catchup_entries,
            self.segment_bytes >> 10,
            self.checkpoint_entries,
        )
    }
}
