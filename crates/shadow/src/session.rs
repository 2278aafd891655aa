//! Follows the source over one watch: applies its revisions, follows its compactions and leases, and compares.

use std::collections::{BTreeSet, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::mvccpb::Event;
use client::{WatchUpdate, Watcher};
use prost::Message as _;
use stdx::{First, race};
use telemetry::logging::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::comparison::{Comparison, Outcome};
use crate::copy::{Copy, Step};
use crate::follow::{End, Shadow};
use crate::source::Source;
use crate::trouble::Trouble;

/// Interval at which the source is asked for its revision and compact revision.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Number of these questions after which the members are asked for alarms.
const ALARM_ROUNDS: u64 = 6;
/// Interval at which the leases without keys are compared.
const LEASE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which the state is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(600);
/// Interval at which metrics are updated.
const TICK: Duration = Duration::from_secs(1);
/// Number of updates of the watch, and their bytes, above which those that have arrived are applied.
const GATHERED_MAX: usize = 256;
const GATHERED_BYTES: usize = 16 << 20;
/// Maximum number of reports of the tasks that wait to be taken.
const REPORTS_MAX: usize = 4;
/// Number of attempts to make a comparison whose hashes are not comparable, for example because the source has just
/// been compacted.
const ATTEMPTS_MAX: u32 = 5;
/// Interval at which differences are examined at most, because that reads all keys of the source in the worst case.
const EXAMINE_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Longest rest between two comparisons.
const REST_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time after which a watch that has not opened is logged.
const OPENING_PATIENCE: Duration = Duration::from_secs(30);
/// Shortest and longest time after which the watch is opened again if the source is ahead and the copy does not move. It
/// is doubled each time, because the changes of one revision may need long.
pub(crate) const STANDSTILL_PATIENCE: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(3600));

/// The watch, with the wait for its next update. The wait is kept until it has ended: opening a watch may take longer
/// than the session can wait at a time, and must not begin anew each time.
type Waiting = Pin<Box<dyn Future<Output = (Watcher, Result<Option<WatchUpdate>, Status>)> + Send>>;

fn waiting(mut watcher: Watcher) -> Waiting {
    Box::pin(async move {
        let update = watcher.next().await;
        (watcher, update)
    })
}

/// A report of a task about the source.
enum Report {
    /// The source has this revision and compact revision. The copy had the revision `own` before the source was asked.
    Position { revision: i64, compact_revision: i64, own: i64 },
    /// Alarms that the members of the source report.
    Alarms(BTreeSet<String>),
    /// Ids of all leases of the source, and the TTLs of those that the copy lacked.
    Leases(HashSet<i64>, Vec<(i64, i64)>),
    /// A comparison has ended. The duration is the time that a member needed for its hash.
    Compared(Due, i64, Duration, Result<Outcome, Trouble>),
    /// The source does not answer.
    Trouble(Trouble),
}

/// A comparison that is to be made.
#[derive(Clone, Copy, Debug)]
struct Due {
    /// The revision of a compaction; `None` for the newest revision.
    compaction: Option<i64>,
    attempts: u32,
    /// Time before which it is not made.
    not_before: Instant,
}

/// One watch of the source, and what is under way.
pub(crate) struct Session<'a> {
    shadow: &'a mut Shadow,
    copy: &'a mut Copy,
    source: Source,
    tasks: JoinSet<()>,
    reports: mpsc::Sender<Report>,
    /// Compact revision of the source, if the copy still has to be compacted there.
    compaction: Option<i64>,
    /// The next comparison; `None` if none is due.
    due: Option<Due>,
    is_comparing: bool,
    is_matching_leases: bool,
    next_leases: Instant,
    next_report: Instant,
    began: Instant,
    /// Number of times that the watch was created, up to the last update.
    times_created: u64,
    /// True if the next revision may come from the history of the source.
    is_catching_up: bool,
    /// True if the next revision is the first since the watch was opened or opened again.
    is_reopened: bool,
    /// The revision of the copy at which the source was first found ahead, and when. `None` while it is not.
    standstill: Option<(i64, Instant)>,
}

impl Session<'_> {
    /// Time for which the position of the source is news.
    pub(crate) const LAG_PATIENCE: Duration = Duration::from_secs(12);
    /// Time after which a session counts as successful.
    pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(10);

    /// Follows the source until the shadow is asked to stop or the source stops answering for good.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the session has ended.
    pub(crate) async fn run(shadow: &mut Shadow, copy: &mut Copy) -> Result<End, Trouble> {
        let stop = shadow.stop.clone();
        match race(copy.begin(), stop.asked()).await {
            First::Left(begun) => begun?,
            First::Right(()) => return Ok(End::Stopped),
        }
        let source = match race(connect(shadow, copy), stop.asked()).await {
            First::Left(connected) => connected?,
            First::Right(()) => return Ok(End::Stopped),
        };
        let mut waiting = waiting(source.watch(copy.revision() + 1));
        let (reports, mut reported) = mpsc::channel(REPORTS_MAX);
        let now = Instant::now();
        let mut session = Session {
            shadow,
            copy,
            source,
            tasks: JoinSet::new(),
            reports,
            compaction: None,
            due: None,
            is_comparing: false,
            is_matching_leases: false,
            next_leases: now,
            next_report: now + REPORT_INTERVAL,
            began: now,
            times_created: 0,
            is_catching_up: false,
            is_reopened: true,
            standstill: None,
        };
        session.watch_position();
        loop {
            let tick = sleep_until(Instant::now() + TICK);
            // The watch comes last but one, because under load it always has something.
            match race(stop.asked(), race(reported.recv(), race(&mut waiting, tick))).await {
                First::Left(()) => return Ok(End::Stopped),
                First::Right(First::Left(report)) => {
                    let Some(report) = report else { continue };
                    if let Some(end) = session.take_report(report).await? {
                        return Ok(end);
                    }
                }
                First::Right(First::Right(First::Left(ready))) => {
                    waiting = session.take_updates(ready).await?;
                }
                First::Right(First::Right(First::Right(()))) => {}
            }
            session.do_what_is_due().await?;
        }
    }

    /// Starts the task that asks the source for its position.
    fn watch_position(&mut self) {
        let (source, copy, reports) = (self.source.clone(), self.copy.reader(), self.reports.clone());
        let (mut known, lag) = (self.copy.compact_revision(), Arc::clone(&self.shadow.lag));
        self.tasks.spawn(async move {
            for round in 0_u64.. {
                let (own, at) = (copy.revision(), std::time::Instant::now());
                let report = match position(&source, known).await {
                    Ok((revision, compact_revision)) => {
                        known = compact_revision;
                        // Not only by the session, which may wait for something else meanwhile.
                        lag.source_had(revision, at);
                        Report::Position { revision, compact_revision, own }
                    }
                    Err(trouble) => Report::Trouble(trouble),
                };
                if reports.send(report).await.is_err() {
                    return;
                }
                if round % ALARM_ROUNDS == 0 {
                    let report = source.alarms().await.map_or_else(Report::Trouble, Report::Alarms);
                    if reports.send(report).await.is_err() {
                        return;
                    }
                }
                sleep(POLL_INTERVAL).await;
            }
        });
    }

    /// Applies an update of the watch, together with those that have already arrived. Returns the wait for the next.
    async fn take_updates(
        &mut self,
        first: (Watcher, Result<Option<WatchUpdate>, Status>),
    ) -> Result<Waiting, Trouble> {
        let mut steps = Vec::new();
        let mut of_history = Vec::new();
        let (mut ready, mut bytes, mut gathered) = (first, 0, 0);
        let next = loop {
            let (watcher, update) = ready;
            let update = update.map_err(|status| Trouble::of_source("watch all keys", &status))?;
            if watcher.times_created() != self.times_created {
                self.times_created = watcher.times_created();
                self.is_reopened = true;
            }
            let planned = self.copy.planned();
            bytes += match self.plan(update, &mut steps) {
                Err(Trouble::Passing(text)) if self.copy.has_gap() => {
                    // A source may have removed whole revisions, if they consisted of deletions.
                    let before = self.copy.planned();
                    return Err(match self.source.is_compacted(before).await? {
                        true => Trouble::Compacted(before + 1),
                        false => Trouble::Passing(text),
                    });
                }
                other => other?,
            };
            if self.copy.planned() > planned {
                let is_reopened = std::mem::take(&mut self.is_reopened);
                if std::mem::take(&mut self.is_catching_up) || is_reopened {
                    of_history.push((planned + 1, is_reopened));
                }
            }
            gathered += 1;
            let mut next = waiting(watcher);
            if gathered == GATHERED_MAX || bytes >= GATHERED_BYTES {
                // The source may have been faster than the shadow, and have put this watch aside.
                self.is_catching_up = true;
                break next;
            }
            match race(&mut next, std::future::ready(())).await {
                First::Left(updated) => ready = updated,
                First::Right(()) => break next,
            }
        };
        self.check_history(&of_history).await?;
        let missing = self.copy.missing_leases(&steps);
        if !missing.is_empty() {
            let ttls = self.source.ttls(missing).await?;
            self.copy.grant(&ttls).await?;
        }
        self.copy.apply(steps).await?;
        self.shadow.lag.reached(self.copy.revision());
        Ok(next)
    }

    /// Checks that revisions at which the source may have begun to read its history were read whole. A compaction at
    /// exactly such a revision may have removed its deletions, and etcd lets a watch go on there. The source is asked after
    /// the revisions have arrived, so a compact revision below them proves that nothing was removed when they were read.
    ///
    /// Each revision comes with whether it is the first of a watch that was opened again. Only that one must be above the
    /// compact revision: the others may have been under way when the source was compacted further on.
    async fn check_history(&self, revisions: &[(i64, bool)]) -> Result<(), Trouble> {
        let Some((first, _)) = revisions.first() else { return Ok(()) };
        if !self.source.is_compacted(first - 1).await? {
            return Ok(());
        }
        for (revision, is_reopened) in revisions {
            let is_below = !self.source.is_compacted(revision - 1).await?;
            if !is_below && (*is_reopened || !self.source.is_compacted(*revision).await?) {
                return Err(Trouble::Compacted(*revision));
            }
        }
        Ok(())
    }

    /// Makes steps of an update of the watch. Returns the bytes of its events.
    fn plan(&mut self, update: Option<WatchUpdate>, steps: &mut Vec<Step>) -> Result<usize, Trouble> {
        match update {
            Some(WatchUpdate::Events(response)) => {
                self.source.check(response.header.as_ref())?;
                let now = std::time::Instant::now();
                let revision = response.header.map_or(0, |header| header.revision);
                self.shadow.lag.source_had(revision, now);
                // Revisions that are sent as they are made come alone, and nothing is newer. Anything else is history.
                let first = response.events.first().and_then(|event| event.kv.as_ref());
                self.is_catching_up |= first.is_some_and(|kv| kv.mod_revision != revision);
                steps.append(&mut self.copy.plan(&response.events)?);
                Ok(response.events.iter().map(Event::encoded_len).sum())
            }
            Some(WatchUpdate::Created(header) | WatchUpdate::Progress(header)) => {
                self.source.check(Some(&header)).map(|()| 0)
            }
            Some(WatchUpdate::Canceled(response)) if response.compact_revision != 0 => {
                Err(Trouble::Compacted(response.compact_revision))
            }
            Some(WatchUpdate::Canceled(response)) => {
                let status = client::status_of_text(&response.cancel_reason);
                Err(Trouble::of_source("watch all keys", &status))
            }
            None => Err(Trouble::Passing("the source has ended the watch".to_owned())),
        }
    }

    async fn take_report(&mut self, report: Report) -> Result<Option<End>, Trouble> {
        match report {
            Report::Position { revision, compact_revision, own } => {
                // The source may have gone on since, and the copy with it.
                if revision < own {
                    return Err(is_behind(revision, own));
                }
                // An answer alone is no progress: the disk of the shadow may be full, or the watch may not open.
                let is_watching = self.times_created > 0;
                if self.copy.revision() >= revision && is_watching {
                    self.shadow.is_well();
                }
                self.check_progress(revision)?;
                self.copy.metrics().connected.set_bool(is_watching);
                if !is_watching && self.began.elapsed() >= OPENING_PATIENCE {
                    self.shadow.tell("the source answers, but has not opened a watch");
                }
                self.shadow.lag.reached(self.copy.revision());
                self.note_compaction(compact_revision);
            }
            Report::Alarms(alarms) => {
                if alarms != self.shadow.alarms {
                    let list: Vec<&str> = alarms.iter().map(String::as_str).collect();
                    let line = if list.is_empty() {
                        "the source has no alarms any more"
                    } else {
                        "the source has alarms"
                    };
                    self.shadow.logger.warn(line, &[("alarms", Value::List(&list))]);
                }
                self.shadow.alarms = alarms;
            }
            Report::Leases(listed, ttls) => {
                self.is_matching_leases = false;
                self.copy.match_leases(&listed, &ttls).await?;
            }
            Report::Compared(due, revision, hash_time, outcome) => {
                self.is_comparing = false;
                let rest = hash_time.saturating_mul(self.shadow.settings.compare_rest);
                let until = Instant::now() + rest.min(REST_MAX);
                match due.compaction {
                    Some(_) => self.shadow.rest.compaction = until,
                    None => self.shadow.rest.newest = until,
                }
                return self.take_outcome(due, revision, outcome?);
            }
            Report::Trouble(trouble @ Trouble::Final(_)) => return Err(trouble),
            Report::Trouble(trouble) => {
                // The watch continues by itself once the source answers.
                self.is_matching_leases = false;
                self.copy.metrics().connected.set(0);
                self.shadow.tell(&trouble.text());
            }
        }
        Ok(None)
    }

    /// Ends the session if the source is ahead and the copy has not moved for long, although a watch is open: the watch
    /// may be stuck, or the missing revisions may have been compacted away.
    fn check_progress(&mut self, revision: i64) -> Result<(), Trouble> {
        let (reached, now) = (self.copy.revision(), Instant::now());
        if reached >= revision {
            (self.standstill, self.shadow.standstill_patience) = (None, STANDSTILL_PATIENCE.0);
            return Ok(());
        }
        if self.times_created == 0 {
            return Ok(());
        }
        match self.standstill {
            Some((at, since)) if at == reached => {
                let patience = self.shadow.standstill_patience;
                if now - since < patience {
                    return Ok(());
                }
                self.shadow.standstill_patience = (patience * 2).min(STANDSTILL_PATIENCE.1);
                Err(Trouble::Passing(format!(
                    "the source is at revision {revision}, but its watch has brought nothing after {reached} for {} s",
                    patience.as_secs()
                )))
            }
            before => {
                if before.is_some() {
                    self.shadow.standstill_patience = STANDSTILL_PATIENCE.0;
                }
                self.standstill = Some((reached, now));
                Ok(())
            }
        }
    }

    fn note_compaction(&mut self, revision: i64) {
        if revision > self.copy.compact_revision() {
            self.compaction = self.compaction.max(Some(revision));
        }
    }

    fn take_outcome(&mut self, due: Due, revision: i64, outcome: Outcome) -> Result<Option<End>, Trouble> {
        match outcome {
            Outcome::Equal { hash, compact_revision } => {
                self.shadow.tally.equal(revision);
                self.shadow.logger.info(
                    "source and copy are equal",
                    &[
                        ("revision", Value::Int(revision)),
                        ("compact-revision", Value::Int(compact_revision)),
                        ("hash", Value::Uint(u64::from(hash))),
                        ("summary", Value::Str(&self.shadow.tally.summary())),
                    ],
                );
            }
            Outcome::Skipped { reason, compacted_at } => {
                compacted_at.into_iter().for_each(|at| self.note_compaction(at));
                // The hash of a compaction may not exist, or belong to compactions that the copy did not follow. Then the
                // newest revision is compared, whose hash needs only the last compaction.
                if due.attempts < ATTEMPTS_MAX {
                    let not_before = Instant::now() + POLL_INTERVAL;
                    let again = Due { compaction: None, attempts: due.attempts + 1, not_before };
                    self.due.get_or_insert(again);
                    return Ok(None);
                }
                self.shadow.tally.skipped += 1;
                self.shadow.logger.warn(
                    "a comparison was skipped",
                    &[("revision", Value::Int(revision)), ("reason", Value::Str(&reason))],
                );
            }
            Outcome::Different(difference) => {
                self.shadow.tally.different(revision);
                self.shadow.directory.note_difference(revision)?;
                if self.examines() {
                    self.shadow.examined_at = Some(Instant::now());
                }
                let members: Vec<String> =
                    difference.members.iter().map(|(endpoint, hash)| format!("{endpoint}={hash}")).collect();
                let members: Vec<&str> = members.iter().map(String::as_str).collect();
                self.shadow.logger.error(
                    match difference.is_within_source() {
                        true => {
                            "source and copy are DIFFERENT: the members of the source differ from each other"
                        }
                        false => "source and copy are DIFFERENT",
                    },
                    &[
                        ("revision", Value::Int(revision)),
                        ("compact-revision", Value::Int(difference.compact_revision)),
                        ("hash-of-copy", Value::Uint(u64::from(difference.own))),
                        ("hash-of-source", Value::List(&members)),
                        ("difference", Value::Str(&difference.place)),
                        ("summary", Value::Str(&self.shadow.tally.summary())),
                    ],
                );
                if self.shadow.settings.exit_on_mismatch {
                    return Ok(Some(End::Different));
                }
            }
        }
        self.shadow.publish(self.copy);
        Ok(None)
    }

    async fn do_what_is_due(&mut self) -> Result<(), Trouble> {
        let now = Instant::now();
        if self.copy.has_ended() {
            return Err(Trouble::Final("the copy has failed".to_owned()));
        }
        while let Some(ended) = self.tasks.try_join_next() {
            ended.map_err(|error| Trouble::Final(format!("a task of the shadow has failed: {error}")))?;
        }
        let reached = self.copy.revision();
        if let Some(revision) = self.compaction.take_if(|at| *at <= reached) {
            self.copy.compact(revision).await?;
            self.shadow
                .logger
                .info("followed a compaction of the source", &[("revision", Value::Int(revision))]);
            self.due = Some(Due { compaction: Some(revision), attempts: 0, not_before: now });
        }
        let interval = self.shadow.settings.compare_interval;
        if !interval.is_zero() && self.shadow.next_comparison <= now {
            self.shadow.next_comparison = now + interval;
            self.due.get_or_insert(Due { compaction: None, attempts: 0, not_before: now });
        }
        if !self.is_comparing
            && self.compaction.is_none()
            && let Some(due) = self.due.take_if(|due| {
                let rest = &self.shadow.rest;
                let rested = if due.compaction.is_some() { rest.compaction } else { rest.newest };
                due.not_before.max(rested) <= now
            })
        {
            self.compare(due);
        }
        if self.next_leases <= now && !self.is_matching_leases {
            self.next_leases = now + LEASE_INTERVAL;
            self.list_leases();
        }
        if self.next_report <= now {
            self.next_report = now + REPORT_INTERVAL;
            self.shadow.logger.info(
                "the shadow follows its source",
                &[
                    ("summary", Value::Str(&self.shadow.tally.summary())),
                    ("revision", Value::Int(reached)),
                    ("source-revision", Value::Int(self.shadow.lag.source_revision())),
                    ("lag", Value::Duration(self.shadow.lag.time(now.into_std()))),
                ],
            );
        }
        self.shadow.publish(self.copy);
        Ok(())
    }

    fn compare(&mut self, due: Due) {
        self.is_comparing = true;
        let tally = &self.shadow.tally;
        let turn = tally.equal + tally.different + tally.skipped + u64::from(due.attempts);
        let mut comparison = Comparison {
            source: self.source.clone(),
            copy: self.copy.reader(),
            logger: Arc::clone(&self.shadow.logger),
            turn: usize::try_from(turn).unwrap_or(0),
            examines: self.examines(),
            hash_time: Duration::ZERO,
        };
        let revision = due.compaction.unwrap_or_else(|| self.copy.revision());
        let reports = self.reports.clone();
        self.tasks.spawn(async move {
            let outcome = comparison.at(revision).await;
            // The session may have ended.
            let _ = reports.send(Report::Compared(due, revision, comparison.hash_time, outcome)).await;
        });
    }

    /// Returns true if a difference is to be examined: the last examination is long ago.
    fn examines(&self) -> bool {
        self.shadow.examined_at.is_none_or(|at| at.elapsed() >= EXAMINE_INTERVAL)
    }

    fn list_leases(&mut self) {
        self.is_matching_leases = true;
        let (source, reports, known) =
            (self.source.clone(), self.reports.clone(), self.copy.leases().clone());
        self.tasks.spawn(async move {
            let report = match leases(&source, &known).await {
                Ok((listed, ttls)) => Report::Leases(listed, ttls),
                Err(trouble) => Report::Trouble(trouble),
            };
            // The session may have ended.
            let _ = reports.send(report).await;
        });
    }
}

/// Identifies the source, and checks that it can be the one of the copy.
async fn connect(shadow: &mut Shadow, copy: &Copy) -> Result<Source, Trouble> {
    let source = Source::identify(&shadow.client, shadow.directory.source()).await?;
    let (revision, own) = (source.revision().await?, copy.revision());
    if revision < own {
        return Err(is_behind(revision, own));
    }
    // A watch could still begin exactly at the compact revision, but deletions of that revision may be gone.
    if source.is_compacted(own).await? {
        return Err(Trouble::Compacted(own + 1));
    }
    let endpoints = source.endpoints();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    shadow.logger.info(
        "following the source",
        &[
            ("cluster-id", Value::Id(source.cluster_id())),
            ("endpoints", Value::List(&endpoints)),
            ("revision", Value::Int(own)),
            ("source-revision", Value::Int(revision)),
        ],
    );
    Ok(source)
}

fn is_behind(revision: i64, own: i64) -> Trouble {
    Trouble::Final(format!(
        "the source is at revision {revision}, but the copy at {own}: the source was restored from a backup, or the copy was \
         changed by another program; to begin with the source anew, remove the data directory"
    ))
}

async fn position(source: &Source, known: i64) -> Result<(i64, i64), Trouble> {
    let revision = source.revision().await?;
    let compact_revision = source.compact_revision(known, revision).await?;
    if compact_revision > known {
        // The answer that a revision is compacted does not say which cluster it comes from.
        source.confirm().await?;
    }
    Ok((revision, compact_revision))
}

async fn leases(source: &Source, known: &HashSet<i64>) -> Result<(HashSet<i64>, Vec<(i64, i64)>), Trouble> {
    let listed: HashSet<i64> = source.leases().await?.into_iter().collect();
    let new = listed.difference(known).copied().collect();
    Ok((listed, source.ttls(new).await?))
}
