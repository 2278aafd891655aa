//! Defines the source of the console's list of members: [`Source`].

use std::fmt;
use std::sync::Arc;

use api::url::Url;

/// Maximum number of endpoints that the console keeps. A cluster has far fewer members.
pub(crate) const ENDPOINTS_MAX: usize = 256;

/// A member of the cluster, as the list of members contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Id of the member.
    pub id: u64,
    /// Name of the member; empty until it has started.
    pub name: String,
    /// Client URLs of the member.
    pub client_urls: Vec<String>,
    /// True if the member has no vote.
    pub is_learner: bool,
}

/// Function that returns the current list of members.
pub type ListMembers = Arc<dyn Fn() -> Vec<Member> + Send + Sync>;

/// Source of the console's list of members.
#[derive(Clone)]
pub enum Source {
    /// The console is part of a member, which knows the list.
    Member {
        /// Id of this member.
        id: u64,
        /// URL at which this member listens for clients.
        listens_at: Url,
        /// Returns the members as this member knows them.
        list: ListMembers,
    },
    /// The console is a separate process. It asks these endpoints for the list.
    Endpoints(Vec<Url>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Member { id, listens_at, .. } => f
                .debug_struct("Member")
                .field("id", id)
                .field("listens_at", listens_at)
                .finish_non_exhaustive(),
            Source::Endpoints(urls) => f.debug_tuple("Endpoints").field(urls).finish(),
        }
    }
}
