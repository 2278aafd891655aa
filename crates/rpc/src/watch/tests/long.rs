//! Cost of revisions with many changes until they are delivered.

use api::etcdserverpb::WatchCreateRequest;

use super::world::{World, settle, watch};
use super::{HOUR, MANY, keys_of, put_and_delete};

#[test]
fn a_long_response_takes_the_memory_of_its_length() {
    for fragment in [false, true] {
        for keys in [9_000, 20_000, 37_000] {
            let mut world = World::new(0, HOUR);
            world.hub.walk_less_in_a_turn(1000, 8 << 20);
            let mut client = world.client(MANY);
            client.create(WatchCreateRequest { fragment, prev_kv: true, ..watch("k", "l") });
            settle([&mut client]);
            put_and_delete(&mut world, keys);
            settle([&mut client]);
            client.received();
            world.publish();
            world.hub.advance();
            let mut most = 0;
            while world.work() | client.step() {
                most = most.max(world.hub.long_bytes_max());
            }
            let responses = client.pipe.responses.borrow().clone();
            assert_eq!(keys_of(&client.received()).count(), keys);
            let longest = responses.iter().map(|bytes| bytes.len()).max().unwrap_or(0);
            assert!(most >= longest, "it is charged while it is made");
            assert!(most <= longest + 200, "{most} bytes for {longest}");
            for bytes in responses {
                let len = bytes.len();
                let taken = bytes.try_into_mut().expect("nobody else has it").capacity();
                assert!(taken <= len + 64, "{taken} bytes for {len}");
            }
        }
    }
}

#[test]
fn many_different_long_revisions_are_shared_at_once() {
    const DIFFERENT: usize = 64;
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(50, 8 << 20);
    let mut clients: Vec<_> = (0..2 * DIFFERENT).map(|_| world.client(MANY)).collect();
    for (n, client) in clients.iter().enumerate() {
        client.create(watch("k", &format!("l{}", n % DIFFERENT)));
    }
    settle(&mut clients);
    put_and_delete(&mut world, 300);
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    world.publish();
    world.hub.advance();
    let mut most = 0;
    loop {
        let mut more = world.work();
        clients.iter_mut().for_each(|client| more |= client.step());
        most = most.max(world.hub.long_streams());
        if !more {
            break;
        }
    }
    assert_eq!(most, DIFFERENT, "one stream of each two that are told the same makes it");
    let places: Vec<_> = clients
        .iter()
        .map(|client| client.pipe.responses.borrow().front().map(|bytes| bytes.as_ptr()))
        .collect();
    let (made, given) = places.split_at(DIFFERENT);
    assert!(made.iter().all(Option::is_some));
    assert_eq!(made, given, "the bytes are shared");
    assert!(clients.iter().all(|client| keys_of(&client.received()).count() == 300));
}

#[test]
fn a_long_revision_is_measured_once_for_each_watch_of_a_stream() {
    const WATCHES: usize = 16;
    const KEYS: usize = 3000;
    let mut world = World::new(0, HOUR);
    world.hub.walk_less_in_a_turn(1000, 8 << 20);
    let mut client = world.client(MANY);
    (0..WATCHES).for_each(|_| client.create(WatchCreateRequest { prev_kv: true, ..watch("k", "l") }));
    settle([&mut client]);
    put_and_delete(&mut world, KEYS);
    settle([&mut client]);
    client.received();
    world.publish();
    world.hub.advance();
    world.hub.work_done();
    while world.work() | client.step() {}
    assert_eq!(keys_of(&client.received()).count(), WATCHES * KEYS);
    // Each watch is checked three times per change: when the change is published, to measure the response,
    // and to make it.
    let (_, looks) = world.hub.work_done();
    assert!(looks <= 5 * WATCHES * KEYS, "{looks} looks for {}", WATCHES * KEYS);
}

#[test]
fn what_another_stream_has_made_never_goes_behind_a_newer_header() {
    const KEYS: usize = 3000;
    let mut world = World::new(0, HOUR);
    // Turns end with the changes that they walk, so that the stream that makes the response uses up its turn.
    world.hub.do_less_in_a_turn(1024, 16 << 10);
    world.hub.walk_less_in_a_turn(1000, 8 << 20);
    let mut clients: Vec<_> = (0..4).map(|_| world.client(MANY)).collect();
    clients.iter().for_each(|client| client.create(watch("k", "l")));
    settle(&mut clients);
    put_and_delete(&mut world, KEYS);
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    world.publish();
    world.hub.advance();
    // The second client has a queued response at the time when the first client has made the response that
    // all wait for.
    clients[1].pipe.credit.set(0);
    while clients[0].pipe.responses.borrow().is_empty() {
        world.work();
        clients.iter_mut().for_each(|client| {
            client.step();
        });
        if world.hub.long_bytes_max() > 0 {
            clients[1].create(watch("z", ""));
        }
    }
    assert!(clients[1..].iter().all(|client| client.pipe.responses.borrow().is_empty()));
    world.put("z", 1);
    world.publish();
    // The third client gets a response after the shared response was made, and before its own turn.
    clients[2].create(watch("z", ""));
    clients[1].create(watch("z", ""));
    clients.iter_mut().for_each(|client| {
        client.step();
    });
    clients[1].allow(MANY);
    while world.work() | clients.iter_mut().fold(false, |more, client| more | client.step()) {}
    for client in &clients {
        let told = client.received();
        assert_eq!(keys_of(&told).filter(|key| key.starts_with('k')).count(), KEYS);
        let revisions =
            told.iter().filter_map(|response| response.header.as_ref()).map(|header| header.revision);
        assert!(revisions.clone().is_sorted(), "{:?}", revisions.collect::<Vec<_>>());
    }
    assert_eq!((world.hub.long_streams(), world.gauges().2), (0, 0));
}
