//! Asks each endpoint of a gRPC proxy with `--zone` regularly for its status, which shows its zone, its round
//! trip and if it serves, and tells the proxy's clients the order of preference.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::etcdserverpb::{StatusRequest, StatusResponse};
use api::{Rpc, Status, error};
use client::{Address, Client, Endpoint, Preference};
use stdx::zones::{self, ZoneNetworks};
use telemetry::logging::{Logger, Value};
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::background::{Task, random_share};
use crate::proximity::{Observation, Proximity, Standing, ranks};

/// Shortest pause between two rounds of questions, and the time that is added to it at random, so that the
/// proxies of a cluster do not ask and change their members at the same time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1500), Duration::from_millis(1000));
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

/// What is known about the endpoints, for the metrics page and for the log.
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

    /// Replaces the standings. Returns true if other endpoints than before have the first rank.
    fn set(&self, standings: Vec<Standing>) -> bool {
        self.preference.set(&ranks(&standings));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = first(&last).ne(first(&standings));
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
        loop {
            let endpoints = client.endpoints();
            proximity.keep(&endpoints);
            by_address.retain(|endpoint, _| endpoints.contains(endpoint));
            let mut asked = JoinSet::new();
            for endpoint in endpoints {
                // A known zone stays until another one is found, so that a failure of DNS changes nothing.
                let known = by_address.get(&endpoint);
                let is_due = known.is_none_or(|(since, _)| since.elapsed() >= LOOK_UP_INTERVAL);
                let is_due = is_due && !options.networks.is_empty();
                let networks = is_due.then(|| options.networks.clone());
                let client = client.clone();
                asked.spawn(async move {
                    let zone = match networks {
                        Some(networks) => zone_by_address(&endpoint, &networks).await,
                        None => None,
                    };
                    let observed = ask(&client, &endpoint).await;
                    (endpoint, observed, zone)
                });
            }
            while let Some(answer) = asked.join_next().await {
                let Ok((endpoint, mut observed, zone)) = answer else { continue };
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
            sleep(PAUSE.0 + PAUSE.1.mul_f64(random_share())).await;
            if !auto_sync_interval.is_zero() && synced.elapsed() >= auto_sync_interval {
                // The clients that serve calls log failures of the same request.
                let _ = client.within(LIMIT).sync().await;
                synced = Instant::now();
            }
        }
    }
}

/// Asks one endpoint for its status.
async fn ask(client: &Client, endpoint: &str) -> Observation {
    let client = client.at(endpoint).with_require_leader();
    let asking = async {
        // Opened as a stream, because the client repeats unary calls that fail, and one attempt is enough here.
        let mut stream = client.open::<StatusRequest, StatusResponse>(Rpc::MaintenanceStatus).await?;
        let began = Instant::now();
        stream.send(&StatusRequest {}).await?;
        stream.finish();
        let answer = stream.next().await;
        Ok::<_, Status>((began.elapsed(), answer))
    };
    match timeout(LIMIT, asking).await {
        Ok(Ok((round_trip, Ok(Some(status))))) if serves(&status) => {
            Observation::Serves { round_trip, zone: Some(status.zone) }
        }
        // The proxy has no user. The member serves those who have one.
        Ok(Ok((round_trip, Err(status)))) if is_about_users(&status) => {
            Observation::Serves { round_trip, zone: None }
        }
        _ => Observation::Fails,
    }
}

/// Returns true if a member with this status serves all calls: it knows a leader, is not a learner, and is not
/// the one that the CORRUPT alarm names.
fn serves(status: &StatusResponse) -> bool {
    let own = status.header.as_ref().map_or(0, |header| header.member_id);
    let is_corrupt = status.errors.contains(&format!("memberID:{own} alarm:CORRUPT"));
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
    match of_used().any(Standing::serves_zone) {
        true => logger.info("calls go to endpoints of the zone", &fields),
        false => logger.warn("no endpoint of the zone serves; calls go to others", &fields),
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
            (with_error("memberID:8 alarm:CORRUPT"), true),
            (with_error("memberID:7 alarm:NOSPACE"), true),
        ] {
            assert_eq!(serves(&status), expected, "{status:?}");
        }
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
