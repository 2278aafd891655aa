//! `completion`: prints scripts that let a shell complete commands and flags.

use cli::{Command, Failure};

use crate::Session;
use crate::session::{Run, one_arg, usage};

pub(crate) const COMPLETION: Command<Run> = Command {
    name: "completion",
    usage: "completion [bash|zsh|fish|powershell]",
    usage_is_whole: true,
    about: "Generate completion script",
    example: "  source <(etcdutl completion bash)
  etcdutl completion zsh > \"${fpath[1]}/_etcdutl\"
  etcdutl completion fish | source
  etcdutl completion powershell | Out-String | Invoke-Expression",
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    one_arg(session)?;
    let shell = session.matches.arg_text(0).unwrap_or_default();
    let Some(script) = cli::completion::Tree::of(session.program).script(shell.as_bytes(), "etcdutl") else {
        let unknown = cli::go::quote(&shell);
        return Err(usage(session, &format!("invalid argument {unknown} for \"etcdutl completion\"")));
    };
    session.print(&script)
}
