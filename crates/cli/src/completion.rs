//! Scripts that let a shell complete commands and flags. Each lists the tool's whole table, so that completing needs no
//! run of the tool.

use std::fmt::Write as _;

use crate::command::{Command, FlagRow, Kind, Program};

/// A command in a completion script: its path below the root, its subcommands, its flags.
type Row<'a, R> = (String, Vec<&'a Command<R>>, Vec<&'a FlagRow>);

fn rows<R>(program: &Program<R>) -> Vec<Row<'_, R>> {
    fn walk<'a, R>(path: String, command: &'a Command<R>, globals: &'a [FlagRow], out: &mut Vec<Row<'a, R>>) {
        let below: Vec<&Command<R>> = command.subcommands.iter().filter(|below| !below.hidden).collect();
        let flags = command.all_flags().chain(globals).filter(|flag| !flag.hidden).collect();
        out.push((path.clone(), below, flags));
        for below in command.subcommands {
            let path = if path.is_empty() { below.name.to_owned() } else { format!("{path} {}", below.name) };
            walk(path, below, globals, out);
        }
    }
    let mut out = Vec::new();
    walk(String::new(), &program.root, program.globals, &mut out);
    out
}

/// A name that can be part of a function's.
fn function<R>(program: &Program<R>) -> String {
    program.root.name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("strings take everything");
}

/// Returns the script for bash 4 or newer: `source <(etcdctl completion bash)`. `called` is the name of the executable.
pub fn bash<R>(program: &Program<R>, called: &str) -> String {
    let name = function(program);
    let mut out = format!("# bash completion for {called}\n_{name}_follows() {{\n    case \"$1\" in\n");
    for (path, below, flags) in rows(program) {
        let mut words: Vec<String> = below.iter().map(|command| command.name.to_owned()).collect();
        words.extend(flags.iter().map(|flag| format!("--{}", flag.name)));
        words.push("--help".to_owned());
        put(&mut out, format_args!("        '{path}') echo '{}' ;;", words.join(" ")));
    }
    let values: Vec<String> = valued(program);
    put(
        &mut out,
        format_args!(
            "    esac\n}}\n_{name}_complete() {{\n    local at=1 path='' word next\n    \
             while [ \"$at\" -lt \"$COMP_CWORD\" ]; do\n        word=${{COMP_WORDS[at]}}\n        case \"$word\" in\n            \
             {}) at=$((at + 1)) ;;\n            -*) ;;\n            *)\n                next=\"${{path:+$path }}$word\"\n                \
             [ -n \"$(_{name}_follows \"$next\")\" ] && path=$next ;;\n        esac\n        at=$((at + 1))\n    done\n    \
             COMPREPLY=($(compgen -W \"$(_{name}_follows \"$path\")\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n}}\n\
             complete -o default -F _{name}_complete {called}",
            values.join("|")
        ),
    );
    out
}

/// Returns all flags that take the next word as their value.
fn valued<R>(program: &Program<R>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (_, _, flags) in rows(program) {
        for flag in flags.into_iter().filter(|flag| flag.kind != Kind::Bool) {
            names.push(format!("--{}", flag.name));
            names.extend(flag.short.map(|letter| format!("-{letter}")));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the script for zsh: `source <(etcdctl completion zsh)`, or as a file `_etcdctl` of `fpath`.
pub fn zsh<R>(program: &Program<R>, called: &str) -> String {
    let name = function(program);
    let plain = |text: &str| text.replace('\'', "").replace('\n', " ").replace(':', "\\:");
    let mut out = format!(
        "#compdef {called}\n# zsh completion for {called}\n_{name}_follows() {{\n    case \"$1\" in\n"
    );
    for (path, below, flags) in rows(program) {
        let mut words: Vec<String> =
            below.iter().map(|command| format!("'{}:{}'", command.name, plain(command.about))).collect();
        words.extend(flags.iter().map(|flag| format!("'--{}:{}'", flag.name, plain(flag.help))));
        put(&mut out, format_args!("        '{path}') follows=({}) ;;", words.join(" ")));
    }
    put(
        &mut out,
        format_args!(
            "        *) return 1 ;;\n    esac\n}}\n_{name}() {{\n    local -a follows\n    local at=2 cpath='' word next\n    \
             while (( at < CURRENT )); do\n        word=${{words[at]}}\n        case \"$word\" in\n            \
             {}) (( at++ )) ;;\n            -*) ;;\n            *)\n                next=\"${{cpath:+$cpath }}$word\"\n                \
             _{name}_follows \"$next\" && cpath=$next ;;\n        esac\n        (( at++ ))\n    done\n    \
             _{name}_follows \"$cpath\"\n    _describe 'what follows' follows || _files\n}}\ncompdef _{name} {called}",
            valued(program).join("|")
        ),
    );
    out
}

/// Returns the script for fish: `etcdctl completion fish | source`.
pub fn fish<R>(program: &Program<R>, called: &str) -> String {
    let plain = |text: &str| text.replace('\'', "").replace('\n', " ");
    let mut out = format!("# fish completion for {called}\ncomplete -c {called} -f\n");
    for flag in program.globals.iter().filter(|flag| !flag.hidden) {
        fish_flag(&mut out, called, "", flag);
    }
    let top: Vec<&str> = program.root.subcommands.iter().map(|command| command.name).collect();
    for command in program.root.subcommands.iter().filter(|command| !command.hidden) {
        put(
            &mut out,
            format_args!(
                "complete -c {called} -n 'not __fish_seen_subcommand_from {}' -a {} -d '{}'",
                top.join(" "),
                command.name,
                plain(command.about)
            ),
        );
        let seen = format!(" -n '__fish_seen_subcommand_from {}'", command.name);
        for flag in command.all_flags().filter(|flag| !flag.hidden) {
            fish_flag(&mut out, called, &seen, flag);
        }
        let names: Vec<&str> = command.subcommands.iter().map(|below| below.name).collect();
        for below in command.subcommands.iter().filter(|below| !below.hidden) {
            put(
                &mut out,
                format_args!(
                    "complete -c {called} -n '__fish_seen_subcommand_from {}; and not __fish_seen_subcommand_from {}' -a {} -d '{}'",
                    command.name,
                    names.join(" "),
                    below.name,
                    plain(below.about)
                ),
            );
            let seen = format!(
                " -n '__fish_seen_subcommand_from {}; and __fish_seen_subcommand_from {}'",
                command.name, below.name
            );
            for flag in below.all_flags().filter(|flag| !flag.hidden) {
                fish_flag(&mut out, called, &seen, flag);
            }
        }
    }
    out
}

fn fish_flag(out: &mut String, called: &str, condition: &str, flag: &FlagRow) {
    let short = flag.short.map(|letter| format!(" -s {letter}")).unwrap_or_default();
    let value = if flag.kind == Kind::Bool { "" } else { " -r" };
    let help = flag.help.replace('\'', "").replace('\n', " ");
    put(out, format_args!("complete -c {called}{condition} -l {}{short}{value} -d '{help}'", flag.name));
}
