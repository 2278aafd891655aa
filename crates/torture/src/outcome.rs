//! Decides from an error if the request may have taken effect.
//!
//! Clients here send each request once, over one connection, so a call results in at most one write. The open
//! question is whether it resulted in one:
//!
//! * Refused for certain: errors that etcd returns before it proposes anything, or that the state machine
//!   returns instead of a write; and requests that were never sent because no connection could be made.
//! * Unknown: everything else, such as the client's own deadline, a broken connection, every "request timed
//!   out" (the proposal stays in the log even if no caller waits for it), "server stopped" and "leader
//!   changed". "Database space exceeded" is unknown as well: a member that finds its quota used up while it
//!   applies a put reports the error after the put.

use api::{Status, error};
use oracle::{Outcome, Refusal};

/// Errors after which the request never takes effect, and whose exact kind the oracle ignores.
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

/// Returns the outcome of a request that was sent and failed with this status.
pub fn of(status: &Status) -> Outcome {
    // Only the text is compared: proxies and versions change codes more often than texts.
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

/// Returns the outcome of a request that was never sent.
pub fn never_sent(why: &str) -> Outcome {
    Outcome::Refused(Refusal::Other(format!("not sent: {why}")))
}

/// Returns a short name of a failure for counting: its text without the variable parts.
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
