use std::ffi::OsString;

use mainstay_cli::{Invocation, Table, completion};

use crate::parsing::PROGRAM;

fn help(line: &str) -> String {
    let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    match PROGRAM.parse(&args, []).unwrap() {
        Invocation::Help(text) => text,
        Invocation::Run(matches, ()) | Invocation::Group(matches) => panic!("{line} runs {:?}", matches.path),
    }
}

#[test]
fn help_of_a_command() {
    let expected = "\
Gets a key

Usage:
  etcdctl get [options] <key> [flags]

Flags:
  -h, --help           help for get
      --limit int      at most so many
      --order string   ASCEND or DESCEND
      --prefix         all that begin so
Use \"etcdctl options\" for a list of global command-line options (applies to all commands).
";
    assert_eq!(help("get --help"), expected);
    assert_eq!(help("get -h"), expected);
    assert_eq!(help("help get"), expected);
}

#[test]
fn help_of_the_tool() {
    let expected = "\
A client.

Usage:
  etcdctl [command]

Key-value commands
  get         Gets a key

Additional Commands:
  member      Members
  make-mirror Mirrors

Flags:
  -h, --help   help for etcdctl

Use \"etcdctl [command] --help\" for more information about a command.
Use \"etcdctl options\" for a list of global command-line options (applies to all commands).
";
    assert_eq!(help("--help"), expected);
    assert!(help("make-mirror -h").contains("\nExamples:\n  etcdctl make-mirror host:2379\n"));
}

#[test]
fn global_flags_in_one_column() {
    let expected = "      --dial-timeout duration   time for a connection (default 2s)
      --endpoints strings       gRPC endpoints (default [127.0.0.1:2379])
  -x, --hex                     bytes as hex
  -w, --write-out format        the output format (default \"simple\")
";
    assert_eq!(PROGRAM.global_flags(), expected);
}

#[test]
fn a_table_without_rows_has_no_rule_below_its_head() {
    assert_eq!(Table::new(["id"]).to_string(), "┌────┐\n│ ID │\n└────┘\n");
}

#[test]
fn tables_in_box_lines() {
    let mut table = Table::new(["ID", "is_learner"]);
    table.row(vec!["8e9e05c52164694d".to_owned(), "false".to_owned()]);
    let expected = "\
┌──────────────────┬────────────┐
│        ID        │ IS LEARNER │
├──────────────────┼────────────┤
│ 8e9e05c52164694d │      false │
└──────────────────┴────────────┘
";
    assert_eq!(table.to_string(), expected);
}

/// Runs the script in bash and completes a line.
fn completed(words: &[&str]) -> Vec<String> {
    let script = completion::bash(&PROGRAM, "etcdctl");
    let list = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let ask = format!(
        "{script}\nCOMP_WORDS=({list})\nCOMP_CWORD={}\n_etcdctl_complete\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.len() - 1
    );
    let output = std::process::Command::new("bash").arg("-c").arg(ask).output().expect("bash runs");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_flags() {
    assert_eq!(completed(&["etcdctl", "m"]), ["member", "make-mirror"]);
    assert_eq!(completed(&["etcdctl", "--endpoints", "a:1", "member", ""])[..2], ["add", "list"]);
    assert_eq!(completed(&["etcdctl", "get", "some-key", "--li"]), ["--limit"]);
    assert_eq!(completed(&["etcdctl", "get", "--w"]), ["--write-out"]);
}

#[test]
fn zsh_and_fish_list_every_command() {
    let zsh = completion::zsh(&PROGRAM, "etcdctl");
    assert!(
        zsh.starts_with("#compdef etcdctl\n")
            && zsh.contains("'member add') follows=('--peer-urls:its URLs'")
    );
    let fish = completion::fish(&PROGRAM, "etcdctl");
    assert!(fish.contains(
        "complete -c etcdctl -n '__fish_seen_subcommand_from get' -l limit -r -d 'at most so many'\n"
    ));
    assert!(fish.contains("and not __fish_seen_subcommand_from add list' -a add -d 'Adds one'\n"));
}
