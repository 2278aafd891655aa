//! Examines a cluster that is to be migrated: collects the doctor's evidence, and what each member knows
//! about the cluster. Sends only requests that read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use api::etcdserverpb::{
    AuthUserListRequest, AuthUserListResponse, HashKvRequest, HashKvResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, MemberListRequest, MemberListResponse, RangeRequest, RangeResponse, ResponseHeader,
    StatusRequest, StatusResponse,
};
use api::{Code, Rpc};
use bytes::Bytes;
use client::{Client, Endpoint, shown};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::directory::Directory;
use super::settings::Settings;
use super::survey::{Hashed, Hashes, Leases, Listed, Product, Survey, View, release_of};
use crate::collect::{Plan, list_alarms};
use crate::evidence::{Alarm, Unseen};
use crate::http1::get;

/// Parameters of an examination before a migration.
#[derive(Clone, Debug)]
pub struct MigrationPlan {
    /// Plan for collecting the same evidence as `doctor`.
    pub plan: Plan,
    /// Product to which the cluster is to be migrated.
    pub to: Product,
    /// Data directory of a member on this machine, if the user has named one.
    pub data_dir: Option<PathBuf>,
    /// Directory of that member's write-ahead log, if it is not inside the data directory.
    pub wal_dir: Option<PathBuf>,
    /// Configuration file of a member, if the user has named one.
    pub config_file: Option<String>,
}

/// Maximum number of times that the members' views and hashes are read. Members are asked at slightly
/// different times, so only a difference that is still there at the last reading counts.
const TRIES: usize = 5;
/// Time between two readings of the views and the hashes.
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit for reading the hashes of all members, including repetitions, as a multiple of the timeout of
/// one request.
const HASHES_WITHIN: u32 = 12;

/// A member to which requests are sent.
#[derive(Clone)]
struct Asked {
    /// Index of the member in `Evidence::members`.
    at: usize,
    /// Id of the member. A member list or a hash that comes from another member is rejected, because an
    /// endpoint, such as a load balancer, may lead to a different member each time.
    id: u64,
    /// Client that sends requests only to the member's endpoint.
    client: Client,
}

impl Asked {
    /// Returns an error if the response comes from another member.
    fn is_by(&self, header: Option<&ResponseHeader>) -> Result<(), Unseen> {
        let by = header.map_or(0, |header| header.member_id);
        match by == self.id || by == 0 {
            true => Ok(()),
            false => Err(Unseen::from(format!(
                "another member, {by:x}, answered instead: the endpoint leads to several members"
            ))),
        }
    }
}

/// A member's answers about data that may change while the cluster is in use.
struct Told {
    members: Result<BTreeSet<Listed>, Unseen>,
    alarms: Result<Vec<Alarm>, Unseen>,
    leases: Result<BTreeSet<i64>, Unseen>,
}

impl MigrationPlan {
    /// Examines the cluster.
    ///
    /// # Errors
    /// Returns the reason why nothing can be examined.
    pub async fn collect(&self) -> Result<Survey, Unseen> {
        let evidence = self.plan.collect().await?;
        let connection = &self.plan.connection;
        let client = Client::new(connection.settings.clone()).map_err(Unseen::because)?;
        let client = client.within(connection.within);
        let mut survey = Survey {
            to: self.to,
            views: evidence.members.iter().map(|_| View::unseen("it does not report its status")).collect(),
            evidence,
            leases: Err("no member answers".into()),
            hashes: Err("no member answers".into()),
            has_users: Err("no member answers".into()),
            directory: None,
            settings: self.config_file.as_deref().map(Settings::of_file),
        };
        let wal_dir = self.wal_dir.as_deref();
        survey.directory = self.data_dir.as_deref().map(|path| Directory::look(path, wal_dir));
        let places = survey.evidence.members.iter().enumerate();
        let (learners, voters): (Vec<Asked>, Vec<Asked>) = places
            .filter(|(_, member)| member.status.is_ok())
            .map(|(at, member)| Asked { at, id: member.id, client: client.at(&member.endpoint) })
            .partition(|asked| survey.is_learner(asked.at));
        for learner in &learners {
            survey.views[learner.at] = View::unseen("a learner does not answer such calls");
            survey.views[learner.at].members = listed(learner).await;
        }
        self.look_at_views(&mut survey, &voters).await;
        if !survey.listed().is_empty() {
            // A rule of the migration compares the members' lists with the examined members and names the
            // missing ones. So do not report the evidence as incomplete as well.
            survey.evidence.complete = Ok(());
        }
        if let Some(voter) = voters.first() {
            survey.hashes = hashes(&voters, connection.within).await;
            survey.has_users = has_users(&voter.client).await;
        }
        Ok(survey)
    }

    /// Asks all voting members for the data on which they must agree: members, alarms and leases. Repeats
    /// this until they agree, at most [`TRIES`] times. Then checks once whether each member serves reads.
    async fn look_at_views(&self, survey: &mut Survey, voters: &[Asked]) {
        let mut rounds: Vec<Vec<(usize, BTreeSet<i64>)>> = Vec::new();
        for turn in 1..=TRIES {
            let asked: Vec<(usize, JoinHandle<Told>)> = voters
                .iter()
                .map(|voter| {
                    let voter = voter.clone();
                    (voter.at, tokio::spawn(async move { told(&voter).await }))
                })
                .collect();
            let mut leases = Vec::new();
            let mut unseen = None;
            for (at, told) in asked {
                let Ok(told) = told.await else { continue };
                survey.views[at].members = told.members;
                survey.views[at].alarms = told.alarms;
                match told.leases {
                    Ok(ids) => leases.push((at, ids)),
                    Err(why) => {
                        let label = survey.evidence.members[at].label();
                        unseen.get_or_insert(Unseen::because(format!("{label}: {why}")));
                    }
                }
            }
            rounds.push(leases);
            survey.leases = match unseen {
                None => Ok(compared(&rounds)),
                Some(why) => Err(why),
            };
            if turn == TRIES || agree(survey, voters) {
                break;
            }
            sleep(PAUSE).await;
        }
        for voter in voters {
            survey.views[voter.at].read = read(&voter.client).await;
            let member = &survey.evidence.members[voter.at];
            let version = member.status.as_ref().ok().and_then(|status| release_of(&status.version));
            // Only releases before 3.6 serve API version 2.
            if Product::of(member) == Some(Product::Etcd) && version.is_some_and(|version| version < (3, 6)) {
                survey.views[voter.at].old_keys = self.old_keys(&member.endpoint).await;
            }
        }
    }

    /// Returns the number of keys and directories directly below the root of API version 2; `None` if the
    /// member does not serve this API or does not answer.
    async fn old_keys(&self, endpoint: &str) -> Option<usize> {
        let connection = &self.plan.connection;
        let answer =
            get(&Endpoint::new(endpoint), &connection.transport, "/v2/keys", connection.within).await.ok()?;
        let page: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        let root = page.get("node")?;
        Some(root.get("nodes").and_then(serde_json::Value::as_array).map_or(0, Vec::len))
    }
}

/// Returns true if no two of these members contradict each other about the members and alarms, and no lease
/// is missing. Views that could not be read contradict nothing.
fn agree(survey: &Survey, voters: &[Asked]) -> bool {
    let views: Vec<&View> = voters.iter().map(|voter| &survey.views[voter.at]).collect();
    let same = views.windows(2).all(|two| {
        let members = match (&two[0].members, &two[1].members) {
            (Ok(one), Ok(other)) => one == other,
            _ => true,
        };
        let alarms = match (&two[0].alarms, &two[1].alarms) {
            (Ok(one), Ok(other)) => one == other,
            _ => true,
        };
        members && alarms
    });
    same && survey.leases.as_ref().map_or(true, |leases| leases.missing.is_empty())
}

/// Compares the leases of all members over several readings. A lease counts as missing at a member if in all
/// readings the member lacked it while another member had it. Single differences are normal, because leases
/// are granted and revoked between the requests.
fn compared(rounds: &[Vec<(usize, BTreeSet<i64>)>]) -> Leases {
    let mut missing: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
    let mut count = 0;
    for (number, round) in rounds.iter().enumerate() {
        let all: BTreeSet<i64> = round.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
        count = all.len();
        for (at, ids) in round {
            let lacking = all.difference(ids).copied().collect();
            match missing.get_mut(at) {
                None if number == 0 => drop(missing.insert(*at, lacking)),
                None => {}
                Some(before) => *before = before.intersection(&lacking).copied().collect(),
            }
        }
        // Forget a member that did not answer in this round: it may have had the leases that it lacked
        // before, so none of them counts as missing.
        missing.retain(|at, _| round.iter().any(|(asked, _)| asked == at));
    }
    let missing = missing.into_iter().filter_map(|(at, ids)| Some((at, ids.len(), *ids.first()?)));
    Leases { count, missing: missing.collect() }
}

async fn told(asked: &Asked) -> Told {
    let client = &asked.client;
    let alarms = list_alarms(client).await.map(|mut alarms| {
        alarms.sort_by_key(|alarm| (alarm.member_id, alarm.kind));
        alarms
    });
    let leases: Result<LeaseLeasesResponse, _> =
        client.call(Rpc::LeaseLeases, &LeaseLeasesRequest::default()).await;
    Told {
        members: listed(asked).await,
        alarms,
        leases: leases
            .map(|answer| answer.leases.into_iter().map(|lease| lease.id).collect())
            .map_err(|status| Unseen::because(shown(&status))),
    }
}

async fn listed(asked: &Asked) -> Result<BTreeSet<Listed>, Unseen> {
    let request = MemberListRequest { linearizable: false };
    let answer: MemberListResponse = asked
        .client
        .call(Rpc::ClusterMemberList, &request)
        .await
        .map_err(|status| Unseen::because(shown(&status)))?;
    asked.is_by(answer.header.as_ref())?;
    let members = answer.members.into_iter().map(|mut member| {
        member.peer_urls.sort();
        Listed {
            id: member.id,
            name: member.name,
            peer_urls: member.peer_urls,
            is_learner: member.is_learner,
        }
    });
    Ok(members.collect())
}

/// Makes a linearizable read of a key that most likely does not exist, to check that the member can reach
/// consensus. An answer that the permission is missing is a success too, because a member checks the
/// permission only after consensus.
async fn read(client: &Client) -> Result<(), Unseen> {
    let request = RangeRequest { key: Bytes::from_static(b"health"), limit: 1, ..RangeRequest::default() };
    let answer: Result<RangeResponse, _> = client.call(Rpc::KvRange, &request).await;
    match answer {
        Ok(_) => Ok(()),
        Err(status) if status.code == Code::PermissionDenied => Ok(()),
        Err(status) => Err(Unseen::because(shown(&status))),
    }
}

async fn has_users(client: &Client) -> Result<bool, Unseen> {
    let answer: Result<AuthUserListResponse, _> =
        client.call(Rpc::AuthUserList, &AuthUserListRequest {}).await;
    match answer {
        Ok(answer) => Ok(!answer.users.is_empty()),
        // The server returns this error only if authentication is enabled, and then there are users.
        Err(status) if status.code == Code::PermissionDenied => Ok(true),
        Err(status) => Err(Unseen::because(shown(&status))),
    }
}

/// Requests HashKV of each member at the same revision, one member after the other. If a compaction has come
/// in between, so that the hashes cannot be compared, repeats this at a newer revision.
async fn hashes(voters: &[Asked], within: Duration) -> Result<Hashes, Unseen> {
    let end = Instant::now() + within * HASHES_WITHIN;
    let mut turn = 1;
    loop {
        let mut revision = i64::MAX;
        for voter in voters {
            let answer: StatusResponse = voter
                .client
                .call(Rpc::MaintenanceStatus, &StatusRequest::default())
                .await
                .map_err(|status| Unseen::because(shown(&status)))?;
            revision = revision.min(answer.header.unwrap_or_default().revision);
        }
        if revision <= 0 {
            return Err(Unseen::because(format!("a member reports revision {revision}")));
        }
        let mut found = Hashes { revision, of: Vec::new() };
        let mut is_overtaken = false;
        for voter in voters {
            if Instant::now() > end {
                found.of.push((voter.at, Err("not asked: the others took too long".into())));
                continue;
            }
            let answer: Result<HashKvResponse, _> =
                voter.client.call(Rpc::MaintenanceHashKv, &HashKvRequest { revision }).await;
            is_overtaken |= answer.as_ref().is_err_and(|status| status.code == Code::OutOfRange);
            let hashed = answer.map_err(|status| Unseen::because(shown(&status))).and_then(|answer| {
                voter.is_by(answer.header.as_ref())?;
                Ok(Hashed { hash: answer.hash, compacted: answer.compact_revision.max(0) })
            });
            found.of.push((voter.at, hashed));
        }
        // If the compact revisions differ, a compaction has not reached all members yet, so the hashes cannot
        // be compared. Read them again.
        is_overtaken |= !found.begin_together();
        if !is_overtaken || turn == TRIES || Instant::now() > end {
            return Ok(found);
        }
        turn += 1;
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_that_come_and_go_are_not_missing() {
        let set = |ids: &[i64]| ids.iter().copied().collect::<BTreeSet<i64>>();
        // Lease 3 is granted between the two readings. Lease 9 is missing at the second member in both
        // readings.
        let first = vec![(0, set(&[1, 9])), (4, set(&[1, 3]))];
        assert_eq!(
            compared(std::slice::from_ref(&first)),
            Leases { count: 3, missing: vec![(0, 1, 3), (4, 1, 9)] }
        );
        let second = vec![(0, set(&[1, 3, 9])), (4, set(&[1, 3]))];
        assert_eq!(compared(&[first.clone(), second.clone()]), Leases { count: 3, missing: vec![(4, 1, 9)] });
        assert_eq!(
            compared(&[first, second, vec![(0, set(&[1]))]]),
            Leases { count: 1, missing: Vec::new() }
        );
        assert_eq!(compared(&[]), Leases::default());
    }
}
