//! Encodes and decodes changes (versions of keys and deletions), as the bucket `key` stores them.

use api::wire::{put_field, put_field_head, put_number};

use numbers::{ChangeId, LeaseId, Revision};

use crate::wire::{Field, Fields};

/// Position of a change in the history of a database, as the keys of the bucket `key` encode it: the
/// revision, and the number of the change in its transaction. This type exists beside [`numbers::ChangeId`]
/// because the file stores the number of the change with 64 bits, and a `ChangeId` has only 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredChangeId {
    /// Main revision of the change.
    pub main: Revision,
    /// Number of the change within the revision, counted from 0.
    pub sub: i64,
}

impl From<ChangeId> for StoredChangeId {
    fn from(id: ChangeId) -> StoredChangeId {
        StoredChangeId { main: id.main, sub: i64::from(id.sub) }
    }
}

/// A change without its value: its position, its key, and the key's metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeHead<'a> {
    /// Position of the change in the history.
    pub revision: StoredChangeId,
    /// True if the change deletes the key. In this case, the fields from `create_revision` on are 0.
    pub is_tombstone: bool,
    /// The key.
    pub key: &'a [u8],
    /// Revision at which the key was created.
    pub create_revision: Revision,
    /// Revision of this change, as stored in the value of the bucket's key-value pair.
    pub mod_revision: Revision,
    /// Number of changes since the key was created, including the creation.
    pub version: i64,
    /// Lease of the key; 0 for none.
    pub lease: LeaseId,
}

/// A change with its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change<'a> {
    /// The change without its value.
    pub head: ChangeHead<'a>,
    /// Value of the key.
    pub value: &'a [u8],
}

const REVISION_BYTES: usize = 17;
const TOMBSTONE: u8 = b't';

impl StoredChangeId {
    pub(crate) fn encode(self) -> [u8; REVISION_BYTES] {
        let mut bytes = [b'_'; REVISION_BYTES];
        bytes[..8].copy_from_slice(&self.main.0.to_be_bytes());
        bytes[9..].copy_from_slice(&self.sub.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<StoredChangeId> {
        let (main, rest) = bytes.split_first_chunk::<8>()?;
        let sub = rest.strip_prefix(b"_")?.try_into().ok()?;
        let revision =
            StoredChangeId { main: Revision(i64::from_be_bytes(*main)), sub: i64::from_be_bytes(sub) };
        (revision.main >= Revision(0) && revision.sub >= 0).then_some(revision)
    }
}

impl<'a> Change<'a> {
    /// Decodes a key-value pair of the bucket `key`. The returned error describes the damage without its
    /// position, which the caller adds.
    pub(crate) fn decode(key: &[u8], value: &'a [u8]) -> Result<Change<'a>, &'static str> {
        let (revision, is_tombstone) = match key.split_at_checked(REVISION_BYTES) {
            Some((revision, [])) => (revision, false),
            Some((revision, [TOMBSTONE])) => (revision, true),
            _ => return Err("a key of the bucket `key` is not a revision"),
        };
        let revision =
            StoredChangeId::decode(revision).ok_or("a key of the bucket `key` is not a revision")?;
        let mut change =
            Change { head: ChangeHead { revision, is_tombstone, ..Default::default() }, value: &[] };
        let head = &mut change.head;
        let mut fields = Fields(value);
        while let Some(field) = fields.next().map_err(|()| "a value of the bucket `key` is not a KeyValue")? {
            match field {
                (1, Field::Bytes(key)) => head.key = key,
                (2, Field::Varint(n)) => head.create_revision = Revision(n as i64),
                (3, Field::Varint(n)) => head.mod_revision = Revision(n as i64),
                (4, Field::Varint(n)) => head.version = n as i64,
                (5, Field::Bytes(value)) => change.value = value,
                (6, Field::Varint(n)) => head.lease = LeaseId(n as i64),
                (1..=6, _) => return Err("a value of the bucket `key` has a field of another kind"),
                // Ignore unknown fields, which later releases may write.
                _ => {}
            }
        }
        if head.key.is_empty() {
            // Refuse a pair with an empty key unless it only raises the revision ([`ChangeHead::bump`]).
            // [`ChangeHead::encode_around`] writes no value for an empty key, so a copy of any other such
            // pair would have different bytes, and therefore a different HashKV.
            let is_bump = value.is_empty() && *head == ChangeHead::bump(revision.main);
            return if is_bump { Ok(change) } else { Err("a change of no key") };
        }
        if !is_tombstone && head.mod_revision != revision.main {
            return Err("a change says that it was made at another revision");
        }
        Ok(change)
    }
}

impl<'a> ChangeHead<'a> {
    /// Returns a change that only raises the revision: a pair without a value, which `etcdutl snapshot
    /// restore --bump-revision` appends after all other changes. etcd reads the pair as a put of the empty
    /// key, which no request can name. Therefore HashKV covers the pair, compactions keep the newest such
    /// pair, and the number of keys counts it.
    pub fn bump(to: Revision) -> ChangeHead<'a> {
        ChangeHead { revision: StoredChangeId { main: to, sub: 0 }, ..ChangeHead::default() }
    }

    /// Returns true if this change only raises the revision ([`ChangeHead::bump`]).
    pub fn is_bump(&self) -> bool {
        self.key.is_empty()
    }

    /// Appends the key under which the bucket `key` stores the change.
    pub(crate) fn encode_key(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.revision.encode());
        if self.is_tombstone {
            out.push(TOMBSTONE);
        }
    }

    /// Appends the encoded bytes before and after the value, so that the value itself need not be copied. The
    /// bytes must be exactly etcd's, because HashKV covers them: fields are in ascending order, and fields
    /// that are 0 or empty are left out.
    pub(crate) fn encode_around(&self, value_len: usize, before: &mut Vec<u8>, after: &mut Vec<u8>) {
        if self.is_bump() {
            return;
        }
        put_field(before, 1, self.key);
        if self.is_tombstone {
            return;
        }
        put_number(before, 2, self.create_revision.0);
        put_number(before, 3, self.mod_revision.0);
        put_number(before, 4, self.version);
        if value_len > 0 {
            put_field_head(before, 5, value_len);
        }
        put_number(after, 6, self.lease.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn a_change_has_the_bytes_that_protobuf_gives_it() {
        for (lease, value) in [(0, &b"some value"[..]), (i64::MAX, b""), (-1, &[7; 300])] {
            let head = ChangeHead {
                revision: StoredChangeId { main: Revision(300), sub: 2 },
                is_tombstone: false,
                key: b"some key",
                create_revision: Revision(7),
                mod_revision: Revision(300),
                version: 130,
                lease: LeaseId(lease),
            };
            let (mut key, mut before, mut after) = (Vec::new(), Vec::new(), Vec::new());
            head.encode_key(&mut key);
            head.encode_around(value.len(), &mut before, &mut after);
            let encoded = [&before, value, &after].concat();
            let message = api::mvccpb::KeyValue {
                key: head.key.to_vec().into(),
                create_revision: 7,
                mod_revision: 300,
                version: 130,
                value: value.to_vec().into(),
                lease,
            };
            assert_eq!(encoded, message.encode_to_vec());
            assert_eq!(Change::decode(&key, &encoded), Ok(Change { head, value }));
        }
    }

    #[test]
    fn what_is_no_change_is_refused() {
        let key = StoredChangeId { main: Revision(5), sub: 0 }.encode();
        let fine = b"\x0a\x01k\x18\x05";
        assert!(Change::decode(&key, fine).is_ok());
        assert!(Change::decode(&key[..16], fine).is_err());
        assert!(Change::decode(&[&key[..], b"x"].concat(), fine).is_err());
        assert!(Change::decode(&key, b"").is_ok_and(|change| change.head.is_bump()));
        assert!(Change::decode(&[&key[..], b"t"].concat(), b"").is_err());
        assert!(Change::decode(&key, b"\x18\x05").is_err());
        let not_first = StoredChangeId { main: Revision(5), sub: 1 }.encode();
        assert!(Change::decode(&not_first, b"").is_err());
        assert!(Change::decode(&key, b"\x0a\x01k\x18\x06").is_err());
        assert!(Change::decode(&key, b"\x0a\x05k").is_err());
        assert!(Change::decode(&key, b"\x08\x01").is_err());
    }
}
