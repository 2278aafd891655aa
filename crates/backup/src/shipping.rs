//! Ships the log of a node of this process, on threads: one reads entries, one ships them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use telemetry::logging::{Logger, Value};
use telemetry::metrics::BackupMetrics;

use crate::collector::Collector;
use crate::live::wall_ms;
use crate::own_id::own_id;
use crate::place;
use crate::queue::Queue;
use crate::shipper::{Pace, Shipper, Step};
use crate::source::Source;
use crate::store::{Creation, Store};
use crate::trouble::{Fault, Trouble};

/// Parts of the lag that reading and closing a part may take: a sample each tenth, a part each quarter.
const SAMPLES_PER_LAG: u32 = 10;
const PARTS_PER_LAG: u32 = 4;
/// Longest interval between two samples, which is the resolution of restores to a time.
const SAMPLE_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// Shortest and longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Interval at which an unchanged trouble is logged again.
const REMIND_INTERVAL: Duration = Duration::from_secs(60);
/// Time that the last parts have to reach the store when the process ends. They are in the log of the node, so nothing
/// is lost if they do not.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Settings of a backup.
#[derive(Clone, Debug)]
pub struct Settings {
    /// URL of the place.
    pub to: String,
    /// Time after which a committed entry should be in the store.
    pub lag_max: Duration,
    /// Interval between bases.
    pub base_interval: Duration,
    /// Bytes of entries that may wait in files of the data directory.
    pub outbox_bytes_max: u64,
    /// Directory for the id of this process and for what waits.
    pub directory: PathBuf,
}

/// A running backup. Dropping it stops its threads.
pub struct Shipping {
    stop: Arc<AtomicBool>,
    wakers: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    failure: Arc<Mutex<Option<Trouble>>>,
}

impl Shipping {
    /// Starts to ship the log of a node.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the data directory cannot be used. A store that does not answer is no error.
    pub fn start(
        source: Arc<dyn Source>,
        settings: &Settings,
        metrics: BackupMetrics,
        logger: Arc<Logger>,
    ) -> Result<Shipping, Trouble> {
        let in_directory = |error: std::io::Error| {
            Trouble::new(Fault::Refused, format!("cannot use {}: {error}", settings.directory.display()))
        };
        let id = own_id(&settings.directory.join("backup-id")).map_err(in_directory)?;
        let outbox = settings.directory.join("backup-outbox");
        let queue =
            Queue::open(&outbox, settings.outbox_bytes_max, source.cluster_id()).map_err(in_directory)?;
        // A place that does not exist now may exist later; a URL that names none will not.
        let store = match place::open(&settings.to) {
            Err(trouble) if trouble.fault == Fault::Refused => return Err(trouble),
            opened => opened.ok(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let failure = Arc::new(Mutex::new(None));
        let collecting = Collecting {
            collector: Collector::new(
                source.cluster_id(),
                u64::try_from((settings.lag_max / PARTS_PER_LAG).as_millis()).unwrap_or(u64::MAX),
            ),
            source: Arc::clone(&source),
            queue: queue.clone(),
            interval: (settings.lag_max / SAMPLES_PER_LAG).min(SAMPLE_INTERVAL_MAX),
            logger: Arc::clone(&logger),
        };
        let shipping = Deliverer {
            url: settings.to.clone(),
            store,
            shipper: None,
            is_probed: false,
            source,
            queue,
            id,
            pace: Pace {
                base_ms: u64::try_from(settings.base_interval.as_millis()).unwrap_or(u64::MAX),
                takeover_ms: Pace::default()
                    .takeover_ms
                    .max(u64::try_from((settings.lag_max * 6).as_millis()).unwrap_or(u64::MAX)),
                ..Pace::default()
            },
            metrics,
            logger,
            failure: Arc::clone(&failure),
            told: None,
        };
        let began = Instant::now();
        let (collector_waker, collector_woken) = channel();
        let (shipper_waker, shipper_woken) = channel();
        let ended = Arc::clone(&stop);
        let collect = move || collecting.run(began, &ended, &collector_woken);
        let ended = Arc::clone(&stop);
        let ship = move || shipping.run(began, &ended, &shipper_woken);
        let mut running = Shipping { stop, wakers: Vec::new(), threads: Vec::new(), failure };
        running.spawn("backup-collect", collector_waker, collect)?;
        running.spawn("backup-ship", shipper_waker, ship)?;
        Ok(running)
    }

    fn spawn(
        &mut self,
        name: &str,
        waker: Sender<()>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), Trouble> {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .map_err(|error| Trouble::new(Fault::Refused, format!("cannot start a thread: {error}")))?;
        self.wakers.push(waker);
        self.threads.push(thread);
        Ok(())
    }

    /// Returns the reason for which the backup cannot go on, if there is one.
    pub fn failure(&self) -> Option<Trouble> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Shipping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // In this order, so that the shipper finds what the collector has read last.
        self.wakers.clear();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn elapsed_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Waits, but not after the end of the process was asked for.
fn rest(time: Duration, woken: &Receiver<()>) -> bool {
    woken.recv_timeout(time) != Err(RecvTimeoutError::Disconnected)
}

struct Collecting {
    collector: Collector,
    source: Arc<dyn Source>,
    queue: Queue,
    interval: Duration,
    logger: Arc<Logger>,
}

impl Collecting {
    fn run(mut self, began: Instant, stop: &AtomicBool, woken: &Receiver<()>) {
        let mut told: Option<Instant> = None;
        loop {
            let goes_on = rest(self.interval, woken) && !stop.load(Ordering::Relaxed);
            let stepped = self.collector.step(
                &*self.source,
                &self.queue,
                wall_ms(SystemTime::now()),
                elapsed_ms(began),
                !goes_on,
            );
            let text = match stepped {
                Err(trouble) => Some(trouble.text),
                Ok(()) => self.collector.behind_ms().map(|behind_ms| {
                    format!(
                        "the clock of this machine is {} s behind the newest time in the backup; until it is there, all \
                         that happens has the same time in the backup. The order is not affected",
                        behind_ms / 1000
                    )
                }),
            };
            if let Some(text) = text
                && told.is_none_or(|at| at.elapsed() > REMIND_INTERVAL)
            {
                self.logger.warn("backup", &[("error", Value::Str(&text))]);
                told = Some(Instant::now());
            }
            if !goes_on {
                return;
            }
        }
    }
}

struct Deliverer {
    url: String,
    store: Option<Arc<dyn Store>>,
    shipper: Option<Shipper>,
    is_probed: bool,
    source: Arc<dyn Source>,
    queue: Queue,
    id: String,
    pace: Pace,
    metrics: BackupMetrics,
    logger: Arc<Logger>,
    failure: Arc<Mutex<Option<Trouble>>>,
    told: Option<(String, Instant)>,
}

impl Deliverer {
    fn run(mut self, began: Instant, stop: &AtomicBool, woken: &Receiver<()>) {
        let mut pause = PAUSE.0;
        let mut last_step = None;
        loop {
            let stepped = self.step(began);
            self.publish();
            let wait = match stepped {
                Ok(step) => {
                    self.tell_step(&step, last_step.as_ref());
                    pause = PAUSE.0;
                    let is_done = step != Step::Extended;
                    last_step = Some(step);
                    // After an extension more may wait.
                    if is_done { PAUSE.0 } else { Duration::from_millis(1) }
                }
                Err(trouble) => {
                    self.metrics.failures.add(1);
                    if !trouble.is_passing() {
                        self.logger.error("the backup cannot go on", &[("error", Value::Str(&trouble.text))]);
                        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
                        return;
                    }
                    self.tell(&trouble.text);
                    if matches!(trouble.fault, Fault::Denied | Fault::NoPlace) {
                        // Credentials are read again.
                        self.store = None;
                    }
                    let wait = jittered(pause);
                    pause = (pause * 2).min(PAUSE.1);
                    wait
                }
            };
            if !rest(wait, woken) || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        // What the collector has read last.
        let ends = Instant::now() + STOP_PATIENCE;
        while Instant::now() < ends && self.queue.bytes() > 0 {
            match self.step(began) {
                Ok(Step::Extended) => {}
                // A base that is being made holds up the parts after it; it is made again at the next start.
                _ => break,
            }
        }
        // For the next process, if the store does not take it now.
        if let Err(error) = self.queue.spill() {
            self.logger.warn(
                "cannot keep what waits for the store in the data directory",
                &[("error", Value::Str(&error.to_string()))],
            );
        }
        self.publish();
    }

    fn step(&mut self, began: Instant) -> Result<Step, Trouble> {
        let store = match &self.store {
            Some(store) => Arc::clone(store),
            None => Arc::clone(self.store.insert(place::open(&self.url)?)),
        };
        if !self.is_probed {
            probe(&*store, &format!("{:016x}", self.source.cluster_id()))?;
            self.is_probed = true;
        }
        let shipper = self.shipper.get_or_insert_with(|| {
            Shipper::new(
                Arc::clone(&store),
                Arc::clone(&self.source),
                self.queue.clone(),
                self.id.clone(),
                self.pace.clone(),
                true,
            )
        });
        shipper.store = store;
        let stepped = shipper.step(wall_ms(SystemTime::now()), elapsed_ms(began));
        if let Some(notice) = shipper.take_notice() {
            self.logger.error("a part of the backup is damaged", &[("error", Value::Str(&notice))]);
        }
        stepped
    }

    fn publish(&mut self) {
        let Some(shipper) = &self.shipper else { return };
        let now_ms = wall_ms(SystemTime::now());
        let counts = shipper.counts();
        self.metrics.manifests.raise_to(counts.manifests);
        self.metrics.bytes.raise_to(counts.bytes);
        self.metrics.bases.raise_to(counts.bases);
        self.metrics.gaps.raise_to(counts.gaps);
        self.metrics.waiting_bytes.set_u64(self.queue.bytes());
        self.metrics.stands_by.set_u64(u64::from(shipper.stands_by()));
        if let Some((at, sequence)) = shipper.reached() {
            let is_there = at.index >= self.source.position().index && self.source.is_current();
            let lag_ms = if is_there { 0 } else { now_ms.saturating_sub(at.time_ms) };
            self.metrics.lag_seconds.set_u64(lag_ms.div_ceil(1000));
            self.metrics.sequence.set_u64(sequence);
            self.metrics.revision.set_u64(u64::try_from(at.revision).unwrap_or(0));
            self.metrics.shipped_at.set_u64(at.time_ms / 1000);
        }
    }

    fn tell_step(&mut self, step: &Step, before: Option<&Step>) {
        if !matches!(step, Step::Waits(_)) && self.told.take().is_some() {
            self.logger.info("the backup goes on", &[("to", Value::Str(&self.url))]);
        }
        match step {
            Step::Waits(text) => self.tell(text),
            Step::StandsBy if before != Some(step) => self.logger.info(
                "another process extends this backup; this one stands by, and takes over when the other one is silent",
                &[("to", Value::Str(&self.url))],
            ),
            Step::MakesBase if before != Some(step) => {
                self.logger.info("the whole state is being shipped as a base", &[("to", Value::Str(&self.url))]);
            }
            Step::Extended if before != Some(step) => {
                if let Some((at, sequence)) = self.shipper.as_ref().and_then(Shipper::reached) {
                    self.logger.debug(
                        "shipped",
                        &[("manifest", Value::Uint(sequence)), ("revision", Value::Int(at.revision))],
                    );
                }
            }
            _ => {}
        }
    }

    fn tell(&mut self, text: &str) {
        let is_told =
            self.told.as_ref().is_some_and(|(last, at)| last == text && at.elapsed() < REMIND_INTERVAL);
        if !is_told {
            self.logger.warn("the backup is held up", &[("error", Value::Str(text))]);
            self.told = Some((text.to_owned(), Instant::now()));
        }
    }
}

/// Returns an error if the store replaces an object that exists: then nothing keeps two processes apart, and locked
/// objects are no protection.
fn probe(store: &dyn Store, cluster: &str) -> Result<(), Trouble> {
    let name = format!("{cluster}/created-once");
    let data = Bytes::from_static(b"This object shows that the store does not replace objects that exist.\n");
    for _ in 0..2 {
        if store.create(&name, data.clone())? == Creation::Existed {
            return Ok(());
        }
    }
    Err(Trouble::new(
        Fault::Refused,
        format!(
            "{} replaces objects that exist, though it was asked not to (If-None-Match): a backup needs a store that \
             creates objects on this condition",
            store.url()
        ),
    ))
}

/// Returns between half and all of a pause, so that many processes do not come at the same moment.
fn jittered(pause: Duration) -> Duration {
    let nanos =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    pause / 2 + pause.mul_f64(f64::from(nanos % 1000) / 2000.0)
}
