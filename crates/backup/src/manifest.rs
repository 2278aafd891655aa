//! Manifests: what a backup consists of, as JSON.
//!
//! ```text
//! <place>/<cluster id, 16 hex digits>/chain/<number / 1000, 13 digits>/<number, 16 digits>.json    manifests
//! <place>/<cluster id>/data/<2 hex digits>/<SHA-256>                                                everything else
//! ```
//!
//! The manifests of a cluster are numbered from 1 and form one chain: each is created only if none of its number
//! exists, and has the digest of the one before. So whoever appends a manifest has read the one before it, and of
//! two processes that append the same number one fails and reads what the other has written. If the newest manifest
//! is damaged, the next one follows the one before it, and says which numbers it skips.
//!
//! An *epoch* begins with a manifest that has a base, which is the whole state after one entry. The manifests of an
//! epoch add parts, which continue the entries of the base without a gap. A *catalog* lists the parts of an epoch up
//! to a manifest, so that a restore reads one catalog and the few manifests after it; what the catalog lists are
//! parts merged from those of the manifests.

use serde::{Deserialize, Serialize};

use crate::object::Object;

/// Version of the format of manifests and catalogs.
pub const FORMAT: u32 = 1;
/// Version of the format of manifests that begin an epoch, skip others, or refer to a list of epochs.
pub const FORMAT_NEWEST: u32 = 2;

/// A position in the log of a cluster, and the state there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Raft index of the last entry.
    pub index: u64,
    /// Raft term of that entry.
    pub term: u64,
    /// Newest revision that is known to be contained.
    pub revision: i64,
    /// Compact revision there; -1 if there is none.
    pub compact_revision: i64,
    /// Time in milliseconds since 1970 by which all of this was applied. Never falls along the chain, also if the
    /// clock does.
    pub time_ms: u64,
}

/// The rolling hash of the state after an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateHash {
    /// Raft index of the entry.
    pub index: u64,
    /// The hash in hexadecimal.
    pub hash: String,
}

impl StateHash {
    /// Returns the hash after an entry.
    pub fn new(index: u64, hash: u64) -> StateHash {
        StateHash { index, hash: format!("{hash:016x}") }
    }
}

/// HashKV at a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashKv {
    /// The revision.
    pub revision: i64,
    /// Compact revision for which the hash was computed; -1 if there is none.
    pub compact_revision: i64,
    /// The hash.
    pub hash: u32,
}

/// Committed entries of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The object with the entries.
    pub object: Object,
    /// Index of the first entry.
    pub first: u64,
    /// Position after the last entry.
    pub at: Position,
    /// Hash of the state after the last entry, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_hash: Option<StateHash>,
    /// Bytes of the entries before compression.
    pub raw_bytes: u64,
}

/// The whole state after one entry: a transfer, as members send it to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Position of the state.
    pub at: Position,
    /// Pieces of the transfer, in order, each a frame of zstd with its length before compression.
    pub chunks: Vec<Chunk>,
    /// Hash of the state, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_hash: Option<StateHash>,
    /// HashKV of the state, if it could be computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_kv: Option<HashKv>,
}

impl Base {
    /// Returns the number of bytes of the objects of the base.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.object.bytes).sum()
    }
}

/// A piece of a base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// The object.
    pub object: Object,
    /// Bytes before compression.
    pub raw_bytes: u64,
}

/// Beginning of an epoch, as the manifest that begins the next epoch knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epoch {
    /// Number of the manifest that begins the epoch.
    pub sequence: u64,
    /// Position of its base.
    pub from: Position,
    /// Position of its last part; nothing is known between it and the base of the next epoch if that has a gap.
    pub to: Position,
    /// Catalog of the epoch.
    pub catalog: Object,
}

/// Epochs before those that a manifest lists itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierEpochs {
    /// The object with an [`EpochList`].
    pub object: Object,
    /// Number of the manifest that begins the last of them.
    pub through: u64,
}

/// A list of epochs that grew too long for a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochList {
    /// Version of the format.
    pub format: u32,
    /// Id of the cluster in hexadecimal.
    pub cluster: String,
    /// The epochs, the oldest first.
    pub epochs: Vec<Epoch>,
    /// Epochs before these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<EarlierEpochs>,
}

/// A catalog and how far it reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogReference {
    /// The object.
    pub object: Object,
    /// Number of the last manifest whose parts it lists.
    pub through: u64,
}

/// The parts of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// Version of the format.
    pub format: u32,
    /// Id of the cluster in hexadecimal.
    pub cluster: String,
    /// Number of the manifest that begins the epoch.
    pub epoch: u64,
    /// The parts, in order.
    pub parts: Vec<Part>,
}

/// A link of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// Id of the cluster in hexadecimal, 16 digits.
    pub cluster: String,
    /// Number in the chain.
    pub sequence: u64,
    /// SHA-256 of the manifest before; empty in the first.
    pub previous: String,
    /// Numbers right before this one whose manifests could not be read when this one was written. They count for nothing:
    /// `previous` is the digest of the manifest before them, and what they had is in this manifest and those after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<u64>,
    /// Number of the manifest that begins the epoch of this one.
    pub epoch: u64,
    /// Id of the process' data directory that has written the manifest.
    pub shipper: String,
    /// Name of the log that the entries are from. Entries of equal indexes of one stream are the same.
    pub stream: String,
    /// Position after this manifest.
    pub at: Position,
    /// Hash of the state there, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_hash: Option<StateHash>,
    /// New parts. In a manifest with a base, also those of the epoch before that reach beyond the base.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// The newest catalog of the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<CatalogReference>,
    /// The base, in the first manifest of an epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// The last epochs before, in the first manifest of an epoch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<Epoch>,
    /// Epochs before [`Manifest::epochs`], if there are more than a manifest lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<EarlierEpochs>,
    /// Reason why moments before the base cannot be restored, in the first manifest of an epoch after which entries
    /// are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
}

impl Manifest {
    /// Returns the lowest version of the format that has all that is in the manifest, so that an earlier release reads
    /// as much as it can.
    pub fn format_needed(&self) -> u32 {
        let is_new = self.base.is_some() || !self.skipped.is_empty() || self.earlier.is_some();
        if is_new { FORMAT_NEWEST } else { FORMAT }
    }

    /// Returns the name of the manifest of this number in the directory of its cluster.
    pub fn name(sequence: u64) -> String {
        format!("{}/{sequence:016}.json", Manifest::directory(sequence))
    }

    /// Returns the directory of the manifest of this number.
    pub fn directory(sequence: u64) -> String {
        format!("chain/{:013}", sequence / 1000)
    }

    /// Returns the bytes of the manifest.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// Returns the JSON of a value, with a line end.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).unwrap_or_else(|error| unreachable!("is always JSON: {error}"));
    bytes.push(b'\n');
    bytes
}
