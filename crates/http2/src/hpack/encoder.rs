//! Implements the sending side of header compression. A [`Template`] is a header list that is sent often,
//! prepared for encoding.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::shared::{Remembered, is_shared, share};
use super::{ENTRY_BYTES, TABLE_BYTES, put_number, static_table};
use crate::fields::{Class, is_value};

/// Maximum number of templates per connection whose encoding is cached.
const MEMOS_MAX: usize = 8;
/// Maximum size of an encoding that is cached, in bytes. It is small because a field that is in a table takes
/// only one or two bytes.
const MEMO_BYTES: usize = 22;

/// Field that is not allowed: the name is not lower case or has forbidden characters, the value has control
/// characters or white space at an end (RFC 9113, section 8.2.1), the field is specific to HTTP/1 connections
/// (section 8.2.2), or it is an unknown pseudo-header field or one that follows a regular field (section
/// 8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    /// Name of the field, as a string.
    pub name: String,
}

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the header field {:?} cannot be sent", self.name)
    }
}

impl std::error::Error for InvalidField {}

struct Prepared {
    name: Box<[u8]>,
    value: Box<[u8]>,
    hash: u32,
    /// Index of the entry of the static table with this name and value; 0 if there is none.
    whole: u8,
    /// Index of the first entry of the static table with this name; 0 if there is none.
    named: u8,
}

impl Prepared {
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_BYTES
    }
}

struct List {
    id: u64,
    fields: Vec<Prepared>,
    /// Maximum encoded size of the list in bytes.
    bytes_max: usize,
    /// True if the list has fields other than pseudo-header fields.
    has_regular: bool,
}

/// Header list that is sent often, such as the head of each answer. When it is first sent on a connection,
/// its fields enter the connection's compression table, as far as they fit, and take one or two bytes each
/// from then on. A clone counts as the same template.
///
/// Values that change from message to message must not be in a template: they would fill the table, from
/// which no field is evicted for another one.
#[derive(Clone)]
pub struct Template(Arc<List>);

impl Template {
    /// Creates a template from fields in order, pseudo-header fields first.
    ///
    /// # Errors
    ///
    /// Returns an error for the first field that is not allowed.
    pub fn new<N: AsRef<[u8]>, V: AsRef<[u8]>>(
        fields: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Template, InvalidField> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut prepared = Vec::new();
        let mut has_regular = false;
        for (name, value) in fields {
            let (name, value) = (name.as_ref(), value.as_ref());
            check(name, value, &mut has_regular)?;
            let (whole, named) = static_table::find(name, value);
            prepared.push(Prepared {
                name: name.into(),
                value: value.into(),
                hash: hash(name, value),
                whole,
                named,
            });
        }
        let bytes_max = prepared.iter().map(|field| literal_bytes_max(&field.name, &field.value)).sum();
        Ok(Template(Arc::new(List {
            id: NEXT.fetch_add(1, Relaxed),
            fields: prepared,
            bytes_max,
            has_regular,
        })))
    }

    /// Returns the value of a field.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.fields.iter().find(|field| *field.name == *name).map(|field| &*field.value)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let fields = self.0.fields.iter().map(|field| (shown(&field.name), shown(&field.value)));
        f.debug_map().entries(fields).finish()
    }
}

/// Validates the next field of a list. `has_regular` is true if a field other than a pseudo-header field has
/// preceded it, and is updated.
fn check(name: &[u8], value: &[u8], has_regular: &mut bool) -> Result<(), InvalidField> {
    let is_good = match Class::of(name) {
        Class::Pseudo(_) => !*has_regular,
        Class::Regular | Class::ContentLength => true,
        Class::Te => value == b"trailers",
        Class::Forbidden => false,
    };
    if !is_good || !is_value(value) {
        return Err(InvalidField { name: String::from_utf8_lossy(name).into_owned() });
    }
    *has_regular |= !name.starts_with(b":");
    Ok(())
}

/// Returns the FNV-1a hash of name and value, which makes most comparisons of different fields short. Fields
/// with equal hashes are still compared completely.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    let bytes = name.iter().chain(&[0]).chain(value);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Returns the maximum encoded size of a literal field in bytes: type byte, two lengths, two strings.
fn literal_bytes_max(name: &[u8], value: &[u8]) -> usize {
    1 + 6 + name.len() + 6 + value.len()
}

/// Header block that is queued without being encoded. It is encoded only when it is sent, because blocks must
/// be sent in the order in which they were encoded.
#[derive(Debug)]
pub(crate) struct OwnedBlock {
    pub(crate) template: Template,
    pub(crate) more: Vec<OwnedField>,
}

/// Name and value.
type OwnedField = (Box<[u8]>, Box<[u8]>);

/// Entry of the peer's dynamic table, as this end knows it: one field of a template.
#[derive(Clone)]
struct Entry {
    template: Template,
    at: u16,
    hash: u32,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.template.0.id == other.template.0.id && self.at == other.at
    }
}

thread_local! {
    static REMEMBERED: Remembered<VecDeque<Entry>> = const { RefCell::new(Vec::new()) };
}

impl Entry {
    fn field(&self) -> &Prepared {
        &self.template.0.fields[usize::from(self.at)]
    }
}

/// Cached encoding of a template.
struct Memo {
    template: u64,
    /// Value of [`Encoder::changes`] when the template was encoded. If the two values differ, the encoding is
    /// no longer valid, because the table has changed since.
    changes: u32,
    len: u8,
    bytes: [u8; MEMO_BYTES],
}

/// Encodes the header blocks of one direction of a connection, in order.
///
/// Only fields of templates enter the table, and no field is evicted for another one. So the table fills once
/// with fields that are sent often, and then stays the same. All other fields are encoded as literals.
#[derive(Default)]
pub(crate) struct Encoder {
    /// Entries of the peer's dynamic table, newest last. Idle connections share equal tables.
    known: Arc<VecDeque<Entry>>,
    size: u32,
    /// Size limit of the table in bytes: the peer's limit, at most [`TABLE_BYTES`].
    limit: u32,
    /// Smallest limit since the last block; `None` if the limit has not changed. The next block announces it
    /// if it is below the current limit, followed by the current limit (RFC 7541, section 4.2).
    announce: Option<u32>,
    /// Number of changes of the table; wraps. A change invalidates cached encodings.
    changes: u32,
    /// Cached encodings; `None` in an idle connection.
    memos: Option<Box<Memos>>,
}

/// Cached encodings of templates.
#[derive(Default)]
struct Memos {
    list: Vec<Memo>,
    /// Index of the oldest element, which is overwritten next once the list is full.
    next: u8,
}

impl Encoder {
    pub(crate) fn new() -> Encoder {
        Encoder { limit: TABLE_BYTES as u32, ..Encoder::default() }
    }

    /// Sets the table limit to the peer's `SETTINGS_HEADER_TABLE_SIZE` in bytes, from the next block on.
    pub(crate) fn set_limit(&mut self, bytes: u32) {
        let limit = bytes.min(TABLE_BYTES as u32);
        if limit == self.limit {
            return;
        }
        let smallest = self.announce.map_or(limit, |smallest| smallest.min(limit));
        self.announce = Some(smallest);
        self.limit = limit;
        while self.size > limit {
            let Some(oldest) = Arc::make_mut(&mut self.known).pop_front() else { break };
            self.size -= oldest.field().size() as u32;
        }
        self.changes = self.changes.wrapping_add(1);
        self.memos = None;
    }

    /// Frees memory that is kept only to make encoding the next block cheaper.
    pub(crate) fn rest(&mut self) {
        self.memos = None;
        if let Some(known) = Arc::get_mut(&mut self.known) {
            known.shrink_to_fit();
        }
        share(&mut self.known, &REMEMBERED);
    }

    /// Returns the heap memory in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let memos = |memos: &Memos| size_of::<Memos>() + memos.list.capacity() * size_of::<Memo>();
        let known = size_of::<VecDeque<Entry>>() + self.known.capacity() * size_of::<Entry>();
        let known = if is_shared(&self.known) { 0 } else { known };
        known + self.memos.as_deref().map_or(0, memos)
    }

    /// Returns the maximum number of bytes that [`Encoder::encode`] appends.
    pub(crate) fn bytes_max<'a>(
        template: &Template,
        more: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> usize {
        let announcements = 12;
        announcements
            + template.0.bytes_max
            + more.map(|(name, value)| literal_bytes_max(name, value)).sum::<usize>()
    }

    /// Appends a block: the fields of the template, then the fields of `more`.
    pub(crate) fn encode<'a>(
        &mut self,
        template: &Template,
        more: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        if let Some(smallest) = self.announce.take() {
            if smallest < self.limit {
                put_number(out, 0x20, 5, smallest as usize);
            }
            put_number(out, 0x20, 5, self.limit as usize);
        }
        self.encode_template(template, out);
        for (name, value) in more {
            // The field is encoded without entering the table, because its value will probably not be sent
            // again.
            match static_table::find(name, value) {
                (0, 0) => put_literal(out, 0, 4, 0, name, value),
                (0, named) => put_literal(out, 0, 4, named.into(), name, value),
                (whole, _) => put_number(out, 0x80, 7, whole.into()),
            }
        }
    }

    fn encode_template(&mut self, template: &Template, out: &mut Vec<u8>) {
        let list = &*template.0;
        let is_known = |memo: &&Memo| memo.template == list.id && memo.changes == self.changes;
        if let Some(memos) = &self.memos
            && let Some(memo) = memos.list.iter().find(is_known)
        {
            out.extend_from_slice(&memo.bytes[..usize::from(memo.len)]);
            return;
        }
        let (start, before) = (out.len(), self.changes);
        for (at, field) in list.fields.iter().enumerate() {
            if field.whole != 0 {
                put_number(out, 0x80, 7, field.whole.into());
                continue;
            }
            let is_same = |entry: &Entry| {
                let known = entry.field();
                entry.hash == field.hash && known.name == field.name && known.value == field.value
            };
            if let Some(place) = self.known.iter().position(is_same) {
                put_number(out, 0x80, 7, static_table::LEN + self.known.len() - place);
                continue;
            }
            let keeps =
                self.size as usize + field.size() <= self.limit as usize && at <= usize::from(u16::MAX);
            let (pattern, bits) = if keeps { (0x40, 6) } else { (0, 4) };
            put_literal(out, pattern, bits, field.named.into(), &field.name, &field.value);
            if keeps {
                self.size += field.size() as u32;
                let entry = Entry { template: template.clone(), at: at as u16, hash: field.hash };
                Arc::make_mut(&mut self.known).push_back(entry);
                self.changes = self.changes.wrapping_add(1);
            }
        }
        let encoded = &out[start..];
        if self.changes == before && encoded.len() <= MEMO_BYTES {
            let mut memo =
                Memo { template: list.id, changes: before, len: encoded.len() as u8, bytes: [0; MEMO_BYTES] };
            memo.bytes[..encoded.len()].copy_from_slice(encoded);
            self.remember(memo);
        }
    }

    fn remember(&mut self, memo: Memo) {
        let (id, changes) = (memo.template, self.changes);
        let memos = self.memos.get_or_insert_default();
        if let Some(old) = memos.list.iter_mut().find(|old| old.template == id || old.changes != changes) {
            *old = memo;
        } else if memos.list.len() < MEMOS_MAX {
            memos.list.push(memo);
        } else {
            memos.list[usize::from(memos.next)] = memo;
            memos.next = (memos.next + 1) % MEMOS_MAX as u8;
        }
    }
}

fn put_literal(out: &mut Vec<u8>, pattern: u8, bits: u32, named: usize, name: &[u8], value: &[u8]) {
    put_number(out, pattern, bits, named);
    if named == 0 {
        put_number(out, 0, 7, name.len());
        out.extend_from_slice(name);
    }
    put_number(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// Validates fields that are sent after those of a template.
pub(crate) fn check_all(template: &Template, more: &[(&[u8], &[u8])]) -> Result<(), InvalidField> {
    let mut has_regular = template.0.has_regular;
    more.iter().try_for_each(|(name, value)| check(name, value, &mut has_regular))
}
