//! Performs a whole run: sets up the machine, runs clients and faults, and collects the findings.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oracle::{Final, History, Note, Settings, Verdict};

use crate::chronicle::{Chapters, Chronicle};
use crate::cluster::{CLIENT_PORT, Cluster, Parts};
use crate::fault::{Fault, Need};
use crate::injector::Injector;
use crate::load::{ADMINISTRATOR, Load, Plan};
use crate::network::Network;
use crate::options::{NetworkKind, Options};
use crate::pki::Pki;
use crate::record::Record;
use crate::rng::Rng;
use crate::security::{Security, Users};
use crate::session::ClientContext;
use crate::settlement;
use crate::small_disk::SmallDisk;
use crate::{administrator, isolation, leftovers};

/// Size in bytes of each member's file system. Its image is sparse, so it takes only the space that is used.
const DISK_BYTES: u64 = 4 << 30;
/// Time within which clients must finish their requests in flight at the end of the work phase.
const REST_TIME_MAX: Duration = Duration::from_secs(60);
/// Time within which watches must receive the remaining events at the end of the run.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(60);
/// Largest difference between the rates of clocks that the oracle tolerates, in parts per million. It is
/// small, because members and clients run on one machine.
const DRIFT_PPM: u64 = 1000;
/// Deviation from a lease's time to live, in nanoseconds, that the oracle tolerates, because timers have a
/// limited resolution.
const LEASE_SLACK: u64 = 10_000_000;

/// Reason why a run could not be set up.
#[derive(Debug)]
pub struct SetupError {
    /// Message for the user that says what could not be set up, and why.
    pub text: String,
    /// True if the operating system does not allow something that every run needs, so the server and the
    /// arguments are not at fault.
    pub is_of_machine: bool,
}

impl SetupError {
    fn of(text: String) -> SetupError {
        SetupError { text, is_of_machine: false }
    }
}

impl From<io::Error> for SetupError {
    fn from(error: io::Error) -> SetupError {
        let is_of_machine =
            matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported);
        SetupError { text: error.to_string(), is_of_machine }
    }
}

/// A fault that is not possible in this run, and the reason.
pub type Skipped = (Fault, String);

/// Everything that a run has found out.
pub struct Finding {
    /// Options of the run, including the paths and the seed that were determined at its start.
    pub options: Options,
    /// Faults from which the run drew those that it injected.
    pub faults: Vec<Fault>,
    /// Faults that were not possible, each with the reason.
    pub skipped: Vec<Skipped>,
    /// Record of the faults and of the members' reactions.
    pub chapters: Chapters,
    /// History of the operations that the clients have recorded.
    pub history: History,
    /// Verdict of the oracle on the history.
    pub verdict: Verdict,
    /// Time that the oracle took.
    pub judging: Duration,
    /// Number of failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Counters about users and certificates, by name; empty if the run has neither.
    pub security: Vec<(&'static str, u64)>,
    /// Time at which clients ended their work, in nanoseconds since the run began.
    pub worked: u64,
    /// Output directory.
    pub out: PathBuf,
}

impl Finding {
    /// Returns true if there was no violation.
    pub fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.chapters.troubles.is_empty()
    }
}

/// A helper process that thaws the file systems when this program ends, even if it is killed. Otherwise, a
/// member whose disk is frozen could not be killed.
struct ThawGuard {
    stdin: Option<ChildStdin>,
    child: Child,
}

impl ThawGuard {
    fn start(disks: &[SmallDisk]) -> io::Result<ThawGuard> {
        let script = "cat >/dev/null; for dir; do fsfreeze -u \"$dir\" 2>/dev/null; done";
        let mut command = Command::new("sh");
        command.args(["-c", script, "thaw"]).args(disks.iter().map(SmallDisk::path));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn()?;
        Ok(ThawGuard { stdin: child.stdin.take(), child })
    }
}

impl Drop for ThawGuard {
    fn drop(&mut self) {
        self.stdin = None;
        // The helper process ends, because its standard input was closed above.
        let _ = self.child.wait();
    }
}

/// Resources that this machine provides for a run.
struct Machine {
    addresses: Vec<Ipv4Addr>,
    network: Option<Network>,
    disks: Vec<SmallDisk>,
    /// Requirements of faults that this machine does not meet, each with the reason.
    missing: Vec<(Need, String)>,
    work_dir: leftovers::WorkDir,
}

impl Machine {
    fn set_up(options: &Options, seed: u64) -> Result<Machine, SetupError> {
        let work_dir = leftovers::WorkDir::make()?;
        let mut missing = Vec::new();
        let mut network = None;
        let wants_network = options.network != Some(NetworkKind::Loopback);
        let entered = match isolation::enter(wants_network) {
            Ok(()) if wants_network => {
                let mut no_shaper = None;
                network = Some(Network::make(options.members, seed, &mut no_shaper)?);
                missing.extend(no_shaper.map(|why| (Need::Shaping, why)));
                Ok(())
            }
            entered => entered,
        };
        match (&entered, wants_network) {
            (Err(error), true) if options.network == Some(NetworkKind::Namespaces) => {
                let text = format!("--network namespaces: network namespaces need root: {error}");
                return Err(SetupError { text, is_of_machine: true });
            }
            (Err(error), true) => {
                for need in [Need::Network, Need::Shaping] {
                    missing.push((need, format!("network namespaces need root: {error}")));
                }
            }
            (_, false) => {
                for need in [Need::Network, Need::Shaping] {
                    missing.push((need, "members are on the loopback".to_owned()));
                }
            }
            (Ok(()), true) => {}
        }
        if let Err(error) = isolation::probe_clock() {
            missing.push((Need::Clock, error.to_string()));
        }
        let mut disks = Vec::new();
        let probed = match &entered {
            Ok(()) => isolation::probe_disk(work_dir.path()),
            Err(_) => Err(io::Error::other("mounting file systems needs root")),
        };
        match probed {
            Ok(()) => {
                for at in 0..options.members {
                    disks.push(SmallDisk::make(work_dir.path(), &format!("m{at}"), DISK_BYTES)?);
                }
            }
            Err(error) => missing.push((Need::Disk, error.to_string())),
        }
        let [.., high, low] = std::process::id().to_be_bytes();
        let loopback =
            |at: usize| Ipv4Addr::new(127, high.clamp(1, 254), low, u8::try_from(at + 1).unwrap_or(u8::MAX));
        let address = |at: usize| if network.is_some() { Network::address(at) } else { loopback(at) };
        let addresses = (0..options.members).map(address).collect();
        Ok(Machine { addresses, network, disks, missing, work_dir })
    }
}

/// Returns true if a binary is a Mainstay server.
fn is_own(server: &Path) -> bool {
    let said = Command::new(server).arg("--version").stdin(Stdio::null()).output();
    said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("Mainstay Version"))
}

/// Returns the path of the server's binary for runs without `--server`.
fn default_server() -> Result<PathBuf, SetupError> {
    let mut candidates = Vec::new();
    if let Ok(own) = std::env::current_exe()
        && let Some(dir) = own.parent()
    {
        candidates.push(dir.join("mainstay"));
    }
    candidates.push(PathBuf::from("target/release/mainstay"));
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => {
            let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
            Err(SetupError::of(format!(
                "no server binary at {}: build it (cargo build --release), or name it with --server",
                tried.join(" nor ")
            )))
        }
    }
}

fn existing(path: &Path) -> Result<PathBuf, SetupError> {
    std::fs::canonicalize(path).map_err(|error| SetupError::of(format!("{}: {error}", path.display())))
}

fn out_dir(options: &Options) -> Result<PathBuf, SetupError> {
    let path = match &options.out {
        Some(path) => path.clone(),
        None => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            PathBuf::from(format!("torture-{}", now.map_or(0, |now| now.as_secs())))
        }
    };
    let taken = std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
    if taken {
        return Err(SetupError::of(format!("--out: {} is not empty", path.display())));
    }
    std::fs::create_dir_all(&path)
        .map_err(|error| SetupError::of(format!("--out: {}: {error}", path.display())))?;
    existing(&path)
}

/// Returns the faults to inject, and those that are not possible, each with the reason.
fn choose(options: &Options, machine: &Machine, own: bool) -> Result<(Vec<Fault>, Vec<Skipped>), SetupError> {
    let mut chosen = Vec::new();
    let mut skipped = Vec::new();
    for fault in options.faults.as_deref().unwrap_or(Fault::ALL) {
        let mut why =
            machine.missing.iter().find(|(need, _)| *need == fault.need()).map(|(_, why)| why.clone());
        if fault.need() == Need::Certificates && !options.tls {
            // Certificate faults make no sense without TLS, so leave them out without a message.
            continue;
        }
        if fault.need() == Need::Users && !options.users {
            // Faults that change users make no sense without users, so leave them out without a message.
            continue;
        }
        if matches!(fault.need(), Need::OwnFiles | Need::Certificates) && !own {
            why = Some("the server's files are not this project's".to_owned());
        }
        if options.members == 1 && matches!(fault, Fault::Replace | Fault::FlipBit | Fault::MoveLeader) {
            why = Some("a cluster of one member cannot continue without it".to_owned());
        }
        match why {
            None => chosen.push(*fault),
            // The command line names this fault, and asks for the loopback network. Report an error instead
            // of skipping the fault.
            Some(why) if options.faults.is_some() && options.network == Some(NetworkKind::Loopback) => {
                return Err(SetupError::of(format!(
                    "the fault {fault} is not possible on this machine: {why}"
                )));
            }
            Some(why) => skipped.push((*fault, why)),
        }
    }
    Ok((chosen, skipped))
}

/// Performs a run, and returns its findings.
///
/// # Errors
/// Returns an error if the run could not be set up. Later failures are part of the findings.
pub fn run(mut options: Options, interrupted: &'static AtomicBool) -> Result<Finding, SetupError> {
    let builds = builds(&mut options)?;
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let random = clock.map_or(1, |now| now.subsec_nanos().into());
    let seed = *options.seed.get_or_insert_with(|| Rng::new(random, std::process::id().into()).word() >> 32);
    let out = out_dir(&options)?;
    leftovers::remove();
    let machine = Machine::set_up(&options, seed)?;
    let own = builds.first().is_some_and(|server| is_own(server));
    let (faults, skipped) = choose(&options, &machine, own)?;
    for (fault, why) in &skipped {
        eprintln!("SKIPPED fault {fault}: {why}");
    }

    let addresses = &machine.addresses;
    let context = Arc::new(ClientContext {
        record: Record::default(),
        addresses: addresses.iter().map(|address| SocketAddr::from((*address, CLIENT_PORT))).collect(),
        lives: addresses.iter().map(|_| AtomicU64::new(0)).collect(),
        timeout: Duration::from_millis(options.timeout_ms),
        security: security(&options, &machine, seed)?,
    });
    let chronicle = Arc::new(Chronicle::new(&context));
    let guard = ThawGuard::start(&machine.disks)?;
    let parts = Parts {
        builds,
        flags: options.flags.clone(),
        bug: options.bug.clone(),
        addresses: machine.addresses,
        network: machine.network,
        disks: machine.disks,
        work_dir: machine.work_dir.path().to_owned(),
        out_dir: out.clone(),
    };
    let mut cluster = Cluster::plan(parts, &context, &chronicle)?;
    cluster.recover().map_err(|error| {
        SetupError::of(format!("the cluster does not start: {error}; see {}/m*.log", out.display()))
    })?;
    cluster.block_on(administrator::set_up(&context, ADMINISTRATOR)).map_err(SetupError::of)?;

    let (worked, finals) = work(&mut cluster, &context, &chronicle, (&options, &faults, seed), interrupted)?;
    let chapters = chronicle.lock().clone();
    if options.keep {
        keep(&cluster, &out)?;
    }
    // Drop the cluster first: its processes must end before the disks are unmounted, and the disks must be
    // unmounted before the guard and the directory are removed.
    drop(cluster);
    drop(guard);
    drop(machine.work_dir);

    let recorded = std::mem::take(&mut *context.record.lock());
    let history = History {
        settings: Settings { lease_slack: LEASE_SLACK, clock_drift_ppm: DRIFT_PPM, ..Settings::default() },
        operations: recorded.operations,
        watches: recorded.watches,
        holdings: recorded.holdings,
        finals,
        grants: recorded.grants,
        askers: recorded.askers,
        notes: notes(&chapters),
    };
    let judging = Instant::now();
    let verdict = oracle::check(&history);
    Ok(Finding {
        options,
        faults,
        skipped,
        chapters,
        history,
        verdict,
        judging: judging.elapsed(),
        failures: recorded.failures,
        security: security_figures(&context),
        worked,
        out,
    })
}

/// Creates the certificates and users that the options ask for.
fn security(options: &Options, machine: &Machine, seed: u64) -> Result<Security, SetupError> {
    let pki = match options.tls {
        true => Some(Pki::new(&machine.work_dir.path().join("tls"), &machine.addresses)?),
        false => None,
    };
    // Use signed tokens in every other run with certificates. They need a key, which only runs with
    // certificates have.
    let users = options.users.then(|| Users::new(options.tls && seed % 2 == 1));
    Ok(Security { pki, users, ..Security::default() })
}

fn security_figures(context: &ClientContext) -> Vec<(&'static str, u64)> {
    let security = &context.security;
    if security.pki.is_none() && security.users.is_none() {
        return Vec::new();
    }
    let figures = &security.figures;
    [
        ("logins", &figures.logins),
        ("logins failed", &figures.logins_failed),
        ("changes of users", &figures.changes),
        ("changes with unknown outcome", &figures.changes_unknown),
        ("reloads", &figures.reloads),
        ("intrusions tried", &figures.intrusions),
    ]
    .map(|(name, figure)| (name, figure.load(Ordering::Relaxed)))
    .to_vec()
}

/// Returns the server binaries of the run; members start with the first one. Stores its path in the options,
/// for the report.
fn builds(options: &mut Options) -> Result<Vec<PathBuf>, SetupError> {
    let server = match &options.server {
        Some(server) => existing(server)?,
        None => existing(&default_server()?)?,
    };
    options.server = Some(server.clone());
    let mut builds = vec![server];
    if let Some(second) = &options.second_build {
        builds.push(existing(second)?);
    }
    Ok(builds)
}

/// Runs clients and injects faults until the time is over. Then heals all faults, and waits until the members
/// agree. Returns the time at which clients ended their work, in nanoseconds, and the final state of each
/// member.
fn work(
    cluster: &mut Cluster,
    context: &Arc<ClientContext>,
    chronicle: &Arc<Chronicle>,
    (options, faults, seed): (&Options, &[Fault], u64),
    interrupted: &'static AtomicBool,
) -> Result<(u64, Vec<Final>), SetupError> {
    let plan = Plan { clients: options.clients, rate: options.rate, seed };
    let load = Load::start(context, chronicle, plan)?;
    let deadline = Instant::now() + Duration::from_secs(options.seconds);
    let over = Arc::new(AtomicBool::new(false));
    let progress = progress(context, chronicle, deadline, options.seconds, &over)?;
    let say = |text: &str| {
        if options.verbose {
            eprintln!("{:8.2} s  {text}", chronicle.now() as f64 / 1e9);
        }
    };
    let stopped = || interrupted.load(Ordering::Relaxed);
    let every = Duration::from_secs_f64(options.every);
    let schedule = (faults.to_vec(), every, Rng::new(seed, 0xfa17));
    let mut injector = Injector::new(cluster, chronicle, schedule, deadline, &stopped, &say);
    injector.run();
    if let Err(error) = injector.heal() {
        chronicle.trouble("not healed", error.to_string());
    }
    if let Err(error) = injector.look_at_revoked() {
        chronicle.trouble("not recovered", error.to_string());
    }
    let worked = chronicle.now();
    let finals = settle(cluster, context, chronicle, load);
    over.store(true, Ordering::Relaxed);
    // Ignore the result, because the thread only shows the progress.
    let _ = progress.join();
    Ok((worked, finals))
}

/// Lets the clients finish, the members agree on the newest revision, and the watches receive the remaining
/// events. Returns the final state of each member.
fn settle(
    cluster: &mut Cluster,
    context: &Arc<ClientContext>,
    chronicle: &Arc<Chronicle>,
    mut load: Load,
) -> Vec<Final> {
    if !cluster.block_on(load.rest(REST_TIME_MAX)) {
        chronicle
            .trouble("client hangs", format!("clients did not finish within {} s", REST_TIME_MAX.as_secs()));
    }
    let settled = settlement::settle(cluster, context, chronicle);
    if !load.drain(settled.revision, DRAIN_TIME_MAX) {
        chronicle.trouble(
            "watch hangs",
            format!(
                "a watch did not reach revision {} within {} s",
                settled.revision,
                DRAIN_TIME_MAX.as_secs()
            ),
        );
    }
    cluster.look();
    cluster.look_for_panics();
    settled.finals
}

/// Converts the faults to notes in the history: one at the start, and one at the end of each fault.
fn notes(chapters: &Chapters) -> Vec<Note> {
    let mut notes = Vec::new();
    for bar in &chapters.bars {
        notes.push(Note { at: bar.from, text: format!("{}: {}", bar.name, bar.detail) });
        if let Some(to) = bar.to {
            notes.push(Note { at: to, text: format!("{} is over", bar.name) });
        }
    }
    notes
}

/// Copies the members' data to the output directory.
fn keep(cluster: &Cluster, out: &Path) -> io::Result<()> {
    for at in 0..cluster.size() {
        let from = cluster.data_dir(at)?;
        let to = out.join(format!("data-m{at}"));
        let copied = Command::new("cp").arg("-a").arg("--sparse=always").arg(from).arg(&to).status()?;
        if !copied.success() {
            eprintln!("{} is not wholly copied to {}", from.display(), to.display());
        }
    }
    Ok(())
}

/// Starts a thread that shows the progress of the run if standard error is a terminal.
fn progress(
    context: &Arc<ClientContext>,
    chronicle: &Arc<Chronicle>,
    deadline: Instant,
    seconds: u64,
    over: &Arc<AtomicBool>,
) -> io::Result<std::thread::JoinHandle<()>> {
    let (context, chronicle, over) = (Arc::clone(context), Arc::clone(chronicle), Arc::clone(over));
    std::thread::Builder::new().name("progress".to_owned()).spawn(move || {
        let mut terminal = std::io::stderr();
        if !terminal.is_terminal() {
            return;
        }
        while !over.load(Ordering::Relaxed) {
            let left = deadline.saturating_duration_since(Instant::now()).as_secs();
            let ([done, refused, unknown], events) = {
                let record = context.record.lock();
                (record.tally, record.events)
            };
            let (faults, now, troubles) = {
                let chapters = chronicle.lock();
                let now = chapters.bars.last().filter(|bar| bar.to.is_none()).map(|bar| bar.name.clone());
                (chapters.bars.len(), now.unwrap_or_else(|| "none".to_owned()), chapters.troubles.len())
            };
            let stage = if left > 0 {
                format!("{:>4} of {seconds} s", seconds - left)
            } else {
                "settling".to_owned()
            };
            // Ignore errors: whether the progress is shown has no effect on the run.
            let _ = write!(
                terminal,
                "\r\x1b[K{stage} · {done} done, {refused} refused, {unknown} unknown · {events} events · \
                 fault {faults}: {now} · {troubles} troubles"
            );
            let _ = terminal.flush();
            std::thread::sleep(Duration::from_millis(250));
        }
        let _ = write!(terminal, "\r\x1b[K");
    })
}
