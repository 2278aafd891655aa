//! Decides which old segments of the log are worth compressing, from samples of their values, and compresses
//! values that are moved out of old segments.
//!
//! Values are never compressed when they are written, only when they are moved: the threads that writers wait
//! for do not compress. The values of a segment are moved for this purpose once, in the background.
//!
//! # Example
//!
//! The order names the segments 3, 4 and 5. Of each, up to 256 values are read, which are spread over the whole
//! segment. Segment 3 contains pods, 4 contains pods and random bytes, and 5 random bytes. A dictionary is
//! trained from three quarters of the pods, stored, and kept if it makes the last quarter smaller. Then the
//! samples are compressed:
//!
//! ```text
//! segment  samples  compressed  saved
//! 3        2.0 MB   0.5 MB      75 %   its values are moved
//! 4        2.0 MB   1.2 MB      40 %   its values are moved, the random bytes as they are
//! 5        2.0 MB   2.0 MB       0 %   is left as it is
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use log::compression::{Compressor, DICTIONARIES_MAX, Dictionary, prefix_of};
use log::{COMPRESSED_LEN_MAX, Compressed};
use machine::SegmentUse;
use machine::key_value::read_version;
use numbers::{ChangeId, Revision};

use super::Surface;
use super::moving::LOOKED_AT_MAX;
use crate::values::LogValues;

/// Maximum number of values that are sampled in each segment.
const SAMPLES_MAX: u64 = 256;
/// Maximum number of bytes of all samples together.
const SAMPLE_BYTES_MAX: usize = 24 << 20;
/// Maximum number of bytes of samples that are read or compressed in one step.
const STEP_BYTES: usize = 1 << 20;
/// Minimum part of the sampled bytes, in percent, that compression must save for a segment to be rewritten.
const SAVED_PERCENT_MIN: usize = 20;
/// Minimum part of the compressed size, in percent, that a new dictionary must save.
const DICTIONARY_SAVED_PERCENT_MIN: usize = 10;
/// Of this many samples, all but one train a dictionary, and one tests it.
const TEST_PART: usize = 4;
/// Maximum number of prefixes that are remembered because no dictionary helps with their values.
const HOPELESS_MAX: usize = 256;

/// Prefixes of keys for whose values a dictionary was trained that did not help, so that no other one is tried
/// until the next start.
pub(super) type Hopeless = BTreeSet<Vec<u8>>;

/// Compresses values one by one, each with the dictionary for its key.
pub(super) struct ValueCompressor {
    compressor: Compressor,
    /// The last prefix, and its dictionary. Neighboring values often have the same.
    last: Option<(Vec<u8>, Option<Arc<Dictionary>>)>,
}

impl ValueCompressor {
    /// Returns a compressor; `None` if the member does not compress, or if memory is short.
    pub fn of(member: &Surface) -> Option<ValueCompressor> {
        let compressor = if member.compresses { Compressor::new()? } else { return None };
        Some(ValueCompressor { compressor, last: None })
    }

    /// Returns the bytes to be stored for a value, and how to decompress them; the value as it is if
    /// compression is not worth it.
    pub fn stored(&mut self, member: &Surface, key: &[u8], value: Bytes) -> (Bytes, Option<Compressed>) {
        let metrics = &member.metrics.value_compression;
        let raw_bytes = value.len() as u64;
        let compressed =
            (value.len() <= COMPRESSED_LEN_MAX as usize).then(|| self.compress(member, key, &value));
        if let Some((frame, compressed)) = compressed.flatten() {
            metrics.compressed.inc();
            metrics.compressed_raw_bytes.add(raw_bytes);
            metrics.compressed_bytes.add(frame.len() as u64);
            return (frame, Some(compressed));
        }
        metrics.raw.inc();
        metrics.raw_bytes.add(raw_bytes);
        (value, None)
    }

    fn compress(&mut self, member: &Surface, key: &[u8], value: &[u8]) -> Option<(Bytes, Compressed)> {
        let prefix = prefix_of(key);
        if self.last.as_ref().is_none_or(|(last, _)| last != prefix) {
            self.last = Some((prefix.to_vec(), member.values.dictionaries().of_prefix(prefix)));
        }
        let dictionary = self.last.as_ref().and_then(|(_, dictionary)| dictionary.as_deref());
        let (frame, dictionary) = self.compressor.compress(dictionary, value)?;
        let compressed = Compressed::new(value.len(), frame.len(), dictionary)?;
        Some((Bytes::copy_from_slice(frame), compressed))
    }
}

/// A segment from which values are sampled.
struct Segment {
    /// One of this many values is sampled.
    stride: u64,
    /// Number of values that were seen.
    seen: u64,
    /// Number of bytes that may still be sampled.
    left_bytes: usize,
    /// Bytes of the samples, and bytes that compression saves.
    sampled_bytes: usize,
    saved_bytes: usize,
}

/// A value that was sampled.
struct Sample {
    segment: u32,
    prefix: Vec<u8>,
    value: Bytes,
}

enum Stage {
    Reading,
    /// Dictionaries are trained for these prefixes, last one first; the samples are given by their positions.
    Training(Vec<(Vec<u8>, Vec<usize>)>),
    /// The samples from this position on have to be compressed.
    Judging(usize),
}

/// Result of a step of [`Sampling`].
pub(super) enum Sampled {
    More,
    /// All segments are judged. Contains those that are worth compressing.
    Chosen(Vec<u32>),
}

/// Progress of judging which of some segments are worth compressing.
pub(super) struct Sampling {
    through: Revision,
    behind: ChangeId,
    segments: BTreeMap<u32, Segment>,
    samples: Vec<Sample>,
    values: LogValues,
    stage: Stage,
    /// Size of a batch of values in bytes, for the move that follows.
    pub(super) portion_bytes: usize,
}

impl Sampling {
    /// Begins to sample segments, which are given with their live values.
    pub fn new(member: &Surface, segments: &[(u32, SegmentUse)], portion_bytes: usize) -> Sampling {
        let each_bytes = SAMPLE_BYTES_MAX / segments.len().max(1);
        let segments = segments.iter().map(|(seq, usage)| {
            // The samples are spread over the whole segment, whichever limit is reached.
            let by_bytes = usage.bytes.div_ceil(each_bytes as u64);
            let stride = usage.values.div_ceil(SAMPLES_MAX).max(by_bytes).max(1);
            let segment =
                Segment { stride, seen: 0, left_bytes: each_bytes, sampled_bytes: 0, saved_bytes: 0 };
            (*seq, segment)
        });
        Sampling {
            through: (member.newest)().snapshot().current_revision(),
            behind: ChangeId::default(),
            segments: segments.collect(),
            samples: Vec::new(),
            values: LogValues::new(member.values.clone()),
            stage: Stage::Reading,
            portion_bytes,
        }
    }

    /// Reads some samples, trains a dictionary, or compresses some samples.
    pub fn step(&mut self, member: &Surface, hopeless: &mut Hopeless) -> Sampled {
        match std::mem::replace(&mut self.stage, Stage::Reading) {
            Stage::Reading => {
                if self.read(member) {
                    self.stage = Stage::Training(self.untrained(member, hopeless));
                }
            }
            Stage::Training(mut groups) => match groups.pop() {
                None => self.stage = Stage::Judging(0),
                Some((prefix, samples)) => {
                    self.train(member, &prefix, &samples, hopeless);
                    self.stage = Stage::Training(groups);
                }
            },
            Stage::Judging(from) => {
                let to = self.judge(member, from);
                if to == self.samples.len() {
                    return Sampled::Chosen(self.chosen());
                }
                self.stage = Stage::Judging(to);
            }
        }
        Sampled::More
    }

    /// Reads samples, and returns true if there are no more.
    fn read(&mut self, member: &Surface) -> bool {
        let view = (member.newest)();
        let snapshot = view.snapshot();
        let mut versions = snapshot.written_after(self.behind);
        let (mut looked_at, mut bytes) = (0, 0);
        while looked_at < LOOKED_AT_MAX && bytes < STEP_BYTES {
            let Some(looked) = versions.look().filter(|looked| looked.id.main <= self.through) else {
                return true;
            };
            looked_at += 1;
            self.behind = looked.id;
            let Some(version) = looked.version else { continue };
            let (location, len) = (version.location(), version.value_len());
            if len == 0 || location.is_compressed() {
                continue;
            }
            let Some(segment) = self.segments.get_mut(&location.segment()) else { continue };
            segment.seen += 1;
            if (segment.seen - 1) % segment.stride != 0 {
                continue;
            }
            if len > COMPRESSED_LEN_MAX {
                // The value stays as it is, which counts against the segment.
                segment.sampled_bytes += len as usize;
                continue;
            }
            if segment.left_bytes < len as usize {
                continue;
            }
            let mut value = BytesMut::new();
            // A value that cannot be read is none that could be compressed.
            if read_version(version, &self.values, &mut value).is_ok() {
                segment.left_bytes -= value.len();
                bytes += value.len();
                let prefix = prefix_of(version.key()).to_vec();
                self.samples.push(Sample { segment: location.segment(), prefix, value: value.freeze() });
            }
        }
        false
    }

    /// Returns the prefixes that have samples and no dictionary, those with few bytes first.
    fn untrained(&self, member: &Surface, hopeless: &Hopeless) -> Vec<(Vec<u8>, Vec<usize>)> {
        let dictionaries = member.values.dictionaries();
        let mut groups: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
        for (at, sample) in self.samples.iter().enumerate() {
            groups.entry(&sample.prefix).or_default().push(at);
        }
        groups.retain(|prefix, _| dictionaries.of_prefix(prefix).is_none() && !hopeless.contains(*prefix));
        let mut groups: Vec<(Vec<u8>, Vec<usize>)> =
            groups.into_iter().map(|(prefix, samples)| (prefix.to_vec(), samples)).collect();
        groups.sort_by_key(|(_, samples)| {
            samples.iter().map(|at| self.samples[*at].value.len()).sum::<usize>()
        });
        let missing = DICTIONARIES_MAX.saturating_sub(dictionaries.count());
        groups.split_off(groups.len().saturating_sub(missing))
    }

    /// Trains a dictionary, and stores it if it helps. Otherwise the prefix becomes hopeless.
    fn train(&self, member: &Surface, prefix: &[u8], samples: &[usize], hopeless: &mut Hopeless) {
        if self.train_and_store(member, prefix, samples).is_none() {
            if hopeless.len() >= HOPELESS_MAX {
                hopeless.clear();
            }
            hopeless.insert(prefix.to_vec());
        }
        member.metrics.value_compression.dictionaries.set_u64(member.values.dictionaries().count() as u64);
    }

    /// Returns `None` if no dictionary was stored.
    fn train_and_store(&self, member: &Surface, prefix: &[u8], samples: &[usize]) -> Option<()> {
        let values = samples.iter().map(|at| &self.samples[*at].value).enumerate();
        let (tests, training): (Vec<_>, Vec<_>) = values.partition(|(nth, _)| nth % TEST_PART == 0);
        let training: Vec<&[u8]> = training.iter().map(|(_, value)| value.as_ref()).collect();
        let trained = Dictionary::candidate(&Compressor::train(&training)?)?;
        let mut compressor = Compressor::new()?;
        let mut bytes_with = |dictionary: Option<&Dictionary>| -> usize {
            let mut frame =
                |value: &Bytes| compressor.compress(dictionary, value).map_or(0, |(frame, _)| frame.len());
            tests.iter().map(|(_, value)| frame(value)).sum()
        };
        let (without, with) = (bytes_with(None), bytes_with(Some(&trained)));
        if with * 100 > without * (100 - DICTIONARY_SAVED_PERCENT_MIN) {
            return None;
        }
        // A stopping member makes no new files. After an error the values are compressed without a dictionary;
        // if the disk fails, the log says so.
        if member.values.winds_down() {
            return None;
        }
        member.values.dictionaries().store(prefix, trained.bytes()).ok().flatten().map(|_| ())
    }

    /// Compresses samples from a position on, and returns the position of the next one.
    fn judge(&mut self, member: &Surface, from: usize) -> usize {
        let Some(mut compressor) = ValueCompressor::of(member) else { return self.samples.len() };
        let mut bytes = 0;
        let rest = self.samples.get(from..).unwrap_or_default();
        let some = rest.iter().take_while(|sample| {
            let is_within = bytes < STEP_BYTES;
            bytes += sample.value.len();
            is_within
        });
        let mut to = from;
        for Sample { segment, value, .. } in some {
            to += 1;
            let Some(segment) = self.segments.get_mut(segment) else { continue };
            segment.sampled_bytes += value.len();
            if let Some((frame, _)) = compressor.compress(member, &self.samples[to - 1].prefix, value) {
                segment.saved_bytes += value.len() - frame.len();
            }
        }
        to
    }

    fn chosen(&self) -> Vec<u32> {
        let is_worth = |segment: &Segment| {
            segment.saved_bytes > 0 && segment.saved_bytes * 100 >= segment.sampled_bytes * SAVED_PERCENT_MIN
        };
        self.segments.iter().filter(|(_, segment)| is_worth(segment)).map(|(seq, _)| *seq).collect()
    }
}
