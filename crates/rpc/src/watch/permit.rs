//! Defines how the watch code checks which keys the user of a stream may watch.

use api::Status;
use machine::auth::Auth;
use numbers::Revision;

/// Checks the rights of one stream's user. The code that identifies users implements this trait.
pub trait Permit {
    /// Checks that a watch of these keys may be created. The keys are those of the request, not normalized,
    /// so that the check covers exactly what will be watched.
    ///
    /// # Errors
    ///
    /// Returns an error if the user is unknown, or may not read the keys.
    fn allows(&self, key: &[u8], range_end: &[u8]) -> Result<(), Status>;

    /// Checks that a watch may begin at revision `start`. Called after [`Permit::allows`]; `now` is the
    /// current revision.
    ///
    /// # Errors
    ///
    /// Returns an error if the user exceeds the rate limit on requests for old changes.
    fn begins(&self, start: Revision, now: Revision) -> Result<(), Status>;

    /// Checks that an existing watch may continue with these users and roles. Adds to `joined` the number of
    /// permissions that had to be merged for the check.
    ///
    /// # Errors
    ///
    /// Returns an error if the user may no longer read the keys.
    fn still_allows(
        &self,
        auth: &Auth,
        key: &[u8],
        range_end: &[u8],
        joined: &mut usize,
    ) -> Result<(), Status>;
}

/// A permit that allows everything.
pub struct Anyone;

impl Permit for Anyone {
    fn allows(&self, _: &[u8], _: &[u8]) -> Result<(), Status> {
        Ok(())
    }

    fn begins(&self, _: Revision, _: Revision) -> Result<(), Status> {
        Ok(())
    }

    fn still_allows(&self, _: &Auth, _: &[u8], _: &[u8], _: &mut usize) -> Result<(), Status> {
        Ok(())
    }
}

/// Returns a refusal as a string in the form that etcd's client library expects.
pub(super) fn reason(refusal: &Status) -> String {
    format!("rpc error: code = {} desc = {}", refusal.code.name(), refusal.message)
}
