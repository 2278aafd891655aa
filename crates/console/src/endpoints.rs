//! Keeps the members that browsers can reach through the console: [`Endpoints`]. Each has a number as its id,
//! which stays the same until the process ends.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use api::url::Url;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::answer;
use crate::member_list::{ListOutcome, MemberList, is_member_at, request_list};
use crate::member_url::{ExclusionReason, own_url, usable};
use crate::permits::RequestPermits;
use crate::refusal::Refusal;
use crate::response_body::AnswerBody;
use crate::source::{ENDPOINTS_MAX, Member, Source};
use crate::upstream::{Dialer, Target};

/// Time limit for a request for the list of members.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// Time limit for the request that checks whether a member can be reached at its listed URL. If it cannot,
/// the given endpoint, which has another URL, is used instead.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time for which a user's request for the list waits while members are asked with the tokens of
/// other users. With this wait, the request takes at most 9 s: 3 s to ask without a token, 2 s to wait, 3 s
/// to ask with the token, and 1 s for a probe. The pages wait for 10 s.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which the result of a probe is no longer used.
const PROBE_FRESH: Duration = Duration::from_secs(30);

/// The given endpoints, and the members that they list or have listed.
pub(crate) struct Endpoints {
    source: Source,
    entries: RefCell<Vec<Entry>>,
    /// Results of probes that are not older than [`PROBE_FRESH`].
    probes: RefCell<Vec<Probe>>,
    /// Members that are listed now, but that have no URL to which requests may be sent, each with the reason.
    unreached: RefCell<Vec<(Member, ExclusionReason)>>,
    next_id: Cell<u64>,
    /// Id of the cluster whose members the console shows to browsers; `None` until it was chosen among the
    /// clusters that endpoints report ([`next_cluster`]).
    cluster: Cell<Option<u64>>,
    /// Time at which the list was last received.
    fetched: Cell<Option<Instant>>,
    /// Time at which endpoints were last asked without a token, whatever they answered.
    round_ended: Cell<Option<Instant>>,
    /// Held while endpoints are asked without a token. Requests that arrive meanwhile wait, and then use the
    /// answers.
    fetching: tokio::sync::Mutex<()>,
    /// Held while endpoints are asked with a user's token. So even if many users have invalid tokens, the
    /// console has at most one such connection to each endpoint at a time.
    asking_as_user: tokio::sync::Mutex<()>,
}

/// Says how endpoints were asked for the list of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListAccess {
    /// Without a token: the endpoint shows the list to everybody.
    Public,
    /// With the token of a user.
    User,
}

/// Result of checking whether a member can be reached at its listed URL.
struct Probe {
    member: u64,
    url: Url,
    is_reached: bool,
    at: Instant,
}

struct Entry {
    id: u64,
    target: Rc<Target>,
    /// True if the endpoint was given by the user. Such an endpoint is never forgotten.
    is_given: bool,
    /// True if the endpoint is in the list that browsers get, so that they may send requests to it.
    is_listed: bool,
    /// Id of the cluster in the endpoint's last list of members. `None` for endpoints that are not given,
    /// because these are not asked.
    reported_cluster: Option<u64>,
    /// True if, at some time since the console began to show its present cluster ([`Endpoints::cluster`]),
    /// the endpoint's last list of members was of that cluster.
    was_ours: bool,
    /// True if the endpoint has refused the last request for the list that had no token.
    has_refused: bool,
    /// If set, the endpoint is possibly a load balancer. In this case it is used only to get the list, and
    /// the members are reached at their listed URLs. The value is the id of the member that answered at this
    /// endpoint and that was also reached at its listed URL. If another member answers at this endpoint next
    /// time, it certainly is a load balancer.
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
            round_ended: Cell::new(None),
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
            reported_cluster: None,
            was_ours: false,
            has_refused: false,
            lists_of: None,
            member,
        }
    }

    /// Returns the endpoint with this id; `None` if it is not in the list now.
    pub(crate) fn find(&self, id: &str) -> Option<Rc<Target>> {
        let id: u64 = Some(id).filter(|id| id.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
        let entries = self.entries.borrow();
        entries.iter().find(|entry| entry.id == id && entry.is_listed).map(|entry| Rc::clone(&entry.target))
    }

    /// Returns the response with the list of members, for a browser at this address. If the list is not
    /// recent, first asks the endpoints for it.
    ///
    /// # Errors
    /// Returns a refusal if endpoints have to be asked, and too many requests are in flight.
    pub(crate) async fn list(
        &self,
        dialer: &Rc<Dialer>,
        permits: &Rc<RequestPermits>,
        headers: &HeaderMap,
        address: Option<IpAddr>,
    ) -> Result<Response<AnswerBody>, Refusal> {
        match &self.source {
            Source::Member { .. } => self.refresh_own(),
            Source::Endpoints(_) if self.is_fresh(dialer) => {}
            Source::Endpoints(_) => {
                let _permit = permits.permit(address)?;
                self.fetch(dialer, headers.get(AUTHORIZATION)).await;
            }
        }
        let own = match &self.source {
            Source::Member { id, .. } => Value::String(hex(*id)),
            Source::Endpoints(_) => Value::Null,
        };
        let entries = self.entries.borrow();
        let mut endpoints: Vec<Value> =
            entries.iter().filter(|entry| entry.is_listed).map(Entry::shown).collect();
        endpoints.extend(self.unreached.borrow().iter().map(|(member, why)| unreached(member, *why)));
        let cluster = self.cluster.get();
        let foreign = entries.iter().filter(|entry| entry.is_foreign_to(cluster));
        let foreign: Vec<&str> = foreign.map(|entry| entry.target.url.as_str()).collect();
        let version = env!("CARGO_PKG_VERSION");
        let list = json!({ "self": own, "endpoints": endpoints, "foreign": foreign, "version": version });
        Ok(answer::json(StatusCode::OK, &list))
    }

    /// Updates the list from the member that this process runs. That member is the first in the list.
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
            entry.target.set_authority(url);
        }
        let is_secure = url.as_ref().unwrap_or(listens_at).scheme().is_secure();
        self.replace_others(&mut entries, others, is_secure);
    }

    /// Replaces all members of the list that are not given endpoints with `others`. If `is_secure` is true,
    /// members without an `https` URL are not listed.
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
            // Do not merge two members with the same URL: whichever answers there will identify itself.
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
                        false => unreached.push((member, ExclusionReason::TooMany)),
                    }
                }
            }
        }
        unreached.truncate(ENDPOINTS_MAX);
        self.unreached.replace(unreached);
    }

    /// Returns true if the list was received so recently that endpoints need not be asked.
    fn is_fresh(&self, dialer: &Rc<Dialer>) -> bool {
        self.fetched.get().is_some_and(|fetched| fetched.elapsed() < dialer.limits.members_fresh)
    }

    /// Asks the given endpoints for the list. If none of them reports a list, the members stay as they are.
    ///
    /// First, endpoints are asked without the user's token, once for all requests that are waiting. If this
    /// gives a list, no endpoint gets to see the token; an endpoint given by mistake may belong to another
    /// cluster. Only if there is no list are the endpoints that have refused asked again with the token,
    /// except those that are known to belong to another cluster.
    async fn fetch(&self, dialer: &Rc<Dialer>, authorization: Option<&HeaderValue>) {
        let came = Instant::now();
        {
            let _one = self.fetching.lock().await;
            if self.is_fresh(dialer) {
                return;
            }
            // Skip this if endpoints were asked while this request was waiting, whatever they answered.
            if self.round_ended.get().is_none_or(|ended| ended < came) {
                let reports = self.query_given(dialer, None, |_| true).await;
                self.apply_reports(dialer, reports, ListAccess::Public).await;
                self.round_ended.set(Some(Instant::now()));
            }
        }
        let has_list = || self.fetched.get().is_some_and(|fetched| fetched > came);
        let Some(authorization) = authorization.filter(|_| !has_list()) else { return };
        let Ok(_turn) = timeout(TURN_TIMEOUT, self.asking_as_user.lock()).await else { return };
        // Another user's request may have obtained the list while this one was waiting.
        if !has_list() {
            let cluster = self.cluster.get();
            let may_see = |entry: &Entry| entry.has_refused && !entry.is_foreign_to(cluster);
            let reports = self.query_given(dialer, Some(authorization), may_see).await;
            self.apply_reports(dialer, reports, ListAccess::User).await;
        }
    }

    /// Asks the given endpoints for which `is_meant` is true, all at the same time. Returns the lists that
    /// they report, by the endpoint's id.
    async fn query_given(
        &self,
        dialer: &Rc<Dialer>,
        authorization: Option<&HeaderValue>,
        is_meant: impl Fn(&Entry) -> bool,
    ) -> Vec<(u64, MemberList)> {
        let given: Vec<(u64, Rc<Target>)> = {
            let entries = self.entries.borrow();
            let given = entries.iter().filter(|entry| entry.is_given && is_meant(entry));
            given.map(|entry| (entry.id, Rc::clone(&entry.target))).collect()
        };
        let queries: Vec<_> = given
            .into_iter()
            .map(|(id, target)| {
                let (dialer, authorization) = (Rc::clone(dialer), authorization.cloned());
                (id, start(LIST_TIMEOUT, async move { request_list(&dialer, &target, authorization).await }))
            })
            .collect();
        let mut reports = Vec::new();
        for (id, task) in queries {
            let answer = task.outcome().await.unwrap_or(ListOutcome::NoAnswer);
            let mut entries = self.entries.borrow_mut();
            // Store only answers to requests without a token: an answer to one user's token says nothing
            // about other users.
            if let Some(entry) = entries.iter_mut().find(|entry| entry.id == id && authorization.is_none()) {
                entry.has_refused = matches!(answer, ListOutcome::Refused);
            }
            if let ListOutcome::List(list) = answer {
                reports.push((id, list));
            }
        }
        reports
    }

    /// Records which cluster each endpoint has reported, and determines which cluster the console shows.
    /// Removes reports of other clusters from `reports`. `access` says whether the endpoints were asked with
    /// a user's token.
    fn settle_cluster(&self, reports: &mut Vec<(u64, MemberList)>, access: ListAccess) {
        let mut entries = self.entries.borrow_mut();
        let known = self.cluster.get();
        let next = next_cluster(known, &entries, reports, access);
        self.cluster.set(next);
        for entry in entries.iter_mut().filter(|entry| entry.is_given) {
            if let Some((_, list)) = reports.iter().find(|(id, _)| *id == entry.id) {
                entry.reported_cluster = Some(list.cluster);
            }
            let is_ours = entry.reported_cluster.is_some() && entry.reported_cluster == next;
            entry.was_ours = is_ours || (entry.was_ours && next == known);
            if entry.is_foreign_to(next) {
                (entry.is_listed, entry.member) = (false, None);
            }
        }
        reports.retain(|(_, list)| Some(list.cluster) == next);
    }

    /// Updates the list from the reports of endpoints. Reports of other clusters than the one that the
    /// console shows do not change the members.
    async fn apply_reports(
        &self,
        dialer: &Rc<Dialer>,
        mut reports: Vec<(u64, MemberList)>,
        access: ListAccess,
    ) {
        self.settle_cluster(&mut reports, access);
        if !reports.is_empty() {
            self.probe(dialer, &reports).await;
            self.list_members(reports);
        }
    }

    /// Checks the listed URLs of members that have answered at an endpoint with another URL. Such an endpoint
    /// may be a load balancer, behind which another member answers next time. The check is made without a
    /// token, because it is not known yet who answers at the listed URL.
    async fn probe(&self, dialer: &Rc<Dialer>, reports: &[(u64, MemberList)]) {
        let mut wanted: Vec<(u64, Url)> = Vec::new();
        {
            let mut probes = self.probes.borrow_mut();
            probes.retain(|probe| probe.at.elapsed() < PROBE_FRESH);
            let entries = self.entries.borrow();
            let is_secure = all_given_are_secure(&entries);
            for (id, list) in reports {
                let entry = entries.iter().find(|entry| entry.id == *id);
                let member = list.members.iter().find(|member| member.id == list.reporter);
                let Some((entry, member)) = entry.zip(member) else { continue };
                let Some(url) = entry.listed_url(member, is_secure) else { continue };
                let is_known = |(of, at): (u64, &Url)| of == member.id && *at == url;
                if !probes.iter().any(|probe| is_known((probe.member, &probe.url)))
                    && !wanted.iter().any(|(of, at)| is_known((*of, at)))
                {
                    wanted.push((member.id, url));
                }
            }
        }
        let queries: Vec<_> = wanted
            .into_iter()
            .map(|(member, url)| {
                let (dialer, target, cluster) =
                    (Rc::clone(dialer), Target::new(url.clone()), self.cluster.get());
                let check = async move { is_member_at(&dialer, &target, member, cluster).await };
                (member, url, start(PROBE_TIMEOUT, check))
            })
            .collect();
        for (member, url, task) in queries {
            let is_reached = task.outcome().await.unwrap_or(false);
            self.probes.borrow_mut().push(Probe { member, url, is_reached, at: Instant::now() });
        }
    }

    /// Updates the list of members from these reports, which must all be of the cluster that the console
    /// shows.
    fn list_members(&self, reports: Vec<(u64, MemberList)>) {
        self.fetched.set(Some(Instant::now()));
        let (mut members, mut reporters) = (Vec::<Member>::new(), Vec::new());
        for (id, list) in reports {
            reporters.push((id, list.reporter));
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
            // An endpoint that has not reported keeps its state.
            let reporter = reporters.iter().find(|(id, _)| *id == entry.id).map(|(_, reporter)| *reporter);
            if let Some(reporter) = reporter {
                let member = members.iter().find(|member| member.id == reporter);
                let url = member.and_then(|member| entry.listed_url(member, is_secure));
                if url.is_some_and(|url| is_reached(reporter, &url)) {
                    entry.lists_of = Some(reporter);
                } else if entry.lists_of == Some(reporter) {
                    entry.lists_of = None;
                }
            }
            // If the member in `lists_of` has left the cluster, its id no longer says who answers at this
            // endpoint.
            entry.lists_of = entry.lists_of.filter(|id| members.iter().any(|member| member.id == *id));
            if entry.lists_of.is_some() {
                (entry.is_listed, entry.member) = (false, None);
                continue;
            }
            let known = entry.member.as_ref().map(|member| member.id);
            let by_url = || members.iter().find(|member| member.client_urls.contains(&entry.target.url));
            let id = reporter.or(known).or_else(|| by_url().map(|member| member.id));
            entry.member = id.and_then(|id| members.iter().find(|member| member.id == id).cloned());
            // If two endpoints lead to the same member, list only the first.
            entry.is_listed = id.is_none_or(|id| !reached.contains(&id));
            reached.extend(id);
        }
        members.retain(|member| !reached.contains(&member.id));
        self.replace_others(&mut entries, members, is_secure);
    }
}

/// Returns the id of the cluster whose members the console must show after these reports. `known` is the
/// cluster that it shows before them.
///
/// While no cluster is known, the first given endpoint that answers decides. If it refuses to show its list
/// without a token, no cluster is chosen yet. Otherwise an endpoint that was given by mistake and shows
/// another cluster's list to everybody would be chosen. If endpoints were asked with a user's token, the
/// first one that has accepted it decides.
///
/// Later, the console changes from the known cluster to another one only under two conditions: no endpoint
/// reports the known cluster any more, and an endpoint that has reported it before has reported another
/// cluster in its last list. While such an endpoint refuses to show its list, it still counts for the known
/// cluster, unless its last list was of another cluster.
fn next_cluster(
    known: Option<u64>,
    entries: &[Entry],
    reports: &[(u64, MemberList)],
    access: ListAccess,
) -> Option<u64> {
    if reports.iter().any(|(_, list)| Some(list.cluster) == known) {
        return known;
    }
    let cluster_of =
        |entry: &Entry| reports.iter().find(|(id, _)| *id == entry.id).map(|(_, list)| list.cluster);
    let mut decide = entries.iter().filter(|entry| entry.is_given && (known.is_none() || entry.was_ours));
    let may_be_ours = |entry: &Entry| entry.has_refused && !entry.is_foreign_to(known);
    // An endpoint that refuses its list now is not asked with a token if its last list was of another
    // cluster. So use that last list.
    let left_for =
        |entry: &Entry| entry.reported_cluster.filter(|cluster| entry.has_refused && Some(*cluster) != known);
    let next = match known {
        None if access == ListAccess::User => decide.find_map(cluster_of),
        None => decide.find(|entry| entry.has_refused || cluster_of(entry).is_some()).and_then(cluster_of),
        Some(_) if decide.clone().any(|entry| may_be_ours(entry) && cluster_of(entry).is_none()) => None,
        Some(_) => decide.find_map(|entry| cluster_of(entry).or_else(|| left_for(entry))),
    };
    next.or(known)
}

/// Spawns a task. It is aborted when the returned handle is dropped, or after the time `limit`.
fn start<T: 'static>(limit: Duration, work: impl Future<Output = T> + 'static) -> Task<T> {
    Task(spawn_local(async move { timeout(limit, work).await.ok() }))
}

/// Returns true if all given URLs use TLS. Then URLs without TLS must not be used.
fn all_given_are_secure(entries: &[Entry]) -> bool {
    entries.iter().filter(|entry| entry.is_given).all(|entry| entry.target.is_secure())
}

/// A task that is aborted when its handle is dropped.
struct Task<T>(tokio::task::JoinHandle<Option<T>>);

impl<T> Task<T> {
    /// Waits until the task has ended, and returns its result; `None` if it was aborted because of its time
    /// limit.
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
    /// Returns true if the endpoint's last list was of a cluster other than this one.
    fn is_foreign_to(&self, cluster: Option<u64>) -> bool {
        self.reported_cluster.is_some() && self.reported_cluster != cluster
    }

    /// Returns the listed URL at which this member, which has answered at this endpoint, should be reached
    /// instead of the endpoint's own URL; `None` if no listed URL is better. No other URL is better if the
    /// endpoint's own URL is listed too. A listed loopback URL is better only if the endpoint's URL is also a
    /// loopback URL. If the endpoint's URL is a loopback URL and the listed one is not, the listed one is
    /// better only with TLS: the endpoint may be a tunnel, and at this end of the tunnel the listed URL may
    /// lead to another machine.
    fn listed_url(&self, member: &Member, is_secure: bool) -> Option<Url> {
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
        // A member that has just started knows its client URLs a little later. Until then, the URL of its
        // listener is shown.
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

/// Returns the JSON of a member to which no requests can be sent, with the reason. Its id is null, because
/// there is no endpoint.
fn unreached(member: &Member, why: ExclusionReason) -> Value {
    json!({
        "id": Value::Null,
        "url": member.client_urls.first().map_or("", String::as_str),
        "name": member.name,
        "memberId": hex(member.id),
        "learner": member.is_learner,
        "notAsked": why.word(),
    })
}

/// Returns the id of a member as the console's JSON contains it.
fn hex(id: u64) -> String {
    format!("{id:016x}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn member(id: u64, urls: &[&str]) -> Member {
        let client_urls = urls.iter().map(|url| (*url).to_owned()).collect();
        Member { id, name: format!("m{id}"), client_urls, is_learner: false }
    }

    #[test]
    fn a_tunnel_is_not_left_for_a_plain_url() {
        let listed = |given: &str, urls: &[&str]| {
            let given = Target::new(Url::parse(given).unwrap());
            let entry = Endpoints::new(Source::Endpoints(Vec::new())).entry(given, true, None);
            entry.listed_url(&member(1, urls), false).map(|url| url.as_str().to_owned())
        };
        assert_eq!(listed("http://127.0.0.1:1", &["http://10.0.0.5:2379"]), None);
        assert_eq!(listed("unix:///run/m1", &["http://10.0.0.5:2379"]), None);
        assert_eq!(
            listed("http://127.0.0.1:1", &["https://10.0.0.5:2379"]).as_deref(),
            Some("https://10.0.0.5:2379")
        );
        assert_eq!(
            listed("http://127.0.0.1:1", &["http://127.0.0.1:2379"]).as_deref(),
            Some("http://127.0.0.1:2379")
        );
        assert_eq!(listed("http://lb:1", &["http://10.0.0.5:2379"]).as_deref(), Some("http://10.0.0.5:2379"));
        assert_eq!(listed("http://lb:1", &["http://127.0.0.1:2379"]), None);
    }

    #[test]
    fn ids_stay_with_their_urls() {
        let list: Arc<std::sync::Mutex<Vec<Member>>> = Arc::default();
        let reported = Arc::clone(&list);
        let set = |members: &[Member]| *list.lock().unwrap() = members.to_vec();
        set(&[member(2, &["http://h:2"]), member(1, &["http://h:1"]), member(3, &[])]);
        let endpoints = Endpoints::new(Source::Member {
            id: 1,
            listens_at: Url::parse("http://127.0.0.1:9").unwrap(),
            list: Arc::new(move || reported.lock().unwrap().clone()),
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
        let reported = Arc::clone(&list);
        let endpoints = Endpoints::new(Source::Member {
            id: 1,
            listens_at: Url::parse("http://127.0.0.1:9").unwrap(),
            list: Arc::new(move || reported.lock().unwrap().clone()),
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
        // The second endpoint is not listed at the moment, for example because it leads to the same member as
        // the first. It must stay, because it is asked again next time.
        entries[1].is_listed = false;
        for number in 0..1_000 {
            let others = vec![member(2, &[&format!("http://h:{number}")])];
            endpoints.replace_others(&mut entries, others, false);
        }
        assert!(entries.len() <= ENDPOINTS_MAX);
        assert_eq!(entries.iter().filter(|entry| entry.is_given).count(), 2);
    }
}
