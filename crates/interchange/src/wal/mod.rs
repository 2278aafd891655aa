//! Reads and writes etcd's write-ahead log. Its format:
//!
//! ```text
//! file     <data-dir>/member/wal/<sequence, 16 hex digits>-<first index expected in it, 16 hex digits>.wal
//!          frames, then zeros up to 64,000,000 bytes
//!
//! frame
//!        0  length           7   of the record
//!        7  padding          1   128 + zeros at the end of the frame, or 0 if there are none
//!        8  record               protobuf: 1 type, 2 checksum, 3 data
//!           zeros                up to a multiple of 8
//!
//! type     data
//! 1        Metadata              member and cluster; the same bytes in all files
//! 2        Entry                 of the raft log
//! 3        HardState             term, vote and commit index; the last one is valid
//! 4        none                  first in every file: the running checksum at the end of the previous file
//! 5        Snapshot              index, term and voters of a snapshot of the state; valid once committed
//!
//! checksum                       CRC-32C over the data of all records so far, including earlier files
//! ```
//!
//! A length of 0 marks the end of a file. An entry replaces an earlier entry with the same index, and all
//! entries after that one. A frame counts as an unfinished write if it does not fit into the file, or if its
//! checksum does not match and one of its sectors (512 bytes) is all zeros. This is allowed only in the last
//! file; the log then ends before that frame.

mod frame;
mod log;
mod writer;

pub(crate) use log::is_file_name;
pub use log::{HardState, Identity, Repair, SnapshotMark, Wal, WalEnd};
pub(crate) use writer::FIRST_NAME;
pub use writer::{SegmentStart, segment};

/// Names of empty guard files that Mainstay creates beside a log from which it has continued, so that etcd
/// can no longer start on the log. The sequence numbers in the names leave gaps after the log's last file and
/// between the guard files. Because of a gap, etcd 3.4 to 3.7 refuses to start and leaves the log unchanged.
/// A single guard file would not suffice, because etcd accepts any file as the one after the first.
pub const GUARD_NAMES: [&str; 2] =
    ["fffffffffffffff0-ffffffffffffffff.wal", "ffffffffffffffff-ffffffffffffffff.wal"];

/// Name of a directory beside the guard files that tells the operator what to do. etcd reads the numbers at
/// the beginning of the name, takes the directory for a file of the log, and exits with an error that
/// contains the name: `read …: is a directory`. Without the directory, etcd's error is about missing files.
/// Only the guard files keep etcd out for certain; this name makes its last line useful.
pub const GUARD_MESSAGE_NAME: &str = "fffffffffffffff1-ffffffffffffffff.wal.THIS-IS-DATA-OF-MAINSTAY.start-mainstay.or-to-go-back-to-etcd-run-mainstay-utl-export.wal";

/// Name of a file that marks etcd's data in a member's directory as outdated, because Mainstay has continued
/// from that data.
pub const STALE_MARK_NAME: &str = "taken-over-from-etcd";

pub(crate) const METADATA: u64 = 1;
pub(crate) const ENTRY: u64 = 2;
pub(crate) const STATE: u64 = 3;
pub(crate) const CRC: u64 = 4;
pub(crate) const SNAPSHOT: u64 = 5;
