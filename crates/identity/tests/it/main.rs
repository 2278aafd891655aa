//! Tests of the crate's public interface. `tests/data` contains tokens, keys and verdicts made by Go's
//! libraries.

mod forged;
mod golden;
mod kinds;
mod queue;
mod store;

use std::time::{Duration, Instant};

use mainstay_identity::Now;
use mainstay_identity::jwt::{Jwt, Keys, Method};

/// Time of day in which tokens are checked, in seconds since 1970.
const SECOND: i64 = 1_800_000_000;

fn data(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(name: &str) -> Vec<serde_json::Value> {
    serde_json::from_slice(&data(name)).unwrap()
}

fn text<'a>(of: &'a serde_json::Value, name: &str) -> &'a str {
    of[name].as_str().unwrap()
}

/// Returns the time this long after the start of a test.
fn after(start: Instant, time: Duration) -> Now {
    Now { at: start + time, unix_seconds: SECOND + i64::try_from(time.as_secs()).unwrap() }
}

/// Names of the key files of a method: public and private.
fn files(method: Method) -> (&'static str, &'static str) {
    match method.name() {
        "ES256" => ("p256.spki.pem", "p256.sec1.pem"),
        "ES384" => ("p384.spki.pem", "p384.pkcs8.pem"),
        "EdDSA" => ("ed25519.spki.pem", "ed25519.pkcs8.pem"),
        "HS256" | "HS384" | "HS512" => ("hmac.secret", "hmac.secret"),
        _ => ("rsa.spki.pem", "rsa.pkcs1.pem"),
    }
}

fn keys(method: Method) -> Keys {
    let (public, private) = files(method);
    Keys::read(method, Some(&data(public)), Some(&data(private))).unwrap()
}

const FIVE_MINUTES_NS: i64 = 300_000_000_000;

fn jwt(keys: Keys, start: Instant) -> Jwt {
    Jwt::new(FIVE_MINUTES_NS, keys, 1024, start, &mut mainstay_identity::system_entropy())
}
