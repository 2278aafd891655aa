//! Starts and stops all clients of a run, which share one thread.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::chronicle::Chronicle;
use crate::key_client::Known;
use crate::phase::Phase;
use crate::rng::Rng;
use crate::security::{Identity, SLOTS};
use crate::session::ClientContext;
use crate::{
    administrator, bulk_client, compactor, key_client, lease_client, lock_client, prober, user_client,
    watch_client,
};

/// First client number of the clients that follow all keys for the whole run.
const FOLLOWERS: u64 = 1000;
const GLANCERS: u64 = 2000;
const LOCKERS: u64 = 3000;
const LESSEES: u64 = 4000;
const COMPACTOR: u64 = 5000;
const BULK: u64 = 5500;
/// First client number of the clients that read all events again at the end, one for each member.
pub const REREADERS: u64 = 6000;

/// First client number of the clients whose permissions change and that read and write keys.
const USERS: u64 = 8000;
/// First client number of the watching clients whose permissions change.
const SPIES: u64 = 8200;
/// Client number of the administrator, who creates users and changes their permissions.
pub const ADMINISTRATOR: u64 = 8500;
const PROBERS: u64 = 9000;

/// Size of the load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of clients that read and write keys.
    pub clients: usize,
    /// Maximum number of operations per second of all clients together that read and write keys.
    pub rate: u64,
    /// Seed of the clients' random numbers.
    pub seed: u64,
}

/// All clients of a run, while they are running.
pub struct Load {
    phase: watch::Sender<Phase>,
    workers_done: watch::Receiver<bool>,
    thread: JoinHandle<()>,
}

impl Load {
    /// Starts all clients.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn start(
        context: &Arc<ClientContext>,
        chronicle: &Arc<Chronicle>,
        plan: Plan,
    ) -> std::io::Result<Load> {
        let (phase, phases) = watch::channel(Phase::Work);
        let (done, workers_done) = watch::channel(false);
        let (context, chronicle) = (Arc::clone(context), Arc::clone(chronicle));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("clients".to_owned()).spawn(move || {
            runtime.block_on(LocalSet::new().run_until(all(context, chronicle, plan, phases, done)));
        })?;
        Ok(Load { phase, workers_done, thread })
    }

    /// Ends the work phase, and waits until all clients have finished their requests in flight. Returns false
    /// if they do not finish within `patience`.
    pub async fn rest(&mut self, patience: Duration) -> bool {
        self.phase.send_replace(Phase::Rest);
        let done = self.workers_done.wait_for(|done| *done);
        matches!(tokio::time::timeout(patience, done).await, Ok(Ok(_)))
    }

    /// Waits until all watches have received all events up to `revision`, and ends the load. Returns false if
    /// a watch does not reach the revision within `patience`, or the clients' thread has panicked.
    pub fn drain(self, revision: i64, patience: Duration) -> bool {
        self.phase.send_replace(Phase::Drain(revision));
        let deadline = std::time::Instant::now() + patience;
        while !self.thread.is_finished() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let in_time = self.thread.is_finished();
        self.phase.send_replace(Phase::Over);
        self.thread.join().is_ok() && in_time
    }
}

async fn all(
    context: Arc<ClientContext>,
    chronicle: Arc<Chronicle>,
    plan: Plan,
    phase: watch::Receiver<Phase>,
    done: watch::Sender<bool>,
) {
    let members = context.addresses.len();
    let known = Arc::new(Known::default());
    let mut watches = Vec::new();
    let mut workers = Vec::new();
    let every = Duration::from_secs_f64(plan.clients as f64 / plan.rate.max(1) as f64);
    for member in 0..members {
        let nth = member as u64;
        let rng = |purpose: u64| Rng::new(plan.seed, purpose + nth);
        let context = || Arc::clone(&context);
        watches.push(tokio::task::spawn_local(watch_client::follow(
            context(),
            FOLLOWERS + nth,
            member,
            phase.clone(),
        )));
        watches.push(tokio::task::spawn_local(prober::probe(
            context(),
            Arc::clone(&chronicle),
            PROBERS + nth,
            member,
            phase.clone(),
        )));
        workers.push(tokio::task::spawn_local(watch_client::glance(
            context(),
            Arc::clone(&known),
            GLANCERS + nth,
            member,
            rng(GLANCERS),
            phase.clone(),
        )));
        let lock = lock_client::work(context(), LOCKERS + nth, member, rng(LOCKERS), phase.clone());
        workers.push(tokio::task::spawn_local(lock));
        let lease = lease_client::work(context(), LESSEES + nth, member, rng(LESSEES), phase.clone());
        workers.push(tokio::task::spawn_local(lease));
    }
    for number in 0..plan.clients {
        workers.push(tokio::task::spawn_local(key_client::work(
            Arc::clone(&context),
            Arc::clone(&known),
            number as u64,
            number % members.max(1),
            every,
            Rng::new(plan.seed, number as u64),
            phase.clone(),
        )));
    }
    workers.push(tokio::task::spawn_local(compactor::work(
        Arc::clone(&context),
        COMPACTOR,
        Rng::new(plan.seed, COMPACTOR),
        phase.clone(),
    )));
    workers.push(tokio::task::spawn_local(bulk_client::work(
        Arc::clone(&context),
        BULK,
        Rng::new(plan.seed, BULK),
        phase.clone(),
    )));
    if context.security.users.is_some() {
        let rng = Rng::new(plan.seed, ADMINISTRATOR);
        let administrator = administrator::work(Arc::clone(&context), ADMINISTRATOR, rng, phase.clone());
        workers.push(tokio::task::spawn_local(administrator));
        let mut nth = 0;
        for member in 0..members {
            let by_password = Identity::Slot(member % SLOTS, false);
            let by_certificate = Identity::Slot((member + 1) % SLOTS, true);
            for identity in [by_password, by_certificate, Identity::Staff] {
                let rng = |purpose: u64| Rng::new(plan.seed, purpose + nth);
                let asks = user_client::work(
                    Arc::clone(&context),
                    identity,
                    (USERS + nth, member),
                    rng(USERS),
                    phase.clone(),
                );
                workers.push(tokio::task::spawn_local(asks));
                let watches = watch_client::spy(
                    Arc::clone(&context),
                    Arc::clone(&known),
                    identity,
                    (SPIES + nth, member),
                    rng(SPIES),
                    phase.clone(),
                );
                workers.push(tokio::task::spawn_local(watches));
                nth += 1;
            }
        }
    }
    for worker in workers {
        if let Err(error) = worker.await {
            chronicle.trouble("client failed", error.to_string());
        }
    }
    done.send_replace(true);
    for watch in watches {
        if let Err(error) = watch.await {
            chronicle.trouble("client failed", error.to_string());
        }
    }
}
