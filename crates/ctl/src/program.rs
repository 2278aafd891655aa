use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use cli::Io;

/// A program that a command starts and waits for.
pub(crate) struct Program {
    name: OsString,
    arguments: Vec<OsString>,
    variables: Vec<(&'static str, OsString)>,
}

/// Reason why a program failed.
#[derive(Debug)]
pub(crate) enum ProgramError {
    /// The program could not be started.
    NotStarted(String),
    /// The program ended with an error.
    Ended(ExitStatus),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramError::NotStarted(text) => f.write_str(text),
            ProgramError::Ended(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exit status {code}"),
                (None, Some(signal)) => f.write_str(&signal_text(signal)),
                (None, None) => write!(f, "{status}"),
            },
        }
    }
}

fn signal_text(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGABRT => "aborted",
        libc::SIGKILL => "killed",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGPIPE => "broken pipe",
        libc::SIGTERM => "terminated",
        other => return format!("signal: {other}"),
    };
    format!("signal: {name}")
}

impl Program {
    pub(crate) fn new(name: &[u8], arguments: &[Vec<u8>]) -> Program {
        Program {
            name: OsStr::from_bytes(name).to_owned(),
            arguments: arguments.iter().map(|argument| OsStr::from_bytes(argument).to_owned()).collect(),
            variables: Vec::new(),
        }
    }

    /// Sets an environment variable for the program, which also gets the variables of this process.
    pub(crate) fn variable(&mut self, name: &'static str, value: OsString) {
        self.variables.push((name, value));
    }

    /// Runs the program and waits until it ends. The program's standard input is empty, and its output goes
    /// to the output of this command.
    ///
    /// # Errors
    /// Returns an error if the program could not be started or did not exit with code 0.
    pub(crate) async fn run(self, io: &Io) -> Result<(), ProgramError> {
        let io = io.clone();
        let ended = tokio::task::spawn_blocking(move || self.run_blocking(&io)).await;
        ended.unwrap_or_else(|error| Err(ProgramError::NotStarted(error.to_string())))
    }

    fn run_blocking(self, io: &Io) -> Result<(), ProgramError> {
        let name = self.name.to_string_lossy().into_owned();
        let mut command = Command::new(&self.name);
        command.args(&self.arguments).env_clear().envs(io.environment.iter().cloned());
        command.envs(self.variables).stdin(Stdio::null());
        let not_started = |error: std::io::Error| {
            ProgramError::NotStarted(match error.kind() {
                std::io::ErrorKind::NotFound if !name.contains('/') => {
                    format!("exec: {}: executable file not found in $PATH", cli::go::quote(name.as_bytes()))
                }
                std::io::ErrorKind::NotFound => format!("fork/exec {name}: no such file or directory"),
                std::io::ErrorKind::PermissionDenied => format!("fork/exec {name}: permission denied"),
                _ => format!("fork/exec {name}: {error}"),
            })
        };
        let status = if io.is_process {
            command.status().map_err(not_started)?
        } else {
            let output = command.output().map_err(not_started)?;
            // Ignore errors: if an output is closed, no reader misses the text.
            let _ = io.out.write(&output.stdout);
            let _ = io.err.write(&output.stderr);
            output.status
        };
        if status.success() { Ok(()) } else { Err(ProgramError::Ended(status)) }
    }
}
