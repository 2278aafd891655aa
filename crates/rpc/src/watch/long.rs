//! Delivers a revision with more changes than the shard walks over in one turn to watches of one stream.
//!
//! The shard walks over a limited number of the changes per turn, and keeps the responses until the last
//! change. A response contains all events of the revision, unless the client asked for fragments; a fragment
//! is sent as soon as it is full. All changes are walked twice: first to compute the length of each response,
//! so that the second walk can write each response into one buffer of exactly that length.
//!
//! If several streams need exactly the same response, the first of them makes it, and the others wait and
//! share its bytes.

use std::cell::{OnceCell, RefCell};
use std::hash::{BuildHasher as _, RandomState};
use std::rc::{Rc, Weak};

use api::etcdserverpb::ResponseHeader;
use bytes::{Bytes, BytesMut};
use machine::ReadError;
use mvcc::Snapshot;
use numbers::{ChangeId, Revision};

use super::event::{event_field_len, previous_of, put_event};
use super::index::{Index, Keys, Listed};
use super::portion::Portion;
use super::queued::{Body, Queued};
use super::response::{self, HEAD_ROOM};
use super::state::Watch;
use super::stream::{QUEUE_BYTES_MAX, Stream};
use storage::values::Attempt;

/// Progress of some watches of a stream in reading one revision of many changes.
pub(super) struct Long {
    /// The revision being read.
    pub revision: Revision,
    /// Sub revision of the change that is read next.
    sub: u32,
    /// True if the lengths of all responses are known and the changes are read for the second time.
    is_measured: bool,
    /// The watches that read the revision together.
    pub parts: Vec<Part>,
    /// True if the client has been sent a fragment of the revision, but not the last one. Nothing else may be
    /// sent in between.
    pub is_half_sent: bool,
    /// Set while this stream makes a response for which other streams may wait.
    pub claim: Option<Rc<Claim>>,
    /// Response that another stream has finished and given to this stream.
    pub given: Option<Rc<Given>>,
}

/// A response that one stream has made and shares with others.
pub(super) struct Given {
    pub same: Same,
    /// Bytes of the response and its number of events; `None` if no event matches.
    pub response: Option<(Bytes, u32)>,
}

/// Everything in which responses with the events of one revision can differ between watches. If it is equal
/// for two watches, both can be sent the same bytes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Same {
    revision: Revision,
    watch_id: i64,
    previous: Option<Previous>,
    no_put: bool,
    no_delete: bool,
    /// Hash of the keys. It is compared before the keys, because clients may have chosen long keys that
    /// differ only at the end.
    keys_hash: u64,
    keys: Keys,
}

/// Availability of the previous values in a response with `prev_kv`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Previous {
    /// True if the revision is above the compact revision of the snapshot that is read, so that the snapshot
    /// contains the previous values.
    are_there: bool,
    /// True if a hold keeps the previous values until the response is complete, whatever is compacted.
    are_held: bool,
}

impl Previous {
    /// Returns the availability of the previous values of a revision in this snapshot.
    pub fn of(snapshot: Snapshot<'_>, revision: Revision, are_held: bool) -> Previous {
        Previous { are_there: snapshot.compact_revision() < revision, are_held }
    }
}

/// A response that one stream is making, and the streams that wait for the same response. If the stream that
/// makes it gives up, the waiting streams make the response themselves.
pub(super) struct Claim {
    pub same: Same,
    /// The stream that makes the response.
    maker: Weak<Stream>,
    waiting: RefCell<Vec<Rc<Stream>>>,
}

impl Claim {
    pub fn new(same: Same, maker: &Rc<Stream>) -> Rc<Claim> {
        Rc::new(Claim { same, maker: Rc::downgrade(maker), waiting: RefCell::default() })
    }

    /// Makes a stream wait for the response. Wakes the stream that makes it: that one may wait for its client,
    /// and now has to go on, or to give up.
    pub fn wait(&self, stream: &Rc<Stream>) {
        stream.rare().waits_for_another.set(true);
        self.waiting.borrow_mut().push(Rc::clone(stream));
        if let Some(maker) = self.maker.upgrade() {
            maker.wake();
        }
    }

    /// Returns true if any stream waits for the response.
    pub fn is_awaited(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Removes and returns the waiting streams.
    pub fn take_waiting(&self) -> Vec<Rc<Stream>> {
        self.waiting.take()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        for stream in self.take_waiting() {
            stream.rare().waits_for_another.set(false);
            stream.wake();
        }
    }
}

/// A response, or its fragments, being made for one watch.
pub(super) struct Part {
    pub watch: Rc<Watch>,
    /// Hash of the keys of the watch that no client can predict, once it is needed.
    keys_hash: OnceCell<u64>,
    /// Lengths of the response or of each fragment, without the [`HEAD_ROOM`] bytes at its start. The events
    /// may turn out shorter, if the previous revision was compacted after the lengths were computed.
    lens: Vec<usize>,
    /// Number of responses or fragments begun so far.
    begun: usize,
    /// Encoded responses or fragments, each after [`HEAD_ROOM`] bytes, with its number of events. Only the
    /// last one still grows.
    pieces: Vec<(BytesMut, u32)>,
}

/// The result of one turn of reading.
pub(super) struct Turn {
    /// True if the revision was read to its end.
    pub is_whole: bool,
    /// True if at least one change was read.
    pub advanced: bool,
    /// Number of changes that the turn walked over.
    pub walked: usize,
    /// Number of times that a watch was checked against a change.
    pub looks: usize,
    /// Bytes of events that the turn encoded.
    pub bytes: usize,
}

/// Reason why a stream has to end.
pub(super) enum Failed {
    /// A value cannot be read.
    Read(ReadError),
    /// A response of `len` bytes exceeds `bytes_max`, the maximum for this client.
    TooLong { len: usize, bytes_max: usize },
}

impl Part {
    fn bytes(&self) -> usize {
        self.pieces.iter().map(|(bytes, _)| bytes.capacity()).sum()
    }

    /// Adds the length of an event's field to the response or fragment that will contain the event.
    fn measure(&mut self, field_len: usize, fragment_bytes_max: usize) -> Result<(), Failed> {
        let watch = &self.watch;
        let is_full =
            |len: usize| watch.options.fragment() && HEAD_ROOM + len + field_len >= fragment_bytes_max;
        if self.lens.last().is_none_or(|len| is_full(*len)) {
            self.lens.push(0);
        }
        let Some(last) = self.lens.last_mut() else { return Ok(()) };
        *last += field_len;
        let (len, bytes_max) = (HEAD_ROOM + *last, watch.stream.revision_bytes_max());
        if len > bytes_max { Err(Failed::TooLong { len, bytes_max }) } else { Ok(()) }
    }

    fn put(&mut self, field: &[u8], fragment_bytes_max: usize) -> Result<(), Failed> {
        let watch = &self.watch;
        let is_full =
            |bytes: &BytesMut| watch.options.fragment() && bytes.len() + field.len() >= fragment_bytes_max;
        if self.pieces.last().is_none_or(|(bytes, _)| is_full(bytes)) {
            let len = self.lens.get(self.begun).copied().unwrap_or_default();
            let mut bytes = BytesMut::with_capacity(HEAD_ROOM + len);
            bytes.resize(HEAD_ROOM, 0);
            self.pieces.push((bytes, 0));
            self.begun += 1;
        }
        let Some((bytes, events)) = self.pieces.last_mut() else { return Ok(()) };
        let (len, bytes_max) = (bytes.len() + field.len(), watch.stream.revision_bytes_max());
        if len > bytes_max {
            return Err(Failed::TooLong { len, bytes_max });
        }
        bytes.extend_from_slice(field);
        *events += 1;
        Ok(())
    }

    /// Queues the finished pieces: all of them, or all but the last, which still grows. Returns true if any
    /// were queued.
    fn send(&mut self, header: &ResponseHeader, all: bool) -> bool {
        let end = if all { self.pieces.len() } else { self.pieces.len().saturating_sub(1) };
        let more = self.pieces.len() - end;
        for (n, (bytes, events)) in self.pieces.drain(..end).enumerate() {
            let fragment = n + 1 < end + more;
            let bytes = response::sealed(bytes, header, self.watch.id, fragment);
            self.watch.stream.push(Queued { body: Body::One(bytes), events });
            self.watch.quiet.set(false);
        }
        end > 0
    }
}

/// A watch, and its number among those of a [`Long`].
struct Nth {
    watch: Rc<Watch>,
    n: usize,
}

impl Listed for Nth {
    fn keys(&self) -> &Keys {
        &self.watch.keys
    }

    fn serial(&self) -> u64 {
        self.watch.serial
    }
}

impl Long {
    /// Begins to read a revision, for watches of one stream that have received everything before it.
    pub fn new(revision: Revision, watches: Vec<Rc<Watch>>) -> Long {
        let part = |watch| Part {
            watch,
            keys_hash: OnceCell::new(),
            lens: Vec::new(),
            begun: 0,
            pieces: Vec::new(),
        };
        let parts = watches.into_iter().map(part).collect();
        Long { revision, sub: 0, is_measured: false, parts, is_half_sent: false, claim: None, given: None }
    }

    /// Returns the value that streams compare to find out whether they need the same response ([`Same`]). The
    /// result is `None` if the response cannot be shared, because it is for several watches, is already
    /// begun, or is sent in fragments.
    pub fn same(&self, previous: Previous, hasher: &RandomState) -> Option<Same> {
        let [Part { watch, keys_hash, pieces, .. }] = &self.parts[..] else { return None };
        (pieces.is_empty() && self.sub == 0 && !watch.options.fragment()).then(|| Same {
            revision: self.revision,
            watch_id: watch.id,
            previous: watch.options.previous().then_some(previous),
            no_put: watch.options.no_put(),
            no_delete: watch.options.no_delete(),
            keys_hash: *keys_hash.get_or_init(|| hasher.hash_one(&watch.keys)),
            keys: watch.keys.clone(),
        })
    }

    /// Returns the watch for which this stream reads the revision, if the client can be sent `given`, the
    /// response that another stream has made for one of its own watches. That is the case if both watches
    /// need the same bytes ([`Same`]). Otherwise the result is `None`, and this stream makes the response.
    pub fn takes(&self, given: &Given, hasher: &RandomState) -> Option<Rc<Watch>> {
        // The availability of previous values is taken from `given`, not determined again for this stream,
        // and so always compares as equal. This is correct: it was equal for both streams when this stream
        // began to wait, and a waiting stream reads nothing.
        let previous = given.same.previous.unwrap_or(Previous { are_there: false, are_held: false });
        (self.same(previous, hasher).as_ref() == Some(&given.same)).then(|| Rc::clone(&self.parts[0].watch))
    }

    /// Returns the length in bytes of the keys that are compared with those of other streams' responses; 0 if
    /// the response cannot be shared.
    pub fn keys_bytes(&self) -> usize {
        if let [Part { watch, .. }] = &self.parts[..] { watch.keys.bytes() } else { 0 }
    }

    /// Returns the number of bytes that the responses hold.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// Returns an index of the watches by their keys.
    fn index(&self) -> Index<Nth> {
        let mut index = Index::default();
        for (n, part) in self.parts.iter().enumerate() {
            index.insert(Nth { watch: Rc::clone(&part.watch), n });
        }
        index
    }

    /// Walks over the next changes of the revision, as many as one turn may, to compute the lengths of the
    /// responses.
    fn measure(
        &mut self,
        snapshot: Snapshot<'_>,
        portion: Portion,
        fragment_bytes_max: usize,
    ) -> Result<Turn, Failed> {
        let (index, mut wanted_by) = (self.index(), Vec::new());
        let mut turn = Turn { is_whole: false, advanced: true, walked: 0, looks: 0, bytes: 0 };
        for version in snapshot.written_from(ChangeId { main: self.revision, sub: self.sub }, self.revision) {
            if turn.walked > 0 && (turn.walked >= portion.changes || turn.looks >= portion.looks) {
                self.sub = version.sub();
                self.leave_some_for_later();
                return Ok(turn);
            }
            turn.walked += 1;
            let _ = index.visit(version.key(), &mut |Nth { n, .. }: &Nth| {
                turn.looks += 1;
                if self.parts[*n].watch.wants(version) {
                    wanted_by.push(*n);
                }
                std::ops::ControlFlow::Continue(())
            });
            let (mut plain, mut full) = (None, None);
            for n in wanted_by.drain(..) {
                let part = &mut self.parts[n];
                let len = if part.watch.options.previous() {
                    full.get_or_insert_with(|| event_field_len(version, previous_of(snapshot, version)))
                } else {
                    plain.get_or_insert_with(|| event_field_len(version, None))
                };
                part.measure(*len, fragment_bytes_max)?;
            }
        }
        (self.sub, self.is_measured) = (0, true);
        self.leave_some_for_later();
        Ok(turn)
    }

    /// Reduces the number of watches that read the revision together, if their responses would exceed
    /// [`QUEUE_BYTES_MAX`] in total. So a client with many watches on one stream gets these responses in
    /// several groups: the watches that are dropped here read the revision later. The reduced number is
    /// stored as the maximum for their groups too, so that each of them need not reduce it again.
    fn leave_some_for_later(&mut self) {
        let len = |parts: &[Part]| parts.iter().flat_map(|part| &part.lens).sum::<usize>();
        let watches = self.parts.len();
        while self.parts.len() > 1 && len(&self.parts) > QUEUE_BYTES_MAX {
            self.parts.truncate(self.parts.len() / 2);
        }
        if let Some(Part { watch, .. }) = self.parts.first()
            && self.parts.len() < watches
        {
            watch.stream.read_fewer_together(watch.next.get(), self.revision, self.parts.len());
        }
    }

    /// Reads the next changes of the revision, as many as one turn may, and encodes its events into the
    /// responses.
    pub fn read(
        &mut self,
        snapshot: Snapshot<'_>,
        values: &Attempt,
        portion: Portion,
        bytes_max: usize,
        fragment_bytes_max: usize,
    ) -> Result<Turn, Failed> {
        if !self.is_measured {
            return self.measure(snapshot, portion, fragment_bytes_max);
        }
        let (index, from) = (self.index(), self.sub);
        // First change with a missing value. From that change on, this turn encodes nothing into the
        // responses and only looks for further missing values, so that all of them are fetched together.
        let mut absent = None;
        let mut turn = Turn { is_whole: true, advanced: false, walked: 0, looks: 0, bytes: 0 };
        let (mut wanted_by, mut plain, mut full) = (Vec::new(), BytesMut::new(), BytesMut::new());
        for version in snapshot.written_from(ChangeId { main: self.revision, sub: from }, self.revision) {
            let is_enough =
                turn.walked >= portion.changes || turn.looks >= portion.looks || turn.bytes >= bytes_max;
            if turn.walked > 0 && is_enough {
                (turn.is_whole, self.sub) = (false, version.sub());
                break;
            }
            turn.walked += 1;
            let (parts, looks) = (&self.parts, &mut turn.looks);
            let _ = index.visit(version.key(), &mut |Nth { n, .. }: &Nth| {
                *looks += 1;
                if parts[*n].watch.wants(version) {
                    wanted_by.push(*n);
                }
                std::ops::ControlFlow::Continue(())
            });
            let missing = values.missing();
            plain.clear();
            full.clear();
            for n in &wanted_by {
                let previous = self.parts[*n].watch.options.previous();
                let out = if previous { &mut full } else { &mut plain };
                if out.is_empty() {
                    let previous = if previous { previous_of(snapshot, version) } else { None };
                    put_event(out, version, previous, values).map_err(Failed::Read)?;
                    turn.bytes += out.len();
                }
            }
            if values.missing() > missing {
                absent.get_or_insert(version.sub());
            }
            for n in wanted_by.drain(..) {
                if absent.is_none() {
                    let part = &mut self.parts[n];
                    let field = if part.watch.options.previous() { &full } else { &plain };
                    part.put(field, fragment_bytes_max)?;
                }
            }
        }
        if let Some(sub) = absent {
            (turn.is_whole, self.sub) = (false, sub);
        }
        turn.advanced = self.sub > from;
        Ok(turn)
    }

    /// Queues finished fragments of a revision that was not read to its end.
    pub fn send_some(&mut self, header: &ResponseHeader) {
        // A client must not receive interleaved fragments of two watches, so fragments are sent before the
        // revision is complete only if there is a single watch.
        if let [part] = &mut self.parts[..] {
            self.is_half_sent |= part.send(header, false);
        }
    }

    /// Queues the only response of a revision that was read to its end, and returns its bytes and number of
    /// events for the streams that wait for it. Memory for the bytes is reserved only once, until the last
    /// stream has dropped them.
    pub fn shared(&mut self, header: &ResponseHeader) -> Option<(Bytes, u32)> {
        let [part] = &mut self.parts[..] else { return None };
        let (bytes, events) = part.pieces.pop()?;
        let bytes = part.watch.stream.share(response::sealed(bytes, header, part.watch.id, false));
        part.watch.stream.push(Queued::shared(bytes.clone(), events));
        part.watch.quiet.set(false);
        Some((bytes, events))
    }

    /// Queues all remaining pieces; returns the watches that received the revision.
    pub fn send_all(self, header: &ResponseHeader) -> Vec<Rc<Watch>> {
        let mut watches = Vec::with_capacity(self.parts.len());
        for mut part in self.parts {
            part.send(header, true);
            watches.push(part.watch);
        }
        watches
    }
}
