//! Gives commands their streams, environment and clock, which a test can replace.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, IsTerminal as _, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Streams, environment and clock that a command uses: those of the process, or others in a test. Clones
/// share the streams.
#[derive(Clone)]
pub struct Io {
    /// Standard input.
    pub input: Input,
    /// Standard output, for data.
    pub out: Output,
    /// Standard error, for everything else.
    pub err: Output,
    /// Environment variables.
    pub environment: Vec<(OsString, OsString)>,
    /// True if the streams are those of the process. Only then may a command let a child process inherit
    /// them, or read a password from the terminal.
    pub is_process: bool,
    /// True if standard output is a terminal.
    pub is_terminal: bool,
    /// Clock whose time is printed with notices.
    pub clock: fn() -> SystemTime,
}

impl Io {
    /// Returns the streams, environment and clock of this process.
    pub fn of_process() -> Io {
        Io {
            input: Input::new(io::BufReader::new(io::stdin())),
            out: Output::new(io::stdout()),
            err: Output::new(io::stderr()),
            environment: std::env::vars_os().collect(),
            is_process: true,
            is_terminal: io::stdout().is_terminal(),
            clock: SystemTime::now,
        }
    }

    /// Returns streams in memory, for a test: an empty standard input and environment, and two outputs that
    /// are recorded.
    pub fn in_memory() -> (Io, Printed) {
        let printed = Printed::default();
        let io = Io {
            input: Input::new(io::empty()),
            out: Output::new(Kept(printed.out.clone())),
            err: Output::new(Kept(printed.err.clone())),
            environment: Vec::new(),
            is_process: false,
            is_terminal: false,
            clock: SystemTime::now,
        };
        (io, printed)
    }

    /// Returns the value of an environment variable; empty if it is not set.
    pub fn variable(&self, name: &str) -> &OsStr {
        let found = self.environment.iter().rev().find(|(key, _)| key == name);
        found.map_or(OsStr::new(""), |(_, value)| value)
    }

    /// Returns the environment variables whose name and value are valid UTF-8; the others are left out.
    pub fn text_environment(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.environment
            .iter()
            .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), value.to_str()?.to_owned())))
    }
}

/// The recorded output of a tool with [`Io::in_memory`].
#[derive(Clone, Debug, Default)]
pub struct Printed {
    out: Arc<Mutex<Vec<u8>>>,
    err: Arc<Mutex<Vec<u8>>>,
}

impl Printed {
    /// Returns the standard output so far; invalid UTF-8 is replaced.
    pub fn out(&self) -> String {
        Printed::text(&self.out)
    }

    /// Returns the standard error so far; invalid UTF-8 is replaced.
    pub fn err(&self) -> String {
        Printed::text(&self.err)
    }

    fn text(bytes: &Mutex<Vec<u8>>) -> String {
        String::from_utf8_lossy(&bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

/// A writer that appends to memory.
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard input, shared by clones.
#[derive(Clone)]
pub struct Input(Arc<Mutex<dyn BufRead + Send>>);

impl Input {
    /// Returns an input that reads from `reader`.
    pub fn new(reader: impl BufRead + Send + 'static) -> Input {
        Input(Arc::new(Mutex::new(reader)))
    }

    /// Returns the next line without its newline; `None` at the end of the input. As in etcdctl, a last line
    /// without a newline is ignored.
    ///
    /// # Errors
    /// Returns an error if reading fails.
    pub fn line(&self) -> io::Result<Option<Vec<u8>>> {
        let mut line = self.rest_of_line()?;
        Ok((line.pop() == Some(b'\n')).then_some(line))
    }

    /// Returns all bytes up to the next newline, including it, or up to the end.
    ///
    /// # Errors
    ///
    /// Returns an error if reading fails.
    pub fn rest_of_line(&self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.locked().read_until(b'\n', &mut line)?;
        Ok(line)
    }

    /// Returns all bytes up to the end.
    ///
    /// # Errors
    /// Returns an error if reading fails.
    pub fn all(&self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        self.locked().read_to_end(&mut all)?;
        Ok(all)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, dyn BufRead + Send + 'static> {
        // Ignore the poisoning of the mutex: if another thread panicked while it was reading, the rest of the
        // input can still be read.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Standard output or standard error, shared by clones. Every write is flushed, so that the reader of a pipe
/// sees events immediately.
#[derive(Clone)]
pub struct Output(Arc<Mutex<dyn Write + Send>>);

impl Output {
    /// Returns an output that writes to `writer`.
    pub fn new(writer: impl Write + Send + 'static) -> Output {
        Output(Arc::new(Mutex::new(writer)))
    }

    /// Writes all bytes and flushes them.
    ///
    /// # Errors
    /// Returns an error if writing fails, for example because the reader has closed the stream.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_all(bytes)?;
        writer.flush()
    }

    /// Writes a line.
    ///
    /// # Errors
    /// Returns the errors of [`Output::write`].
    pub fn line(&self, text: impl AsRef<[u8]>) -> io::Result<()> {
        self.write(&[text.as_ref(), b"\n"].concat())
    }

    /// Writes a notice. An error, such as a stream that its reader has closed, is ignored, because it cannot
    /// be reported.
    pub fn notice(&self, text: impl AsRef<[u8]>) {
        let _ = self.write(text.as_ref());
    }
}
