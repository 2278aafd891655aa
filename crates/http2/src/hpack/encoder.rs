//! The sending side of header compression: [`Template`]s are header lists that are sent again and again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::shared::{Remembered, is_shared, share};
use super::{ENTRY_BYTES, TABLE_BYTES, put_number, static_table};
use crate::fields::{Class, is_value};

/// Encoded templates that are remembered of a connection.
const MEMOS_MAX: usize = 8;
/// Bytes of the longest encoded template that is remembered. A field that is in a table takes one or two.
const MEMO_BYTES: usize = 22;

/// A field that cannot be sent: the name is not lower case or has characters that names do not have, the value has control
/// characters or white space at an end (RFC 9113, section 8.2.1), the field concerns a connection of HTTP/1 (section 8.2.2), or
/// it is a pseudo-header field that is not known or follows another field (section 8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    /// The name, as text.
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
    /// Index of the static entry that is the field; 0 for none.
    whole: u8,
    /// Index of the first static entry with the name; 0 for none.
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
    /// Most bytes that it takes encoded.
    bytes_max: usize,
    /// It has fields besides pseudo-header fields.
    has_regular: bool,
}

/// A header list that is sent often, such as the head of every answer. Its fields go into the table of the connection the
/// first time and take a byte each from then on, as far as the table has room. A clone is the same template.
///
/// Values that differ from message to message do not belong here: they would fill the table, which never forgets.
#[derive(Clone)]
pub struct Template(Arc<List>);

impl Template {
    /// Makes a template of fields in order, pseudo-header fields first.
    ///
    /// # Errors
    ///
    /// For the first field that cannot be sent.
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

    /// The value of a field.
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

/// Checks the next field of a list; `has_regular` says whether a field came that is no pseudo-header field.
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

/// FNV-1a over name and value. Equal hashes are compared in full.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    let bytes = name.iter().chain(&[0]).chain(value);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Most bytes of a literal: its first byte, two lengths, two texts.
fn literal_bytes_max(name: &[u8], value: &[u8]) -> usize {
    1 + 6 + name.len() + 6 + value.len()
}

/// A block that waits to be encoded. It is encoded when its turn comes, since blocks have to be sent in the order in which
/// they were encoded.
#[derive(Debug)]
pub(crate) struct OwnedBlock {
    pub(crate) template: Template,
    pub(crate) more: Vec<OwnedField>,
}

/// Name and value.
type OwnedField = (Box<[u8]>, Box<[u8]>);

/// An entry of the other end's table: the field of a template.
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

/// A template as it was encoded.
struct Memo {
    template: u64,
    /// [`Encoder::changes`] at that time.
    changes: u32,
    len: u8,
    bytes: [u8; MEMO_BYTES],
}

/// Encodes the header blocks of one direction of a connection, in order.
///
/// Only fields of templates go into the table, and none leaves it for another: the table is filled once, with what is sent
/// most, and then stays. Everything else is a literal.
#[derive(Default)]
pub(crate) struct Encoder {
    /// What the other end's table holds; newest last. Connections that rest share it with others that have the same.
    known: Arc<VecDeque<Entry>>,
    size: u32,
    /// Bound of the table: what the other end allows, at most [`TABLE_BYTES`].
    limit: u32,
    /// The smallest bound since the last block, if it changed: the next block announces it, and then the present one (RFC
    /// 7541, section 4.2).
    announce: Option<u32>,
    /// Counts changes of the table, after which an encoded template says something else.
    changes: u32,
    /// Templates as they were encoded, while the connection is used.
    memos: Option<Box<Memos>>,
}

/// Templates that are remembered.
#[derive(Default)]
struct Memos {
    list: Vec<Memo>,
    /// Place of the next one, once there are as many as may be.
    next: u8,
}

impl Encoder {
    pub(crate) fn new() -> Encoder {
        Encoder { limit: TABLE_BYTES as u32, ..Encoder::default() }
    }

    /// The other end's `SETTINGS_HEADER_TABLE_SIZE` in bytes, from the next block on.
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

    /// Gives back memory that only makes the next block cheaper.
    pub(crate) fn rest(&mut self) {
        self.memos = None;
        if let Some(known) = Arc::get_mut(&mut self.known) {
            known.shrink_to_fit();
        }
        share(&mut self.known, &REMEMBERED);
    }

    /// Bytes held on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let memos = |memos: &Memos| size_of::<Memos>() + memos.list.capacity() * size_of::<Memo>();
        let known = size_of::<VecDeque<Entry>>() + self.known.capacity() * size_of::<Entry>();
        let known = if is_shared(&self.known) { 0 } else { known };
        known + self.memos.as_deref().map_or(0, memos)
    }

    /// Most bytes that [`Encoder::encode`] appends.
    pub(crate) fn bytes_max<'a>(
        template: &Template,
        more: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> usize {
        let announcements = 12;
        announcements
            + template.0.bytes_max
            + more.map(|(name, value)| literal_bytes_max(name, value)).sum::<usize>()
    }

    /// Appends a block: the template's fields, then further ones.
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
            // Without indexing: the value is unlikely to come again.
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

/// Checks fields that are to be sent behind those of a template.
pub(crate) fn check_all(template: &Template, more: &[(&[u8], &[u8])]) -> Result<(), InvalidField> {
    let mut has_regular = template.0.has_regular;
    more.iter().try_for_each(|(name, value)| check(name, value, &mut has_regular))
}
