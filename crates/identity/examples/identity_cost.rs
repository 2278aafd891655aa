//! CPU cost of authentication: nanoseconds of one core for known and unknown tokens and passwords.
//!
//! ```text
//! cargo run --release -p mainstay-identity --example identity_cost
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use mainstay_identity::jwt::{Jwt, Keys, Method};
use mainstay_identity::passwords::{Ask, Cost, Hashing, Task, Verified, WorkQueue};
use mainstay_identity::simple::{Settings, Store, draw_prefix};
use mainstay_identity::{Now, TokenKind, Tokens, system_entropy};
use numbers::Index;

/// CPU time in nanoseconds for which each figure is measured.
const MEASURED_NS: u64 = 300_000_000;

/// Returns the CPU time of this thread in nanoseconds, on which other processes have little influence.
fn spent_ns() -> u64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with figures of its scheduler");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

fn measure(name: &str, mut work: impl FnMut(u64)) {
    let (mut rounds, mut done) = (1, 0);
    loop {
        let start_ns = spent_ns();
        (done..done + rounds).for_each(&mut work);
        done += rounds;
        let ns = spent_ns() - start_ns;
        if ns >= MEASURED_NS {
            let ns = ns as f64 / rounds as f64;
            println!("{name:58} {ns:>14.1} ns {:>14.0}/s", 1e9 / ns);
            return;
        }
        rounds *= 2;
    }
}

fn data(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn main() {
    let start = Instant::now();
    let now = Now { at: start, unix_seconds: 1_800_000_000 };
    let mut entropy = system_entropy();
    simple_tokens(now);

    let methods = [
        (Method::Rs256, "rsa.pkcs8.pem"),
        (Method::Ps256, "rsa.pkcs8.pem"),
        (Method::Es256, "p256.pkcs8.pem"),
        (Method::Es384, "p384.pkcs8.pem"),
        (Method::EdDsa, "ed25519.pkcs8.pem"),
        (Method::Hs256, "hmac.secret"),
    ];
    for (method, file) in methods {
        let keys = || Keys::read(method, None, Some(&data(file))).expect("a key of the tests");
        let jwt = Jwt::new(i64::MAX / 2, keys(), 1024, start, &mut entropy);
        let token = jwt.sign("alice", 7, now).expect("a private key");
        measure(&format!("{method}: sign"), |_| drop(black_box(jwt.sign("alice", 7, now))));
        let unknown = Jwt::new(i64::MAX / 2, keys(), 1, start, &mut entropy);
        // The cache has sixteen parts with one slot each, so these tokens evict each other.
        let tokens: Vec<String> =
            (0..512).map(|revision| jwt.sign("alice", revision, now).expect("a private key")).collect();
        measure(&format!("{method}: token presented first ({} bytes)", token.len()), |round| {
            let token = &tokens[round as usize % tokens.len()];
            assert!(black_box(unknown.check(token.as_bytes(), now)).is_ok());
        });
        measure(&format!("{method}: remembered token, new connection"), |_| {
            assert!(black_box(jwt.check(token.as_bytes(), now)).is_ok());
        });
        let tokens = Tokens::Jwt(Box::new(jwt));
        let session = tokens.check(token.as_bytes(), Index(0), now).expect("a valid token");
        measure(&format!("{method}: same token on the same connection"), |_| {
            assert!(black_box(session.renew(black_box(token.as_bytes()), now)).is_some());
        });
    }

    passwords(start);
}

fn simple_tokens(now: Now) {
    let mut entropy = system_entropy();
    let kind = TokenKind::parse("simple").expect("a kind");
    let tokens =
        Tokens::new(&kind, Settings::default(), None, None, now.at, &mut entropy).expect("needs no keys");
    tokens.enable();
    let texts: Vec<String> = (0..10_000)
        .map(|index| {
            let prefix = tokens.draw_prefix(&mut entropy);
            tokens.assign("alice", &prefix, Index(index), now.at);
            tokens.issue("alice", &prefix, Index(index), 1, now).expect("is simple")
        })
        .collect();
    let session = tokens.check(texts[0].as_bytes(), Index(10_000), now).expect("a valid token");
    measure("simple: same token on the same connection", |_| {
        assert!(black_box(session.renew(black_box(texts[0].as_bytes()), now)).is_some());
    });
    measure("simple: known token, new connection", |round| {
        let text = &texts[round as usize % texts.len()];
        assert!(black_box(tokens.check(text.as_bytes(), Index(10_000), now)).is_ok());
    });
    measure("simple: unknown token", |_| {
        assert!(black_box(tokens.check(b"abcdefghijklmnop.1", Index(10_000), now)).is_err());
    });
    measure("simple: draw a prefix", |_| drop(black_box(draw_prefix(&mut entropy))));
    let store = Store::new(Settings::default(), now.at, &mut entropy);
    store.enable();
    measure("simple: make a token, with 50,000 of its user alive", |round| {
        store.assign("alice", "abcdefghijklmnop", Index(round), now.at + Duration::from_nanos(round));
    });
    println!("{:58} {:>14}", "simple: tokens alive then", store.len());
}

fn passwords(start: Instant) {
    let mut entropy = system_entropy();
    let verified = Verified::new(Verified::IDLE_DEFAULT, Verified::ENTRIES_MAX_DEFAULT, start, &mut entropy);
    let hashing = Hashing::new(Cost::DEFAULT, &mut entropy);
    let stored = hashing.hash(b"a password", &mut entropy).expect("is short");
    for user in 0..1000 {
        let proof = verified.recall(&format!("user{user}"), Some(stored.as_bytes()), b"a password", start);
        verified.remember(&proof.expect_err("is not remembered yet"), start);
    }
    measure("password: remembered", |_| {
        assert!(verified.recall("user77", Some(stored.as_bytes()), black_box(b"a password"), start).is_ok());
    });
    measure("password: not remembered, as far as the queue and back", |round| {
        let mut queue = WorkQueue::<u32, u64>::new(10, 10);
        let proof = verified.recall("user77", Some(stored.as_bytes()), &round.to_le_bytes(), start);
        let proof = proof.expect_err("is another password");
        let task = Task::check(Some(stored.as_bytes()), b"a password");
        assert!(queue.push(Ask { proof, task, address: 1, asker: round }).is_ok());
        let work = queue.take().expect("was pushed");
        assert_eq!(queue.finish(work).len(), 1);
    });
    for cost in [4, 10, 12] {
        let hashing = Hashing::new(Cost::new(cost).expect("a cost"), &mut entropy);
        let stored = hashing.hash(b"a password", &mut entropy).expect("is short");
        measure(&format!("password: bcrypt, cost {cost}"), |_| {
            assert!(black_box(hashing.check(Some(stored.as_bytes()), b"a password")));
        });
        measure(&format!("password: bcrypt, cost {cost}, no such user"), |_| {
            assert!(!black_box(hashing.check(None, b"a password")));
        });
    }
}
