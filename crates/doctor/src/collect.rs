//! Examines a cluster: requests the status, metrics and pages of each member, and returns the answers as
//! evidence for the rules.

use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, MemberListRequest, MemberListResponse, StatusRequest,
    StatusResponse,
};
use client::{Address, Channel, Client, Endpoint, Security, Transport, shown};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::connection::Connection;
use crate::evidence::Unseen;
use crate::evidence::{
    Alarm, AlarmKind, Certificate, Clock, Evidence, Member, Metrics, RoundTrips, Status, Versions,
};
use crate::exposition::Exposition;
use crate::http1::GetError;
use crate::http1::{Answer, get, unix_now};
use crate::page::Page;
use crate::sampling;

/// Parameters of an examination of a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Settings for connections to the members.
    pub connection: Connection,
    /// URL of the metrics of each endpoint, in the order of the endpoints. If empty, the endpoints themselves
    /// serve the metrics.
    pub metrics_endpoints: Vec<String>,
    /// True if all members of the cluster are examined, even those that no endpoint names.
    pub whole_cluster: bool,
    /// Time during which rates are measured.
    pub window: Duration,
    /// Number of keys to sample; 0 for none.
    pub sample_keys: usize,
}

/// Number of status requests that each member is sent, spread evenly over the time window. Their round-trip
/// times are measured.
const ROUND_TRIPS: u32 = 10;
/// Largest number of members that are examined. The report says so if the cluster has more.
const MEMBERS_MAX: usize = 100;
/// Seconds by which a server's `Date` header may lag behind the server's clock, in addition to the fraction
/// of a second that the header's format drops: some servers update the header only once a second.
const DATE_LATE_SECONDS: f64 = 1.0;

/// The members of a cluster.
struct Targets {
    /// Members to examine.
    seen: Vec<Target>,
    /// Members that cannot be examined, because the member list has no URL for them.
    unseen: Vec<Member>,
    /// `Ok` if `seen` and `unseen` together contain all members to be examined. Otherwise the reason why some
    /// may be missing.
    complete: Result<(), Unseen>,
}

/// A member to examine.
#[derive(Clone, Debug)]
struct Target {
    endpoint: String,
    metrics_endpoint: String,
    name: String,
    id: u64,
}

impl Plan {
    /// Examines the cluster.
    ///
    /// # Errors
    /// Returns the reason why nothing can be examined.
    pub async fn collect(&self) -> Result<Evidence, Unseen> {
        let client = Client::new(self.connection.settings.clone()).map_err(Unseen::because)?;
        let client = client.within(self.connection.within);
        let Targets { mut seen, unseen, mut complete } = self.targets(&client).await;
        if seen.len() > MEMBERS_MAX {
            let all = seen.len();
            complete = Err(format!("there are {all} members, of which {MEMBERS_MAX} are examined").into());
            seen.truncate(MEMBERS_MAX);
        }
        let looking: Vec<JoinHandle<Member>> = seen
            .into_iter()
            .map(|target| tokio::spawn(look(self.clone(), client.at(&target.endpoint), target)))
            .collect();
        let mut members = Vec::new();
        for look in looking {
            members.push(look.await.map_err(Unseen::because)?);
        }
        members.extend(unseen);
        let reachable: Vec<String> = members
            .iter()
            .filter(|member| member.status.is_ok())
            .map(|member| member.endpoint.clone())
            .collect();
        let nobody = "no member answers";
        let (mut alarms, mut sample) = (Err(nobody.into()), Err(nobody.into()));
        if !reachable.is_empty() {
            client.set_endpoints(reachable);
            alarms = list_alarms(&client).await;
            sample = self.sample(&client, &members).await;
        }
        Ok(Evidence { taken_unix: unix_now(), members, complete, alarms, sample })
    }

    async fn sample(&self, client: &Client, members: &[Member]) -> Result<crate::evidence::Sample, Unseen> {
        if self.sample_keys == 0 {
            return Err(Unseen::left_out("switched off by --sample=0"));
        }
        let metrics = members.iter().filter_map(|member| member.metrics.as_ref().ok());
        let keys =
            metrics.filter_map(|metrics| metrics.now("etcd_debugging_mvcc_keys_total")).fold(0.0, f64::max);
        if keys > sampling::KEYS_MAX {
            let keys = crate::show::count(keys);
            let why = format!("there are {keys} keys, too many to read even one page of them cheaply");
            return Err(Unseen::left_out(why));
        }
        sampling::sample(client, self.sample_keys).await
    }

    /// Returns the members to examine: those at the given endpoints, and with [`Plan::whole_cluster`] also
    /// the other members of the cluster's member list.
    async fn targets(&self, client: &Client) -> Targets {
        let endpoints = &self.connection.settings.endpoints;
        let mut asked = Vec::new();
        for endpoint in endpoints {
            let at = client.at(endpoint);
            let (endpoint, transport) = (Endpoint::new(&**endpoint), self.connection.transport.clone());
            asked.push(tokio::spawn(async move {
                // Open a connection of our own first and give up if that fails: the client would retry until
                // the request times out.
                Channel::open(&endpoint, &transport).await.ok()?;
                status_of(&at).await.ok().map(|answer| answer.1)
            }));
        }
        let mut targets = Vec::new();
        for (at, (endpoint, id)) in endpoints.iter().zip(asked).enumerate() {
            let id = id.await.ok().flatten().unwrap_or(0);
            let metrics_endpoint = self.metrics_endpoints.get(at).unwrap_or(endpoint).clone();
            targets.push(Target { endpoint: endpoint.clone(), metrics_endpoint, name: String::new(), id });
        }
        // Two endpoints with the same member id are two addresses of one member, so examine only the first.
        let mut seen: Vec<u64> = Vec::new();
        targets.retain(|target| {
            let is_new = target.id == 0 || !seen.contains(&target.id);
            seen.push(target.id);
            is_new
        });
        let mut unseen = Vec::new();
        // Report an unreadable or incomplete member list only if the whole cluster is to be examined.
        // Otherwise the list only provides names for the members at the given endpoints.
        let incomplete = |why: String| match self.whole_cluster {
            true => Err(Unseen::from(why)),
            false => Ok(()),
        };
        if targets.iter().all(|target| target.id == 0) {
            let complete = incomplete(
                "no endpoint identifies its member, so no member was asked for the member list".to_owned(),
            );
            return Targets { seen: targets, unseen, complete };
        }
        let request = MemberListRequest { linearizable: false };
        let list: Result<MemberListResponse, _> = client.call(Rpc::ClusterMemberList, &request).await;
        let (list, complete) = match list {
            Ok(list) => (list.members, Ok(())),
            Err(status) => {
                let why = format!("the member list could not be read: {}", shown(&status));
                (Vec::new(), incomplete(why))
            }
        };
        for listed in list {
            let is_at =
                |target: &Target| listed.client_urls.iter().any(|url| same_place(url, &target.endpoint));
            let by_id = targets.iter().position(|target| target.id == listed.id);
            let found = by_id.or_else(|| targets.iter().position(|target| target.id == 0 && is_at(target)));
            if let Some(target) = found.and_then(|at| targets.get_mut(at)) {
                target.id = listed.id;
                target.name = listed.name;
            } else if self.whole_cluster {
                if listed.is_witness && listed.client_urls.is_empty() {
                    // A witness lists no client URLs, because it answers nothing about keys.
                    continue;
                }
                let Some(url) = first_that_answers(client, &listed.client_urls).await else {
                    let why = "it has not started yet: the member list has no client URL for it";
                    unseen.push(Member::unseen("", &listed.name, listed.id, why));
                    continue;
                };
                targets.push(Target {
                    endpoint: url.clone(),
                    metrics_endpoint: url,
                    name: listed.name,
                    id: listed.id,
                });
            }
        }
        Targets { seen: targets, unseen, complete }
    }
}

fn same_place(url: &str, endpoint: &str) -> bool {
    let place = |text: &str| Endpoint::new(text).address;
    place(url) == place(endpoint)
}

/// Returns the first of a member's URLs at which a server answers, or the first URL if none does.
async fn first_that_answers(client: &Client, urls: &[String]) -> Option<String> {
    let quick = client.within(Duration::from_secs(1));
    if urls.len() > 1 {
        for url in urls {
            if status_of(&quick.at(url)).await.is_ok() {
                return Some(url.clone());
            }
        }
    }
    urls.first().cloned()
}

/// Returns a member's status, and its id.
async fn status_of(client: &Client) -> Result<(Status, u64), Unseen> {
    let answer: StatusResponse = client
        .call(Rpc::MaintenanceStatus, &StatusRequest::default())
        .await
        .map_err(|status| shown(&status))?;
    let header = answer.header.unwrap_or_default();
    let bytes = |value: i64| value.max(0) as f64;
    let status = Status {
        cluster_id: header.cluster_id,
        version: answer.version,
        db_bytes: bytes(answer.db_size),
        db_bytes_in_use: bytes(answer.db_size_in_use),
        quota_bytes: bytes(answer.db_size_quota),
        leader: answer.leader,
        term: answer.raft_term,
        index: answer.raft_index,
        applied: answer.raft_applied_index,
        at_unix: unix_now(),
        earlier: None,
        is_learner: answer.is_learner,
        witness_counts: answer.witness_counts,
        errors: answer.errors,
        downgrade_target: answer
            .downgrade_info
            .filter(|downgrade| downgrade.enabled)
            .map(|downgrade| downgrade.target_version),
    };
    Ok((status, header.member_id))
}

pub(crate) async fn list_alarms(client: &Client) -> Result<Vec<Alarm>, Unseen> {
    let answer: AlarmResponse = client
        .call(Rpc::MaintenanceAlarm, &AlarmRequest::default())
        .await
        .map_err(|status| shown(&status))?;
    let kind = |alarm: i32| match AlarmType::try_from(alarm) {
        Ok(AlarmType::Nospace) => AlarmKind::NoSpace,
        Ok(AlarmType::Corrupt) => AlarmKind::Corrupt,
        Ok(AlarmType::None) | Err(_) => AlarmKind::Other(alarm),
    };
    let alarms = answer.alarms.into_iter();
    Ok(alarms.map(|alarm| Alarm { member_id: alarm.member_id, kind: kind(alarm.alarm) }).collect())
}

/// Collects all evidence about one member. This takes as long as the time window for rates.
async fn look(plan: Plan, client: Client, target: Target) -> Member {
    let mut member = Member::unseen(&target.endpoint, &target.name, target.id, "not reached");
    let endpoint = Endpoint::new(&*target.endpoint);
    let pages = Endpoint::new(&*target.metrics_endpoint);
    let (transport, within) = (&plan.connection.transport, plan.connection.within);
    // This connection only serves to find out why connecting fails, and which certificate the server has. The
    // requests below use the client, which opens its own connections.
    let opened = Channel::open(&endpoint, transport).await;
    member.certificate = certificate(&plan.connection, &endpoint, opened.as_ref().ok()).await;
    if let Err(error) = &opened {
        let why = error.to_string();
        let certificate = member.certificate;
        member = Member::unseen(&target.endpoint, &target.name, target.id, &why);
        member.certificate = certificate;
        return member;
    }
    drop(opened);
    member.reached = Ok(());

    let page = |path: &'static str| get(&pages, transport, path, within);
    let mut clocks: Vec<Clock> = Vec::new();
    let begun = Instant::now();
    let first = page("/metrics").await;
    clocks.extend(first.as_ref().ok().and_then(by_date));
    let mut round_trips = RoundTrips::default();
    let mut status = Err(Unseen::from("not asked"));
    let mut earlier = None;
    for turn in 1..=ROUND_TRIPS {
        if let Some(seconds) = connect_time(&endpoint, within).await {
            round_trips.connect.push(seconds);
        }
        let asked = Instant::now();
        status = status_of(&client).await;
        if let Ok((status, _)) = &mut status {
            earlier = earlier.or(Some((status.index, status.at_unix)));
            status.earlier = earlier;
        }
        match &status {
            Ok(_) => round_trips.call.push(asked.elapsed().as_secs_f64()),
            // Every failed request may take as long as its timeout. Tolerate a failure only of the first
            // request, and stop measuring at a later one.
            Err(_) if turn > 1 => break,
            Err(_) => {}
        }
        sleep_until(begun + plan.window * turn / ROUND_TRIPS).await;
    }
    sleep_until(begun + plan.window).await;
    let second = page("/metrics").await;
    clocks.extend(second.as_ref().ok().and_then(by_date));
    let own = page("/debug/mainstay").await;
    let versions = page("/version").await;
    clocks.extend(versions.as_ref().ok().and_then(by_date));

    member.metrics = metrics(&first, &second);
    member.page = match &own {
        Ok(answer) => Page::read(&answer.body),
        Err(GetError::Status(404)) => Err(Unseen::left_out("this server does not have it")),
        Err(error) => Err(Unseen::because(error)),
    };
    if let (Ok(answer), Ok(page)) = (&own, &member.page) {
        clocks.extend(page.clock_unix_ns.map(|nanos| {
            let there = nanos as f64 / 1e9;
            Clock { low: there - answer.answered_unix, high: there - answer.asked_unix }
        }));
    }
    member.versions = versions.map_err(Unseen::from).and_then(|answer| read_versions(&answer.body));
    member.clock = meet(&clocks).ok_or_else(|| Unseen::left_out("its pages have no date"));
    member.round_trips = match round_trips.call.is_empty() {
        true => Err("no call was answered".into()),
        false => Ok(round_trips),
    };
    member.status = match status {
        Ok((status, id)) => {
            member.id = id;
            Ok(status)
        }
        Err(why) => {
            let dialled = client.dial_errors();
            Err(dialled.first().map_or(why, |(_, error)| Unseen::because(error)))
        }
    };
    if let (Err(why), Err(_)) = (&member.status, &member.metrics) {
        member.reached = Err(why.clone());
    }
    member
}

/// Returns the certificate that the server presents on `channel`. If there is no `channel`, because
/// connecting failed, opens another connection that accepts any certificate, so that an untrusted certificate
/// is reported too.
async fn certificate(
    connection: &Connection,
    endpoint: &Endpoint,
    channel: Option<&Channel>,
) -> Result<Option<Certificate>, Unseen> {
    let speaks_tls = endpoint.security == Security::Tls
        || endpoint.security == Security::AsConfigured && connection.is_secure;
    if !speaks_tls {
        return Ok(None);
    }
    let end_of = |channel: &Channel| channel.peer().and_then(|peer| peer.not_after());
    let end = match channel {
        Some(channel) => end_of(channel),
        None => {
            let transport: Transport = connection.unverified().ok_or("no TLS")?;
            let channel = Channel::open(endpoint, &transport).await.map_err(Unseen::because)?;
            end_of(&channel)
        }
    };
    let since = end.and_then(|end| end.duration_since(std::time::UNIX_EPOCH).ok());
    let since = since.ok_or("it shows no readable certificate")?;
    Ok(Some(Certificate { not_after_unix: since.as_secs_f64() }))
}

async fn connect_time(endpoint: &Endpoint, within: Duration) -> Option<f64> {
    let Address::Tcp(address) = &endpoint.address else { return None };
    let to = tokio::net::lookup_host(address).await.ok()?.next()?;
    let begun = Instant::now();
    timeout(within, TcpStream::connect(to)).await.ok()?.ok()?;
    Some(begun.elapsed().as_secs_f64())
}

fn metrics(first: &Result<Answer, GetError>, second: &Result<Answer, GetError>) -> Result<Metrics, Unseen> {
    let (first, second) =
        (first.as_ref().map_err(Unseen::because)?, second.as_ref().map_err(Unseen::because)?);
    let read = |answer: &Answer| Exposition::read(&String::from_utf8_lossy(&answer.body));
    let metrics = Metrics {
        before: read(first),
        after: read(second),
        seconds: (second.answered_unix - first.answered_unix).max(1e-3),
    };
    match metrics.after.has("etcd_server_has_leader") || metrics.after.has("grpc_server_started_total") {
        true => Ok(metrics),
        false => Err("the page /metrics is not etcd's".into()),
    }
}

/// Returns bounds of the offset of the server's clock, computed from the `Date` header of an answer and the
/// times at which the request was sent and the answer arrived.
fn by_date(answer: &Answer) -> Option<Clock> {
    let date = answer.date_unix? as f64;
    Some(Clock { low: date - answer.answered_unix, high: date + 1.0 + DATE_LATE_SECONDS - answer.asked_unix })
}

/// Returns the range of clock offsets that all measurements allow. If no offset satisfies all of them,
/// because a clock was set in between, returns the last measurement.
fn meet(clocks: &[Clock]) -> Option<Clock> {
    let last = *clocks.last()?;
    let low = clocks.iter().map(|clock| clock.low).fold(f64::MIN, f64::max);
    let high = clocks.iter().map(|clock| clock.high).fold(f64::MAX, f64::min);
    Some(if low <= high { Clock { low, high } } else { last })
}

fn read_versions(body: &[u8]) -> Result<Versions, Unseen> {
    let page: serde_json::Value =
        serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
    let text = |name: &str| {
        page.get(name)
            .and_then(serde_json::Value::as_str)
            .map(|text| text.chars().take(40).collect::<String>())
    };
    let server = text("etcdserver").ok_or("it has no etcdserver")?;
    Ok(Versions { server, cluster: text("etcdcluster").unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_looks_at_a_clock_narrow_it() {
        let clock = |low: f64, high: f64| Clock { low, high };
        assert_eq!(meet(&[]), None);
        assert_eq!(meet(&[clock(-1.0, 1.0), clock(0.5, 2.0)]), Some(clock(0.5, 1.0)));
        assert_eq!(meet(&[clock(-1.0, 0.0), clock(5.0, 7.0)]), Some(clock(5.0, 7.0)));
    }

    #[test]
    fn a_date_says_the_second() {
        let answer = Answer {
            status: 200,
            date_unix: Some(100),
            body: Vec::new(),
            asked_unix: 100.2,
            answered_unix: 100.3,
        };
        let clock = by_date(&answer).unwrap();
        assert!(clock.low < 0.0 && clock.high > 0.0, "{clock:?}");
    }

    #[test]
    fn versions_are_read() {
        let read = read_versions(br#"{"etcdserver":"3.4.23","etcdcluster":"3.4.0"}"#);
        assert_eq!(read, Ok(Versions { server: "3.4.23".to_owned(), cluster: "3.4.0".to_owned() }));
        assert!(read_versions(b"<html>").is_err() && read_versions(b"{}").is_err());
    }
}
