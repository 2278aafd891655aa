//! The order in which a client prefers its endpoints ([`Preference`]). Whoever knows about zones, round trips
//! or faults decides on the order; this crate only follows it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

/// Rank of an endpoint that was given none: the last one.
const UNRANKED: u32 = u32::MAX;

/// Ranks of endpoints. Calls go to the connected endpoints of the lowest rank, in turn. Clones share the ranks,
/// so several clients can follow one order, and a change applies to their next calls.
#[derive(Clone, Debug, Default)]
pub struct Preference(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    entries: RwLock<HashMap<String, Entry>>,
    /// Changes when a rank does. It wakes the calls that wait for a connection to an endpoint that was preferred.
    changes: watch::Sender<u64>,
}

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
        let mut entries = self.0.entries.write().unwrap_or_else(PoisonError::into_inner);
        let known = entries.len();
        entries.retain(|endpoint, _| ranks.contains_key(endpoint));
        let mut has_changed = entries.len() != known;
        for (endpoint, rank) in ranks {
            match entries.get(endpoint) {
                Some(entry) => has_changed |= entry.rank.swap(*rank, Relaxed) != *rank,
                None => {
                    let entry = Entry { rank: AtomicU32::new(*rank), attempts: AtomicU64::new(0) };
                    entries.insert(endpoint.clone(), entry);
                    has_changed = true;
                }
            }
        }
        drop(entries);
        if has_changed {
            self.0.changes.send_modify(|change| *change = change.wrapping_add(1));
        }
    }

    /// Returns a receiver that is told when a rank has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Returns for each endpoint with a rank how many attempts of calls were made at it.
    pub fn attempts(&self) -> HashMap<String, u64> {
        let entries = self.0.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|(endpoint, entry)| (endpoint.clone(), entry.attempts.load(Relaxed))).collect()
    }

    /// Returns the rank of an endpoint; the highest number if it was given none.
    pub fn rank(&self, endpoint: &str) -> u32 {
        let entries = self.0.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(endpoint).map_or(UNRANKED, |entry| entry.rank.load(Relaxed))
    }

    pub(crate) fn count_attempt(&self, endpoint: &str) {
        let entries = self.0.entries.read().unwrap_or_else(PoisonError::into_inner);
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
    #[test]
    fn only_a_change_is_told() {
        let preference = Preference::default();
        let mut changes = preference.changes();
        let mut is_told = |ranks: &[(&str, u32)]| {
            preference.set(&ranks.iter().map(|(endpoint, rank)| ((*endpoint).to_owned(), *rank)).collect());
            let is_told = changes.has_changed().expect("the sender exists");
            changes.mark_unchanged();
            is_told
        };
        assert!(is_told(&[("a", 1), ("b", 0)]));
        assert!(!is_told(&[("a", 1), ("b", 0)]));
        assert!(is_told(&[("a", 1), ("b", 2)]));
        assert!(is_told(&[("a", 1)]));
    }
}
