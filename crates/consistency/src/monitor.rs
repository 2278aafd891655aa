//! The leader's regular checks, on a thread of their own ([`Monitor`]): the versions of the members, and that all members hold
//! the same data.

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
use replica::core::ControlRequest;
use replica::joining::{minor, read_versions};
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
    async fn version_of(&self, id: u64) -> Option<(u32, u32)> {
        let request = Request::get("/version").body(Bytes::new()).ok()?;
        let answered = self.shared.peers()?.request(Target::Member(id), request, TIMEOUT);
        let response = answered.await.ok().filter(|response| response.status() == StatusCode::OK)?;
        minor(&read_versions(response.body()).ok()?.0)
    }

    /// The cluster runs at the lowest version that any member has; while one does not answer, at the lowest there is,
    /// until it is known better.
    async fn versions(&self) {
        let members = Arc::clone(&self.shared.state.load().members);
        let own = self.shared.identity.member_id;
        let mut lowest = minor(api::API_VERSION);
        for member in members.by_id.values().filter(|member| member.id != own) {
            lowest = lowest.zip(self.version_of(member.id).await).map(|(a, b)| a.min(b));
        }
        let known = minor(&members.cluster_version);
        let decided = match (lowest, known) {
            (Some((major, minor)), known) if known.is_none_or(|known| known < (major, minor)) => {
                format!("{major}.{minor}.0")
            }
            (None, None) => api::MIN_CLUSTER_VERSION.to_owned(),
            _ => return,
        };
        self.shared.core.send(ControlRequest::ClusterVersion(decided));
    }
}
