//! Computes the ids and members of the cluster for which a snapshot is restored. The ids are computed from
//! the peer URLs and the cluster token, so all members that are restored with the same options compute the
//! same cluster.

use cli::Failure;
use config::{Bootstrap, Url};
use interchange::backend::{Member, Membership};
use interchange::wal::Identity;
use numbers::Index;

/// Values of the flags that describe the new cluster and the member to restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Name of the member.
    pub name: String,
    /// Members with their peer URLs: `a=http://…,b=http://…`.
    pub initial_cluster: String,
    /// Cluster token, which is included in the computation of ids.
    pub token: String,
    /// Peer URLs of the member, comma-separated.
    pub advertised: String,
}

/// The cluster that the restored members will form.
#[derive(Clone, Debug)]
pub struct NewCluster {
    /// Ids of the restored member and of the cluster.
    pub identity: Identity,
    /// All members; the list of removed members is empty.
    pub membership: Membership,
}

impl NewCluster {
    /// Returns the cluster that the options describe.
    ///
    /// # Errors
    ///
    /// Returns etcdutl's error if the options are not consistent. Unlike etcdutl, no host name is resolved:
    /// URLs are compared as text.
    pub fn of(options: &ClusterOptions) -> Result<NewCluster, Failure> {
        // Keep duplicates, which `Url::parse_list` would drop: error messages give the number of URLs. As in
        // etcdutl, an empty list is an error, because the empty text is not a valid URL.
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

    /// Returns the index of the last initial entry of a restored log: the number of members, because the log
    /// begins with one entry for each member.
    pub fn index(&self) -> Index {
        Index(self.membership.members.len() as u64)
    }

    /// Returns the id of the member for which the restored member has voted in the first term. As in etcdutl,
    /// it is the lowest id.
    pub fn vote(&self) -> u64 {
        self.membership.members.iter().map(|member| member.id).min().unwrap_or_default()
    }
}
