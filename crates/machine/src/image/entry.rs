//! Encodes and decodes one version in a block of keys; the documentation of `image` describes the bytes.

use mvcc::{KEY_BYTES_MAX, LoadedVersion, Location, Value, Version};
use numbers::{ChangeId, LeaseId, Revision};
use planted::Bug;

use crate::codec::{Input, Malformed, put_bytes, put_i64, put_u64};

const SAME_KEY: u8 = 0x01;
const TOMBSTONE: u8 = 0x02;
const FIRST: u8 = 0x04;
const FOLLOWS: u8 = 0x08;
const SUB: u8 = 0x10;
const LEASE: u8 = 0x20;
const VALUE: u8 = 0x40;
const SAME_SEGMENT: u8 = 0x80;

/// Form in which an entry contains a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    /// Location, length and checksum of the value in the log.
    Place(Value),
    /// Bytes of the value itself, as in snapshots.
    Inline(&'a [u8]),
}

/// A version without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub main: Revision,
    pub sub: u32,
    pub create_revision: Revision,
    pub version: i64,
    pub lease: LeaseId,
    pub payload: Payload<'a>,
}

impl Entry<'static> {
    pub fn of(version: Version<'_>) -> Entry<'static> {
        Entry {
            main: version.main(),
            sub: version.sub(),
            create_revision: version.create_revision(),
            version: version.version(),
            lease: version.lease(),
            payload: Payload::Place(version.value()),
        }
    }
}

impl Entry<'_> {
    pub fn id(&self) -> ChangeId {
        ChangeId { main: self.main, sub: self.sub }
    }

    pub fn value(&self) -> Value {
        match self.payload {
            Payload::Place(value) => value,
            Payload::Inline(_) => Value::default(),
        }
    }

    pub fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    pub fn loaded<'k>(&self, key: &'k [u8]) -> LoadedVersion<'k> {
        LoadedVersion {
            key,
            main: self.main,
            sub: self.sub,
            create_revision: self.create_revision,
            version: self.version,
            lease: self.lease,
            value: self.value(),
        }
    }
}

/// Fields of the previous entry in the block. The next entry is encoded relative to them.
#[derive(Default)]
struct Before {
    key: Vec<u8>,
    /// True if the block has a previous entry.
    any: bool,
    main: Revision,
    create_revision: Revision,
    version: i64,
    /// Upper half of the location.
    segment: Option<u32>,
}

/// Returns the two numbers as which a location is encoded.
fn halves(location: Location) -> (u32, u32) {
    let bits = match planted::is(Bug::CompressedMarkLost) {
        true => Location::new(location.segment(), location.offset()).bits(),
        false => location.bits(),
    };
    ((bits >> 32) as u32, bits as u32)
}

/// Appends entries to one block.
#[derive(Default)]
pub(crate) struct EntryWriter {
    before: Before,
}

impl EntryWriter {
    pub fn put(&mut self, key: &[u8], entry: &Entry<'_>, out: &mut Vec<u8>) {
        let before = &mut self.before;
        let same_key = before.any && before.key == key;
        let tombstone = entry.version == 0;
        let first = entry.version == 1 && entry.create_revision == entry.main;
        let follows = !tombstone
            && !first
            && same_key
            && before.version > 0
            && entry.version == before.version + 1
            && entry.create_revision == before.create_revision;
        let has_value = match entry.payload {
            Payload::Place(value) => value.len > 0,
            Payload::Inline(bytes) => !bytes.is_empty(),
        };
        let same_segment = has_value
            && matches!(entry.payload, Payload::Place(value) if before.segment == Some(halves(value.location).0));
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        out.push(
            flag(same_key, SAME_KEY)
                | flag(tombstone, TOMBSTONE)
                | flag(first, FIRST)
                | flag(follows, FOLLOWS)
                | flag(entry.sub != 0, SUB)
                | flag(entry.lease.is_some(), LEASE)
                | flag(has_value, VALUE)
                | flag(same_segment, SAME_SEGMENT),
        );
        if same_key {
            put_u64(out, (entry.main - before.main) as u64);
        } else {
            let shared = key.iter().zip(&before.key).take_while(|(a, b)| a == b).count();
            put_u64(out, shared as u64);
            put_bytes(out, &key[shared..]);
            put_u64(out, entry.main.0 as u64);
            before.key.truncate(shared);
            before.key.extend_from_slice(&key[shared..]);
        }
        if entry.sub != 0 {
            put_u64(out, u64::from(entry.sub));
        }
        if !tombstone && !first && !follows {
            put_u64(out, (entry.main - entry.create_revision) as u64);
            put_u64(out, entry.version as u64);
        }
        if entry.lease.is_some() {
            put_i64(out, entry.lease.0);
        }
        match entry.payload {
            _ if !has_value => {}
            Payload::Place(value) => {
                let (segment, offset) = halves(value.location);
                if !same_segment {
                    put_u64(out, u64::from(segment));
                    before.segment = Some(segment);
                }
                put_u64(out, u64::from(offset));
                put_u64(out, u64::from(value.len));
                out.extend_from_slice(&value.crc.to_le_bytes());
            }
            Payload::Inline(bytes) => put_bytes(out, bytes),
        }
        before.any = true;
        before.main = entry.main;
        before.create_revision = entry.create_revision;
        before.version = entry.version;
    }
}

/// Decodes entries from blocks. Accepts an entry only if its revisions are at least 1, its create revision is
/// not above its main revision, and its numbers are so low that later writes cannot overflow.
#[derive(Default)]
pub(crate) struct EntryReader {
    before: Before,
    same_key: bool,
}

impl EntryReader {
    /// Prepares for the first entry of a block, which does not refer to entries of the block before.
    pub fn restart(&mut self) {
        self.before.any = false;
        self.before.key.clear();
        self.before.segment = None;
    }

    /// Returns the key of the entry that was read last.
    pub fn key(&self) -> &[u8] {
        &self.before.key
    }

    /// Returns true if the last entry that was read has the same key as the entry before it in the block.
    pub fn same_key(&self) -> bool {
        self.same_key
    }

    /// Reads the next entry. `inline` is true if entries contain the values themselves instead of their
    /// locations.
    #[inline]
    pub fn next<'a>(&mut self, input: &mut Input<'a>, inline: bool) -> Result<Entry<'a>, Malformed> {
        const RANGE: Malformed = Malformed("a revision out of range");
        let before = &mut self.before;
        let [flags] = *input.raw(1)? else { return Err(Malformed("an entry without flags")) };
        let number = |n: u64| i64::try_from(n).map_err(|_| RANGE);
        let main = if flags & SAME_KEY != 0 {
            if !before.any {
                return Err(Malformed("a block whose first entry has no key"));
            }
            self.same_key = true;
            before.main.0.checked_add(number(input.u64()?)?).map(Revision).ok_or(RANGE)?
        } else {
            let shared = usize::try_from(input.u64()?).map_err(|_| Malformed("a key out of nothing"))?;
            if shared > before.key.len() {
                return Err(Malformed("a key out of nothing"));
            }
            let rest = input.bytes()?;
            if rest.len() > KEY_BYTES_MAX - shared {
                return Err(Malformed("a key that is too long"));
            }
            // A writer makes `shared` as long as possible, so different keys already differ in the first byte
            // after the shared prefix. Comparing that byte first is therefore fast.
            let old = &before.key[shared..];
            self.same_key = before.any && rest.first() == old.first() && rest == old;
            before.key.truncate(shared);
            before.key.extend_from_slice(rest);
            Revision(number(input.u64()?)?)
        };
        // Revisions must be in the lower half of the range of numbers, so that no later write can overflow.
        if !(Revision::FIRST..=Revision(i64::MAX / 2)).contains(&main) {
            return Err(RANGE);
        }
        let sub = if flags & SUB != 0 { input.u32()? } else { 0 };
        let (create_revision, version) = match flags & (TOMBSTONE | FIRST | FOLLOWS) {
            TOMBSTONE => (Revision(0), 0),
            FIRST => (main, 1),
            FOLLOWS if flags & SAME_KEY != 0 && before.version > 0 => {
                (before.create_revision, before.version + 1)
            }
            0 => {
                let create_revision = main - number(input.u64()?)?;
                (create_revision, number(input.u64()?)?)
            }
            _ => return Err(Malformed("an entry with flags that contradict each other")),
        };
        if flags & TOMBSTONE == 0 && !(Revision::FIRST..=main).contains(&create_revision) {
            return Err(RANGE);
        }
        if flags & TOMBSTONE == 0 && !(1..=i64::MAX / 2).contains(&version) {
            return Err(Malformed("a version number out of range"));
        }
        if flags & TOMBSTONE != 0 && flags & (LEASE | VALUE) != 0 {
            return Err(Malformed("a deletion with a lease or a value"));
        }
        let lease = if flags & LEASE != 0 { LeaseId(input.i64()?) } else { LeaseId::NONE };
        let mut payload = if inline { Payload::Inline(b"") } else { Payload::Place(Value::default()) };
        if flags & VALUE != 0 {
            if inline {
                payload = Payload::Inline(input.bytes()?);
            } else {
                let segment = match before.segment {
                    Some(segment) if flags & SAME_SEGMENT != 0 => segment,
                    _ if flags & SAME_SEGMENT != 0 => return Err(Malformed("a value in no segment")),
                    _ => input.u32()?,
                };
                before.segment = Some(segment);
                let location = Location::from_bits((u64::from(segment) << 32) | u64::from(input.u32()?));
                let len = input.u32()?;
                let crc = input.raw(4)?.try_into().map_err(|_| Malformed("bytes beyond the end"))?;
                payload = Payload::Place(Value { location, len, crc: u32::from_le_bytes(crc) });
                if len == 0 || location.stored_bytes(len) == 0 {
                    return Err(Malformed("an empty value with a place"));
                }
            }
        } else if flags & SAME_SEGMENT != 0 {
            return Err(Malformed("an entry with flags that contradict each other"));
        }
        before.any = true;
        before.main = main;
        before.create_revision = create_revision;
        before.version = version;
        Ok(Entry { main, sub, create_revision, version, lease, payload })
    }
}
