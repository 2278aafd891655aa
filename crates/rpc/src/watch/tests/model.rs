//! Random watches, writes and compactions from a seed, checked against a list of all events: every watch
//! receives every matching change once, in order, or an error that the change was compacted.

use api::etcdserverpb::{WatchCreateRequest, WatchResponse};
use api::mvccpb::Event;
use mvcc::KeyRange;
use numbers::Revision;

use super::world::{World, settle, watch};
use super::{HOUR, MANY};
use crate::watch::QUEUE_BYTES_MAX;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn key(&mut self) -> String {
        let n = self.below(12);
        if n == 0 { String::new() } else { format!("{}", (b'a' + n as u8) as char) }
    }
}

/// A watch that the test created, and what it has received.
struct Followed {
    request: WatchCreateRequest,
    /// First revision that it must receive.
    begin: i64,
    heard: Vec<Event>,
    mid_fragment: bool,
    canceled: bool,
    compacted: i64,
    /// True if the client has cancelled the watch after a compaction ended it.
    dismissed: bool,
}

impl Followed {
    fn wants(&self, event: &Event) -> bool {
        let kv = event.kv.as_ref().expect("a kv");
        let key: &[u8] = if self.request.key.is_empty() { b"\0" } else { &self.request.key };
        kv.mod_revision >= self.begin
            && KeyRange::of_request(key, &self.request.range_end).contains(&kv.key)
            && !self.request.filters.contains(&event.r#type)
    }

    fn hear(&mut self, response: WatchResponse) {
        if self.canceled {
            // The only exception is the response to a client that cancels a watch which a compaction has ended.
            assert!(self.compacted != 0 && !self.dismissed, "nothing comes after the end");
            assert!(response.canceled && response.compact_revision == 0 && response.events.is_empty());
            self.dismissed = true;
            return;
        }
        let header = response.header.expect("a header");
        self.canceled = response.canceled;
        self.compacted = response.compact_revision;
        let revision = |event: &Event| event.kv.as_ref().expect("a kv").mod_revision;
        if let (Some(last), Some(first)) = (self.heard.last(), response.events.first()) {
            // Revisions arrive whole, unless the response is a fragment that continues the last revision.
            assert!(revision(first) > revision(last) || self.mid_fragment, "a revision is torn");
        }
        assert!(response.events.iter().all(|event| revision(event) <= header.revision));
        assert!(!response.fragment || self.request.fragment);
        self.mid_fragment = response.fragment;
        self.heard.extend(response.events);
    }
}

/// Returns true if two events are equal, except for a previous value that may have been compacted.
fn is_same(heard: &Event, happened: &Event, previous: bool, compacted: i64) -> bool {
    let revision = happened.kv.as_ref().map_or(0, |kv| kv.mod_revision);
    let may_lack = !previous || revision - 1 < compacted;
    heard.r#type == happened.r#type
        && heard.kv == happened.kv
        && (heard.prev_kv == happened.prev_kv && previous
            || heard.prev_kv.is_none() && may_lack
            || happened.prev_kv.is_none() && heard.prev_kv.is_none())
}

#[test]
fn every_event_once_in_order() {
    let (mut caught_up, mut ended) = (0, 0);
    for seed in 0..24 {
        let mut random = Random(seed);
        let mut world = World::new(0, HOUR);
        let mut clients: Vec<_> = (0..6).map(|n| world.client(if n < 3 { MANY } else { 5 })).collect();
        let mut followed: Vec<Vec<Followed>> = (0..6).map(|_| Vec::new()).collect();
        let mut requested: Vec<Vec<WatchCreateRequest>> = (0..6).map(|_| Vec::new()).collect();
        // Some seeds write so much that slow clients fall behind again and again.
        let value_len_max = [10, 3_000, 60_000][(seed % 3) as usize];
        if seed % 2 == 1 {
            // With these limits, a change that matches a few watches takes several turns.
            world.hub.do_less_in_a_turn(1 + random.below(4) as usize, 2 + random.below(12) as usize);
        }
        if seed % 4 >= 2 {
            // With these limits, a few changes count as very many.
            let bytes = [1, 10_000, 8 << 20][random.below(3) as usize];
            world.hub.walk_less_in_a_turn(1 + random.below(4) as usize, bytes);
        }
        for _ in 0..600 {
            let chosen = random.below(6) as usize;
            match random.below(20) {
                0..=8 => {
                    let mut keys: Vec<_> = (0..=random.below(3)).map(|_| random.key()).collect();
                    keys.sort();
                    keys.dedup();
                    keys.retain(|key| !key.is_empty());
                    let changes: Vec<_> = keys
                        .iter()
                        .map(|key| {
                            let put = random.below(4) > 0;
                            (key.as_str(), put.then(|| random.below(value_len_max) as usize))
                        })
                        .collect();
                    world.write(&changes);
                }
                9 | 10 => world.publish(),
                11 => drop(world.work()),
                12 => {
                    world.publish();
                    world.hub.advance();
                }
                13 => world.advance(),
                14 | 15 if requested[chosen].len() < 40 => {
                    let current = world.store.current_revision();
                    let request = WatchCreateRequest {
                        start_revision: match random.below(4) {
                            0 => 1 + random.below(current.0 as u64 + 5) as i64,
                            1 => (current - random.below(20) as i64).max(Revision(1)).0,
                            _ => 0,
                        },
                        prev_kv: random.below(2) == 0,
                        fragment: random.below(3) == 0,
                        filters: match random.below(6) {
                            0 => vec![0],
                            1 => vec![1],
                            _ => Vec::new(),
                        },
                        ..match random.below(3) {
                            0 => watch(&random.key(), ""),
                            1 => watch(&random.key(), "\0"),
                            _ => {
                                let mut keys = [random.key(), random.key()];
                                keys.sort();
                                watch(&keys[0], &(keys[1].clone() + "x"))
                            }
                        }
                    };
                    clients[chosen].create(request.clone());
                    requested[chosen].push(request);
                }
                16 => clients[chosen].cancel(random.below(40) as i64),
                17 if random.below(6) == 0 => {
                    // The test compacts only what all shards have seen;
                    // `a_watch_overtaken_by_a_compaction_is_told` tests the other case.
                    let rev = world.hub.revision() - random.below(30) as i64;
                    if rev > world.store.compact_revision().max(Revision(1)) {
                        world.store.compact(rev).expect("compacts");
                    }
                }
                18 => drop(world.store.compact_step(random.below(50), |_| {})),
                _ => {
                    clients[chosen].allow(1 + random.below(4) as usize);
                    let window = [0, 1, 1000, 100_000, usize::MAX][random.below(5) as usize];
                    clients[chosen].set_window(window);
                    if random.below(4) == 0 {
                        clients[chosen].ask_progress();
                    }
                }
            }
            if random.below(3) == 0 {
                settle(&mut clients);
            }
            assert!(world.hub.queued_bytes_max() <= QUEUE_BYTES_MAX + 200_000 * 3);
        }
        caught_up += world.gauges().2;
        world.advance();
        for client in &clients {
            client.allow(MANY);
            client.set_window(usize::MAX);
        }
        settle(&mut clients);
        world.advance();
        settle(&mut clients);
        while world.work() {}
        settle(&mut clients);

        let compacted = world.store.compact_revision();
        for (client, (followed, requested)) in clients.iter().zip(followed.iter_mut().zip(&requested)) {
            assert!(client.result.is_none());
            for response in client.received() {
                if response.created {
                    // Ids are assigned in order, and creations are answered in order.
                    assert_eq!(response.watch_id as usize, followed.len());
                    let request = requested[followed.len()].clone();
                    let begin = match request.start_revision {
                        0 => response.header.expect("a header").revision + 1,
                        start => start,
                    };
                    let (heard, compacted) = (Vec::new(), 0);
                    let canceled = false;
                    followed.push(Followed {
                        request,
                        begin,
                        heard,
                        mid_fragment: false,
                        canceled,
                        compacted,
                        dismissed: false,
                    });
                } else if response.watch_id >= 0 {
                    followed[response.watch_id as usize].hear(response);
                }
            }
            assert_eq!(followed.len(), requested.len());
            for (id, watch) in followed.iter().enumerate() {
                let expected: Vec<_> = world.history.iter().filter(|event| watch.wants(event)).collect();
                for (heard, happened) in watch.heard.iter().zip(&expected) {
                    assert!(
                        is_same(heard, happened, watch.request.prev_kv, compacted.0),
                        "seed {seed}, watch {id} from {}: {heard:?} is not {happened:?}",
                        watch.begin
                    );
                }
                assert!(watch.heard.len() <= expected.len());
                assert!(!watch.mid_fragment);
                // `compacted` is 0 if the client cancelled the watch. A store that was never compacted is at
                // -1.
                if watch.compacted != 0 {
                    ended += 1;
                    assert!(watch.compacted <= compacted.0, "seed {seed}, watch {id}");
                }
                if !watch.canceled {
                    assert_eq!(watch.heard.len(), expected.len(), "seed {seed}, watch {id}");
                }
            }
        }
        assert_eq!(world.gauges().2, 0);
        drop(clients);
        assert_eq!((world.hub.watches(), world.gauges()), (0, (0, 0, 0, 0)));
    }
    assert!(caught_up > 20 && ended > 20, "the test has to reach what it is about: {caught_up}, {ended}");
}
