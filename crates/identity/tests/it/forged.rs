//! Manipulated tokens and keys.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mainstay_identity::jwt::{JwtError, Keys, Method, TOKEN_BYTES_MAX};
use testkit::Random;

use crate::{after, data, jwt, keys};

/// Returns a token signed with the secret of the tests.
fn signed(header: &str, claims: &str) -> String {
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &data("hmac.secret"));
    let signature = ring::hmac::sign(&key, text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn a_cut_token_is_refused_wherever_it_is_cut() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    for method in Method::ALL {
        let jwt = jwt(keys(method), start);
        let token = jwt.sign("alice", 7, now).unwrap();
        for len in 0..token.len() {
            assert!(jwt.check(&token.as_bytes()[..len], now).is_err(), "{method}: {len}");
            assert!(jwt.check(&token.as_bytes()[token.len() - len..], now).is_err(), "{method}: {len}");
        }
        assert!(jwt.check(token.as_bytes(), now).is_ok());
    }
}

#[test]
fn a_token_with_a_flipped_bit_says_nothing_else() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    for method in [Method::Hs256, Method::Es256, Method::EdDsa, Method::Ps256] {
        let jwt = jwt(keys(method), start);
        let token = jwt.sign("alice", 7, now).unwrap();
        for at in 0..token.len() {
            for bit in 0..8 {
                let mut bent = token.clone().into_bytes();
                bent[at] ^= 1 << bit;
                // Changing the unused bits in the last letter of a part does not change the signed bytes.
                let last = token.as_bytes().get(at + 1).is_none_or(|next| *next == b'.');
                match jwt.check(&bent, now) {
                    Err(_) => {}
                    Ok(holder) => {
                        assert!(last && at > token.rfind('.').unwrap(), "{method}: bit {bit} of byte {at}");
                        assert_eq!((&**holder.user(), holder.revision()), ("alice", Some(7)));
                    }
                }
            }
        }
    }
}

#[test]
fn a_long_token_is_refused_before_it_is_read() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let jwt = jwt(keys(Method::Hs256), start);
    let claims =
        |name: usize| format!(r#"{{"exp":1800000300,"revision":7,"username":"{}"}}"#, "x".repeat(name));
    let header = r#"{"alg":"HS256"}"#;
    assert!(jwt.check(signed(header, &claims(8000)).as_bytes(), now).is_ok());
    let long = signed(header, &claims(1_000_000));
    let refused = jwt.check(long.as_bytes(), now).unwrap_err();
    assert_eq!(refused, JwtError::TooLong);
    assert_eq!(refused.to_string(), "token is malformed: token has more than 16384 bytes");
    assert!(jwt.check(&vec![b'.'; TOKEN_BYTES_MAX], now).is_err());
}

#[test]
fn deep_claims_do_not_exhaust_the_stack() {
    let start = Instant::now();
    let jwt = jwt(keys(Method::Hs256), start);
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
    let token = signed(r#"{"alg":"HS256"}"#, &deep);
    assert_eq!(jwt.check(token.as_bytes(), after(start, Duration::ZERO)).unwrap_err(), JwtError::ClaimsJson);
}

#[test]
fn a_revision_that_is_no_revision_is_refused() {
    let start = Instant::now();
    let jwt = jwt(keys(Method::Hs256), start);
    for revision in ["-1", "-0.5", "18446744073709551616", "1e300"] {
        let claims = format!(r#"{{"revision":{revision},"username":"alice"}}"#);
        let refused =
            jwt.check(signed(r#"{"alg":"HS256"}"#, &claims).as_bytes(), after(start, Duration::ZERO));
        assert_eq!(refused.unwrap_err(), JwtError::RevisionOutOfRange);
    }
}

#[test]
fn names_are_escaped_and_come_back() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let jwt = jwt(keys(Method::Hs256), start);
    for name in ["", "\"", "\\\"}", "<b>&\u{2028}\u{2029}", "ünï ✓ 𝄞", "a\0b\n", "\u{7f}"] {
        let token = jwt.sign(name, u64::MAX / 2 + 1, now).unwrap();
        let holder = jwt.check(token.as_bytes(), now).unwrap();
        assert_eq!((&**holder.user(), holder.revision()), (name, Some(1 << 63)));
    }
}

#[test]
fn no_bytes_make_the_token_parser_panic() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let jwt = jwt(keys(Method::Hs256), start);
    let whole = signed(r#"{"alg":"HS256"}"#, r#"{"exp":1800000300,"revision":7,"username":"alice"}"#);
    let alphabet: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(*b"0123456789-_..=").collect();
    let mut random = Random::new(2026);
    for _ in 0..20_000 {
        let mut token = whole.clone().into_bytes();
        for _ in 0..random.below(4) {
            let at = random.index(token.len());
            match random.below(4) {
                0 => token[at] = random.number() as u8,
                1 => token[at] = random.pick(&alphabet),
                2 => drop(token.remove(at)),
                _ => token.insert(at, random.pick(&alphabet)),
            }
        }
        if let Ok(holder) = jwt.check(&token, now) {
            assert_eq!(&**holder.user(), "alice");
        }
        let json = random.index(60);
        let json: String = (0..json).map(|_| char::from(random.pick(b"{}[]\",:\\u0e1.-nultrfa s"))).collect();
        let _ = jwt.check(signed(&json, &json).as_bytes(), now);
        let _ = jwt.check(signed(r#"{"alg":"HS256"}"#, &json).as_bytes(), now);
    }
}

#[test]
fn no_bytes_make_the_key_parser_panic() {
    let files = [
        "rsa.pkcs1.pem",
        "rsa.pkcs8.pem",
        "rsa.spki.pem",
        "rsa.cert.pem",
        "rsa.pkcs1.pub.pem",
        "p256.sec1.pem",
        "p256.pkcs8.pem",
        "p384.cert.pem",
        "p384.spki.pem",
        "ed25519.pkcs8.pem",
        "ed25519.spki.pem",
    ];
    let mut random = Random::new(2027);
    for round in 0..3000 {
        let file = data(random.pick(&files));
        let text = String::from_utf8(file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let mut der =
            base64::engine::general_purpose::STANDARD.decode(lines[1..lines.len() - 1].concat()).unwrap();
        for _ in 0..=random.below(3) {
            let at = random.index(der.len().min(64));
            match random.below(4) {
                0 => der[at] = random.number() as u8,
                1 => der.truncate(at.max(1)),
                2 => der.insert(at, random.number() as u8),
                _ => der[at] ^= 1 << random.below(8),
            }
        }
        let mut bent = format!(
            "{}\n{}\n{}\n",
            lines[0],
            base64::engine::general_purpose::STANDARD.encode(&der),
            lines[lines.len() - 1]
        )
        .into_bytes();
        if round % 4 == 0 {
            let at = random.index(bent.len());
            bent[at] = random.number() as u8;
        }
        let method = random.pick(&Method::ALL);
        let _ = Keys::read(method, Some(&bent), None);
        let _ = Keys::read(method, None, Some(&bent));
        let garbage = random.index(200);
        let _ = Keys::read(method, Some(&random.bytes(garbage)), None);
    }
}

/// The library accepts RSA keys whose numbers do not belong together, and then fails for every token.
#[test]
fn an_rsa_key_that_is_damaged_anywhere_is_refused_or_still_signs() {
    let text = String::from_utf8(data("rsa.pkcs1.pem")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let engine = base64::engine::general_purpose::STANDARD;
    let der = engine.decode(lines[1..lines.len() - 1].concat()).unwrap();
    let (start, mut refused) = (Instant::now(), 0);
    for at in (0..der.len()).step_by(23) {
        let mut bent = der.clone();
        bent[at] ^= 1;
        let bent = format!("{}\n{}\n{}\n", lines[0], engine.encode(&bent), lines[lines.len() - 1]);
        match Keys::read(Method::Rs256, None, Some(bent.as_bytes())) {
            Err(_) => refused += 1,
            Ok(keys) => {
                let (jwt, now) = (jwt(keys, start), after(start, Duration::ZERO));
                let token = jwt.sign("alice", 7, now).unwrap_or_else(|why| panic!("byte {at}: {why}"));
                assert!(jwt.check(token.as_bytes(), now).is_ok(), "byte {at}");
            }
        }
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn a_cut_key_file_is_refused() {
    for (method, public, private) in
        [(Method::Rs256, "rsa.cert.pem", "rsa.pkcs8.pem"), (Method::Es384, "p384.spki.pem", "p384.sec1.pem")]
    {
        let (public, private) = (data(public), data(private));
        // A file without its final line break is complete.
        for len in 1..public.len() - 1 {
            assert!(Keys::read(method, Some(&public[..len]), None).is_err(), "{len}");
        }
        for len in 1..private.len() - 1 {
            assert!(Keys::read(method, None, Some(&private[..len])).is_err(), "{len}");
        }
    }
}

#[test]
fn a_file_may_have_more_than_its_key() {
    let key = String::from_utf8(data("p256.sec1.pem")).unwrap();
    let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
    for text in [
        format!("for tests only\n\n{key}\nand more"),
        format!("{parameters}{key}"),
        key.replace('\n', "\r\n"),
        key.replace("-----\n", "-----\nComment: x: y\n\n"),
    ] {
        assert!(Keys::read(Method::Es256, None, Some(text.as_bytes())).is_ok(), "{text}");
    }
}

#[test]
fn what_is_secret_is_not_shown() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    for method in Method::ALL {
        let jwt = jwt(keys(method), start);
        let token = jwt.sign("alice", 7, now).unwrap();
        let holder = jwt.check(token.as_bytes(), now).unwrap();
        let shown = format!("{jwt:?} {:?} {holder:?}", jwt.keys());
        let signature = token.rsplit('.').next().unwrap();
        assert!(!shown.contains(signature) && !shown.contains("secret") && shown.len() < 400, "{shown}");
    }
}
