//! The formats of files that this release reads and writes ([`Formats`]), which decide to which releases a member can
//! go back.

use std::ops::RangeInclusive;

/// Formats of a release for the two kinds of files that make up a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formats {
    /// Of the log's segments.
    pub log: Format,
    /// Of the runs of a checkpoint.
    pub checkpoint: Format,
}

/// Formats of one kind of file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Formats that the release reads.
    pub reads: RangeInclusive<u64>,
    /// Format that the member writes.
    pub writes: u64,
}

impl Formats {
    /// Returns the formats of this release. `compressed_values` says if values may be compressed, and `in_blocks` if the
    /// member has a memory budget: files of such members have later formats.
    pub fn of_this_release(compressed_values: bool, in_blocks: bool) -> Formats {
        let segments = log::SEGMENT_VERSIONS_READ;
        let (first, last) = (u64::from(*segments.start()), u64::from(*segments.end()));
        Formats {
            log: Format { reads: first..=last, writes: last },
            checkpoint: Format {
                reads: machine::image::FORMATS_READ,
                writes: machine::image::format_written(compressed_values, in_blocks),
            },
        }
    }

    /// Returns the formats of the releases before the one that first told them: of those, no release wrote others.
    pub fn before_they_were_told() -> Formats {
        Formats { log: Format { reads: 1..=2, writes: 2 }, checkpoint: Format { reads: 1..=4, writes: 4 } }
    }
}
