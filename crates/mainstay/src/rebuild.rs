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
//! ```text
//! <data-dir>/rebuild                journal: the id of the old member, and whether it was a learner
//! <data-dir>/member.damaged-<n>     the old data; nothing of it is ever deleted
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberRemoveRequest,
    MemberRemoveResponse,
};
use api::{Code, Status};
use client::{CallOptions, Channel};
use disk::{Disk, Lock, RealDisk};
use prost::Message;
use server::config::{Config, InitialClusterState, Url};
use server::joining;
use server::logging::{Logger, Value};

/// How long one call to a member may take.
const CALL_PATIENCE: Duration = Duration::from_secs(5);
/// How long a change of the members is tried again while the cluster settles from the one before.
const CHANGE_PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

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
    disk: Arc<dyn Disk>,
    /// Asked between steps, and while it waits.
    stop_wanted: &'a dyn Fn(Duration) -> bool,
}

/// What the journal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Journal {
    /// 0 if it was not known.
    old: u64,
    learner: bool,
}

/// The cluster, as a member told it that had asked a quorum.
struct Cluster {
    id: u64,
    members: Vec<Member>,
    /// Where it answered.
    contact: String,
}

impl<'a> Rebuild<'a> {
    /// Nothing is done yet.
    pub fn new(
        config: &'a mut Config,
        endpoints: &'a [String],
        logger: &'a Logger,
        stop_wanted: &'a dyn Fn(Duration) -> bool,
    ) -> Result<Rebuild<'a>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("cannot talk to other members: {error}"))?;
        Ok(Rebuild { config, endpoints, logger, runtime, disk: Arc::new(RealDisk), stop_wanted })
    }

    /// Does everything up to the start of the new member, and changes the configuration for that start.
    ///
    /// # Errors
    ///
    /// The text says what is in the way, and what to do.
    pub fn prepare(mut self) -> Result<(), String> {
        let data_dir = self.config.data_dir.clone();
        let _locks = self.lock(&data_dir)?;
        let journal = read_journal(&journal_path(&data_dir))?;
        let known = self.identify(&data_dir.join("member"));
        let cluster = self.find_cluster()?;
        if let Some((cluster_id, member_id)) = known
            && cluster_id != cluster.id
        {
            return Err(format!(
                "{} holds member {member_id:x} of cluster {cluster_id:x}, but the members that answer are of cluster \
                 {:x}: check --initial-cluster and --endpoints",
                data_dir.display(),
                cluster.id
            ));
        }
        let own = self.own(&cluster.members, known.map(|(_, id)| id), journal)?.cloned();
        let added = own.as_ref().is_some_and(|own| journal.is_some_and(|journal| journal.old != own.id));
        let members = if added {
            self.say(
                "the new member had been added before; it is started",
                own.as_ref().map_or(0, |own| own.id),
            );
            // What is there is its own, or of the time before.
            let current = own.as_ref().map(|own| own.id);
            if known.is_some() && known.map(|(_, id)| id) != current {
                self.move_aside(&data_dir)?;
            }
            cluster.members
        } else {
            let journal = match (&own, journal) {
                (_, Some(journal)) => journal,
                (Some(own), None) => Journal { old: own.id, learner: own.is_learner },
                (None, None) => Journal { old: known.map_or(0, |(_, id)| id), learner: false },
            };
            if let Some(own) = &own {
                self.refuse_alive(own)?;
            }
            write_journal(&*self.disk, &journal_path(&data_dir), journal)?;
            if let Some(own) = &own {
                self.remove(&cluster.contact, own.id)?;
            }
            self.move_aside(&data_dir)?;
            self.add(&cluster.contact, journal.learner)?
        };
        self.configure(&members);
        Ok(())
    }

    /// Neither another rebuild nor the member itself may be at work here.
    fn lock(&self, data_dir: &Path) -> Result<(Lock, Option<Lock>), String> {
        self.disk
            .create_dir_all(data_dir)
            .map_err(|error| format!("cannot create {}: {error}", data_dir.display()))?;
        let taken = |path: &Path, who: &str| format!("{} is locked: {who}", path.display());
        let whole = self.disk.lock(data_dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => taken(data_dir, "another rebuild is under way"),
            _ => format!("cannot lock {}: {error}", data_dir.display()),
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
        let witness = log::Witness::read(&*self.disk, &member_dir.join("witness")).ok().flatten();
        let from_log = || log::Log::identify(&*self.disk, &member_dir.join("log")).ok().flatten();
        witness.map(|witness| (witness.cluster_id, witness.member_id)).or_else(from_log)
    }

    /// Asks the others who is there, by way of a quorum.
    fn find_cluster(&self) -> Result<Cluster, String> {
        let own: BTreeSet<&str> = self.config.initial_advertise_peer_urls.iter().map(Url::as_str).collect();
        let pairs = self.config.initial_cluster.split(',').filter_map(|pair| pair.split_once('='));
        let peers: Vec<&str> = pairs
            .filter(|(name, url)| *name != self.config.name && !own.contains(url))
            .map(|(_, url)| url)
            .collect();
        if peers.is_empty() && self.endpoints.is_empty() {
            return Err(
                "this is the only member that the flags name, so there is nobody to rebuild it from: name others with \
                 --initial-cluster or --endpoints, or restore the data directory from a backup; an empty data \
                 directory begins with no keys"
                    .to_owned(),
            );
        }
        let mut contacts: Vec<String> = self.endpoints.to_vec();
        let (mut answered, mut why) = (0, Vec::new());
        for url in &peers {
            match joining::members_of(url, CALL_PATIENCE) {
                Ok((_, members)) => {
                    answered += 1;
                    let others = members
                        .iter()
                        .filter(|member| !member.peer_urls.iter().any(|url| own.contains(&**url)));
                    let urls: Vec<String> = others.flat_map(|member| member.client_urls.clone()).collect();
                    contacts.extend(urls.into_iter().filter(|url| !self.endpoints.contains(url)));
                }
                Err(error) => why.push(error),
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
                        .call::<MemberListResponse>(contact, LIST, &MemberListRequest { linearizable: false })
                        .is_ok()
                    {
                        no_quorum = Some(contact.clone());
                    }
                    why.push(format!("{contact}: {status}"));
                }
            }
        }
        match no_quorum {
            Some(contact) => Err(format!(
                "{contact} answers, but the other members have no quorum without this one, so that it cannot be \
                 replaced ({}): start those that are missing and run this again; if a majority is lost for good, go \
                 on with one that is sound, with --force-new-cluster",
                why.join("; ")
            )),
            None => Err(format!(
                "none of the other members answers ({}; {answered} of {} peer URLs): start them, or name one with \
                 --endpoints",
                why.join("; "),
                peers.len()
            )),
        }
    }

    /// The member that is to be replaced, or has been already: the one at this address, or the one whose data is here.
    fn own<'m>(
        &self,
        members: &'m [Member],
        known: Option<u64>,
        journal: Option<Journal>,
    ) -> Result<Option<&'m Member>, String> {
        let urls: Vec<String> =
            self.config.initial_advertise_peer_urls.iter().map(|url| url.as_str().to_owned()).collect();
        let here = members.iter().find(|member| joining::same_places(&member.peer_urls, &urls));
        let by_id = members.iter().find(|member| Some(member.id) == known);
        match (here, by_id) {
            (Some(here), Some(by_id)) if here.id != by_id.id && journal.is_none() => Err(format!(
                "{} is the address of member {:x} ({}), but {} holds member {:x} ({}): check \
                 --initial-advertise-peer-urls and --data-dir",
                urls.join(","),
                here.id,
                here.name,
                self.config.data_dir.display(),
                by_id.id,
                by_id.name
            )),
            (None, None) if known.is_none() && journal.is_none() => Err(format!(
                "the cluster has no member at {}, and {} does not say which member it held: check \
                 --initial-advertise-peer-urls and --data-dir; a member that was never there is added with `etcdctl \
                 member add`",
                urls.join(","),
                self.config.data_dir.display()
            )),
            (Some(here), _) => Ok(Some(here)),
            (None, by_id) => Ok(by_id),
        }
    }

    /// The member at this address must be down: it is the one that is taken out of the cluster.
    fn refuse_alive(&self, own: &Member) -> Result<(), String> {
        let alive = own.peer_urls.iter().find(|url| joining::version_of(url, CALL_PATIENCE).is_ok());
        match alive {
            Some(url) => Err(format!(
                "member {:x} ({}) answers at {url}: stop it first, if it is this member that has to be rebuilt",
                own.id, own.name
            )),
            None => Ok(()),
        }
    }

    fn remove(&self, contact: &str, id: u64) -> Result<(), String> {
        self.say("removing the old member from the cluster", id);
        self.change("removed", |rebuild| {
            let removed = rebuild.call::<MemberRemoveResponse>(contact, REMOVE, &MemberRemoveRequest { id });
            match removed {
                Err(status) if status.code == Code::NotFound => Ok(()),
                Err(status) => Err(status),
                Ok(_) => Ok(()),
            }
        })
    }

    /// Adds the new member, unless that was done already. Gives all members.
    fn add(&self, contact: &str, is_learner: bool) -> Result<Vec<Member>, String> {
        let peer_urls: Vec<String> =
            self.config.initial_advertise_peer_urls.iter().map(|url| url.as_str().to_owned()).collect();
        let (id, members) = self.change("added", |rebuild| {
            // One whose answer was lost has been added all the same.
            let (_, members) = rebuild.list(contact)?;
            if let Some(own) =
                members.iter().find(|member| joining::same_places(&member.peer_urls, &peer_urls))
            {
                return Ok((own.id, members));
            }
            let request = MemberAddRequest { peer_urls: peer_urls.clone(), is_learner };
            let added: MemberAddResponse = rebuild.call(contact, ADD, &request)?;
            Ok((added.member.map_or(0, |member| member.id), added.members))
        })?;
        self.say("added the new member to the cluster", id);
        Ok(members)
    }

    /// Tries a change again while the cluster settles.
    fn change<T>(&self, what: &str, attempt: impl Fn(&Self) -> Result<T, Status>) -> Result<T, String> {
        let deadline = Instant::now() + CHANGE_PATIENCE;
        loop {
            let status = match attempt(self) {
                Ok(done) => return Ok(done),
                Err(status) => status,
            };
            let passing = matches!(status.code, Code::Unavailable | Code::DeadlineExceeded);
            if !passing || Instant::now() >= deadline {
                return Err(format!(
                    "the member could not be {what}: {status}; nothing is lost, run the same command again"
                ));
            }
            if (self.stop_wanted)(PAUSE) {
                return Err("stopped; run the same command again to go on".to_owned());
            }
        }
    }

    /// Moves what is in the data directory out of the way, for good.
    fn move_aside(&self, data_dir: &Path) -> Result<(), String> {
        let from = data_dir.join("member");
        if fs::symlink_metadata(&from).is_err() {
            return Ok(());
        }
        let mut number = 1;
        let to = loop {
            let to = data_dir.join(format!("member.damaged-{number}"));
            match fs::symlink_metadata(&to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => break to,
                Err(error) => return Err(format!("cannot look for {}: {error}", to.display())),
                Ok(_) => number += 1,
            }
        };
        let failed =
            |error: io::Error| format!("cannot move {} to {}: {error}", from.display(), to.display());
        fs::rename(&from, &to).map_err(failed)?;
        self.disk.sync_dir(data_dir).map_err(failed)?;
        let to = to.display().to_string();
        self.logger.warn("moved the old data aside", &[("to", Value::Str(&to))]);
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
    }

    fn say(&self, what: &str, id: u64) {
        self.logger.info(what, &[("member-id", Value::Id(id))]);
    }

    /// All members, as a quorum knows them.
    fn list(&self, contact: &str) -> Result<(u64, Vec<Member>), Status> {
        let answer: MemberListResponse =
            self.call(contact, LIST, &MemberListRequest { linearizable: true })?;
        Ok((answer.header.map_or(0, |header| header.cluster_id), answer.members))
    }

    fn call<A: Message + Default>(
        &self,
        contact: &str,
        path: &str,
        request: &impl Message,
    ) -> Result<A, Status> {
        let unavailable = |text: String| Status::with(Code::Unavailable, text);
        let text = if contact.contains("://") { contact.to_owned() } else { format!("http://{contact}") };
        let url = Url::parse(&text).map_err(unavailable)?;
        let message = request.encode_to_vec().into();
        let exchange = async {
            let channel = Channel::connect((url.host(), url.port()))
                .await
                .map_err(|error| unavailable(format!("connection error: {error}")))?;
            channel.unary_with(path, &CallOptions::default().within(CALL_PATIENCE), message).await
        };
        let answer = self.runtime.block_on(async {
            let timed = tokio::time::timeout(2 * CALL_PATIENCE, exchange).await;
            timed
                .unwrap_or_else(|_| Err(Status::with(Code::DeadlineExceeded, "no answer in time".to_owned())))
        })?;
        A::decode(answer).map_err(|error| Status::with(Code::Internal, format!("not an answer: {error}")))
    }
}

const LIST: &str = "/etcdserverpb.Cluster/MemberList";
const ADD: &str = "/etcdserverpb.Cluster/MemberAdd";
const REMOVE: &str = "/etcdserverpb.Cluster/MemberRemove";

/// The rebuilt member serves: there is nothing to go on with any more.
pub fn finish(data_dir: &Path) -> Result<(), String> {
    let path = journal_path(data_dir);
    let failed = |error: io::Error| format!("cannot remove {}: {error}", path.display());
    RealDisk.remove(&path).map_err(failed)?;
    RealDisk.sync_dir(data_dir).map_err(failed)
}

fn read_journal(path: &Path) -> Result<Option<Journal>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let mut words = text.split_whitespace();
    let journal = match (words.next(), words.next(), words.next()) {
        (Some(id), Some(kind @ ("voter" | "learner")), None) => {
            u64::from_str_radix(id, 16).ok().map(|old| Journal { old, learner: kind == "learner" })
        }
        _ => None,
    };
    let damaged = || {
        format!(
            "{} is not what a rebuild writes: remove it, and the member at this address from the cluster if it is \
             listed there without a name; then run this again",
            path.display()
        )
    };
    journal.map(Some).ok_or_else(damaged)
}

fn write_journal(disk: &dyn Disk, path: &Path, journal: Journal) -> Result<(), String> {
    let making = path.with_extension("tmp");
    let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
    if disk.exists(&making).map_err(failed)? {
        disk.remove(&making).map_err(failed)?;
    }
    let file = disk.create(&making).map_err(failed)?;
    let kind = if journal.learner { "learner" } else { "voter" };
    file.write_at(format!("{:x} {kind}\n", journal.old).as_bytes(), 0).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    disk.rename(&making, path).map_err(failed)?;
    disk.sync_dir(path.parent().unwrap_or(path)).map_err(failed)
}
