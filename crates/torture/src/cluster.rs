use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use api::etcdserverpb as pb;
use api::{Code, Rpc, Status, error};
use client::{CallOptions, Channel, Endpoint, Tls, Transport};
use prost::Message;
use tokio::runtime::Runtime;

use crate::administrator::{Change, Known, carry_out};
use crate::chronicle::{Chronicle, State};
use crate::network::Network;
use crate::process::{ClockOffset, Place, Process, describe};
use crate::security::{Identity, Security};
use crate::session::{ClientContext, Session};
use crate::small_disk::SmallDisk;

/// Port for clients. It is the same for all members, because each has an address of its own.
pub const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// Time within which all members must become healthy when no fault is active. Otherwise there is a violation.
pub const RECOVERY_TIME_MAX: Duration = Duration::from_secs(60);
/// Time within which a process must end after SIGTERM.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);
/// Time within which a process must end after SIGKILL.
const KILL_TIME_MAX: Duration = Duration::from_secs(30);
/// Time limit for a call that the program makes itself, in the role of an operator.
const CALL_TIME_MAX: Duration = Duration::from_secs(5);
/// Client number of the program itself, in the role of an operator.
const OPERATOR: u64 = 7000;
/// Time limit for a single attempt to connect to a member, and for a call that only checks whether the member
/// answers.
const GLANCE_TIME_MAX: Duration = Duration::from_secs(2);
/// Time within which a process must accept connections after its start.
const LISTEN_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum number of bytes of a member's output that a message quotes.
const QUOTE_BYTES: u64 = 1500;

/// Flags of every member, in front of the user's flags. They keep logs short, so that checkpoints happen
/// within seconds, and a member that lags behind soon needs a snapshot.
const FLAGS: &[&str] =
    &["--snapshot-count=300", "--snapshot-catchup-entries=100", "--watch-progress-notify-interval=2s"];

/// A member: its address, its data, and its process if it is running.
struct MemberSlot {
    name: String,
    address: Ipv4Addr,
    data_dir: PathBuf,
    log_path: PathBuf,
    process: Option<Process>,
    /// Index, in `Cluster::builds`, of the server binary that the member runs.
    build: usize,
    clock: Option<ClockOffset>,
    /// True if the member was added to a cluster that existed already.
    joined: bool,
    /// True if the process may end by itself. If it is false, such an end is a violation.
    may_end: bool,
}

/// The members of the cluster, with their network and their disks.
pub struct Cluster {
    // Fields are dropped in this order. The processes in `slots` must end before their disks and their
    // network are removed.
    slots: Vec<MemberSlot>,
    disks: Vec<SmallDisk>,
    /// The simulated network; `None` if all members are on loopback addresses.
    pub network: Option<Network>,
    builds: Vec<PathBuf>,
    flags: Vec<String>,
    bug: Option<String>,
    context: Arc<ClientContext>,
    chronicle: Arc<Chronicle>,
    runtime: Runtime,
}

/// Parts from which a cluster is built.
pub struct Parts {
    /// Server binaries: one, or two if members change between two builds.
    pub builds: Vec<PathBuf>,
    /// Additional flags of every member.
    pub flags: Vec<String>,
    /// Name of a planted bug, which is passed to every member to check that the oracle finds it; `None` for
    /// no bug. Builds without planted bugs ignore it.
    pub bug: Option<String>,
    /// Address of each member, which determines the number of members.
    pub addresses: Vec<Ipv4Addr>,
    /// The simulated network; `None` if all members are on loopback addresses.
    pub network: Option<Network>,
    /// The file system of each member; empty if members have no file systems of their own.
    pub disks: Vec<SmallDisk>,
    /// Directory for the members' data, if they have no file systems of their own.
    pub work_dir: PathBuf,
    /// Directory for the output of the members' processes.
    pub out_dir: PathBuf,
}

impl Cluster {
    /// Creates a cluster in which no member runs yet.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses an operation.
    pub fn plan(
        parts: Parts,
        context: &Arc<ClientContext>,
        chronicle: &Arc<Chronicle>,
    ) -> io::Result<Cluster> {
        let slots = parts.addresses.iter().enumerate().map(|(at, address)| {
            let base = parts.disks.get(at).map_or(parts.work_dir.as_path(), SmallDisk::path);
            MemberSlot {
                name: format!("m{at}"),
                address: *address,
                data_dir: base.join(format!("data-m{at}")),
                log_path: parts.out_dir.join(format!("m{at}.log")),
                process: None,
                build: 0,
                clock: None,
                joined: false,
                may_end: false,
            }
        });
        Ok(Cluster {
            slots: slots.collect(),
            disks: parts.disks,
            network: parts.network,
            builds: parts.builds,
            flags: parts.flags,
            bug: parts.bug,
            context: Arc::clone(context),
            chronicle: Arc::clone(chronicle),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        })
    }

    /// Returns the number of members.
    pub fn size(&self) -> usize {
        self.slots.len()
    }

    /// Returns the file system of a member; `None` if it has none of its own.
    pub fn disk(&self, at: usize) -> Option<&SmallDisk> {
        self.disks.get(at)
    }

    /// Returns a member's data directory.
    pub fn data_dir(&self, at: usize) -> io::Result<&Path> {
        self.slot(at).map(|slot| slot.data_dir.as_path())
    }

    fn slot(&self, at: usize) -> io::Result<&MemberSlot> {
        self.slots.get(at).ok_or_else(|| io::Error::other(format!("there is no member {at}")))
    }

    fn slot_mut(&mut self, at: usize) -> io::Result<&mut MemberSlot> {
        self.slots.get_mut(at).ok_or_else(|| io::Error::other(format!("there is no member {at}")))
    }

    fn command(&self, slot: &MemberSlot) -> io::Result<Command> {
        let build = self.builds.get(slot.build).ok_or_else(|| io::Error::other("there is no such build"))?;
        let security = self.security();
        let url = |slot: &MemberSlot, port: u16| format!("{}://{}:{port}", self.scheme(), slot.address);
        let at = self.slots.iter().position(|other| other.name == slot.name).unwrap_or_default();
        let initial: Vec<String> =
            self.slots.iter().map(|slot| format!("{}={}", slot.name, url(slot, PEER_PORT))).collect();
        let (client, peer) = (url(slot, CLIENT_PORT), url(slot, PEER_PORT));
        let mut command = Command::new(build);
        command
            .env_clear()
            .env("RUST_BACKTRACE", "1")
            .arg(format!("--name={}", slot.name))
            .arg("--data-dir")
            .arg(&slot.data_dir)
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}", initial.join(",")))
            .arg(format!("--initial-cluster-state={}", if slot.joined { "existing" } else { "new" }))
            .arg("--initial-cluster-token=torture")
            .args(FLAGS)
            .args(security.pki.iter().flat_map(|pki| pki.flags(at)));
        if let Some(users) = &security.users {
            // Use the lowest cost of a password hash: the time that hashing takes is not under test.
            command.arg("--bcrypt-cost=4");
            if let Some(pki) = security.pki.as_ref().filter(|_| users.are_signed) {
                command.arg(format!("--auth-token={}", pki.jwt()));
            }
        }
        if let Some(bug) = &self.bug {
            command.env("MAINSTAY_PLANTED", bug);
        }
        command.args(&self.flags);
        Ok(command)
    }

    /// Returns the certificates and the users of this run.
    pub fn security(&self) -> &Security {
        &self.context.security
    }

    fn scheme(&self) -> &'static str {
        if self.security().pki.is_some() { "https" } else { "http" }
    }

    /// Starts a member's process.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn start(&mut self, at: usize) -> io::Result<()> {
        let slot = self.slot(at)?;
        let command = self.command(slot)?;
        let log = OpenOptions::new().create(true).append(true).open(&slot.log_path)?;
        let place =
            Place { network: self.network.as_ref().and_then(|network| network.place(at)), clock: slot.clock };
        if let Some(life) = self.context.lives.get(at) {
            life.fetch_add(1, Ordering::SeqCst);
        }
        let process = Process::start(command, &place, &log)?;
        self.slot_mut(at)?.process = Some(process);
        self.chronicle.is(at, State::Up);
        Ok(())
    }

    /// Waits until a member's process accepts connections, which it does only after it has loaded its
    /// certificates. The other members need not be running.
    ///
    /// # Errors
    /// Returns an error if the process does not accept connections in time, or ends.
    pub fn wait_until_it_listens(&mut self, at: usize) -> io::Result<()> {
        let address = SocketAddr::from((self.slot(at)?.address, CLIENT_PORT));
        let deadline = Instant::now() + LISTEN_TIME_MAX;
        while let Err(error) = TcpStream::connect_timeout(&address, GLANCE_TIME_MAX) {
            self.look();
            if !self.runs(at) {
                return Err(io::Error::other(format!("m{at} does not stay up")));
            }
            if Instant::now() > deadline {
                let seconds = LISTEN_TIME_MAX.as_secs();
                return Err(io::Error::other(format!("m{at} does not listen after {seconds} s: {error}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Returns true if a member's process runs.
    pub fn runs(&self, at: usize) -> bool {
        self.slots.get(at).is_some_and(|slot| slot.process.is_some())
    }

    /// Kills a member's process with SIGKILL, as in a crash.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn kill(&mut self, at: usize) -> io::Result<()> {
        if let Some(mut process) = self.slot_mut(at)?.process.take() {
            process.kill(KILL_TIME_MAX)?;
        }
        self.chronicle.is(at, State::Down);
        Ok(())
    }

    /// Kills the processes of several members at the same time.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn kill_together(&mut self, members: &[usize]) -> io::Result<()> {
        for at in members {
            if let Some(process) = &mut self.slot_mut(*at)?.process {
                process.signal(libc::SIGKILL)?;
            }
        }
        members.iter().try_for_each(|at| self.kill(*at))
    }

    /// Stops a member with SIGTERM, and waits until its process has ended.
    ///
    /// # Errors
    /// Returns an error if the process does not end in time.
    pub fn stop(&mut self, at: usize) -> io::Result<()> {
        if let Some(mut process) = self.slot_mut(at)?.process.take() {
            process.signal(libc::SIGTERM)?;
            process.wait(STOP_TIME_MAX)?;
        }
        self.chronicle.is(at, State::Down);
        Ok(())
    }

    /// Pauses a member's process with SIGSTOP if `still` is true. Otherwise lets it continue with SIGCONT.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn pause(&mut self, at: usize, still: bool) -> io::Result<()> {
        if let Some(process) = &mut self.slot_mut(at)?.process {
            process.signal(if still { libc::SIGSTOP } else { libc::SIGCONT })?;
            self.chronicle.is(at, if still { State::Paused } else { State::Up });
        }
        Ok(())
    }

    /// Sets the clock offset that a member gets at its next start.
    ///
    /// # Errors
    /// Returns an error if the member does not exist.
    pub fn set_clock(&mut self, at: usize, clock: ClockOffset) -> io::Result<()> {
        self.slot_mut(at)?.clock = Some(clock);
        Ok(())
    }

    /// Switches a member to the next server binary at its next start.
    ///
    /// # Errors
    /// Returns an error if the member does not exist.
    pub fn change_build(&mut self, at: usize) -> io::Result<()> {
        let builds = self.builds.len().max(1);
        let slot = self.slot_mut(at)?;
        slot.build = (slot.build + 1) % builds;
        Ok(())
    }

    /// Sets whether a member's process may end by itself.
    ///
    /// # Errors
    /// Returns an error if the member does not exist.
    pub fn may_end(&mut self, at: usize, may: bool) -> io::Result<()> {
        self.slot_mut(at)?.may_end = may;
        Ok(())
    }

    /// Looks for processes that have ended by themselves, and records a violation for each that was not
    /// allowed to.
    pub fn look(&mut self) {
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(at) else { continue };
            let Some(process) = &mut slot.process else { continue };
            let ended = match process.ended() {
                Ok(None) => continue,
                Ok(Some(status)) => describe(status),
                Err(error) => error.to_string(),
            };
            slot.process = None;
            let name = slot.name.clone();
            self.chronicle.is(at, State::Down);
            if slot.may_end {
                self.chronicle.note(format!("{name} exited ({ended}), as expected"));
            } else {
                let said = self.said(at, 0);
                self.chronicle.trouble(
                    "member ended",
                    format!("{name} exited unexpectedly: {ended}. Its last output: {said}"),
                );
            }
        }
    }

    /// Searches the output of all members for panics, and records them as violations. This is needed for
    /// builds that do not abort on a panic: their process continues without the task that has panicked.
    pub fn look_for_panics(&self) {
        for at in 0..self.slots.len() {
            let log = self.slot(at).and_then(|slot| std::fs::read(&slot.log_path)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let mut lines = log.lines().skip_while(|line| !line.contains("panicked at"));
            if let Some(first) = lines.next() {
                let times = log.matches("panicked at").count();
                let what = lines.next().unwrap_or_default();
                self.chronicle.trouble("panic", format!("m{at}, {times} times: {first} {what}"));
            }
        }
    }

    /// Waits until a member's process has ended by itself. Returns `None` if it does not end in time or is
    /// not running.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn wait_for_end(&mut self, at: usize, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let Some(process) = &mut self.slot_mut(at)?.process else { return Ok(None) };
        match process.wait(patience) {
            Ok(status) => {
                self.slot_mut(at)?.process = None;
                self.chronicle.is(at, State::Down);
                Ok(Some(status))
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the size of a member's output so far, in bytes. Later calls can use it to search only newer
    /// output.
    pub fn log_bytes(&self, at: usize) -> u64 {
        let path = self.slots.get(at).map(|slot| &slot.log_path);
        path.and_then(|path| path.metadata().ok()).map_or(0, |metadata| metadata.len())
    }

    /// Returns a member's output after byte `from`, but at most its last `QUOTE_BYTES` bytes.
    pub fn said(&self, at: usize, from: u64) -> String {
        self.quote(at, from, QUOTE_BYTES)
    }

    /// Returns true if a member's output after byte `from` contains these words. Searches only the last
    /// mebibyte of the output.
    pub fn has_said(&self, at: usize, from: u64, words: &str) -> bool {
        self.times_said(at, from, words) > 0
    }

    /// Returns how often a member's output after byte `from` contains these words. Searches only the last
    /// mebibyte of the output.
    pub fn times_said(&self, at: usize, from: u64, words: &str) -> usize {
        self.quote(at, from, 1 << 20).matches(words).count()
    }

    fn quote(&self, at: usize, from: u64, bytes_max: u64) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.slot(at)?.log_path)?;
            let len = file.metadata()?.len();
            file.seek(SeekFrom::Start(from.max(len.saturating_sub(bytes_max))))?;
            let mut said = Vec::new();
            file.read_to_end(&mut said)?;
            Ok(String::from_utf8_lossy(&said).trim().to_owned())
        };
        read().unwrap_or_else(|error| error.to_string())
    }

    /// Makes a unary call to a member, over a new connection.
    ///
    /// # Errors
    /// Returns the status of the member's response, or the error of the connection.
    pub fn call<A: Message + Default>(
        &self,
        at: usize,
        rpc: Rpc,
        request: &impl Message,
    ) -> Result<A, Status> {
        self.call_within(at, rpc, request, CALL_TIME_MAX)
    }

    /// Makes a call like [`Cluster::call`], with the time limit `time`.
    ///
    /// # Errors
    /// Returns the errors of [`Cluster::call`].
    pub fn call_within<A: Message + Default>(
        &self,
        at: usize,
        rpc: Rpc,
        request: &impl Message,
        time: Duration,
    ) -> Result<A, Status> {
        let message = request.encode_to_vec().into();
        let whom = (at, Identity::Root, OPERATOR);
        let answer = self.runtime.block_on(self.context.call(whom, rpc, message, time))?;
        A::decode(answer).map_err(|error| Status::with(Code::Internal, format!("invalid answer: {error}")))
    }

    /// Connects to a member with these TLS settings, without logging in.
    fn dial(&self, at: usize, tls: &Tls) -> Result<Channel, Status> {
        let slot = self.slot(at).map_err(|error| Status::with(Code::Internal, error.to_string()))?;
        let endpoint = Endpoint::new(format!("https://{}:{CLIENT_PORT}", slot.address));
        let transport =
            Transport { tls: Some(tls.clone()), dial_timeout: Some(GLANCE_TIME_MAX), ..Transport::default() };
        let opened = self.runtime.block_on(Channel::open(&endpoint, &transport));
        opened.map_err(|error| Status::with(Code::Unavailable, format!("connection error: {error}")))
    }

    /// Returns the certificate, in DER, that a member presents to a client that connects now.
    ///
    /// # Errors
    /// Returns an error if no connection can be made.
    pub fn certificate_of(&self, at: usize, tls: &Tls) -> Result<Vec<u8>, Status> {
        let channel = self.dial(at, tls)?;
        let shown = channel.peer().and_then(|peer| peer.chain.first().cloned());
        shown.ok_or(Status::new(Code::Internal, "no certificate was shown"))
    }

    /// Opens a connection to a member, and checks that the member answers a call over it.
    ///
    /// # Errors
    /// Returns an error if no connection can be made, or the member does not answer.
    pub fn hold(&self, at: usize, tls: &Tls) -> Result<Channel, Status> {
        let channel = self.dial(at, tls)?;
        if !self.answers(&channel) {
            return Err(Status::new(Code::Unavailable, "there is no answer"));
        }
        Ok(channel)
    }

    /// Returns true if a member accepts a client with these TLS settings. If the member answers a call at
    /// all, even with an error, it has accepted the client.
    pub fn lets_in(&self, at: usize, tls: &Tls) -> bool {
        self.dial(at, tls).is_ok_and(|channel| self.answers(&channel))
    }

    /// Returns true if a member answers a call over this connection, even if it answers with one of etcd's
    /// errors.
    pub fn answers(&self, channel: &Channel) -> bool {
        let (rpc, message) = crate::injector::question();
        let options = CallOptions::default().within(GLANCE_TIME_MAX);
        match self.runtime.block_on(channel.unary_with(rpc.path(), &options, message)) {
            Ok(_) => true,
            Err(status) => status.message.starts_with("etcdserver: "),
        }
    }

    /// Sends a request to a member as a client whose operations are recorded, so that the oracle takes it
    /// into account.
    pub fn operate(&self, at: usize, request: oracle::Request) -> oracle::Outcome {
        self.runtime.block_on(Session::of(&self.context, Identity::Root, OPERATOR, at).ask(request))
    }

    /// Sends a request that changes users, roles or authentication, and records the change for the oracle.
    pub(crate) fn administer(&self, at: usize, change: &Change) -> Known {
        self.runtime.block_on(carry_out(&self.context, OPERATOR, at, change))
    }

    /// Runs a future to its end on the cluster's runtime.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Returns the status that a member reports.
    ///
    /// # Errors
    /// Returns the errors of [`Cluster::call`].
    pub fn status(&self, at: usize) -> Result<pb::StatusResponse, Status> {
        let time = Duration::from_secs(1);
        self.call_within(at, Rpc::MaintenanceStatus, &pb::StatusRequest {}, time)
    }

    /// Makes a linearizable read at a member, and returns the revision in the response.
    ///
    /// # Errors
    /// Returns the member's error status, or the error of the connection.
    pub fn healthy(&self, at: usize) -> Result<i64, Status> {
        let request = pb::RangeRequest { key: "none".into(), ..pb::RangeRequest::default() };
        let time = Duration::from_secs(2);
        let answer: pb::RangeResponse = self.call_within(at, Rpc::KvRange, &request, time)?;
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    /// Starts all members that are not running, and waits until all members are healthy.
    ///
    /// # Errors
    /// Returns an error that names a member which did not become healthy in time, and the reason.
    pub fn recover(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + RECOVERY_TIME_MAX;
        for at in 0..self.size() {
            if !self.runs(at) {
                self.start(at)?;
            }
        }
        for at in 0..self.size() {
            loop {
                self.look();
                let error = match self.healthy(at) {
                    Ok(_) => break,
                    Err(status) => status,
                };
                if !self.runs(at) {
                    return Err(io::Error::other(format!("m{at} does not stay up")));
                }
                if Instant::now() > deadline {
                    let seconds = RECOVERY_TIME_MAX.as_secs();
                    return Err(io::Error::other(format!("m{at} is not healthy after {seconds} s: {error}")));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Waits until a member reports that it is the leader, at most for `patience`. Returns the index of this
    /// member; `None` if no member has reported this in time.
    pub fn leader(&self, patience: Duration) -> Option<usize> {
        let deadline = Instant::now() + patience;
        loop {
            let mut leads = None;
            for at in 0..self.size() {
                let Ok(status) = self.status(at) else { continue };
                let own = status.header.as_ref().map_or(0, |header| header.member_id);
                // A former leader that was cut off possibly does not know the new leader yet. So of several
                // members that report leadership, take the one with the highest term.
                if own != 0 && own == status.leader && leads.is_none_or(|(_, term)| term < status.raft_term) {
                    leads = Some((at, status.raft_term));
                }
            }
            if leads.is_some() || Instant::now() > deadline {
                return leads.map(|(at, _)| at);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Repeats a call, at one running member after the other but never at `but`, until it succeeds, or fails
    /// with an error for which `is_done` returns true.
    fn insist<A: Message + Default>(
        &self,
        but: usize,
        rpc: Rpc,
        request: &impl Message,
        is_done: impl Fn(&Status) -> bool,
    ) -> io::Result<()> {
        let deadline = Instant::now() + RECOVERY_TIME_MAX;
        let mut others = (0..self.size()).filter(|at| *at != but && self.runs(*at)).collect::<Vec<_>>();
        loop {
            let Some(at) = others.first().copied() else {
                return Err(io::Error::other("no other member runs"));
            };
            match self.call::<A>(at, rpc, request) {
                Ok(_) => return Ok(()),
                Err(status) if is_done(&status) => return Ok(()),
                Err(status) => {
                    let passes = matches!(status.code, Code::Unavailable | Code::DeadlineExceeded)
                        || status.message == error::UNHEALTHY.message
                        || status.message == error::MEMBER_NOT_ENOUGH_STARTED.message
                        || status.message == error::TOO_MANY_REQUESTS.message;
                    if !passes || Instant::now() > deadline {
                        return Err(io::Error::other(format!("{} at m{at}: {status}", rpc.path())));
                    }
                }
            }
            others.rotate_left(1);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Replaces a member whose disk is lost, as an operator would: removes the member, adds a new one with
    /// the same addresses, and starts it without data. The old process must not be running.
    ///
    /// # Errors
    /// Returns an error if the cluster refuses to remove or to add the member.
    pub fn replace(&mut self, at: usize) -> io::Result<()> {
        let peer = format!("{}://{}:{PEER_PORT}", self.scheme(), self.slot(at)?.address);
        let other = (0..self.size())
            .find(|other| *other != at && self.runs(*other))
            .ok_or_else(|| io::Error::other("no other member runs"))?;
        // The list must be linearizable: the member to be removed may have been added just now, and a member
        // that lags behind does not know it yet.
        let deadline = Instant::now() + RECOVERY_TIME_MAX;
        let members = loop {
            let request = pb::MemberListRequest { linearizable: true };
            let answer: Result<pb::MemberListResponse, _> =
                self.call(other, Rpc::ClusterMemberList, &request);
            match answer {
                Ok(list) => break list.members,
                Err(status) if Instant::now() > deadline => return Err(io::Error::other(status.to_string())),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        if let Some(member) = members.iter().find(|member| member.peer_urls.contains(&peer)) {
            let request = pb::MemberRemoveRequest { id: member.id };
            self.insist::<pb::MemberRemoveResponse>(at, Rpc::ClusterMemberRemove, &request, |status| {
                status.message == error::MEMBER_NOT_FOUND.message
            })?;
        }
        let request = pb::MemberAddRequest { peer_urls: vec![peer], ..Default::default() };
        self.insist::<pb::MemberAddResponse>(at, Rpc::ClusterMemberAdd, &request, |status| {
            status.message == error::PEER_URL_EXIST.message
        })?;
        let slot = self.slot_mut(at)?;
        if slot.data_dir.exists() {
            std::fs::remove_dir_all(&slot.data_dir)?;
        }
        slot.joined = true;
        self.start(at)
    }

    /// Returns the number of raised alarms; 0 if no member answers.
    pub fn alarms(&self) -> usize {
        let request = pb::AlarmRequest {
            action: pb::alarm_request::AlarmAction::Get as i32,
            member_id: 0,
            alarm: pb::AlarmType::None as i32,
        };
        let listed = (0..self.size())
            .filter(|at| self.runs(*at))
            .find_map(|at| self.call::<pb::AlarmResponse>(at, Rpc::MaintenanceAlarm, &request).ok());
        listed.map_or(0, |list| list.alarms.len())
    }

    /// Disarms all alarms. An alarm other than NOSPACE is recorded as a violation.
    pub fn disarm(&self) {
        for at in 0..self.size() {
            let request = pb::AlarmRequest {
                action: pb::alarm_request::AlarmAction::Get as i32,
                member_id: 0,
                alarm: pb::AlarmType::None as i32,
            };
            let Ok(list) = self.call::<pb::AlarmResponse>(at, Rpc::MaintenanceAlarm, &request) else {
                continue;
            };
            let mut all_back = true;
            for alarm in list.alarms {
                if alarm.alarm() != pb::AlarmType::Nospace {
                    let kind = alarm.alarm().as_str_name();
                    self.chronicle.trouble("alarm", format!("member {:x} raised {kind}", alarm.member_id));
                }
                let request = pb::AlarmRequest {
                    action: pb::alarm_request::AlarmAction::Deactivate as i32,
                    member_id: alarm.member_id,
                    alarm: alarm.alarm,
                };
                let answer: Result<pb::AlarmResponse, _> = self.call(at, Rpc::MaintenanceAlarm, &request);
                all_back &= answer.is_ok();
            }
            if all_back {
                return;
            }
        }
    }
}
