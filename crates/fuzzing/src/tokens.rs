//! Checks that no forged auth token is accepted, and that no key file causes a panic: verifies arbitrary
//! tokens, and reads arbitrary key files.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use identity::jwt::{Jwt, Keys, Method};
use identity::simple::Settings;
use identity::{Now, Session, TokenKind, Tokens, presented};
use numbers::Index;
use serde_json::Value;

use crate::script::{Scribe, Script};

/// Time at which tokens are checked, in seconds since the Unix epoch.
const SECOND: i64 = 1_800_000_000;
const TTL_NS: i64 = 300_000_000_000;
const SECRET: &[u8] = b"the secret of the fuzzing targets";

const P256: &[u8] = include_bytes!("../../identity/tests/data/p256.sec1.pem");
const ED25519: &[u8] = include_bytes!("../../identity/tests/data/ed25519.pkcs8.pem");
const RSA: &[u8] = include_bytes!("../../identity/tests/data/rsa.spki.pem");

/// Numbers that select the kind of a step in a script.
const TOKEN: u8 = 0;
const SIGNED: u8 = 1;
const KEYS: u8 = 2;
const SIMPLE: u8 = 3;
const KIND: u8 = 4;
const KINDS: u8 = 5;

/// Builds a token that is signed with [`SECRET`], without the code under test.
fn signed(header: &[u8], claims: &[u8]) -> String {
    let text = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET);
    format!("{text}.{}", BASE64.encode(ring::hmac::sign(&key, text.as_bytes())))
}

fn now() -> Now {
    static START: OnceLock<Instant> = OnceLock::new();
    Now { at: *START.get_or_init(Instant::now), unix_seconds: SECOND }
}

fn jwt(method: Method, public: Option<&[u8]>, private: Option<&[u8]>) -> Jwt {
    let keys = Keys::read(method, public, private).expect("sound keys");
    Jwt::new(TTL_NS, keys, 64, now().at, &mut identity::system_entropy())
}

/// Returns the objects that check tokens, one for each kind of key.
fn judges() -> &'static [Jwt; 4] {
    static JUDGES: OnceLock<[Jwt; 4]> = OnceLock::new();
    JUDGES.get_or_init(|| {
        [
            jwt(Method::Hs256, None, Some(SECRET)),
            jwt(Method::Es256, None, Some(P256)),
            jwt(Method::EdDsa, None, Some(ED25519)),
            jwt(Method::Rs256, Some(RSA), None),
        ]
    })
}

/// Checks a token of arbitrary bytes. A token may be accepted only if it was signed, and only tokens of the
/// user "alice" were signed (they are in the seeds).
fn any_token(token: &[u8]) {
    for (number, judge) in judges().iter().enumerate() {
        let first = judge.check(token, now());
        if let Ok(holder) = &first {
            assert_eq!((&**holder.user(), holder.revision()), ("alice", Some(7)), "judge {number}");
            // The second check finds the token in a cache, and must give the same result.
            assert!(judge.check(token, now()).is_ok());
            let late = Now { unix_seconds: SECOND + 2_000_000_000, ..now() };
            assert!(judge.check(token, late).is_err(), "it has ended");
        }
        assert_eq!(first.is_ok(), judge.check(token, now()).is_ok());
    }
    let _ = identity::fingerprint(token);
    assert!(presented(|_| Some(token)).is_some_and(|seen| token.ends_with(seen)));
}

/// Signs a token with arbitrary header and claims, and checks it. If it is accepted, compares the result with
/// the header and claims as `serde_json` reads them.
fn signed_token(header: &[u8], claims: &[u8]) {
    let judge = jwt(Method::Hs256, None, Some(SECRET));
    let token = signed(header, claims);
    let Ok(holder) = judge.check(token.as_bytes(), now()) else { return };
    let header: Value = serde_json::from_slice(header).expect("an accepted header is JSON");
    assert_eq!(header["alg"], "HS256", "another method than the configured one");
    let claims: Value = serde_json::from_slice(claims).expect("accepted claims are JSON");
    assert_eq!(claims["username"], **holder.user());
    assert!(claims["revision"].is_number() && holder.revision().is_some());
    if let Some(ends) = claims.get("exp") {
        let ends = ends.as_f64().expect("an accepted end is a number");
        assert!(ends == 0.0 || ends > SECOND as f64, "it has ended");
    }
    if let Some(begins) = claims.get("nbf") {
        assert!(begins.as_f64().expect("a number") < (SECOND + 1) as f64, "it has not begun");
    }
    // With another key, the token must be invalid.
    let other = jwt(Method::Hs256, None, Some(b"another secret"));
    assert!(other.check(token.as_bytes(), now()).is_err());
}

/// Reads key files of arbitrary bytes. If the keys are accepted, the public key must verify a signature of
/// the private key.
fn keys(method: Method, public: &[u8], private: &[u8]) {
    let read = Keys::read(method, Some(public), Some(private));
    let Ok(keys) = read else {
        assert!(!read.expect_err("refused").to_string().is_empty());
        return;
    };
    let shown = format!("{keys:?}");
    assert!(!shown.contains("BEGIN"));
    let judge = Jwt::new(TTL_NS, keys, 64, now().at, &mut identity::system_entropy());
    if judge.keys().can_sign() {
        let token = judge.sign("bob", 9, now()).expect("a key that signs");
        let holder = judge.check(token.as_bytes(), now()).expect("its own token");
        assert_eq!((&**holder.user(), holder.revision()), ("bob", Some(9)));
    } else {
        assert!(judge.sign("bob", 9, now()).is_err());
    }
    assert!(judge.check(signed(b"{\"alg\":\"none\"}", b"{}").as_bytes(), now()).is_err());
}

/// Checks a simple token of arbitrary bytes. Only the token that was issued before may be accepted.
fn simple(token: &[u8], applied: u64) {
    let mut entropy = identity::system_entropy();
    let tokens = Tokens::new(&TokenKind::Simple, Settings::default(), None, None, now().at, &mut entropy)
        .expect("no keys");
    tokens.enable();
    tokens.assign("alice", "AbCdEfGhIjKlMnOp", Index(77), now().at);
    // The same token as etcd 3.4 spells it, and as later versions spell it (the index differs by one).
    let given = [77, 76].map(|number| {
        tokens.issue("alice", "AbCdEfGhIjKlMnOp", Index(number), 3, now()).expect("a token").into_bytes()
    });
    let session: Result<Session, _> = tokens.check(token, Index(applied), now());
    match session {
        Ok(session) => {
            assert!(given.iter().any(|given| given == token));
            assert_eq!(&**session.holder().user(), "alice");
            assert!(session.renew(token, now()).is_some());
            assert!(session.renew(b"other", now()).is_none());
            tokens.forget("alice");
            assert!(session.renew(token, now()).is_none());
            let later = Now { at: now().at + Duration::from_secs(1), ..now() };
            assert!(tokens.check(token, Index(applied), later).is_err());
        }
        Err(_) => assert!(given.iter().all(|given| given != token)),
    }
}

/// Fuzz target: checks a token, a key file or a kind of token, as the script says.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    match script.below(KINDS) {
        TOKEN => any_token(script.rest()),
        SIGNED => {
            let header = script.run();
            signed_token(header, script.rest());
        }
        KEYS => {
            let method = script.pick(&Method::ALL);
            let public = script.run();
            keys(method, public, script.rest());
        }
        SIMPLE => {
            let applied = script.near(&[77]);
            simple(script.rest(), applied);
        }
        _ => {
            let text = String::from_utf8_lossy(script.rest());
            if let Ok(kind) = TokenKind::parse(&text) {
                // Without key files, only simple tokens can be issued.
                let mut entropy = identity::system_entropy();
                let made = Tokens::new(&kind, Settings::default(), None, None, now().at, &mut entropy);
                assert_eq!(made.is_err(), matches!(kind, TokenKind::Jwt(_)));
            }
        }
    }
}

/// Returns valid tokens and keys, and known attacks on JWTs.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let claims = br#"{"exp":1800000300,"revision":7,"username":"alice"}"#;
    for judge in &judges()[..3] {
        let token = judge.sign("alice", 7, now()).expect("a key that signs");
        seeds.push(Scribe::default().u8(TOKEN).raw(token.as_bytes()).done());
    }
    let unsigned = format!("{}.{}.", BASE64.encode(r#"{"alg":"none"}"#), BASE64.encode(claims));
    seeds.push(Scribe::default().u8(TOKEN).raw(unsigned.as_bytes()).done());
    for header in [
        r#"{"alg":"HS256","typ":"JWT"}"#,
        r#"{"alg":"none"}"#,
        r#"{"alg":"RS256","jwk":{"kty":"oct","k":"AA"}}"#,
        r#"{"alg":"HS256","kid":"../../x","crit":["b64"],"b64":false}"#,
    ] {
        for claims in [
            &claims[..],
            br#"{"exp":1e400,"nbf":-1,"revision":7.5,"username":"alice","username":"bob"}"#,
            br#"{"exp":null,"revision":18446744073709551616,"username":""}"#,
            br#"{"nbf":1800000001,"exp":0,"revision":0,"username":"\u0000\ud834\udd1e"}"#,
        ] {
            seeds.push(Scribe::default().u8(SIGNED).run(header.as_bytes()).raw(claims).done());
        }
    }
    let file = |name: u8, public: &[u8], private: &[u8]| {
        Scribe::default().u8(KEYS).u8(name).run(public).raw(private).done()
    };
    // The numbers are positions in `Method::ALL`.
    let data: [(u8, &[u8], &[u8]); 9] = [
        (0, RSA, include_bytes!("../../identity/tests/data/rsa.pkcs1.pem")),
        (3, include_bytes!("../../identity/tests/data/rsa.pkcs1.pub.pem"), b""),
        (4, include_bytes!("../../identity/tests/data/rsa.cert.pem"), b""),
        (5, b"", include_bytes!("../../identity/tests/data/rsa.pkcs8.pem")),
        (6, include_bytes!("../../identity/tests/data/p256.spki.pem"), P256),
        (6, include_bytes!("../../identity/tests/data/p256.cert.pem"), b""),
        (7, b"", include_bytes!("../../identity/tests/data/p384.pkcs8.pem")),
        (8, include_bytes!("../../identity/tests/data/ed25519.spki.pem"), ED25519),
        (9, b"", SECRET),
    ];
    seeds.extend(data.map(|(method, public, private)| file(method, public, private)));
    for token in ["AbCdEfGhIjKlMnOp.77", "AbCdEfGhIjKlMnOp.077", "AbCdEfGhIjKlMnOp.18446744073709551616", "."]
    {
        seeds.push(Scribe::default().u8(SIMPLE).u8(5).raw(token.as_bytes()).done());
    }
    for text in [
        "simple",
        "jwt,pub-key=a,priv-key=b,sign-method=RS256,ttl=10m",
        "jwt,sign-method=none",
        "jwt,sign-method=ES512,x=y",
    ] {
        seeds.push(Scribe::default().u8(KIND).raw(text.as_bytes()).done());
    }
    seeds
}
