//! What a seed's world is like: how many members, what clients do, what goes wrong and how often.
//!
//! Swarm testing (Groce et al. 2012): every seed has a random half of all faults and operations, since a fault that is
//! always there hides what only comes to light without it.

use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos, SECOND};

macro_rules! kinds {
    ($(#[doc = $about:literal])+ $kind:ident { $($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+ }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $kind { $($(#[doc = $doc])+ $variant),+ }

        impl $kind {
            /// All of them.
            pub const ALL: &[$kind] = &[$($kind::$variant),+];

            /// Its name on a command line.
            pub fn name(self) -> &'static str {
                match self { $($kind::$variant => $name),+ }
            }
        }
    };
}

kinds! {
    /// What may go wrong.
    Fault {
        /// Power goes at one member: what was not synced is kept, lost or torn.
        Power = "power";
        /// Power goes in the middle of a disk operation.
        PowerAtOperation = "power-at-operation";
        /// A process is killed; what it wrote stays in the page cache.
        Kill = "kill";
        /// A process is stopped in order and started again.
        Stop = "stop";
        /// A process stands still for a while.
        Pause = "pause";
        /// Power goes at several members at once, perhaps all.
        Blackout = "blackout";
        /// A member's clock runs too fast or too slow.
        Drift = "drift";
        /// A member's clock jumps forward.
        Jump = "jump";
        /// Some members do not hear others, nor are heard.
        Partition = "partition";
        /// Some members do not hear others, but are heard.
        OneWay = "one-way";
        /// Single messages are lost.
        Loss = "loss";
        /// Messages come twice.
        Duplication = "duplication";
        /// Messages overtake each other.
        Reordering = "reordering";
        /// Some links are slow.
        SlowLink = "slow-link";
        /// Snapshots break off.
        Break = "break";
        /// A disk takes no writes for a while, and says nothing.
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
        /// A disk fails for ever: the member is replaced.
        DiskLost = "disk-lost";
        /// A bit of synced data turns around.
        Decay = "decay";
        /// Clients are cut off from a member, or answers to them are lost.
        ClientLoss = "client-loss";
        /// Members have different flags, and others after every start, as in a rolling change.
        Flags = "flags";
        /// Connections between members break at any message, with all that is under way on them.
        Cut = "cut";
        /// Members are removed down to the last but one, leaders as often as others.
        Shrink = "shrink";
        /// Disks are small until the end: room has to come back by deletions and compactions.
        Tight = "tight";
        /// Quotas are near what clients write.
        Quota = "quota";
        /// Some members speak as etcd does: proposals are taken in any term and handed on, extensions are unknown.
        Etcd = "etcd";
        /// A follower that has handed a write on is cut off until it needs a snapshot; then its leader ends, or it does.
        Strand = "strand";
        /// A leader is stopped or stands still while it renews leases.
        Ambush = "ambush";
        /// Nobody can take over from a leader that is being removed: the disks of the others take nothing for a while.
        NoHeir = "no-heir";
        /// A leader that is being removed ends as soon as it has applied that, with all that it has sent since.
        Farewell = "farewell";
        /// Any operation on files fails, with any error.
        FileError = "file-error";
        /// A machine is suspended: its process and its clock stand still, and the world goes on.
        Suspend = "suspend";
        /// A disk says that it has written and synced something, and has not.
        LostWrite = "lost-write";
        /// A disk writes something to another place than it was told, and says nothing.
        Misdirected = "misdirected-write";
        /// A member's time of day jumps, forwards or back, or begins at every start where it began before.
        Wall = "wall-clock";
    }
}

kinds! {
    /// What clients do.
    Work {
        /// Puts, now and then with a lease, or with the value before.
        Put = "put";
        /// Deletions of one key or of some.
        Delete = "delete";
        /// Linearizable ranges.
        Range = "range";
        /// Serializable ranges.
        Stale = "stale";
        /// Ranges at a revision of the past.
        History = "history";
        /// Transactions: compare and set, several operations, nested.
        Txn = "txn";
        /// Compactions.
        Compact = "compact";
        /// Leases: grant, renew, revoke, look at, and let run out.
        Lease = "lease";
        /// Locks, by lease and transaction.
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
        /// Leases renewed at the last moment.
        Keep = "keep";
        /// Values made of records of the log that ids and numbers which clients know are guessed from.
        Forged = "forged";
        /// Deep and large transactions, values that look like records, a thousand leases, watches in a bad order.
        Hostile = "hostile";
        /// Users, roles and tokens: permissions come and go.
        Users = "users";
        /// Leases revoked and granted again under the same id, most of them right before their end.
        Regrant = "regrant";
    }
}

/// A set of faults or of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(pub u64);

impl Kinds {
    /// Whether it holds this one; a kind is cast to its number.
    pub fn has(self, kind: u8) -> bool {
        self.0 & (1 << kind) != 0
    }

    /// With this one.
    pub fn with(self, kind: u8) -> Kinds {
        Kinds(self.0 | 1 << kind)
    }

    /// Without this one.
    pub fn without(self, kind: u8) -> Kinds {
        Kinds(self.0 & !(1 << kind))
    }
}

/// Operations of clients in a run, more or less.
const OPERATIONS_MAX: u64 = 2500;
/// `--quota-backend-bytes` where quotas are nothing to think of.
const QUOTA_BYTES: u64 = 2 << 30;
/// What no seed has by itself, since the product does not stand it yet: `--with` turns it on.
const HELD_BACK: &[Fault] = &[Fault::Tight];
/// What was added later: one seed of so many has it, whatever else it has.
const WITH_OWN_DICE: &[(Fault, u64)] = &[
    (Fault::FileError, 3),
    (Fault::Suspend, 4),
    (Fault::LostWrite, 5),
    (Fault::Misdirected, 5),
    (Fault::Wall, 4),
];
/// What needs a world made for it: a seed has it seldom, whatever else it has. See [`Profile::arrange`].
const STAGED: &[(Fault, u64)] = &[
    (Fault::Strand, 6),
    (Fault::Ambush, 8),
    (Fault::NoHeir, 12),
    (Fault::Farewell, 16),
    (Fault::Shrink, 4),
    (Fault::Tight, 10),
];

/// What may hold up a revocation for seconds.
pub(crate) const SLOW: &[Fault] =
    &[Fault::Pause, Fault::Suspend, Fault::Jump, Fault::Stall, Fault::SlowDisk, Fault::Full, Fault::SlowLink];

/// The flags of a member, as far as they may differ between members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// `--election-timeout`.
    pub election: Nanos,
    /// `--heartbeat-interval`.
    pub heartbeat: Nanos,
    /// `--pre-vote`.
    pub pre_vote: bool,
    /// `--snapshot-count`: entries without which no checkpoint is taken.
    pub snapshot_count: u64,
    /// `--snapshot-catchup-entries`: entries kept behind a checkpoint for followers.
    pub catchup_entries: u64,
    /// `--max-learners`.
    pub learners_max: u64,
    /// `--quota-backend-bytes`.
    pub quota_bytes: u64,
    /// `--max-txn-ops`.
    pub txn_ops_max: u64,
    /// `--max-request-bytes`.
    pub request_bytes_max: u64,
    /// `--compaction-batch-limit`.
    pub compaction_batch: u64,
    /// `--strict-reconfig-check`.
    pub strict: bool,
    /// `--initial-election-tick-advance`.
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

/// What a seed's world is like.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The seed itself.
    pub seed: u64,
    /// Members at the beginning, which all vote.
    pub members: usize,
    /// Clients that do one operation at a time.
    pub clients: usize,
    /// Watch streams at once.
    pub watchers: usize,
    /// Keys that clients use.
    pub keys: u64,
    /// What may go wrong.
    pub faults: Kinds,
    /// What clients do.
    pub work: Kinds,
    /// How much of each sort of work, in the order of [`Work::ALL`].
    pub weights: Vec<u64>,
    /// Mean time between two faults.
    pub fault_every: Nanos,
    /// Mean time between two looks of the operator.
    pub operator_every: Nanos,
    /// Mean time that a client waits between two operations.
    pub think: Nanos,
    /// How long faults happen.
    pub chaos: Nanos,
    /// Mean time that a message takes.
    pub delay: Nanos,
    /// Mean time that a turn of the log takes.
    pub sync: Nanos,
    /// Mean time between something being to do for a member and its doing it.
    pub turn: Nanos,
    /// The flags of all members, unless they differ.
    pub flags: Flags,
    /// Bytes of a segment of the log.
    pub segment_bytes: u32,
    /// Entries between checkpoints.
    pub checkpoint_entries: u64,
    /// Bytes of a disk, when disks are small.
    pub disk_bytes: u64,
    /// Bytes that may be under way to a follower, if that is not the usual number.
    pub window_bytes: Option<usize>,
    /// Leases that a crowd is granted at once; 0 for no crowd.
    pub crowd: u64,
    /// Bytes of the largest values, where disks are large.
    value_bytes: u64,
    /// Of the batches that wait for it the log takes so many at once, if not all: the others came while it was writing.
    pub log_batches: Option<usize>,
    /// Values that are not at hand are read when the disk comes to it, and so much later on average while there are faults;
    /// `None`: at once.
    pub reads: Option<Nanos>,
    /// Whether tokens are signed, and of the auth revision at which they were given out; members keep the others.
    pub signed_tokens: bool,
    /// What the work in the background takes for each step beside the disk's time, on average.
    pub background: Nanos,
}

impl Profile {
    /// The world of a seed.
    pub fn of(seed: u64) -> Profile {
        let mut rng = Rng::stream(seed, "profile");
        let members = rng.pick(&[1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 4, 5, 5, 7]);
        let half = |rng: &mut Rng, count: usize| {
            // Now and then none or all.
            match rng.below(10) {
                0 => 0,
                1 => (1 << count) - 1,
                2 | 3 => rng.draw() & rng.draw(),
                _ => rng.draw(),
            }
        };
        // What has its own dice leaves the others' as they are.
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
        // Without writes there is nothing to lose.
        work |= 1 << Work::Put as u8;
        let mut flags = Flags::draw(&mut rng);
        flags.learners_max = 2;
        if faults.has(Fault::Quota as u8) {
            flags.quota_bytes = rng.pick(&[32, 64, 200]) << 10;
        }
        let clients = rng.pick(&[2, 3, 5, 8]);
        let think = rng.pick(&[5, 20, 50, 100]) * MILLI;
        // Where clients do much in little time there is no need for much time.
        let chaos = rng.between(5, 25) * SECOND;
        let chaos = chaos.min((OPERATIONS_MAX * think / clients as u64).max(4 * SECOND));
        // Values as large as the smallest segments would have every segment mostly made of its header.
        let large = work & 1 << Work::BigValues as u8 != 0;
        let sizes: &[u32] = if large { &[64, 64, 128, 256] } else { &[16, 16, 32, 32, 64, 256] };
        let mut segment_bytes: u32 = rng.pick(sizes) << 10;
        // Where large values are written in groups and nothing is compacted, there are soon more segments of the smallest size than
        // one of them can list; a member's are larger, for the disk that they are on.
        let does = |kind: Work| work & 1 << kind as u8 != 0;
        if does(Work::Forged) && does(Work::Hostile) && !does(Work::Compact) {
            segment_bytes = segment_bytes.max(64 << 10);
        }
        let mut paces = Rng::stream(seed, "paces");
        let mut checkpoint_entries = rng.pick(&[5, 20, 50, 200]);
        if paces.one_in(3) {
            // Who lags a little gets a snapshot.
            (flags.catchup_entries, flags.snapshot_count, checkpoint_entries) = (1, 1, 5);
        }
        Profile {
            seed,
            members,
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

    /// Makes the world fit what happens in it, as far as that needs a certain one. To be called once it is known what
    /// may go wrong.
    pub fn arrange(&mut self) {
        let mut rng = Rng::stream(self.seed, "arrangement");
        let works = |work: Work| 1 << work as u8;
        if self.works(Work::Users) {
            // What these look for needs clients without tokens, and alarms that anybody may take back.
            let without = STAGED.iter().map(|(fault, _)| *fault).chain([Fault::Quota, Fault::Full]);
            without.for_each(|fault| self.faults = self.faults.without(fault as u8));
            self.work = self.work.without(Work::Keep as u8).without(Work::Regrant as u8);
            self.crowd = 0;
            self.chaos = self.chaos.max(8 * SECOND);
        }
        if self.works(Work::Regrant) {
            // What is revoked and granted again has to wait for the disk while the time of the old lease runs out.
            self.work.0 |= works(Work::Keep);
            self.faults = self.faults.with(Fault::Stall as u8).without(Fault::Quota as u8);
        }
        if self.fails(Fault::Strand) {
            // Soon somebody who was away needs a snapshot.
            self.flags.catchup_entries = rng.pick(&[1, 5]);
            self.flags.snapshot_count = 1;
            self.checkpoint_entries = 5;
            self.think = self.think.min(20 * MILLI);
            self.work.0 |= rng.pick(&[0, works(Work::Watch) | works(Work::Compact)]);
            self.members = self.members.max(3);
        }
        if !self.works(Work::Hostile) || self.fails(Fault::Tight) {
            // A small disk has no room for a state of thousands of leases.
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
            // Handing over has to succeed.
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
        if !self.fails(Fault::Quota) {
            self.flags.quota_bytes = 2 << 30;
        }
        if !self.fails(Fault::Quota) {
            self.flags.quota_bytes = QUOTA_BYTES;
        }
    }

    /// Whether the member at a place speaks as etcd does; one at least does not.
    pub fn is_etcd(&self, place: usize) -> bool {
        let mut rng = Rng::stream(self.seed, "etcd");
        let own = rng.place(self.members);
        self.fails(Fault::Etcd) && place != own && rng.draw() >> (place % 64) & 1 == 1
    }

    /// Bytes of the largest values. On a small disk one must leave room for others.
    pub fn value_bytes(&self) -> u64 {
        if self.fails(Fault::Tight) { u64::from(self.segment_bytes / 4) } else { self.value_bytes }
    }

    /// Whether views are held for long by those who wait for values: much has to be fetched, and slowly.
    pub fn reads_slowly(&self) -> bool {
        self.reads.is_some_and(|mean| mean >= 300 * MILLI)
    }

    /// Bytes of every disk, if they are small.
    pub fn capacity(&self) -> Option<u64> {
        self.fails(Fault::Tight).then_some(self.disk_bytes)
    }

    /// The flags of the member at a place in one of its lives.
    pub fn flags_of(&self, place: usize, life: u64) -> Flags {
        if !self.fails(Fault::Flags) {
            return self.flags.clone();
        }
        let mut rng = Rng::stream(self.seed, &format!("flags {place} {life}"));
        let mut flags = Flags::draw(&mut rng);
        // Without it a member with a short timeout and a short log campaigns for ever before others can, as in etcd.
        flags.pre_vote = true;
        if self.fails(Fault::Quota) {
            flags.quota_bytes = rng.pick(&[32, 64, 200]) << 10;
        }
        flags
    }

    /// Whether this may go wrong.
    pub fn fails(&self, fault: Fault) -> bool {
        self.faults.has(fault as u8)
    }

    /// Returns true if members may find values that they cannot read from their disk.
    pub fn reads_fail(&self) -> bool {
        let faults = [Fault::ReadError, Fault::Decay, Fault::LostWrite, Fault::Misdirected];
        faults.iter().any(|fault| self.fails(*fault))
    }

    /// Whether clients do this.
    pub fn works(&self, work: Work) -> bool {
        self.work.has(work as u8)
    }

    /// The world in a few words.
    pub fn describe(&self) -> String {
        let faults: Vec<&str> = Fault::ALL.iter().filter(|f| self.fails(**f)).map(|f| f.name()).collect();
        let work: Vec<&str> = Work::ALL.iter().filter(|w| self.works(**w)).map(|w| w.name()).collect();
        format!(
            "{} members, {} clients, {} s of faults [{}], work [{}], delay {} us, sync {} us, turn {} us, \
             election {} ms, pre-vote {}, catch-up {} entries, segments {} KiB, checkpoints {} entries",
            self.members,
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
