//! What an error says about the fate of the request.
//!
//! Clients here send each request once, over one connection, so a call is at most one write. What is open is whether
//! it was one:
//!
//! * Refused for certain is what etcd answers before it proposes anything, or what the state machine decides instead
//!   of a write; and what never left, because no connection came about.
//! * Everything else is unknown: the client's own deadline, a broken connection, every "request timed out" (the
//!   proposal stays in the log whoever waits for it), "server stopped", "leader changed". So is "database space
//!   exceeded": a member that finds its quota used up while it applies a put says so after it has put.

use api::{Status, error};
use oracle::{Outcome, Refusal};

/// Errors after which nothing ever happens, and which the judge does not ask about.
const CERTAIN: &[&Status] = &[
    &error::TOO_MANY_REQUESTS,
    &error::NO_LEADER,
    &error::REQUEST_TOO_LARGE,
    &error::EMPTY_KEY,
    &error::VALUE_PROVIDED,
    &error::LEASE_PROVIDED,
    &error::DUPLICATE_KEY,
    &error::TOO_MANY_OPS,
    &error::INVALID_SORT_OPTION,
    &error::LEASE_TTL_TOO_LARGE,
    &error::NOT_CAPABLE,
    &error::NOT_SUPPORTED_FOR_LEARNER,
    &error::PERMISSION_DENIED,
    &error::INVALID_AUTH_TOKEN,
    &error::AUTH_OLD_REVISION,
    &error::AUTH_FAILED,
    &error::USER_EMPTY,
    &error::USER_NOT_FOUND,
];

/// The outcome of a request that was sent and failed with this.
pub fn of(status: &Status) -> Outcome {
    // By the text alone: proxies and versions differ in codes before they differ in texts.
    let is = |other: &Status| status.message == other.message;
    let refusal = if is(&error::COMPACTED) {
        Refusal::Compacted
    } else if is(&error::FUTURE_REV) {
        Refusal::FutureRevision
    } else if is(&error::KEY_NOT_FOUND) {
        Refusal::KeyNotFound
    } else if is(&error::LEASE_NOT_FOUND) {
        Refusal::LeaseNotFound
    } else if is(&error::LEASE_EXIST) {
        Refusal::LeaseExists
    } else if CERTAIN.iter().any(|certain| is(certain)) {
        Refusal::Other(status.message.to_string())
    } else {
        return Outcome::Unknown(status.to_string());
    };
    Outcome::Refused(refusal)
}

/// The outcome of a request that was never sent.
pub fn never_sent(why: &str) -> Outcome {
    Outcome::Refused(Refusal::Other(format!("not sent: {why}")))
}

/// A short name of a failure, for counting: its text without what differs from one time to the next.
pub fn kind(outcome: &Outcome) -> Option<String> {
    let text = match outcome {
        Outcome::Done(..) => return None,
        Outcome::Refused(Refusal::Other(text)) | Outcome::Unknown(text) => text.clone(),
        Outcome::Refused(refusal) => format!("{refusal:?}"),
    };
    for part in ["Connection refused", "Connection reset", "broken pipe", "no greeting in time"] {
        if text.contains(part) {
            return Some(format!("connection: {part}"));
        }
    }
    let text = text.split(" (").next().unwrap_or_default();
    Some(text.chars().take(90).collect())
}
