//! Bounded staleness: what a serializable read may require of the state from which it is answered, by request
//! metadata. etcd ignores this metadata.
//!
//! * `mainstay-max-staleness-ms: N`: the state contains every write that was acknowledged N ms before the
//!   request arrived. This needs no clock but the server's own: the state contains what was acknowledged
//!   before the newest ReadIndex round that it satisfies began.
//! * `mainstay-min-revision: R`: the state has at least the revision R.
//!
//! If the state does not satisfy the bound, the read is confirmed like a linearizable one, which satisfies any
//! bound on staleness. It is refused if no confirmation arrives, or if the revision is not reached even then.

use std::fmt;
use std::time::{Duration, Instant};

use api::{Code, Status};
use front::Head;
use numbers::Revision;

use replica::shared::Published;
#[cfg(doc)]
use replica::shared::Shared;

const MAX_STALENESS: &str = "mainstay-max-staleness-ms";
const MIN_REVISION: &str = "mainstay-min-revision";

/// The bounds that a serializable read requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freshness {
    max_staleness: Option<Duration>,
    min_revision: Option<Revision>,
}

impl Freshness {
    /// Returns the bounds in the metadata of a call; `None` if there are none.
    ///
    /// # Errors
    ///
    /// Returns an error if a bound is not a number.
    pub fn of(head: &Head) -> Result<Option<Freshness>, Status> {
        let max_staleness = number::<u32>(head, MAX_STALENESS)?;
        let min_revision = number::<i64>(head, MIN_REVISION)?;
        let freshness = Freshness {
            max_staleness: max_staleness.map(|ms| Duration::from_millis(ms.into())),
            min_revision: min_revision.map(Revision),
        };
        Ok((max_staleness.is_some() || min_revision.is_some()).then_some(freshness))
    }

    /// Returns true if this state satisfies the bounds at `now`. `confirmed` is what [`Shared::confirmed_as_of`]
    /// returned before `state` was loaded: later it may belong to a newer state.
    pub fn allows(&self, confirmed: Option<Instant>, state: &Published, now: Instant) -> bool {
        let is_fresh = self.max_staleness.is_none_or(|max| {
            state.reads_local || confirmed.is_some_and(|at| now.saturating_duration_since(at) <= max)
        });
        is_fresh && self.has_revision(state)
    }

    fn has_revision(&self, state: &Published) -> bool {
        self.min_revision.is_none_or(|min| state.view.snapshot().current_revision() >= min)
    }

    /// Checks a state that is new enough for a linearizable read.
    ///
    /// # Errors
    ///
    /// Returns an error if it has not reached the required revision: no member has acknowledged it.
    pub fn check_confirmed(&self, state: &Published) -> Result<(), Status> {
        if self.has_revision(state) {
            return Ok(());
        }
        let (min, current) =
            (self.min_revision.unwrap_or_default(), state.view.snapshot().current_revision());
        let text = format!("mainstay: revision {min} is not reached: the cluster is at revision {current}");
        Err(Status::with(Code::Unavailable, text))
    }

    /// Returns the error for a read whose bound could not be confirmed because of `cause`.
    pub fn unconfirmed(&self, cause: &Status) -> Status {
        Status::with(Code::Unavailable, format!("mainstay: {self} cannot be confirmed: {}", cause.message))
    }
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.max_staleness, self.min_revision) {
            (Some(max), _) => write!(f, "a staleness of at most {} ms", max.as_millis()),
            (None, min) => write!(f, "revision {}", min.unwrap_or_default()),
        }
    }
}

/// Returns the number in a field of the metadata, if it is there.
fn number<N: std::str::FromStr>(head: &Head, key: &str) -> Result<Option<N>, Status> {
    if !head.metadata.contains_key(key) {
        return Ok(None);
    }
    let refused =
        || Status::with(Code::InvalidArgument, format!("mainstay: {key} is not a number that is allowed"));
    head.get(key).and_then(|text| text.parse().ok()).map(Some).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    fn of(fields: &[(&str, &str)]) -> Result<Option<Freshness>, Status> {
        let mut head = Head::new(0, SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), Instant::now());
        fields.iter().for_each(|(key, value)| head.metadata.insert(key, value));
        Freshness::of(&head)
    }

    #[test]
    fn bounds_are_read_from_the_metadata_and_bad_ones_are_refused() {
        assert_eq!(of(&[]), Ok(None));
        let both = of(&[(MAX_STALENESS, "250"), (MIN_REVISION, "9")]).expect("numbers").expect("bounds");
        assert_eq!(both.max_staleness, Some(Duration::from_millis(250)));
        assert_eq!(both.min_revision, Some(Revision(9)));
        assert!(both.to_string().contains("250 ms"));
        for bad in ["", "-1", "1s", "1.5", "99999999999"] {
            let refused = of(&[(MAX_STALENESS, bad)]).expect_err(bad);
            assert_eq!(refused.code, Code::InvalidArgument);
        }
    }
}
