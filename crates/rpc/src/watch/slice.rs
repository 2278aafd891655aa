//! Delivers a slice of consecutive changes to watches. [`Slice::gather`] collects events, and
//! [`Slice::hand_out`] queues responses. Each event is encoded at most twice for all watches together: with
//! and without the previous key-value pair. This module does not know which watches are synced.

use std::ops::{ControlFlow, Range};
use std::rc::Rc;

use api::Code;
use api::Status;
use api::etcdserverpb::ResponseHeader;
use api::limits::GRPC_OVERHEAD_BYTES;
use api::wire::{number_len, put_number};
use bytes::{Bytes, BytesMut};
use front::Messages;
use machine::ReadError;
use mvcc::{Changes, Snapshot, Version};
use numbers::Revision;

use super::event::{event_body_len, previous_of, put_event};
use super::index::Index;
use super::portion::{Done, SliceLimits};
use super::queued::{Queued, SHORT_BYTES};
use super::response;
use super::state::{Matched, Watch};
use crate::encode::put_header;
use storage::values::Attempt;

/// Maximum number of revisions in one slice.
const SLICE_REVISIONS_MAX: usize = 1000;
/// Bytes of events after which a slice ends; its last revision may exceed this.
pub(super) const SLICE_BYTES_MAX: usize = 1 << 20;

/// Position that [`Slice::gather`] has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gathered {
    /// The slice contains everything through this revision.
    Through(Revision),
    /// The slice is empty: its first revision, which this variant names, matches more watches than the work
    /// limit allows.
    TooMuch(Revision),
    /// The slice is empty: its first revision, which this variant names, has more changes than the work limit
    /// allows, even for a single watch.
    TooLong(Revision),
}

/// Maximum capacity that is reserved for events before they are encoded. The buffer grows if they need more.
const ARENA_BYTES: usize = 2 * SLICE_BYTES_MAX;

/// The two encodings of an event: with and without the previous key-value pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    WithPrevious,
}

struct SliceEvent<'a> {
    version: Version<'a>,
    /// Previous version, once it was looked up.
    previous: Option<Option<Version<'a>>>,
    /// Start and end of the encoded field in the arena, indexed by form.
    encoded: [Option<(usize, usize)>; 2],
    /// True if a value of the event is not in memory, indexed by form.
    absent: [bool; 2],
}

/// The response made for the last watch. The next watch often needs the same response.
struct Made {
    watch_id: i64,
    form: Form,
    fragment: bool,
    matched: Matched,
    parts: Vec<(Bytes, u32)>,
}

/// A short response is never cut into fragments, because the limit for a fragment is above
/// [`GRPC_OVERHEAD_BYTES`].
const _: () = assert!(SHORT_BYTES < GRPC_OVERHEAD_BYTES);

/// The short response that was made last, as [`Messages::push_framed`] takes it. The next watch often needs
/// the same response with another watch id, and gets it at the cost of one copy.
struct ShortResponse {
    /// The encoded header, which is the same for all watches.
    header: BytesMut,
    /// Watch id of the response.
    watch_id: i64,
    form: Form,
    /// Events of the response; none if no response was made yet.
    matched: Matched,
    /// The response after its gRPC prefix.
    framed: Vec<u8>,
}

impl ShortResponse {
    fn new(header: &ResponseHeader) -> ShortResponse {
        let mut encoded = BytesMut::new();
        put_header(&mut encoded, header);
        let (matched, framed) = (Matched::default(), Vec::new());
        ShortResponse { header: encoded, watch_id: 0, form: Form::Plain, matched, framed }
    }

    /// Returns true if the response has these events in this form.
    fn has(&self, form: Form, matched: &Matched) -> bool {
        !self.framed.is_empty() && self.form == form && self.matched == *matched
    }

    /// Returns the length of the response for another watch, without its gRPC prefix.
    fn len_for(&self, watch_id: i64) -> usize {
        self.framed.len() - Messages::wire_len(number_len(self.watch_id)) + number_len(watch_id)
    }

    /// Makes the response for a watch, with these encoded events.
    fn make(&mut self, watch_id: i64, form: Form, matched: Matched, fields: &[u8]) {
        let id = WatchIdField::new(watch_id);
        self.framed.clear();
        Messages::frame(&mut self.framed, [&self.header, id.bytes(), fields]);
        (self.watch_id, self.form, self.matched) = (watch_id, form, matched);
    }

    /// Changes the response to that for another watch.
    fn set_watch_id(&mut self, watch_id: i64) {
        if watch_id == self.watch_id {
            return;
        }
        let id = WatchIdField::new(watch_id);
        let start = Messages::wire_len(self.header.len());
        let end = start + number_len(self.watch_id);
        if id.bytes().len() == end - start {
            self.framed[start..end].copy_from_slice(id.bytes());
        } else {
            let fields = self.framed.split_off(end);
            self.framed.clear();
            Messages::frame(&mut self.framed, [&self.header, id.bytes(), &fields]);
        }
        self.watch_id = watch_id;
    }
}

/// The encoded field `watch_id` of a response.
struct WatchIdField {
    bytes: [u8; WATCH_ID_BYTES_MAX],
    len: usize,
}

/// Maximum length of the field `watch_id`: its tag, and a number of 64 bits.
const WATCH_ID_BYTES_MAX: usize = 1 + 10;

impl WatchIdField {
    fn new(watch_id: i64) -> WatchIdField {
        let mut bytes = [0; WATCH_ID_BYTES_MAX];
        put_number(&mut &mut bytes[..], 2, watch_id);
        WatchIdField { bytes, len: number_len(watch_id) }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Where the encoded events of a short response are.
enum ShortFields {
    /// Adjacent in the arena, in this range.
    InArena(Range<usize>),
    /// In several places of the arena.
    InPieces,
    /// A value is not in memory.
    Absent,
}

/// Result of the attempt to queue a short response.
enum Short {
    Told,
    /// The queue is full, or a value is not in memory; the watch has to read the changes later.
    LeftBehind,
    /// The response is too long for this client or not short, or its events are not adjacent in the arena.
    Not,
}

/// Consecutive changes of one state, with the watches that they match.
pub(super) struct Slice<'a> {
    snapshot: Snapshot<'a>,
    values: &'a Attempt,
    events: Vec<SliceEvent<'a>>,
    /// Encoded events, adjacent to each other.
    arena: BytesMut,
    touched: Vec<Rc<Watch>>,
    looks: usize,
    walked: usize,
    copied: usize,
    made: Option<Made>,
}

impl<'a> Slice<'a> {
    /// Collects changes from `changes` for the watches of `index` until the slice is full; the slice ends
    /// between two revisions. Also returns how far it got: through `current` if no changes are left.
    pub fn gather(
        snapshot: Snapshot<'a>,
        values: &'a Attempt,
        changes: Changes<'a>,
        index: &Index<Rc<Watch>>,
        current: Revision,
        limits: SliceLimits,
    ) -> (Slice<'a>, Gathered) {
        let portion = limits.portion;
        let mut slice = Slice {
            snapshot,
            values,
            events: Vec::new(),
            arena: BytesMut::new(),
            touched: Vec::new(),
            made: None,
            looks: 0,
            walked: 0,
            copied: 0,
        };
        let (mut revisions, mut bytes, mut last) = (0, 0, Revision(0));
        // Last revision that is completely in the slice, and the number of the first event of the next
        // revision.
        let (mut whole, mut begins) = (Revision(0), 0);
        for version in changes {
            if version.main() != last {
                (whole, begins) = (last, slice.events.len());
                let is_full = revisions >= SLICE_REVISIONS_MAX
                    || bytes >= SLICE_BYTES_MAX
                    || slice.copied >= limits.room.most
                    || revisions >= limits.revisions_min
                        && (slice.copied >= limits.room.soon
                            || slice.done().left_of(limits.enough).is_none());
                if revisions > 0 && is_full {
                    slice.arena.reserve(bytes.min(ARENA_BYTES));
                    return (slice, Gathered::Through(whole));
                }
                (revisions, last) = (revisions + 1, version.main());
            }
            let is_long = slice.walked >= portion.changes;
            slice.walked += 1;
            let number = slice.events.len() as u32;
            let (touched, looks) = (&mut slice.touched, &mut slice.looks);
            let (mut wanted, mut wanted_by) = (None, 0);
            let mut visit = |watch: &Rc<Watch>| {
                if *looks >= portion.looks {
                    return ControlFlow::Break(());
                }
                *looks += 1;
                if watch.wants(version) {
                    let mut matched = watch.matched.take();
                    if matched.is_empty() {
                        if touched.len() >= portion.watches {
                            return ControlFlow::Break(());
                        }
                        touched.push(Rc::clone(watch));
                    }
                    matched.push(number);
                    watch.matched.set(matched);
                    wanted_by += 1;
                    wanted = Some(wanted.unwrap_or(false) || watch.options.previous());
                }
                ControlFlow::Continue(())
            };
            let mut flow =
                if is_long { ControlFlow::Break(()) } else { index.visit(version.key(), &mut visit) };
            if let Some(previous) = wanted {
                slice.events.push(SliceEvent {
                    version,
                    previous: None,
                    encoded: [None; 2],
                    absent: [false; 2],
                });
                let form = if previous { Form::WithPrevious } else { Form::Plain };
                let len = slice.field_len(number, form);
                bytes += len;
                slice.copied = slice.copied.saturating_add(len.saturating_mul(wanted_by));
                if slice.copied > portion.bytes {
                    flow = ControlFlow::Break(());
                }
            }
            if flow.is_break() {
                slice.leave_out(begins);
                slice.arena.reserve(bytes.min(ARENA_BYTES));
                let gathered = match whole {
                    Revision(0) if is_long => Gathered::TooLong(last),
                    Revision(0) => Gathered::TooMuch(last),
                    whole => Gathered::Through(whole),
                };
                return (slice, gathered);
            }
        }
        slice.arena.reserve(bytes.min(ARENA_BYTES));
        (slice, Gathered::Through(current))
    }

    /// Removes the event with number `begins` and all later events, from the slice and from the matched
    /// events of the watches.
    fn leave_out(&mut self, begins: usize) {
        self.events.truncate(begins);
        self.touched.retain(|watch| {
            let mut matched = watch.matched.take();
            matched.truncate(begins);
            let is_concerned = !matched.is_empty();
            watch.matched.set(matched);
            is_concerned
        });
    }

    /// Drops the slice, and clears the matched events of all its watches.
    pub fn leave(mut self) {
        self.leave_out(0);
    }

    /// Returns the work that collecting the slice took.
    pub fn done(&self) -> Done {
        Done { walked: self.walked, told: self.touched.len(), looks: self.looks, bytes: self.copied }
    }

    /// Queues the responses of all matching watches. Returns the watches that got none, because their queue
    /// is full or some of their values are not in memory.
    pub fn hand_out(mut self, header: &ResponseHeader, fragment_bytes_max: usize) -> Vec<Rc<Watch>> {
        let mut left_behind = Vec::new();
        let mut short = ShortResponse::new(header);
        for watch in std::mem::take(&mut self.touched) {
            let mut matched = watch.matched.take();
            if watch.stream.has_ended() {
                continue;
            }
            match self.hand_short(&watch, &mut matched, &mut short) {
                Ok(Short::Told) => {
                    watch.quiet.set(false);
                    continue;
                }
                Ok(Short::LeftBehind) => {
                    left_behind.push(watch);
                    continue;
                }
                Ok(Short::Not) => {}
                Err(error) => {
                    watch.stream.end(cannot_read(&error));
                    continue;
                }
            }
            match self.hand_to(&watch, matched, header, fragment_bytes_max) {
                Ok(true) => watch.quiet.set(false),
                Ok(false) => left_behind.push(watch),
                Err(error) => watch.stream.end(cannot_read(&error)),
            }
        }
        left_behind
    }

    /// Queues the response of a watch, if the response is short. The copy that `short` keeps for the next
    /// watch then has the events of `matched`.
    fn hand_short(
        &mut self,
        watch: &Watch,
        matched: &mut Matched,
        short: &mut ShortResponse,
    ) -> Result<Short, ReadError> {
        let form = if watch.options.previous() { Form::WithPrevious } else { Form::Plain };
        let is_made = short.has(form, matched);
        let len = if is_made {
            short.len_for(watch.id)
        } else {
            short.header.len() + number_len(watch.id) + self.fields_len(matched, form, SHORT_BYTES)
        };
        if len > SHORT_BYTES || len > watch.stream.revision_bytes_max() {
            return Ok(Short::Not);
        }
        if !watch.stream.has_room(len) {
            return Ok(Short::LeftBehind);
        }
        let count = matched.len() as u32;
        if is_made {
            short.set_watch_id(watch.id);
        } else {
            match self.short_fields(matched, form)? {
                ShortFields::InArena(fields) => {
                    short.make(watch.id, form, std::mem::take(matched), &self.arena[fields]);
                }
                ShortFields::Absent => return Ok(Short::LeftBehind),
                ShortFields::InPieces => return Ok(Short::Not),
            }
        }
        watch.stream.push_short(&short.framed, count);
        Ok(Short::Told)
    }

    /// Returns the length of the fields of these events. If it exceeds `len_max`, returns any number above
    /// that.
    fn fields_len(&mut self, matched: &Matched, form: Form, len_max: usize) -> usize {
        let mut len = 0;
        for number in matched.iter() {
            len += match self.events[number as usize].encoded[form as usize] {
                Some((start, end)) => end - start,
                None => self.field_len(number, form),
            };
            if len > len_max {
                break;
            }
        }
        len
    }

    /// Encodes the fields of these events if they are not encoded yet.
    fn short_fields(&mut self, matched: &Matched, form: Form) -> Result<ShortFields, ReadError> {
        // The events of the first watch become adjacent in the arena, because they are encoded in order. For
        // a later watch, other events may lie between them. In that case `hand_to` makes its response.
        let (mut fields, mut is_one_piece, mut is_whole) = (0..0, true, true);
        for number in matched.iter() {
            // For a value that is not in memory, `encode` returns `None` and records it as missing. The loop
            // continues, so that all missing values are fetched together.
            match self.encode(number, form)? {
                None => is_whole = false,
                Some((start, end)) if fields.is_empty() => fields = start..end,
                Some((start, end)) => {
                    is_one_piece &= start == fields.end;
                    fields.end = end;
                }
            }
        }
        Ok(if !is_whole {
            ShortFields::Absent
        } else if is_one_piece {
            ShortFields::InArena(fields)
        } else {
            ShortFields::InPieces
        })
    }

    fn hand_to(
        &mut self,
        watch: &Watch,
        matched: Matched,
        header: &ResponseHeader,
        fragment_bytes_max: usize,
    ) -> Result<bool, ReadError> {
        let form = if watch.options.previous() { Form::WithPrevious } else { Form::Plain };
        let is_made = self.made.as_ref().is_some_and(|made| {
            made.watch_id == watch.id
                && made.form == form
                && made.fragment == watch.options.fragment()
                && made.matched == matched
        });
        if !is_made {
            let lens: Vec<usize> = matched.iter().map(|number| self.field_len(number, form)).collect();
            let head_len = response::head_len(header, watch.id);
            let (len, bytes_max) = (lens.iter().sum::<usize>(), watch.stream.revision_bytes_max());
            if len > bytes_max {
                // Checked before any fragment is queued, because a response must be sent completely or not at
                // all.
                watch.stream.end(too_long(len, bytes_max));
                return Ok(true);
            }
            if !watch.stream.has_room(head_len + len) {
                return Ok(false);
            }
            let mut spans = Vec::with_capacity(matched.len());
            for number in matched.iter() {
                // For a value that is not in memory, `encode` returns `None` and records it as missing. The
                // loop continues, so that all missing values are fetched together.
                spans.extend(self.encode(number, form)?);
            }
            if spans.len() < matched.len() {
                return Ok(false);
            }
            let parts = if watch.options.fragment() {
                response::fragments(head_len, &lens, fragment_bytes_max)
            } else {
                std::iter::once(0..lens.len()).collect()
            };
            let parts = parts.into_iter().map(|part: Range<usize>| {
                let len = lens[part.clone()].iter().sum();
                let fragment = part.end < lens.len();
                let fields = spans[part.clone()].iter().map(|(start, end)| &self.arena[*start..*end]);
                let bytes = response::events(header, watch.id, fragment, fields, len);
                (watch.stream.share(bytes), part.len() as u32)
            });
            let parts = parts.collect();
            self.made =
                Some(Made { watch_id: watch.id, form, fragment: watch.options.fragment(), matched, parts });
        }
        let parts = self.made.as_ref().map_or(&[][..], |made| &made.parts);
        if is_made && !watch.stream.has_room(parts.iter().map(|(bytes, _)| bytes.len()).sum()) {
            return Ok(false);
        }
        for (bytes, events) in parts {
            watch.stream.push(Queued::shared(bytes.clone(), *events));
        }
        Ok(true)
    }

    /// Returns the length in bytes of an event's field in a response.
    fn field_len(&mut self, number: u32, form: Form) -> usize {
        response::event_field_len(self.body_len(number, form))
    }

    fn body_len(&mut self, number: u32, form: Form) -> usize {
        let previous = if form == Form::WithPrevious { self.previous(number) } else { None };
        event_body_len(self.events[number as usize].version, previous)
    }

    /// Returns the version before an event; `None` if there is none or it is compacted.
    fn previous(&mut self, number: u32) -> Option<Version<'a>> {
        let event = &mut self.events[number as usize];
        *event.previous.get_or_insert_with(|| previous_of(self.snapshot, event.version))
    }

    /// Encodes an event's field if it is not encoded yet. Returns its start and end in the arena, or `None`
    /// if a value is not in memory.
    fn encode(&mut self, number: u32, form: Form) -> Result<Option<(usize, usize)>, ReadError> {
        let event = &self.events[number as usize];
        if let Some(span) = event.encoded[form as usize] {
            return Ok(Some(span));
        }
        if event.absent[form as usize] {
            return Ok(None);
        }
        let missing = self.values.missing();
        let previous = if form == Form::WithPrevious { self.previous(number) } else { None };
        let version = self.events[number as usize].version;
        let start = self.arena.len();
        put_event(&mut self.arena, version, previous, self.values)?;
        let span = (start, self.arena.len());
        let event = &mut self.events[number as usize];
        if self.values.missing() > missing {
            event.absent[form as usize] = true;
            self.arena.truncate(span.0);
            return Ok(None);
        }
        event.encoded[form as usize] = Some(span);
        Ok(Some(span))
    }
}

/// Returns the status that a stream ends with when a value of an event cannot be read.
pub(super) fn cannot_read(error: &ReadError) -> Status {
    Status::with(Code::Internal, format!("etcdserver: cannot read an event's value: {error}"))
}

/// Returns the status that a stream ends with when the events of one revision exceed the maximum length of a
/// response.
pub(super) fn too_long(len: usize, bytes_max: usize) -> Status {
    let text = format!("grpc: trying to send message larger than max ({len} vs. {bytes_max})");
    Status::with(Code::ResourceExhausted, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_for_another_watch_differs_in_its_id_only() {
        let header = ResponseHeader { cluster_id: 1 << 60, member_id: 7, revision: 300, raft_term: 2 };
        let fields = [7; 100];
        let matched = |number| {
            let mut matched = Matched::default();
            matched.push(number);
            matched
        };
        let mut short = ShortResponse::new(&header);
        assert!(!short.has(Form::Plain, &Matched::default()), "no response was made");
        short.make(5, Form::Plain, matched(3), &fields);
        for watch_id in [5, 6, 0, 127, 128, 300, -1, i64::MAX, 0, 1] {
            let whole =
                response::events(&header, watch_id, false, std::iter::once(&fields[..]), fields.len());
            assert_eq!(short.len_for(watch_id), whole.len());
            short.set_watch_id(watch_id);
            let mut framed = Vec::new();
            Messages::frame(&mut framed, [&whole]);
            assert_eq!(short.framed, framed, "{watch_id}");
        }
        assert!(short.has(Form::Plain, &matched(3)));
        assert!(!short.has(Form::WithPrevious, &matched(3)));
        assert!(!short.has(Form::Plain, &matched(4)));
    }
}
