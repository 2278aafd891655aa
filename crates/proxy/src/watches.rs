//! Shares watches between clients: decides which of the clients' watches share a watch on a member. This is a
//! state machine without IO that returns effects, which `hub` carries out.
//!
//! Watches with the same keys, the same credentials, and the same requirements for a leader and for previous
//! values form a *group*. A group has one or more *broadcasts*, each of which is a watch on a member that
//! sends its events to one or more *watchers*, the watches of clients. A broadcast's `next` is the revision
//! of the next event that it will send, and a watcher's `next` is the revision of the next event that it
//! wants. A watcher joins a broadcast only if the broadcast's `next` is not above the watcher's, and skips
//! events below its own `next`. So it misses no event and gets none twice.
//!
//! For example, a broadcast has sent everything below revision 50. A client that wants events from 60 on
//! joins this broadcast and skips 50 to 59. A client that wants events from 40 on gets another broadcast. As
//! soon as the two broadcasts have sent the same events, the watchers of the newer one move to the older one.
//!
//! A watcher joins an open broadcast only after a member has permitted a read of the watched keys with the
//! watcher's credentials, as in etcd's proxy. If a client takes no responses, its watcher leaves the
//! broadcast. When the client takes responses again, the watcher joins a broadcast again, at the revision of
//! the next event that it wants.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use api::etcdserverpb::watch_create_request::FilterType;
use api::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchResponse};
use api::mvccpb::Event;
use api::mvccpb::event::EventType;
use api::{Code, Status, error};
use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use tokio::sync::oneshot;

use crate::namespace::Namespace;
use crate::outbox::Outbox;

/// Watch id in a response that concerns the whole stream and no single watch.
const NO_WATCH: i64 = -1;
/// Protobuf tag of the field `watch_id` in a response: field number 2, encoded as a varint.
const WATCH_ID_FIELD: u8 = 2 << 3;

/// The properties of a client on which permissions and the choice of a member depend. Clients share responses
/// only if these properties are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// Metadata that is forwarded to the member: names and values.
    pub(crate) credentials: Vec<(&'static str, Bytes)>,
    /// True if the caller requires a member that knows a leader.
    pub(crate) requires_leader: bool,
}

/// Properties that the watches of a group have in common. Two watches of clients share a watch on a member
/// only if all of these properties are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    /// First watched key in the cluster, that is, with the namespace's prefix.
    pub(crate) key: Bytes,
    /// End of the watched range in the cluster, that is, with the namespace's prefix; empty for a single key.
    pub(crate) range_end: Bytes,
    pub(crate) caller: Caller,
    /// True if events come with previous values.
    pub(crate) wants_previous: bool,
}

/// Number that identifies a client stream.
pub(crate) type StreamId = u64;
/// Number that identifies a broadcast.
pub(crate) type BroadcastId = u64;

/// Action that the hub has to carry out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Open a watch on a member, at the revision [`Watches::start_of`], and keep it open.
    Open(BroadcastId, Rc<Group>),
    /// Close this watch on a member.
    Close(BroadcastId),
    /// Request the progress of this watch from the member.
    AskProgress(BroadcastId),
    /// Read the group's keys with the group's credentials, to check the permission.
    Check(Rc<Group>),
}

/// A watch of a client.
#[derive(Debug)]
struct Watcher {
    /// Number that distinguishes this watch from a later watch with the same id on the same stream.
    serial: u64,
    stream: StreamId,
    id: i64,
    outbox: Arc<Outbox>,
    /// Revision of the first event that the watcher still wants; 0 if it wants all events from now on and the
    /// current revision is not known yet.
    next: i64,
    wants_previous: bool,
    without_puts: bool,
    without_deletes: bool,
    wants_progress: bool,
    /// True once the response that confirms the watch is queued for the client.
    created: bool,
    /// Wakes the task that reads the client's requests and waits until the create request has been answered.
    /// `None` after that.
    done: Option<oneshot::Sender<()>>,
}

/// Current state of a client's watch.
#[derive(Clone, Debug)]
enum Place {
    /// The watch belongs to this broadcast.
    Broadcast(BroadcastId),
    /// The watch waits for a permission check of its group. The number is its [`Watcher::serial`].
    Checked(u64),
    /// The watch waits until its client takes responses again.
    Behind,
}

#[derive(Debug)]
struct StreamState {
    outbox: Arc<Outbox>,
    places: HashMap<i64, Place>,
    /// Watches that wait until the client takes responses again, each with its group.
    behind: Vec<(Watcher, Rc<Group>)>,
    next_id: i64,
    /// The client's progress request; `None` if there is none to answer. Contains the broadcasts that have
    /// not reported progress for it, and the header with the lowest revision that a broadcast has reported.
    asked: Option<(HashSet<BroadcastId>, ResponseHeader)>,
}

#[derive(Debug)]
struct Broadcast {
    group: Rc<Group>,
    /// Revision of the next event to send: all events below it were sent to the watchers. 0 if the watch
    /// starts at the current revision, which is not known yet.
    next: i64,
    /// True if a member has confirmed that the watch is created. False again while a broken connection is
    /// replaced.
    created: bool,
    /// True if the broadcast has caught up: at some moment since the watch was last opened, it had sent all
    /// events that existed at that moment. False again while a broken connection is replaced.
    live: bool,
    header: ResponseHeader,
    watchers: BTreeMap<(StreamId, i64), Watcher>,
    /// Client streams whose progress request waits until this broadcast reports progress.
    askers: Vec<StreamId>,
}

#[derive(Debug, Default)]
struct GroupState {
    /// Broadcasts of the group, the oldest first.
    broadcasts: Vec<BroadcastId>,
    /// Watchers that wait for the next permission check, because they came after the current one began.
    queue: Vec<Watcher>,
    /// Watchers that wait for the permission check in flight; `None` if no check is in flight.
    checking: Option<Vec<Watcher>>,
}

/// All watches of all clients.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    namespace: Option<Namespace>,
    streams: HashMap<StreamId, StreamState>,
    groups: HashMap<Rc<Group>, GroupState>,
    broadcasts: HashMap<BroadcastId, Broadcast>,
    last_broadcast: BroadcastId,
    last_serial: u64,
    effects: Vec<Effect>,
    /// Number of responses with events that members did not have to send because watchers share watches. Each
    /// response of a member adds the number of watchers that share it, less one. Reset when the hub takes the
    /// number.
    pub(crate) coalesced: u64,
    /// Number of watchers that belong to a broadcast.
    attached: usize,
}

impl Broadcast {
    /// Returns true if the next event to send is the next one that the member will create, or an earlier one;
    /// false if the broadcast was requested to start at a later revision.
    fn is_present(&self) -> bool {
        self.next <= self.header.revision + 1
    }
}

impl Watches {
    pub(crate) fn new(namespace: Option<Namespace>) -> Watches {
        Watches { namespace, ..Watches::default() }
    }

    /// Takes the effects that have accumulated since the last call.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the number of watchers that share another watcher's watch on a member.
    pub(crate) fn coalescing(&self) -> usize {
        self.attached.saturating_sub(self.broadcasts.len())
    }

    /// Returns the revision at which a broadcast's watch has to be opened; 0 to begin with the first event
    /// after the watch is created. Returns `None` if the broadcast has ended.
    pub(crate) fn start_of(&self, broadcast: BroadcastId) -> Option<i64> {
        self.broadcasts.get(&broadcast).map(|broadcast| broadcast.next)
    }

    /// Returns true if a member has confirmed the watch of a broadcast since it was last opened.
    pub(crate) fn is_created(&self, broadcast: BroadcastId) -> bool {
        self.broadcasts.get(&broadcast).is_some_and(|broadcast| broadcast.created)
    }

    /// Returns true if the member has to be asked for the progress of this broadcast: a client has requested
    /// it, or the group has several broadcasts, and the member's progress response may show that this one can
    /// be merged with an older one.
    pub(crate) fn wants_progress(&self, id: BroadcastId) -> bool {
        let Some(broadcast) = self.broadcasts.get(&id).filter(|broadcast| broadcast.created) else {
            return false;
        };
        let others = self.groups.get(&broadcast.group).map_or(&[][..], |group| &group.broadcasts);
        let older_is_ahead = |other: &BroadcastId| {
            let is_ahead =
                |other: &Broadcast| other.live && other.is_present() && other.next > broadcast.next;
            *other < id && self.broadcasts.get(other).is_some_and(is_ahead)
        };
        !broadcast.askers.is_empty()
            || (others.len() > 1 && (!broadcast.live || others.iter().any(older_is_ahead)))
    }

    /// Creates a watch on a client's stream. `done` is used or dropped once the request has been answered,
    /// which wakes the task that reads the client's requests.
    pub(crate) fn create(
        &mut self,
        stream: StreamId,
        outbox: &Arc<Outbox>,
        request: &WatchCreateRequest,
        caller: &Caller,
        done: oneshot::Sender<()>,
    ) {
        let state = self.streams.entry(stream).or_insert_with(|| StreamState {
            outbox: outbox.clone(),
            places: HashMap::new(),
            behind: Vec::new(),
            next_id: 0,
            asked: None,
        });
        let refused = |reason: &Status| {
            outbox.answer(refusal(ResponseHeader::default(), &reason.message, 0));
        };
        if request.start_revision < 0 {
            return refused(&error::COMPACTED);
        }
        let key = if request.key.is_empty() { Bytes::from_static(b"\0") } else { request.key.clone() };
        let end = &request.range_end;
        if !end.is_empty() && end.as_ref() != b"\0" && *end <= key {
            return refused(&error::WATCH_EMPTY_RANGE);
        }
        let id = if request.watch_id != 0 {
            if state.places.contains_key(&request.watch_id) {
                return refused(&error::WATCH_DUPLICATE_ID);
            }
            request.watch_id
        } else {
            while state.places.contains_key(&state.next_id) {
                state.next_id += 1;
            }
            state.next_id += 1;
            state.next_id - 1
        };
        let mut group = Group {
            key,
            range_end: request.range_end.clone(),
            caller: caller.clone(),
            wants_previous: request.prev_kv,
        };
        if let Some(namespace) = &self.namespace {
            namespace.key(&mut group.key);
            namespace.range_end(&mut group.range_end);
        }
        let filters = |filter: FilterType| request.filters.contains(&(filter as i32));
        self.last_serial += 1;
        let watcher = Watcher {
            serial: self.last_serial,
            stream,
            id,
            outbox: outbox.clone(),
            next: request.start_revision,
            wants_previous: request.prev_kv,
            without_puts: filters(FilterType::Noput),
            without_deletes: filters(FilterType::Nodelete),
            wants_progress: request.progress_notify,
            created: false,
            done: Some(done),
        };
        self.place(watcher, &Rc::new(group));
    }

    /// Cancels a watch of a client.
    pub(crate) fn cancel(&mut self, stream: StreamId, id: i64) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        // A request to cancel an unknown watch is ignored, as in etcd.
        let Some(place) = state.places.remove(&id) else { return };
        state.behind.retain(|(watcher, _)| watcher.id != id);
        let outbox = state.outbox.clone();
        let mut header = ResponseHeader::default();
        if let Place::Broadcast(broadcast) = place {
            header = self.broadcasts.get(&broadcast).map_or(header, |broadcast| broadcast.header);
            self.detach(broadcast, (stream, id));
        }
        let response =
            WatchResponse { header: Some(header), watch_id: id, canceled: true, ..WatchResponse::default() };
        outbox.answer(response.encode_to_vec().into());
    }

    /// Handles the end of a client's stream.
    pub(crate) fn leave(&mut self, stream: StreamId) {
        let Some(state) = self.streams.remove(&stream) else { return };
        for (id, place) in state.places {
            if let Place::Broadcast(broadcast) = place {
                self.detach(broadcast, (stream, id));
            }
        }
        // Watchers of the stream that wait for a permission check stay in their group's list. `checked`
        // discards them, because their stream no longer exists.
    }

    /// Continues the interrupted watches of a client's stream. They were interrupted because the client's
    /// queue was full, and the client has taken all queued responses now.
    pub(crate) fn drained(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        for (watcher, group) in std::mem::take(&mut state.behind) {
            self.place(watcher, &group);
        }
    }

    /// Handles a client's request for the progress of its watches.
    pub(crate) fn ask_progress(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        // Drop the request if an earlier one is not answered yet, if the stream has no watches, or if one of
        // its watches belongs to no broadcast at the moment. In the last case it lags, and etcd also leaves a
        // progress request unanswered while a watch lags.
        let takes_part = |place: &Place| matches!(place, Place::Broadcast(_));
        if state.asked.is_some() || state.places.is_empty() || !state.places.values().all(takes_part) {
            return;
        }
        let asked: HashSet<BroadcastId> = state
            .places
            .values()
            .filter_map(|place| match place {
                Place::Broadcast(id) => Some(*id),
                _ => None,
            })
            .collect();
        let header = ResponseHeader { revision: i64::MAX, ..ResponseHeader::default() };
        state.asked = Some((asked.clone(), header));
        for id in asked {
            if let Some(broadcast) = self.broadcasts.get_mut(&id) {
                broadcast.askers.push(stream);
                self.effects.push(Effect::AskProgress(id));
            }
        }
    }

    /// Handles the result of a permission check: either the header of the read, or the status with which the
    /// read was refused.
    pub(crate) fn checked(&mut self, group: &Rc<Group>, outcome: Result<ResponseHeader, &Status>) {
        let Some(state) = self.groups.get_mut(group) else { return };
        let watchers = state.checking.take().unwrap_or_default();
        for watcher in watchers {
            if !self.waits(&watcher) {
                continue;
            }
            match outcome {
                Ok(header) => self.join(watcher, group, header),
                Err(status) => self.refuse(watcher, ResponseHeader::default(), &status.message, 0),
            }
        }
        self.begin_check(group);
        self.forget_if_empty(group);
    }

    /// Handles a member's response to the watch of a broadcast.
    pub(crate) fn told(&mut self, id: BroadcastId, mut response: WatchResponse) {
        let Some(broadcast) = self.broadcasts.get_mut(&id) else { return };
        let header = response.header.unwrap_or_default();
        broadcast.header = header;
        let group = broadcast.group.clone();
        if response.canceled {
            return self.end(id, header, &response.cancel_reason, response.compact_revision);
        }
        if response.created {
            self.stands(id, header);
        } else if response.events.is_empty() {
            broadcast.next = broadcast.next.max(header.revision + 1);
            broadcast.live = true;
            match response.watch_id {
                NO_WATCH => self.answer_askers(id, header),
                _ => self.pass_on_progress(id, header),
            }
        } else {
            if let Some(namespace) = &self.namespace {
                response.events.iter_mut().for_each(|event| namespace.strip_event(event));
            }
            self.pass_on(id, header, &response.events);
        }
        self.merge(&group);
    }

    /// Handles the end of a broadcast's stream to the member: the connection broke, or the member refused the
    /// watch. Returns true if the caller has to open the watch again.
    pub(crate) fn broken(&mut self, id: BroadcastId, status: &Status) -> bool {
        let Some(broadcast) = self.broadcasts.get_mut(&id) else { return false };
        (broadcast.created, broadcast.live) = (false, false);
        let requires_leader = broadcast.group.caller.requires_leader;
        if requires_leader && status.message == error::NO_LEADER.message {
            // A member that knows no leader ends the whole stream of a client that requires one. So end the
            // whole streams of these clients, and not only their watches that belong to this broadcast.
            let streams: HashSet<StreamId> = broadcast.watchers.keys().map(|(stream, _)| *stream).collect();
            for stream in streams {
                if let Some(state) = self.streams.get(&stream) {
                    state.outbox.end(error::NO_LEADER);
                }
                self.leave(stream);
            }
            return self.broadcasts.contains_key(&id);
        }
        let passes = matches!(
            status.code,
            Code::Unavailable | Code::Internal | Code::Unknown | Code::Canceled | Code::DeadlineExceeded
        );
        if !passes {
            self.end(id, ResponseHeader::default(), &status.message, 0);
        }
        passes
    }

    /// Finds a broadcast for a watcher. If the watch of a broadcast is not open yet and will start at the
    /// watcher's revision, the watcher joins this broadcast immediately. If an open broadcast fits, a
    /// permission check is started, after which the watcher joins. Otherwise, a broadcast is created.
    fn place(&mut self, watcher: Watcher, group: &Rc<Group>) {
        let group = match self.groups.get_key_value(group) {
            Some((known, _)) => known.clone(),
            None => group.clone(),
        };
        let state = self.groups.entry(group.clone()).or_default();
        let of = |id: &BroadcastId| self.broadcasts.get(id).map(|broadcast| (*id, broadcast));
        let mut known = state.broadcasts.iter().filter_map(of);
        if let Some((id, _)) = known.clone().find(|(_, open)| !open.created && open.next == watcher.next) {
            // Join without a permission check: the broadcast's watch is not open yet, and the member checks
            // the permission when the watch is opened.
            return self.attach(watcher, id);
        }
        let fits = |open: &Broadcast| match watcher.next {
            0 => open.created && open.is_present(),
            next => open.created && open.next <= next,
        };
        if known.any(|(_, open)| fits(open)) {
            let serial = watcher.serial;
            if let Some(stream) = self.streams.get_mut(&watcher.stream) {
                stream.places.insert(watcher.id, Place::Checked(serial));
            }
            state.queue.push(watcher);
            return self.begin_check(&group);
        }
        self.last_broadcast += 1;
        let id = self.last_broadcast;
        let open = Broadcast {
            group: group.clone(),
            next: watcher.next,
            created: false,
            live: false,
            header: ResponseHeader::default(),
            watchers: BTreeMap::new(),
            askers: Vec::new(),
        };
        self.broadcasts.insert(id, open);
        state.broadcasts.push(id);
        self.effects.push(Effect::Open(id, group));
        self.attach(watcher, id);
    }

    fn begin_check(&mut self, group: &Rc<Group>) {
        let Some(state) = self.groups.get_mut(group) else { return };
        if state.checking.is_none() && !state.queue.is_empty() {
            state.checking = Some(std::mem::take(&mut state.queue));
            self.effects.push(Effect::Check(group.clone()));
        }
    }

    /// Adds a watcher to an open broadcast after its permission check. `header` is the header of the member's
    /// response to the read that the check made.
    fn join(&mut self, mut watcher: Watcher, group: &Rc<Group>, header: ResponseHeader) {
        let wanted = if watcher.next == 0 { header.revision + 1 } else { watcher.next };
        let state = self.groups.entry(group.clone()).or_default();
        let of = |id: &BroadcastId| self.broadcasts.get(id).map(|broadcast| (*id, broadcast));
        let standing = state.broadcasts.iter().filter_map(of).filter(|(_, open)| open.created);
        let mut fitting = standing.clone().filter(|(_, open)| open.next <= wanted);
        let mut found = fitting.clone().find(|(_, open)| open.live).or_else(|| fitting.next());
        if found.is_none() && watcher.next == 0 {
            // The member that answered the read lags behind the watched member. The watcher wants all events
            // from now on, so let it join where the watched member is.
            found = standing.clone().find(|(_, open)| open.is_present());
        }
        let Some((id, open)) = found else {
            // Since the check began, the fitting broadcast has ended or has sent events that the watcher
            // needs. So start the assignment again.
            return self.place(watcher, group);
        };
        let first = watcher.next == 0;
        let told = open.header;
        watcher.next = if first { wanted.max(open.next) } else { wanted };
        if !watcher.created {
            let revision = if first { watcher.next - 1 } else { header.revision.max(open.next - 1) };
            let header = ResponseHeader { revision, ..told };
            created(&mut watcher, header);
        }
        self.attach(watcher, id);
    }

    fn attach(&mut self, watcher: Watcher, id: BroadcastId) {
        self.set_place(&watcher, Place::Broadcast(id));
        if let Some(broadcast) = self.broadcasts.get_mut(&id) {
            broadcast.watchers.insert((watcher.stream, watcher.id), watcher);
            self.attached += 1;
        }
    }

    fn detach(&mut self, id: BroadcastId, key: (StreamId, i64)) {
        let Some(broadcast) = self.broadcasts.get_mut(&id) else { return };
        if broadcast.watchers.remove(&key).is_some() {
            self.attached -= 1;
        }
        if broadcast.watchers.is_empty() {
            self.remove(id);
        }
    }

    /// Removes a broadcast that has no watchers left.
    fn remove(&mut self, id: BroadcastId) {
        let Some(broadcast) = self.broadcasts.remove(&id) else { return };
        assert!(broadcast.watchers.is_empty(), "watchers leave before their broadcast");
        self.effects.push(Effect::Close(id));
        if let Some(state) = self.groups.get_mut(&broadcast.group) {
            state.broadcasts.retain(|other| *other != id);
        }
        for stream in broadcast.askers {
            self.answered(stream, id, None);
        }
        self.forget_if_empty(&broadcast.group);
    }

    fn forget_if_empty(&mut self, group: &Rc<Group>) {
        let is_empty = self.groups.get(group).is_some_and(|state| {
            state.broadcasts.is_empty() && state.queue.is_empty() && state.checking.is_none()
        });
        if is_empty {
            self.groups.remove(group);
        }
    }

    /// Handles a member's confirmation that the watch of a broadcast is created: confirms it to the watchers.
    fn stands(&mut self, id: BroadcastId, header: ResponseHeader) {
        let Some(broadcast) = self.broadcasts.get_mut(&id) else { return };
        broadcast.created = true;
        if broadcast.next == 0 {
            broadcast.next = header.revision + 1;
        }
        broadcast.live = broadcast.next > header.revision;
        let next = broadcast.next;
        for watcher in broadcast.watchers.values_mut() {
            watcher.next = watcher.next.max(next);
            if !watcher.created {
                created(watcher, header);
            }
        }
        let waits = !broadcast.askers.is_empty();
        if waits || self.wants_progress(id) {
            self.effects.push(Effect::AskProgress(id));
        }
    }

    /// Sends events to the watchers of a broadcast. Removes the watchers whose clients take no responses.
    fn pass_on(&mut self, id: BroadcastId, header: ResponseHeader, events: &[Event]) {
        let Some(broadcast) = self.broadcasts.get_mut(&id) else { return };
        let revision = |event: &Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let first = events.iter().map(revision).min().unwrap_or(0);
        let last = events.iter().map(revision).max().unwrap_or(0);
        let group = broadcast.group.clone();
        broadcast.live |= header.revision <= last;
        broadcast.next = broadcast.next.max(last + 1);
        self.coalesced += (broadcast.watchers.len() as u64).saturating_sub(1);
        let mut bodies = Bodies::default();
        let mut behind = Vec::new();
        for (key, watcher) in &mut broadcast.watchers {
            if watcher.next > last {
                continue;
            }
            let message = bodies.of(watcher, header, events, watcher.next <= first);
            if message.is_none_or(|message| watcher.outbox.offer(&message)) {
                watcher.next = last + 1;
            } else {
                behind.push(*key);
            }
        }
        for key in behind {
            let Some(broadcast) = self.broadcasts.get_mut(&id) else { return };
            let Some(watcher) = broadcast.watchers.remove(&key) else { continue };
            self.attached -= 1;
            self.set_place(&watcher, Place::Behind);
            if let Some(state) = self.streams.get_mut(&key.0) {
                state.behind.push((watcher, group.clone()));
            }
        }
        if self.broadcasts.get(&id).is_some_and(|broadcast| broadcast.watchers.is_empty()) {
            self.remove(id);
        }
    }

    /// Sends a progress notification to the watchers of a broadcast.
    fn pass_on_progress(&mut self, id: BroadcastId, header: ResponseHeader) {
        let Some(broadcast) = self.broadcasts.get(&id) else { return };
        for watcher in broadcast.watchers.values() {
            if watcher.wants_progress && watcher.next <= header.revision + 1 {
                let header = Some(header);
                let response = WatchResponse { header, watch_id: watcher.id, ..WatchResponse::default() };
                // If the client's queue is full, this notification is dropped. The client misses nothing,
                // because later notifications have higher revisions.
                let _ = watcher.outbox.offer(&response.encode_to_vec().into());
            }
        }
    }

    fn answer_askers(&mut self, id: BroadcastId, header: ResponseHeader) {
        let Some(broadcast) = self.broadcasts.get_mut(&id) else { return };
        for stream in std::mem::take(&mut broadcast.askers) {
            self.answered(stream, id, Some(header));
        }
    }

    /// Records that a broadcast has reported progress for a client's stream (`header`), or has ended
    /// (`None`). Answers the client's progress request if all other broadcasts have reported progress
    /// already.
    fn answered(&mut self, stream: StreamId, id: BroadcastId, header: Option<ResponseHeader>) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        let Some((waits, lowest)) = &mut state.asked else { return };
        waits.remove(&id);
        if let Some(header) = header.filter(|header| header.revision < lowest.revision) {
            *lowest = header;
        }
        if !waits.is_empty() {
            return;
        }
        let header = *lowest;
        state.asked = None;
        // Answer only if every watch of the stream has got all events up to the revision of the header. A
        // watch may lack events, for example if it was created after the request. In that case, drop the
        // request: etcd also leaves a progress request unanswered while a watch lags.
        let was_told = |(id, place): (&i64, &Place)| {
            let Place::Broadcast(broadcast) = place else { return false };
            let Some(broadcast) = self.broadcasts.get(broadcast) else { return false };
            let watcher = broadcast.watchers.get(&(stream, *id));
            watcher.is_some_and(|watcher| watcher.next.max(broadcast.next) > header.revision)
        };
        if header.revision < i64::MAX && state.places.iter().all(was_told) {
            let response =
                WatchResponse { header: Some(header), watch_id: NO_WATCH, ..WatchResponse::default() };
            let _ = state.outbox.offer(&response.encode_to_vec().into());
        }
    }

    /// Merges broadcasts of a group: moves all watchers of a newer broadcast to an older one, and ends the
    /// newer one. Merges two broadcasts only if they have both caught up and the older one's `next` is not
    /// above the newer one's, so that no watcher misses an event.
    fn merge(&mut self, group: &Rc<Group>) {
        let Some(state) = self.groups.get(group) else { return };
        if state.broadcasts.len() < 2 {
            return;
        }
        for from in state.broadcasts.clone().into_iter().rev() {
            let Some(moving) = self.broadcasts.get(&from).filter(|open| open.created && open.live) else {
                continue;
            };
            let into = |other: &&BroadcastId| {
                let fits = |open: &Broadcast| open.created && open.live && open.next <= moving.next;
                **other < from && self.broadcasts.get(other).is_some_and(fits)
            };
            let Some(into) = self.groups.get(group).and_then(|state| state.broadcasts.iter().find(into))
            else {
                continue;
            };
            let into = *into;
            let Some(moving) = self.broadcasts.get_mut(&from) else { continue };
            let next = moving.next;
            let askers = std::mem::take(&mut moving.askers);
            for (key, mut watcher) in std::mem::take(&mut moving.watchers) {
                watcher.next = watcher.next.max(next);
                self.set_place(&watcher, Place::Broadcast(into));
                if let Some(into) = self.broadcasts.get_mut(&into) {
                    into.watchers.insert(key, watcher);
                }
            }
            for stream in askers {
                if let Some((waits, _)) = self.streams.get_mut(&stream).and_then(|state| state.asked.as_mut())
                {
                    waits.remove(&from);
                    if waits.insert(into)
                        && let Some(into) = self.broadcasts.get_mut(&into)
                    {
                        into.askers.push(stream);
                    }
                }
            }
            if self.broadcasts.get(&into).is_some_and(|into| !into.askers.is_empty()) {
                self.effects.push(Effect::AskProgress(into));
            }
            self.remove(from);
        }
    }

    /// Ends a broadcast. Ends all its watchers, too, with a response that contains this reason.
    fn end(&mut self, id: BroadcastId, header: ResponseHeader, reason: &str, compact_revision: i64) {
        let Some(broadcast) = self.broadcasts.get_mut(&id) else { return };
        let watchers = std::mem::take(&mut broadcast.watchers);
        self.attached -= watchers.len();
        for watcher in watchers.into_values() {
            self.refuse(watcher, header, reason, compact_revision);
        }
        self.remove(id);
    }

    /// Sends a response to a watcher's client which says that the watch has ended, or was not created.
    fn refuse(&mut self, watcher: Watcher, header: ResponseHeader, reason: &str, compact_revision: i64) {
        if let Some(state) = self.streams.get_mut(&watcher.stream) {
            state.places.remove(&watcher.id);
        }
        if !watcher.created {
            return watcher.outbox.answer(refusal(header, reason, compact_revision));
        }
        let response = WatchResponse {
            header: Some(header),
            watch_id: watcher.id,
            canceled: true,
            cancel_reason: reason.to_owned(),
            compact_revision,
            ..WatchResponse::default()
        };
        watcher.outbox.answer(response.encode_to_vec().into());
    }

    fn set_place(&mut self, watcher: &Watcher, place: Place) {
        if let Some(state) = self.streams.get_mut(&watcher.stream) {
            state.places.insert(watcher.id, place);
        }
    }

    /// Returns true if a watcher still waits for a permission check. Returns false if it was cancelled or its
    /// stream has ended since the check began.
    fn waits(&self, watcher: &Watcher) -> bool {
        let place = self.streams.get(&watcher.stream).and_then(|state| state.places.get(&watcher.id));
        matches!(place, Some(Place::Checked(serial)) if *serial == watcher.serial)
    }
}

/// Sends a response to a watcher's client which says that the watch is created.
fn created(watcher: &mut Watcher, header: ResponseHeader) {
    watcher.created = true;
    let response = WatchResponse {
        header: Some(header),
        watch_id: watcher.id,
        created: true,
        ..WatchResponse::default()
    };
    watcher.outbox.answer(response.encode_to_vec().into());
    if let Some(done) = watcher.done.take() {
        // An error means that the receiver was dropped, because the stream has ended. So no task waits for
        // this signal, and the error can be ignored.
        let _ = done.send(());
    }
}

/// Returns the response which says that a watch was not created.
fn refusal(header: ResponseHeader, reason: &str, compact_revision: i64) -> Bytes {
    let response = WatchResponse {
        header: Some(header),
        watch_id: NO_WATCH,
        created: true,
        canceled: true,
        cancel_reason: reason.to_owned(),
        compact_revision,
        ..WatchResponse::default()
    };
    response.encode_to_vec().into()
}

/// The encodings of one response with events. Watchers with the same filters share an encoding.
#[derive(Default)]
struct Bodies {
    /// Encoded responses. The index is a sum of flags: 1 if previous values are wanted, 2 if puts are left
    /// out, 4 if deletions are left out. The outer value is `None` if the response has not been encoded with
    /// these flags yet, and the inner value is `None` if the filters leave no event.
    made: [Option<Option<Bytes>>; 8],
}

impl Bodies {
    /// Returns the message for a watcher; `None` if no event is left for it. `shared` is true if the watcher
    /// wants all revisions of the response, so that it can share an encoding. Otherwise, an encoding without
    /// the lower revisions is made for this watcher only.
    fn of(
        &mut self,
        watcher: &Watcher,
        header: ResponseHeader,
        events: &[Event],
        shared: bool,
    ) -> Option<Bytes> {
        let body = if shared {
            let kind = usize::from(watcher.wants_previous)
                + 2 * usize::from(watcher.without_puts)
                + 4 * usize::from(watcher.without_deletes);
            self.made[kind].get_or_insert_with(|| body(watcher, header, events)).clone()?
        } else {
            body(watcher, header, events)?
        };
        if watcher.id == 0 {
            return Some(body);
        }
        // Append the watch id to the shared encoding. This is valid, because Protobuf fields may be in any
        // order. The tag takes 1 byte, and a varint at most 10.
        let mut message = BytesMut::with_capacity(body.len() + 11);
        message.put_slice(&body);
        message.put_u8(WATCH_ID_FIELD);
        prost::encoding::encode_varint(watcher.id.cast_unsigned(), &mut message);
        Some(message.freeze())
    }
}

/// Returns an encoded response, without a watch id, that contains the events a watcher wants. Returns `None`
/// if the watcher wants none of the events.
fn body(watcher: &Watcher, header: ResponseHeader, events: &[Event]) -> Option<Bytes> {
    let wanted = |event: &&Event| {
        let is_new = event.kv.as_ref().is_some_and(|kv| kv.mod_revision >= watcher.next);
        let is_put = event.r#type == EventType::Put as i32;
        is_new && !(if is_put { watcher.without_puts } else { watcher.without_deletes })
    };
    let shown = |event: &Event| Event {
        prev_kv: event.prev_kv.clone().filter(|_| watcher.wants_previous),
        ..event.clone()
    };
    let events: Vec<Event> = events.iter().filter(wanted).map(shown).collect();
    if events.is_empty() {
        return None;
    }
    let response = WatchResponse { header: Some(header), events, ..WatchResponse::default() };
    Some(response.encode_to_vec().into())
}

#[cfg(test)]
mod tests;
