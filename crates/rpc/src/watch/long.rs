//! A revision with more changes than a turn of the shard walks over, on its way to watches of one stream.
//!
//! Its changes are walked a portion at a time, and what was made of them waits here until the last. A response holds all
//! events of the revision, unless the client asked for fragments: those go as soon as each is full. All changes are walked
//! twice, first only to learn how long each response gets: it is then made in one piece of memory of just that length.
//!
//! Streams whose clients must get the very same response wait for the first of them to make it, and share its bytes.

use std::cell::RefCell;
use std::rc::Rc;

use api::etcdserverpb::ResponseHeader;
use bytes::{Bytes, BytesMut};
use machine::ReadError;
use mvcc::Snapshot;
use numbers::{ChangeId, Revision};

use super::event::{event_field_len, previous_of, put_event};
use super::index::{Index, Keys};
use super::portion::Portion;
use super::queued::{Body, Queued};
use super::response::{self, HEAD_ROOM};
use super::stream::{QUEUE_BYTES_MAX, Stream, Watch};
use storage::values::Attempt;

/// Progress of some watches of a stream in reading one revision of many changes.
pub(super) struct Long {
    /// The revision.
    pub revision: Revision,
    /// The change that is read next.
    sub: u32,
    /// True if the lengths of all responses are known and the changes are read for the second time.
    is_measured: bool,
    /// The watches that read the revision together.
    pub parts: Vec<Part>,
    /// True if the client has been sent a fragment of the revision, so that nothing else may be sent before the last one.
    pub is_half_sent: bool,
    /// While others may wait for what is made here.
    pub claim: Option<Rc<Claim>>,
    /// The response that another stream has made.
    pub given: Option<Rc<Given>>,
}

/// The response that one stream has made for others too.
pub(super) struct Given {
    pub same: Same,
    /// Bytes of the response and its number of events; `None` if no event matches.
    pub response: Option<(Bytes, u32)>,
}

/// Everything that a response with the events of one revision depends on. Equal values mean equal bytes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Same {
    revision: Revision,
    watch_id: i64,
    previous: Option<Previous>,
    no_put: bool,
    no_delete: bool,
    /// Hash of the keys, compared before the keys, which clients may have made long and alike.
    keys_hash: u64,
    keys: Keys,
}

/// The previous values that a response has, if it has any.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Previous {
    /// True if they were readable when the response was begun.
    are_there: bool,
    /// True if they are kept until the response is made, whatever is compacted meanwhile.
    are_held: bool,
}

impl Previous {
    /// Returns the previous values of a revision, as this state has them.
    pub fn of(snapshot: Snapshot<'_>, revision: Revision, are_held: bool) -> Previous {
        Previous { are_there: snapshot.compact_revision() < revision, are_held }
    }
}

/// Streams that wait for a response that another one is making. They go on by themselves if it gives up.
pub(super) struct Claim {
    pub same: Same,
    waiting: RefCell<Vec<Rc<Stream>>>,
}

impl Claim {
    pub fn new(same: Same) -> Rc<Claim> {
        Rc::new(Claim { same, waiting: RefCell::default() })
    }

    /// Makes a stream wait for the response.
    pub fn wait(&self, stream: &Rc<Stream>) {
        stream.rare().waits_for_another.set(true);
        self.waiting.borrow_mut().push(Rc::clone(stream));
    }

    /// Takes those that wait.
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

/// The response that is being made for one watch.
pub(super) struct Part {
    pub watch: Rc<Watch>,
    /// The lengths of all its responses, from behind [`HEAD_ROOM`] bytes in each. Changes may turn out shorter, if the
    /// revision before was compacted since.
    lens: Vec<usize>,
    /// Number of events that were begun.
    begun: usize,
    /// Responses from behind [`HEAD_ROOM`], and how many events are in each. Only the last one grows.
    pieces: Vec<(BytesMut, u32)>,
}

/// The result of one turn of reading.
pub(super) struct Turn {
    /// True if the revision was read to its end.
    pub is_whole: bool,
    /// True if anything was read.
    pub advanced: bool,
    /// The number of changes that the turn has walked over.
    pub walked: usize,
    /// Number of looks at watches.
    pub looks: usize,
    /// Bytes of events that it has made.
    pub bytes: usize,
}

/// Why a stream has to end.
pub(super) enum Failed {
    /// A value cannot be read.
    Read(ReadError),
    /// A response is longer than this one may be.
    TooLong { len: usize, bytes_max: usize },
}

impl Part {
    fn bytes(&self) -> usize {
        self.pieces.iter().map(|(bytes, _)| bytes.capacity()).sum()
    }

    /// Counts a field for the response that it will be in.
    fn measure(&mut self, field_len: usize, fragment_bytes_max: usize) -> Result<(), Failed> {
        let watch = &self.watch;
        let is_full = |len: usize| watch.fragment && HEAD_ROOM + len + field_len >= fragment_bytes_max;
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
        let is_full = |bytes: &BytesMut| watch.fragment && bytes.len() + field.len() >= fragment_bytes_max;
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

    /// Queues its pieces, all of them or all but the one that grows. Returns whether there were any.
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

impl Long {
    /// Begins to read a revision, for watches of one stream that have read everything before it.
    pub fn new(revision: Revision, watches: Vec<Rc<Watch>>) -> Long {
        let part = |watch| Part { watch, lens: Vec::new(), begun: 0, pieces: Vec::new() };
        let parts = watches.into_iter().map(part).collect();
        Long { revision, sub: 0, is_measured: false, parts, is_half_sent: false, claim: None, given: None }
    }

    /// Returns what its response depends on, if it makes one for a single watch and has not begun.
    pub fn same(&self, previous: Previous) -> Option<Same> {
        let [Part { watch, pieces, .. }] = &self.parts[..] else { return None };
        (pieces.is_empty() && self.sub == 0 && !watch.fragment).then(|| Same {
            revision: self.revision,
            watch_id: watch.id,
            previous: watch.previous.then_some(previous),
            no_put: watch.no_put,
            no_delete: watch.no_delete,
            keys_hash: watch.keys_hash,
            keys: watch.keys.clone(),
        })
    }

    /// Returns the watch that another stream's response is for, if that response is the same as it waits for.
    pub fn takes(&self, given: &Given) -> Option<Rc<Watch>> {
        // As it was when it began to wait; both have the same since.
        let previous = given.same.previous.unwrap_or(Previous { are_there: false, are_held: false });
        (self.same(previous).as_ref() == Some(&given.same)).then(|| Rc::clone(&self.parts[0].watch))
    }

    /// Bytes of the keys that are compared with those of what others make.
    pub fn keys_bytes(&self) -> usize {
        if let [Part { watch, .. }] = &self.parts[..] { watch.keys.bytes() } else { 0 }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// Returns an index of the watches by their keys.
    fn index(&self) -> Index<usize> {
        let mut index = Index::default();
        for (n, part) in self.parts.iter().enumerate() {
            index.insert(&part.watch.keys, part.watch.serial, n);
        }
        index
    }

    /// Looks at a portion of the revision to learn how long the responses get.
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
            let _ = index.visit(version.key(), &mut |n: &usize| {
                turn.looks += 1;
                if self.parts[*n].watch.wants(version) {
                    wanted_by.push(*n);
                }
                std::ops::ControlFlow::Continue(())
            });
            let (mut plain, mut full) = (None, None);
            for n in wanted_by.drain(..) {
                let part = &mut self.parts[n];
                let len = if part.watch.previous {
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

    /// Leaves some of the watches for later if their responses together are large: a client that watches a lot with one
    /// stream is told one watch after the other. The number stays lower, so that this is found out once.
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

    /// Reads a portion of the revision.
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
        // The first change of which a value is not at hand. Those behind it are only looked at for what they lack, so
        // that this is fetched together.
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
            let _ = index.visit(version.key(), &mut |n: &usize| {
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
                let previous = self.parts[*n].watch.previous;
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
                    let field = if part.watch.previous { &full } else { &plain };
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

    /// Queues what is ready of a revision that has not been read to its end.
    pub fn send_some(&mut self, header: &ResponseHeader) {
        // The fragments of two watches do not mix.
        if let [part] = &mut self.parts[..] {
            self.is_half_sent |= part.send(header, false);
        }
    }

    /// The one response of a revision that was read to its end, and how many events are in it, for those that wait for
    /// it too. It is charged once, as long as anybody holds it.
    pub fn shared(&mut self, header: &ResponseHeader) -> Option<(Bytes, u32)> {
        let [part] = &mut self.parts[..] else { return None };
        let (bytes, events) = part.pieces.pop()?;
        let bytes = part.watch.stream.share(response::sealed(bytes, header, part.watch.id, false));
        part.watch.stream.push(Queued::shared(bytes.clone(), events));
        part.watch.quiet.set(false);
        Some((bytes, events))
    }

    /// Queues everything; returns those who have heard it.
    pub fn send_all(self, header: &ResponseHeader) -> Vec<Rc<Watch>> {
        let mut watches = Vec::with_capacity(self.parts.len());
        for mut part in self.parts {
            part.send(header, true);
            watches.push(part.watch);
        }
        watches
    }
}
