//! The order in which a client prefers its endpoints ([`Preference`]). Whoever knows about zones, round trips
//! or faults decides on the order; this crate only follows it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// Rank of an endpoint that was given none: the last one.
const UNRANKED: u32 = u32::MAX;

/// Ranks of endpoints. Calls go to the connected endpoints of the lowest rank, in turn. Clones share the ranks,
/// so several clients can follow one order, and a change applies to their next calls.
#[derive(Clone, Debug, Default)]
pub struct Preference(Arc<RwLock<HashMap<String, Entry>>>);

#[derive(Debug)]
struct Entry {
    rank: AtomicU32,
    /// Number of attempts of calls for which this endpoint was chosen.
    attempts: AtomicU64,
}

impl Preference {
    /// Sets the ranks of endpoints, and forgets all endpoints that are not among these. Endpoints without a
    /// rank come last.
    pub fn set(&self, ranks: &HashMap<String, u32>) {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|endpoint, _| ranks.contains_key(endpoint));
        for (endpoint, rank) in ranks {
            match entries.get(endpoint) {
                Some(entry) => entry.rank.store(*rank, Relaxed),
                None => {
                    let entry = Entry { rank: AtomicU32::new(*rank), attempts: AtomicU64::new(0) };
                    entries.insert(endpoint.clone(), entry);
                }
            }
        }
    }

    /// Returns for each endpoint with a rank how many attempts of calls were made at it.
    pub fn attempts(&self) -> HashMap<String, u64> {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|(endpoint, entry)| (endpoint.clone(), entry.attempts.load(Relaxed))).collect()
    }

    pub(crate) fn rank(&self, endpoint: &str) -> u32 {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(endpoint).map_or(UNRANKED, |entry| entry.rank.load(Relaxed))
    }

    pub(crate) fn count_attempt(&self, endpoint: &str) {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(endpoint) {
            entry.attempts.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_kept_while_an_endpoint_has_a_rank() {
        let preference = Preference::default();
        let ranks = |ranks: &[(&str, u32)]| {
            preference.set(&ranks.iter().map(|(endpoint, rank)| ((*endpoint).to_owned(), *rank)).collect());
        };
        preference.count_attempt("a");
        assert_eq!(preference.rank("a"), UNRANKED);
        ranks(&[("a", 1), ("b", 0)]);
        preference.count_attempt("a");
        ranks(&[("a", 0), ("c", 2)]);
        assert_eq!(["a", "b", "c"].map(|endpoint| preference.rank(endpoint)), [0, UNRANKED, 2]);
        assert_eq!(preference.attempts(), HashMap::from([("a".to_owned(), 1), ("c".to_owned(), 0)]));
    }
}
