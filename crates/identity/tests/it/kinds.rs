//! Both kinds of tokens behind one interface, over the life of a connection.

use std::time::{Duration, Instant};

use mainstay_identity::jwt::{Keys, Method};
use mainstay_identity::simple::Settings;
use mainstay_identity::{Refused, Session, TokenKind, Tokens, fingerprint, system_entropy};
use numbers::Index;

use crate::{after, data, jwt, keys};

const MINUTE: Duration = Duration::from_secs(60);

fn tokens(option: &str, start: Instant) -> Tokens {
    let kind = TokenKind::parse(option).unwrap();
    let secret = data("hmac.secret");
    Tokens::new(&kind, Settings::default(), None, Some(&secret), start, &mut system_entropy()).unwrap()
}

/// The steps from Authenticate to the first request.
fn authenticated(tokens: &Tokens, user: &str, index: Index, start: Instant) -> (String, Session) {
    let now = after(start, Duration::ZERO);
    let prefix = tokens.draw_prefix(&mut system_entropy());
    tokens.assign(user, &prefix, index, now.at);
    let token = tokens.issue(user, &prefix, index, 7, now).unwrap();
    let session = tokens.check(token.as_bytes(), index, now).unwrap();
    (token, session)
}

#[test]
fn a_simple_token_lives_as_long_as_it_is_used() {
    let start = Instant::now();
    let tokens = tokens("simple", start);
    tokens.enable();
    let (token, session) = authenticated(&tokens, "alice", Index(9), start);
    assert_eq!(token.len(), 18);
    assert!(token.ends_with(".9"));
    for minutes in [4, 8, 12] {
        let holder = session.renew(token.as_bytes(), after(start, minutes * MINUTE)).unwrap();
        assert_eq!((&**holder.user(), holder.revision()), ("alice", None));
        tokens.expire(start + minutes * MINUTE);
    }
    assert!(session.renew(b"abcdefghijklmnop.9", after(start, 12 * MINUTE)).is_none());
    assert!(session.renew(b"", after(start, 12 * MINUTE)).is_none());
    assert!(session.renew(token.as_bytes(), after(start, 18 * MINUTE)).is_none());
    let refused = tokens.check(token.as_bytes(), Index(9), after(start, 18 * MINUTE)).unwrap_err();
    assert_eq!(refused, Refused::Invalid);
}

#[test]
fn a_simple_token_waits_for_its_entry() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let tokens = tokens("simple", start);
    tokens.enable();
    let refused =
        |token: &str, applied: u64| tokens.check(token.as_bytes(), Index(applied), now).unwrap_err();
    // The token may come from entry 9 or 10.
    assert_eq!(refused("abcdefghijklmnop.9", 9), Refused::NotYet(Index(10)));
    assert_eq!(refused("abcdefghijklmnop.9", 10), Refused::Invalid);
    assert_eq!(refused("abcdefghijklmnop", 9), Refused::Invalid);
    tokens.assign("alice", "abcdefghijklmnop", Index(9), now.at);
    assert!(tokens.check(b"abcdefghijklmnop.9", Index(9), now).is_ok());
    assert_eq!(refused("abcdefghijklmnop.09", 9), Refused::Invalid);
}

#[test]
fn forgetting_and_disabling_reach_connections() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let tokens = tokens("simple", start);
    tokens.enable();
    let (alice, alices) = authenticated(&tokens, "alice", Index(1), start);
    let (bob, bobs) = authenticated(&tokens, "bob", Index(2), start);
    tokens.forget("alice");
    assert!(alices.renew(alice.as_bytes(), now).is_none());
    assert_eq!(tokens.check(alice.as_bytes(), Index(2), now).unwrap_err(), Refused::Invalid);
    assert!(bobs.renew(bob.as_bytes(), now).is_some());
    tokens.disable();
    assert!(bobs.renew(bob.as_bytes(), now).is_none());
    tokens.assign("carol", "abcdefghijklmnop", Index(3), now.at);
    tokens.enable();
    assert_eq!(tokens.check(b"abcdefghijklmnop.3", Index(4), now).unwrap_err(), Refused::Invalid);
    assert_eq!(tokens.check(bob.as_bytes(), Index(3), now).unwrap_err(), Refused::Invalid);
    let (dave, daves) = authenticated(&tokens, "dave", Index(4), start);
    assert!(daves.renew(dave.as_bytes(), now).is_some());
}

#[test]
fn a_signed_token_ends_when_it_says() {
    let start = Instant::now();
    let tokens = tokens("jwt,sign-method=HS256,priv-key=f,ttl=2m", start);
    let (token, session) = authenticated(&tokens, "alice", Index(1), start);
    let holder = session.renew(token.as_bytes(), after(start, Duration::from_secs(119))).unwrap();
    assert_eq!((&**holder.user(), holder.revision()), ("alice", Some(7)));
    assert!(session.renew(token.as_bytes(), after(start, 2 * MINUTE)).is_none());
    let Refused::Jwt(why) = tokens.check(token.as_bytes(), Index(1), after(start, 2 * MINUTE)).unwrap_err()
    else {
        panic!("refused as a JSON Web Token");
    };
    assert_eq!(why.to_string(), "token has invalid claims: token is expired");
}

#[test]
fn without_tokens_nobody_has_one() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let tokens = tokens("", start);
    tokens.enable();
    assert_eq!(tokens.check(b"abcdefghijklmnop.1", Index(9), now).unwrap_err(), Refused::Invalid);
    let refused = tokens.issue("alice", "", Index(1), 1, now).unwrap_err();
    assert_eq!(refused.to_string(), "auth: authentication failed, invalid user ID or password");
}

#[test]
fn replaced_keys_reach_connections() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let private = |name: &str| Keys::read(Method::Rs256, None, Some(&data(name))).unwrap();
    let old = jwt(private("rsa-other.pkcs8.pem"), start);
    let token = old.sign("alice", 7, now).unwrap();
    let jwt = jwt(private("rsa-other.pkcs8.pem"), start);
    assert!(jwt.check(token.as_bytes(), now).is_ok());
    assert_eq!(jwt.remembered(), 1);
    // The new key signs, and both keys verify.
    let both = data("rsa-both.spki.pem");
    jwt.replace_keys(Keys::read(Method::Rs256, Some(&both), Some(&data("rsa.pkcs8.pem"))).unwrap());
    assert_eq!((jwt.remembered(), jwt.keys().verifying()), (1, 2));
    assert!(jwt.check(token.as_bytes(), now).is_ok());
    let newer = jwt.sign("alice", 7, now).unwrap();
    assert!(jwt.check(newer.as_bytes(), now).is_ok());
    assert!(old.check(newer.as_bytes(), now).is_err());
    // The old key is removed.
    jwt.replace_keys(private("rsa.pkcs8.pem"));
    assert_eq!(jwt.remembered(), 1, "only what it has verified is forgotten");
    assert!(jwt.check(token.as_bytes(), now).is_err());
    assert!(jwt.check(newer.as_bytes(), now).is_ok());
}

#[test]
fn a_connection_loses_its_token_with_the_key() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let tokens = Tokens::Jwt(Box::new(jwt(keys(Method::Es256), start)));
    let (token, session) = authenticated(&tokens, "alice", Index(1), start);
    assert!(session.renew(token.as_bytes(), now).is_some());
    let Tokens::Jwt(jwt) = &tokens else { unreachable!() };
    jwt.replace_keys(keys(Method::Es256));
    let another = session.another();
    assert!(session.renew(token.as_bytes(), now).is_some(), "the key is there again");
    assert_eq!((another.is_withdrawn(), tokens.withdrawals()), (false, 0));
    jwt.replace_keys(Keys::read(Method::Es256, Some(&data("p256-other.spki.pem")), None).unwrap());
    assert!(session.renew(token.as_bytes(), now).is_none());
    assert_eq!((another.is_withdrawn(), tokens.withdrawals()), (true, 1));
    assert!(tokens.check(token.as_bytes(), Index(1), now).is_err());
}

#[test]
fn remembered_tokens_are_bounded() {
    let start = Instant::now();
    let now = after(start, Duration::ZERO);
    let jwt = jwt(keys(Method::Hs256), start);
    for number in 0..5000 {
        let token = jwt.sign(&number.to_string(), 1, now).unwrap();
        assert!(jwt.check(token.as_bytes(), now).is_ok());
        assert!(jwt.remembered() <= 1024);
    }
    jwt.expire(start + Duration::from_secs(601));
    assert_eq!(jwt.remembered(), 0);
}

#[test]
fn sessions_show_no_token() {
    let start = Instant::now();
    let tokens = tokens("simple", start);
    tokens.enable();
    let (token, session) = authenticated(&tokens, "alice", Index(1), start);
    let shown = format!("{tokens:?} {session:?} {:?}", session.holder());
    assert!(shown.contains("alice") && !shown.contains(&token[..16]), "{shown}");
    assert_eq!(fingerprint(token.as_bytes()).len(), 12);
}
