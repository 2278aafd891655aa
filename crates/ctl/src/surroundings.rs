use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::process::Interruption;

/// Where a command reads and writes, and its environment: the process's own, or a test's.
#[derive(Clone)]
pub struct Surroundings {
    /// Standard input.
    pub input: Input,
    /// Standard output: data.
    pub out: Output,
    /// Standard error: everything else.
    pub err: Output,
    /// The environment variables.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether these are the process's own streams, so that a program that is started may inherit them and a
    /// terminal may be asked for passwords.
    pub is_process: bool,
    /// What ends a command that waits; `None` for the signals of the process.
    pub interruption: Option<Interruption>,
}

impl Surroundings {
    /// The streams and environment of this process.
    pub fn of_process() -> Surroundings {
        Surroundings {
            input: Input::new(io::BufReader::new(io::stdin())),
            out: Output::new(io::stdout()),
            err: Output::new(io::stderr()),
            environment: std::env::vars_os().collect(),
            is_process: true,
            interruption: None,
        }
    }

    /// Tells when the command is to end. Of the process, it has to be taken before another thread is started.
    pub fn interruption(&self) -> Interruption {
        self.interruption.clone().unwrap_or_else(Interruption::of_process)
    }

    /// The value of an environment variable; empty where it is not set.
    pub fn variable(&self, name: &str) -> &OsStr {
        let found = self.environment.iter().rev().find(|(key, _)| key == name);
        found.map_or(OsStr::new(""), |(_, value)| value)
    }
}

/// Standard input, shared.
#[derive(Clone)]
pub struct Input(Arc<Mutex<dyn BufRead + Send>>);

impl Input {
    /// Reads from this.
    pub fn new(reader: impl BufRead + Send + 'static) -> Input {
        Input(Arc::new(Mutex::new(reader)))
    }

    /// The next line without its newline, or `None` at the end: also for a last line that no newline ends, which
    /// etcdctl does not take as one.
    ///
    /// # Errors
    /// Reading failed.
    pub fn line(&self) -> io::Result<Option<Vec<u8>>> {
        let mut line = self.rest_of_line()?;
        Ok((line.pop() == Some(b'\n')).then_some(line))
    }

    /// All bytes up to and with the next newline, or up to the end.
    ///
    /// # Errors
    /// Reading failed.
    pub fn rest_of_line(&self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.locked().read_until(b'\n', &mut line)?;
        Ok(line)
    }

    /// Everything up to the end.
    ///
    /// # Errors
    /// Reading failed.
    pub fn all(&self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        self.locked().read_to_end(&mut all)?;
        Ok(all)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, dyn BufRead + Send + 'static> {
        // A reader that panicked took what it took: the rest is still readable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Standard output or error, shared. Every write is passed on at once, so that whoever reads a pipe sees events as
/// they come.
#[derive(Clone)]
pub struct Output(Arc<Mutex<dyn Write + Send>>);

impl Output {
    /// Writes to this.
    pub fn new(writer: impl Write + Send + 'static) -> Output {
        Output(Arc::new(Mutex::new(writer)))
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// Whoever should read it has gone.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_all(bytes)?;
        writer.flush()
    }

    /// Writes a line.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn line(&self, text: impl AsRef<[u8]>) -> io::Result<()> {
        self.write(&[text.as_ref(), b"\n"].concat())
    }
}
