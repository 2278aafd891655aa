//! Compresses values, and trains dictionaries ([`Compressor`]).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use zstd_safe::{CCtx, CDict};

use crate::{DICTIONARY_BYTES_MAX, Dictionary, NO_DICTIONARY};

/// zstd's level of compression. Values are compressed once and in the background, so the levels that only save
/// time are not worth their larger values.
const LEVEL: i32 = 6;
/// Minimum number of samples from which a dictionary is trained. zstd needs a few; with a few dozen a
/// dictionary mostly repeats single values.
pub const SAMPLES_MIN: usize = 100;
/// Maximum number of bytes of a dictionary's samples: what zstd recommends, about a hundred times the size of
/// a dictionary, would not give noticeably better ones.
pub const SAMPLE_BYTES_MAX: usize = 2 << 20;
/// Maximum number of bytes of one sample. Of longer values the beginning is taken, so that there are enough
/// samples; they need a dictionary less than short values do.
const SAMPLE_PART_BYTES: usize = 16 << 10;
/// A dictionary is at most this part of its samples, so that it contains what they have in common.
const SAMPLES_PER_DICTIONARY: usize = 8;
/// Minimum size of a dictionary in bytes; zstd makes no smaller ones.
const DICTIONARY_BYTES_MIN: usize = 1 << 10;

/// Compresses values. Holds some megabytes of memory, and the dictionaries that it has used, prepared for
/// compression, so it is kept for a batch of values and not for longer.
pub struct Compressor {
    context: CCtx<'static>,
    prepared: BTreeMap<u32, CDict<'static>>,
    buffer: Vec<u8>,
}

impl Compressor {
    /// Returns a compressor; `None` if there is not enough memory.
    pub fn new() -> Option<Compressor> {
        let context = CCtx::try_create()?;
        Some(Compressor { context, prepared: BTreeMap::new(), buffer: Vec::new() })
    }

    /// Compresses a value. Returns the frame, and the id of the dictionary that it needs; `None` if the value
    /// cannot be compressed.
    pub fn compress(&mut self, dictionary: Option<&Dictionary>, value: &[u8]) -> Option<(&[u8], u32)> {
        self.buffer.clear();
        self.buffer.reserve(zstd_safe::compress_bound(value.len()));
        let id = match dictionary {
            None => {
                self.context.compress(&mut self.buffer, value, LEVEL).ok()?;
                NO_DICTIONARY
            }
            Some(dictionary) => {
                let prepared = match self.prepared.entry(dictionary.id()) {
                    Entry::Occupied(there) => there.into_mut(),
                    Entry::Vacant(place) => place.insert(CDict::try_create(dictionary.bytes(), LEVEL)?),
                };
                self.context.compress_using_cdict(&mut self.buffer, value, prepared).ok()?;
                dictionary.id()
            }
        };
        Some((&self.buffer, id))
    }

    /// Trains a dictionary from samples of values that resemble each other. Returns `None` if there are too
    /// few samples, or if they have nothing in common. Takes up to a second of processor time.
    pub fn train(samples: &[&[u8]]) -> Option<Vec<u8>> {
        let (mut bytes, mut sizes) = (Vec::new(), Vec::new());
        for sample in samples {
            let sample = &sample[..sample.len().min(SAMPLE_PART_BYTES)];
            if bytes.len() + sample.len() > SAMPLE_BYTES_MAX {
                break;
            }
            bytes.extend_from_slice(sample);
            sizes.push(sample.len());
        }
        let size = (bytes.len() / SAMPLES_PER_DICTIONARY).min(DICTIONARY_BYTES_MAX);
        if sizes.len() < SAMPLES_MIN || size < DICTIONARY_BYTES_MIN {
            return None;
        }
        let mut dictionary = Vec::with_capacity(size);
        zstd_safe::train_from_buffer(&mut dictionary, &bytes, &sizes).ok()?;
        Some(dictionary)
    }
}
