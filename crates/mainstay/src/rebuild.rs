//! `mainstay rebuild FLAGS`: a member whose data is damaged comes back with what the others have.
//!
//! A voter that has lost a part of its log may have lost what it voted for and what it acknowledged; under its old id
//! it could vote twice, and be counted for entries that it no longer has. So it comes back as another member: the old
//! one is removed from the cluster, its data is moved aside, a new one is added at the same address, and started.
//!
//! Each step leaves a state from which the same command goes on, whatever killed it: what has been done is read from
//! the cluster's list of members, from the data directory, and from the journal, which is there from before the first
//! step until the member serves.
//!
//! A member may start with no data only under an id that has never run: one that ran may have voted and acknowledged
//! entries. So the journal names the new id before that member is started, and says that it may have run before it
//! can. A new member whose data is missing although it may have run is replaced by yet another one, and so is a member
//! at this address that the journal does not know. A member that answers at the address is left alone, at every step.
//!
//! ```text
//! <data-dir>/rebuild                journal, one line; see `Journal`
//! <data-dir>/member.damaged-<n>     the old data; nothing of it is ever deleted
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberRemoveRequest,
    MemberRemoveResponse,
};
use api::{Code, Rpc, Status};
use client::{CallOptions, Channel, Endpoint, TlsFiles, Transport};
use config::{Config, InitialClusterState, TlsOptions, Url};
use disk::{Disk, Lock, RealDisk};
use prost::Message;
use replica::joining;
use socket2::{Domain, SockAddr, Socket, Type};
use telemetry::logging::{Logger, Value};

/// How long one call to a member may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a change of the members is tried again while the cluster settles from the one before.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);
/// Directory of the log in `--wal-dir` if the member was taken over from etcd, whose log is in `--wal-dir` itself.
const BESIDE_ETCD: &str = "log";

/// Why a member is not rebuilt. Its text says what to do; nothing of the old data is lost.
#[derive(Debug)]
pub enum RebuildError {
    /// A file or directory of the member cannot be used.
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// The answer of the operating system.
        error: io::Error,
    },
    /// The old data cannot be moved aside.
    Move {
        /// The directory of the old data.
        from: PathBuf,
        /// Where it should go.
        to: PathBuf,
        /// The answer of the operating system.
        error: io::Error,
    },
    /// Nothing that talks to other members can be started.
    Runtime(io::Error),
    /// Another process works on the data.
    Locked {
        /// The file or directory that is locked.
        path: PathBuf,
        /// What the other process is.
        by: &'static str,
    },
    /// The journal of an earlier rebuild is damaged.
    Journal {
        /// The journal.
        path: PathBuf,
    },
    /// No other member answers.
    NoAnswer {
        /// What each of them says.
        why: String,
        /// How many peer URLs answered.
        answered: usize,
        /// How many peer URLs were asked.
        asked: usize,
    },
    /// A member answers, but there is no quorum.
    NoQuorum {
        /// The address of the member.
        contact: String,
        /// What each of them says.
        why: String,
    },
    /// The member that should be replaced runs.
    Alive {
        /// The member.
        member_id: u64,
        /// Its name.
        name: String,
        /// The URL where it answers.
        url: String,
    },
    /// The cluster refuses a change of its members.
    Unchanged {
        /// What could not be done with the member.
        what: &'static str,
        /// The answer of the cluster.
        status: Status,
    },
    /// The program was told to stop.
    Stopped,
    /// The flags, the data and the cluster do not fit together; this text says how, and what to check.
    Refused(String),
}

impl RebuildError {
    fn io(doing: &'static str, path: &Path, error: io::Error) -> RebuildError {
        RebuildError::Io { doing, path: path.to_path_buf(), error }
    }
}

impl fmt::Display for RebuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RebuildError::Io { doing, path, error } => {
                write!(f, "cannot {doing} {}: {error}", path.display())
            }
            RebuildError::Move { from, to, error } => {
                write!(f, "cannot move {} to {}: {error}", from.display(), to.display())
            }
            RebuildError::Runtime(error) => write!(f, "cannot talk to other members: {error}"),
            RebuildError::Locked { path, by } => write!(f, "{} is locked: {by}", path.display()),
            RebuildError::Journal { path } => write!(
                f,
                "{} is not what a rebuild writes: remove it, and the member at this address from the cluster if it is \
                 listed there without a name; then run this again",
                path.display()
            ),
            RebuildError::NoAnswer { why, answered, asked } => write!(
                f,
                "none of the other members answers ({why}; {answered} of {asked} peer URLs): start them, or name one \
                 with --endpoints"
            ),
            RebuildError::NoQuorum { contact, why } => write!(
                f,
                "{contact} answers, but the other members have no quorum without this one, so that it cannot be \
                 replaced ({why}): start those that are missing and run this again; if a majority is lost for good, \
                 go on with one that is sound, with --force-new-cluster"
            ),
            RebuildError::Alive { member_id, name, url } => write!(
                f,
                "member {member_id:x} ({name}) answers at {url}: stop it first, if it is this member that has to be \
                 rebuilt"
            ),
            RebuildError::Unchanged { what, status } => write!(
                f,
                "the member could not be {what}: {status}; nothing is lost, run the same command again"
            ),
            RebuildError::Stopped => f.write_str("stopped; run the same command again to go on"),
            RebuildError::Refused(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for RebuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RebuildError::Io { error, .. } | RebuildError::Move { error, .. } => Some(error),
            RebuildError::Runtime(error) => Some(error),
            RebuildError::Unchanged { status, .. } => Some(status),
            _ => None,
        }
    }
}

/// What the user is told who starts a member whose rebuilding is not finished.
pub const UNFINISHED: &str = "a rebuild of this member was begun and is not finished: run `mainstay rebuild` with the \
     same flags to finish it";

/// The journal in a data directory.
pub fn journal_path(data_dir: &Path) -> PathBuf {
    data_dir.join("rebuild")
}

/// A rebuild under way.
pub struct Rebuild<'a> {
    config: &'a mut Config,
    /// Client addresses of other members, if the user gave any.
    endpoints: &'a [String],
    logger: &'a Logger,
    runtime: tokio::runtime::Runtime,
    /// For other members at `https` peer URLs.
    peer_tls: tls::ClientTls,
    /// For other members at `https` client URLs.
    client_tls: Option<client::Tls>,
    disk: Arc<dyn Disk>,
    /// Asked between steps, and while it waits.
    stop_wanted: &'a dyn Fn(Duration) -> bool,
}

/// What the journal says: `<old id> voter|learner <new id> new|started <peer URLs, sorted, comma-separated>`, ids in
/// hexadecimal digits.
///
/// Of a journal that an older version wrote there are the first two words only.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Journal {
    /// The member that is replaced; 0 if it was not known.
    old: u64,
    learner: bool,
    /// The member that replaces it; 0 until it is added.
    new: u64,
    /// True if the new member may have run.
    started: bool,
    /// The peer URLs that the rebuild was begun with; `None` in a journal of an older version.
    peer_urls: Option<String>,
}

impl Journal {
    fn begin(old: u64, learner: bool, peer_urls: &str) -> Journal {
        Journal { old, learner, new: 0, started: false, peer_urls: Some(peer_urls.to_owned()) }
    }
}

/// How a rebuild goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The new member starts on the data it has left here.
    Continue,
    /// The new member starts with no data: it has never run.
    StartEmpty,
    /// This member, if there is one, is taken out of the cluster, and another one is added in its place.
    Replace,
}

/// How to go on, given the member at this address and the id of the member whose data is here.
fn next_step(own: Option<u64>, data: Option<u64>, journal: Option<&Journal>) -> Next {
    let (Some(own), Some(journal)) = (own, journal) else { return Next::Replace };
    if own == journal.old {
        Next::Replace
    } else if data == Some(own) {
        Next::Continue
    } else if own == journal.new && !journal.started {
        Next::StartEmpty
    } else {
        Next::Replace
    }
}

/// The cluster, as a member told it that had asked a quorum.
struct Cluster {
    id: u64,
    members: Vec<Member>,
    /// Where it answered.
    contact: String,
}

/// How this member, as a client of the others, speaks TLS: with what its own listeners have.
fn files_for_clients(options: &TlsOptions) -> TlsFiles {
    let settings = &options.settings;
    let own = settings.client_cert_file.is_some();
    TlsFiles {
        cacert: settings.trusted_ca_file.clone(),
        cert: if own { settings.client_cert_file.clone() } else { settings.cert_file.clone() },
        key: if own { settings.client_key_file.clone() } else { settings.key_file.clone() },
        server_name: None,
        // The others have made their certificates themselves, too.
        insecure_skip_verify: options.auto && settings.is_empty(),
    }
}

impl<'a> Rebuild<'a> {
    /// Nothing is done yet.
    pub fn new(
        config: &'a mut Config,
        endpoints: &'a [String],
        logger: &'a Logger,
        stop_wanted: &'a dyn Fn(Duration) -> bool,
    ) -> Result<Rebuild<'a>, RebuildError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RebuildError::Runtime)?;
        let refused = |text: String| RebuildError::Refused(text);
        let peer_tls = server::dialing(config).map_err(|error| refused(error.to_string()))?;
        let files = files_for_clients(&config.client_tls);
        let client_tls = match files.is_given() {
            true => Some(files.load().map_err(|error| refused(error.to_string()))?),
            false => None,
        };
        let disk = Arc::new(RealDisk);
        Ok(Rebuild { config, endpoints, logger, runtime, peer_tls, client_tls, disk, stop_wanted })
    }

    /// Does everything up to the start of the new member, and changes the configuration for that start. Gives the lock
    /// that keeps other rebuilds away, to be held until the rebuild is finished.
    ///
    /// # Errors
    ///
    /// The text says what is in the way, and what to do.
    pub fn prepare(mut self) -> Result<Lock, RebuildError> {
        let data_dir = self.config.data_dir.clone();
        let journal_path = journal_path(&data_dir);
        let (whole, member_lock) = self.lock(&data_dir)?;
        let journal = read_journal(&journal_path)?;
        let peer_urls = self.peer_urls();
        if let Some(begun) = journal.as_ref().and_then(|journal| journal.peer_urls.as_ref())
            && *begun != peer_urls
        {
            return Err(RebuildError::Refused(format!(
                "a rebuild of the member at {begun} was begun in {}, and the flags name {peer_urls}: run it with the \
                 flags of that member",
                data_dir.display()
            )));
        }
        let known = self.identify(&data_dir.join("member"));
        let cluster = self.find_cluster()?;
        if let Some((cluster_id, member_id)) = known
            && cluster_id != cluster.id
        {
            return Err(RebuildError::Refused(format!(
                "{} holds member {member_id:x} of cluster {cluster_id:x}, but the members that answer are of cluster \
                 {:x}: check --initial-cluster and --endpoints",
                data_dir.display(),
                cluster.id
            )));
        }
        let own = self.own(&cluster.members, known.map(|(_, id)| id), journal.as_ref())?.cloned();
        if let Some(own) = &own {
            refuse_alive(own, &self.peer_tls)?;
        }
        let own_id = own.as_ref().map(|own| own.id);
        let next = next_step(own_id, known.map(|(_, id)| id), journal.as_ref());
        let (mut journal, members) = match (next, own, journal) {
            (Next::Continue | Next::StartEmpty, Some(own), Some(journal)) => {
                self.say("the new member had been added before; it is started", own.id);
                if next == Next::StartEmpty {
                    self.move_aside(&data_dir, known)?;
                }
                (Journal { new: own.id, ..journal }, cluster.members)
            }
            (_, own, journal) => {
                let (old, learner) = match (&own, journal) {
                    // One that is listed may be the one that a rebuild before this had added, as the old one was.
                    (Some(own), _) => (own.id, own.is_learner),
                    (None, Some(journal)) => (journal.old, journal.learner),
                    (None, None) => (known.map_or(0, |(_, id)| id), false),
                };
                let mut journal = Journal::begin(old, learner, &peer_urls);
                write_journal(&*self.disk, &journal_path, &journal)?;
                if let Some(own) = &own {
                    self.remove(&cluster.contact, own.id)?;
                }
                self.move_aside(&data_dir, known)?;
                let (id, members) = self.add(&cluster.contact, learner)?;
                journal.new = id;
                // Whether this id has run is known only of one that the journal names.
                write_journal(&*self.disk, &journal_path, &journal)?;
                (journal, members)
            }
        };
        journal.started = true;
        write_journal(&*self.disk, &journal_path, &journal)?;
        self.configure(&members);
        // The member itself takes it.
        drop(member_lock);
        Ok(whole)
    }

    /// The flags' peer URLs in one line, in an order that does not depend on how they were given.
    fn peer_urls(&self) -> String {
        let urls: BTreeSet<&str> = self.config.initial_advertise_peer_urls.iter().map(Url::as_str).collect();
        urls.into_iter().collect::<Vec<_>>().join(",")
    }

    /// Neither another rebuild nor the member itself may be at work here.
    fn lock(&self, data_dir: &Path) -> Result<(Lock, Option<Lock>), RebuildError> {
        self.disk.create_dir_all(data_dir).map_err(|error| RebuildError::io("create", data_dir, error))?;
        let taken = |path: &Path, by| RebuildError::Locked { path: path.to_path_buf(), by };
        let whole = self.disk.lock(data_dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => taken(data_dir, "another rebuild is under way"),
            _ => RebuildError::io("lock", data_dir, error),
        })?;
        let path = data_dir.join("member").join("lock");
        match self.disk.lock(&path) {
            Ok(lock) => Ok((whole, Some(lock))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(taken(&path, "the member is running; stop it first"))
            }
            // Whatever is wrong with it, it is moved aside with the rest.
            Err(_) => Ok((whole, None)),
        }
    }

    /// Whose data is there: cluster and member id, as far as the damage lets it be seen.
    fn identify(&self, member_dir: &Path) -> Option<(u64, u64)> {
        let path = member_dir.join(log::ShutdownRecord::FILE_NAME);
        let record = log::ShutdownRecord::read(&*self.disk, &path).ok().flatten();
        let log_dirs = match &self.config.wal_dir {
            Some(dir) => vec![dir.join(BESIDE_ETCD), dir.clone()],
            None => vec![member_dir.join("log")],
        };
        let from_log =
            || log_dirs.iter().find_map(|log_dir| log::Log::identify(&*self.disk, log_dir).ok().flatten());
        let from_record = record.map(|record| (record.cluster_id.0, record.member_id.0));
        from_record.or_else(|| from_log().map(|owner| (owner.cluster_id.0, owner.member_id.0)))
    }

    /// Asks the others who is there, by way of a quorum.
    fn find_cluster(&self) -> Result<Cluster, RebuildError> {
        let own: BTreeSet<&str> = self.config.initial_advertise_peer_urls.iter().map(Url::as_str).collect();
        let pairs = self.config.initial_cluster.split(',').filter_map(|pair| pair.split_once('='));
        let peers: Vec<&str> = pairs
            .filter(|(name, url)| *name != self.config.name && !own.contains(url))
            .map(|(_, url)| url)
            .collect();
        if peers.is_empty() && self.endpoints.is_empty() {
            return Err(RebuildError::Refused(
                "this is the only member that the flags name, so there is nobody to rebuild it from: name others with \
                 --initial-cluster or --endpoints, or restore the data directory from a backup; an empty data \
                 directory begins with no keys"
                    .to_owned(),
            ));
        }
        let mut contacts: Vec<String> = self.endpoints.to_vec();
        let (mut answered, mut why) = (0, Vec::new());
        for url in &peers {
            match joining::members_of(url, CALL_TIMEOUT, Some(&self.peer_tls)) {
                Ok((_, members)) => {
                    answered += 1;
                    let others = members
                        .iter()
                        .filter(|member| !member.peer_urls.iter().any(|url| own.contains(&**url)));
                    let urls: Vec<String> = others.flat_map(|member| member.client_urls.clone()).collect();
                    contacts.extend(urls.into_iter().filter(|url| !self.endpoints.contains(url)));
                }
                Err(error) => why.push(error.to_string()),
            }
        }
        let mut seen = BTreeSet::new();
        contacts.retain(|contact| seen.insert(contact.clone()));
        let mut no_quorum = None;
        for contact in &contacts {
            match self.list(contact) {
                Ok((id, members)) => return Ok(Cluster { id, members, contact: contact.clone() }),
                Err(status) => {
                    if self
                        .call::<MemberListResponse>(
                            contact,
                            Rpc::ClusterMemberList,
                            &MemberListRequest { linearizable: false },
                        )
                        .is_ok()
                    {
                        no_quorum = Some(contact.clone());
                    }
                    why.push(format!("{contact}: {status}"));
                }
            }
        }
        match no_quorum {
            Some(contact) => Err(RebuildError::NoQuorum { contact, why: why.join("; ") }),
            None => Err(RebuildError::NoAnswer { why: why.join("; "), answered, asked: peers.len() }),
        }
    }

    /// The member that is to be replaced, or has been already: the one at this address, or the one whose data is here.
    fn own<'m>(
        &self,
        members: &'m [Member],
        known: Option<u64>,
        journal: Option<&Journal>,
    ) -> Result<Option<&'m Member>, RebuildError> {
        let urls: Vec<String> =
            self.config.initial_advertise_peer_urls.iter().map(|url| url.as_str().to_owned()).collect();
        let here = members.iter().find(|member| joining::same_places(&member.peer_urls, &urls));
        let by_id = members.iter().find(|member| Some(member.id) == known);
        match (here, by_id) {
            (Some(here), Some(by_id)) if here.id != by_id.id && journal.is_none() => {
                Err(RebuildError::Refused(format!(
                    "{} is the address of member {:x} ({}), but {} holds member {:x} ({}): check \
                     --initial-advertise-peer-urls and --data-dir",
                    urls.join(","),
                    here.id,
                    here.name,
                    self.config.data_dir.display(),
                    by_id.id,
                    by_id.name
                )))
            }
            (None, None) if known.is_none() && journal.is_none() => Err(RebuildError::Refused(format!(
                "the cluster has no member at {}, and {} does not say which member it held: check \
                 --initial-advertise-peer-urls and --data-dir; a member that was never there is added with `etcdctl \
                 member add`",
                urls.join(","),
                self.config.data_dir.display()
            ))),
            (Some(here), _) => Ok(Some(here)),
            (None, by_id) => Ok(by_id),
        }
    }

    fn remove(&self, contact: &str, id: u64) -> Result<(), RebuildError> {
        self.say("removing the old member from the cluster", id);
        self.change("removed", is_passing, |rebuild| {
            let removed = rebuild.call::<MemberRemoveResponse>(
                contact,
                Rpc::ClusterMemberRemove,
                &MemberRemoveRequest { id },
            );
            match removed {
                Err(status) if status.code == Code::NotFound => Ok(()),
                Err(status) => Err(status),
                Ok(_) => Ok(()),
            }
        })
    }

    /// Adds the new member. Gives its id, and all members.
    fn add(&self, contact: &str, is_learner: bool) -> Result<(u64, Vec<Member>), RebuildError> {
        let peer_urls: Vec<String> =
            self.config.initial_advertise_peer_urls.iter().map(|url| url.as_str().to_owned()).collect();
        let asked = std::cell::Cell::new(false);
        let (id, members) = self.change(
            "added",
            |status| is_passing(status) || is_short_of_started(status),
            |rebuild| {
                // One whose answer was lost has been added all the same; one that was there before was added by another process.
                let (_, members) = rebuild.list(contact)?;
                let own = members.iter().find(|member| joining::same_places(&member.peer_urls, &peer_urls));
                if let Some(own) = own {
                    if asked.get() {
                        return Ok((own.id, members));
                    }
                    let what = format!("member {:x} was added at this address meanwhile", own.id);
                    return Err(Status::with(Code::FailedPrecondition, what));
                }
                asked.set(true);
                let request = MemberAddRequest { peer_urls: peer_urls.clone(), is_learner };
                let added = rebuild.call::<MemberAddResponse>(contact, Rpc::ClusterMemberAdd, &request);
                let added = added.map_err(|status| {
                    if !is_short_of_started(&status) {
                        return status;
                    }
                    // No answer was lost: whoever is there next time was added by another process.
                    asked.set(false);
                    let unnamed =
                        members.iter().filter(|member| member.name.is_empty() && !member.is_learner);
                    let ids: Vec<String> = unnamed.map(|member| format!("{:x}", member.id)).collect();
                    Status::with(
                        status.code,
                        format!("{}; start or remove: {}", status.message, ids.join(", ")),
                    )
                })?;
                Ok((added.member.map_or(0, |member| member.id), added.members))
            },
        )?;
        if id == 0 {
            return Err(RebuildError::Refused(
                "the cluster does not say which member it has added; run the same command again".to_owned(),
            ));
        }
        self.say("added the new member to the cluster", id);
        Ok((id, members))
    }

    /// Tries a change again while the cluster refuses it with a status that goes by when it has settled.
    fn change<T>(
        &self,
        what: &'static str,
        goes_by: impl Fn(&Status) -> bool,
        attempt: impl Fn(&Self) -> Result<T, Status>,
    ) -> Result<T, RebuildError> {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        let mut said = None;
        loop {
            let status = match attempt(self) {
                Ok(done) => return Ok(done),
                Err(status) => status,
            };
            if !goes_by(&status) || Instant::now() >= deadline {
                return Err(RebuildError::Unchanged { what, status });
            }
            if said.as_ref() != Some(&status) {
                let error = status.to_string();
                self.logger.warn(
                    "the cluster does not change its members yet; trying again",
                    &[("error", Value::Str(&error))],
                );
                said = Some(status);
            }
            if (self.stop_wanted)(PAUSE) {
                return Err(RebuildError::Stopped);
            }
        }
    }

    /// Moves what is in the data directory out of the way, for good, and the log that is in a directory of its own.
    fn move_aside(&self, data_dir: &Path, known: Option<(u64, u64)>) -> Result<(), RebuildError> {
        if let Some(log_dir) = &self.config.wal_dir {
            self.move_log_aside(&log_dir.join(BESIDE_ETCD), known)?;
            self.move_log_aside(log_dir, known)?;
        }
        let from = data_dir.join("member");
        if fs::symlink_metadata(&from).is_err() {
            return Ok(());
        }
        let to = unused(data_dir, "member.damaged")?;
        let failed = |error| RebuildError::Move { from: from.clone(), to: to.clone(), error };
        fs::rename(&from, &to).map_err(failed)?;
        self.disk.sync_dir(data_dir).map_err(failed)?;
        let to = to.display().to_string();
        self.logger.warn("moved the old data aside", &[("to", Value::Str(&to))]);
        Ok(())
    }

    /// Moves the files of a log into a directory beside them: the one that they are in may be where a disk is mounted.
    fn move_log_aside(&self, log_dir: &Path, known: Option<(u64, u64)>) -> Result<(), RebuildError> {
        let is_there = fs::symlink_metadata(log_dir).is_ok();
        let list = |error| RebuildError::io("list", log_dir, error);
        let names = if is_there { self.disk.list(log_dir).map_err(list)? } else { Vec::new() };
        if names.is_empty() {
            return Ok(());
        }
        let _lock = self.disk.lock(log_dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => RebuildError::Locked {
                path: log_dir.to_path_buf(),
                by: "a member is running with this log; stop it first",
            },
            _ => RebuildError::io("lock", log_dir, error),
        })?;
        let owner = log::Log::identify(&*self.disk, log_dir).ok().flatten();
        let owner = owner.map(|owner| (owner.cluster_id.0, owner.member_id.0));
        if let (Some(owner), Some(known)) = (owner, known)
            && owner != known
        {
            return Err(RebuildError::Refused(format!(
                "{} holds the log of member {:x} of cluster {:x}, and the data directory is of member {:x} of cluster {:x}: \
                 check --wal-dir and --data-dir",
                log_dir.display(),
                owner.1,
                owner.0,
                known.1,
                known.0
            )));
        }
        // A rebuild that was cut short in the middle of this leaves two directories with a part each.
        let to = unused(log_dir, "damaged")?;
        self.disk.create_dir_all(&to).map_err(|error| RebuildError::io("create", &to, error))?;
        for name in names {
            let (from, to) = (log_dir.join(&name), to.join(&name));
            self.disk.rename(&from, &to).map_err(|error| RebuildError::Move {
                from: from.clone(),
                to: to.clone(),
                error,
            })?;
        }
        for dir in [&to, log_dir] {
            self.disk.sync_dir(dir).map_err(|error| RebuildError::io("sync", dir, error))?;
        }
        let to = to.display().to_string();
        self.logger.warn("moved the old log aside", &[("to", Value::Str(&to))]);
        Ok(())
    }

    /// The new member is started as one that joins.
    fn configure(&mut self, members: &[Member]) {
        let own: Vec<String> =
            self.config.initial_advertise_peer_urls.iter().map(|url| url.as_str().to_owned()).collect();
        let mut pairs: Vec<String> = own.iter().map(|url| format!("{}={url}", self.config.name)).collect();
        for member in members.iter().filter(|member| !joining::same_places(&member.peer_urls, &own)) {
            // Not its name: one that has not been started has none.
            pairs.extend(member.peer_urls.iter().map(|url| format!("member-{:x}={url}", member.id)));
        }
        self.config.initial_cluster = pairs.join(",");
        self.config.initial_cluster_state = InitialClusterState::Existing;
        self.config.force_new_cluster = false;
        self.config.discovery = None;
    }

    fn say(&self, what: &str, id: u64) {
        self.logger.info(what, &[("member-id", Value::Id(id))]);
    }

    /// All members, as a quorum knows them.
    fn list(&self, contact: &str) -> Result<(u64, Vec<Member>), Status> {
        let answer: MemberListResponse =
            self.call(contact, Rpc::ClusterMemberList, &MemberListRequest { linearizable: true })?;
        Ok((answer.header.map_or(0, |header| header.cluster_id), answer.members))
    }

    fn call<A: Message + Default>(
        &self,
        contact: &str,
        rpc: Rpc,
        request: &impl Message,
    ) -> Result<A, Status> {
        let unavailable = |text: String| Status::with(Code::Unavailable, text);
        let endpoint = Endpoint::new(contact);
        let transport =
            Transport { tls: self.client_tls.clone(), send_bytes_max: usize::MAX, ..Transport::default() };
        let message = request.encode_to_vec().into();
        let exchange = async {
            let channel = Channel::open(&endpoint, &transport)
                .await
                .map_err(|error| unavailable(format!("connection error: {error}")))?;
            channel.unary_with(rpc.path(), &CallOptions::default().within(CALL_TIMEOUT), message).await
        };
        let answer = self.runtime.block_on(async {
            let timed = tokio::time::timeout(2 * CALL_TIMEOUT, exchange).await;
            timed
                .unwrap_or_else(|_| Err(Status::with(Code::DeadlineExceeded, "no answer in time".to_owned())))
        })?;
        A::decode(answer).map_err(|error| Status::with(Code::Internal, format!("not an answer: {error}")))
    }
}

/// A path in this directory that is not used yet.
fn unused(dir: &Path, name: &str) -> Result<PathBuf, RebuildError> {
    let mut number = 1;
    loop {
        let path = dir.join(format!("{name}-{number}"));
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(RebuildError::io("look for", &path, error)),
            Ok(_) => number += 1,
        }
    }
}

/// The member at this address must be down: it is the one that is taken out of the cluster.
///
/// One that refuses this member's certificate, or answers with an error, runs all the same: a member is taken for down
/// only if nothing accepts a connection at any of its addresses.
fn refuse_alive(own: &Member, tls: &tls::ClientTls) -> Result<(), RebuildError> {
    for url in &own.peer_urls {
        let error = match joining::version_of(url, CALL_TIMEOUT, Some(tls)) {
            Ok(_) => {
                return Err(RebuildError::Alive {
                    member_id: own.id,
                    name: own.name.clone(),
                    url: url.clone(),
                });
            }
            Err(error) => error,
        };
        let what = match accepts(url) {
            Ok(false) => continue,
            Ok(true) => format!("something accepts connections at {url}"),
            Err(error) => format!("it is not certain that nothing runs at {url} ({error})"),
        };
        return Err(RebuildError::Refused(format!(
            "{what}, the address of member {:x} ({}), which does not answer as it should ({error}): make sure that the \
             member is stopped, and that nothing else listens there, and run this again",
            own.id, own.name
        )));
    }
    Ok(())
}

/// Whether something accepts connections at a URL. An error says that this cannot be told.
fn accepts(url: &str) -> io::Result<bool> {
    let url =
        Url::parse(url).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    if url.scheme().is_unix() {
        return accepts_at(Path::new(url.host()));
    }
    for address in (url.host(), url.port()).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CALL_TIMEOUT) {
            Ok(_) => return Ok(true),
            Err(error) if is_down(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Whether something accepts connections at a Unix socket. An error says that this cannot be told.
fn accepts_at(path: &Path) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A process that listens and does not accept must not hold this up.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) if is_down(&error) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_absolute() => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(io::Error::new(
            error.kind(),
            "nothing is there, but the path begins in the directory in which the member was started, which may be another: \
             give the member an absolute path with `etcdctl member update`",
        )),
        Err(error) => Err(error),
    }
}

/// Returns true if the cluster did not answer in time, or has no leader that takes a change just now.
fn is_passing(status: &Status) -> bool {
    matches!(status.code, Code::Unavailable | Code::DeadlineExceeded)
}

/// Returns true if the cluster takes no further member before those that it has are started. One that has just joined counts as
/// started once the cluster knows its name.
fn is_short_of_started(status: &Status) -> bool {
    status.message.starts_with(&*api::error::MEMBER_NOT_ENOUGH_STARTED.message)
}

/// Returns true if a connection failed as it does where nothing runs.
fn is_down(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut)
}

/// The rebuilt member serves: there is nothing to go on with any more.
pub fn finish(data_dir: &Path) -> Result<(), RebuildError> {
    let path = journal_path(data_dir);
    let failed = |error| RebuildError::io("remove", &path, error);
    RealDisk.remove(&path).map_err(failed)?;
    RealDisk.sync_dir(data_dir).map_err(failed)
}

fn read_journal(path: &Path) -> Result<Option<Journal>, RebuildError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RebuildError::io("read", path, error)),
    };
    let journal = parse_journal(&text);
    journal.map(Some).ok_or_else(|| RebuildError::Journal { path: path.to_path_buf() })
}

fn parse_journal(text: &str) -> Option<Journal> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (old, kind, rest) = match words.as_slice() {
        [old, kind] => (old, kind, None),
        [old, kind, new, state, peer_urls] => (old, kind, Some((new, state, peer_urls))),
        _ => return None,
    };
    let learner = match *kind {
        "voter" => false,
        "learner" => true,
        _ => return None,
    };
    let old = u64::from_str_radix(old, 16).ok()?;
    let Some((new, state, peer_urls)) = rest else {
        return Some(Journal { old, learner, new: 0, started: true, peer_urls: None });
    };
    let started = match *state {
        "new" => false,
        "started" => true,
        _ => return None,
    };
    let new = u64::from_str_radix(new, 16).ok()?;
    Some(Journal { old, learner, new, started, peer_urls: Some((*peer_urls).to_owned()) })
}

impl std::fmt::Display for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.learner { "learner" } else { "voter" };
        write!(f, "{:x} {kind}", self.old)?;
        if let Some(peer_urls) = &self.peer_urls {
            let state = if self.started { "started" } else { "new" };
            write!(f, " {:x} {state} {peer_urls}", self.new)?;
        }
        writeln!(f)
    }
}

fn write_journal(disk: &dyn Disk, path: &Path, journal: &Journal) -> Result<(), RebuildError> {
    let making = path.with_extension("tmp");
    let failed = |error| RebuildError::io("write", path, error);
    if disk.exists(&making).map_err(failed)? {
        disk.remove(&making).map_err(failed)?;
    }
    let file = disk.create(&making).map_err(failed)?;
    file.write_at(journal.to_string().as_bytes(), 0).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    disk.rename(&making, path).map_err(failed)?;
    disk.sync_dir(path.parent().unwrap_or(path)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_read_as_written() {
        let urls = "http://10.0.0.1:2380,http://10.0.0.2:2380";
        let begun = Journal::begin(0xabc, true, urls);
        let added = Journal { new: 0xdef, ..begun.clone() };
        let started = Journal { started: true, ..added.clone() };
        assert_eq!(added.to_string(), format!("abc learner def new {urls}\n"));
        for journal in [begun, added, started] {
            assert_eq!(parse_journal(&journal.to_string()), Some(journal));
        }
        let older = parse_journal("abc voter\n").expect("older versions wrote this");
        assert!(
            older.started && older.new == 0 && older.peer_urls.is_none(),
            "nothing is known of the new member"
        );
        for damaged in ["", "abc", "abc voter def", "abc voter def run u", "x voter", "abc voter def new u u"]
        {
            assert_eq!(parse_journal(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn no_member_starts_empty_that_may_have_run() {
        let begun = Journal::begin(1, false, "u");
        let added = Journal { new: 2, ..begun.clone() };
        let started = Journal { started: true, ..added.clone() };
        let older = Journal { started: true, peer_urls: None, ..begun.clone() };
        assert_eq!(next_step(Some(1), None, None), Next::Replace);
        assert_eq!(next_step(Some(1), Some(1), Some(&begun)), Next::Replace);
        assert_eq!(next_step(None, Some(1), Some(&begun)), Next::Replace);
        // Added, and the program was killed before the journal said so, or another process added it.
        assert_eq!(next_step(Some(2), None, Some(&begun)), Next::Replace);
        assert_eq!(next_step(Some(2), None, Some(&added)), Next::StartEmpty);
        assert_eq!(next_step(Some(2), Some(1), Some(&added)), Next::StartEmpty);
        assert_eq!(next_step(Some(2), Some(2), Some(&started)), Next::Continue);
        assert_eq!(next_step(Some(2), None, Some(&started)), Next::Replace);
        assert_eq!(next_step(Some(3), None, Some(&added)), Next::Replace);
        assert_eq!(next_step(Some(2), None, Some(&older)), Next::Replace);
        assert_eq!(next_step(Some(2), Some(2), Some(&older)), Next::Continue);
    }

    /// What a member that refuses this one's TLS looks like, one that answers with an error, and one that hangs up.
    #[test]
    fn only_a_member_that_accepts_no_connection_is_taken_for_down() {
        let (tls, _) = tls::Tls::load(tls::Settings::default(), std::sync::Arc::new(tls::SystemClock))
            .expect("nothing is needed to connect");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let server = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            // Two connections for each of the two URLs: a request, and a look whether anything is there.
            for _ in 0..4 {
                let (mut stream, _) = listener.accept().expect("connections are accepted");
                let mut first = [0];
                if stream.read(&mut first).is_ok_and(|bytes| bytes > 0) {
                    let answer: &[u8] = match first[0] {
                        b'G' => b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
                        // A fatal alert: `bad_certificate`.
                        _ => &[21, 3, 3, 0, 2, 2, 42],
                    };
                    let _ = stream.write_all(answer);
                    // Until the client hangs up, so that it gets the answer.
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
            }
        });
        let refused = |url: String| {
            let own = Member { id: 0xabc, name: "m".to_owned(), peer_urls: vec![url], ..Member::default() };
            refuse_alive(&own, &tls.client()).map_err(|error| error.to_string())
        };
        let text = refused(format!("https://{address}")).expect_err("it refuses TLS, so it runs");
        assert!(
            text.contains("something accepts connections at https://") && text.contains("abc (m)"),
            "{text}"
        );
        assert!(text.contains("tls: bad certificate"), "{text}");
        let text = refused(format!("http://{address}")).expect_err("it answers, so it runs");
        assert!(text.contains("503"), "{text}");
        server.join().expect("it ends");
        for scheme in ["http", "https"] {
            assert_eq!(refused(format!("{scheme}://{address}")), Ok(()), "nobody listens any more");
        }
        let text = refused("http://nowhere.invalid:2380".to_owned()).expect_err("that cannot be told");
        assert!(text.contains("it is not certain"), "{text}");
    }

    #[test]
    fn a_socket_is_asked_without_waiting() {
        let dir = testkit::TempDir::new("accepts");
        let path = dir.join("m.sock");
        assert!(!accepts_at(&path).expect("nothing is there"));
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        listener.bind(&SockAddr::unix(&path).expect("a path")).expect("is free");
        assert!(!accepts_at(&path).expect("nobody listens"));
        listener.listen(0).expect("listens");
        // Until the queue of what nobody accepts is full.
        let mut waiting = Vec::new();
        loop {
            let client = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
            client.set_nonblocking(true).expect("is set");
            if client.connect(&SockAddr::unix(&path).expect("a path")).is_err() {
                break;
            }
            waiting.push(client);
        }
        assert!(accepts_at(&path).expect("it listens"));
        drop(listener);
        assert!(!accepts_at(&path).expect("nobody listens any more"));
        // Where a relative path begins only the member knows.
        let error = accepts_at(Path::new("no-such-directory/m.sock")).expect_err("that cannot be told");
        assert!(error.to_string().contains("member update"), "{error}");
    }
}
