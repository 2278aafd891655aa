//! The leader's regular checks, on a thread of their own ([`Monitor`]): the versions of the members, whether a downgrade is over,
//! and that all members hold the same data.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use peer::Target;

use crate::corruption::CorruptionChecks;
use crate::divergence::{self, Divergence};
use config::Config;
use machine::Members;
use replica::core::ControlRequest;
use replica::joining::{Minor, minor, read_versions};
use replica::shared::Shared;
use storage::block_on::block_on;
use telemetry::logging::{Logger, Value};

/// Interval at which the monitor looks at the clock.
pub const TURN: Duration = Duration::from_millis(200);
/// Interval at which the members are asked for their versions, as in etcd.
const VERSION_INTERVAL: Duration = Duration::from_secs(4);
/// Least interval between two log lines about connections that were closed for the memory of clients.
const SHED_INTERVAL: Duration = Duration::from_secs(10);
/// Time to wait for one member.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The thread.
pub struct Monitor {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

/// The leader's regular checks, and when each is next due.
pub struct LeaderChecks {
    shared: Arc<Shared>,
    next_versions: Instant,
    /// `None` if nobody looks whether a downgrade is over.
    next_downgrade: Option<Instant>,
    downgrade_interval: Duration,
    divergence: Divergence,
    next_comparison: Instant,
    checks: CorruptionChecks,
    logger: Arc<Logger>,
    /// Connections closed for memory of which the log has told, and when it may tell of more.
    shed: u64,
    next_shed: Instant,
}

impl Monitor {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When there is no thread to be had.
    pub fn start(shared: &Arc<Shared>, logger: &Arc<Logger>, config: &Config) -> io::Result<Monitor> {
        let (stop, stopped) = sync_channel::<()>(1);
        let mut leader_checks = LeaderChecks::new(shared, logger, config);
        let clock = shared.clock.clone();
        let thread = std::thread::Builder::new().name("monitor".to_owned()).spawn(move || {
            while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TURN) {
                block_on(leader_checks.turn(clock.now()));
            }
            leader_checks.checks.stop();
        })?;
        Ok(Monitor { stop, thread })
    }

    /// Ends it; waits for what it is doing.
    pub fn stop(self) {
        drop(self.stop);
        // A thread that panicked was reported where it did.
        let _ = self.thread.join();
    }
}

impl LeaderChecks {
    /// Everything is due.
    pub fn new(shared: &Arc<Shared>, logger: &Arc<Logger>, config: &Config) -> LeaderChecks {
        let now = shared.clock.now();
        LeaderChecks {
            shared: Arc::clone(shared),
            next_versions: now,
            next_downgrade: Some(now + config.downgrade_check_time).filter(|next| *next > now),
            downgrade_interval: config.downgrade_check_time,
            divergence: Divergence::new(shared, logger),
            next_comparison: now,
            checks: CorruptionChecks::new(shared, logger, config, now),
            logger: Arc::clone(logger),
            shed: 0,
            next_shed: now,
        }
    }

    /// Looks at what is due, if this member leads. To be called every [`TURN`]; waits for the other members' answers.
    pub async fn turn(&mut self, now: Instant) {
        self.tell_of_shed_connections(now);
        let (leads, undecided) = {
            let state = self.shared.state.load();
            (state.leader == self.shared.identity.member_id, state.members.cluster_version.is_empty())
        };
        if self.shared.threads {
            self.checks.turn(leads, now);
        } else {
            self.checks.turn_here(leads, now).await;
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
    }

    fn tell_of_shed_connections(&mut self, now: Instant) {
        let Some(budget) = self.shared.client_memory() else { return };
        let shed = budget.connections_shed();
        if shed > self.shed && now >= self.next_shed {
            self.logger.warn(
                "closed connections of clients that held most of the memory for clients (--client-memory-bytes)",
                &[
                    ("connections", Value::Uint(shed - self.shed)),
                    ("bytes-held", Value::Uint(budget.held_bytes() as u64)),
                    ("bytes-max", Value::Uint(budget.bytes_max() as u64)),
                ],
            );
            (self.shed, self.next_shed) = (shed, now + SHED_INTERVAL);
        }
    }

    /// The version that a member runs, if it tells.
    async fn version_of(&self, id: u64) -> Option<Minor> {
        if id == self.shared.identity.member_id {
            return minor(self.shared.api_version);
        }
        let request = Request::get("/version").body(Bytes::new()).ok()?;
        let answered = self.shared.peers()?.request(Target::Member(id), request, TIMEOUT);
        let response = answered.await.ok().filter(|response| response.status() == StatusCode::OK)?;
        minor(&read_versions(response.body()).ok()?.0)
    }

    /// The lowest and the highest version that any member runs; `None` if one does not tell.
    async fn extremes(&self, members: &Members) -> Option<(Minor, Minor)> {
        let mut extremes: Option<(Minor, Minor)> = None;
        for id in members.by_id.keys() {
            let version = self.version_of(*id).await?;
            let (lowest, highest) = extremes.unwrap_or((version, version));
            extremes = Some((lowest.min(version), highest.max(version)));
        }
        extremes
    }

    /// Has the version of the cluster follow those of its members, and the downgrade that is under way.
    async fn versions(&self) {
        let members = Arc::clone(&self.shared.state.load().members);
        let lowest = self.extremes(&members).await.map(|(lowest, _)| lowest);
        // A target that is no version is none that can be reached.
        let target = members.downgrade_target.as_deref().map(|target| minor(target).unwrap_or(Minor(0, 0)));
        match decide(minor(&members.cluster_version), lowest, target) {
            Ok(None) => {}
            Ok(Some(version)) => self.shared.core.send(ControlRequest::ClusterVersion(version.to_string())),
            Err(from) => self.logger.error(
                "cannot downgrade to the target: it is not the release before",
                &[
                    ("downgrade-target", Value::Display(&target.unwrap_or(Minor(0, 0)))),
                    ("cluster-version", Value::Str(&members.cluster_version)),
                    ("from", Value::Display(&from)),
                ],
            ),
        }
    }

    /// Ends the downgrade that is under way, once all members run its target.
    async fn end_downgrade(&self) {
        let members = Arc::clone(&self.shared.state.load().members);
        let Some(target) = &members.downgrade_target else { return };
        let extremes = self.extremes(&members).await;
        if extremes.is_some() && extremes == minor(target).map(|version| (version, version)) {
            self.shared.core.send(ControlRequest::Downgraded(target.clone()));
        }
    }
}

/// The version that a cluster is to have, if it is to change, as etcd decides: the lowest that any member runs, and while
/// that is not known, the lowest there is, until it is known better. It falls only by a downgrade, and by one release at a time.
///
/// # Errors
///
/// The version from which a downgrade does not lead to the target, that of the cluster or that of a member.
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
