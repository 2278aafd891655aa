//! Compares the store of simple tokens with a simple model.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_identity::simple::{Settings, Store, draw_prefix, number, text};
use mainstay_identity::{Now, Refused};
use numbers::Index;
use testkit::Random;

const TTL: Duration = Duration::from_secs(300);

fn store(settings: Settings, start: Instant) -> Store {
    let store = Store::new(settings, start, &mut mainstay_identity::system_entropy());
    store.enable();
    store
}

fn at(start: Instant, millis: u64) -> Now {
    Now { at: start + Duration::from_millis(millis), unix_seconds: 0 }
}

/// Tokens by text, with their user and the time of their last use.
#[derive(Default)]
struct Model {
    tokens: HashMap<String, (String, u64)>,
}

#[test]
fn tokens_live_as_in_a_simple_model() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let start = Instant::now();
        let store = store(Settings { ttl: TTL, ..Settings::default() }, start);
        let mut model = Model::default();
        let mut made: Vec<String> = Vec::new();
        let (mut now, mut index) = (0, 0);
        for _ in 0..2000 {
            now += random.below(20_000);
            let user = format!("user{}", random.below(5));
            match random.below(20) {
                0..6 => {
                    index += random.below(3) + 1;
                    let prefix = draw_prefix(&mut |bytes: &mut [u8]| {
                        bytes.copy_from_slice(&random.bytes(bytes.len()))
                    });
                    store.assign(&user, &prefix, Index(index), at(start, now).at);
                    let token = format!("{prefix}.{index}");
                    model.tokens.insert(token.clone(), (user, now));
                    made.push(token);
                }
                6..17 if !made.is_empty() => {
                    let token = made[made.len() - 1 - random.index(made.len().min(40))].clone();
                    // `applied` is high enough that the token cannot belong to an entry that is not applied
                    // yet.
                    let ours = store.check(token.as_bytes(), Index(index + 1), at(start, now));
                    // Uses are recorded with a precision of a thousandth of the TTL. Within this precision,
                    // either result is correct.
                    let slack = 300;
                    match (model.tokens.get_mut(&token), ours) {
                        (None, ours) => assert_eq!(ours.unwrap_err(), Refused::Invalid),
                        (Some((user, used)), ours) => {
                            let unused = now - *used;
                            match ours {
                                Ok(holder) => {
                                    assert_eq!(&**holder.user(), user.as_str());
                                    assert!(unused <= 300_000 + slack, "seed {seed}: {unused}");
                                    *used = now;
                                }
                                Err(_) => {
                                    assert!(unused > 300_000, "seed {seed}: {unused}");
                                    model.tokens.remove(&token);
                                }
                            }
                        }
                    }
                }
                17 => {
                    store.forget(&user);
                    model.tokens.retain(|_, (owner, _)| *owner != user);
                }
                18 if random.one_in(20) => {
                    store.disable();
                    store.enable();
                    model.tokens.clear();
                }
                _ => {
                    let expired = store.expire(at(start, now).at, usize::MAX);
                    let alive = model.tokens.values().filter(|(_, used)| now - used <= 300_000).count();
                    let nearly = model.tokens.values().filter(|(_, used)| now - used <= 300_300).count();
                    assert!((alive..=nearly).contains(&store.len()), "seed {seed}");
                    assert_eq!(expired.next.is_none(), store.is_empty());
                    assert!(expired.next.is_none_or(|next| next > at(start, now).at));
                }
            }
        }
        assert!(made.len() > 100);
    }
}

#[test]
fn tokens_of_one_user_and_of_all_are_bounded() {
    let start = Instant::now();
    let settings = Settings { ttl: TTL, tokens_per_user_max: 50, tokens_max: 120 };
    let store = store(settings, start);
    // One token of each of three users, which is used all the time.
    let users = ["a", "b", "c"];
    let used: Vec<String> = users
        .iter()
        .enumerate()
        .map(|(n, user)| {
            store.assign(user, "usedusedusedused", Index(2 * n as u64), start);
            format!("usedusedusedused.{}", 2 * n)
        })
        .collect();
    for index in 3..3000_u64 {
        let now = at(start, index * 400);
        for token in &used {
            assert!(store.check(token.as_bytes(), Index(2 * index), now).is_ok(), "{token} at {index}");
        }
        store.assign(users[index as usize % 3], "abcdefghijklmnop", Index(2 * index), now.at);
        assert!(store.len() <= 120);
    }
    // The newest tokens exist, and the oldest ones that were never used were removed.
    let alive = |index: u64| {
        store.check(format!("abcdefghijklmnop.{}", 2 * index).as_bytes(), Index(6000), at(start, 1_200_000))
    };
    assert!((2990..3000).all(|index| alive(index).is_ok()));
    assert!((3..2800).all(|index| alive(index).is_err()));
    assert_eq!(store.len(), 120);
    // One user alone fills only its own share.
    for index in 3000..4000_u64 {
        store.assign("d", "abcdefghijklmnop", Index(2 * index), at(start, 1_200_000).at);
    }
    store.forget("d");
    assert!((70..=120).contains(&store.len()), "{}", store.len());
}

#[test]
fn a_token_is_known_by_the_number_of_each_version() {
    let start = Instant::now();
    let store = store(Settings { ttl: TTL, ..Settings::default() }, start);
    let prefix = "abcdefghijklmnop";
    let token = |is_before_3_5: bool| text(prefix, number(Index(9), is_before_3_5));
    assert_eq!([token(true), token(false)], ["abcdefghijklmnop.9", "abcdefghijklmnop.8"]);
    let check = |token: &str, applied: u64| {
        store.check(token.as_bytes(), Index(applied), at(start, 0)).map(|holder| holder.user().to_string())
    };
    for token in [token(true), token(false)] {
        assert!(matches!(check(&token, 8), Err(Refused::NotYet(_))), "{token}");
    }
    store.assign("a", prefix, Index(9), start);
    for token in [token(true), token(false)] {
        assert_eq!(check(&token, 9), Ok("a".to_owned()), "{token}");
    }
    for other in ["abcdefghijklmnop.7", "abcdefghijklmnop.08", "abcdefghijklmnop.09", "abcdefghijklmnoq.8"] {
        assert_eq!(check(other, 9), Err(Refused::Invalid), "{other}");
    }
    // A token that was invalidated is invalid under both numbers.
    store.forget("a");
    for token in [token(true), token(false)] {
        assert_eq!(check(&token, 10), Err(Refused::Invalid), "{token}");
    }
}

#[test]
fn an_evicted_token_is_void_for_connections() {
    let start = Instant::now();
    let store = store(Settings { ttl: TTL, tokens_per_user_max: 2, tokens_max: 10 }, start);
    store.assign("a", "abcdefghijklmnop", Index(1), start);
    let held = store.check(b"abcdefghijklmnop.1", Index(1), at(start, 0)).unwrap();
    store.assign("a", "abcdefghijklmnop", Index(3), at(start, 1000).at);
    store.assign("a", "abcdefghijklmnop", Index(5), at(start, 2000).at);
    assert_eq!(store.check(b"abcdefghijklmnop.1", Index(5), at(start, 2000)).unwrap_err(), Refused::Invalid);
    assert_eq!(&**held.user(), "a");
    assert_eq!(store.len(), 2);
}

#[test]
fn expiry_looks_at_a_bounded_number_of_tokens() {
    let start = Instant::now();
    let store = store(Settings::default(), start);
    for index in 0..1000 {
        store.assign("a", "abcdefghijklmnop", Index(index), start);
    }
    let late = at(start, 400_000).at;
    assert_eq!(store.expire(late, 100).tokens, 100);
    assert_eq!(store.len(), 900);
    assert_eq!(store.expire(late, 10_000).tokens, 900);
    assert_eq!(store.expire(late, 10_000).next, None);
}

#[test]
fn a_zero_ttl_is_the_default() {
    let start = Instant::now();
    let store = store(Settings { ttl: Duration::ZERO, ..Settings::default() }, start);
    store.assign("a", "abcdefghijklmnop", Index(1), start);
    assert!(store.check(b"abcdefghijklmnop.1", Index(1), at(start, 300_000)).is_ok());
}

#[test]
fn threads_share_a_store() {
    let start = Instant::now();
    let store = Arc::new(store(Settings { ttl: TTL, tokens_per_user_max: 500, tokens_max: 1000 }, start));
    std::thread::scope(|scope| {
        let writer = Arc::clone(&store);
        scope.spawn(move || {
            for index in 0..20_000_u64 {
                writer.assign(
                    &format!("user{}", index % 7),
                    "abcdefghijklmnop",
                    Index(2 * index),
                    at(start, index).at,
                );
                if index % 1000 == 999 {
                    writer.forget("user3");
                }
            }
        });
        for thread in 0..2_u64 {
            let store = Arc::clone(&store);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..20_000 {
                    let index = random.below(20_000);
                    let token = format!("abcdefghijklmnop.{}", 2 * index);
                    if let Ok(holder) = store.check(token.as_bytes(), Index(40_000), at(start, 20_000)) {
                        assert_eq!(**holder.user(), format!("user{}", index % 7));
                    }
                }
            });
        }
    });
    assert_eq!(store.expire(at(start, 1_000_000).at, usize::MAX).next, None);
    assert!(store.is_empty());
}
