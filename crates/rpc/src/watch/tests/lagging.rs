//! Watches that are far behind: what a turn does for them, and what they hold.

use api::etcdserverpb::{WatchCreateRequest, WatchResponse};

use super::world::{World, round, settle, watch};
use super::{HOUR, MANY, keys_of, put_and_delete};

const VALUE_BYTES: usize = 1000;

/// Returns a world with a history of this many changes of one key.
fn world_with(changes: usize) -> World {
    let mut world = World::new(1 << 20, HOUR);
    (0..changes).for_each(|_| world.put("k", VALUE_BYTES));
    world.advance();
    world
}

fn from_the_beginning() -> WatchCreateRequest {
    WatchCreateRequest { start_revision: 2, ..watch("k", "") }
}

/// Returns the revisions of the events.
fn revisions(responses: &[WatchResponse]) -> Vec<i64> {
    let events = responses.iter().flat_map(|response| &response.events);
    events.filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision).collect()
}

#[test]
fn a_turn_reads_little_history_however_many_streams_are_behind() {
    const CHANGES: usize = 500;
    let world = world_with(CHANGES);
    let mut clients: Vec<_> = (0..20).map(|_| world.client(MANY)).collect();
    clients.iter().for_each(|client| client.create(from_the_beginning()));
    world.hub.work_done();
    world.values.reads.set(0);
    while round(&world, &mut clients) {
        let (walked, looks) = world.hub.work_done();
        // The last slice of a turn is a whole one.
        assert!(
            walked <= 2 * 1024 && looks <= 2 * 128,
            "{walked} changes, {looks} looks between two looks at the sockets"
        );
        let bytes = world.values.reads.take() * VALUE_BYTES;
        assert!(bytes <= 2 * ((64 << 10) + VALUE_BYTES), "{bytes} bytes between two looks at the sockets");
    }
    for client in &clients {
        assert!(revisions(&client.received()).into_iter().eq(2..2 + CHANGES as i64));
    }
}

#[test]
fn changes_that_match_no_watch_are_walked_in_short_turns() {
    let mut world = World::new(1 << 20, HOUR);
    (0..10_000).for_each(|_| world.put("other", 1));
    world.put("k", 1);
    world.advance();
    let mut clients: Vec<_> = (0..5).map(|_| world.client(MANY)).collect();
    clients.iter().for_each(|client| client.create(from_the_beginning()));
    world.hub.work_done();
    while round(&world, &mut clients) {
        let (walked, _) = world.hub.work_done();
        assert!(walked <= 2 * 1024, "{walked} changes between two looks at the sockets");
    }
    assert!(clients.iter().all(|client| revisions(&client.received()) == [10_002]));
}

#[test]
fn no_history_is_read_for_clients_that_take_nothing() {
    const STREAMS: usize = 300;
    const CHANGES: usize = 200;
    let world = world_with(CHANGES);
    let mut clients: Vec<_> = (0..STREAMS).map(|_| world.client(MANY)).collect();
    for client in &clients {
        client.set_window(0);
        client.create(from_the_beginning());
    }
    world.values.reads.set(0);
    while round(&world, &mut clients) {}
    assert_eq!((world.values.reads.get(), world.hub.queued_bytes_max(), world.gauges().3), (0, 0, 0));
    assert_eq!(world.gauges().2, STREAMS as i64);
    // They delay no other stream, and the first client that opens its window receives its history.
    clients[7].set_window(usize::MAX);
    while round(&world, &mut clients) {}
    assert!(revisions(&clients[7].received()).into_iter().eq(2..2 + CHANGES as i64));
    assert_eq!(world.values.reads.take(), CHANGES);
    clients.iter().for_each(|client| client.set_window(usize::MAX));
    clients[7].received();
    while round(&world, &mut clients) {}
    clients.remove(7);
    for client in &clients {
        assert!(revisions(&client.received()).into_iter().eq(2..2 + CHANGES as i64));
    }
}

#[test]
fn a_slice_of_history_fits_into_the_clients_window() {
    const CHANGES: usize = 200;
    const WINDOW: usize = 10 * VALUE_BYTES;
    let world = world_with(CHANGES);
    let mut clients = [world.client(MANY)];
    clients[0].create(from_the_beginning());
    let mut told = Vec::new();
    while told.len() < CHANGES {
        clients[0].set_window(WINDOW);
        let before = told.len();
        while round(&world, &mut clients) {}
        let received = clients[0].received();
        told.extend(revisions(&received));
        // The last revision is begun within the window.
        let bytes = (told.len() - before) * VALUE_BYTES;
        assert!(bytes > WINDOW / 2 && bytes <= WINDOW + VALUE_BYTES, "{bytes} bytes for {WINDOW}");
    }
    assert!(told.into_iter().eq(2..2 + CHANGES as i64));
}

#[test]
fn what_was_fetched_for_a_slice_is_read_though_the_window_has_changed() {
    const CHANGES: usize = 100;
    let world = world_with(CHANGES);
    world.values.absent.set(true);
    let mut clients = [world.client(MANY)];
    clients[0].create(from_the_beginning());
    clients[0].set_window(20 * VALUE_BYTES);
    world.values.reads.set(0);
    // The values arrive at once, and wait for the turn of the stream.
    while world.hub.laden_streams() == 0 {
        assert!(round(&world, &mut clients));
    }
    let fetched = world.values.reads.get();
    assert!((19..=21).contains(&fetched), "{fetched} values");
    clients[0].set_window(3);
    while round(&world, &mut clients) {}
    assert_eq!(revisions(&clients[0].received()).len(), fetched, "what was fetched was sent");
    assert_eq!((world.values.reads.get(), world.hub.laden_streams()), (fetched, 0));
    clients[0].set_window(usize::MAX);
    while round(&world, &mut clients) {}
    assert_eq!(keys_of(&clients[0].received()).count(), CHANGES - fetched);
    assert!(world.values.reads.get() <= CHANGES + 5, "{} values were fetched", world.values.reads.get());
}

/// Rate of writes in each turn of the shard, and number of streams that read history at the same time.
#[derive(Debug)]
struct Rates {
    value_bytes: usize,
    revisions: usize,
    changes: usize,
    streams: usize,
    /// Watches of each stream.
    watches: usize,
}

impl Rates {
    /// Writes one turn's revisions. The changes of a revision are of different keys.
    fn write(&self, world: &mut World) {
        let keys: Vec<String> = (0..self.changes).map(|n| format!("k{n:04}")).collect();
        let changes: Vec<_> = keys.iter().map(|key| (key.as_str(), Some(self.value_bytes))).collect();
        (0..self.revisions).for_each(|_| world.write(&changes));
    }

    /// Writes `turns` turns' revisions, and then as many in each turn until all watches that began at the
    /// first revision have caught up, which takes at most four times as long. As at a connection, 64 KiB of a
    /// stream leave in a turn, and 512 KiB wait at most.
    fn catch_up(&self, turns: usize, values: Values) {
        let mut world = World::new(1 << 20, HOUR);
        (0..turns).for_each(|_| self.write(&mut world));
        world.advance();
        world.values.absent.set(matches!(values, Values::Fetched));
        world.values.at_hand_from.set(Some(world.hub.revision() + 1));
        let mut clients: Vec<_> = (0..self.streams).map(|_| world.client(MANY)).collect();
        for client in &clients {
            client.pipe.soon_max.set(Some(64 << 10));
            (0..self.watches).for_each(|_| {
                client.create(WatchCreateRequest { start_revision: 2, ..watch("k", "l") });
            });
        }
        clients.iter_mut().for_each(|client| while client.step() {});
        assert_eq!(world.gauges().2, (self.streams * self.watches) as i64);
        let (mut took, mut events) = (0, 0);
        while world.gauges().2 > 0 {
            self.write(&mut world);
            world.publish();
            world.hub.advance();
            clients.iter().for_each(|client| client.set_window(512 << 10));
            round(&world, &mut clients);
            took += 1;
            assert!(took < 4 * turns, "they do not catch up: {self:?}, {values:?}");
            for client in &clients {
                events += client.received().iter().map(|response| response.events.len()).sum::<usize>();
            }
        }
        clients.iter().for_each(|client| client.set_window(usize::MAX));
        settle(&mut clients);
        for client in &clients {
            events += client.received().iter().map(|response| response.events.len()).sum::<usize>();
        }
        let written = (turns + took) * self.revisions * self.changes;
        assert_eq!(events, written * self.streams * self.watches, "{self:?}");
    }
}

/// Where the values of the history are. Those that are written meanwhile are at hand.
#[derive(Clone, Copy, Debug)]
enum Values {
    AtHand,
    Fetched,
}

#[test]
fn watches_catch_up_however_fast_others_write() {
    for (rates, turns) in [
        (Rates { value_bytes: 1, revisions: 300, changes: 1, streams: 2, watches: 1 }, 50),
        (Rates { value_bytes: 256, revisions: 300, changes: 1, streams: 1, watches: 1 }, 50),
        (Rates { value_bytes: 1, revisions: 2, changes: 100, streams: 1, watches: 1 }, 100),
        (Rates { value_bytes: 1, revisions: 1, changes: 2000, streams: 1, watches: 1 }, 10),
        (Rates { value_bytes: 20_000, revisions: 3, changes: 1, streams: 10, watches: 1 }, 100),
        (Rates { value_bytes: 256, revisions: 100, changes: 1, streams: 20, watches: 1 }, 20),
        (Rates { value_bytes: 1, revisions: 2, changes: 1, streams: 300, watches: 1 }, 100),
        (Rates { value_bytes: 1, revisions: 10, changes: 1, streams: 1, watches: 300 }, 20),
    ] {
        rates.catch_up(turns, Values::AtHand);
        // Values that are fetched take two turns, so that twice as much is published meanwhile.
        if rates.streams * rates.watches * rates.value_bytes <= 256 {
            rates.catch_up(turns, Values::Fetched);
        }
    }
}

#[test]
fn revisions_of_very_many_changes_are_read_faster_than_they_are_written() {
    const KEYS: usize = 20_000;
    let keys: Vec<String> = (0..KEYS).map(|n| format!("k{n:05}")).collect();
    let changes: Vec<_> = keys.iter().map(|key| (key.as_str(), Some(1))).collect();
    for every in [6, 10] {
        let mut world = World::new(1 << 20, HOUR);
        (0..6).for_each(|_| world.write(&changes));
        world.advance();
        let mut clients = [world.client(MANY)];
        clients[0].create(WatchCreateRequest { start_revision: 2, ..watch("k", "l") });
        while clients[0].step() {}
        let mut turn = 0;
        while world.gauges().2 > 0 {
            if turn % every == 0 {
                world.write(&changes);
                world.publish();
                world.hub.advance();
            }
            round(&world, &mut clients);
            turn += 1;
            assert!(turn <= 60 * every, "one revision in {every} turns");
        }
    }
}

#[test]
fn a_stream_that_falls_behind_does_not_wait_for_others_that_do_not() {
    const OTHERS: usize = 100;
    let mut world = World::new(1 << 20, HOUR);
    (0..20_000).for_each(|_| world.put("other", 1));
    (0..100).for_each(|_| world.put("k", 20_000));
    world.advance();
    let mut clients: Vec<_> = (0..OTHERS).map(|_| world.client(MANY)).collect();
    for client in &clients {
        client.create(WatchCreateRequest { start_revision: 2, ..watch("none", "") });
    }
    clients.push(world.client(MANY));
    clients[OTHERS].create(WatchCreateRequest { start_revision: 20_002, ..watch("k", "") });
    clients.iter_mut().for_each(|client| while client.step() {});
    let (mut written, mut told) = (100, 0);
    while told < written {
        (0..2).for_each(|_| world.put("k", 20_000));
        written += 2;
        world.publish();
        world.hub.advance();
        round(&world, &mut clients);
        told += revisions(&clients[OTHERS].received()).len();
        assert!(written < 100 + 2 * 150, "{told} of {written}");
    }
}

#[test]
fn a_stream_that_was_synced_for_long_reads_short_slices() {
    const CHANGES: usize = 500;
    let mut world = world_with(CHANGES);
    let mut clients: Vec<_> = (0..20).map(|_| world.client(MANY)).collect();
    clients.iter().for_each(|client| client.create(from_the_beginning()));
    while round(&world, &mut clients) {}
    (0..2000).for_each(|_| world.put("other", 1));
    world.advance();
    while round(&world, &mut clients) {}
    assert_eq!(world.gauges().2, 0);
    clients.iter().for_each(|client| client.create(from_the_beginning()));
    world.values.reads.set(0);
    while round(&world, &mut clients) {
        let bytes = world.values.reads.take() * VALUE_BYTES;
        assert!(bytes <= 2 * ((64 << 10) + VALUE_BYTES), "{bytes} bytes between two looks at the sockets");
    }
}

#[test]
fn a_response_for_which_others_wait_is_made_once_though_windows_shut() {
    const KEYS: usize = 3000;
    let mut world = World::new(0, HOUR);
    world.hub.do_less_in_a_turn(1024, 16 << 10);
    world.hub.walk_less_in_a_turn(300, 8 << 20);
    let mut clients: Vec<_> = (0..16).map(|_| world.client(MANY)).collect();
    clients.iter().for_each(|client| client.create(watch("k", "l")));
    settle(&mut clients);
    put_and_delete(&mut world, KEYS);
    settle(&mut clients);
    world.publish();
    world.hub.advance();
    world.hub.work_done();
    let mut turn = 0;
    while world.gauges().2 > 0 || turn < 50 {
        // The windows are shut in one turn of four.
        let window = if turn % 4 == 3 { 0 } else { 64 << 10 };
        clients.iter().for_each(|client| client.set_window(window));
        round(&world, &mut clients);
        turn += 1;
    }
    let (walked, _) = world.hub.work_done();
    assert!(walked <= 10 * KEYS, "{} walks", walked / KEYS);
}

#[test]
fn a_response_is_made_for_others_though_the_client_of_its_maker_takes_nothing() {
    const KEYS: usize = 3000;
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(300, 8 << 20);
    let mut clients: Vec<_> = (0..2).map(|_| world.client(MANY)).collect();
    let keys: Vec<String> = (0..KEYS).map(|n| format!("k{n:04}")).collect();
    let changes: Vec<_> = keys.iter().map(|key| (key.as_str(), Some(1))).collect();
    world.write(&changes);
    world.advance();
    let request = WatchCreateRequest { start_revision: 2, ..watch("k", "l") };
    clients[0].create(request.clone());
    // The first client's window shuts when its stream has begun to make the response.
    while world.hub.claims() == 0 {
        assert!(round(&world, &mut clients));
    }
    clients[0].set_window(0);
    while round(&world, &mut clients) {}
    assert_eq!(clients[0].received().len(), 1, "nothing but the created watch");
    clients[1].create(request);
    while round(&world, &mut clients) {}
    assert_eq!(keys_of(&clients[1].received()).count(), KEYS);
}

#[test]
fn many_watches_of_a_stream_read_slices_that_are_worth_the_search_for_them() {
    const WATCHES: usize = 256;
    const CHANGES: usize = 20 * WATCHES;
    let mut world = World::new(1 << 20, HOUR);
    (0..CHANGES).for_each(|n| world.put(&format!("k{:03}", n % WATCHES), 1));
    world.advance();
    let mut clients = [world.client(MANY)];
    for n in 0..WATCHES {
        let request = watch(&format!("k{n:03}"), "");
        clients[0].create(WatchCreateRequest { start_revision: 2, ..request });
    }
    let (mut turns, mut events) = (0, 0);
    while round(&world, &mut clients) {
        events += revisions(&clients[0].received()).len();
        turns += 1;
    }
    assert_eq!(events, CHANGES);
    assert!(turns <= CHANGES / WATCHES + 10, "{turns} turns");
}

/// The client takes 80 KiB in a turn; 50 KiB are written in a turn.
#[test]
fn a_client_that_takes_more_than_is_written_catches_up() {
    const PER_TURN: usize = 50;
    const TURNS: usize = 40;
    let mut world = World::new(1 << 20, HOUR);
    (0..TURNS * PER_TURN).for_each(|_| world.put("k", VALUE_BYTES));
    world.advance();
    let mut clients = [world.client(MANY)];
    clients[0].pipe.backlog.set(Some(0));
    clients[0].create(from_the_beginning());
    while clients[0].step() {}
    let (mut turn, mut told) = (0, 0);
    while world.gauges().2 > 0 {
        (0..PER_TURN).for_each(|_| world.put("k", VALUE_BYTES));
        world.publish();
        world.hub.advance();
        clients[0].pipe.take(80 << 10);
        round(&world, &mut clients);
        turn += 1;
        told += revisions(&clients[0].received()).len();
        assert!(turn < 20 * TURNS, "{told} of {} in {turn} turns", (TURNS + turn) * PER_TURN);
    }
}

/// 100 others that are behind use up the turns; the client takes 1.5 times what is written.
#[test]
fn a_client_that_takes_more_than_is_written_catches_up_beside_others() {
    const PER_TURN: usize = 5;
    const TURNS: usize = 100;
    let mut world = World::new(1 << 20, HOUR);
    (0..400_000).for_each(|_| world.put("other", 1));
    let first = world.hub.revision().0;
    world.advance();
    let first = world.hub.revision().0.max(first) + 1;
    (0..TURNS * PER_TURN).for_each(|_| world.put("k", VALUE_BYTES));
    world.advance();
    let mut clients: Vec<_> = (0..100).map(|_| world.client(MANY)).collect();
    for client in &clients {
        client.create(WatchCreateRequest { start_revision: 2, ..watch("none", "") });
    }
    clients.push(world.client(MANY));
    clients[100].pipe.backlog.set(Some(0));
    clients[100].create(WatchCreateRequest { start_revision: first, ..watch("k", "") });
    clients.iter_mut().for_each(|client| while client.step() {});
    let (mut turn, mut told) = (0, 0);
    while told < (TURNS + turn) * PER_TURN {
        (0..PER_TURN).for_each(|_| world.put("k", VALUE_BYTES));
        world.publish();
        world.hub.advance();
        clients[100].pipe.take(PER_TURN * VALUE_BYTES * 3 / 2);
        round(&world, &mut clients);
        turn += 1;
        told += revisions(&clients[100].received()).len();
        assert!(turn < 10 * TURNS, "{told} of {} in {turn} turns", (TURNS + turn) * PER_TURN);
    }
}
