//! Runs a shadow: makes the copy if there is none, follows the source with it, and begins again when the source has
//! compacted what the copy lacks.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::Client;
use stdx::{First, race};
use telemetry::logging::{Logger, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::command::Companion;
use crate::copy::{self, Copy, NAME};
use crate::directory::Directory;
use crate::session::{STANDSTILL_PATIENCE, Session};
use crate::source::Source;
use crate::tally::{Lag, Tally};
use crate::trouble::Trouble;

/// Shortest and longest pause before a source that does not answer is tried again.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Interval at which an unchanged trouble is logged again, and metrics are updated meanwhile.
const REMIND_INTERVAL: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_secs(1);
/// Time for which a copy has to follow its source so that the next one is made without a pause, unless making it took
/// longer.
const SHORT_LIFE: Duration = Duration::from_secs(300);
/// Shortest and longest pause before the next snapshot, after a copy that did not live that long.
const SNAPSHOT_PAUSE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(4 * 3600));

/// Settings of a shadow.
pub(crate) struct Settings {
    /// Endpoints and credentials of the source.
    pub(crate) client: client::Settings,
    /// Data directory of the shadow.
    pub(crate) data_dir: PathBuf,
    /// URLs at which metrics and health are served.
    pub(crate) metrics_urls: Vec<String>,
    /// Interval between comparisons at the newest revision; zero for none.
    pub(crate) compare_interval: Duration,
    /// Rest after a comparison, as a multiple of the time that a member of the source needed for its hash.
    pub(crate) compare_rest: u32,
    /// True if the shadow ends at the first comparison that is different.
    pub(crate) exit_on_mismatch: bool,
    /// True if the shadow begins again from a snapshot when the source has compacted what it lacks.
    pub(crate) restart_on_compaction: bool,
}

/// The wish that the shadow stops. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
    notify: Arc<Notify>,
}

impl Stop {
    /// Asks the shadow to stop.
    pub(crate) fn ask(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.notify.notify_one();
    }

    /// Waits until the shadow is asked to stop.
    pub(crate) async fn asked(&self) {
        while !self.flag.load(Ordering::Relaxed) {
            self.notify.notified().await;
        }
    }
}

/// Times before which the source is not asked for another hash, because it needs a rest after the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// For a hash at the newest revision.
    pub(crate) newest: Instant,
    /// For the hash of a compaction.
    pub(crate) compaction: Instant,
}

/// A shadow and what it has found out.
pub(crate) struct Shadow {
    pub(crate) settings: Settings,
    pub(crate) client: Client,
    pub(crate) directory: Directory,
    pub(crate) logger: Arc<Logger>,
    pub(crate) stop: Stop,
    pub(crate) tally: Tally,
    pub(crate) lag: Arc<Lag>,
    /// Alarms of the source that were logged last.
    pub(crate) alarms: BTreeSet<String>,
    /// Time of the next comparison at the newest revision, if there is an interval.
    pub(crate) next_comparison: Instant,
    /// When the source may be asked for the next hash.
    pub(crate) rest: Rest,
    /// Time of the last examination of a difference.
    pub(crate) examined_at: Option<Instant>,
    /// Time that a copy may stand still while its source is ahead.
    pub(crate) standstill_patience: Duration,
    /// The last trouble that was logged, and when; so that it is not logged again at each attempt.
    told: Option<(String, Instant)>,
}

/// Reason for which a shadow stops following with its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was asked to stop.
    Stopped,
    /// A comparison was different, and the shadow is to end then.
    Different,
    /// The source has compacted what the copy lacks.
    Compacted,
}

/// Runs a shadow until it is asked to stop. Returns true if a comparison was ever different in its data directory.
///
/// # Errors
///
/// Returns the reason for which the shadow cannot go on.
pub(crate) async fn run(
    settings: Settings,
    logger: Arc<Logger>,
    stop: Stop,
    companion: Arc<dyn Companion>,
) -> Result<bool, Trouble> {
    let directory = Directory::open(&settings.data_dir)?;
    let client = Client::new(settings.client.clone()).map_err(|error| Trouble::Final(error.to_string()))?;
    if let Some(revision) = directory.different() {
        logger.error(
            "an earlier comparison with this data directory was different",
            &[("revision", Value::Int(revision))],
        );
    }
    let lag = Arc::new(Lag::new(std::time::Instant::now(), Session::LAG_PATIENCE));
    let tally = Tally::of(directory.different());
    let next_comparison = Instant::now();
    let mut shadow = Shadow {
        settings,
        client,
        directory,
        logger,
        stop,
        tally,
        lag,
        alarms: BTreeSet::new(),
        next_comparison,
        rest: Rest { newest: next_comparison, compaction: next_comparison },
        examined_at: None,
        standstill_patience: STANDSTILL_PATIENCE.0,
        told: None,
    };
    let mut snapshot_pause = SNAPSHOT_PAUSE.0;
    let mut is_first = true;
    loop {
        let (preparing, snapshots) = (Instant::now(), shadow.tally.snapshots);
        let Some(mut copy) = shadow.prepare(std::mem::take(&mut is_first)).await? else { break };
        let is_new = shadow.tally.snapshots > snapshots;
        let (began, cost) = (Instant::now(), preparing.elapsed());
        shadow.next_comparison = began;
        shadow.logger.info(
            "the copy serves nobody: it has no listener for clients and members",
            &[("revision", Value::Int(copy.revision()))],
        );
        let source = shadow.directory.source().unwrap_or_default();
        let begun = companion.begin(copy.running(), source, &shadow.directory.data(), &shadow.logger);
        let followed = match begun {
            Ok(()) => shadow.follow(&mut copy).await,
            Err(reason) => Err(Trouble::Final(reason)),
        };
        companion.end();
        shadow.logger.info("the shadow stops its copy", &[("summary", Value::Str(&shadow.tally.summary()))]);
        let stopped = copy.stop().await;
        if matches!(followed, Err(Trouble::Final(_))) {
            // If the copy has failed, its own reason says more.
            stopped.clone()?;
        }
        match followed? {
            End::Compacted => {
                stopped?;
                shadow.directory.clear()?;
                // A source that is compacted faster than a copy catches up must not be asked for snapshots all the time.
                let has_lived = began.elapsed() >= SHORT_LIFE.max(cost);
                if has_lived || !is_new {
                    snapshot_pause = SNAPSHOT_PAUSE.0;
                    continue;
                }
                shadow.logger.warn(
                    "the source has outrun a new copy; the next snapshot is taken later",
                    &[("pause", Value::Duration(snapshot_pause))],
                );
                if let First::Right(()) = race(sleep(snapshot_pause), shadow.stop.asked()).await {
                    break;
                }
                snapshot_pause = (snapshot_pause * 2).min(SNAPSHOT_PAUSE.1);
            }
            End::Stopped | End::Different => {
                stopped?;
                break;
            }
        }
    }
    Ok(shadow.directory.different().is_some())
}

impl Shadow {
    /// Opens the copy, and makes it first from a snapshot of the source if there is none. Returns `None` if the shadow
    /// was asked to stop before. If `is_first` is false, a source that refuses the user is asked again.
    async fn prepare(&mut self, is_first: bool) -> Result<Option<Copy>, Trouble> {
        let mut pause = PAUSE.0;
        while !self.directory.has_copy()? {
            let stop = self.stop.clone();
            let made = match race(self.make_copy(), stop.asked()).await {
                First::Left(made) => made,
                First::Right(()) => return Ok(None),
            };
            match made {
                Ok(()) => break,
                Err(Trouble::Passing(text)) => self.tell(&text),
                Err(Trouble::Refused(text)) if !is_first => self.tell(&text),
                Err(trouble) => return Err(trouble),
            }
            if let First::Right(()) = race(sleep(pause), self.stop.asked()).await {
                return Ok(None);
            }
            pause = (pause * 2).min(PAUSE.1);
        }
        if self.directory.source().is_none() {
            let data = self.directory.data();
            return Err(Trouble::Final(format!(
                "{} is there, but not which cluster it is a copy of",
                data.display()
            )));
        }
        let (data, urls) = (self.directory.data(), &self.settings.metrics_urls);
        copy::open(&data, urls, &self.logger, &self.stop.flag).await.map(Some)
    }

    /// Makes a copy from a snapshot of the source.
    async fn make_copy(&mut self) -> Result<(), Trouble> {
        // In a new directory any cluster may be the source; a copy that is made again is one of the same cluster.
        let source = Source::identify(&self.client, self.directory.source()).await?;
        self.directory.follows(source.cluster_id())?;
        let (snapshot, data, logger) =
            (self.directory.snapshot(), self.directory.data(), Arc::clone(&self.logger));
        self.logger
            .info("taking a snapshot of the source", &[("cluster-id", Value::Id(source.cluster_id()))]);
        source.save_snapshot(&snapshot).await?;
        let token = format!("shadow-of-{:x}", source.cluster_id());
        let restored = tokio::task::spawn_blocking(move || {
            utl::restore_copy(&utl::CopyOptions {
                snapshot: &snapshot,
                data_dir: &data,
                name: NAME,
                token: &token,
                logger: &logger,
            })
        });
        let restored = restored.await.map_err(|error| Trouble::Final(error.to_string()))?;
        self.directory.remove_snapshot()?;
        let restored =
            restored.map_err(|failure| Trouble::Final(format!("cannot make the copy: {failure}")))?;
        self.tally.snapshots += 1;
        self.logger.info(
            "made a copy from the snapshot",
            &[
                ("revision", Value::Int(restored.revision.0)),
                ("compact-revision", Value::Int(restored.compact_revision.0)),
            ],
        );
        Ok(())
    }

    /// Follows the source until the shadow is asked to stop or has to end; tries again after passing troubles.
    async fn follow(&mut self, copy: &mut Copy) -> Result<End, Trouble> {
        // The lag is published by a task of its own: the session may wait for its source or for the disk of the copy.
        let mut publishing = JoinSet::new();
        let (lag, reader) = (Arc::clone(&self.lag), copy.reader());
        publishing.spawn(async move {
            loop {
                lag.publish(reader.revision(), reader.metrics());
                sleep(TICK).await;
            }
        });
        let mut pause = PAUSE.0;
        let mut was_connected = false;
        loop {
            let began = Instant::now();
            let ended = Session::run(self, copy).await;
            copy.metrics().connected.set(0);
            if copy.has_ended() {
                return Err(Trouble::Final("the copy has failed".to_owned()));
            }
            match ended {
                Ok(end) => return Ok(end),
                Err(Trouble::Compacted(revision)) => {
                    let text = Trouble::Compacted(revision).text();
                    if !self.settings.restart_on_compaction {
                        return Err(Trouble::Final(format!(
                            "{text}; with --restart-on-compaction the shadow begins again from a snapshot"
                        )));
                    }
                    self.logger.warn(
                        "the shadow begins again from a snapshot",
                        &[("reason", Value::Str(&text)), ("revision", Value::Int(copy.revision()))],
                    );
                    return Ok(End::Compacted);
                }
                Err(Trouble::Different(revision, text)) => {
                    self.directory.note_difference(revision)?;
                    self.tally.different(revision);
                    return Err(Trouble::Different(revision, text));
                }
                Err(Trouble::Refused(text)) if !was_connected && began.elapsed() < Session::SETTLED_AFTER => {
                    return Err(Trouble::Refused(text));
                }
                Err(Trouble::Final(text)) => return Err(Trouble::Final(text)),
                Err(Trouble::Passing(text) | Trouble::Refused(text)) => self.tell(&text),
            }
            if began.elapsed() >= Session::SETTLED_AFTER {
                (pause, was_connected) = (PAUSE.0, true);
            }
            let until = Instant::now() + pause;
            while Instant::now() < until {
                self.publish(copy);
                if let First::Right(()) = race(sleep(TICK), self.stop.asked()).await {
                    return Ok(End::Stopped);
                }
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Logs a trouble, unless it was the last one that was logged, not long ago.
    pub(crate) fn tell(&mut self, text: &str) {
        let is_news =
            self.told.as_ref().is_none_or(|(told, at)| told != text || at.elapsed() >= REMIND_INTERVAL);
        if is_news {
            self.logger.warn("cannot follow the source; trying again", &[("reason", Value::Str(text))]);
            self.told = Some((text.to_owned(), Instant::now()));
        }
    }

    /// Records that the copy has what the source has.
    pub(crate) fn is_well(&mut self) {
        if self.told.take().is_some() {
            self.logger.info("the shadow follows its source again", &[]);
        }
    }

    /// Updates the metrics.
    pub(crate) fn publish(&mut self, copy: &Copy) {
        let metrics = copy.metrics();
        self.lag.publish(copy.revision(), metrics);
        metrics.different.set_bool(self.directory.different().is_some());
        self.tally.publish(metrics);
    }
}
