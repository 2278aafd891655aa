//! Compresses values with zstd, with a dictionary for each group of keys whose values resemble each other.
//!
//! * [`Dictionaries`] are the dictionaries of a member: files in the directory of its log, loaded when the log
//!   is opened. They decompress.
//! * [`Compressor`] compresses, and trains dictionaries from samples.
//! * [`prefix_of`] says to which group of keys a key belongs.
//!
//! The crate does not know where compressed values are stored, nor when values are compressed.
//!
//! Invariants: decompression writes at most as many bytes as the caller expects, whatever the bytes are, and
//! fails if there are fewer. A dictionary is identified by the checksum of its file, so a value is never
//! decompressed with another dictionary than the one with which it was compressed, even if files are lost or
//! exchanged. A dictionary is durable before anything is compressed with it. No file of a dictionary is ever
//! changed or deleted, and their number is limited.
//!
//! The caller has to verify a checksum of the decompressed value: a frame of zstd has none here.
//!
//! Start reading with [`Dictionaries`]. Tests: `tests/it`.

#![forbid(unsafe_code)]

mod compressor;
mod dictionaries;
mod file;

pub use compressor::{Compressor, SAMPLE_BYTES_MAX, SAMPLES_MIN};
pub use dictionaries::{Damage, DecompressError, Dictionaries, Dictionary};
pub use file::{DICTIONARY_BYTES_MAX, prefix_of};

/// Maximum number of dictionaries of a member. Values of further groups are compressed without a dictionary.
pub const DICTIONARIES_MAX: usize = 64;

/// Number that stands for no dictionary.
pub const NO_DICTIONARY: u32 = 0;
