//! Determines the identity of a member without data, which either forms a new cluster with others, or joins a
//! cluster that already lists it as a member.
//!
//! Checks and error messages are etcd's (`bootstrapNewClusterNoWAL`, `bootstrapExistingClusterNoWAL`).

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use api::raftpb;
use consensus::{Entry, EntryKind};
use machine::Member;
use numbers::{Index, Term};
use prost::Message as _;

use config::{Bootstrap, Config, InitialClusterState, Refusal};
use replica::cluster_version::{Minor, minor};
use replica::other_members::{is_being_downgraded, member_at, members_of, version_of};
use storage::Identity;
use storage::beginning::{Beginning, texts};
use telemetry::logging::{Logger, Value};
use tls::ClientTls;

/// Time to wait for the answer of each member when joining.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait for the answer of each member when forming a cluster. It is short, because the other members
/// are possibly not started yet.
const BOOTSTRAPPED_TIMEOUT: Duration = Duration::from_secs(1);

/// Reason why a member without data cannot start. The messages are etcd's where etcd has one.
#[derive(Debug)]
pub enum JoinError {
    /// The options contradict each other.
    Options(Refusal),
    /// The cluster reports that this member has run before. With an empty data directory the member has
    /// forgotten its votes, so it might vote twice in a term.
    Bootstrapped {
        /// Id of this member.
        member_id: u64,
    },
    /// None of the other members answers.
    NoAnswer,
    /// The cluster does not have as many members as the options name.
    MemberCount {
        /// All peer URLs that the cluster knows.
        existing: Vec<String>,
    },
    /// The cluster has no member with these peer URLs.
    Unmatched {
        /// The peer URLs of the member that the options name.
        wanted: Vec<String>,
        /// All peer URLs that the cluster knows.
        existing: Vec<String>,
    },
    /// The options do not name this member itself.
    UnknownName {
        /// The name of this member.
        name: String,
    },
    /// The cluster has this member as a witness, and it was started as a member with data, or the other way round.
    OtherKind {
        /// The name of this member.
        name: String,
        /// True if the cluster has it as a witness.
        is_witness: bool,
    },
    /// A witness without data has run before. It has forgotten its votes, and the terms of entries.
    WitnessLost {
        /// Id of the witness.
        member_id: u64,
    },
    /// A witness without data was started before the members.
    WitnessFirst,
    /// None of an observer's feeders answers.
    NoFeeder,
    /// The mark of an observer's directory cannot be written or read. Contains the reason.
    Mark(String),
    /// The cluster runs at a version that this member does not support.
    Incompatible {
        /// The version of the cluster.
        cluster_version: String,
        /// The release that this member presents.
        own: &'static str,
    },
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Options(refusal) => refusal.fmt(f),
            JoinError::Bootstrapped { member_id } => {
                write!(f, "member {member_id:x} has already been bootstrapped")
            }
            JoinError::NoAnswer => f.write_str(
                "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs",
            ),
            JoinError::Mark(reason) => f.write_str(reason),
            JoinError::NoFeeder => f.write_str(
                "no feeder answers: --feed needs the peer URL of a running member or observer (see the warnings above)",
            ),
            JoinError::MemberCount { existing } => {
                write!(f, "error validating peerURLs {existing:?}: member count is unequal")
            }
            JoinError::Unmatched { wanted, existing } => write!(
                f,
                "error validating peerURLs {wanted:?}: unmatched member while checking PeerURLs ({existing:?})"
            ),
            JoinError::UnknownName { name } => {
                write!(f, "the cluster has no member named {name:?}")
            }
            JoinError::WitnessLost { member_id } => write!(
                f,
                "witness {member_id:x} has run before, and its directory is empty: it has forgotten its votes, so it must not \
                 come back as itself; remove it (`mainstay ctl member remove {member_id:x}`), and add it again with \
                 `mainstay ctl member add --witness`"
            ),
            JoinError::WitnessFirst => f.write_str(
                "no member answers that could say whether this witness has run before: start the members first, which form \
                 the cluster without it",
            ),
            JoinError::OtherKind { name, is_witness: true } => write!(
                f,
                "the cluster has {name:?} as a witness, which keeps no keys: start it with `mainstay witness`"
            ),
            JoinError::OtherKind { name, is_witness: false } => write!(
                f,
                "the cluster has {name:?} as a member with data: start it without `witness`, or remove it and add it again \
                 with `mainstay ctl member add --witness`"
            ),
            JoinError::Incompatible { cluster_version, own } => write!(
                f,
                "incompatible with current running cluster: it is at version {cluster_version}, this member at {own}"
            ),
        }
    }
}

impl std::error::Error for JoinError {}

/// Determines the identity of this member. `tls` is used for other members at `https` URLs.
///
/// # Errors
///
/// Returns an error for the reasons that [`JoinError`] lists.
pub fn begin(config: &Config, tls: Option<&ClientTls>, logger: &Logger) -> Result<Beginning, JoinError> {
    let bootstrap = config.bootstrap().map_err(JoinError::Options)?;
    match config.cluster.initial_cluster_state {
        InitialClusterState::New => form(&bootstrap, tls, logger),
        InitialClusterState::Existing => join(config, &bootstrap, tls, logger),
    }
}

/// Returns the peer URLs of all members but this one.
fn others(bootstrap: &Bootstrap) -> Vec<String> {
    let others = bootstrap.members.iter().filter(|member| member.id != bootstrap.local_id);
    others.flat_map(|member| texts(&member.peer_urls)).collect()
}

fn form(bootstrap: &Bootstrap, tls: Option<&ClientTls>, logger: &Logger) -> Result<Beginning, JoinError> {
    // The other members are asked whether this member has run before. If it had, and now returned with an
    // empty directory, it could vote twice in the same raft term.
    let is_witness =
        bootstrap.members.iter().any(|member| member.id == bootstrap.local_id && member.is_witness);
    let mut answered = false;
    for url in others(bootstrap) {
        let members = match members_of(&url, BOOTSTRAPPED_TIMEOUT, tls) {
            Ok((_, members)) => members,
            // As in etcd, a member that does not answer is skipped. If no other member answers, this member
            // counts as new.
            Err(error) => {
                let text = "cannot ask another member whether this member has been in the cluster before";
                logger.warn(text, &[("address", Value::Str(&url)), ("error", Value::Display(&error))]);
                continue;
            }
        };
        answered = true;
        if has_run(&members, bootstrap.local_id) {
            return Err(match is_witness {
                true => JoinError::WitnessLost { member_id: bootstrap.local_id },
                false => JoinError::Bootstrapped { member_id: bootstrap.local_id },
            });
        }
        if !is_witness {
            break;
        }
    }
    if is_witness && !answered {
        // The members form the cluster without it, and know whether it has run before.
        return Err(JoinError::WitnessFirst);
    }
    Ok(first_of(bootstrap))
}

/// Returns true if the member with this id has run before: it has published its client URLs.
fn has_run(members: &[Member], id: u64) -> bool {
    members.iter().any(|member| member.id == id && !member.client_urls.is_empty())
}

/// Returns the identity and first entries of a member that forms a cluster with the members of its
/// configuration, without asking any of them.
///
/// # Errors
///
/// Returns an error if the options contradict each other.
pub fn form_alone(config: &Config) -> Result<Beginning, JoinError> {
    Ok(first_of(&config.bootstrap().map_err(JoinError::Options)?))
}

/// Returns the identity and first entries of a cluster of these members.
fn first_of(bootstrap: &Bootstrap) -> Beginning {
    let entries = bootstrap
        .members
        .iter()
        .zip(1..)
        .map(|(member, index)| {
            let context = Member {
                id: member.id,
                peer_urls: texts(&member.peer_urls),
                name: member.name.clone(),
                is_witness: member.is_witness,
                ..Member::default()
            };
            let change = raftpb::ConfChange {
                id: None,
                r#type: Some(raftpb::ConfChangeType::ConfChangeAddNode as i32),
                node_id: Some(member.id),
                context: Some(context.to_json().into()),
            };
            Entry {
                term: Term(1),
                index: Index(index),
                kind: EntryKind::ConfChange,
                data: change.encode_to_vec().into(),
            }
        })
        .collect();
    let remotes = bootstrap
        .members
        .iter()
        .filter(|member| member.id != bootstrap.local_id)
        .map(|member| (member.id, texts(&member.peer_urls)))
        .collect();
    let identity = Identity { member_id: bootstrap.local_id, cluster_id: bootstrap.cluster_id };
    Beginning { identity, entries, remotes }
}

fn join(
    config: &Config,
    bootstrap: &Bootstrap,
    tls: Option<&ClientTls>,
    logger: &Logger,
) -> Result<Beginning, JoinError> {
    let urls = others(bootstrap);
    let mut found = None;
    for url in &urls {
        match members_of(url, FETCH_TIMEOUT, tls) {
            Ok(cluster) => {
                found = Some(cluster);
                break;
            }
            Err(error) => {
                logger.warn(
                    "failed to get cluster response",
                    &[("address", Value::Str(url)), ("error", Value::Str(&error.to_string()))],
                );
            }
        }
    }
    let Some((cluster_id, existing)) = found else {
        return Err(JoinError::NoAnswer);
    };
    let Some(member_id) = own_id(bootstrap, &existing)? else {
        return Err(JoinError::UnknownName { name: config.name.clone() });
    };
    let recorded = existing.iter().any(|member| member.id == member_id && member.is_witness);
    if recorded && has_run(&existing, member_id) {
        return Err(JoinError::WitnessLost { member_id });
    }
    if recorded != config.is_witness {
        return Err(JoinError::OtherKind { name: config.name.clone(), is_witness: recorded });
    }
    for url in &urls {
        check_version(url, config.api_version, tls, logger)?;
    }
    let remotes = existing
        .iter()
        .filter(|member| member.id != member_id)
        .map(|member| (member.id, member.peer_urls.clone()))
        .collect();
    Ok(Beginning { identity: Identity { member_id, cluster_id }, entries: Vec::new(), remotes })
}

/// Returns the id by which the cluster of these members knows this member; `None` if the options do not name
/// this member.
///
/// # Errors
///
/// Returns an error if the options do not name exactly the members of the cluster.
fn own_id(bootstrap: &Bootstrap, existing: &[Member]) -> Result<Option<u64>, JoinError> {
    let urls = || existing.iter().flat_map(|member| member.peer_urls.iter().cloned()).collect();
    if existing.len() != bootstrap.members.len() {
        return Err(JoinError::MemberCount { existing: urls() });
    }
    let (mut own, mut matched) = (None, BTreeSet::new());
    for member in &bootstrap.members {
        let wanted = texts(&member.peer_urls);
        // Each member of the cluster may be matched only once: if the options name one member twice, they
        // leave out another member, which may be this one.
        let known =
            member_at(existing, |known| &known.peer_urls, &wanted).filter(|known| matched.insert(known.id));
        let Some(known) = known else {
            return Err(JoinError::Unmatched { wanted, existing: urls() });
        };
        if member.id == bootstrap.local_id {
            own = Some(known.id);
        }
    }
    Ok(own)
}

/// Returns an error if the cluster runs at a version that this member does not support: one before 3.0, or
/// one above this member's, except during a downgrade of the cluster to this member's.
pub(crate) fn check_version(
    url: &str,
    own: &'static str,
    tls: Option<&ClientTls>,
    logger: &Logger,
) -> Result<(), JoinError> {
    // A member that does not answer gives no information about the cluster's version, so this check passes.
    let cluster = match version_of(url, FETCH_TIMEOUT, tls) {
        Ok((_, cluster)) => cluster,
        Err(error) => {
            let fields = [("address", Value::Str(url)), ("error", Value::Display(&error))];
            logger.warn("failed to get version", &fields);
            return Ok(());
        }
    };
    if cluster == "not_decided" {
        return Ok(());
    }
    match (minor(&cluster), minor(own)) {
        (Some(theirs), Some(this)) if Minor(3, 0) <= theirs && theirs <= this => Ok(()),
        // A cluster that is being downgraded accepts members of the release before.
        (Some(theirs), Some(this))
            if theirs.before() == Some(this) && is_being_downgraded(url, FETCH_TIMEOUT, tls) =>
        {
            Ok(())
        }
        _ => Err(JoinError::Incompatible { cluster_version: cluster, own }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use config::Url;

    use super::*;

    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<u8>>>);

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("is whole").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// If another member that might know of this member's earlier run cannot be asked, the log names it.
    #[test]
    fn a_member_that_cannot_be_asked_is_named_in_the_log() {
        use telemetry::logging::{Format, Level};
        let told = Told::default();
        let logger = Logger::to(Level::Info, Format::Json, vec![Box::new(told.clone())]);
        // This member has no TLS settings, so it cannot ask a member at an `https` URL.
        let cluster = "a=http://127.0.0.1:2380,b=https://127.0.0.1:2381";
        let own = [Url::parse("http://127.0.0.1:2380").expect("is a URL")];
        let bootstrap = Bootstrap::form("a", cluster, "token", &own).expect("it fits together");
        let beginning = form(&bootstrap, None, &logger).expect("as in etcd, it begins");
        assert_eq!(beginning.entries.len(), 2);
        let told = String::from_utf8(told.0.lock().expect("is whole").clone()).expect("is text");
        assert!(told.contains("https://127.0.0.1:2381") && told.contains("no TLS settings"), "{told}");
    }

    #[test]
    fn a_member_that_the_options_name_twice_is_not_taken_for_another_one() {
        let own = [Url::parse("http://localhost:2381").expect("is a URL")];
        let own_id = |cluster: &str, existing: [&str; 2]| {
            let bootstrap = Bootstrap::form("b", cluster, "token", &own).expect("it fits together");
            let member =
                |(id, url): (u64, &str)| Member { id, peer_urls: vec![url.to_owned()], ..Member::default() };
            let existing: Vec<Member> = (1..).zip(existing).map(member).collect();
            super::own_id(&bootstrap, &existing)
        };
        let existing = ["http://127.0.0.1:2380", "http://127.0.0.1:2381"];
        let both = "a=http://127.0.0.1:2380,b=http://localhost:2381";
        assert!(matches!(own_id(both, existing), Ok(Some(2))));
        let one_twice = "a=http://127.0.0.1:2381,b=http://localhost:2381";
        assert!(matches!(own_id(one_twice, existing), Err(JoinError::Unmatched { .. })));
    }
}
