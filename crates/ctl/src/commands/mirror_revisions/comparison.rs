//! Checks that the source and the destination of a mirror have the same keys at a revision: compares all
//! keys, or only those that were replayed since the last comparison.

use std::collections::{BTreeSet, VecDeque};

use api::etcdserverpb as pb;
use api::mvccpb::KeyValue;
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use cli::Failure;
use client::Client;

use super::{after, each};
use crate::ranges::OPEN_END;

/// Number of keys that a comparison requests for its first page, and maximum number for later pages.
const PAGE_KEYS: (i64, i64) = (16, 256);
/// Size in bytes that a page should have. The number of keys to request for a page is computed from the
/// average size of the keys of the previous page.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size in bytes of the keys that are remembered for the next comparison. If more keys change, the
/// next comparison compares all keys.
const CHANGED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Memory in bytes that is counted for a remembered key in addition to its length.
const CHANGED_KEY_BYTES: usize = 64;

/// Keys that were replayed since source and destination were last compared.
#[derive(Debug, Default)]
pub(super) struct Changed {
    keys: BTreeSet<Bytes>,
    bytes: usize,
    /// True if the changed keys are not known, because there are too many or because no comparison has been
    /// made yet. In both cases the next comparison must compare all keys.
    is_too_much: bool,
}

impl Changed {
    /// Creates the state before the first comparison, which must compare all keys.
    pub(super) fn unknown() -> Changed {
        Changed { is_too_much: true, ..Changed::default() }
    }

    pub(super) fn add(&mut self, key: &[u8]) {
        if self.is_too_much || self.keys.contains(key) {
            return;
        }
        self.bytes += key.len() + CHANGED_KEY_BYTES;
        if self.bytes > CHANGED_BYTES_MAX {
            *self = Changed::unknown();
            return;
        }
        // Copy the key, because a slice of the received message would keep the whole message in memory.
        self.keys.insert(Bytes::copy_from_slice(key));
    }

    /// Returns the remembered keys and forgets them; returns `None` if all keys have to be compared.
    pub(super) fn take(&mut self) -> Option<BTreeSet<Bytes>> {
        let taken = std::mem::take(self);
        (!taken.is_too_much).then_some(taken.keys)
    }
}

/// Reads the keys of a range at a revision, page by page. The number of keys of a page depends on the size of
/// the previous page, so that large values do not make a page too large.
pub(super) struct Pages {
    client: Client,
    request: pb::RangeRequest,
    page: VecDeque<KeyValue>,
    is_over: bool,
}

impl Pages {
    /// Creates a reader of the keys from `key` up to, but not including, `range_end`, at `revision` (0 for
    /// the newest).
    fn new(client: Client, key: Bytes, range_end: Bytes, revision: i64) -> Pages {
        let request = pb::RangeRequest { key, range_end, revision, limit: PAGE_KEYS.0, ..Default::default() };
        Pages { client, request, page: VecDeque::new(), is_over: false }
    }

    /// Creates a reader of the keys of a range at the newest revision, without their values.
    pub(super) fn of_keys(client: &Client, key: Bytes, range_end: Bytes) -> Pages {
        let mut pages = Pages::new(client.clone(), key, range_end, 0);
        pages.request.keys_only = true;
        pages
    }

    /// Returns the next key; `None` if there is no further key.
    ///
    /// # Errors
    /// Returns the errors of [`Client::call`].
    pub(super) async fn next(&mut self) -> Result<Option<KeyValue>, Status> {
        while self.page.is_empty() && !self.is_over {
            let answer: pb::RangeResponse = match self.client.call(Rpc::KvRange, &self.request).await {
                // The page exceeds the size limit of a response. Try again with a single key.
                Err(status) if status.code == Code::ResourceExhausted && self.request.limit > 1 => {
                    self.request.limit = 1;
                    continue;
                }
                answer => answer?,
            };
            self.is_over = !answer.more;
            if let Some(last) = answer.kvs.last() {
                self.request.key = after(&last.key);
            }
            let bytes = answer.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
            self.request.limit = next_limit(self.request.limit, bytes);
            self.page = answer.kvs.into();
        }
        Ok(self.page.pop_front())
    }
}

/// Returns the number of keys to request for the next page, after a request for `limit` keys has returned
/// `bytes` bytes. The number grows at most to twice `limit`.
fn next_limit(limit: i64, bytes: usize) -> i64 {
    let fitting = PAGE_BYTES.saturating_mul(usize::try_from(limit).unwrap_or(1)) / bytes.max(1);
    i64::try_from(fitting).unwrap_or(i64::MAX).clamp(1, PAGE_KEYS.1.min(limit * 2))
}

/// Result of a comparison of two clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Number of keys compared.
    pub(super) keys: u64,
    /// Number of keys that differ in any way, or exist only at one of the clusters.
    differing: u64,
    first: Option<Bytes>,
    /// Numbers of keys at the source and at the destination.
    counts: (i64, i64),
}

impl Difference {
    fn add(&mut self, differing: Option<Bytes>) {
        self.keys += 1;
        if let Some(key) = differing {
            self.differing += 1;
            self.first.get_or_insert(key);
        }
    }

    async fn of_counts(source: &Client, target: &Client, revision: i64) -> Result<Difference, Status> {
        let counts = (count(source, revision).await?, count(target, revision).await?);
        Ok(Difference { counts, ..Difference::default() })
    }
}

async fn count(client: &Client, revision: i64) -> Result<i64, Status> {
    let all = Bytes::from(OPEN_END);
    let request = pb::RangeRequest {
        key: all.clone(),
        range_end: all,
        revision,
        count_only: true,
        ..Default::default()
    };
    let answer: pb::RangeResponse = client.call(Rpc::KvRange, &request).await?;
    Ok(answer.count)
}

/// Compares all keys of source and destination at a revision: their number, and the value, revisions, version
/// and lease of each key.
///
/// # Errors
/// Returns the errors of [`Client::call`].
pub(super) async fn differences(source: Client, target: Client, revision: i64) -> Result<Difference, Status> {
    let mut found = Difference::of_counts(&source, &target, revision).await?;
    let pages = |client| Pages::new(client, OPEN_END.into(), OPEN_END.into(), revision);
    let (mut here, mut there) = (pages(source), pages(target));
    let (mut left, mut right) = (here.next().await?, there.next().await?);
    loop {
        let (step_left, step_right, key) = match (&left, &right) {
            (None, None) => return Ok(found),
            (Some(a), Some(b)) if a == b => (true, true, None),
            (Some(a), Some(b)) => (a.key <= b.key, b.key <= a.key, Some(a.key.clone().min(b.key.clone()))),
            (Some(a), None) => (true, false, Some(a.key.clone())),
            (None, Some(b)) => (false, true, Some(b.key.clone())),
        };
        found.add(key);
        if step_left {
            left = here.next().await?;
        }
        if step_right {
            right = there.next().await?;
        }
    }
}

/// Compares the number of all keys at a revision, and each of these keys. Each key is read separately. One
/// range read of the keys modified since the last comparison (`min_mod_revision`) would be simpler, but for
/// it etcd reads all keys and values of the range, whatever the limit.
///
/// # Errors
/// Returns the errors of [`Client::call`].
pub(super) async fn differences_of(
    keys: BTreeSet<Bytes>,
    source: &Client,
    target: &Client,
    revision: i64,
) -> Result<Difference, Status> {
    let mut found = Difference::of_counts(source, target, revision).await?;
    let compared = each(keys, |key| {
        let (source, target) = (source.clone(), target.clone());
        async move {
            let request = pb::RangeRequest { key: key.clone(), revision, ..Default::default() };
            let here: pb::RangeResponse = source.call(Rpc::KvRange, &request).await?;
            let there: pb::RangeResponse = target.call(Rpc::KvRange, &request).await?;
            Ok((here.kvs != there.kvs).then_some(key))
        }
    });
    compared.await?.into_iter().for_each(|differing| found.add(differing));
    Ok(found)
}

/// Returns the result of a comparison if no keys differ.
///
/// # Errors
/// Returns an error if keys differ or the comparison failed.
pub(super) fn told(found: Result<Difference, Status>, revision: i64) -> Result<Difference, Failure> {
    let found = match found {
        Err(status) if status.message == error::COMPACTED.message => {
            return Err(Failure::error(format!(
                "{} (one of the two sides no longer has revision {revision}, at which they were to be \
                 compared: compact neither while a mirror starts or cuts over, and restore the destination \
                 from a newer snapshot of the source if this happens again)",
                status.message
            )));
        }
        found => found?,
    };
    if let Some(first) = &found.first {
        return Err(Failure::error(format!(
            "the destination is not a copy of the source: at revision {revision}, {} of {} keys differ; the first is {}",
            found.differing,
            found.keys,
            cli::go::quote(first)
        )));
    }
    if found.counts.0 != found.counts.1 {
        return Err(Failure::error(format!(
            "the destination is not a copy of the source: at revision {revision} it has {} keys, and the source has {}",
            found.counts.1, found.counts.0
        )));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_large_values_have_few_keys() {
        assert_eq!(next_limit(16, 16 * 200), 32, "small ones grow, and no faster");
        assert_eq!(next_limit(256, 256 * 200), 256);
        assert_eq!(next_limit(256, 256 * 1_500_000), 2);
        assert_eq!(next_limit(2, 2 * 100_000_000), 1);
        assert_eq!(next_limit(1, 0), 2);
    }

    #[test]
    fn more_changed_keys_than_can_be_kept_are_told() {
        let mut changed = Changed::default();
        changed.add(b"a");
        changed.add(b"a");
        assert_eq!(changed.take(), Some(BTreeSet::from(["a".into()])));
        assert_eq!(changed.take(), Some(BTreeSet::new()));
        let large = vec![b'x'; CHANGED_BYTES_MAX];
        changed.add(&large);
        changed.add(b"a");
        assert_eq!((changed.take(), changed.bytes), (None, 0));
        assert_eq!(changed.take(), Some(BTreeSet::new()), "it begins again");
    }
}
