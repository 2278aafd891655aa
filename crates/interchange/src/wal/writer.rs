//! Encodes the first file of a new write-ahead log, for a member that already has a state.

use api::wire::{number_tag, put_field, put_varint};
use prost::Message as _;

use crate::backend::ConfState;
use crate::wal::{CRC, ENTRY, HardState, Identity, METADATA, SNAPSHOT, STATE, SnapshotMark};

/// Contents of the first log file of a member that already has a state.
#[derive(Clone, Debug)]
pub struct SegmentStart {
    /// Ids of the log's owner.
    pub identity: Identity,
    /// Raft's hard state.
    pub hard_state: HardState,
    /// Raft index and term of the state.
    pub snapshot: SnapshotMark,
    /// Entries after the state, in order.
    pub entries: Vec<api::raftpb::Entry>,
}

/// Name of the first file of a log.
pub(crate) const FIRST_NAME: &str = "0000000000000000-0000000000000000.wal";

/// Returns the bytes of the first file of a log. etcd extends the file to its full size when it opens the
/// log.
pub fn segment(start: &SegmentStart) -> Vec<u8> {
    let metadata = api::etcdserverpb::Metadata {
        node_id: Some(start.identity.member_id),
        cluster_id: Some(start.identity.cluster_id),
    };
    let state = api::raftpb::HardState {
        term: Some(start.hard_state.term),
        vote: Some(start.hard_state.vote),
        commit: Some(start.hard_state.commit),
    };
    let nothing = api::walpb::Snapshot { index: Some(0), term: Some(0), conf_state: None };
    let snapshot = api::walpb::Snapshot {
        index: Some(start.snapshot.index),
        term: Some(start.snapshot.term),
        conf_state: start.snapshot.conf_state.as_ref().map(|state: &ConfState| state.into()),
    };
    let mut log = Segment::default();
    log.record(CRC, None);
    log.record(METADATA, Some(metadata.encode_to_vec()));
    log.record(SNAPSHOT, Some(nothing.encode_to_vec()));
    log.record(STATE, Some(state.encode_to_vec()));
    log.record(SNAPSHOT, Some(snapshot.encode_to_vec()));
    for entry in &start.entries {
        log.record(ENTRY, Some(entry.encode_to_vec()));
    }
    log.bytes
}

#[derive(Default)]
struct Segment {
    bytes: Vec<u8>,
    crc: u32,
}

impl Segment {
    fn record(&mut self, kind: u64, data: Option<Vec<u8>>) {
        if let Some(data) = &data {
            self.crc = crc32c::crc32c_append(self.crc, data);
        }
        let mut record = vec![number_tag(1)];
        put_varint(&mut record, kind);
        record.push(number_tag(2));
        put_varint(&mut record, u64::from(self.crc));
        if let Some(data) = data {
            put_field(&mut record, 3, &data);
        }
        let padding = record.len().next_multiple_of(8) - record.len();
        let mut head = record.len() as u64;
        if padding > 0 {
            head |= (0x80 | padding as u64) << 56;
        }
        self.bytes.extend_from_slice(&head.to_le_bytes());
        self.bytes.extend_from_slice(&record);
        self.bytes.resize(self.bytes.len() + padding, 0);
    }
}
