//! Decides from the error of a request whether the request possibly takes effect, now or later.
//!
//! A client sends each request once, over one connection, so it causes at most one write. An error is
//! classified by whether this write is possible:
//!
//! * Refused for certain: errors that etcd returns before it proposes the request; errors that the state
//!   machine returns instead of writing; and requests that were never sent, because no connection could be
//!   made.
//! * Unknown: everything else. Examples are the client's own time limit, a broken connection, "server
//!   stopped", "leader changed", and "request timed out", after which the proposal may still be committed.
//!   "Database space exceeded" is unknown as well: a member that finds its quota used up while it applies a
//!   put returns this error, although it has applied the put.

use api::{Status, error};
use oracle::{Outcome, Refusal};

/// Errors after which the request never takes effect, and whose exact kind the oracle does not need to know.
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

/// Returns the outcome of a request that was sent, and that failed with this status.
pub fn of(status: &Status) -> Outcome {
    // Compare only the message. The code differs more often between versions, and through proxies.
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

/// Returns a short name for the failure, for counting: the error message without its variable parts. Returns
/// `None` if the request succeeded.
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
