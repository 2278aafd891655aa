//! Tests of the classification of errors.

use api::{Code, Status, error};
use oracle::{Outcome, Refusal};
use torture::outcome::{kind, never_sent, of};

#[test]
fn only_what_can_never_happen_counts_as_refused() {
    for (status, refusal) in [
        (&error::COMPACTED, Refusal::Compacted),
        (&error::FUTURE_REV, Refusal::FutureRevision),
        (&error::KEY_NOT_FOUND, Refusal::KeyNotFound),
        (&error::LEASE_NOT_FOUND, Refusal::LeaseNotFound),
        (&error::LEASE_EXIST, Refusal::LeaseExists),
    ] {
        assert_eq!(of(status), Outcome::Refused(refusal));
    }
    for status in [
        &error::TOO_MANY_REQUESTS,
        &error::NO_LEADER,
        &error::REQUEST_TOO_LARGE,
        &error::DUPLICATE_KEY,
        &error::NOT_SUPPORTED_FOR_LEARNER,
    ] {
        assert!(matches!(of(status), Outcome::Refused(Refusal::Other(_))), "{status}");
    }
    for status in [
        &error::TIMEOUT,
        &error::TIMEOUT_DUE_TO_LEADER_FAIL,
        &error::TIMEOUT_DUE_TO_CONNECTION_LOST,
        &error::LEADER_CHANGED,
        &error::STOPPED,
        &error::CANCELED,
        &error::DEADLINE_EXCEEDED,
        &error::CORRUPT,
        // A member whose quota is used up while it applies a put reports the error after the put.
        &error::NO_SPACE,
        &Status::new(Code::Unavailable, "connection error: broken pipe"),
        &Status::new(Code::DeadlineExceeded, "context deadline exceeded"),
        &Status::new(Code::Unknown, "something new"),
    ] {
        assert!(matches!(of(status), Outcome::Unknown(_)), "{status}");
    }
}

#[test]
fn what_was_never_sent_is_refused() {
    let outcome = never_sent("connection error: Connection refused (os error 111)");
    assert!(matches!(outcome, Outcome::Refused(_)));
    assert_eq!(kind(&outcome).as_deref(), Some("connection: Connection refused"));
}
