//! Cache of responses to reads, from which later serializable reads are answered.
//!
//! The cache finds a response by the whole request. A response is removed after some seconds, or earlier if a
//! write that passes through the proxy touches the keys of its request. A read with a token is neither cached
//! nor answered from the cache, because only a member knows what the user of the token may read now.
//!
//! A write can overtake a read that is in flight, so that the response to the read arrives after the write
//! although it contains the old value. Therefore the cache remembers the last writes, and caches a response
//! only if no write has touched the keys of the read since the read was sent.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use api::Status;
use api::error;
use api::etcdserverpb::RangeRequest;
use bytes::Bytes;
use prost::Message as _;

/// Maximum number of cached responses. Beyond it, the least recently used ones are removed. Source: etcd's
/// proxy.
const ANSWERS_MAX: usize = 2048;
/// Maximum total size of cached responses and their requests, in bytes. Beyond it, the least recently used
/// ones are removed.
const BYTES_MAX: usize = 64 << 20;
/// Maximum size of a cached response with its request, in bytes. Larger ones are not cached.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Time for which a response is cached. A write that does not pass through this proxy may stay invisible to
/// serializable reads for this time.
const AGE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of remembered writes. The response to a read is not cached if more writes than this have
/// begun since the read was sent.
const WRITES_MAX: usize = 1024;
/// Maximum total size of the keys of the remembered writes, in bytes. Beyond it, the oldest writes are
/// forgotten.
const WRITES_BYTES_MAX: usize = 4 << 20;
/// Maximum number of keys and ranges of one write request that are compared with each cached response. The
/// cache is locked for all shards (the proxy's threads) during this comparison, so a request that writes more
/// keys and ranges empties the cache instead.
const COMPARED_MAX: usize = 128;

/// Range of keys, as its first key and its exclusive end. As in requests, an empty end means a single key,
/// and `\0` means no end.
pub(crate) type Keys = (Bytes, Bytes);

/// Position in the sequence of all writes that passed through the proxy: the number that the next write will
/// get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

struct Kept {
    answer: Bytes,
    keys: Keys,
    revision: i64,
    since: Instant,
    /// Position of the entry in the order of use. The entry used last has the highest position.
    used: u64,
}

/// The cache. All shards (the proxy's threads) share it.
#[derive(Default)]
pub(crate) struct Cache {
    answers: HashMap<Bytes, Kept>,
    /// Keys of [`Cache::answers`] by the position of their last use, the least recently used first.
    order: BTreeMap<u64, Bytes>,
    uses: u64,
    bytes: usize,
    /// Keys and ranges of the last writes, the oldest first. The write at the end has the number
    /// `next_write - 1`.
    writes: VecDeque<Keys>,
    writes_bytes: usize,
    next_write: u64,
    /// Highest revision that was compacted through this proxy, and the time of the last compaction; `None`
    /// before the first one. Ignored [`AGE_MAX`] after that time, because the members' addresses may belong
    /// to another cluster by then.
    compacted: Option<(i64, Instant)>,
}

fn bytes_of(keys: &Keys) -> usize {
    keys.0.len() + keys.1.len()
}

/// Returns copies of these keys. Without the copies, each key, which is a slice of a received message, would
/// keep the whole message in memory.
fn alone(keys: &Keys) -> Keys {
    (Bytes::copy_from_slice(&keys.0), Bytes::copy_from_slice(&keys.1))
}

/// Returns the name under which the response to a request is cached: the encoded request. It is the same for
/// a linearizable and a serializable read, so the response to either answers a later serializable read.
fn name(request: &RangeRequest) -> Bytes {
    RangeRequest { serializable: true, ..request.clone() }.encode_to_vec().into()
}

impl Cache {
    /// Returns the current position in the sequence of writes. The caller takes this position before it sends
    /// a read, and passes it to [`Cache::add`] with the response.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.next_write)
    }

    /// Returns the number of cached responses.
    pub(crate) fn len(&self) -> usize {
        self.answers.len()
    }

    /// Returns the cached response to a serializable read; `None` if there is none.
    ///
    /// # Errors
    /// Returns etcd's error if the requested revision is known to be compacted.
    pub(crate) fn get(&mut self, request: &RangeRequest, now: Instant) -> Result<Option<Bytes>, Status> {
        if request.revision > 0 && request.revision < self.compacted_at(now) {
            return Err(error::COMPACTED);
        }
        let name = name(request);
        let Some(kept) = self.answers.get_mut(&name) else { return Ok(None) };
        if now.saturating_duration_since(kept.since) > AGE_MAX {
            self.remove(&name);
            return Ok(None);
        }
        self.order.remove(&kept.used);
        kept.used = self.uses;
        self.order.insert(self.uses, name);
        self.uses += 1;
        Ok(Some(kept.answer.clone()))
    }

    /// Caches the response to a read, unless it is too large, or its keys may have been written since
    /// position `asked`, at which the read was sent.
    pub(crate) fn add(&mut self, request: &RangeRequest, answer: &Bytes, asked: Moment, now: Instant) {
        let keys: Keys = (request.key.clone(), request.range_end.clone());
        let since = self.next_write - asked.0;
        let is_known = usize::try_from(since).is_ok_and(|since| since <= self.writes.len());
        let overtaken = || {
            let count = usize::try_from(since).unwrap_or(usize::MAX);
            self.writes.iter().rev().take(count).any(|write| overlap(write, &keys))
        };
        let name = name(request);
        let bytes = name.len() + answer.len() + bytes_of(&keys);
        // A read at a given revision is cached even if its keys were written since, because its result never
        // changes.
        if bytes > ANSWER_BYTES_MAX || !is_known || (request.revision == 0 && overtaken()) {
            return;
        }
        self.remove(&name);
        let used = self.uses;
        self.uses += 1;
        self.order.insert(used, name.clone());
        self.bytes += bytes;
        let (answer, keys) = (Bytes::copy_from_slice(answer), alone(&keys));
        let kept = Kept { answer, keys, revision: request.revision, since: now, used };
        self.answers.insert(name, kept);
        while self.answers.len() > ANSWERS_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.remove(&oldest);
        }
    }

    /// Removes the cached responses that contain keys of a write request. Must be called before the request
    /// is sent and again after it is answered: a read that is sent in between may get the old value.
    pub(crate) fn written(&mut self, all: &[Keys]) {
        match all.len() {
            0..=COMPARED_MAX => all.iter().for_each(|keys| self.written_one(keys)),
            _ => self.clear(),
        }
    }

    fn written_one(&mut self, keys: &Keys) {
        let touched: Vec<Bytes> = self
            .answers
            .iter()
            .filter(|(_, kept)| kept.revision == 0 && overlap(&kept.keys, keys))
            .map(|(name, _)| name.clone())
            .collect();
        touched.iter().for_each(|name| self.remove(name));
        self.next_write += 1;
        self.writes_bytes += bytes_of(keys);
        self.writes.push_back(alone(keys));
        while self.writes.len() > WRITES_MAX || self.writes_bytes > WRITES_BYTES_MAX {
            let Some(oldest) = self.writes.pop_front() else { return };
            self.writes_bytes -= bytes_of(&oldest);
        }
    }

    /// Records that all revisions below this one are compacted, so that reads of them are refused.
    pub(crate) fn compacted(&mut self, revision: i64, now: Instant) {
        self.compacted = Some((self.compacted_at(now).max(revision), now));
    }

    /// Returns the revision below which all revisions are known to be compacted; 0 if none is known.
    fn compacted_at(&self, now: Instant) -> i64 {
        let fresh = self.compacted.filter(|(_, since)| now.saturating_duration_since(*since) <= AGE_MAX);
        fresh.map_or(0, |(revision, _)| revision)
    }

    /// Empties the cache. Must be called when permissions may have changed, or when it is not known which
    /// cached responses a request has made outdated.
    pub(crate) fn clear(&mut self) {
        self.answers.clear();
        self.order.clear();
        self.bytes = 0;
        self.writes.clear();
        self.writes_bytes = 0;
        // The skipped number makes `add` refuse the response to a read that is now in flight: the remembered
        // writes no longer reach back to the position at which that read was sent.
        self.next_write += 1;
    }

    fn remove(&mut self, name: &Bytes) {
        if let Some(kept) = self.answers.remove(name) {
            self.order.remove(&kept.used);
            self.bytes -= name.len() + kept.answer.len() + bytes_of(&kept.keys);
        }
    }
}

/// Returns true if two ranges have a key in common.
pub(crate) fn overlap(a: &Keys, b: &Keys) -> bool {
    begins_before_end(&a.0, b) && begins_before_end(&b.0, a)
}

/// Returns true if `key` is below the end of the range `keys`.
fn begins_before_end(key: &Bytes, keys: &Keys) -> bool {
    match keys.1.as_ref() {
        b"" => *key <= keys.0,
        b"\0" => true,
        _ => *key < keys.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &'static str, end: &'static str) -> RangeRequest {
        RangeRequest { key: key.into(), range_end: end.into(), ..RangeRequest::default() }
    }

    fn keep(cache: &mut Cache, request: &RangeRequest, now: Instant) {
        let moment = cache.now();
        cache.add(request, &Bytes::from_static(b"answer"), moment, now);
    }

    fn has(cache: &mut Cache, request: &RangeRequest, now: Instant) -> bool {
        cache.get(request, now).unwrap().is_some()
    }

    #[test]
    fn a_write_makes_the_answers_about_its_keys_forgotten() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let requests = [range("a", ""), range("a", "c"), range("b", "\0"), range("c", ""), range("0", "a")];
        let kept = |cache: &mut Cache, key: &'static str, end: &'static str| {
            requests.iter().for_each(|request| keep(cache, request, now));
            cache.written(&[(key.into(), end.into())]);
            requests.iter().map(|request| has(cache, request, now)).collect::<Vec<_>>()
        };
        assert_eq!(kept(&mut cache, "a", ""), [false, false, true, true, true]);
        assert_eq!(kept(&mut cache, "b", ""), [true, false, false, true, true]);
        assert_eq!(kept(&mut cache, "b", "d"), [true, false, false, false, true]);
        assert_eq!(kept(&mut cache, "0", "\0"), [false; 5]);
        // The response to a linearizable read serves serializable reads.
        keep(&mut cache, &range("x", ""), now);
        assert!(has(&mut cache, &RangeRequest { serializable: true, ..range("x", "") }, now));
    }

    #[test]
    fn an_answer_that_a_write_has_overtaken_is_not_kept() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let answer = Bytes::from_static(b"old");
        let asked = cache.now();
        cache.written(&[("k".into(), "".into())]);
        cache.add(&range("k", ""), &answer, asked, now);
        cache.add(&range("l", ""), &answer, asked, now);
        assert!(!has(&mut cache, &range("k", ""), now) && has(&mut cache, &range("l", ""), now));
        // The cache forgets a write after `WRITES_MAX` later ones. The response to an older read is not
        // cached, because a forgotten write may have touched its keys.
        for _ in 0..WRITES_MAX + 1 {
            cache.written(&[("x".into(), "".into())]);
        }
        cache.add(&range("m", ""), &answer, asked, now);
        assert!(!has(&mut cache, &range("m", ""), now));
        let asked = cache.now();
        cache.clear();
        cache.add(&range("n", ""), &answer, asked, now);
        assert!(!has(&mut cache, &range("n", ""), now));
        // The cache is also emptied when permissions change, so even the response to a read at a fixed
        // revision, which no write can change, must not be cached.
        let past = RangeRequest { revision: 3, ..range("n", "") };
        cache.add(&past, &answer, asked, now);
        assert!(!has(&mut cache, &past, now));
    }

    #[test]
    fn answers_age_and_are_bounded() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        keep(&mut cache, &range("k", ""), now);
        assert!(has(&mut cache, &range("k", ""), now + AGE_MAX));
        assert!(!has(&mut cache, &range("k", ""), now + AGE_MAX + Duration::from_millis(1)));
        assert_eq!((cache.len(), cache.bytes, cache.order.len()), (0, 0, 0));
        for limit in 0..ANSWERS_MAX as i64 + 10 {
            keep(&mut cache, &RangeRequest { limit, ..range("k", "") }, now);
        }
        assert_eq!((cache.len(), cache.order.len()), (ANSWERS_MAX, ANSWERS_MAX));
        assert!(!has(&mut cache, &range("k", ""), now), "the oldest has made way");
        let large = Bytes::from(vec![0; ANSWER_BYTES_MAX - 100]);
        for limit in 0..100 {
            let moment = cache.now();
            cache.add(&RangeRequest { limit, ..range("l", "") }, &large, moment, now);
        }
        assert!(cache.bytes <= BYTES_MAX);
    }

    #[test]
    fn what_is_compacted_is_refused() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.compacted(7, now);
        let at = |revision| RangeRequest { revision, ..range("k", "") };
        assert_eq!(cache.get(&at(6), now), Err(error::COMPACTED));
        assert_eq!(cache.get(&at(7), now), Ok(None));
        cache.compacted(5, now + AGE_MAX);
        assert_eq!(cache.get(&at(6), now + AGE_MAX), Err(error::COMPACTED));
        // The recorded compaction is ignored by now, because members may have been restored from a snapshot,
        // with lower revisions.
        let later = now + AGE_MAX * 2 + Duration::from_millis(1);
        assert_eq!(cache.get(&at(6), later), Ok(None));
    }

    #[test]
    fn a_large_transaction_empties_the_cache_instead_of_comparing_its_keys() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let all: Vec<Keys> = (0..=COMPARED_MAX).map(|key| (key.to_string().into(), Bytes::new())).collect();
        keep(&mut cache, &range("k", ""), now);
        cache.written(&all[1..]);
        assert!(has(&mut cache, &range("k", ""), now));
        let asked = cache.now();
        cache.written(&all);
        assert_eq!((cache.len(), cache.writes.len()), (0, 0));
        // The response to a read that was in flight is not cached, because the large write may have
        // overtaken it.
        cache.add(&range("k", ""), &Bytes::from_static(b"answer"), asked, now);
        assert!(!has(&mut cache, &range("k", ""), now));
    }

    #[test]
    fn what_is_kept_does_not_hold_the_messages_it_came_in() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let message = Bytes::from(b"a and the rest of a long message".to_vec());
        let request = RangeRequest {
            key: message.slice(..1),
            range_end: message.slice(4..5),
            ..RangeRequest::default()
        };
        let asked = cache.now();
        cache.add(&request, &message.slice(6..), asked, now);
        cache.written(&[(message.slice(5..7), message.slice(..1))]);
        assert!(has(&mut cache, &request, now));
        drop(request);
        assert_eq!((cache.len(), cache.writes.len()), (1, 1));
        assert!(message.is_unique());
    }

    #[test]
    fn writes_of_large_keys_are_remembered_up_to_a_size() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let asked = cache.now();
        for _ in 0..100 {
            cache.written(&[(vec![b'x'; 1 << 20].into(), Bytes::new())]);
        }
        let bytes: usize = cache.writes.iter().map(|keys| keys.0.len() + keys.1.len()).sum();
        assert!(bytes <= 4 << 20 && !cache.writes.is_empty(), "{bytes}");
        // The response is not cached, because one of the forgotten writes may have overtaken the read.
        cache.add(&range("k", ""), &Bytes::from_static(b"old"), asked, now);
        assert!(!has(&mut cache, &range("k", ""), now));
        cache.written(&[(vec![b'x'; 5 << 20].into(), Bytes::new())]);
        assert!(cache.writes.is_empty());
        keep(&mut cache, &range("k", ""), now);
        assert!(has(&mut cache, &range("k", ""), now));
    }
}
