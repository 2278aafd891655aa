use std::ffi::OsString;

use mainstay_cli::completion::Tree;
use mainstay_cli::{Invocation, Table};

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
  help        Help about any command
  make-mirror Mirrors
  member      Members

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

fn script(shell: &str) -> String {
    Tree::of(&PROGRAM).script(shell.as_bytes(), "etcdctl").expect("there is one for each shell")
}

/// Runs the script in bash and returns its completions for a line.
fn completed(words: &[&str]) -> Vec<String> {
    let script = script("bash");
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
    let zsh = script("zsh");
    assert!(
        zsh.starts_with("#compdef etcdctl\n")
            && zsh.contains("'member add') follows=('--peer-urls:its URLs'")
    );
    let fish = script("fish");
    assert!(
        fish.contains("        case 'member'\n            printf '%s\\t%s\\n' 'add' 'Adds one' 'list' "),
        "{fish}"
    );
    assert!(fish.contains("'--limit' 'at most so many'"), "{fish}");
}

/// Splits a PowerShell script into words, operators and literals, with PowerShell's rules as far as the
/// script needs them, and asserts that brackets are balanced.
fn powershell_tokens(script: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut open = Vec::new();
    let mut rest = script.chars().peekable();
    while let Some(letter) = rest.next() {
        let mut token = letter.to_string();
        match letter {
            '#' => while rest.next_if(|next| *next != '\n').is_some() {},
            // A literal ends at a quote that is not doubled.
            '\'' => loop {
                let next = rest.next().expect("a literal text ends");
                assert_ne!(next, '\n', "a text over several lines: {token}");
                if next == '\'' && rest.next_if_eq(&'\'').is_none() {
                    tokens.push(token.split_off(0) + "'");
                    break;
                }
                assert!(!('\u{2018}'..='\u{201b}').contains(&next), "PowerShell takes {next} for a quote");
                token.push(next);
            },
            '"' => {
                token.extend(std::iter::from_fn(|| rest.next_if(|next| *next != '"')));
                assert_eq!(rest.next(), Some('"'), "{token}");
                tokens.push(token);
            }
            '(' | '{' | '[' => {
                open.push(letter);
                tokens.push(token);
            }
            ')' | '}' | ']' => {
                let opened = open.pop().expect("something to close");
                assert!(
                    ["()", "{}", "[]"].contains(&format!("{opened}{letter}").as_str()),
                    "{opened} {letter}"
                );
                tokens.push(token);
            }
            letter if letter.is_whitespace() => {}
            letter if letter.is_alphanumeric() || "$-_".contains(letter) => {
                let word = |next: &char| next.is_alphanumeric() || "-_.:".contains(*next);
                token.extend(std::iter::from_fn(|| rest.next_if(word)));
                tokens.push(token);
            }
            _ => tokens.push(token),
        }
    }
    assert_eq!(open, [], "brackets left open");
    tokens
}

#[test]
fn powershell_lists_every_command_and_quotes_every_text() {
    let script = script("powershell");
    let tokens = powershell_tokens(&script);
    let all = tokens.join(" ");
    assert!(
        all.starts_with("Register-ArgumentCompleter -Native -CommandName 'etcdctl' -ScriptBlock {"),
        "{all}"
    );
    assert!(
        all.contains("$paths = @ ( '' , 'get' , 'member' , 'member add' , 'member list' , 'make-mirror' )"),
        "{all}"
    );
    assert!(
        all.contains("'member' { & $command 'add' 'Adds one' & $command 'list' "),
        "each command says what follows it: {all}"
    );
    assert!(all.contains("& $flag '--limit' 'at most so many'"), "{all}");
    // Every branch of the switch ends, and each of its words has a description: PowerShell does not accept
    // empty ones.
    assert_eq!(
        tokens.iter().filter(|token| *token == "break").count(),
        6 + 1,
        "one for each path, and the loop's"
    );
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| *token == "&") {
        let [kind, word, about] = &tokens[at + 1..at + 4] else { panic!("{token} at the end") };
        assert!(kind == "$command" || kind == "$flag", "{kind}");
        assert!(word.starts_with('\'') && about.starts_with('\'') && about.len() > 2, "{word} {about}");
    }
}

#[test]
fn powershell_takes_any_text_of_a_table() {
    use mainstay_cli::completion::Word;
    let help = "it\u{2019}s a 'word' with $x, `y` and\nlines";
    let flags = vec![
        Word { name: "odd", short: Some('o'), takes_value: true, help },
        Word { name: "bare", short: None, takes_value: false, help: "" },
    ];
    let tree = Tree { name: "tool", about: "", flags, below: Vec::new() };
    let script = tree.script(b"powershell", "tool").expect("there is one");
    assert!(
        script.contains("& $flag '--odd' 'it\u{2019}\u{2019}s a ''word'' with $x, `y` and lines'\n"),
        "{script}"
    );
    assert!(script.contains("& $flag '--bare' 'bare'\n"), "{script}");
    assert!(script.contains("$valued = @('--odd', '-o')\n"), "{script}");
}
