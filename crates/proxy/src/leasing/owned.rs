//! The keys that the proxy owns, and their values: state in, state out. It does no IO; `leasing` and `session` drive it.
//!
//! A key is owned from the answer about its leasing key's creation on until its entry is left: then its value is not told any
//! more, and the leasing key is deleted. Whoever else writes the key waits for that. Nothing is told after the lease of the
//! session may have run out.
//!
//! A write of an owned key is under way from before its request to its answer; nothing is told of the key meanwhile. When
//! writes of a key overlap, or what one wrote is not known from its request, the value is read again. When it is not known
//! whether a write was carried out, or still will be, the entry is left: the leasing key that comes after has a higher
//! revision of creation, which the write's guard refuses.
//!
//! For example, the proxy owns `k` by a leasing key of revision 7, and a put of `k` gets no answer in time. The put's guard is
//! "the leasing key was created before 8". The entry is left, the leasing key is deleted, and created again at 9 when `k` is
//! read. If the put arrives only now, its guard fails, so that the value which was read at 9 stays true.

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

/// Keys owned at a time.
const OWNED_MAX: usize = 10_000;
/// Keys owned, asked for, or being left at a time.
const KEYS_MAX: usize = 2 * OWNED_MAX;
/// Bytes of all keys and values kept.
const BYTES_MAX: usize = 64 << 20;
/// Largest value kept, in bytes.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// Longest list of a transaction that is answered without a member: conditions, and operations of each branch. As many as
/// members allow unless they are told otherwise.
const TRANSACTION_MAX: usize = 128;
/// Bytes of keys and values in the answer to such a transaction.
const TRANSACTION_BYTES_MAX: usize = 1 << 20;
/// Ranges of one write that keys are compared with one by one. All shards wait meanwhile.
const COMPARED_MAX: usize = 128;
/// Time for which a key is not owned again after somebody else wanted it, or had it. Source: etcd's leasing.
const REFUSED: Duration = Duration::from_secs(2);
/// Keys remembered that are not to be owned for now.
const REFUSED_MAX: usize = 10_000;

/// The ownership of one key.
#[derive(Debug)]
struct Entry {
    /// Revision at which the leasing key was created; `i64::MAX` if it is not known.
    granted: i64,
    /// What is known of the key.
    state: State,
    /// Writes under way that began while the key was owned.
    writes: usize,
    /// Writes that have begun since the key is owned.
    begun: u64,
    /// Two writes have been under way at a time since [`Entry::writes`] was zero.
    overlapped: bool,
    /// Place in the order of use.
    used: u64,
}

/// What is known of a key that is owned, was asked for, or is left.
#[derive(Clone, Debug)]
enum State {
    /// The leasing key was asked for. The last revision at which somebody wanted it back, or it was deleted; 0: none.
    Asked(i64),
    /// The key as it is now; `None`: it does not exist.
    Known(Option<KeyValue>),
    /// Owned, but the value has to be read again.
    Unknown,
    /// The leasing key is to be deleted.
    Left,
}

impl State {
    fn is_owned(&self) -> bool {
        matches!(self, State::Known(_) | State::Unknown)
    }
}

/// The lease that ownership hangs on.
#[derive(Clone, Copy, Debug)]
struct Session {
    /// Number of the lease.
    lease: i64,
    /// Time up to which a member keeps the lease for certain.
    until: Instant,
}

/// How a read is answered.
#[derive(Debug, PartialEq)]
pub(crate) enum Read {
    /// With this.
    Known(RangeResponse),
    /// By a member, without a claim to the key.
    Member,
    /// By a member, together with a claim in the name of this lease; [`Owned::claimed`] or [`Owned::give_up_claim`] follows.
    Claim(i64),
    /// By a member, for [`Owned::read_again`].
    Again(Moment),
}

/// The state of a key's ownership when a read of it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// [`Entry::granted`] at that moment.
    granted: i64,
    /// [`Entry::begun`] at that moment.
    begun: u64,
}

/// A write under way: the owned keys that it may touch, and revisions of their leasing keys.
#[derive(Debug)]
pub(crate) struct Write(Vec<(Bytes, i64)>);

/// What became of a write.
#[derive(Debug)]
pub(crate) enum Outcome<'w> {
    /// It was carried out, with these changes and this header.
    Done(&'w [Change], &'w ResponseHeader),
    /// It was not, and will not be.
    Refused,
    /// Nobody can tell.
    Lost,
}

/// A change that a write has made.
#[derive(Debug)]
pub(crate) enum Change {
    /// A key was put.
    Put(PutRequest),
    /// The keys of a range were deleted.
    Deleted(Keys),
}

/// All ownership of the proxy. All shards share it; it is held for moments.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// The session; `None`: no key may be owned now.
    session: Option<Session>,
    /// The keys that are owned, asked for, or being left.
    keys: HashMap<Bytes, Entry>,
    /// Owned keys by their last use, the oldest first.
    order: BTreeMap<u64, Bytes>,
    /// Number of the next use in [`Owned::order`].
    uses: u64,
    /// Bytes of keys and values in [`Owned::keys`].
    bytes: usize,
    /// Keys that are not to be owned, and until when.
    refused: HashMap<Bytes, Instant>,
    /// What was put into [`Owned::refused`], the oldest first.
    refusals: VecDeque<(Bytes, Instant)>,
    /// Keys whose leasing key is to be deleted, and up to which revision of creation.
    to_delete: BTreeMap<Bytes, i64>,
    /// Header of the newest answer of a member.
    newest: ResponseHeader,
}

/// These bytes alone: a slice of a message holds the whole message.
fn alone(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// A key and its value alone, as [`alone`].
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
    /// Keys may be owned with this lease from now on, until then.
    pub(crate) fn begin(&mut self, lease: i64, until: Instant) {
        self.end();
        self.session = Some(Session { lease, until });
        // The cluster may be another one, with lower revisions.
        self.newest = ResponseHeader::default();
    }

    /// The lease was renewed.
    pub(crate) fn renewed(&mut self, until: Instant) {
        if let Some(session) = &mut self.session {
            session.until = until;
        }
    }

    /// Nothing is owned any more.
    pub(crate) fn end(&mut self) {
        self.session = None;
        self.keys.clear();
        self.order.clear();
        self.bytes = 0;
        self.to_delete.clear();
    }

    /// Keys that are owned, asked for or being left.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Takes what is to be deleted: keys, and up to which revision of creation their leasing key.
    pub(crate) fn take_to_delete(&mut self) -> BTreeMap<Bytes, i64> {
        std::mem::take(&mut self.to_delete)
    }

    /// True if there is something to be deleted.
    pub(crate) fn has_to_delete(&self) -> bool {
        !self.to_delete.is_empty()
    }

    /// The lease of the session, if it stands.
    pub(crate) fn lease(&self, now: Instant) -> Option<i64> {
        self.session.filter(|session| now < session.until).map(|session| session.lease)
    }

    /// Notes the header of an answer. What is told of owned keys has the newest one: they have not changed up to it.
    pub(crate) fn told(&mut self, header: &ResponseHeader) {
        if header.revision > self.newest.revision {
            self.newest = *header;
        }
    }

    /// How to answer a read.
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

    /// The answer to a claim: the leasing key was created at this revision, and the key is this.
    pub(crate) fn claimed(&mut self, key: &Bytes, lease: i64, header: &ResponseHeader, kv: Option<KeyValue>) {
        let granted = header.revision;
        if self.session.is_none_or(|session| session.lease != lease) {
            // The leasing key goes with its lease.
            return;
        }
        let asked = self.keys.get(key).map(|entry| entry.state.clone());
        let is_wanted = match asked {
            Some(State::Asked(wanted)) => wanted > granted,
            // A new session has begun, and ended, in between.
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

    /// A claim was refused: the key belongs to somebody else, or to a lease. `leasing_key` is the one that there is.
    pub(crate) fn claim_refused(&mut self, key: &Bytes, leasing_key: Option<&KeyValue>, now: Instant) {
        if matches!(self.keys.get(key), Some(Entry { state: State::Asked(_), .. })) {
            self.forget(key);
            let lease = self.session.map(|session| session.lease);
            if let Some(own) = leasing_key.filter(|kv| Some(kv.lease) == lease) {
                // An earlier claim whose answer was lost.
                self.insert(key, own.create_revision, State::Left);
                self.delete_up_to(key, own.create_revision);
            }
        }
        self.refuse(key, now);
    }

    /// Nobody knows what became of a claim.
    pub(crate) fn give_up_claim(&mut self, key: &Bytes) {
        if matches!(self.keys.get(key), Some(Entry { state: State::Asked(_), .. })) {
            self.leave(key);
        }
    }

    /// The answer to a read of an owned key.
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

    /// A leasing key has changed: somebody wants the key back, or it was deleted.
    pub(crate) fn leasing_key_changed(&mut self, key: &Bytes, event: LeasingEvent, now: Instant) {
        let revision = event.revision;
        let lease = self.session.map(|session| session.lease);
        let Some(entry) = self.keys.get_mut(key) else {
            // The proxy does not know of it any more, or does not know yet.
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
                // It may be one that the proxy had not heard of.
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

    /// The leasing key of a key that was left is gone: it was deleted, or was not there.
    pub(crate) fn deleted(&mut self, key: &Bytes) {
        if self.keys.get(key).is_some_and(|entry| matches!(entry.state, State::Left)) {
            self.forget(key);
        }
    }

    /// The revision of creation that a write's guard allows the leasing key of a key to have: that of this proxy, or 0.
    pub(crate) fn granted(&self, key: &Bytes) -> i64 {
        self.keys.get(key).filter(|entry| entry.state.is_owned()).map_or(0, |entry| entry.granted)
    }

    /// A write of these keys and ranges begins.
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
            // Guards of keys that are not owned allow no leasing key, and with it no owner.
            let entry = self.keys.get_mut(&key).filter(|entry| entry.state.is_owned())?;
            entry.overlapped |= entry.writes > 0;
            entry.writes += 1;
            entry.begun += 1;
            Some((key, entry.granted))
        };
        Write(touched.into_iter().filter_map(begin).collect())
    }

    /// A write is over.
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

    /// The answer to a transaction that only reads owned keys; `None` if a member has to answer it: also one that is large, and
    /// one that looks up no key, of which only a member knows the revision.
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

    /// Notes that a key is not to be owned for a while.
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

    /// Stops telling of all keys, and has their leasing keys deleted.
    pub(crate) fn leave_all(&mut self) {
        for key in std::mem::take(&mut self.order).into_values() {
            self.leave(&key);
        }
        for entry in self.keys.values_mut() {
            // The claim's answer is of before.
            if let State::Asked(wanted) = &mut entry.state {
                *wanted = i64::MAX;
            }
        }
    }

    /// Stops telling of a key, and has its leasing key deleted.
    fn leave(&mut self, key: &Bytes) {
        let Some(granted) = self.keys.get(key).map(|entry| entry.granted) else { return };
        self.delete_up_to(key, granted);
        self.set(key, State::Left);
    }

    /// Has a leasing key deleted, if it was not created after this revision.
    fn delete_up_to(&mut self, key: &Bytes, revision: i64) {
        match self.to_delete.get_mut(key) {
            Some(known) => *known = revision.max(*known),
            None => drop(self.to_delete.insert(alone(key), revision)),
        }
    }

    /// Adds an entry. What its state holds has to be [`alone`].
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

    /// Changes an entry. What its state holds has to be [`alone`].
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

    /// Leaves the keys that were not used for longest until there is room for others.
    fn make_room(&mut self) {
        while self.order.len() > OWNED_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.leave(&oldest);
        }
    }
}

/// A change of a leasing key, as a watch tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeasingEvent {
    /// Revision of the change.
    pub(crate) revision: i64,
    /// The lease that the leasing key has; 0 if it was deleted.
    pub(crate) lease: i64,
    /// The leasing key was deleted.
    pub(crate) is_deleted: bool,
    /// Somebody wants to write the key.
    pub(crate) is_wanted_back: bool,
}

/// True for a read that may be answered from a key's value alone.
fn is_plain(request: &RangeRequest) -> bool {
    request.revision == 0
        && request.range_end.is_empty()
        && !request.key.is_empty()
        && request.limit >= 0
        && request.sort_order == 0
        && request.sort_target == 0
}

/// The answer to a read of one key.
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

/// Returns true if a condition holds; `None` if it is malformed, which a member has to say.
fn holds(compare: &Compare, kv: Option<&KeyValue>) -> Option<bool> {
    let target = CompareTarget::try_from(compare.target).ok()?;
    let number = |of: fn(&KeyValue) -> i64| kv.map_or(0, of);
    let found = match (target, compare.target_union.as_ref()?) {
        // As on a member, nothing is true of the value of a key that does not exist.
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

/// The state of an owned key after a write.
fn changed(key: &Bytes, before: &State, changes: &[Change], header: &ResponseHeader) -> State {
    let itself: Keys = (key.clone(), Bytes::new());
    let mut state = before.clone();
    for change in changes {
        match change {
            Change::Deleted(keys) if overlap(keys, &itself) => state = State::Known(None),
            Change::Put(put) if put.key == *key => {
                if put.lease != 0 || put.value.len() > VALUE_BYTES_MAX {
                    // A lease that ends deletes the key without asking its owner.
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
