//! The cluster that a snapshot is restored for: new ids, computed from peer URLs and token as every member does.

use cli::Failure;
use config::{Bootstrap, Url};
use interchange::backend::{Member, Membership};
use interchange::wal::Identity;
use numbers::Index;

/// The options about the cluster and the member.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Name of the member.
    pub name: String,
    /// `a=http://…,b=http://…`.
    pub initial_cluster: String,
    /// Text mixed into ids.
    pub token: String,
    /// The member's peer URLs, separated by commas.
    pub advertised: String,
}

/// A cluster about to be formed.
#[derive(Clone, Debug)]
pub struct NewCluster {
    /// The member that is restored, and the cluster.
    pub identity: Identity,
    /// All members, and nothing else.
    pub membership: Membership,
}

impl NewCluster {
    /// The cluster that the options name.
    ///
    /// # Errors
    ///
    /// When they do not fit together, in etcdutl's words. Unlike it, nothing here waits for a name to be resolved:
    /// URLs are compared as texts.
    pub fn of(options: &ClusterOptions) -> Result<NewCluster, Failure> {
        // Url::parse_list takes an empty list for none, etcdutl for one that is no URL.
        let advertised: Result<Vec<Url>, _> = options.advertised.split(',').map(Url::parse).collect();
        let mut advertised = advertised.map_err(Failure::error)?;
        advertised.sort();
        let formed = Bootstrap::form(&options.name, &options.initial_cluster, &options.token, &advertised)
            .map_err(Failure::error)?;
        let members = formed.members.iter().map(|member| Member {
            id: member.id,
            peer_urls: member.peer_urls.iter().map(|url| url.as_str().to_owned()).collect(),
            name: member.name.clone(),
            ..Member::default()
        });
        Ok(NewCluster {
            identity: Identity { member_id: formed.local_id, cluster_id: formed.cluster_id },
            membership: Membership { members: members.collect(), ..Membership::default() },
        })
    }

    /// Every member's log begins with one entry for each of them.
    pub fn index(&self) -> Index {
        Index(self.membership.members.len() as u64)
    }

    /// The first member has the vote of that term, as etcdutl has it.
    pub fn vote(&self) -> u64 {
        self.membership.members.iter().map(|member| member.id).min().unwrap_or_default()
    }
}
