//! Decides which endpoints a proxy with `--zone` prefers: those of its own zone, then those with short round
//! trips. Pure decisions from observations; `probes` (gRPC proxy) and `gateway` observe.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Number of round trips that are kept. The shortest of them counts, because scheduling and load lengthen single
/// ones and nothing shortens them.
const SAMPLES: usize = 5;
/// Number of failed or successful observations in a row after which an endpoint counts as not serving, or as
/// serving again.
const STREAK: u32 = 2;

/// Lowest rank of endpoints of other zones.
const OTHER_ZONES: u32 = 2;
/// Rank of endpoints that do not serve. They are used only if no other endpoint is connected.
pub(crate) const NOT_SERVING: u32 = 4;
/// Number of ranks that differ in round trips only: they share the zone, or all do not serve.
pub(crate) const CLASS: u32 = 2;

/// The last round trips to one endpoint, and if it counts as close.
///
/// Close are endpoints whose round trips are about as short as the shortest. They take turns, so that the load
/// of many proxies does not gather at one member. An endpoint joins them below a lower limit than that above
/// which it leaves them, so that noise does not move calls back and forth.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrips {
    samples: [Option<Duration>; SAMPLES],
    next: usize,
    is_close: bool,
}

impl RoundTrips {
    /// Adds a round trip.
    pub(crate) fn add(&mut self, round_trip: Duration) {
        self.samples[self.next] = Some(round_trip);
        self.next = (self.next + 1) % SAMPLES;
    }

    /// Returns the shortest of the last round trips; `None` without any.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.samples.iter().flatten().min().copied()
    }

    /// Returns true if the endpoint counts as close, where `best` is the shortest round trip to any of the
    /// endpoints that it is compared with. One without round trips does not.
    pub(crate) fn is_close(&mut self, best: Duration) -> bool {
        let limit = match self.is_close {
            true => best * 2 + Duration::from_micros(500),
            false => best * 5 / 4 + Duration::from_micros(250),
        };
        self.is_close = self.shortest().is_some_and(|shortest| shortest <= limit);
        self.is_close
    }
}

/// Result of a question to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// It serves. The zone is empty if it states none, and `None` if this answer could not contain one.
    Serves { round_trip: Duration, zone: Option<String> },
    /// It did not answer in time, or says that it cannot serve.
    Fails,
}

#[derive(Clone, Debug)]
struct Endpoint {
    zone: String,
    round_trips: RoundTrips,
    serves: bool,
    /// Number of observations in a row that contradict `serves`.
    contradictions: u32,
}

/// An endpoint as it is shown in metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) endpoint: String,
    /// Zone of the endpoint; empty if it is not known.
    pub(crate) zone: String,
    /// Shortest of the last round trips; `None` if it has not answered.
    pub(crate) round_trip: Option<Duration>,
    pub(crate) rank: u32,
}

impl Standing {
    /// Returns true if the endpoint is in the zone of the proxy and serves.
    pub(crate) fn serves_zone(&self) -> bool {
        self.rank < OTHER_ZONES
    }

    /// Returns true if the endpoint serves.
    pub(crate) fn serves(&self) -> bool {
        self.rank < NOT_SERVING
    }
}

/// Observations that a proxy in one zone has made of its endpoints.
#[derive(Debug)]
pub(crate) struct Proximity {
    zone: String,
    endpoints: BTreeMap<String, Endpoint>,
}

impl Proximity {
    pub(crate) fn new(zone: String) -> Proximity {
        Proximity { zone, endpoints: BTreeMap::new() }
    }

    /// Forgets all endpoints that are not among these.
    pub(crate) fn keep(&mut self, endpoints: &[String]) {
        self.endpoints.retain(|known, _| endpoints.contains(known));
    }

    /// Records an observation. The first one of an endpoint counts at once; later ones change whether it serves
    /// only if [`STREAK`] of them agree.
    pub(crate) fn observe(&mut self, endpoint: &str, observation: Observation) {
        let answered = matches!(observation, Observation::Serves { .. });
        let known = self.endpoints.entry(endpoint.to_owned()).or_insert_with(|| Endpoint {
            zone: String::new(),
            round_trips: RoundTrips::default(),
            serves: answered,
            contradictions: 0,
        });
        if known.serves == answered {
            known.contradictions = 0;
        } else {
            known.contradictions += 1;
            if known.contradictions >= STREAK {
                (known.serves, known.contradictions) = (answered, 0);
            }
        }
        if let Observation::Serves { round_trip, zone } = observation {
            known.round_trips.add(round_trip);
            if let Some(zone) = zone {
                known.zone = zone;
            }
        }
    }

    /// Returns true if the last observation of an endpoint that counts as serving was a failure.
    pub(crate) fn has_doubts(&self) -> bool {
        self.endpoints.values().any(|endpoint| endpoint.serves && endpoint.contradictions > 0)
    }

    /// Returns the endpoints with their ranks: 0 and 1 for those in the proxy's zone, 2 and 3 for others, 4 for
    /// those that do not serve. The lower of two ranks is for those with short round trips.
    pub(crate) fn standings(&mut self) -> Vec<Standing> {
        let is_near = |endpoint: &Endpoint| endpoint.zone == self.zone;
        let mut best: [Option<Duration>; 2] = [None; 2];
        for endpoint in self.endpoints.values().filter(|endpoint| endpoint.serves) {
            let best = &mut best[usize::from(is_near(endpoint))];
            *best = [*best, endpoint.round_trips.shortest()].into_iter().flatten().min();
        }
        let ranked = self.endpoints.iter_mut().map(|(name, endpoint)| {
            let is_near = endpoint.zone == self.zone;
            let rank = match best[usize::from(is_near)] {
                Some(best) if endpoint.serves => {
                    OTHER_ZONES * u32::from(!is_near) + u32::from(!endpoint.round_trips.is_close(best))
                }
                _ => NOT_SERVING,
            };
            let round_trip = endpoint.round_trips.shortest();
            Standing { endpoint: name.clone(), zone: endpoint.zone.clone(), round_trip, rank }
        });
        ranked.collect()
    }
}

/// Returns the ranks of endpoints by name.
pub(crate) fn ranks(standings: &[Standing]) -> HashMap<String, u32> {
    standings.iter().map(|standing| (standing.endpoint.clone(), standing.rank)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serves(micros: u64, zone: &str) -> Observation {
        Observation::Serves { round_trip: Duration::from_micros(micros), zone: Some(zone.to_owned()) }
    }

    fn ranks_of(proximity: &mut Proximity) -> Vec<u32> {
        proximity.standings().iter().map(|standing| standing.rank).collect()
    }

    #[test]
    fn the_own_zone_comes_first_then_short_round_trips_and_the_silent_come_last() {
        let mut proximity = Proximity::new("a".to_owned());
        for (endpoint, observation) in [
            ("1", serves(900, "a")),
            ("2", serves(5_000, "a")),
            ("3", serves(400, "b")),
            ("4", serves(9_000, "")),
            ("5", Observation::Fails),
        ] {
            proximity.observe(endpoint, observation);
        }
        assert_eq!(ranks_of(&mut proximity), [0, 1, 2, 3, 4]);
        proximity.keep(&["2".to_owned(), "4".to_owned()]);
        assert_eq!(ranks_of(&mut proximity), [0, 2]);
    }

    #[test]
    fn one_failure_or_one_success_changes_nothing() {
        let mut proximity = Proximity::new("a".to_owned());
        proximity.observe("1", serves(100, "a"));
        for (observation, rank) in [
            (Observation::Fails, 0),
            (serves(100, "a"), 0),
            (Observation::Fails, 0),
            (Observation::Fails, 4),
            (serves(100, "a"), 4),
            (Observation::Fails, 4),
            (serves(100, "a"), 4),
            (serves(100, "a"), 0),
        ] {
            let is_first_failure = rank == 0 && observation == Observation::Fails;
            proximity.observe("1", observation);
            assert_eq!(ranks_of(&mut proximity), [rank]);
            assert_eq!(proximity.has_doubts(), is_first_failure);
        }
    }

    #[test]
    fn an_answer_without_a_zone_leaves_the_known_one() {
        let mut proximity = Proximity::new("a".to_owned());
        proximity.observe("1", serves(100, "a"));
        let unknown = Observation::Serves { round_trip: Duration::from_micros(100), zone: None };
        proximity.observe("1", unknown.clone());
        assert_eq!(ranks_of(&mut proximity), [0]);
        proximity.observe("1", serves(100, ""));
        assert_eq!(ranks_of(&mut proximity), [2]);
        proximity.observe("2", unknown);
        assert_eq!(ranks_of(&mut proximity), [2, 2]);
    }

    #[test]
    fn round_trips_move_an_endpoint_only_if_they_change_much() {
        let mut trips = RoundTrips::default();
        let best = Duration::from_millis(1);
        let mut is_close = |micros: u64| {
            // The shortest of the last ones counts, so that all have to change.
            for _ in 0..SAMPLES {
                trips.add(Duration::from_micros(micros));
            }
            trips.is_close(best)
        };
        assert!(!is_close(2_000), "it joins below 1.5 ms");
        assert!(is_close(1_400));
        assert!(is_close(2_400), "it leaves above 2.5 ms");
        assert!(!is_close(2_600));
        assert!(!is_close(2_000));
        assert!(is_close(1_000));
        trips.add(Duration::from_secs(1));
        assert!(trips.is_close(best), "a single long one does not count");
    }
}
