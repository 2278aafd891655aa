//! Compares HashKV of the source and of the copy. Two hashes are comparable only for the same revision and the same
//! compact revision; anything else is skipped, and never counts as equal.

use std::time::Duration;

use api::mvccpb::KeyValue;
use telemetry::logging::{Logger, Value};
use tokio::time::{Instant, sleep};

use crate::copy::{CopyReader, NoOwnHash};
use crate::source::{NoHash, Source, SourceHash};
use crate::trouble::Trouble;

/// Pause before a member that has not reached the revision is asked again, and number of times that it is.
const LAG_PAUSE: Duration = Duration::from_secs(1);
const LAG_ATTEMPTS: u32 = 30;
/// Number of keys of the first page when the first different key is searched, and of each page at most.
const PAGE_KEYS: (usize, usize) = (16, 256);
/// Bytes that a page may have in the copy, from which the number of keys is chosen that the source is asked for.
const PAGE_BYTES: usize = 4 << 20;
/// Pause after a page, as a multiple of the time that the source took for it, and at least.
const PAGE_PAUSE: (u32, Duration) = (4, Duration::from_millis(10));

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The hashes are equal.
    Equal {
        /// The hash.
        hash: u32,
        /// Compact revision for which it was computed.
        compact_revision: i64,
    },
    /// The hashes are different.
    Different(Difference),
    /// The hashes could not be compared.
    Skipped {
        /// The reason.
        reason: String,
        /// Compact revision of the source, if it is not that of the copy; otherwise `None`.
        compacted_at: Option<i64>,
    },
}

/// A difference between the source and the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Compact revision for which the hashes were computed.
    pub(crate) compact_revision: i64,
    /// Hash of the copy.
    pub(crate) own: u32,
    /// Hash of each member of the source that has returned a comparable one, by endpoint.
    pub(crate) members: Vec<(String, u32)>,
    /// The first different key, or what is known of the place of the difference.
    pub(crate) place: String,
}

impl Difference {
    /// Returns true if the members of the source do not even agree with each other.
    pub(crate) fn is_within_source(&self) -> bool {
        self.members.windows(2).any(|pair| matches!(pair, [(_, a), (_, b)] if a != b))
    }
}

/// A comparison of source and copy.
pub(crate) struct Comparison {
    pub(crate) source: Source,
    pub(crate) copy: CopyReader,
    pub(crate) logger: std::sync::Arc<Logger>,
    /// Position of the endpoint that is asked first; each comparison asks another one.
    pub(crate) turn: usize,
    /// True if all members are asked and the first different key is searched if the hashes are different. Both read much
    /// at the source.
    pub(crate) examines: bool,
    /// Longest time that a member needed for a HashKV of this comparison.
    pub(crate) hash_time: Duration,
}

impl Comparison {
    /// Compares at a revision that the copy has reached.
    ///
    /// # Errors
    ///
    /// Returns an error if the source turns out to be another cluster.
    pub(crate) async fn at(&mut self, revision: i64) -> Result<Outcome, Trouble> {
        // A member makes its writes wait while it computes a hash at its newest revision, and with the leader the whole
        // cluster would wait.
        let endpoints = self.source.followers().await?;
        let Some(endpoint) = endpoints.get(self.turn % endpoints.len().max(1)) else {
            return Ok(skipped("no endpoint"));
        };
        let theirs = match self.patient_hash(endpoint, revision).await {
            Ok(theirs) => theirs,
            Err(NoHash::Trouble(trouble @ Trouble::Final(_))) => return Err(trouble),
            Err(NoHash::Trouble(trouble)) => return Ok(skipped(trouble.text())),
            Err(NoHash::Compacted) => return Ok(skipped("the source was compacted in the meantime")),
            Err(NoHash::Future) => return Ok(skipped(format!("{endpoint} lags behind"))),
        };
        let own = match self.copy.hash(revision, theirs.compact_revision).await {
            Ok(own) => own,
            Err(NoOwnHash::OtherCompaction(at)) => {
                return Ok(Outcome::Skipped {
                    reason: format!(
                        "the source is compacted at revision {}, the copy at {at}",
                        theirs.compact_revision
                    ),
                    compacted_at: Some(theirs.compact_revision),
                });
            }
            Err(NoOwnHash::Failed(why)) => return Ok(skipped(format!("the copy cannot be hashed: {why}"))),
        };
        if own == theirs.hash {
            return Ok(Outcome::Equal { hash: own, compact_revision: theirs.compact_revision });
        }
        self.examine(revision, theirs, own, endpoint).await
    }

    /// Asks a member for its hash, and waits for a while if it has not reached the revision.
    async fn patient_hash(&mut self, endpoint: &str, revision: i64) -> Result<SourceHash, NoHash> {
        for _ in 0..LAG_ATTEMPTS {
            let began = Instant::now();
            let answer = self.source.hash(endpoint, revision).await;
            // Without an answer, the time says nothing of what the hash has cost.
            if answer.is_ok() {
                self.hash_time = self.hash_time.max(began.elapsed());
            }
            match answer {
                Err(NoHash::Future) => sleep(LAG_PAUSE).await,
                answer => return answer,
            }
        }
        Err(NoHash::Future)
    }

    /// Examines different hashes: asks all members, and searches the first different key. The result is never equal: a
    /// member that now returns the hash of the copy has returned two hashes of one revision, which proves nothing.
    async fn examine(
        &mut self,
        revision: i64,
        theirs: SourceHash,
        own: u32,
        endpoint: &str,
    ) -> Result<Outcome, Trouble> {
        let compact_revision = theirs.compact_revision;
        let mut members = Vec::new();
        let others = if self.examines { self.source.endpoints() } else { vec![endpoint.to_owned()] };
        for other in others {
            match self.patient_hash(&other, revision).await {
                Ok(hash) if hash.compact_revision == compact_revision => members.push((other, hash)),
                Err(NoHash::Trouble(trouble @ Trouble::Final(_))) => return Err(trouble),
                _ => {}
            }
        }
        let again = members.iter().find(|(other, _)| other == endpoint).map(|(_, again)| *again);
        if again.is_some_and(|again| again.hash != theirs.hash && again.member_id == theirs.member_id) {
            let text = "a member of the source has returned two different hashes of one revision";
            self.logger.warn(text, &[("endpoint", Value::Str(endpoint)), ("revision", Value::Int(revision))]);
            return Ok(skipped(format!("{text}: {endpoint}")));
        }
        let mut members: Vec<(String, u32)> =
            members.into_iter().map(|(other, found)| (other, found.hash)).collect();
        // If another member answers at the same endpoint now, both hashes are told.
        if again.is_none_or(|again| again.hash != theirs.hash) {
            members.push((endpoint.to_owned(), theirs.hash));
        }
        if !theirs.is_of_revision && self.source.is_compacted(revision).await.unwrap_or(true) {
            return Ok(skipped("the source was compacted in the meantime"));
        }
        let place = match self.examines {
            true => self.place(revision, compact_revision).await?,
            false => "not searched again; an earlier line has the first different key".to_owned(),
        };
        Ok(Outcome::Different(Difference { compact_revision, own, members, place }))
    }

    /// Searches the first key that is different, first among the keys at `revision`, then among those at the compact
    /// revision. Holds one page of each side at a time.
    async fn place(&self, revision: i64, compact_revision: i64) -> Result<String, Trouble> {
        let mut unread = None;
        for at in [revision, compact_revision].into_iter().filter(|at| *at > 0) {
            match self.first_different_key(at).await {
                Ok(Some(text)) => return Ok(format!("at revision {at}, {text}")),
                Ok(None) => {}
                Err(trouble @ Trouble::Final(_)) => return Err(trouble),
                Err(trouble) => {
                    unread =
                        Some(format!("the keys at revision {at} could not be compared: {}", trouble.text()))
                }
            }
        }
        Ok(unread.unwrap_or_else(|| {
            format!(
                "all keys at revision {revision} are equal: the difference is in the versions between the compact revision \
                 {compact_revision} and it"
            )
        }))
    }

    async fn first_different_key(&self, revision: i64) -> Result<Option<String>, Trouble> {
        let mut from: Vec<u8> = b"\0".to_vec();
        let mut limit = PAGE_KEYS.0;
        loop {
            // The copy tells how many keys make a page of some MiB: the source has the same ones up to the first that is
            // different, and that is in the page or ends the search. The copy returns one key more than the source is
            // asked for: it is in the way only if it lies between those of the source.
            let reader = self.copy.clone();
            let (start, keys) = (from.clone(), limit + 1);
            let read = tokio::task::spawn_blocking(move || reader.page(&start, revision, keys, PAGE_BYTES));
            let ours = read.await.map_err(|error| Trouble::Passing(error.to_string()))?;
            let ours = ours.map_err(Trouble::Passing)?;
            let asked = i64::try_from(ours.len().saturating_sub(1).max(1)).unwrap_or(1);
            let began = Instant::now();
            let theirs = self.source.page(&from, revision, asked).await?;
            let pause = PAGE_PAUSE.1.max(began.elapsed() * PAGE_PAUSE.0);
            if let Some(text) = first_difference(&theirs.kvs, &ours, theirs.more) {
                return Ok(Some(text));
            }
            let Some(last) = theirs.kvs.last().filter(|_| theirs.more) else { return Ok(None) };
            from = [&last.key[..], b"\0"].concat();
            limit = (limit * 2).min(PAGE_KEYS.1);
            sleep(pause).await;
        }
    }
}

fn skipped(reason: impl Into<String>) -> Outcome {
    Outcome::Skipped { reason: reason.into(), compacted_at: None }
}

/// Describes the first difference of a page of the source and the same range of the copy, which may have keys after
/// the page. `more` is true if the source has keys after its page, too.
fn first_difference(theirs: &[KeyValue], ours: &[KeyValue], more: bool) -> Option<String> {
    let quoted = |kv: &KeyValue| cli::go::quote(&kv.key);
    for (at, their) in theirs.iter().enumerate() {
        match ours.get(at) {
            Some(our) if our == their => {}
            Some(our) if our.key == their.key => {
                let other_value = if shown(our) == shown(their) { ", with another value" } else { "" };
                return Some(format!(
                    "key {} is {} at the source, {} in the copy{other_value}",
                    quoted(their),
                    shown(their),
                    shown(our)
                ));
            }
            Some(our) if our.key < their.key => {
                return Some(format!("key {} is only in the copy: {}", quoted(our), shown(our)));
            }
            _ => return Some(format!("key {} is only at the source: {}", quoted(their), shown(their))),
        }
    }
    let extra = ours.get(theirs.len()).filter(|_| !more)?;
    Some(format!("key {} is only in the copy: {}", quoted(extra), shown(extra)))
}

/// Returns everything of a key but its value, of which it returns the length, because a log must not contain values.
fn shown(kv: &KeyValue) -> String {
    format!(
        "(create revision {}, mod revision {}, version {}, lease {:x}, {} bytes)",
        kv.create_revision,
        kv.mod_revision,
        kv.version,
        kv.lease,
        kv.value.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &'static str, mod_revision: i64) -> KeyValue {
        KeyValue { key: key.into(), mod_revision, create_revision: 2, version: 1, ..KeyValue::default() }
    }

    #[test]
    fn the_first_difference_is_found_on_either_side() {
        let page = [kv("b", 2), kv("d", 3)];
        let with = |ours: &[KeyValue], more| first_difference(&page, ours, more);
        assert_eq!(with(&page, true), None);
        assert_eq!(with(&[kv("b", 2), kv("d", 3), kv("e", 4)], true), None, "it may be in the next page");
        for (ours, words) in [
            (vec![kv("b", 2), kv("d", 3), kv("e", 4)], "key \"e\" is only in the copy"),
            (vec![kv("a", 2), kv("b", 2), kv("d", 3)], "key \"a\" is only in the copy"),
            (vec![kv("b", 2), kv("c", 2), kv("d", 3)], "key \"c\" is only in the copy"),
            (vec![kv("d", 3)], "key \"b\" is only at the source"),
            (vec![kv("b", 2)], "key \"d\" is only at the source"),
            (vec![], "key \"b\" is only at the source"),
            (vec![kv("b", 2), kv("d", 4)], "mod revision 3, version 1, lease 0, 0 bytes) at the source"),
        ] {
            let found = with(&ours, false).unwrap_or_default();
            assert!(found.contains(words), "{ours:?}: {found}");
        }
        assert_eq!(first_difference(&[], &[], false), None);
    }

    #[test]
    fn members_that_disagree_are_recognized() {
        let of = |hashes: &[u32]| Difference {
            compact_revision: 1,
            own: 9,
            members: hashes.iter().map(|hash| (String::new(), *hash)).collect(),
            place: String::new(),
        };
        assert!(!of(&[1]).is_within_source() && !of(&[1, 1, 1]).is_within_source());
        assert!(of(&[1, 1, 9]).is_within_source());
    }
}
