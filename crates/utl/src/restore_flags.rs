//! Flags that say what a restore makes: `snapshot restore` has them for a snapshot, and `backup restore` for a moment of
//! a backup.

use std::path::PathBuf;

use cli::{Failure, Flag, Matches};

use crate::cluster::ClusterOptions;

/// Number by which the revision is raised.
pub const BUMP_REVISION: Flag<u64> =
    Flag::uint("bump-revision", "0", "How much to increase the latest revision after restore");
/// The data directory.
pub const DATA_DIR: Flag<String> = Flag::text("data-dir", "", "Path to the output data directory");
/// The program that will serve the directory.
pub const FORMAT: Flag<String> =
    Flag::text("format", "mainstay", "Program that will serve the data directory (mainstay, etcd)");
/// Peer URLs of the member.
pub const INITIAL_ADVERTISE_PEER_URLS: Flag<String> = Flag::text(
    "initial-advertise-peer-urls",
    "http://localhost:2380",
    "List of this member's peer URLs to advertise to the rest of the cluster",
);
/// The members of the new cluster.
pub const INITIAL_CLUSTER: Flag<String> = Flag::text(
    "initial-cluster",
    "default=http://localhost:2380",
    "Initial cluster configuration for restore bootstrap",
);
/// Token from which ids are computed.
pub const INITIAL_CLUSTER_TOKEN: Flag<String> = Flag::text(
    "initial-cluster-token",
    "etcd-cluster",
    "Initial cluster token for the etcd cluster during restore bootstrap",
);
/// Marks the raised revision as compacted.
pub const MARK_COMPACTED: Flag<bool> = Flag::bool(
    "mark-compacted",
    "Mark the latest revision after restore as the point of scheduled compaction (required if --bump-revision > 0, disallowed otherwise)",
);
/// Name of the member.
pub const NAME: Flag<String> = Flag::text("name", "default", "Human-readable name for this member");
/// Leaves out users, roles and authentication.
pub const WITHOUT_USERS: Flag<bool> = Flag::bool(
    "without-users",
    "Leave out users, roles and authentication: everyone can then read and write (only with --format mainstay)",
);

/// The values of these flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreFlags {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The cluster that the restored members will form.
    pub cluster: ClusterOptions,
    /// True if etcd will serve the directory, false if Mainstay will.
    pub for_etcd: bool,
    /// Number by which the revision is raised; `None` if it is not raised.
    pub bump: Option<u64>,
    /// True if users, roles and authentication are left out.
    pub without_users: bool,
}

impl RestoreFlags {
    /// Reads the flags.
    ///
    /// # Errors
    ///
    /// Returns an error if they contradict each other.
    pub fn read(given: &Matches) -> Result<RestoreFlags, Failure> {
        let (bump, compacted) = (given.get(BUMP_REVISION), given.get(MARK_COMPACTED));
        if (bump > 0) != compacted {
            return Err(Failure::bad_args("--mark-compacted required if --revision-bump > 0"));
        }
        let for_etcd = match given.get(FORMAT) {
            "mainstay" => false,
            "etcd" => true,
            other => {
                let other = cli::go::quote(other);
                return Err(Failure::bad_args(format!("--format is mainstay or etcd, not {other}")));
            }
        };
        let without_users = given.get(WITHOUT_USERS);
        if without_users && for_etcd {
            return Err(Failure::bad_args("--without-users requires --format mainstay"));
        }
        Ok(RestoreFlags {
            data_dir: match given.get(DATA_DIR) {
                "" => PathBuf::from(format!("{}.etcd", given.get(NAME))),
                dir => PathBuf::from(dir),
            },
            cluster: ClusterOptions {
                name: given.get(NAME).to_owned(),
                initial_cluster: given.get(INITIAL_CLUSTER).to_owned(),
                token: given.get(INITIAL_CLUSTER_TOKEN).to_owned(),
                advertised: given.get(INITIAL_ADVERTISE_PEER_URLS).to_owned(),
            },
            for_etcd,
            bump: (bump > 0).then_some(bump),
            without_users,
        })
    }
}
