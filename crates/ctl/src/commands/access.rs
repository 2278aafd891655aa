//! The commands on locks, elections, users and roles.

use cli::{Command, Flag};

const CONCURRENCY: &str = "Concurrency commands";
const AUTHENTICATION: &str = "Authentication commands";
pub(super) const LOCK: Command = Command {
    name: "lock",
    usage: "lock <lockname> [exec-command arg1 arg2 ...]",
    about: "Acquires a named lock",
    example: "  # Hold it until interrupted\n  etcdctl lock backup\n\n  # Hold it while a program runs\n  \
              etcdctl lock backup -- sh -c 'echo $ETCD_LOCK_KEY'",
    flags: &[Flag::int("ttl", "10", "timeout for session")],
    group: CONCURRENCY,
    ..Command::EMPTY
};

pub(super) const ELECT: Command = Command {
    name: "elect",
    usage: "elect <election-name> [proposal]",
    about: "Observes and participates in leader election",
    example: "  # Lead until interrupted\n  etcdctl elect scheduler host-1\n\n  # See who leads\n  \
              etcdctl elect -l scheduler",
    flags: &[Flag::bool("listen", "observation mode").short('l')],
    group: CONCURRENCY,
    ..Command::EMPTY
};

pub(super) const AUTH: Command = Command {
    name: "auth",
    usage: "auth <enable or disable>",
    about: "Enable or disable authentication. Use `etcdctl auth --help` to see subcommands",
    long: "Enable or disable authentication",
    example: "  etcdctl user add root && etcdctl auth enable",
    subcommands: &[
        Command {
            name: "disable",
            usage: "disable",
            about: "Disables authentication",
            example: "  etcdctl --user=root auth disable",
            ..Command::EMPTY
        },
        Command {
            name: "enable",
            usage: "enable",
            about: "Enables authentication",
            example: "  etcdctl user add root && etcdctl auth enable",
            ..Command::EMPTY
        },
        Command {
            name: "status",
            usage: "status",
            about: "Returns authentication status",
            example: "  etcdctl auth status",
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};

pub(super) const USER: Command = Command {
    name: "user",
    usage: "user <subcommand>",
    about: "User related commands. Use `etcdctl user --help` to see subcommands",
    long: "User related commands",
    example: "  etcdctl user add alice",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <user name or user:password> [options]",
            about: "Adds a new user",
            example: "  # Asks for the password\n  etcdctl user add alice\n\n  # Reads it\n  \
                      etcdctl user add alice --interactive=false < password.txt",
            flags: &[
                Flag::on("interactive", "Read password from stdin instead of interactive terminal"),
                Flag::text("new-user-password", "", "Supply password from the command line flag"),
                Flag::bool("no-password", "Create a user without password (CN based auth only)"),
            ],
            ..Command::EMPTY
        },
        Command {
            name: "delete",
            usage: "delete <user name>",
            about: "Deletes a user",
            example: "  etcdctl user delete alice",
            ..Command::EMPTY
        },
        Command {
            name: "get",
            usage: "get <user name> [options]",
            about: "Gets detailed information of a user",
            example: "  etcdctl user get alice --detail",
            flags: &[Flag::bool("detail", "Show permissions of roles granted to the user")],
            ..Command::EMPTY
        },
        Command {
            name: "grant-role",
            usage: "grant-role <user name> <role name>",
            about: "Grants a role to a user",
            example: "  etcdctl user grant-role alice readers",
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all users",
            example: "  etcdctl user list",
            ..Command::EMPTY
        },
        Command {
            name: "passwd",
            usage: "passwd <user name> [options]",
            about: "Changes password of user",
            example: "  etcdctl user passwd alice",
            flags: &[Flag::on(
                "interactive",
                "If true, read password from stdin instead of interactive terminal",
            )],
            ..Command::EMPTY
        },
        Command {
            name: "revoke-role",
            usage: "revoke-role <user name> <role name>",
            about: "Revokes a role from a user",
            example: "  etcdctl user revoke-role alice readers",
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};

pub(super) const ROLE: Command = Command {
    name: "role",
    usage: "role <subcommand>",
    about: "Role related commands. Use `etcdctl role --help` to see subcommands",
    long: "Role related commands",
    example: "  etcdctl role add readers && etcdctl role grant-permission --prefix readers read /public/",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <role name>",
            about: "Adds a new role",
            example: "  etcdctl role add readers",
            ..Command::EMPTY
        },
        Command {
            name: "delete",
            usage: "delete <role name>",
            about: "Deletes a role",
            example: "  etcdctl role delete readers",
            ..Command::EMPTY
        },
        Command {
            name: "get",
            usage: "get <role name>",
            about: "Gets detailed information of a role",
            example: "  etcdctl role get readers",
            ..Command::EMPTY
        },
        Command {
            name: "grant-permission",
            usage: "grant-permission [options] <role name> <permission type> <key> [endkey]",
            about: "Grants a key to a role",
            example: "  etcdctl role grant-permission --prefix readers read /public/",
            flags: &[
                Flag::bool("prefix", "grant a prefix permission"),
                Flag::bool(
                    "from-key",
                    "grant a permission of keys that are greater than or equal to the given key using byte compare",
                ),
            ],
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all roles",
            example: "  etcdctl role list",
            ..Command::EMPTY
        },
        Command {
            name: "revoke-permission",
            usage: "revoke-permission <role name> <key> [endkey]",
            about: "Revokes a key from a role",
            example: "  etcdctl role revoke-permission --prefix readers /public/",
            flags: &[
                Flag::bool("prefix", "revoke a prefix permission"),
                Flag::bool(
                    "from-key",
                    "revoke a permission of keys that are greater than or equal to the given key using byte compare",
                ),
            ],
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};
