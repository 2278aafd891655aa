//! Computes the cluster that a member without data forms or joins: its members and ids, from the options.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::discovery::Discovery;
use super::refusal::Refusal;
use super::{Config, InitialClusterState, Url};
use api::identity::{cluster_id, initial_member_id};
use api::url::UrlError;
use cli::go::quote;

/// A member named in the initial cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialMember {
    /// Id of the member.
    pub id: u64,
    /// Name of the member.
    pub name: String,
    /// Peer URLs of the member, sorted by text.
    pub peer_urls: Vec<Url>,
    /// True if the member is the witness.
    pub is_witness: bool,
}

/// The initial cluster. The ids are computed from the options, so every member with the same options gets the
/// same ids.
///
/// A member that joins an existing cluster does not use these ids but those that the running cluster reports,
/// because a member that was added later has an id that is not computed from the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// The members, sorted by id, the witness last. The log of a new cluster adds them in this order.
    pub members: Vec<InitialMember>,
    /// Id of the cluster.
    pub cluster_id: u64,
    /// Id of this member.
    pub local_id: u64,
}

/// Error returned if the options do not describe a cluster that the member can form or join. The messages are
/// etcd's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootstrapError {
    /// A peer URL is invalid.
    Url(UrlError),
    /// The initial cluster does not name this member.
    NoLocalName {
        /// The name of this member.
        name: String,
    },
    /// Two members have the same URL.
    DuplicateUrl {
        /// The initial cluster, sorted.
        initial_cluster: String,
    },
    /// The member does not advertise URLs that the initial cluster lists for it.
    NotAdvertised {
        /// URLs that the initial cluster lists and the member does not advertise, each as `name=URL`.
        missing: String,
        /// URLs that the member advertises.
        advertised: String,
        /// Description of the difference between the two lists.
        difference: String,
    },
    /// The member advertises URLs that the initial cluster does not list for it.
    NotInCluster {
        /// URLs that the member advertises and the initial cluster does not list.
        missing: String,
        /// URLs that the initial cluster lists for the member, each as `name=URL`.
        initial_cluster: String,
    },
    /// The initial cluster does not name the witness.
    NoWitnessName {
        /// The name of the witness.
        name: String,
    },
    /// The member is not in the parsed cluster, which is a bug.
    LocalMissing,
}

impl From<UrlError> for BootstrapError {
    fn from(error: UrlError) -> BootstrapError {
        BootstrapError::Url(error)
    }
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootstrapError::Url(error) => error.fmt(f),
            BootstrapError::NoLocalName { name } => {
                write!(f, "couldn't find local name {} in the initial cluster configuration", quote(name))
            }
            BootstrapError::DuplicateUrl { initial_cluster } => {
                write!(f, "initial cluster {initial_cluster} has duplicate url")
            }
            BootstrapError::NotAdvertised { missing, advertised, difference } => write!(
                f,
                "--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised} ({difference})"
            ),
            BootstrapError::NotInCluster { missing, initial_cluster } => write!(
                f,
                "--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={initial_cluster}"
            ),
            BootstrapError::NoWitnessName { name } => {
                write!(f, "--initial-cluster does not name the witness {}", quote(name))
            }
            BootstrapError::LocalMissing => f.write_str("the local member is missing"),
        }
    }
}

impl std::error::Error for BootstrapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BootstrapError::Url(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}

impl Config {
    /// Parses and checks the initial cluster. Call this only when the data directory contains no member.
    ///
    /// URLs are compared as text; host names are not resolved.
    pub fn bootstrap(&self) -> Result<Bootstrap, Refusal> {
        self.initial_members()
    }

    fn initial_members(&self) -> Result<Bootstrap, Refusal> {
        let urls_by_name = parse(&self.cluster.initial_cluster)
            .map_err(|error| Refusal::start_failed(format!("error setting up initial cluster: {error}")))?;
        let is_new = self.cluster.initial_cluster_state == InitialClusterState::New;
        // If SRV records name the cluster, do not compare the URLs of this member with them: the records may
        // use other host names, and the member was already found among them by comparing IP addresses.
        let is_recognised = matches!(self.cluster.discovery, Some(Discovery::Srv { .. }));
        let advertised =
            (is_new && !is_recognised).then_some(self.cluster.initial_advertise_peer_urls.as_slice());
        let cluster = &self.cluster;
        let witness = &*cluster.initial_cluster_witness;
        let bootstrap =
            Bootstrap::of(&self.name, &urls_by_name, (&cluster.initial_cluster_token, witness), advertised)
                .map_err(|error| Refusal::start_failed(error.to_string()))?;
        if is_new {
            check_witness(&self.name, self.is_witness, witness, bootstrap.members.len())
                .map_err(Refusal::start_failed)?;
        }
        Ok(bootstrap)
    }
}

impl Bootstrap {
    /// Returns the cluster that these options describe. The checks are those of `etcdutl snapshot restore`.
    ///
    /// # Errors
    ///
    /// Returns an error with etcd's message if the options are not consistent.
    pub fn form(
        name: &str,
        initial_cluster: &str,
        token: &str,
        advertised: &[Url],
    ) -> Result<Bootstrap, BootstrapError> {
        Bootstrap::of(name, &parse(initial_cluster)?, (token, ""), Some(advertised))
    }

    /// Builds the cluster. If `advertised` is given, it must be equal to the list of URLs that the initial
    /// cluster has for this member. `witness` is the name of the witness; empty for none.
    fn of(
        name: &str,
        urls_by_name: &BTreeMap<String, Vec<Url>>,
        (token, witness): (&str, &str),
        advertised: Option<&[Url]>,
    ) -> Result<Bootstrap, BootstrapError> {
        let Some(local_urls) = urls_by_name.get(name) else {
            return Err(BootstrapError::NoLocalName { name: name.to_owned() });
        };
        if let Some(advertised) = advertised {
            check_advertised(name, local_urls, advertised)?;
        }
        let mut seen = BTreeSet::new();
        if !urls_by_name.values().flatten().all(|url| seen.insert(url.as_str())) {
            return Err(BootstrapError::DuplicateUrl { initial_cluster: print(urls_by_name) });
        }
        if !witness.is_empty() && !urls_by_name.contains_key(witness) {
            return Err(BootstrapError::NoWitnessName { name: witness.to_owned() });
        }
        let mut members = Vec::new();
        for (name, peer_urls) in urls_by_name {
            let texts: Vec<&str> = peer_urls.iter().map(Url::as_str).collect();
            // The id says which member is the witness, and the ids make the id of the cluster. So members that
            // do not agree about the witness belong to different clusters, and refuse each other.
            let is_witness = name == witness;
            let id = match is_witness {
                true => initial_member_id(&texts, &format!("{token}{OF_WITNESS}")),
                false => initial_member_id(&texts, token),
            };
            members.push(InitialMember { id, name: name.clone(), peer_urls: peer_urls.clone(), is_witness });
        }
        // A witness can only be added to members with data.
        members.sort_by_key(|member| (member.is_witness, member.id));
        let ids: Vec<u64> = members.iter().map(|member| member.id).collect();
        let local = members.iter().find(|member| member.name == name);
        let local_id = local.map(|member| member.id).ok_or(BootstrapError::LocalMissing)?;
        Ok(Bootstrap { cluster_id: cluster_id(&ids), local_id, members })
    }
}

/// End of the token from which the id of a witness is computed. No token of a flag contains the byte 0.
const OF_WITNESS: &str = "\0witness";

/// Checks what the options of a new cluster of `members` members say about its witness.
fn check_witness(name: &str, is_witness: bool, witness: &str, members: usize) -> Result<(), String> {
    if is_witness && name != witness {
        return Err(format!(
            "`mainstay witness` forms a new cluster only with --initial-cluster-witness={name}, which all members of \
             the cluster need"
        ));
    }
    if !is_witness && name == witness {
        return Err(format!(
            "--initial-cluster-witness names this member, {}: start it with `mainstay witness`",
            quote(name)
        ));
    }
    if !witness.is_empty() && members < 3 {
        return Err(
            "--initial-cluster-witness needs two members with data beside the witness in --initial-cluster"
                .to_owned(),
        );
    }
    Ok(())
}

/// Parses `a=http://…,b=http://…`; a name may occur several times.
fn parse(text: &str) -> Result<BTreeMap<String, Vec<Url>>, UrlError> {
    let mut urls_by_name: BTreeMap<String, Vec<Url>> = BTreeMap::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, url) = pair.split_once('=').unwrap_or((pair, ""));
        let url = Url::parse(url)?;
        urls_by_name.entry(name.to_string()).or_default().push(url);
    }
    urls_by_name.values_mut().for_each(|urls| urls.sort());
    Ok(urls_by_name)
}

fn check_advertised(name: &str, local: &[Url], advertised: &[Url]) -> Result<(), BootstrapError> {
    let join = |urls: &[Url]| urls.iter().map(Url::as_str).collect::<Vec<_>>().join(",");
    let named = |urls: &[&Url]| urls.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",");
    let missing: Vec<&Url> = local.iter().filter(|url| !advertised.contains(url)).collect();
    if !missing.is_empty() {
        return Err(BootstrapError::NotAdvertised {
            missing: named(&missing),
            advertised: join(advertised),
            difference: difference(advertised, local),
        });
    }
    let missing: Vec<&Url> = advertised.iter().filter(|url| !local.contains(url)).collect();
    if !missing.is_empty() {
        let texts = missing.iter().map(|url| url.as_str()).collect::<Vec<_>>().join(",");
        let local = named(&local.iter().collect::<Vec<_>>());
        return Err(BootstrapError::NotInCluster { missing: texts, initial_cluster: local });
    }
    Ok(())
}

/// Describes the difference between two lists of URLs that are not equal.
fn difference(advertised: &[Url], local: &[Url]) -> String {
    let quoted = |urls: &[Url]| urls.iter().map(|url| quote(url.as_str())).collect::<Vec<_>>().join(" ");
    if advertised.len() != local.len() {
        return format!("len([{}]) != len([{}])", quoted(advertised), quoted(local));
    }
    let pair = advertised.iter().zip(local).find(|(a, b)| a != b);
    pair.map_or(String::new(), |(a, b)| {
        format!("resolved urls: {} != {}", quote(a.as_str()), quote(b.as_str()))
    })
}

fn print(urls_by_name: &BTreeMap<String, Vec<Url>>) -> String {
    let mut pairs: Vec<String> = urls_by_name
        .iter()
        .flat_map(|(name, urls)| urls.iter().map(move |url| format!("{name}={url}")))
        .collect();
    pairs.sort();
    pairs.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "a=http://a:1,b=http://b:1,w=http://w:1";

    fn of(name: &str, witness: &str) -> Result<Bootstrap, BootstrapError> {
        Bootstrap::of(name, &parse(CLUSTER)?, ("token", witness), None)
    }

    #[test]
    fn the_witness_comes_last_and_makes_another_cluster() {
        let without = of("a", "").expect("it fits together");
        for witness in ["a", "b", "w"] {
            let with = of("a", witness).expect("it fits together");
            let names: Vec<&str> = with.members.iter().map(|member| &*member.name).collect();
            assert_eq!(names.last(), Some(&witness));
            assert_eq!(with.members.iter().filter(|member| member.is_witness).count(), 1);
            assert_ne!(with.cluster_id, without.cluster_id, "members that disagree refuse each other");
            assert_eq!(of("b", witness).map(|other| other.cluster_id), Ok(with.cluster_id));
        }
        assert!(without.members.iter().all(|member| !member.is_witness));
        assert_eq!(of("a", "x"), Err(BootstrapError::NoWitnessName { name: "x".to_owned() }));
    }

    #[test]
    fn what_is_started_must_be_what_the_flag_names() {
        assert_eq!(check_witness("a", false, "w", 3), Ok(()));
        assert_eq!(check_witness("w", true, "w", 3), Ok(()));
        assert_eq!(check_witness("a", false, "", 1), Ok(()));
        let refused = |name, is_witness, witness, members| {
            check_witness(name, is_witness, witness, members).expect_err("refused")
        };
        assert!(refused("w", true, "", 3).contains("--initial-cluster-witness=w"));
        assert!(refused("w", false, "w", 3).contains("start it with `mainstay witness`"));
        assert!(refused("a", false, "w", 2).contains("needs two members with data"));
    }
}
