//! Defines the survey of a cluster that is to be migrated. It is plain data, so that the rules can judge it
//! without further requests.

use std::collections::BTreeSet;

use super::directory::Directory;
use super::settings::Settings;
use crate::evidence::{Alarm, Evidence, Member, Status, Unseen};

/// A server program that members of a cluster run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// The etcd server.
    Etcd,
    /// The Mainstay server.
    Mainstay,
}

impl Product {
    /// Returns the name of the product, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Product::Etcd => "etcd",
            Product::Mainstay => "Mainstay",
        }
    }

    /// Returns the product that a member runs; `None` if neither its metrics nor Mainstay's page could be
    /// read.
    pub fn of(member: &Member) -> Option<Product> {
        match (member.is_mainstay(), &member.metrics) {
            (true, _) => Some(Product::Mainstay),
            (false, Ok(_)) => Some(Product::Etcd),
            (false, Err(_)) => None,
        }
    }
}

/// All data about a cluster that is to be migrated. A field whose data is missing contains the reason why.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Product to which the cluster is to be migrated.
    pub to: Product,
    /// The evidence that `doctor` collects from any cluster.
    pub evidence: Evidence,
    /// The cluster as each member sees it, in the order of [`Evidence::members`].
    pub views: Vec<View>,
    /// The cluster's leases, and those that some member lacks.
    pub leases: Result<Leases, Unseen>,
    /// Hashes of the voting members' data, including its history.
    pub hashes: Result<Hashes, Unseen>,
    /// True if the cluster has users, or has authentication enabled.
    pub has_users: Result<bool, Unseen>,
    /// Data directory of a member on this machine; `None` if the user has named none.
    pub directory: Option<Result<Directory, Unseen>>,
    /// Errors and warnings about a configuration file; `None` if the user has named none.
    pub settings: Option<Settings>,
}

/// The cluster as one member sees it. A learner is asked only for the list of members.
#[derive(Clone, Debug)]
pub struct View {
    /// Members that the member lists.
    pub members: Result<BTreeSet<Listed>, Unseen>,
    /// Alarms that the member reports.
    pub alarms: Result<Vec<Alarm>, Unseen>,
    /// `Ok` if a linearizable read succeeded.
    pub read: Result<(), Unseen>,
    /// Number of keys and directories directly below the root of API version 2; `None` if the member does not
    /// serve this API.
    pub old_keys: Option<usize>,
}

/// A member as it appears in the member list of one of the members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Id of the member.
    pub id: u64,
    /// Name of the member; empty before its first start.
    pub name: String,
    /// URLs at which other members reach this member, sorted.
    pub peer_urls: Vec<String>,
    /// True if the member has no vote.
    pub is_learner: bool,
}

/// Leases of all voting members, compared with each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// Number of distinct leases in the last reading, over all members.
    pub count: usize,
    /// Leases that a member lacked in all readings although other members had them. For each such member: its
    /// index in the evidence, the number of leases, and the id of one of them.
    pub missing: Vec<(usize, usize, i64)>,
}

/// Responses of the voting members to HashKV, all at the same revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// Revision at which the hashes were computed.
    pub revision: i64,
    /// For each member, its index in the evidence and its response.
    pub of: Vec<(usize, Result<Hashed, Unseen>)>,
}

/// A member's response to HashKV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Hash of all revisions since the last compaction, up to the requested one.
    pub hash: u32,
    /// Revision of the last compaction; 0 if there was none.
    pub compacted: i64,
}

impl Hashes {
    /// Returns the successful responses, each with the member's index in the evidence.
    pub fn answers(&self) -> impl Iterator<Item = (usize, Hashed)> + '_ {
        self.of.iter().filter_map(|(at, hashed)| Some((*at, *hashed.as_ref().ok()?)))
    }

    /// Returns true if all members that answered have the same compact revision.
    pub(crate) fn begin_together(&self) -> bool {
        let mut starts = self.answers().map(|(_, hashed)| hashed.compacted);
        let first = starts.next();
        starts.all(|compacted| Some(compacted) == first)
    }

    /// Returns true if all members answered and have the same compact revision. Only then can their hashes be
    /// compared.
    pub fn is_comparable(&self) -> bool {
        !self.of.is_empty() && self.begin_together() && self.of.iter().all(|(_, hashed)| hashed.is_ok())
    }
}

impl View {
    /// Returns the view of a member that was not asked. Each of its results contains the reason `why`.
    pub(crate) fn unseen(why: &str) -> View {
        View { members: Err(why.into()), alarms: Err(why.into()), read: Err(why.into()), old_keys: None }
    }
}

/// A release of etcd, as major and minor number.
pub(crate) type Release = (u32, u32);
/// Oldest and newest release of etcd from which a cluster can be migrated to Mainstay.
pub(crate) const RELEASES: (Release, Release) = ((3, 4), (3, 7));
/// Oldest release of etcd to which a cluster of Mainstay can go back.
pub(crate) const BACK_FIRST: Release = (3, 5);

/// Returns the release of a version, such as (3, 5) for `3.5.21`; `None` if the text is not a version.
pub(crate) fn release_of(version: &str) -> Option<Release> {
    let mut parts = version.split('.');
    let mut number = || parts.next()?.parse().ok();
    Some((number()?, number()?))
}

pub(crate) fn shown((major, minor): Release) -> String {
    format!("{major}.{minor}")
}

impl Survey {
    /// Returns the members whose status is known, each with the product that it runs.
    pub(crate) fn running(&self) -> impl Iterator<Item = (&Member, &Status, Option<Product>)> {
        self.evidence.statuses().map(|(member, status)| (member, status, Product::of(member)))
    }

    /// Returns the members that run this product.
    pub(crate) fn running_this(&self, product: Product) -> impl Iterator<Item = (&Member, &Status)> {
        let of_it = self.running().filter(move |(.., runs)| *runs == Some(product));
        of_it.map(|(member, status, _)| (member, status))
    }

    /// Returns the release of the cluster version, the lowest one if members report different ones; `None` if
    /// no member reports any.
    pub(crate) fn cluster_release(&self) -> Option<Release> {
        let versions = self.evidence.members.iter().filter_map(|member| member.versions.as_ref().ok());
        versions.filter_map(|versions| release_of(&versions.cluster)).min()
    }

    /// Returns the release of etcd to which members can go back, which is also the value for `--api-version`.
    /// This is the target of a downgrade in progress, otherwise the cluster's release, in any case from
    /// [`BACK_FIRST`] to the newest of [`RELEASES`]. Returns `None` if the cluster's version is not known.
    pub(crate) fn way_back(&self) -> Option<Release> {
        let targets = self.evidence.statuses().filter_map(|(_, status)| status.downgrade_target.as_deref());
        let target = targets.filter_map(release_of).min();
        let cluster = self.cluster_release()?;
        Some(target.unwrap_or(cluster).clamp(BACK_FIRST, RELEASES.1))
    }

    /// Returns the members that at least one member lists. A member appears several times if the lists
    /// contain different data about it.
    pub(crate) fn listed(&self) -> BTreeSet<&Listed> {
        self.views.iter().filter_map(|view| view.members.as_ref().ok()).flatten().collect()
    }

    /// Returns the ids of the members that at least one member lists as voters.
    pub(crate) fn voters(&self) -> BTreeSet<u64> {
        self.listed().into_iter().filter(|listed| !listed.is_learner).map(|listed| listed.id).collect()
    }

    /// Returns the ids of the members that at least one member lists as learners.
    pub(crate) fn learners(&self) -> BTreeSet<u64> {
        self.listed().into_iter().filter(|listed| listed.is_learner).map(|listed| listed.id).collect()
    }

    /// Returns true if all members are known to run the target product.
    pub(crate) fn is_done(&self) -> bool {
        let mut members = self.evidence.members.iter();
        members.len() > 0 && members.all(|member| Product::of(member) == Some(self.to))
    }

    /// Returns true if the member with this index in the evidence is a learner.
    pub(crate) fn is_learner(&self, at: usize) -> bool {
        let member = self.evidence.members.get(at);
        member.is_some_and(|member| member.status.as_ref().is_ok_and(|status| status.is_learner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        assert_eq!(release_of("3.5.21"), Some((3, 5)));
        assert_eq!(release_of("3.7.0-rc.1"), Some((3, 7)));
        assert_eq!(release_of("3.10"), Some((3, 10)));
        for wrong in ["", "3", "x.5", "3.x", "-3.5", "not_decided", "99999999999.1"] {
            assert_eq!(release_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hashes_compare_only_where_history_begins_at_the_same_revision() {
        let hashed = |compacted: i64| Ok(Hashed { hash: 1, compacted });
        let mut hashes = Hashes { revision: 9, of: vec![(0, hashed(4)), (1, hashed(4))] };
        assert!(hashes.is_comparable());
        hashes.of[1].1 = hashed(5);
        assert!(!hashes.is_comparable());
        hashes.of[1].1 = Err("late".into());
        assert!(!hashes.is_comparable() && !Hashes::default().is_comparable());
    }
}
