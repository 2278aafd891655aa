//! Makes the leader's regular checks, on a separate thread ([`Monitor`]): which versions the members run,
//! whether a downgrade is complete, and whether all members have the same data. It also asks the members for their
//! reports to the autopilot.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use peer::Target;

use crate::corruption::CorruptionChecks;
use crate::divergence::{self, Divergence, FeederComparison};
use crate::options::Options;
use crate::reports::reports_of_all;
use machine::Members;
use replica::autopilot::{Mode, REPORT_INTERVAL};
use replica::cluster_version::{Minor, minor};
use replica::core::ControlRequest;
use replica::other_members::read_versions;
use replica::shared::Shared;
use storage::block_on::block_on;
use telemetry::logging::{Logger, Value};

/// Interval at which the monitor determines which checks are due.
pub const TURN: Duration = Duration::from_millis(200);
/// Interval at which the leader requests the versions of the members, as in etcd.
const VERSION_INTERVAL: Duration = Duration::from_secs(4);
/// Minimum time between two log lines about connections that were closed because of the memory limit for
/// clients.
const SHED_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit for the response of a member.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Handle of the thread that makes the leader's checks.
pub struct Monitor {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

/// The checks that the leader makes regularly, each with the time at which it is next due.
pub struct LeaderChecks {
    shared: Arc<Shared>,
    next_versions: Instant,
    /// Time of the next check whether a downgrade is complete; `None` if this check is switched off.
    next_downgrade: Option<Instant>,
    downgrade_interval: Duration,
    divergence: Divergence,
    /// The comparison of an observer with its feeder.
    feeder: FeederComparison,
    next_comparison: Instant,
    /// Time at which the members are next asked for their reports to the autopilot.
    next_reports: Instant,
    checks: CorruptionChecks,
    logger: Arc<Logger>,
    /// Number of connections that were closed because of the memory limit and were already reported in the
    /// log. `next_shed` is the earliest time of the next report.
    shed: u64,
    next_shed: Instant,
}

impl Monitor {
    /// Starts the thread that makes the leader's checks.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread cannot be started.
    pub fn start(shared: &Arc<Shared>, logger: &Arc<Logger>, options: &Options) -> io::Result<Monitor> {
        let (stop, stopped) = sync_channel::<()>(1);
        let mut leader_checks = LeaderChecks::new(shared, logger, options);
        let clock = shared.member.clock.clone();
        let thread = std::thread::Builder::new().name("monitor".to_owned()).spawn(move || {
            while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TURN) {
                block_on(leader_checks.turn(clock.now()));
            }
            leader_checks.checks.stop();
        })?;
        Ok(Monitor { stop, thread })
    }

    /// Ends the thread, and waits until it has finished its current work.
    pub fn stop(self) {
        drop(self.stop);
        // The result is ignored: if the thread has panicked, the panic hook has already reported that.
        let _ = self.thread.join();
    }
}

impl LeaderChecks {
    /// Returns the checks. Those of the versions and of the state hashes are due immediately, the others
    /// after their first interval.
    pub fn new(shared: &Arc<Shared>, logger: &Arc<Logger>, options: &Options) -> LeaderChecks {
        let now = shared.member.clock.now();
        LeaderChecks {
            shared: Arc::clone(shared),
            next_versions: now,
            next_downgrade: Some(now + options.downgrade_check_interval).filter(|next| *next > now),
            downgrade_interval: options.downgrade_check_interval,
            divergence: Divergence::new(shared, logger),
            feeder: FeederComparison::new(shared),
            next_comparison: now,
            next_reports: now,
            checks: CorruptionChecks::new(shared, logger, options, now),
            logger: Arc::clone(logger),
            shed: 0,
            next_shed: now,
        }
    }

    /// Makes the checks that are due, if this member is the leader. Must be called every [`TURN`]. May wait
    /// for the responses of other members.
    pub async fn turn(&mut self, now: Instant) {
        self.tell_of_shed_connections(now);
        let (leads, undecided) = {
            let state = self.shared.state.load();
            (state.leader == self.shared.member.identity.member_id, state.members.cluster_version.is_empty())
        };
        if self.shared.member.threads {
            self.checks.turn(leads, now);
        } else {
            self.checks.turn_here(leads, now).await;
        }
        if self.shared.member.observes && now >= self.next_comparison {
            self.next_comparison = now + divergence::INTERVAL;
            self.feeder.compare().await;
        }
        if !leads {
            return;
        }
        if now >= self.next_versions || undecided {
            self.next_versions = now + VERSION_INTERVAL;
            self.versions().await;
        }
        if self.next_downgrade.is_some_and(|next| now >= next) {
            self.next_downgrade = Some(now + self.downgrade_interval);
            self.end_downgrade().await;
        }
        if now >= self.next_comparison {
            self.next_comparison = now + divergence::INTERVAL;
            self.divergence.compare().await;
        }
        if self.shared.member.autopilot.mode != Mode::Off && now >= self.next_reports {
            self.next_reports = now + REPORT_INTERVAL;
            let reports = reports_of_all(&self.shared).await;
            let (agreeing, differing) = (self.divergence.agreeing(), self.divergence.differing());
            self.shared.core.inbox.send(ControlRequest::Reports { reports, agreeing, differing });
        }
    }

    fn tell_of_shed_connections(&mut self, now: Instant) {
        let Some(budget) = self.shared.clients.memory.get() else { return };
        let shed = budget.connections_shed();
        if shed > self.shed && now >= self.next_shed {
            self.logger.warn(
                "closed connections of the clients that held most of the clients' memory (--client-memory-bytes)",
                &[
                    ("connections", Value::Uint(shed - self.shed)),
                    ("bytes-held", Value::Uint(budget.held_bytes() as u64)),
                    ("bytes-max", Value::Uint(budget.bytes_max() as u64)),
                ],
            );
            (self.shed, self.next_shed) = (shed, now + SHED_INTERVAL);
        }
    }

    /// Returns the version that a member runs; `None` if the member does not answer.
    async fn version_of(&self, id: u64) -> Option<Minor> {
        if id == self.shared.member.identity.member_id {
            return minor(self.shared.member.api_version);
        }
        let request = Request::get("/version").body(Bytes::new()).ok()?;
        let answered = self.shared.cluster.peers()?.request(Target::Member(id), request, TIMEOUT);
        let response = answered.await.ok().filter(|response| response.status() == StatusCode::OK)?;
        minor(&read_versions(response.body()).ok()?.0)
    }

    /// Returns the lowest and the highest version that the members run; `None` if any member does not return
    /// its version.
    async fn extremes(&self, members: &Members) -> Option<(Minor, Minor)> {
        let mut extremes: Option<(Minor, Minor)> = None;
        for id in members.by_id.keys() {
            let version = self.version_of(*id).await?;
            let (lowest, highest) = extremes.unwrap_or((version, version));
            extremes = Some((lowest.min(version), highest.max(version)));
        }
        extremes
    }

    /// Requests a change of the cluster version if the members' versions or a downgrade in progress require
    /// it.
    async fn versions(&self) {
        let members = Arc::clone(&self.shared.state.load().members);
        let lowest = self.extremes(&members).await.map(|(lowest, _)| lowest);
        // Treat a downgrade target that is not a version as 0.0, which is never reached.
        let target = members.downgrade_target.as_deref().map(|target| minor(target).unwrap_or(Minor(0, 0)));
        match decide(minor(&members.cluster_version), lowest, target) {
            Ok(None) => {}
            Ok(Some(version)) => {
                self.shared.core.inbox.send(ControlRequest::ClusterVersion(version.to_string()))
            }
            Err(from) => self.logger.error(
                "cannot downgrade to the target: it is not the previous release",
                &[
                    ("downgrade-target", Value::Display(&target.unwrap_or(Minor(0, 0)))),
                    ("cluster-version", Value::Str(&members.cluster_version)),
                    ("from", Value::Display(&from)),
                ],
            ),
        }
    }

    /// Requests the end of the downgrade in progress if all members run its target version.
    async fn end_downgrade(&self) {
        let members = Arc::clone(&self.shared.state.load().members);
        let Some(target) = &members.downgrade_target else { return };
        let extremes = self.extremes(&members).await;
        if extremes.is_some() && extremes == minor(target).map(|version| (version, version)) {
            self.shared.core.inbox.send(ControlRequest::Downgraded(target.clone()));
        }
    }
}

/// Returns the new cluster version by etcd's rules; `None` if the cluster version should not change.
/// `cluster` is the current cluster version, `lowest` the lowest version that any member runs, and `target`
/// that of a downgrade in progress. If no cluster version is set, the new one is `lowest`, or the lowest
/// possible version if `lowest` is not known. If one is set, it rises to `lowest` within the same major
/// version. During a downgrade it becomes `target` instead, which must be exactly one release below `cluster`
/// and `lowest`.
///
/// # Errors
///
/// Returns an error if a downgrade to `target` is not possible: the version, of the cluster or of a member,
/// from which it is not possible.
fn decide(
    cluster: Option<Minor>,
    lowest: Option<Minor>,
    target: Option<Minor>,
) -> Result<Option<Minor>, Minor> {
    let Some(cluster) = cluster else { return Ok(lowest.or_else(|| minor(api::MIN_CLUSTER_VERSION))) };
    let Some(lowest) = lowest else { return Ok(None) };
    let Some(target) = target else {
        return Ok((cluster.0 == lowest.0 && cluster < lowest).then_some(lowest));
    };
    if cluster == target {
        return Ok(None);
    }
    match [cluster, lowest].into_iter().find(|from| from.before() != Some(target)) {
        Some(from) => Err(from),
        None => Ok(Some(target)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_cluster_follows_its_members_and_its_downgrade() {
        let [v35, v36, v37] = [5, 6, 7].map(|minor| Minor(3, minor));
        for (cluster, lowest, target, expected) in [
            (None, Some(v36), None, Ok(Some(v36))),
            (None, None, None, Ok(Some(Minor(3, 0)))),
            (Some(v36), None, None, Ok(None)),
            (Some(v36), Some(v37), None, Ok(Some(v37))),
            (Some(Minor(3, 0)), Some(v37), None, Ok(Some(v37))),
            (Some(v37), Some(v36), None, Ok(None)),
            (Some(v37), Some(v37), Some(v36), Ok(Some(v36))),
            (Some(v36), Some(v37), Some(v36), Ok(None)),
            (Some(v36), Some(v36), Some(v36), Ok(None)),
            (Some(v37), None, Some(v36), Ok(None)),
            (Some(v37), Some(v37), Some(v35), Err(v37)),
            (Some(v37), Some(v36), Some(v36), Err(v36)),
            (Some(v37), Some(v37), Some(Minor(0, 0)), Err(v37)),
        ] {
            assert_eq!(decide(cluster, lowest, target), expected, "{cluster:?} {lowest:?} {target:?}");
        }
    }
}
