//! What was seen of a cluster that is to be migrated: plain data, which the findings judge without looking at anything else.

use std::collections::BTreeSet;

use super::directory::Directory;
use super::settings::Settings;
use crate::evidence::{Alarm, Evidence, Member, Status, Unseen};

/// A server that members run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Etcd.
    Etcd,
    /// This one.
    Mainstay,
}

impl Product {
    /// Returns the name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Product::Etcd => "etcd",
            Product::Mainstay => "Mainstay",
        }
    }

    /// Returns the product that a member runs; `None` if neither its metrics nor its own page could be seen.
    pub fn of(member: &Member) -> Option<Product> {
        match (member.is_mainstay(), &member.metrics) {
            (true, _) => Some(Product::Mainstay),
            (false, Ok(_)) => Some(Product::Etcd),
            (false, Err(_)) => None,
        }
    }
}

/// All that was seen. Where something could not be seen, the reason stands in its place.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The product to which the cluster is to come.
    pub to: Product,
    /// What the doctor sees of any cluster.
    pub evidence: Evidence,
    /// What each member of the evidence says of the cluster, in the same order.
    pub views: Vec<View>,
    /// The leases, compared between members.
    pub leases: Result<Leases, Unseen>,
    /// The histories of the voting members.
    pub hashes: Result<Hashes, Unseen>,
    /// True if the cluster has users.
    pub has_users: Result<bool, Unseen>,
    /// The data directory of the member on this machine; `None` if none was named.
    pub directory: Option<Result<Directory, Unseen>>,
    /// What Mainstay says of a configuration file; `None` if none was named.
    pub settings: Option<Settings>,
}

/// What one member says of the cluster. A learner is only asked for its list of members.
#[derive(Clone, Debug)]
pub struct View {
    /// The members.
    pub members: Result<BTreeSet<Listed>, Unseen>,
    /// The raised alarms.
    pub alarms: Result<Vec<Alarm>, Unseen>,
    /// `Ok` if a linearizable read was answered.
    pub read: Result<(), Unseen>,
    /// Number of keys and directories right below the root of API version 2, if the member serves that.
    pub old_keys: Option<usize>,
}

/// A member as another lists it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Id of the member.
    pub id: u64,
    /// Name; empty before its first start.
    pub name: String,
    /// URLs for other members, sorted.
    pub peer_urls: Vec<String>,
    /// True if it has no vote.
    pub is_learner: bool,
}

/// The leases of all voting members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// Number of leases that some member has.
    pub count: usize,
    /// Leases that others have, and this member had at no look: its place in the evidence, how many, and the id of one.
    pub missing: Vec<(usize, usize, i64)>,
}

/// The histories of the voting members at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// The revision.
    pub revision: i64,
    /// Of each member: its place in the evidence, and its answer.
    pub of: Vec<(usize, Result<Hashed, Unseen>)>,
}

/// The answer to HashKV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Hash of all revisions that are kept.
    pub hash: u32,
    /// Revision up to which history was compacted; 0 if it never was.
    pub compacted: i64,
}

impl Hashes {
    /// Returns the answers that there are.
    pub fn answers(&self) -> impl Iterator<Item = (usize, Hashed)> + '_ {
        self.of.iter().filter_map(|(at, hashed)| Some((*at, *hashed.as_ref().ok()?)))
    }

    /// Returns true if history begins at the same revision at all members that answered.
    pub(crate) fn begin_together(&self) -> bool {
        let mut starts = self.answers().map(|(_, hashed)| hashed.compacted);
        let first = starts.next();
        starts.all(|compacted| Some(compacted) == first)
    }

    /// Returns true if all members answered, and history begins at the same revision at all: only then hashes compare.
    pub fn is_comparable(&self) -> bool {
        !self.of.is_empty() && self.begin_together() && self.of.iter().all(|(_, hashed)| hashed.is_ok())
    }
}

impl View {
    /// A view of a member that was not asked, for this reason.
    pub(crate) fn unseen(why: &str) -> View {
        View { members: Err(why.into()), alarms: Err(why.into()), read: Err(why.into()), old_keys: None }
    }
}

/// A release as major and minor number.
pub(crate) type Release = (u32, u32);
/// The first and the last release from which, and to which, members go.
pub(crate) const RELEASES: (Release, Release) = ((3, 4), (3, 7));
/// The first release to which there is a way back.
pub(crate) const BACK_FIRST: Release = (3, 5);

/// Returns the release of a version such as `3.5.21`; `None` if it is none.
pub(crate) fn release_of(version: &str) -> Option<Release> {
    let mut parts = version.split('.');
    let mut number = || parts.next()?.parse().ok();
    Some((number()?, number()?))
}

pub(crate) fn shown((major, minor): Release) -> String {
    format!("{major}.{minor}")
}

impl Survey {
    /// Returns the members that say something of themselves, with what they run.
    pub(crate) fn running(&self) -> impl Iterator<Item = (&Member, &Status, Option<Product>)> {
        self.evidence.statuses().map(|(member, status)| (member, status, Product::of(member)))
    }

    /// Returns the members that run this product.
    pub(crate) fn running_this(&self, product: Product) -> impl Iterator<Item = (&Member, &Status)> {
        let of_it = self.running().filter(move |(.., runs)| *runs == Some(product));
        of_it.map(|(member, status, _)| (member, status))
    }

    /// Returns the release that the cluster says it has, the lowest if members differ; `None` if none says it.
    pub(crate) fn cluster_release(&self) -> Option<Release> {
        let versions = self.evidence.members.iter().filter_map(|member| member.versions.as_ref().ok());
        versions.filter_map(|versions| release_of(&versions.cluster)).min()
    }

    /// Returns the release of etcd to which members can go back, and the one that `--api-version` keeps open: that of the cluster, or
    /// the one to which it is being downgraded. `None` if the cluster does not say its version.
    pub(crate) fn way_back(&self) -> Option<Release> {
        let targets = self.evidence.statuses().filter_map(|(_, status)| status.downgrade_target.as_deref());
        let target = targets.filter_map(release_of).min();
        let cluster = self.cluster_release()?;
        Some(target.unwrap_or(cluster).clamp(BACK_FIRST, RELEASES.1))
    }

    /// Returns the members that any member lists, once for each way in which one is listed.
    pub(crate) fn listed(&self) -> BTreeSet<&Listed> {
        self.views.iter().filter_map(|view| view.members.as_ref().ok()).flatten().collect()
    }

    /// Returns the ids of the members that some member lists as voting.
    pub(crate) fn voters(&self) -> BTreeSet<u64> {
        self.listed().into_iter().filter(|listed| !listed.is_learner).map(|listed| listed.id).collect()
    }

    /// Returns the ids of the members that some member lists as learners.
    pub(crate) fn learners(&self) -> BTreeSet<u64> {
        self.listed().into_iter().filter(|listed| listed.is_learner).map(|listed| listed.id).collect()
    }

    /// Returns true if all members that are known run the wanted product.
    pub(crate) fn is_done(&self) -> bool {
        let mut members = self.evidence.members.iter();
        members.len() > 0 && members.all(|member| Product::of(member) == Some(self.to))
    }

    /// Returns true if the member at this place of the evidence is a learner.
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
