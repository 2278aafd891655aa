//! Scripted tests of watches: inputs of clients and members, and the resulting output.

use super::*;
use api::mvccpb::KeyValue;

struct World {
    watches: Watches,
    outboxes: HashMap<StreamId, Arc<Outbox>>,
}

impl World {
    fn new() -> World {
        World { watches: Watches::new(None), outboxes: HashMap::new() }
    }

    fn create_as(&mut self, stream: StreamId, token: &'static str, start_revision: i64) {
        let outbox = self.outboxes.entry(stream).or_default().clone();
        let request = WatchCreateRequest { key: "k".into(), start_revision, ..WatchCreateRequest::default() };
        let credentials = vec![("token", Bytes::from_static(token.as_bytes()))];
        let caller = Caller { credentials, requires_leader: false };
        self.watches.create(stream, &outbox, &request, &caller, oneshot::channel().0);
    }

    fn create(&mut self, stream: StreamId, start_revision: i64) {
        self.create_as(stream, "t", start_revision);
    }

    /// Returns the effects in short form: `open 1`, `check`, `close 1`, `ask 1`.
    fn effects(&mut self) -> Vec<String> {
        let shown = |effect: &Effect| match effect {
            Effect::Open(id, _) => format!("open {id}"),
            Effect::Close(id) => format!("close {id}"),
            Effect::AskProgress(id) => format!("ask {id}"),
            Effect::Check(_) => "check".to_owned(),
        };
        self.watches.take_effects().iter().map(shown).collect()
    }

    fn group(&self) -> Rc<Group> {
        self.watches.groups.keys().next().expect("there is a group").clone()
    }

    fn created(&mut self, id: BroadcastId, revision: i64) {
        self.watches.told(id, WatchResponse { created: true, ..response(revision) });
    }

    /// Delivers events at these revisions; the member is at `present`.
    fn events(&mut self, id: BroadcastId, present: i64, revisions: &[i64]) {
        let event = |revision: &i64| {
            let kv = KeyValue { key: "k".into(), mod_revision: *revision, ..KeyValue::default() };
            Event { kv: Some(kv), ..Event::default() }
        };
        let events = revisions.iter().map(event).collect();
        self.watches.told(id, WatchResponse { events, ..response(present) });
    }

    fn progress(&mut self, id: BroadcastId, revision: i64) {
        self.watches.told(id, WatchResponse { watch_id: NO_WATCH, ..response(revision) });
    }

    fn permitted(&mut self, revision: i64) {
        let group = self.group();
        self.watches.checked(&group, Ok(ResponseHeader { revision, ..ResponseHeader::default() }));
    }

    /// Returns the responses to the client of a stream in short form: `created@5`, `5`, `6+7`, `canceled`.
    fn told(&self, stream: StreamId) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(message) = self.outboxes[&stream].rest() {
            let response = WatchResponse::decode(message).expect("a response");
            let revision = response.header.expect("a header").revision;
            let events: Vec<String> = response
                .events
                .iter()
                .map(|event| event.kv.as_ref().expect("a key").mod_revision.to_string())
                .collect();
            told.push(match (response.created, response.canceled) {
                (true, false) => format!("created@{revision}"),
                (_, true) => format!("canceled {}", response.cancel_reason),
                _ if events.is_empty() => format!("progress@{revision}"),
                _ => events.join("+"),
            });
        }
        told
    }
}

fn response(revision: i64) -> WatchResponse {
    let header = ResponseHeader { revision, ..ResponseHeader::default() };
    WatchResponse { header: Some(header), ..WatchResponse::default() }
}

#[test]
fn any_number_of_watchers_of_a_key_cost_the_member_one_watch() {
    let mut world = World::new();
    world.create(1, 0);
    assert_eq!(world.effects(), ["open 1"]);
    world.created(1, 10);
    for stream in 2..10_001 {
        world.create(stream, 0);
    }
    // One check serves all watchers that were created while it was pending, and a second check serves later ones.
    assert_eq!(world.effects(), ["check"]);
    world.permitted(10);
    assert_eq!(world.effects(), ["check"]);
    world.permitted(10);
    assert_eq!(world.effects(), Vec::<String>::new());
    assert_eq!((world.watches.broadcasts.len(), world.watches.coalescing()), (1, 9_999));
    world.events(1, 11, &[11]);
    for stream in 1..10_001 {
        assert_eq!(world.told(stream), ["created@10", "11"], "{stream}");
    }
    for stream in 1..10_000 {
        world.watches.leave(stream);
    }
    assert_eq!(world.effects(), Vec::<String>::new());
    world.watches.leave(10_000);
    assert_eq!(world.effects(), ["close 1"]);
    assert!(world.watches.groups.is_empty() && world.watches.streams.is_empty());
}

#[test]
fn a_late_joiner_gets_what_it_missed_and_nothing_twice() {
    let mut world = World::new();
    world.create(1, 0);
    world.created(1, 10);
    world.events(1, 12, &[11, 12]);
    world.effects();
    // The watch wants events that the first broadcast has sent already: it gets its own broadcast, which catches up.
    world.create(2, 11);
    assert_eq!(world.effects(), ["open 2"]);
    world.created(2, 12);
    assert_eq!(world.effects(), ["ask 2"]);
    world.events(2, 12, &[11]);
    world.events(1, 13, &[13]);
    assert_eq!(world.watches.broadcasts.len(), 2);
    world.events(2, 13, &[12]);
    world.progress(2, 12);
    assert_eq!(world.watches.broadcasts.len(), 2, "13 was handed out to others only");
    world.events(2, 13, &[13]);
    assert_eq!(world.effects(), ["close 2"]);
    world.events(1, 14, &[14]);
    assert_eq!(world.told(1), ["created@10", "11+12", "13", "14"]);
    assert_eq!(world.told(2), ["created@12", "11", "12", "13", "14"]);
}

#[test]
fn one_that_begins_now_skips_what_its_read_has_seen() {
    let mut world = World::new();
    world.create(1, 0);
    world.created(1, 10);
    world.create(2, 0);
    world.create(3, 20);
    // The read saw revision 12, whose events have not arrived yet.
    world.permitted(12);
    world.permitted(12);
    world.events(1, 12, &[11, 12]);
    world.events(1, 20, &[13, 20]);
    assert_eq!(world.told(2), ["created@12", "13+20"]);
    assert_eq!(world.told(3), ["created@12", "20"]);
    assert_eq!(world.told(1), ["created@10", "11+12", "13+20"]);
}

#[test]
fn a_watch_of_the_future_does_not_hold_up_others() {
    let mut world = World::new();
    world.create(1, 1_000);
    world.created(1, 10);
    world.create(2, 0);
    assert_eq!(world.effects(), ["open 1", "open 2"]);
    world.created(2, 10);
    world.events(2, 11, &[11]);
    assert_eq!(world.told(2), ["created@10", "11"]);
    assert_eq!(world.told(1), ["created@10"]);
}

#[test]
fn watches_of_different_tokens_are_never_shared() {
    let mut world = World::new();
    world.create_as(1, "a", 0);
    world.created(1, 10);
    world.create_as(2, "b", 0);
    assert_eq!(world.effects(), ["open 1", "open 2"]);
    world.watches.told(
        2,
        WatchResponse { created: true, canceled: true, cancel_reason: "no".to_owned(), ..response(10) },
    );
    world.events(1, 11, &[11]);
    assert_eq!(world.told(2), ["canceled no"]);
    assert_eq!(world.told(1), ["created@10", "11"]);
}

#[test]
fn a_member_reads_previous_values_only_for_those_who_want_them() {
    let mut world = World::new();
    let outbox = Arc::new(Outbox::default());
    for (stream, prev_kv) in [(1, false), (2, true), (3, false), (4, true)] {
        let request = WatchCreateRequest { key: "k".into(), prev_kv, ..WatchCreateRequest::default() };
        world.watches.create(stream, &outbox, &request, &Caller::default(), oneshot::channel().0);
    }
    let opened = |effect: &Effect| match effect {
        Effect::Open(_, group) => group.wants_previous,
        other => panic!("{other:?}"),
    };
    let opened: Vec<bool> = world.watches.take_effects().iter().map(opened).collect();
    assert_eq!(opened, [false, true]);
}

#[test]
fn who_may_not_read_does_not_join() {
    let mut world = World::new();
    world.create(1, 0);
    world.created(1, 10);
    world.create(2, 0);
    let group = world.group();
    world.watches.checked(&group, Err(&error::PERMISSION_DENIED));
    world.events(1, 11, &[11]);
    assert_eq!(world.told(2), ["canceled etcdserver: permission denied"]);
}

#[test]
fn a_broken_watch_goes_on_behind_what_was_handed_out() {
    let mut world = World::new();
    world.create(1, 0);
    world.created(1, 10);
    world.events(1, 12, &[12]);
    assert!(world.watches.broken(1, &Status::new(Code::Unavailable, "gone")));
    assert_eq!(world.watches.start_of(1), Some(13));
    world.created(1, 20);
    world.events(1, 20, &[15, 20]);
    assert_eq!(world.told(1), ["created@10", "12", "15+20"]);
    // A permanent error ends the watch.
    assert!(!world.watches.broken(1, &error::INVALID_AUTH_TOKEN));
    assert_eq!(world.told(1), ["canceled etcdserver: invalid auth token"]);
    assert!(world.watches.broadcasts.is_empty() && world.watches.groups.is_empty());
}

#[test]
fn a_client_that_takes_nothing_holds_up_nobody_and_comes_back_without_loss() {
    let mut world = World::new();
    world.create(1, 0);
    world.create(2, 0);
    world.created(1, 0);
    world.effects();
    world.told(1);
    // The second client takes no responses: after 4,096 responses its watch leaves the broadcast.
    for revision in 1..=5_000 {
        world.events(1, revision, &[revision]);
        assert_eq!(world.told(1), [revision.to_string()]);
    }
    let mut told = world.told(2);
    assert_eq!((told.len(), told.remove(0).as_str()), (4_096, "created@0"));
    assert_eq!(told.last().map(String::as_str), Some("4095"));
    assert_eq!(world.watches.broadcasts[&1].watchers.len(), 1);
    world.watches.drained(2);
    assert_eq!(world.effects(), ["open 2"]);
    assert_eq!(world.watches.start_of(2), Some(4_096));
    world.created(2, 5_000);
    world.events(2, 5_000, &[4_096, 5_000]);
    assert_eq!(world.told(2), ["4096+5000"]);
    assert_eq!(world.effects(), ["ask 2", "close 2"]);
}

#[test]
fn progress_is_told_once_all_watches_of_the_stream_are_there() {
    let mut world = World::new();
    world.create_as(1, "a", 0);
    world.created(1, 10);
    world.create_as(1, "b", 0);
    world.created(2, 10);
    world.watches.ask_progress(1);
    world.told(1);
    world.progress(1, 15);
    assert_eq!(world.told(1), Vec::<String>::new());
    world.progress(2, 12);
    assert_eq!(world.told(1), ["progress@12"]);
}

#[test]
fn progress_is_not_told_past_events_of_a_watch_that_came_after_the_request() {
    let mut world = World::new();
    world.create_as(1, "a", 0);
    world.created(1, 10);
    world.watches.ask_progress(1);
    world.create_as(1, "b", 5);
    world.told(1);
    world.progress(1, 15);
    assert_eq!(world.told(1), Vec::<String>::new(), "events from 5 on are not told yet");
    world.created(2, 15);
    world.events(2, 15, &[7]);
    world.watches.ask_progress(1);
    world.progress(1, 16);
    world.progress(2, 16);
    assert_eq!(world.told(1), ["created@15", "7", "progress@16"]);
    // A watch that was created since, and has received as much, does not prevent the answer.
    world.watches.ask_progress(1);
    world.create_as(1, "c", 0);
    world.created(3, 20);
    world.progress(1, 18);
    world.progress(2, 17);
    assert_eq!(world.told(1), ["created@20", "progress@17"]);
}

#[test]
fn ids_are_the_clients_or_the_next_free_ones() {
    let mut world = World::new();
    let outbox = Arc::new(Outbox::default());
    let mut ids = Vec::new();
    for watch_id in [1, 0, 0, 1] {
        let request = WatchCreateRequest { key: "k".into(), watch_id, ..WatchCreateRequest::default() };
        world.watches.create(7, &outbox, &request, &Caller::default(), oneshot::channel().0);
    }
    ids.extend(world.watches.streams[&7].places.keys().copied());
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2]);
    let refused = WatchResponse::decode(outbox.rest().unwrap()).unwrap();
    assert_eq!((refused.watch_id, &*refused.cancel_reason), (NO_WATCH, &*error::WATCH_DUPLICATE_ID.message));
    world.created(1, 5);
    world.watches.cancel(7, 1);
}

#[test]
fn a_watch_that_is_taken_over_repeats_nothing_to_those_who_were_told() {
    let mut world = World::new();
    world.create(1, 0);
    world.created(1, 10);
    world.events(1, 12, &[11, 12]);
    world.progress(1, 20);
    assert_eq!(world.watches.start_of(1), Some(21));
    // The other member was asked for events from 12 on, before the first one has told of 12 and the progress.
    assert!(world.watches.is_created(1));
    world.created(1, 15);
    world.events(1, 15, &[12]);
    world.events(1, 22, &[21, 22]);
    assert_eq!(world.told(1), ["created@10", "11+12", "21+22"]);
    assert!(!world.watches.is_created(2));
}
