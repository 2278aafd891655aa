//! The commands on members and their storage.

use cli::{Command, Flag};

const MAINTENANCE: &str = "Cluster maintenance commands";
pub(super) const MEMBER: Command = Command {
    name: "member",
    usage: "member <subcommand>",
    about: "Membership related commands. Use `etcdctl member --help` to see subcommands",
    long: "Membership related commands",
    example: "  etcdctl member list -w table",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <memberName> [options]",
            about: "Adds a member into the cluster",
            example: "  # As a learner first: it catches up before it votes\n  \
                      etcdctl member add m4 --peer-urls=https://10.0.0.4:2380 --learner",
            flags: &[
                Flag::text("peer-urls", "", "comma separated peer URLs for the new member."),
                Flag::bool("learner", "indicates if the new member is raft learner"),
            ],
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all members in the cluster",
            long: "When --write-out is set to simple, this command prints out comma-separated member lists for each \
                   endpoint.\nThe items in the lists are ID, Status, Name, Peer Addrs, Client Addrs, Is Learner.\n",
            example: "  etcdctl member list -w table",
            flags: &[Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)")],
            ..Command::EMPTY
        },
        Command {
            name: "promote",
            usage: "promote <memberID>",
            about: "Promotes a non-voting member in the cluster",
            long: "Promotes a non-voting learner member to a voting one in the cluster.\n",
            example: "  etcdctl member promote 9fbd8925a5a7ae4c",
            ..Command::EMPTY
        },
        Command {
            name: "remove",
            usage: "remove <memberID>",
            about: "Removes a member from the cluster",
            example: "  etcdctl member remove 9fbd8925a5a7ae4c",
            ..Command::EMPTY
        },
        Command {
            name: "update",
            usage: "update <memberID> [options]",
            about: "Updates a member in the cluster",
            example: "  etcdctl member update 9fbd8925a5a7ae4c --peer-urls=https://10.0.0.5:2380",
            flags: &[Flag::text("peer-urls", "", "comma separated peer URLs for the updated member.")],
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const CLUSTER: Flag = Flag::bool("cluster", "use all endpoints from the cluster member list");

pub(super) const ENDPOINT: Command = Command {
    name: "endpoint",
    usage: "endpoint <subcommand>",
    about: "Endpoint related commands. Use `etcdctl endpoint --help` to see subcommands",
    long: "Endpoint related commands",
    example: "  etcdctl endpoint status --cluster -w table",
    flags: &[CLUSTER],
    subcommands: &[
        Command {
            name: "hashkv",
            usage: "hashkv",
            about: "Prints the KV history hash for each endpoint in --endpoints",
            example: "  # Equal numbers: the members hold the same history\n  etcdctl endpoint hashkv --cluster",
            flags: &[CLUSTER, Flag::int("rev", "0", "maximum revision to hash (default: latest revision)")],
            ..Command::EMPTY
        },
        Command {
            name: "health",
            usage: "health",
            about: "Checks the healthiness of endpoints specified in `--endpoints` flag",
            example: "  etcdctl endpoint health --cluster",
            flags: &[CLUSTER],
            ..Command::EMPTY
        },
        Command {
            name: "status",
            usage: "status",
            about: "Prints out the status of endpoints specified in `--endpoints` flag",
            long: "When --write-out is set to simple, this command prints out comma-separated status lists for each \
                   endpoint.\nThe items in the lists are endpoint, ID, version, db size, is leader, is learner, raft \
                   term, raft index, raft applied index, errors.\n",
            example: "  etcdctl endpoint status --cluster -w table",
            flags: &[CLUSTER],
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

pub(super) const ALARM: Command = Command {
    name: "alarm",
    usage: "alarm <subcommand>",
    about: "Alarm related commands. Use `etcdctl alarm --help` to see subcommands",
    long: "Alarm related commands",
    example: "  etcdctl alarm list",
    subcommands: &[
        Command {
            name: "disarm",
            usage: "disarm",
            about: "Disarms all alarms",
            example: "  # After making room\n  etcdctl alarm disarm",
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all alarms",
            example: "  etcdctl alarm list",
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

pub(super) const DEFRAG: Command = Command {
    name: "defrag",
    usage: "defrag",
    about: "Defragments the storage of the etcd members with given endpoints",
    example: "  etcdctl defrag --cluster",
    flags: &[CLUSTER],
    group: MAINTENANCE,
    ..Command::EMPTY
};

const SNAPSHOT_EXAMPLE: &str = "  # Save snapshot to a given file\n  etcdctl snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address and save it to file\n  \
etcdctl snapshot save --endpoints=127.0.0.1:3000 /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address with certificates\n  \
etcdctl --endpoints=https://127.0.0.1:2379 --cacert=/etc/etcd/ca.crt --cert=/etc/etcd/etcd.crt \
--key=/etc/etcd/etcd.key snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot with certain user and password\n  \
etcdctl --user=root --password=password123 snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address with timeout\n  \
etcdctl --endpoints=https://127.0.0.1:2379 --dial-timeout=20s snapshot save /backup/etcd-snapshot.db\n  \n  \
# Save snapshot with desirable time format\n  \
etcdctl snapshot save /mnt/backup/etcd/backup_$(date +%Y%m%d_%H%M%S).db";

pub(super) const SNAPSHOT: Command = Command {
    name: "snapshot",
    usage: "snapshot <subcommand>",
    about: "Manages etcd node snapshots",
    example: SNAPSHOT_EXAMPLE,
    subcommands: &[Command {
        name: "save",
        usage: "save <filename>",
        about: "Stores an etcd node backend snapshot to a given file",
        example: SNAPSHOT_EXAMPLE,
        ..Command::EMPTY
    }],
    group: MAINTENANCE,
    ..Command::EMPTY
};

pub(super) const MOVE_LEADER: Command = Command {
    name: "move-leader",
    usage: "move-leader <transferee-member-id>",
    about: "Transfers leadership to another etcd cluster member.",
    example: "  etcdctl --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 move-leader c89feb932daef420",
    group: MAINTENANCE,
    ..Command::EMPTY
};

pub(super) const DOWNGRADE: Command = Command {
    name: "downgrade",
    usage: "downgrade <TARGET_VERSION>",
    about: "Downgrade related commands. Use `etcdctl downgrade --help` to see subcommands",
    long: "Downgrade related commands",
    example: "  etcdctl downgrade validate 3.6",
    subcommands: &[
        Command {
            name: "cancel",
            usage: "cancel",
            about: "Cancel the ongoing downgrade action to cluster",
            example: "  etcdctl downgrade cancel",
            ..Command::EMPTY
        },
        Command {
            name: "enable",
            usage: "enable <TARGET_VERSION>",
            about: "Start a downgrade action to cluster",
            example: "  etcdctl downgrade enable 3.6",
            ..Command::EMPTY
        },
        Command {
            name: "validate",
            usage: "validate <TARGET_VERSION>",
            about: "Validate downgrade capability before starting downgrade",
            example: "  etcdctl downgrade validate 3.6",
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};
