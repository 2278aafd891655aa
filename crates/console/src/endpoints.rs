//! The members that the console reaches: [`Endpoints`]. Their ids are numbers that stay the same for as long as the process lives.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::url::Url;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::answer::{self, AnswerBody, Refused};
use crate::member_list::{Told, ToldList, ask, is_there};
use crate::service::Service;
use crate::upstream::Target;

/// Endpoints that are remembered; more than any cluster has members.
pub(crate) const ENDPOINTS_MAX: usize = 256;
/// Time in which a member has to tell the list.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// Time in which a member has to say who it is at the URL that it tells, where an endpoint at another URL could stand for it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a user's question for the list waits for those of others. With two rounds, one of them with a probe, an answer takes 9 s
/// at most: the pages wait for 10 s.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which the outcome of a probe counts.
const PROBE_FRESH: Duration = Duration::from_secs(30);

/// A member of the cluster, as the list of members has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: u64,
    /// Its name; empty until it has started.
    pub name: String,
    /// Its client URLs.
    pub client_urls: Vec<String>,
    /// True if it has no vote.
    pub is_learner: bool,
}

/// Tells the list of members at any time.
pub type ListMembers = Arc<dyn Fn() -> Vec<Member> + Send + Sync>;

/// Where the console learns of members.
#[derive(Clone)]
pub enum Source {
    /// The console is part of a member.
    Member {
        /// Id of this member.
        id: u64,
        /// Where it listens for clients.
        listens_at: Url,
        /// The members as this one knows them.
        list: ListMembers,
    },
    /// The console stands alone: these endpoints, and the members that they tell of.
    Endpoints(Vec<Url>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Member { id, listens_at, .. } => f
                .debug_struct("Member")
                .field("id", id)
                .field("listens_at", listens_at)
                .finish_non_exhaustive(),
            Source::Endpoints(urls) => f.debug_tuple("Endpoints").field(urls).finish(),
        }
    }
}

/// All endpoints that were ever listed.
pub(crate) struct Endpoints {
    source: Source,
    entries: RefCell<Vec<Entry>>,
    /// Outcomes of the last [`PROBE_FRESH`] of asking members at the URLs that they tell.
    probes: RefCell<Vec<Probe>>,
    /// Members that are listed now and are not asked.
    unreached: RefCell<Vec<(Member, NotAsked)>>,
    next_id: Cell<u64>,
    /// The cluster whose members are listed; `None` until a member tells it.
    cluster: Cell<Option<u64>>,
    /// When the list was last told by members.
    fetched: Cell<Option<Instant>>,
    /// When a round in which members were asked without a token ended.
    asked: Cell<Option<Instant>>,
    /// Held while the list is fetched, so that one round serves all who wait.
    fetching: tokio::sync::Mutex<()>,
    /// Held while members are asked with the token of a user: those who show tokens that members refuse open no more than one
    /// connection to each of them.
    asking_as_user: tokio::sync::Mutex<()>,
}

/// The outcome of asking a member at the URL that it tells.
struct Probe {
    member: u64,
    url: Url,
    is_reached: bool,
    at: Instant,
}

struct Entry {
    id: u64,
    target: Rc<Target>,
    /// Given by hand, so that it stays.
    is_given: bool,
    /// Listed now, so that it may be asked.
    is_listed: bool,
    /// Cluster that it told when it was last asked for the list and answered. Only what was given is asked.
    told: Option<u64>,
    /// It has told the cluster that is shown, since that is shown.
    was_ours: bool,
    /// It kept the list to users when it was last asked without a token.
    has_refused: bool,
    /// It is asked for the list only, and the members behind it are reached at the URLs that they tell. This is the id of the member that
    /// answered here and was reached at its own URL; where another one answers in the next moment, this is a load balancer.
    lists_of: Option<u64>,
    member: Option<Member>,
}

impl Endpoints {
    pub(crate) fn new(source: Source) -> Endpoints {
        let endpoints = Endpoints {
            source,
            entries: RefCell::default(),
            probes: RefCell::default(),
            unreached: RefCell::default(),
            next_id: Cell::new(0),
            cluster: Cell::new(None),
            fetched: Cell::new(None),
            asked: Cell::new(None),
            fetching: tokio::sync::Mutex::default(),
            asking_as_user: tokio::sync::Mutex::default(),
        };
        match &endpoints.source {
            Source::Member { .. } => endpoints.refresh_own(),
            Source::Endpoints(urls) => {
                let entries = urls
                    .iter()
                    .take(ENDPOINTS_MAX)
                    .map(|url| endpoints.entry(Target::new(url.clone()), true, None));
                let entries = entries.collect();
                endpoints.entries.replace(entries);
            }
        }
        endpoints
    }

    fn entry(&self, target: Rc<Target>, is_given: bool, member: Option<Member>) -> Entry {
        let id = self.next_id.replace(self.next_id.get() + 1);
        Entry {
            id,
            target,
            is_given,
            is_listed: true,
            told: None,
            was_ours: false,
            has_refused: false,
            lists_of: None,
            member,
        }
    }

    /// The endpoint with this id, if it is listed now.
    pub(crate) fn find(&self, id: &str) -> Option<Rc<Target>> {
        let id: u64 = Some(id).filter(|id| id.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
        let entries = self.entries.borrow();
        entries.iter().find(|entry| entry.id == id && entry.is_listed).map(|entry| Rc::clone(&entry.target))
    }

    /// Answers with the list, for a browser at this address.
    ///
    /// # Errors
    /// Members would have to be asked, and there are too many requests under way.
    pub(crate) async fn list(
        &self,
        service: &Service,
        headers: &HeaderMap,
        address: Option<IpAddr>,
    ) -> Result<Response<AnswerBody>, Refused> {
        match &self.source {
            Source::Member { .. } => self.refresh_own(),
            Source::Endpoints(_) if self.is_fresh(service) => {}
            Source::Endpoints(_) => {
                let _permit = service.permit(address)?;
                self.fetch(service, headers.get(AUTHORIZATION)).await;
            }
        }
        let own = match &self.source {
            Source::Member { id, .. } => Value::String(hex(*id)),
            Source::Endpoints(_) => Value::Null,
        };
        let entries = self.entries.borrow();
        let mut endpoints: Vec<Value> =
            entries.iter().filter(|entry| entry.is_listed).map(Entry::shown).collect();
        endpoints.extend(self.unreached.borrow().iter().map(|(member, why)| why.shown(member)));
        let cluster = self.cluster.get();
        let foreign = entries.iter().filter(|entry| entry.is_foreign_to(cluster));
        let foreign: Vec<&str> = foreign.map(|entry| entry.target.url.as_str()).collect();
        let version = env!("CARGO_PKG_VERSION");
        let list = json!({ "self": own, "endpoints": endpoints, "foreign": foreign, "version": version });
        Ok(answer::json(StatusCode::OK, &list))
    }

    /// Takes over the list as this member knows it, itself first.
    fn refresh_own(&self) {
        let Source::Member { id, listens_at, list } = &self.source else { return };
        let (own, others): (Vec<Member>, Vec<Member>) =
            list().into_iter().partition(|member| member.id == *id);
        let mut entries = self.entries.borrow_mut();
        let own = own.into_iter().next();
        match entries.first_mut() {
            Some(entry) => entry.member = own,
            None => entries.push(self.entry(Target::own(listens_at.clone()), true, own)),
        }
        let url = entries.first().and_then(|entry| own_url(entry.member.as_ref()?));
        if let (Some(entry), Some(url)) = (entries.first(), &url) {
            entry.target.ask_as(url);
        }
        let is_secure = url.as_ref().unwrap_or(listens_at).scheme().is_secure();
        self.replace_others(&mut entries, others, is_secure);
    }

    /// Lists these members beside the endpoints that were given, and no others; with `is_secure` at `https` URLs only.
    fn replace_others(&self, entries: &mut Vec<Entry>, others: Vec<Member>, is_secure: bool) {
        entries.iter_mut().filter(|entry| !entry.is_given).for_each(|entry| entry.is_listed = false);
        let mut unreached = Vec::new();
        for member in others {
            let url = match usable(&member.client_urls, is_secure) {
                Ok(url) => url,
                Err(why) => {
                    unreached.push((member, why));
                    continue;
                }
            };
            // Two members that tell one URL stay two: who answers there says who it is.
            let known = entries
                .iter_mut()
                .find(|entry| !entry.is_given && !entry.is_listed && entry.target.url == url.as_str());
            match known {
                Some(entry) => (entry.is_listed, entry.member) = (true, Some(member)),
                None => {
                    if entries.len() >= ENDPOINTS_MAX {
                        entries.retain(|entry| entry.is_listed || entry.is_given);
                    }
                    match entries.len() < ENDPOINTS_MAX {
                        true => entries.push(self.entry(Target::new(url), false, Some(member))),
                        false => unreached.push((member, NotAsked::TooMany)),
                    }
                }
            }
        }
        unreached.truncate(ENDPOINTS_MAX);
        self.unreached.replace(unreached);
    }

    /// Returns true if members told the list a moment ago.
    fn is_fresh(&self, service: &Service) -> bool {
        self.fetched.get().is_some_and(|fetched| fetched.elapsed() < service.dialer.limits.members_fresh)
    }

    /// Asks the endpoints that were given for the list. What none of them tells stays as it was.
    ///
    /// They are asked without the user's token first, in one round that serves all who wait: a token is not shown to an endpoint that
    /// may be of another cluster where the list can be had without. Only if members keep the list to users are those that refused it
    /// asked again with the token, and an endpoint that is known to be foreign never is.
    async fn fetch(&self, service: &Service, authorization: Option<&HeaderValue>) {
        let came = Instant::now();
        {
            let _one = self.fetching.lock().await;
            if self.is_fresh(service) {
                return;
            }
            // A round that ended meanwhile, whoever waited for it and whatever came of it.
            if self.asked.get().is_none_or(|asked| asked < came) {
                let told = self.ask_given(service, None, |_| true).await;
                self.take_over(service, told, false).await;
                self.asked.set(Some(Instant::now()));
            }
        }
        let is_told = || self.fetched.get().is_some_and(|fetched| fetched > came);
        let Some(authorization) = authorization.filter(|_| !is_told()) else { return };
        let Ok(_turn) = timeout(TURN_TIMEOUT, self.asking_as_user.lock()).await else { return };
        // Another user's token may have had the list meanwhile.
        if !is_told() {
            let cluster = self.cluster.get();
            let may_see = |entry: &Entry| entry.has_refused && !entry.is_foreign_to(cluster);
            let told = self.ask_given(service, Some(authorization), may_see).await;
            self.take_over(service, told, true).await;
        }
    }

    /// Asks these of the endpoints that were given, all at the same time; returns what they tell, by their ids.
    async fn ask_given(
        &self,
        service: &Service,
        authorization: Option<&HeaderValue>,
        is_meant: impl Fn(&Entry) -> bool,
    ) -> Vec<(u64, ToldList)> {
        let given: Vec<(u64, Rc<Target>)> = {
            let entries = self.entries.borrow();
            let given = entries.iter().filter(|entry| entry.is_given && is_meant(entry));
            given.map(|entry| (entry.id, Rc::clone(&entry.target))).collect()
        };
        let asked: Vec<_> = given
            .into_iter()
            .map(|(id, target)| {
                let (dialer, authorization) = (Rc::clone(&service.dialer), authorization.cloned());
                (id, start(LIST_TIMEOUT, async move { ask(&dialer, &target, authorization).await }))
            })
            .collect();
        let mut told = Vec::new();
        for (id, task) in asked {
            let answer = task.outcome().await.unwrap_or(Told::Nothing);
            let mut entries = self.entries.borrow_mut();
            // What one user's token came to says nothing of another's.
            if let Some(entry) = entries.iter_mut().find(|entry| entry.id == id && authorization.is_none()) {
                entry.has_refused = matches!(answer, Told::Refused);
            }
            if let Told::List(list) = answer {
                told.push((id, list));
            }
        }
        told
    }

    /// Notes which cluster each of these endpoints tells, as it does to a user or to anybody; leaves of them those of the cluster that is
    /// shown.
    fn settle_cluster(&self, told: &mut Vec<(u64, ToldList)>, to_user: bool) {
        let mut entries = self.entries.borrow_mut();
        let known = self.cluster.get();
        let next = next_cluster(known, &entries, told, to_user);
        self.cluster.set(next);
        for entry in entries.iter_mut().filter(|entry| entry.is_given) {
            if let Some((_, list)) = told.iter().find(|(id, _)| *id == entry.id) {
                entry.told = Some(list.cluster);
            }
            let is_ours = entry.told.is_some() && entry.told == next;
            entry.was_ours = is_ours || (entry.was_ours && next == known);
            if entry.is_foreign_to(next) {
                (entry.is_listed, entry.member) = (false, None);
            }
        }
        told.retain(|(_, list)| Some(list.cluster) == next);
    }

    /// Lists the members that these endpoints tell. What is told of another cluster, or nothing, changes no member.
    async fn take_over(&self, service: &Service, mut told: Vec<(u64, ToldList)>, to_user: bool) {
        self.settle_cluster(&mut told, to_user);
        if !told.is_empty() {
            self.probe(service, &told).await;
            self.list_members(told);
        }
    }

    /// Asks members at the URLs that they tell, if they were heard through an endpoint at another one, which may be a load balancer:
    /// another member answers there in the next moment. Nobody has verified such a URL yet, so no token is shown there.
    async fn probe(&self, service: &Service, told: &[(u64, ToldList)]) {
        let mut wanted: Vec<(u64, Url)> = Vec::new();
        {
            let mut probes = self.probes.borrow_mut();
            probes.retain(|probe| probe.at.elapsed() < PROBE_FRESH);
            let entries = self.entries.borrow();
            let is_secure = all_given_are_secure(&entries);
            for (id, list) in told {
                let entry = entries.iter().find(|entry| entry.id == *id);
                let member = list.members.iter().find(|member| member.id == list.teller);
                let Some((entry, member)) = entry.zip(member) else { continue };
                let Some(url) = entry.told_url(member, is_secure) else { continue };
                let is_known = |(of, at): (u64, &Url)| of == member.id && *at == url;
                if !probes.iter().any(|probe| is_known((probe.member, &probe.url)))
                    && !wanted.iter().any(|(of, at)| is_known((*of, at)))
                {
                    wanted.push((member.id, url));
                }
            }
        }
        let asked: Vec<_> = wanted
            .into_iter()
            .map(|(member, url)| {
                let (dialer, target, cluster) =
                    (Rc::clone(&service.dialer), Target::new(url.clone()), self.cluster.get());
                let is_there = async move { is_there(&dialer, &target, member, cluster).await };
                (member, url, start(PROBE_TIMEOUT, is_there))
            })
            .collect();
        for (member, url, task) in asked {
            let is_reached = task.outcome().await.unwrap_or(false);
            self.probes.borrow_mut().push(Probe { member, url, is_reached, at: Instant::now() });
        }
    }

    /// Lists the members that these endpoints, all of one cluster, tell.
    fn list_members(&self, told: Vec<(u64, ToldList)>) {
        self.fetched.set(Some(Instant::now()));
        let (mut members, mut told_by) = (Vec::<Member>::new(), Vec::new());
        for (id, list) in told {
            told_by.push((id, list.teller));
            for member in list.members {
                if !members.iter().any(|known| known.id == member.id) {
                    members.push(member);
                }
            }
        }
        let mut entries = self.entries.borrow_mut();
        let mut reached: Vec<u64> = Vec::new();
        let is_secure = all_given_are_secure(&entries);
        let probes = self.probes.borrow();
        let is_reached = |member: u64, url: &Url| {
            let mut its = probes.iter().filter(|probe| probe.member == member && probe.url == *url);
            its.any(|probe| probe.is_reached)
        };
        let cluster = self.cluster.get();
        for entry in entries.iter_mut().filter(|entry| entry.is_given && !entry.is_foreign_to(cluster)) {
            // One that is away stays what it was.
            let teller = told_by.iter().find(|(id, _)| *id == entry.id).map(|(_, teller)| *teller);
            if let Some(teller) = teller {
                let member = members.iter().find(|member| member.id == teller);
                let url = member.and_then(|member| entry.told_url(member, is_secure));
                if url.is_some_and(|url| is_reached(teller, &url)) {
                    entry.lists_of = Some(teller);
                } else if entry.lists_of == Some(teller) {
                    entry.lists_of = None;
                }
            }
            // A member that left the cluster says nothing of the one that is here now.
            entry.lists_of = entry.lists_of.filter(|id| members.iter().any(|member| member.id == *id));
            if entry.lists_of.is_some() {
                (entry.is_listed, entry.member) = (false, None);
                continue;
            }
            let known = entry.member.as_ref().map(|member| member.id);
            let by_url = || members.iter().find(|member| member.client_urls.contains(&entry.target.url));
            let id = teller.or(known).or_else(|| by_url().map(|member| member.id));
            entry.member = id.and_then(|id| members.iter().find(|member| member.id == id).cloned());
            // Two endpoints of one member are listed once.
            entry.is_listed = id.is_none_or(|id| !reached.contains(&id));
            reached.extend(id);
        }
        members.retain(|member| !reached.contains(&member.id));
        self.replace_others(&mut entries, members, is_secure);
    }
}

/// The cluster that is shown after these endpoints told theirs.
///
/// The first cluster is that of the endpoint that answers and was given first: one of another cluster, given by mistake, does not become it
/// because it tells everybody what the first one keeps to users. Where a user asks, that is the first that knows this user: all of them keep
/// their lists. From then on it stays the same until no endpoint tells it and one that had told it tells another one, also when it has
/// told that for long. An endpoint that keeps the list to users may still be of it, unless another one is the last that it told.
fn next_cluster(
    known: Option<u64>,
    entries: &[Entry],
    told: &[(u64, ToldList)],
    to_user: bool,
) -> Option<u64> {
    if told.iter().any(|(_, list)| Some(list.cluster) == known) {
        return known;
    }
    let told_by = |entry: &Entry| told.iter().find(|(id, _)| *id == entry.id).map(|(_, list)| list.cluster);
    let mut decide = entries.iter().filter(|entry| entry.is_given && (known.is_none() || entry.was_ours));
    let may_be_ours = |entry: &Entry| entry.has_refused && !entry.is_foreign_to(known);
    // An endpoint of another cluster that keeps its list is not asked in a user's name.
    let left_for = |entry: &Entry| entry.told.filter(|told| entry.has_refused && Some(*told) != known);
    let next = match known {
        None if to_user => decide.find_map(told_by),
        None => decide.find(|entry| entry.has_refused || told_by(entry).is_some()).and_then(told_by),
        Some(_) if decide.clone().any(|entry| may_be_ours(entry) && told_by(entry).is_none()) => None,
        Some(_) => decide.find_map(|entry| told_by(entry).or_else(|| left_for(entry))),
    };
    next.or(known)
}

/// Starts a task that ends when it is dropped, or after this time.
fn start<T: 'static>(limit: Duration, work: impl Future<Output = T> + 'static) -> Task<T> {
    Task(spawn_local(async move { timeout(limit, work).await.ok() }))
}

/// Returns true if plain URLs are not to be used, because those that were given have TLS.
fn all_given_are_secure(entries: &[Entry]) -> bool {
    entries.iter().filter(|entry| entry.is_given).all(|entry| entry.target.is_secure())
}

/// A task that ends with what it was started for.
struct Task<T>(tokio::task::JoinHandle<Option<T>>);

impl<T> Task<T> {
    /// Waits for the task and returns its result; `None` if its time was over before.
    async fn outcome(mut self) -> Option<T> {
        (&mut self.0).await.ok().flatten()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Entry {
    /// Returns true if it told of another cluster than this one.
    fn is_foreign_to(&self, cluster: Option<u64>) -> bool {
        self.told.is_some() && self.told != cluster
    }

    /// The URL at which this member, which answered here, is rather to be reached: one that it tells, if it does not tell this one. A URL of
    /// the loopback is no better than one that was given, unless that is of the loopback, too. Nor is a plain one of another machine where
    /// the loopback was given: that may be a tunnel, from whose other end the URL leads elsewhere than from here.
    fn told_url(&self, member: &Member, is_secure: bool) -> Option<Url> {
        if member.client_urls.contains(&self.target.url) {
            return None;
        }
        let is_better = |url: &Url| match (self.target.is_local(), url.is_local()) {
            (false, true) => false,
            (true, false) => url.scheme().is_secure(),
            _ => true,
        };
        usable(&member.client_urls, is_secure).ok().filter(is_better)
    }

    fn shown(&self) -> Value {
        let member = self.member.as_ref();
        // A member that has just started tells its client URLs a little later.
        let own = member.filter(|_| self.target.is_own).and_then(own_url);
        json!({
            "id": self.id.to_string(),
            "url": own.as_ref().map_or(self.target.url.as_str(), Url::as_str),
            "name": member.map_or("", |member| member.name.as_str()),
            "memberId": member.map(|member| hex(member.id)),
            "learner": member.is_some_and(|member| member.is_learner),
        })
    }
}

/// An id as the JSON of the console has it.
fn hex(id: u64) -> String {
    format!("{id:016x}")
}

/// The URL that this process's own member is known by: one that is not of this machine only, if there is one.
fn own_url(member: &Member) -> Option<Url> {
    let urls: Vec<Url> = member.client_urls.iter().filter_map(|url| Url::parse(url).ok()).collect();
    urls.iter().find(|url| !url.is_local()).or(urls.first()).cloned()
}

/// Why a member of the list is not asked. The order is that of how near a member with such URLs is to being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NotAsked {
    /// It tells no client URL: it has not started yet, or tells none.
    NoUrl,
    /// None of its URLs is one of a client.
    Malformed,
    /// The member's URLs are Unix sockets, which would be files of the console's machine.
    Unix,
    /// The member's URLs have unspecified addresses, such as `0.0.0.0`, which would be the console's machine.
    Unspecified,
    /// The member's URLs are without TLS, and those that the console was given, or has of its own member, are with it.
    Plain,
    /// More members are listed than the console remembers.
    TooMany,
}

impl NotAsked {
    /// The word for it in the list; the pages have a text for each.
    fn word(self) -> &'static str {
        match self {
            NotAsked::NoUrl => "none",
            NotAsked::Malformed => "malformed",
            NotAsked::Unix => "unix",
            NotAsked::Unspecified => "unspecified",
            NotAsked::Plain => "plain",
            NotAsked::TooMany => "many",
        }
    }

    /// The member in the list: without the id of an endpoint, as there is none.
    fn shown(self, member: &Member) -> Value {
        json!({
            "id": Value::Null,
            "url": member.client_urls.first().map_or("", String::as_str),
            "name": member.name,
            "memberId": hex(member.id),
            "learner": member.is_learner,
            "notAsked": self.word(),
        })
    }
}

/// The URL by which another member is reached. One that is not of the loopback comes first, then one with TLS.
///
/// # Errors
/// It tells none that may be used: not a file or an unspecified address, which would be of this machine, and with `is_secure` no plain one,
/// where tokens and passwords would travel in clear.
fn usable(urls: &[String], is_secure: bool) -> Result<Url, NotAsked> {
    let is_unspecified =
        |url: &Url| url.host().parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified());
    let judged = urls.iter().map(|text| match Url::parse(text) {
        Err(_) => Err(NotAsked::Malformed),
        Ok(url) if url.scheme().is_unix() => Err(NotAsked::Unix),
        Ok(url) if is_unspecified(&url) => Err(NotAsked::Unspecified),
        Ok(url) if is_secure && !url.scheme().is_secure() => Err(NotAsked::Plain),
        Ok(url) => Ok(url),
    });
    let (mut best, mut nearest) = (None, NotAsked::NoUrl);
    let worth = |url: &Url| (url.is_local(), !url.scheme().is_secure());
    for url in judged {
        match url {
            Ok(url) if best.as_ref().is_none_or(|known| worth(&url) < worth(known)) => best = Some(url),
            Ok(_) => {}
            Err(why) => nearest = nearest.max(why),
        }
    }
    best.ok_or(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, urls: &[&str]) -> Member {
        let client_urls = urls.iter().map(|url| (*url).to_owned()).collect();
        Member { id, name: format!("m{id}"), client_urls, is_learner: false }
    }

    #[test]
    fn a_member_is_reached_at_an_address_that_others_can_use() {
        let usable = |urls: &[&str], is_secure| {
            usable(&member(1, urls).client_urls, is_secure).map(|url| url.as_str().to_owned())
        };
        let url = |urls: &[&str]| usable(urls, false).ok();
        assert_eq!(url(&["http://127.0.0.1:1", "https://10.0.0.1:2"]).as_deref(), Some("https://10.0.0.1:2"));
        assert_eq!(url(&["http://localhost:1"]).as_deref(), Some("http://localhost:1"));
        assert_eq!(url(&["unix:///x", "http://[::1]:1", "http://h:1"]).as_deref(), Some("http://h:1"));
        assert_eq!(url(&["http://h:1", "https://h:2", "https://[::1]:3"]).as_deref(), Some("https://h:2"));
        let why = |urls: &[&str]| usable(urls, false).unwrap_err().word();
        assert_eq!(why(&[]), "none");
        assert_eq!(why(&["x", "ftp://h:1"]), "malformed");
        assert_eq!(why(&["x", "unix:///run/docker.sock"]), "unix");
        assert_eq!(why(&["http://0.0.0.0:1", "unix:///run/docker.sock", "https://[::]:1"]), "unspecified");
        let secure = |urls: &[&str]| usable(urls, true).ok();
        assert_eq!(secure(&["http://h:1", "https://127.0.0.1:1"]).as_deref(), Some("https://127.0.0.1:1"));
        assert_eq!(usable(&["http://h:1", "unix:///x"], true), Err(NotAsked::Plain));
    }

    #[test]
    fn a_tunnel_is_not_left_for_a_plain_url() {
        let told = |given: &str, urls: &[&str]| {
            let given = Target::new(Url::parse(given).unwrap());
            let entry = Endpoints::new(Source::Endpoints(Vec::new())).entry(given, true, None);
            entry.told_url(&member(1, urls), false).map(|url| url.as_str().to_owned())
        };
        assert_eq!(told("http://127.0.0.1:1", &["http://10.0.0.5:2379"]), None);
        assert_eq!(told("unix:///run/m1", &["http://10.0.0.5:2379"]), None);
        assert_eq!(
            told("http://127.0.0.1:1", &["https://10.0.0.5:2379"]).as_deref(),
            Some("https://10.0.0.5:2379")
        );
        assert_eq!(
            told("http://127.0.0.1:1", &["http://127.0.0.1:2379"]).as_deref(),
            Some("http://127.0.0.1:2379")
        );
        assert_eq!(told("http://lb:1", &["http://10.0.0.5:2379"]).as_deref(), Some("http://10.0.0.5:2379"));
        assert_eq!(told("http://lb:1", &["http://127.0.0.1:2379"]), None);
    }

    #[test]
    fn ids_stay_with_their_urls() {
        let list: Arc<std::sync::Mutex<Vec<Member>>> = Arc::default();
        let told = Arc::clone(&list);
        let set = |members: &[Member]| *list.lock().unwrap() = members.to_vec();
        set(&[member(2, &["http://h:2"]), member(1, &["http://h:1"]), member(3, &[])]);
        let endpoints = Endpoints::new(Source::Member {
            id: 1,
            listens_at: Url::parse("http://127.0.0.1:9").unwrap(),
            list: Arc::new(move || told.lock().unwrap().clone()),
        });
        let shown = || {
            endpoints.refresh_own();
            let entries = endpoints.entries.borrow();
            let listed = entries.iter().filter(|entry| entry.is_listed);
            let shown = listed.map(|entry| {
                let shown = entry.shown();
                format!("{} {}", shown["id"].as_str().unwrap(), shown["url"].as_str().unwrap())
            });
            shown.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(shown(), "0 http://h:1, 1 http://h:2");
        set(&[member(1, &["http://h:1"]), member(4, &["http://h:4"])]);
        assert_eq!(shown(), "0 http://h:1, 2 http://h:4");
        assert!(endpoints.find("1").is_none() && endpoints.find("2").is_some());
        set(&[member(1, &["http://h:1"]), member(5, &["http://h:2"])]);
        assert_eq!(shown(), "0 http://h:1, 1 http://h:2");
        for wrong in ["", "+1", "-1", "01x", "18446744073709551616", "1/", " 1"] {
            assert!(endpoints.find(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let count = std::cell::Cell::new(0);
        let list: Arc<std::sync::Mutex<Vec<Member>>> = Arc::default();
        let told = Arc::clone(&list);
        let endpoints = Endpoints::new(Source::Member {
            id: 1,
            listens_at: Url::parse("http://127.0.0.1:9").unwrap(),
            list: Arc::new(move || told.lock().unwrap().clone()),
        });
        for _ in 0..1_000 {
            count.set(count.get() + 1);
            *list.lock().unwrap() = vec![member(2, &[&format!("http://h:{}", count.get())])];
            endpoints.refresh_own();
        }
        assert!(endpoints.entries.borrow().len() <= ENDPOINTS_MAX);
        assert!(endpoints.find("1000").is_some(), "the newest is listed");
    }

    #[test]
    fn what_was_given_is_never_forgotten() {
        let given = (1..=2).map(|port| Url::parse(&format!("http://given:{port}")).unwrap());
        let endpoints = Endpoints::new(Source::Endpoints(given.collect()));
        let mut entries = endpoints.entries.borrow_mut();
        // A second endpoint of a member, or one of another cluster: not listed now, and asked again in the next round.
        entries[1].is_listed = false;
        for number in 0..1_000 {
            let others = vec![member(2, &[&format!("http://h:{number}")])];
            endpoints.replace_others(&mut entries, others, false);
        }
        assert!(entries.len() <= ENDPOINTS_MAX);
        assert_eq!(entries.iter().filter(|entry| entry.is_given).count(), 2);
    }
}
