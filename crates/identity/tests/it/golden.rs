//! Compares verdicts and error texts with those of Go's libraries.

use std::time::{Duration, Instant};

use mainstay_identity::TokenKind;
use mainstay_identity::jwt::{Keys, Method, OptionError};
use mainstay_identity::passwords;

use crate::{after, data, json, jwt, keys, text};

fn method(name: &str) -> Method {
    Method::ALL.into_iter().find(|method| method.name() == name).unwrap()
}

#[test]
fn tokens_are_judged_as_go_judges_them() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let mut judged = 0;
    for verdict in json("tokens.json") {
        let (name, token) = (text(&verdict, "name"), text(&verdict, "token"));
        let jwt = jwt(keys(method(text(&verdict, "method"))), start);
        let ours = jwt.check(token.as_bytes(), now);
        let said = ours.as_ref().map_or_else(|why| why.to_string(), |_| String::new());
        let go = text(&verdict, "error");
        match name {
            // Go treats a `nbf` beyond 64 bits of seconds as one in the distant past.
            "nbf 1e19" | "nbf 1e300" | "nbf 18000003000000000000000" => {
                assert_eq!((go, said.as_str()), ("", "token has invalid claims: token is not valid yet"));
                continue;
            }
            _ => {}
        }
        // For errors in base64 or JSON, Go's texts contain more detail.
        let detailed = said.contains("could not") && go.starts_with(&format!("{said}: "));
        assert!(said == go || detailed, "{name}: {go:?} became {said:?}");
        if let Ok(holder) = ours {
            assert_eq!(&**holder.user(), text(&verdict, "username"), "{name}");
            assert_eq!(holder.revision(), verdict["revision"].as_u64(), "{name}");
        }
        judged += 1;
    }
    assert!(judged > 200, "{judged}");
}

#[test]
fn passwords_are_compared_as_go_compares_them() {
    use base64::Engine as _;
    let mut right = 0;
    for comparison in json("passwords.json") {
        let password = comparison["password"].as_str().unwrap_or_default();
        let password = base64::engine::general_purpose::STANDARD.decode(password).unwrap();
        let hash = text(&comparison, "hash");
        let ours = passwords::compare(hash.as_bytes(), &password);
        let said = ours.map_or_else(|why| why.to_string(), |()| String::new());
        assert_eq!(said, text(&comparison, "error"), "{hash} and {password:?}");
        right += usize::from(ours.is_ok());
    }
    assert!(right > 30, "{right}");
}

/// Reads a file that `--auth-token` names, as a caller does.
fn read(name: Option<&String>) -> Result<Option<Vec<u8>>, OptionError> {
    let Some(name) = name else { return Ok(None) };
    let name = name.strip_prefix('@').unwrap();
    if name == "nowhere" {
        return Err(OptionError::Unreadable(format!("open {name}: no such file or directory")));
    }
    Ok(Some(data(name)))
}

fn start_with(option: &str) -> Result<(), String> {
    let kind = TokenKind::parse(option).map_err(|why| why.to_string())?;
    let TokenKind::Jwt(options) = kind else { return Ok(()) };
    let public = read(options.public_file.as_ref()).map_err(|why| why.to_string())?;
    let private = read(options.private_file.as_ref()).map_err(|why| why.to_string())?;
    Keys::read(options.method, public.as_deref(), private.as_deref()).map_err(|why| why.to_string())?;
    Ok(())
}

#[test]
fn options_are_read_as_etcd_reads_them() {
    let (mut same, mut other_words, mut stricter) = (0, 0, 0);
    for option in json("options.json") {
        let (given, etcd) = (text(&option, "text"), text(&option, "error"));
        let ours = start_with(given).err().unwrap_or_default();
        // etcd starts with a key on another curve, and then refuses every token.
        let wrong_curve = ours.contains("key is invalid: it is not on the curve of");
        // Public keys that cannot be parsed.
        let unreadable = ["x509: malformed", "asn1:", "x509: failed to parse public key"];
        let unreadable = unreadable.iter().any(|begin| etcd.starts_with(begin)) && !ours.is_empty();
        assert!(ours == etcd || wrong_curve || unreadable, "{given}: {etcd:?} became {ours:?}");
        *match (ours == etcd, etcd) {
            (true, _) => &mut same,
            (false, "") => &mut stricter,
            (false, _) => &mut other_words,
        } += 1;
    }
    assert_eq!((same, other_words, stricter), (513, 54, 14));
}

#[test]
fn what_is_logged_of_refused_options() {
    let logged = |text: &str| {
        let why = TokenKind::parse(text).unwrap_err();
        let (message, detail) = why.logged();
        format!("{why} | {message} | {detail}")
    };
    assert_eq!(logged("jwt,a"), "auth: invalid auth options | invalid token option | jwt,a");
    assert_eq!(logged("x"), "auth: invalid auth options | unknown token type | x");
    assert_eq!(
        logged("jwt,ttl=5,sign-method=HS256"),
        "auth: invalid auth options | problem loading JWT options | time: missing unit in duration \"5\""
    );
    assert_eq!(
        logged("jwt,sign-method=RS257"),
        "auth: invalid auth options | problem loading JWT options | auth: invalid auth signature method"
    );
    assert_eq!(
        TokenKind::parse("jwt,sign-method=ES512").unwrap_err().to_string(),
        "unsupported signing method: ES512: use ES384 or another method"
    );
}

#[test]
fn unknown_options_are_named() {
    let TokenKind::Jwt(options) =
        TokenKind::parse("jwt,sign-method=HS256,b=1,priv-key=f,a=2,ttl=1m").unwrap()
    else {
        panic!("is jwt");
    };
    assert_eq!(options.unknown, ["b", "a"]);
    assert_eq!(options.ttl_ns, 60_000_000_000);
}

#[test]
fn keys_are_read_in_every_format() {
    for (method, public, private) in [
        (Method::Rs256, "rsa.spki.pem", "rsa.pkcs8.pem"),
        (Method::Rs384, "rsa.pkcs1.pub.pem", "rsa.pkcs1.pem"),
        (Method::Ps512, "rsa.cert.pem", "rsa.pkcs8.pem"),
        (Method::Ps256, "rsa-both.spki.pem", "rsa.pkcs8.pem"),
        (Method::Es256, "p256.spki.pem", "p256.sec1.pem"),
        (Method::Es256, "p256.cert.pem", "p256.pkcs8.pem"),
        (Method::Es384, "p384.cert.pem", "p384.sec1.pem"),
        (Method::Es384, "p384.spki.pem", "p384.pkcs8.pem"),
        (Method::EdDsa, "ed25519.spki.pem", "ed25519.pkcs8.pem"),
    ] {
        let (public, private) = (data(public), data(private));
        let start = Instant::now();
        let now = after(start, Duration::ZERO);
        let signing = jwt(Keys::read(method, None, Some(&private)).unwrap(), start);
        let both = jwt(Keys::read(method, Some(&public), Some(&private)).unwrap(), start);
        let verifying = jwt(Keys::read(method, Some(&public), None).unwrap(), start);
        for jwt in [&signing, &both] {
            let token = jwt.sign("bob", 3, now).unwrap();
            for jwt in [&signing, &both, &verifying] {
                let holder = jwt.check(token.as_bytes(), now).unwrap();
                assert_eq!((&**holder.user(), holder.revision()), ("bob", Some(3)));
            }
        }
        let refused = verifying.sign("bob", 3, now).unwrap_err();
        assert_eq!(refused.to_string(), "auth: token signing attempted with verify-only key");
    }
}

#[test]
fn keys_that_are_too_small_are_refused() {
    let refused = |public: Option<&str>, private: Option<&str>| {
        let (public, private) = (public.map(data), private.map(data));
        Keys::read(Method::Rs256, public.as_deref(), private.as_deref()).unwrap_err().to_string()
    };
    let text = "RSA key has 1024 bits: 2048 to 8192 are supported, and up to 4096 for signing";
    assert_eq!(refused(None, Some("rsa-small.pkcs1.pem")), text);
    assert_eq!(refused(Some("rsa-small.spki.pem"), None), text);
}

#[test]
fn a_file_with_too_many_keys_is_refused() {
    let read = |count: usize| Keys::read(Method::Es256, Some(&data("p256.spki.pem").repeat(count)), None);
    assert_eq!(read(16).unwrap().verifying(), 16);
    assert_eq!(read(17).unwrap_err().to_string(), "more than 16 public keys in one file");
}

/// A token whose signature is deterministic is identical to Go's.
#[test]
fn tokens_are_written_as_go_writes_them() {
    let start = Instant::now();
    for verdict in json("tokens.json").iter().filter(|verdict| text(verdict, "name") == "good") {
        let name = text(verdict, "method");
        let ours = jwt(keys(method(name)), start).sign("alice", 7, after(start, Duration::ZERO)).unwrap();
        let (ours_said, ours_signature) = ours.rsplit_once('.').unwrap();
        let (said, signature) = text(verdict, "token").rsplit_once('.').unwrap();
        assert_eq!(ours_said, said);
        if !name.starts_with("PS") && !name.starts_with("ES") {
            assert_eq!(ours_signature, signature, "{name}");
        }
    }
}
