//! What the user of a stream may watch.

use api::Status;
use machine::auth::Auth;
use numbers::Revision;

/// Says what one stream's user may watch; made by whoever knows users.
pub trait Permit {
    /// Whether a watch of these keys may be made, given as the request has them: before anything of it is normalized, so that
    /// what is asked is what will be watched.
    ///
    /// # Errors
    ///
    /// When the user is unknown, or may not read the keys.
    fn allows(&self, key: &[u8], range_end: &[u8]) -> Result<(), Status>;

    /// Whether that watch may begin at this revision, asked after [`Permit::allows`], when `now` is the current revision.
    ///
    /// # Errors
    ///
    /// When the user may not ask for so many old changes now.
    fn begins(&self, start: Revision, now: Revision) -> Result<(), Status>;

    /// Whether a watch that was made before may go on, as of these users and roles. `joined` is raised by the permissions
    /// that had to be joined to tell.
    ///
    /// # Errors
    ///
    /// When the user may no longer read the keys.
    fn still_allows(
        &self,
        auth: &Auth,
        key: &[u8],
        range_end: &[u8],
        joined: &mut usize,
    ) -> Result<(), Status>;
}

/// A permit for everything.
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

/// The words of a refusal, as etcd's client library reads them.
pub(super) fn reason(refusal: &Status) -> String {
    format!("rpc error: code = {} desc = {}", refusal.code.name(), refusal.message)
}
