//! Records which keys the proxy owns, with their values, and decides how reads of these keys are answered.
//! This is a state machine without IO, which `leasing` and `session` drive.
//!
//! The proxy owns a key from the response that confirms its leasing key until the proxy leaves the key. To
//! leave a key means to give up its ownership: the kept value is no longer used for responses, and the
//! leasing key is deleted. Writes of the key through other proxies wait for this deletion. No read is
//! answered from a kept value when the lease to which the leasing keys are attached may have expired.
//!
//! A write of an owned key through this proxy counts as in flight from before its request is sent until its
//! response arrives. In this time, reads of the key are not answered from the kept value. If writes of a key
//! overlap in time, their order is not known, so the value has to be read again.
//!
//! If the outcome of a write is not known, or the write may still be carried out later, the proxy leaves the
//! key. When it owns the key again, the new leasing key has a higher creation revision, so the condition of
//! the late write does not hold. For example, the proxy owns `k` by a leasing key created at revision 7, and
//! a put of `k` gets no response in time. The condition of the put is "the leasing key was created before 8".
//! The proxy leaves `k`, and the leasing key is deleted. When `k` is read, another leasing key is created at
//! revision 9. If the put arrives only now, its condition does not hold, so the value that was read at 9
//! stays valid.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse,
};
use api::mvccpb::KeyValue;
use bytes::Bytes;

use crate::cache::{Keys, overlap};

/// Maximum number of owned keys. Beyond it, the ownership of the least recently used keys is given up.
const OWNED_MAX: usize = 10_000;
/// Maximum number of recorded keys: those that the proxy owns or is claiming, and those whose ownership it
/// has given up but whose leasing key is not deleted yet. When the limit is reached, no further key is
/// claimed.
const KEYS_MAX: usize = 2 * OWNED_MAX;
/// Maximum total size of the recorded keys and their values, in bytes. Beyond it, the proxy gives up the
/// ownership of the least recently used keys.
const BYTES_MAX: usize = 64 << 20;
/// Maximum size of the value of an owned key, in bytes. The ownership of a key with a larger value is given
/// up.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of conditions, and of operations in each branch, of a transaction that the proxy answers
/// itself. A longer one is sent to a member, which may refuse it: this is the members' default limit.
const TRANSACTION_MAX: usize = 128;
/// Maximum size of the keys and values in the response to a transaction that is answered without a member, in
/// bytes.
const TRANSACTION_BYTES_MAX: usize = 1 << 20;
/// Maximum number of ranges of one write that are compared with each recorded key. All shards (the proxy's
/// threads) wait during this comparison, so for a write with more ranges, the ownership of all keys is given
/// up instead.
const COMPARED_MAX: usize = 128;
/// Time for which this proxy does not claim a key after a claim of the key was refused, or another proxy has
/// asked for the key. Source: etcd's leasing.
const REFUSED: Duration = Duration::from_secs(2);
/// Maximum number of remembered keys that must not be claimed for now. Beyond it, the oldest are forgotten,
/// and may be claimed again.
const REFUSED_MAX: usize = 10_000;

/// Record of a key that the proxy is claiming or owns, or whose leasing key it has to delete.
#[derive(Debug)]
struct Entry {
    /// Creation revision of the leasing key; `i64::MAX` while it is not known.
    granted: i64,
    /// State of the ownership, and the value of the key if it is known.
    state: State,
    /// Number of writes that began while the key was owned, and are still in flight.
    writes: usize,
    /// Number of writes that began since the proxy became the owner of the key.
    begun: u64,
    /// True if two writes have been in flight at the same time since [`Entry::writes`] was last zero.
    overlapped: bool,
    /// Number of the last use of this entry: its position in [`Owned::order`] while the proxy owns the key.
    used: u64,
}

/// State of a recorded key.
#[derive(Clone, Debug)]
enum State {
    /// A claim is in flight. The number is the revision of the last change of the leasing key that was
    /// reported in the meantime; 0 for none, and `i64::MAX` after [`Owned::leave_all`]. If the claim succeeds
    /// at a lower revision, the proxy gives up the key again immediately, because another proxy has asked for
    /// it, or the leasing key was deleted.
    Asked(i64),
    /// The key is owned, and this is its current value; `None` if the key does not exist.
    Known(Option<KeyValue>),
    /// The key is owned, but its value has to be read again.
    Unknown,
    /// The ownership of the key was given up, but its leasing key is not deleted yet.
    Left,
}

impl State {
    fn is_owned(&self) -> bool {
        matches!(self, State::Known(_) | State::Unknown)
    }
}

/// The lease to which all leasing keys are attached.
#[derive(Clone, Copy, Debug)]
struct Session {
    /// Id of the lease.
    lease: i64,
    /// Time until which the lease certainly does not expire on the members.
    until: Instant,
}

/// Decision on how to answer a read.
#[derive(Debug, PartialEq)]
pub(crate) enum Read {
    /// The proxy itself gives this response.
    Known(RangeResponse),
    /// A member answers the read, without a claim to the key.
    Member,
    /// A member answers the read in a transaction that also claims the key with this lease. The caller must
    /// then report the outcome to [`Owned::claimed`], [`Owned::claim_refused`] or [`Owned::give_up_claim`].
    Claim(i64),
    /// A member answers the read. The response is passed to [`Owned::read_again`], together with this moment.
    Again(Moment),
}

/// State of a key's ownership at the time when a read of the key began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Value of [`Entry::granted`] at that time.
    granted: i64,
    /// Value of [`Entry::begun`] at that time.
    begun: u64,
}

/// A write that is in flight: the owned keys that the write may change, each with the creation revision of
/// its leasing key.
#[derive(Debug)]
pub(crate) struct Write(Vec<(Bytes, i64)>);

/// Outcome of a write.
#[derive(Debug)]
pub(crate) enum Outcome<'w> {
    /// The write was carried out, with these changes and this header.
    Done(&'w [Change], &'w ResponseHeader),
    /// The write was not carried out, and will not be.
    Refused,
    /// It is not known whether the write was or will be carried out.
    Lost,
}

/// A change made by a write.
#[derive(Debug)]
pub(crate) enum Change {
    /// A key was put.
    Put(PutRequest),
    /// The keys of a range were deleted.
    Deleted(Keys),
}

/// All data about ownership in this proxy. The shards share it behind a lock that is held only for short
/// times.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// The session; `None` while no key may be owned.
    session: Option<Session>,
    /// The recorded keys: those that are claimed or owned, or whose leasing key has to be deleted.
    keys: HashMap<Bytes, Entry>,
    /// Owned keys by their last use, the least recently used first.
    order: BTreeMap<u64, Bytes>,
    /// Number of the next use in [`Owned::order`].
    uses: u64,
    /// Total size of the keys and values in [`Owned::keys`], in bytes.
    bytes: usize,
    /// Keys that must not be claimed for now, each with the time at which this restriction ends.
    refused: HashMap<Bytes, Instant>,
    /// Keys and times that were added to [`Owned::refused`], the oldest first.
    refusals: VecDeque<(Bytes, Instant)>,
    /// Keys whose leasing keys have to be deleted. The number is the highest creation revision of a leasing
    /// key that may be deleted.
    to_delete: BTreeMap<Bytes, i64>,
    /// The header with the highest revision among all responses of members during this session.
    newest: ResponseHeader,
}

/// Returns a copy of these bytes. Without the copy, the bytes, which are a slice of a received message, would
/// keep the whole message in memory.
fn alone(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// Returns a copy of a key and its value, for the same reason as [`alone`].
fn kv_alone(kv: KeyValue) -> KeyValue {
    KeyValue { key: alone(&kv.key), value: alone(&kv.value), ..kv }
}

fn size_of(key: &Bytes, state: &State) -> usize {
    let value = match state {
        State::Known(Some(kv)) => kv.key.len() + kv.value.len(),
        _ => 0,
    };
    key.len() + value
}

impl Owned {
    /// Begins a session. The lease may be used for owning keys until the time `until`.
    pub(crate) fn begin(&mut self, lease: i64, until: Instant) {
        self.end();
        self.session = Some(Session { lease, until });
        // Forget the newest header: the members' addresses may now belong to another cluster, whose revisions
        // are lower.
        self.newest = ResponseHeader::default();
    }

    /// Records that the lease was renewed and is now valid until the time `until`.
    pub(crate) fn renewed(&mut self, until: Instant) {
        if let Some(session) = &mut self.session {
            session.until = until;
        }
    }

    /// Ends the session. From now on, no key is owned.
    pub(crate) fn end(&mut self) {
        self.session = None;
        self.keys.clear();
        self.order.clear();
        self.bytes = 0;
        self.to_delete.clear();
    }

    /// Returns the number of recorded keys.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Takes the pending deletions. Each consists of a key and a revision: the key's leasing key has to be
    /// deleted if it was created at this revision or before.
    pub(crate) fn take_to_delete(&mut self) -> BTreeMap<Bytes, i64> {
        std::mem::take(&mut self.to_delete)
    }

    /// Returns true if deletions are pending.
    pub(crate) fn has_to_delete(&self) -> bool {
        !self.to_delete.is_empty()
    }

    /// Returns the lease of the session; `None` if there is no session or its lease may have expired.
    pub(crate) fn lease(&self, now: Instant) -> Option<i64> {
        self.session.filter(|session| now < session.until).map(|session| session.lease)
    }

    /// Records the header of a member's response. Reads of owned keys are answered with the newest recorded
    /// header: the kept values are also the values at its revision, because no other proxy could write them.
    pub(crate) fn told(&mut self, header: &ResponseHeader) {
        if header.revision > self.newest.revision {
            self.newest = *header;
        }
    }

    /// Decides how to answer a read.
    pub(crate) fn read(&mut self, request: &RangeRequest, now: Instant) -> Read {
        let Some(lease) = self.lease(now).filter(|_| is_plain(request)) else { return Read::Member };
        let newest = self.newest;
        let key = &request.key;
        if let Some(entry) = self.keys.get_mut(key) {
            let moment = Moment { granted: entry.granted, begun: entry.begun };
            return match &entry.state {
                _ if entry.writes > 0 => Read::Member,
                State::Known(kv) => {
                    let answer = answer(request, kv.as_ref(), newest);
                    if let Some(key) = self.order.remove(&entry.used) {
                        entry.used = self.uses;
                        self.order.insert(self.uses, key);
                        self.uses += 1;
                    }
                    Read::Known(answer)
                }
                State::Unknown if !request.serializable => Read::Again(moment),
                _ => Read::Member,
            };
        }
        let may_claim = !request.serializable && !self.is_refused(key, now) && self.keys.len() < KEYS_MAX;
        if !may_claim {
            return Read::Member;
        }
        self.insert(key, i64::MAX, State::Asked(0));
        Read::Claim(lease)
    }

    /// Handles a successful claim. The leasing key was created at the revision of the header, and `kv` is the
    /// key with its value at that revision; `None` if the key does not exist.
    pub(crate) fn claimed(&mut self, key: &Bytes, lease: i64, header: &ResponseHeader, kv: Option<KeyValue>) {
        let granted = header.revision;
        if self.session.is_none_or(|session| session.lease != lease) {
            // The leasing key belongs to an earlier session, so it gives no ownership now. It is deleted
            // together with the lease of that session, which was revoked or will expire.
            return;
        }
        let asked = self.keys.get(key).map(|entry| entry.state.clone());
        let is_wanted = match asked {
            Some(State::Asked(wanted)) => wanted > granted,
            // The claim is not recorded, so changes of its leasing key may have been missed. Give the key up.
            _ => true,
        };
        let is_fit = kv.as_ref().is_none_or(|kv| kv.lease == 0 && kv.value.len() <= VALUE_BYTES_MAX);
        self.forget(key);
        if is_wanted || !is_fit {
            self.insert(key, granted, State::Left);
            return self.delete_up_to(key, granted);
        }
        self.insert(key, granted, State::Known(kv.map(kv_alone)));
        self.make_room();
    }

    /// Handles a claim that did not succeed: the key has a leasing key already, the key is attached to a
    /// lease, or a member has refused the transaction. `leasing_key` is the existing leasing key; `None` if
    /// there is none or the transaction was refused.
    pub(crate) fn claim_refused(&mut self, key: &Bytes, leasing_key: Option<&KeyValue>, now: Instant) {
        if matches!(self.keys.get(key), Some(Entry { state: State::Asked(_), .. })) {
            self.forget(key);
            let lease = self.session.map(|session| session.lease);
            if let Some(own) = leasing_key.filter(|kv| Some(kv.lease) == lease) {
                // The existing leasing key is this proxy's own, from an earlier claim whose response was
                // lost. Delete it, because the key's value is not known.
                self.insert(key, own.create_revision, State::Left);
                self.delete_up_to(key, own.create_revision);
            }
        }
        self.refuse(key, now);
    }

    /// Ends a claim whose outcome is not known, and schedules the deletion of the leasing key, which may
    /// exist.
    pub(crate) fn give_up_claim(&mut self, key: &Bytes) {
        if matches!(self.keys.get(key), Some(Entry { state: State::Asked(_), .. })) {
            self.leave(key);
        }
    }

    /// Handles the response to a read that was sent because the value of an owned key was not known. The
    /// value is kept unless the ownership of the key has changed, or a write of the key has begun, since
    /// `moment`. If the key is attached to a lease or its value is too large, the proxy leaves the key
    /// instead.
    pub(crate) fn read_again(&mut self, key: &Bytes, moment: Moment, kv: Option<KeyValue>) {
        let Some(entry) = self.keys.get(key) else { return };
        let is_same = (entry.granted, entry.begun, entry.writes) == (moment.granted, moment.begun, 0);
        if !is_same || !matches!(entry.state, State::Unknown) {
            return;
        }
        match kv {
            Some(kv) if kv.lease != 0 || kv.value.len() > VALUE_BYTES_MAX => self.leave(key),
            kv => self.set(key, State::Known(kv.map(kv_alone))),
        }
        self.make_room();
    }

    /// Handles a change of a leasing key: another proxy has asked for the key, or the leasing key was
    /// deleted.
    pub(crate) fn leasing_key_changed(&mut self, key: &Bytes, event: LeasingEvent, now: Instant) {
        let revision = event.revision;
        let lease = self.session.map(|session| session.lease);
        let Some(entry) = self.keys.get_mut(key) else {
            // No entry records this leasing key, but it may be attached to the session's lease nevertheless.
            // If another proxy asks for the key in that case, it waits until this proxy deletes the leasing
            // key. So schedule the deletion.
            if event.is_wanted_back && Some(event.lease) == lease {
                self.insert(key, revision, State::Left);
                self.delete_up_to(key, revision);
            }
            return;
        };
        match &mut entry.state {
            State::Asked(wanted) => *wanted = revision.max(*wanted),
            State::Left if event.is_deleted => self.forget(key),
            State::Left => {
                // Delete this leasing key, too. It is possibly another one, which this proxy has created by a
                // claim whose response was lost.
                if event.is_wanted_back && Some(event.lease) == lease {
                    self.delete_up_to(key, revision);
                }
            }
            State::Known(_) | State::Unknown if revision <= entry.granted => {}
            State::Known(_) | State::Unknown => {
                if event.is_wanted_back {
                    self.refuse(key, now);
                }
                self.leave(key);
            }
        }
    }

    /// Records that the leasing key of a key whose ownership was given up is deleted.
    pub(crate) fn deleted(&mut self, key: &Bytes) {
        if self.keys.get(key).is_some_and(|entry| matches!(entry.state, State::Left)) {
            self.forget(key);
        }
    }

    /// Returns the creation revision of this proxy's leasing key of a key; 0 if this proxy does not own the
    /// key. A write of the key must not be carried out if a leasing key with a higher creation revision
    /// exists, because in that case another proxy owns the key.
    pub(crate) fn granted(&self, key: &Bytes) -> i64 {
        self.keys.get(key).filter(|entry| entry.state.is_owned()).map_or(0, |entry| entry.granted)
    }

    /// Records that a write of these keys and ranges begins. The result must be passed to [`Owned::written`].
    pub(crate) fn write(&mut self, written: &[Keys]) -> Write {
        let (singles, ranges): (Vec<_>, Vec<_>) = written.iter().partition(|keys| keys.1.is_empty());
        if ranges.len() > COMPARED_MAX {
            self.leave_all();
            return Write(Vec::new());
        }
        let mut touched: Vec<Bytes> = singles.into_iter().map(|keys| keys.0.clone()).collect();
        if !ranges.is_empty() {
            let is_in = |key: &&Bytes| {
                let itself: Keys = ((*key).clone(), Bytes::new());
                ranges.iter().any(|range| overlap(range, &itself))
            };
            touched.extend(self.keys.keys().filter(is_in).cloned());
        }
        touched.sort_unstable();
        touched.dedup();
        let begin = |key: Bytes| {
            // A write of a key that is not owned is not recorded here: it is carried out only if the key has
            // no leasing key, so no proxy keeps a value that the write would make outdated.
            let entry = self.keys.get_mut(&key).filter(|entry| entry.state.is_owned())?;
            entry.overlapped |= entry.writes > 0;
            entry.writes += 1;
            entry.begun += 1;
            Some((key, entry.granted))
        };
        Write(touched.into_iter().filter_map(begin).collect())
    }

    /// Records that a write has ended with this outcome.
    pub(crate) fn written(&mut self, write: Write, outcome: &Outcome<'_>) {
        for (key, granted) in write.0 {
            let Some(entry) = self.keys.get_mut(&key) else { continue };
            if entry.granted != granted || !entry.state.is_owned() {
                continue;
            }
            entry.writes -= 1;
            let overlapped = entry.overlapped;
            entry.overlapped &= entry.writes > 0;
            let next = match outcome {
                Outcome::Lost => State::Left,
                Outcome::Done(..) if overlapped => State::Unknown,
                Outcome::Refused if overlapped => State::Unknown,
                Outcome::Refused => continue,
                Outcome::Done(changes, header) => changed(&key, &entry.state, changes, header),
            };
            match next {
                State::Left => self.leave(&key),
                state => self.set(&key, state),
            }
        }
        self.make_room();
    }

    /// Returns the response to a transaction that only reads owned keys. Returns `None` if a member has to
    /// answer, for example because a key is not owned, the transaction is too large, or it reads no key at
    /// all; in the last case only a member knows the current revision.
    pub(crate) fn transaction(&self, request: &TxnRequest, now: Instant) -> Option<TxnResponse> {
        self.lease(now)?;
        let longest = request.compare.len().max(request.success.len()).max(request.failure.len());
        if longest > TRANSACTION_MAX || self.newest.revision <= 0 {
            return None;
        }
        let known = |key: &Bytes| match self.keys.get(key)? {
            Entry { state: State::Known(kv), writes: 0, .. } => Some(kv.as_ref()),
            _ => None,
        };
        let mut succeeded = true;
        for compare in &request.compare {
            if !compare.range_end.is_empty() {
                return None;
            }
            succeeded &= holds(compare, known(&compare.key)?)?;
        }
        let ops = if succeeded { &request.success } else { &request.failure };
        let header = ResponseHeader { revision: self.newest.revision, ..ResponseHeader::default() };
        if request.compare.is_empty() && ops.is_empty() {
            return None;
        }
        let mut room = TRANSACTION_BYTES_MAX;
        let one = |op: &RequestOp| match &op.request {
            Some(Request::RequestRange(request)) if is_plain(request) => {
                let range = answer(request, known(&request.key)?, header);
                let bytes: usize = range.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
                room = room.checked_sub(bytes)?;
                Some(ResponseOp { response: Some(Response::ResponseRange(range)) })
            }
            _ => None,
        };
        let responses = ops.iter().map(one).collect::<Option<Vec<_>>>()?;
        Some(TxnResponse { header: Some(self.newest), succeeded, responses })
    }

    /// Records that a key must not be claimed for the time [`REFUSED`].
    pub(crate) fn refuse(&mut self, key: &Bytes, now: Instant) {
        let (key, until) = (alone(key), now + REFUSED);
        self.refused.insert(key.clone(), until);
        self.refusals.push_back((key, until));
        while let Some((oldest, until)) = self.refusals.front() {
            if *until > now && self.refusals.len() <= REFUSED_MAX {
                return;
            }
            if self.refused.get(oldest) == Some(until) {
                self.refused.remove(oldest);
            }
            self.refusals.pop_front();
        }
    }

    fn is_refused(&self, key: &Bytes, now: Instant) -> bool {
        self.refused.get(key).is_some_and(|until| now < *until)
    }

    /// Leaves all keys (gives up their ownership): stops answering reads of them, and schedules the deletion
    /// of their leasing keys.
    pub(crate) fn leave_all(&mut self) {
        for key in std::mem::take(&mut self.order).into_values() {
            self.leave(&key);
        }
        for entry in self.keys.values_mut() {
            // A claim in flight cannot be given up before its response arrives. This value makes `claimed`
            // give the key up at that time.
            if let State::Asked(wanted) = &mut entry.state {
                *wanted = i64::MAX;
            }
        }
    }

    /// Leaves a key (gives up its ownership): stops answering reads of it, and schedules the deletion of its
    /// leasing key.
    fn leave(&mut self, key: &Bytes) {
        let Some(granted) = self.keys.get(key).map(|entry| entry.granted) else { return };
        self.delete_up_to(key, granted);
        self.set(key, State::Left);
    }

    /// Schedules the deletion of the leasing key of a key, if that leasing key was created at this revision
    /// or before.
    fn delete_up_to(&mut self, key: &Bytes, revision: i64) {
        match self.to_delete.get_mut(key) {
            Some(known) => *known = revision.max(*known),
            None => drop(self.to_delete.insert(alone(key), revision)),
        }
    }

    /// Adds an entry. Keys and values in its state must be copies, see [`alone`].
    fn insert(&mut self, key: &Bytes, granted: i64, state: State) {
        let key = alone(key);
        let used = self.uses;
        self.uses += 1;
        self.bytes += size_of(&key, &state);
        if state.is_owned() {
            self.order.insert(used, key.clone());
        }
        let entry = Entry { granted, state, writes: 0, begun: 0, overlapped: false, used };
        let before = self.keys.insert(key, entry);
        assert!(before.is_none(), "an entry is removed before another takes its place");
    }

    /// Changes the state of an entry. Keys and values in the new state must be copies, see [`alone`].
    fn set(&mut self, key: &Bytes, state: State) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        self.bytes -= size_of(key, &entry.state);
        self.bytes += size_of(key, &state);
        let ordered = self.order.remove(&entry.used);
        if state.is_owned() {
            self.order.insert(entry.used, ordered.unwrap_or_else(|| alone(key)));
        }
        entry.state = state;
    }

    fn forget(&mut self, key: &Bytes) {
        if let Some(entry) = self.keys.remove(key) {
            self.bytes -= size_of(key, &entry.state);
            self.order.remove(&entry.used);
        }
    }

    /// Gives up the ownership of the least recently used keys until at most [`OWNED_MAX`] keys are owned and
    /// the size is at most [`BYTES_MAX`], or no key is owned.
    fn make_room(&mut self) {
        while self.order.len() > OWNED_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.leave(&oldest);
        }
    }
}

/// A change of a leasing key that the watch has reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeasingEvent {
    /// Revision of the change.
    pub(crate) revision: i64,
    /// Lease of the leasing key; 0 if the leasing key was deleted.
    pub(crate) lease: i64,
    /// True if the leasing key was deleted.
    pub(crate) is_deleted: bool,
    /// True if the change is another proxy's request to give up the key.
    pub(crate) is_wanted_back: bool,
}

/// Returns true if this is a read of a single key at the current revision, so that it can be answered from
/// the key's kept value.
fn is_plain(request: &RangeRequest) -> bool {
    request.revision == 0
        && request.range_end.is_empty()
        && !request.key.is_empty()
        && request.limit >= 0
        && request.sort_order == 0
        && request.sort_target == 0
}

/// Returns the response to a read of one key.
pub(super) fn answer(request: &RangeRequest, kv: Option<&KeyValue>, header: ResponseHeader) -> RangeResponse {
    let is_within = |kv: &&KeyValue| {
        let within = |revision: i64, min: i64, max: i64| revision >= min && (max == 0 || revision <= max);
        within(kv.mod_revision, request.min_mod_revision, request.max_mod_revision)
            && within(kv.create_revision, request.min_create_revision, request.max_create_revision)
    };
    let shown = |kv: &KeyValue| {
        let mut kv = kv.clone();
        if request.keys_only {
            kv.value = Bytes::new();
        }
        kv
    };
    let kvs = kv.filter(|_| !request.count_only).filter(is_within).map(shown);
    RangeResponse {
        header: Some(header),
        kvs: kvs.into_iter().collect(),
        more: false,
        count: i64::from(kv.is_some()),
    }
}

/// Returns true if a condition holds for this key. Returns `None` if the condition is malformed. In that
/// case, the transaction is sent to a member, which reports the error.
fn holds(compare: &Compare, kv: Option<&KeyValue>) -> Option<bool> {
    let target = CompareTarget::try_from(compare.target).ok()?;
    let number = |of: fn(&KeyValue) -> i64| kv.map_or(0, of);
    let found = match (target, compare.target_union.as_ref()?) {
        // Every condition on the value of a missing key is false, as on a member.
        (CompareTarget::Value, TargetUnion::Value(value)) => match kv {
            Some(kv) => kv.value.cmp(value),
            None => return Some(false),
        },
        (CompareTarget::Version, TargetUnion::Version(version)) => number(|kv| kv.version).cmp(version),
        (CompareTarget::Create, TargetUnion::CreateRevision(revision)) => {
            number(|kv| kv.create_revision).cmp(revision)
        }
        (CompareTarget::Mod, TargetUnion::ModRevision(revision)) => {
            number(|kv| kv.mod_revision).cmp(revision)
        }
        (CompareTarget::Lease, TargetUnion::Lease(lease)) => number(|kv| kv.lease).cmp(lease),
        _ => return None,
    };
    Some(match CompareResult::try_from(compare.result).ok()? {
        CompareResult::Equal => found.is_eq(),
        CompareResult::Greater => found.is_gt(),
        CompareResult::Less => found.is_lt(),
        CompareResult::NotEqual => found.is_ne(),
    })
}

/// Returns the state of an owned key after a write.
fn changed(key: &Bytes, before: &State, changes: &[Change], header: &ResponseHeader) -> State {
    let itself: Keys = (key.clone(), Bytes::new());
    let mut state = before.clone();
    for change in changes {
        match change {
            Change::Deleted(keys) if overlap(keys, &itself) => state = State::Known(None),
            Change::Put(put) if put.key == *key => {
                if put.lease != 0 || put.value.len() > VALUE_BYTES_MAX {
                    // Give the key up: either it is now attached to a lease, whose end would delete it
                    // without waiting for the owner, or its value is too large to be kept.
                    return State::Left;
                }
                let State::Known(before) = &state else { continue };
                let value = match before {
                    Some(before) if put.ignore_value => before.value.clone(),
                    _ => alone(&put.value),
                };
                state = State::Known(Some(KeyValue {
                    key: alone(key),
                    create_revision: before.as_ref().map_or(header.revision, |kv| kv.create_revision),
                    mod_revision: header.revision,
                    version: before.as_ref().map_or(1, |kv| kv.version + 1),
                    value,
                    lease: 0,
                }));
            }
            Change::Deleted(_) | Change::Put(_) => {}
        }
    }
    state
}

#[cfg(test)]
mod tests;
