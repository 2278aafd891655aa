//! `mainstay completion`: prints scripts that let a shell complete the commands and flags of a member and of
//! all tools.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use cli::completion::{SHELLS, Tree, Word};

/// Prints the completion script for the shell that the argument names.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let script = match arguments {
        [shell] => tree().script(shell.as_encoded_bytes(), "mainstay"),
        _ => None,
    };
    let Some(script) = script else {
        eprintln!("completion takes one of {}", SHELLS.join(", "));
        return ExitCode::from(2);
    };
    print(&script)
}

/// Prints the text to standard output.
pub fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the flags and commands that can follow `mainstay`: the flags of a member, and each tool with its
/// commands.
pub fn tree() -> Tree {
    let endpoints =
        Word { name: "endpoints", short: None, takes_value: true, help: "other members of the cluster" };
    let named = |tree: Tree, name: &'static str, about: &'static str| Tree { name, about, ..tree };
    let ctl = Tree::of(&ctl::commands::PROGRAM);
    let [doctor, mut check] = doctor::completion();
    // Add the checks of etcdctl, because `mainstay check perf` and `mainstay check datascale` run them.
    check.below.extend(
        ctl.below
            .iter()
            .find(|below| below.name == "check")
            .into_iter()
            .flat_map(|check| check.below.clone()),
    );
    let mut below = vec![
        Tree { name: "server", about: "Run a member", flags: server_flags(), below: Vec::new() },
        Tree {
            name: "observer",
            about: "Run an observer, which follows the log of a cluster",
            flags: server_flags(),
            below: Vec::new(),
        },
        Tree {
            name: "witness",
            about: "Run a witness, a third vote without keys",
            flags: server_flags(),
            below: Vec::new(),
        },
        Tree::of(&shadow::PROGRAM),
        Tree::of(&backup::command::PROGRAM),
        Tree {
            name: "rebuild",
            about: "Restore a damaged or lost member from the others",
            flags: server_flags().into_iter().chain([endpoints]).collect(),
            below: Vec::new(),
        },
        Tree::of(&utl::recover::PROGRAM),
        named(ctl, "ctl", "etcdctl"),
        named(with_backups(Tree::of(&utl::PROGRAM)), "utl", "etcdutl"),
        named(Tree::of(&bench::PROGRAM), "bench", "etcd's benchmark, with fixed rates and comparisons"),
        doctor,
        check,
        Tree::of(&console::PROGRAM),
    ];
    below.extend(Tree::of(&proxy::GATEWAY).below);
    below.extend(Tree::of(&proxy::GRPC_PROXY).below);
    let flags = Vec::new();
    below.push(Tree {
        name: "completion",
        about: "Generate completion script",
        flags,
        below: SHELLS.map(shell).into(),
    });
    below.push(Tree { name: "man", about: "Print a manual page", ..Tree::default() });
    let commands =
        below.iter().map(|command| Tree { name: command.name, about: command.about, ..Tree::default() });
    let commands = commands.collect();
    below.push(Tree {
        name: "help",
        about: "Print the help of a command",
        flags: Vec::new(),
        below: commands,
    });
    below.push(Tree { name: "version", about: "Print the version", ..Tree::default() });
    Tree { name: "mainstay", about: "", flags: server_flags(), below }
}

/// Adds what `utl snapshot` does with a backup: the flags of `restore`, and `diff`.
fn with_backups(mut utl: Tree) -> Tree {
    let of_backup = Tree::of(&backup::command::PROGRAM).below;
    for snapshot in utl.below.iter_mut().filter(|below| below.name == "snapshot") {
        for tree in of_backup.iter().filter(|tree| matches!(tree.name, "restore" | "diff")) {
            match snapshot.below.iter_mut().find(|below| below.name == tree.name) {
                None => snapshot.below.push(tree.clone()),
                Some(there) => {
                    let is_new = |word: &&Word| there.flags.iter().all(|flag| flag.name != word.name);
                    let more: Vec<Word> = tree.flags.iter().filter(is_new).copied().collect();
                    there.flags.extend(more);
                }
            }
        }
    }
    utl
}

fn shell(name: &'static str) -> Tree {
    Tree { name, about: name, ..Tree::default() }
}

/// Returns the flags of a member, without obsolete flags and flags that are not supported.
fn server_flags() -> Vec<Word> {
    let shown = config::table::FLAGS.iter().filter(|flag| {
        flag.group != config::flag::Group::Legacy && !matches!(flag.status, config::flag::Status::NotYet(_))
    });
    shown
        .map(|flag| Word {
            name: flag.name,
            short: None,
            takes_value: !flag.kind.is_switch(),
            help: flag.help,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_and_flag_is_there_once() {
        let tree = super::tree();
        let names: Vec<&str> = tree.below.iter().map(|below| below.name).collect();
        assert_eq!(
            names,
            [
                "server",
                "observer",
                "witness",
                "shadow",
                "backup",
                "rebuild",
                "recover",
                "ctl",
                "utl",
                "bench",
                "doctor",
                "check",
                "console",
                "gateway",
                "grpc-proxy",
                "completion",
                "man",
                "help",
                "version"
            ]
        );
        let mut commands = super::super::COMMANDS.to_vec();
        commands.sort_unstable();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, commands, "each command that there is");
        let check = tree.below.iter().find(|below| below.name == "check").expect("it is there");
        let checks: Vec<&str> = check.below.iter().map(|below| below.name).collect();
        assert_eq!(checks, ["disk", "network", "datascale", "perf"]);
        assert!(tree.flags.iter().any(|flag| flag.name == "listen-client-urls" && flag.takes_value));
        assert!(tree.flags.iter().any(|flag| flag.name == "auto-tls" && !flag.takes_value));
        for shell in cli::completion::SHELLS {
            let script = tree.script(shell.as_bytes(), "mainstay").expect("there is one for each");
            for word in ["listen-client-urls", "grant-permission", "lease-keepalive", "retry-delay"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
