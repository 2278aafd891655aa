//! Renders the help text, the page `docs/flags.md` and the output of `--version` from the flag table.

use std::fmt::Write as _;
use std::sync::OnceLock;

use api::{API_VERSION, RUNTIME_VERSION};

use super::feature_gate::{Effect, FEATURE_GATES};
use super::flag::{FlagRow, Group, Kind, Status};
use super::table::{self, FLAGS, OLD_SPELLINGS, Successor};

const HELP_GROUPS: [Group; 10] = [
    Group::Member,
    Group::Clustering,
    Group::Security,
    Group::Auth,
    Group::Profiling,
    Group::Logging,
    Group::Tracing,
    Group::Features,
    Group::Unsafe,
    Group::General,
];

/// Returns the usage text: printed on stderr after a syntax error and before the help text.
pub fn usage() -> String {
    "Usage:

  etcd [flags]
    Start a member.

  etcd --version
    Print the version.

  etcd -h | --help
    Print all flags.

Flags are written --name=value or --name value; a single dash works too. Each can also be set by an environment variable:
--data-dir is ETCD_DATA_DIR.
"
    .to_string()
}

/// Returns the help text of all flags by group: printed on stdout if help is requested.
pub fn flag_help() -> String {
    let mut out = String::new();
    for group in HELP_GROUPS {
        let _ = writeln!(out, "\n{}:", group.title());
        for flag in FLAGS.iter().filter(|flag| flag.group == group) {
            let _ = writeln!(out, "  --{} '{}'", flag.name, shown_default(flag));
            let _ = writeln!(out, "    {}", flag.help);
            if let Some(note) = note(flag) {
                let _ = writeln!(out, "    {note}");
            }
            if flag.kind == Kind::Gates {
                for gate in FEATURE_GATES {
                    let (name, stage, default) = (gate.name, gate.stage.as_str(), gate.default);
                    let _ = writeln!(out, "    {name}=true|false ({stage} - default={default})");
                }
            }
        }
    }
    out.push_str("\nUnsafe features can break the guarantees of the consensus protocol.\n");
    out
}

/// Returns a note that follows the flag's description in the help text, for example that the flag has no
/// effect.
fn note(flag: &FlagRow) -> Option<String> {
    match flag.status {
        Status::Implemented => None,
        Status::Legacy(_) => Some("Accepted and ignored, with a warning.".to_string()),
        Status::NoEffect(why) => Some(format!("Accepted without effect: {why}.")),
        Status::NotYet(honoured) => {
            Some(format!("Not supported by this version; only '{honoured}' is accepted."))
        }
    }
}

/// Returns the output of `--version`: the four lines of etcd's output, which tools parse, followed by lines
/// about Mainstay.
pub fn version_text(commit: Option<&str>) -> String {
    let commit = commit.unwrap_or("Not provided");
    let os = std::env::consts::OS;
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "etcd Version: {API_VERSION}\nGit SHA: {commit}\nGo Version: {RUNTIME_VERSION}\nGo OS/Arch: {os}/{arch}\n\
         Mainstay Version: {}\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Commit from which the program was built; not set by tests and tools.
static COMMIT: OnceLock<&'static str> = OnceLock::new();

/// Sets the result of [`commit`]. The binary does so once, when it starts, because only it is built again for each
/// commit. Later calls have no effect.
pub fn set_commit(commit: Option<&'static str>) {
    if let Some(commit) = commit {
        // Fails only if it is set already.
        let _ = COMMIT.set(commit);
    }
}

/// Returns the commit from which the program was built, in hexadecimal; `None` if it is unknown.
pub fn commit() -> Option<&'static str> {
    COMMIT.get().copied()
}

/// Returns the page `docs/flags.md`.
pub fn flags_page() -> String {
    let mut out = String::from(
        "# Server flags\n\n\
         Generated from the flag table in `crates/config/src/table.rs`; a test keeps it up to date\n\
         (`UPDATE_EXPECT=1 cargo test -p mainstay-config` rewrites it).\n\n\
         Flags are written `--name=value` or `--name value`; a single dash works too. Every flag can also be set by its\n\
         environment variable; setting both is an error. Status: *implemented*; *no effect* (accepted; the log says why\n\
         it has no effect here); *legacy* (etcd ignores it too; accepted with a warning); *not\n\
         yet* (refused at start unless set to the value given).\n",
    );
    for group in HELP_GROUPS.into_iter().chain([Group::Legacy]) {
        let _ = write!(
            out,
            "\n## {}\n\n| Flag | Environment | Default | Status | Meaning |\n|---|---|---|---|---|\n",
            group.title()
        );
        for flag in FLAGS.iter().filter(|flag| flag.group == group) {
            let status = match flag.status {
                Status::Implemented => "implemented".to_string(),
                Status::Legacy(_) => "legacy".to_string(),
                Status::NoEffect(why) => format!("no effect: {why}"),
                Status::NotYet("") => "not yet (only empty)".to_string(),
                Status::NotYet(honoured) => format!("not yet (only {})", code(honoured)),
            };
            let (name, env, default) =
                (code(&format!("--{}", flag.name)), code(&flag.env()), code(shown_default(flag)));
            let _ = writeln!(out, "| {name} | {env} | {default} | {status} | {} |", cell(flag.help));
        }
    }
    out.push_str("\n## Feature gates\n\n| Gate | Stage | Default | When set |\n|---|---|---|---|\n");
    for gate in FEATURE_GATES {
        let effect = match gate.effect {
            Effect::NoDifference(why) => format!("no effect: {why}"),
            Effect::Implemented => "implemented".to_string(),
        };
        let _ = writeln!(out, "| `{}` | {} | {} | {effect} |", gate.name, gate.stage.as_str(), gate.default);
    }
    out.push_str(
        "\n`AllAlpha` and `AllBeta` set every gate of their stage that is not set explicitly.\n\n\
         ## Old spellings\n\nAccepted with a warning, as etcd did until 3.6.\n\n| Flag | Now |\n|---|---|\n",
    );
    for old in OLD_SPELLINGS {
        let successor = match old.successor {
            Successor::Flag(flag) => format!("--{}", flag.name),
            Successor::Gate(gate) => format!("--feature-gates={}=…", gate.name),
        };
        let _ = writeln!(out, "| `--{}` | {} |", old.name, code(&successor));
    }
    out
}

/// Returns the default as shown to readers: the empty default of the data directory stands for a name derived
/// from the member's name.
fn shown_default(flag: &FlagRow) -> &'static str {
    if flag.name == table::DATA_DIR.row().name { "${name}.etcd" } else { flag.default }
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", cell(text)) }
}

/// Escapes the vertical bars in a text, since they would end a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
