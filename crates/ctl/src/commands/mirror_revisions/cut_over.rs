//! `--cut-over`: the destination of a mirror takes the place of the source.
//!
//! What the end needs is done before it, again and again, while clients write to the source: catching up, comparing the keys
//! that changed, and comparing the leases. So it is known how long writes would be stopped, and they are stopped only once that
//! fits in the time that they may be. Whatever happens then, the source takes writes again when that time is over.

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

/// Time to stop writes for that no further rehearsal is made to make shorter.
const SHORT: Duration = Duration::from_millis(50);
/// Rehearsals that find the same lease with another time to live, before that counts.
const REUSED_MAX: u32 = 3;
/// How long one attempt to end the alarm may take, and all of them.
const DISARM_PATIENCE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// The alarm of a cut-over that has not ended.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    id: u64,
    /// True if it was answered that the alarm is raised.
    is_certain: bool,
}

/// Follows the source until the destination has taken its place. Writes at the source are stopped for at most `limit`.
///
/// # Errors
/// As [`super::replay`], and an interruption, and a source that was left before.
pub(super) async fn cut_over(
    call: &Call,
    source: Client,
    target: Client,
    operations_max: usize,
    limit: Duration,
) -> Result<(), Failure> {
    // Writes that were stopped have to go on if this is ended, so that the signals must not end the process.
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
        (Ok(()), true) => "the source takes writes again".to_owned(),
        (Ok(()), false) => {
            "the source takes writes again, unless the request for its CORRUPT alarm is carried out yet: run `alarm disarm` \
             if it says `corrupt cluster` later"
                .to_owned()
        }
        (Err(why), true) => format!(
            "the source takes no writes, and its CORRUPT alarm could not be ended ({why}): run `alarm disarm`"
        ),
        (Err(why), false) => format!(
            "perhaps the source takes no writes: whether its CORRUPT alarm was raised is not known, and it could not be ended \
             ({why}): run `alarm disarm`"
        ),
    };
    Err(Failure::new(failure.code, format!("{failure}; {state}")))
}

/// Ends an alarm, and tries again for a while where it is not certain that this is of no use.
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
                "the source's CORRUPT alarm could not be ended ({}); trying again for {} seconds, or until another signal",
                status.shown(),
                DISARM_PATIENCE.1.as_secs()
            ));
        }
        sleep(PAUSE).await;
    }
}

/// Raises or ends an alarm with which a cluster changes no key and no lease, while it is read and watched on. Its id is no
/// member's: a member for which it is raised may refuse reads, too. And it is no other cut-over's, so that each ends its own.
async fn alarm(client: &Client, action: AlarmAction, id: u64) -> Result<pb::AlarmResponse, Status> {
    let alarm = pb::AlarmType::Corrupt as i32;
    let request = pb::AlarmRequest { action: action as i32, member_id: id, alarm };
    client.call(Rpc::MaintenanceAlarm, &request).await
}

/// Returns true if a request with this answer was certainly not carried out.
fn is_refused(status: &Status) -> bool {
    !matches!(
        status.code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Canceled | Code::Internal
    )
}

/// The CORRUPT alarms that a cluster has.
async fn raised(client: &Client) -> Result<Vec<pb::AlarmMember>, Status> {
    Ok(alarm(client, AlarmAction::Get, 0).await?.alarms)
}

/// A source that another cut-over has left must stay as it is, even if this one fails.
async fn refuse_if_left(source: &Client) -> Result<(), Failure> {
    if raised(source).await?.is_empty() {
        return Ok(());
    }
    Err(Failure::error(
        "the source has a CORRUPT alarm already: a destination has taken its place before, or a cut-over was killed, or its \
         members' data differ. If clients still use the source, find out which (`alarm list`, `endpoint hashkv --cluster`), and \
         run `alarm disarm`",
    ))
}

/// What a rehearsal has found.
struct Rehearsal {
    /// Time that writes would have been stopped for; `None` where everything was compared again.
    took: Option<Duration>,
    /// A lease with keys whose time to live differs.
    reused: Option<i64>,
}

impl Replay<'_> {
    /// Has the destination take the place of the source. `stopped` holds the alarm that would have to be ended, were this to
    /// fail.
    async fn cut_over(&mut self, limit: Duration, stopped: &Mutex<Option<Stopped>>) -> Result<(), Failure> {
        let now = Now::of(&self.source).await?;
        self.reach(now.revision).await?;
        self.compare_all().await?;
        self.rehearse_until_short(limit).await?;

        self.call.line("stopping writes at the source by its CORRUPT alarm, which `alarm disarm` ends")?;
        refuse_if_left(&self.source).await?;
        let began = Instant::now();
        let end = timeout_at(began + limit, self.stop(stopped)).await;
        let (end, after, leases) = end.unwrap_or_else(|_| {
            Err(Failure::error(format!(
                "the destination did not take the source's place within {} of --stop-timeout",
                cli::go::duration(limit)
            )))
        })?;
        // What stopped the writes stays, whoever reads of it.
        *locked(stopped) = None;
        let _ = self.call.line(format!(
            "revision {end}: compared {} more keys, no difference; {leases} leases; writes stopped {} ms ago",
            after.keys,
            began.elapsed().as_millis()
        ));
        let _ = self.call.line("the destination has taken the source's place");
        Ok(())
    }

    /// Compares everything at the revision that the destination is at, while clients write, and follows them meanwhile.
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

    /// Compares the keys that were replayed since the last comparison.
    async fn compare_changed(&mut self) -> Result<Option<Difference>, Failure> {
        let at = self.replayed;
        let Some(keys) = self.changed.take() else { return Ok(None) };
        told(differences_of(keys, &self.source, &self.target, at).await, at).map(Some)
    }

    /// Does what has to be done while writes are stopped, without stopping them; until that takes less than half of the time
    /// that they may be stopped for, and does not become much shorter.
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
                    "revision {}: not stopping writes yet: that would take {}, and half of --stop-timeout is {}",
                    self.replayed,
                    cli::go::duration(took),
                    cli::go::duration(limit / 2)
                ))?;
            }
            if took > limit / 2 {
                // Each asks for every lease: the source is not to be kept busy with it.
                self.follow_for(took.max(PAUSE)).await?;
            }
        }
    }

    /// Follows the source for this long, so that the destination does not fall behind meanwhile.
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

    /// Stops writes at the source, and has the destination come to the same revision. Returns it, with what was compared and the
    /// number of leases.
    async fn stop(&mut self, stopped: &Mutex<Option<Stopped>>) -> Result<(i64, Difference, usize), Failure> {
        let id = RandomState::new().hash_one("cut-over").max(1);
        *locked(stopped) = Some(Stopped { id, is_certain: false });
        if let Err(status) = alarm(&self.source, AlarmAction::Activate, id).await {
            if is_refused(&status) {
                *locked(stopped) = None;
                let why = status.shown();
                return Err(Failure::error(format!("the source refuses to stop writes, and goes on: {why}")));
            }
            return Err(status.into());
        }
        *locked(stopped) = Some(Stopped { id, is_certain: true });
        // Another one may have raised its own since they were asked for, and neither knows of the other's destination.
        if let Some(other) = raised(&self.source).await?.into_iter().find(|other| other.member_id != id) {
            return Err(Failure::error(format!(
                "the source has another CORRUPT alarm ({:x}), perhaps of a cut-over to another destination that is under way",
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
                "the destination is at revision {there}, and the source at {end}: somebody else writes to the destination"
            )));
        }
        Ok((end, after, matched.leases))
    }
}

fn other_ttl(id: i64) -> Failure {
    Failure::error(format!(
        "lease {id:016x} has another time to live at the destination than at the source, and keys there: its id was granted \
         again; revoke it at the source, or restore the destination again"
    ))
}
