//! What the leader looks at now and then, on a thread of its own: which versions the members run, and whether they all
//! hold the same.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::core::Ask;
use crate::corruption::CorruptionChecks;
use crate::divergence::{self, Divergence};
use crate::joining::{minor, version_of};
use crate::logging::Logger;
use crate::shared::Shared;

/// How often it looks at the clock.
const TURN: Duration = Duration::from_millis(200);
/// How often the members are asked for their versions, as in etcd.
const VERSION_INTERVAL: Duration = Duration::from_secs(4);
/// How long one member is waited for.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The thread.
pub struct Monitor {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

struct Watch {
    shared: Arc<Shared>,
    next_versions: Instant,
    divergence: Divergence,
    next_comparison: Instant,
    checks: CorruptionChecks,
}

impl Monitor {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When there is no thread to be had.
    pub fn start(shared: &Arc<Shared>, logger: &Arc<Logger>, config: &Config) -> Result<Monitor, String> {
        let (stop, stopped) = sync_channel::<()>(1);
        let now = Instant::now();
        let mut watch = Watch {
            shared: Arc::clone(shared),
            next_versions: now,
            divergence: Divergence::new(shared, logger),
            next_comparison: now,
            checks: CorruptionChecks::new(shared, logger, config, now),
        };
        let thread = std::thread::Builder::new()
            .name("monitor".to_owned())
            .spawn(move || {
                while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TURN) {
                    watch.turn(Instant::now());
                }
                watch.checks.stop();
            })
            .map_err(|e| format!("cannot start the monitor thread: {e}"))?;
        Ok(Monitor { stop, thread })
    }

    /// Ends it; waits for what it is doing.
    pub fn stop(self) {
        drop(self.stop);
        // A thread that panicked was reported where it did.
        let _ = self.thread.join();
    }
}

impl Watch {
    fn turn(&mut self, now: Instant) {
        let state = self.shared.state.load();
        let leads = state.leader == self.shared.identity.member_id;
        self.checks.turn(leads, now);
        if !leads {
            return;
        }
        let undecided = state.members.cluster_version.is_empty();
        drop(state);
        if now >= self.next_versions || undecided {
            self.next_versions = now + VERSION_INTERVAL;
            self.versions();
        }
        if now >= self.next_comparison {
            self.next_comparison = now + divergence::INTERVAL;
            self.divergence.compare();
        }
    }

    /// The cluster runs at the lowest version that any member has; while one does not answer, at the lowest there is,
    /// until it is known better.
    fn versions(&self) {
        let state = self.shared.state.load_full();
        let own = self.shared.identity.member_id;
        let mut lowest = minor(api::API_VERSION);
        for member in state.members.by_id.values().filter(|member| member.id != own) {
            let answered = member.peer_urls.iter().find_map(|url| version_of(url, TIMEOUT).ok());
            let version = answered.and_then(|(server, _)| minor(&server));
            lowest = lowest.zip(version).map(|(a, b)| a.min(b));
        }
        let known = minor(&state.members.cluster_version);
        let decided = match (lowest, known) {
            (Some((major, minor)), known) if known.is_none_or(|known| known < (major, minor)) => {
                format!("{major}.{minor}.0")
            }
            (None, None) => api::MIN_CLUSTER_VERSION.to_owned(),
            _ => return,
        };
        self.shared.core.send(Ask::ClusterVersion(decided));
    }
}
