use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Code, Status};
use cli::{Failure, Io, Matches};
use client::Client;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use crate::globals::{COMMAND_TIMEOUT, DIAL_TIMEOUT, Globals};
use crate::printer::{Answer, Format, Page, Printer};
use crate::process::Interruption;

/// One run of a command: its arguments, its input and output, and its connection to the cluster. Clones share
/// the state.
#[derive(Clone)]
pub(crate) struct Call(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) matches: Matches,
    pub(crate) io: Io,
    interruption: Option<Interruption>,
    globals: OnceCell<Globals>,
    /// Connection errors that were printed already; each is printed only once.
    unreached: Mutex<HashSet<String>>,
}

impl std::ops::Deref for Call {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Returns the failure for a closed standard output: nothing is printed, since no one reads it.
fn unread(_: std::io::Error) -> Failure {
    Failure::said(Failure::ERROR)
}

impl Call {
    pub(crate) fn new(matches: Matches, io: Io, interruption: Option<Interruption>) -> Call {
        let (globals, unreached) = (OnceCell::new(), Mutex::default());
        Call(Arc::new(Parts { matches, io, interruption, globals, unreached }))
    }

    /// Returns the flags that every command has. They are read when they are first needed, after a command
    /// has checked its arguments, so that a wrong argument is reported before a wrong flag, and before a
    /// password is asked for.
    ///
    /// # Errors
    /// Like [`Globals::read`].
    pub(crate) async fn globals(&self) -> Result<&Globals, Failure> {
        self.globals.get_or_try_init(|| Globals::read(&self.matches, &self.io)).await
    }

    /// Returns the printer for the output format; the format is simple until [`Call::globals`] has read the flag.
    pub(crate) fn printer(&self) -> Printer {
        let globals = self.globals.get();
        Printer {
            format: globals.map_or(Format::Simple, |globals| globals.format),
            hex: globals.is_some_and(|globals| globals.hex),
            value_only: false,
        }
    }

    /// Returns the source of interruptions: the signals of the process, unless a test supplies another. The
    /// signals of the process must be taken over before another thread starts.
    pub(crate) fn interruption(&self) -> Interruption {
        self.interruption.clone().unwrap_or_else(Interruption::of_process)
    }

    /// Returns the arguments.
    pub(crate) fn args(&self) -> &[Vec<u8>] {
        &self.matches.args
    }

    /// Returns a client of the given or discovered endpoints; with a user, the client is authenticated.
    ///
    /// # Errors
    /// The output format or a TLS file is not valid, or the user is refused.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let globals = self.globals().await?;
        globals.connect(globals.endpoints.clone()).await
    }

    /// Connects like [`Call::connect`], but only to this endpoint.
    ///
    /// # Errors
    ///
    /// Like [`Call::connect`].
    pub(crate) async fn connect_to(&self, endpoint: &str) -> Result<Client, Failure> {
        self.globals().await?.connect(vec![endpoint.to_owned()]).await
    }

    /// Returns the deadline that `--command-timeout` gives if it starts now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.matches.get(COMMAND_TIMEOUT)
    }

    /// Waits for the result of `work`, at most for `--command-timeout`.
    ///
    /// # Errors
    /// The error of `work`, or that the time has passed.
    pub(crate) async fn limit<T>(&self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        self.limit_at(self.deadline(), work).await
    }

    /// Waits like [`Call::limit`], but until a given deadline.
    ///
    /// # Errors
    ///
    /// Like [`Call::limit`].
    pub(crate) async fn limit_at<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let outcome = match timeout_at(deadline, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded")),
        };
        if outcome
            .as_ref()
            .is_err_and(|status| matches!(status.code, Code::DeadlineExceeded | Code::Unavailable))
        {
            self.tell_unreached(|_| true);
        }
        outcome
    }

    /// Prints, while the command runs, why no endpoint can be reached: a command without a time limit waits
    /// for an endpoint.
    pub(crate) async fn watch_unreached(&self) {
        let pause = self.matches.get(DIAL_TIMEOUT).max(Duration::from_millis(50));
        loop {
            tokio::time::sleep(pause).await;
            self.tell_unreached(|client| !client.is_connected());
        }
    }

    /// Prints to standard error why endpoints cannot be reached, once for each reason.
    pub(crate) fn tell_unreached(&self, of: impl Fn(&Client) -> bool) {
        let Some(globals) = self.globals.get() else { return };
        for (endpoint, error) in
            globals.clients().iter().filter(|client| of(client)).flat_map(Client::dial_errors)
        {
            let line = format!("Warning: {endpoint}: {error}{}", hint(&error));
            if self.unreached.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
                self.warn(line);
            }
        }
    }

    /// Waits like [`Call::limit`], with the failure that ends a command.
    ///
    /// # Errors
    ///
    /// Like [`Call::limit`].
    pub(crate) async fn limited<T>(
        &self,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Failure> {
        Ok(self.limit(work).await?)
    }

    /// Prints a response.
    ///
    /// # Errors
    /// The format cannot show it, or standard output is closed.
    pub(crate) fn show(&self, answer: &Answer<'_>) -> Result<(), Failure> {
        self.show_with(answer, false)
    }

    /// Prints like [`Call::show`], optionally with values only.
    ///
    /// # Errors
    ///
    /// Like [`Call::show`].
    pub(crate) fn show_with(&self, answer: &Answer<'_>, value_only: bool) -> Result<(), Failure> {
        let Page { out, err } = Printer { value_only, ..self.printer() }.page(answer)?;
        if !err.is_empty() {
            self.io.err.notice(err);
        }
        if out.is_empty() { Ok(()) } else { self.write(&out) }
    }

    /// Prints a line to standard output.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(crate) fn line(&self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.io.out.line(text).map_err(unread)
    }

    /// Writes bytes to standard output.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.io.out.write(bytes).map_err(unread)
    }

    /// Prints a line to standard error.
    pub(crate) fn warn(&self, text: impl AsRef<[u8]>) {
        // A closed standard error cannot be reported anywhere.
        let _ = self.io.err.line(text);
    }
}

/// Returns a hint at the cause of a connection error, if its text does not name the cause.
fn hint(error: &str) -> &'static str {
    if error.contains("InvalidContentType") {
        " (the server does not use TLS at this port: try http://, or another port)"
    } else if error.contains("EOF") || error.contains("connection reset by peer") {
        " (the server closed the connection: it may require TLS at this port (https://), or this is not the client port)"
    } else {
        ""
    }
}

/// Converts an argument for a field that holds text.
///
/// # Errors
/// The argument is not UTF-8, which such a field requires.
pub(crate) fn utf8(argument: &[u8]) -> Result<String, Failure> {
    std::str::from_utf8(argument).map(str::to_owned).map_err(|_| {
        let shown = cli::go::quote(argument);
        Failure::bad_args(format!("argument {shown} is not UTF-8"))
    })
}
