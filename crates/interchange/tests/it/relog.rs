//! Changes the entries of an etcd log file.

use api::raftpb::Entry;
use prost::Message as _;

/// Type of a record that contains an entry.
const ENTRY: i64 = 2;

/// Returns a log file whose entries are changed by `change`; entries for which it returns false are left out.
pub fn relogged(wal: &[u8], mut change: impl FnMut(&mut Entry) -> bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut at, mut crc, mut first) = (0, 0, true);
    while let Some(head) = wal.get(at..at + 8) {
        let length = u64::from_le_bytes(head.try_into().expect("eight bytes"));
        if length == 0 {
            break;
        }
        let (record_bytes, padding) = (
            (length & !(0xff << 56)) as usize,
            if length >> 63 > 0 { (length >> 56 & 7) as usize } else { 0 },
        );
        let mut record = api::walpb::Record::decode(&wal[at + 8..at + 8 + record_bytes]).expect("is sound");
        at += 8 + record_bytes + padding;
        if record.r#type == Some(ENTRY) {
            let mut entry = Entry::decode(record.data.clone().unwrap_or_default()).expect("is sound");
            if !change(&mut entry) {
                continue;
            }
            record.data = Some(entry.encode_to_vec().into());
        }
        if let Some(data) = record.data.as_ref().filter(|_| !first) {
            crc = crc32c::crc32c_append(crc, data);
        }
        first = false;
        record.crc = Some(crc);
        let record = record.encode_to_vec();
        let padding = (8 - record.len() % 8) % 8;
        let flag = if padding > 0 { 0x80 | padding as u64 } else { 0 };
        bytes.extend((record.len() as u64 | flag << 56).to_le_bytes());
        bytes.extend(&record);
        bytes.extend(vec![0; padding]);
    }
    bytes
}
