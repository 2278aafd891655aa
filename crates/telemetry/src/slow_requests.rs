//! Records slow requests, large ranges and large values, with the clients that sent them, so that an operator
//! can see what delays other requests.
//!
//! Only requests above a limit are recorded, so other requests cost nothing here.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::stages::StageTimes;

/// Minimum number of keys found for a range to be recorded as expensive.
pub const RANGE_KEYS: u64 = 1000;
/// Minimum size of the response in bytes for a range to be recorded as expensive.
pub const RANGE_BYTES: usize = 1 << 20;
/// Minimum size in bytes for the value of a put to be recorded as large.
pub const VALUE_BYTES: usize = 128 << 10;

/// Maximum number of [`RangeNote`]s, of [`ValueNote`]s and of [`SlowNote`]s that are kept. Beyond it, the
/// note of the request that is longest ago is removed.
const NOTES_MAX: usize = 64;
/// Maximum number of bytes of a key that a note keeps.
const KEY_BYTES: usize = 128;

/// An expensive range that a client has requested, possibly several times.
#[derive(Clone, Debug)]
pub struct RangeNote {
    /// Address of the client that asked for the range.
    pub client: IpAddr,
    /// First key of the range, truncated to 128 bytes.
    pub key: Bytes,
    /// End of the range as in the request, truncated to 128 bytes. Empty for a single key.
    pub range_end: Bytes,
    /// Number of requests of this client for this range.
    pub count: u64,
    /// Largest number of keys that one request for this range found.
    pub keys_max: u64,
    /// Sum of the bytes of all responses to requests for this range.
    pub bytes_total: u64,
    /// Longest time that a request for this range took to be answered.
    pub took_max: Duration,
    /// Time when the last request for this range was answered.
    pub last: SystemTime,
}

/// A large value that a client put.
#[derive(Clone, Debug)]
pub struct ValueNote {
    /// Address of the client that put the value.
    pub client: IpAddr,
    /// Key of the value, truncated to 128 bytes.
    pub key: Bytes,
    /// Size in bytes of the largest value that this client has put under the key.
    pub bytes: u64,
    /// Time when this client last put a large value under the key.
    pub last: SystemTime,
}

/// A request that took longer than `--warning-unary-request-duration`.
#[derive(Clone, Debug)]
pub struct SlowNote {
    /// Address of the client that sent the request.
    pub client: IpAddr,
    /// Path of the RPC, such as `/etcdserverpb.KV/Range`.
    pub path: &'static str,
    /// The request in protobuf's text format, without values but with keys; empty if it is not known.
    pub content: String,
    /// Time when the request was answered.
    pub ended: SystemTime,
    /// Time from the arrival of the request's headers until it was answered.
    pub took: Duration,
    /// Time spent in each stage, in the order of the stages; empty if the request's stages were not measured.
    pub stages: StageTimes,
    /// Message of the error with which the request was answered; `None` if it succeeded.
    pub error: Option<String>,
}

/// The most recent slow requests, large ranges and large values; at most 64 of each kind.
#[derive(Debug, Default)]
pub struct SlowRequests {
    /// Slow requests, in the order in which they ended.
    slow: Mutex<VecDeque<SlowNote>>,
    /// Large ranges, one note for each client and range.
    ranges: Mutex<Vec<RangeNote>>,
    /// Large values, one note for each client and key.
    values: Mutex<Vec<ValueNote>>,
}

fn beginning(key: &Bytes) -> Bytes {
    // Copy the bytes: a slice of `key` would keep the whole request in memory.
    Bytes::copy_from_slice(&key[..key.len().min(KEY_BYTES)])
}

/// Adds a note. If there are already [`NOTES_MAX`], first removes the one with the earliest time, which
/// `last` returns.
fn push<N>(notes: &mut Vec<N>, note: N, last: impl Fn(&N) -> SystemTime) {
    if notes.len() >= NOTES_MAX
        && let Some((oldest, _)) = notes.iter().enumerate().min_by_key(|(_, note)| last(note))
    {
        notes.swap_remove(oldest);
    }
    notes.push(note);
}

impl SlowRequests {
    /// Records an expensive range request of `client`, which found `keys` keys and was answered after `took`
    /// with `bytes` bytes. All requests of a client for the same range share one note.
    pub fn ranged(
        &self,
        client: IpAddr,
        (key, range_end): (&Bytes, &Bytes),
        keys: u64,
        bytes: u64,
        took: Duration,
        now: SystemTime,
    ) {
        let (key, range_end) = (beginning(key), beginning(range_end));
        let mut notes = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let known = notes
            .iter_mut()
            .find(|note| note.client == client && note.key == key && note.range_end == range_end);
        match known {
            Some(note) => {
                note.count += 1;
                note.keys_max = note.keys_max.max(keys);
                note.bytes_total = note.bytes_total.saturating_add(bytes);
                note.took_max = note.took_max.max(took);
                note.last = now;
            }
            None => {
                let note = RangeNote {
                    client,
                    key,
                    range_end,
                    count: 1,
                    keys_max: keys,
                    bytes_total: bytes,
                    took_max: took,
                    last: now,
                };
                push(&mut notes, note, |note| note.last);
            }
        }
    }

    /// Records that `client` has put a value of `bytes` bytes under `key`.
    pub fn put(&self, client: IpAddr, key: &Bytes, bytes: usize, now: SystemTime) {
        let (key, bytes) = (beginning(key), bytes as u64);
        let mut notes = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        match notes.iter_mut().find(|note| note.client == client && note.key == key) {
            Some(note) => (note.bytes, note.last) = (note.bytes.max(bytes), now),
            None => push(&mut notes, ValueNote { client, key, bytes, last: now }, |note| note.last),
        }
    }

    /// Records a slow request. If there are already 64, removes the oldest.
    pub fn slow(&self, note: SlowNote) {
        let mut notes = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() >= NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back(note);
    }

    /// Returns the most recent slow requests, the newest first; at most 64.
    pub fn slow_ones(&self) -> Vec<SlowNote> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }

    /// Returns the recorded ranges, sorted by the total size of their responses, the largest first; at most
    /// 64.
    pub fn ranges(&self) -> Vec<RangeNote> {
        let mut notes = self.ranges.lock().unwrap_or_else(PoisonError::into_inner).clone();
        notes.sort_by_key(|note| std::cmp::Reverse((note.bytes_total, note.count)));
        notes
    }

    /// Returns the recorded values, the largest first; at most 64.
    pub fn values(&self) -> Vec<ValueNote> {
        let mut notes = self.values.lock().unwrap_or_else(PoisonError::into_inner).clone();
        notes.sort_by_key(|note| std::cmp::Reverse(note.bytes));
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_same_range_is_one_note_and_the_oldest_makes_way() {
        let notable = SlowRequests::default();
        let end = Bytes::from_static(b"z");
        for number in 0..NOTES_MAX as u64 {
            let key = Bytes::from(format!("{number:03}"));
            notable.ranged(CLIENT, (&key, &end), 2000, 10, Duration::from_millis(3), at(number));
        }
        let first = Bytes::from_static(b"000");
        notable.ranged(CLIENT, (&first, &end), 3000, 10, Duration::from_millis(1), at(100));
        let new = Bytes::from(vec![b'n'; 1000]);
        notable.ranged(CLIENT, (&new, &end), 1000, 5, Duration::ZERO, at(101));
        let notes = notable.ranges();
        assert_eq!(notes.len(), NOTES_MAX);
        let top = &notes[0];
        assert_eq!((&top.key[..], top.count, top.keys_max, top.bytes_total), (&b"000"[..], 2, 3000, 20));
        assert_eq!(top.took_max, Duration::from_millis(3));
        assert!(notes.iter().all(|note| note.key != "001"), "the oldest is gone");
        assert!(notes.iter().any(|note| note.key.len() == KEY_BYTES));
    }

    #[test]
    fn values_keep_their_largest_size() {
        let notable = SlowRequests::default();
        for (bytes, seconds) in [(200_000, 1), (300_000, 2), (150_000, 3)] {
            notable.put(CLIENT, &Bytes::from_static(b"k"), bytes, at(seconds));
        }
        let [note] = &notable.values()[..] else { panic!("one note") };
        assert_eq!((note.bytes, note.last), (300_000, at(3)));
    }
}
