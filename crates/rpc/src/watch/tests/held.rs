//! Changes that a watch still receives after a compaction, if it was synced before.

use std::time::Duration;

use api::etcdserverpb::{WatchCreateRequest, WatchResponse};
use numbers::Revision;

use super::world::{Client, World, settle, watch};
use super::{HOUR, MANY, keys_of, line, lines, put_and_delete};

const KEYS: usize = 10_000;

/// Returns two clients that were synced and have begun to receive the deletion of all keys, which takes many
/// turns. Then that revision is compacted.
fn amid_a_long_revision() -> (World, [Client; 2]) {
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(100, 8 << 20);
    let mut clients = [world.client(MANY), world.client(MANY)];
    clients[0].create(WatchCreateRequest { prev_kv: true, ..watch("k", "l") });
    clients[1].create(WatchCreateRequest { fragment: true, prev_kv: true, ..watch("k", "l") });
    settle(&mut clients);
    put_and_delete(&mut world, KEYS);
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    world.advance();
    while clients[1].pipe.responses.borrow().is_empty() {
        world.work();
        for client in &mut clients {
            client.step();
        }
    }
    assert!(clients[0].received().is_empty());
    for _ in 0..3 {
        world.put("k", 1);
    }
    world.store.compact(Revision(6)).expect("compacts");
    (world, clients)
}

fn assert_is_whole(told: &[WatchResponse]) {
    assert_eq!(keys_of(told).count(), KEYS);
    let mut events = told.iter().flat_map(|response| &response.events);
    assert!(events.all(|event| event.prev_kv.is_some()));
}

#[test]
fn a_revision_that_is_being_read_is_read_to_its_end_though_it_was_compacted() {
    let (mut world, mut clients) = amid_a_long_revision();
    // As in etcd, the history that a new watch reads may be compacted.
    let mut late = world.client(2);
    late.create(WatchCreateRequest { start_revision: 2, ..watch("k", "l") });
    late.create(WatchCreateRequest { start_revision: 3, ..watch("k", "l") });
    settle([&mut late]);
    world.remove(Duration::ZERO);
    world.advance();
    settle(&mut clients);
    for client in &clients {
        let heard = client.received();
        let (after, told) = heard.split_last().expect("something");
        assert_is_whole(told);
        assert!(told.iter().rev().skip(1).all(|response| response.fragment));
        assert_eq!(line(after), "0@6 put:k:4 put:k:5 put:k:6");
    }
    assert_eq!(
        (world.gauges().2, world.shared.data.long_reads.figures().0),
        (2, 0),
        "nothing is held any more"
    );
    // Now everything may be removed.
    world.remove(Duration::ZERO);
    assert_eq!(world.store.stats().removable, 0);
    late.allow(MANY);
    settle([&mut late]);
    let told = lines(&late);
    assert!(told.iter().filter(|line| line.contains("canceled compacted=6")).count() == 2, "{told:?}");
    // The other watches continue.
    world.put("k", 1);
    world.advance();
    settle(&mut clients);
    for client in &clients {
        assert_eq!(lines(client), ["0@7 put:k:7<6"]);
    }
}

#[test]
fn nobody_keeps_what_was_compacted_for_long() {
    let (mut world, mut clients) = amid_a_long_revision();
    world.remove(Duration::from_secs(59));
    assert!(world.store.stats().removable > 0);
    world.remove(Duration::from_secs(61));
    assert_eq!(world.store.stats().removable, 0);
    settle(&mut clients);
    for client in &clients {
        let heard = client.received();
        let (last, before) = heard.split_last().expect("something");
        assert_eq!(line(last), "0@0 canceled compacted=6");
        assert!(before.iter().all(|response| response.fragment));
    }
    assert_eq!((world.hub.long_bytes_max(), world.gauges().2), (0, 0));
}

#[test]
fn a_watch_that_was_not_told_for_want_of_room_is_told_though_it_was_compacted() {
    let mut world = World::new(0, HOUR);
    let mut client = world.client(MANY);
    client.create(WatchCreateRequest { prev_kv: true, ..watch("k", "") });
    settle([&mut client]);
    client.received();
    // The queue can hold each event, but not all of them together.
    for _ in 0..5 {
        world.put("k", 400_000);
    }
    world.publish();
    world.hub.advance();
    world.work();
    assert_eq!(world.gauges().2, 1);
    world.store.compact(Revision(6)).expect("compacts");
    world.remove(Duration::ZERO);
    world.advance();
    settle([&mut client]);
    let told = lines(&client).join(" ").replace("0@6 ", "");
    assert_eq!(told, "put:k:2 put:k:3<2 put:k:4<3 put:k:5<4 put:k:6<5");
    assert_eq!(world.shared.data.long_reads.figures().0, 0);
}

#[test]
fn a_watch_that_had_everything_gets_previous_values_beside_one_that_reads_history() {
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(16 << 10, 8 << 20);
    (0..3).for_each(|_| world.put("k", 400_000));
    world.advance();
    let mut client = world.client(MANY);
    let with_previous = WatchCreateRequest { prev_kv: true, ..watch("k", "") };
    client.create(WatchCreateRequest { start_revision: 4, ..watch("k", "") });
    client.create(with_previous);
    assert!(client.step());
    // The last event, with its previous value, does not fit the stream's queue.
    (0..2).for_each(|_| world.put("k", 400_000));
    world.put("k", 1);
    world.publish();
    world.hub.advance();
    assert_eq!(world.gauges().2, 2);
    // Now the last event is the only one that both watches still have to read.
    client.step();
    world.hub.read_some();
    client.step();
    world.store.compact(Revision(7)).expect("compacts");
    world.remove(Duration::ZERO);
    world.advance();
    settle([&mut client]);
    let told = lines(&client);
    assert_eq!(told[told.len() - 2..], ["0@7 put:k:7", "1@7 put:k:7<6"], "{told:?}");
}

#[test]
fn what_is_made_without_previous_values_is_not_shared_with_a_watch_that_keeps_them() {
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(100, 8 << 20);
    let mut clients = [world.client(MANY), world.client(MANY)];
    let with_previous = WatchCreateRequest { prev_kv: true, ..watch("k", "l") };
    clients[1].create(with_previous.clone());
    settle(&mut clients);
    put_and_delete(&mut world, 1000);
    settle(&mut clients);
    clients[1].received();
    world.advance();
    world.store.compact(Revision(3)).expect("compacts");
    world.remove(Duration::ZERO);
    // A watch that begins at this revision is the first to make the response.
    clients[0].create(WatchCreateRequest { start_revision: 3, ..with_previous });
    for _ in 0..2 {
        assert!(clients[0].step());
        world.work();
    }
    assert!(clients[1].pipe.responses.borrow().is_empty());
    settle(&mut clients);
    let told = clients[1].received();
    assert_eq!(keys_of(&told).count(), 1000);
    assert!(told.iter().flat_map(|response| &response.events).all(|event| event.prev_kv.is_some()));
    assert_eq!(keys_of(&clients[0].received()).count(), 1000);
}
