//! Searches for the largest number of nodes that a server carries: doubles until it fails, then bisects.

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Largest number that passed; 0 if none did.
    pub passed: u64,
    /// Smallest number above it that failed; `None` if the search reached its maximum without a failure.
    pub failed: Option<u64>,
}

/// Numbers that passed and failed are at most this factor apart at the end of a search.
const CLOSE: f64 = 1.1;

/// Finds the largest number up to `max` for which `passes` returns true, within about a tenth. Starts with
/// `first`, doubles as long as numbers pass, halves while none has passed, and then bisects. Assumes that all
/// numbers below one that passes pass too.
///
/// # Errors
///
/// Returns the first error of `passes`.
pub fn largest<E>(first: u64, max: u64, mut passes: impl FnMut(u64) -> Result<bool, E>) -> Result<Found, E> {
    let (mut passed, mut failed) = (0_u64, None::<u64>);
    let mut next = first.clamp(1, max.max(1));
    loop {
        if passes(next)? {
            passed = next;
        } else {
            failed = Some(next);
        }
        next = match failed {
            None if passed >= max => return Ok(Found { passed, failed }),
            None => passed.saturating_mul(2).min(max),
            Some(failed) if failed <= passed + 1 => return Ok(Found { passed, failed: Some(failed) }),
            Some(failed) if passed == 0 => failed / 2,
            Some(failed) if failed as f64 <= passed as f64 * CLOSE => {
                return Ok(Found { passed, failed: Some(failed) });
            }
            Some(failed) => passed + (failed - passed) / 2,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches at a server that carries `limit` nodes. Returns the result and the numbers that were tried.
    fn at(limit: u64, first: u64, max: u64) -> (Found, Vec<u64>) {
        let mut tried = Vec::new();
        let found = largest(first, max, |nodes| {
            tried.push(nodes);
            Ok::<bool, ()>(nodes <= limit)
        });
        (found.unwrap(), tried)
    }

    #[test]
    fn it_doubles_and_then_bisects() {
        let (found, tried) = at(5500, 1000, 1 << 40);
        assert_eq!(tried, [1000, 2000, 4000, 8000, 6000, 5000, 5500]);
        assert_eq!(found, Found { passed: 5500, failed: Some(6000) });
    }

    #[test]
    fn it_comes_within_a_tenth_of_any_limit_from_any_start() {
        for limit in [1, 2, 3, 9, 10, 99, 1234, 50_000, 999_999] {
            for first in [1, 10, 1000, 100_000] {
                let (found, tried) = at(limit, first, 1 << 30);
                let failed = found.failed.unwrap();
                assert!(found.passed <= limit && limit < failed, "{limit} from {first}: {found:?}");
                assert!(
                    failed <= found.passed + 1 || failed as f64 <= found.passed as f64 * 1.1,
                    "{found:?}"
                );
                assert!(tried.len() < 40, "{limit} from {first}: {tried:?}");
            }
        }
    }

    #[test]
    fn it_stops_at_the_maximum_and_when_nothing_passes() {
        assert_eq!(at(u64::MAX, 1000, 3000), (Found { passed: 3000, failed: None }, vec![1000, 2000, 3000]));
        assert_eq!(at(0, 4, 100), (Found { passed: 0, failed: Some(1) }, vec![4, 2, 1]));
        assert_eq!(largest(1, 10, |_| Err("broken")), Err("broken"));
    }
}
