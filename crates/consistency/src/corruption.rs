//! Makes etcd's checks that all members have the same data, which compare the hashes of HashKV: once when a
//! member starts, and regularly on the leader. As in etcd, they compare only keys and values, and they name
//! the member as corrupt that etcd would name.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::comparison::{HashAnswer, HashError, Hashed, hash_of, hashes_of_others};
use crate::options::Options;
use api::Status;
use numbers::Revision;
use replica::core::{ClientRequest, ControlRequest, ReplyBody};
use replica::shared::Shared;
use storage::block_on::block_on;
use storage::compaction_hash::KnownHash;
use telemetry::logging::{Logger, Value};

/// Result of comparing the hashes of another member and of this member when this member starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// The hashes are equal.
    Same,
    /// The hashes differ although the compact revisions are equal. So the data of one of the members is
    /// corrupt.
    Differs,
    /// The hashes differ, but so do the compact revisions. This is no proof of corruption, because compacted
    /// data is not part of the hash.
    NotComparable,
    /// The other member has returned no hash, for example because it has not reached this revision.
    Unknown,
}

/// Reason why a member does not start after its initial corruption check. The messages are etcd's.
#[derive(Debug)]
pub enum InitialCheckError {
    /// This member's state cannot be hashed.
    NoHash {
        /// Id of this member.
        member_id: u64,
        /// Reason why the state cannot be hashed.
        error: HashError,
    },
    /// Another member has different data than this member.
    Differs {
        /// Id of the member that does not start.
        member_id: u64,
    },
}

impl fmt::Display for InitialCheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitialCheckError::NoHash { member_id, error } => {
                write!(f, "{member_id:x} failed to fetch hash ({error})")
            }
            InitialCheckError::Differs { member_id } => {
                write!(f, "{member_id:x} found data inconsistency with peers")
            }
        }
    }
}

impl std::error::Error for InitialCheckError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            InitialCheckError::NoHash { error, .. } => Some(error),
            InitialCheckError::Differs { .. } => None,
        }
    }
}

/// Reason why the leader could not compare the states of the members.
#[derive(Debug)]
enum CheckError {
    /// This member's state cannot be hashed.
    Hash(HashError),
    /// The linearizable read that the check needs has failed.
    Read(Status),
    /// The member is stopping.
    Stopping,
}

impl From<HashError> for CheckError {
    fn from(error: HashError) -> CheckError {
        CheckError::Hash(error)
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::Hash(error) => error.fmt(f),
            CheckError::Read(status) => f.write_str(&status.message),
            CheckError::Stopping => f.write_str("the member is stopping"),
        }
    }
}

impl std::error::Error for CheckError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CheckError::Hash(error) => error.source(),
            CheckError::Read(status) => Some(status),
            CheckError::Stopping => None,
        }
    }
}

/// Compares the response of another member with the hash of this member when this member starts.
pub fn compare_initially(own: &Hashed, answer: &HashAnswer) -> Initial {
    match answer {
        HashAnswer::Hashed(theirs) if theirs.hash == own.hash => Initial::Same,
        HashAnswer::Hashed(theirs) if theirs.compact_revision == own.compact_revision => Initial::Differs,
        HashAnswer::Hashed(_) => Initial::NotComparable,
        _ => Initial::Unknown,
    }
}

/// Compares the data with which this member starts with the data of all other members. Reads all values of
/// this member, and then waits for all responses, at most for the request timeout.
///
/// # Errors
///
/// Returns an error if another member has different data, or this member's data cannot be read.
pub fn check_initially(shared: &Arc<Shared>, logger: &Logger) -> Result<(), InitialCheckError> {
    let id = shared.member.identity.member_id;
    let timeout = shared.member.limits.request_timeout;
    logger.info(
        "starting initial corruption check",
        &[("local-member-id", Value::Id(id)), ("timeout", Value::Duration(timeout))],
    );
    let own = hash_of(shared, Revision(0), &AtomicBool::new(false))
        .map_err(|error| InitialCheckError::NoHash { member_id: id, error })?;
    let mut mismatches = 0;
    for (peer, answer) in block_on(hashes_of_others(shared, own.revision)) {
        let found = compare_initially(&own, &answer);
        let text = match (&answer, found) {
            (_, Initial::Same) => continue,
            (_, Initial::Differs) => "found different hash values from remote peer",
            (_, Initial::NotComparable) => "found different compact revision values from remote peer",
            (HashAnswer::Future, _) => "cannot fetch hash from slow remote peer",
            (HashAnswer::Compacted, _) => "cannot fetch hash from remote peer; local member is behind",
            (HashAnswer::OtherCluster, _) => "cluster ID mismatch",
            _ => "failed hash kv request",
        };
        let mut fields = vec![
            ("local-member-id", Value::Id(id)),
            ("local-member-revision", Value::Int(own.revision.0)),
            ("local-member-compact-revision", Value::Int(own.compact_revision.0)),
            ("local-member-hash", Value::Uint(u64::from(own.hash))),
            ("remote-peer-id", Value::Id(peer)),
        ];
        match &answer {
            HashAnswer::Hashed(theirs) => fields.extend([
                ("remote-peer-revision", Value::Int(theirs.current_revision.0)),
                ("remote-peer-compact-revision", Value::Int(theirs.compact_revision.0)),
                ("remote-peer-hash", Value::Uint(u64::from(theirs.hash))),
            ]),
            HashAnswer::Nothing(why) => fields.push(("error", Value::Str(why))),
            _ => {}
        }
        logger.warn(text, &fields);
        mismatches += usize::from(found == Initial::Differs);
    }
    if mismatches > 0 {
        return Err(InitialCheckError::Differs { member_id: id });
    }
    logger.info("initial corruption checking passed; no corruption", &[("local-member-id", Value::Id(id))]);
    Ok(())
}

/// Returns the findings of the leader's periodic check. Each consists of the member that is corrupt according
/// to etcd's rules, and the reason. The alarm names only the member of the first finding, as in etcd.
///
/// `first` is the hash of this member, the leader, before it requested the hashes of the others. `second` is
/// its hash after their responses and a linearizable read.
pub fn compare_periodically(
    leader: u64,
    first: &Hashed,
    second: &Hashed,
    answers: &[(u64, HashAnswer)],
) -> Vec<(u64, &'static str)> {
    let mut found = Vec::new();
    let same_moment = (first.revision, first.compact_revision) == (second.revision, second.compact_revision);
    if same_moment && first.hash != second.hash {
        found.push((leader, "found hash mismatch"));
    }
    for (id, answer) in answers {
        let HashAnswer::Hashed(theirs) = answer else { continue };
        if theirs.current_revision > second.current_revision {
            found.push((*id, "revision from follower must be less than or equal to leader's"));
        }
        if theirs.compact_revision > second.compact_revision {
            found.push((*id, "compact revision from follower must be less than or equal to leader's"));
        }
        if theirs.compact_revision == first.compact_revision && theirs.hash != first.hash {
            found.push((*id, "same compact revision then hashes must match"));
        }
    }
    found
}

/// Returns the members that the alarm should name. The members of each group have the same data; `members` is
/// the number of all members of the cluster. If there is only one group, returns an empty list. If one group
/// is a majority of all members, returns the members of the other groups. Otherwise it is not known which
/// data is correct, and the result is 0, which stands for an unknown member.
pub fn minority(groups: &[Vec<u64>], members: usize) -> Vec<u64> {
    if groups.len() < 2 {
        return Vec::new();
    }
    let Some(majority) = groups.iter().position(|group| group.len() > members / 2) else { return vec![0] };
    let others = groups.iter().enumerate().filter(|(at, _)| *at != majority);
    others.flat_map(|(_, group)| group.iter().copied()).collect()
}

/// The result of comparing the hashes of one compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfCompaction {
    /// All members have the same hash.
    Same,
    /// Only some of the other members could be compared, and they have the same hash. Contains their number.
    Incomplete(usize),
    /// The hashes differ. Contains the members that the alarm should name (see [`minority`]).
    Differs(Vec<u64>),
}

/// Compares the leader's hash of a compaction with the hashes of the other members.
pub fn compare_compaction(leader: u64, ours: KnownHash, answers: &[(u64, HashAnswer)]) -> OfCompaction {
    let mut groups: Vec<(u32, Vec<u64>)> = vec![(ours.hash, vec![leader])];
    let mut compared = 0;
    for (id, answer) in answers {
        let HashAnswer::Hashed(theirs) = answer else { continue };
        if theirs.compact_revision != ours.compact_revision {
            continue;
        }
        compared += 1;
        match groups.iter_mut().find(|(hash, _)| *hash == theirs.hash) {
            Some((_, group)) => group.push(*id),
            None => groups.push((theirs.hash, vec![*id])),
        }
    }
    let groups: Vec<Vec<u64>> = groups.into_iter().map(|(_, group)| group).collect();
    if groups.len() > 1 {
        OfCompaction::Differs(minority(&groups, answers.len() + 1))
    } else if compared == answers.len() {
        OfCompaction::Same
    } else {
        OfCompaction::Incomplete(compared)
    }
}

/// Interval of one kind of check, and the time of the next check.
#[derive(Clone, Copy)]
struct Timer {
    interval: Duration,
    due: Instant,
}

impl Timer {
    fn new(interval: Duration, now: Instant) -> Option<Timer> {
        let due = now.checked_add(interval)?;
        (!interval.is_zero()).then_some(Timer { interval, due })
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.due;
        if due {
            self.due = now.checked_add(self.interval).unwrap_or(self.due);
        }
        due
    }
}

/// The corruption checks that the leader makes regularly. They run on a separate thread, because they may
/// read all data. A check begins only after the previous one has ended.
pub struct CorruptionChecks {
    checker: Arc<Checker>,
    periodic: Option<Timer>,
    of_compactions: Option<Timer>,
    running: Option<JoinHandle<()>>,
}

struct Checker {
    shared: Arc<Shared>,
    logger: Arc<Logger>,
    stop: AtomicBool,
    /// Highest revision of a compaction whose hash was equal on all members. Compactions up to it are not
    /// compared again.
    checked_through: AtomicI64,
}

impl CorruptionChecks {
    /// Returns the checks that the configuration enables.
    pub fn new(
        shared: &Arc<Shared>,
        logger: &Arc<Logger>,
        options: &Options,
        now: Instant,
    ) -> CorruptionChecks {
        let periodic = Timer::new(options.corrupt_check_interval, now);
        if periodic.is_some() {
            let id = Value::Id(shared.member.identity.member_id);
            let interval = Value::Duration(options.corrupt_check_interval);
            logger.info("enabled corruption checking", &[("local-member-id", id), ("interval", interval)]);
        }
        CorruptionChecks {
            checker: Arc::new(Checker {
                shared: Arc::clone(shared),
                logger: Arc::clone(logger),
                stop: AtomicBool::new(false),
                checked_through: AtomicI64::new(0),
            }),
            periodic,
            of_compactions: Timer::new(options.compact_hash_check_interval, now),
            running: None,
        }
    }

    /// Returns whether the periodic check is due, and whether the check of compactions is due; `None` if
    /// neither is, or if this member is not the leader.
    fn due(&mut self, leads: bool, now: Instant) -> Option<(bool, bool)> {
        let periodic = self.periodic.as_mut().is_some_and(|timer| timer.is_due(now));
        let compactions = self.of_compactions.as_mut().is_some_and(|timer| timer.is_due(now));
        (leads && (periodic || compactions)).then_some((periodic, compactions))
    }

    /// Makes the checks that are due, on the calling thread, if this member is the leader (`leads`).
    pub async fn turn_here(&mut self, leads: bool, now: Instant) {
        if let Some((periodic, compactions)) = self.due(leads, now) {
            self.checker.run(periodic, compactions).await;
        }
    }

    /// Starts the checks that are due, on a separate thread, if this member is the leader (`leads`). Does
    /// nothing while earlier checks are running. Does not block.
    pub fn turn(&mut self, leads: bool, now: Instant) {
        if self.running.as_ref().is_some_and(|running| !running.is_finished()) {
            return;
        }
        let Some((periodic, compactions)) = self.due(leads, now) else { return };
        let checker = Arc::clone(&self.checker);
        let spawned = std::thread::Builder::new().name("corruption".to_owned()).spawn(move || {
            block_on(checker.run(periodic, compactions));
        });
        match spawned {
            Ok(running) => self.running = Some(running),
            Err(why) => {
                let fields = [("error", Value::Display(&why))];
                self.checker.logger.warn("cannot start the thread that checks for corruption", &fields);
            }
        }
    }

    /// Makes a running check end early. Does not wait until it has ended, because it may be waiting for other
    /// members.
    pub fn stop(&self) {
        self.checker.stop.store(true, Ordering::Relaxed);
    }
}

impl Checker {
    async fn run(&self, periodic: bool, compactions: bool) {
        if periodic && let Err(error) = self.check().await {
            self.logger.warn("failed to check hash KV", &[("error", Value::Str(&error.to_string()))]);
        }
        if compactions {
            self.check_compactions().await;
        }
    }

    fn name(&self, id: u64) {
        self.shared.core.inbox.send(ControlRequest::Corrupt(id));
    }

    async fn check(&self) -> Result<(), CheckError> {
        let first = hash_of(&self.shared, Revision(0), &self.stop)?;
        let answers = hashes_of_others(&self.shared, first.revision).await;
        let reply = self.shared.core.ask(ClientRequest::Read).await.map_err(CheckError::Read)?;
        match reply.body {
            ReplyBody::Readable(_) => {}
            ReplyBody::Outcome(Err(status), _) => return Err(CheckError::Read(status)),
            _ => return Err(CheckError::Stopping),
        }
        let second = hash_of(&self.shared, Revision(0), &self.stop)?;
        let found = compare_periodically(self.shared.member.identity.member_id, &first, &second, &answers);
        for (id, why) in &found {
            let theirs = answers.iter().find_map(|(peer, answer)| match answer {
                HashAnswer::Hashed(theirs) if peer == id => Some(theirs),
                _ => None,
            });
            let mut fields = vec![
                ("member-id", Value::Id(*id)),
                ("revision-1", Value::Int(first.revision.0)),
                ("compact-revision-1", Value::Int(first.compact_revision.0)),
                ("hash-1", Value::Uint(u64::from(first.hash))),
                ("revision-2", Value::Int(second.revision.0)),
                ("compact-revision-2", Value::Int(second.compact_revision.0)),
                ("hash-2", Value::Uint(u64::from(second.hash))),
            ];
            if let Some(theirs) = theirs {
                fields.extend([
                    ("follower-revision", Value::Int(theirs.current_revision.0)),
                    ("follower-compact-revision", Value::Int(theirs.compact_revision.0)),
                    ("follower-hash", Value::Uint(u64::from(theirs.hash))),
                ]);
            }
            self.logger.warn(why, &fields);
        }
        if let Some((id, _)) = found.first() {
            self.name(*id);
        }
        let checked = answers.iter().filter(|(_, answer)| matches!(answer, HashAnswer::Hashed(_))).count();
        let checked = Value::Uint(checked as u64);
        self.logger.info("finished peer corruption check", &[("number-of-peers-checked", checked)]);
        Ok(())
    }

    /// Compares the hashes of the last compactions with those of the other members, newest first. Stops at
    /// the first compaction whose hashes differ, or are equal on all members, now or in an earlier check.
    async fn check_compactions(&self) {
        let leader = self.shared.member.identity.member_id;
        let checked_through = self.checked_through.load(Ordering::Relaxed);
        let known = self.shared.data.compaction_hashes.known();
        let mut checked = 0u64;
        for ours in known {
            let KnownHash { revision, compact_revision, hash } = ours;
            if revision <= Revision(checked_through) || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let answers = hashes_of_others(&self.shared, revision).await;
            if answers.is_empty() {
                continue;
            }
            checked += 1;
            let fields = |rest: &[(&'static str, u64)]| {
                let mut fields = vec![
                    ("leader-id", Value::Id(leader)),
                    ("revision", Value::Int(revision.0)),
                    ("compact-revision", Value::Int(compact_revision.0)),
                    ("leader-hash", Value::Uint(u64::from(hash))),
                ];
                fields.extend(rest.iter().map(|(name, value)| (*name, Value::Uint(*value))));
                fields
            };
            let peers = ("number-of-peers", answers.len() as u64);
            match compare_compaction(leader, ours, &answers) {
                OfCompaction::Same => {
                    self.checked_through.fetch_max(revision.0, Ordering::Relaxed);
                    self.logger.info("successfully checked hash on whole cluster", &fields(&[peers]));
                    break;
                }
                OfCompaction::Incomplete(compared) => {
                    self.logger.warn(
                        "skipped revision in compaction hash check; was not able to check all peers",
                        &fields(&[("number-of-peers-checked", compared as u64), peers]),
                    );
                }
                OfCompaction::Differs(named) => {
                    for id in named {
                        let mut fields = fields(&[peers]);
                        fields.push(("member-id", Value::Id(id)));
                        let text = if id == 0 {
                            "Detected compaction hash mismatch but cannot identify the corrupted members"
                        } else {
                            "Detected compaction hash mismatch"
                        };
                        self.logger.error(text, &fields);
                        self.name(id);
                    }
                    break;
                }
            }
        }
        let count = Value::Uint(checked);
        self.logger.info("finished compaction hash check", &[("number-of-hashes-checked", count)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: [u64; 0] = [];

    fn hashed(hash: u32, compact_revision: i64, revision: i64) -> Hashed {
        Hashed {
            hash,
            compact_revision: Revision(compact_revision),
            revision: Revision(revision),
            current_revision: Revision(revision),
        }
    }

    fn told(hash: u32, compact_revision: i64, revision: i64) -> HashAnswer {
        HashAnswer::Hashed(hashed(hash, compact_revision, revision))
    }

    #[test]
    fn at_start_only_equal_compact_revisions_count() {
        let own = hashed(7, 3, 10);
        for (answer, expected) in [
            (told(7, 3, 10), Initial::Same),
            (told(7, 4, 10), Initial::Same),
            (told(8, 3, 10), Initial::Differs),
            (told(8, 4, 10), Initial::NotComparable),
            (HashAnswer::Compacted, Initial::Unknown),
            (HashAnswer::Future, Initial::Unknown),
            (HashAnswer::OtherCluster, Initial::Unknown),
            (HashAnswer::Nothing(String::new()), Initial::Unknown),
        ] {
            assert_eq!(compare_initially(&own, &answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn the_periodic_check_names_whom_etcd_names() {
        let named = |first: Hashed, second: Hashed, answers: &[(u64, HashAnswer)]| {
            let found = compare_periodically(1, &first, &second, answers);
            found.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
        };
        let own = hashed(7, 3, 10);
        let same = [(2, told(7, 3, 10)), (3, HashAnswer::Future)];
        assert_eq!(named(own, own, &same), NOBODY);
        // The leader's own hash changed without a write: an error of its memory or disk.
        assert_eq!(named(own, hashed(8, 3, 10), &same), [1]);
        assert_eq!(named(own, hashed(8, 3, 11), &same), NOBODY, "a write came between");
        assert_eq!(named(own, hashed(8, 4, 10), &same), NOBODY, "a compaction came between");
        assert_eq!(named(own, own, &[(2, told(8, 3, 10)), (3, told(9, 3, 10))]), [2, 3]);
        assert_eq!(named(own, own, &[(2, told(8, 2, 10))]), NOBODY, "another compact revision");
        let ahead = Hashed { current_revision: Revision(11), ..own };
        assert_eq!(named(own, own, &[(2, HashAnswer::Hashed(ahead))]), [2]);
        assert_eq!(
            named(own, ahead, &[(2, HashAnswer::Hashed(ahead))]),
            NOBODY,
            "the leader has come to it since"
        );
        assert_eq!(named(own, own, &[(2, told(8, 4, 10))]), [2], "compacted what the leader has not");
        assert_eq!(named(own, hashed(9, 4, 10), &[(2, told(8, 4, 10))]), NOBODY);
    }

    #[test]
    fn the_minority_is_named() {
        assert_eq!(minority(&[vec![1, 2, 3]], 3), NOBODY);
        assert_eq!(minority(&[vec![1]], 3), NOBODY, "nobody to compare with");
        assert_eq!(minority(&[vec![1, 2], vec![3]], 3), [3]);
        assert_eq!(minority(&[vec![1], vec![2, 3]], 3), [1], "the leader itself");
        assert_eq!(minority(&[vec![1], vec![2]], 3), [0], "the third could decide");
        assert_eq!(minority(&[vec![1], vec![2]], 2), [0]);
        assert_eq!(minority(&[vec![1, 2], vec![3, 4]], 4), [0]);
        assert_eq!(minority(&[vec![1, 2, 5], vec![3], vec![4]], 5), [3, 4]);
        assert_eq!(minority(&[vec![1, 2], vec![3], vec![4]], 5), [0]);
    }

    #[test]
    fn hashes_of_compactions_are_compared_where_members_have_them() {
        let ours = KnownHash { revision: Revision(10), compact_revision: Revision(3), hash: 7 };
        let compare = |answers: &[(u64, HashAnswer)]| compare_compaction(1, ours, answers);
        assert_eq!(compare(&[(2, told(7, 3, 10)), (3, told(7, 3, 10))]), OfCompaction::Same);
        assert_eq!(compare(&[(2, told(7, 3, 10)), (3, HashAnswer::Compacted)]), OfCompaction::Incomplete(1));
        // Another previous compact revision: the member missed a compaction, and may differ.
        assert_eq!(compare(&[(2, told(8, 2, 10)), (3, told(7, 3, 10))]), OfCompaction::Incomplete(1));
        assert_eq!(compare(&[(2, told(8, 3, 10)), (3, told(7, 3, 10))]), OfCompaction::Differs(vec![2]));
        assert_eq!(compare(&[(2, told(8, 3, 10)), (3, told(8, 3, 10))]), OfCompaction::Differs(vec![1]));
        assert_eq!(compare(&[(2, told(8, 3, 10)), (3, HashAnswer::Future)]), OfCompaction::Differs(vec![0]));
        assert_eq!(compare(&[(2, told(8, 3, 10))]), OfCompaction::Differs(vec![0]));
    }

    #[test]
    fn a_timer_is_due_once_an_interval() {
        let now = Instant::now();
        assert!(Timer::new(Duration::ZERO, now).is_none(), "never");
        let mut timer = Timer::new(Duration::from_secs(2), now).expect("is one");
        let at = |seconds| now + Duration::from_secs(seconds);
        let due: Vec<bool> = [1, 2, 3, 4, 20, 21].into_iter().map(|s| timer.is_due(at(s))).collect();
        assert_eq!(due, [false, true, false, true, true, false]);
    }
}
