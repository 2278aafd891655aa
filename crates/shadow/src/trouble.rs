//! The reasons why a shadow cannot go on, by what it does about them.

use api::{Code, Status, error};
use client::is_revision_too_large;

/// Reason why the shadow cannot follow its source now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The shadow tries again: the source or the own disk may recover.
    Passing(String),
    /// The source refuses the shadow's user. Final at the first start; later the shadow tries again, because the
    /// user may get the permission back.
    Refused(String),
    /// The source has compacted this revision and what the shadow needs next: it has to begin from a new snapshot.
    Compacted(i64),
    /// A revision of the source cannot be applied to the copy as it is, which proves that the two are different.
    Different(i64, String),
    /// The shadow ends: going on could compare data that do not belong together.
    Final(String),
}

impl Trouble {
    /// Returns the trouble of a call to the source. `what` says what the call was for.
    pub(crate) fn of_source(what: &str, status: &Status) -> Trouble {
        let shown = status.shown();
        if is_refusal(status) {
            return Trouble::Refused(format!(
                "the source does not let this shadow {what} ({shown}): with authentication, the shadow needs a user with the role \
                 root, because etcd allows snapshots and HashKV to no one else (--user)"
            ));
        }
        if status.message == error::CORRUPT.message {
            return Trouble::Passing(format!(
                "the source has a CORRUPT alarm, so it answers nothing ({shown}): repair it first"
            ));
        }
        if is_revision_too_large(status) {
            return Trouble::Final(format!("cannot {what}: {}", status.message));
        }
        Trouble::Passing(format!("cannot {what}: {shown}"))
    }

    /// Returns the message for the log.
    pub(crate) fn text(&self) -> String {
        match self {
            Trouble::Passing(text) | Trouble::Refused(text) | Trouble::Final(text) => text.clone(),
            Trouble::Different(_, text) => format!("the copy is different from the source: {text}"),
            Trouble::Compacted(revision) => {
                format!(
                    "the source has compacted revision {revision}, and so the revisions that this shadow lacks"
                )
            }
        }
    }
}

/// Returns true if the source refuses the user: it does not know the user, or does not allow the call.
fn is_refusal(status: &Status) -> bool {
    let known = [error::PERMISSION_DENIED, error::AUTH_FAILED, error::USER_EMPTY, error::ROOT_ROLE_NOT_EXIST];
    matches!(status.code, Code::PermissionDenied) || known.iter().any(|known| known.message == status.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_user_is_told_what_is_missing_and_all_else_is_tried_again() {
        for status in [error::PERMISSION_DENIED, error::AUTH_FAILED, error::USER_EMPTY] {
            let trouble = Trouble::of_source("take a snapshot", &status);
            assert!(matches!(&trouble, Trouble::Refused(text) if text.contains("role root")), "{trouble:?}");
        }
        let corrupt = Trouble::of_source("read the revision", &error::CORRUPT);
        assert!(matches!(&corrupt, Trouble::Passing(text) if text.contains("CORRUPT alarm")), "{corrupt:?}");
        let gone = Trouble::of_source("read the revision", &Status::new(Code::Unavailable, "no connection"));
        assert_eq!(
            gone,
            Trouble::Passing(
                "cannot read the revision: rpc error: code = Unavailable desc = no connection".to_owned()
            )
        );
    }
}
