//! Limits of the work that one turn of the shard does for watches, and the order in which streams get turns.

use api::etcdserverpb::WatchCreateRequest;
use api::mvccpb::KeyValue;
use numbers::Revision;

use super::world::{Client, World, round, settle, watch};
use super::{HOUR, MANY, keys_of, lines};

#[test]
fn streams_that_are_behind_take_turns() {
    const CHANGES: usize = 1000;
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(CHANGES, 8 << 20);
    (0..4 * CHANGES).for_each(|_| world.put("k", 1));
    world.advance();
    let mut clients: Vec<_> = (0..40).map(|_| world.client(MANY)).collect();
    let (synced, behind) = clients.split_first().expect("some");
    synced.create(watch("z", ""));
    behind
        .iter()
        .for_each(|client| client.create(WatchCreateRequest { start_revision: 1, ..watch("k", "") }));
    let mut heard = vec![0; clients.len()];
    world.hub.work_done();
    let mut rounds = 0;
    while round(&world, &mut clients) {
        let (walked, looks) = world.hub.work_done();
        assert!(walked <= CHANGES + 10, "{walked} changes between two looks at the sockets");
        assert!(looks <= CHANGES + 10, "{looks} looks at watches between two looks at the sockets");
        for (heard, client) in heard.iter_mut().zip(&clients).skip(1) {
            *heard += keys_of(&client.received()).count();
        }
        // Every stream gets a turn before any stream gets a second turn.
        let (most, least) = (heard[1..].iter().max(), heard[1..].iter().min());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= CHANGES + 10), "{heard:?}");
        // Synced watches do not wait for streams that read history.
        rounds += 1;
        if rounds % 10 == 5 {
            clients[0].received();
            world.put("z", 1);
            world.publish();
            world.hub.advance();
            assert!(clients[0].step());
            assert_eq!(clients[0].received().len(), 1);
            world.hub.work_done();
        }
    }
    assert!(heard[1..].iter().all(|heard| *heard == 4 * CHANGES), "{heard:?}");
    assert!(rounds > 39 * 4, "{rounds} rounds");
    assert_eq!(world.gauges().2, 0);
}

#[test]
fn hardly_any_stream_holds_fetched_values_until_its_turn() {
    const STREAMS: usize = 30;
    const CHANGES: usize = 100;
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(CHANGES, 8 << 20);
    (0..3 * CHANGES).for_each(|_| world.put("k", 1000));
    world.advance();
    world.values.absent.set(true);
    let mut clients: Vec<_> = (0..STREAMS).map(|_| world.client(MANY)).collect();
    let from = WatchCreateRequest { start_revision: 2, ..watch("k", "") };
    clients.iter().for_each(|client| client.create(from.clone()));
    let mut most = 0;
    while round(&world, &mut clients) {
        most = most.max(world.hub.laden_streams());
    }
    assert!((1..=2).contains(&most), "{most} streams hold values at a time");
    for client in &clients {
        let told = client.received();
        let mut events = told.iter().flat_map(|response| &response.events);
        let is_whole = |kv: &KeyValue| {
            kv.value.len() == 1000 && kv.value.iter().all(|byte| i64::from(*byte) == kv.mod_revision % 251)
        };
        assert!(events.all(|event| event.kv.as_ref().is_some_and(is_whole)));
        assert_eq!(keys_of(&told).count(), 3 * CHANGES);
    }
    assert_eq!((world.hub.laden_streams(), world.gauges().2), (0, 0));
}

#[test]
fn a_watch_that_had_everything_does_not_wait_for_all_who_read_history() {
    const STREAMS: usize = 40;
    const CHANGES: usize = 100;
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(CHANGES, 8 << 20);
    let mut synced = world.client(MANY);
    synced.create(watch("z", ""));
    settle([&mut synced]);
    (0..9 * CHANGES).for_each(|_| world.put("k", 1));
    world.advance();
    let mut clients: Vec<_> = (0..STREAMS).map(|_| world.client(MANY)).collect();
    let from = WatchCreateRequest { start_revision: 2, ..watch("k", "") };
    clients.iter().for_each(|client| client.create(from.clone()));
    for _ in 0..3 {
        assert!(round(&world, &mut clients));
    }
    synced.received();
    // The queue of the stream cannot hold all these events at once.
    (0..5).for_each(|_| world.put("z", 400_000));
    world.publish();
    world.hub.advance();
    clients.insert(0, synced);
    let (mut told, mut rounds) = (0, 0);
    assert_eq!(world.gauges().2, 1 + STREAMS as i64);
    while told < 5 {
        assert!(round(&world, &mut clients));
        told += keys_of(&clients[0].received()).count();
        rounds += 1;
    }
    assert!(rounds <= 6, "{rounds} rounds");
    while round(&world, &mut clients) {}
    for client in &clients[1..] {
        assert_eq!(keys_of(&client.received()).count(), 9 * CHANGES);
    }
    assert_eq!(world.gauges().2, 0);
}

#[test]
fn watches_that_are_too_many_to_read_together_become_fewer_once_a_turn() {
    const LOOKS: usize = 100;
    let mut world = World::new(0, HOUR);
    world.hub.do_less_in_a_turn(1024, LOOKS);
    (0..3).for_each(|_| world.put("k", 1));
    world.advance();
    let mut clients = [world.client(MANY)];
    for _ in 0..256 {
        clients[0].create(WatchCreateRequest { start_revision: 2, ..watch("k", "") });
    }
    world.hub.work_done();
    while round(&world, &mut clients) {
        let (_, looks) = world.hub.work_done();
        assert!(looks <= LOOKS + 1, "{looks} looks at watches between two looks at the sockets");
    }
    assert_eq!(keys_of(&clients[0].received()).count(), 3 * 256);
    assert_eq!(world.gauges().2, 0);
}

#[test]
fn a_broadcast_to_too_many_watches_becomes_smaller_once_a_turn() {
    const LOOKS: usize = 100;
    const CHANGES: usize = 60;
    let mut world = World::new(0, HOUR);
    world.hub.do_less_in_a_turn(64, LOOKS);
    let mut clients: Vec<_> = (0..4).map(|_| world.client(MANY)).collect();
    for client in &clients {
        (0..64).for_each(|_| client.create(watch("k", "")));
    }
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    (0..CHANGES).for_each(|_| world.put("k", 1));
    world.publish();
    world.hub.advance();
    world.hub.work_done();
    while round(&world, &mut clients) {
        let (_, looks) = world.hub.work_done();
        // Watches are searched once, and events are collected once for those found.
        assert!(looks <= 2 * (LOOKS + CHANGES), "{looks} looks at watches between two looks at the sockets");
    }
    for client in &clients {
        assert_eq!(
            lines(client).iter().map(|line| line.matches("put:k").count()).sum::<usize>(),
            64 * CHANGES
        );
    }
    assert_eq!(world.gauges().2, 0);
}

#[test]
fn progress_is_not_told_below_what_was_read_as_history() {
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(10, 8 << 20);
    let (mut client, mut synced) = (world.client(MANY), world.client(MANY));
    synced.create(watch("z", ""));
    settle([&mut synced]);
    world.put("k", 1);
    world.advance();
    // The progress response is requested at revision 2.
    client.create(WatchCreateRequest { start_revision: 2, ..watch("k", "") });
    client.ask_progress();
    client.step();
    (0..25).for_each(|_| world.put("k", 1));
    world.publish();
    // The synced watches receive some of the changes, and the watch that is behind reads more of them.
    world.hub.advance();
    assert_eq!(world.hub.revision(), Revision(12));
    settle([&mut client]);
    let told = lines(&client);
    assert!(told.last().is_some_and(|line| line.ends_with(" put:k:21")), "{told:?}");
    assert!(world.work());
    settle([&mut client]);
    assert_eq!(lines(&client), ["0@27 put:k:22", "-1@22"]);
}

#[test]
fn watches_are_fewer_only_where_they_ask_for_too_much_together() {
    const CHANGES: usize = 2000;
    const WATCHES: usize = 30;
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(16 << 10, 150_000);
    (0..CHANGES).for_each(|_| world.put("a", 1));
    world.put("b", 100_000);
    world.advance();
    let last = 2 + CHANGES as i64;
    let mut clients = [world.client(MANY)];
    // These watches receive the last revision one at a time.
    (0..4).for_each(|_| clients[0].create(WatchCreateRequest { start_revision: last, ..watch("b", "") }));
    while round(&world, &mut clients) {}
    clients[0].received();
    // These watches read the earlier revisions together.
    (0..WATCHES).for_each(|_| clients[0].create(WatchCreateRequest { start_revision: 2, ..watch("a", "") }));
    world.hub.work_done();
    while round(&world, &mut clients) {}
    let (walked, _) = world.hub.work_done();
    assert_eq!(keys_of(&clients[0].received()).count(), WATCHES * CHANGES);
    assert!(walked <= 3 * CHANGES, "{walked} changes");
}

#[test]
fn streams_that_cannot_be_told_of_progress_yet_cost_nothing_at_each_publication() {
    const STREAMS: usize = 500;
    let mut world = World::new(0, HOUR);
    let mut clients: Vec<_> = (0..STREAMS).map(|_| world.client(MANY)).collect();
    let (later, overtaken) = clients.split_at(STREAMS / 2);
    let far = WatchCreateRequest { start_revision: i64::MAX / 2, ..watch("k", "") };
    later.iter().for_each(|client| client.create(far.clone()));
    overtaken.iter().for_each(|client| client.create(watch("k", "")));
    settle(&mut clients);
    (0..10).for_each(|_| world.put("k", 1));
    world.store.compact(Revision(10)).expect("compacts");
    while !world.store.compact_step(100, |_| {}).done {}
    world.removed_through = Revision(10);
    world.advance();
    settle(&mut clients);
    clients.iter().for_each(Client::ask_progress);
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    world.hub.work_done();
    for _ in 0..3 {
        world.put("z", 1);
        world.publish();
        world.hub.advance();
        let (_, looks) = world.hub.work_done();
        assert!(looks <= 1, "{looks} looks at streams for one publication");
    }
    // One stream of each kind gets its progress response, once nothing delays it.
    let now = world.hub.revision();
    clients[0].cancel(0);
    clients[0].create(WatchCreateRequest { start_revision: (now + 1).0, ..watch("k", "") });
    clients[0].ask_progress();
    clients[STREAMS - 1].create(watch("k", ""));
    clients[STREAMS - 1].cancel(0);
    settle(&mut clients);
    assert_eq!(lines(&clients[STREAMS - 1]).last(), Some(&format!("-1@{now}")));
    assert_eq!(lines(&clients[0]).len(), 2);
    world.put("z", 1);
    world.advance();
    settle(&mut clients);
    assert_eq!(lines(&clients[0]), [format!("-1@{}", now + 1)]);
    assert!(clients.iter().all(|client| client.received().is_empty()));
    // A stream that ends does not search for its position among the others either.
    world.hub.work_done();
    drop(clients);
    let (_, looks) = world.hub.work_done();
    assert!(looks <= 2 * STREAMS, "{looks} looks at streams when they end");
    while world.work() {}
    assert_eq!((world.hub.watches(), world.gauges()), (0, (0, 0, 0, 0)));
}

#[test]
fn many_streams_are_told_of_progress_in_turns() {
    const STREAMS: usize = 700;
    let mut world = World::new(0, HOUR);
    let mut clients: Vec<_> = (0..STREAMS).map(|_| world.client(MANY)).collect();
    for client in &clients {
        client.create(WatchCreateRequest { start_revision: 3, ..watch("k", "") });
        client.ask_progress();
    }
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    (0..2).for_each(|_| world.put("z", 1));
    world.publish();
    world.hub.work_done();
    world.hub.advance();
    // A stream that ends before its turn does not delay other streams. A stream whose watches are all
    // cancelled gets no progress response.
    clients.truncate(STREAMS - 1);
    clients[STREAMS - 2].cancel(0);
    clients[STREAMS - 2].ask_progress();
    let (mut more, mut turns) = (true, 1);
    while more {
        let (_, looks) = world.hub.work_done();
        assert!(looks <= 256 + 1, "{looks} looks at streams in one turn");
        more = world.work();
        settle(&mut clients);
        turns += 1;
    }
    assert!(turns >= 3, "{turns} turns");
    let last = clients.pop().expect("some");
    assert_eq!(lines(&last), ["0@3 canceled"]);
    for client in &clients {
        assert_eq!(lines(client), ["-1@3"]);
    }
    // Each stream got one progress response.
    world.put("z", 1);
    world.advance();
    settle(&mut clients);
    assert!(clients.iter().all(|client| client.received().is_empty()));
}

#[test]
fn the_watches_of_all_streams_that_end_together_go_in_slices() {
    const STREAMS: usize = 50;
    let mut world = World::new(0, HOUR);
    let mut clients: Vec<_> = (0..STREAMS).map(|_| world.client(MANY)).collect();
    for client in &clients {
        (0..200).for_each(|_| client.create(watch("a", "")));
    }
    let mut other = world.client(MANY);
    other.create(watch("a", ""));
    settle(clients.iter_mut().chain([&mut other]));
    other.received();
    let all = 200 * STREAMS as i64 + 1;
    assert_eq!(world.gauges().1, all);
    // All streams end together, as when their connection closes.
    drop(clients);
    let mut left = world.gauges().1;
    assert!(all - left <= 256, "{} watches went with their connection", all - left);
    assert_eq!(world.gauges().0, 1);
    world.put("a", 1);
    world.publish();
    let mut more = true;
    while more {
        more = world.work();
        let now = world.gauges().1;
        assert!(left - now <= 256, "{} watches went in one turn", left - now);
        left = now;
    }
    settle([&mut other]);
    assert_eq!(lines(&other), ["0@2 put:a:2"]);
    assert_eq!((left, world.hub.watches()), (1, 1));
    // A small number of watches is removed in one turn.
    drop(other);
    assert_eq!((world.hub.watches(), world.gauges()), (0, (0, 0, 0, 0)));
}

#[test]
fn streams_that_cannot_read_are_passed_over_in_turns() {
    const STREAMS: usize = 500;
    const LOOKS: usize = 100;
    let mut world = World::new(0, HOUR);
    world.hub.do_less_in_a_turn(1024, LOOKS);
    world.put("k", 1);
    world.advance();
    let mut clients: Vec<_> = (0..STREAMS).map(|_| world.client(1)).collect();
    for client in &mut clients {
        client.create(WatchCreateRequest { start_revision: 2, ..watch("k", "") });
        assert!(client.step());
        // The streams wait to read history. Now each of them also has a response that its client does not
        // read.
        client.create(watch("k", ""));
        assert!(client.step());
    }
    world.hub.work_done();
    let mut turns = 0;
    while world.work() {
        let (_, looks) = world.hub.work_done();
        assert!(looks <= LOOKS, "{looks} looks at streams in one turn");
        turns += 1;
    }
    assert!(turns >= STREAMS / LOOKS, "{turns} turns");
    clients.iter().for_each(|client| client.allow(MANY));
    settle(&mut clients);
    assert!(clients.iter().all(|client| keys_of(&client.received()).count() == 1));
    assert_eq!(world.gauges().2, 0);
}

#[test]
fn streams_without_watches_are_passed_over_in_turns_when_watches_are_overtaken() {
    const STREAMS: usize = 600;
    let mut world = World::new(0, HOUR);
    let mut clients: Vec<_> = (0..STREAMS).map(|_| world.client(MANY)).collect();
    for n in [100, STREAMS - 1] {
        (0..300).for_each(|_| clients[n].create(watch("k", "")));
    }
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    (0..10).for_each(|_| world.put("k", 1));
    world.store.compact(Revision(10)).expect("compacts");
    while !world.store.compact_step(100, |_| {}).done {}
    world.removed_through = Revision(10);
    world.publish();
    world.hub.work_done();
    world.hub.advance();
    loop {
        let (_, looks) = world.hub.work_done();
        assert!(looks <= 256, "{looks} looks at streams and watches in one turn");
        if !world.work() {
            break;
        }
    }
    settle(&mut clients);
    for n in [100, STREAMS - 1] {
        let told = lines(&clients[n]);
        assert_eq!((told.len(), told[299].as_str()), (300, "299@0 canceled compacted=10"));
    }
    assert_eq!((world.hub.watches(), world.hub.revision()), (0, Revision(11)));
}
