//! Generates scripts with which a shell completes commands and flags of a tool. Each script contains all
//! commands and flags, so the shell does not run the tool to complete a word.

use crate::command::{Command, Program};
use crate::flag::{FlagRow, Kind};
use crate::help::line_of;

/// Shells for which scripts can be generated.
pub const SHELLS: [&str; 4] = ["bash", "zsh", "fish", "powershell"];

/// A flag in a completion script.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Name of the flag without dashes.
    pub name: &'static str,
    /// One-letter form of the flag; `None` if it has none.
    pub short: Option<char>,
    /// True if the next word is the flag's value.
    pub takes_value: bool,
    /// Description of the flag in one line.
    pub help: &'static str,
}

/// A command with its subcommands and flags, for completion scripts and manual pages. Built from a
/// [`Program`]; a binary that contains several tools combines their trees.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Name of the command; for the root, the name that scripts use for their functions.
    pub name: &'static str,
    /// Description of the command in one line.
    pub about: &'static str,
    /// Flags that the command accepts, including the global ones.
    pub flags: Vec<Word>,
    /// Subcommands.
    pub below: Vec<Tree>,
}

impl Tree {
    /// Returns the tree of a program's commands and flags, without the hidden ones.
    pub fn of<R>(program: &Program<R>) -> Tree {
        fn made<R>(command: &Command<R>, globals: &[FlagRow]) -> Tree {
            let shown = command.all_flags().chain(globals).filter(|flag| !flag.hidden);
            Tree {
                name: command.name,
                about: command.about,
                flags: shown
                    .map(|flag| Word {
                        name: flag.name,
                        short: flag.short,
                        takes_value: flag.kind != Kind::Bool,
                        help: flag.help,
                    })
                    .collect(),
                below: command
                    .subcommands
                    .iter()
                    .filter(|below| !below.hidden)
                    .map(|below| made(below, globals))
                    .collect(),
            }
        }
        made(&program.root, program.globals)
    }

    /// Returns the script for the shell with this name; `None` if it is not in [`SHELLS`]. `called` is the
    /// name of the executable.
    pub fn script(&self, shell: &[u8], called: &str) -> Option<String> {
        Some(match shell {
            b"bash" => bash(self, called),
            b"zsh" => zsh(self, called),
            b"fish" => fish(self, called),
            b"powershell" => powershell(self, called),
            _ => return None,
        })
    }

    /// Returns each command with its path below the root; the root is first and has an empty path.
    fn rows(&self) -> Vec<(String, &Tree)> {
        fn walk<'a>(path: String, tree: &'a Tree, out: &mut Vec<(String, &'a Tree)>) {
            out.push((path.clone(), tree));
            for below in &tree.below {
                let path =
                    if path.is_empty() { below.name.to_owned() } else { format!("{path} {}", below.name) };
                walk(path, below, out);
            }
        }
        let mut out = Vec::new();
        walk(String::new(), self, &mut out);
        out
    }

    /// Returns all flags that take the next word as their value.
    fn valued(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (_, tree) in self.rows() {
            for flag in tree.flags.iter().filter(|flag| flag.takes_value) {
                names.push(format!("--{}", flag.name));
                names.extend(flag.short.map(|letter| format!("-{letter}")));
            }
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the name of the tool as it can be used in the name of a shell function: characters other than
    /// letters and digits are replaced by underscores.
    fn function(&self) -> String {
        self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
    }
}

/// Returns the script for bash 4 or newer, which users load with `source <(etcdctl completion bash)`.
/// `called` is the name of the executable.
fn bash(tree: &Tree, called: &str) -> String {
    let name = tree.function();
    let mut out = format!("# bash completion for {called}\n_{name}_follows() {{\n    case \"$1\" in\n");
    for (path, command) in tree.rows() {
        let mut words: Vec<String> = command.below.iter().map(|below| below.name.to_owned()).collect();
        words.extend(command.flags.iter().map(|flag| format!("--{}", flag.name)));
        words.push("--help".to_owned());
        line_of(&mut out, format_args!("        '{path}') echo '{}' ;;", words.join(" ")));
    }
    line_of(
        &mut out,
        format_args!(
            "    esac\n}}\n_{name}_complete() {{\n    local at=1 path='' word next\n    \
             while [ \"$at\" -lt \"$COMP_CWORD\" ]; do\n        word=${{COMP_WORDS[at]}}\n        case \"$word\" in\n            \
             {}) at=$((at + 1)) ;;\n            -*) ;;\n            *)\n                next=\"${{path:+$path }}$word\"\n                \
             [ -n \"$(_{name}_follows \"$next\")\" ] && path=$next ;;\n        esac\n        at=$((at + 1))\n    done\n    \
             COMPREPLY=($(compgen -W \"$(_{name}_follows \"$path\")\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n}}\n\
             complete -o default -F _{name}_complete {called}",
            tree.valued().join("|")
        ),
    );
    out
}

/// Returns the script for zsh, which users load with `source <(etcdctl completion zsh)`, or put into a file
/// `_etcdctl` in a directory of `fpath`.
fn zsh(tree: &Tree, called: &str) -> String {
    let name = tree.function();
    let plain = |text: &str| text.replace('\'', "").replace('\n', " ").replace(':', "\\:");
    let mut out = format!(
        "#compdef {called}\n# zsh completion for {called}\n_{name}_follows() {{\n    case \"$1\" in\n"
    );
    for (path, command) in tree.rows() {
        let mut words: Vec<String> =
            command.below.iter().map(|below| format!("'{}:{}'", below.name, plain(below.about))).collect();
        words.extend(command.flags.iter().map(|flag| format!("'--{}:{}'", flag.name, plain(flag.help))));
        line_of(&mut out, format_args!("        '{path}') follows=({}) ;;", words.join(" ")));
    }
    line_of(
        &mut out,
        format_args!(
            "        *) return 1 ;;\n    esac\n}}\n_{name}() {{\n    local -a follows\n    local at=2 cpath='' word next\n    \
             while (( at < CURRENT )); do\n        word=${{words[at]}}\n        case \"$word\" in\n            \
             {}) (( at++ )) ;;\n            -*) ;;\n            *)\n                next=\"${{cpath:+$cpath }}$word\"\n                \
             _{name}_follows \"$next\" && cpath=$next ;;\n        esac\n        (( at++ ))\n    done\n    \
             _{name}_follows \"$cpath\"\n    _describe 'what follows' follows || _files\n}}\ncompdef _{name} {called}",
            tree.valued().join("|")
        ),
    );
    out
}

/// Returns the script for fish 3 or newer, which users load with `etcdctl completion fish | source`.
fn fish(tree: &Tree, called: &str) -> String {
    let name = tree.function();
    let plain = |text: &str| text.replace(['\'', '\\'], "").replace('\n', " ");
    let paths: Vec<String> = tree.rows().iter().map(|(path, _)| format!("'{path}'")).collect();
    // The first function of the script determines which command the words before the cursor name, and whether
    // the word at the cursor is the value of a flag.
    let mut out = format!(
        "# fish completion for {called}\nfunction __{name}_path\n    set -g __{name}_at ''\n    \
         set -g __{name}_value 0\n    for word in (commandline -opc)[2..-1]\n        \
         if test $__{name}_value = 1\n            set -g __{name}_value 0\n            continue\n        end\n        \
         switch $word\n            case {}\n                set -g __{name}_value 1\n            \
         case '-*'\n            case '*'\n                \
         set -l next (string trim -- \"$__{name}_at $word\")\n                \
         contains -- $next {}; and set -g __{name}_at $next\n        end\n    end\nend\n\
         function __{name}_at_value\n    __{name}_path\n    test $__{name}_value = 1\nend\n\
         function __{name}_follows\n    __{name}_path\n    test $__{name}_value = 1; and return\n    \
         switch $__{name}_at\n",
        tree.valued().join(" "),
        paths.join(" "),
    );
    for (path, command) in tree.rows() {
        let mut words: Vec<String> =
            command.below.iter().map(|below| format!("'{}' '{}'", below.name, plain(below.about))).collect();
        words.extend(command.flags.iter().map(|flag| format!("'--{}' '{}'", flag.name, plain(flag.help))));
        words.push("'--help' 'Show help'".to_owned());
        line_of(
            &mut out,
            format_args!("        case '{path}'\n            printf '%s\\t%s\\n' {}", words.join(" ")),
        );
    }
    line_of(
        &mut out,
        format_args!(
            "    end\nend\ncomplete -c {called} -f -a '(__{name}_follows)'\n\
             complete -c {called} -n __{name}_at_value -F"
        ),
    );
    out
}

/// Returns the script for PowerShell 5 or newer, which users load with `etcdctl completion powershell |
/// Out-String | Invoke-Expression`.
fn powershell(tree: &Tree, called: &str) -> String {
    let quoted: Vec<String> = tree.valued().iter().map(|flag| literal(flag)).collect();
    let paths: Vec<String> = tree.rows().iter().map(|(path, ..)| literal(path)).collect();
    let mut out = format!(
        "# PowerShell completion for {called}\n\
         Register-ArgumentCompleter -Native -CommandName {} -ScriptBlock {{\n    \
         param($wordToComplete, $commandAst, $cursorPosition)\n    \
         $valued = @({})\n    $paths = @({})\n    \
         $command = {{ param($name, $about) \
         [System.Management.Automation.CompletionResult]::new($name, $name, 'Command', $about) }}\n    \
         $flag = {{ param($name, $about) \
         [System.Management.Automation.CompletionResult]::new($name, $name, 'ParameterName', $about) }}\n    \
         $path = ''\n    $elements = $commandAst.CommandElements\n    \
         for ($at = 1; $at -lt $elements.Count; $at++) {{\n        \
         if ($elements[$at].Extent.EndOffset -ge $cursorPosition) {{ break }}\n        \
         $word = $elements[$at].Extent.Text\n        \
         if ($valued -ccontains $word) {{ $at++; continue }}\n        \
         if ($word.StartsWith('-')) {{ continue }}\n        \
         $next = \"$path $word\".TrimStart()\n        \
         if ($paths -ccontains $next) {{ $path = $next }}\n    }}\n    \
         $follows = switch -Exact -CaseSensitive ($path) {{\n",
        literal(called),
        quoted.join(", "),
        paths.join(", "),
    );
    for (path, tree) in tree.rows() {
        line_of(&mut out, format_args!("        {} {{", literal(&path)));
        for command in &tree.below {
            line_of(
                &mut out,
                format_args!("            & $command {} {}", literal(command.name), literal(command.about)),
            );
        }
        for flag in &tree.flags {
            let name = format!("--{}", flag.name);
            // Use the name of a flag without a description, because PowerShell does not accept an empty one.
            let help = if flag.help.is_empty() { flag.name } else { flag.help };
            line_of(&mut out, format_args!("            & $flag {} {}", literal(&name), literal(help)));
        }
        line_of(
            &mut out,
            format_args!("            & $flag '--help' 'Show help'\n            break\n        }}"),
        );
    }
    out += "    }\n    $follows | Where-Object { $_.CompletionText.StartsWith($wordToComplete, 'Ordinal') }\n}\n";
    out
}

/// Quotes a text as a PowerShell string literal. In PowerShell, the ASCII apostrophe and four single quotes
/// of Unicode end a literal, so each of them is doubled.
fn literal(text: &str) -> String {
    let mut out = String::from("'");
    for letter in text.replace('\n', " ").chars() {
        out.push(letter);
        if matches!(letter, '\'' | '\u{2018}'..='\u{201b}') {
            out.push(letter);
        }
    }
    out.push('\'');
    out
}
