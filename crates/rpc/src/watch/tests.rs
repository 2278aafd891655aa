//! Tests of the hub with a store that the tests write to, and with clients that read as slowly as a test needs.

mod held;
mod lagging;
mod long;
mod model;
mod review;
mod turns;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use api::etcdserverpb::{WatchCreateRequest, WatchResponse};
use api::{Code, error};
use mvcc::KeyRange;
use numbers::{LeaseId, Revision};
use prost::Message as _;

use super::QUEUE_BYTES_MAX;
use world::{Client, Requester, Responder, World, settle, watch};

const HOUR: Duration = Duration::from_secs(3600);
const MANY: usize = usize::MAX;

fn world() -> World {
    World::new(1_572_864, HOUR)
}

/// Returns the contents of a response as one line.
fn line(response: &WatchResponse) -> String {
    let header = response.header.as_ref().expect("every response has a header");
    assert_eq!((header.cluster_id, header.member_id, header.raft_term), (1, 2, 3));
    let mut line = format!("{}@{}", response.watch_id, header.revision);
    if response.created {
        line += " created";
    }
    if response.canceled {
        line += " canceled";
    }
    if response.compact_revision != 0 {
        line += &format!(" compacted={}", response.compact_revision);
    }
    if !response.cancel_reason.is_empty() {
        line += &format!(" ({})", response.cancel_reason);
    }
    if response.fragment {
        line += " fragment";
    }
    for event in &response.events {
        let kv = event.kv.as_ref().expect("every event has a kv");
        let kind = if event.r#type == 1 { "del" } else { "put" };
        line += &format!(" {kind}:{}:{}", String::from_utf8_lossy(&kv.key), kv.mod_revision);
        if let Some(previous) = &event.prev_kv {
            line += &format!("<{}", previous.mod_revision);
        }
    }
    line
}

fn lines(client: &Client) -> Vec<String> {
    client.received().iter().map(line).collect()
}

/// Clients keep tens of thousands of streams open for days, so the memory of an idle stream matters.
#[test]
fn what_an_idle_stream_needs_lies_in_its_future_once() {
    let parts = size_of::<Requester>() + size_of::<Responder>() + 2 * size_of::<usize>();
    let bytes = world().client(1).future_bytes();
    assert!(bytes <= parts + 64, "{bytes} bytes, of which {parts} are its two ends and what ends it");
    let (stream, watch) = (size_of::<super::stream::Stream>(), size_of::<super::state::Watch>());
    assert!(stream <= 584 && watch <= 80, "{stream}, {watch} bytes");
}

#[test]
fn creation_is_answered_as_etcd_does() {
    let mut world = world();
    (0..5).for_each(|_| world.put("foo", 1));
    world.store.compact(Revision(4)).expect("compacts");
    world.advance();
    let mut client = world.client(MANY);
    client.create(WatchCreateRequest { start_revision: -1, ..watch("foo", "") });
    client.create(WatchCreateRequest { start_revision: -1, ..watch("zoo", "foo") });
    client.create(watch("zoo", "foo"));
    client.create(WatchCreateRequest { watch_id: 7, ..watch("foo", "foo") });
    client.create(WatchCreateRequest { watch_id: 1, ..watch("foo", "") });
    client.create(WatchCreateRequest { watch_id: 1, ..watch("foo", "") });
    client.create(watch("foo", ""));
    client.create(watch("foo", ""));
    client.create(WatchCreateRequest { watch_id: -4, ..watch("foo", "") });
    client.cancel(2);
    client.cancel(2);
    client.cancel(99);
    client.create(watch("foo", ""));
    client.create(WatchCreateRequest { start_revision: 3, ..watch("foo", "") });
    settle([&mut client]);
    assert!(client.pipe.opened.get());
    assert_eq!(
        lines(&client),
        [
            "-1@6 created canceled (etcdserver: mvcc: required revision has been compacted)",
            "-1@6 created canceled (etcdserver: mvcc: required revision has been compacted)",
            "-1@6 created canceled (mvcc: watcher range is empty)",
            "-1@6 created canceled (mvcc: watcher range is empty)",
            "1@6 created",
            "-1@6 created canceled (mvcc: duplicate watch ID provided on the WatchStream)",
            "0@6 created",
            "2@6 created",
            "-4@6 created",
            "2@6 canceled",
            "3@6 created",
            "4@6 created",
            "4@0 canceled compacted=4",
        ]
    );
    assert_eq!((world.hub.watches(), world.gauges()), (4, (1, 5, 0, 0)), "etcd counts a compacted one on");
    drop(client);
    assert_eq!((world.hub.watches(), world.gauges()), (0, (0, 0, 0, 0)));
}

#[test]
fn events_carry_what_was_asked_for() {
    let mut world = world();
    world.put("a", 1);
    world.put("b", 0);
    world.advance();
    let mut client = world.client(MANY);
    client.create(WatchCreateRequest { prev_kv: true, ..watch("a", "") });
    client.create(WatchCreateRequest { filters: vec![0, 17], ..watch("", "\0") });
    client.create(WatchCreateRequest { filters: vec![1, -3], ..watch("a", "b") });
    client.create(WatchCreateRequest { start_revision: 2, prev_kv: true, ..watch("a", "\0") });
    client.create(WatchCreateRequest { start_revision: 6, ..watch("a", "z") });
    client.create(WatchCreateRequest { filters: vec![0, 1], ..watch("a", "z") });
    client.create(watch("", ""));
    settle([&mut client]);
    client.received();
    world.put("a", 2);
    world.write(&[("a", None), ("b", None)]);
    world.put("a", 3);
    world.put("b", 3);
    world.advance();
    settle([&mut client]);
    let mut got = lines(&client);
    got.sort();
    assert_eq!(
        got,
        [
            "0@7 put:a:4<2 del:a:5<4 put:a:6",
            "1@7 del:a:5 del:b:5",
            "2@7 put:a:4 put:a:6",
            "3@7 put:a:4<2 del:a:5<4 del:b:5<3 put:a:6 put:b:7",
            "4@7 put:a:6 put:b:7",
        ]
    );
    world.put("\0", 1);
    world.advance();
    settle([&mut client]);
    assert_eq!(lines(&client), ["6@8 put:\0:8"]);
    assert_eq!(world.shared.diagnostics.metrics.mvcc.events.value(), 3 + 2 + 2 + 5 + 2 + 1 + 2);
}

#[test]
fn an_event_is_read_once_for_all_watches() {
    let mut world = world();
    let mut clients: Vec<_> = (0..50).map(|_| world.client(MANY)).collect();
    for (n, client) in clients.iter().enumerate() {
        client.create(watch("k", if n % 2 == 0 { "" } else { "l" }));
        client.create(watch("", "\0"));
    }
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    world.put("k", 100);
    world.advance();
    settle(&mut clients);
    for client in &clients {
        let mut got = lines(client);
        got.sort();
        assert_eq!(got, ["0@2 put:k:2", "1@2 put:k:2"]);
    }
    assert_eq!(world.values.reads.get(), 1);
}

#[test]
fn large_responses_are_cut_only_on_demand() {
    let mut world = World::new(0, HOUR);
    let mut client = world.client(MANY);
    client.create(WatchCreateRequest { fragment: true, ..watch("", "\0") });
    client.create(watch("", "\0"));
    settle([&mut client]);
    client.received();
    world.write(&[("a", Some(200_000)), ("b", Some(200_000)), ("c", Some(200_000)), ("d", Some(600_000))]);
    world.advance();
    settle([&mut client]);
    // The queue was full for the second watch, so it read the revision as history a little later.
    assert_eq!(
        lines(&client),
        [
            "0@2 fragment put:a:2 put:b:2",
            "0@2 fragment put:c:2",
            "0@2 put:d:2",
            "1@2 put:a:2 put:b:2 put:c:2 put:d:2"
        ]
    );
}

#[test]
fn progress_waits_until_all_is_told() {
    let mut world = world();
    (0..2500).for_each(|_| world.put("k", 1));
    world.advance();
    let mut client = world.client(MANY);
    client.ask_progress();
    settle([&mut client]);
    assert!(client.received().is_empty(), "without a watch nothing is said");
    client.create(WatchCreateRequest { start_revision: 1, ..watch("k", "") });
    client.ask_progress();
    settle([&mut client]);
    let got = client.received();
    assert_eq!(got.iter().map(|response| response.events.len()).sum::<usize>(), 2500);
    assert_eq!(line(got.last().expect("something")), "-1@2501");
    assert_eq!(got.iter().filter(|response| response.watch_id == -1).count(), 1);

    // A watch that begins later delays the progress response, because the client takes the revision of the
    // response for all its watches.
    client.create(WatchCreateRequest { start_revision: 2504, ..watch("k", "") });
    client.ask_progress();
    settle([&mut client]);
    assert_eq!(lines(&client), ["1@2501 created"]);
    world.put("other", 1);
    world.advance();
    settle([&mut client]);
    assert!(client.received().is_empty());
    world.put("other", 1);
    world.advance();
    settle([&mut client]);
    assert!(client.received().is_empty(), "at the revision before, it has not begun");
    world.put("k", 1);
    world.publish();
    settle([&mut client]);
    // The published change is delivered before the progress response.
    world.advance();
    settle([&mut client]);
    assert_eq!(lines(&client), ["0@2504 put:k:2504", "1@2504 put:k:2504", "-1@2504"]);
    client.ask_progress();
    world.put("k", 1);
    world.publish();
    settle([&mut client]);
    assert_eq!(lines(&client), ["0@2505 put:k:2505", "1@2505 put:k:2505", "-1@2505"]);
}

#[test]
fn progress_comes_by_itself_to_quiet_watches() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("builds");
    let mut world = World::new(0, Duration::from_millis(20));
    let mut client = world.client(MANY);
    let pipe = client.pipe.clone();
    client.create(WatchCreateRequest { progress_notify: true, ..watch("a", "") });
    client.create(watch("b", ""));
    client.create(WatchCreateRequest { progress_notify: true, start_revision: 9, ..watch("a", "") });
    runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        let serving = tokio::task::spawn_local(client.future.take().expect("not begun"));
        let told = async {
            for n in 0..3 {
                assert_eq!(line(&pipe.response().await), format!("{n}@1 created"));
            }
            world.put("z", 1);
            world.publish();
            assert_eq!(line(&pipe.response().await), "0@2");
            assert_eq!(line(&pipe.response().await), "0@2");
            world.put("a", 1);
            world.advance();
            assert_eq!(line(&pipe.response().await), "0@3 put:a:3");
            assert_eq!(line(&pipe.response().await), "0@3");
        };
        tokio::time::timeout(Duration::from_secs(60), told).await.expect("in time");
        serving.abort();
    }));
}

#[test]
fn a_stream_that_ends_tells_of_no_progress() {
    let mut world = world();
    for asks in [true, false] {
        let mut client = world.client(MANY);
        client.create(watch("", "\0"));
        settle([&mut client]);
        client.received();
        world.values.broken.set(true);
        world.put("a", 1);
        world.publish();
        // The event cannot be read, so the stream ends without the progress response; otherwise the client
        // would continue after the missing event.
        if asks {
            client.ask_progress();
        } else {
            world.advance();
            client.ask_progress();
        }
        settle([&mut client]);
        assert_eq!(lines(&client), Vec::<String>::new());
        assert_eq!(client.result.take().expect("over").expect_err("with an error").code, Code::Internal);
        world.values.broken.set(false);
    }
}

#[test]
fn streams_end_with_the_right_status() {
    let mut world = world();
    let start = |world: &World| {
        let mut client = world.client_with(MANY, true);
        client.create(watch("", "\0"));
        settle([&mut client]);
        assert_eq!(client.received().len(), 1);
        client
    };
    let end = |client: &mut Client| {
        settle([&mut *client]);
        client.result.take().expect("over").expect_err("with an error")
    };

    let mut client = start(&world);
    client.stop_server();
    assert_eq!(end(&mut client), error::STOPPED);

    let mut client = start(&world);
    client.pipe.raw(b"\x0a\xff".as_slice().into());
    let status = end(&mut client);
    assert_eq!(status.code, Code::Internal);
    assert!(status.message.starts_with("grpc: failed to unmarshal the received message: "), "{status}");

    let mut client = start(&world);
    world.values.broken.set(true);
    world.put("a", 1);
    world.advance();
    let status = end(&mut client);
    assert_eq!((status.code, status.message.contains("the disk is on fire")), (Code::Internal, true));
    assert!(client.received().is_empty());
    world.values.broken.set(false);

    // If the client closes its side, only its requests end; its watches continue.
    let mut client = start(&world);
    client.half_close();
    settle([&mut client]);
    world.put("a", 1);
    world.advance();
    settle([&mut client]);
    assert_eq!(lines(&client), ["0@3 put:a:3"]);
    assert!(client.result.is_none());

    let mut indifferent = world.client(MANY);
    settle([&mut indifferent]);
    world.lose_leader();
    world.hub.leader_lost();
    assert_eq!(end(&mut client), error::NO_LEADER);
    let mut late = world.client_with(MANY, true);
    assert_eq!(end(&mut late), error::NO_LEADER);
    assert!(!late.pipe.opened.get());
    settle([&mut indifferent]);
    assert!(indifferent.result.is_none());
    drop(indifferent);
    assert_eq!(world.gauges(), (0, 0, 0, 0));
}

#[test]
fn a_slow_stream_holds_little_and_delays_nobody() {
    let mut world = world();
    let (mut slow, mut fast) = (world.client(1), world.client(MANY));
    for client in [&slow, &fast] {
        client.create(watch("k", ""));
        client.create(watch("", "\0"));
    }
    settle([&mut slow, &mut fast]);
    assert_eq!(lines(&slow), ["0@1 created"]);
    assert_eq!(fast.received().len(), 2);
    for n in 0..400 {
        let before = Arc::downgrade(&world.shared.state.load().view);
        world.put("k", 20_000);
        world.advance();
        assert_eq!(before.strong_count(), 0, "no view of the past is kept for it");
        settle([&mut slow, &mut fast]);
        assert_eq!(fast.received().len(), 2, "write {n}");
        assert!(world.hub.queued_bytes_max() <= QUEUE_BYTES_MAX);
    }
    assert_eq!(world.gauges().2, 2, "both watches of the slow stream are behind");
    let slow_watches = |client: &Client| client.caller.slow_watches.load(Relaxed);
    assert_eq!((slow_watches(&slow), slow_watches(&fast)), (2, 0), "and it is known whose");
    let mut seen = [Vec::new(), Vec::new()];
    for _ in 0..10_000 {
        slow.allow(1);
        settle([&mut slow]);
        assert!(world.hub.queued_bytes_max() <= QUEUE_BYTES_MAX + 20_000 + 200);
        for response in slow.received() {
            let revisions = response.events.iter().map(|event| event.kv.as_ref().expect("a kv").mod_revision);
            seen[response.watch_id as usize].extend(revisions);
        }
        if seen.iter().all(|seen| seen.len() == 400) {
            break;
        }
    }
    for seen in seen {
        assert!(seen.iter().copied().eq(2..402));
    }
    assert_eq!((world.gauges().2, slow_watches(&slow)), (0, 0));
}

#[test]
fn a_stream_is_offered_what_is_short_at_once() {
    const WATCHES: usize = 40;
    let mut world = world();
    let mut client = world.client(MANY);
    for _ in 0..WATCHES {
        client.create(watch("k", ""));
    }
    client.create(WatchCreateRequest { prev_kv: true, ..watch("k", "") });
    settle([&mut client]);
    client.received();
    // In the first round one change is published, in the second round three changes, one by one, before the
    // stream's turn.
    for changes in [1, 3] {
        for n in 0..changes {
            world.put("k", 10 + n);
            world.advance();
        }
        assert_eq!(world.gauges().3, (changes * (WATCHES + 1)) as i64);
        settle([&mut client]);
        assert_eq!(client.pipe.together.take(), [changes * (WATCHES + 1)]);
        assert_eq!(world.gauges().3, 0);
        let revisions = |id: usize| -> Vec<i64> {
            let mut client = client.pipe.responses.borrow().clone();
            let decoded = client.drain(..).map(|bytes| WatchResponse::decode(bytes).expect("decodes"));
            let of_watch = decoded.filter(|response| response.watch_id == id as i64);
            of_watch.map(|response| response.header.expect("a header").revision).collect()
        };
        let newest = world.store.current_revision().0;
        let expected: Vec<i64> = (newest - changes as i64 + 1..=newest).collect();
        assert!((0..=WATCHES).all(|id| revisions(id) == expected), "each in order");
        client.received();
    }
    // One response with one change is queued, and then one with two changes. Responses with equal numbers of
    // changes are offered together.
    world.put("k", 1);
    world.advance();
    world.put("k", 2);
    world.put("k", 3);
    world.advance();
    assert_eq!(world.gauges().3, (3 * (WATCHES + 1)) as i64);
    settle([&mut client]);
    assert_eq!(client.pipe.together.take(), [WATCHES + 1; 2]);
    let told = lines(&client);
    assert!(
        told[..=WATCHES].iter().enumerate().all(|(id, line)| line.starts_with(&format!("{id}@6 put:k:6")))
    );
    let both = |id: usize, line: &String| {
        let (first, second) = if id < WATCHES { ("7", "8") } else { ("7<6", "8<7") };
        *line == format!("{id}@8 put:k:{first} put:k:{second}")
    };
    assert!(told[WATCHES + 1..].iter().enumerate().all(|(id, line)| both(id, line)), "{told:?}");
    // A long response is not copied for each watch.
    world.put("k", 1_000);
    world.put("k", 1);
    world.advance();
    settle([&mut client]);
    assert_eq!(client.pipe.together.take(), [0; 0]);
    assert_eq!(client.received().len(), WATCHES + 1);
}

#[test]
fn what_is_left_of_short_responses_waits_and_is_counted() {
    let mut world = world();
    let mut client = world.client(MANY);
    (0..10).for_each(|_| client.create(watch("k", "")));
    settle([&mut client]);
    client.received();
    client.pipe.credit.set(4);
    world.put("k", 1);
    world.advance();
    settle([&mut client]);
    assert_eq!((client.received().len(), world.gauges().3), (4, 6));
    let events = |world: &World| world.shared.diagnostics.metrics.mvcc.events.value();
    assert_eq!(events(&world), 4);
    assert!(world.hub.queued_bytes_max() > 0);
    // New responses are offered after the ones that were not taken.
    world.put("k", 2);
    world.put("k", 3);
    world.advance();
    assert_eq!(world.gauges().3, 26);
    let mut seen = vec![Vec::new(); 10];
    while world.gauges().3 > 0 {
        client.allow(3);
        settle([&mut client]);
        for response in client.received() {
            seen[response.watch_id as usize]
                .push((response.header.expect("a header").revision, response.events.len()));
        }
    }
    assert_eq!(events(&world), 30);
    assert!(seen[..4].iter().all(|seen| seen == &[(4, 2)]), "{seen:?}");
    assert!(seen[4..].iter().all(|seen| seen == &[(2, 1), (4, 2)]), "{seen:?}");
    assert_eq!(world.hub.queued_bytes_max(), 0);
}

#[test]
fn a_watch_overtaken_by_a_compaction_is_told() {
    let mut world = world();
    let (mut slow, mut prompt) = (world.client(1), world.client(MANY));
    slow.create(watch("k", ""));
    prompt.create(watch("other", ""));
    settle([&mut slow, &mut prompt]);
    slow.received();
    prompt.received();
    for _ in 0..100 {
        world.put("k", 20_000);
        world.advance();
        settle([&mut slow, &mut prompt]);
    }
    world.store.compact(Revision(90)).expect("compacts");
    while !world.store.compact_step(100, |_| {}).done {}
    world.advance();
    slow.allow(MANY);
    settle([&mut slow, &mut prompt]);
    let got = slow.received();
    let (last, before) = got.split_last().expect("something");
    assert_eq!(line(last), "0@0 canceled compacted=90");
    let revisions: Vec<i64> = before
        .iter()
        .flat_map(|response| &response.events)
        .map(|event| event.kv.as_ref().expect("a kv").mod_revision)
        .collect();
    let count = revisions.len() as i64;
    assert!((10..88).contains(&count), "{count}");
    assert!(revisions.into_iter().eq(2..2 + count));
    assert!(prompt.received().is_empty(), "who has all is not concerned");

    // Changes that were compacted before this shard saw them are still delivered, as long as they were not
    // removed.
    prompt.create(watch("k", ""));
    settle([&mut prompt]);
    prompt.received();
    (0..10).for_each(|_| world.put("k", 1));
    world.store.compact(Revision(105)).expect("compacts");
    world.advance();
    settle([&mut prompt]);
    let told: Vec<i64> = prompt
        .received()
        .iter()
        .flat_map(|response| {
            response.events.iter().filter_map(|event| event.kv.as_ref().map(|kv| kv.mod_revision))
        })
        .collect();
    assert!(told.into_iter().eq(102..112));

    // Once changes may have been removed, it is not certain for any watch that it has received all of them.
    (0..10).for_each(|_| world.put("k", 1));
    world.store.compact(Revision(115)).expect("compacts");
    while !world.store.compact_step(100, |_| {}).done {}
    world.removed_through = Revision(115);
    world.advance();
    settle([&mut slow, &mut prompt]);
    let mut told = lines(&prompt);
    told.sort();
    assert_eq!(told, ["0@0 canceled compacted=115", "1@0 canceled compacted=115"]);
    assert_eq!((world.hub.watches(), world.gauges()), (0, (2, 3, 0, 0)));

    // The stream keeps the cancelled watch until the client cancels it too.
    prompt.create(WatchCreateRequest { watch_id: 7, ..watch("k", "") });
    prompt.create(WatchCreateRequest { watch_id: 7, ..watch("k", "") });
    prompt.create(watch("k", ""));
    prompt.ask_progress();
    settle([&mut prompt]);
    assert_eq!(
        lines(&prompt),
        [
            "7@121 created",
            "-1@121 created canceled (mvcc: duplicate watch ID provided on the WatchStream)",
            "2@121 created"
        ],
        "and the word of progress waits"
    );
    prompt.cancel(0);
    prompt.cancel(0);
    settle([&mut prompt]);
    assert_eq!(lines(&prompt), ["0@121 canceled"]);
    prompt.cancel(1);
    settle([&mut prompt]);
    assert_eq!(lines(&prompt), ["1@121 canceled", "-1@121"]);
    drop((slow, prompt));
    assert_eq!((world.hub.watches(), world.gauges()), (0, (0, 0, 0, 0)));
}

#[test]
fn a_watch_made_between_publications_misses_nothing() {
    let mut world = world();
    let mut client = world.client(MANY);
    world.put("k", 1);
    world.publish();
    // The hub has not seen revision 2, and has no watch that needs it.
    client.create(watch("k", ""));
    settle([&mut client]);
    assert_eq!(lines(&client), ["0@2 created"]);
    world.put("k", 1);
    world.publish();
    client.create(watch("k", ""));
    settle([&mut client]);
    assert_eq!(lines(&client), ["0@3 put:k:3", "1@3 created"]);
    world.hub.advance();
    settle([&mut client]);
    assert!(client.received().is_empty());
}

#[test]
fn a_revision_of_many_changes_is_one_response() {
    let mut world = world();
    for n in 0..3000 {
        world.put(&format!("k{n:04}"), 500);
    }
    let mut writer = world.store.begin();
    assert_eq!(writer.delete_range(KeyRange::ALL, |_| {}), 3000);
    writer.finish();
    world.advance();
    let mut client = world.client(MANY);
    client.create(WatchCreateRequest { start_revision: 3002, prev_kv: true, ..watch("k", "l") });
    settle([&mut client]);
    let got = client.received();
    assert_eq!(got.len(), 2);
    assert_eq!(got[1].events.len(), 3000);
    assert!(got[1].events.iter().all(|event| event.prev_kv.as_ref().is_some_and(|kv| kv.value.len() == 500)));
}

/// Puts this many keys at revision 2, and deletes all of them at revision 3.
fn put_and_delete(world: &mut World, keys: usize) {
    let key = |n: usize| format!("k{n:05}");
    let mut writer = world.store.begin();
    for n in 0..keys {
        let location = mvcc::Location::new(1, 0);
        writer.put(key(n).as_bytes(), mvcc::Value { location, len: 100, crc: 0 }, LeaseId::NONE);
    }
    writer.finish();
    world.advance();
    let mut writer = world.store.begin();
    assert_eq!(writer.delete_range(KeyRange::ALL, |_| {}), keys as u64);
    writer.finish();
}

/// Returns the keys of the events in these responses.
fn keys_of(responses: &[WatchResponse]) -> impl Iterator<Item = String> {
    let events = responses.iter().flat_map(|response| &response.events);
    events.map(|event| String::from_utf8_lossy(&event.kv.as_ref().expect("a kv").key).into_owned())
}

#[test]
fn a_revision_of_very_many_changes_is_told_in_turns() {
    const KEYS: usize = 20_000;
    let all = || (0..KEYS).map(|n| format!("k{n:05}"));
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(1000, 8 << 20);
    let mut clients: Vec<_> = (0..4).map(|_| world.client(MANY)).collect();
    // This client receives everything in one response.
    clients[0].create(WatchCreateRequest { prev_kv: true, ..watch("k", "l") });
    clients[0].create(watch("k", "l"));
    // This client receives fragments.
    clients[1].create(WatchCreateRequest { fragment: true, prev_kv: true, ..watch("k", "l") });
    clients[1].create(watch("k19999", ""));
    // This client receives a part of the changes, in three watches that read together.
    clients[2].create(watch("k1", "k10001"));
    clients[2].create(watch("k15000", ""));
    clients[2].create(WatchCreateRequest { filters: vec![1], ..watch("k", "l") });
    clients[2].create(watch("z", ""));
    // This client's watch matches none of the changes.
    clients[3].create(watch("z", ""));
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    put_and_delete(&mut world, KEYS);
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    world.hub.work_max();

    world.put("z", 1);
    world.publish();
    clients.iter().for_each(Client::ask_progress);
    let (mut came, mut made_max) = (false, 0);
    world.hub.advance();
    for turn in 0.. {
        let mut more = world.work();
        for client in &mut clients {
            more |= client.step();
        }
        made_max = made_max.max(world.hub.long_bytes_max());
        // A watch that is created now receives only later changes.
        if turn == 3 {
            came = true;
            clients[3].create(watch("k", "l"));
        }
        if !more {
            break;
        }
    }
    assert!(came);
    let (walked, looks) = world.hub.work_max();
    assert!(walked <= 1001, "{walked} changes in one turn");
    assert!(looks <= 5000, "{looks} looks in one turn");

    let one = clients[0].received();
    let (progress, told) = one.split_last().expect("something");
    assert_eq!(line(progress), "-1@4");
    assert_eq!(told.len(), 2, "all events of a revision are in one response");
    for response in told {
        assert!(keys_of(std::slice::from_ref(response)).eq(all()));
        let previous = response.watch_id == 0;
        assert!(response.events.iter().all(|event| event.prev_kv.is_some() == previous));
    }
    assert!(made_max < 8 << 20, "{made_max} bytes for one stream");

    let cut = clients[1].received();
    let fragments = cut.iter().position(|response| !response.fragment).expect("an end") + 1;
    assert!(fragments > 4);
    assert!(cut[..fragments].iter().all(|response| response.watch_id == cut[0].watch_id));
    let (first, rest) =
        if cut[0].watch_id == 0 { cut.split_at(fragments) } else { (&cut[1..=cut.len() - 2], &cut[..1]) };
    assert!(keys_of(first).eq(all()));
    assert_eq!(keys_of(rest).collect::<Vec<_>>(), ["k19999"]);
    assert_eq!(line(&cut[cut.len() - 1]), "-1@4");

    let mut part = lines(&clients[2]);
    assert_eq!(part.pop().as_deref(), Some("-1@4"));
    part.sort();
    assert_eq!(part, ["0@4 del:k10000:3", "1@4 del:k15000:3", "3@4 put:z:4"]);
    assert_eq!(lines(&clients[3]), ["1@4 created", "0@4 put:z:4", "-1@4"]);
    assert_eq!((world.gauges().2, world.gauges().3), (0, 0));
}

#[test]
fn a_watch_that_ends_amid_a_revision_of_many_changes_ends_cleanly() {
    for compacts in [false, true] {
        let mut world = World::new(0, HOUR);
        world.hub.walk_less_in_a_turn(100, 8 << 20);
        let (mut client, mut cut) = (world.client(MANY), world.client(MANY));
        client.create(watch("k", "l"));
        cut.create(WatchCreateRequest { fragment: true, prev_kv: true, ..watch("k", "l") });
        settle([&mut client, &mut cut]);
        put_and_delete(&mut world, 10_000);
        settle([&mut client, &mut cut]);
        client.received();
        cut.received();
        world.advance();
        while cut.pipe.responses.borrow().is_empty() {
            world.work();
            client.step();
            cut.step();
        }
        assert!(world.hub.long_bytes_max() > 0);
        if compacts {
            world.put("z", 1);
            world.store.compact(Revision(4)).expect("compacts");
            while !world.store.compact_step(100, |_| {}).done {}
            world.advance();
        } else {
            client.cancel(0);
            cut.cancel(0);
        }
        settle([&mut client, &mut cut]);
        let heard = cut.received();
        if compacts {
            assert_eq!(lines(&client), ["0@0 canceled compacted=4"]);
            let (last, before) = heard.split_last().expect("something");
            assert_eq!(line(last), "0@0 canceled compacted=4");
            assert!(before.iter().all(|response| response.fragment));
        } else {
            assert_eq!(lines(&client), ["0@3 canceled"]);
            // If the client has received a part of a revision, it receives the rest of this revision first.
            assert_eq!(keys_of(&heard).count(), 10_000);
            let end = heard.len() - 1;
            assert!(heard[..end - 1].iter().all(|response| response.fragment) && !heard[end - 1].fragment);
            assert_eq!(line(&heard[end]), "0@3 canceled");
        }
        assert_eq!((world.hub.long_bytes_max(), world.gauges().2, world.gauges().3), (0, 0, 0));
        drop((client, cut));
        assert_eq!((world.hub.watches(), world.gauges()), (0, (0, 0, 0, 0)));
    }
}

#[test]
fn streams_share_what_one_of_them_makes_of_a_revision_of_many_changes() {
    let mut world = world();
    world.hub.walk_less_in_a_turn(1000, 8 << 20);
    let mut clients: Vec<_> = (0..20).map(|_| world.client(MANY)).collect();
    clients.iter().for_each(|client| client.create(watch("k", "l")));
    settle(&mut clients);
    put_and_delete(&mut world, 20_000);
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    world.publish();
    world.hub.advance();
    let mut left = false;
    loop {
        let mut more = world.work();
        for client in &mut clients {
            more |= client.step();
        }
        // The first client disconnects halfway, so another stream starts again.
        if !left && world.hub.long_bytes_max() > 100_000 {
            left = true;
            assert_eq!(world.hub.long_streams(), 1, "one stream gathers for all");
            clients.remove(0);
        }
        assert!(world.hub.long_streams() <= 1);
        if !more {
            break;
        }
    }
    assert!(left);
    let places: Vec<_> = clients
        .iter()
        .map(|client| client.pipe.responses.borrow().front().map(|bytes| bytes.as_ptr()))
        .collect();
    assert!(places.iter().all(|place| place.is_some() && *place == places[0]), "the bytes are shared");
    for client in &clients {
        let heard = client.received();
        assert_eq!((heard.len(), keys_of(&heard).count()), (1, 20_000));
    }
    assert_eq!((world.hub.long_streams(), world.gauges().2, world.gauges().3), (0, 0, 0));
}

#[test]
fn previous_values_that_are_much_for_a_turn_are_gathered_in_turns() {
    let mut world = world();
    let keys: Vec<_> = (0..40).map(|n| format!("k{n:02}")).collect();
    keys.iter().for_each(|key| world.put(key, 100_000));
    world.advance();
    let mut clients: Vec<_> = (0..3).map(|_| world.client(MANY)).collect();
    clients.iter().for_each(|client| client.create(WatchCreateRequest { prev_kv: true, ..watch("k", "l") }));
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    world.hub.walk_less_in_a_turn(1000, 1 << 20);
    let changes: Vec<_> = keys.iter().map(|key| (key.as_str(), None)).collect();
    world.write(&changes);
    let mut reads = world.values.reads.get();
    world.publish();
    world.hub.advance();
    loop {
        let mut more = world.work();
        for client in &mut clients {
            more |= client.step();
            let now = world.values.reads.get();
            assert!(now - reads <= 11, "{} values read in one turn", now - reads);
            reads = now;
        }
        if !more {
            break;
        }
    }
    for client in &clients {
        let heard = client.received();
        assert_eq!(heard.len(), 1);
        assert!(keys_of(&heard).eq(keys.iter().cloned()));
        let mut previous = heard[0].events.iter().map(|event| event.prev_kv.as_ref());
        assert!(previous.all(|kv| kv.is_some_and(|kv| kv.value.len() == 100_000)));
    }
}

#[test]
fn many_watches_of_one_key_are_told_in_turns() {
    const WATCHES: i64 = 20_000;
    let mut world = world();
    let (mut client, mut other) = (world.client(MANY), world.client(MANY));
    other.create(watch("z", ""));
    for n in 0..WATCHES {
        client.create(watch("a", if n % 2 == 0 { "" } else { "b" }));
    }
    settle([&mut client, &mut other]);
    client.received();
    other.received();
    let mut came = false;
    for round in 1..4 {
        for _ in 0..round {
            world.put("a", 10);
        }
        world.put("z", 1);
        world.publish();
        // Counts the watches that received an event, and those whose stream will read it later.
        let concerned = |world: &World| world.gauges().2 + world.gauges().3;
        let mut told = concerned(&world);
        let mut more = true;
        world.hub.advance();
        while more {
            more = world.work();
            let now = concerned(&world);
            assert!(now - told <= 2 * 1024 * round, "{} events in two turns", now - told);
            told = now;
            // A watch that is created now receives only later changes.
            if told > WATCHES / 2 && !came {
                came = true;
                other.create(watch("a", ""));
                settle([&mut other]);
                assert_eq!(lines(&other).last().map(String::as_str), Some("1@3 created"));
            }
        }
        assert!(told >= WATCHES);
        // The stream holds one megabyte at a time, and reads the rest for a part of its watches at a time.
        let mut heard = std::collections::BTreeMap::<i64, Vec<i64>>::new();
        let mut behind = world.gauges().2;
        while client.step() || world.work() {
            assert!(behind - world.gauges().2 <= 256, "{} watches in one turn", behind - world.gauges().2);
            behind = world.gauges().2;
            for response in client.received() {
                let revisions =
                    response.events.iter().map(|event| event.kv.as_ref().expect("a kv").mod_revision);
                heard.entry(response.watch_id).or_default().extend(revisions);
            }
        }
        let last = world.store.current_revision().0;
        let expected: Vec<i64> = (last - round..last).collect();
        assert_eq!(heard.len() as i64, WATCHES);
        assert!(heard.values().all(|heard| *heard == expected), "round {round}");
        assert_eq!(world.gauges().2, 0);
    }
    let (_, looks) = world.hub.work_max();
    assert!(looks <= 40_000, "{looks} looks in one turn");
}

#[test]
fn progress_waits_for_the_end_of_a_revision_that_is_being_told() {
    let mut world = world();
    world.hub.do_less_in_a_turn(2, 100);
    let mut client = world.client(MANY);
    for _ in 0..9 {
        client.create(watch("a", ""));
    }
    settle([&mut client]);
    client.received();
    world.put("a", 1);
    world.publish();
    world.hub.advance();
    world.work();
    client.ask_progress();
    settle([&mut client]);
    let told = lines(&client);
    assert!(told.len() < 9 && told.iter().all(|line| line.contains("put:a:2")), "{told:?}");
    while world.work() {}
    settle([&mut client]);
    let rest = lines(&client);
    assert_eq!((told.len() + rest.len(), rest.last().map(String::as_str)), (10, Some("-1@2")));
}

#[test]
fn many_watches_of_a_stream_that_ends_go_in_slices() {
    let mut world = world();
    let mut client = world.client(MANY);
    for _ in 0..1000 {
        client.create(watch("a", ""));
        client.create(watch("a", "c"));
    }
    let mut other = world.client(MANY);
    other.create(watch("a", ""));
    settle([&mut client, &mut other]);
    assert_eq!(world.gauges().1, 2001);
    assert_eq!((client.received().len(), other.received().len()), (2000, 1));
    drop(client);
    let mut left = world.gauges().1;
    assert!(left > 1000, "{left} watches are left when the stream ends");
    // Watches still in the index are skipped, and other watches receive the change.
    world.put("a", 1);
    world.publish();
    world.hub.advance();
    let mut heard = Vec::new();
    for _ in 0..100 {
        world.work();
        settle([&mut other]);
        heard.extend(lines(&other));
        let now = world.gauges().1;
        assert!(left - now <= 256, "{} watches went in one slice", left - now);
        left = now;
    }
    assert_eq!(heard, ["0@2 put:a:2"]);
    assert_eq!((left, world.hub.watches(), world.gauges().0), (1, 1, 1));
    drop(other);
    assert_eq!((world.gauges().1, world.hub.watches()), (0, 0));
}

#[test]
fn progress_is_told_of_once_watches_that_begin_later_are_reached_or_gone() {
    let mut world = world();
    let mut client = world.client(MANY);
    client.create(watch("a", ""));
    for start in [4, 4, 9] {
        client.create(WatchCreateRequest { start_revision: start, ..watch("b", "") });
    }
    settle([&mut client]);
    assert_eq!(client.received().len(), 4);
    client.ask_progress();
    client.cancel(3);
    client.cancel(1);
    settle([&mut client]);
    assert_eq!(client.received().len(), 2);
    for n in 0..3 {
        world.put("z", n);
        world.advance();
        settle([&mut client]);
        // One watch still begins at revision 4.
        assert_eq!(lines(&client), if n == 2 { vec!["-1@4"] } else { vec![] });
    }
    // The first of these watches was created when revision 4 was already reached, so it does not count among
    // the watches that begin later.
    client.create(WatchCreateRequest { start_revision: 4, ..watch("b", "") });
    client.create(WatchCreateRequest { start_revision: 6, ..watch("b", "") });
    client.cancel(4);
    settle([&mut client]);
    client.received();
    client.ask_progress();
    settle([&mut client]);
    assert!(client.received().is_empty());
    client.cancel(5);
    settle([&mut client]);
    assert_eq!(client.received().len(), 2);
}
