//! Asks each endpoint of a gRPC proxy with `--zone` regularly for its status, which shows its zone, its round
//! trip and if it serves, and tells the proxy's clients the order of preference.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{StatusRequest, StatusResponse, WatchProgressRequest, WatchRequest, WatchResponse};
use api::health::health_check_response::ServingStatus;
use api::health::{HealthCheckRequest, HealthCheckResponse};
use api::{Code, Rpc, Status, error};
use client::{Address, Client, Endpoint, Preference};
use prost::Message;
use stdx::zones::{self, ZoneNetworks};
use telemetry::logging::{Logger, Value};
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::background::{Task, random_share};
use crate::proximity::{CLASS, Observation, Proximity, Standing, ranks};

/// Shortest pause between two rounds of questions, and the time that is added to it at random, so that the
/// proxies of a cluster do not ask and change their members at the same time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1500), Duration::from_millis(1000));
/// Pause before the next round if an endpoint has contradicted what is known about it, so that a member that hangs
/// is left soon: a lease of a few seconds is renewed there.
const DOUBT_PAUSE: Duration = Duration::from_millis(300);
/// Interval at which an endpoint that has refused its status is asked for it again: a member counts refusals and
/// may write each into its audit log.
const STATUS_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Time that a member gets to end a stream of watches that it does not serve.
const WATCH_LIMIT: Duration = Duration::from_millis(200);
/// Interval at which the addresses of an endpoint's name are looked up again.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(60);
/// Time within which an endpoint has to answer, and within which the addresses of its name must be found.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);

/// Zone of the proxy, and networks of the zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneOptions {
    /// Zone of the proxy; empty to use all endpoints in turn.
    pub zone: String,
    /// Networks of the endpoints of each zone, for endpoints that do not state their zone.
    pub networks: ZoneNetworks,
}

impl ZoneOptions {
    /// Returns the options that `--zone` and `--zone-networks` give.
    ///
    /// # Errors
    /// Returns an error if a name or a network is not valid, or if there are networks without a zone.
    pub(crate) fn read(zone: &str, networks: &[String]) -> Result<ZoneOptions, String> {
        zones::check_name(zone).map_err(|error| format!("invalid zone: {error}"))?;
        let networks =
            ZoneNetworks::parse(networks).map_err(|error| format!("invalid zone-networks: {error}"))?;
        if zone.is_empty() && !networks.is_empty() {
            return Err("zone-networks needs zone".to_owned());
        }
        Ok(ZoneOptions { zone: zone.to_owned(), networks })
    }
}

/// Zone, rank and round trip of the endpoints, for the metrics page and for the log.
#[derive(Debug, Default)]
pub(crate) struct Standings {
    pub(crate) preference: Preference,
    last: Mutex<Vec<Standing>>,
    /// Number of times that the endpoints of the first rank have changed.
    pub(crate) changes: AtomicU64,
}

impl Standings {
    /// Returns the endpoints as of the last round of questions.
    pub(crate) fn last(&self) -> Vec<Standing> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the standings. Returns true if other endpoints than before have the first rank, or if they serve or
    /// are in the zone and were not before, or the reverse.
    fn set(&self, standings: Vec<Standing>) -> bool {
        self.preference.set(&ranks(&standings));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let class = |standings: &[Standing]| standings.iter().map(|standing| standing.rank / CLASS).min();
        let has_changed = class(&last) != class(&standings) || first(&last).ne(first(&standings));
        *last = standings;
        has_changed
    }
}

/// Returns the endpoints that are used now.
fn first(standings: &[Standing]) -> impl Iterator<Item = &str> {
    let best = standings.iter().map(|standing| standing.rank).min();
    standings
        .iter()
        .filter(move |standing| Some(standing.rank) == best)
        .map(|standing| standing.endpoint.as_str())
}

/// Asks the endpoints in rounds.
pub(crate) struct Probes {
    pub(crate) options: ZoneOptions,
    pub(crate) standings: Arc<Standings>,
    pub(crate) logger: Logger,
    /// Interval at which the endpoints are updated from the member list; zero for no updates.
    pub(crate) auto_sync_interval: Duration,
    /// Dropped after the first round.
    pub(crate) first_round: mpsc::Sender<()>,
}

impl Probes {
    /// Returns the task that asks.
    pub(crate) fn task(self) -> Task {
        Box::new(|members| Box::pin(self.run(members.client)))
    }

    async fn run(self, client: Client) {
        let Probes { options, standings, logger, auto_sync_interval, first_round } = self;
        let mut first_round = Some(first_round);
        let mut proximity = Proximity::new(options.zone.clone());
        let mut synced = Instant::now();
        // Zones of endpoints by their addresses, and when these were looked up.
        let mut by_address: HashMap<String, (Instant, String)> = HashMap::new();
        // When endpoints have refused their status.
        let mut refused: HashMap<String, Instant> = HashMap::new();
        loop {
            let endpoints = client.endpoints();
            proximity.keep(&endpoints);
            by_address.retain(|endpoint, _| endpoints.contains(endpoint));
            refused
                .retain(|endpoint, since| endpoints.contains(endpoint) && since.elapsed() < STATUS_INTERVAL);
            let mut asked = JoinSet::new();
            for endpoint in endpoints {
                // A known zone stays until another one is found, so that a failure of DNS changes nothing.
                let known = by_address.get(&endpoint);
                let is_due = known.is_none_or(|(since, _)| since.elapsed() >= LOOK_UP_INTERVAL);
                let is_due = is_due && !options.networks.is_empty();
                let networks = is_due.then(|| options.networks.clone());
                let client = client.clone();
                let is_refused = refused.contains_key(&endpoint);
                asked.spawn(async move {
                    let zone = match networks {
                        Some(networks) => zone_by_address(&endpoint, &networks).await,
                        None => None,
                    };
                    let answer = if is_refused { None } else { ask(&client, &endpoint).await };
                    let is_refused = answer.is_none();
                    let observed = match answer {
                        Some(observed) => observed,
                        None => ask_without_rights(&client, &endpoint).await,
                    };
                    (endpoint, observed, zone, is_refused)
                });
            }
            while let Some(answer) = asked.join_next().await {
                let Ok((endpoint, mut observed, zone, is_refused)) = answer else { continue };
                if is_refused {
                    refused.entry(endpoint.clone()).or_insert_with(Instant::now);
                }
                if let Some(zone) = zone {
                    by_address.insert(endpoint.clone(), (Instant::now(), zone));
                }
                if let Observation::Serves { zone, .. } = &mut observed
                    && zone.as_ref().is_none_or(String::is_empty)
                    && let Some((_, known)) = by_address.get(&endpoint)
                {
                    *zone = Some(known.clone());
                }
                proximity.observe(&endpoint, observed);
            }
            let found = proximity.standings();
            if standings.set(found.clone()) {
                standings.changes.fetch_add(1, Relaxed);
                tell(&logger, &options.zone, &found);
            }
            drop(first_round.take());
            let pause = match proximity.has_doubts() {
                true => DOUBT_PAUSE,
                false => PAUSE.0 + PAUSE.1.mul_f64(random_share()),
            };
            sleep(pause).await;
            if !auto_sync_interval.is_zero() && synced.elapsed() >= auto_sync_interval {
                // The clients that serve calls log failures of the same request.
                let _ = client.within(LIMIT).sync().await;
                synced = Instant::now();
            }
        }
    }
}

/// Asks one endpoint for its status. Returns `None` if it refuses, because the status is for users and the proxy is
/// none.
async fn ask(client: &Client, endpoint: &str) -> Option<Observation> {
    let client = client.at(endpoint).with_require_leader();
    match timeout(LIMIT, once::<_, StatusResponse>(&client, Rpc::MaintenanceStatus, &StatusRequest {})).await
    {
        Ok(Ok((round_trip, status))) if serves(&status) => {
            // The endpoint may be no member: what it says gets into labels and logs.
            let zone = if zones::check_name(&status.zone).is_ok() { status.zone } else { String::new() };
            Some(Observation::Serves { round_trip, zone: Some(zone) })
        }
        Ok(Err(status)) if is_about_users(&status) => None,
        _ => Some(Observation::Fails),
    }
}

/// Asks one endpoint what it tells everybody: if it knows a leader, and if it serves watches. A member that the
/// CORRUPT alarm names does not.
async fn ask_without_rights(client: &Client, endpoint: &str) -> Observation {
    let client = client.at(endpoint).with_require_leader();
    let asking = async {
        let request = HealthCheckRequest::default();
        let (round_trip, health) =
            once::<_, HealthCheckResponse>(&client, Rpc::HealthCheck, &request).await?;
        if health.status != ServingStatus::Serving as i32 {
            return Ok(Observation::Fails);
        }
        let mut watches = client.open::<WatchRequest, WatchResponse>(Rpc::Watch).await?;
        let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
        watches.send(&WatchRequest { request_union: Some(progress) }).await?;
        // Not all versions answer without a watch. Silence means that the stream stands.
        match timeout(WATCH_LIMIT, watches.next()).await {
            Ok(Err(status)) => Err(status),
            _ => Ok::<_, Status>(Observation::Serves { round_trip, zone: None }),
        }
    };
    timeout(LIMIT, asking).await.unwrap_or(Ok(Observation::Fails)).unwrap_or(Observation::Fails)
}

/// Makes one attempt of a unary call, and returns the time that it took. The client repeats unary calls that fail,
/// so this one is opened as a stream.
async fn once<Req: Message, Resp: Message + Default>(
    client: &Client,
    rpc: Rpc,
    request: &Req,
) -> Result<(Duration, Resp), Status> {
    let mut stream = client.open::<Req, Resp>(rpc).await?;
    let began = Instant::now();
    stream.send(request).await?;
    stream.finish();
    let answer = stream.next().await?;
    let answer = answer.ok_or(Status::new(Code::Internal, "the answer has no message"))?;
    Ok((began.elapsed(), answer))
}

/// Returns true if a member with this status serves all calls: it knows a leader, is not a learner, and is not
/// the one that the CORRUPT alarm names.
fn serves(status: &StatusResponse) -> bool {
    let own = status.header.as_ref().map_or(0, |header| header.member_id);
    let corrupt = format!("memberID:{own} alarm:CORRUPT");
    // etcd's text ends with a space.
    let is_corrupt = status.errors.iter().any(|error| error.trim_end() == corrupt);
    status.leader != 0 && (!status.is_learner || status.is_observer) && !is_corrupt
}

fn is_about_users(status: &Status) -> bool {
    let refusals = [error::USER_EMPTY, error::PERMISSION_DENIED, error::INVALID_AUTH_TOKEN];
    refusals.iter().any(|known| status.message == known.message)
}

/// Returns the zone of the network that has the endpoint's address, empty if none has it; `None` if no address is
/// found for its name now.
async fn zone_by_address(endpoint: &str, networks: &ZoneNetworks) -> Option<String> {
    let Address::Tcp(address) = Endpoint::new(endpoint.to_owned()).address else { return None };
    let found: Vec<SocketAddr> = timeout(LIMIT, lookup_host(address)).await.ok()?.ok()?.collect();
    let zone = found.iter().find_map(|address| networks.zone_of(address.ip()));
    Some(zone.unwrap_or_default().to_owned())
}

/// Logs which endpoints are used from now on.
fn tell(logger: &Logger, zone: &str, standings: &[Standing]) {
    let used: Vec<&str> = first(standings).collect();
    let of_used = || standings.iter().filter(|standing| used.contains(&standing.endpoint.as_str()));
    let zones: Vec<&str> = of_used().map(|standing| standing.zone.as_str()).collect();
    let fields =
        [("zone", Value::Str(zone)), ("endpoints", Value::List(&used)), ("in-zones", Value::List(&zones))];
    if of_used().any(Standing::serves_zone) {
        logger.info("calls go to endpoints of the zone", &fields);
    } else if of_used().any(Standing::serves) {
        logger.warn("no endpoint of the zone serves; calls go to others", &fields);
    } else {
        logger.warn("no endpoint serves", &fields);
    }
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::ResponseHeader;

    use super::*;

    #[test]
    fn only_a_member_that_serves_all_calls_is_preferred() {
        let header = Some(ResponseHeader { member_id: 7, ..ResponseHeader::default() });
        let good = StatusResponse { header, leader: 1, ..StatusResponse::default() };
        let with_error = |error: &str| StatusResponse { errors: vec![error.to_owned()], ..good.clone() };
        for (status, expected) in [
            (good.clone(), true),
            (StatusResponse { leader: 0, ..good.clone() }, false),
            (StatusResponse { is_learner: true, ..good.clone() }, false),
            (StatusResponse { is_learner: true, is_observer: true, ..good.clone() }, true),
            (with_error("memberID:7 alarm:CORRUPT"), false),
            (with_error("memberID:7 alarm:CORRUPT "), false),
            (with_error("memberID:8 alarm:CORRUPT"), true),
            (with_error("memberID:7 alarm:NOSPACE"), true),
        ] {
            assert_eq!(serves(&status), expected, "{status:?}");
        }
    }

    #[test]
    fn a_change_is_that_of_the_endpoints_used_or_of_how_well_they_serve() {
        let standings = Standings::default();
        let set = |ranks: &[(&str, u32)]| {
            let of = |(endpoint, rank): &(&str, u32)| Standing {
                endpoint: (*endpoint).to_owned(),
                zone: String::new(),
                round_trip: None,
                rank: *rank,
            };
            standings.set(ranks.iter().map(of).collect())
        };
        assert!(set(&[("a", 0), ("b", 2)]));
        assert!(!set(&[("a", 0), ("b", 4)]));
        assert!(!set(&[("a", 1), ("b", 2)]), "still the same one of the zone");
        assert!(set(&[("a", 4), ("b", 2)]));
        assert!(set(&[("a", 4), ("b", 4)]));
        assert!(!set(&[("a", 4), ("b", 4)]));
        assert!(set(&[("a", 2), ("b", 2)]), "the same ones serve again");
    }

    #[test]
    fn a_zone_is_that_of_the_address_of_the_endpoint() {
        let networks: Vec<String> = ["a=127.1.0.0/16", "b=127.2.0.0/16"].map(str::to_owned).into();
        let networks = ZoneNetworks::parse(&networks).unwrap();
        testkit::block_on(Duration::from_secs(30), async {
            for (endpoint, zone) in [
                ("127.1.0.9:1", Some("a")),
                ("https://127.2.0.9:1", Some("b")),
                ("127.3.0.9:1", Some("")),
                ("unix:///somewhere", None),
                ("127.1.0.9", None),
            ] {
                assert_eq!(zone_by_address(endpoint, &networks).await.as_deref(), zone, "{endpoint}");
            }
        });
    }
}
