//! `--cut-over`: replaces the source of a mirror by the destination, with a short stop of writes.
//!
//! While writes are stopped, the destination has to catch up, and the changed keys and the leases have to be
//! compared. This work is rehearsed several times while clients still write to the source, to measure how
//! long it takes. Writes are stopped only if a rehearsal took at most half of `--stop-timeout`. If the
//! cut-over fails, or takes longer than `--stop-timeout` once it began to stop writes, this command makes the
//! source accept writes again.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use api::etcdserverpb as pb;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::{Code, Rpc, Status};
use cli::Failure;
use client::Client;
use stdx::{First, race};
use tokio::time::{Instant, sleep, timeout_at};

use super::comparison::{Changed, Difference, differences, differences_of, told};
use super::{Now, PAUSE, REPORT_INTERVAL, Replay, locked};
use crate::call::Call;

/// A rehearsal that takes at most this time is short enough: no further rehearsals are made in the hope of a
/// shorter one.
const SHORT: Duration = Duration::from_millis(50);
/// Number of consecutive rehearsals that must find the same lease with a different TTL before the command
/// fails. With fewer, the cause may be a revision that has not been replayed yet.
const REUSED_MAX: u32 = 3;
/// Time limits for clearing the alarm: for one request, and for all attempts together.
const DISARM_PATIENCE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// The alarm that this cut-over has raised, or possibly raised, at the source to stop writes.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    id: u64,
    /// True if the source has confirmed that the alarm is raised.
    is_certain: bool,
}

/// Replays the source until the destination has replaced it. Stops writes at the source for at most `limit`
/// (`--stop-timeout`) before that.
///
/// # Errors
/// Returns the errors of [`super::replay`]. Also returns an error after an interruption, or if another
/// cut-over has already replaced the source.
pub(super) async fn cut_over(
    call: &Call,
    source: Client,
    target: Client,
    operations_max: usize,
    limit: Duration,
) -> Result<(), Failure> {
    // From now on signals do not end the process, because an interrupted cut-over must clear the alarm, so
    // that the source accepts writes again.
    let mut interruption = call.interruption();
    let stopped = Mutex::new(None);
    let work = async {
        refuse_if_left(&source).await?;
        let mut replay = Replay::begin(call, source.clone(), target, operations_max).await?;
        replay.cut_over(limit, &stopped).await
    };
    let (outcome, is_interrupted) = match race(work, interruption.came()).await {
        First::Left(outcome) => (outcome, false),
        First::Right(()) => (Err(Failure::error("interrupted")), true),
    };
    let stopped = *locked(&stopped);
    let (Err(failure), Some(stopped)) = (&outcome, stopped) else { return outcome };
    let interrupted_again = async {
        if !is_interrupted {
            interruption.came().await;
        }
        interruption.came_again().await;
    };
    let ended = match race(disarm(call, &source, stopped.id), interrupted_again).await {
        First::Left(ended) => ended,
        First::Right(()) => Err("interrupted again".to_owned()),
    };
    let state = match (ended, stopped.is_certain) {
        (Ok(()), true) => "the source accepts writes again".to_owned(),
        (Ok(()), false) => {
            "the source accepts writes again, unless the pending request for its CORRUPT alarm is still \
             carried out: run `alarm disarm` if it reports `corrupt cluster` later"
                .to_owned()
        }
        (Err(why), true) => format!(
            "the source accepts no writes, and its CORRUPT alarm could not be disarmed ({why}): run `alarm disarm`"
        ),
        (Err(why), false) => format!(
            "the source may be refusing writes: it is unknown whether its CORRUPT alarm was raised, and it \
             could not be disarmed ({why}): run `alarm disarm`"
        ),
    };
    Err(Failure::new(failure.code, format!("{failure}; {state}")))
}

/// Clears an alarm of this cut-over. Retries for a limited time, unless the error shows that a retry cannot
/// succeed.
async fn disarm(call: &Call, source: &Client, id: u64) -> Result<(), String> {
    let source = source.within(DISARM_PATIENCE.0);
    let deadline = Instant::now() + DISARM_PATIENCE.1;
    let mut is_told = false;
    loop {
        let Err(status) = alarm(&source, AlarmAction::Deactivate, id).await else { return Ok(()) };
        if is_refused(&status) || Instant::now() >= deadline {
            return Err(status.shown());
        }
        if !std::mem::replace(&mut is_told, true) {
            call.warn(format!(
                "the source's CORRUPT alarm could not be disarmed ({}); retrying for {} seconds, or until another signal",
                status.shown(),
                DISARM_PATIENCE.1.as_secs()
            ));
        }
        sleep(PAUSE).await;
    }
}

/// Raises, clears or lists CORRUPT alarms. While a cluster has a CORRUPT alarm, it changes no keys or leases,
/// but can still be read and watched. The member id in the alarm belongs to no member, because a member that
/// has the alarm itself may also refuse reads. Each cut-over uses a different id, so that it clears only its
/// own alarm.
async fn alarm(client: &Client, action: AlarmAction, id: u64) -> Result<pb::AlarmResponse, Status> {
    let alarm = pb::AlarmType::Corrupt as i32;
    let request = pb::AlarmRequest { action: action as i32, member_id: id, alarm };
    client.call(Rpc::MaintenanceAlarm, &request).await
}

/// Returns true if this error proves that the request was not carried out.
fn is_refused(status: &Status) -> bool {
    !matches!(
        status.code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Canceled | Code::Internal
    )
}

/// Returns the CORRUPT alarms of a cluster.
async fn raised(client: &Client) -> Result<Vec<pb::AlarmMember>, Status> {
    Ok(alarm(client, AlarmAction::Get, 0).await?.alarms)
}

/// Returns an error if the source has a CORRUPT alarm, because another cut-over may have replaced this source
/// already. Such a source must not accept writes again, which it would if this cut-over failed.
async fn refuse_if_left(source: &Client) -> Result<(), Failure> {
    if raised(source).await?.is_empty() {
        return Ok(());
    }
    Err(Failure::error(
        "the source already has a CORRUPT alarm: it was cut over before, a cut-over was killed, or its \
         members' data differ. If clients still use the source, find the cause (`alarm list`, `endpoint \
         hashkv --cluster`), and run `alarm disarm`",
    ))
}

/// Result of a rehearsal.
struct Rehearsal {
    /// Time for which writes would have been stopped; `None` if the changed keys were not known, so that all
    /// keys had to be compared.
    took: Option<Duration>,
    /// Id of a lease that has keys and a different TTL at the destination; `None` if there is no such lease.
    reused: Option<i64>,
}

impl Replay<'_> {
    /// Replaces the source by the destination. If this fails, `stopped` contains the alarm that the caller
    /// has to clear, if there is one.
    async fn cut_over(&mut self, limit: Duration, stopped: &Mutex<Option<Stopped>>) -> Result<(), Failure> {
        let now = Now::of(&self.source).await?;
        self.reach(now.revision).await?;
        self.compare_all().await?;
        self.rehearse_until_short(limit).await?;

        self.call.line("stopping writes at the source with its CORRUPT alarm; `alarm disarm` clears it")?;
        refuse_if_left(&self.source).await?;
        let began = Instant::now();
        let end = timeout_at(began + limit, self.stop(stopped)).await;
        let (end, after, leases) = end.unwrap_or_else(|_| {
            Err(Failure::error(format!(
                "the cut-over did not complete within {} of --stop-timeout",
                cli::go::duration(limit)
            )))
        })?;
        // The destination has replaced the source. Keep the alarm from being cleared now, before anything
        // else can fail: the source must not accept writes any more.
        *locked(stopped) = None;
        let _ = self.call.line(format!(
            "revision {end}: compared {} more keys, no difference; {leases} leases; writes stopped {} ms ago",
            after.keys,
            began.elapsed().as_millis()
        ));
        let _ = self.call.line("the destination has taken the source's place");
        Ok(())
    }

    /// Compares all keys at the revision that the destination has reached. Continues to replay the writes of
    /// clients during the comparison.
    async fn compare_all(&mut self) -> Result<(), Failure> {
        let at = self.replayed;
        self.changed = Changed::default();
        let mut comparison = tokio::spawn(differences(self.source.clone(), self.target.clone(), at));
        let before = loop {
            match race(&mut comparison, self.next()).await {
                First::Left(done) => break told(done.map_err(Failure::error)?, at)?,
                First::Right(update) => self.take(update?).await?,
            }
        };
        self.call.line(format!("revision {at}: compared {} keys, no difference", before.keys))
    }

    /// Compares the keys that were replayed since the last comparison; returns `None` without comparing if
    /// these keys are not known.
    async fn compare_changed(&mut self) -> Result<Option<Difference>, Failure> {
        let at = self.replayed;
        let Some(keys) = self.changed.take() else { return Ok(None) };
        told(differences_of(keys, &self.source, &self.target, at).await, at).map(Some)
    }

    /// Rehearses the work for which writes will be stopped, without stopping them, until the time that a
    /// rehearsal takes meets two conditions:
    ///
    /// * It is at most half of `limit`, the longest time for which writes may be stopped.
    /// * It is at most [`SHORT`], or at least half of the time of the previous rehearsal. Otherwise the next
    ///   rehearsal will probably take much less time again.
    async fn rehearse_until_short(&mut self, limit: Duration) -> Result<(), Failure> {
        self.leases.renew_all().await;
        let mut last = Duration::MAX;
        let (mut reused, mut reused_times) = (None, 0);
        let mut report_at = Instant::now();
        loop {
            let rehearsal = self.rehearse().await?;
            reused_times = if rehearsal.reused == reused { reused_times + 1 } else { 1 };
            reused = rehearsal.reused;
            if let Some(id) = reused {
                if reused_times >= REUSED_MAX {
                    return Err(other_ttl(id));
                }
                sleep(PAUSE).await;
                continue;
            }
            let Some(took) = rehearsal.took else { continue };
            if took <= limit / 2 && (took <= SHORT || took >= last / 2) {
                return Ok(());
            }
            last = took;
            if took > limit / 2 && Instant::now() >= report_at {
                report_at = Instant::now() + REPORT_INTERVAL;
                self.call.line(format!(
                    "revision {}: not stopping writes yet: that would take {}, but half of --stop-timeout is {}",
                    self.replayed,
                    cli::go::duration(took),
                    cli::go::duration(limit / 2)
                ))?;
            }
            if took > limit / 2 {
                // Pause between rehearsals, which query every lease and would otherwise overload the source.
                // Replay in the meantime.
                self.follow_for(took.max(PAUSE)).await?;
            }
        }
    }

    /// Replays the source for the duration `time`, so that the destination does not fall behind during a
    /// pause.
    async fn follow_for(&mut self, time: Duration) -> Result<(), Failure> {
        let mut over = pin!(sleep(time));
        loop {
            match race(&mut over, self.next()).await {
                First::Left(()) => return Ok(()),
                First::Right(update) => self.take(update?).await?,
            }
        }
    }

    async fn rehearse(&mut self) -> Result<Rehearsal, Failure> {
        let began = Instant::now();
        let now = Now::of(&self.source).await?;
        self.reach(now.revision).await?;
        let is_compared = self.compare_changed().await?.is_some();
        let reused = self.leases.match_source().await?.reused;
        let took = began.elapsed();
        if !is_compared {
            self.compare_all().await?;
        }
        Ok(Rehearsal { took: is_compared.then_some(took), reused })
    }

    /// Stops writes at the source, and brings the destination to the same revision. Returns this revision,
    /// the result of the comparison, and the number of leases.
    async fn stop(&mut self, stopped: &Mutex<Option<Stopped>>) -> Result<(i64, Difference, usize), Failure> {
        let id = RandomState::new().hash_one("cut-over").max(1);
        *locked(stopped) = Some(Stopped { id, is_certain: false });
        if let Err(status) = alarm(&self.source, AlarmAction::Activate, id).await {
            if is_refused(&status) {
                *locked(stopped) = None;
                let why = status.shown();
                return Err(Failure::error(format!(
                    "the source refuses to stop writes, and continues: {why}"
                )));
            }
            return Err(status.into());
        }
        *locked(stopped) = Some(Stopped { id, is_certain: true });
        // Give up if the source has another alarm: another cut-over may have raised it since this command
        // listed the alarms, and two cut-overs to different destinations must not both succeed.
        if let Some(other) = raised(&self.source).await?.into_iter().find(|other| other.member_id != id) {
            return Err(Failure::error(format!(
                "the source has another CORRUPT alarm ({:x}), possibly from a cut-over to another destination in progress",
                other.member_id
            )));
        }
        let end = Now::of(&self.source).await?.revision;
        self.reach(end).await?;
        let Some(after) = self.compare_changed().await? else {
            return Err(Failure::error("too many keys have changed since the last comparison; try again"));
        };
        let matched = self.leases.match_source().await?;
        if let Some(id) = matched.reused {
            return Err(other_ttl(id));
        }
        let there = Now::of(&self.target).await?.revision;
        if there != end {
            return Err(Failure::error(format!(
                "the destination is at revision {there}, and the source at {end}: another client writes to the destination"
            )));
        }
        Ok((end, after, matched.leases))
    }
}

fn other_ttl(id: i64) -> Failure {
    Failure::error(format!(
        "lease {id:016x} has a different time to live at the destination than at the source, and has keys \
         there: its id was granted again; revoke it at the source, or restore the destination again"
    ))
}
