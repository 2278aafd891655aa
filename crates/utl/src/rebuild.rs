//! `mainstay rebuild FLAGS`: rebuilds a member whose data is damaged from the data of the other members.
//!
//! A voter that has lost a part of its log may have forgotten its votes and acknowledgements. Under its old
//! id it could vote twice in a term, and be counted as having entries that it no longer has. So a new member
//! takes its place: the old member is removed from the cluster, its data is moved aside, and a new member is
//! added at the same address and started.
//!
//! Each step leaves a state from which the same command can continue after an interruption. The command finds
//! out what has been done from the cluster's list of members, from the data directory, and from the journal.
//! The journal exists from before the first step until the new member serves.
//!
//! Only a member that has never run may start without data, because a member that ran may have voted and
//! acknowledged entries. Therefore the journal records two facts before the new member is started: first its
//! id, and then a flag which says that it has possibly run. If the flag is set but the new member's data is
//! missing, the command replaces that member by yet another one. It does the same with a listed member at
//! this address whose id is not in the journal. It never replaces a member that answers at the address.
//!
//! Before the first step, the command checks that the addresses and the data belong to this member, that no
//! process uses the data, and that the log to be moved aside belongs to the old member.
//!
//! ```text
//! <data-dir>/rebuild                journal, one line; see `Journal`
//! <data-dir>/member.damaged-<n>     the old data; nothing of it is ever deleted
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberRemoveRequest,
    MemberRemoveResponse,
};
use api::{Code, Rpc, Status, error};
use client::{CallOptions, Channel, Endpoint, TlsFiles, Transport};
use config::{Config, InitialClusterState, TlsOptions, Url};
use disk::{Disk, Lock, RealDisk};
use prost::Message;
use replica::other_members;
use storage::{first_files, log_dir};
use telemetry::logging::{Logger, Value};
use tls::ClientTls;

use address::refuse_alive;
use aside::BESIDE_ETCD;
use change::{Adding, is_passing, is_short_of_started, may_be_done, naming_unstarted};
use journal::{Journal, Next, next_step};

mod address;
mod aside;
mod change;
mod journal;

/// Longest time that one call to a member may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time during which a membership change is retried while the cluster refuses it with a temporary error, for
/// example because an earlier change is not complete yet.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);
/// Reason why a member is not rebuilt. The error message says what the user can do. No old data is lost.
#[derive(Debug)]
pub enum RebuildError {
    /// A file or directory of the member cannot be used.
    Io {
        /// Action that failed.
        doing: &'static str,
        /// File or directory that the action used.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A part of the old data cannot be moved aside.
    Move {
        /// File or directory of the old data.
        from: PathBuf,
        /// Path to which it should be moved.
        to: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The async runtime for calls to other members cannot be started.
    Runtime(io::Error),
    /// Another process uses the data.
    Locked {
        /// File or directory that is locked.
        path: PathBuf,
        /// Description of the other process.
        by: &'static str,
    },
    /// The journal of an earlier rebuild is damaged.
    Journal {
        /// Path of the journal.
        path: PathBuf,
    },
    /// No other member answers at a client URL, although some may answer at their peer URLs.
    NoAnswer {
        /// Answer or error of each member.
        why: String,
        /// Number of peer URLs at which a member answered.
        answered: usize,
        /// Number of peer URLs that were tried.
        asked: usize,
    },
    /// A member answers, but there is no quorum.
    NoQuorum {
        /// Address of the member that answers.
        contact: String,
        /// Answer or error of each member.
        why: String,
    },
    /// The member to be replaced is running.
    Alive {
        /// Id of the running member.
        member_id: u64,
        /// Name of the running member.
        name: String,
        /// URL at which the member answers.
        url: String,
    },
    /// The cluster refuses a change of its members.
    Unchanged {
        /// The change that failed, as a word of the error message: `added` or `removed`.
        what: &'static str,
        /// Error that the cluster returned.
        status: Status,
        /// True if the cluster has certainly not made the change.
        is_certain: bool,
    },
    /// The program was asked to stop.
    Stopped,
    /// The flags, the data and the cluster contradict each other. The message says how, and what to check.
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
                "{} was not written by a rebuild: remove it, and remove the member at this address from \
                 the cluster if it is listed there without a name; then run this again",
                path.display()
            ),
            RebuildError::NoAnswer { why, answered, asked } => write!(
                f,
                "none of the other members answers ({why}; {answered} of {asked} peer URLs): start them, or name one \
                 with --endpoints"
            ),
            RebuildError::NoQuorum { contact, why } => write!(
                f,
                "{contact} answers, but the other members have no quorum without this one, so it cannot be \
                 replaced ({why}): start the missing members and run this again; if a majority is lost for \
                 good, continue with one intact member and --force-new-cluster"
            ),
            RebuildError::Alive { member_id, name, url } => write!(
                f,
                "member {member_id:x} ({name}) answers at {url}: stop it first if it is the member to be \
                 rebuilt"
            ),
            RebuildError::Unchanged { what, status, .. } if is_of_rights(status) => {
                write!(f, "the member could not be {what}: {status}: {WANTS_ROOT}")
            }
            RebuildError::Unchanged { what, status, .. } => write!(
                f,
                "the member could not be {what}: {status}; nothing is lost, run the same command again"
            ),
            RebuildError::Stopped => f.write_str("stopped; run the same command again to continue"),
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

/// Advice that is printed if the cluster refuses a membership change because authentication is on and this
/// command has too few permissions.
const WANTS_ROOT: &str = "authentication is on, and this command uses the certificate of the member's \
     client listeners as a client of the other members: issue it to root, or replace the member by hand (`member remove` and `member add` by \
     root, the data directory moved aside, and a start with --initial-cluster-state=existing)";

/// Returns true if the cluster refused the request because of the client's identity or permissions.
fn is_of_rights(status: &Status) -> bool {
    let is = |refusal: &Status| status.message == refusal.message;
    is(&error::PERMISSION_DENIED) || is(&error::USER_EMPTY) || is(&error::INVALID_AUTH_TOKEN)
}

/// Message that is printed when the member is started although a rebuild of this member is not finished.
pub const UNFINISHED: &str = "a rebuild of this member was started and not finished: run `mainstay \
     rebuild` with the same flags to finish it";

/// Returns the path of the journal in a data directory.
pub fn journal_path(data_dir: &Path) -> PathBuf {
    data_dir.join("rebuild")
}

/// State of a rebuild in progress.
pub struct Rebuild<'a> {
    config: &'a mut Config,
    /// Client URLs of other members that the user has given; empty if there are none.
    endpoints: &'a [String],
    logger: &'a Logger,
    runtime: tokio::runtime::Runtime,
    /// TLS settings for connections to other members at `https` peer URLs.
    peer_tls: ClientTls,
    /// TLS settings for connections to other members at `https` client URLs; `None` if the member's client
    /// listeners have no TLS files.
    client_tls: Option<client::Tls>,
    disk: Arc<dyn Disk>,
    /// Callback that waits for the given time, and then returns true if this process was asked to stop.
    /// Called between the steps of the rebuild and while the rebuild waits.
    stop_wanted: &'a dyn Fn(Duration) -> bool,
}

/// The cluster's id and members, as returned by one member after a quorum has confirmed the list.
struct Cluster {
    id: u64,
    members: Vec<Member>,
    /// Address of the member that has returned the list.
    contact: String,
}

/// Returns the TLS files for connections of this member to client URLs of other members. They are the files
/// of its own client listeners.
fn files_for_clients(options: &TlsOptions) -> TlsFiles {
    let settings = &options.settings;
    let own = settings.client_cert_file.is_some();
    TlsFiles {
        cacert: settings.trusted_ca_file.clone(),
        cert: if own { settings.client_cert_file.clone() } else { settings.cert_file.clone() },
        key: if own { settings.client_key_file.clone() } else { settings.key_file.clone() },
        server_name: None,
        // With automatic TLS, certificates are not verified, because each member has signed its own.
        insecure_skip_verify: options.auto && settings.is_empty(),
    }
}

impl<'a> Rebuild<'a> {
    /// Prepares a rebuild without performing any step. `peer_tls` is used for connections to `https` peer
    /// URLs of other members.
    ///
    /// # Errors
    ///
    /// Returns an error if the async runtime cannot be started, or a TLS file of the client listeners cannot
    /// be used.
    pub fn new(
        config: &'a mut Config,
        endpoints: &'a [String],
        peer_tls: ClientTls,
        logger: &'a Logger,
        stop_wanted: &'a dyn Fn(Duration) -> bool,
    ) -> Result<Rebuild<'a>, RebuildError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RebuildError::Runtime)?;
        let refused = |text: String| RebuildError::Refused(text);
        let files = files_for_clients(&config.client_tls);
        let client_tls = match files.is_given() {
            true => Some(files.load().map_err(|error| refused(error.to_string()))?),
            false => None,
        };
        let disk = Arc::new(RealDisk);
        Ok(Rebuild { config, endpoints, logger, runtime, peer_tls, client_tls, disk, stop_wanted })
    }

    /// Performs all steps before the start of the new member, and sets the configuration for that start.
    /// Returns a lock that prevents other rebuilds; the caller must hold it until the rebuild is finished.
    ///
    /// # Errors
    ///
    /// Returns an error whose message says what prevents the rebuild, and what to do.
    pub fn prepare(mut self) -> Result<Lock, RebuildError> {
        let data_dir = self.config.storage.data_dir.clone();
        let journal_path = journal_path(&data_dir);
        let (whole, member_lock) = self.lock(&data_dir)?;
        if storage::witness_mark::is_marked(&disk::RealDisk, &data_dir.join("member"))
            .is_ok_and(|marked| marked)
        {
            return Err(RebuildError::Refused(format!(
                "{} is the data directory of a witness, which has no keys to restore: remove the witness from the cluster, \
                 add it again with `mainstay ctl member add --witness`, and start it with an empty directory",
                data_dir.display()
            )));
        }
        let journal = journal::read(&journal_path)?;
        let peer_urls = self.peer_urls();
        let refused = |text: String| Err(RebuildError::Refused(text));
        if let Some(begun) = journal.as_ref().and_then(|journal| journal.peer_urls.as_ref())
            && *begun != peer_urls
        {
            return refused(format!(
                "a rebuild of the member at {begun} was started in {}, but the flags name {peer_urls}: run \
                 it with the flags of that member, or remove {} to start over",
                data_dir.display(),
                journal_path.display()
            ));
        }
        let known = self.identify(&data_dir.join("member"));
        let cluster = self.find_cluster()?;
        if let Some((cluster_id, member_id)) = known
            && cluster_id != cluster.id
        {
            return refused(format!(
                "{} holds member {member_id:x} of cluster {cluster_id:x}, but the members that answer \
                 belong to cluster {:x}: check --initial-cluster and --endpoints",
                data_dir.display(),
                cluster.id
            ));
        }
        if let Some(begun) = journal.as_ref().and_then(|journal| journal.cluster)
            && begun != cluster.id
        {
            return refused(format!(
                "a rebuild of a member of cluster {begun:x} was started in {}, but the members that answer \
                 belong to cluster {:x}: check --initial-cluster and --endpoints",
                data_dir.display(),
                cluster.id
            ));
        }
        let own = self.own(&cluster.members, known.map(|(_, id)| id), journal.as_ref())?.cloned();
        if let Some(own) = &own {
            refuse_alive(own, &self.peer_tls)?;
        }
        let member_dir = data_dir.join("member");
        self.refuse_other_log_dir(&member_dir)?;
        // Id of the member whose data is in the directory; `None` if the directory has only files of a first
        // start. In that case the id in `known` is ignored, because `identify` may have read it from a
        // separate log directory, which does not prove that the data directory contains the member.
        let data = known.map(|(_, id)| id).filter(|_| first_files::are_not_all(&*self.disk, &member_dir));
        let next = next_step(own.as_ref(), data, journal.as_ref());
        let place = self.log_place(&member_dir)?;
        let logs = if next == Next::Continue { Vec::new() } else { self.old_logs(&place, known)? };
        let (mut journal, members) = match (next, own, journal) {
            (Next::Continue | Next::StartEmpty, Some(own), Some(journal)) => {
                self.say("the new member was already added; starting it", own.id);
                if next == Next::StartEmpty {
                    self.move_aside(&data_dir, &place, logs)?;
                }
                (Journal { new: own.id, ..journal }, cluster.members)
            }
            (_, own, begun) => {
                // True if no earlier run of this command has removed the old member: there is no journal, or
                // the cluster still lists the member that the journal calls the old one.
                let is_first =
                    begun.as_ref().is_none_or(|begun| Some(begun.old) == own.as_ref().map(|own| own.id));
                let (old, learner) = match (&own, begun) {
                    // Take the role (voter or learner) of the listed member: it is the old member, or a
                    // member that an earlier run of this command added with the old member's role.
                    (Some(own), _) => (own.id, own.is_learner),
                    (None, Some(journal)) => (journal.old, journal.learner),
                    (None, None) => (known.map_or(0, |(_, id)| id), false),
                };
                let mut journal = Journal::begin(cluster.id, old, learner, &peer_urls);
                journal::write(&*self.disk, &journal_path, &journal)?;
                if let Some(own) = &own {
                    self.remove(&cluster.contact, own.id).inspect_err(|error| {
                        // The cluster has certainly not removed the old member. Remove the journal, since it
                        // would prevent a start of the old member.
                        if is_first && matches!(error, RebuildError::Unchanged { is_certain: true, .. }) {
                            let _ = finish(&data_dir);
                        }
                    })?;
                }
                self.move_aside(&data_dir, &place, logs)?;
                let (id, members) = self.add(&cluster.contact, learner)?;
                journal.new = id;
                // Record the new id before the member can run: without it in the journal, a retry could not
                // tell whether the member has run, and would replace the member.
                journal::write(&*self.disk, &journal_path, &journal)?;
                (journal, members)
            }
        };
        journal.started = true;
        journal::write(&*self.disk, &journal_path, &journal)?;
        self.configure(&members);
        // Release the lock, because the start of the member, which follows, takes it.
        drop(member_lock);
        Ok(whole)
    }

    /// Returns the peer URLs that the flags give, sorted and joined with commas.
    fn peer_urls(&self) -> String {
        let urls: BTreeSet<&str> =
            self.config.cluster.initial_advertise_peer_urls.iter().map(Url::as_str).collect();
        urls.into_iter().collect::<Vec<_>>().join(",")
    }

    /// Locks the data directory, so that neither another rebuild nor the member itself can run on it.
    fn lock(&self, data_dir: &Path) -> Result<(Lock, Option<Lock>), RebuildError> {
        self.disk.create_dir_all(data_dir).map_err(|error| RebuildError::io("create", data_dir, error))?;
        let taken = |path: &Path, by| RebuildError::Locked { path: path.to_path_buf(), by };
        let whole = self.disk.lock(data_dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => taken(data_dir, "another rebuild is running"),
            _ => RebuildError::io("lock", data_dir, error),
        })?;
        let path = data_dir.join("member").join("lock");
        match self.disk.lock(&path) {
            Ok(lock) => Ok((whole, Some(lock))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(taken(&path, "the member is running; stop it first"))
            }
            // The data is possibly so damaged that the lock cannot be taken. Continue without the lock, since
            // the data is moved aside anyway.
            Err(_) => Ok((whole, None)),
        }
    }

    /// Returns the cluster id and the member id that are recorded in the member's directory or else in its
    /// log; `None` if both are missing or unreadable.
    fn identify(&self, member_dir: &Path) -> Option<(u64, u64)> {
        let path = member_dir.join(log::ShutdownRecord::FILE_NAME);
        let record = log::ShutdownRecord::read(&*self.disk, &path).ok().flatten();
        let log_dirs = match &self.config.storage.wal_dir {
            Some(dir) => vec![dir.join(BESIDE_ETCD), dir.clone()],
            None => {
                let noted = log_dir::known(&*self.disk, member_dir).ok().flatten();
                let beside_link = member_dir.join("wal").join(BESIDE_ETCD);
                [member_dir.join("log")].into_iter().chain(noted).chain([beside_link]).collect()
            }
        };
        let from_log =
            || log_dirs.iter().find_map(|log_dir| log::Log::identify(&*self.disk, log_dir).ok().flatten());
        let from_record = record.map(|record| (record.cluster_id.0, record.member_id.0));
        from_record.or_else(|| from_log().map(|owner| (owner.cluster_id.0, owner.member_id.0)))
    }

    /// Requests the list of members from the other members. A quorum must confirm the list.
    fn find_cluster(&self) -> Result<Cluster, RebuildError> {
        let own: BTreeSet<&str> =
            self.config.cluster.initial_advertise_peer_urls.iter().map(Url::as_str).collect();
        let pairs = self.config.cluster.initial_cluster.split(',').filter_map(|pair| pair.split_once('='));
        let peers: Vec<&str> = pairs
            .filter(|(name, url)| *name != self.config.name && !own.contains(url))
            .map(|(_, url)| url)
            .collect();
        if peers.is_empty() && self.endpoints.is_empty() {
            return Err(RebuildError::Refused(
                "the flags name no other member, so there is no source for a rebuild: name others with \
                 --initial-cluster or --endpoints, or restore the data directory from a backup; an empty \
                 data directory starts with no keys"
                    .to_owned(),
            ));
        }
        let mut contacts: Vec<String> = self.endpoints.to_vec();
        let (mut answered, mut why) = (0, Vec::new());
        for url in &peers {
            match other_members::members_of(url, CALL_TIMEOUT, Some(&self.peer_tls)) {
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
                Err(status) if is_of_rights(&status) => {
                    return Err(RebuildError::Refused(format!("{contact}: {status}: {WANTS_ROOT}")));
                }
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

    /// Returns the member to be replaced, whose peer URLs are those of the flags; `None` if the cluster does
    /// not list it any more. Returns an error if the data belongs to another member of the cluster, or if
    /// another member uses one of the peer URLs.
    fn own<'m>(
        &self,
        members: &'m [Member],
        known: Option<u64>,
        journal: Option<&Journal>,
    ) -> Result<Option<&'m Member>, RebuildError> {
        let urls = self.peer_urls_given();
        let here = other_members::member_at(members, |member| &member.peer_urls, &urls);
        let by_id = members.iter().find(|member| Some(member.id) == known);
        let data_dir = self.config.storage.data_dir.display();
        let refused = |text: String| Err(RebuildError::Refused(text));
        match (here, by_id) {
            (Some(here), Some(by_id)) if here.id != by_id.id => refused(format!(
                "{} is the address of member {:x} ({}), but {data_dir} holds member {:x} ({}): check \
                 --initial-advertise-peer-urls and --data-dir",
                urls.join(","),
                here.id,
                here.name,
                by_id.id,
                by_id.name
            )),
            (None, Some(by_id)) => refused(format!(
                "{data_dir} holds member {:x} ({}), which the cluster lists at {}, but the flags name {}: \
                 give --initial-advertise-peer-urls as listed in the cluster, or change the list with \
                 `etcdctl member update` first",
                by_id.id,
                by_id.name,
                by_id.peer_urls.join(","),
                urls.join(",")
            )),
            (None, None) if known.is_none() && journal.is_none() => refused(format!(
                "the cluster has no member at {}, and {data_dir} does not identify the member it held: \
                 check --initial-advertise-peer-urls and --data-dir; to add a new member, use `etcdctl \
                 member add`",
                urls.join(","),
            )),
            _ => {
                let is_own = |member: &Member| here.is_some_and(|here| here.id == member.id);
                let others = members.iter().filter(|member| !is_own(member));
                if let Some(begun) = journal
                    && let Some(other) =
                        others.clone().find(|other| [begun.old, begun.new].contains(&other.id))
                {
                    return refused(format!(
                        "a rebuild of member {:x} ({}) was started here, which the cluster now lists at \
                         {}, but the flags name {}: give --initial-advertise-peer-urls as listed in the \
                         cluster, or change the list with `etcdctl member update` first",
                        other.id,
                        other.name,
                        other.peer_urls.join(","),
                        urls.join(",")
                    ));
                }
                let taken = |member: &&Member| member.peer_urls.iter().any(|url| urls.contains(url));
                if let Some(other) = others.clone().find(taken) {
                    return refused(format!(
                        "an address of member {:x} ({}) is also one of this member, {}: check --initial-advertise-peer-urls",
                        other.id,
                        other.name,
                        urls.join(",")
                    ));
                }
                Ok(here)
            }
        }
    }

    /// Returns the peer URLs that the flags give.
    fn peer_urls_given(&self) -> Vec<String> {
        self.config.cluster.initial_advertise_peer_urls.iter().map(|url| url.as_str().to_owned()).collect()
    }

    fn remove(&self, contact: &str, id: u64) -> Result<(), RebuildError> {
        self.say("removing the old member from the cluster", id);
        let goes_by = |status: &Status| is_passing(status) || is_short_of_started(status);
        self.change("removed", goes_by, |rebuild| {
            let removed = rebuild.call::<MemberRemoveResponse>(
                contact,
                Rpc::ClusterMemberRemove,
                &MemberRemoveRequest { id },
            );
            match removed {
                Err(status) if status.code == Code::NotFound => Ok(()),
                Err(status) if is_short_of_started(&status) => {
                    let members = rebuild.list(contact).map(|(_, members)| members).unwrap_or_default();
                    Err(naming_unstarted(status, &members))
                }
                Err(status) => Err(status),
                Ok(_) => Ok(()),
            }
        })
    }

    /// Adds the new member. Returns its id, and the list of all members.
    fn add(&self, contact: &str, is_learner: bool) -> Result<(u64, Vec<Member>), RebuildError> {
        let adding = Adding::new(self.peer_urls_given(), is_learner);
        let request = MemberAddRequest { peer_urls: adding.peer_urls.clone(), is_learner, is_witness: false };
        let (id, members) = self.change(
            "added",
            |status| adding.goes_by(status),
            |rebuild| {
                let (_, members) = rebuild.list(contact)?;
                let add = || rebuild.call::<MemberAddResponse>(contact, Rpc::ClusterMemberAdd, &request);
                adding.attempt(members, add, |member| refuse_alive(member, &rebuild.peer_tls))
            },
        )?;
        if id == 0 {
            return Err(RebuildError::Refused(
                "the cluster did not report which member it added; run the same command again".to_owned(),
            ));
        }
        self.say("added the new member to the cluster", id);
        Ok((id, members))
    }

    /// Makes a membership change, and repeats the request while the cluster refuses it with a temporary
    /// error.
    fn change<T>(
        &self,
        what: &'static str,
        goes_by: impl Fn(&Status) -> bool,
        attempt: impl Fn(&Self) -> Result<T, Status>,
    ) -> Result<T, RebuildError> {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        let (mut said, mut is_certain) = (None, true);
        loop {
            let status = match attempt(self) {
                Ok(done) => return Ok(done),
                Err(status) => status,
            };
            is_certain &= !may_be_done(&status);
            if !goes_by(&status) || Instant::now() >= deadline {
                return Err(RebuildError::Unchanged { what, status, is_certain });
            }
            if said.as_ref() != Some(&status) {
                let error = status.to_string();
                self.logger.warn(
                    "the cluster does not accept membership changes yet; retrying",
                    &[("error", Value::Str(&error))],
                );
                said = Some(status);
            }
            if (self.stop_wanted)(PAUSE) {
                return Err(RebuildError::Stopped);
            }
        }
    }

    /// Changes the configuration of this process so that the new member, when it starts, joins the existing
    /// cluster.
    fn configure(&mut self, members: &[Member]) {
        let own = self.peer_urls_given();
        let mut pairs: Vec<String> = own.iter().map(|url| format!("{}={url}", self.config.name)).collect();
        let here =
            other_members::member_at(members, |member| &member.peer_urls, &own).map(|member| member.id);
        for member in members.iter().filter(|member| Some(member.id) != here) {
            // The entry uses the id in place of a name, because a member that has not been started has no
            // name.
            pairs.extend(member.peer_urls.iter().map(|url| format!("member-{:x}={url}", member.id)));
        }
        self.config.cluster.initial_cluster = pairs.join(",");
        self.config.cluster.initial_cluster_state = InitialClusterState::Existing;
        self.config.cluster.force_new_cluster = false;
        self.config.cluster.discovery = None;
    }

    fn say(&self, what: &str, id: u64) {
        self.logger.info(what, &[("member-id", Value::Id(id))]);
    }

    /// Returns the cluster id and all members, as confirmed by a quorum.
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
        A::decode(answer).map_err(|error| Status::with(Code::Internal, format!("invalid answer: {error}")))
    }
}

/// Removes the journal, which completes the rebuild. Called when the rebuilt member has started to serve.
pub fn finish(data_dir: &Path) -> Result<(), RebuildError> {
    let path = journal_path(data_dir);
    let failed = |error| RebuildError::io("remove", &path, error);
    RealDisk.remove(&path).map_err(failed)?;
    RealDisk.sync_dir(data_dir).map_err(failed)
}
